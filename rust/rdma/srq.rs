// SPDX-License-Identifier: GPL-2.0
// Long: all of receive queues, whose fields are their own.

//! Receive queues: a queue pair's own, or one that several share.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    errno::EOPNOTSUPP,
    free::FreeSet,
    sync::{
        new_irqsave_spinlock,
        IrqSaveSpinLock, //
    },
};
use crate::bindings;
use crate::rdma::{
    cq::{
        AnyCq,
        Reservation, //
    },
    device::Device,
    might_sleep,
    pd::Pd,
    qp::{
        Qp,
        QpHandler,
        Rc,
        Transport, //
    },
    remnant::{
        DeviceObject,
        ObjectRef,
        Remnants, //
    },
    wr::{
        RecvOwner,
        RECV_BUFFERS, //
    }, //
};
use core::{
    cell::UnsafeCell,
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::c_int,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    types::Opaque, //
};

/// The function that the core calls when a receive has completed.
pub(super) type Done = unsafe extern "C" fn(cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc);

/// The slot of a receive queue that a receive has: it stays the receive's own until that is posted
/// to another queue, or dropped.
///
/// See [`RecvOwner`] for an example.
///
/// # Invariants
///
/// - The slot is not free, and no other `KeptSlot` has it.
#[derive(Default)]
pub(crate) struct KeptSlot(Option<(Arc<FreeSet>, usize)>);

impl KeptSlot {
    /// Returns the index of a slot of the queue with these slots. Takes one if there is none yet
    /// and one is free.
    #[inline]
    fn of(&mut self, free: &Arc<FreeSet>) -> Option<usize> {
        match &self.0 {
            Some((queue, index)) if Arc::ptr_eq(queue, free) => Some(*index),
            _ => self.take(free),
        }
    }

    #[cold]
    fn take(&mut self, free: &Arc<FreeSet>) -> Option<usize> {
        let index = free.take()?;
        // INVARIANT: It was free.
        *self = Self(Some((free.clone(), index)));
        Some(index)
    }
}

impl Drop for KeptSlot {
    fn drop(&mut self) {
        if let Some((free, index)) = &self.0 {
            free.put(*index);
        }
    }
}

/// A slot of a receive queue of `Q`.
///
/// # Invariants
///
/// - `cqe` is the first field, as the functions that complete it need it.
/// - A slot that is not posted has no owner: the [`KeptSlot`] of it lies beside the owner. The
///   function that has the `KeptSlot` is the only one to access `posted` until it has posted the
///   slot. From then on only the handler of the completion accesses it, and, once nobody posts and
///   no completion can come, [`RecvQueue::take_rest`].
#[repr(C)]
pub(super) struct RecvSlot<R: RecvOwner, Q> {
    cqe: Opaque<bindings::ib_cqe>,
    queue: UnsafeCell<*const Q>,
    posted: UnsafeCell<Option<(R, KeptSlot)>>,
}

impl<R: RecvOwner, Q> RecvSlot<R, Q> {
    /// Makes a slot.
    fn new(done: Done) -> Self {
        // INVARIANT: There is no owner.
        Self {
            cqe: Opaque::new(bindings::ib_cqe { done: Some(done) }),
            queue: UnsafeCell::new(core::ptr::null()),
            posted: UnsafeCell::new(None),
        }
    }

