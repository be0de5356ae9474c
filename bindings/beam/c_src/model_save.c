/* SPDX-License-Identifier: MIT */
/* Write tensors to safetensors files, by libtmesh-model, straight from their mappings. */
#include "nif.h"

struct saved {
	struct tmesh_model_item *items; /* each owns a name and a reference */
	size_t count;
	char **metadata; /* key, value ..., NULL */
};

static void drop_saved(struct saved *saved)
{
	for (size_t i = 0; i < saved->count; i++) {
		tmesh_tensor_unref(saved->items[i].tensor);
		free((char *)saved->items[i].name);
	}
	free(saved->items);
	for (char **text = saved->metadata; text && *text; text++)
		free(*text);
	free(saved->metadata);
}

static bool no_memory(struct tmesh_error *err)
{
	return refuse(err, -ENOMEM, "no memory for a list of tensors") == 0;
}

/* Add the next item, which takes @tensor over, also on failure. */
static bool add_item(struct saved *saved, const char *name, struct tmesh_tensor *tensor,
		     struct tmesh_error *err)
{
	struct tmesh_model_item *item = &saved->items[saved->count];

	*item = (struct tmesh_model_item){strdup(name), tensor};
	if (item->name) {
		saved->count++;
		return true;
	}
	tmesh_tensor_unref(tensor);
	return no_memory(err);
}

static bool add_listed(ErlNifEnv *env, ERL_NIF_TERM term, struct saved *saved,
		       struct tmesh_error *err)
{
	char name[TMESH_BUNDLE_MAX_NAME + 1];
	struct tmesh_tensor *tensor;
	const ERL_NIF_TERM *field;
	struct handle *handle;
	int arity;

	if (!enif_get_tuple(env, term, &arity, &field) || arity != 2 ||
	    !get_text(env, field[0], name, sizeof(name)))
		return refuse(err, -EINVAL, "a tensor has a name of at most %d bytes",
			      TMESH_BUNDLE_MAX_NAME) == 0;
	tensor = get_tensor(env, field[1], &handle, err);
	return tensor && add_item(saved, name, tensor, err);
}

static bool get_listed(ErlNifEnv *env, ERL_NIF_TERM list, struct saved *saved,
		       struct tmesh_error *err)
{
	unsigned int length;
	ERL_NIF_TERM head;

	if (!enif_get_list_length(env, list, &length))
		return refuse(err, -EINVAL, "a bundle, or a list of tensors") == 0;
	saved->items = calloc(length + (size_t)1, sizeof(*saved->items));
	if (!saved->items)
		return no_memory(err);
	while (enif_get_list_cell(env, list, &head, &list)) {
		if (!add_listed(env, head, saved, err))
			return false;
	}
	return true;
}

/* Read the tensors of a bundle. Refuse a type that tmesh lacks: in the file it would become plain
 * bytes, which no reader could restore. */
static bool get_bundled(struct tmesh_bundle *bundle, struct saved *saved, struct tmesh_error *err)
{
	size_t count = tmesh_bundle_count(bundle);

	saved->items = calloc(count + 1, sizeof(*saved->items));
	if (!saved->items)
		return no_memory(err);
	for (size_t i = 0; i < count; i++) {
		struct tmesh_bundle_entry entry;
		struct tmesh_tensor *tensor;

		if (tmesh_bundle_entry(bundle, i, &entry, err))
			return false;
		if (entry.type)
			return refuse(err, -EOPNOTSUPP, "\"%.100s\": safetensors has no %.32s",
				      entry.name, entry.type) == 0;
		if (tmesh_bundle_tensor(bundle, i, &tensor, err) ||
		    !add_item(saved, entry.name, tensor, err))
			return false;
	}
	return true;
}

static bool get_metadata(ErlNifEnv *env, ERL_NIF_TERM list, struct saved *saved,
			 struct tmesh_error *err)
{
	unsigned int length, count = 0;
	ErlNifBinary text;
	ERL_NIF_TERM head;

	if (!enif_get_list_length(env, list, &length) || length % 2)
		return refuse(err, -EINVAL, "metadata is a map of texts") == 0;
	saved->metadata = calloc(length + (size_t)1, sizeof(*saved->metadata));
	if (!saved->metadata)
		return no_memory(err);
	while (enif_get_list_cell(env, list, &head, &list)) {
		if (!enif_inspect_binary(env, head, &text) || memchr(text.data, 0, text.size))
			return refuse(err, -EINVAL, "metadata is a map of texts without zeros") ==
			       0;
		saved->metadata[count] = strndup((const char *)text.data, text.size);
		if (!saved->metadata[count++])
			return no_memory(err);
	}
	return true;
}

static bool get_tensors(ErlNifEnv *env, ERL_NIF_TERM term, struct saved *saved,
			struct tmesh_error *err)
{
	struct tmesh_bundle *bundle;
	bool got;

	if (enif_is_list(env, term))
		return get_listed(env, term, saved, err);
	bundle = get_bundle(env, term, NULL, err);
	got = bundle && get_bundled(bundle, saved, err);
	tmesh_bundle_unref(bundle);
	return got;
}

static ERL_NIF_TERM save(ErlNifEnv *env, struct context *context, const char *path,
			 const struct saved *saved, struct tmesh_model_save_opts *opts)
{
	struct tmesh_error err;
	int rc;

	if (!begin_files(context, &err))
		return make_error(env, &err);
	opts->metadata = (const char *const *)saved->metadata;
	rc = tmesh_model_save(path, saved->items, saved->count, opts, &err);
	end_files(context);
	return rc ? make_error(env, &err) : atoms.ok;
}

/* model_save(context, bundle | [{name, handle}], path, max_shard_bytes, [key, value ...], nil |
 * pid) -> ok; the process receives the messages of model_load(). */
NIF(model_save)
{
	struct tmesh_model_save_opts opts = {.size = sizeof(opts), .progress = model_progress};
	struct saved saved = {0};
	struct context *context;
	struct model_watch watch;
	ErlNifUInt64 most;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	char path[4096];

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[2], path, sizeof(path)) || !enif_get_uint64(env, argv[3], &most) ||
	    !get_watch(env, argv[5], argv[2], &watch))
		return make_refusal(
			env, -EINVAL,
			"a file has a path of less than %zu bytes, a number of bytes of a "
			"shard, and its progress goes to a process of this VM",
			sizeof(path));
	opts.max_shard_bytes = most;
	opts.progress_data = &watch;
	if (get_tensors(env, argv[1], &saved, &err) && get_metadata(env, argv[4], &saved, &err))
		term = save(env, context, path, &saved, &opts);
	else
		term = make_error(env, &err);
	if (watch.message)
		enif_free_env(watch.message);
	drop_saved(&saved);
	return term;
}
