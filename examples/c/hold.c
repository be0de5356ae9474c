/* SPDX-License-Identifier: MIT */
/* cc hold.c $(pkg-config --cflags --libs libtmesh) -o hold */
/*
 * A function that makes a tensor, returns its ref and releases the tensor. The ref holds the memory
 * until another process opens it. `held` prints the ref and ends after that; read.c opens it.
 */
#include <stdio.h>
#include <tmesh/tmesh.h>

static int make(struct tmesh_ctx *ctx, char *ref, size_t size, struct tmesh_error *err)
{
	const float data[2][3] = {{1, 2, 3}, {4, 5, 6}};
	struct tmesh_tensor *tensor;
	int rc = tmesh_tensor_put(ctx, TMESH_FLOAT32, 2, (int64_t[]){2, 3}, data, NULL, &tensor,
				  err);

	if (rc)
		return rc;
	/* If the tensor stayed, tmesh_tensor_ref_encode() would be enough. */
	rc = tmesh_tensor_ref_hold(tensor, TMESH_READ, 0, ref, size, err);
	tmesh_tensor_unref(tensor);
	return rc;
}

int main(void)
{
	char ref[TMESH_REF_SIZE];
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc = tmesh_ctx_open(NULL, &ctx, &err);

	if (!rc) {
		rc = make(ctx, ref, sizeof(ref), &err);
		if (!rc) {
			puts(ref);
			fflush(stdout);
			rc = tmesh_ctx_flush(ctx, -1, NULL, &err);
		}
		tmesh_ctx_unref(ctx);
	}
	if (rc)
		fprintf(stderr, "held: %s\n", err.message);
	return rc ? 1 : 0;
}
