// SPDX-License-Identifier: GPL-2.0
// Long: all of a completion queue, whose fields are its own.

//! Completion queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::sync::Completion;
use crate::bindings;
use crate::rdma::{
    device::Device,
    might_sleep,
    remnant::{
        DeviceObject,
        ObjectRef,
        Remnants, //
    }, //
};
use core::{
    cell::UnsafeCell,
    ffi::c_void,
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    pr_warn_once,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        }, //
        Arc,
    },
    time::{
        Instant,
        Monotonic, //
    },
    types::Opaque, //
};

/// Receives the interrupts of a completion queue that is [`Manual`].
///
/// # Examples
///
/// ```
/// # use crate::{base::sync::Completion, rdma::cq::{Cq, CqNotify, Manual}};
/// # use kernel::prelude::*;
/// /// What a task that polls a queue waits for.
/// #[pin_data]
/// struct Waiter {
///     #[pin]
///     called: Completion,
/// }
///
/// impl CqNotify for Waiter {
///     fn notify(&self) {
///         self.called.complete();
///     }
/// }
///
/// fn next_completions(cq: &Cq<Manual>, waiter: &Waiter) -> u32 {
///     loop {
///         match cq.reap() {
///             // If it returns true, no interrupt may come for what is there.
///             0 if !cq.arm() => waiter.called.wait(),
///             0 => {}
///             handled => return handled,
///         }
///     }
/// }
/// ```
pub(crate) trait CqNotify: Send + Sync {
    /// Called once after [`Cq::arm`], when a completion is in the queue. Also called, at any time,
    /// when a task that handled completions could not handle all, or another one has found it doing
    /// so ([`Cq::try_reap`]): then somebody must poll.
    ///
    /// # Context
    ///
    /// Any, also hard interrupts.
    fn notify(&self);
}

/// The context in which a completion queue calls the handlers of its completions; see the types of
/// the same names.
#[derive(Clone)]
pub(super) enum PollContext {
    Softirq,
    Workqueue,
    Direct,
    Manual(Arc<dyn CqNotify>),
}

/// No completions are being handled.
const IDLE: u32 = 0;
/// A task or softirq handles completions.
const BUSY: u32 = 1;
/// As [`BUSY`], and it must look for completions once more before it ends, or have somebody look.
const AGAIN: u32 = 2;
/// The queue is being dropped: no completions are handled any more.
const CLOSED: u32 = 3;

/// A completion queue in whichever context, which calls the handlers of its queue pairs.
///
/// It handles one completion at a time. Whether a caller may poll it shows in the type of its
/// [`Cq`], which this does not know.
///
/// See [`Cq`] for an example.
///
/// # Invariants
///
/// - `raw` is a completion queue of `device` with at least `entries` entries that is freed by
///   [`release`](DeviceObject::release) and by nothing else. If the queue is `direct`, it was made
///   by `__ib_create_cq()`, and else by `__ib_alloc_cq()`.
/// - `reserved <= entries`; it is the most completions that may be in the queue at once.
/// - `state` is a lock: the caller that has changed it from `IDLE` is the only one to flush the
///   queue until it is `IDLE` again. If the queue is `direct`, which is to say [`Direct`] or
///   [`Manual`], it is also the only one to handle completions, and to use `wcs`. Once `state` is
///   `CLOSED`, there is no such caller any more, and [`irq_work_fn`] does not use `raw`.
/// - `raw` has `self` as its context if it has [`comp_handler`] as its handler. `work` and
///   `irq_work` are initialised; they run only until `release()` has
///   succeeded, before which `self` stays in place.
/// - `waiting` is, but for calls that are just changing it, the number of requests that need a
///   completion in this queue and for which no other event makes a caller poll it.
#[pin_data]
pub(crate) struct AnyCq {
    raw: NonNull<bindings::ib_cq>,
    device: Arc<Device>,
    entries: u32,
    reserved: Atomic<u32>,
    direct: bool,
    softirq: bool,
    notify: Option<Arc<dyn CqNotify>>,
    /// The core's own handler of interrupts; not called if the queue is `direct`.
    forward: bindings::ib_comp_handler,
    interrupts: Atomic<u64>,
    state: Atomic<u32>,
    waiting: Atomic<i32>,
    /// The completions that are being handled; none unless the queue is `direct`.
    wcs: Completions,
    #[pin]
    work: Opaque<bindings::work_struct>,
    #[pin]
    irq_work: Opaque<bindings::irq_work>,
}

// SAFETY: `ib_cq` belongs to no thread.
unsafe impl Send for AnyCq {}

