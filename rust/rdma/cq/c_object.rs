// SPDX-License-Identifier: GPL-2.0

//! The C object of a completion queue.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    interrupt::comp_handler,
    AnyCq, //
};
use crate::bindings;
use crate::rdma::device::Device;
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    error::from_err_ptr,
    prelude::*, //
};

impl AnyCq {
    /// Makes a queue whose completions the core handles, in context `poll_ctx`.
    pub(super) fn alloc_raw(
        device: &Device,
        entries: u32,
        vector: u32,
        poll_ctx: bindings::ib_poll_context,
    ) -> Result<NonNull<bindings::ib_cq>> {
        // SAFETY: The device is registered by its invariants, and the name is static.
        let raw = from_err_ptr(unsafe {
            bindings::__ib_alloc_cq(
                device.as_raw(),
                core::ptr::null_mut(),
                i32::try_from(entries)?,
                i32::try_from(vector)?,
                poll_ctx,
                device.owner().name().as_char_ptr(),
            )
        })?;
        NonNull::new(raw).ok_or(ENOMEM)
    }

    /// Makes a queue that does nothing but call [`comp_handler`], for `this`.
    pub(super) fn create_raw(
        device: &Device,
        entries: u32,
        vector: u32,
        this: NonNull<Self>,
    ) -> Result<NonNull<bindings::ib_cq>> {
        let attr = bindings::ib_cq_init_attr {
            cqe: entries,
            comp_vector: vector,
            ..Default::default()
        };
        // SAFETY: The device is registered by its invariants, and the name is static. The context
        // is initialised before the queue has a queue pair, and until then there is no interrupt.
        let raw = from_err_ptr(unsafe {
            bindings::__ib_create_cq(
                device.as_raw(),
                Some(comp_handler),
                None,
                this.as_ptr().cast::<c_void>(),
                &attr,
                device.owner().name().as_char_ptr(),
            )
        })?;
        NonNull::new(raw).ok_or(ENOMEM)
    }
}
