/* SPDX-License-Identifier: MIT */
/*
 * Engines in processes of their own: contexts, graphs and bindings of libtmesh-engine. No engine
 * runs in the emulator: only a connection makes a context.
 */
#include "jobs.h"
#include "paging.h"

OBJECT_KIND(context_kind, tmesh_engine_context, "an engine");
OBJECT_KIND(graph_kind, tmesh_engine_graph, "a graph");
OBJECT_KIND(binding_kind, tmesh_engine_binding, "a binding");
OBJECT_KIND(cancellable_kind, tmesh_engine_cancellable, "a cancellable");
OBJECT_KIND(tensor_kind, tmesh_engine_tensor, "a device tensor");

/* (context, name, timeout_ns) -> {ok, engine} */
static ERL_NIF_TERM connect_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct tmesh_engine_connect_opts opts = {.size = sizeof(opts)};
	struct tmesh_engine_context *made;
	struct context *context;
	struct tmesh_error err;
	ErlNifUInt64 timeout;
	char name[64];
	int rc;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[1], name, sizeof(name)) || !enif_get_uint64(env, argv[2], &timeout))
		return make_refusal(env, -EINVAL,
				    "an engine has a name of at most 32 bytes, and a timeout");
	opts.timeout_ns = timeout;
	rc = tmesh_engine_connect(context->ctx, name, &opts, &made, &err);
	return rc ? make_error(env, &err) : make_ok_object(env, context, &context_kind, made);
}

/* engine_connect(tag, context, name, timeout_ns) -> ok, and {tag, result} to the caller */
NIF(engine_connect)
{
	return job_start(env, argc, argv, connect_now, NULL);
}

/* engine_info(engine) -> {ok, {backend, version, pid}} */
NIF(engine_info)
{
	struct object *engine;
	struct tmesh_error err;

	if (!find_object(env, argv[0], &context_kind, &engine, &err))
		return make_error(env, &err);
	return make_ok(env,
		       enif_make_tuple3(
			       env, make_string(env, tmesh_engine_context_backend(engine->object)),
			       make_string(env, tmesh_engine_context_version(engine->object)),
			       enif_make_uint(env, tmesh_engine_context_pid(engine->object))));
}

#define NAME_SIZE 512
#define MAX_VALUES 65536

/* An item of a list: {name, handle} or {name, handle, in_place | nil}. */
struct named {
	char name[NAME_SIZE], in_place[NAME_SIZE];
	struct tmesh_tensor *tensor;	    /* with a reference, or NULL and */
	struct tmesh_engine_tensor *device; /* with a reference */
};

static bool get_one(ErlNifEnv *env, ERL_NIF_TERM term, bool devices, struct named *out,
		    struct tmesh_error *err)
{
	const ERL_NIF_TERM *field;
	struct object *engine;
	struct handle *handle;
	int arity;

	out->tensor = NULL;
	out->device = NULL;
	if (!enif_get_tuple(env, term, &arity, &field) || arity < 2 || arity > 3 ||
	    !get_text(env, field[0], out->name, sizeof(out->name)))
		return refuse(err, -EINVAL, "a graph's values have names of at most %d bytes",
			      NAME_SIZE - 1) == 0;
	*out->in_place = '\0';
	if (arity == 3 && !enif_is_identical(field[2], atoms.nil) &&
	    !get_text(env, field[2], out->in_place, sizeof(out->in_place)))
		return refuse(err, -EINVAL, "in_place names an input") == 0;
	if (devices && enif_get_resource(env, field[1], object_type, (void **)&engine)) {
		if (!find_object(env, field[1], &tensor_kind, &engine, err))
			return false;
		out->device = tmesh_engine_tensor_ref(engine->object);
		return true;
	}
	out->tensor = get_tensor(env, field[1], &handle, err);
	return out->tensor;
}

static void free_named(struct named *named, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++) {
		if (named[i].tensor)
			tmesh_tensor_unref(named[i].tensor);
		tmesh_engine_tensor_unref(named[i].device);
	}
	enif_free(named);
}

