/* SPDX-License-Identifier: MIT */
/* Declarations that the files of the kernel backend share. */
#ifndef TMESH_KERNEL_H
#define TMESH_KERNEL_H

#include <linux/tmesh.h>

#include "wire.h"

/* Fill @err from errno, in the module's terms. */
int tmesh_kernel_fail(struct tmesh_error *err, const char *what) __attribute__((cold));
int tmesh_kernel_info(int fd, struct tmesh_info *info);
/* Fill a region by the module's report on its handle. */
int tmesh_kernel_learn(struct tmesh_region *region, struct tmesh_error *err);
/* Return -EBUSY: pinning handles forbid the revocation; the error names some of them. */
int tmesh_kernel_pinned(const struct tmesh_revoke *revoke, const struct tmesh_holder *pins,
			uint32_t room, struct tmesh_error *err);

/* kernel_keep.c */
bool tmesh_kernel_hold(struct tmesh_region *region, uint64_t ns);
void tmesh_kernel_unhold(struct tmesh_region *region);
uint64_t tmesh_kernel_opens(struct tmesh_region *region);

/* kernel_holders.c */
int tmesh_kernel_region_info(struct tmesh_region *region, struct tmesh_region_info *info,
			     struct tmesh_error *err);
int tmesh_kernel_list(struct tmesh_ctx *ctx, struct tmesh_region_info **infos, size_t *count,
		      struct tmesh_error *err);
int tmesh_kernel_holders(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_holder_info **holders,
			 size_t *count, struct tmesh_error *err);

/* kernel_sources.c */
int tmesh_kernel_from_user(struct tmesh_region *region, void *addr, uint64_t bytes,
			   struct tmesh_error *err);
int tmesh_kernel_from_dmabuf(struct tmesh_region *region, int fd, struct tmesh_error *err);
int tmesh_kernel_from_fd(struct tmesh_region *region, int fd, uint64_t bytes,
			 struct tmesh_error *err);
int tmesh_kernel_opaque_fd(struct tmesh_region *region, int *fd, struct tmesh_error *err);
int tmesh_kernel_gather(struct tmesh_region *region, const struct tmesh_gather_extent *extents,
			size_t count, struct tmesh_error *err);

/* kernel_lease.c */
int tmesh_kernel_lease_set(struct tmesh_region *region, uint64_t ns, int pidfd,
			   struct tmesh_error *err);
int tmesh_kernel_lease_map(struct tmesh_region *region, struct tmesh_lease_pages *pages,
			   struct tmesh_error *err);
int tmesh_kernel_when_taken(struct tmesh_region *region, enum tmesh_taken taken,
			    struct tmesh_error *err);
int tmesh_kernel_reclaim(struct tmesh_region *region, uint64_t timeout_ns,
			 struct tmesh_reclaim_report *report, struct tmesh_error *err);
int tmesh_kernel_poll_fd(struct tmesh_region *region, uint32_t events, short *wait,
			 struct tmesh_error *err);
uint32_t tmesh_kernel_events(struct tmesh_region *region);
int tmesh_kernel_signal(struct tmesh_region *region, uint64_t value, struct tmesh_error *err);
int tmesh_kernel_wait(struct tmesh_region *region, uint64_t value, int64_t timeout_ns,
		      uint64_t *reached, struct tmesh_error *err);

#endif /* TMESH_KERNEL_H */
