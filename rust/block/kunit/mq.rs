// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of disks and their requests.

use super::*;

#[kernel::macros::kunit_tests(farblk_block_mq)]
mod tests {
    use super::*;
    use crate::base::owned_queue::{
        OwnedQueue,
        WqFlags, //
    };
    use kernel::{
        impl_has_work, new_work,
        workqueue::{
            Work,
            WorkItem, //
        },
    };

    fn limits() -> Limits {
        Limits {
            logical_block_size: 1024,
            physical_block_size: 4096,
            io_min: 8192,
            io_opt: 65536,
            max_hw_sectors: 512,
            max_discard_sectors: 2049,
            discard_granularity: 8192,
            discard_alignment: 4096,
            max_write_zeroes_sectors: u32::MAX >> SECTOR_SHIFT,
            chunk_sectors: 1024,
            write_cache: true,
            fua: true,
            rotational: true,
            ..plain()
        }
    }

    fn seen_as() -> BdevLimits {
        BdevLimits {
            logical_block_size: 1024,
            physical_block_size: 4096,
            aligned: true,
            io_min: 8192,
            io_opt: 65536,
            max_hw_sectors: 512,
            chunk_sectors: 1024,
            // Whole blocks of two sectors.
            max_discard_sectors: 2048,
            discard_granularity: 8192,
            discard_alignment: 4096,
            max_write_zeroes_sectors: (u32::MAX >> SECTOR_SHIFT) - 1,
            max_secure_erase_sectors: 0,
            atomic_write_unit_min: 0,
            atomic_write_unit_max: 0,
            atomic_write_boundary_sectors: 0,
            write_cache: true,
            fua: true,
            rotational: true,
            stable_writes: false,
            read_only: false,
        }
    }

    #[test]
    fn tag_set_is_on_a_node_that_exists() -> Result {
        // The last node that could be, unless it is the only one.
        let last = NumaNode::new(bindings::MAX_NUMNODES as i32 - 1)?;
        let tag_set = TagSetBuilder::new(1, 4).numa_node(last).build::<Ram>();
        let made = Arc::pin_init(tag_set, GFP_KERNEL);
        check!(made.is_ok() == last.is_online());
        check!(made.is_ok() || made.err() == Some(EINVAL));
        Ok(())
    }

