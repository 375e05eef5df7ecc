// SPDX-License-Identifier: GPL-2.0
/* A device: its registration, and what it says of itself. */
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <net/addrconf.h>
#include <rdma/ib_mad.h>
#include "testhca.h"

/* Held while a device is being made. */
DEFINE_MUTEX(thca_link_mutex);

static int query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *udata)
{
	struct thca_dev *dev = to_dev(ib);

	*attr = (struct ib_device_attr) {
		.sys_image_guid = ib->node_guid,
		.max_mr_size = ~0ULL,
		.page_size_cap = dev->page_sizes,
		.vendor_id = 0,
		.max_qp = THCA_MAX_QP,
		.max_qp_wr = dev->max_wr,
		.device_cap_flags = (dev->mem_mgt ? IB_DEVICE_MEM_MGT_EXTENSIONS : 0) |
				    IB_DEVICE_RC_RNR_NAK_GEN | IB_DEVICE_CURR_QP_STATE_MOD | IB_DEVICE_SYS_IMAGE_GUID |
				    IB_DEVICE_PORT_ACTIVE_EVENT,
		.kernel_cap_flags = IBK_LOCAL_DMA_LKEY | IBK_ALLOW_USER_UNREG,
		.max_send_sge = dev->max_sge,
		.max_recv_sge = dev->max_sge,
		.max_sge_rd = dev->max_sge_rd,
		.max_cq = THCA_MAX_QP * 2,
		.max_cqe = THCA_MAX_CQE,
		.max_mr = THCA_MAX_MR - 1,
		.max_pd = 65536,
		.max_qp_rd_atom = dev->max_rd_atom,
		.max_res_rd_atom = THCA_MAX_QP * dev->max_rd_atom,
		.max_qp_init_rd_atom = dev->max_rd_atom,
		.atomic_cap = IB_ATOMIC_HCA,
		.masked_atomic_cap = IB_ATOMIC_HCA,
		.max_ah = 65536,
		.max_mcast_grp = 65536,
		.max_mcast_qp_attach = 65536,
		.max_total_mcast_qp_attach = 65536,
		.max_srq = dev->max_srq,
		/* irdma has a number here even where it has no SRQ. */
		.max_srq_wr = THCA_MAX_WR,
		.max_srq_sge = dev->max_sge,
		.max_fast_reg_page_list_len = dev->max_pages,
		.max_pkeys = 1,
		.local_ca_ack_delay = 0,
	};
	return 0;
}

static int query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	struct net_device *netdev = ib_device_get_netdev(ib, port);

	if (!netdev)
		return -ENODEV;
	attr->state = ib_get_curr_port_state(netdev);
	attr->phys_state = attr->state == IB_PORT_ACTIVE ? IB_PORT_PHYS_STATE_LINK_UP :
							   IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_4096;
	attr->gid_tbl_len = THCA_MAX_GIDS;
	attr->port_cap_flags = IB_PORT_CM_SUP;
	attr->max_msg_sz = THCA_MAX_MSG;
	attr->pkey_tbl_len = 1;
	attr->max_vl_num = 1;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_EDR;
	dev_put(netdev);
	return 0;
}

static int query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = IB_DEFAULT_PKEY_FULL;
	return 0;
}

static int get_port_immutable(struct ib_device *ib, u32 port, struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	/* Users that look for it keep its rules; connections are made as ever. */
	if (to_dev(ib)->iwarp)
		immutable->core_cap_flags |= RDMA_CORE_CAP_PROT_IWARP;
	immutable->pkey_tbl_len = 1;
	immutable->gid_tbl_len = THCA_MAX_GIDS;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device *ib, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return thca_refuses(to_dev(pd->device)) ? -EIO : 0;
}

static int dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

/* The device is no longer registered, and nobody uses it. */
static void dealloc_driver(struct ib_device *ib)
{
	struct thca_dev *dev = to_dev(ib);

	thca_gid_remove_device(dev);
	WARN_ON(!xa_empty(&dev->qps));
	WARN_ON(!xa_empty(&dev->mrs));
	xa_destroy(&dev->qps);
	xa_destroy(&dev->mrs);
	thca_function_put(dev->function);
}

