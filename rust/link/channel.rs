// SPDX-License-Identifier: GPL-2.0

//! A control connection: messages in both directions.
//!
//! Completion handlers only fill a [`Link`] and wake its owner. All other work is done through
//! [`Channel`] on the workqueue of the owner, and so needs no lock.
//!
//! Once both sides have keys ([`Channel::authenticate`]), each message has a tag behind it, by
//! which the other side sees that it comes from the peer, unchanged and in order.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    sync::Arc,
    time::{
        Instant,
        Monotonic,
        Msecs, //
    }, //
};

use crate::base::{
    errno::{
        EBADMSG,
        ENOTCONN, //
    },
    scatterlist::NoMemory,
    sync::{
        new_irqsave_spinlock,
        Completion,
        IrqSaveSpinLock, //
    },
};
use crate::link::keys::{
    Forged,
    Keys,
    Tickets, //
};
use crate::proto::{
    wire::{
        MESSAGE_MAX,
        TAG_SIZE, //
    },
    NoRoom, //
};
use crate::rdma::{
    cm::CmId,
    cq::{
        Cq,
        Workqueue, //
    },
    dma::{
        Direction,
        DmaBuffer, //
    },
    pd::Pd,
    qp::{
        Qp,
        QpCaps,
        QpHandler, //
    },
    remnant::ObjectRef,
    wc::{
        Received,
        WcError, //
    },
    wr::{
        RdmaOp,
        SendOwner, //
    },
};

/// Maximum number of messages in flight in each direction: a request or its reply, a message
/// without a reply, and as many again whose completions are late.
pub(crate) const MESSAGES: usize = 4;
/// Bytes of a buffer: a message and its tag.
const BUFFER_SIZE: usize = MESSAGE_MAX + TAG_SIZE;
/// Send slot of an RDMA operation of no bytes. The slots below it are for messages.
const EMPTY_SLOT: u16 = MESSAGES as u16;
/// Timeout for a local operation of the HCA, and for the acknowledgment of a message by the peer.
pub(crate) const COMPLETION_TIMEOUT_MS: Msecs = 5000;

/// The owner of a posted send.
pub(crate) enum Posted {
    /// A message, its length in bytes and its slot.
    Message(KBox<DmaBuffer>, usize, u16),
    /// An RDMA operation of no bytes.
    Empty,
}

impl SendOwner for Posted {
    type Memory = NoMemory;

    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        match self {
            Self::Message(buffer, len, _) => Some((buffer, *len)),
            Self::Empty => None,
        }
    }
}

/// The results of completions, for the owner of the connection.
struct Inbox {
    /// Received messages that were not read yet, oldest first.
    received: [Option<(KBox<DmaBuffer>, u32)>; MESSAGES],
    /// Free buffers for sending. The index is the send slot.
    free: [Option<KBox<DmaBuffer>>; MESSAGES],
    /// The result of the last RDMA operation of no bytes.
    empty: Option<Result<(), WcError>>,
    /// Number of signs of life of the peer so far: messages, and what [`Link::note_heard`] counts.
    heard: u64,
    /// True if the connection is broken. No message is received any more.
    lost: bool,
}

impl Inbox {
    /// Takes a free buffer for sending, and its slot.
    fn free(&mut self) -> Option<(u16, KBox<DmaBuffer>)> {
        let mut free = (0..).zip(self.free.iter_mut());
        free.find_map(|(slot, buffer)| Some((slot, buffer.take()?)))
    }

    /// Takes the oldest received message.
    fn oldest(&mut self) -> Option<(KBox<DmaBuffer>, u32)> {
        let oldest = self.received.first_mut()?.take();
        self.received.rotate_left(1);
        oldest
    }
}

/// The part of a control connection that completion handlers and other threads use.
#[pin_data]
pub(crate) struct Link {
    #[pin]
    inbox: IrqSaveSpinLock<Inbox>,
    /// Signalled when a message was received, or the link was cut.
    #[pin]
    arrived: Completion,
    /// Signalled when a message was sent or an RDMA operation is over, or the link was cut.
    #[pin]
    completed: Completion,
}

