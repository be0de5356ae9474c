// SPDX-License-Identifier: GPL-2.0-only
/*
 * Looking whether leases are touched.
 *
 * Leases of one period form a class, which one work walks every quarter of the period. What the
 * walk needs of a lease stands densely in blocks, so that the counters themselves, a page each,
 * are all that it fetches from far away; they are prefetched. Joining and leaving a class move
 * one entry at most.
 *
 * A walk goes from the end to the beginning. An entry that leaves is replaced by the last, which
 * was looked at before, so that nobody is overlooked although the lock is let go between blocks.
 */
#include <linux/ktime.h>
#include <linux/prefetch.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "tmesh.h"

#define TMESH_LOOKS 4 /* in a period */
#define TMESH_BLOCK_ENTRIES 127
#define TMESH_PREFETCH 8

/**
 * struct tmesh_look - a lease as a walk sees it
 * @touched: its counter; user space writes to it
 * @seen:    what it was at the last look
 * @since:   when a look saw it change for the last time
 * @lease:   the lease, which knows where this stands
 */
struct tmesh_look {
	const u64 *touched;
	u64 seen;
	u64 since;
	struct tmesh_tenure *lease;
};

/**
 * struct tmesh_block - a page of entries
 * @node:  in the class's list
 * @used:  entries in use, from the first on
 * @looks: the entries
 */
struct tmesh_block {
	struct list_head node;
	unsigned int used;
	struct tmesh_look looks[TMESH_BLOCK_ENTRIES];
};

/**
 * struct tmesh_class - leases of one period
 * @period_ns: constant
 * @users:     leases, started or not; guarded by the lock of @classes
 * @walk:      pending or running as long as the class is in @classes
 * @lock:      guards all below, and the leases' @block and @slot
 * @blocks:    all of them full but the last
 * @cursor:    where the walk goes on
 * @walks:     how many there have been
 * @walk_ns:   how long they took
 */
struct tmesh_class {
	u64 period_ns;
	unsigned long users;
	struct delayed_work walk;
	spinlock_t lock;
	struct list_head blocks;
	struct tmesh_block *cursor;
	u64 walks;
	u64 walk_ns;
};

/* By period. */
static DEFINE_XARRAY(classes);

/* Takes an entry out; the last one fills its place. */
static void tmesh_class_remove(struct tmesh_class *class, struct tmesh_tenure *lease)
{
	struct tmesh_block *last = list_last_entry(&class->blocks, struct tmesh_block, node);
	struct tmesh_look *moved = &last->looks[--last->used];

	lockdep_assert_held(&class->lock);
	lease->block->looks[lease->slot] = *moved;
	moved->lease->block = lease->block;
	moved->lease->slot = lease->slot;
	lease->block = NULL;
	if (last->used)
		return;
	if (class->cursor == last)
		class->cursor = list_is_first(&last->node, &class->blocks) ?
					NULL : list_prev_entry(last, node);
	list_del(&last->node);
	kfree(last);
}

static void tmesh_walk_block(struct tmesh_class *class, struct tmesh_block *block)
{
	unsigned int i = block->used;
	u64 now = ktime_get_ns();

	/* It may be freed with its first entry, but not before. */
	while (i--) {
		struct tmesh_look *look = &block->looks[i];
		u64 touched = READ_ONCE(*look->touched);

		if (i >= TMESH_PREFETCH)
			prefetch(block->looks[i - TMESH_PREFETCH].touched);
		if (touched != look->seen) {
			look->seen = touched;
			look->since = now;
		} else if (now - look->since >= class->period_ns) {
			struct tmesh_tenure *lease = look->lease;

			tmesh_class_remove(class, lease);
			tmesh_lease_due(lease);
		}
	}
}

/* Counted from the end of a walk, so that two looks at an entry are never closer than this. */
static void tmesh_class_arm(struct tmesh_class *class)
{
	u64 us = DIV_ROUND_UP_ULL(class->period_ns / TMESH_LOOKS, NSEC_PER_USEC);

	queue_delayed_work(tmesh_wq, &class->walk, usecs_to_jiffies(us) + 1);
}

static void tmesh_walk(struct work_struct *work)
{
	struct tmesh_class *class = container_of(to_delayed_work(work), struct tmesh_class, walk);
	u64 began = ktime_get_ns();
	struct tmesh_block *block;

	spin_lock(&class->lock);
	if (!list_empty(&class->blocks))
		class->cursor = list_last_entry(&class->blocks, struct tmesh_block, node);
	while ((block = class->cursor)) {
		class->cursor = list_is_first(&block->node, &class->blocks) ?
					NULL : list_prev_entry(block, node);
		tmesh_walk_block(class, block);
		cond_resched_lock(&class->lock);
	}
	class->walks++;
	class->walk_ns += ktime_get_ns() - began;
	spin_unlock(&class->lock);

	xa_lock(&classes);
	if (class->users) {
		tmesh_class_arm(class);
		xa_unlock(&classes);
		return;
	}
	__xa_erase(&classes, class->period_ns);
	xa_unlock(&classes);
	/* Its last user may have hurried this work once more. */
	cancel_delayed_work(&class->walk);
	kfree(class);
}

static struct tmesh_class *tmesh_class_find(u64 period_ns)
{
	struct tmesh_class *class;

