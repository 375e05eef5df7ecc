// SPDX-License-Identifier: GPL-2.0

//! The requests that a client sends on the control connection of a session, and what they make.
//!
//! A login attaches the session to an export. The client of an export of RAM then reads and writes
//! the slabs by itself; the commands to a block device are carried out by the
//! pollers (`server::block::queue`). All of this runs on the session's workqueue.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    sync::Arc,
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

mod login;

use crate::base::errno::{
    EBADMSG,
    ENOTCONN,
    EOPNOTSUPP,
    EPROTO,
    ESHUTDOWN, //
};
use crate::link::{
    channel::{
        message_buffer,
        Channel,
        Linked,
        COMPLETION_TIMEOUT_MS,
        MESSAGES, //
    },
    keys::Transcript, //
};
use crate::proto::{
    Access,
    Event,
    Extent,
    Fence,
    GrantRequest,
    ListReplyWriter,
    ListRequest,
    LogoutReply,
    Message,
    Name,
    NoRoom,
    Pong,
    Refusal,
    Refused,
    Request, //
};
use crate::server::{
    accept::PendingConnection,
    block::connections::Connections,
    export::{
        Export,
        Exports, //
    },
    quota::Charge,
    ram::Slabs,
    session::{
        Dismissal,
        Session,
        SessionWork,
        QUEUES_MAX, //
    },
};
use crate::session::{
    stranger::Requests,
    Epoch,
    PATHS_MAX, //
};

/// How long the session of a client that has logged out waits until the answer has got there.
const LOGOUT_MAX: Delta = Delta::from_secs(1);
/// How long a client may take to answer when it is told that the device was flushed: the HCA sends
/// the message again if it is lost.
const FAREWELL: Delta = Delta::from_secs(5);
/// How long a session that has drained waits until the others have, and the device is flushed. Its
/// client waits, too, and may have another server.
const DRAINED_MAX: Delta = Delta::from_secs(10);

/// What a login was granted.
struct Attachment {
    /// The name of the host.
    host: Name,
    /// The epoch of the path.
    epoch: u64,
    data_path: DataPath,
    export: Arc<Export>,
    /// The access that the client asked for and may have.
    access: Access,
    /// The server knew the reservation key that the client resumed, as the login reply said.
    remembered: bool,
    /// The extent that the client was told last, and its number.
    told: (u32, Extent),
    /// The newest epoch to fence of each path, until the fence is answered.
    fences: [Option<Epoch>; PATHS_MAX],
    /// What the account of its host is charged with. Last: the connections are closed by then.
    _charge: Charge,
}

/// How a session moves data.
enum DataPath {
    /// The client reads and writes the memory of the export.
    OneSided(Slabs),
    /// The client sends commands, which the server carries out.
    Commands(Connections),
}

/// The control side of a session.
pub(super) struct Control {
    // Fields drop in this order: queue pairs and memory regions before their protection domain.
    attachment: Option<Attachment>,
    channel: Option<Channel<Session>>,
    /// The client may use the export that it has asked for.
    is_admitted: bool,
    /// The request of a client that was just admitted, until the session runs on a workqueue of its
    /// own.
    admitted_request: Option<KVec<u8>>,
    /// What was said so far, until the first message that is no ping.
    transcript: Option<Transcript>,
    /// When the client logged out.
    logged_out: Option<Instant<Monotonic>>,
    /// When the session had drained.
    drained: Option<Instant<Monotonic>>,
    /// When the client was told that the device was flushed, and how much it had said by then.
    farewell: Option<(Instant<Monotonic>, u64)>,
    /// The messages of a client that was not logged in.
    unadmitted: Requests,
    /// The name of the port that the session came in through.
    port: Name,
    exports: Arc<Exports>,
}

impl Control {
    /// Makes the control side of a session that comes in through `port`, without a connection.
    pub(super) fn new(port: Name, exports: Arc<Exports>) -> Self {
        Self {
            attachment: None,
            channel: None,
            is_admitted: false,
            admitted_request: None,
            transcript: None,
            logged_out: None,
            drained: None,
            farewell: None,
            unadmitted: Requests::default(),
            port,
            exports,
        }
    }

    /// Accepts the control connection.
    fn open_channel(&mut self, session: &Arc<Session>, pending: &PendingConnection) -> Result {
        let channel = Channel::new(pending.id.clone(), session.clone())
            .inspect_err(|_| pending.refuse(Refusal::NoMemory))?;
        self.transcript = Some(pending.accept_control()?);
        self.channel = Some(channel);
        Ok(())
    }

