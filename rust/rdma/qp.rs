// SPDX-License-Identifier: GPL-2.0
// Long: all of a queue pair, whose fields are its own.

//! Queue pairs.
//!
//! A queue pair has a fixed table of *slots* for sends. To post, the caller names a slot and gives
//! an *owner*: the value that owns what the work request refers to. The owner lies in the slot
//! until the device is done with it, and then goes back to the [`QpHandler`]. A slot has room for
//! all that most sends need, and a few large arrays are there for the others, so that posting
//! allocates nothing.
//!
//! Work requests are chained in memory; [`Qp::ring`] posts the whole chain. Of the work requests of
//! a slot only the last one is signaled.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

mod atomic;
mod datagram;
mod immediate;

#[allow(
    unused_imports,
    reason = "the driver needs reliable connections; tests and samples more"
)]
pub(crate) use self::datagram::{
    SendTo,
    QKEY_OF_SENDER, //
};
use crate::base::{
    errno::{
        EOPNOTSUPP,
        EPROTO,
        ESHUTDOWN, //
    },
    free::FreeSet,
    memory::NumaNode,
    scatterlist::Segmented,
    sync::{
        new_irqsave_spinlock, //
        Completion,
        IrqSaveSpinLock,
    }, //
};
use crate::bindings;
use crate::rdma::{
    cm::{
        CmId,
        Group, //
    },
    cq::{
        AnyCq,
        Marker,
        Reservation, //
    },
    dma::{
        Direction,
        DmaBuffer,
        DmaMemory,
        DmaPiece, //
    },
    might_sleep,
    pd::Pd,
    quirks::Mark,
    remnant::{
        DeviceObject,
        ObjectRef,
        Remnants, //
    },
    srq::{
        RecvQueue,
        RecvSlot,
        Srq, //
    },
    wc::{
        datagram::Datagram, //
        Received,
        WcError,
        Written,
    },
    wr::{
        RdmaOp,
        RecvOwner,
        RemoteRange,
        SendOwner, //
        RECV_BUFFERS,
    }, //
};
use core::{
    cell::UnsafeCell,
    ffi::c_void,
    mem::ManuallyDrop, //
};
use kernel::{
    error::to_result,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        }, //
        Arc,
        Mutex,
    },
    time::{
        Instant,
        Monotonic, //
    },
    types::Opaque, //
};

/// A queue pair, which belongs to a [`CmId`]: one with a reliable connection, or of transport `T`.
///
/// # Context
///
/// The last reference must be dropped where sleeping is allowed, and neither by a method of the
/// handler nor by a completion of another queue pair on the same completion queues: dropping drains
/// the queue pair, as [`Self::drain`] does, and destroys it. If the device refuses that, the queue
/// pair becomes a [remnant](crate::rdma::remnant).
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     cm::{CmId, ConnParam},
/// #     cq::AnyCq,
/// #     dma::{Direction, DmaBuffer},
/// #     pd::Pd,
/// #     qp::{Qp, QpCaps, QpHandler},
/// #     remnant::ObjectRef,
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<H: QpHandler<Send = DmaBuffer, Recv = DmaBuffer, Ulp = ()>>(
/// #     id: &Arc<CmId>,
/// #     param: &ConnParam<'_>,
/// #     pd: &Arc<Pd>,
/// #     cq: &ObjectRef<AnyCq>,
/// #     caps: QpCaps,
/// #     handler: H,
/// # ) -> Result {
/// let qp = Qp::create(id, pd, cq, cq, caps, handler)?;
/// // A receive is there before the peer can send.
/// let room = DmaBuffer::alloc(pd.device(), 64, Direction::FromDevice)?;
/// qp.recv(room).map_err(|(error, _)| error)?;
/// id.connect(param, 5_000).map_err(|error| error.to_error())?;
/// let mut hello = DmaBuffer::alloc(pd.device(), 5, Direction::ToDevice)?;
/// hello.copy_in(0, b"hello")?;
/// // Both buffers are the queue pair's now. The handler gets them when they are done, and with
/// // this one slot 0 is free again.
/// qp.send(0, hello, true).map_err(|(error, _)| error)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `raw` is null, or a queue pair that only we use; until `detached` is 1 it is that of `id`,
///   whose claim is ours. It is set once, before a reference is given to the user. `destroy()` and
///   nothing else destroys it and makes it null again: with `stage` locked, after `close()`, so
///   that nobody posts to it any more.
/// - `stage` is `Live`, `Failed`, `Stuck` or `Lost` until `close()` was called and every completion
///   of the slots has been handled, and no other can come; it is `Destroyed` if and only if `raw`
///   was.
/// - `self` stays in place until `raw` is null.
/// - The C object is attached to just the groups in `groups`, which is changed with `stage` locked;
///   to none once `detached` is 1.
/// - Each slot's `qp` is the address of `self`. As long as a completion of a slot may come, `self`
///   and what its fields own stay in place.
/// - A send slot that is not `FREE` is used by nobody but the function that has claimed it; once it
///   is chained, by the holder of `sq`, and once it is posted, by the handler of its completions,
///   of which one runs at a time; and then, if the ULP keeps it, by the function of that which ends
///   it. What was chained and cannot be posted is claimed by the function that takes it out of the
///   chain, before that function releases `sq`.
/// - If the transport has no RDMA READs, `iwarp` is false.
/// - The device was given at most `send_wr` work requests of slots, and of the ULP's own as many as
///   that says, that have not completed, for which `send_cq` has room; likewise at most `recv_wr`
///   receives.
/// - The C object's context is `self`. If it receives from a shared queue, it is a member of that
///   from when `create_on()` returns until `release()` has removed it, before anything of it goes.
/// - Only the completion handler of the send queue writes `done` and `send_completions`, and only
///   that of the receive queue writes `recv_completions`. `send_posted`, `doorbells` and
///   `extra_posted` are written with `sq` held.
/// - Once `posting` is closed and was waited for, nobody posts to the own receive queue.
#[pin_data(PinnedDrop)]
pub(crate) struct Qp<H: QpHandler<T>, T: Transport = Rc> {
    raw: Atomic<*mut bindings::ib_qp>,
    /// Taken by `drop()`, as its last step.
    handler: ManuallyDrop<H>,

    #[pin]
    stage: Mutex<Stage>,
    /// 1 once the queue pair was taken from `id`, to be destroyed.
    detached: Atomic<u32>,
    /// The multicast groups that it is attached to; only datagrams have some.
    #[pin]
    groups: Mutex<KVec<Arc<Group>>>,
    #[pin]
    send_marker: Marker,
    #[pin]
    recv_marker: Marker,

    #[pin]
    sq: IrqSaveSpinLock<SendQueue>,
    /// All work requests of slots that were ever posted.
    send_posted: Atomic<u64>,
    doorbells: Atomic<u64>,
    /// The work requests of the ULP's own that were ever posted; [`Self::send_posted`] does not
    /// count them.
    pub(super) extra_posted: Atomic<u64>,

    /// All work requests of slots that ever completed, modulo 2^32.
    done: Atomic<u32>,
    send_completions: Atomic<u64>,

    // In whole pages: as one piece, they would take up to twice the memory.
    sends: VVec<SendSlot<H, T>>,
    large: Large,
    /// What the ULP has.
    #[pin]
    pub(super) ulp: Shared<H, T>,
    /// Where RDMA READs go that should have no bytes, if there are no such READs.
    read_sink: Option<DmaPiece>,
    send_wr: u32,
    /// Segments per RDMA READ that goes into no region, and per RDMA WRITE or send.
    read_sges: u32,
    pub(super) write_sges: u32,
    lkey: u32,
    virt_dma: bool,
    /// RDMA READs are given a [`Mark`](crate::rdma::quirks::Mark).
    marks: bool,
    pub(super) iwarp: bool,
    /// The flags of work requests that send data, but for the last one of a slot.
    data_flags: i32,
    /// An RDMA READ needs a memory region for where the data go.
    reads_need_regions: bool,
    failed: Atomic<u32>,

    rq: RecvQueue<H::Recv, Qp<H, T>>,
    recv_sges: u32,
    posting: Posting,
    recv_completions: Atomic<u64>,
    /// Nothing is received from the shared queue any more.
    #[pin]
    last_wqe: Completion,
    /// 1 if the queue pair may have taken receives of the shared queue that never complete.
    lost_receives: Atomic<u32>,

    /// The sends complete in a direct queue of their own: it is polled when a receive completes.
    pub(super) reaps: bool,

    // Fields are dropped in declaration order, after the queue pair: queues, domain, id.
    pub(super) send_cq: Reservation,
    receives: Receives<H, T>,
    pub(super) pd: Arc<Pd>,
    id: Arc<CmId<T>>,
}

/// The queue that a queue pair receives from.
enum Receives<H: QpHandler<T>, T: Transport> {
    /// In the queue pair's own queue, to complete there.
    Own(Reservation),
    /// In a queue that others share.
    Shared(ObjectRef<Srq<H, T>>),
}

/// The bytes of [`Qp::read_sink`].
const READ_SINK: usize = 8;

/// The flags of a work request that asks for a completion, and is not the last one of its slot:
/// `IB_SEND_SOLICITED` is what tells it from that, and has no meaning for what is not a message. A
/// message is always the last one of its slot; so is an RDMA WRITE with immediate data.
const SIGNALED_ALSO: i32 =
    bindings::ib_send_flags_IB_SEND_SIGNALED | bindings::ib_send_flags_IB_SEND_SOLICITED;

// SAFETY: What is reachable through a `Qp` may be used by any thread: the handler is `Send` and
// `Sync`, the owners are `Send`, groups are both, and so is what a ULP has, as `Ulp` promises.
unsafe impl<H: QpHandler<T>, T: Transport> Send for Qp<H, T> {}

// SAFETY: As above; the type invariants say who may access what is not atomic or locked.
unsafe impl<H: QpHandler<T>, T: Transport> Sync for Qp<H, T> {}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// The segments that a slot's memory can have at most: 1 MiB in pages of 4 KiB, and one more
    /// if it does not begin at a page.
    pub(crate) const MAX_SEGMENTS: u32 = 257;

    /// Creates a queue pair on `id`, which must be bound to the device of `pd` and of the queues.
    /// Receives may be posted at once, sends when the connection has been made, or with [`Ud`] at
    /// once, too.
    ///
    /// Fails with `EINVAL` if the devices differ or the device cannot do what `caps` ask for, with
    /// `ENODEV` if the id has no device or that is being removed, with `EBUSY` if the id has a
    /// queue pair, with `EOPNOTSUPP` if it is not [`Rc`] and the device is one for iWARP, with
    /// `ENOSPC` if a completion queue has too few entries left, with `ENOMEM`, and with the
    /// device's error.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn create(
        id: &Arc<CmId<T>>,
        pd: &Arc<Pd>,
        send_cq: &ObjectRef<AnyCq>,
        recv_cq: &ObjectRef<AnyCq>,
        caps: Caps<H, T>,
        handler: H,
    ) -> Result<ObjectRef<Self>> {
        if !Arc::ptr_eq(pd.device(), recv_cq.device()) {
            return Err(EINVAL);
        }
        let reaps = send_cq.is_direct() && !ObjectRef::ptr_eq(send_cq, recv_cq);
        let entries = H::Ulp::sizes(&caps).0.recv_cqes();
        let receives = || Ok(Receives::Own(AnyCq::reserve(recv_cq, entries)?));
        Self::build(id, pd, send_cq, receives, reaps, caps, handler)
    }

    fn build(
        id: &Arc<CmId<T>>,
        pd: &Arc<Pd>,
        send_cq: &ObjectRef<AnyCq>,
        receives: impl FnOnce() -> Result<Receives<H, T>>,
        reaps: bool,
        ulp_caps: Caps<H, T>,
        handler: H,
    ) -> Result<ObjectRef<Self>> {
        let (caps, extra_wr) = H::Ulp::sizes(&ulp_caps);
        let device = pd.device();
        let limits = device.limits();
        if !Arc::ptr_eq(&id.device()?, device) {
            return Err(EINVAL);
        }
        // Draining posts a work request to each queue.
        let send_cqes = caps.send_cqes().saturating_add(extra_wr);
        let max_send_wr = caps.send_wr.saturating_add(extra_wr);
        let max_send_wr = max_send_wr.checked_add(1).ok_or(EINVAL)?;
        let max_recv_wr = caps.recv_wr.checked_add(1).ok_or(EINVAL)?;
        if caps.slots == 0
            || caps.send_wr == 0
            || max_send_wr > limits.max_qp_wr
            || max_recv_wr > limits.max_qp_wr
            || caps.recv_wr > u32::from(u16::MAX)
            || !Arc::ptr_eq(device, send_cq.device())
        {
            return Err(EINVAL);
        }
        let iwarp = id.is_iwarp();
        if !T::HAS_READS && iwarp {
            return Err(EOPNOTSUPP);
        }
        let write_sges = caps
            .sges
            .min(limits.max_send_sge)
            .clamp(1, QpCaps::MAX_SGES);
        let reads_need_regions = device.reads_need_regions();
        let read_sges = match reads_need_regions {
            // Such a READ has one segment, the region, and takes no large array.
            true => write_sges,
            false => limits.max_sge_rd.clamp(1, write_sges),
        };
        const { assert!(0 < H::Recv::BUFFERS && H::Recv::BUFFERS <= RECV_BUFFERS) };
        // CAST: A small number.
        let recv_sges = limits.max_recv_sge.clamp(1, H::Recv::BUFFERS as u32);

        let ulp = H::Ulp::make(pd, &ulp_caps)?;
        let mut sends = VVec::with_capacity(caps.slots.into(), GFP_KERNEL)?;
        for index in 0..caps.slots {
            let ulp = H::Ulp::make_slot(pd, &ulp_caps, index)?;
            sends.push(SendSlot::new(write_sges, ulp)?, GFP_KERNEL)?;
        }
        let rq = RecvQueue::new(caps.recv_wr, recv_done::<H, T>)?;
        let large = Large::new(caps.large, Self::MAX_SEGMENTS, read_sges)?;
        let read_sink = match device.quirks().no_empty_reads() {
            true => {
                Some(DmaMemory::alloc(device, READ_SINK, NumaNode::NO_NODE)?.piece(0, READ_SINK)?)
            }
            false => None,
        };
        let send_reservation = AnyCq::reserve(send_cq, send_cqes)?;
        let receives = receives()?;

        // INVARIANT: There is no queue pair yet, and nothing is posted.
        let this = Arc::pin_init(
            try_pin_init!(Self {
                raw: Atomic::new(core::ptr::null_mut()),
                handler: ManuallyDrop::new(handler),
                stage <- new_mutex!(Stage::Live, "Qp::stage"),
                detached: Atomic::new(0),
                groups <- new_mutex!(KVec::new(), "Qp::groups"),
                send_marker <- Marker::new(),
                recv_marker <- Marker::new(),
                sq <- new_irqsave_spinlock!(SendQueue::new()),
                send_posted: Atomic::new(0),
                doorbells: Atomic::new(0),
                extra_posted: Atomic::new(0),
                done: Atomic::new(0),
                send_completions: Atomic::new(0),
                sends,
                large,
                ulp <- ulp,
                read_sink,
                send_wr: caps.send_wr,
                read_sges,
                write_sges,
                lkey: pd.local_dma_lkey(),
                virt_dma: device.uses_virt_dma(),
                marks: device.quirks().unfinished_reads(),
                iwarp,
                data_flags: match device.quirks().sends_by_reference() {
                    true => SIGNALED_ALSO,
                    false => 0,
                },
                reads_need_regions,
                failed: Atomic::new(0),
                rq,
                recv_sges,
                posting: Posting::new(),
                recv_completions: Atomic::new(0),
                last_wqe <- Completion::new(),
                lost_receives: Atomic::new(0),
                reaps,
                send_cq: send_reservation,
                receives,
                pd: pd.clone(),
                id: id.clone(),
            }? Error),
            GFP_KERNEL,
        )?;
        for slot in this.sends.iter() {
            // SAFETY: Nobody else uses the slot yet.
            unsafe { slot.init(&this) };
        }
        // SAFETY: Nobody else uses the slots yet. `drop()` takes all their owners.
        unsafe { this.rq.init(&this) };

        let mut attr = bindings::ib_qp_init_attr {
            event_handler: Some(event::<H, T>),
            qp_context: core::ptr::from_ref(&*this).cast_mut().cast::<c_void>(),
            send_cq: send_cq.as_raw(),
            cap: bindings::ib_qp_cap {
                max_send_wr,
                max_send_sge: write_sges,
                ..pin_init::zeroed()
            },
            sq_sig_type: bindings::ib_sig_type_IB_SIGNAL_REQ_WR,
            qp_type: T::QP_TYPE,
            ..pin_init::zeroed()
        };
        match &this.receives {
            Receives::Own(recv_cq) => {
                attr.recv_cq = recv_cq.cq().as_raw();
                attr.cap.max_recv_wr = max_recv_wr;
                attr.cap.max_recv_sge = recv_sges;
            }
            Receives::Shared(srq) => {
                attr.recv_cq = srq.cq().as_raw();
                attr.srq = srq.as_raw();
            }
        }
        id.claim_qp()?;
        // SAFETY: The id, the domain and the queues are valid, and stay so for as long as the queue
        // pair, as `this` holds references. So does `this`, the handler's context.
        let ret = unsafe { bindings::rdma_create_qp(id.as_raw(), pd.as_raw(), &mut attr) };
        if let Err(error) = to_result(ret) {
            id.release_qp();
            return Err(error);
        }
        // SAFETY: The queue pair was created, so that the id refers to it.
        let (raw, number) = unsafe { ((*id.as_raw()).qp, (*(*id.as_raw()).qp).qp_num) };
        // INVARIANT: It is the queue pair of `id`, which we have claimed.
        this.raw.store(raw, Relaxed);
        id.ready_qp(number);
        Ok(ObjectRef::new(this))
    }
}

