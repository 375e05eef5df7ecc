// SPDX-License-Identifier: GPL-2.0

//! A control connection: messages in both directions, and the registration of memory.
//!
//! Completion handlers only fill a [`Link`] and wake its owner. All other work is done through
//! [`Channel`] on the workqueue of the owner, and so needs no lock.
//!
//! Once both sides have keys ([`Channel::authenticate`]), each message has a tag behind it, by
//! which the other side sees that it comes from the peer, unchanged and in order.

#![forbid(unsafe_code)]

mod posted;

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
        self,
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
        Direct, //
    },
    dma::{
        Direction,
        DmaBuffer, //
    },
    pd::Pd,
    qp::{
        Qp,
        QpHandler, //
    },
    remnant::ObjectRef,
    request::{
        RequestHandler,
        Requests, //
    },
    wc::{
        Received,
        WcError, //
    },
    wr::{
        RdmaOp,
        SendOwner, //
    },
};

use self::posted::Posted;
pub(crate) use self::posted::{
    ChannelConfig,
    Completions,
    Work, //
};

/// Maximum number of messages in flight in each direction: a request or its reply, a message
/// without a reply, and as many again whose completions are late.
pub(crate) const MESSAGES: usize = 4;
/// Bytes of a buffer: a message and its tag.
const BUFFER_SIZE: usize = MESSAGE_MAX + TAG_SIZE;
/// Send slot of a READ or WRITE of no bytes, and of the first operation of the owner. The slots
/// below it are for messages.
const OPERATION_SLOT: u16 = MESSAGES as u16;
/// Timeout for a local operation of the HCA, and for the acknowledgment of a message by the peer.
pub(crate) const COMPLETION_TIMEOUT_MS: Msecs = 5000;

/// An operation that is over, and its result.
type Over<T> = (T, Result<(), WcError>);

/// The results of completions, for the owner of the connection.
struct Inbox<T> {
    /// Received messages that were not read yet, oldest first.
    received: [Option<(KBox<DmaBuffer>, u32)>; MESSAGES],
    /// Free buffers for sending. The index is the send slot.
    free: [Option<KBox<DmaBuffer>>; MESSAGES],
    /// The result of the last READ.
    read: Option<Result<(), WcError>>,
    /// The operations that are over and were not taken yet, by their index.
    over: KVec<Option<Over<T>>>,
    /// Number of signs of life of the peer so far: messages, and what [`Link::note_heard`] counts.
    heard: u64,
    /// True if the connection is broken. No message is received any more.
    lost: bool,
}

impl<T> Inbox<T> {
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
pub(crate) struct Link<T> {
    #[pin]
    inbox: IrqSaveSpinLock<Inbox<T>>,
    /// Signalled when a message was received, or the link was cut.
    #[pin]
    arrived: Completion,
    /// Signalled when a message was sent or an operation is over, or the link was cut.
    #[pin]
    completed: Completion,
}

impl<T> Link<T> {
    /// Makes a link that is not connected yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        let inbox = Inbox {
            received: [const { None }; MESSAGES],
            free: [const { None }; MESSAGES],
            read: None,
            over: KVec::new(),
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

    /// Drops the operations that are over and were not taken. May sleep, if dropping one does.
    pub(crate) fn drop_operations(&self) {
        let over = core::mem::take(&mut self.inbox.lock().over);
        drop(over);
    }

    /// Returns true if the connection is broken. Any context.
    pub(crate) fn is_lost(&self) -> bool {
        self.inbox.lock().lost
    }
}

/// An object that owns a control connection.
pub(crate) trait Linked: Send + Sync + 'static {
    /// What it has under way beside messages.
    type Operation: SendOwner<Memory = NoMemory>;

    /// Returns the link that completion handlers fill.
    fn link(&self) -> &Link<Self::Operation>;

    /// Schedules the work of the owner: a message was received, or the link was cut. Any context.
    fn notify(this: &Arc<Self>);

    /// The peer has a message that was sent, or never gets it. Any context.
    fn sent(_: &Arc<Self>) {}
}

/// Handles the completions of a control connection.
pub(crate) struct Handler<O: Linked>(Arc<O>);

impl<O: Linked> QpHandler for Handler<O> {
    type Send = Posted<O::Operation>;
    type Recv = KBox<DmaBuffer>;
    type Ulp = Requests;

