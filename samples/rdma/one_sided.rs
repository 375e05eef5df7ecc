// SPDX-License-Identifier: GPL-2.0

//! RDMA READ and RDMA WRITE: the client reads and changes memory of the server, whose CPU does not
//! notice. The server says by a message where the memory is, and with which key.
//!
//!     server# insmod rdma_one_sided.ko listen=10.0.0.1:4711
//!     client# insmod rdma_one_sided.ko connect=10.0.0.1:4711

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
    type: Roles<Memory>,
    name: "rdma_one_sided",
    authors: ["The farblk developers"],
    description: "Sample: RDMA READ and WRITE",
    license: "GPL v2",
}

/// What is in the server's memory at first.
const BEFORE: [u8; 24] = *b"memory of another host. ";
/// What the client writes there.
const AFTER: [u8; 24] = *b"MEMORY OF ANOTHER HOST. ";
/// The messages of one byte: of the client when it begins and when it is done, and the answer.
const BEGIN: u8 = 1;
const DONE: u8 = 2;
const RIGHT: u8 = 3;

impl kernel::Module for Roles<Memory> {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Roles::start(Arc::new(Memory, GFP_KERNEL)?, access)
    }
}

/// The client.
fn access(host: &Host, addr: SocketAddr) -> Result {
    let end = Endpoint::resolve(host, addr)?;
    let pd = Pd::alloc(&end.id.device()?)?;
    let server: Connection = Connection::new(end, &pd)?;
    for _ in 0..2 {
        server.recv(server.buffer(Grant::LEN)?)?;
    }
    server.connect()?;
    let mut byte = server.buffer(1)?;
    byte.copy_in(0, &[BEGIN])?;
    byte = server.send(byte)?;
    let grant = Grant::from_bytes(server.received(TIMEOUT_MS)?.message()?);
    let theirs = grant.at(0, BEFORE.len())?;

    // Memory of this side that no peer accesses needs no key and no registration in the kernel. It
    // is mapped for the device, and the work request owns it while the device writes there.
    let memory = DmaMemory::alloc(pd.device(), BEFORE.len(), pd.device().numa_node())?;
    let piece = memory.piece(0, BEFORE.len())?;
    let piece = server.rdma(RdmaOp::Read, theirs, piece)?;
    let mut found = [0; BEFORE.len()];
    piece.contents(piece.len())?.read(&mut found)?;
    if found != BEFORE {
        return Err(EPROTO);
    }
    piece.contents(piece.len())?.write(&AFTER)?;
    server.rdma(RdmaOp::Write, theirs, piece)?;

    // The data are in the server's memory now. Its CPU learns that from a message, which cannot
    // overtake them.
    byte.copy_in(0, &[DONE])?;
    server.send(byte)?;
    match server.received(TIMEOUT_MS)?.message()? {
        [RIGHT] => {}
        _ => return Err(EPROTO),
    }
    // Who sent the last message ends the connection, as only that side knows when it has come.
    let _ = server.received(TIMEOUT_MS);
    pr_info!(
        "{} bytes of the server were read and written\n",
        AFTER.len()
    );
    Ok(())
}

/// The server.
struct Memory;

impl Serve for Memory {
    fn serve(&self, client: Endpoint) -> Result {
        // A key is good only for queue pairs of the region's domain. As each client has a domain of
        // its own, none can use the key of another one.
        let pd = Pd::alloc(&client.id.device()?)?;
        let client = Connection::new(client, &pd)?;
        for _ in 0..2 {
            client.recv(client.buffer(1)?)?;
        }
        client.accept()?;
        // The client speaks first. Now the queue pair can send, and register memory.
        if client.received(TIMEOUT_MS)?.message()? != [BEGIN] {
            return Err(EPROTO);
        }
        let region = client.offer(BEFORE.len(), Access::RemoteReadWrite, false)?;
        region.memory.write(0, &BEFORE)?;
        let mut message = client.buffer(Grant::LEN)?;
        message.copy_in(0, &region.grant()?.to_bytes())?;
        let mut message = client.send(message)?;

        // The client may access the region from now on until it is dropped.
        if client.received(TIMEOUT_MS)?.message()? != [DONE] {
            return Err(EPROTO);
        }
        // First the client's right ends, so that it cannot change what is looked at. The memory
        // stays as long as anything here has it.
        let memory = region.memory.clone();
        drop(region);
        let mut found = [0; AFTER.len()];
        memory.read(0, &mut found)?;
        if found != AFTER {
            return Err(EPROTO);
        }
        message.copy_in(0, &[RIGHT])?;
        message.truncate(1)?;
        client.send(message)?;
        pr_info!("a client has read and written {} bytes\n", found.len());
        Ok(())
    }
}
