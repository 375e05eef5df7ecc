// SPDX-License-Identifier: GPL-2.0
/* The tracepoints. bindgen wants their declarations only. */
#ifndef __BINDGEN__
#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#endif
#include <trace/events/farblk.h>