	xa_lock(&classes);
	class = xa_load(&classes, period_ns);
	if (class)
		class->users++;
	xa_unlock(&classes);
	return class;
}

static struct tmesh_class *tmesh_class_get(u64 period_ns)
{
	struct tmesh_class *class, *new;
	int rc;

	for (;;) {
		class = tmesh_class_find(period_ns);
		if (class)
			return class;
		new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT);
		if (!new)
			return ERR_PTR(-ENOMEM);
		new->period_ns = period_ns;
		new->users = 1;
		INIT_DELAYED_WORK(&new->walk, tmesh_walk);
		spin_lock_init(&new->lock);
		INIT_LIST_HEAD(&new->blocks);
		rc = xa_insert(&classes, period_ns, new, GFP_KERNEL_ACCOUNT);
		if (!rc) {
			tmesh_class_arm(new);
			return new;
		}
		kfree(new);
		if (rc != -EBUSY)
			return ERR_PTR(rc);
	}
}

/**
 * tmesh_watch_init() - make room for looking at a lease
 * @lease: with its period, new
 *
 * Return: 0, to be followed by tmesh_watch_fini() some time; or -ENOMEM.
 */
int tmesh_watch_init(struct tmesh_tenure *lease)
{
	BUILD_BUG_ON(sizeof(struct tmesh_block) > PAGE_SIZE);
	if (!lease->period_ns)
		return 0;
	/* One to spare: where it goes must not need memory. */
	lease->spare = kmalloc(sizeof(*lease->spare), GFP_KERNEL_ACCOUNT);
	if (!lease->spare)
		return -ENOMEM;
	lease->class = tmesh_class_get(lease->period_ns);
	if (IS_ERR(lease->class)) {
		kfree(lease->spare);
		return PTR_ERR(lease->class);
	}
	return 0;
}

/**
 * tmesh_watch_start() - begin to look at a lease
 * @lease: initialised
 *
 * Its period begins now. When it has passed without a touch, tmesh_lease_due() is called.
 */
void tmesh_watch_start(struct tmesh_tenure *lease)
{
	struct tmesh_class *class = lease->class;
	struct tmesh_block *block = NULL;

	if (!class)
		return;
	spin_lock(&class->lock);
	if (!list_empty(&class->blocks))
		block = list_last_entry(&class->blocks, struct tmesh_block, node);
	if (!block || block->used == TMESH_BLOCK_ENTRIES) {
		block = lease->spare;
		lease->spare = NULL;
		block->used = 0;
		list_add_tail(&block->node, &class->blocks);
	}
	lease->block = block;
	lease->slot = block->used++;
	block->looks[lease->slot] = (struct tmesh_look) {
		.touched = &lease->touch->touched,
		.since = ktime_get_ns(),
		.lease = lease,
	};
	spin_unlock(&class->lock);
	kfree(lease->spare);
	lease->spare = NULL;
}

/**
 * tmesh_watch_stop() - look at a lease no more
 * @lease: whether it was looked at or not
 */
void tmesh_watch_stop(struct tmesh_tenure *lease)
{
	struct tmesh_class *class = lease->class;

	if (!class)
		return;
	spin_lock(&class->lock);
	if (lease->block)
		tmesh_class_remove(class, lease);
	spin_unlock(&class->lock);
}

/**
 * tmesh_watch_fini() - undo tmesh_watch_init()
 * @lease: that is not looked at
 */
void tmesh_watch_fini(struct tmesh_tenure *lease)
{
	struct tmesh_class *class = lease->class;

	if (!class)
		return;
	kfree(lease->spare);
	xa_lock(&classes);
	/* A class without leases goes at once, not when its next walk is due. */
	if (!--class->users)
		mod_delayed_work(tmesh_wq, &class->walk, 0);
	xa_unlock(&classes);
}

/**
 * tmesh_watch_left() - for how long a lease lives at least without a touch
 * @lease: the lease
 *
 * Return: nanoseconds; 0 where nobody looks at it.
 */
u64 tmesh_watch_left(struct tmesh_tenure *lease)
{
	struct tmesh_class *class = lease->class;
	const struct tmesh_look *look;
	u64 left = 0, idle;

	if (!class)
		return 0;
	spin_lock(&class->lock);
	if (lease->block) {
		look = &lease->block->looks[lease->slot];
		idle = ktime_get_ns() - look->since;
		if (READ_ONCE(*look->touched) != look->seen)
			left = class->period_ns;
		else if (idle < class->period_ns)
			left = class->period_ns - idle;
	}
	spin_unlock(&class->lock);
	return left;
}

/**
 * tmesh_watch_show() - tell about all classes
 * @m: where to
 */
void tmesh_watch_show(struct seq_file *m)
{
	struct tmesh_class *class;
	unsigned long period_ns;

	seq_puts(m, "period_ns leases walks walk_ns\n");
	xa_lock(&classes);
	xa_for_each(&classes, period_ns, class)
		seq_printf(m, "%lu %lu %llu %llu\n", period_ns, class->users,
			   READ_ONCE(class->walks), READ_ONCE(class->walk_ns));
	xa_unlock(&classes);
}

/**
 * tmesh_watch_exit() - nothing may be left
 *
 * Each class had a work queued that freed it, and the queue has been drained.
 */
void tmesh_watch_exit(void)
{
	WARN_ON_ONCE(!xa_empty(&classes));
}
