// SPDX-License-Identifier: GPL-2.0

//! The suite of memory in chunks, and of its segments.

#![allow(unsafe_code)]

#[kernel::macros::kunit_tests(farblk_scatterlist)]
mod tests {
    use crate::{
        base::{
            memory::{
                available_memory,
                total_memory,
                NumaNode, //
            },
            scatterlist::{
                PageChunks,
                PageChunksBuilder,
                Segment, //
            },
            sync::fatal_signal_pending, //
        },
        kunit::check, //
    };
    use kernel::{
        page::PAGE_SIZE,
        prelude::*, //
    };

    /// Returns true if the segments of a range are all of it, in whole chunks but for the ends.
    fn covers(memory: &PageChunks, offset: usize, len: usize) -> bool {
        let mut sum = 0;
        for segment in memory.segments(offset, len) {
            let end = segment.offset() as usize + segment.len() as usize;
            if segment.is_empty() || end > PageChunks::CHUNK {
                return false;
            }
            // Only the first begins within a chunk.
            if sum > 0 && segment.offset() != 0 {
                return false;
            }
            sum += segment.len() as usize;
        }
        sum == len
    }

    #[test]
    fn memory_is_whole_pages_that_exist() -> Result {
        for len in [0, 1, PAGE_SIZE - 1, PAGE_SIZE + 1] {
            check!(PageChunks::alloc(len, NumaNode::NO_NODE).err() == Some(EINVAL));
        }
        // More than there is: refused at once, and nothing is left of it.
        for len in [1 << 44, usize::MAX - PAGE_SIZE + 1] {
            check!(PageChunks::alloc(len, NumaNode::NO_NODE).err() == Some(ENOMEM));
        }
        Ok(())
    }

    #[test]
    fn memory_comes_piece_by_piece() -> Result {
        let len = 2 * PageChunks::CHUNK + 3 * PAGE_SIZE;
        let mut builder = PageChunksBuilder::new(len, NumaNode::NO_NODE)?;
        let (begun, mut steps) = (builder.len(), 0);
        check!(begun == 0 && builder.is_incomplete());
        while builder.is_incomplete() {
            let before = builder.len();
            builder.grow(PAGE_SIZE)?;
            check!(builder.len() > before);
            steps += 1;
        }
        check!(steps >= 4 && builder.len() == len);
        let memory = builder.finish()?;
        check!(covers(&memory, 0, len));
        // What is not complete is nothing, and is freed.
        let mut builder = PageChunksBuilder::new(len, NumaNode::NO_NODE)?;
        builder.grow(PageChunks::CHUNK)?;
        check!(builder.finish().err() == Some(EINVAL));
        check!(!fatal_signal_pending() && available_memory() <= total_memory());
        Ok(())
    }

    #[test]
    fn memory_is_in_chunks_and_zeroed() -> Result {
        let len = PageChunks::CHUNK + 5 * PAGE_SIZE;
        let memory = PageChunks::alloc(len, NumaNode::NO_NODE)?;
        check!(memory.chunk_size() == PAGE_SIZE);
        let mut bytes = KVec::from_elem(0xff, PAGE_SIZE, GFP_KERNEL)?;
        for offset in (0..len).step_by(PAGE_SIZE) {
            for contents in memory.contents(offset, PAGE_SIZE) {
                contents.read(&mut bytes)?;
                check!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(0xff);
            }
        }
        Ok(())
    }

    #[test]
    fn segments_are_the_range_or_nothing() -> Result {
        let len = PageChunks::CHUNK + 7 * PAGE_SIZE;
        let memory = PageChunks::alloc(len, NumaNode::NO_NODE)?;
        for (offset, part) in [
            (0, len),
            (0, 1),
            (len - 1, 1),
            (PageChunks::CHUNK, PAGE_SIZE),
            (PageChunks::CHUNK - 1, 2),
            (PageChunks::CHUNK + 3 * PAGE_SIZE + 5, 2 * PAGE_SIZE),
            (5, len - 10),
        ] {
            check!(covers(&memory, offset, part));
        }
        for (offset, part) in [
            (0, 0),
            (0, len + 1),
            (len, 1),
            (1, len),
            (usize::MAX, 2),
            (2, usize::MAX),
        ] {
            check!(memory.segments(offset, part).count() == 0);
        }
        Ok(())
    }

    #[test]
    fn segments_of_neighbours_do_not_overlap() -> Result {
        let pages = 12;
        let memory = PageChunks::alloc(pages * PAGE_SIZE, NumaNode::NO_NODE)?;
        let mut seen = KVec::new();
        for index in 0..pages {
            for contents in memory.contents(index * PAGE_SIZE, PAGE_SIZE) {
                let start = contents.as_ptr().addr();
                check!(contents.len() == PAGE_SIZE && !seen.contains(&start));
                seen.push(start, GFP_KERNEL)?;
            }
        }
        check!(seen.len() == pages);
        Ok(())
    }

    #[test]
    fn segments_go_on_in_their_page_only() -> Result {
        let memory = PageChunks::alloc(4 * PAGE_SIZE, NumaNode::NO_NODE)?;
        let page = memory.segments(0, 1).next().ok_or(EIO)?.page();
        // SAFETY: The page is one of `memory`.
        let at = |offset: usize, len| unsafe { Segment::new(page, offset as u32, len) };
        let mut segment = at(512, 512);
        let rest = PAGE_SIZE as u32 - 2048;
        check!(segment.append(&at(1024, 1024)) && segment.append(&at(2048, rest)));
        check!(segment.offset() == 512 && segment.len() == rest + 1536);
        // At the end of a page a segment ends.
        check!(!segment.ends_in_page() && !segment.append(&at(PAGE_SIZE, 512)));
        // The next page may be given as itself or by its distance from the first.
        let other = memory.segments(PAGE_SIZE, 1).next().ok_or(EIO)?;
        let mut long = at(0, PAGE_SIZE as u32 + 100);
        // SAFETY: As above.
        let next = unsafe { Segment::new(other.page(), other.offset() + 100, 8) };
        check!(long.append(&next));
        check!(!long.append(&at(PAGE_SIZE + 109, 8)) && !long.append(&at(PAGE_SIZE + 107, 8)));
        check!(long.len() == PAGE_SIZE as u32 + 108);
        Ok(())
    }

    #[test]
    fn any_node_is_online() -> Result {
        check!(NumaNode::NO_NODE.is_online() && NumaNode::new(0)?.is_online());
        check!(NumaNode::NO_NODE.as_raw() == -1 && NumaNode::new(0)?.as_raw() == 0);
        for node in [i32::MAX, 1 << 20, -1, -2, i32::MIN] {
            check!(NumaNode::new(node).is_err());
        }
        Ok(())
    }
}
