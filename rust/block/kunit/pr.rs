// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of persistent reservations.

use super::*;

#[kernel::macros::kunit_tests(farblk_block_pr)]
mod tests {
    use super::*;
    use crate::base::{
        errno::EOPNOTSUPP,
        owned_queue::{
            OwnedQueue,
            WqFlags, //
        }, //
    };
    use kernel::{
        error::to_result,
        ffi::c_int,
        impl_has_work, new_work,
        workqueue::{
            Work,
            WorkItem, //
        },
    };

    /// `PR_FL_IGNORE_KEY`.
    const IGNORE_KEY: u32 = 1;

    /// A disk that is open, and its functions.
    struct Reserved {
        disk: Disk,
        bdev: Bdev,
        ops: &'static bindings::pr_ops,
    }

    impl Reserved {
        fn new() -> Result<Self> {
            let disk = Disk::new()?;
            let bdev = disk.open(true)?;
            // SAFETY: A device that is open has a disk, and that has its table.
            let ops = unsafe { (*(*(*bdev.as_raw()).bd_disk).fops).pr_ops };
            // SAFETY: The table of these functions is a constant.
            let ops = unsafe { ops.cast::<bindings::pr_ops>().as_ref() };
            Ok(Self {
                disk,
                bdev,
                ops: ops.ok_or(ENOENT)?,
            })
        }

        fn register(&self, old: u64, new: u64, flags: u32) -> c_int {
            self.ops.pr_register.map_or(-1, |f| {
                // SAFETY: The device is open, and that of a disk that `build_numbered` has added;
                // this may sleep. The same holds below.
                unsafe { f(self.bdev.as_raw(), old, new, flags) }
            })
        }

        fn reserve(&self, key: u64, kind: u32, flags: u32) -> c_int {
            self.ops.pr_reserve.map_or(-1, |f| {
                // SAFETY: As above.
                unsafe { f(self.bdev.as_raw(), key, kind, flags) }
            })
        }

        fn release(&self, key: u64, kind: u32) -> c_int {
            self.ops.pr_release.map_or(-1, |f| {
                // SAFETY: As above.
                unsafe { f(self.bdev.as_raw(), key, kind) }
            })
        }

        fn preempt(&self, key: u64, victim: u64, kind: u32, abort: bool) -> c_int {
            self.ops.pr_preempt.map_or(-1, |f| {
                // SAFETY: As above.
                unsafe { f(self.bdev.as_raw(), key, victim, kind, abort) }
            })
        }

        fn clear(&self, key: u64) -> c_int {
            self.ops.pr_clear.map_or(-1, |f| {
                // SAFETY: As above.
                unsafe { f(self.bdev.as_raw(), key) }
            })
        }

        /// Reads the keys, into `room` places of the result.
        fn keys(&self, room: u32) -> Result<Keys> {
            check!(room as usize <= PR_KEYS_MAX + 1);
            let mut keys = Keys {
                info: bindings::pr_keys {
                    num_keys: room,
                    ..Default::default()
                },
                keys: [u64::MAX; PR_KEYS_MAX + 1],
            };
            let f = self.ops.pr_read_keys.ok_or(ENOENT)?;
            // SAFETY: As above. The keys are behind the struct, and there is room for so many.
            to_result(unsafe { f(self.bdev.as_raw(), (&raw mut keys).cast()) })?;
            Ok(keys)
        }

        /// Reads the reservation: its key, generation and type.
        fn reservation(&self) -> Result<(u64, u32, u32)> {
            let mut held = bindings::pr_held_reservation::default();
            let f = self.ops.pr_read_reservation.ok_or(ENOENT)?;
            // SAFETY: As above, and `held` is valid for writes.
            to_result(unsafe { f(self.bdev.as_raw(), &mut held) })?;
            Ok((held.key, held.generation, held.type_))
        }

        /// Sets what [`Ram::parse_pr_report`] gets.
        fn report(&self, bytes: &[u8]) {
            for (to, from) in self.disk.ram.state.lock().memory.iter_mut().zip(bytes) {
                *to = *from;
            }
        }
    }

    #[repr(C)]
    struct Keys {
        info: bindings::pr_keys,
        keys: [u64; PR_KEYS_MAX + 1],
    }

    #[test]
    fn change_comes_with_a_token_of_its_own() -> Result {
        let pr = Reserved::new()?;
        check!(pr.register(1, 2, 0) == 0);
        check!(pr.register(3, 4, IGNORE_KEY) == 0);
        check!(pr.reserve(5, 6, 0) == 0);
        check!(pr.release(7, 8) == 0);
        check!(pr.preempt(9, 10, 11, false) == 0);
        check!(pr.preempt(12, 13, 14, true) == 0);
        check!(pr.clear(15) == 0);
        let seen = pr.disk.seen()?;
        let changes = [
            PrChange::Register {
                old: 1,
                new: 2,
                ignore_old: false,
            },
            PrChange::Register {
                old: 3,
                new: 4,
                ignore_old: true,
            },
            PrChange::Reserve { key: 5, kind: 6 },
            PrChange::Release { key: 7, kind: 8 },
            PrChange::Preempt {
                key: 9,
                victim: 10,
                kind: 11,
                abort: false,
            },
            PrChange::Preempt {
                key: 12,
                victim: 13,
                kind: 14,
                abort: true,
            },
            PrChange::Clear { key: 15 },
        ];
        check!(seen.len() == changes.len());
        for (seen, change) in seen.iter().zip(changes) {
            check!(seen.command == Command::Reserve && seen.pr_change.0 == change);
        }
        for pair in seen.windows(2) {
            check!(pair[1].pr_change.1 == pair[0].pr_change.1.wrapping_add(1));
        }
        Ok(())
    }

