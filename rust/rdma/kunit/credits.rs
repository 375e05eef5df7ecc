// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of how many work requests there is room for.

use crate::rdma::kunit::{
    qp::{
        refusal,
        CAPS,
        PIECE, //
    },
    *, //
};

#[kernel::macros::kunit_tests(farblk_rdma_credits)]
mod tests {
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
            let len = 24 * PIECE;
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
