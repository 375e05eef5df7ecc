// SPDX-License-Identifier: GPL-2.0

//! A server as an address, and the way there: from it to a connection, or to the words that the
//! user reads about why there is none.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::{
    alloc::AllocError,
    sync::Arc,
    time::Msecs, //
};

use crate::base::{
    compat,
    errno::{
        EADDRNOTAVAIL,
        ECONNREFUSED,
        EHOSTUNREACH,
        EKEYREJECTED,
        ENETUNREACH,
        ENOKEY,
        ENOMEDIUM,
        ENOTCONN,
        EOPNOTSUPP,
        EPROTO,
        EPROTONOSUPPORT,
        EPROTOTYPE, //
    },
    net::Net, //
};
use crate::client::deadline::Deadline;
use crate::link::{
    failure::{
        fail,
        Failure, //
    },
    keys::{
        Ends,
        Tickets,
        Transcript, //
    },
};
use crate::proto::{
    handshake::{
        self,
        Ticket, //
    },
    wire::{
        CONNECT_REQUEST_MAX,
        VERSION_MAX,
        VERSION_MIN, //
    },
    ConnectReply,
    ConnectRequest,
    Connection,
    Malformed,
    NoRoom,
    Refusal,
    Refused,
    Reject, //
};
use crate::rdma::{
    client::Devices,
    cm::{
        CmError,
        CmEvents,
        CmId,
        ConnParam, //
    },
};

/// Timeout of the resolution of the server's address, in ms.
const RESOLVE_TIMEOUT_MS: Msecs = 2000;
/// The time that the HCA waits for an acknowledgment before it sends again: 4.096 us x 2^14 = 67
/// ms.
const ACK_TIMEOUT: u8 = 14;
/// The same for a software device, which is as late as the CPU is busy: 4.096 us x 2^17 = 0.54 s.
const SOFTWARE_ACK_TIMEOUT: u8 = 17;

/// The address of a server, and how to get there.
#[derive(Clone)]
pub(crate) struct Target {
    /// The RDMA devices that may lead to it.
    pub(super) devices: Arc<Devices>,
    /// The network namespace of the addresses.
    pub(crate) net: Net,
    /// The address and port of the server.
    pub(crate) addr: SocketAddr,
    /// The local address to use; `None` for any.
    pub(crate) source: Option<SocketAddr>,
    /// Type of service of the packets.
    pub(crate) tos: u8,
}

impl Target {
    /// Makes an id, and resolves the address and the route to the server. May sleep.
    pub(super) fn resolve(
        &self,
        events: Arc<dyn CmEvents>,
        deadline: Deadline,
    ) -> Result<Arc<CmId>, Failure> {
        let id = CmId::new(&self.devices, &self.net, events)?;
        id.set_service_type(self.tos);
        id.resolve(
            self.source,
            self.addr,
            deadline.left().min(RESOLVE_TIMEOUT_MS),
        )
        .map_err(|error| self.failure(error))?;
        let timeout = match id.device() {
            Ok(device) if device.is_software() => SOFTWARE_ACK_TIMEOUT,
            _ => ACK_TIMEOUT,
        };
        // An HCA may refuse it. Its default only notices a loss later.
        let _ = id.set_ack_timeout(timeout);
        Ok(id)
    }

