// SPDX-License-Identifier: MIT
/* tmeshctl revoke: take a region back from all its holders. */
#include "tmeshctl.h"

static const struct option_entry options[] = {
	{"wait", 'w', "SECONDS", "wait so long for the memory to be really free"},
	{NULL},
};

/* Revoke by id. Only the region's owner may do so, even after closing all handles. */
static int revoke_by_id(const struct target *target)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int status = find_target(target, &ctx, &info);

	if (status)
		return status;
	if (tmesh_region_revoke_id(ctx, info.id, &err))
		status = complain("revoking", &err);
	tmesh_ctx_unref(ctx);
	return status;
}

static int run_verb_revoke(const struct verb *verb, int argc, char **argv)
{
	struct tmesh_region *region;
	uint64_t seconds = 0;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	struct target target;
	int key, rc, status;

	while ((key = verb_option(verb, argc, argv)) != -1)
		seconds = seconds_option(verb, optarg);
	verb_expect_words(verb, argc, 1, 1);
	parse_target(verb, argv[optind], &target);
	if (!target.token[0] && seconds)
		usage_error(verb, "--wait needs a token with the right to manage, not an id");
	if (!target.token[0])
		return revoke_by_id(&target);

	status = open_target(&target, TMESH_READ | TMESH_WRITE | TMESH_MANAGE, &ctx, &region);
	if (status)
		return status;
	if (seconds)
		rc = tmesh_region_reclaim(region, (int64_t)(seconds * UINT64_C(1000000000)), NULL,
					  &err);
	else
		rc = tmesh_region_revoke(region, &err);
	if (rc)
		status = complain("revoking", &err);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	return status;
}

const struct verb verb_revoke = {"revoke", "ID|TOKEN", "take a region back from all holders",
				 options, run_verb_revoke};
