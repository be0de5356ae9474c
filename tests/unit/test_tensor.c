// SPDX-License-Identifier: MIT
/* Tensors over regions: create, put, views, data, refs there and back. */
#include "unit.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

UNIT_CTX(test_create)
{
	struct tmesh_tensor *tensor;
	const struct tmesh_layout *layout;
	const char *bytes;
	void *data;

	assert_ok(tmesh_tensor_create(*state, TMESH_FLOAT32, 2, SHAPE(100, 3), NULL, &tensor, err));
	assert_int_equal(tmesh_tensor_bytes(tensor), 1200);
	layout = tmesh_tensor_layout(tensor);
	assert_int_equal(layout->offset, 0);
	assert_int_equal(layout->strides[0], 3);
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	assert_int_equal((uintptr_t)data % TMESH_ALIGN, 0);
	bytes = data;
	for (int i = 0; i < 1200; i++)
		assert_int_equal(bytes[i], 0);
	tmesh_tensor_unref(tensor);
	tmesh_tensor_unref(NULL);
	assert_int_equal(ctx_stats(*state).regions_live, 0);
}

UNIT_CTX(test_empty)
{
	struct tmesh_tensor *tensor;
	void *data;

	assert_ok(tmesh_tensor_put(*state, TMESH_INT64, 2, SHAPE(0, 7), NULL, NULL, &tensor, err));
	assert_int_equal(tmesh_tensor_bytes(tensor), 0);
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	/* Not what an earlier tensor left in a pool. */
	assert_int_equal(*(char *)data, 0);
	tmesh_tensor_unref(tensor);
}

UNIT_CTX(test_data_twice)
{
	struct tmesh_tensor *tensor;
	void *read, *write, *again;

	assert_ok(tmesh_tensor_create(*state, TMESH_UINT8, 1, SHAPE(10), NULL, &tensor, err));
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &read, err));
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ | TMESH_WRITE, &write, err));
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &again, err));
	assert_ptr_equal(read, write);
	assert_ptr_equal(read, again);
	memset(write, 1, 10);

	/* The tensor's own mapping does not stand in the way of a seal, and ends writing. */
	assert_ok(tmesh_region_seal(tmesh_tensor_region(tensor), err));
	assert_refused(tmesh_tensor_data(tensor, TMESH_READ | TMESH_WRITE, &again, err), -EPERM,
		       "seal");
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &again, err));
	assert_int_equal(*(char *)again, 1);
	tmesh_tensor_unref(tensor);
}

UNIT_CTX(test_view)
{
	struct tmesh_tensor *tensor, *view;
	struct tmesh_layout column;
	int16_t numbers[4][5];
	void *data;

	memset(numbers, 0, sizeof(numbers));
	for (int i = 0; i < 4; i++)
		numbers[i][2] = (int16_t)i;
	assert_ok(
		tmesh_tensor_put(*state, TMESH_INT16, 2, SHAPE(4, 5), numbers, NULL, &tensor, err));
	column = *tmesh_tensor_layout(tensor);
	column.ndim = 1;
	column.offset = 4;
	assert_ok(tmesh_tensor_view(tensor, &column, &view, err));
	tmesh_tensor_unref(tensor);
	assert_int_equal(tmesh_tensor_bytes(view), 8);
	assert_ok(tmesh_tensor_data(view, TMESH_READ, &data, err));
	for (int i = 0; i < 4; i++)
		assert_int_equal(((int16_t *)data)[i * 5], i);

	column.shape[0] = 5;
	assert_refused(tmesh_tensor_view(view, &column, &tensor, err), -EINVAL, "region of 40");
	column.shape[0] = 4;
	column.device_type = TMESH_DEVICE_CUDA;
	assert_refused(tmesh_tensor_view(view, &column, &tensor, err), -EOPNOTSUPP, "device");
	tmesh_tensor_unref(view);
	assert_int_equal(ctx_stats(*state).regions_live, 0);
}

