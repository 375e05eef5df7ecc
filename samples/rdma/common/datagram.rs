// SPDX-License-Identifier: GPL-2.0

//! A queue pair for datagrams whose task waits for each completion, and a server that has one.

use super::*;
use crate::rdma::{
    ah::Destination,
    qp::{
        SendTo,
        Ud, //
    },
    remnant::ObjectRef,
    wc::datagram::{
        Datagram,
        Sender,
        GRH_BYTES, //
    },
};

/// A message that is sent: its buffer, and where it goes. The work request owns both, as the device
/// needs the address until the message has left.
pub(crate) struct Letter(DmaBuffer, Destination);

impl SendOwner for Letter {
    type Memory = crate::base::scatterlist::NoMemory;

    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        Some((&self.0, self.0.len()))
    }
}

impl SendTo for Letter {
    fn destination(&self) -> &Destination {
        &self.1
    }
}

/// A message that came in, and who says to have sent it.
pub(crate) struct Delivery {
    /// The buffer that was posted.
    pub(crate) buffer: DmaBuffer,
    /// Where an answer goes.
    pub(crate) sender: Sender,
    len: u32,
}

impl Delivery {
    /// Returns the message. Fails with `EPROTO` if it has another length: anybody may send
    /// anything.
    pub(crate) fn message<const N: usize>(&self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        let is_whole = self.buffer.copy_out(GRH_BYTES, &mut bytes).is_ok();
        match is_whole && self.len as usize == N {
            true => Ok(bytes),
            false => Err(EPROTO),
        }
    }
}

/// The completions that no task has waited for yet.
#[pin_data]
pub(crate) struct Mail {
    #[pin]
    sent: Inbox<Result<Letter, WcError>>,
    #[pin]
    received: Inbox<Result<Delivery, WcError>>,
}

impl CmEvents for Mail {
    /// The device goes, or the server stops: wakes the tasks that wait, now and later.
    fn disconnected(&self) {
        self.sent.wake();
        self.received.wake();
    }
}

/// Handles completions, in softirq: has the task go on that waits.
pub(crate) struct Sorter(Arc<Mail>);

impl QpHandler<Ud> for Sorter {
    type Send = Letter;
    type Recv = DmaBuffer;
    type Ulp = ();

    fn send_done(&self, _: &Qp<Self, Ud>, letter: Letter, sent: Result<Unacknowledged, WcError>) {
        self.0.sent.put(sent.map(|Unacknowledged| letter));
    }

    fn recv_done(&self, _: &Qp<Self, Ud>, buffer: DmaBuffer, got: Result<Datagram<'_>, WcError>) {
        self.0.received.put(got.and_then(|datagram| {
            let sender = Sender::of(&datagram, &buffer).map_err(WcError::NotCompleted)?;
            Ok(Delivery {
                len: datagram.len(),
                buffer,
                sender,
            })
        }));
    }

    /// Here is nothing to do: all that is posted comes back with an error.
    fn error(&self) {}
}

/// A queue pair for datagrams. It is connected to nobody, and serves any number of peers.
pub(crate) struct Mailbox {
    // Fields drop in this order: first the queue pair. After that the device accesses no memory of
    // its work requests any more.
    pub(crate) qp: ObjectRef<Qp<Sorter, Ud>>,
    pub(crate) id: Arc<CmId<Ud>>,
    mail: Arc<Mail>,
    pd: Arc<Pd>,
}

impl Mailbox {
    /// Makes the queue pair on the device that `place` finds for an id.
    pub(crate) fn new(host: &Host, place: impl FnOnce(&CmId<Ud>) -> Result) -> Result<Self> {
        let (sent, received) = (Inbox::new()?, Inbox::new()?);
        let mail = Arc::pin_init(
            pin_init!(Mail {
                sent <- sent,
                received <- received,
            }),
            GFP_KERNEL,
        )?;
        let id = CmId::new(host.devices(), &Net::current(), mail.clone())?;
        place(&id)?;
        let pd = Pd::alloc(&id.device()?)?;
        let entries = CAPS.send_cqes() + CAPS.recv_cqes();
        let cq = Cq::<Softirq>::alloc(pd.device(), entries, 0)?;
        Ok(Self {
            qp: Qp::create(&id, &pd, &cq, &cq, CAPS, Sorter(mail.clone()))?,
            id,
            mail,
            pd,
        })
    }

