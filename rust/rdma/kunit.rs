// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of the RDMA abstractions, and what they share: two queue pairs of one device,
//! connected to each other over the device's own address.

mod broken;
mod cm;
mod cq;
mod dma;
mod mr;
mod qp;
mod reply;
mod request;
mod srq;

use crate::base::{
    net::Net,
    scatterlist::{
        PageChunks,
        Segment,
        Segmented, //
    },
    sync::{
        new_irqsave_spinlock,
        Completion,
        IrqSaveSpinLock, //
    },
    workqueue::OwnedQueue, //
};
use crate::bindings;
use crate::kunit::{
    check,
    skip, //
};
use crate::rdma::{
    client,
    cm::{
        CmError,
        CmEvents,
        CmId,
        ConnParam,
        ConnectRequest,
        Listen,
        Listener, //
    },
    cq::{
        Cq,
        PollContext, //
    },
    device::Device,
    dma::{
        Direction,
        DmaBuffer,
        DmaMemory,
        DmaPiece,
        SgMapping, //
    },
    mr::{
        Access,
        Mr, //
    },
    pd::Pd,
    qp::{
        Qp,
        QpCaps,
        QpHandler,
        Undrained, //
    },
    srq::Srq,
    wc::{
        Received,
        WcError, //
    },
    wr::{
        Carry,
        RdmaOp,
        RecvBuffer,
        RecvOwner,
        RemoteRange,
        Reply,
        SendOwner,
        RECV_BUFFERS, //
    },
};
use core::net::{
    Ipv6Addr,
    SocketAddr, //
};
use kernel::{
    impl_has_work, new_mutex, new_work,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

/// Where the far side of a [`Pair`] listens.
const PORT: u16 = 4719;
/// How long anything is waited for.
const TIMEOUT_MS: u32 = 10_000;

/// The parameters of all connections. A message that finds no receive is sent again for ever.
const PARAM: ConnParam<'_> = ConnParam {
    private_data: &[],
    retry_count: 6,
    rnr_retry_count: 7,
    responder_resources: 4,
    initiator_depth: 4,
};

/// The IPv4 address of a device, if it has one.
fn address(device: &Device) -> Option<SocketAddr> {
    (0..16).find_map(|index| {
        let mut gid = bindings::ib_gid { raw: [0; 16] };
        // SAFETY: The device is registered by its invariants, and `gid` is valid for a write.
        let ret = unsafe { bindings::rdma_query_gid(device.as_raw(), 1, index, &mut gid) };
        // SAFETY: All variants of the union are plain bytes.
        let ip = Ipv6Addr::from(unsafe { gid.raw }).to_ipv4_mapped();
        Some(SocketAddr::from((ip.filter(|_| ret == 0)?, PORT)))
    })
}

/// Runs a test with a device and its address; skips it if there is none.
fn with_device(test: impl FnOnce(&Arc<Device>, SocketAddr) -> Result) -> Result {
    match client::find(address) {
        Some((device, addr)) => test(&device, addr),
        None => {
            skip(c"there is no RDMA device with an IPv4 address");
            Ok(())
        }
    }
}

/// Runs a test with a connected pair, and checks that every owner is dropped once at its end.
fn with_pair(caps: QpCaps, test: impl FnOnce(Pair) -> Result) -> Result {
    with_pair_of(caps, Kind::default(), test)
}

/// Like [`with_pair`], with a pair of another kind.
fn with_pair_of(caps: QpCaps, kind: Kind, test: impl FnOnce(Pair) -> Result) -> Result {
    with_device(|_, addr| {
        let pair = Pair::new(addr, caps, kind)?;
        let alive = pair.alive.clone();
        test(pair)?;
        check!(alive.load(Relaxed) == 0);
        Ok(())
    })
}

/// Whether `arc` was the last reference, which it was dropped as if not.
fn last<T>(arc: Arc<T>) -> bool {
    Arc::into_unique_or_drop(arc).is_some()
}

/// Things that came in, in order.
#[pin_data]
struct Inbox<T> {
    #[pin]
    things: IrqSaveSpinLock<KVec<T>>,
    #[pin]
    arrived: Completion,
}

