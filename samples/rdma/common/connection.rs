// SPDX-License-Identifier: GPL-2.0

//! A connection whose task waits for each completion, and what its work requests own.
//!
//! Waiting keeps samples short. A driver handles completions where they are reported instead, in
//! its [`QpHandler`]; so does `srq.rs`.

use super::*;
use crate::base::{
    scatterlist::{
        NoMemory,
        PageChunks, //
    },
    sync::{
        new_irqsave_spinlock,
        IrqSaveSpinLock, //
    },
};

/// The memory that a work request owns until it is done.
pub(crate) enum Owner {
    /// The message of a SEND.
    Message(DmaBuffer),
    /// What an RDMA READ fills, or an RDMA WRITE sends.
    Data(DmaPiece),
    /// A region that is registered.
    Region(Mr),
    /// What the number was before an atomic operation.
    Result(AtomicResult),
}

impl SendOwner for Owner {
    type Memory = NoMemory;

    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        match self {
            Self::Message(buffer) => Some((buffer, buffer.len())),
            _ => None,
        }
    }

    fn piece(&self) -> Option<&DmaPiece> {
        match self {
            Self::Data(piece) => Some(piece),
            _ => None,
        }
    }

    fn mr(&self) -> Option<&Mr> {
        match self {
            Self::Region(mr) => Some(mr),
            _ => None,
        }
    }

    fn result(&mut self) -> Option<&mut AtomicResult> {
        match self {
            Self::Result(result) => Some(result),
            _ => None,
        }
    }
}

/// What used up a receive: a message, or an RDMA WRITE with immediate data.
pub(crate) struct Incoming {
    /// The buffer that was posted; the message is in it.
    pub(crate) buffer: DmaBuffer,
    /// The length of the message, or of what was written.
    pub(crate) len: u32,
    /// The immediate data, if there are some.
    pub(crate) immediate: Option<u32>,
}

impl Incoming {
    /// Returns the message. Fails with `EPROTO` if it has another length: a peer may send anything.
    pub(crate) fn message<const N: usize>(&self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        if self.len as usize != N || self.buffer.copy_out(0, &mut bytes).is_err() {
            return Err(EPROTO);
        }
        Ok(bytes)
    }
}

/// Completions that no task has waited for yet, in order.
#[pin_data]
pub(super) struct Inbox<T> {
    #[pin]
    list: IrqSaveSpinLock<KVec<T>>,
    #[pin]
    filled: Completion,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Result<impl PinInit<Self>> {
        // As much as can complete: a handler cannot wait for memory.
        let list = KVec::with_capacity(2 * usize::from(DEPTH), GFP_KERNEL)?;
        Ok(pin_init!(Self {
            list <- new_irqsave_spinlock!(list),
            filled <- Completion::new(),
        }))
    }

    pub(super) fn put(&self, value: T) {
        let _ = self.list.lock().push_within_capacity(value);
        self.filled.complete();
    }

    pub(super) fn take(&self, timeout_ms: u32) -> Result<T> {
        self.filled.wait_timeout(timeout_ms)?;
        self.list.lock().remove(0).map_err(|_| ECONNRESET)
    }

    /// Wakes the tasks that wait, now and later: they find nothing.
    pub(super) fn wake(&self) {
        self.filled.complete_all();
    }
}

/// What happens to a connection.
#[pin_data]
pub(crate) struct Events {
    #[pin]
    sent: Inbox<Result<Owner, WcError>>,
    #[pin]
    received: Inbox<Result<Incoming, WcError>>,
    /// The peer has confirmed a connection that was accepted.
    #[pin]
    pub(crate) established: Completion,
    #[pin]
    lost: Completion,
}

