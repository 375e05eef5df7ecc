// SPDX-License-Identifier: GPL-2.0
/* Counters of a device: "rdma statistic show", and hw_counters of the port in /sys. */
#include "testhca.h"

static const struct rdma_stat_desc descs[THCA_COUNTERS] = {
	[THCA_REQUESTS].name = "requests",
	[THCA_BYTES].name = "bytes",
	[THCA_UNREACHABLE].name = "unreachable",
	[THCA_RNR_NAKS].name = "rnr_naks",
	[THCA_LOCAL_ERRORS].name = "local_errors",
	[THCA_REMOTE_ERRORS].name = "remote_errors",
	[THCA_DMA_FAULTS].name = "dma_faults",
	[THCA_CQ_OVERRUNS].name = "cq_overruns",
	[THCA_READ_STALLS].name = "read_stalls",
	[THCA_DROPS].name = "drops",
	[THCA_FAULTS].name = "faults",
	[THCA_SINKS].name = "sinks",
	[THCA_BAD_SINKS].name = "bad_sinks",
	[THCA_WRITABLE].name = "writable",
};

void thca_count(struct thca_dev *dev, enum thca_counter counter, u64 n)
{
	atomic64_add(n, &dev->counters[counter]);
}

struct rdma_hw_stats *thca_alloc_hw_port_stats(struct ib_device *ib, u32 port)
{
	return rdma_alloc_hw_stats_struct(descs, THCA_COUNTERS, RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

int thca_get_hw_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index)
{
	int i;

	if (!port || !stats)
		return -EINVAL;
	for (i = 0; i < THCA_COUNTERS; i++)
		stats->value[i] = atomic64_read(&to_dev(ib)->counters[i]);
	stats->value[THCA_WRITABLE] = thca_mr_writable(to_dev(ib));
	return THCA_COUNTERS;
}
