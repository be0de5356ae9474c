// SPDX-License-Identifier: MIT
/* A graph over several engines: made, moved to other places, given up and taken again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cancel.h"
#include "placed_internal.h"

static int check_weights(const struct tmesh_graph *graph, const struct tmesh_placed_opts *opts,
			 struct tmesh_error *err)
{
	for (size_t n = 0; n < opts->weight_count; n++)
		if (!opts->weights[n].name || !opts->weights[n].tensor)
			return tmesh_fail(err, -EINVAL, "weight %zu has no %s", n,
					  opts->weights[n].name ? "tensor" : "name");
	for (size_t i = 0; i < graph->node_count; i++) {
		size_t n = 0;

		if (graph->nodes[i].op != TMESH_GRAPH_WEIGHT)
			continue;
		while (n < opts->weight_count &&
		       strcmp(opts->weights[n].name, graph->nodes[i].name) != 0)
			n++;
		if (n == opts->weight_count)
			return tmesh_fail(err, -EINVAL, "weight \"%s\" was not given",
					  graph->nodes[i].name);
	}
	return 0;
}

void placed_use(struct tmesh_placed *placed)
{
	atomic_store(&placed->used, places_now(placed->places));
}

void placed_wake(void *data)
{
	struct tmesh_placed *placed = data;

	pthread_mutex_lock(&placed->lock);
	pthread_cond_broadcast(&placed->idle);
	pthread_mutex_unlock(&placed->lock);
}

int placed_begin(struct tmesh_placed *placed, bool alone, struct tmesh_error *err)
{
	struct cancel_hook hook;
	int rc;

	cancel_hook_begin(&hook, placed_wake, placed);
	pthread_mutex_lock(&placed->lock);
	placed->wanting++;
	while (!(rc = cancel_check(err)) && (placed->changing || (alone && placed->running)))
		cancel_cond_wait(&placed->idle, &placed->lock, 0);
	placed->wanting--;
	if (rc)
		pthread_cond_broadcast(&placed->idle);
	else
		placed->changing = true;
	pthread_mutex_unlock(&placed->lock);
	cancel_hook_end(&hook);
	return rc;
}

void placed_end(struct tmesh_placed *placed)
{
	pthread_mutex_lock(&placed->lock);
	placed_bury(placed);
	placed->changing = false;
	pthread_cond_broadcast(&placed->idle);
	pthread_mutex_unlock(&placed->lock);
}

static size_t bindings_of(const struct tmesh_placed *placed)
{
	const struct tmesh_placed_binding *binding = placed->bindings;
	size_t count = 0;

	for (; binding; binding = binding->next)
		count++;
	return count;
}

/* Close an old plan, except for parts that a caller has: those stay as long as the graph. */
static void close_old(struct tmesh_placed *placed, struct placed_plan *old)
{
	plan_give_up(old);
	if (old->split && old->split->shown && old->split != placed->plan.split) {
		old->split->before = placed->shown;
		placed->shown = old->split;
		old->split = NULL;
	}
	plan_close(old);
}

/* Switch to the new places. They are complete, so nothing can fail here. */
static void arrive(struct tmesh_placed *placed, struct placed_plan *plan)
{
	struct placed_plan old = placed->plan;

	pthread_mutex_lock(&placed->lock);
	placed->plan = *plan;
	pthread_mutex_unlock(&placed->lock);
	for (struct tmesh_placed_binding *b = placed->bindings; b; b = b->next) {
		bound_free(&b->at, placed->graph->node_count);
		b->at = b->coming;
		b->coming = (struct placed_bound){0};
	}
	close_old(placed, &old);
	placed_use(placed);
	atomic_store(&placed->held, true);
}

/* Move to these places with all bindings, or change nothing. @full (may be NULL): whether room was
 * lacking. */
static int settle(struct tmesh_placed *placed, const uint32_t *at, bool *full,
		  struct tmesh_error *err)
{
	size_t places = placed->places->count;
	uint64_t *before = calloc(3 * places, sizeof(*before)), *both, *needs;
	struct placed_plan plan = {0};
	int rc;

