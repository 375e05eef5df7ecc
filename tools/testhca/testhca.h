/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A host channel adapter without a wire, for tests of users of RDMA. Documentation/testhca.rst says
 * what it is like.
 *
 * The device executes work requests in an engine: a tasklet, which stands for what hardware does
 * beside the CPU. The engine of the requester does the work of both sides: it takes the responder's
 * receive, moves the data, and completes both.
 *
 * Locks, the outer one first: thca_qp.responder, which a requester holds while it works on its peer
 * (BH); the xarray locks of queue pairs and regions (BH); thca_qp.lock, thca_rq.lock, thca_cq.lock
 * (interrupts off: work requests are posted and completions polled in any context).
 */
#ifndef TESTHCA_H
#define TESTHCA_H

#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/iommu.h>
#include <linux/irq_work.h>
#include <linux/smp.h>
#include <linux/llist.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

#define THCA_MAX_GIDS 32
#define THCA_MAX_QP 4096
#define THCA_MAX_WR 16384
#define THCA_MAX_SGE 32
#define THCA_MAX_INLINE 256
#define THCA_MAX_CQE 65536
#define THCA_MAX_MR BIT(20)
#define THCA_MAX_PAGES 4096
#define THCA_MAX_MSG BIT(31)
/* The key of all memory; no region has it, as their indices begin with 1. */
#define THCA_DMA_LKEY 0x42
/* Bytes of one work request that the engine moves before others have their turn. */
#define THCA_BURST (64 * 1024)
/* What the engine executes of one queue pair before others have their turn. */
#define THCA_BUDGET 32

struct thca_function;

enum thca_counter {
	THCA_REQUESTS,
	THCA_BYTES,
	THCA_UNREACHABLE,
	THCA_RNR_NAKS,
	THCA_LOCAL_ERRORS,
	THCA_REMOTE_ERRORS,
	THCA_DMA_FAULTS,
	THCA_CQ_OVERRUNS,
	THCA_READ_STALLS,
	THCA_DROPS,
	THCA_FAULTS,
	THCA_SINKS,
	THCA_BAD_SINKS,
	/* How many there are now, rather than ever. */
	THCA_WRITABLE,
	THCA_COUNTERS
};

struct thca_gid {
	union ib_gid gid;
	bool valid;
};

struct thca_dev {
	struct ib_device ib;
	struct thca_function *function;
	/* Translates DMA addresses; NULL if they are physical ones. */
	struct iommu_domain *domain;
	/* In the list of gid.c, whose lock protects it and what follows. */
	struct list_head node;
	/* To compare, not to look into. */
	const struct net_device *netdev;
	struct thca_gid gids[THCA_MAX_GIDS];
	bool link_up;

	struct xarray qps;
	u32 next_qpn;
	/* But for the one of the management datagrams. */
	atomic_t nr_qps;
	struct xarray mrs;
	u32 next_mr;

	u32 max_sge, max_sge_rd, max_srq, max_pages, max_wr, page_sizes, max_rd_atom;
	bool mem_mgt, remote_inv, iwarp;
	/* It has failed for good. */
	bool fatal;

	spinlock_t wire_lock;
	ktime_t wire_free;

	atomic64_t counters[THCA_COUNTERS];
};

struct thca_ah {
	struct ib_ah ib;
	union ib_gid sgid, dgid;
	u8 traffic_class, hop_limit, sl;
};

struct thca_pd {
	struct ib_pd ib;
};

struct thca_cqe {
	struct ib_wc wc;
	/* How far the send queue is free once this has been polled. */
	u32 sq_end;
	/* The queue that has a place for one more receive then; NULL for a send. */
	struct thca_rq *rq;
};

