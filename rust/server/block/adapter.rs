// SPDX-License-Identifier: GPL-2.0

//! An adapter: what the server has on an RDMA device for one export of a block device.
//!
//! Exports share no memory, receives or workers, so that a disk that hangs holds up its own export
//! alone.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt, new_mutex,
    sync::{
        Arc,
        Mutex, //
    },
};

use crate::base::{
    compat,
    debugfs::Writer,
    periodic::PeriodicWork,
    workqueue::{
        OwnedQueue,
        ReleaseHandle, //
    }, //
};
use crate::proto::{
    wire::INLINE_MAX,
    Name,
    Protection, //
};
use crate::rdma::{
    device::Device,
    pd::Pd, //
};
use crate::server::{
    block::queue::{
        Poller,
        ReceiveCredit, //
    },
    memory::{
        Budget,
        Client,
        Pool,
        PoolMonitor,
        CHUNK,
        PIECE_MIN, //
    },
};
use crate::session::half_open::Source;

/// The smallest limit of inline data, in bytes: a piece of memory.
const INLINE_MIN: u32 = PIECE_MIN as u32;
/// The most that `poll_us` can be: a worker that polls has its CPU for itself.
const POLL_US_MAX: u32 = 10_000;
/// The smallest budget, in bytes: a chunk for the largest command, and as much for receives.
const POOL_MIN: usize = 2 * CHUNK;

/// The protection domain of an RDMA device, in which no memory is open to any client, its pool of
/// memory, and its pollers: one or several for each completion vector in use.
#[pin_data]
pub(in crate::server) struct Adapter {
    pub(in crate::server) pd: Arc<Pd>,
    /// The export whose commands it serves.
    export: Name,
    /// The protection of what is sent on its connections.
    protection: Protection,
    pool: Arc<Pool>,
    _monitor: PeriodicWork<PoolMonitor>,
    /// The most bytes of inline data.
    pub(in crate::server) inline_size: u32,
    /// How long a poller looks for more commands before it waits for an interrupt.
    poll_us: u32,
    pub(in crate::server) worker: Arc<OwnedQueue>,
    /// The workqueue of what may wait: for the backing device, or for memory.
    pub(in crate::server) maker: Arc<OwnedQueue>,
    #[pin]
    pollers: Mutex<KVec<Arc<Poller>>>,
    /// The client hosts that use it.
    #[pin]
    clients: Mutex<KVec<Sessions>>,
}

/// A client host, as the server tells hosts apart. It is nothing that a client could choose as it
/// likes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum ClientId {
    /// The host that has an entry of this name below `hosts/`.
    Host(Name),
    /// All hosts without an entry that connect from there.
    Source(Source),
}

/// The sessions of a client host.
struct Sessions {
    id: ClientId,
    /// The memory that they have together.
    client: Arc<Client>,
    count: usize,
    /// It had an I/O connection.
    connected: bool,
}

