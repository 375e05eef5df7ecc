// SPDX-License-Identifier: GPL-2.0

//! C declarations: the RDMA core's and our helpers', mixed with those of `kernel::bindings`.
//!
//! Only floor 1 may name this module.

#![allow(
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unknown_lints,
    unnecessary_transmutes,
    unreachable_pub,
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    unused_imports
)]

use kernel::ffi;
use pin_init::{
    MaybeZeroable,
    Zeroable, //
};

// SAFETY: `__BindgenBitfieldUnit<Storage>` is a newtype around `Storage`.
unsafe impl<Storage> Zeroable for __BindgenBitfieldUnit<Storage> where Storage: Zeroable {}

// Local definitions, such as the full `ib_device`, win over those of the glob.
pub(crate) use kernel::bindings::*;
include!("bindings/bindings_generated.rs");

mod helpers {
    use super::*;
    include!("bindings/bindings_helpers_generated.rs");
}
pub(crate) use helpers::*;

extern "C" {
    /// This module, as C's `THIS_MODULE`.
    pub(crate) static mut __this_module: module;
}