// SAFETY: The fields that change are atomic; the C object is handed to the core, and it and `wcs`
// are used as the type invariants say.
unsafe impl Sync for AnyCq {}

impl AnyCq {
    /// Allocates a completion queue as [`Cq::alloc`] says.
    pub(super) fn alloc(
        device: &Arc<Device>,
        entries: u32,
        vector: u32,
        context: PollContext,
    ) -> Result<ObjectRef<Self>> {
        let limits = device.limits();
        if entries == 0 || entries > limits.max_cqe {
            return Err(EINVAL);
        }
        let vector = vector % limits.num_comp_vectors.max(1);
        let poll_ctx = match &context {
            PollContext::Softirq => Some(bindings::ib_poll_context_IB_POLL_SOFTIRQ),
            PollContext::Workqueue => Some(bindings::ib_poll_context_IB_POLL_WORKQUEUE),
            PollContext::Direct | PollContext::Manual(_) => None,
        };
        let wcs = match poll_ctx {
            None => Completions::new()?,
            Some(_) => Completions::none(),
        };
        let raw = poll_ctx
            .map(|poll_ctx| Self::alloc_raw(device, entries, vector, poll_ctx))
            .transpose()?;
        // SAFETY: The queue was just allocated.
        let forward = raw.and_then(|raw| unsafe { (*raw.as_ptr()).comp_handler });
        let create = |this| Self::create_raw(device, entries, vector, this);
        // INVARIANT: `raw` is allocated on `device`; nothing is reserved, and no task uses it or
        // waits for it.
        let this = Arc::pin_init(
            try_pin_init!(&this in Self {
                device: device.clone(),
                entries,
                reserved: Atomic::new(0),
                direct: poll_ctx.is_none(),
                softirq: matches!(context, PollContext::Softirq),
                notify: match context {
                    PollContext::Manual(notify) => Some(notify),
                    _ => None,
                },
                interrupts: Atomic::new(0),
                state: Atomic::new(IDLE),
                waiting: Atomic::new(0),
                wcs,
                work <- Opaque::ffi_init(|work: *mut bindings::work_struct| {
                    // SAFETY: The memory is valid for the work, and stays where it is.
                    unsafe { bindings::farblk_init_work(work, Some(work_fn)) };
                }),
                irq_work <- Opaque::ffi_init(|work: *mut bindings::irq_work| {
                    // SAFETY: As above.
                    unsafe { bindings::farblk_init_irq_work(work, Some(irq_work_fn)) };
                }),
                forward,
                // INVARIANT: `self` is the context of a queue that is made here. That comes last,
                // so that there is nothing to undo.
                raw: match raw {
                    Some(raw) => raw,
                    None => create(this)?,
                },
            }? Error),
            GFP_KERNEL,
        );
        match (this, raw) {
            // The core has no argument for a handler of its own queues' interrupts, and this one is
            // needed: a device in software tells of completions in a task, where the softirq that
            // the core's handler raises waits for ksoftirqd, which costs each I/O a thread's hop.
            // `comp_handler()` has the core's handler called in an `irq_work`, at the end of which
            // softirqs run. In the interrupt of a device it calls it at once.
            (Ok(this), Some(raw)) if this.softirq => {
                // INVARIANT: `self` becomes the context.
                // SAFETY: The queue is ours, and without queue pairs there is no interrupt that
                // would read these.
                unsafe {
                    (*raw.as_ptr()).cq_context = Arc::as_ptr(&this).cast_mut().cast::<c_void>();
                    (*raw.as_ptr()).comp_handler = Some(comp_handler);
                }
                Ok(ObjectRef::new(this))
            }
            (Err(error), Some(raw)) => {
                // SAFETY: The queue was just allocated, and nobody else knows it.
                unsafe { bindings::ib_free_cq(raw.as_ptr()) };
                Err(error)
            }
            (this, _) => this.map(ObjectRef::new),
        }
    }

