// SPDX-License-Identifier: MIT
/* tmeshctl holders: the processes that hold a region. */
#include "tmeshctl.h"

static const struct option_entry options[] = {OPTION_JSON, {NULL}};

static json_t *holder_json(const struct tmesh_holder_info *holder)
{
	char rights[4];
	json_t *value = json_object();

	json_object_set_new(value, "kind", json_string(tmesh_holder_kind_name(holder->kind)));
	json_object_set_new(value, "pid", holder->pid ? json_integer(holder->pid) : json_null());
	json_object_set_new(value, "command", json_text(holder->command));
	json_object_set_new(value, "uid", json_integer(holder->uid));
	json_object_set_new(value, "rights", json_string(rights_text(holder->rights, rights)));
	json_object_set_new(value, "mappings", json_integer(holder->mappings));
	json_object_set_new(value, "attachments", json_integer(holder->attachments));
	json_object_set_new(value, "offset", json_integer((json_int_t)holder->offset));
	json_object_set_new(value, "bytes", json_integer((json_int_t)holder->bytes));
	json_object_set_new(value, "device",
			    holder->kind == TMESH_HOLDER_IS_DEVICE ? json_text(holder->device)
								   : json_null());
	json_object_set_new(value, "mapped", json_boolean(holder->mapped));
	json_object_set_new(value, "view",
			    holder->kind == TMESH_HOLDER_IS_GATHER ? json_id(holder->view)
								   : json_null());
	json_object_set_new(value, "lease_ns", json_integer((json_int_t)holder->lease_ns));
	json_object_set_new(value, "lease_left_ns",
			    json_integer((json_int_t)holder->lease_left_ns));
	json_object_set_new(value, "lapsed", json_boolean(holder->lapsed));
	json_object_set_new(value, "producer", json_boolean(holder->producer));
	json_object_set_new(value, "since_ns",
			    holder->since_ns ? json_integer((json_int_t)holder->since_ns)
					     : json_null());
	return value;
}

/* Add "4.2 s", "lapsed", or "" if the holder has no lease. */
static void add_lease(struct table *table, const struct tmesh_holder_info *holder)
{
	if (holder->lapsed)
		table_add(table, "lapsed");
	else if (holder->lease_ns)
		table_addf(table, "%.1f s", (double)holder->lease_left_ns / 1e9);
	else
		table_add(table, "-");
}

static void add_what(struct table *table, const struct tmesh_holder_info *holder)
{
	char text[16];

	switch (holder->kind) {
	case TMESH_HOLDER_IS_DEVICE:
		table_addf(table, "%s%s", holder->device, holder->mapped ? ", mapped" : "");
		break;
	case TMESH_HOLDER_IS_GATHER:
		table_addf(table, "%016" PRIx64, holder->view);
		break;
	case TMESH_HOLDER_IS_EXPORT:
		table_addf(table, "%s at %" PRIu64 ", %u devices", human_bytes(holder->bytes, text),
			   holder->offset, holder->attachments);
		break;
	default:
		table_add(table, holder->producer ? "producer" : "");
	}
}

static void print_holders(const struct tmesh_holder_info *holders, size_t count)
{
	static const char *const titles[] = {"PID",	 "COMMAND", "KIND",  "RIGHTS",
					     "MAPPINGS", "UID",	    "LEASE", "WHAT"};
	struct table table = {.columns = 8};
	char rights[4];

	for (unsigned int i = 0; i < table.columns; i++)
		table_add(&table, titles[i]);
	for (size_t i = 0; i < count; i++) {
		table_addf(&table, "%d", (int)holders[i].pid);
		table_add(&table, holders[i].command);
		table_add(&table, tmesh_holder_kind_name(holders[i].kind));
		table_add(&table, rights_text(holders[i].rights, rights));
		table_addf(&table, "%u", holders[i].mappings);
		table_addf(&table, "%u", holders[i].uid);
		add_lease(&table, &holders[i]);
		add_what(&table, &holders[i]);
	}
	table_print(&table);
}

static int run_verb_holders(const struct verb *verb, int argc, char **argv)
{
	struct tmesh_holder_info *holders;
	struct tmesh_region_info info;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	struct target target;
	bool json = false;
	size_t count;
	int status;

	while (verb_option(verb, argc, argv) != -1)
		json = true;
	verb_expect_words(verb, argc, 1, 1);
	parse_target(verb, argv[optind], &target);

	status = find_target(&target, &ctx, &info);
	if (status)
		return status;
	if (tmesh_holders(ctx, info.id, &holders, &count, &err)) {
		status = complain("asking for holders", &err);
	} else if (json) {
		json_t *list = json_array();

		for (size_t i = 0; i < count; i++)
			json_array_append_new(list, holder_json(&holders[i]));
		free(holders);
		status = print_json(list);
	} else {
		print_holders(holders, count);
		free(holders);
	}
	tmesh_ctx_unref(ctx);
	return status;
}

const struct verb verb_holders = {"holders", "ID|TOKEN|REF", "list the holders of a region",
				  options, run_verb_holders};
