// SPDX-License-Identifier: MIT
/* tmeshctl keep, kept, drop: memory that stays without a holder. */
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "tmeshctl.h"

static const struct option_entry keep_options[] = {
	{"replace", 'r', NULL, "replace the memory that is kept under the name, in one step"},
	{"for", 'f', "SECONDS", "drop it when this time is over (default: never)"},
	{"file", 'F', NULL, "FIRST is a file: keep its bytes, and print a path to open them by"},
	{"folder", 'd', NULL, "FIRST is a folder, or a model of the hub: keep all of its files"},
	{"mode", 'm', "MODE", "permission to read the files: 0600 (the default), 0640 or 0644"},
	{"group", 'g', "GID", "the group of mode 0640 (default: this process's)"},
	{NULL},
};

/* Rights that keeping requires with the module. */
#define RIGHTS (TMESH_READ | TMESH_MANAGE)

static int keep_text(const char *text, const struct verb *verb, const char *name,
		     const struct tmesh_keep_opts *opts)
{
	struct tmesh_region *region;
	struct tmesh_bundle *bundle;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	struct target target;
	bool module;
	int status;

	if (strstr(text, "\"bundle\"")) {
		module = strstr(text, "\"tm1k-");
		status = open_ctx(module ? TMESH_BACKEND_KERNEL : TMESH_BACKEND_MEMFD, &ctx);
		if (status)
			return status;
		if (tmesh_bundle_open(ctx, text, strlen(text), module ? RIGHTS : TMESH_READ,
				      &bundle, &err)) {
			status = complain("opening the bundle", &err);
		} else {
			if (tmesh_keep_bundle(ctx, name, bundle, opts, &err))
				status = complain("keeping", &err);
			tmesh_bundle_unref(bundle);
		}
		tmesh_ctx_unref(ctx);
		return status;
	}
	if (strncmp(text, "tm1", 3) && text[0] != '{' && access(text, F_OK) == 0)
		usage_error(
			verb,
			"\"%s\" is a file: --file keeps its bytes, and tmeshctl load --keep what "
			"a safetensors or GGUF file holds",
			text);
	parse_target(verb, text, &target);
	if (!target.token[0])
		usage_error(verb, "keeping needs a token, not an id");
	module = !strncmp(target.token, "tm1k-", 5);
	status = open_target(&target, module ? RIGHTS : TMESH_READ, &ctx, &region);
	if (status)
		return status;
	if (tmesh_keep(ctx, name, &region, 1, opts, &err))
		status = complain("keeping", &err);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	return status;
}

/* Print the path by which programs open the kept group @name. */
static int print_path(struct tmesh_ctx *ctx, const char *name, const char *path)
{
	struct tmesh_error err;
	char *text;

	if (tmesh_kept_path(ctx, name, path, &text, &err))
		return complain("the kept path", &err);
	puts(text);
	free(text);
	return STATUS_OK;
}

static int show_progress(void *data, uint64_t done, uint64_t total)
{
	struct progress *progress = data;

	progress->total = total;
	progress_update(progress, done);
	return 0;
}

/* Raise the limit of open files: each kept file of 64 KiB and more needs a descriptor. */
static void raise_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* Print the path of the kept files. They stay kept even if no program shows them as files, so print
 * that error and do not fail. */
static void tell_path(struct tmesh_ctx *ctx, const char *name, const char *file)
{
	struct tmesh_error err;
	char *text;

	if (tmesh_kept_path(ctx, name, file, &text, &err)) {
		fprintf(stderr, "tmeshctl: %s\n", err.message);
		return;
	}
	puts(text);
	free(text);
}

static int keep_files(const struct verb *verb, const char *path, bool folder, const char *name,
		      struct tmesh_keep_opts *opts)
{
	const char *slash = strrchr(path, '/');
	struct progress progress;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	struct stat st;
	int status, rc;

