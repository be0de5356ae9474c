// SPDX-License-Identifier: MIT
/* Keeping on the module: the kernel does it. */
#include "kernel.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "keep_internal.h"
#include "paths.h"

_Static_assert(TMESH_KEPT_NAME_LEN == TMESH_LABEL_MAX, "one length of names");
_Static_assert(TMESH_KEPT_MAX_REGIONS == TMESH_KEEP_MAX, "one number of regions");
_Static_assert(TMESH_KEPT_MAX_FILES == TMESH_FILES_MAX, "one number of files");
_Static_assert(TMESH_KEPT_PATH_LEN == TMESH_PATH_MAX, "one length of paths");

/* The module reads and writes the entries of a table as they are. */
#define SAME_MEMBER(name)                                                                 \
	(offsetof(struct tmesh_paths_entry, name) == offsetof(struct tmesh_file, name) && \
	 sizeof(((struct tmesh_paths_entry *)NULL)->name) ==                              \
		 sizeof(((struct tmesh_file *)NULL)->name))
_Static_assert(sizeof(struct tmesh_paths_entry) == sizeof(struct tmesh_file) &&
		       SAME_MEMBER(offset) && SAME_MEMBER(bytes) && SAME_MEMBER(mtime_ns) &&
		       SAME_MEMBER(region) && SAME_MEMBER(path),
	       "one format of files");

/* A name that is replaced again and again. */
#define TRIES 16

static int keep_fail(struct tmesh_error *err, const char *name, const char *what)
{
	switch (errno) {
	case ENOTTY:
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the loaded tmesh module cannot keep regions: update it");
	case ENOENT:
		return tmesh_fail(err, -ENOENT, "nothing is kept as \"%s\"", name);
	case EEXIST:
		return tmesh_fail(err, -EEXIST,
				  "\"%s\" is kept already: replace it, or drop it first", name);
	case EBUSY:
		return tmesh_fail(
			err, -EBUSY,
			"a region is kept under another name already: drop that one first "
			"(tmeshctl kept lists them)");
	case EINVAL:
		return tmesh_fail(err, -EINVAL,
				  "%s: each region has to be sealed or stand for a "
				  "descriptor, and may be there once",
				  what);
	default:
		return tmesh_kernel_fail(err, what);
	}
}

static int no_files(struct tmesh_error *err)
{
	return tmesh_fail(err, -EOPNOTSUPP,
			  "the loaded tmesh module cannot keep files: update it, or keep them with "
			  "a context of the memfd backend");
}

/* Check that each file begins at a page, as its mappings do. */
static int check_files(const struct tmesh_paths *paths, struct tmesh_error *err)
{
	uint64_t page = tmesh_page_bytes();

	for (uint32_t i = 0; i < paths->count; i++) {
		if (paths->entries[i].offset % page)
			return tmesh_fail(err, -EINVAL,
					  "\"%.120s\" begins at byte %" PRIu64
					  " of its region: on the module a file begins at a "
					  "multiple of %" PRIu64,
					  tmesh_paths_name(paths, i), paths->entries[i].offset,
					  page);
	}
	return 0;
}

/* Report the module's reason to refuse files, which the checks of the library do not find. */
static int keep_files_fail(struct tmesh_error *err, const char *name)
{
	switch (errno) {
	case E2BIG:
		return no_files(err);
	case EOPNOTSUPP:
		return tmesh_fail(err, -EOPNOTSUPP,
				  "cannot keep files as \"%s\": a region of them is no memory of "
				  "the module; make the region by tmesh_region_create()",
				  name);
	case EINVAL:
		return tmesh_fail(err, -EINVAL,
				  "cannot keep files as \"%s\": each region has to be sealed and "
				  "may be there once, and zeros follow each file to the end of its "
				  "last page",
				  name);
	default:
		return keep_fail(err, name, "keep");
	}
}

