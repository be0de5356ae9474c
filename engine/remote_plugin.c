// SPDX-License-Identifier: MIT
/* Sessions and bindings of an engine in another process, as functions of a plug-in. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "remote.h"

#define MAX_OPERANDS 65536

struct remote_session {
	struct remote *remote;
	char *path;
	bool prepack;
	char **names;
	struct wire_tensor *weights;
	size_t weight_count;
	/* The engine's description of its operands. A new process must give the same. */
	char *operands;
	size_t operand_bytes;
	struct remote_word *word; /* the word for its end */
	uint64_t generation;
	uint32_t id;
};

struct remote_binding {
	struct remote *remote;
	struct remote_session *session;
	const struct plugin_session *operands;
	struct wire_tensor *tensors; /* inputs, then outputs, like @places */
	struct place {
		size_t operand;
		const void *data;
		int64_t in_place; /* of an output: the input that it overwrites, or -1 */
		/* The caller's memory, if the tensor is a stand-in for it; else NULL. */
		void *host;
		uint64_t bytes;
	} * places;
	size_t inputs, count;
	struct remote_word *word; /* the word for its end */
	uint64_t generation;
	uint32_t id;
};

static const char *version(void *engine)
{
	return ((struct remote *)engine)->version;
}

static void close_remote(void *engine)
{
	remote_free(engine);
}

/* Let the engine close a graph that it has opened in this turn, and that no session will have. */
static void close_made(struct remote *remote, uint32_t id)
{
	struct remote_word *word = remote_word_new();

	if (word)
		remote_word_queue(remote, word, WIRE_GRAPH_CLOSE, id, remote->generation);
	else
		remote_unlink(remote); /* the engine closes everything of the link */
}

/* Make the session in the process of the current link. */
static int session_make(struct remote_session *session, struct tmesh_error *err)
{
	struct remote *remote = session->remote;
	struct wire text;
	int rc;

	if (remote->socket >= 0 && session->generation == remote->generation)
		return 0;
	rc = remote_link(remote, err);
	if (rc)
		return rc;
	text = remote_text(remote);
	wire_put_text(&text, session->path);
	wire_put_u32(&text, session->prepack);
	wire_put_u32(&text, (uint32_t)session->weight_count);
	for (size_t i = 0; i < session->weight_count; i++)
		wire_put_text(&text, session->names[i]);
	rc = wire_put_tensors(&text, session->weights, session->weight_count, err);
	if (!rc)
		rc = remote_call(remote, WIRE_GRAPH_OPEN, 0, &text, &session->id, &text, err);
	if (rc)
		return rc;
	if (!session->operands) {
		session->operands = malloc(text.bytes + 1);
		if (!session->operands) {
			close_made(remote, session->id);
			return tmesh_fail(err, -ENOMEM, "no memory for a graph's description");
		}
		memcpy(session->operands, text.text, text.bytes);
		session->operand_bytes = text.bytes;
	} else if (session->operand_bytes != text.bytes ||
		   memcmp(session->operands, text.text, text.bytes)) {
		close_made(remote, session->id);
		return tmesh_fail(
			err, -ESTALE,
			"%.150s was replaced by a graph with other inputs and outputs, and "
			"the engine was started anew: open it again",
			session->path);
	}
	session->generation = remote->generation;
	return 0;
}

static int read_operands(struct wire *wire, struct plugin_operand **out, size_t *out_count,
			 struct tmesh_error *err)
{
	size_t count = wire_get_u32(wire);
	struct plugin_operand *operands;

