/* SPDX-License-Identifier: MIT */
/*
 * What the files of graphs over several engines share.
 *
 * A graph is changed by one thread at a time, which holds no lock meanwhile but `changing`: it
 * opens, binds, copies. What runs and what changes wait for each other under the graph's lock. The
 * lock of places is taken below it, or alone. tests/sim/sim_placed.py plays all this.
 */
#ifndef TMESH_ENGINE_PLACED_INTERNAL_H
#define TMESH_ENGINE_PLACED_INTERNAL_H

#include "engine_internal.h"
#include "graph_internal.h"

#pragma GCC visibility push(default)
#include <tmesh/placed.h>
#pragma GCC visibility pop

#define PLACES_IDLE_NS 5000000000ull
#define PLACES_NEVER UINT64_MAX
/* Where values lie that are at no place. */
#define PLACES_HOME (-1)

struct tmesh_places {
	atomic_uint refs;
	unsigned int life;
	struct tmesh_places_place *all;
	size_t count;
	struct tmesh_costs *costs;
	uint64_t idle_ns;
	uint64_t (*now_ns)(void *data);
	void *data;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	uint64_t *used;		     /* by place, under the lock */
	struct tmesh_placed *graphs; /* under the lock */
	atomic_ullong moves, given_up, taken, elsewhere, copies, bytes_copied;
	pthread_t sweeper;
	bool swept; /* by a thread */
	bool stop;
};

struct placed_part {
	struct tmesh_engine_context *context;
	char *path;
	struct tmesh_engine_graph *graph;
};

/* Where a graph is. */
struct placed_plan {
	uint32_t *at;
	uint32_t *reader; /* of inputs and weights: the place that reads them first; or UINT32_MAX
			   */
	struct tmesh_graph_parts *split;
	struct placed_part *parts; /* in their order; NULL: given up */
};

/* An input that a binding owns. */
struct placed_own {
	struct tmesh_tensor *tensor; /* NULL: the caller's */
	int32_t node;
};

/* A binding at a plan's places. */
struct placed_bound {
	struct tmesh_engine_binding **parts;
	size_t count;
	struct placed_own *own; /* by node */
};

struct tmesh_placed_binding {
	atomic_uint refs;
	struct tmesh_placed *placed;
	struct tmesh_placed_binding *next;
	struct tmesh_ctx *ctx;
	struct tmesh_tensor **given; /* by node, with references; NULL: none */
	bool *owns;		     /* by node: inputs that are its own */
	struct placed_bound at;	     /* without parts: given up */
	struct placed_bound coming;  /* of a change */
	bool running;		     /* under the graph's lock */
};

struct tmesh_placed {
	atomic_uint refs;
	struct tmesh_graph *graph;
	struct tmesh_engine_weight *weights;
	size_t weight_count;
	char *folder;
	struct tmesh_places *places;
	struct tmesh_placed *next; /* of the places */
	pthread_mutex_t lock;
	pthread_cond_t idle;
	bool changing;
	uint32_t wanting, running;
	/* For who changes it, or, reading, runs it. */
	struct placed_plan plan;	 /* its @split changes under the lock */
	struct tmesh_graph_parts *shown; /* of older plans, which a caller may look at */
	struct tmesh_placed_binding *bindings;
	uint64_t *claims; /* by place: what it has of @places->used */
	atomic_bool held;
	atomic_ullong used; /* when it was used last */
};

/* places.c */
int places_of_contexts(struct tmesh_engine_context *const *contexts, size_t count,
		       struct tmesh_places **out, struct tmesh_error *err);
int places_enter(const struct tmesh_places *places, struct tmesh_error *err);
uint64_t places_now(const struct tmesh_places *places);
/* Between two looks of the thread at what is due and stays: never so short that it would spin. */
uint64_t places_pause(const struct tmesh_places *places);
/* It has places, and has not used them for long enough. */
bool places_due(const struct tmesh_placed *placed);
void places_add(struct tmesh_places *places, struct tmesh_placed *placed);
void places_remove(struct tmesh_places *places, struct tmesh_placed *placed);
/* The graph has @wanted from now on, at all places, or after -ENOSPC what it had. Less never fails.
 */
int places_claim(struct tmesh_placed *placed, const uint64_t *wanted, struct tmesh_error *err);

/* placed_plan.c */
/* Without parts. */
int plan_make(const struct tmesh_placed *placed, const uint32_t *at, struct placed_plan *out,
	      struct tmesh_error *err);
int plan_open(const struct tmesh_placed *placed, struct placed_plan *plan, struct tmesh_error *err);
/* Its parts are closed; the rest stays. */
void plan_give_up(struct placed_plan *plan);
void plan_close(struct placed_plan *plan);
/* Bytes by place that weights and the inputs of so many bindings are. */
void plan_needs(const struct placed_plan *plan, size_t bindings, uint64_t *needs, size_t places);

/* placed.c */
void placed_use(struct tmesh_placed *placed);
/* Nobody else changes it, and, with @alone, nobody runs it. */
void placed_begin(struct tmesh_placed *placed, bool alone);
void placed_end(struct tmesh_placed *placed);
/* By who changes it: take its places again, or others. */
int placed_take(struct tmesh_placed *placed, struct tmesh_error *err);
/* Give up what is due, if nothing runs; whether it did in @done. */
int placed_give_up(struct tmesh_placed *placed, bool *done, struct tmesh_error *err);

/* placed_bind.c */
/* Everything of a binding at a plan's places, beside what it has. */
int bound_make(const struct tmesh_placed_binding *binding, const struct placed_plan *plan,
	       struct placed_bound *out, struct tmesh_error *err);
/* Its own values at home, and no parts. */
int bound_home(const struct tmesh_placed_binding *binding, struct placed_bound *out,
	       struct tmesh_error *err);
void bound_free(struct placed_bound *bound, size_t nodes);

#endif /* TMESH_ENGINE_PLACED_INTERNAL_H */
