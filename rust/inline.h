/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Before all that Makefile.inline gives to clang: what the kernel's configuration has of gcc, and
 * clang does in another way. Per-CPU data above all, which clang would access without its segment.
 */
#include <linux/kconfig.h>
#undef CONFIG_USE_X86_SEG_SUPPORT
#undef CONFIG_CC_HAS_NAMED_AS
#undef CONFIG_CC_HAS_TYPEOF_UNQUAL
