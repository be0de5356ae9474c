// SPDX-License-Identifier: MIT
/*
 * engine/onnx/initializer.c by itself, as it reads a model's file. The models are made here, right
 * ones and broken ones. Thousands have bytes changed, and none of them may crash or hang it.
 */
#include "onnx/onnx_internal.h"
#include "unit.h"

#define MUTATIONS 4000

struct bytes {
	uint8_t data[512];
	size_t count;
};

static char path[] = "/tmp/tmesh-initializer-XXXXXX";
static const int64_t shape[] = {3, 300};

static void add(struct bytes *to, const void *data, size_t count)
{
	assert_true(to->count + count <= sizeof(to->data));
	memcpy(to->data + to->count, data, count);
	to->count += count;
}

static void add_varint(struct bytes *to, uint64_t value)
{
	do {
		uint8_t byte = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));

		add(to, &byte, 1);
		value >>= 7;
	} while (value);
}

static void add_number(struct bytes *to, unsigned int field, uint64_t value)
{
	add_varint(to, field << 3);
	add_varint(to, value);
}

static void add_bytes(struct bytes *to, unsigned int field, const void *data, size_t count)
{
	add_varint(to, field << 3 | 2);
	add_varint(to, count);
	add(to, data, count);
}

/* A model with the initializers "v" (int64, a scalar) and "w" (float32 [3, 300]). */
static struct bytes make_model(bool packed)
{
	struct bytes model = {0}, graph = {0}, v = {0}, w = {0}, dims = {0};

	add_number(&v, 2, ORT_ELEMENT_INT64);
	add_bytes(&v, 8, "v", 1);
	add_bytes(&v, 9, "12345678", 8);
	for (int i = 0; i < 2; i++) {
		if (packed)
			add_varint(&dims, (uint64_t)shape[i]);
		else
			add_number(&w, 1, (uint64_t)shape[i]);
	}
	if (packed)
		add_bytes(&w, 1, dims.data, dims.count);
	add_number(&w, 2, ORT_ELEMENT_FLOAT);
	add_bytes(&w, 8, "w", 1);
	add_bytes(&graph, 2, "graph", 5);
	add_bytes(&graph, 5, v.data, v.count);
	add_bytes(&graph, 5, w.data, w.count);
	add_varint(&graph, 99 << 3 | 5); /* of 4 bytes */
	add(&graph, "abcd", 4);
	add_number(&model, 1, 9);
	add_bytes(&model, 7, graph.data, graph.count);
	add_varint(&model, 98 << 3 | 1); /* of 8 bytes */
	add(&model, "abcdefgh", 8);
	return model;
}

static int check(const struct bytes *model, const struct plugin_array *weight,
		 struct tmesh_error *err)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(model->data, 1, model->count, file), model->count);
	fclose(file);
	return onnx_check_weights(path, weight, 1, err);
}

static const struct plugin_array good = {
	.name = "w", .dtype = TMESH_FLOAT32, .ndim = 2, .shape = shape};

UNIT(test_models)
{
	const int64_t other[] = {3, 301};

	for (int packed = 0; packed < 2; packed++) {
		struct bytes model = make_model(packed);
		struct plugin_array weight = good;

		assert_ok(check(&model, &weight, err));
		weight.name = "u";
		assert_refused(check(&model, &weight, err), -ENOENT, "\"u\"");
		weight.name = "v";
		assert_refused(check(&model, &weight, err), -EINVAL, "another dtype or shape");
		weight = (struct plugin_array){.name = "v", .dtype = TMESH_INT64, .shape = shape};
		assert_ok(check(&model, &weight, err));
		weight = good;
		weight.dtype = TMESH_FLOAT64;
		assert_refused(check(&model, &weight, err), -EINVAL, "another dtype or shape");
		weight = good;
		weight.shape = other;
		assert_refused(check(&model, &weight, err), -EINVAL, "another dtype or shape");
		weight = good;
		weight.ndim = 1;
		assert_refused(check(&model, &weight, err), -EINVAL, "another dtype or shape");
	}
	assert_refused(onnx_check_weights("/nowhere", &good, 1, err), -ENOENT, "/nowhere");
}

/* A file that ends early, wherever that is: only behind the graph is all there that was asked for.
 */
UNIT(test_short)
{
	struct bytes model = make_model(false);

	while (--model.count > 2) {
		bool behind_graph =
			model.data[model.count - 1] == 'd' && model.data[model.count - 2] == 'c';

		if (!behind_graph)
			assert_int_not_equal(check(&model, &good, NULL), 0);
	}
}

/* Dimensions beyond those that there is room for, a name beyond all reason, lengths that overflow.
 */
UNIT(test_limits)
{
	struct bytes model = {0}, graph = {0}, w = {0};
	const uint8_t huge[] = {7 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff,
				0xff,	    0xff, 0xff, 0xff, 0x01};
	const uint8_t endless[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
				   0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

	for (int i = 0; i < 40; i++)
		add_number(&w, 1, 3);
	add_number(&w, 2, ORT_ELEMENT_FLOAT);
	add_bytes(&w, 8, "w", 1);
	add_bytes(&graph, 5, w.data, w.count);
	add_bytes(&model, 7, graph.data, graph.count);
	assert_refused(check(&model, &good, err), -EINVAL, "another dtype or shape");
	model.count = 0;
	add(&model, huge, sizeof(huge));
	assert_refused(check(&model, &good, err), -EPROTO, "not an ONNX model");
	model.count = 0;
	add(&model, endless, sizeof(endless));
	assert_refused(check(&model, &good, err), -EPROTO, "not an ONNX model");
}

UNIT(test_mutations)
{
	unsigned int seed = 20261123;
	int accepted = 0;

	for (int i = 0; i < MUTATIONS; i++) {
		struct bytes model = make_model(i % 2);
		int changes = 1 + rand_r(&seed) % 4;

		for (int n = 0; n < changes; n++)
			model.data[(size_t)rand_r(&seed) % model.count] = (uint8_t)rand_r(&seed);
		accepted += !check(&model, &good, NULL);
	}
	/* Bytes that are never asked for were changed in these. */
	assert_in_range(accepted, 1, MUTATIONS - 1);
}

int main(void)
{
	int file = mkstemp(path), failed;

	assert_true(file >= 0);
	close(file);
	failed = UNIT_RUN("tests", NULL, NULL);
	unlink(path);
	return failed;
}
