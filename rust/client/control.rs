// SPDX-License-Identifier: GPL-2.0

//! Control connections, as the client sees them: it connects, sends requests and reads the replies.
//!
//! The file also turns errors of the connection manager and refusals of the server into the words
//! that the user reads.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::{
    sync::Arc,
    time::{
        Instant,
        Monotonic,
        Msecs, //
    },
};

use crate::base::{
    compat,
    errno::{
        EADDRNOTAVAIL,
        EBADMSG,
        ECONNREFUSED,
        EHOSTUNREACH,
        EKEYREJECTED,
        ENETUNREACH,
        ENOKEY,
        ENOTCONN,
        EOPNOTSUPP,
        EPROTO,
        EPROTONOSUPPORT, //
    },
    net::Net, //
};
use crate::client::{
    deadline::Deadline,
    events::PathEvents, //
};
use crate::link::{
    channel::{
        message_buffer,
        Channel,
        Link,
        Linked,
        Side, //
    },
    failure::{
        fail,
        Failure, //
    },
    keys::{
        Ends,
        Keys,
        Psk,
        Share,
        Tickets,
        Transcript, //
    },
};
use crate::proto::{
    handshake,
    wire::{
        CONNECT_REQUEST_MAX,
        VERSION_MAX,
        VERSION_MIN, //
    },
    Access,
    BlockSize,
    Challenge,
    ChallengeReply,
    ConnectReply,
    ConnectRequest,
    Connection,
    Event,
    Extent,
    Logout,
    LogoutReply,
    Malformed,
    Message,
    NoRoom,
    Ping,
    Pong,
    Public,
    Refusal,
    Refused,
    Reject,
    ReplyError, //
};
use crate::rdma::cm::{
    CmError,
    CmEvents,
    CmId,
    ConnParam, //
};
use crate::session::map::Told;

/// Timeout of the resolution of the server's address, in ms.
const RESOLVE_TIMEOUT_MS: Msecs = 2000;
/// The time that the HCA waits for an acknowledgement before it sends again: 4.096 us x 2^14 = 67
/// ms.
const ACK_TIMEOUT: u8 = 14;
/// The same for a software device, which is as late as the CPU is busy: 4.096 us x 2^17 = 0.54 s.
const SOFTWARE_ACK_TIMEOUT: u8 = 17;

/// The address of a server, and how to get there.
#[derive(Clone)]
pub(crate) struct Target {
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
        let id = CmId::new(&self.net, events)?;
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

    /// Connects `id`, which has a queue pair, for `connection` of `epoch` of the path, with tickets
    /// if there are keys for them. Returns what both sides have said so far. May sleep.
    pub(super) fn connect(
        &self,
        id: &CmId,
        connection: Connection,
        epoch: u64,
        tickets: Option<&Tickets>,
        deadline: Deadline,
    ) -> Result<Transcript, Failure> {
        let mut data = [0; CONNECT_REQUEST_MAX];
        let len = ConnectRequest { connection, epoch }
            .encode(versions(), &mut data)
            .map_err(|NoRoom| fail!(EMSGSIZE, "the connection request does not fit"))?;
        let request = data.get_mut(..len).unwrap_or_default();
        if let Some(tickets) = tickets {
            let ends = ends(id)?;
            handshake::set_ticket(request, |data| tickets.request(data, &ends));
        }
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
            .map_err(|error| self.failure(error))?;
        ConnectReply::parse(&reply).map_err(|malformed| self.foreign(malformed))?;
        let (reply, ends) = (ConnectReply::known(&reply), ends(id)?);
        if let Some(tickets) = tickets {
            let split = handshake::split_ticket(request).zip(handshake::split_ticket(reply));
            let ((_, asked), (data, ticket)) = split.ok_or_else(unproven)?;
            tickets
                .check_reply(asked, data, &ends, ticket)
                .map_err(|_| unproven())?;
        }
        Ok(Transcript::new(request, reply, &ends))
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
                Ok(Reject(why))
                    if matches!(why.refusal, Refusal::NotAdmitted | Refusal::Evicted) =>
                {
                    self.foreign(Malformed("it refuses the host before the login"))
                }
                Ok(Reject(why)) => refused(&why),
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

/// Returns both ends of a connection of this host. May sleep.
fn ends(id: &CmId) -> Result<Ends> {
    let (client, server) = id.ends()?;
    Ok(Ends { client, server })
}

/// Returns what the user reads about a server that does not have the key.
fn unproven() -> Failure {
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
        _ => EPROTO,
    };
    match refused.text.is_empty() {
        true => fail!(error, "{}", refused.refusal.text()),
        false => fail!(error, "{}", refused.text),
    }
}

/// The part of a control connection that completion handlers and the connection manager use.
#[pin_data]
pub(super) struct ControlLink {
    #[pin]
    link: Link,
    /// `None` if the connection is not one of a path.
    events: Option<PathEvents>,
}

impl Linked for ControlLink {
    fn link(&self) -> &Link {
        &self.link
    }