	if (full)
		*full = false;
	if (!before)
		return tmesh_fail(err, -ENOMEM, "no memory for places");
	both = before + places;
	needs = both + places;
	rc = plan_make(placed, at, &plan, err);
	if (rc)
		goto free_numbers;
	plan_needs(&plan, bindings_of(placed), needs, places);
	for (size_t i = 0; i < places; i++) {
		before[i] = placed->claims[i];
		both[i] = needs[i] > before[i] ? needs[i] : before[i];
	}
	rc = places_claim(placed, both, err);
	if (rc) {
		if (full)
			*full = true;
		goto close_plan;
	}
	rc = plan_open(placed, &plan, err);
	for (struct tmesh_placed_binding *b = placed->bindings; !rc && b; b = b->next)
		rc = bound_make(b, &plan, &b->coming, err);
	if (!rc)
		arrive(placed, &plan);
	places_claim(placed, rc ? before : needs, NULL);
	for (struct tmesh_placed_binding *b = placed->bindings; rc && b; b = b->next)
		bound_free(&b->coming, placed->graph->node_count);
close_plan:
	if (rc)
		plan_close(&plan);
free_numbers:
	free(before);
	return rc;
}

int placed_reacquire(struct tmesh_placed *placed, struct tmesh_error *err)
{
	bool full;
	int rc = settle(placed, placed->plan.at, &full, err);

	if (rc && full && !tmesh_places_sweep(placed->places, NULL, NULL))
		rc = settle(placed, placed->plan.at, NULL, err);
	if (!rc)
		atomic_fetch_add(&placed->places->reacquired, 1);
	return rc;
}

/* Copy the graph's values home and free its places. After an error it still has its places. */
static int leave(struct tmesh_placed *placed, struct tmesh_error *err)
{
	size_t nodes = placed->graph->node_count;
	uint64_t *nothing = calloc(placed->places->count, sizeof(*nothing));
	int rc = nothing ? 0 : tmesh_fail(err, -ENOMEM, "no memory for places");

	for (struct tmesh_placed_binding *b = placed->bindings; !rc && b; b = b->next)
		rc = bound_home(b, &b->coming, err);
	for (struct tmesh_placed_binding *b = placed->bindings; b; b = b->next) {
		bound_free(rc ? &b->coming : &b->at, nodes);
		if (rc)
			continue;
		b->at = b->coming;
		b->coming = (struct placed_bound){0};
	}
	if (!rc) {
		plan_give_up(&placed->plan);
		atomic_store(&placed->held, false);
		places_claim(placed, nothing, NULL);
		atomic_fetch_add(&placed->places->given_up, 1);
	}
	free(nothing);
	return rc;
}

int placed_give_up(struct tmesh_placed *placed, bool *done, struct tmesh_error *err)
{
	int rc = 0;
	bool mine;

	*done = false;
	pthread_mutex_lock(&placed->lock);
	/* Check again: the graph may have been used since the caller checked. */
	mine = !placed->changing && !placed->wanting && !placed->running && places_due(placed);
	if (mine)
		placed->changing = true;
	pthread_mutex_unlock(&placed->lock);
	if (!mine)
		return 0;
	rc = leave(placed, err);
	*done = !rc;
	placed_end(placed);
	return rc;
}

int tmesh_placed_move(struct tmesh_placed *placed, const uint32_t *at, struct tmesh_error *err)
{
	int rc = places_enter(placed->places, err);

	if (rc)
		return rc;
	if (!at)
		return tmesh_fail(err, -EINVAL, "at is given: where each node is to run");
	rc = placed_begin(placed, true, err);
	if (rc)
		return rc;
	rc = settle(placed, at, NULL, err);
	if (!rc)
		atomic_fetch_add(&placed->places->moves, 1);
	placed_end(placed);
	return rc;
}

int tmesh_placed_at(struct tmesh_placed *placed, uint32_t *at, size_t count,
		    struct tmesh_error *err)
{
	int rc = places_enter(placed->places, err);

	if (rc)
		return rc;
	if (count != placed->graph->node_count || (count && !at))
		return tmesh_fail(err, -EINVAL, "room for %zu nodes, and the graph has %zu", count,
				  placed->graph->node_count);
	rc = placed_begin(placed, false, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < count; i++)
		at[i] = placed->plan.at[i];
	placed_end(placed);
	return 0;
}

static int keep_weights(struct tmesh_placed *placed, const struct tmesh_placed_opts *opts,
			struct tmesh_error *err)
{
	placed->weights = calloc(opts->weight_count + 1, sizeof(*placed->weights));
	for (size_t i = 0; placed->weights && i < opts->weight_count; i++) {
		char *name = strdup(opts->weights[i].name);

		if (!name)
			break;
		placed->weights[placed->weight_count++] = (struct tmesh_engine_weight){
			.name = name, .tensor = tmesh_tensor_ref(opts->weights[i].tensor)};
	}
	if (!placed->weights || placed->weight_count < opts->weight_count)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu weights", opts->weight_count);
	return 0;
}

