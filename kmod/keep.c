// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kept regions: a group of regions stays under a name when it has no claims any more. The calls for
 * groups are in keep_calls.c.
 *
 * A group has a reference on each of its regions, and each region points to its group. A group is
 * held while one of its regions has a claim. Otherwise it is idle (idle.c), and reclaim.c may take
 * it.
 */
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/hashtable.h>
#include <linux/ipc_namespace.h>
#include <linux/ktime.h>
#include <linux/nsproxy.h>
#include <linux/overflow.h>
#include <linux/proc_ns.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/siphash.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

#include "account.h"
#include "files.h"
#include "keep.h"
#include "main.h"
#include "region.h"
#include "registry.h"
#include "trace.h"
#include "ucmd.h"

/*
 * The interval for testing whether an IPC namespace has lost its last process, and the longest
 * interval of the work.
 */
#define TMESH_TICK_NS NSEC_PER_SEC
#define TMESH_TICK_MAX_NS (3600 * NSEC_PER_SEC)

/* The number of names that the log lists when the module is unloaded */
#define TMESH_TOLD 32

/*
 * All groups that have a name: by name, guarded by tmesh_kept_lock, and by id, for readers under
 * RCU.
 */
static DEFINE_HASHTABLE(group_names, 10);
static DEFINE_XARRAY_FLAGS(groups, XA_FLAGS_ACCOUNT);

/* Groups whose last reference was dropped under locks. A work frees them. */
static LLIST_HEAD(groups_dead);

/* The time of the next run of the work; guarded by tmesh_kept_lock. */
static u64 tick_at = U64_MAX;

static void tmesh_kept_tick(struct work_struct *work);
static DECLARE_DELAYED_WORK(tick_work, tmesh_kept_tick);

/* Keys the hash, so that a user cannot choose names that collide. */
static siphash_key_t group_seed __ro_after_init;

static u64 tmesh_group_key(kuid_t uid, const char *name)
{
	return siphash(name, strlen(name), &group_seed) + __kuid_val(uid);
}

/**
 * tmesh_kept_setup() - set up the hash of names
 */
void __init tmesh_kept_setup(void)
{
	get_random_bytes(&group_seed, sizeof(group_seed));
}

static struct tmesh_group *tmesh_group_find(kuid_t uid, const struct ipc_namespace *ipc_ns,
					    const char *name)
{
	struct tmesh_group *group;

	lockdep_assert_held(&tmesh_kept_lock);
	hash_for_each_possible(group_names, group, node, tmesh_group_key(uid, name)) {
		if (uid_eq(group->user->uid, uid) && group->user->ipc_ns == ipc_ns &&
		    !strcmp(group->name, name))
			return group;
	}
	return NULL;
}

/* Drop the group's references on its regions, which frees those without claims. */
static void tmesh_group_free(struct tmesh_group *group)
{
	struct tmesh_region *region;
	u32 i;

	for (i = 0; i < group->nr_regions; i++) {
		region = group->regions[i];
		if (group->taken) {
			/* A closed region itself refuses new claims. */
			tmesh_region_close(region);
			spin_lock(&tmesh_kept_lock);
			region->kept = NULL;
			spin_unlock(&tmesh_kept_lock);
		}
		tmesh_region_put(region);
		cond_resched();
	}
	spin_lock(&tmesh_kept_lock);
	tmesh_kept_going_pages -= group->going;
	spin_unlock(&tmesh_kept_lock);
	if (group->precharged)
		tmesh_uncharge(group->user, TMESH_KEPT_BYTES, group->precharged);
	tmesh_user_put(group->user);
	if (group->files)
		tmesh_files_put(group->files);
	kvfree_rcu(group, rcu);
}

static void tmesh_group_release(struct kref *ref)
{
	tmesh_group_free(container_of(ref, struct tmesh_group, ref));
}

static void tmesh_kept_reap(struct work_struct *work)
{
	struct llist_node *dead = llist_del_all(&groups_dead);
	struct tmesh_group *group, *next;

	llist_for_each_entry_safe(group, next, dead, dead) tmesh_group_free(group);
}

static DECLARE_WORK(reap_work, tmesh_kept_reap);

static void tmesh_group_release_later(struct kref *ref)
{
	struct tmesh_group *group = container_of(ref, struct tmesh_group, ref);

	llist_add(&group->dead, &groups_dead);
	queue_work(tmesh_wq, &reap_work);
}

