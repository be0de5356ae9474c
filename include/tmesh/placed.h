/* SPDX-License-Identifier: MIT */
/*
 * A graph of tmesh/graph.h over several engines: each part of it runs on its own, and values lie in
 * regions that all of them have. Part of libtmesh-engine; see tmesh/tmesh.h for the conventions of
 * all calls. Which node runs where is the caller's to say, or tmesh_costs_find()'s. Since 0.2.
 *
 * Parts run one after another. What goes from one to the next is written once, where the next one
 * reads it: nothing is copied. A graph can go to other places, and be given up while it is idle:
 * then values that live on are copied where the memory is another, and counted.
 */
#ifndef TMESH_PLACED_H
#define TMESH_PLACED_H

#include <tmesh/costs.h>
#include <tmesh/engine.h>
#include <tmesh/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Engines with their memory, which graphs have by leases: a graph that has not run for a time is
 * given up, and takes places again when it runs next. Calls may be made by any number of threads at
 * once. */
struct tmesh_places;

struct tmesh_places_place {
	struct tmesh_engine_context *context;
	uint64_t memory;   /* bytes for weights and inputs of graphs; 0: no limit */
	int32_t node;	   /* the NUMA node whose memory it has; -1: any */
	uint32_t reserved; /* 0 */
};

struct tmesh_places_opts {
	size_t size; /* sizeof(struct tmesh_places_opts) */
	const struct tmesh_places_place *places;
	size_t place_count; /* at most TMESH_PLACEMENT_MAX_DEVICES */
	uint64_t idle_ns;   /* 0: 5 s; UINT64_MAX: nothing is given up */
	/* For a graph whose places were taken by others meanwhile: tmesh_costs_find() gives it
	 * others. NULL: it waits for them with -ENOSPC. */
	struct tmesh_costs *costs;
	/* A clock, for tests: tmesh_places_sweep() alone gives up then. NULL: CLOCK_MONOTONIC, and
	 * a thread of the library's. */
	uint64_t (*now_ns)(void *data);
	void *data;
};

/* Return: 0 and a reference in @out; -EINVAL (opts), -ENOMEM, -EAGAIN (no thread). It keeps the
 * contexts and costs. */
int tmesh_places_create(const struct tmesh_places_opts *opts, struct tmesh_places **out,
			struct tmesh_error *err);
struct tmesh_places *tmesh_places_ref(struct tmesh_places *places);
/* Graphs keep their places. */
void tmesh_places_unref(struct tmesh_places *places);
/*
 * Give up what is idle long enough, now, and say how many graphs that were in @given_up (may be
 * NULL). Return: 0; the first error of one whose values could not be copied: it keeps its places.
 * -EPERM, -ENOMEM.
 */
int tmesh_places_sweep(struct tmesh_places *places, uint32_t *given_up, struct tmesh_error *err);
/* Bytes of place @index that graphs have now. -EINVAL: no such place; -EPERM. */
int tmesh_places_used(struct tmesh_places *places, size_t index, uint64_t *out,
		      struct tmesh_error *err);

/* Counters since they were made, of graphs. */
struct tmesh_places_stats {
	size_t size;	    /* in: sizeof(struct tmesh_places_stats) */
	uint64_t held;	    /* that have places now */
	uint64_t moves;	    /* tmesh_placed_move() */
	uint64_t given_up;  /* after having been idle */
	uint64_t taken;	    /* places again, after that */
	uint64_t elsewhere; /* of those: at other places than before */
	uint64_t copies;    /* of values, also when the move that wanted them failed */
	uint64_t bytes_copied;
};
/* -EPERM. */
int tmesh_places_stats(struct tmesh_places *places, struct tmesh_places_stats *out,
		       struct tmesh_error *err);

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
	/* Places by leases, in place of @contexts; @at says which of these. NULL: none. */
	struct tmesh_places *places;
};

/*
 * Nodes that can run together are one part, a graph of its own, which is opened. Return: 0 and a
 * reference in @out; -EINVAL (opts; a node at no context, a weight that was not given; rows that a
 * "set_rows" replaces and another node reads too); -ENOSPC (a place has no room: the message has
 * the bytes needed and there); errors of writing files; as tmesh_engine_graph_open().
 */
int tmesh_placed_create(struct tmesh_graph *graph, const struct tmesh_placed_opts *opts,
			struct tmesh_placed **out, struct tmesh_error *err);
struct tmesh_placed *tmesh_placed_ref(struct tmesh_placed *placed);
void tmesh_placed_unref(struct tmesh_placed *placed);
/* Its parts where it is, or was when it was given up: tmesh_graph_part(). They live as long as
 * @placed, also when it has gone to other places. */
const struct tmesh_graph_parts *tmesh_placed_parts(const struct tmesh_placed *placed);
/* Where each node of the graph runs, or ran when it was given up: @count of them, as many as the
 * graph has. -EINVAL: another number. */
int tmesh_placed_at(struct tmesh_placed *placed, uint32_t *at, size_t count,
		    struct tmesh_error *err);
/*
 * Go to other places, with all bindings: parts are opened and bound there, values that the bindings
 * own are copied where the memory is another node's, and the old places are let go. Runs end
 * before, and later ones wait. After an error everything is as before, and runs go on at the old
 * places. A place that is old and new has to have room for the larger of both. Return: 0; as
 * tmesh_placed_create() and tmesh_placed_bind().
 */
int tmesh_placed_move(struct tmesh_placed *placed, const uint32_t *at, struct tmesh_error *err);

/* An input of the graph, or an output, by its name. */
struct tmesh_placed_value {
	const char *name;
	/* Contiguous, in a region that can be written where the graph writes. NULL, of an input
	 * with TMESH_GRAPH_CACHE_KEEP: the binding's own, of zeros at first, in the memory of the
	 * place that reads it. It goes where that goes. */
	struct tmesh_tensor *tensor;
};

/*
 * Check and bind once. The output of a "set_rows" is the tensor of its past, whether it is given or
 * not. Values between parts get regions of @ctx. The binding keeps all of them. Return: 0; -ENOENT
 * (no output of that name), -EINVAL (an input that is missing; an output that lies in the memory of
 * another one or of its past, and another tensor was given), -ENOSPC (a place has no room for the
 * inputs of one binding more); as tmesh_engine_bind().
 */
int tmesh_placed_bind(struct tmesh_placed *placed, struct tmesh_ctx *ctx,
		      const struct tmesh_placed_value *inputs, size_t input_count,
		      const struct tmesh_placed_value *outputs, size_t output_count,
		      struct tmesh_placed_binding **out, struct tmesh_error *err);
/*
 * Run all parts. After an error of one those behind it have not run. A graph that was given up
 * takes places first: its own, or others as @costs of its places say. One thread at a time runs a
 * binding; others wait. Return: as tmesh_engine_binding_dispatch_cancellable(), and when it takes
 * places as tmesh_placed_move().
 */
int tmesh_placed_dispatch(struct tmesh_placed_binding *binding,
			  struct tmesh_engine_cancellable *cancellable, struct tmesh_error *err);
/* Where an input that the binding owns lies now: a new reference in @out. When the graph has gone
 * to another memory it lies elsewhere. -ENOENT: it owns no input @name. */
int tmesh_placed_binding_tensor(struct tmesh_placed_binding *binding, const char *name,
				struct tmesh_tensor **out, struct tmesh_error *err);
struct tmesh_placed_binding *tmesh_placed_binding_ref(struct tmesh_placed_binding *binding);
void tmesh_placed_binding_unref(struct tmesh_placed_binding *binding);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_PLACED_H */
