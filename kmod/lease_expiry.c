// SPDX-License-Identifier: GPL-2.0-only
/*
 * Expiry of leases: periodic walks over their touch counters.
 *
 * Leases whose periods differ by less than a factor of two form a class. One work walks a class
 * four times in its shortest period. Blocks hold densely the data that a walk needs. Only the
 * counters, one page for each lease, are scattered, and the walk prefetches them. Joining or
 * leaving a class moves at most one entry.
 *
 * The number of classes is fixed, whatever leases users make. A class with very many leases is
 * walked less often, so that its walks take about a hundredth of a CPU. It is still walked once in
 * its period, so that a user cannot delay the leases of another for long. If even that is too much,
 * its walks take at most about a tenth of the time.
 *
 * A walk goes from the last entry to the first. The last entry replaces one that leaves, and the
 * walk has visited the last one already. So no entry is skipped although the lock is dropped
 * between blocks.
 */
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/math64.h>
#include <linux/prefetch.h>
#include <linux/slab.h>

#include "lease.h"
#include "main.h"
#include "lease_expiry.h"

#define TMESH_LOOKS 4 /* in the shortest period of a class */
#define TMESH_EASY_NS (40 * NSEC_PER_USEC) /* for each look, which takes up to a hundredth of it */
#define TMESH_REST_NS NSEC_PER_USEC /* at least, even if periods are passed by */
#define TMESH_BLOCK_ENTRIES 127
#define TMESH_PREFETCH 8

/*
 * Each class begins at twice the period of the one before. One of them begins at the default
 * period.
 */
#define TMESH_CLASS_NS (TMESH_LEASE_DEFAULT_NS >> 9)
#define TMESH_CLASSES 19

/**
 * struct tmesh_look - the entry of a lease in a block
 * @touched: its counter, which user space writes to
 * @seen:    the counter at the last look
 * @since:   time of the last look that saw a change
 * @lease:   the lease, whose @block and @slot lead back to this entry
 */
struct tmesh_look {
	const u64 *touched;
	u64 seen;
	u64 since;
	struct tmesh_lease_obj *lease;
};

/**
 * struct tmesh_block - a page of entries
 * @node:  in the class's list
 * @used:  number of entries in use, from the first on
 * @looks: the entries
 */
struct tmesh_block {
	struct list_head node;
	unsigned int used;
	struct tmesh_look looks[TMESH_BLOCK_ENTRIES];
};

/**
 * struct tmesh_class - leases of similar periods
 * @from_ns: the shortest period; all are less than twice as long
 * @walk:    the work, pending or running while there are leases
 * @lock:    guards all members below, and the leases' @block and @slot
 * @leases:  number of leases
 * @blocks:  the blocks; all but the last are full
 * @cursor:  the block at which the walk continues
 * @walks:   number of walks
 * @walk_ns: the time they took while they held @lock
 */
struct tmesh_class {
	u64 from_ns;
	struct delayed_work walk;
	spinlock_t lock;
	unsigned long leases;
	struct list_head blocks;
	struct tmesh_block *cursor;
	u64 walks;
	u64 walk_ns;
};

static struct tmesh_class classes[TMESH_CLASSES];

/* Remove an entry. The last entry moves to its place. */
static void tmesh_class_remove(struct tmesh_class *class, struct tmesh_lease_obj *lease)
{
	struct tmesh_block *last = list_last_entry(&class->blocks, struct tmesh_block, node);
	struct tmesh_look *moved = &last->looks[--last->used];

	lockdep_assert_held(&class->lock);
	class->leases--;
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

	/* Removing entry 0 may free the block; removing others does not. */
	while (i--) {
		struct tmesh_look *look = &block->looks[i];
		u64 touched = READ_ONCE(*look->touched);
		u64 idle = now - look->since;

		if (i >= TMESH_PREFETCH)
			prefetch(block->looks[i - TMESH_PREFETCH].touched);
		if (touched != look->seen) {
			look->seen = touched;
			look->since = now;
		} else if (idle >= class->from_ns && idle >= look->lease->period_ns) {
			struct tmesh_lease_obj *lease = look->lease;

			tmesh_class_remove(class, lease);
			tmesh_lease_due(lease);
		}
	}
	class->walk_ns += ktime_get_ns() - now;
}

