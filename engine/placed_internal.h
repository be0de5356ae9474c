/* SPDX-License-Identifier: MIT */
/* What the files of graphs over several engines share. */
#ifndef TMESH_ENGINE_PLACED_INTERNAL_H
#define TMESH_ENGINE_PLACED_INTERNAL_H

#include "engine_internal.h"
#include "graph_internal.h"

#pragma GCC visibility push(default)
#include <tmesh/placed.h>
#pragma GCC visibility pop

struct placed_part {
	struct tmesh_engine_context *context;
	char *path;
	struct tmesh_engine_graph *graph;
};

struct tmesh_placed {
	atomic_uint refs;
	struct tmesh_graph_parts *split;
	struct placed_part *parts; /* in their order */
};

#endif /* TMESH_ENGINE_PLACED_INTERNAL_H */