impl<H: QpHandler> Qp<H> {
    /// Creates a queue pair on `id` that receives from `srq`, and has the protection domain of
    /// that. Its sends complete in `send_cq`: either the completion queue of `srq`, or another one
    /// if that is a [`Direct`](crate::rdma::cq::Direct) or
    /// [`Manual`](crate::rdma::cq::Manual) one.
    ///
    /// Otherwise like [`Self::create`]. Also fails with `ENOSPC` if `srq` has too many queue pairs.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn create_on(
        id: &Arc<CmId>,
        srq: &ObjectRef<Srq<H>>,
        send_cq: &ObjectRef<AnyCq>,
        caps: Caps<H, Rc>,
        handler: H,
    ) -> Result<ObjectRef<Self>> {
        // Otherwise there would be no way to know when the last receive was handled.
        let flushes = srq.cq().is_direct() || ObjectRef::ptr_eq(srq.cq(), send_cq);
        if H::Ulp::sizes(&caps).0.recv_wr != 0 || !flushes {
            return Err(EINVAL);
        }
        let receives = || Ok(Receives::Shared(srq.clone()));
        let this = Self::build(id, srq.pd(), send_cq, receives, false, caps, handler)?;
        // SAFETY: `release()` removes it before anything of it goes.
        unsafe { srq.add(this.as_raw(), &this) }?;
        Ok(this)
    }
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// The C object, or null if there is none (yet, or any more). It is valid as long as `sq` is
    /// locked and not closed, `posting` was entered and not left, or `stage` is locked and not
    /// `Destroyed`.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_qp {
        self.raw.load(Relaxed)
    }

    /// Returns the send slot of this index.
    #[inline]
    pub(super) fn slot(&self, index: u16) -> Option<&SendSlot<H, T>> {
        self.sends.get(usize::from(index))
    }

    /// Returns how many segments the memory of a slot can have.
    pub(crate) fn max_segments(&self) -> u32 {
        let per_wr = self.read_sges;
        if self.large.is_empty() {
            return per_wr;
        }
        Self::MAX_SEGMENTS.min(per_wr.saturating_mul(self.send_wr))
    }

    /// Returns the handler.
    #[inline]
    pub(crate) fn handler(&self) -> &H {
        &self.handler
    }

    /// Returns true if the queue pair, which was drained, may have taken receives of the shared
    /// receive queue that stay there until that is dropped. Any context.
    pub(crate) fn has_lost_receives(&self) -> bool {
        self.lost_receives.load(Relaxed) != 0
    }

    /// Returns true if [`QpHandler::error`] was called. Any context.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed) != 0
    }

    /// Calls [`QpHandler::error`], once.
    #[cold]
    pub(super) fn note_error(&self) {
        if self.failed.xchg(1, Relaxed) == 0 {
            self.handler.error();
        }
    }
}

/// The sizes of a queue pair.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::{Cq, Softirq}, device::Device, qp::QpCaps};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>) -> Result {
/// // 16 messages at once in each direction, each in one buffer.
/// let caps = QpCaps {
///     slots: 16,
///     send_wr: 16,
///     recv_wr: 16,
///     sges: 1,
///     ..QpCaps::default()
/// };
/// let cq = Cq::<Softirq>::alloc(device, caps.send_cqes() + caps.recv_cqes(), 0)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpCaps {
    /// Slots for sends.
    pub(crate) slots: u16,
    /// Work requests on the send queue at once; less than the device's `max_qp_wr`. A slot takes
    /// several if its memory has more segments than a work request.
    pub(crate) send_wr: u32,
    /// Receives at once; less than the device's `max_qp_wr`. 0 with a shared receive queue.
    pub(crate) recv_wr: u32,
    /// The segments of a work request, at most [`Self::MAX_SGES`]; fewer if the device has fewer.
    pub(crate) sges: u32,
    /// Slots at once that need a large array, as their memory takes more than one work request.
    pub(crate) large: u16,
}

impl QpCaps {
    /// The segments that a work request can have at most.
    pub(crate) const MAX_SGES: u32 = 32;

    /// Returns how many entries the queue pair reserves in the completion queue of its sends.
    pub(crate) const fn send_cqes(&self) -> u32 {
        // Each work request may complete with an error; and draining posts one.
        self.send_wr.saturating_add(1)
    }

    /// Returns how many entries the queue pair reserves in the completion queue of its receives.
    pub(crate) const fn recv_cqes(&self) -> u32 {
        self.recv_wr.saturating_add(1)
    }
}

/// Receives the completions and the failure of a queue pair.
///
/// # Context
///
/// `send_done`, `recv_done` and `write_received` are called where the completion queue handles
/// completions: in softirq, in a workqueue, or where it is polled; see [`Cq`](crate::rdma::cq::Cq).
/// What was not posted, and what is left when the queue pair is drained or dropped, comes back in
/// the context of the function that does so. So a method may sleep only if all of these contexts
/// may. No method may drop the last reference to the queue pair or to one of its completion queues.
/// All may post.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     dma::DmaBuffer,
/// #     qp::{Qp, QpHandler},
/// #     wc::{Received, WcError},
/// # };
/// /// Sends each message back, one at a time: there is one receive, and one slot.
/// struct Echo;
///
/// impl QpHandler for Echo {
///     type Send = DmaBuffer;
///     type Recv = DmaBuffer;
///     // It sends messages, and nothing that is built on them.
///     type Ulp = ();
///
///     fn recv_done(&self, qp: &Qp<Self>, buffer: DmaBuffer, got: Result<Received<'_>, WcError>) {
///         // An owner of which nothing is made drops here, and with it its memory.
///         if got.is_ok() {
///             let _ = qp.send(0, buffer, true);
///         }
///     }
///
///     fn send_done(&self, qp: &Qp<Self>, buffer: DmaBuffer, sent: Result<(), WcError>) {
///         if sent.is_ok() {
///             let _ = qp.recv(buffer);
///         }
///     }
///
///     fn error(&self) {}
/// }
/// ```
pub(crate) trait QpHandler<T: Transport = Rc>: Send + Sync + Sized + 'static {
    /// The owner of a send.
    type Send: SendOwner;
    /// The owner of a receive.
    type Recv: RecvOwner;
    /// What is built on verbs: `()` if nothing is, or [`Requests`](crate::rdma::request::Requests).
    type Ulp: Ulp<Self, T>;

    /// A send has completed, or will not be posted any more.
    ///
    /// The slot is free again. A success says what the transport tells of it: with [`Rc`] that the
    /// peer has it, with [`Uc`] only that it has left. After an error the
    /// device does not access the owner's memory any more, but it is unknown whether the peer has
    /// received the message or the data.
    fn send_done(&self, qp: &Qp<Self, T>, owner: Self::Send, result: Result<T::Sent, WcError>);

    /// A receive has completed, or will not be used any more. What has come is a
    /// [`Received`], or with [`Ud`] a
    /// [`Datagram`].
    fn recv_done(
        &self,
        qp: &Qp<Self, T>,
        owner: Self::Recv,
        result: Result<T::Received<'_>, WcError>,
    );

    /// The peer has used up a receive by an RDMA WRITE with immediate data. It has written to
    /// memory that this side lets it write; nothing is in the buffers of `owner`.
    ///
    /// A handler that takes no such RDMA WRITEs returns the owner, as the default does. Then the
    /// peer violates the protocol: the queue pair is closed, and the owner comes back by
    /// [`Self::recv_done`] with [`WcError::Unexpected`].
    fn write_received(
        &self,
        qp: &Qp<Self, T>,
        owner: Self::Recv,
        written: Written<'_>,
    ) -> Result<(), Self::Recv> {
        let _ = (qp, written);
        Err(owner)
    }

    /// The queue pair has failed. Called once at most, and before the [`WcError`] of the first work
    /// request that failed; after it if that is [`WcError::Unexpected`] of a receive.
    ///
    /// # Context
    ///
    /// Any. Must not sleep, and not wait for a task that drains the queue pair.
    fn error(&self);
}

mod sealed {
    /// Keeps other modules from adding a transport.
    pub(crate) trait Sealed {}

    impl Sealed for super::Rc {}
    impl Sealed for super::Uc {}
    impl Sealed for super::Ud {}
}

/// A transport service of queue pairs: [`Rc`], [`Uc`] or [`Ud`].
///
/// See [`Connected`] for an example.
pub(crate) trait Transport: sealed::Sealed + Send + Sync + 'static {
    /// What is known of a send that has completed with success.
    type Sent: Copy;

    /// What was received.
    type Received<'a>;

    /// C's name of it.
    const QP_TYPE: bindings::ib_qp_type;

    /// It has RDMA READs, and what else needs an answer or a memory region of a slot.
    const HAS_READS: bool;

    /// A work request that is there only to complete behind all others may be posted to the send
    /// queue.
    const TAKES_MARKERS: bool;

    /// The port space of its ids.
    const PORT_SPACE: bindings::rdma_ucm_port_space;

    /// Returns the result of a send, of which the device says this.
    fn sent(result: Result<(), WcError>) -> Result<Self::Sent, WcError>;

    /// Returns what `wc`, the completion of a receive, reports, or its error.
    fn received(wc: &bindings::ib_wc) -> Result<Self::Received<'_>, WcError>;
}

/// A transport whose queue pairs are connected to one other queue pair, by a
/// [`CmId`].
///
/// All of them have messages and RDMA WRITEs.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::DmaBuffer, qp::{Connected, Qp, QpHandler}};
/// # use kernel::prelude::*;
/// /// Sends a message on a queue pair of either kind of connection.
/// fn send<H, T>(qp: &Qp<H, T>, slot: u16, message: DmaBuffer) -> Result
/// where
///     H: QpHandler<T, Send = DmaBuffer>,
///     T: Connected,
/// {
///     qp.send(slot, message, true).map_err(|(error, _)| error)
/// }
/// ```
pub(crate) trait Connected: for<'a> Transport<Received<'a> = Received<'a>> {}

/// The reliable connection: what was sent has arrived when it completes, in order, and once. It has
/// all operations.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::DmaPiece, qp::{Qp, QpHandler, Rc}, wr::{RdmaOp, RemoteRange}};
/// # use kernel::prelude::*;
/// /// `Qp<H, Rc>` is `Qp<H>`: this is the transport if nothing else is said.
/// fn read<H>(qp: &Qp<H, Rc>, remote: RemoteRange, piece: DmaPiece) -> Result
/// where
///     H: QpHandler<Send = DmaPiece>,
/// {
///     qp.rdma(0, RdmaOp::Read, remote, piece, true).map_err(|(error, _)| error)
/// }
/// ```
pub(crate) enum Rc {}

impl Transport for Rc {
    type Sent = ();
    type Received<'a> = Received<'a>;

    const QP_TYPE: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_RC;
    const HAS_READS: bool = true;
    const TAKES_MARKERS: bool = true;
    const PORT_SPACE: bindings::rdma_ucm_port_space = bindings::rdma_ucm_port_space_RDMA_PS_TCP;

    #[inline]
    fn sent(result: Result<(), WcError>) -> Result<(), WcError> {
        result
    }

    #[inline]
    fn received(wc: &bindings::ib_wc) -> Result<Received<'_>, WcError> {
        Received::new(wc)
    }
}

impl Connected for Rc {}

