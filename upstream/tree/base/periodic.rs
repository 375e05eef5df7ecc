// SPDX-License-Identifier: GPL-2.0

//! Work that is done periodically.

use kernel::{
    impl_has_delayed_work, new_delayed_work,
    prelude::*,
    sync::Arc,
    time::{
        msecs_to_jiffies,
        Jiffies,
        Msecs, //
    },
    workqueue::{
        system_freezable,
        DelayedWork,
        WorkItem, //
    },
};

/// What a [`PeriodicWork`] does.
pub(crate) trait PeriodicHandler: Send + Sync + 'static {
    /// Called again and again, never twice at a time, by a worker of `system_freezable_wq`. May
    /// sleep, but must not drop the [`PeriodicWork`].
    fn run(&self);
}

#[pin_data]
struct Inner<T> {
    #[pin]
    work: DelayedWork<Inner<T>>,
    interval: Jiffies,
    value: T,
}

impl_has_delayed_work! {
    impl{T} HasDelayedWork<Self> for Inner<T> { self.work }
}

impl<T: PeriodicHandler> WorkItem for Inner<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.value.run();
        let interval = this.interval;
        // Fails if the item is being cancelled: then this was the last time.
        let _ = system_freezable().enqueue_delayed(this, interval);
    }
}

/// Calls [`PeriodicHandler::run`] every so many milliseconds until it is dropped.
///
/// # Context
///
/// Dropping it waits for a call that is under way, and may sleep.
pub(crate) struct PeriodicWork<T: PeriodicHandler>(Arc<Inner<T>>);

impl<T: PeriodicHandler> PeriodicWork<T> {
    /// Starts to call `value`'s [`PeriodicHandler::run`], for the first time after `interval`. May
    /// sleep.
    pub(crate) fn new(value: T, interval: Msecs) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(Inner {
                work <- new_delayed_work!("PeriodicWork::work"),
                interval: msecs_to_jiffies(interval),
                value,
            }),
            GFP_KERNEL,
        )?;
        // Cannot fail: it is not queued yet.
        let _ = system_freezable().enqueue_delayed(inner.clone(), inner.interval);
        Ok(Self(inner))
    }
}

impl<T: PeriodicHandler> Drop for PeriodicWork<T> {
    fn drop(&mut self) {
        drop(DelayedWork::cancel_sync(&self.0));
    }
}
