/* SPDX-License-Identifier: MIT */
/*
 * Graphs: a computation for an engine, as a static graph of nodes, each with one value (SSA). Part
 * of libtmesh-engine; see tmesh/tmesh.h for the conventions of all calls. Since 0.2.
 * Maturity: experimental.
 *
 * A graph does not contain the place where it runs. It is built by calls, or read from text. It can
 * be written as text, JSON and DOT. An engine that takes graphs ("ggml") opens a file of its text
 * by tmesh_engine_graph_open(). Shapes have the fastest dimension last. docs/reference/engines.md
 * has the formats.
 *
 * A graph belongs to one thread while it is built; complete, any number may read it.
 */
#ifndef TMESH_GRAPH_H
#define TMESH_GRAPH_H

#include <tmesh/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_graph;

#define TMESH_GRAPH_MAX_NODES 65536
#define TMESH_GRAPH_MAX_OUTPUTS 1024
#define TMESH_GRAPH_MAX_INPUTS 8
/* For nodes, outputs and graphs: letters, digits and "_.-/", and as long as ggml has room for. */
#define TMESH_GRAPH_NAME_LEN 63

/* All computation is in float32; T, C, D and the like are dimensions, "..." any number of them. */
enum tmesh_graph_op {
	TMESH_GRAPH_INPUT = 1,	/* given at each run: @dtype, @shape */
	TMESH_GRAPH_WEIGHT = 2, /* given once: @dtype, @shape, @quant */
	/* a[..., T, K], b[..., N, K] -> [..., T, N]: rows by rows (a times the transpose of b), as
	 * files have weights. If a has more than two dimensions, b may still have two. */
	TMESH_GRAPH_MATMUL = 3,
	/* x[..., D], scale[D] (may be left out) -> x's shape; @eps */
	TMESH_GRAPH_RMS_NORM = 4,
	/* x[..., D], scale[D], bias[D] (bias, or both, may be left out) -> x's shape; @eps */
	TMESH_GRAPH_LAYER_NORM = 5,
	/* x[T, H, D], positions int32[T], factors[D / 2] (may be left out) -> x's shape. The first
	 * @dims (0: all) of each row are turned, by frequencies of @base (0: 10000), each divided
	 * by its factor. Pairs are neighbours, or, with @halves, one of each half. */
	TMESH_GRAPH_ROPE = 6,
	TMESH_GRAPH_SOFTMAX = 7, /* x[..., D] times @scale (0: 1), over the last dimension */
	/* a, b -> a's shape; b's dimensions, counted from the last, are a's or 1, or missing */
	TMESH_GRAPH_ADD = 8,
	TMESH_GRAPH_MUL = 9,
	TMESH_GRAPH_SILU = 10,
	TMESH_GRAPH_GELU = 11, /* by its tanh approximation */
	/* table[N, D], rows int32[T] -> [T, D] */
	TMESH_GRAPH_GET_ROWS = 12,
	/* past[C, D] (an input, or another set_rows), new[T, D], rows int64[T] -> [C, D]: the past
	 * with those rows replaced. It lies in the past's memory: the binding says so with
	 * in_place, of the last one where several replace rows of one past. */
	TMESH_GRAPH_SET_ROWS = 13,
	TMESH_GRAPH_RESHAPE = 14,   /* x -> @shape */
	TMESH_GRAPH_TRANSPOSE = 15, /* x -> dimension i is x's dimension @axes[i] */
	TMESH_GRAPH_CONCAT = 16,    /* two or more of one shape but for dimension @axis */
	/* q[T, H, D], k[C, G, D], v[C, G, D], positions int32[T] -> [T, H, D]: query t sees the
	 * rows 0 to positions[t]. H is a multiple of G. @scale (0: 1 / sqrt(D)).
	 * By block tables: k[P, B, G, D], v[P, B, G, D] are blocks of B rows. Two more inputs name
	 * the blocks of S sequences: tables int32[S, M], and those of v (may be left out: the
	 * same). The T queries are T / S of each sequence, in order; row n of sequence s is row n %
	 * B of block tables[s, n / B]. */
	TMESH_GRAPH_ATTENTION = 17,
	/* x[..., T, K], w[N, K], a[R, K], b[N, R], scale float32[1] (may be left out: 1) ->
	 * [..., T, N]. It is a matmul of x and w, plus scale times that of x by a, then by b.
	 * Usually a, b and scale are inputs, which tmesh_engine_binding_rebind() replaces. */
	TMESH_GRAPH_LORA = 18,
};
/* "matmul"; NULL: no such operator. 0: no operator of that name. */
const char *tmesh_graph_op_name(enum tmesh_graph_op op);
enum tmesh_graph_op tmesh_graph_op_from_name(const char *name);
/* Type of blocks @index, from 0, that a weight may have: its name in GGUF, and how many elements
 * and bytes a block has (either may be NULL). NULL: there are no more. */