    fn notify(this: &Arc<Self>) {
        match &this.events {
            Some(events) if this.link.is_lost() => events.lost(),
            Some(events) => events.received(),
            None => {}
        }
    }
}

/// Receives the events of the connection manager.
struct ControlCmEvents(Arc<ControlLink>);

impl CmEvents for ControlCmEvents {
    fn disconnected(&self) {
        self.0.link.cut();
        ControlLink::notify(&self.0);
    }
}

/// A connected control connection.
pub(super) struct ControlConnection {
    channel: Channel<ControlLink>,
    sequence: u32,
    /// Buffer for the message that is being read.
    message: KVec<u8>,
    /// The last extent event that came while a reply was awaited, if [`Self::event`] has not
    /// returned it.
    extent: Option<(u32, Extent)>,
    /// The block size and the access that the login has granted. Extent events must keep to them.
    /// `None` before the login.
    granted: Option<(BlockSize, Access)>,
}

impl ControlConnection {
    /// Connects to a server, and has both sides prove that they have `key`, if there is one. Posts
    /// the events of the connection to `events`. May sleep.
    pub(super) fn connect(
        target: &Target,
        epoch: u64,
        events: Option<PathEvents>,
        key: Option<&Psk>,
        deadline: Deadline,
    ) -> Result<Self, Failure> {
        let link = Arc::pin_init(
            pin_init!(ControlLink {
                link <- Link::new(),
                events,
            }),
            GFP_KERNEL,
        )?;
        let cm_events = Arc::new(ControlCmEvents(link.clone()), GFP_KERNEL)?;
        let id = target.resolve(cm_events, deadline)?;
        let channel = Channel::new(id, link)?;
        let transcript =
            target.connect(channel.id(), Connection::Control, epoch, None, deadline)?;
        let mut this = Self {
            channel,
            sequence: 0,
            message: message_buffer()?,
            extent: None,
            granted: None,
        };
        if let Some(key) = key {
            this.challenge(key, transcript, deadline)?;
        }
        Ok(this)
    }

    /// Has the server prove that it has `key`, and has each later message show that its sender has
    /// it. May sleep.
    fn challenge(
        &mut self,
        key: &Psk,
        mut transcript: Transcript,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let mut share = Share::zero();
        share.randomize();
        let challenge = Challenge {
            key_id: key.id,
            public: Public {
                nonce: share.nonce,
                point: share.point,
            },
        };
        let mut keys = KBox::new(Keys::zero(), GFP_KERNEL)?;
        let said = &mut transcript;
        let reply = self.call(
            deadline,
            |sequence, buf| {
                let len = challenge.encode(sequence, buf)?;
                said.add(buf.get(..len).ok_or(NoRoom)?);
                Ok(len)
            },
            |bytes, sequence| match ChallengeReply::parse(bytes, sequence) {
                Ok((reply, unproven)) => Ok(Some((reply, unproven.len()))),
                // What somebody says who has proved nothing must not end a map.
                Err(ReplyError::Refused(_)) => Ok(None),
                Err(malformed) => Err(malformed),
            },
        );
        let (reply, unproven_len) = reply?.ok_or_else(unproven)?;
        transcript.add(self.message.get(..unproven_len).unwrap_or(&[]));
        share
            .derive(&key.secret, &reply.public.point, &transcript, &mut keys)
            .map_err(|_| unproven())?;
        keys.check_proof(&reply.proof).map_err(|_| unproven())?;
        self.channel.authenticate(Side::Client, keys);
        Ok(())
    }

    /// Returns the channel, whose protection domain the I/O connections share.
    pub(super) fn channel(&self) -> &Channel<ControlLink> {
        &self.channel
    }

    /// Tells `server`, which has let the map in, that the map leaves. If it confirms that, it does
    /// not keep the map's place. May sleep.
    pub(super) fn log_out(&mut self, server: u128, deadline: Deadline) -> Told {
        let encode = |sequence, buf: &mut [u8]| Logout.encode(sequence, buf);
        match self.call(deadline, encode, LogoutReply::parse) {
            Ok(_) => Told::Server(server),
            Err(_) => Told::NoAnswer,
        }
    }

