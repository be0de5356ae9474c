// SPDX-License-Identifier: MIT
/* tmeshctl show: everything that is known about one region. */
#include "tmeshctl.h"

static const struct option_entry options[] = {OPTION_JSON, {NULL}};

static void row_bytes(struct table *table, const char *name, uint64_t bytes)
{
	char text[16];

	table_add(table, name);
	table_addf(table, "%" PRIu64 " (%s)", bytes, human_bytes(bytes, text));
}

static void row_number(struct table *table, const char *name, uint64_t number)
{
	table_add(table, name);
	table_addf(table, "%" PRIu64, number);
}

static void print_info(const struct tmesh_region_info *info)
{
	struct table table = {.columns = 2};
	char *contents = contents_text(info->description);

	table_add(&table, "id");
	table_addf(&table, "%016" PRIx64, info->id);
	table_add(&table, "label");
	table_add(&table, info->label);
	table_add(&table, "contents");
	table_add(&table, contents);
	table_add(&table, "backend");
	table_add(&table, tmesh_backend_name(info->backend));
	table_add(&table, "state");
	table_add(&table, info_state(info));
	row_bytes(&table, "bytes", info->bytes);
	row_bytes(&table, "allocated", info->alloc_bytes);
	row_bytes(&table, "in huge pages", info->huge_bytes);
	table_add(&table, "node");
	if (info->node < 0)
		table_add(&table, "any");
	else
		table_addf(&table, "%d", info->node);
	row_number(&table, "uid", info->uid);
	row_number(&table, "gid", info->gid);
	table_add(&table, "mode");
	table_addf(&table, "%04o", info->mode);
	row_number(&table, "handles", info->handles);
	row_number(&table, "pinning handles", info->pinning_handles);
	row_number(&table, "exports", info->exports);
	row_number(&table, "attachments", info->attachments);
	row_number(&table, "hold ms", info->hold_ms);
	table_add(&table, "backing");
	table_add(&table, tmesh_backing_name(info->backing));
	if (info->backend == TMESH_BACKEND_KERNEL) {
		row_number(&table, "views", info->views);
		table_add(&table, "fence");
		table_addf(&table, "%" PRIu64 "%s", info->fence_value,
			   info->fence_dead ? ", producer gone" : "");
		row_bytes(&table, "still pinned", info->pinned_bytes);
		row_number(&table, "control group", info->cgroup_id);
	}
	table_print(&table);
	free(contents);
}

static int run_verb_show(const struct verb *verb, int argc, char **argv)
{
	struct tmesh_region_info info;
	struct tmesh_ctx *ctx;
	struct target target;
	bool json = false;
	int status;

	while (verb_option(verb, argc, argv) != -1)
		json = true;
	verb_expect_words(verb, argc, 1, 1);
	parse_target(verb, argv[optind], &target);

	status = find_target(&target, &ctx, &info);
	if (status)
		return status;
	tmesh_ctx_unref(ctx);
	if (json)
		return print_json(info_json(&info));
	print_info(&info);
	return STATUS_OK;
}

const struct verb verb_show = {"show", "ID|TOKEN|REF", "say what a region is", options,
			       run_verb_show};