    /// The C object, which is valid as long as `self`.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_cq {
        self.raw.as_ptr()
    }

    /// Calls the core's own handler of interrupts, which a direct queue does not have.
    fn forward(&self) {
        if let Some(forward) = self.forward {
            // SAFETY: It is what the core would have had called; it does not look at the context.
            unsafe { forward(self.as_raw(), core::ptr::null_mut()) };
        }
    }

    /// Returns how many interrupts there were; 0 if the context is [`Workqueue`].
    pub(crate) fn interrupts(&self) -> u64 {
        self.interrupts.load(Relaxed)
    }

    /// Requests one interrupt at the next completion. Returns true if there may be a completion
    /// already, in which case there may be no interrupt. Does nothing, and returns false, unless
    /// the queue is [`Manual`].
    ///
    /// # Context
    ///
    /// Any. Does not sleep.
    pub(super) fn arm(&self) -> bool {
        self.notify.is_some() && self.request_notify()
    }

    /// As [`Cq::arm_solicited`]. Does nothing, and returns false, unless the queue is [`Manual`].
    pub(super) fn arm_solicited(&self) -> bool {
        // SAFETY: By the type invariants the queue is valid; this may be done at any time.
        self.notify.is_some() && unsafe { bindings::farblk_req_notify_solicited(self.as_raw()) > 0 }
    }

    /// Returns true if the queue is [`Direct`] or [`Manual`].
    #[inline]
    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// As [`Cq::poll`]. Does nothing, and returns 0, unless the queue is [`Direct`] or [`Manual`].
    pub(super) fn poll(&self, budget: u32) -> u32 {
        self.process(budget.min(self.entries))
    }

    /// As [`Cq::reap`]. Does nothing, and returns 0, unless the queue is [`Direct`] or [`Manual`].
    #[inline]
    pub(super) fn reap(&self) -> u32 {
        self.process(self.entries)
    }

    /// As [`Cq::try_reap`]. Returns `None` unless the queue is [`Manual`].
    pub(super) fn try_reap(&self) -> Option<u32> {
        let entered = self.notify.is_some() && self.enter();
        // SAFETY: The queue was entered.
        entered.then(|| unsafe { self.process_entered(self.entries) })
    }

    /// Handles at most `budget` completions, if the queue is one to poll. `budget` must be at most
    /// `entries`.
    fn process(&self, budget: u32) -> u32 {
        if !self.direct {
            return 0;
        }
        if self.notify.is_some() {
            return match self.enter() {
                // SAFETY: The queue was entered.
                true => unsafe { self.process_entered(budget) },
                false => 0,
            };
        }
        // A caller that finds this one busy relies on it to look again soon: it must not be
        // preempted.
        // SAFETY: The function has no requirements; the opposite follows.
        unsafe { bindings::farblk_keep_cpu() };
        let handled = match self.enter() {
            // SAFETY: The queue was entered.
            true => unsafe { self.process_entered(budget) },
            false => 0,
        };
        // SAFETY: The opposite was done above.
        unsafe { bindings::farblk_give_up_cpu() };
        handled
    }

    /// Handles at most `budget` completions, and leaves the queue. `budget` must be at most
    /// `entries`.
    ///
    /// # Safety
    ///
    /// The queue must be a direct one, whose `state` the caller has changed from `IDLE`.
    #[inline]
    unsafe fn process_entered(&self, budget: u32) -> u32 {
        if self.notify.is_some() {
            // SAFETY: By the type invariants the queue is valid, and by those of `state` only this
            // caller uses it, and `wcs`, now.
            let handled = unsafe { self.wcs.handle(self.as_raw(), budget) };
            if self.state.xchg(IDLE, Full) == AGAIN {
                self.reschedule();
            }
            return handled;
        }
        let mut handled: u32 = 0;
        // Once more for the callers that found this one busy. They may come without end, and so may
        // completions of other queue pairs, but this caller has something else to do.
        for _ in 0..2 {
            let left = budget.saturating_sub(handled);
            // SAFETY: As above.
            handled += unsafe { self.wcs.handle(self.as_raw(), left) };
            let missed = self.waiting.load(Relaxed) > 0 && self.request_notify();
            if !missed && self.state.cmpxchg(BUSY, IDLE, Full).is_ok() {
                return handled;
            }
            if handled >= budget {
                break;
            }
            self.state.xchg(BUSY, Full);
        }
        self.state.xchg(IDLE, Full);
        self.reschedule();
        handled
    }

    /// Has another task, or a softirq, look for completions.
    #[cold]
    fn reschedule(&self) {
        match &self.notify {
            Some(notify) => notify.notify(),
            // SAFETY: By the type invariants the work is initialised, and `release()` waits for it.
            None => unsafe { bindings::farblk_queue_bh_work(self.work.get()) },
        };
    }

    /// Handles all completions that are in the queue now. When this returns they were handled, be
    /// it by another task. What comes in while it does so may be handled or not.
    ///
    /// # Context
    ///
    /// Sleeps. Must not be called in a completion of this queue.
    pub(super) fn flush(&self) {
        might_sleep();
        while !self.try_flush() {
            // SAFETY: Sleeping is allowed here.
            unsafe { bindings::msleep(1) };
        }
        if !self.direct {
            // An interrupt that came meanwhile had no effect.
            self.forward();
        }
    }

    /// Handles all completions that are in the queue now, unless another task is handling some;
    /// returns whether it did so.
    fn try_flush(&self) -> bool {
        // As in `process()`.
        let disables = self.direct && self.notify.is_none();
        if disables {
            // SAFETY: The function has no requirements; the opposite follows.
            unsafe { bindings::farblk_keep_cpu() };
        }
        let entered = self.state.cmpxchg(IDLE, BUSY, Full).is_ok();
        if entered && self.direct {
            // SAFETY: The queue is a direct one, and was entered.
            unsafe { self.process_entered(self.entries) };
        } else if entered {
            // SAFETY: By the type invariants the queue is valid, and was allocated with this
            // context. Two tasks must not do this at the same time: only one can have changed
            // `state`.
            // CAST: The entries of a queue are a C int.
            unsafe { bindings::farblk_flush_cq(self.as_raw(), self.entries as i32) };
            self.state.xchg(IDLE, Full);
        }
        if disables {
            // SAFETY: The opposite was done above.
            unsafe { bindings::farblk_give_up_cpu() };
        }
        entered
    }

    /// Tries to become the only caller that handles completions. If another one is, makes that one
    /// look for completions once more, and returns false.
    #[inline]
    fn enter(&self) -> bool {
        loop {
            match self.state.cmpxchg(IDLE, BUSY, Full) {
                Ok(_) => return true,
                Err(BUSY) if self.state.cmpxchg(BUSY, AGAIN, Full).is_err() => {}
                Err(_) => return false,
            }
        }
    }

    /// Requests an interrupt at the next completion. Returns true if there may be a completion
    /// already.
    fn request_notify(&self) -> bool {
        // SAFETY: By the type invariants the queue is valid; this may be done at any time.
        unsafe { bindings::farblk_req_notify_cq(self.as_raw()) > 0 }
    }

    /// Counts a request that needs a completion of this queue, until [`Self::stop_waiting`]. The
    /// next call of [`Self::reap`] handles that completion, or requests an interrupt for it.
    pub(super) fn start_waiting(&self) {
        self.waiting.fetch_add(1, Relaxed);
    }

    /// Undoes [`Self::start_waiting`].
    pub(super) fn stop_waiting(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Calls `post` to post a work request with the completion entry of `marker`, and waits until
    /// its completion, and so every one before it, was handled. Fails with the error of `post`, and
    /// with `ETIMEDOUT` after `timeout_ms` milliseconds: then the work request may still complete.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn drain(
        &self,
        marker: &Marker,
        timeout_ms: u32,
        post: impl FnOnce(*mut bindings::ib_cqe) -> Result,
    ) -> Result {
        might_sleep();
        post(marker.cqe.get())?;
        if !self.direct {
            return marker.done.wait_timeout(timeout_ms);
        }
        let start = Instant::<Monotonic>::now();
        loop {
            self.reap();
            if marker.done.wait_timeout(1).is_ok() {
                return Ok(());
            }
            if start.elapsed().as_millis() > timeout_ms.into() {
                return Err(ETIMEDOUT);
            }
        }
    }

    /// Reserves `entries` entries for a queue of a queue pair. Fails with `ENOSPC` if fewer are
    /// left.
    pub(super) fn reserve(this: &ObjectRef<Self>, entries: u32) -> Result<Reservation> {
        let mut old = this.reserved.load(Relaxed);
        loop {
            let new = old.checked_add(entries).ok_or(ENOSPC)?;
            if new > this.entries {
                return Err(ENOSPC);
            }
            match this.reserved.cmpxchg(old, new, Relaxed) {
                Ok(_) => {
                    // INVARIANT: `reserved` was raised by `entries`.
                    return Ok(Reservation {
                        cq: this.clone(),
                        entries,
                    });
                }
                Err(now) => old = now,
            }
        }
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

// SAFETY: `release()` has then freed the queue, and has waited for the works of it. With `Softirq`
// and `Workqueue` that relies on the driver: `ib_free_cq()` frees the queue also if that refuses.
unsafe impl DeviceObject for AnyCq {
    fn kind(&self) -> &'static str {
        "completion queue"
    }

    fn remnants(&self) -> &Arc<Remnants> {
        self.device.remnants()
    }

    unsafe fn release(&self) -> Result {
        might_sleep();
        // Only `work` can still be handling completions.
        while !matches!(self.state.cmpxchg(IDLE, CLOSED, Full), Ok(_) | Err(CLOSED)) {
            // SAFETY: Sleeping is allowed here.
            unsafe { bindings::msleep(1) };
        }
        // SAFETY: By the type invariants the work is initialised. When this returns, no
        // `irq_work_fn()` uses `raw`: one that runs later finds the queue closed.
        unsafe { bindings::farblk_irq_work_sync(self.irq_work.get()) };
        match self.direct {
            // If the device refuses, `self` stays, which the queue has as its context.
            // SAFETY: By the type invariants the queue is ours, and was made by that function's
            // opposite. Queue pairs hold a reference to `self`, also those that the device has
            // refused to destroy, so none is left.
            true => to_result(unsafe { bindings::farblk_destroy_cq(self.as_raw()) })?,
            // Frees the queue whatever the device says, and does not tell.
            // SAFETY: As above.
            false => unsafe { bindings::ib_free_cq(self.as_raw()) },
        }
        // Until here the device may have told of a completion that was handled before.
        // SAFETY: By the type invariants both works are initialised. Nothing queues them any more.
        unsafe {
            bindings::farblk_irq_work_sync(self.irq_work.get());
            bindings::cancel_work_sync(self.work.get());
        }
        Ok(())
    }
}

