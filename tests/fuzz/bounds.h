/* SPDX-License-Identifier: MIT */
/* Where a layout's elements lie, computed a second time and in 128 bits. */
#ifndef TMESH_FUZZ_BOUNDS_H
#define TMESH_FUZZ_BOUNDS_H

#include "internal.h"

/*
 * Return false for a layout that no tensor can have. Otherwise the elements lie in [*low, *high)
 * around the one with all indices 0. With 8 dimensions a sum of products of 64 bits stays far below
 * 128, except for the element size, which therefore comes last and is bounded.
 */
static inline bool fuzz_bounds(const struct tmesh_layout *layout, __int128 *low, __int128 *high)
{
	unsigned int bits = tmesh_dtype_bits(layout->dtype);

	*low = 0;
	*high = 0;
	if (!bits || layout->ndim < 0 || layout->ndim > TMESH_MAX_DIMS)
		return false;
	for (int i = 0; i < layout->ndim; i++) {
		if (layout->shape[i] < 0)
			return false;
	}
	for (int i = 0; i < layout->ndim; i++) {
		if (!layout->shape[i])
			return true;
	}
	for (int i = 0; i < layout->ndim; i++) {
		__int128 reach = (__int128)(layout->shape[i] - 1) * layout->strides[i];
		__int128 *edge = reach < 0 ? low : high;

		if (__builtin_add_overflow(*edge, reach, edge))
			return false;
	}
	if (__builtin_mul_overflow(*low, bits, low) || __builtin_mul_overflow(*high, bits, high))
		return false;
	*low /= 8;
	*high = (*high + bits) / 8;
	return true;
}

#endif /* TMESH_FUZZ_BOUNDS_H */
