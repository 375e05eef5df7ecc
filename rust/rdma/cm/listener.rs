// SPDX-License-Identifier: GPL-2.0

//! Listening for connections.
//!
//! C header: [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use crate::base::{
    errno::{
        EADDRINUSE,
        EADDRNOTAVAIL,
        ESHUTDOWN, //
    },
    net::{
        Net,
        SockaddrStorage, //
    },
    sync::without_io, //
};
use crate::bindings;
use crate::rdma::{
    ah::UDP_QKEY,
    client::Devices,
    cm::{
        reject,
        reply_addr,
        shared::{
            handler,
            leave_handler,
            private_data,
            Phase,
            Shared, //
        },
        CmEvents,
        CmId, //
        ReplyAddr,
    },
    device::{
        Device,
        DeviceUser, //
    },
    might_sleep,
    qp::{
        Connected,
        Qp,
        QpHandler,
        Rc,
        Transport,
        Ud, //
    }, //
};
use core::{
    cell::Cell,
    ffi::c_void,
    marker::PhantomData,
    net::SocketAddr,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::c_int,
    prelude::*,
    sync::Arc, //
};

/// Receives the requests of peers for connections of transport `T`, or with [`Ud`] for the queue
/// pair of a service.
///
/// # Context
///
/// The methods are called with the listener's `handler_mutex` held: they may sleep, but hold up
/// other peers. They must not drop the [`Listener`].
///
/// # Examples
///
/// ```
/// # use crate::rdma::cm::{CmEvents, ConnectRequest, Listen};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn new_client() -> Result<Arc<dyn CmEvents>> { Err(ENOMEM) }
/// # fn serve_in_a_work_item(id: Arc<crate::rdma::cm::CmId>) {}
/// # fn drop_the_listener_in_a_work_item() {}
/// struct Server;
///
/// impl Listen for Server {
///     fn connect_request(&self, request: ConnectRequest<'_>) {
///         if !request.private_data().starts_with(b"version 1") {
///             return request.reject(b"only version 1");
///         }
///         // Where one of these fails the request is dropped, and so refused.
///         let id = new_client().and_then(|events| request.into_id(events));
///         if let Ok(id) = id {
///             serve_in_a_work_item(id);
///         }
///     }
///
///     fn removed(&self) {
///         drop_the_listener_in_a_work_item();
///     }
/// }
/// ```
pub(crate) trait Listen<T: Transport = Rc>: Send + Sync + 'static {
    /// A peer requests a connection. The peer is refused if `request` is dropped.
    fn connect_request(&self, request: ConnectRequest<'_, T>);

    /// The device or the address that the [`Listener`] listens on goes away: a work item must drop
    /// the listener soon. May be called more than once, and while the listener is being dropped. It
    /// is not called for a listener at all addresses, which stays.
    fn removed(&self);
}

/// A peer's request for a connection, or with [`Ud`] for the queue pair of a service (service ID
/// resolution, SIDR). It can only be used in [`Listen::connect_request`].
///
/// # Examples
///
/// ```
/// # use crate::rdma::cm::{CmEvents, CmId, ConnectRequest};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(request: ConnectRequest<'_>, events: Arc<dyn CmEvents>) -> Result<Arc<CmId>> {
/// // The client wants its RDMA READs served. A device of this side may do fewer at once.
/// let reads = request.responder_resources();
/// let id = request.into_id(events)?;
/// let limit = id.device()?.limits().max_qp_rd_atom;
/// pr_info!("{} RDMA READs at once\n", limit.min(reads.into()));
/// # Ok(id)
/// # }
/// ```
///
/// # Invariants
///
/// - `id` and `event` are what the RDMA core called the listener's handler with, for
///   `RDMA_CM_EVENT_CONNECT_REQUEST`, and that handler is running in this task.
/// - The id's `qp_type` is that of `T`.
/// - `taken` is `None`.
pub(crate) struct ConnectRequest<'a, T: Transport = Rc> {
    id: NonNull<bindings::rdma_cm_id>,
    event: NonNull<bindings::rdma_cm_event>,
    taken: &'a Cell<Option<Arc<Shared>>>,
    devices: &'a Arc<Devices>,
    _transport: PhantomData<T>,
}

