/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Delays after unlocks. suites.py builds the module with this file before each of its sources. The
 * moment after an unlock lasts longer then, and code that relies on a lock that is free shows.
 *
 * Each unlock of the module tells the log when it is reached for the first time.
 */
#ifndef TMESH_TEST_WIDEN_H
#define TMESH_TEST_WIDEN_H

#include <linux/atomic.h>
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/mmap_lock.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/preempt.h>
#include <linux/printk.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/rhashtable.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/string.h>

struct tmesh_wide {
	const char *file;
	int line;
	atomic_t told;
};

/* One in 16 takes long, because little would happen else. A process that ends does not sleep. */
static __maybe_unused noinline void tmesh_widen(struct tmesh_wide *place)
{
	const char *file = strstr(place->file, "kmod/");
	unsigned int dice = get_random_u32();

	if (!file)
		return;
	if (!atomic_xchg(&place->told, 1))
		pr_info("tmesh widened: %s:%d\n", strrchr(file, '/') + 1, place->line);
	if (dice % 16)
		return;
	if (in_atomic() || irqs_disabled() || rcu_preempt_depth() || current->flags & PF_EXITING)
		udelay(dice / 16 % 50);
	else
		msleep(1 + dice / 16 % 4);
}

#define TMESH_WIDEN()                                                                   \
	do {                                                                            \
		static struct tmesh_wide place_ = { .file = __FILE__, .line = __LINE__ }; \
		tmesh_widen(&place_);                                                   \
	} while (0)

#define mutex_unlock(lock) do { (mutex_unlock)(lock); TMESH_WIDEN(); } while (0)
#define up_read(lock) do { (up_read)(lock); TMESH_WIDEN(); } while (0)
#define up_write(lock) do { (up_write)(lock); TMESH_WIDEN(); } while (0)
#define spin_unlock(lock) do { (spin_unlock)(lock); TMESH_WIDEN(); } while (0)
#define spin_unlock_irq(lock) do { (spin_unlock_irq)(lock); TMESH_WIDEN(); } while (0)
#define spin_unlock_irqrestore(lock, flags) \
	do { (spin_unlock_irqrestore)(lock, flags); TMESH_WIDEN(); } while (0)
#define rcu_read_unlock() do { (rcu_read_unlock)(); TMESH_WIDEN(); } while (0)
#define dma_resv_unlock(lock) do { (dma_resv_unlock)(lock); TMESH_WIDEN(); } while (0)
#define folio_unlock(folio) do { (folio_unlock)(folio); TMESH_WIDEN(); } while (0)
#define unlock_page(page) do { (unlock_page)(page); TMESH_WIDEN(); } while (0)
#define inode_unlock(inode) do { (inode_unlock)(inode); TMESH_WIDEN(); } while (0)
#define mmap_read_unlock(mm) do { (mmap_read_unlock)(mm); TMESH_WIDEN(); } while (0)

#endif /* TMESH_TEST_WIDEN_H */
