// SPDX-License-Identifier: GPL-2.0
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/utsname.h>

__rust_helper void rust_helper_current_nodename(char *buf, size_t size)
{
	strscpy(buf, (current->nsproxy ? utsname() : init_utsname())->nodename, size);
}
