// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of RDMA WRITEs with immediate data, and of solicited completions.

use crate::rdma::kunit::{
    broken::{
        post_fails,
        replaced, //
    },
    qp::{
        refusal,
        CAPS, //
    },
    rival::Notified,
    *, //
};

#[kernel::macros::kunit_tests(farblk_rdma_immediate)]
mod tests {
    use super::*;

    /// An announcement that wakes nobody.
    fn number(immediate: u32) -> Announcement {
        Announcement {
            immediate,
            solicited: false,
        }
    }

    /// A pair whose far side takes RDMA WRITEs with immediate data.
    fn with_taker(test: impl FnOnce(Pair) -> Result) -> Result {
        with_pair(CAPS, |pair| {
            pair.far.events.takes_writes.store(1, Relaxed);
            test(pair)
        })
    }

    #[test]
    fn tells_the_peer_of_the_write() -> Result {
        with_taker(|pair| {
            let theirs = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.target(&theirs)?;
            for (round, len) in [(1, 1), (2, 100), (3, PAGE_SIZE)] {
                fill(&theirs.memory, PAGE_SIZE, 0);
                let ours = Block::new(1, len, round)?;
                let mut landing = pair.landing(round.into(), 64)?;
                landing.buffer.copy_in(0, &[0x5a; 64])?;
                posted(pair.far.qp.recv(landing))?;
                let announcement = number(0xfedc_ba00 | u32::from(round));
                let owner = pair.block(round.into(), &ours);
                let remote = Some(remote);
                let qp = &pair.near.qp;
                posted(qp.write_with_immediate(0, remote, announcement, owner, true))?;
                let (owner, result) = pair.near.events.sends.take()?;
                check!(owner.number == round.into() && result == Ok(()));
                let (landing, result) = pair.far.events.recvs.take()?;
                // The length is that of the data, which are where they were written to.
                check!(landing.written && result == Ok(len as u32));
                check!(landing.number == round.into());
                check!(landing.immediate == Some(announcement.immediate));
                check!(is_full_of(&theirs.memory, len, round));
                check!(len == PAGE_SIZE || !is_full_of(&theirs.memory, len + 1, round));
                // Nothing is in the receive.
                let mut room = [0; 64];
                landing.buffer.copy_out(0, &mut room)?;
                check!(room == [0x5a; 64]);
            }
            check!(pair.far.events.errors.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn write_of_no_bytes_brings_the_number() -> Result {
        with_taker(|pair| {
            posted(pair.far.qp.recv(pair.landing(1, 64)?))?;
            let qp = &pair.near.qp;
            posted(qp.write_with_immediate(0, None, number(7), pair.owner(2), true))?;
            check!(pair.near.events.sends.take()?.1 == Ok(()));
            let (landing, result) = pair.far.events.recvs.take()?;
            check!(landing.written && landing.immediate == Some(7) && result == Ok(0));
            Ok(())
        })
    }

    #[test]
    fn message_with_immediate_data_is_a_message() -> Result {
        with_taker(|pair| {
            posted(pair.far.qp.recv(pair.landing(1, 64)?))?;
            let message = pair.message(2, 10, 3)?;
            posted(pair.near.qp.send_solicited(0, Some(9), message, true))?;
            check!(pair.near.events.sends.take()?.1 == Ok(()));
            let (landing, result) = pair.far.events.recvs.take()?;
            check!(!landing.written && landing.immediate == Some(9) && result == Ok(10));
            let mut data = [0; 10];
            landing.buffer.copy_out(0, &mut data)?;
            check!(data == [3; 10]);
            Ok(())
        })
    }

    #[test]
    fn waits_for_a_receive() -> Result {
        with_taker(|pair| {
            let ours = Block::new(1, 64, 1)?;
            let theirs = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.target(&theirs)?;
            let (qp, events) = (&pair.near.qp, &pair.near.events);
            let owner = pair.block(1, &ours);
            posted(qp.write_with_immediate(0, Some(remote), number(1), owner, true))?;
            a_while();
            check!(events.sends.len() == 0 && pair.far.events.recvs.len() == 0);
            posted(pair.far.qp.recv(pair.landing(1, 64)?))?;
            let (landing, result) = pair.far.events.recvs.take()?;
            check!(landing.written && landing.immediate == Some(1) && result == Ok(64));
            check!(events.sends.take()?.1 == Ok(()));
            check!(is_full_of(&theirs.memory, 64, 1));
            Ok(())
        })
    }

    #[test]
    fn is_refused_before_anything_is_posted() -> Result {
        with_taker(|pair| {
            let qp = &pair.near.qp;
            let remote = RemoteRange { addr: 0, rkey: 0 };
            // No memory, more than a work request takes, and what ends behind all addresses.
            let owner = pair.owner(1);
            let refused = qp.write_with_immediate(0, Some(remote), number(0), owner, true);
            check!(refusal(refused) == Some((EINVAL, 1)));
            let many = Block::new(40, 16, 0)?;
            let owner = pair.block(2, &many);
            let refused = qp.write_with_immediate(0, Some(remote), number(0), owner, true);
            check!(refusal(refused) == Some((EINVAL, 2)));
            let beyond = RemoteRange {
                addr: u64::MAX - 1,
                ..remote
            };
            let owner = pair.block(3, &Block::new(1, 64, 0)?);
            let refused = qp.write_with_immediate(0, Some(beyond), number(0), owner, true);
            check!(refusal(refused) == Some((EINVAL, 3)));
            check!(refusal(qp.send_solicited(0, None, pair.owner(4), true)) == Some((EINVAL, 4)));
            check!(qp.posted() == 0 && pair.alive.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn that_may_not_be_written_is_not_told_of() -> Result {
        with_taker(|pair| {
            let theirs = Block::new(1, PAGE_SIZE, 0)?;
            let mr = pair.register(pair.region(&theirs, Access::RemoteRead)?)?;
            posted(pair.far.qp.recv(pair.landing(1, 64)?))?;
            let owner = pair.block(1, &Block::new(1, 64, 1)?);
            let qp = &pair.near.qp;
            posted(qp.write_with_immediate(0, mr.remote(), number(1), owner, true))?;
            let (_, result) = pair.near.events.sends.take()?;
            check!(result.err().map(WcError::to_error) == Some(EACCES));
            check!(is_full_of(&theirs.memory, PAGE_SIZE, 0));
            let (landing, result) = pair.far.events.recvs.take()?;
            check!(!landing.written && result.is_err());
            Ok(())
        })
    }

    #[test]
    fn takes_a_receive_of_a_shared_queue() -> Result {
        with_device(|device, addr| {
            let alive = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let srq = srq::create(device)?;
            for number in 0..2 {
                posted(srq.recv(srq::landing(device, &alive, number)?))?;
            }
            let pair = srq::pair(addr, &srq)?;
            pair.far.events.takes_writes.store(1, Relaxed);
            let (qp, events) = (&pair.near.qp, &pair.far.events);
            posted(qp.write_with_immediate(0, None, number(5), pair.owner(1), true))?;
            let (landing, result) = events.recvs.take()?;
            check!(landing.written && landing.immediate == Some(5) && result == Ok(0));
            posted(qp.send(1, pair.message(2, 10, 1)?, true))?;
            let (landing, result) = events.recvs.take()?;
            check!(!landing.written && landing.immediate.is_none() && result == Ok(10));
            Ok(())
        })
    }
}

#[kernel::macros::kunit_tests(farblk_rdma_solicited)]
mod solicited {
    use super::*;

    /// A pair whose near side's receives complete in a queue that is polled, and who is told of it.
    fn with_waiter(test: impl FnOnce(Pair, &Atomic<u32>) -> Result) -> Result {
        with_device(|_, addr| {
            let notified = Arc::new(Notified(Atomic::new(0)), GFP_KERNEL)?;
            let contexts = (PollContext::Softirq, PollContext::Manual(notified.clone()));
            let pair = Pair::with_contexts(addr, CAPS, contexts, None)?;
            pair.near.events.takes_writes.store(1, Relaxed);
            for number in 0..CAPS.recv_wr {
                posted(pair.near.qp.recv(pair.landing(number, 64)?))?;
            }
            test(pair, &notified.0)
        })
    }

    /// Sends a message to the near side, as one that wakes it or not, and waits until it is there.
    fn send(pair: &Pair, solicited: bool) -> Result {
        let (qp, message) = (&pair.far.qp, pair.message(1, 8, 1)?);
        posted(match solicited {
            true => qp.send_solicited(0, None, message, true),
            false => qp.send(0, message, true),
        })?;
        check!(pair.far.events.sends.take()?.1 == Ok(()));
        Ok(())
    }

    #[test]
    fn message_wakes_and_another_does_not() -> Result {
        with_waiter(|pair, notified| {
            let cq = &pair.near.recv_cq;
            check!(!cq.arm_solicited());
            send(&pair, false)?;
            a_while();
            check!(notified.load(Relaxed) == 0 && pair.near.events.recvs.len() == 0);
            send(&pair, true)?;
            wait_until(|| notified.load(Relaxed) == 1)?;
            wait_until(|| {
                cq.reap();
                pair.near.events.recvs.len() == 2
            })?;
            // That was for one interrupt.
            send(&pair, true)?;
            a_while();
            check!(notified.load(Relaxed) == 1);
            // Also what is not solicited is a reason to look before one waits.
            check!(cq.arm_solicited());
            cq.reap();
            check!(!cq.arm_solicited());
            // To be armed for all is not undone.
            check!(!cq.arm() && !cq.arm_solicited());
            send(&pair, false)?;
            wait_until(|| notified.load(Relaxed) == 2)?;
            Ok(())
        })
    }

    #[test]
    fn write_wakes_if_it_should() -> Result {
        with_waiter(|pair, notified| {
            let write = |solicited| {
                let announcement = Announcement {
                    immediate: u32::from(solicited),
                    solicited,
                };
                let (qp, owner) = (&pair.far.qp, pair.owner(1));
                posted(qp.write_with_immediate(0, None, announcement, owner, true))?;
                check!(pair.far.events.sends.take()?.1 == Ok(()));
                Ok(())
            };
            check!(!pair.near.recv_cq.arm_solicited());
            write(false)?;
            a_while();
            check!(notified.load(Relaxed) == 0);
            write(true)?;
            wait_until(|| notified.load(Relaxed) == 1)?;
            wait_until(|| {
                pair.near.recv_cq.reap();
                pair.near.events.recvs.len() == 2
            })?;
            for wanted in 0..2 {
                let (landing, result) = pair.near.events.recvs.take()?;
                check!(landing.immediate == Some(wanted) && result == Ok(0));
            }
            Ok(())
        })
    }

    #[test]
    fn receive_that_fails_wakes() -> Result {
        with_waiter(|pair, notified| {
            if pair.pd.device().quirks().flushes_unsolicited() {
                skip(c"the device does not tell of what is flushed");
                return Ok(());
            }
            check!(!pair.near.recv_cq.arm_solicited());
            pair.near.id.disconnect();
            wait_until(|| notified.load(Relaxed) != 0)
        })
    }

    #[test]
    fn queue_that_is_not_polled_is_not_armed() -> Result {
        with_pair(CAPS, |pair| {
            check!(!pair.near.recv_cq.arm_solicited());
            check!(!pair.near.send_cq.arm_solicited());
            Ok(())
        })
    }

    /// What is last of a slot is told by its flags, of which this has another one.
    #[test]
    fn comes_back_once_if_it_is_not_posted() -> Result {
        for fails in [true, false] {
            with_pair(CAPS, |pair| {
                let (qp, events) = (&pair.near.qp, &pair.near.events);
                posted(qp.send_solicited(0, None, pair.message(0, 8, 1)?, false))?;
                posted(qp.send(1, pair.message(1, 8, 1)?, false))?;
                let announcement = Announcement {
                    immediate: 1,
                    solicited: true,
                };
                posted(qp.write_with_immediate(2, None, announcement, pair.owner(2), false))?;
                if fails {
                    let broken = replaced!(pair.pd.device(), post_send, post_fails);
                    qp.ring();
                    drop(broken);
                } else {
                    qp.fail();
                }
                check!(events.sends.len() == 3);
                for number in 0..3 {
                    let (owner, result) = events.sends.take()?;
                    check!(owner.number == number);
                    check!(matches!(result, Err(WcError::NotCompleted(_))));
                }
                check!(qp.drain() == Ok(()) && events.sends.len() == 0);
                Ok(())
            })?;
        }
        Ok(())
    }
}
