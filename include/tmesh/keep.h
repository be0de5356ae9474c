/* SPDX-License-Identifier: MIT */
/*
 * Kept regions: sealed memory that outlives every process, under a name, by its owner's wish. See
 * tmesh/tmesh.h for the conventions of all calls, docs/reference/keeping.md for what each backend
 * promises. Since 0.1.
 * Maturity: stable.
 *
 * A name keeps a group of regions, all or none of them. It belongs to the caller's user: names of
 * other users are other names. On the module the kernel keeps the group. On memfd a small process
 * of the user does, the keeper, which the first tmesh_keep() starts (or systemd); it holds
 * descriptors and maps nothing.
 *
 * A group stays until it is dropped, its time is over, or room is needed: then the longest unused
 * group without a holder is dropped first. A holder keeps its region, whatever happens to the
 * name.
 */
#ifndef TMESH_KEEP_H
#define TMESH_KEEP_H

#include <tmesh/bundle.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TMESH_KEPT_NAME_LEN 63
/* Regions under one name: a bundle's index is one of them. */
#define TMESH_KEPT_MAX_REGIONS 1024
/* Files under one name, the bytes of a file's path, and of a component of it. */
#define TMESH_KEPT_MAX_FILES 65536
#define TMESH_KEPT_PATH_LEN 1023
#define TMESH_KEPT_COMPONENT_LEN 255

enum tmesh_keeping_flags {
	TMESH_KEEPING_REPLACE = 1 << 0, /* the name may be taken: in one step, or not at all */
	TMESH_KEEPING_GID = 1 << 1,	/* opts->gid is given */
};

/* A file of a kept group: its bytes are a part of one region. */
struct tmesh_kept_file {
	/* Relative, with slashes between components of 1 to 255 bytes, none of which is "." or
	 * "..". Any other byte is allowed. A file's path is no other file's, and no folder's. */
	const char *path;
	uint64_t offset; /* a file that is mapped in place has a region of its own, and 0 */
	uint64_t bytes;
	int64_t mtime_ns; /* of CLOCK_REALTIME */
	uint32_t region;  /* its place in the group */
};

/* Called by the keeping thread while a folder is read, with no lock held. It may call this library.
 * It may fork(): the child calls exec() or _exit(). Return: 0 to continue; any other value ends it
 * with -ECANCELED. */
typedef int (*tmesh_keep_progress_fn)(void *data, uint64_t bytes_done, uint64_t bytes_total);

struct tmesh_keep_opts {
	size_t size;	/* sizeof(struct tmesh_keep_opts) */
	uint32_t flags; /* enum tmesh_keeping_flags */
	uint32_t mode;	/* who may open it by name: 0600 (the default for 0) or 0640 ...;
			 * memfd: only 0600, else -EOPNOTSUPP. With files also 0640 and 0644, on
			 * memfd too, for the files that a mount shows */
	gid_t gid;
	uint64_t lifetime_ns; /* dropped when this time is over; 0: never */
	/* The group's files, which tmeshfs(5) or, on memfd, tmesh-mount(8) shows under paths. The
	 * name has no slash and does not begin with a dot then. At most TMESH_KEPT_MAX_FILES, else
	 * -E2BIG. On the module each file begins at a page of a region of tmesh_region_create(),
	 * and zeros follow it to the end of its last page. */
	const struct tmesh_kept_file *files;
	size_t file_count;
	tmesh_keep_progress_fn progress; /* tmesh_keep_folder() */
	void *progress_data;
};

/*
 * Keep regions under @name: 1 to TMESH_KEPT_NAME_LEN bytes of UTF-8 without control characters.
 * Each region is sealed, or stands for a descriptor (tmesh_region_from_fd()), and is there once.
 * The handles stay the caller's, and the call does not change the control group that is charged.
 *
 * Return: 0: the group is kept from now on. For the arguments: -EINVAL (name, count, opts, a region
 * that is not sealed; the message names it), -E2BIG and -EEXIST (files). For the name: -EEXIST (it
 * is taken), -EBUSY (a region is kept under another name). For limits: -EDQUOT (all kept memory is
 * held: the message has the numbers), -ENOMEM, -EMFILE. For rights: -EACCES (module: a handle
 * without MANAGE), -EPERM (inherited). For the keeper: -ENOENT (memfd: none runs and none can be
 * started), -ETIMEDOUT, -EPIPE (it ended meanwhile). Also -EOPNOTSUPP (an older module; module: a
 * file in other memory than that of tmesh_region_create()).
 */