    /// Accepts or refuses I/O connection `queue`.
    fn open_io(&mut self, session: &Arc<Session>, queue: u16, pending: &PendingConnection) {
        // What has drained stays so, and the session is about to end.
        if session.is_draining() {
            return pending.refuse(Refusal::BadSession);
        }
        let (Some(channel), Some(attachment)) = (&self.channel, &mut self.attachment) else {
            return pending.refuse(Refusal::BadState);
        };
        // The number of the session alone must not be enough: who has seen it could use it.
        let known = match channel.tickets() {
            Some(tickets) => pending.has_ticket(tickets),
            None => pending.id.reply_addr() == *session.source(),
        };
        if !known || pending.epoch != attachment.epoch {
            self.exports.stats.forgeries.count();
            return pending.refuse(Refusal::BadSession);
        }
        session.note_heard();
        let tickets = channel.tickets();
        let limits = channel.pd().device().limits();
        match &mut attachment.data_path {
            DataPath::OneSided(slabs) if slabs.is_free(queue) => {
                match slabs.connect(&pending.id, session) {
                    Ok(qp) => {
                        if pending
                            .accept_one_sided(limits.max_qp_rd_atom, tickets)
                            .is_ok()
                        {
                            slabs.keep(queue, qp);
                        }
                    }
                    Err(error) => pending.refuse(not_made(error)),
                }
            }
            DataPath::Commands(connections) if connections.is_free(queue) => {
                let fetches_max = pending.fetches_max(limits.max_qp_init_rd_atom);
                match connections.connect(&pending.id, (queue, fetches_max), session) {
                    Ok(()) => {
                        let accepted = pending.accept_commands(fetches_max, tickets, |met| {
                            connections.set_cipher(queue, met)
                        });
                        if accepted.is_err() {
                            connections.disconnect(queue);
                            // Nobody may make another one with the same keys.
                            if connections.is_protected() {
                                session.lose();
                            }
                        }
                    }
                    Err(error) => pending.refuse(not_made(error)),
                }
            }
            _ => pending.refuse(Refusal::BadQueue),
        }
    }

    /// Answers a request. One that cannot be parsed at all ends the session.
    fn answer(&mut self, session: &Arc<Session>, bytes: &[u8]) -> Result {
        let message = Message::parse(bytes).map_err(|_| {
            self.exports.stats.violations.count();
            EPROTO
        })?;
        if self.attachment.is_none() && self.unadmitted.count() {
            self.exports.stats.violations.count();
            return Err(EPROTO);
        }
        let sequence = message.sequence();
        let request = message.request();
        // A key may only be proved before anything was asked for.
        let transcript = match request {
            Ok(Request::Ping) => None,
            _ => self.transcript.take(),
        };
        let done = match request {
            Ok(Request::Challenge(challenge)) => match transcript {
                Some(transcript) => {
                    self.challenge(session, sequence, (&challenge, bytes), transcript)
                }
                None => Err(Refusal::BadState.into()),
            },
            Ok(Request::Login(login)) => self.log_in(session, (sequence, bytes), &login),
            Ok(Request::Grant(request)) => self.grant(sequence, &request),
            Ok(Request::List(request)) => self.list(session, sequence, &request),
            Ok(Request::Logout) => self.logout(session, sequence),
            Ok(Request::Ping) => Ok(self.ping(session)),
            Ok(Request::Fence(fence)) => self.fence(fence),
            Err(malformed) => Err(malformed.into()),
        };
        match done {
            Ok(sent) => sent,
            Err(refused) => self.send(|buf| message.refuse(&refused, buf)),
        }
    }

    /// Goes on with the request of a client that was just admitted, if there is one.
    fn go_on(&mut self, session: &Arc<Session>) -> Result {
        match self.admitted_request.take() {
            Some(request) => self.answer(session, &request),
            None => Ok(()),
        }
    }

    /// Sends a message on the control connection. A client that is not logged in is not waited for
    /// here: its requests are only read while there is room for an answer.
    fn send(&mut self, encode: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>) -> Result {
        let is_waited_for = self.is_waited_for();
        let channel = self.channel.as_mut().ok_or(ENOTCONN)?;
        match is_waited_for {
            true => channel.send(COMPLETION_TIMEOUT_MS, encode),
            false => channel.try_send(encode),
        }
    }

    /// Returns true if the client may be waited for: it is logged in, or was until now. Others stay
    /// for a short time, whether an export admits them or not: a session that waits is not ended.
    fn is_waited_for(&self) -> bool {
        self.attachment.is_some() || self.logged_out.is_some()
    }

    /// Answers a ping. A client sends the first one when I/O takes the path.
    fn ping(&mut self, session: &Session) -> Result {
        // Pings of others do not wait for a login that waits for memory.
        match &self.attachment {
            Some(attachment) if !attachment.remembered => attachment.export.confirm(session),
            _ => {}
        }
        self.send(|buf| Pong.encode(buf))
    }

