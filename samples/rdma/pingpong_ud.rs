// SPDX-License-Identifier: GPL-2.0

//! Ping-pong by datagrams: there is no connection. The server has one queue pair for all clients,
//! and answers each sender. What is lost is sent again, as in `pingpong_uc.rs`.
//!
//!     server# insmod rdma_pingpong_ud.ko listen=10.0.0.1:4711
//!     client# insmod rdma_pingpong_ud.ko connect=10.0.0.1:4711

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
    type: PingPong,
    name: "rdma_pingpong_ud",
    authors: ["The farblk developers"],
    description: "Sample: ping-pong over UD",
    license: "GPL v2",
}

/// How many messages the client sends.
const MESSAGES: u32 = 1000;
/// How long it waits for an answer before it sends the message again.
const PATIENCE_MS: u32 = 500;
/// How many messages may be lost. If all are, nobody is there.
const LOST_MAX: u32 = 100;
/// How many receives the server has: a message that finds none is lost.
const RECEIVES: u32 = 8;

/// A server, a client that has done its work, or both. The fields drop in this order.
struct PingPong {
    _server: Option<Office>,
    _host: Host,
}

impl kernel::Module for PingPong {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let host = Host::new()?;
        let server = Office::open(&host, pong)?;
        if let Some(addr) = CONNECT.get() {
            ping(&host, addr)?;
        }
        Ok(Self {
            _server: server,
            _host: host,
        })
    }
}

/// The client.
fn ping(host: &Host, addr: SocketAddr) -> Result {
    let own = Mailbox::new(host, |id| {
        let resolved = id.resolve(None, addr, TIMEOUT_MS);
        resolved.map_err(|error| error.to_error())
    })?;
    // The connection manager asks the server's which queue pair has the service at this port. The
    // answer has all that a destination needs: the address, the number and the Q_Key.
    let service = own.id.find(&[], TIMEOUT_MS).map_err(|error| {
        pr_err!("cannot find the server: {}\n", error);
        error.to_error()
    })?;
    // An address handle: the address in the form in which the device sends to it.
    let server = own.qp.destination(&service)?;
    // One for the answer, and one for an answer that is late: to a message that was sent twice.
    for _ in 0..2 {
        own.recv(size_of::<u32>())?;
    }
    let mut lost = 0;
    for number in 0..MESSAGES {
        own.send(&server, &number.to_be_bytes())?;
        loop {
            match own.received(PATIENCE_MS) {
                Ok(answer) => {
                    own.recv(size_of::<u32>())?;
                    // Anybody may send to this queue pair: what is no answer is no error either.
                    match answer.message().map(u32::from_be_bytes) {
                        Ok(answered) if answered == number => break,
                        _ => continue,
                    }
                }
                Err(ETIMEDOUT) if lost < LOST_MAX => {
                    lost += 1;
                    own.send(&server, &number.to_be_bytes())?;
                }
                Err(error) => return Err(error),
            }
        }
    }
    pr_info!("{} messages were answered, {} sent again\n", MESSAGES, lost);
    Ok(())
}

/// The server.
fn pong(own: &Mailbox) -> Result {
    for _ in 0..RECEIVES {
        own.recv(size_of::<u32>())?;
    }
    let mut count = 0;
    loop {
        let message = match own.received(TIMEOUT_MS) {
            Ok(message) => message,
            // Nobody has sent anything for a while.
            Err(ETIMEDOUT) => continue,
            Err(_) => break,
        };
        own.recv(size_of::<u32>())?;
        let Ok(number) = message.message::<4>() else {
            continue;
        };
        // The header before the message says where it came from, which is where the answer goes. To
        // make a destination of that may take a look at the network, so it is no handler's work.
        match own.qp.answer_to(&message.sender) {
            Ok(client) => own.send(&client, &number)?,
            Err(error) => {
                pr_warn!("there is no way back: {}\n", errno::name(error));
                continue;
            }
        }
        count += 1;
    }
    pr_info!("{} messages were sent back\n", count);
    Ok(())
}
