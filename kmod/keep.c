// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kept regions: some that stay together, under a name, when nobody holds them any more. The calls
 * for them are in keep_calls.c.
 *
 * A bundle has a reference on each of its regions, and each region knows its bundle. As long as
 * somebody has a claim on one of them it is held; else it stands in the list of idle ones, in
 * the order in which they were used last, and reclaim.c may take it.
 */
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/hashtable.h>
#include <linux/ipc_namespace.h>
#include <linux/jhash.h>
#include <linux/ktime.h>
#include <linux/nsproxy.h>
#include <linux/overflow.h>
#include <linux/proc_ns.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

#include "account.h"
#include "keep.h"
#include "main.h"
#include "region.h"
#include "registry.h"
#include "trace.h"
#include "ucmd.h"

/* How often it is asked whether an IPC namespace has processes left, and what the time is. */
#define TMESH_TICK_NS NSEC_PER_SEC
#define TMESH_TICK_MAX_NS (3600 * NSEC_PER_SEC)

/* How many names that go with the module are told. */
#define TMESH_TOLD 32

DEFINE_SPINLOCK(tmesh_kept_lock);
LIST_HEAD(tmesh_kept_idle);
unsigned long tmesh_kept_idle_pages;

/* All that have a name, by name under tmesh_kept_lock, and by id, which RCU guards too. */
static DEFINE_HASHTABLE(bundle_names, 10);
static DEFINE_XARRAY_FLAGS(bundles, XA_FLAGS_ACCOUNT);
static atomic64_t last_id;

/* Without references; freed by a work where the last one goes under locks. */
static LLIST_HEAD(bundles_dead);

/* When the work runs next; guarded by tmesh_kept_lock. */
static u64 tick_at = U64_MAX;

static void tmesh_kept_tick(struct work_struct *work);
static DECLARE_DELAYED_WORK(tick_work, tmesh_kept_tick);

static u32 tmesh_bundle_key(kuid_t uid, const char *name)
{
	return jhash(name, strlen(name), __kuid_val(uid));
}

static struct tmesh_bundle *tmesh_bundle_find(kuid_t uid, const struct ipc_namespace *ipc_ns,
					      const char *name)
{
	struct tmesh_bundle *bundle;

	lockdep_assert_held(&tmesh_kept_lock);
	hash_for_each_possible(bundle_names, bundle, node, tmesh_bundle_key(uid, name)) {
		if (uid_eq(bundle->user->uid, uid) && bundle->user->ipc_ns == ipc_ns &&
		    !strcmp(bundle->name, name))
			return bundle;
	}
	return NULL;
}

/* Gives its regions back, which frees those that nobody holds. */
static void tmesh_bundle_free(struct tmesh_bundle *bundle)
{
	struct tmesh_region *region;
	u32 i;

	for (i = 0; i < bundle->nr_regions; i++) {
		region = bundle->regions[i];
		if (bundle->taken) {
			/* From here on it is the region itself that refuses claims. */
			tmesh_region_close(region);
			spin_lock(&tmesh_kept_lock);
			region->kept = NULL;
			spin_unlock(&tmesh_kept_lock);
		}
		tmesh_region_put(region);
		cond_resched();
	}
	tmesh_user_put(bundle->user);
	kvfree_rcu(bundle, rcu);
}

static void tmesh_bundle_release(struct kref *ref)
{
	tmesh_bundle_free(container_of(ref, struct tmesh_bundle, ref));
}

static void tmesh_kept_reap(struct work_struct *work)
{
	struct llist_node *dead = llist_del_all(&bundles_dead);
	struct tmesh_bundle *bundle, *next;

	llist_for_each_entry_safe(bundle, next, dead, dead) tmesh_bundle_free(bundle);
}

static DECLARE_WORK(reap_work, tmesh_kept_reap);

static void tmesh_bundle_release_later(struct kref *ref)
{
	struct tmesh_bundle *bundle = container_of(ref, struct tmesh_bundle, ref);

	llist_add(&bundle->dead, &bundles_dead);
	queue_work(tmesh_wq, &reap_work);
}

/**
 * tmesh_bundle_put_later() - drop a reference
 * @bundle: the bundle
 *
 * Context: any process context, also with locks held and in memory reclaim.
 */
void tmesh_bundle_put_later(struct tmesh_bundle *bundle)
{
	kref_put(&bundle->ref, tmesh_bundle_release_later);
}

/**
 * tmesh_bundle_put() - drop a reference
 * @bundle: the bundle
 *
 * What the last reference frees is free when this returns.
 *
 * Context: may sleep; no locks are held.
 */