    /// Tells the client the size and access of the export if they have changed. A client that is
    /// not logged in is told nothing.
    fn tell_extent(&mut self) -> Result {
        let Some(attachment) = &mut self.attachment else {
            return Ok(());
        };
        let number = attachment.export.backend.extent_number();
        let extent = attachment.export.backend.extent();
        let extent = Extent {
            access: extent.access.min(attachment.access),
            ..extent
        };
        if (number, extent) == attachment.told {
            return Ok(());
        }
        attachment.told = (number, extent);
        self.send(|buf| Event::Extent { number, extent }.encode(buf))
    }

    /// Notes that a path is to be fenced; [`Control::answer_fences`] answers when that is done.
    fn fence(&mut self, fence: Fence) -> Result<Result, Refused> {
        let attachment = self.attachment.as_mut().ok_or(Refusal::BadState)?;
        // Cannot fail: the parser admits only existing paths.
        if let Some(asked) = attachment.fences.get_mut(usize::from(fence.path)) {
            *asked = (*asked).max(Some(fence.epoch));
        }
        Ok(Ok(()))
    }

    /// Answers the fences that are done by now.
    fn answer_fences(&mut self, session: &Session) -> Result {
        for path in (0..).take(PATHS_MAX) {
            let Some(attachment) = &mut self.attachment else {
                return Ok(());
            };
            let Some(asked) = attachment.fences.get_mut(usize::from(path)) else {
                return Ok(());
            };
            let Some(epoch) = *asked else { continue };
            if attachment.export.fence(session, Fence { path, epoch }) {
                *asked = None;
                self.send(|buf| Event::Fenced { path, epoch }.encode(buf))?;
            }
        }
        Ok(())
    }

    /// Registers slabs of an export of RAM that are not registered yet, and sends their keys. The
    /// client has to have an I/O connection.
    fn grant(&mut self, sequence: u32, request: &GrantRequest) -> Result<Result, Refused> {
        let (Some(channel), Some(attachment)) = (&mut self.channel, &self.attachment) else {
            return Err(Refusal::BadState.into());
        };
        let DataPath::OneSided(slabs) = &attachment.data_path else {
            return Err(Refusal::BadState.into());
        };
        let wanted = request.slabs(slabs.geometry())?;
        let connection = slabs.connection().ok_or(Refusal::BadState)?;
        for slab in wanted.clone() {
            if slabs.open(connection, slab).map_err(not_registered)? {
                self.exports.stats.grants.count();
            }
        }
        Ok(channel.send(COMPLETION_TIMEOUT_MS, |buf| {
            slabs.write_grants(wanted, sequence, buf)
        }))
    }

    /// Lists the exports that the client may use.
    fn list(
        &mut self,
        session: &Session,
        sequence: u32,
        request: &ListRequest,
    ) -> Result<Result, Refused> {
        let (port, exports) = (self.port, self.exports.clone());
        let proven = session.proven();
        Ok(self.send(|buf| {
            let mut writer = ListReplyWriter::new(buf, sequence, request.first)?;
            let mut total: u32 = 0;
            let mut fits = true;
            exports.for_each(|export| {
                let Some(entry) = export.entry(&port, request, proven.as_deref()) else {
                    return;
                };
                fits = fits && (total < request.first || writer.push(&entry).is_ok());
                total = total.saturating_add(1);
            });
            writer.finish(total)
        }))
    }

    /// Releases the export before the reply is sent, so that the client may log in again at once,
    /// on another connection: this one ends once the reply has got there.
    fn logout(&mut self, session: &Session, sequence: u32) -> Result<Result, Refused> {
        if self.attachment.is_none() {
            return Err(Refusal::BadState.into());
        }
        session.note_leaving();
        self.detach(session, true);
        self.logged_out = Some(Instant::now());
        Ok(self.send(|buf| LogoutReply.encode(sequence, buf)))
    }

    /// Releases the export, if the session is attached to one; `leaving` if the client said that
    /// its map goes away.
    fn detach(&mut self, session: &Session, leaving: bool) {
        if let Some(attachment) = self.attachment.take() {
            let export = attachment.export.clone();
            // The export may count on this: no queue pair and no memory region is left.
            drop(attachment);
            export.detach(session, leaving);
            session.note_logout();
        }
    }

