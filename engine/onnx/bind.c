// SPDX-License-Identifier: MIT
/* IoBinding on memory that stays where it is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "onnx_internal.h"

struct onnx_binding {
	struct onnx_engine *engine;
	struct ort_session *session;
	struct ort_io_binding *ort;
	struct ort_run_options *run; /* cancels a run */
	struct ort_value **values;   /* inputs, then outputs; NULL: left to the engine */
	size_t count;
};

void onnx_unbind(void *data)
{
	struct onnx_binding *binding = data;
	const struct ort_api *ort = &binding->engine->ort;

	if (binding->ort)
		ort->release_binding(binding->ort);
	if (binding->run)
		ort->release_run(binding->run);
	for (size_t i = 0; i < binding->count; i++)
		if (binding->values[i])
			ort->release_value(binding->values[i]);
	free(binding->values);
	free(binding);
}

static int bind_one(struct onnx_binding *binding, const struct plugin_array *array, bool output,
		    size_t at, struct tmesh_error *err)
{
	const struct onnx_engine *engine = binding->engine;
	const struct ort_api *ort = &engine->ort;
	int rc;

	if (!array->data)
		return onnx_check(
			engine, ort->bind_output_memory(binding->ort, array->name, engine->memory),
			array->name, err);
	rc = onnx_value(engine, engine->memory, array, &binding->values[at], err);
	if (rc)
		return rc;
	return onnx_check(engine,
			  (output ? ort->bind_output : ort->bind_input)(binding->ort, array->name,
									binding->values[at]),
			  array->name, err);
}

int onnx_bind(void *data, struct plugin_session *session, const struct plugin_array *inputs,
	      size_t input_count, const struct plugin_array *outputs, size_t output_count,
	      void **out, struct tmesh_error *err)
{
	struct onnx_binding *binding = calloc(1, sizeof(*binding));
	size_t count = input_count + output_count;
	int rc;

	if (binding)
		binding->values = calloc(count + 1, sizeof(struct ort_value *));
	if (!binding || !binding->values) {
		free(binding);
		return tmesh_fail(err, -ENOMEM, "no memory for a binding of %zu operands", count);
	}
	binding->engine = data;
	binding->session = onnx_session(session);
	binding->count = count;
	rc = onnx_check(binding->engine,
			binding->engine->ort.create_binding(binding->session, &binding->ort),
			"bind", err);
	if (!rc)
		rc = onnx_check(binding->engine, binding->engine->ort.create_run(&binding->run),
				"bind", err);
	/* A session with weights logs more than a run has to. */
	if (!rc)
		rc = onnx_check(binding->engine,
				binding->engine->ort.run_log_severity(binding->run, ORT_LOG_FATAL),
				"bind", err);
	for (size_t i = 0; !rc && i < input_count; i++)
		rc = bind_one(binding, &inputs[i], false, i, err);
	for (size_t i = 0; !rc && i < output_count; i++)
		rc = bind_one(binding, &outputs[i], true, input_count + i, err);
	if (rc)
		onnx_unbind(binding);
	else
		*out = binding;
	return rc;
}

int onnx_rebind(void *data, const struct plugin_array *inputs, const size_t *changed, size_t count,
		struct tmesh_error *err)
{
	struct onnx_binding *binding = data;
	const struct onnx_engine *engine = binding->engine;
	struct ort_value **fresh = calloc(count + 1, sizeof(struct ort_value *));
	int rc = 0;

	if (!fresh)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu inputs", count);
	for (size_t i = 0; !rc && i < count; i++)
		rc = onnx_value(engine, engine->memory, &inputs[changed[i]], &fresh[i], err);
	for (size_t i = 0; !rc && i < count; i++)
		rc = onnx_check(
			engine,
			engine->ort.bind_input(binding->ort, inputs[changed[i]].name, fresh[i]),
			inputs[changed[i]].name, err);
	for (size_t i = 0; i < count; i++) {
		struct ort_value **old = &binding->values[changed[i]], *unused = fresh[i];

		/* Restore the old input; this name was bound before, so it can be bound again. */
		if (rc)
			onnx_check(
				engine,
				engine->ort.bind_input(binding->ort, inputs[changed[i]].name, *old),
				"rebind", NULL);
		else {
			unused = *old;
			*old = fresh[i];
		}
		if (unused)
			engine->ort.release_value(unused);
	}
	free(fresh);
	return rc;
}

int onnx_run(void *data, struct tmesh_error *err)
{
	struct onnx_binding *binding = data;
	struct onnx_engine *engine = binding->engine;

	int rc = onnx_check(engine,
			    engine->ort.run_binding(binding->session, binding->run, binding->ort),
			    "run", err);

	/* On a GPU the last kernels may only be queued yet. */
	if (!rc && engine->on_gpu)
		rc = onnx_check(engine, engine->ort.wait_outputs(binding->ort), "run", err);
	return rc;
}

void onnx_cancel(void *data, bool on)
{
	struct onnx_binding *binding = data;
	const struct ort_api *ort = &binding->engine->ort;

	onnx_check(binding->engine, (on ? ort->terminate : ort->unterminate)(binding->run),
		   "cancel", NULL);
}

static int describe(const struct onnx_engine *engine, struct ort_value *value,
		    struct plugin_result *result, struct tmesh_error *err)
{
	struct ort_tensor_info *info;
	size_t ndim;
	int element;
	int rc = onnx_check(engine, engine->ort.value_data(value, &result->data), "result", err);

	if (!rc)
		rc = onnx_check(engine, engine->ort.value_type(value, &info), "result", err);
	if (rc)
		return rc;
	rc = onnx_check(engine, engine->ort.element_type(info, &element), "result", err);
	if (!rc)
		rc = onnx_check(engine, engine->ort.ndim(info, &ndim), "result", err);
	if (!rc && ndim > TMESH_MAX_DIMS)
		rc = tmesh_fail(err, -EOPNOTSUPP, "an output has %zu dimensions: at most %d", ndim,
				TMESH_MAX_DIMS);
	if (!rc)
		rc = onnx_check(engine, engine->ort.dims(info, result->shape, ndim), "result", err);
	engine->ort.release_tensor_info(info);
	if (rc)
		return rc;
	result->dtype = onnx_dtype(element);
	result->ndim = (int32_t)ndim;
	return 0;
}

int onnx_result(void *data, size_t output, struct plugin_result *result, struct tmesh_error *err)
{
	struct onnx_binding *binding = data;
	struct onnx_engine *engine = binding->engine;
	size_t inputs, count;
	struct ort_value **values;
	bool own;
	int rc;

	rc = onnx_check(engine,
			engine->ort.bound_outputs(binding->ort, engine->allocator, &values, &count),
			"result", err);
	if (rc)
		return rc;
	memset(result, 0, sizeof(*result));
	inputs = binding->count - count;
	own = !binding->values[inputs + output];
	rc = describe(engine, values[output], result, err);
	for (size_t i = 0; i < count; i++)
		if (!own || rc || i != output)
			engine->ort.release_value(values[i]);
	if (own && !rc)
		result->handle = values[output];
	return onnx_check(engine, engine->ort.free_text(engine->allocator, values), "result", err)
		       ?: rc;
}

void onnx_release(void *data, void *handle)
{
	((struct onnx_engine *)data)->ort.release_value(handle);
}
