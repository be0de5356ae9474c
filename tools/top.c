// SPDX-License-Identifier: MIT
/* tmeshctl top: the largest regions with their holders, and engines, refreshed repeatedly. */
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>

#include "top_engines.h"

static const struct option_entry options[] = {
	{"interval", 'i', "SECONDS", "from one look to the next (default: 2)"},
	{"count", 'c', "NUMBER",
	 "look so often (default: until SIGINT; not on a terminal, or --json: once)"},
	OPTION_JSON,
	OPTION_BACKEND,
	{NULL},
};

struct look {
	struct region {
		struct tmesh_region_info info;
		char who[64];
	} * regions;
	size_t count;
	size_t rows; /* the most rows to show */
	uint64_t bytes;
	json_t *engines;
};

/* Return the region's first holder, or NULL. Holders are in the order of their regions. */
static const struct tmesh_holder_info *first_of(const struct tmesh_holder_info *holders,
						size_t count, uint64_t id)
{
	size_t from = 0, to = count;

	while (from < to) {
		size_t middle = from + (to - from) / 2;

		if (holders[middle].region < id)
			from = middle + 1;
		else
			to = middle;
	}
	return from < count && holders[from].region == id ? &holders[from] : NULL;
}

/* List all holders, with this process and devices: "python3 101, beam.smp 102, ..." */
static void fill_who(struct region *region, const struct tmesh_holder_info *holders, size_t count)
{
	const struct tmesh_holder_info *holder = first_of(holders, count, region->info.id);
	size_t used = 0;

	if (!holder)
		strcpy(region->who, "?");
	for (; holder && holder < holders + count && holder->region == region->info.id &&
	       used < sizeof(region->who);
	     holder++) {
		const char *name =
			holder->kind == TMESH_HOLDER_IS_DEVICE ? holder->device : holder->command;

		used += (size_t)snprintf(region->who + used, sizeof(region->who) - used, "%s%s %d",
					 used ? ", " : "", name, (int)holder->pid);
	}
}

static int larger(const void *a, const void *b)
{
	const struct region *one = a, *two = b;

	return (one->info.alloc_bytes < two->info.alloc_bytes) -
	       (one->info.alloc_bytes > two->info.alloc_bytes);
}

static int see(struct tmesh_ctx *ctx, void *data)
{
	struct tmesh_region_info *infos;
	struct look *look = data;
	struct tmesh_error err;
	struct tmesh_holder_info *holders = NULL;
	struct region *more;
	size_t count, held = 0;

	/* All backends have the same runtime directory. */
	if (!look->engines)
		look->engines = find_engines(ctx);
	if (tmesh_list(ctx, &infos, &count, &err))
		return complain("listing regions", &err);
	more = count ? realloc(look->regions, (look->count + count) * sizeof(*more)) : NULL;
	if (count && !more)
		abort();
	if (more)
		look->regions = more;
	more = count ? look->regions + look->count : NULL;
	for (size_t i = 0; i < count; i++) {
		more[i] = (struct region){.info = infos[i]};
		look->bytes += infos[i].alloc_bytes;
	}
	look->count += count;
	if (count)
		qsort(more, count, sizeof(*more), larger);
	free(infos);
	if (count && tmesh_holders(ctx, 0, &holders, &held, &err))
		return complain("asking for holders", &err);
	for (size_t i = 0; i < count && i < look->rows; i++)
		fill_who(&more[i], holders, held);
	free(holders);
	return STATUS_OK;
}

