// SPDX-License-Identifier: MIT
/*
 * Placement: a greedy list placement (each node in its turn where it would end first), local search
 * from there, then annealing (placement_search.c) from the best so far, again and again while there
 * is time. Nodes run in the caller's order, which has inputs first.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "placement_internal.h"

#define RESTARTS 200
#define TIME_NS 40000000ull

/* A step back, one deep: a device that would run the node gives one of its nodes away. */
static bool make_room(struct search *s, size_t node, size_t *device)
{
	const struct tmesh_placement_node *nodes = s->problem->nodes;

	for (size_t d = 0; d < s->devices; d++) {
		if (s->run[node * s->devices + d] < 0)
			continue;
		for (size_t other = 0; other < node; other++) {
			uint64_t left = s->problem->devices[d].memory - s->used[d];

			if (s->at[other] != d || nodes[node].memory > left + nodes[other].memory)
				continue;
			for (uint32_t to = 0; to < s->devices; to++) {
				if (to == d || !search_fits(s, other, to))
					continue;
				search_put(s, other, to);
				*device = d;
				return true;
			}
		}
	}
	return false;
}

static int greedy(struct search *s, struct tmesh_error *err)
{
	const struct tmesh_placement_problem *p = s->problem;
	uint64_t needed = 0, there = 0;

	memset(s->used, 0, s->devices * sizeof(*s->used));
	memset(s->free_at, 0, s->devices * sizeof(*s->free_at));
	for (size_t i = 0; i < s->nodes; i++) {
		size_t best = s->devices;
		double first = DBL_MAX;

		for (size_t d = 0; d < s->devices; d++) {
			double when = search_fits(s, i, d) ? search_ends(s, s->end, i, d) : DBL_MAX;

			if (when < first) {
				first = when;
				best = d;
			}
		}
		if (best == s->devices && !make_room(s, i, &best)) {
			for (size_t n = 0; n < s->nodes; n++)
				needed += p->nodes[n].memory;
			for (size_t d = 0; d < s->devices; d++)
				there += p->devices[d].memory;
			return tmesh_fail(err, -ENOSPC,
					  "no device has room for node \"%.63s\" of %" PRIu64
					  " bytes: all %zu nodes need %" PRIu64
					  " bytes, the %zu devices have %" PRIu64,
					  p->nodes[i].name ?: "", p->nodes[i].memory, s->nodes,
					  needed, s->devices, there);
		}
		s->at[i] = (uint32_t)best;
		s->used[best] += p->nodes[i].memory;
		s->end[i] = s->free_at[best] = search_ends(s, s->end, i, best);
	}
	return 0;
}

static int check_node(const struct tmesh_placement_problem *p, size_t i, struct tmesh_error *err)
{
	const struct tmesh_placement_node *node = &p->nodes[i];
	bool runs = false;

	if (!node->seconds || (node->input_count && !node->inputs))
		return tmesh_fail(err, -EINVAL, "node %zu has no times or no inputs", i);
	for (uint32_t n = 0; n < node->input_count; n++)
		if (node->inputs[n] >= i)
			return tmesh_fail(err, -EINVAL,
					  "node %zu reads node %u, which is not before", i,
					  node->inputs[n]);
	for (size_t d = 0; d < p->device_count; d++) {
		if (!isfinite(node->seconds[d]))
			return tmesh_fail(err, -EINVAL,
					  "node %zu: its time on device %zu is not a number", i, d);
		runs |= node->seconds[d] >= 0;
	}
	if (!runs)
		return tmesh_fail(err, -EOPNOTSUPP, "no device runs node %zu \"%.63s\"", i,
				  node->name ?: "");
	return 0;
}

