// SPDX-License-Identifier: GPL-2.0
#include <linux/completion.h>
#include <linux/mutex.h>
#include <linux/percpu-refcount.h>
#include <linux/sched/mm.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/wait_bit.h>
#include <linux/workqueue.h>

__rust_helper unsigned long rust_helper_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

__rust_helper bool rust_helper_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	return spin_trylock_irqsave(lock, *flags);
}

__rust_helper void rust_helper_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
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

__rust_helper struct workqueue_struct *rust_helper_alloc_workqueue(const char *name, unsigned int flags,
								   int max_active)
{
	return alloc_workqueue("%s", flags, max_active, name);
}

__rust_helper struct workqueue_struct *rust_helper_alloc_ordered_workqueue(const char *name, unsigned int flags)
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

__rust_helper void rust_helper_farblk_queue_delayed_work(struct delayed_work *work, unsigned long jiffies)
{
	queue_delayed_work(system_freezable_wq, work, jiffies);
}

__rust_helper void rust_helper_farblk_timer_setup(struct timer_list *timer, void (*func)(struct timer_list *))
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
