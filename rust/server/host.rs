// SPDX-License-Identifier: GPL-2.0

//! The hosts that an export admits.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        Arc,
        Mutex, //
    },
};

use crate::proto::{
    Access,
    Name,
    Uuid, //
};

/// What the administrator says of a host.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    /// The id that the host must show, if any.
    pub(crate) id: Option<Uuid>,
    /// What the host may do.
    pub(crate) access: Access,
}

/// A host that an export admits.
#[pin_data]
pub(crate) struct Host {
    /// The name that the host must show.
    pub(crate) name: Name,
    #[pin]
    rule: Mutex<Rule>,
}

impl Host {
    /// Admits `name`, with any id, to read: more is for the administrator to say.
    pub(crate) fn new(name: Name) -> Result<Arc<Self>> {
        let rule = Rule {
            id: None,
            access: Access::ReadOnly,
        };
        Arc::pin_init(
            pin_init!(Self {
                name,
                rule <- new_mutex!(rule, "server::Host::rule"),
            }),
            GFP_KERNEL,
        )
    }

    /// The rule. May sleep.
    pub(crate) fn rule(&self) -> Rule {
        *self.rule.lock()
    }

    /// Changes the rule for later logins. May sleep.
    pub(crate) fn set_rule(&self, change: impl FnOnce(&mut Rule)) {
        change(&mut self.rule.lock())
    }
}

/// The `hosts/` of an export.
#[pin_data]
pub(crate) struct Hosts {
    #[pin]
    list: Mutex<KVec<Arc<Host>>>,
}

impl Hosts {
    /// Admits nobody.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { list <- new_mutex!(KVec::new(), "Hosts::list") }),
            GFP_KERNEL,
        )
    }

    /// Adds a host. May sleep.
    pub(crate) fn add(&self, host: Arc<Host>) -> Result {
        Ok(self.list.lock().push(host, GFP_KERNEL)?)
    }

    /// Removes a host. May sleep.
    pub(crate) fn remove(&self, host: &Host) {
        self.list.lock().retain(|other| other.name != host.name);
    }

    /// What the host that shows `name` and `id` may do; `None` if it is not admitted. May sleep.
    pub(crate) fn admit(&self, name: &Name, id: &Uuid) -> Option<Access> {
        let list = self.list.lock();
        let host = list.iter().find(|host| host.name == *name)?;
        let rule = host.rule();
        rule.id
            .is_none_or(|expected| expected == *id)
            .then_some(rule.access)
    }
}
