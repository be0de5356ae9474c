// SPDX-License-Identifier: MIT
/* The element types: their widths and their names in refs. */
#include <string.h>

#include "internal.h"

static const struct {
	const char *name;
	unsigned int bits;
} dtypes[] = {
	[TMESH_BOOL] = {"bool", 8},
	[TMESH_INT8] = {"int8", 8},
	[TMESH_INT16] = {"int16", 16},
	[TMESH_INT32] = {"int32", 32},
	[TMESH_INT64] = {"int64", 64},
	[TMESH_UINT8] = {"uint8", 8},
	[TMESH_UINT16] = {"uint16", 16},
	[TMESH_UINT32] = {"uint32", 32},
	[TMESH_UINT64] = {"uint64", 64},
	[TMESH_FLOAT16] = {"float16", 16},
	[TMESH_FLOAT32] = {"float32", 32},
	[TMESH_FLOAT64] = {"float64", 64},
	[TMESH_BFLOAT16] = {"bfloat16", 16},
	[TMESH_FLOAT8_E4M3FN] = {"float8_e4m3fn", 8},
	[TMESH_FLOAT8_E5M2] = {"float8_e5m2", 8},
	[TMESH_COMPLEX64] = {"complex64", 64},
	[TMESH_COMPLEX128] = {"complex128", 128},
	[TMESH_INT4] = {"int4", 4},
	[TMESH_UINT4] = {"uint4", 4},
	[TMESH_FLOAT4_E2M1FN] = {"float4_e2m1fn", 4},
};

#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

unsigned int tmesh_dtype_bits(enum tmesh_dtype dtype)
{
	return (size_t)dtype < DTYPES ? dtypes[dtype].bits : 0;
}

const char *tmesh_dtype_name(enum tmesh_dtype dtype)
{
	return (size_t)dtype < DTYPES ? dtypes[dtype].name : NULL;
}

enum tmesh_dtype tmesh_dtype_from_name(const char *name)
{
	for (size_t i = 1; i < DTYPES; i++) {
		if (!strcmp(dtypes[i].name, name))
			return (enum tmesh_dtype)i;
	}
	return TMESH_DTYPE_INVALID;
}
