// SPDX-License-Identifier: GPL-2.0

//! The suite of the contents of memory that others may write.

#![allow(unsafe_code)]

#[kernel::macros::kunit_tests(farblk_contents)]
mod tests {
    use crate::{
        base::{
            contents::{
                copy,
                Contents, //
            },
            memory::NumaNode,
            scatterlist::{
                PageChunks,
                Segment,
                Segmented, //
            },
        },
        kunit::check, //
    };
    use core::ops::Range;
    use kernel::{
        page::PAGE_SIZE,
        prelude::*,
        sync::Arc, //
    };

    /// The bytes that pieces and what is between them have at most.
    const ROOM: usize = 64;

    /// Pieces of a page.
    struct Pieces {
        memory: Arc<PageChunks>,
        segments: KVec<Segment>,
        writable: bool,
    }

    // SAFETY: The segments are of `memory`, and do not change. There are no references to it.
    unsafe impl Segmented for Pieces {
        fn writable(&self) -> bool {
            self.writable
        }

        fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
            self.segments.iter().copied()
        }
    }

    impl Pieces {
        /// Makes pieces of these lengths, with a byte between two of them. Each byte of them is
        /// `fill` of its place among the bytes of all pieces.
        fn new(lens: &[usize], fill: impl Fn(usize) -> u8) -> Result<Self> {
            let memory = PageChunks::alloc(PAGE_SIZE, NumaNode::NO_NODE)?;
            let (mut segments, mut offset) = (KVec::new(), 0);
            for len in lens {
                for segment in memory.segments(offset, *len) {
                    segments.push(segment, GFP_KERNEL)?;
                }
                offset += len + 1;
            }
            for segment in memory.segments(0, ROOM) {
                // SAFETY: The segment is of `memory`, to which there are no references.
                unsafe { Contents::new(segment) }.write(&image(lens, &fill))?;
            }
            Ok(Self {
                memory,
                segments,
                writable: true,
            })
        }

        /// Returns true if the bytes are these, in order, and what is between the pieces is zero.
        fn are(&self, lens: &[usize], byte: impl Fn(usize) -> u8) -> Result<bool> {
            let mut bytes = [0; ROOM];
            for segment in self.memory.segments(0, ROOM) {
                // SAFETY: As in `new()`.
                unsafe { Contents::new(segment) }.read(&mut bytes)?;
            }
            Ok(bytes == image(lens, byte))
        }
    }

    /// Returns the memory of such pieces.
    fn image(lens: &[usize], byte: impl Fn(usize) -> u8) -> [u8; ROOM] {
        let mut image = [0; ROOM];
        let (mut offset, mut place) = (0, 0);
        for len in lens {
            for to in image.iter_mut().skip(offset).take(*len) {
                *to = byte(place);
                place += 1;
            }
            offset += len + 1;
        }
        image
    }

    /// Where the pieces begin and end is not the same in both.
    #[test]
    fn pieces_are_copied_to_other_pieces() -> Result {
        const SUM: usize = 31;
        let divisions: [&[usize]; 6] = [
            &[31],
            &[1, 30],
            &[30, 1],
            &[7, 1, 1, 9, 13],
            &[8, 8, 8, 7],
            &[16, 15],
        ];
        // CAST: Both are small.
        let (old, new) = (|_| 0xee, |place: usize| 1 + place as u8);
        for from in divisions {
            for to in divisions {
                for len in [0, 1, 7, 8, 9, 30, SUM] {
                    let source = Pieces::new(from, new)?;
                    let target = Pieces::new(to, old)?;
                    copy(len, &source, &target)?;
                    let wanted = |place| if place < len { new(place) } else { old(place) };
                    check!(target.are(to, wanted)?);
                    check!(source.are(from, new)?);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn nothing_beyond_the_end_is_copied() -> Result {
        let old = |_| 0xee;
        let cases: [(&[usize], &[usize]); 4] =
            [(&[3, 4], &[8]), (&[8], &[3, 4]), (&[], &[8]), (&[8], &[])];
        for (from, to) in cases {
            let (source, target) = (Pieces::new(from, |_| 1)?, Pieces::new(to, old)?);
            check!(copy(8, &source, &target) == Err(EINVAL));
            // What is between the pieces, and behind them, is as it was.
            let sum = to.iter().sum::<usize>().min(from.iter().sum());
            check!(target.are(to, |place| if place < sum { 1 } else { 0xee })?);
        }
        let mut target = Pieces::new(&[8], old)?;
        target.writable = false;
        check!(copy(8, &Pieces::new(&[8], |_| 1)?, &target) == Err(EINVAL));
        check!(target.are(&[8], old)?);
        Ok(())
    }

    #[test]
    fn parts_are_inside() -> Result {
        let pieces = Pieces::new(&[8], |place| place as u8)?;
        for segment in pieces.segments() {
            // SAFETY: As in `new()`.
            let whole = unsafe { Contents::new(segment) };
            let part = whole.part(2..7)?.part(1..3)?;
            let mut bytes = [0; 2];
            part.read(&mut bytes)?;
            check!(part.len() == 2 && bytes == [3, 4]);
            let none = whole.part(8..8)?.len();
            check!(none == 0 && whole.part(0..9).is_err());
            // Not a range that is empty by mistake: its end is before its start.
            check!(whole.part(Range { start: 5, end: 4 }).is_err());
            check!(part.read(&mut [0; 3]).is_err() && part.write(&[0; 3]).is_err());
        }
        Ok(())
    }
}
