// SPDX-License-Identifier: GPL-2.0

//! A session: one path of one client's map, from its first connection to its end.
//!
//! This file has what the rest of the server knows of a session: its number, the events that it
//! receives, and how to end it. All of its state changes on its own ordered workqueue: the
//! connection manager, completion handlers and other tasks only leave what came in and schedule the
//! work. The work itself is [`Control`](super::control::Control): the client's requests and their
//! answers.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    impl_has_work, new_mutex, new_work,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        SetOnce, //
    },
    time::Msecs,
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    errno::ESHUTDOWN,
    sync::{
        without_io,
        Completion, //
    },
    workqueue::{
        OwnedQueue,
        ReleaseHandle, //
    }, //
};
use crate::link::{
    channel::{
        Link,
        Linked, //
    },
    keys::Psk,
};
use crate::proto::{
    Refusal,
    Refused, //
};
use crate::rdma::cm::{
    CmEvents,
    ConnectRequest, //
};
use crate::server::{
    accept::{
        reject,
        PendingConnection, //
    },
    loss::Loss,
    sessions::Sessions,
    stats, //
};
use crate::session::{
    clock::KeepAliveTimeout,
    half_open::Source,
    reservation::LOOK_MS,
    stranger::Stay, //
};

/// I/O connections that a session may have.
pub(super) const QUEUES_MAX: u16 = 64;
/// The interval at which a session that is to end looks at the commands that are under way, in ms.
const DRAIN_MS: Msecs = 20;

/// The work of a session, on its workqueue.
pub(super) trait SessionWork: Send + 'static {
    /// Handles everything that came in. An error ends the session. May sleep.
    fn serve(&mut self, session: &Arc<Session>) -> Result;

    /// Releases everything that the session holds. Called once, at its end. May sleep, as long as
    /// the backing device takes.
    fn finish(&mut self, session: &Session);

    /// Returns true if the client is logged in.
    fn is_logged_in(&self) -> bool;

    /// Looks for answers that the HCA could not send. May sleep.
    fn look(&self);
}

/// How a session that has drained is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dismissal {
    /// It is not to end yet.
    None,
    /// The backing device was flushed after the last command of all sessions.
    Flushed,
    /// It was not, or there is nothing to flush.
    Unflushed,
}

/// The epoch of the path that a connection request names, and the version to use.
pub(super) type Asked = (u64, u16);

/// Connection requests that wait for the workqueue.
struct Pending {
    /// Cleared once, when the session ends: no request may be left here then.
    open: bool,
    control: Option<PendingConnection>,
    io: KVec<(u16, PendingConnection)>,
}

/// What only the session's workqueue changes.
struct State {
    work: KBox<dyn SessionWork>,
    over: bool,
}

/// How long a client has been here without a login.
struct Visit {
    /// Its keep-alive timeout.
    keep_alive: KeepAliveTimeout,
    stay: Stay,
}

/// A session.
#[pin_data]
pub(crate) struct Session {
    /// Random, so that only the client that the number was sent to can name it.
    id: u64,
    /// Where replies to the client go.
    source: Source,
    stats: Arc<stats::Server>,
    /// The list that the session is in until it holds nothing any more.
    sessions: Arc<Sessions>,
    /// The workqueue that all sessions of strangers share.
    strangers: Arc<OwnedQueue>,
    /// What drops the next one.
    release: ReleaseHandle,
    /// Its own, once its client is admitted.
    queue: SetOnce<OwnedQueue>,
    #[pin]
    link: Link,
    /// The key that the client has proved to have.
    #[pin]
    proven: Mutex<Option<Arc<Psk>>>,
    #[pin]
    pending: Mutex<Pending>,
    #[pin]
    state: Mutex<State>,
    /// Of [`Session::check`].
    #[pin]
    visit: Mutex<Visit>,
    /// The client has logged out, and the server closes the I/O connections.
    leaving: Atomic<u32>,
    /// No command may begin any more.
    draining: Atomic<u32>,
    /// All commands that have begun are answered, or the session holds nothing any more.
    #[pin]
    drained: Completion,
    /// A [`Dismissal`]: whether the session that has drained ends now.
    dismissal: Atomic<u32>,
    /// Why the server ends the session.
    loss: SetOnce<Loss>,
    /// The session holds nothing any more.
    #[pin]
    over: Completion,
    #[pin]
    work: Work<Session>,
    /// The work as long as its client is a stranger.
    #[pin]
    stranger_work: Work<Session, STRANGER>,
}

