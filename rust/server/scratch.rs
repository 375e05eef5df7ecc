// SPDX-License-Identifier: GPL-2.0

//! Scratch regions: memory of the server that a client reads and writes by RDMA to measure round
//! trips. It is no part of an export.
//!
//! A control connection without a login has one at most, so there are no more than half-open
//! connections, and none lasts longer. What all of them have is bounded, and so is the part of each
//! client host, whichever export admits it.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    sync::{
        Arc,
        Mutex, //
    },
};

use crate::base::{
    errno::{
        ENOTCONN,
        EOPNOTSUPP, //
    },
    scatterlist::PageChunks, //
};
use crate::link::channel::{
    Channel,
    Work,
    COMPLETION_TIMEOUT_MS, //
};
use crate::proto::{
    ScratchReply,
    ScratchRequest, //
};
use crate::rdma::{
    dma::{
        Direction,
        SgMapping, //
    },
    mr::{
        Access,
        Mr, //
    },
};
use crate::server::{
    block::adapter::AccountOwner,
    ram::regions::Registration,
    session::Session, //
};
use crate::session::stranger::{
    in_pages,
    may_have_scratch, //
};

/// What the scratch regions of all client hosts have.
#[pin_data]
pub(crate) struct ScratchAccounts {
    /// Whose each region is, and the bytes of its pages.
    #[pin]
    regions: Mutex<KVec<(AccountOwner, u32)>>,
}

impl ScratchAccounts {
    /// Makes an empty list. May sleep.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { regions <- new_mutex!(KVec::new(), "ScratchAccounts::regions") }),
            GFP_KERNEL,
        )
    }

    /// Counts a region of `owner` whose pages have `size` bytes. Fails with `ENOMEM` if that is
    /// more than the owner, or all of them, may have. May sleep.
    pub(super) fn charge(self: &Arc<Self>, owner: AccountOwner, size: u32) -> Result<Charge> {
        let mut regions = self.regions.lock();
        let (mut own, mut all) = (0u32, 0u32);
        for (other, size) in regions.iter() {
            all = all.saturating_add(*size);
            if *other == owner {
                own = own.saturating_add(*size);
            }
        }
        if !may_have_scratch(own, all, size) {
            return Err(ENOMEM);
        }
        regions.push((owner, size), GFP_KERNEL)?;
        Ok(Charge {
            accounts: self.clone(),
            region: (owner, size),
        })
    }
}

/// A region that is counted until this is dropped. The drop may sleep.
pub(super) struct Charge {
    accounts: Arc<ScratchAccounts>,
    region: (AccountOwner, u32),
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut regions = self.accounts.regions.lock();
        if let Some(place) = regions.iter().position(|region| *region == self.region) {
            let _ = regions.remove(place);
        }
    }
}

/// A scratch region. The drop ends the client's access, and sleeps.
pub(super) struct Scratch {
    // Fields drop in this order: the memory is counted as long as it is there.
    mr: Mr,
    atomics: bool,
    _charge: Charge,
}

impl Scratch {
    /// Returns the bytes of the pages that a region takes.
    pub(super) fn footprint(request: &ScratchRequest) -> u32 {
        // CAST: A page has far less than 4 GiB.
        in_pages(request.size(), PAGE_SIZE as u32)
    }

    /// Makes a region of zeroes of the size that was charged, for the client of `channel`. Fails
    /// with `EOPNOTSUPP` if the device cannot let clients access memory, and with the device's
    /// error. May sleep, as long as the device takes to register it.
    pub(super) fn new(channel: &mut Channel<Session>, charge: Charge) -> Result<Self> {
        let (_, size) = charge.region;
        let len = usize::try_from(size)?;
        let pd = channel.pd().clone();
        let device = pd.device();
        let memory = PageChunks::alloc(len, device.numa_node())?;
        let mapping = SgMapping::map(device, &memory, 0, len, Direction::Bidirectional)?;
        let mr = Mr::alloc(&pd, &mapping, Access::RemoteReadWrite);
        // It registers no memory by work requests, or not so much.
        let mr = mr.map_err(|error| if error == EINVAL { EOPNOTSUPP } else { error })?;
        let atomics = device.atomics().is_some();
        let mr = match atomics {
            true => mr.with_atomics()?,
            false => mr,
        };
        channel.post(0, Work::Register, Registration(mr))?;
        let (Registration(mr), result) = channel.take_operation(0, COMPLETION_TIMEOUT_MS)?;
        result.map_err(|error| error.to_error())?;
        Ok(Self {
            mr,
            atomics,
            _charge: charge,
        })
    }

    /// Returns what the client needs to know to access it. Fails with `ENOTCONN` if it cannot.
    pub(super) fn reply(&self) -> Result<ScratchReply> {
        let remote = self.mr.remote().ok_or(ENOTCONN)?;
        Ok(ScratchReply {
            addr: remote.addr,
            rkey: remote.rkey,
            atomics: self.atomics,
        })
    }
}
