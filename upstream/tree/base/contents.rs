// SPDX-License-Identifier: GPL-2.0

//! The contents of memory that others may write at any time.

pub(crate) use kernel::scatterlist::contents::{
    copy,
    Contents, //
};