/// The number of the work item of strangers.
const STRANGER: u64 = 1;

impl_has_work! {
    impl HasWork<Self> for Session { self.work }
    impl HasWork<Self, STRANGER> for Session { self.stranger_work }
}

impl Session {
    /// Makes a session without a connection, which does `work`, and adds it to `sessions` with the
    /// number that it got of [`Sessions::ask`] for `source`. Until its client is admitted it runs
    /// on the workqueue `strangers`; `release` drops its own one. May sleep.
    pub(super) fn new(
        (id, source): (u64, Source),
        stats: &Arc<stats::Server>,
        sessions: &Arc<Sessions>,
        (strangers, release): (&Arc<OwnedQueue>, &ReleaseHandle),
        work: KBox<dyn SessionWork>,
    ) -> Result<Arc<Self>> {
        let pending = Pending {
            open: true,
            control: None,
            io: KVec::new(),
        };
        let state = State { work, over: false };
        let visit = Visit {
            keep_alive: keep_alive(0),
            stay: Stay::default(),
        };
        let session = Arc::pin_init(
            pin_init!(Self {
                id,
                source,
                stats: stats.clone(),
                sessions: sessions.clone(),
                strangers: strangers.clone(),
                release: release.clone(),
                queue: SetOnce::new(),
                link <- Link::new(),
                proven <- new_mutex!(None, "Session::proven"),
                pending <- new_mutex!(pending, "Session::pending"),
                state <- new_mutex!(state, "Session::state"),
                visit <- new_mutex!(visit, "Session::visit"),
                leaving: Atomic::new(0),
                draining: Atomic::new(0),
                drained <- Completion::new(),
                dismissal: Atomic::new(Dismissal::None as u32),
                loss: SetOnce::new(),
                over <- Completion::new(),
                work <- new_work!("Session::work"),
                stranger_work <- new_work!("Session::stranger_work"),
            }),
            GFP_KERNEL,
        )?;
        sessions.add(&session)?;
        Ok(session)
    }

    /// Returns the number that a client names to add an I/O connection; never 0.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns where replies to the client go. Any context.
    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// Returns a number that spreads the I/O connections of sessions over the completion vectors.
    pub(super) fn spread(&self) -> usize {
        usize::try_from(self.id >> 32).unwrap_or(0)
    }

    /// Returns the key that the client has proved to have. May sleep.
    pub(super) fn proven(&self) -> Option<Arc<Psk>> {
        self.proven.lock().clone()
    }

    /// Notes the key without which no later message of the client is taken. May sleep.
    pub(super) fn set_proven(&self, key: Arc<Psk>) {
        *self.proven.lock() = Some(key);
    }

    /// Notes that the client is admitted: it is no stranger any more, and what it asks for may take
    /// long. From now on the session runs on a workqueue of its own. May sleep.
    pub(super) fn admit(&self) -> Result {
        let queue = OwnedQueue::ordered(&self.release, c"farblk_session")?;
        self.queue.populate(queue);
        Ok(())
    }

    /// Notes that the client has logged in: the session is not one of the half-open connections any
    /// more. May sleep.
    pub(super) fn note_login(&self) {
        self.sessions.log_in(self.id);
    }

    /// Notes that the client logs out: the end of an I/O connection ends the session no more. With
    /// iWARP the server hears of it also where it closes the connection itself. Any context.
    pub(super) fn note_leaving(&self) {
        self.leaving.store(1, Relaxed);
    }

    /// Notes that the client was logged in until now. May sleep.
    pub(super) fn note_logout(&self) {
        self.sessions.know(&self.source);
    }

    /// Returns true if [`Session::admit`] has succeeded. Any context.
    pub(super) fn is_admitted(&self) -> bool {
        self.queue.as_ref().is_some()
    }

    /// Lets no more commands begin. While commands are under way, this has to be called again and
    /// again. Any context.
    pub(super) fn drain(self: &Arc<Self>) {
        self.draining.store(1, Relaxed);
        Self::notify(self);
    }

    /// Waits for a moment until all commands that have begun are answered. Must not be called from
    /// the session's own workqueue. Sleeps.
    pub(super) fn await_drained(&self) {
        let _ = self.drained.wait_timeout(DRAIN_MS);
    }

