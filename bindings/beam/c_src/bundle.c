/* SPDX-License-Identifier: MIT */
/* Bundles: named tensors under one ref. Terms hold the bundle; each tensor that is taken from it
 * has a handle of its own. */
#include "nif.h"

#include <tmesh/hold.h>

OBJECT_KIND(bundle_kind, tmesh_bundle, "a bundle");

ERL_NIF_TERM make_bundle(ErlNifEnv *env, struct context *context, struct tmesh_bundle *made)
{
	return make_ok_object(env, context, &bundle_kind, made);
}

struct tmesh_bundle *get_bundle(ErlNifEnv *env, ERL_NIF_TERM term, struct context **context,
				struct tmesh_error *err)
{
	return get_object(env, term, &bundle_kind, context, err);
}

/* Fill @entry from {name, handle, made for it}. The entry has a reference on the tensor; the
 * caller frees its name. */
static bool get_entry(ErlNifEnv *env, ERL_NIF_TERM term, bool seal,
		      struct tmesh_bundle_entry *entry, struct tmesh_error *err)
{
	char name[TMESH_BUNDLE_MAX_NAME + 1];
	const ERL_NIF_TERM *field;
	struct handle *handle;
	int arity;
	bool made;

	if (!enif_get_tuple(env, term, &arity, &field) || arity != 3 ||
	    !get_text(env, field[0], name, sizeof(name)))
		return refuse(err, -EINVAL, "a tensor of a bundle has a name of at most %d bytes",
			      TMESH_BUNDLE_MAX_NAME) == 0;
	if (!get_bool(env, field[2], "made", &made, err))
		return false;
	*entry = (struct tmesh_bundle_entry){.tensor = get_tensor(env, field[1], &handle, err)};
	if (!entry->tensor)
		return false;
	entry->name = strdup(name);
	if (entry->name && (made || !seal || !handle->in_arena))
		return true;
	if (entry->name)
		refuse(err, -EINVAL,
		       "a tensor in an arena cannot be sealed, nor a bundle with it: seal: false");
	else
		refuse(err, -ENOMEM, "no memory for a name");
	free((char *)entry->name);
	tmesh_tensor_unref(entry->tensor);
	return false;
}

static void drop_entries(struct tmesh_bundle_entry *entries, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++) {
		tmesh_tensor_unref(entries[i].tensor);
		free((char *)entries[i].name);
	}
	enif_free(entries);
}

/* bundle_create(context, [{name, handle, made}], seal, label, metadata) -> {ok, bundle} */
NIF(bundle_create)
{
	struct tmesh_bundle_opts opts = {.size = sizeof(opts)};
	struct tmesh_bundle_entry *entries;
	ERL_NIF_TERM head, list = argv[1];
	char label[TMESH_LABEL_LEN + 1];
	struct tmesh_bundle *bundle;
	unsigned int length, count = 0;
	struct context *context;
	struct tmesh_error err;
	ErlNifBinary metadata;
	bool seal;
	int rc;

	if (!get_context(env, argv[0], &context, &err) ||
	    !get_bool(env, argv[2], "seal", &seal, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[3], label, sizeof(label)) ||
	    !enif_inspect_binary(env, argv[4], &metadata) ||
	    !enif_get_list_length(env, list, &length))
		return make_refusal(env, -EINVAL,
				    "a bundle has a list of tensors, a label and metadata");
	opts.flags = seal ? 0 : TMESH_BUNDLE_UNSEALED;
	opts.label = label;
	opts.metadata = metadata.size ? (const char *)metadata.data : NULL;
	opts.metadata_bytes = metadata.size;
	entries = enif_alloc((length + (size_t)1) * sizeof(*entries));
	if (!entries)
		return make_refusal(env, -ENOMEM, "no memory for a list of %u tensors", length);
	while (enif_get_list_cell(env, list, &head, &list)) {
		if (!get_entry(env, head, seal, &entries[count], &err)) {
			drop_entries(entries, count);
			return make_error(env, &err);
		}
		count++;
	}
	rc = tmesh_bundle_create(context->ctx, entries, count, &opts, &bundle, &err);
	drop_entries(entries, count);
	return rc ? make_error(env, &err) : make_bundle(env, context, bundle);
}

/* bundle_open(context, json, read | write) -> {ok, bundle} */
NIF(bundle_open)
{
	struct tmesh_bundle *bundle = NULL;
	struct context *context;
	struct tmesh_error err;
	ErlNifBinary text;
	uint32_t rights;

	if (!get_context(env, argv[0], &context, &err) || !get_rights(env, argv[2], &rights, &err))
		return make_error(env, &err);
	if (!enif_inspect_binary(env, argv[1], &text))
		return make_refusal(env, -EPROTO, "a bundle's ref is JSON");
	if (!begin_opening(context, &err))
		return make_error(env, &err);
	if (tmesh_bundle_open(context->ctx, (const char *)text.data, text.size, rights, &bundle,
			      &err))
		bundle = NULL;
	end_opening(context);
	return bundle ? make_bundle(env, context, bundle) : make_open_error(env, rights, &err);
}

