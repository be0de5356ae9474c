// SPDX-License-Identifier: MIT
/* tmeshctl load: load a file's tensors into a region, once for all processes, and hold it. */
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "model_args.h"

static const struct option_entry options[] = {
	{"method", 'm', "METHOD", "splice, io_uring, direct or read (default: the best one here)"},
	{"alone", 'a', NULL, "do not share the region with other processes"},
	{"keep", 'k', NULL, "keep it when all processes are gone: the next load reads nothing"},
	{"keep-as", 'K', "NAME", "keep it as a bundle under NAME, to be opened by that name"},
	{"lenient", 'l', NULL,
	 "take GGUF of version 2, bytes at the end, an index that lacks tensors"},
	{"hash", 'c', NULL, "tell the checksum of the region's bytes"},
	OPTION_BACKEND,
	OPTION_JSON,
	HOLD_OPTIONS,
	{NULL},
};

struct args {
	const char *path;
	enum tmesh_backend backend;
	struct tmesh_model_load_opts opts;
	const char *keep_as;
	bool json;
	struct hold hold;
};

/* An interrupted load must leave nothing behind, so it ends in order. */
static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
	interrupted = number;
}

static int show(void *data, const struct tmesh_model_progress *state)
{
	struct progress *progress = data;

	progress->total = state->bytes_total;
	progress->what = state->waiting ? "waiting for another reader" : "load";
	progress_update(progress, state->bytes_done);
	return interrupted;
}

static enum tmesh_model_method method_option(const struct verb *verb, const char *text)
{
	for (int i = TMESH_MODEL_SPLICE; tmesh_model_method_name((enum tmesh_model_method)i); i++) {
		if (!strcmp(text, tmesh_model_method_name((enum tmesh_model_method)i)))
			return (enum tmesh_model_method)i;
	}
	usage_error(verb, "there is no method \"%s\"", text);
}

static json_t *report_json(const struct tmesh_model_report *report, const char *kept,
			   const char *hash)
{
	json_t *json =
		json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:b, s:s, s:s}", "bytes",
			  (json_int_t)report->bytes, "bytes_read", (json_int_t)report->bytes_read,
			  "bytes_copied", (json_int_t)report->bytes_copied, "tensors_moved",
			  (json_int_t)report->tensors_moved, "huge_bytes",
			  (json_int_t)report->huge_bytes, "ns", (json_int_t)report->ns, "method",
			  tmesh_model_method_name(report->method), "shared", report->shared,
			  "file_system", report->file_system, "reason", report->reason);

	json_object_set_new(json, "kept", *kept ? json_string(kept) : json_null());
	if (*hash)
		json_object_set_new(json, "xxh3", json_string(hash));
	return json;
}

static int print_loaded(const struct args *args, const struct tmesh_model *model, const char *token,
			const char *ref)
{
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_region *region = tmesh_model_region(model);
	char size[16], hash[33] = "";
	const char *kept;
	json_t *json;

	tmesh_model_report(model, &report, NULL);
	kept = args->keep_as ? args->keep_as : report.kept;
	for (int i = 0; args->opts.flags & TMESH_MODEL_HASH && i < 16; i++)
		snprintf(hash + 2 * i, 3, "%02x", report.hash[i]);
	if (args->json) {
		json = json_pack("{s:o, s:s, s:s, s:i, s:o}", "id",
				 json_id(tmesh_region_id(region)), "token", token, "format",
				 tmesh_model_format_name(tmesh_model_format(model)), "pid",
				 (int)getpid(), "report", report_json(&report, kept, hash));
		json_object_set_new(json, "tensors",
				    json_integer((json_int_t)tmesh_model_tensors(model)));
		json_object_set_new(json, "ref", json_loads(ref, 0, NULL));
		return print_json(json);
	}
	printf("id              %016" PRIx64 "\ntoken           %s\n", tmesh_region_id(region),
	       token);
	printf("tensors         %zu\nbytes           %s\n", tmesh_model_tensors(model),
	       human_bytes(report.bytes, size));
	printf("in huge pages   %s\n", human_bytes(report.huge_bytes, size));
	printf("method          %s (%s)\ntime            %.3f s\n",
	       report.method ? tmesh_model_method_name(report.method) : "none", report.reason,
	       (double)report.ns / 1e9);
	if (*kept)
		printf("kept            %s\n", kept);
	if (*hash)
		printf("xxh3            %s\n", hash);
	printf("ref             %s\npid             %d\n", ref, (int)getpid());
	return STATUS_OK;
}

/* Return the bundle's ref, which the caller frees; NULL after an error was reported. */
static char *bundle_ref(struct tmesh_ctx *ctx, const struct tmesh_model *model,
			struct tmesh_bundle **bundle)
{
	struct tmesh_error err;
	size_t size;
	char *ref;

