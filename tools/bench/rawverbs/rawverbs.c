// SPDX-License-Identifier: GPL-2.0
/*
 * Raw kernel verbs, the floor under every remote block device: one RC QP connected to this
 * machine's own address, RDMA READ and WRITE to a region registered by FRWR, an interrupt (softirq)
 * completion, and a thread that is woken for it. With polled=1 no completion interrupts, and the
 * thread polls the CQ instead of sleeping.
 *
 *   echo "read 4096 1 500" >/sys/kernel/debug/rawverbs/run
 *   cat /sys/kernel/debug/rawverbs/run
 *
 * The first is: read or write, bytes, queue depth, milliseconds. It returns when that is done; the
 * second shows the results of the last run, as JSON.
 *
 * A latency is from just before ib_post_send() until the posting thread runs again
 * (percentiles_ns), or until the completion handler runs (handler_p50_ns). Only for measuring: the
 * RDMA device must not be removed while this module is loaded.
 */
#include <linux/bitmap.h>
#include <linux/debugfs.h>
#include <linux/inet.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#define MAX_DEPTH	32
#define MAX_BYTES	SZ_128K
#define REGION_BYTES	SZ_2M
#define MAX_SAMPLES	(1 << 18)
#define TIMEOUT_MS	5000

static char *addr = "10.9.0.1";
module_param(addr, charp, 0444);
MODULE_PARM_DESC(addr, "this machine's own IPv4 address on an RDMA device");
static ushort port = 7421;
module_param(port, ushort, 0444);
MODULE_PARM_DESC(port, "rdma_cm port to connect to oneself by");
static bool polled;
module_param(polled, bool, 0444);
MODULE_PARM_DESC(polled, "the posting thread polls the CQ (N)");

/* One end of the connection. */
struct end {
	struct rdma_cm_id *id;
	struct ib_pd *pd;
	struct ib_cq *cq;
};

/* One I/O in flight; with a bit of @idle. */
struct slot {
	struct ib_cqe cqe;
	struct ib_rdma_wr wr;
	struct ib_sge sge;
	u64 start, handled;
	void *buf;
};

static struct rdma_cm_id *listener;
static struct end active, passive;
static DECLARE_COMPLETION(cm_done);	/* one step of connecting has ended: cm_status */
static int cm_status;

static void *region;
static struct scatterlist region_sg;
static bool region_mapped;
static struct ib_mr *region_mr;
static DECLARE_COMPLETION(reg_done);
static int reg_status;

static struct slot slots[MAX_DEPTH];
static DECLARE_BITMAP(idle, MAX_DEPTH);
static DECLARE_WAIT_QUEUE_HEAD(idle_wait);
static enum ib_wc_status io_status;

static DEFINE_MUTEX(run_lock);		/* one run at a time; also guards the results below */
static u32 *samples, *handler_samples;
static struct {
	unsigned int bytes;
	u64 ios, ns;
	u32 handler_p50, percentile[4];
} result;
static const unsigned int permille[] = { 500, 900, 990, 999 };
static struct dentry *dir;

/* After it nothing of this end is in flight. */
static void end_stop(struct end *end)
{
	if (!end->id || !end->id->qp)
		return;
	rdma_disconnect(end->id);
	ib_drain_qp(end->id->qp);
	rdma_destroy_qp(end->id);
}

static void end_destroy(struct end *end)
{
	if (!end->id)
		return;
	if (end->cq)
		ib_free_cq(end->cq);
	if (end->pd)
		ib_dealloc_pd(end->pd);
	rdma_destroy_id(end->id);
}

