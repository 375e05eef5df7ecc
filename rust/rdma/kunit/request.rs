// SPDX-License-Identifier: GPL-2.0
// Long: all that becomes of a request.

//! KUnit suites of requests: when they come back, and what the peer may do until then.

use crate::base::errno::{
    EPROTO,
    ESHUTDOWN, //
};
use crate::rdma::kunit::*;

pub(super) const CAPS: RequestCaps = RequestCaps {
    qp: QpCaps {
        slots: 8,
        send_wr: 16,
        recv_wr: 8,
        sges: 4,
        large: 1,
    },
    regions: 4,
    region_pages: 4,
    large_regions: 0,
    large_region_pages: 0,
};

/// With regions so small that a request of a few pages takes the large one.
const LARGE: RequestCaps = RequestCaps {
    region_pages: 2,
    large_regions: 1,
    large_region_pages: 4,
    ..CAPS
};

/// The kinds of a near side that sends requests.
const KINDS: [Option<(bool, bool)>; 2] = [None, Some((true, false))];

/// Runs a test with pairs whose near side posts receives for answers, and the far one for requests.
fn with_requests(test: impl Fn(&Pair) -> Result) -> Result {
    with_requests_of(CAPS, test)
}

/// Like [`with_requests`], with pairs of other sizes.
fn with_requests_of(caps: RequestCaps, test: impl Fn(&Pair) -> Result) -> Result {
    for direct in KINDS {
        with_pair_of(caps, Kind { direct, srq: None }, |pair| {
            for number in 0..CAPS.qp.recv_wr {
                posted(pair.near.qp.recv(pair.answer()?))?;
                posted(pair.far.qp.recv(pair.landing(number, 64)?))?;
            }
            test(&pair)
        })?;
    }
    Ok(())
}

/// Takes the request that must be back, and be fine.
pub(super) fn back(pair: &Pair) -> Result<u32> {
    let (owner, result) = pair.near.events.sends.take()?;
    result.map_err(|error| error.to_error())?;
    Ok(owner.number)
}