/**
 * tmesh_group_put_later() - drop a reference; let a work free the group
 * @group: the group
 *
 * Context: any process context, also with locks held and in memory reclaim.
 */
void tmesh_group_put_later(struct tmesh_group *group)
{
	kref_put(&group->ref, tmesh_group_release_later);
}

/**
 * tmesh_group_put() - drop a reference
 * @group: the group
 *
 * Frees the group synchronously with the last reference.
 *
 * Context: may sleep; no locks are held.
 */
void tmesh_group_put(struct tmesh_group *group)
{
	kref_put(&group->ref, tmesh_group_release);
}

/**
 * struct tmesh_end - a reference that a work drops while its caller waits
 * @work:   the work
 * @group: the group; the caller's reference
 */
struct tmesh_end {
	struct work_struct work;
	struct tmesh_group *group;
};

static void tmesh_group_end(struct work_struct *work)
{
	tmesh_group_put(container_of(work, struct tmesh_end, work)->group);
}

/**
 * tmesh_group_put_now() - drop a reference and wait until the memory is free
 * @group: the group
 *
 * A work drops the reference: fput() in a process closes a file only at the end of its call, and in
 * a work tmesh_memfd_put() closes it at once.
 *
 * Context: process context, may sleep; no locks are held.
 */
void tmesh_group_put_now(struct tmesh_group *group)
{
	struct tmesh_end end = { .group = group };

	INIT_WORK_ONSTACK(&end.work, tmesh_group_end);
	queue_work(tmesh_wq, &end.work);
	flush_work(&end.work);
	destroy_work_on_stack(&end.work);
}

/* Remove a group from the tables; its name is free again. */
static void tmesh_group_hide(struct tmesh_group *group)
{
	lockdep_assert_held(&tmesh_kept_lock);
	hash_del(&group->node);
	xa_erase(&groups, group->id);
	tmesh_idle_remove(group);
	if (!group->files)
		return;
	group->user->shown--;
	tmesh_files_drop(group->files);
}

static void tmesh_group_uncharge(const struct tmesh_group *group)
{
	tmesh_uncharge(group->user, TMESH_KEPT_BYTES, group->charged);
	tmesh_uncharge(group->user, TMESH_KEPT_NAMES, 1);
}

/* Detach the regions from their group. */
static void tmesh_group_leave(struct tmesh_group *group)
{
	struct tmesh_region *region;
	u32 i;

	lockdep_assert_held(&tmesh_kept_lock);
	for (i = 0; i < group->nr_regions; i++) {
		region = group->regions[i];
		WRITE_ONCE(region->kept, NULL);
	}
}

/**
 * tmesh_group_wake() - wake pollers that wait to be the only holder of a region
 * @group: a group without a name; the caller has a reference
 *
 * A user may have made many pollers, and the shrinker needs tmesh_kept_lock.
 *
 * Context: tmesh_kept_lock is not held.
 */
void tmesh_group_wake(struct tmesh_group *group)
{
	u32 i;

	lockdep_assert_not_held(&tmesh_kept_lock);
	for (i = 0; i < group->nr_regions; i++)
		tmesh_wake(&group->regions[i]->wait, EPOLLOUT);
}

/* End a group. The caller drops the name's reference. */
static void tmesh_group_unlink(struct tmesh_group *group, enum tmesh_kept_end why)
{
	lockdep_assert_held(&tmesh_kept_lock);
	tmesh_group_hide(group);
	tmesh_group_leave(group);
	tmesh_group_uncharge(group);
	trace_tmesh_kept_end(group->id, group->bytes, why);
}

/**
 * tmesh_group_take() - take a group for its memory; no call can open it any more
 * @group: idle, with a name
 *
 * Its regions still point to it, and refuse new claims therefore.
 *
 * Context: tmesh_kept_lock is held. The caller drops the name's reference afterwards.
 */
void tmesh_group_take(struct tmesh_group *group)
{
	lockdep_assert_held(&tmesh_kept_lock);
	group->taken = true;
	group->going = group->nr_pages;
	tmesh_kept_going_pages += group->going;
	tmesh_group_hide(group);
	tmesh_group_uncharge(group);
	trace_tmesh_kept_end(group->id, group->bytes, TMESH_KEPT_TAKEN);
}

/**
 * tmesh_group_drop() - end a group
 * @group: the caller has a reference
 * @why:    the reason, for the tracepoint
 *
 * Return: false if it had ended before.
 */
