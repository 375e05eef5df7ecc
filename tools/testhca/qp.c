// SPDX-License-Identifier: GPL-2.0
/* Queue pairs, and their states. */
#include <linux/delay.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>
#include "testhca.h"

static int qp_check(struct ib_device *ib, struct ib_qp_init_attr *init)
{
	struct ib_device_attr *attrs = &ib->attrs;
	struct ib_qp_cap *cap = &init->cap;

	if (init->create_flags)
		return -EOPNOTSUPP;
	if (!thca_is_connected_type(init->qp_type) && init->qp_type != IB_QPT_UD &&
	    init->qp_type != IB_QPT_GSI)
		return -EOPNOTSUPP;
	/* iWARP has reliable connections alone. */
	if (init->qp_type == IB_QPT_UC && to_dev(ib)->iwarp)
		return -EOPNOTSUPP;
	if (!init->send_cq || !init->recv_cq)
		return -EINVAL;
	if (cap->max_send_wr > attrs->max_qp_wr || cap->max_send_sge > attrs->max_send_sge ||
	    cap->max_inline_data > THCA_MAX_INLINE)
		return -EINVAL;
	if (!init->srq && (cap->max_recv_wr > attrs->max_qp_wr ||
			   cap->max_recv_sge > attrs->max_recv_sge))
		return -EINVAL;
	return 0;
}

static int sq_init(struct thca_sq *sq, const struct ib_qp_cap *cap)
{
	size_t data = max(cap->max_send_sge * sizeof(struct ib_sge), (size_t)cap->max_inline_data);

	sq->size = cap->max_send_wr;
	sq->max_sge = cap->max_send_sge;
	sq->max_inline = cap->max_inline_data;
	sq->stride = ALIGN(sizeof(struct thca_swqe) + data, 8);
	if (!sq->size)
		return 0;
	/* Counters that wrap find their place by a mask. */
	sq->ring = kvcalloc(roundup_pow_of_two(sq->size), sq->stride, GFP_KERNEL);
	return sq->ring ? 0 : -ENOMEM;
}

static void qp_free(struct thca_qp *qp)
{
	if (qp->init.qp_type != IB_QPT_GSI)
		atomic_dec(&to_dev(qp->ib.device)->nr_qps);
	kvfree(qp->sq.ring);
	thca_rq_free(&qp->rq);
	kfree(qp->receive);
}

int thca_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *init, struct ib_udata *udata)
{
	struct thca_dev *dev = to_dev(ib->device);
	struct thca_qp *qp = to_qp(ib);
	struct ib_qp_cap *cap = &init->cap;
	u32 qpn;
	int ret;

	ret = thca_refuses(dev) ? -EIO : qp_check(ib->device, init);
	if (ret)
		return ret;
	if (init->qp_type != IB_QPT_GSI && !thca_take_qp(dev))
		return -ENOMEM;
	spin_lock_init(&qp->lock);
	spin_lock_init(&qp->responder);
	mutex_init(&qp->modify);
	hrtimer_setup(&qp->timer, thca_timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_SOFT);
	qp->state = IB_QPS_RESET;
	qp->init = *init;
	ret = sq_init(&qp->sq, cap);
	if (!ret && !init->srq)
		ret = thca_rq_init(&qp->rq, cap->max_recv_wr, cap->max_recv_sge);
	if (ret)
		goto free;
	qp->recvs = init->srq ? &to_srq(init->srq)->rq : &qp->rq;
	qp->receive = kzalloc(struct_size(qp->receive, sge, qp->recvs->max_sge), GFP_KERNEL);
	if (!qp->receive) {
		ret = -ENOMEM;
		goto free;
	}
	if (init->qp_type == IB_QPT_GSI) {
		qpn = 1;
		ret = xa_insert_bh(&dev->qps, qpn, qp, GFP_KERNEL);
	} else {
		ret = xa_alloc_cyclic_bh(&dev->qps, &qpn, NULL, XA_LIMIT(2, 0xfffffe),
					 &dev->next_qpn, GFP_KERNEL);
		if (ret >= 0) {
			ib->qp_num = qpn;
			ret = xa_err(xa_store_bh(&dev->qps, qpn, qp, GFP_KERNEL));
		}
	}
	if (ret < 0)
		goto free;
	ib->qp_num = qpn;
	return 0;
free:
	qp_free(qp);
	return ret;
}

