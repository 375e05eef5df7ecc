// SPDX-License-Identifier: GPL-2.0

//! The memory regions of an export of RAM, which all of its clients share.
//!
//! The regions of one device and one access are in a protection domain of their own. A client can
//! use them by a queue pair in that domain only, so its access ends with its queue pairs, and a
//! client that comes back finds what was registered before.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        Arc,
        Mutex, //
    },
};

use crate::base::{
    errno::ENOTCONN,
    scatterlist::{
        NoMemory,
        PageChunks, //
    },
    sync::{
        new_irqsave_spinlock,
        Completion,
        IrqSaveSpinLock, //
    },
};
use crate::link::channel::COMPLETION_TIMEOUT_MS;
use crate::proto::Geometry;
use crate::rdma::{
    device::{
        Device,
        DeviceUser, //
    },
    dma::{
        Direction,
        SgMapping, //
    },
    mr::{
        Access,
        Mr, //
    },
    pd::Pd,
    qp::{
        Qp,
        QpHandler, //
    },
    wc::WcError,
    wr::{
        RemoteRange,
        SendOwner, //
    },
};
use crate::server::none;

/// The slot of the one send that a queue pair of a client can have.
const SLOT: u16 = 0;

/// The owner of the registration of a memory region.
pub(in crate::server) struct Registration(Mr);

impl SendOwner for Registration {
    type Memory = NoMemory;

    fn mr(&self) -> Option<&Mr> {
        Some(&self.0)
    }
}

/// The outcome of the registration that a queue pair has under way.
#[pin_data]
pub(in crate::server) struct Registered {
    #[pin]
    done: Completion,
    #[pin]
    outcome: IrqSaveSpinLock<Option<(Mr, Result<(), WcError>)>>,
}

impl Registered {
    /// Makes a place for outcomes. May sleep.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                done <- Completion::new(),
                outcome <- new_irqsave_spinlock!(None, "Registered::outcome"),
            }),
            GFP_KERNEL,
        )
    }

    /// Keeps the outcome of a registration for who waits for it. May sleep.
    pub(super) fn put(&self, Registration(mr): Registration, result: Result<(), WcError>) {
        let before = self.outcome.lock().replace((mr, result));
        self.done.complete();
        drop(before);
    }

    /// Waits for the outcome. May sleep.
    fn wait(&self) -> Result<Mr> {
        self.done.wait_timeout(COMPLETION_TIMEOUT_MS)?;
        let outcome = self.outcome.lock().take();
        let (mr, result) = outcome.ok_or(ENOTCONN)?;
        result.map_err(|error| error.to_error())?;
        Ok(mr)
    }
}

/// A queue pair of a client, by which a slab can be registered.
pub(in crate::server) trait Registrar: QpHandler<Send = Registration> {
    /// Returns the place for the outcome.
    fn registered(&self) -> &Registered;
}

/// What there is as long as the device is.
struct Live {
    // Fields drop in this order: the regions before their domain.
    /// The memory regions, by the index of the slab.
    slabs: KVec<Option<Mr>>,
    memory: Arc<PageChunks>,
    pd: Arc<Pd>,
}

/// The memory regions of an export of RAM on one device, for one access.
#[pin_data]
pub(in crate::server) struct Regions {
    geometry: Geometry,
    access: Access,
    /// `None` once the device is being removed, or [`Regions::revoke`] was called.
    #[pin]
    live: Mutex<Option<Live>>,
}

impl Regions {
    /// Makes the domain of a device, with no slab registered. May sleep.
    fn new(
        device: &Arc<Device>,
        (geometry, memory): (Geometry, &Arc<PageChunks>),
        access: Access,
    ) -> Result<Arc<Self>> {
        let live = Live {
            slabs: none(usize::try_from(geometry.slabs())?)?,
            memory: memory.clone(),
            pd: Pd::alloc(device)?,
        };
        let regions = Arc::pin_init(
            pin_init!(Self {
                geometry,
                access,
                live <- new_mutex!(Some(live), "Regions::live"),
            }),
            GFP_KERNEL,
        )?;
        device.add_user(regions.clone())?;
        Ok(regions)
    }

