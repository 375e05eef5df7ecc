// SPDX-License-Identifier: GPL-2.0

//! RDMA WRITE with immediate data: the client writes a file into the server's memory, piece by
//! piece. The immediate data tell the server which piece is there.
//!
//!     server# insmod rdma_write_imm.ko listen=10.0.0.1:4711
//!     client# insmod rdma_write_imm.ko connect=10.0.0.1:4711 file=/etc/services

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
    type: Roles<Store>,
    name: "rdma_write_imm",
    authors: ["The farblk developers"],
    description: "Sample: a file by RDMA WRITE with immediate data",
    license: "GPL v2",
}

param!(FILE: Text, "file", "The file that the client sends, of at most 1 MiB");

/// The most bytes that a server takes: the client says how many there are.
const MAX: usize = 1 << 20;
/// The bytes of a piece.
const PIECE: usize = 16 << 10;
/// The pieces that the client may write before it hears that the server has taken them.
const CREDIT: usize = 8;

impl kernel::Module for Roles<Store> {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Roles::start(Arc::new(Store, GFP_KERNEL)?, send)
    }
}

/// The client.
fn send(host: &Host, addr: SocketAddr) -> Result {
    let path = FILE.get().ok_or(EINVAL)?;
    let file = file::read(path.as_c_str(), MAX)?;
    if file.is_empty() {
        return Err(EINVAL);
    }
    let end = Endpoint::resolve(host, addr)?;
    let pd = Pd::alloc(&end.id.device()?)?;
    let server: Connection = Connection::new(end, &pd)?;
    for _ in 0..2 {
        server.recv(server.buffer(Grant::LEN)?)?;
    }
    server.connect()?;
    // The server makes room for the file, and says where.
    let mut message = server.buffer(size_of::<u32>())?;
    // CAST: It has at most MAX bytes.
    message.copy_in(0, &(file.len() as u32).to_be_bytes())?;
    server.send(message)?;
    let answer = server.received(TIMEOUT_MS)?;
    let grant = Grant::from_bytes(answer.message()?);
    server.recv(answer.buffer)?;

    let memory = DmaMemory::alloc(pd.device(), PIECE, pd.device().numa_node())?;
    let mut piece = memory.piece(0, PIECE)?;
    let count = file.len().div_ceil(PIECE);
    for (index, bytes) in file.chunks(PIECE).enumerate() {
        // CAST: Both are small.
        piece.resize(bytes.len() as u32)?;
        piece.contents(piece.len())?.write(bytes)?;
        let theirs = grant.at(index * PIECE, bytes.len())?;
        // The data go where the key says, as with any RDMA WRITE. Only the immediate data take a
        // receive of the server, and wake it.
        piece = server.announce(theirs, index as u32, piece)?;
        // The server has CREDIT receives for pieces. One too many would wait in the device, which
        // tries again and again, until the server has posted another receive.
        if (index + 1) % CREDIT == 0 && index + 1 < count {
            let credit = server.received(TIMEOUT_MS)?;
            server.recv(credit.buffer)?;
        }
    }
    let crc = crypto::crc32c(&[&file], &[]);
    let answer = server.received(TIMEOUT_MS)?;
    if u32::from_be_bytes(answer.message()?) != crc {
        return Err(EPROTO);
    }
    // Who sent the last message ends the connection, as only that side knows when it has come.
    let _ = server.received(TIMEOUT_MS);
    pr_info!("{} bytes were written, crc32c {:08x}\n", file.len(), crc);
    Ok(())
}

/// The server.
struct Store;

impl Serve for Store {
    fn serve(&self, client: Endpoint) -> Result {
        let pd = Pd::alloc(&client.id.device()?)?;
        let client = Connection::new(client, &pd)?;
        // A piece leaves nothing in the buffer of its receive. Only the first message does.
        for _ in 0..CREDIT {
            client.recv(client.buffer(size_of::<u32>())?)?;
        }
        client.accept()?;
        let first = client.received(TIMEOUT_MS)?;
        let len = u32::from_be_bytes(first.message()?) as usize;
        client.recv(first.buffer)?;
        if len == 0 || len > MAX {
            return Err(EPROTO);
        }
        let region = client.offer(len, Access::RemoteReadWrite, false)?;
        let mut message = client.buffer(Grant::LEN)?;
        message.copy_in(0, &region.grant()?.to_bytes())?;
        message = client.send(message)?;

        let count = len.div_ceil(PIECE);
        for index in 0..count {
            let piece = client.received(TIMEOUT_MS)?;
            // A connection keeps the order. What is announced here was written before.
            if piece.immediate != Some(index as u32) {
                return Err(EPROTO);
            }
            // First the receive, then the credit for it.
            client.recv(piece.buffer)?;
            if (index + 1) % CREDIT == 0 && index + 1 < count {
                message = client.send(message)?;
            }
        }
        // The client's right ends, so that nothing of the file changes any more.
        let memory = region.memory.clone();
        drop(region);
        let mut file = VVec::from_elem(0, len, GFP_KERNEL)?;
        memory.read(0, &mut file)?;
        let crc = crypto::crc32c(&[&file], &[]);
        message.copy_in(0, &crc.to_be_bytes())?;
        message.truncate(size_of::<u32>())?;
        client.send(message)?;
        pr_info!("{} bytes in {} pieces, crc32c {:08x}\n", len, count, crc);
        Ok(())
    }
}