enum ib_qp_state thca_qp_state(struct thca_qp *qp)
{
	unsigned long flags;
	enum ib_qp_state state;

	spin_lock_irqsave(&qp->lock, flags);
	state = qp->dead ? IB_QPS_RESET : qp->state;
	spin_unlock_irqrestore(&qp->lock, flags);
	return state;
}

/* The engine has found an error. What is left gets flushed when the engine looks at it next. */
void thca_qp_error(struct thca_qp *qp)
{
	unsigned long flags;

	spin_lock_irqsave(&qp->lock, flags);
	if (qp->state != IB_QPS_RESET)
		qp->state = IB_QPS_ERR;
	spin_unlock_irqrestore(&qp->lock, flags);
}

/* Takes out of both completion queues what is left of it. */
static void qp_forget(struct thca_qp *qp)
{
	if (qp->receiving)
		atomic_dec(&qp->recvs->used);
	qp->receiving = false;
	thca_cq_forget(to_cq(qp->ib.send_cq), &qp->ib);
	if (qp->ib.recv_cq != qp->ib.send_cq)
		thca_cq_forget(to_cq(qp->ib.recv_cq), &qp->ib);
}

static void qp_reset(struct thca_qp *qp)
{
	thca_quiesce(qp);
	qp_forget(qp);
	if (!qp->ib.srq)
		thca_rq_reset(&qp->rq);
	qp->sq.posted = 0;
	qp->sq.executed = 0;
	qp->sq.polled = 0;
	qp->sq.reads = 0;
	qp->done = 0;
	qp->retries = 0;
	qp->rnr_retries = 0;
	qp->pause = 0;
	qp->last_wqe = false;
	qp->events = 0;
}

static int modify_check(struct thca_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	struct ib_device_attr *attrs = &qp->ib.device->attrs;

	if ((mask & IB_QP_PORT) && attr->port_num != 1)
		return -EINVAL;
	if ((mask & IB_QP_PKEY_INDEX) && attr->pkey_index)
		return -EINVAL;
	if ((mask & IB_QP_PATH_MTU) &&
	    (attr->path_mtu < IB_MTU_256 || attr->path_mtu > IB_MTU_4096))
		return -EINVAL;
	if ((mask & IB_QP_MAX_QP_RD_ATOMIC) && attr->max_rd_atomic > attrs->max_qp_init_rd_atom)
		return -EINVAL;
	if ((mask & IB_QP_MAX_DEST_RD_ATOMIC) && attr->max_dest_rd_atomic > attrs->max_qp_rd_atom)
		return -EINVAL;
	if ((mask & IB_QP_AV) && (attr->ah_attr.type != RDMA_AH_ATTR_TYPE_ROCE ||
				  !rdma_ah_read_grh(&attr->ah_attr)->sgid_attr))
		return -EINVAL;
	if (mask & (IB_QP_ALT_PATH | IB_QP_PATH_MIG_STATE | IB_QP_CAP))
		return -EOPNOTSUPP;
	return 0;
}