    /// Returns the domain in which clients have their queue pairs, or `None` if there are no
    /// regions any more. May sleep.
    pub(super) fn pd(&self) -> Option<Arc<Pd>> {
        self.live.lock().as_ref().map(|live| live.pd.clone())
    }

    /// Returns the size of the export and of its slabs.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Registers a slab, by a queue pair of the domain whose connection was made. Returns false if
    /// it was registered before. Fails with `ENOTCONN` if the queue pair fails, and if there are no
    /// regions any more; and with the device's error. May sleep.
    pub(super) fn register<H: Registrar>(&self, qp: &Qp<H>, slab: u32) -> Result<bool> {
        let mut live = self.live.lock();
        let Live { slabs, memory, pd } = (*live).as_mut().ok_or(ENOTCONN)?;
        let Some(place @ None) = slabs.get_mut(usize::try_from(slab)?) else {
            return Ok(false);
        };
        let len = self.geometry.slab_len(slab).ok_or(EINVAL)?;
        let start = u64::from(slab) << self.geometry.shift().get();
        // A memory region consists of whole pages, and so does the allocation.
        let len = usize::try_from(len)?.next_multiple_of(kernel::page::PAGE_SIZE);
        let direction = match self.access {
            Access::RemoteReadWrite => Direction::Bidirectional,
            Access::RemoteRead => Direction::ToDevice,
        };
        let (device, start) = (pd.device(), usize::try_from(start)?);
        let mapping = SgMapping::map(device, memory, start, len, direction)?;
        let mr = Mr::alloc(pd, &mapping, self.access)?;
        qp.reg_mr(SLOT, Registration(mr), true)
            .map_err(|(error, _)| error)?;
        let registered = qp.handler().registered().wait();
        if registered.is_err() {
            // Otherwise a late completion would be attributed to the next region.
            qp.fail();
        }
        *place = Some(registered?);
        Ok(true)
    }

    /// Returns where clients find a slab, or `None` if it is not registered. May sleep.
    pub(super) fn remote(&self, slab: u32) -> Option<RemoteRange> {
        let live = self.live.lock();
        let mr = live.as_ref()?.slabs.get(usize::try_from(slab).ok()?)?;
        mr.as_ref()?.remote()
    }

    /// Ends the access of all clients, and lets go of the device. The connections of those that
    /// should have access fail, and they come back. May sleep.
    pub(super) fn revoke(self: &Arc<Self>) {
        let live = self.live.lock().take();
        if let Some(live) = live {
            live.pd.device().remove_user(self);
        }
    }

    /// Returns true if these are the regions of that device, for that access, and there still are
    /// some. May sleep.
    fn is_of(&self, device: &Arc<Device>, access: Access) -> bool {
        let live = self.live.lock();
        self.access == access
            && live
                .as_ref()
                .is_some_and(|live| Arc::ptr_eq(live.pd.device(), device))
    }
}

impl DeviceUser for Regions {
    fn device_removed(&self) {
        let live = self.live.lock().take();
        drop(live);
    }
}

/// All memory regions of an export of RAM.
pub(crate) struct RegionList(Pin<KBox<Mutex<KVec<Arc<Regions>>>>>);

impl RegionList {
    /// Makes a list of none.
    pub(in crate::server) fn new() -> Result<Self> {
        let list = new_mutex!(KVec::new(), "RegionList::0");
        Ok(Self(KBox::pin_init(list, GFP_KERNEL)?))
    }

    /// Returns the regions of a device for an access. May sleep.
    pub(super) fn get(
        &self,
        device: &Arc<Device>,
        contents: (Geometry, &Arc<PageChunks>),
        access: Access,
    ) -> Result<Arc<Regions>> {
        let mut list = self.0.lock();
        // A device that was removed has none, and the same access may have had to be revoked.
        list.retain(|regions| regions.pd().is_some());
        if let Some(regions) = list.iter().find(|regions| regions.is_of(device, access)) {
            return Ok(regions.clone());
        }
        list.reserve(1, GFP_KERNEL)?;
        let regions = Regions::new(device, contents, access)?;
        // Cannot fail: the capacity was reserved above.
        let _ = list.push_within_capacity(regions.clone());
        Ok(regions)
    }
}

impl Drop for RegionList {
    fn drop(&mut self) {
        // No session is left that could use them.
        self.0.lock().iter().for_each(Regions::revoke);
    }
}