    /// Returns the slot of a completed receive, and the queue that it belongs to; `None` if its
    /// owner was taken already.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of the completion `wc` of a slot of such a queue that was
    /// posted.
    #[inline]
    pub(super) unsafe fn completed<'a>(wc: &bindings::ib_wc) -> Option<(&'a Self, &'a Q)> {
        // SAFETY: The slot exists until all completions of it were handled, and no other can come.
        let slot = unsafe { &*wc.__bindgen_anon_1.wr_cqe.cast::<Self>() };
        // SAFETY: The slot's receive has completed, so this handler may access its owner.
        if unsafe { (*slot.posted.get()).is_none() } {
            return None;
        }
        // SAFETY: The queue is in place as long as one of its slots has an owner.
        Some((slot, unsafe { &**slot.queue.get() }))
    }

    /// Stores the owner, and `kept` beside it. Returns a work request for its buffers with the
    /// segments, of which there are at most `max_sge`. Fails with `EINVAL` if the device cannot
    /// receive into them; also then the owner is stored.
    ///
    /// # Safety
    ///
    /// `kept` must be of this slot.
    #[inline]
    unsafe fn build(
        &self,
        owner: R,
        kept: KeptSlot,
        device: &Device,
        lkey: u32,
        max_sge: u32,
    ) -> Result<(bindings::ib_recv_wr, [bindings::ib_sge; RECV_BUFFERS])> {
        // SAFETY: By the type invariants the owner is the caller's to access. What is borrowed from
        // it stays so until it is taken: nothing accesses it until then.
        let (owner, _) = unsafe { &mut *self.posted.get() }.insert((owner, kept));
        // No loop, in which the compiler would not know what kinds of buffers they are.
        let places = owner.buffers().map(|buffer| match buffer {
            Some(buffer) => buffer.place(device).map(Some),
            None => Ok(None),
        });
        let [first, second] = places;
        let mut sges = [bindings::ib_sge::default(); RECV_BUFFERS];
        let mut num_sge = 0;
        for (sge, (addr, length)) in sges.iter_mut().zip([first?, second?].into_iter().flatten()) {
            *sge = bindings::ib_sge { addr, length, lkey };
            num_sge += 1;
        }
        if num_sge == 0 || num_sge > max_sge {
            return Err(EINVAL);
        }
        let slot = core::ptr::from_ref(self).cast_mut();
        let wr = bindings::ib_recv_wr {
            __bindgen_anon_1: bindings::ib_recv_wr__bindgen_ty_1 {
                // The first field; the completion needs the whole slot.
                wr_cqe: slot.cast(),
            },
            // CAST: A small number.
            num_sge: num_sge as i32,
            ..pin_init::zeroed()
        };
        Ok((wr, sges))
    }

    /// Takes the owner, if there is one. It gets its slot back, or that is free.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may access the owner, and the device be done with its
    /// buffers.
    #[inline]
    pub(super) unsafe fn take(&self) -> Option<R> {
        // SAFETY: The caller promises that nobody else accesses it.
        let (mut owner, slot) = unsafe { &mut *self.posted.get() }.take()?;
        // No loop: see `build()`.
        let _: [(); RECV_BUFFERS] = owner.buffers().map(|buffer| {
            if let Some(buffer) = buffer {
                buffer.sync_for_cpu();
            }
        });
        if let Some(kept) = owner.kept() {
            *kept = slot;
        }
        Some(owner)
    }
}

/// The slots of a receive queue of `Q`.
pub(super) struct RecvQueue<R: RecvOwner, Q> {
    slots: KVVec<RecvSlot<R, Q>>,
    free: Arc<FreeSet>,
}

impl<R: RecvOwner, Q> RecvQueue<R, Q> {
    /// Makes a queue of `count` slots.
    pub(super) fn new(count: u32, done: Done) -> Result<Self> {
        if count > 1 << u16::BITS {
            return Err(EINVAL);
        }
        let mut slots = KVVec::with_capacity(count as usize, GFP_KERNEL)?;
        for _ in 0..count {
            slots.push(RecvSlot::new(done), GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            free: Arc::new(FreeSet::free(count as usize)?, GFP_KERNEL)?,
        })
    }

    /// Sets the queue that the slots belong to.
    ///
    /// # Safety
    ///
    /// Nobody else may use the slots yet. `queue` must stay in place as long as one has an owner.
    pub(super) unsafe fn init(&self, queue: &Q) {
        for slot in self.slots.iter() {
            // SAFETY: The caller promises that nobody else uses it.
            unsafe { *slot.queue.get() = queue };
        }
    }

    /// Calls `post` to post a receive of at most `max_sge` segments for `owner`. The errors are
    /// those of [`Qp::recv`]; the owner is returned with them.
    #[inline]
    pub(super) fn post(
        &self,
        mut owner: R,
        device: &Device,
        lkey: u32,
        max_sge: u32,
        post: impl FnOnce(&bindings::ib_recv_wr) -> c_int,
    ) -> Result<(), (Error, R)> {
        let mut kept = owner.kept().map(core::mem::take).unwrap_or_default();
        let Some(slot) = kept.of(&self.free).and_then(|index| self.slots.get(index)) else {
            return Err((EAGAIN, owner));
        };
        // SAFETY: It is that slot.
        let result = match unsafe { slot.build(owner, kept, device, lkey, max_sge) } {
            Ok((mut wr, mut sges)) => {
                wr.sg_list = sges.as_mut_ptr();
                to_result(post(&wr))
            }
            Err(error) => Err(error),
        };
        let Err(error) = result else {
            return Ok(());
        };
        // SAFETY: The slot is still ours, as it was not posted.
        match unsafe { slot.take() } {
            Some(owner) => Err((error, owner)),
            // `build()` has stored an owner.
            None => Ok(()),
        }
    }

