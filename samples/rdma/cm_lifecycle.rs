// SPDX-License-Identifier: GPL-2.0

//! A connection from its beginning to its end, by the connection manager: what is made when, and in
//! which order it goes. Here it carries nothing.
//!
//!     server# insmod rdma_cm_lifecycle.ko listen=10.0.0.1:4711
//!     client# insmod rdma_cm_lifecycle.ko connect=10.0.0.1:4711

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
    type: Roles<Greeter>,
    name: "rdma_cm_lifecycle",
    authors: ["The farblk developers"],
    description: "Sample: a connection from its beginning to its end",
    license: "GPL v2",
}

/// What a client has to say when it connects, and what it hears if it is refused or accepted.
const HELLO: &[u8] = b"hello";
const REFUSED: &[u8] = b"say hello";
const WELCOME: &[u8] = b"welcome";

impl kernel::Module for Roles<Greeter> {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Roles::start(Arc::new(Greeter, GFP_KERNEL)?, |host, addr| {
            // A server that does not want a client says why.
            match client(host, addr, b"nonsense") {
                Err(CmError::Rejected { private_data, .. })
                    if private_data.starts_with(REFUSED) => {}
                Err(error) => return Err(error.to_error()),
                Ok(()) => return Err(EPROTO),
            }
            // An id is good for one attempt, so the next one begins anew.
            client(host, addr, HELLO).map_err(|error| error.to_error())?;
            pr_info!("the client was refused, then welcome, and has gone\n");
            Ok(())
        })
    }
}

/// Makes the queue pair of `id`, which is bound to a device: first its domain and its completion
/// queue. It holds a reference to all three, so that none of them can go before it.
fn queue_pair(id: &Arc<CmId>, events: &Arc<Events>) -> Result<ObjectRef<Qp<Handler>>> {
    let pd = Pd::alloc(&id.device()?)?;
    let entries = CAPS.send_cqes() + CAPS.recv_cqes();
    let cq = Cq::<Softirq>::alloc(pd.device(), entries, 0)?;
    Qp::create(id, &pd, &cq, &cq, CAPS, Handler(events.clone()))
}

/// The client. Says `hello` when it connects.
fn client(host: &Host, addr: SocketAddr, hello: &[u8]) -> Result<(), CmError> {
    let events = Events::new().map_err(CmError::Errno)?;
    let id = host.id::<Rc>(events.clone()).map_err(CmError::Errno)?;
    // 1. The address leads to a device of this host, and the device to a route. Before that nobody
    //    knows in which device the queue pair is to be.
    id.resolve(None, addr, TIMEOUT_MS)?;
    // 2. The queue pair is there before the connection: the request carries its number, and the
    //    connection manager takes it through its states. Receives can be posted from here on.
    let qp = queue_pair(&id, &events).map_err(CmError::Errno)?;
    // 3. A request, an answer, and a confirmation, which carry some bytes for the two programs.
    let param = ConnParam {
        private_data: hello,
        ..PARAM
    };
    let answer = id.connect(&param, TIMEOUT_MS)?;
    if !answer.starts_with(WELCOME) {
        return Err(CmError::Errno(EPROTO));
    }
    // 4. Both can send now. The end may begin on either side. Here it is the server that ends it:
    //    this side has the answer, but its confirmation may be lost, and the server would get that
    //    only with the next one, in return for its answer, as long as this side is there.
    events
        .wait_lost_for(2 * TIMEOUT_MS)
        .map_err(CmError::Errno)?;
    // This moves the queue pair to its error state, and tells the peer, if that does not know it.
    id.disconnect();
    // 5. What was posted comes back, with an error if it was not done. Only then may the memory go.
    qp.drain().map_err(CmError::Errno)?;
    // 6. The queue pair drops, with it its queue and its domain, then the id. So no event of the id
    //    finds a queue pair that is half gone.
    Ok(())
}

/// The server.
struct Greeter;

impl Serve for Greeter {
    /// Called where the connection manager waits, so it only looks at the request.
    fn refuses(&self, private_data: &[u8]) -> Option<&'static [u8]> {
        // What is behind the client's data is padding.
        (!private_data.starts_with(HELLO)).then_some(REFUSED)
    }

    /// Called in a task of its own, which may wait for the connection manager.
    fn serve(&self, client: Endpoint) -> Result {
        let Endpoint { id, events } = client;
        // The request has told the device, so the id is bound to it already: 2, 3.
        let qp = queue_pair(&id, &events)?;
        let param = ConnParam {
            private_data: WELCOME,
            ..PARAM
        };
        id.accept(&param)?;
        // The connection is made once the client has confirmed it. A client may go before it does.
        // The connection is ended in any case.
        let confirmed = events.established.wait_timeout(TIMEOUT_MS).is_ok();
        // 4, 5, 6.
        id.disconnect();
        qp.drain()?;
        pr_info!("ended a connection, confirmed: {}\n", confirmed);
        Ok(())
    }
}
