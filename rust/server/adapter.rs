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

use crate::buddy::{
    CHUNK,
    PIECE_MIN, //
};
use crate::compat;
use crate::debugfs::Show;
use crate::proto::wire::INLINE_MAX;
use crate::rdma::{
    device::Device,
    pd::Pd, //
};
use crate::server::{
    poller::Poller,
    pool::{
        Pool,
        Trim, //
    }, //
};
use crate::ticker::Ticker;
use crate::workqueue::OwnedQueue;

/// Least that is taken with a command, in bytes: a piece of memory.
const INLINE_MIN: u32 = PIECE_MIN as u32;
/// Least memory for data in flight: a chunk for the largest command, and as much for receives.
const POOL_MIN: usize = 2 * CHUNK;

/// A protection domain, in which no memory is open to anybody, a pool of memory, and a poller for each
/// completion vector in use.
#[pin_data]
pub(super) struct Adapter {
    pub(super) pd: Arc<Pd>,
    pool: Arc<Pool>,
    _trimmer: Ticker<Trim>,
    /// Data behind a command that there is room for.
    pub(super) inline_size: u32,
    worker: Arc<OwnedQueue>,
    /// Where commands wait for their backing, and pollers and the pool for memory.
    pub(super) blocked: Arc<OwnedQueue>,
    /// The index is the completion vector.
    #[pin]
    pollers: Mutex<KVec<Option<Arc<Poller>>>>,
}

impl Adapter {
    fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        let vectors = usize::try_from(device.limits().num_comp_vectors.max(1))?;
        let mut pollers = KVec::with_capacity(vectors, GFP_KERNEL)?;
        for _ in 0..vectors {
            pollers.push(None, GFP_KERNEL)?;
        }
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
                pollers <- new_mutex!(pollers, "Adapter::pollers"),
            }),
            GFP_KERNEL,
        )
    }

    /// The poller of completion vector `vector`, modulo their number. May sleep.
    pub(super) fn poller(&self, vector: usize) -> Result<Arc<Poller>> {
        let mut pollers = self.pollers.lock();
        let vector = vector % pollers.len().max(1);
        let place = pollers.get_mut(vector).ok_or(EINVAL)?;
        if let Some(poller) = place {
            return Ok(poller.clone());
        }
        let poller = Poller::new(
            &self.pd,
            vector,
            &self.pool,
            self.inline_size,
            (&self.worker, &self.blocked),
        )?;
        *place = Some(poller.clone());
        Ok(poller)
    }

    /// Lets go of the device. There must be no connections any more.
    fn close(&self) {
        for poller in self.pollers.lock().iter_mut() {
            if let Some(poller) = poller.take() {
                poller.close();
            }
        }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pollers = self.pollers.lock();
        pollers
            .iter()
            .flatten()
            .try_for_each(|poller| poller.show(f))
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
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { list <- new_mutex!(KVec::new(), "Adapters::list") }),
            GFP_KERNEL,
        )
    }

    /// The adapter of a device, which stays as long as somebody uses it. May sleep.
    pub(super) fn get(self: &Arc<Self>, device: &Arc<Device>) -> Result<User> {
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
pub(super) struct User {
    pub(super) adapter: Arc<Adapter>,
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
