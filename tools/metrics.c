// SPDX-License-Identifier: MIT
/*
 * tmeshctl metrics: OpenMetrics text for a scraper, such as the textfile collector of the
 * Prometheus node exporter. The format is that of the OpenMetrics specification 1.0.
 */
#include "tmeshctl.h"

static const struct option_entry options[] = {
	{"regions", 'r', NULL, "also one series for each region"},
	OPTION_BACKEND,
	{NULL},
};

enum {
	OPEN,
	SEALED,
	REVOKED,
	STATES
};
static const char *const state_names[STATES] = {"open", "sealed", "revoked"};

/* Everything is collected first, because the series of a family must be adjacent. */
struct backend {
	const char *name;
	uint64_t regions[STATES], bytes[STATES];
	uint64_t handles, pinning, exports, attachments, views, pinned_bytes, huge_bytes, poisoned;
	struct tmesh_limits limits;
	bool has_limits;
	struct tmesh_region_info *infos;
	size_t count;
};

struct all {
	struct backend backends[2];
	size_t count;
};

static int state_of(const struct tmesh_region_info *info)
{
	return info->revoked ? REVOKED : info->sealed ? SEALED : OPEN;
}

static int collect(struct tmesh_ctx *ctx, void *data)
{
	struct all *all = data;
	struct backend *to = &all->backends[all->count];
	struct tmesh_error err;
	int rc;

	*to = (struct backend){
		.name = tmesh_backend_name(tmesh_ctx_backend(ctx)),
		.limits.size = sizeof(to->limits),
	};
	if (tmesh_list(ctx, &to->infos, &to->count, &err))
		return complain("listing regions", &err);
	all->count++;
	for (size_t i = 0; i < to->count; i++) {
		const struct tmesh_region_info *info = &to->infos[i];

		to->regions[state_of(info)]++;
		to->bytes[state_of(info)] += info->alloc_bytes;
		to->handles += info->handles;
		to->pinning += info->pinning_handles;
		to->exports += info->exports;
		to->attachments += info->attachments;
		to->views += info->views;
		to->pinned_bytes += info->pinned_bytes;
		to->huge_bytes += info->huge_bytes;
		to->poisoned += info->poisoned;
	}
	rc = tmesh_limits(ctx, &to->limits, &err);
	if (rc && rc != -EOPNOTSUPP)
		return complain("asking for limits", &err);
	to->has_limits = !rc;
	return STATUS_OK;
}

static void family(const char *name, const char *unit, const char *help)
{
	printf("# TYPE %s gauge\n", name);
	if (unit)
		printf("# UNIT %s %s\n", name, unit);
	printf("# HELP %s %s\n", name, help);
}

static void by_state(const struct all *all, const char *name, size_t at)
{
	for (size_t i = 0; i < all->count; i++) {
		const uint64_t *values = (const uint64_t *)((const char *)&all->backends[i] + at);

		for (int state = 0; state < STATES; state++)
			printf("%s{backend=\"%s\",state=\"%s\"} %" PRIu64 "\n", name,
			       all->backends[i].name, state_names[state], values[state]);
	}
}

static const struct {
	const char *name, *unit, *help;
	size_t at;
} totals[] = {
	{"tmesh_handles", NULL, "Handles, pinning ones among them.",
	 offsetof(struct backend, handles)},
	{"tmesh_pinning_handles", NULL, "Handles that forbid a revocation.",
	 offsetof(struct backend, pinning)},
	{"tmesh_exports", NULL, "dma-bufs alive.", offsetof(struct backend, exports)},
	{"tmesh_attachments", NULL, "Devices attached to dma-bufs.",
	 offsetof(struct backend, attachments)},
	{"tmesh_views", NULL, "Gather views, counted for each region they show.",
	 offsetof(struct backend, views)},
	{"tmesh_pinned_bytes", "bytes", "Memory of revoked regions that is still in use.",
	 offsetof(struct backend, pinned_bytes)},
	{"tmesh_huge_bytes", "bytes", "Memory in 2 MiB pages.",
	 offsetof(struct backend, huge_bytes)},
	{"tmesh_poisoned_regions", NULL, "Regions of which a page has a memory error.",
	 offsetof(struct backend, poisoned)},
};