    /// Connects `id`, which has a queue pair, for `connection` of `epoch` of the path, and shows
    /// `shown`. May sleep.
    pub(super) fn connect(
        &self,
        id: &CmId,
        (connection, epoch): (Connection, u64),
        shown: Shown<'_>,
        deadline: Deadline,
    ) -> Result<Connected, NotConnected> {
        let mut data = [0; CONNECT_REQUEST_MAX];
        let len = ConnectRequest { connection, epoch }
            .encode(versions(), &mut data)
            .map_err(|NoRoom| fail!(EMSGSIZE, "the connection request does not fit"))?;
        let request = data.get_mut(..len).unwrap_or_default();
        let own_ends = ends(id)?;
        handshake::set_ticket(request, |data| match shown {
            Shown::Cookie(cookie) => cookie,
            Shown::Ticket(tickets) => tickets.request(data, &own_ends),
            Shown::Nothing => Ticket::default(),
        });
        let device = id.device()?;
        let (served, reads) = (
            device.limits().max_qp_rd_atom,
            device.limits().max_qp_init_rd_atom,
        );
        let reply = id
            .connect(
                &ConnParam {
                    private_data: request,
                    retry_count: crate::RETRY_COUNT,
                    rnr_retry_count: crate::RETRY_COUNT,
                    responder_resources: u8::try_from(served).unwrap_or(u8::MAX).min(READS_MAX),
                    initiator_depth: u8::try_from(reads).unwrap_or(u8::MAX).min(READS_MAX),
                },
                deadline.left(),
            )
            .map_err(|error| self.not_connected(error))?;
        ConnectReply::parse(&reply).map_err(|malformed| self.foreign(malformed))?;
        let (reply, ends) = (ConnectReply::known(&reply), ends(id)?);
        let split = handshake::split_ticket(request).zip(handshake::split_ticket(reply));
        let ((_, asked), (data, ticket)) = split.ok_or_else(unproven)?;
        if let Shown::Ticket(tickets) = shown {
            tickets
                .check_reply(asked, data, &ends, ticket)
                .map_err(|_| unproven())?;
        }
        Ok(Connected {
            transcript: Transcript::new(request, reply, &ends),
            request: *asked,
            reply: *ticket,
        })
    }

    /// Returns what becomes of an attempt with an error of the connection manager.
    fn not_connected(&self, error: CmError) -> NotConnected {
        let again = match &error {
            CmError::Rejected {
                consumer: true,
                private_data,
                ..
            } => Reject::parse(private_data).ok(),
            _ => None,
        };
        match again {
            Some(Reject { refused, cookie }) if refused.refusal == Refusal::Again => {
                NotConnected::Again(cookie)
            }
            _ => self.failure(error).into(),
        }
    }

    /// Returns what the user reads about an error of the connection manager.
    fn failure(&self, error: CmError) -> Failure {
        let addr = self.addr;
        match &error {
            _ if error.to_error() == ENOMEM => ENOMEM.into(),
            // A server that is out of memory sends no data, and the connection manager pads with
            // zeroes.
            CmError::Rejected {
                consumer: true,
                private_data,
                ..
            } if private_data.iter().all(|byte| *byte == 0) => {
                fail!(ECONNREFUSED, "{addr} refused and did not say why")
            }
            CmError::Rejected {
                consumer: true,
                private_data,
                ..
            } => match Reject::parse(private_data) {
                // Both would end a map. A server says so to a map that has logged in, or tries to.
                Ok(Reject { refused, .. })
                    if matches!(refused.refusal, Refusal::NotAdmitted | Refusal::Evicted) =>
                {
                    self.foreign(Malformed("it refuses the host before the login"))
                }
                Ok(Reject { refused, .. }) => self::refused(&refused),
                Err(malformed) => self.foreign(malformed),
            },
            CmError::AddrError(_) | CmError::RouteError(_) if self.source.is_none() => {
                fail!(EHOSTUNREACH, "no host answers at {}", addr.ip())
            }
            CmError::Timeout | CmError::Unreachable(_) => fail!(ETIMEDOUT, "no answer from {addr}"),
            CmError::Rejected {
                no_listener: true, ..
            } => fail!(ECONNREFUSED, "nobody listens on {addr}"),
            CmError::Rejected { text, .. } => {
                fail!(ECONNREFUSED, "{addr} rejected the connection: {text}")
            }
            // `EACCES` of this host. What the server refuses was dealt with above.
            _ if error.to_error() == EACCES => {
                fail!(EHOSTUNREACH, "the way to {} is prohibited", addr.ip())
            }
            _ => {
                let errno = error.to_error();
                match self.source {
                    // Only binding to the source address fails with these two errors.
                    Some(source) if errno == EADDRNOTAVAIL => {
                        fail!(errno, "{} is not an address of this host", source.ip())
                    }
                    Some(source) if errno == ENODEV => {
                        fail!(errno, "no RDMA device has the address {}", source.ip())
                    }
                    // With iWARP, as TCP has it.
                    _ if errno == ECONNREFUSED => {
                        fail!(errno, "nobody listens on {addr}")
                    }
                    _ if errno == ENETUNREACH || errno == ENODEV => {
                        fail!(errno, "no RDMA device leads to {}", addr.ip())
                    }
                    Some(source) => {
                        fail!(errno, "cannot connect to {addr} from {}", source.ip())
                    }
                    None => fail!(errno, "cannot connect to {addr}"),
                }
            }
        }
    }

