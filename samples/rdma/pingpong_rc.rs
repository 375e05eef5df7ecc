// SPDX-License-Identifier: GPL-2.0

//! Ping-pong over a reliable connection: the client sends a message, the server sends it back.
//!
//!     server# insmod rdma_pingpong_rc.ko listen=10.0.0.1:4711
//!     client# insmod rdma_pingpong_rc.ko connect=10.0.0.1:4711

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
    type: Roles<Pong>,
    name: "rdma_pingpong_rc",
    authors: ["The farblk developers"],
    description: "Sample: ping-pong over RC",
    license: "GPL v2",
}

/// How many messages the client sends.
const MESSAGES: u32 = 1000;
/// Their length in bytes.
const LEN: usize = 64;

impl kernel::Module for Roles<Pong> {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Roles::start(Arc::new(Pong, GFP_KERNEL)?, ping)
    }
}

/// The client.
fn ping(host: &Host, addr: SocketAddr) -> Result {
    // The address decides which device it is. All objects that follow belong to that one: the
    // domain, in it the queue pair, and the memory that is mapped for it.
    let end = Endpoint::resolve(host, addr)?;
    let pd = Pd::alloc(&end.id.device()?)?;
    let server: Connection = Connection::new(end, &pd)?;
    let mut message = server.buffer(LEN)?;
    // A message needs a receive that was posted before. So there is always one when the answer
    // comes; here the first one.
    server.recv(server.buffer(LEN)?)?;
    server.connect()?;
    for number in 0..MESSAGES {
        let text = [number as u8; LEN];
        message.copy_in(0, &text)?;
        // The message is sent when the server's device has it. Until then the buffer belongs to the
        // work request, so that nobody changes what is being sent.
        message = server.send(message)?;
        let answer = server.received(TIMEOUT_MS)?;
        if answer.message()? != text {
            return Err(EPROTO);
        }
        server.recv(answer.buffer)?;
    }
    pr_info!("{} messages of {} bytes, all as sent\n", MESSAGES, LEN);
    // The connection drops here, which disconnects. So the server knows that this was all.
    Ok(())
}

/// The server.
struct Pong;

impl Serve for Pong {
    fn serve(&self, client: Endpoint) -> Result {
        let pd = Pd::alloc(&client.id.device()?)?;
        let client = Connection::new(client, &pd)?;
        // One is for the next message, while the other one is being sent back.
        for _ in 0..2 {
            client.recv(client.buffer(LEN)?)?;
        }
        client.accept()?;
        let mut count = 0;
        while let Ok(ping) = client.received(TIMEOUT_MS) {
            count += 1;
            // A client that has its last answer may go before that is acknowledged.
            let Ok(buffer) = client.send(ping.buffer) else {
                break;
            };
            client.recv(buffer)?;
        }
        pr_info!("{} messages were sent back\n", count);
        Ok(())
    }
}
