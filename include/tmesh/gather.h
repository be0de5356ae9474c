/* SPDX-License-Identifier: MIT */
/*
 * Gather: parts of regions, one behind the other, as a region of its own. See tmesh/tmesh.h for the
 * conventions of all calls. Since 0.1.
 */
#ifndef TMESH_GATHER_H
#define TMESH_GATHER_H

#include <tmesh/region.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif

#endif /* TMESH_GATHER_H */
