// SPDX-License-Identifier: MIT
/* Translate our nodes to ggml's. ggml has four dimensions, and its first is our last. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "ggml_internal.h"

/* The most ggml nodes for one of ours: those of a concatenation, and copies of its inputs. */
#define STEPS (2 * TMESH_GRAPH_MAX_INPUTS)

struct site {
	struct ggml_lowered *lowered;
	const struct ggml_api *api;
	struct ggml_context *context;
	const struct tmesh_graph_node *node;
	struct tmesh_error *err;
	int rc;
};

/* Return ggml's number of the type; -1: none. */
static int ggml_type_of(const struct tmesh_graph_node *node)
{
	if (node->quant)
		return graph_quant(node->quant)->gguf;
	switch (node->dtype) {
	case TMESH_FLOAT32:
		return GGML_F32;
	case TMESH_FLOAT16:
		return GGML_F16;
	case TMESH_BFLOAT16:
		return GGML_BF16;
	case TMESH_INT32:
		return GGML_I32;
	case TMESH_INT64:
		return GGML_I64;
	default:
		return -1;
	}
}

static void extents(const struct tmesh_graph_node *node, int64_t *ne)
{
	for (int i = 0; i < GGML_DIMS; i++)
		ne[i] = i < node->ndim ? node->shape[node->ndim - 1 - i] : 1;
}

struct ggml_tensor *ggml_tensor_of(const struct ggml_engine *engine, struct ggml_context *context,
				   const struct tmesh_graph_node *node)
{
	int64_t ne[GGML_DIMS];

	extents(node, ne);
	return engine->api.new_tensor_4d(context, (unsigned int)ggml_type_of(node), ne[0], ne[1],
					 ne[2], ne[3]);
}

/* Return a backend for one thread: the GPU's, or the CPU's with the engine's number of threads.
 * NULL: no memory. */
static struct ggml_backend *ggml_backend_of(const struct ggml_engine *engine)
{
	const struct ggml_api *api = &engine->api;
	struct ggml_backend *backend = engine->gpu
					       ? api->backend_dev_init(engine->gpu, NULL)
					       : api->backend_init_by_type(GGML_DEVICE_CPU, NULL);
	ggml_threads_function set_threads;

	if (!backend)
		return NULL;
	*(void **)&set_threads = api->backend_reg_get_proc_address(
		api->backend_dev_backend_reg(api->backend_get_device(backend)),
		"ggml_backend_set_n_threads");
	if (set_threads)
		set_threads(backend, (int)engine->threads);
	return backend;
}

static void cannot(struct site *site, const char *why)
{
	if (!site->rc)
		site->rc = tmesh_fail(site->err, -EOPNOTSUPP,
				      "node \"%s\": ggml cannot run this %s: %s", site->node->name,
				      graph_op(site->node->op)->name, why);
}

/* Check a node that computes: the backend must support it. */
static struct ggml_tensor *step(struct site *site, struct ggml_tensor *tensor)
{
	if (!site->api->backend_supports_op(site->lowered->backend, tensor))
		cannot(site, site->lowered->engine->gpu
				     ? "its backend for CUDA has it not for these types and shapes"
				     : "its backend for the CPU has it not for these types and "
				       "shapes");
	return tensor;
}

static struct ggml_tensor *contiguous(struct site *site, struct ggml_tensor *tensor)
{
	if (site->api->is_contiguous(tensor))
		return tensor;
	return step(site, site->api->cont(site->context, tensor));
}

static struct ggml_tensor *in(struct site *site, uint32_t i)
{
	return contiguous(site, site->lowered->values[site->node->inputs[i]]);
}

/* Use an input of rows or positions. Before each run its integers are checked to be 0 to @below -
 * 1. */
static struct ggml_tensor *index_in(struct site *site, uint32_t i, int64_t below)
{
	uint32_t at = site->node->inputs[i];
	struct ggml_index *index = &site->lowered->indices[at];

	if (site->lowered->session->graph->nodes[at].op != TMESH_GRAPH_INPUT)
		cannot(site, "its rows or positions have to be an input of the graph");
	if (!index->why || below < index->below) {
		index->below = below;
		index->why = site->node->name;
	}
	return site->lowered->values[at];
}

