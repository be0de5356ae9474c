// SPDX-License-Identifier: MIT
/* Tables of operators, types and names. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "graph_internal.h"

static const struct graph_op ops[] = {
	[TMESH_GRAPH_INPUT] = {"input", 0, 0, ATTR_TYPE},
	[TMESH_GRAPH_WEIGHT] = {"weight", 0, 0, ATTR_TYPE | ATTR_QUANT},
	[TMESH_GRAPH_MATMUL] = {"matmul", 2, 2, 0},
	[TMESH_GRAPH_RMS_NORM] = {"rms_norm", 1, 2, ATTR_EPS},
	[TMESH_GRAPH_LAYER_NORM] = {"layer_norm", 1, 3, ATTR_EPS},
	[TMESH_GRAPH_ROPE] = {"rope", 2, 3, ATTR_BASE | ATTR_DIMS | ATTR_HALVES},
	[TMESH_GRAPH_SOFTMAX] = {"softmax", 1, 1, ATTR_SCALE},
	[TMESH_GRAPH_ADD] = {"add", 2, 2, 0},
	[TMESH_GRAPH_MUL] = {"mul", 2, 2, 0},
	[TMESH_GRAPH_SILU] = {"silu", 1, 1, 0},
	[TMESH_GRAPH_GELU] = {"gelu", 1, 1, 0},
	[TMESH_GRAPH_GET_ROWS] = {"get_rows", 2, 2, 0},
	[TMESH_GRAPH_SET_ROWS] = {"set_rows", 3, 3, 0},
	[TMESH_GRAPH_LORA] = {"lora", 4, 5, 0},
	[TMESH_GRAPH_RESHAPE] = {"reshape", 1, 1, ATTR_SHAPE},
	[TMESH_GRAPH_TRANSPOSE] = {"transpose", 1, 1, ATTR_AXES},
	[TMESH_GRAPH_CONCAT] = {"concat", 2, TMESH_GRAPH_MAX_INPUTS, ATTR_AXIS},
	[TMESH_GRAPH_ATTENTION] = {"attention", 4, 6, ATTR_SCALE},
};
#define OPS (sizeof(ops) / sizeof(ops[0]))

/*
 * ggml's table of types (ggml.c, type_traits) without Q8_1 and Q8_K. Those are types of
 * intermediate values: ggml has no multiplication by weights of them. An engine compares this table
 * with its own ggml's.
 */
static const struct graph_quant quants[] = {
	{"Q4_0", 2, 32, 18},	  {"Q4_1", 3, 32, 20},	    {"Q5_0", 6, 32, 22},
	{"Q5_1", 7, 32, 24},	  {"Q8_0", 8, 32, 34},	    {"Q2_K", 10, 256, 84},
	{"Q3_K", 11, 256, 110},	  {"Q4_K", 12, 256, 144},   {"Q5_K", 13, 256, 176},
	{"Q6_K", 14, 256, 210},	  {"IQ2_XXS", 16, 256, 66}, {"IQ2_XS", 17, 256, 74},
	{"IQ3_XXS", 18, 256, 98}, {"IQ1_S", 19, 256, 50},   {"IQ4_NL", 20, 32, 18},
	{"IQ3_S", 21, 256, 110},  {"IQ2_S", 22, 256, 82},   {"IQ4_XS", 23, 256, 136},
	{"IQ1_M", 29, 256, 56},	  {"TQ1_0", 34, 256, 54},   {"TQ2_0", 35, 256, 66},
	{"MXFP4", 39, 32, 17},	  {"NVFP4", 40, 64, 36},    {"Q1_0", 41, 128, 18},
	{"Q2_0", 42, 64, 18},
};

static const struct {
	enum tmesh_dtype dtype;
	const char *name;
} dtypes[] = {
	{TMESH_FLOAT32, "float32"}, {TMESH_FLOAT16, "float16"}, {TMESH_BFLOAT16, "bfloat16"},
	{TMESH_INT32, "int32"},	    {TMESH_INT64, "int64"},
};

static const char *const caches[] = {"none", "reuse", "stream"};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

const struct graph_op *graph_op(enum tmesh_graph_op op)
{
	return op > 0 && (size_t)op < OPS ? &ops[op] : NULL;
}

const char *tmesh_graph_op_name(enum tmesh_graph_op op)
{
	return graph_op(op) ? graph_op(op)->name : NULL;
}

enum tmesh_graph_op tmesh_graph_op_from_name(const char *name)
{
	for (size_t i = 1; name && i < OPS; i++)
		if (!strcmp(ops[i].name, name))
			return (enum tmesh_graph_op)i;
	return 0;
}

const struct graph_quant *graph_quant(const char *name)
{
	for (size_t i = 0; name && i < COUNT(quants); i++)
		if (!strcmp(quants[i].name, name))
			return &quants[i];
	return NULL;
}

const char *tmesh_graph_quant(size_t index, uint32_t *block_elements, uint32_t *block_bytes)
{
	if (index >= COUNT(quants))
		return NULL;
	if (block_elements)
		*block_elements = quants[index].block_elements;
	if (block_bytes)
		*block_bytes = quants[index].block_bytes;
	return quants[index].name;
}

const char *graph_dtype_name(enum tmesh_dtype dtype)
{
	for (size_t i = 0; i < COUNT(dtypes); i++)
		if (dtypes[i].dtype == dtype)
			return dtypes[i].name;
	return NULL;
}

enum tmesh_dtype graph_dtype(const char *name)
{
	for (size_t i = 0; name && i < COUNT(dtypes); i++)
		if (!strcmp(dtypes[i].name, name))
			return dtypes[i].dtype;
	return TMESH_DTYPE_INVALID;
}

const char *graph_cache_name(enum tmesh_graph_cache cache)
{
	return (size_t)cache < COUNT(caches) ? caches[cache] : NULL;
}

int graph_cache(const char *name)
{
	for (size_t i = 0; name && i < COUNT(caches); i++)
		if (!strcmp(caches[i], name))
			return (int)i;
	return -1;
}

bool graph_name_ok(const char *name)
{
	size_t length = name ? strnlen(name, TMESH_GRAPH_NAME_LEN + 1) : 0;

	return length && length <= TMESH_GRAPH_NAME_LEN &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/") ==
		       length;
}

const char *graph_shape_text(const struct tmesh_graph_node *node, char *text)
{
	int at = sprintf(text, "[");

	for (int i = 0; i < node->ndim; i++)
		at += sprintf(text + at, "%s%" PRId64, i ? "," : "", node->shape[i]);
	sprintf(text + at, "]");
	return text;
}
