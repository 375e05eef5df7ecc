// SPDX-License-Identifier: GPL-2.0

//! Two connected queue pairs, for KUnit suites.

use super::*;
use crate::rdma::qp::Caps;

/// The events of a queue pair.
#[pin_data]
pub(super) struct Events {
    #[pin]
    pub(super) sends: Inbox<(Owner, Result<(), WcError>)>,
    #[pin]
    pub(super) recvs: Inbox<(Landing, Result<u32, WcError>)>,
    /// The requests that came back with the protection domain.
    #[pin]
    pub(super) released: Inbox<Owner>,
    pub(super) errors: Atomic<u32>,
    /// 1 if the peer may use up receives by RDMA WRITEs.
    pub(super) takes_writes: Atomic<u32>,
    /// The task that runs while the queue pair tells of its failure.
    #[pin]
    pub(super) rival: IrqSaveSpinLock<Option<Arc<Rival>>>,
}

impl Events {
    pub(super) fn new() -> Result<Arc<Self>> {
        let (sends, recvs, released) = (Inbox::new()?, Inbox::new()?, Inbox::new()?);
        Arc::pin_init(
            pin_init!(Self {
                sends <- sends,
                recvs <- recvs,
                released <- released,
                errors: Atomic::new(0),
                takes_writes: Atomic::new(0),
                rival <- new_irqsave_spinlock!(None),
            }),
            GFP_KERNEL,
        )
    }
}

pub(super) struct Handler(pub(super) Arc<Events>);

impl QpHandler for Handler {
    type Send = Owner;
    type Recv = Landing;
    type Ulp = Requests;

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
                done.0.invalidated = received.invalidated().is_some();
                if done.0.answer.is_some() {
                    let mut slot = [0];
                    let _ = done.0.buffer.copy_out(0, &mut slot);
                    // CAST: Slots of tests are small.
                    let slot = done.0.immediate.map_or(slot[0].into(), |slot| slot as u16);
                    done.0.answer = Some(qp.answered(slot, received, |_| true));
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

    fn write_received(
        &self,
        _qp: &Qp<Self>,
        mut owner: Landing,
        written: Written<'_>,
    ) -> Result<(), Landing> {
        if self.0.takes_writes.load(Relaxed) == 0 {
            return Err(owner);
        }
        owner.written = true;
        owner.immediate = Some(written.immediate());
        self.0.recvs.put((owner, Ok(written.len())));
        Ok(())
    }

    fn error(&self) {
        self.0.errors.fetch_add(1, Relaxed);
        let rival = self.0.rival.lock().take();
        if let Some(rival) = rival {
            rival.race();
        }
    }
}

impl RequestHandler for Handler {
    type Parked = Owner;

    fn park(&self, owner: Owner) -> Owner {
        owner
    }

