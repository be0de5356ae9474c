/* SPDX-License-Identifier: MIT */
/*
 * Seeing: what a region is, which regions there are, and who holds them. See tmesh/tmesh.h for the
 * conventions of all calls. Since 0.1.
 * Maturity: stable.
 */
#ifndef TMESH_INSPECT_H
#define TMESH_INSPECT_H

#include <tmesh/region.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where the memory comes from. */
enum tmesh_backing {
	TMESH_BACKED_BY_MEMFD_BACKEND = 0,
	TMESH_BACKED_BY_PAGES = 1,
	TMESH_BACKED_BY_MEMFD = 2,
	TMESH_BACKED_BY_USER = 3,
	TMESH_BACKED_BY_DMABUF = 4,
	TMESH_BACKED_BY_OPAQUE = 5,
	TMESH_BACKED_BY_GATHER = 6,
};

struct tmesh_region_info {
	size_t size; /* in: sizeof(struct tmesh_region_info); in lists it is set */
	uint64_t id;
	uint64_t bytes;	      /* as its maker asked */
	uint64_t alloc_bytes; /* in whole pages: the bytes that can be mapped */
	uint64_t huge_bytes;  /* of them in huge pages, as far as known */
	uint64_t created_ns;
	enum tmesh_backend backend;
	uint32_t rights; /* of this handle; 0 in lists */
	uint32_t mode;
	uid_t uid;
	gid_t gid;
	int node; /* -1: any */
	bool sealed;
	bool revoked;
	bool pinning;	  /* this handle */
	uint32_t handles; /* memfd: in lists, the descriptors that the caller may see in /proc; in
			   * tmesh_region_info() 0, because counting would read all of /proc */
	uint32_t pinning_handles;
	uint32_t exports;
	uint32_t attachments;
	uint32_t hold_ms;
	char label[TMESH_LABEL_LEN + 1];
	char description[TMESH_DESCRIPTION_LEN + 1];
	/* From here on: module only, else 0; on memfd too: revoked, backing (OPAQUE), lease_ns,
	 * lapsed. */
	enum tmesh_backing backing;
	bool lapsed;		/* this handle's lease */
	bool zeros;		/* TMESH_TAKEN_ZERO, this handle */
	uint32_t views;		/* gather views that show parts of it */
	uint64_t lease_ns;	/* of this handle; 0: none, or only bound to a process */
	uint64_t lease_left_ns; /* the lease does not lapse before this time is over */
	uint64_t fence_value;
	bool fence_producer;   /* there is a producer */
	bool fence_dead;       /* its producer is gone */
	uint64_t pinned_bytes; /* of a revoked region */
	uint64_t cgroup_id;    /* whose memory control group is charged; 0: unknown */
	bool poisoned;	       /* a process found a page of it with a memory error */
	bool kept; /* under a name (tmesh/keep.h), or held by a ref (tmesh/hold.h); memfd:
		    * in lists alone, and only by the keeper of the context's runtime
		    * directory */
};
int tmesh_region_info(struct tmesh_region *region, struct tmesh_region_info *info,
		      struct tmesh_error *err);

enum tmesh_holder_kind {
	TMESH_HOLDER_IS_HANDLE = 1,
	TMESH_HOLDER_IS_PINNING = 2,
	TMESH_HOLDER_IS_EXPORT = 3,
	TMESH_HOLDER_IS_MAPPING = 4, /* memfd: mapped, its descriptor closed */
	TMESH_HOLDER_IS_GATHER = 5,  /* a gather view, @view */
	TMESH_HOLDER_IS_DEVICE = 6,  /* a device attached to the export before it in the list */
};

struct tmesh_holder_info {
	enum tmesh_holder_kind kind;
	pid_t pid; /* 0: not in this PID namespace */
	uid_t uid;
	uint32_t rights;
	uint32_t mappings;
	uint32_t attachments;
	uint64_t since_ns; /* 0: unknown */
	uint64_t offset;   /* of an export */
	uint64_t bytes;
	char command[16];
	uint64_t lease_ns; /* 0: none */
	uint64_t lease_left_ns;
	uint64_t view; /* id of a gather view's region */
	bool lapsed;   /* its lease has */
	bool producer; /* it signals the region's fence */
	bool mapped;   /* a device: has memory mapped, not only attached */
	char device[32];
	uint64_t region; /* its id */
};

/*
 * List all regions that the caller may open (memfd: those that processes of this user hold), and
 * the holders of one region. For @id 0 list the holders of all of them, in the order of the
 * regions' ids; on memfds that takes one look at all processes. The caller releases the arrays with
 * free(). The elements are as the caller was compiled: @info_bytes and @holder_bytes are for the
 * inline functions below.
 *
 * Return: 0; -ENOENT (no such region); -EPERM (not its owner); -EDQUOT (module: a region has more
 * than 128 holders, so its list counts for the limits of bytes during the call, and one is
 * reached); -ENOMEM.
 */
int tmesh_list_sized(struct tmesh_ctx *ctx, size_t info_bytes, struct tmesh_region_info **infos,
		     size_t *count, struct tmesh_error *err);
int tmesh_holders_sized(struct tmesh_ctx *ctx, uint64_t id, size_t holder_bytes,
			struct tmesh_holder_info **holders, size_t *count, struct tmesh_error *err);

static inline int tmesh_list(struct tmesh_ctx *ctx, struct tmesh_region_info **infos, size_t *count,
			     struct tmesh_error *err)
{
	return tmesh_list_sized(ctx, sizeof(struct tmesh_region_info), infos, count, err);
}

static inline int tmesh_holders(struct tmesh_ctx *ctx, uint64_t id,
				struct tmesh_holder_info **holders, size_t *count,
				struct tmesh_error *err)
{
	return tmesh_holders_sized(ctx, id, sizeof(struct tmesh_holder_info), holders, count, err);
}

/* Return the word of tests/vocabulary.md, "pages" or "handle"; "unknown" for any other number. */
const char *tmesh_backing_name(enum tmesh_backing backing);
const char *tmesh_holder_kind_name(enum tmesh_holder_kind kind);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_INSPECT_H */