static struct ggml_tensor *norm(struct site *site)
{
	const struct ggml_api *api = site->api;
	const struct tmesh_graph_node *node = site->node;
	struct ggml_tensor *x = in(site, 0);

	x = step(site, node->op == TMESH_GRAPH_RMS_NORM ? api->rms_norm(site->context, x, node->eps)
							: api->norm(site->context, x, node->eps));
	if (node->input_count > 1)
		x = step(site, api->mul(site->context, x, in(site, 1)));
	if (node->input_count > 2)
		x = step(site, api->add(site->context, x, in(site, 2)));
	return x;
}

static struct ggml_tensor *transpose(struct site *site)
{
	const struct tmesh_graph_node *node = site->node;
	int to[GGML_DIMS] = {0, 1, 2, 3};

	/* ggml would claim to support this, and then abort the process. */
	if (site->lowered->engine->gpu && node->dtype == TMESH_INT64)
		cannot(site, "its backend for CUDA copies no int64 that is turned");
	for (int i = 0; i < node->ndim; i++)
		to[node->ndim - 1 - node->axes[i]] = node->ndim - 1 - i;
	return site->api->permute(site->context, in(site, 0), to[0], to[1], to[2], to[3]);
}

static struct ggml_tensor *concat(struct site *site)
{
	struct ggml_tensor *all = in(site, 0);

	for (uint32_t i = 1; i < site->node->input_count; i++)
		all = step(site, site->api->concat(site->context, all, in(site, i),
						   site->node->ndim - 1 - site->node->axis));
	return all;
}

static int64_t padded(int64_t queries)
{
	return (queries + GGML_MASK_PAD - 1) / GGML_MASK_PAD * GGML_MASK_PAD;
}

/* Return the mask for @queries of each of @sequences. */
static struct ggml_tensor *mask_of(struct site *site, uint32_t positions, int64_t rows,
				   int64_t queries, int64_t sequences)
{
	struct ggml_lowered *lowered = site->lowered;
	struct ggml_mask *mask;

	for (size_t i = 0; i < lowered->mask_count; i++)
		if (lowered->masks[i].positions == positions && lowered->masks[i].rows == rows &&
		    lowered->masks[i].sequences == sequences)
			return lowered->masks[i].tensor;
	mask = &lowered->masks[lowered->mask_count++];
	mask->positions = positions;
	mask->rows = rows;
	mask->sequences = sequences;
	mask->tensor = site->api->new_tensor_4d(site->context, GGML_F16, rows, padded(queries), 1,
						sequences);
	return mask->tensor;
}

static struct ggml_room *room_for(struct ggml_lowered *lowered, const struct ggml_room *wanted)
{
	struct ggml_room *room = lowered->rooms;

	for (; room < lowered->rooms + lowered->room_count; room++)
		if (room->side == wanted->side && room->blocks == wanted->blocks &&
		    room->block_rows == wanted->block_rows && room->row_bytes == wanted->row_bytes)
			return room;
	lowered->room_count++;
	*room = *wanted;
	return room;
}

/*
 * Gather the rows that the tables name, as [sequence][group][row][D]. The previous attention is an
 * argument only for the order: it reads the same room.
 */
static struct ggml_tensor *gathered(struct site *site, uint32_t side, uint32_t tables_in)
{
	const struct ggml_api *api = site->api;
	struct ggml_lowered *lowered = site->lowered;
	const struct tmesh_graph_node *nodes = lowered->session->graph->nodes;
	const struct tmesh_graph_node *k = &nodes[site->node->inputs[side]];
	const struct tmesh_graph_node *tables = &nodes[site->node->inputs[tables_in]];
	struct ggml_gather *gather = &lowered->gathers[lowered->gather_count++];
	struct ggml_tensor *arguments[] = {in(site, side), lowered->attended};

