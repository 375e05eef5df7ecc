// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of shared receive queues.

use super::*;
use crate::rdma::srq::SrqEvents;

pub(super) const CAPS: QpCaps = QpCaps {
    slots: 8,
    recv_wr: 1,
    ..super::CAPS
};
/// Receives of a queue.
const RECEIVES: u32 = 16;
/// Queue pairs of a queue.
const MEMBERS: usize = 2;

/// Makes a queue for [`MEMBERS`] queue pairs.
pub(super) fn create(device: &Arc<Device>) -> Result<ObjectRef<Srq<Handler>>> {
    create_in(device, PollContext::Workqueue, None)
}

/// Makes such a queue, whose completions are handled in `context`, with `events`.
pub(super) fn create_in(
    device: &Arc<Device>,
    context: PollContext,
    events: Option<Arc<dyn SrqEvents>>,
) -> Result<ObjectRef<Srq<Handler>>> {
    let caps = QpCaps { recv_wr: 0, ..CAPS };
    let entries = RECEIVES + MEMBERS as u32 * caps.send_cqes();
    let cq = AnyCq::alloc(device, entries, 0, context)?;
    Srq::create(&Pd::alloc(device)?, &cq, RECEIVES, MEMBERS, events)
}

/// An owner of room for a message.
pub(super) fn landing(
    device: &Arc<Device>,
    alive: &Arc<Atomic<i32>>,
    number: u32,
) -> Result<Landing> {
    let memory = DmaMemory::alloc(device, PAGE_SIZE, NumaNode::NO_NODE)?;
    Ok(Landing {
        number,
        buffer: DmaBuffer::alloc(device, 32, Direction::FromDevice)?,
        piece: Some(memory.piece(0, PAGE_SIZE)?),
        answer: None,
        invalidated: false,
        written: false,
        immediate: None,
        again: 0,
        rival: None,
        _alive: Alive::new(alive),
    })
}

/// An unconnected queue pair that receives from `srq`, and its id.
pub(super) fn join(
    addr: SocketAddr,
    srq: &ObjectRef<Srq<Handler>>,
    caps: QpCaps,
) -> Result<(Arc<CmId>, ObjectRef<Qp<Handler>>)> {
    let id = CmId::new(&devices()?, &Net::current(), Connection::new()?)?;
    id.resolve(None, addr, TIMEOUT_MS)
        .map_err(|error| error.to_error())?;
    let caps = QpCaps { recv_wr: 0, ..caps };
    let qp = Qp::create_on(&id, srq, srq.cq(), caps.into(), Handler(Events::new()?))?;
    Ok((id, qp))
}

/// A pair whose far side receives from `srq`, not listening any more.
pub(super) fn pair(addr: SocketAddr, srq: &ObjectRef<Srq<Handler>>) -> Result<Pair> {
    let kind = Kind {
        direct: None,
        srq: Some(srq.clone()),
    };
    let mut pair = Pair::new(addr, CAPS, kind)?;
    pair.listener = None;
    Ok(pair)
}

/// Counts how often a queue got short of receives.
struct Short(Atomic<u32>);

