// SPDX-License-Identifier: MIT
/* Bindings and their dispatches. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cancel.h"
#include "gpu.h"
#include "remote.h"
#include "resolve.h"
#include "turn.h"

struct tmesh_engine_binding {
	atomic_uint refs;
	struct tmesh_engine_graph *graph;
	struct resolved values;
	struct turns turns; /* of calls that run or change it */
	void *plugin;
	bool seen; /* the engine was seen to write to the bound places */
};

/* A turn of a binding. */
struct turn {
	struct tmesh_engine_binding *binding;
	struct cancel_hook hook;
};

static int bind(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *inputs,
		size_t input_count, const struct tmesh_engine_value *outputs, size_t output_count,
		bool engine_outputs, struct tmesh_engine_binding **out, struct tmesh_error *err)
{
	struct tmesh_engine_context *context = graph->context;
	struct tmesh_engine_binding *binding;
	int rc = engine_enter(context, err);

	if (rc)
		return rc;
	binding = calloc(1, sizeof(*binding));
	if (!binding)
		return tmesh_fail(err, -ENOMEM, "no memory for a binding");
	rc = engine_resolve(graph, inputs, input_count, outputs, output_count, engine_outputs,
			    &binding->values, err);
	if (rc)
		goto free_binding;
	rc = context->plugin->bind(context->engine, &graph->session->plugin, binding->values.arrays,
				   input_count, binding->values.arrays + input_count, output_count,
				   &binding->plugin, err);
	if (rc)
		goto free_values;
	binding->refs = 1;
	binding->graph = tmesh_engine_graph_ref(graph);
	turns_init(&binding->turns);
	atomic_fetch_add_explicit(&context->counters.bindings, 1, memory_order_relaxed);
	*out = binding;
	return 0;

free_values:
	engine_resolved_free(&binding->values);
free_binding:
	free(binding);
	return rc;
}

int tmesh_engine_bind(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *inputs,
		      size_t input_count, const struct tmesh_engine_value *outputs,
		      size_t output_count, struct tmesh_engine_binding **out,
		      struct tmesh_error *err)
{
	uint64_t before = deadline_enter(remote_deadline(graph->context->remote));
	int rc = bind(graph, inputs, input_count, outputs, output_count, false, out, err);

	deadline_enter(before);
	return rc;
}

/* Check that the engine wrote the outputs where they are bound. If it did not, it has copied, or
 * its readers do not see the result. */
static int check_places(struct tmesh_engine_binding *binding, struct tmesh_error *err)
{
	const struct tmesh_engine_plugin *plugin = binding->graph->context->plugin;
	const struct resolved *all = &binding->values;

	for (size_t i = all->inputs; i < all->count; i++) {
		struct plugin_result result;
		int rc;

		if (!all->arrays[i].data || !all->arrays[i].bytes)
			continue;
		rc = plugin->result(binding->plugin, i - all->inputs, &result, err);
		if (rc)
			return rc;
		if (result.data != all->arrays[i].data)
			return tmesh_fail(err, -EIO,
					  "the engine wrote output \"%.100s\" to memory of its own "
					  "instead of where it was bound",
					  all->arrays[i].name);
	}
	binding->seen = true;
	return 0;
}

/* Check what can change after bind(): a tensor may be destroyed, and an output's memory sealed. */
static int check_still(const struct resolved *all, struct tmesh_error *err)
{
	for (size_t i = 0; i < all->count; i++) {
		const char *kind = i < all->inputs ? "input" : "output";
		void *data;

		if (!all->tensors[i])
			continue;
		if (atomic_load_explicit(&all->tensors[i]->destroyed, memory_order_relaxed))
			return tmesh_fail(err, -EBADF, "%s \"%.100s\": the tensor was destroyed",
					  kind, all->arrays[i].name);
		if (i >= all->inputs && all->memory[i]->tensor &&
		    tmesh_tensor_data(all->memory[i]->tensor, TMESH_READ | TMESH_WRITE, &data,
				      NULL))
			return tmesh_fail(err, -EACCES,
					  "output \"%.100s\": its memory was sealed or taken away "
					  "since it was bound: bind another",
					  all->arrays[i].name);
	}
	return 0;
}

