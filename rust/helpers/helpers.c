// SPDX-License-Identifier: GPL-2.0
/*
 * One rust_helper_*() per C inline function or macro that Rust code needs and kernel::bindings
 * lacks.
 */
#ifndef __rust_helper
#define __rust_helper
#endif

#include "rdma.c"
#include "block.c"
#include "configfs.c"
#include "kernel.c"
#include "sync.c"
#include "net.c"
#ifdef __BINDGEN__
#include "trace.c"
#endif