void tmesh_bundle_put(struct tmesh_bundle *bundle)
{
	kref_put(&bundle->ref, tmesh_bundle_release);
}

static bool tmesh_bundle_linked(const struct tmesh_bundle *bundle)
{
	return !hlist_unhashed(&bundle->node);
}

/**
 * tmesh_bundle_busy() - a bundle is held from now on, if it was not
 * @bundle: with a name
 *
 * Context: tmesh_kept_lock is held.
 */
void tmesh_bundle_busy(struct tmesh_bundle *bundle)
{
	lockdep_assert_held(&tmesh_kept_lock);
	bundle->held++;
	if (list_empty(&bundle->idle))
		return;
	list_del_init(&bundle->idle);
	tmesh_kept_idle_pages -= bundle->nr_pages;
}

/**
 * tmesh_bundle_idle() - undo tmesh_bundle_busy()
 * @bundle: held
 *
 * Context: tmesh_kept_lock is held.
 */
void tmesh_bundle_idle(struct tmesh_bundle *bundle)
{
	lockdep_assert_held(&tmesh_kept_lock);
	if (--bundle->held)
		return;
	bundle->used_ns = ktime_get_ns();
	/* One that has no memory of the machine's would be given up for nothing. */
	if (!tmesh_bundle_linked(bundle) || !bundle->nr_pages)
		return;
	list_add_tail(&bundle->idle, &tmesh_kept_idle);
	tmesh_kept_idle_pages += bundle->nr_pages;
}

/* Its name is free, and it is found no more. */
static void tmesh_bundle_hide(struct tmesh_bundle *bundle)
{
	lockdep_assert_held(&tmesh_kept_lock);
	hash_del(&bundle->node);
	xa_erase(&bundles, bundle->id);
	if (!list_empty(&bundle->idle)) {
		list_del_init(&bundle->idle);
		tmesh_kept_idle_pages -= bundle->nr_pages;
	}
}

static void tmesh_bundle_uncharge(const struct tmesh_bundle *bundle)
{
	tmesh_uncharge(bundle->user, TMESH_KEPT_BYTES, bundle->bytes);
	tmesh_uncharge(bundle->user, TMESH_KEPT_NAMES, 1);
}

/* Its regions are kept by nobody any more. */
static void tmesh_bundle_leave(struct tmesh_bundle *bundle)
{
	struct tmesh_region *region;
	u32 i;

	lockdep_assert_held(&tmesh_kept_lock);
	for (i = 0; i < bundle->nr_regions; i++) {
		region = bundle->regions[i];
		WRITE_ONCE(region->kept, NULL);
		/* Whoever holds it may be alone now. */
		wake_up_all(&region->wait);
	}
}

/* Ends what a bundle does; the caller drops the name's reference. */
static void tmesh_bundle_unlink(struct tmesh_bundle *bundle, enum tmesh_kept_end why)
{
	lockdep_assert_held(&tmesh_kept_lock);
	tmesh_bundle_hide(bundle);
	tmesh_bundle_leave(bundle);
	tmesh_bundle_uncharge(bundle);
	trace_tmesh_kept_end(bundle->id, bundle->bytes, why);
}

/**
 * tmesh_bundle_take() - nobody is to get a bundle any more, because its memory is wanted
 * @bundle: idle, with a name
 *
 * Its regions still know it, and refuse claims for that.
 *
 * Context: tmesh_kept_lock is held. The caller drops the name's reference afterwards.
 */
void tmesh_bundle_take(struct tmesh_bundle *bundle)
{
	lockdep_assert_held(&tmesh_kept_lock);
	bundle->taken = true;
	tmesh_bundle_hide(bundle);
	tmesh_bundle_uncharge(bundle);
	trace_tmesh_kept_end(bundle->id, bundle->bytes, TMESH_KEPT_TAKEN);
}

/**
 * tmesh_bundle_drop() - end what a name keeps
 * @bundle: the caller has a reference
 * @why:    for the trace
 *
 * Return: false where something else has ended it before.
 */
bool tmesh_bundle_drop(struct tmesh_bundle *bundle, enum tmesh_kept_end why)
{
	bool linked;

	spin_lock(&tmesh_kept_lock);
	linked = tmesh_bundle_linked(bundle);
	if (linked)
		tmesh_bundle_unlink(bundle, why);
	spin_unlock(&tmesh_kept_lock);
	if (linked)
		tmesh_bundle_put(bundle);
	return linked;
}

/**
 * tmesh_kept_hold() - a region gets its first claim
 * @region: the region
 *
 * Context: claims_lock is held.
 * Return: 0, or -ESTALE when its memory is about to be taken back.
 */
