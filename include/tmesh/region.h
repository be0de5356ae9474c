/* SPDX-License-Identifier: MIT */
/*
 * Region: a piece of memory with one lifetime, and this process's handle to it.
 * See tmesh/tmesh.h for the conventions of all calls. Since 0.1.
 */
#ifndef TMESH_REGION_H
#define TMESH_REGION_H

#include <sys/types.h>
#include <tmesh/context.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_region;

/* Rights. They only shrink; READ is part of every set. */
enum tmesh_rights {
	TMESH_READ = 1 << 0,
	TMESH_WRITE = 1 << 1,
	TMESH_MANAGE = 1 << 2, /* seal, describe, revoke */
};

#define TMESH_LABEL_LEN 63
#define TMESH_DESC_LEN 4096
/* Room for any token as text with its terminating zero. */
#define TMESH_TOKEN_SIZE 72

enum tmesh_region_flags {
	TMESH_REGION_HUGE = 1 << 0,	     /* 2 MiB pages or -ENOMEM */
	TMESH_REGION_TRY_HUGE = 1 << 1,	     /* 2 MiB pages if they can be had at once;
					      * tmesh_region_info() says what it became */
	TMESH_REGION_NODE = 1 << 2,	     /* memory of opts->node only */
	TMESH_REGION_GID = 1 << 3,	     /* opts->gid is given */
	TMESH_REGION_NO_PIN = 1 << 4,	     /* refuse pinning handles */
	TMESH_REGION_UNINITIALIZED = 1 << 5, /* contents may be what this context itself put
					      * into a released region: only for callers who
					      * overwrite all of it before anyone else sees it */
};

struct tmesh_arena;

struct tmesh_region_opts {
	size_t size;		   /* sizeof(struct tmesh_region_opts) */
	uint32_t flags;		   /* enum tmesh_region_flags */
	uint32_t mode;		   /* who may redeem a token: 0600 (the default for 0) or 0640, 0660
				    * ...; memfd: only 0600, else -EOPNOTSUPP */
	gid_t gid;		   /* group of the region */
	int node;		   /* NUMA node */
	uint32_t linger_ms;	   /* outlive the last holder so long, at most 1000; memfd: only
				    * 0, else -EOPNOTSUPP */
	const char *label;	   /* a name for people, at most TMESH_LABEL_LEN bytes of UTF-8
				    * without control characters */
	struct tmesh_arena *arena; /* of a tensor, with all else 0: where it lies
				    * (tmesh/arena.h). Not for regions */
};

/*
 * A new region of @bytes (at least 1) zeroed bytes with all rights. Memory is committed
 * now (kernel) or on first touch (memfd; more than the machine's memory and swap together is
 * refused at once with -ENOMEM).
 *
 * Return: 0; -EINVAL, -EOVERFLOW, -EDQUOT, -ENOMEM, -EMFILE, -EOPNOTSUPP, -EPERM (gid).
 */
int tmesh_region_create(struct tmesh_ctx *ctx, uint64_t bytes, const struct tmesh_region_opts *opts,
			struct tmesh_region **out, struct tmesh_error *err);

/*
 * A region over a memfd of the caller's, which must carry F_SEAL_SHRINK and
 * F_SEAL_GROW. @bytes 0 means all of it. @fd is duplicated, never taken over.
 * Of @opts, label, mode, gid, linger_ms, GID and NO_PIN apply (memfd: label and NO_PIN).
 * Rights are those of @fd.
 *
 * Return: 0; -EINVAL (not sealed, not a memfd, too short), -EBADF, -EDQUOT, -ENOMEM;
 * -EACCES (memfd: -EINVAL): @fd cannot be read; -EOPNOTSUPP (module: a memfd of huge pages;
 * memfd: mode, linger_ms, GID).
 */
int tmesh_region_from_memfd(struct tmesh_ctx *ctx, int fd, uint64_t bytes,
			    const struct tmesh_region_opts *opts, struct tmesh_region **out,
			    struct tmesh_error *err);

