// SPDX-License-Identifier: GPL-2.0
/* The requester of a reliable connection. */
#include "testhca.h"

struct thca_swqe *thca_next_send(struct thca_qp *qp)
{
	struct thca_sq *sq = &qp->sq;
	struct thca_swqe *wqe = NULL;
	unsigned long flags;
	u32 mask;

	spin_lock_irqsave(&qp->lock, flags);
	if (sq->executed != sq->posted) {
		mask = roundup_pow_of_two(sq->size) - 1;
		wqe = sq->ring + (size_t)(sq->executed & mask) * sq->stride;
	}
	spin_unlock_irqrestore(&qp->lock, flags);
	return wqe;
}

/* Whether the next one has to wait: for the wire, or for its next try. */
bool thca_waits(struct thca_qp *qp, struct thca_swqe *wqe)
{
	ktime_t now;

	if (!qp->pause && !wqe->due)
		return false;
	now = ktime_get();
	if (qp->pause && ktime_before(now, qp->pause))
		return true;
	qp->pause = 0;
	if (wqe->due && ktime_before(now, wqe->due)) {
		thca_wait_until(qp, wqe->due);
		return true;
	}
	return false;
}

static enum ib_wc_opcode wc_opcode(enum ib_wr_opcode opcode)
{
	switch (opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return IB_WC_RDMA_WRITE;
	case IB_WR_RDMA_READ:
	case IB_WR_RDMA_READ_WITH_INV:
		return IB_WC_RDMA_READ;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		return IB_WC_COMP_SWAP;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return IB_WC_FETCH_ADD;
	case IB_WR_MASKED_ATOMIC_CMP_AND_SWP:
		return IB_WC_MASKED_COMP_SWAP;
	case IB_WR_MASKED_ATOMIC_FETCH_AND_ADD:
		return IB_WC_MASKED_FETCH_ADD;
	case IB_WR_REG_MR:
		return IB_WC_REG_MR;
	case IB_WR_LOCAL_INV:
		return IB_WC_LOCAL_INV;
	default:
		return IB_WC_SEND;
	}
}

/* An error moves a reliable connection to ERR, others to SQE. */
static void send_error(struct thca_qp *qp)
{
	if (qp->ib.qp_type == IB_QPT_RC) {
		thca_qp_error(qp);
		return;
	}
	spin_lock_irq(&qp->lock);
	if (qp->state == IB_QPS_RTS)
		qp->state = IB_QPS_SQE;
	spin_unlock_irq(&qp->lock);
}

/* The oldest work request has been executed. */
void thca_complete_send(struct thca_qp *qp, struct thca_swqe *wqe, enum ib_wc_status status,
			struct list_head *fire)
{
	struct thca_cqe cqe = {
		.wc = {
			.wr_id = wqe->wr_id,
			.status = status,
			.opcode = wc_opcode(wqe->opcode),
			.qp = &qp->ib,
			.byte_len = wqe->length,
		},
	};
	bool signaled = status != IB_WC_SUCCESS || (wqe->flags & IB_SEND_SIGNALED) ||
			qp->init.sq_sig_type == IB_SIGNAL_ALL_WR;

	qp->done = 0;
	qp->retries = 0;
	qp->rnr_retries = 0;
	qp->pause = 0;
	if (status == IB_WC_SUCCESS) {
		thca_count(to_dev(qp->ib.device), THCA_REQUESTS, 1);
		thca_count(to_dev(qp->ib.device), THCA_BYTES, wqe->length);
	} else if (status != IB_WC_WR_FLUSH_ERR) {
		thca_count(to_dev(qp->ib.device), THCA_LOCAL_ERRORS, 1);
		ibdev_dbg(qp->ib.device, "QP %u: opcode %d: %s\n", qp->ib.qp_num, wqe->opcode,
			  ib_wc_status_msg(status));
		send_error(qp);
	}
	spin_lock_irq(&qp->lock);
	/* From here on a poll, and then a post, may take its place. */
	if (thca_is_read(wqe->opcode))
		qp->sq.reads--;
	cqe.sq_end = ++qp->sq.executed;
	spin_unlock_irq(&qp->lock);
	if (signaled && status == IB_WC_SUCCESS) {
		if (qp->init.qp_type == IB_QPT_RC && thca_completes_twice())
			thca_cq_push(to_cq(qp->ib.send_cq), &cqe, false, fire);
		signaled = !thca_completion_is_lost(to_dev(qp->ib.device)) &&
			   !(qp->init.qp_type == IB_QPT_RC && wqe->opcode == IB_WR_SEND &&
			     thca_sent_is_lost(to_dev(qp->ib.device)));
	}
	if (signaled && !thca_cq_push(to_cq(qp->ib.send_cq), &cqe, false, fire)) {
		thca_qp_error(qp);
		if (status != IB_WC_WR_FLUSH_ERR)
			set_bit(THCA_EVENT_FATAL, &qp->events);
	}
}

/* Completes all that is posted: the queue pair is in error. */
void thca_flush(struct thca_qp *qp, struct list_head *fire)
{
	struct thca_cqe cqe = { .rq = qp->recvs };
	struct thca_swqe *wqe;

	while ((wqe = thca_next_send(qp)))
		thca_complete_send(qp, wqe, IB_WC_WR_FLUSH_ERR, fire);
	spin_lock(&qp->responder);
	while (qp->receiving || (!qp->ib.srq && thca_take_recv(qp))) {
		cqe.wc.status = IB_WC_WR_FLUSH_ERR;
		thca_complete_recv(qp, &cqe, false, fire);
	}
	if (qp->ib.srq && !qp->last_wqe) {
		qp->last_wqe = true;
		if (thca_has_last_wqe())
			set_bit(THCA_EVENT_LAST_WQE, &qp->events);
	}
	spin_unlock(&qp->responder);
}