int tmesh_kept_hold(struct tmesh_region *region)
{
	int rc = 0;

	lockdep_assert_held(&region->claims_lock);
	/* Whoever keeps it has a claim meanwhile. */
	if (!READ_ONCE(region->kept))
		return 0;
	spin_lock(&tmesh_kept_lock);
	if (region->kept && region->kept->taken)
		rc = -ESTALE;
	else if (region->kept)
		tmesh_bundle_busy(region->kept);
	spin_unlock(&tmesh_kept_lock);
	return rc;
}

/**
 * tmesh_kept_release() - a region has lost its last claim
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
		tmesh_bundle_idle(region->kept);
	spin_unlock(&tmesh_kept_lock);
}

/**
 * tmesh_kept_revoked() - a region was revoked: what it was kept with is not whole any more
 * @region: whose state says so
 *
 * Context: claims_lock is held.
 */
void tmesh_kept_revoked(struct tmesh_region *region)
{
	struct tmesh_bundle *bundle;

	spin_lock(&tmesh_kept_lock);
	bundle = region->kept;
	if (bundle)
		tmesh_bundle_unlink(bundle, TMESH_KEPT_REVOKED);
	spin_unlock(&tmesh_kept_lock);
	if (bundle)
		tmesh_bundle_put_later(bundle);
}

/**
 * tmesh_kept_id() - what keeps a region
 * @region: the region
 *
 * Return: the id of the bundle, or 0.
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

static bool tmesh_bundle_abroad(const struct tmesh_bundle *bundle)
{
	return bundle->user->ipc_ns->ns.inum != PROC_IPC_INIT_INO;
}

/* Lets the work look again when something ends, or may. */
static void tmesh_kept_arm(u64 now, u64 next)
{
	lockdep_assert_held(&tmesh_kept_lock);
	next = min(next, now + TMESH_TICK_MAX_NS);
	if (next >= tick_at)
		return;
	tick_at = next;
	mod_delayed_work(tmesh_wq, &tick_work, nsecs_to_jiffies(next - min(now, next)) + 1);
}

static u64 tmesh_bundle_next_look(const struct tmesh_bundle *bundle, u64 now)
{
	u64 next = bundle->expires_ns ? bundle->expires_ns : U64_MAX;

	return tmesh_bundle_abroad(bundle) ? min(next, now + TMESH_TICK_NS) : next;
}

/**
 * tmesh_bundle_next() - the next bundle by id
 * @cursor: the last id, 0 to begin; set to the one found
 *
 * Return: it with a reference, or NULL.
 */
struct tmesh_bundle *tmesh_bundle_next(u64 *cursor)
{
	struct tmesh_bundle *bundle;
	unsigned long id = *cursor;

	rcu_read_lock();
	do {
		bundle = xa_find_after(&bundles, &id, ULONG_MAX, XA_PRESENT);
	} while (bundle && !kref_get_unless_zero(&bundle->ref));
	rcu_read_unlock();
	*cursor = id;
	return bundle;
}

/* Drops what has come to its end: its time is over, or the namespace has no processes left. */
static void tmesh_kept_tick(struct work_struct *work)
{
	u64 now = ktime_get_ns(), next = U64_MAX, cursor = 0;
	struct tmesh_bundle *bundle;

	spin_lock(&tmesh_kept_lock);
	tick_at = U64_MAX;
	spin_unlock(&tmesh_kept_lock);
	while ((bundle = tmesh_bundle_next(&cursor))) {
		if (bundle->expires_ns && bundle->expires_ns <= now)
			tmesh_bundle_drop(bundle, TMESH_KEPT_EXPIRED);
		else if (tmesh_bundle_abroad(bundle) && tmesh_ipc_ns_ended(bundle->user))
			tmesh_bundle_drop(bundle, TMESH_KEPT_IPC_NS);
		else
			next = min(next, tmesh_bundle_next_look(bundle, now));
		tmesh_bundle_put(bundle);
		cond_resched();
	}
	if (next == U64_MAX)
		return;
	spin_lock(&tmesh_kept_lock);
	tmesh_kept_arm(ktime_get_ns(), next);
	spin_unlock(&tmesh_kept_lock);
}

/**
 * tmesh_bundle_new() - a bundle without regions, which has an id and is not found yet
 * @cmd: the call that makes it; its @count and @name were checked
 *
 * Return: it with a reference, for tmesh_bundle_publish() or tmesh_bundle_abandon(); or an error.
 */
struct tmesh_bundle *tmesh_bundle_new(const struct tmesh_keep *cmd)
{
	struct tmesh_bundle *bundle;
	kgid_t gid;
	int rc;

