// SPDX-License-Identifier: MIT
/*
 * Placement. Each node, in the graph's order, goes to the place where it ends first. If it fits
 * nowhere, an earlier node is moved away for it; only one such step back is tried.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/sized.h"
#include "graph_internal.h"

#pragma GCC visibility push(default)
#include <tmesh/placement.h>
#pragma GCC visibility pop

/* Small enough that sums do not overflow. */
#define MOST_BYTES (1ull << 51)

struct placing {
	const struct tmesh_graph *graph;
	const struct tmesh_placement_place *places;
	const struct tmesh_placement_link *links;
	size_t count;
	uint32_t *at;	 /* by node */
	double *end;	 /* by node */
	uint64_t *needs; /* by node: weights and inputs that it is the first to read */
	double free_at[TMESH_PLACEMENT_MAX_PLACES];
	uint64_t used[TMESH_PLACEMENT_MAX_PLACES];
};

static double larger(double a, double b)
{
	return a > b ? a : b;
}

static uint64_t elements(const struct tmesh_graph_node *node)
{
	uint64_t count = 1;

	for (int i = 0; i < node->ndim; i++)
		count *= (uint64_t)node->shape[i];
	return count;
}

/* Return the bytes of a node's value; of a weight, its bytes in the file. */
static uint64_t value_bytes(const struct tmesh_graph_node *node)
{
	const struct graph_quant *quant = node->quant ? graph_quant(node->quant) : NULL;

	if (quant)
		return elements(node) / quant->block_elements * quant->block_bytes;
	return elements(node) * tmesh_dtype_bits(node->dtype) / 8;
}

/* Return the node whose memory a reshape shows in another shape. */
static uint32_t behind(const struct tmesh_graph *graph, uint32_t index)
{
	while (graph->nodes[index].op == TMESH_GRAPH_RESHAPE)
		index = graph->nodes[index].inputs[0];
	return index;
}

static bool is_given(const struct tmesh_graph_node *node)
{
	return node->op == TMESH_GRAPH_INPUT || node->op == TMESH_GRAPH_WEIGHT;
}

static bool runs(const struct tmesh_graph_node *node)
{
	return !is_given(node) && node->op != TMESH_GRAPH_RESHAPE;
}

static double last(const struct tmesh_graph_node *node)
{
	return node->ndim ? (double)node->shape[node->ndim - 1] : 1;
}

/* Return the multiplications and additions of a node's matrices. */
static double work(const struct tmesh_graph *graph, const struct tmesh_graph_node *node)
{
	const struct tmesh_graph_node *in[3] = {0};
	double count = (double)elements(node);

	for (uint32_t i = 0; i < 3 && i < node->input_count; i++)
		in[i] = &graph->nodes[node->inputs[i]];
	switch (node->op) {
	case TMESH_GRAPH_MATMUL:
		return 2 * count * last(in[0]);
	case TMESH_GRAPH_LORA:
		return 2 * count * last(in[0]) +
		       2 * (double)in[2]->shape[0] *
			       (count / larger(last(node), 1) * last(in[0]) + count);
	case TMESH_GRAPH_ATTENTION:
		/* Each query with every row, then the sum of the values. */
		return 4 * count * (double)in[1]->shape[0] *
		       (in[1]->ndim == 4 ? (double)in[1]->shape[1] : 1);
	default:
		return 0;
	}
}

/* Return the bytes that a node reads and writes. */
static double traffic(const struct tmesh_graph *graph, const struct tmesh_graph_node *node)
{
	double bytes = (double)value_bytes(node);

	switch (node->op) {
	case TMESH_GRAPH_SET_ROWS: /* the other rows stay where they are */
		return 2 * (double)value_bytes(&graph->nodes[node->inputs[1]]);
	case TMESH_GRAPH_GET_ROWS:
		return 2 * bytes;
	default:
		for (uint32_t i = 0; i < node->input_count; i++)
			bytes += (double)value_bytes(&graph->nodes[node->inputs[i]]);
		return bytes;
	}
}

static bool can_run(const struct placing *p, uint32_t node, size_t place)
{
	uint64_t operators = p->places[place].operators;

	return !operators || operators >> p->graph->nodes[node].op & 1;
}

static uint64_t room(const struct placing *p, size_t place)
{
	return (p->places[place].memory ?: UINT64_MAX) - p->used[place];
}

static bool fits(const struct placing *p, uint32_t node, size_t place)
{
	return can_run(p, node, place) && p->needs[node] <= room(p, place);
}

