// SPDX-License-Identifier: GPL-2.0

//! A listening address and the sessions that came in through it.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::{
    impl_has_work, new_mutex, new_work,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::failure::{
    fail,
    Failure, //
};
use crate::net::Net;
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
use crate::workqueue::OwnedQueue;

/// Connections that may wait to be looked at.
const BACKLOG: u32 = 128;
/// Sessions a port carries; what comes then is refused before anything is allocated for it.
const SESSIONS_MAX: usize = 1024;

/// A port.
#[pin_data]
pub(crate) struct Port {
    /// The name that exports know it by.
    pub(crate) name: Name,
    /// Where its sessions look for exports.
    pub(crate) exports: Arc<Exports>,
    addr: SocketAddr,
    #[pin]
    listener: Mutex<Option<Listener>>,
    #[pin]
    sessions: Mutex<KVec<Arc<Session>>>,
    /// Why it no longer listens.
    #[pin]
    failure: Mutex<Option<Failure>>,
    queue: OwnedQueue,
    #[pin]
    work: Work<Port>,
}

impl_has_work! {
    impl HasWork<Self> for Port { self.work }
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
                addr,
                listener <- new_mutex!(None, "Port::listener"),
                sessions <- new_mutex!(KVec::new(), "Port::sessions"),
                failure <- new_mutex!(None, "Port::failure"),
                queue,
                work <- new_work!("Port::work"),
            }),
            GFP_KERNEL,
        )?;
        let events = Arc::new(Events(port.clone()), GFP_KERNEL)?;
        let listener = Listener::new(&net, addr, BACKLOG, events)
            .map_err(|error| fail!(error, "cannot listen on {addr}"))?;
        *port.listener.lock() = Some(listener);
        Ok(port)
    }

    /// The device that the address belongs to, while it listens. May sleep.
    pub(crate) fn device(&self) -> Option<DeviceName> {
        let listener = self.listener.lock();
        Some(listener.as_ref()?.device().ok()?.name())
    }

    /// Why the port stopped to listen by itself. May sleep.
    pub(crate) fn failure(&self) -> Option<Failure> {
        *self.failure.lock()
    }

    /// Stops to listen and ends all sessions. May sleep.
    pub(crate) fn close(&self) {
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
        let listener = self.listener.lock().take();
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

    /// The device or the address is gone.
    fn run(this: Arc<Self>) {
        this.stop_listening();
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
        let port = &self.0;
        match connect.connection {
            Connection::Control => {
                let session = match Session::new(port.clone()) {
                    Ok(session) => session,
                    Err(_) => return reject(request, Refusal::NoMemory.into()),
                };
                let mut sessions = port.sessions.lock();
                if sessions.len() >= SESSIONS_MAX {
                    return reject(request, Refusal::Busy.into());
                }
                if sessions.push(session.clone(), GFP_KERNEL).is_err() {
                    return reject(request, Refusal::NoMemory.into());
                }
                drop(sessions);
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
        let port = &self.0;
        *port.failure.lock() = Some(fail!(
            ENODEV,
            "the device or the address {} was removed",
            port.addr
        ));
        let _ = port.queue.enqueue(port.clone());
    }
}

/// Refuses a connection with its reason.
pub(super) fn reject(request: cm::ConnectRequest<'_>, refused: Refused) {
    let mut data = [0; REJECT_MAX];
    let len = Reject(refused).encode(&mut data).unwrap_or(0);
    request.reject(data.get(..len).unwrap_or(&[]));
}
