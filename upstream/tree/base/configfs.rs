// SPDX-License-Identifier: GPL-2.0

//! configfs: kernel objects that user space creates with `mkdir(2)` and configures through files.

pub(crate) use kernel::configfs::{
    Attribute,
    Dependent,
    Group,
    GroupOperations,
    NewGroup,
    NoChild,
    PageWriter,
    Subsystem, //
};