    /// Sends the request that `encode` writes, and returns what `parse` reads in its reply. May
    /// sleep.
    pub(super) fn call<R>(
        &mut self,
        deadline: Deadline,
        encode: impl FnOnce(u32, &mut [u8]) -> Result<usize, NoRoom>,
        parse: impl FnOnce(&[u8], u32) -> Result<R, ReplyError>,
    ) -> Result<R, Failure> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        self.channel
            .send(deadline.left(), |buf| encode(sequence, buf))?;
        let reply = loop {
            // Other messages do not extend the deadline.
            if deadline.is_over() {
                return Err(fail!(ETIMEDOUT, "the server does not answer"));
            }
            let received = self.channel.receive(&mut self.message, deadline.left());
            let len = received.map_err(|error| match error {
                EBADMSG => fail!(
                    EKEYREJECTED,
                    "a message of the server was changed on its way"
                ),
                error => error.into(),
            })?;
            let message = self.message.get(..len).unwrap_or(&[]);
            match event(message, self.granted) {
                Some(Ok(Event::Extent { number, extent })) => {
                    self.extent = Some((number, extent));
                }
                // A late answer to a ping or a fence. What was flushed no longer matters to a map
                // that leaves.
                Some(Ok(Event::Pong | Event::Fenced { .. } | Event::Flushed { .. })) => {}
                Some(Err(malformed)) => return Err(fail!(EPROTO, "malformed event: {malformed}")),
                None => break parse(message, sequence),
            }
        };
        match reply {
            Ok(reply) => Ok(reply),
            Err(ReplyError::Refused(why)) => Err(refused(&why)),
            Err(ReplyError::Malformed(malformed)) => {
                Err(fail!(EPROTO, "malformed reply: {malformed}"))
            }
        }
    }

    /// Sends a ping, and returns the nanoseconds until the answer. Only for a connection without a
    /// login, to which the server sends nothing unasked. May sleep.
    pub(super) fn ping(&mut self, deadline: Deadline) -> Result<u64, Failure> {
        // What is there already would pass for the answer.
        if self.channel.try_receive(&mut self.message)?.is_some() {
            return Err(fail!(EPROTO, "the server answers what it was not asked"));
        }
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let start = Instant::<Monotonic>::now();
        self.channel
            .send(deadline.left(), |buf| Ping.encode(sequence, buf))?;
        let len = self.channel.receive(&mut self.message, deadline.left())?;
        let spent = nanos_since(start);
        match Pong::parse(self.message.get(..len).unwrap_or(&[]), sequence) {
            Ok(Pong) => Ok(spent),
            Err(ReplyError::Refused(why)) => Err(refused(&why)),
            Err(ReplyError::Malformed(malformed)) => {
                Err(fail!(EPROTO, "malformed answer to a ping: {malformed}"))
            }
        }
    }

    /// Does an RDMA READ of no bytes, and returns the nanoseconds that it took. May sleep.
    pub(super) fn read_nothing(&mut self, deadline: Deadline) -> Result<u64, Failure> {
        let start = Instant::<Monotonic>::now();
        match self.channel.read_nothing(deadline.left()) {
            Ok(()) => Ok(nanos_since(start)),
            Err(error) if error == EOPNOTSUPP => Err(fail!(
                error,
                "an iWARP device has no RDMA READ without a key"
            )),
            Err(error) if error == ETIMEDOUT => Err(fail!(error, "no answer to an RDMA READ")),
            Err(error) => Err(fail!(error, "the server's device refused an RDMA READ")),
        }
    }

    /// Notes that the login was granted. From now on the server may send extent events, in blocks
    /// of `block_size` and with no more than `access`.
    pub(super) fn set_granted(&mut self, block_size: BlockSize, access: Access) {
        self.granted = Some((block_size, access));
    }

    /// Sends the message that `encode` writes; an event may answer it. Gives `EAGAIN` if too many
    /// messages are still being sent. May sleep, but does not wait for the server.
    pub(super) fn post(
        &mut self,
        encode: impl FnOnce(u32, &mut [u8]) -> Result<usize, NoRoom>,
    ) -> Result {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        self.channel.try_send(|buf| encode(sequence, buf))
    }

    /// Returns the next event that the server has sent, if there is one. May sleep, but does not
    /// wait for the server.
    pub(super) fn event(&mut self) -> Result<Option<Event>, Failure> {
        if let Some((number, extent)) = self.extent.take() {
            return Ok(Some(Event::Extent { number, extent }));
        }
        let Some(len) = self.channel.try_receive(&mut self.message)? else {
            return Ok(None);
        };
        match event(self.message.get(..len).unwrap_or(&[]), self.granted) {
            Some(Ok(event)) => Ok(Some(event)),
            Some(Err(malformed)) => Err(fail!(EPROTO, "malformed event: {malformed}")),
            None => Err(fail!(EPROTO, "a reply without a request")),
        }
    }
}

/// Returns the nanoseconds since `start`.
fn nanos_since(start: Instant<Monotonic>) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(0)
}

/// Parses a message if it is an event.
fn event(message: &[u8], granted: Option<(BlockSize, Access)>) -> Option<Result<Event, Malformed>> {
    match Message::parse(message) {
        Ok(parsed) if parsed.is_event() => {
            let granted = granted.ok_or(Malformed("an event before the login"));
            Some(granted.and_then(|(block, access)| Event::parse(message, block, access)))
        }
        _ => None,
    }
}
