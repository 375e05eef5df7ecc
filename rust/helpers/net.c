// SPDX-License-Identifier: GPL-2.0
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/utsname.h>
#include <net/net_namespace.h>

/* A task that exits has no nsproxy any more. */
__rust_helper struct net *rust_helper_get_current_net(void)
{
	return get_net(current->nsproxy ? current->nsproxy->net_ns : &init_net);
}

__rust_helper struct net *rust_helper_get_net(struct net *net)
{
	return get_net(net);
}

__rust_helper void rust_helper_put_net(struct net *net)
{
	put_net(net);
}

__rust_helper void rust_helper_current_nodename(char *buf, size_t size)
{
	strscpy(buf, (current->nsproxy ? utsname() : init_utsname())->nodename, size);
}
