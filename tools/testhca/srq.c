// SPDX-License-Identifier: GPL-2.0
/* Shared receive queues. */
#include "testhca.h"

int thca_create_srq(struct ib_srq *ib, struct ib_srq_init_attr *init, struct ib_udata *udata)
{
	struct ib_device_attr *attrs = &ib->device->attrs;
	struct ib_srq_attr *attr = &init->attr;

	if (thca_refuses(to_dev(ib->device)))
		return -EIO;
	if (init->srq_type != IB_SRQT_BASIC || !attrs->max_srq)
		return -EOPNOTSUPP;
	if (!attr->max_wr || attr->max_wr > attrs->max_srq_wr ||
	    attr->max_sge > attrs->max_srq_sge || attr->srq_limit > attr->max_wr)
		return -EINVAL;
	to_srq(ib)->rq.limit = attr->srq_limit;
	return thca_rq_init(&to_srq(ib)->rq, attr->max_wr, attr->max_sge);
}

int thca_modify_srq(struct ib_srq *ib, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		    struct ib_udata *udata)
{
	struct thca_rq *rq = &to_srq(ib)->rq;
	unsigned long flags;

	if (mask & ~IB_SRQ_LIMIT)
		return -EOPNOTSUPP;
	if (attr->srq_limit > rq->size)
		return -EINVAL;
	spin_lock_irqsave(&rq->lock, flags);
	rq->limit = attr->srq_limit;
	spin_unlock_irqrestore(&rq->lock, flags);
	return 0;
}

int thca_query_srq(struct ib_srq *ib, struct ib_srq_attr *attr)
{
	struct thca_rq *rq = &to_srq(ib)->rq;

	attr->max_wr = rq->size;
	attr->max_sge = rq->max_sge;
	attr->srq_limit = READ_ONCE(rq->limit);
	return 0;
}

int thca_destroy_srq(struct ib_srq *ib, struct ib_udata *udata)
{
	thca_rq_free(&to_srq(ib)->rq);
	return 0;
}

int thca_post_srq_recv(struct ib_srq *ib, const struct ib_recv_wr *wr,
		       const struct ib_recv_wr **bad)
{
	int ret;

	if (thca_refuses(to_dev(ib->device))) {
		*bad = wr;
		return -EIO;
	}
	for (; wr; wr = wr->next) {
		ret = thca_rq_post(&to_srq(ib)->rq, wr);
		if (ret) {
			*bad = wr;
			return ret;
		}
	}
	return 0;
}