int tmesh_keep(struct tmesh_ctx *ctx, const char *name, struct tmesh_region *const *regions,
	       size_t count, const struct tmesh_keep_opts *opts, struct tmesh_error *err);
/* A bundle: its index, then its data regions, which must be sealed. */
int tmesh_keep_bundle(struct tmesh_ctx *ctx, const char *name, struct tmesh_bundle *bundle,
		      const struct tmesh_keep_opts *opts, struct tmesh_error *err);

/*
 * Keep the files of a folder, or one file, under a name: each as its path below @path says, one
 * file under its own name. Bytes are read once, into huge pages where they are to be had. Files of
 * less than 64 KiB share one region. Links to regular files are followed, as in a snapshot of the
 * Hugging Face hub. The hub's folder of a model stands for its snapshot "main". @opts has no files.
 *
 * Return: 0, or as tmesh_keep(); -ENOENT, -EACCES (a file, the message says which), -EINVAL (a
 * socket, device or pipe, a link to a folder, no file at all), -ELOOP; -ESTALE (a file or folder
 * was changed meanwhile); -E2BIG (more files or regions than a name may have); -ENOMEM (more bytes
 * than the machine or the control group has room for); -ECANCELED. Nothing is kept then.
 */
int tmesh_keep_folder(struct tmesh_ctx *ctx, const char *name, const char *path,
		      const struct tmesh_keep_opts *opts, struct tmesh_error *err);

#define TMESH_KEPT_OWN ((uid_t)-1)

/*
 * Open all regions kept under a name of user @uid (TMESH_KEPT_OWN: the caller's; memfd: no other,
 * -EOPNOTSUPP), in the order in which they were given. @rights is TMESH_READ; WRITE has a meaning
 * for regions of tmesh_region_from_fd() alone.
 *
 * Return: 0, @count regions in an array to be released with free(), each with a reference of the
 * caller's; -ENOENT (no such name, or not for the caller), -EACCES (@rights), -EMFILE, -ENOMEM,
 * -ETIMEDOUT, -EPIPE, -EPROTO.
 */
int tmesh_kept_open(struct tmesh_ctx *ctx, const char *name, uid_t uid, uint32_t rights,
		    struct tmesh_region ***regions, size_t *count, struct tmesh_error *err);
/* The same of a bundle: also -EPROTO when what is kept is none. */
int tmesh_kept_open_bundle(struct tmesh_ctx *ctx, const char *name, uid_t uid,
			   struct tmesh_bundle **out, struct tmesh_error *err);

/*
 * The files of a name, sorted with a slash before all other bytes: an array to be released with
 * free(), which has the paths too. A context of the module also finds the names that contexts of
 * memfds keep; the module's come first. Return: 0; -ENOENT (no such name, or kept without files),
 * and as tmesh_kept_open().
 */
int tmesh_kept_files(struct tmesh_ctx *ctx, const char *name, uid_t uid,
		     struct tmesh_kept_file **files, size_t *count, struct tmesh_error *err);
/*
 * Open the region of one file. @file, which may be NULL, says where its bytes are in it; its path
 * is @path. Return: 0; -ENOENT (no such name or file), and as tmesh_kept_files().
 */
int tmesh_kept_open_file(struct tmesh_ctx *ctx, const char *name, uid_t uid, const char *path,
			 struct tmesh_region **region, struct tmesh_kept_file *file,
			 struct tmesh_error *err);
