// SPDX-License-Identifier: GPL-2.0

//! Workqueues that a value owns, and drops that may sleep from contexts that may not.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

#![allow(unsafe_code)]

use core::{
    mem::ManuallyDrop,
    ops::Deref,
    pin::Pin,
    ptr::NonNull, //
};

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
    workqueue::{
        impl_has_work,
        new_work,
        Queue,
        RawWorkItem,
        Work,
        WorkItem, //
    },
};

use super::owned_queue::{
    self,
    WqFlags, //
};
use crate::base::errno::ESHUTDOWN;
use crate::bindings;

/// What a [`ReleaseQueue`] shares with its handles.
///
/// # Invariants
///
/// - `live` is the number of [`Live`] that exist, and of those that look whether they may.
/// - `queue` is valid until [`ReleaseQueue::drop`] has set `open` to 0 and then found `live` to be
///   0.
struct Shared {
    queue: NonNull<Queue>,
    /// 1 until the [`ReleaseQueue`] is being dropped, then 0.
    open: Atomic<u32>,
    live: Atomic<i32>,
}

// SAFETY: The queue may be used by any task, in any context.
unsafe impl Send for Shared {}
// SAFETY: As above; the other fields are atomic.
unsafe impl Sync for Shared {}

/// A handle of a [`ReleaseQueue`], by which it is told of the values that it is to drop.
///
/// It does not keep the queue.
///
/// See [`ReleaseQueue`] for an example.
#[derive(Clone)]
pub(crate) struct ReleaseHandle(Arc<Shared>);

/// A workqueue that drops the values of [`Deferred`].
///
/// Those who make such values get a handle of it. Dropping it waits until every [`Deferred`] of
/// these handles was dropped; it sleeps. A module that has one creates it first in its `init`, and
/// has it in one of the last fields of its module struct: then no code of the module runs any more
/// that drops such a value.
///
/// # Examples
///
/// ```
/// # use crate::base::{
/// #     users::CodeUsers,
/// #     workqueue::{OwnedQueue, ReleaseQueue},
/// # };
/// # use kernel::prelude::*;
/// /// A module. Its fields drop in this order.
/// struct Module {
///     // Here all else.
///     recovery: OwnedQueue,
///     _release: ReleaseQueue,
///     _code: CodeUsers,
/// }
///
/// impl Module {
///     fn new() -> Result<Self> {
///         // Locals drop in the reverse order, if what follows fails.
///         let code = CodeUsers;
///         let release = ReleaseQueue::new(c"module_release")?;
///         Ok(Self {
///             recovery: OwnedQueue::ordered(release.handle(), c"module_recovery")?,
///             _release: release,
///             _code: code,
///         })
///     }
/// }
/// ```
///
/// # Invariants
///
/// `handle` has the queue of `_queue`, and is open.
pub(crate) struct ReleaseQueue {
    handle: ReleaseHandle,
    _queue: owned_queue::OwnedQueue,
}

impl ReleaseQueue {
    /// Creates a release queue. Fails with `ENOMEM`. Sleeps.
    pub(crate) fn new(name: &CStr) -> Result<Self> {
        // Unbound and not ordered: a value whose drop takes long does not delay the others.
        let owned = owned_queue::OwnedQueue::new_unbound(name, WqFlags::MEM_RECLAIM, 0)?;
        // INVARIANT: The queue was just made, and no `Live` exists. It is no part of `owned`, which
        // may move, and is destroyed with that, at the end of `drop()`.
        let shared = Shared {
            queue: NonNull::from(&*owned),
            open: Atomic::new(1),
            live: Atomic::new(0),
        };
        // INVARIANT: It has this queue, and is open.
        Ok(Self {
            handle: ReleaseHandle(Arc::new(shared, GFP_KERNEL)?),
            _queue: owned,
        })
    }

