// SPDX-License-Identifier: GPL-2.0

//! Connections.
//!
//! The RDMA core reports events of a connection by calling a handler with the id's `handler_mutex`
//! held. Our handlers only record the event and wake the task that waits for it. What needs the
//! mutex, or waits for an event, is called by the owner of the connection, in a work item of its
//! own.
//!
//! C header: [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

mod ends;
pub(crate) mod error;
mod group;
pub(crate) mod listener;
mod service;
mod shared;

pub(crate) use self::{
    error::CmError,
    group::Group,
    listener::{
        ConnectRequest,
        Listen,
        Listener, //
    },
    service::Service, //
};

use crate::base::net::{
    Net,
    SockaddrStorage, //
};
use crate::bindings;
use crate::rdma::{
    client::Devices,
    cm::shared::{
        handler,
        Phase,
        Shared, //
    },
    device::Device,
    might_sleep,
    qp::{
        Connected,
        Rc,
        Transport, //
    }, //
};
use core::{
    ffi::c_void,
    marker::PhantomData,
    mem::ManuallyDrop,
    net::SocketAddr,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::c_ulong,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};

/// Receives the events of a connection.
///
/// # Context
///
/// The methods are called with the id's `handler_mutex` held: they may sleep, but should only
/// record and notify. No method of the same id may be called in them that is not said to be allowed
/// there, and neither an id nor a queue pair may be dropped: other events of it may wait behind
/// this one, and its end for them.
///
/// # Examples
///
/// ```
/// # use crate::{base::sync::Completion, rdma::cm::CmEvents};
/// # use kernel::prelude::*;
/// /// What happens to a connection. The task that owns the connection waits for it.
/// #[pin_data]
/// struct Events {
///     #[pin]
///     confirmed: Completion,
///     #[pin]
///     lost: Completion,
/// }
///
/// impl CmEvents for Events {
///     fn established(&self) {
///         self.confirmed.complete_all();
///     }
///
///     fn disconnected(&self) {
///         self.lost.complete_all();
///     }
/// }
/// ```
pub(crate) trait CmEvents: Send + Sync + 'static {
    /// The peer has confirmed a connection that was accepted.
    fn established(&self) {}

    /// The connection is lost, was never confirmed by the peer, or its device goes away.
    ///
    /// Called once at most, maybe before [`CmId::connect`] has returned, or while the id is being
    /// dropped. A failure of [`CmId::connect`] is returned by it and not reported here. The removal
    /// of the device is always reported here; without `handler_mutex` held, but for an id whose
    /// address is not resolved. That the peer has another link layer address is not reported:
    /// nothing gets there any more then, and requests end with an error.
    fn disconnected(&self);
}

/// Length of the private data of a peer, in bytes, at most: C counts them in a `u8`.
const PRIVATE_DATA_MAX: usize = u8::MAX as usize;

/// A copy of the private data of a peer.
///
/// InfiniBand and RoCE pad it with zeroes to the most that a message carries. The default is no
/// data, and no room for any.
///
/// # Examples
///
/// ```
/// # use crate::rdma::cm::{CmError, CmId, ConnParam};
/// # fn example(id: &CmId, param: &ConnParam<'_>) -> Result<(), CmError> {
/// let answer = id.connect(param, 5_000)?;
/// // There may be zeroes behind what the server has said.
/// let is_known = answer.starts_with(b"version 1");
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub(crate) struct PrivateData(KVec<u8>);

impl PrivateData {
    /// No data yet, but room for those of any peer. May sleep.
    fn with_room() -> Result<Self> {
        Ok(Self(KVec::with_capacity(PRIVATE_DATA_MAX, GFP_KERNEL)?))
    }

