// SPDX-License-Identifier: MIT
/* A graph and measured costs as a problem of placement. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "costs_internal.h"
#include "graph_internal.h"

/* Of a link within the memory of one device, where nothing is sent. */
#define NO_COST 1e18
/* So that sums of them are numbers. */
#define MOST_BYTES (1ull << 52)

struct finding {
	const struct tmesh_costs *costs;
	const struct tmesh_graph *graph;
	const struct tmesh_costs_place *places;
	size_t place_count;
	size_t engine[TMESH_PLACEMENT_MAX_DEVICES]; /* of each place */
	struct tmesh_placement_device devices[TMESH_PLACEMENT_MAX_DEVICES];
	struct tmesh_placement_link *links;
	struct tmesh_placement_node *nodes;
	size_t node_count;
	uint32_t *inputs; /* TMESH_GRAPH_MAX_INPUTS for each node */
	double *seconds;  /* place_count for each node */
	uint32_t *where;  /* by node of the graph: its node of the problem, or NOWHERE */
	bool *counted;	  /* weights and inputs whose memory a node has */
};

static uint64_t elements(const struct tmesh_graph_node *node)
{
	uint64_t count = 1;

	for (int i = 0; i < node->ndim; i++)
		count *= (uint64_t)node->shape[i];
	return count;
}

uint64_t costs_bytes(const struct tmesh_graph_node *node)
{
	const struct graph_quant *quant = node->quant ? graph_quant(node->quant) : NULL;
	uint64_t count = elements(node);

	if (quant)
		return count / quant->block_elements * quant->block_bytes;
	return count * tmesh_dtype_bits(node->dtype) / 8;
}

static bool given(const struct tmesh_graph_node *node)
{
	return node->op == TMESH_GRAPH_INPUT || node->op == TMESH_GRAPH_WEIGHT;
}

uint32_t costs_behind(const struct tmesh_graph *graph, uint32_t index)
{
	while (graph->nodes[index].op == TMESH_GRAPH_RESHAPE)
		index = graph->nodes[index].inputs[0];
	return index;
}

static double last(const struct tmesh_graph_node *node)
{
	return node->ndim ? (double)node->shape[node->ndim - 1] : 1;
}

/* Multiplications and additions of matrices, and rows of the first. */
static double work(const struct tmesh_graph *graph, const struct tmesh_graph_node *node,
		   double *rows)
{
	const struct tmesh_graph_node *in[3] = {0};
	double count = (double)elements(node);

	for (uint32_t i = 0; i < 3 && i < node->input_count; i++)
		in[i] = &graph->nodes[node->inputs[i]];
	*rows = last(node) > 0 ? count / last(node) : 0;
	switch (node->op) {
	case TMESH_GRAPH_MATMUL:
		return 2 * count * last(in[0]);
	case TMESH_GRAPH_LORA:
		return 2 * count * last(in[0]) +
		       2 * (double)in[2]->shape[0] * (*rows * last(in[0]) + count);
	case TMESH_GRAPH_ATTENTION:
		/* Each query with all rows there are, then their sum. */
		*rows = (double)node->shape[0];
		return 4 * count * (double)in[1]->shape[0] *
		       (in[1]->ndim == 4 ? (double)in[1]->shape[1] : 1);
	default:
		return 0;
	}
}

/* Bytes that are read and written. */
static double traffic(const struct tmesh_graph *graph, const struct tmesh_graph_node *node)
{
	double bytes = (double)costs_bytes(node);

	switch (node->op) {
	case TMESH_GRAPH_SET_ROWS: /* the other rows stay where they are */
		return 2 * (double)costs_bytes(&graph->nodes[node->inputs[1]]);
	case TMESH_GRAPH_GET_ROWS:
		return 2 * bytes;
	default:
		for (uint32_t i = 0; i < node->input_count; i++)
			bytes += (double)costs_bytes(&graph->nodes[node->inputs[i]]);
		return bytes;
	}
}

/* That of the most rows that are not more, else of the fewest. */
static double rate_for(const struct tmesh_costs_engine *engine, double rows)
{
	size_t i = TMESH_COSTS_RATES - 1;

	while (i && engine->rates[i].rows > rows)
		i--;
	return engine->rates[i].flops;
}