impl Adapter {
    fn new(
        device: &Arc<Device>,
        release: &ReleaseHandle,
        (export, protection): (Name, Protection),
        budget: &Arc<Budget>,
    ) -> Result<Arc<Self>> {
        let inline_size = compat::param(&crate::module_parameters::inline_size);
        let maker = Arc::new(OwnedQueue::unbound(release, c"farblk_bio")?, GFP_KERNEL)?;
        let worker = OwnedQueue::per_cpu(release, c"farblk_poll")?;
        let pool = Pool::new(device, budget, &maker)?;
        Arc::pin_init(
            try_pin_init!(Self {
                pd: Pd::alloc(device)?,
                export,
                protection,
                _monitor: pool.monitor()?,
                pool,
                inline_size: inline_size
                    .clamp(INLINE_MIN, INLINE_MAX)
                    .next_power_of_two(),
                poll_us: compat::param(&crate::module_parameters::poll_us).min(POLL_US_MAX),
                worker: Arc::new(worker, GFP_KERNEL)?,
                maker,
                pollers <- new_mutex!(KVec::new(), "Adapter::pollers"),
                clients <- new_mutex!(KVec::new(), "Adapter::clients"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds a session of a client host, and returns what the host has of the memory. May sleep.
    fn join(&self, id: &ClientId) -> Result<Arc<Client>> {
        let mut clients = self.clients.lock();
        if let Some(sessions) = clients.iter_mut().find(|sessions| sessions.id == *id) {
            sessions.count += 1;
            return Ok(sessions.client.clone());
        }
        let client = Client::new(&self.pool, matches!(id, ClientId::Host(_)))?;
        let sessions = Sessions {
            id: *id,
            client: client.clone(),
            count: 1,
            connected: false,
        };
        clients.push(sessions, GFP_KERNEL)?;
        Ok(client)
    }

    /// Removes a session of a client host. May sleep.
    fn leave(&self, client: &Arc<Client>) {
        let mut clients = self.clients.lock();
        for sessions in clients.iter_mut() {
            if Arc::ptr_eq(&sessions.client, client) {
                sessions.count -= 1;
            }
        }
        clients.retain(|sessions| sessions.count > 0);
    }

    /// Notes that a client host connects. As soon as another one has, too, all of these get
    /// reserved memory, which none can keep from another. Fails if this one does not; the others
    /// are looked at again when the next connection comes. May sleep.
    fn reserve_memory(&self, client: &Arc<Client>) -> Result {
        let mut clients = self.clients.lock();
        for sessions in clients.iter_mut() {
            sessions.connected |= Arc::ptr_eq(&sessions.client, client);
        }
        let connected = || clients.iter().filter(|sessions| sessions.connected);
        match connected().count() {
            0 | 1 => Ok(()),
            _ => {
                for sessions in connected() {
                    let _ = sessions.client.reserve();
                }
                client.reserve()
            }
        }
    }

    /// Reserves `credit` for a connection on completion vector `vector`, modulo their number, with
    /// a poller that at present could keep receives for `max` commands. May sleep.
    pub(super) fn reserve(&self, vector: usize, credit: u16, max: u16) -> Result<ReceiveCredit> {
        let device = self.pd.device();
        let vectors = usize::try_from(device.limits().num_comp_vectors.max(1))?;
        let vector = u32::try_from(vector % vectors)?;
        // A new poller would not have more than the device can do, either.
        let max = max.min(Poller::credit_max(device));
        if max < credit {
            return Err(ENOSPC);
        }
        let mut pollers = self.pollers.lock();
        let reserve = |pollers: &KVec<Arc<Poller>>, max| {
            let mut here = pollers.iter().filter(|poller| poller.vector() == vector);
            here.find_map(|poller| match poller.reserve(credit, max) {
                Err(ENOSPC) => None,
                reserved => Some(reserved),
            })
        };
        if let Some(reserved) = reserve(&pollers, max) {
            return reserved;
        }
        match self.add_poller(&mut pollers, vector, max) {
            Ok(poller) => poller.reserve(credit, max),
            // A connection whose credit cannot grow is better than none.
            Err(error) => reserve(&pollers, credit).unwrap_or(Err(error)),
        }
    }

    fn add_poller(
        &self,
        pollers: &mut KVec<Arc<Poller>>,
        vector: u32,
        max: u16,
    ) -> Result<Arc<Poller>> {
        pollers.reserve(1, GFP_KERNEL)?;
        // Their answers are sealed by another worker of the same CPU.
        let poll_us = match self.protection.is_on() {
            true => 0,
            false => self.poll_us,
        };
        let poller = Poller::new(
            &self.pd,
            (vector, self.pool.next_number(), max),
            &self.pool,
            (self.inline_size, self.protection),
            poll_us,
            (&self.worker, &self.maker),
        )?;
        // A poller that has no connections and still had too few receives is of no use any more.
        pollers.retain(|other| other.vector() != vector || !other.close_if_unused());
        // Cannot fail: the capacity was reserved above.
        let _ = pollers.push_within_capacity(poller.clone());
        Ok(poller)
    }

    /// Releases the device. There must be no connections any more.
    fn close(&self) {
        for poller in self.pollers.lock().drain_all() {
            poller.close();
        }
    }

    /// Shows what the connections did. May sleep, but does not wait for a disk.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pollers = copy(&self.pollers.lock(), Arc::clone)?;
        let mut all = pollers.iter();
        all.try_for_each(|poller| poller.show(&self.export, f))
    }
}

/// Returns references to what is in `list`, which outlive its lock. May sleep.
fn copy<T, R>(list: &KVec<T>, reference: impl Fn(&T) -> R) -> Result<KVec<R>, fmt::Error> {
    let mut copies = KVec::with_capacity(list.len(), GFP_KERNEL).map_err(|_| fmt::Error)?;
    for one in list {
        // Cannot fail: the capacity was reserved above.
        let _ = copies.push_within_capacity(reference(one));
    }
    Ok(copies)
}

/// An adapter and the number of sessions that use it.
struct Entry {
    adapter: Arc<Adapter>,
    users: usize,
}

/// The adapters in use.
#[pin_data]
pub(crate) struct Adapters {
    release: ReleaseHandle,
    #[pin]
    list: Mutex<KVec<Entry>>,
}

impl Adapters {
    /// Makes an empty list.
    pub(in crate::server) fn new(release: &ReleaseHandle) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                release: release.clone(),
                list <- new_mutex!(KVec::new(), "Adapters::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the adapter of an export on a device. It stays until the last [`User`] is dropped.
    /// May sleep.
    pub(in crate::server) fn get(
        self: &Arc<Self>,
        device: &Arc<Device>,
        (export, protection): (&Name, Protection),
        client: &ClientId,
    ) -> Result<User> {
        let mut list = self.list.lock();
        let here = |adapter: &Adapter| Arc::ptr_eq(adapter.pd.device(), device);
        let found = list.iter_mut().find(|entry| {
            let Adapter {
                export: name,
                protection: own,
                ..
            } = &*entry.adapter;
            here(&entry.adapter) && *name == *export && *own == protection
        });
        let (adapter, client) = match found {
            Some(entry) => {
                let client = entry.adapter.join(client)?;
                entry.users += 1;
                (entry.adapter.clone(), client)
            }
            None => {
                let neighbour = list.iter().find(|entry| here(&entry.adapter));
                let budget = match neighbour {
                    Some(entry) => entry.adapter.pool.budget().clone(),
                    None => budget_of_device()?,
                };
                let adapter = Adapter::new(device, &self.release, (*export, protection), &budget)?;
                let client = adapter.join(client)?;
                let entry = Entry {
                    adapter: adapter.clone(),
                    users: 1,
                };
                list.push(entry, GFP_KERNEL)?;
                (adapter, client)
            }
        };
        Ok(User {
            adapter,
            adapters: self.clone(),
            client,
        })
    }
}

/// Makes the budget of a device that has no adapter yet. May sleep.
fn budget_of_device() -> Result<Arc<Budget>> {
    let size = compat::param(&crate::module_parameters::pool_size);
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    Budget::new(size.max(POOL_MIN))
}

/// Prints what the connections did.
pub(crate) struct Connections(pub(crate) Arc<Adapters>);

impl Writer for Connections {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let adapters = copy(&self.0.list.lock(), |entry| entry.adapter.clone())?;
        adapters.iter().try_for_each(|adapter| adapter.show(f))
    }
}

/// The use of an adapter by a session. The drop may sleep.
pub(in crate::server) struct User {
    pub(in crate::server) adapter: Arc<Adapter>,
    adapters: Arc<Adapters>,
    /// What the client host has of the memory.
    pub(in crate::server) client: Arc<Client>,
}

impl User {
    /// Gives its client reserved memory if others have I/O connections, too. May sleep.
    pub(in crate::server) fn reserve_memory(&self) -> Result {
        self.adapter.reserve_memory(&self.client)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.adapter.leave(&self.client);
        let mut list = self.adapters.list.lock();
        let place = list
            .iter()
            .position(|entry| Arc::ptr_eq(&entry.adapter, &self.adapter));
        let Some(place) = place else { return };
        if let Some(entry) = list.get_mut(place) {
            entry.users -= 1;
            if entry.users > 0 {
                return;
            }
        }
        // The lock is held: a session that comes meanwhile makes a new adapter afterwards.
        let last = list.remove(place);
        self.adapter.close();
        drop(last);
    }
}
