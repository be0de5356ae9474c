/* SPDX-License-Identifier: MIT */
/* What channels need of tensors beyond the public calls. */
#ifndef TMESH_TENSOR_INTERNAL_H
#define TMESH_TENSOR_INTERNAL_H

#include "internal.h"

/* The caller holds the only reference. */
bool tmesh_tensor_alone(const struct tmesh_tensor *tensor);
/* A further reference on a tensor which, while the caller's is the only one, no other thread can
 * reach: then it costs no locked instruction. */
struct tmesh_tensor *tmesh_tensor_ref_own(struct tmesh_tensor *tensor);
/*
 * Make a tensor that only the caller holds another one instead of a new one; @layout and its @bytes
 * have been checked. False: somebody else holds it, and nothing has changed.
 */
bool tmesh_tensor_reuse(struct tmesh_tensor *tensor, struct tmesh_region *region,
			const struct tmesh_layout *layout, uint64_t bytes);

#endif /* TMESH_TENSOR_INTERNAL_H */
