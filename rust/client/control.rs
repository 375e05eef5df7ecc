// SPDX-License-Identifier: GPL-2.0

//! Control connections, as the client sees them: it connects, sends requests and reads the replies.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    sync::{
        Arc,
        SetOnce, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    },
};

use crate::base::{
    errno::{
        EBADMSG,
        EKEYREJECTED,
        EPROTO, //
    },
    sync, //
};
use crate::client::{
    deadline::Deadline,
    events::PathEvents,
    target::{
        refused,
        unproven,
        Connected,
        NotConnected,
        Shown,
        Target, //
    }, //
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
        Keys,
        Psk,
        Share,
        Transcript, //
    },
};
use crate::proto::{
    handshake::Ticket,
    Access,
    BlockSize,
    Challenge,
    ChallengeReply,
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
    ReplyError, //
};
use crate::rdma::cm::CmEvents;
use crate::session::{
    clock::Backoff,
    map::Told, //
};

/// How long an answer may take, in ms, before the server is nudged, if it may have missed what was
/// asked.
const NUDGE_MS: u32 = 200;

/// The longest pause before a server is asked again that has no place for a connection, in ms.
const AGAIN_MAX_MS: u32 = 1000;

/// The part of a control connection that completion handlers and the connection manager use.
#[pin_data]
pub(super) struct ControlLink {
    #[pin]
    link: Link,
    /// Where to post the events of a connection of a path, once it is there.
    events: SetOnce<PathEvents>,
}

impl Linked for ControlLink {
    fn link(&self) -> &Link {
        &self.link
    }

    fn notify(this: &Arc<Self>) {
        match this.events.as_ref() {
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
        // A server that has many half-open connections wants to see a cookie.
        let mut cookie = Ticket::default();
        let mut sent_away = 0_u32;
        let mut backoff = Backoff::new();
        let (channel, connected) = loop {
            match Self::open(target, epoch, cookie, deadline) {
                Ok(opened) => break opened,
                Err(NotConnected::Again(next)) if !deadline.is_over() => {
                    // The first time it may only want to see that the answer got here. Then it has
                    // as many as it can let in, and each that asks costs it and this host time.
                    if sent_away > 0 {
                        let delay = backoff.next(AGAIN_MAX_MS, false);
                        // CAST: Any bits will do.
                        let ms = delay.with(sync::random_u64() as u32);
                        fsleep(Delta::from_millis(i64::try_from(ms).unwrap_or(0)));
                    }
                    cookie = next;
                    sent_away = sent_away.saturating_add(1);
                }
                // The last request has little time, or none. Why the ones before it got no place
                // says more than that its answer did not come.
                Err(NotConnected::Failed(failure))
                    if sent_away > 1 && failure.error == ETIMEDOUT =>
                {
                    return Err(refused(&Refusal::Again.into()));
                }
                Err(failed) => return Err(failed.into()),
            }
        };
        if let Some(events) = events {
            let link = channel.owner();
            link.events.populate(events);
            // It may have been lost already.
            ControlLink::notify(link);
        }
        let mut this = Self {
            channel,
            sequence: 0,
            message: message_buffer()?,
            extent: None,
            granted: None,
        };
        if let Some(key) = key {
            this.challenge(key, connected.transcript, deadline)?;
        }
        Ok(this)
    }

    /// Connects, and shows `cookie`. Returns what both sides have said. May sleep.
    fn open(
        target: &Target,
        epoch: u64,
        cookie: Ticket,
        deadline: Deadline,
    ) -> Result<(Channel<ControlLink>, Connected), NotConnected> {
        let link = Arc::pin_init(
            pin_init!(ControlLink {
                link <- Link::new(),
                events: SetOnce::new(),
            }),
            GFP_KERNEL,
        )?;
        let cm_events = Arc::new(ControlCmEvents(link.clone()), GFP_KERNEL)?;
        let id = target.resolve(cm_events, deadline)?;
        let channel = Channel::new(id, link)?;
        let asked = (Connection::Control, epoch);
        let connected = target.connect(channel.id(), asked, Shown::Cookie(cookie), deadline)?;
        Ok((channel, connected))
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
            let received = self.receive(deadline);
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

    /// Reads the next message, and returns its length. May sleep.
    fn receive(&mut self, deadline: Deadline) -> Result<usize> {
        let misses = self.channel.pd().device().quirks().misses_first_message();
        loop {
            let left = deadline.left();
            let timeout = if misses { left.min(NUDGE_MS) } else { left };
            match self.channel.receive(&mut self.message, timeout) {
                Err(error) if error == ETIMEDOUT && misses && !deadline.is_over() => {
                    self.channel.nudge(left)?;
                }
                received => return received,
            }
        }
    }

    /// Sends a ping and waits for its answer, on a connection without a login, to which the server
    /// sends nothing else. Returns how long that took, in ns. May sleep.
    pub(super) fn round_trip(&mut self, deadline: Deadline) -> Result<u64, Failure> {
        // An answer that is there already is none to this ping.
        if self.channel.try_receive(&mut self.message)?.is_some() {
            return Err(fail!(EPROTO, "the server answers what it was not asked"));
        }
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let start = Instant::<Monotonic>::now();
        self.channel
            .send(deadline.left(), |buf| Ping.encode(sequence, buf))?;
        let len = self.receive(deadline)?;
        let took = start.elapsed().as_nanos();
        match Pong::parse(self.message.get(..len).unwrap_or(&[]), sequence) {
            Ok(Pong) => Ok(u64::try_from(took).unwrap_or(0)),
            Err(ReplyError::Refused(why)) => Err(refused(&why)),
            Err(ReplyError::Malformed(malformed)) => {
                Err(fail!(EPROTO, "malformed answer to a ping: {malformed}"))
            }
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