    fn send_done(&self, _: &Qp<Self>, owner: Self::Send, result: Result<(), WcError>) {
        let link = self.0.link();
        let is_message = owner.message().is_some();
        let before = {
            let mut inbox = link.inbox.lock();
            match owner {
                Posted::Message(buffer, _, slot) => {
                    if let Some(free) = inbox.free.get_mut(usize::from(slot)) {
                        *free = Some(buffer);
                    }
                    None
                }
                Posted::Nothing => {
                    inbox.read = Some(result);
                    None
                }
                // There is none there: its index is used again only once it was taken.
                Posted::Operation(operation, index) => match inbox.over.get_mut(usize::from(index))
                {
                    Some(place) => place.replace((operation, result)),
                    None => Some((operation, result)),
                },
            }
        };
        drop(before);
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

impl<O: Linked> RequestHandler for Handler<O> {
    type Parked = Posted<O::Operation>;

    fn park(&self, owner: Self::Send) -> Self::Parked {
        owner
    }
}

/// The part of a control connection that only the workqueue of its owner uses.
pub(crate) struct Channel<O: Linked> {
    // Fields drop in this order: the queue pair before the objects that it was made from.
    qp: ObjectRef<Qp<Handler<O>>>,
    pd: Arc<Pd>,
    id: Arc<CmId>,
    owner: Arc<O>,
    /// The completion queue, if those who wait poll it.
    polled: Option<Cq<Direct>>,
    /// Buffer for the message that is being encoded.
    scratch: KVec<u8>,
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
    pub(crate) fn new(id: Arc<CmId>, owner: Arc<O>, config: &ChannelConfig) -> Result<Self> {
        let device = id.device()?;
        let pd = Pd::alloc(&device)?;
        let caps = config.caps(&device);
        let cqes = caps.send_cqes() + caps.recv_cqes();
        let (cq, polled) = config.completions.queue(&device, cqes)?;
        let handler = Handler(owner.clone());
        let qp = Qp::create(&id, &pd, &cq, &cq, caps, handler)?;
        let mut over = KVec::with_capacity(config.operations.into(), GFP_KERNEL)?;
        for _ in 0..config.operations {
            over.push(None, GFP_KERNEL)?;
        }
        owner.link().inbox.lock().over = over;
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
            polled,
            scratch: KVec::from_elem(0, BUFFER_SIZE, GFP_KERNEL)?,
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
        let room = self.scratch.get_mut(..MESSAGE_MAX).ok_or(EMSGSIZE)?;
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
        if let Some(cq) = &self.polled {
            cq.reap();
        }
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

    /// Does an RDMA READ or RDMA WRITE of no bytes, and waits for it up to `timeout` ms. If it
    /// fails, so does the connection. May sleep.
    pub(crate) fn rdma_nothing(&mut self, op: RdmaOp, timeout: Msecs) -> Result {
        let posted = self
            .qp
            .rdma_nothing(OPERATION_SLOT, op, Posted::Nothing, true);
        posted.map_err(|(error, _)| error)?;
        let completed = &self.owner.link().completed;
        let read = self.wait(completed, timeout, |inbox| inbox.read.take());
        if read.is_err() {
            // Otherwise a late completion would be attributed to the next one.
            self.qp.fail();
        }
        read?.map_err(|error| error.to_error())
    }

    /// Posts operation `index` of the owner, which is not under way. Fails as the method of [`Qp`]
    /// for it does. Does not sleep.
    pub(crate) fn post(&self, index: u16, work: Work, operation: O::Operation) -> Result {
        let (qp, slot) = (&self.qp, OPERATION_SLOT + index);
        let owner = Posted::Operation(operation, index);
        let posted = match work {
            Work::Nothing(op) => qp.rdma_nothing(slot, op, owner, true),
            Work::Rdma(op, remote) => qp.rdma(slot, op, remote, owner, true),
            Work::Atomic(op, remote) => qp.atomic(slot, op, remote, owner, true),
            Work::Register => qp.reg_mr(slot, owner, true),
        };
        posted.map_err(|(error, _)| error)
    }

    /// Waits up to `timeout` ms until operation `index`, which was posted, is over, and returns it
    /// with its result. If that takes longer, the connection fails. May sleep.
    pub(crate) fn take_operation(
        &mut self,
        index: u16,
        timeout: Msecs,
    ) -> Result<(O::Operation, Result<(), WcError>)> {
        let completed = &self.owner.link().completed;
        let over = self.wait(completed, timeout, |inbox| {
            inbox.over.get_mut(usize::from(index))?.take()
        });
        if over.is_err() {
            // Otherwise a late completion would be attributed to the next one.
            self.qp.fail();
        }
        over
    }

    /// Waits until `take` returns a value, or `timeout` ms have passed, however often `completion`
    /// is signalled. Gives `ENOTCONN` if the connection is broken. May sleep.
    fn wait<T>(
        &self,
        completion: &Completion,
        timeout: Msecs,
        mut take: impl FnMut(&mut Inbox<O::Operation>) -> Option<T>,
    ) -> Result<T> {
        let start = Instant::<Monotonic>::now();
        let left = || {
            let spent = Msecs::try_from(start.elapsed().as_millis()).unwrap_or(Msecs::MAX);
            timeout.checked_sub(spent).filter(|left| *left > 0)
        };
        loop {
            // This comes before the check, so that an event after the check signals again.
            completion.reinit();
            if let Some(cq) = &self.polled {
                cq.reap();
            }
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
            match self.polled {
                None => completion.wait_timeout(left)?,
                Some(_) => sync::yield_cpu(),
            }
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
