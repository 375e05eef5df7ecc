// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of block devices that are opened.

use crate::base::{
    debugfs::{
        Dir,
        Writer, //
    },
    owned_queue::{
        OwnedQueue,
        WqFlags, //
    }, //
};
use crate::block::kunit::*;
use core::ptr::NonNull;
use kernel::{
    fmt, impl_has_work, new_work,
    str::CString,
    workqueue::{
        Work,
        WorkItem, //
    },
};

/// Counts the deaths of a device.
struct Deaths {
    surprise: Atomic<u32>,
    announced: Atomic<u32>,
}

impl BdevEvents for Deaths {
    fn mark_dead(&self, surprise: bool) {
        let count = match surprise {
            true => &self.surprise,
            false => &self.announced,
        };
        count.fetch_add(1, Relaxed);
    }
}

/// Opens a device in the task of who reads the file.
#[pin_data]
struct Opener {
    path: CString,
    #[pin]
    opened: IrqSaveSpinLock<Option<Result<Bdev>>>,
}

impl Writer for Opener {
    fn write(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = Arc::new(NoEvents, GFP_KERNEL).map_err(|_| fmt::Error)?;
        let opened = Bdev::open(&self.path, true, events);
        // Dropping a device sleeps.
        let before = self.opened.lock().replace(opened);
        drop(before);
        Ok(())
    }
}

/// Ends what stays, some time later.
#[pin_data]
struct Later {
    ram: Arc<Ram>,
    #[pin]
    work: Work<Later>,
}

impl_has_work! {
    impl HasWork<Self> for Later { self.work }
}

impl WorkItem for Later {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        kernel::time::delay::fsleep(kernel::time::Delta::from_millis(100));
        this.ram.release(Ok(()));
    }
}

/// Announces the removal of a device, in a task of its own, as its driver does.
#[pin_data]
struct Remover {
    bdev: NonNull<bindings::block_device>,
    #[pin]
    done: Completion,
    #[pin]
    work: Work<Remover>,
}

// SAFETY: Block devices belong to no thread.
unsafe impl Send for Remover {}
// SAFETY: As above; the pointer is only copied.
unsafe impl Sync for Remover {}

impl_has_work! {
    impl HasWork<Self> for Remover { self.work }
}

impl WorkItem for Remover {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // SAFETY: Who made this keeps the device until this is done.
        unsafe { bindings::bdev_mark_dead(this.bdev.as_ptr(), false) };
        this.done.complete();
    }
}

/// Opens `path` in a task of the user.
fn open_by_path(path: CString) -> Result<Bdev> {
    let opener = pin_init!(Opener {
        path,
        opened <- new_irqsave_spinlock!(None),
    });
    let dir = Dir::new(c"farblk_kunit");
    let opener = KBox::pin_init(dir.read_only_file(c"open", opener), GFP_KERNEL)?;
    shell(c"[ -z \"$(cat /sys/kernel/debug/farblk_kunit/open)\" ]")?;
    let opened = opener.opened.lock().take();
    opened.ok_or(ENOENT)?
}

#[kernel::macros::kunit_tests(farblk_block_bdev)]
mod tests {
    use super::*;

    #[test]
    fn device_is_opened_by_its_path() -> Result {
        let disk = Disk::new()?;
        let path = |text| CString::try_from_fmt(fmt!("/dev/{}", text));
        if shell(c"test -b /dev/farblk_kunit0").is_err() {
            skip(c"there is no devtmpfs on /dev");
            return Ok(());
        }
        let bdev = open_by_path(path(disk.disk.name().to_str()?)?)?;
        check!(bdev.writable() && bdev.sectors() == (SIZE >> SECTOR_SHIFT) as u64);
        drop(bdev);
        check!(open_by_path(path("no-such-disk")?).err() == Some(ENOENT));
        check!(open_by_path(path("null")?).err() == Some(ENOTBLK));
        Ok(())
    }