/*
 * Open the region of the kept file that the file system of kept files shows as @fd. Return: 0, as
 * tmesh_kept_open_file(), with a NULL path in @file and the kept name in @name, unless that is
 * NULL; -ENODATA (it is no kept file), -ESTALE (its name was dropped or replaced). -EOPNOTSUPP:
 * another user's file that this process may only read by its path, or a file of the module and a
 * context of memfds. Read or map the file then.
 */
int tmesh_kept_open_fd(struct tmesh_ctx *ctx, int fd, struct tmesh_region **region,
		       struct tmesh_kept_file *file, char name[TMESH_KEPT_NAME_LEN + 1],
		       struct tmesh_error *err);
/*
 * The path by which any program opens what is kept as @name: TMESH_MOUNT/UID/NAME, and below it
 * @path, unless that is NULL. TMESH_MOUNT is a variable of the environment, by default /run/tmesh.
 * UID is the folder of the mount that belongs to this user, also in a user namespace that maps it.
 * A thread of the call opens a file there for a moment, because a mount may show another group of
 * that name.
 *
 * Return: 0, @out to be released with free(); -ENOENT (no such name, kept without files, or no
 * file system of kept files shows it there: the message says how to mount it); -ETIMEDOUT (the
 * file system there does not answer in the context's timeout and 2 s more, as when tmesh-mount is
 * stopped); -ESTALE (replaced again and again); -EAGAIN (no thread); also the errors of opening a
 * file. After -ETIMEDOUT the thread stays until the file system answers or ends. While eight stay,
 * the call fails at once.
 */
int tmesh_kept_path(struct tmesh_ctx *ctx, const char *name, const char *path, char **out,
		    struct tmesh_error *err);

/* A kept name and its regions. */
struct tmesh_kept_info {
	size_t size; /* set in lists */
	uint64_t id; /* of this keeping: another one has another, also under the same name */
	char name[TMESH_KEPT_NAME_LEN + 1];
	enum tmesh_backend backend;
	uint32_t count;	     /* regions */
	uint32_t held;	     /* of them held by a process now */
	uint64_t bytes;	     /* of memory, in whole pages */
	uint64_t kept_ns;    /* when it was kept: CLOCK_MONOTONIC */
	uint64_t used_ns;    /* when it was last opened, or seen held */
	uint64_t expires_ns; /* 0: never */
	uid_t uid;
	gid_t gid;
	uint32_t mode;
	uint32_t handles;   /* on its regions; memfd: 0, tmesh_holders() tells */
	uint64_t cgroup_id; /* module: whose memory control group is charged; 0: unknown */
};

/* List all groups that the caller may open by name (root on the module: all), in the order in which
 * they were kept. The array is to be released with free(); its elements are as the caller was
 * compiled. Without a keeper the list is empty. */
int tmesh_kept_list_sized(struct tmesh_ctx *ctx, size_t info_bytes, struct tmesh_kept_info **infos,
			  size_t *count, struct tmesh_error *err);

static inline int tmesh_kept_list(struct tmesh_ctx *ctx, struct tmesh_kept_info **infos,
				  size_t *count, struct tmesh_error *err)
{
	return tmesh_kept_list_sized(ctx, sizeof(struct tmesh_kept_info), infos, count, err);
}

/* Give up a name of one's own. Regions of it without a holder are gone when the call returns.
 * Return: 0; -ENOENT. */
int tmesh_kept_drop(struct tmesh_ctx *ctx, const char *name, struct tmesh_error *err);

/* The process that keeps, and its limit. */
struct tmesh_keeper_info {
	size_t size;	    /* in: sizeof(struct tmesh_keeper_info) */
	pid_t pid;	    /* the keeper's; 0: the kernel, or none runs */
	bool survives_kill; /* the kernel keeps, or systemd has the keeper's descriptors too */
	bool pressure;	    /* gives back when the machine is short of memory */
	uint32_t names;
	uint64_t used_bytes;
	uint64_t max_bytes; /* of this user; 0: not known, as no keeper runs */
};
/* Return: 0, also when no keeper runs (pid 0 on memfd). */
int tmesh_keeper_info(struct tmesh_ctx *ctx, struct tmesh_keeper_info *info,
		      struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_KEEP_H */
