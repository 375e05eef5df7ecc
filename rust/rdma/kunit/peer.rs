// SPDX-License-Identifier: GPL-2.0

//! Queue pairs for datagrams, for KUnit suites.

use crate::base::errno::EBADMSG;
use crate::rdma::{
    ah::Destination,
    kunit::*,
    qp::{
        SendTo,
        Ud,
        Unacknowledged, //
    },
    wc::datagram::{
        Datagram,
        Sender,
        GRH_BYTES, //
    },
};

/// The sizes of the queue pairs.
pub(super) const CAPS: QpCaps = QpCaps {
    sges: 1,
    ..super::CAPS
};

/// The owner of a datagram.
pub(super) struct Letter {
    pub(super) owner: Owner,
    pub(super) to: Destination,
}

impl SendOwner for Letter {
    type Memory = Block;

    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        self.owner.message()
    }
}

impl SendTo for Letter {
    fn destination(&self) -> &Destination {
        &self.to
    }
}

/// A datagram that came in: its length, immediate data and sender.
pub(super) type Incoming = (u32, Option<u32>, Sender);

/// The events of a queue pair for datagrams.
#[pin_data]
pub(super) struct Post {
    #[pin]
    pub(super) sent: Inbox<(Letter, Result<Unacknowledged, WcError>)>,
    #[pin]
    pub(super) received: Inbox<(Landing, Result<Incoming, WcError>)>,
    /// The queue pair that the last datagram came from.
    pub(super) from: Atomic<u32>,
    pub(super) errors: Atomic<u32>,
    /// 1 if a datagram is dropped where its completion is handled.
    pub(super) forgets: Atomic<u32>,
}

pub(super) struct Handler(pub(super) Arc<Post>);

impl QpHandler<Ud> for Handler {
    type Send = Letter;
    type Recv = Landing;
    type Ulp = ();

    fn send_done(&self, _: &Qp<Self, Ud>, letter: Letter, result: Result<Unacknowledged, WcError>) {
        match self.0.forgets.load(Relaxed) {
            0 => self.0.sent.put((letter, result)),
            _ => drop(letter),
        }
    }

    fn recv_done(&self, _: &Qp<Self, Ud>, landing: Landing, result: Result<Datagram<'_>, WcError>) {
        let incoming = result.and_then(|datagram| {
            let sender = Sender::of(&datagram, &landing.buffer);
            let sender = sender.map_err(WcError::NotCompleted)?;
            self.0.from.store(datagram.src_qp(), Relaxed);
            Ok((datagram.len(), datagram.immediate(), sender))
        });
        self.0.received.put((landing, incoming));
    }

    fn error(&self) {
        self.0.errors.fetch_add(1, Relaxed);
    }
}

/// A queue pair for datagrams, and its id.
pub(super) struct Peer {
    // Fields are dropped in this order.
    pub(super) qp: ObjectRef<Qp<Handler, Ud>>,
    pub(super) post: Arc<Post>,
    pub(super) id: Arc<CmId<Ud>>,
    pub(super) pd: Arc<Pd>,
    pub(super) alive: Arc<Atomic<i32>>,
}

/// Returns an id without an address.
pub(super) fn new_id() -> Result<Arc<CmId<Ud>>> {
    CmId::new(&devices()?, &Net::current(), Connection::new()?)
}

impl Peer {
    /// Creates a queue pair of `id`, which has a device.
    pub(super) fn new(id: Arc<CmId<Ud>>, caps: QpCaps) -> Result<Self> {
        let pd = Pd::alloc(&id.device()?)?;
        let (sent, received) = (Inbox::new()?, Inbox::new()?);
        let post = Arc::pin_init(
            pin_init!(Post {
                sent <- sent,
                received <- received,
                from: Atomic::new(0),
                errors: Atomic::new(0),
                forgets: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        let send_cq = AnyCq::alloc(pd.device(), caps.send_cqes(), 0, PollContext::Softirq)?;
        let recv_cq = AnyCq::alloc(pd.device(), caps.recv_cqes(), 0, PollContext::Workqueue)?;
        let handler = Handler(post.clone());
        Ok(Self {
            qp: Qp::create(&id, &pd, &send_cq, &recv_cq, caps, handler)?,
            post,
            id,
            pd,
            alive: Arc::new(Atomic::new(0), GFP_KERNEL)?,
        })
    }

    /// A peer at any port of `addr`.
    pub(super) fn bound(addr: SocketAddr) -> Result<Self> {
        let id = new_id()?;
        id.bind(SocketAddr::new(addr.ip(), 0))?;
        Self::new(id, CAPS)
    }

    /// A datagram of `len` times `byte`.
    pub(super) fn letter(&self, to: &Destination, len: usize, byte: u8) -> Result<Letter> {
        let mut message = DmaBuffer::alloc(self.pd.device(), len, Direction::ToDevice)?;
        for at in 0..len {
            message.copy_in(at, &[byte])?;
        }
        Ok(Letter {
            owner: Owner {
                number: byte.into(),
                block: None,
                piece: None,
                message: Some(message),
                mr: None,
                result: None,
                again: None,
                _alive: Alive::new(&self.alive),
            },
            to: to.clone(),
        })
    }

    /// Sends a datagram, which leaves.
    pub(super) fn send(
        &self,
        to: &Destination,
        len: usize,
        byte: u8,
        immediate: Option<u32>,
    ) -> Result {
        let letter = self.letter(to, len, byte)?;
        posted(self.qp.send_to(0, immediate, letter, true))?;
        let (letter, result) = self.post.sent.take()?;
        check!(letter.owner.number == byte.into() && result == Ok(Unacknowledged));
        Ok(())
    }

    /// Posts a receive for a datagram of `len` bytes.
    pub(super) fn recv(&self, len: usize) -> Result {
        let len = GRH_BYTES + len;
        posted(self.qp.recv(Landing {
            number: 0,
            buffer: DmaBuffer::alloc(self.pd.device(), len, Direction::FromDevice)?,
            piece: None,
            answer: None,
            invalidated: false,
            written: false,
            immediate: None,
            again: 0,
            rival: None,
            _alive: Alive::new(&self.alive),
        }))
    }

    /// Waits for a datagram, which must be `len` times `byte`.
    pub(super) fn received(&self, len: usize, byte: u8) -> Result<(Option<u32>, Sender)> {
        let (landing, result) = self.post.received.take()?;
        let (bytes, immediate, sender) = result.map_err(|error| error.to_error())?;
        let mut data = [0; 64];
        let data = data.get_mut(..len).ok_or(EIO)?;
        landing.buffer.copy_out(GRH_BYTES, data)?;
        match bytes as usize == len && data.iter().all(|found| *found == byte) {
            true => Ok((immediate, sender)),
            false => Err(EBADMSG),
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        let nothing = self.post.sent.len() == 0 && self.post.received.len() == 0;
        nothing && self.post.errors.load(Relaxed) == 0
    }
}