/* Seconds at a place; negative: its engine does not run that. */
static double seconds_at(const struct finding *f, const struct tmesh_graph_node *node, size_t place)
{
	const struct tmesh_devices *devices = f->costs->devices;
	const struct tmesh_devices_engine *engine = &devices->engines[f->engine[place]];
	size_t device = f->places[place].device;
	double rows, flops, compute, move;

	if (strcmp(engine->reads, "graph") != 0 || node->op >= TMESH_DEVICES_OPERATORS ||
	    !engine->operators[node->op])
		return -1;
	flops = work(f->graph, node, &rows);
	compute = flops / rate_for(&f->costs->engines[f->engine[place]], rows);
	move = traffic(f->graph, node) /
	       f->costs->links[device * devices->device_count + device].bandwidth;
	return compute > move ? compute : move;
}

static int check_place(struct finding *f, size_t i, struct tmesh_error *err)
{
	const struct tmesh_costs_place *place = &f->places[i];
	const struct tmesh_devices *devices = f->costs->devices;
	const struct tmesh_costs_engine *engine;
	size_t at = 0;

	while (place->engine && at < devices->engine_count &&
	       strcmp(devices->engines[at].name, place->engine) != 0)
		at++;
	if (!place->engine || at == devices->engine_count)
		return tmesh_fail(err, -EINVAL, "place %zu: there is no engine \"%.39s\"", i,
				  place->engine ?: "");
	if (place->device >= devices->device_count)
		return tmesh_fail(err, -EINVAL, "place %zu: there is no device %u of %zu", i,
				  place->device, devices->device_count);
	engine = &f->costs->engines[at];
	if (!(engine->launch > 0))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "place %zu: engine \"%.39s\" has no costs: %.159s", i,
				  place->engine, engine->reason);
	if (place->served && !(engine->launch_served > 0))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "place %zu: engine \"%.39s\" was not measured by process", i,
				  place->engine);
	f->engine[i] = at;
	f->devices[i].latency = engine->node;
	f->devices[i].memory = place->memory ?: f->costs->memory_free[place->device];
	return 0;
}

static int make_links(struct finding *f, struct tmesh_error *err)
{
	const struct tmesh_costs *costs = f->costs;

	for (size_t i = 0; i < f->place_count * f->place_count; i++) {
		const struct tmesh_costs_place *from = &f->places[i / f->place_count];
		const struct tmesh_costs_place *to = &f->places[i % f->place_count];
		const struct tmesh_costs_engine *next =
			&costs->engines[f->engine[i % f->place_count]];
		const struct tmesh_placement_link *between =
			&costs->links[from->device * costs->devices->device_count + to->device];

		if (!(between->bandwidth > 0))
			return tmesh_fail(err, -EOPNOTSUPP,
					  "copies from device %u to device %u were not measured",
					  from->device, to->device);
		f->links[i].latency = to->served ? next->launch_served : next->launch;
		f->links[i].bandwidth = NO_COST;
		if (from->device != to->device) {
			f->links[i].latency += between->latency;
			f->links[i].bandwidth = between->bandwidth;
		}
	}
	return 0;
}

static int add_node(struct finding *f, uint32_t index, struct tmesh_error *err)
{
	const struct tmesh_graph_node *node = &f->graph->nodes[index];
	size_t n = f->node_count;
	struct tmesh_placement_node *out = &f->nodes[n];

	if (n == TMESH_PLACEMENT_MAX_NODES)
		return tmesh_fail(err, -EINVAL, "a placement takes at most %d nodes",
				  TMESH_PLACEMENT_MAX_NODES);
	out->name = node->name;
	out->bytes = costs_bytes(node);
	out->inputs = &f->inputs[n * TMESH_GRAPH_MAX_INPUTS];
	out->seconds = &f->seconds[n * f->place_count];
	for (uint32_t i = 0; i < node->input_count; i++) {
		uint32_t from = costs_behind(f->graph, node->inputs[i]);

		if (!given(&f->graph->nodes[from])) {
			f->inputs[n * TMESH_GRAPH_MAX_INPUTS + out->input_count++] = f->where[from];
		} else if (!f->counted[from]) {
			f->counted[from] = true;
			out->memory += costs_bytes(&f->graph->nodes[from]);
		}
	}
	if (out->memory > MOST_BYTES)
		out->memory = MOST_BYTES;
	for (size_t i = 0; i < f->place_count; i++)
		f->seconds[n * f->place_count + i] = seconds_at(f, node, i);
	f->where[index] = (uint32_t)f->node_count++;
	return 0;
}

