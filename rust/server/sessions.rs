// SPDX-License-Identifier: GPL-2.0

//! The sessions that came in through a port, and the places of those whose clients are not logged
//! in.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::base::sync;
use crate::link::keys::Cookies;
use crate::proto::handshake::Ticket;
use crate::server::session::Session;
use crate::session::half_open::{
    Answer,
    HalfOpen,
    Known,
    Place,
    Source,
    PLACES_MAX,
    SOURCES_MAX, //
};

type Places = HalfOpen<KVec<Option<Place>>, KVec<Option<Known>>>;

/// The sessions that came in through a port.
#[pin_data]
pub(super) struct Sessions {
    #[pin]
    list: Mutex<KVec<Arc<Session>>>,
    /// Those whose clients are not logged in. Locked before `list`.
    #[pin]
    half_open: Mutex<Places>,
    cookies: KBox<Cookies>,
    /// When the list was made.
    since: Instant<Monotonic>,
}

impl Sessions {
    /// Makes an empty list.
    pub(super) fn new() -> Result<Arc<Self>> {
        let half_open = HalfOpen::new(
            KVec::from_elem(None, PLACES_MAX, GFP_KERNEL)?,
            KVec::from_elem(None, SOURCES_MAX, GFP_KERNEL)?,
        );
        let mut cookies = KBox::new(Cookies::zero(), GFP_KERNEL)?;
        cookies.randomize();
        Arc::pin_init(
            pin_init!(Self {
                list <- new_mutex!(KVec::new(), "Sessions::list"),
                half_open <- new_mutex!(half_open, "Sessions::half_open"),
                cookies,
                since: Instant::now(),
            }),
            GFP_KERNEL,
        )
    }

    /// Asks for a place for a connection request, whose replies go to `source` and which shows
    /// `cookie`. Returns the number of the session that it may have, or the cookie that it has to
    /// come again with. May sleep.
    pub(super) fn ask(&self, source: &Source, cookie: &Ticket) -> Result<u64, Ticket> {
        let now = self.now_ms();
        let has_cookie = self.cookies.is_right(source, now, cookie);
        let id = sync::random_u64() | 1;
        let mut half_open = self.half_open.lock();
        match half_open.ask(id, source, has_cookie, now) {
            Answer::Enter(end) => {
                // As the lock is held, this session has not logged in meanwhile.
                if let Some(session) = end.and_then(|id| self.find(id)) {
                    session.lose();
                }
                Ok(id)
            }
            Answer::Again => Err(self.cookies.cookie(source, now)),
        }
    }

    /// Notes that a number of [`Sessions::ask`] is not used. May sleep.
    pub(super) fn give_back(&self, id: u64) {
        self.half_open.lock().leave(id);
    }

    /// Notes that the client of a session has logged in. May sleep.
    pub(super) fn log_in(&self, id: u64) {
        self.half_open.lock().log_in(id, self.now_ms());
    }

    /// Notes that a client that came from `source` was logged in until now. May sleep.
    pub(super) fn know(&self, source: &Source) {
        self.half_open.lock().know(source, self.now_ms());
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(0)
    }

    /// Adds a session. May sleep.
    pub(super) fn add(&self, session: &Arc<Session>) -> Result {
        Ok(self.list.lock().push(session.clone(), GFP_KERNEL)?)
    }

    /// Removes a session. May sleep.
    pub(super) fn remove(&self, session: &Session) {
        self.list.lock().retain(|other| other.id() != session.id());
        self.give_back(session.id());
    }

    /// Returns the number of sessions. May sleep.
    pub(super) fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Returns the session with a number. May sleep.
    pub(super) fn find(&self, id: u64) -> Option<Arc<Session>> {
        let list = self.list.lock();
        list.iter().find(|session| session.id() == id).cloned()
    }

    /// Returns the session that came first. May sleep.
    pub(super) fn first(&self) -> Option<Arc<Session>> {
        self.list.lock().first().cloned()
    }

    /// Visits the sessions. May sleep.
    pub(super) fn for_each(&self, visit: impl FnMut(&Arc<Session>)) {
        self.list.lock().iter().for_each(visit);
    }
}
