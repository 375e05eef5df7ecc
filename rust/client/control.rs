// SPDX-License-Identifier: GPL-2.0

//! The client's end of a control connection: connect, ask, be answered.

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
        ECONNREFUSED,
        EHOSTUNREACH,
        ENETUNREACH,
        ENOTCONN,
        EPROTO,
        EPROTONOSUPPORT, //
    },
    net::Net, //
};
use crate::link::{
    channel::{
        Channel,
        Link,
        Linked, //
    },
    failure::{
        fail,
        Failure, //
    },
};
use crate::proto::{
    wire::{
        CONNECT_REQUEST_MAX,
        MESSAGE_MAX,
        VERSION_MAX,
        VERSION_MIN, //
    },
    Access,
    BlockSize,
    ConnectReply,
    ConnectRequest,
    Connection,
    Event,
    Extent,
    Malformed,
    Message,
    NoRoom,
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

/// What one step of an attempt to connect may take; all of them together, as long as a user waits.
const CONNECT_TIMEOUT_MS: Msecs = 4000;
/// What the resolution of the address may take of it.
const RESOLVE_TIMEOUT_MS: Msecs = 2000;
/// 4.096 us x 2^14 = 67 ms: how long the HCA waits for an acknowledgement before it sends again.
const ACK_TIMEOUT: u8 = 14;
/// 4.096 us x 2^17 = 0.54 s: a software device is as late as the CPU is busy.
const SOFTWARE_ACK_TIMEOUT: u8 = 17;

/// Where a server is.
#[derive(Clone)]
pub(crate) struct Target {
    /// The namespace that its address is looked up in.
    pub(crate) net: Net,
    /// The server's port.
    pub(crate) addr: SocketAddr,
    /// The local address to use.
    pub(crate) source: Option<SocketAddr>,
    /// Type of service of the packets.
    pub(crate) tos: u8,
}

/// The time that is left of an attempt.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    start: Instant<Monotonic>,
    timeout: Msecs,
}

impl Deadline {
    /// An attempt begins.
    pub(super) fn start() -> Self {
        Self {
            start: Instant::now(),
            timeout: CONNECT_TIMEOUT_MS,
        }
    }

    /// The same with less time in all.
    pub(super) fn sooner(self, timeout: Msecs) -> Self {
        Self {
            timeout: self.timeout.min(timeout),
            ..self
        }
    }

    /// Milliseconds since the start.
    pub(super) fn spent(&self) -> Msecs {
        Msecs::try_from(self.start.elapsed().as_millis()).unwrap_or(Msecs::MAX)
    }

    fn is_over(&self) -> bool {
        self.spent() >= self.timeout
    }

    /// Milliseconds left; at least 1, so that it means a short wait and not for ever.
    fn left(&self) -> Msecs {
        self.timeout.saturating_sub(self.spent()).max(1)
    }
}

