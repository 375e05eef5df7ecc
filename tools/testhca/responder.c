// SPDX-License-Identifier: GPL-2.0
/*
 * The responder of a connection. The requester's engine runs it, which holds the lock "responder"
 * of the peer.
 */
#include "testhca.h"

/* Takes a receive for a message that arrives. */
bool thca_take_recv(struct thca_qp *qp)
{
	bool limit;

	qp->receiving = thca_rq_pop(qp->recvs, qp->receive, &limit);
	if (limit)
		set_bit(THCA_EVENT_SRQ_LIMIT, &qp->events);
	return qp->receiving;
}

/* Completes the receive that a message has arrived in; of *cqe the caller fills what is special. */
void thca_complete_recv(struct thca_qp *qp, struct thca_cqe *cqe, bool solicited,
			struct list_head *fire)
{
	qp->receiving = false;
	cqe->rq = qp->recvs;
	cqe->wc.wr_id = qp->receive->wr_id;
	cqe->wc.qp = &qp->ib;
	if (!cqe->wc.opcode)
		cqe->wc.opcode = IB_WC_RECV;
	if (cqe->wc.status == IB_WC_SUCCESS && thca_completion_is_lost(to_dev(qp->ib.device)))
		return;
	if (!thca_cq_push(to_cq(qp->ib.recv_cq), cqe, solicited, fire)) {
		thca_qp_error(qp);
		if (cqe->wc.status != IB_WC_WR_FLUSH_ERR)
			set_bit(THCA_EVENT_FATAL, &qp->events);
	}
}

/*
 * The responder of an unreliable connection drops a message, and goes on. The receive
 * that it has taken is there for the next message; one of a shared queue cannot go back, so it
 * completes.
 */
static enum thca_answer drop(struct thca_qp *peer, enum thca_answer answer, struct list_head *fire)
{
	struct thca_cqe cqe = { .wc.status = IB_WC_REM_INV_REQ_ERR };

	if (peer->receiving && peer->ib.srq)
		thca_complete_recv(peer, &cqe, false, fire);
	return answer;
}

/*
 * The responder refuses: it fails as well. Its own receive, if it has one, gets that status. An
 * unreliable connection fails only for what is wrong with its own memory.
 */
static enum thca_answer refuse(struct thca_qp *peer, enum thca_answer answer,
			       enum ib_wc_status status, struct list_head *fire)
{
	struct thca_cqe cqe = { .wc.status = status };

	if (peer->ib.qp_type == IB_QPT_UC && answer != THCA_OPERATION_ERROR)
		return drop(peer, answer, fire);
	thca_count(to_dev(peer->ib.device), THCA_REMOTE_ERRORS, 1);
	if (peer->receiving && status)
		thca_complete_recv(peer, &cqe, false, fire);
	thca_qp_error(peer);
	if (answer == THCA_ACCESS_ERROR)
		set_bit(THCA_EVENT_ACCESS, &peer->events);
	else if (answer == THCA_INVALID_REQUEST && !status)
		set_bit(THCA_EVENT_REQUEST, &peer->events);
	return answer;
}

/* Moves the next burst of a message. */
static enum thca_copied burst(struct thca_qp *qp, struct thca_cursor *to, struct thca_cursor *from,
			      u32 length)
{
	u32 n = min_t(u32, length - qp->done, THCA_BURST);
	enum thca_copied copied;

	if (thca_cursor_skip(from, qp->done))
		copied = THCA_BAD_FROM;
	else if (thca_cursor_skip(to, qp->done))
		copied = THCA_BAD_TO;
	else
		copied = thca_copy(to, from, n);
	thca_cursor_close(from);
	thca_cursor_close(to);
	if (copied == THCA_COPIED)
		qp->done += n;
	return copied;
}

static enum thca_answer receive_send(struct thca_qp *qp, struct thca_swqe *wqe,
				     struct thca_qp *peer, struct list_head *fire)
{
	struct thca_cqe cqe = { .wc.byte_len = wqe->length };
	bool taken = !peer->receiving;
	struct thca_cursor from, to;