impl<T: Transport> ConnectRequest<'_, T> {
    /// Returns the peer's private data. InfiniBand and RoCE pad it with zeroes: to 56 bytes, or 180
    /// with [`Ud`].
    pub(crate) fn private_data(&self) -> &[u8] {
        // SAFETY: By the type invariants the event is valid, as long as `self` at least, and
        // carries connection parameters, or those of datagrams.
        unsafe { private_data(self.event.as_ptr()) }
    }

    /// Refuses the peer, with at most 148 bytes of private data, or 136 with [`Ud`].
    pub(crate) fn reject(self, private_data: &[u8]) {
        // On failure the peer is refused without the data, as the request is being dropped.
        // SAFETY: By the type invariants the id is valid.
        let _ = unsafe { reject(self.id.as_ptr(), private_data) };
    }
}

impl ConnectRequest<'_, Ud> {
    /// Answers that the service is had from `qp`, with at most 136 bytes of private data. That is
    /// the end of it: no connection is made, and the peer does not tell whether it uses the answer.
    ///
    /// On failure the peer is refused. Fails with `EINVAL` if `qp` is not on the device that the
    /// request came in by, or the data are too long, with `ESHUTDOWN` if it is destroyed, and with
    /// the core's error.
    pub(crate) fn answer<H: QpHandler<Ud>>(self, qp: &Qp<H, Ud>, private_data: &[u8]) -> Result {
        let number = qp.number();
        if number == 0 {
            return Err(ESHUTDOWN);
        }
        // SAFETY: By the type invariants the id is valid, and it is bound to a device.
        if unsafe { (*self.id.as_ptr()).device } != qp.device().as_raw() {
            return Err(EINVAL);
        }
        let mut param = bindings::rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: u8::try_from(private_data.len())?,
            qp_num: number,
            qkey: UDP_QKEY,
            ..pin_init::zeroed()
        };
        // SAFETY: By the type invariants the id is valid, and its handler is running in this task,
        // so that its lock is held. The parameters are valid for the call.
        to_result(unsafe { bindings::rdma_accept(self.id.as_ptr(), &mut param) })
    }
}

impl<T: Connected> ConnectRequest<'_, T> {
    /// Returns the address that replies to the peer go to: see [`CmId::reply_addr`].
    pub(crate) fn reply_addr(&self) -> ReplyAddr {
        // SAFETY: By the type invariants the id is valid, and its handler is running in this task.
        unsafe { reply_addr(self.id.as_ptr()) }
    }

    /// Returns how many RDMA READs the peer asks this side to serve at once.
    pub(crate) fn responder_resources(&self) -> u8 {
        // SAFETY: By the type invariants the event is valid and carries connection parameters.
        unsafe { (*self.event.as_ptr()).param.conn.responder_resources }
    }

    /// Returns how many RDMA READs of this side the peer serves at once.
    pub(crate) fn initiator_depth(&self) -> u8 {
        // SAFETY: By the type invariants the event is valid and carries connection parameters.
        unsafe { (*self.event.as_ptr()).param.conn.initiator_depth }
    }

    /// Returns how often the queue pair of this side sends again what the peer does not
    /// acknowledge: the peer sets that, not
    /// [`ConnParam::retry_count`](super::ConnParam::retry_count). 0 with iWARP.
    pub(crate) fn retry_count(&self) -> u8 {
        // SAFETY: By the type invariants the event is valid and carries connection parameters.
        unsafe { (*self.event.as_ptr()).param.conn.retry_count }
    }

    /// Returns how often the queue pair of this side sends again what the peer has no receive for;
    /// 7 is for no limit. 0 with iWARP.
    pub(crate) fn rnr_retry_count(&self) -> u8 {
        // SAFETY: By the type invariants the event is valid and carries connection parameters.
        unsafe { (*self.event.as_ptr()).param.conn.rnr_retry_count }
    }

    /// Turns the request into an id, which a work item must accept or reject soon.
    ///
    /// Fails with `ENODEV` if the device is being removed, and with `ENOMEM`; then the peer is
    /// refused. May sleep.
    pub(crate) fn into_id(self, events: Arc<dyn CmEvents>) -> Result<Arc<CmId<T>>> {
        // SAFETY: By the type invariants the id is valid, and it is bound to a device.
        let device = self.devices.lookup(unsafe { (*self.id.as_ptr()).device })?;
        let shared = Shared::new(self.devices, events, Phase::Passive, Some(device.clone()))?;
        shared.enter_handler();
        // SAFETY: By the type invariants the event is valid and carries connection parameters.
        unsafe { shared.note_peer_qp(self.event.as_ptr()) };
        // SAFETY: By the type invariants the id is valid and its handler is running in this task,
        // so that none other runs.
        unsafe {
            (*self.id.as_ptr()).context = Arc::as_ptr(&shared).cast_mut().cast();
            (*self.id.as_ptr()).event_handler = Some(handler);
        }
        // The handler lets the core keep the id, unless it is dropped meanwhile.
        self.taken.set(Some(shared.clone()));
        // SAFETY: The id has this handler, context and type. It is given up: the core does not
        // destroy it, as `taken` is set.
        let id = unsafe { CmId::from_raw(self.id, shared.clone()) };
        let id = Arc::new(id, GFP_KERNEL)?;
        device.add_user(shared)?;
        Ok(id)
    }
}

