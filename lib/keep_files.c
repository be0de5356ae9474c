// SPDX-License-Identifier: MIT
/* Files of kept groups: their table, one file's region, and the path by which programs open them.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
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

/* Get a name's table. @ctx becomes the context that keeps the files: with the module also the one
 * of memfds, as files of such contexts are this user's too. */
static int get_paths(struct tmesh_ctx **ctx, const char *name, uid_t uid,
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

/* Describe a file of tmesh-mount. @ctx becomes the context that can open its region. */
static int fuse_shown(struct tmesh_ctx **ctx, int fd, struct tmesh_shown *shown,
		      struct tmesh_error *err)
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
	return tmesh_ctx_memfd(*ctx, ctx, err);
}

static int module_shown(struct tmesh_ctx *ctx, int fd, struct tmesh_shown *shown,
			struct tmesh_error *err)
{
	if (ctx->ops->backend == TMESH_BACKEND_MEMFD)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the module keeps this file, and this process uses memfds: open "
				  "/dev/tmesh to it (TMESH_BACKEND), or read or map the file");
	return tmesh_kernel_shown(ctx, fd, shown, err);
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

static bool is_mount(const char *path, unsigned int magic)
{
	struct statfs fs;

	return statfs(path, &fs) == 0 && (unsigned int)fs.f_type == magic;
}

/* Report that no mount shows the files that the module keeps as @name. */
static int not_mounted(const char *mount, const char *text, const char *name,
		       struct tmesh_error *err)
{
	if (is_mount(mount, TMESH_FS_MAGIC))
		return tmesh_fail(
			err, -ENOENT,
			"\"%s\" is kept, and the mount in %.80s does not show %.200s: the mount "
			"belongs to another IPC namespace; run tmeshctl mount in this one",
			name, mount, text);
	if (is_mount(mount, FUSE_SUPER_MAGIC))
		return tmesh_fail(
			err, -ENOENT,
			"the module keeps \"%s\", and tmesh-mount, which shows memfds alone, has "
			"%.80s: as root, systemctl disable --now tmesh-mount, then tmeshctl mount",
			name, mount);
	return tmesh_fail(err, -ENOENT,
			  "\"%s\" is kept, and no file system tmesh is mounted in %.80s: as root, "
			  "tmeshctl mount; or tmeshctl mount FOLDER, and start this program with "
			  "TMESH_MOUNT=FOLDER",
			  name, mount);
}

/* Report that tmesh-mount does not show the files that this user's keeper has. */
static int not_served(const char *mount, const char *text, const char *name,
		      struct tmesh_error *err)
{
	if (is_mount(mount, FUSE_SUPER_MAGIC))
		return tmesh_fail(
			err, -ENOENT,
			"\"%s\" is kept, and tmesh-mount does not show %.200s: it looks for this "
			"user's keeper in another runtime folder (tmesh-mount --keepers)",
			name, text);
	if (is_mount(mount, TMESH_FS_MAGIC))
		return tmesh_fail(
			err, -ENOENT,
			"\"%s\" is kept as memfds, and %.80s shows the module's files: keep it "
			"with the module, or run tmesh-mount FOLDER and start this program with "
			"TMESH_MOUNT=FOLDER",
			name, mount);
	return tmesh_fail(err, -ENOENT,
			  "\"%s\" is kept, and no program shows kept files in %.80s: as root, "
			  "systemctl enable --now tmesh-mount; or run tmesh-mount FOLDER, and "
			  "start this program with TMESH_MOUNT=FOLDER",
			  name, mount);
}

