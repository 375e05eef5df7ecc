// SPDX-License-Identifier: GPL-2.0

//! RDMA: devices, queue pairs, memory regions, connections.
//!
//! The rules that make the safe interface sound are these:
//!
//! - A child holds an [`Arc`](kernel::sync::Arc) of each of its parents: [`Device`](device::Device)
//!   of everything, [`Pd`](pd::Pd), [`Cq`](cq::Cq) and [`CmId`](cm::CmId) of a [`Qp`](qp::Qp).
//! - A posted work request owns what it refers to: its owner is moved into the [`Qp`](qp::Qp) and
//!   comes back when the request's completion has been reaped, or when the queue pair is destroyed.
//! - What a device has refused to destroy stays whole until it has given in; see [`remnant`].
//! - A completion's status is a `Result`, so that no error is mistaken for a success.
//! - What a remote peer may access stays allocated and mapped until the [`Mr`](mr::Mr) that lets it
//!   has been deregistered.
//!
//! The page `rdma.rst` explains these rules, the contexts and the order of teardown.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

#![allow(unsafe_code)]

pub(crate) mod ah;
pub(crate) mod client;
pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod dma;
#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
mod kunit;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod quirks;
pub(crate) mod remnant;
pub(crate) mod request;
pub(crate) mod srq;
pub(crate) mod wc;
pub(crate) mod wr;

use crate::bindings;

/// Makes a debug kernel complain if sleeping is not allowed here.
fn might_sleep() {
    // SAFETY: The function has no requirements.
    unsafe { bindings::farblk_might_sleep() };
}

/// Converts a limit that is an `int` in one kernel release and a `u32` in another; a negative one
/// to 0.
fn limit<T: TryInto<u32>>(value: T) -> u32 {
    value.try_into().unwrap_or(0)
}