struct thca_cq {
	struct ib_cq ib;
	spinlock_t lock;
	struct thca_cqe *ring;
	u32 size, head, count, vector;
	/* How many of them can be polled; those behind are late. */
	u32 visible;
	bool late_solicited;
	struct hrtimer timer;
	/* What the next interrupt waits for; 0 if no one wants any. */
	enum ib_cq_notify_flags armed;
	bool overrun;
	/* It is in a list of those whose handlers are about to be called, for these reasons. */
	bool firing, completion, error;
	/* Lists that it is in, and handlers that run. */
	atomic_t users;
	struct list_head fire_node;
	struct irq_work interrupt;
	call_single_data_t remote;
};

struct thca_rwqe {
	u64 wr_id;
	u32 num_sge;
	u32 length;
	struct ib_sge sge[];
};

/* Receives, of a queue pair or shared. */
struct thca_rq {
	spinlock_t lock;
	void *ring;
	u32 size, stride, max_sge, head, count;
	/* Posted and not polled yet: the place of a receive is free again only then. */
	atomic_t used;
	u32 limit;
};

struct thca_srq {
	struct ib_srq ib;
	struct thca_rq rq;
};

enum thca_mr_state {
	THCA_MR_FREE,
	THCA_MR_VALID,
	/* The whole of memory. */
	THCA_MR_DMA,
};

struct thca_mr {
	struct ib_mr ib;
	/* The lock of thca_dev.mrs protects all but the pages that the user fills. */
	enum thca_mr_state state;
	u32 key;
	int access;
	u64 iova, length;
	u32 page_shift, num_pages;
	/* An invalidation waits until no engine moves data of it. */
	atomic_t users;
	u32 max_pages;
	/* What ib_map_mr_sg() fills, and what the last REG_MR made of it. */
	u64 *pages, *table;
	u32 mapped;
};

struct thca_swqe {
	u64 wr_id;
	enum ib_wr_opcode opcode;
	int flags;
	u32 num_sge;
	u32 length;
	bool is_inline;
	ktime_t due;
	union {
		__be32 imm;
		u32 rkey;
	} ex;
	union {
		struct {
			u64 addr;
			u32 rkey;
			u64 compare_add, swap, compare_add_mask, swap_mask;
		} rdma;
		struct {
			u32 index, key;
			int access;
			u64 iova, length;
			u32 page_size, num_pages;
		} reg;
		struct {
			union ib_gid sgid, dgid;
			u32 qpn, qkey;
			u8 traffic_class, hop_limit, sl;
		} ud;
	};
	union {
		DECLARE_FLEX_ARRAY(struct ib_sge, sge);
		DECLARE_FLEX_ARRAY(u8, data);
	};
};

struct thca_sq {
	void *ring;
	u32 size, stride, max_sge, max_inline;
	/* Counters that wrap: posted, executed, and free again as their completion was polled. */
	u32 posted, executed, polled;
	/* RDMA READs among those that are posted and not executed. */
	u32 reads;
};

/* Bits of thca_qp.events: what its handler is to be told. */
enum {
	THCA_EVENT_ESTABLISHED,
	THCA_EVENT_ACCESS,
	THCA_EVENT_REQUEST,
	THCA_EVENT_FATAL,
	THCA_EVENT_SRQ_LIMIT,
	THCA_EVENT_LAST_WQE,
};

struct thca_qp {
	struct ib_qp ib;
	spinlock_t lock;
	/* Changes under both locks, so that whoever has one of them sees what is true. */
	enum ib_qp_state state;
	struct ib_qp_attr attr;
	union ib_gid sgid;
	struct ib_qp_init_attr init;
	struct mutex modify;
	struct thca_sq sq;
	struct thca_rq rq;
	/* Its own, or that of its SRQ. */
	struct thca_rq *recvs;
	unsigned long events;
	bool dead, last_wqe;

	/* How often the engine was asked to look at it since it began to. */
	atomic_t kicks;
	struct llist_node node;
	struct hrtimer timer;

	/* Of the work request that is being executed; only the engine has these. */
	u32 done;
	u8 retries, rnr_retries;
	ktime_t pause;