    /// Takes the owners that are left, one by one.
    ///
    /// # Safety
    ///
    /// Nobody may post any more, and the device be done with the queue.
    pub(super) unsafe fn take_rest(&self) -> impl Iterator<Item = R> + '_ {
        // SAFETY: No slot is being posted, and a slot that was posted is not used by the device any
        // more, as the caller promises.
        self.slots.iter().filter_map(|slot| unsafe { slot.take() })
    }
}

/// A queue pair that receives from a shared queue.
struct Member<H: QpHandler<T>, T: Transport> {
    /// Only compared with the C object that a completion names.
    raw: *mut bindings::ib_qp,
    /// Only compared.
    address: *const Qp<H, T>,
    /// `None` once it has retired: what is received for it after that is posted again.
    qp: Option<NonNull<Qp<H, T>>>,
}

/// Receives the events of a shared receive queue.
///
/// # Context
///
/// Any: the methods must not sleep, and not drop the last reference to the queue.
///
/// # Examples
///
/// ```
/// # use crate::{base::sync::Completion, rdma::srq::SrqEvents};
/// # use kernel::prelude::*;
/// /// What a task waits for that posts receives.
/// #[pin_data]
/// struct Refill {
///     #[pin]
///     low: Completion,
/// }
///
/// impl SrqEvents for Refill {
///     fn limit_reached(&self) {
///         self.low.complete();
///     }
///
///     fn failed(&self) {
///         pr_err!("nothing is received any more\n");
///     }
/// }
/// ```
pub(crate) trait SrqEvents: Send + Sync + 'static {
    /// There are fewer receives than [`Srq::arm_limit`] has said. Called once for each time that
    /// the limit is armed.
    fn limit_reached(&self);

    /// The queue has failed: nothing is received any more.
    fn failed(&self) {}
}

/// Who receives the events of a queue; nobody once it is gone.
type EventTarget = IrqSaveSpinLock<Option<Arc<dyn SrqEvents>>>;