bool tmesh_group_drop(struct tmesh_group *group, enum tmesh_kept_end why)
{
	bool linked;

	spin_lock(&tmesh_kept_lock);
	linked = tmesh_group_linked(group);
	if (linked)
		tmesh_group_unlink(group, why);
	spin_unlock(&tmesh_kept_lock);
	if (linked) {
		tmesh_group_wake(group);
		tmesh_group_put(group);
	}
	return linked;
}

/**
 * tmesh_kept_hold() - hold the group of a region that gets its first claim
 * @region: the region
 *
 * Context: claims_lock is held.
 * Return: 0, or -ESTALE if the group's memory is being reclaimed.
 */
int tmesh_kept_hold(struct tmesh_region *region)
{
	int rc = 0;

	lockdep_assert_held(&region->claims_lock);
	/* @kept cannot become set now: TMESH_KEEP has a handle, so the region has a claim then. */
	if (!READ_ONCE(region->kept))
		return 0;
	spin_lock(&tmesh_kept_lock);
	if (region->kept && region->kept->taken)
		rc = -ESTALE;
	else if (region->kept)
		tmesh_group_busy(region->kept);
	spin_unlock(&tmesh_kept_lock);
	return rc;
}

/**
 * tmesh_kept_release() - release the group of a region that has lost its last claim
 * @region: the region
 *
 * Context: claims_lock is held.
 */
void tmesh_kept_release(struct tmesh_region *region)
{
	lockdep_assert_held(&region->claims_lock);
	if (!READ_ONCE(region->kept))
		return;
	spin_lock(&tmesh_kept_lock);
	if (region->kept)
		tmesh_group_idle(region->kept);
	spin_unlock(&tmesh_kept_lock);
}

/**
 * tmesh_kept_revoke() - mark a region revoked, and end the group that keeps it
 * @region: the region
 * @ended:  set to the group, or NULL; the caller calls tmesh_group_wake() and drops the name's
 *          reference
 *
 * A region of a group that reclaim has taken ends without a revocation. One hold of
 * tmesh_kept_lock decides between the two.
 *
 * Context: claims_lock and the region's lock are held.
 * Return: 0; -ENOENT if reclaim has taken the group, and nothing has changed.
 */
int tmesh_kept_revoke(struct tmesh_region *region, struct tmesh_group **ended)
{
	struct tmesh_group *group;
	int rc = 0;

	lockdep_assert_held(&region->claims_lock);
	lockdep_assert_held_write(&region->lock);
	spin_lock(&tmesh_kept_lock);
	group = region->kept;
	if (group && group->taken) {
		rc = -ENOENT;
	} else {
		WRITE_ONCE(region->state, region->state | TMESH_STATE_REVOKED);
		if (group)
			tmesh_group_unlink(group, TMESH_KEPT_REVOKED);
		*ended = group;
	}
	spin_unlock(&tmesh_kept_lock);
	return rc;
}

/**
 * tmesh_kept_id() - return the id of the group that keeps a region
 * @region: the region
 *
 * Return: the id, or 0.
 */
u64 tmesh_kept_id(struct tmesh_region *region)
{
	u64 id = 0;

	if (!READ_ONCE(region->kept))
		return 0;
	spin_lock(&tmesh_kept_lock);
	if (region->kept)
		id = region->kept->id;
	spin_unlock(&tmesh_kept_lock);
	return id;
}

/* Queue the work for the time @next, unless it runs before. */
static void tmesh_kept_arm(u64 now, u64 next)
{
	lockdep_assert_held(&tmesh_kept_lock);
	next = min(next, now + TMESH_TICK_MAX_NS);
	if (next >= tick_at)
		return;
	tick_at = next;
	mod_delayed_work(tmesh_wq, &tick_work, nsecs_to_jiffies(next - min(now, next)) + 1);
}

static u64 tmesh_group_next_look(const struct tmesh_group *group, u64 now)
{
	u64 next = group->expires_ns ? group->expires_ns : U64_MAX;

	return group->abroad ? min(next, now + TMESH_TICK_NS) : next;
}

/**
 * tmesh_group_after() - return the next group by id
 * @cursor: the last id, 0 to begin; set to the one found
 *
 * Takes no reference: it could become the last one if the name is dropped meanwhile, and the
 * regions would outlive the call that dropped it.
 *
 * Context: in an RCU read-side section, which keeps the group, its regions and its user.
 * Return: the group without a reference, or NULL.
 */