    /// Posts a receive for a message of `len` bytes. The device writes a header before it.
    pub(crate) fn recv(&self, len: usize) -> Result {
        let len = GRH_BYTES + len;
        let buffer = DmaBuffer::alloc(self.pd.device(), len, Direction::FromDevice)?;
        self.qp.recv(buffer).map_err(|(error, _)| error)
    }

    /// Waits for a message. Fails with `ETIMEDOUT`, and with `ECONNRESET` if the device goes, or
    /// the server stops.
    pub(crate) fn received(&self, timeout_ms: u32) -> Result<Delivery> {
        self.mail.received.take(timeout_ms)?.map_err(failed)
    }

    /// Sends `message`, and waits until it has left.
    pub(crate) fn send(&self, to: &Destination, message: &[u8]) -> Result {
        let mut buffer = DmaBuffer::alloc(self.pd.device(), message.len(), Direction::ToDevice)?;
        buffer.copy_in(0, message)?;
        let letter = Letter(buffer, to.clone());
        let posted = self.qp.send_to(0, None, letter, true);
        posted.map_err(|(error, _)| error)?;
        self.mail.sent.take(TIMEOUT_MS)?.map_err(failed)?;
        Ok(())
    }
}

/// Answers who asks for the queue pair, and has it served in a task of its own.
pub(crate) struct Office(Arc<Service>);

#[pin_data]
struct Service {
    task: OwnedQueue,
    mail: Arc<Mail>,
    #[pin]
    listener: Mutex<Option<Listener<Ud>>>,
    #[pin]
    qp: Mutex<Option<ObjectRef<Qp<Sorter, Ud>>>>,
}

impl Office {
    /// Has `serve` serve a queue pair at the address of the parameter, if there is one.
    pub(crate) fn open(host: &Host, serve: fn(&Mailbox) -> Result) -> Result<Option<Self>> {
        let Some(addr) = LISTEN.get() else {
            return Ok(None);
        };
        let mailbox = Mailbox::new(host, |id| id.bind(SocketAddr::new(addr.ip(), 0)))?;
        let (task, mail) = (
            OwnedQueue::unbound(host.release(), c"rdma_sample")?,
            mailbox.mail.clone(),
        );
        let qp = Some(mailbox.qp.clone());
        let service = Arc::pin_init(
            pin_init!(Service {
                task,
                mail,
                listener <- new_mutex!(None),
                qp <- new_mutex!(qp),
            }),
            GFP_KERNEL,
        )?;
        let this = Self(service);
        let desk = Arc::new(Desk(this.0.clone()), GFP_KERNEL)?;
        // Locked until it is there: the device may be removed meanwhile.
        let mut listener = this.0.listener.lock();
        *listener = Some(host.listen(addr, desk)?);
        drop(listener);
        this.0.task.spawn(move || match serve(&mailbox) {
            Ok(()) | Err(ECONNRESET) => {}
            Err(error) => pr_warn!("nobody is served any more: {}\n", errno::name(error)),
        })?;
        Ok(Some(this))
    }
}

impl Service {
    /// Ends the service: first nobody is told of it any more, then its task is let go.
    fn stop(&self) {
        let listener = self.listener.lock().take();
        drop(listener);
        let qp = self.qp.lock().take();
        drop(qp);
        self.mail.disconnected();
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.0.stop();
        self.0.task.flush();
    }
}

/// Tells clients the number of the queue pair. The connection manager calls it, and waits for it.
struct Desk(Arc<Service>);

impl Listen<Ud> for Desk {
    fn connect_request(&self, request: ConnectRequest<'_, Ud>) {
        let qp = self.0.qp.lock().clone();
        // A client is refused whose request is dropped.
        let Some(qp) = qp else { return };
        if let Err(error) = request.answer(&qp, &[]) {
            pr_warn!("a client is refused: {}\n", errno::name(error));
        }
    }

    fn removed(&self) {
        // The task of the queue pair waits, in the same queue, and may run together with this.
        let service = self.0.clone();
        self.0.mail.disconnected();
        if self.0.task.spawn(move || service.stop()).is_err() {
            pr_err!("a device waits for this module to go\n");
        }
    }
}
