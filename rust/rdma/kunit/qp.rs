// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of queue pairs: how they are made, RDMA READs and receives.

use super::*;

/// Room for few, so that it runs out.
pub(super) const CAPS: QpCaps = QpCaps {
    slots: 8,
    send_wr: 4,
    large: 1,
    ..super::CAPS
};
/// The bytes per segment of a memory with many.
pub(super) const PIECE: usize = 512;

/// The error of a refused post, and the owner that came back.
pub(super) fn refusal(result: Result<(), (Error, Owner)>) -> Option<(Error, u32)> {
    result.err().map(|(error, owner)| (error, owner.number))
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
                let ours = Block::new(most_pieces(&pair, pieces), piece, 0)?;
                check!(pair.rdma(RdmaOp::Read, &ours, remote)? == Ok(()));
                check!(is_full_of(&ours.memory, ours.len, 7));
                let more = (ours.len + 1).min(ours.len.next_multiple_of(PAGE_SIZE));
                check!(more == ours.len || !is_full_of(&ours.memory, more, 7));
            }
            // Into memory that is mapped already, as a server does.
            let mut owner = pair.owner(1);
            owner.piece =
                Some(DmaMemory::alloc(pair.pd.device(), 5000, NumaNode::NO_NODE)?.piece(0, 5000)?);
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
                    ..Block::new(most_pieces(&pair, 40), 16, 0)?
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

#[kernel::macros::kunit_tests(farblk_rdma_nothing)]
mod nothing {
    use super::*;

    #[test]
    fn is_read_and_written() -> Result {
        with_pair(CAPS, |pair| {
            for op in [RdmaOp::Read, RdmaOp::Write] {
                posted(
                    pair.near
                        .qp
                        .rdma_nothing(0, op, pair.message(7, 1, 0)?, true),
                )?;
                let (owner, result) = pair.near.events.sends.take()?;
                check!(owner.number == 7 && result.is_ok());
            }
            check!(pair.far.qp.completions() == 0);
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
            let cq = AnyCq::alloc(device, 64, 0, PollContext::Workqueue)?;
            let create = |id: &Arc<CmId>, cq: &ObjectRef<AnyCq>, caps: RequestCaps| {
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
            check!(create(&pair.near.id, &cq, CAPS.into()) == Err(EBUSY));

            let id = CmId::new(&devices()?, &Net::current(), Connection::new()?)?;
            let (_, addr) = some_device()?;
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
            ];
            let caps = RequestCaps::from(CAPS);
            let regions = [
                RequestCaps { regions: 1, ..caps },
                RequestCaps {
                    regions: CAPS.slots + 1,
                    region_pages: 1,
                    ..caps
                },
                RequestCaps {
                    large_regions: 1,
                    ..caps
                },
            ];
            for caps in wrong {
                check!(create(&id, &cq, caps.into()) == Err(EINVAL));
            }
            for caps in regions {
                check!(create(&id, &cq, caps) == Err(EINVAL));
            }
            // A completion queue of one entry less than two such queue pairs need, or than one.
            let entries = CAPS.send_cqes() + CAPS.recv_cqes();
            let small = AnyCq::alloc(device, entries - 1, 0, PollContext::Workqueue)?;
            check!(create(&id, &small, CAPS.into()) == Err(ENOSPC));
            // None of these has taken anything.
            check!(last(small));
            check!(create(&id, &cq, CAPS.into()) == Ok(()));
            check!(create(&id, &cq, CAPS.into()) == Ok(()));
            check!(last(cq));
            Ok(())
        })
    }
}