impl Link {
    /// Makes a link that is not connected yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        let inbox = Inbox {
            received: [const { None }; MESSAGES],
            free: [const { None }; MESSAGES],
            empty: None,
            heard: 0,
            lost: false,
        };
        pin_init!(Self {
            inbox <- new_irqsave_spinlock!(inbox, "Link::inbox"),
            arrived <- Completion::new(),
            completed <- Completion::new(),
        })
    }

    /// Marks the connection as broken. Tasks that wait on the channel fail, now and later. Any
    /// context.
    pub(crate) fn cut(&self) {
        self.inbox.lock().lost = true;
        self.arrived.complete_all();
        self.completed.complete_all();
    }

    /// Returns the number of signs of life of the peer so far, with messages that were not read
    /// yet. Any context.
    pub(crate) fn heard(&self) -> u64 {
        self.inbox.lock().heard
    }

    /// Counts a sign of life that is no message of this connection. Any context.
    pub(crate) fn note_heard(&self) {
        self.inbox.lock().heard += 1;
    }

    /// Returns true if the connection is broken. Any context.
    pub(crate) fn is_lost(&self) -> bool {
        self.inbox.lock().lost
    }
}

/// An object that owns a control connection.
pub(crate) trait Linked: Send + Sync + 'static {
    /// Returns the link that completion handlers fill.
    fn link(&self) -> &Link;

    /// Schedules the work of the owner: a message was received, or the link was cut. Any context.
    fn notify(this: &Arc<Self>);

    /// The peer has a message that was sent, or never gets it. Any context.
    fn sent(_: &Arc<Self>) {}
}

/// Handles the completions of a control connection.
pub(crate) struct Handler<O: Linked>(Arc<O>);

impl<O: Linked> QpHandler for Handler<O> {
    type Send = Posted;
    type Recv = KBox<DmaBuffer>;
    type Ulp = ();

    fn send_done(&self, _: &Qp<Self>, owner: Self::Send, result: Result<(), WcError>) {
        let link = self.0.link();
        let is_message = owner.message().is_some();
        {
            let mut inbox = link.inbox.lock();
            match owner {
                Posted::Message(buffer, _, slot) => {
                    if let Some(free) = inbox.free.get_mut(usize::from(slot)) {
                        *free = Some(buffer);
                    }
                }
                Posted::Empty => inbox.empty = Some(result),
            }
        }
        link.completed.complete();
        if is_message {
            O::sent(&self.0);
        }
    }

    fn recv_done(
        &self,
        _: &Qp<Self>,
        buffer: KBox<DmaBuffer>,
        result: Result<Received<'_>, WcError>,
    ) {
        let Ok(len) = result.map(|received| received.len()) else {
            return;
        };
        let link = self.0.link();
        {
            let mut inbox = link.inbox.lock();
            inbox.heard += 1;
            // Always finds a place: there are as many as posted receives.
            if let Some(place) = inbox.received.iter_mut().find(|place| place.is_none()) {
                *place = Some((buffer, len));
            }
        }
        link.arrived.complete();
        O::notify(&self.0);
    }

    fn error(&self) {
        self.0.link().cut();
        O::notify(&self.0);
    }
}

/// The part of a control connection that only the workqueue of its owner uses.
pub(crate) struct Channel<O: Linked> {
    // Fields drop in this order: the queue pair before the objects that it was made from.
    qp: ObjectRef<Qp<Handler<O>>>,
    pd: Arc<Pd>,
    id: Arc<CmId>,
    owner: Arc<O>,
    /// Buffer for the message that is being encoded.
    room: KVec<u8>,
    /// The side that this host is, and the keys of a connection whose messages have tags.
    auth: Option<(Side, KBox<Keys>)>,
}

/// The side of a connection that this host is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// It has made the connection.
    Client,
    /// It has accepted it.
    Server,
}