	index_in(site, tables_in, k->shape[0]);
	*gather = (struct ggml_gather){
		.lowered = lowered,
		.positions = site->node->inputs[3],
		.tables = site->node->inputs[tables_in],
		.sequences = tables->shape[0],
		.room = room_for(lowered,
				 &(struct ggml_room){
					 .side = side,
					 .blocks = tables->shape[0] * tables->shape[1],
					 .block_rows = k->shape[1],
					 .row_bytes = api->nbytes(arguments[0]) /
						      (size_t)(k->shape[0] * k->shape[1]),
				 }),
		.from = arguments[0],
	};
	gather->to =
		step(site, api->custom_4d(site->context, (unsigned int)ggml_type_of(k), k->shape[3],
					  k->shape[2], tables->shape[1] * k->shape[1],
					  tables->shape[0], arguments, lowered->attended ? 2 : 1,
					  ggml_gather, GGML_TASKS_MAX, gather));
	return api->permute(site->context, gather->to, 0, 2, 1, 3);
}

/* Do the same on a GPU by ggml's get_rows, which returns float32. */
static struct ggml_tensor *picked(struct site *site, uint32_t side, uint32_t tables_in)
{
	const struct ggml_api *api = site->api;
	const struct tmesh_graph_node *nodes = site->lowered->session->graph->nodes;
	const struct tmesh_graph_node *k = &nodes[site->node->inputs[side]];
	const struct tmesh_graph_node *tables = &nodes[site->node->inputs[tables_in]];
	struct ggml_pick *pick = &site->lowered->picks[site->lowered->pick_count++];
	int64_t rows = tables->shape[1] * k->shape[1];
	struct ggml_tensor *all;

	index_in(site, tables_in, k->shape[0]);
	*pick = (struct ggml_pick){
		.positions = site->node->inputs[3],
		.tables = site->node->inputs[tables_in],
		.sequences = tables->shape[0],
		.blocks = tables->shape[1],
		.block_rows = k->shape[1],
		.rows = api->new_tensor_4d(site->context, GGML_I32, tables->shape[0] * rows, 1, 1,
					   1),
	};
	all = api->reshape_4d(site->context, in(site, side), k->shape[3] * k->shape[2],
			      k->shape[0] * k->shape[1], 1, 1);
	all = step(site, api->get_rows(site->context, all, pick->rows));
	all = api->reshape_4d(site->context, all, k->shape[3], k->shape[2], rows, tables->shape[0]);
	return api->permute(site->context, all, 0, 2, 1, 3);
}

static struct ggml_tensor *paged(struct site *site)
{
	const struct ggml_api *api = site->api;
	const struct tmesh_graph_node *node = site->node;
	const struct tmesh_graph_node *nodes = site->lowered->session->graph->nodes;
	const struct tmesh_graph_node *k = &nodes[node->inputs[1]];
	const struct tmesh_graph_node *tables = &nodes[node->inputs[4]];
	int64_t sequences = tables->shape[0], rows = tables->shape[1] * k->shape[1], size;
	int64_t queries = node->shape[0] / sequences;
	float scale = node->scale ? node->scale : 1 / sqrtf((float)node->shape[2]);
	struct ggml_tensor *(*rows_of)(struct site *, uint32_t, uint32_t) =
		site->lowered->engine->gpu ? picked : gathered;
	struct ggml_tensor *q, *keys, *values, *out;

	if (rows > INT32_MAX || sequences * rows > INT32_MAX ||
	    k->shape[0] * k->shape[1] > INT32_MAX ||
	    __builtin_mul_overflow(padded(queries) * sequences, rows, &size) || size > INT32_MAX)
		cannot(site, "its tables name more than 2^31 - 1 rows, or their mask is as large");
	if (site->rc)
		return NULL;
	index_in(site, 3, rows);
	keys = rows_of(site, 1, 4);
	values = rows_of(site, 2, node->input_count > 5 ? 5 : 4);
	q = api->reshape_4d(site->context, in(site, 0), node->shape[2], node->shape[1], queries,
			    sequences);
	q = api->permute(site->context, q, 0, 2, 1, 3);
	out = api->flash_attn_ext(site->context, q, keys, values,
				  mask_of(site, node->inputs[3], rows, queries, sequences), scale,
				  0, 0);
	api->flash_attn_ext_set_prec(out, GGML_PRECISION_F32);
	site->lowered->attended = out;
	return api->reshape_4d(site->context, step(site, out), node->shape[2], node->shape[1],
			       node->shape[0], 1);
}

