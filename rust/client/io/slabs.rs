// SPDX-License-Identifier: GPL-2.0

//! The memory behind an export of RAM, as the client reaches it.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    page::PAGE_SIZE,
    sync::Arc, //
};

use crate::client::control::{
    Client,
    Deadline, //
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    wire::GRANTS_MAX,
    Geometry,
    GrantReply,
    GrantRequest,
    Malformed, //
};
use crate::rdma::{
    dma::{
        Direction,
        DmaBuffer, //
    },
    wr::RemoteRange, //
};

/// Zeroes that a work request repeats: 32 SGEs of them cover a request of 1 MiB.
const ZEROES: usize = 16 * PAGE_SIZE;

/// Where the slabs are.
pub(in crate::client) struct Slabs {
    geometry: Geometry,
    /// The server's memory; the index is the slab.
    places: KVVec<RemoteRange>,
    /// Zeroes, for requests to write them.
    pub(in crate::client) zeroes: Arc<DmaBuffer>,
}

impl Slabs {
    /// Asks for the memory of all slabs, as long as `go_on` says so. Each answer gives the server as much time
    /// again: there may be many. May sleep.
    pub(in crate::client) fn collect(
        control: &mut Client,
        geometry: Geometry,
        go_on: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let malformed = |Malformed(why)| fail!(EINVAL, "{why}");
        let count = geometry.slabs();
        let capacity = usize::try_from(count).map_err(Error::from)?;
        // At most 16 MiB, as the protocol bounds the number of slabs.
        let mut places = KVVec::with_capacity(capacity, GFP_KERNEL)?;
        while let Some(left @ 1..) = u32::try_from(places.len())
            .ok()
            .and_then(|first| count.checked_sub(first))
        {
            let batch = left.min(u32::try_from(GRANTS_MAX).unwrap_or(1));
            let request = GrantRequest::new(count - left, batch).map_err(malformed)?;
            go_on()?;
            control.call(
                Deadline::start(),
                |sequence, buf| request.encode(sequence, buf),
                |bytes, sequence| {
                    let reply = GrantReply::parse(bytes, sequence, &request, &geometry)?;
                    Ok(reply.iter().try_for_each(|(_, grant)| {
                        let range = RemoteRange {
                            addr: grant.addr,
                            rkey: grant.rkey,
                        };
                        places.push(range, GFP_KERNEL)
                    }))
                },
            )??;
        }
        let device = control.channel().pd().device();
        let zeroes = DmaBuffer::alloc(device, ZEROES, Direction::ToDevice)?;
        Ok(Self {
            geometry,
            places,
            zeroes: Arc::new(zeroes, GFP_KERNEL)?,
        })
    }

    /// The server's memory behind `len` bytes from `offset` on; `None` if it is not all in one slab.
    pub(in crate::client) fn locate(&self, offset: u64, len: u32) -> Option<RemoteRange> {
        let place = self.geometry.locate(offset, len)?;
        let slab = self.places.get(usize::try_from(place.slab).ok()?)?;
        Some(RemoteRange {
            addr: slab.addr.checked_add(place.offset.into())?,
            rkey: slab.rkey,
        })
    }
}
