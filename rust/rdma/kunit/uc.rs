// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of unreliable connections: what arrives, what is lost, and that a queue
//! pair survives that.
//!
//! Nobody is told that something was lost. So a test sends something else behind it, which arrives:
//! both queue pairs handle what they are given in order.

use crate::base::errno::{
    ECONNREFUSED,
    EOPNOTSUPP,
    ESHUTDOWN, //
};
use crate::rdma::{
    kunit::{
        broken::IGNORED,
        *, //
    },
    qp::{
        Uc,
        Unacknowledged, //
    },
};

const CAPS: QpCaps = QpCaps {
    large: 1,
    ..super::CAPS
};

impl QpHandler<Uc> for Handler {
    type Send = Owner;
    type Recv = Landing;
    type Ulp = ();

    fn send_done(
        &self,
        qp: &Qp<Self, Uc>,
        mut owner: Owner,
        result: Result<Unacknowledged, WcError>,
    ) {
        let mut done = result.map(|Unacknowledged| ());
        if let (Some((left @ 1.., remote)), Ok(())) = (owner.again, done) {
            owner.again = Some((left - 1, remote));
            // CAST: Tests number what is to be repeated by its slot.
            match qp.write(owner.number as u16, remote, owner, true) {
                Ok(()) => return,
                Err((error, back)) => {
                    owner = back;
                    done = Err(WcError::NotCompleted(error));
                }
            }
        }
        self.0.sends.put((owner, done));
    }

    fn recv_done(&self, _: &Qp<Self, Uc>, owner: Landing, result: Result<Received<'_>, WcError>) {
        self.0
            .recvs
            .put((owner, result.map(|received| received.len())));
    }

    fn write_received(
        &self,
        _: &Qp<Self, Uc>,
        mut owner: Landing,
        written: Written<'_>,
    ) -> Result<(), Landing> {
        owner.written = true;
        owner.immediate = Some(written.immediate());
        self.0.recvs.put((owner, Ok(written.len())));
        Ok(())
    }

    fn error(&self) {
        self.0.errors.fetch_add(1, Relaxed);
    }
}

/// In which contexts sends and receives complete.
const CONTEXTS: (PollContext, PollContext) = (PollContext::Softirq, PollContext::Workqueue);

/// A side that could connect to `addr`.
fn resolved(addr: SocketAddr, pd: &Arc<Pd>, caps: QpCaps) -> Result<Side<Uc>> {
    let connection = Connection::new()?;
    let id = CmId::new(&devices()?, &Net::current(), connection.clone())?;
    id.resolve(None, addr, TIMEOUT_MS)
        .map_err(|error| error.to_error())?;
    Side::new(id, connection, pd, caps, CONTEXTS)
}

impl Side<Uc> {
    /// Returns true if nothing was left behind, and nothing has failed.
    fn is_quiet(&self) -> bool {
        let events = &self.events;
        let nothing = events.sends.len() == 0 && events.recvs.len() == 0;
        nothing && events.errors.load(Relaxed) == 0 && !self.qp.has_failed()
    }
}

/// Two queue pairs with an unreliable connection, and two with a reliable one in the same
/// protection domain, which register memory.
struct UcPair {
    // Fields are dropped in this order.
    near: Side<Uc>,
    far: Side<Uc>,
    rc: Pair,
    _listener: Listener<Uc>,
}

impl UcPair {
    fn new(addr: SocketAddr, mut rc: Pair) -> Result<Self> {
        // It has the same port.
        rc.listener = None;
        let (near, pd) = (resolved(addr, &rc.pd, CAPS)?, rc.pd.clone());
        let (far, listener) = connect(&near.id, addr, move |id, connection| {
            Side::new(id, connection, &pd, CAPS, CONTEXTS)
        })?;
        Ok(Self {
            near,
            far,
            rc,
            _listener: listener,
        })
    }

    /// Sends a message of `len` times `byte` from the near side, which leaves.
    fn send(&self, len: usize, byte: u8) -> Result {
        posted(self.near.qp.send(0, self.rc.message(0, len, byte)?, true))?;
        let (_, result) = self.near.events.sends.take()?;
        result.map_err(|error| error.to_error())
    }

