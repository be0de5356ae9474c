// SPDX-License-Identifier: MIT
/* Dtypes and layouts: accepted ones, refused ones, and arithmetic that never wraps. */
#include "unit.h"

static struct tmesh_layout layout(enum tmesh_dtype dtype, int32_t ndim, const int64_t *shape,
				  const int64_t *strides, uint64_t offset)
{
	struct tmesh_layout made = {.dtype = dtype, .ndim = ndim, .offset = offset};

	memcpy(made.shape, shape, sizeof(int64_t) * (size_t)ndim);
	memcpy(made.strides, strides, sizeof(int64_t) * (size_t)ndim);
	return made;
}

#define LIST(...) ((const int64_t[]){__VA_ARGS__})

UNIT(test_dtype_names)
{
	int count = 0;

	for (int i = 1; i < 256; i++) {
		const char *name = tmesh_dtype_name((enum tmesh_dtype)i);

		assert_true(!name == !tmesh_dtype_bits((enum tmesh_dtype)i));
		if (!name)
			continue;
		assert_int_equal(tmesh_dtype_from_name(name), i);
		count++;
	}
	assert_int_equal(count, TMESH_FLOAT4_E2M1FN);
	assert_int_equal(tmesh_dtype_bits(TMESH_COMPLEX128), 128);
	assert_int_equal(tmesh_dtype_bits(TMESH_FLOAT4_E2M1FN), 4);
}

UNIT(test_dtype_unknown)
{
	assert_int_equal(tmesh_dtype_from_name(""), TMESH_DTYPE_INVALID);
	assert_int_equal(tmesh_dtype_from_name("float"), TMESH_DTYPE_INVALID);
	assert_int_equal(tmesh_dtype_from_name("float322"), TMESH_DTYPE_INVALID);
	assert_int_equal(tmesh_dtype_bits(TMESH_DTYPE_INVALID), 0);
	assert_int_equal(tmesh_dtype_bits((enum tmesh_dtype) - 1), 0);
	assert_null(tmesh_dtype_name((enum tmesh_dtype)1000));
}

UNIT(test_contiguous)
{
	struct tmesh_layout made;

	assert_ok(tmesh_layout_contiguous(&made, TMESH_FLOAT32, 3, LIST(2, 3, 4), err));
	assert_int_equal(made.strides[0], 12);
	assert_int_equal(made.strides[1], 4);
	assert_int_equal(made.strides[2], 1);
	assert_int_equal(made.offset, 0);
	assert_true(tmesh_layout_is_contiguous(&made));

	assert_ok(tmesh_layout_contiguous(&made, TMESH_INT8, 0, NULL, err));
	assert_int_equal(made.ndim, 0);
	assert_true(tmesh_layout_is_contiguous(&made));

	/* Strides stay usable where there is nothing: as NumPy has them. */
	assert_ok(tmesh_layout_contiguous(&made, TMESH_INT8, 3, LIST(2, 0, 5), err));
	assert_int_equal(made.strides[0], 5);
	assert_int_equal(made.strides[1], 5);
	assert_int_equal(made.strides[2], 1);
	assert_true(tmesh_layout_is_contiguous(&made));
}

UNIT(test_contiguous_refused)
{
	const struct tmesh_layout before = layout(TMESH_INT16, 1, LIST(7), LIST(1), 42);
	struct tmesh_layout made = before;

	assert_refused(tmesh_layout_contiguous(&made, 0, 1, LIST(1), err), -EINVAL, "dtype");
	assert_refused(tmesh_layout_contiguous(&made, 99, 1, LIST(1), err), -EINVAL, "dtype");
	assert_refused(tmesh_layout_contiguous(&made, TMESH_INT8, 1, NULL, err), -EINVAL,
		       "no shape");
	assert_refused(tmesh_layout_contiguous(&made, TMESH_INT8, -1, LIST(1), err), -EINVAL,
		       "dimensions");
	assert_refused(
		tmesh_layout_contiguous(&made, TMESH_INT8, 9, LIST(1, 1, 1, 1, 1, 1, 1, 1, 1), err),
		-EINVAL, "dimensions");
	assert_refused(tmesh_layout_contiguous(&made, TMESH_INT8, 2, LIST(1, -1), err), -EINVAL,
		       "negative");
	assert_refused(tmesh_layout_contiguous(&made, TMESH_INT8, 2, LIST(INT64_MAX, 2), err),
		       -EOVERFLOW, "2^63");
	assert_memory_equal(&made, &before, sizeof(made));
}