impl Target {
    /// An id that knows its device and its way to the server. May sleep.
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
        // Not every HCA takes it; the default is only slower to notice a loss.
        let _ = id.set_ack_timeout(timeout);
        Ok(id)
    }

    /// Connects `id`, which has a queue pair. May sleep.
    pub(super) fn connect(
        &self,
        id: &CmId,
        connection: Connection,
        epoch: u64,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let mut data = [0; CONNECT_REQUEST_MAX];
        let request = ConnectRequest { connection, epoch };
        let len = request
            .encode(versions(), &mut data)
            .map_err(|NoRoom| fail!(EMSGSIZE, "the connection request does not fit"))?;
        let device = id.device()?;
        let (served, reads) = (
            device.limits().max_qp_rd_atom,
            device.limits().max_qp_init_rd_atom,
        );
        let reply = id
            .connect(
                &ConnParam {
                    private_data: data.get(..len).unwrap_or(&[]),
                    retry_count: crate::RETRY_COUNT,
                    rnr_retry_count: crate::RETRY_COUNT,
                    responder_resources: u8::try_from(served).unwrap_or(u8::MAX).min(READS_MAX),
                    initiator_depth: u8::try_from(reads).unwrap_or(u8::MAX).min(READS_MAX),
                },
                deadline.left(),
            )
            .map_err(|error| self.failure(error))?;
        ConnectReply::parse(&reply).map_err(|malformed| self.foreign(malformed))?;
        Ok(())
    }

    /// What the user is told when the connection manager gives up.
    fn failure(&self, error: CmError) -> Failure {
        let addr = self.addr;
        match &error {
            _ if error.to_error() == ENOMEM => ENOMEM.into(),
            // The server had no memory even to say so. Data is padded with zeroes.
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
            // What the server refuses ends differently.
            _ if error.to_error() == EACCES => {
                fail!(EHOSTUNREACH, "the way to {} is prohibited", addr.ip())
            }
            _ => {
                let errno = error.to_error();
                match self.source {
                    // Only binding to the source address fails with these.
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

    /// What answered does not speak farblk.
    fn foreign(&self, malformed: Malformed) -> Failure {
        fail!(EPROTO, "{} is no farblk server: {malformed}", self.addr)
    }
}

/// The protocol versions to offer.
fn versions() -> (u16, u16) {
    match compat::param(&crate::module_parameters::protocol_version) {
        0 => (VERSION_MIN, VERSION_MAX),
        version => (version, version),
    }
}

/// READs in flight on one connection that are asked for at most.
const READS_MAX: u8 = 128;

/// What the user is told when the server refuses.
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
        _ => EPROTO,
    };
    match refused.text.is_empty() {
        true => fail!(error, "{}", refused.refusal.text()),
        false => fail!(error, "{}", refused.text),
    }
}

/// Who hears of what happens on connections.
pub(super) trait Watcher: Send + Sync {
    /// A connection broke. Any context.
    fn lost(&self);

    /// The server does not keep to the protocol: the connections have to go. Any context.
    fn violated(&self, what: Malformed);

    /// A message may have come in on the control connection. Any context.
    fn arrived(&self);

    /// The server allows more commands in flight than there are receives for on a connection. Any
    /// context.
    fn credited(&self);
}

/// What completions and the connection manager know of a control connection.
#[pin_data]
pub(super) struct Control {
    #[pin]
    link: Link,
    watcher: Option<Arc<dyn Watcher>>,
}

impl Linked for Control {
    fn link(&self) -> &Link {
        &self.link
    }

    fn notify(this: &Arc<Self>) {
        match &this.watcher {
            Some(watcher) if this.link.is_lost() => watcher.lost(),
            Some(watcher) => watcher.arrived(),
            None => {}
        }
    }
}

struct Events(Arc<Control>);

impl CmEvents for Events {
    fn disconnected(&self) {
        self.0.link.cut();
        Control::notify(&self.0);
    }
}

/// A connected control connection.
pub(super) struct Client {
    channel: Channel<Control>,
    sequence: u32,
    /// The message that is being read.
    message: KVec<u8>,
    /// What the server said last of the export's extent, and its number, if nobody has asked for it yet.
    extent: Option<(u32, Extent)>,
    /// What the login has granted: the server's events on the extent have to keep to it. `None` before
    /// the login.
    granted: Option<(BlockSize, Access)>,
}

impl Client {
    /// Connects to a server. May sleep.
    pub(super) fn connect(
        target: &Target,
        epoch: u64,
        watcher: Option<Arc<dyn Watcher>>,
        deadline: Deadline,
    ) -> Result<Self, Failure> {
        let control = Arc::pin_init(
            pin_init!(Control {
                link <- Link::new(),
                watcher,
            }),
            GFP_KERNEL,
        )?;
        let events = Arc::new(Events(control.clone()), GFP_KERNEL)?;
        let id = target.resolve(events, deadline)?;
        let channel = Channel::new(id, control)?;
        target.connect(channel.id(), Connection::Control, epoch, deadline)?;
        Ok(Self {
            channel,
            sequence: 0,
            message: KVec::from_elem(0, MESSAGE_MAX, GFP_KERNEL)?,
            extent: None,
            granted: None,
        })
    }

    /// The channel, for what shares its protection domain.
    pub(super) fn channel(&self) -> &Channel<Control> {
        &self.channel
    }

    /// Sends a request and reads its reply. May sleep.
    pub(super) fn call<R>(
        &mut self,
        deadline: Deadline,
        encode: impl FnOnce(u32, &mut [u8]) -> Result<usize, NoRoom>,
        parse: impl FnOnce(&[u8], u32) -> Result<R, ReplyError>,
    ) -> Result<R, Failure> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        self.channel.send(|buf| encode(sequence, buf))?;
        let reply = loop {
            // Who says other things meanwhile gains no time by that.
            if deadline.is_over() {
                return Err(fail!(ETIMEDOUT, "the server does not answer"));
            }
            let len = self.channel.receive(&mut self.message, deadline.left())?;
            let message = self.message.get(..len).unwrap_or(&[]);
            match event(message, self.granted) {
                Some(Ok(Event::Extent { number, extent })) => {
                    self.extent = Some((number, extent));
                }
                // Answers that nobody waits for any more.
                Some(Ok(_)) => {}
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

    /// The login was granted: from now on the server may send events on the extent of the export, in
    /// blocks of `block_size` and with no more than `access`.
    pub(super) fn set_granted(&mut self, block_size: BlockSize, access: Access) {
        self.granted = Some((block_size, access));
    }

    /// Says something that is answered by an event, if at all. `EAGAIN` if what was said before is
    /// still on its way. May sleep, but not for the server.
    pub(super) fn say(
        &mut self,
        encode: impl FnOnce(u32, &mut [u8]) -> Result<usize, NoRoom>,
    ) -> Result {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        self.channel.try_send(|buf| encode(sequence, buf))
    }

    /// What the server said without being asked since the last look, if anything. May sleep.
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
            None => Err(fail!(EPROTO, "a reply to nothing")),
        }
    }
}

/// The message, if it is an event.
fn event(message: &[u8], granted: Option<(BlockSize, Access)>) -> Option<Result<Event, Malformed>> {
    match Message::parse(message) {
        Ok(parsed) if parsed.is_event() => {
            let granted = granted.ok_or(Malformed("an event before the login"));
            Some(granted.and_then(|(block, access)| Event::parse(message, block, access)))
        }
        _ => None,
    }
}
