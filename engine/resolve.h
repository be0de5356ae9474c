/* SPDX-License-Identifier: MIT */
/* A graph's inputs and outputs as the caller gave them, after all checks. Only these are run. */
#ifndef TMESH_ENGINE_RESOLVE_H
#define TMESH_ENGINE_RESOLVE_H

#include "engine_internal.h"

/* Inputs first, then outputs. */
struct resolved {
	size_t inputs;
	size_t count;
	struct plugin_array *arrays;	   /* count; their shapes point into @shapes */
	int64_t (*shapes)[TMESH_MAX_DIMS]; /* count */
	struct tmesh_engine_tensor *
		*tensors;	/* count, with references; NULL: the caller's memory */
	struct memory **memory; /* count, with references, of those */
};

/* Check the values and fill @out; on error nothing is left. @engine_outputs: the caller may leave
 * outputs to the engine. */
int engine_resolve(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *inputs,
		   size_t input_count, const struct tmesh_engine_value *outputs,
		   size_t output_count, bool engine_outputs, struct resolved *out,
		   struct tmesh_error *err);
void engine_resolved_free(struct resolved *resolved);

#endif /* TMESH_ENGINE_RESOLVE_H */
