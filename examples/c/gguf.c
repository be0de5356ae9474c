/* SPDX-License-Identifier: MIT */
/* cc gguf.c $(pkg-config --cflags --libs libtmesh-model) -o gguf */
/*
 * Read a model file's description. `gguf FILE` prints its metadata with their types, and `gguf FILE
 * TENSOR` prints the description of one tensor. Only the header is read.
 */
#include <stdio.h>
#include <string.h>
#include <tmesh/model.h>

/* Numbers in the file are little-endian and not aligned. This example runs on little-endian
 * machines. */
#define NUMBER(type, format)                                     \
	do {                                                     \
		type number;                                     \
		memcpy(&number, value->data, sizeof(number));    \
		printf("%s = " format "\n", value->key, number); \
	} while (0)

static void print(const struct tmesh_model_value *value)
{
	switch (value->type) {
	case TMESH_MODEL_STRING: /* without a terminating zero */
		printf("%s = %.*s\n", value->key, (int)value->bytes, (const char *)value->data);
		break;
	case TMESH_MODEL_UINT32:
		NUMBER(unsigned int, "%u");
		break;
	case TMESH_MODEL_UINT64:
		NUMBER(unsigned long long, "%llu");
		break;
	case TMESH_MODEL_FLOAT32:
		NUMBER(float, "%g");
		break;
	case TMESH_MODEL_ARRAY:
		printf("%s has %llu elements of type %d\n", value->key,
		       (unsigned long long)value->count, value->item);
		break;
	default:
		printf("%s has type %d, %llu bytes\n", value->key, value->type,
		       (unsigned long long)value->bytes);
	}
}

static int metadata(struct tmesh_model *model, struct tmesh_error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < tmesh_model_values(model); i++) {
		struct tmesh_model_value value = {.size = sizeof(value)};

		rc = tmesh_model_value(model, i, &value, err);
		if (!rc)
			print(&value);
	}
	return rc;
}

static int tensor(struct tmesh_model *model, const char *name, struct tmesh_error *err)
{
	struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};
	size_t index;
	int rc = tmesh_model_find(model, name, &index, err);

	if (!rc)
		rc = tmesh_model_tensor(model, index, &tensor, err);
	if (!rc)
		printf("%s: %s, %d dimensions, %llu bytes from byte %llu of file %u\n", tensor.name,
		       tensor.type, (int)tensor.ndim, (unsigned long long)tensor.bytes,
		       (unsigned long long)tensor.file_offset, tensor.file);
	return rc;
}

int main(int argc, char **argv)
{
	struct tmesh_model *model;
	struct tmesh_error err;
	int rc;

	if (argc != 2 && argc != 3) {
		fprintf(stderr, "usage: gguf FILE [TENSOR]\n");
		return 2;
	}
	rc = tmesh_model_describe(argv[1], NULL, &model, &err);
	if (!rc) {
		rc = argc == 3 ? tensor(model, argv[2], &err) : metadata(model, &err);
		tmesh_model_unref(model);
	}
	if (rc)
		fprintf(stderr, "gguf: %s\n", err.message);
	return rc ? 1 : 0;
}
