// SPDX-License-Identifier: GPL-2.0

//! A port: an address on which the server listens, and the sessions that came in through it.

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
    errno::{
        self,
        EADDRINUSE,
        EADDRNOTAVAIL, //
    },
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
    accept::reject,
    control::Control,
    export::Exports,
    loss::Loss,
    session::Session,
    sessions::Sessions, //
};
use crate::session::{
    half_open::Source,
    quota::SESSIONS_MAX,
    reservation::LOOK_MS, //
};

/// Connection requests that may wait for the connection manager's handler.
const BACKLOG: u32 = 128;

/// A port.
#[pin_data]
pub(crate) struct Port {
    /// The name that the settings of exports refer to.
    pub(crate) name: Name,
    /// The exports that its sessions may log in to.
    exports: Arc<Exports>,
    net: Net,
    addr: SocketAddr,
    #[pin]
    listening: Mutex<Listening>,
    sessions: Arc<Sessions>,
    /// Set when the device or the address that it listens on was removed.
    removed: Atomic<u32>,
    /// The reason why it does not listen although it is enabled.
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
    /// Set when it must not listen again.
    closed: bool,
}

/// Looks after a port once in [`LOOK_MS`]: notices that its address was removed, makes it listen
/// again when its device and address are back, and ends sessions whose clients do not log in.
pub(crate) struct PortMonitor(Arc<Port>);

impl PeriodicHandler for PortMonitor {
    fn run(&self) {
        let port = &self.0;
        if port.failure.lock().is_some() {
            Port::notify(port);
        } else if !port.has_address() {
            port.note_removal();
        }
        port.sessions.for_each(Session::check);
    }
}

