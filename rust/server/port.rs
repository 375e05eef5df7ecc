// SPDX-License-Identifier: GPL-2.0

//! A listening address and the sessions that came in through it.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::{
    impl_has_work, new_mutex, new_work,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    net::Net,
    periodic::{
        PeriodicHandler,
        PeriodicWork, //
    },
    workqueue::OwnedQueue, //
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    wire::REJECT_MAX,
    ConnectRequest,
    Connection,
    Name,
    Refusal,
    Refused,
    Reject, //
};
use crate::rdma::{
    cm::{
        self,
        Listen,
        Listener, //
    },
    device::Name as DeviceName, //
};
use crate::server::{
    export::Exports,
    session::Session, //
};
use crate::session::reservation::LOOK_MS;

/// Connections that may wait to be looked at.
const BACKLOG: u32 = 128;
/// Sessions a port carries; what comes then is refused before anything is allocated for it. Of requests
/// that come at the same time on different devices one each may be too many.
const SESSIONS_MAX: usize = 1024;

/// A port.
#[pin_data]
pub(crate) struct Port {
    /// The name that exports know it by.
    pub(crate) name: Name,
    /// Where its sessions look for exports.
    pub(crate) exports: Arc<Exports>,
    net: Net,
    addr: SocketAddr,
    #[pin]
    listening: Mutex<Listening>,
    #[pin]
    sessions: Mutex<KVec<Arc<Session>>>,
    /// The device or the address that it listens on was removed.
    removed: Atomic<u32>,
    /// Why it does not listen.
    #[pin]
    failure: Mutex<Option<Failure>>,
    queue: OwnedQueue,
    #[pin]
    work: Work<Port>,
}

impl_has_work! {
    impl HasWork<Self> for Port { self.work }
}

struct Listening {
    listener: Option<Listener>,
    /// It does not listen again.
    closed: bool,
}

/// What lets a port whose device or address was removed listen again, once there is one, and ends sessions
/// that are of no use. Once in [`LOOK_MS`].
pub(crate) struct PortWatch(Arc<Port>);

impl PeriodicHandler for PortWatch {
    fn run(&self) {
        let port = &self.0;
        if port.failure.lock().is_some() {
            Port::notify(port);
        }
        port.sessions.lock().iter().for_each(Session::look);
    }
}

impl Port {
    /// Starts to listen in `net`. May sleep.
    pub(crate) fn listen(
        name: Name,
        net: Net,
        addr: SocketAddr,
        exports: Arc<Exports>,
    ) -> Result<Arc<Self>, Failure> {
        let queue = OwnedQueue::ordered(c"farblk_port")?;
        let port = Arc::pin_init(
            pin_init!(Self {
                name,
                exports,
                net,
                addr,
                listening <- new_mutex!(
                    Listening { listener: None, closed: false },
                    "Port::listening"
                ),
                sessions <- new_mutex!(KVec::new(), "Port::sessions"),
                removed: Atomic::new(0),
                failure <- new_mutex!(None, "Port::failure"),
                queue,
                work <- new_work!("Port::work"),
            }),
            GFP_KERNEL,
        )?;
        {
            // A removal of the device that comes meanwhile waits for the listener.
            let mut listening = port.listening.lock();
            let listener = port
                .listener()
                .map_err(|error| fail!(error, "cannot listen on {addr}"))?;
            listening.listener = Some(listener);
        }
        Ok(port)
    }

    fn listener(self: &Arc<Self>) -> Result<Listener> {
        let events = Arc::new(Events(self.clone()), GFP_KERNEL)?;
        Listener::new(&self.net, self.addr, BACKLOG, events)
    }

    /// Looks after the port and its sessions, as long as the result lives. May sleep.
    pub(crate) fn watch(self: &Arc<Self>) -> Result<PeriodicWork<PortWatch>> {
        PeriodicWork::new(PortWatch(self.clone()), LOOK_MS)
    }

    fn notify(this: &Arc<Self>) {
        let _ = this.queue.enqueue(this.clone());
    }

