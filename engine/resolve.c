// SPDX-License-Identifier: MIT
/*
 * Check the values for a graph before anything runs. An engine trusts addresses and shapes: a wrong
 * one would crash it or give a wrong result.
 */
#include "resolve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "identity.h"

static const char *kind_of(const struct resolved *all, size_t i)
{
	return i < all->inputs ? "input" : "output";
}

/* Write a shape such as "[2, any, 4]". */
static const char *shape_text(char *text, size_t size, int32_t ndim, const int64_t *shape)
{
	size_t at = (size_t)snprintf(text, size, "[");

	for (int32_t i = 0; i < ndim && at < size; i++)
		at += (size_t)(shape[i] < 0 ? snprintf(text + at, size - at, "%sany", i ? ", " : "")
					    : snprintf(text + at, size - at, "%s%lld",
						       i ? ", " : "", (long long)shape[i]));
	if (at < size)
		snprintf(text + at, size - at, "]");
	return text;
}

static int find_operand(const struct plugin_operand *operands, size_t count, const char *kind,
			const char *name, size_t *index, struct tmesh_error *err)
{
	for (size_t i = 0; name && i < count; i++)
		if (!strcmp(operands[i].name, name)) {
			*index = i;
			return 0;
		}
	return tmesh_fail(err, -ENOENT, "the graph has no %s \"%.60s\"; its first is \"%.60s\"",
			  kind, name ? name : "", count ? operands[0].name : "");
}

/* Find the address of a value. */
static int locate(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *value,
		  struct resolved *all, size_t i, struct tmesh_error *err)
{
	struct plugin_array *array = &all->arrays[i];
	struct tmesh_engine_tensor *tensor = value->tensor;
	struct tmesh_layout layout;
	int rc;

	array->shape = all->shapes[i];
	if (!tensor && engine_on_gpu(graph->context))
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"%s \"%.100s\" is in host memory, and the engine on a GPU: give a "
			"device tensor of its context",
			kind_of(all, i), value->name);
	if (!tensor) {
		rc = tmesh_layout_contiguous(&layout, value->dtype, value->ndim, value->shape, err);
		if (!rc)
			rc = tmesh_layout_check(&layout, UINT64_MAX, &array->bytes, err);
		if (rc)
			return rc;
		array->dtype = value->dtype;
		array->ndim = value->ndim;
		memcpy(all->shapes[i], value->shape, sizeof(all->shapes[i]));
		array->data = value->data;
		return 0;
	}
	if (value->data)
		return tmesh_fail(err, -EINVAL,
				  "%s \"%.100s\" has a device tensor and memory of the caller: "
				  "give one of the two",
				  kind_of(all, i), value->name);
	if (tensor->context != graph->context)
		return tmesh_fail(err, -EINVAL,
				  "%s \"%.100s\": the tensor belongs to another context than the "
				  "graph: make it in the graph's",
				  kind_of(all, i), value->name);
	all->memory[i] = engine_tensor_memory(tensor, err);
	if (!all->memory[i])
		return tmesh_fail(err, -EBADF, "%s \"%.100s\": the tensor was destroyed",
				  kind_of(all, i), value->name);
	all->tensors[i] = tmesh_engine_tensor_ref(tensor);
	if (i >= all->inputs && !(tensor->rights & TMESH_WRITE))
		return tmesh_fail(
			err, -EACCES,
			"output \"%.100s\": graphs may only read that tensor's memory; an "
			"engine that wrote there would crash",
			value->name);
	array->data = all->memory[i]->address;
	array->tensor = all->memory[i]->tensor;
	array->bytes = tensor->bytes;
	array->dtype = tensor->dtype;
	array->ndim = tensor->ndim;
	memcpy(all->shapes[i], tensor->shape, sizeof(all->shapes[i]));
	return 0;
}

static int check_type(const struct plugin_operand *operand, const struct resolved *all, size_t i,
		      struct tmesh_error *err)
{
	const struct plugin_array *array = &all->arrays[i];
	bool same = array->ndim == operand->ndim;
	char have[80], want[80];

	if (array->dtype != operand->dtype)
		return tmesh_fail(err, -EINVAL, "%s \"%.60s\" is %s, and %s was given",
				  kind_of(all, i), operand->name, tmesh_dtype_name(operand->dtype),
				  tmesh_dtype_name(array->dtype));
	for (int32_t n = 0; same && n < operand->ndim; n++)
		same = operand->shape[n] < 0 || operand->shape[n] == array->shape[n];
	if (same)
		return 0;
	return tmesh_fail(err, -EINVAL, "%s \"%.60s\" has shape %s, and %s was given",
			  kind_of(all, i), operand->name,
			  shape_text(want, sizeof(want), operand->ndim, operand->shape),
			  shape_text(have, sizeof(have), array->ndim, array->shape));
}