UNIT(test_is_contiguous)
{
	struct tmesh_layout made;

	made = layout(TMESH_INT16, 2, LIST(3, 4), LIST(1, 3), 0);
	assert_false(tmesh_layout_is_contiguous(&made));
	made = layout(TMESH_INT16, 2, LIST(3, 4), LIST(5, 1), 0);
	assert_false(tmesh_layout_is_contiguous(&made));
	/* The stride of a dimension of one element does not matter. */
	made = layout(TMESH_INT16, 3, LIST(3, 1, 4), LIST(4, 77, 1), 0);
	assert_true(tmesh_layout_is_contiguous(&made));
	made = layout(TMESH_INT16, 1, LIST(4), LIST(0), 0);
	assert_false(tmesh_layout_is_contiguous(&made));
	/* 2^64 elements below it are not none. */
	made = layout(TMESH_INT16, 3, LIST(2, INT64_C(1) << 62, 4), LIST(0, 4, 1), 0);
	assert_false(tmesh_layout_is_contiguous(&made));
}

UNIT(test_check_edges)
{
	struct tmesh_layout made;
	uint64_t extent;

	made = layout(TMESH_FLOAT32, 2, LIST(2, 3), LIST(3, 1), 40);
	assert_ok(tmesh_layout_check(&made, 64, &extent, err));
	assert_int_equal(extent, 24);
	assert_refused(tmesh_layout_check(&made, 63, NULL, err), -EINVAL, "region of 63");

	/* Rows a pitch apart: the last row needs no padding. */
	made = layout(TMESH_UINT8, 2, LIST(2, 3), LIST(16, 1), 0);
	assert_ok(tmesh_layout_check(&made, 19, &extent, err));
	assert_int_equal(extent, 6);
	assert_refused(tmesh_layout_check(&made, 18, NULL, err), -EINVAL, "ends at byte 19");

	/* Backwards: starts at the last element. */
	made = layout(TMESH_INT16, 1, LIST(4), LIST(-1), 6);
	assert_ok(tmesh_layout_check(&made, 8, &extent, err));
	made.offset = 5;
	assert_refused(tmesh_layout_check(&made, 8, NULL, err), -EINVAL, "before the region");

	/* Broadcast: many elements, few bytes. */
	made = layout(TMESH_FLOAT64, 2, LIST(1000, 2), LIST(0, 1), 0);
	assert_ok(tmesh_layout_check(&made, 16, &extent, err));
	assert_int_equal(extent, 16000);

	made = layout(TMESH_COMPLEX128, 0, LIST(0), LIST(0), 16);
	assert_ok(tmesh_layout_check(&made, 32, &extent, err));
	assert_refused(tmesh_layout_check(&made, 31, NULL, err), -EINVAL, "region of 31");
}

UNIT(test_check_empty)
{
	struct tmesh_layout made = layout(TMESH_FLOAT32, 2, LIST(0, 3), LIST(1 << 20, -7), 4096);
	uint64_t extent;

	assert_ok(tmesh_layout_check(&made, 4096, &extent, err));
	assert_int_equal(extent, 0);
	assert_refused(tmesh_layout_check(&made, 4095, NULL, err), -EINVAL, "region of 4095");
}