static void placing_put(struct placing *p, uint32_t node, size_t place)
{
	p->at[node] = (uint32_t)place;
	p->used[place] += p->needs[node];
}

/* Return when a node would end at a place, with its inputs where @at has them. */
static double end_at(const struct placing *p, uint32_t index, size_t place)
{
	const struct tmesh_graph_node *node = &p->graph->nodes[index];
	const struct tmesh_placement_place *here = &p->places[place];
	double begin = p->free_at[place];

	for (uint32_t i = 0; i < node->input_count; i++) {
		uint32_t from = behind(p->graph, node->inputs[i]);
		const struct tmesh_placement_link *link;
		double there = p->end[from];

		if (is_given(&p->graph->nodes[from]))
			continue;
		link = &p->links[p->at[from] * p->count + place];
		if (p->at[from] != place)
			there += link->latency +
				 (double)value_bytes(&p->graph->nodes[from]) / link->bandwidth;
		begin = larger(begin, there);
	}
	return begin + here->node +
	       larger(work(p->graph, node) / here->flops,
		      traffic(p->graph, node) / here->bandwidth);
}

/* Compute the ends of all nodes before @nodes. Return the last end. */
static double play(struct placing *p, size_t nodes)
{
	double end = 0;

	memset(p->free_at, 0, sizeof(p->free_at));
	for (uint32_t i = 0; i < nodes; i++) {
		if (!runs(&p->graph->nodes[i]))
			continue;
		p->end[i] = p->free_at[p->at[i]] = end_at(p, i, p->at[i]);
		end = larger(end, p->end[i]);
	}
	return end;
}

/* Make room for @node: move one earlier node away from a place that can run @node. */
static bool make_room(struct placing *p, uint32_t node, size_t *place)
{
	for (size_t here = 0; here < p->count; here++) {
		if (!can_run(p, node, here))
			continue;
		for (uint32_t other = 0; other < node; other++) {
			if (!runs(&p->graph->nodes[other]) || p->at[other] != here ||
			    p->needs[node] > room(p, here) + p->needs[other])
				continue;
			for (size_t to = 0; to < p->count; to++) {
				if (to == here || !fits(p, other, to))
					continue;
				p->used[here] -= p->needs[other];
				placing_put(p, other, to);
				play(p, node);
				*place = here;
				return true;
			}
		}
	}
	return false;
}

static int no_place(const struct placing *p, uint32_t node, struct tmesh_error *err)
{
	const char *name = p->graph->nodes[node].name;
	uint64_t needed = 0, there = 0;
	bool any = false;

	for (size_t i = 0; i < p->count; i++) {
		any |= can_run(p, node, i);
		there += p->places[i].memory < MOST_BYTES ? p->places[i].memory : MOST_BYTES;
	}
	if (!any)
		return tmesh_fail(err, -EOPNOTSUPP, "no place runs node \"%.63s\"", name);
	for (size_t i = 0; i < p->graph->node_count; i++)
		needed += p->needs[i];
	return tmesh_fail(err, -ENOSPC,
			  "no place has room for node \"%.63s\" of %" PRIu64
			  " bytes: all nodes need %" PRIu64 " bytes, the %zu places have %" PRIu64,
			  name, p->needs[node], needed, p->count, there);
}

static int place_all(struct placing *p, struct tmesh_error *err)
{
	for (uint32_t i = 0; i < p->graph->node_count; i++) {
		double first = DBL_MAX;
		size_t best = p->count;

		if (!runs(&p->graph->nodes[i]))
			continue;
		for (size_t place = 0; place < p->count; place++) {
			double end = fits(p, i, place) ? end_at(p, i, place) : DBL_MAX;

			if (end < first) {
				first = end;
				best = place;
			}
		}
		if (best == p->count && !make_room(p, i, &best))
			return no_place(p, i, err);
		placing_put(p, i, best);
		p->end[i] = p->free_at[best] = end_at(p, i, best);
	}
	return 0;
}

static void count_needs(struct placing *p, bool *counted)
{
	for (uint32_t i = 0; i < p->graph->node_count; i++) {
		const struct tmesh_graph_node *node = &p->graph->nodes[i];

		for (uint32_t n = 0; runs(node) && n < node->input_count; n++) {
			uint32_t from = behind(p->graph, node->inputs[n]);

			if (!is_given(&p->graph->nodes[from]) || counted[from])
				continue;
			counted[from] = true;
			p->needs[i] += value_bytes(&p->graph->nodes[from]);
			if (p->needs[i] > MOST_BYTES)
				p->needs[i] = MOST_BYTES;
		}
	}
}

