// SPDX-License-Identifier: MIT
/* Files of kept groups: their table, one file's region, and the path by which programs open them.
 */
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "keep_internal.h"
#include "paths.h"

#define MOUNT "/run/tmesh"
/* A name that is replaced again and again. */
#define TRIES 16

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

/* Get a name's table. @ctx becomes the context that keeps files. */
static int get_paths(struct tmesh_ctx **ctx, const char *name, uid_t uid,
		     struct tmesh_paths **paths, uint64_t *id, struct tmesh_error *err)
{
	int rc = tmesh_kept_check_name(name, err);

	if (!rc)
		rc = tmesh_ctx_memfd(*ctx, ctx, err);
	if (!rc)
		rc = (*ctx)->ops->keep->paths(*ctx, name, uid, paths, id, err);
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
		rc = get_paths(&ctx, name, uid, &paths, &id, err);
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
	int rc = get_paths(&ctx, name, uid, &paths, &id, err);

	if (rc)
		return rc;
	i = tmesh_paths_find(paths, path);
	if (i == UINT32_MAX) {
		rc = tmesh_fail(err, -ENOENT, "no file \"%.120s\" is kept as \"%s\"", path, name);
	} else {
		*file = file_of(paths, i);
		file->path = path;
		rc = ctx->ops->keep->take(ctx, name, id, file->region, region, err);
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
	for (int i = 0; i < TRIES; i++) {
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

int tmesh_kept_open_fd(struct tmesh_ctx *ctx, int fd, struct tmesh_region **region,
		       struct tmesh_kept_file *file, char name[TMESH_KEPT_NAME_LEN + 1],
		       struct tmesh_error *err)
{
	char text[TMESH_KEPT_XATTR_MAX + 1];
	struct tmesh_kept_file found = {0};
	int behind = 0, rc = TMESH_NEED(err, ctx, region);
	unsigned int uid;
	struct statfs fs;
	uint64_t id;
	ssize_t got;

	if (!rc)
		rc = tmesh_ctx_memfd(ctx, &ctx, err);
	if (rc)
		return rc;
	/* Other file systems are not asked: they may be slow, or any user's. */
	if (fstatfs(fd, &fs) || fs.f_type != FUSE_SUPER_MAGIC ||
	    (got = fgetxattr(fd, TMESH_KEPT_XATTR, text, sizeof(text) - 1)) < 0)
		return tmesh_fail(err, -ENODATA, "it is no kept file");
	text[got] = '\0';
	if (sscanf(text, "%" SCNx64 " %" SCNu32 " %" SCNu64 " %" SCNu64 " %u %n", &id,
		   &found.region, &found.offset, &found.bytes, &uid, &behind) != 5 ||
	    !behind || tmesh_kept_check_name(text + behind, NULL))
		return tmesh_fail(err, -ENODATA, "it is no kept file");
	if (uid != geteuid())
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"user %u keeps this file, and a keeper serves its own user alone: "
			"read or map the file",
			uid);
	rc = ctx->ops->keep->take(ctx, text + behind, id, found.region, region, err);
	if (!rc)
		rc = check_inside(region, &found, err);
	if (!rc && file)
		*file = found;
	if (!rc && name)
		strcpy(name, text + behind);
	return rc;
}

static const char *mount_point(void)
{
	const char *told = secure_getenv("TMESH_MOUNT");

	return told && *told ? told : MOUNT;
}

/* Check that the path @text is on a file system of kept files. */
static int check_shown(const char *text, const char *name, struct tmesh_error *err)
{
	struct statfs fs;

	if (statfs(text, &fs) == 0 && fs.f_type == FUSE_SUPER_MAGIC)
		return 0;
	if (statfs(mount_point(), &fs) || fs.f_type != FUSE_SUPER_MAGIC)
		return tmesh_fail(
			err, -ENOENT,
			"\"%s\" is kept, and no program shows kept files in %.80s: as root, "
			"systemctl enable --now tmesh-mount; or run tmesh-mount FOLDER and "
			"set TMESH_MOUNT to the folder",
			name, mount_point());
	return tmesh_fail(err, -ENOENT,
			  "\"%s\" is kept, and tmesh-mount does not show %.200s: it looks for this "
			  "user's keeper in another runtime folder (tmesh-mount --keepers)",
			  name, text);
}

int tmesh_kept_path(struct tmesh_ctx *ctx, const char *name, const char *path, char **out,
		    struct tmesh_error *err)
{
	struct tmesh_paths *paths;
	char *text;
	uint64_t id;
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = get_paths(&ctx, name, TMESH_KEPT_OWN, &paths, &id, err);
	if (rc)
		return rc;
	if (path && tmesh_paths_find(paths, path) == UINT32_MAX)
		rc = tmesh_fail(err, -ENOENT, "no file \"%.120s\" is kept as \"%s\"", path, name);
	free(paths);
	if (rc)
		return rc;
	if (asprintf(&text, "%s/%u/%s%s%s", mount_point(), (unsigned int)geteuid(), name,
		     path ? "/" : "", path ? path : "") < 0)
		return tmesh_fail(err, -ENOMEM, "no memory for a path");
	rc = check_shown(text, name, err);
	if (rc) {
		free(text);
		return rc;
	}
	*out = text;
	return 0;
}