static int end_create(struct end *end, enum ib_poll_context context)
{
	struct ib_qp_init_attr attr = {
		.cap = {
			.max_send_wr = MAX_DEPTH + 2,
			.max_recv_wr = 2,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
	};
	struct ib_pd *pd;
	struct ib_cq *cq;

	pd = ib_alloc_pd(end->id->device, 0);
	if (IS_ERR(pd))
		return PTR_ERR(pd);
	end->pd = pd;
	cq = ib_alloc_cq(end->id->device, NULL, MAX_DEPTH + 4, 0, context);
	if (IS_ERR(cq))
		return PTR_ERR(cq);
	end->cq = cq;
	attr.send_cq = cq;
	attr.recv_cq = cq;
	return rdma_create_qp(end->id, pd, &attr);
}

static int accept(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = {
		.responder_resources = MAX_DEPTH,
		.initiator_depth = 1,
		.rnr_retry_count = 6,
	};
	int ret;

	if (passive.id)
		return -EBUSY;
	passive.id = id;
	ret = end_create(&passive, IB_POLL_SOFTIRQ);
	if (!ret)
		ret = rdma_accept(id, &param);
	/* Once in @passive, module_init() destroys the id at its end: it is not refused here. */
	if (ret)
		pr_err("rawverbs: accept: %d\n", ret);
	return 0;
}

static int cm_handler(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		return accept(id);
	case RDMA_CM_EVENT_ADDR_RESOLVED:
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
	case RDMA_CM_EVENT_ESTABLISHED:
		if (id != active.id)
			return 0;
		cm_status = 0;
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
		if (id != active.id)
			return 0;
		cm_status = -ECONNREFUSED;
		break;
	default:
		return 0;
	}
	complete(&cm_done);
	return 0;
}

/* Waits for the end of the step that was begun with result @ret. */
static int cm_wait(int ret)
{
	if (ret)
		return ret;
	if (!wait_for_completion_timeout(&cm_done, msecs_to_jiffies(2 * TIMEOUT_MS)))
		return -ETIMEDOUT;
	return cm_status;
}

static int connect_self(void)
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr *sa = (struct sockaddr *)&sin;
	struct rdma_conn_param param = {
		.responder_resources = 1,
		.initiator_depth = MAX_DEPTH,
		.retry_count = 6,
		.rnr_retry_count = 6,
	};
	struct rdma_cm_id *id;
	int ret;

	if (!in4_pton(addr, -1, (u8 *)&sin.sin_addr.s_addr, -1, NULL))
		return -EINVAL;
	id = rdma_create_id(&init_net, cm_handler, NULL, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return PTR_ERR(id);
	listener = id;
	ret = rdma_bind_addr(listener, sa);
	if (!ret)
		ret = rdma_listen(listener, 1);
	if (ret)
		return ret;

	id = rdma_create_id(&init_net, cm_handler, NULL, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return PTR_ERR(id);
	active.id = id;
	ret = cm_wait(rdma_resolve_addr(id, NULL, sa, TIMEOUT_MS));
	if (!ret)
		ret = cm_wait(rdma_resolve_route(id, TIMEOUT_MS));
	if (!ret)
		ret = end_create(&active, polled ? IB_POLL_DIRECT : IB_POLL_SOFTIRQ);
	if (!ret)
		ret = cm_wait(rdma_connect(id, &param));
	return ret;
}

static void region_registered(struct ib_cq *cq, struct ib_wc *wc)
{
	reg_status = wc->status == IB_WC_SUCCESS ? 0 : -EIO;
	complete(&reg_done);
}

static int register_region(void)
{
	struct ib_cqe cqe = { .done = region_registered };
	struct ib_reg_wr wr = {};
	struct ib_mr *mr;
	int ret;

	region = kzalloc(REGION_BYTES, GFP_KERNEL);
	if (!region)
		return -ENOMEM;
	sg_init_one(&region_sg, region, REGION_BYTES);
	mr = ib_alloc_mr(passive.pd, IB_MR_TYPE_MEM_REG, REGION_BYTES / PAGE_SIZE);
	if (IS_ERR(mr))
		return PTR_ERR(mr);
	region_mr = mr;
	if (ib_dma_map_sg(passive.id->device, &region_sg, 1, DMA_BIDIRECTIONAL) != 1)
		return -EIO;
	region_mapped = true;
	ret = ib_map_mr_sg(mr, &region_sg, 1, NULL, PAGE_SIZE);
	if (ret != 1)
		return ret < 0 ? ret : -EIO;
	ib_update_fast_reg_key(mr, ib_inc_rkey(mr->rkey));
	wr.wr.opcode = IB_WR_REG_MR;
	wr.wr.wr_cqe = &cqe;
	wr.wr.send_flags = IB_SEND_SIGNALED;
	wr.mr = mr;
	wr.key = mr->rkey;
	wr.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE;
	ret = ib_post_send(passive.id->qp, &wr.wr, NULL);
	if (ret)
		return ret;
	wait_for_completion(&reg_done);
	return reg_status;
}

static void io_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct slot *slot = container_of(wc->wr_cqe, struct slot, cqe);

	slot->handled = ktime_get_ns();
	if (wc->status != IB_WC_SUCCESS)
		WRITE_ONCE(io_status, wc->status);
	smp_mb__before_atomic();
	set_bit(slot - slots, idle);
	if (!polled)
		wake_up(&idle_wait);
}

