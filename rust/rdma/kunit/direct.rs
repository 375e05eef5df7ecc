// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of queue pairs whose completions are polled for.

use crate::rdma::kunit::{
    request::{
        back,
        CAPS, //
    },
    *, //
};

#[kernel::macros::kunit_tests(farblk_rdma_direct)]
mod tests {
    use super::*;

    /// Sends complete in a queue of their own that is not looked at.
    const KIND: Kind = Kind {
        direct: Some((true, false)),
        srq: None,
    };

    #[test]
    fn sends_are_reaped_with_the_answer() -> Result {
        with_pair_of(CAPS, KIND, |pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            for slot in 0..4 {
                posted(pair.near.qp.recv(pair.answer()?))?;
                posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
                pair.request(slot, Carry::Access(RdmaOp::Write), &block, true)?;
                pair.requested()?;
            }
            a_while();
            check!(pair.near.qp.completions() == 0);
            pair.replied(Reply::default(), pair.message(0, 1, 3)?)?;
            check!(back(&pair)? == 3);
            // All sends, the receive, and the invalidation.
            check!(pair.near.qp.completions() == 4 + 1 + 1);
            Ok(())
        })
    }

    #[test]
    fn sends_are_reaped_when_asked_for() -> Result {
        with_pair_of(CAPS, KIND, |pair| {
            let qp = &pair.near.qp;
            for slot in 0..4 {
                posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
                posted(qp.send(slot, pair.message(slot.into(), 16, 1)?, true))?;
                pair.requested()?;
            }
            a_while();
            check!(pair.near.events.sends.len() == 0);
            wait_until(|| pair.near.send_cq.poll(1) == 1)?;
            check!(pair.near.events.sends.len() == 1);
            check!(pair.near.send_cq.poll(0) == 0);
            let mut reaped = 0;
            wait_until(|| {
                reaped += pair.near.send_cq.reap();
                reaped == 3
            })?;
            check!(pair.near.send_cq.reap() == 0);
            check!(pair.near.events.sends.len() == 4);
            Ok(())
        })
    }

    #[test]
    fn more_are_reaped_than_are_taken_at_a_time() -> Result {
        let caps = QpCaps {
            slots: 20,
            send_wr: 20,
            recv_wr: 20,
            ..CAPS.qp
        };
        with_pair_of(caps, KIND, |pair| {
            for slot in 0..20 {
                posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
                let message = pair.message(slot.into(), 16, 1)?;
                posted(pair.near.qp.send(slot, message, true))?;
                pair.requested()?;
            }
            a_while();
            let (cq, sends) = (&pair.near.send_cq, &pair.near.events.sends);
            let mut left: u32 = 11;
            wait_until(|| {
                left -= cq.poll(left);
                left == 0
            })?;
            check!(sends.len() == 11);
            let mut left: u32 = 9;
            wait_until(|| {
                left -= cq.reap();
                left == 0
            })?;
            check!(sends.len() == 20);
            for number in 0..20 {
                check!(back(&pair)? == number);
            }
            Ok(())
        })
    }

    #[test]
    fn send_that_is_late_is_waited_for() -> Result {
        with_pair_of(CAPS, KIND, |pair| {
            let block = Block::new(1, PAGE_SIZE, 1)?;
            // It is answered before it can complete: nobody will look but for the interrupt. One at
            // a time, as a device might run the registration again when it sends what is before it
            // again.
            for (slot, carry) in [(0, Carry::Nothing), (1, Carry::Access(RdmaOp::Read))] {
                pair.request(slot, carry, &block, true)?;
                check!(pair.near.answered(slot, None) == Ok(()));
                a_while();
                check!(pair.near.events.sends.len() == 0);
                posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
                check!(back(&pair)? == slot.into());
                // CAST: A small number.
                check!(pair.requested()? == slot as u8);
            }
            // Nobody waits, so there is at most one more interrupt.
            for number in 4..6 {
                posted(pair.far.qp.recv(pair.landing(2, 64)?))?;
                let message = pair.message(number, 16, 1)?;
                // CAST: A small number.
                posted(pair.near.qp.send(number as u16, message, true))?;
                pair.requested()?;
                a_while();
                if number == 5 {
                    check!(pair.near.events.sends.len() == 0);
                }
                wait_until(|| {
                    pair.near.send_cq.reap();
                    pair.near.events.sends.len() == 1
                })?;
                check!(back(&pair)? == number);
            }
            Ok(())
        })
    }

    #[test]
    fn all_can_be_polled() -> Result {
        let kind = Kind {
            direct: Some((true, true)),
            srq: None,
        };
        with_pair_of(CAPS, kind, |pair| {
            posted(pair.near.qp.recv(pair.landing(0, 64)?))?;
            posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
            posted(pair.far.qp.send(0, pair.message(0, 16, 1)?, true))?;
            check!(pair.far.events.sends.take()?.1.is_ok());
            posted(pair.near.qp.send(0, pair.message(0, 16, 1)?, true))?;
            pair.requested()?;
            a_while();
            check!(pair.near.qp.completions() == 0);
            wait_until(|| {
                pair.near.send_cq.reap();
                pair.near.qp.completions() == 1
            })?;
            Ok(())
        })
    }
}
