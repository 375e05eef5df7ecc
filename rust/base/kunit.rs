// SPDX-License-Identifier: GPL-2.0

//! The suites of those files whose place the kernel crate takes in the kernel: they are for both.

mod configfs;
mod contents;
mod crypto;
mod debugfs;
mod scatterlist;

#[kernel::macros::kunit_tests(farblk_ratelimit)]
mod ratelimit {
    use crate::{base::ratelimit::RateLimit, kunit::check};
    use kernel::{
        prelude::*,
        sync::Arc, //
    };

    #[test]
    fn allows_some_lines_and_no_more() -> Result {
        let limit = Arc::pin_init(RateLimit::new(), GFP_KERNEL)?;
        let allowed = (0..1000).filter(|_| limit.allows()).count();
        check!((1..1000).contains(&allowed));
        // Another one has lines of its own.
        let other = Arc::pin_init(RateLimit::new(), GFP_KERNEL)?;
        check!(other.allows());
        Ok(())
    }
}

#[kernel::macros::kunit_tests(farblk_periodic)]
mod periodic {
    use crate::{
        base::{
            completion::Completion,
            periodic::{
                PeriodicHandler,
                PeriodicWork, //
            },
        },
        kunit::check,
    };
    use kernel::{
        prelude::*,
        sync::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc, //
        },
    };

    #[pin_data]
    struct Log {
        calls: Atomic<u32>,
        #[pin]
        third: Completion,
    }

    impl PeriodicHandler for Arc<Log> {
        fn run(&self) {
            if self.calls.fetch_add(1, Relaxed) == 2 {
                self.third.complete();
            }
        }
    }

    #[test]
    fn runs_until_it_is_dropped() -> Result {
        let log = Arc::pin_init(
            pin_init!(Log {
                calls: Atomic::new(0),
                third <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        let periodic = PeriodicWork::new(log.clone(), 10)?;
        log.third.wait_timeout(5000)?;
        drop(periodic);
        let calls = log.calls.load(Relaxed);
        check!(calls >= 3);
        kernel::time::delay::fsleep(kernel::time::Delta::from_millis(50));
        check!(log.calls.load(Relaxed) == calls);
        Ok(())
    }

    #[test]
    fn can_be_dropped_before_the_first_run() -> Result {
        let log = Arc::pin_init(
            pin_init!(Log {
                calls: Atomic::new(0),
                third <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        drop(PeriodicWork::new(log.clone(), 3_600_000)?);
        check!(log.calls.load(Relaxed) == 0);
        Ok(())
    }
}

#[kernel::macros::kunit_tests(farblk_percpu_ref)]
mod percpu_ref {
    use crate::{
        base::{
            completion::Completion,
            owned_queue::{
                OwnedQueue,
                WqFlags, //
            },
            percpu_ref::PercpuRef, //
        },
        kunit::check,
    };
    use kernel::{
        impl_has_work, new_work,
        prelude::*,
        sync::Arc,
        workqueue::{
            Work,
            WorkItem, //
        },
    };

    /// Waits for users in a task of its own.
    #[pin_data]
    struct Waiter {
        #[pin]
        users: PercpuRef,
        #[pin]
        done: Completion,
        #[pin]
        work: Work<Waiter>,
    }

    impl_has_work! {
        impl HasWork<Self> for Waiter { self.work }
    }

    impl WorkItem for Waiter {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            this.users.kill_and_wait();
            this.done.complete();
        }
    }

    #[test]
    fn users_come_until_the_count_is_killed() -> Result {
        let users = KBox::pin_init(PercpuRef::new(), GFP_KERNEL)?;
        let first = users.tryget_live();
        let second = users.tryget_live();
        check!(first.is_some() && second.is_some());
        users.kill();
        users.kill();
        check!(users.tryget_live().is_none());
        drop((first, second));
        users.kill_and_wait();
        users.kill_and_wait();
        check!(users.tryget_live().is_none());
        Ok(())
    }

    #[test]
    fn users_are_waited_for() -> Result {
        let waiter = Arc::pin_init(
            try_pin_init!(Waiter {
                users <- PercpuRef::new(),
                done <- Completion::new(),
                work <- new_work!("Waiter::work"),
            }? Error),
            GFP_KERNEL,
        )?;
        let queue = OwnedQueue::new_ordered(c"farblk_kunit", WqFlags::MEM_RECLAIM)?;
        let first = waiter.users.tryget_live();
        let second = waiter.users.tryget_live();
        check!(queue.enqueue(waiter.clone()).is_ok());
        check!(waiter.done.wait_timeout(100) == Err(ETIMEDOUT));
        drop(first);
        check!(waiter.done.wait_timeout(100) == Err(ETIMEDOUT));
        drop(second);
        check!(waiter.done.wait_timeout(10_000) == Ok(()));
        Ok(())
    }

    #[test]
    fn count_that_nobody_used_goes_at_once() -> Result {
        let users = KBox::pin_init(PercpuRef::new(), GFP_KERNEL)?;
        drop(users);
        let users = KBox::pin_init(PercpuRef::new(), GFP_KERNEL)?;
        users.kill_and_wait();
        Ok(())
    }
}

#[kernel::macros::kunit_tests(farblk_rcu)]
mod rcu {
    use crate::{
        base::{
            completion::Completion,
            owned_queue::{
                OwnedQueue,
                WqFlags, //
            },
            rcu::RcuSlot, //
        },
        kunit::check,
    };
    use kernel::{
        impl_has_work, new_work,
        prelude::*,
        sync::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc, //
        },
        workqueue::{
            Work,
            WorkItem, //
        },
    };

    /// Counts those of its kind that exist.
    struct Counted(Arc<Atomic<i32>>, u32);

    impl Counted {
        fn new(count: &Arc<Atomic<i32>>, number: u32) -> Result<Arc<Self>> {
            count.fetch_add(1, Relaxed);
            Ok(Arc::new(Self(count.clone(), number), GFP_KERNEL)?)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Relaxed);
        }
    }

    fn number(slot: &RcuSlot<Counted>) -> Option<u32> {
        slot.get().map(|value| value.1)
    }

    #[test]
    fn slot_has_what_was_put_in_last() -> Result {
        let count = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let slot = RcuSlot::empty();
        check!(number(&slot).is_none());
        check!(slot.replace(None).is_none());
        check!(slot.replace(Some(Counted::new(&count, 1)?)).is_none());
        check!(number(&slot) == Some(1));
        let old = slot.replace(Some(Counted::new(&count, 2)?));
        check!(old.as_ref().map(|old| old.1) == Some(1) && number(&slot) == Some(2));
        drop(old);
        check!(count.load(Relaxed) == 1);
        let old = slot.replace(None);
        check!(old.is_some_and(|old| old.1 == 2) && number(&slot).is_none());
        check!(count.load(Relaxed) == 0);
        Ok(())
    }

    /// Reads a slot in a task of its own.
    #[pin_data]
    struct Reader {
        place: RcuSlot<Counted>,
        left: Atomic<i32>,
        #[pin]
        got: Completion,
        #[pin]
        work: Work<Reader>,
    }

    impl_has_work! {
        impl HasWork<Self> for Reader { self.work }
    }

    impl WorkItem for Reader {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            let value = this.place.get();
            this.got.complete();
            for _ in 0..50 {
                kernel::time::delay::udelay(kernel::time::Delta::from_millis(1));
            }
            this.left.store(1, Relaxed);
            drop(value);
        }
    }

    #[test]
    fn who_replaces_waits_for_who_reads() -> Result {
        let count = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let reader = Arc::pin_init(
            pin_init!(Reader {
                place: RcuSlot::empty(),
                left: Atomic::new(0),
                got <- Completion::new(),
                work <- new_work!("Reader::work"),
            }),
            GFP_KERNEL,
        )?;
        reader.place.replace(Some(Counted::new(&count, 1)?));
        let queue = OwnedQueue::new_ordered(c"farblk_kunit", WqFlags::MEM_RECLAIM)?;
        check!(queue.enqueue(reader.clone()).is_ok());
        reader.got.wait();
        let old = reader.place.replace(None);
        check!(reader.left.load(Relaxed) == 1);
        drop(old);
        check!(count.load(Relaxed) == 0);
        Ok(())
    }
}

#[kernel::macros::kunit_tests(farblk_timer)]
mod timer {
    use crate::{
        base::{
            completion::Completion,
            timer::{
                new_timer,
                Timer,
                TimerHandler, //
            },
        },
        kunit::check,
    };
    use kernel::{
        prelude::*,
        sync::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc, //
        },
        time::msecs_to_jiffies, //
    };

    #[pin_data]
    struct Log {
        calls: Atomic<u32>,
        #[pin]
        called: Completion,
    }

    impl Log {
        fn new() -> Result<Arc<Self>> {
            Arc::pin_init(
                pin_init!(Self {
                    calls: Atomic::new(0),
                    called <- Completion::new(),
                }),
                GFP_KERNEL,
            )
        }
    }

    struct Handler(Arc<Log>);

    impl TimerHandler for Handler {
        fn expired(&self) {
            self.0.calls.fetch_add(1, Relaxed);
            self.0.called.complete();
        }
    }

    fn timer(log: &Arc<Log>) -> Result<Pin<KBox<Timer<Handler>>>> {
        KBox::pin_init(new_timer!(Handler(log.clone()), "kunit"), GFP_KERNEL)
    }

    fn sleep(ms: i64) {
        kernel::time::delay::fsleep(kernel::time::Delta::from_millis(ms));
    }

    #[test]
    fn expires_once_each_time_that_it_is_set() -> Result {
        let log = Log::new()?;
        let timer = timer(&log)?;
        sleep(50);
        check!(log.calls.load(Relaxed) == 0);
        for (ms, calls) in [(0, 1), (10, 2), (0, 3)] {
            timer.start(msecs_to_jiffies(ms));
            log.called.wait_timeout(5000)?;
            sleep(50);
            check!(log.calls.load(Relaxed) == calls);
        }
        Ok(())
    }

    #[test]
    fn expires_at_the_time_that_was_set_last() -> Result {
        let log = Log::new()?;
        let timer = timer(&log)?;
        timer.start(msecs_to_jiffies(3_600_000));
        timer.start(msecs_to_jiffies(10));
        log.called.wait_timeout(5000)?;
        timer.start(msecs_to_jiffies(500));
        timer.start(msecs_to_jiffies(3_600_000));
        sleep(1000);
        check!(log.calls.load(Relaxed) == 1);
        Ok(())
    }

    #[test]
    fn does_not_expire_when_it_was_cleared() -> Result {
        let log = Log::new()?;
        let timer = timer(&log)?;
        timer.clear();
        timer.start(msecs_to_jiffies(500));
        timer.clear();
        sleep(1000);
        check!(log.calls.load(Relaxed) == 0);
        timer.start(msecs_to_jiffies(0));
        log.called.wait_timeout(5000)?;
        Ok(())
    }

    #[test]
    fn does_not_expire_when_it_was_dropped() -> Result {
        let log = Log::new()?;
        let timer = timer(&log)?;
        timer.start(msecs_to_jiffies(500));
        drop(timer);
        sleep(1000);
        check!(log.calls.load(Relaxed) == 0);
        // Nothing keeps the value.
        check!(Arc::into_unique_or_drop(log).is_some());
        Ok(())
    }
}