static uint64_t bytes_moved(struct placing *p)
{
	uint64_t *to = p->needs; /* reused: by node, the places that its value goes to */
	uint64_t bytes = 0;

	memset(to, 0, p->graph->node_count * sizeof(*to));
	for (uint32_t i = 0; i < p->graph->node_count; i++) {
		const struct tmesh_graph_node *node = &p->graph->nodes[i];

		for (uint32_t n = 0; runs(node) && n < node->input_count; n++) {
			uint32_t from = behind(p->graph, node->inputs[n]);

			if (runs(&p->graph->nodes[from]) && p->at[from] != p->at[i])
				to[from] |= 1ull << p->at[i];
		}
	}
	for (uint32_t i = 0; i < p->graph->node_count; i++)
		bytes += (uint64_t)__builtin_popcountll(to[i]) * value_bytes(&p->graph->nodes[i]);
	return bytes;
}

static int check(const struct tmesh_graph *graph, const struct tmesh_placement_opts *opts,
		 struct tmesh_error *err)
{
	size_t count = opts->place_count, nodes = 0;

	for (size_t i = 0; i < graph->node_count; i++)
		nodes += runs(&graph->nodes[i]);
	if (nodes > TMESH_PLACEMENT_MAX_NODES)
		return tmesh_fail(err, -EINVAL, "the graph has %zu nodes that compute, at most %d",
				  nodes, TMESH_PLACEMENT_MAX_NODES);

	if (!opts->places || !opts->links || !count || count > TMESH_PLACEMENT_MAX_PLACES)
		return tmesh_fail(err, -EINVAL, "1 to %d places are given, and their links",
				  TMESH_PLACEMENT_MAX_PLACES);
	for (size_t i = 0; i < count; i++) {
		const struct tmesh_placement_place *place = &opts->places[i];

		if (!isfinite(place->node) || place->node < 0 || !isfinite(place->flops) ||
		    place->flops <= 0 || !isfinite(place->bandwidth) || place->bandwidth <= 0)
			return tmesh_fail(err, -EINVAL,
					  "place %zu: flops and bandwidth are above 0, node is 0 "
					  "or more seconds",
					  i);
	}
	for (size_t i = 0; i < count * count; i++) {
		const struct tmesh_placement_link *link = &opts->links[i];

		if (i / count != i % count && (isnan(link->bandwidth) || link->bandwidth <= 0 ||
					       !isfinite(link->latency) || link->latency < 0))
			return tmesh_fail(err, -EINVAL,
					  "the link from place %zu to %zu: bandwidth is above 0, "
					  "latency is 0 or more seconds",
					  i / count, i % count);
	}
	return 0;
}

int tmesh_placement_find(const struct tmesh_graph *graph, const struct tmesh_placement_opts *given,
			 uint32_t *at, struct tmesh_placement *out, struct tmesh_error *err)
{
	struct tmesh_placement_opts opts;
	struct tmesh_placement found = {0};
	struct placing p = {.graph = graph};
	size_t nodes = graph->node_count;
	bool *counted;
	int rc = tmesh_read_sized(&opts, sizeof(opts), given, err);

	if (!rc)
		rc = check(graph, &opts, err);
	if (rc)
		return rc;
	p.places = opts.places;
	p.count = opts.place_count;
	p.links = opts.links;
	p.at = malloc((nodes + 1) * sizeof(*p.at));
	p.end = calloc(nodes + 1, sizeof(*p.end));
	p.needs = calloc(nodes + 1, sizeof(*p.needs));
	counted = calloc(nodes + 1, sizeof(*counted));
	if (!p.at || !p.end || !p.needs || !counted) {
		rc = tmesh_fail(err, -ENOMEM, "no memory for a placement");
		goto free_all;
	}
	memset(p.at, 0xff, (nodes + 1) * sizeof(*p.at)); /* TMESH_PLACEMENT_NOWHERE */
	count_needs(&p, counted);
	rc = place_all(&p, err);
	if (rc)
		goto free_all;
	found.seconds = play(&p, nodes);
	found.bytes_moved = bytes_moved(&p);
	if (out)
		rc = tmesh_write_sized(out, &found, sizeof(found), err);
	if (!rc)
		memcpy(at, p.at, nodes * sizeof(*at));
free_all:
	free(p.at);
	free(p.end);
	free(p.needs);
	free(counted);
	return rc;
}
