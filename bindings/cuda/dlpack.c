// SPDX-License-Identifier: MIT
/* DLPack: device memory for frameworks, with the device that has it. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#include "../../lib/dlpack_abi.h"

#define DL_DEVICE_CUDA 2

static const struct {
	uint8_t code;
	uint8_t bits;
} types[] = {
	[TMESH_BOOL] = {DL_BOOL, 8},
	[TMESH_INT8] = {DL_INT, 8},
	[TMESH_INT16] = {DL_INT, 16},
	[TMESH_INT32] = {DL_INT, 32},
	[TMESH_INT64] = {DL_INT, 64},
	[TMESH_UINT8] = {DL_UINT, 8},
	[TMESH_UINT16] = {DL_UINT, 16},
	[TMESH_UINT32] = {DL_UINT, 32},
	[TMESH_UINT64] = {DL_UINT, 64},
	[TMESH_FLOAT16] = {DL_FLOAT, 16},
	[TMESH_FLOAT32] = {DL_FLOAT, 32},
	[TMESH_FLOAT64] = {DL_FLOAT, 64},
	[TMESH_BFLOAT16] = {DL_BFLOAT, 16},
	[TMESH_FLOAT8_E4M3FN] = {DL_FLOAT8_E4M3FN, 8},
	[TMESH_FLOAT8_E5M2] = {DL_FLOAT8_E5M2, 8},
	[TMESH_COMPLEX64] = {DL_COMPLEX, 64},
	[TMESH_COMPLEX128] = {DL_COMPLEX, 128},
	[TMESH_INT4] = {DL_INT, 4},
	[TMESH_UINT4] = {DL_UINT, 4},
	[TMESH_FLOAT4_E2M1FN] = {DL_FLOAT4_E2M1FN, 4},
};

struct export
{
	union {
		struct DLManagedTensor managed;
		struct DLManagedTensorVersioned versioned;
	};
	struct tmesh_cuda_memory *memory;
	int64_t shape[TMESH_MAX_DIMS];
	int64_t strides[TMESH_MAX_DIMS];
};

static void export_free(struct export *export)
{
	tmesh_cuda_memory_unref(export->memory);
	free(export);
}

static void delete_managed(struct DLManagedTensor *managed)
{
	export_free(managed->manager_ctx);
}

static void delete_versioned(struct DLManagedTensorVersioned *managed)
{
	export_free(managed->manager_ctx);
}

/* Registered host memory is given as its device's: kernels there may use it as it is. */
static int export_new(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout,
		      struct export **out, struct dl_tensor *dl, struct tmesh_error *err)
{
	struct export *export;
	int rc = tmesh_layout_check(layout, memory->bytes, NULL, err);

	if (!rc && tmesh_cuda_touch(memory))
		rc = cuda_fail(err, -ESTALE, "the memory was taken back");
	if (rc)
		return rc;
	export = calloc(1, sizeof(*export));
	if (!export)
		return cuda_fail(err, -ENOMEM, "no memory for a DLPack tensor");
	export->memory = tmesh_cuda_memory_ref(memory);
	memcpy(export->shape, layout->shape, sizeof(export->shape));
	memcpy(export->strides, layout->strides, sizeof(export->strides));
	*dl = (struct dl_tensor){
		.data = (void *)(uintptr_t)(memory->pointer + layout->offset),
		.device = {.type = DL_DEVICE_CUDA,
			   .id = memory->resident < 0 ? memory->device : memory->resident},
		.ndim = layout->ndim,
		.dtype = {.code = types[layout->dtype].code,
			  .bits = types[layout->dtype].bits,
			  .lanes = 1},
		.shape = export->shape,
		.strides = export->strides,
	};
	*out = export;
	return 0;
}

int tmesh_cuda_to_dlpack(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout,
			 struct DLManagedTensor **out, struct tmesh_error *err)
{
	struct export *export;
	struct dl_tensor dl;
	int rc;

	if (!(memory->rights & TMESH_WRITE))
		return cuda_fail(err, -EACCES,
				 "an unversioned DLPack tensor cannot say that it is read-only: "
				 "ask for the versioned one");
	rc = export_new(memory, layout, &export, &dl, err);
	if (rc)
		return rc;
	export->managed = (struct DLManagedTensor){
		.dl_tensor = dl, .manager_ctx = export, .deleter = delete_managed};
	*out = &export->managed;
	return 0;
}

int tmesh_cuda_to_dlpack_versioned(struct tmesh_cuda_memory *memory,
				   const struct tmesh_layout *layout, uint32_t max_major,
				   struct DLManagedTensorVersioned **out, struct tmesh_error *err)
{
	struct export *export;
	struct dl_tensor dl;
	int rc;

	if (max_major < DLPACK_MAJOR)
		return cuda_fail(err, -EOPNOTSUPP,
				 "DLPack before version 1 has no versioned tensors");
	rc = export_new(memory, layout, &export, &dl, err);
	if (rc)
		return rc;
	export->versioned = (struct DLManagedTensorVersioned){
		.version = {DLPACK_MAJOR, DLPACK_MINOR},
		.manager_ctx = export,
		.deleter = delete_versioned,
		.flags = memory->rights & TMESH_WRITE ? 0 : DL_FLAG_READ_ONLY,
		.dl_tensor = dl,
	};
	*out = &export->versioned;
	return 0;
}
