// SPDX-License-Identifier: MIT
/*
 * DLPack, both ways and in both forms.
 *
 * The two managed tensors differ in their envelope alone, so each public call unpacks the
 * envelope and shares the rest.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/dlpack_tensor.h"
#include "layout.h"
#include "tensor_internal.h"

/* A managed tensor of ours, and the memory that lives as long as it does. */
struct export
{
	union {
		struct DLManagedTensor managed;
		struct DLManagedTensorVersioned versioned;
	};
	struct tmesh_tensor *tensor;
	struct dl_dims dims;
};

static void export_free(struct export *export)
{
	tmesh_tensor_unref(export->tensor);
	free(export);
}

static void export_delete(struct DLManagedTensor *managed)
{
	export_free(managed->manager_ctx);
}

static void export_delete_versioned(struct DLManagedTensorVersioned *managed)
{
	export_free(managed->manager_ctx);
}

/* Make a mapped export of @tensor and describe its tensor, not its envelope, in @dl. */
static int export_new(struct tmesh_tensor *tensor, uint32_t rights, struct export **out,
		      struct dl_tensor *dl, struct tmesh_error *err)
{
	struct export *export;
	void *data;
	int rc;

	rc = tmesh_tensor_data(tensor, rights, &data, err);
	if (rc)
		return rc;
	export = calloc(1, sizeof(*export));
	if (!export)
		return tmesh_fail(err, -ENOMEM, "no memory for a DLPack tensor");
	export->tensor = tmesh_tensor_ref(tensor);
	*dl = dl_describe(tmesh_tensor_layout(tensor), &export->dims, data,
			  (struct dl_device){.type = DL_DEVICE_CPU});
	*out = export;
	return 0;
}

int tmesh_tensor_to_dlpack(struct tmesh_tensor *tensor, uint32_t rights, uint32_t flags,
			   struct DLManagedTensor **out, struct tmesh_error *err)
{
	struct export *export;
	struct dl_tensor dl;
	int rc = TMESH_NEED(err, tensor, out);

	if (rc)
		return rc;
	if (flags & ~TMESH_DLPACK_ALLOW_READONLY)
		return tmesh_fail(err, -EINVAL, "unknown flags 0x%x", flags);
	if (!(rights & TMESH_WRITE) && !(flags & TMESH_DLPACK_ALLOW_READONLY))
		return tmesh_fail(err, -EACCES,
				  "an unversioned DLPack tensor cannot say that it is read-only: "
				  "ask for the versioned one");
	rc = export_new(tensor, rights, &export, &dl, err);
	if (rc)
		return rc;
	export->managed = (struct DLManagedTensor){
		.dl_tensor = dl,
		.manager_ctx = export,
		.deleter = export_delete,
	};
	*out = &export->managed;
	return 0;
}

int tmesh_tensor_to_dlpack_versioned(struct tmesh_tensor *tensor, uint32_t rights,
				     uint32_t max_major, struct DLManagedTensorVersioned **out,
				     struct tmesh_error *err)
{
	struct export *export;
	struct dl_tensor dl;
	int rc = TMESH_NEED(err, tensor, out);

	if (rc)
		return rc;
	if (max_major < DLPACK_MAJOR)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "DLPack before version 1 has no versioned tensors: ask for the "
				  "unversioned one");
	rc = export_new(tensor, rights, &export, &dl, err);
	if (rc)
		return rc;
	export->versioned = (struct DLManagedTensorVersioned){
		.version = {DLPACK_MAJOR, DLPACK_MINOR},
		.manager_ctx = export,
		.deleter = export_delete_versioned,
		.flags = rights & TMESH_WRITE ? 0 : DL_FLAG_READ_ONLY,
		.dl_tensor = dl,
	};
	*out = &export->versioned;
	return 0;
}

static enum tmesh_dtype dtype_of(const struct dl_data_type *type)
{
	for (size_t i = 1; i < DL_TYPES; i++) {
		if (dl_types[i].code == type->code && dl_types[i].bits == type->bits)
			return (enum tmesh_dtype)i;
	}
	return TMESH_DTYPE_INVALID;
}

/*
 * Read the layout of a foreign tensor and the address of its element with all indices 0. Its memory
 * cannot be checked, but nothing else is trusted.
 */
static int import_layout(const struct dl_tensor *dl, struct tmesh_layout *layout, const char **data,
			 struct tmesh_error *err)
{
	enum tmesh_dtype dtype = dtype_of(&dl->dtype);
	uintptr_t first, edge;
	uint64_t extent;
	int64_t low, high;
	int rc;

