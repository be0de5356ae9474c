// SPDX-License-Identifier: MIT
/*
 * A program of a machine that opens by its Tmesh.Net: the bytes to stdout, or an error's name and
 * message.
 *
 *   open_local tensor|bundle ref|name TEXT [SECONDS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tmesh/net.h>

static void show(struct tmesh_tensor *tensor)
{
	void *data;
	struct tmesh_error err;

	if (tmesh_tensor_data(tensor, TMESH_READ, &data, &err)) {
		fprintf(stderr, "%s\n", err.message);
		exit(1);
	}
	fwrite(data, 1, tmesh_tensor_bytes(tensor), stdout);
	tmesh_tensor_unref(tensor);
}

int main(int argc, char **argv)
{
	struct tmesh_net_wanted wanted = {.size = sizeof(wanted)};
	struct tmesh_tensor *tensor;
	struct tmesh_bundle *bundle;
	struct tmesh_error err = {0};
	struct tmesh_ctx *ctx;
	int rc;

	if (argc != 4 && argc != 5)
		return 2;
	if (argc == 5)
		wanted.timeout_ns = strtoull(argv[4], NULL, 10) * 1000000000;
	if (!strcmp(argv[2], "name"))
		wanted.name = argv[3];
	else
		wanted.ref = argv[3], wanted.ref_bytes = strlen(argv[3]);
	if (tmesh_ctx_open(NULL, &ctx, &err)) {
		fprintf(stderr, "%s\n", err.message);
		return 2;
	}
	if (strcmp(argv[1], "bundle")) {
		rc = tmesh_net_open_tensor(ctx, &wanted, &tensor, &err);
		if (!rc)
			show(tensor);
	} else {
		rc = tmesh_net_open_bundle(ctx, &wanted, &bundle, &err);
		for (size_t i = 0; !rc && i < tmesh_bundle_count(bundle); i++) {
			fputs(tmesh_bundle_name(bundle, i), stdout);
			if (tmesh_bundle_tensor(bundle, i, &tensor, &err))
				return 1;
			show(tensor);
		}
		if (!rc)
			tmesh_bundle_unref(bundle);
	}
	tmesh_ctx_unref(ctx);
	if (rc)
		printf("error:%s %s\n", strerrorname_np(-rc), err.message);
	return 0;
}