	if (strchr(name, '/') || *name == '.')
		usage_error(verb,
			    "the name \"%s\" has a slash or begins with a dot: no path can have it",
			    name);
	if (stat(path, &st))
		return complain_errno(path);
	if (folder != S_ISDIR(st.st_mode)) {
		fprintf(stderr, "tmeshctl: %s is %s: %s keeps %s\n", path,
			folder ? "no folder" : "no regular file", folder ? "--file" : "--folder",
			folder ? "a file" : "a folder's files");
		return 1;
	}
	status = open_ctx(TMESH_BACKEND_AUTO, &ctx);
	if (status)
		return status;
	raise_files();
	progress_begin(&progress, "reading", 0);
	opts->progress = show_progress;
	opts->progress_data = &progress;
	rc = tmesh_keep_folder(ctx, name, path, opts, &err);
	progress_end(&progress);
	if (rc)
		status = complain("keeping", &err);
	else
		tell_path(ctx, name, folder ? NULL : slash ? slash + 1 : path);
	tmesh_ctx_unref(ctx);
	return status;
}

static uint32_t mode_option(const struct verb *verb, const char *text)
{
	static const struct {
		const char *text;
		uint32_t mode;
	} modes[] = {{"0600", 0600}, {"600", 0600},  {"0640", 0640},
		     {"640", 0640},  {"0644", 0644}, {"644", 0644}};

	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++)
		if (!strcmp(text, modes[i].text))
			return modes[i].mode;
	usage_error(verb, "the mode \"%s\" is not 0600, 0640 or 0644", text);
}

static int run_keep(const struct verb *verb, int argc, char **argv)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts)};
	bool file = false, folder = false;
	int key;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'r':
			opts.flags |= TMESH_KEEPING_REPLACE;
			break;
		case 'f':
			opts.lifetime_ns = seconds_option(verb, optarg) * UINT64_C(1000000000);
			break;
		case 'F':
			file = true;
			break;
		case 'd':
			folder = true;
			break;
		case 'm':
			opts.mode = mode_option(verb, optarg);
			break;
		case 'g':
			opts.flags |= TMESH_KEEPING_GID;
			opts.gid =
				(gid_t)number_option(verb, optarg, "a group id", 0, UINT32_MAX - 1);
			break;
		}
	}
	verb_expect_words(verb, argc, 2, 2);
	if (!file && !folder && opts.mode)
		usage_error(verb, "--mode is for --file and --folder");
	if (file && folder)
		usage_error(verb, "FIRST is a file or a folder, not both");
	return file || folder ? keep_files(verb, argv[optind], folder, argv[optind + 1], &opts)
			      : keep_text(argv[optind], verb, argv[optind + 1], &opts);
}

const struct verb verb_keep = {"keep", "TOKEN|REF|FILE|FOLDER NAME",
			       "keep sealed memory under a name, without a holder", keep_options,
			       run_keep};

static const struct option_entry kept_options[] = {
	OPTION_JSON,
	OPTION_BACKEND,
	{"path", 'p', NULL, "print the path of NAME, also of a file in it: NAME/FILE"},
	{"artifacts", 'a', NULL, "list only finished weights of engines"},
	{NULL},
};

struct listing {
	json_t *json; /* NULL: a table */
	bool artifacts;
	struct table table;
	uint64_t now;
};

static json_t *time_json(uint64_t ns)
{
	return ns ? json_integer((json_int_t)ns) : json_null();
}

static json_t *kept_json(const struct tmesh_kept_info *info)
{
	return json_pack("{s:o, s:o, s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I}",
			 "name", json_text(info->name), "id", json_id(info->id), "backend",
			 tmesh_backend_name(info->backend), "regions", (json_int_t)info->count,
			 "held", (json_int_t)info->held, "bytes", (json_int_t)info->bytes,
			 "kept_ns", time_json(info->kept_ns), "used_ns", time_json(info->used_ns),
			 "expires_ns", time_json(info->expires_ns), "uid", (json_int_t)info->uid,
			 "gid", (json_int_t)info->gid, "mode", (json_int_t)info->mode, "handles",
			 (json_int_t)info->handles, "cgroup_id", (json_int_t)info->cgroup_id);
}

static void add_seconds(struct table *table, uint64_t from, uint64_t to)
{
	table_addf(table, "%" PRIu64 " s", from < to ? (to - from) / 1000000000 : 0);
}

