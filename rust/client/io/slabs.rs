// SPDX-License-Identifier: GPL-2.0

//! The memory of an export of RAM, as the client addresses it.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::client::{
    control::ControlConnection,
    deadline::{
        Deadline,
        CONNECT_TIMEOUT_MS, //
    },
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
use crate::session::clock::is_too_slow;

/// Size of the buffer of zeroes, in bytes. A work request repeats it: 32 SGEs cover a request of 1
/// MiB or more.
const ZEROES: usize = 64 << 10;

/// The most slabs that are asked for at a time.
// CAST: It is a few hundred.
const BATCH: u32 = GRANTS_MAX as u32;

/// The addresses of the slabs of an export.
pub(in crate::client) struct Slabs {
    geometry: Geometry,
    /// The server's memory. The index is the slab.
    slabs: KVVec<RemoteRange>,
    /// A buffer of zeroes, for requests to write zeroes.
    pub(in crate::client) zeroes: Arc<DmaBuffer>,
}

impl Slabs {
    /// Asks the server for the addresses of all slabs. There may be many, so each answer gives the
    /// server as much time again, as long as the answers bring enough of them: else it fails with
    /// `ETIMEDOUT`. Calls `go_on` before each request, and stops with its error. May sleep.
    pub(in crate::client) fn collect(
        control: &mut ControlConnection,
        geometry: Geometry,
        go_on: impl Fn() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let malformed = |Malformed(why)| fail!(EINVAL, "{why}");
        let count = geometry.slabs();
        let capacity = usize::try_from(count).map_err(Error::from)?;
        // At most 16 MiB, as the protocol bounds the number of slabs.
        let mut slabs = KVVec::with_capacity(capacity, GFP_KERNEL)?;
        let began = Deadline::start();
        while let Some(left @ 1..) = u32::try_from(slabs.len())
            .ok()
            .and_then(|first| count.checked_sub(first))
        {
            let batch = left.min(BATCH);
            let request = GrantRequest::new(count - left, batch).map_err(malformed)?;
            go_on()?;
            if is_too_slow(count - left, BATCH, CONNECT_TIMEOUT_MS, began.spent()) {
                return Err(fail!(
                    ETIMEDOUT,
                    "the server grants slabs too slowly: {} of {count} in {} s",
                    count - left,
                    began.spent() / 1000
                ));
            }
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
                        slabs.push(range, GFP_KERNEL)
                    }))
                },
            )??;
        }
        let device = control.channel().pd().device();
        let zeroes = DmaBuffer::alloc(device, ZEROES, Direction::ToDevice)?;
        Ok(Self {
            geometry,
            slabs,
            zeroes: Arc::new(zeroes, GFP_KERNEL)?,
        })
    }

    /// Returns the server's memory for `len` bytes of the export from `offset` on, or `None` if
    /// they are not all in one slab.
    pub(in crate::client) fn locate(&self, offset: u64, len: u32) -> Option<RemoteRange> {
        let place = self.geometry.locate(offset, len)?;
        let slab = self.slabs.get(usize::try_from(place.slab).ok()?)?;
        Some(RemoteRange {
            addr: slab.addr.checked_add(place.offset.into())?,
            rkey: slab.rkey,
        })
    }
}
