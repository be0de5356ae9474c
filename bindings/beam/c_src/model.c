/* SPDX-License-Identifier: MIT */
/*
 * Files of tensors, by libtmesh-model.
 *
 * Other processes find a loaded model as long as the library's object lives. So an origin owns the
 * object. The term of the model and the handle of each tensor keep the origin. Each mapping that
 * binaries point into has a reference of its own. All binaries of a model share one mapping.
 */
#include "nif.h"

#include <stdio.h>

#include "common/shown.h"

/* The resource of a model's term. */
struct model {
	pthread_mutex_t lock;
	struct origin *origin; /* NULL: released; guarded by @lock */
	struct context *context;
};

void model_dtor(ErlNifEnv *env, void *object)
{
	struct model *model = object;

	if (model->origin)
		enif_release_resource(model->origin);
	enif_release_resource(model->context);
	pthread_mutex_destroy(&model->lock);
}

static void drop_model(void *object)
{
	tmesh_model_unref(object);
}

void origin_dtor(ErlNifEnv *env, void *object)
{
	struct origin *origin = object;

	if (origin->pinned)
		enif_release_resource(origin->pinned);
	if (origin->model)
		garbage_put(env, origin->garbage, origin->model);
	else
		garbage_free(origin->garbage);
	pthread_mutex_destroy(&origin->lock);
}

/* Return {ok, term} of a model. The term takes @made over, also on failure. */
static ERL_NIF_TERM make_model(ErlNifEnv *env, struct context *context, struct tmesh_model *made)
{
	struct origin *origin = enif_alloc_resource(origin_type, sizeof(*origin));
	struct model *model;
	ERL_NIF_TERM term;

	*origin = (struct origin){.garbage = garbage_alloc(drop_model)};
	pthread_mutex_init(&origin->lock, NULL);
	if (!origin->garbage) {
		tmesh_model_unref(made);
		enif_release_resource(origin);
		return make_refusal(env, -ENOMEM, "no memory for a model");
	}
	origin->model = made;
	model = enif_alloc_resource(model_type, sizeof(*model));
	*model = (struct model){.origin = origin, .context = context};
	enif_keep_resource(context);
	pthread_mutex_init(&model->lock, NULL);
	term = make_ok(env, enif_make_resource(env, model));
	enif_release_resource(model);
	return term;
}

/* Return the caller's reference on the origin of a term, or NULL with @err filled. */
static struct origin *get_origin(ErlNifEnv *env, ERL_NIF_TERM term, struct model **model,
				 struct tmesh_error *err)
{
	struct origin *origin = NULL;

	if (enif_get_resource(env, term, model_type, (void **)model)) {
		pthread_mutex_lock(&(*model)->lock);
		origin = (*model)->origin;
		if (origin)
			enif_keep_resource(origin);
		pthread_mutex_unlock(&(*model)->lock);
	}
	if (!origin)
		refuse(err, -EBADF, "no open model: it was released, or is another VM's");
	return origin;
}

bool get_watch(ErlNifEnv *env, ERL_NIF_TERM term, ERL_NIF_TERM path, struct model_watch *watch)
{
	*watch = (struct model_watch){.env = env, .path = path};
	if (enif_is_identical(term, atoms.nil))
		return true;
	if (!enif_get_local_pid(env, term, &watch->pid))
		return false;
	watch->message = enif_alloc_env();
	return true;
}

int model_progress(void *data, const struct tmesh_model_progress *progress)
{
	struct model_watch *watch = data;
	ErlNifEnv *message = watch->message;
	ERL_NIF_TERM map;

	if (!enif_is_current_process_alive(watch->env))
		return 1;
	if (!message)
		return 0;

	const struct member members[] = {
		{"bytes_done", enif_make_uint64(message, progress->bytes_done)},
		{"bytes_total", enif_make_uint64(message, progress->bytes_total)},
		{"waiting", enif_make_atom(message, progress->waiting ? "true" : "false")},
	};

	map = MAKE_MAP(message, members);
	enif_send(watch->env, &watch->pid, message,
		  enif_make_tuple3(message, enif_make_atom(message, "tmesh_model"),
				   enif_make_copy(message, watch->path), map));
	enif_clear_env(message);
	return 0;
}

