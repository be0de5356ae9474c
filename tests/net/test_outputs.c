// SPDX-License-Identifier: MIT
/* On failure, out-parameters of libtmesh-net keep their values, as tests/unit/test_outputs.c shows
 * for libtmesh. */
#include "home.h"
#include "outputs.h"

#define NOBODY "00000000000000000000000000000000"
#define NO_KEY "0000000000000000"

UNIT(test_homes)
{
	struct tmesh_net_opts nowhere = opts_of("203.0.113.77");
	struct tmesh_net_source wrong;
	struct tmesh_region *open;
	struct home home;

	begin(&home);
	open = make(home.ctx, 100, false);
	wrong = source_of(&home);
	wrong.key = NO_KEY;
	FAILS(tmesh_net_open, -EINVAL, home.ctx, NULL, OUT, err);
	FAILS(tmesh_net_open, -EINVAL, home.ctx, &nowhere, OUT, err);
	FAILS(tmesh_net_offer, -EINVAL, home.net, open, OUT, err);
	/* The region was read, and the caller's structure has no size. */
	FAILS(tmesh_net_offer, -EINVAL, home.net, home.region, &(struct tmesh_net_offer_info){0},
	      err);
	FAILS(tmesh_net_grant, -ENOENT, home.net, NOBODY, "reader", out.text, other.text, err);
	FAILS(tmesh_net_fetch, -EPIPE, home.net, &wrong, NULL, OUT, err);
	wrong = source_of(&home);
	wrong.checksum = NOBODY;
	FAILS(tmesh_net_fetch, -EPROTO, home.net, &wrong, NULL, OUT, err);
	FAILS(tmesh_net_copy, -EOVERFLOW, home.net, home.info.id, OUT, 8, &other.size, err);
	FAILS(tmesh_net_copy, -ENOENT, home.net, NOBODY, OUT, 8, &other.size, err);
	FAILS(tmesh_net_store, -EPROTO, home.net, "x", 1, NOBODY, OUT, err);
	FAILS(tmesh_net_stats, -EINVAL, home.net, &(struct tmesh_net_stats){0});
	tmesh_region_unref(open);
	finish(&home);
}

UNIT(test_nodes)
{
	struct tmesh_net_wanted nothing = {.size = sizeof(nothing)}, nobody = nothing;
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	nobody.name = "nobody";
	FAILS(tmesh_net_open_tensor, -EINVAL, ctx, &nothing, OUT, err);
	FAILS(tmesh_net_open_tensor, -ENOENT, ctx, &nobody, OUT, err);
	FAILS(tmesh_net_open_bundle, -EINVAL, ctx, &nothing, OUT, err);
	FAILS(tmesh_net_open_bundle, -ENOENT, ctx, &nobody, OUT, err);
	tmesh_ctx_unref(ctx);
}

UNIT_MAIN("net outputs", NULL, NULL)