    fn send_released(&self, owner: Owner) {
        self.0.released.put(owner);
    }
}

/// The events of a connection.
#[pin_data]
pub(super) struct Connection {
    #[pin]
    pub(super) established: Completion,
    #[pin]
    pub(super) lost: Completion,
    pub(super) times_lost: Atomic<u32>,
}

impl Connection {
    pub(super) fn new() -> Result<Arc<Self>> {
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
pub(super) struct Side<T: Connected = Rc>
where
    Handler: QpHandler<T>,
{
    // Fields are dropped in this order.
    pub(super) qp: ObjectRef<Qp<Handler, T>>,
    pub(super) events: Arc<Events>,
    pub(super) id: Arc<CmId<T>>,
    pub(super) connection: Arc<Connection>,
    pub(super) send_cq: ObjectRef<AnyCq>,
    pub(super) recv_cq: ObjectRef<AnyCq>,
}

/// The kinds of completion queues and receive queues that the sides have.
#[derive(Clone, Default)]
pub(super) struct Kind {
    /// The near side's sends, and its receives too, complete in a queue that is polled.
    pub(super) direct: Option<(bool, bool)>,
    /// The far side receives there.
    pub(super) srq: Option<ObjectRef<Srq<Handler>>>,
}

impl<T: Connected> Side<T>
where
    Handler: QpHandler<T>,
{
    /// Creates a queue pair, with completion queues of its own that are just large enough.
    pub(super) fn new(
        id: Arc<CmId<T>>,
        connection: Arc<Connection>,
        pd: &Arc<Pd>,
        caps: impl Into<Caps<Handler, T>>,
        contexts: (PollContext, PollContext),
    ) -> Result<Self> {
        let events = Events::new()?;
        let handler = Handler(events.clone());
        let caps = caps.into();
        let (sizes, extra) = <Handler as QpHandler<T>>::Ulp::sizes(&caps);
        let send_cq = AnyCq::alloc(pd.device(), sizes.send_cqes() + extra, 0, contexts.0)?;
        let recv_cq = AnyCq::alloc(pd.device(), sizes.recv_cqes(), 0, contexts.1)?;
        Ok(Self {
            qp: Qp::create(&id, pd, &send_cq, &recv_cq, caps, handler)?,
            events,
            id,
            connection,
            send_cq,
            recv_cq,
        })
    }

    /// The C object of the queue pair.
    pub(super) fn raw_qp(&self) -> *mut bindings::ib_qp {
        // SAFETY: The id is valid by its invariants.
        unsafe { (*self.id.as_raw()).qp }
    }
}

impl Side {
    /// Creates a queue pair that receives from `srq`.
    fn on(
        id: Arc<CmId>,
        connection: Arc<Connection>,
        srq: &ObjectRef<Srq<Handler>>,
        mut caps: RequestCaps,
    ) -> Result<Self> {
        let events = Events::new()?;
        let handler = Handler(events.clone());
        caps.qp.recv_wr = 0;
        let cq = srq.cq();
        Ok(Self {
            qp: Qp::create_on(&id, srq, cq, caps, handler)?,
            events,
            id,
            connection,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
        })
    }

    /// Answers a request as if a message had come in, which has invalidated a key or none.
    pub(super) fn answered(&self, slot: u16, invalidated: Option<u32>) -> Result {
        self.answered_if(slot, invalidated, |_| true)
    }

    /// The same, if `is_it` says so of the generation of the request.
    pub(super) fn answered_if(
        &self,
        slot: u16,
        invalidated: Option<u32>,
        is_it: impl Fn(u32) -> bool,
    ) -> Result {
        let flags = match invalidated {
            Some(_) => bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE,
            None => 0,
        };
        let wc = bindings::ib_wc {
            opcode: bindings::ib_wc_opcode_IB_WC_RECV,
            qp: self.raw_qp(),
            // CAST: A flag.
            wc_flags: flags as i32,
            ex: bindings::ib_wc__bindgen_ty_2 {
                invalidate_rkey: invalidated.unwrap_or(0),
            },
            ..pin_init::zeroed()
        };
        let received = Received::new(&wc).map_err(|error| error.to_error())?;
        self.qp.answered(slot, received, is_it)
    }
}

/// What makes the far side of a connection, of type `S`.
type CreateFar<T, S> = dyn Fn(Arc<CmId<T>>, Arc<Connection>) -> Result<S> + Send + Sync;

/// Accepts a connection with a far side of type `S`.
#[pin_data]
struct Acceptor<T: Connected, S: Send + 'static> {
    queue: OwnedQueue,
    connection: Arc<Connection>,
    create: KBox<CreateFar<T, S>>,
    #[pin]
    id: Mutex<Option<Arc<CmId<T>>>>,
    #[pin]
    side: Inbox<Result<S>>,
    #[pin]
    work: Work<Acceptor<T, S>>,
}

impl_has_work! {
    impl{T: Connected, S: Send + 'static} HasWork<Self> for Acceptor<T, S> { self.work }
}

impl<T: Connected, S: Send + 'static> WorkItem for Acceptor<T, S> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let accept = || {
            let id = this.id.lock().take().ok_or(ENODEV)?;
            let side = (this.create)(id.clone(), this.connection.clone())?;
            id.accept(&PARAM)?;
            Ok(side)
        };
        this.side.put(accept());
    }
}

/// Receives the requests for connections of an [`Acceptor`].
struct Door<T: Connected, S: Send + 'static>(Arc<Acceptor<T, S>>);

impl<T: Connected, S: Send + 'static> Listen<T> for Door<T, S> {
    fn connect_request(&self, request: ConnectRequest<'_, T>) {
        let id = request.into_id(self.0.connection.clone());
        *self.0.id.lock() = id.ok();
        let _ = self.0.queue.enqueue(self.0.clone());
    }

    fn removed(&self) {}
}

