/* SPDX-License-Identifier: MIT */
/*
 * Declarations that the files of graphs share. They use only lib/common/ and jansson, so that
 * plug-ins can contain them too.
 */
#ifndef TMESH_ENGINE_GRAPH_INTERNAL_H
#define TMESH_ENGINE_GRAPH_INTERNAL_H

#include <stdatomic.h>

#include "common/error.h"
#include "common/sized.h"

#pragma GCC visibility push(default)
#include <tmesh/graph.h>
#pragma GCC visibility pop

#define GRAPH_MAX_BYTES (16 << 20)
#define GRAPH_MAX_ELEMENTS (1ll << 48)

struct graph_output {
	char *name;
	uint32_t node;
};

struct tmesh_graph {
	atomic_uint refs;
	char *name;
	struct tmesh_graph_node *nodes; /* names are owned, a quant is the table's */
	size_t node_count, node_room;
	struct graph_output *outputs;
	size_t output_count, output_room;
	uint32_t *names; /* a hash table with open addressing: index + 1 of a node, 0: free */
	size_t name_room;
};

/* graph_ops.c */
/* Attributes of an operator. */
enum {
	ATTR_TYPE = 1 << 0, /* dtype and shape are given, not inferred */
	ATTR_EPS = 1 << 1,
	ATTR_SCALE = 1 << 2,
	ATTR_BASE = 1 << 3,
	ATTR_DIMS = 1 << 4,
	ATTR_HALVES = 1 << 5,
	ATTR_AXIS = 1 << 6,
	ATTR_AXES = 1 << 7,
	ATTR_QUANT = 1 << 8,
	ATTR_SHAPE = 1 << 9, /* the shape is given */
};
struct graph_op {
	const char *name;
	uint32_t least, most; /* inputs */
	uint32_t attrs;
};
/* Return NULL if there is no such operator. */
const struct graph_op *graph_op(enum tmesh_graph_op op);

/* A block type of GGUF. */
struct graph_quant {
	const char *name;
	int gguf; /* its number in GGUF and in ggml */
	uint32_t block_elements;
	uint32_t block_bytes;
};
const struct graph_quant *graph_quant(const char *name);
/* Return NULL or TMESH_DTYPE_INVALID for a type that graphs do not have. */
const char *graph_dtype_name(enum tmesh_dtype dtype);
enum tmesh_dtype graph_dtype(const char *name);
const char *graph_cache_name(enum tmesh_graph_cache cache);
/* Return -1 if none has that name. */
int graph_cache(const char *name);
bool graph_name_ok(const char *name);
/* Write a shape such as "[1,64]". */
#define GRAPH_SHAPE_TEXT (TMESH_MAX_DIMS * 21 + 3)
const char *graph_shape_text(const struct tmesh_graph_node *node, char *text);

/* graph_infer.c: set a node's dtype and shape from its inputs, and check its attributes. */
int graph_infer(const struct tmesh_graph *graph, struct tmesh_graph_node *node,
		struct tmesh_error *err);

/* graph_draft.c: nodes as a file has them, in any order, with inputs by name. */
struct draft_node {
	struct tmesh_graph_node node; /* name is owned */
	char *inputs[TMESH_GRAPH_MAX_INPUTS];
};
struct draft_output {
	char *name, *node;
};
struct draft {
	char *name;
	struct draft_node *nodes;
	size_t node_count, node_room;
	struct draft_output *outputs;
	size_t output_count, output_room;
};
/* Add a node of zeros; NULL with @err set: no room. */
struct draft_node *draft_add(struct draft *draft, struct tmesh_error *err);
int draft_add_output(struct draft *draft, const char *name, const char *node,
		     struct tmesh_error *err);
/* Make room for one more item in @list, which has @count. */
int graph_grow(void **list, size_t count, size_t *room, size_t item, size_t most,
	       struct tmesh_error *err);

/* graph_text.c */
int graph_read_text(const char *text, size_t bytes, struct draft *draft, struct tmesh_error *err);

#endif /* TMESH_ENGINE_GRAPH_INTERNAL_H */
