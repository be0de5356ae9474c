// SPDX-License-Identifier: MIT
/* Bindings of placed graphs: inputs, outputs and the values between parts. Bind, move and run
 * them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cancel.h"
#include "placed_internal.h"

static int take_inputs(struct tmesh_placed_binding *binding,
		       const struct tmesh_placed_value *inputs, size_t count,
		       struct tmesh_error *err)
{
	const struct tmesh_graph *graph = binding->placed->graph;

	for (size_t i = 0; i < count; i++) {
		uint32_t node;

		if (!inputs[i].name || tmesh_graph_find(graph, inputs[i].name, &node, NULL) ||
		    graph->nodes[node].op != TMESH_GRAPH_INPUT)
			return tmesh_fail(err, -ENOENT, "the graph has no input \"%.80s\"",
					  inputs[i].name ?: "");
		if (binding->given[node] || binding->owns[node])
			return tmesh_fail(err, -EINVAL, "input \"%.80s\" was given twice",
					  inputs[i].name);
		if (!inputs[i].tensor && graph->nodes[node].cache != TMESH_GRAPH_CACHE_REUSE)
			return tmesh_fail(err, -EINVAL,
					  "input \"%.80s\" has no tensor: a binding has its own of "
					  "inputs with cache=reuse alone",
					  inputs[i].name);
		if (inputs[i].tensor)
			binding->given[node] = tmesh_tensor_ref(inputs[i].tensor);
		else
			binding->owns[node] = true;
	}
	for (uint32_t i = 0; i < graph->node_count; i++)
		if (graph->nodes[i].op == TMESH_GRAPH_INPUT && !binding->given[i] &&
		    !binding->owns[i])
			return tmesh_fail(err, -EINVAL, "input \"%s\" was not given",
					  graph->nodes[i].name);
	return 0;
}

/* Return the node whose value has the memory of @node. */
static uint32_t memory_of(const struct tmesh_graph *graph, uint32_t node)
{
	while (graph->nodes[node].op == TMESH_GRAPH_SET_ROWS)
		node = graph->nodes[node].inputs[0];
	return node;
}

static int take_outputs(struct tmesh_placed_binding *binding,
			const struct tmesh_placed_value *outputs, size_t count,
			struct tmesh_error *err)
{
	const struct tmesh_graph *graph = binding->placed->graph;

	for (size_t i = 0; i < count; i++) {
		uint32_t node;
		size_t n = 0;

		while (n < graph->output_count &&
		       (!outputs[i].name || strcmp(graph->outputs[n].name, outputs[i].name) != 0))
			n++;
		if (n == graph->output_count || !outputs[i].tensor)
			return tmesh_fail(err, -ENOENT, "the graph has no output \"%.80s\"",
					  outputs[i].name ?: "");
		node = memory_of(graph, graph->outputs[n].node);
		if (binding->owns[node])
			return tmesh_fail(err, -EINVAL,
					  "output \"%.80s\" lies in the memory of its past, which "
					  "is the binding's own: give no tensor",
					  outputs[i].name);
		if (binding->given[node] && binding->given[node] != outputs[i].tensor)
			return tmesh_fail(
				err, -EINVAL,
				"output \"%.80s\" lies in the memory of another output, or of its "
				"past: give that tensor",
				outputs[i].name);
		if (!binding->given[node])
			binding->given[node] = tmesh_tensor_ref(outputs[i].tensor);
	}
	return 0;
}

static int node_of(const struct tmesh_placed *placed, uint32_t place)
{
	return place < placed->places->count ? placed->places->all[place].node : PLACES_HOME;
}

static int make_value(const struct tmesh_placed_binding *binding, uint32_t index, int node,
		      const char *label, struct tmesh_tensor **out, struct tmesh_error *err)
{
	const struct tmesh_graph_node *of = &binding->placed->graph->nodes[index];
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = label};

	if (node != PLACES_HOME) {
		opts.flags = TMESH_REGION_NODE;
		opts.node = node;
	}
	return tmesh_tensor_create(binding->ctx, of->dtype, of->ndim, of->shape, &opts, out, err);
}

/* Get an own value in the memory of @node: the existing one, or a copy, which is counted. It begins
 * as zeros. */
static int bring(const struct tmesh_placed_binding *binding, uint32_t index, int node,
		 struct placed_own *out, struct tmesh_error *err)
{
	const struct placed_own *from = binding->at.own ? &binding->at.own[index] : NULL;
	struct tmesh_places *places = binding->placed->places;
	uint64_t bytes;
	void *data;
	int rc;

