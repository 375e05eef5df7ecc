// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of datagrams: how a service is found, what arrives and from whom, and what is lost.

use crate::base::errno::{
    ECONNREFUSED,
    EMSGSIZE,
    EOPNOTSUPP,
    ESHUTDOWN, //
};
use crate::rdma::{
    ah::Destination,
    cm::{
        Group,
        Service, //
    },
    kunit::{
        broken::IGNORED,
        peer::{
            new_id,
            Handler,
            Peer,
            CAPS, //
        },
        *, //
    },
    qp::{
        QpState,
        Ud,
        Unacknowledged, //
    },
    wc::datagram::GRH_BYTES,
};
use core::net::{
    IpAddr,
    Ipv4Addr, //
};

/// Answers who asks for the service: with the queue pair, or with these words of refusal, or by
/// dropping the request.
enum Desk {
    Serves(ObjectRef<Qp<Handler, Ud>>),
    Refuses(&'static [u8]),
    Drops,
}

/// What the service wants to be asked with, and answers.
const QUESTION: &[u8] = b"where are you?";
const ANSWER: &[u8] = b"here";

impl Listen<Ud> for Desk {
    fn connect_request(&self, request: ConnectRequest<'_, Ud>) {
        match self {
            Self::Serves(qp) if request.private_data().starts_with(QUESTION) => {
                let _ = request.answer(qp, ANSWER);
            }
            Self::Refuses(words) => request.reject(words),
            _ => {}
        }
    }

    fn removed(&self) {}
}

/// Listens at `addr`.
fn listen(addr: SocketAddr, desk: Desk) -> Result<Listener<Ud>> {
    let desk = Arc::new(desk, GFP_KERNEL)?;
    Listener::new(&devices()?, &Net::current(), addr, 1, desk)
}

/// An id that was resolved to `addr`.
fn resolved(addr: SocketAddr) -> Result<Arc<CmId<Ud>>> {
    let id = new_id()?;
    id.resolve(None, addr, TIMEOUT_MS)
        .map_err(|error| error.to_error())?;
    Ok(id)
}

/// Asks for the service at `addr`.
fn find(id: &CmId<Ud>, question: &[u8]) -> Result<Service, CmError> {
    id.find(question, TIMEOUT_MS)
}

/// Runs a test with two peers, the destination of the second one, and the domain of the first.
/// Checks that both are as good as new then, and that nothing is left. Skips it where there are no
/// datagrams.
fn with_peers(test: impl FnOnce(&Peer, &Peer, &Destination) -> Result) -> Result {
    with_device(|device, addr| {
        if device.reads_need_regions() {
            check!(Peer::bound(addr).err() == Some(EOPNOTSUPP));
            skip(c"iWARP has no datagrams");
            return Ok(());
        }
        let far = Peer::bound(addr)?;
        let listener = listen(addr, Desk::Serves(far.qp.clone()))?;
        let near = Peer::new(resolved(addr)?, CAPS)?;
        let service = find(&near.id, QUESTION).map_err(|error| error.to_error())?;
        let to = near.qp.destination(&service)?;
        drop((listener, service));
        test(&near, &far, &to)?;
        check!(near.is_quiet() && far.is_quiet());
        let alive = [near.alive.clone(), far.alive.clone()];
        drop((near, far, to));
        check!(alive.iter().all(|alive| alive.load(Relaxed) == 0));
        Ok(())
    })
}

/// A multicast group that nobody else uses, as its scope is the host's site.
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 255, 47, 19));

/// Joins `group` by the port that has the address `source`.
fn join(source: IpAddr, group: IpAddr) -> Result<Arc<Group>> {
    let (devices, net) = (devices()?, Net::current());
    let joined = Group::join(
        &devices,
        &net,
        source,
        group,
        Connection::new()?,
        TIMEOUT_MS,
    );
    joined.map_err(|error| error.to_error())
}

#[kernel::macros::kunit_tests(farblk_rdma_ud)]
mod tests {
    use super::*;