    /// Clears the reservation, in a task of its own.
    #[pin_data]
    struct Clear {
        pr: Arc<Reserved>,
        #[pin]
        done: Completion,
        #[pin]
        work: Work<Clear>,
    }

    impl_has_work! {
        impl HasWork<Self> for Clear { self.work }
    }

    impl WorkItem for Clear {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            if this.pr.clear(1) == 0 {
                this.done.complete();
            }
        }
    }

    #[test]
    fn changes_come_one_by_one() -> Result {
        let pr = Arc::new(Reserved::new()?, GFP_KERNEL)?;
        let clear = || {
            let pr = pr.clone();
            Arc::pin_init(
                try_pin_init!(Clear {
                    pr,
                    done <- Completion::new(),
                    work <- new_work!("Clear::work"),
                }? Error),
                GFP_KERNEL,
            )
        };
        let queues = [
            OwnedQueue::new_ordered(c"farblk_kunit", WqFlags::MEM_RECLAIM)?,
            OwnedQueue::new_ordered(c"farblk_kunit", WqFlags::MEM_RECLAIM)?,
        ];
        let clears = [clear()?, clear()?];
        pr.disk.hold(true);
        for (queue, clear) in queues.iter().zip(&clears) {
            check!(queue.enqueue(clear.clone()).is_ok());
        }
        let came = pr.disk.event();
        a_while();
        let at_once = pr.disk.seen()?.len();
        pr.disk.hold(false);
        pr.disk.ram.release(Ok(()));
        for clear in &clears {
            clear.done.wait_timeout(TIMEOUT_MS)?;
        }
        check!(came == Ok(()) && at_once == 1 && pr.disk.seen()?.len() == 1);
        Ok(())
    }

    #[test]
    fn flags_that_are_not_known_are_refused() -> Result {
        let pr = Reserved::new()?;
        check!(pr.reserve(1, 1, IGNORE_KEY) == EOPNOTSUPP.to_errno());
        check!(pr.disk.seen()?.is_empty());
        Ok(())
    }

    #[test]
    fn conflict_is_the_status_of_scsi() -> Result {
        let pr = Reserved::new()?;
        pr.disk.result(Err(BlkError::ReservationConflict));
        let conflict = bindings::pr_status_PR_STS_RESERVATION_CONFLICT as c_int;
        check!(pr.reserve(1, 1, 0) == conflict && pr.clear(1) == conflict);
        pr.disk.result(Err(BlkError::IoError));
        check!(pr.reserve(1, 1, 0) == EIO.to_errno());
        check!(pr.keys(1).err() == Some(EIO));
        Ok(())
    }

    #[test]
    fn keys_are_those_that_there_is_room_for() -> Result {
        let pr = Reserved::new()?;
        pr.report(&[7, 3, 0, 0, 21, 22, 23]);
        for (room, known) in [
            (0, [u64::MAX; 4]),
            (2, [21, 22, u64::MAX, u64::MAX]),
            (3, [21, 22, 23, u64::MAX]),
            (4, [21, 22, 23, u64::MAX]),
        ] {
            let keys = pr.keys(room)?;
            // The caller is told how many there are.
            check!(keys.info.num_keys == 3 && keys.info.generation == 7);
            check!(keys.keys[..4] == known);
        }
        check!(pr
            .disk
            .seen()?
            .iter()
            .all(|seen| seen.command == Command::Report));
        Ok(())
    }

    #[test]
    fn report_of_more_keys_than_there_can_be_is_refused() -> Result {
        let pr = Reserved::new()?;
        let room = PR_KEYS_MAX as u32 + 1;
        pr.report(&[1, PR_KEYS_MAX as u8]);
        check!(pr.keys(room)?.info.num_keys == PR_KEYS_MAX as u32);
        for count in [PR_KEYS_MAX as u8 + 1, 255] {
            pr.report(&[1, count]);
            check!(pr.keys(room).err() == Some(EIO) && pr.reservation() == Err(EIO));
        }
        // One that the driver does not understand.
        pr.report(&[255, 1]);
        check!(pr.keys(room).err() == Some(EIO) && pr.reservation() == Err(EIO));
        Ok(())
    }

    #[test]
    fn reservation_is_that_of_the_report() -> Result {
        let pr = Reserved::new()?;
        pr.report(&[3, 1, 21, 5, 21]);
        check!(pr.reservation()? == (21, 3, 5));
        pr.report(&[4, 1, 0, 5, 21]);
        check!(pr.reservation()? == (0, 4, 0));
        Ok(())
    }
}
