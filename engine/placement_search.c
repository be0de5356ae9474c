// SPDX-License-Identifier: MIT
/*
 * Local search on a placement. Nodes run in the caller's order, so that a change at a node leaves
 * all before it as they were: a try begins there, and ends as soon as it cannot be taken any more.
 */
#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "placement_internal.h"

/* Steps of one annealing for each node, and in all at most. */
#define STEPS 200
#define STEPS_MOST 200000
/* How much worse a step may be at first, as a part of the whole: by turns, for what is near and
 * what is far. */
static const double warms[] = {0.15, 0.06, 0.3, 0.03};
#define WARMS (sizeof(warms) / sizeof(*warms))
/* Nodes that move together, at most. */
#define CHAIN 4
/* Tries between looks at the clock. */
#define LOOK 64

void search_close(struct search *s)
{
	free(s->run);
	free(s->link);
	free(s->tail);
	free(s->inputs);
	free(s->first);
	free(s->at);
	free(s->best);
	free(s->end);
	free(s->tried);
	free(s->free_at);
	free(s->used);
}

static void fill(struct search *s)
{
	const struct tmesh_placement_problem *p = s->problem;
	uint32_t at = 0;

	for (size_t i = 0; i < s->nodes; i++) {
		s->first[i] = at;
		for (uint32_t k = 0; k < p->nodes[i].input_count; k++)
			s->inputs[at++] = p->nodes[i].inputs[k];
		for (size_t d = 0; d < s->devices; d++)
			s->run[i * s->devices + d] =
				p->nodes[i].seconds[d] < 0
					? -1
					: p->devices[d].latency + p->nodes[i].seconds[d];
	}
	s->first[s->nodes] = at;
	for (size_t a = 0; a < s->devices; a++)
		for (size_t b = 0; b < s->devices; b++) {
			const struct tmesh_placement_link *link = &p->links[a * s->devices + b];
			double *to = &s->link[(a * s->devices + b) * 2];

			to[0] = a == b ? 0 : link->latency;
			to[1] = a == b ? 0 : 1 / link->bandwidth;
		}
	for (size_t i = s->nodes; i--;) {
		double least = DBL_MAX;

		for (size_t d = 0; d < s->devices; d++) {
			double run = s->run[i * s->devices + d];

			if (run >= 0 && run < least)
				least = run;
		}
		for (uint32_t k = s->first[i]; k < s->first[i + 1]; k++)
			if (s->tail[s->inputs[k]] < s->tail[i] + least)
				s->tail[s->inputs[k]] = s->tail[i] + least;
	}
}

int search_open(struct search *s, const struct tmesh_placement_problem *p, struct tmesh_error *err)
{
	size_t inputs = 1;

	*s = (struct search){.problem = p, .nodes = p->node_count, .devices = p->device_count};
	s->best_last = DBL_MAX;
	for (size_t i = 0; i < s->nodes; i++)
		if (__builtin_add_overflow(inputs, p->nodes[i].input_count, &inputs) ||
		    inputs > UINT32_MAX)
			return tmesh_fail(err, -EINVAL, "the nodes have more than 2^32 inputs");
	s->run = calloc(s->nodes * s->devices, sizeof(*s->run));
	s->link = calloc(s->devices * s->devices, 2 * sizeof(*s->link));
	s->tail = calloc(s->nodes, sizeof(*s->tail));
	s->inputs = calloc(inputs, sizeof(*s->inputs));
	s->first = calloc(s->nodes + 1, sizeof(*s->first));
	s->at = calloc(s->nodes, sizeof(*s->at));
	s->best = calloc(s->nodes, sizeof(*s->best));
	s->end = calloc(s->nodes, sizeof(*s->end));
	s->tried = calloc(s->nodes, sizeof(*s->tried));
	s->free_at = calloc(s->devices, sizeof(*s->free_at));
	s->used = calloc(s->devices, sizeof(*s->used));
	if (!s->run || !s->link || !s->tail || !s->inputs || !s->first || !s->at || !s->best ||
	    !s->end || !s->tried || !s->free_at || !s->used) {
		search_close(s);
		return tmesh_fail(err, -ENOMEM, "no memory for a placement");
	}
	fill(s);
	return 0;
}