/* Waits until so many of the first @depth slots are idle. */
static void wait_idle(unsigned int depth, unsigned int count)
{
	if (!polled)
		wait_event(idle_wait, bitmap_weight(idle, depth) >= count);
	while (bitmap_weight(idle, depth) < count) {
		ib_process_cq_direct(active.cq, -1);
		cond_resched();
		cpu_relax();
	}
}

static int prepare_slots(void)
{
	struct ib_device *device = active.id->device;
	int i;

	for (i = 0; i < MAX_DEPTH; i++) {
		struct slot *slot = &slots[i];

		slot->buf = kzalloc(MAX_BYTES, GFP_KERNEL);
		if (!slot->buf)
			return -ENOMEM;
		slot->sge.addr = ib_dma_map_single(device, slot->buf, MAX_BYTES, DMA_BIDIRECTIONAL);
		if (ib_dma_mapping_error(device, slot->sge.addr)) {
			kfree(slot->buf);
			slot->buf = NULL;
			return -EIO;
		}
		slot->sge.lkey = active.pd->local_dma_lkey;
		slot->cqe.done = io_done;
		slot->wr.wr.wr_cqe = &slot->cqe;
		slot->wr.wr.sg_list = &slot->sge;
		slot->wr.wr.num_sge = 1;
		slot->wr.wr.send_flags = IB_SEND_SIGNALED;
		slot->wr.rkey = region_mr->rkey;
	}
	return 0;
}

static void release_slots(void)
{
	int i;

	for (i = 0; i < MAX_DEPTH; i++) {
		if (!slots[i].buf)
			continue;
		ib_dma_unmap_single(active.id->device, slots[i].sge.addr, MAX_BYTES, DMA_BIDIRECTIONAL);
		kfree(slots[i].buf);
	}
}

static int compare(const void *a, const void *b)
{
	u32 x = *(const u32 *)a, y = *(const u32 *)b;

	return x < y ? -1 : x > y;
}

static int measure(enum ib_wr_opcode opcode, unsigned int bytes, unsigned int depth, unsigned int msecs)
{
	u64 now = ktime_get_ns(), begin = now, end = now + (u64)msecs * NSEC_PER_MSEC, ios = 0, offset = 0;
	unsigned int i, n = 0;
	int ret = 0;

	io_status = IB_WC_SUCCESS;
	for (i = 0; i < depth; i++) {
		slots[i].wr.wr.opcode = opcode;
		slots[i].sge.length = bytes;
		slots[i].start = 0;
	}
	bitmap_zero(idle, MAX_DEPTH);
	bitmap_set(idle, 0, depth);
	for (;;) {
		struct slot *slot;

		wait_idle(depth, 1);
		now = ktime_get_ns();
		i = find_first_bit(idle, depth);
		slot = &slots[i];
		if (slot->start) {
			if (n < MAX_SAMPLES) {
				handler_samples[n] = min_t(u64, slot->handled - slot->start, U32_MAX);
				samples[n++] = min_t(u64, now - slot->start, U32_MAX);
			}
			ios++;
		}
		if (now >= end || READ_ONCE(io_status) != IB_WC_SUCCESS)
			break;
		clear_bit(i, idle);
		slot->wr.remote_addr = region_mr->iova + offset;
		offset += bytes;
		if (offset + bytes > REGION_BYTES)
			offset = 0;
		slot->start = ktime_get_ns();
		ret = ib_post_send(active.id->qp, &slot->wr.wr, NULL);
		if (ret) {
			set_bit(i, idle);
			break;
		}
	}
	wait_idle(depth, depth);
	if (ret)
		return ret;
	if (io_status != IB_WC_SUCCESS) {
		pr_err("rawverbs: %s\n", ib_wc_status_msg(io_status));
		return -EIO;
	}
	if (!n)
		return -ENODATA;
	sort(samples, n, sizeof(*samples), compare, NULL);
	sort(handler_samples, n, sizeof(*handler_samples), compare, NULL);
	result.bytes = bytes;
	result.ios = ios;
	result.ns = now - begin;
	for (i = 0; i < ARRAY_SIZE(permille); i++)
		result.percentile[i] = samples[n * permille[i] / 1000];
	result.handler_p50 = handler_samples[n / 2];
	return 0;
}