/// The unreliable connection: a message or RDMA WRITE is complete when it has left. Nobody tells
/// whether it arrives. What arrives does so in order, and once.
///
/// A message is lost that the network loses, or that finds no receive; and so is an RDMA WRITE that
/// the peer does not allow. Of what is lost a part may have arrived. Neither queue pair fails. A
/// message that is longer than its receive is lost, too, and the receive is there for the next one;
/// but with some devices the receive fails then, and its queue pair with it.
///
/// A send that fails, for a reason of this side, ends the sends. The queue pair may go on to
/// receive until it is drained.
///
/// It has no RDMA READs, no atomic operations, and no invalidation by the peer, since all of these
/// need an answer. A device need not register memory on such a queue pair either, and some do not.
/// So a region that the peer writes to is registered by a [`Rc`] queue pair of the same
/// protection domain.
///
/// The connection manager makes such connections as it makes reliable ones: `rdma_create_id()`
/// takes the type for callers in the kernel. With iWARP there are none.
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::net::Net,
/// #     rdma::{client::Devices, cm::{CmEvents, CmId}, qp::Uc},
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(devices: &Arc<Devices>, events: Arc<dyn CmEvents>) -> Result {
/// // It is connected as a reliable one is. Its queue pairs are `Qp<H, Uc>`.
/// let id = CmId::<Uc>::new(devices, &Net::current(), events)?;
/// # Ok(())
/// # }
/// ```
pub(crate) enum Uc {}

/// A send has left, and nobody knows whether it arrives: what is known of one that a [`Uc`] or
/// [`Ud`] queue pair has completed.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::DmaBuffer, qp::Unacknowledged, wc::WcError};
/// # use kernel::prelude::*;
/// # fn again(message: DmaBuffer) -> Result { Err(EIO) }
/// /// What a handler does with a message that it sends until there is an answer.
/// fn sent(message: DmaBuffer, result: Result<Unacknowledged, WcError>) -> Result {
///     match result {
///         // Nobody knows whether it arrives, but the buffer can be used again.
///         Ok(Unacknowledged) => again(message),
///         Err(error) => Err(error.to_error()),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unacknowledged;

impl Transport for Uc {
    type Sent = Unacknowledged;
    type Received<'a> = Received<'a>;

    const QP_TYPE: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_UC;
    const HAS_READS: bool = false;
    const TAKES_MARKERS: bool = true;
    const PORT_SPACE: bindings::rdma_ucm_port_space = bindings::rdma_ucm_port_space_RDMA_PS_TCP;

    #[inline]
    fn sent(result: Result<(), WcError>) -> Result<Unacknowledged, WcError> {
        result.map(|()| Unacknowledged)
    }

    #[inline]
    fn received(wc: &bindings::ib_wc) -> Result<Received<'_>, WcError> {
        Received::new(wc)
    }
}

impl Connected for Uc {}

/// Datagrams: each message goes to the [`Destination`](crate::rdma::ah::Destination) that it is
/// posted with, and comes from anybody who knows the number of the queue pair and its Q_Key.
///
/// A message has at most the bytes that fit into one packet of the port, and either arrives as a
/// whole or is lost, of which nobody tells. Messages may arrive in another order. What is received
/// begins with [`GRH_BYTES`](crate::rdma::wc::datagram::GRH_BYTES) that tell of its sender; see
/// [`Datagram`]. A message that is longer than its receive makes the receive fail, and with some
/// devices the queue pair with it.
///
/// There are messages and nothing else: no RDMA READs or WRITEs, no atomic operations, no memory
/// regions. A queue pair is not connected: it may be used once it is created. Its peers are found
/// by the connection manager's service ID resolution, by [`CmId::find`], or by what they send.
///
/// It cannot be drained: a driver looks up the address of each work request that is posted, and one
/// that only completes has none. So [`Qp::drain`] destroys it. With iWARP there
/// are none.
///
/// [`CmId::find`]: crate::rdma::cm::CmId::find
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::net::Net,
/// #     rdma::{
/// #         client::Devices,
/// #         cm::{CmEvents, CmId},
/// #         qp::Ud,
/// #     },
/// # };
/// # use core::net::{IpAddr, SocketAddr};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(devices: &Arc<Devices>, own: IpAddr, events: Arc<dyn CmEvents>) -> Result {
/// // The address says on which port of which device its queue pair, a `Qp<H, Ud>`, is to be.
/// let id = CmId::<Ud>::new(devices, &Net::current(), events)?;
/// id.bind(SocketAddr::new(own, 0))?;
/// # Ok(())
/// # }
/// ```
pub(crate) enum Ud {}

impl Transport for Ud {
    type Sent = Unacknowledged;
    type Received<'a> = Datagram<'a>;

    const QP_TYPE: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_UD;
    const HAS_READS: bool = false;
    const TAKES_MARKERS: bool = false;
    const PORT_SPACE: bindings::rdma_ucm_port_space = bindings::rdma_ucm_port_space_RDMA_PS_UDP;

    #[inline]
    fn sent(result: Result<(), WcError>) -> Result<Unacknowledged, WcError> {
        result.map(|()| Unacknowledged)
    }

    #[inline]
    fn received(wc: &bindings::ib_wc) -> Result<Datagram<'_>, WcError> {
        Datagram::new(wc)
    }
}

/// An upper-layer protocol for queue pairs of transport `T` with handler `H`; `()` if there is
/// none.
///
/// See [`QpHandler`] for an example.
///
/// # Safety
///
/// - What is in [`Self::Shared`] and [`Self::Slot`] may be used by any thread, as far as the
///   methods of the ULP do so, and be dropped by any.
/// - [`Self::sizes`] returns the same for the same sizes.
/// - A ULP uses a slot within [`Self::read_into_region`], [`Self::completed`], [`Self::clear`] and
///   [`Self::end`], when they are given it, and in [`Qp::post`]. Between [`Self::completed`], if
///   that keeps the slot, and [`Self::is_left`], if that returns true, the function that ends the
///   slot by [`Qp::finish`] uses it, of which the ULP lets there be one.
/// - When [`Self::completed`] returns a result, when [`Self::end`] returns true, and when the ULP
///   calls [`Qp::finish`], no peer can access memory by what the ULP did for the slot.
pub(crate) unsafe trait Ulp<H: QpHandler<T>, T: Transport>: Sized + 'static {
    /// The sizes of a queue pair.
    type Caps: Copy;
    /// What it has in each queue pair.
    type Shared;
    /// What it has in each slot.
    type Slot;
    /// What it tells when a queue pair was drained.
    type Outcome;

    /// Returns the sizes of the queue pair itself, and how many work requests of the ULP's own, see
    /// [`Qp::post_extra`], there are on the send queue at once.
    fn sizes(caps: &Self::Caps) -> (QpCaps, u32);

    /// Makes its part of a queue pair. Fails with `EINVAL` for sizes that are not possible, and for
    /// reasons of its own. May sleep.
    fn make(pd: &Arc<Pd>, caps: &Self::Caps) -> Result<impl PinInit<Self::Shared>>;

    /// Makes its part of the slot of this index. May sleep.
    fn make_slot(pd: &Arc<Pd>, caps: &Self::Caps, index: u16) -> Result<Self::Slot>;

    /// Fills in the work requests of an RDMA READ of a device that needs a memory region for where
    /// the data go. Fails with `EOPNOTSUPP` if there is none.
    ///
    /// # Safety
    ///
    /// To be called within [`Qp::post`], with what that gives.
    unsafe fn read_into_region(
        qp: &Qp<H, T>,
        slot: &SendSlot<H, T>,
        owner: &H::Send,
        body: &mut Body,
        remote: RemoteRange,
    ) -> Result;

    /// Notes that the last work request of `slot` has completed, with this result. Returns the
    /// result with which its owner is to be given back now, or `None` if the ULP does that later.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion, which must not use the slot afterwards if
    /// this returns `None`.
    unsafe fn completed(
        qp: &Qp<H, T>,
        slot: &SendSlot<H, T>,
        result: Result<(), WcError>,
    ) -> Option<Result<(), WcError>>;

    /// Undoes what the ULP did for `slot`, which is being freed.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may use the slot. The device must be done with it, and the
    /// access of the peer by it have ended.
    unsafe fn clear(qp: &Qp<H, T>, slot: &SendSlot<H, T>);

    /// Returns true if the caller, which drains the queue pair, has to end what was posted in
    /// `slot`. The ULP does not end it any more after this. Returns false if nothing is posted, or
    /// if a function of the ULP is just giving it back.
    fn is_left(slot: &SendSlot<H, T>) -> bool;

    /// Ends all access of the peer by `slot`. Returns false if that is not possible: then the ULP
    /// has taken the owner out of the slot, which is not used any more.
    ///
    /// # Safety
    ///
    /// [`Self::is_left`] must have returned true to the caller, and neither the device nor a
    /// completion use the slot any more.
    unsafe fn end(qp: &Qp<H, T>, slot: &SendSlot<H, T>) -> bool;

    /// Returns what [`Qp::drain`] tells its caller, after it has `stopped` the queue pair, or
    /// failed with the error with which the device has refused to destroy that.
    fn outcome(shared: &Self::Shared, stopped: Result) -> Self::Outcome;

    /// Takes the handler of a queue pair of `pd` that is gone: nothing of it can come any more.
    fn retire(shared: &Self::Shared, pd: &Pd, handler: H);
}

// SAFETY: There is nothing in the queue pair or its slots, no slot is kept, and nothing lets a peer
// access memory.
unsafe impl<H: QpHandler<T, Ulp = Self>, T: Transport> Ulp<H, T> for () {
    type Caps = QpCaps;
    type Shared = ();
    type Slot = ();
    /// Fails if the queue pair is lost.
    type Outcome = Result;

    fn sizes(caps: &QpCaps) -> (QpCaps, u32) {
        (*caps, 0)
    }

    fn make(_: &Arc<Pd>, _: &QpCaps) -> Result<impl PinInit<()>> {
        Ok(())
    }

    fn make_slot(_: &Arc<Pd>, _: &QpCaps, _: u16) -> Result {
        Ok(())
    }

    unsafe fn read_into_region(
        _: &Qp<H, T>,
        _: &SendSlot<H, T>,
        _: &H::Send,
        _: &mut Body,
        _: RemoteRange,
    ) -> Result {
        Err(EOPNOTSUPP)
    }

    #[inline]
    unsafe fn completed(
        _: &Qp<H, T>,
        _: &SendSlot<H, T>,
        result: Result<(), WcError>,
    ) -> Option<Result<(), WcError>> {
        Some(result)
    }

    #[inline]
    unsafe fn clear(_: &Qp<H, T>, _: &SendSlot<H, T>) {}

    fn is_left(slot: &SendSlot<H, T>) -> bool {
        slot.is_posted()
    }

    unsafe fn end(_: &Qp<H, T>, _: &SendSlot<H, T>) -> bool {
        true
    }

    fn outcome((): &(), stopped: Result) -> Result {
        stopped
    }

    fn retire((): &(), _: &Pd, handler: H) {
        drop(handler);
    }
}

/// The sizes of a queue pair with handler `H`: [`QpCaps`], or those of its ULP.
pub(crate) type Caps<H, T> = <<H as QpHandler<T>>::Ulp as Ulp<H, T>>::Caps;

/// What the ULP of `H` has in each queue pair.
type Shared<H, T> = <<H as QpHandler<T>>::Ulp as Ulp<H, T>>::Shared;

/// What the ULP of `H` has in each slot.
type UlpSlot<H, T> = <<H as QpHandler<T>>::Ulp as Ulp<H, T>>::Slot;

/// What [`Qp::drain`] of a queue pair with handler `H` tells.
type Outcome<H, T> = <<H as QpHandler<T>>::Ulp as Ulp<H, T>>::Outcome;

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Posts a work request of the ULP's own, which belongs to no chain, at once. Does nothing if
    /// the queue pair is closed; if the device refuses it, the queue pair has failed.
    ///
    /// # Safety
    ///
    /// `wr` must be valid, for the device to do. Its completion entry must stay until it has
    /// completed, and no more such work requests be under way than [`Ulp::sizes`] says.
    #[cold]
    pub(super) unsafe fn post_extra(&self, wr: &bindings::ib_send_wr) {
        let mut sq = self.sq.lock();
        if sq.closed {
            return;
        }
        let mut bad = core::ptr::null();
        // SAFETY: By the type invariants the queue pair is valid as long as the queue is locked and
        // not closed, and there is room for so many work requests. The device copies this one; the
        // caller promises the rest.
        let ret = unsafe { bindings::ib_post_send(self.as_raw(), wr, &mut bad) };
        self.doorbells
            .store(self.doorbells.load(Relaxed).wrapping_add(1), Relaxed);
        let posted = self.extra_posted.load(Relaxed);
        self.extra_posted.store(posted.wrapping_add(1), Relaxed);
        if to_result(ret).is_err() {
            sq.closed = true;
            drop(sq);
            self.note_error();
        }
    }
}

/// The progress of the teardown of a queue pair.
#[derive(Clone, Copy)]
enum Stage {
    /// It may be in use.
    Live,
    /// It is closed, and went to its error state at this time. Completions may come.
    Failed(Instant<Monotonic>),
    /// It is closed, and the device did not take it to its error state: only destroying it ends
    /// what was posted. Completions may come.
    Stuck,
    /// It is closed and in its error state, and every completion has been handled.
    Drained,
    /// The same, and the C object is destroyed.
    Destroyed,
    /// It is closed and could not be drained, and the device has refused to destroy it, with this
    /// error: it may go on to use what was posted. Completions may come.
    Lost(Error),
}

/// Proof that the slots of a queue pair are used neither by the device nor by a completion, and
/// that nothing can be posted any more. Only its methods take an owner out of a slot that was
/// posted and has not completed.
///
/// # Invariants
///
/// The stage of the queue pair is [`Stage::Drained`] or [`Stage::Destroyed`].
struct Drained<'a, H: QpHandler<T>, T: Transport>(&'a Qp<H, T>);

/// Any work request for the send queue. All begin with an `ib_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Wr {
    pub(super) send: bindings::ib_send_wr,
    pub(super) rdma: bindings::ib_rdma_wr,
    pub(super) reg: bindings::ib_reg_wr,
}

/// The slot is free: the phase of a slot, in the lowest bits of its word.
const FREE: u64 = 0;
/// A function has claimed it, to post or to give back.
const TAKEN: u64 = 1;
/// Its work requests are chained or posted.
const POSTED: u64 = 2;
/// Its owner was taken out of it by the ULP: it is not used again.
const LOST: u64 = 3;
/// The bits of the phase.
const PHASE: u64 = 3;
/// The lowest of the bits that are the ULP's. They are 0 but while something of the ULP is chained
/// or posted, or is being given back.
pub(super) const ULP_BIT: u64 = PHASE + 1;

