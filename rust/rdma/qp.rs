// SPDX-License-Identifier: GPL-2.0

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
mod caps;
mod chain;
mod counters;
mod datagram;
mod drain;
mod event;
mod handler;
mod immediate;
mod recv;
mod send;
mod slot;
mod stage;
mod state;
mod transport;
mod ulp;

pub(crate) use self::{
    caps::QpCaps,
    handler::QpHandler,
    transport::{
        Connected,
        Rc,
        Transport, //
    },
    ulp::{
        Caps,
        Ulp, //
    },
};
#[allow(
    unused_imports,
    reason = "the driver needs reliable connections; tests and samples more"
)]
pub(crate) use self::{
    datagram::{
        SendTo,
        QKEY_OF_SENDER, //
    },
    state::QpState,
    transport::{
        Uc,
        Ud,
        Unacknowledged, //
    },
};
pub(super) use self::{
    recv::{
        RecvQueue,
        RecvSlot, //
    },
    slot::{
        Body,
        Free,
        SendSlot,
        Wr, //
    },
};
use crate::base::{
    errno::EOPNOTSUPP,
    memory::NumaNode,
    sync::{
        new_irqsave_spinlock,
        Completion,
        IrqSaveSpinLock, //
    },
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
        DmaMemory,
        DmaPiece, //
    },
    pd::Pd,
    qp::{
        chain::SendQueue,
        event::event,
        recv::recv_done,
        slot::Large,
        stage::{
            Drained,
            Stage, //
        },
        ulp::Shared, //
    },
    remnant::ObjectRef,
    srq::Srq,
    wr::{
        RecvOwner,
        RECV_BUFFERS, //
    },
};
use core::{
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
            Relaxed,
            Release, //
        },
        Arc,
        Mutex, //
    },
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
/// - If it receives from a shared queue, it is a member of that from when `create_on()` returns
///   until `release()` has removed it, before anything of it goes. `receiving` is not 0 while that
///   queue has it handle a receive.
/// - Only the completion handler of the send queue writes `done` and `send_completions`, and only
///   that of the receive queue writes `recv_completions`. `send_posted`, `doorbells` and
///   `extra_posted` are written with `sq` held, `recv_posted` with `rq`.
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

    #[pin]
    rq: RecvQueue<H::Recv, Qp<H, T>>,
    recv_sges: u32,
    recv_posted: Atomic<u64>,
    recv_completions: Atomic<u64>,
    receiving: Atomic<u32>,
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
                rq <- rq,
                recv_sges,
                recv_posted: Atomic::new(0),
                recv_completions: Atomic::new(0),
                receiving: Atomic::new(0),
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
    /// if that is a [`Direct`](super::cq::Direct) or
    /// [`Manual`](super::cq::Manual) one.
    ///
    /// Otherwise like [`Self::create`]. Also fails with `ENOSPC` if `srq` has too many queue pairs,
    /// and with `EAGAIN` if one that had the same address is just being dropped.
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
    /// The C object, or null if there is none (yet, or any more). It is valid as long as one of the
    /// queues' locks is held and `close()` has not had that lock, or `stage` is locked and not
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

    /// Returns true if a completion of a shared receive is being handled as one of this queue pair.
    pub(super) fn is_receiving(&self) -> bool {
        self.receiving.load(Acquire) != 0
    }

    /// Sets what [`Self::is_receiving`] returns. After setting it to false, the queue pair may be
    /// gone.
    #[inline]
    pub(super) fn set_receiving(&self, receiving: bool) {
        self.receiving.store(receiving.into(), Release);
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
