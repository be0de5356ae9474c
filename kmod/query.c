// SPDX-License-Identifier: GPL-2.0-only
/*
 * The calls that query: capabilities, info, list and description.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/time_namespace.h>
#include <linux/uaccess.h>
#include <linux/user_namespace.h>

#include "account.h"
#include "claim.h"
#include "drain.h"
#include "fence.h"
#include "keep.h"
#include "lease.h"
#include "poison.h"
#include "query.h"
#include "region.h"
#include "registry.h"
#include "ucmd.h"

/**
 * tmesh_time_here() - convert a time to the caller's time namespace
 * @ns: CLOCK_MONOTONIC of the initial time namespace
 *
 * Return: CLOCK_MONOTONIC of the caller's time namespace.
 */
u64 tmesh_time_here(u64 ns)
{
	struct timespec64 ts = ns_to_timespec64(ns);

	timens_add_monotonic(&ts);
	return timespec64_to_ns(&ts);
}

/**
 * tmesh_ioctl_caps() - TMESH_CAPS
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_caps(struct tmesh_ucmd *ucmd)
{
	struct tmesh_caps_query *cmd = ucmd->cmd;
	struct tmesh_user *user = tmesh_user_get(current_euid());

	if (IS_ERR(user))
		return PTR_ERR(user);
	cmd->abi_version = TMESH_ABI_VERSION;
	cmd->page_bytes = PAGE_SIZE;
	cmd->features = TMESH_FEATURE_PAGES | TMESH_FEATURE_MEMFD | TMESH_FEATURE_EXPORT |
			TMESH_FEATURE_PIN | TMESH_FEATURE_REVOKE | TMESH_FEATURE_USER |
			TMESH_FEATURE_IMPORT | TMESH_FEATURE_FENCE | TMESH_FEATURE_LEASE |
			TMESH_FEATURE_GATHER | TMESH_FEATURE_KEEP | TMESH_FEATURE_PRIVATE |
			TMESH_FEATURE_RENEW | TMESH_FEATURE_FILES;
	cmd->huge_page_bytes = 0;
	if (IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE)) {
		cmd->features |= TMESH_FEATURE_HUGE;
		cmd->huge_page_bytes = PMD_SIZE;
	}
	cmd->max_bytes = tmesh_limit(user, TMESH_TOTAL, TMESH_BYTES);
	cmd->max_regions = tmesh_limit(user, TMESH_TOTAL, TMESH_REGIONS);
	cmd->max_handles = tmesh_limit(user, TMESH_TOTAL, TMESH_HANDLES);
	cmd->max_pins = tmesh_limit(user, TMESH_TOTAL, TMESH_PINS);
	cmd->max_bytes_per_uid = tmesh_limit(user, TMESH_PER_UID, TMESH_BYTES);
	cmd->max_regions_per_uid = tmesh_limit(user, TMESH_PER_UID, TMESH_REGIONS);
	cmd->max_handles_per_uid = tmesh_limit(user, TMESH_PER_UID, TMESH_HANDLES);
	cmd->max_pins_per_uid = tmesh_limit(user, TMESH_PER_UID, TMESH_PINS);
	cmd->used_bytes = tmesh_used(user, TMESH_PER_UID, TMESH_BYTES);
	cmd->used_regions = tmesh_used(user, TMESH_PER_UID, TMESH_REGIONS);
	cmd->used_handles = tmesh_used(user, TMESH_PER_UID, TMESH_HANDLES);
	cmd->used_pins = tmesh_used(user, TMESH_PER_UID, TMESH_PINS);
	cmd->max_bytes_per_ipc_ns = tmesh_limit(user, TMESH_PER_IPC_NS, TMESH_BYTES);
	cmd->max_regions_per_ipc_ns = tmesh_limit(user, TMESH_PER_IPC_NS, TMESH_REGIONS);
	cmd->max_handles_per_ipc_ns = tmesh_limit(user, TMESH_PER_IPC_NS, TMESH_HANDLES);
	cmd->max_pins_per_ipc_ns = tmesh_limit(user, TMESH_PER_IPC_NS, TMESH_PINS);
	cmd->used_bytes_ipc_ns = tmesh_used(user, TMESH_PER_IPC_NS, TMESH_BYTES);
	cmd->used_regions_ipc_ns = tmesh_used(user, TMESH_PER_IPC_NS, TMESH_REGIONS);
	cmd->used_handles_ipc_ns = tmesh_used(user, TMESH_PER_IPC_NS, TMESH_HANDLES);
	cmd->used_pins_ipc_ns = tmesh_used(user, TMESH_PER_IPC_NS, TMESH_PINS);
	cmd->max_kept_bytes = tmesh_limit(user, TMESH_TOTAL, TMESH_KEPT_BYTES);
	cmd->max_kept_names = tmesh_limit(user, TMESH_TOTAL, TMESH_KEPT_NAMES);
	cmd->max_kept_bytes_per_uid = tmesh_limit(user, TMESH_PER_UID, TMESH_KEPT_BYTES);
	cmd->max_kept_names_per_uid = tmesh_limit(user, TMESH_PER_UID, TMESH_KEPT_NAMES);
	cmd->used_kept_bytes = tmesh_used(user, TMESH_PER_UID, TMESH_KEPT_BYTES);
	cmd->used_kept_names = tmesh_used(user, TMESH_PER_UID, TMESH_KEPT_NAMES);
	cmd->max_kept_bytes_per_ipc_ns = tmesh_limit(user, TMESH_PER_IPC_NS, TMESH_KEPT_BYTES);
	cmd->max_kept_names_per_ipc_ns = tmesh_limit(user, TMESH_PER_IPC_NS, TMESH_KEPT_NAMES);
	cmd->used_kept_bytes_ipc_ns = tmesh_used(user, TMESH_PER_IPC_NS, TMESH_KEPT_BYTES);
	cmd->used_kept_names_ipc_ns = tmesh_used(user, TMESH_PER_IPC_NS, TMESH_KEPT_NAMES);
	cmd->max_files = tmesh_limit(user, TMESH_TOTAL, TMESH_FILES);
	cmd->max_files_per_uid = tmesh_limit(user, TMESH_PER_UID, TMESH_FILES);
	cmd->max_foreign_files_per_uid = tmesh_limit(user, TMESH_PER_UID, TMESH_FOREIGN_FILES);
	cmd->used_files = tmesh_used(user, TMESH_PER_UID, TMESH_FILES);
	cmd->used_foreign_files = tmesh_used(user, TMESH_PER_UID, TMESH_FOREIGN_FILES);
	cmd->max_files_per_ipc_ns = tmesh_limit(user, TMESH_PER_IPC_NS, TMESH_FILES);
	cmd->used_files_ipc_ns = tmesh_used(user, TMESH_PER_IPC_NS, TMESH_FILES);
	tmesh_user_put(user);
	return tmesh_respond(ucmd, sizeof(*cmd));
}

static void tmesh_fill_info(struct tmesh_info *info, struct tmesh_region *region,
			    const struct tmesh_handle *handle)
{
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	info->flags = region->flags;
	info->id = region->id;
	info->bytes = region->bytes;
	info->alloc_bytes = (u64)region->nr_pages << PAGE_SHIFT;
	info->huge_bytes = region->huge_bytes;
	info->created_ns = tmesh_time_here(region->created_ns);
	info->backing = region->backing;
	info->state = READ_ONCE(region->state);
	if (handle) {
		info->rights = handle->claim.rights;
		info->pinning = handle->claim.kind == TMESH_HOLDER_PINNING;
		info->policy = READ_ONCE(handle->claim.policy);
		tmesh_lease_times(&handle->claim, &info->lease_ns, &info->lease_left_ns);
		if (tmesh_claim_lapsed(&handle->claim))
			info->state |= TMESH_STATE_LAPSED;
	}
	info->uid = from_kuid_munged(current_user_ns(), region->uid);
	info->gid = from_kgid_munged(current_user_ns(), region->gid);
	info->mode = region->mode;
	info->node = region->node;
	info->handles = READ_ONCE(region->nr_handles);
	info->pinning_handles = READ_ONCE(region->nr_pinning);
	info->exports = READ_ONCE(region->nr_exports);
	info->gathers = READ_ONCE(region->nr_gathers);
	info->attachments = atomic_read(&region->attachments);
	info->desc_bytes = READ_ONCE(region->desc_bytes);
	info->hold_ms = region->hold_ms;
	info->pinned_bytes = (u64)READ_ONCE(region->pinned) << PAGE_SHIFT;
	info->cgroup_id = region->cgroup_id;
	memcpy(info->label, region->label, sizeof(info->label));
	info->kept = tmesh_kept_id(region);
	info->opens = atomic64_read(&region->opens);
	info->fence_value = tmesh_fence_look(region, &info->fence_state);
}

/**
 * tmesh_ioctl_info() - TMESH_INFO
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_info(struct tmesh_ucmd *ucmd)
{
	struct tmesh_info *cmd = ucmd->cmd;
	struct tmesh_region *region = tmesh_get_named(ucmd, cmd->id);
	u32 size = cmd->size, flags = cmd->flags;
	int rc = 0;

	if (IS_ERR(region))
		return PTR_ERR(region);
	if (flags & TMESH_INFO_PINS)
		rc = tmesh_poison_look(region);
	tmesh_fill_info(cmd, region, ucmd->handle);
	cmd->size = size;
	if (!rc && flags & TMESH_INFO_PINS)
		rc = tmesh_pinned_bytes(region, &cmd->pinned_bytes);
	tmesh_region_put(region);
	return rc ? rc : tmesh_respond(ucmd, sizeof(*cmd));
}

/**
 * tmesh_ioctl_list() - TMESH_LIST
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_list(struct tmesh_ucmd *ucmd)
{
	bool all = tmesh_sees_all();
	struct tmesh_list *cmd = ucmd->cmd;
	struct tmesh_region *region = NULL;
	struct tmesh_info info;
	u64 cursor = cmd->cursor;
	u32 room = cmd->count;
	int rc;

	if (cmd->pad)
		return -EINVAL;
	rc = tmesh_check_stride(room, cmd->entry_bytes, offsetofend(struct tmesh_info, label));
	if (rc)
		return rc;
	cmd->count = 0;
	cmd->more = 0;
	for (;;) {
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
		region = tmesh_registry_next(&cursor, all);
		if (!region)
			break;
		if (IS_ERR(region))
			continue;
		cmd->more = cmd->count == room;
		if (!cmd->more)
			tmesh_fill_info(&info, region, NULL);
		tmesh_region_put(region);
		if (cmd->more)
			break;
		rc = tmesh_put_entry(cmd->entries, cmd->entry_bytes, cmd->count, &info,
				     sizeof(info));
		if (rc)
			return rc;
		cmd->cursor = cursor;
		cmd->count++;
	}
	return tmesh_respond(ucmd, sizeof(*cmd));
}

/**
 * tmesh_ioctl_desc_get() - TMESH_DESC_GET
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_desc_get(struct tmesh_ucmd *ucmd)
{
	struct tmesh_desc *cmd = ucmd->cmd;
	u32 room = min_t(u32, cmd->bytes, TMESH_DESC_MAX);
	struct tmesh_region *region;
	void *copy = NULL;
	int rc;

	if (cmd->pad)
		return -EINVAL;
	region = tmesh_get_named(ucmd, cmd->id);
	if (IS_ERR(region))
		return PTR_ERR(region);
	rc = -ENOMEM;
	copy = kzalloc(room, TMESH_GFP);
	if (!copy)
		goto put;
	/* Copy it first: a fault on user memory may need the region's lock. */
	rc = -EINTR;
	if (down_read_killable(&region->lock))
		goto put;
	rc = region->state & TMESH_STATE_REVOKED ||
	     (ucmd->handle && tmesh_claim_lapsed(&ucmd->handle->claim)) ? -ESTALE : 0;
	cmd->bytes = region->desc_bytes;
	room = min(room, cmd->bytes);
	if (room)
		memcpy(copy, region->desc, room);
	up_read(&region->lock);
