// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    errno::EOPNOTSUPP,
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
    might_sleep,
    pd::Pd,
    qp::{
        Qp,
        QpHandler,
        Rc,
        RecvQueue,
        RecvSlot,
        Transport, //
    },
    remnant::{
        DeviceObject,
        ObjectRef,
        Remnants, //
    },
    wr::RECV_BUFFERS, //
};
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::Arc, //
};

/// A queue pair that receives from a shared queue.
struct Member<H: QpHandler<T>, T: Transport> {
    /// Only compared with the queue pair that a completion names.
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
/// - A completion of one of its receives is handled as one of queue pair `qp` only if `members` has
///   that with the `raw` that the completion tells, and `qp` has been marked as being in its
///   handler under the lock. Each member is in place until [`Self::retire`] of it returns: that
///   takes its `qp` out of `members`, and waits until it is not in its handler. All completions are
///   those of one completion queue, so only one is handled at a time.
/// - No two members have the same `raw`.
#[pin_data]
pub(crate) struct Srq<H: QpHandler<T>, T: Transport = Rc> {
    raw: NonNull<bindings::ib_srq>,
    #[pin]
    rq: RecvQueue<H::Recv, Srq<H, T>>,
    #[pin]
    members: IrqSaveSpinLock<KVec<Member<H, T>>>,
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
    /// pairs.
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
        let members = KVec::with_capacity(members, GFP_KERNEL)?;
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
                rq <- rq,
                members <- new_irqsave_spinlock!(members),
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
    /// pairs, and with `EAGAIN` if one whose C object had this address is just being dropped.
    ///
    /// # Safety
    ///
    /// `qp` must stay in place until [`Self::retire`] of it has returned.
    pub(super) unsafe fn add(&self, raw: *mut bindings::ib_qp, qp: &Qp<H, T>) -> Result {
        let member = Member {
            raw,
            address: qp,
            qp: Some(NonNull::from(qp)),
        };
        let mut members = self.members.lock();
        if members.iter().any(|member| member.raw == raw) {
            return Err(EAGAIN);
        }
        // INVARIANT: The caller promises that it stays, and no other has this `raw`.
        members.push_within_capacity(member).map_err(|_| ENOSPC)
    }

    /// Lets `qp` receive nothing any more, and waits until it handles no receive. A receive that
    /// completes for it after that is posted again.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn retire(&self, qp: &Qp<H, T>) {
        might_sleep();
        let mut members = self.members.lock();
        let mut all = members.iter_mut();
        if let Some(member) = all.find(|member| core::ptr::eq(member.address, qp)) {
            member.qp = None;
        }
        drop(members);
        while qp.is_receiving() {
            // SAFETY: Sleeping is allowed here.
            unsafe { bindings::msleep(1) };
        }
    }

    /// Undoes [`Self::add`] of `qp`, which has retired, once no receive can complete for it any
    /// more.
    pub(super) fn forget(&self, qp: &Qp<H, T>) {
        let mut members = self.members.lock();
        let mut all = members.iter();
        if let Some(index) = all.position(|member| core::ptr::eq(member.address, qp)) {
            let _ = members.remove(index);
        }
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
        self.rq.close();
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
        // SAFETY: The queue is closed. The device receives only for queue pairs, none of which is
        // left, and the queue is destroyed.
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
    let Some(owner) = (unsafe { srq.rq.take(slot) }) else {
        return;
    };
    let members = srq.members.lock();
    let qp = members
        .iter()
        .find(|member| member.raw == wc.qp)
        .and_then(|member| {
            // SAFETY: By the type invariants a member that has not retired is in place.
            let qp = unsafe { member.qp?.as_ref() };
            // INVARIANT: It is marked under the lock.
            qp.set_receiving(true);
            Some(qp)
        });
    drop(members);
    match qp {
        Some(qp) => {
            qp.received(owner, wc);
            // It must not be used after this.
            qp.set_receiving(false);
        }
        // It was dropped, or is being dropped. If the receive cannot be posted again, its owner is
        // dropped.
        None => drop(srq.recv(owner)),
    }
}