/* Reserve a dirty scheduler for a large file, which holds it for long. Calls beyond the limit try
 * again without one. */
bool begin_files(struct context *context, struct tmesh_error *err)
{
	unsigned int most = context->max_opening > 1 ? context->max_opening / 2 : 1;

	if (atomic_fetch_add(&context->loading, 1) < most)
		return true;
	end_files(context);
	return refuse(err, -EAGAIN, "enough dirty schedulers read or write models already") == 0;
}

void end_files(struct context *context)
{
	atomic_fetch_sub(&context->loading, 1);
}

/* model_load(context, path, keep, alone, hash, label, nil | pid, lenient) -> {ok, model}; the
 * process is sent {tmesh_model, path, #{bytes_done => _, bytes_total => _, waiting => _}} */
NIF(model_load)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .progress = model_progress};
	char label[TMESH_LABEL_LEN + 1], path[4096];
	struct tmesh_model *model = NULL;
	struct model_watch watch;
	bool keep, alone, hash, lenient;
	struct context *context;
	struct tmesh_error err;

	if (!get_context(env, argv[0], &context, &err) ||
	    !get_bool(env, argv[2], "keep", &keep, &err) ||
	    !get_bool(env, argv[3], "alone", &alone, &err) ||
	    !get_bool(env, argv[4], "hash", &hash, &err) ||
	    !get_bool(env, argv[7], "lenient", &lenient, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[1], path, sizeof(path)) ||
	    !get_text(env, argv[5], label, sizeof(label)) ||
	    !get_watch(env, argv[6], argv[1], &watch))
		return make_refusal(
			env, -EINVAL,
			"a model has a path of less than %zu bytes, a label of at most %d, and "
			"its progress goes to a process of this VM",
			sizeof(path), TMESH_LABEL_LEN);
	opts.flags = (keep ? TMESH_MODEL_KEEP : 0) | (alone ? TMESH_MODEL_ALONE : 0) |
		     (hash ? TMESH_MODEL_HASH : 0) | (lenient ? TMESH_MODEL_LENIENT : 0);
	opts.label = *label ? label : NULL;
	opts.progress_data = &watch;
	if (begin_files(context, &err)) {
		if (tmesh_model_load(context->ctx, path, &opts, &model, &err))
			model = NULL;
		end_files(context);
	}
	if (watch.message)
		enif_free_env(watch.message);
	return model ? make_model(env, context, model) : make_error(env, &err);
}

static ERL_NIF_TERM make_report(ErlNifEnv *env, const struct tmesh_model_report *report)
{
	const char *method = tmesh_model_method_name(report->method);
	char hash[2 * sizeof(report->hash) + 1];
	bool hashed = false;

	for (size_t i = 0; i < sizeof(report->hash); i++) {
		snprintf(hash + 2 * i, 3, "%02x", report->hash[i]);
		hashed |= report->hash[i];
	}

	const struct member members[] = {
		{"method", method ? enif_make_atom(env, method) : atoms.nil},
		{"hash", hashed ? make_string(env, hash) : atoms.nil},
	};

	return SHOW(env, MAKE_MAP(env, members), shown_model_report, report);
}

/* Return {name, #{...}} of a tensor as its file describes it. */
static ERL_NIF_TERM make_entry(ErlNifEnv *env, size_t index,
			       const struct tmesh_model_tensor *tensor)
{
	const struct member members[] = {
		{"index", enif_make_uint64(env, index)},
		{"type", make_string(env, tensor->type)},
		{"dtype", tensor->dtype ? atoms.dtypes[tensor->dtype] : atoms.nil},
		{"shape", make_dims(env, tensor->shape, tensor->ndim)},
		{"byte_size", enif_make_uint64(env, tensor->bytes)},
		{"file", enif_make_uint(env, tensor->file)},
		{"file_offset", enif_make_uint64(env, tensor->file_offset)},
	};

	return enif_make_tuple2(env, make_string(env, tensor->name), MAKE_MAP(env, members));
}

