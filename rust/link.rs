// SPDX-License-Identifier: GPL-2.0

//! What client and server share of a connection: the control channel and its keys, the cipher
//! of I/O connections, failures in words, status codes.

#![forbid(unsafe_code)]

pub(crate) mod channel;
pub(crate) mod cipher;
pub(crate) mod failure;
pub(crate) mod keys;
pub(crate) mod status;