static int check_alignment(const struct tmesh_engine_plugin *plugin, const struct resolved *all,
			   size_t i, const char *name, struct tmesh_error *err)
{
	const struct plugin_array *array = &all->arrays[i];
	uintptr_t need = tmesh_dtype_bits(array->dtype) / 8;

	if (need < plugin->alignment)
		need = plugin->alignment;
	if (need < 2 || !array->bytes || (uintptr_t)array->data % need == 0)
		return 0;
	return tmesh_fail(err, -EINVAL,
			  "%s \"%.100s\": the memory does not begin at a multiple of %u bytes",
			  kind_of(all, i), name, (unsigned int)need);
}

/* Check that a named dimension has one size in all operands. */
static int check_dims(const struct plugin_operand *const *operands, const struct resolved *all,
		      struct tmesh_error *err)
{
	for (size_t i = 1; i < all->count; i++)
		for (int n = 0; all->arrays[i].data && n < all->arrays[i].ndim; n++)
			for (size_t j = 0; operands[i]->dims[n] && j < i; j++)
				for (int m = 0; all->arrays[j].data && m < all->arrays[j].ndim; m++)
					if (operands[j]->dims[m] &&
					    !strcmp(operands[i]->dims[n], operands[j]->dims[m]) &&
					    all->shapes[i][n] != all->shapes[j][m])
						return tmesh_fail(err, -EINVAL,
								  "\"%.60s\" is %lld in \"%.40s\" "
								  "and %lld in \"%.40s\"",
								  operands[i]->dims[n],
								  (long long)all->shapes[j][m],
								  operands[j]->name,
								  (long long)all->shapes[i][n],
								  operands[i]->name);
	return 0;
}

static bool overlap(const struct plugin_array *a, const struct plugin_array *b)
{
	uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;

	return a->data && b->data && a->bytes && b->bytes && first < second + b->bytes &&
	       second < first + a->bytes;
}

/* Return whether two values overlap in memory of a region that has two addresses here, because two
 * handles have it mapped. */
static bool overlap_in_region(const struct plugin_array *a, const struct plugin_array *b)
{
	uint64_t first, second;

	if (!a->tensor || !b->tensor || !a->bytes || !b->bytes)
		return false;
	first = tmesh_tensor_layout(a->tensor)->offset;
	second = tmesh_tensor_layout(b->tensor)->offset;
	return first < second + b->bytes && second < first + a->bytes &&
	       memory_is_same(tmesh_tensor_region(a->tensor), tmesh_tensor_region(b->tensor));
}

static bool same_place(const struct plugin_array *a, const struct plugin_array *b)
{
	return a->data == b->data && a->bytes == b->bytes && a->dtype == b->dtype &&
	       a->ndim == b->ndim &&
	       !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape));
}

/* Check that output @i overlaps no other value, except the input @in_place that it may
 * overwrite. */
static int check_overlap(const struct plugin_operand *const *operands, const struct resolved *all,
			 size_t i, const char *in_place, struct tmesh_error *err)
{
	bool found = !in_place;

	for (size_t j = 0; j < i; j++) {
		bool meant = j < all->inputs && in_place && !strcmp(operands[j]->name, in_place);

		if (meant && !same_place(&all->arrays[i], &all->arrays[j]))
			return tmesh_fail(
				err, -EINVAL,
				"output \"%.80s\" has other memory, another dtype or another "
				"shape than input \"%.80s\", in whose place it should be",
				operands[i]->name, in_place);
		found |= meant;
		if (!meant && (overlap(&all->arrays[i], &all->arrays[j]) ||
			       overlap_in_region(&all->arrays[i], &all->arrays[j])))
			return tmesh_fail(err, -EINVAL, "output \"%.60s\" overlaps %s \"%.60s\"%s",
					  operands[i]->name, kind_of(all, j), operands[j]->name,
					  j < all->inputs ? "; name that input in in_place if the "
							    "graph may overwrite it"
							  : "");
	}
	if (!found)
		return tmesh_fail(err, -ENOENT,
				  "output \"%.80s\" should be in place of \"%.80s\", which is "
				  "not an input",
				  operands[i]->name, in_place);
	return 0;
}