    /// Returns what the user reads about a peer that does not speak the protocol.
    fn foreign(&self, malformed: Malformed) -> Failure {
        fail!(EPROTO, "{} is no farblk server: {malformed}", self.addr)
    }
}

/// A connection that was made.
pub(super) struct Connected {
    /// What both sides have said so far.
    pub(super) transcript: Transcript,
    /// The ticket of its request, or the cookie that was in its place.
    pub(super) request: Ticket,
    /// The ticket of its reply; zero without a key.
    pub(super) reply: Ticket,
}

/// What a connection request shows beside what it asks for.
#[derive(Clone, Copy)]
pub(super) enum Shown<'a> {
    /// The cookie that the server has sent; zero for none.
    Cookie(Ticket),
    /// The ticket that the keys of its session give it.
    Ticket(&'a Tickets),
    /// It is of a session that has no key.
    Nothing,
}

/// A connection that was not made.
pub(super) enum NotConnected {
    /// The server has no place for it, or wants to see this cookie.
    Again(Ticket),
    /// It failed.
    Failed(Failure),
}

impl From<Failure> for NotConnected {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for NotConnected {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<AllocError> for NotConnected {
    fn from(error: AllocError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<NotConnected> for Failure {
    fn from(error: NotConnected) -> Self {
        match error {
            NotConnected::Again(_) => refused(&Refusal::Again.into()),
            NotConnected::Failed(failure) => failure,
        }
    }
}

/// Returns both ends of a connection of this host. May sleep.
fn ends(id: &CmId) -> Result<Ends> {
    let (client, server) = id.ends()?;
    Ok(Ends { client, server })
}

/// Returns what the user reads about a server that does not have the key.
pub(super) fn unproven() -> Failure {
    fail!(EKEYREJECTED, "the server did not prove that it has the key")
}

/// Returns the lowest and the highest protocol version to offer.
fn versions() -> (u16, u16) {
    match compat::param(&crate::module_parameters::protocol_version) {
        0 => (VERSION_MIN, VERSION_MAX),
        version => (version, version),
    }
}

/// Number of RDMA READs in flight that are asked for on one connection, at most.
const READS_MAX: u8 = 128;

/// Returns what the user reads about a refusal of the server.
pub(super) fn refused(refused: &Refused) -> Failure {
    let error = match refused.refusal {
        Refusal::Version => EPROTONOSUPPORT,
        Refusal::NoSuchExport => ENOENT,
        Refusal::ExportDisabled | Refusal::NotOnPort => ENXIO,
        Refusal::NotAdmitted | Refusal::Evicted => EACCES,
        Refusal::ReadOnly => EROFS,
        Refusal::Busy => EBUSY,
        Refusal::NoMemory => ENOMEM,
        // The server ended the session between the login and this connection.
        Refusal::BadSession => ENOTCONN,
        Refusal::AuthRequired => ENOKEY,
        Refusal::AuthFailed => EKEYREJECTED,
        Refusal::Again => EAGAIN,
        Refusal::Protection => EPROTOTYPE,
        Refusal::Unreachable => EOPNOTSUPP,
        Refusal::Unavailable => ENOMEDIUM,
        _ => EPROTO,
    };
    match refused.text.is_empty() {
        true => fail!(error, "{}", refused.refusal.text()),
        false => fail!(error, "{}", refused.text),
    }
}
