// SPDX-License-Identifier: GPL-2.0

//! Drivers of multi-queue block devices.

pub(crate) use kernel::{
    block::mq::{
        gen_disk::{
            GenDisk,
            GenDiskBuilder, //
        },
        Borrowed,
        Command,
        DiskIdentity,
        DiskNames,
        IdleRequest,
        Limits,
        Operations,
        PrChange,
        PrReport,
        Refused,
        Request,
        TagSet,
        TagSetBuilder,
        Timeout,
        PR_KEYS_MAX, //
    },
    types::Owned, //
};
