/* SPDX-License-Identifier: MIT */
/* Between layouts and DLPack's tensors, for memory of the CPU and of GPUs. */
#ifndef TMESH_DLPACK_TENSOR_H
#define TMESH_DLPACK_TENSOR_H

#include <string.h>

#include "dlpack_abi.h"
#include "public.h"

static const struct dl_data_type dl_types[] = {
	[TMESH_BOOL] = {DL_BOOL, 8, 1},
	[TMESH_INT8] = {DL_INT, 8, 1},
	[TMESH_INT16] = {DL_INT, 16, 1},
	[TMESH_INT32] = {DL_INT, 32, 1},
	[TMESH_INT64] = {DL_INT, 64, 1},
	[TMESH_UINT8] = {DL_UINT, 8, 1},
	[TMESH_UINT16] = {DL_UINT, 16, 1},
	[TMESH_UINT32] = {DL_UINT, 32, 1},
	[TMESH_UINT64] = {DL_UINT, 64, 1},
	[TMESH_FLOAT16] = {DL_FLOAT, 16, 1},
	[TMESH_FLOAT32] = {DL_FLOAT, 32, 1},
	[TMESH_FLOAT64] = {DL_FLOAT, 64, 1},
	[TMESH_BFLOAT16] = {DL_BFLOAT, 16, 1},
	[TMESH_FLOAT8_E4M3FN] = {DL_FLOAT8_E4M3FN, 8, 1},
	[TMESH_FLOAT8_E5M2] = {DL_FLOAT8_E5M2, 8, 1},
	[TMESH_COMPLEX64] = {DL_COMPLEX, 64, 1},
	[TMESH_COMPLEX128] = {DL_COMPLEX, 128, 1},
	[TMESH_INT4] = {DL_INT, 4, 1},
	[TMESH_UINT4] = {DL_UINT, 4, 1},
	[TMESH_FLOAT4_E2M1FN] = {DL_FLOAT4_E2M1FN, 4, 1},
};
#define DL_TYPES (sizeof(dl_types) / sizeof(dl_types[0]))

/* Copies: consumers get pointers that are not const. */
struct dl_dims {
	int64_t shape[TMESH_MAX_DIMS];
	int64_t strides[TMESH_MAX_DIMS];
};

/* Describe a tensor. One without elements has @data too: some consumers never release a NULL. */
static inline struct dl_tensor dl_describe(const struct tmesh_layout *layout, struct dl_dims *dims,
					   void *data, struct dl_device device)
{
	memcpy(dims->shape, layout->shape, sizeof(dims->shape));
	memcpy(dims->strides, layout->strides, sizeof(dims->strides));
	return (struct dl_tensor){
		.data = data,
		.device = device,
		.ndim = layout->ndim,
		.dtype = dl_types[layout->dtype],
		.shape = dims->shape,
		.strides = dims->strides,
	};
}

#endif /* TMESH_DLPACK_TENSOR_H */
