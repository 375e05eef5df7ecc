// SPDX-License-Identifier: GPL-2.0
/*
 * Completion queues. They have exactly as many entries as were asked for: one more is an overrun,
 * after which the queue is dead, and so is every queue pair that wants to complete something in it.
 */
#include <linux/delay.h>
#include <linux/slab.h>
#include "testhca.h"

/* Puts the queue into the list for thca_cq_fire() if somebody is to be told. */
static void tell(struct thca_cq *cq, bool solicited, struct list_head *fire)
{
	if (cq->armed == IB_CQ_NEXT_COMP || (cq->armed && solicited)) {
		cq->armed = 0;
		cq->completion = true;
	}
	if (cq->firing || (!cq->completion && !cq->error))
		return;
	cq->firing = true;
	atomic_inc(&cq->users);
	list_add_tail(&cq->fire_node, fire);
}

/* What was late appears. */
static enum hrtimer_restart appear(struct hrtimer *timer)
{
	struct thca_cq *cq = container_of(timer, struct thca_cq, timer);
	LIST_HEAD(fire);

	spin_lock_irq(&cq->lock);
	cq->visible = cq->count;
	tell(cq, cq->late_solicited, &fire);
	cq->late_solicited = false;
	spin_unlock_irq(&cq->lock);
	thca_cq_fire(&fire);
	return HRTIMER_NORESTART;
}

static void call_handlers(struct thca_cq *cq)
{
	if (cq->ib.comp_handler)
		cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
}

static void cq_interrupt(struct irq_work *work)
{
	call_handlers(container_of(work, struct thca_cq, interrupt));
}

static void remote_interrupt(void *data)
{
	struct thca_cq *cq = data;

	call_handlers(cq);
	atomic_dec_return_release(&cq->users);
}

/* Has the CPU of the queue's vector call the handlers. Returns false if it cannot. */
static bool interrupt_vector(struct thca_cq *cq)
{
	/* Where CPUs go offline another one does it. */
	unsigned int cpu = cpumask_nth(cq->vector % num_online_cpus(), cpu_online_mask);

	return cpu < nr_cpu_ids && !smp_call_function_single_async(cpu, &cq->remote);
}

int thca_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
		   struct uverbs_attr_bundle *attrs)
{
	struct thca_cq *cq = to_cq(ib);

	if (thca_refuses(to_dev(ib->device)))
		return -EIO;
	if (attr->flags || !attr->cqe || attr->cqe > THCA_MAX_CQE ||
	    attr->comp_vector >= ib->device->num_comp_vectors)
		return -EINVAL;
	cq->ring = kvcalloc(attr->cqe, sizeof(*cq->ring), GFP_KERNEL);
	if (!cq->ring)
		return -ENOMEM;
	spin_lock_init(&cq->lock);
	init_irq_work(&cq->interrupt, cq_interrupt);
	INIT_CSD(&cq->remote, remote_interrupt, cq);
	cq->vector = attr->comp_vector;
	hrtimer_setup(&cq->timer, appear, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	cq->size = attr->cqe;
	ib->cqe = attr->cqe;
	return 0;
}

int thca_destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	struct thca_cq *cq = to_cq(ib);

	hrtimer_cancel(&cq->timer);
	while (atomic_read_acquire(&cq->users))
		usleep_range(50, 100);
	irq_work_sync(&cq->interrupt);
	kvfree(cq->ring);
	return 0;
}