	if (from && from->node == node) {
		*out = (struct placed_own){tmesh_tensor_ref(from->tensor), node};
		return 0;
	}
	rc = make_value(binding, index, node, "a graph's own", &out->tensor, err);
	out->node = node;
	if (rc || !from)
		return rc;
	bytes = tmesh_tensor_bytes(from->tensor);
	if (!bytes)
		return 0;
	rc = tmesh_tensor_data(from->tensor, TMESH_READ, &data, err);
	if (!rc)
		rc = tmesh_region_write(tmesh_tensor_region(out->tensor),
					tmesh_tensor_layout(out->tensor)->offset, data, bytes, err);
	if (!rc) {
		atomic_fetch_add(&places->copies, 1);
		atomic_fetch_add(&places->bytes_copied, bytes);
	}
	return rc;
}

/* Return the operand of this part whose memory a "set_rows" writes to. */
static const char *past_of(const struct tmesh_graph *graph, const struct graph_part *part,
			   uint32_t node)
{
	while (graph->nodes[node].op == TMESH_GRAPH_SET_ROWS && part->has[node] == PART_NODE)
		node = graph->nodes[node].inputs[0];
	return graph->nodes[node].name;
}

/* Bind a part; @of has the tensor of each node's value. */
static int bind_part(const struct placed_plan *plan, struct tmesh_tensor *const *of, size_t number,
		     struct tmesh_engine_binding **out, struct tmesh_error *err)
{
	const struct placed_part *part = &plan->parts[number];
	const struct graph_part *has = &plan->split->all[number];
	const struct tmesh_graph *graph = plan->split->graph;
	struct tmesh_engine_value *values = calloc(2 * graph->node_count + 1, sizeof(*values));
	size_t input_count = 0, output_count = 0, at;
	int rc = 0;

	if (!values)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu values", graph->node_count);
	for (size_t i = 0; !rc && i < graph->node_count; i++) {
		if (has->has[i] != PART_GIVEN || graph->nodes[i].op == TMESH_GRAPH_WEIGHT)
			continue;
		at = input_count++;
		values[at].name = graph->nodes[i].name;
		rc = tmesh_engine_tensor_wrap(part->context, of[i], TMESH_READ, 0,
					      &values[at].tensor, err);
	}
	for (uint32_t i = 0; !rc && i < graph->node_count; i++) {
		if (!plan->split->wanted[i] || plan->split->part[i] != (int64_t)number)
			continue;
		at = input_count + output_count++;
		values[at].name = graph->nodes[i].name;
		if (graph->nodes[i].op == TMESH_GRAPH_SET_ROWS)
			values[at].in_place = past_of(graph, has, i);
		rc = tmesh_engine_tensor_wrap(part->context, of[i], TMESH_READ | TMESH_WRITE, 0,
					      &values[at].tensor, err);
	}
	if (!rc)
		rc = tmesh_engine_bind(part->graph, values, input_count, values + input_count,
				       output_count, out, err);
	for (at = 0; at < input_count + output_count; at++)
		tmesh_engine_tensor_unref(values[at].tensor);
	free(values);
	return rc;
}

/* Find the tensor of each value, with a reference: a given one, an own one, or one made for this
 * plan. */
static int find_values(const struct tmesh_placed_binding *binding, const struct placed_plan *plan,
		       const struct placed_own *own, struct tmesh_tensor **of,
		       struct tmesh_error *err)
{
	const struct tmesh_graph *graph = binding->placed->graph;
	int rc = 0;

	for (uint32_t i = 0; !rc && i < graph->node_count; i++) {
		uint32_t memory = memory_of(graph, i);
		struct tmesh_tensor *there = own[memory].tensor ?: binding->given[memory];

		if (there)
			of[i] = tmesh_tensor_ref(there);
		else if (plan->split->wanted[i])
			rc = make_value(binding, i,
					node_of(binding->placed,
						plan->split->all[plan->split->part[i]].place),
					"between engines", &of[i], err);
	}
	return rc;
}

int bound_make(const struct tmesh_placed_binding *binding, const struct placed_plan *plan,
	       struct placed_bound *out, struct tmesh_error *err)
{
	size_t nodes = binding->placed->graph->node_count;
	struct tmesh_tensor **of = calloc(nodes + 1, sizeof(struct tmesh_tensor *));
	struct placed_bound made = {.count = plan->split->count};
	int rc = 0;

