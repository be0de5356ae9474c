// SPDX-License-Identifier: MIT
/* How many tensors a kept bundle has, and the SHA-256 of their bytes one behind the other:
 * kept_hash NAME. The SHA-256 of one kept file: kept_hash NAME PATH. The same, and then the file is
 * held until there is something on stdin: kept_hash NAME PATH hold. */
#include <stdio.h>
#include <stdlib.h>
#include <tmesh/keep.h>
#include <tmesh/tmesh.h>

static void fail(const char *what, const struct tmesh_error *err)
{
	fprintf(stderr, "%s: %s\n", what, err->message);
	exit(1);
}

static int hash_file(struct tmesh_ctx *ctx, const char *name, const char *path, bool hold)
{
	struct tmesh_kept_file file;
	struct tmesh_region *region;
	struct tmesh_error err;
	uint8_t *data;
	FILE *sum;

	if (tmesh_kept_open_file(ctx, name, TMESH_KEPT_OWN, path, &region, &file, &err) ||
	    tmesh_region_map(region, TMESH_READ, (void **)&data, &err))
		fail(path, &err);
	sum = popen("sha256sum", "w");
	if (sum)
		fwrite(data + file.offset, 1, file.bytes, sum);
	if (!sum || pclose(sum))
		return 1;
	if (hold)
		getchar();
	return 0;
}

int main(int argc, char **argv)
{
	struct tmesh_bundle *bundle;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	FILE *sum;

	if (argc < 2 || argc > 4)
		return 2;
	if (tmesh_ctx_open(NULL, &ctx, &err))
		fail("tmesh", &err);
	if (argc > 2)
		return hash_file(ctx, argv[1], argv[2], argc == 4);
	if (tmesh_kept_open_bundle(ctx, argv[1], TMESH_KEPT_OWN, &bundle, &err))
		fail(argv[1], &err);
	printf("%zu ", tmesh_bundle_count(bundle));
	fflush(stdout);
	sum = popen("sha256sum", "w");
	for (size_t i = 0; sum && i < tmesh_bundle_count(bundle); i++) {
		struct tmesh_tensor *tensor;
		void *data;

		if (tmesh_bundle_tensor(bundle, i, &tensor, &err) ||
		    tmesh_tensor_data(tensor, TMESH_READ, &data, &err))
			fail("a tensor", &err);
		fwrite(data, 1, tmesh_tensor_bytes(tensor), sum);
		tmesh_tensor_unref(tensor);
	}
	return sum ? pclose(sum) : 1;
}