impl<T> Inbox<T> {
    fn new() -> Result<impl PinInit<Self>> {
        let things = KVec::with_capacity(64, GFP_KERNEL)?;
        Ok(pin_init!(Self {
            things <- new_irqsave_spinlock!(things),
            arrived <- Completion::new(),
        }))
    }

    /// Any context. Without room, the thing is dropped.
    fn put(&self, thing: T) {
        let _ = self.things.lock().push_within_capacity(thing);
        self.arrived.complete();
    }

    /// Waits for the next one.
    fn take(&self) -> Result<T> {
        self.arrived.wait_timeout(TIMEOUT_MS)?;
        self.things.lock().remove(0).map_err(|_| EIO)
    }

    /// How many there are.
    fn len(&self) -> usize {
        self.things.lock().len()
    }
}

/// Counts the owners that exist.
struct Alive(Arc<Atomic<i32>>);

impl Alive {
    fn new(count: &Arc<Atomic<i32>>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The owner of a send.
struct Owner {
    number: u32,
    block: Option<Block>,
    piece: Option<DmaPiece>,
    /// All of it is the message.
    message: Option<DmaBuffer>,
    mr: Option<Mr>,
    /// How often it is to be written again when that has completed, and where to.
    again: Option<(u32, RemoteRange)>,
    _alive: Alive,
}

impl SendOwner for Owner {
    type Memory = Block;

    fn memory(&self) -> Option<&Block> {
        self.block.as_ref()
    }

    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        let message = self.message.as_ref()?;
        Some((message, message.len()))
    }

    fn mr(&self) -> Option<&Mr> {
        self.mr.as_ref()
    }

    fn piece(&self) -> Option<&DmaPiece> {
        self.piece.as_ref()
    }
}

/// The owner of a receive.
struct Landing {
    number: u32,
    buffer: DmaBuffer,
    piece: Option<DmaPiece>,
    /// It is for answers; what became of it.
    answer: Option<Result>,
    /// It has invalidated a key.
    invalidated: bool,
    /// The immediate data; of an answer, the slot of the request.
    immediate: Option<u32>,
    /// How often it is to be posted again when something was received.
    again: u32,
    _alive: Alive,
}

impl RecvOwner for Landing {
    fn buffers(&mut self) -> [Option<RecvBuffer<'_>>; RECV_BUFFERS] {
        let piece = self.piece.as_ref().map(RecvBuffer::Devices);
        [Some(RecvBuffer::Cpu(&mut self.buffer)), piece]
    }
}

/// Memory that is read or written in pieces: the first `len` bytes of `memory`.
#[derive(Clone)]
struct Block {
    memory: Arc<PageChunks>,
    len: usize,
    piece: usize,
    writable: bool,
    /// How much of the first piece, and of the end of each, is left out.
    start: u32,
    gap: u32,
}

impl Block {
    /// New memory that is full of `byte`.
    fn new(pieces: usize, piece: usize, byte: u8) -> Result<Self> {
        let len = pieces * piece;
        let memory = PageChunks::alloc(len.next_multiple_of(PAGE_SIZE), -1)?;
        fill(&memory, len, byte);
        Ok(Self {
            memory,
            len,
            piece,
            writable: true,
            start: 0,
            gap: 0,
        })
    }
}

// SAFETY: `PageChunks` is memory for devices; its segments are valid as long as the reference to it.
// The fields do not change.
unsafe impl Segmented for Block {
    fn writable(&self) -> bool {
        self.writable
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        let segments = self.memory.segments(0, self.len);
        segments.flat_map(move |segment| {
            let (start, len) = (segment.offset(), segment.len());
            // CAST: Pieces are small.
            let piece = self.piece as u32;
            (0..len).step_by(self.piece).map(move |at| {
                let skip = if at == 0 { self.start } else { 0 };
                let len = piece.min(len - at).saturating_sub(skip + self.gap);
                // SAFETY: The page is one of the memory's.
                unsafe { Segment::new(segment.page(), start + at + skip, len) }
            })
        })
    }
}

/// The first `len` bytes of `memory`.
fn bytes(memory: &PageChunks, len: usize) -> impl Iterator<Item = *mut u8> + '_ {
    memory.segments(0, len).flat_map(|segment| {
        // SAFETY: The page is one of `memory`, in the direct map.
        let page = unsafe { bindings::farblk_page_address(segment.page().as_ptr()) };
        let (start, len) = (segment.offset() as usize, segment.len() as usize);
        (start..start + len).map(move |at| page.cast::<u8>().wrapping_add(at))
    })
}

