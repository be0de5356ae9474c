// SPDX-License-Identifier: MIT
/* DLPack out and in, both forms: emitted structures, recognised ones, refused ones. */
#include "common/dlpack_abi.h"
#include "unit.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})
#define WRITABLE (TMESH_READ | TMESH_WRITE)

static struct tmesh_tensor *sample(struct tmesh_ctx *ctx)
{
	const struct tmesh_region_opts opts = {
		.size = sizeof(opts),
		.flags = TMESH_REGION_UNSEALED,
	};
	int16_t numbers[6] = {1, 2, 3, 4, 5, 6};
	struct tmesh_tensor *tensor;

	assert_ok(tmesh_tensor_put(ctx, TMESH_INT16, 2, SHAPE(2, 3), numbers, &opts, &tensor, err));
	return tensor;
}

static void check_sample(const struct dl_tensor *dl)
{
	assert_int_equal(dl->device.type, DL_DEVICE_CPU);
	assert_int_equal(dl->device.id, 0);
	assert_int_equal(dl->ndim, 2);
	assert_int_equal(dl->dtype.code, DL_INT);
	assert_int_equal(dl->dtype.bits, 16);
	assert_int_equal(dl->dtype.lanes, 1);
	assert_int_equal(dl->shape[0], 2);
	assert_int_equal(dl->shape[1], 3);
	assert_int_equal(dl->strides[0], 3);
	assert_int_equal(dl->strides[1], 1);
	assert_int_equal(dl->byte_offset, 0);
	assert_int_equal(((int16_t *)dl->data)[5], 6);
}

UNIT_CTX(test_out_unversioned)
{
	struct tmesh_tensor *tensor = sample(*state);
	struct DLManagedTensor *managed;

	assert_ok(tmesh_tensor_to_dlpack(tensor, WRITABLE, 0, &managed, err));
	tmesh_tensor_unref(tensor);
	check_sample(&managed->dl_tensor);
	((int16_t *)managed->dl_tensor.data)[0] = 7;
	managed->deleter(managed);
}

UNIT_CTX(test_out_versioned)
{
	struct tmesh_tensor *tensor = sample(*state);
	struct DLManagedTensorVersioned *managed;

	assert_ok(tmesh_tensor_to_dlpack_versioned(tensor, WRITABLE, 1, &managed, err));
	assert_int_equal(managed->version.major, 1);
	assert_int_equal(managed->flags, 0);
	managed->deleter(managed);

	assert_ok(tmesh_tensor_to_dlpack_versioned(tensor, TMESH_READ, 7, &managed, err));
	tmesh_tensor_unref(tensor);
	assert_int_equal(managed->version.major, 1);
	assert_int_equal(managed->flags, DL_FLAG_READ_ONLY);
	check_sample(&managed->dl_tensor);
	managed->deleter(managed);
}

UNIT_CTX(test_out_refused)
{
	struct DLManagedTensorVersioned *versioned;
	struct tmesh_tensor *tensor = sample(*state);
	struct DLManagedTensor *managed;

	assert_refused(tmesh_tensor_to_dlpack_versioned(tensor, TMESH_READ, 0, &versioned, err),
		       -EOPNOTSUPP, "unversioned");
	assert_refused(tmesh_tensor_to_dlpack(tensor, WRITABLE, 8, &managed, err), -EINVAL,
		       "flags");
	assert_refused(tmesh_tensor_to_dlpack(tensor, TMESH_READ, 0, &managed, err), -EACCES,
		       "read-only");
	assert_ok(tmesh_region_seal(tmesh_tensor_region(tensor), err));
	assert_refused(tmesh_tensor_to_dlpack(tensor, WRITABLE, 0, &managed, err), -EPERM, "seal");
	assert_refused(tmesh_tensor_to_dlpack_versioned(tensor, WRITABLE, 1, &versioned, err),
		       -EPERM, "seal");
	assert_ok(tmesh_tensor_to_dlpack(tensor, TMESH_READ, TMESH_DLPACK_ALLOW_READONLY, &managed,
					 err));
	managed->deleter(managed);
	tmesh_tensor_unref(tensor);
}

UNIT_CTX(test_out_empty_and_scalar)
{
	struct DLManagedTensorVersioned *managed;
	struct tmesh_tensor *tensor;
	void *data;

	assert_ok(tmesh_tensor_create(*state, TMESH_FLOAT64, 1, SHAPE(0), NULL, &tensor, err));
	assert_ok(tmesh_tensor_to_dlpack_versioned(tensor, TMESH_READ, 1, &managed, err));
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	assert_ptr_equal(managed->dl_tensor.data, data);
	managed->deleter(managed);
	tmesh_tensor_unref(tensor);

	assert_ok(tmesh_tensor_create(*state, TMESH_COMPLEX64, 0, NULL, NULL, &tensor, err));
	assert_ok(tmesh_tensor_to_dlpack_versioned(tensor, TMESH_READ, 1, &managed, err));
	assert_int_equal(managed->dl_tensor.ndim, 0);
	assert_int_equal(managed->dl_tensor.dtype.code, DL_COMPLEX);
	managed->deleter(managed);
	tmesh_tensor_unref(tensor);
}

