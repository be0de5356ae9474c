// SPDX-License-Identifier: MIT
/*
 * Copying tensors whose elements are not contiguous. A region is read in the order of its bytes, in
 * pieces, each of them once. The backend reads it: a mapping could raise SIGBUS if the region is
 * taken away.
 */
#include <stdlib.h>
#include <string.h>

#include "tensor_internal.h"

#define PIECE ((int64_t)1 << 20)
/* The cost of a read beside its bytes, expressed in bytes. */
#define PAGE 4096

/* Runs of bytes that are contiguous on both sides, and their distances, in bytes. */
struct walk {
	int64_t run;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
	int64_t from[TMESH_MAX_DIMS];
	int64_t to[TMESH_MAX_DIMS];
};

/*
 * Plan a copy from @layout, none of whose dimensions is 0, to C order. A dimension of 1 is never
 * stepped through, so its stride may be any number, in bytes even one beyond 64 bits.
 */
static struct walk walk_of(const struct tmesh_layout *layout)
{
	int64_t element = tmesh_dtype_bits(layout->dtype) / 8;
	struct walk walk = {.run = element};
	int32_t outer = layout->ndim;
	int64_t to;

	while (outer &&
	       (layout->shape[outer - 1] == 1 || layout->strides[outer - 1] * element == walk.run))
		walk.run *= layout->shape[--outer];
	for (int32_t i = 0; i < outer; i++)
		walk.ndim += layout->shape[i] != 1;
	to = walk.run;
	for (int32_t i = outer - 1, at = walk.ndim; at; i--) {
		if (layout->shape[i] == 1)
			continue;
		walk.shape[--at] = layout->shape[i];
		walk.from[at] = layout->strides[i] * element;
		walk.to[at] = to;
		to *= layout->shape[i];
	}
	return walk;
}

static void swap(int64_t *a, int64_t *b)
{
	int64_t kept = *a;

	*a = *b;
	*b = kept;
}

/* Order the steps: the widest through the source outermost. */
static void sort_by_source(struct walk *walk)
{
	for (int32_t i = 1; i < walk->ndim; i++) {
		for (int32_t j = i; j && llabs(walk->from[j - 1]) < llabs(walk->from[j]); j--) {
			swap(&walk->shape[j - 1], &walk->shape[j]);
			swap(&walk->from[j - 1], &walk->from[j]);
			swap(&walk->to[j - 1], &walk->to[j]);
		}
	}
}

/* Copy the dimensions from @first on; at @dst and @src their indices are 0. */
static void copy(const struct walk *walk, int32_t first, char *dst, const char *src)
{
	int64_t index[TMESH_MAX_DIMS] = {0};
	int32_t i;

	do {
		tmesh_copy(dst, src, (size_t)walk->run);
		for (i = walk->ndim - 1; i >= first; i--) {
			if (++index[i] < walk->shape[i]) {
				src += walk->from[i];
				dst += walk->to[i];
				break;
			}
			src -= (walk->shape[i] - 1) * walk->from[i];
			dst -= (walk->shape[i] - 1) * walk->to[i];
			index[i] = 0;
		}
	} while (i >= first);
}

void tmesh_pack(void *dst, const void *src, const struct tmesh_layout *layout)
{
	struct walk walk = walk_of(layout);

	copy(&walk, 0, dst, src);
}

/* Return the bytes that the dimensions from @first on span; @before of them come first. */
static int64_t span(const struct walk *walk, int32_t first, int64_t *before)
{
	int64_t bytes = walk->run;

	*before = 0;
	for (int32_t i = first; i < walk->ndim; i++) {
		int64_t reach = (walk->shape[i] - 1) * walk->from[i];

		bytes += llabs(reach);
		*before -= reach < 0 ? reach : 0;
	}
	return bytes;
}

/* Return whether reading the @bytes that they span is cheaper than reading each run by itself. This
 * also bounds the cost of strides that another process chose. */
static bool is_dense(const struct walk *walk, int32_t first, int64_t bytes)
{
	int64_t runs = 1;

	for (int32_t i = first; i < walk->ndim && runs < PIECE; i++)
		if (__builtin_mul_overflow(runs, walk->shape[i], &runs))
			return true;
	return bytes <= walk->run || (bytes - walk->run) / PAGE < runs;
}

/* Read the dimensions from @first on; at @offset of the region and at @dst their indices are 0. */
static int read_from(struct tmesh_region *region, const struct walk *walk, int32_t first,
		     int64_t offset, char *dst, char *piece, struct tmesh_error *err)
{
	int64_t before, bytes = span(walk, first, &before), inner, step;
	struct walk part;
	int rc = 0;

	if (first == walk->ndim)
		return tmesh_region_fetch(region, (uint64_t)offset, dst, (uint64_t)bytes, err);
	if (bytes <= PIECE && is_dense(walk, first, bytes)) {
		rc = tmesh_region_fetch(region, (uint64_t)(offset - before), piece, (uint64_t)bytes,
					err);
		if (!rc)
			copy(walk, first, dst, piece + before);
		return rc;
	}
	inner = span(walk, first + 1, &before);
	step = bytes > PIECE && inner < PIECE ? 1 + (PIECE - inner) / llabs(walk->from[first]) : 1;
	part = *walk;
	for (int64_t i = 0; !rc && i < walk->shape[first]; i += step) {
		part.shape[first] = step < walk->shape[first] - i ? step : walk->shape[first] - i;
		rc = read_from(region, &part, first + (step == 1), offset + i * walk->from[first],
			       dst + i * walk->to[first], piece, err);
	}
	return rc;
}

static int read_strided(struct tmesh_tensor *tensor, void *data, struct tmesh_error *err)
{
	struct walk walk = walk_of(&tensor->layout);
	char *piece = malloc(PIECE);
	int rc;

	if (!piece)
		return tmesh_fail(err, -ENOMEM, "read: no memory for a piece of 1 MiB");
	sort_by_source(&walk);
	rc = read_from(tensor->region, &walk, 0, (int64_t)tensor->layout.offset, data, piece, err);
	free(piece);
	return rc;
}

int tmesh_tensor_read(struct tmesh_tensor *tensor, void *data, uint64_t bytes,
		      struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, tensor);

	if (!rc && bytes)
		rc = TMESH_NEED(err, data);
	if (rc)
		return rc;
	if (bytes != tensor->bytes)
		return tmesh_fail(err, -EINVAL,
				  "read: there is room for %llu bytes, and the tensor has %llu",
				  (unsigned long long)bytes, (unsigned long long)tensor->bytes);
	if (!bytes || tmesh_layout_is_contiguous(&tensor->layout))
		rc = tmesh_region_fetch(tensor->region, tensor->layout.offset, data, bytes, err);
	else
		rc = read_strided(tensor, data, err);
	if (!rc && bytes)
		tmesh_count_copy(tensor->region->ctx, bytes);
	return rc;
}
