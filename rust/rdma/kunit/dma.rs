// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of memory that is mapped for a device.

use super::*;

/// A mapping's entries: the sum of their lengths.
fn mapped_len(mapping: &SgMapping) -> usize {
    let (mut entry, count) = mapping.entries();
    let mut len = 0;
    for _ in 0..count {
        // SAFETY: There are so many entries.
        unsafe {
            len += bindings::sg_dma_len(entry) as usize;
            entry = bindings::sg_next(entry);
        }
    }
    len
}

#[kernel::macros::kunit_tests(farblk_rdma_dma)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_copied_to_other_memory() -> Result {
        with_device(|device, _| {
            let mut buffer = DmaBuffer::alloc(device, PAGE_SIZE, Direction::FromDevice)?;
            for at in 0..PAGE_SIZE {
                buffer.copy_in(at, &[9])?;
            }
            // In pieces of 512 bytes, the first of which lacks its first 256, and all their last 8.
            let block = Block {
                start: 256,
                gap: 8,
                ..Block::new(4, 512, 1)?
            };
            let room = 4 * 504 - 256;
            check!(buffer.copy_to(0, room + 1, &block) == Err(EINVAL));
            fill(&block.memory, 4 * 512, 1);
            check!(buffer.copy_to(0, 300, &block) == Ok(()));
            for (at, place) in bytes(&block.memory, 4 * 512).enumerate() {
                let copied = (256..504).contains(&at) || (512..512 + 52).contains(&at);
                // SAFETY: The place is in the block's memory, to which there are no references.
                check!(unsafe { place.read_volatile() } == if copied { 9 } else { 1 });
            }
            check!(
                buffer.copy_to(0, room, &block) == Ok(()) && buffer.copy_to(0, 0, &block) == Ok(())
            );
            let constant = Block {
                writable: false,
                ..block
            };
            check!(buffer.copy_to(0, 1, &constant) == Err(EINVAL));
            let small = DmaBuffer::alloc(device, 8, Direction::FromDevice)?;
            check!(small.copy_to(0, 9, &Block::new(1, 512, 1)?) == Err(EINVAL));
            Ok(())
        })
    }

    #[test]
    fn buffer_has_up_to_a_mebibyte() -> Result {
        with_device(|device, _| {
            for direction in [
                Direction::ToDevice,
                Direction::FromDevice,
                Direction::Bidirectional,
            ] {
                let alloc = |len| DmaBuffer::alloc(device, len, direction);
                check!(alloc(0).err() == Some(EINVAL));
                check!(alloc((1 << 20) + 1).err() == Some(EINVAL));
                check!(alloc(1 << 20)?.len() == 1 << 20);
                check!(alloc(1)?.len() == 1);
            }
            Ok(())
        })
    }

    #[test]
    fn buffer_is_zeroed_and_bounded() -> Result {
        with_device(|device, _| {
            let len = 3 * PAGE_SIZE + 5;
            let mut buffer = DmaBuffer::alloc(device, len, Direction::Bidirectional)?;
            let mut data = [1; 16];
            for at in (0..len - 16).step_by(16) {
                buffer.copy_out(at, &mut data)?;
                check!(data == [0; 16]);
            }
            buffer.copy_in(len - 16, &[7; 16])?;
            buffer.copy_out(len - 16, &mut data)?;
            check!(data == [7; 16]);
            for at in [len - 15, len, len + 1, usize::MAX] {
                check!(buffer.copy_in(at, &[8; 16]) == Err(EINVAL));
                check!(buffer.copy_out(at, &mut data) == Err(EINVAL));
            }
            buffer.copy_out(len - 16, &mut data)?;
            check!(data == [7; 16]);
            check!(buffer.copy_in(len, &[]).is_ok());
            Ok(())
        })
    }

    #[test]
    fn buffer_is_split_into_pieces_that_do_not_touch() -> Result {
        with_device(|device, _| {
            let alloc = || DmaBuffer::alloc(device, 2 * PAGE_SIZE + 50, Direction::ToDevice);
            for len in [1, 32, PAGE_SIZE, 2 * PAGE_SIZE + 50] {
                let pieces = alloc()?.split(len);
                let mut all = KVec::new();
                for piece in pieces.take(200) {
                    all.push(piece, GFP_KERNEL)?;
                }
                check!(all.len() == ((2 * PAGE_SIZE + 50) / len).min(200));
                for (index, piece) in all.iter_mut().enumerate() {
                    check!(piece.len() == len);
                    // CAST: Some byte.
                    let data = [index as u8; 1];
                    piece.copy_in(0, &data)?;
                    piece.copy_in(len - 1, &data)?;
                    check!(piece.copy_in(len, &data) == Err(EINVAL));
                }
                let mut end = 0;
                for (index, piece) in all.iter().enumerate() {
                    let mut data = [0; 1];
                    piece.copy_out(len - 1, &mut data)?;
                    check!(data == [index as u8]);
                    piece.copy_out(0, &mut data)?;
                    check!(data == [index as u8]);
                    check!(end == 0 || piece.addr() == end);
                    end = piece.addr() + len as u64;
                }
                // The pages stay until the last has gone.
                let last = all.pop().ok_or(EIO)?;
                drop(all);
                let mut data = [1; 1];
                last.copy_out(0, &mut data)?;
            }
            for len in [0, 2 * PAGE_SIZE + 51] {
                check!(alloc()?.split(len).count() == 0);
            }
            Ok(())
        })
    }

    #[test]
    fn memory_is_handed_out_in_pieces_inside() -> Result {
        with_device(|device, _| {
            let alloc = |len| DmaMemory::alloc(device, len, NumaNode::NO_NODE);
            check!(alloc(0).err() == Some(EINVAL));
            check!(alloc(DmaMemory::MAX + 1).err() == Some(EINVAL));
            check!(alloc(1)?.len() == PAGE_SIZE);
            let memory = alloc(DmaMemory::MAX)?;
            check!(memory.len() == DmaMemory::MAX);
            for (offset, len) in [
                (0, 0),
                (0, DmaMemory::MAX + 1),
                (DmaMemory::MAX, 1),
                (usize::MAX, 2),
                (2, usize::MAX),
            ] {
                check!(memory.piece(offset, len).err() == Some(EINVAL));
            }
            let whole = memory.piece(0, DmaMemory::MAX)?;
            check!(piece_is_full_of(&whole, 0));
            let mut piece = memory.piece(5 * PAGE_SIZE, 2 * PAGE_SIZE)?;
            check!(piece.addr() == whole.addr() + 5 * PAGE_SIZE as u64);
            fill_piece(&piece, 1);
            // It is where it should be, and keeps the memory.
            for (offset, byte) in [(4, 0), (5, 1), (6, 1), (7, 0)] {
                let page = memory.piece(offset * PAGE_SIZE, PAGE_SIZE)?;
                check!(piece_is_full_of(&page, byte));
            }
            drop((memory, whole));
            check!(piece.writable() && piece_is_full_of(&piece, 1));
            check!(piece.resize(0) == Err(EINVAL));
            let rest = (DmaMemory::MAX - 5 * PAGE_SIZE) as u32;
            check!(piece.resize(rest + 1) == Err(EINVAL));
            check!(piece.resize(rest) == Ok(()) && piece.len() == rest);
            check!(piece.resize(100) == Ok(()) && piece.len() == 100);
            check!(piece_bytes(&piece).count() == 100);
            Ok(())
        })
    }

    #[test]
    fn mapping_is_of_whole_pages_inside() -> Result {
        with_device(|device, _| {
            let memory = PageChunks::alloc(5 * PAGE_SIZE, NumaNode::NO_NODE)?;
            let map =
                |offset, len| SgMapping::map(device, &memory, offset, len, Direction::ToDevice);
            for (offset, len) in [
                (0, 0),
                (0, PAGE_SIZE - 1),
                (1, PAGE_SIZE),
                (0, 6 * PAGE_SIZE),
                (5 * PAGE_SIZE, PAGE_SIZE),
                (usize::MAX - PAGE_SIZE + 1, PAGE_SIZE),
            ] {
                check!(map(offset, len).err() == Some(EINVAL));
            }
            for (offset, len) in [
                (0, 5 * PAGE_SIZE),
                (4 * PAGE_SIZE, PAGE_SIZE),
                (PAGE_SIZE, 3 * PAGE_SIZE),
            ] {
                let mapping = map(offset, len)?;
                check!(mapping.len() == len && mapped_len(&mapping) == len);
                check!(mapping.page_size() >= PAGE_SIZE);
                check!(mapping.page_size().is_power_of_two());
                check!(device.has_page_size(mapping.page_size()));
            }
            // None of them holds the memory any more.
            check!(last(memory));
            Ok(())
        })
    }

    #[test]
    fn mapping_is_read_and_written_on_this_side() -> Result {
        with_device(|device, _| {
            // A chunk of four pages, and one of two. The last page is not mapped.
            let memory = PageChunks::alloc(6 * PAGE_SIZE, NumaNode::NO_NODE)?;
            let (offset, len) = (PAGE_SIZE, 4 * PAGE_SIZE);
            let mapping = SgMapping::map(device, &memory, offset, len, Direction::Bidirectional)?;
            // Across the end of the first chunk.
            let at = 3 * PAGE_SIZE - 3;
            check!(mapping.write(at, b"mapping") == Ok(()));
            let mut found = [0; 9];
            check!(mapping.read(at - 1, &mut found) == Ok(()) && found == *b"\0mapping\0");
            for (place, byte) in bytes(&memory, offset + at + 7)
                .skip(offset + at)
                .zip(b"mapping")
            {
                // SAFETY: The place is in the memory, to which there are no references.
                check!(unsafe { place.read_volatile() } == *byte);
            }
            for (at, count) in [(len, 1), (len - 8, 9), (usize::MAX, 1)] {
                let part = found.get_mut(..count).ok_or(EIO)?;
                check!(mapping.read(at, part) == Err(EINVAL));
                check!(mapping.write(at, part) == Err(EINVAL));
            }
            check!(mapping.write(len - 7, b"the end") == Ok(()));
            check!(mapping.read(len, &mut []) == Ok(()));
            Ok(())
        })
    }

    #[test]
    fn mapping_keeps_its_memory() -> Result {
        with_device(|device, _| {
            let memory = PageChunks::alloc(PAGE_SIZE, NumaNode::NO_NODE)?;
            let mapping = SgMapping::map(device, &memory, 0, PAGE_SIZE, Direction::ToDevice)?;
            check!(!last(memory));
            check!(last(mapping));
            Ok(())
        })
    }
}