impl Port {
    /// Makes a port of `net` that does not listen yet. May sleep.
    pub(crate) fn new(
        name: Name,
        net: Net,
        addr: SocketAddr,
        exports: Arc<Exports>,
    ) -> Result<Arc<Self>> {
        let queue = OwnedQueue::ordered(&exports.release, c"farblk_port")?;
        Arc::pin_init(
            try_pin_init!(Self {
                name,
                exports,
                net,
                addr,
                listening <- new_mutex!(
                    Listening { listener: None, closed: false },
                    "Port::listening"
                ),
                sessions: Sessions::new()?,
                removed: Atomic::new(0),
                failure <- new_mutex!(None, "Port::failure"),
                queue,
                work <- new_work!("Port::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Starts to listen. Must be called once. May sleep.
    pub(crate) fn listen(self: &Arc<Self>) -> Result<(), Failure> {
        // A removal of the device that comes meanwhile waits for the listener.
        let mut listening = self.listening.lock();
        listening.listener = Some(self.listener()?);
        Ok(())
    }

    fn listener(self: &Arc<Self>) -> Result<Listener, Failure> {
        let events = Arc::new(Events(self.clone()), GFP_KERNEL)?;
        Listener::new(&self.exports.devices, &self.net, self.addr, BACKLOG, events)
            .map_err(|error| self.refused(error))
    }

    /// Says why the port cannot listen.
    fn refused(&self, error: Error) -> Failure {
        let (ip, port) = (self.addr.ip(), self.addr.port());
        match error {
            EADDRINUSE if ip.is_unspecified() => {
                fail!(
                    error,
                    "another RDMA listener has port {port} at some address"
                )
            }
            EADDRINUSE => {
                fail!(
                    error,
                    "another RDMA listener has port {port} at {ip}, or at all addresses"
                )
            }
            EADDRNOTAVAIL => fail!(error, "no interface of this host has the address {ip}"),
            ENODEV => fail!(error, "no RDMA device has the address {ip}"),
            EINVAL if ip.is_loopback() => {
                fail!(
                    error,
                    "{ip} is a loopback address, which RDMA takes for all addresses"
                )
            }
            ENOMEM => error.into(),
            _ => fail!(
                error,
                "the RDMA core refuses {}: {}",
                self.addr,
                errno::name(error)
            ),
        }
    }

    /// Returns false if the address that the port listens on was removed. May sleep.
    fn has_address(&self) -> bool {
        let listening = self.listening.lock();
        listening
            .listener
            .as_ref()
            .is_none_or(Listener::has_address)
    }

    /// Makes the port stop listening, as its device or address was removed. Any context.
    fn note_removal(self: &Arc<Self>) {
        self.removed.store(1, Relaxed);
        Port::notify(self);
    }

    /// Looks after the port and its sessions for as long as the result lives. May sleep.
    pub(crate) fn monitor(self: &Arc<Self>) -> Result<PeriodicWork<PortMonitor>> {
        PeriodicWork::new(PortMonitor(self.clone()), LOOK_MS)
    }

    /// Makes a session that is in the list, with a number that it was given, for who is at
    /// `source`. May sleep.
    fn session(&self, (id, source): (u64, Source)) -> Result<Arc<Session>> {
        let exports = &self.exports;
        let control = Control::new(self.name, exports.clone());
        let work = KBox::new(control, GFP_KERNEL)?;
        Session::new(
            (id, source),
            &exports.stats,
            &self.sessions,
            (&exports.strangers, &exports.release),
            work,
        )
    }

    fn notify(this: &Arc<Self>) {
        let _ = this.queue.enqueue(this.clone());
    }

    /// Returns the device that the address belongs to, while the port listens. May sleep.
    pub(crate) fn device(&self) -> Option<DeviceName> {
        let listening = self.listening.lock();
        Some(listening.listener.as_ref()?.device().ok()?.name())
    }

    /// Returns the reason why the port does not listen now. May sleep.
    pub(crate) fn failure(&self) -> Option<Failure> {
        *self.failure.lock()
    }

    /// Stops listening and ends all sessions.
    ///
    /// May sleep, as long as the backing devices take, unless the task is killed: then this fails
    /// with `EINTR`, the sessions go on ending, and another call waits for them.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.listening.lock().closed = true;
        self.stop_listening();
        // A removal may have been noticed before. From here on it does not listen because it is
        // being closed.
        self.queue.flush();
        *self.failure.lock() = None;
        self.sessions.for_each(|session| session.end(Loss::Closed));
        while let Some(session) = self.sessions.first() {
            session.end(Loss::Closed);
            session.wait_over().map_err(|killed| {
                fail!(
                    killed,
                    "killed while {} session(s) wait for their backing device; write 0 to wait",
                    self.sessions.len()
                )
            })?;
        }
        Ok(())
    }

    /// Returns true if a task has begun to close the port, also if it was killed. May sleep.
    pub(crate) fn is_closing(&self) -> bool {
        self.listening.lock().closed
    }

    /// Stops listening. No event of the listener comes afterwards. May sleep.
    fn stop_listening(&self) {
        let listener = self.listening.lock().listener.take();
        // This waits for the handler, which may take the lock.
        drop(listener);
    }
}

impl WorkItem for Port {
    type Pointer = Arc<Self>;

    /// Handles the removal of the device or the address, or listens again.
    fn run(this: Arc<Self>) {
        if this.removed.xchg(0, Full) != 0 {
            this.stop_listening();
            let failure = fail!(
                ENODEV,
                "the device or the address {} was removed",
                this.addr
            );
            // Once the port is closed, the end of its work item is no failure.
            let listening = this.listening.lock();
            if !listening.closed {
                *this.failure.lock() = Some(failure);
            }
            return;
        }
        let mut listening = this.listening.lock();
        if listening.closed || listening.listener.is_some() {
            return;
        }
        // If the device is removed meanwhile, this runs again.
        *this.failure.lock() = match this.listener() {
            Ok(listener) => {
                listening.listener = Some(listener);
                None
            }
            Err(failure) => Some(failure),
        };
    }
}

/// Receives the events of the listener.
struct Events(Arc<Port>);

impl Listen for Events {
    fn connect_request(&self, request: cm::ConnectRequest<'_>) {
        let (connect, version) = match ConnectRequest::parse(request.private_data()) {
            Ok(parsed) => parsed,
            Err(refused) => return reject(request, refused),
        };
        // With endless retries, a client that does not receive would hold the server's memory for
        // ever.
        let retries = request.retry_count().max(request.rnr_retry_count());
        if retries > crate::RETRY_COUNT {
            let refused = Refused::new(
                Refusal::Malformed,
                format_args!("{retries} retries: at most {}", crate::RETRY_COUNT),
            );
            return reject(request, refused);
        }
        let port = &self.0;
        let asked = (connect.epoch, version);
        match connect.connection {
            Connection::Control => {
                // Before anything is allocated. Requests that come in on several devices at once
                // may exceed it by one each.
                if port.sessions.len() >= SESSIONS_MAX {
                    let refused = Refused::new(
                        Refusal::Busy,
                        format_args!("the port has as many sessions as it takes"),
                    );
                    return reject(request, refused);
                }
                let cookie = ConnectRequest::ticket(request.private_data());
                let source = request.reply_addr();
                let id = match port.sessions.ask(&source, &cookie) {
                    Ok(id) => id,
                    Err(cookie) => {
                        port.exports.stats.sent_away.count();
                        let refused = Refusal::Again.into();
                        return reject(request, Reject { refused, cookie });
                    }
                };
                match port.session((id, source)) {
                    Ok(session) => session.add_control(request, asked),
                    Err(_) => {
                        port.sessions.give_back(id);
                        reject(request, Refused::from(Refusal::NoMemory));
                    }
                }
            }
            Connection::Io { session, queue } => match port.sessions.find(session) {
                Some(session) => session.add_io(request, asked, queue),
                None => reject(request, Refused::from(Refusal::BadSession)),
            },
        }
    }

    fn removed(&self) {
        self.0.note_removal();
    }
}
