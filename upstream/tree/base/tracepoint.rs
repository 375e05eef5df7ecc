// SPDX-License-Identifier: GPL-2.0

//! Declarations of tracepoints, those of the kernel crate.

pub(crate) use kernel::tracepoint::declare_trace;