static bool make_info(ErlNifEnv *env, const struct tmesh_model *model, ERL_NIF_TERM *term,
		      struct tmesh_error *err)
{
	const char *format = tmesh_model_format_name(tmesh_model_format(model));
	struct tmesh_model_report report = {.size = sizeof(report)};
	ERL_NIF_TERM list = enif_make_list(env, 0);

	if (tmesh_model_report(model, &report, err))
		return false;
	for (size_t i = tmesh_model_tensors(model); i--;) {
		struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};

		if (tmesh_model_tensor(model, i, &tensor, err))
			return false;
		list = enif_make_list_cell(env, make_entry(env, i, &tensor), list);
	}
	*term = enif_make_tuple3(env, enif_make_atom(env, format), list, make_report(env, &report));
	return true;
}

/* model_info(model) -> {ok, {safetensors | gguf, [{name, #{type => _, ...}}], report}} */
NIF(model_info)
{
	struct origin *origin;
	struct tmesh_error err;
	struct model *model;
	ERL_NIF_TERM term;
	bool made;

	origin = get_origin(env, argv[0], &model, &err);
	if (!origin)
		return make_error(env, &err);
	made = make_info(env, origin->model, &term, &err);
	enif_release_resource(origin);
	return made ? make_ok(env, term) : make_error(env, &err);
}

/* model_metadata(model) -> {ok, json} */
NIF(model_metadata)
{
	struct origin *origin;
	struct tmesh_error err;
	struct model *model;
	ERL_NIF_TERM term;
	char *text;
	int rc;

	origin = get_origin(env, argv[0], &model, &err);
	if (!origin)
		return make_error(env, &err);
	rc = tmesh_model_metadata_json(origin->model, 0, &text, &err);
	enif_release_resource(origin);
	if (rc)
		return make_error(env, &err);
	term = make_ok(env, make_string(env, text));
	free(text);
	return term;
}

/* model_tensor(model, index) -> {ok, {handle, ref}} */
NIF(model_tensor)
{
	struct tmesh_tensor *tensor;
	struct origin *origin;
	struct tmesh_error err;
	ErlNifUInt64 index;
	struct model *model;
	ERL_NIF_TERM term;
	bool made;

	if (!enif_get_uint64(env, argv[1], &index))
		return make_refusal(env, -EINVAL, "an index is a number");
	origin = get_origin(env, argv[0], &model, &err);
	if (!origin)
		return make_error(env, &err);
	made = !tmesh_model_tensor_open(origin->model, index, &tensor, &err) &&
	       make_handle_of(env, model->context, tensor, origin, &term, &err);
	enif_release_resource(origin);
	return made ? make_ok(env, term) : make_error(env, &err);
}

/* model_bundle(model) -> {ok, bundle} */
NIF(model_bundle)
{
	struct tmesh_bundle *bundle;
	struct origin *origin;
	struct tmesh_error err;
	struct model *model;
	int rc;

	origin = get_origin(env, argv[0], &model, &err);
	if (!origin)
		return make_error(env, &err);
	rc = tmesh_model_bundle(model->context->ctx, origin->model, &bundle, &err);
	enif_release_resource(origin);
	return rc ? make_error(env, &err) : make_bundle(env, model->context, bundle);
}

/* model_release(model) -> ok, also when repeated */
NIF(model_release)
{
	struct origin *origin;
	struct model *model;

	if (!enif_get_resource(env, argv[0], model_type, (void **)&model))
		return make_refusal(env, -EBADF, "not a model of this VM");
	pthread_mutex_lock(&model->lock);
	origin = model->origin;
	model->origin = NULL;
	pthread_mutex_unlock(&model->lock);
	if (origin)
		enif_release_resource(origin);
	return atoms.ok;
}