/*
 * Regions around memory that was made elsewhere; all but _from_fd need the module (-EOPNOTSUPP on
 * memfd). They take label, mode, gid, linger_ms and GID of @opts.
 *
 * _from_user: [addr, addr + bytes), whole pages of this process, pinned while the region lives
 * and charged to RLIMIT_MEMLOCK. It is not mapped again and not sealed; it is exported. The
 * process goes on to use the memory where it is.
 * Return: 0; -EINVAL (no whole pages); -EFAULT, -EOPNOTSUPP (cannot be pinned: the message says
 * where and why); -ENOMEM (RLIMIT_MEMLOCK); -EDQUOT.
 *
 * _from_dmabuf: another exporter's dma-buf. Rights are those of @fd; what mapping and exporting
 * give is up to its exporter. It is not sealed.
 * Return: 0; -EBADF, -EINVAL (no dma-buf, or no whole pages); -EACCES (@fd cannot be read); -ELOOP
 * (an export of tmesh's own: open its token).
 *
 * _from_fd: a character device's descriptor (memfd: any) that only its driver understands, such as
 * a CUDA memory export, of @bytes as its maker knows. It is held, handed over and listed;
 * _opaque_fd gives a descriptor of it back to any holder with WRITE.
 * Return: 0; -EBADF; -EINVAL (@bytes 0; module: a dma-buf); -EOPNOTSUPP (module: another kind of
 * file); -EOVERFLOW.
 *
 * @fd is duplicated, never taken over.
 */
int tmesh_region_from_user(struct tmesh_ctx *ctx, void *addr, uint64_t bytes, uint32_t rights,
			   const struct tmesh_region_opts *opts, struct tmesh_region **out,
			   struct tmesh_error *err);
int tmesh_region_from_dmabuf(struct tmesh_ctx *ctx, int fd, const struct tmesh_region_opts *opts,
			     struct tmesh_region **out, struct tmesh_error *err);
int tmesh_region_from_fd(struct tmesh_ctx *ctx, int fd, uint64_t bytes,
			 const struct tmesh_region_opts *opts, struct tmesh_region **out,
			 struct tmesh_error *err);
int tmesh_region_opaque_fd(struct tmesh_region *region, int *fd, struct tmesh_error *err);

/* A part of a region, in whole pages. */
struct tmesh_gather_extent {
	struct tmesh_region *region;
	uint64_t offset;
	uint64_t bytes;
};

/*
 * A gather view: parts of regions, one behind the other, as a region of its own. @rights, READ or
 * READ | WRITE, are never more than those of its sources; it keeps them alive and is revoked with
 * any of them. It is not sealed or pinned.
 *
 * Return: 0; -EINVAL (no whole pages, outside, none or more than 1,048,576; a writable view that
 * shows a page twice); -EACCES, -EPERM (rights; inherited); -ELOOP (a view of views);
 * -EOPNOTSUPP (memfd; a source that is no memory of the module's own); -EDQUOT; -ENOMEM.
 */
int tmesh_region_gather(struct tmesh_ctx *ctx, const struct tmesh_gather_extent *extents,
			size_t count, uint32_t rights, const struct tmesh_region_opts *opts,
			struct tmesh_region **out, struct tmesh_error *err);

struct tmesh_region *tmesh_region_ref(struct tmesh_region *region);
/* The last one unmaps and closes; a region nobody else can hold may go to the pool. */
void tmesh_region_unref(struct tmesh_region *region);

/*
 * Map the whole region; repeated calls return the same address. @rights is TMESH_READ or
 * TMESH_READ | TMESH_WRITE. Each successful call is paired with one tmesh_region_unmap();
 * the address is good until the last of them. Touching memory of a region that was revoked, or
 * whose lease has lapsed, raises SIGBUS, or does what tmesh_region_when_taken() said.
 *
 * Return: 0; -EINVAL (@rights), -EACCES (not writable), -EPERM (sealed, or inherited), -ESTALE,
 * -ENOMEM, -EOPNOTSUPP (regions that are not mapped: of _from_user, of _from_fd).
 */
int tmesh_region_map(struct tmesh_region *region, uint32_t rights, void **addr,
		     struct tmesh_error *err);
void tmesh_region_unmap(struct tmesh_region *region, uint32_t rights);

/*
 * Copy bytes in or out without a mapping of the caller's own; counted as copies.
 * Writing takes the cheapest way there is (cold: without faulting page by page; warm and
 * large: past the caches). Reading never raises a signal: memory that has vanished
 * gives -ESTALE.
 */
int tmesh_region_write(struct tmesh_region *region, uint64_t offset, const void *data,
		       uint64_t bytes, struct tmesh_error *err);
int tmesh_region_read(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		      struct tmesh_error *err);

/*
 * Make the region immutable for everybody and for ever. Needs MANAGE. When this
 * region object has the only writable mapping, the mapping stays where it is and becomes
 * read-only: nobody may write through it during or after the call.
 *
 * Return: 0 (also when sealed already); -EACCES, -EPERM (inherited), -ESTALE,
 * -EBUSY: another writable mapping, export or pin exists; the message says which
 * can be told; nothing has changed.
 */
int tmesh_region_seal(struct tmesh_region *region, struct tmesh_error *err);

/* A further handle on the same region with fewer rights. */
int tmesh_region_derive(struct tmesh_region *region, uint32_t rights, struct tmesh_region **out,
			struct tmesh_error *err);

