// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of queue pairs: who owns a work request, and how many there are room for.

use super::*;

/// Room for few, so that it runs out.
const CAPS: QpCaps = QpCaps {
    slots: 8,
    send_wr: 4,
    recv_wr: 4,
    sges: QpCaps::MAX_SGES,
    large: 1,
    keys: 0,
    key_pages: 0,
    large_keys: 0,
    large_key_pages: 0,
};
/// The bytes per segment of a memory with many.
const PIECE: usize = 512;

/// The error of a refused post, and the owner that came back.
fn refusal(result: Result<(), (Error, Owner)>) -> Option<(Error, u32)> {
    result.err().map(|(error, owner)| (error, owner.number))
}

#[kernel::macros::kunit_tests(farblk_rdma_owner)]
mod owner {
    use super::*;
    use crate::base::errno::ESHUTDOWN;

    #[test]
    fn comes_back_with_the_completion() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(1, PAGE_SIZE, 0xa5)?;
            let theirs = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.target(&theirs)?;
            for number in 0..20 {
                let owner = pair.block(number, &ours);
                posted(pair.near.qp.rdma(3, RdmaOp::Write, remote, owner, true))?;
                let (owner, result) = pair.near.events.sends.take()?;
                check!(owner.number == number && result.is_ok());
                check!(pair.alive.load(Relaxed) == 1);
            }
            check!(is_full_of(&theirs.memory, PAGE_SIZE, 0xa5));
            check!(pair.near.events.sends.len() == 0);
            check!(pair.near.events.errors.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn is_given_back_when_the_post_is_refused() -> Result {
        with_pair(CAPS, |pair| {
            let qp = &pair.near.qp;
            let ours = Block::new(1, PAGE_SIZE, 0)?;
            let (mr, remote) = pair.target(&Block::new(1, PAGE_SIZE, 0)?)?;
            drop(mr);

            let owner = pair.block(1, &ours);
            check!(refusal(qp.rdma(8, RdmaOp::Write, remote, owner, true)) == Some((EINVAL, 1)));
            let owner = pair.owner(2);
            check!(refusal(qp.rdma(0, RdmaOp::Write, remote, owner, true)) == Some((EINVAL, 2)));
            check!(refusal(qp.send(0, pair.owner(3), true)) == Some((EINVAL, 3)));
            check!(refusal(qp.reg_mr(0, pair.owner(4), true)) == Some((EINVAL, 4)));

            // A device may not write the memory of a block write.
            let constant = Block {
                writable: false,
                ..ours.clone()
            };
            let owner = pair.block(5, &constant);
            check!(refusal(qp.rdma(0, RdmaOp::Read, remote, owner, true)) == Some((EINVAL, 5)));

            // The end of the memory is beyond that of the address space.
            let beyond = RemoteRange {
                addr: u64::MAX - 1,
                ..remote
            };
            let owner = pair.block(6, &ours);
            check!(refusal(qp.rdma(0, RdmaOp::Write, beyond, owner, true)) == Some((EINVAL, 6)));

            // The region is of another protection domain.
            let other = Pd::alloc(pair.pd.device())?;
            let mapping = SgMapping::map(
                pair.pd.device(),
                &ours.memory,
                0,
                PAGE_SIZE,
                Direction::Bidirectional,
            )?;
            let mut owner = pair.owner(7);
            owner.mr = Some(Mr::alloc(&other, &mapping, Access::RemoteRead)?);
            check!(refusal(qp.reg_mr(0, owner, true)) == Some((EINVAL, 7)));

            // A buffer that is written by the device cannot be sent, nor repeated.
            let mut owner = pair.owner(8);
            owner.message = Some(pair.landing(0, 64)?.buffer);
            check!(refusal(qp.send(0, owner, true)) == Some((EINVAL, 8)));
            let buffer = Arc::new(pair.landing(0, 64)?.buffer, GFP_KERNEL)?;
            let owner = pair.owner(9);
            let result = qp.write_repeated(0, remote, &buffer, 64, owner, true);
            check!(refusal(result) == Some((EINVAL, 9)));
            check!(last(buffer));

            check!(qp.posted() == 0);
            check!(pair.alive.load(Relaxed) == 0);
            check!(pair.near.events.sends.len() == 0);
            Ok(())
        })
    }

    #[test]
    fn of_a_taken_slot_stays_there() -> Result {
        with_pair(CAPS, |pair| {
            let qp = &pair.near.qp;
            let ours = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.target(&Block::new(1, PAGE_SIZE, 0)?)?;
            posted(qp.rdma(0, RdmaOp::Write, remote, pair.block(1, &ours), false))?;
            let owner = pair.block(2, &ours);
            check!(refusal(qp.rdma(0, RdmaOp::Write, remote, owner, false)) == Some((EBUSY, 2)));
            // A refused post does not ring.
            let owner = pair.block(3, &ours);
            check!(refusal(qp.rdma(0, RdmaOp::Write, remote, owner, true)) == Some((EBUSY, 3)));
            check!(qp.doorbells() == 0);
            qp.ring();
            check!(pair.near.events.sends.take()?.0.number == 1);
            posted(qp.rdma(0, RdmaOp::Write, remote, pair.block(4, &ours), true))?;
            check!(pair.near.events.sends.take()?.0.number == 4);
            Ok(())
        })
    }

    #[test]
    fn may_be_posted_again_when_it_comes_back() -> Result {
        // The slot, and the room for a work request, are free by then.
        let caps = QpCaps {
            slots: 1,
            send_wr: 1,
            ..CAPS
        };
        with_pair(caps, |pair| {
            let ours = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.target(&Block::new(1, PAGE_SIZE, 0)?)?;
            let mut owner = pair.block(1, &ours);
            owner.again = Some((10, remote));
            posted(pair.near.qp.rdma(0, RdmaOp::Write, remote, owner, true))?;
            let (owner, result) = pair.near.events.sends.take()?;
            check!(owner.number == 1 && result.is_ok());
            check!(pair.near.qp.posted() == 11);
            Ok(())
        })
    }

    /// Posts what stays with a queue pair until it fails: all its receives, and as many messages to
    /// a peer that has no receive.
    fn post_all(pair: &Pair) -> Result {
        for number in 0..CAPS.recv_wr {
            posted(pair.near.qp.recv(pair.landing(number, 64)?))?;
        }
        for number in 0..CAPS.send_wr {
            // CAST: A small number.
            posted(
                pair.near
                    .qp
                    .send(number as u16, pair.message(number, 64, 1)?, true),
            )?;
        }
        Ok(())
    }

    /// Takes what `post_all()` has posted; each must come back once, with an error.
    fn take_all(events: &Events) -> Result {
        let (mut sends, mut recvs) = (0u32, 0u32);
        for _ in 0..CAPS.send_wr {
            let (owner, result) = events.sends.take()?;
            check!(result.is_err());
            check!(sends & 1 << owner.number == 0);
            sends |= 1 << owner.number;
        }
        for _ in 0..CAPS.recv_wr {
            let (owner, result) = events.recvs.take()?;
            check!(result.is_err());
            check!(recvs & 1 << owner.number == 0);
            recvs |= 1 << owner.number;
        }
        check!(sends == (1 << CAPS.send_wr) - 1);
        check!(recvs == (1 << CAPS.recv_wr) - 1);
        Ok(())
    }

    #[test]
    fn is_flushed_when_the_queue_pair_fails() -> Result {
        with_pair(CAPS, |pair| {
            post_all(&pair)?;
            check!(pair.alive.load(Relaxed) == 8);
            pair.near.qp.fail();
            take_all(&pair.near.events)?;
            check!(pair.alive.load(Relaxed) == 0);
            check!(pair.near.events.errors.load(Relaxed) == 1);

            // Nothing can be posted any more, and nothing comes back twice.
            let owner = pair.message(9, 64, 1)?;
            check!(refusal(pair.near.qp.send(0, owner, true)) == Some((ESHUTDOWN, 9)));
            let result = pair.near.qp.recv(pair.landing(9, 64)?);
            check!(posted(result) == Err(ESHUTDOWN));
            let events = pair.near.events.clone();
            drop(pair);
            check!(events.sends.len() == 0 && events.recvs.len() == 0);
            Ok(())
        })
    }

    #[test]
    fn is_flushed_when_the_connection_ends() -> Result {
        with_pair(CAPS, |pair| {
            post_all(&pair)?;
            pair.near.id.disconnect();
            take_all(&pair.near.events)?;
            check!(pair.near.events.errors.load(Relaxed) == 1);
            Ok(())
        })
    }

    #[test]
    fn comes_back_before_the_queue_pair_is_gone() -> Result {
        with_pair(CAPS, |pair| {
            post_all(&pair)?;
            let events = pair.near.events.clone();
            check!(last(pair.near.qp));
            check!(events.sends.len() == 4 && events.recvs.len() == 4);
            take_all(&events)
        })
    }

    #[test]
    fn that_was_only_chained_comes_back_at_once() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.target(&Block::new(1, PAGE_SIZE, 0)?)?;
            for number in 0..3 {
                // CAST: A small number.
                let slot = number as u16;
                let owner = pair.block(number, &ours);
                posted(pair.near.qp.rdma(slot, RdmaOp::Write, remote, owner, false))?;
            }
            check!(pair.near.events.sends.len() == 0);
            pair.near.qp.fail();
            check!(pair.near.events.sends.len() == 3);
            for number in 0..3 {
                let (owner, result) = pair.near.events.sends.take()?;
                check!(owner.number == number);
                check!(result == Err(WcError::NotCompleted(ESHUTDOWN)));
            }
            check!(pair.near.qp.posted() == 0);
            // The doorbell finds nothing.
            pair.near.qp.ring();
            check!(pair.near.qp.posted() == 0);
            Ok(())
        })
    }

    #[test]
    fn that_was_only_chained_comes_back_when_the_queue_pair_goes() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.target(&Block::new(1, PAGE_SIZE, 0)?)?;
            let owner = pair.block(1, &ours);
            posted(pair.near.qp.rdma(0, RdmaOp::Write, remote, owner, false))?;
            let events = pair.near.events.clone();
            check!(last(pair.near.qp));
            check!(events.sends.len() == 1);
            let (owner, result) = events.sends.take()?;
            check!(owner.number == 1);
            check!(result == Err(WcError::NotCompleted(ESHUTDOWN)));
            Ok(())
        })
    }

    #[test]
    fn comes_back_with_the_error_of_the_first() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(1, PAGE_SIZE, 0)?;
            let (mr, remote) = pair.target(&Block::new(1, PAGE_SIZE, 0)?)?;
            drop(mr);
            for slot in 0..3 {
                let owner = pair.block(slot.into(), &ours);
                posted(
                    pair.near
                        .qp
                        .rdma(slot, RdmaOp::Write, remote, owner, slot == 2),
                )?;
            }
            for number in 0..3 {
                let (owner, result) = pair.near.events.sends.take()?;
                check!(owner.number == number);
                // The others are flushed.
                let error = if number == 0 { EACCES } else { EIO };
                check!(result.err().map(WcError::to_error) == Some(error));
            }
            check!(pair.near.events.errors.load(Relaxed) == 1);
            Ok(())
        })
    }
}