static ssize_t run_write(struct file *file, const char __user *ubuf, size_t count, loff_t *pos)
{
	unsigned int bytes, depth, msecs;
	enum ib_wr_opcode opcode;
	char buf[64], op[8];
	int ret;

	if (count >= sizeof(buf))
		return -EINVAL;
	if (copy_from_user(buf, ubuf, count))
		return -EFAULT;
	buf[count] = '\0';
	if (sscanf(buf, "%7s %u %u %u", op, &bytes, &depth, &msecs) != 4)
		return -EINVAL;
	if (!strcmp(op, "read"))
		opcode = IB_WR_RDMA_READ;
	else if (!strcmp(op, "write"))
		opcode = IB_WR_RDMA_WRITE;
	else
		return -EINVAL;
	if (!bytes || bytes > MAX_BYTES || !depth || depth > MAX_DEPTH || msecs > 60000)
		return -EINVAL;
	mutex_lock(&run_lock);
	ret = measure(opcode, bytes, depth, msecs);
	mutex_unlock(&run_lock);
	return ret ?: count;
}

static int run_show(struct seq_file *m, void *unused)
{
	unsigned int i;

	mutex_lock(&run_lock);
	seq_printf(m, "{\"bytes\": %u, \"ios\": %llu, \"ns\": %llu, \"handler_p50_ns\": %u, \"percentiles_ns\": {",
		   result.bytes, result.ios, result.ns, result.handler_p50);
	for (i = 0; i < ARRAY_SIZE(permille); i++)
		seq_printf(m, "%s\"%u.%u\": %u", i ? ", " : "", permille[i] / 10, permille[i] % 10, result.percentile[i]);
	seq_puts(m, "}}\n");
	mutex_unlock(&run_lock);
	return 0;
}

static int run_open(struct inode *inode, struct file *file)
{
	return single_open(file, run_show, NULL);
}

static const struct file_operations run_fops = {
	.owner = THIS_MODULE,
	.open = run_open,
	.read = seq_read,
	.write = run_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static void teardown(void)
{
	debugfs_remove(dir);
	/* Nothing new arrives once the listener is gone. */
	if (listener)
		rdma_destroy_id(listener);
	end_stop(&active);
	end_stop(&passive);
	release_slots();
	if (region_mr)
		ib_dereg_mr(region_mr);
	if (region_mapped)
		ib_dma_unmap_sg(passive.id->device, &region_sg, 1, DMA_BIDIRECTIONAL);
	kfree(region);
	end_destroy(&active);
	end_destroy(&passive);
	vfree(samples);
	vfree(handler_samples);
}

static int __init rawverbs_init(void)
{
	int ret = -ENOMEM;

	samples = vmalloc_array(MAX_SAMPLES, sizeof(*samples));
	handler_samples = vmalloc_array(MAX_SAMPLES, sizeof(*handler_samples));
	if (samples && handler_samples)
		ret = connect_self();
	if (!ret)
		ret = register_region();
	if (!ret)
		ret = prepare_slots();
	if (ret) {
		pr_err("rawverbs: cannot connect to %s: %d\n", addr, ret);
		teardown();
		return ret;
	}
	dir = debugfs_create_dir("rawverbs", NULL);
	debugfs_create_file("run", 0600, dir, NULL, &run_fops);
	return 0;
}

static void __exit rawverbs_exit(void)
{
	teardown();
}

module_init(rawverbs_init);
module_exit(rawverbs_exit);
MODULE_DESCRIPTION("Latency and rate of raw RDMA READ and WRITE posted in the kernel");
MODULE_LICENSE("GPL");
