/* SPDX-License-Identifier: MIT */
/* Functions on layouts for refs and DLPack, beyond the public calls. */
#ifndef TMESH_LAYOUT_H
#define TMESH_LAYOUT_H

#include "internal.h"

/*
 * Check all of a layout but its place in a region.
 *
 * @extent is the count of elements times their size. The elements are in the bytes [@low, @high)
 * around the one with all indices 0, with @low <= 0. All three are 0 if there are no elements.
 * Return: 0; -EINVAL, -EOVERFLOW as tmesh_layout_check().
 */
int tmesh_layout_measure(const struct tmesh_layout *layout, uint64_t *extent, int64_t *low,
			 int64_t *high, struct tmesh_error *err);

#endif /* TMESH_LAYOUT_H */