	if (wire->wrong || count > MAX_OPERANDS)
		return tmesh_fail(err, -EPROTO,
				  "the engine's process sent a malformed description of the graph: "
				  "start it anew, from the same release as this library");
	operands = calloc(count + 1, sizeof(*operands));
	if (!operands)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph's description");
	*out = operands;
	for (*out_count = 0; *out_count < count; ++*out_count) {
		struct plugin_operand *operand = &operands[*out_count];

		operand->name = strdup(wire_get_text(wire));
		operand->dtype = (enum tmesh_dtype)wire_get_u32(wire);
		operand->ndim = (int32_t)wire_get_u32(wire);
		if (!operand->name || operand->ndim < 0 || operand->ndim > TMESH_MAX_DIMS ||
		    !tmesh_dtype_bits(operand->dtype))
			wire->wrong = true;
		for (int32_t n = 0; !wire->wrong && n < operand->ndim; n++) {
			const char *dim;

			operand->shape[n] = (int64_t)wire_get_u64(wire);
			dim = wire_get_text(wire);
			if (*dim)
				operand->dims[n] = strdup(dim);
		}
		if (wire->wrong) {
			++*out_count; /* freed with the others */
			return tmesh_fail(
				err, -EPROTO,
				"the engine's process sent a malformed description of the graph: "
				"start it anew, from the same release as this library");
		}
	}
	return 0;
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

static void session_close(void *engine, struct plugin_session *plugin)
{
	struct remote_session *session = plugin->handle;
	struct remote *remote = engine;

	if (session->generation)
		remote_word_queue(remote, session->word, WIRE_GRAPH_CLOSE, session->id,
				  session->generation);
	else
		free(session->word);
	for (size_t i = 0; session->names && i < session->weight_count; i++)
		free(session->names[i]);
	wire_tensors_free(session->weights, session->weight_count);
	free_operands(plugin->inputs, plugin->input_count);
	free_operands(plugin->outputs, plugin->output_count);
	free(session->names);
	free(session->operands);
	free(session->path);
	free(session);
	*plugin = (struct plugin_session){0};
}

/*
 * Make the path absolute, because the engine's working directory differs. Resolve only the folder:
 * if the file is a link, as in the cache of a model hub, the library looks beside the link for
 * other files.
 */
static char *whole_path(const char *path)
{
	const char *name = strrchr(path, '/');
	char folder[PATH_MAX], *real, *whole;
	size_t length;

	name = name ? name + 1 : path;
	length = (size_t)(name - path);
	if (length >= sizeof(folder)) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	memcpy(folder, length ? path : ".", length ? length : 1);
	folder[length ? length : 1] = '\0';
	real = access(path, F_OK) ? NULL : realpath(folder, NULL);
	if (!real || asprintf(&whole, "%s/%s", real, name) < 0)
		whole = NULL;
	free(real);
	return whole;
}

/* Explain -EACCES: the engine may read the link's folder but not its target's. */
static int explain_link(const struct remote_session *session, int rc, struct tmesh_error *err)
{
	char *target = rc == -EACCES ? realpath(session->path, NULL) : NULL;

	if (target && strcmp(target, session->path))
		tmesh_fail(err, rc,
			   "tmesh-engine may not read what the link %.40s leads to: give it "
			   "(--models) a folder that has both the link and %.140s",
			   strrchr(session->path, '/') + 1, target);
	free(target);
	return rc;
}

static int session_new(struct remote *remote, const struct plugin_session_opts *opts,
		       struct remote_session *session, struct tmesh_error *err)
{
	session->remote = remote;
	session->prepack = opts->prepack;
	session->path = whole_path(opts->path);
	if (!session->path)
		return tmesh_fail_errno(err, opts->path);
	session->names = calloc(opts->weight_count + 1, sizeof(char *));
	session->weights = calloc(opts->weight_count + 1, sizeof(*session->weights));
	session->word = remote_word_new();
	if (!session->names || !session->weights || !session->word)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu weights", opts->weight_count);
	for (size_t i = 0; i < opts->weight_count; i++) {
		session->names[i] = strdup(opts->weights[i].name);
		session->weights[i].tensor = tmesh_tensor_ref(opts->weights[i].tensor);
		session->weight_count++;
		if (!session->names[i])
			return tmesh_fail(err, -ENOMEM, "no memory for a weight's name");
	}
	return 0;
}

static int session_open(void *engine, const struct plugin_session_opts *opts,
			struct plugin_session *plugin, struct tmesh_error *err)
{
	struct remote *remote = engine;
	struct remote_session *session = calloc(1, sizeof(*session));
	struct cancel_hook hook;
	struct wire text;
	int rc;

