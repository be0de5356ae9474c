// SPDX-License-Identifier: MIT
/* tmeshctl seal: make a region immutable. */
#include "tmeshctl.h"

static const struct option_entry options[] = {{NULL}};

static int run_verb_seal(const struct verb *verb, int argc, char **argv)
{
	struct tmesh_region *region;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	struct target target;
	int status;

	while (verb_option(verb, argc, argv) != -1)
		;
	verb_expect_words(verb, argc, 1, 1);
	parse_target(verb, argv[optind], &target);
	if (!target.token[0])
		usage_error(verb, "sealing needs a token with the right to manage");

	status = open_target(&target, TMESH_READ | TMESH_WRITE | TMESH_MANAGE, &ctx, &region);
	if (status)
		return status;
	if (tmesh_region_seal(region, &err))
		status = complain("sealing", &err);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	return status;
}

const struct verb verb_seal = {"seal", "TOKEN", "make a region immutable for all processes",
			       options, run_verb_seal};
