// SPDX-License-Identifier: GPL-2.0
/* Used only by files whose place the kernel crate takes in the series for the kernel. */
#include <crypto/sha2.h>
#include <linux/completion.h>
#include <linux/highmem.h>
#include <linux/irqflags.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/nsproxy.h>
#include <linux/percpu-refcount.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>

/*
 * How many spinlocks of rust/base/spinlock.rs this CPU holds, and whether interrupts were enabled
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

__rust_helper void rust_helper_reinit_completion(struct completion *x)
{
	reinit_completion(x);
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

/* A task that exits has no nsproxy any more. */
__rust_helper struct net *rust_helper_get_current_net(void)
{
	return get_net(current->nsproxy ? current->nsproxy->net_ns : &init_net);
}

__rust_helper struct net *rust_helper_get_net(struct net *net)
{
	return get_net(net);
}

__rust_helper void rust_helper_put_net(struct net *net)
{
	put_net(net);
}

__rust_helper void rust_helper_sha256_update(struct sha256_ctx *ctx, const u8 *data, size_t len)
{
	sha256_update(ctx, data, len);
}

__rust_helper void rust_helper_hmac_sha256_update(struct hmac_sha256_ctx *ctx, const u8 *data,
						  size_t len)
{
	hmac_sha256_update(ctx, data, len);
}

__rust_helper bool rust_helper_node_online(int node)
{
	return node_online(node);
}

__rust_helper unsigned long rust_helper_totalram_pages(void)
{
	return totalram_pages();
}

__rust_helper void rust_helper_farblk_clear_pages(struct page *page, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		clear_highpage(page + i);
		cond_resched();
	}
}

__rust_helper u64 rust_helper_farblk_page_to_phys(struct page *page)
{
	return page_to_phys(page);
}

/* memmove() of memory that others may write at the same time: in Rust that would be undefined. */
__rust_helper void rust_helper_farblk_copy_racy(void *to, const void *from, size_t len)
{
	memmove(to, from, len);
}

__rust_helper void rust_helper_memzero_explicit(void *s, size_t count)
{
	memzero_explicit(s, count);
}
