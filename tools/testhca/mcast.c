// SPDX-License-Identifier: GPL-2.0
/* Multicast groups: what is sent to one arrives at each queue pair that is attached to it. */
#include <linux/slab.h>
#include "testhca.h"

struct member {
	struct list_head node;
	union ib_gid gid;
	struct thca_qp *qp;
};

static LIST_HEAD(members);
static DEFINE_RWLOCK(members_lock);

static struct member *find(const struct thca_qp *qp, const union ib_gid *gid)
{
	struct member *member;

	list_for_each_entry(member, &members, node)
		if (member->qp == qp && !memcmp(&member->gid, gid, sizeof(*gid)))
			return member;
	return NULL;
}

int thca_attach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid)
{
	struct member *member = kmalloc_obj(*member);
	int ret = 0;

	if (!member)
		return -ENOMEM;
	member->gid = *gid;
	member->qp = to_qp(ib);
	write_lock_bh(&members_lock);
	if (find(member->qp, gid))
		ret = -EINVAL;
	else
		list_add_tail(&member->node, &members);
	write_unlock_bh(&members_lock);
	if (ret)
		kfree(member);
	return ret;
}

int thca_detach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid)
{
	struct member *member;

	write_lock_bh(&members_lock);
	member = find(to_qp(ib), gid);
	if (member)
		list_del(&member->node);
	write_unlock_bh(&members_lock);
	kfree(member);
	return member ? 0 : -EINVAL;
}

/* Sends a datagram to all members. The core destroys no queue pair that is attached to a group. */
enum ib_wc_status thca_send_mcast(struct thca_qp *qp, struct thca_swqe *wqe, u32 qkey,
				  struct list_head *fire)
{
	struct thca_dev *dev = to_dev(qp->ib.device);
	enum ib_wc_status status = IB_WC_SUCCESS;
	struct member *member;

	read_lock_bh(&members_lock);
	list_for_each_entry(member, &members, node) {
		if (memcmp(&member->gid, &wqe->ud.dgid, sizeof(member->gid)) || !dev->link_up ||
		    !to_dev(member->qp->ib.device)->link_up)
			continue;
		status = thca_deliver(qp, wqe, member->qp, qkey, fire);
		if (status != IB_WC_SUCCESS)
			break;
	}
	read_unlock_bh(&members_lock);
	return status;
}
