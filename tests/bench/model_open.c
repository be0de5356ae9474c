// SPDX-License-Identifier: MIT
/*
 * The time to load a model, in a process of its own, in ns on stdout:
 *
 *   model_open load PATH [METHOD]
 *     from the path to the last tensor's object, alone, every tensor touched
 *   model_open second PATH
 *     the same untouched, while another process holds the model or it is kept
 *   model_open hold PATH
 *     a line when its context is open; after a line of stdin it loads; a line when that is done; it
 *     holds the model until stdin has another or ends
 *   model_open keep PATH
 *     keep it, and print its name instead of the time
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tmesh/model.h>
#include <tmesh/tmesh.h>

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int fail(const struct tmesh_error *err)
{
	fprintf(stderr, "%s\n", err->message);
	return 1;
}

/* One byte of each page. */
static unsigned int touch(const struct tmesh_model *model)
{
	unsigned int sum = 0;

	for (size_t i = 0; i < tmesh_model_tensors(model); i++) {
		struct tmesh_tensor *tensor;
		void *data;

		if (tmesh_model_tensor_open(model, i, &tensor, NULL) ||
		    tmesh_tensor_data(tensor, TMESH_READ, &data, NULL))
			return 0;
		for (uint64_t at = 0; at < tmesh_tensor_bytes(tensor); at += 4096)
			sum += ((volatile uint8_t *)data)[at];
		tmesh_tensor_unref(tensor);
	}
	return sum;
}

int main(int argc, char **argv)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts)};
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_tensor **tensors;
	struct tmesh_model *model;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	uint64_t began;
	size_t count;

	if (argc < 3 || tmesh_ctx_open(NULL, &ctx, &err))
		return 2;
	if (!strcmp(argv[1], "load"))
		opts.flags = TMESH_MODEL_ALONE;
	if (!strcmp(argv[1], "keep"))
		opts.flags = TMESH_MODEL_KEEP;
	for (int i = 1; argc > 3 && i < 8; i++) {
		const char *name = tmesh_model_method_name((enum tmesh_model_method)i);

		if (name && !strcmp(name, argv[3]))
			opts.method = (enum tmesh_model_method)i;
	}
	if (!strcmp(argv[1], "hold")) {
		puts("ready");
		fflush(stdout);
		getchar();
	}
	began = now_ns();
	if (tmesh_model_load(ctx, argv[2], &opts, &model, &err))
		return fail(&err);
	count = tmesh_model_tensors(model);
	tensors = calloc(count + 1, sizeof(*tensors));
	for (size_t i = 0; i < count; i++) {
		if (tmesh_model_tensor_open(model, i, &tensors[i], &err))
			return fail(&err);
	}
	if (!strcmp(argv[1], "load"))
		touch(model);
	began = now_ns() - began;
	if (tmesh_model_report(model, &report, &err))
		return fail(&err);
	if (!strcmp(argv[1], "second") && report.bytes_read) {
		fprintf(stderr, "it was read again: no process holds or keeps it\n");
		return 1;
	}
	if (opts.flags & TMESH_MODEL_KEEP)
		puts(report.kept);
	else
		printf("%llu\n", (unsigned long long)began);
	fprintf(stderr, "%s: %s\n", tmesh_model_method_name(report.method) ?: "none",
		report.reason);
	if (!strcmp(argv[1], "hold")) {
		fflush(stdout);
		getchar();
	}
	for (size_t i = 0; i < count; i++)
		tmesh_tensor_unref(tensors[i]);
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
	return 0;
}