    #[test]
    fn service_answers_with_its_queue_pair() -> Result {
        with_peers(|_, far, _| {
            let (_, addr) = some_device()?;
            let _listener = listen(addr, Desk::Serves(far.qp.clone()))?;
            let id = resolved(addr)?;
            let service = find(&id, QUESTION).map_err(|error| error.to_error())?;
            check!(service.private_data().starts_with(ANSWER));
            // An id finds one service.
            check!(find(&id, QUESTION).err().map(|error| error.to_error()) == Some(EBUSY));
            // It belongs to no protection domain yet.
            let other = Peer::bound(addr)?;
            far.recv(8)?;
            other.send(&other.qp.destination(&service)?, 8, 1, None)?;
            far.received(8, 1)?;
            Ok(())
        })
    }

    #[test]
    fn service_may_be_missing_or_refuse() -> Result {
        with_peers(|_, far, _| {
            let (_, addr) = some_device()?;
            let ask = |question: &'static [u8]| {
                let id = resolved(addr)?;
                match find(&id, question).err().ok_or(EIO)? {
                    CmError::Rejected {
                        consumer,
                        no_listener,
                        private_data,
                        ..
                    } => Ok((consumer, no_listener, private_data)),
                    error => Err(error.to_error()),
                }
            };
            let (consumer, no_listener, _) = ask(QUESTION)?;
            check!(!consumer && no_listener);
            for desk in [
                Desk::Drops,
                Desk::Refuses(b"not you"),
                Desk::Serves(far.qp.clone()),
            ] {
                let _listener = listen(addr, desk)?;
                let (consumer, no_listener, _) = ask(b"something else")?;
                check!(consumer && !no_listener);
            }
            let error = find(&*resolved(addr)?, QUESTION).err().ok_or(EIO)?;
            check!(error.to_error() == ECONNREFUSED);
            Ok(())
        })
    }

    #[test]
    fn question_and_answer_have_bounds() -> Result {
        with_peers(|_, far, _| {
            struct Long(ObjectRef<Qp<Handler, Ud>>);

            impl Listen<Ud> for Long {
                fn connect_request(&self, request: ConnectRequest<'_, Ud>) {
                    let _ = request.answer(&self.0, &[7; 137]);
                }

                fn removed(&self) {}
            }

            let (_, addr) = some_device()?;
            let ask = |question: &[u8]| {
                let id = resolved(addr)?;
                let found = find(&id, question).map(|service| service.private_data().len());
                found.map_err(|error| error.to_error())
            };
            let long = Arc::new(Long(far.qp.clone()), GFP_KERNEL)?;
            let listener = Listener::new(&devices()?, &Net::current(), addr, 1, long)?;
            check!(ask(QUESTION) == Err(ECONNREFUSED));
            drop(listener);
            let _listener = listen(addr, Desk::Serves(far.qp.clone()))?;
            check!(ask(&[0; 181]) == Err(EINVAL));
            check!(ask(&[0; 300]).is_err());
            let mut longest = [0; 180];
            for (place, byte) in longest.iter_mut().zip(QUESTION) {
                *place = *byte;
            }
            check!(ask(&longest) == Ok(136));
            Ok(())
        })
    }

    #[test]
    fn datagrams_arrive_and_are_answered() -> Result {
        with_peers(|near, far, to| {
            for len in [1, 8, 64] {
                far.recv(64)?;
                near.send(to, len, 3, None)?;
                let (immediate, sender) = far.received(len, 3)?;
                check!(immediate.is_none() && far.post.from.load(Relaxed) == near.qp.number());
                let back = far.qp.answer_to(&sender)?;
                near.recv(64)?;
                // CAST: A small number.
                far.send(&back, len, 4, Some(0x0102_0304 + len as u32))?;
                let (immediate, _) = near.received(len, 4)?;
                check!(immediate == Some(0x0102_0304 + len as u32));
            }
            Ok(())
        })
    }

    #[test]
    fn one_queue_pair_serves_many() -> Result {
        with_peers(|near, far, to| {
            let (_, addr) = some_device()?;
            let third = Peer::bound(addr)?;
            for _ in 0..2 {
                far.recv(64)?;
            }
            near.send(to, 8, 1, None)?;
            let (_, first) = far.received(8, 1)?;
            // A destination belongs to the protection domain of who sends.
            let letter = third.letter(to, 8, 2)?;
            check!(posted(third.qp.send_to(0, None, letter, true)) == Err(EINVAL));
            // Others can send there, too.
            let back = far.qp.answer_to(&first)?;
            near.recv(64)?;
            far.send(&back, 8, 3, None)?;
            let (_, server) = near.received(8, 3)?;
            third.send(&third.qp.answer_to(&server)?, 8, 4, None)?;
            let (_, second) = far.received(8, 4)?;
            third.recv(64)?;
            far.send(&far.qp.answer_to(&second)?, 8, 5, None)?;
            third.received(8, 5)?;
            check!(third.is_quiet());
            Ok(())
        })
    }

    #[test]
    fn datagram_without_a_receive_is_lost() -> Result {
        with_peers(|near, far, to| {
            for _ in 0..3 {
                near.send(to, 64, 1, None)?;
            }
            // It has left, but may be on its way yet, and find this.
            for _ in 0..4 {
                far.recv(64)?;
                near.send(to, 64, 2, None)?;
                if far.received(64, 2).is_ok() {
                    break;
                }
            }
            near.send(to, 64, 3, None)?;
            check!(far.post.received.len() == 0 && (1..=4).contains(&far.qp.completions()));
            Ok(())
        })
    }

    #[test]
    fn datagram_is_no_longer_than_a_packet() -> Result {
        with_peers(|near, far, to| {
            let (device, _) = some_device()?;
            let port = device.port(1)?;
            check!(port.active && device.ports() >= 1 && port.gid_tbl_len > 0);
            check!(to.mtu() == port.mtu && port.mtu >= 256 && port.max_msg_sz >= port.mtu);
            check!(device.port(0).is_err() && device.port(device.ports() + 1).is_err());
            check!(device.gid(1, port.gid_tbl_len).is_err());
            // That of the default partition, whose limited members lack the highest bit.
            check!(port.pkey_tbl_len > 0 && device.pkey(1, 0)? & 0x7fff == 0x7fff);
            let letter = near.letter(to, port.mtu as usize + 1, 1)?;
            check!(posted(near.qp.send_to(0, None, letter, true)) == Err(EMSGSIZE));
            far.recv(port.mtu as usize)?;
            let letter = near.letter(to, port.mtu as usize, 2)?;
            posted(near.qp.send_to(0, None, letter, true))?;
            check!(near.post.sent.take()?.1 == Ok(Unacknowledged));
            let (landing, result) = far.post.received.take()?;
            check!(result.is_ok_and(|(len, ..)| len == port.mtu));
            let mut last = [0];
            landing
                .buffer
                .copy_out(GRH_BYTES + port.mtu as usize - 1, &mut last)?;
            check!(last == [2]);
            Ok(())
        })
    }

    #[test]
    fn last_reference_to_an_address_may_go_with_the_send() -> Result {
        with_peers(|near, far, to| {
            far.recv(8)?;
            near.send(to, 8, 1, None)?;
            let (_, sender) = far.received(8, 1)?;
            near.recv(8)?;
            let letter = {
                let back = far.qp.answer_to(&sender)?;
                far.letter(&back, 8, 2)?
            };
            far.post.forgets.store(1, Relaxed);
            posted(far.qp.send_to(1, None, letter, true))?;
            near.received(8, 2)?;
            wait_until(|| far.alive.load(Relaxed) == 0)
        })
    }

    #[test]
    fn what_is_posted_comes_back_when_it_is_drained() -> Result {
        with_device(|device, addr| {
            if device.reads_need_regions() {
                skip(c"iWARP has no datagrams");
                return Ok(());
            }
            let (near, far) = (Peer::bound(addr)?, Peer::bound(addr)?);
            let _listener = listen(addr, Desk::Serves(far.qp.clone()))?;
            let service = find(&*resolved(addr)?, QUESTION).map_err(|error| error.to_error())?;
            let to = near.qp.destination(&service)?;
            for slot in 0..3 {
                near.recv(64)?;
                posted(near.qp.send_to(slot, None, near.letter(&to, 8, 1)?, false))?;
            }
            near.qp.drain()?;
            check!(near.post.sent.len() == 3 && near.post.received.len() == 3);
            for _ in 0..3 {
                check!(near.post.sent.take()?.1.is_err());
                check!(near.post.received.take()?.1.is_err());
            }
            check!(near.alive.load(Relaxed) == 0);
            check!(near.post.errors.load(Relaxed) == 1 && near.qp.number() == 0);
            let letter = near.letter(&to, 8, 1)?;
            check!(posted(near.qp.send_to(0, None, letter, true)) == Err(ESHUTDOWN));
            check!(near.recv(64) == Err(ESHUTDOWN));
            near.qp.drain()?;
            // Nobody is told, and what is sent there is lost.
            check!(far.is_quiet());
            // A service whose queue pair is gone is none.
            far.qp.drain()?;
            let error = find(&*resolved(addr)?, QUESTION).err().ok_or(EIO)?;
            check!(error.to_error() == ECONNREFUSED);
            Ok(())
        })
    }

    #[test]
    fn send_that_fails_ends_the_sends_alone() -> Result {
        with_peers(|near, far, to| {
            far.recv(8)?;
            near.send(to, 8, 1, None)?;
            let back = far.qp.answer_to(&far.received(8, 1)?.1)?;
            for _ in 0..2 {
                near.recv(8)?;
            }
            let buffer = DmaBuffer::alloc(near.pd.device(), 8, Direction::ToDevice)?;
            let mut sge = bindings::ib_sge {
                addr: buffer.addr(),
                length: 8,
                lkey: !near.pd.local_dma_lkey(),
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
            let wr = to.wr(&near.pd, wr)?;
            let mut bad = core::ptr::null();
            // SAFETY: The id and its queue pair are valid; the device copies the work request. The
            // buffer and the destination are dropped after the queue pair was drained.
            let ret = unsafe { bindings::ib_post_send((*near.id.as_raw()).qp, &wr.wr, &mut bad) };
            check!(ret == 0);
            posted(near.qp.send_to(0, None, near.letter(to, 8, 2)?, true))?;
            check!(near.post.sent.take()?.1.is_err() && near.post.errors.load(Relaxed) == 1);
            if near.pd.device().quirks().send_error_ends_receives() {
                check!(near.qp.state() == Ok(QpState::Error));
                wait_until(|| near.post.received.len() == 2)?;
                check!(near.post.received.take()?.1.is_err());
            } else {
                check!(near.qp.state() == Ok(QpState::SqError));
                far.send(&back, 8, 3, None)?;
                near.received(8, 3)?;
            }
            near.qp.drain()?;
            check!(near.post.received.take()?.1.is_err());
            near.post.errors.store(0, Relaxed);
            drop(buffer);
            Ok(())
        })
    }

    #[test]
    fn drained_while_datagrams_fly() -> Result {
        with_peers(|near, far, to| {
            let (_, addr) = some_device()?;
            for _ in 0..5 {
                let busy = Peer::bound(addr)?;
                far.recv(8)?;
                near.send(to, 8, 1, None)?;
                let (_, sender) = far.received(8, 1)?;
                let there = busy.qp.answer_to(&sender)?;
                for slot in 0..4 {
                    busy.recv(8)?;
                    posted(
                        busy.qp
                            .send_to(slot, None, busy.letter(&there, 8, 9)?, true),
                    )?;
                }
                busy.qp.drain()?;
                check!(busy.post.sent.len() == 4 && busy.post.received.len() == 4);
                drop(there);
                let alive = busy.alive.clone();
                drop(busy);
                check!(alive.load(Relaxed) == 0);
            }
            Ok(())
        })
    }

    #[test]
    fn address_without_a_device_is_refused() -> Result {
        with_peers(|near, _, _| {
            let (_, addr) = some_device()?;
            let id = new_id()?;
            let nowhere = SocketAddr::from(([203, 0, 113, 1], 0));
            check!(id.bind(nowhere).is_err());
            check!(id.device().err() == Some(ENODEV));
            check!(find(&id, QUESTION).err().is_some());
            let id = new_id()?;
            id.bind(SocketAddr::new(addr.ip(), 0))?;
            check!(id.bind(SocketAddr::new(addr.ip(), 0)) == Err(EINVAL));
            // A bound id may be resolved.
            id.resolve(None, addr, TIMEOUT_MS)
                .map_err(|error| error.to_error())?;
            check!(Peer::new(near.id.clone(), CAPS).err() == Some(EBUSY));
            Ok(())
        })
    }

    #[test]
    fn group_receives_what_is_sent_to_it() -> Result {
        with_peers(|near, far, _| {
            let (_, addr) = some_device()?;
            let third = Peer::bound(addr)?;
            let group = join(addr.ip(), GROUP)?;
            match far.qp.attach(&group) {
                Err(error) if error == EOPNOTSUPP => {
                    skip(c"the device has no multicast");
                    return Ok(());
                }
                result => result?,
            }
            check!(far.qp.attach(&group) == Err(EBUSY) && !group.has_left());
            check!(far.qp.attach(&join(addr.ip(), GROUP)?) == Err(EBUSY));
            third.qp.attach(&group)?;
            // A membership that has ended makes room for another one, and the device, which has the
            // queue pair attached, is not asked.
            group.end_membership();
            check!(far.qp.attach(&group) == Err(EBUSY));
            let group = join(addr.ip(), GROUP)?;
            far.qp.attach(&group)?;
            check!(far.qp.attach(&group) == Err(EBUSY));
            // Who sends is no member.
            let all = near.qp.destination_of_group(&group)?;
            for peer in [near, far, &third] {
                peer.recv(64)?;
            }
            near.send(&all, 16, 1, Some(2))?;
            for peer in [far, &third] {
                check!(peer.received(16, 1)?.0 == Some(2));
            }
            // One that goes leaves it to the others.
            third.qp.drain()?;
            check!(third.qp.attach(&group) == Err(ESHUTDOWN));
            far.recv(64)?;
            near.send(&all, 16, 3, None)?;
            far.received(16, 3)?;
            check!(near.post.received.len() == 0);
            near.qp.drain()?;
            check!(near.post.received.take()?.1.is_err());
            near.post.errors.store(0, Relaxed);
            // The members that are left keep it.
            drop(group);
            far.recv(64)?;
            let other = Peer::bound(addr)?;
            let again = join(addr.ip(), GROUP)?;
            other.send(&other.qp.destination_of_group(&again)?, 16, 4, None)?;
            far.received(16, 4)?;
            Ok(())
        })
    }

    #[test]
    fn group_is_one_of_many_addresses() -> Result {
        with_peers(|_, _, _| {
            let (_, addr) = some_device()?;
            check!(join(addr.ip(), addr.ip()).err() == Some(EINVAL));
            let elsewhere = IpAddr::from([203, 0, 113, 1]);
            check!(join(elsewhere, GROUP).err().is_some());
            Ok(())
        })
    }

    #[test]
    fn state_is_that_of_the_device() -> Result {
        with_peers(|near, _, _| {
            check!(near.qp.state() == Ok(QpState::ReadyToSend));
            near.qp.fail();
            check!(near.qp.state() == Ok(QpState::Error));
            near.qp.drain()?;
            check!(near.qp.state() == Err(ESHUTDOWN));
            near.post.errors.store(0, Relaxed);
            Ok(())
        })
    }
}