/// Connects `near`, which could connect to `addr`, to a far side there that `create` makes. Returns
/// that side, and what listens there.
pub(super) fn connect<T: Connected, S: Send + 'static>(
    near: &CmId<T>,
    addr: SocketAddr,
    create: impl Fn(Arc<CmId<T>>, Arc<Connection>) -> Result<S> + Send + Sync + 'static,
) -> Result<(S, Listener<T>)> {
    let queue = OwnedQueue::ordered(near.device()?.release(), c"farblk_kunit")?;
    let create: KBox<CreateFar<T, S>> = KBox::new(create, GFP_KERNEL)?;
    let (connection, side) = (Connection::new()?, Inbox::new()?);
    let acceptor = Arc::pin_init(
        pin_init!(Acceptor {
            queue,
            connection,
            create,
            id <- new_mutex!(None),
            side <- side,
            work <- new_work!("Acceptor::work"),
        }),
        GFP_KERNEL,
    )?;
    let door = Arc::new(Door(acceptor.clone()), GFP_KERNEL)?;
    let listener = Listener::new(&devices()?, &Net::current(), addr, 1, door)?;
    near.connect(&PARAM, TIMEOUT_MS)
        .map_err(|error| error.to_error())?;
    Ok((acceptor.side.take()??, listener))
}

/// Two connected queue pairs. The near one's completions are handled in softirq, the far one's in a
/// workqueue.
pub(super) struct Pair {
    // Fields are dropped in this order.
    pub(super) near: Side,
    pub(super) far: Side,
    pub(super) pd: Arc<Pd>,
    pub(super) alive: Arc<Atomic<i32>>,
    pub(super) listener: Option<Listener>,
}

impl Pair {
    pub(super) fn new(addr: SocketAddr, caps: impl Into<RequestCaps>, kind: Kind) -> Result<Self> {
        let context = |direct| match direct {
            true => PollContext::Direct,
            false => PollContext::Softirq,
        };
        let (send, recv) = kind.direct.unwrap_or_default();
        Self::with_contexts(addr, caps, (context(send), context(recv)), kind.srq)
    }

    /// Makes a pair whose near side's sends and receives complete in these contexts. The far side
    /// receives from `srq`, if it is given.
    pub(super) fn with_contexts(
        addr: SocketAddr,
        caps: impl Into<RequestCaps>,
        contexts: (PollContext, PollContext),
        srq: Option<ObjectRef<Srq<Handler>>>,
    ) -> Result<Self> {
        let caps = caps.into();
        let connection = Connection::new()?;
        let id = CmId::new(&devices()?, &Net::current(), connection.clone())?;
        id.resolve(None, addr, TIMEOUT_MS)
            .map_err(|error| error.to_error())?;
        // Nothing gets lost within a host, and what some devices do when a message is sent again is
        // no part of most tests: not on a machine either that stops for a while.
        id.set_ack_timeout(ACK_TIMEOUT)?;
        let pd = match &srq {
            Some(srq) => srq.pd().clone(),
            None => Pd::alloc(&id.device()?)?,
        };
        let near = Side::new(id, connection, &pd, caps, contexts)?;
        let far_pd = pd.clone();
        let (far, listener) = connect(&near.id, addr, move |id, connection| {
            let contexts = (PollContext::Workqueue, PollContext::Workqueue);
            match &srq {
                Some(srq) => Side::on(id, connection, srq, caps),
                None => Side::new(id, connection, &far_pd, caps, contexts),
            }
        })?;
        Ok(Self {
            near,
            far,
            pd,
            alive: Arc::new(Atomic::new(0), GFP_KERNEL)?,
            listener: Some(listener),
        })
    }

    /// An owner without memory.
    pub(super) fn owner(&self, number: u32) -> Owner {
        Owner {
            number,
            block: None,
            piece: None,
            message: None,
            mr: None,
            result: None,
            again: None,
            _alive: Alive::new(&self.alive),
        }
    }

    /// An owner of memory for RDMA.
    pub(super) fn block(&self, number: u32, block: &Block) -> Owner {
        Owner {
            block: Some(block.clone()),
            ..self.owner(number)
        }
    }