double search_ends(const struct search *s, const double *end, size_t i, size_t device)
{
	double begin = s->free_at[device];

	for (uint32_t k = s->first[i]; k < s->first[i + 1]; k++) {
		uint32_t from = s->inputs[k];
		const double *link = &s->link[(s->at[from] * s->devices + device) * 2];
		double there =
			end[from] + link[0] + (double)s->problem->nodes[from].bytes * link[1];

		if (there > begin)
			begin = there;
	}
	return begin + s->run[i * s->devices + device];
}

/* What is searched for: the end of @at, and a little of all ends, when the nodes from @from on may
 * have changed. DBL_MAX as soon as it is @most or more. Ends go to @tried, those before as well. */
static double try_from(struct search *s, size_t from, double most)
{
	double last = 0, sum = 0, early = EARLY / (double)s->nodes;

	memset(s->free_at, 0, s->devices * sizeof(*s->free_at));
	for (size_t i = 0; i < from; i++) {
		double end = s->end[i];

		s->tried[i] = s->free_at[s->at[i]] = end;
		sum += end;
		if (end > last)
			last = end;
	}
	for (size_t i = from; i < s->nodes; i++) {
		double end = search_ends(s, s->tried, i, s->at[i]);

		s->tried[i] = s->free_at[s->at[i]] = end;
		sum += end;
		if (end + s->tail[i] >= most)
			return DBL_MAX;
		if (end > last)
			last = end;
	}
	last += sum * early;
	return last < most ? last : DBL_MAX;
}

/* What was tried is now. */
static void accept(struct search *s, size_t from)
{
	memcpy(s->end + from, s->tried + from, (s->nodes - from) * sizeof(*s->end));
	s->last = 0;
	for (size_t i = 0; i < s->nodes; i++)
		if (s->end[i] > s->last)
			s->last = s->end[i];
	if (s->last < s->best_last) {
		s->best_last = s->last;
		memcpy(s->best, s->at, s->nodes * sizeof(*s->at));
	}
}

double search_cost(struct search *s)
{
	double now = try_from(s, 0, DBL_MAX);

	accept(s, 0);
	return now;
}

bool search_fits(const struct search *s, size_t node, size_t device)
{
	return s->run[node * s->devices + device] >= 0 &&
	       s->problem->nodes[node].memory <=
		       s->problem->devices[device].memory - s->used[device];
}

void search_put(struct search *s, size_t node, uint32_t device)
{
	s->used[s->at[node]] -= s->problem->nodes[node].memory;
	s->used[device] += s->problem->nodes[node].memory;
	s->at[node] = device;
}

void search_take(struct search *s, const uint32_t *from)
{
	memmove(s->at, from, s->nodes * sizeof(*s->at));
	memset(s->used, 0, s->devices * sizeof(*s->used));
	for (size_t i = 0; i < s->nodes; i++)
		s->used[s->at[i]] += s->problem->nodes[i].memory;
}

static bool late(struct search *s)
{
	if (!s->late)
		s->late = tmesh_now_ns() > s->deadline;
	return s->late;
}

static bool move(struct search *s, size_t node, uint32_t device, double most, double *now)
{
	uint32_t was = s->at[node];
	double tried;

	if (device == was || !search_fits(s, node, device))
		return false;
	s->at[node] = device;
	tried = try_from(s, node, most);
	if (tried == DBL_MAX) {
		s->at[node] = was;
		return false;
	}
	s->at[node] = was;
	search_put(s, node, device);
	accept(s, node);
	*now = tried;
	return true;
}