impl<O: Linked> Channel<O> {
    /// Makes the queue pair on a bound `id`, and posts its receives. The caller connects or accepts
    /// afterwards. May sleep.
    pub(crate) fn new(id: Arc<CmId>, owner: Arc<O>) -> Result<Self> {
        let device = id.device()?;
        let pd = Pd::alloc(&device)?;
        let slots = EMPTY_SLOT + 1;
        let caps = QpCaps {
            slots,
            send_wr: slots.into(),
            // CAST: A small number.
            recv_wr: MESSAGES as u32,
            sges: 1,
            ..QpCaps::default()
        };
        let cq = Cq::<Workqueue>::alloc(&device, caps.send_cqes() + caps.recv_cqes(), 0)?;
        let handler = Handler(owner.clone());
        let qp = Qp::create(&id, &pd, &cq, &cq, caps, handler)?;
        for slot in 0..MESSAGES {
            let buffer = DmaBuffer::alloc(&device, BUFFER_SIZE, Direction::FromDevice)?;
            qp.recv(KBox::new(buffer, GFP_KERNEL)?)
                .map_err(|(error, _)| error)?;
            let buffer = DmaBuffer::alloc(&device, BUFFER_SIZE, Direction::ToDevice)?;
            let buffer = KBox::new(buffer, GFP_KERNEL)?;
            if let Some(free) = owner.link().inbox.lock().free.get_mut(slot) {
                *free = Some(buffer);
            }
        }
        Ok(Self {
            qp,
            pd,
            id,
            owner,
            room: KVec::from_elem(0, BUFFER_SIZE, GFP_KERNEL)?,
            auth: None,
        })
    }

    /// Gives each message that is sent or read from now on a tag. Both sides have to do so after
    /// the same messages.
    pub(crate) fn authenticate(&mut self, side: Side, keys: KBox<Keys>) {
        self.auth = Some((side, keys));
    }

    /// Returns what the tickets of I/O connections are made with; `None` without keys.
    pub(crate) fn tickets(&self) -> Option<&Tickets> {
        self.auth.as_ref().map(|(_, keys)| &keys.tickets)
    }

    /// Returns the protection domain of the session.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the owner.
    pub(crate) fn owner(&self) -> &Arc<O> {
        &self.owner
    }

    /// Returns the id of the connection.
    pub(crate) fn id(&self) -> &Arc<CmId> {
        &self.id
    }

    /// Sends the message that `encode` writes. Waits up to `timeout` ms for a free buffer. May
    /// sleep.
    pub(crate) fn send(
        &mut self,
        timeout: Msecs,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>,
    ) -> Result {
        let link = self.owner.link();
        let free = self.wait(&link.completed, timeout, Inbox::free)?;
        self.send_in(free, encode)
    }

    /// Returns true if [`Channel::try_send`] finds a free buffer. Any context.
    pub(crate) fn has_room(&self) -> bool {
        let inbox = self.owner.link().inbox.lock();
        inbox.free.iter().any(Option::is_some)
    }

    /// Returns true if there is a message that was not read. Any context.
    pub(crate) fn has_message(&self) -> bool {
        let inbox = self.owner.link().inbox.lock();
        inbox.received.first().is_some_and(Option::is_some)
    }

    /// Returns true if the peer's HCA has all messages that were sent. Any context.
    pub(crate) fn is_sent(&self) -> bool {
        let inbox = self.owner.link().inbox.lock();
        inbox.free.iter().all(Option::is_some)
    }

    /// Sends like [`Channel::send`], but gives `EAGAIN` if no buffer is free. May sleep.
    pub(crate) fn try_send(
        &mut self,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>,
    ) -> Result {
        let free = self.owner.link().inbox.lock().free();
        self.send_in(free.ok_or(EAGAIN)?, encode)
    }

    fn send_in(
        &mut self,
        (slot, mut buffer): (u16, KBox<DmaBuffer>),
        encode: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>,
    ) -> Result {
        let room = self.room.get_mut(..MESSAGE_MAX).ok_or(EMSGSIZE)?;
        let mut len = encode(room).map_err(|NoRoom| EMSGSIZE)?;
        let message = room.get(..len).ok_or(EMSGSIZE)?;
        buffer.copy_in(0, message)?;
        if let Some((side, keys)) = &mut self.auth {
            let sender = match side {
                Side::Client => &mut keys.client,
                Side::Server => &mut keys.server,
            };
            buffer.copy_in(len, &sender.tag(message))?;
            len += TAG_SIZE;
        }
        self.qp
            .send(slot, Posted::Message(buffer, len, slot), true)
            .map_err(|(error, _)| error)
    }

