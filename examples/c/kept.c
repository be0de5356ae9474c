/* SPDX-License-Identifier: MIT */
/* cc kept.c $(pkg-config --cflags --libs libtmesh) -o kept */
/*
 * Memory that outlives its process. `kept put` puts two tensors, keeps them as one bundle under a
 * name and ends. `kept get` opens the name and copies a few elements out. `kept drop` drops the
 * name.
 */
#include <stdio.h>
#include <string.h>
#include <tmesh/keep.h>

#define NAME "example"

static int put(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	const float weight[2][3] = {{1, 2, 3}, {4, 5, 6}}, bias[3] = {7, 8, 9};
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .flags = TMESH_KEEPING_REPLACE};
	struct tmesh_bundle_entry entries[2] = {{.name = "weight"}, {.name = "bias"}};
	struct tmesh_bundle *bundle;
	int rc;

	rc = tmesh_tensor_put(ctx, TMESH_FLOAT32, 2, (int64_t[]){2, 3}, weight, NULL,
			      &entries[0].tensor, err);
	if (rc)
		return rc;
	rc = tmesh_tensor_put(ctx, TMESH_FLOAT32, 1, (int64_t[]){3}, bias, NULL, &entries[1].tensor,
			      err);
	if (!rc) {
		rc = tmesh_bundle_create(ctx, entries, 2, NULL, &bundle, err);
		tmesh_tensor_unref(entries[1].tensor);
	}
	tmesh_tensor_unref(entries[0].tensor);
	if (rc)
		return rc;
	rc = tmesh_keep_bundle(ctx, NAME, bundle, &opts, err);
	tmesh_bundle_unref(bundle);
	return rc;
}

/* Show one tensor without mapping it: reading a few elements of a huge region costs only their
 * copy. */
static int show(struct tmesh_bundle *bundle, size_t i, struct tmesh_error *err)
{
	struct tmesh_bundle_entry entry;
	float first[3];
	int rc = tmesh_bundle_entry(bundle, i, &entry, err);

	if (!rc)
		rc = tmesh_region_read(entry.region, entry.layout.offset, first, sizeof(first),
				       err);
	if (!rc)
		printf("%s begins with %g %g %g\n", entry.name, first[0], first[1], first[2]);
	return rc;
}

static int get(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_bundle *bundle;
	int rc = tmesh_kept_open_bundle(ctx, NAME, TMESH_KEPT_OWN, &bundle, err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < tmesh_bundle_count(bundle); i++)
		rc = show(bundle, i, err);
	tmesh_bundle_unref(bundle);
	return rc;
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc;

	if (strcmp(what, "put") && strcmp(what, "get") && strcmp(what, "drop")) {
		fprintf(stderr, "usage: kept put | get | drop\n");
		return 2;
	}
	rc = tmesh_ctx_open(NULL, &ctx, &err);
	if (!rc) {
		if (!strcmp(what, "put"))
			rc = put(ctx, &err);
		else if (!strcmp(what, "get"))
			rc = get(ctx, &err);
		else
			rc = tmesh_kept_drop(ctx, NAME, &err);
		tmesh_ctx_unref(ctx);
	}
	if (rc)
		fprintf(stderr, "kept: %s\n", err.message);
	return rc ? 1 : 0;
}