	made.parts = calloc(made.count + 1, sizeof(struct tmesh_engine_binding *));
	made.own = calloc(nodes + 1, sizeof(*made.own));
	if (!of || !made.parts || !made.own)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a binding of %zu parts", made.count);
	for (uint32_t i = 0; !rc && i < nodes; i++)
		if (binding->owns[i])
			rc = bring(binding, i, node_of(binding->placed, plan->reader[i]),
				   &made.own[i], err);
	if (!rc)
		rc = find_values(binding, plan, made.own, of, err);
	for (size_t i = 0; !rc && i < made.count; i++)
		rc = bind_part(plan, of, i, &made.parts[i], err);
	for (size_t i = 0; of && i < nodes; i++)
		tmesh_tensor_unref(of[i]);
	free(of);
	if (rc)
		bound_free(&made, nodes);
	else
		*out = made;
	return rc;
}

int bound_home(const struct tmesh_placed_binding *binding, struct placed_bound *out,
	       struct tmesh_error *err)
{
	size_t nodes = binding->placed->graph->node_count;
	int rc = 0;

	out->own = calloc(nodes + 1, sizeof(*out->own));
	if (!out->own)
		return tmesh_fail(err, -ENOMEM, "no memory for values of a binding");
	for (uint32_t i = 0; !rc && i < nodes; i++)
		if (binding->owns[i])
			rc = bring(binding, i, PLACES_HOME, &out->own[i], err);
	return rc;
}

void bound_free(struct placed_bound *bound, size_t nodes)
{
	for (size_t i = 0; bound->parts && i < bound->count; i++)
		tmesh_engine_binding_unref(bound->parts[i]);
	for (size_t i = 0; bound->own && i < nodes; i++)
		tmesh_tensor_unref(bound->own[i].tensor);
	free(bound->parts);
	free(bound->own);
	*bound = (struct placed_bound){0};
}

static void binding_free(struct tmesh_placed_binding *binding)
{
	size_t nodes = binding->placed->graph->node_count;

	bound_free(&binding->at, nodes);
	for (size_t i = 0; binding->given && i < nodes; i++)
		tmesh_tensor_unref(binding->given[i]);
	free(binding->given);
	free(binding->owns);
	tmesh_ctx_unref(binding->ctx);
	tmesh_placed_unref(binding->placed);
	free(binding);
}

static void unlist(struct tmesh_placed_binding *binding)
{
	struct tmesh_placed_binding **at = &binding->placed->bindings;

	while (*at != binding)
		at = &(*at)->next;
	*at = binding->next;
}

/* Claim room for the current bindings. */
static int claim(struct tmesh_placed *placed, struct tmesh_error *err)
{
	size_t places = placed->places->count, count = 0;
	uint64_t *needs = calloc(places, sizeof(*needs));
	int rc;

	if (!needs)
		return tmesh_fail(err, -ENOMEM, "no memory for places");
	for (const struct tmesh_placed_binding *b = placed->bindings; b; b = b->next)
		count++;
	plan_needs(&placed->plan, count, needs, places);
	rc = places_claim(placed, needs, err);
	free(needs);
	return rc;
}

/* Add a binding to the list, at the places of the others, or not at all. Called by the thread that
 * changes the graph. */
static int add(struct tmesh_placed_binding *binding, struct tmesh_error *err)
{
	struct tmesh_placed *placed = binding->placed;
	bool held = placed->plan.parts;
	int rc;

	binding->next = placed->bindings;
	placed->bindings = binding;
	if (held) {
		rc = claim(placed, err);
		if (!rc)
			rc = bound_make(binding, &placed->plan, &binding->at, err);
		if (!rc)
			placed_use(placed);
	} else {
		rc = placed_reacquire(placed, err);
	}
	if (rc) {
		unlist(binding);
		if (held)
			claim(placed, NULL);
	}
	return rc;
}

int tmesh_placed_bind(struct tmesh_placed *placed, struct tmesh_ctx *ctx,
		      const struct tmesh_placed_value *inputs, size_t input_count,
		      const struct tmesh_placed_value *outputs, size_t output_count,
		      struct tmesh_placed_binding **out, struct tmesh_error *err)
{
	size_t nodes = placed->graph->node_count;
	struct tmesh_placed_binding *binding;
	int rc = places_enter(placed->places, err);

	if (rc)
		return rc;
	binding = calloc(1, sizeof(*binding));
	if (!binding)
		return tmesh_fail(err, -ENOMEM, "no memory for a binding");
	binding->refs = 1;
	binding->placed = tmesh_placed_ref(placed);
	binding->ctx = tmesh_ctx_ref(ctx);
	binding->given = calloc(nodes + 1, sizeof(struct tmesh_tensor *));
	binding->owns = calloc(nodes + 1, sizeof(*binding->owns));
	if (!binding->given || !binding->owns)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a binding of %zu nodes", nodes);
	if (!rc)
		rc = take_inputs(binding, inputs, input_count, err);
	if (!rc)
		rc = take_outputs(binding, outputs, output_count, err);
	if (!rc)
		rc = placed_begin(placed, false, err);
	if (!rc) {
		rc = add(binding, err);
		placed_end(placed);
	}
	if (rc)
		binding_free(binding);
	else
		*out = binding;
	return rc;
}

