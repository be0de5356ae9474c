// SPDX-License-Identifier: MIT
/* Bindings: a ggml graph whose inputs and outputs are in the caller's memory. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ggml_internal.h"

#define HALF_MINUS_INFINITY 0xfc00

void ggml_unbind(void *data)
{
	struct ggml_lowered *lowered = data;

	ggml_lowered_close(lowered);
	free(lowered);
}

/* Allocate zeros, aligned for a weight. */
static void *memory(uint64_t bytes)
{
	uint64_t whole = (bytes / GGML_WEIGHT_ALIGN + 1) * GGML_WEIGHT_ALIGN;
	void *data = aligned_alloc(GGML_WEIGHT_ALIGN, whole);

	return data ? memset(data, 0, whole) : NULL;
}

/* Return the node of input @operand. */
static uint32_t input_node(const struct tmesh_graph *graph, size_t operand)
{
	uint32_t at = 0;

	while (graph->nodes[at].op != TMESH_GRAPH_INPUT || operand--)
		at++;
	return at;
}

static bool is_index(const struct plugin_array *array)
{
	return array->dtype == TMESH_INT32 || array->dtype == TMESH_INT64;
}

static int bind_input(struct ggml_lowered *lowered, const struct plugin_array *array,
		      struct tmesh_error *err)
{
	const struct ggml_engine *engine = lowered->engine;
	const struct tmesh_graph *graph = lowered->session->graph;
	uint32_t at = input_node(graph, array->operand);
	struct ggml_index *index = &lowered->indices[at];

	if (!is_index(array))
		return ggml_place(engine, lowered->values[at], array->data, array->name, err);
	index->count = (int64_t)(array->bytes / (array->dtype == TMESH_INT32 ? 4 : 8));
	index->own = memory(array->bytes);
	if (!index->own)
		return tmesh_fail(err, -ENOMEM, "no memory for \"%s\"", array->name);
	if (!engine->gpu) {
		index->from = array->data;
		return ggml_place(engine, lowered->values[at], index->own, array->name, err);
	}
	/* On a GPU ggml reads a copy of it, which is one of its intermediate values. */
	index->there = ggml_tensor_of(engine, lowered->context, &graph->nodes[at]);
	return ggml_place(engine, index->there, array->data, array->name, err);
}

/* Return whether only the value itself is written. Kernels on a GPU may also use memory after
 * it. */
static bool is_tight(const struct ggml_lowered *lowered, const struct ggml_tensor *value)
{
	const struct ggml_api *api = &lowered->engine->api;

	return api->backend_buft_get_alloc_size(
		       api->backend_get_default_buffer_type(lowered->backend), value) <=
	       api->nbytes(value);
}

/* Place an output in the caller's memory, or in memory of the engine. */
static int place_output(struct ggml_lowered *lowered, struct ggml_out *out,
			const struct plugin_array *array, struct tmesh_error *err)
{
	const struct ggml_api *api = &lowered->engine->api;
	const struct tmesh_graph_node *node = &lowered->session->graph->nodes[out->node];
	void *data = array->data;

	/* Copy a value that is a view, needs more memory, or has memory already. */
	if (node->op == TMESH_GRAPH_RESHAPE || node->op == TMESH_GRAPH_TRANSPOSE ||
	    (node->op == TMESH_GRAPH_ATTENTION && node->input_count > 4) ||
	    api->get_data(out->value) || !is_tight(lowered, out->value)) {
		out->value = api->cont(lowered->context, out->value);
		if (!api->backend_supports_op(lowered->backend, out->value))
			return tmesh_fail(err, -EOPNOTSUPP,
					  "node \"%s\": ggml cannot make its view an output",
					  node->name);
	}
	if (!data)
		data = out->own = memory(lowered->engine->api.nbytes(out->value));
	if (!data)
		return tmesh_fail(err, -ENOMEM, "no memory for \"%s\"", array->name);
	api->set_output(out->value);
	return ggml_place(lowered->engine, out->value, data, array->name, err);
}