/*
 * A pinning handle: read-only, on a sealed region, which cannot be taken away while
 * it lives. memfd: any sealed region qualifies.
 * Return: 0; -EINVAL (not sealed), -EPERM (its owner refuses pins; module: this handle has a
 * lease), -EOPNOTSUPP (a gather view).
 */
int tmesh_region_pin(struct tmesh_region *region, struct tmesh_region **out,
		     struct tmesh_error *err);

/*
 * Take the region back from all holders. Needs MANAGE.
 * memfd: regions of tmesh_region_from_fd() alone, by the process that made them; their holders
 * are told, and let go of themselves.
 * Return: 0; -EBUSY (pinned: the message names the holders), -EOPNOTSUPP (memfd).
 */
int tmesh_region_revoke(struct tmesh_region *region, struct tmesh_error *err);

/* What still keeps memory that was taken back. */
struct tmesh_reclaim_report {
	size_t size;	       /* in: sizeof(struct tmesh_reclaim_report) */
	uint64_t pinned_bytes; /* in pages that devices or the kernel have in use */
	uint32_t exports;      /* dma-bufs alive */
	uint32_t attachments;  /* devices attached to them */
};

/*
 * Take the region back and wait until its memory is really free, at most @timeout_ns. May be
 * called again, also on a region that was revoked. @report may be NULL.
 * Return: as _revoke; -ETIMEDOUT, -EINTR: revoked, but something still uses memory; the message
 * names devices (memfd: processes), @report is filled.
 */
int tmesh_region_reclaim(struct tmesh_region *region, uint64_t timeout_ns,
			 struct tmesh_reclaim_report *report, struct tmesh_error *err);

/* What may happen to a region that this process holds. */
enum tmesh_region_event {
	TMESH_EVENT_TAKEN = 1 << 0,    /* it was taken back, or this handle's lease has lapsed */
	TMESH_EVENT_ALONE = 1 << 1,    /* nobody else holds it */
	TMESH_EVENT_ORPHANED = 1 << 2, /* memfd: who made it is gone, its holders keep it */
};

/*
 * How to wait for any of @events, TAKEN or ALONE: poll() the returned descriptor, which stays the
 * library's, for @wait; when it returns, tmesh_region_events() says what is so now. On memfd this
 * is for regions of tmesh_region_from_fd(): their maker waits for ALONE, their holders for TAKEN,
 * and poll() returns for ORPHANED too, once and for all. What was ALONE may be opened by a token
 * the moment after; only after a revocation it stays so.
 *
 * Return: the descriptor; -EINVAL (@events); -EPERM (inherited); -EOPNOTSUPP (other regions on
 * memfd; an event that this process cannot wait for).
 */
int tmesh_region_poll_fd(struct tmesh_region *region, uint32_t events, short *wait,
			 struct tmesh_error *err);
uint32_t tmesh_region_events(struct tmesh_region *region);

/*
 * A dma-buf over [offset, offset + bytes), whole pages; @bytes 0 means to the end;
 * @rights TMESH_READ or TMESH_READ | TMESH_WRITE. The caller owns @fd.
 * memfd: through /dev/udmabuf, always writable, so never of a sealed region
 * (-EOPNOTSUPP with the reason) and only with TMESH_WRITE.
 */
int tmesh_region_export_dmabuf(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			       uint32_t rights, int *fd, struct tmesh_error *err);

/*
 * The token that names the region with @rights, as text in @token
 * (TMESH_TOKEN_SIZE bytes). The same rights give the same token. It is good while the
 * region lives (kernel) or while this region object lives (memfd), for the same user or
 * as mode and group allow.
 * Return: 0; -EINVAL, -EACCES (@rights), -ESTALE, -EPERM (inherited; module: this handle has a
 * lease); memfd also -EACCES (runtime directory), -EMFILE.
 */
int tmesh_region_token(struct tmesh_region *region, uint32_t rights, char *token,
		       struct tmesh_error *err);

/*
 * Redeem a token. Rights beyond the token's give -EACCES.
 * Return: 0; -EPROTO (not a token), -ENOENT, -EACCES, -ETIMEDOUT, -EOPNOTSUPP (a token of
 * a backend that this context does not have).
 */
int tmesh_region_open(struct tmesh_ctx *ctx, const char *token, uint32_t rights,
		      struct tmesh_region **out, struct tmesh_error *err);

