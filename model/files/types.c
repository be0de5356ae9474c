// SPDX-License-Identifier: MIT
/* The element types of the formats: their names, their blocks, and their types in tmesh. */
#include "model_internal.h"

#include <string.h>

#define PLAIN(word, type, size)     \
	{                           \
		word, type, 1, size \
	}

/* https://github.com/huggingface/safetensors, safetensors/src/tensor.rs, enum Dtype. */
static const struct model_type safetensors_types[] = {
	PLAIN("BOOL", TMESH_BOOL, 1),
	{"F4", TMESH_FLOAT4_E2M1FN, 2, 1},
	{"F6_E2M3", TMESH_DTYPE_INVALID, 4, 3},
	{"F6_E3M2", TMESH_DTYPE_INVALID, 4, 3},
	PLAIN("U8", TMESH_UINT8, 1),
	PLAIN("I8", TMESH_INT8, 1),
	PLAIN("F8_E5M2", TMESH_FLOAT8_E5M2, 1),
	PLAIN("F8_E4M3", TMESH_FLOAT8_E4M3FN, 1),
	PLAIN("F8_E8M0", TMESH_DTYPE_INVALID, 1),
	PLAIN("F8_E4M3FNUZ", TMESH_DTYPE_INVALID, 1),
	PLAIN("F8_E5M2FNUZ", TMESH_DTYPE_INVALID, 1),
	PLAIN("I16", TMESH_INT16, 2),
	PLAIN("U16", TMESH_UINT16, 2),
	PLAIN("F16", TMESH_FLOAT16, 2),
	PLAIN("BF16", TMESH_BFLOAT16, 2),
	PLAIN("I32", TMESH_INT32, 4),
	PLAIN("U32", TMESH_UINT32, 4),
	PLAIN("F32", TMESH_FLOAT32, 4),
	PLAIN("C64", TMESH_COMPLEX64, 8),
	PLAIN("F64", TMESH_FLOAT64, 8),
	PLAIN("I64", TMESH_INT64, 8),
	PLAIN("U64", TMESH_UINT64, 8),
};

/* https://github.com/ggml-org/ggml, include/ggml.h, enum ggml_type; the blocks as in the package
 * gguf (GGML_QUANT_SIZES). The numbers that are missing were given up. */
static const struct model_type gguf_types[] = {
	[0] = PLAIN("F32", TMESH_FLOAT32, 4),
	[1] = PLAIN("F16", TMESH_FLOAT16, 2),
	[2] = {"Q4_0", TMESH_DTYPE_INVALID, 32, 18},
	[3] = {"Q4_1", TMESH_DTYPE_INVALID, 32, 20},
	[6] = {"Q5_0", TMESH_DTYPE_INVALID, 32, 22},
	[7] = {"Q5_1", TMESH_DTYPE_INVALID, 32, 24},
	[8] = {"Q8_0", TMESH_DTYPE_INVALID, 32, 34},
	[9] = {"Q8_1", TMESH_DTYPE_INVALID, 32, 36},
	[10] = {"Q2_K", TMESH_DTYPE_INVALID, 256, 84},
	[11] = {"Q3_K", TMESH_DTYPE_INVALID, 256, 110},
	[12] = {"Q4_K", TMESH_DTYPE_INVALID, 256, 144},
	[13] = {"Q5_K", TMESH_DTYPE_INVALID, 256, 176},
	[14] = {"Q6_K", TMESH_DTYPE_INVALID, 256, 210},
	[15] = {"Q8_K", TMESH_DTYPE_INVALID, 256, 292},
	[16] = {"IQ2_XXS", TMESH_DTYPE_INVALID, 256, 66},
	[17] = {"IQ2_XS", TMESH_DTYPE_INVALID, 256, 74},
	[18] = {"IQ3_XXS", TMESH_DTYPE_INVALID, 256, 98},
	[19] = {"IQ1_S", TMESH_DTYPE_INVALID, 256, 50},
	[20] = {"IQ4_NL", TMESH_DTYPE_INVALID, 32, 18},
	[21] = {"IQ3_S", TMESH_DTYPE_INVALID, 256, 110},
	[22] = {"IQ2_S", TMESH_DTYPE_INVALID, 256, 82},
	[23] = {"IQ4_XS", TMESH_DTYPE_INVALID, 256, 136},
	[24] = PLAIN("I8", TMESH_INT8, 1),
	[25] = PLAIN("I16", TMESH_INT16, 2),
	[26] = PLAIN("I32", TMESH_INT32, 4),
	[27] = PLAIN("I64", TMESH_INT64, 8),
	[28] = PLAIN("F64", TMESH_FLOAT64, 8),
	[29] = {"IQ1_M", TMESH_DTYPE_INVALID, 256, 56},
	[30] = PLAIN("BF16", TMESH_BFLOAT16, 2),
	[34] = {"TQ1_0", TMESH_DTYPE_INVALID, 256, 54},
	[35] = {"TQ2_0", TMESH_DTYPE_INVALID, 256, 66},
	[39] = {"MXFP4", TMESH_DTYPE_INVALID, 32, 17},
	[40] = {"NVFP4", TMESH_DTYPE_INVALID, 64, 36},
	[41] = {"Q1_0", TMESH_DTYPE_INVALID, 128, 18},
	[42] = {"Q2_0", TMESH_DTYPE_INVALID, 64, 18},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

const struct model_type *model_type_safetensors(const char *name)
{
	for (size_t i = 0; i < COUNT(safetensors_types); i++) {
		if (!strcmp(safetensors_types[i].name, name))
			return &safetensors_types[i];
	}
	return NULL;
}

const struct model_type *model_type_safetensors_at(uint32_t number)
{
	return number < COUNT(safetensors_types) ? &safetensors_types[number] : NULL;
}

uint32_t model_type_safetensors_number(const struct model_type *type)
{
	return (uint32_t)(type - safetensors_types);
}

const struct model_type *model_type_gguf(uint32_t number)
{
	return number < COUNT(gguf_types) && gguf_types[number].name ? &gguf_types[number] : NULL;
}

const char *model_type_word(enum tmesh_dtype dtype)
{
	for (size_t i = 0; dtype && i < COUNT(safetensors_types); i++) {
		if (safetensors_types[i].dtype == dtype)
			return safetensors_types[i].name;
	}
	return NULL;
}

bool model_type_bytes(const struct model_type *type, int32_t ndim, const int64_t *shape,
		      uint64_t *bytes, bool *even)
{
	uint64_t count = 1;

	for (int32_t i = 0; i < ndim; i++) {
		if (__builtin_mul_overflow(count, (uint64_t)shape[i], &count))
			return false;
	}
	*even = count % type->block_elements == 0;
	return !__builtin_mul_overflow(count / type->block_elements, (uint64_t)type->block_bytes,
				       bytes);
}