static int bind_output(struct ggml_lowered *lowered, struct ggml_out *out,
		       const struct plugin_array *array, struct tmesh_error *err)
{
	const struct ggml_api *api = &lowered->engine->api;
	const struct tmesh_graph *graph = lowered->session->graph;
	const struct tmesh_graph_node *node;
	int rc = 0;

	out->node = graph->outputs[array->operand].node;
	out->value = lowered->values[out->node];
	node = &graph->nodes[out->node];
	if (node->op != TMESH_GRAPH_SET_ROWS)
		rc = place_output(lowered, out, array, err);
	else if (array->data != api->get_data(lowered->values[ggml_past(graph, out->node)]))
		rc = tmesh_fail(err, -EINVAL,
				"output \"%s\" lies in the memory of \"%s\": bind it there, with "
				"in_place",
				array->name, graph->nodes[ggml_past(graph, out->node)].name);
	if (!rc)
		api->build_forward_expand(lowered->graph, out->value);
	return rc;
}

/* Check that memory which the graph writes is bound as an output: only outputs' rights are
 * checked. */
static int check_pasts(const struct ggml_lowered *lowered, const struct plugin_array *outputs,
		       size_t count, struct tmesh_error *err)
{
	const struct tmesh_graph *graph = lowered->session->graph;

	for (uint32_t at = 0; at < graph->node_count; at++) {
		bool bound = graph->nodes[at].op != TMESH_GRAPH_SET_ROWS;

		/* One bound output in a past stands for all nodes that write to this past. */
		for (size_t i = 0; !bound && i < count; i++) {
			uint32_t node = graph->outputs[outputs[i].operand].node;

			bound = graph->nodes[node].op == TMESH_GRAPH_SET_ROWS &&
				ggml_past(graph, node) == ggml_past(graph, at);
		}
		if (!bound)
			return tmesh_fail(
				err, -EINVAL,
				"\"%s\" writes into its past: it has to be an output that "
				"is bound",
				graph->nodes[at].name);
	}
	return 0;
}

/* Place masks and other own memory. On a GPU they are among ggml's intermediate values. */
static int place_own(struct ggml_lowered *lowered, struct tmesh_error *err)
{
	const struct ggml_engine *engine = lowered->engine;
	int rc = 0;

	for (size_t i = 0; !rc && i < lowered->mask_count; i++) {
		struct ggml_mask *mask = &lowered->masks[i];
		int64_t queries = lowered->indices[mask->positions].count;

		queries += mask->sequences * GGML_MASK_PAD;
		mask->data = memory((uint64_t)queries * (uint64_t)mask->rows * 2);
		if (!mask->data)
			rc = tmesh_fail(err, -ENOMEM, "no memory for a mask");
		else if (!engine->gpu)
			rc = ggml_place(engine, mask->tensor, mask->data, "a mask", err);
	}
	for (size_t i = 0; !rc && i < lowered->pick_count; i++) {
		struct ggml_pick *pick = &lowered->picks[i];

		pick->data = calloc((size_t)(pick->sequences * pick->blocks),
				    (size_t)pick->block_rows * sizeof(*pick->data));
		if (!pick->data)
			rc = tmesh_fail(err, -ENOMEM, "no memory for numbers of rows");
	}
	for (size_t i = 0; !rc && i < lowered->room_count; i++) {
		struct ggml_room *room = &lowered->rooms[i];

		room->data = memory((uint64_t)room->blocks * (uint64_t)room->block_rows *
				    room->row_bytes);
		room->filled = calloc((size_t)room->blocks, sizeof(*room->filled));
		if (!room->data || !room->filled)
			rc = tmesh_fail(err, -ENOMEM, "no memory for rows of blocks");
	}
	for (size_t i = 0; !rc && i < lowered->gather_count; i++)
		rc = ggml_place(engine, lowered->gathers[i].to, lowered->gathers[i].room->data,
				"rows of blocks", err);
	return rc;
}

/* ggml calls this between two nodes. */
static bool is_cancelled(void *data)
{
	return atomic_load_explicit(&((struct ggml_lowered *)data)->cancelled,
				    memory_order_relaxed);
}

static void watch_cancelled(struct ggml_lowered *lowered)
{
	const struct ggml_api *api = &lowered->engine->api;
	ggml_set_abort_function set_abort;

	*(void **)&set_abort = api->backend_reg_get_proc_address(
		api->backend_dev_backend_reg(api->backend_get_device(lowered->backend)),
		"ggml_backend_set_abort_callback");
	if (set_abort)
		set_abort(lowered->backend, is_cancelled, lowered);
}

