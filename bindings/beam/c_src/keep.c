/* SPDX-License-Identifier: MIT */
/* Kept regions: sealed memory under a name, which outlives every process. */
#include "nif.h"

#include <tmesh/keep.h>

#include "common/shown.h"

static bool get_name(ErlNifEnv *env, ERL_NIF_TERM term, char name[TMESH_KEPT_NAME_LEN + 1],
		     struct tmesh_error *err)
{
	return get_text(env, term, name, TMESH_KEPT_NAME_LEN + 1) ||
	       refuse(err, -EINVAL,
		      "a kept name is a string of 1 to %d bytes of UTF-8 without control "
		      "characters",
		      TMESH_KEPT_NAME_LEN) == 0;
}

/* {replace, lifetime_ns | 0, mode, gid | nil} */
static bool get_opts(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_keep_opts *opts,
		     struct tmesh_error *err)
{
	const ERL_NIF_TERM *field;
	ErlNifUInt64 lifetime_ns;
	unsigned int gid = 0;
	int arity;
	bool replace;

	*opts = (struct tmesh_keep_opts){.size = sizeof(*opts)};
	if (!enif_get_tuple(env, term, &arity, &field) || arity != 4 ||
	    !enif_get_uint64(env, field[1], &lifetime_ns) ||
	    !enif_get_uint(env, field[2], &opts->mode) ||
	    (!enif_is_identical(field[3], atoms.nil) && !enif_get_uint(env, field[3], &gid)))
		return refuse(err, -EINVAL,
			      "mode must be permission bits such as 0o600, gid a group's number") ==
		       0;
	if (!get_bool(env, field[0], "replace", &replace, err))
		return false;
	opts->lifetime_ns = lifetime_ns;
	opts->flags = replace ? TMESH_KEEPING_REPLACE : 0;
	if (!enif_is_identical(field[3], atoms.nil)) {
		opts->flags |= TMESH_KEEPING_GID;
		opts->gid = gid;
	}
	return true;
}

/* Return a reference on the region of a tensor that fills it. */
static struct tmesh_region *get_whole(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_error *err)
{
	struct tmesh_region *region = NULL;
	struct tmesh_tensor *tensor;
	struct tmesh_layout whole;
	struct handle *handle;

	tensor = get_tensor(env, term, &handle, err);
	if (!tensor)
		return NULL;
	if (!describe_region(tmesh_tensor_region(tensor), &whole, err)) {
		if (same_layout(&whole, tmesh_tensor_layout(tensor)))
			region = tmesh_region_ref(tmesh_tensor_region(tensor));
		else
			refuse(err, -EINVAL,
			       "a region is kept as its maker described it, and this is a part or "
			       "another view of one: keep the whole, or a bundle of it");
	}
	tmesh_tensor_unref(tensor);
	return region;
}

/* keep_region(context, handle | bundle, name, opts) -> ok */
NIF(keep_region)
{
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_keep_opts opts;
	struct tmesh_bundle *bundle;
	struct tmesh_region *region;
	struct context *context;
	struct tmesh_error err;
	int rc;

	if (!get_context(env, argv[0], &context, &err) || !get_name(env, argv[2], name, &err) ||
	    !get_opts(env, argv[3], &opts, &err))
		return make_error(env, &err);
	bundle = get_bundle(env, argv[1], NULL, &err);
	region = bundle ? NULL : get_whole(env, argv[1], &err);
	if (!bundle && !region)
		return make_error(env, &err);
	rc = begin_opening(context, &err) ? 0 : err.code;
	if (!rc) {
		rc = bundle ? tmesh_keep_bundle(context->ctx, name, bundle, &opts, &err)
			    : tmesh_keep(context->ctx, name, &region, 1, &opts, &err);
		end_opening(context);
	}
	tmesh_bundle_unref(bundle);
	tmesh_region_unref(region);
	return rc ? make_error(env, &err) : atoms.ok;
}

static bool is_index(struct tmesh_region *region)
{
	struct tmesh_region_info info = {.size = sizeof(info)};

	return !tmesh_region_info(region, &info, NULL) &&
	       strstr(info.description, "\"kind\":\"bundle\"");
}

/* Return {ok, bundle} or {ok, [{handle, ref}]}. Take the regions over. */
static ERL_NIF_TERM make_kept(ErlNifEnv *env, struct context *context,
			      struct tmesh_region **regions, size_t count)
{
	ERL_NIF_TERM list = enif_make_list(env, 0), term;
	struct tmesh_bundle *bundle;
	struct tmesh_error err;
	bool good = true;

	if (is_index(regions[0])) {
		good = !tmesh_bundle_from_regions(context->ctx, regions[0], regions + 1, count - 1,
						  &bundle, &err);
		for (size_t i = 0; i < count; i++)
			tmesh_region_unref(regions[i]);
		return good ? make_bundle(env, context, bundle) : make_error(env, &err);
	}
	while (count--) {
		good = good && wrap_region(env, context, regions[count], &term, &err);
		tmesh_region_unref(regions[count]);
		if (good)
			list = enif_make_list_cell(env, term, list);
	}
	return good ? make_ok(env, list) : make_error(env, &err);
}

/* open_kept(context, name, uid | nil) -> {ok, bundle | [{handle, ref}]} */
NIF(open_kept)
{
	char name[TMESH_KEPT_NAME_LEN + 1];
	unsigned int uid = TMESH_KEPT_OWN;
	struct tmesh_region **regions;
	struct context *context;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	size_t count;
	int rc;

	if (!get_context(env, argv[0], &context, &err) || !get_name(env, argv[1], name, &err))
		return make_error(env, &err);
	if (!enif_is_identical(argv[2], atoms.nil) && !enif_get_uint(env, argv[2], &uid))
		return make_refusal(env, -EINVAL, "uid must be a user's number");
	if (!begin_opening(context, &err))
		return make_error(env, &err);
	rc = tmesh_kept_open(context->ctx, name, (uid_t)uid, TMESH_READ, &regions, &count, &err);
	end_opening(context);
	if (rc)
		return make_error(env, &err);
	term = make_kept(env, context, regions, count);
	free(regions);
	return term;
}