UNIT_CTX(test_wrap)
{
	struct tmesh_region *region = new_region(*state, 100);
	struct tmesh_tensor *tensor;
	struct tmesh_layout layout;

	assert_ok(tmesh_layout_contiguous(&layout, TMESH_FLOAT64, 1, SHAPE(12), err));
	layout.offset = 4;
	assert_ok(tmesh_tensor_wrap(region, &layout, &tensor, err));
	tmesh_tensor_unref(tensor);
	/* The end is that of the length asked for, not of the page. */
	layout.offset = 5;
	assert_refused(tmesh_tensor_wrap(region, &layout, &tensor, err), -EINVAL, "region of 100");
	tmesh_region_unref(region);
	assert_int_equal(ctx_stats(*state).regions_live, 0);
}

UNIT_CTX(test_try_unref)
{
	struct tmesh_tensor *tensor, *view;
	void *data;

	assert_int_equal(tmesh_tensor_try_unref(NULL), 0);
	assert_ok(tmesh_tensor_create(*state, TMESH_INT8, 1, SHAPE(4), NULL, &tensor, err));
	assert_int_equal(tmesh_tensor_try_unref(tmesh_tensor_ref(tensor)), 0);
	/* The region's last reference, and then not. */
	assert_int_equal(tmesh_tensor_try_unref(tensor), -EAGAIN);
	assert_ok(tmesh_tensor_view(tensor, tmesh_tensor_layout(tensor), &view, err));
	assert_int_equal(tmesh_tensor_try_unref(view), 0);
	assert_ok(tmesh_tensor_view(tensor, tmesh_tensor_layout(tensor), &view, err));
	assert_ok(tmesh_tensor_data(view, TMESH_READ, &data, err));
	assert_int_equal(tmesh_tensor_try_unref(view), -EAGAIN);
	tmesh_tensor_unref(view);
	assert_ok(tmesh_tensor_view(tensor, tmesh_tensor_layout(tensor), &view, err));
	assert_ok(tmesh_tensor_data(view, TMESH_READ | TMESH_WRITE, &data, err));
	assert_int_equal(tmesh_tensor_try_unref(view), -EAGAIN);
	tmesh_tensor_unref(view);
	assert_int_equal(ctx_stats(*state).regions_live, 1);
	tmesh_tensor_unref(tensor);
	assert_int_equal(ctx_stats(*state).regions_live, 0);
}

/* The element that lies at @at in C order, of a layout whose first is at @from. */
static int32_t element(const struct tmesh_layout *layout, const int32_t *from, uint64_t at)
{
	for (int32_t i = layout->ndim - 1; i >= 0; i--) {
		from += (int64_t)(at % (uint64_t)layout->shape[i]) * layout->strides[i];
		at /= (uint64_t)layout->shape[i];
	}
	return *from;
}

static void read_back(struct tmesh_ctx *ctx, struct tmesh_region *region, const int32_t *all,
		      struct tmesh_layout layout)
{
	struct tmesh_tensor *tensor;
	uint64_t bytes, before;
	int32_t *got;

	assert_ok(tmesh_tensor_wrap(region, &layout, &tensor, err));
	bytes = tmesh_tensor_bytes(tensor);
	got = test_malloc(bytes + 4);
	got[bytes / 4] = 12345;
	before = ctx_stats(ctx).bytes_copied;
	assert_ok(tmesh_tensor_read(tensor, got, bytes, err));
	assert_int_equal(ctx_stats(ctx).bytes_copied - before, bytes);
	assert_int_equal(got[bytes / 4], 12345);
	for (uint64_t i = 0; i < bytes / 4; i++)
		if (got[i] != element(&layout, all + layout.offset / 4, i))
			fail_msg("element %lu", (unsigned long)i);
	assert_refused(tmesh_tensor_read(tensor, got, bytes + 4, err), -EINVAL, "room");
	test_free(got);
	tmesh_tensor_unref(tensor);
}

