// SPDX-License-Identifier: GPL-2.0-only
/*
 * The calls to keep regions under a name, and to open, list and drop them. keep.c has the groups.
 */
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/ipc_namespace.h>
#include <linux/ktime.h>
#include <linux/nospec.h>
#include <linux/nsproxy.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "claim.h"
#include "files.h"
#include "handle.h"
#include "keep.h"
#include "keep_calls.h"
#include "query.h"
#include "registry.h"
#include "trace.h"
#include "ucmd.h"

/* Check whether the region of a handle may be kept. */
static int tmesh_keep_check(const struct tmesh_claim *claim)
{
	const struct tmesh_region *region = claim->region;
	int rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);

	if (rc)
		return rc;
	/* A handle opened by the name would not share the lease. */
	if (!uid_eq(region->uid, current_euid()) || region->ipc_ns != current->nsproxy->ipc_ns ||
	    READ_ONCE(claim->lease))
		return -EPERM;
	if (region->backing != TMESH_BACKING_OPAQUE &&
	    !(READ_ONCE(region->state) & TMESH_STATE_SEALED))
		return -EINVAL;
	return 0;
}

static bool tmesh_group_has(const struct tmesh_group *group, const struct tmesh_region *region)
{
	u32 i;

	for (i = 0; i < group->nr_regions; i++) {
		if (group->regions[i] == region)
			return true;
	}
	return false;
}

/* Return the number of pages that the end of a region would free. */
static unsigned long tmesh_keep_pages(const struct tmesh_region *region)
{
	return region->backing == TMESH_BACKING_OPAQUE ? 0 : region->nr_pages;
}

static int tmesh_keep_add(struct tmesh_group *group, const struct file *file)
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
	if (tmesh_group_has(group, region))
		return -EINVAL;
	kref_get(&region->ref);
	group->regions[group->nr_regions++] = region;
	group->rights &= handle->claim.rights;
	group->nr_pages += tmesh_keep_pages(region);
	group->bytes = (u64)group->nr_pages << PAGE_SHIFT;
	return 0;
}