static struct ggml_tensor *attention(struct site *site)
{
	const struct ggml_api *api = site->api;
	const struct tmesh_graph_node *nodes = site->lowered->session->graph->nodes;
	const struct tmesh_graph_node *k = &nodes[site->node->inputs[1]], *node = site->node;
	float scale = node->scale ? node->scale : 1 / sqrtf((float)node->shape[2]);
	struct ggml_tensor *part[3], *mask, *out;

	if (node->input_count > 4)
		return paged(site);
	index_in(site, 3, k->shape[0]);
	for (uint32_t i = 0; i < 3; i++)
		part[i] = api->permute(site->context, in(site, i), 0, 2, 1, 3);
	mask = mask_of(site, node->inputs[3], k->shape[0], node->shape[0], 1);
	out = api->flash_attn_ext(site->context, part[0], part[1], part[2], mask, scale, 0, 0);
	api->flash_attn_ext_set_prec(out, GGML_PRECISION_F32);
	return step(site, out);
}

static struct ggml_tensor *lora(struct site *site)
{
	const struct ggml_api *api = site->api;
	struct ggml_tensor *x = in(site, 0), *change;

	change = step(site, api->mul_mat(site->context, in(site, 2), x));
	if (site->node->input_count > 4)
		change = step(site, api->mul(site->context, change, in(site, 4)));
	change = step(site, api->mul_mat(site->context, in(site, 3), change));
	return step(site,
		    api->add(site->context, step(site, api->mul_mat(site->context, in(site, 1), x)),
			     change));
}

static struct ggml_tensor *rope(struct site *site)
{
	const struct tmesh_graph_node *node = site->node;

	return step(site,
		    site->api->rope_ext(site->context, in(site, 0), index_in(site, 1, INT32_MAX),
					node->input_count > 2 ? in(site, 2) : NULL, (int)node->dims,
					node->halves ? GGML_ROPE_NEOX : GGML_ROPE_NORMAL, 0,
					node->base, 1, 0, 1, 32, 1));
}

static struct ggml_tensor *lower(struct site *site, uint32_t at)
{
	const struct ggml_api *api = site->api;
	const struct tmesh_graph_node *node = site->node;
	const struct tmesh_graph_node *nodes = site->lowered->session->graph->nodes;
	struct ggml_context *context = site->context;
	int64_t ne[GGML_DIMS];

	extents(node, ne);
	switch (node->op) {
	case TMESH_GRAPH_INPUT:
		return ggml_tensor_of(site->lowered->engine, context, node);
	case TMESH_GRAPH_WEIGHT:
		return site->lowered->session->weights[at];
	case TMESH_GRAPH_MATMUL:
		return step(site, api->mul_mat(context, in(site, 1), in(site, 0)));
	case TMESH_GRAPH_RMS_NORM:
	case TMESH_GRAPH_LAYER_NORM:
		return norm(site);
	case TMESH_GRAPH_ROPE:
		return rope(site);
	case TMESH_GRAPH_SOFTMAX:
		return step(site, api->soft_max_ext(context, in(site, 0), NULL,
						    node->scale ? node->scale : 1, 0));
	case TMESH_GRAPH_ADD:
		return step(site, api->add(context, in(site, 0), in(site, 1)));
	case TMESH_GRAPH_MUL:
		return step(site, api->mul(context, in(site, 0), in(site, 1)));
	case TMESH_GRAPH_SILU:
		return step(site, api->silu(context, in(site, 0)));
	case TMESH_GRAPH_GELU:
		return step(site, api->gelu(context, in(site, 0)));
	case TMESH_GRAPH_GET_ROWS:
		return step(site,
			    api->get_rows(context, in(site, 0),
					  index_in(site, 1, nodes[node->inputs[0]].shape[0])));
	case TMESH_GRAPH_SET_ROWS:
		return step(site, api->set_rows(context, in(site, 0), in(site, 1),
						index_in(site, 2, node->shape[0])));
	case TMESH_GRAPH_RESHAPE:
		return api->reshape_4d(context, in(site, 0), ne[0], ne[1], ne[2], ne[3]);
	case TMESH_GRAPH_TRANSPOSE:
		return transpose(site);
	case TMESH_GRAPH_CONCAT:
		return concat(site);
	case TMESH_GRAPH_ATTENTION:
		return attention(site);
	case TMESH_GRAPH_LORA:
		return lora(site);
	}
	return NULL; /* unreachable: tmesh_graph_add() has checked the operator */
}