UNIT_CTX(test_own_come_home)
{
	struct DLManagedTensorVersioned *versioned;
	struct tmesh_tensor *tensor = sample(*state), *back;
	struct DLManagedTensor *managed;
	uint64_t before = ctx_stats(*state).bytes_copied;

	assert_ok(tmesh_tensor_to_dlpack(tensor, WRITABLE, 0, &managed, err));
	assert_ok(tmesh_tensor_from_dlpack(*state, managed, NULL, &back, err));
	assert_ptr_equal(tmesh_tensor_region(back), tmesh_tensor_region(tensor));
	managed->deleter(managed);
	tmesh_tensor_unref(back);

	assert_ok(tmesh_tensor_to_dlpack_versioned(tensor, TMESH_READ, 1, &versioned, err));
	assert_ok(tmesh_tensor_from_dlpack_versioned(*state, versioned, NULL, &back, err));
	assert_ptr_equal(tmesh_tensor_region(back), tmesh_tensor_region(tensor));
	versioned->deleter(versioned);
	tmesh_tensor_unref(back);

	tmesh_tensor_unref(tensor);
	assert_int_equal(ctx_stats(*state).bytes_copied, before);
}

/* Every type goes out and comes back as itself, 4-bit ones too. */
UNIT_CTX(test_types)
{
	for (int dtype = TMESH_BOOL; dtype <= TMESH_FLOAT4_E2M1FN; dtype++) {
		struct DLManagedTensorVersioned *managed, foreign;
		struct tmesh_tensor *tensor, *back;

		assert_ok(tmesh_tensor_create(*state, (enum tmesh_dtype)dtype, 1, SHAPE(4), NULL,
					      &tensor, err));
		assert_ok(tmesh_tensor_to_dlpack_versioned(tensor, TMESH_READ, 1, &managed, err));
		foreign = *managed;
		foreign.deleter = NULL;
		assert_ok(tmesh_tensor_from_dlpack_versioned(*state, &foreign, NULL, &back, err));
		assert_int_equal(tmesh_tensor_layout(back)->dtype, dtype);
		assert_true(tmesh_tensor_region(back) != tmesh_tensor_region(tensor));
		managed->deleter(managed);
		tmesh_tensor_unref(back);
		tmesh_tensor_unref(tensor);
	}
}

static struct DLManagedTensorVersioned foreign_sample(int16_t *numbers)
{
	static int64_t shape[] = {2, 3};

	for (int i = 0; i < 6; i++)
		numbers[i] = (int16_t)(i + 1);
	return (struct DLManagedTensorVersioned){
		.version = {1, 3},
		.dl_tensor = {.data = numbers,
			      .device = {.type = DL_DEVICE_CPU},
			      .ndim = 2,
			      .dtype = {DL_INT, 16, 1},
			      .shape = shape},
	};
}

static void check_copy(struct tmesh_tensor *tensor, const int16_t *want, size_t bytes)
{
	void *data;

	assert_true(tmesh_layout_is_contiguous(tmesh_tensor_layout(tensor)));
	assert_int_equal(tmesh_tensor_bytes(tensor), bytes);
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	assert_memory_equal(data, want, bytes);
	assert_true(tmesh_region_is_sealed(tmesh_tensor_region(tensor)));
	tmesh_tensor_unref(tensor);
}

UNIT_CTX(test_in)
{
	int16_t numbers[6];
	struct DLManagedTensorVersioned managed = foreign_sample(numbers);
	struct DLManagedTensor old = {.dl_tensor = managed.dl_tensor};
	uint64_t before = ctx_stats(*state).bytes_copied;
	struct tmesh_tensor *tensor;

	assert_ok(tmesh_tensor_from_dlpack_versioned(*state, &managed, NULL, &tensor, err));
	check_copy(tensor, numbers, sizeof(numbers));
	assert_ok(tmesh_tensor_from_dlpack(*state, &old, NULL, &tensor, err));
	check_copy(tensor, numbers, sizeof(numbers));
	assert_int_equal(ctx_stats(*state).bytes_copied - before, 2 * sizeof(numbers));

	managed.dl_tensor.byte_offset = 2;
	managed.dl_tensor.shape = SHAPE(5, 1);
	managed.flags = DL_FLAG_READ_ONLY | DL_FLAG_IS_COPIED | DL_FLAG_SUBBYTE_PADDED;
	assert_ok(tmesh_tensor_from_dlpack_versioned(*state, &managed, NULL, &tensor, err));
	check_copy(tensor, numbers + 1, 10);
}