static bool exchange(struct search *s, size_t one, size_t two, double most, double *now)
{
	const struct tmesh_placement_node *nodes = s->problem->nodes;
	uint32_t a = s->at[one], b = s->at[two];
	double tried;

	if (a == b || s->run[one * s->devices + b] < 0 || s->run[two * s->devices + a] < 0 ||
	    s->used[a] - nodes[one].memory + nodes[two].memory > s->problem->devices[a].memory ||
	    s->used[b] - nodes[two].memory + nodes[one].memory > s->problem->devices[b].memory)
		return false;
	s->at[one] = b;
	s->at[two] = a;
	tried = try_from(s, one < two ? one : two, most);
	if (tried == DBL_MAX) {
		s->at[one] = a;
		s->at[two] = b;
		return false;
	}
	s->used[a] += nodes[two].memory - nodes[one].memory;
	s->used[b] += nodes[one].memory - nodes[two].memory;
	accept(s, one < two ? one : two);
	*now = tried;
	return true;
}

/* xorshift64*: Marsaglia, "Xorshift RNGs", 2003; Vigna, 2016. */
static uint32_t draw(struct search *s, size_t below)
{
	s->random ^= s->random >> 12;
	s->random ^= s->random << 25;
	s->random ^= s->random >> 27;
	return (uint32_t)(((s->random * 0x2545f4914f6cdd1dull >> 32) * below) >> 32);
}

/* A node and, from input to input, some of those before it: what talks much moves together. */
static bool move_chain(struct search *s, size_t node, uint32_t device, double most, double *now)
{
	size_t chain[CHAIN], count = 0, length = 2 + draw(s, CHAIN - 1);
	uint32_t was[CHAIN];
	bool fits = true;

	while (count < length) {
		if (s->at[node] != device) {
			fits = fits && search_fits(s, node, device);
			was[count] = s->at[node];
			chain[count++] = node;
			search_put(s, node, device);
		}
		if (!fits || s->first[node] == s->first[node + 1])
			break;
		node = s->inputs[s->first[node] + draw(s, s->first[node + 1] - s->first[node])];
	}
	if (fits && count) {
		double tried = try_from(s, chain[count - 1], most);

		if (tried < DBL_MAX) {
			accept(s, chain[count - 1]);
			*now = tried;
			return true;
		}
	}
	while (count--)
		search_put(s, chain[count], was[count]);
	return false;
}

void search_improve(struct search *s)
{
	double now = search_cost(s);
	bool better = true;

	while (better && !late(s)) {
		better = false;
		for (size_t i = 0; i < s->nodes && !late(s); i++)
			for (uint32_t d = 0; d < s->devices; d++)
				better |= move(s, i, d, now, &now);
		/* Dearer, and only where single moves end. */
		for (size_t i = 0; !better && i < s->nodes && !late(s); i++)
			for (size_t j = i + 1; j < s->nodes; j++)
				better |= exchange(s, i, j, now, &now);
	}
}

/* Next to what the node reads, or anywhere. */
static uint32_t choose(struct search *s, size_t node)
{
	uint32_t inputs = s->first[node + 1] - s->first[node];

	if (inputs && !draw(s, 3))
		return s->at[s->inputs[s->first[node] + draw(s, inputs)]];
	return draw(s, s->devices);
}

void search_anneal(struct search *s, uint32_t turn)
{
	size_t steps = s->nodes * STEPS < STEPS_MOST ? s->nodes * STEPS : STEPS_MOST;
	double now = search_cost(s), warm = now * warms[turn % WARMS];

	for (size_t step = 0; step < steps && !(step % LOOK == 0 && late(s)); step++) {
		double left = (double)(steps - step) / (double)steps;
		/* By chance, so that few big steps and many small ones are taken. */
		double chance = draw(s, 1 << 16) / 65536.;
		double most = now + warm * left * left * chance * chance * chance;
		size_t node = draw(s, s->nodes);

		uint32_t kind = draw(s, 10);

		if (kind < 5)
			move(s, node, choose(s, node), most, &now);
		else if (kind < 8)
			move_chain(s, node, choose(s, node), most, &now);
		else
			exchange(s, node, draw(s, s->nodes), most, &now);
	}
}