	if (!session)
		return tmesh_fail(err, -ENOMEM, "no memory for a session");
	plugin->handle = session;
	rc = session_new(remote, opts, session, err);
	if (!rc)
		rc = remote_enter(remote, &hook, err);
	if (!rc) {
		do
			rc = session_make(session, err);
		while (rc == REMOTE_AGAIN);
		remote_leave(remote, &hook);
		rc = explain_link(session, rc, err);
	}
	text = (struct wire){.text = session->operands, .bytes = session->operand_bytes};
	if (!rc)
		rc = read_operands(&text, &plugin->inputs, &plugin->input_count, err);
	if (!rc)
		rc = read_operands(&text, &plugin->outputs, &plugin->output_count, err);
	if (rc)
		session_close(engine, plugin);
	return rc;
}

static int binding_make(struct remote_binding *binding, struct tmesh_error *err)
{
	const struct plugin_session *operands = binding->operands;
	struct remote *remote = binding->remote;
	struct wire text;
	int rc = session_make(binding->session, err);

	if (rc || binding->generation == remote->generation)
		return rc;
	text = remote_text(remote);
	wire_put_u32(&text, (uint32_t)binding->inputs);
	wire_put_u32(&text, (uint32_t)binding->count);
	for (size_t i = 0; i < binding->count; i++) {
		const struct place *place = &binding->places[i];

		wire_put_text(&text, (i < binding->inputs ? operands->inputs
							  : operands->outputs)[place->operand]
					     .name);
		wire_put_text(
			&text,
			place->in_place < 0
				? ""
				: operands->inputs[binding->places[place->in_place].operand].name);
	}
	rc = wire_put_tensors(&text, binding->tensors, binding->count, err);
	if (!rc)
		rc = remote_call(remote, WIRE_BIND, binding->session->id, &text, &binding->id, NULL,
				 err);
	if (!rc)
		binding->generation = remote->generation;
	return rc;
}

static void binding_free(struct remote_binding *binding)
{
	free(binding->word);
	wire_tensors_free(binding->tensors, binding->count);
	free(binding->places);
	free(binding);
}

static void unbind(void *data)
{
	struct remote_binding *binding = data;

	remote_word_queue(binding->remote, binding->word, WIRE_UNBIND, binding->id,
			  binding->generation);
	binding->word = NULL;
	binding_free(binding);
}

/* Make a region for memory outside of regions: an engine in another process can use only
 * regions. */
static int stand_in(struct remote *remote, enum tmesh_dtype dtype, int32_t ndim,
		    const int64_t *shape, struct tmesh_tensor **out, struct tmesh_error *err)
{
	const struct tmesh_region_opts opts = {.size = sizeof(opts),
					       .label = "array for tmesh-engine"};

	return tmesh_tensor_create(remote->ctx, dtype, ndim, shape, &opts, out, err);
}

/* Return the size that the inputs give to a dimension of this name, or -1. */
static int64_t number_of(const struct plugin_session *operands, const char *name,
			 const struct plugin_array *inputs, size_t count)
{
	for (size_t i = 0; name && i < count; i++)
		for (int32_t n = 0; n < inputs[i].ndim; n++) {
			const char *dim = operands->inputs[inputs[i].operand].dims[n];

			if (dim && !strcmp(dim, name))
				return inputs[i].shape[n];
		}
	return -1;
}

/* Make memory for an output that is left to the engine. It is memory of this process, so the shape
 * must be known before the run. */
static int leave_to_engine(struct remote_binding *binding, size_t i,
			   const struct plugin_array *array, const struct plugin_array *inputs,
			   struct tmesh_error *err)
{
	const struct plugin_operand *operand = &binding->operands->outputs[array->operand];
	int64_t shape[TMESH_MAX_DIMS];