    /// Returns the handle for those who make values that this queue is to drop.
    pub(crate) fn handle(&self) -> &ReleaseHandle {
        &self.handle
    }
}

impl Drop for ReleaseQueue {
    fn drop(&mut self) {
        let Shared { open, live, .. } = &*self.handle.0;
        // Full ordering on both sides: a `Live::new` sees the 0 here, or is counted below.
        open.xchg(0, Full);
        // SAFETY: `live` has the layout of an `atomic_t`, and stays as long as `self`.
        unsafe { bindings::wait_var_zero(live.as_ptr().cast()) };
        // No `Live` knows the queue any more, so nothing is added. It is destroyed with its owner,
        // which waits for the workers that are about to return.
    }
}

/// A count that keeps a release queue.
///
/// # Invariants
///
/// `live` has counted this value since before `open` was seen to be 1, so the queue is valid as
/// long as this value exists.
struct Live(Arc<Shared>);

impl Live {
    /// Fails with `ESHUTDOWN` if the queue is being dropped, or was.
    fn new(release: &ReleaseHandle) -> Result<Self> {
        let shared = &release.0;
        shared.live.fetch_add(1, Full);
        // INVARIANT: The count was raised first, and `ReleaseQueue::drop` clears `open` before it
        // waits for the count. If `open` is 0 already, the value is dropped at once.
        let live = Self(shared.clone());
        match shared.open.load(Relaxed) {
            0 => Err(ESHUTDOWN),
            _ => Ok(live),
        }
    }

    /// The queue, which is valid as long as `self`.
    fn queue(&self) -> NonNull<Queue> {
        self.0.queue
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let live = &self.0.live;
        if live.fetch_sub(1, Full) == 1 {
            // SAFETY: The address is only compared with those that are waited on.
            unsafe { bindings::wake_up_var(live.as_ptr().cast()) };
        }
    }
}

#[pin_data]
struct DeferredInner<T> {
    #[pin]
    work: Work<DeferredInner<T>>,
    value: T,
    // Last: the module may go once it is dropped and the worker has returned.
    live: Live,
}

impl_has_work! {
    impl{T} HasWork<Self> for DeferredInner<T> { self.work }
}

impl<T: Send + 'static> WorkItem for DeferredInner<T> {
    type Pointer = Pin<KBox<Self>>;

    fn run(this: Pin<KBox<Self>>) {
        drop(this);
    }
}

/// Owns a value whose drop may sleep, and may itself be dropped in any context.
///
/// A worker of a [`ReleaseQueue`] drops the value some time later. [`Deferred::new`] allocates all
/// that this takes.
///
/// # Examples
///
/// ```
/// # use crate::{base::workqueue::{Deferred, ReleaseHandle}, rdma::mr::Mr};
/// # use kernel::prelude::*;
/// # fn example(release: &ReleaseHandle, mr: Mr) -> Result {
/// // To deregister a region sleeps. Now it may be dropped in a completion, too.
/// let mr = Deferred::new(release, mr)?;
/// let range = mr.remote();
/// drop(mr);
/// # Ok(())
/// # }
/// ```
pub(crate) struct Deferred<T: Send + 'static>(ManuallyDrop<Pin<KBox<DeferredInner<T>>>>);

