/* SPDX-License-Identifier: MIT */
/*
 * Region: a piece of memory with one lifetime, and this process's handle to it.
 * See tmesh/tmesh.h for the conventions of all calls. Since 0.1.
 * Maturity: stable.
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
					      * tmesh_region_info() tells how many it has.
					      * memfd: also where more than an eighth of the
					      * memory is unused then. Other regions of 2 MiB
					      * and more have them without this flag */
	TMESH_REGION_NODE = 1 << 2,	     /* memory of opts->node only */
	TMESH_REGION_GID = 1 << 3,	     /* opts->gid is given */
	TMESH_REGION_NO_PIN = 1 << 4,	     /* refuse pinning handles */
	TMESH_REGION_UNINITIALIZED = 1 << 5, /* contents may be what this context itself put
					      * into a released region: only for callers who
					      * overwrite all of it before others can see it */
	TMESH_REGION_UNSEALED = 1 << 6,	     /* tmesh_tensor_put() leaves the tensor writable;
					      * tmesh_tensor_create() never seals */
	TMESH_REGION_REUSE = 1 << 7,	     /* the last unref ends tokens for reading. Once the
					      * kernel knows of no other holder, the pool may make
					      * another region of the memory. Tensors are put
					      * UNSEALED */
};

struct tmesh_arena;

