// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of queue pairs for datagrams beside a connection: where they are, how the two sides
//! reach each other without a service, and what else reaches them.

use crate::base::errno::{
    EOPNOTSUPP,
    ESHUTDOWN, //
};
use crate::rdma::{
    ah::{
        Destination,
        UDP_QKEY, //
    },
    cm::CmId,
    kunit::{
        peer::{
            Peer,
            CAPS as PEER_CAPS, //
        },
        *, //
    },
    qp::{
        Ud,
        QKEY_OF_SENDER, //
    },
};

/// The Q_Keys of the two sides.
const NEAR_QKEY: u32 = 0x1234_5678;
const FAR_QKEY: u32 = 0x7fff_ffff;

/// A queue pair beside that of `id`, with this Q_Key.
fn beside(id: &CmId, qkey: u32) -> Result<Peer> {
    let peer = Peer::new(CmId::beside(id, Connection::new()?)?, PEER_CAPS)?;
    peer.qp.set_qkey(qkey)?;
    Ok(peer)
}

/// Returns the error of [`CmId::beside`] while a field of the connection has another value.
///
/// # Safety
///
/// `place` must be a field of the core's id of `connection`, and nobody else use it meanwhile.
unsafe fn refused_with<T>(connection: &CmId, place: *mut T, value: T) -> Result<Option<Error>> {
    let events = Connection::new()?;
    // SAFETY: The caller gives a valid field, which is only used here.
    let old = unsafe { place.replace(value) };
    let refused = CmId::<Ud>::beside(connection, events).err();
    // SAFETY: As above.
    unsafe { place.write(old) };
    Ok(refused)
}

/// Runs a test with a peer at both ends of a connection, and the destination that each has for the
/// other one. Skips it where there are no datagrams.
fn with_peers(
    test: impl FnOnce(&Pair, (&Peer, &Destination), (&Peer, &Destination)) -> Result,
) -> Result {
    with_pair(CAPS, |pair| {
        if pair.pd.device().reads_need_regions() {
            check!(beside(&pair.near.id, NEAR_QKEY).err() == Some(EOPNOTSUPP));
            skip(c"iWARP has no datagrams");
            return Ok(());
        }
        let (near, far) = (
            beside(&pair.near.id, NEAR_QKEY)?,
            beside(&pair.far.id, FAR_QKEY)?,
        );
        let there = (far.qp.number(), FAR_QKEY);
        let to_far = Destination::beside(&pair.near.id, &near.pd, there)?;
        let back = (near.qp.number(), NEAR_QKEY);
        let to_near = Destination::beside(&pair.far.id, &far.pd, back)?;
        test(&pair, (&near, &to_far), (&far, &to_near))?;
        check!(near.is_quiet() && far.is_quiet());
        let alive = [near.alive.clone(), far.alive.clone()];
        drop((near, far, to_far, to_near));
        check!(alive.iter().all(|alive| alive.load(Relaxed) == 0));
        Ok(())
    })
}

#[kernel::macros::kunit_tests(farblk_rdma_beside)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_reach_each_other() -> Result {
        with_peers(|_, (near, to_far), (far, to_near)| {
            for len in [1, 8, 64] {
                far.recv(64)?;
                near.send(to_far, len, 1, None)?;
                let (_, sender) = far.received(len, 1)?;
                check!(to_near.has_sent(&sender));
                near.recv(64)?;
                far.send(to_near, len, 2, None)?;
                check!(to_far.has_sent(&near.received(len, 2)?.1));
            }
            Ok(())
        })
    }

    #[test]
    fn others_are_told_apart() -> Result {
        with_peers(|pair, (near, to_far), (far, to_near)| {
            // Another queue pair of the same host.
            let other = beside(&pair.near.id, NEAR_QKEY)?;
            let there = (far.qp.number(), FAR_QKEY);
            let to_far_too = Destination::beside(&pair.near.id, &other.pd, there)?;
            far.recv(64)?;
            other.send(&to_far_too, 8, 3, None)?;
            let (_, sender) = far.received(8, 3)?;
            check!(!to_near.has_sent(&sender));
            // What it has from the one it expects.
            far.recv(64)?;
            near.send(to_far, 8, 4, None)?;
            check!(to_near.has_sent(&far.received(8, 4)?.1));
            Ok(())
        })
    }

    #[test]
    fn another_q_key_is_not_taken() -> Result {
        with_peers(|pair, (near, to_far), (far, _)| {
            far.recv(64)?;
            for qkey in [UDP_QKEY, NEAR_QKEY, FAR_QKEY - 1, 0, QKEY_OF_SENDER] {
                let there = (far.qp.number(), qkey);
                let wrong = Destination::beside(&pair.near.id, &near.pd, there)?;
                near.send(&wrong, 8, 5, None)?;
            }
            // They have left, but may be on their way yet.
            a_while();
            near.send(to_far, 8, 6, None)?;
            far.received(8, 6)?;
            Ok(())
        })
    }

    #[test]
    fn q_key_is_one_that_a_sender_can_name() -> Result {
        with_peers(|_, (near, _), _| {
            check!(near.qp.set_qkey(QKEY_OF_SENDER) == Err(EINVAL));
            check!(near.qp.set_qkey(u32::MAX) == Err(EINVAL));
            check!(near.qp.set_qkey(0) == Ok(()));
            near.qp.drain()?;
            check!(near.qp.set_qkey(NEAR_QKEY) == Err(ESHUTDOWN));
            near.post.errors.store(0, Relaxed);
            Ok(())
        })
    }

    #[test]
    fn another_port_is_not_beside() -> Result {
        with_peers(|pair, _, _| {
            let id = &pair.near.id;
            // SAFETY: The id is valid. The address is one of IPv4, as that of the device is.
            let (port_num, ip) = unsafe {
                let route = &raw mut (*id.as_raw()).route;
                let addr = (&raw mut (*route).addr.src_addr).cast::<bindings::sockaddr_in>();
                let port_num = &raw mut (*id.as_raw()).port_num;
                (port_num, &raw mut (*addr).sin_addr.s_addr)
            };
            // SAFETY: Both are fields of the id. The core does not use them before the connection
            // ends.
            unsafe {
                // No device has this port, and the core's tables of ports have an entry for it.
                check!(refused_with(id, port_num, 0)? == Some(EOPNOTSUPP));
                // Nobody has this address; that of all devices is at no port.
                for nowhere in [[203, 0, 113, 1], [0; 4]] {
                    let nowhere = u32::from_ne_bytes(nowhere);
                    check!(refused_with(id, ip, nowhere)? == Some(EOPNOTSUPP));
                }
            }
            beside(id, NEAR_QKEY).map(drop)
        })
    }

    #[test]
    fn connection_may_be_gone() -> Result {
        with_peers(|pair, (near, to_far), (far, _)| {
            pair.near.id.disconnect();
            far.recv(64)?;
            near.send(to_far, 8, 7, None)?;
            far.received(8, 7)?;
            // An id that is not resolved is at no address.
            let id: Arc<CmId> = CmId::new(&devices()?, &Net::current(), Connection::new()?)?;
            check!(CmId::<Ud>::beside(&id, Connection::new()?).err() == Some(ENODEV));
            let there = (far.qp.number(), FAR_QKEY);
            check!(Destination::beside(&id, &near.pd, there).err() == Some(ENODEV));
            Ok(())
        })
    }
}
