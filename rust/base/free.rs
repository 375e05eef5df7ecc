// SPDX-License-Identifier: GPL-2.0

//! Which things of a table are free: slots, memory regions, commands.

#![forbid(unsafe_code)]

use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed, //
    },
};

/// The numbers of the free things of a table, in any context and without a lock.
///
/// # Examples
///
/// ```
/// # use crate::base::free::FreeSet;
/// # use kernel::prelude::*;
/// # fn example() -> Result {
/// let free = FreeSet::free(100)?;
/// let slot = free.take().ok_or(EBUSY)?;
/// // Nobody else has the slot until it is put back.
/// free.put(slot);
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - Bit `n % 64` of word `n / 64` is set if and only if thing `n` is free.
pub(crate) struct FreeSet(KVec<Atomic<u64>>);

impl FreeSet {
    /// Makes a set for `count` things, which are all taken. May sleep.
    pub(crate) fn taken(count: usize) -> Result<Self> {
        let mut words = KVec::with_capacity(count.div_ceil(64), GFP_KERNEL)?;
        for _ in 0..count.div_ceil(64) {
            words.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self(words))
    }

    /// Makes a set of `count` things, which are all free. May sleep.
    pub(crate) fn free(count: usize) -> Result<Self> {
        let this = Self::taken(count)?;
        for (first, word) in (0..count).step_by(64).zip(&this.0) {
            // INVARIANT: One bit for each.
            word.store(u64::MAX >> (64 - (count - first).min(64)), Relaxed);
        }
        Ok(this)
    }

    /// Takes a free thing, and returns its number. What its last user did happened before.
    ///
    /// A full barrier if it succeeds.
    #[inline]
    pub(crate) fn take(&self) -> Option<usize> {
        for (index, word) in self.0.iter().enumerate() {
            let mut bits = word.load(Relaxed);
            while bits != 0 {
                // INVARIANT: The bit was set, so that nobody else takes the thing.
                match word.cmpxchg(bits, bits & (bits - 1), Full) {
                    // CAST: Less than 64.
                    Ok(_) => return Some(index * 64 + bits.trailing_zeros() as usize),
                    Err(now) => bits = now,
                }
            }
        }
        None
    }

    /// Frees a thing that is taken, and that the caller does not use any more. A full barrier.
    #[inline]
    pub(crate) fn put(&self, number: usize) {
        if let Some(word) = self.0.get(number / 64) {
            // INVARIANT: The bit was clear, so that adding it sets it.
            word.fetch_add(1 << (number % 64), Full);
        }
    }

    /// Returns how many things are free.
    pub(crate) fn count(&self) -> usize {
        // CAST: At most 64 each.
        let count = |word: &Atomic<u64>| word.load(Acquire).count_ones() as usize;
        self.0.iter().map(count).sum()
    }
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_free_set)]
mod tests {
    use super::*;
    use crate::{
        base::{
            owned_queue::{
                OwnedQueue,
                WqFlags, //
            },
            sync::Completion,
        },
        kunit::check,
    };
    use kernel::{
        impl_has_work, new_work,
        sync::Arc,
        workqueue::{
            Work,
            WorkItem, //
        },
    };

    /// So many things that two tasks want most often the same ones.
    const FEW: usize = 3;
    const ROUNDS: u32 = 20_000;

    #[test]
    fn each_is_taken_once() -> Result {
        for count in [0, 1, 63, 64, 65, 130] {
            let set = FreeSet::free(count)?;
            check!(set.count() == count);
            let mut seen = KVec::from_elem(false, count, GFP_KERNEL)?;
            while let Some(number) = set.take() {
                let seen = seen.get_mut(number).ok_or(ERANGE)?;
                check!(!*seen);
                *seen = true;
            }
            check!(seen.iter().all(|seen| *seen) && set.count() == 0);
        }
        Ok(())
    }

    #[test]
    fn what_is_put_is_free_again() -> Result {
        let set = FreeSet::taken(70)?;
        check!(set.take().is_none());
        set.put(69);
        set.put(3);
        check!(set.count() == 2);
        check!(set.take() == Some(3));
        check!(set.take() == Some(69));
        check!(set.take().is_none());
        Ok(())
    }

    /// Two tasks that take and put the same things.
    #[pin_data]
    struct Race {
        set: FreeSet,
        /// True while a task has the thing.
        taken: [Atomic<bool>; FEW],
        /// How often a task got what the other one had.
        twice: Atomic<u32>,
        #[pin]
        done: Completion,
        #[pin]
        work: Work<Race>,
    }

    impl_has_work! {
        impl HasWork<Self> for Race { self.work }
    }

    impl Race {
        fn run(&self) {
            for _ in 0..ROUNDS {
                // Two at a time, so that they are put in another order than they were taken in.
                let both = [self.set.take(), self.set.take()];
                for number in both.into_iter().flatten() {
                    if self
                        .taken
                        .get(number)
                        .is_none_or(|taken| taken.xchg(true, Full))
                    {
                        self.twice.fetch_add(1, Relaxed);
                    }
                }
                for number in both.into_iter().flatten() {
                    if let Some(taken) = self.taken.get(number) {
                        taken.store(false, Relaxed);
                    }
                    self.set.put(number);
                }
            }
        }
    }

    impl WorkItem for Race {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            Race::run(&this);
            this.done.complete();
        }
    }

    /// This is what a command of the server was claimed twice by, when the claim was a load and a
    /// store. It needs two CPUs to be hit; on one it only takes the time.
    #[test]
    fn two_tasks_never_have_the_same() -> Result {
        let queue = OwnedQueue::new_unbound(c"farblk_kunit", WqFlags::MEM_RECLAIM, 1)?;
        let race = Arc::pin_init(
            try_pin_init!(Race {
                set: FreeSet::free(FEW)?,
                taken: [const { Atomic::new(false) }; FEW],
                twice: Atomic::new(0),
                done <- Completion::new(),
                work <- new_work!("Race::work"),
            }? Error),
            GFP_KERNEL,
        )?;
        let _ = queue.enqueue::<Arc<Race>, 0>(race.clone());
        Race::run(&race);
        race.done.wait();
        check!(race.twice.load(Relaxed) == 0);
        check!(race.set.count() == FEW);
        Ok(())
    }
}