/// A receive queue that several queue pairs share; all have the same protection domain and
/// completion queue.
///
/// The owner of a receive comes back through the handler of the queue pair that the message came in
/// on. Receives that are left are dropped with the queue.
///
/// A device may lose a receive with a queue pair that fails, see
/// [`Quirks::loses_receives`](super::quirks::Quirks::loses_receives): its owner stays until the
/// queue is dropped. So there a queue should have more receives than its users can have messages
/// under way.
///
/// # Context
///
/// The last reference must be dropped where sleeping is allowed, and not by a completion.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     cm::CmId,
/// #     cq::{Cq, Softirq},
/// #     dma::{Direction, DmaBuffer},
/// #     pd::Pd,
/// #     qp::{Qp, QpCaps, QpHandler},
/// #     srq::Srq,
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<H: QpHandler<Recv = DmaBuffer, Ulp = ()>>(
/// #     pd: &Arc<Pd>,
/// #     client: &Arc<CmId>,
/// #     caps: QpCaps,
/// #     handler: H,
/// # ) -> Result {
/// // 64 receives for up to 100 clients, of which each would need some of its own otherwise.
/// let cq = Cq::<Softirq>::alloc(pd.device(), 64 + 100 * caps.send_cqes(), 0)?;
/// let srq = Srq::create(pd, &cq, 64, 100, None)?;
/// for _ in 0..64 {
///     let buffer = DmaBuffer::alloc(pd.device(), 256, Direction::FromDevice)?;
///     srq.recv(buffer).map_err(|(error, _)| error)?;
/// }
/// let caps = QpCaps { recv_wr: 0, ..caps };
/// let qp = Qp::create_on(client, &srq, srq.cq(), caps, handler)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `raw` is a shared receive queue of `pd` that is destroyed by
///   [`release`](DeviceObject::release) and nothing else. The device was given at most as many
///   receives as `cq` has entries reserved for.
/// - The slots of `rq` have the address of `self`.
/// - The C object's context is the address of what `events` has, which does not change.
/// - All completions are those of one completion queue, so only one is handled at a time. Each has
///   the C object of a member, whose context is the member's [`Qp`]; only that of a retired member
///   may be gone. A member is in place until it has retired, and all completions that did not see
///   that were handled; it is a member until it was destroyed, and what it has left was handled.
/// - `retired` is the number of members whose `qp` is `None`. It changes with `members` locked.
/// - No two members have the same `raw`.
#[pin_data]
pub(crate) struct Srq<H: QpHandler<T>, T: Transport = Rc> {
    raw: NonNull<bindings::ib_srq>,
    rq: RecvQueue<H::Recv, Srq<H, T>>,
    #[pin]
    members: IrqSaveSpinLock<KVec<Member<H, T>>>,
    members_max: usize,
    retired: Atomic<usize>,
    max_sge: u32,
    receives: u32,
    /// The context of the events.
    events: Option<Pin<KBox<EventTarget>>>,
    cq: Reservation,
    pd: Arc<Pd>,
}

// SAFETY: What is reachable through a `Srq` may be used by any thread: the owners are `Send`, and a
// `Qp` is `Sync`.
unsafe impl<H: QpHandler<T>, T: Transport> Send for Srq<H, T> {}

// SAFETY: As above; what changes is atomic or locked.
unsafe impl<H: QpHandler<T>, T: Transport> Sync for Srq<H, T> {}

impl<H: QpHandler<T>, T: Transport> Srq<H, T> {
    /// Creates a queue for `receives` receives at once, at most 65536, and for `members` queue
    /// pairs, beside as many that are being dropped.
    ///
    /// `cq` is where the receives complete, `events` who receives the events of the queue, if
    /// anybody does. Fails with `EOPNOTSUPP` if the device has no such
    /// queues, with `EINVAL` if `cq` is another device's or there are no queues of so many
    /// receives, and with `ENOSPC` if `cq` is too small: it must have an entry for each receive,
    /// and [`send_cqes`](super::qp::QpCaps::send_cqes) for each queue pair whose sends complete
    /// there, too.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn create(
        pd: &Arc<Pd>,
        cq: &ObjectRef<AnyCq>,
        receives: u32,
        members: usize,
        events: Option<Arc<dyn SrqEvents>>,
    ) -> Result<ObjectRef<Self>> {
        let device = pd.device();
        let limits = device.limits();
        // The core calls the driver's function without checking that there is one.
        if !device.has_srq() {
            return Err(EOPNOTSUPP);
        }
        // CAST: A small number.
        let max_sge = limits.max_srq_sge.min(RECV_BUFFERS as u32);
        if receives == 0
            || receives > limits.max_srq_wr
            || max_sge == 0
            || !Arc::ptr_eq(device, cq.device())
        {
            return Err(EINVAL);
        }
        let rq = RecvQueue::new(receives, srq_done::<H, T>)?;
        let members_max = members;
        // Those that have retired are members for some time.
        let members = KVec::with_capacity(2 * members_max, GFP_KERNEL)?;
        let cq = AnyCq::reserve(cq, receives)?;
        let events = events
            .map(|events| KBox::pin_init(new_irqsave_spinlock!(Some(events)), GFP_KERNEL))
            .transpose()?;
        let context = match &events {
            Some(events) => core::ptr::from_ref(&**events).cast_mut().cast::<c_void>(),
            None => core::ptr::null_mut(),
        };
        let mut handler: Option<unsafe extern "C" fn(*mut bindings::ib_event, *mut c_void)> = None;
        if events.is_some() {
            handler = Some(srq_event);
        }
        let mut attr = bindings::ib_srq_init_attr {
            event_handler: handler,
            srq_context: context,
            attr: bindings::ib_srq_attr {
                max_wr: receives,
                max_sge,
                srq_limit: 0,
            },
            srq_type: bindings::ib_srq_type_IB_SRQT_BASIC,
            ..pin_init::zeroed()
        };
        let mut create = || {
            // SAFETY: The domain is valid by its invariants. Kernel users give no `udata`.
            let raw = from_err_ptr(unsafe {
                bindings::ib_create_srq_user(
                    pd.as_raw(),
                    &mut attr,
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                )
            })?;
            NonNull::new(raw).ok_or(ENOMEM)
        };
        // INVARIANT: The queue is created in `pd`; nothing is posted, and there are no members. It
        // comes last, so that there is nothing to undo.
        let this = Arc::pin_init(
            try_pin_init!(Self {
                rq,
                members <- new_irqsave_spinlock!(members),
                members_max,
                retired: Atomic::new(0),
                max_sge,
                receives,
                events,
                cq,
                pd: pd.clone(),
                raw: create()?,
            }? Error),
            GFP_KERNEL,
        )?;
        // SAFETY: Nobody else uses the slots yet. `self` stays until `release()` has taken all
        // their owners.
        unsafe { this.rq.init(&this) };
        Ok(ObjectRef::new(this))
    }

    /// Posts a receive. The errors are those of [`Qp::recv`].
    ///
    /// # Context
    ///
    /// Any. Does not sleep or allocate.
    pub(crate) fn recv(&self, owner: H::Recv) -> Result<(), (Error, H::Recv)> {
        let (device, lkey) = (self.pd.device(), self.pd.local_dma_lkey());
        self.rq.post(owner, device, lkey, self.max_sge, |wr| {
            // SAFETY: By the type invariants the queue is valid. The work request is valid for the
            // call, and the buffers until the completion, as the owner lies in the slot.
            unsafe { bindings::ib_post_srq_recv(self.raw.as_ptr(), wr, core::ptr::null_mut()) }
        })
    }

    /// Asks for one [`SrqEvents::limit_reached`] when fewer than `limit` receives are left; 0 asks
    /// for none any more. Where there are fewer already the device may tell at once.
    ///
    /// Fails with `EINVAL` if nobody receives events or the queue has not so many receives, with
    /// `EOPNOTSUPP` if the device tells of no limits, and with its error.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn arm_limit(&self, limit: u32) -> Result {
        if self.events.is_none() || limit > self.receives {
            return Err(EINVAL);
        }
        let mut attr = bindings::ib_srq_attr {
            srq_limit: limit,
            ..pin_init::zeroed()
        };
        // SAFETY: By the type invariants the queue is valid.
        to_result(unsafe {
            bindings::ib_modify_srq(
                self.raw.as_ptr(),
                &mut attr,
                bindings::ib_srq_attr_mask_IB_SRQ_LIMIT,
            )
        })
    }

    /// The C object, which is valid as long as `self`.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_srq {
        self.raw.as_ptr()
    }

    /// Returns the completion queue.
    pub(crate) fn cq(&self) -> &ObjectRef<AnyCq> {
        self.cq.cq()
    }

    /// Returns the protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Lets `qp`, whose C object is `raw`, receive. Fails with `ENOSPC` if there are too many queue
    /// pairs.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Safety
    ///
    /// `qp` must stay in place until [`Self::retire`] of it has returned.
    pub(super) unsafe fn add(&self, raw: *mut bindings::ib_qp, qp: &Qp<H, T>) -> Result {
        if self.members.lock().iter().any(|member| member.raw == raw) {
            // Another one had this address, so it was destroyed. It is about to be forgotten.
            self.remove(|member| member.raw == raw);
        }
        let member = Member {
            raw,
            address: qp,
            qp: Some(NonNull::from(qp)),
        };
        let mut members = self.members.lock();
        let receiving = members.iter().filter(|member| member.qp.is_some()).count();
        if receiving >= self.members_max {
            return Err(ENOSPC);
        }
        // INVARIANT: The caller promises that it stays, and no other has this `raw`.
        members.push_within_capacity(member).map_err(|_| ENOSPC)
    }

    /// Lets `qp` receive nothing any more, and waits until it handles no receive. A receive that
    /// completes for it after that is posted again. To be called before a queue pair is destroyed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn retire(&self, qp: &Qp<H, T>) {
        let mut members = self.members.lock();
        let mut all = members.iter_mut();
        let member = all.find(|member| core::ptr::eq(member.address, qp));
        if member.and_then(|member| member.qp.take()).is_some() {
            self.retired.store(self.retired.load(Relaxed) + 1, Relaxed);
        }
        drop(members);
        self.cq().flush();
    }

    /// Undoes [`Self::add`] of `qp`, which has retired, and which was destroyed: handles first what
    /// it has left in the completion queue. Does nothing for one that is no member.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn forget(&self, qp: &Qp<H, T>) {
        self.remove(|member| core::ptr::eq(member.address, qp));
    }

    /// Handles what is in the completion queue, and then removes a member that was destroyed.
    fn remove(&self, is_it: impl Fn(&Member<H, T>) -> bool) {
        self.cq().flush();
        let mut members = self.members.lock();
        let index = members.iter().position(is_it);
        let member = index.and_then(|index| members.remove(index).ok());
        if member.is_some_and(|member| member.qp.is_none()) {
            self.retired.store(self.retired.load(Relaxed) - 1, Relaxed);
        }
    }

    /// Returns the queue pair that a completion names, unless that has retired.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of a completion with this C object, which must not use the
    /// queue pair when it has returned.
    #[inline]
    unsafe fn member<'a>(&self, raw: *mut bindings::ib_qp) -> Option<&'a Qp<H, T>> {
        if self.retired.load(Relaxed) == 0 {
            // SAFETY: By the type invariants the C object is there, its context is its `Qp`, and
            // that stays until this completion was handled.
            return Some(unsafe { &*(*raw).qp_context.cast::<Qp<H, T>>() });
        }
        let members = self.members.lock();
        let mut all = members.iter();
        let member = all.find(|member| member.raw == raw)?;
        // SAFETY: By the type invariants a member that has not retired stays until this completion
        // was handled.
        Some(unsafe { member.qp?.as_ref() })
    }
}