/// The work requests that a slot has of its own: a registration or RDMA WRITE, and a send or RDMA
/// READ.
const OWN_WRS: usize = 2;

/// The data of a slot's work requests, in addition to the owner.
///
/// # Invariants
///
/// - `sges` has room for the segments of one work request, or for `Qp::MAX_SEGMENTS` if `large` is
///   given, and for one more; the first `nr_sge` are initialised.
/// - `wrs` has room for [`OWN_WRS`], or, if `large` is given, for work requests for so many
///   segments and one more.
pub(crate) struct Body {
    pub(super) sges: *mut bindings::ib_sge,
    pub(super) wrs: *mut Wr,
    pub(super) nr_sge: u32,
    pub(super) nr_wr: u32,
    /// The operation as which the last work request completes.
    pub(super) opcode: bindings::ib_wc_opcode,
    /// The segments were mapped, one by one, and must be unmapped, but for the first so many.
    pub(super) mapped: Option<Direction>,
    pub(super) premapped: u32,
    /// The device writes the owner's piece.
    pub(super) reads_piece: bool,
    /// The large arrays that are used.
    pub(super) large: Option<usize>,
    /// The buffer that the segments are in, if it is not the owner's.
    pub(super) buffer: Option<Arc<DmaBuffer>>,
    /// The mark of an RDMA READ, at the end of each of its work requests.
    pub(super) mark: Option<Mark>,
    /// What to set to 1 on success: a flag of the owner's memory region that is being registered,
    /// or of its room for a result; or null.
    pub(super) success: *const Atomic<u32>,
    /// The ULP's bits of the slot's word, once it is chained.
    pub(super) ulp_bits: u64,
    /// The first error of a work request other than the last, or of what is no completion of it.
    pub(super) error: Option<WcError>,
}

impl Body {
    /// Prepares for new work requests, with the slot's own arrays.
    #[inline]
    pub(super) fn reset(&mut self, sges: *mut bindings::ib_sge, wrs: *mut Wr) {
        // INVARIANT: The slot's own arrays have just this room; nothing is initialised.
        self.sges = sges;
        self.wrs = wrs;
        self.nr_sge = 0;
        self.premapped = 0;
        self.reads_piece = false;
        self.nr_wr = 0;
        self.opcode = bindings::ib_wc_opcode_IB_WC_SEND;
        self.mark = None;
        self.success = core::ptr::null();
        self.ulp_bits = 0;
        self.error = None;
    }

    /// Adds a segment.
    ///
    /// # Safety
    ///
    /// There must be room.
    #[inline]
    pub(super) unsafe fn push_sge(&mut self, addr: u64, length: u32, lkey: u32) {
        let sge = bindings::ib_sge { addr, length, lkey };
        // SAFETY: The caller has made room.
        unsafe { self.sges.add(self.nr_sge as usize).write(sge) };
        // INVARIANT: One more is initialised.
        self.nr_sge += 1;
    }

    /// The last segment of each work request of an RDMA operation, which has `per_wr` segments or,
    /// if it is the last, what is left.
    #[inline]
    pub(super) fn ends(&self, per_wr: u32) -> impl Iterator<Item = &bindings::ib_sge> + '_ {
        (1..=self.nr_wr).filter_map(move |wrs| {
            let last = wrs.saturating_mul(per_wr).min(self.nr_sge).checked_sub(1)?;
            // SAFETY: By the type invariants the first `nr_sge` are initialised.
            Some(unsafe { &*self.sges.add(last as usize) })
        })
    }
}

/// A slot of the send queue.
///
/// The type invariants of [`Qp`] say which function may use it.
///
/// # Invariants
///
/// - `cqe` is the first field, as [`send_done`] needs it.
#[repr(C)]
pub(crate) struct SendSlot<H: QpHandler<T>, T: Transport = Rc> {
    /// For the last work request.
    cqe: Opaque<bindings::ib_cqe>,
    /// For all others.
    error_cqe: Opaque<bindings::ib_cqe>,
    qp: UnsafeCell<*const Qp<H, T>>,
    /// The phase, and the ULP's bits: all that changes while the device has the work requests.
    word: Atomic<u64>,
    pub(super) owner: UnsafeCell<Option<H::Send>>,
    pub(super) body: UnsafeCell<Body>,
    /// What the ULP has in it.
    pub(super) ulp: UlpSlot<H, T>,
    wrs: UnsafeCell<[Wr; OWN_WRS]>,
    inline_sges: KVec<UnsafeCell<bindings::ib_sge>>,
}

impl<H: QpHandler<T>, T: Transport> SendSlot<H, T> {
    /// Makes a slot with arrays of its own, for work requests of `sges` segments.
    pub(super) fn new(sges: u32, ulp: UlpSlot<H, T>) -> Result<Self> {
        let mut inline_sges = KVec::with_capacity(sges as usize + 1, GFP_KERNEL)?;
        for _ in 0..=sges {
            inline_sges.push(UnsafeCell::new(pin_init::zeroed()), GFP_KERNEL)?;
        }
        // INVARIANT: `nr_sge` is 0; `reset()` sets `sges` and `wrs`.
        let body = Body {
            sges: core::ptr::null_mut(),
            wrs: core::ptr::null_mut(),
            nr_sge: 0,
            nr_wr: 0,
            opcode: bindings::ib_wc_opcode_IB_WC_SEND,
            mapped: None,
            premapped: 0,
            reads_piece: false,
            large: None,
            buffer: None,
            mark: None,
            success: core::ptr::null(),
            ulp_bits: 0,
            error: None,
        };
        Ok(Self {
            cqe: Opaque::new(bindings::ib_cqe {
                done: Some(send_done::<H, T>),
            }),
            error_cqe: Opaque::new(bindings::ib_cqe {
                done: Some(send_error::<H, T>),
            }),
            qp: UnsafeCell::new(core::ptr::null()),
            word: Atomic::new(FREE),
            owner: UnsafeCell::new(None),
            body: UnsafeCell::new(body),
            ulp,
            wrs: UnsafeCell::new(
                [Wr {
                    send: pin_init::zeroed(),
                }; OWN_WRS],
            ),
            inline_sges,
        })
    }

    /// Sets the queue pair.
    ///
    /// # Safety
    ///
    /// Nobody else may use the slot yet, and it must be one of `qp`'s.
    pub(super) unsafe fn init(&self, qp: &Qp<H, T>) {
        // SAFETY: The caller promises that nobody else uses it.
        unsafe { *self.qp.get() = qp };
    }

    /// The slot's own array of segments.
    #[inline]
    pub(super) fn inline_sges(&self) -> *mut bindings::ib_sge {
        UnsafeCell::raw_get(self.inline_sges.as_ptr())
    }

    /// The slot's own array of work requests.
    #[inline]
    pub(super) fn own_wrs(&self) -> *mut Wr {
        self.wrs.get().cast()
    }

    /// Returns the queue pair.
    ///
    /// # Safety
    ///
    /// The slot must be posted, and the caller handle a completion of it.
    #[inline]
    pub(super) unsafe fn qp<'a>(&self) -> &'a Qp<H, T> {
        // SAFETY: By the invariants of `Qp` it is in place as long as a completion may come.
        unsafe { &**self.qp.get() }
    }

    /// Takes the slot, if it is free.
    #[inline]
    fn claim(&self) -> bool {
        self.word.cmpxchg(FREE, TAKEN, Acquire).is_ok()
    }

    /// Frees the slot.
    #[inline]
    fn release(&self) {
        self.word.store(FREE, Release);
    }

    /// Notes that the work requests of the slot, which was claimed, are being chained. With the
    /// lock of the send queue held.
    #[inline]
    fn set_posted(&self, ulp_bits: u64) {
        self.word.store(POSTED | ulp_bits, Release);
    }

    /// Notes that the slot, which was chained, is claimed again: its work requests will not be
    /// posted. With the lock of the send queue held.
    fn set_unposted(&self) {
        let mut word = self.word();
        while let Err(now) = self.change(word, word & !PHASE | TAKEN) {
            word = now;
        }
    }

    /// Notes that the slot, whose word is `word`, is claimed again: its work requests have
    /// completed. To be called by the function of the ULP that ends it.
    #[inline]
    pub(super) fn set_ending(&self, word: u64) {
        self.word.store(word & !PHASE | TAKEN, Relaxed);
    }

    /// Returns the word of the slot: its phase, and the ULP's bits.
    #[inline]
    pub(super) fn word(&self) -> u64 {
        self.word.load(Acquire)
    }

    /// Changes the ULP's bits, if the word is still `old`. Fails with what it is now.
    #[inline]
    pub(super) fn change(&self, old: u64, new: u64) -> Result<(), u64> {
        self.word.cmpxchg(old, new, Full).map(|_| ())
    }

    /// Returns true if its work requests are chained or posted, and its owner did not come back.
    #[inline]
    pub(super) fn is_posted(&self) -> bool {
        is_posted(self.word())
    }

    /// Notes that the ULP has taken the owner out of the slot, which is never used again.
    pub(super) fn lose(&self) {
        self.word.store(LOST, Relaxed);
    }

    /// Returns a work request with the fields that the last one of a slot has, whatever its kind.
    #[inline]
    pub(super) fn last_wr(&self) -> bindings::ib_send_wr {
        let slot = core::ptr::from_ref(self).cast_mut();
        bindings::ib_send_wr {
            __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                // The first field; the completion needs the whole slot.
                wr_cqe: slot.cast(),
            },
            send_flags: bindings::ib_send_flags_IB_SEND_SIGNALED,
            ..pin_init::zeroed()
        }
    }

    /// Returns a work request with the fields that all but the last one of a slot have.
    #[inline]
    pub(super) fn chained_wr(&self, next: *mut bindings::ib_send_wr) -> bindings::ib_send_wr {
        let slot = core::ptr::from_ref(self).cast_mut();
        bindings::ib_send_wr {
            next,
            __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                // SAFETY: The field is in the slot.
                wr_cqe: unsafe { core::ptr::addr_of_mut!((*slot).error_cqe) }.cast(),
            },
            ..pin_init::zeroed()
        }
    }
}

/// Returns true if the slot with this word is chained or posted.
#[inline]
pub(super) fn is_posted(word: u64) -> bool {
    word & PHASE == POSTED
}

/// Arrays for memory that takes more work requests than a slot has.
///
/// # Invariants
///
/// - There are so many pairs of arrays, one after the other in `sges` and `wrs`, as `free` has
///   things.
struct Large {
    sges: KVVec<UnsafeCell<bindings::ib_sge>>,
    wrs: KVVec<UnsafeCell<Wr>>,
    sges_each: usize,
    wrs_each: usize,
    free: FreeSet,
}

impl Large {
    /// Makes `count` pairs of arrays, each for `sges` segments, at least `per_wr` of which go into
    /// a work request.
    fn new(count: u16, sges: u32, per_wr: u32) -> Result<Self> {
        let count = usize::from(count);
        let free = FreeSet::free(count)?;
        // One more of each for a message.
        let sges_each = sges as usize + 1;
        let wrs_each = sges.div_ceil(per_wr.max(1)) as usize + 1;
        let mut all_sges = KVVec::with_capacity(count * sges_each, GFP_KERNEL)?;
        for _ in 0..count * sges_each {
            all_sges.push(UnsafeCell::new(pin_init::zeroed()), GFP_KERNEL)?;
        }
        let mut all_wrs = KVVec::with_capacity(count * wrs_each, GFP_KERNEL)?;
        for _ in 0..count * wrs_each {
            let wr = Wr {
                send: pin_init::zeroed(),
            };
            all_wrs.push(UnsafeCell::new(wr), GFP_KERNEL)?;
        }
        Ok(Self {
            sges: all_sges,
            wrs: all_wrs,
            sges_each,
            wrs_each,
            free,
        })
    }

    /// Returns true if there are no such arrays at all.
    #[inline]
    fn is_empty(&self) -> bool {
        self.sges.is_empty()
    }

    /// Takes a pair, if one is free. Returns its number, its segments and its work requests.
    fn take(&self) -> Option<(usize, *mut bindings::ib_sge, *mut Wr)> {
        let index = self.free.take()?;
        let sges = self.sges.get(index * self.sges_each..)?.as_ptr();
        let wrs = self.wrs.get(index * self.wrs_each..)?.as_ptr();
        Some((index, UnsafeCell::raw_get(sges), UnsafeCell::raw_get(wrs)))
    }

    /// Gives back a pair that [`Self::take`] has returned, and that the caller does not use any
    /// more.
    fn put(&self, index: usize) {
        self.free.put(index);
    }
}

/// Handles the completion of a slot's last work request.
///
/// # Safety
///
/// Must only be called by the RDMA core or a completion queue, once, for the completion of a work
/// request with the `cqe` of a [`SendSlot<H, T>`] that was posted.
unsafe extern "C" fn send_done<H: QpHandler<T>, T: Transport>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The caller gives a valid completion of a slot that exists until all completions of it
    // were handled, and no other can come.
    let (wc, slot) = unsafe {
        (
            &*wc,
            &*(*wc).__bindgen_anon_1.wr_cqe.cast::<SendSlot<H, T>>(),
        )
    };
    // Never true, unless a device completes a work request twice.
    if !slot.is_posted() {
        return;
    }
    // SAFETY: The slot is posted, and this is the handler of its completion.
    unsafe { slot.qp().send_completed(slot, wc) };
}

/// Handles the completion of another of a slot's work requests.
///
/// # Safety
///
/// Must only be called by the RDMA core or a completion queue, once, for the completion of a work
/// request with the `error_cqe` of a [`SendSlot<H, T>`] that was posted.
unsafe extern "C" fn send_error<H: QpHandler<T>, T: Transport>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The caller gives a valid completion.
    let wc = unsafe { &*wc };
    // SAFETY: It is that of a work request with this field of a slot, which exists until all
    // completions of it were handled, and no other can come.
    let slot = unsafe {
        let cqe = wc
            .__bindgen_anon_1
            .wr_cqe
            .cast::<Opaque<bindings::ib_cqe>>();
        &*kernel::container_of!(cqe, SendSlot<H, T>, error_cqe)
    };
    if !slot.is_posted() {
        return;
    }
    // SAFETY: As in `send_done()`.
    unsafe { slot.qp().send_failed(slot, wc) };
}

/// The chain of work requests, and the count of those that are chained or in flight.
///
/// # Invariants
///
/// - `first` and `last` are both null, or the ends of a chain of work requests of taken slots,
///   whole slots each, that were not posted.
struct SendQueue {
    first: *mut bindings::ib_send_wr,
    last: *mut bindings::ib_send_wr,
    /// The work requests in the chain.
    pending: u32,
    /// All work requests that were ever in the chain, modulo 2^32.
    used: u32,
    /// Nothing may be chained any more. Set with the lock held, by [`Qp::close`] and by the
    /// functions that fail to post; never cleared.
    closed: bool,
    /// The [`Unposted`] that exist.
    giving_back: u32,
}