impl<T: Send + 'static> Deferred<T> {
    /// Wraps `value`, which the queue of `release` is to drop. Fails with [`ESHUTDOWN`] if that is
    /// being dropped, or was, and with `ENOMEM`; then `value` is dropped. May sleep.
    pub(crate) fn new(release: &ReleaseHandle, value: T) -> Result<Self> {
        let live = Live::new(release)?;
        let inner = KBox::pin_init(
            pin_init!(DeferredInner {
                work <- new_work!("Deferred::work"),
                value,
                live,
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(ManuallyDrop::new(inner)))
    }
}

impl<T: Send + 'static> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Send + 'static> Drop for Deferred<T> {
    fn drop(&mut self) {
        // SAFETY: `self.0` is not used any more.
        let inner = unsafe { ManuallyDrop::take(&mut self.0) };
        let queue = inner.live.queue();
        // SAFETY: By the invariants of `Live` the queue is valid: until the item has run.
        unsafe { queue.as_ref() }.enqueue(inner);
    }
}

/// A function that a task of a workqueue calls.
#[cfg(farblk_samples)]
#[pin_data]
struct Call<F> {
    #[pin]
    work: Work<Call<F>>,
    function: Option<F>,
}

#[cfg(farblk_samples)]
impl_has_work! {
    impl{F} HasWork<Self> for Call<F> { self.work }
}

#[cfg(farblk_samples)]
impl<F: FnOnce() + Send + 'static> WorkItem for Call<F> {
    type Pointer = Pin<KBox<Self>>;

    fn run(mut this: Pin<KBox<Self>>) {
        if let Some(function) = this.as_mut().project().function.take() {
            function();
        }
    }
}

/// A workqueue whose items also run when memory is short (`WQ_MEM_RECLAIM`).
///
/// It may be dropped in any context, also by one of its own items: a [`ReleaseQueue`] lets the
/// queued items run and destroys it.
///
/// # Examples
///
/// ```
/// # use crate::base::workqueue::{OwnedQueue, ReleaseHandle};
/// # use kernel::{impl_has_work, new_work, prelude::*, sync::Arc, workqueue::{Work, WorkItem}};
/// #[pin_data]
/// struct Reconnect {
///     #[pin]
///     work: Work<Reconnect>,
/// }
///
/// impl_has_work! {
///     impl HasWork<Self> for Reconnect { self.work }
/// }
///
/// impl WorkItem for Reconnect {
///     type Pointer = Arc<Self>;
///
///     fn run(this: Arc<Self>) {
///         pr_info!("connecting again\n");
///     }
/// }
///
/// fn start(release: &ReleaseHandle) -> Result {
///     let queue = OwnedQueue::ordered(release, c"reconnect")?;
///     let init = pin_init!(Reconnect { work <- new_work!("Reconnect::work") });
///     let _ = queue.enqueue(Arc::pin_init(init, GFP_KERNEL)?);
///     queue.flush();
///     Ok(())
/// }
/// ```
pub(crate) struct OwnedQueue(Deferred<owned_queue::OwnedQueue>);

impl OwnedQueue {
    /// Creates a workqueue whose items run one at a time, in order. Fails with `ENOMEM`. Sleeps.
    pub(crate) fn ordered(release: &ReleaseHandle, name: &CStr) -> Result<Self> {
        let queue = owned_queue::OwnedQueue::new_ordered(name, WqFlags::MEM_RECLAIM)?;
        Ok(Self(Deferred::new(release, queue)?))
    }

    /// Creates a workqueue whose items run on the CPU that queued them, with priority over those of
    /// other workqueues. Fails with `ENOMEM`. Sleeps.
    pub(crate) fn per_cpu(release: &ReleaseHandle, name: &CStr) -> Result<Self> {
        let flags = WqFlags::MEM_RECLAIM | WqFlags::HIGHPRI;
        let queue = owned_queue::OwnedQueue::new_percpu(name, flags, 0)?;
        Ok(Self(Deferred::new(release, queue)?))
    }

    /// Creates a workqueue whose items run at the same time, on any CPU. Fails with `ENOMEM`.
    /// Sleeps.
    pub(crate) fn unbound(release: &ReleaseHandle, name: &CStr) -> Result<Self> {
        Self::limited(release, name, 0)
    }

    /// Creates a workqueue of which up to `max` items run at the same time, on any CPU. Fails with
    /// `ENOMEM`. Sleeps.
    pub(crate) fn limited(release: &ReleaseHandle, name: &CStr, max: u32) -> Result<Self> {
        let queue = owned_queue::OwnedQueue::new_unbound(name, WqFlags::MEM_RECLAIM, max)?;
        Ok(Self(Deferred::new(release, queue)?))
    }

