// SPDX-License-Identifier: GPL-2.0
/* Receive queues: of a queue pair, or shared. */
#include <linux/slab.h>
#include "testhca.h"

int thca_rq_init(struct thca_rq *rq, u32 size, u32 max_sge)
{
	spin_lock_init(&rq->lock);
	rq->size = size;
	rq->max_sge = max_sge;
	rq->stride = struct_size_t(struct thca_rwqe, sge, max_sge);
	if (!size)
		return 0;
	rq->ring = kvcalloc(size, rq->stride, GFP_KERNEL);
	return rq->ring ? 0 : -ENOMEM;
}

void thca_rq_free(struct thca_rq *rq)
{
	kvfree(rq->ring);
}

void thca_rq_reset(struct thca_rq *rq)
{
	unsigned long flags;

	spin_lock_irqsave(&rq->lock, flags);
	rq->head = 0;
	rq->count = 0;
	atomic_set(&rq->used, 0);
	spin_unlock_irqrestore(&rq->lock, flags);
}

/* Adds a receive. */
int thca_rq_post(struct thca_rq *rq, const struct ib_recv_wr *wr)
{
	struct thca_rwqe *wqe;
	unsigned long flags;
	int i, ret = 0;

	if (wr->num_sge < 0 || wr->num_sge > rq->max_sge)
		return -EINVAL;
	spin_lock_irqsave(&rq->lock, flags);
	if (atomic_read(&rq->used) >= rq->size) {
		ret = -ENOMEM;
		goto unlock;
	}
	atomic_inc(&rq->used);
	wqe = rq->ring + (size_t)((rq->head + rq->count++) % rq->size) * rq->stride;
	wqe->wr_id = wr->wr_id;
	wqe->num_sge = wr->num_sge;
	wqe->length = 0;
	for (i = 0; i < wr->num_sge; i++) {
		wqe->sge[i] = wr->sg_list[i];
		wqe->length += wr->sg_list[i].length;
	}
unlock:
	spin_unlock_irqrestore(&rq->lock, flags);
	return ret;
}

/* Takes the next receive; *limit says whether a shared queue has just got below its limit. */
bool thca_rq_pop(struct thca_rq *rq, struct thca_rwqe *to, bool *limit)
{
	struct thca_rwqe *wqe;
	unsigned long flags;
	bool any;

	spin_lock_irqsave(&rq->lock, flags);
	any = rq->count;
	*limit = false;
	if (any) {
		wqe = rq->ring + (size_t)rq->head * rq->stride;
		memcpy(to, wqe, struct_size(wqe, sge, wqe->num_sge));
		if (++rq->head == rq->size)
			rq->head = 0;
		rq->count--;
		if (rq->count < rq->limit) {
			*limit = true;
			rq->limit = 0;
		}
	}
	spin_unlock_irqrestore(&rq->lock, flags);
	return any;
}

int thca_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct thca_qp *qp = to_qp(ib);
	enum ib_qp_state state = READ_ONCE(qp->state);
	int ret = 0;

	if (ib->srq || state == IB_QPS_RESET || thca_refuses(to_dev(ib->device))) {
		*bad = wr;
		return -EINVAL;
	}
	for (; wr; wr = wr->next) {
		ret = thca_rq_post(&qp->rq, wr);
		if (ret) {
			*bad = wr;
			break;
		}
	}
	/* Whether it fails while this runs: then either of both flushes them. */
	smp_mb();
	if (READ_ONCE(qp->state) == IB_QPS_ERR)
		thca_kick(qp);
	return ret;
}