	for (int32_t n = 0; n < operand->ndim; n++) {
		shape[n] = operand->shape[n];
		if (shape[n] < 0)
			shape[n] = number_of(binding->operands, operand->dims[n], inputs,
					     binding->inputs);
		if (shape[n] < 0)
			return tmesh_fail(err, -EOPNOTSUPP,
					  "output \"%.80s\" has a shape that does not follow from "
					  "the inputs, and an engine in another process allocates "
					  "nothing: give a device tensor or memory",
					  operand->name);
	}
	return stand_in(binding->remote, operand->dtype, operand->ndim, shape,
			&binding->tensors[i].tensor, err);
}

/* Put an output on the memory of input @j. Both share one tensor: the one that has this memory. */
static void share(struct remote_binding *binding, size_t i, size_t j,
		  const struct plugin_array *array)
{
	struct wire_tensor *input = &binding->tensors[j];

	binding->places[i].in_place = (int64_t)j;
	if (array->tensor && binding->places[j].host) {
		tmesh_tensor_unref(input->tensor);
		input->tensor = tmesh_tensor_ref(array->tensor);
		binding->places[j].host = NULL;
	}
	binding->places[i].host = binding->places[j].host;
	binding->tensors[i].tensor =
		tmesh_tensor_ref(array->tensor ? array->tensor : input->tensor);
}

static int place(struct remote_binding *binding, size_t i, const struct plugin_array *array,
		 const struct plugin_array *inputs, struct tmesh_error *err)
{
	bool output = i >= binding->inputs;
	int rc;

	binding->tensors[i].write = output;
	binding->places[i] = (struct place){.operand = array->operand,
					    .data = array->data,
					    .in_place = -1,
					    .bytes = array->bytes};
	/* engine_resolve() accepts an overlap only if the caller declared it. */
	for (size_t j = 0; output && array->bytes && j < binding->inputs; j++)
		if (binding->places[j].data == array->data && binding->places[j].bytes) {
			share(binding, i, j, array);
			return 0;
		}
	if (array->tensor) {
		binding->tensors[i].tensor = tmesh_tensor_ref(array->tensor);
		return 0;
	}
	if (!array->data)
		return leave_to_engine(binding, i, array, inputs, err);
	rc = stand_in(binding->remote, array->dtype, array->ndim, array->shape,
		      &binding->tensors[i].tensor, err);
	if (!rc)
		binding->places[i].host = array->data;
	return rc;
}

/* Copy memory outside of regions to its stand-ins before a run, and back after it. */
static int copy_in(const struct remote_binding *binding, struct tmesh_error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < binding->inputs; i++) {
		const struct place *place = &binding->places[i];

		if (place->host && place->bytes)
			rc = tmesh_region_write(tmesh_tensor_region(binding->tensors[i].tensor), 0,
						place->host, place->bytes, err);
	}
	return rc;
}

static int copy_out(const struct remote_binding *binding, struct tmesh_error *err)
{
	int rc = 0;

	for (size_t i = binding->inputs; !rc && i < binding->count; i++) {
		const struct place *place = &binding->places[i];

		if (place->host && place->bytes)
			rc = tmesh_tensor_read(binding->tensors[i].tensor, place->host,
					       place->bytes, err);
	}
	return rc;
}

static int bind(void *engine, struct plugin_session *session, const struct plugin_array *inputs,
		size_t input_count, const struct plugin_array *outputs, size_t output_count,
		void **out, struct tmesh_error *err)
{
	struct remote *remote = engine;
	struct remote_binding *binding = calloc(1, sizeof(*binding));
	size_t count = input_count + output_count;
	struct cancel_hook hook;
	int rc = 0;

	if (!binding)
		return tmesh_fail(err, -ENOMEM, "no memory for a binding");
	binding->remote = remote;
	binding->session = session->handle;
	binding->operands = session;
	binding->inputs = input_count;
	binding->count = count;
	binding->tensors = calloc(count + 1, sizeof(*binding->tensors));
	binding->places = calloc(count + 1, sizeof(*binding->places));
	binding->word = remote_word_new();
	if (!binding->tensors || !binding->places || !binding->word)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a binding of %zu operands", count);
	for (size_t i = 0; !rc && i < count; i++)
		rc = place(binding, i, i < input_count ? &inputs[i] : &outputs[i - input_count],
			   inputs, err);
	if (!rc)
		rc = remote_enter(remote, &hook, err);
	if (!rc) {
		do
			rc = binding_make(binding, err);
		while (rc == REMOTE_AGAIN);
		remote_leave(remote, &hook);
	}
	if (rc)
		binding_free(binding);
	else
		*out = binding;
	return rc;
}

/* Rebind in the engine, which has the binding by the current link. */
static int rebind_there(struct remote_binding *binding, const struct plugin_array *inputs,
			const size_t *changed, const struct wire_tensor *tensors, size_t count,
			struct tmesh_error *err)
{
	struct wire text = remote_text(binding->remote);
	int rc;

	wire_put_u32(&text, (uint32_t)count);
	for (size_t i = 0; i < count; i++)
		wire_put_text(&text, inputs[changed[i]].name);
	rc = wire_put_tensors(&text, tensors, count, err);
	if (!rc)
		rc = remote_call(binding->remote, WIRE_REBIND, binding->id, &text, NULL, NULL, err);
	/* The engine died before it began. The next process gets the binding in its new state. */
	return rc == REMOTE_AGAIN ? 0 : rc;
}

