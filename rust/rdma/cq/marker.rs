// SPDX-License-Identifier: GPL-2.0

//! The completion behind which a completion queue has handled all that were before it.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::sync::Completion;
use crate::bindings;
use kernel::{
    prelude::*,
    types::Opaque, //
};

/// The completion entry of the work request that drains a queue: it is posted once, behind all
/// others.
///
/// # Invariants
///
/// - `cqe` is the first field, as [`marker_done`] needs it.
#[pin_data]
#[repr(C)]
pub(in crate::rdma) struct Marker {
    pub(super) cqe: Opaque<bindings::ib_cqe>,
    #[pin]
    pub(super) done: Completion,
}

impl Marker {
    /// Creates an initialiser of a marker that was not posted.
    pub(in crate::rdma) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            cqe: Opaque::new(bindings::ib_cqe {
                done: Some(marker_done),
            }),
            done <- Completion::new(),
        })
    }
}

/// Handles the completion of a [`Marker`].
///
/// # Safety
///
/// Must only be called by the RDMA core or a [`AnyCq`](super::AnyCq), once, for the completion of a
/// work request with the `cqe` of a [`Marker`].
unsafe extern "C" fn marker_done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: The caller gives a valid completion, of a marker that its queue pair keeps until no
    // completion of it can come.
    unsafe {
        (*(*wc).__bindgen_anon_1.wr_cqe.cast::<Marker>())
            .done
            .complete()
    };
}
