// SPDX-License-Identifier: GPL-2.0
#include <linux/completion.h>
#include <linux/dma-map-ops.h>
#include <linux/gfp.h>
#include <linux/iommu-dma.h>
#include <linux/irq_poll.h>
#include <linux/irq_work.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/preempt.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/workqueue.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

/*
 * A DMA direction is an int here: bindgen makes the enum an integer for one kernel release and a
 * newtype for another.
 */

/*
 * Where replies to the peer of an id that was made of a connection request go: a GID, and behind it
 * the link address, which decides who receives them; with iWARP the IP address of a TCP connection,
 * as an IPv6 one. The address that the id has is only what the peer says.
 */
__rust_helper void rust_helper_farblk_reply_addr(struct rdma_cm_id *id, u8 addr[24])
{
	struct sa_path_rec *path = id->route.path_rec;
	union ib_gid gid = {};

	memset(addr, 0, 24);
	if (!path) {
		rdma_ip2gid((struct sockaddr *)&id->route.addr.dst_addr, &gid);
		memcpy(addr, gid.raw, 16);
		return;
	}
	memcpy(addr, path->dgid.raw, 16);
	if (sa_path_is_roce(path)) {
		memcpy(addr + 16, path->roce.dmac, ETH_ALEN);
	} else {
		u32 lid = be32_to_cpu(sa_path_get_dlid(path));

		memcpy(addr + 16, &lid, sizeof(lid));
	}
}

__rust_helper int rust_helper_ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
					   const struct ib_send_wr **bad_wr)
{
	return ib_post_send(qp, wr, bad_wr);
}

__rust_helper int rust_helper_ib_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
					   const struct ib_recv_wr **bad_wr)
{
	return ib_post_recv(qp, wr, bad_wr);
}

__rust_helper int rust_helper_ib_post_srq_recv(struct ib_srq *srq, const struct ib_recv_wr *wr,
					       const struct ib_recv_wr **bad_wr)
{
	return ib_post_srq_recv(srq, wr, bad_wr);
}

__rust_helper int rust_helper_ib_poll_cq(struct ib_cq *cq, int num_entries, struct ib_wc *wc)
{
	return ib_poll_cq(cq, num_entries, wc);
}

/* More than 0 if there may be a completion already. */
__rust_helper int rust_helper_farblk_req_notify_cq(struct ib_cq *cq)
{
	return ib_req_notify_cq(cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS);
}

/* The same for the next completion that is solicited. */
__rust_helper int rust_helper_farblk_req_notify_solicited(struct ib_cq *cq)
{
	return ib_req_notify_cq(cq, IB_CQ_SOLICITED | IB_CQ_REPORT_MISSED_EVENTS);
}

/* Unlike ib_destroy_cq(), returns the driver's error, without a warning: then the queue stays. */
__rust_helper int rust_helper_farblk_destroy_cq(struct ib_cq *cq)
{
	return ib_destroy_cq_user(cq, NULL);
}

/*
 * Destroys a queue pair, and takes it from its id before. Unlike rdma_destroy_qp(), returns the
 * error of the driver: then the queue pair stays, and this may be called again. The connection
 * manager uses the queue pair of an id under a lock of its own, which only that function takes. It
 * does nothing but forget the queue pair if that is in use, as it is by a multicast group: so it is
 * made to look.
 */
__rust_helper int rust_helper_farblk_destroy_qp(struct rdma_cm_id *id, struct ib_qp *qp)
{
	int ret;

	if (READ_ONCE(id->qp) == qp) {
		atomic_inc(&qp->usecnt);
		rdma_destroy_qp(id);
		atomic_dec(&qp->usecnt);
	}
	ret = ib_destroy_qp(qp);
	/*
	 * If the driver has refused, the core has given up its reference to the counter before. It
	 * would do so again the next time. A queue pair in use was refused before that.
	 */
	if (ret && !atomic_read(&qp->usecnt))
		qp->counter = NULL;
	return ret;
}

/*
 * Handles at most budget completions, while nobody else does so. Not for IB_POLL_DIRECT. Interrupts
 * that come meanwhile have no effect: the caller has the queue looked at once more.
 */
__rust_helper void rust_helper_farblk_flush_cq(struct ib_cq *cq, int budget)
{
	switch (cq->poll_ctx) {
	case IB_POLL_SOFTIRQ:
		irq_poll_disable(&cq->iop);
		local_bh_disable();
		ib_process_cq_direct(cq, budget);
		local_bh_enable();
		irq_poll_enable(&cq->iop);
		break;
	case IB_POLL_WORKQUEUE:
	case IB_POLL_UNBOUND_WORKQUEUE:
		disable_work_sync(&cq->work);
		ib_process_cq_direct(cq, budget);
		enable_work(&cq->work);
		break;
	default:
		break;
	}
}

