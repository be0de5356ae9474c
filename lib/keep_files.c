// SPDX-License-Identifier: MIT
/* Files of kept groups: their table, one file's region. */
#include <inttypes.h>
#include <linux/magic.h>
#include <linux/tmesh.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "keep_internal.h"
#include "paths.h"

static struct tmesh_kept_file file_of(const struct tmesh_paths *paths, uint32_t i)
{
	const struct tmesh_paths_entry *entry = &paths->entries[i];

	return (struct tmesh_kept_file){
		.offset = entry->offset,
		.bytes = entry->bytes,
		.mtime_ns = entry->mtime_ns,
		.region = entry->region,
	};
}

int tmesh_kept_paths(struct tmesh_ctx **ctx, const char *name, uid_t uid,
		     struct tmesh_paths **paths, uint64_t *id, struct tmesh_error *err)
{
	struct tmesh_ctx *memfds;
	int rc = tmesh_kept_check_name(name, err);

	if (!rc)
		rc = tmesh_ctx_enter(*ctx, err);
	if (!rc)
		rc = (*ctx)->ops->keep->paths(*ctx, name, uid, paths, id, err);
	if ((rc == -ENOENT || rc == -ENODATA || rc == -EOPNOTSUPP) &&
	    (*ctx)->ops->backend != TMESH_BACKEND_MEMFD && !tmesh_ctx_memfd(*ctx, &memfds, NULL) &&
	    !memfds->ops->keep->paths(memfds, name, uid, paths, id, NULL)) {
		*ctx = memfds;
		rc = 0;
	}
	return rc == -ENODATA ? tmesh_fail(err, -ENOENT,
					   "\"%s\" was kept without files: it has no paths", name)
			      : rc;
}

int tmesh_kept_files(struct tmesh_ctx *ctx, const char *name, uid_t uid,
		     struct tmesh_kept_file **files, size_t *count, struct tmesh_error *err)
{
	struct tmesh_kept_file *all;
	struct tmesh_paths *paths;
	uint64_t id;
	char *names;
	int rc = TMESH_NEED(err, ctx, files, count);

	if (!rc)
		rc = tmesh_kept_paths(&ctx, name, uid, &paths, &id, err);
	if (rc)
		return rc;
	all = malloc(paths->count * sizeof(*all) + paths->path_bytes);
	if (!all) {
		free(paths);
		return tmesh_fail(err, -ENOMEM, "no memory for the files of \"%s\"", name);
	}
	names = (char *)&all[paths->count];
	memcpy(names, &paths->entries[paths->count], paths->path_bytes);
	for (uint32_t i = 0; i < paths->count; i++) {
		all[i] = file_of(paths, i);
		all[i].path = names + paths->entries[i].path;
	}
	*files = all;
	*count = paths->count;
	free(paths);
	return 0;
}

static int open_once(struct tmesh_ctx *ctx, const char *name, uid_t uid, const char *path,
		     struct tmesh_region **region, struct tmesh_kept_file *file,
		     struct tmesh_error *err)
{
	struct tmesh_paths *paths;
	uint64_t id;
	uint32_t i;
	int rc = tmesh_kept_paths(&ctx, name, uid, &paths, &id, err);

	if (rc)
		return rc;
	i = tmesh_paths_find(paths, path);
	if (i == UINT32_MAX) {
		rc = tmesh_fail(err, -ENOENT, "no file \"%.120s\" is kept as \"%s\"", path, name);
	} else {
		*file = file_of(paths, i);
		file->path = path;
		rc = ctx->ops->keep->open_region(ctx, name, uid, id, file->region, region, err);
	}
	free(paths);
	return rc;
}

/* Check that the file is inside its region: the name's owner wrote the table, not the keeper. */
static int check_inside(struct tmesh_region **region, const struct tmesh_kept_file *file,
			struct tmesh_error *err)
{
	uint64_t end;

	if (!__builtin_add_overflow(file->offset, file->bytes, &end) &&
	    end <= tmesh_region_bytes(*region))
		return 0;
	tmesh_region_unref(*region);
	*region = NULL;
	return tmesh_fail(err, -EPROTO, "a kept file ends behind its region");
}

