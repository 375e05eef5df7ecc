// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

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
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    types::Opaque, //
};

mod c_object;
mod completions;
mod context;
mod interrupt;
mod marker;
mod reservation;

use completions::Completions;
pub(crate) use context::{
    Cq,
    Direct,
    Manual,
    Softirq,
    Workqueue, //
};
use interrupt::{
    comp_handler,
    irq_work_fn,
    work_fn, //
};
pub(super) use marker::Marker;
pub(super) use reservation::Reservation;

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