mod sealed {
    /// No other type is a context.
    pub(crate) trait Sealed {}
}

use sealed::Sealed;

/// The context of a [`Cq`].
///
/// See [`Cq`] for an example.
pub(crate) trait Context: Sealed {}

/// A context in which callers of [`Cq::poll`] and [`Cq::reap`] handle completions.
///
/// # Examples
///
/// ```
/// # use crate::rdma::cq::{Cq, Direct, Manual};
/// # fn example(direct: &Cq<Direct>, manual: &Cq<Manual>) {
/// // With a queue of another context this would not compile.
/// let handled = direct.poll(16) + manual.poll(16);
/// # }
/// ```
pub(crate) trait PolledContext: Context {}

/// Handlers are called in softirq, on the CPU that took the interrupt. They must not sleep.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::{Cq, Softirq}, device::Device, qp::QpCaps};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>, caps: &QpCaps, number: u32) -> Result {
/// // Connections with other numbers have other interrupts, and so other CPUs.
/// let cq = Cq::<Softirq>::alloc(device, caps.send_cqes() + caps.recv_cqes(), number)?;
/// # Ok(())
/// # }
/// ```
pub(crate) struct Softirq;

/// Handlers are called by the RDMA core's workqueue `ib-comp-wq`. They may sleep, but delay the
/// handlers of all other queues there.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::{Cq, Workqueue}, device::Device, qp::QpCaps};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>, caps: &QpCaps) -> Result {
/// // For a connection of control messages, whose handler takes a mutex.
/// let cq = Cq::<Workqueue>::alloc(device, caps.send_cqes() + caps.recv_cqes(), 0)?;
/// # Ok(())
/// # }
/// ```
pub(crate) struct Workqueue;

