// SPDX-License-Identifier: MIT
/*
 * Placement: a greedy list placement (each node in its turn where it would end first), then local
 * search (one node to another device, two nodes change places) until nothing gets better, then
 * restarts from places that were shaken. Nodes run in the caller's order, which has inputs first.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/sized.h"

#pragma GCC visibility push(default)
#include <tmesh/placement.h>
#pragma GCC visibility pop

#define RESTARTS 200
#define TIME_NS 40000000ull
/* Of the nodes, how many a restart moves: one in so many, and one at least. */
#define SHAKEN 6
/* How much the mean of all ends counts beside the last one: most moves do not change the last. */
#define EARLY 0.005

struct search {
	const struct tmesh_placement_problem *problem;
	size_t nodes, devices;
	uint32_t *at;	 /* by node: the device that is being tried */
	uint32_t *best;	 /* the best placement so far */
	double *end;	 /* by node, of the last cost() */
	double last;	 /* of them all */
	double *free_at; /* by device */
	uint64_t *used;	 /* bytes by device, of @at */
	uint64_t random;
	uint64_t deadline;
};

static double seconds_on(const struct search *s, size_t node, size_t device)
{
	return s->problem->nodes[node].seconds[device];
}

/* When what a node reads is on a device. */
static double ready(const struct search *s, size_t node, size_t device)
{
	const struct tmesh_placement_node *n = &s->problem->nodes[node];
	double when = 0;

	for (uint32_t i = 0; i < n->input_count; i++) {
		uint32_t from = n->inputs[i];
		double there = s->end[from];

		if (s->at[from] != device) {
			const struct tmesh_placement_link *link =
				&s->problem->links[s->at[from] * s->devices + device];

			there += link->latency +
				 (double)s->problem->nodes[from].bytes / link->bandwidth;
		}
		if (there > when)
			when = there;
	}
	return when;
}

static double ends(const struct search *s, size_t node, size_t device)
{
	double begin = ready(s, node, device);

	if (s->free_at[device] > begin)
		begin = s->free_at[device];
	return begin + s->problem->devices[device].latency + seconds_on(s, node, device);
}

/* What is searched for: the end of @at, and a little of all ends. Given up where it gets no better
 * than @most. */
static double cost(struct search *s, double most)
{
	double last = 0, sum = 0;

	memset(s->free_at, 0, s->devices * sizeof(*s->free_at));
	for (size_t i = 0; i < s->nodes; i++) {
		s->end[i] = s->free_at[s->at[i]] = ends(s, i, s->at[i]);
		sum += s->end[i];
		if (s->end[i] > last)
			last = s->end[i];
		if (last >= most)
			return DBL_MAX;
	}
	s->last = last;
	return last + sum * EARLY / (double)s->nodes;
}

static bool fits(const struct search *s, size_t node, size_t device)
{
	return seconds_on(s, node, device) >= 0 &&
	       s->problem->nodes[node].memory <=
		       s->problem->devices[device].memory - s->used[device];
}

static void put(struct search *s, size_t node, uint32_t device)
{
	s->used[s->at[node]] -= s->problem->nodes[node].memory;
	s->used[device] += s->problem->nodes[node].memory;
	s->at[node] = device;
}

