// SPDX-License-Identifier: GPL-2.0
#include <linux/completion.h>
#include <linux/irqflags.h>
#include <linux/mutex.h>
#include <linux/percpu-refcount.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/wait_bit.h>
#include <linux/workqueue.h>

/*
 * How many spinlocks of rust/base/sync.rs this CPU holds, and whether interrupts were enabled
 * before the first one. Both are used with interrupts disabled only.
 */
struct farblk_irqs {
	unsigned int held;
	unsigned long flags;
};

static DEFINE_PER_CPU(struct farblk_irqs, farblk_irqs);

static __always_inline void farblk_irqs_get(void)
{
#ifndef CONFIG_PREEMPT_RT
	unsigned long flags;

	local_irq_save(flags);
	if (raw_cpu_inc_return(farblk_irqs.held) == 1)
		raw_cpu_write(farblk_irqs.flags, flags);
#endif
}

static __always_inline void farblk_irqs_put(void)
{
#ifndef CONFIG_PREEMPT_RT
	if (raw_cpu_dec_return(farblk_irqs.held) == 0)
		local_irq_restore(raw_cpu_read(farblk_irqs.flags));
#endif
}

__rust_helper void rust_helper_farblk_spin_lock(spinlock_t *lock)
{
	farblk_irqs_get();
	spin_lock(lock);
}

__rust_helper bool rust_helper_farblk_spin_trylock(spinlock_t *lock)
{
	farblk_irqs_get();
	if (spin_trylock(lock))
		return true;
	farblk_irqs_put();
	return false;
}

__rust_helper void rust_helper_farblk_spin_unlock(spinlock_t *lock)
{
#ifdef CONFIG_PREEMPT_RT
	spin_unlock(lock);
#else
	/* Whoever has to run now does so with interrupts enabled. */
	unsigned long flags = raw_cpu_read(farblk_irqs.flags);

	if (raw_cpu_dec_return(farblk_irqs.held) == 0)
		spin_unlock_irqrestore(lock, flags);
	else
		spin_unlock(lock);
#endif
}

/* For tests. */
__rust_helper bool rust_helper_farblk_irqs_disabled(void)
{
	return irqs_disabled();
}

__rust_helper void rust_helper_farblk_irqs_enable(void)
{
	local_irq_enable();
}

/* Whether a task may go on that only looks whether there is something to do. */
__rust_helper bool rust_helper_farblk_may_look_on(void)
{
	if (!single_task_running() || need_resched())
		return false;
	cpu_relax();
	return true;
}

__rust_helper void rust_helper_reinit_completion(struct completion *x)
{
	reinit_completion(x);
}

__rust_helper void rust_helper_mutex_init(struct mutex *lock)
{
	mutex_init(lock);
}

__rust_helper bool rust_helper_percpu_ref_tryget_live(struct percpu_ref *ref)
{
	return percpu_ref_tryget_live(ref);
}

__rust_helper void rust_helper_percpu_ref_put(struct percpu_ref *ref)
{
	percpu_ref_put(ref);
}

__rust_helper void rust_helper_percpu_ref_kill(struct percpu_ref *ref)
{
	percpu_ref_kill(ref);
}

__rust_helper struct workqueue_struct *rust_helper_alloc_workqueue(const char *name,
								   unsigned int flags,
								   int max_active)
{
	return alloc_workqueue("%s", flags, max_active, name);
}

__rust_helper struct workqueue_struct *rust_helper_alloc_ordered_workqueue(const char *name,
									   unsigned int flags)
{
	return alloc_ordered_workqueue("%s", flags, name);
}

__rust_helper void rust_helper_flush_workqueue(struct workqueue_struct *wq)
{
	flush_workqueue(wq);
}

__rust_helper void rust_helper_farblk_init_delayed_work(struct delayed_work *work, work_func_t func)
{
	INIT_DELAYED_WORK(work, func);
}

__rust_helper void rust_helper_farblk_queue_delayed_work(struct delayed_work *work,
							 unsigned long jiffies)
{
	queue_delayed_work(system_freezable_wq, work, jiffies);
}

__rust_helper void rust_helper_farblk_timer_setup(struct timer_list *timer,
						  void (*func)(struct timer_list *))
{
	timer_setup(timer, func, 0);
}

__rust_helper void rust_helper_farblk_mod_timer(struct timer_list *timer, unsigned long delay)
{
	mod_timer(timer, jiffies + delay);
}

/* wait_var_event(var, !*var), to be woken by wake_up_var(var). */
__rust_helper void rust_helper_wait_var_zero(atomic_t *var)
{
	wait_var_event(var, !atomic_read_acquire(var));
}

__rust_helper unsigned int rust_helper_memalloc_noio_save(void)
{
	return memalloc_noio_save();
}

__rust_helper void rust_helper_memalloc_noio_restore(unsigned int flags)
{
	memalloc_noio_restore(flags);
}

__rust_helper unsigned int rust_helper_memalloc_noreclaim_save(void)
{
	return memalloc_noreclaim_save();
}

__rust_helper void rust_helper_memalloc_noreclaim_restore(unsigned int flags)
{
	memalloc_noreclaim_restore(flags);
}

/*
 * Without CONFIG_TASKS_RCU it is synchronize_rcu(). That is enough where no task is preempted in
 * the kernel. A preemptible kernel has CONFIG_TASKS_RCU if it has kprobes, BPF programs or ftrace.
 */
__rust_helper void rust_helper_farblk_synchronize_rcu_tasks(void)
{
	synchronize_rcu_tasks();
}

__rust_helper bool rust_helper_farblk_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}