// SAFETY: Work requests belong to no thread.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// Returns a queue with an empty chain.
    fn new() -> Self {
        Self {
            first: core::ptr::null_mut(),
            last: core::ptr::null_mut(),
            pending: 0,
            used: 0,
            closed: false,
            giving_back: 0,
        }
    }

    /// Takes the chain out. It must be posted or given back.
    #[inline]
    fn take(&mut self) -> *mut bindings::ib_send_wr {
        self.last = core::ptr::null_mut();
        self.pending = 0;
        core::mem::replace(&mut self.first, core::ptr::null_mut())
    }
}

/// Work requests that were taken out of the chain and that the device did not take, to be given
/// back by [`Qp::give_back`] once the queue is not locked any more.
///
/// # Invariants
///
/// - `first` is null, or the first work request of a chain that was not posted, of whole slots. The
///   function that has the `Unposted` is the only one to use these slots, which are claimed and not
///   posted.
/// - [`SendQueue::giving_back`] counts it.
struct Unposted {
    first: *mut bindings::ib_send_wr,
    error: Error,
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Posts the chain.
    ///
    /// If the device refuses a part of it, the queue pair has failed, and what was not posted comes
    /// back through [`QpHandler::send_done`] before this returns.
    ///
    /// # Context
    ///
    /// Any but hard interrupt; also hard interrupt if all that is chained are messages and RDMA
    /// WRITEs, of a [`DmaPiece`]. Does not sleep.
    pub(crate) fn ring(&self) {
        let mut sq = self.sq.lock();
        let unposted = self.post_chain(&mut sq);
        drop(sq);
        self.post_failed(unposted);
    }

    /// Claims `slot` for `owner`, calls `build` to fill in the work requests, and chains them.
    ///
    /// `build` must leave in `body` what must be undone, also on failure.
    #[inline]
    pub(super) fn post(
        &self,
        slot: u16,
        owner: H::Send,
        last: bool,
        build: impl FnOnce(&SendSlot<H, T>, &mut H::Send, &mut Body) -> Result,
    ) -> Result<(), (Error, H::Send)> {
        let Some(slot) = self.sends.get(usize::from(slot)) else {
            return Err((EINVAL, owner));
        };
        if !slot.claim() {
            return Err((EBUSY, owner));
        }
        let result = {
            // SAFETY: The slot was claimed, so nobody else uses it. The owner stays here, borrowed,
            // until the device is done with what `build` borrowed from it.
            let (place, body) = unsafe { (&mut *slot.owner.get(), &mut *slot.body.get()) };
            let owner = place.insert(owner);
            body.reset(slot.inline_sges(), slot.own_wrs());
            build(slot, owner, body).map(|()| (body.nr_wr, body.ulp_bits))
        };
        let Err(error) = result.and_then(|(nr_wr, bits)| self.chain(slot, nr_wr, bits, last))
        else {
            return Ok(());
        };
        // SAFETY: The slot is still ours, as it was not chained. So no region was registered.
        match unsafe { self.clear(slot) } {
            Some(owner) => Err((error, owner)),
            // It was stored above.
            None => Ok(()),
        }
    }

    /// Chains the `nr_wr` work requests of `slot`, which was claimed, and posts the chain if
    /// `last`.
    ///
    /// On success the slot must not be used any more.
    #[inline]
    fn chain(&self, slot: &SendSlot<H, T>, nr_wr: u32, ulp_bits: u64, last: bool) -> Result {
        let (head, tail) = self.ends(slot, nr_wr);
        let mut sq = self.sq.lock();
        if sq.closed {
            return Err(ESHUTDOWN);
        }
        let in_flight = sq.used.wrapping_sub(self.done.load(Acquire));
        if nr_wr > self.send_wr.wrapping_sub(in_flight) {
            return Err(if nr_wr > self.send_wr { EINVAL } else { EAGAIN });
        }
        sq.used = sq.used.wrapping_add(nr_wr);
        sq.pending += nr_wr;
        if sq.last.is_null() {
            sq.first = head;
        } else {
            // SAFETY: By the invariants of `SendQueue` it is a work request that was not posted.
            unsafe { (*sq.last).next = head };
        }
        sq.last = tail;
        slot.set_posted(ulp_bits);
        if last {
            let unposted = self.post_chain(&mut sq);
            drop(sq);
            self.post_failed(unposted);
        }
        Ok(())
    }

    /// The first and the last work request of `slot`.
    #[inline]
    fn ends(
        &self,
        slot: &SendSlot<H, T>,
        nr_wr: u32,
    ) -> (*mut bindings::ib_send_wr, *mut bindings::ib_send_wr) {
        // SAFETY: The caller has claimed the slot.
        let wrs = unsafe { (*slot.body.get()).wrs };
        // SAFETY: There are that many.
        (wrs.cast(), unsafe { wrs.add(nr_wr as usize - 1) }.cast())
    }

    /// Posts the chain. Returns what the device did not take, if it has failed.
    #[inline]
    fn post_chain(&self, sq: &mut SendQueue) -> Option<Unposted> {
        let pending = sq.pending;
        let first = sq.take();
        if first.is_null() {
            return None;
        }
        let mut bad = core::ptr::null();
        // SAFETY: There was a chain, so that `close()` was not called, and by the type invariants
        // the queue pair is valid as long as the lock is held. By those of `SendQueue` the chain is
        // one of work requests whose slots are taken, so that what they refer to is valid until
        // they complete. The device copies the work requests themselves. It may complete one before
        // it has read that one's link to the next; but a slot is freed only when the function that
        // posts it has stored `send_posted`, or has released the lock: see `send_completed()`.
        let ret = unsafe { bindings::ib_post_send(self.as_raw(), first, &mut bad) };
        self.doorbells
            .store(self.doorbells.load(Relaxed).wrapping_add(1), Relaxed);
        let posted = self.send_posted.load(Relaxed);
        // Pairs with the load in `is_being_posted()`.
        self.send_posted
            .store(posted.wrapping_add(pending.into()), Release);
        match to_result(ret) {
            Ok(()) => None,
            Err(error) => {
                sq.closed = true;
                // SAFETY: The rest of the chain was not posted, and was taken out of `sq`.
                Some(unsafe { Self::reclaim(sq, bad.cast_mut(), error) })
            }
        }
    }

    /// Tells the handler of the failure, and gives back what `post_chain()` did not post.
    #[inline]
    fn post_failed(&self, unposted: Option<Unposted>) {
        if let Some(unposted) = unposted {
            self.note_error();
            self.give_back(unposted);
        }
    }

    /// Lets nothing more be posted, and gives back what is chained.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep.
    pub(super) fn close(&self) {
        let mut sq = self.sq.lock();
        sq.closed = true;
        let first = sq.take();
        // SAFETY: The chain was taken out of `sq`, and was not posted.
        let unposted = unsafe { Self::reclaim(&mut sq, first, ESHUTDOWN) };
        drop(sq);
        self.posting.close();
        self.give_back(unposted);
    }

    /// Claims the slots of a chain that was not posted, so that no other function ends them: the
    /// lock is still held, so that for all others they are still chained.
    ///
    /// If the chain begins within a slot, that slot is left as it is, and ends when the queue pair
    /// is drained: its first work requests were posted.
    ///
    /// # Safety
    ///
    /// `first` must be null, or the rest of a chain that was taken out of `sq`, and no work request
    /// of which was posted.
    #[cold]
    unsafe fn reclaim(
        sq: &mut SendQueue,
        first: *mut bindings::ib_send_wr,
        error: Error,
    ) -> Unposted {
        let mut whole = first;
        let (mut wr, mut start) = (first, first);
        while !wr.is_null() {
            // SAFETY: The slots of the rest of the chain are posted, as far as all others can see,
            // so that its work requests are valid.
            let next = unsafe { (*wr).next };
            // SAFETY: As above.
            if let Some(slot) = unsafe { Self::ends_slot(wr) } {
                // SAFETY: The slot was taken out of the chain, so that nobody else uses it.
                let head: *mut bindings::ib_send_wr = unsafe { (*slot.body.get()).wrs.cast() };
                if head == start {
                    slot.set_unposted();
                } else {
                    whole = next;
                }
                start = next;
            }
            wr = next;
        }
        sq.giving_back += 1;
        // INVARIANT: Only the first slot can be one of which something was posted; all others are
        // claimed.
        Unposted {
            first: whole,
            error,
        }
    }

    /// The slot whose last work request `wr` is, if it is the last one of a slot.
    ///
    /// # Safety
    ///
    /// `wr` must be valid, and one of a slot of a queue pair of this type.
    #[inline]
    unsafe fn ends_slot<'a>(wr: *const bindings::ib_send_wr) -> Option<&'a SendSlot<H, T>> {
        // SAFETY: By the safety requirements.
        let (flags, opcode, cqe) = unsafe {
            let cqe = (*wr).__bindgen_anon_1.wr_cqe;
            ((*wr).send_flags, (*wr).opcode, cqe)
        };
        let ends = match flags & SIGNALED_ALSO {
            bindings::ib_send_flags_IB_SEND_SIGNALED => true,
            // A message that is solicited. Plain RDMA operations are not, and have this for another
            // reason.
            SIGNALED_ALSO => {
                opcode != bindings::ib_wr_opcode_IB_WR_RDMA_WRITE
                    && opcode != bindings::ib_wr_opcode_IB_WR_RDMA_READ
            }
            _ => false,
        };
        if !ends {
            return None;
        }
        // SAFETY: Only a slot's last work request has these flags, with the slot's first field as
        // its completion entry.
        Some(unsafe { &*cqe.cast::<SendSlot<H, T>>() })
    }

    /// Gives the slots of a chain back to the handler.
    #[cold]
    fn give_back(&self, unposted: Unposted) {
        let mut wr = unposted.first;
        while !wr.is_null() {
            // SAFETY: By the type invariants of `Unposted` the rest of the chain is valid.
            let (next, slot) = unsafe { ((*wr).next, Self::ends_slot(wr)) };
            if let Some(slot) = slot {
                let result = Err(WcError::NotCompleted(unposted.error));
                // SAFETY: By the type invariants of `Unposted` nobody else uses the slot, and none
                // of its work requests was posted, so that no region was registered.
                unsafe { self.finish(slot, result) };
            }
            wr = next;
        }
        // INVARIANT: It was counted by `reclaim()`, and is gone.
        self.sq.lock().giving_back -= 1;
    }

    /// Waits until all that was chained and not posted came back. The queue pair must be closed.
    ///
    /// # Context
    ///
    /// Sleeps. Must not be called by a method of the handler.
    fn wait_given_back(&self) {
        while self.sq.lock().giving_back != 0 {
            // SAFETY: Sleeping is allowed here.
            unsafe { bindings::msleep(1) };
        }
    }

    /// Frees `slot` and hands its owner to the handler.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may use the slot, the device be done with it, and the access
    /// of the peer by it have ended. The caller must not use it afterwards.
    #[inline]
    pub(super) unsafe fn finish(&self, slot: &SendSlot<H, T>, result: Result<(), WcError>) {
        // SAFETY: The caller promises the same.
        if let Some(owner) = unsafe { self.clear(slot) } {
            self.handler.send_done(self, owner, T::sent(result));
        }
    }

    /// Unmaps and gives back what the work requests of `slot` use, frees the slot and returns its
    /// owner.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may use the slot, the device be done with it, and the access
    /// of the peer by it have ended. The caller must not use it afterwards.
    #[inline]
    unsafe fn clear(&self, slot: &SendSlot<H, T>) -> Option<H::Send> {
        // SAFETY: The caller promises that nobody else uses the slot.
        let (owner, body) = unsafe { (&mut *slot.owner.get(), &mut *slot.body.get()) };
        if let (Some(direction), false) = (body.mapped.take(), self.virt_dma) {
            for index in body.premapped..body.nr_sge {
                // SAFETY: So many segments were stored, and these were mapped in this direction.
                unsafe {
                    let sge = body.sges.add(index as usize).read();
                    bindings::farblk_dma_unmap_page(
                        self.pd.device().as_raw(),
                        sge.addr,
                        sge.length as usize,
                        direction.as_raw(),
                    );
                }
            }
        }
        // SAFETY: The caller promises the same.
        unsafe { H::Ulp::clear(self, slot) };
        if let (true, Some(piece)) = (body.reads_piece, owner.as_ref().and_then(H::Send::piece)) {
            piece.sync_for_cpu();
        }
        if let Some(index) = body.large.take() {
            self.large.put(index);
        }
        let buffer = body.buffer.take();
        let owner = owner.take();
        slot.release();
        drop(buffer);
        owner
    }

    /// Handles the completion of the last work request of `slot`.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion.
    #[inline]
    unsafe fn send_completed(&self, slot: &SendSlot<H, T>, wc: &bindings::ib_wc) {
        self.count_send_completion();
        // SAFETY: By the type invariants the handler of completions may use the slot.
        let body = unsafe { &mut *slot.body.get() };
        let mut result = WcError::check(wc, body.opcode).map(|_| ());
        if let Some(error) = body.error.take() {
            result = Err(error);
        }
        if let (Ok(()), Some(mark)) = (result, &body.mark) {
            let mut ends = body.ends(self.read_sges);
            // SAFETY: It was put there. The owner is still in place, and keeps the memory.
            if ends.any(|end| unsafe { mark.is_at(end) }) {
                result = Err(WcError::Unfinished);
            }
        }
        if result.is_err() {
            self.note_error();
        } else if !body.success.is_null() {
            // SAFETY: The flag was borrowed from the owner, which is still in place.
            unsafe { (*body.success).store(1, Release) };
        }
        // All of the slot's work requests have completed, as they do so in order. One completion is
        // handled at a time, so no read-modify-write is needed. Pairs with the load in `chain()`.
        let done = self.done.load(Relaxed).wrapping_add(body.nr_wr);
        self.done.store(done, Release);
        if self.is_being_posted(done) {
            drop(self.sq.lock());
        }
        // SAFETY: This is the handler of the completion.
        if let Some(result) = unsafe { H::Ulp::completed(self, slot, result) } {
            // SAFETY: As above. All work requests of the slot have completed, and as there is a
            // result, `Ulp` says that the peer has no access by it any more.
            unsafe { self.finish(slot, result) };
        }
    }