#[kernel::macros::kunit_tests(farblk_rdma_credits)]
mod credits {
    use super::*;

    /// How many segments of `PIECE` bytes need `wrs` work requests, and 1 less than one more.
    fn segments(pair: &Pair, wrs: usize) -> usize {
        let limits = pair.pd.device().limits();
        wrs * limits.max_send_sge.clamp(1, 32) as usize
    }

    #[test]
    fn run_out_and_come_back() -> Result {
        with_pair(CAPS, |pair| {
            let qp = &pair.near.qp;
            let ours = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.target(&Block::new(1, PAGE_SIZE, 0)?)?;
            for _ in 0..5 {
                for slot in 0..4 {
                    posted(qp.rdma(slot, RdmaOp::Read, remote, pair.block(0, &ours), false))?;
                }
                let owner = pair.block(9, &ours);
                let result = qp.rdma(4, RdmaOp::Read, remote, owner, true);
                check!(refusal(result) == Some((EAGAIN, 9)));
                check!(pair.near.events.sends.len() == 0);
                qp.ring();
                for _ in 0..4 {
                    check!(pair.near.events.sends.take()?.1.is_ok());
                }
            }
            check!(qp.posted() == 20 && qp.completions() == 20 && qp.doorbells() == 5);
            Ok(())
        })
    }

