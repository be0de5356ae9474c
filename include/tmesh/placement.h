/* SPDX-License-Identifier: MIT */
/*
 * Placement: which node of a graph runs on which device, so that the whole ends as early as can be
 * found in a given time. Part of libtmesh-engine; see tmesh/tmesh.h for the conventions of all
 * calls. Since 0.2.
 *
 * Nothing runs here. Costs are the caller's, measured or assumed: seconds, bytes, bytes per second.
 * The model: a device runs one node at a time; a node begins when all that it reads has been
 * computed and brought to its device; a value that goes to another device is sent as soon as it is
 * there, takes the link's latency and its bytes by the link's bandwidth, and links do not wait for
 * each other. Calls may be made by any number of threads at once.
 */
#ifndef TMESH_PLACEMENT_H
#define TMESH_PLACEMENT_H

#include <tmesh/tmesh.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TMESH_PLACEMENT_MAX_DEVICES 64
#define TMESH_PLACEMENT_MAX_NODES 4096

struct tmesh_placement_device {
	uint64_t memory; /* bytes there are for nodes */
	double latency;	 /* seconds to start a node */
};

struct tmesh_placement_link {
	double bandwidth; /* bytes per second, above 0; of a device to itself unused */
	double latency;	  /* seconds */
};

struct tmesh_placement_node {
	const char *name;	/* for messages; NULL: its number */
	uint64_t memory;	/* bytes that it keeps on its device: weights, caches */
	uint64_t bytes;		/* of its value */
	const uint32_t *inputs; /* nodes before it, by index */
	uint32_t input_count;
	/* By device: seconds that it runs there, latency not counted; negative: it cannot. */
	const double *seconds;
};

struct tmesh_placement_problem {
	size_t size; /* sizeof(struct tmesh_placement_problem) */
	const struct tmesh_placement_device *devices;
	size_t device_count;
	const struct tmesh_placement_link *links; /* [from * device_count + to] */
	const struct tmesh_placement_node *nodes;
	size_t node_count;
	uint32_t restarts; /* of the search beside the first, at most; 0: 200 */
	uint64_t time_ns;  /* the search ends then, at what it has; 0: 40 ms */
	uint64_t seed;	   /* of the restarts: the same gives the same, where time is enough */
};

struct tmesh_placement {
	size_t size;	      /* in: sizeof(struct tmesh_placement) */
	double seconds;	      /* from the first node's begin to the last one's end */
	double greedy;	      /* the same of the list placement alone, before the search */
	uint32_t searches;    /* that were made */
	uint64_t bytes_moved; /* between devices, in one run */
};

/*
 * Place each node: its device's index in @device, one for each node, and what that comes to in
 * @out (may be NULL). Return: 0; -EINVAL (counts, an input that is not before its node, times or
 * bandwidths that are no numbers); -EOPNOTSUPP (no device runs a node: the message names it);
 * -ENOSPC (it does not fit, or no way was found to make it fit: the message has the bytes needed
 * and there); -ENOMEM. After an error @device is as before.
 */
int tmesh_placement_find(const struct tmesh_placement_problem *problem, uint32_t *device,
			 struct tmesh_placement *out, struct tmesh_error *err);

/* What a given placement comes to, by the same model. Return: 0; -EINVAL, -EOPNOTSUPP, -ENOSPC as
 * above. */
int tmesh_placement_cost(const struct tmesh_placement_problem *problem, const uint32_t *device,
			 struct tmesh_placement *out, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_PLACEMENT_H */