	/* Engines that look at it as a responder. */
	atomic_t users;
	spinlock_t responder;
	/* The receive that a message is arriving in. */
	bool receiving;
	struct thca_rwqe *receive;
};

/* A walk through the memory of a list of segments. */
struct thca_cursor {
	struct thca_dev *dev;
	struct ib_pd *pd;
	const struct ib_sge *sge;
	u32 num_sge;
	int access;
	/* Memory of the kernel's own instead: inline data. */
	const u8 *data;
	u32 data_left;
	/* The region of the first segment, held, and how far in that segment the walk is. */
	struct thca_mr *mr;
	bool open;
	u32 offset;
};

static inline struct thca_dev *to_dev(struct ib_device *ib)
{
	return container_of(ib, struct thca_dev, ib);
}

static inline struct thca_ah *to_ah(struct ib_ah *ib)
{
	return container_of(ib, struct thca_ah, ib);
}

static inline struct thca_cq *to_cq(struct ib_cq *ib)
{
	return container_of(ib, struct thca_cq, ib);
}

static inline struct thca_srq *to_srq(struct ib_srq *ib)
{
	return container_of(ib, struct thca_srq, ib);
}

static inline struct thca_mr *to_mr(struct ib_mr *ib)
{
	return container_of(ib, struct thca_mr, ib);
}

static inline struct thca_qp *to_qp(struct ib_qp *ib)
{
	return container_of(ib, struct thca_qp, ib);
}

static inline bool thca_is_connected_type(enum ib_qp_type type)
{
	return type == IB_QPT_RC || type == IB_QPT_UC;
}

/* Whether it is in a state in which it receives: an error of its sends alone does not end that. */
static inline bool thca_receives(const struct thca_qp *qp)
{
	return !qp->dead && (qp->state == IB_QPS_RTR || qp->state == IB_QPS_RTS ||
			     qp->state == IB_QPS_SQD || qp->state == IB_QPS_SQE);
}

static inline bool thca_is_read(enum ib_wr_opcode opcode)
{
	return opcode == IB_WR_RDMA_READ || opcode == IB_WR_RDMA_READ_WITH_INV;
}

static inline bool thca_is_atomic(enum ib_wr_opcode opcode)
{
	return opcode == IB_WR_ATOMIC_CMP_AND_SWP || opcode == IB_WR_ATOMIC_FETCH_AND_ADD ||
	       opcode == IB_WR_MASKED_ATOMIC_CMP_AND_SWP ||
	       opcode == IB_WR_MASKED_ATOMIC_FETCH_AND_ADD;
}

/* ah.c */
int thca_create_ah(struct ib_ah *ib, struct rdma_ah_init_attr *init, struct ib_udata *udata);
int thca_destroy_ah(struct ib_ah *ib, u32 flags);

/* counters.c */
void thca_count(struct thca_dev *dev, enum thca_counter counter, u64 n);
struct rdma_hw_stats *thca_alloc_hw_port_stats(struct ib_device *ib, u32 port);
int thca_get_hw_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index);

/* cq.c */
int thca_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
		   struct uverbs_attr_bundle *attrs);
int thca_destroy_cq(struct ib_cq *ib, struct ib_udata *udata);
int thca_poll_cq(struct ib_cq *ib, int n, struct ib_wc *wc);
int thca_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags);
bool thca_cq_push(struct thca_cq *cq, const struct thca_cqe *cqe, bool solicited,
		  struct list_head *fire);
void thca_cq_forget(struct thca_cq *cq, struct ib_qp *qp);
void thca_cq_fire(struct list_head *fire);

/* device.c */
extern struct mutex thca_link_mutex;
int thca_add(const char *name, struct net_device *netdev);

/* engine.c */
void thca_engine_init(void);
void thca_engine_exit(void);
void thca_kick(struct thca_qp *qp);
void thca_wait_until(struct thca_qp *qp, ktime_t when);
void thca_quiesce(struct thca_qp *qp);
enum hrtimer_restart thca_timer(struct hrtimer *timer);