/* Wake the waiting calls, because one was cancelled, and cancel its run if it is the running
 * one. */
static void wake_turn(void *data)
{
	struct turn *turn = data;
	struct tmesh_engine_binding *binding = turn->binding;
	const struct tmesh_engine_plugin *plugin = binding->graph->context->plugin;

	pthread_mutex_lock(&binding->turns.lock);
	turns_wake(&binding->turns);
	if (binding->turns.holder == &turn->hook && plugin->cancel)
		plugin->cancel(binding->plugin, true);
	pthread_mutex_unlock(&binding->turns.lock);
}

static int begin_turn(struct turn *turn, struct tmesh_error *err)
{
	return turn_enter(&turn->binding->turns, &turn->hook, wake_turn, turn,
			  "runs of this binding", err);
}

static void end_turn(struct turn *turn)
{
	struct tmesh_engine_binding *binding = turn->binding;
	const struct tmesh_engine_plugin *plugin = binding->graph->context->plugin;

	/* Without its hook this call cannot cancel the engine, which the next turn uses. */
	cancel_hook_end(&turn->hook);
	pthread_mutex_lock(&binding->turns.lock);
	if (plugin->cancel && cancel_check(NULL))
		plugin->cancel(binding->plugin, false);
	turn_leave(&binding->turns);
	pthread_mutex_unlock(&binding->turns.lock);
}

static int plugin_run(struct tmesh_engine_binding *binding, struct tmesh_error *err)
{
	const struct tmesh_engine_context *context = binding->graph->context;
	bool captures = context->plugin->captures && engine_on_gpu(context);
	int rc = captures ? gpu_run_begin(context->device.device_id, err) : 0;

	if (rc)
		return rc;
	rc = context->plugin->run(binding->plugin, err);
	if (captures)
		gpu_run_end(context->device.device_id);
	return rc;
}

static int binding_run(struct tmesh_engine_binding *binding, struct tmesh_error *err)
{
	struct tmesh_engine_context *context = binding->graph->context;
	const struct resolved *all = &binding->values;
	struct turn turn = {.binding = binding};
	int rc = engine_enter(context, err);

	if (rc)
		return rc;
	rc = begin_turn(&turn, err);
	if (rc)
		return rc;
	rc = check_still(all, err);
	if (!rc)
		rc = plugin_run(binding, err);
	if (!rc && !binding->seen)
		rc = check_places(binding, err);
	else if (rc == -EIO && cancel_check(NULL))
		rc = tmesh_fail(err, -ECANCELED,
				"the call was cancelled while it ran: its outputs may be half "
				"written");
	end_turn(&turn);
	if (!rc)
		atomic_fetch_add_explicit(&context->counters.dispatches, 1, memory_order_relaxed);
	return rc;
}

int tmesh_engine_binding_dispatch_cancellable(struct tmesh_engine_binding *binding,
					      struct tmesh_engine_cancellable *cancellable,
					      struct tmesh_error *err)
{
	uint64_t deadline = deadline_enter(remote_deadline(binding->graph->context->remote));
	struct tmesh_engine_cancellable *before = cancel_enter(cancellable);
	int rc = binding_run(binding, err);

	cancel_enter(before);
	deadline_enter(deadline);
	return rc;
}

int tmesh_engine_binding_dispatch(struct tmesh_engine_binding *binding, struct tmesh_error *err)
{
	return tmesh_engine_binding_dispatch_cancellable(binding, NULL, err);
}

/* Rebuild the value that the caller gave for operand @i. */
static struct tmesh_engine_value value_of(const struct resolved *all, size_t i)
{
	const struct plugin_array *array = &all->arrays[i];
	struct tmesh_engine_value value = {
		.name = array->name,
		.tensor = all->tensors[i],
		.data = all->tensors[i] ? NULL : array->data,
		.dtype = array->dtype,
		.ndim = array->ndim,
	};

