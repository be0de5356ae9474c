// SPDX-License-Identifier: MIT
/*
 * tmeshctl bench: what handing memory over takes on this machine, each way beside the shortest one
 * that could be written by hand for it. What is timed, and how, is in tools/bench.
 */
#include <getopt.h>
#include <string.h>

#include "bench/harness.h"
#include "tmeshctl.h"

#define ROUNDS 100
#define SERIES 32 /* more than there are */

enum {
	KEY_SAMPLES = KEY_LONG
};

static const struct option_entry options[] = {
	{"rounds", 'r', "N", "how often each way is gone (default: 100)"},
	{"samples", KEY_SAMPLES, NULL, "print every sample, a line of JSON for each series"},
	OPTION_JSON,
	OPTION_BACKEND,
	{NULL},
};

static const struct line {
	const char *title, *topic, *ours, *floor, *what;
} lines[] = {
	{"1 MiB by socket, to write", "handover", "socket-tmesh-writable", "socket-by-hand",
	 "memfd, SCM_RIGHTS, mmap by hand"},
	{"1 MiB by socket, to read", "handover", "socket-tmesh", "socket-by-hand-promising",
	 "the same, sealed and read-only"},
	{"1 MiB by token, first contact", "handover", "token-tmesh", "token-by-hand",
	 "connect, secret, SCM_RIGHTS"},
	{"open by token, known peer", "handover", "open-known", "open-floor", "mmap, first byte"},
	{"tensor through a channel", "channel", "tensor", "line-2", "a cache line each way"},
	{"the same, both ends asleep", "channel", "sleeping", "futex", "a bare futex"},
	{"put 100 MB, reused memory", "put", "put-warm", "memcpy-warm", "memcpy() to warm memory"},
	{"put 100 MB, new memory", "put", "put-cold-4k", "memcpy-warm", "memcpy() to warm memory"},
};

#define LINES (sizeof(lines) / sizeof(lines[0]))

static struct summary {
	const char *topic, *name, *skipped;
	uint64_t median, p99, best;
} summaries[SERIES];

static size_t summarised;

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return a < b ? -1 : a > b;
}

static void summarise(const char *topic, const struct series *series)
{
	struct summary *to = &summaries[summarised++];
	static uint64_t sorted[SERIES_MAX];
	size_t n = series->n;

	*to = (struct summary){.topic = topic, .name = series->name, .skipped = series->skipped};
	if (series->skipped)
		return;
	memcpy(sorted, series->ns, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare);
	to->median = sorted[n / 2];
	to->p99 = sorted[n * 99 / 100];
	to->best = sorted[0];
}

static const struct summary *find(const char *topic, const char *name)
{
	for (size_t i = 0; i < summarised; i++)
		if (!strcmp(summaries[i].topic, topic) && !strcmp(summaries[i].name, name))
			return &summaries[i];
	die("no series %s/%s", topic, name);
}

static double ratio_of(const struct summary *ours, const struct summary *floor)
{
	return (double)ours->median / (double)floor->median;
}

/* Three digits and a unit; what rounds to a thousand of one is 1 of the next. */
static void add_duration(struct table *table, uint64_t ns)
{
	static const struct {
		const char *name;
		double ns;
	} units[] = {{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}};
	int i = 0;

	while (i < 3 && (double)ns < 0.9995 * units[i].ns)
		i++;
	table_addf(table, "%.3g %s", (double)ns / units[i].ns, units[i].name);
}

static int print_table(const char *backend)
{
	static const char *const heads[] = {"WAY", "MEDIAN", "P99", "BESIDE", "MEDIAN", "RATIO"};
	struct table table = {.columns = 6};

	printf("tmesh %s, %s backend, %d CPU%s\n\n", tmesh_version(), backend, cpus(),
	       cpus() == 1 ? "" : "s");
	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
		table_add(&table, heads[i]);
	for (size_t i = 0; i < LINES; i++) {
		const struct summary *ours = find(lines[i].topic, lines[i].ours);
		const struct summary *floor = find(lines[i].topic, lines[i].floor);

		if (ours->skipped)
			continue;
		table_add(&table, lines[i].title);
		add_duration(&table, ours->median);
		add_duration(&table, ours->p99);
		table_add(&table, lines[i].what);
		add_duration(&table, floor->median);
		table_addf(&table, "%.2f", ratio_of(ours, floor));
	}
	table_print(&table);
	for (size_t i = 0; i < LINES; i++) {
		const struct summary *ours = find(lines[i].topic, lines[i].ours);

		if (ours->skipped)
			printf("\nnot measured: %s: %s\n", lines[i].title, ours->skipped);
	}
	return STATUS_OK;
}

static json_t *times_json(const struct summary *summary)
{
	return json_pack("{sI sI sI}", "median_ns", (json_int_t)summary->median, "p99_ns",
			 (json_int_t)summary->p99, "best_ns", (json_int_t)summary->best);
}

static json_t *line_json(const struct line *line)
{
	const struct summary *ours = find(line->topic, line->ours);
	const struct summary *floor = find(line->topic, line->floor);

	if (ours->skipped)
		return json_pack("{ss ss}", "way", line->title, "skipped", ours->skipped);
	return json_pack("{ss so ss so sf}", "way", line->title, "took", times_json(ours), "beside",
			 line->what, "floor", times_json(floor), "ratio", ratio_of(ours, floor));
}

static int print_answer(const char *backend)
{
	json_t *list = json_array();

	for (size_t i = 0; i < LINES; i++)
		json_array_append_new(list, line_json(&lines[i]));
	return print_json(json_pack("{ss ss si so}", "version", tmesh_version(), "backend", backend,
				    "cpus", cpus(), "lines", list));
}

static int at_least_one(int rounds)
{
	return rounds ? rounds : 1;
}

static int run(const struct verb *verb, int argc, char **argv)
{
	enum tmesh_backend backend = TMESH_BACKEND_AUTO;
	series_report *tell = summarise;
	struct tmesh_ctx *ctx;
	int rounds = ROUNDS, key, status;
	bool json = false;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'r':
			rounds = (int)number_option(verb, optarg, "a number of rounds (1 to 4096)",
						    1, SERIES_MAX);
			break;
		case KEY_SAMPLES:
			tell = series_print;
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
	if (json && tell == series_print)
		usage_error(verb, "--samples are JSON already");
	status = open_ctx(backend, &ctx);
	if (status)
		return status;
	bench_backend = tmesh_ctx_backend(ctx);
	tmesh_ctx_unref(ctx);

	/* The shares make the three take about as long as each other. */
	bench_handover(rounds, tell);
	bench_channel(at_least_one(rounds / 2), tell);
	bench_put(at_least_one(rounds / 10), tell);
	if (tell == series_print)
		return STATUS_OK;
	return json ? print_answer(tmesh_backend_name(bench_backend))
		    : print_table(tmesh_backend_name(bench_backend));
}

const struct verb verb_bench = {"bench", "", "measure hand-overs on this machine", options, run};