	rc = tmesh_check_gid(cmd->flags, cmd->gid, &gid);
	if (rc)
		return ERR_PTR(rc);
	if (cmd->mode & ~0660 || cmd->lifetime_ns > KTIME_MAX)
		return ERR_PTR(-EINVAL);
	bundle = kvzalloc(struct_size(bundle, regions, cmd->count), TMESH_GFP);
	if (!bundle)
		return ERR_PTR(-ENOMEM);
	kref_init(&bundle->ref);
	INIT_LIST_HEAD(&bundle->idle);
	INIT_HLIST_NODE(&bundle->node);
	strscpy_pad(bundle->name, cmd->name, sizeof(bundle->name));
	bundle->gid = gid;
	bundle->mode = cmd->mode ? cmd->mode : 0600;
	bundle->rights = TMESH_RIGHTS_ALL;
	bundle->user = tmesh_user_get(current_euid());
	if (IS_ERR(bundle->user)) {
		rc = PTR_ERR(bundle->user);
		goto free;
	}
	bundle->id = atomic64_inc_return(&last_id);
	rc = xa_reserve(&bundles, bundle->id, TMESH_GFP);
	if (rc)
		goto put_user;
	return bundle;

put_user:
	tmesh_user_put(bundle->user);
free:
	kvfree(bundle);
	return ERR_PTR(rc);
}

/* May all of its regions come to a bundle that takes the place of another, if there is one? */
static int tmesh_bundle_fits(const struct tmesh_bundle *bundle, const struct tmesh_bundle *old)
{
	u64 names = old ? 1 : 0, bytes = old ? old->bytes : 0;
	const struct tmesh_region *region;
	int rc;
	u32 i;

	lockdep_assert_held(&tmesh_kept_lock);
	for (i = 0; i < bundle->nr_regions; i++) {
		region = bundle->regions[i];
		/* A revocation that comes later finds the bundle. */
		if (READ_ONCE(region->state) & TMESH_STATE_REVOKED)
			return -ESTALE;
		if (region->kept && region->kept != old)
			return -EBUSY;
	}
	rc = tmesh_exchange(bundle->user, TMESH_KEPT_NAMES, names, 1);
	if (rc)
		return rc;
	rc = tmesh_exchange(bundle->user, TMESH_KEPT_BYTES, bytes, bundle->bytes);
	if (rc && !old)
		tmesh_uncharge(bundle->user, TMESH_KEPT_NAMES, 1);
	return rc;
}

/**
 * tmesh_bundle_publish() - let a bundle be found; from now on it keeps its regions
 * @bundle: of tmesh_bundle_new(), whose reference is the name's from now on
 * @cmd:    the call
 * @old:    set to what had the name until now, with the name's reference, or to NULL
 *
 * Return: 0 or a negative error, after which nothing has changed.
 */
int tmesh_bundle_publish(struct tmesh_bundle *bundle, const struct tmesh_keep *cmd,
			 struct tmesh_bundle **old)
{
	const struct tmesh_user *user = bundle->user;
	u64 now = ktime_get_ns();
	int rc = -EEXIST;
	u32 i;

	bundle->kept_ns = now;
	bundle->used_ns = now;
	if (cmd->lifetime_ns)
		bundle->expires_ns = now + cmd->lifetime_ns;
	spin_lock(&tmesh_kept_lock);
	*old = tmesh_bundle_find(user->uid, user->ipc_ns, bundle->name);
	if (!*old || cmd->flags & TMESH_KEEP_REPLACE)
		rc = tmesh_bundle_fits(bundle, *old);
	if (rc) {
		*old = NULL;
		goto unlock;
	}
	if (*old) {
		/* Its charge is ours now. */
		tmesh_bundle_hide(*old);
		tmesh_bundle_leave(*old);
		trace_tmesh_kept_end((*old)->id, (*old)->bytes, TMESH_KEPT_REPLACED);
	}
	for (i = 0; i < bundle->nr_regions; i++)
		WRITE_ONCE(bundle->regions[i]->kept, bundle);
	/* The caller has a file of each. */
	bundle->held = bundle->nr_regions;
	hash_add(bundle_names, &bundle->node, tmesh_bundle_key(user->uid, bundle->name));
	xa_store(&bundles, bundle->id, bundle, GFP_ATOMIC);
	trace_tmesh_keep(bundle->id, bundle->bytes, bundle->nr_regions);
	tmesh_kept_arm(now, tmesh_bundle_next_look(bundle, now));
unlock:
	spin_unlock(&tmesh_kept_lock);
	return rc;
}