/// Fills the first `len` bytes of `memory`.
fn fill(memory: &PageChunks, len: usize, byte: u8) {
    for place in bytes(memory, len) {
        // SAFETY: The place is in `memory`, to which there are no references.
        unsafe { place.write_volatile(byte) };
    }
}

/// Whether each of the first `len` bytes of `memory` is `byte`.
fn is_full_of(memory: &PageChunks, len: usize, byte: u8) -> bool {
    // SAFETY: As in `fill()`.
    bytes(memory, len).all(|place| unsafe { place.read_volatile() } == byte)
}

/// What a queue pair tells.
#[pin_data]
struct Events {
    #[pin]
    sends: Inbox<(Owner, Result<(), WcError>)>,
    #[pin]
    recvs: Inbox<(Landing, Result<u32, WcError>)>,
    errors: Atomic<u32>,
}

impl Events {
    fn new() -> Result<Arc<Self>> {
        let (sends, recvs) = (Inbox::new()?, Inbox::new()?);
        Arc::pin_init(
            pin_init!(Self {
                sends <- sends,
                recvs <- recvs,
                errors: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }
}

struct Handler(Arc<Events>);

impl QpHandler for Handler {
    type Send = Owner;
    type Recv = Landing;

    fn send_done(&self, qp: &Qp<Self>, owner: Owner, result: Result<(), WcError>) {
        let mut done = (owner, result);
        if let (Some((left @ 1.., remote)), Ok(())) = (done.0.again, done.1) {
            done.0.again = Some((left - 1, remote));
            match qp.rdma(0, RdmaOp::Write, remote, done.0, true) {
                Ok(()) => return,
                Err((error, owner)) => done = (owner, Err(WcError::NotCompleted(error))),
            }
        }
        self.0.sends.put(done);
    }

    fn recv_done(&self, qp: &Qp<Self>, owner: Landing, result: Result<Received<'_>, WcError>) {
        let mut done = (owner, Ok(0));
        match result {
            Ok(received) => {
                done.1 = Ok(received.len());
                done.0.immediate = received.immediate();
                let invalidated = received.into_invalidated();
                done.0.invalidated = invalidated.is_some();
                if done.0.answer.is_some() {
                    let mut slot = [0];
                    let _ = done.0.buffer.copy_out(0, &mut slot);
                    // CAST: Slots of tests are small.
                    let slot = done.0.immediate.map_or(slot[0].into(), |slot| slot as u16);
                    done.0.answer = Some(qp.answered(slot, invalidated));
                }
            }
            Err(error) => done.1 = Err(error),
        }
        if let (1.., Ok(_)) = (done.0.again, done.1) {
            done.0.again -= 1;
            match qp.recv(done.0) {
                Ok(()) => return,
                Err((error, owner)) => done = (owner, Err(WcError::NotCompleted(error))),
            }
        }
        self.0.recvs.put(done);
    }

    fn error(&self) {
        self.0.errors.fetch_add(1, Relaxed);
    }
}

/// What becomes of a connection.
#[pin_data]
struct Connection {
    #[pin]
    established: Completion,
    #[pin]
    lost: Completion,
    times_lost: Atomic<u32>,
}

impl Connection {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                established <- Completion::new(),
                lost <- Completion::new(),
                times_lost: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }
}

impl CmEvents for Connection {
    fn established(&self) {
        self.established.complete_all();
    }

    fn disconnected(&self) {
        self.times_lost.fetch_add(1, Relaxed);
        self.lost.complete_all();
    }
}

/// One side of a connection.
struct Side {
    // Fields are dropped in this order.
    qp: Arc<Qp<Handler>>,
    events: Arc<Events>,
    id: Arc<CmId>,
    connection: Arc<Connection>,
    send_cq: Arc<Cq>,
}

/// What sides are like.
#[derive(Clone, Default)]
struct Kind {
    /// The near side's sends, and its receives too, complete in a queue that is polled.
    direct: Option<(bool, bool)>,
    /// The far side receives there.
    srq: Option<Arc<Srq<Handler>>>,
}

impl Side {
    /// Creates a queue pair, with completion queues of its own that are just large enough, or on `srq`.
    fn new(
        id: Arc<CmId>,
        connection: Arc<Connection>,
        pd: &Arc<Pd>,
        caps: QpCaps,
        contexts: (PollContext, PollContext),
        srq: Option<&Arc<Srq<Handler>>>,
    ) -> Result<Self> {
        let events = Events::new()?;
        let handler = Handler(events.clone());
        let (qp, send_cq) = match srq {
            Some(srq) => {
                let caps = QpCaps { recv_wr: 0, ..caps };
                let cq = srq.cq().clone();
                (Qp::create_on(&id, srq, &cq, caps, handler)?, cq)
            }
            None => {
                let send_cq = Cq::alloc(pd.device(), caps.send_cqes(), 0, contexts.0)?;
                let recv_cq = Cq::alloc(pd.device(), caps.recv_cqes(), 0, contexts.1)?;
                let qp = Qp::create(&id, pd, &send_cq, &recv_cq, caps, handler)?;
                (qp, send_cq)
            }
        };
        Ok(Self {
            qp,
            events,
            id,
            connection,
            send_cq,
        })
    }
}

/// Makes the far side of a [`Pair`].
#[pin_data]
struct Acceptor {
    queue: OwnedQueue,
    pd: Arc<Pd>,
    caps: QpCaps,
    srq: Option<Arc<Srq<Handler>>>,
    connection: Arc<Connection>,
    #[pin]
    id: Mutex<Option<Arc<CmId>>>,
    #[pin]
    side: Inbox<Result<Side>>,
    #[pin]
    work: Work<Acceptor>,
}

impl_has_work! {
    impl HasWork<Self> for Acceptor { self.work }
}

impl WorkItem for Acceptor {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let accept = || {
            let id = this.id.lock().take().ok_or(ENODEV)?;
            let connection = this.connection.clone();
            let contexts = (PollContext::Workqueue, PollContext::Workqueue);
            let srq = this.srq.as_ref();
            let side = Side::new(id, connection, &this.pd, this.caps, contexts, srq)?;
            side.id.accept(&PARAM)?;
            Ok(side)
        };
        this.side.put(accept());
    }
}

/// What listens for an [`Acceptor`].
struct Door(Arc<Acceptor>);

impl Listen for Door {
    fn connect_request(&self, request: ConnectRequest<'_>) {
        let id = request.into_id(self.0.connection.clone());
        *self.0.id.lock() = id.ok();
        let _ = self.0.queue.enqueue(self.0.clone());
    }