static int kernel_keep(struct tmesh_ctx *ctx, const char *name, struct tmesh_region *const *regions,
		       uint32_t count, const struct tmesh_keep_opts *opts,
		       const struct tmesh_paths *paths, struct tmesh_error *err)
{
	struct tmesh_keep keep = {
		.size = sizeof(keep),
		.flags = (opts->flags & TMESH_KEEPING_REPLACE ? TMESH_KEEP_REPLACE : 0) |
			 (opts->flags & TMESH_KEEPING_GID ? TMESH_KEEP_GID : 0),
		.lifetime_ns = opts->lifetime_ns,
		.count = count,
		.mode = opts->mode,
		.gid = opts->flags & TMESH_KEEPING_GID ? opts->gid : 0,
	};
	int32_t *fds;
	int rc = paths ? check_files(paths, err) : 0;

	if (rc)
		return rc;
	if (paths) {
		keep.files = (uintptr_t)paths->entries;
		keep.file_count = paths->count;
		keep.file_bytes = sizeof(paths->entries[0]);
		keep.paths = (uintptr_t)tmesh_paths_name(paths, 0);
		keep.path_bytes = paths->path_bytes;
	}
	fds = calloc(count, sizeof(*fds));
	if (!fds)
		return tmesh_fail(err, -ENOMEM, "no memory to keep regions");
	for (uint32_t i = 0; i < count; i++)
		fds[i] = regions[i]->fd;
	keep.handles = (uintptr_t)fds;
	memcpy(keep.name, name, strlen(name));
	if (ioctl(ctx->kernel.device, TMESH_KEEP, &keep))
		rc = paths ? keep_files_fail(err, name) : keep_fail(err, name, "keep");
	free(fds);
	for (uint32_t i = 0; !rc && i < count; i++)
		tmesh_region_set_shared(regions[i]);
	return rc;
}

/* Make regions of @count handles, which are theirs from here on, also on failure. */
static int adopt_all(struct tmesh_ctx *ctx, const int32_t *fds, uint32_t count,
		     struct tmesh_region **regions, struct tmesh_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < count; i++) {
		struct tmesh_region *region = rc ? NULL : tmesh_region_new(ctx, err);

		if (!region) {
			close(fds[i]);
			rc = rc ? rc : -ENOMEM;
			continue;
		}
		region->fd = fds[i];
		rc = tmesh_kernel_learn(region, err);
		if (rc) {
			tmesh_region_destroy(region);
			continue;
		}
		tmesh_count(ctx, COUNT_OPENED, 1);
		tmesh_region_publish(region, &regions[i]);
	}
	return rc;
}

static int kernel_kept_open(struct tmesh_ctx *ctx, const char *name, uid_t uid, uint32_t rights,
			    struct tmesh_region ***out, size_t *count, struct tmesh_error *err)
{
	struct tmesh_kept_open kept = {
		.size = sizeof(kept),
		.flags = uid == TMESH_KEPT_OWN ? 0 : TMESH_KEPT_UID,
		.count = TMESH_KEEP_MAX,
		.rights = rights,
		.uid = uid == TMESH_KEPT_OWN ? 0 : uid,
	};
	int32_t *fds = calloc(TMESH_KEEP_MAX, sizeof(*fds));
	struct tmesh_region **regions = calloc(TMESH_KEEP_MAX, sizeof(struct tmesh_region *));
	int rc = 0;

	kept.fds = (uintptr_t)fds;
	memcpy(kept.name, name, strlen(name));
	if (!fds || !regions)
		rc = tmesh_fail(err, -ENOMEM, "no memory for what is kept");
	else if (ioctl(ctx->kernel.device, TMESH_KEPT_OPEN, &kept))
		rc = keep_fail(err, name, "open what is kept");
	else
		rc = adopt_all(ctx, fds, kept.count, regions, err);
	free(fds);
	if (rc) {
		for (uint32_t i = 0; regions && i < TMESH_KEEP_MAX; i++)
			tmesh_region_unref(regions[i]);
		free(regions);
		return rc;
	}
	*out = regions;
	*count = kept.count;
	return 0;
}

static int files_fail(const char *name, struct tmesh_error *err)
{
	switch (errno) {
	case ENOTTY:
		return no_files(err);
	case ENODATA:
		return tmesh_fail(err, -ENODATA, "\"%s\" was kept without files: it has no paths",
				  name);
	default:
		return keep_fail(err, name, "the files of a kept name");
	}
}

/* Read a table of the length that @call has from an earlier answer. -ENOSPC: it has another length
 * now, which @call has then. */
static int read_table(struct tmesh_ctx *ctx, struct tmesh_kept_files *call,
		      struct tmesh_paths **out, struct tmesh_error *err)
{
	uint32_t count = call->file_count;
	uint64_t path_bytes = call->path_bytes;
	struct tmesh_paths *paths =
		calloc(1, sizeof(*paths) + count * sizeof(paths->entries[0]) + path_bytes);

