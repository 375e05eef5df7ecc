// SPDX-License-Identifier: GPL-2.0

//! What client hosts have of what the server has for all of them: keeps what each session is
//! charged with, and lets [`Limits`] judge.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt, new_mutex,
    sync::{
        Arc,
        Mutex, //
    },
};

use crate::base::{
    debugfs::Writer,
    memory::total_memory, //
};
use crate::proto::{
    Login,
    Name,
    Refusal,
    Refused,
    Uuid, //
};
use crate::session::quota::{
    bytes_of,
    Exceeded,
    Limits,
    Part,
    Usage, //
};

/// Whose an account is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum AccountKey {
    /// That of the host which has an entry of this name. One that has proved a key has another
    /// account than one that has not: who can show the name alone, to an export that wants no key,
    /// takes nothing from the host that has the key.
    Host(Name, bool),
    /// That of all hosts without an entry.
    Strangers,
}

impl AccountKey {
    /// Returns the part of everything that the account may have.
    pub(in crate::server) fn part(&self) -> Part {
        match self {
            Self::Host(..) => Part::Half,
            Self::Strangers => Part::Quarter,
        }
    }
}

/// The path of a map, as its client names it. A newer login of the same path supersedes an older
/// one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PathKey {
    export: Name,
    host: (Name, Uuid),
    map: Uuid,
    path: u8,
}

/// What a session is charged with.
struct Entry {
    /// The session.
    id: u64,
    account: AccountKey,
    path: PathKey,
    usage: Usage,
}

/// What the sessions of all hosts are charged with.
#[pin_data]
pub(crate) struct Quota {
    limits: Limits,
    #[pin]
    entries: Mutex<KVVec<Entry>>,
}

impl Quota {
    /// Makes the limits of this host, where nobody has anything. May sleep.
    pub(in crate::server) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                limits: Limits::new(total_memory()),
                entries <- new_mutex!(KVVec::new(), "Quota::entries"),
            }),
            GFP_KERNEL,
        )
    }

    /// Charges an account with session `id` of a login, until the result is dropped. Returns the
    /// depth that its `queues` get, which may be less than the `depth` that it asks for. Fails if
    /// the account may not have that. May sleep.
    ///
    /// An older session of the same path does not count: the login supersedes it.
    pub(in crate::server) fn charge(
        self: &Arc<Self>,
        id: u64,
        account: AccountKey,
        login: &Login,
        (queues, depth): (u16, u16),
    ) -> Result<(Charge, u16), Refused> {
        let resumes = login.resume.is_some();
        let depth = if resumes {
            // Its disk needs what it had.
            depth
        } else {
            self.limits.depth(queues, depth)
        };
        let usage = Usage {
            sessions: 1,
            bytes: bytes_of(queues, depth),
        };
        let path = PathKey {
            export: login.export,
            host: (login.host_name, login.host_id),
            map: login.map_uuid,
            path: login.path,
        };
        let mut entries = self.entries.lock();
        let (mut own, mut all) = (Usage::default(), Usage::default());
        // Others of the path are just logging in, too, and count: they may be many.
        let superseded = entries.iter().position(|entry| entry.path == path);
        for (at, entry) in entries.iter().enumerate() {
            if superseded == Some(at) {
                continue;
            }
            all = all.plus(entry.usage);
            if entry.account == account {
                own = own.plus(entry.usage);
            }
        }
        let checked = self.limits.check(account.part(), own, all, usage, resumes);
        checked.map_err(|exceeded| refused(&account, exceeded))?;
        let entry = Entry {
            id,
            account,
            path,
            usage,
        };
        let pushed = entries.push(entry, GFP_KERNEL);
        pushed.map_err(|_| Refused::from(Refusal::NoMemory))?;
        let charge = Charge {
            quota: self.clone(),
            id,
        };
        Ok((charge, depth))
    }
}

/// Returns what a client is told whose account may not have more.
fn refused(account: &AccountKey, exceeded: Exceeded) -> Refused {
    let of = match (exceeded, account) {
        (Exceeded::MemoryOfAll, _) => "all hosts",
        (_, AccountKey::Host(name, _)) => name.as_str(),
        (_, AccountKey::Strangers) => "hosts without an entry",
    };
    let what = match exceeded {
        Exceeded::Sessions => "sessions",
        Exceeded::Memory | Exceeded::MemoryOfAll => "memory for I/O connections",
    };
    Refused::new(Refusal::NoMemory, format_args!("no more {what} for {of}"))
}

/// What an account is charged with for a session.
pub(in crate::server) struct Charge {
    quota: Arc<Quota>,
    id: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut entries = self.quota.entries.lock();
        entries.retain(|entry| entry.id != self.id);
    }
}

/// Prints what the sessions of each account are charged with.
pub(crate) struct Accounts(pub(crate) Arc<Quota>);

impl Writer for Accounts {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(quota) = self;
        let entries = quota.entries.lock();
        for (at, first) in entries.iter().enumerate() {
            let of_account = |entry: &&Entry| entry.account == first.account;
            let mut before = entries.iter().take(at);
            if before.any(|entry| of_account(&entry)) {
                continue;
            }
            let all = entries.iter().filter(of_account);
            let Usage { sessions, bytes } =
                all.fold(Usage::default(), |all, entry| all.plus(entry.usage));
            match first.account {
                AccountKey::Host(name, true) => write!(f, "host {name} key")?,
                AccountKey::Host(name, false) => write!(f, "host {name}")?,
                AccountKey::Strangers => write!(f, "any_host")?,
            }
            writeln!(f, " sessions {sessions} bytes {bytes}")?;
        }
        Ok(())
    }
}
