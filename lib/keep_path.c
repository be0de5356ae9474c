// SPDX-License-Identifier: MIT
/*
 * The path by which programs open kept files.
 *
 * Only the mount itself can say which keeping it shows. A call on it may wait for ever for
 * tmesh-mount, so a thread of its own makes these calls.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/tmesh.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/in_time.h"
#include "common/kept_mount.h"
#include "keep_internal.h"
#include "paths.h"

/* The longest time that tmesh-mount itself waits for a keeper. */
#define KEEPER_NS UINT64_C(2000000000)

/* Report that no mount shows the files that the module keeps as @name. */
static int not_mounted(const char *mount, const char *text, const char *name,
		       struct tmesh_error *err)
{
	char type[TMESH_MOUNT_TYPE_SIZE];

	tmesh_mount_type(mount, type);
	if (!strcmp(type, TMESH_MOUNT_MODULE))
		return tmesh_fail(
			err, -ENOENT,
			"\"%s\" is kept, and the mount in %.80s does not show %.200s: the mount "
			"belongs to another IPC namespace; run tmeshctl mount in this one",
			name, mount, text);
	if (!strcmp(type, TMESH_MOUNT_FUSE))
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
	char type[TMESH_MOUNT_TYPE_SIZE];

	tmesh_mount_type(mount, type);
	if (!strcmp(type, TMESH_MOUNT_FUSE))
		return tmesh_fail(
			err, -ENOENT,
			"\"%s\" is kept, and tmesh-mount does not show %.200s: it looks for this "
			"user's keeper in another runtime folder (tmesh-mount --keepers)",
			name, text);
	if (!strcmp(type, TMESH_MOUNT_MODULE))
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

/* A look for a file of this user in the mount. It is its thread's, and does not use the context. */
struct look {
	char *mount, *name, *path;
	uint64_t id; /* of the keeping */
	int device;  /* the module's, or -1 for memfds */
	char folder[NAME_MAX + 1];
	int rc;
};

static void look_free(void *data)
{
	struct look *look = data;

	if (look->device >= 0)
		close(look->device);
	free(look->mount);
	free(look->name);
	free(look->path);
	free(look);
}

static char *text_of(const char *mount, const char *folder, const char *name, const char *path)
{
	char *text;

	return asprintf(&text, "%s/%s/%s%s%s", mount, folder, name, path ? "/" : "",
			path ? path : "") < 0
		       ? NULL
		       : text;
}

/* Check that the file @text of the mount is of the keeping. -ENOENT: it is not. */
static int check_shown(const struct look *look, const char *text)
{
	bool memfd = look->device < 0;
	struct tmesh_shown shown = {0};
	struct statfs fs;
	int fd, rc;

	/* Other file systems are not asked: they may be slow, or any user's. */
	if (statfs(text, &fs) ||
	    (unsigned int)fs.f_type != (memfd ? FUSE_SUPER_MAGIC : TMESH_FS_MAGIC))
		return -ENOENT;
	fd = open(text, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	rc = memfd ? tmesh_fuse_shown(fd, &shown, NULL)
		   : tmesh_kernel_shown(look->device, fd, &shown, NULL);
	close(fd);
	return !rc && shown.id == look->id ? 0 : -ENOENT;
}

static int check_folder(const struct look *look, int root)
{
	struct stat st;
	char *text;
	int rc;

	if (fstatat(root, look->folder, &st, AT_SYMLINK_NOFOLLOW) || st.st_uid != geteuid())
		return -ENOENT;
	text = text_of(look->mount, look->folder, look->name, look->path);
	rc = text ? check_shown(look, text) : -ENOMEM;
	free(text);
	return rc;
}

static void own_folder(char folder[NAME_MAX + 1])
{
	snprintf(folder, NAME_MAX + 1, "%u", (unsigned int)geteuid());
}

/* Find the folder of this user in the mount. Folders are called by the uids of the mount's user
 * namespace. This process may be in another, so the folder's owner decides. */
static void find_folder(void *data)
{
	struct look *look = data;
	struct dirent *entry;
	DIR *root;

	own_folder(look->folder);
	root = opendir(look->mount);
	if (!root) {
		look->rc = errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : -ENOENT;
		return;
	}
	look->rc = check_folder(look, dirfd(root));
	while (look->rc == -ENOENT && (entry = readdir(root))) {
		if (*entry->d_name == '.')
			continue;
		strcpy(look->folder, entry->d_name);
		look->rc = check_folder(look, dirfd(root));
	}
	closedir(root);
}

/* Begin a look. */
static int look_new(const struct tmesh_ctx *ctx, const char *name, const char *path, uint64_t id,
		    struct look **out, struct tmesh_error *err)
{
	struct look *look = calloc(1, sizeof(*look));

	if (!look)
		return tmesh_fail(err, -ENOMEM, "no memory for a path");
	look->device = -1;
	look->mount = strdup(ctx->mount);
	look->name = strdup(name);
	look->path = strdup(path);
	look->id = id;
	if (!look->mount || !look->name || !look->path) {
		look_free(look);
		return tmesh_fail(err, -ENOMEM, "no memory for a path");
	}
	if (ctx->ops->backend != TMESH_BACKEND_MEMFD) {
		look->device = fcntl(ctx->kernel.device, F_DUPFD_CLOEXEC, 0);
		if (look->device < 0) {
			int rc = tmesh_fail_errno(err, "duplicating the module's descriptor");

			look_free(look);
			return rc;
		}
	}
	*out = look;
	return 0;
}

/* Look for a file in the mount. Return 0, with this user's folder; -ENOENT, -EMFILE and the like in
 * @shown: the mount does not show it. */
static int look_in_time(const struct tmesh_ctx *ctx, const char *name, const char *path,
			uint64_t id, char folder[NAME_MAX + 1], int *shown, struct tmesh_error *err)
{
	struct look *look = NULL;
	int rc = look_new(ctx, name, path, id, &look, err);

	if (rc)
		return rc;
	rc = tmesh_in_time(find_folder, look_free, look, ctx->timeout_ns + KEEPER_NS);
	if (rc == -ETIMEDOUT)
		return tmesh_fail(
			err, rc,
			"\"%s\" is kept, and the file system in %.80s does not answer: as "
			"root, systemctl restart tmesh-mount; or end the tmesh-mount of "
			"that folder, and start it again",
			name, ctx->mount);
	if (rc)
		return tmesh_fail(err, rc, "cannot start a thread to look into %.80s: %s",
				  ctx->mount, strerror(-rc));
	*shown = look->rc;
	strcpy(folder, look->folder);
	look_free(look);
	return 0;
}

/* Report that the mount does not show @path, or the name's folder if that is NULL. */
static int path_fail(const struct tmesh_ctx *ctx, const char *name, const char *path,
		     struct tmesh_error *err)
{
	bool memfd = ctx->ops->backend == TMESH_BACKEND_MEMFD;
	char folder[NAME_MAX + 1], *text;
	int rc;

	own_folder(folder);
	text = text_of(ctx->mount, folder, name, path);
	if (!text)
		return tmesh_fail(err, -ENOMEM, "no memory for a path");
	rc = memfd ? not_served(ctx->mount, text, name, err)
		   : not_mounted(ctx->mount, text, name, err);
	free(text);
	return rc;
}

/* Make the path of a keeping that has these files. -ESTALE: the name was replaced meanwhile. */
static int path_of(struct tmesh_ctx *ctx, const struct tmesh_paths *paths, uint64_t id,
		   const char *name, const char *path, char **out, struct tmesh_error *err)
{
	/* Folders say nothing of their keeping: ask one of the files. */
	const char *file = path ? path : tmesh_paths_name(paths, 0);
	char folder[NAME_MAX + 1], *text;
	struct tmesh_paths *again;
	uint64_t now;
	int rc, shown = -ENOENT;

	if (path && tmesh_paths_find(paths, path) == UINT32_MAX)
		return tmesh_fail(err, -ENOENT, "no file \"%.120s\" is kept as \"%s\"", path, name);
	rc = look_in_time(ctx, name, file, id, folder, &shown, err);
	if (rc)
		return rc;
	if (!shown) {
		text = text_of(ctx->mount, folder, name, path);
		if (!text)
			return tmesh_fail(err, -ENOMEM, "no memory for a path");
		*out = text;
		return 0;
	}
	rc = tmesh_kept_paths(&ctx, name, TMESH_KEPT_OWN, &again, &now, err);
	if (rc)
		return rc;
	free(again);
	if (now != id)
		return -ESTALE;
	return shown == -ENOENT
		       ? path_fail(ctx, name, path, err)
		       : tmesh_fail(err, shown, "cannot open \"%.120s\" of \"%s\" in %.80s: %s",
				    file, name, ctx->mount, strerror(-shown));
}

int tmesh_kept_path(struct tmesh_ctx *ctx, const char *name, const char *path, char **out,
		    struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, ctx, out);

	if (rc)
		return rc;
	for (int i = 0; i < TMESH_KEPT_TRIES; i++) {
		struct tmesh_ctx *keeps = ctx;
		struct tmesh_paths *paths;
		uint64_t id;

		rc = tmesh_kept_paths(&keeps, name, TMESH_KEPT_OWN, &paths, &id, err);
		if (rc)
			return rc;
		rc = path_of(keeps, paths, id, name, path, out, err);
		free(paths);
		if (rc != -ESTALE)
			return rc;
	}
	return tmesh_fail(err, rc, "\"%s\" is replaced again and again: try again", name);
}