    /// Returns true if no more commands may begin. Any context.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed) != 0
    }

    /// Returns true if all commands that have begun are answered, and no more can begin. Any
    /// context.
    pub(super) fn is_drained(&self) -> bool {
        self.drained.is_done()
    }

    /// Notes that all commands that have begun are answered. Any context.
    pub(super) fn note_drained(&self) {
        self.drained.complete_all();
    }

    /// Lets the session end, which has drained: with [`Dismissal::Flushed`] after its client was
    /// told so. Any context.
    pub(super) fn dismiss(self: &Arc<Self>, how: Dismissal) {
        // CAST: A small number.
        self.dismissal.store(how as u32, Relaxed);
        Self::notify(self);
    }

    /// Returns what [`Session::dismiss`] has set. Any context.
    pub(super) fn dismissal(&self) -> Dismissal {
        let how = self.dismissal.load(Relaxed);
        let all = [Dismissal::Flushed, Dismissal::Unflushed];
        // CAST: A small number.
        all.into_iter()
            .find(|one| *one as u32 == how)
            .unwrap_or(Dismissal::None)
    }

    /// Waits until the session holds nothing any more, and has it look meanwhile whether it may
    /// end. Must not be called from its own workqueue. Sleeps.
    pub(super) fn await_end(self: &Arc<Self>) {
        while !self.is_over(DRAIN_MS) {
            Self::notify(self);
        }
    }

    /// Waits up to `timeout` ms until the session holds nothing any more. Returns true if that is
    /// so. May sleep.
    pub(super) fn is_over(&self, timeout: Msecs) -> bool {
        self.over.wait_timeout(timeout).is_ok()
    }

    /// Waits until the session holds nothing any more. Fails with `EINTR` if the task is killed
    /// before. Must not be called from the session's own workqueue. Sleeps.
    pub(super) fn wait_over(&self) -> Result {
        self.over.wait_killable()
    }

    /// Returns true if the session is about to end: its client is gone, or the server ends it. Any
    /// context.
    pub(super) fn is_lost(&self) -> bool {
        self.link.is_lost()
    }

    /// Returns the number of signs of life of the client so far: messages, and requests for I/O
    /// connections, as it may take long to connect many of them. Any context.
    pub(super) fn heard(&self) -> u64 {
        self.link.heard()
    }

    /// Counts a request for an I/O connection, which is the client's. Any context.
    pub(super) fn note_heard(&self) {
        self.link.note_heard();
    }

    /// Ends the session if its client neither logs in nor says anything, or does not log in for
    /// long: a port carries only so many; or if the HCA could not send an answer. Called once in
    /// [`LOOK_MS`]. May sleep.
    pub(super) fn check(self: &Arc<Self>) {
        let is_logged_in = match self.state.try_lock() {
            Some(state) => {
                let is_logged_in = state.work.is_logged_in();
                if is_logged_in {
                    state.work.look();
                }
                is_logged_in
            }
            // Its workqueue has the lock. A login may take as long as the backing device.
            None if self.is_admitted() => return,
            None => false,
        };
        let heard = self.heard();
        let mut visit = self.visit.lock();
        if is_logged_in {
            *visit = Visit {
                keep_alive: keep_alive(heard),
                stay: Stay::default(),
            };
        } else if visit.keep_alive.look(heard) | visit.stay.look(LOOK_MS) {
            self.lose();
        } else if self.is_admitted() {
            // It may have logged out.
            Self::notify(self);
        }
    }

    /// Ends the session soon, because an I/O connection broke or the server wants it to go. Any
    /// context.
    pub(super) fn lose(self: &Arc<Self>) {
        self.link.cut();
        Self::notify(self);
    }

    /// As [`Session::lose`], and notes why, unless the session is about to end already. Any
    /// context.
    pub(super) fn end(self: &Arc<Self>, why: Loss) {
        if !self.is_lost() {
            self.loss.populate(why);
        }
        self.lose();
    }

    /// Returns why the server ends the session; `None` if a connection broke. Any context.
    pub(super) fn loss(&self) -> Option<Loss> {
        self.loss.copy()
    }

    /// Counts a violation of the protocol, and ends the session soon. Any context.
    #[cold]
    pub(super) fn violation(self: &Arc<Self>) {
        self.stats.violations.count();
        self.end(Loss::Violation);
    }

    /// Counts a message or data that somebody has changed or made, and ends the session soon. Any
    /// context.
    #[cold]
    pub(super) fn forgery(self: &Arc<Self>) {
        self.stats.forged.count();
        self.end(Loss::Forgery);
    }

    /// Counts a client for which the HCA is overdue while others wait for the memory that it has,
    /// and ends the session soon. Any context.
    #[cold]
    pub(super) fn overdue(self: &Arc<Self>) {
        self.stats.overdue.count();
        self.end(Loss::Overdue);
    }

    /// Counts a completion on a one-sided I/O connection. Any context.
    pub(super) fn count_completion(&self) {
        self.stats.io_completions.count();
    }

    /// Takes the request for the control connection. If that fails, the session is as if it had
    /// never been. Runs in the connection manager's handler.
    pub(super) fn add_control(self: &Arc<Self>, request: ConnectRequest<'_>, asked: Asked) {
        let added = {
            let mut pending = self.pending.lock();
            match pending.open {
                true => Self::pending_connection(request, asked, Events(self.clone()))
                    .map(|connection| pending.control = Some(connection)),
                false => Err(ESHUTDOWN),
            }
        };
        match added {
            Ok(()) => Self::notify(self),
            Err(_) => self.sessions.remove(self),
        }
    }

    /// Takes the request for an I/O connection. Runs in the connection manager's handler.
    pub(super) fn add_io(self: &Arc<Self>, request: ConnectRequest<'_>, asked: Asked, queue: u16) {
        let mut pending = self.pending.lock();
        if !pending.open {
            return reject(request, Refused::from(Refusal::BadSession));
        }
        if pending.io.len() >= usize::from(QUEUES_MAX) || pending.io.reserve(1, GFP_KERNEL).is_err()
        {
            return reject(request, Refused::from(Refusal::NoMemory));
        }
        let events = IoEvents(self.clone());
        if let Ok(connection) = Self::pending_connection(request, asked, events) {
            // Cannot fail: the capacity was reserved above.
            let _ = pending.io.push_within_capacity((queue, connection));
        }
        drop(pending);
        Self::notify(self);
    }

    fn pending_connection(
        request: ConnectRequest<'_>,
        asked: Asked,
        events: impl CmEvents,
    ) -> Result<PendingConnection> {
        PendingConnection::new(request, asked, Arc::new(events, GFP_KERNEL)?)
    }

    /// Returns the pending request for the control connection. May sleep.
    pub(super) fn take_control(&self) -> Option<PendingConnection> {
        self.pending.lock().control.take()
    }

    /// Returns a pending request for an I/O connection, and its index. May sleep.
    pub(super) fn take_io(&self) -> Option<(u16, PendingConnection)> {
        self.pending.lock().io.pop()
    }

    /// Ends the session on its workqueue. The export is out of the client's reach afterwards.
    fn finish(&self, state: &mut State) {
        state.over = true;
        state.work.finish(self);
        // A pending request refers to the session: left here, neither would ever be freed.
        let (control, io) = {
            let mut pending = self.pending.lock();
            pending.open = false;
            (pending.control.take(), core::mem::take(&mut pending.io))
        };
        drop((control, io));
        self.sessions.remove(self);
        self.drained.complete_all();
        self.over.complete_all();
    }
}

impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut state = this.state.lock();
        if state.over {
            return;
        }
        // Reclaim may wait for this very export, if a client swaps to it.
        without_io(|| {
            if state.work.serve(&this).is_err() {
                this.finish(&mut state);
            }
        });
    }
}

impl WorkItem<STRANGER> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        match this.is_admitted() {
            true => Self::notify(&this),
            false => <Self as WorkItem>::run(this),
        }
    }
}

impl Linked for Session {
    fn link(&self) -> &Link {
        &self.link
    }

    fn notify(this: &Arc<Self>) {
        let _ = match this.queue.as_ref() {
            Some(queue) => queue.enqueue::<Arc<Self>, 0>(this.clone()),
            None => this.strangers.enqueue::<Arc<Self>, STRANGER>(this.clone()),
        };
    }

    fn sent(this: &Arc<Self>) {
        // A stranger's next message waits for a free buffer, and the end for the last message.
        Self::notify(this);
    }
}

/// Receives the events of the session's control connection.
struct Events(Arc<Session>);

impl CmEvents for Events {
    fn disconnected(&self) {
        self.0.lose();
    }
}

/// Receives the events of an I/O connection of the session.
struct IoEvents(Arc<Session>);

impl CmEvents for IoEvents {
    fn disconnected(&self) {
        if self.0.leaving.load(Relaxed) == 0 {
            self.0.lose();
        }
    }
}

/// Returns the keep-alive timeout of a client that has sent `heard` messages and has to send
/// another one soon. It is the shortest that any client has.
fn keep_alive(heard: u64) -> KeepAliveTimeout {
    KeepAliveTimeout::new(1, u32::MAX, LOOK_MS, heard)
}
