// SPDX-License-Identifier: GPL-2.0

//! The configfs tree: parsing, and "busy while enabled". No I/O.
//!
//! The tree and what each file means are in the page `configfs.rst`.

#![forbid(unsafe_code)]

mod discovery;
mod export;
mod host;
mod map;
pub mod parse;
mod path;
mod port;
mod root;
mod switch;

pub(crate) use root::register;

use core::fmt::{
    Display,
    Write, //
};
use core::net::SocketAddr;

use kernel::prelude::*;

use crate::base::configfs::PageWriter;
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::Name;

/// The name of a new directory.
fn new_name(name: &str) -> Result<Name> {
    Name::new(name.as_bytes()).map_err(|_| EINVAL)
}

/// A parser's complaint about the text written to `attribute`, as a failure.
fn invalid<E: Display>(attribute: &str) -> impl FnOnce(E) -> Failure + '_ {
    move |why| fail!(EINVAL, "{attribute}: {why}")
}

/// A local IP address, or nothing.
fn parse_source(value: &str) -> Result<Option<SocketAddr>, Failure> {
    match value {
        "" => Ok(None),
        text => {
            let ip = parse::ip_addr(text).map_err(invalid("source"))?;
            // Any port: the connection manager takes a free one.
            Ok(Some(SocketAddr::new(ip, 0)))
        }
    }
}

/// Shows one value.
fn show(page: &mut PageWriter<'_>, value: impl Display) -> Result {
    writeln!(page, "{value}").map_err(|_| EMSGSIZE)
}

/// Shows a value that may be absent, as an empty line.
fn show_option(page: &mut PageWriter<'_>, value: Option<impl Display>) -> Result {
    match value {
        Some(value) => show(page, value),
        None => show(page, ""),
    }
}