struct tmesh_region_opts {
	size_t size;	   /* sizeof(struct tmesh_region_opts) */
	uint32_t flags;	   /* enum tmesh_region_flags */
	uint32_t mode;	   /* who may open a token: 0600 (the default for 0) or 0640, 0660
			    * ...; memfd: only 0600, else -EOPNOTSUPP */
	gid_t gid;	   /* group of the region */
	int node;	   /* NUMA node */
	uint32_t hold_ms;  /* how long it outlives its last holder, at most 1000; memfd: only
			    * 0, else -EOPNOTSUPP */
	const char *label; /* a name for people, at most TMESH_LABEL_LEN bytes of UTF-8
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
/* The last reference unmaps and closes the region. If no other process can hold it, or it was made
 * with REUSE, it may go to the pool. */
void tmesh_region_unref(struct tmesh_region *region);

/*
 * Map the whole region; repeated calls return the same address. @rights is TMESH_READ or
 * TMESH_READ | TMESH_WRITE. Each successful call is paired with one tmesh_region_unmap();
 * the address is good until the last of them. Touching memory of a region that was revoked, or
 * whose lease has lapsed, raises SIGBUS, or reads zeros where
 * the context or the lease said TMESH_TAKEN_ZERO.
 *
 * A child that is forked meanwhile has the mapping too, as long as it lives; a writable one
 * prevents the seal. A child inherits only mappings that such calls made; writes leave it none.
 *
 * Return: 0; -EINVAL (@rights), -EACCES (not writable), -EPERM (sealed, or inherited), -ESTALE,
 * -ENOMEM, -EOPNOTSUPP (regions that are not mapped: of _from_user, of _from_fd).
 */
int tmesh_region_map(struct tmesh_region *region, uint32_t rights, void **addr,
		     struct tmesh_error *err);
void tmesh_region_unmap(struct tmesh_region *region, uint32_t rights);

/*
 * Copy bytes in or out without a mapping of the caller; counted as copies. Writing uses the
 * cheapest way (cold memory: without a fault for each page; warm and large: past the caches).
 * Reading never raises a signal: memory that was taken away gives -ESTALE. Writing does the same
 * where such memory reads as zeros (TMESH_TAKEN_ZERO).
 */
int tmesh_region_write(struct tmesh_region *region, uint64_t offset, const void *data,
		       uint64_t bytes, struct tmesh_error *err);
int tmesh_region_read(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		      struct tmesh_error *err);

/*
 * Take the memory of a range now, before the caller fills it through its own mapping. It comes in
 * whole pages of 2 MiB if the machine has them and the region may have them, else in small pages. A
 * region may have them from 2 MiB on, if at most an eighth would be unused, or with TRY_HUGE.
 *
 * A reader of a file calls it for each piece before it reads the piece, and first before it maps
 * the region. Otherwise the first mapping for writing takes all memory in pages of 2 MiB at once,
 * up to 256 MiB or an eighth of the free memory. Memory that is there stays as it is. On the module
 * all memory is there, and the call does nothing.
 *
 * Return: 0; -EINVAL (beyond the end), -EACCES, -EPERM (sealed), -ENOMEM, -ESTALE.
 */
int tmesh_region_populate(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			  struct tmesh_error *err);

/*
 * Make the region immutable for all processes and for ever. Needs MANAGE. If this region object
 * has the only writable mapping, the mapping stays at its address and becomes read-only. No thread
 * may write through it during or after the call.
 *
 * Return: 0 (also if the region was sealed already); -EACCES, -EPERM (inherited), -ESTALE; -EBUSY:
 * another writable mapping, export or pin exists. The message names those that can be found.
 */
int tmesh_region_seal(struct tmesh_region *region, struct tmesh_error *err);

/* Make another handle on the same region, with fewer rights. A forked child makes its own of a
 * region that it inherited. */
int tmesh_region_derive(struct tmesh_region *region, uint32_t rights, struct tmesh_region **out,
			struct tmesh_error *err);

/*
 * Make a pinning handle on a sealed region: read-only, and the region cannot be taken away while
 * the handle exists. memfd: works for any sealed region.
 *
 * Return: 0; -EINVAL (not sealed), -EPERM (its owner refuses pins; module: this handle has a
 * lease), -EOPNOTSUPP (a gather view).
 */
int tmesh_region_pin(struct tmesh_region *region, struct tmesh_region **out,
		     struct tmesh_error *err);

/*
 * A private view of a sealed region, copy-on-write: a region object with READ and WRITE whose
 * mapping shows the region's pages until this process writes to one. That page is then the
 * process's own copy, which no other process sees and which ends with the view. The view keeps
 * the region from being taken away, as a pinning handle does. It is mapped, read and written;
 * calls that would hand it to others are refused (-EOPNOTSUPP): put what was written into a new
 * region. A forked child has its own copy of the mapping, as of its other private memory.
 *
 * Return: 0; -EINVAL (not sealed); -EPERM (as tmesh_region_pin(); inherited); -EACCES;
 * -EOPNOTSUPP (a private view; no memory that can be mapped).
 */
int tmesh_region_private(struct tmesh_region *region, struct tmesh_region **out,
			 struct tmesh_error *err);

/*
 * Take the region back from all holders. Needs MANAGE. memfd: only regions of
 * tmesh_region_from_fd(), and only by the process that made them; the libraries of the holders
 * learn of it and release the region.
 *
 * Return: 0; -EBUSY (pinned: the message names the holders), -EOPNOTSUPP (memfd).
 */
int tmesh_region_revoke(struct tmesh_region *region, struct tmesh_error *err);

/*
 * Take a region of the caller's user back by its id, without a handle. Memory of it that other
 * processes hold stays charged to its owner. Module only.
 *
 * Return: 0; -ENOENT (no region that the caller may see), -EPERM (another user's), -ESTALE (revoked
 * before); -EBUSY, -EOPNOTSUPP: as tmesh_region_revoke().
 */
int tmesh_region_revoke_id(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_error *err);

/* The uses that still keep memory that was taken back. */
struct tmesh_reclaim_report {
	size_t size;	       /* in: sizeof(struct tmesh_reclaim_report) */
	uint64_t pinned_bytes; /* in pages that devices or the kernel have in use */
	uint32_t exports;      /* dma-bufs alive */
	uint32_t attachments;  /* devices attached to them */
};

/*
 * Take the region back and wait until its memory is free, at most @timeout_ns (0: do not wait;
 * negative: no limit). The call may be repeated, also on a region that was revoked. @report may be
 * NULL.
 *
 * Return: as _revoke; -ETIMEDOUT, -EINTR: the region is revoked, but something still uses memory.
 * The message names devices (memfd: processes), and @report is filled.
 */
int tmesh_region_reclaim(struct tmesh_region *region, int64_t timeout_ns,
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
 * Write the token that names the region with @rights to @token (TMESH_TOKEN_SIZE bytes). The same
 * rights give the same token. The token is valid as long as the region (module) or this region
 * object (memfd) exists, for the same user or as mode and group allow.
 *
 * Return: 0; -EINVAL, -EACCES (@rights), -ESTALE, -EPERM (inherited; TMESH_WRITE, and the region is
 * sealed; module: this handle has a lease); memfd also -EACCES (runtime directory), -EMFILE.
 */
int tmesh_region_token(struct tmesh_region *region, uint32_t rights, char *token,
		       struct tmesh_error *err);

/*
 * Redeem a token. Rights beyond the token's give -EACCES; on memfds -EPERM where writing is one of
 * them and the memory is known to be sealed: no token gives that.
 * Return: 0; -EPROTO (not a token), -ENOENT, -EACCES, -ETIMEDOUT, -EOPNOTSUPP (a token of
 * a backend that this context does not have).
 */
int tmesh_region_open(struct tmesh_ctx *ctx, const char *token, uint32_t rights,
		      struct tmesh_region **out, struct tmesh_error *err);

/*
 * Hand over by a connected Unix socket (stream or seqpacket): one message with one
 * descriptor (memfd: up to three of a region of tmesh_region_from_fd()). The receiver gets a
 * handle of its own, with @rights. Both wait at most the context's timeout. _recv refuses any other
 * message (-EPROTO) and another backend's (-EOPNOTSUPP), and closes every descriptor it did not ask
 * for. Errors: -EPIPE when the peer is gone, -EPERM for TMESH_WRITE when the region is sealed. If
 * @socket is no Unix socket: -EBADF, -ENOTSOCK, -EINVAL (another family).
 */
int tmesh_region_send(struct tmesh_region *region, int socket, uint32_t rights,
		      struct tmesh_error *err);
int tmesh_region_recv(struct tmesh_ctx *ctx, int socket, struct tmesh_region **out,
		      struct tmesh_error *err);

/* Describe the region's contents for people, in at most TMESH_DESCRIPTION_LEN bytes. Needs MANAGE,
 * before the seal. For a tensor the library writes the ref without its token. -EOPNOTSUPP: memfd, a
 * region of tmesh_region_from_memfd(). */
int tmesh_region_set_description(struct tmesh_region *region, const char *text,
				 struct tmesh_error *err);

/* Without a system call: the region's length as its maker asked for it, the rights of this handle,
 * and the id. */
uint64_t tmesh_region_bytes(const struct tmesh_region *region);
uint32_t tmesh_region_rights(const struct tmesh_region *region);
uint64_t tmesh_region_id(const struct tmesh_region *region);
/* Whether any process has sealed the region. At most one system call; none after the first true. */
bool tmesh_region_is_sealed(struct tmesh_region *region);

/*
 * The handle's descriptor, for O_DIRECT, io_uring and mmap. It still belongs to the library. With
 * the module poll() returns POLLHUP when the region was revoked, POLLHUP | POLLERR when this
 * handle's lease has lapsed, and POLLOUT while there is no other holder. On memfd the descriptor
 * can be written to if the handle has WRITE, until the seal. The descriptor of a private view is
 * that of the sealed region: bytes written in the view cannot be read from it.
 *
 * Return: the descriptor; -EPERM (inherited through fork()), or why it cannot be opened to write.
 */
int tmesh_region_fd(struct tmesh_region *region);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_REGION_H */