struct tmesh_group *tmesh_group_after(u64 *cursor)
{
	unsigned long id = *cursor;
	struct tmesh_group *group;

	group = xa_find_after(&groups, &id, ULONG_MAX, XA_PRESENT);
	*cursor = id;
	return group;
}

static void tmesh_kept_end(u64 id, enum tmesh_kept_end why)
{
	struct tmesh_group *group;

	spin_lock(&tmesh_kept_lock);
	group = xa_load(&groups, id);
	if (group)
		kref_get(&group->ref);
	spin_unlock(&tmesh_kept_lock);
	if (!group)
		return;
	tmesh_group_drop(group, why);
	tmesh_group_put(group);
}

/*
 * Drop the next group if it has expired or its namespace has ended. Return false after the last
 * one.
 */
static bool tmesh_kept_look(u64 *cursor, u64 now, u64 *next)
{
	struct tmesh_user *abroad = NULL;
	struct tmesh_group *group;
	bool over = false;

	rcu_read_lock();
	group = tmesh_group_after(cursor);
	if (group) {
		over = group->expires_ns && group->expires_ns <= now;
		if (!over)
			*next = min(*next, tmesh_group_next_look(group, now));
		if (!over && group->abroad && tmesh_user_try_hold(group->user))
			abroad = group->user;
	}
	rcu_read_unlock();
	if (over)
		tmesh_kept_end(*cursor, TMESH_KEPT_EXPIRED);
	else if (abroad && tmesh_ipc_ns_ended(abroad))
		tmesh_kept_end(*cursor, TMESH_KEPT_IPC_NS);
	if (abroad)
		tmesh_user_put(abroad);
	return group;
}

/* Drop the groups that have expired or whose namespace has no processes left. */
static void tmesh_kept_tick(struct work_struct *work)
{
	u64 now = ktime_get_ns(), next = U64_MAX, cursor = 0;

	spin_lock(&tmesh_kept_lock);
	tick_at = U64_MAX;
	spin_unlock(&tmesh_kept_lock);
	while (tmesh_kept_look(&cursor, now, &next))
		cond_resched();
	if (next == U64_MAX)
		return;
	spin_lock(&tmesh_kept_lock);
	tmesh_kept_arm(ktime_get_ns(), next);
	spin_unlock(&tmesh_kept_lock);
}

/**
 * tmesh_group_new() - allocate a group without regions, which is not in the tables yet
 * @cmd: the call; its @count and @name were checked
 *
 * Return: the group with a reference, for tmesh_group_publish() or tmesh_group_abandon(); or an
 * error as a pointer.
 */
struct tmesh_group *tmesh_group_new(const struct tmesh_keep *cmd)
{
	struct tmesh_group *group;
	kgid_t gid;
	int rc;

	rc = tmesh_check_gid(cmd->flags, cmd->gid, &gid);
	if (rc)
		return ERR_PTR(rc);
	if (cmd->mode & ~(cmd->file_count ? 0644 : 0660) || cmd->lifetime_ns > KTIME_MAX)
		return ERR_PTR(-EINVAL);
	group = kvzalloc(struct_size(group, regions, cmd->count), TMESH_GFP);
	if (!group)
		return ERR_PTR(-ENOMEM);
	kref_init(&group->ref);
	INIT_LIST_HEAD(&group->idle);
	INIT_HLIST_NODE(&group->node);
	strscpy_pad(group->name, cmd->name, sizeof(group->name));
	group->gid = gid;
	group->mode = cmd->mode ? cmd->mode : 0600;
	group->rights = TMESH_RIGHTS_ALL;
	group->user = tmesh_user_get(current_euid());
	if (IS_ERR(group->user)) {
		rc = PTR_ERR(group->user);
		goto free;
	}
	group->abroad = group->user->ipc_ns->ns.inum != PROC_IPC_INIT_INO;
	group->id = tmesh_next_id(group->user);
	rc = xa_reserve(&groups, group->id, TMESH_GFP);
	if (rc)
		goto put_user;
	return group;

put_user:
	tmesh_user_put(group->user);
free:
	kvfree(group);
	return ERR_PTR(rc);
}

/*
 * Check whether a group may keep its regions and charge it. @old is the group that it replaces, or
 * NULL.
 */
