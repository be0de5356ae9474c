/* SPDX-License-Identifier: MIT */
/*
 * EXPERIMENTAL: the devices of a machine, and a place for each node of a graph of tmesh/graph.h.
 * Part of libtmesh-engine; see tmesh/tmesh.h for the conventions of all calls. Since 0.2. These
 * calls may change or go without a deprecation; they were never run on a GPU.
 * Maturity: never run on the real thing.
 *
 * Devices: what a machine computes with. Placement: which node of a graph runs where.
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

#ifdef __cplusplus
}
#endif

#endif /* TMESH_PLACEMENT_H */
