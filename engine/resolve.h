/* SPDX-License-Identifier: MIT */
/* A graph's inputs and outputs as they were given, checked: what is run has passed here. */
#ifndef TMESH_ENGINE_RESOLVE_H
#define TMESH_ENGINE_RESOLVE_H

#include "engine_internal.h"

/* Inputs first, outputs behind them. */
struct resolved {
	size_t inputs;
	size_t count;
	struct plugin_array *arrays;	   /* count; shapes point to the next */
	int64_t (*shapes)[TMESH_MAX_DIMS]; /* count */
	struct tmesh_engine_tensor *
		*tensors;	/* count, with references; NULL: the caller's memory */
	struct memory **memory; /* count, with references, of those */
};

/* Nothing is left when it fails. @engine_outputs: outputs may be left to the engine. */
int engine_resolve(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *inputs,
		   size_t input_count, const struct tmesh_engine_value *outputs,
		   size_t output_count, bool engine_outputs, struct resolved *out,
		   struct tmesh_error *err);
void engine_resolved_free(struct resolved *resolved);

#endif /* TMESH_ENGINE_RESOLVE_H */
