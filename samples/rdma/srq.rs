// SPDX-License-Identifier: GPL-2.0

//! A shared receive queue: the server's connections take their receives from one queue, so that an
//! idle client needs none. The server works in its completions, without a task for each message.
//!
//!     server# insmod rdma_srq.ko listen=10.0.0.1:4711
//!     client# insmod rdma_srq.ko connect=10.0.0.1:4711

#![deny(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "a sample uses a part of it")]
mod base;
mod bindings;
#[allow(dead_code, unused_imports, reason = "a sample uses a part of it")]
mod common;
#[allow(dead_code, unused_imports, reason = "a sample uses a part of it")]
mod rdma;

use common::*;

module! {
    type: Roles<Shared>,
    name: "rdma_srq",
    authors: ["The farblk developers"],
    description: "Sample: a shared receive queue and many clients",
    license: "GPL v2",
}

/// How many clients there are here, and how many messages each of them sends.
const CONNECTIONS: usize = 12;
const ROUNDS: u32 = 50;
/// The receives of the server: fewer than its connections would have if each had two.
const RECEIVES: u32 = 16;
/// The sizes of the server's queue pairs, which have no receives of their own.
const ANSWERS: QpCaps = QpCaps { recv_wr: 0, ..CAPS };

impl kernel::Module for Roles<Shared> {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let shared = pin_init!(Shared { srq <- new_mutex!(None) });
        Roles::start(Arc::pin_init(shared, GFP_KERNEL)?, clients)
    }
}

/// The clients.
fn clients(host: &Host, addr: SocketAddr) -> Result {
    let mut clients = KVec::with_capacity(CONNECTIONS, GFP_KERNEL)?;
    for _ in 0..CONNECTIONS {
        let end = Endpoint::resolve(host, addr)?;
        let pd = Pd::alloc(&end.id.device()?)?;
        let server: Connection = Connection::new(end, &pd)?;
        server.recv(server.buffer(size_of::<u32>())?)?;
        server.connect()?;
        clients.push(server, GFP_KERNEL)?;
    }
    for round in 0..ROUNDS {
        // All send before any waits for its answer.
        for (number, server) in (0u32..).zip(&clients) {
            let mut message = server.buffer(size_of::<u32>())?;
            message.copy_in(0, &(round << 16 | number).to_be_bytes())?;
            server.send(message)?;
        }
        for (number, server) in (0u32..).zip(&clients) {
            let answer = server.received(TIMEOUT_MS)?;
            if u32::from_be_bytes(answer.message()?) != (round << 16 | number) {
                return Err(EPROTO);
            }
            server.recv(answer.buffer)?;
        }
    }
    pr_info!("{} clients had {} answers each\n", CONNECTIONS, ROUNDS);
    Ok(())
}

/// The server: the queue that all its connections share.
#[pin_data]
struct Shared {
    #[pin]
    srq: Mutex<Option<ObjectRef<Srq<Answering>>>>,
}

/// Makes the queue, and fills it.
fn create(device: &Arc<Device>) -> Result<ObjectRef<Srq<Answering>>> {
    // Completions of all receives and of all answers may be there at once.
    let entries = RECEIVES + CLIENTS as u32 * ANSWERS.send_cqes();
    let cq = Cq::<Softirq>::alloc(device, entries, 0)?;
    let srq = Srq::create(&Pd::alloc(device)?, &cq, RECEIVES, CLIENTS, None)?;
    for _ in 0..RECEIVES {
        let buffer = DmaBuffer::alloc(device, size_of::<u32>(), Direction::Bidirectional)?;
        srq.recv(buffer).map_err(|(error, _)| error)?;
    }
    Ok(srq)
}

impl Serve for Shared {
    fn serve(&self, client: Endpoint) -> Result {
        let mut place = self.srq.lock();
        let srq = match &*place {
            Some(srq) => srq.clone(),
            None => place.insert(create(&client.id.device()?)?).clone(),
        };
        drop(place);
        // How long the device of a client waits that has found no receive, before it tries again.
        client.id.set_min_rnr_timer(12)?;
        let handler = Answering(Atomic::new(0));
        let qp = Qp::create_on(&client.id, &srq, srq.cq(), ANSWERS, handler)?;
        client.id.accept(&PARAM)?;
        // From here on the completions do all work, until the client goes.
        client.events.wait_lost();
        client.id.disconnect();
        pr_info!("a client sent {} messages\n", qp.handler().0.load(Relaxed));
        // The queue pair drops first, and is drained: its receives stay for the others.
        Ok(())
    }
}

/// Answers one client, in softirq. Counts the messages.
struct Answering(Atomic<u32>);

impl QpHandler for Answering {
    type Send = DmaBuffer;
    type Recv = DmaBuffer;
    type Ulp = ();

    fn recv_done(&self, qp: &Qp<Self>, mut buffer: DmaBuffer, got: Result<Received<'_>, WcError>) {
        if got.is_ok() {
            // The slots take turns: a client may have its answer and send its next message before
            // the completion of the answer is handled, which frees the slot.
            let slot = self.0.fetch_add(1, Relaxed) % u32::from(DEPTH);
            // What was received is sent back from where it is. A client that does not wait for its
            // answers gets some only, as slots are in use then.
            match qp.send(slot as u16, buffer, true) {
                Ok(()) => return,
                Err((_, back)) => buffer = back,
            }
        }
        let _ = qp.recv(buffer);
    }

    fn send_done(&self, qp: &Qp<Self>, buffer: DmaBuffer, _: Result<(), WcError>) {
        // Now another client can use it. This fails only when the queue is being dropped.
        let _ = qp.recv(buffer);
    }

    fn error(&self) {}
}
