// SPDX-License-Identifier: GPL-2.0
/* The C inline functions that floors 0 and 1 need without the block layer and the tracepoints. */
#define __rust_helper

#include "helpers/rdma.c"
#include "helpers/sync.c"
#include "helpers/kernel.c"
#include "helpers/net.c"
