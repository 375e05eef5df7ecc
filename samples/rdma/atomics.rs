// SPDX-License-Identifier: GPL-2.0

//! Atomic operations: several clients take a lock in the server's memory by compare-and-swap, and
//! count there by fetch-and-add. The server's CPU does nothing for it.
//!
//!     server# insmod rdma_atomics.ko listen=10.0.0.1:4711
//!     client# insmod rdma_atomics.ko connect=10.0.0.1:4711

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
    type: Roles<Board>,
    name: "rdma_atomics",
    authors: ["The farblk developers"],
    description: "Sample: a lock and a counter by atomic operations",
    license: "GPL v2",
}

/// How many clients there are here, and how often each of them takes the lock.
const TASKS: usize = 4;
const ROUNDS: u32 = 25;
/// How often a client tries to take the lock: its holder may have gone.
const TRIES: u32 = 100_000;
/// Where the server has its numbers of 8 bytes: the lock, which is 0 or who holds it; a counter;
/// and a number that only the holder of the lock changes, by READ and WRITE.
const LOCK: usize = 0;
const COUNTER: usize = 8;
const GUARDED: usize = 16;

impl kernel::Module for Roles<Board> {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let board = pin_init!(Board { region <- new_mutex!(None) });
        Roles::start(Arc::pin_init(board, GFP_KERNEL)?, count)
    }
}

/// Runs the clients, each in a task and with a connection of its own.
fn count(host: &Host, addr: SocketAddr) -> Result {
    // First all connections, so that the clients meet.
    let mut servers = KVec::with_capacity(TASKS, GFP_KERNEL)?;
    for _ in 0..TASKS {
        let end = Endpoint::resolve(host, addr)?;
        let pd = Pd::alloc(&end.id.device()?)?;
        let server = Connection::new(end, &pd)?;
        server.recv(server.buffer(Grant::LEN)?)?;
        server.connect()?;
        server.send(server.buffer(1)?)?;
        servers.push(server, GFP_KERNEL)?;
    }
    let tasks = OwnedQueue::unbound(host.release(), c"rdma_atomics")?;
    let done = Arc::new(Atomic::new(0), GFP_KERNEL)?;
    for (number, server) in (1..).zip(servers) {
        let done = done.clone();
        tasks.spawn(move || match client(server, number) {
            Ok(()) => drop(done.fetch_add(1usize, Relaxed)),
            Err(error) => pr_err!("client {} failed: {}\n", number, errno::name(error)),
        })?;
    }
    tasks.flush();
    if done.load(Relaxed) != TASKS {
        return Err(EIO);
    }
    pr_info!("{} clients held the lock {} times each\n", TASKS, ROUNDS);
    Ok(())
}

/// A client.
fn client(server: Connection, number: u64) -> Result {
    let grant = Grant::from_bytes(server.received(TIMEOUT_MS)?.message()?);
    let remote = |offset| RemoteAtomic::new(grant.at(offset, 8)?);
    let (lock, counter, guarded) = (remote(LOCK)?, remote(COUNTER)?, grant.at(GUARDED, 8)?);
    // Other hosts have clients, too.
    let me = random_u64() << 8 | number;
    let exchange = |compare, swap| AtomicOp::CompareSwap { compare, swap };
    let device = server.pd.device();
    let mut piece = DmaMemory::alloc(device, 8, device.numa_node())?.piece(0, 8)?;
    for _ in 0..ROUNDS {
        // The result is what the number was: 0 says that nobody held it, and now we do.
        let mut tries = 0..TRIES;
        while server.atomic(exchange(0, me), lock)? != 0 {
            tries.next().ok_or(EBUSY)?;
        }
        // READ, add and WRITE are three steps, between which only the lock keeps others away.
        piece = server.rdma(RdmaOp::Read, guarded, piece)?;
        let mut bytes = [0; 8];
        piece.contents(8)?.read(&mut bytes)?;
        let before = u64::from_ne_bytes(bytes);
        piece
            .contents(8)?
            .write(&before.wrapping_add(1).to_ne_bytes())?;
        piece = server.rdma(RdmaOp::Write, guarded, piece)?;
        // This is one step, which needs no lock. As it is done with the lock held, it must find the
        // same number, or someone else has held the lock, too.
        if server.atomic(AtomicOp::FetchAdd(1), counter)? != before {
            return Err(EPROTO);
        }
        // Gives the lock back. What was written before is there when the next holder READs it.
        if server.atomic(exchange(me, 0), lock)? != me {
            return Err(EPROTO);
        }
    }
    Ok(())
}

/// The server. All clients share the memory, and so the domain: a key is good for queue pairs of
/// its domain only.
#[pin_data]
struct Board {
    #[pin]
    region: Mutex<Option<Region>>,
}

impl Serve for Board {
    fn serve(&self, client: Endpoint) -> Result {
        // Clients are told one after the other: the first one's queue pair registers the region,
        // which it can do when it is connected. One that says nothing delays the others.
        let mut region = self.region.lock();
        let pd = match &*region {
            Some(region) => region.pd.clone(),
            None => Pd::alloc(&client.id.device()?)?,
        };
        let client = Connection::new(client, &pd)?;
        client.recv(client.buffer(1)?)?;
        client.accept()?;
        client.received(TIMEOUT_MS)?;
        if region.is_none() {
            // Fails if the device does no atomic operations for peers.
            *region = Some(client.offer(GUARDED + 8, Access::RemoteReadWrite, true)?);
        }
        let grant = region.as_ref().ok_or(EIO)?.grant()?;
        drop(region);
        let mut message = client.buffer(Grant::LEN)?;
        message.copy_in(0, &grant.to_bytes())?;
        client.send(message)?;
        client.events.wait_lost();
        pr_info!("a client has gone\n");
        Ok(())
    }
}
