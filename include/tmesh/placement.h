/* SPDX-License-Identifier: MIT */
/*
 * EXPERIMENTAL: a graph of tmesh/graph.h on several engines. Part of libtmesh-engine; see
 * tmesh/tmesh.h for the conventions of all calls. Since 0.2. These calls may change or go without
 * a deprecation; they were never run on a GPU.
 * Maturity: never run on the real thing.
 *
 * Devices: what a machine computes with. Placement: which node of a graph runs where. Placed
 * graphs: a graph whose parts run on several engines, and places that several graphs share.
 */
#ifndef TMESH_PLACEMENT_H
#define TMESH_PLACEMENT_H

#include <tmesh/engine.h>
#include <tmesh/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Devices: the processors and GPUs of this machine, and the engines that run there. A list does not
 * change after tmesh_devices_find(). Any number of threads may read it.
 */

struct tmesh_devices;

/* The engine's own library, where the caller knows better than tmesh_engine_context_create(). */
struct tmesh_devices_library {
	const char *engine; /* "ggml" */
	const char *library;
};

struct tmesh_devices_opts {
	size_t size; /* sizeof(struct tmesh_devices_opts) */
	const struct tmesh_devices_library *libraries;
	size_t library_count;
	const char *root; /* a folder that has sys and proc, for tests; NULL: the machine's own */
};

/*
 * The processors of each NUMA node with its memory, the GPUs that libtmesh-cuda tells of where it
 * is installed, and the engines. Each engine that is found stays loaded in this process. Small
 * graphs show what it can run. A program that is not to have them runs tmeshctl devices. Return: 0
 * and a reference in @out; -EINVAL (opts), -EIO (the machine tells nothing of its memory), -ENOMEM.
 * That an engine or a GPU cannot be used is no error: the list has the reason.
 */
int tmesh_devices_find(const struct tmesh_devices_opts *opts, struct tmesh_devices **out,
		       struct tmesh_error *err);
struct tmesh_devices *tmesh_devices_ref(struct tmesh_devices *devices);
void tmesh_devices_unref(struct tmesh_devices *devices);

#define TMESH_DEVICES_UNKNOWN UINT64_MAX

struct tmesh_devices_device {
	size_t size; /* in: sizeof(struct tmesh_devices_device) */
	char id[16]; /* "cpu:0": of NUMA node 0; "cuda:0" */
	char name[64];
	enum tmesh_device_type device_type;
	int32_t device_id;
	int32_t node;	      /* the NUMA node; -1: unknown */
	uint32_t processors;  /* of a CPU; else 0 */
	uint64_t memory;      /* bytes */
	uint64_t memory_free; /* bytes that can be had now, caches given up; or UNKNOWN */
	uint64_t engines;     /* a bit for each that runs there, by its index */
	char reason[160];     /* why no engine runs there, or "" */
};
size_t tmesh_devices_count(const struct tmesh_devices *devices);
/* By index. -EINVAL: no such one. */
int tmesh_devices_device(const struct tmesh_devices *devices, size_t index,
			 struct tmesh_devices_device *out, struct tmesh_error *err);

#define TMESH_DEVICES_MAX_ENGINES 16
#define TMESH_DEVICES_OPERATORS 32

struct tmesh_devices_engine {
	size_t size; /* in: sizeof(struct tmesh_devices_engine) */
	char name[40];
	char version[64];  /* of its library; "": it cannot be used */
	char library[256]; /* the file of it; "": unknown */
	char reads[16];	   /* "graph": of tmesh/graph.h; "onnx"; "": unknown */
	char reason[252];  /* why it cannot be used, or "" */
	/* Bits 1 << enum tmesh_dtype: of its inputs and outputs. */
	uint64_t dtypes;
	/* By enum tmesh_graph_op, if the engine reads "graph": with which dtypes of the operand
	 * that may have several it runs that; 0: it does not. Tried, not declared. */
	uint64_t operators[TMESH_DEVICES_OPERATORS];
	/* Bits 1 << enum tmesh_device_type: kinds of devices that it was never run on. Its code for
	 * them was compiled, and tried on stand-ins at most. */
	uint64_t never_seen;
};
size_t tmesh_devices_engines(const struct tmesh_devices *devices);
int tmesh_devices_engine(const struct tmesh_devices *devices, size_t index,
			 struct tmesh_devices_engine *out, struct tmesh_error *err);

