// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of who owns what a work request refers to.

use crate::rdma::kunit::{
    qp::{
        refusal,
        CAPS, //
    },
    *, //
};

#[kernel::macros::kunit_tests(farblk_rdma_owner)]
mod tests {
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

    /// What must fit in one work request needs no large array, so that it need not wait for one.
    #[test]
    fn of_what_never_fits_is_not_to_be_tried_again() -> Result {
        with_pair(CAPS, |pair| {
            let qp = &pair.near.qp;
            let many = Block::new(most_pieces(&pair, 40), 16, 0)?;
            let more = Block::new(40, 16, 0)?;
            let (_mr, remote) = pair.target(&Block::new(1, PAGE_SIZE, 0)?)?;
            // Slot 0 has the only large array, for as long as it is not posted.
            posted(qp.rdma(0, RdmaOp::Write, remote, pair.block(0, &many), false))?;
            let refused = qp.rdma(1, RdmaOp::Write, remote, pair.block(1, &many), false);
            check!(refusal(refused) == Some((EAGAIN, 1)));
            if !pair.near.id.is_iwarp() {
                let announcement = Announcement::default();
                let owner = pair.block(2, &more);
                let refused = qp.write_with_immediate(1, Some(remote), announcement, owner, false);
                check!(refusal(refused) == Some((EINVAL, 2)));
                let reply = Reply::with_immediate(1);
                let refused = qp.reply(1, reply, pair.block(3, &more), false);
                check!(refusal(refused) == Some((EINVAL, 3)));
            }
            let with_message = |number| -> Result<Owner> {
                Ok(Owner {
                    block: Some(more.clone()),
                    ..pair.message(number, 16, 0)?
                })
            };
            let reply = Reply {
                append: true,
                ..Reply::default()
            };
            check!(refusal(qp.reply(1, reply, with_message(4)?, false)) == Some((EINVAL, 4)));
            let prepare = |_: &mut Owner, _: Ask| Ok(());
            let refused = qp.request(1, Carry::Inline, with_message(5)?, prepare, false);
            check!(refusal(refused) == Some((EINVAL, 5)));
            qp.ring();
            check!(pair.near.events.sends.take()?.1.is_ok());
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
