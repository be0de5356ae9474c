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
#define TMESH_DESCRIPTION_LEN 4096
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
	TMESH_REGION_UNSEALED = 1 << 6,	     /* a tensor that is put stays writable; what is not
					      * put is never sealed by its making */
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

struct tmesh_region *tmesh_region_ref(struct tmesh_region *region);
/* The last one unmaps and closes; a region nobody else can hold may go to the pool. */
void tmesh_region_unref(struct tmesh_region *region);

/*
 * Map the whole region; repeated calls return the same address. @rights is TMESH_READ or
 * TMESH_READ | TMESH_WRITE. Each successful call is paired with one tmesh_region_unmap();
 * the address is good until the last of them. Touching memory of a region that was revoked, or
 * whose lease has lapsed, raises SIGBUS, or reads zeros where
 * the context or the lease said TMESH_TAKEN_ZERO.
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
 * A private view of a sealed region, copy-on-write: a region object with READ and WRITE whose
 * mapping shows the region's pages until this process writes to one. That page is then the
 * process's own copy, which nobody else sees and which ends with the view. The view keeps
 * the region from being taken away, as a pinning handle does. It is mapped, read and written;
 * all that would hand it to others is refused (-EOPNOTSUPP): put what was written into a new
 * region. A forked child has its own copy of the mapping, as of its other private memory.
 *
 * Return: 0; -EINVAL (not sealed); -EPERM (as tmesh_region_pin(); inherited); -EACCES;
 * -EOPNOTSUPP (a private view; no memory that can be mapped).
 */
int tmesh_region_private(struct tmesh_region *region, struct tmesh_region **out,
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

/* What the region holds, for people: at most TMESH_DESCRIPTION_LEN bytes. Needs MANAGE, before the
 * seal. The library writes a tensor's ref without its token here. -EOPNOTSUPP: memfd, a region
 * of tmesh_region_from_memfd(). */
int tmesh_region_set_description(struct tmesh_region *region, const char *text,
				 struct tmesh_error *err);

/* What is known of it without a system call: its length as asked at its creation, this handle's
 * rights, and its id. */
uint64_t tmesh_region_bytes(const struct tmesh_region *region);
uint32_t tmesh_region_rights(const struct tmesh_region *region);
uint64_t tmesh_region_id(const struct tmesh_region *region);
/* Whether it is sealed, by whomever: at most one system call, and none once it was. */
bool tmesh_region_is_sealed(struct tmesh_region *region);

/*
 * The handle's descriptor, still the library's, good for O_DIRECT, io_uring and mmap. On the
 * module poll() says POLLHUP when the region was revoked, with POLLERR when this handle's lease
 * has lapsed, POLLOUT while nobody else holds the region.
 * On a memfd it can write, as far as the handle may, once this was called; until a seal. Of a
 * private view it is the sealed region's: what was written in the view is not to be read from it.
 * Return: the descriptor; -EPERM (inherited through fork()), or why it cannot be opened to write.
 */
int tmesh_region_fd(struct tmesh_region *region);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_REGION_H */