static int find(struct finding *f, const struct tmesh_placement_problem *limits, uint32_t *at,
		struct tmesh_placement *out, struct tmesh_error *err)
{
	struct tmesh_placement_problem problem = {
		.size = sizeof(problem),
		.devices = f->devices,
		.device_count = f->place_count,
		.links = f->links,
		.nodes = f->nodes,
	};
	uint32_t *found;
	int rc = 0;

	for (size_t i = 0; !rc && i < f->place_count; i++)
		rc = check_place(f, i, err);
	if (!rc)
		rc = make_links(f, err);
	for (uint32_t i = 0; !rc && i < f->graph->node_count; i++)
		if (!given(&f->graph->nodes[i]) && f->graph->nodes[i].op != TMESH_GRAPH_RESHAPE)
			rc = add_node(f, i, err);
	if (rc)
		return rc;
	if (limits) {
		problem.restarts = limits->restarts;
		problem.time_ns = limits->time_ns;
		problem.seed = limits->seed;
	}
	problem.node_count = f->node_count;
	found = calloc(f->node_count + 1, sizeof(*found));
	if (!found)
		return tmesh_fail(err, -ENOMEM, "no memory for a placement");
	rc = tmesh_placement_find(&problem, found, out, err);
	for (size_t i = 0; !rc && i < f->graph->node_count; i++)
		at[i] = f->where[i] == TMESH_COSTS_NOWHERE ? TMESH_COSTS_NOWHERE
							   : found[f->where[i]];
	free(found);
	return rc;
}

int tmesh_costs_find(const struct tmesh_costs *costs, const struct tmesh_graph *graph,
		     const struct tmesh_costs_place *places, size_t place_count,
		     const struct tmesh_placement_problem *given_limits, uint32_t *at,
		     struct tmesh_placement *out, struct tmesh_error *err)
{
	struct tmesh_placement_problem limits;
	struct finding *f;
	size_t most = graph->node_count < TMESH_PLACEMENT_MAX_NODES ? graph->node_count
								    : TMESH_PLACEMENT_MAX_NODES;
	int rc = tmesh_read_sized(&limits, sizeof(limits), given_limits, err);

	if (rc)
		return rc;
	if (!places || !place_count || place_count > TMESH_PLACEMENT_MAX_DEVICES)
		return tmesh_fail(err, -EINVAL, "1 to %d places, not %zu",
				  TMESH_PLACEMENT_MAX_DEVICES, place_count);
	f = calloc(1, sizeof(*f));
	if (!f)
		return tmesh_fail(err, -ENOMEM, "no memory for a placement");
	f->costs = costs;
	f->graph = graph;
	f->places = places;
	f->place_count = place_count;
	f->links = calloc(place_count * place_count, sizeof(*f->links));
	f->nodes = calloc(most + 1, sizeof(*f->nodes));
	f->inputs = calloc((most + 1) * TMESH_GRAPH_MAX_INPUTS, sizeof(*f->inputs));
	f->seconds = calloc((most + 1) * place_count, sizeof(*f->seconds));
	f->where = malloc((graph->node_count + 1) * sizeof(*f->where));
	f->counted = calloc(graph->node_count + 1, sizeof(*f->counted));
	if (!f->links || !f->nodes || !f->inputs || !f->seconds || !f->where || !f->counted) {
		rc = tmesh_fail(err, -ENOMEM, "no memory for a placement");
	} else {
		memset(f->where, 0xff, (graph->node_count + 1) * sizeof(*f->where));
		rc = find(f, &limits, at, out, err);
	}
	free(f->links);
	free(f->nodes);
	free(f->inputs);
	free(f->seconds);
	free(f->where);
	free(f->counted);
	free(f);
	return rc;
}
