/* SPDX-License-Identifier: MIT */
/*
 * Identify a region's memory by the kernel's word: on memfd a region's id comes from its maker.
 */
#ifndef TMESH_ENGINE_IDENTITY_H
#define TMESH_ENGINE_IDENTITY_H

#include "common/error.h"

struct memory_identity {
	uint64_t device, memory;
};

int memory_identify(struct tmesh_region *region, struct memory_identity *out,
		    struct tmesh_error *err);
/* Return whether two handles belong to one region. */
bool memory_is_same(struct tmesh_region *left, struct tmesh_region *right);

#endif /* TMESH_ENGINE_IDENTITY_H */