__rust_helper u32 rust_helper_ib_inc_rkey(u32 rkey)
{
	return ib_inc_rkey(rkey);
}

__rust_helper bool rust_helper_ib_uses_virt_dma(struct ib_device *dev)
{
	return ib_uses_virt_dma(dev);
}

__rust_helper unsigned int rust_helper_ib_dma_max_seg_size(struct ib_device *dev)
{
	return ib_dma_max_seg_size(dev);
}

/* What can be mapped in one piece: where all memory is bounced, as much as a bounce buffer has. */
__rust_helper size_t rust_helper_farblk_dma_max_mapping_size(struct ib_device *dev)
{
	return ib_uses_virt_dma(dev) ? SIZE_MAX : dma_max_mapping_size(dev->dma_device);
}

/* Returns true if memory that is mapped to this address has to be synced, as long as it is. */
__rust_helper bool rust_helper_farblk_dma_needs_sync(struct ib_device *dev, u64 addr)
{
	return !ib_uses_virt_dma(dev) && dma_need_sync(dev->dma_device, addr);
}

/* Returns true if the device sees a copy of what was mapped to this address. */
__rust_helper bool rust_helper_farblk_dma_is_bounced(struct ib_device *dev, u64 addr)
{
	struct device *dma = dev->dma_device;

	/*
	 * An IOMMU bounces no whole pages. Else a device that shares the CPU's caches needs to be
	 * synced for no other reason. Operations of an architecture that have a sync, as those of
	 * Xen, do not tell for which addresses: there it is all of them.
	 */
	if (ib_uses_virt_dma(dev) || use_dma_iommu(dma))
		return false;
	return dev_is_dma_coherent(dma) && dma_need_sync(dma, addr);
}

/*
 * Returns true if memory may be bounced, and what is bounced need not keep its offset in its page.
 * The drivers of some other devices ask for that; it is not for us to do so.
 */
__rust_helper bool rust_helper_farblk_dma_loses_offsets(struct ib_device *dev)
{
	struct device *dma = dev->dma_device;

	if (ib_uses_virt_dma(dev) || dma_get_min_align_mask(dma) >= PAGE_SIZE - 1)
		return false;
	return dma_max_mapping_size(dma) != SIZE_MAX ||
	       (get_dma_ops(dma) && dma_dev_need_sync(dma));
}

/* A node that has no memory is none: not all that allocates there checks it. */
__rust_helper int rust_helper_farblk_ibdev_to_node(struct ib_device *dev)
{
	int node = ibdev_to_node(dev);

	return node >= 0 && node < MAX_NUMNODES && node_online(node) ? node : NUMA_NO_NODE;
}

/* Returns 0, or a negative errno when the page cannot be mapped. */
__rust_helper int rust_helper_farblk_dma_map_page(struct ib_device *dev, struct page *page,
						  unsigned long offset, size_t size, int direction,
						  u64 *addr)
{
	*addr = ib_dma_map_page(dev, page, offset, size, (enum dma_data_direction)direction);
	return ib_dma_mapping_error(dev, *addr) ? -ENOMEM : 0;
}

__rust_helper void rust_helper_farblk_dma_unmap_page(struct ib_device *dev, u64 addr, size_t size,
						     int direction)
{
	ib_dma_unmap_page(dev, addr, size, (enum dma_data_direction)direction);
}

__rust_helper int rust_helper_farblk_dma_map_sg(struct ib_device *dev, struct scatterlist *sg,
						int nents, int direction)
{
	return ib_dma_map_sg(dev, sg, nents, (enum dma_data_direction)direction);
}

__rust_helper void rust_helper_farblk_dma_unmap_sg(struct ib_device *dev, struct scatterlist *sg,
						   int nents, int direction)
{
	ib_dma_unmap_sg(dev, sg, nents, (enum dma_data_direction)direction);
}

__rust_helper void rust_helper_farblk_dma_sync_for_cpu(struct ib_device *dev, u64 addr, size_t size,
						       int direction)
{
	ib_dma_sync_single_for_cpu(dev, addr, size, (enum dma_data_direction)direction);
}

__rust_helper void rust_helper_farblk_dma_sync_for_device(struct ib_device *dev, u64 addr,
							  size_t size, int direction)
{
	ib_dma_sync_single_for_device(dev, addr, size, (enum dma_data_direction)direction);
}

__rust_helper void rust_helper_ib_update_fast_reg_key(struct ib_mr *mr, u8 newkey)
{
	ib_update_fast_reg_key(mr, newkey);
}

__rust_helper bool rust_helper_rdma_protocol_iwarp(const struct ib_device *dev, u32 port_num)
{
	return rdma_protocol_iwarp(dev, port_num);
}

/*
 * Zeroed; compound, so that a network stack that takes a reference to a tail page is counted. If
 * this may not sleep, it takes only memory that is free, and leaves the reserves alone, also in a
 * task that may use them. NULL also for a node that does not exist or is off line.
 */
