/* SPDX-License-Identifier: MIT */
/* Declarations that the files about bundles share. A finished bundle never changes, so it needs no
 * lock. */
#ifndef TMESH_BUNDLE_INTERNAL_H
#define TMESH_BUNDLE_INTERNAL_H

#include "bundle_index.h"

struct tmesh_bundle {
	atomic_uint refs;
	struct tmesh_ctx *ctx; /* alive as long as the index region */
	struct tmesh_region *index;
	struct tmesh_region **regions;
	size_t count; /* of regions */
	void *data;   /* this process's own copy of the index */
	struct tmesh_bundle_view view;
};

/*
 * Make a bundle of the regions, and read the index from its region. On success alone the bundle
 * owns the references. The array stays the caller's.
 */
int tmesh_bundle_adopt(struct tmesh_ctx *ctx, struct tmesh_region *index,
		       struct tmesh_region **regions, size_t count, struct tmesh_bundle **out,
		       struct tmesh_error *err);
/* Drop references on @count regions, of which any may be NULL. */
void tmesh_bundle_drop(struct tmesh_region **regions, size_t count);

#endif /* TMESH_BUNDLE_INTERNAL_H */