static void print(const struct look *look, size_t rows)
{
	static const char *const titles[] = {"ID",    "SIZE",	"STATE", "HANDLES", "EXPORTS",
					     "VIEWS", "PINNED", "LABEL", "HELD BY"};
	struct table table = {.columns = 9};
	char size[16];

	printf("%zu region%s, %s\n\n", look->count, look->count == 1 ? "" : "s",
	       human_bytes(look->bytes, size));
	for (unsigned int i = 0; i < table.columns; i++)
		table_add(&table, titles[i]);
	for (size_t i = 0; i < look->count && i < rows; i++) {
		const struct tmesh_region_info *info = &look->regions[i].info;

		table_addf(&table, "%016" PRIx64, info->id);
		table_add(&table, human_bytes(info->bytes, size));
		table_add(&table, info_state(info));
		table_addf(&table, "%u", info->handles);
		table_addf(&table, "%u", info->exports);
		table_addf(&table, "%u", info->views);
		table_add(&table, info->pinned_bytes ? human_bytes(info->pinned_bytes, size) : "-");
		table_add(&table, info->label);
		table_add(&table, look->regions[i].who);
	}
	table_print(&table);
}

static int print_look(const struct look *look)
{
	json_t *regions = json_array();

	for (size_t i = 0; i < look->count; i++) {
		json_t *region = info_json(&look->regions[i].info);

		json_object_set_new(region, "held_by", json_text(look->regions[i].who));
		json_array_append_new(regions, region);
	}
	return print_json(json_pack("{s:o, s:O}", "regions", regions, "engines", look->engines));
}

/* Return the lines for regions: those that engines leave free. */
static size_t region_rows(size_t rows, const json_t *engines)
{
	size_t taken = json_array_size(engines) ? json_array_size(engines) + 2 : 0;

	return rows > taken + 1 ? rows - taken : 1;
}

static size_t terminal_rows(void)
{
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || size.ws_row < 6)
		return 20;
	return size.ws_row - 4u;
}

/* Draw the look on a terminal. Turn off the terminal's line wrap meanwhile: wrapped lines would
 * scroll. Signals wait until the wrap is on again. */
static int draw(const struct look *look)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
	sigset_t wait, before;
	int status;

	sigemptyset(&wait);
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		sigaddset(&wait, signals[i]);
	sigprocmask(SIG_BLOCK, &wait, &before);
	fputs("\033[H\033[J\033[?7l", stdout);
	print(look, region_rows(look->rows, look->engines));
	print_served(look->engines);
	fputs("\033[?7h", stdout);
	status = flush_answer();
	sigprocmask(SIG_SETMASK, &before, NULL);
	return status;
}

static int once(enum tmesh_backend backend, bool terminal, bool json)
{
	struct look look = {.rows = terminal ? terminal_rows() : SIZE_MAX};
	int status = for_backends(backend, see, &look);

	if (!status) {
		if (look.count)
			qsort(look.regions, look.count, sizeof(*look.regions), larger);
	}
	if (!look.engines)
		look.engines = json_array();
	if (!status && json) {
		status = print_look(&look);
	} else if (!status && terminal) {
		status = draw(&look);
	} else if (!status) {
		print(&look, SIZE_MAX);
		print_served(look.engines);
	}
	if (!status)
		status = flush_answer();
	json_decref(look.engines);
	free(look.regions);
	return status;
}

static int run_verb_top(const struct verb *verb, int argc, char **argv)
{
	enum tmesh_backend backend = TMESH_BACKEND_AUTO;
	bool terminal = isatty(STDOUT_FILENO);
	struct timespec interval = {.tv_sec = 2};
	uint64_t count = 0;
	int key, status = STATUS_OK;
	bool json = false;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'i':
			interval.tv_sec = (time_t)seconds_option(verb, optarg);
			break;
		case 'c':
			count = number_option(verb, optarg, "a number of times", 1, UINT64_MAX);
			break;
		case 'j':
			json = true;
			break;
		case 'b':
			backend = backend_option(verb, optarg);
			break;
		}
	}
	verb_expect_words(verb, argc, 0, 0);
	if (!count)
		count = terminal && !json ? UINT64_MAX : 1;
	for (uint64_t i = 0; i < count && !status; i++) {
		if (i)
			nanosleep(&interval, NULL);
		status = once(backend, terminal && !json, json);
	}
	return status;
}

const struct verb verb_top = {"top", "", "show the largest regions and the engines, live", options,
			      run_verb_top};