UNIT(test_check_overflow)
{
	struct tmesh_layout made;

	made = layout(TMESH_INT64, 1, LIST(INT64_MAX), LIST(1), 0);
	assert_refused(tmesh_layout_check(&made, UINT64_MAX, NULL, err), -EOVERFLOW, "bytes");
	made = layout(TMESH_INT8, 2, LIST(INT64_MAX, 3), LIST(0, 0), 0);
	assert_refused(tmesh_layout_check(&made, UINT64_MAX, NULL, err), -EOVERFLOW, "elements");
	made = layout(TMESH_INT8, 1, LIST(3), LIST(INT64_MAX), 0);
	assert_refused(tmesh_layout_check(&made, UINT64_MAX, NULL, err), -EOVERFLOW, "strides");
	made = layout(TMESH_INT8, 1, LIST(2), LIST(INT64_MIN), 0);
	assert_refused(tmesh_layout_check(&made, UINT64_MAX, NULL, err), -EINVAL, "before");
	made = layout(TMESH_INT16, 1, LIST(2), LIST(INT64_MIN), 0);
	assert_refused(tmesh_layout_check(&made, UINT64_MAX, NULL, err), -EOVERFLOW, "strides");
	made = layout(TMESH_INT8, 2, LIST(2, 2), LIST(INT64_MIN, -1), 0);
	assert_refused(tmesh_layout_check(&made, UINT64_MAX, NULL, err), -EOVERFLOW, "strides");
	/* Broadcast: nothing lies there, but elements of that many bytes in all. */
	made = layout(TMESH_INT16, 1, LIST(INT64_MAX), LIST(0), 0);
	assert_refused(tmesh_layout_check(&made, UINT64_MAX, NULL, err), -EOVERFLOW, "bytes");
	/* A reach that fits, whose sum with the element itself does not. */
	made = layout(TMESH_INT8, 1, LIST(2), LIST(INT64_MAX), 0);
	assert_refused(tmesh_layout_check(&made, UINT64_MAX, NULL, err), -EOVERFLOW, "strides");
	made = layout(TMESH_INT8, 1, LIST(2), LIST(1), UINT64_MAX);
	assert_refused(tmesh_layout_check(&made, UINT64_MAX, NULL, err), -EOVERFLOW, "offset");
}

UNIT(test_check_sub_byte)
{
	struct tmesh_layout made;
	uint64_t extent;

	made = layout(TMESH_INT4, 2, LIST(3, 2), LIST(2, 1), 5);
	assert_ok(tmesh_layout_check(&made, 8, &extent, err));
	assert_int_equal(extent, 3);
	assert_refused(tmesh_layout_check(&made, 7, NULL, err), -EINVAL, "region of 7");
	made = layout(TMESH_UINT4, 1, LIST(3), LIST(1), 0);
	assert_refused(tmesh_layout_check(&made, 64, NULL, err), -EINVAL, "whole bytes");
	made = layout(TMESH_FLOAT4_E2M1FN, 2, LIST(2, 2), LIST(1, 2), 0);
	assert_refused(tmesh_layout_check(&made, 64, NULL, err), -EINVAL, "contiguous");
	made = layout(TMESH_INT4, 0, LIST(0), LIST(0), 0);
	assert_refused(tmesh_layout_check(&made, 64, NULL, err), -EINVAL, "whole bytes");
}

UNIT(test_check_device)
{
	struct tmesh_layout made = layout(TMESH_INT8, 1, LIST(4), LIST(1), 0);

	made.device_type = TMESH_DEVICE_CUDA;
	made.device_id = 3;
	assert_ok(tmesh_layout_check(&made, 4, NULL, err));
	made.device_id = -1;
	assert_refused(tmesh_layout_check(&made, 4, NULL, err), -EINVAL, "negative");
	made.device_type = TMESH_DEVICE_CPU;
	made.device_id = 1;
	assert_refused(tmesh_layout_check(&made, 4, NULL, err), -EINVAL, "CPU");
	made.device_type = (enum tmesh_device_type)7;
	assert_refused(tmesh_layout_check(&made, 4, NULL, err), -EINVAL, "device type");
}

/* Every accepted small layout really stays inside, element by element. */
UNIT(test_check_by_enumeration)
{
	unsigned int accepted = 0;
	unsigned int seed = 1;

	for (int round = 0; round < 20000; round++) {
		struct tmesh_layout made = {.dtype = TMESH_INT16, .ndim = 2};
		int64_t low = INT64_MAX, high = 0;

		for (int i = 0; i < 2; i++) {
			made.shape[i] = rand_r(&seed) % 4 + 1;
			made.strides[i] = rand_r(&seed) % 11 - 5;
		}
		made.offset = (uint64_t)(rand_r(&seed) % 40);
		for (int64_t a = 0; a < made.shape[0]; a++) {
			for (int64_t b = 0; b < made.shape[1]; b++) {
				int64_t at = (int64_t)made.offset +
					     2 * (a * made.strides[0] + b * made.strides[1]);

				low = at < low ? at : low;
				high = at + 2 > high ? at + 2 : high;
			}
		}
		accepted += !tmesh_layout_check(&made, 48, NULL, NULL);
		assert_int_equal(!tmesh_layout_check(&made, 48, NULL, NULL),
				 low >= 0 && high <= 48);
	}
	assert_in_range(accepted, 1000, 19000);
}

UNIT_MAIN("layout", NULL, NULL)