    #[test]
    fn of_a_chain_are_taken_all_or_none() -> Result {
        with_pair(CAPS, |pair| {
            let qp = &pair.near.qp;
            let small = Block::new(1, PIECE, 1)?;
            let large = Block::new(segments(&pair, 2) + 1, PIECE, 2)?;
            let theirs = Block::new(large.len, 1, 0)?;
            let (_mr, remote) = pair.target(&theirs)?;
            // It needs three of four, two of which are left.
            for slot in 0..2 {
                posted(qp.rdma(slot, RdmaOp::Write, remote, pair.block(0, &small), false))?;
            }
            let owner = pair.block(9, &large);
            let result = qp.rdma(2, RdmaOp::Write, remote, owner, false);
            check!(refusal(result) == Some((EAGAIN, 9)));
            // Both are still there.
            for slot in 2..4 {
                posted(qp.rdma(
                    slot,
                    RdmaOp::Write,
                    remote,
                    pair.block(0, &small),
                    slot == 3,
                ))?;
            }
            for _ in 0..4 {
                check!(pair.near.events.sends.take()?.1.is_ok());
            }
            check!(qp.posted() == 4 && qp.doorbells() == 1);
            // Alone it fits, and one more with it. Only the last of a chain has a completion.
            posted(qp.rdma(2, RdmaOp::Write, remote, pair.block(5, &large), false))?;
            posted(qp.rdma(0, RdmaOp::Write, remote, pair.block(6, &small), false))?;
            let result = qp.rdma(1, RdmaOp::Write, remote, pair.block(7, &small), false);
            check!(refusal(result) == Some((EAGAIN, 7)));
            qp.ring();
            for number in 5..7 {
                let (owner, result) = pair.near.events.sends.take()?;
                check!(owner.number == number && result.is_ok());
            }
            check!(qp.posted() == 8 && qp.completions() == 6);
            // What the small one did not overwrite.
            fill(&theirs.memory, PIECE, 2);
            check!(is_full_of(&theirs.memory, large.len, 2));
            Ok(())
        })
    }