static const struct ib_device_ops ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,

	.add_gid = thca_add_gid,
	.alloc_hw_port_stats = thca_alloc_hw_port_stats,
	.alloc_mr = thca_alloc_mr,
	.alloc_pd = alloc_pd,
	.attach_mcast = thca_attach_mcast,
	.create_ah = thca_create_ah,
	.create_cq = thca_create_cq,
	.create_qp = thca_create_qp,
	.dealloc_driver = dealloc_driver,
	.dealloc_pd = dealloc_pd,
	.del_gid = thca_del_gid,
	.dereg_mr = thca_dereg_mr,
	.destroy_ah = thca_destroy_ah,
	.destroy_cq = thca_destroy_cq,
	.destroy_qp = thca_destroy_qp,
	.detach_mcast = thca_detach_mcast,
	.get_dma_mr = thca_get_dma_mr,
	.get_hw_stats = thca_get_hw_stats,
	.get_link_layer = get_link_layer,
	.get_port_immutable = get_port_immutable,
	.map_mr_sg = thca_map_mr_sg,
	.modify_qp = thca_modify_qp,
	.poll_cq = thca_poll_cq,
	.post_recv = thca_post_recv,
	.post_send = thca_post_send,
	.query_device = query_device,
	.query_pkey = query_pkey,
	.query_port = query_port,
	.query_qp = thca_query_qp,
	.reg_user_mr = thca_reg_user_mr,
	.req_notify_cq = thca_req_notify_cq,

	INIT_RDMA_OBJ_SIZE(ib_ah, thca_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, thca_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, thca_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, thca_qp, ib),
};

/* A device without shared receive queues has none of these, as drivers have it. */
static const struct ib_device_ops srq_ops = {
	.create_srq = thca_create_srq,
	.destroy_srq = thca_destroy_srq,
	.modify_srq = thca_modify_srq,
	.post_srq_recv = thca_post_srq_recv,
	.query_srq = thca_query_srq,

	INIT_RDMA_OBJ_SIZE(ib_srq, thca_srq, ib),
};

static void init(struct thca_dev *dev, struct net_device *netdev)
{
	struct ib_device *ib = &dev->ib;

	xa_init_flags(&dev->qps, XA_FLAGS_ALLOC | XA_FLAGS_LOCK_BH);
	xa_init_flags(&dev->mrs, XA_FLAGS_ALLOC | XA_FLAGS_LOCK_BH);
	spin_lock_init(&dev->wire_lock);
	/* Numbers of two devices should differ: a mistake shows then. */
	dev->next_qpn = get_random_u32_inclusive(2, 0xffff);
	dev->next_mr = get_random_u32_inclusive(1, THCA_MAX_MR / 2);
	dev->netdev = netdev;
	dev->link_up = ib_get_curr_port_state(netdev) == IB_PORT_ACTIVE;
	dev->max_sge = thca_max_sge();
	dev->max_sge_rd = thca_max_sge_rd();
	dev->max_srq = thca_max_srq();
	dev->mem_mgt = thca_mem_mgt();
	dev->remote_inv = thca_remote_inv();
	dev->iwarp = thca_iwarp();
	dev->max_pages = thca_max_pages();
	dev->max_wr = thca_max_wr();
	dev->page_sizes = thca_page_sizes();
	dev->max_rd_atom = thca_max_rd_atom();

	strscpy(ib->node_desc, "testhca", sizeof(ib->node_desc));
	ib->node_type = RDMA_NODE_IB_CA;
	ib->phys_port_cnt = 1;
	ib->num_comp_vectors = thca_vectors();
	ib->local_dma_lkey = THCA_DMA_LKEY;
	ib->dev.parent = thca_function_device(dev->function);
	addrconf_addr_eui48((u8 *)&ib->node_guid, netdev->dev_addr);
	ib_set_device_ops(ib, &ops);
	if (thca_has_srq_ops())
		ib_set_device_ops(ib, &srq_ops);
}

/* Makes a device over a netdev. */
int thca_add(const char *name, struct net_device *netdev)
{
	struct thca_dev *dev;
	int ret;

	if (netdev->addr_len != ETH_ALEN)
		return -EINVAL;
	dev = thca_find_netdev(netdev);
	if (dev) {
		ib_device_put(&dev->ib);
		return -EEXIST;
	}
	dev = ib_alloc_device(thca_dev, ib);
	if (!dev)
		return -ENOMEM;
	mutex_lock(&thca_link_mutex);
	dev->function = thca_function_get(dev);
	if (!dev->function) {
		/* Without its operations there is nothing yet that dealloc_driver() would undo. */
		ret = -ENXIO;
		ib_dealloc_device(&dev->ib);
		goto unlock;
	}
	init(dev, netdev);
	dev->domain = thca_domain(thca_function_device(dev->function));
	thca_gid_add_device(dev);
	ret = ib_device_set_netdev(&dev->ib, netdev, 1);
	if (!ret) {
		ib_mark_name_assigned_by_user(&dev->ib);
		ret = ib_register_device(&dev->ib, name, thca_function_device(dev->function));
	}
	if (ret)
		ib_dealloc_device(&dev->ib);
unlock:
	mutex_unlock(&thca_link_mutex);
	return ret;
}
