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
    fn mapping_is_of_whole_pages_inside() -> Result {
        with_device(|device, _| {
            let memory = PageChunks::alloc(5 * PAGE_SIZE, -1)?;
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
    fn mapping_keeps_its_memory() -> Result {
        with_device(|device, _| {
            let memory = PageChunks::alloc(PAGE_SIZE, -1)?;
            let mapping = SgMapping::map(device, &memory, 0, PAGE_SIZE, Direction::ToDevice)?;
            check!(!last(memory));
            check!(last(mapping));
            Ok(())
        })
    }
}
