// SPDX-License-Identifier: MIT
/* XLA's element types by number. Types that a channel does not carry have a name too, for the error
 * that refuses them. XLA keeps each element of a 4-bit type in a byte of its own, and libtmesh
 * packs them. A hand-over does not convert elements, so channels do not carry 4-bit types. */
#include "call.h"

static const struct {
	const char *name;
	enum tmesh_dtype dtype;
} types[] = {
	[FFI_PRED] = {"bool", TMESH_BOOL},
	[2] = {"int8", TMESH_INT8},
	[3] = {"int16", TMESH_INT16},
	[4] = {"int32", TMESH_INT32},
	[FFI_S64] = {"int64", TMESH_INT64},
	[6] = {"uint8", TMESH_UINT8},
	[7] = {"uint16", TMESH_UINT16},
	[FFI_U32] = {"uint32", TMESH_UINT32},
	[9] = {"uint64", TMESH_UINT64},
	[10] = {"float16", TMESH_FLOAT16},
	[11] = {"float32", TMESH_FLOAT32},
	[12] = {"float64", TMESH_FLOAT64},
	[15] = {"complex64", TMESH_COMPLEX64},
	[16] = {"bfloat16", TMESH_BFLOAT16},
	[17] = {"token", TMESH_DTYPE_INVALID},
	[18] = {"complex128", TMESH_COMPLEX128},
	[19] = {"float8_e5m2", TMESH_FLOAT8_E5M2},
	[20] = {"float8_e4m3fn", TMESH_FLOAT8_E4M3FN},
	[21] = {"int4", TMESH_DTYPE_INVALID},
	[22] = {"uint4", TMESH_DTYPE_INVALID},
	[23] = {"float8_e4m3b11fnuz", TMESH_DTYPE_INVALID},
	[24] = {"float8_e5m2fnuz", TMESH_DTYPE_INVALID},
	[25] = {"float8_e4m3fnuz", TMESH_DTYPE_INVALID},
	[26] = {"int2", TMESH_DTYPE_INVALID},
	[27] = {"uint2", TMESH_DTYPE_INVALID},
	[28] = {"float8_e4m3", TMESH_DTYPE_INVALID},
	[29] = {"float8_e3m4", TMESH_DTYPE_INVALID},
	[30] = {"int1", TMESH_DTYPE_INVALID},
	[31] = {"uint1", TMESH_DTYPE_INVALID},
	[32] = {"float4_e2m1fn", TMESH_DTYPE_INVALID},
	[33] = {"float8_e8m0fnu", TMESH_DTYPE_INVALID},
};

static bool known(int number)
{
	return number >= 0 && (size_t)number < sizeof(types) / sizeof(types[0]) &&
	       types[number].name;
}

enum tmesh_dtype xla_dtype(int number)
{
	return known(number) ? types[number].dtype : TMESH_DTYPE_INVALID;
}

const char *xla_dtype_name(int number)
{
	return known(number) ? types[number].name : "unknown";
}