/*
 * Hand over by a connected Unix socket (stream or seqpacket): one message with one
 * descriptor (memfd: up to three of a region of tmesh_region_from_fd()). What is sent is a
 * handle of its own, with @rights. Both wait at most the context's timeout. _recv refuses what
 * is not such a message (-EPROTO) or of another backend (-EOPNOTSUPP), and closes every
 * descriptor it did not ask for. -EPIPE when the peer is gone.
 */
int tmesh_region_send(struct tmesh_region *region, int socket, uint32_t rights,
		      struct tmesh_error *err);
int tmesh_region_recv(struct tmesh_ctx *ctx, int socket, struct tmesh_region **out,
		      struct tmesh_error *err);

/* What the region holds, for people: at most TMESH_DESC_LEN bytes. Needs MANAGE, before the
 * seal. The library writes a tensor's ref without its token here. -EOPNOTSUPP: memfd, a region
 * of tmesh_region_from_memfd(). */
int tmesh_region_desc_set(struct tmesh_region *region, const char *text, struct tmesh_error *err);

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
	size_t size; /* in: sizeof(struct tmesh_region_info) */
	uint64_t id;
	uint64_t bytes;	      /* as asked */
	uint64_t alloc_bytes; /* in whole pages: what can be mapped */
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
	uint32_t handles; /* memfd: in lists, descriptors found in /proc as far as one may look;
			   * of one region 0, for counting means to look at every process */
	uint32_t pinning_handles;
	uint32_t exports;
	uint32_t attachments;
	uint32_t linger_ms;
	char label[TMESH_LABEL_LEN + 1];
	char desc[TMESH_DESC_LEN + 1];
	/* From here on: module only, else 0; on memfd too: revoked, backing (OPAQUE), lease_ns. */
	enum tmesh_backing backing;
	bool lapsed;		/* this handle's lease */
	bool zeros;		/* TMESH_TAKEN_ZERO, this handle */
	uint32_t views;		/* gather views that show parts of it */
	uint64_t lease_ns;	/* of this handle; 0: none, or only bound to a process */
	uint64_t lease_left_ns; /* it does not lapse before */
	uint64_t fence_value;
	bool fence_producer;   /* there is a producer */
	bool fence_dead;       /* its producer is gone */
	uint64_t pinned_bytes; /* of a revoked region */
	uint64_t cgroup_id;    /* whose memory control group is charged; 0: unknown */
};
int tmesh_region_info(struct tmesh_region *region, struct tmesh_region_info *info,
		      struct tmesh_error *err);

/* Parts of it that are known without a system call: its length as asked at its creation, this
 * handle's rights, and its id. */
uint64_t tmesh_region_bytes(const struct tmesh_region *region);
uint32_t tmesh_region_rights(const struct tmesh_region *region);
uint64_t tmesh_region_id(const struct tmesh_region *region);
/* Whether it is sealed, by whomever: at most one system call, and none once it was. */
bool tmesh_region_is_sealed(struct tmesh_region *region);

enum tmesh_holder_kind {
	TMESH_HOLDER_IS_HANDLE = 1,
	TMESH_HOLDER_IS_PINNING = 2,
	TMESH_HOLDER_IS_EXPORT = 3,
	TMESH_HOLDER_IS_MAPPING = 4, /* memfd: mapped, its descriptor closed */
	TMESH_HOLDER_IS_GATHER = 5,  /* a gather view, @view */
	TMESH_HOLDER_IS_DEVICE = 6,  /* a device attached to the export before it */
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
	char comm[16];
	uint64_t lease_ns; /* 0: none */
	uint64_t lease_left_ns;
	uint64_t view;	 /* id of a gather view's region */
	bool lapsed;	 /* its lease has */
	bool producer;	 /* it signals the region's fence */
	bool dma_mapped; /* a device: has memory mapped, not only attached */
	char device[32];
};

/*
 * Seeing: all regions one may open (memfd: that processes of this user hold), and who
 * holds one of them. Arrays are the caller's, to be released with free().
 * Return: 0; -ENOENT (no such region); -EPERM (not its owner).
 */
int tmesh_list(struct tmesh_ctx *ctx, struct tmesh_region_info **infos, size_t *count,
	       struct tmesh_error *err);
int tmesh_holders(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_holder_info **holders,
		  size_t *count, struct tmesh_error *err);

/*
 * The handle's descriptor, still the library's, good for O_DIRECT, io_uring and mmap. On the
 * module poll() says POLLHUP when the region was revoked, with POLLERR when this handle's lease
 * has lapsed, POLLOUT while nobody else holds the region, and what tmesh_fence_arm() asked for.
 * On a memfd it can write, as far as the handle may, once this was called; until a seal.
 * Return: the descriptor; -EPERM (inherited through fork()), or why it cannot be opened to write.
 */
int tmesh_region_fd(struct tmesh_region *region);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_REGION_H */
