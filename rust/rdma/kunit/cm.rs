// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of devices and connections.

use crate::base::errno::{
    EADDRINUSE,
    EADDRNOTAVAIL,
    ECONNREFUSED, //
};
use crate::rdma::kunit::*;
use core::net::Ipv4Addr;

const CAPS: QpCaps = QpCaps {
    slots: 1,
    send_wr: 1,
    recv_wr: 1,
    sges: 1,
    ..super::CAPS
};

/// Refuses everybody: with these words, or without any.
struct Refuse(Option<&'static [u8]>);

impl Listen for Refuse {
    fn connect_request(&self, request: ConnectRequest<'_>) {
        if let Some(words) = self.0 {
            request.reject(words);
        }
    }

    fn removed(&self) {}
}

/// Takes the connection, and drops it where it came in.
struct Forget;

impl Listen for Forget {
    fn connect_request(&self, request: ConnectRequest<'_>) {
        if let Ok(connection) = Connection::new() {
            drop(request.into_id(connection));
        }
    }

    fn removed(&self) {}
}

/// A side that could connect to `addr`.
fn resolved(addr: SocketAddr) -> Result<Side> {
    let connection = Connection::new()?;
    let id = CmId::new(&devices()?, &Net::current(), connection.clone())?;
    check!(id.device().err() == Some(ENODEV));
    id.resolve(None, addr, TIMEOUT_MS)
        .map_err(|error| error.to_error())?;
    let pd = Pd::alloc(&id.device()?)?;
    let contexts = (PollContext::Workqueue, PollContext::Workqueue);
    Side::new(id, connection, &pd, CAPS, contexts)
}

#[kernel::macros::kunit_tests(farblk_rdma_cm)]
mod tests {
    use super::*;

    #[test]
    fn client_is_registered_once() -> Result {
        with_device(|device, _| {
            check!(client::Registration::new(Tests, device.release()).err() == Some(EBUSY));
            Ok(())
        })
    }

    #[test]
    fn client_knows_no_device_without_a_registration() -> Result {
        with_device(|_, _| Ok(()))?;
        check!(devices().err() == Some(ENODEV));
        Ok(())
    }

    #[test]
    fn both_sides_hear_of_the_connection_and_its_end() -> Result {
        with_pair(CAPS, |pair| {
            let (near, far) = (pair.near.connection.clone(), pair.far.connection.clone());
            check!(far.established.wait_timeout(TIMEOUT_MS).is_ok());
            pair.near.id.disconnect();
            check!(far.lost.wait_timeout(TIMEOUT_MS).is_ok());
            // With this the far side confirms it.
            pair.far.id.disconnect();
            check!(near.lost.wait_timeout(TIMEOUT_MS).is_ok());
            drop(pair);
            check!(near.times_lost.load(Relaxed) == 1);
            check!(far.times_lost.load(Relaxed) == 1);
            Ok(())
        })
    }

    #[test]
    fn connection_is_lost_when_the_other_side_goes() -> Result {
        with_pair(CAPS, |pair| {
            let Pair { near, far, .. } = pair;
            drop(far);
            check!(near.connection.lost.wait_timeout(TIMEOUT_MS).is_ok());
            Ok(())
        })
    }

    #[test]
    fn nobody_listens() -> Result {
        with_device(|_, addr| {
            let side = resolved(addr)?;
            match side.id.connect(&PARAM, TIMEOUT_MS).err() {
                Some(CmError::Rejected {
                    consumer,
                    no_listener,
                    ..
                }) => check!(!consumer && no_listener),
                _ => check!(false),
            }
            check!(side.connection.times_lost.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn listener_may_refuse() -> Result {
        with_device(|_, addr| {
            // The last one is as long as the words of a refusal can be.
            for words in [None, Some(&b"no"[..]), Some(&[b'n'; 148][..])] {
                let refuse = Arc::new(Refuse(words), GFP_KERNEL)?;
                let _listener = Listener::new(&devices()?, &Net::current(), addr, 1, refuse)?;
                let side = resolved(addr)?;
                let error = side.id.connect(&PARAM, TIMEOUT_MS).err().ok_or(EIO)?;
                check!(error.to_error() == ECONNREFUSED);
                let CmError::Rejected {
                    no_listener,
                    private_data,
                    ..
                } = error
                else {
                    return Err(EIO);
                };
                check!(!no_listener);
                check!(words.is_none_or(|words| private_data.starts_with(words)));
            }
            Ok(())
        })
    }

    #[test]
    fn request_may_be_dropped_where_it_came_in() -> Result {
        with_device(|_, addr| {
            let forget = Arc::new(Forget, GFP_KERNEL)?;
            let _listener = Listener::new(&devices()?, &Net::current(), addr, 1, forget)?;
            let side = resolved(addr)?;
            let error = side.id.connect(&PARAM, TIMEOUT_MS).err().ok_or(EIO)?;
            check!(error.to_error() == ECONNREFUSED);
            Ok(())
        })
    }

    #[test]
    fn address_is_listened_on_once() -> Result {
        with_device(|_, addr| {
            let listen_on = |addr| {
                let refuse = Arc::new(Refuse(None), GFP_KERNEL)?;
                Listener::new(&devices()?, &Net::current(), addr, 1, refuse)
            };
            let listen = || listen_on(addr);
            let first = listen()?;
            check!(first.device()?.name().as_str() == some_device()?.0.name().as_str());
            check!(first.has_address());
            check!(listen().err() == Some(EADDRINUSE));
            let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), addr.port());
            check!(listen_on(everywhere).err() == Some(EADDRINUSE));
            drop(first);
            check!(listen().is_ok());
            let all = listen_on(everywhere)?;
            check!(all.has_address());
            check!(listen().err() == Some(EADDRINUSE));
            // For documentation: RFC 5737.
            let nobodys = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), addr.port());
            check!(listen_on(nobodys).err() == Some(EADDRNOTAVAIL));
            drop(all);
            let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), addr.port());
            check!(listen_on(loopback).err() == Some(EINVAL));
            Ok(())
        })
    }

    #[test]
    fn id_serves_in_order_and_once() -> Result {
        with_pair(CAPS, |pair| {
            let id = CmId::new(&devices()?, &Net::current(), Connection::new()?)?;
            let connect = |id: &CmId| {
                let result = id.connect(&PARAM, TIMEOUT_MS);
                result.err().map(|error| error.to_error())
            };
            // Without a queue pair.
            check!(connect(&id) == Some(EINVAL));
            check!(id.accept(&PARAM) == Err(EINVAL));
            // Connected already.
            check!(connect(&pair.near.id) == Some(EBUSY));
            let (_, addr) = some_device()?;
            let again = pair.near.id.resolve(None, addr, TIMEOUT_MS);
            check!(again.err().map(|error| error.to_error()) == Some(EBUSY));
            Ok(())
        })
    }
}