/* Check that the file @text of the mount is of the keeping @id. -ENOENT: it is not. */
static int check_shown(struct tmesh_ctx *ctx, const char *text, uint64_t id)
{
	bool memfd = ctx->ops->backend == TMESH_BACKEND_MEMFD;
	struct tmesh_shown shown = {0};
	int fd, rc;

	/* Other file systems are not asked: they may be slow, or any user's. */
	if (!is_mount(text, memfd ? FUSE_SUPER_MAGIC : TMESH_FS_MAGIC))
		return -ENOENT;
	fd = open(text, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	rc = memfd ? fuse_shown(&ctx, fd, &shown, NULL) : tmesh_kernel_shown(ctx, fd, &shown, NULL);
	close(fd);
	return !rc && shown.id == id ? 0 : -ENOENT;
}

/* A file of a name in the folder of a user. */
struct shown_path {
	const char *name, *path;
	char folder[NAME_MAX + 1];
};

static char *text_of(const struct tmesh_ctx *ctx, const struct shown_path *what, const char *path)
{
	char *text;

	return asprintf(&text, "%s/%s/%s%s%s", ctx->mount, what->folder, what->name,
			path ? "/" : "", path ? path : "") < 0
		       ? NULL
		       : text;
}

static int check_folder(struct tmesh_ctx *ctx, int root, const struct shown_path *what, uint64_t id)
{
	struct stat st;
	char *text;
	int rc;

	if (fstatat(root, what->folder, &st, AT_SYMLINK_NOFOLLOW) || st.st_uid != geteuid())
		return -ENOENT;
	text = text_of(ctx, what, what->path);
	rc = text ? check_shown(ctx, text, id) : -ENOMEM;
	free(text);
	return rc;
}

/* Find the folder of this user in the mount. Folders are called by the uids of the mount's user
 * namespace. This process may be in another, so the folder's owner decides. */
static int find_folder(struct tmesh_ctx *ctx, struct shown_path *what, uint64_t id)
{
	struct dirent *entry;
	DIR *root;
	int rc;

	snprintf(what->folder, sizeof(what->folder), "%u", (unsigned int)geteuid());
	root = opendir(ctx->mount);
	if (!root)
		return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : -ENOENT;
	rc = check_folder(ctx, dirfd(root), what, id);
	while (rc == -ENOENT && (entry = readdir(root))) {
		if (*entry->d_name == '.')
			continue;
		strcpy(what->folder, entry->d_name);
		rc = check_folder(ctx, dirfd(root), what, id);
	}
	closedir(root);
	return rc;
}

/* Report that the mount does not show @path, or the name's folder if that is NULL. */
static int path_fail(const struct tmesh_ctx *ctx, struct shown_path *what, const char *path, int rc,
		     struct tmesh_error *err)
{
	bool memfd = ctx->ops->backend == TMESH_BACKEND_MEMFD;
	char *text;

	if (rc != -ENOENT)
		return tmesh_fail(err, rc, "cannot open \"%.120s\" of \"%s\" in %.80s: %s",
				  what->path, what->name, ctx->mount, strerror(-rc));
	snprintf(what->folder, sizeof(what->folder), "%u", (unsigned int)geteuid());
	text = text_of(ctx, what, path);
	if (!text)
		return tmesh_fail(err, -ENOMEM, "no memory for a path");
	rc = memfd ? not_served(ctx->mount, text, what->name, err)
		   : not_mounted(ctx->mount, text, what->name, err);
	free(text);
	return rc;
}

/* Make the path of a keeping that has these files. -ESTALE: the name was replaced meanwhile. */
static int path_of(struct tmesh_ctx *ctx, const struct tmesh_paths *paths, uint64_t id,
		   const char *name, const char *path, char **out, struct tmesh_error *err)
{
	/* Folders say nothing of their keeping: ask one of the files. */
	struct shown_path what = {.name = name, .path = path ? path : tmesh_paths_name(paths, 0)};
	struct tmesh_paths *again;
	uint64_t now;
	char *text;
	int rc, shown;

	if (path && tmesh_paths_find(paths, path) == UINT32_MAX)
		return tmesh_fail(err, -ENOENT, "no file \"%.120s\" is kept as \"%s\"", path, name);
	shown = find_folder(ctx, &what, id);
	if (!shown) {
		text = text_of(ctx, &what, path);
		if (!text)
			return tmesh_fail(err, -ENOMEM, "no memory for a path");
		*out = text;
		return 0;
	}
	rc = get_paths(&ctx, name, TMESH_KEPT_OWN, &again, &now, err);
	if (rc)
		return rc;
	free(again);
	return now == id ? path_fail(ctx, &what, path, shown, err) : -ESTALE;
}

int tmesh_kept_path(struct tmesh_ctx *ctx, const char *name, const char *path, char **out,
		    struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, ctx, out);

	if (rc)
		return rc;
	for (int i = 0; i < TRIES; i++) {
		struct tmesh_ctx *keeps = ctx;
		struct tmesh_paths *paths;
		uint64_t id;

		rc = get_paths(&keeps, name, TMESH_KEPT_OWN, &paths, &id, err);
		if (rc)
			return rc;
		rc = path_of(keeps, paths, id, name, path, out, err);
		free(paths);
		if (rc != -ESTALE)
			return rc;
	}
	return tmesh_fail(err, rc, "\"%s\" is replaced again and again: try again", name);
}
