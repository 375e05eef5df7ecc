// SPDX-License-Identifier: GPL-2.0
/*
 * Who is reached by which GID. The core keeps the GID tables, from the addresses of the netdevs,
 * and tells a device what is in its own.
 */
#include <net/ipv6.h>
#include <rdma/ib_cache.h>
#include "testhca.h"

static LIST_HEAD(devices);
static DEFINE_RWLOCK(devices_lock);

void thca_gid_add_device(struct thca_dev *dev)
{
	write_lock_bh(&devices_lock);
	list_add_tail(&dev->node, &devices);
	write_unlock_bh(&devices_lock);
}

void thca_gid_remove_device(struct thca_dev *dev)
{
	write_lock_bh(&devices_lock);
	list_del(&dev->node);
	write_unlock_bh(&devices_lock);
}

int thca_add_gid(const struct ib_gid_attr *attr, void **context)
{
	struct thca_dev *dev = to_dev(attr->device);

	if (attr->index >= THCA_MAX_GIDS)
		return -EINVAL;
	write_lock_bh(&devices_lock);
	dev->gids[attr->index].gid = attr->gid;
	dev->gids[attr->index].valid = true;
	write_unlock_bh(&devices_lock);
	return 0;
}

int thca_del_gid(const struct ib_gid_attr *attr, void **context)
{
	struct thca_dev *dev = to_dev(attr->device);

	if (attr->index >= THCA_MAX_GIDS)
		return -EINVAL;
	write_lock_bh(&devices_lock);
	dev->gids[attr->index].valid = false;
	write_unlock_bh(&devices_lock);
	return 0;
}

void thca_set_link(struct thca_dev *dev, bool up)
{
	write_lock_bh(&devices_lock);
	dev->link_up = up;
	write_unlock_bh(&devices_lock);
}

/* The device that lies on this netdev, registered till ib_device_put(). */
struct thca_dev *thca_find_netdev(const struct net_device *netdev)
{
	struct thca_dev *dev, *found = NULL;

	read_lock_bh(&devices_lock);
	list_for_each_entry(dev, &devices, node)
		if (dev->netdev == netdev && ib_device_try_get(&dev->ib))
			found = dev;
	read_unlock_bh(&devices_lock);
	return found;
}

static bool has_gid(const struct thca_dev *dev, const union ib_gid *gid)
{
	int i;

	for (i = 0; i < THCA_MAX_GIDS; i++)
		if (dev->gids[i].valid && !memcmp(&dev->gids[i].gid, gid, sizeof(*gid)))
			return true;
	return false;
}

/*
 * The core takes the first GID of a device that says that it is iWARP, where GIDs are no addresses.
 * But who gets a packet of ours answers to its source: makes that one that fits to the destination.
 */
void thca_source_gid(struct thca_dev *dev, union ib_gid *sgid, const union ib_gid *dgid)
{
	bool v4 = ipv6_addr_v4mapped((const struct in6_addr *)dgid);
	int i;

	if (!dev->iwarp || ipv6_addr_v4mapped((const struct in6_addr *)sgid) == v4)
		return;
	read_lock_bh(&devices_lock);
	for (i = 0; i < THCA_MAX_GIDS; i++) {
		const union ib_gid *gid = &dev->gids[i].gid;

		if (dev->gids[i].valid && ipv6_addr_v4mapped((const struct in6_addr *)gid) == v4) {
			*sgid = *gid;
			break;
		}
	}
	read_unlock_bh(&devices_lock);
}

/* The queue pair that packets of this device reach there, held till thca_put_qp(). */
struct thca_qp *thca_find_qp(struct thca_dev *from, const union ib_gid *gid, u32 qpn)
{
	struct thca_qp *qp = NULL;
	struct thca_dev *dev;

	read_lock_bh(&devices_lock);
	list_for_each_entry(dev, &devices, node) {
		if (!from->link_up || !dev->link_up || !has_gid(dev, gid))
			continue;
		xa_lock_bh(&dev->qps);
		qp = xa_load(&dev->qps, qpn);
		if (qp)
			atomic_inc(&qp->users);
		xa_unlock_bh(&dev->qps);
		if (qp)
			break;
	}
	read_unlock_bh(&devices_lock);
	if (!qp)
		thca_count(from, THCA_UNREACHABLE, 1);
	return qp;
}

void thca_put_qp(struct thca_qp *qp)
{
	atomic_dec_return_release(&qp->users);
}