    fn removed(&self) {}
}

/// Two connected queue pairs. The near one's completions are handled in softirq, the far one's in a
/// workqueue.
struct Pair {
    // Fields are dropped in this order.
    near: Side,
    far: Side,
    pd: Arc<Pd>,
    alive: Arc<Atomic<i32>>,
    listener: Option<Listener>,
}

impl Pair {
    fn new(addr: SocketAddr, caps: QpCaps, kind: Kind) -> Result<Self> {
        let net = Net::current();
        let connection = Connection::new()?;
        let id = CmId::new(&net, connection.clone())?;
        id.resolve(None, addr, TIMEOUT_MS)
            .map_err(|error| error.to_error())?;
        let pd = match &kind.srq {
            Some(srq) => srq.pd().clone(),
            None => Pd::alloc(&id.device()?)?,
        };
        let context = |direct| match direct {
            true => PollContext::Direct,
            false => PollContext::Softirq,
        };
        let (send, recv) = kind.direct.unwrap_or_default();
        let contexts = (context(send), context(recv));
        let near = Side::new(id, connection, &pd, caps, contexts, None)?;

        let queue = OwnedQueue::ordered(c"farblk_kunit")?;
        let (far_pd, connection, side) = (pd.clone(), Connection::new()?, Inbox::new()?);
        let acceptor = Arc::pin_init(
            pin_init!(Acceptor {
                queue,
                pd: far_pd,
                caps,
                srq: kind.srq,
                connection,
                id <- new_mutex!(None),
                side <- side,
                work <- new_work!("Acceptor::work"),
            }),
            GFP_KERNEL,
        )?;
        let door = Arc::new(Door(acceptor.clone()), GFP_KERNEL)?;
        let listener = Listener::new(&net, addr, 1, door)?;
        near.id
            .connect(&PARAM, TIMEOUT_MS)
            .map_err(|error| error.to_error())?;
        Ok(Self {
            near,
            far: acceptor.side.take()??,
            pd,
            alive: Arc::new(Atomic::new(0), GFP_KERNEL)?,
            listener: Some(listener),
        })
    }