	if (dl->device.type != DL_DEVICE_CPU)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the tensor lies on DLPack device %d: move it to the CPU first",
				  (int)dl->device.type);
	if (dtype == TMESH_DTYPE_INVALID || dl->dtype.lanes != 1)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "DLPack type (code %u, %u bits, %u lanes) is not supported: view "
				  "it as uint8",
				  dl->dtype.code, dl->dtype.bits, dl->dtype.lanes);

	rc = tmesh_layout_contiguous(layout, dtype, dl->ndim, dl->shape, err);
	if (rc)
		return rc;
	if (dl->strides)
		memcpy(layout->strides, dl->strides, sizeof(int64_t) * (size_t)dl->ndim);
	rc = tmesh_layout_measure(layout, &extent, &low, &high, err);
	if (rc)
		return rc;

	*data = NULL;
	if (!extent)
		return 0;
	if (!dl->data)
		return tmesh_fail(err, -EINVAL, "the DLPack tensor has elements, but no data");
	if (__builtin_add_overflow((uintptr_t)dl->data, dl->byte_offset, &first) ||
	    __builtin_add_overflow(first, low, &edge) || __builtin_add_overflow(first, high, &edge))
		return tmesh_fail(err, -EOVERFLOW,
				  "the DLPack tensor reaches beyond the address space");
	*data = (const char *)first;
	return 0;
}

static int import_strided(struct tmesh_ctx *ctx, const struct tmesh_layout *layout,
			  const void *data, const struct tmesh_region_opts *opts,
			  struct tmesh_tensor **out, struct tmesh_error *err)
{
	struct tmesh_region_opts checked;
	struct tmesh_tensor *tensor;
	int rc;

	rc = tmesh_read_tensor_opts(opts, &checked, err);
	if (rc)
		return rc;
	rc = tmesh_tensor_create(ctx, layout->dtype, layout->ndim, layout->shape, opts, &tensor,
				 err);
	if (rc)
		return rc;
	rc = tmesh_region_pack(tensor->region, tensor->layout.offset, data, layout, tensor->bytes,
			       err);
	if (!rc) {
		tmesh_count_copy(ctx, tensor->bytes);
		rc = tmesh_opts_seal(&checked) ? tmesh_region_seal(tensor->region, err) : 0;
	}
	if (rc)
		tmesh_tensor_unref(tensor);
	else
		*out = tensor;
	return rc;
}

static int import(struct tmesh_ctx *ctx, const struct dl_tensor *dl,
		  const struct tmesh_region_opts *opts, struct tmesh_tensor **out,
		  struct tmesh_error *err)
{
	struct tmesh_layout layout;
	const char *data;
	int rc;

	rc = import_layout(dl, &layout, &data, err);
	if (rc)
		return rc;
	if (tmesh_layout_is_contiguous(&layout))
		return tmesh_tensor_put(ctx, layout.dtype, layout.ndim, layout.shape, data, opts,
					out, err);
	return import_strided(ctx, &layout, data, opts, out, err);
}

int tmesh_tensor_from_dlpack(struct tmesh_ctx *ctx, const struct DLManagedTensor *managed,
			     const struct tmesh_region_opts *opts, struct tmesh_tensor **out,
			     struct tmesh_error *err)
{
	if (TMESH_NEED(err, ctx, managed, out))
		return -EINVAL;
	if (managed->deleter == export_delete) {
		struct export *export = managed->manager_ctx;

		*out = tmesh_tensor_ref(export->tensor);
		return 0;
	}
	return import(ctx, &managed->dl_tensor, opts, out, err);
}

int tmesh_tensor_from_dlpack_versioned(struct tmesh_ctx *ctx,
				       const struct DLManagedTensorVersioned *managed,
				       const struct tmesh_region_opts *opts,
				       struct tmesh_tensor **out, struct tmesh_error *err)
{
	if (TMESH_NEED(err, ctx, managed, out))
		return -EINVAL;
	if (managed->deleter == export_delete_versioned) {
		struct export *export = managed->manager_ctx;

		*out = tmesh_tensor_ref(export->tensor);
		return 0;
	}
	if (managed->version.major != DLPACK_MAJOR)
		return tmesh_fail(err, -EOPNOTSUPP, "DLPack %u.%u is not known: ask for %d.x",
				  managed->version.major, managed->version.minor, DLPACK_MAJOR);
	/* Packed and padded elements of one byte or more are the same. */
	if ((managed->flags & DL_FLAG_SUBBYTE_PADDED) && managed->dl_tensor.dtype.bits < 8)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "elements of %u bits padded to bytes are not supported: pack "
				  "them",
				  managed->dl_tensor.dtype.bits);
	return import(ctx, &managed->dl_tensor, opts, out, err);
}
