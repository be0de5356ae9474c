// SPDX-License-Identifier: MIT
/*
 * ggml's backend for CUDA, in builds with GGML_CUDA. Its calls are tested on a stand-in
 * (tests/engine/standin_ggml.c). It has never run on a GPU.
 *
 * ggml has no buffer for GPU memory of another allocator, and its call that places a tensor checks
 * that the address is in its buffer. So this file writes the tensor's two words itself: the
 * address, and a buffer of that GPU, which tells ggml where the address is.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ggml_internal.h"

#define TRIAL 4 /* elements */

static void tensor_put(struct ggml_tensor *tensor, size_t at, const void *word)
{
	memcpy((char *)tensor + at, &word, sizeof(word));
}

void ggml_gpu_place(const struct ggml_engine *engine, struct ggml_tensor *tensor, void *data)
{
	tensor_put(tensor, engine->buffer_at, engine->on_gpu);
	tensor_put(tensor, engine->address_at, data);
}

/* Find the one word that is the buffer in @placed and 0 in @fresh. Return 0 if there is not exactly
 * one. */
static size_t find_buffer(const struct ggml_engine *engine, const struct ggml_tensor *placed,
			  const struct ggml_tensor *fresh)
{
	size_t found = 0, bytes = engine->api.tensor_overhead();

	for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
		uintptr_t word, before;

		memcpy(&word, (const char *)placed + at, sizeof(word));
		memcpy(&before, (const char *)fresh + at, sizeof(before));
		if (word != (uintptr_t)engine->on_gpu || before)
			continue;
		if (found)
			return 0;
		found = at;
	}
	return found;
}

/* Check both words: write by a tensor placed by them, and read by one that ggml placed. */
static bool works(struct ggml_engine *engine, struct ggml_tensor *placed, struct ggml_tensor *fresh)
{
	const struct ggml_api *api = &engine->api;
	const float given[TRIAL] = {1, -2, 3, -4};
	float got[TRIAL] = {0};

	engine->buffer_at = find_buffer(engine, placed, fresh);
	if (!engine->address_at || !engine->buffer_at)
		return false;
	ggml_gpu_place(engine, fresh, api->get_data(placed));
	api->backend_tensor_set(fresh, given, 0, sizeof(given));
	api->backend_tensor_get(placed, got, 0, sizeof(got));
	return !memcmp(got, given, sizeof(got));
}

static int try_words(struct ggml_engine *engine, struct tmesh_error *err)
{
	const struct ggml_api *api = &engine->api;
	struct ggml_context *context = api->init(
		(struct ggml_params){.mem_size = 4 * api->tensor_overhead(), .no_alloc = true});
	struct ggml_tensor *placed, *fresh;
	int rc = 0;

	if (!context)
		return tmesh_fail(err, -ENOMEM, "no memory for an engine");
	placed = api->new_tensor_4d(context, GGML_F32, TRIAL, 1, 1, 1);
	fresh = api->new_tensor_4d(context, GGML_F32, TRIAL, 1, 1, 1);
	if (api->backend_tensor_alloc(engine->on_gpu, placed,
				      api->backend_buffer_get_base(engine->on_gpu)) !=
		    GGML_SUCCESS ||
	    !works(engine, placed, fresh))
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"where this ggml (%.20s) has a tensor's memory was not found: on "
				"a GPU it cannot be given any",
				api->version());
	api->free(context);
	return rc;
}

int ggml_gpu_open(struct ggml_engine *engine, int32_t device, struct tmesh_error *err)
{
	const struct ggml_api *api = &engine->api;
	struct ggml_backend_reg *cuda = api->backend_reg_by_name("CUDA");
	size_t count;

	if (!cuda)
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"this ggml (%.20s) has no backend for a GPU: install one that was built "
			"with GGML_CUDA, and name its libggml in TMESH_GGML",
			api->version());
	count = api->backend_reg_dev_count(cuda);
	if (device < 0 || (size_t)device >= count)
		return tmesh_fail(err, -ENODEV, "there is no GPU %d: ggml finds %zu", device,
				  count);
	engine->gpu = api->backend_reg_dev_get(cuda, (size_t)device);
	engine->on_gpu = api->backend_buft_alloc_buffer(api->backend_dev_buffer_type(engine->gpu),
							TRIAL * sizeof(float));
	if (!engine->on_gpu)
		return tmesh_fail(err, -ENOMEM, "ggml got no memory on GPU %d", device);
	return try_words(engine, err);
}

/* List the rows of each sequence as far as its queries see. The rest repeats the first row, which
 * the mask hides there: no row beyond is read. */
static void fill(const struct ggml_pick *pick, const struct ggml_index *indices)
{
	const struct ggml_index *positions = &indices[pick->positions];
	const int32_t *seen = positions->own, *table = indices[pick->tables].own;
	int64_t queries = positions->count / pick->sequences;
	int32_t *to = pick->data;

	for (int64_t at = 0; at < pick->sequences; at++, seen += queries, table += pick->blocks) {
		int64_t last = 0;

		for (int64_t i = 0; i < queries; i++)
			last = seen[i] > last ? seen[i] : last;
		for (int64_t row = 0; row < pick->blocks * pick->block_rows; row++) {
			int64_t from = row <= last ? row : 0;

			*to++ = (int32_t)(table[from / pick->block_rows] * pick->block_rows +
					  from % pick->block_rows);
		}
	}
}

/* Copy to a tensor. One that no node reads has no memory. */
static void send(const struct ggml_api *api, struct ggml_tensor *tensor, const void *data)
{
	if (api->get_data(tensor))
		api->backend_tensor_set(tensor, data, 0, api->nbytes(tensor));
}

void ggml_gpu_send(const struct ggml_lowered *lowered)
{
	const struct tmesh_graph *graph = lowered->session->graph;
	const struct ggml_api *api = &lowered->engine->api;

	for (size_t i = 0; i < graph->node_count; i++)
		if (lowered->indices[i].own)
			send(api, lowered->values[i], lowered->indices[i].own);
	for (size_t i = 0; i < lowered->mask_count; i++)
		send(api, lowered->masks[i].tensor, lowered->masks[i].data);
	for (size_t i = 0; i < lowered->pick_count; i++) {
		fill(&lowered->picks[i], lowered->indices);
		send(api, lowered->picks[i].rows, lowered->picks[i].data);
	}
}