impl SrqEvents for Short {
    fn limit_reached(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[kernel::macros::kunit_tests(farblk_rdma_srq)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_told_of_once_each_time() -> Result {
        with_device(|device, addr| {
            let alive = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            check!(create(device)?.arm_limit(1) == Err(EINVAL));
            let short = Arc::new(Short(Atomic::new(0)), GFP_KERNEL)?;
            let srq = create_in(device, PollContext::Workqueue, Some(short.clone()))?;
            for number in 0..4 {
                posted(srq.recv(landing(device, &alive, number)?))?;
            }
            check!(srq.arm_limit(RECEIVES + 1) == Err(EINVAL));
            srq.arm_limit(3)?;
            let pair = pair(addr, &srq)?;
            let send = || -> Result {
                posted(pair.near.qp.send(0, pair.message(0, 8, 1)?, true))?;
                check!(pair.near.events.sends.take()?.1 == Ok(()));
                check!(pair.far.events.recvs.take()?.1 == Ok(8));
                Ok(())
            };
            // Three are left: not fewer than that.
            send()?;
            check!(short.0.load(Relaxed) == 0);
            send()?;
            wait_until(|| short.0.load(Relaxed) == 1)?;
            send()?;
            a_while();
            check!(short.0.load(Relaxed) == 1);
            for number in 4..8 {
                posted(srq.recv(landing(device, &alive, number)?))?;
            }
            srq.arm_limit(5)?;
            send()?;
            wait_until(|| short.0.load(Relaxed) == 2)?;
            // It may be disarmed.
            srq.arm_limit(4)?;
            srq.arm_limit(0)?;
            send()?;
            a_while();
            check!(short.0.load(Relaxed) == 2);
            drop(pair);
            drop(srq);
            check!(alive.load(Relaxed) == 0 && last(short));
            Ok(())
        })
    }

    #[test]
    fn messages_come_in_where_they_were_sent_to() -> Result {
        with_device(|device, addr| {
            let alive = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let srq = create(device)?;
            for number in 0..RECEIVES {
                posted(srq.recv(landing(device, &alive, number)?))?;
            }
            let result = srq.recv(landing(device, &alive, 99)?);
            check!(posted(result) == Err(EAGAIN));
            let pairs = [pair(addr, &srq)?, pair(addr, &srq)?];
            for round in 0..40 {
                let index = usize::from(round % 3 == 0);
                let other = &pairs[1 - index];
                let pair = &pairs[index];
                posted(pair.near.qp.send(0, pair.message(0, 100, round)?, true))?;
                check!(pair.near.events.sends.take()?.1.is_ok());
                let (landing, result) = pair.far.events.recvs.take()?;
                check!(result == Ok(100) && other.far.events.recvs.len() == 0);
                let mut data = [0; 32];
                landing.buffer.copy_out(0, &mut data)?;
                check!(data == [round; 32]);
                let mut piece = landing.piece.ok_or(EIO)?;
                piece.resize(68)?;
                check!(piece_is_full_of(&piece, round));
                let number = landing.number;
                // Either way leads to the same queue.
                let landing = super::landing(device, &alive, number)?;
                match round % 2 {
                    0 => posted(srq.recv(landing))?,
                    _ => posted(pairs[0].far.qp.recv(landing))?,
                }
            }
            check!(alive.load(Relaxed) == RECEIVES as i32);
            drop(pairs);
            check!(alive.load(Relaxed) == RECEIVES as i32);
            check!(last(srq));
            check!(alive.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn is_used_on_when_a_queue_pair_goes() -> Result {
        with_device(|device, addr| {
            let alive = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let srq = create(device)?;
            let stays = pair(addr, &srq)?;
            for number in 0..RECEIVES {
                let landing = Landing {
                    again: u32::MAX,
                    ..landing(device, &alive, number)?
                };
                posted(srq.recv(landing))?;
            }
            for round in 0..8 {
                let goes = pair(addr, &srq)?;
                for slot in 0..8 {
                    let message = goes.message(slot.into(), 32 + PAGE_SIZE, 1)?;
                    posted(goes.near.qp.send(slot, message, slot == 7))?;
                }
                // In the midst of it, or after.
                if round % 2 == 0 {
                    check!(goes.near.events.sends.take()?.1.is_ok());
                }
                match round % 3 {
                    0 => goes.far.qp.fail(),
                    1 => goes.near.id.disconnect(),
                    _ => {}
                }
                drop(goes);
                // The other one gets its messages.
                for _ in 0..4 {
                    posted(stays.near.qp.send(0, stays.message(0, 100, 2)?, true))?;
                    check!(stays.near.events.sends.take()?.1.is_ok());
                }
            }
            check!(stays.far.events.errors.load(Relaxed) == 0);
            drop(stays);
            check!(last(srq));
            check!(alive.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn replies_go_where_the_request_came_from() -> Result {
        with_device(|device, addr| {
            let alive = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let srq = create(device)?;
            posted(srq.recv(landing(device, &alive, 0)?))?;
            let pair = pair(addr, &srq)?;
            posted(pair.near.qp.recv(pair.answer()?))?;
            pair.request(1, Carry::Inline, &Block::new(1, 512, 3)?, true)?;
            check!(pair.requested()? == 1);
            let landing = pair.replied(Reply::default(), pair.message(0, 1, 1)?)?;
            check!(landing.answer == Some(Ok(())));
            check!(pair.near.events.sends.take()?.0.number == 1);
            Ok(())
        })
    }

    #[test]
    fn refuses_what_cannot_be() -> Result {
        with_device(|device, addr| {
            let pd = Pd::alloc(device)?;
            let max = device.limits().max_srq_wr;
            let cq = AnyCq::alloc(device, RECEIVES, 0, PollContext::Workqueue)?;
            let create = |receives| Srq::<Handler>::create(&pd, &cq, receives, 1, None);
            check!(create(0).err() == Some(EINVAL));
            check!(create(max.saturating_add(1)).err() == Some(EINVAL));
            check!(create(RECEIVES + 1).err() == Some(ENOSPC));
            let srq = create(RECEIVES)?;
            check!(create(1).err() == Some(ENOSPC));

            let caps = QpCaps { recv_wr: 0, ..CAPS };
            let join = |srq: &ObjectRef<Srq<Handler>>, caps: QpCaps| {
                let id = CmId::new(&devices()?, &Net::current(), Connection::new()?)?;
                id.resolve(None, addr, TIMEOUT_MS)
                    .map_err(|error| error.to_error())?;
                Qp::create_on(&id, srq, srq.cq(), caps.into(), Handler(Events::new()?))
            };
            // It has no room for sends.
            check!(join(&srq, caps).err() == Some(ENOSPC));
            check!(last(srq) && create(RECEIVES).is_ok());

            let srq = super::create(device)?;
            check!(join(&srq, CAPS).err() == Some(EINVAL));
            let first = join(&srq, caps)?;
            let second = join(&srq, caps)?;
            check!(join(&srq, caps).err() == Some(ENOSPC));
            drop(first);
            let third = join(&srq, caps)?;
            // Nothing can come in.
            drop((second, third));
            check!(last(srq));
            Ok(())
        })
    }
}