/* Read a list of items, in which device tensors may stand for handles where @devices. The caller
 * frees it with free_named(). NULL: @err is filled. */
static struct named *get_named(ErlNifEnv *env, ERL_NIF_TERM list, bool devices, unsigned int *count,
			       struct tmesh_error *err)
{
	struct named *named;
	unsigned int length;
	ERL_NIF_TERM head;

	*count = 0;
	if (!enif_get_list_length(env, list, &length) || length > MAX_VALUES) {
		refuse(err, -EINVAL, "a graph's values are a list of at most %d", MAX_VALUES);
		return NULL;
	}
	named = enif_alloc((length + (size_t)1) * sizeof(*named));
	if (!named) {
		refuse(err, -ENOMEM, "no memory for %u values", length);
		return NULL;
	}
	while (enif_get_list_cell(env, list, &head, &list)) {
		if (!get_one(env, head, devices, &named[*count], err)) {
			free_named(named, *count);
			return NULL;
		}
		++*count;
	}
	return named;
}

/* (engine, path, [{name, handle}], prepack) -> {ok, graph} */
static ERL_NIF_TERM graph_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct tmesh_engine_graph_opts opts = {.size = sizeof(opts)};
	struct tmesh_engine_weight *weights;
	struct tmesh_engine_graph *graph;
	struct named *named = NULL;
	struct object *engine;
	struct tmesh_error err;
	char path[4096];
	unsigned int count;
	bool prepack;
	int rc;

	if (!find_object(env, argv[0], &context_kind, &engine, &err) ||
	    !get_bool(env, argv[3], "prepack", &prepack, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[1], path, sizeof(path)))
		return make_refusal(env, -EINVAL, "a graph has a path of at most 4095 bytes");
	named = get_named(env, argv[2], false, &count, &err);
	if (!named)
		return make_error(env, &err);
	weights = enif_alloc((count + (size_t)1) * sizeof(*weights));
	for (unsigned int i = 0; weights && i < count; i++)
		weights[i] = (struct tmesh_engine_weight){.name = named[i].name,
							  .tensor = named[i].tensor};
	opts.flags = prepack ? TMESH_ENGINE_PREPACK : 0;
	opts.weights = weights;
	opts.weight_count = count;
	rc = weights ? tmesh_engine_graph_open(engine->object, path, &opts, &graph, &err)
		     : refuse(&err, -ENOMEM, "no memory for %u weights", count);
	enif_free(weights);
	free_named(named, count);
	return rc ? make_error(env, &err)
		  : make_ok_object(env, engine->context, &graph_kind, graph);
}

/* engine_graph(tag, engine, path, [{name, handle}], prepack) -> ok, and {tag, result} to the caller
 */
NIF(engine_graph)
{
	return job_start(env, argc, argv, graph_now, NULL);
}

static ERL_NIF_TERM make_operand(ErlNifEnv *env, const struct tmesh_engine_operand *operand)
{
	ERL_NIF_TERM dims[TMESH_MAX_DIMS];

	for (int32_t n = 0; n < operand->ndim; n++)
		dims[n] = operand->shape[n] >= 0 ? enif_make_int64(env, operand->shape[n])
			  : operand->dims[n]	 ? make_string(env, operand->dims[n])
						 : atoms.nil;
	return enif_make_tuple3(env, make_string(env, operand->name), atoms.dtypes[operand->dtype],
				enif_make_list_from_array(env, dims, (unsigned int)operand->ndim));
}

/* engine_operands(graph) -> {ok, {inputs, outputs}}, lists of {name, dtype, [dimension]} */
NIF(engine_operands)
{
	ERL_NIF_TERM lists[2];
	struct object *graph;
	struct tmesh_error err;

	if (!find_object(env, argv[0], &graph_kind, &graph, &err))
		return make_error(env, &err);
	for (int side = 0; side < 2; side++) {
		size_t count = side ? tmesh_engine_graph_outputs(graph->object)
				    : tmesh_engine_graph_inputs(graph->object);

		lists[side] = enif_make_list(env, 0);
		while (count--) {
			struct tmesh_engine_operand operand = {.size = sizeof(operand)};

			if ((side ? tmesh_engine_graph_output
				  : tmesh_engine_graph_input)(graph->object, count, &operand, &err))
				return make_error(env, &err);
			lists[side] =
				enif_make_list_cell(env, make_operand(env, &operand), lists[side]);
		}
	}
	return make_ok(env, enif_make_tuple2(env, lists[0], lists[1]));
}

