// SPDX-License-Identifier: MIT
/* Sessions: a model's file, its weights, and its inputs and outputs. */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "onnx_internal.h"

/* A model is untrusted, and so are its names and their number. */
#define MAX_OPERANDS 65536

struct onnx_session {
	struct ort_session *ort;
	struct onnx_weights *weights;
};

struct ort_session *onnx_session(const struct plugin_session *session)
{
	return ((struct onnx_session *)session->handle)->ort;
}

static void free_operands(struct plugin_operand *operands, size_t count)
{
	for (size_t i = 0; operands && i < count; i++) {
		free(operands[i].name);
		for (int n = 0; n < TMESH_MAX_DIMS; n++)
			free(operands[i].dims[n]);
	}
	free(operands);
}

void onnx_session_close(void *data, struct plugin_session *session)
{
	struct onnx_session *own = session->handle;
	struct onnx_engine *engine = data;

	if (own->ort)
		engine->ort.release_session(own->ort);
	onnx_weights_free(engine, own->weights);
	free_operands(session->inputs, session->input_count);
	free_operands(session->outputs, session->output_count);
	free(own);
	*session = (struct plugin_session){0};
}

static int read_dims(const struct onnx_engine *engine, const struct ort_tensor_info *info,
		     struct plugin_operand *operand, struct tmesh_error *err)
{
	const char *names[TMESH_MAX_DIMS] = {0};
	size_t ndim;
	int rc = onnx_check(engine, engine->ort.ndim(info, &ndim), operand->name, err);

	if (!rc && ndim > TMESH_MAX_DIMS)
		return tmesh_fail(err, -EOPNOTSUPP, "\"%.100s\" has %zu dimensions: at most %d",
				  operand->name, ndim, TMESH_MAX_DIMS);
	if (!rc)
		rc = onnx_check(engine, engine->ort.dims(info, operand->shape, ndim), operand->name,
				err);
	if (!rc)
		rc = onnx_check(engine, engine->ort.dim_names(info, names, ndim), operand->name,
				err);
	if (rc)
		return rc;
	operand->ndim = (int32_t)ndim;
	for (size_t i = 0; i < ndim; i++) {
		if (operand->shape[i] < 0)
			operand->shape[i] = -1;
		if (operand->shape[i] >= 0 || !names[i] || !*names[i])
			continue;
		operand->dims[i] = strdup(names[i]);
		if (!operand->dims[i])
			return tmesh_fail(err, -ENOMEM, "no memory for a graph's description");
	}
	return 0;
}

static int read_operand(const struct onnx_engine *engine, struct ort_session *session, bool output,
			size_t index, struct plugin_operand *operand, struct tmesh_error *err)
{
	const struct ort_api *ort = &engine->ort;
	const struct ort_tensor_info *info;
	struct ort_type_info *type = NULL;
	int kind, element;
	char *name;
	int rc;

	rc = onnx_check(engine,
			(output ? ort->output_name : ort->input_name)(session, index,
								      engine->allocator, &name),
			"a graph's operands", err);
	if (rc)
		return rc;
	operand->name = strdup(name);
	rc = onnx_check(engine, ort->free_text(engine->allocator, name), "a graph's operands", err);
	if (!rc && !operand->name)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a graph's description");
	if (!rc)
		rc = onnx_check(
			engine,
			(output ? ort->output_type : ort->input_type)(session, index, &type),
			operand->name, err);
	if (!rc)
		rc = onnx_check(engine, ort->onnx_type(type, &kind), operand->name, err);
	if (!rc && kind != ORT_TYPE_TENSOR)
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"\"%.100s\" is not a tensor, and only tensors can be bound",
				operand->name);
	if (!rc)
		rc = onnx_check(engine, ort->cast_tensor(type, &info), operand->name, err);
	if (!rc)
		rc = onnx_check(engine, ort->element_type(info, &element), operand->name, err);
	if (!rc) {
		operand->dtype = onnx_dtype(element);
		if (!operand->dtype)
			rc = tmesh_fail(err, -EOPNOTSUPP,
					"\"%.100s\" has a type of elements that tmesh does not "
					"have (ONNX's number %d)",
					operand->name, element);
	}
	if (!rc)
		rc = read_dims(engine, info, operand, err);
	if (type)
		ort->release_type(type);
	return rc;
}

