/* SPDX-License-Identifier: MIT */
/* The operations of a backend, which the module and memfds implement in their own ways. internal.h
 * includes this file last. */
#ifndef TMESH_BACKEND_H
#define TMESH_BACKEND_H

/* Backends. Each operation returns 0 or a negative errno with @err filled. */
struct tmesh_keep_ops;
struct tmesh_backend_ops {
	enum tmesh_backend backend;
	const struct tmesh_keep_ops *keep; /* keep_internal.h */

	int (*open)(struct tmesh_ctx *ctx, struct tmesh_error *err);
	void (*close)(struct tmesh_ctx *ctx);
	/* In a forked child: release the parent's resources, without locks or allocation. */
	void (*forked)(struct tmesh_ctx *ctx);
	void (*caps)(struct tmesh_ctx *ctx);

	/* These fill in a region made by tmesh_region_new() */
	int (*create)(struct tmesh_region *region, uint64_t bytes, struct tmesh_error *err);
	int (*from_memfd)(struct tmesh_region *region, int fd, uint64_t bytes,
			  struct tmesh_error *err);
	int (*derive)(struct tmesh_region *region, struct tmesh_region *from, uint32_t rights,
		      bool pin, struct tmesh_error *err);
	int (*open_token)(struct tmesh_region *region, const struct tmesh_token_fields *token,
			  uint32_t rights, struct tmesh_error *err);
	/* @fds, as many as @wire calls for, are the region's from here on, also on failure. */
	int (*adopt)(struct tmesh_region *region, const int *fds,
		     const struct tmesh_wire_region *wire, struct tmesh_error *err);

	/* Under the region's lock */
	int (*mmap)(struct tmesh_region *region, int prot, void **addr, struct tmesh_error *err);
	int (*seal)(struct tmesh_region *region, struct tmesh_error *err);
	/* Without the lock: look whether another process has sealed the region. */
	bool (*is_sealed)(const struct tmesh_region *region);
	int (*set_description)(struct tmesh_region *region, const char *text, uint32_t bytes,
			       struct tmesh_error *err);

	int (*read)(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		    struct tmesh_error *err);
	/* Write cheaply to memory that is not mapped yet. write_ready() prepares for that, under
	 * the region's lock. write_cold() copies without it, and a seal waits for the copy. */
	int (*write_ready)(struct tmesh_region *region, struct tmesh_error *err);
	int (*write_cold)(struct tmesh_region *region, uint64_t offset, const void *data,
			  uint64_t bytes, struct tmesh_error *err);
	/* Give a range of its writable mapping its pages now. NULL: it always has them. */
	int (*populate)(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			struct tmesh_error *err);
	/* Give a mapping its pages before its user fills them, just after it was mapped for
	 * writing. NULL: do nothing. */
	void (*prepare)(struct tmesh_region *region);
	int (*revoke)(struct tmesh_region *region, struct tmesh_error *err);
	/* A region of the caller's user, without a handle. NULL where that cannot be. */
	int (*revoke_id)(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_error *err);
	int (*export_dmabuf)(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			     uint32_t rights, int *fd, struct tmesh_error *err);
	int (*token)(struct tmesh_region *region, uint32_t rights, char *token,
		     struct tmesh_error *err);
	/* A descriptor of its own to hand over for @rights, which the caller closes. */
	int (*handle_fd)(struct tmesh_region *region, uint32_t rights, int *fd,
			 struct tmesh_error *err);
	int (*info)(struct tmesh_region *region, struct tmesh_region_info *info,
		    struct tmesh_error *err);
	/* Give region->fd all that the rights allow, for good, because the caller gets its number.
	 * NULL: it always has that. */
	int (*fd_told)(struct tmesh_region *region, struct tmesh_error *err);
	/* Keep it for @ns, whatever becomes of this process; false: that cannot be had. Again for
	 * another time. ctx->lock is held. NULL: never (memfd). */
	bool (*hold)(struct tmesh_region *region, uint64_t ns);
	void (*unhold)(struct tmesh_region *region);
	/* Return how often the region's tokens were opened, if no server counts it. With @hold. */
	uint64_t (*opens)(struct tmesh_region *region);
	/* The region's tokens die; its descriptor and mapping are still there. */
	void (*release)(struct tmesh_region *region);

	/* May this region, released and never shared, serve that request? */
	bool (*pool_fits)(const struct tmesh_region *region, uint64_t bytes,
			  const struct tmesh_region_opts *opts);
	/* Return whether no other process holds the region, as far as the backend can tell. */
	bool (*pool_alone)(struct tmesh_region *region);
	/* Give it the identity of a new region; contents are the caller's business. */
	int (*pool_renew)(struct tmesh_region *region, uint64_t bytes,
			  const struct tmesh_region_opts *opts);

	/* A region's events, as a descriptor for poll() and as they are now. */
	int (*poll_fd)(struct tmesh_region *region, uint32_t events, short *wait,
		       struct tmesh_error *err);
	uint32_t (*events)(struct tmesh_region *region);
	int (*from_fd)(struct tmesh_region *region, int fd, uint64_t bytes,
		       struct tmesh_error *err);
	int (*opaque_fd)(struct tmesh_region *region, int *fd, struct tmesh_error *err);
	int (*reclaim)(struct tmesh_region *region, uint64_t timeout_ns,
		       struct tmesh_reclaim_report *report, struct tmesh_error *err);

	/* Operations of the module alone: NULL on memfd. @region is as for create. */
	int (*from_user)(struct tmesh_region *region, void *addr, uint64_t bytes,
			 struct tmesh_error *err);
	int (*from_dmabuf)(struct tmesh_region *region, int fd, struct tmesh_error *err);
	int (*gather)(struct tmesh_region *region, const struct tmesh_gather_extent *extents,
		      size_t count, struct tmesh_error *err);
	/* @pidfd -1: not bound to a process */
	int (*lease_set)(struct tmesh_region *region, uint64_t ns, int pidfd,
			 struct tmesh_error *err);
	/* -ENODATA: there is none */
	int (*lease_map)(struct tmesh_region *region, struct tmesh_lease_pages *pages,
			 struct tmesh_error *err);
	int (*when_taken)(struct tmesh_region *region, enum tmesh_taken taken,
			  struct tmesh_error *err);
	int (*signal)(struct tmesh_region *region, uint64_t value, struct tmesh_error *err);
	/* @arm: for poll(), without waiting */
	int (*wait)(struct tmesh_region *region, uint64_t value, int64_t timeout_ns,
		    uint64_t *reached, struct tmesh_error *err);

	int (*list)(struct tmesh_ctx *ctx, struct tmesh_region_info **infos, size_t *count,
		    struct tmesh_error *err);
	int (*holders)(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_holder_info **holders,
		       size_t *count, struct tmesh_error *err);
};

extern const struct tmesh_backend_ops tmesh_memfd_ops;
extern const struct tmesh_backend_ops tmesh_kernel_ops;

#endif /* TMESH_BACKEND_H */