    /// Returns true if the function that posts the last of the `done` work requests, which have
    /// completed, is still doing so: the device may still read that work request. A software device
    /// completes what it was given while it takes the rest of the chain. Then the slot must not be
    /// freed before the lock was released. May also return true for no reason.
    #[inline]
    fn is_being_posted(&self, done: u32) -> bool {
        // The work requests of slots complete in the order in which they were posted, and
        // `send_posted` counts a chain when all of it was posted. So it counts fewer than `done`
        // before that, and no other chain is counted meanwhile, as the lock is held.
        //
        // Acquire: if it counts the chain, the device has read that.
        // CAST: Both modulo 2^32, and the difference is small.
        let posted = self.send_posted.load(Acquire) as u32;
        (posted.wrapping_sub(done) as i32) < 0
    }

    /// Handles the completion of another work request of `slot`. It must be an error, unless the
    /// work request has asked for a completion.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion.
    #[cold]
    unsafe fn send_failed(&self, slot: &SendSlot<H, T>, wc: &bindings::ib_wc) {
        self.count_send_completion();
        let error = match WcError::check(wc, wc.opcode) {
            Err(error) => error,
            Ok(_) if self.data_flags != 0 => return,
            Ok(_) => WcError::Unexpected { opcode: wc.opcode },
        };
        // SAFETY: By the type invariants the handler of completions may use the slot.
        let body = unsafe { &mut *slot.body.get() };
        body.error.get_or_insert(error);
        self.note_error();
    }

    /// Counts a completion of the send queue. To be called by its handler.
    #[inline]
    pub(super) fn count_send_completion(&self) {
        let completions = self.send_completions.load(Relaxed);
        self.send_completions
            .store(completions.wrapping_add(1), Relaxed);
    }
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Returns the segment of the owner's message. Fails with `EINVAL` if the device cannot send
    /// it.
    #[inline]
    pub(super) fn message(&self, owner: &H::Send) -> Result<bindings::ib_sge> {
        let (buffer, len) = owner.message().ok_or(EINVAL)?;
        if len == 0
            || len > buffer.len()
            || !buffer.is_for(self.pd.device())
            || !buffer.direction().device_reads()
        {
            return Err(EINVAL);
        }
        buffer.sync_for_device();
        Ok(bindings::ib_sge {
            addr: buffer.addr(),
            // CAST: A buffer has at most 1 MiB.
            length: len as u32,
            lkey: self.lkey,
        })
    }
}

impl<H: QpHandler> Qp<H> {
    /// Chains an RDMA READ or RDMA WRITE between the owner's memory and the peer's.
    ///
    /// If `last`, the chain is posted, too, as by [`Self::ring`], but under the same lock.
    ///
    /// On failure the owner is returned and nothing is chained; what was chained before stays so,
    /// even if `last`. The errors are: `EBUSY` if the slot is in use; `EAGAIN` if there is no room
    /// until a request has completed; `ENOMEM` if memory cannot be mapped; `ESHUTDOWN` after the
    /// queue pair has failed; and `EINVAL` for what is never possible.
    ///
    /// If [`Device::reads_need_regions`](crate::rdma::device::Device::reads_need_regions), an RDMA
    /// READ needs a memory region for where the data go, which a handler with
    /// [`Requests`](crate::rdma::request::Requests) has, as
    /// [`RequestCaps`](crate::rdma::request::RequestCaps) says. Then the memory must have no gaps
    /// between pages, `EAGAIN` may mean that no large region is free, and the owner of a READ that
    /// has failed may not come back before the queue pair is drained. With other handlers it fails
    /// with `EOPNOTSUPP`.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep or allocate.
    pub(crate) fn rdma(
        &self,
        slot: u16,
        op: RdmaOp,
        remote: RemoteRange,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            let per_wr = match op {
                RdmaOp::Read if self.reads_need_regions => {
                    // SAFETY: These are what `post()` gives.
                    return unsafe { H::Ulp::read_into_region(self, slot, owner, body, remote) };
                }
                RdmaOp::Read => self.read_sges,
                RdmaOp::Write => self.write_sges,
            };
            self.gather(owner, body, op, per_wr)?;
            self.build_access(slot, body, op, per_wr, remote)?;
            if self.marks && op == RdmaOp::Read {
                let mark = Mark::new();
                for end in body.ends(per_wr) {
                    // SAFETY: As READs need marks, the addresses are those of memory in the direct
                    // map. It is `writable()`, as `gather()` has checked, or a piece's.
                    unsafe { mark.put(end) };
                }
                body.mark = Some(mark);
            }
            Ok(())
        })
    }

    /// Chains an RDMA READ or RDMA WRITE of no bytes. It needs no key. A READ shows how long the
    /// peer's device takes to answer; a WRITE has no effect but that the device gets it. `owner`
    /// comes back with the completion; its memory is not used.
    ///
    /// Otherwise like [`Self::rdma`]; but a READ fails with `EOPNOTSUPP` if the peer's device may
    /// answer it with bytes, as some do.
    pub(crate) fn rdma_nothing(
        &self,
        slot: u16,
        op: RdmaOp,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, _owner, body| {
            // There is no memory of the peer's of which a byte could be read instead.
            if op == RdmaOp::Read && self.read_sink.is_some() {
                return Err(EOPNOTSUPP);
            }
            self.add_empty(slot, body, op, None);
            Ok(())
        })
    }
}

impl<H: QpHandler<T>, T: Connected> Qp<H, T> {
    /// Maps the owner's memory for `op`, and adds its segments, of which a work request can have
    /// `per_wr`.
    #[inline]
    pub(super) fn gather(
        &self,
        owner: &H::Send,
        body: &mut Body,
        op: RdmaOp,
        per_wr: u32,
    ) -> Result {
        self.gather_as(owner, body, op, per_wr, false)
    }

    /// Maps the owner's memory to be sent or written by one work request, and adds its segments to
    /// those that this has already. Fails with `EINVAL` if they are too many then.
    #[inline]
    pub(super) fn gather_in_one(&self, owner: &H::Send, body: &mut Body) -> Result {
        self.gather_as(owner, body, RdmaOp::Write, self.write_sges, true)
    }

    /// Maps the owner's memory for `op`, and adds its segments. A work request can have `per_wr` of
    /// them; if all must be `in_one`, those that are there already count.
    #[inline]
    fn gather_as(
        &self,
        owner: &H::Send,
        body: &mut Body,
        op: RdmaOp,
        per_wr: u32,
        in_one: bool,
    ) -> Result {
        if let Some(piece) = owner.piece() {
            if !piece.is_for(self.pd.device()) {
                return Err(EINVAL);
            }
            piece.sync_for_device();
            body.reads_piece = op == RdmaOp::Read;
            self.make_room(body, per_wr, in_one)?;
            // SAFETY: Room was made.
            unsafe { body.push_sge(piece.addr(), piece.len(), self.lkey) };
            return Ok(());
        }
        let memory = owner.memory().ok_or(EINVAL)?;
        let direction = match op {
            RdmaOp::Read if !memory.writable() => return Err(EINVAL),
            RdmaOp::Read => Direction::FromDevice,
            RdmaOp::Write => Direction::ToDevice,
        };
        body.mapped = Some(direction);
        body.premapped = body.nr_sge;
        for segment in memory.segments() {
            if segment.is_empty() {
                continue;
            }
            self.make_room(body, per_wr, in_one)?;
            let mut addr = 0;
            // SAFETY: The device is registered. The memory is valid, may be accessed in this
            // direction, and stays so, as `Segmented` promises, since the owner lies in the
            // slot until it is unmapped.
            to_result(unsafe {
                bindings::farblk_dma_map_page(
                    self.pd.device().as_raw(),
                    segment.page().as_ptr(),
                    segment.offset() as usize,
                    segment.len() as usize,
                    direction.as_raw(),
                    &mut addr,
                )
            })?;
            // SAFETY: Room was made.
            unsafe { body.push_sge(addr, segment.len(), self.lkey) };
        }
        Ok(())
    }

    /// Chains an RDMA WRITE of `len` bytes, which repeats those of `buffer`. `owner` comes back
    /// with the completion; its memory is not used.
    ///
    /// Otherwise like [`Self::write`].
    pub(crate) fn write_repeated(
        &self,
        slot: u16,
        remote: RemoteRange,
        buffer: &Arc<DmaBuffer>,
        len: usize,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, _owner, body| {
            if !buffer.is_for(self.pd.device()) || !buffer.direction().device_reads() {
                return Err(EINVAL);
            }
            // It may have been written since it was mapped.
            buffer.sync_for_device();
            let mut left = len;
            while left > 0 {
                self.make_room(body, self.write_sges, false)?;
                let part = left.min(buffer.len());
                // SAFETY: Room was made. CAST: A buffer has at most 1 MiB.
                unsafe { body.push_sge(buffer.addr(), part as u32, self.lkey) };
                left -= part;
            }
            body.buffer = Some(buffer.clone());
            self.build_access(slot, body, RdmaOp::Write, self.write_sges, remote)
        })
    }

    /// Chains a send of the owner's message. Otherwise like [`Self::write`].
    pub(crate) fn send(
        &self,
        slot: u16,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            let sge = self.message(owner)?;
            self.make_room(body, self.write_sges, false)?;
            // SAFETY: Room was made.
            unsafe { body.push_sge(sge.addr, sge.length, sge.lkey) };
            body.nr_wr = 1;
            let wr = Wr {
                send: bindings::ib_send_wr {
                    sg_list: body.sges,
                    num_sge: 1,
                    opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                    ..slot.last_wr()
                },
            };
            // SAFETY: The slot was claimed, and has a work request.
            unsafe { body.wrs.write(wr) };
            Ok(())
        })
    }

    /// Chains an RDMA WRITE of the owner's memory to the peer's.
    ///
    /// What a success tells is [`Transport::Sent`]: with
    /// [`Rc`] that the data are in the peer's memory, with
    /// [`Uc`] only that they have left, so that the owner's memory may be
    /// changed. A peer that has to know sends a message.
    ///
    /// Otherwise like [`Self::rdma`](Qp::rdma), which reliable queue pairs have for both
    /// directions.
    pub(crate) fn write(
        &self,
        slot: u16,
        remote: RemoteRange,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            self.gather(owner, body, RdmaOp::Write, self.write_sges)?;
            self.build_access(slot, body, RdmaOp::Write, self.write_sges, remote)
        })
    }

    /// Adds an RDMA READ or RDMA WRITE of no bytes behind what `body` has, as its last work
    /// request. If `remote` is given, the peer allows a byte to be read there.
    #[inline]
    fn add_empty(
        &self,
        slot: &SendSlot<H, T>,
        body: &mut Body,
        op: RdmaOp,
        remote: Option<RemoteRange>,
    ) {
        let (opcode, completes_as) = opcodes(op);
        // SAFETY: There is room for one more segment than those of the memory.
        let sge = unsafe { body.sges.add(body.nr_sge as usize) };
        // A driver for iWARP may want a segment, be it an empty one.
        let (segment, remote) = match (&self.read_sink, remote) {
            (Some(sink), Some(remote)) => (
                bindings::ib_sge {
                    addr: sink.addr(),
                    length: 1,
                    lkey: self.lkey,
                },
                remote,
            ),
            _ => (pin_init::zeroed(), RemoteRange { addr: 0, rkey: 0 }),
        };
        // SAFETY: As above.
        unsafe { sge.write(segment) };
        let wr = Wr {
            rdma: bindings::ib_rdma_wr {
                wr: bindings::ib_send_wr {
                    sg_list: sge,
                    num_sge: i32::from(self.iwarp),
                    opcode,
                    ..slot.last_wr()
                },
                remote_addr: remote.addr,
                rkey: remote.rkey,
            },
        };
        // SAFETY: The slot was claimed, and there is room for one more work request than those of
        // the memory.
        unsafe { body.wrs.add(body.nr_wr as usize).write(wr) };
        body.nr_wr += 1;
        body.opcode = completes_as;
    }

    /// Fills in the work requests of an RDMA operation by itself.
    ///
    /// With iWARP an RDMA WRITE completes when the local TCP has the data. So it is followed by an
    /// RDMA READ of no bytes: the peer answers that when it has placed what came before.
    #[inline]
    fn build_access(
        &self,
        slot: &SendSlot<H, T>,
        body: &mut Body,
        op: RdmaOp,
        per_wr: u32,
        remote: RemoteRange,
    ) -> Result {
        let confirmed = self.iwarp && op == RdmaOp::Write;
        self.build_rdma(slot, body, op, per_wr, remote, confirmed)?;
        if confirmed {
            self.add_empty(slot, body, RdmaOp::Read, Some(remote));
        }
        Ok(())
    }
}

impl<H: QpHandler> Qp<H> {
    /// Chains the registration of the owner's memory region, which must be of this protection
    /// domain and not be registered. Otherwise like [`Self::rdma`].
    ///
    /// Peers may access the region as soon as the registration runs. Once that has completed,
    /// [`Mr::remote`](crate::rdma::mr::Mr::remote) returns where.
    pub(crate) fn reg_mr(
        &self,
        slot: u16,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            let mr = owner.mr().ok_or(EINVAL)?;
            if !Arc::ptr_eq(mr.pd(), &self.pd) {
                return Err(EINVAL);
            }
            body.success = mr.registered();
            body.nr_wr = 1;
            body.opcode = bindings::ib_wc_opcode_IB_WC_REG_MR;
            let wr = Wr {
                reg: bindings::ib_reg_wr {
                    wr: bindings::ib_send_wr {
                        opcode: bindings::ib_wr_opcode_IB_WR_REG_MR,
                        ..slot.last_wr()
                    },
                    mr: mr.as_raw(),
                    key: mr.key(),
                    access: mr.access(),
                },
            };
            // SAFETY: The slot was claimed, and has a work request.
            unsafe { body.wrs.write(wr) };
            Ok(())
        })
    }
}

impl<H: QpHandler<T>, T: Connected> Qp<H, T> {
    /// Makes room for one more segment, of which a work request can have `per_wr`, and of which all
    /// must be `in_one` or not. Fails with `EAGAIN` if that takes a large array and none is free,
    /// and with `EINVAL` if there are too many segments.
    #[inline]
    fn make_room(&self, body: &mut Body, per_wr: u32, in_one: bool) -> Result {
        let room = match body.large {
            None => per_wr,
            Some(_) => Self::MAX_SEGMENTS,
        };
        if body.nr_sge < room {
            return Ok(());
        }
        if in_one || body.large.is_some() || self.large.is_empty() {
            return Err(EINVAL);
        }
        let (index, sges, wrs) = self.large.take().ok_or(EAGAIN)?;
        // SAFETY: There are `nr_sge` segments in the slot's array, which has fewer than the large
        // one. The large one was just taken, so it is another.
        unsafe { core::ptr::copy_nonoverlapping(body.sges, sges, body.nr_sge as usize) };
        body.large = Some(index);
        body.sges = sges;
        body.wrs = wrs;
        Ok(())
    }