put:
	/* Drop the region before a fault on user memory, which may take any time. */
	tmesh_region_put(region);
	if (!rc && copy_to_user(u64_to_user_ptr(cmd->data), copy, room))
		rc = -EFAULT;
	kfree(copy);
	return rc ? rc : tmesh_respond(ucmd, sizeof(*cmd));
}

/**
 * tmesh_ioctl_desc_set() - TMESH_DESC_SET
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_desc_set(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_region *region = claim->region;
	struct tmesh_desc *cmd = ucmd->cmd;
	void *desc = NULL;
	int rc;

	if (cmd->pad || cmd->id || cmd->bytes > TMESH_DESC_MAX)
		return -EINVAL;
	rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);
	if (rc)
		return rc;
	if (cmd->bytes) {
		desc = kmalloc(cmd->bytes, TMESH_GFP);
		if (!desc)
			return -ENOMEM;
		if (copy_from_user(desc, u64_to_user_ptr(cmd->data), cmd->bytes)) {
			kfree(desc);
			return -EFAULT;
		}
	}
	down_write(&region->lock);
	if (region->state & TMESH_STATE_REVOKED || tmesh_claim_lapsed(claim)) {
		rc = -ESTALE;
	} else if (region->state & TMESH_STATE_SEALED) {
		rc = -EPERM;
	} else {
		swap(region->desc, desc);
		WRITE_ONCE(region->desc_bytes, cmd->bytes);
	}
	up_write(&region->lock);
	kfree(desc);
	return rc;
}
