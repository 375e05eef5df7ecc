// SPDX-License-Identifier: GPL-2.0
/* The wire: how long things take. */
#include <linux/moduleparam.h>
#include "testhca.h"

static unsigned int latency_ns;
module_param(latency_ns, uint, 0644);
MODULE_PARM_DESC(latency_ns, "from the posting of a work request to its execution (0)");

static unsigned int mbit;
module_param(mbit, uint, 0644);
MODULE_PARM_DESC(mbit, "Mbit/s of a port, of all that its work requests move (0: as fast as memory)");

/* When a work request that moves so much is to be executed, if it is posted now; 0: at once. */
ktime_t thca_wire_due(struct thca_dev *dev, u32 bytes)
{
	unsigned int latency = READ_ONCE(latency_ns), rate = READ_ONCE(mbit);
	unsigned long flags;
	ktime_t due;

	if (!latency && !rate)
		return 0;
	due = ktime_get();
	if (rate) {
		spin_lock_irqsave(&dev->wire_lock, flags);
		due = max(due, dev->wire_free) + div_u64((u64)bytes * 8000, rate);
		dev->wire_free = due;
		spin_unlock_irqrestore(&dev->wire_lock, flags);
	}
	return due + latency;
}

/* What the field "RNR NAK timer" of InfiniBand means: a table, in units of 10 us. */
u64 thca_rnr_ns(u8 timer)
{
	static const u16 units[32] = {
		0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
		256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576,
		32768, 49152,
	};
	u64 n = units[timer & 31] ?: 65536;

	return n * 10 * NSEC_PER_USEC;
}

/* The same of "local ACK timeout": 4.096 us x 2^timeout; 0 means for ever. */
u64 thca_ack_ns(u8 timeout)
{
	return timeout ? 4096ULL << (timeout & 31) : 0;
}
