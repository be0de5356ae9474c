// SPDX-License-Identifier: MIT
/* Part of the kernel backend: the module's reports on regions and their holders. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

static void fill_info(struct tmesh_region_info *to, const struct tmesh_info *from)
{
	*to = (struct tmesh_region_info){
		.size = sizeof(*to),
		.id = from->id,
		.bytes = from->bytes,
		.alloc_bytes = from->alloc_bytes,
		.huge_bytes = from->huge_bytes,
		.created_ns = from->created_ns,
		.backend = TMESH_BACKEND_KERNEL,
		.rights = from->rights,
		.mode = from->mode,
		.uid = from->uid,
		.gid = from->gid,
		.node = from->node,
		.sealed = from->state & TMESH_STATE_SEALED,
		.revoked = from->state & TMESH_STATE_REVOKED,
		.pinning = from->pinning,
		.handles = from->handles,
		.pinning_handles = from->pinning_handles,
		.exports = from->exports,
		.attachments = from->attachments,
		.hold_ms = from->hold_ms,
	};
	memcpy(to->label, from->label, sizeof(to->label));
	to->backing = (enum tmesh_backing)from->backing;
	to->lapsed = from->state & TMESH_STATE_LAPSED;
	to->zeros = from->policy & TMESH_POLICY_ZERO;
	to->views = from->gathers;
	to->lease_ns = from->lease_ns;
	to->lease_left_ns = from->lease_left_ns;
	to->fence_value = from->fence_value;
	to->fence_producer = from->fence_state == TMESH_FENCE_PRODUCER;
	to->fence_dead = from->fence_state == TMESH_FENCE_DEAD;
	to->pinned_bytes = from->pinned_bytes;
	to->cgroup_id = from->cgroup_id;
	to->poisoned = from->state & TMESH_STATE_POISONED;
	to->kept = from->kept != 0;
}

/* Get the description. A region that is gone meanwhile, or revoked, has none: @info keeps its
 * zeros. The module writes at most the given bytes, so the last zero stays. */
static void get_desc(int fd, uint64_t id, struct tmesh_region_info *info)
{
	struct tmesh_desc desc = {
		.size = sizeof(desc),
		.id = id,
		.data = (uintptr_t)info->description,
		.bytes = TMESH_DESCRIPTION_LEN,
	};

	ioctl(fd, TMESH_DESC_GET, &desc);
}

int tmesh_kernel_region_info(struct tmesh_region *region, struct tmesh_region_info *info,
			     struct tmesh_error *err)
{
	struct tmesh_info there;

	if (tmesh_kernel_info(region->fd, &there))
		return tmesh_kernel_fail(err, "looking at a region");
	fill_info(info, &there);
	get_desc(region->fd, 0, info);
	return 0;
}

int tmesh_kernel_list(struct tmesh_ctx *ctx, struct tmesh_region_info **infos, size_t *count,
		      struct tmesh_error *err)
{
	struct tmesh_region_info *all = NULL;
	struct tmesh_info page[64];
	struct tmesh_list list = {
		.size = sizeof(list),
		.entries = (uintptr_t)page,
		.entry_bytes = sizeof(page[0]),
	};
	size_t n = 0;

	do {
		struct tmesh_region_info *more;

		list.count = sizeof(page) / sizeof(page[0]);
		list.more = 0;
		if (ioctl(ctx->kernel.device, TMESH_LIST, &list)) {
			free(all);
			return tmesh_kernel_fail(err, "listing regions");
		}
		more = list.count ? realloc(all, (n + list.count) * sizeof(*all)) : all;
		if (list.count && !more) {
			free(all);
			return tmesh_fail(err, -ENOMEM, "no memory for the list of regions");
		}
		all = more;
		for (uint32_t i = 0; i < list.count; i++, n++) {
			fill_info(&all[n], &page[i]);
			get_desc(ctx->kernel.device, all[n].id, &all[n]);
		}
	} while (list.more);
	*infos = all;
	*count = n;
	return 0;
}

/* The most holders whose list the module does not charge to the caller. */
#define FREE_HOLDERS 128
/* Room for holders that come between two calls. */
#define MORE_HOLDERS 8

static enum tmesh_holder_kind holder_kind(uint32_t kind)
{
	switch (kind) {
	case TMESH_HOLDER_GATHER:
		return TMESH_HOLDER_IS_GATHER;
	case TMESH_HOLDER_DEVICE:
		return TMESH_HOLDER_IS_DEVICE;
	default: /* the first three have the module's numbers */
		return (enum tmesh_holder_kind)kind;
	}
}