static void add_row(struct listing *listing, const struct tmesh_kept_info *info)
{
	struct table *table = &listing->table;
	char size[16];

	table_add(table, info->name);
	table_add(table, human_bytes(info->bytes, size));
	table_addf(table, "%u", info->count);
	table_addf(table, "%u", info->held);
	add_seconds(table, info->kept_ns, listing->now);
	add_seconds(table, info->used_ns, listing->now);
	if (info->expires_ns)
		add_seconds(table, listing->now, info->expires_ns);
	else
		table_add(table, "-");
	table_addf(table, "%u", info->uid);
	table_add(table, tmesh_backend_name(info->backend));
}

/* Return whether the name is that of an artifact: "a." and SHA-256 in 52 characters of base32. */
static bool is_artifact(const char *name)
{
	return !strncmp(name, "a.", 2) && strlen(name) == 54 &&
	       strspn(name + 2, "abcdefghijklmnopqrstuvwxyz234567") == 52;
}

static int list(struct tmesh_ctx *ctx, void *data)
{
	struct listing *listing = data;
	struct tmesh_kept_info *infos;
	struct tmesh_error err;
	size_t count;
	int rc = tmesh_kept_list(ctx, &infos, &count, &err);

	/* An older module cannot keep regions. */
	if (rc == -EOPNOTSUPP)
		return STATUS_OK;
	if (rc)
		return complain("listing what is kept", &err);
	for (size_t i = 0; i < count; i++) {
		if (listing->artifacts && !is_artifact(infos[i].name))
			continue;
		if (listing->json)
			json_array_append_new(listing->json, kept_json(&infos[i]));
		else
			add_row(listing, &infos[i]);
	}
	free(infos);
	return STATUS_OK;
}

/* Print the path of NAME or NAME/FILE. Names of kept files contain no slash. */
static int kept_path(char *word)
{
	char *slash = strchr(word, '/');
	struct tmesh_ctx *ctx;
	int status = open_ctx(TMESH_BACKEND_AUTO, &ctx);

	if (status)
		return status;
	if (slash)
		*slash = '\0';
	status = print_path(ctx, word, slash ? slash + 1 : NULL);
	tmesh_ctx_unref(ctx);
	return status;
}

static int run_kept(const struct verb *verb, int argc, char **argv)
{
	static const char *const titles[] = {"NAME", "SIZE", "REGIONS", "HELD",	  "AGE",
					     "USED", "LEFT", "UID",	"BACKEND"};
	enum tmesh_backend backend = TMESH_BACKEND_AUTO;
	struct listing listing = {.table.columns = 9};
	struct timespec now;
	bool path = false;
	int key, status;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		if (key == 'j')
			listing.json = json_array();
		else if (key == 'p')
			path = true;
		else if (key == 'a')
			listing.artifacts = true;
		else
			backend = backend_option(verb, optarg);
	}
	verb_expect_words(verb, argc, path, listing.artifacts ? 0 : 1);
	if (optind < argc)
		return kept_path(argv[optind]);
	clock_gettime(CLOCK_MONOTONIC, &now);
	listing.now = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
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

const struct verb verb_kept = {"kept", "[NAME]", "list what is kept, or print the path of a name",
			       kept_options, run_kept};

static const struct option_entry drop_options[] = {OPTION_BACKEND, {NULL}};

struct dropping {
	const char *name;
	bool done;
};

static int drop(struct tmesh_ctx *ctx, void *data)
{
	struct dropping *dropping = data;
	struct tmesh_error err;
	int rc = tmesh_kept_drop(ctx, dropping->name, &err);

	if (rc == -ENOENT || rc == -EOPNOTSUPP)
		return STATUS_OK;
	if (rc)
		return complain("dropping", &err);
	dropping->done = true;
	return STATUS_OK;
}

static int run_drop(const struct verb *verb, int argc, char **argv)
{
	enum tmesh_backend backend = TMESH_BACKEND_AUTO;
	struct dropping dropping = {0};
	struct tmesh_error err;
	int status;

	while (verb_option(verb, argc, argv) != -1)
		backend = backend_option(verb, optarg);
	verb_expect_words(verb, argc, 1, 1);
	dropping.name = argv[optind];
	status = for_backends(backend, drop, &dropping);
	if (status || dropping.done)
		return status;
	snprintf(err.message, sizeof(err.message), "nothing is kept as \"%.200s\"", dropping.name);
	return complain("dropping", &err);
}

const struct verb verb_drop = {"drop", "NAME", "give up a name, and free memory without a holder",
			       drop_options, run_drop};