static void placed_free(struct tmesh_placed *placed)
{
	struct tmesh_graph_partitions *parts;

	plan_close(&placed->plan);
	while ((parts = placed->shown)) {
		placed->shown = parts->before;
		tmesh_graph_partitions_unref(parts);
	}
	for (size_t i = 0; i < placed->weight_count; i++) {
		free((char *)placed->weights[i].name);
		tmesh_tensor_unref(placed->weights[i].tensor);
	}
	free(placed->weights);
	free(placed->folder);
	free(placed->claims);
	tmesh_graph_unref(placed->graph);
	tmesh_places_unref(placed->places);
	free(placed);
}

static int placed_new(struct tmesh_graph *graph, const struct tmesh_placed_opts *opts,
		      struct tmesh_placed **out, struct tmesh_error *err)
{
	struct tmesh_placed *placed = calloc(1, sizeof(*placed));
	pthread_condattr_t attr;
	int rc;

	if (!placed)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph in parts");
	placed->refs = 1;
	placed->graph = tmesh_graph_ref(graph);
	pthread_mutex_init(&placed->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&placed->idle, &attr);
	pthread_condattr_destroy(&attr);
	placed->folder = strdup(opts->folder);
	rc = keep_weights(placed, opts, err);
	if (!rc && opts->places)
		placed->places = tmesh_places_ref(opts->places);
	else if (!rc)
		rc = places_of_contexts(opts->contexts, opts->context_count, &placed->places, err);
	if (!rc) {
		placed->claims = calloc(placed->places->count, sizeof(*placed->claims));
		if (!placed->claims || !placed->folder)
			rc = tmesh_fail(err, -ENOMEM, "no memory for a graph in parts");
	}
	if (rc)
		placed_free(placed);
	else
		*out = placed;
	return rc;
}

int tmesh_placed_create(struct tmesh_graph *graph, const struct tmesh_placed_opts *opts,
			struct tmesh_placed **out, struct tmesh_error *err)
{
	struct tmesh_placed_opts given;
	struct tmesh_placed *placed = NULL;
	int rc = tmesh_read_sized(&given, sizeof(given), opts, err);

	if (rc)
		return rc;
	if (!given.at || !given.folder || (given.weight_count && !given.weights) ||
	    !(given.places || (given.contexts && given.context_count)))
		return tmesh_fail(err, -EINVAL,
				  "contexts or places, at and folder are given, and weights where "
				  "there are");
	if (given.places && given.context_count)
		return tmesh_fail(err, -EINVAL, "contexts are given, or places: not both");
	if (given.context_count > UINT32_MAX)
		return tmesh_fail(err, -EINVAL, "too many contexts: %zu", given.context_count);
	rc = check_weights(graph, &given, err);
	if (!rc)
		rc = placed_new(graph, &given, &placed, err);
	if (rc)
		return rc;
	rc = places_enter(placed->places, err);
	if (!rc)
		rc = settle(placed, given.at, NULL, err);
	if (rc) {
		placed_free(placed);
		return rc;
	}
	places_add(placed->places, placed);
	*out = placed;
	return 0;
}

struct tmesh_placed *tmesh_placed_ref(struct tmesh_placed *placed)
{
	atomic_fetch_add(&placed->refs, 1);
	return placed;
}

void tmesh_placed_unref(struct tmesh_placed *placed)
{
	if (!placed || atomic_fetch_sub(&placed->refs, 1) > 1)
		return;
	places_remove(placed->places, placed);
	placed_free(placed);
}

const struct tmesh_graph_partitions *tmesh_placed_partitions(const struct tmesh_placed *placed)
{
	struct tmesh_placed *own = (struct tmesh_placed *)placed;
	struct tmesh_graph_partitions *parts;

	/* In a forked child the lock may stay locked for ever, and no thread changes the graph. */
	if (places_enter(placed->places, NULL))
		return placed->plan.split;
	pthread_mutex_lock(&own->lock);
	parts = own->plan.split;
	parts->shown = true;
	pthread_mutex_unlock(&own->lock);
	return parts;
}