/* bundle_info(bundle) -> {ok, {[name], byte_size, metadata, label}} */
NIF(bundle_info)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	ERL_NIF_TERM names = enif_make_list(env, 0), metadata;
	struct tmesh_bundle *taken;
	struct context *context;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	taken = get_bundle(env, argv[0], &context, &err);
	if (!taken)
		return make_error(env, &err);
	for (size_t i = tmesh_bundle_count(taken); i--;)
		names = enif_make_list_cell(env, make_string(env, tmesh_bundle_name(taken, i)),
					    names);
	metadata = make_string(env, tmesh_bundle_metadata(taken, NULL));
	/* A region that was taken back has no label. */
	if (tmesh_region_info(tmesh_bundle_index(taken), &info, NULL))
		info.label[0] = 0;
	term = enif_make_tuple4(env, names, enif_make_uint64(env, tmesh_bundle_bytes(taken)),
				metadata, make_string(env, info.label));
	tmesh_bundle_unref(taken);
	return make_ok(env, term);
}

/* bundle_tensor(bundle, name) -> {ok, {handle, ref}} */
NIF(bundle_tensor)
{
	char name[TMESH_BUNDLE_MAX_NAME + 1];
	struct tmesh_tensor *tensor;
	struct tmesh_bundle *taken;
	struct context *context;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	size_t i;
	int rc;

	if (!get_text(env, argv[1], name, sizeof(name)))
		return make_refusal(env, -ENOENT, "a name is a string");
	taken = get_bundle(env, argv[0], &context, &err);
	if (!taken)
		return make_error(env, &err);
	rc = tmesh_bundle_find(taken, name, &i, &err);
	if (!rc)
		rc = tmesh_bundle_tensor(taken, i, &tensor, &err);
	tmesh_bundle_unref(taken);
	if (rc || !make_handle(env, context, tensor, &term, &err))
		return make_error(env, &err);
	return make_ok(env, term);
}

/* bundle_ref(bundle, read | write, nil | hold_ns) -> {ok, json} */
NIF(bundle_ref)
{
	struct tmesh_bundle *taken;
	struct context *context;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	uint64_t hold_ns;
	uint32_t rights;
	size_t size;
	char *text;
	int rc;

	if (!get_rights(env, argv[1], &rights, &err) || !get_hold(env, argv[2], &hold_ns, &err))
		return make_error(env, &err);
	taken = get_bundle(env, argv[0], &context, &err);
	if (!taken)
		return make_error(env, &err);
	size = tmesh_bundle_ref_size(taken);
	text = enif_alloc(size);
	if (!text)
		rc = refuse(&err, -ENOMEM, "no memory for a ref of %zu bytes", size);
	else if (hold_ns)
		rc = tmesh_bundle_ref_hold(taken, rights, hold_ns, text, size, &err);
	else
		rc = tmesh_bundle_ref_encode(taken, rights, text, size, &err);
	term = rc ? make_open_error(env, rights, &err) : make_ok(env, make_string(env, text));
	if (text)
		enif_free(text);
	tmesh_bundle_unref(taken);
	return term;
}

/* bundle_hand_over(bundle, socket, rights) -> ok */
NIF(bundle_hand_over)
{
	struct tmesh_bundle *taken;
	struct context *context;
	struct tmesh_error err;
	uint32_t rights;
	int socket, rc;

	if (!get_fd(env, argv[1], &socket, &err) || !get_rights(env, argv[2], &rights, &err))
		return make_error(env, &err);
	taken = get_bundle(env, argv[0], &context, &err);
	if (!taken)
		return make_error(env, &err);
	rc = -EAGAIN;
	if (begin_opening(context, &err)) {
		rc = tmesh_bundle_send(taken, socket, rights, &err);
		end_opening(context);
	}
	tmesh_bundle_unref(taken);
	return rc ? make_open_error(env, rights, &err) : atoms.ok;
}

/* bundle_recv(context, socket) -> {ok, bundle} */
NIF(bundle_recv)
{
	struct tmesh_bundle *bundle;
	struct context *context;
	struct tmesh_error err;
	int socket, rc;

	if (!get_context(env, argv[0], &context, &err) || !get_fd(env, argv[1], &socket, &err) ||
	    !begin_opening(context, &err))
		return make_error(env, &err);
	rc = tmesh_bundle_recv(context->ctx, socket, &bundle, &err);
	end_opening(context);
	return rc ? make_error(env, &err) : make_bundle(env, context, bundle);
}

/* bundle_release(bundle) -> ok, also when repeated */
NIF(bundle_release)
{
	return close_object(env, argv[0], &bundle_kind);
}
