// SPDX-License-Identifier: MIT
/* tmeshctl export: a region as a dma-buf, for a command or for inspection. */
#include "tmeshctl.h"

static const struct option_entry options[] = {
	{"range", 'r', "OFFSET:BYTES", "only these bytes, in whole pages"},
	{"read-only", 'R', NULL, "refuse writable mappings (not on memfd)"},
	{"for", 'f', "SECONDS", "hold for so long (default: until SIGINT or SIGTERM)"},
	{NULL},
};

static int hold_export(struct hold *hold, int fd)
{
	char variable[32];
	char *variables[] = {variable, NULL};

	hold_signals();
	if (!hold->command) {
		printf("dmabuf  /proc/%d/fd/%d\n", (int)getpid(), fd);
		return hold_until_end(hold, NULL);
	}
	snprintf(variable, sizeof(variable), "TMESH_DMABUF_FD=%d", fd);
	return run_command(hold->command, variables, fd);
}

static int run_verb_export(const struct verb *verb, int argc, char **argv)
{
	uint32_t rights = TMESH_READ | TMESH_WRITE;
	uint64_t offset = 0, bytes = 0;
	struct hold hold = HOLD_INIT;
	struct tmesh_region *region;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	struct target target;
	int key, fd, status;

	hold.command = split_command(verb, &argc, argv);
	while ((key = verb_option(verb, argc, argv)) != -1) {
		switch (key) {
		case 'r':
			range_option(verb, optarg, &offset, &bytes);
			break;
		case 'R':
			rights = TMESH_READ;
			break;
		case 'f':
			hold.seconds = seconds_option(verb, optarg);
			break;
		}
	}
	verb_expect_words(verb, argc, 1, 1);
	hold_check(verb, &hold, false);
	parse_target(verb, argv[optind], &target);
	if (!target.token[0])
		usage_error(verb, "exporting needs a token");

	status = hold_begin(&hold);
	if (!status)
		status = open_target(&target, rights, &ctx, &region);
	if (status)
		return status;
	if (tmesh_region_export_dmabuf(region, offset, bytes, rights, &fd, &err)) {
		status = complain("exporting", &err);
	} else {
		status = hold_export(&hold, fd);
		close(fd);
	}
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	return status;
}

const struct verb verb_export = {"export", "TOKEN [-- COMMAND [ARGUMENT...]]",
				 "make a dma-buf of a region", options, run_verb_export};