UNIT_CTX(test_in_strided)
{
	int16_t numbers[6];
	struct DLManagedTensorVersioned managed = foreign_sample(numbers);
	struct dl_tensor *dl = &managed.dl_tensor;
	uint64_t before = ctx_stats(*state).bytes_copied;
	struct tmesh_tensor *tensor;

	dl->shape = SHAPE(3, 2); /* transposed */
	dl->strides = SHAPE(1, 3);
	assert_ok(tmesh_tensor_from_dlpack_versioned(*state, &managed, NULL, &tensor, err));
	check_copy(tensor, (int16_t[]){1, 4, 2, 5, 3, 6}, 12);

	dl->shape = SHAPE(2, 2); /* columns 1 and 2 of both rows */
	dl->strides = SHAPE(3, 1);
	dl->byte_offset = 2;
	assert_ok(tmesh_tensor_from_dlpack_versioned(*state, &managed, NULL, &tensor, err));
	check_copy(tensor, (int16_t[]){2, 3, 5, 6}, 8);

	dl->shape = SHAPE(2, 3); /* both ways backwards */
	dl->strides = SHAPE(-3, -1);
	dl->byte_offset = 10;
	assert_ok(tmesh_tensor_from_dlpack_versioned(*state, &managed, NULL, &tensor, err));
	check_copy(tensor, (int16_t[]){6, 5, 4, 3, 2, 1}, 12);

	dl->shape = SHAPE(2, 2); /* one row twice */
	dl->strides = SHAPE(0, 1);
	dl->byte_offset = 0;
	assert_ok(tmesh_tensor_from_dlpack_versioned(*state, &managed, NULL, &tensor, err));
	check_copy(tensor, (int16_t[]){1, 2, 1, 2}, 8);
	assert_int_equal(ctx_stats(*state).bytes_copied - before, 12 + 8 + 12 + 8);
}

UNIT_CTX(test_in_refused)
{
	int16_t numbers[6];
	struct DLManagedTensorVersioned good = foreign_sample(numbers), bad;
	struct tmesh_tensor *tensor;

#define assert_import_refused(code, word)                                                          \
	assert_refused(tmesh_tensor_from_dlpack_versioned(*state, &bad, NULL, &tensor, err), code, \
		       word)
	bad = good;
	bad.version.major = 2;
	assert_import_refused(-EOPNOTSUPP, "DLPack 2");
	bad = good;
	bad.dl_tensor.device.type = 2;
	assert_import_refused(-EOPNOTSUPP, "device 2");
	bad = good;
	bad.dl_tensor.dtype.lanes = 4;
	assert_import_refused(-EOPNOTSUPP, "4 lanes");
	bad = good;
	bad.dl_tensor.dtype.lanes = 0;
	assert_import_refused(-EOPNOTSUPP, "0 lanes");
	bad = good;
	bad.dl_tensor.dtype.code = 3;
	assert_import_refused(-EOPNOTSUPP, "code 3");
	bad = good;
	bad.dl_tensor.dtype.bits = 0;
	assert_import_refused(-EOPNOTSUPP, "0 bits");
	bad = good;
	bad.dl_tensor.dtype.bits = 4;
	bad.flags = DL_FLAG_SUBBYTE_PADDED;
	assert_import_refused(-EOPNOTSUPP, "padded");
	bad = good;
	bad.dl_tensor.ndim = 9;
	assert_import_refused(-EINVAL, "dimensions");
	bad = good;
	bad.dl_tensor.ndim = -1;
	assert_import_refused(-EINVAL, "dimensions");
	bad = good;
	bad.dl_tensor.shape = NULL;
	assert_import_refused(-EINVAL, "shape");
	bad = good;
	bad.dl_tensor.data = NULL;
	assert_import_refused(-EINVAL, "no data");
	bad = good;
	bad.dl_tensor.byte_offset = UINT64_MAX;
	assert_import_refused(-EOVERFLOW, "address space");
	bad = good;
	bad.dl_tensor.strides = SHAPE(INT64_MIN, 1);
	assert_import_refused(-EOVERFLOW, "strides");
	bad = good;
	bad.dl_tensor.strides = SHAPE(INT64_MIN / 2, 1);
	assert_import_refused(-EOVERFLOW, "address space");
	bad = good;
	bad.dl_tensor.data = (void *)(UINTPTR_MAX - 7);
	assert_import_refused(-EOVERFLOW, "address space");
	/* One element again and again, more often than there is memory. */
	bad = good;
	bad.dl_tensor.shape = SHAPE(INT64_MAX / 4, 1);
	bad.dl_tensor.strides = SHAPE(0, 1);
	assert_true(tmesh_tensor_from_dlpack_versioned(*state, &bad, NULL, &tensor, NULL) < 0);
	/* Nothing needs no memory. */
	bad = good;
	bad.dl_tensor.data = NULL;
	bad.dl_tensor.shape = SHAPE(0, 3);
	assert_ok(tmesh_tensor_from_dlpack_versioned(*state, &bad, NULL, &tensor, err));
	assert_int_equal(tmesh_tensor_bytes(tensor), 0);
	tmesh_tensor_unref(tensor);
}

UNIT_MAIN("dlpack", NULL, NULL)