	memcpy(value.shape, array->shape, sizeof(value.shape));
	/* engine_resolve() accepts an overlap only if the caller declared it, so this one was
	 * declared. */
	for (size_t j = 0; i >= all->inputs && array->bytes && j < all->inputs; j++)
		if (all->arrays[j].data == array->data && all->arrays[j].bytes)
			value.in_place = all->arrays[j].name;
	return value;
}

/* Copy the binding's values and replace some inputs; their indices go to @changed. */
static int replace(const struct resolved *all, const struct tmesh_engine_value *inputs,
		   size_t count, struct tmesh_engine_value *values, size_t *changed,
		   struct tmesh_error *err)
{
	for (size_t i = 0; i < all->count; i++)
		values[i] = value_of(all, i);
	for (size_t n = 0; n < count; n++) {
		size_t i = 0;

		while (i < all->inputs &&
		       (!inputs[n].name || strcmp(values[i].name, inputs[n].name)))
			i++;
		if (i == all->inputs)
			return tmesh_fail(err, -ENOENT, "the graph has no input \"%.60s\"",
					  inputs[n].name ? inputs[n].name : "");
		for (size_t m = 0; m < n; m++)
			if (changed[m] == i)
				return tmesh_fail(err, -EINVAL, "input \"%.100s\" was given twice",
						  values[i].name);
		changed[n] = i;
		values[i] = inputs[n];
	}
	return 0;
}

static int rebind(struct tmesh_engine_binding *binding, const struct tmesh_engine_value *inputs,
		  size_t count, struct tmesh_error *err)
{
	struct tmesh_engine_context *context = binding->graph->context;
	struct resolved *all = &binding->values, fresh;
	struct tmesh_engine_value *values = calloc(all->count + 1, sizeof(*values));
	size_t *changed = calloc(count + 1, sizeof(*changed));
	int rc;

	if (!values || !changed)
		rc = tmesh_fail(err, -ENOMEM, "no memory for %zu operands", all->count);
	else
		rc = replace(all, inputs, count, values, changed, err);
	if (!rc)
		rc = engine_resolve(binding->graph, values, all->inputs, values + all->inputs,
				    all->count - all->inputs, false, &fresh, err);
	free(values);
	if (!rc) {
		rc = context->plugin->rebind(binding->plugin, fresh.arrays, changed, count, err);
		engine_resolved_free(rc ? &fresh : all);
		if (!rc)
			*all = fresh;
	}
	free(changed);
	return rc;
}

int tmesh_engine_binding_rebind(struct tmesh_engine_binding *binding,
				const struct tmesh_engine_value *inputs, size_t count,
				struct tmesh_error *err)
{
	const struct tmesh_engine_context *context = binding->graph->context;
	struct turn turn = {.binding = binding};
	int rc = engine_enter(context, err);
	uint64_t before;

	if (rc)
		return rc;
	if (!context->plugin->rebind)
		return tmesh_fail(err, -EOPNOTSUPP, "the engine \"%s\" cannot replace inputs",
				  context->backend);
	if (count > binding->values.inputs)
		return tmesh_fail(err, -EINVAL, "%zu inputs were given, and the graph has %zu",
				  count, binding->values.inputs);
	before = deadline_enter(remote_deadline(context->remote));
	rc = begin_turn(&turn, err);
	if (!rc) {
		rc = rebind(binding, inputs, count, err);
		end_turn(&turn);
	}
	deadline_enter(before);
	return rc;
}

struct tmesh_engine_binding *tmesh_engine_binding_ref(struct tmesh_engine_binding *binding)
{
	atomic_fetch_add(&binding->refs, 1);
	return binding;
}