    /// Writes `block` from the near side to `remote`. It leaves.
    fn write(&self, block: &Block, remote: RemoteRange) -> Result {
        posted(self.near.qp.write(1, remote, self.rc.block(1, block), true))?;
        let (owner, result) = self.near.events.sends.take()?;
        check!(owner.number == 1);
        result.map_err(|error| error.to_error())
    }

    /// Waits until the far side has handled all that the near side has sent.
    fn flush(&self) -> Result {
        let theirs = Block::new(1, 8, 0)?;
        let (_mr, remote) = self.rc.target(&theirs)?;
        self.write(&Block::new(1, 8, 1)?, remote)?;
        wait_until(|| is_full_of(&theirs.memory, 8, 1))
    }

    /// Posts a receive of the far side for at most `len` bytes.
    fn recv(&self, number: u32, len: usize) -> Result {
        posted(self.far.qp.recv(self.rc.landing(number, len)?))
    }

    /// Waits for a message at the far side, which must be `len` times `byte` in receive `number`.
    fn received(&self, number: u32, len: usize, byte: u8) -> Result {
        let (landing, result) = self.far.events.recvs.take()?;
        // CAST: Messages of tests are short.
        check!(landing.number == number && result == Ok(len as u32));
        let mut data = [0; 64];
        let data = data.get_mut(..len).ok_or(EIO)?;
        landing.buffer.copy_out(0, data)?;
        check!(data.iter().all(|found| *found == byte));
        Ok(())
    }
}

/// Runs a test with a pair, and checks that both sides are as good as new then.
fn with_uc(test: impl FnOnce(&UcPair) -> Result) -> Result {
    with_uc_that_ends(|pair| {
        test(pair)?;
        check!(pair.near.is_quiet() && pair.far.is_quiet());
        Ok(())
    })
}

/// Runs a test with a pair, and checks that every owner is dropped once at its end. Skips it where
/// there are no such connections.
fn with_uc_that_ends(test: impl FnOnce(&UcPair) -> Result) -> Result {
    with_device(|_, addr| {
        let rc = Pair::new(addr, super::CAPS, Kind::default())?;
        let alive = rc.alive.clone();
        if rc.near.id.is_iwarp() {
            let created = resolved(addr, &rc.pd, CAPS).map(drop);
            check!(created == Err(EOPNOTSUPP));
            skip(c"iWARP has no unreliable connections");
            return Ok(());
        }
        let pair = UcPair::new(addr, rc)?;
        test(&pair)?;
        drop(pair);
        check!(alive.load(Relaxed) == 0);
        Ok(())
    })
}