/* All of it as JSON, to be released with free(); tmeshctl devices --json prints it. NULL: no
 * memory. */
char *tmesh_devices_to_json(const struct tmesh_devices *devices);

/*
 * Placement: which node of a graph runs where, so that the last node ends early. Nothing runs here.
 * The caller knows or assumes the costs. The model: a place runs one node at a time, in the graph's
 * order. A node begins when all its inputs are at its place. A value is sent to another place as
 * soon as it is computed, and links do not wait for each other. Calls may be made by any number of
 * threads at once.
 */

#define TMESH_PLACEMENT_MAX_PLACES 64
#define TMESH_PLACEMENT_MAX_NODES 4096 /* that compute */
#define TMESH_PLACEMENT_NOWHERE UINT32_MAX

struct tmesh_placement_place {
	uint64_t operators; /* bits 1 << enum tmesh_graph_op that it runs; 0: all */
	uint64_t memory;    /* bytes for weights and inputs; 0: no limit */
	double node;	    /* seconds to start a node */
	double flops;	    /* a second, of products of matrices; above 0 */
	double bandwidth;   /* bytes a second that its nodes read and write; above 0 */
};

struct tmesh_placement_link {
	double bandwidth; /* bytes a second, above 0; INFINITY: both places share the memory */
	double latency;	  /* seconds until the next place has started on the value */
};

struct tmesh_placement_opts {
	size_t size; /* sizeof(struct tmesh_placement_opts) */
	const struct tmesh_placement_place *places;
	size_t place_count; /* at most TMESH_PLACEMENT_MAX_PLACES */
	/* [from * place_count + to]; those of a place to itself are not read. */
	const struct tmesh_placement_link *links;
};

struct tmesh_placement {
	size_t size;	      /* in: sizeof(struct tmesh_placement) */
	double seconds;	      /* from the first node's begin to the last one's end */
	uint64_t bytes_moved; /* between places, in one run */
};

/*
 * Place the nodes of @graph greedily: each node, in the graph's order, at the place where it ends
 * first and fits. If it fits nowhere, one node placed before it gives way to another place. The
 * result can be slower than the best placement. @at gets the place of each node of the graph, by
 * index: TMESH_PLACEMENT_NOWHERE for inputs, weights and reshapes. A node takes the larger of its
 * operations by @flops and its bytes by @bandwidth. Weights and inputs count at their first reader.
 * @out may be NULL.
 *
 * Return: 0; -EINVAL (counts, times or rates that are no numbers); -ENOMEM. For the places:
 * -EOPNOTSUPP (none runs a node, which the message names); -ENOSPC (the graph does not fit, or no
 * way was found to make it fit: the message has the bytes needed and there). After an error @at is
 * as before.
 */
int tmesh_placement_find(const struct tmesh_graph *graph, const struct tmesh_placement_opts *opts,
			 uint32_t *at, struct tmesh_placement *out, struct tmesh_error *err);

/*
 * Placed graphs: each part of a graph runs on its own engine, and values lie in regions that all of
 * the engines have. The caller says which node runs where.
 *
 * Parts run one after another. A value for the next part is written once, where that part reads it:
 * nothing is copied. A graph can go to other places, and be given up while it is idle. Then values
 * that live on are copied where the memory is another, and counted.
 */

/* Engines with their memory, which graphs have by leases. A graph that has not run for a time is
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
	size_t place_count; /* at most TMESH_PLACEMENT_MAX_PLACES */
	uint64_t idle_ns;   /* 0: 5 s; UINT64_MAX: nothing is given up */
	/* A clock, for tests: tmesh_places_sweep() alone gives up then. Called from each thread
	 * that runs, moves or sweeps, with locks held: it calls nothing of this library. It may
	 * fork(): the child calls exec() or _exit(). NULL: CLOCK_MONOTONIC, and a thread of the
	 * library's.
	 */
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
 * NULL). Return: 0; the first error of one whose values could not be copied: it keeps its places,
 * and @given_up is set all the same. -EPERM, -ENOMEM.
 */