    /// Queues an item; an `Arc` that is queued already is returned. Any context.
    ///
    /// Delayed items cannot be queued: destroying a workqueue does not wait for their timers.
    pub(crate) fn enqueue<W, const ID: u64>(&self, item: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        self.0.enqueue(item)
    }

    /// Has a task of the workqueue call `function`. Fails with `ENOMEM`. May sleep.
    ///
    /// `Queue::try_spawn()` of the kernel crate is no way to do that in a module: lockdep finds its
    /// key in the kernel and the name of the key in each module that calls it, and complains about
    /// the second one.
    #[cfg(farblk_samples)]
    pub(crate) fn spawn<F: FnOnce() + Send + 'static>(&self, function: F) -> Result {
        let call = KBox::pin_init(
            pin_init!(Call {
                work <- new_work!("Call::work"),
                function: Some(function),
            }),
            GFP_KERNEL,
        )?;
        self.enqueue(call);
        Ok(())
    }

    /// Waits until all items that were queued before have run. Sleeps. An item of the workqueue
    /// must not call it: it would wait for itself.
    pub(crate) fn flush(&self) {
        self.0.flush();
    }
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_workqueue)]
mod tests {
    use super::*;
    use crate::{
        base::sync::{
            new_irqsave_spinlock,
            Completion,
            IrqSaveSpinLock, //
        },
        kunit::check,
    };
    use kernel::task::Task;

    const TIMEOUT_MS: u32 = 10_000;

    /// What happened.
    #[pin_data]
    struct Log {
        /// The numbers of items, in order.
        #[pin]
        ran: IrqSaveSpinLock<KVec<u32>>,
        /// The task that dropped a [`Dropped`].
        task: Atomic<usize>,
        drops: Atomic<u32>,
        #[pin]
        dropped: Completion,
    }

    impl Log {
        fn new() -> Result<Arc<Self>> {
            let ran = KVec::with_capacity(64, GFP_KERNEL)?;
            Arc::pin_init(
                pin_init!(Self {
                    ran <- new_irqsave_spinlock!(ran),
                    task: Atomic::new(0),
                    drops: Atomic::new(0),
                    dropped <- Completion::new(),
                }),
                GFP_KERNEL,
            )
        }
    }