static void exchange(struct remote_binding *binding, const size_t *changed,
		     struct wire_tensor *tensors, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct wire_tensor before = binding->tensors[changed[i]];

		binding->tensors[changed[i]] = tensors[i];
		tensors[i] = before;
	}
}

/* Return the tensor of an input that replaces another. */
static int replacement(const struct remote_binding *binding, size_t i,
		       const struct plugin_array *array, struct tmesh_tensor **out,
		       struct tmesh_error *err)
{
	const struct place *place = &binding->places[i];

	if (array->tensor) {
		*out = tmesh_tensor_ref(array->tensor);
		return 0;
	}
	/* Keep the stand-in of unchanged memory: an output may share it. */
	if (place->host && place->data == array->data && place->bytes == array->bytes) {
		*out = tmesh_tensor_ref(binding->tensors[i].tensor);
		return 0;
	}
	return stand_in(binding->remote, array->dtype, array->ndim, array->shape, out, err);
}

static int rebind(void *data, const struct plugin_array *inputs, const size_t *changed,
		  size_t count, struct tmesh_error *err)
{
	struct remote_binding *binding = data;
	struct remote *remote = binding->remote;
	struct wire_tensor *tensors = calloc(count + 1, sizeof(*tensors));
	struct cancel_hook hook;
	int rc = 0;

	if (!tensors)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu operands", count);
	for (size_t i = 0; !rc && i < count; i++)
		rc = replacement(binding, changed[i], &inputs[changed[i]], &tensors[i].tensor, err);
	if (!rc)
		rc = remote_enter(remote, &hook, err);
	if (!rc) {
		if (remote->socket >= 0 && binding->generation == remote->generation)
			rc = rebind_there(binding, inputs, changed, tensors, count, err);
		if (!rc)
			exchange(binding, changed, tensors, count);
		for (size_t i = 0; !rc && i < count; i++) {
			const struct plugin_array *array = &inputs[changed[i]];
			struct place *place = &binding->places[changed[i]];

			place->data = array->data;
			place->bytes = array->bytes;
			place->host = array->tensor ? NULL : array->data;
		}
		remote_leave(remote, &hook);
	}
	wire_tensors_free(tensors, count);
	return rc;
}

static int remote_run(void *data, struct tmesh_error *err)
{
	struct remote_binding *binding = data;
	struct remote *remote = binding->remote;
	struct cancel_hook hook;
	int rc = copy_in(binding, err);

	if (!rc)
		rc = remote_enter(remote, &hook, err);
	if (rc)
		return rc;
	do {
		rc = binding_make(binding, err);
		if (!rc)
			rc = remote_call(remote, WIRE_RUN, binding->id, NULL, NULL, NULL, err);
	} while (rc == REMOTE_AGAIN);
	remote_leave(remote, &hook);
	return rc ? rc : copy_out(binding, err);
}

/* Return an output. The engine's own process has checked where it was written. */
static int result(void *data, size_t output, struct plugin_result *out, struct tmesh_error *err)
{
	struct remote_binding *binding = data;
	size_t i = binding->inputs + output;
	const struct place *place = &binding->places[i];
	struct tmesh_tensor *tensor = binding->tensors[i].tensor;
	const struct tmesh_layout *layout = tmesh_tensor_layout(tensor);
	int rc;

	*out = (struct plugin_result){.data = (void *)place->data};
	if (place->data)
		return 0;
	rc = tmesh_tensor_data(tensor, TMESH_READ | TMESH_WRITE, &out->data, err);
	if (rc)
		return rc;
	out->handle = tmesh_tensor_ref(tensor);
	out->dtype = layout->dtype;
	out->ndim = layout->ndim;
	memcpy(out->shape, layout->shape, (size_t)layout->ndim * sizeof(*layout->shape));
	return 0;
}

static void release(void *engine, void *handle)
{
	tmesh_tensor_unref(handle);
}

const struct tmesh_engine_plugin remote_plugin = {
	.abi = TMESH_ENGINE_PLUGIN_ABI,
	.alignment = 1,
	.close = close_remote,
	.version = version,
	.session_open = session_open,
	.session_close = session_close,
	.bind = bind,
	.run = remote_run,
	.result = result,
	.release = release,
	.unbind = unbind,
	.rebind = rebind,
};