#[kernel::macros::kunit_tests(farblk_rdma_request)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_when_it_is_answered() -> Result {
        with_requests(|pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            for slot in [1, 5] {
                pair.request(slot, Carry::Nothing, &block, true)?;
                // CAST: A small number.
                check!(pair.requested()? == slot as u8);
                a_while();
                check!(pair.near.events.sends.len() == 0);
                let landing = pair.replied(Reply::default(), pair.message(0, 1, slot as u8)?)?;
                check!(landing.answer == Some(Ok(())) && !landing.invalidated);
                check!(back(pair)? == slot.into());
            }
            check!(pair.near.events.errors.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn probes_change_nothing() -> Result {
        with_requests(|pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            pair.request(1, Carry::Access(RdmaOp::Read), &block, true)?;
            check!(pair.requested()? == 1);
            for _ in 0..8 {
                pair.near.qp.probe();
                a_while();
            }
            check!(pair.near.events.sends.len() == 0 && pair.near.qp.invalidations() == 0);
            check!(pair.far.events.recvs.len() == 0);
            pair.replied(Reply::default(), pair.message(0, 1, 1)?)?;
            check!(back(pair)? == 1);
            check!(pair.near.events.errors.load(Relaxed) == 0);
            check!(pair.far.events.errors.load(Relaxed) == 0);
            Ok(())
        })
    }

    /// Also on a queue pair that has sent nothing else, and whose sends complete in a queue that
    /// nobody looks at.
    #[test]
    fn probes_are_drained() -> Result {
        for direct in [None, Some((true, false))] {
            with_pair_of(CAPS, Kind { direct, srq: None }, |pair| {
                pair.far.qp.fail();
                pair.near.qp.probe();
                check!(pair.near.qp.ulp.probing.load(Relaxed));
                check!(pair.near.qp.drain().is_ok());
                check!(!pair.near.qp.ulp.probing.load(Relaxed));
                Ok(())
            })?;
        }
        Ok(())
    }

    #[test]
    fn carries_its_memory_behind_the_message() -> Result {
        with_requests(|pair| {
            let device = pair.pd.device();
            // The message is a segment, too.
            let pieces = 3.min(device.limits().max_send_sge as usize - 1);
            let block = Block::new(pieces, 512, 7)?;
            let memory = DmaMemory::alloc(device, PAGE_SIZE, device.numa_node())?;
            let (message, piece) = (pair.landing(9, 32)?, memory.piece(512, 2048)?);
            let landing = Landing {
                piece: Some(piece),
                ..message
            };
            // The others are used up first.
            for slot in 0..8 {
                pair.request(slot % 4, Carry::Nothing, &block, true)?;
                let slot = pair.requested()?;
                pair.replied(Reply::default(), pair.message(0, 1, slot)?)?;
                posted(pair.near.qp.recv(pair.answer()?))?;
                back(pair)?;
            }
            posted(pair.far.qp.recv(landing))?;
            pair.request(6, Carry::Inline, &block, true)?;
            let (landing, result) = pair.far.events.recvs.take()?;
            check!(landing.number == 9 && result == Ok(32 + block.len as u32));
            let mut message = [1; 32];
            landing.buffer.copy_out(0, &mut message)?;
            check!(message.iter().skip(1).all(|byte| *byte == 0) && message[0] == 6);
            let piece = landing.piece.ok_or(EIO)?;
            check!(piece_is_full_of(&memory.piece(512, block.len)?, 7));
            check!(
                piece_is_full_of(&memory.piece(512 + block.len, 512)?, 0) && piece.len() == 2048
            );
            check!(piece_is_full_of(&memory.piece(0, 512)?, 0));
            pair.replied(Reply::default(), pair.message(0, 1, 6)?)?;
            check!(back(pair)? == 6);
            Ok(())
        })
    }

    #[test]
    fn may_be_answered_with_data_alone() -> Result {
        with_requests(|pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            pair.request(3, Carry::Nothing, &block, true)?;
            check!(pair.requested()? == 3);
            let data = pair.reply(0, 64, 9)?;
            let landing = pair.replied(Reply::with_immediate(3), data)?;
            check!(landing.immediate == Some(3) && landing.answer == Some(Ok(())));
            let mut bytes = [0; 64];
            landing.buffer.copy_out(0, &mut bytes)?;
            check!(bytes == [9; 64]);
            check!(back(pair)? == 3);
            // What is no message alone.
            let others = Reply {
                invalidate: Some(7),
                ..Reply::with_immediate(3)
            };
            let refused = pair.far.qp.reply(0, others, pair.reply(0, 64, 9)?, true);
            check!(refused.err().map(|(error, _)| error) == Some(EINVAL));
            Ok(())
        })
    }

    /// What the caller learns of a request is that of another one, unless the generation is right.
    #[test]
    fn is_asked_for_by_its_generation() -> Result {
        with_requests(|pair| {
            let near = &pair.near;
            let block = Block::new(1, PAGE_SIZE, 1)?;
            let mut last = None;
            for _ in 0..3 {
                let mut generation = 0;
                let prepare = |_: &mut Owner, ask: Ask| {
                    generation = ask.generation;
                    check!(ask.range.is_none());
                    Ok(())
                };
                let owner = Owner {
                    block: Some(block.clone()),
                    ..pair.message(3, 32, 3)?
                };
                check!(!near.qp.asks(3, |_| true) && !near.qp.asks(u16::MAX, |_| true));
                posted(near.qp.request(3, Carry::Nothing, owner, prepare, true))?;
                check!(last != Some(generation));
                let is_it = |of: u32| of == generation;
                check!(near.qp.asks(3, is_it) && !near.qp.asks(3, |of| !is_it(of)));
                check!(!near.qp.asks(2, |_| true));
                check!(near.answered_if(3, None, |of| !is_it(of)) == Err(EINVAL));
                pair.requested()?;
                check!(near.answered_if(3, None, is_it) == Ok(()));
                check!(!near.qp.asks(3, is_it));
                check!(back(pair)? == 3);
                last = Some(generation);
                let again = pair.landing(1, 32)?;
                posted(pair.far.qp.recv(again))?;
            }
            Ok(())
        })
    }

    /// The key of the request before it in its slot is none of its own.
    #[test]
    fn has_no_key_if_it_lends_nothing() -> Result {
        with_requests(|pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            let range = pair.request(0, Carry::Access(RdmaOp::Write), &block, true)?;
            pair.requested()?;
            check!(pair.near.answered(0, None) == Ok(()));
            check!(back(pair)? == 0);
            pair.request(0, Carry::Nothing, &block, true)?;
            pair.requested()?;
            check!(pair.near.answered(0, Some(range.rkey)) == Err(EPROTO));
            check!(pair.near.qp.has_failed());
            Ok(())
        })
    }

    #[test]
    fn lets_the_peer_write_until_it_invalidates() -> Result {
        with_requests(|pair| {
            let block = Block::new(3, PAGE_SIZE, 1)?;
            let carry = Carry::Access(RdmaOp::Write);
            let range = pair.request(2, carry, &block, true)?;
            check!(pair.requested()? == 2);
            let reply = Reply {
                write: Some(range),
                invalidate: Some(range.rkey),
                ..Reply::default()
            };
            let landing = pair.replied(reply, pair.reply(2, 3 * PAGE_SIZE, 9)?)?;
            check!(landing.invalidated && landing.answer == Some(Ok(())));
            check!(back(pair)? == 2);
            check!(is_full_of(&block.memory, 3 * PAGE_SIZE, 9));
            check!(pair.far.qp.completions() == 2);
            // It has no access any more.
            let (_, done) = pair.far_rdma(RdmaOp::Write, range, pair.reply(2, 512, 3)?)?;
            check!(!done && is_full_of(&block.memory, 3 * PAGE_SIZE, 9));
            Ok(())
        })
    }

    #[test]
    fn lets_the_peer_read_until_it_has_answered() -> Result {
        with_requests(|pair| {
            let block = Block {
                writable: false,
                ..Block::new(3, PAGE_SIZE, 6)?
            };
            let carry = Carry::Access(RdmaOp::Read);
            let range = pair.request(2, carry, &block, true)?;
            check!(pair.requested()? == 2);
            let (owner, done) =
                pair.far_rdma(RdmaOp::Read, range, pair.reply(2, 2 * PAGE_SIZE, 0)?)?;
            check!(done && piece_is_full_of(owner.piece.as_ref().ok_or(EIO)?, 6));
            // Nothing is invalidated by the peer, so that it is done here.
            let landing = pair.replied(Reply::default(), owner)?;
            check!(!landing.invalidated && landing.answer == Some(Ok(())));
            check!(back(pair)? == 2);
            let (mut owner, done) = pair.far_rdma(RdmaOp::Read, range, pair.reply(2, 512, 0)?)?;
            let piece = owner.piece.as_mut().ok_or(EIO)?;
            // The end may have a mark.
            piece.resize(512 - 8)?;
            check!(!done && piece_is_full_of(piece, 0));
            Ok(())
        })
    }

    #[test]
    fn lets_the_peer_do_nothing_else() -> Result {
        for (carry, op) in [(RdmaOp::Read, RdmaOp::Write), (RdmaOp::Write, RdmaOp::Read)] {
            with_requests(|pair| {
                let block = Block::new(1, PAGE_SIZE, 6)?;
                let range = pair.request(0, Carry::Access(carry), &block, true)?;
                pair.requested()?;
                let (_, done) = pair.far_rdma(op, range, pair.reply(0, PAGE_SIZE, 1)?)?;
                check!(!done && is_full_of(&block.memory, PAGE_SIZE, 6));
                Ok(())
            })?;
        }
        // Nor beyond the memory, which begins within a page.
        for (before, len, inside) in [(0, 2 * 512, true), (1, 1, false), (0, 2 * 512 + 1, false)] {
            with_requests(|pair| {
                let block = Block {
                    start: 512,
                    gap: 512,
                    ..Block::new(1, 4 * 512, 6)?
                };
                let carry = Carry::Access(RdmaOp::Read);
                let range = pair.request(0, carry, &block, true)?;
                pair.requested()?;
                let range = RemoteRange {
                    addr: range.addr - before,
                    ..range
                };
                check!(range.addr % PAGE_SIZE as u64 == 512 - before);
                let (_, done) = pair.far_rdma(RdmaOp::Read, range, pair.reply(0, len, 1)?)?;
                check!(done == inside);
                Ok(())
            })?;
        }
        Ok(())
    }

    #[test]
    fn has_another_key_each_time() -> Result {
        with_requests(|pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            let mut before = RemoteRange { addr: 0, rkey: 0 };
            // More often than there are keys.
            for round in 0..300 {
                let carry = Carry::Access(RdmaOp::Write);
                let range = pair.request(3, carry, &block, true)?;
                check!(range.rkey != before.rkey);
                before = range;
                pair.requested()?;
                let remotely = round % 2 == 0;
                let reply = Reply {
                    write: Some(range),
                    invalidate: remotely.then_some(range.rkey),
                    ..Reply::default()
                };
                // CAST: Some byte.
                let byte = round as u8;
                let landing = pair.replied(reply, pair.reply(3, PAGE_SIZE, byte)?)?;
                check!(landing.invalidated == remotely && landing.answer == Some(Ok(())));
                check!(back(pair)? == 3);
                check!(is_full_of(&block.memory, PAGE_SIZE, byte));
                posted(pair.near.qp.recv(pair.answer()?))?;
                posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
            }
            check!(pair.near.events.errors.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn takes_a_large_region_for_many_pages() -> Result {
        with_requests_of(LARGE, |pair| {
            let small = Block::new(2, PAGE_SIZE, 1)?;
            let blocks = [
                // Many segments, one of many pages, and one of two pages that are not whole.
                Block::new(3, PAGE_SIZE, 1)?,
                Block::new(1, 4 * PAGE_SIZE, 1)?,
                Block {
                    start: 512,
                    // CAST: A small number.
                    gap: 2 * PAGE_SIZE as u32 - 256,
                    ..Block::new(1, 4 * PAGE_SIZE, 1)?
                },
            ];
            let mut before = 0;
            for (number, block) in (0..6u8).zip(blocks.iter().cycle()) {
                let (slot, other) = (number % 4, (number + 1) % 4);
                let range = pair.request(slot.into(), Carry::Access(RdmaOp::Write), block, true)?;
                check!(range.addr % PAGE_SIZE as u64 == block.start.into());
                check!(range.rkey != before);
                before = range.rkey;
                pair.requested()?;

                // Nobody else has it until the peer has no access any more, but there are the small
                // ones.
                let carry = Carry::Access(RdmaOp::Read);
                check!(pair.request(other.into(), carry, block, true) == Err(EAGAIN));
                pair.request(other.into(), carry, &small, true)?;
                pair.requested()?;
                pair.replied(Reply::default(), pair.message(0, 1, other)?)?;
                check!(back(pair)? == other.into());
                posted(pair.near.qp.recv(pair.answer()?))?;
                check!(pair.request(other.into(), carry, block, true) == Err(EAGAIN));

                fill(&block.memory, block.len, 0xff);
                let len = block.len - (block.start + block.gap) as usize;
                let invalidate = (number % 2 == 0).then_some(range.rkey);
                let reply = Reply {
                    write: Some(range),
                    invalidate,
                    ..Reply::default()
                };
                let landing = pair.replied(reply, pair.reply(slot, len, number)?)?;
                check!(landing.invalidated == invalidate.is_some());
                check!(landing.answer == Some(Ok(())));
                check!(back(pair)? == slot.into());
                // SAFETY: As in `fill()`.
                let is_written = |place: &*mut u8| unsafe { place.read_volatile() } == number;
                let written = bytes(&block.memory, block.len).filter(is_written);
                check!(written.count() == len);
                posted(pair.near.qp.recv(pair.answer()?))?;
                for _ in 0..2 {
                    posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
                }
            }
            check!(pair.near.events.errors.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn gives_a_large_region_back_when_it_is_refused() -> Result {
        with_requests_of(LARGE, |pair| {
            let read = Carry::Access(RdmaOp::Read);
            let block = Block::new(4, PAGE_SIZE, 1)?;
            // More than even the large one covers, by segments and by pages, and with gaps.
            let wrong = [
                Block::new(5, PAGE_SIZE, 1)?,
                Block {
                    start: 512,
                    ..Block::new(1, 8 * PAGE_SIZE, 1)?
                },
                Block {
                    gap: 512,
                    ..Block::new(3, PAGE_SIZE, 1)?
                },
            ];
            for wrong in wrong {
                check!(pair.request(0, read, &wrong, true) == Err(EINVAL));
            }
            check!(pair.request(4, read, &block, true) == Err(EINVAL));
            let owner = Owner {
                block: Some(block.clone()),
                ..pair.message(0, 1, 0)?
            };
            let prepare = |_: &mut Owner, _: Ask| Err(EPROTO);
            let result = pair.near.qp.request(0, read, owner, prepare, true);
            check!(posted(result) == Err(EPROTO));
            check!(pair.near.qp.posted() == 8);

            pair.request(0, read, &block, true)?;
            pair.requested()?;
            pair.replied(Reply::default(), pair.message(0, 1, 0)?)?;
            check!(back(pair)? == 0);
            // What was chained, but not posted.
            pair.request(1, read, &block, false)?;
            pair.near.qp.fail();
            let (owner, result) = pair.near.events.sends.take()?;
            check!(owner.number == 1 && result == Err(WcError::NotCompleted(ESHUTDOWN)));
            check!(pair.request(2, read, &block, true) == Err(ESHUTDOWN));
            Ok(())
        })
    }

    #[test]
    fn is_posted_with_others_at_once() -> Result {
        with_requests(|pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            let carries = [
                Carry::Nothing,
                Carry::Access(RdmaOp::Read),
                Carry::Inline,
                Carry::Access(RdmaOp::Write),
            ];
            let short = Block::new(1, 16, 1)?;
            let mut ranges = KVec::new();
            for (slot, carry) in (0..).zip(carries) {
                let block = if carry == Carry::Inline {
                    &short
                } else {
                    &block
                };
                let range = pair.request(slot, carry, block, slot == 3)?;
                ranges.push(range, GFP_KERNEL)?;
            }
            check!(pair.near.qp.doorbells() == 1 && pair.near.qp.posted() == 6 + 8);
            for _ in 0..4 {
                pair.requested()?;
            }
            // Answered the other way round.
            for (slot, range) in (0..4).zip(ranges.iter()).rev() {
                let reply = Reply {
                    invalidate: (range.rkey != 0).then_some(range.rkey),
                    ..Reply::default()
                };
                let landing = pair.replied(reply, pair.message(0, 1, slot)?)?;
                check!(landing.answer == Some(Ok(())));
                check!(back(pair)? == slot.into());
            }
            Ok(())
        })
    }

    #[test]
    fn is_given_back_when_it_is_refused() -> Result {
        with_requests(|pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            let read = Carry::Access(RdmaOp::Read);
            let write = Carry::Access(RdmaOp::Write);
            let constant = Block {
                writable: false,
                ..block.clone()
            };
            // More pieces than there is room for, with gaps between them, and none at all.
            let many = Block::new(5, PAGE_SIZE, 1)?;
            let gaps = Block {
                gap: 512,
                ..Block::new(2, PAGE_SIZE, 1)?
            };
            let none = Block {
                len: 0,
                ..block.clone()
            };
            // One segment more than a work request has, with the message.
            let long = Block::new(4, 512, 1)?;
            check!(pair.request(4, read, &block, true) == Err(EINVAL));
            check!(pair.request(8, Carry::Nothing, &block, true) == Err(EINVAL));
            check!(pair.request(0, write, &constant, true) == Err(EINVAL));
            check!(pair.request(0, read, &many, true) == Err(EINVAL));
            check!(pair.request(0, read, &gaps, true) == Err(EINVAL));
            check!(pair.request(0, read, &none, true) == Err(EINVAL));
            check!(pair.request(0, Carry::Inline, &long, true) == Err(EINVAL));

            let prepare = |_: &mut Owner, _: Ask| Err(EPROTO);
            let owner = pair.message(0, 1, 0)?;
            let result = pair.near.qp.request(0, read, owner, prepare, true);
            check!(posted(result) == Err(EINVAL));
            let owner = Owner {
                block: Some(block.clone()),
                ..pair.message(0, 1, 0)?
            };
            let result = pair.near.qp.request(0, read, owner, prepare, true);
            check!(posted(result) == Err(EPROTO));
            check!(pair.near.qp.posted() == 8);
            check!(pair.near.answered(0, None) == Err(EINVAL));

            // None of them has left anything.
            pair.request(0, read, &block, true)?;
            check!(pair.request(0, read, &block, true) == Err(EBUSY));
            pair.requested()?;
            pair.replied(Reply::default(), pair.message(0, 1, 0)?)?;
            check!(back(pair)? == 0);
            Ok(())
        })
    }

    #[test]
    fn is_answered_once() -> Result {
        with_requests(|pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            check!(pair.near.answered(0, None) == Err(EINVAL));
            check!(pair.near.answered(8, None) == Err(EINVAL));
            pair.request(0, Carry::Nothing, &block, true)?;
            // Nor by a message that came in elsewhere.
            let wc = bindings::ib_wc {
                opcode: bindings::ib_wc_opcode_IB_WC_RECV,
                qp: pair.far.raw_qp(),
                ..pin_init::zeroed()
            };
            let elsewhere = Received::new(&wc).map_err(|error| error.to_error())?;
            check!(pair.near.qp.answered(0, elsewhere, |_| true) == Err(EINVAL));
            pair.requested()?;
            pair.replied(Reply::default(), pair.message(0, 1, 0)?)?;
            check!(back(pair)? == 0);
            let landing = pair.replied(Reply::default(), pair.message(0, 1, 0)?)?;
            check!(landing.answer == Some(Err(EINVAL)));
            // Nor is what is no request.
            let landing = pair.replied(Reply::default(), pair.message(0, 1, 99)?)?;
            check!(landing.answer == Some(Err(EINVAL)));
            check!(pair.near.events.errors.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn may_be_answered_before_it_is_sent() -> Result {
        with_requests(|pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            let range = pair.request(0, Carry::Access(RdmaOp::Write), &block, false)?;
            check!(pair.near.answered(0, None) == Ok(()));
            check!(pair.near.answered(0, None) == Err(EINVAL));
            a_while();
            check!(pair.near.events.sends.len() == 0);
            pair.near.qp.ring();
            check!(back(pair)? == 0);
            pair.requested()?;
            // The key that was registered only then is invalid.
            let (_, done) = pair.far_rdma(RdmaOp::Write, range, pair.reply(0, 512, 3)?)?;
            check!(!done && is_full_of(&block.memory, PAGE_SIZE, 1));
            Ok(())
        })
    }

    #[test]
    fn fails_if_another_key_is_invalidated() -> Result {
        with_requests(|pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            let carry = Carry::Access(RdmaOp::Read);
            pair.request(0, carry, &block, true)?;
            let other = pair.request(1, carry, &block, true)?;
            pair.requested()?;
            pair.requested()?;
            let reply = Reply {
                write: None,
                invalidate: Some(other.rkey),
                ..Reply::default()
            };
            let landing = pair.replied(reply, pair.message(0, 1, 0)?)?;
            check!(landing.answer == Some(Err(EPROTO)));
            check!(pair.near.events.errors.load(Relaxed) == 1);
            check!(pair.request(2, carry, &block, true) == Err(ESHUTDOWN));
            a_while();
            check!(pair.near.events.sends.len() == 0);
            Ok(())
        })
    }

    #[test]
    fn comes_back_unanswered_only_when_the_queue_pair_goes() -> Result {
        for (direct, pages) in KINDS.into_iter().zip([1, 3]) {
            with_pair_of(LARGE, Kind { direct, srq: None }, |pair| {
                let block = Block::new(pages, PAGE_SIZE, 1)?;
                let ours = Block::new(1, 16, 1)?;
                for number in 0..3 {
                    posted(pair.far.qp.recv(pair.landing(number, 64)?))?;
                }
                pair.request(0, Carry::Access(RdmaOp::Write), &block, true)?;
                pair.request(1, Carry::Inline, &ours, true)?;
                pair.request(2, Carry::Nothing, &block, true)?;
                for _ in 0..3 {
                    pair.requested()?;
                }
                wait_until(|| {
                    pair.near.send_cq.reap();
                    pair.near.qp.completions() == 3
                })?;
                pair.near.qp.fail();
                a_while();
                check!(pair.near.events.sends.len() == 0);
                check!(pair.alive.load(Relaxed) == 3);
                let events = pair.near.events.clone();
                check!(last(pair.near.qp));
                check!(events.sends.len() == 3);
                for number in 0..3 {
                    let (owner, result) = events.sends.take()?;
                    check!(owner.number == number);
                    check!(result == Err(WcError::NotCompleted(ESHUTDOWN)));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    #[test]
    fn is_flushed_if_the_peer_has_no_access() -> Result {
        for (direct, pages) in KINDS.into_iter().zip([3, 1]) {
            with_pair_of(LARGE, Kind { direct, srq: None }, |pair| {
                let block = Block::new(pages, PAGE_SIZE, 1)?;
                // The far side has no receive for any of them.
                pair.request(0, Carry::Nothing, &block, true)?;
                pair.request(1, Carry::Access(RdmaOp::Read), &block, true)?;
                pair.near.qp.fail();
                wait_until(|| {
                    pair.near.send_cq.reap();
                    pair.near.events.sends.len() == 1
                })?;
                let (owner, result) = pair.near.events.sends.take()?;
                check!(owner.number == 0 && result.is_err());
                a_while();
                pair.near.send_cq.reap();
                check!(pair.near.events.sends.len() == 0);
                let events = pair.near.events.clone();
                check!(last(pair.near.qp));
                let (owner, result) = events.sends.take()?;
                check!(owner.number == 1 && result.is_err());
                Ok(())
            })?;
        }
        Ok(())
    }
}
