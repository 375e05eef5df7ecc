// SPDX-License-Identifier: GPL-2.0
/* What an unreliable connection sends: the peer loses what it cannot place. */
#include "testhca.h"

/* What cannot be sent must not reach the peer in part. */
static bool can_be_sent(struct thca_qp *qp, struct thca_swqe *wqe)
{
	struct thca_cursor from;
	int ret;

	thca_send_cursor(&from, qp, wqe, 0);
	ret = thca_cursor_skip(&from, wqe->length);
	thca_cursor_close(&from);
	return !ret;
}

/* Sends a burst of a message. Returns true if there is more of it. */
bool thca_send_uc(struct thca_qp *qp, struct thca_swqe *wqe, enum ib_wc_status *status,
		  struct list_head *fire)
{
	struct thca_dev *dev = to_dev(qp->ib.device);
	enum thca_answer answer = THCA_RNR;
	struct thca_qp *peer = NULL;

	*status = IB_WC_LOC_PROT_ERR;
	if (!qp->done && !can_be_sent(qp, wqe))
		return false;
	if (qp->done || !thca_message_is_lost(dev))
		peer = thca_find_qp(dev, &qp->attr.ah_attr.grh.dgid, qp->attr.dest_qp_num);
	if (peer) {
		spin_lock(&peer->responder);
		if (thca_is_peer(peer, qp))
			answer = thca_respond(qp, wqe, peer, fire);
		spin_unlock(&peer->responder);
		if (READ_ONCE(peer->events) || READ_ONCE(peer->state) == IB_QPS_ERR)
			thca_kick(peer);
		thca_put_qp(peer);
	}
	if (answer == THCA_MORE)
		return true;
	if (answer == THCA_LOCAL_ERROR)
		return false;
	if (answer != THCA_ACK)
		thca_count(dev, THCA_DROPS, 1);
	*status = IB_WC_SUCCESS;
	return false;
}