    #[test]
    fn of_a_read_chain_come_back_with_the_data() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(4 * 30, PIECE, 0)?;
            let theirs = Block::new(ours.len, 1, 7)?;
            let (_mr, remote) = pair.target(&theirs)?;
            for _ in 0..3 {
                fill(&ours.memory, ours.len, 0);
                check!(pair.rdma(RdmaOp::Read, &ours, remote)?.is_ok());
                check!(is_full_of(&ours.memory, ours.len, 7));
            }
            Ok(())
        })
    }

    #[test]
    fn of_few_segments_each_make_a_longer_chain() -> Result {
        let caps = QpCaps { sges: 2, ..CAPS };
        with_pair(caps, |pair| {
            let ours = Block::new(5, PIECE, 4)?;
            let theirs = Block::new(ours.len, 1, 0)?;
            let (_mr, remote) = pair.target(&theirs)?;
            check!(pair.rdma(RdmaOp::Write, &ours, remote)?.is_ok());
            check!(is_full_of(&theirs.memory, theirs.len, 4));
            check!(pair.near.qp.posted() == 3 && pair.near.qp.completions() == 1);
            check!(pair.near.qp.max_segments() == 8);
            Ok(())
        })
    }

    #[test]
    fn are_never_enough_for_what_needs_more_than_all() -> Result {
        with_pair(CAPS, |pair| {
            let qp = &pair.near.qp;
            let theirs = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.target(&theirs)?;
            for pieces in [segments(&pair, 4) + 1, 257, 258] {
                let owner = pair.block(9, &Block::new(pieces, PIECE, 0)?);
                let result = qp.rdma(0, RdmaOp::Write, remote, owner, true);
                check!(refusal(result) == Some((EINVAL, 9)));
            }
            check!(qp.max_segments() as usize <= segments(&pair, 4));
            check!(qp.posted() == 0);
            Ok(())
        })
    }

    #[test]
    fn of_large_arrays_run_out_and_come_back() -> Result {
        with_pair(CAPS, |pair| {
            let qp = &pair.near.qp;
            let ours = Block::new(segments(&pair, 1) + 1, PIECE, 3)?;
            let theirs = Block::new(ours.len, 1, 0)?;
            let (_mr, remote) = pair.target(&theirs)?;
            for _ in 0..3 {
                posted(qp.rdma(0, RdmaOp::Write, remote, pair.block(1, &ours), false))?;
                // There are two credits left, but one large array.
                let result = qp.rdma(1, RdmaOp::Write, remote, pair.block(2, &ours), false);
                check!(refusal(result) == Some((EAGAIN, 2)));
                qp.ring();
                check!(pair.near.events.sends.take()?.1.is_ok());
            }
            check!(is_full_of(&theirs.memory, theirs.len, 3));
            Ok(())
        })
    }

    #[test]
    fn come_back_once_when_a_chain_fails() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(segments(&pair, 2) + 1, PIECE, 3)?;
            let (mr, remote) = pair.target(&Block::new(ours.len, 1, 0)?)?;
            drop(mr);
            let result = pair.rdma(RdmaOp::Write, &ours, remote)?;
            // It is the first of the three that has failed, and whose error it is.
            check!(result.err().map(WcError::to_error) == Some(EACCES));
            check!(pair.near.events.errors.load(Relaxed) == 1);
            let events = pair.near.events.clone();
            drop(pair);
            check!(events.sends.len() == 0);
            Ok(())
        })
    }

    #[test]
    fn are_taken_by_repeated_writes_too() -> Result {
        with_pair(CAPS, |pair| {
            let qp = &pair.near.qp;
            let len = 3 * PAGE_SIZE;
            let theirs = Block::new(len, 1, 9)?;
            let (_mr, remote) = pair.target(&theirs)?;
            let buffer = DmaBuffer::alloc(pair.pd.device(), PIECE, Direction::ToDevice)?;
            let buffer = Arc::new(buffer, GFP_KERNEL)?;
            posted(qp.write_repeated(0, remote, &buffer, len - 1, pair.owner(1), true))?;
            check!(pair.near.events.sends.take()?.1.is_ok());
            // All but the last byte.
            check!(is_full_of(&theirs.memory, len - 1, 0));
            check!(!is_full_of(&theirs.memory, len, 0));
            // The queue pair has let go of the buffer.
            check!(last(buffer));
            Ok(())
        })
    }
}