static int tmesh_group_fits(const struct tmesh_group *group, const struct tmesh_group *old)
{
	u64 names = old ? 1 : 0, bytes = group->precharged + (old ? old->charged : 0);
	const struct tmesh_region *region;
	int rc;
	u32 i;

	lockdep_assert_held(&tmesh_kept_lock);
	for (i = 0; i < group->nr_regions; i++) {
		region = group->regions[i];
		/* A later revocation finds @kept set. */
		if (READ_ONCE(region->state) & TMESH_STATE_REVOKED)
			return -ESTALE;
		if (region->kept && region->kept != old)
			return -EBUSY;
	}
	rc = tmesh_exchange(group->user, TMESH_KEPT_NAMES, names, 1);
	if (rc)
		return rc;
	rc = tmesh_exchange(group->user, TMESH_KEPT_BYTES, bytes, group->charged);
	if (rc && !old)
		tmesh_uncharge(group->user, TMESH_KEPT_NAMES, 1);
	return rc;
}

/**
 * tmesh_group_publish() - enter a group in the tables; from now on it keeps its regions
 * @group: of tmesh_group_new(); its reference becomes that of the name
 * @cmd:    the call
 * @old:    set to the group that had the name, with the name's reference; or to NULL
 *
 * Return: 0; or a negative error, and nothing has changed.
 */
int tmesh_group_publish(struct tmesh_group *group, const struct tmesh_keep *cmd,
			struct tmesh_group **old)
{
	const struct tmesh_user *user = group->user;
	u64 now = ktime_get_ns();
	int rc = -EEXIST;
	u32 i;

	group->kept_ns = now;
	group->used_ns = now;
	if (cmd->lifetime_ns)
		group->expires_ns = now + cmd->lifetime_ns;
	spin_lock(&tmesh_kept_lock);
	*old = tmesh_group_find(user->uid, user->ipc_ns, group->name);
	if (!*old || cmd->flags & TMESH_KEEP_REPLACE)
		rc = tmesh_group_fits(group, *old);
	if (rc) {
		*old = NULL;
		goto unlock;
	}
	if (*old) {
		/* tmesh_group_fits() has taken over its charge. */
		tmesh_group_hide(*old);
		tmesh_group_leave(*old);
		trace_tmesh_kept_end((*old)->id, (*old)->bytes, TMESH_KEPT_REPLACED);
	}
	for (i = 0; i < group->nr_regions; i++)
		WRITE_ONCE(group->regions[i]->kept, group);
	group->precharged = 0;
	if (group->files)
		group->user->shown++;
	/* The caller has a handle of each region. */
	group->held = group->nr_regions;
	hash_add(group_names, &group->node, tmesh_group_key(user->uid, group->name));
	xa_store(&groups, group->id, group, GFP_ATOMIC);
	trace_tmesh_keep(group->id, group->bytes, group->nr_regions);
	tmesh_kept_arm(now, tmesh_group_next_look(group, now));
unlock:
	spin_unlock(&tmesh_kept_lock);
	return rc;
}

/**
 * tmesh_group_abandon() - undo tmesh_group_new()
 * @group: not published
 */
void tmesh_group_abandon(struct tmesh_group *group)
{
	xa_release(&groups, group->id);
	tmesh_group_put(group);
}

/**
 * tmesh_group_access() - return the caller's rights to the regions of a group
 * @group: published
 *
 * Return: TMESH_RIGHT_*, or 0 if the caller may not open it.
 */
u32 tmesh_group_access(const struct tmesh_group *group)
{
	return tmesh_admitted(group->user->ipc_ns, group->user->uid, group->gid, group->mode);
}

/**
 * tmesh_group_get() - find a group by name and hold it until tmesh_group_unhold()
 * @uid:  its owner
 * @name: its name
 *
 * Return: the group with a reference, or NULL if there is none that the caller may open.
 */
struct tmesh_group *tmesh_group_get(kuid_t uid, const char *name)
{
	struct tmesh_group *group;

	spin_lock(&tmesh_kept_lock);
	group = tmesh_group_find(uid, current->nsproxy->ipc_ns, name);
	if (group && tmesh_group_access(group)) {
		kref_get(&group->ref);
		tmesh_group_busy(group);
	} else {
		group = NULL;
	}
	spin_unlock(&tmesh_kept_lock);
	return group;
}

/**
 * tmesh_group_unhold() - undo tmesh_group_get()
 * @group: of tmesh_group_get()
 */
