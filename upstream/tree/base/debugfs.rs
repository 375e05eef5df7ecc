// SPDX-License-Identifier: GPL-2.0

//! debugfs, that of the kernel crate.

pub(crate) use kernel::debugfs::{
    Dir,
    File,
    Writer, //
};