    /// An owner without memory.
    fn owner(&self, number: u32) -> Owner {
        Owner {
            number,
            block: None,
            piece: None,
            message: None,
            mr: None,
            again: None,
            _alive: Alive::new(&self.alive),
        }
    }

    /// An owner of memory for RDMA.
    fn block(&self, number: u32, block: &Block) -> Owner {
        Owner {
            block: Some(block.clone()),
            ..self.owner(number)
        }
    }

    /// An owner of a message of `len` times `byte`.
    fn message(&self, number: u32, len: usize, byte: u8) -> Result<Owner> {
        let mut message = DmaBuffer::alloc(self.pd.device(), len, Direction::ToDevice)?;
        for at in 0..len {
            message.copy_in(at, &[byte])?;
        }
        Ok(Owner {
            message: Some(message),
            ..self.owner(number)
        })
    }

    /// An owner of room for a message.
    fn landing(&self, number: u32, len: usize) -> Result<Landing> {
        Ok(Landing {
            number,
            buffer: DmaBuffer::alloc(self.pd.device(), len, Direction::FromDevice)?,
            piece: None,
            answer: None,
            invalidated: false,
            immediate: None,
            again: 0,
            _alive: Alive::new(&self.alive),
        })
    }

    /// An owner of room for an answer: its first byte is the slot of the request.
    fn answer(&self) -> Result<Landing> {
        Ok(Landing {
            answer: Some(Ok(())),
            ..self.landing(0, 64)?
        })
    }

    /// An owner of a piece that is full of `byte`, and of a message of one byte.
    fn reply(&self, slot: u8, len: usize, byte: u8) -> Result<Owner> {
        let memory = DmaMemory::alloc(self.pd.device(), len, -1)?;
        let piece = memory.piece(0, len)?;
        fill_piece(&piece, byte);
        Ok(Owner {
            piece: Some(piece),
            ..self.message(slot.into(), 1, slot)?
        })
    }

    /// Posts a request of the near side that carries `carry`, of `block`; returns where that is.
    fn request(&self, slot: u16, carry: Carry, block: &Block, last: bool) -> Result<RemoteRange> {
        let owner = Owner {
            block: Some(block.clone()),
            ..self.message(slot.into(), 32, 0)?
        };
        let mut range = RemoteRange { addr: 0, rkey: 0 };
        let prepare = |owner: &mut Owner, access: Option<RemoteRange>| {
            range = access.unwrap_or(range);
            let message = owner.message.as_mut().ok_or(EIO)?;
            // CAST: Slots of tests are small.
            message.copy_in(0, &[slot as u8])
        };
        posted(self.near.qp.request(slot, carry, owner, prepare, last))?;
        Ok(range)
    }

    /// Waits for a request at the far side: its first byte.
    fn requested(&self) -> Result<u8> {
        let (landing, result) = self.far.events.recvs.take()?;
        result.map_err(|error| error.to_error())?;
        let mut slot = [0];
        landing.buffer.copy_out(0, &mut slot)?;
        Ok(slot[0])
    }