/* Only the one that it is connected to may be the responder. */
bool thca_is_peer(const struct thca_qp *peer, const struct thca_qp *qp)
{
	if (!thca_receives(peer) || peer->ib.qp_type != qp->ib.qp_type ||
	    READ_ONCE(to_dev(peer->ib.device)->fatal))
		return false;
	return peer->attr.dest_qp_num == qp->ib.qp_num &&
	       !memcmp(&peer->attr.ah_attr.grh.dgid, &qp->sgid, sizeof(qp->sgid));
}

/* Nobody answers. Returns true if that was the last try. */
static bool times_out(struct thca_qp *qp)
{
	u64 ns = thca_ack_ns(qp->attr.timeout);

	if (!ns) {
		/* For ever; but the peer may come back. */
		thca_wait_until(qp, ktime_get() + NSEC_PER_SEC);
		return false;
	}
	if (qp->retries++ >= qp->attr.retry_cnt)
		return true;
	thca_wait_until(qp, ktime_get() + ns);
	return false;
}

/* The peer has no receive. Returns true if that was the last try; 7 means as often as it takes. */
static bool gives_up(struct thca_qp *qp, u8 timer)
{
	thca_count(to_dev(qp->ib.device), THCA_RNR_NAKS, 1);
	if (qp->attr.rnr_retry != 7 && qp->rnr_retries++ >= qp->attr.rnr_retry)
		return true;
	thca_wait_until(qp, ktime_get() + thca_rnr_ns(timer));
	return false;
}

enum outcome { DONE, AGAIN, LATER };

/* Does a burst of a work request with the peer. */
static enum outcome request(struct thca_qp *qp, struct thca_swqe *wqe, enum ib_wc_status *status,
			    struct list_head *fire)
{
	struct thca_dev *dev = to_dev(qp->ib.device);
	enum thca_answer answer;
	struct thca_qp *peer;
	u8 rnr_timer;

	*status = IB_WC_RETRY_EXC_ERR;
	peer = thca_find_qp(dev, &qp->attr.ah_attr.grh.dgid, qp->attr.dest_qp_num);
	if (!peer)
		return times_out(qp) ? DONE : LATER;
	spin_lock(&peer->responder);
	if (!thca_is_peer(peer, qp)) {
		spin_unlock(&peer->responder);
		thca_put_qp(peer);
		thca_count(dev, THCA_UNREACHABLE, 1);
		return times_out(qp) ? DONE : LATER;
	}
	answer = thca_respond(qp, wqe, peer, fire);
	rnr_timer = peer->attr.min_rnr_timer;
	spin_unlock(&peer->responder);
	if (READ_ONCE(peer->events) || READ_ONCE(peer->state) == IB_QPS_ERR)
		thca_kick(peer);
	thca_put_qp(peer);
	qp->retries = 0;
	switch (answer) {
	case THCA_MORE:
		return AGAIN;
	case THCA_RNR:
		*status = IB_WC_RNR_RETRY_EXC_ERR;
		return gives_up(qp, rnr_timer) ? DONE : LATER;
	case THCA_ACK:
		*status = thca_ack_is_lost(dev) ? IB_WC_RETRY_EXC_ERR : IB_WC_SUCCESS;
		break;
	case THCA_INVALID_REQUEST:
		*status = IB_WC_REM_INV_REQ_ERR;
		break;
	case THCA_ACCESS_ERROR:
		*status = IB_WC_REM_ACCESS_ERR;
		break;
	case THCA_OPERATION_ERROR:
		*status = IB_WC_REM_OP_ERR;
		break;
	case THCA_LOCAL_ERROR:
		*status = IB_WC_LOC_PROT_ERR;
		break;
	case THCA_LOCAL_LENGTH:
		*status = IB_WC_LOC_LEN_ERR;
		break;
	}
	return DONE;
}

/* Executes what is posted. Returns true if there is more to do at once. */
bool thca_run_rc(struct thca_qp *qp, struct list_head *fire)
{
	int budget;

	for (budget = THCA_BUDGET; budget; budget--) {
		enum ib_qp_state state = thca_qp_state(qp);
		enum outcome outcome = DONE;
		enum ib_wc_status status;
		struct thca_swqe *wqe;

		if (READ_ONCE(to_dev(qp->ib.device)->fatal))
			return false;
		if (state == IB_QPS_ERR) {
			thca_flush(qp, fire);
			return false;
		}
		if (state != IB_QPS_RTS)
			return false;
		wqe = thca_next_send(qp);
		if (!wqe || thca_waits(qp, wqe))
			return false;
		status = IB_WC_MW_BIND_ERR;
		switch (wqe->opcode) {
		case IB_WR_REG_MR:
			if (thca_mr_register(qp, wqe))
				status = IB_WC_SUCCESS;
			break;
		case IB_WR_LOCAL_INV:
			if (thca_mr_invalidate(qp, wqe->ex.rkey))
				status = IB_WC_SUCCESS;
			break;
		default:
			outcome = request(qp, wqe, &status, fire);
			if (outcome == DONE && status == IB_WC_SUCCESS &&
			    wqe->opcode == IB_WR_RDMA_READ_WITH_INV &&
			    !thca_mr_invalidate(qp, wqe->ex.rkey))
				status = IB_WC_LOC_QP_OP_ERR;
		}
		if (outcome == LATER)
			return false;
		if (outcome == DONE)
			thca_complete_send(qp, wqe, status, fire);
	}
	return true;
}