void tmesh_engine_binding_unref(struct tmesh_engine_binding *binding)
{
	struct tmesh_engine_context *context;

	if (!binding || atomic_fetch_sub(&binding->refs, 1) > 1)
		return;
	context = binding->graph->context;
	if (context->life == engine_life())
		context->plugin->unbind(binding->plugin);
	engine_resolved_free(&binding->values);
	tmesh_engine_graph_unref(binding->graph);
	turns_destroy(&binding->turns);
	free(binding);
}

/* Refuse memory of an input as an output's: the output would not outlive that memory, and a write
 * to it would change the input. */
static int check_result(struct tmesh_engine_binding *binding, const char *name,
			const struct plugin_result *result, struct tmesh_error *err)
{
	const struct tmesh_engine_context *context = binding->graph->context;
	const struct resolved *all = &binding->values;

	for (size_t i = 0; i < all->inputs; i++) {
		const struct plugin_array *input = &all->arrays[i];

		if ((uintptr_t)result->data - (uintptr_t)input->data >= input->bytes)
			continue;
		context->plugin->release(context->engine, result->handle);
		return tmesh_fail(err, -EOPNOTSUPP,
				  "output \"%.100s\" is the memory of input \"%.100s\": use that "
				  "input",
				  name, input->name);
	}
	return 0;
}

/* Make device tensors, in @made, of the outputs that were left to the engine. */
static int take_results(struct tmesh_engine_binding *binding, struct tmesh_engine_tensor **made,
			struct tmesh_error *err)
{
	struct tmesh_engine_context *context = binding->graph->context;
	const struct resolved *all = &binding->values;
	int rc = 0;

	for (size_t i = all->inputs; !rc && i < all->count; i++) {
		struct plugin_result result;

		if (all->arrays[i].data)
			continue;
		rc = context->plugin->result(binding->plugin, i - all->inputs, &result, err);
		if (!rc)
			rc = check_result(binding, all->arrays[i].name, &result, err);
		if (!rc)
			rc = engine_tensor_of_result(context, &result, &made[i - all->inputs], err);
	}
	return rc;
}

static int dispatch(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *inputs,
		    size_t input_count, struct tmesh_engine_value *outputs, size_t output_count,
		    struct tmesh_error *err)
{
	struct tmesh_engine_tensor **made;
	struct tmesh_engine_binding *binding;
	int rc = bind(graph, inputs, input_count, outputs, output_count, true, &binding, err);

	if (rc)
		return rc;
	made = calloc(output_count, sizeof(struct tmesh_engine_tensor *));
	if (!made)
		rc = tmesh_fail(err, -ENOMEM, "no memory for %zu outputs", output_count);
	if (!rc)
		rc = binding_run(binding, err);
	if (!rc)
		rc = take_results(binding, made, err);
	for (size_t i = 0; made && i < output_count; i++) {
		if (rc)
			tmesh_engine_tensor_unref(made[i]);
		else if (made[i])
			outputs[i].tensor = made[i];
	}
	free(made);
	tmesh_engine_binding_unref(binding);
	return rc;
}

int tmesh_engine_dispatch_cancellable(struct tmesh_engine_graph *graph,
				      const struct tmesh_engine_value *inputs, size_t input_count,
				      struct tmesh_engine_value *outputs, size_t output_count,
				      struct tmesh_engine_cancellable *cancellable,
				      struct tmesh_error *err)
{
	uint64_t deadline = deadline_enter(remote_deadline(graph->context->remote));
	struct tmesh_engine_cancellable *before = cancel_enter(cancellable);
	int rc = dispatch(graph, inputs, input_count, outputs, output_count, err);

	cancel_enter(before);
	deadline_enter(deadline);
	return rc;
}

int tmesh_engine_dispatch(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *inputs,
			  size_t input_count, struct tmesh_engine_value *outputs,
			  size_t output_count, struct tmesh_error *err)
{
	return tmesh_engine_dispatch_cancellable(graph, inputs, input_count, outputs, output_count,
						 NULL, err);
}
