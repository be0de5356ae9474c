/* SPDX-License-Identifier: MIT */
/*
 * A graph of tmesh/graph.h over several engines: each part of it runs on its own, and values lie in
 * regions that all of them have. Part of libtmesh-engine; see tmesh/tmesh.h for the conventions of
 * all calls. Which node runs where is the caller's to say, or tmesh_costs_find()'s. Since 0.2.
 *
 * Parts run one after another. What goes from one to the next is written once, where the next one
 * reads it: nothing is copied.
 */
#ifndef TMESH_PLACED_H
#define TMESH_PLACED_H

#include <tmesh/engine.h>
#include <tmesh/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_placed;
/* With its inputs and outputs, checked once and run often. */
struct tmesh_placed_binding;

struct tmesh_placed_opts {
	size_t size; /* sizeof(struct tmesh_placed_opts) */
	struct tmesh_engine_context *const *contexts;
	size_t context_count;
	/* Of each node of the graph: which of the contexts runs it. Not looked at for inputs,
	 * weights and reshapes, which go with who reads them. */
	const uint32_t *at;
	const struct tmesh_engine_weight *weights; /* all of the graph's */
	size_t weight_count;
	/* Where the parts are written, for the engines to read: of engines in processes of their
	 * own a folder of models. The files go with the last reference. */
	const char *folder;
};

/*
 * Nodes that can run together are one part, a graph of its own, which is opened. Return: 0 and a
 * reference in @out; -EINVAL (opts; a node at no context, a weight that was not given; rows that a
 * "set_rows" replaces and another node reads too); errors of writing files; as
 * tmesh_engine_graph_open().
 */
int tmesh_placed_create(struct tmesh_graph *graph, const struct tmesh_placed_opts *opts,
			struct tmesh_placed **out, struct tmesh_error *err);
struct tmesh_placed *tmesh_placed_ref(struct tmesh_placed *placed);
void tmesh_placed_unref(struct tmesh_placed *placed);
/* Its parts: tmesh_graph_part(). They live as long as @placed. */
const struct tmesh_graph_parts *tmesh_placed_parts(const struct tmesh_placed *placed);

/* An input of the graph, or an output, by its name. */
struct tmesh_placed_value {
	const char *name;
	struct tmesh_tensor *tensor; /* contiguous, in a region that can be written where the graph
				      * writes */
};

/*
 * Check and bind once. The output of a "set_rows" is the tensor of its past, whether it is given or
 * not. Values between parts get regions of @ctx. The binding keeps all of them. Return: 0; -ENOENT
 * (no output of that name), -EINVAL (an input that is missing; an output that lies in the memory of
 * another one or of its past, and another tensor was given); as tmesh_engine_bind().
 */
int tmesh_placed_bind(struct tmesh_placed *placed, struct tmesh_ctx *ctx,
		      const struct tmesh_placed_value *inputs, size_t input_count,
		      const struct tmesh_placed_value *outputs, size_t output_count,
		      struct tmesh_placed_binding **out, struct tmesh_error *err);
/* Run all parts. After an error of one those behind it have not run. As
 * tmesh_engine_binding_dispatch_cancellable(). */
int tmesh_placed_dispatch(struct tmesh_placed_binding *binding,
			  struct tmesh_engine_cancellable *cancellable, struct tmesh_error *err);
struct tmesh_placed_binding *tmesh_placed_binding_ref(struct tmesh_placed_binding *binding);
void tmesh_placed_binding_unref(struct tmesh_placed_binding *binding);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_PLACED_H */
