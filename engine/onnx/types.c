// SPDX-License-Identifier: MIT
/* Element types: ours and ONNX Runtime's. */
#include "onnx_internal.h"

static const int elements[] = {
	[TMESH_BOOL] = ORT_ELEMENT_BOOL,
	[TMESH_INT8] = ORT_ELEMENT_INT8,
	[TMESH_INT16] = ORT_ELEMENT_INT16,
	[TMESH_INT32] = ORT_ELEMENT_INT32,
	[TMESH_INT64] = ORT_ELEMENT_INT64,
	[TMESH_UINT8] = ORT_ELEMENT_UINT8,
	[TMESH_UINT16] = ORT_ELEMENT_UINT16,
	[TMESH_UINT32] = ORT_ELEMENT_UINT32,
	[TMESH_UINT64] = ORT_ELEMENT_UINT64,
	[TMESH_FLOAT16] = ORT_ELEMENT_FLOAT16,
	[TMESH_FLOAT32] = ORT_ELEMENT_FLOAT,
	[TMESH_FLOAT64] = ORT_ELEMENT_DOUBLE,
	[TMESH_BFLOAT16] = ORT_ELEMENT_BFLOAT16,
	[TMESH_FLOAT8_E4M3FN] = ORT_ELEMENT_FLOAT8E4M3FN,
	[TMESH_FLOAT8_E5M2] = ORT_ELEMENT_FLOAT8E5M2,
	[TMESH_COMPLEX64] = ORT_ELEMENT_COMPLEX64,
	[TMESH_COMPLEX128] = ORT_ELEMENT_COMPLEX128,
	[TMESH_INT4] = ORT_ELEMENT_INT4,
	[TMESH_UINT4] = ORT_ELEMENT_UINT4,
};
#define TYPES (sizeof(elements) / sizeof(elements[0]))

int onnx_element(enum tmesh_dtype dtype)
{
	return (size_t)dtype < TYPES ? elements[dtype] : 0;
}

enum tmesh_dtype onnx_dtype(int element)
{
	for (size_t i = 1; i < TYPES; i++)
		if (element && elements[i] == element)
			return (enum tmesh_dtype)i;
	return TMESH_DTYPE_INVALID;
}
