// SPDX-License-Identifier: GPL-2.0-only
/*
 * Looking whether leases are touched.
 *
 * Leases whose periods are less than a factor of two apart form a class, which one work walks
 * four times in the shortest of them. What the walk needs of a lease stands densely in blocks, so
 * that the counters themselves, a page each, are all that it fetches from far away; they are
 * prefetched. Joining and leaving a class move one entry at most.
 *
 * However many leases somebody makes, and of whatever periods, there are few classes. One with very
 * many is walked less often, so that it takes about a hundredth of a CPU, but once in its period,
 * so that nobody can put off the end of another's leases for long; and if that is too much
 * still, for about a tenth of the time.
 *
 * A walk goes from the end to the beginning. An entry that leaves is replaced by the last, which
 * was looked at before, so that nobody is overlooked although the lock is let go between blocks.
 */
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/math64.h>
#include <linux/prefetch.h>
#include <linux/slab.h>

#include "lease.h"
#include "main.h"
#include "watch.h"

#define TMESH_LOOKS 4 /* in the shortest period of a class */
#define TMESH_EASY_NS (40 * NSEC_PER_USEC) /* for each look, which takes up to a hundredth of it */
#define TMESH_REST_NS NSEC_PER_USEC /* at least, even if periods are passed by */
#define TMESH_BLOCK_ENTRIES 127
#define TMESH_PREFETCH 8

/* Each class begins at twice the period of the one before, and one of them at the usual period. */
#define TMESH_CLASS_NS (TMESH_LEASE_DEFAULT_NS >> 9)
#define TMESH_CLASSES 19

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
 * struct tmesh_class - leases of similar periods
 * @from_ns: the shortest; all are less than twice as long
 * @walk:    pending or running as long as there are leases
 * @lock:    guards all below, and the leases' @block and @slot
 * @leases:  how many there are
 * @blocks:  all of them full but the last
 * @cursor:  where the walk goes on
 * @walks:   how many there have been
 * @walk_ns: how long they took, without what others did meanwhile
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

/* Takes an entry out; the last one fills its place. */
static void tmesh_class_remove(struct tmesh_class *class, struct tmesh_tenure *lease)
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

	/* It may be freed with its first entry, but not before. */
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
			struct tmesh_tenure *lease = look->lease;

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
	queue_delayed_work(tmesh_wq, &class->walk, nsecs_to_jiffies(ns) + 1);
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
 * tmesh_watch_setup() - before there are leases
 */
void __init tmesh_watch_setup(void)
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
 * tmesh_watch_exit() - when there are no leases any more
 *
 * Context: may sleep; @tmesh_wq is still there.
 */
void tmesh_watch_exit(void)
{
	unsigned int i;

	for (i = 0; i < TMESH_CLASSES; i++) {
		cancel_delayed_work_sync(&classes[i].walk);
		WARN_ON_ONCE(classes[i].leases);
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
	lease->spare = kmalloc(sizeof(*lease->spare), TMESH_GFP);
	if (!lease->spare)
		return -ENOMEM;
	lease->class = &classes[ilog2(div64_u64(lease->period_ns, TMESH_CLASS_NS))];
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
	if (!class->leases++)
		tmesh_class_arm(class);
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
	kfree(lease->spare);
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
			left = lease->period_ns;
		else if (idle < lease->period_ns)
			left = lease->period_ns - idle;
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
	const struct tmesh_class *class;

	seq_puts(m, "from_ns leases walks walk_ns\n");
	for (class = classes; class < classes + TMESH_CLASSES; class++)
		seq_printf(m, "%llu %lu %llu %llu\n", class->from_ns, READ_ONCE(class->leases),
			   READ_ONCE(class->walks), READ_ONCE(class->walk_ns));
}