	if (tmesh_model_bundle(ctx, model, bundle, &err)) {
		complain("the bundle", &err);
		return NULL;
	}
	size = tmesh_bundle_ref_size(*bundle);
	ref = malloc(size);
	if (ref && !tmesh_bundle_ref_encode(*bundle, TMESH_READ, ref, size, &err))
		return ref;
	if (ref)
		complain("naming the bundle", &err);
	else
		complain_errno("naming the bundle");
	free(ref);
	tmesh_bundle_unref(*bundle);
	return NULL;
}

static int keep_as(struct tmesh_ctx *ctx, const char *name, struct tmesh_bundle *bundle)
{
	struct tmesh_error err;

	if (name && tmesh_keep_bundle(ctx, name, bundle, NULL, &err))
		return complain("keeping", &err);
	return STATUS_OK;
}

static int load_and_hold(struct args *args)
{
	char token[TMESH_TOKEN_SIZE], variable[TMESH_TOKEN_SIZE + 16];
	char *variables[] = {variable, NULL, NULL}, *ref;
	struct tmesh_bundle *bundle;
	struct progress progress;
	struct tmesh_model *model;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int status = open_ctx(args->backend, &ctx), rc;

	if (status)
		return status;
	progress_begin(&progress, "load", 0);
	args->opts.progress = show;
	args->opts.progress_data = &progress;
	rc = tmesh_model_load(ctx, args->path, &args->opts, &model, &err);
	progress_end(&progress);
	hold_signals();
	/* A signal may have come after the last report of progress. */
	if (!rc && interrupted) {
		snprintf(err.message, sizeof(err.message), "the loading was cancelled");
		tmesh_model_unref(model);
		rc = -ECANCELED;
	}
	if (rc) {
		tmesh_ctx_unref(ctx);
		return complain(args->path, &err);
	}
	if (tmesh_region_token(tmesh_model_region(model), TMESH_READ, token, &err))
		status = complain("naming the region", &err);
	ref = status ? NULL : bundle_ref(ctx, model, &bundle);
	if (ref) {
		snprintf(variable, sizeof(variable), "TMESH_TOKEN=%s", token);
		if (asprintf(&variables[1], "TMESH_REF=%s", ref) < 0)
			variables[1] = NULL;
		status = keep_as(ctx, args->keep_as, bundle);
		if (!status && !args->hold.command)
			status = print_loaded(args, model, token, ref);
		if (!status)
			status = hold_until_end(&args->hold, variables);
		free(variables[1]);
		free(ref);
		tmesh_bundle_unref(bundle);
	} else {
		status = STATUS_FAILED;
	}
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
	return status;
}

/* Set the handlers in the process that loads: one that waits for a holder ends by the signal, and
 * the holder then gets a SIGTERM. */
static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = interrupt}, before;

	/* A SIGINT that was ignored at the start stays ignored. */
	if (!sigaction(SIGINT, NULL, &before) && before.sa_handler != SIG_IGN)
		sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static int run_verb_load(const struct verb *verb, int argc, char **argv)
{
	struct args args = {.opts = {.size = sizeof(args.opts)}, .hold = HOLD_INIT};
	int key, status;

	args.hold.command = split_command(verb, &argc, argv);
	while ((key = verb_option(verb, argc, argv)) >= 0) {
		switch (key) {
		case 'm':
			args.opts.method = method_option(verb, optarg);
			break;
		case 'a':
			args.opts.flags |= TMESH_MODEL_ALONE;
			break;
		case 'k':
			args.opts.flags |= TMESH_MODEL_KEEP;
			break;
		case 'K':
			args.keep_as = optarg;
			break;
		case 'l':
			args.opts.flags |= TMESH_MODEL_LENIENT;
			break;
		case 'c':
			args.opts.flags |= TMESH_MODEL_HASH;
			break;
		case 'b':
			args.backend = backend_option(verb, optarg);
			break;
		case 'j':
			args.json = true;
			break;
		case 'B':
			args.hold.background = true;
			break;
		case 'f':
			args.hold.seconds = seconds_option(verb, optarg);
			break;
		}
	}
	verb_expect_words(verb, argc, 1, 1);
	hold_check(verb, &args.hold, args.json);
	if (args.keep_as && (args.opts.flags & TMESH_MODEL_KEEP))
		usage_error(
			verb,
			"--keep and --keep-as exclude each other: a region is kept under one name");
	args.path = argv[argc - 1];
	status = hold_begin(&args.hold);
	if (status)
		return status;
	catch_signals();
	return load_and_hold(&args);
}

static const struct verb verb_load = {
	.name = "load",
	.args = "PATH [-- COMMAND...]",
	.help = "Load a safetensors or GGUF file into a region and hold it.",
	.options = options,
	.run = run_verb_load,
};

int main(int argc, char **argv)
{
	return verb_main(&verb_load, argc, argv);
}
