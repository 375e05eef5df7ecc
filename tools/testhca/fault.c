// SPDX-License-Identifier: GPL-2.0
/*
 * What devices are like that are poorer than the best, or that fail. Limits count for devices that
 * are made after a parameter has changed, the rest at once.
 */
#include <linux/moduleparam.h>
#include "testhca.h"

bool thca_hard_interrupt;
module_param_named(hard_interrupt, thca_hard_interrupt, bool, 0644);
MODULE_PARM_DESC(hard_interrupt, "call completion handlers in a hard interrupt, as mlx4 does, not in a softirq");

bool thca_vector_cpus;
module_param_named(vector_cpus, thca_vector_cpus, bool, 0644);
MODULE_PARM_DESC(vector_cpus, "call completion handlers on the CPU of their vector (N)");

static unsigned int max_sge = 32;
module_param(max_sge, uint, 0644);
MODULE_PARM_DESC(max_sge, "segments of a send or receive (32; 3 is what some iWARP devices have)");

static unsigned int max_sge_rd = 32;
module_param(max_sge_rd, uint, 0644);
MODULE_PARM_DESC(max_sge_rd, "segments of an RDMA READ (32; iWARP devices have 1)");

static bool iwarp;
module_param(iwarp, bool, 0644);
MODULE_PARM_DESC(iwarp, "the rules of iWARP: a READ needs a region that the peer may write to, and nothing has immediate data (N)");

static unsigned int max_srq = 1024;
module_param(max_srq, uint, 0644);
MODULE_PARM_DESC(max_srq, "shared receive queues (1024; irdma has 0 before its third generation)");

static bool srq_ops = true;
module_param(srq_ops, bool, 0644);
MODULE_PARM_DESC(srq_ops, "the driver has functions for SRQs, if max_srq is not 0 (Y; a number alone proves nothing)");

static bool mem_mgt = true;
module_param(mem_mgt, bool, 0644);
MODULE_PARM_DESC(mem_mgt, "registers and invalidates memory by work requests (Y)");

static bool remote_inv = true;
module_param(remote_inv, bool, 0644);
MODULE_PARM_DESC(remote_inv, "has SEND with invalidate, which mem_mgt promises (Y)");

static unsigned int max_pages = 512;
module_param(max_pages, uint, 0644);
MODULE_PARM_DESC(max_pages, "pages of a region that a work request registers (512; siw has 256)");

static unsigned int max_wr = THCA_MAX_WR;
module_param(max_wr, uint, 0644);
MODULE_PARM_DESC(max_wr, "work requests of a queue of a queue pair (16384)");

static unsigned int page_sizes = 0xfffff000;
module_param(page_sizes, uint, 0644);
MODULE_PARM_DESC(page_sizes, "sum of the sizes of pages that a region can have (0xfffff000; irdma has 0x40201000)");

static unsigned int max_rd_atom = 16;
module_param(max_rd_atom, uint, 0644);
MODULE_PARM_DESC(max_rd_atom, "RDMA READs of a queue pair at a time, each way (16)");

static unsigned int max_qp;
module_param(max_qp, uint, 0644);
MODULE_PARM_DESC(max_qp, "queue pairs that there can be at a time, at once (0: no bound), as on a device that many share");

static unsigned int vectors;
module_param(vectors, uint, 0644);
MODULE_PARM_DESC(vectors, "completion vectors (0: one for each CPU; simple devices have 1)");

static bool last_wqe = true;
module_param(last_wqe, bool, 0644);
MODULE_PARM_DESC(last_wqe, "tell of the last work request of an SRQ (Y; siw, irdma and qedr do not)");

static unsigned int late_ns;
module_param(late_ns, uint, 0644);
MODULE_PARM_DESC(late_ns, "the most that a completion takes to appear, at random, as on a busy bus (0)");

static unsigned int remove_at;
module_param(remove_at, uint, 0644);
MODULE_PARM_DESC(remove_at, "at this one of the sends to come the device is removed (0: at none)");

static unsigned int lose_ack;
module_param(lose_ack, uint, 0644);
MODULE_PARM_DESC(lose_ack, "the acknowledgment of this one of the messages to come never arrives, as where a link breaks just then (0: of none)");

static unsigned int lose_message;
module_param(lose_message, uint, 0644);
MODULE_PARM_DESC(lose_message, "this one of the messages to come of unreliable connections is lost (0: none)");

static unsigned int drop_mads;
module_param(drop_mads, uint, 0644);
MODULE_PARM_DESC(drop_mads, "percent of the management datagrams that are lost, as on a lossy network (0)");

static unsigned int fail_post;
module_param(fail_post, uint, 0644);
MODULE_PARM_DESC(fail_post, "this one of the sends to come fails to be posted, as if the queue was full (0: none)");

static unsigned int fatal_at;
module_param(fatal_at, uint, 0644);
MODULE_PARM_DESC(fatal_at, "at this one of the sends to come the device fails for good: it executes nothing any more, and refuses all but to destroy (0: at none)");

static bool fatal_silent;
module_param(fatal_silent, bool, 0644);
MODULE_PARM_DESC(fatal_silent, "a device that has failed for good refuses nothing (N)");

static unsigned int fail_modify;
module_param(fail_modify, uint, 0644);
MODULE_PARM_DESC(fail_modify, "so many times a queue pair fails to be modified to ERR, as where firmware does not answer (0)");

static unsigned int reg_ns;
module_param(reg_ns, uint, 0644);
MODULE_PARM_DESC(reg_ns, "what the registration of memory by a work request takes (0)");

static unsigned int fail_inv;
module_param(fail_inv, uint, 0644);
MODULE_PARM_DESC(fail_inv, "this one of the messages to come that invalidate a key fails to do so (0: none)");