    /// Fills in the work requests of an RDMA operation over all segments, `per_wr` each. If they
    /// are `followed` by another one, it is to be filled in behind them.
    #[inline]
    pub(super) fn build_rdma(
        &self,
        slot: &SendSlot<H, T>,
        body: &mut Body,
        op: RdmaOp,
        per_wr: u32,
        remote: RemoteRange,
        followed: bool,
    ) -> Result {
        let (opcode, completes_as) = opcodes(op);
        if !followed {
            body.opcode = completes_as;
        }
        let nr_wr = body.nr_sge.div_ceil(per_wr.max(1));
        if nr_wr == 0 {
            return Err(EINVAL);
        }
        let mut remote_addr = remote.addr;
        for index in 0..nr_wr {
            let start = index * per_wr;
            let num_sge = per_wr.min(body.nr_sge - start);
            // SAFETY: `start` is less than `nr_sge`.
            let sg_list = unsafe { body.sges.add(start as usize) };
            // SAFETY: `index` is less than `nr_wr`, for which there is room: one in the slot, and
            // in a large array enough for all its segments.
            let wr = unsafe { body.wrs.add(index as usize) };
            let common = if index + 1 == nr_wr && !followed {
                slot.last_wr()
            } else {
                // SAFETY: This is not the last, and there is room for one more.
                let common = slot.chained_wr(unsafe { wr.add(1) }.cast());
                bindings::ib_send_wr {
                    send_flags: self.data_flags,
                    ..common
                }
            };
            // SAFETY: See above; the slot was claimed.
            unsafe {
                wr.write(Wr {
                    rdma: bindings::ib_rdma_wr {
                        wr: bindings::ib_send_wr {
                            sg_list,
                            // CAST: At most 32.
                            num_sge: num_sge as i32,
                            opcode,
                            ..common
                        },
                        remote_addr,
                        rkey: remote.rkey,
                    },
                })
            };
            for sge in 0..num_sge as usize {
                // SAFETY: `start + sge` is less than `nr_sge`.
                let length = unsafe { (*sg_list.add(sge)).length };
                remote_addr = remote_addr.checked_add(length.into()).ok_or(EINVAL)?;
            }
        }
        body.nr_wr = nr_wr;
        Ok(())
    }
}

/// Returns the operation of a work request that does `op`, and the one as which it completes.
#[inline]
fn opcodes(op: RdmaOp) -> (bindings::ib_wr_opcode, bindings::ib_wc_opcode) {
    match op {
        RdmaOp::Read => (
            bindings::ib_wr_opcode_IB_WR_RDMA_READ,
            bindings::ib_wc_opcode_IB_WC_RDMA_READ,
        ),
        RdmaOp::Write => (
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
            bindings::ib_wc_opcode_IB_WC_RDMA_WRITE,
        ),
    }
}

/// Counts those who post to a queue, so that it can be closed without a lock.
///
/// # Invariants
///
/// - The word has how many functions have entered and not left in its lowest bits, then `CLOSED`,
///   and how many of those that have left did post, above.
struct Posting(Atomic<u64>);

impl Posting {
    /// Nobody enters any more.
    const CLOSED: u64 = 1 << 15;
    /// One that has posted.
    const POSTED: u64 = 1 << 16;

    /// Makes one that nobody has entered.
    fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Enters, and returns true, unless it is closed.
    #[inline]
    fn enter(&self) -> bool {
        let entered = self.0.fetch_add(1, Full) & Self::CLOSED == 0;
        if !entered {
            self.leave(false);
        }
        entered
    }

    /// Leaves, and notes whether something was posted.
    #[inline]
    fn leave(&self, posted: bool) {
        let change = match posted {
            true => Self::POSTED - 1,
            false => u64::MAX,
        };
        self.0.fetch_add(change, Release);
    }

    /// Lets nobody enter any more. Any context.
    fn close(&self) {
        let mut old = self.0.load(Relaxed);
        while old & Self::CLOSED == 0 {
            match self.0.cmpxchg(old, old | Self::CLOSED, Full) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
    }

    /// Waits until all have left; it must be closed.
    ///
    /// # Context
    ///
    /// Sleeps.
    fn wait(&self) {
        while self.0.load(Acquire) & (Self::CLOSED - 1) != 0 {
            // SAFETY: Sleeping is allowed here.
            unsafe { bindings::msleep(1) };
        }
    }

    /// Returns how often something was posted, modulo 2^48.
    fn posted(&self) -> u64 {
        self.0.load(Relaxed) / Self::POSTED
    }
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Posts a receive; if the queue pair has a shared receive queue, there.
    ///
    /// On failure the owner is returned. The errors are: `EAGAIN` if there is no room until a
    /// receive has completed; `ESHUTDOWN` after the queue pair has failed; `EINVAL` for buffers
    /// that the device cannot write, or more of them than it takes; and those of `ib_post_recv()`.
    ///
    /// # Context
    ///
    /// Any. Does not sleep or allocate.
    pub(crate) fn recv(&self, owner: H::Recv) -> Result<(), (Error, H::Recv)> {
        if let Receives::Shared(srq) = &self.receives {
            return srq.recv(owner);
        }
        if !self.posting.enter() {
            return Err((ESHUTDOWN, owner));
        }
        let (device, lkey) = (self.pd.device(), self.lkey);
        let result = self.rq.post(owner, device, lkey, self.recv_sges, |wr| {
            // SAFETY: By the type invariants the queue pair is valid until `posting` was left. The
            // work request is valid for the call, and the buffers until the completion, as the
            // owner lies in the slot.
            unsafe { bindings::ib_post_recv(self.as_raw(), wr, core::ptr::null_mut()) }
        });
        self.posting.leave(result.is_ok());
        result
    }

    /// Handles a receive that has completed. To be called by the handler of that completion.
    #[inline]
    pub(super) fn received(&self, owner: H::Recv, wc: &bindings::ib_wc) {
        // First the sends that the peer answers.
        if self.reaps {
            self.send_cq.cq().reap();
        }
        let completions = self.recv_completions.load(Relaxed);
        self.recv_completions
            .store(completions.wrapping_add(1), Relaxed);
        let result = T::received(wc);
        let Err(error) = &result else {
            return self.handler.recv_done(self, owner, result);
        };
        if matches!(error, WcError::Unexpected { .. }) {
            let Err(owner) = self.offer_write(owner, wc) else {
                return;
            };
            // The handler receives the reason before the failure.
            self.close();
            self.handler.recv_done(self, owner, result);
            return self.note_error();
        }
        self.note_error();
        self.handler.recv_done(self, owner, result);
    }
}

/// Handles the completion of a receive.
///
/// # Safety
///
/// Must only be called by the RDMA core or a completion queue, once, for the completion of a
/// receive with the `cqe` of a slot of a queue pair with this handler that was posted.
unsafe extern "C" fn recv_done<H: QpHandler<T>, T: Transport>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The caller gives a valid completion.
    let wc = unsafe { &*wc };
    // SAFETY: By the invariants of `Qp` it is in place as long as its slots have owners, and this
    // is the handler of the completion.
    let Some((slot, qp)) = (unsafe { RecvSlot::<H::Recv, Qp<H, T>>::completed(wc) }) else {
        return;
    };
    // SAFETY: As above.
    if let Some(owner) = unsafe { slot.take() } {
        qp.received(owner, wc);
    }
}

/// How long the device may take to drain a queue pair, from when that goes to its error state.
/// After that the queue pair is destroyed instead. So queue pairs that fail together, and are then
/// drained one after the other, have this time together.
const DRAIN_MS: u32 = 5_000;
/// How long a step of draining a queue pair may take at least, however long ago that has failed:
/// what is waited for may only just have been posted.
const DRAIN_STEP_MS: u32 = 10;
/// How long the device may take to tell of the last receive, from when the queue pair goes to its
/// error state, if it is not known not to do so. A device that takes longer loses receives at most.
const LAST_RECEIVE_MS: u32 = 1_000;

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Moves the queue pair to its error state: all that is posted or chained comes back with an
    /// error, and nothing can be posted any more.
    ///
    /// The time that the device may take to drain the queue pair begins here. A task that drains
    /// several queue pairs calls this for all of them first, so that they have that time together.
    ///
    /// # Context
    ///
    /// May sleep. Not in a method of the handler.
    pub(crate) fn fail(&self) {
        might_sleep();
        self.close();
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Live) && !self.as_raw().is_null() {
            // SAFETY: `stage` is locked and `Live`.
            if let Err(error) = unsafe { self.enter_error_state(&mut stage) } {
                // Firmware that does not answer takes its time for each command.
                *stage = Stage::Stuck;
                pr_warn!(
                    "cannot move a queue pair to its error state: {}\n",
                    error.to_errno()
                );
            }
        }
    }

    /// Moves the queue pair to its error state, as [`Self::fail`] does. Returns true if the device
    /// has confirmed that, or there is no C object: then the peer has no access by it any more. To
    /// be called before the queue pair is drained.
    ///
    /// # Context
    ///
    /// May sleep. Not in a method of the handler.
    pub(crate) fn revoke(&self) -> bool {
        self.fail();
        match *self.stage.lock() {
            Stage::Failed(_) | Stage::Drained | Stage::Destroyed => true,
            Stage::Live => self.as_raw().is_null(),
            Stage::Stuck | Stage::Lost(_) => false,
        }
    }

    /// Moves the queue pair to its error state, as [`Self::fail`] does, and gives back all that was
    /// posted or chained: when this returns, neither the device nor the peer accesses the owners'
    /// memory, and all owners are back. Exceptions are those that another task is just posting,
    /// which that call returns, and those that the ULP is just giving back, or could not; what is
    /// returned tells that.
    ///
    /// If the device cannot drain the queue pair, the queue pair is destroyed, which has the same
    /// effect. If the device refuses that, too, the queue pair is lost: owners come back only when
    /// the device completes what was posted, or gives in. What is returned tells that.
    ///
    /// May be called again, and returns the same then; but of a queue pair that is lost the device
    /// is asked once more to destroy it. A caller that waits for owners and keeps a reference has
    /// to call this from time to time, and so has one whose owners have references: only without
    /// any the queue pair becomes a [remnant](crate::rdma::remnant), which is tried again when the
    /// device goes.
    ///
    /// # Context
    ///
    /// Sleeps. If the device does not drain, until some seconds have passed since the queue pair
    /// has failed, by [`Self::fail`] or here. Neither in a method of the handler nor in a
    /// completion of another queue pair on the same completion queues.
    pub(crate) fn drain(&self) -> Outcome<H, T> {
        might_sleep();
        self.close();
        self.wait_given_back();
        let mut stage = self.stage.lock();
        let stopped = self.stop(&mut stage).map(|drained| drained.give_back());
        H::Ulp::outcome(&self.ulp, stopped)
    }

    /// Makes the device and the completions stop using the slots: by draining the queue pair, or
    /// else by destroying it. Fails if the device does neither: then the queue pair is lost, and
    /// this may be called again.
    fn stop(&self, stage: &mut Stage) -> Result<Drained<'_, H, T>> {
        self.close();
        self.posting.wait();
        match *stage {
            Stage::Live | Stage::Failed(_) | Stage::Stuck => match self.quiesce(stage) {
                // INVARIANT: It was closed, and all completions were handled.
                Ok(Quiet::Drained) => *stage = Stage::Drained,
                Ok(Quiet::Unknown) => self.destroy_undrained(stage),
                Err(error) => {
                    pr_warn!(
                        "cannot drain a queue pair: {}; it is destroyed\n",
                        error.to_errno()
                    );
                    self.destroy_undrained(stage);
                }
            },
            Stage::Lost(_) => {
                if let Receives::Shared(srq) = &self.receives {
                    // As before the first try: what has completed since would be lost.
                    srq.cq().flush();
                }
                self.destroy_or_lose(stage);
            }
            Stage::Drained | Stage::Destroyed => {}
        }
        match *stage {
            Stage::Lost(error) => Err(error),
            // INVARIANT: The stage is one of these two now.
            _ => Ok(Drained(self)),
        }
    }

    /// Waits until all that was posted has completed and was handled, as far as the device can
    /// tell. The queue pair must be closed, and not be drained yet.
    fn quiesce(&self, stage: &mut Stage) -> Result<Quiet> {
        if self.as_raw().is_null() {
            return Ok(Quiet::Drained);
        }
        if matches!(*stage, Stage::Stuck) {
            return Err(EIO);
        }
        // Also if it was not connected: in its error state it cannot be any more, and a driver may
        // keep what was posted before.
        // SAFETY: `stage` is locked, and `Live` or `Failed`.
        let failed = unsafe { self.enter_error_state(stage) }?;
        match &self.receives {
            Receives::Own(_) if !T::TAKES_MARKERS => return Ok(Quiet::Unknown),
            Receives::Own(cq) => {
                // A queue that was never used has nothing to drain; and a device that could not
                // connect the queue pair may never drain its receive queue.
                if self.has_sent() {
                    self.drain_sends(failed)?;
                }
                if self.posting.posted() != 0 {
                    self.drain_receives(cq.cq(), failed)?;
                }
            }
            Receives::Shared(srq) => {
                // A queue pair that was never connected cannot have received anything.
                let connected = self.id.was_connected();
                let told = !connected || self.wait_last_receive(failed);
                // The receives may complete in the same queue.
                if connected || self.has_sent() {
                    self.drain_sends(failed)?;
                }
                if !told {
                    return Ok(Quiet::Unknown);
                }
                srq.retire(self);
            }
        }
        Ok(Quiet::Drained)
    }

    /// Waits until the device has told that the queue pair, which has gone to its error state at
    /// `failed`, receives nothing any more. Returns false if it does not do so.
    fn wait_last_receive(&self, failed: Instant<Monotonic>) -> bool {
        let device = self.pd.device();
        // A software device is as late as the CPU is busy, and is known.
        let learns = !device.is_software();
        let most = match device.tells_last_receive() {
            true if learns => LAST_RECEIVE_MS,
            true => DRAIN_MS,
            false => 0,
        };
        let told = self.last_wqe.wait_timeout(left_ms(failed, most)).is_ok();
        if learns {
            device.set_tells_last_receive(told);
        }
        told
    }

    /// Destroys a queue pair that cannot be drained, and handles what it has left in the completion
    /// queues: no other completion of it can come. If the device refuses that, it is lost.
    fn destroy_undrained(&self, stage: &mut Stage) {
        if let Receives::Shared(srq) = &self.receives {
            // The device removes what is in the queue when it destroys the queue pair, and the
            // receives would be lost with it. One that it has taken and not completed is.
            srq.cq().flush();
            self.lost_receives
                .store(self.id.was_connected().into(), Relaxed);
            // A queue pair that is created while this one goes may have its address.
            srq.retire(self);
        }
        // What the peer has sent before is still handled, but answers nothing: the C object is
        // gone. The handler must find by `has_failed()` that such an answer is late, and no fault
        // of the peer.
        self.note_error();
        self.destroy_or_lose(stage);
        if let Stage::Lost(error) = *stage {
            pr_err!(
                "a device refuses to destroy a queue pair: {}; what was posted stays until it \
                 gives in\n",
                error.to_errno()
            );
        }
    }

    /// Destroys a queue pair that was not drained, and handles what it has left in the completion
    /// queues. If the device refuses, it is lost.
    fn destroy_or_lose(&self, stage: &mut Stage) {
        match self.destroy(stage) {
            Ok(()) => self.handle_rest(),
            Err(error) => *stage = Stage::Lost(error),
        }
    }

    /// Destroys a queue pair that was drained. Fails with the error of the device if that refuses.
    fn destroy_drained(&self, stage: &mut Stage) -> Result {
        if let Receives::Shared(srq) = &self.receives {
            // The device may have told of the last receive too early, and removes what is in the
            // queue.
            srq.cq().flush();
        }
        self.destroy(stage)?;
        if let Receives::Shared(srq) = &self.receives {
            srq.forget(self);
        }
        Ok(())
    }

    /// Handles what a queue pair that was destroyed before it was drained has left in the
    /// completion queues.
    fn handle_rest(&self) {
        self.send_cq.cq().flush();
        match &self.receives {
            Receives::Own(cq) => cq.cq().flush(),
            Receives::Shared(srq) => srq.forget(self),
        }
    }

    /// Destroys the C object, which there must be. The queue pair must be closed. Fails with the
    /// error of the device if that refuses; then it may be tried again.
    fn destroy(&self, stage: &mut Stage) -> Result {
        let first = self.detached.xchg(1, Relaxed) == 0;
        if first {
            // The core destroys no queue pair that is attached to a group. The groups are left with
            // `self`: that waits for handlers, which must not happen with `stage` locked.
            for group in self.groups.lock().iter() {
                // SAFETY: `stage` is locked, and there is a C object.
                unsafe { group.detach(self.as_raw()) };
            }
        }
        // SAFETY: By the type invariants the queue pair is ours, and is that of the id until the
        // function has taken it from that. As it is closed and `stage` is locked, nobody else uses
        // it.
        let ret = unsafe { bindings::farblk_destroy_qp(self.id.as_raw(), self.as_raw()) };
        if first {
            self.id.release_qp();
        }
        to_result(ret)?;
        self.raw.store(core::ptr::null_mut(), Relaxed);
        *stage = Stage::Destroyed;
        Ok(())
    }

    /// Moves the queue pair to its error state, and returns when it went there first. It must be
    /// closed.
    ///
    /// # Safety
    ///
    /// `stage` must be that of `self`, locked, and `Live` or `Failed`, and there be a C object.
    unsafe fn enter_error_state(&self, stage: &mut Stage) -> Result<Instant<Monotonic>> {
        let mut attr = bindings::ib_qp_attr {
            qp_state: bindings::ib_qp_state_IB_QPS_ERR,
            ..pin_init::zeroed()
        };
        // SAFETY: By the safety requirements the queue pair is valid.
        to_result(unsafe {
            bindings::ib_modify_qp(
                self.as_raw(),
                &mut attr,
                bindings::ib_qp_attr_mask_IB_QP_STATE as i32,
            )
        })?;
        let failed = match *stage {
            Stage::Failed(failed) => failed,
            _ => Instant::now(),
        };
        *stage = Stage::Failed(failed);
        Ok(failed)
    }

    /// Returns true if anything was posted to the send queue, by a slot or by the ULP itself.
    fn has_sent(&self) -> bool {
        self.send_posted.load(Relaxed) != 0 || self.extra_posted.load(Relaxed) != 0
    }

    /// Waits until all that was posted to the send queue has completed, and all that has completed
    /// before in the same completion queue was handled. The queue pair must be closed, in its error
    /// state since `failed`, and `stage` be locked.
    fn drain_sends(&self, failed: Instant<Monotonic>) -> Result {
        // Not `ib_drain_sq()`: that does not tell whether it has drained anything.
        let left = left_ms(failed, DRAIN_MS);
        self.send_cq.cq().drain(&self.send_marker, left, |cqe| {
            let wr = bindings::ib_rdma_wr {
                wr: bindings::ib_send_wr {
                    __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 { wr_cqe: cqe },
                    opcode: bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
                    send_flags: bindings::ib_send_flags_IB_SEND_SIGNALED,
                    ..pin_init::zeroed()
                },
                ..pin_init::zeroed()
            };
            let mut bad = core::ptr::null();
            // SAFETY: `stage` is locked, and not `Destroyed`. Nothing else can be posted since
            // `close()`, and there is room for one more work request. The device copies it; the
            // marker stays until its completion was handled, or none can come.
            to_result(unsafe { bindings::ib_post_send(self.as_raw(), &wr.wr, &mut bad) })
        })
    }

    /// Waits until all that was posted to the queue pair's own receive queue has completed. As for
    /// [`Self::drain_sends`].
    fn drain_receives(&self, cq: &AnyCq, failed: Instant<Monotonic>) -> Result {
        cq.drain(&self.recv_marker, left_ms(failed, DRAIN_MS), |cqe| {
            let wr = bindings::ib_recv_wr {
                __bindgen_anon_1: bindings::ib_recv_wr__bindgen_ty_1 { wr_cqe: cqe },
                ..pin_init::zeroed()
            };
            let mut bad = core::ptr::null();
            // SAFETY: As in `drain_sends()`.
            to_result(unsafe { bindings::ib_post_recv(self.as_raw(), &wr, &mut bad) })
        })
    }
}

