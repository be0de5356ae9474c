// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kept regions: some that stay together, under a name, when nobody holds them any more.
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

#include "keep.h"
#include "trace.h"

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

	llist_for_each_entry_safe(bundle, next, dead, dead)
		tmesh_bundle_free(bundle);
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

/* What the last reference frees is free when this returns. No locks may be held. */
static void tmesh_bundle_put(struct tmesh_bundle *bundle)
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

static bool tmesh_bundle_drop(struct tmesh_bundle *bundle, enum tmesh_kept_end why)
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

/* The next by id, with a reference. */
static struct tmesh_bundle *tmesh_bundle_next(u64 *cursor)
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

/* May a handle's region be kept? */
static int tmesh_keep_check(const struct tmesh_claim *claim)
{
	const struct tmesh_region *region = claim->region;
	int rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);

	if (rc)
		return rc;
	/* Who has a lease would be free of it. */
	if (!uid_eq(region->uid, current_euid()) || region->ipc_ns != current->nsproxy->ipc_ns ||
	    READ_ONCE(claim->lease))
		return -EPERM;
	if (region->backing != TMESH_BACKING_OPAQUE &&
	    !(READ_ONCE(region->state) & TMESH_STATE_SEALED))
		return -EINVAL;
	return 0;
}

static bool tmesh_bundle_has(const struct tmesh_bundle *bundle, const struct tmesh_region *region)
{
	u32 i;

	for (i = 0; i < bundle->nr_regions; i++) {
		if (bundle->regions[i] == region)
			return true;
	}
	return false;
}

/* Memory of the machine's that giving a region up would free. */
static unsigned long tmesh_keep_pages(const struct tmesh_region *region)
{
	return region->backing == TMESH_BACKING_OPAQUE ? 0 : region->nr_pages;
}

static int tmesh_keep_add(struct tmesh_bundle *bundle, const struct file *file)
{
	const struct tmesh_handle *handle = tmesh_handle_of(file);
	struct tmesh_region *region;
	int rc;

	if (!handle)
		return -EINVAL;
	rc = tmesh_keep_check(&handle->claim);
	if (rc)
		return rc;
	region = handle->claim.region;
	if (tmesh_bundle_has(bundle, region))
		return -EINVAL;
	kref_get(&region->ref);
	bundle->regions[bundle->nr_regions++] = region;
	bundle->rights &= handle->claim.rights;
	bundle->nr_pages += tmesh_keep_pages(region);
	bundle->bytes = (u64)bundle->nr_pages << PAGE_SHIFT;
	return 0;
}

/* Takes the regions of the caller's descriptors, and holds the files until it is kept. */
static int tmesh_keep_resolve(struct tmesh_bundle *bundle, const struct tmesh_keep *cmd,
			      struct file **files)
{
	s32 __user *fds = u64_to_user_ptr(cmd->handles);
	s32 fd;
	u32 i;
	int rc;