/// The handler of listeners.
///
/// # Safety
///
/// Must only be called by the RDMA core, for an id whose `context` is an [`Events<T>`].
unsafe extern "C" fn listen_handler<T: Transport>(
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> c_int {
    // SAFETY: The context of an id with this handler is an `Events` that the listener drops after
    // the listening id has been destroyed, and that waits for this handler.
    let Events { listen, devices } = unsafe { &*(*id).context.cast::<Events<T>>() };
    // SAFETY: The core gives a valid event.
    match unsafe { (*event).event } {
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST => {
            let (Some(id), Some(event)) = (NonNull::new(id), NonNull::new(event)) else {
                return EINVAL.to_errno();
            };
            // The core sees to that, but for a port of iWARP: there all ids are `Rc`.
            // SAFETY: The core gives a valid id.
            if unsafe { (*id.as_ptr()).qp_type } != T::QP_TYPE {
                return EINVAL.to_errno();
            }
            let taken = Cell::new(None);
            // INVARIANT: This is what the core called with, of this type, and nothing is taken.
            let request = ConnectRequest {
                id,
                event,
                taken: &taken,
                devices,
                _transport: PhantomData,
            };
            // As in the handler of connections.
            without_io(|| listen.connect_request(request));
            match taken.take() {
                // SAFETY: This is the end of the handler for the id that `shared` belongs to.
                Some(shared) => unsafe { leave_handler(shared.as_arc_borrow()) },
                // The core destroys the id, and so refuses the peer.
                None => EINVAL.to_errno(),
            }
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL
        | bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE => {
            listen.removed();
            0
        }
        _ => 0,
    }
}

/// The context of a listener's handler.
struct Events<T: Transport> {
    listen: Arc<dyn Listen<T>>,
    devices: Arc<Devices>,
}

impl<T: Transport> DeviceUser for Events<T> {
    fn device_removed(&self) {
        self.listen.removed();
    }
}

/// A port that the module listens on, for connections of transport `T`, or for who asks for a
/// service of [`Ud`]; the ports of both are not the same.
///
/// # Examples
///
/// ```
/// # use crate::{base::net::Net, rdma::{client::Devices, cm::{Listen, Listener}}};
/// # use core::net::{IpAddr, Ipv6Addr, SocketAddr};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(devices: &Arc<Devices>, server: Arc<dyn Listen>) -> Result {
/// // All addresses of IPv6, and so all devices that have one.
/// let addr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 7420);
/// let listener = Listener::new(devices, &Net::current(), addr, 16, server)?;
/// // Until it is dropped clients may come.
/// drop(listener);
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `raw` is an id that is destroyed by `drop()` and nothing else. Its `context` is the object of
///   `events`.
/// - `device` is its device, if it listens on that of one device; `events` is a user of it.
pub(crate) struct Listener<T: Transport = Rc> {
    raw: NonNull<bindings::rdma_cm_id>,
    device: Option<Arc<Device>>,
    events: Arc<Events<T>>,
}

// SAFETY: An id belongs to no thread, and `dyn Listen` is `Send` and `Sync`.
unsafe impl<T: Transport> Send for Listener<T> {}

// SAFETY: As above; the methods only read what does not change.
unsafe impl<T: Transport> Sync for Listener<T> {}

impl<T: Transport> Listener<T> {
    /// Listens on `addr` in network namespace `net`, on `devices`. Requests may come before this
    /// returns.
    ///
    /// Fails with `EINVAL` for a loopback address, which the core takes for all addresses; with
    /// `EADDRNOTAVAIL` if no interface has the address, and with `ENODEV` if no RDMA device has it;
    /// with `EADDRINUSE` if the port is taken, by a listener at this address or, if one of the two
    /// is at all addresses, at any; and with the core's error.
    ///
    /// # Context
    ///
    /// May sleep; so may dropping it, which must not happen in a method of `handler`, and which
    /// waits for one that is running.
    pub(crate) fn new(
        devices: &Arc<Devices>,
        net: &Net,
        addr: SocketAddr,
        backlog: u32,
        handler: Arc<dyn Listen<T>>,
    ) -> Result<Self> {
        if addr.ip().is_loopback() {
            return Err(EINVAL);
        }
        let events = Events {
            listen: handler,
            devices: devices.clone(),
        };
        let events = Arc::new(events, GFP_KERNEL)?;
        // SAFETY: The namespace is valid; the handler is for a context that is an `Events`, to
        // which a reference is kept as long as the id exists; the name is static.
        let raw = from_err_ptr(unsafe {
            bindings::__rdma_create_kernel_id(
                net.as_ptr(),
                Some(listen_handler::<T>),
                Arc::as_ptr(&events).cast_mut().cast::<c_void>(),
                T::PORT_SPACE,
                T::QP_TYPE,
                devices.owner().name().as_char_ptr(),
            )
        })?;
        // INVARIANT: The id was just created with this context, and has no device.
        let mut this = Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            device: None,
            events,
        };
        let is_everywhere = addr.ip().is_unspecified();
        let addr = SockaddrStorage::from(addr);
        // SAFETY: The id is ours. The address is valid, and is only read: C lacks a `const`.
        let bound = unsafe {
            to_result(bindings::rdma_set_afonly(raw, 1))?;
            to_result(bindings::rdma_bind_addr(raw, addr.as_ptr().cast_mut()))
        };
        match bound {
            // The core says so, too, if the port is taken and one of the two is at all addresses.
            Err(EADDRNOTAVAIL) if is_everywhere || this.interface().is_ok() => Err(EADDRINUSE),
            bound => bound,
        }?;
        // SAFETY: The id is ours, and does not listen yet, so that nothing changes its device.
        let device = unsafe { (*raw).device };
        if !device.is_null() {
            let device = devices.lookup(device)?;
            device.add_user(this.events.clone())?;
            // INVARIANT: This is the id's device, and `events` was added.
            this.device = Some(device);
        }
        // SAFETY: The id is ours.
        to_result(unsafe { bindings::rdma_listen(raw, i32::try_from(backlog)?) })?;
        Ok(this)
    }

    /// Returns the index of the interface that has the address now. Fails with `EADDRNOTAVAIL` if
    /// none has it. Takes no lock.
    fn interface(&self) -> Result<c_int> {
        // SAFETY: By the type invariants the id is ours. Its address and its network namespace do
        // not change once it was bound, and the namespace lives as long as the id.
        let (src, net) = unsafe {
            let addr = &raw const (*self.raw.as_ptr()).route.addr;
            (&raw const (*addr).src_addr, (*addr).dev_addr.net)
        };
        let mut found = bindings::rdma_dev_addr {
            net,
            ..pin_init::zeroed()
        };
        // SAFETY: Both are valid; it is an address of IP that was written by the core.
        to_result(unsafe { bindings::rdma_translate_ip(src.cast(), &mut found) })?;
        Ok(found.bound_dev_if)
    }

    /// Returns false if the interface has lost the address since the listener was made: no peer
    /// comes by it any more. The core tells nobody. A listener at all addresses has them for ever.
    /// Takes no lock.
    pub(crate) fn has_address(&self) -> bool {
        // SAFETY: By the type invariants the id is ours; binding it has set that, or left it 0.
        let bound = unsafe { (*self.raw.as_ptr()).route.addr.dev_addr.bound_dev_if };
        bound == 0 || self.interface() == Ok(bound)
    }

    /// Returns the device of the address. Fails with `ENODEV` if several devices have it.
    pub(crate) fn device(&self) -> Result<Arc<Device>> {
        self.device.clone().ok_or(ENODEV)
    }
}

impl<T: Transport> Drop for Listener<T> {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants the id is ours.
        unsafe { bindings::rdma_destroy_id(self.raw.as_ptr()) };
        if let Some(device) = &self.device {
            device.remove_user(&self.events);
        }
    }
}