impl Events {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let (sent, received) = (Inbox::new()?, Inbox::new()?);
        Arc::pin_init(
            pin_init!(Self {
                sent <- sent,
                received <- received,
                established <- Completion::new(),
                lost <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Waits until the connection is lost, or the server stops.
    pub(crate) fn wait_lost(&self) {
        self.lost.wait_io();
    }

    /// Waits for at most so many ms until the connection is lost; then fails with `ETIMEDOUT`.
    pub(crate) fn wait_lost_for(&self, timeout_ms: u32) -> Result {
        self.lost.wait_timeout(timeout_ms)
    }
}

impl CmEvents for Events {
    fn established(&self) {
        self.established.complete_all();
    }

    /// Wakes the tasks that wait, now and later: they find nothing, and give up the connection.
    fn disconnected(&self) {
        self.sent.wake();
        self.received.wake();
        self.lost.complete_all();
    }
}

/// Handles completions, in softirq: has the task go on that waits.
pub(crate) struct Handler(pub(crate) Arc<Events>);

impl<T: Connected> QpHandler<T> for Handler {
    type Send = Owner;
    type Recv = DmaBuffer;
    type Ulp = ();

    fn send_done(&self, _: &Qp<Self, T>, owner: Owner, result: Result<T::Sent, WcError>) {
        self.0.sent.put(result.map(|_| owner));
    }

    fn recv_done(&self, _: &Qp<Self, T>, buffer: DmaBuffer, got: Result<Received<'_>, WcError>) {
        self.0.received.put(got.map(|received| Incoming {
            buffer,
            len: received.len(),
            immediate: received.immediate(),
        }));
    }

    fn write_received(
        &self,
        _: &Qp<Self, T>,
        buffer: DmaBuffer,
        written: Written<'_>,
    ) -> Result<(), DmaBuffer> {
        self.0.received.put(Ok(Incoming {
            buffer,
            len: written.len(),
            immediate: Some(written.immediate()),
        }));
        Ok(())
    }

    /// Here is nothing to do: all that is posted comes back with an error.
    fn error(&self) {}
}

/// A connection before it has a queue pair.
pub(crate) struct Endpoint<T: Connected = Rc> {
    /// The id of the connection manager, which is bound to a device.
    pub(crate) id: Arc<CmId<T>>,
    /// What happens to the connection.
    pub(crate) events: Arc<Events>,
}

impl<T: Connected> Endpoint<T> {
    /// Finds the device and the route to `addr`.
    pub(crate) fn resolve(host: &Host, addr: SocketAddr) -> Result<Self> {
        let events = Events::new()?;
        let id = host.id::<T>(events.clone())?;
        id.resolve(None, addr, TIMEOUT_MS).map_err(|error| {
            pr_err!("cannot reach the server: {}\n", error);
            error.to_error()
        })?;
        Ok(Self { id, events })
    }
}

/// A connection, or what becomes one.
pub(crate) struct Connection<T: Connected = Rc> {
    // Fields drop in this order: first the queue pair, which is drained then. After that the device
    // accesses no memory of its work requests any more.
    pub(crate) qp: ObjectRef<Qp<Handler, T>>,
    pub(crate) pd: Arc<Pd>,
    /// What happens to it.
    pub(crate) events: Arc<Events>,
    id: Arc<CmId<T>>,
}

impl<T: Connected> Connection<T> {
    /// Makes the queue pair, in domain `pd`. Receives can be posted then, and should: a peer may
    /// send as soon as it is connected.
    pub(crate) fn new(end: Endpoint<T>, pd: &Arc<Pd>) -> Result<Self> {
        let Endpoint { id, events } = end;
        let entries = CAPS.send_cqes() + CAPS.recv_cqes();
        let cq = Cq::<Softirq>::alloc(pd.device(), entries, 0)?;
        Ok(Self {
            qp: Qp::create(&id, pd, &cq, &cq, CAPS, Handler(events.clone()))?,
            pd: pd.clone(),
            events,
            id,
        })
    }

    /// Connects to the server.
    pub(crate) fn connect(&self) -> Result {
        let connected = self.id.connect(&PARAM, TIMEOUT_MS).map(drop);
        connected.map_err(|error| {
            pr_err!("cannot connect: {}\n", error);
            error.to_error()
        })
    }

    /// Accepts the client.
    pub(crate) fn accept(&self) -> Result {
        self.id.accept(&PARAM)
    }

    /// Makes a buffer for messages of `len` bytes in either direction.
    pub(crate) fn buffer(&self, len: usize) -> Result<DmaBuffer> {
        DmaBuffer::alloc(self.pd.device(), len, Direction::Bidirectional)
    }

    /// Posts a receive.
    pub(crate) fn recv(&self, buffer: DmaBuffer) -> Result {
        self.qp.recv(buffer).map_err(|(error, _)| error)
    }

    /// Waits until something has used up a receive. Fails with `ECONNRESET` if the peer goes, and
    /// with `ETIMEDOUT`.
    pub(crate) fn received(&self, timeout_ms: u32) -> Result<Incoming> {
        self.events.received.take(timeout_ms)?.map_err(failed)
    }

    /// Posts a work request by `post`, waits until it is done, and returns its owner.
    pub(crate) fn run(
        &self,
        post: impl FnOnce(&Qp<Handler, T>) -> Result<(), (Error, Owner)>,
    ) -> Result<Owner> {
        post(&self.qp).map_err(|(error, _)| error)?;
        self.events.sent.take(TIMEOUT_MS)?.map_err(failed)
    }

    /// Sends a message, and returns its buffer.
    pub(crate) fn send(&self, message: DmaBuffer) -> Result<DmaBuffer> {
        match self.run(|qp| qp.send(0, Owner::Message(message), true))? {
            Owner::Message(buffer) => Ok(buffer),
            _ => Err(EIO),
        }
    }
}

impl Connection {
    /// Makes `len` bytes that the peer may access as `access` says, with atomic operations if
    /// `atomics`. To be called when the connection is there: it takes a work request.
    pub(crate) fn offer(&self, len: usize, access: Access, atomics: bool) -> Result<Region> {
        let (device, len) = (self.pd.device(), len.next_multiple_of(PAGE_SIZE));
        let pages = PageChunks::alloc(len, device.numa_node())?;
        let memory = SgMapping::map(device, &pages, 0, len, Direction::Bidirectional)?;
        let mut mr = Mr::alloc(&self.pd, &memory, access)?;
        if atomics {
            mr = mr.with_atomics()?;
        }
        // Before this is done the region has no key.
        match self.run(|qp| qp.reg_mr(0, Owner::Region(mr), true))? {
            Owner::Region(mr) => Ok(Region {
                mr,
                memory,
                pd: self.pd.clone(),
            }),
            _ => Err(EIO),
        }
    }

    /// Does an RDMA READ or RDMA WRITE between `piece` and `remote`, and returns the piece.
    pub(crate) fn rdma(
        &self,
        op: RdmaOp,
        remote: RemoteRange,
        piece: DmaPiece,
    ) -> Result<DmaPiece> {
        match self.run(|qp| qp.rdma(0, op, remote, Owner::Data(piece), true))? {
            Owner::Data(piece) => Ok(piece),
            _ => Err(EIO),
        }
    }

    /// Writes `piece` to `remote` and has the peer receive `immediate`; returns the piece.
    pub(crate) fn announce(
        &self,
        remote: RemoteRange,
        immediate: u32,
        piece: DmaPiece,
    ) -> Result<DmaPiece> {
        let announcement = Announcement {
            immediate,
            solicited: false,
        };
        let piece = Owner::Data(piece);
        match self.run(|qp| qp.write_with_immediate(0, Some(remote), announcement, piece, true))? {
            Owner::Data(piece) => Ok(piece),
            _ => Err(EIO),
        }
    }

    /// Does an atomic operation on the peer's number, and returns what that was before.
    pub(crate) fn atomic(&self, op: AtomicOp, remote: RemoteAtomic) -> Result<u64> {
        let room = DmaBuffer::alloc(self.pd.device(), size_of::<u64>(), Direction::FromDevice)?;
        let room = Owner::Result(AtomicResult::new(room)?);
        match self.run(|qp| qp.atomic(0, op, remote, room, true))? {
            Owner::Result(result) => result.value().ok_or(EIO),
            _ => Err(EIO),
        }
    }
}

/// Memory that the peer may access until this is dropped.
pub(crate) struct Region {
    // Fields drop in this order, though the region keeps the memory itself.
    mr: Mr,
    /// The memory, for this side.
    pub(crate) memory: Arc<SgMapping>,
    /// The domain whose queue pairs may access it.
    pub(crate) pd: Arc<Pd>,
}

impl Region {
    /// Returns what the peer has to know of it.
    pub(crate) fn grant(&self) -> Result<Grant> {
        let range = self.mr.remote().ok_or(EIO)?;
        let len = u32::try_from(self.memory.len())?;
        Ok(Grant { range, len })
    }
}

/// Where the peer's memory is: a message says so.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    /// The address, and the key.
    pub(crate) range: RemoteRange,
    /// The length in bytes.
    pub(crate) len: u32,
}

impl Grant {
    /// The length of the message.
    pub(crate) const LEN: usize = 16;

    /// Returns the message: three numbers in network order.
    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let parts = u128::from(self.range.addr) << 64
            | u128::from(self.range.rkey) << 32
            | u128::from(self.len);
        parts.to_be_bytes()
    }

    /// Returns what a message says. The device of the peer checks it all.
    pub(crate) fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let parts = u128::from_be_bytes(bytes);
        // CAST: The numbers that are in these bits.
        Self {
            range: RemoteRange {
                addr: (parts >> 64) as u64,
                rkey: (parts >> 32) as u32,
            },
            len: parts as u32,
        }
    }

    /// Returns where the byte at `offset` is. Fails with `EPROTO` if the `len` bytes from there on
    /// are not all inside.
    pub(crate) fn at(self, offset: usize, len: usize) -> Result<RemoteRange> {
        let end = offset.checked_add(len).ok_or(EPROTO)?;
        let addr = self.range.addr.checked_add(offset as u64).ok_or(EPROTO)?;
        match end <= self.len as usize {
            true => Ok(RemoteRange { addr, ..self.range }),
            false => Err(EPROTO),
        }
    }
}

impl<T: Connected> Drop for Connection<T> {
    fn drop(&mut self) {
        // Tells the peer, so that it need not find out.
        self.id.disconnect();
    }
}

/// Says why a work request failed.
pub(super) fn failed(error: WcError) -> Error {
    pr_warn!("a work request failed: {}\n", error);
    error.to_error()
}
