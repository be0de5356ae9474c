/* SPDX-License-Identifier: MIT */
/*
 * Kept regions: sealed memory that outlives every process, under a name, by its owner's wish. See
 * tmesh/tmesh.h for the conventions of all calls, docs/keeping.md for what each backend promises.
 * Since 0.1.
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

enum tmesh_keeping_flags {
	TMESH_KEEPING_REPLACE = 1 << 0, /* the name may be taken: in one step, or not at all */
	TMESH_KEEPING_GID = 1 << 1,	/* opts->gid is given */
};

struct tmesh_keep_opts {
	size_t size;	/* sizeof(struct tmesh_keep_opts) */
	uint32_t flags; /* enum tmesh_keeping_flags */
	uint32_t mode;	/* who may open it by name: 0600 (the default for 0) or 0640 ...;
			 * memfd: only 0600, else -EOPNOTSUPP */
	gid_t gid;
	uint64_t lifetime_ns; /* dropped when this time is over; 0: never */
};

/*
 * Keep regions under @name: 1 to TMESH_KEPT_NAME_LEN bytes of UTF-8 without control characters.
 * Each region is sealed, or stands for a descriptor (tmesh_region_from_fd()), and is there once.
 * The handles stay the caller's; what they are charged to stays as it is.
 *
 * Return: 0, from when on the group is kept; -EINVAL (name, count, opts, a region that is not
 * sealed: the message says which), -EEXIST (the name is taken), -EBUSY (a region is kept under
 * another name), -EDQUOT (the limit, and all that is kept is held: the message has the numbers),
 * -EACCES (module: a handle without MANAGE), -EPERM (inherited), -ENOENT (memfd: no keeper runs
 * and none can be started), -ETIMEDOUT, -EPIPE (the keeper ended meanwhile), -EOPNOTSUPP (an older
 * module), -ENOMEM, -EMFILE.
 */
int tmesh_keep(struct tmesh_ctx *ctx, const char *name, struct tmesh_region *const *regions,
	       size_t count, const struct tmesh_keep_opts *opts, struct tmesh_error *err);
/* A bundle: its index, then its data regions, which must be sealed. */
int tmesh_keep_bundle(struct tmesh_ctx *ctx, const char *name, struct tmesh_bundle *bundle,
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

/* What is kept under a name. */
struct tmesh_kept_info {
	size_t size; /* set in lists */
	uint64_t id; /* of this keeping: another one has another, also under the same name */
	char name[TMESH_KEPT_NAME_LEN + 1];
	enum tmesh_backend backend;
	uint32_t count;	     /* regions */
	uint32_t held;	     /* of them held by somebody now */
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

/* All that the caller may open by name (root on the module: all), in the order in which they were
 * kept; an array to be released with free(), its elements as the caller was compiled. No keeper:
 * nothing is kept. */
int tmesh_kept_list_sized(struct tmesh_ctx *ctx, size_t info_bytes, struct tmesh_kept_info **infos,
			  size_t *count, struct tmesh_error *err);

static inline int tmesh_kept_list(struct tmesh_ctx *ctx, struct tmesh_kept_info **infos,
				  size_t *count, struct tmesh_error *err)
{
	return tmesh_kept_list_sized(ctx, sizeof(struct tmesh_kept_info), infos, count, err);
}

/* Give up a name of one's own. Regions of it that nobody holds are gone when the call returns.
 * Return: 0; -ENOENT. */
int tmesh_kept_drop(struct tmesh_ctx *ctx, const char *name, struct tmesh_error *err);

/* Who keeps, and within what limit. */
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