/* Report the progress of a read folder with the messages of a model's load. */
static int folder_progress(void *data, uint64_t done, uint64_t total)
{
	const struct tmesh_model_progress progress = {
		.size = sizeof(progress),
		.bytes_done = done,
		.bytes_total = total,
	};

	return model_progress(data, &progress);
}

/* keep_folder(context, path, name, opts, nil | pid) -> ok; the process is sent {tmesh_model, path,
 * #{bytes_done => _, bytes_total => _, waiting => false}} */
NIF(keep_folder)
{
	char name[TMESH_KEPT_NAME_LEN + 1], path[4096];
	struct tmesh_keep_opts opts;
	struct model_watch watch;
	struct context *context;
	struct tmesh_error err;
	int rc;

	if (!get_context(env, argv[0], &context, &err) || !get_name(env, argv[2], name, &err) ||
	    !get_opts(env, argv[3], &opts, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[1], path, sizeof(path)) ||
	    !get_watch(env, argv[4], argv[1], &watch))
		return make_refusal(
			env, -EINVAL,
			"a folder has a path of less than %zu bytes, and its progress goes to a "
			"local process or nil",
			sizeof(path));
	opts.progress = folder_progress;
	opts.progress_data = &watch;
	rc = begin_files(context, &err) ? 0 : err.code;
	if (!rc) {
		rc = tmesh_keep_folder(context->ctx, name, path, &opts, &err);
		end_files(context);
	}
	if (watch.message)
		enif_free_env(watch.message);
	return rc ? make_error(env, &err) : atoms.ok;
}

/* kept_path(context, name, path | nil) -> {ok, path} */
NIF(kept_path)
{
	char name[TMESH_KEPT_NAME_LEN + 1], path[TMESH_KEPT_PATH_LEN + 1], *text;
	bool whole = enif_is_identical(argv[2], atoms.nil);
	struct context *context;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	int rc;

	if (!get_context(env, argv[0], &context, &err) || !get_name(env, argv[1], name, &err))
		return make_error(env, &err);
	if (!whole && !get_text(env, argv[2], path, sizeof(path)))
		return make_refusal(env, -EINVAL, "a kept file's path is a string of 1 to %d bytes",
				    TMESH_KEPT_PATH_LEN);
	if (!begin_opening(context, &err))
		return make_error(env, &err);
	rc = tmesh_kept_path(context->ctx, name, whole ? NULL : path, &text, &err);
	end_opening(context);
	if (rc)
		return make_error(env, &err);
	term = make_ok(env, make_string(env, text));
	free(text);
	return term;
}

/* kept_files(context, name) -> {ok, [#{path => _, bytes => _, mtime_ns => _}]} */
NIF(kept_files)
{
	ERL_NIF_TERM list = enif_make_list(env, 0);
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_kept_file *files;
	struct context *context;
	struct tmesh_error err;
	size_t count;
	int rc;

	if (!get_context(env, argv[0], &context, &err) || !get_name(env, argv[1], name, &err) ||
	    !begin_opening(context, &err))
		return make_error(env, &err);
	rc = tmesh_kept_files(context->ctx, name, TMESH_KEPT_OWN, &files, &count, &err);
	end_opening(context);
	if (rc)
		return make_error(env, &err);
	while (count--) {
		const struct member members[] = {
			{"path", make_string(env, files[count].path)},
			{"bytes", enif_make_uint64(env, files[count].bytes)},
			{"mtime_ns", enif_make_int64(env, files[count].mtime_ns)},
		};

		list = enif_make_list_cell(env, MAKE_MAP(env, members), list);
	}
	free(files);
	return make_ok(env, list);
}

/* Make a map of kept region @info. A missing time is nil. */
static ERL_NIF_TERM make_kept_info(ErlNifEnv *env, const struct tmesh_kept_info *info)
{
	const struct member members[] = {
		{"backend", enif_make_atom(env, tmesh_backend_name(info->backend))},
		{"regions", enif_make_uint(env, info->count)},
	};

	return SHOW(env, MAKE_MAP(env, members), shown_kept_info, info);
}

/* list_kept(context) -> {ok, [#{name => <<"...">>, ...}]} */
NIF(list_kept)
{
	ERL_NIF_TERM list = enif_make_list(env, 0);
	struct tmesh_kept_info *infos;
	struct context *context;
	struct tmesh_error err;
	size_t count;
	int rc;

	if (!get_context(env, argv[0], &context, &err) || !begin_opening(context, &err))
		return make_error(env, &err);
	rc = tmesh_kept_list(context->ctx, &infos, &count, &err);
	end_opening(context);
	if (rc)
		return make_error(env, &err);
	while (count--)
		list = enif_make_list_cell(env, make_kept_info(env, &infos[count]), list);
	free(infos);
	return make_ok(env, list);
}

/* drop_kept(context, name) -> ok */
NIF(drop_kept)
{
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct context *context;
	struct tmesh_error err;
	int rc;

	if (!get_context(env, argv[0], &context, &err) || !get_name(env, argv[1], name, &err) ||
	    !begin_opening(context, &err))
		return make_error(env, &err);
	rc = tmesh_kept_drop(context->ctx, name, &err);
	end_opening(context);
	return rc ? make_error(env, &err) : atoms.ok;
}
