// SPDX-License-Identifier: MIT
/*
 * Layouts: dtype, shape and strides, and whether they stay inside a region.
 *
 * Layouts come from refs and from DLPack producers, so nothing here trusts a number:
 * every sum and product is checked for overflow before it is used.
 */
#include <inttypes.h>

#include "layout.h"

static int check_type(enum tmesh_dtype dtype, int32_t ndim, const int64_t *shape,
		      struct tmesh_error *err)
{
	if (!tmesh_dtype_bits(dtype))
		return tmesh_fail(err, -EINVAL, "unknown dtype %d", (int)dtype);
	if (ndim < 0 || ndim > TMESH_MAX_DIMS)
		return tmesh_fail(err, -EINVAL, "a tensor has 0 to %d dimensions, not %d",
				  TMESH_MAX_DIMS, (int)ndim);
	if (ndim && !shape)
		return tmesh_fail(err, -EINVAL, "%d dimensions, but no shape is given", (int)ndim);
	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] < 0)
			return tmesh_fail(err, -EINVAL, "dimension %d is negative: %" PRId64,
					  (int)i, shape[i]);
	}
	return 0;
}

static int check_device(const struct tmesh_layout *layout, struct tmesh_error *err)
{
	switch (layout->device_type) {
	case TMESH_DEVICE_CPU:
		if (layout->device_id != 0)
			return tmesh_fail(err, -EINVAL, "the CPU is device 0, not %d",
					  (int)layout->device_id);
		return 0;
	case TMESH_DEVICE_CUDA:
		if (layout->device_id < 0)
			return tmesh_fail(err, -EINVAL, "device number %d is negative",
					  (int)layout->device_id);
		return 0;
	}
	return tmesh_fail(err, -EINVAL, "unknown device type %d", (int)layout->device_type);
}

int tmesh_layout_contiguous(struct tmesh_layout *layout, enum tmesh_dtype dtype, int32_t ndim,
			    const int64_t *shape, struct tmesh_error *err)
{
	struct tmesh_layout made = {.dtype = dtype, .ndim = ndim};
	int64_t stride = 1;
	int rc = TMESH_NEED(err, layout);

	if (rc)
		return rc;
	rc = check_type(dtype, ndim, shape, err);
	if (rc)
		return rc;

	for (int32_t i = ndim - 1; i >= 0; i--) {
		made.shape[i] = shape[i];
		made.strides[i] = stride;
		/* An empty dimension counts as one, so that the strides stay usable. */
		if (__builtin_mul_overflow(stride, shape[i] ? shape[i] : 1, &stride))
			return tmesh_fail(err, -EOVERFLOW, "the shape has more than 2^63 elements");
	}
	*layout = made;
	return 0;
}

bool tmesh_layout_is_contiguous(const struct tmesh_layout *layout)
{
	int64_t stride = 1;

	for (int32_t i = 0; i < layout->ndim; i++) {
		if (layout->shape[i] == 0)
			return true;
	}
	for (int32_t i = layout->ndim - 1; i >= 0; i--) {
		/* The stride of a dimension of one element is never used. */
		if (layout->shape[i] == 1)
			continue;
		if (layout->strides[i] != stride ||
		    __builtin_mul_overflow(stride, layout->shape[i], &stride))
			return false;
	}
	return true;
}

/*
 * Return the bytes that the elements span: [*low, *high) relative to the element with all indices
 * 0, with *low <= 0. False: they do not fit in 63 bits.
 */
static bool layout_span(const struct tmesh_layout *layout, int64_t element, int64_t *low,
			int64_t *high)
{
	*low = 0;
	*high = element;
	for (int32_t i = 0; i < layout->ndim; i++) {
		int64_t reach;

		if (__builtin_mul_overflow(layout->shape[i] - 1, layout->strides[i], &reach) ||
		    __builtin_mul_overflow(reach, element, &reach))
			return false;
		if (__builtin_add_overflow(reach < 0 ? *low : *high, reach, reach < 0 ? low : high))
			return false;
	}
	return true;
}

int tmesh_layout_measure(const struct tmesh_layout *layout, uint64_t *extent, int64_t *low,
			 int64_t *high, struct tmesh_error *err)
{
	unsigned int bits;
	int64_t count = 1;
	int64_t bytes;
	int rc;

	rc = check_type(layout->dtype, layout->ndim, layout->shape, err);
	if (!rc)
		rc = check_device(layout, err);
	if (rc)
		return rc;

	*extent = 0;
	*low = 0;
	*high = 0;
	for (int32_t i = 0; i < layout->ndim; i++) {
		if (layout->shape[i] == 0)
			return 0;
	}

	bits = tmesh_dtype_bits(layout->dtype);
	for (int32_t i = 0; i < layout->ndim; i++) {
		if (__builtin_mul_overflow(count, layout->shape[i], &count))
			return tmesh_fail(err, -EOVERFLOW, "the shape has more than 2^63 elements");
	}

	if (bits < 8) {
		int64_t per_byte = 8 / bits;

		if (count % per_byte || !tmesh_layout_is_contiguous(layout))
			return tmesh_fail(err, -EINVAL,
					  "%s is packed: it has to be contiguous and to fill whole "
					  "bytes",
					  tmesh_dtype_name(layout->dtype));
		*extent = (uint64_t)(count / per_byte);
		*high = count / per_byte;
		return 0;
	}

	if (__builtin_mul_overflow(count, bits / 8, &bytes))
		return tmesh_fail(err, -EOVERFLOW, "the tensor has more than 2^63 bytes");
	if (!layout_span(layout, bits / 8, low, high))
		return tmesh_fail(err, -EOVERFLOW, "the strides reach beyond 2^63 bytes");
	*extent = (uint64_t)bytes;
	return 0;
}

int tmesh_layout_check(const struct tmesh_layout *layout, uint64_t region_bytes, uint64_t *extent,
		       struct tmesh_error *err)
{
	uint64_t bytes, end;
	int64_t low, high;
	int rc = TMESH_NEED(err, layout);

	if (rc)
		return rc;
	rc = tmesh_layout_measure(layout, &bytes, &low, &high, err);
	if (rc)
		return rc;
	if (layout->offset < 0 - (uint64_t)low)
		return tmesh_fail(err, -EINVAL,
				  "negative strides reach %" PRIu64 " bytes before the region",
				  0 - (uint64_t)low - layout->offset);
	if (__builtin_add_overflow(layout->offset, (uint64_t)high, &end))
		return tmesh_fail(err, -EOVERFLOW, "offset %" PRIu64 " overflows", layout->offset);
	if (end > region_bytes)
		return tmesh_fail(err, -EINVAL,
				  "the tensor ends at byte %" PRIu64 " of a region of %" PRIu64,
				  end, region_bytes);
	if (extent)
		*extent = bytes;
	return 0;
}