static int read_operands(const struct onnx_engine *engine, struct ort_session *session, bool output,
			 struct plugin_operand **out, size_t *out_count, struct tmesh_error *err)
{
	struct plugin_operand *operands;
	size_t count;
	int rc;

	rc = onnx_check(
		engine,
		(output ? engine->ort.output_count : engine->ort.input_count)(session, &count),
		"a graph's operands", err);
	if (rc)
		return rc;
	if (count > MAX_OPERANDS)
		return tmesh_fail(err, -EOPNOTSUPP, "the graph has %zu operands: at most %d", count,
				  MAX_OPERANDS);
	operands = calloc(count + 1, sizeof(*operands));
	if (!operands)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph's description");
	for (size_t i = 0; !rc && i < count; i++)
		rc = read_operand(engine, session, output, i, &operands[i], err);
	if (rc) {
		free_operands(operands, count);
		return rc;
	}
	*out = operands;
	*out_count = count;
	return 0;
}

static int set_options(const struct onnx_engine *engine, struct ort_session_options *options,
		       const struct plugin_session_opts *opts, struct onnx_session *own,
		       struct tmesh_error *err)
{
	const struct ort_api *ort = &engine->ort;
	int rc = onnx_check(engine, ort->intra_threads(options, (int)engine->threads), "options",
			    err);

	if (!rc)
		rc = onnx_check(engine, ort->inter_threads(options, 1), "options", err);
	/* Prepacking would copy each weight into an order that suits the kernels. */
	if (!rc && !opts->prepack)
		rc = onnx_check(engine, ort->config(options, "session.disable_prepacking", "1"),
				"options", err);
	if (!rc && engine->on_gpu)
		rc = onnx_gpu_append(engine, options, err);
	return rc ? rc : onnx_weights_add(engine, options, own->weights, err);
}

/* Make the library's session. @again: it does not use all weights yet. */
static int make_session(const struct onnx_engine *engine, const struct plugin_session_opts *opts,
			struct onnx_session *own, bool *again, struct tmesh_error *err)
{
	struct ort_session_options *options = NULL;
	int rc;

	if (own->ort)
		engine->ort.release_session(own->ort);
	own->ort = NULL;
	rc = onnx_check(engine, engine->ort.create_options(&options), "options", err);
	if (!rc)
		rc = set_options(engine, options, opts, own, err);
	if (!rc)
		rc = onnx_check(
			engine,
			engine->ort.create_session(engine->env, opts->path, options, &own->ort),
			opts->path, err);
	if (options)
		engine->ort.release_options(options);
	return rc ? rc : onnx_weights_check(engine, own->weights, again, err);
}

int onnx_session_open(void *data, const struct plugin_session_opts *opts,
		      struct plugin_session *session, struct tmesh_error *err)
{
	struct onnx_engine *engine = data;
	struct onnx_session *own = calloc(1, sizeof(*own));
	bool again = true;
	int rc;

	if (!own)
		return tmesh_fail(err, -ENOMEM, "no memory for a session");
	session->handle = own;
	rc = opts->weight_count
		     ? onnx_check_weights(opts->path, opts->weights, opts->weight_count, err)
		     : 0;
	if (!rc)
		rc = onnx_weights_make(opts, &own->weights, err);
	while (!rc && again)
		rc = make_session(engine, opts, own, &again, err);
	/* The library has read and freed the file's own copies of the weights: return that
	 * memory. */
	if (!rc && opts->weight_count)
		malloc_trim(0);
	if (!rc)
		rc = read_operands(engine, own->ort, false, &session->inputs, &session->input_count,
				   err);
	if (!rc)
		rc = read_operands(engine, own->ort, true, &session->outputs,
				   &session->output_count, err);
	if (rc)
		onnx_session_close(engine, session);
	return rc;
}
