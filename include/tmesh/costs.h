/* SPDX-License-Identifier: MIT */
/*
 * Costs: what this machine's devices, the links between them and its engines take, measured, kept
 * in a file for each machine, and given to placement. Part of libtmesh-engine; see tmesh/tmesh.h
 * for the conventions of all calls. Since 0.2.
 *
 * Costs do not change once they are there. Any number of threads may read them.
 */
#ifndef TMESH_COSTS_H
#define TMESH_COSTS_H

#include <tmesh/devices.h>
#include <tmesh/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_costs;

/* An engine that runs in a process of its own already. */
struct tmesh_costs_served {
	const char *engine; /* "ggml" */
	const char *name;   /* for tmesh_engine_connect() */
	const char *folder; /* that it may read models from, and this process write to */
};

struct tmesh_costs_opts {
	size_t size;	   /* sizeof(struct tmesh_costs_opts) */
	uint64_t bytes;	   /* of each copy; 0: 32 MiB */
	uint32_t samples;  /* of each number, after one that is not counted; 0: 9; at most 1001 */
	uint32_t reserved; /* 0 */
	const struct tmesh_costs_served *served;
	size_t served_count;
	uint64_t (*now_ns)(void *data); /* a clock, for tests; NULL: CLOCK_MONOTONIC */
	void *data;
};

/*
 * Measure, in the calling thread: copies between regions of @ctx, from the memory of each NUMA node
 * to that of each; and each engine of @devices that reads graphs or ONNX models, with one thread:
 * the dispatch of a graph of one node, what a node more adds, MatMuls of three sizes. Engines in
 * @served are measured by process too. Each number is the median of @samples. It takes about a
 * second, and longer on a machine that is busy: the load is kept with the numbers. GPUs are not
 * measured.
 *
 * Return: 0 and a reference in @out, which keeps @devices; -EINVAL (opts), -ENOSPC (a node has not
 * four times @bytes of free memory), -ENOMEM; as tmesh_region_create() and, for @served,
 * tmesh_engine_connect(). An engine that fails is no error: it has the reason.
 */
int tmesh_costs_measure(struct tmesh_ctx *ctx, struct tmesh_devices *devices,
			const struct tmesh_costs_opts *opts, struct tmesh_costs **out,
			struct tmesh_error *err);
struct tmesh_costs *tmesh_costs_ref(struct tmesh_costs *costs);
void tmesh_costs_unref(struct tmesh_costs *costs);

/*
 * Where costs of this machine are kept: "tmesh/costs-HASH.json" in XDG_CACHE_HOME, else in
 * ~/.cache; HASH is of the processors and GPUs. -ENOENT: neither variable names a folder. -ERANGE:
 * longer than @bytes.
 */
int tmesh_costs_path(const struct tmesh_devices *devices, char *path, size_t bytes,
		     struct tmesh_error *err);
/*
 * Write them to @path, or where they are kept (NULL; folders are made): a new file of mode 0600
 * that takes the place of an older one at once, or not at all. Return: 0; errors of writing.
 */
int tmesh_costs_write(const struct tmesh_costs *costs, const char *path, struct tmesh_error *err);
/*
 * Read what was written. The file is believed only when it is this user's, nobody else may write
 * it, everything in it is as it was written, and the machine is the same: kernel, devices with
 * their memory, engines with their versions. Nothing is measured anew. Return: 0; -ENOENT (nothing
 * was measured so far), -EPERM (another's file, or others may write it), -EPROTO (malformed),
 * -ESTALE (of another machine, or this one as it was: the message says what differs), -ENOMEM.
 */
int tmesh_costs_read(struct tmesh_devices *devices, const char *path, struct tmesh_costs **out,
		     struct tmesh_error *err);
/* As the file has them, to be released with free(). NULL: no memory. */
char *tmesh_costs_to_json(const struct tmesh_costs *costs);
/* The same from a text, as another process of this machine gave it. Return: 0; -EPROTO, -ESTALE,
 * -ENOMEM, as tmesh_costs_read(). */
int tmesh_costs_parse(struct tmesh_devices *devices, const char *text, size_t bytes,
		      struct tmesh_costs **out, struct tmesh_error *err);

/* From device @from to device @to, by index in the list of devices; of one to itself too.
 * Bandwidth 0: not measured. -EINVAL: no such device. */
int tmesh_costs_link(const struct tmesh_costs *costs, size_t from, size_t to,
		     struct tmesh_placement_link *out, struct tmesh_error *err);

#define TMESH_COSTS_RATES 3

struct tmesh_costs_rate {
	uint32_t rows, columns, inner; /* a[rows, inner] by b[columns, inner], float32 */
	double flops;		       /* a second; a multiplication and an addition are two */
};

struct tmesh_costs_engine {
	size_t size;	      /* in: sizeof(struct tmesh_costs_engine) */
	double launch;	      /* seconds to dispatch a bound graph of one node; 0: not measured */
	double launch_served; /* the same by process; 0: not measured */
	double node;	      /* seconds that one small node more adds */
	struct tmesh_costs_rate rates[TMESH_COSTS_RATES]; /* by rows, fewest first */
	char reason[160];				  /* why it was not measured, or "" */
};
/* By index in the list of engines. -EINVAL: no such one. */
int tmesh_costs_engine(const struct tmesh_costs *costs, size_t index,
		       struct tmesh_costs_engine *out, struct tmesh_error *err);

/* Where nodes may run: an engine on a device. */
struct tmesh_costs_place {
	const char *engine;
	uint32_t device; /* by index in the list of devices */
	bool served;	 /* in a process of its own */
	uint64_t memory; /* for weights and caches; 0: what was free when it was measured */
};

#define TMESH_COSTS_NOWHERE UINT32_MAX

/*
 * tmesh_placement_find() for a graph and measured costs: of each node of @graph the place in @at,
 * by index; TMESH_COSTS_NOWHERE for inputs, weights and reshapes, which run nowhere. What a node
 * takes is estimated: the larger of its multiplications by the engine's rate for so many rows, and
 * its bytes by the device's bandwidth. Between places the launch of the next one counts; bytes
 * count between devices alone, since engines of one device share the memory. @limits: restarts,
 * time_ns and seed alone are looked at; may be NULL. @out may be NULL.
 *
 * Return: 0; -EINVAL (a place that is not there), -EOPNOTSUPP (an engine or a link that was not
 * measured, a node that no place runs); -ENOSPC, -ENOMEM as tmesh_placement_find().
 */
int tmesh_costs_find(const struct tmesh_costs *costs, const struct tmesh_graph *graph,
		     const struct tmesh_costs_place *places, size_t place_count,
		     const struct tmesh_placement_problem *limits, uint32_t *at,
		     struct tmesh_placement *out, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_COSTS_H */
