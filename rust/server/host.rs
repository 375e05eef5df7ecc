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

use crate::link::keys::{
    KeySlot, //
    Psk,
};
use crate::proto::{
    auth::KeyId,
    Access,
    Name,
    Uuid, //
};

/// What an export allows a host.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    /// The id that the host must send, if any.
    pub(crate) id: Option<Uuid>,
    /// The access that the host may have.
    pub(crate) access: Access,
}

/// A host that an export admits.
#[pin_data]
pub(crate) struct Host {
    /// The name that the host must send.
    pub(crate) name: Name,
    #[pin]
    rule: Mutex<Rule>,
    /// The key that the host must prove, if any.
    #[pin]
    pub(crate) key: KeySlot,
    /// Another one, which it may prove as well.
    #[pin]
    pub(crate) key_next: KeySlot,
}

impl Host {
    /// Admits `name`, with any id, to read. The administrator may allow more with
    /// [`Host::set_rule`].
    pub(crate) fn new(name: Name) -> Result<Arc<Self>> {
        let rule = Rule {
            id: None,
            access: Access::ReadOnly,
        };
        Arc::pin_init(
            pin_init!(Self {
                name,
                rule <- new_mutex!(rule, "server::Host::rule"),
                key <- KeySlot::new(),
                key_next <- KeySlot::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the rule. May sleep.
    pub(crate) fn rule(&self) -> Rule {
        *self.rule.lock()
    }

    /// Returns the keys of which the host must prove one; it needs none if there are none. May
    /// sleep.
    fn keys(&self) -> impl Iterator<Item = Arc<Psk>> {
        [self.key.get(), self.key_next.get()].into_iter().flatten()
    }

    /// Changes the rule for later logins. May sleep.
    pub(crate) fn set_rule(&self, change: impl FnOnce(&mut Rule)) {
        change(&mut self.rule.lock())
    }
}

/// The hosts that an export admits: its directory `hosts/`.
#[pin_data]
pub(crate) struct Hosts {
    #[pin]
    list: Mutex<KVec<Arc<Host>>>,
}

impl Hosts {
    /// Makes a list that admits no host.
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

    /// Returns the key of that name. May sleep.
    pub(crate) fn key(&self, id: KeyId) -> Option<Arc<Psk>> {
        let list = self.list.lock();
        let mut keys = list.iter().flat_map(|host| host.keys());
        keys.find(|key| key.id == id)
    }

    /// Returns true if any host needs a key. May sleep.
    pub(crate) fn have_keys(&self) -> bool {
        let list = self.list.lock();
        list.iter().any(|host| host.keys().next().is_some())
    }

    /// Returns true if the host that sends `name` has an entry with this key. May sleep.
    pub(crate) fn has_key(&self, name: &Name, key: KeyId) -> bool {
        let list = self.list.lock();
        let host = list.iter().find(|host| host.name == *name);
        host.is_some_and(|host| host.keys().any(|one| one.id == key))
    }

    /// Returns true if the host that sends `name` has no entry, or needs no key, or has proved one
    /// of its own. May sleep.
    pub(crate) fn proves(&self, name: &Name, proven: Option<KeyId>) -> bool {
        let list = self.list.lock();
        let Some(host) = list.iter().find(|host| host.name == *name) else {
            return true;
        };
        let mut keys = host.keys().peekable();
        keys.peek().is_none() || keys.any(|key| Some(key.id) == proven)
    }

    /// Returns the access of the host that sends `name` and `id`; `None` if it is not admitted. May
    /// sleep.
    pub(crate) fn admit(&self, name: &Name, id: &Uuid) -> Option<Access> {
        let list = self.list.lock();
        let host = list.iter().find(|host| host.name == *name)?;
        let rule = host.rule();
        rule.id
            .is_none_or(|expected| expected == *id)
            .then_some(rule.access)
    }
}
