/* SPDX-License-Identifier: MIT */
/* cc net_open.c $(pkg-config --cflags --libs libtmesh-net) -o net_open */
/*
 * Open an offer of an Elixir node, on this machine or another, by this machine's Tmesh.Net. Write
 * its bytes to stdout. For a bundle, write each tensor's name and its bytes.
 *
 *   net_open tensor|bundle ref|name TEXT [SECONDS]
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* strerrorname_np() */
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tmesh/net.h>

static int show(struct tmesh_tensor *tensor, struct tmesh_error *err)
{
	void *data;
	int rc = tmesh_tensor_data(tensor, TMESH_READ, &data, err);

	if (!rc)
		fwrite(data, 1, tmesh_tensor_bytes(tensor), stdout);
	tmesh_tensor_unref(tensor);
	return rc;
}

static int open_tensor(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted,
		       struct tmesh_error *err)
{
	struct tmesh_tensor *tensor;
	int rc = tmesh_net_open_tensor(ctx, wanted, &tensor, err);

	return rc ? rc : show(tensor, err);
}

static int open_bundle(struct tmesh_ctx *ctx, const struct tmesh_net_wanted *wanted,
		       struct tmesh_error *err)
{
	struct tmesh_tensor *tensor;
	struct tmesh_bundle *bundle;
	int rc = tmesh_net_open_bundle(ctx, wanted, &bundle, err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < tmesh_bundle_count(bundle); i++) {
		fputs(tmesh_bundle_name(bundle, i), stdout);
		rc = tmesh_bundle_tensor(bundle, i, &tensor, err);
		if (!rc)
			rc = show(tensor, err);
	}
	tmesh_bundle_unref(bundle);
	return rc;
}

int main(int argc, char **argv)
{
	struct tmesh_net_wanted wanted = {.size = sizeof(wanted)};
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc;

	if (argc < 4 || argc > 5) {
		fprintf(stderr, "usage: net_open tensor|bundle ref|name TEXT [SECONDS]\n");
		return 2;
	}
	if (argc == 5)
		wanted.timeout_ns = strtoull(argv[4], NULL, 10) * 1000000000;
	if (!strcmp(argv[2], "name")) {
		wanted.name = argv[3];
	} else {
		wanted.ref = argv[3];
		wanted.ref_bytes = strlen(argv[3]);
	}
	rc = tmesh_ctx_open(NULL, &ctx, &err);
	if (!rc) {
		rc = strcmp(argv[1], "bundle") ? open_tensor(ctx, &wanted, &err)
					       : open_bundle(ctx, &wanted, &err);
		tmesh_ctx_unref(ctx);
	}
	if (rc)
		fprintf(stderr, "%s: %s\n", strerrorname_np(-rc), err.message);
	return rc ? 1 : 0;
}
