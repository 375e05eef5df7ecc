// SPDX-License-Identifier: GPL-2.0

//! Ping-pong over an unreliable connection: as `pingpong_rc.rs`, but what is lost is lost without
//! notice, so that the client has to notice and to send it again.
//!
//!     server# insmod rdma_pingpong_uc.ko listen=10.0.0.1:4711
//!     client# insmod rdma_pingpong_uc.ko connect=10.0.0.1:4711

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
    type: Roles<Pong, Uc>,
    name: "rdma_pingpong_uc",
    authors: ["The farblk developers"],
    description: "Sample: ping-pong over UC",
    license: "GPL v2",
}

/// How many messages the client sends.
const MESSAGES: u32 = 1000;
/// How long it waits for an answer before it sends the message again.
const PATIENCE_MS: u32 = 500;
/// How many messages may be lost. If all are, the connection is of no use.
const LOST_MAX: u32 = 100;

impl kernel::Module for Roles<Pong, Uc> {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Roles::start(Arc::new(Pong, GFP_KERNEL)?, ping)
    }
}

/// The client.
fn ping(host: &Host, addr: SocketAddr) -> Result {
    // The type of the connection is all that differs here. It also decides what its queue pair can
    // do: there are no RDMA READs and no atomic operations, as these need an answer.
    let end = Endpoint::resolve(host, addr)?;
    let pd = Pd::alloc(&end.id.device()?)?;
    let server: Connection<Uc> = Connection::new(end, &pd)?;
    let mut message = server.buffer(size_of::<u32>())?;
    // A message that finds no receive is lost. So there is one for the answer, and one for an
    // answer that is late: to a message that was sent twice.
    for _ in 0..2 {
        server.recv(server.buffer(size_of::<u32>())?)?;
    }
    server.connect()?;
    let mut lost = 0;
    for number in 0..MESSAGES {
        message.copy_in(0, &number.to_be_bytes())?;
        // A success says that the message has left, and that its buffer may be changed. It does not
        // say that the message arrives. Only the answer does.
        message = server.send(message)?;
        loop {
            match server.received(PATIENCE_MS) {
                Ok(answer) => {
                    let answered = u32::from_be_bytes(answer.message()?);
                    server.recv(answer.buffer)?;
                    match answered == number {
                        true => break,
                        // It is the answer to a message that was sent twice.
                        false if answered < number => continue,
                        false => return Err(EPROTO),
                    }
                }
                Err(ETIMEDOUT) if lost < LOST_MAX => {
                    lost += 1;
                    message = server.send(message)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
    pr_info!("{} messages were answered, {} sent again\n", MESSAGES, lost);
    Ok(())
}

/// The server.
struct Pong;

impl Serve<Uc> for Pong {
    fn serve(&self, client: Endpoint<Uc>) -> Result {
        let pd = Pd::alloc(&client.id.device()?)?;
        let client = Connection::new(client, &pd)?;
        // Each message that finds no receive costs the client its patience.
        for _ in 0..4 {
            client.recv(client.buffer(size_of::<u32>())?)?;
        }
        client.accept()?;
        let mut count = 0;
        // The server keeps no state: an answer that is lost is asked for again.
        while let Ok(ping) = client.received(TIMEOUT_MS) {
            count += 1;
            // A client that has its last answer may go before this side has noted that it was sent.
            let Ok(buffer) = client.send(ping.buffer) else {
                break;
            };
            client.recv(buffer)?;
        }
        pr_info!("{} messages were sent back\n", count);
        Ok(())
    }
}