    /// Sends a reply from the far side, and waits until it was received.
    fn replied(&self, reply: Reply, owner: Owner) -> Result<Landing> {
        posted(self.far.qp.reply(0, reply, owner, true))?;
        let (landing, result) = self.near.events.recvs.take()?;
        result.map_err(|error| error.to_error())?;
        self.far
            .events
            .sends
            .take()?
            .1
            .map_err(|error| error.to_error())?;
        Ok(landing)
    }

    /// Does an RDMA operation from the far side on its piece; how it ended.
    fn far_rdma(&self, op: RdmaOp, remote: RemoteRange, owner: Owner) -> Result<(Owner, bool)> {
        posted(self.far.qp.rdma(1, op, remote, owner, true))?;
        let (owner, result) = self.far.events.sends.take()?;
        Ok((owner, result.is_ok()))
    }

    /// A memory region over all of `block`, not registered yet.
    fn region(&self, block: &Block, access: Access) -> Result<Mr> {
        let len = block.len.next_multiple_of(PAGE_SIZE);
        let direction = Direction::Bidirectional;
        let mapping = SgMapping::map(self.pd.device(), &block.memory, 0, len, direction)?;
        Mr::alloc(&self.pd, &mapping, access)
    }

    /// Lets the far side register `mr`.
    fn register(&self, mr: Mr) -> Result<Mr> {
        let mut owner = self.owner(0);
        owner.mr = Some(mr);
        posted(self.far.qp.reg_mr(0, owner, true))?;
        let (mut owner, result) = self.far.events.sends.take()?;
        result.map_err(|error| error.to_error())?;
        owner.mr.take().ok_or(EIO)
    }

    /// A region of the far side over `block` that the near side may read and write, and where it is.
    fn target(&self, block: &Block) -> Result<(Mr, RemoteRange)> {
        let mr = self.register(self.region(block, Access::RemoteReadWrite)?)?;
        let remote = mr.remote().ok_or(EIO)?;
        Ok((mr, remote))
    }

    /// Does an RDMA operation from the near side, alone, and returns how it ended.
    fn rdma(&self, op: RdmaOp, block: &Block, remote: RemoteRange) -> Result<Result<(), WcError>> {
        let owner = self.block(0, block);
        posted(self.near.qp.rdma(0, op, remote, owner, true))?;
        Ok(self.near.events.sends.take()?.1)
    }
}

/// The error of a post, without the owner.
fn posted<T>(result: Result<(), (Error, T)>) -> Result {
    result.map_err(|(error, _)| error)
}

/// The places of a piece.
fn piece_bytes(piece: &DmaPiece) -> impl Iterator<Item = *mut u8> + '_ {
    piece.segments().flat_map(|segment| {
        // SAFETY: The page is one of the piece, in the direct map.
        let page = unsafe { bindings::farblk_page_address(segment.page().as_ptr()) };
        let (start, len) = (segment.offset() as usize, segment.len() as usize);
        (start..start + len).map(move |at| page.cast::<u8>().wrapping_add(at))
    })
}

/// Fills a piece.
fn fill_piece(piece: &DmaPiece, byte: u8) {
    for place in piece_bytes(piece) {
        // SAFETY: The place is in the piece, to which there are no references.
        unsafe { place.write_volatile(byte) };
    }
}

/// Whether each byte of a piece is `byte`.
fn piece_is_full_of(piece: &DmaPiece, byte: u8) -> bool {
    // SAFETY: As in `fill_piece()`.
    piece_bytes(piece).all(|place| unsafe { place.read_volatile() } == byte)
}

/// Waits until something is true.
fn wait_until(mut condition: impl FnMut() -> bool) -> Result {
    for _ in 0..TIMEOUT_MS {
        if condition() {
            return Ok(());
        }
        // SAFETY: Tests may sleep.
        unsafe { bindings::msleep(1) };
    }
    Err(ETIMEDOUT)
}

/// Sleeps a little, for what should not happen.
fn a_while() {
    // SAFETY: Tests may sleep.
    unsafe { bindings::msleep(50) };
}