    /// Copies `data`, as far as there is room. Allocates nothing: a handler that waits for memory
    /// keeps other connections waiting, and I/O with them.
    fn fill(mut self, data: &[u8]) -> Self {
        for byte in data {
            let _ = self.0.push_within_capacity(*byte);
        }
        self
    }
}

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The parameters of a connection.
///
/// # Examples
///
/// ```
/// # use crate::rdma::cm::ConnParam;
/// # fn example() {
/// let param = ConnParam {
///     private_data: b"version 1",
///     // Some devices take 7 for no limit.
///     retry_count: 6,
///     // The peer may be out of receives for long, and is not lost for that.
///     rnr_retry_count: 7,
///     // RDMA READs and atomic operations: 16 of the peer at once, and none of this side.
///     responder_resources: 16,
///     initiator_depth: 0,
/// };
/// # }
/// ```
#[derive(Clone, Copy)]
pub(crate) struct ConnParam<'a> {
    /// Data for the peer: at most 56 bytes to connect and 196 to accept.
    pub(crate) private_data: &'a [u8],
    /// How often a request that is not acknowledged is sent again; 0 to 7. Not used to accept, nor,
    /// as what follows, but for [`Rc`].
    ///
    /// Some devices take 7 to mean without a limit.
    pub(crate) retry_count: u8,
    /// How often a request is sent again to a peer that has no receive posted; 0 to 6, or 7 for no
    /// limit.
    pub(crate) rnr_retry_count: u8,
    /// How many RDMA READs of the peer this side serves at once.
    pub(crate) responder_resources: u8,
    /// How many RDMA READs this side has under way at once.
    pub(crate) initiator_depth: u8,
}

impl ConnParam<'_> {
    fn as_raw<T: Transport>(&self) -> Result<bindings::rdma_conn_param> {
        // Else the core would allow the peer's RDMA READs in the queue pair.
        let reads = |limit| if T::HAS_READS { limit } else { 0 };
        Ok(bindings::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len())?,
            responder_resources: reads(self.responder_resources),
            initiator_depth: reads(self.initiator_depth),
            retry_count: self.retry_count.min(7),
            rnr_retry_count: self.rnr_retry_count.min(7),
            ..pin_init::zeroed()
        })
    }
}

/// One end of a connection: its address, and the number of its queue pair; 0 with iWARP.
pub(crate) type End = (SocketAddr, u32);

/// The address that replies to a peer go to: see [`CmId::reply_addr`].
pub(crate) type ReplyAddr = [u8; 24];

/// How much longer than the core this module waits for a resolution, so that the core's timeout
/// ends it and gives the reason.
const RESOLVE_SLACK_MS: u32 = 250;
/// How long the first try to resolve an address takes at most. The core looks at the neighbour
/// first, and only then queues the request that a change of the neighbour wakes: an answer that
/// comes between the two wakes nobody, and the request sleeps until its timeout (`queue_req` in
/// `drivers/infiniband/core/addr.c`). The second try then finds the neighbour at once.
const RESOLVE_TRY_MS: u32 = 500;

/// An id has no queue pair.
const NO_QP: u32 = 0;
/// Its queue pair is being created.
const NEW_QP: u32 = 1;
/// It has a queue pair.
const HAS_QP: u32 = 2;

