// SPDX-License-Identifier: GPL-2.0

//! A one-shot timer; C's `struct timer_list`.
//!
//! It needs no task, and no memory once it exists, so that what memory reclaim waits for may depend
//! on it.
//!
//! C header: [`include/linux/timer.h`](srctree/include/linux/timer.h)

// UPSTREAM: upstream/tree/base/timer.rs takes the place of this file, with patch 0001 of
// upstream/rust.

#![allow(unsafe_code)]

use kernel::{
    prelude::*,
    sync::LockClassKey,
    time::Jiffies,
    types::Opaque, //
};

use crate::bindings;

/// Creates a [`Timer`] initialiser with the given name and a newly-created lock class.
///
/// It uses the name if one is given, otherwise it generates one based on the file name and line
/// number.
#[allow(unused_macros, reason = "a sample may have no timers")]
macro_rules! new_timer {
    ($value:expr $(, $name:literal)? $(,)?) => {
        $crate::base::timer::Timer::new(
            $value,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_timer;

/// The largest delay: the wheel compares times by their difference, which has a sign.
const DELAY_MAX: Jiffies = Jiffies::MAX / 4;

/// What a [`Timer`] does when it expires.
///
/// # Examples
///
/// ```
/// # use crate::base::{sync::Completion, timer::TimerHandler};
/// # use kernel::{prelude::*, sync::Arc};
/// #[pin_data]
/// struct Deadline {
///     #[pin]
///     over: Completion,
/// }
///
/// impl TimerHandler for Arc<Deadline> {
///     fn expired(&self) {
///         self.over.complete_all();
///     }
/// }
/// ```
pub(crate) trait TimerHandler: Send + Sync + 'static {
    /// Called when the timer expires, by one CPU at a time, in softirq context.
    ///
    /// It may start the timer again. It must not drop the timer, which would wait for itself.
    fn expired(&self);
}

/// A timer that calls [`TimerHandler::expired`] once, when the delay since its last start is over.
///
/// Dropping it waits for a call that is under way.
///
/// # Context
///
/// It must be dropped where sleeping is allowed, and no lock that `expired` takes may be held then.
/// Lockdep reports it if one is, so each place that makes timers has a lock class of its own: see
/// [`new_timer!`].
///
/// # Examples
///
/// ```
/// # use crate::base::{sync::Completion, timer::{new_timer, TimerHandler}};
/// # use kernel::{prelude::*, sync::Arc, time::msecs_to_jiffies};
/// struct Deadline(Arc<Completion>);
///
/// impl TimerHandler for Deadline {
///     fn expired(&self) {
///         self.0.complete_all();
///     }
/// }
///
/// # fn example(over: Arc<Completion>) -> Result {
/// let timer = KBox::pin_init(new_timer!(Deadline(over), "Deadline"), GFP_KERNEL)?;
/// timer.start(msecs_to_jiffies(60_000));
/// // An answer has come.
/// timer.clear();
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// `timer` is initialised with [`Timer::run`] and is in a [`Timer<T>`], which stays in place. It is
/// shut down when that is dropped, and by nothing else.
#[pin_data(PinnedDrop)]
pub(crate) struct Timer<T: TimerHandler> {
    #[pin]
    timer: Opaque<bindings::timer_list>,
    handler: T,
}

// SAFETY: A timer can be used by any thread, and `T` is `Send`.
unsafe impl<T: TimerHandler> Send for Timer<T> {}
// SAFETY: The functions of a timer take its lock, and `T` is `Sync`.
unsafe impl<T: TimerHandler> Sync for Timer<T> {}

impl<T: TimerHandler> Timer<T> {
    /// Creates an initialiser of a timer that is not started.
    ///
    /// [`new_timer!`] gives it a name and a lock class.
    pub(crate) fn new(
        handler: T,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self> {
        // INVARIANT: The timer is initialised, and stays in place as `Timer` is pinned.
        pin_init!(Self {
            timer <- Opaque::ffi_init(|slot: *mut bindings::timer_list| {
                // SAFETY: `slot` is valid for writes and stays in place. The name and the key live
                // forever.
                unsafe {
                    bindings::timer_init_key(
                        slot,
                        Some(Self::run),
                        0,
                        name.as_char_ptr(),
                        key.as_ptr(),
                    )
                }
            }),
            handler,
        })
    }

    /// Starts the timer, to expire after `delay`, and not when it was to before.
    ///
    /// The current jiffy counts as the first one. As C's timers do, it may expire later by an
    /// eighth of the delay, and it cuts a delay that is longer than the timer wheel: some 12 days
    /// or more, depending on `CONFIG_HZ`. With 0 it expires as soon as possible, but not before
    /// this returns if interrupts or softirqs are disabled.
    ///
    /// It can be called from any context but NMI.
    pub(crate) fn start(&self, delay: Jiffies) {
        // SAFETY: It is a valid static, and the kernel changes it at any time.
        let now = unsafe { (&raw const bindings::jiffies).read_volatile() };
        let expires = now.wrapping_add(delay.min(DELAY_MAX));
        // SAFETY: By the type invariants the timer is initialised.
        unsafe { bindings::mod_timer(self.timer.get(), expires) };
    }

    /// Stops the timer, until it is started again. Does not wait for a handler that runs.
    ///
    /// It can be called from any context but NMI.
    pub(crate) fn clear(&self) {
        // SAFETY: By the type invariants the timer is initialised.
        unsafe { bindings::timer_delete(self.timer.get()) };
    }

    /// # Safety
    ///
    /// Called by the kernel only, for the timer of a [`Timer<T>`].
    unsafe extern "C" fn run(timer: *mut bindings::timer_list) {
        // SAFETY: By the safety requirements and the type invariants it is the field of a
        // `Timer<T>`. `Opaque` has the layout of what is in it.
        let this = unsafe { kernel::container_of!(timer.cast::<Opaque<_>>(), Self, timer) };
        // SAFETY: It is valid: dropping it waits until this does not run any more. There are only
        // shared references to it.
        unsafe { (*this).handler.expired() };
    }
}

#[pinned_drop]
impl<T: TimerHandler> PinnedDrop for Timer<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariants the timer is initialised. Its handler does not run
        // afterwards, and it cannot be started again.
        unsafe { bindings::timer_shutdown_sync(self.timer.get()) };
    }
}
