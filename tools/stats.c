// SPDX-License-Identifier: MIT
/* tmeshctl stats: totals over all regions that the user may see, and the limits. */
#include "tmeshctl.h"

static const struct option_entry options[] = {OPTION_JSON, OPTION_BACKEND, {NULL}};

struct totals {
	uint64_t regions, sealed, bytes, alloc_bytes, huge_bytes, handles, pinning, exports,
		attachments, poisoned;
};

static const struct {
	const char *name;
	size_t at;
	bool bytes;
} fields[] = {
	{"regions", offsetof(struct totals, regions), false},
	{"sealed", offsetof(struct totals, sealed), false},
	{"bytes", offsetof(struct totals, bytes), true},
	{"alloc_bytes", offsetof(struct totals, alloc_bytes), true},
	{"huge_bytes", offsetof(struct totals, huge_bytes), true},
	{"handles", offsetof(struct totals, handles), false},
	{"pinning_handles", offsetof(struct totals, pinning), false},
	{"exports", offsetof(struct totals, exports), false},
	{"attachments", offsetof(struct totals, attachments), false},
	{"poisoned", offsetof(struct totals, poisoned), false},
};

static const struct {
	const char *name;
	size_t at;
	bool bytes;
} limit_fields[] = {
	{"used_bytes", offsetof(struct tmesh_limits, used_bytes), true},
	{"max_bytes_per_uid", offsetof(struct tmesh_limits, max_bytes_per_uid), true},
	{"used_bytes_ipc_ns", offsetof(struct tmesh_limits, used_bytes_ipc_ns), true},
	{"max_bytes_per_ipc_ns", offsetof(struct tmesh_limits, max_bytes_per_ipc_ns), true},
	{"max_bytes", offsetof(struct tmesh_limits, max_bytes), true},
	{"used_regions", offsetof(struct tmesh_limits, used_regions), false},
	{"max_regions_per_uid", offsetof(struct tmesh_limits, max_regions_per_uid), false},
	{"used_regions_ipc_ns", offsetof(struct tmesh_limits, used_regions_ipc_ns), false},
	{"max_regions_per_ipc_ns", offsetof(struct tmesh_limits, max_regions_per_ipc_ns), false},
	{"max_regions", offsetof(struct tmesh_limits, max_regions), false},
	{"used_handles", offsetof(struct tmesh_limits, used_handles), false},
	{"max_handles_per_uid", offsetof(struct tmesh_limits, max_handles_per_uid), false},
	{"used_handles_ipc_ns", offsetof(struct tmesh_limits, used_handles_ipc_ns), false},
	{"max_handles_per_ipc_ns", offsetof(struct tmesh_limits, max_handles_per_ipc_ns), false},
	{"max_handles", offsetof(struct tmesh_limits, max_handles), false},
	{"used_pins", offsetof(struct tmesh_limits, used_pins), false},
	{"max_pins_per_uid", offsetof(struct tmesh_limits, max_pins_per_uid), false},
	{"used_pins_ipc_ns", offsetof(struct tmesh_limits, used_pins_ipc_ns), false},
	{"max_pins_per_ipc_ns", offsetof(struct tmesh_limits, max_pins_per_ipc_ns), false},
	{"max_pins", offsetof(struct tmesh_limits, max_pins), false},
};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static uint64_t value_at(const void *from, size_t at)
{
	return *(const uint64_t *)((const char *)from + at);
}

static int count(struct tmesh_ctx *ctx, struct totals *totals)
{
	struct tmesh_region_info *infos;
	struct tmesh_error err;
	size_t number;

	if (tmesh_list(ctx, &infos, &number, &err))
		return complain("listing regions", &err);
	for (size_t i = 0; i < number; i++) {
		totals->regions++;
		totals->sealed += infos[i].sealed;
		totals->bytes += infos[i].bytes;
		totals->alloc_bytes += infos[i].alloc_bytes;
		totals->huge_bytes += infos[i].huge_bytes;
		totals->handles += infos[i].handles;
		totals->pinning += infos[i].pinning_handles;
		totals->exports += infos[i].exports;
		totals->attachments += infos[i].attachments;
		totals->poisoned += infos[i].poisoned;
	}
	free(infos);
	return STATUS_OK;
}

static void row(struct table *table, const char *name, uint64_t value, bool bytes)
{
	char text[16];

	table_add(table, name);
	if (bytes)
		table_addf(table, "%" PRIu64 " (%s)", value, human_bytes(value, text));
	else
		table_addf(table, "%" PRIu64, value);
}

static int show(struct tmesh_ctx *ctx, void *data)
{
	json_t *answer = *(json_t **)data;
	const char *backend = tmesh_backend_name(tmesh_ctx_backend(ctx));
	struct tmesh_limits limits = {.size = sizeof(limits)};
	struct table table = {.columns = 2};
	struct totals totals = {0};
	struct tmesh_error err;
	json_t *object;
	int rc;

	rc = count(ctx, &totals);
	if (rc)
		return rc;
	rc = tmesh_limits(ctx, &limits, &err);
	/* Only the module counts per user. */
	if (rc && rc != -EOPNOTSUPP)
		return complain("asking for limits", &err);

	if (!answer) {
		table_add(&table, "backend");
		table_add(&table, backend);
		for (size_t i = 0; i < COUNT(fields); i++)
			row(&table, fields[i].name, value_at(&totals, fields[i].at),
			    fields[i].bytes);
		for (size_t i = 0; i < COUNT(limit_fields) && !rc; i++)
			row(&table, limit_fields[i].name, value_at(&limits, limit_fields[i].at),
			    limit_fields[i].bytes);
		table_print(&table);
		return STATUS_OK;
	}
	object = json_object();
	for (size_t i = 0; i < COUNT(fields); i++)
		json_object_set_new(object, fields[i].name,
				    json_integer((json_int_t)value_at(&totals, fields[i].at)));
	json_object_set_new(object, "limits", rc ? json_null() : json_object());
	for (size_t i = 0; i < COUNT(limit_fields) && !rc; i++)
		json_object_set_new(
			json_object_get(object, "limits"), limit_fields[i].name,
			json_integer((json_int_t)value_at(&limits, limit_fields[i].at)));
	json_object_set_new(answer, backend, object);
	return STATUS_OK;
}

static int run_verb_stats(const struct verb *verb, int argc, char **argv)
{
	enum tmesh_backend backend = TMESH_BACKEND_AUTO;
	json_t *answer = NULL;
	int key, status;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'j':
			answer = json_object();
			break;
		case 'b':
			backend = backend_option(verb, optarg);
			break;
		}
	}
	verb_expect_words(verb, argc, 0, 0);
	status = for_backends(backend, show, &answer);
	if (status || !answer) {
		json_decref(answer);
		return status;
	}
	return print_json(answer);
}

const struct verb verb_stats = {"stats", "", "total what is in use, and the limits", options,
				run_verb_stats};