/* Check the dimensions here: ggml aborts on those that it does not support. */
static bool fits(struct site *site)
{
	if (site->node->ndim > GGML_DIMS)
		cannot(site, "it has more than 4 dimensions");
	for (int i = 0; i < site->node->ndim; i++)
		if (site->node->shape[i] > INT32_MAX)
			cannot(site, "a dimension is more than 2^31 - 1");
	return !site->rc;
}

static int ggml_lower(struct ggml_lowered *lowered, struct tmesh_error *err)
{
	const struct tmesh_graph *graph = lowered->session->graph;
	struct site site = {
		.lowered = lowered,
		.api = &lowered->engine->api,
		.context = lowered->context,
		.err = err,
	};

	for (uint32_t i = 0; !site.rc && i < graph->node_count; i++) {
		site.node = &graph->nodes[i];
		if (fits(&site))
			lowered->values[i] = lower(&site, i);
	}
	return site.rc;
}

int ggml_lowered_open(struct ggml_lowered *lowered, const struct ggml_engine *engine,
		      const struct ggml_session *session, struct tmesh_error *err)
{
	size_t nodes = session->graph->node_count, outputs = session->graph->output_count;
	const struct ggml_api *api = &engine->api;
	size_t steps = nodes * STEPS + 2 * outputs + 64;

	lowered->engine = engine;
	lowered->session = session;
	lowered->values = calloc(nodes + 1, sizeof(*lowered->values));
	lowered->indices = calloc(nodes + 1, sizeof(*lowered->indices));
	lowered->masks = calloc(nodes + 1, sizeof(*lowered->masks));
	lowered->gathers = calloc(2 * nodes + 1, sizeof(*lowered->gathers));
	lowered->rooms = calloc(2 * nodes + 1, sizeof(*lowered->rooms));
	lowered->picks = calloc(2 * nodes + 1, sizeof(*lowered->picks));
	lowered->outputs = calloc(outputs + 1, sizeof(*lowered->outputs));
	lowered->backend = ggml_backend_of(engine);
	if (!lowered->values || !lowered->indices || !lowered->masks || !lowered->gathers ||
	    !lowered->rooms || !lowered->picks || !lowered->outputs || !lowered->backend)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph of %zu nodes", nodes);
	lowered->context = api->init((struct ggml_params){
		.mem_size =
			api->tensor_overhead() * steps + api->graph_overhead_custom(steps, false),
		.no_alloc = true,
	});
	if (!lowered->context)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph of %zu nodes", nodes);
	lowered->graph = api->new_graph_custom(lowered->context, steps, false);
	return ggml_lower(lowered, err);
}

void ggml_lowered_close(struct ggml_lowered *lowered)
{
	const struct ggml_api *api = &lowered->engine->api;
	const struct tmesh_graph *graph = lowered->session->graph;

	if (lowered->allocator)
		api->gallocr_free(lowered->allocator);
	if (lowered->context)
		api->free(lowered->context);
	if (lowered->backend)
		api->backend_free(lowered->backend);
	for (size_t i = 0; lowered->indices && i < graph->node_count; i++)
		free(lowered->indices[i].own);
	for (size_t i = 0; i < lowered->mask_count; i++)
		free(lowered->masks[i].data);
	for (size_t i = 0; i < lowered->room_count; i++) {
		free(lowered->rooms[i].data);
		free(lowered->rooms[i].filled);
	}
	for (size_t i = 0; i < lowered->pick_count; i++)
		free(lowered->picks[i].data);
	for (size_t i = 0; lowered->outputs && i < graph->output_count; i++)
		free(lowered->outputs[i].own);
	free(lowered->values);
	free(lowered->indices);
	free(lowered->masks);
	free(lowered->gathers);
	free(lowered->rooms);
	free(lowered->picks);
	free(lowered->outputs);
}