int ggml_bind(void *data, struct plugin_session *session, const struct plugin_array *inputs,
	      size_t input_count, const struct plugin_array *outputs, size_t output_count,
	      void **out, struct tmesh_error *err)
{
	struct ggml_lowered *lowered = calloc(1, sizeof(*lowered));
	struct ggml_engine *engine = data;
	const struct ggml_api *api = &engine->api;
	int rc;

	if (!lowered)
		return tmesh_fail(err, -ENOMEM, "no memory for a binding");
	rc = ggml_lowered_open(lowered, engine, session->handle, err);
	if (!rc)
		watch_cancelled(lowered);
	if (!rc)
		rc = check_pasts(lowered, outputs, output_count, err);
	for (size_t i = 0; !rc && i < input_count; i++)
		rc = bind_input(lowered, &inputs[i], err);
	if (!rc)
		rc = place_own(lowered, err);
	for (size_t i = 0; !rc && i < output_count; i++)
		rc = bind_output(lowered, &lowered->outputs[i], &outputs[i], err);
	if (!rc) {
		lowered->allocator =
			api->gallocr_new(api->backend_get_default_buffer_type(lowered->backend));
		if (!lowered->allocator ||
		    !api->gallocr_alloc_graph(lowered->allocator, lowered->graph))
			rc = tmesh_fail(err, -ENOMEM,
					"no memory for a graph's intermediate values");
	}
	if (rc)
		ggml_unbind(lowered);
	else
		*out = lowered;
	return rc;
}

/* Return the first node with a view of the input. A view keeps the address of the first binding. */
static const struct tmesh_graph_node *viewer(const struct tmesh_graph *graph, uint32_t input)
{
	for (size_t i = 0; i < graph->node_count; i++) {
		const struct tmesh_graph_node *node = &graph->nodes[i];

		if (node->op != TMESH_GRAPH_RESHAPE && node->op != TMESH_GRAPH_TRANSPOSE &&
		    node->op != TMESH_GRAPH_SET_ROWS && node->op != TMESH_GRAPH_ATTENTION)
			continue;
		for (uint32_t n = 0; n < node->input_count; n++)
			if (node->inputs[n] == input)
				return node;
	}
	return NULL;
}

int ggml_rebind(void *data, const struct plugin_array *inputs, const size_t *changed, size_t count,
		struct tmesh_error *err)
{
	struct ggml_lowered *lowered = data;
	const struct tmesh_graph *graph = lowered->session->graph;
	size_t at = lowered->engine->address_at;

	for (size_t i = 0; i < count; i++) {
		const struct plugin_array *array = &inputs[changed[i]];
		const struct tmesh_graph_node *node;

		if (is_index(array))
			continue;
		if (!at)
			return tmesh_fail(err, -EOPNOTSUPP,
					  "where this ggml has addresses was not found: bind anew");
		node = viewer(graph, input_node(graph, array->operand));
		if (node)
			return tmesh_fail(
				err, -EOPNOTSUPP,
				"input \"%s\": node \"%s\", a %s, has a view of it: bind anew",
				array->name, node->name, tmesh_graph_op_name(node->op));
	}
	for (size_t i = 0; i < count; i++) {
		const struct plugin_array *array = &inputs[changed[i]];
		uint32_t node = input_node(graph, array->operand);
		struct ggml_index *index = &lowered->indices[node];

		if (is_index(array) && !index->there)
			index->from = array->data;
		else
			memcpy((char *)(index->there ?: lowered->values[node]) + at, &array->data,
			       sizeof(array->data));
	}
	return 0;
}

/* Read and check an input's integers, in a copy that no other process can change. */
static int read_index(const struct ggml_api *api, const struct ggml_index *index,
		      const struct tmesh_graph_node *node, struct tmesh_error *err)
{
	bool wide = node->dtype == TMESH_INT64;
	size_t bytes = (size_t)index->count * (wide ? 8 : 4);

	if (index->there)
		api->backend_tensor_get(index->there, index->own, 0, bytes);
	else
		memcpy(index->own, index->from, bytes);
	for (int64_t i = 0; index->why && i < index->count; i++) {
		int64_t value = wide ? ((int64_t *)index->own)[i] : ((int32_t *)index->own)[i];

		if (value < 0 || value >= index->below)
			return tmesh_fail(err, -EINVAL,
					  "input \"%s\" has %" PRId64
					  ", and node \"%s\" takes 0 to "
					  "%" PRId64,
					  node->name, value, index->why, index->below - 1);
	}
	return 0;
}