/// A connection of queue pairs of transport `T`, or an attempt at one: C's `struct rdma_cm_id`.
///
/// An id is good for one attempt to connect. Another attempt needs a new id. With
/// [`Ud`](super::qp::Ud) nothing is connected: the id has the address of its queue pair, and may
/// look for a service, once.
///
/// # Context
///
/// Unless said otherwise, methods and dropping the last reference may sleep, and methods must not
/// be called by a handler of the same id.
///
/// # Examples
///
/// A client, up to where it sends:
///
/// ```
/// # use crate::{
/// #     base::net::Net,
/// #     rdma::{
/// #         client::Devices,
/// #         cm::{CmEvents, CmId, ConnParam},
/// #         cq::{Cq, Softirq},
/// #         pd::Pd,
/// #         qp::{Qp, QpCaps, QpHandler},
/// #     },
/// # };
/// # use core::net::SocketAddr;
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<H: QpHandler<Ulp = ()>>(
/// #     devices: &Arc<Devices>,
/// #     server: SocketAddr,
/// #     events: Arc<dyn CmEvents>,
/// #     param: &ConnParam<'_>,
/// #     caps: QpCaps,
/// #     handler: H,
/// # ) -> Result {
/// let id: Arc<CmId> = CmId::new(devices, &Net::current(), events)?;
/// // The address leads to a device, on which all that follows is made.
/// id.resolve(None, server, 5_000).map_err(|error| error.to_error())?;
/// let pd = Pd::alloc(&id.device()?)?;
/// let cq = Cq::<Softirq>::alloc(pd.device(), caps.send_cqes() + caps.recv_cqes(), 0)?;
/// let qp = Qp::create(&id, &pd, &cq, &cq, caps, handler)?;
/// // Here receives are posted: the server may send as soon as it has accepted.
/// let answer = id.connect(param, 5_000).map_err(|error| error.to_error())?;
/// # Ok(())
/// # }
/// ```
///
/// A server, whose [`Listen`] has had another task do this:
///
/// ```
/// # use crate::rdma::{
/// #     cm::{CmId, ConnParam},
/// #     cq::{Cq, Softirq},
/// #     pd::Pd,
/// #     qp::{Qp, QpCaps, QpHandler},
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<H: QpHandler<Ulp = ()>>(
/// #     id: &Arc<CmId>,
/// #     param: &ConnParam<'_>,
/// #     caps: QpCaps,
/// #     handler: H,
/// # ) -> Result {
/// // The request has told the device.
/// let pd = Pd::alloc(&id.device()?)?;
/// let cq = Cq::<Softirq>::alloc(pd.device(), caps.send_cqes() + caps.recv_cqes(), 0)?;
/// let qp = Qp::create(id, &pd, &cq, &cq, caps, handler)?;
/// // Here receives are posted.
/// id.accept(param)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `raw` is an id that is destroyed by `drop()` and nothing else, by itself or by letting the
///   handler that it runs in return other than 0.
/// - The id's `context` is the object of `shared`, to which a reference is kept until the id's
///   destruction.
/// - `qp` is [`NO_QP`] unless a [`Qp`](super::qp::Qp) of the id exists or is being created, and
///   [`HAS_QP`] only while it exists.
/// - `connected` is 1 from before its queue pair can receive, but with [`Ud`](super::qp::Ud).
/// - The id's `qp_type` is that of `T`.
pub(crate) struct CmId<T: Transport = Rc> {
    raw: NonNull<bindings::rdma_cm_id>,
    shared: ManuallyDrop<Arc<Shared>>,
    qp: Atomic<u32>,
    /// The number of the last queue pair.
    qp_number: Atomic<u32>,
    connected: Atomic<u32>,
    _transport: PhantomData<T>,
}

// SAFETY: An id belongs to no thread, and what `shared` points to is `Send` and `Sync`.
unsafe impl<T: Transport> Send for CmId<T> {}

// SAFETY: As above; the core's functions that are used take the locks they need, or are serialised
// by `Progress::phase`.
unsafe impl<T: Transport> Sync for CmId<T> {}

impl<T: Transport> CmId<T> {
    /// Creates an id for network namespace `net`, and one of `devices`. Fails with
    /// `ENOMEM`, and with the core's error. May sleep.
    pub(crate) fn new(
        devices: &Arc<Devices>,
        net: &Net,
        events: Arc<dyn CmEvents>,
    ) -> Result<Arc<Self>> {
        // SAFETY: The namespace is valid.
        unsafe { Self::create(devices, net.as_ptr(), events) }
    }

    /// Creates an id like [`Self::new`].
    ///
    /// # Safety
    ///
    /// `net` must be a valid network namespace.
    unsafe fn create(
        devices: &Arc<Devices>,
        net: *mut bindings::net,
        events: Arc<dyn CmEvents>,
    ) -> Result<Arc<Self>> {
        let shared = Shared::new(devices, events, Phase::Idle, None)?;
        // SAFETY: The caller gives a valid namespace; the handler is for a context that is a
        // `Shared`, to which a reference is kept as long as the id exists; the name is static.
        let raw = from_err_ptr(unsafe {
            bindings::__rdma_create_kernel_id(
                net,
                Some(handler),
                Arc::as_ptr(&shared).cast_mut().cast::<c_void>(),
                T::PORT_SPACE,
                T::QP_TYPE,
                devices.owner().name().as_char_ptr(),
            )
        })?;
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // SAFETY: The id is ours, with this context.
        let this = unsafe { Self::from_raw(raw, shared) };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }
}

impl<T: Transport> CmId<T> {
    /// # Safety
    ///
    /// `raw` must be an id with `handler` and `shared` as its context and the type of `T`, which
    /// the caller gives up.
    unsafe fn from_raw(raw: NonNull<bindings::rdma_cm_id>, shared: Arc<Shared>) -> Self {
        // INVARIANT: The caller gives the id up, with this context and type. There is no queue
        // pair.
        Self {
            raw,
            shared: ManuallyDrop::new(shared),
            qp: Atomic::new(NO_QP),
            qp_number: Atomic::new(0),
            connected: Atomic::new(0),
            _transport: PhantomData,
        }
    }

    /// The C object, which is valid as long as `self`.
    pub(super) fn as_raw(&self) -> *mut bindings::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// The data of its handler.
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Claims the id for a queue pair. Fails with `EBUSY` if it has one, or another caller is
    /// creating one.
    pub(super) fn claim_qp(&self) -> Result {
        self.qp.cmpxchg(NO_QP, NEW_QP, Acquire).map_err(|_| EBUSY)?;
        Ok(())
    }

    /// Notes, after [`Self::claim_qp`], that the queue pair exists, and its number.
    pub(super) fn ready_qp(&self, number: u32) {
        self.qp_number.store(number, Relaxed);
        self.qp.store(HAS_QP, Release);
    }

    /// The number of the last queue pair; 0 if there was none.
    pub(super) fn qp_number(&self) -> u32 {
        self.qp_number.load(Relaxed)
    }

    /// Returns the address that replies to the peer go to, of an id that was made of a
    /// [`ConnectRequest`]: its GID, and behind it the address on the link; with iWARP its IP
    /// address, as an IPv6 one. What [`Self::ends`] returns is only what the peer says. May sleep.
    pub(crate) fn reply_addr(&self) -> ReplyAddr {
        // SAFETY: By the type invariants the id is valid. The core sets the route before it reports
        // the request, and changes addresses only in the handler, whose lock is held.
        unsafe {
            bindings::rdma_lock_handler(self.as_raw());
            let addr = reply_addr(self.as_raw());
            bindings::rdma_unlock_handler(self.as_raw());
            addr
        }
    }

    /// Returns true if the transport is iWARP, or is not known yet. May sleep.
    pub(crate) fn is_iwarp(&self) -> bool {
        if self.device().is_err() {
            return true;
        }
        // SAFETY: By the type invariants the id is valid. It is bound to a device and a port.
        unsafe {
            let id = self.as_raw();
            bindings::rdma_protocol_iwarp((*id).device, (*id).port_num)
        }
    }

    /// Undoes [`Self::claim_qp`], once the queue pair is destroyed.
    pub(super) fn release_qp(&self) {
        self.qp.store(NO_QP, Release);
    }

    /// Returns true if `connect()` or `accept()` was called.
    pub(super) fn was_connected(&self) -> bool {
        self.connected.load(Acquire) != 0
    }

    /// Fails with `EINVAL` if there is no queue pair.
    fn check_qp(&self) -> Result {
        match self.qp.load(Acquire) {
            HAS_QP => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Sets the type of service of the packets. To be called before [`Self::resolve`].
    pub(crate) fn set_service_type(&self, tos: u8) {
        // SAFETY: By the type invariants the id is valid.
        unsafe { bindings::rdma_set_service_type(self.as_raw(), tos.into()) };
    }

    /// Resolves `dst` to a device and a route, from address `src` if it is given.
    ///
    /// Each of the two steps takes at most `timeout_ms` milliseconds and [`RESOLVE_SLACK_MS`].
    /// Fails with [`CmError::AddrError`], [`CmError::RouteError`], [`CmError::Timeout`] or
    /// [`CmError::DeviceRemoved`]; with [`CmError::Errno`] if the core refuses to start, which
    /// includes that it was called before.
    pub(crate) fn resolve(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout_ms: u32,
    ) -> Result<(), CmError> {
        let src = src.map(SockaddrStorage::from);
        let dst = SockaddrStorage::from(dst);
        let shared = &self.shared;
        let begin = Instant::<Monotonic>::now();
        let left_ms = || {
            let spent = u32::try_from(begin.elapsed().as_millis()).unwrap_or(u32::MAX);
            timeout_ms.saturating_sub(spent)
        };
        let mut try_ms = timeout_ms.min(RESOLVE_TRY_MS);
        shared.start(Phase::Addr)?;
        loop {
            // SAFETY: By the type invariants the id is valid. Both addresses are, and are only
            // read: C lacks a `const`.
            let started = to_result(unsafe {
                bindings::rdma_resolve_addr(
                    self.as_raw(),
                    src.as_ref()
                        .map_or(core::ptr::null_mut(), |src| src.as_ptr().cast_mut()),
                    dst.as_ptr(),
                    try_ms as c_ulong,
                )
            });
            // The core ends the try. It may be late, and then the next one is as good as begun.
            let finished = shared.finish_or_retry(
                started,
                left_ms().saturating_add(RESOLVE_SLACK_MS),
                |error| match error {
                    CmError::AddrError(status) => *status == ETIMEDOUT.to_errno() && left_ms() > 0,
                    _ => false,
                },
            )?;
            if finished.is_some() {
                break;
            }
            try_ms = left_ms();
        }
        shared.start(Phase::Route)?;
        // SAFETY: By the type invariants the id is valid; it is bound to a device.
        let started = to_result(unsafe {
            bindings::rdma_resolve_route(self.as_raw(), timeout_ms as c_ulong)
        });
        shared.finish(started, timeout_ms.saturating_add(RESOLVE_SLACK_MS))?;
        Ok(())
    }

    /// Returns the device of the connection. Fails with `ENODEV` before [`Self::resolve`] has found
    /// it, and once it is being removed. May sleep.
    pub(crate) fn device(&self) -> Result<Arc<Device>> {
        self.shared.device()
    }

    /// Returns the number of the port that the id is bound to; 0 if it is not.
    pub(super) fn port_num(&self) -> u32 {
        if self.device().is_err() {
            return 0;
        }
        // SAFETY: By the type invariants the id is valid. It is bound to a device and a port, which
        // do not change.
        unsafe { (*self.as_raw()).port_num }
    }
}

impl<T: Connected> CmId<T> {
    /// Connects to the peer, within `timeout_ms` milliseconds, and returns the private data of its
    /// reply.
    ///
    /// The id must have a queue pair, which can be used afterwards. Fails with
    /// [`CmError::Rejected`], [`CmError::Unreachable`], [`CmError::Timeout`] or
    /// [`CmError::DeviceRemoved`]; with [`CmError::Errno`] of `EINVAL` without a queue pair, of
    /// `ECONNRESET` if the connection ends at once, and with what the core says.
    pub(crate) fn connect(
        &self,
        param: &ConnParam<'_>,
        timeout_ms: u32,
    ) -> Result<PrivateData, CmError> {
        self.check_qp().map_err(CmError::Errno)?;
        let mut param = param.as_raw::<T>().map_err(CmError::Errno)?;
        let shared = &self.shared;
        shared.start(Phase::Connect)?;
        self.connected.store(1, Release);
        // SAFETY: By the type invariants the id is valid. The parameters are valid for the call.
        let started = to_result(unsafe { bindings::rdma_connect(self.as_raw(), &mut param) });
        shared.finish(started, timeout_ms)
    }

    /// Accepts a peer's request. The peer has yet to confirm: see [`CmEvents::established`].
    ///
    /// The id must have a queue pair, which can be used afterwards; else it fails with `EINVAL`. On
    /// any failure the request is rejected.
    pub(crate) fn accept(&self, param: &ConnParam<'_>) -> Result {
        self.check_qp()?;
        let mut param = param.as_raw::<T>()?;
        self.connected.store(1, Release);
        // SAFETY: By the type invariants the id is valid. `rdma_accept()` wants the lock held. The
        // parameters are valid for the call.
        unsafe {
            bindings::rdma_lock_handler(self.as_raw());
            let ret = bindings::rdma_accept(self.as_raw(), &mut param);
            bindings::rdma_unlock_handler(self.as_raw());
            to_result(ret)
        }
    }

    /// Rejects a peer's request with at most 148 bytes of private data. Fails with `EINVAL` if they
    /// are more, and with the core's error.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result {
        // SAFETY: By the type invariants the id is valid.
        unsafe { reject(self.as_raw(), private_data) }
    }

    /// Disconnects, if connected: moves the queue pair to its error state and sends a message to
    /// the peer.
    pub(crate) fn disconnect(&self) {
        // An error says that there is nothing to disconnect.
        // SAFETY: By the type invariants the id is valid.
        let _ = unsafe { bindings::rdma_disconnect(self.as_raw()) };
    }
}

impl CmId {
    /// Sets how long the device waits for an acknowledgment: 4.096 us * 2^`timeout`; 0 is for
    /// ever.
    ///
    /// To be called before the connection is made.
    pub(crate) fn set_ack_timeout(&self, timeout: u8) -> Result {
        // SAFETY: By the type invariants the id is valid.
        to_result(unsafe { bindings::rdma_set_ack_timeout(self.as_raw(), timeout) })
    }

    /// Sets how long a peer waits that finds no receive posted before it sends again, as the
    /// specification encodes it: 1 to 31 grow from 0.01 to 491.52 ms; 0, the default, is 655.36 ms.
    ///
    /// To be called before the connection is made. It has no meaning with iWARP.
    pub(crate) fn set_min_rnr_timer(&self, timer: u8) -> Result {
        // SAFETY: By the type invariants the id is valid.
        to_result(unsafe { bindings::rdma_set_min_rnr_timer(self.as_raw(), timer) })
    }
}

/// Returns the address that replies go to.
///
/// # Safety
///
/// `id` must be valid, have been made of a connection request, and not be changed meanwhile.
unsafe fn reply_addr(id: *mut bindings::rdma_cm_id) -> ReplyAddr {
    let mut addr = ReplyAddr::default();
    // SAFETY: The caller gives a valid id; `addr` has the 24 bytes that are written.
    unsafe { bindings::farblk_reply_addr(id, addr.as_mut_ptr()) };
    addr
}

/// Rejects a peer's request.
///
/// # Safety
///
/// `id` must be valid.
unsafe fn reject(id: *mut bindings::rdma_cm_id, private_data: &[u8]) -> Result {
    let len = u8::try_from(private_data.len())?;
    // SAFETY: The caller gives a valid id. The data is valid for the call.
    to_result(unsafe {
        bindings::rdma_reject(
            id,
            private_data.as_ptr().cast(),
            len,
            bindings::ib_cm_rej_reason_IB_CM_REJ_CONSUMER_DEFINED as u8,
        )
    })
}

impl<T: Transport> Drop for CmId<T> {
    fn drop(&mut self) {
        might_sleep();
        let abandoned = self.shared.in_handler();
        if abandoned {
            // `rdma_destroy_id()` would wait for the handler, so the handler has the core destroy
            // the id.
            self.shared.abandon();
        } else {
            // SAFETY: By the type invariants the id is ours, and there is no queue pair: it would
            // hold a reference. The handler does not run in this task, and once the id is
            // destroyed it runs in none.
            unsafe { bindings::rdma_destroy_id(self.as_raw()) };
        }
        if let Some(device) = self.shared.take_device() {
            device.remove_user(&self.shared);
        }
        if !abandoned {
            // SAFETY: It is not used again.
            unsafe { ManuallyDrop::drop(&mut self.shared) };
        }
    }
}