    /// Its drop sleeps.
    struct Dropped(Arc<Log>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            kernel::time::delay::fsleep(kernel::time::Delta::from_millis(1));
            self.0.task.store(Task::current_raw().addr(), Relaxed);
            self.0.drops.fetch_add(1, Relaxed);
            self.0.dropped.complete();
        }
    }

    #[pin_data]
    struct Item {
        number: u32,
        log: Arc<Log>,
        /// Dropped by the item when it has run.
        queue: Option<Arc<OwnedQueue>>,
        #[pin]
        work: Work<Item>,
    }

    impl_has_work! {
        impl HasWork<Self> for Item { self.work }
    }

    impl WorkItem for Item {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            // Those that come later are faster.
            let ms = 10 / i64::from(this.number + 1);
            kernel::time::delay::fsleep(kernel::time::Delta::from_millis(ms));
            let _ = this.log.ran.lock().push_within_capacity(this.number);
        }
    }

    impl Item {
        fn new(number: u32, log: &Arc<Log>, queue: Option<Arc<OwnedQueue>>) -> Result<Arc<Self>> {
            let log = log.clone();
            Arc::pin_init(
                pin_init!(Self {
                    number,
                    log,
                    queue,
                    work <- new_work!("Item::work"),
                }),
                GFP_KERNEL,
            )
        }
    }

    fn release_queue() -> Result<ReleaseQueue> {
        ReleaseQueue::new(c"farblk_kunit_release")
    }

    #[test]
    fn release_queue_waits_for_its_own_values_only() -> Result {
        let (first, second) = (release_queue()?, release_queue()?);
        let handle = first.handle().clone();
        let (log, other) = (Log::new()?, Log::new()?);
        let stays = Deferred::new(second.handle(), Dropped(other.clone()))?;
        for _ in 0..10 {
            drop(Deferred::new(&handle, Dropped(log.clone()))?);
        }
        drop(first);
        check!(log.drops.load(Relaxed) == 10 && other.drops.load(Relaxed) == 0);
        // What cannot be wrapped is dropped here, and does not count.
        let late = Deferred::new(&handle, Dropped(log.clone()));
        check!(late.err() == Some(ESHUTDOWN) && log.drops.load(Relaxed) == 11);
        check!(log.task.load(Relaxed) == Task::current_raw().addr());
        drop(Deferred::new(second.handle(), Dropped(other.clone()))?);
        drop(stays);
        drop(second);
        check!(other.drops.load(Relaxed) == 2);
        Ok(())
    }

    #[test]
    fn deferred_is_dropped_by_another_task_once() -> Result {
        let (release, log) = (release_queue()?, Log::new()?);
        let deferred = Deferred::new(release.handle(), Dropped(log.clone()))?;
        check!(Arc::ptr_eq(&(*deferred).0, &log));
        check!(log.drops.load(Relaxed) == 0);
        // Sleeping is not allowed here.
        let guard = log.ran.lock();
        drop(deferred);
        let early = log.drops.load(Relaxed);
        drop(guard);
        log.dropped.wait_timeout(TIMEOUT_MS)?;
        check!(early == 0);
        check!(log.task.load(Relaxed) != Task::current_raw().addr());
        check!(log.dropped.wait_timeout(20) == Err(ETIMEDOUT));
        check!(log.drops.load(Relaxed) == 1);
        Ok(())
    }

    #[test]
    fn items_run_in_order_and_flush_waits() -> Result {
        let (release, log) = (release_queue()?, Log::new()?);
        let queue = OwnedQueue::ordered(release.handle(), c"farblk_kunit")?;
        for number in 0..10 {
            check!(queue.enqueue(Item::new(number, &log, None)?).is_ok());
        }
        queue.flush();
        let ran = log.ran.lock();
        let (len, in_order) = (ran.len(), ran.is_sorted());
        drop(ran);
        check!(len == 10 && in_order);
        Ok(())
    }

    #[test]
    fn item_is_queued_once() -> Result {
        let (release, log) = (release_queue()?, Log::new()?);
        let queue = OwnedQueue::ordered(release.handle(), c"farblk_kunit")?;
        let first = Item::new(0, &log, None)?;
        let item = Item::new(1, &log, None)?;
        // It runs for a while, and keeps the other one waiting.
        check!(queue.enqueue(first).is_ok());
        check!(queue.enqueue(item.clone()).is_ok());
        let again = queue.enqueue(item.clone());
        check!(again.is_err_and(|back| Arc::ptr_eq(&back, &item)));
        queue.flush();
        check!(queue.enqueue(item).is_ok());
        queue.flush();
        let ran = log.ran.lock().len();
        check!(ran == 3);
        Ok(())
    }

    #[test]
    fn queue_may_be_dropped_by_its_last_item() -> Result {
        let (release, log) = (release_queue()?, Log::new()?);
        let queue = OwnedQueue::ordered(release.handle(), c"farblk_kunit")?;
        let queue = Arc::new(queue, GFP_KERNEL)?;
        for number in 0..5 {
            let item = Item::new(number, &log, Some(queue.clone()))?;
            check!(queue.enqueue(item).is_ok());
        }
        drop(queue);
        for _ in 0..1000 {
            if log.ran.lock().len() == 5 {
                return Ok(());
            }
            kernel::time::delay::fsleep(kernel::time::Delta::from_millis(10));
        }
        Err(ETIMEDOUT)
    }
}
