// SPDX-License-Identifier: GPL-2.0

//! The backing of exports: memory or a block device.

#![forbid(unsafe_code)]

mod bdev;
mod contents;
mod ram;
mod source;

pub(crate) use crate::server::backend::{
    bdev::{
        Block,
        LastClose, //
    },
    contents::{
        Backend,
        ContentsId, //
    },
    ram::Ram,
    source::Source, //
};
