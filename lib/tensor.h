/* SPDX-License-Identifier: MIT */
/* What channels need of tensors beyond the public calls. */
#ifndef TMESH_TENSOR_INTERNAL_H
#define TMESH_TENSOR_INTERNAL_H

#include "internal.h"

/* The caller holds the only reference. */
bool tmesh_tensor_alone(const struct tmesh_tensor *tensor);
/*
 * Give a tensor that only the caller holds another place in its region instead of making a new
 * one; @layout and its @bytes have been checked. False: somebody else holds it, or it is of
 * another region, and nothing has changed.
 */
bool tmesh_tensor_reuse(struct tmesh_tensor *tensor, const struct tmesh_region *region,
			const struct tmesh_layout *layout, uint64_t bytes);

#endif /* TMESH_TENSOR_INTERNAL_H */