	/* Without its beginning an unreliable message is lost. */
	if (taken && qp->done && qp->ib.qp_type == IB_QPT_UC)
		return THCA_RNR;
	if (taken && !thca_take_recv(peer))
		return THCA_RNR;
	/* It may be one that a message was to arrive in that was dropped. */
	if ((taken || !qp->done) && wqe->length > peer->receive->length)
		return refuse(peer, THCA_INVALID_REQUEST, IB_WC_LOC_LEN_ERR, fire);
	thca_send_cursor(&from, qp, wqe, 0);
	thca_cursor_sges(&to, peer, peer->receive->sge, peer->receive->num_sge,
			 IB_ACCESS_LOCAL_WRITE);
	switch (burst(qp, &to, &from, wqe->length)) {
	case THCA_BAD_FROM:
		return THCA_LOCAL_ERROR;
	case THCA_BAD_TO:
		return refuse(peer, THCA_OPERATION_ERROR, IB_WC_LOC_PROT_ERR, fire);
	case THCA_COPIED:
		break;
	}
	if (qp->done < wqe->length)
		return THCA_MORE;
	if (wqe->opcode == IB_WR_SEND_WITH_INV) {
		if (!to_dev(peer->ib.device)->remote_inv ||
		    thca_invalidation_fails(to_dev(peer->ib.device)) ||
		    !thca_mr_invalidate(peer, wqe->ex.rkey))
			return refuse(peer, THCA_ACCESS_ERROR, IB_WC_LOC_QP_OP_ERR, fire);
		cqe.wc.wc_flags = IB_WC_WITH_INVALIDATE;
		cqe.wc.ex.invalidate_rkey = wqe->ex.rkey;
	} else if (wqe->opcode == IB_WR_SEND_WITH_IMM) {
		cqe.wc.wc_flags = IB_WC_WITH_IMM;
		cqe.wc.ex.imm_data = wqe->ex.imm;
	}
	thca_complete_recv(peer, &cqe, wqe->flags & IB_SEND_SOLICITED, fire);
	return THCA_ACK;
}

/* The remote memory that a work request names, as a segment. */
static struct ib_sge remote(const struct thca_swqe *wqe)
{
	return (struct ib_sge) {
		.addr = wqe->rdma.addr,
		.length = wqe->length,
		.lkey = wqe->rdma.rkey,
	};
}

static enum thca_answer receive_write(struct thca_qp *qp, struct thca_swqe *wqe,
				      struct thca_qp *peer, struct list_head *fire)
{
	struct thca_cqe cqe = { .wc.byte_len = wqe->length };
	struct ib_sge sge = remote(wqe);
	struct thca_cursor from, to;

	if (!(peer->attr.qp_access_flags & IB_ACCESS_REMOTE_WRITE))
		return refuse(peer, THCA_ACCESS_ERROR, 0, fire);
	thca_send_cursor(&from, qp, wqe, 0);
	thca_cursor_sges(&to, peer, &sge, 1, IB_ACCESS_REMOTE_WRITE);
	switch (burst(qp, &to, &from, wqe->length)) {
	case THCA_BAD_FROM:
		return THCA_LOCAL_ERROR;
	case THCA_BAD_TO:
		return refuse(peer, THCA_ACCESS_ERROR, 0, fire);
	case THCA_COPIED:
		break;
	}
	if (qp->done < wqe->length)
		return THCA_MORE;
	if (wqe->opcode == IB_WR_RDMA_WRITE_WITH_IMM) {
		/* The data are there already; another try moves none. */
		if (!peer->receiving && !thca_take_recv(peer))
			return THCA_RNR;
		cqe.wc.opcode = IB_WC_RECV_RDMA_WITH_IMM;
		cqe.wc.wc_flags = IB_WC_WITH_IMM;
		cqe.wc.ex.imm_data = wqe->ex.imm;
		thca_complete_recv(peer, &cqe, wqe->flags & IB_SEND_SOLICITED, fire);
	}
	return THCA_ACK;
}

static enum thca_answer answer_read(struct thca_qp *qp, struct thca_swqe *wqe,
				    struct thca_qp *peer, struct list_head *fire)
{
	struct thca_dev *dev = to_dev(qp->ib.device);
	struct ib_sge sge = remote(wqe);
	struct thca_cursor from, to;

	if (!qp->attr.max_rd_atomic)
		return THCA_LOCAL_ERROR;
	if (!peer->attr.max_dest_rd_atomic)
		return refuse(peer, THCA_INVALID_REQUEST, 0, fire);
	if (!(peer->attr.qp_access_flags & IB_ACCESS_REMOTE_READ))
		return refuse(peer, THCA_ACCESS_ERROR, 0, fire);
	thca_cursor_sges(&from, peer, &sge, 1, IB_ACCESS_REMOTE_READ);
	/* With iWARP the answer is a write of the peer. */
	thca_send_cursor(&to, qp, wqe,
			 dev->iwarp ? IB_ACCESS_REMOTE_WRITE : IB_ACCESS_LOCAL_WRITE);
	switch (burst(qp, &to, &from, wqe->length)) {
	case THCA_BAD_FROM:
		return refuse(peer, THCA_ACCESS_ERROR, 0, fire);
	case THCA_BAD_TO:
		thca_count(dev, THCA_BAD_SINKS, 1);
		return THCA_LOCAL_ERROR;
	case THCA_COPIED:
		break;
	}
	if (qp->done < wqe->length)
		return THCA_MORE;
	if (wqe->length)
		thca_count(dev, THCA_SINKS, 1);
	return THCA_ACK;
}