int tmesh_places_sweep(struct tmesh_places *places, uint32_t *given_up, struct tmesh_error *err);
/* Bytes of place @index that graphs have now. -EINVAL: no such place; -EPERM. */
int tmesh_places_used(struct tmesh_places *places, size_t index, uint64_t *out,
		      struct tmesh_error *err);

/* Counters since they were made, of graphs. */
struct tmesh_places_stats {
	size_t size;	     /* in: sizeof(struct tmesh_places_stats) */
	uint64_t held;	     /* that have places now */
	uint64_t moves;	     /* tmesh_placed_move() */
	uint64_t given_up;   /* after having been idle */
	uint64_t reacquired; /* places again, after that */
	uint64_t copies;     /* of values, also when the move that wanted them failed */
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
	/* By node of the graph: the index of the context that runs it. Not looked at for inputs,
	 * weights and reshapes, which go with the nodes that read them. */
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
 * reference in @out. For the graph: -EINVAL (opts; a node at no context, a weight that was not
 * given; rows that a "set_rows" replaces and another node reads too). For a place: -ENOSPC (the
 * message has the bytes needed and there). Also errors of writing files; as
 * tmesh_engine_graph_open().
 */
int tmesh_placed_create(struct tmesh_graph *graph, const struct tmesh_placed_opts *opts,
			struct tmesh_placed **out, struct tmesh_error *err);
struct tmesh_placed *tmesh_placed_ref(struct tmesh_placed *placed);
void tmesh_placed_unref(struct tmesh_placed *placed);
/* Its parts where it is, or was when it was given up: tmesh_graph_partition(). They live as long as
 * @placed, also when it has gone to other places. */
const struct tmesh_graph_partitions *tmesh_placed_partitions(const struct tmesh_placed *placed);
/* Where each node of the graph runs, or ran when it was given up: @count of them, as many as the
 * graph has. -EINVAL: another number. */
int tmesh_placed_at(struct tmesh_placed *placed, uint32_t *at, size_t count,
		    struct tmesh_error *err);
/*
 * Go to other places, with all bindings. Parts are opened and bound there, then the old places are
 * let go. Values that the bindings own are copied where the memory is another node's. Runs end
 * before, and later ones wait. After an error everything is as before, and runs go on at the old
 * places. A place that is old and new has to have room for the larger of both. Return: 0; as
 * tmesh_placed_create() and tmesh_placed_bind().
 */
int tmesh_placed_move(struct tmesh_placed *placed, const uint32_t *at, struct tmesh_error *err);

/* An input of the graph, or an output, by its name. */
struct tmesh_placed_value {
	const char *name;
	/* Contiguous, in a region that can be written where the graph writes. NULL, of an input
	 * with TMESH_GRAPH_CACHE_REUSE: the binding's own, of zeros at first, in the memory of the
	 * place that reads it. It goes where that goes. */
	struct tmesh_tensor *tensor;
};

/*
 * Check and bind once. The output of a "set_rows" is the tensor of its past, whether it is given or
 * not. Values between parts get regions of @ctx. The binding keeps all of them. Return: 0; -ENOENT
 * (no output of that name). For the tensors: -EINVAL (a missing input; an output in the memory of
 * another one or of its past, for which another tensor was given). For a place: -ENOSPC (no room
 * for the inputs of one binding more). Also as tmesh_engine_bind().
 */
int tmesh_placed_bind(struct tmesh_placed *placed, struct tmesh_ctx *ctx,
		      const struct tmesh_placed_value *inputs, size_t input_count,
		      const struct tmesh_placed_value *outputs, size_t output_count,
		      struct tmesh_placed_binding **out, struct tmesh_error *err);
/*
 * Run all parts. After an error of one those behind it have not run. A graph that was given up
 * takes its places first, and gives -ENOSPC while others have them. One thread at a time runs a
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

#endif /* TMESH_PLACEMENT_H */
