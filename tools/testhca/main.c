// SPDX-License-Identifier: GPL-2.0
/* The module: "rdma link add NAME type testhca netdev NETDEV" makes a device. */
#include <linux/module.h>
#include <linux/netdevice.h>
#include <rdma/rdma_netlink.h>
#include "testhca.h"

MODULE_DESCRIPTION("A host channel adapter without a wire, for tests");
MODULE_LICENSE("GPL");

static int netdev_event(struct notifier_block *block, unsigned long event, void *arg)
{
	struct net_device *netdev = netdev_notifier_info_to_dev(arg);
	struct thca_dev *dev = thca_find_netdev(netdev);

	if (!dev)
		return NOTIFY_DONE;
	switch (event) {
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		thca_set_link(dev, ib_get_curr_port_state(netdev) == IB_PORT_ACTIVE);
		break;
	case NETDEV_UNREGISTER:
		ib_unregister_device_queued(&dev->ib);
		break;
	}
	ib_device_put(&dev->ib);
	return NOTIFY_DONE;
}

static struct notifier_block notifier = {
	.notifier_call = netdev_event,
};

static struct rdma_link_ops link_ops = {
	.type = "testhca",
	.newlink = thca_add,
};

static int __init testhca_init(void)
{
	int ret;

	thca_engine_init();
	ret = thca_functions_init();
	if (ret)
		return ret;
	ret = register_netdevice_notifier(&notifier);
	if (ret) {
		thca_functions_exit();
		return ret;
	}
	rdma_link_register(&link_ops);
	return 0;
}

static void __exit testhca_exit(void)
{
	rdma_link_unregister(&link_ops);
	unregister_netdevice_notifier(&notifier);
	thca_functions_exit();
	thca_engine_exit();
}

module_init(testhca_init);
module_exit(testhca_exit);
MODULE_ALIAS_RDMA_LINK("testhca");