/// Returns how long the next step of draining a queue pair may take that has gone to its error
/// state at `failed`, in ms, if it may end `most` ms after that.
fn left_ms(failed: Instant<Monotonic>, most: u32) -> u32 {
    let spent = u32::try_from(failed.elapsed().as_millis()).unwrap_or(u32::MAX);
    most.saturating_sub(spent).max(DRAIN_STEP_MS)
}

/// What is known of a queue pair that is in its error state.
enum Quiet {
    /// All that was posted has completed, and no completion can come any more.
    Drained,
    /// Only when the queue pair is destroyed it is certain that no completion can come: the device
    /// does not tell whether it still receives into the shared queue, or no marker can be posted.
    Unknown,
}

impl<H: QpHandler<T>, T: Transport> Drained<'_, H, T> {
    /// Gives back all that was posted and has not completed, and what the ULP has kept.
    fn give_back(&self) {
        let qp = self.0;
        for slot in qp.sends.iter() {
            // A slot that is claimed, and not posted or not any more, is given back by the function
            // that has claimed it.
            if H::Ulp::is_left(slot) {
                self.end(slot);
            }
        }
        // SAFETY: The queue is closed, and by the type invariants the device is done with it.
        for owner in unsafe { qp.rq.take_rest() } {
            let result = Err(WcError::NotCompleted(ESHUTDOWN));
            qp.handler.recv_done(qp, owner, result);
        }
    }

    /// Ends all access to the memory of `slot`, which was posted, and gives back its owner, unless
    /// the ULP has to keep that.
    fn end(&self, slot: &SendSlot<H, T>) {
        let qp = self.0;
        // SAFETY: By the type invariants neither the device nor a completion uses the slot, and
        // `is_left()` has kept all others from it.
        if !unsafe { H::Ulp::end(qp, slot) } {
            return;
        }
        // SAFETY: As above.
        let error = unsafe { (*slot.body.get()).error.take() };
        let error = error.unwrap_or(WcError::NotCompleted(ESHUTDOWN));
        // SAFETY: As above, and the peer has no access any more.
        unsafe { qp.finish(slot, Err(error)) };
    }
}

// SAFETY: `release()` has then drained and destroyed the queue pair, or destroyed it and handled
// what it has left in the completion queues.
unsafe impl<H: QpHandler<T>, T: Transport> DeviceObject for Qp<H, T> {
    fn kind(&self) -> &'static str {
        "queue pair"
    }

    fn remnants(&self) -> &Arc<Remnants> {
        self.pd.device().remnants()
    }

    /// Gives back all that was posted, and destroys the C object, if there is one: otherwise it was
    /// destroyed, and nothing is posted.
    unsafe fn release(&self) -> Result {
        if self.as_raw().is_null() {
            return Ok(());
        }
        might_sleep();
        let mut stage = self.stage.lock();
        let drained = self.stop(&mut stage)?;
        let destroyed = match *stage {
            Stage::Destroyed => Ok(()),
            // If the device refuses, it still has stopped using the slots.
            _ => self.destroy_drained(&mut stage),
        };
        drained.give_back();
        destroyed
    }
}

#[pinned_drop]
impl<H: QpHandler<T>, T: Transport> PinnedDrop for Qp<H, T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: No field is moved that is pinned.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: It is not used again: the C object is gone, or could not be created, and no
        // completion can come.
        let handler = unsafe { ManuallyDrop::take(&mut this.handler) };
        H::Ulp::retire(&this.ulp, &this.pd, handler);
    }
}

/// The state of a queue pair: C's `enum ib_qp_state`.
///
/// The connection manager takes a queue pair from one to the next; with
/// [`Qp::fail`] it goes to [`Self::Error`].
///
/// # Examples
///
/// ```
/// # use crate::rdma::qp::{Qp, QpHandler, QpState};
/// # use kernel::prelude::*;
/// # fn example<H: QpHandler>(qp: &Qp<H>) -> Result {
/// match qp.state()? {
///     QpState::ReadyToSend => pr_info!("connected\n"),
///     QpState::Error => pr_info!("failed, or being drained\n"),
///     other => pr_info!("on the way: {:?}\n", other),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpState {
    /// It was created, and does nothing.
    Reset,
    /// Receives may be posted.
    Init,
    /// It receives (ready to receive).
    ReadyToReceive,
    /// It receives and sends (ready to send).
    ReadyToSend,
    /// It finishes the sends that have begun, and begins no others.
    SqDrained,
    /// Its sends have failed; it still receives.
    SqError,
    /// All that is posted comes back with an error.
    Error,
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Asks the device for the state of the queue pair. Fails with `ESHUTDOWN` once it was
    /// destroyed, with `EPROTO` if the device gives no such state, and with the device's error.
    ///
    /// # Context
    ///
    /// Sleeps. Not in a method of the handler.
    pub(crate) fn state(&self) -> Result<QpState> {
        let _stage = self.stage.lock();
        if self.as_raw().is_null() {
            return Err(ESHUTDOWN);
        }
        let mut attr: bindings::ib_qp_attr = pin_init::zeroed();
        let mut init_attr: bindings::ib_qp_init_attr = pin_init::zeroed();
        // SAFETY: `stage` is locked and there is a C object. Both attributes are valid for a write.
        to_result(unsafe {
            bindings::ib_query_qp(
                self.as_raw(),
                &mut attr,
                bindings::ib_qp_attr_mask_IB_QP_STATE as i32,
                &mut init_attr,
            )
        })?;
        match attr.qp_state {
            bindings::ib_qp_state_IB_QPS_RESET => Ok(QpState::Reset),
            bindings::ib_qp_state_IB_QPS_INIT => Ok(QpState::Init),
            bindings::ib_qp_state_IB_QPS_RTR => Ok(QpState::ReadyToReceive),
            bindings::ib_qp_state_IB_QPS_RTS => Ok(QpState::ReadyToSend),
            bindings::ib_qp_state_IB_QPS_SQD => Ok(QpState::SqDrained),
            bindings::ib_qp_state_IB_QPS_SQE => Ok(QpState::SqError),
            bindings::ib_qp_state_IB_QPS_ERR => Ok(QpState::Error),
            _ => Err(EPROTO),
        }
    }
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Returns how many work requests of slots were posted, and how many of these have completed,
    /// both modulo 2^32. A completion may be counted before its work request. Any context.
    pub(crate) fn sends(&self) -> (u32, u32) {
        let done = self.done.load(Relaxed);
        // CAST: Modulo 2^32.
        (self.send_posted.load(Relaxed) as u32, done)
    }

    /// Returns how many work requests were posted, receives included. Any context.
    pub(crate) fn posted(&self) -> u64 {
        let sends = self.send_posted.load(Relaxed) + self.extra_posted.load(Relaxed);
        sends + self.posting.posted()
    }

    /// Returns how many work requests of slots were posted and have not completed. The number is
    /// not exact while others post, or completions are handled. Any context.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        // CAST: Both modulo 2^32.
        let posted = self.send_posted.load(Relaxed) as u32;
        posted.wrapping_sub(self.done.load(Relaxed))
    }

    /// Returns how many chains of work requests were posted. Any context.
    pub(crate) fn doorbells(&self) -> u64 {
        self.doorbells.load(Relaxed)
    }

    /// Returns how many completions were handled, of receives too. Any context.
    pub(crate) fn completions(&self) -> u64 {
        self.send_completions.load(Relaxed) + self.recv_completions.load(Relaxed)
    }
}

/// Handles an asynchronous event of a queue pair.
///
/// # Safety
///
/// Must only be called by the RDMA core, with the address of a [`Qp<H, T>`] as context.
unsafe extern "C" fn event<H: QpHandler<T>, T: Transport>(
    event: *mut bindings::ib_event,
    context: *mut c_void,
) {
    // SAFETY: The context is a `Qp` that is in place until the queue pair is destroyed, after which
    // there are no events.
    let (event, qp) = unsafe { ((*event).event, &*context.cast::<Qp<H, T>>()) };
    match event {
        // The id may have another queue pair by now, which this is not about: the device has
        // refused to destroy this one.
        bindings::ib_event_type_IB_EVENT_COMM_EST if qp.detached.load(Relaxed) != 0 => {}
        // The peer's first message has overtaken its confirmation of the connection.
        bindings::ib_event_type_IB_EVENT_COMM_EST => {
            // SAFETY: The id is valid, as the queue pair holds a reference.
            unsafe { bindings::rdma_notify(qp.id.as_raw(), event) };
        }
        bindings::ib_event_type_IB_EVENT_QP_FATAL
        | bindings::ib_event_type_IB_EVENT_QP_REQ_ERR
        | bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR => qp.note_error(),
        bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED => qp.last_wqe.complete_all(),
        _ => {}
    }
}
