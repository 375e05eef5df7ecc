// SPDX-License-Identifier: GPL-2.0
/* Address handles: two GIDs, as packets go by GID alone. */
#include <rdma/ib_cache.h>
#include "testhca.h"

int thca_create_ah(struct ib_ah *ib, struct rdma_ah_init_attr *init, struct ib_udata *udata)
{
	struct rdma_ah_attr *attr = init->ah_attr;
	const struct ib_global_route *grh = rdma_ah_read_grh(attr);
	struct thca_ah *ah = to_ah(ib);

	if (attr->type != RDMA_AH_ATTR_TYPE_ROCE || !(rdma_ah_get_ah_flags(attr) & IB_AH_GRH) ||
	    !grh->sgid_attr)
		return -EINVAL;
	ah->sgid = grh->sgid_attr->gid;
	ah->dgid = grh->dgid;
	ah->traffic_class = grh->traffic_class;
	ah->hop_limit = grh->hop_limit;
	ah->sl = rdma_ah_get_sl(attr);
	return 0;
}

int thca_destroy_ah(struct ib_ah *ib, u32 flags)
{
	return 0;
}