// SAFETY: `release()` has then destroyed the queue, after which there are no events and no
// receives.
unsafe impl<H: QpHandler<T>, T: Transport> DeviceObject for Srq<H, T> {
    fn kind(&self) -> &'static str {
        "shared receive queue"
    }

    fn remnants(&self) -> &Arc<Remnants> {
        self.pd.device().remnants()
    }

    unsafe fn release(&self) -> Result {
        might_sleep();
        // SAFETY: By the type invariants the queue is ours. Queue pairs hold a reference to `self`,
        // also those that the device has refused to destroy, so none is left.
        let ret =
            unsafe { bindings::ib_destroy_srq_user(self.raw.as_ptr(), core::ptr::null_mut()) };
        if let Err(error) = to_result(ret) {
            // The device may tell of an event even now: the function and its context stay, but
            // nobody is told. The function cannot be taken out of the C object, as a driver tests
            // that there is one, and then calls what it finds.
            if let Some(target) = &self.events {
                let events = target.lock().take();
                drop(events);
            }
            return Err(error);
        }
        // SAFETY: Nobody has a reference by which to post. The device receives only for queue
        // pairs, none of which is left, and the queue is destroyed.
        unsafe { self.rq.take_rest() }.for_each(drop);
        Ok(())
    }
}

/// Handles an event of a shared receive queue.
///
/// # Safety
///
/// Must only be called by the RDMA core, with the address of the events of a [`Srq`] as context.
unsafe extern "C" fn srq_event(event: *mut bindings::ib_event, context: *mut c_void) {
    // SAFETY: The context is in place until the queue was destroyed, after which there are no
    // events. The core gives a valid event.
    let (event, target) = unsafe { ((*event).event, &*context.cast::<EventTarget>()) };
    if let Some(events) = &*target.lock() {
        match event {
            bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED => events.limit_reached(),
            bindings::ib_event_type_IB_EVENT_SRQ_ERR => events.failed(),
            _ => {}
        }
    }
}

/// Handles the completion of a receive of a shared queue.
///
/// # Safety
///
/// Must only be called by the RDMA core or a completion queue, once, for the completion of a
/// receive with the `cqe` of a slot of a [`Srq<H, T>`] that was posted.
unsafe extern "C" fn srq_done<H: QpHandler<T>, T: Transport>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The caller gives a valid completion.
    let wc = unsafe { &*wc };
    // SAFETY: The queue stays in place until `release()` has taken all owners; and this is the
    // handler of the completion.
    let Some((slot, srq)) = (unsafe { RecvSlot::<H::Recv, Srq<H, T>>::completed(wc) }) else {
        return;
    };
    // SAFETY: As above.
    let Some(owner) = (unsafe { slot.take() }) else {
        return;
    };
    // SAFETY: As above.
    match unsafe { srq.member(wc.qp) } {
        Some(qp) => qp.received(owner, wc),
        // It was dropped, or is being dropped. If the receive cannot be posted again, its owner is
        // dropped.
        None => drop(srq.recv(owner)),
    }
}
