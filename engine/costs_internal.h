/* SPDX-License-Identifier: MIT */
/* What the files of costs share. */
#ifndef TMESH_ENGINE_COSTS_INTERNAL_H
#define TMESH_ENGINE_COSTS_INTERNAL_H

#include "devices_internal.h"

#pragma GCC visibility push(default)
#include <tmesh/costs.h>
#pragma GCC visibility pop

struct tmesh_costs {
	atomic_uint refs;
	struct tmesh_devices *devices;
	/* How they were measured. */
	int64_t when; /* seconds of the epoch */
	uint32_t samples;
	uint64_t bytes;
	double load; /* of the last minute, when it began; negative: unknown */
	/* By device. */
	uint64_t memory_free[DEVICES_MAX];
	struct tmesh_placement_link links[DEVICES_MAX * DEVICES_MAX]; /* [from * count + to] */
	struct tmesh_costs_engine engines[TMESH_DEVICES_MAX_ENGINES];
};

/* costs.c */
struct tmesh_costs *costs_new(struct tmesh_devices *devices, struct tmesh_error *err);

/* costs_models.c: graphs of float32 that are measured, in the form that an engine reads. */
struct costs_model {
	char *data;
	size_t bytes;
};
/* x[1, 64] with itself, and x to that, @nodes times in all; "x", "y". false: no memory. */
bool costs_chain(struct costs_model *model, const char *reads, uint32_t nodes);
/* x[rows, inner], w[columns, inner] (of ONNX: [inner, columns]); "x", "w", "y". */
bool costs_matmul(struct costs_model *model, const char *reads,
		  const struct tmesh_costs_rate *sizes);

/* costs_find.c */
/* Of a node's value; of weights as their file has them. */
uint64_t costs_bytes(const struct tmesh_graph_node *node);
/* The node whose memory a reshape shows in another shape. */
uint32_t costs_behind(const struct tmesh_graph *graph, uint32_t index);

#endif /* TMESH_ENGINE_COSTS_INTERNAL_H */
