/* SPDX-License-Identifier: MIT */
/*
 * Declarations that the files of graphs over several engines share.
 *
 * One thread at a time changes a graph: it opens, binds and copies. It holds no lock meanwhile; it
 * only sets `changing`. Changes and runs wait for each other under the graph's lock. The lock of
 * places is taken inside of it, or alone. tests/sim/sim_placed.py simulates all this.
 */
#ifndef TMESH_ENGINE_PLACED_INTERNAL_H
#define TMESH_ENGINE_PLACED_INTERNAL_H

#include "engine_internal.h"
#include "placement_internal.h"

#define PLACES_IDLE_NS 5000000000ull
#define PLACES_NEVER UINT64_MAX
/* The node of values that are at no place. */
#define PLACES_HOME (-1)

struct tmesh_places {
	atomic_uint refs;
	unsigned int life;
	struct tmesh_places_place *all;
	size_t count;
	uint64_t idle_ns;
	uint64_t (*now_ns)(void *data);
	void *data;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	uint64_t *used;		     /* by place, under the lock */
	struct tmesh_placed *graphs; /* under the lock */
	atomic_ullong moves, given_up, reacquired, copies, bytes_copied;
	pthread_t sweeper;
	bool swept; /* a thread sweeps */
	bool stop;
};

struct placed_part {
	struct tmesh_engine_context *context;
	char *path;
	struct tmesh_engine_graph *graph;
};

/* The places of a graph. */
struct placed_plan {
	uint32_t *at;
	uint32_t *reader; /* of inputs and weights: the place of the first reader; or UINT32_MAX */
	struct tmesh_graph_partitions *split;
	struct placed_part *parts; /* in their order; NULL: given up */
};

/* An input that a binding owns. */
struct placed_own {
	struct tmesh_tensor *tensor; /* NULL: the caller's */
	int32_t node;
};

/* A binding to a plan's places. */
struct placed_bound {
	struct tmesh_engine_binding **parts;
	size_t count;
	struct placed_own *own; /* by node */
};

struct tmesh_placed_binding {
	atomic_uint refs;
	struct tmesh_placed *placed;
	struct tmesh_placed_binding *next, *next_gone;
	struct tmesh_ctx *ctx;
	struct tmesh_tensor **given; /* by node, with references; NULL: none */
	bool *owns;		     /* by node: the binding owns this input */
	struct placed_bound at;	     /* no parts: given up */
	struct placed_bound coming;  /* prepared by a change */
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
	/* For the thread that changes the graph. A run reads it. */
	struct placed_plan plan;	      /* its @split changes under the lock */
	struct tmesh_graph_partitions *shown; /* of older plans, which a caller may still look at */
	struct tmesh_placed_binding *bindings;
	struct tmesh_placed_binding *gone; /* bindings without a holder; with the lock */
	uint64_t *claims;		   /* by place: its share of @places->used */
	atomic_bool held;
	atomic_ullong used; /* the time of the last use */
};

/* places.c */
int places_of_contexts(struct tmesh_engine_context *const *contexts, size_t count,
		       struct tmesh_places **out, struct tmesh_error *err);
int places_enter(const struct tmesh_places *places, struct tmesh_error *err);
uint64_t places_now(const struct tmesh_places *places);
/* Return the pause after a sweep that left graphs which are due: long enough not to spin. */
uint64_t places_pause(const struct tmesh_places *places);
/* Return whether the graph holds places and has been idle long enough to give them up. */
bool places_due(const struct tmesh_placed *placed);
void places_add(struct tmesh_places *places, struct tmesh_placed *placed);
void places_remove(struct tmesh_places *places, struct tmesh_placed *placed);
/* Claim @wanted at all places; after -ENOSPC the old claim stays. A smaller claim never fails. */
int places_claim(struct tmesh_placed *placed, const uint64_t *wanted, struct tmesh_error *err);

/* placed_plan.c */
/* Make a plan without parts. */
int plan_make(const struct tmesh_placed *placed, const uint32_t *at, struct placed_plan *out,
	      struct tmesh_error *err);
int plan_open(const struct tmesh_placed *placed, struct placed_plan *plan, struct tmesh_error *err);
/* Close the plan's parts; the rest stays. */
void plan_give_up(struct placed_plan *plan);
void plan_close(struct placed_plan *plan);
/* Compute the bytes, by place, of weights and of the inputs of so many bindings. */
void plan_needs(const struct placed_plan *plan, size_t bindings, uint64_t *needs, size_t places);

/* placed.c */
void placed_use(struct tmesh_placed *placed);
/* Begin to change a graph: no other thread changes it, and with @alone none runs it. */
int placed_begin(struct tmesh_placed *placed, bool alone, struct tmesh_error *err);
void placed_end(struct tmesh_placed *placed);
/* Wake calls that wait for a turn; a hook of a cancellable. */
void placed_wake(void *placed);
/* Take the places again, for a caller that changes the graph. */
int placed_reacquire(struct tmesh_placed *placed, struct tmesh_error *err);
/* Give up the places if they are due and nothing runs; @done: whether it did. */
int placed_give_up(struct tmesh_placed *placed, bool *done, struct tmesh_error *err);

/* placed_bind.c */
/* Bind to a plan's places, beside the current binding. */
int bound_make(const struct tmesh_placed_binding *binding, const struct placed_plan *plan,
	       struct placed_bound *out, struct tmesh_error *err);
/* Copy the binding's own values home; it has no parts then. */
int bound_home(const struct tmesh_placed_binding *binding, struct placed_bound *out,
	       struct tmesh_error *err);
void bound_free(struct placed_bound *bound, size_t nodes);
/* Free bindings that are gone. Called by the thread that changes the graph, with the lock, which is
 * released meanwhile. */
void placed_bury(struct tmesh_placed *placed);

#endif /* TMESH_ENGINE_PLACED_INTERNAL_H */