    /// An owner of a message of `len` times `byte`.
    pub(super) fn message(&self, number: u32, len: usize, byte: u8) -> Result<Owner> {
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
    pub(super) fn landing(&self, number: u32, len: usize) -> Result<Landing> {
        Ok(Landing {
            number,
            buffer: DmaBuffer::alloc(self.pd.device(), len, Direction::FromDevice)?,
            piece: None,
            answer: None,
            invalidated: false,
            written: false,
            immediate: None,
            again: 0,
            rival: None,
            _alive: Alive::new(&self.alive),
        })
    }

    /// An owner of room for an answer: its first byte is the slot of the request.
    pub(super) fn answer(&self) -> Result<Landing> {
        Ok(Landing {
            answer: Some(Ok(())),
            ..self.landing(0, 64)?
        })
    }

    /// An owner of a piece that is full of `byte`, and of a message of one byte.
    pub(super) fn reply(&self, slot: u8, len: usize, byte: u8) -> Result<Owner> {
        let memory = DmaMemory::alloc(self.pd.device(), len, NumaNode::NO_NODE)?;
        let piece = memory.piece(0, len)?;
        fill_piece(&piece, byte);
        Ok(Owner {
            piece: Some(piece),
            ..self.message(slot.into(), 1, slot)?
        })
    }

    /// Posts a request of the near side that carries `carry`, of `block`; returns where that is.
    pub(super) fn request(
        &self,
        slot: u16,
        carry: Carry,
        block: &Block,
        last: bool,
    ) -> Result<RemoteRange> {
        let owner = Owner {
            block: Some(block.clone()),
            ..self.message(slot.into(), 32, 0)?
        };
        let mut range = RemoteRange { addr: 0, rkey: 0 };
        let prepare = |owner: &mut Owner, ask: Ask| {
            range = ask.range.unwrap_or(range);
            let message = owner.message.as_mut().ok_or(EIO)?;
            // CAST: Slots of tests are small.
            message.copy_in(0, &[slot as u8])
        };
        posted(self.near.qp.request(slot, carry, owner, prepare, last))?;
        Ok(range)
    }

    /// Waits for a request at the far side: its first byte.
    pub(super) fn requested(&self) -> Result<u8> {
        let (landing, result) = self.far.events.recvs.take()?;
        result.map_err(|error| error.to_error())?;
        let mut slot = [0];
        landing.buffer.copy_out(0, &mut slot)?;
        Ok(slot[0])
    }

    /// Sends a reply from the far side, and waits until it was received.
    pub(super) fn replied(&self, reply: Reply, owner: Owner) -> Result<Landing> {
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
    pub(super) fn far_rdma(
        &self,
        op: RdmaOp,
        remote: RemoteRange,
        owner: Owner,
    ) -> Result<(Owner, bool)> {
        posted(self.far.qp.rdma(1, op, remote, owner, true))?;
        let (owner, result) = self.far.events.sends.take()?;
        Ok((owner, result.is_ok()))
    }

    /// A memory region over all of `block`, not registered yet.
    pub(super) fn region(&self, block: &Block, access: Access) -> Result<Mr> {
        let len = block.len.next_multiple_of(PAGE_SIZE);
        let direction = Direction::Bidirectional;
        let mapping = SgMapping::map(self.pd.device(), &block.memory, 0, len, direction)?;
        Mr::alloc(&self.pd, &mapping, access)
    }

    /// Lets the far side register `mr`.
    pub(super) fn register(&self, mr: Mr) -> Result<Mr> {
        let mut owner = self.owner(0);
        owner.mr = Some(mr);
        posted(self.far.qp.reg_mr(0, owner, true))?;
        let (mut owner, result) = self.far.events.sends.take()?;
        result.map_err(|error| error.to_error())?;
        owner.mr.take().ok_or(EIO)
    }

    /// A region of the far side over `block` that the near side may read and write, and where it
    /// is.
    pub(super) fn target(&self, block: &Block) -> Result<(Mr, RemoteRange)> {
        let mr = self.register(self.region(block, Access::RemoteReadWrite)?)?;
        let remote = mr.remote().ok_or(EIO)?;
        Ok((mr, remote))
    }

    /// Does an RDMA operation from the near side, alone, and returns how it ended.
    pub(super) fn rdma(
        &self,
        op: RdmaOp,
        block: &Block,
        remote: RemoteRange,
    ) -> Result<Result<(), WcError>> {
        let owner = self.block(0, block);
        posted(self.near.qp.rdma(0, op, remote, owner, true))?;
        Ok(self.near.events.sends.take()?.1)
    }
}
