/* SPDX-License-Identifier: MIT */
/* The keeping of regions by each backend; keep.c has checked everything that does not depend on it.
 */
#ifndef TMESH_KEEP_INTERNAL_H
#define TMESH_KEEP_INTERNAL_H

#include "internal.h"

struct tmesh_paths;

struct tmesh_keep_ops {
	/* @paths: the table of the files (paths.h), or NULL. */
	int (*keep)(struct tmesh_ctx *ctx, const char *name, struct tmesh_region *const *regions,
		    uint32_t count, const struct tmesh_keep_opts *opts,
		    const struct tmesh_paths *paths, struct tmesh_error *err);
	/* An array as tmesh_kept_open() gives it. */
	int (*open)(struct tmesh_ctx *ctx, const char *name, uid_t uid, uint32_t rights,
		    struct tmesh_region ***regions, size_t *count, struct tmesh_error *err);
	/* The table of a name, to be freed, and the id of its keeping. -ENODATA: it has no files.
	 */
	int (*paths)(struct tmesh_ctx *ctx, const char *name, uid_t uid, struct tmesh_paths **paths,
		     uint64_t *id, struct tmesh_error *err);
	/* One region of that keeping. -ESTALE: another one has the name now. */
	int (*open_region)(struct tmesh_ctx *ctx, const char *name, uid_t uid, uint64_t id,
			   uint32_t number, struct tmesh_region **region, struct tmesh_error *err);
	int (*list)(struct tmesh_ctx *ctx, struct tmesh_kept_info **infos, size_t *count,
		    struct tmesh_error *err);
	int (*drop)(struct tmesh_ctx *ctx, const char *name, struct tmesh_error *err);
	int (*info)(struct tmesh_ctx *ctx, struct tmesh_keeper_info *info, struct tmesh_error *err);
};

int tmesh_kept_check_name(const char *name, struct tmesh_error *err);

/* The attribute by which the file system of kept files describes a file: "ID REGION OFFSET BYTES
 * UID NAME". */
#define TMESH_KEPT_XATTR "user.tmesh.kept"
#define TMESH_KEPT_XATTR_MAX 256

/* A file that the file system of kept files shows. */
struct tmesh_shown {
	char name[TMESH_KEPT_NAME_LEN + 1];
	uid_t uid;
	uint64_t id; /* of the keeping */
	struct tmesh_kept_file file;
};

/* Describe the open file @fd of the module's file system. -ENODATA: it is none; -ENOENT: its name
 * is gone. */
int tmesh_kernel_shown(int device, int fd, struct tmesh_shown *shown, struct tmesh_error *err);
/* The same of tmesh-mount's. -EOPNOTSUPP: another user keeps it. */
int tmesh_fuse_shown(int fd, struct tmesh_shown *shown, struct tmesh_error *err);

/* Get a name's table. @ctx becomes the context that keeps the files: with the module also the one
 * of memfds, as files of such contexts are this user's too. */
int tmesh_kept_paths(struct tmesh_ctx **ctx, const char *name, uid_t uid,
		     struct tmesh_paths **paths, uint64_t *id, struct tmesh_error *err);

/* How often a call tries to read a name that is replaced again and again. */
#define TMESH_KEPT_TRIES 16

extern const struct tmesh_keep_ops tmesh_memfd_keep_ops;
extern const struct tmesh_keep_ops tmesh_kernel_keep_ops;

#endif /* TMESH_KEEP_INTERNAL_H */
