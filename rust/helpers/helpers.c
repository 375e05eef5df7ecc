// SPDX-License-Identifier: GPL-2.0
/*
 * One rust_helper_*() per C inline function or macro that Rust code needs and kernel::bindings
 * lacks.
 */
#define __rust_helper

#include "rdma.c"
#include "block.c"
#include "configfs.c"
#include "kernel.c"
#include "sync.c"
#include "net.c"
#include "trace.c"
