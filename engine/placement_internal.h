/* SPDX-License-Identifier: MIT */
/* Sizes of graphs' values, for placement and for claims of places. */
#ifndef TMESH_ENGINE_PLACEMENT_INTERNAL_H
#define TMESH_ENGINE_PLACEMENT_INTERNAL_H

#include "graph_internal.h"

#pragma GCC visibility push(default)
#include <tmesh/placement.h>
#pragma GCC visibility pop

/* Return the bytes of a node's value; of a weight, its bytes in the file. */
uint64_t placement_bytes(const struct tmesh_graph_node *node);
/* Return the node whose memory a reshape shows in another shape. */
uint32_t placement_behind(const struct tmesh_graph *graph, uint32_t index);

#endif /* TMESH_ENGINE_PLACEMENT_INTERNAL_H */