/* fault.c */
extern bool thca_hard_interrupt, thca_vector_cpus;
u32 thca_max_sge(void);
bool thca_iwarp(void);
u32 thca_max_sge_rd(void);
u32 thca_max_srq(void);
bool thca_has_srq_ops(void);
bool thca_mem_mgt(void);
bool thca_remote_inv(void);
u32 thca_max_pages(void);
u32 thca_max_wr(void);
u32 thca_page_sizes(void);
u32 thca_max_rd_atom(void);
u64 thca_reg_ns(void);
bool thca_invalidation_fails(struct thca_dev *dev);
bool thca_completion_is_lost(struct thca_dev *dev);
bool thca_sent_is_lost(struct thca_dev *dev);
bool thca_ignores_rights(void);
bool thca_completes_twice(void);
bool thca_take_qp(struct thca_dev *dev);
u32 thca_vectors(void);
bool thca_has_last_wqe(void);
u64 thca_late_ns(void);
bool thca_ack_is_lost(struct thca_dev *dev);
bool thca_message_is_lost(struct thca_dev *dev);
bool thca_mad_is_lost(struct thca_dev *dev);
bool thca_post_fails(struct thca_dev *dev);
bool thca_refuses(const struct thca_dev *dev);
bool thca_modify_to_err_fails(struct thca_dev *dev);

/* function.c */
int thca_functions_init(void);
void thca_functions_exit(void);
struct thca_function *thca_function_get(struct thca_dev *dev);
void thca_function_put(struct thca_function *function);
struct device *thca_function_device(struct thca_function *function);

/* gid.c */
void thca_gid_add_device(struct thca_dev *dev);
void thca_gid_remove_device(struct thca_dev *dev);
int thca_add_gid(const struct ib_gid_attr *attr, void **context);
int thca_del_gid(const struct ib_gid_attr *attr, void **context);
void thca_set_link(struct thca_dev *dev, bool up);
struct thca_dev *thca_find_netdev(const struct net_device *netdev);
void thca_source_gid(struct thca_dev *dev, union ib_gid *sgid, const union ib_gid *dgid);
struct thca_qp *thca_find_qp(struct thca_dev *from, const union ib_gid *gid, u32 qpn);
void thca_put_qp(struct thca_qp *qp);

/* mcast.c */
int thca_attach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid);
int thca_detach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid);
enum ib_wc_status thca_send_mcast(struct thca_qp *qp, struct thca_swqe *wqe, u32 qkey,
				  struct list_head *fire);

/* memory.c */
struct iommu_domain *thca_domain(struct device *dev);
void *thca_dma_to_virt(struct thca_dev *dev, u64 addr, size_t *len);
void thca_cursor_sges(struct thca_cursor *c, struct thca_qp *qp, const struct ib_sge *sge,
		      u32 num_sge, int access);
int thca_cursor_skip(struct thca_cursor *c, u32 bytes);
int thca_cursor_next(struct thca_cursor *c, void **p, size_t *len);
void thca_cursor_close(struct thca_cursor *c);
void thca_send_cursor(struct thca_cursor *c, struct thca_qp *qp, struct thca_swqe *wqe,
		      int access);
enum thca_copied { THCA_COPIED, THCA_BAD_FROM, THCA_BAD_TO };
enum thca_copied thca_copy(struct thca_cursor *to, struct thca_cursor *from, u32 bytes);

/* mr.c */
struct ib_mr *thca_get_dma_mr(struct ib_pd *pd, int access);
struct ib_mr *thca_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt, int access,
			       struct ib_dmah *dmah, struct ib_udata *udata);
struct ib_mr *thca_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_num_sg);
int thca_map_mr_sg(struct ib_mr *ib, struct scatterlist *sg, int nents, unsigned int *offset);
int thca_dereg_mr(struct ib_mr *ib, struct ib_udata *udata);
struct thca_mr *thca_mr_get(struct thca_dev *dev, struct ib_pd *pd, u32 key, u64 addr, u64 length,
			    int access);