__rust_helper struct page *rust_helper_farblk_alloc_pages(int node, unsigned int order,
							  bool may_sleep)
{
	/* The caller can do without large orders, and nobody is to be killed for small ones. */
	gfp_t flags = may_sleep ? GFP_KERNEL | __GFP_RETRY_MAYFAIL : GFP_NOWAIT | __GFP_NOMEMALLOC;

	if (node != NUMA_NO_NODE && !node_online(node))
		return NULL;
	return alloc_pages_node(node, flags | __GFP_ZERO | __GFP_COMP | __GFP_NOWARN, order);
}

/* Zeroed pages that the device reaches as they are; not for one with virtual DMA. */
__rust_helper struct page *rust_helper_farblk_dma_alloc_pages(struct ib_device *dev,
							      unsigned int order, bool may_sleep,
							      int direction, u64 *addr)
{
	gfp_t flags = may_sleep ? GFP_KERNEL | __GFP_RETRY_MAYFAIL : GFP_NOWAIT | __GFP_NOMEMALLOC;

	return dma_alloc_pages(dev->dma_device, PAGE_SIZE << order, addr,
			       (enum dma_data_direction)direction,
			       flags | __GFP_NOWARN);
}

__rust_helper void rust_helper_farblk_dma_free_pages(struct ib_device *dev, struct page *page,
						     unsigned int order, u64 addr, int direction)
{
	dma_free_pages(dev->dma_device, PAGE_SIZE << order, page, addr,
		       (enum dma_data_direction)direction);
}

__rust_helper void rust_helper_farblk_init_irq_work(struct irq_work *work,
						    void (*func)(struct irq_work *work))
{
	init_irq_work(work, func);
}

/*
 * A softirq that is raised in a task wakes ksoftirqd, and waits for it; one that is raised in an
 * interrupt runs at the end of that. So a task has an interrupt of its own. False if there is no
 * need for that, or no such interrupt.
 */
__rust_helper bool rust_helper_farblk_irq_work_queue(struct irq_work *work)
{
#if defined(CONFIG_IRQ_WORK) && !defined(CONFIG_PREEMPT_RT)
	if (!in_interrupt() && arch_irq_work_has_interrupt()) {
		irq_work_queue(work);
		return true;
	}
#endif
	return false;
}

__rust_helper void rust_helper_farblk_irq_work_sync(struct irq_work *work)
{
#ifdef CONFIG_IRQ_WORK
	irq_work_sync(work);
#endif
}

__rust_helper void *rust_helper_farblk_page_address(const struct page *page)
{
	return page_address(page);
}

__rust_helper void rust_helper_farblk_get_page(struct page *page)
{
	get_page(page);
}

__rust_helper void rust_helper_farblk_cond_resched(void)
{
	cond_resched();
}

__rust_helper void rust_helper_farblk_might_sleep(void)
{
	might_sleep();
}

__rust_helper void rust_helper_farblk_sg_set_page(struct scatterlist *sg, struct page *page,
						  unsigned int len, unsigned int offset)
{
	sg_set_page(sg, page, len, offset);
}

/* For an entry that is mapped already, elsewhere. */
__rust_helper void rust_helper_farblk_sg_set_dma(struct scatterlist *sg, u64 addr, unsigned int len)
{
	sg->length = len;
	sg_dma_address(sg) = addr;
	sg_dma_len(sg) = len;
}

__rust_helper void rust_helper_farblk_sg_init_table(struct scatterlist *sg, unsigned int nents)
{
	sg_init_table(sg, nents);
}

__rust_helper void rust_helper_farblk_init_work(struct work_struct *work, work_func_t func)
{
	INIT_WORK(work, func);
}

/* In softirq, on this CPU. */
__rust_helper void rust_helper_farblk_queue_bh_work(struct work_struct *work)
{
	queue_work(system_bh_wq, work);
}

/*
 * Keeps other tasks off this CPU while completions are handled, and the task on it. With PREEMPT_RT
 * the locks of drivers may sleep, so that preemption must stay on: there a task that does the same
 * on this CPU waits, and lends this one its priority.
 */
__rust_helper void rust_helper_farblk_keep_cpu(void)
{
#ifdef CONFIG_PREEMPT_RT
	local_bh_disable();
#else
	preempt_disable();
#endif
}

__rust_helper void rust_helper_farblk_give_up_cpu(void)
{
#ifdef CONFIG_PREEMPT_RT
	local_bh_enable();
#else
	preempt_enable();
#endif
}

/* A queue pair that could not be detached from a group is to be destroyed all the same. */
__rust_helper void rust_helper_farblk_forget_mcast(struct ib_qp *qp)
{
	atomic_dec(&qp->usecnt);
}