const char *tmesh_graph_quant(size_t index, uint32_t *block_elements, uint32_t *block_bytes);

/* Hints about a value's use, for engines and placement. None has to heed them. */
enum tmesh_graph_cache {
	TMESH_GRAPH_CACHE_NONE = 0,
	TMESH_GRAPH_CACHE_REUSE = 1,  /* read again by later runs: keys and values */
	TMESH_GRAPH_CACHE_STREAM = 2, /* read once: not worth a place in a cache */
};

struct tmesh_graph_node {
	size_t size; /* sizeof(struct tmesh_graph_node) */
	const char *name;
	enum tmesh_graph_op op;
	uint32_t input_count;
	uint32_t inputs[TMESH_GRAPH_MAX_INPUTS]; /* nodes that were added before, by index */
	/* Given for inputs, weights and reshapes as above. For other nodes they are inferred, and
	 * compared if given (@ndim, @dtype not 0). float32, float16, bfloat16, int32, int64. */
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
	/* Attributes that the operators above name; zero elsewhere. */
	float eps;
	float scale;
	float base;
	uint32_t dims;
	bool halves;
	int32_t axis;
	int32_t axes[TMESH_MAX_DIMS];
	/* A weight whose memory has blocks of this type of GGUF, "Q8_0", as bytes; @dtype is
	 * float32. NULL: none. */
	const char *quant;
	enum tmesh_graph_cache cache;
	uint32_t reserved; /* 0 */
};

/*
 * An empty graph. Return: 0 and a reference in @out; -EINVAL (@name), -ENOMEM.
 */
int tmesh_graph_create(const char *name, struct tmesh_graph **out, struct tmesh_error *err);
struct tmesh_graph *tmesh_graph_ref(struct tmesh_graph *graph);
void tmesh_graph_unref(struct tmesh_graph *graph);

/*
 * Add a node, and its index in @index (may be NULL). Everything is copied. After an error the graph
 * is as before. Return: 0; -EINVAL (a name twice or none, a missing input, dtypes, shapes or
 * attributes that the operator does not take; the message names the node); -ENOMEM. For sizes:
 * -EOVERFLOW (more than 2^48 elements), -E2BIG (too many nodes).
 */
int tmesh_graph_add(struct tmesh_graph *graph, const struct tmesh_graph_node *node, uint32_t *index,
		    struct tmesh_error *err);
/* Node @index is an output by the name of @name. Return: 0; -EINVAL (a name twice, no such node; an
 * input or weight, which is no result), -ENOMEM. */
int tmesh_graph_add_output(struct tmesh_graph *graph, const char *name, uint32_t index,
			   struct tmesh_error *err);

/* Texts live as long as the graph. */
const char *tmesh_graph_name(const struct tmesh_graph *graph);
size_t tmesh_graph_nodes(const struct tmesh_graph *graph);
size_t tmesh_graph_outputs(const struct tmesh_graph *graph);
/* Inputs of a node have smaller indices than the node. -EINVAL: no such index. */
int tmesh_graph_node(const struct tmesh_graph *graph, size_t index, struct tmesh_graph_node *out,
		     struct tmesh_error *err);
/* The node of an output, and its name in @name (may be NULL). -EINVAL: no such index. */
int tmesh_graph_output(const struct tmesh_graph *graph, size_t index, uint32_t *node,
		       const char **name, struct tmesh_error *err);
/* A node by its name. -ENOENT. */
int tmesh_graph_find(const struct tmesh_graph *graph, const char *name, uint32_t *index,
		     struct tmesh_error *err);

/*
 * Read a graph from @bytes of text. Nodes may stand in any order. Everything is checked, because
 * the text may be hostile. Return: 0; -EPROTO (malformed; an unknown operator or attribute, a
 * cycle, an input that is no node, dtypes or shapes as for tmesh_graph_add()); -ENOMEM. For sizes:
 * -E2BIG (more than 16 MiB, or too many nodes).
 */
int tmesh_graph_parse(const char *text, size_t bytes, struct tmesh_graph **out,
		      struct tmesh_error *err);
/* The same from a file; errors of reading it too. */
int tmesh_graph_read(const char *path, struct tmesh_graph **out, struct tmesh_error *err);

/* Written anew, to be released with free(). NULL: no memory. DOT is Graphviz's language; weights of
 * a node are named in it. */
char *tmesh_graph_to_json(const struct tmesh_graph *graph);
char *tmesh_graph_to_text(const struct tmesh_graph *graph);
char *tmesh_graph_to_dot(const struct tmesh_graph *graph);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_GRAPH_H */
