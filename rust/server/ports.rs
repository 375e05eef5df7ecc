// SPDX-License-Identifier: GPL-2.0

//! The ports through which an export is offered.

#![forbid(unsafe_code)]

use core::str::FromStr;

use kernel::prelude::*;

use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Malformed,
    Name, //
};

/// The names of the ports through which an export is offered. Without a name, that is every port.
#[derive(Clone, Copy)]
pub(crate) struct Ports([Option<Name>; Ports::MAX]);

impl Ports {
    /// The number of ports that can be named.
    const MAX: usize = 8;

    /// Every port.
    pub(crate) const ALL: Self = Self([None; Self::MAX]);

    /// Returns the names; none stands for every port.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Name> {
        self.0.iter().flatten()
    }

    pub(super) fn contain(&self, port: &Name) -> bool {
        self.names().next().is_none() || self.names().any(|name| name == port)
    }
}

impl FromStr for Ports {
    type Err = Failure;

    /// Parses `all`, or names of ports with spaces between them.
    fn from_str(value: &str) -> Result<Self, Failure> {
        if value == "all" {
            return Ok(Self::ALL);
        }
        let mut names = [None; Self::MAX];
        let mut words = value.split(' ').filter(|word| !word.is_empty());
        let mut slots = names.iter_mut();
        loop {
            match (words.next(), slots.next()) {
                (Some(word), Some(slot)) => {
                    let name = word.parse::<Name>();
                    *slot = Some(name.map_err(|Malformed(why)| fail!(EINVAL, "ports: {why}"))?);
                }
                (Some(_), None) => {
                    return Err(fail!(EINVAL, "ports: more than {} names", Self::MAX));
                }
                (None, _) => break,
            }
        }
        match names.iter().flatten().next() {
            Some(_) => Ok(Self(names)),
            None => Err(fail!(EINVAL, "ports: neither \"all\" nor a name")),
        }
    }
}
