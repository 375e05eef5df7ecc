// SPDX-License-Identifier: GPL-2.0

//! What the server has on an RDMA device for the exports of block devices.

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
    debugfs::Show,
    periodic::PeriodicWork,
    workqueue::OwnedQueue, //
};
use crate::proto::wire::INLINE_MAX;
use crate::rdma::{
    device::Device,
    pd::Pd, //
};
use crate::server::{
    block::poller::{
        Poller,
        Seat, //
    },
    memory::{
        buddy::{
            CHUNK,
            PIECE_MIN, //
        },
        pool::{
            Pool,
            Trim, //
        },
    },
};

/// Least that is taken with a command, in bytes: a piece of memory.
const INLINE_MIN: u32 = PIECE_MIN as u32;
/// Least memory for data in flight: a chunk for the largest command, and as much for receives.
const POOL_MIN: usize = 2 * CHUNK;

/// A protection domain, in which no memory is open to anybody, a pool of memory, and a poller for each
/// completion vector in use, or several.
#[pin_data]
pub(in crate::server) struct Adapter {
    pub(in crate::server) pd: Arc<Pd>,
    pool: Arc<Pool>,
    _trimmer: PeriodicWork<Trim>,
    /// Data behind a command that there is room for.
    pub(in crate::server) inline_size: u32,
    worker: Arc<OwnedQueue>,
    /// Where commands wait for their backing, and pollers and the pool for memory.
    pub(in crate::server) blocked: Arc<OwnedQueue>,
    #[pin]
    pollers: Mutex<KVec<Arc<Poller>>>,
}

impl Adapter {
    fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        let parameters = &crate::module_parameters::pool_size;
        let size = usize::try_from(compat::param(parameters)).unwrap_or(usize::MAX);
        let inline_size = compat::param(&crate::module_parameters::inline_size);
        let blocked = Arc::new(OwnedQueue::unbound(c"farblk_bio")?, GFP_KERNEL)?;
        let pool = Pool::new(device, size.max(POOL_MIN), &blocked)?;
        Arc::pin_init(
            try_pin_init!(Self {
                pd: Pd::alloc(device)?,
                _trimmer: pool.trimmer()?,
                pool,
                inline_size: inline_size
                    .clamp(INLINE_MIN, INLINE_MAX)
                    .next_power_of_two(),
                worker: Arc::new(OwnedQueue::per_cpu(c"farblk_poll")?, GFP_KERNEL)?,
                blocked,
                pollers <- new_mutex!(KVec::new(), "Adapter::pollers"),
            }),
            GFP_KERNEL,
        )
    }

    /// A place for a connection with a poller of completion vector `vector`, modulo their number, with
    /// receives for `credit` commands, and for now with room for `most`. May sleep.
    pub(in crate::server) fn seat(&self, vector: usize, credit: u16, most: u16) -> Result<Seat> {
        let device = self.pd.device();
        let vectors = usize::try_from(device.limits().num_comp_vectors.max(1))?;
        let vector = u32::try_from(vector % vectors)?;
        // What no poller could have would not be found in a new one either.
        let most = most.min(Poller::credit_max(device));
        if most < credit {
            return Err(ENOSPC);
        }
        let mut pollers = self.pollers.lock();
        let seat = |pollers: &KVec<Arc<Poller>>, most| {
            let mut here = pollers.iter().filter(|poller| poller.vector() == vector);
            here.find_map(|poller| match poller.seat(credit, most) {
                Err(ENOSPC) => None,
                seat => Some(seat),
            })
        };
        if let Some(seat) = seat(&pollers, most) {
            return seat;
        }
        match self.add_poller(&mut pollers, vector, most) {
            Ok(poller) => poller.seat(credit, most),
            // Rather less room than no connection.
            Err(error) => seat(&pollers, credit).unwrap_or(Err(error)),
        }
    }

    fn add_poller(
        &self,
        pollers: &mut KVec<Arc<Poller>>,
        vector: u32,
        most: u16,
    ) -> Result<Arc<Poller>> {
        pollers.reserve(1, GFP_KERNEL)?;
        let poller = Poller::new(
            &self.pd,
            (vector, self.pool.next_number(), most),
            &self.pool,
            self.inline_size,
            (&self.worker, &self.blocked),
        )?;
        // Those that had no room, although they have no connections, are of no use any more.
        pollers.retain(|other| other.vector() != vector || !other.retire());
        // There is room.
        let _ = pollers.push_within_capacity(poller.clone());
        Ok(poller)
    }

    /// Lets go of the device. There must be no connections any more.
    fn close(&self) {
        for poller in self.pollers.lock().drain_all() {
            poller.close();
        }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pollers = self.pollers.lock();
        pollers.iter().try_for_each(|poller| poller.show(f))
    }
}

/// An adapter, and how many sessions use it.
struct Entry {
    adapter: Arc<Adapter>,
    users: usize,
}

/// The adapters in use.
#[pin_data]
pub(crate) struct Adapters {
    #[pin]
    list: Mutex<KVec<Entry>>,
}

impl Adapters {
    /// None yet.
    pub(in crate::server) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { list <- new_mutex!(KVec::new(), "Adapters::list") }),
            GFP_KERNEL,
        )
    }

    /// The adapter of a device, which stays as long as somebody uses it. May sleep.
    pub(in crate::server) fn get(self: &Arc<Self>, device: &Arc<Device>) -> Result<User> {
        let mut list = self.list.lock();
        let found = list
            .iter_mut()
            .find(|entry| Arc::ptr_eq(entry.adapter.pd.device(), device));
        let adapter = match found {
            Some(entry) => {
                entry.users += 1;
                entry.adapter.clone()
            }
            None => {
                let adapter = Adapter::new(device)?;
                let entry = Entry {
                    adapter: adapter.clone(),
                    users: 1,
                };
                list.push(entry, GFP_KERNEL)?;
                adapter
            }
        };
        Ok(User {
            adapter,
            adapters: self.clone(),
        })
    }
}

impl Show for Adapters {
    /// What the connections did. May sleep.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = self.list.lock();
        list.iter().try_for_each(|entry| entry.adapter.show(f))
    }
}

/// The use of an adapter. Dropping it may sleep.
pub(in crate::server) struct User {
    pub(in crate::server) adapter: Arc<Adapter>,
    adapters: Arc<Adapters>,
}

impl Drop for User {
    fn drop(&mut self) {
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
        // With the lock held: the next one to come makes a new one.
        let last = list.remove(place);
        self.adapter.close();
        drop(last);
    }
}