    /// Copies the oldest received message to the start of `message`, which must have room for one
    /// and its tag ([`message_buffer`]), and returns its length without the tag. Waits up to
    /// `timeout` ms for a message. Fails with `EBADMSG` if the tag is missing or wrong: then the
    /// connection has to end. May sleep.
    pub(crate) fn receive(&mut self, message: &mut [u8], timeout: Msecs) -> Result<usize> {
        let link = self.owner.link();
        let oldest = self.wait(&link.arrived, timeout, Inbox::oldest)?;
        self.read(oldest, message)
    }

    /// Receives like [`Channel::receive`], but without waiting for a message. May sleep.
    pub(crate) fn try_receive(&mut self, message: &mut [u8]) -> Result<Option<usize>> {
        let oldest = self.owner.link().inbox.lock().oldest();
        oldest.map(|oldest| self.read(oldest, message)).transpose()
    }

    /// Copies a message, so that the peer cannot change it any more, and posts its buffer again.
    fn read(&mut self, (buffer, len): (KBox<DmaBuffer>, u32), message: &mut [u8]) -> Result<usize> {
        let len = usize::try_from(len).map_err(|_| EMSGSIZE)?;
        let received = message.get_mut(..len).ok_or(EMSGSIZE)?;
        buffer.copy_out(0, received)?;
        self.qp.recv(buffer).map_err(|(error, _)| error)?;
        let Some((side, keys)) = &mut self.auth else {
            return Ok(len);
        };
        let peer = match side {
            Side::Client => &mut keys.server,
            Side::Server => &mut keys.client,
        };
        let (message, tag) = received.split_last_chunk().ok_or(EBADMSG)?;
        peer.check(message, tag).map_err(|Forged| EBADMSG)?;
        Ok(message.len())
    }

    /// Lets the connection fail. The drop waits for the device, as it does for other queue pairs
    /// that fail now: so its owner calls this before it waits for those. May sleep.
    pub(crate) fn fail(&self) {
        self.qp.fail();
    }

    /// Writes no bytes by RDMA, and waits for that up to `timeout` ms: a device that misses the
    /// first message ([`misses_first_message`]) then delivers it. If it fails, so does the
    /// connection. May sleep.
    ///
    /// [`misses_first_message`]: crate::rdma::quirks::Quirks::misses_first_message
    pub(crate) fn nudge(&mut self, timeout: Msecs) -> Result {
        self.qp
            .rdma_nothing(EMPTY_SLOT, RdmaOp::Write, Posted::Empty, true)
            .map_err(|(error, _)| error)?;
        let completed = &self.owner.link().completed;
        let done = self.wait(completed, timeout, |inbox| inbox.empty.take());
        if done.is_err() {
            // Otherwise a late completion would be attributed to the next one.
            self.qp.fail();
        }
        done?.map_err(|error| error.to_error())
    }

    /// Waits until `take` returns a value, or `timeout` ms have passed, however often `completion`
    /// is signalled. Gives `ENOTCONN` if the connection is broken. May sleep.
    fn wait<T>(
        &self,
        completion: &Completion,
        timeout: Msecs,
        mut take: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<T> {
        let start = Instant::<Monotonic>::now();
        let left = || {
            let spent = Msecs::try_from(start.elapsed().as_millis()).unwrap_or(Msecs::MAX);
            timeout.checked_sub(spent).filter(|left| *left > 0)
        };
        loop {
            // This comes before the check, so that an event after the check signals again.
            completion.reinit();
            {
                let mut inbox = self.owner.link().inbox.lock();
                if let Some(found) = take(&mut inbox) {
                    return Ok(found);
                }
                if inbox.lost {
                    return Err(ENOTCONN);
                }
            }
            let left = left().ok_or(ETIMEDOUT)?;
            completion.wait_timeout(left)?;
        }
    }
}

impl<O: Linked> Drop for Channel<O> {
    fn drop(&mut self) {
        self.id.disconnect();
        self.qp.fail();
    }
}

/// Returns a buffer for received messages. May sleep.
pub(crate) fn message_buffer() -> Result<KVec<u8>> {
    Ok(KVec::from_elem(0, BUFFER_SIZE, GFP_KERNEL)?)
}
