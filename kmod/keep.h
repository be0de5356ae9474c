/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kept regions. keep.c has the groups, keep_calls.c the calls, idle.c the groups without claims,
 * and reclaim.c takes groups for their memory.
 */
#ifndef TMESH_KEEP_H
#define TMESH_KEEP_H

#include <linux/list.h>
#include <linux/llist.h>
#include <linux/rbtree.h>
#include <linux/spinlock.h>

#include "tmesh.h"

/**
 * struct tmesh_group - regions that are kept together, under a name
 * @ref:        held by the name, and by code that uses the group without a lock
 * @rcu:        look-ups by id end before it is freed
 * @dead:       in groups_dead, for a work to free (keep.c)
 * @id:         constant once the group is published, as are all members down to @nr_regions
 * @user:       the owner, whose name it is; reference
 * @abroad:     @user is not in the initial IPC namespace, so the namespace may end. A reader under
 *              RCU may use this but not the namespace
 * @gid:        the group that @mode admits
 * @mode:       permission bits for opening it by name
 * @rights:     the rights that all of the handles given to TMESH_KEEP had
 * @kept_ns:    time of the publication, CLOCK_MONOTONIC
 * @expires_ns: time of its expiry, or 0
 * @nr_pages:   pages that all of its regions have; opaque ones have none
 * @bytes:      the same in bytes
 * @nr_table_pages: pages that the end of its name frees: its table of files has them
 * @charged:    bytes that are charged as kept ones: @bytes and the table of files.
 * @precharged: bytes of the table, charged before the group is published; then 0
 * @files:      its files, or NULL; reference
 * @name:       zero-terminated, filled up with zeros
 * @nr_regions: number of @regions
 * @node:       in the table of names; guarded by tmesh_kept_lock, as are the following down to
 *              @going
 * @idle:       in tmesh_kept_idle while the group is idle
 * @peer:       then also in the tree of idle groups by control group and @turn
 * @turn:       its place in the order of last use; a larger one is later
 * @held:       number of its regions that have claims, and of calls that are about to add some
 * @came:       number of claims and calls that have counted in @held, modulo 2^32
 * @used_ns:    time when the last of them left
 * @taken:      its memory is being reclaimed; its regions refuse new claims
 * @going:      number of its pages that are not freed yet
 * @regions:    constant; a reference on each
 */
struct tmesh_group {
	struct kref ref;
	struct rcu_head rcu;
	struct llist_node dead;
	u64 id;
	struct tmesh_user *user;
	bool abroad;
	kgid_t gid;
	u32 mode;
	u32 rights;
	u64 kept_ns;
	u64 expires_ns;
	unsigned long nr_pages;
	u64 bytes;
	unsigned long nr_table_pages;
	u64 charged;
	u64 precharged;
	struct tmesh_files *files;
	char name[TMESH_LABEL_MAX + 1];
	u32 nr_regions;

	struct hlist_node node;
	struct list_head idle;
	struct rb_node peer;
	u64 turn;
	u32 held;
	u32 came;
	u64 used_ns;
	bool taken;
	unsigned long going;

	struct tmesh_region *regions[];
};

/* Why a group ended, for the tracepoint */
enum tmesh_kept_end {
	TMESH_KEPT_DROPPED,
	TMESH_KEPT_REPLACED,
	TMESH_KEPT_EXPIRED,
	TMESH_KEPT_REVOKED,
	TMESH_KEPT_IPC_NS,
	TMESH_KEPT_TAKEN,
	TMESH_KEPT_UNLOADED
};

/*
 * Guards the names and the idle groups. Memory reclaim takes it, so nothing is allocated under it.
 */
extern spinlock_t tmesh_kept_lock;
/* The idle groups in order of last use, and the sum of their pages */
extern struct list_head tmesh_kept_idle;
extern unsigned long tmesh_kept_idle_pages;
/* The @turn that was given out last */
extern u64 tmesh_kept_turn;
/* Pages of taken groups that are not freed yet */
extern unsigned long tmesh_kept_going_pages;

static inline bool tmesh_group_linked(const struct tmesh_group *group)
{
	return !hlist_unhashed(&group->node);
}

/* Return the number of pages that the end of an idle group frees. */
static inline unsigned long tmesh_group_pages(const struct tmesh_group *group)
{
	return group->nr_pages + group->nr_table_pages;
}

/* idle.c */
void tmesh_group_busy(struct tmesh_group *group);
void tmesh_group_look(struct tmesh_group *group);
void tmesh_group_idle(struct tmesh_group *group);
void tmesh_group_looked(struct tmesh_group *group, bool whole);
void tmesh_idle_remove(struct tmesh_group *group);
struct tmesh_group *tmesh_group_peer(u64 cgroup, u64 after, u64 last);

/* keep.c */
void tmesh_group_take(struct tmesh_group *group);
void tmesh_group_put_later(struct tmesh_group *group);
void tmesh_group_put(struct tmesh_group *group);
void tmesh_group_put_now(struct tmesh_group *group);
struct tmesh_group *tmesh_group_new(const struct tmesh_keep *cmd);
void tmesh_group_abandon(struct tmesh_group *group);
int tmesh_group_publish(struct tmesh_group *group, const struct tmesh_keep *cmd,
			struct tmesh_group **old);
bool tmesh_group_drop(struct tmesh_group *group, enum tmesh_kept_end why);
u32 tmesh_group_access(const struct tmesh_group *group);
struct tmesh_group *tmesh_group_after(u64 *cursor);
void tmesh_group_wake(struct tmesh_group *group);
struct tmesh_group *tmesh_group_get(kuid_t uid, const char *name);
void tmesh_group_unhold(struct tmesh_group *group);
struct tmesh_group *tmesh_group_own(u64 id);
struct tmesh_group *tmesh_group_named(const char *name);
struct tmesh_files *tmesh_group_files(kuid_t uid, const struct ipc_namespace *ipc_ns,
				      const char *name, u32 *count);
struct tmesh_group *tmesh_group_of_files(const struct tmesh_files *files);

/* keep.c */
int tmesh_kept_hold(struct tmesh_region *region);
void tmesh_kept_release(struct tmesh_region *region);
int tmesh_kept_revoke(struct tmesh_region *region, struct tmesh_group **ended);
u64 tmesh_kept_id(struct tmesh_region *region);
void tmesh_kept_setup(void);
void tmesh_kept_exit(void);

#endif /* TMESH_KEEP_H */
