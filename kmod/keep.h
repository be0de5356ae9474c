/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What keep.c, which keeps regions, keep_calls.c, which has the calls for that, and reclaim.c,
 * which gives regions back, share.
 */
#ifndef TMESH_KEEP_H
#define TMESH_KEEP_H

#include <linux/list.h>
#include <linux/llist.h>
#include <linux/spinlock.h>

#include "tmesh.h"

/**
 * struct tmesh_bundle - regions that are kept together, under a name
 * @ref:        held by the name, and by whoever looks at it
 * @rcu:        look-ups by id end before it is freed
 * @dead:       among those that a work frees
 * @id:         constant once it is published, as are all down to @nr_regions
 * @user:       who keeps it, and whose names it is among; reference
 * @gid:        whose members @mode admits
 * @mode:       permission bits for opening it by name
 * @rights:     which all of the handles had that it was made from
 * @kept_ns:    since when, CLOCK_MONOTONIC
 * @expires_ns: until when, or 0
 * @nr_pages:   memory of the machine's in all of its regions
 * @bytes:      the same
 * @name:       zero-terminated, filled up with zeros
 * @nr_regions: how many
 * @node:       in the table of names; guarded by tmesh_kept_lock, as are the following down to
 *              @taken
 * @idle:       in tmesh_kept_idle, where nobody holds it
 * @held:       regions of it that have claims, and calls that are about to add some
 * @used_ns:    when that became 0
 * @taken:      its memory is being given back: no region of it gets a claim any more
 * @regions:    constant; a reference on each
 */
struct tmesh_bundle {
	struct kref ref;
	struct rcu_head rcu;
	struct llist_node dead;
	u64 id;
	struct tmesh_user *user;
	kgid_t gid;
	u32 mode;
	u32 rights;
	u64 kept_ns;
	u64 expires_ns;
	unsigned long nr_pages;
	u64 bytes;
	char name[TMESH_LABEL_MAX + 1];
	u32 nr_regions;

	struct hlist_node node;
	struct list_head idle;
	u32 held;
	u64 used_ns;
	bool taken;

	struct tmesh_region *regions[];
};

/* Why a name went, for the trace. */
enum tmesh_kept_end {
	TMESH_KEPT_DROPPED,
	TMESH_KEPT_REPLACED,
	TMESH_KEPT_EXPIRED,
	TMESH_KEPT_REVOKED,
	TMESH_KEPT_IPC_NS,
	TMESH_KEPT_TAKEN,
	TMESH_KEPT_UNLOADED
};

/* Guards names, what is held and what is idle. Reclaim takes it: nothing is allocated in it. */
extern spinlock_t tmesh_kept_lock;
/* In the order in which they were used last, and how much memory they have. */
extern struct list_head tmesh_kept_idle;
extern unsigned long tmesh_kept_idle_pages;

/* keep.c */
void tmesh_bundle_busy(struct tmesh_bundle *bundle);
void tmesh_bundle_idle(struct tmesh_bundle *bundle);
void tmesh_bundle_take(struct tmesh_bundle *bundle);
void tmesh_bundle_put_later(struct tmesh_bundle *bundle);
void tmesh_bundle_put(struct tmesh_bundle *bundle);
struct tmesh_bundle *tmesh_bundle_new(const struct tmesh_keep *cmd);
void tmesh_bundle_abandon(struct tmesh_bundle *bundle);
int tmesh_bundle_publish(struct tmesh_bundle *bundle, const struct tmesh_keep *cmd,
			 struct tmesh_bundle **old);
bool tmesh_bundle_drop(struct tmesh_bundle *bundle, enum tmesh_kept_end why);
u32 tmesh_bundle_access(const struct tmesh_bundle *bundle);
struct tmesh_bundle *tmesh_bundle_next(u64 *cursor);
struct tmesh_bundle *tmesh_bundle_get(kuid_t uid, const char *name);
void tmesh_bundle_unhold(struct tmesh_bundle *bundle);
struct tmesh_bundle *tmesh_bundle_own(u64 id);
struct tmesh_bundle *tmesh_bundle_named(const char *name);

/* reclaim.c, beside what tmesh.h has of it */

/* keep.c */
int tmesh_kept_hold(struct tmesh_region *region);
void tmesh_kept_release(struct tmesh_region *region);
void tmesh_kept_revoked(struct tmesh_region *region);
u64 tmesh_kept_id(struct tmesh_region *region);
void tmesh_kept_exit(void);

#endif /* TMESH_KEEP_H */