static int check(const struct tmesh_placement_problem *p, struct tmesh_error *err)
{
	int rc = 0;

	if (!p->devices || !p->links || !p->nodes || !p->device_count || !p->node_count ||
	    p->device_count > TMESH_PLACEMENT_MAX_DEVICES ||
	    p->node_count > TMESH_PLACEMENT_MAX_NODES)
		return tmesh_fail(err, -EINVAL,
				  "a placement takes 1 to %d nodes and 1 to %d devices",
				  TMESH_PLACEMENT_MAX_NODES, TMESH_PLACEMENT_MAX_DEVICES);
	for (size_t d = 0; d < p->device_count; d++)
		if (!isfinite(p->devices[d].latency) || p->devices[d].latency < 0)
			return tmesh_fail(err, -EINVAL,
					  "device %zu: its latency is not a time, 0 or more", d);
	for (size_t i = 0; i < p->device_count * p->device_count; i++) {
		const struct tmesh_placement_link *link = &p->links[i];

		if (i / p->device_count != i % p->device_count &&
		    (!isfinite(link->bandwidth) || link->bandwidth <= 0 ||
		     !isfinite(link->latency) || link->latency < 0))
			return tmesh_fail(err, -EINVAL,
					  "the link from device %zu to %zu: bandwidth is above 0, "
					  "latency a time",
					  i / p->device_count, i % p->device_count);
	}
	for (size_t i = 0; !rc && i < p->node_count; i++)
		rc = check_node(p, i, err);
	return rc;
}

static uint64_t bytes_moved(const struct search *s)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < s->nodes; i++) {
		uint64_t to = 0; /* devices that the value has gone to */

		for (size_t n = i + 1; n < s->nodes; n++)
			for (uint32_t k = 0; k < s->problem->nodes[n].input_count; k++)
				if (s->problem->nodes[n].inputs[k] == i && s->at[n] != s->at[i])
					to |= 1ull << s->at[n];
		bytes += (uint64_t)__builtin_popcountll(to) * s->problem->nodes[i].bytes;
	}
	return bytes;
}

int tmesh_placement_find(const struct tmesh_placement_problem *given, uint32_t *device,
			 struct tmesh_placement *out, struct tmesh_error *err)
{
	struct tmesh_placement_problem problem;
	struct tmesh_placement found = {0};
	struct search s;
	int rc = tmesh_read_sized(&problem, sizeof(problem), given, err);

	if (!rc)
		rc = check(&problem, err);
	if (!rc)
		rc = search_open(&s, &problem, err);
	if (rc)
		return rc;
	rc = greedy(&s, err);
	if (rc) {
		search_close(&s);
		return rc;
	}
	search_cost(&s);
	found.greedy = s.last;
	s.random = problem.seed ? problem.seed : 1;
	s.deadline = tmesh_now_ns() + (problem.time_ns ? problem.time_ns : TIME_NS);
	search_improve(&s);
	for (found.searches = 1;
	     found.searches <= (problem.restarts ? problem.restarts : RESTARTS) && !s.late;
	     found.searches++) {
		search_take(&s, s.best);
		search_anneal(&s, found.searches - 1);
		search_improve(&s);
	}
	found.seconds = s.best_last;
	search_take(&s, s.best);
	found.bytes_moved = bytes_moved(&s);
	if (out)
		rc = tmesh_write_sized(out, &found, sizeof(found), err);
	if (!rc)
		memcpy(device, s.best, s.nodes * sizeof(*device));
	search_close(&s);
	return rc;
}

int tmesh_placement_cost(const struct tmesh_placement_problem *given, const uint32_t *device,
			 struct tmesh_placement *out, struct tmesh_error *err)
{
	struct tmesh_placement_problem problem;
	struct tmesh_placement found = {0};
	struct search s;
	int rc = tmesh_read_sized(&problem, sizeof(problem), given, err);

	if (!rc)
		rc = check(&problem, err);
	if (!rc)
		rc = search_open(&s, &problem, err);
	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < s.nodes; i++) {
		if (device[i] >= s.devices)
			rc = tmesh_fail(err, -EINVAL, "node %zu: there is no device %u", i,
					device[i]);
		else if (problem.nodes[i].seconds[device[i]] < 0)
			rc = tmesh_fail(err, -EOPNOTSUPP, "device %u does not run node %zu",
					device[i], i);
		else if (!search_fits(&s, i, device[i]))
			rc = tmesh_fail(err, -ENOSPC,
					"node %zu of %" PRIu64 " bytes does not fit on device %u: "
					"%" PRIu64 " of %" PRIu64 " are used",
					i, problem.nodes[i].memory, device[i], s.used[device[i]],
					problem.devices[device[i]].memory);
		if (rc)
			break;
		s.at[i] = device[i];
		s.used[device[i]] += problem.nodes[i].memory;
	}
	if (!rc) {
		search_cost(&s);
		found.seconds = found.greedy = s.last;
		found.bytes_moved = bytes_moved(&s);
		rc = tmesh_write_sized(out, &found, sizeof(found), err);
	}
	search_close(&s);
	return rc;
}
