// SPDX-License-Identifier: MIT
/* tmeshctl ls: the regions that one may see. */
#include "tmeshctl.h"

static const struct option_entry options[] = {OPTION_JSON, OPTION_BACKEND, {NULL}};

struct listing {
	json_t *json; /* NULL: a table */
	struct table table;
};

static void add_row(struct table *table, const struct tmesh_region_info *info)
{
	char *contents = contents_text(info->description);
	char size[16];

	table_addf(table, "%016" PRIx64, info->id);
	table_add(table, human_bytes(info->bytes, size));
	table_add(table, tmesh_backend_name(info->backend));
	table_add(table, info_state(info));
	table_addf(table, "%u", info->handles + info->exports);
	table_addf(table, "%u", info->uid);
	table_add(table, contents);
	table_add(table, info->label);
	free(contents);
}

static int list(struct tmesh_ctx *ctx, void *data)
{
	struct listing *listing = data;
	struct tmesh_region_info *infos;
	struct tmesh_error err;
	size_t count;

	if (tmesh_list(ctx, &infos, &count, &err))
		return complain("listing regions", &err);
	for (size_t i = 0; i < count; i++) {
		if (listing->json)
			json_array_append_new(listing->json, info_json(&infos[i]));
		else
			add_row(&listing->table, &infos[i]);
	}
	free(infos);
	return STATUS_OK;
}

static int run_verb_ls(const struct verb *verb, int argc, char **argv)
{
	static const char *const titles[] = {"ID",	"SIZE", "BACKEND",  "STATE",
					     "HOLDERS", "UID",	"CONTENTS", "LABEL"};
	enum tmesh_backend backend = TMESH_BACKEND_AUTO;
	struct listing listing = {.table.columns = 8};
	int key, status;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'j':
			listing.json = json_array();
			break;
		case 'b':
			backend = backend_option(verb, optarg);
			break;
		}
	}
	verb_expect_words(verb, argc, 0, 0);

	for (unsigned int i = 0; !listing.json && i < listing.table.columns; i++)
		table_add(&listing.table, titles[i]);
	status = for_backends(backend, list, &listing);
	if (status) {
		json_decref(listing.json);
		return status;
	}
	if (listing.json)
		return print_json(listing.json);
	table_print(&listing.table);
	return STATUS_OK;
}

const struct verb verb_ls = {"ls", "", "list the regions you may see", options, run_verb_ls};