    #[test]
    fn disk_without_identity_is_not_asked_for_it() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(false)?;
        // SAFETY: A device that is open has a disk, and that has its table.
        let get_unique_id = unsafe { (*(*(*bdev.as_raw()).bd_disk).fops).get_unique_id };
        check!(get_unique_id.is_none());
        Ok(())
    }

    #[test]
    fn limits_are_those_of_the_disk() -> Result {
        let disk = Disk::with(limits(), 0, 4, 0)?;
        let bdev = disk.open(true)?;
        check!(bdev.limits() == seen_as());
        check!(bdev.nowait() && !bdev.is_bio_based());
        check!(bdev.sectors() == (SIZE >> SECTOR_SHIFT) as u64);
        Ok(())
    }

    #[test]
    fn limits_change_under_a_user() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let before = bdev.limits();
        check!(before.write_cache && !before.rotational && before != seen_as());
        for bad in [
            Limits {
                logical_block_size: 0,
                ..limits()
            },
            Limits {
                physical_block_size: 512,
                ..limits()
            },
            Limits {
                max_segment_size: 512,
                ..limits()
            },
            Limits {
                chunk_sectors: 7,
                ..limits()
            },
            Limits {
                atomic_write_unit_min: 4096,
                ..limits()
            },
            Limits {
                atomic_write_unit_min: 4096,
                atomic_write_unit_max: 12288,
                ..plain()
            },
            Limits {
                atomic_write_unit_min: 4096,
                atomic_write_unit_max: 8192,
                atomic_write_boundary: 4096,
                ..plain()
            },
        ] {
            check!(disk.disk.set_limits(bad) == Err(EINVAL));
            check!(bdev.limits() == before);
        }
        disk.disk.set_limits(limits())?;
        check!(bdev.limits() == seen_as());
        // What is not a limit of the driver's stays.
        check!(bdev.nowait());
        disk.disk.set_limits(plain())?;
        check!(bdev.limits() == before);
        Ok(())
    }

    #[test]
    fn limits_of_atomic_writes_and_secure_erases() -> Result {
        let limits = Limits {
            atomic_write_unit_min: 1024,
            atomic_write_unit_max: 65536,
            atomic_write_boundary: 1 << 20,
            max_secure_erase_sectors: 1023,
            ..plain()
        };
        let disk = Disk::with(limits, 0, 4, 0)?;
        let bdev = disk.open(true)?;
        let seen = bdev.limits();
        check!(seen.atomic_write_unit_min == 1024 && seen.atomic_write_unit_max == 65536);
        check!(seen.atomic_write_boundary_sectors == 2048);
        check!(seen.max_secure_erase_sectors == 1023);
        disk.disk.set_limits(plain())?;
        let seen = bdev.limits();
        check!(seen.atomic_write_unit_min == 0 && seen.atomic_write_unit_max == 0);
        check!(seen.max_secure_erase_sectors == 0);
        Ok(())
    }

    #[test]
    fn cache_can_go_and_come() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let none = Limits {
            write_cache: false,
            ..plain()
        };
        disk.disk.set_limits(none)?;
        check!(!bdev.limits().write_cache && !bdev.limits().fua);
        let back = io(
            &bdev,
            Bio::new(0)?,
            BioRequest::new(BioOp::Flush, 0, 0),
            None,
        )?;
        check!(back.result == Ok(()) && disk.seen()?.is_empty());
        disk.disk.set_limits(plain())?;
        let back = io(&bdev, back.bio, BioRequest::new(BioOp::Flush, 0, 0), None)?;
        check!(back.result == Ok(()) && disk.seen()?.len() == 1);
        Ok(())
    }

    #[test]
    fn capacity_changes_under_a_user() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let sectors = bdev.sectors();
        check!(disk.disk.set_capacity(sectors) == Ok(false));
        check!(disk.disk.set_capacity(sectors / 2) == Ok(true));
        check!(bdev.sectors() == sectors / 2);
        for none in [u64::MAX, (i64::MAX as u64 >> SECTOR_SHIFT) + 1] {
            check!(disk.disk.set_capacity(none) == Err(EINVAL));
        }
        check!(bdev.sectors() == sectors / 2);
        let request = BioRequest::new(BioOp::Read, sectors / 2, PIECE as u32);
        let back = io(&bdev, Bio::new(1)?, request, Some(Pages::new(1)?))?;
        check!(back.result == Err(BlkError::IoError));
        check!(disk.disk.set_capacity(sectors) == Ok(true));
        let back = io(&bdev, back.bio, request, back.pages)?;
        check!(back.result == Ok(()));
        Ok(())
    }

    #[test]
    fn read_only_changes_under_a_user() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        disk.disk.set_read_only(true);
        check!(bdev.read_only() && bdev.limits().read_only);
        drop(bdev);
        check!(disk.open(true).err() == Some(EACCES));
        let bdev = disk.open(false)?;
        disk.disk.set_read_only(false);
        check!(!bdev.read_only());
        Ok(())
    }

    /// The tag set of the disk of a device.
    fn tag_set_of(bdev: &Bdev) -> &bindings::blk_mq_tag_set {
        // SAFETY: A device that is open has a disk with a queue. This has its tag set, of which
        // nothing changes that the tests look at.
        unsafe { &*(*(*(*bdev.as_raw()).bd_disk).queue).tag_set }
    }

    #[test]
    fn polled_queues_are_behind_the_others() -> Result {
        let new = |hw, polled| {
            let tag_set = TagSetBuilder::new(hw, 4).poll_queues(polled);
            KBox::pin_init(tag_set.build::<Ram>(), GFP_KERNEL)
        };
        check!(new(0, 0).err() == Some(EINVAL) && new(0, 1).err() == Some(EINVAL));
        check!(new(u32::MAX, 1).err() == Some(EINVAL));
        let disk = Disk::with(plain(), 3, 4, 0)?;
        let bdev = disk.open(false)?;
        let set = tag_set_of(&bdev);
        check!(set.nr_maps == 3 && set.nr_hw_queues == 4);
        let maps = set
            .map
            .each_ref()
            .map(|map| (map.queue_offset, map.nr_queues));
        check!(maps == [(0, 1), (0, 0), (1, 3)]);
        // SAFETY: There is an entry for every CPU, of which there is one at least.
        let (first, polled) = unsafe { (*set.map[0].mq_map, *set.map[2].mq_map) };
        check!(first == 0 && (1..4).contains(&polled));
        drop(bdev);
        drop(disk);
        let disk = Disk::new()?;
        let bdev = disk.open(false)?;
        let set = tag_set_of(&bdev);
        check!(set.nr_maps == 1 && set.nr_hw_queues == 1);
        Ok(())
    }

    /// Begins a read of the first page.
    fn submit(bdev: &Bdev) -> Result<Arc<Log>> {
        let log = Log::new()?;
        let owner = Io {
            pages: Some(Pages::new(1)?),
            log: log.clone(),
        };
        let request = BioRequest::new(BioOp::Read, 0, PIECE as u32);
        Bio::new(1)?.submit(bdev, request, owner);
        Ok(log)
    }

    /// Waits until something is true.
    fn wait_for(mut condition: impl FnMut() -> bool) -> Result {
        for _ in 0..TIMEOUT_MS {
            if condition() {
                return Ok(());
            }
            kernel::time::delay::fsleep(kernel::time::Delta::from_millis(1));
        }
        Err(ETIMEDOUT)
    }

    #[test]
    fn late_request_is_told_again_until_it_is_done() -> Result {
        let disk = Disk::with(plain(), 0, 4, 10)?;
        let bdev = disk.open(true)?;
        disk.hold(true);
        let log = submit(&bdev)?;
        // It came, was late, and was late again.
        for _ in 0..3 {
            disk.event()?;
        }
        check!(log.wait()?.result == Err(BlkError::Timeout));
        check!(disk.ram.state.lock().late == 2);
        Ok(())
    }

    #[test]
    fn late_request_can_wait_and_still_succeed() -> Result {
        let disk = Disk::with(plain(), 0, 4, 10)?;
        let bdev = disk.open(true)?;
        disk.hold(true);
        disk.ram.state.lock().patience = u32::MAX;
        let log = submit(&bdev)?;
        for _ in 0..5 {
            disk.event()?;
        }
        check!(log.backs.lock().is_empty() && disk.disk.in_flight() == 1);
        check!(disk.ram.release(Ok(())) == 1);
        check!(log.wait()?.result == Ok(()));
        // A bio ends before its request does.
        wait_for(|| disk.disk.in_flight() == 0)
    }

    #[test]
    fn no_request_comes_while_quiesced() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        // Any number of times is as good as one.
        disk.disk.unquiesce();
        for _ in 0..2 {
            disk.disk.quiesce();
            disk.disk.quiesce();
            let logs = [submit(&bdev)?, submit(&bdev)?];
            a_while();
            check!(disk.seen()?.is_empty());
            disk.disk.unquiesce();
            disk.disk.unquiesce();
            for log in logs {
                check!(log.wait()?.result == Ok(()));
            }
            check!(disk.seen()?.len() == 2);
        }
        Ok(())
    }

    /// Quiesces a disk and undoes it, some times, in a task of its own.
    #[pin_data]
    struct Switch {
        disk: Arc<Disk>,
        #[pin]
        done: Completion,
        #[pin]
        work: Work<Switch>,
    }

    impl_has_work! {
        impl HasWork<Self> for Switch { self.work }
    }

    impl WorkItem for Switch {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            for _ in 0..20 {
                this.disk.disk.quiesce();
                this.disk.disk.unquiesce();
            }
            this.done.complete();
        }
    }

    #[test]
    fn tasks_that_quiesce_at_once_do_not_count_twice() -> Result {
        let disk = Arc::new(Disk::new()?, GFP_KERNEL)?;
        let bdev = disk.open(true)?;
        let switch = || {
            let disk = disk.clone();
            Arc::pin_init(
                try_pin_init!(Switch {
                    disk,
                    done <- Completion::new(),
                    work <- new_work!("Switch::work"),
                }? Error),
                GFP_KERNEL,
            )
        };
        let queues = [
            OwnedQueue::new_ordered(c"farblk_kunit", WqFlags::MEM_RECLAIM)?,
            OwnedQueue::new_ordered(c"farblk_kunit", WqFlags::MEM_RECLAIM)?,
        ];
        let switches = [switch()?, switch()?];
        for (queue, switch) in queues.iter().zip(&switches) {
            check!(queue.enqueue(switch.clone()).is_ok());
        }
        for _ in 0..10 {
            check!(submit(&bdev)?.wait()?.result == Ok(()));
        }
        for switch in &switches {
            switch.done.wait_timeout(TIMEOUT_MS)?;
        }
        disk.seen()?;
        // Once is enough, for either.
        disk.disk.quiesce();
        let log = submit(&bdev)?;
        a_while();
        check!(disk.seen()?.is_empty());
        disk.disk.unquiesce();
        check!(log.wait()?.result == Ok(()));
        Ok(())
    }

    #[test]
    fn requests_in_flight_are_those_of_the_disk() -> Result {
        let names = names()?;
        let tag_set = TagSetBuilder::new(1, 4).no_sched_by_default().build();
        let tag_set = Arc::pin_init(tag_set, GFP_KERNEL)?;
        let disks = [
            Disk::of(plain(), names.clone(), tag_set.clone())?,
            Disk::of(plain(), names, tag_set)?,
        ];
        let bdevs = [disks[0].open(true)?, disks[1].open(true)?];
        // Should this fail, a disk ends what it holds before its device waits for that.
        let (disks, bdevs) = &(disks, bdevs);
        let in_flight = || (disks[0].disk.in_flight(), disks[1].disk.in_flight());
        disks[0].hold(true);
        disks[1].hold(true);
        let first = submit(&bdevs[0])?;
        disks[0].event()?;
        check!(in_flight() == (1, 0));
        let others = [submit(&bdevs[1])?, submit(&bdevs[1])?];
        disks[1].event()?;
        disks[1].event()?;
        check!(in_flight() == (1, 2));
        check!(disks[1].ram.release(Ok(())) == 2);
        for log in others {
            check!(log.wait()?.result == Ok(()));
        }
        // A bio ends before its request does.
        wait_for(|| in_flight() == (1, 0))?;
        check!(disks[0].ram.release(Ok(())) == 1);
        check!(first.wait()?.result == Ok(()));
        wait_for(|| in_flight() == (0, 0))
    }

    #[test]
    fn request_that_is_kept_may_end_while_quiesced_or_after_that() -> Result {
        for after in [false, true] {
            // It is late meanwhile, too.
            let disk = Disk::with(plain(), 0, 4, 10)?;
            let bdev = disk.open(true)?;
            disk.hold(true);
            disk.ram.state.lock().patience = u32::MAX;
            let kept = submit(&bdev)?;
            disk.event()?;
            disk.disk.quiesce();
            let waiting = submit(&bdev)?;
            disk.event()?;
            check!(disk.ram.state.lock().late >= 1);
            if after {
                disk.disk.unquiesce();
                wait_for(|| disk.ram.state.lock().held.len() == 2)?;
                check!(disk.ram.release(Ok(())) == 2);
            } else {
                check!(disk.ram.release(Ok(())) == 1);
            }
            check!(kept.wait()?.result == Ok(()));
            if !after {
                a_while();
                check!(waiting.backs.lock().is_empty() && disk.seen()?.len() == 1);
                disk.hold(false);
                disk.disk.unquiesce();
            }
            check!(waiting.wait()?.result == Ok(()));
        }
        Ok(())
    }

    #[test]
    fn removed_disk_may_be_quiesced() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        disk.hold(true);
        let kept = submit(&bdev)?;
        disk.event()?;
        disk.disk.quiesce();
        let waiting = submit(&bdev)?;
        drop(disk);
        check!(kept.wait()?.result == Ok(()) && waiting.wait()?.result == Ok(()));
        Ok(())
    }

    #[test]
    fn driver_hears_when_the_last_user_closes_the_disk() -> Result {
        let disk = Disk::new()?;
        let closes = || disk.ram.state.lock().closes;
        let bdev = disk.open(true)?;
        // What looked for partitions is closed by others, now or later, but it is not the last one.
        let before = closes();
        a_while();
        check!(closes() == before);
        drop(bdev);
        wait_for(|| closes() == before + 1)
    }

    #[test]
    fn user_space_hears_what_is_announced() -> Result {
        let disk = Disk::new()?;
        shell(c"cat /sys/kernel/uevent_seqnum >/tmp/farblk-uevents")?;
        disk.disk.announce(&[c"FARBLK_STATE=live"]);
        shell(c"test $(cat /sys/kernel/uevent_seqnum) -gt $(cat /tmp/farblk-uevents)")?;
        Ok(())
    }

    #[test]
    fn request_carries_its_data_and_counts_its_turns() -> Result {
        let disk = Disk::with(plain(), 0, 1, 0)?;
        let bdev = disk.open(true)?;
        let mut bio = Bio::new(1)?;
        let mut pages = Some(Pages::new(1)?);
        for sector in 0..4 {
            let request = BioRequest::new(BioOp::Write, sector * 8, PIECE as u32);
            let back = io(&bdev, bio, request, pages)?;
            check!(back.result == Ok(()));
            (bio, pages) = (back.bio, back.pages);
        }
        let seen = disk.seen()?;
        check!(seen.len() == 4);
        for pair in seen.windows(2) {
            check!(pair[0].tag == pair[1].tag);
            check!(pair[1].generation == pair[0].generation.wrapping_add(1));
        }
        check!(seen.iter().all(|seen| seen.mark == MARK && seen.queue == 0));
        Ok(())
    }

    #[test]
    fn polled_request_ends_when_polled() -> Result {
        let disk = Disk::with(plain(), 1, 4, 0)?;
        let bdev = disk.open(true)?;
        let pages = Pages::new(1)?;
        let segment = pages.segments().next().ok_or(EINVAL)?;
        let mut bio = core::mem::MaybeUninit::<bindings::bio>::uninit();
        let mut vec = core::mem::MaybeUninit::<bindings::bio_vec>::uninit();
        let opf = bindings::req_op_REQ_OP_READ | 1 << bindings::req_flag_bits___REQ_POLLED;

        /// # Safety
        ///
        /// Called by C only, for the bio below.
        unsafe extern "C" fn end_io(bio: *mut bindings::bio) {
            // SAFETY: It has ended; the word that it points to is still waited for.
            unsafe { (*(*bio).bi_private.cast::<Atomic<i32>>()).store(1, Relaxed) };
        }

        let ended = Atomic::new(0i32);
        let bio = bio.as_mut_ptr();
        // SAFETY: All that the bio refers to stays until it has ended: this returns only then.
        unsafe {
            bindings::bio_init(bio, bdev.as_raw(), vec.as_mut_ptr(), 1, opf);
            let added = bindings::bio_add_page(bio, segment.page().as_ptr(), segment.len(), 0);
            check!(added as u32 == segment.len());
            (*bio).bi_private = (&raw const ended).cast_mut().cast();
            (*bio).bi_end_io = Some(end_io);
            bindings::submit_bio(bio);
        }
        disk.event()?;
        let early = ended.load(Relaxed);
        // SAFETY: The bio is in flight. It ends when it is polled, or when what stays is released.
        unsafe { bindings::bio_poll(bio, core::ptr::null_mut(), 0) };
        let polled = ended.load(Relaxed);
        let left = disk.ram.release(Ok(()));
        while ended.load(Relaxed) == 0 {
            kernel::time::delay::fsleep(kernel::time::Delta::from_millis(1));
        }
        // SAFETY: It has ended.
        unsafe { bindings::bio_uninit(bio) };
        check!(early == 0 && polled == 1 && left == 0);
        let seen = disk.seen()?;
        check!(seen.len() == 1 && seen[0].queue == 1);
        Ok(())
    }

    #[test]
    fn removed_disk_waits_for_its_requests() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        disk.hold(true);
        let log = submit(&bdev)?;
        disk.event()?;
        // Lets what stays go, then waits.
        drop(disk);
        check!(log.backs.lock().len() == 1);
        check!(log.wait()?.result == Ok(()));
        // The device is still open, but gone.
        let request = BioRequest::new(BioOp::Read, 0, PIECE as u32);
        let back = io(&bdev, Bio::new(1)?, request, Some(Pages::new(1)?))?;
        check!(back.result.is_err());
        Ok(())
    }
}