/* Take the device tensors of @named, or make others on their memory. */
static int make_values(struct object *engine, const struct named *named, unsigned int count,
		       bool output, struct tmesh_engine_value *values, struct tmesh_error *err)
{
	int rc = 0;

	for (unsigned int i = 0; !rc && i < count; i++) {
		values[i].name = named[i].name;
		values[i].in_place = *named[i].in_place ? named[i].in_place : NULL;
		if (named[i].device) {
			values[i].tensor = tmesh_engine_tensor_ref(named[i].device);
			continue;
		}
		rc = tmesh_engine_tensor_wrap(engine->object, named[i].tensor,
					      TMESH_READ | (output ? TMESH_WRITE : 0), 0,
					      &values[i].tensor, err);
	}
	return rc;
}

static int bind_all(struct object *engine, struct object *graph, const struct named *inputs,
		    unsigned int input_count, const struct named *outputs,
		    unsigned int output_count, struct tmesh_engine_binding **out,
		    struct tmesh_error *err)
{
	size_t count = (size_t)input_count + output_count;
	struct tmesh_engine_value *values = enif_alloc((count + 1) * sizeof(*values));
	int rc;

	if (!values)
		return refuse(err, -ENOMEM, "no memory for %zu values", count);
	memset(values, 0, (count + 1) * sizeof(*values));
	rc = make_values(engine, inputs, input_count, false, values, err);
	if (!rc)
		rc = make_values(engine, outputs, output_count, true, values + input_count, err);
	if (!rc)
		rc = tmesh_engine_bind(graph->object, values, input_count, values + input_count,
				       output_count, out, err);
	for (size_t i = 0; i < count; i++)
		if (values[i].tensor)
			tmesh_engine_tensor_unref(values[i].tensor);
	enif_free(values);
	return rc;
}

/* Return the error of a bind. A sealed output explains a refused write. */
static ERL_NIF_TERM make_bind_error(ErlNifEnv *env, const struct named *outputs, unsigned int count,
				    const struct tmesh_error *err)
{
	for (unsigned int i = 0; i < count; i++) {
		struct tmesh_region *region =
			outputs[i].tensor ? tmesh_tensor_region(outputs[i].tensor) : NULL;

		if (region && tmesh_region_is_sealed(region))
			return make_region_error(env, region, err);
	}
	return make_error(env, err);
}

/* (engine, graph, [{name, handle}], [{name, handle, in_place | nil}]) -> {ok, binding} */
static ERL_NIF_TERM bind_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct named *inputs = NULL, *outputs = NULL;
	unsigned int input_count, output_count;
	struct tmesh_engine_binding *binding;
	struct object *engine, *graph;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!find_object(env, argv[0], &context_kind, &engine, &err) ||
	    !find_object(env, argv[1], &graph_kind, &graph, &err))
		return make_error(env, &err);
	inputs = get_named(env, argv[2], true, &input_count, &err);
	if (!inputs)
		return make_error(env, &err);
	outputs = get_named(env, argv[3], true, &output_count, &err);
	if (!outputs)
		term = make_error(env, &err);
	else if (bind_all(engine, graph, inputs, input_count, outputs, output_count, &binding,
			  &err))
		term = make_bind_error(env, outputs, output_count, &err);
	else
		term = make_ok_object(env, engine->context, &binding_kind, binding);
	free_named(inputs, input_count);
	if (outputs)
		free_named(outputs, output_count);
	return term;
}

/* engine_bind(tag, engine, graph, [{name, handle}], [{name, handle, in_place | nil}]) -> ok, and
 * {tag, result} to the caller */
NIF(engine_bind)
{
	return job_start(env, argc, argv, bind_now, NULL);
}