    #[test]
    fn device_is_ours_alone() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        check!(disk.open(true).err() == Some(EBUSY));
        check!(disk.open(false).err() == Some(EBUSY));
        check!(disk.disk.claim() == Err(EBUSY));
        drop(bdev);
        let bdev = disk.open(false)?;
        check!(!bdev.writable());
        check!(disk.open(false).err() == Some(EBUSY));
        Ok(())
    }

    #[test]
    fn disk_that_is_claimed_is_not_opened() -> Result {
        let disk = Disk::new()?;
        disk.disk.claim()?;
        disk.disk.claim()?;
        check!(disk.open(false).err() == Some(ENXIO));
        Ok(())
    }

    #[test]
    fn device_is_told_from_others() -> Result {
        let disk = Disk::new()?;
        let id = disk.open(true)?.id();
        check!(id.is_same(&disk.open(false)?.id()));
        drop(disk);
        // It has the name, and may have the number.
        let disk = Disk::new()?;
        check!(!id.is_same(&disk.open(true)?.id()));
        Ok(())
    }

    #[test]
    fn device_is_flushed() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        check!(bdev.write_cache());
        bdev.flush()?;
        check!(disk
            .seen()?
            .iter()
            .any(|seen| seen.command == Command::Flush));
        disk.result(Err(BlkError::IoError));
        check!(bdev.flush() == Err(EIO));
        Ok(())
    }

    #[test]
    fn device_that_is_not_there_is_not_opened() -> Result {
        let events = Arc::new(NoEvents, GFP_KERNEL)?;
        // Major 0 has no devices.
        check!(Bdev::open_dev(7, true, events).err() == Some(ENXIO));
        Ok(())
    }

    #[test]
    fn holder_hears_of_the_end() -> Result {
        let new = || Deaths {
            surprise: Atomic::new(0),
            announced: Atomic::new(0),
        };
        let read = |deaths: &Deaths| {
            (
                deaths.surprise.load(Relaxed),
                deaths.announced.load(Relaxed),
            )
        };

        let disk = Disk::new()?;
        let deaths = Arc::new(new(), GFP_KERNEL)?;
        let bdev = Bdev::open_dev(disk.dev(), true, deaths.clone())?;
        check!(read(&deaths) == (0, 0));
        disk.disk.mark_dead();
        check!(read(&deaths) == (1, 0));
        let request = BioRequest::new(BioOp::Write, 0, PIECE as u32);
        let back = io(&bdev, Bio::new(1)?, request, Some(Pages::new(1)?))?;
        check!(back.result.is_err() && disk.seen()?.is_empty());
        drop((bdev, disk));

        let disk = Disk::new()?;
        let deaths = Arc::new(new(), GFP_KERNEL)?;
        let bdev = Bdev::open_dev(disk.dev(), true, deaths.clone())?;
        drop(disk);
        check!(read(&deaths) == (0, 1));
        drop(bdev);

        // Who has closed it does not hear of it.
        let disk = Disk::new()?;
        let deaths = Arc::new(new(), GFP_KERNEL)?;
        drop(Bdev::open_dev(disk.dev(), true, deaths.clone())?);
        drop(disk);
        check!(read(&deaths) == (0, 0));
        Ok(())
    }

    #[test]
    fn device_is_closed_after_its_bios() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let log = Log::new()?;
        disk.hold(true);
        let owner = Io {
            pages: Some(Pages::new(1)?),
            log: log.clone(),
        };
        let request = BioRequest::new(BioOp::Read, 0, PIECE as u32);
        Bio::new(1)?.submit(&bdev, request, owner);
        disk.event()?;
        let queue = OwnedQueue::new_ordered(c"farblk_kunit", WqFlags::MEM_RECLAIM)?;
        let ram = disk.ram.clone();
        let later = Arc::pin_init(
            pin_init!(Later {
                ram,
                work <- new_work!("Later::work"),
            }),
            GFP_KERNEL,
        )?;
        let early = log.backs.lock().len();
        check!(queue.enqueue(later).is_ok());
        drop(bdev);
        let after = log.backs.lock().len();
        check!(early == 0 && after == 1);
        Ok(())
    }

    #[test]
    fn device_is_closed_after_its_events() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let whole = NonNull::new(bdev.as_raw()).ok_or(ENXIO)?;
        let write = CString::try_from_fmt(fmt!(
            "dd if=/dev/zero of=/dev/{} bs=4096 count=1 conv=notrunc 2>/dev/null",
            disk.disk.name().to_str()?
        ))?;
        disk.hold(true);
        if shell(&write).is_err() {
            skip(c"there is no devtmpfs on /dev");
            return Ok(());
        }
        let ram = disk.ram.clone();
        let later = Arc::pin_init(
            pin_init!(Later {
                ram,
                work <- new_work!("Later::work"),
            }),
            GFP_KERNEL,
        )?;
        let remover = Arc::pin_init(
            pin_init!(Remover {
                bdev: whole,
                done <- Completion::new(),
                work <- new_work!("Remover::work"),
            }),
            GFP_KERNEL,
        )?;
        let queue = OwnedQueue::new_ordered(c"farblk_kunit", WqFlags::MEM_RECLAIM)?;
        let removal = OwnedQueue::new_ordered(c"farblk_kunit_removal", WqFlags::MEM_RECLAIM)?;
        check!(removal.enqueue(remover.clone()).is_ok());
        // The remover writes the page, and so sleeps inside the event.
        let written = disk.event();
        let early = disk.ram.state.lock().held.len();
        check!(queue.enqueue(later).is_ok());
        drop(bdev);
        let late = disk.ram.state.lock().held.len();
        let removed = remover.done.wait_timeout(TIMEOUT_MS);
        check!(written == Ok(()) && removed == Ok(()));
        check!(early == 1 && late == 0);
        Ok(())
    }

    #[test]
    fn bio_based_device_works_too() -> Result {
        // The first RAM disk of the kernel.
        let events = Arc::new(NoEvents, GFP_KERNEL)?;
        let Ok(bdev) = Bdev::open_dev(1 << 20, false, events) else {
            skip(c"there is no /dev/ram0 that nobody uses");
            return Ok(());
        };
        check!(bdev.is_bio_based());
        let request = BioRequest::new(BioOp::Read, 0, 4 * PIECE as u32);
        let back = io(&bdev, Bio::new(4)?, request, Some(Pages::new(4)?))?;
        check!(back.result == Ok(()));
        Ok(())
    }
}