void thca_mr_put(struct thca_mr *mr);
bool thca_mr_register(struct thca_qp *qp, const struct thca_swqe *wqe);
bool thca_mr_invalidate(struct thca_qp *qp, u32 key);
u32 thca_mr_writable(struct thca_dev *dev);

/* qp.c */
int thca_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *init, struct ib_udata *udata);
int thca_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int thca_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
		  struct ib_qp_init_attr *init);
int thca_destroy_qp(struct ib_qp *ib, struct ib_udata *udata);
enum ib_qp_state thca_qp_state(struct thca_qp *qp);
void thca_qp_error(struct thca_qp *qp);

/* rc.c */
bool thca_run_rc(struct thca_qp *qp, struct list_head *fire);
void thca_complete_send(struct thca_qp *qp, struct thca_swqe *wqe, enum ib_wc_status status,
			struct list_head *fire);
struct thca_swqe *thca_next_send(struct thca_qp *qp);
void thca_flush(struct thca_qp *qp, struct list_head *fire);
bool thca_waits(struct thca_qp *qp, struct thca_swqe *wqe);
bool thca_is_peer(const struct thca_qp *peer, const struct thca_qp *qp);

/* responder.c */
enum thca_answer {
	/* The burst has been moved; there is more of the message. */
	THCA_MORE,
	/* The message is complete. */
	THCA_ACK,
	THCA_RNR,
	THCA_INVALID_REQUEST,
	THCA_ACCESS_ERROR,
	THCA_OPERATION_ERROR,
	/* The requester's own memory. */
	THCA_LOCAL_ERROR,
	THCA_LOCAL_LENGTH,
};

enum thca_answer thca_respond(struct thca_qp *qp, struct thca_swqe *wqe, struct thca_qp *peer,
			      struct list_head *fire);
void thca_complete_recv(struct thca_qp *qp, struct thca_cqe *cqe, bool solicited,
			struct list_head *fire);
bool thca_take_recv(struct thca_qp *qp);

/* rq.c */
int thca_rq_init(struct thca_rq *rq, u32 size, u32 max_sge);
void thca_rq_free(struct thca_rq *rq);
void thca_rq_reset(struct thca_rq *rq);
int thca_rq_post(struct thca_rq *rq, const struct ib_recv_wr *wr);
bool thca_rq_pop(struct thca_rq *rq, struct thca_rwqe *to, bool *limit);
int thca_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);

/* send.c */
int thca_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad);

/* srq.c */
int thca_create_srq(struct ib_srq *ib, struct ib_srq_init_attr *init, struct ib_udata *udata);
int thca_modify_srq(struct ib_srq *ib, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		    struct ib_udata *udata);
int thca_query_srq(struct ib_srq *ib, struct ib_srq_attr *attr);
int thca_destroy_srq(struct ib_srq *ib, struct ib_udata *udata);
int thca_post_srq_recv(struct ib_srq *ib, const struct ib_recv_wr *wr,
		       const struct ib_recv_wr **bad);

/* uc.c */
bool thca_send_uc(struct thca_qp *qp, struct thca_swqe *wqe, enum ib_wc_status *status,
		  struct list_head *fire);

/* ud.c */
enum ib_wc_status thca_deliver(struct thca_qp *qp, struct thca_swqe *wqe, struct thca_qp *peer,
			       u32 qkey, struct list_head *fire);
enum ib_wc_status thca_send_ud(struct thca_qp *qp, struct thca_swqe *wqe, struct list_head *fire);

/* unacked.c */
bool thca_run_unacked(struct thca_qp *qp, struct list_head *fire);

/* wire.c */
ktime_t thca_wire_due(struct thca_dev *dev, u32 bytes);
u64 thca_rnr_ns(u8 timer);
u64 thca_ack_ns(u8 timeout);

#endif
