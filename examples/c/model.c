/* SPDX-License-Identifier: MIT */
/* cc model.c $(pkg-config --cflags --libs libtmesh-model) -o model */
/*
 * A model file, safetensors or GGUF, that is read once for all processes. `model FILE TENSOR` loads
 * it, or shares another process's load, finds a tensor by its name and describes it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <tmesh/model.h>

static int show(struct tmesh_model *model, const char *name, struct tmesh_error *err)
{
	const struct tmesh_layout *layout;
	struct tmesh_tensor *tensor;
	const unsigned char *bytes;
	void *data;
	size_t index;
	int rc = tmesh_model_find(model, name, &index, err);

	if (!rc)
		rc = tmesh_model_tensor_open(model, index, &tensor, err);
	if (rc)
		return rc;
	/* The data is in the model's own memory; the tensor may outlive the model. */
	rc = tmesh_tensor_data(tensor, TMESH_READ, &data, err);
	if (!rc) {
		layout = tmesh_tensor_layout(tensor);
		printf("%s %s", name, tmesh_dtype_name(layout->dtype));
		for (int i = 0; i < layout->ndim; i++)
			printf("%s%" PRId64, i ? " x " : " ", layout->shape[i]);
		bytes = data;
		if (tmesh_tensor_bytes(tensor))
			printf(", first byte 0x%02x", bytes[0]);
		printf("\n");
	}
	tmesh_tensor_unref(tensor);
	return rc;
}

int main(int argc, char **argv)
{
	struct tmesh_model *model;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc;

	if (argc != 3) {
		fprintf(stderr, "usage: model FILE TENSOR\n");
		return 2;
	}
	rc = tmesh_ctx_open(NULL, &ctx, &err);
	if (!rc) {
		rc = tmesh_model_load(ctx, argv[1], NULL, &model, &err);
		if (!rc) {
			rc = show(model, argv[2], &err);
			tmesh_model_unref(model);
		}
		tmesh_ctx_unref(ctx);
	}
	if (rc)
		fprintf(stderr, "model: %s\n", err.message);
	return rc ? 1 : 0;
}
