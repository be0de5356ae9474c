/* SPDX-License-Identifier: MIT */
/* What the files of placement share: a placement that is changed, and what it comes to. */
#ifndef TMESH_ENGINE_PLACEMENT_INTERNAL_H
#define TMESH_ENGINE_PLACEMENT_INTERNAL_H

#include "common/error.h"
#include "common/sized.h"

#pragma GCC visibility push(default)
#include <tmesh/placement.h>
#pragma GCC visibility pop

/* How much the mean of all ends counts beside the last one: most moves do not change the last. */
#define EARLY 0.005

struct search {
	const struct tmesh_placement_problem *problem;
	size_t nodes, devices;
	double *run;  /* [node * devices + device]: latency and seconds; negative: it cannot */
	double *link; /* [from * devices + to]: latency, seconds for a byte; 0, 0 of one to itself
		       */
	double *tail; /* by node: after its end at least so long until the last one ends */
	uint32_t *inputs, *first; /* of node i: inputs[first[i]] to inputs[first[i + 1] - 1] */
	uint32_t *at;		  /* by node: the device that is being tried */
	uint32_t *best;		  /* the best placement so far */
	double best_last;
	double *end;	 /* by node, of the last search_cost() */
	double *tried;	 /* the same, of a placement that may not be taken */
	double *free_at; /* by device */
	uint64_t *used;	 /* bytes by device, of @at */
	double last;	 /* of @end */
	uint64_t random;
	uint64_t deadline;
	bool late;
};

/* placement_search.c */
int search_open(struct search *s, const struct tmesh_placement_problem *p, struct tmesh_error *err);
void search_close(struct search *s);
/* When node @i ends on @device after what @end and @free_at say. */
double search_ends(const struct search *s, const double *end, size_t i, size_t device);
/* The whole of @at, into @end and @last. */
double search_cost(struct search *s);
bool search_fits(const struct search *s, size_t node, size_t device);
void search_put(struct search *s, size_t node, uint32_t device);
void search_take(struct search *s, const uint32_t *from);
/* Moves and exchanges from @at until nothing near is better. The best is in @best. */
void search_improve(struct search *s);
/* The same with steps back, smaller ones with time, from @at; how big at first depends on @turn. */
void search_anneal(struct search *s, uint32_t turn);

#endif /* TMESH_ENGINE_PLACEMENT_INTERNAL_H */
