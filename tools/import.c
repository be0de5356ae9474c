// SPDX-License-Identifier: MIT
/* tmeshctl import: a region from a descriptor that the parent process, such as a shell, has
 * open. */
#include "tmeshctl.h"

static const struct option_entry options[] = {
	{"opaque", 'o', "BYTES", "keep a device's descriptor that stands for so many bytes"},
	{"label", 'l', "TEXT", "a name for people"},
	OPTION_JSON,
	HOLD_OPTIONS,
	{NULL},
};

static int print_names(struct tmesh_region *region, bool json)
{
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_error err;
	json_t *value;

	if (tmesh_region_token(region, TMESH_READ, token, &err))
		return complain("naming the region", &err);
	if (!json) {
		printf("id              %016" PRIx64 "\ntoken           %s\npid             %d\n",
		       tmesh_region_id(region), token, (int)getpid());
		return STATUS_OK;
	}
	value = json_pack("{s:o, s:s, s:I, s:i}", "id", json_id(tmesh_region_id(region)), "token",
			  token, "bytes", (json_int_t)tmesh_region_bytes(region), "pid",
			  (int)getpid());
	return print_json(value);
}

static int run_verb_import(const struct verb *verb, int argc, char **argv)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts)};
	struct hold hold = HOLD_INIT;
	struct tmesh_region *region;
	uint64_t opaque_bytes = 0;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	bool json = false;
	int key, fd, rc, status;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'o':
			opaque_bytes = bytes_option(verb, optarg);
			break;
		case 'l':
			opts.label = optarg;
			break;
		case 'j':
			json = true;
			break;
		case 'B':
			hold.background = true;
			break;
		case 'f':
			hold.seconds = seconds_option(verb, optarg);
			break;
		}
	}
	verb_expect_words(verb, argc, 1, 1);
	fd = (int)number_option(verb, argv[optind], "the number of a descriptor", 0, INT32_MAX);

	status = hold_begin(&hold);
	if (!status)
		status = open_ctx(TMESH_BACKEND_AUTO, &ctx);
	if (status)
		return status;
	rc = opaque_bytes ? tmesh_region_from_fd(ctx, fd, opaque_bytes, &opts, &region, &err)
			  : tmesh_region_from_dmabuf(ctx, fd, &opts, &region, &err);
	if (rc) {
		status = complain("importing", &err);
	} else {
		close(fd);
		hold_signals();
		status = print_names(region, json);
		if (!status)
			status = hold_until_end(&hold, NULL);
		tmesh_region_unref(region);
	}
	tmesh_ctx_unref(ctx);
	return status;
}

const struct verb verb_import = {"import", "FD", "make a region of an open dma-buf or device file",
				 options, run_verb_import};
