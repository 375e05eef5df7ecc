// SPDX-License-Identifier: GPL-2.0

//! A server that serves each client in a task of its own.

use super::*;

/// The clients that a server has at once, at most: else anybody could use up its memory.
pub(crate) const CLIENTS: usize = 64;

/// What a server does.
pub(crate) trait Serve<T: Connected = Rc>: Send + Sync + 'static {
    /// Returns the reason if a client with these private data is to be refused.
    fn refuses(&self, _private_data: &[u8]) -> Option<&'static [u8]> {
        None
    }

    /// Accepts a client and serves it until it goes. Called in a task of its own.
    fn serve(&self, client: Endpoint<T>) -> Result;
}

/// What a module is: a server, a client that has done its work, or both. The fields drop in this
/// order: the server has connections on the host's devices.
pub(crate) struct Roles<S: Serve<T>, T: Connected = Rc> {
    _server: Option<Server<S, T>>,
    _host: Host,
}

impl<S: Serve<T>, T: Connected> Roles<S, T> {
    /// Serves clients by `service` if the module was told to listen, and then calls `client` if it
    /// was told to connect: a host may be its own client. The module is not loaded if that fails.
    pub(crate) fn start(
        service: Arc<S>,
        client: impl FnOnce(&Host, SocketAddr) -> Result,
    ) -> Result<Self> {
        let host = Host::new()?;
        let server = Server::new(&host, service)?;
        if let Some(addr) = CONNECT.get() {
            client(&host, addr)?;
        }
        Ok(Self {
            _server: server,
            _host: host,
        })
    }
}

/// A server, and its clients. Dropping it ends their connections.
pub(crate) struct Server<S: Serve<T>, T: Connected = Rc>(Arc<Serving<S, T>>);

#[pin_data]
struct Serving<S: Serve<T>, T: Connected> {
    tasks: OwnedQueue,
    #[pin]
    service: Mutex<Option<Arc<S>>>,
    #[pin]
    clients: Mutex<KVec<Arc<Events>>>,
    #[pin]
    listener: Mutex<Option<Listener<T>>>,
}

impl<S: Serve<T>, T: Connected> Server<S, T> {
    /// Listens at the address of the parameter, if there is one.
    pub(crate) fn new(host: &Host, service: Arc<S>) -> Result<Option<Self>> {
        let Some(addr) = LISTEN.get() else {
            return Ok(None);
        };
        let tasks = OwnedQueue::unbound(host.release(), c"rdma_sample")?;
        let clients = KVec::with_capacity(CLIENTS, GFP_KERNEL)?;
        let serving = Arc::pin_init(
            pin_init!(Serving {
                tasks,
                service <- new_mutex!(Some(service)),
                clients <- new_mutex!(clients),
                listener <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )?;
        let this = Self(serving);
        let door = Arc::new(Door(this.0.clone()), GFP_KERNEL)?;
        // Locked until it is there: the device may be removed meanwhile.
        let mut listener = this.0.listener.lock();
        let listening = host.listen(addr, door)?;
        // A service keeps what it has made on a device until it is told that the device goes.
        if listening.device().is_err() {
            pr_err!("listen at an address of one device\n");
            return Err(ENODEV);
        }
        *listener = Some(listening);
        drop(listener);
        Ok(Some(this))
    }
}

impl<S: Serve<T>, T: Connected> Serving<S, T> {
    /// Ends the service: first there are no new clients, then those that are there are let go.
    fn stop(&self) {
        let listener = self.listener.lock().take();
        drop(listener);
        for client in self.clients.lock().iter() {
            client.disconnected();
        }
        let service = self.service.lock().take();
        drop(service);
    }

    /// Serves a client, in a task of its own.
    fn run(&self, service: Arc<S>, client: Endpoint<T>) {
        let events = client.events.clone();
        match service.serve(client) {
            Ok(()) | Err(ECONNRESET) => {}
            Err(error) => pr_warn!("a client is not served: {}\n", errno::name(error)),
        }
        self.clients
            .lock()
            .retain(|client| !Arc::ptr_eq(client, &events));
    }
}

impl<S: Serve<T>, T: Connected> Drop for Server<S, T> {
    fn drop(&mut self) {
        self.0.stop();
        self.0.tasks.flush();
    }
}

/// Receives the requests of clients. The connection manager calls it, and waits for it: so it only
/// has another task serve the client. A client is refused whose request is dropped.
struct Door<S: Serve<T>, T: Connected>(Arc<Serving<S, T>>);

impl<S: Serve<T>, T: Connected> Listen<T> for Door<S, T> {
    fn connect_request(&self, request: ConnectRequest<'_, T>) {
        let accept = || {
            let service = self.0.service.lock().clone().ok_or(ESHUTDOWN)?;
            if let Some(reason) = service.refuses(request.private_data()) {
                request.reject(reason);
                return Ok(());
            }
            let events = Events::new()?;
            let id = request.into_id(events.clone())?;
            let mut clients = self.0.clients.lock();
            clients
                .push_within_capacity(events.clone())
                .map_err(|_| ENOSPC)?;
            drop(clients);
            let serving = self.0.clone();
            let client = Endpoint { id, events };
            self.0.tasks.spawn(move || serving.run(service, client))
        };
        if let Err(error) = accept() {
            pr_warn!("a client is refused: {}\n", errno::name(error));
        }
    }

    fn removed(&self) {
        let serving = self.0.clone();
        if self.0.tasks.spawn(move || serving.stop()).is_err() {
            pr_err!("a device waits for this module to go\n");
        }
    }
}