/**
 * tmesh_bundle_abandon() - undo tmesh_bundle_new()
 * @bundle: not published
 */
void tmesh_bundle_abandon(struct tmesh_bundle *bundle)
{
	xa_release(&bundles, bundle->id);
	tmesh_bundle_put(bundle);
}

/**
 * tmesh_bundle_access() - what the caller may do with the regions of a bundle
 * @bundle: published
 *
 * Return: rights, 0 where the caller may not open it.
 */
u32 tmesh_bundle_access(const struct tmesh_bundle *bundle)
{
	return tmesh_admitted(bundle->user->ipc_ns, bundle->user->uid, bundle->gid, bundle->mode);
}

/**
 * tmesh_bundle_get() - a bundle by name, which is held until tmesh_bundle_unhold()
 * @uid:  whose
 * @name: its name
 *
 * Return: it with a reference, or NULL where there is none that the caller may open.
 */
struct tmesh_bundle *tmesh_bundle_get(kuid_t uid, const char *name)
{
	struct tmesh_bundle *bundle;

	spin_lock(&tmesh_kept_lock);
	bundle = tmesh_bundle_find(uid, current->nsproxy->ipc_ns, name);
	if (bundle && tmesh_bundle_access(bundle)) {
		kref_get(&bundle->ref);
		tmesh_bundle_busy(bundle);
	} else {
		bundle = NULL;
	}
	spin_unlock(&tmesh_kept_lock);
	return bundle;
}

/**
 * tmesh_bundle_unhold() - undo tmesh_bundle_get()
 * @bundle: of tmesh_bundle_get()
 */
void tmesh_bundle_unhold(struct tmesh_bundle *bundle)
{
	spin_lock(&tmesh_kept_lock);
	tmesh_bundle_idle(bundle);
	spin_unlock(&tmesh_kept_lock);
	tmesh_bundle_put(bundle);
}

/**
 * tmesh_bundle_own() - a bundle by id, for its owner or a caller with CAP_SYS_ADMIN
 * @id: its id
 *
 * Others learn no more than a list shows them.
 *
 * Return: it with a reference; -ENOENT or -EPERM.
 */
struct tmesh_bundle *tmesh_bundle_own(u64 id)
{
	bool all = capable(CAP_SYS_ADMIN);
	struct tmesh_bundle *bundle;
	int rc = 0;

	spin_lock(&tmesh_kept_lock);
	bundle = xa_load(&bundles, id);
	if (!bundle || !(all || tmesh_bundle_access(bundle)))
		rc = -ENOENT;
	else if (!all && !uid_eq(current_euid(), bundle->user->uid))
		rc = -EPERM;
	else
		kref_get(&bundle->ref);
	spin_unlock(&tmesh_kept_lock);
	return rc ? ERR_PTR(rc) : bundle;
}

/**
 * tmesh_bundle_named() - a bundle of the caller's own, by name, whatever its mode admits
 * @name: its name
 *
 * Return: it with a reference, or -ENOENT.
 */
struct tmesh_bundle *tmesh_bundle_named(const char *name)
{
	struct tmesh_bundle *bundle;

	spin_lock(&tmesh_kept_lock);
	bundle = tmesh_bundle_find(current_euid(), current->nsproxy->ipc_ns, name);
	if (bundle)
		kref_get(&bundle->ref);
	spin_unlock(&tmesh_kept_lock);
	return bundle ? bundle : ERR_PTR(-ENOENT);
}

/* Every file has gone. Who unloads the module wants that, and is told what went with it. */
void tmesh_kept_exit(void)
{
	struct tmesh_bundle *bundle;
	unsigned long told = 0;
	u64 cursor = 0;

	cancel_delayed_work_sync(&tick_work);
	while ((bundle = tmesh_bundle_next(&cursor))) {
		if (told++ < TMESH_TOLD)
			pr_notice("tmesh: unloaded, dropped \"%*pE\" of uid %u: %u regions, %llu bytes\n",
				  (int)strlen(bundle->name), bundle->name,
				  __kuid_val(bundle->user->uid), bundle->nr_regions, bundle->bytes);
		tmesh_bundle_drop(bundle, TMESH_KEPT_UNLOADED);
		tmesh_bundle_put(bundle);
	}
	if (told > TMESH_TOLD)
		pr_notice("tmesh: unloaded, dropped %lu more names\n", told - TMESH_TOLD);
	flush_work(&reap_work);
	WARN_ON_ONCE(!xa_empty(&bundles) || tmesh_kept_idle_pages);
	xa_destroy(&bundles);
}