/* Add the regions of the caller's descriptors. The files stay open until the group is published. */
static int tmesh_keep_resolve(struct tmesh_group *group, const struct tmesh_keep *cmd,
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
		rc = tmesh_keep_add(group, files[i]);
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
	struct tmesh_group *group, *old = NULL;
	struct tmesh_keep *cmd = ucmd->cmd;
	struct file **files;
	int rc;
	u32 i;

	if (cmd->pad || !cmd->count || cmd->count > TMESH_KEEP_MAX || !*cmd->name)
		return -EINVAL;
	rc = tmesh_label_valid(cmd->name);
	if (rc)
		return rc;
	group = tmesh_group_new(cmd);
	if (IS_ERR(group))
		return PTR_ERR(group);
	rc = -ENOMEM;
	files = kvcalloc(cmd->count, sizeof(*files), TMESH_GFP);
	if (!files)
		goto put;
	rc = tmesh_keep_resolve(group, cmd, files);
	if (rc)
		goto put_files;
	rc = tmesh_files_read(group, cmd);
	if (rc)
		goto put_files;
	group->charged = group->bytes + group->precharged;
	cmd->id = group->id;
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (!rc)
		rc = tmesh_group_publish(group, cmd, &old);
put_files:
	for (i = 0; i < cmd->count && files[i]; i++)
		fput(files[i]);
	kvfree(files);
put:
	if (old) {
		tmesh_group_wake(old);
		tmesh_group_put(old);
	}
	if (rc)
		tmesh_group_abandon(group);
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

/* Create a handle on each region of the call. */
static int tmesh_kept_make(const struct tmesh_kept_open *cmd, struct tmesh_region *const *regions,
			   struct tmesh_opened *opened, u32 *done)
{
	struct file *file;
	int fd;

	for (; *done < cmd->count; ++*done) {
		if (fatal_signal_pending(current))
			return -EINTR;
		fd = tmesh_handle_new(regions[*done], cmd->rights, false, NULL, &file);
		/* The region was revoked meanwhile, so it is not kept any more. */
		if (fd < 0)
			return fd == -ESTALE ? -ENOENT : fd;
		opened[*done] = (struct tmesh_opened){file, fd};
		cond_resched();
	}
	return 0;
}

/* Open the regions of the call. @done becomes the number of handles, also on failure. */
static int tmesh_kept_open_some(struct tmesh_kept_open *cmd, const struct tmesh_group *group,
				struct tmesh_opened **opened, u32 *done)
{
	struct tmesh_region *const *regions;
	u32 room = cmd->count;

	if (cmd->rights & ~(tmesh_group_access(group) & group->rights))
		return -EACCES;
	cmd->id = group->id;
	cmd->total = group->nr_regions;
	cmd->count = group->nr_regions - min(cmd->first, group->nr_regions);
	if (cmd->flags & TMESH_KEPT_PART)
		cmd->count = min(cmd->count, room);
	else if (room < cmd->count)
		return -ENOSPC;
	regions = group->regions + array_index_nospec(cmd->first, group->nr_regions);
	*opened = kvcalloc(cmd->count, sizeof(**opened), TMESH_GFP);
	if (!*opened)
		return -ENOMEM;
	return tmesh_kept_make(cmd, regions, *opened, done);
}

/* Write the descriptors and the call's structure to user memory. */
static int tmesh_kept_answer(struct tmesh_ucmd *ucmd, const struct tmesh_opened *opened)
{
	const struct tmesh_kept_open *cmd = ucmd->cmd;
	s32 __user *fds = u64_to_user_ptr(cmd->fds);
	u32 i;

	for (i = 0; i < cmd->count; i++) {
		if (put_user(opened[i].fd, fds + i))
			return -EFAULT;
	}
	return tmesh_respond(ucmd, sizeof(*cmd));
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
	struct tmesh_opened *opened = NULL;
	struct tmesh_group *group;
	kuid_t uid = current_euid();
	u32 done = 0, i;
	int rc;

	if (cmd->pad || !*cmd->name || (cmd->first && !(cmd->flags & TMESH_KEPT_PART)))
		return -EINVAL;
	rc = tmesh_label_valid(cmd->name);
	if (rc)
		return rc;
	rc = tmesh_rights_valid(cmd->rights);
	if (rc)
		return rc;
	if (cmd->flags & TMESH_KEPT_UID)
		uid = make_kuid(current_user_ns(), cmd->uid);
	else if (cmd->uid)
		return -EINVAL;
	group = uid_valid(uid) ? tmesh_group_get(uid, cmd->name) : NULL;
	if (!group)
		return -ENOENT;
	rc = tmesh_kept_open_some(cmd, group, &opened, &done);
	/*
	 * The caller's memory may delay the answer for ever. So only the handles are held
	 * meanwhile, which others can see and revoke.
	 */
	tmesh_group_unhold(group);
	if (!rc)
		rc = tmesh_kept_answer(ucmd, opened);
	else if (rc == -ENOSPC && tmesh_respond(ucmd, sizeof(*cmd)))
		rc = -EFAULT;
	for (i = 0; i < done; i++) {
		if (rc) {
			tmesh_handle_cancel(opened[i].fd, opened[i].file);
			continue;
		}
		trace_tmesh_open(tmesh_handle_of(opened[i].file)->claim.region->id, cmd->rights,
				 false);
		fd_install(opened[i].fd, opened[i].file);
	}
	kvfree(opened);
	return rc;
}

/* Called under RCU, which keeps the regions. */
static void tmesh_fill_kept(struct tmesh_kept *kept, const struct tmesh_group *group)
{
	u32 i;

	memset(kept, 0, sizeof(*kept));
	kept->size = sizeof(*kept);
	kept->count = group->nr_regions;
	kept->id = group->id;
	memcpy(kept->name, group->name, sizeof(kept->name));
	kept->bytes = group->bytes;
	kept->kept_ns = tmesh_time_here(group->kept_ns);
	if (group->expires_ns)
		kept->expires_ns = tmesh_time_here(group->expires_ns);
	kept->uid = from_kuid_munged(current_user_ns(), group->user->uid);
	kept->gid = from_kgid_munged(current_user_ns(), group->gid);
	kept->mode = group->mode;
	kept->cgroup_id = group->regions[0]->cgroup_id;
	for (i = 0; i < group->nr_regions; i++) {
		kept->handles += READ_ONCE(group->regions[i]->nr_handles);
		kept->pinning_handles += READ_ONCE(group->regions[i]->nr_pinning);
	}
	spin_lock(&tmesh_kept_lock);
	/* @held also counts calls that are about to add claims. */
	kept->held = min(group->held, group->nr_regions);
	kept->used_ns = tmesh_time_here(group->held ? ktime_get_ns() : group->used_ns);
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
	const struct tmesh_group *group;
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
	while (!cmd->more) {
		rcu_read_lock();
		group = tmesh_group_after(&cursor);
		shown = group && (all || tmesh_group_access(group));
		cmd->more = shown && cmd->count == room;
		if (shown && !cmd->more)
			tmesh_fill_kept(&kept, group);
		rcu_read_unlock();
		if (!group)
			break;
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
	struct tmesh_group *group;
	int rc;

	if (by_id ? !!memchr_inv(cmd->name, 0, sizeof(cmd->name)) : cmd->id || !*cmd->name)
		return -EINVAL;
	rc = tmesh_label_valid(cmd->name);
	if (rc)
		return rc;
	group = by_id ? tmesh_group_own(cmd->id) : tmesh_group_named(cmd->name);
	if (IS_ERR(group))
		return PTR_ERR(group);
	rc = tmesh_group_drop(group, TMESH_KEPT_DROPPED) ? 0 : -ENOENT;
	tmesh_group_put(group);
	return rc;
}
