// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of I/O on block devices.

use super::*;

/// The size of a piece of memory, as the length of I/O.
const LEN: u32 = PIECE as u32;

/// Writes pages with a pattern.
fn write(bdev: &Bdev, sector: u64, count: usize, seed: u8) -> Result {
    let mut pages = Pages::new(count)?;
    pages.fill(seed);
    let request = BioRequest::new(BioOp::Write, sector, count as u32 * LEN);
    let back = io(bdev, Bio::new(count)?, request, Some(pages))?;
    check!(back.result == Ok(()));
    Ok(())
}

/// Reads pages.
fn read(bdev: &Bdev, sector: u64, count: usize) -> Result<Pages> {
    let request = BioRequest::new(BioOp::Read, sector, count as u32 * LEN);
    let back = io(bdev, Bio::new(count)?, request, Some(Pages::new(count)?))?;
    check!(back.result == Ok(()));
    back.pages.ok_or(EINVAL)
}

#[kernel::macros::kunit_tests(farblk_block_bio)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        write(&bdev, 8, 3, 1)?;
        write(&bdev, 64, 1, 2)?;
        check!(read(&bdev, 8, 3)?.matches(1, 3 * PIECE));
        check!(read(&bdev, 64, 1)?.matches(2, PIECE));
        check!(read(&bdev, 0, 1)?.all(0) && read(&bdev, 32, 1)?.all(0));
        Ok(())
    }

    #[test]
    fn only_the_first_bytes_of_memory_are_used() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let mut pages = Pages::new(4)?;
        pages.fill(3);
        let len = LEN + 512;
        let request = BioRequest::new(BioOp::Write, 0, len);
        let back = io(&bdev, Bio::new(4)?, request, Some(pages))?;
        check!(back.result == Ok(()));
        let mut pages = read(&bdev, 0, 2)?;
        check!(pages.matches(3, len as usize) && !pages.matches(3, len as usize + 1));
        // The rest of the memory stays as it is.
        let mut pages = Pages::new(2)?;
        pages.fill(4);
        let request = BioRequest::new(BioOp::Read, 0, 512);
        let back = io(&bdev, back.bio, request, Some(pages))?;
        let mut pages = back.pages.ok_or(EINVAL)?;
        let mut index = 0;
        let mut same = true;
        pages.visit(4, |byte, other| {
            let want = if index < 512 {
                pattern(3, index)
            } else {
                other
            };
            same &= *byte == want;
            index += 1;
        });
        check!(same);
        Ok(())
    }

    #[test]
    fn neighbours_are_one_piece() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let mut pages = Pages::new(64)?;
        pages.segments.reverse();
        pages.fill(5);
        let request = BioRequest::new(BioOp::Write, 0, 64 * LEN);
        let back = io(&bdev, Bio::new(1)?, request, Some(pages))?;
        check!(back.result == Ok(()));
        check!(read(&bdev, 0, 64)?.matches(5, 64 * PIECE));
        Ok(())
    }

    #[test]
    fn more_pieces_than_a_bio_has_are_several() -> Result {
        // As many segments as there are pieces, so that it is the bios that are split.
        let disk = Disk::with(
            Limits {
                max_hw_sectors: 8192,
                max_segments: 1024,
                ..plain()
            },
            0,
            32,
            0,
        )?;
        let bdev = disk.open(true)?;
        for count in [256, 257, 600] {
            disk.seen()?;
            write(&bdev, 16, count, count as u8)?;
            let seen = disk.seen()?;
            check!(seen.len() == count.div_ceil(256) || seen.len() == 1);
            let bytes = seen.iter().map(|seen| seen.bytes as usize).sum::<usize>();
            check!(bytes == count * PIECE);
            check!(read(&bdev, 16, count)?.matches(count as u8, count * PIECE));
        }
        Ok(())
    }

    #[test]
    fn one_part_that_fails_fails_all_of_it_once() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        disk.hold(true);
        let log = Log::new()?;
        let owner = Io {
            pages: Some(Pages::new(300)?),
            log: log.clone(),
        };
        let request = BioRequest::new(BioOp::Write, 0, 300 * LEN);
        Bio::new(300)?.submit(&bdev, request, owner);
        disk.event()?;
        check!(log.backs.lock().is_empty());
        let rq = {
            let mut state = disk.ram.state.lock();
            state.hold = false;
            state.held.pop()
        };
        rq.ok_or(EINVAL)?.complete(Err(BlkError::Medium));
        // The rest, if it came at all, is fine.
        disk.ram.release(Ok(()));
        let back = log.wait()?;
        check!(back.result == Err(BlkError::Medium));
        check!(log.done.wait_timeout(20) == Err(ETIMEDOUT));
        // All that it has is good for another one.
        let back = io(&bdev, back.bio, request, back.pages)?;
        check!(back.result == Ok(()));
        Ok(())
    }

    #[test]
    fn flush_reaches_a_cache() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let request = BioRequest::new(BioOp::Flush, u64::MAX, 7);
        let back = io(&bdev, Bio::new(0)?, request, None)?;
        check!(back.result == Ok(()));
        let seen = disk.seen()?;
        check!(seen.len() == 1 && seen[0].command == Command::Flush);
        disk.result(Err(BlkError::IoError));
        let back = io(&bdev, back.bio, request, None)?;
        check!(back.result == Err(BlkError::IoError));
        Ok(())
    }

    #[test]
    fn fua_and_preflush_reach_a_cache() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let plain = BioRequest::new(BioOp::Write, 8, LEN);
        let back = io(&bdev, Bio::new(1)?, plain, Some(Pages::new(1)?))?;
        let seen = disk.seen()?;
        check!(seen.len() == 1 && seen[0].command == Command::Write && !seen[0].fua);

        let fua = BioRequest { fua: true, ..plain };
        let back = io(&bdev, back.bio, fua, back.pages)?;
        check!(back.result == Ok(()));
        let seen = disk.seen()?;
        check!(seen.len() == 1 && seen[0].command == Command::Write && seen[0].fua);

        let preflush = BioRequest {
            preflush: true,
            ..plain
        };
        let back = io(&bdev, back.bio, preflush, back.pages)?;
        check!(back.result == Ok(()));
        let seen = disk.seen()?;
        check!(seen.len() == 2 && seen[0].command == Command::Flush);
        check!(seen[1].command == Command::Write && !seen[1].fua && seen[1].sector == 8);

        // A read has neither.
        let read = BioRequest {
            op: BioOp::Read,
            fua: true,
            preflush: true,
            ..plain
        };
        let back = io(&bdev, back.bio, read, back.pages)?;
        check!(back.result == Ok(()));
        let seen = disk.seen()?;
        check!(seen.len() == 1 && seen[0].command == Command::Read && !seen[0].fua);
        Ok(())
    }

    #[test]
    fn fua_is_a_flush_where_the_device_has_none() -> Result {
        let limits = Limits {
            fua: false,
            ..plain()
        };
        let disk = Disk::with(limits, 0, 4, 0)?;
        let bdev = disk.open(true)?;
        let request = BioRequest {
            fua: true,
            ..BioRequest::new(BioOp::Write, 8, LEN)
        };
        let back = io(&bdev, Bio::new(1)?, request, Some(Pages::new(1)?))?;
        check!(back.result == Ok(()));
        let seen = disk.seen()?;
        check!(seen.len() == 2);
        check!(seen[0].command == Command::Write && !seen[0].fua);
        check!(seen[1].command == Command::Flush);
        Ok(())
    }

    #[test]
    fn discard_and_zeroes_are_split_and_have_no_memory() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        write(&bdev, 0, 1, 6)?;
        write(&bdev, 3000, 1, 6)?;
        disk.seen()?;
        // Three times what the device takes at once.
        let discard = BioRequest::new(BioOp::Discard, 8, 3 * 1024 * 512);
        let back = io(&bdev, Bio::new(0)?, discard, None)?;
        check!(back.result == Ok(()));
        let seen = disk.seen()?;
        check!(seen.iter().all(|seen| seen.command == Command::Discard));
        check!(seen.iter().map(|seen| seen.bytes).sum::<u32>() == discard.bytes);
        check!(seen.len() >= 3);
        check!(read(&bdev, 8, 1)?.all(DISCARDED) && read(&bdev, 3072, 1)?.all(DISCARDED));
        check!(read(&bdev, 0, 1)?.matches(6, PIECE));

        for no_unmap in [false, true] {
            disk.seen()?;
            let zeroes = BioRequest {
                no_unmap,
                ..BioRequest::new(BioOp::WriteZeroes, 2048, 2 * 1024 * 512)
            };
            let back = io(&bdev, Bio::new(0)?, zeroes, None)?;
            check!(back.result == Ok(()));
            let seen = disk.seen()?;
            check!(seen.len() >= 2 && seen.iter().all(|seen| seen.no_unmap == no_unmap));
            check!(seen.iter().all(|seen| seen.command == Command::WriteZeroes));
        }
        check!(read(&bdev, 3000, 1)?.all(0) && read(&bdev, 8, 1)?.all(DISCARDED));
        Ok(())
    }

    #[test]
    fn secure_erase_is_split_and_has_no_memory() -> Result {
        let limits = Limits {
            max_secure_erase_sectors: 512,
            ..plain()
        };
        let disk = Disk::with(limits, 0, 4, 0)?;
        let bdev = disk.open(true)?;
        let erase = BioRequest::new(BioOp::SecureErase, 8, 2 * 512 * 512);
        let back = io(&bdev, Bio::new(0)?, erase, None)?;
        check!(back.result == Ok(()));
        let seen = disk.seen()?;
        check!(seen.len() >= 2);
        check!(seen.iter().all(|seen| seen.command == Command::SecureErase));
        check!(seen.iter().map(|seen| seen.bytes).sum::<u32>() == erase.bytes);
        check!(read(&bdev, 8, 1)?.all(DISCARDED) && read(&bdev, 0, 1)?.all(0));
        Ok(())
    }

    #[test]
    fn atomic_write_is_never_split() -> Result {
        let limits = Limits {
            atomic_write_unit_min: LEN,
            atomic_write_unit_max: 4 * LEN,
            atomic_write_boundary: 8 * LEN,
            ..plain()
        };
        let disk = Disk::with(limits, 0, 4, 0)?;
        let bdev = disk.open(true)?;
        let page_sectors = u64::from(LEN >> SECTOR_SHIFT);
        let at = |page: u64, pages| BioRequest {
            atomic: true,
            ..BioRequest::new(BioOp::Write, page * page_sectors, pages * LEN)
        };
        let mut bio = Bio::new(16)?;
        let mut pages = Some(Pages::new(8)?);
        for (request, result) in [
            (at(0, 1), Ok(())),
            (at(4, 4), Ok(())),
            // Larger than the device takes, and across its boundary.
            (at(0, 8), Err(BlkError::Invalid)),
            (at(6, 4), Err(BlkError::Invalid)),
        ] {
            let back = io(&bdev, bio, request, pages)?;
            check!(back.result == result);
            (bio, pages) = (back.bio, back.pages);
            let seen = disk.seen()?;
            check!(seen.len() == usize::from(result.is_ok()));
            check!(seen
                .iter()
                .all(|seen| seen.atomic && seen.bytes == request.bytes));
        }
        // Other writes are not atomic.
        let back = io(&bdev, bio, BioRequest::new(BioOp::Write, 0, LEN), pages)?;
        check!(back.result == Ok(()) && disk.seen()?.iter().all(|seen| !seen.atomic));
        // A device that has none.
        disk.disk.set_limits(plain())?;
        let back = io(&bdev, back.bio, at(0, 1), back.pages)?;
        check!(back.result == Err(BlkError::Invalid) && disk.seen()?.is_empty());
        Ok(())
    }

    #[test]
    fn what_the_device_cannot_is_not_supported() -> Result {
        let disk = Disk::with(Limits::default(), 0, 4, 0)?;
        let bdev = disk.open(true)?;
        for op in [BioOp::Discard, BioOp::WriteZeroes, BioOp::SecureErase] {
            let back = io(&bdev, Bio::new(0)?, BioRequest::new(op, 0, 512), None)?;
            check!(back.result == Err(BlkError::NotSupported));
        }
        check!(disk.seen()?.is_empty());
        Ok(())
    }

    #[test]
    fn what_can_never_be_is_invalid() -> Result {
        let limits = Limits {
            logical_block_size: 4096,
            physical_block_size: 4096,
            ..plain()
        };
        let disk = Disk::with(limits, 0, 4, 0)?;
        let bdev = disk.open(true)?;
        let mut bio = Bio::new(2)?;
        let mut pages = Some(Pages::new(4)?);
        for (op, sector, bytes) in [
            (BioOp::Read, 0, 0),
            (BioOp::Write, 0, 0),
            (BioOp::Discard, 0, 0),
            (BioOp::Read, 0, 512),
            (BioOp::Read, 1, 4096),
            (BioOp::Discard, 4, 4096),
            (BioOp::WriteZeroes, 0, 4095),
            // More memory than there is, and more pieces than there is room for.
            (BioOp::Read, 0, 5 * LEN),
            (BioOp::Write, 0, 3 * LEN),
            // The end wraps.
            (BioOp::Read, u64::MAX - 7, LEN),
            (BioOp::Discard, u64::MAX - 7, u32::MAX - 4095),
        ] {
            let back = io(&bdev, bio, BioRequest::new(op, sector, bytes), pages)?;
            check!(back.result == Err(BlkError::Invalid));
            (bio, pages) = (back.bio, back.pages);
        }
        // No memory, and memory that must not be written.
        let request = BioRequest::new(BioOp::Read, 0, LEN);
        let back = io(&bdev, bio, request, None)?;
        check!(back.result == Err(BlkError::Invalid));
        let mut pages = pages.ok_or(EINVAL)?;
        pages.writable = false;
        let back = io(&bdev, back.bio, request, Some(pages))?;
        check!(back.result == Err(BlkError::Invalid));
        check!(disk.seen()?.is_empty());
        // It may be read, and all is fine again.
        let request = BioRequest::new(BioOp::Write, 0, 2 * LEN);
        let back = io(&bdev, back.bio, request, back.pages)?;
        check!(back.result == Ok(()));
        Ok(())
    }

    #[test]
    fn beyond_the_end_is_an_error() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let end = bdev.sectors();
        let mut bio = Bio::new(1)?;
        let mut pages = Some(Pages::new(1)?);
        for sector in [end, end - 7, u64::MAX - 8, 1 << 55] {
            let request = BioRequest::new(BioOp::Write, sector, LEN);
            let back = io(&bdev, bio, request, pages)?;
            check!(back.result == Err(BlkError::IoError));
            (bio, pages) = (back.bio, back.pages);
        }
        check!(disk.seen()?.is_empty());
        Ok(())
    }

    #[test]
    fn device_opened_to_read_is_not_changed() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(false)?;
        let mut bio = Bio::new(1)?;
        for op in [BioOp::Write, BioOp::Discard, BioOp::WriteZeroes] {
            let back = io(
                &bdev,
                bio,
                BioRequest::new(op, 0, LEN),
                Some(Pages::new(1)?),
            )?;
            check!(back.result == Err(BlkError::Invalid));
            bio = back.bio;
        }
        check!(disk.seen()?.is_empty());
        // That changes nothing.
        let back = io(&bdev, bio, BioRequest::new(BioOp::Flush, 0, 0), None)?;
        let seen = disk.seen()?;
        check!(back.result.is_ok() && seen.len() == 1 && seen[0].command == Command::Flush);
        check!(read(&bdev, 0, 1)?.all(0));
        Ok(())
    }

    #[test]
    fn errors_of_the_device_come_back() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let mut bio = Bio::new(1)?;
        let mut pages = Some(Pages::new(1)?);
        for error in [
            BlkError::NotSupported,
            BlkError::Timeout,
            BlkError::NoSpace,
            BlkError::Transport,
            BlkError::Target,
            BlkError::ReservationConflict,
            BlkError::Medium,
            BlkError::Protection,
            BlkError::Resource,
            BlkError::IoError,
            BlkError::Again,
            BlkError::DevResource,
            BlkError::ZoneOpenResource,
            BlkError::ZoneActiveResource,
            BlkError::Offline,
            BlkError::DurationLimit,
            BlkError::Invalid,
        ] {
            disk.result(Err(error));
            let request = BioRequest::new(BioOp::Write, 0, LEN);
            let back = io(&bdev, bio, request, pages)?;
            check!(back.result == Err(error));
            (bio, pages) = (back.bio, back.pages);
        }
        Ok(())
    }

    #[test]
    fn batch_reaches_the_device_at_its_end() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        let log = Log::new()?;
        let submit = |sector| -> Result {
            let owner = Io {
                pages: Some(Pages::new(1)?),
                log: log.clone(),
            };
            let request = BioRequest::new(BioOp::Write, sector, LEN);
            Bio::new(1)?.submit(&bdev, request, owner);
            Ok(())
        };
        let inside = plugged(|| -> Result<usize> {
            for index in 0..4 {
                submit(index * 64)?;
            }
            let inside = disk.ram.state.lock().seen.len();
            Ok(inside)
        })?;
        for _ in 0..4 {
            check!(log.wait()?.result == Ok(()));
        }
        check!(inside == 0);
        let seen = disk.seen()?;
        let last = seen.iter().map(|seen| seen.last);
        check!(last.eq([false, false, false, true]));

        // Neighbours become one request.
        plugged(|| -> Result {
            for index in 0..4 {
                submit(index * 8)?;
            }
            Ok(())
        })?;
        for _ in 0..4 {
            check!(log.wait()?.result == Ok(()));
        }
        let seen = disk.seen()?;
        check!(seen.len() == 1 && seen[0].bytes == 4 * LEN);
        Ok(())
    }

    #[test]
    fn nowait_does_not_wait_for_a_tag() -> Result {
        let disk = Disk::with(plain(), 0, 2, 0)?;
        let bdev = disk.open(true)?;
        disk.hold(true);
        let log = Log::new()?;
        let request = BioRequest {
            nowait: true,
            ..BioRequest::new(BioOp::Read, 0, LEN)
        };
        for index in 0..2 {
            let owner = Io {
                pages: Some(Pages::new(1)?),
                log: log.clone(),
            };
            let request = BioRequest {
                sector: index * 64,
                ..request
            };
            Bio::new(1)?.submit(&bdev, request, owner);
            disk.event()?;
        }
        let request = BioRequest {
            sector: 128,
            ..request
        };
        let back = io(&bdev, Bio::new(1)?, request, Some(Pages::new(1)?))?;
        check!(back.result == Err(BlkError::Again));
        disk.hold(false);
        disk.ram.release(Ok(()));
        for _ in 0..2 {
            check!(log.wait()?.result == Ok(()));
        }
        let back = io(&bdev, back.bio, request, back.pages)?;
        check!(back.result == Ok(()));
        Ok(())
    }

    #[test]
    fn priorities_that_are_not_known_are_none() -> Result {
        let disk = Disk::new()?;
        let bdev = disk.open(true)?;
        // It looks the class up in an array.
        if shell(c"echo mq-deadline >/sys/block/farblk_kunit0/queue/scheduler").is_err() {
            skip(c"there is no scheduler that knows priorities");
            return Ok(());
        }
        let mut bio = Bio::new(1)?;
        let mut pages = Some(Pages::new(1)?);
        for ioprio in [0, 1 << 13, (3 << 13) | 7, 4 << 13, u16::MAX] {
            let request = BioRequest {
                ioprio,
                ..BioRequest::new(BioOp::Read, 0, LEN)
            };
            let back = io(&bdev, bio, request, pages)?;
            check!(back.result == Ok(()));
            (bio, pages) = (back.bio, back.pages);
        }
        Ok(())
    }
}