    /// Ends the session, which has drained, if it may: after the client has answered, or was given
    /// time to, where it is told that the device was flushed.
    fn dismiss(&mut self, session: &Session) -> Result {
        session.note_drained();
        let since = *self.drained.get_or_insert_with(Instant::now);
        match (session.dismissal(), &self.attachment, self.farewell) {
            (Dismissal::None, Some(_), _) if since.elapsed() < DRAINED_MAX => Ok(()),
            (Dismissal::Flushed, Some(attachment), None) => {
                let backend = &attachment.export.backend;
                let event = Event::Flushed {
                    instance: backend.instance(),
                    number: backend.extent_number(),
                };
                self.farewell = Some((Instant::now(), session.heard()));
                self.send(|buf| event.encode(buf))
            }
            (Dismissal::Flushed, Some(_), Some((since, heard)))
                if since.elapsed() < FAREWELL && (session.heard() == heard || !self.is_sent()) =>
            {
                Ok(())
            }
            _ => Err(ESHUTDOWN),
        }
    }

    /// Returns true if the client's HCA has all messages.
    fn is_sent(&self) -> bool {
        self.channel.as_ref().is_none_or(Channel::is_sent)
    }

    /// Returns true if there is a message that can be answered.
    fn has_work(&self) -> bool {
        let channel = self.channel.as_ref();
        channel.is_some_and(|channel| channel.has_message() && channel.has_room())
    }

    /// Returns how a client that is logged in moves data.
    fn data_path(&self) -> Option<&DataPath> {
        self.attachment.as_ref().map(|one| &one.data_path)
    }

    /// Returns true if no command is under way, and lets no more begin. May sleep.
    fn drain(&self) -> bool {
        match self.data_path() {
            None | Some(DataPath::OneSided(_)) => true,
            Some(DataPath::Commands(connections)) => connections.drain(),
        }
    }
}

impl SessionWork for Control {
    fn serve(&mut self, session: &Arc<Session>) -> Result {
        if let Some(pending) = session.take_control() {
            self.open_channel(session, &pending)?;
        }
        // No more can have been waiting. Those that come in meanwhile schedule this work again: a
        // client may ask for connections as fast as they are refused.
        for _ in 0..QUEUES_MAX {
            match session.take_io() {
                Some((queue, pending)) if !session.is_lost() => {
                    self.open_io(session, queue, &pending);
                }
                _ => break,
            }
        }
        self.go_on(session)?;
        let mut message = message_buffer()?;
        // No more messages than these can have been received. Those that come in meanwhile schedule
        // this work again, so that a client that never stops to ask does not delay the end of its
        // session. Strangers take turns.
        let most = match self.is_admitted {
            true => MESSAGES,
            false => 1,
        };
        for _ in 0..most {
            let is_waited_for = self.is_waited_for();
            let channel = self.channel.as_mut().ok_or(ENOTCONN)?;
            if !is_waited_for && !channel.has_room() {
                break;
            }
            let received = channel.try_receive(&mut message);
            if matches!(received, Err(EBADMSG)) {
                self.exports.stats.forgeries.count();
            }
            match received? {
                Some(len) => self.answer(session, message.get(..len).ok_or(EPROTO)?)?,
                None => break,
            }
            if self.admitted_request.is_some() {
                break;
            }
        }
        // Messages that came in before the loss count: one may have been a logout.
        if session.is_lost() {
            return Err(ENOTCONN);
        }
        if !self.is_waited_for() && self.has_work() {
            Session::notify(session);
        }
        if let Some(since) = self.logged_out {
            if self.is_sent() || since.elapsed() > LOGOUT_MAX {
                return Err(ENOTCONN);
            }
        }
        self.tell_extent()?;
        self.answer_fences(session)?;
        match session.is_draining() && self.drain() {
            true => self.dismiss(session),
            false => Ok(()),
        }
    }

    fn finish(&mut self, session: &Session) {
        // It fails together with the I/O connections, so that the HCA has one time for all of them.
        if let Some(channel) = &self.channel {
            channel.fail();
        }
        if let (Some(attachment), false) = (&self.attachment, session.is_draining()) {
            attachment.export.log_loss(&attachment.host, session.loss());
        }
        self.detach(session, false);
        self.channel = None;
    }

    fn is_logged_in(&self) -> bool {
        self.attachment.is_some()
    }

    fn look(&self) {
        if let Some(DataPath::Commands(connections)) = self.data_path() {
            connections.look();
        }
    }
}

fn no_memory(_: Error) -> Refused {
    Refusal::NoMemory.into()
}

/// The refusal of an I/O connection that could not be made. A client without a disk makes do with
/// fewer of them if that was for want of memory, or of queue pairs.
fn not_made(error: Error) -> Refusal {
    match error {
        ENOMEM | ENOSPC => Refusal::NoMemory,
        _ => Refusal::Internal,
    }
}

/// The refusal of a slab that could not be registered.
fn not_registered(error: Error) -> Refused {
    match error {
        EOPNOTSUPP => Refusal::Unreachable.into(),
        error => no_memory(error),
    }
}
