// SPDX-License-Identifier: GPL-2.0
/* Posting of sends. */
#include "testhca.h"

static bool is_known(const struct thca_qp *qp, const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_SEND:
		return true;
	case IB_WR_SEND_WITH_IMM:
		return qp->ib.qp_type != IB_QPT_RC || !to_dev(qp->ib.device)->iwarp;
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return thca_is_connected_type(qp->ib.qp_type) && !to_dev(qp->ib.device)->iwarp;
	case IB_WR_RDMA_READ_WITH_INV:
		return qp->ib.qp_type == IB_QPT_RC && to_dev(qp->ib.device)->iwarp &&
		       to_dev(qp->ib.device)->mem_mgt;
	case IB_WR_RDMA_WRITE:
		return thca_is_connected_type(qp->ib.qp_type);
	case IB_WR_RDMA_READ:
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
	case IB_WR_MASKED_ATOMIC_CMP_AND_SWP:
	case IB_WR_MASKED_ATOMIC_FETCH_AND_ADD:
		return qp->ib.qp_type == IB_QPT_RC;
	case IB_WR_SEND_WITH_INV:
		return qp->ib.qp_type == IB_QPT_RC && to_dev(qp->ib.device)->remote_inv;
	case IB_WR_REG_MR:
	case IB_WR_LOCAL_INV:
		return qp->ib.qp_type == IB_QPT_RC && to_dev(qp->ib.device)->mem_mgt;
	default:
		return false;
	}
}

static int fill_data(struct thca_qp *qp, struct thca_swqe *wqe, const struct ib_send_wr *wr)
{
	bool is_inline = wr->send_flags & IB_SEND_INLINE;
	u32 max_sge = qp->sq.max_sge;
	u64 length = 0;
	int i;

	if (thca_is_read(wr->opcode))
		max_sge = min(max_sge, qp->ib.device->attrs.max_sge_rd);

	if (wr->opcode == IB_WR_REG_MR || wr->opcode == IB_WR_LOCAL_INV) {
		wqe->num_sge = 0;
		wqe->length = 0;
		wqe->is_inline = false;
		return 0;
	}
	if (wr->num_sge < 0 || wr->num_sge > max_sge)
		return -EINVAL;
	for (i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if (length > THCA_MAX_MSG || (is_inline && length > qp->sq.max_inline))
		return -EINVAL;
	wqe->length = length;
	wqe->is_inline = is_inline;
	wqe->num_sge = is_inline ? 0 : wr->num_sge;
	if (is_inline) {
		u8 *to = wqe->data;

		/* Memory of the kernel by its own address, which is free again at once. */
		for (i = 0; i < wr->num_sge; i++) {
			memcpy(to, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
			to += wr->sg_list[i].length;
		}
	} else {
		memcpy(wqe->sge, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	}
	return 0;
}

static void fill_ud(struct thca_swqe *wqe, const struct ib_ud_wr *ud)
{
	const struct thca_ah *ah = to_ah(ud->ah);

	wqe->ud.sgid = ah->sgid;
	wqe->ud.dgid = ah->dgid;
	wqe->ud.traffic_class = ah->traffic_class;
	wqe->ud.hop_limit = ah->hop_limit;
	wqe->ud.sl = ah->sl;
	wqe->ud.qpn = ud->remote_qpn;
	wqe->ud.qkey = ud->remote_qkey;
}

/* The page list is read when the request is executed, as hardware reads it: by DMA. */
static void fill_reg(struct thca_swqe *wqe, const struct ib_reg_wr *reg)
{
	const struct thca_mr *mr = to_mr(reg->mr);

	wqe->reg.index = reg->mr->lkey >> 8;
	wqe->reg.key = reg->key;
	wqe->reg.access = reg->access;
	wqe->reg.iova = reg->mr->iova;
	wqe->reg.length = reg->mr->length;
	wqe->reg.page_size = reg->mr->page_size;
	wqe->reg.num_pages = mr->mapped;
}

static int fill(struct thca_qp *qp, struct thca_swqe *wqe, const struct ib_send_wr *wr)
{
	int ret;

	if (!is_known(qp, wr))
		return -EINVAL;
	ret = fill_data(qp, wqe, wr);
	if (ret)
		return ret;
	wqe->wr_id = wr->wr_id;
	wqe->opcode = wr->opcode;
	wqe->flags = wr->send_flags;
	if (wr->opcode == IB_WR_SEND_WITH_INV || wr->opcode == IB_WR_LOCAL_INV ||
	    wr->opcode == IB_WR_RDMA_READ_WITH_INV)
		wqe->ex.rkey = wr->ex.invalidate_rkey;
	else
		wqe->ex.imm = wr->ex.imm_data;
	if (!thca_is_connected_type(qp->ib.qp_type)) {
		fill_ud(wqe, ud_wr(wr));
	} else if (wr->opcode == IB_WR_REG_MR) {
		fill_reg(wqe, reg_wr(wr));
	} else if (thca_is_atomic(wr->opcode)) {
		wqe->rdma.addr = atomic_wr(wr)->remote_addr;
		wqe->rdma.rkey = atomic_wr(wr)->rkey;
		wqe->rdma.compare_add = atomic_wr(wr)->compare_add;
		wqe->rdma.swap = atomic_wr(wr)->swap;
		wqe->rdma.compare_add_mask = atomic_wr(wr)->compare_add_mask;
		wqe->rdma.swap_mask = atomic_wr(wr)->swap_mask;
	} else if (thca_is_read(wr->opcode) || wr->opcode == IB_WR_RDMA_WRITE ||
		   wr->opcode == IB_WR_RDMA_WRITE_WITH_IMM) {
		wqe->rdma.addr = rdma_wr(wr)->remote_addr;
		wqe->rdma.rkey = rdma_wr(wr)->rkey;
	}
	wqe->due = thca_wire_due(to_dev(qp->ib.device), wqe->length);
	if (wr->opcode == IB_WR_REG_MR && thca_reg_ns())
		wqe->due = max(wqe->due, ktime_get()) + thca_reg_ns();
	return 0;
}

int thca_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct thca_qp *qp = to_qp(ib);
	struct thca_sq *sq = &qp->sq;
	u32 mask = roundup_pow_of_two(max(sq->size, 1U)) - 1;
	unsigned long flags;
	bool any = false;
	int ret = 0;

	spin_lock_irqsave(&qp->lock, flags);
	if (qp->state != IB_QPS_RTS && qp->state != IB_QPS_SQD && qp->state != IB_QPS_SQE &&
	    qp->state != IB_QPS_ERR)
		ret = -EINVAL;
	for (; wr && !ret; wr = wr->next) {
		if (sq->posted - READ_ONCE(sq->polled) >= sq->size ||
		    thca_post_fails(to_dev(ib->device)))
			ret = -ENOMEM;
		else
			ret = fill(qp, sq->ring + (size_t)(sq->posted & mask) * sq->stride, wr);
		if (ret)
			break;
		/* Hardware executes nothing behind a READ more than it may have under way. */
		if (thca_is_read(wr->opcode) && ++sq->reads > qp->attr.max_rd_atomic)
			thca_count(to_dev(ib->device), THCA_READ_STALLS, 1);
		sq->posted++;
		any = true;
	}
	*bad = wr;
	spin_unlock_irqrestore(&qp->lock, flags);
	if (any)
		thca_kick(qp);
	return ret;
}