#[kernel::macros::kunit_tests(farblk_rdma_uc)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_both_ways() -> Result {
        with_uc(|pair| {
            for round in 0..3u8 {
                for number in 0..4u8 {
                    pair.recv(number.into(), 64)?;
                }
                for number in 0..4u8 {
                    pair.send(10 + usize::from(number), round + number)?;
                    pair.received(number.into(), 10 + usize::from(number), round + number)?;
                }
            }
            posted(pair.near.qp.recv(pair.rc.landing(7, 64)?))?;
            posted(pair.far.qp.send(0, pair.rc.message(8, 64, 9)?, true))?;
            check!(pair.near.events.recvs.take()?.1 == Ok(64));
            let (owner, result) = pair.far.events.sends.take()?;
            check!(owner.number == 8 && result == Ok(()));
            check!(pair.far.qp.completions() == 13 && pair.near.qp.completions() == 13);
            Ok(())
        })
    }

    #[test]
    fn both_sides_hear_of_the_connection_and_its_end() -> Result {
        with_uc(|pair| {
            let (near, far) = (&pair.near.connection, &pair.far.connection);
            check!(far.established.wait_timeout(TIMEOUT_MS).is_ok());
            let ((_, ours), (_, theirs)) = pair.near.id.ends()?;
            check!(ours != 0 && theirs != 0 && ours != theirs);
            pair.near.id.disconnect();
            check!(far.lost.wait_timeout(TIMEOUT_MS).is_ok());
            pair.far.id.disconnect();
            check!(near.lost.wait_timeout(TIMEOUT_MS).is_ok());
            Ok(())
        })
    }

    #[test]
    fn data_are_written_whatever_the_size() -> Result {
        with_uc(|pair| {
            let theirs = Block::new(64, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.rc.target(&theirs)?;
            // The last of these takes two work requests.
            for (byte, (pieces, piece)) in [(1, 1), (1, 1025), (3, 512), (16, PAGE_SIZE), (40, 512)]
                .into_iter()
                .enumerate()
            {
                // CAST: There are few of them.
                let byte = 1 + byte as u8;
                let pieces = pieces.min(pair.near.qp.max_segments() as usize);
                let ours = Block::new(pieces, piece, byte)?;
                pair.write(&ours, remote)?;
                wait_until(|| is_full_of(&theirs.memory, ours.len, byte))?;
                check!(!is_full_of(&theirs.memory, ours.len + 1, byte));
            }
            let mut buffer = DmaBuffer::alloc(pair.rc.pd.device(), 64, Direction::ToDevice)?;
            for at in 0..64 {
                buffer.copy_in(at, &[9])?;
            }
            let (buffer, owner) = (Arc::new(buffer, GFP_KERNEL)?, pair.rc.owner(2));
            posted(
                pair.near
                    .qp
                    .write_repeated(0, remote, &buffer, 200, owner, true),
            )?;
            check!(pair.near.events.sends.take()?.1 == Ok(()));
            wait_until(|| is_full_of(&theirs.memory, 200, 9))
        })
    }

    #[test]
    fn write_with_immediate_data_is_told_of_if_there_is_a_receive() -> Result {
        with_uc(|pair| {
            let theirs = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.rc.target(&theirs)?;
            for round in 1..4 {
                let has_receive = round != 2;
                if has_receive {
                    pair.recv(round.into(), 64)?;
                }
                let announcement = Announcement {
                    immediate: 0xfedc_ba00 | u32::from(round),
                    solicited: false,
                };
                let owner = pair.rc.block(1, &Block::new(1, 100, round)?);
                let (qp, remote) = (&pair.near.qp, Some(remote));
                posted(qp.write_with_immediate(0, remote, announcement, owner, true))?;
                // It has left.
                check!(pair.near.events.sends.take()?.1 == Ok(()));
                if !has_receive {
                    pair.flush()?;
                    check!(pair.far.is_quiet());
                    continue;
                }
                let (landing, result) = pair.far.events.recvs.take()?;
                check!(landing.number == round.into() && landing.written);
                check!(result == Ok(100) && landing.immediate == Some(announcement.immediate));
                check!(is_full_of(&theirs.memory, 100, round));
            }
            Ok(())
        })
    }

    #[test]
    fn message_without_a_receive_is_lost() -> Result {
        with_uc(|pair| {
            for byte in 1..4 {
                pair.send(64, byte)?;
            }
            pair.flush()?;
            check!(pair.far.is_quiet() && pair.far.qp.completions() == 0);
            pair.recv(1, 64)?;
            pair.send(64, 5)?;
            pair.received(1, 64, 5)
        })
    }

    #[test]
    fn message_that_is_too_long_does_not_arrive() -> Result {
        with_uc_that_ends(|pair| {
            pair.recv(1, 32)?;
            pair.recv(2, 64)?;
            pair.send(33, 1)?;
            if pair.rc.pd.device().quirks().long_message_fails() {
                let (landing, result) = pair.far.events.recvs.take()?;
                check!(landing.number == 1 && result.is_err());
                check!(pair.far.events.errors.load(Relaxed) == 1);
                check!(pair.near.is_quiet());
                return Ok(());
            }
            pair.flush()?;
            check!(pair.far.is_quiet() && pair.far.qp.completions() == 0);
            // The receive is there still.
            pair.send(32, 2)?;
            pair.received(1, 32, 2)?;
            pair.send(64, 3)?;
            pair.received(2, 64, 3)?;
            check!(pair.near.is_quiet() && pair.far.is_quiet());
            Ok(())
        })
    }

    #[test]
    fn write_that_the_peer_does_not_allow_is_lost() -> Result {
        with_uc(|pair| {
            let theirs = Block::new(1, PAGE_SIZE, 0)?;
            let ours = Block::new(1, PAGE_SIZE, 7)?;
            let (mr, remote) = pair.rc.target(&theirs)?;
            let readable = pair.rc.region(&theirs, Access::RemoteRead)?;
            let readable = pair.rc.register(readable)?;
            let wrong = [
                RemoteRange {
                    rkey: remote.rkey ^ 1,
                    ..remote
                },
                RemoteRange {
                    addr: remote.addr + 1,
                    ..remote
                },
                readable.remote().ok_or(EIO)?,
            ];
            pair.recv(1, 64)?;
            for range in wrong {
                pair.write(&ours, range)?;
            }
            pair.flush()?;
            check!(is_full_of(&theirs.memory, PAGE_SIZE, 0));
            // The key was right until the region went.
            pair.write(&ours, remote)?;
            wait_until(|| is_full_of(&theirs.memory, PAGE_SIZE, 7))?;
            drop(mr);
            pair.write(&Block::new(1, PAGE_SIZE, 8)?, remote)?;
            pair.send(64, 3)?;
            pair.received(1, 64, 3)?;
            check!(is_full_of(&theirs.memory, PAGE_SIZE, 7));
            Ok(())
        })
    }

    /// What no method posts the device refuses, too.
    #[test]
    fn device_refuses_what_needs_an_answer() -> Result {
        with_uc(|pair| {
            let theirs = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = pair.rc.target(&theirs)?;
            let qp = pair.near.raw_qp();
            let mut sge = bindings::ib_sge::default();
            let all = [
                bindings::ib_wr_opcode_IB_WR_RDMA_READ,
                bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP,
                bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD,
                bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
                bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV,
            ];
            let late = pair.rc.pd.device().quirks().posts_any_invalidation();
            for opcode in &all[..all.len() - usize::from(late)] {
                let mut wr = bindings::ib_rdma_wr {
                    wr: bindings::ib_send_wr {
                        __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                            wr_cqe: (&raw const IGNORED.0).cast_mut(),
                        },
                        opcode: *opcode,
                        sg_list: &mut sge,
                        ..pin_init::zeroed()
                    },
                    remote_addr: remote.addr,
                    rkey: remote.rkey,
                };
                wr.wr.ex.invalidate_rkey = remote.rkey;
                let mut bad = core::ptr::null();
                // SAFETY: The queue pair is valid; the device copies the work request, or reads
                // nothing but its beginning.
                let ret = unsafe { bindings::ib_post_send(qp, &wr.wr, &mut bad) };
                check!(ret == EINVAL.to_errno());
            }
            pair.flush()
        })
    }

    /// What the methods post fails for no reason of this side, so this has a wrong local key.
    #[test]
    fn send_that_fails_ends_the_sends_alone() -> Result {
        with_uc_that_ends(|pair| {
            let UcPair { near, far, rc, .. } = pair;
            for number in 0..3 {
                posted(near.qp.recv(rc.landing(number, 64)?))?;
            }
            let buffer = DmaBuffer::alloc(rc.pd.device(), 64, Direction::ToDevice)?;
            let mut sge = bindings::ib_sge {
                addr: buffer.addr(),
                length: 64,
                lkey: !rc.pd.local_dma_lkey(),
            };
            let wr = bindings::ib_send_wr {
                __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                    wr_cqe: (&raw const IGNORED.0).cast_mut(),
                },
                sg_list: &mut sge,
                num_sge: 1,
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                ..pin_init::zeroed()
            };
            let mut bad = core::ptr::null();
            // SAFETY: The queue pair is valid; the device copies the work request. The buffer is
            // dropped after the queue pair was drained.
            let ret = unsafe { bindings::ib_post_send(near.raw_qp(), &wr, &mut bad) };
            check!(ret == 0);
            posted(near.qp.send(0, rc.message(9, 64, 1)?, true))?;
            let (owner, result) = near.events.sends.take()?;
            check!(owner.number == 9 && result.is_err() && near.qp.has_failed());
            let all_end = rc.pd.device().quirks().send_error_ends_receives();
            if all_end {
                wait_until(|| near.events.recvs.len() == 3)?;
            } else {
                for number in 0..2 {
                    posted(far.qp.send(0, rc.message(number, 64, 5)?, true))?;
                    check!(far.events.sends.take()?.1 == Ok(()));
                    let (landing, result) = near.events.recvs.take()?;
                    check!(landing.number == number && result == Ok(64));
                }
            }
            near.qp.drain()?;
            check!(near.events.recvs.len() == if all_end { 3 } else { 1 });
            while near.events.recvs.len() != 0 {
                check!(near.events.recvs.take()?.1.is_err());
            }
            check!(near.events.errors.load(Relaxed) == 1 && far.is_quiet());
            drop(buffer);
            Ok(())
        })
    }

    #[test]
    fn no_reliable_peer_is_connected_to() -> Result {
        with_device(|_, addr| {
            let rc = Pair::new(addr, super::super::CAPS, Kind::default())?;
            if rc.near.id.is_iwarp() {
                skip(c"iWARP has no unreliable connections");
                return Ok(());
            }
            let near = resolved(addr, &rc.pd, CAPS)?;
            let connected = near.id.connect(&PARAM, TIMEOUT_MS);
            check!(connected.err().map(|error| error.to_error()) == Some(ECONNREFUSED));
            Ok(())
        })
    }

    #[test]
    fn queue_pair_drains_under_load() -> Result {
        with_uc_that_ends(|pair| {
            let UcPair { near, far, rc, .. } = pair;
            let theirs = Block::new(1, PAGE_SIZE, 0)?;
            let (_mr, remote) = rc.target(&theirs)?;
            let ours = Block::new(1, PAGE_SIZE, 7)?;
            for number in 0..4 {
                posted(near.qp.recv(rc.landing(number, 64)?))?;
                posted(far.qp.recv(rc.landing(number, 64)?))?;
            }
            for slot in 0..3u16 {
                let owner = Owner {
                    again: Some((u32::MAX, remote)),
                    ..rc.block(slot.into(), &ours)
                };
                posted(near.qp.write(slot, remote, owner, true))?;
            }
            wait_until(|| near.qp.completions() > 100)?;
            near.qp.drain()?;
            check!(near.qp.in_flight() == 0);
            check!(near.events.sends.len() == 3 && near.events.recvs.len() == 4);
            for _ in 0..3 {
                check!(near.events.sends.take()?.1.is_err());
            }
            for _ in 0..4 {
                check!(near.events.recvs.take()?.1.is_err());
            }
            let result = near.qp.send(0, rc.message(9, 64, 1)?, true);
            check!(posted(result) == Err(ESHUTDOWN));
            // Nobody has told the far side.
            check!(far.is_quiet());
            // What it sends finds nobody, which it does not learn.
            posted(far.qp.send(0, rc.message(5, 64, 1)?, true))?;
            check!(far.events.sends.take()?.1 == Ok(()));
            far.qp.drain()?;
            check!(far.events.recvs.len() == 4);
            for _ in 0..4 {
                check!(far.events.recvs.take()?.1.is_err());
            }
            check!(rc.alive.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn what_is_posted_comes_back_when_the_queue_pair_is_dropped() -> Result {
        with_uc_that_ends(|pair| {
            for number in 0..4 {
                pair.recv(number, 64)?;
                let message = pair.rc.message(number, 64, 1)?;
                // CAST: A small number.
                posted(pair.near.qp.send(number as u16, message, false))?;
            }
            Ok(())
        })
    }
}
