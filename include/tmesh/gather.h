/* SPDX-License-Identifier: MIT */
/*
 * Gather: parts of regions, one behind the other, as a region of its own. See tmesh/tmesh.h for the
 * conventions of all calls. Since 0.1.
 * Maturity: stable.
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
 * Make a gather view: parts of regions, one behind the other, as a region of its own. @rights is
 * READ or READ | WRITE. No source may have less. The view keeps its sources alive, and is
 * revoked when one of them is revoked. A view cannot be sealed or pinned.
 *
 * Return: 0. For the parts: -EINVAL (not whole pages; outside a source; no parts, or more than
 * 1,048,576; a writable view that shows a page twice). For the sources: -EACCES, -EPERM (rights;
 * inherited); -ELOOP (a view of views); -EOPNOTSUPP (memfd; a source that is not the module's own
 * memory). Also -EDQUOT, -ENOMEM.
 */
int tmesh_region_gather(struct tmesh_ctx *ctx, const struct tmesh_gather_extent *extents,
			size_t count, uint32_t rights, const struct tmesh_region_opts *opts,
			struct tmesh_region **out, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_GATHER_H */