static unsigned int lose_cqe;
module_param(lose_cqe, uint, 0644);
MODULE_PARM_DESC(lose_cqe, "this one of the completions to come never appears (0: none of them)");

static unsigned int lose_sent;
module_param(lose_sent, uint, 0644);
MODULE_PARM_DESC(lose_sent, "the completion of this one of the SENDs to come never appears; those that invalidate a key do not count (0: none of them)");

static unsigned int bug;
module_param(bug, uint, 0644);
MODULE_PARM_DESC(bug, "what is wrong in the driver, which tests have to find: 1: access rights do not count, 2: sends complete twice (0: nothing)");

u32 thca_max_sge(void)
{
	return clamp(READ_ONCE(max_sge), 1U, (u32)THCA_MAX_SGE);
}

bool thca_iwarp(void)
{
	return READ_ONCE(iwarp);
}

u32 thca_max_sge_rd(void)
{
	return thca_iwarp() ? 1 : clamp(READ_ONCE(max_sge_rd), 1U, thca_max_sge());
}

u32 thca_max_srq(void)
{
	return READ_ONCE(max_srq);
}

bool thca_has_srq_ops(void)
{
	return READ_ONCE(max_srq) && READ_ONCE(srq_ops);
}

bool thca_mem_mgt(void)
{
	return READ_ONCE(mem_mgt);
}

bool thca_remote_inv(void)
{
	return READ_ONCE(mem_mgt) && READ_ONCE(remote_inv);
}

u32 thca_max_pages(void)
{
	return clamp(READ_ONCE(max_pages), 1U, (u32)THCA_MAX_PAGES);
}

u32 thca_max_wr(void)
{
	return clamp(READ_ONCE(max_wr), 1U, (u32)THCA_MAX_WR);
}

u32 thca_page_sizes(void)
{
	return READ_ONCE(page_sizes) & 0xfffff000;
}

u32 thca_max_rd_atom(void)
{
	return clamp(READ_ONCE(max_rd_atom), 1U, 128U);
}

/* Takes a place for one more queue pair. */
bool thca_take_qp(struct thca_dev *dev)
{
	unsigned int most = READ_ONCE(max_qp);

	if (atomic_inc_return(&dev->nr_qps) <= most || !most)
		return true;
	atomic_dec(&dev->nr_qps);
	thca_count(dev, THCA_FAULTS, 1);
	return false;
}

u32 thca_vectors(void)
{
	return READ_ONCE(vectors) ?: num_possible_cpus();
}

bool thca_has_last_wqe(void)
{
	return READ_ONCE(last_wqe);
}

/* Counts down, in any context, and is true for the last one. */
static bool is_last(struct thca_dev *dev, unsigned int *n)
{
	unsigned int old = READ_ONCE(*n);

	while (old && !try_cmpxchg(n, &old, old - 1))
		;
	if (old == 1)
		thca_count(dev, THCA_FAULTS, 1);
	return old == 1;
}

/* How late the next completion is. */
u64 thca_late_ns(void)
{
	unsigned int most = READ_ONCE(late_ns);

	return most ? get_random_u32_below(most) : 0;
}

/* Whether the requester gives up what the responder has just done. */
bool thca_ack_is_lost(struct thca_dev *dev)
{
	return READ_ONCE(lose_ack) && is_last(dev, &lose_ack);
}

/* Whether a message of an unreliable connection never arrives. */
bool thca_message_is_lost(struct thca_dev *dev)
{
	return READ_ONCE(lose_message) && is_last(dev, &lose_message);
}

u64 thca_reg_ns(void)
{
	return READ_ONCE(reg_ns);
}

bool thca_invalidation_fails(struct thca_dev *dev)
{
	return READ_ONCE(fail_inv) && is_last(dev, &fail_inv);
}

bool thca_completion_is_lost(struct thca_dev *dev)
{
	return READ_ONCE(lose_cqe) && is_last(dev, &lose_cqe);
}

/* Whether the completion of a SEND never appears. */
bool thca_sent_is_lost(struct thca_dev *dev)
{
	return READ_ONCE(lose_sent) && is_last(dev, &lose_sent);
}

bool thca_ignores_rights(void)
{
	return READ_ONCE(bug) == 1;
}

bool thca_completes_twice(void)
{
	return READ_ONCE(bug) == 2;
}

bool thca_mad_is_lost(struct thca_dev *dev)
{
	unsigned int percent = READ_ONCE(drop_mads);

	if (!percent || get_random_u32_below(100) >= percent)
		return false;
	thca_count(dev, THCA_FAULTS, 1);
	return true;
}

bool thca_post_fails(struct thca_dev *dev)
{
	if (READ_ONCE(remove_at) && is_last(dev, &remove_at) && ib_device_try_get(&dev->ib)) {
		ib_unregister_device_queued(&dev->ib);
		ib_device_put(&dev->ib);
	}
	if (READ_ONCE(fatal_at) && is_last(dev, &fatal_at)) {
		struct ib_event event = { .device = &dev->ib, .event = IB_EVENT_DEVICE_FATAL };

		WRITE_ONCE(dev->fatal, true);
		ib_dispatch_event(&event);
	}
	return thca_refuses(dev) || (READ_ONCE(fail_post) && is_last(dev, &fail_post));
}

/* Whether firmware executes no command but those that destroy, and doorbells have no effect. */
bool thca_refuses(const struct thca_dev *dev)
{
	return READ_ONCE(dev->fatal) && !READ_ONCE(fatal_silent);
}

bool thca_modify_to_err_fails(struct thca_dev *dev)
{
	unsigned int old = READ_ONCE(fail_modify);

	while (old && !try_cmpxchg(&fail_modify, &old, old - 1))
		;
	if (old)
		thca_count(dev, THCA_FAULTS, 1);
	return old;
}