    /// The device that the address belongs to, while it listens. May sleep.
    pub(crate) fn device(&self) -> Option<DeviceName> {
        let listening = self.listening.lock();
        Some(listening.listener.as_ref()?.device().ok()?.name())
    }

    /// Why the port does not listen now. May sleep.
    pub(crate) fn failure(&self) -> Option<Failure> {
        *self.failure.lock()
    }

    /// Stops to listen and ends all sessions. May sleep.
    pub(crate) fn close(&self) {
        self.listening.lock().closed = true;
        self.stop_listening();
        // A removal that was noticed before.
        self.queue.flush();
        loop {
            let session = self.sessions.lock().first().cloned();
            match session {
                Some(session) => session.end(),
                None => return,
            }
        }
    }

    /// No event comes after this.
    fn stop_listening(&self) {
        let listener = self.listening.lock().listener.take();
        // Waits for the handler, which may take the lock.
        drop(listener);
    }

    /// A session is over. May sleep.
    pub(super) fn forget(&self, session: &Session) {
        self.sessions
            .lock()
            .retain(|other| other.id() != session.id());
    }

    fn find(&self, id: u64) -> Option<Arc<Session>> {
        let sessions = self.sessions.lock();
        sessions.iter().find(|session| session.id() == id).cloned()
    }
}

impl WorkItem for Port {
    type Pointer = Arc<Self>;

    /// The device or the address is gone, or may be back.
    fn run(this: Arc<Self>) {
        if this.removed.xchg(0, Full) != 0 {
            this.stop_listening();
            let failure = fail!(
                ENODEV,
                "the device or the address {} was removed",
                this.addr
            );
            *this.failure.lock() = Some(failure);
            return;
        }
        let mut listening = this.listening.lock();
        if listening.closed || listening.listener.is_some() {
            return;
        }
        // If that is removed meanwhile, this runs again.
        if let Ok(listener) = this.listener() {
            listening.listener = Some(listener);
            *this.failure.lock() = None;
        }
    }
}

/// What the connection manager tells a port.
struct Events(Arc<Port>);

impl Listen for Events {
    fn connect_request(&self, request: cm::ConnectRequest<'_>) {
        let (connect, version) = match ConnectRequest::parse(request.private_data()) {
            Ok(parsed) => parsed,
            Err(refused) => return reject(request, refused),
        };
        // For ever, the answers to a client that does not take them would keep all that they hold.
        let retries = request.retry_count().max(request.rnr_retry_count());
        if retries > crate::RETRY_COUNT {
            let refused = Refused::new(
                Refusal::Malformed,
                format_args!("{retries} retries: at most {}", crate::RETRY_COUNT),
            );
            return reject(request, refused);
        }
        let port = &self.0;
        match connect.connection {
            Connection::Control => {
                if port.sessions.lock().len() >= SESSIONS_MAX {
                    return reject(request, Refusal::Busy.into());
                }
                let session = match Session::new(port.clone()) {
                    Ok(session) => session,
                    Err(_) => return reject(request, Refusal::NoMemory.into()),
                };
                let listed = port.sessions.lock().push(session.clone(), GFP_KERNEL);
                if listed.is_err() {
                    return reject(request, Refusal::NoMemory.into());
                }
                if session.accept_control(request, version).is_err() {
                    port.forget(&session);
                }
            }
            Connection::Io { session, queue } => match port.find(session) {
                Some(session) => session.accept_io(request, version, queue),
                None => reject(request, Refusal::BadSession.into()),
            },
        }
    }

    fn removed(&self) {
        self.0.removed.store(1, Relaxed);
        Port::notify(&self.0);
    }
}

/// Refuses a connection with its reason.
pub(super) fn reject(request: cm::ConnectRequest<'_>, refused: Refused) {
    let mut data = [0; REJECT_MAX];
    let len = Reject(refused).encode(&mut data).unwrap_or(0);
    request.reject(data.get(..len).unwrap_or(&[]));
}