static int check_all(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *inputs,
		     const struct tmesh_engine_value *outputs, bool engine_outputs,
		     const struct plugin_operand **operands, struct resolved *all,
		     struct tmesh_error *err)
{
	const struct plugin_session *session = &graph->session->plugin;
	int rc = 0;

	for (size_t i = 0; !rc && i < all->count; i++) {
		bool in = i < all->inputs;
		const struct tmesh_engine_value *value =
			in ? &inputs[i] : &outputs[i - all->inputs];
		const struct plugin_operand *first = in ? session->inputs : session->outputs;
		struct plugin_array *array = &all->arrays[i];

		rc = find_operand(first, in ? session->input_count : session->output_count,
				  kind_of(all, i), value->name, &array->operand, err);
		if (rc)
			break;
		operands[i] = &first[array->operand];
		array->name = operands[i]->name;
		for (size_t j = in ? 0 : all->inputs; j < i; j++)
			if (operands[j] == operands[i])
				return tmesh_fail(err, -EINVAL, "%s \"%.100s\" was given twice",
						  kind_of(all, i), value->name);
		if (!value->tensor && !value->data) {
			if (in || !engine_outputs)
				return tmesh_fail(err, -EINVAL,
						  "%s \"%.100s\" was given without memory",
						  kind_of(all, i), value->name);
			if (engine_on_gpu(graph->context))
				return tmesh_fail(
					err, -EOPNOTSUPP,
					"output \"%.100s\" was left to an engine on a GPU: "
					"give a device tensor of its context",
					value->name);
			continue;
		}
		rc = locate(graph, value, all, i, err);
		if (!rc)
			rc = check_type(operands[i], all, i, err);
		if (!rc)
			rc = check_alignment(graph->context->plugin, all, i, value->name, err);
		if (!rc && !in)
			rc = check_overlap(operands, all, i, value->in_place, err);
	}
	/* All given inputs exist and are distinct, so the count shows whether one is missing. */
	for (size_t i = 0; !rc && all->inputs < session->input_count && i < session->input_count;
	     i++) {
		bool given = false;

		for (size_t j = 0; j < all->inputs; j++)
			given |= operands[j] == &session->inputs[i];
		if (!given)
			rc = tmesh_fail(err, -EINVAL, "input \"%.100s\" is missing",
					session->inputs[i].name);
	}
	if (!rc && all->count == all->inputs)
		rc = tmesh_fail(err, -EINVAL, "no output was given: name one at least");
	return rc ? rc : check_dims(operands, all, err);
}

int engine_resolve(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *inputs,
		   size_t input_count, const struct tmesh_engine_value *outputs,
		   size_t output_count, bool engine_outputs, struct resolved *out,
		   struct tmesh_error *err)
{
	const struct plugin_session *session = &graph->session->plugin;
	struct resolved all = {.inputs = input_count, .count = input_count + output_count};
	const struct plugin_operand **operands;
	int rc;

	/* A larger number would contain unknown or repeated names. */
	if (input_count > session->input_count || output_count > session->output_count)
		return tmesh_fail(
			err, -EINVAL,
			"%zu inputs and %zu outputs were given, and the graph has %zu and %zu",
			input_count, output_count, session->input_count, session->output_count);
	all.arrays = calloc(all.count + 1, sizeof(*all.arrays));
	all.shapes = calloc(all.count + 1, sizeof(*all.shapes));
	all.tensors = calloc(all.count + 1, sizeof(struct tmesh_engine_tensor *));
	all.memory = calloc(all.count + 1, sizeof(struct memory *));
	operands = calloc(all.count + 1, sizeof(struct plugin_operand *));
	if (!all.arrays || !all.shapes || !all.tensors || !all.memory || !operands)
		rc = tmesh_fail(err, -ENOMEM, "no memory for %zu operands", all.count);
	else
		rc = check_all(graph, inputs, outputs, engine_outputs, operands, &all, err);
	free(operands);
	if (rc)
		engine_resolved_free(&all);
	else
		*out = all;
	return rc;
}

void engine_resolved_free(struct resolved *resolved)
{
	for (size_t i = 0; i < resolved->count; i++) {
		if (resolved->memory && resolved->memory[i])
			engine_memory_unref(resolved->memory[i]);
		if (resolved->tensors && resolved->tensors[i])
			tmesh_engine_tensor_unref(resolved->tensors[i]);
	}
	free(resolved->memory);
	free(resolved->tensors);
	free(resolved->shapes);
	free(resolved->arrays);
}
