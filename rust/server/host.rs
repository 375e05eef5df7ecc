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

use crate::link::keys::Psk;
use crate::proto::{
    auth::KeyId,
    Access,
    Name,
    Uuid, //
};

/// What an export demands of a host, and allows it.
#[derive(Default)]
pub(crate) struct Rule {
    /// The id that the host must send, if any.
    pub(crate) id: Option<Uuid>,
    /// The access that the host may have; `None` if it is not admitted.
    pub(crate) access: Option<Access>,
    /// The key that the host must prove, if any.
    pub(crate) key: Option<Arc<Psk>>,
    /// Another one, which it may prove as well.
    pub(crate) key_next: Option<Arc<Psk>>,
}

impl Rule {
    /// Returns the keys of which the host must prove one; it needs none if there are none.
    fn keys(&self) -> impl Iterator<Item = &Arc<Psk>> {
        [&self.key, &self.key_next].into_iter().flatten()
    }

    /// Returns the access of a host that sends `id`, where hosts without an entry have `any`. A
    /// host with another id than that of the entry has no more than the entry allows.
    fn access(&self, id: &Uuid, any: Option<Access>) -> Option<Access> {
        match self.access {
            Some(access) if self.id.is_none_or(|expected| expected == *id) => Some(access),
            Some(access) => any.map(|any| any.min(access)),
            None => any,
        }
    }

    /// Returns true if the host needs no key, or has proved one of its own.
    fn is_proven(&self, proven: Option<&Psk>) -> bool {
        let mut keys = self.keys().peekable();
        keys.peek().is_none()
            || proven.is_some_and(|proven| keys.any(|key| key.secret.is_same(&proven.secret)))
    }
}

/// A host needs a key, and has proved none of its own.
pub(crate) struct Unproven;

/// A host that an export has an entry of.
#[pin_data]
pub(crate) struct Host {
    /// The name that the host must send.
    pub(crate) name: Name,
    #[pin]
    rule: Mutex<Rule>,
}

impl Host {
    /// Makes an entry that does not admit `name` yet: what the host must prove can be set before
    /// what it may do. May sleep.
    pub(crate) fn new(name: Name) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                name,
                rule <- new_mutex!(Rule::default(), "server::Host::rule"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns what `look` makes of the rule. May sleep.
    pub(crate) fn rule<R>(&self, look: impl FnOnce(&Rule) -> R) -> R {
        look(&self.rule.lock())
    }

    /// Changes the rule for later logins. May sleep.
    pub(crate) fn set_rule(&self, change: impl FnOnce(&mut Rule)) {
        change(&mut self.rule.lock())
    }
}

/// The hosts that an export has entries of: its directory `hosts/`.
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
        list.iter()
            .find_map(|host| host.rule(|rule| rule.keys().find(|key| key.id == id).cloned()))
    }

    /// Returns true if any host needs a key. May sleep.
    pub(crate) fn have_keys(&self) -> bool {
        let list = self.list.lock();
        list.iter()
            .any(|host| host.rule(|rule| rule.keys().next().is_some()))
    }

    /// Returns true if the host that sends `name` needs a key, and has proved it. May sleep.
    pub(crate) fn has_proved(&self, name: &Name, proven: &Psk) -> bool {
        let list = self.list.lock();
        let host = list.iter().find(|host| host.name == *name);
        host.is_some_and(|host| {
            host.rule(|rule| rule.keys().next().is_some() && rule.is_proven(Some(proven)))
        })
    }

    /// Returns true if the host that sends `name` has no entry, or needs no key, or has proved one
    /// of its own. May sleep.
    pub(crate) fn is_proven(&self, name: &Name, proven: Option<&Psk>) -> bool {
        let list = self.list.lock();
        let host = list.iter().find(|host| host.name == *name);
        host.is_none_or(|host| host.rule(|rule| rule.is_proven(proven)))
    }

    /// Returns the access of the host that sends `name` and `id`, whatever it has proved, where
    /// hosts without an entry have `any`; `None` if it is not admitted. May sleep.
    pub(crate) fn access(&self, name: &Name, id: &Uuid, any: Option<Access>) -> Option<Access> {
        let list = self.list.lock();
        match list.iter().find(|host| host.name == *name) {
            Some(host) => host.rule(|rule| rule.access(id, any)),
            None => any,
        }
    }

    /// As [`Hosts::access`], of a host that has proved the key `proven`. May sleep.
    pub(crate) fn admit(
        &self,
        (name, id): (&Name, &Uuid),
        proven: Option<&Psk>,
        any: Option<Access>,
    ) -> Result<Option<Access>, Unproven> {
        let list = self.list.lock();
        let Some(host) = list.iter().find(|host| host.name == *name) else {
            return Ok(any);
        };
        // Both are looked at in one piece: what changes in between must not let anybody in.
        host.rule(|rule| match rule.is_proven(proven) {
            true => Ok(rule.access(id, any)),
            false => Err(Unproven),
        })
    }
}