/* Take the binding's turn, at places that stay until it ends. */
static int begin_run(struct tmesh_placed_binding *binding, struct tmesh_error *err)
{
	struct tmesh_placed *placed = binding->placed;
	struct cancel_hook hook;
	int rc;

	cancel_hook_begin(&hook, placed_wake, placed);
	pthread_mutex_lock(&placed->lock);
	while (!(rc = cancel_check(err))) {
		if (placed->changing || placed->wanting || binding->running) {
			cancel_cond_wait(&placed->idle, &placed->lock, 0);
			continue;
		}
		if (placed->plan.parts)
			break;
		placed->changing = true;
		pthread_mutex_unlock(&placed->lock);
		rc = placed_reacquire(placed, err);
		pthread_mutex_lock(&placed->lock);
		placed_bury(placed);
		placed->changing = false;
		pthread_cond_broadcast(&placed->idle);
		if (rc)
			break;
	}
	if (!rc) {
		binding->running = true;
		placed->running++;
		placed_use(placed);
	}
	pthread_mutex_unlock(&placed->lock);
	cancel_hook_end(&hook);
	return rc;
}

static void end_run(struct tmesh_placed_binding *binding)
{
	struct tmesh_placed *placed = binding->placed;

	pthread_mutex_lock(&placed->lock);
	placed_use(placed);
	binding->running = false;
	placed->running--;
	pthread_cond_broadcast(&placed->idle);
	pthread_mutex_unlock(&placed->lock);
}

int tmesh_placed_dispatch(struct tmesh_placed_binding *binding,
			  struct tmesh_engine_cancellable *cancellable, struct tmesh_error *err)
{
	struct tmesh_engine_cancellable *before;
	int rc = places_enter(binding->placed->places, err);

	if (rc)
		return rc;
	before = cancel_enter(cancellable);
	rc = begin_run(binding, err);
	cancel_enter(before);
	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < binding->at.count; i++)
		rc = tmesh_engine_binding_dispatch_cancellable(binding->at.parts[i], cancellable,
							       err);
	end_run(binding);
	return rc;
}

int tmesh_placed_binding_tensor(struct tmesh_placed_binding *binding, const char *name,
				struct tmesh_tensor **out, struct tmesh_error *err)
{
	struct tmesh_placed *placed = binding->placed;
	uint32_t node;
	int rc = places_enter(placed->places, err);

	if (rc)
		return rc;
	if (!name || tmesh_graph_find(placed->graph, name, &node, NULL) || !binding->owns[node])
		return tmesh_fail(err, -ENOENT, "the binding owns no input \"%.80s\"", name ?: "");
	rc = placed_begin(placed, false, err);
	if (rc)
		return rc;
	*out = tmesh_tensor_ref(binding->at.own[node].tensor);
	placed_end(placed);
	return 0;
}

struct tmesh_placed_binding *tmesh_placed_binding_ref(struct tmesh_placed_binding *binding)
{
	atomic_fetch_add(&binding->refs, 1);
	return binding;
}

void tmesh_placed_binding_unref(struct tmesh_placed_binding *binding)
{
	struct tmesh_placed *placed;
	bool mine;

	if (!binding || atomic_fetch_sub(&binding->refs, 1) > 1)
		return;
	/* In a forked child no thread has the lock, and it may stay locked for ever. */
	if (places_enter(binding->placed->places, NULL)) {
		binding_free(binding);
		return;
	}
	placed = tmesh_placed_ref(binding->placed);
	pthread_mutex_lock(&placed->lock);
	binding->next_gone = placed->gone;
	placed->gone = binding;
	mine = !placed->changing;
	placed->changing = true;
	pthread_mutex_unlock(&placed->lock);
	/* A thread that changes the graph may be waiting for an engine. Leave the freeing to it. */
	if (mine)
		placed_end(placed);
	tmesh_placed_unref(placed);
}

void placed_bury(struct tmesh_placed *placed)
{
	struct tmesh_placed_binding *gone, *next;

	while ((gone = placed->gone)) {
		placed->gone = NULL;
		pthread_mutex_unlock(&placed->lock);
		for (; gone; gone = next) {
			next = gone->next_gone;
			unlist(gone);
			binding_free(gone);
		}
		if (placed->plan.parts)
			claim(placed, NULL);
		pthread_mutex_lock(&placed->lock);
	}
}