	if (!paths)
		return tmesh_fail(err, -ENOMEM, "no memory for a table of paths");
	call->files = (uintptr_t)paths->entries;
	call->paths = (uintptr_t)&paths->entries[count];
	if (ioctl(ctx->kernel.device, TMESH_KEPT_FILES, call)) {
		free(paths);
		return errno == ENOSPC ? -ENOSPC : files_fail(call->name, err);
	}
	if (call->file_count != count || call->path_bytes != path_bytes) {
		free(paths);
		return -ENOSPC;
	}
	paths->magic = TMESH_PATHS_MAGIC;
	paths->version = TMESH_PATHS_VERSION;
	paths->count = count;
	paths->path_bytes = path_bytes;
	*out = paths;
	return 0;
}

static int kernel_paths(struct tmesh_ctx *ctx, const char *name, uid_t uid,
			struct tmesh_paths **out, uint64_t *id, struct tmesh_error *err)
{
	struct tmesh_kept_files call = {
		.size = sizeof(call),
		.flags = uid == TMESH_KEPT_OWN ? 0 : TMESH_KEPT_UID,
		.file_bytes = sizeof(struct tmesh_paths_entry),
		.uid = uid == TMESH_KEPT_OWN ? 0 : uid,
	};
	int rc = -ENOSPC;

	memcpy(call.name, name, strlen(name));
	for (int i = 0; rc == -ENOSPC && i < TRIES; i++)
		rc = read_table(ctx, &call, out, err);
	if (rc == -ENOSPC)
		return tmesh_fail(err, -ESTALE,
				  "\"%s\" was replaced while its files were read: "
				  "try again",
				  name);
	*id = call.id;
	return rc;
}

static int kernel_open_region(struct tmesh_ctx *ctx, const char *name, uid_t uid, uint64_t id,
			      uint32_t number, struct tmesh_region **region,
			      struct tmesh_error *err)
{
	int32_t fd = -1;
	struct tmesh_kept_open kept = {
		.size = sizeof(kept),
		.flags = TMESH_KEPT_PART | (uid == TMESH_KEPT_OWN ? 0 : TMESH_KEPT_UID),
		.fds = (uintptr_t)&fd,
		.count = 1,
		.rights = TMESH_READ,
		.uid = uid == TMESH_KEPT_OWN ? 0 : uid,
		.first = number,
	};

	memcpy(kept.name, name, strlen(name));
	if (ioctl(ctx->kernel.device, TMESH_KEPT_OPEN, &kept))
		return errno == E2BIG || errno == EOPNOTSUPP
			       ? tmesh_fail(err, -EOPNOTSUPP,
					    "the loaded tmesh module cannot open one region of a "
					    "kept name: update it")
			       : keep_fail(err, name, "open a kept region");
	if (kept.id == id && kept.count)
		return adopt_all(ctx, &fd, 1, region, err);
	if (kept.count)
		close(fd);
	return kept.id == id
		       ? tmesh_fail(err, -EPROTO, "\"%s\" has no region %" PRIu32, name, number)
		       : tmesh_fail(err, -ESTALE, "\"%s\" was replaced", name);
}

int tmesh_kernel_shown(int device, int fd, struct tmesh_shown *shown, struct tmesh_error *err)
{
	struct tmesh_file file;
	struct tmesh_kept_files call = {
		.size = sizeof(call),
		.flags = TMESH_KEPT_FD,
		.files = (uintptr_t)&file,
		.file_count = 1,
		.file_bytes = sizeof(file),
		.fd = fd,
	};

	if (ioctl(device, TMESH_KEPT_FILES, &call)) {
		if (errno == ENODATA)
			return tmesh_fail(err, -ENODATA, "it is no kept file");
		if (errno == ENOENT)
			return tmesh_fail(err, -ESTALE, "the name of the kept file is gone");
		return files_fail("", err);
	}
	*shown = (struct tmesh_shown){
		.uid = call.uid,
		.id = call.id,
		.file.offset = file.offset,
		.file.bytes = file.bytes,
		.file.mtime_ns = file.mtime_ns,
		.file.region = file.region,
	};
	memcpy(shown->name, call.name, sizeof(shown->name));
	return 0;
}

static void fill_info(struct tmesh_kept_info *info, const struct tmesh_kept *kept)
{
	*info = (struct tmesh_kept_info){
		.size = sizeof(*info),
		.id = kept->id,
		.backend = TMESH_BACKEND_KERNEL,
		.count = kept->count,
		.held = kept->held,
		.bytes = kept->bytes,
		.kept_ns = kept->kept_ns,
		.used_ns = kept->used_ns,
		.expires_ns = kept->expires_ns,
		.uid = kept->uid,
		.gid = kept->gid,
		.mode = kept->mode,
		.handles = kept->handles,
		.cgroup_id = kept->cgroup_id,
	};
	memcpy(info->name, kept->name, sizeof(info->name));
}