/// Handlers are called by the caller of [`Cq::poll`] or [`Cq::reap`]; there are no interrupts. They
/// must not sleep.
///
/// A queue pair whose sends complete here and whose receives do so elsewhere reaps when it handles
/// a receive. See also [`Qp::answered`](crate::rdma::qp::Qp::answered).
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::{Cq, Direct}, device::Device, qp::QpCaps};
/// # use kernel::{prelude::*, sync::Arc};
/// fn alloc(device: &Arc<Device>, caps: &QpCaps) -> Result<Cq<Direct>> {
///     Cq::<Direct>::alloc(device, caps.send_cqes() + caps.recv_cqes(), 0)
/// }
///
/// /// Called over and over by a task that spins until its I/O is done.
/// fn poll(cq: &Cq<Direct>) -> u32 {
///     cq.reap()
/// }
/// ```
pub(crate) struct Direct;

/// Handlers are called by the caller of [`Cq::poll`] or [`Cq::reap`]. If callers may sleep,
/// handlers may sleep, too. [`Cq::arm`] requests one interrupt, which calls [`CqNotify::notify`].
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::{Cq, CqNotify, Manual}, device::Device, qp::QpCaps};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>, caps: &QpCaps, notify: Arc<dyn CqNotify>) -> Result {
/// let cq = Cq::<Manual>::alloc(device, caps.send_cqes() + caps.recv_cqes(), 0, notify)?;
/// cq.reap();
/// // One interrupt at the next completion. If one came in since `reap()`, there may be none.
/// if cq.arm() {
///     cq.reap();
/// }
/// # Ok(())
/// # }
/// ```
pub(crate) struct Manual;

impl Sealed for Softirq {}
impl Sealed for Workqueue {}
impl Sealed for Direct {}
impl Sealed for Manual {}
impl Context for Softirq {}
impl Context for Workqueue {}
impl Context for Direct {}
impl Context for Manual {}
impl PolledContext for Direct {}
impl PolledContext for Manual {}

/// A reference to a completion queue whose handlers are called in context `C`.
///
/// It handles one completion at a time.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     cm::CmId,
/// #     cq::{Cq, Softirq},
/// #     pd::Pd,
/// #     qp::{Qp, QpCaps, QpHandler},
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<H: QpHandler<Ulp = ()>>(
/// #     (first, second): (&Arc<CmId>, &Arc<CmId>),
/// #     pd: &Arc<Pd>,
/// #     caps: QpCaps,
/// #     handlers: (H, H),
/// # ) -> Result {
/// // A queue for two queue pairs: it has an entry for all that may complete there.
/// let entries = 2 * (caps.send_cqes() + caps.recv_cqes());
/// let cq = Cq::<Softirq>::alloc(pd.device(), entries, 0)?;
/// // Each keeps it, as an `AnyCq`, which does not say who may poll.
/// let first = Qp::create(first, pd, &cq, &cq, caps, handlers.0)?;
/// let second = Qp::create(second, pd, &cq, &cq, caps, handlers.1)?;
/// # Ok(())
/// # }
/// ```
pub(crate) struct Cq<C: Context> {
    queue: ObjectRef<AnyCq>,
    _context: PhantomData<C>,
}

impl<C: Context> Clone for Cq<C> {
    fn clone(&self) -> Self {
        Self::new(self.queue.clone())
    }
}

impl<C: Context> Deref for Cq<C> {
    type Target = ObjectRef<AnyCq>;

    #[inline]
    fn deref(&self) -> &ObjectRef<AnyCq> {
        &self.queue
    }
}

impl<C: Context> From<Cq<C>> for ObjectRef<AnyCq> {
    fn from(cq: Cq<C>) -> Self {
        cq.queue
    }
}

impl<C: Context> Cq<C> {
    fn new(queue: ObjectRef<AnyCq>) -> Self {
        Self {
            queue,
            _context: PhantomData,
        }
    }
}

impl Cq<Softirq> {
    /// Allocates a completion queue of `entries` entries whose interrupt is completion vector
    /// `vector`, modulo their number.
    ///
    /// The entries must suffice for all work requests of all its queue pairs: the sum of their
    /// [`send_cqes`](crate::rdma::qp::QpCaps::send_cqes) and
    /// [`recv_cqes`](crate::rdma::qp::QpCaps::recv_cqes), and the receives of shared receive
    /// queues. Fails with `EINVAL` if `entries` is 0 or more than the device can have, and with
    /// what the device says.
    ///
    /// # Context
    ///
    /// May sleep. Dropping the last reference may sleep, too, and must not happen in a completion.
    pub(crate) fn alloc(device: &Arc<Device>, entries: u32, vector: u32) -> Result<Self> {
        AnyCq::alloc(device, entries, vector, PollContext::Softirq).map(Self::new)
    }
}

impl Cq<Workqueue> {
    /// As for [`Softirq`].
    pub(crate) fn alloc(device: &Arc<Device>, entries: u32, vector: u32) -> Result<Self> {
        AnyCq::alloc(device, entries, vector, PollContext::Workqueue).map(Self::new)
    }
}

impl Cq<Direct> {
    /// As for [`Softirq`].
    pub(crate) fn alloc(device: &Arc<Device>, entries: u32, vector: u32) -> Result<Self> {
        AnyCq::alloc(device, entries, vector, PollContext::Direct).map(Self::new)
    }
}

impl Cq<Manual> {
    /// As for [`Softirq`]; `notify` receives the interrupts.
    pub(crate) fn alloc(
        device: &Arc<Device>,
        entries: u32,
        vector: u32,
        notify: Arc<dyn CqNotify>,
    ) -> Result<Self> {
        AnyCq::alloc(device, entries, vector, PollContext::Manual(notify)).map(Self::new)
    }

    /// Requests one interrupt at the next completion. Returns true if there may be a completion
    /// already, in which case there may be no interrupt.
    ///
    /// # Context
    ///
    /// Any. Does not sleep.
    pub(crate) fn arm(&self) -> bool {
        self.queue.arm()
    }

    /// Like [`Self::arm`], but requests the interrupt at the next completion that is solicited: a
    /// receive of what the peer has sent so, by
    /// [`Qp::send_solicited`](crate::rdma::qp::Qp::send_solicited) or by
    /// [`Announcement::solicited`](crate::rdma::wr::Announcement::solicited), or a receive that has
    /// failed.
    ///
    /// Also returns true if there may be a completion already that is not solicited. Does not undo
    /// [`Self::arm`]: if that was called since the last interrupt, the next completion of any kind
    /// raises one. A send that has succeeded is never solicited. Not every device tells of receives
    /// that are flushed
    /// ([`Quirks::flushes_unsolicited`](crate::rdma::quirks::Quirks::flushes_unsolicited)).
    ///
    /// # Context
    ///
    /// Any. Does not sleep.
    pub(crate) fn arm_solicited(&self) -> bool {
        self.queue.arm_solicited()
    }

    /// Like [`Self::reap`]. Returns `None` if another caller is handling completions, which then
    /// calls [`CqNotify::notify`]. A caller that wants to see the queue empty must not wait for
    /// that one: it may need this CPU.
    pub(crate) fn try_reap(&self) -> Option<u32> {
        self.queue.try_reap()
    }
}

impl<C: PolledContext> Cq<C> {
    /// Handles at most `budget` completions, and returns how many they were.
    ///
    /// If another caller is handling completions already, that one looks for completions once more,
    /// or has another task do so, and this returns 0.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep, if the handlers do not; those of a [`Direct`] queue
    /// are called with preemption disabled, or, with `PREEMPT_RT`, with softirqs disabled.
    pub(crate) fn poll(&self, budget: u32) -> u32 {
        self.queue.poll(budget)
    }

    /// Like [`Self::poll`], but handles all completions that are in the queue now: they are at most
    /// as many as it has entries. What comes in while it does so may be handled or not.
    #[inline]
    pub(crate) fn reap(&self) -> u32 {
        self.queue.reap()
    }
}

impl AnyCq {
    /// Makes a queue whose completions the core handles, in context `poll_ctx`.
    fn alloc_raw(
        device: &Device,
        entries: u32,
        vector: u32,
        poll_ctx: bindings::ib_poll_context,
    ) -> Result<NonNull<bindings::ib_cq>> {
        // SAFETY: The device is registered by its invariants, and the name is static.
        let raw = from_err_ptr(unsafe {
            bindings::__ib_alloc_cq(
                device.as_raw(),
                core::ptr::null_mut(),
                i32::try_from(entries)?,
                i32::try_from(vector)?,
                poll_ctx,
                device.owner().name().as_char_ptr(),
            )
        })?;
        NonNull::new(raw).ok_or(ENOMEM)
    }

    /// Makes a queue that does nothing but call [`comp_handler`], for `this`.
    fn create_raw(
        device: &Device,
        entries: u32,
        vector: u32,
        this: NonNull<Self>,
    ) -> Result<NonNull<bindings::ib_cq>> {
        let attr = bindings::ib_cq_init_attr {
            cqe: entries,
            comp_vector: vector,
            ..Default::default()
        };
        // SAFETY: The device is registered by its invariants, and the name is static. The context
        // is initialised before the queue has a queue pair, and until then there is no interrupt.
        let raw = from_err_ptr(unsafe {
            bindings::__ib_create_cq(
                device.as_raw(),
                Some(comp_handler),
                None,
                this.as_ptr().cast::<c_void>(),
                &attr,
                device.owner().name().as_char_ptr(),
            )
        })?;
        NonNull::new(raw).ok_or(ENOMEM)
    }
}

/// Completions that are taken out of a queue at a time.
const BATCH: usize = 8;

/// Room for [`BATCH`] completions, or for none.
struct Completions(KVec<UnsafeCell<bindings::ib_wc>>);

impl Completions {
    /// Makes the room. May sleep.
    fn new() -> Result<Self> {
        let mut wcs = KVec::with_capacity(BATCH, GFP_KERNEL)?;
        for _ in 0..BATCH {
            wcs.push(UnsafeCell::new(pin_init::zeroed()), GFP_KERNEL)?;
        }
        Ok(Self(wcs))
    }

    /// Makes no room.
    fn none() -> Self {
        Self(KVec::new())
    }

    /// Handles at most `budget` completions of `cq`, and returns how many they were.
    ///
    /// `ib_process_cq_direct()` does the same, but clears room for as many completions on the stack
    /// first, where the kernel clears what is on the stack. It also has tracepoints.
    ///
    /// # Safety
    ///
    /// `cq` must be a valid queue. Until this returns nobody else may handle completions of `cq`,
    /// or use `self`. All that was posted and completes there has the `ib_cqe` of a slot or a
    /// marker of ours, which is valid until its completion was handled.
    #[inline]
    unsafe fn handle(&self, cq: *mut bindings::ib_cq, budget: u32) -> u32 {
        let mut handled: u32 = 0;
        while handled < budget {
            // CAST: There are at most `BATCH`.
            let room = (budget - handled).min(self.0.len() as u32);
            let wcs = UnsafeCell::raw_get(self.0.as_ptr());
            // SAFETY: The caller promises that the queue is valid and its own, and that nobody uses
            // the room, in which there are so many.
            let found = unsafe { bindings::ib_poll_cq(cq, room as i32, wcs) };
            // Less than 0 is an error: then there is nothing that could be handled.
            let found = u32::try_from(found).unwrap_or(0).min(room);
            for index in 0..found as usize {
                // SAFETY: It is one of those in the room, which were initialised, and which nobody
                // else uses. The caller promises that it has the `ib_cqe` of a slot or a marker,
                // whose function is called for this completion, and once.
                unsafe {
                    let wc = wcs.add(index);
                    let cqe = (*wc).__bindgen_anon_1.wr_cqe;
                    match cqe.as_ref().and_then(|cqe| cqe.done) {
                        Some(done) => done(cq, wc),
                        None => nobodys(),
                    }
                }
            }
            handled += found;
            if found < room || room == 0 {
                break;
            }
        }
        handled
    }
}

/// The device has completed what nobody has posted.
#[cold]
fn nobodys() {
    pr_warn_once!("a device has completed a work request that was not posted\n");
}

/// Handles an interrupt of a queue that is [`Softirq`], or [`Direct`] or
/// [`Manual`]: these take one only if they have requested it.
///
/// # Safety
///
/// Must only be called by the driver, for a completion queue with a [`AnyCq`] as its context.
unsafe extern "C" fn comp_handler(_cq: *mut bindings::ib_cq, context: *mut c_void) {
    // SAFETY: The context is a `AnyCq` that exists at least as long as the C object.
    let this = unsafe { &*context.cast::<AnyCq>() };
    this.interrupts.fetch_add(1, Relaxed);
    if !this.direct {
        // A software device calls this in a task.
        // SAFETY: By the type invariants the work is initialised, and `release()` waits for it.
        if !unsafe { bindings::farblk_irq_work_queue(this.irq_work.get()) } {
            this.forward();
        }
        return;
    }
    // The device may have refused to destroy a queue that nobody looks at any more.
    if this.state.load(Relaxed) != CLOSED {
        this.reschedule();
    }
}

/// Calls the core's own handler of interrupts, in an interrupt.
///
/// # Safety
///
/// Must only be called by `irq_work`, for the work of a [`AnyCq`].
unsafe extern "C" fn irq_work_fn(work: *mut bindings::irq_work) {
    // SAFETY: It is the work of a `AnyCq`, whose `release()` waits for it.
    let this = unsafe { &*kernel::container_of!(Opaque::cast_from(work), AnyCq, irq_work) };
    // An interrupt may be late: then the C object may be gone.
    if this.state.load(Relaxed) != CLOSED {
        this.forward();
    }
}

/// Handles the completions that the interrupt has announced, in softirq.
///
/// # Safety
///
/// Must only be called by the workqueue, for the work of a [`AnyCq`].
unsafe extern "C" fn work_fn(work: *mut bindings::work_struct) {
    // SAFETY: It is the work of a `AnyCq`, whose `release()` waits for it.
    let this = unsafe { &*kernel::container_of!(Opaque::cast_from(work), AnyCq, work) };
    this.reap();
}

/// The completion entry of the work request that drains a queue: it is posted once, behind all
/// others.
///
/// # Invariants
///
/// - `cqe` is the first field, as [`marker_done`] needs it.
#[pin_data]
#[repr(C)]
pub(super) struct Marker {
    cqe: Opaque<bindings::ib_cqe>,
    #[pin]
    done: Completion,
}

impl Marker {
    /// Creates an initialiser of a marker that was not posted.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            cqe: Opaque::new(bindings::ib_cqe {
                done: Some(marker_done),
            }),
            done <- Completion::new(),
        })
    }
}

/// Handles the completion of a [`Marker`].
///
/// # Safety
///
/// Must only be called by the RDMA core or a [`AnyCq`], once, for the completion of a
/// work request with the `cqe` of a [`Marker`].
unsafe extern "C" fn marker_done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: The caller gives a valid completion, of a marker that its queue pair keeps until no
    // completion of it can come.
    unsafe {
        (*(*wc).__bindgen_anon_1.wr_cqe.cast::<Marker>())
            .done
            .complete()
    };
}

/// Reserved entries of a completion queue, and a reference to the queue.
///
/// # Invariants
///
/// - `cq.reserved` includes `entries`.
pub(super) struct Reservation {
    cq: ObjectRef<AnyCq>,
    entries: u32,
}

impl Reservation {
    /// Returns the queue.
    #[inline]
    pub(super) fn cq(&self) -> &ObjectRef<AnyCq> {
        &self.cq
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.cq.reserved.fetch_sub(self.entries, Relaxed);
    }
}