static void fill_mask(const struct ggml_mask *mask, const struct ggml_index *positions)
{
	const int32_t *seen = positions->own;
	int64_t queries = positions->count / mask->sequences;
	int64_t lines = (queries + GGML_MASK_PAD - 1) / GGML_MASK_PAD * GGML_MASK_PAD;

	for (int64_t i = 0; i < positions->count; i++) {
		uint16_t *line = mask->data + (i / queries * lines + i % queries) * mask->rows;

		for (int64_t row = 0; row < mask->rows; row++)
			line[row] = row <= seen[i] ? 0 : HALF_MINUS_INFINITY;
	}
}

/* Gather the rows of a sequence as far as its queries see. The rest is zeros and reads no
 * memory. */
void ggml_gather(struct ggml_tensor *to, int task, int tasks, void *data)
{
	const struct ggml_gather *gather = data;
	const struct ggml_room *room = gather->room;
	const struct ggml_index *positions = &gather->lowered->indices[gather->positions];
	const int32_t *table = gather->lowered->indices[gather->tables].own;
	const char *from = gather->lowered->engine->api.get_data(gather->from);
	int64_t queries = positions->count / gather->sequences;
	int64_t blocks = room->blocks / gather->sequences;
	size_t block_bytes = (size_t)room->block_rows * room->row_bytes;

	for (int64_t at = task; at < room->blocks; at += tasks) {
		const int32_t *seen = (const int32_t *)positions->own + at / blocks * queries;
		int64_t first = at % blocks * room->block_rows, rows = 0;
		char *block = room->data + (size_t)at * block_bytes;

		for (int64_t i = 0; i < queries; i++)
			rows = seen[i] >= rows ? seen[i] + 1 : rows;
		rows = rows > first ? rows - first : 0;
		rows = rows < room->block_rows ? rows : room->block_rows;
		memcpy(block, from + (size_t)table[at] * block_bytes,
		       (size_t)rows * room->row_bytes);
		if (rows < room->filled[at])
			memset(block + (size_t)rows * room->row_bytes, 0,
			       (size_t)(room->filled[at] - rows) * room->row_bytes);
		room->filled[at] = rows;
	}
}

int ggml_run(void *data, struct tmesh_error *err)
{
	struct ggml_lowered *lowered = data;
	const struct tmesh_graph *graph = lowered->session->graph;
	int rc = 0, status;

	for (size_t i = 0; !rc && i < graph->node_count; i++)
		if (lowered->indices[i].own)
			rc = read_index(&lowered->engine->api, &lowered->indices[i],
					&graph->nodes[i], err);
	if (rc)
		return rc;
	for (size_t i = 0; i < lowered->mask_count; i++)
		fill_mask(&lowered->masks[i], &lowered->indices[lowered->masks[i].positions]);
	if (lowered->engine->gpu)
		ggml_gpu_send(lowered);
	/* This is the last check on a GPU: ggml does not call is_cancelled() there. */
	if (is_cancelled(lowered))
		return tmesh_fail(err, -EIO, "the run was cancelled");
	/* It returns after the last node, on a GPU too. */
	status = lowered->engine->api.backend_graph_compute(lowered->backend, lowered->graph);
	if (status == GGML_ABORTED)
		return tmesh_fail(err, -EIO, "the run was cancelled");
	return status == GGML_SUCCESS ? 0 : tmesh_fail(err, -EIO, "ggml failed: status %d", status);
}

void ggml_cancel(void *data, bool on)
{
	struct ggml_lowered *lowered = data;

	atomic_store(&lowered->cancelled, on);
}

int ggml_result(void *data, size_t output, struct plugin_result *result, struct tmesh_error *err)
{
	struct ggml_lowered *lowered = data;
	struct ggml_out *out = &lowered->outputs[output];
	const struct tmesh_graph_node *node = &lowered->session->graph->nodes[out->node];

	*result = (struct plugin_result){
		.handle = out->own,
		.data = lowered->engine->api.get_data(out->value),
		.dtype = node->dtype,
		.ndim = node->ndim,
	};
	memcpy(result->shape, node->shape, sizeof(result->shape));
	out->own = NULL;
	return 0;
}

void ggml_release(void *engine, void *handle)
{
	free(handle);
}