static void tmesh_class_arm(struct tmesh_class *class)
{
	u64 leases = class->leases, ns;

	ns = clamp_t(u64, leases * TMESH_EASY_NS, class->from_ns / TMESH_LOOKS, class->from_ns);
	ns = max_t(u64, ns, leases * TMESH_REST_NS);
	queue_delayed_work(tmesh_expiry_wq, &class->walk, nsecs_to_jiffies(ns) + 1);
}

static void tmesh_walk(struct work_struct *work)
{
	struct tmesh_class *class = container_of(to_delayed_work(work), struct tmesh_class, walk);
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
	if (class->leases)
		tmesh_class_arm(class);
	spin_unlock(&class->lock);
}

/**
 * tmesh_lease_expiry_setup() - set up the classes
 */
void __init tmesh_lease_expiry_setup(void)
{
	unsigned int i;

	BUILD_BUG_ON(TMESH_CLASS_NS > TMESH_LEASE_MIN_NS);
	BUILD_BUG_ON(TMESH_LEASE_MAX_NS / TMESH_CLASS_NS >> TMESH_CLASSES);
	for (i = 0; i < TMESH_CLASSES; i++) {
		classes[i].from_ns = TMESH_CLASS_NS << i;
		INIT_DELAYED_WORK(&classes[i].walk, tmesh_walk);
		spin_lock_init(&classes[i].lock);
		INIT_LIST_HEAD(&classes[i].blocks);
	}
}

/**
 * tmesh_lease_expiry_exit() - stop the walks; there are no leases any more
 *
 * Context: may sleep; @tmesh_expiry_wq still exists.
 */
void tmesh_lease_expiry_exit(void)
{
	unsigned int i;

	for (i = 0; i < TMESH_CLASSES; i++) {
		cancel_delayed_work_sync(&classes[i].walk);
		WARN_ON_ONCE(classes[i].leases);
	}
}

/**
 * tmesh_lease_expiry_init() - allocate a spare block and choose the class of a lease
 * @lease: new, with its period
 *
 * Return: 0, to be undone by tmesh_lease_expiry_fini(); or -ENOMEM.
 */
int tmesh_lease_expiry_init(struct tmesh_lease_obj *lease)
{
	BUILD_BUG_ON(sizeof(struct tmesh_block) > PAGE_SIZE);
	if (!lease->period_ns)
		return 0;
	/* tmesh_lease_expiry_start() runs under locks and must not allocate. */
	lease->spare = kmalloc(sizeof(*lease->spare), TMESH_GFP);
	if (!lease->spare)
		return -ENOMEM;
	lease->class = &classes[ilog2(div64_u64(lease->period_ns, TMESH_CLASS_NS))];
	return 0;
}

/**
 * tmesh_lease_expiry_start() - add a lease to its class
 * @lease: initialised
 *
 * Its period begins now. When the period has passed without a touch, the walk calls
 * tmesh_lease_due().
 */
void tmesh_lease_expiry_start(struct tmesh_lease_obj *lease)
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
	if (!class->leases++)
		tmesh_class_arm(class);
	spin_unlock(&class->lock);
	kfree(lease->spare);
	lease->spare = NULL;
}

/**
 * tmesh_lease_expiry_stop() - remove a lease from its class
 * @lease: the lease, in its class or not
 */
void tmesh_lease_expiry_stop(struct tmesh_lease_obj *lease)
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
 * tmesh_lease_expiry_fini() - undo tmesh_lease_expiry_init()
 * @lease: a lease that is not in its class
 */
void tmesh_lease_expiry_fini(struct tmesh_lease_obj *lease)
{
	kfree(lease->spare);
}

/**
 * tmesh_lease_expiry_left() - return the least time that a lease lives without a touch
 * @lease: the lease
 *
 * Return: nanoseconds; 0 if it is not in a class.
 */
u64 tmesh_lease_expiry_left(struct tmesh_lease_obj *lease)
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
			left = lease->period_ns;
		else if (idle < lease->period_ns)
			left = lease->period_ns - idle;
	}
	spin_unlock(&class->lock);
	return left;
}

/**
 * tmesh_lease_expiry_show() - print all classes
 * @m: the file to print to
 */
void tmesh_lease_expiry_show(struct seq_file *m)
{
	const struct tmesh_class *class;

	seq_puts(m, "from_ns leases walks walk_ns\n");
	for (class = classes; class < classes + TMESH_CLASSES; class++)
		seq_printf(m, "%llu %lu %llu %llu\n", class->from_ns, READ_ONCE(class->leases),
			   READ_ONCE(class->walks), READ_ONCE(class->walk_ns));
}
