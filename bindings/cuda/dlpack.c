// SPDX-License-Identifier: MIT
/* DLPack: device memory for frameworks, with the device that has it. */
#include "internal.h"

#include "common/dlpack_tensor.h"

struct export
{
	union {
		struct DLManagedTensor managed;
		struct DLManagedTensorVersioned versioned;
	};
	struct tmesh_cuda_memory *memory;
	struct dl_dims dims;
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

/* Export a tensor. Registered host memory counts as its device's, whose kernels can use it as it
 * is. */
static int export_new(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout,
		      struct export **out, struct dl_tensor *dl, struct tmesh_error *err)
{
	const struct dl_device device = {
		.type = DL_DEVICE_CUDA,
		.id = memory->resident < 0 ? memory->device : memory->resident,
	};
	struct export *export;
	int rc = cuda_check_life(memory->cuda, err);

	if (!rc)
		rc = tmesh_layout_check(layout, memory->bytes, NULL, err);
	if (!rc && tmesh_cuda_touch(memory))
		rc = tmesh_fail(err, -ESTALE, "the memory was taken back");
	if (rc)
		return rc;
	export = calloc(1, sizeof(*export));
	if (!export)
		return tmesh_fail(err, -ENOMEM, "no memory for a DLPack tensor");
	export->memory = tmesh_cuda_memory_ref(memory);
	*dl = dl_describe(layout, &export->dims,
			  (void *)(uintptr_t)(memory->pointer + layout->offset), device);
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
		return tmesh_fail(err, -EACCES,
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
		return tmesh_fail(err, -EOPNOTSUPP,
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