int tmesh_kept_open_file(struct tmesh_ctx *ctx, const char *name, uid_t uid, const char *path,
			 struct tmesh_region **region, struct tmesh_kept_file *file,
			 struct tmesh_error *err)
{
	struct tmesh_kept_file found;
	int rc = TMESH_NEED(err, ctx, path, region);

	if (rc)
		return rc;
	for (int i = 0; i < TMESH_KEPT_TRIES; i++) {
		rc = open_once(ctx, name, uid, path, region, &found, err);
		if (rc != -ESTALE)
			break;
	}
	if (!rc)
		rc = check_inside(region, &found, err);
	if (!rc && file)
		*file = found;
	return rc;
}

int tmesh_fuse_shown(int fd, struct tmesh_shown *shown, struct tmesh_error *err)
{
	char text[TMESH_KEPT_XATTR_MAX + 1];
	struct tmesh_kept_file *file = &shown->file;
	ssize_t got = fgetxattr(fd, TMESH_KEPT_XATTR, text, sizeof(text) - 1);
	struct stat st;
	int behind = 0;

	text[got < 0 ? 0 : got] = '\0';
	if (sscanf(text, "%" SCNx64 " %" SCNu32 " %" SCNu64 " %" SCNu64 " %*u %n", &shown->id,
		   &file->region, &file->offset, &file->bytes, &behind) != 4 ||
	    !behind || tmesh_kept_check_name(text + behind, NULL) || fstat(fd, &st))
		return tmesh_fail(err, -ENODATA, "it is no kept file");
	/* The attribute has the uid of the service's user namespace. */
	if (st.st_uid != geteuid())
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"user %u keeps this file, and a keeper serves its own user alone: "
			"read or map the file",
			(unsigned int)st.st_uid);
	shown->uid = TMESH_KEPT_OWN;
	strcpy(shown->name, text + behind);
	return 0;
}

/* Describe a file of tmesh-mount. @ctx becomes the context that can open its region. */
static int fuse_shown(struct tmesh_ctx **ctx, int fd, struct tmesh_shown *shown,
		      struct tmesh_error *err)
{
	int rc = tmesh_fuse_shown(fd, shown, err);

	return rc ? rc : tmesh_ctx_memfd(*ctx, ctx, err);
}

static int module_shown(struct tmesh_ctx *ctx, int fd, struct tmesh_shown *shown,
			struct tmesh_error *err)
{
	if (ctx->ops->backend == TMESH_BACKEND_MEMFD)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the module keeps this file, and this process uses memfds: open "
				  "/dev/tmesh to it (TMESH_BACKEND), or read or map the file");
	return tmesh_kernel_shown(ctx->kernel.device, fd, shown, err);
}

int tmesh_kept_open_fd(struct tmesh_ctx *ctx, int fd, struct tmesh_region **region,
		       struct tmesh_kept_file *file, char name[TMESH_KEPT_NAME_LEN + 1],
		       struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, ctx, region);
	struct tmesh_shown shown = {0};
	struct statfs fs;

	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	if (rc)
		return rc;
	/* Other file systems are not asked: they may be slow, or any user's. */
	if (fstatfs(fd, &fs) || (fs.f_type != FUSE_SUPER_MAGIC && fs.f_type != TMESH_FS_MAGIC))
		return tmesh_fail(err, -ENODATA, "it is no kept file");
	rc = fs.f_type == TMESH_FS_MAGIC ? module_shown(ctx, fd, &shown, err)
					 : fuse_shown(&ctx, fd, &shown, err);
	if (!rc)
		rc = ctx->ops->keep->open_region(ctx, shown.name, shown.uid, shown.id,
						 shown.file.region, region, err);
	/* The mode 0004, or a mount of another IPC namespace. */
	if (rc == -ENOENT && fs.f_type == TMESH_FS_MAGIC)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "user %u keeps this file, and this process may not open its "
				  "region: read or map the file",
				  (unsigned int)shown.uid);
	if (!rc)
		rc = check_inside(region, &shown.file, err);
	if (!rc && file)
		*file = shown.file;
	if (!rc && name)
		strcpy(name, shown.name);
	return rc;
}