/* (engine, binding, [{name, handle}]) -> ok */
static ERL_NIF_TERM rebind_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct tmesh_engine_value *values;
	struct object *engine, *binding;
	struct tmesh_error err;
	struct named *named;
	unsigned int count;
	int rc;

	if (!find_object(env, argv[0], &context_kind, &engine, &err) ||
	    !find_object(env, argv[1], &binding_kind, &binding, &err))
		return make_error(env, &err);
	named = get_named(env, argv[2], true, &count, &err);
	if (!named)
		return make_error(env, &err);
	values = enif_alloc((count + (size_t)1) * sizeof(*values));
	if (values) {
		memset(values, 0, (count + (size_t)1) * sizeof(*values));
		rc = make_values(engine, named, count, false, values, &err);
		if (!rc)
			rc = tmesh_engine_binding_rebind(binding->object, values, count, &err);
		for (unsigned int i = 0; i < count; i++)
			if (values[i].tensor)
				tmesh_engine_tensor_unref(values[i].tensor);
		enif_free(values);
	} else {
		rc = refuse(&err, -ENOMEM, "no memory for %u values", count);
	}
	free_named(named, count);
	return rc ? make_error(env, &err) : atoms.ok;
}

/* engine_rebind(tag, engine, binding, [{name, handle}]) -> ok, and {tag, result} to the caller */
NIF(engine_rebind)
{
	return job_start(env, argc, argv, rebind_now, NULL);
}

/* (engine, pages) -> ok */
static ERL_NIF_TERM keep_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct tmesh_region *line;
	struct tmesh_pages *pages;
	struct object *engine;
	struct tmesh_error err;
	int rc;

	if (!find_object(env, argv[0], &context_kind, &engine, &err))
		return make_error(env, &err);
	pages = get_pages(env, argv[1], NULL, &err);
	if (!pages)
		return make_error(env, &err);
	rc = tmesh_pages_lifeline(pages, &line, &err);
	tmesh_pages_unref(pages);
	if (rc)
		return make_error(env, &err);
	rc = tmesh_engine_context_lifeline(engine->object, line, &err);
	tmesh_region_unref(line);
	return rc ? make_error(env, &err) : atoms.ok;
}

/* engine_keep(tag, engine, pages) -> ok, and {tag, result} to the caller */
NIF(engine_keep)
{
	return job_start(env, argc, argv, keep_now, NULL);
}

/* engine_cancellable(context) -> {ok, cancellable} */
NIF(engine_cancellable)
{
	struct tmesh_engine_cancellable *made;
	struct context *context;
	struct tmesh_error err;

	if (!get_context(env, argv[0], &context, &err) ||
	    tmesh_engine_cancellable_create(NULL, &made, &err))
		return make_error(env, &err);
	return make_ok_object(env, context, &cancellable_kind, made);
}

/* engine_cancel(cancellable) -> ok */
NIF(engine_cancel)
{
	struct object *cancellable;
	struct tmesh_error err;

	if (!find_object(env, argv[0], &cancellable_kind, &cancellable, &err))
		return make_error(env, &err);
	tmesh_engine_cancel(cancellable->object);
	jobs_cancel(env, cancellable);
	return atoms.ok;
}

/* (binding) -> ok */
static ERL_NIF_TERM dispatch_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct tmesh_error err;
	struct object *binding;
	int rc;

	if (!find_object(env, argv[0], &binding_kind, &binding, &err))
		return make_error(env, &err);
	rc = tmesh_engine_binding_dispatch_cancellable(binding->object, job_cancellable(), &err);
	return rc ? make_error(env, &err) : atoms.ok;
}

/* engine_dispatch(tag, binding, cancellable | nil) -> ok, and {tag, result} to the caller */
NIF(engine_dispatch)
{
	struct object *binding, *cancellable = NULL;
	struct tmesh_error err;

	if (!find_object(env, argv[1], &binding_kind, &binding, &err) ||
	    (!enif_is_identical(argv[2], atoms.nil) &&
	     !find_object(env, argv[2], &cancellable_kind, &cancellable, &err)))
		return make_error(env, &err);
	return job_start(env, 2, argv, dispatch_now, cancellable);
}