	for (i = 0; i < cmd->count; i++) {
		if (get_user(fd, fds + i))
			return -EFAULT;
		files[i] = fget(fd);
		if (!files[i])
			return -EBADF;
		rc = tmesh_keep_add(bundle, files[i]);
		if (rc)
			return rc;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

static struct tmesh_bundle *tmesh_bundle_new(const struct tmesh_keep *cmd)
{
	struct tmesh_bundle *bundle;
	kgid_t gid;
	int rc;

	rc = tmesh_check_gid(cmd->flags, cmd->gid, &gid);
	if (rc)
		return ERR_PTR(rc);
	if (cmd->mode & ~0660 || cmd->lifetime_ns > KTIME_MAX)
		return ERR_PTR(-EINVAL);
	bundle = kvzalloc(struct_size(bundle, regions, cmd->count),
			  GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
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
	rc = xa_reserve(&bundles, bundle->id, GFP_KERNEL_ACCOUNT);
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

/* Lets a bundle count; @old is set to what had the name until now, with the name's reference. */
static int tmesh_bundle_publish(struct tmesh_bundle *bundle, const struct tmesh_keep *cmd,
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
 * tmesh_ioctl_keep() - TMESH_KEEP
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_keep(struct tmesh_ucmd *ucmd)
{
	struct tmesh_bundle *bundle, *old = NULL;
	struct tmesh_keep *cmd = ucmd->cmd;
	struct file **files;
	int rc;
	u32 i;

	if (cmd->pad || !cmd->count || cmd->count > TMESH_KEEP_MAX || !*cmd->name)
		return -EINVAL;
	rc = tmesh_check_label(cmd->name);
	if (rc)
		return rc;
	bundle = tmesh_bundle_new(cmd);
	if (IS_ERR(bundle))
		return PTR_ERR(bundle);
	rc = -ENOMEM;
	files = kvcalloc(cmd->count, sizeof(*files), GFP_KERNEL_ACCOUNT);
	if (!files)
		goto put;
	rc = tmesh_keep_resolve(bundle, cmd, files);
	if (rc)
		goto put_files;
	cmd->id = bundle->id;
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (!rc)
		rc = tmesh_bundle_publish(bundle, cmd, &old);
put_files:
	for (i = 0; i < cmd->count && files[i]; i++)
		fput(files[i]);
	kvfree(files);
put:
	if (old)
		tmesh_bundle_put(old);
	if (rc) {
		xa_release(&bundles, bundle->id);
		tmesh_bundle_put(bundle);
	}
	return rc;
}

/* What the caller may do with the regions of a bundle. */
static u32 tmesh_bundle_access(const struct tmesh_bundle *bundle)
{
	return tmesh_admitted(bundle->user->ipc_ns, bundle->user->uid, bundle->gid, bundle->mode);
}

/* A bundle by name, which is held until the caller has handles of its own. */
static struct tmesh_bundle *tmesh_bundle_get(kuid_t uid, const char *name)
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
 * struct tmesh_opened - a handle that was not installed yet
 * @file: the handle
 * @fd:   its descriptor
 */
struct tmesh_opened {
	struct file *file;
	s32 fd;
};

/* Makes all handles, and tells the caller their numbers. */
static int tmesh_kept_make(struct tmesh_ucmd *ucmd, const struct tmesh_bundle *bundle,
			   struct tmesh_opened *opened, u32 *done)
{
	struct tmesh_kept_open *cmd = ucmd->cmd;
	s32 __user *fds = u64_to_user_ptr(cmd->fds);
	struct file *file;
	int fd;

	for (; *done < bundle->nr_regions; ++*done) {
		fd = tmesh_handle_new(bundle->regions[*done], cmd->rights,
				      cmd->flags & TMESH_KEPT_PIN, NULL, &file);
		/* Revoked meanwhile, and so not kept any more. */
		if (fd < 0)
			return fd == -ESTALE ? -ENOENT : fd;
		opened[*done] = (struct tmesh_opened){ file, fd };
		if (put_user(fd, fds + *done)) {
			++*done;
			return -EFAULT;
		}
		if (fatal_signal_pending(current)) {
			++*done;
			return -EINTR;
		}
		cond_resched();
	}
	return tmesh_respond(ucmd, sizeof(*cmd));
}

static int tmesh_kept_open(struct tmesh_ucmd *ucmd, const struct tmesh_bundle *bundle)
{
	struct tmesh_kept_open *cmd = ucmd->cmd;
	struct tmesh_opened *opened;
	u32 room = cmd->count, done = 0, i;
	int rc;

	if (cmd->rights & ~(tmesh_bundle_access(bundle) & bundle->rights))
		return -EACCES;
	cmd->count = bundle->nr_regions;
	cmd->id = bundle->id;
	if (room < bundle->nr_regions)
		return tmesh_respond(ucmd, sizeof(*cmd)) ? -EFAULT : -ENOSPC;
	opened = kvcalloc(bundle->nr_regions, sizeof(*opened), GFP_KERNEL_ACCOUNT);
	if (!opened)
		return -ENOMEM;
	rc = tmesh_kept_make(ucmd, bundle, opened, &done);
	for (i = 0; i < done; i++) {
		if (rc) {
			tmesh_handle_cancel(opened[i].fd, opened[i].file);
			continue;
		}
		trace_tmesh_open(bundle->regions[i]->id, cmd->rights, cmd->flags & TMESH_KEPT_PIN);
		fd_install(opened[i].fd, opened[i].file);
	}
	kvfree(opened);
	return rc;
}

/**
 * tmesh_ioctl_kept_open() - TMESH_KEPT_OPEN
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_kept_open(struct tmesh_ucmd *ucmd)
{
	struct tmesh_kept_open *cmd = ucmd->cmd;
	struct tmesh_bundle *bundle;
	kuid_t uid = current_euid();
	int rc;

	if (cmd->pad || !*cmd->name)
		return -EINVAL;
	rc = tmesh_check_label(cmd->name);
	if (rc)
		return rc;
	rc = tmesh_check_rights(cmd->rights);
	if (rc)
		return rc;
	if (cmd->flags & TMESH_KEPT_UID)
		uid = make_kuid(current_user_ns(), cmd->uid);
	else if (cmd->uid)
		return -EINVAL;
	bundle = uid_valid(uid) ? tmesh_bundle_get(uid, cmd->name) : NULL;
	if (!bundle)
		return -ENOENT;
	rc = tmesh_kept_open(ucmd, bundle);
	spin_lock(&tmesh_kept_lock);
	tmesh_bundle_idle(bundle);
	spin_unlock(&tmesh_kept_lock);
	tmesh_bundle_put(bundle);
	return rc;
}

static void tmesh_fill_kept(struct tmesh_kept *kept, struct tmesh_bundle *bundle)
{
	u32 i;

	memset(kept, 0, sizeof(*kept));
	kept->size = sizeof(*kept);
	kept->count = bundle->nr_regions;
	kept->id = bundle->id;
	memcpy(kept->name, bundle->name, sizeof(kept->name));
	kept->bytes = bundle->bytes;
	kept->kept_ns = tmesh_time_here(bundle->kept_ns);
	if (bundle->expires_ns)
		kept->expires_ns = tmesh_time_here(bundle->expires_ns);
	kept->uid = from_kuid_munged(current_user_ns(), bundle->user->uid);
	kept->gid = from_kgid_munged(current_user_ns(), bundle->gid);
	kept->mode = bundle->mode;
	kept->cgroup_id = bundle->regions[0]->cgroup_id;
	for (i = 0; i < bundle->nr_regions; i++) {
		kept->handles += READ_ONCE(bundle->regions[i]->nr_handles);
		kept->pinning_handles += READ_ONCE(bundle->regions[i]->nr_pinning);
	}
	spin_lock(&tmesh_kept_lock);
	/* Somebody may be about to open it. */
	kept->held = min(bundle->held, bundle->nr_regions);
	kept->used_ns = tmesh_time_here(bundle->held ? ktime_get_ns() : bundle->used_ns);
	spin_unlock(&tmesh_kept_lock);
}

/**
 * tmesh_ioctl_kept_list() - TMESH_KEPT_LIST
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_kept_list(struct tmesh_ucmd *ucmd)
{
	bool all = capable(CAP_SYS_ADMIN), shown;
	struct tmesh_kept_list *cmd = ucmd->cmd;
	struct tmesh_bundle *bundle;
	u64 cursor = cmd->cursor;
	u32 room = cmd->count;
	struct tmesh_kept kept;
	int rc;

	if (cmd->pad)
		return -EINVAL;
	rc = tmesh_check_stride(room, cmd->entry_bytes, offsetofend(struct tmesh_kept, cgroup_id));
	if (rc)
		return rc;
	cmd->count = 0;
	cmd->more = 0;
	while (!cmd->more && (bundle = tmesh_bundle_next(&cursor))) {
		shown = all || tmesh_bundle_access(bundle);
		cmd->more = shown && cmd->count == room;
		if (shown && !cmd->more)
			tmesh_fill_kept(&kept, bundle);
		tmesh_bundle_put(bundle);
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
		if (!shown || cmd->more)
			continue;
		rc = tmesh_put_entry(cmd->entries, cmd->entry_bytes, cmd->count, &kept,
				     sizeof(kept));
		if (rc)
			return rc;
		cmd->cursor = cursor;
		cmd->count++;
	}
	return tmesh_respond(ucmd, sizeof(*cmd));
}

/* By id, for the owner or who has CAP_SYS_ADMIN; others learn no more than a list shows them. */
static struct tmesh_bundle *tmesh_bundle_own(u64 id)
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

/* One's own, by name, whatever its mode admits. */
static struct tmesh_bundle *tmesh_bundle_named(const char *name)
{
	struct tmesh_bundle *bundle;

	spin_lock(&tmesh_kept_lock);
	bundle = tmesh_bundle_find(current_euid(), current->nsproxy->ipc_ns, name);
	if (bundle)
		kref_get(&bundle->ref);
	spin_unlock(&tmesh_kept_lock);
	return bundle ? bundle : ERR_PTR(-ENOENT);
}

/**
 * tmesh_ioctl_kept_drop() - TMESH_KEPT_DROP
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_kept_drop(struct tmesh_ucmd *ucmd)
{
	const struct tmesh_kept_drop *cmd = ucmd->cmd;
	bool by_id = cmd->flags & TMESH_KEPT_ID;
	struct tmesh_bundle *bundle;
	int rc;

	if (by_id ? !!memchr_inv(cmd->name, 0, sizeof(cmd->name)) : cmd->id || !*cmd->name)
		return -EINVAL;
	rc = tmesh_check_label(cmd->name);
	if (rc)
		return rc;
	bundle = by_id ? tmesh_bundle_own(cmd->id) : tmesh_bundle_named(cmd->name);
	if (IS_ERR(bundle))
		return PTR_ERR(bundle);
	rc = tmesh_bundle_drop(bundle, TMESH_KEPT_DROPPED) ? 0 : -ENOENT;
	tmesh_bundle_put(bundle);
	return rc;
}

int __init tmesh_kept_init(void)
{
	return tmesh_reclaim_init();
}

/* Every file has gone. Who unloads the module wants that, and is told what went with it. */
void tmesh_kept_exit(void)
{
	struct tmesh_bundle *bundle;
	unsigned long told = 0;
	u64 cursor = 0;

	tmesh_reclaim_exit();
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