static void fill_holder(struct tmesh_holder_info *to, const struct tmesh_holder *from)
{
	*to = (struct tmesh_holder_info){
		.kind = holder_kind(from->kind),
		.pid = (pid_t)from->pid,
		.uid = from->uid,
		.rights = from->rights,
		.mappings = from->mappings,
		.attachments = from->attachments,
		.since_ns = from->since_ns,
		.offset = from->offset,
		.bytes = from->bytes,
		.lease_ns = from->lease_ns,
		.lease_left_ns = from->lease_left_ns,
		.view = from->view,
		.lapsed = from->flags & TMESH_HOLDER_FLAG_LAPSED,
		.producer = from->flags & TMESH_HOLDER_FLAG_PRODUCER,
		.mapped = from->mapped,
	};
	memcpy(to->command, from->comm, sizeof(to->command));
	to->command[sizeof(to->command) - 1] = '\0';
	memcpy(to->device, from->device, sizeof(to->device));
	to->device[sizeof(to->device) - 1] = '\0';
}

static int holders_fail(uint64_t id, uint32_t room, struct tmesh_error *err)
{
	switch (errno) {
	case ENOENT:
		return tmesh_fail(err, -ENOENT, "there is no region %016llx",
				  (unsigned long long)id);
	case EPERM:
		return tmesh_fail(err, -EPERM,
				  "only the region's owner and root may list its holders");
	case EDQUOT:
		return tmesh_fail(
			err, -EDQUOT,
			"cannot list the %u holders of region %016llx: more than %d count for the "
			"limits of bytes in /proc/sys/dev/tmesh/; free a region, or list them as "
			"root",
			room - MORE_HOLDERS, (unsigned long long)id, FREE_HOLDERS);
	default:
		return tmesh_kernel_fail(err, "asking for the holders");
	}
}

static int holders_of(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_holder_info **holders,
		      size_t *count, struct tmesh_error *err)
{
	struct tmesh_holders call;
	struct tmesh_holder_info *all;
	struct tmesh_holder *raw = NULL;
	uint32_t room = FREE_HOLDERS;
	int rc;

	/* More may come between two calls: with room to spare it ends. */
	for (;; room = call.total + MORE_HOLDERS) {
		free(raw);
		raw = calloc(room, sizeof(*raw));
		call = (struct tmesh_holders){
			.size = sizeof(call),
			.id = id,
			.entries = (uintptr_t)raw,
			.entry_bytes = sizeof(*raw),
			.count = room,
		};
		if (!raw)
			return tmesh_fail(err, -ENOMEM, "no memory for the holders");
		if (ioctl(ctx->kernel.device, TMESH_HOLDERS, &call)) {
			rc = holders_fail(id, room, err);
			free(raw);
			return rc;
		}
		if (call.total <= room)
			break;
	}
	all = malloc((call.count ? call.count : 1) * sizeof(*all));
	if (!all) {
		free(raw);
		return tmesh_fail(err, -ENOMEM, "no memory for the holders");
	}
	for (uint32_t i = 0; i < call.count; i++) {
		fill_holder(&all[i], &raw[i]);
		all[i].region = id;
	}
	*holders = all;
	*count = call.count;
	free(raw);
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const struct tmesh_region_info *one = a, *two = b;

	return (one->id > two->id) - (one->id < two->id);
}

/* List the holders of all regions. A region may be gone meanwhile, or be another user's. */
static int holders_of_all(struct tmesh_ctx *ctx, struct tmesh_holder_info **holders, size_t *count,
			  struct tmesh_error *err)
{
	struct tmesh_holder_info *all = NULL, *more, *larger;
	struct tmesh_region_info *infos;
	size_t regions, found, sum = 0;
	int rc = tmesh_kernel_list(ctx, &infos, &regions, err);

	if (rc)
		return rc;
	if (regions)
		qsort(infos, regions, sizeof(*infos), by_id);
	for (size_t i = 0; i < regions && !rc; i++) {
		rc = holders_of(ctx, infos[i].id, &more, &found, err);
		if (rc == -ENOENT || rc == -EPERM) {
			rc = 0;
			continue;
		}
		if (rc)
			break;
		larger = realloc(all, (sum + found + 1) * sizeof(*all));
		if (larger) {
			all = larger;
			memcpy(all + sum, more, found * sizeof(*all));
			sum += found;
		} else {
			rc = tmesh_fail(err, -ENOMEM, "no memory for the holders");
		}
		free(more);
	}
	free(infos);
	if (rc) {
		free(all);
		return rc;
	}
	*holders = all;
	*count = sum;
	return 0;
}

int tmesh_kernel_holders(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_holder_info **holders,
			 size_t *count, struct tmesh_error *err)
{
	return id ? holders_of(ctx, id, holders, count, err)
		  : holders_of_all(ctx, holders, count, err);
}