/* Read more than fits at once, and each order of elements. */
UNIT_CTX(test_read)
{
	enum {
		COUNT = 1 << 20
	};
	static const struct tmesh_layout layouts[] = {
		{.ndim = 0, .offset = 4},
		{.ndim = 1, .shape = {COUNT}, .strides = {1}},
		{.ndim = 1, .shape = {COUNT}, .strides = {-1}, .offset = 4 * (COUNT - 1)},
		{.ndim = 1, .shape = {COUNT / 3}, .strides = {3}, .offset = 4},
		{.ndim = 1, .shape = {3}, .strides = {400000}},
		{.ndim = 2, .shape = {1024, 1024}, .strides = {1, 1024}},
		{.ndim = 2, .shape = {2, 2}, .strides = {1, COUNT - 2}},
		{.ndim = 2, .shape = {2, 300000}, .strides = {400000, 1}},
		{.ndim = 2, .shape = {300000, 2}, .strides = {-1, 500000}, .offset = 4 * 300000},
		{.ndim = 2, .shape = {3, 300000}, .strides = {0, 1}, .offset = 8},
		{.ndim = 3, .shape = {64, 5, 100}, .strides = {100, 0, 10000}},
		{.ndim = 3, .shape = {100, 1, 7}, .strides = {-7, 99, 10001}, .offset = 4 * 800},
		{.ndim = 2, .shape = {20, 3}, .strides = {2000, 2500}},
		{.ndim = 3, .shape = {20, 1, 3}, .strides = {2000, INT64_MAX, 2500}},
		{.ndim = 3, .shape = {1, 20, 3}, .strides = {INT64_MIN, 7, 1}},
		{.ndim = 2, .shape = {80, 70}, .strides = {5000, 5001}},
		{.ndim = 2, .shape = {5, 0}, .strides = {3, 7}},
	};
	struct tmesh_region *region = new_region(*state, 4 * COUNT);
	int32_t *all;
	void *addr;

	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	all = addr;
	for (int32_t i = 0; i < COUNT; i++)
		all[i] = i;
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
		struct tmesh_layout layout = layouts[i];

		layout.dtype = TMESH_INT32;
		read_back(*state, region, all, layout);
	}
	tmesh_region_unmap(region, TMESH_READ | TMESH_WRITE);
	tmesh_region_unref(region);
}

/* People see what a region holds, without what would open it. */
UNIT_CTX(test_description)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_tensor *tensor;
	struct tmesh_ref ref;

	assert_ok(tmesh_tensor_create(*state, TMESH_BFLOAT16, 2, SHAPE(8, 2), NULL, &tensor, err));
	assert_ok(tmesh_region_seal(tmesh_tensor_region(tensor), err));
	assert_ok(tmesh_region_info(tmesh_tensor_region(tensor), &info, err));
	assert_ok(tmesh_ref_decode(info.description, strlen(info.description), &ref, err));
	assert_int_equal(ref.id, info.id);
	assert_string_equal(ref.token, "");
	assert_memory_equal(&ref.layout, tmesh_tensor_layout(tensor), sizeof(ref.layout));
	tmesh_tensor_unref(tensor);
}

/* A description opens nothing; missing rights are reported before a missing seal. */
UNIT_CTX(test_ref_refused)
{
	struct tmesh_tensor *tensor, *opened = NULL;
	char text[TMESH_REF_SIZE];
	struct tmesh_ref ref, bad;

	assert_ok(tmesh_tensor_put(*state, TMESH_INT8, 1, SHAPE(4), "abc", NULL, &tensor, err));
	assert_refused(tmesh_tensor_ref_encode(tensor, 99, text, sizeof(text), err), -EINVAL,
		       "unknown rights 0x63");
	assert_ok(tmesh_tensor_ref_encode(tensor, TMESH_READ, text, sizeof(text), err));
	assert_ok(tmesh_ref_decode(text, strlen(text), &ref, err));
	bad = ref;
	bad.layout.offset = 1;
	assert_refused(tmesh_tensor_open(*state, &bad, TMESH_READ, &opened, err), -EPROTO,
		       "does not fit its region");
	bad = ref;
	bad.byte_size = 3;
	assert_refused(tmesh_tensor_open(*state, &bad, TMESH_READ, &opened, err), -EPROTO,
		       "byte_size is 3");
	assert_int_equal(ctx_stats(*state).regions_live, 1);
	ref.token[0] = '\0';
	assert_refused(tmesh_tensor_open(*state, &ref, TMESH_READ, &opened, err), -EPROTO,
		       "has no token");
	assert_null(opened);
	tmesh_tensor_unref(tensor);
}

UNIT_MAIN("tensor", NULL, NULL)
