// SPDX-License-Identifier: MIT
/* tmeshctl keep, kept, drop: memory that stays without a holder. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tmeshctl.h"

static const struct option_entry keep_options[] = {
	{"replace", 'r', NULL, "the name may be taken: what is there goes in the same step"},
	{"for", 'f', "SECONDS", "drop it when this time is over (default: never)"},
	{"file", 'F', NULL, "FIRST is a file: keep its bytes, and print a path to open them by"},
	{NULL},
};

/* That the module wants. */
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

/* Why such a file is not kept; NULL: it is. */
static const char *not_kept(const struct stat *st)
{
	if (S_ISDIR(st->st_mode))
		return "is a folder: its files are kept one by one";
	if (!S_ISREG(st->st_mode))
		return "is not a regular file: keep a file that has what it gives";
	return st->st_size ? NULL : "has no bytes, or does not say how many";
}

/* The file's bytes in a sealed memfd of exactly their length; -1 with errno, 0 when it was said
 * what is wrong. */
static int copy_file(const char *path)
{
	/* A pipe of that name must not hold us up. */
	int from = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int to = memfd_create("tmesh-file", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct progress progress;
	off_t done = 0;
	struct stat st;
	ssize_t got = from < 0 || to < 0 || fstat(from, &st) ? -1 : 1;

	if (got > 0 && not_kept(&st)) {
		fprintf(stderr, "tmeshctl: %s %s\n", path, not_kept(&st));
		errno = 0;
		got = -1;
	}
	if (got > 0)
		progress_begin(&progress, "reading", (uint64_t)st.st_size);
	while (got > 0 && done < st.st_size) {
		got = sendfile(to, from, &done, 64u << 20);
		progress_update(&progress, (uint64_t)done);
	}
	if (got > 0) {
		progress_end(&progress);
		if (fchmod(to, 0600) ||
		    fcntl(to, F_ADD_SEALS,
			  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
			got = -1;
	} else if (got == 0) {
		errno = ESTALE; /* it became shorter */
		got = -1;
	}
	if (from >= 0)
		close(from);
	if (got < 0 && to >= 0) {
		int code = errno;

		close(to);
		errno = code;
	}
	return got < 0 ? -1 : to;
}

static int keep_file(const char *path, const char *name, const struct tmesh_keep_opts *opts)
{
	struct tmesh_region *region = NULL;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	char link[4200], dir[4096];
	int fd, status = open_ctx(TMESH_BACKEND_MEMFD, &ctx);

	if (status)
		return status;
	fd = copy_file(path);
	if (fd < 0) {
		status = errno ? complain_errno(path) : 1;
	} else {
		if (tmesh_region_from_memfd(ctx, fd, 0, NULL, &region, &err) ||
		    tmesh_keep(ctx, name, &region, 1, opts, &err))
			status = complain("keeping", &err);
		close(fd);
	}
	if (!status && tmesh_ctx_runtime_dir(ctx, &fd, &err) == 0) {
		ssize_t got;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		got = readlink(link, dir, sizeof(dir) - 1);
		dir[got > 0 ? got : 0] = '\0';
		if (snprintf(link, sizeof(link), "%s/kept/%s", dir, name) < (int)sizeof(link) &&
		    access(link, R_OK) == 0)
			puts(link);
		else
			fprintf(stderr, "tmeshctl: kept, but under a name that no file can have\n");
		close(fd);
	}
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	return status;
}

static int run_keep(const struct verb *verb, int argc, char **argv)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts)};
	bool file = false;
	int key;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'r':
			opts.flags = TMESH_KEEPING_REPLACE;
			break;
		case 'f':
			opts.lifetime_ns = seconds_option(verb, optarg) * UINT64_C(1000000000);
			break;
		case 'F':
			file = true;
			break;
		}
	}
	verb_expect_words(verb, argc, 2, 2);
	return file ? keep_file(argv[optind], argv[optind + 1], &opts)
		    : keep_text(argv[optind], verb, argv[optind + 1], &opts);
}

const struct verb verb_keep = {"keep", "TOKEN|REF|FILE NAME",
			       "keep sealed memory under a name, without a holder", keep_options,
			       run_keep};

static const struct option_entry kept_options[] = {OPTION_JSON, OPTION_BACKEND, {NULL}};

struct listing {
	json_t *json; /* NULL: a table */
	struct table table;
	uint64_t now;
};

static json_t *time_json(uint64_t ns)
{
	return ns ? json_integer((json_int_t)ns) : json_null();
}

static json_t *kept_json(const struct tmesh_kept_info *info)
{
	return json_pack("{s:o, s:o, s:s, s:i, s:i, s:I, s:o, s:o, s:o, s:i, s:i, s:i, s:i, s:I}",
			 "name", json_text(info->name), "id", json_id(info->id), "backend",
			 tmesh_backend_name(info->backend), "regions", (int)info->count, "held",
			 (int)info->held, "bytes", (json_int_t)info->bytes, "kept_ns",
			 time_json(info->kept_ns), "used_ns", time_json(info->used_ns),
			 "expires_ns", time_json(info->expires_ns), "uid", (int)info->uid, "gid",
			 (int)info->gid, "mode", (int)info->mode, "handles", (int)info->handles,
			 "cgroup_id", (json_int_t)info->cgroup_id);
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

static int list(struct tmesh_ctx *ctx, void *data)
{
	struct listing *listing = data;
	struct tmesh_kept_info *infos;
	struct tmesh_error err;
	size_t count;
	int rc = tmesh_kept_list(ctx, &infos, &count, &err);

	/* An older module keeps nothing. */
	if (rc == -EOPNOTSUPP)
		return STATUS_OK;
	if (rc)
		return complain("listing what is kept", &err);
	for (size_t i = 0; i < count; i++) {
		if (listing->json)
			json_array_append_new(listing->json, kept_json(&infos[i]));
		else
			add_row(listing, &infos[i]);
	}
	free(infos);
	return STATUS_OK;
}

static int run_kept(const struct verb *verb, int argc, char **argv)
{
	static const char *const titles[] = {"NAME", "SIZE", "REGIONS", "HELD",	  "AGE",
					     "USED", "LEFT", "UID",	"BACKEND"};
	enum tmesh_backend backend = TMESH_BACKEND_AUTO;
	struct listing listing = {.table.columns = 9};
	struct timespec now;
	int key, status;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		if (key == 'j')
			listing.json = json_array();
		else
			backend = backend_option(verb, optarg);
	}
	verb_expect_words(verb, argc, 0, 0);
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

const struct verb verb_kept = {"kept", "", "list what is kept under a name", kept_options,
			       run_kept};

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

const struct verb verb_drop = {"drop", "NAME", "give up a name, and what nobody holds",
			       drop_options, run_drop};