#[kernel::macros::kunit_tests(farblk_rdma_read)]
mod read {
    use super::*;

    #[test]
    fn brings_all_data_whatever_the_size() -> Result {
        with_pair(CAPS, |pair| {
            let theirs = Block::new(64, PAGE_SIZE, 7)?;
            let (_mr, remote) = pair.target(&theirs)?;
            for (pieces, piece) in [
                (1, 1),
                (1, 7),
                (1, 8),
                (1, 512),
                (1, 1024),
                (1, 1025),
                (1, PAGE_SIZE),
                (1, PAGE_SIZE + 4),
                (3, PIECE),
                (32, PIECE),
                (33, PIECE),
                (120, PIECE),
                (64, PAGE_SIZE),
            ] {
                let ours = Block::new(pieces, piece, 0)?;
                check!(pair.rdma(RdmaOp::Read, &ours, remote)? == Ok(()));
                check!(is_full_of(&ours.memory, ours.len, 7));
                let more = (ours.len + 1).min(ours.len.next_multiple_of(PAGE_SIZE));
                check!(more == ours.len || !is_full_of(&ours.memory, more, 7));
            }
            // Into memory that is mapped already, as a server does.
            let mut owner = pair.owner(1);
            owner.piece = Some(DmaMemory::alloc(pair.pd.device(), 5000, -1)?.piece(0, 5000)?);
            posted(pair.near.qp.rdma(0, RdmaOp::Read, remote, owner, true))?;
            let (owner, result) = pair.near.events.sends.take()?;
            check!(result.is_ok());
            check!(owner.piece.is_some_and(|piece| piece_is_full_of(&piece, 7)));
            check!(pair.near.events.errors.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn brings_segments_of_few_bytes() -> Result {
        with_pair(CAPS, |pair| {
            let theirs = Block::new(1, PAGE_SIZE, 7)?;
            let (_mr, remote) = pair.target(&theirs)?;
            for len in 1..12 {
                let ours = Block {
                    gap: 16 - len,
                    ..Block::new(40, 16, 0)?
                };
                check!(pair.rdma(RdmaOp::Read, &ours, remote)? == Ok(()));
                for (at, place) in bytes(&ours.memory, ours.len).enumerate() {
                    let byte = if at % 16 < len as usize { 7 } else { 0 };
                    // SAFETY: The place is in the memory, to which there are no references.
                    check!(unsafe { place.read_volatile() } == byte);
                }
            }
            Ok(())
        })
    }

    /// Copies the 8 bytes before `end`, the last one changed by `change`.
    fn copy_end(from: &Block, to: &Block, end: usize, change: u8) {
        let from = bytes(&from.memory, end).skip(end - 8);
        let to = bytes(&to.memory, end).skip(end - 8);
        for (at, (from, to)) in from.zip(to).enumerate() {
            let change = if at == 7 { change } else { 0 };
            // SAFETY: The places are in the memories, to which there are no references.
            unsafe { to.write_volatile(from.read_volatile() ^ change) };
        }
    }

    #[test]
    fn is_an_error_if_the_end_has_not_come() -> Result {
        // One work request; two, of which one or the other is not finished.
        let first = CAPS.sges as usize * PIECE;
        for (pieces, end) in [(8, 8 * PIECE), (33, 33 * PIECE), (33, first)] {
            with_pair(CAPS, |pair| {
                if !pair.pd.device().quirks().unfinished_reads() {
                    skip(c"the device finishes what it reads");
                    return Ok(());
                }
                let ours = Block::new(pieces, PIECE, 0)?;
                let theirs = Block::new(pieces, PIECE, 7)?;
                let (_mr, remote) = pair.target(&theirs)?;
                // What comes is what is there already, or all but: the mark stays, or not.
                for (change, how) in [(0, Err(WcError::Unfinished)), (1, Ok(())), (0x80, Ok(()))] {
                    let owner = pair.block(1, &ours);
                    posted(pair.near.qp.rdma(0, RdmaOp::Read, remote, owner, false))?;
                    copy_end(&ours, &theirs, end, change);
                    pair.near.qp.ring();
                    let (owner, result) = pair.near.events.sends.take()?;
                    check!(owner.number == 1 && result == how);
                }
                check!(pair.near.events.errors.load(Relaxed) == 1);
                // Another READ has another mark.
                check!(pair.rdma(RdmaOp::Read, &ours, remote)? == Ok(()));
                Ok(())
            })?;
        }
        Ok(())
    }
}

#[kernel::macros::kunit_tests(farblk_rdma_recv)]
mod recv {
    use super::*;

    #[test]
    fn slots_run_out_and_come_back() -> Result {
        with_pair(CAPS, |pair| {
            for round in 0..5u8 {
                for number in 0..4 {
                    posted(pair.far.qp.recv(pair.landing(number, 64)?))?;
                }
                let (error, landing) = match pair.far.qp.recv(pair.landing(9, 64)?) {
                    Ok(()) => (EIO, None),
                    Err((error, landing)) => (error, Some(landing.number)),
                };
                check!(error == EAGAIN && landing == Some(9));
                for number in 0..4u8 {
                    let len = 10 + usize::from(number);
                    let message = pair.message(0, len, round + number)?;
                    posted(pair.near.qp.send(0, message, true))?;
                    check!(pair.near.events.sends.take()?.1.is_ok());
                    let (landing, result) = pair.far.events.recvs.take()?;
                    check!(landing.number == number.into());
                    check!(result == Ok(len as u32));
                    let mut data = [0; 64];
                    landing.buffer.copy_out(0, &mut data)?;
                    let (message, rest) = data.split_at(len);
                    check!(message.iter().all(|byte| *byte == round + number));
                    check!(rest.iter().all(|byte| *byte == 0));
                }
            }
            check!(pair.far.qp.completions() == 20);
            Ok(())
        })
    }

    #[test]
    fn slot_may_be_used_again_when_it_comes_back() -> Result {
        let caps = QpCaps { recv_wr: 1, ..CAPS };
        with_pair(caps, |pair| {
            let mut landing = pair.landing(1, 64)?;
            landing.again = 5;
            posted(pair.far.qp.recv(landing))?;
            for byte in 0..6 {
                posted(pair.near.qp.send(0, pair.message(0, 64, byte)?, true))?;
                check!(pair.near.events.sends.take()?.1.is_ok());
            }
            let (landing, result) = pair.far.events.recvs.take()?;
            check!(result == Ok(64));
            let mut data = [0; 64];
            landing.buffer.copy_out(0, &mut data)?;
            check!(data == [5; 64]);
            Ok(())
        })
    }

    #[test]
    fn slot_of_a_refused_receive_is_not_lost() -> Result {
        with_pair(CAPS, |pair| {
            for _ in 0..2 * CAPS.recv_wr {
                let mut landing = pair.landing(1, 64)?;
                landing.buffer = DmaBuffer::alloc(pair.pd.device(), 64, Direction::ToDevice)?;
                check!(posted(pair.far.qp.recv(landing)) == Err(EINVAL));
            }
            for number in 0..CAPS.recv_wr {
                posted(pair.far.qp.recv(pair.landing(number, 64)?))?;
            }
            Ok(())
        })
    }

    #[test]
    fn message_too_long_is_an_error_on_both_sides() -> Result {
        with_pair(CAPS, |pair| {
            posted(pair.far.qp.recv(pair.landing(1, 64)?))?;
            posted(pair.near.qp.send(0, pair.message(2, 65, 0xff)?, true))?;
            let (landing, result) = pair.far.events.recvs.take()?;
            check!(landing.number == 1 && result.is_err());
            let (owner, result) = pair.near.events.sends.take()?;
            check!(owner.number == 2 && result.is_err());
            check!(pair.far.events.errors.load(Relaxed) == 1);
            check!(pair.near.events.errors.load(Relaxed) == 1);
            Ok(())
        })
    }
}

#[kernel::macros::kunit_tests(farblk_rdma_qp)]
mod create {
    use super::*;

    #[test]
    fn refuses_what_the_device_cannot_do() -> Result {
        with_pair(CAPS, |pair| {
            let device = pair.pd.device();
            let limits = *device.limits();
            let cq = Cq::alloc(device, 64, 0, PollContext::Workqueue)?;
            let create = |id: &Arc<CmId>, cq: &Arc<Cq>, caps| {
                Qp::create(
                    id,
                    &pair.pd,
                    cq,
                    cq,
                    caps,
                    Handler(pair.near.events.clone()),
                )
                .map(drop)
            };
            // An id has one queue pair.
            check!(create(&pair.near.id, &cq, CAPS) == Err(EBUSY));

            let id = CmId::new(&Net::current(), Connection::new()?)?;
            let (_, addr) = client::find(address).ok_or(ENODEV)?;
            id.resolve(None, addr, TIMEOUT_MS)
                .map_err(|error| error.to_error())?;
            let wrong = [
                QpCaps { slots: 0, ..CAPS },
                QpCaps { send_wr: 0, ..CAPS },
                QpCaps {
                    send_wr: limits.max_qp_wr,
                    ..CAPS
                },
                QpCaps {
                    recv_wr: limits.max_qp_wr,
                    ..CAPS
                },
                QpCaps {
                    send_wr: u32::MAX,
                    ..CAPS
                },
                QpCaps { large: 65, ..CAPS },
                QpCaps { keys: 1, ..CAPS },
                QpCaps {
                    large_keys: 1,
                    ..CAPS
                },
                QpCaps {
                    large_keys: 65,
                    large_key_pages: 1,
                    ..CAPS
                },
            ];
            for caps in wrong {
                check!(create(&id, &cq, caps) == Err(EINVAL));
            }
            // A completion queue of one entry less than two such queue pairs need, or than one.
            let entries = CAPS.send_cqes() + CAPS.recv_cqes();
            let small = Cq::alloc(device, entries - 1, 0, PollContext::Workqueue)?;
            check!(create(&id, &small, CAPS) == Err(ENOSPC));
            // None of these has taken anything.
            check!(last(small));
            check!(create(&id, &cq, CAPS) == Ok(()));
            check!(create(&id, &cq, CAPS) == Ok(()));
            check!(last(cq));
            Ok(())
        })
    }
}