static int kernel_kept_list(struct tmesh_ctx *ctx, struct tmesh_kept_info **infos, size_t *count,
			    struct tmesh_error *err)
{
	struct tmesh_kept_info *all = NULL;
	struct tmesh_kept page[64];
	struct tmesh_kept_list list = {
		.size = sizeof(list),
		.entries = (uintptr_t)page,
		.entry_bytes = sizeof(page[0]),
	};
	size_t n = 0;

	do {
		struct tmesh_kept_info *more;

		list.count = sizeof(page) / sizeof(page[0]);
		list.more = 0;
		if (ioctl(ctx->kernel.device, TMESH_KEPT_LIST, &list)) {
			free(all);
			return keep_fail(err, "", "listing what is kept");
		}
		more = list.count ? realloc(all, (n + list.count) * sizeof(*all)) : all;
		if (list.count && !more) {
			free(all);
			return tmesh_fail(err, -ENOMEM, "no memory for the list of what is kept");
		}
		all = more;
		for (uint32_t i = 0; i < list.count; i++)
			fill_info(&all[n++], &page[i]);
	} while (list.more);
	*infos = all;
	*count = n;
	return 0;
}

static int kernel_kept_drop(struct tmesh_ctx *ctx, const char *name, struct tmesh_error *err)
{
	struct tmesh_kept_drop drop = {.size = sizeof(drop)};

	memcpy(drop.name, name, strlen(name));
	return ioctl(ctx->kernel.device, TMESH_KEPT_DROP, &drop) ? keep_fail(err, name, "drop") : 0;
}

#define NAMED_BY (sizeof(((struct tmesh_region *)0)->outlives_as))
_Static_assert(sizeof("hold-0123456789abcdef-") + 2 * NAMED_BY <= TMESH_LABEL_MAX + 1, "fits");

/* Name the hold of a region. Holds (hold.c) are kept as other regions are. Several processes may
 * hold one region, and processes in two PID namespaces may have the same number. A random name
 * keeps one hold from replacing or ending another. */
static void hold_name(const struct tmesh_region *region, char *name)
{
	int used = snprintf(name, TMESH_KEPT_NAME_LEN + 1, "hold-%016llx-",
			    (unsigned long long)region->id);

	for (size_t i = 0; i < NAMED_BY; i++)
		used += snprintf(name + used, 3, "%02x", region->outlives_as[i]);
}

bool tmesh_kernel_hold(struct tmesh_region *region, uint64_t ns)
{
	const struct tmesh_keep_opts opts = {.flags = TMESH_KEEPING_REPLACE, .lifetime_ns = ns};
	char name[TMESH_KEPT_NAME_LEN + 1];

	if (!region->sealed)
		return false;
	if (!region->outlives &&
	    tmesh_random(region->outlives_as, sizeof(region->outlives_as), NULL))
		return false;
	hold_name(region, name);
	return kernel_keep(region->ctx, name, &region, 1, &opts, NULL, NULL) == 0;
}

void tmesh_kernel_unhold(struct tmesh_region *region)
{
	char name[TMESH_KEPT_NAME_LEN + 1];

	hold_name(region, name);
	/* Its time may be over just now. */
	kernel_kept_drop(region->ctx, name, NULL);
}

uint64_t tmesh_kernel_opens(struct tmesh_region *region)
{
	struct tmesh_info info;

	return tmesh_kernel_info(region->fd, &info) ? 0 : info.opens;
}

static int kernel_keeper_info(struct tmesh_ctx *ctx, struct tmesh_keeper_info *info,
			      struct tmesh_error *err)
{
	struct tmesh_caps_query caps = {.size = sizeof(caps)};

	if (ioctl(ctx->kernel.device, TMESH_CAPS, &caps))
		return tmesh_kernel_fail(err, "asking the module for its limits");
	if (!(caps.features & TMESH_FEATURE_KEEP))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the loaded tmesh module cannot keep regions: update it");
	info->survives_kill = true;
	info->pressure = true;
	info->names = (uint32_t)caps.used_kept_names;
	info->used_bytes = caps.used_kept_bytes;
	info->max_bytes = caps.max_kept_bytes_per_uid;
	return 0;
}

const struct tmesh_keep_ops tmesh_kernel_keep_ops = {
	.keep = kernel_keep,
	.open = kernel_kept_open,
	.paths = kernel_paths,
	.open_region = kernel_open_region,
	.list = kernel_kept_list,
	.drop = kernel_kept_drop,
	.info = kernel_keeper_info,
};
