// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of the RDMA abstractions, and what they share: two queue pairs of one device,
//! connected to each other over the device's own address.

mod cm;
mod cq;
mod dma;
mod mr;
mod qp;

use super::{
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
        QpHandler, //
    },
    wc::{
        Received,
        WcError, //
    },
    wr::{
        RdmaOp,
        RecvBuffer,
        RecvOwner,
        RemoteRange,
        SendOwner,
        RECV_BUFFERS, //
    }, //
};
use crate::{
    bindings,
    kunit::{
        check,
        skip, //
    },
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
    with_device(|_, addr| {
        let pair = Pair::new(addr, caps)?;
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
}

/// The owner of a receive.
struct Landing {
    number: u32,
    buffer: DmaBuffer,
    /// How often it is to be posted again when something was received.
    again: u32,
    _alive: Alive,
}

impl RecvOwner for Landing {
    fn buffers(&mut self) -> [Option<RecvBuffer<'_>>; RECV_BUFFERS] {
        [Some(RecvBuffer::Cpu(&mut self.buffer)), None]
    }
}

/// Memory that is read or written in pieces: the first `len` bytes of `memory`.
#[derive(Clone)]
struct Block {
    memory: Arc<PageChunks>,
    len: usize,
    piece: usize,
    writable: bool,
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
        segments.flat_map(|segment| {
            let (start, len) = (segment.offset(), segment.len());
            // CAST: Pieces are small.
            let piece = self.piece as u32;
            (0..len)
                .step_by(self.piece)
                .map(move |at| Segment::new(segment.page(), start + at, piece.min(len - at)))
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
        let mut done = (owner, result.map(|received| received.len()));
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
}

impl Side {
    /// Creates a queue pair, with completion queues that are just large enough.
    fn new(
        id: Arc<CmId>,
        connection: Arc<Connection>,
        pd: &Arc<Pd>,
        caps: QpCaps,
        context: PollContext,
    ) -> Result<Self> {
        let (sends, recvs) = (Inbox::new()?, Inbox::new()?);
        let events = Arc::pin_init(
            pin_init!(Events {
                sends <- sends,
                recvs <- recvs,
                errors: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        let send_cq = Cq::alloc(pd.device(), caps.send_cqes(), 0, context)?;
        let recv_cq = Cq::alloc(pd.device(), caps.recv_cqes(), 0, context)?;
        let handler = Handler(events.clone());
        Ok(Self {
            qp: Qp::create(&id, pd, &send_cq, &recv_cq, caps, handler)?,
            events,
            id,
            connection,
        })
    }
}

/// Makes the far side of a [`Pair`].
#[pin_data]
struct Acceptor {
    queue: OwnedQueue,
    pd: Arc<Pd>,
    caps: QpCaps,
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
            let side = Side::new(id, connection, &this.pd, this.caps, PollContext::Workqueue)?;
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
    _listener: Listener,
}

impl Pair {
    fn new(addr: SocketAddr, caps: QpCaps) -> Result<Self> {
        let net = Net::current();
        let connection = Connection::new()?;
        let id = CmId::new(&net, connection.clone())?;
        id.resolve(None, addr, TIMEOUT_MS)
            .map_err(|error| error.to_error())?;
        let pd = Pd::alloc(&id.device()?)?;
        let near = Side::new(id, connection, &pd, caps, PollContext::Softirq)?;

        let queue = OwnedQueue::ordered(c"farblk_kunit")?;
        let (far_pd, connection, side) = (pd.clone(), Connection::new()?, Inbox::new()?);
        let acceptor = Arc::pin_init(
            pin_init!(Acceptor {
                queue,
                pd: far_pd,
                caps,
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
            _listener: listener,
        })
    }

    /// An owner without memory.
    fn owner(&self, number: u32) -> Owner {
        Owner {
            number,
            block: None,
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
            again: 0,
            _alive: Alive::new(&self.alive),
        })
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
