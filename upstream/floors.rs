// SPDX-License-Identifier: GPL-2.0

//! farblk: what its driver, which is still to come, is built on.

#![crate_name = "farblk"]
#![deny(unsafe_code)]

use kernel::prelude::*;

@MODULES@
module! {
    type: Farblk,
    name: "farblk",
    authors: ["The farblk developers"],
    description: "Remote block device over RDMA",
    license: "GPL v2",
}

/// The module, which does nothing yet but run its tests.
struct Farblk {
    _release: base::workqueue::ReleaseQueue,
    _code: base::users::CodeUsers,
}

impl kernel::Module for Farblk {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let code = base::users::CodeUsers;
        Ok(Self {
            _release: base::workqueue::ReleaseQueue::new(c"farblk_release")?,
            _code: code,
        })
    }
}
