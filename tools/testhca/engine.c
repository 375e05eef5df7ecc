// SPDX-License-Identifier: GPL-2.0
/*
 * The engine: a tasklet on each CPU, which looks at the queue pairs that have been kicked there. At
 * most one of them looks at a queue pair at a time: kicks are counted, and only the first one of
 * several puts it into a list.
 */
#include <linux/delay.h>
#include <linux/irq_work.h>
#include <linux/percpu.h>
#include <asm/irq_work.h>
#include "testhca.h"

struct engine {
	struct llist_head kicked;
	struct tasklet_struct tasklet;
	struct irq_work doorbell;
};

static DEFINE_PER_CPU(struct engine, engines);

static void deliver(struct thca_qp *qp)
{
	static const enum ib_event_type types[] = {
		[THCA_EVENT_ESTABLISHED] = IB_EVENT_COMM_EST,
		[THCA_EVENT_ACCESS] = IB_EVENT_QP_ACCESS_ERR,
		[THCA_EVENT_REQUEST] = IB_EVENT_QP_REQ_ERR,
		[THCA_EVENT_FATAL] = IB_EVENT_QP_FATAL,
		[THCA_EVENT_SRQ_LIMIT] = IB_EVENT_SRQ_LIMIT_REACHED,
		[THCA_EVENT_LAST_WQE] = IB_EVENT_QP_LAST_WQE_REACHED,
	};
	struct ib_event event = { .device = qp->ib.device };
	int i;

	for (i = 0; i < ARRAY_SIZE(types); i++) {
		if (!test_and_clear_bit(i, &qp->events))
			continue;
		event.event = types[i];
		if (i == THCA_EVENT_SRQ_LIMIT) {
			event.element.srq = qp->ib.srq;
			if (qp->ib.srq->event_handler)
				qp->ib.srq->event_handler(&event, qp->ib.srq->srq_context);
		} else {
			event.element.qp = &qp->ib;
			if (qp->ib.event_handler)
				qp->ib.event_handler(&event, qp->ib.qp_context);
		}
	}
}

static void queue(struct thca_qp *qp)
{
	struct engine *engine = get_cpu_ptr(&engines);

	llist_add(&qp->node, &engine->kicked);
	/*
	 * Outside of interrupts a tasklet waits for ksoftirqd. That would make posting with
	 * interrupts off as dear as a task, which no hardware does.
	 */
	if (!in_interrupt() && arch_irq_work_has_interrupt())
		irq_work_queue(&engine->doorbell);
	else
		tasklet_schedule(&engine->tasklet);
	put_cpu_ptr(&engines);
}

static void ring(struct irq_work *doorbell)
{
	tasklet_schedule(&container_of(doorbell, struct engine, doorbell)->tasklet);
}

static void look_at(struct thca_qp *qp)
{
	int kicks = atomic_read_acquire(&qp->kicks);
	LIST_HEAD(fire);
	bool more;

	more = qp->ib.qp_type == IB_QPT_RC ? thca_run_rc(qp, &fire) : thca_run_unacked(qp, &fire);
	thca_cq_fire(&fire);
	if (READ_ONCE(qp->events) && !READ_ONCE(to_dev(qp->ib.device)->fatal))
		deliver(qp);
	/* After the last one of these it may be gone. */
	if (more || atomic_sub_return(kicks, &qp->kicks))
		queue(qp);
}

static void run(struct tasklet_struct *tasklet)
{
	struct engine *engine = container_of(tasklet, struct engine, tasklet);
	struct llist_node *list = llist_reverse_order(llist_del_all(&engine->kicked));
	struct thca_qp *qp, *next;

	llist_for_each_entry_safe(qp, next, list, node)
		look_at(qp);
}

/*
 * Lets the engine look at a queue pair. Any context. Where that is possible it does so before this
 * returns: what hardware does at once the CPU has to do here, and an interrupt may come at any
 * time. With interrupts off, that is the interrupt of the doorbell, once they are on. With
 * interrupts on it is, too, though there is a cheaper way: hardware does not charge a driver for
 * posting with interrupts off. Within interrupts, and with bottom halves off, a tasklet is enough.
 */
void thca_kick(struct thca_qp *qp)
{
	bool direct = !in_interrupt() && !irqs_disabled() && !arch_irq_work_has_interrupt();

	if (atomic_inc_return(&qp->kicks) != 1)
		return;
	if (direct)
		local_bh_disable();
	queue(qp);
	if (direct)
		local_bh_enable();
}

enum hrtimer_restart thca_timer(struct hrtimer *timer)
{
	thca_kick(container_of(timer, struct thca_qp, timer));
	return HRTIMER_NORESTART;
}

/* Nothing is executed until then. Only the engine calls this. */
void thca_wait_until(struct thca_qp *qp, ktime_t when)
{
	qp->pause = when;
	hrtimer_start(&qp->timer, when, HRTIMER_MODE_ABS_SOFT);
}

/* Waits until no engine has a queue pair that has nothing more to do: it is dead, or was reset. */
void thca_quiesce(struct thca_qp *qp)
{
	while (atomic_read_acquire(&qp->kicks))
		usleep_range(50, 100);
	hrtimer_cancel(&qp->timer);
	while (atomic_read_acquire(&qp->kicks))
		usleep_range(50, 100);
}

void thca_engine_init(void)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		struct engine *engine = per_cpu_ptr(&engines, cpu);

		init_llist_head(&engine->kicked);
		tasklet_setup(&engine->tasklet, run);
		init_irq_work(&engine->doorbell, ring);
	}
}

void thca_engine_exit(void)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		irq_work_sync(&per_cpu_ptr(&engines, cpu)->doorbell);
		tasklet_kill(&per_cpu_ptr(&engines, cpu)->tasklet);
	}
}
