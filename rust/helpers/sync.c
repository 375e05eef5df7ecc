// SPDX-License-Identifier: GPL-2.0
#include <linux/irqflags.h>
#include <linux/mutex.h>
#include <linux/ratelimit.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include <linux/wait_bit.h>

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

__rust_helper void rust_helper_ratelimit_default_init(struct ratelimit_state *rs)
{
	ratelimit_default_init(rs);
}

__rust_helper void rust_helper_mutex_init(struct mutex *lock)
{
	mutex_init(lock);
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
