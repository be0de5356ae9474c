/* SPDX-License-Identifier: MIT */
/* Inspection: regions and their holders, under the names of tests/vocabulary.md. */
#include "nif.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/shown.h"

ERL_NIF_TERM make_id(ErlNifEnv *env, uint64_t id)
{
	char text[17];

	snprintf(text, sizeof(text), "%016" PRIx64, id);
	return make_string(env, text);
}

static ERL_NIF_TERM make_rights(ErlNifEnv *env, uint32_t rights)
{
	ERL_NIF_TERM list = enif_make_list(env, 0);

	if (rights & TMESH_MANAGE)
		list = enif_make_list_cell(env, enif_make_atom(env, "manage"), list);
	if (rights & TMESH_WRITE)
		list = enif_make_list_cell(env, enif_make_atom(env, "write"), list);
	if (rights & TMESH_READ)
		list = enif_make_list_cell(env, enif_make_atom(env, "read"), list);
	return list;
}

/* Return the tensor of a description, or nil if it describes something else. */
static ERL_NIF_TERM make_tensor(ErlNifEnv *env, const char *desc)
{
	const ERL_NIF_TERM *field;
	struct tmesh_ref ref;
	ERL_NIF_TERM term;
	int arity;

	if (tmesh_ref_decode(desc, strlen(desc), &ref, NULL))
		return atoms.nil;
	term = make_ref(env, &ref);
	enif_get_tuple(env, term, &arity, &field);

	const struct member members[] = {
		{"dtype", field[5]},  {"shape", field[4]},     {"strides", field[6]},
		{"offset", field[2]}, {"byte_size", field[3]},
	};

	return MAKE_MAP(env, members);
}

static ERL_NIF_TERM make_region_info(ErlNifEnv *env, const struct tmesh_region_info *info)
{
	const char *fence = info->fence_dead ? "dead" : info->fence_producer ? "producer" : "idle";
	const struct member members[] = {
		{"backend", make_word(env, tmesh_backend_name(info->backend))},
		{"backing", make_word(env, tmesh_backing_name(info->backing))},
		{"tensor", make_tensor(env, info->description)},
		{"node", info->node < 0 ? atoms.nil : enif_make_int(env, info->node)},
		{"fence", enif_make_atom(env, fence)},
	};

	return SHOW(env, MAKE_MAP(env, members), shown_region_info, info);
}

/* info(handle) -> {ok, #{sealed => true, ...}}: of the region, and of this handle. */
NIF(tensor_info)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_tensor *tensor;
	struct handle *handle;
	struct tmesh_error err;
	ERL_NIF_TERM map;
	int rc;

	tensor = get_tensor(env, argv[0], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	rc = tmesh_region_info(tmesh_tensor_region(tensor), &info, &err);
	tmesh_tensor_unref(tensor);
	if (rc)
		return make_error(env, &err);

	map = SHOW(env, make_region_info(env, &info), shown_region_lease, &info);
	enif_make_map_put(env, map, enif_make_atom(env, "rights"), make_rights(env, info.rights),
			  &map);
	return make_ok(env, map);
}

/* regions(context) -> {ok, [#{id => <<"...">>, ...}]} */
NIF(regions)
{
	struct tmesh_region_info *infos;
	ERL_NIF_TERM list = enif_make_list(env, 0);
	struct context *context;
	struct tmesh_error err;
	size_t count;

	if (!get_context(env, argv[0], &context, &err) ||
	    tmesh_list(context->ctx, &infos, &count, &err))
		return make_error(env, &err);
	while (count--)
		list = enif_make_list_cell(env, make_region_info(env, &infos[count]), list);
	free(infos);
	return make_ok(env, list);
}

static ERL_NIF_TERM make_holder(ErlNifEnv *env, const struct tmesh_holder_info *holder)
{
	bool device = holder->kind == TMESH_HOLDER_IS_DEVICE;
	bool view = holder->kind == TMESH_HOLDER_IS_GATHER;
	const struct member members[] = {
		{"kind", make_word(env, tmesh_holder_kind_name(holder->kind))},
		{"pid", holder->pid ? enif_make_int(env, holder->pid) : atoms.nil},
		{"rights", make_rights(env, holder->rights)},
		{"device", device ? make_string(env, holder->device) : atoms.nil},
		{"view", view ? make_id(env, holder->view) : atoms.nil},
	};

	return SHOW(env, MAKE_MAP(env, members), shown_holder_info, holder);
}

/* holders(context, id) -> {ok, [#{pid => 1, ...}]} */
NIF(holders)
{
	struct tmesh_holder_info *infos;
	ERL_NIF_TERM list = enif_make_list(env, 0);
	struct context *context;
	struct tmesh_error err;
	ErlNifUInt64 id;
	size_t count;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!enif_get_uint64(env, argv[1], &id))
		return make_refusal(env, -EINVAL, "an id is a number of 64 bits");
	/* To the library 0 means the holders of all regions. */
	if (!id)
		return make_refusal(env, -ENOENT, "no region has the id 0");
	if (tmesh_holders(context->ctx, id, &infos, &count, &err))
		return make_error(env, &err);
	while (count--)
		list = enif_make_list_cell(env, make_holder(env, &infos[count]), list);
	free(infos);
	return make_ok(env, list);
}

/* token_id(context, token) -> {ok, id}. Closes the handle that it takes, so that a list made
 * afterwards does not show it. */
NIF(token_id)
{
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region;
	struct context *context;
	struct tmesh_error err;
	ERL_NIF_TERM id;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[1], token, sizeof(token)))
		return make_refusal(env, -EPROTO, "not a token");
	if (!begin_opening(context, &err))
		return make_error(env, &err);
	if (tmesh_region_open(context->ctx, token, TMESH_READ, &region, &err))
		region = NULL;
	end_opening(context);
	if (!region)
		return make_error(env, &err);
	id = enif_make_uint64(env, tmesh_region_id(region));
	tmesh_region_unref(region);
	return make_ok(env, id);
}
