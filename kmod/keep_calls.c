// SPDX-License-Identifier: GPL-2.0-only
/*
 * The calls for kept regions: keep some, open, list and drop them. keep.c has what is kept.
 */
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/ipc_namespace.h>
#include <linux/ktime.h>
#include <linux/nsproxy.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "claim.h"
#include "handle.h"
#include "keep.h"
#include "keep_calls.h"
#include "query.h"
#include "trace.h"
#include "ucmd.h"

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
	files = kvcalloc(cmd->count, sizeof(*files), TMESH_GFP);
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
	if (rc)
		tmesh_bundle_abandon(bundle);
	return rc;
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
		fd = tmesh_handle_new(bundle->regions[*done], cmd->rights, false, NULL, &file);
		/* Revoked meanwhile, and so not kept any more. */
		if (fd < 0)
			return fd == -ESTALE ? -ENOENT : fd;
		opened[*done] = (struct tmesh_opened){file, fd};
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
	opened = kvcalloc(bundle->nr_regions, sizeof(*opened), TMESH_GFP);
	if (!opened)
		return -ENOMEM;
	rc = tmesh_kept_make(ucmd, bundle, opened, &done);
	for (i = 0; i < done; i++) {
		if (rc) {
			tmesh_handle_cancel(opened[i].fd, opened[i].file);
			continue;
		}
		trace_tmesh_open(bundle->regions[i]->id, cmd->rights, false);
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
	tmesh_bundle_unhold(bundle);
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
	bool all = tmesh_sees_all(), shown;
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