static void modify_store(struct thca_qp *qp, const struct ib_qp_attr *attr, int mask,
			 const union ib_gid *sgid)
{
	struct ib_qp_attr *to = &qp->attr;

	if (mask & IB_QP_ACCESS_FLAGS)
		to->qp_access_flags = attr->qp_access_flags;
	if (mask & IB_QP_PKEY_INDEX)
		to->pkey_index = attr->pkey_index;
	if (mask & IB_QP_PORT)
		to->port_num = attr->port_num;
	if (mask & IB_QP_QKEY)
		to->qkey = attr->qkey;
	if (mask & IB_QP_AV) {
		to->ah_attr = attr->ah_attr;
		qp->sgid = *sgid;
		to->ah_attr.grh.sgid_attr = NULL;
	}
	if (mask & IB_QP_PATH_MTU)
		to->path_mtu = attr->path_mtu;
	if (mask & IB_QP_TIMEOUT)
		to->timeout = attr->timeout;
	if (mask & IB_QP_RETRY_CNT)
		to->retry_cnt = attr->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		to->rnr_retry = attr->rnr_retry;
	if (mask & IB_QP_RQ_PSN)
		to->rq_psn = attr->rq_psn;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		to->max_rd_atomic = attr->max_rd_atomic;
	if (mask & IB_QP_MIN_RNR_TIMER)
		to->min_rnr_timer = attr->min_rnr_timer;
	if (mask & IB_QP_SQ_PSN)
		to->sq_psn = attr->sq_psn;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		to->max_dest_rd_atomic = attr->max_dest_rd_atomic;
	if (mask & IB_QP_DEST_QPN)
		to->dest_qp_num = attr->dest_qp_num;
}

int thca_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct thca_qp *qp = to_qp(ib);
	enum ib_qp_state now, next;
	union ib_gid sgid = {};
	int ret;

	if (mask & ~IB_QP_ATTR_STANDARD_BITS)
		return -EOPNOTSUPP;
	if (thca_refuses(to_dev(ib->device)))
		return -EIO;
	if ((mask & IB_QP_AV) && rdma_ah_read_grh(&attr->ah_attr)->sgid_attr) {
		sgid = rdma_ah_read_grh(&attr->ah_attr)->sgid_attr->gid;
		thca_source_gid(to_dev(ib->device), &sgid, &attr->ah_attr.grh.dgid);
	}
	mutex_lock(&qp->modify);
	/* While a message is arriving, or is being answered, the state stays. */
	spin_lock_bh(&qp->responder);
	spin_lock_irq(&qp->lock);
	now = mask & IB_QP_CUR_STATE ? attr->cur_qp_state : qp->state;
	next = mask & IB_QP_STATE ? attr->qp_state : now;
	ret = -EINVAL;
	if (now == qp->state && ib_modify_qp_is_ok(now, next, ib->qp_type, mask))
		ret = modify_check(qp, attr, mask);
	if (!ret && next == IB_QPS_ERR && now != IB_QPS_ERR &&
	    thca_modify_to_err_fails(to_dev(ib->device)))
		ret = -EIO;
	if (!ret) {
		modify_store(qp, attr, mask, &sgid);
		qp->state = next;
	}
	spin_unlock_irq(&qp->lock);
	spin_unlock_bh(&qp->responder);
	if (!ret && next == IB_QPS_RESET)
		qp_reset(qp);
	else if (!ret)
		thca_kick(qp);
	mutex_unlock(&qp->modify);
	return ret;
}

int thca_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
		  struct ib_qp_init_attr *init)
{
	struct thca_qp *qp = to_qp(ib);

	spin_lock_irq(&qp->lock);
	*attr = qp->attr;
	attr->qp_state = qp->state;
	attr->cur_qp_state = qp->state;
	spin_unlock_irq(&qp->lock);
	attr->cap = qp->init.cap;
	*init = qp->init;
	return 0;
}

int thca_destroy_qp(struct ib_qp *ib, struct ib_udata *udata)
{
	struct thca_qp *qp = to_qp(ib);

	xa_erase_bh(&to_dev(ib->device)->qps, ib->qp_num);
	spin_lock_bh(&qp->responder);
	spin_lock_irq(&qp->lock);
	qp->dead = true;
	spin_unlock_irq(&qp->lock);
	spin_unlock_bh(&qp->responder);
	while (atomic_read_acquire(&qp->users))
		usleep_range(50, 100);
	thca_quiesce(qp);
	qp_forget(qp);
	qp_free(qp);
	return 0;
}