static const struct {
	const char *name, *unit, *help, *scope;
	size_t at;
} limits[] = {
	{"tmesh_used_bytes", "bytes", "Charged.", "uid", offsetof(struct tmesh_limits, used_bytes)},
	{NULL, NULL, NULL, "ipc_ns", offsetof(struct tmesh_limits, used_bytes_ipc_ns)},
	{"tmesh_limit_bytes", "bytes", "The most bytes charged.", "uid",
	 offsetof(struct tmesh_limits, max_bytes_per_uid)},
	{NULL, NULL, NULL, "ipc_ns", offsetof(struct tmesh_limits, max_bytes_per_ipc_ns)},
	{NULL, NULL, NULL, "all", offsetof(struct tmesh_limits, max_bytes)},
	{"tmesh_used_regions", NULL, "Regions charged.", "uid",
	 offsetof(struct tmesh_limits, used_regions)},
	{NULL, NULL, NULL, "ipc_ns", offsetof(struct tmesh_limits, used_regions_ipc_ns)},
	{"tmesh_limit_regions", NULL, "Regions that may be charged.", "uid",
	 offsetof(struct tmesh_limits, max_regions_per_uid)},
	{NULL, NULL, NULL, "ipc_ns", offsetof(struct tmesh_limits, max_regions_per_ipc_ns)},
	{NULL, NULL, NULL, "all", offsetof(struct tmesh_limits, max_regions)},
	{"tmesh_used_handles", NULL, "Handles charged.", "uid",
	 offsetof(struct tmesh_limits, used_handles)},
	{NULL, NULL, NULL, "ipc_ns", offsetof(struct tmesh_limits, used_handles_ipc_ns)},
	{"tmesh_limit_handles", NULL, "Handles that may be charged.", "uid",
	 offsetof(struct tmesh_limits, max_handles_per_uid)},
	{NULL, NULL, NULL, "ipc_ns", offsetof(struct tmesh_limits, max_handles_per_ipc_ns)},
	{NULL, NULL, NULL, "all", offsetof(struct tmesh_limits, max_handles)},
	{"tmesh_used_pins", NULL, "Pinning handles charged.", "uid",
	 offsetof(struct tmesh_limits, used_pins)},
	{NULL, NULL, NULL, "ipc_ns", offsetof(struct tmesh_limits, used_pins_ipc_ns)},
	{"tmesh_limit_pins", NULL, "Pinning handles that may be charged.", "uid",
	 offsetof(struct tmesh_limits, max_pins_per_uid)},
	{NULL, NULL, NULL, "ipc_ns", offsetof(struct tmesh_limits, max_pins_per_ipc_ns)},
	{NULL, NULL, NULL, "all", offsetof(struct tmesh_limits, max_pins)},
};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static void put_totals(const struct all *all)
{
	for (size_t i = 0; i < COUNT(totals); i++) {
		family(totals[i].name, totals[i].unit, totals[i].help);
		for (size_t j = 0; j < all->count; j++)
			printf("%s{backend=\"%s\"} %" PRIu64 "\n", totals[i].name,
			       all->backends[j].name,
			       *(const uint64_t *)((const char *)&all->backends[j] + totals[i].at));
	}
}

/* Print the module's limits; memfd has none per user. */
static void put_limits(const struct all *all)
{
	const struct backend *from = NULL;
	const char *name = NULL;

	for (size_t i = 0; i < all->count; i++) {
		if (all->backends[i].has_limits)
			from = &all->backends[i];
	}
	for (size_t i = 0; i < COUNT(limits) && from; i++) {
		if (limits[i].name) {
			name = limits[i].name;
			family(name, limits[i].unit, limits[i].help);
		}
		printf("%s{scope=\"%s\"} %" PRIu64 "\n", name, limits[i].scope,
		       *(const uint64_t *)((const char *)&from->limits + limits[i].at));
	}
}

/* Return whether an equal series was printed before, which the format forbids. Any user may give
 * several memfds the same id and label. Regions are sorted by id. */
static bool stands(const struct tmesh_region_info *infos, size_t at)
{
	const struct tmesh_region_info *info = &infos[at];

	for (size_t i = at; i-- && infos[i].id == info->id;)
		if (infos[i].uid == info->uid && state_of(&infos[i]) == state_of(info) &&
		    !strcmp(infos[i].label, info->label))
			return true;
	return false;
}

static void put_regions(const struct all *all)
{
	family("tmesh_region_bytes", "bytes", "Memory of a region.");
	for (size_t i = 0; i < all->count; i++) {
		for (size_t j = 0; j < all->backends[i].count; j++) {
			const struct tmesh_region_info *info = &all->backends[i].infos[j];

			if (stands(all->backends[i].infos, j))
				continue;
			printf("tmesh_region_bytes{backend=\"%s\",id=\"%016" PRIx64
			       "\",uid=\"%u\",state=\"%s\",label=\"",
			       all->backends[i].name, info->id, info->uid,
			       state_names[state_of(info)]);
			put_quoted(info->label);
			printf("\"} %" PRIu64 "\n", info->alloc_bytes);
		}
	}
}

static int run_verb_metrics(const struct verb *verb, int argc, char **argv)
{
	enum tmesh_backend backend = TMESH_BACKEND_AUTO;
	struct all all = {.count = 0};
	bool regions = false;
	int key, status;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'r':
			regions = true;
			break;
		case 'b':
			backend = backend_option(verb, optarg);
			break;
		}
	}
	verb_expect_words(verb, argc, 0, 0);
	status = for_backends(backend, collect, &all);
	if (!status) {
		family("tmesh_regions", NULL, "Regions that the caller may see.");
		by_state(&all, "tmesh_regions", offsetof(struct backend, regions));
		family("tmesh_memory_bytes", "bytes", "Their memory in whole pages.");
		by_state(&all, "tmesh_memory_bytes", offsetof(struct backend, bytes));
		put_totals(&all);
		put_limits(&all);
		if (regions)
			put_regions(&all);
		puts("# EOF");
	}
	for (size_t i = 0; i < all.count; i++)
		free(all.backends[i].infos);
	return status;
}

const struct verb verb_metrics = {"metrics", "", "print OpenMetrics text for a scraper", options,
				  run_verb_metrics};
