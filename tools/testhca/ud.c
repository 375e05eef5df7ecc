// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams: those of UD queue pairs, and the management datagrams of the connection manager, which
 * are sent to and from queue pair 1 (GSI). What finds no queue pair, no receive, or one that is too
 * small, is lost, and the sender does not learn of it.
 */
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <net/ip.h>
#include <rdma/ib_pack.h>
#include "testhca.h"

#define GRH_BYTES 40

static bool is_ipv4(const union ib_gid *gid)
{
	return ipv6_addr_v4mapped((const struct in6_addr *)gid);
}

/* What RoCE v2 puts before a datagram: an IPv6 header, or 20 bytes and an IPv4 one. */
static void make_header(union rdma_network_hdr *hdr, const struct thca_swqe *wqe)
{
	memset(hdr, 0, sizeof(*hdr));
	if (is_ipv4(&wqe->ud.dgid)) {
		struct iphdr *ip = &hdr->roce4grh;

		ip->version = 4;
		ip->ihl = 5;
		ip->tos = wqe->ud.traffic_class;
		ip->tot_len = htons(sizeof(*ip) + 8 + 12 + 8 + wqe->length + 4);
		ip->ttl = wqe->ud.hop_limit;
		ip->protocol = IPPROTO_UDP;
		memcpy(&ip->saddr, wqe->ud.sgid.raw + 12, 4);
		memcpy(&ip->daddr, wqe->ud.dgid.raw + 12, 4);
		ip->check = ip_fast_csum((u8 *)ip, 5);
	} else {
		hdr->ibgrh.version_tclass_flow = cpu_to_be32(6 << 28 | wqe->ud.traffic_class << 20);
		hdr->ibgrh.paylen = htons(8 + 12 + 8 + wqe->length + 4);
		hdr->ibgrh.next_hdr = IPPROTO_UDP;
		hdr->ibgrh.hop_limit = wqe->ud.hop_limit;
		hdr->ibgrh.sgid = wqe->ud.sgid;
		hdr->ibgrh.dgid = wqe->ud.dgid;
	}
}

static bool takes_datagrams(const struct thca_qp *peer, u32 qkey)
{
	if (!thca_receives(peer) ||
	    (peer->ib.qp_type != IB_QPT_UD && peer->ib.qp_type != IB_QPT_GSI))
		return false;
	return peer->attr.qkey == qkey;
}

static enum ib_wc_status deliver(struct thca_qp *qp, struct thca_swqe *wqe, struct thca_qp *peer,
				 struct list_head *fire)
{
	struct thca_cursor from, to, header;
	union rdma_network_hdr hdr;
	enum thca_copied copied;
	struct thca_cqe cqe = {
		.wc = {
			.byte_len = GRH_BYTES + wqe->length,
			.src_qp = qp->ib.qp_num,
			.wc_flags = IB_WC_GRH | IB_WC_WITH_NETWORK_HDR_TYPE,
			.port_num = 1,
			.sl = wqe->ud.sl,
			.network_hdr_type = is_ipv4(&wqe->ud.dgid) ? RDMA_NETWORK_IPV4 :
								     RDMA_NETWORK_IPV6,
		},
	};

	/* What cannot be sent must not reach the peer in part. */
	thca_send_cursor(&from, qp, wqe, 0);
	if (thca_cursor_skip(&from, wqe->length)) {
		thca_cursor_close(&from);
		return IB_WC_LOC_PROT_ERR;
	}
	thca_cursor_close(&from);
	if (!thca_take_recv(peer))
		return IB_WC_SUCCESS;
	if (GRH_BYTES + wqe->length > peer->receive->length) {
		cqe.wc.status = IB_WC_LOC_LEN_ERR;
		thca_complete_recv(peer, &cqe, false, fire);
		thca_qp_error(peer);
		return IB_WC_SUCCESS;
	}
	make_header(&hdr, wqe);
	header = (struct thca_cursor) { .data = (u8 *)&hdr, .data_left = GRH_BYTES };
	thca_send_cursor(&from, qp, wqe, 0);
	thca_cursor_sges(&to, peer, peer->receive->sge, peer->receive->num_sge,
			 IB_ACCESS_LOCAL_WRITE);
	copied = thca_copy(&to, &header, GRH_BYTES);
	if (copied == THCA_COPIED)
		copied = thca_copy(&to, &from, wqe->length);
	thca_cursor_close(&from);
	thca_cursor_close(&to);
	if (wqe->opcode == IB_WR_SEND_WITH_IMM) {
		cqe.wc.wc_flags |= IB_WC_WITH_IMM;
		cqe.wc.ex.imm_data = wqe->ex.imm;
	}
	if (copied != THCA_COPIED)
		cqe.wc.status = IB_WC_LOC_PROT_ERR;
	thca_complete_recv(peer, &cqe, wqe->flags & IB_SEND_SOLICITED, fire);
	if (copied != THCA_COPIED)
		thca_qp_error(peer);
	return copied == THCA_BAD_FROM ? IB_WC_LOC_PROT_ERR : IB_WC_SUCCESS;
}

/* Delivers a datagram to a queue pair that stays meanwhile, if it takes datagrams with this key. */
enum ib_wc_status thca_deliver(struct thca_qp *qp, struct thca_swqe *wqe, struct thca_qp *peer,
			       u32 qkey, struct list_head *fire)
{
	enum ib_wc_status status = IB_WC_SUCCESS;

	spin_lock(&peer->responder);
	if (takes_datagrams(peer, qkey))
		status = deliver(qp, wqe, peer, fire);
	spin_unlock(&peer->responder);
	if (READ_ONCE(peer->events) || READ_ONCE(peer->state) == IB_QPS_ERR)
		thca_kick(peer);
	return status;
}

/* Sends a datagram. */
enum ib_wc_status thca_send_ud(struct thca_qp *qp, struct thca_swqe *wqe, struct list_head *fire)
{
	/* A key with the highest bit set stands for the sender's own. */
	u32 qkey = wqe->ud.qkey & BIT(31) ? qp->attr.qkey : wqe->ud.qkey;
	enum ib_wc_status status = IB_WC_SUCCESS;
	struct thca_qp *peer;

	thca_source_gid(to_dev(qp->ib.device), &wqe->ud.sgid, &wqe->ud.dgid);
	if (qp->ib.qp_type == IB_QPT_GSI && thca_mad_is_lost(to_dev(qp->ib.device)))
		return status;
	if (wqe->ud.qpn == IB_MULTICAST_QPN)
		return thca_send_mcast(qp, wqe, qkey, fire);
	peer = thca_find_qp(to_dev(qp->ib.device), &wqe->ud.dgid, wqe->ud.qpn);
	if (!peer)
		return status;
	status = thca_deliver(qp, wqe, peer, qkey, fire);
	thca_put_qp(peer);
	return status;
}