int thca_poll_cq(struct ib_cq *ib, int n, struct ib_wc *wc)
{
	struct thca_cq *cq = to_cq(ib);
	unsigned long flags;
	int i;

	spin_lock_irqsave(&cq->lock, flags);
	for (i = 0; i < n && cq->visible; i++) {
		struct thca_cqe *cqe = &cq->ring[cq->head];

		wc[i] = cqe->wc;
		if (cqe->rq)
			atomic_dec(&cqe->rq->used);
		else
			WRITE_ONCE(to_qp(cqe->wc.qp)->sq.polled, cqe->sq_end);
		if (++cq->head == cq->size)
			cq->head = 0;
		cq->count--;
		cq->visible--;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	return i;
}

int thca_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags)
{
	struct thca_cq *cq = to_cq(ib);
	unsigned long irq;
	int missed;

	spin_lock_irqsave(&cq->lock, irq);
	if (cq->armed != IB_CQ_NEXT_COMP)
		cq->armed = flags & IB_CQ_SOLICITED_MASK;
	missed = (flags & IB_CQ_REPORT_MISSED_EVENTS) && cq->visible;
	spin_unlock_irqrestore(&cq->lock, irq);
	return missed;
}

/* Adds a completion. Returns false if there was no place. */
bool thca_cq_push(struct thca_cq *cq, const struct thca_cqe *cqe, bool solicited,
		  struct list_head *fire)
{
	unsigned long flags;
	bool overrun;
	u64 late;
	u32 at;

	solicited |= cqe->wc.status != IB_WC_SUCCESS;
	spin_lock_irqsave(&cq->lock, flags);
	if (!cq->overrun && cq->count == cq->size) {
		cq->overrun = true;
		cq->error = true;
		thca_count(to_dev(cq->ib.device), THCA_CQ_OVERRUNS, 1);
		tell(cq, false, fire);
	}
	overrun = cq->overrun;
	if (!overrun) {
		at = cq->head + cq->count++;
		cq->ring[at < cq->size ? at : at - cq->size] = *cqe;
		late = thca_late_ns();
		if (cq->visible + 1 < cq->count) {
			/* One before it is late, and it cannot overtake that. */
			cq->late_solicited |= solicited;
		} else if (late) {
			cq->late_solicited |= solicited;
			hrtimer_start(&cq->timer, late, HRTIMER_MODE_REL_SOFT);
		} else {
			cq->visible++;
			tell(cq, solicited, fire);
		}
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	return !overrun;
}

/* Calls the handlers of all queues in the list, with no lock held. */
void thca_cq_fire(struct list_head *fire)
{
	struct thca_cq *cq;

	while ((cq = list_first_entry_or_null(fire, struct thca_cq, fire_node))) {
		struct ib_event event = {
			.device = cq->ib.device,
			.element.cq = &cq->ib,
			.event = IB_EVENT_CQ_ERR,
		};
		bool completion, error;

		spin_lock_irq(&cq->lock);
		list_del(&cq->fire_node);
		completion = cq->completion;
		error = cq->error;
		cq->completion = false;
		cq->error = false;
		cq->firing = false;
		spin_unlock_irq(&cq->lock);
		if (error) {
			ibdev_warn(cq->ib.device, "completion queue overrun\n");
			if (cq->ib.event_handler)
				cq->ib.event_handler(&event, cq->ib.cq_context);
		}
		if (completion && thca_vector_cpus && interrupt_vector(cq))
			continue;
		if (completion && thca_hard_interrupt)
			irq_work_queue(&cq->interrupt);
		else if (completion)
			call_handlers(cq);
		atomic_dec_return_release(&cq->users);
	}
}

/* Removes the completions of a queue pair that is reset or destroyed. */
void thca_cq_forget(struct thca_cq *cq, struct ib_qp *qp)
{
	unsigned long flags;
	u32 i, left = 0, visible = 0;

	spin_lock_irqsave(&cq->lock, flags);
	for (i = 0; i < cq->count; i++) {
		struct thca_cqe *cqe = &cq->ring[(cq->head + i) % cq->size];

		if (cqe->wc.qp == qp) {
			if (cqe->rq)
				atomic_dec(&cqe->rq->used);
			continue;
		}
		if (i != left)
			cq->ring[(cq->head + left) % cq->size] = *cqe;
		left++;
		if (i < cq->visible)
			visible++;
	}
	cq->count = left;
	cq->visible = visible;
	spin_unlock_irqrestore(&cq->lock, flags);
}
