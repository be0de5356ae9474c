/* SPDX-License-Identifier: MIT */
/* cc read.c $(pkg-config --cflags --libs libtmesh) -o read */
/*
 * A reader. `read REF` opens a tensor of float32 by its ref, from a producer in any language, and
 * prints its sum, computed on the producer's pages.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tmesh/tmesh.h>

static int sum(struct tmesh_tensor *tensor, struct tmesh_error *err)
{
	const struct tmesh_layout *layout = tmesh_tensor_layout(tensor);
	uint64_t count = tmesh_tensor_bytes(tensor) / sizeof(float);
	double sum = 0;
	void *data;
	int rc;

	if (layout->dtype != TMESH_FLOAT32 || !tmesh_layout_is_contiguous(layout)) {
		err->code = -EINVAL;
		snprintf(err->message, sizeof(err->message),
			 "this is for contiguous tensors of float32, not %s%s",
			 layout->dtype == TMESH_FLOAT32 ? "others of " : "",
			 tmesh_dtype_name(layout->dtype));
		return err->code;
	}
	rc = tmesh_tensor_data(tensor, TMESH_READ, &data, err);
	for (uint64_t i = 0; !rc && i < count; i++)
		sum += ((const float *)data)[i];
	if (!rc)
		printf("%g\n", sum);
	return rc;
}

int main(int argc, char **argv)
{
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	struct tmesh_ref ref;
	struct tmesh_ctx *ctx;
	int rc;

	if (argc != 2) {
		fprintf(stderr, "usage: read REF\n");
		return 2;
	}
	rc = tmesh_ctx_open(NULL, &ctx, &err);
	if (!rc) {
		rc = tmesh_ref_decode(argv[1], strlen(argv[1]), &ref, &err);
		if (!rc)
			rc = tmesh_tensor_open(ctx, &ref, TMESH_READ, &tensor, &err);
		if (!rc) {
			rc = sum(tensor, &err);
			tmesh_tensor_unref(tensor);
		}
		tmesh_ctx_unref(ctx);
	}
	if (rc)
		fprintf(stderr, "read: %s\n", err.message);
	return rc ? 1 : 0;
}