/* Adds field by field; nothing is carried out of the bits that are set in highest. */
static u64 add_fields(u64 a, u64 b, u64 highest)
{
	return ((a & ~highest) + (b & ~highest)) ^ ((a ^ b) & highest);
}

/* What an atomic operation makes of the number. */
static u64 result_of(const struct thca_swqe *wqe, u64 old)
{
	u64 compare_mask = wqe->rdma.compare_add_mask, swap_mask = wqe->rdma.swap_mask;

	switch (wqe->opcode) {
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return old + wqe->rdma.compare_add;
	case IB_WR_MASKED_ATOMIC_FETCH_AND_ADD:
		return add_fields(old, wqe->rdma.compare_add, compare_mask);
	case IB_WR_MASKED_ATOMIC_CMP_AND_SWP:
		if ((old ^ wqe->rdma.compare_add) & compare_mask)
			return old;
		return (old & ~swap_mask) | (wqe->rdma.swap & swap_mask);
	default:
		return old == wqe->rdma.compare_add ? wqe->rdma.swap : old;
	}
}

/* All atomic operations of all devices exclude each other, as those of one HCA do. */
static u64 operate(const struct thca_swqe *wqe, u64 *p)
{
	static DEFINE_SPINLOCK(lock);
	u64 old;

	spin_lock(&lock);
	old = READ_ONCE(*p);
	WRITE_ONCE(*p, result_of(wqe, old));
	spin_unlock(&lock);
	return old;
}

static enum thca_answer answer_atomic(struct thca_qp *qp, struct thca_swqe *wqe,
				      struct thca_qp *peer, struct list_head *fire)
{
	struct ib_sge sge = remote(wqe);
	struct thca_cursor from, to;
	enum thca_copied copied;
	size_t len;
	void *p;
	u64 old;

	if (wqe->length != sizeof(u64))
		return THCA_LOCAL_LENGTH;
	if (!qp->attr.max_rd_atomic)
		return THCA_LOCAL_ERROR;
	if (!peer->attr.max_dest_rd_atomic || !IS_ALIGNED(wqe->rdma.addr, sizeof(u64)))
		return refuse(peer, THCA_INVALID_REQUEST, 0, fire);
	if (!(peer->attr.qp_access_flags & IB_ACCESS_REMOTE_ATOMIC))
		return refuse(peer, THCA_ACCESS_ERROR, 0, fire);
	thca_cursor_sges(&from, peer, &sge, 1, IB_ACCESS_REMOTE_ATOMIC);
	if (thca_cursor_next(&from, &p, &len) <= 0 || len < sizeof(u64)) {
		thca_cursor_close(&from);
		return refuse(peer, THCA_ACCESS_ERROR, 0, fire);
	}
	old = operate(wqe, p);
	thca_cursor_close(&from);
	from = (struct thca_cursor) { .data = (u8 *)&old, .data_left = sizeof(old) };
	thca_send_cursor(&to, qp, wqe, IB_ACCESS_LOCAL_WRITE);
	copied = thca_copy(&to, &from, sizeof(old));
	thca_cursor_close(&to);
	return copied == THCA_COPIED ? THCA_ACK : THCA_LOCAL_ERROR;
}

enum thca_answer thca_respond(struct thca_qp *qp, struct thca_swqe *wqe, struct thca_qp *peer,
			      struct list_head *fire)
{
	if (peer->state == IB_QPS_RTR && !qp->done)
		set_bit(THCA_EVENT_ESTABLISHED, &peer->events);
	switch (wqe->opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return receive_write(qp, wqe, peer, fire);
	case IB_WR_RDMA_READ:
	case IB_WR_RDMA_READ_WITH_INV:
		return answer_read(qp, wqe, peer, fire);
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
	case IB_WR_MASKED_ATOMIC_CMP_AND_SWP:
	case IB_WR_MASKED_ATOMIC_FETCH_AND_ADD:
		return answer_atomic(qp, wqe, peer, fire);
	default:
		return receive_send(qp, wqe, peer, fire);
	}
}