void tmesh_group_unhold(struct tmesh_group *group)
{
	spin_lock(&tmesh_kept_lock);
	tmesh_group_idle(group);
	spin_unlock(&tmesh_kept_lock);
	tmesh_group_put(group);
}

/**
 * tmesh_group_own() - find a group by id, for its owner or a caller with CAP_SYS_ADMIN
 * @id: its id
 *
 * Other callers get -EPERM only for groups that TMESH_KEPT_LIST shows them.
 *
 * Return: the group with a reference; or -ENOENT or -EPERM as a pointer.
 */
struct tmesh_group *tmesh_group_own(u64 id)
{
	bool all = tmesh_sees_all();
	struct tmesh_group *group;
	int rc = 0;

	spin_lock(&tmesh_kept_lock);
	group = xa_load(&groups, id);
	if (!group || !(all || tmesh_group_access(group)))
		rc = -ENOENT;
	else if (!all && !uid_eq(current_euid(), group->user->uid))
		rc = -EPERM;
	else
		kref_get(&group->ref);
	spin_unlock(&tmesh_kept_lock);
	return rc ? ERR_PTR(rc) : group;
}

/**
 * tmesh_group_named() - find a group of the caller's own by name, whatever its mode
 * @name: its name
 *
 * Return: the group with a reference, or -ENOENT as a pointer.
 */
struct tmesh_group *tmesh_group_named(const char *name)
{
	struct tmesh_group *group;

	spin_lock(&tmesh_kept_lock);
	group = tmesh_group_find(current_euid(), current->nsproxy->ipc_ns, name);
	if (group)
		kref_get(&group->ref);
	spin_unlock(&tmesh_kept_lock);
	return group ? group : ERR_PTR(-ENOENT);
}

/**
 * tmesh_group_files() - find the files of a name
 * @uid:    its owner
 * @ipc_ns: the IPC namespace
 * @name:   the name
 * @count:  set to the number of its files
 *
 * The caller's namespaces and rights play no part. The table is read under the lock, since a name
 * that is replaced loses it at once.
 *
 * Return: the files with a reference, or NULL.
 */
struct tmesh_files *tmesh_group_files(kuid_t uid, const struct ipc_namespace *ipc_ns,
				      const char *name, u32 *count)
{
	struct tmesh_files *files = NULL;
	struct tmesh_group *group;

	spin_lock(&tmesh_kept_lock);
	group = tmesh_group_find(uid, ipc_ns, name);
	if (group && group->files) {
		files = group->files;
		*count = rcu_dereference_protected(files->table,
						   lockdep_is_held(&tmesh_kept_lock))->count;
		tmesh_files_get(files);
	}
	spin_unlock(&tmesh_kept_lock);
	return files;
}

/**
 * tmesh_group_of_files() - find the group of files and hold it until tmesh_group_unhold()
 * @files: the files; the caller has a reference
 *
 * Return: the group with a reference, or NULL if its name was dropped.
 */
struct tmesh_group *tmesh_group_of_files(const struct tmesh_files *files)
{
	struct tmesh_group *group;

	spin_lock(&tmesh_kept_lock);
	group = xa_load(&groups, files->id);
	if (group) {
		kref_get(&group->ref);
		tmesh_group_busy(group);
	}
	spin_unlock(&tmesh_kept_lock);
	return group;
}

/* Drop all groups when the module is unloaded, and log their names. All files are closed by now. */
void tmesh_kept_exit(void)
{
	struct tmesh_group *group;
	unsigned long told = 0, id = 0;

	cancel_delayed_work_sync(&tick_work);
	/* Nothing else ends groups any more. */
	while ((group = xa_find(&groups, &id, ULONG_MAX, XA_PRESENT))) {
		if (told++ < TMESH_TOLD)
			pr_notice("tmesh: unloaded, dropped \"%*pE\" of uid %u: %u regions, %llu bytes\n",
				  (int)strlen(group->name), group->name,
				  __kuid_val(group->user->uid), group->nr_regions, group->bytes);
		tmesh_group_drop(group, TMESH_KEPT_UNLOADED);
	}
	if (told > TMESH_TOLD)
		pr_notice("tmesh: unloaded, dropped %lu more names\n", told - TMESH_TOLD);
	flush_work(&reap_work);
	WARN_ON_ONCE(!xa_empty(&groups) || tmesh_kept_idle_pages);
	xa_destroy(&groups);
}