/* A step back, one deep: a device that would run the node gives one of its nodes away. */
static bool make_room(struct search *s, size_t node, size_t *device)
{
	const struct tmesh_placement_node *nodes = s->problem->nodes;

	for (size_t d = 0; d < s->devices; d++) {
		if (seconds_on(s, node, d) < 0)
			continue;
		for (size_t other = 0; other < node; other++) {
			uint64_t left = s->problem->devices[d].memory - s->used[d];

			if (s->at[other] != d || nodes[node].memory > left + nodes[other].memory)
				continue;
			for (uint32_t to = 0; to < s->devices; to++) {
				if (to == d || !fits(s, other, to))
					continue;
				put(s, other, to);
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
			double when = fits(s, i, d) ? ends(s, i, d) : DBL_MAX;

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
		s->end[i] = s->free_at[best] = ends(s, i, best);
	}
	return 0;
}

static bool late(const struct search *s)
{
	return tmesh_now_ns() > s->deadline;
}

static bool move_one(struct search *s, size_t node, double *now)
{
	uint32_t was = s->at[node], best = was;

	for (uint32_t d = 0; d < s->devices; d++) {
		double tried;

		if (d == was || !fits(s, node, d))
			continue;
		s->at[node] = d;
		tried = cost(s, *now);
		if (tried < *now) {
			*now = tried;
			best = d;
		}
	}
	s->at[node] = was;
	put(s, node, best);
	return best != was;
}

static bool exchange(struct search *s, size_t one, size_t two, double *now)
{
	const struct tmesh_placement_node *nodes = s->problem->nodes;
	uint32_t a = s->at[one], b = s->at[two];
	double tried;

	if (a == b || seconds_on(s, one, b) < 0 || seconds_on(s, two, a) < 0 ||
	    s->used[a] - nodes[one].memory + nodes[two].memory > s->problem->devices[a].memory ||
	    s->used[b] - nodes[two].memory + nodes[one].memory > s->problem->devices[b].memory)
		return false;
	s->at[one] = b;
	s->at[two] = a;
	tried = cost(s, *now);
	if (tried < *now) {
		s->used[a] += nodes[two].memory - nodes[one].memory;
		s->used[b] += nodes[one].memory - nodes[two].memory;
		*now = tried;
		return true;
	}
	s->at[one] = a;
	s->at[two] = b;
	return false;
}

/* To the end of @at when nothing near is better. */
static double improve(struct search *s)
{
	double now = cost(s, DBL_MAX);
	bool better = true;

	while (better && !late(s)) {
		better = false;
		for (size_t i = 0; i < s->nodes && !late(s); i++)
			better |= move_one(s, i, &now);
		/* Dearer, and only where single moves end. */
		for (size_t i = 0; !better && i < s->nodes && !late(s); i++)
			for (size_t j = i + 1; j < s->nodes; j++)
				better |= exchange(s, i, j, &now);
	}
	cost(s, DBL_MAX);
	return s->last;
}

/* xorshift64*: Marsaglia, "Xorshift RNGs", 2003; Vigna, 2016. */
static uint64_t draw(struct search *s, uint64_t below)
{
	s->random ^= s->random >> 12;
	s->random ^= s->random << 25;
	s->random ^= s->random >> 27;
	return (s->random * 0x2545f4914f6cdd1dull >> 32) % below;
}

/* Move some nodes anywhere; two change places where there is no room. Few mostly, at times many. */
static void shake(struct search *s)
{
	size_t moves = 1 + draw(s, draw(s, 4) ? s->nodes / SHAKEN + 1 : s->nodes);

	while (moves--) {
		size_t node = draw(s, s->nodes), other = draw(s, s->nodes);
		uint32_t device = (uint32_t)draw(s, s->devices), was = s->at[node];
		double any = DBL_MAX;

		if (device == was)
			continue;
		if (fits(s, node, device))
			put(s, node, device);
		else
			exchange(s, node, other, &any);
	}
}

static void take(struct search *s, const uint32_t *from)
{
	memcpy(s->at, from, s->nodes * sizeof(*s->at));
	memset(s->used, 0, s->devices * sizeof(*s->used));
	for (size_t i = 0; i < s->nodes; i++)
		s->used[s->at[i]] += s->problem->nodes[i].memory;
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

static void search_close(struct search *s)
{
	free(s->at);
	free(s->best);
	free(s->end);
	free(s->free_at);
	free(s->used);
}

static int search_open(struct search *s, const struct tmesh_placement_problem *p,
		       struct tmesh_error *err)
{
	*s = (struct search){.problem = p, .nodes = p->node_count, .devices = p->device_count};
	s->at = calloc(s->nodes, sizeof(*s->at));
	s->best = calloc(s->nodes, sizeof(*s->best));
	s->end = calloc(s->nodes, sizeof(*s->end));
	s->free_at = calloc(s->devices, sizeof(*s->free_at));
	s->used = calloc(s->devices, sizeof(*s->used));
	if (s->at && s->best && s->end && s->free_at && s->used)
		return 0;
	search_close(s);
	return tmesh_fail(err, -ENOMEM, "no memory for a placement");
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
	cost(&s, DBL_MAX);
	found.seconds = found.greedy = s.last;
	memcpy(s.best, s.at, s.nodes * sizeof(*s.at));
	s.random = problem.seed ? problem.seed : 1;
	s.deadline = tmesh_now_ns() + (problem.time_ns ? problem.time_ns : TIME_NS);
	for (; found.searches <= (problem.restarts ? problem.restarts : RESTARTS) && !late(&s);
	     found.searches++) {
		double seconds;

		take(&s, s.best);
		if (found.searches)
			shake(&s);
		seconds = improve(&s);
		if (seconds < found.seconds) {
			found.seconds = seconds;
			memcpy(s.best, s.at, s.nodes * sizeof(*s.at));
		}
	}
	take(&s, s.best);
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
		else if (seconds_on(&s, i, device[i]) < 0)
			rc = tmesh_fail(err, -EOPNOTSUPP, "device %u does not run node %zu",
					device[i], i);
		else if (!fits(&s, i, device[i]))
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
		cost(&s, DBL_MAX);
		found.seconds = found.greedy = s.last;
		found.bytes_moved = bytes_moved(&s);
		rc = tmesh_write_sized(out, &found, sizeof(found), err);
	}
	search_close(&s);
	return rc;
}
