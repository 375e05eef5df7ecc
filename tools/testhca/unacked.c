// SPDX-License-Identifier: GPL-2.0
/*
 * The requester of what nobody acknowledges: messages of unreliable connections, and datagrams.
 * They are complete when they have left.
 */
#include "testhca.h"

/* Executes what is posted. Returns true if there is more to do at once. */
bool thca_run_unacked(struct thca_qp *qp, struct list_head *fire)
{
	struct thca_dev *dev = to_dev(qp->ib.device);
	bool connected = qp->ib.qp_type == IB_QPT_UC;
	int budget;

	for (budget = THCA_BUDGET; budget; budget--) {
		enum ib_qp_state state = thca_qp_state(qp);
		enum ib_wc_status status;
		struct thca_swqe *wqe;

		if (connected && READ_ONCE(dev->fatal))
			return false;
		/* Datagrams are flushed, as such drivers do, or nobody got rid of one. */
		if (state == IB_QPS_ERR || (!connected && thca_refuses(dev))) {
			thca_flush(qp, fire);
			return false;
		}
		if (state != IB_QPS_RTS && state != IB_QPS_SQE)
			return false;
		wqe = thca_next_send(qp);
		/* An error concerns the send queue alone, till it is modified to RTS. */
		if (wqe && state == IB_QPS_SQE) {
			thca_complete_send(qp, wqe, IB_WC_WR_FLUSH_ERR, fire);
			continue;
		}
		if (!wqe || thca_waits(qp, wqe))
			return false;
		if (connected && thca_send_uc(qp, wqe, &status, fire))
			continue;
		if (!connected)
			status = thca_send_ud(qp, wqe, fire);
		thca_complete_send(qp, wqe, status, fire);
	}
	return true;
}
