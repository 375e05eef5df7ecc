// SPDX-License-Identifier: GPL-2.0

//! Memory as lists of segments.

pub(crate) use kernel::{
    page::chunks::{
        PageChunks,
        PageChunksBuilder, //
    },
    scatterlist::segment::{
        NoMemory,
        Segment,
        Segmented, //
    }, //
};
