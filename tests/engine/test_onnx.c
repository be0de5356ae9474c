// SPDX-License-Identifier: MIT
/*
 * The engine "onnx" with the real ONNX Runtime, on the models that models.py made, beside what
 * ONNX Runtime's own plain Run made of them. TMESH_ENGINE_MODELS names their folder.
 */
#include <tmesh/engine.h>

#include "unit.h"

#define FLAGS (TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE | TMESH_ENGINE_EXPORTABLE)
#define D 64
#define C 128
#define STEPS 100
#define WEIGHT 1024

/* Operands of decode.onnx, and what the loop needs of each. */
enum {
	X,
	POS,
	K,
	V,
	KINDS
};
static const char *const past[KINDS] = {"x", "pos", "past_k", "past_v"};
static const char *const present[KINDS] = {"next_x", "next_pos", "present_k", "present_v"};
static const int64_t shapes[KINDS][2] = {{1, D}, {1}, {C, D}, {C, D}};

struct fixture {
	struct tmesh_ctx *ctx;
	struct tmesh_engine_context *context;
};

static const char *model(const char *name)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/%s", getenv("TMESH_ENGINE_MODELS"), name);
	return path;
}

/* A file's last @bytes: behind the header of a .npy, all of a .bin. */
static void expected(const char *name, void *data, size_t bytes)
{
	FILE *file = fopen(model(name), "r");

	assert_non_null(file);
	assert_int_equal(fseek(file, -(long)bytes, SEEK_END), 0);
	assert_int_equal(fread(data, 1, bytes, file), bytes);
	fclose(file);
}

static int setup(void **state)
{
	struct fixture *fix = calloc(1, sizeof(*fix));

	assert_ok(tmesh_ctx_open(NULL, &fix->ctx, err));
	assert_ok(tmesh_engine_context_create(fix->ctx, "onnx", NULL, &fix->context, err));
	*state = fix;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *fix = *state;

	tmesh_engine_context_unref(fix->context);
	tmesh_ctx_unref(fix->ctx);
	free(fix);
	return 0;
}

static struct tmesh_engine_stats stats(struct fixture *fix)
{
	struct tmesh_engine_stats out = {.size = sizeof(out)};

	assert_ok(tmesh_engine_stats(fix->context, &out, err));
	return out;
}

static uint64_t copied(struct fixture *fix)
{
	struct tmesh_stats out = {.size = sizeof(out)};

	assert_int_equal(tmesh_stats(fix->ctx, &out), 0);
	return out.bytes_copied;
}

static struct tmesh_engine_graph *open_graph(struct fixture *fix, const char *name,
					     const struct tmesh_engine_graph_opts *opts)
{
	struct tmesh_engine_graph *graph;

	assert_ok(tmesh_engine_graph_open(fix->context, model(name), opts, &graph, err));
	return graph;
}

/* The state of a decode loop, [0] that of even steps: tensors on regions, whose addresses it has.
 */
struct loop {
	struct tmesh_tensor *regions[2][KINDS];
	struct tmesh_engine_tensor *tensors[2][KINDS];
	void *data[2][KINDS];
};

static void loop_new(struct fixture *fix, struct loop *loop)
{
	for (int side = 0; side < 2; side++)
		for (int kind = 0; kind < KINDS; kind++) {
			struct tmesh_tensor **region = &loop->regions[side][kind];

			assert_ok(tmesh_tensor_create(
				fix->ctx, kind == POS ? TMESH_INT64 : TMESH_FLOAT32,
				kind == POS ? 1 : 2, shapes[kind], NULL, region, err));
			assert_ok(tmesh_tensor_data(*region, TMESH_READ | TMESH_WRITE,
						    &loop->data[side][kind], err));
			assert_ok(tmesh_engine_tensor_wrap(fix->context, *region,
							   TMESH_READ | TMESH_WRITE, FLAGS,
							   &loop->tensors[side][kind], err));
		}
	for (int i = 0; i < D; i++)
		((float *)loop->data[0][X])[i] = 0.1f;
}

static void loop_free(struct loop *loop)
{
	for (int side = 0; side < 2; side++)
		for (int kind = 0; kind < KINDS; kind++) {
			tmesh_engine_tensor_unref(loop->tensors[side][kind]);
			tmesh_tensor_unref(loop->regions[side][kind]);
		}
}

/* From @side to the other; the cache stays at its place with @in_place. */
static void loop_values(const struct loop *loop, int side, bool in_place,
			struct tmesh_engine_value *inputs, struct tmesh_engine_value *outputs)
{
	for (int kind = 0; kind < KINDS; kind++) {
		bool cache = in_place && (kind == K || kind == V);

		inputs[kind] = (struct tmesh_engine_value){
			.name = past[kind], .tensor = loop->tensors[cache ? 0 : side][kind]};
		outputs[kind] = (struct tmesh_engine_value){
			.name = present[kind],
			.tensor = loop->tensors[cache ? 0 : !side][kind],
			.in_place = cache ? past[kind] : NULL};
	}
}

/* Bit for bit what plain Run has after as many steps; @cache: where the present is. */
static void assert_decoded(struct fixture *fix, struct loop *loop, int cache)
{
	static float want[D + 2 * C * D];
	float x[D];

	/* The one transfer to the host. */
	assert_ok(tmesh_engine_tensor_read(loop->tensors[0][X], x, sizeof(x), err));
	expected("decode.bin", want, sizeof(want));
	assert_memory_equal(x, want, sizeof(x));
	assert_memory_equal(loop->data[cache][K], want + D, C * D * sizeof(float));
	assert_memory_equal(loop->data[cache][V], want + D + C * D, C * D * sizeof(float));
	assert_int_equal(*(int64_t *)loop->data[0][POS], STEPS);
}

enum way {
	PREBOUND,
	IN_PLACE,
	NAMED
};

static void decode(struct fixture *fix, enum way way)
{
	struct tmesh_engine_value inputs[2][KINDS], outputs[2][KINDS];
	struct tmesh_engine_graph *graph = open_graph(fix, "decode.onnx", NULL);
	struct tmesh_engine_binding *bindings[2];
	struct tmesh_engine_stats before, after;
	uint64_t bytes;
	struct loop loop;

	loop_new(fix, &loop);
	for (int side = 0; side < 2; side++) {
		loop_values(&loop, side, way == IN_PLACE, inputs[side], outputs[side]);
		if (way != NAMED)
			assert_ok(tmesh_engine_bind(graph, inputs[side], KINDS, outputs[side],
						    KINDS, &bindings[side], err));
	}
	before = stats(fix);
	bytes = copied(fix);
	for (int step = 0; step < STEPS; step++) {
		int side = step % 2;

		if (way == NAMED)
			assert_ok(tmesh_engine_dispatch(graph, inputs[side], KINDS, outputs[side],
							KINDS, err));
		else
			assert_ok(tmesh_engine_binding_dispatch(bindings[side], err));
	}
	after = stats(fix);
	assert_int_equal(after.dispatches - before.dispatches, STEPS);
	assert_int_equal(after.bindings - before.bindings, way == NAMED ? STEPS : 0);
	assert_int_equal(after.reads + after.writes, before.reads + before.writes);
	assert_int_equal(after.bytes_of_engine, 0);
	assert_int_equal(copied(fix), bytes);
	assert_decoded(fix, &loop, 0);
	assert_int_equal(stats(fix).reads - before.reads, 1);
	assert_int_equal(copied(fix) - bytes, D * sizeof(float));
	/* Each tensor is still the region's own memory: others see the result there. */
	for (int side = 0; side < 2; side++)
		for (int kind = 0; kind < KINDS; kind++) {
			struct tmesh_engine_tensor_info info = {.size = sizeof(info)};

			assert_ok(tmesh_engine_tensor_info(loop.tensors[side][kind], &info, err));
			assert_ptr_equal(info.address, loop.data[side][kind]);
			assert_false(info.of_engine);
		}
	for (int side = 0; way != NAMED && side < 2; side++)
		tmesh_engine_binding_unref(bindings[side]);
	loop_free(&loop);
	tmesh_engine_graph_unref(graph);
}

/* The cache goes to and fro between two pairs of tensors. */
static void test_decode_prebound(void **state)
{
	decode(*state, PREBOUND);
}

/* The present is the past, by a scatter into it. */
static void test_decode_in_place(void **state)
{
	decode(*state, IN_PLACE);
}

static void test_decode_named(void **state)
{
	decode(*state, NAMED);
}

/* Without naming what it shares, the past is no place for the present. */
static void test_decode_unsaid(void **state)
{
	struct tmesh_engine_value inputs[KINDS], outputs[KINDS];
	struct fixture *fix = *state;
	struct tmesh_engine_graph *graph = open_graph(fix, "decode.onnx", NULL);
	struct tmesh_engine_binding *binding;
	struct loop loop;

	loop_new(fix, &loop);
	loop_values(&loop, 0, true, inputs, outputs);
	outputs[K].in_place = NULL;
	assert_refused(tmesh_engine_bind(graph, inputs, KINDS, outputs, KINDS, &binding, err),
		       -EINVAL, "overlaps input \"past_k\"");
	loop_free(&loop);
	tmesh_engine_graph_unref(graph);
}

/* Arrays in, one output to the caller's memory and one left to the engine. */
static void test_mixture(void **state)
{
	struct fixture *fix = *state;
	struct tmesh_engine_graph *graph = open_graph(fix, "dynamic.onnx", NULL);
	float a[12], b[12], sum[12], less[12];
	struct tmesh_engine_operand operand = {.size = sizeof(operand)};
	struct tmesh_engine_tensor_info info = {.size = sizeof(info)};
	struct tmesh_engine_value inputs[2] = {
		{.name = "a", .data = a, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {3, 4}},
		{.name = "b", .data = b, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {3, 4}}};
	struct tmesh_engine_value outputs[2] = {
		{.name = "sum", .data = sum, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {3, 4}},
		{.name = "less"}};

	for (int i = 0; i < 12; i++) {
		a[i] = (float)i;
		b[i] = 100;
	}
	assert_ok(tmesh_engine_graph_input(graph, 0, &operand, err));
	assert_string_equal(operand.name, "a");
	assert_string_equal(operand.dims[0], "rows");
	assert_true(operand.dtype == TMESH_FLOAT32 && operand.shape[0] == -1 &&
		    operand.shape[1] == 4);
	assert_ok(tmesh_engine_dispatch(graph, inputs, 2, outputs, 2, err));
	assert_true(sum[11] == 111);
	assert_ok(tmesh_engine_tensor_info(outputs[1].tensor, &info, err));
	assert_true(info.of_engine && info.ndim == 2 && info.shape[0] == 3 && info.shape[1] == 4);
	assert_ok(tmesh_engine_tensor_read(outputs[1].tensor, less, sizeof(less), err));
	assert_true(less[11] == -89);
	/* It outlives the graph that made it. */
	tmesh_engine_graph_unref(graph);
	assert_ok(tmesh_engine_tensor_read(outputs[1].tensor, less, sizeof(less), err));
	tmesh_engine_tensor_unref(outputs[1].tensor);
	graph = open_graph(fix, "dynamic.onnx", NULL);
	assert_int_equal(stats(fix).session_hits, 1);
	outputs[1].tensor = NULL;
	inputs[1].shape[0] = 2;
	assert_refused(tmesh_engine_dispatch(graph, inputs, 2, outputs, 2, err), -EINVAL,
		       "\"rows\" is 3 in \"a\"");
	assert_null(outputs[1].tensor);
	tmesh_engine_graph_unref(graph);
}

/* An output that may only be read: a write there would crash. */
static void test_read_only_output(void **state)
{
	struct fixture *fix = *state;
	struct tmesh_engine_graph *graph = open_graph(fix, "dynamic.onnx", NULL);
	const float data[4] = {1, 2, 3, 4};
	const int64_t shape[] = {1, 4};
	struct tmesh_engine_value inputs[2], output = {.name = "sum"};
	struct tmesh_tensor *sealed;

	assert_ok(tmesh_tensor_put(fix->ctx, TMESH_FLOAT32, 2, shape, data, NULL, &sealed, err));
	assert_ok(
		tmesh_engine_tensor_wrap(fix->context, sealed, TMESH_READ, 0, &output.tensor, err));
	inputs[0] = (struct tmesh_engine_value){.name = "a", .tensor = output.tensor};
	inputs[1] = (struct tmesh_engine_value){.name = "b", .tensor = output.tensor};
	assert_refused(tmesh_engine_dispatch(graph, inputs, 2, &output, 1, err), -EACCES,
		       "may only read");
	tmesh_engine_tensor_unref(output.tensor);
	tmesh_tensor_unref(sealed);
	tmesh_engine_graph_unref(graph);
}

static void test_weights(void **state)
{
	static float w[WEIGHT * WEIGHT], x[WEIGHT], y[WEIGHT], want[WEIGHT];
	struct fixture *fix = *state;
	const int64_t shape[] = {WEIGHT, WEIGHT}, flat[] = {WEIGHT * WEIGHT};
	struct tmesh_engine_weight weight = {.name = "w"};
	struct tmesh_engine_graph_opts opts = {
		.size = sizeof(opts), .weights = &weight, .weight_count = 1};
	struct tmesh_engine_value input = {
		.name = "x", .data = x, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {1, WEIGHT}};
	struct tmesh_engine_value output = {
		.name = "y", .data = y, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {1, WEIGHT}};
	struct tmesh_engine_graph *graph;
	uint64_t before;

	expected("weights_w.npy", w, sizeof(w));
	expected("weights_x.npy", x, sizeof(x));
	expected("weights_y.npy", want, sizeof(want));
	/* Not the file's: each the other way round, so that it is seen which were used. */
	for (int i = 0; i < WEIGHT * WEIGHT; i++)
		w[i] = -w[i];
	assert_ok(
		tmesh_tensor_put(fix->ctx, TMESH_FLOAT32, 2, shape, w, NULL, &weight.tensor, err));
	before = copied(fix);
	graph = open_graph(fix, "weights.onnx", &opts);
	assert_ok(tmesh_engine_dispatch(graph, &input, 1, &output, 1, err));
	for (int i = 0; i < WEIGHT; i++)
		assert_true(y[i] == -want[i]);
	assert_int_equal(copied(fix), before);
	tmesh_engine_graph_unref(graph);
	tmesh_tensor_unref(weight.tensor);
	/* Another shape than the graph's, another dtype, another name; ONNX Runtime itself takes
	 * them all. */
	assert_ok(tmesh_tensor_put(fix->ctx, TMESH_INT32, 2, shape, w, NULL, &weight.tensor, err));
	assert_refused(
		tmesh_engine_graph_open(fix->context, model("weights.onnx"), &opts, &graph, err),
		-EINVAL, "another dtype or shape");
	weight.name = "v";
	assert_refused(
		tmesh_engine_graph_open(fix->context, model("weights.onnx"), &opts, &graph, err),
		-ENOENT, "no such initializer");
	assert_refused(
		tmesh_engine_graph_open(fix->context, model("garbage.onnx"), &opts, &graph, err),
		-EPROTO, "not an ONNX model");
	weight.name = "w";
	tmesh_tensor_unref(weight.tensor);
	assert_ok(tmesh_tensor_put(fix->ctx, TMESH_FLOAT32, 1, flat, w, NULL, &weight.tensor, err));
	assert_refused(
		tmesh_engine_graph_open(fix->context, model("weights.onnx"), &opts, &graph, err),
		-EINVAL, "another dtype or shape");
	tmesh_tensor_unref(weight.tensor);
	/* Without any, those of the file. */
	graph = open_graph(fix, "weights.onnx", NULL);
	assert_ok(tmesh_engine_dispatch(graph, &input, 1, &output, 1, err));
	assert_memory_equal(y, want, sizeof(y));
	tmesh_engine_graph_unref(graph);
}

/* Weights with which ONNX Runtime computes before it runs count, not those of the file. */
static void test_folded_weights(void **state)
{
	static const float w[] = {1, 2, 3, 4}, k[] = {10, 100}, x[] = {1, 1};
	const int64_t dims[][4] = {{2, 2, 1, 1}, {2, 1, 1}, {2, 1, 1}};
	const char *const names[] = {"w", "k", "unread"};
	struct fixture *fix = *state;
	struct tmesh_engine_value input = {.name = "x",
					   .data = (void *)x,
					   .dtype = TMESH_FLOAT32,
					   .ndim = 4,
					   .shape = {1, 2, 1, 1}};
	float y[2];
	struct tmesh_engine_value output = {
		.name = "y", .data = y, .dtype = TMESH_FLOAT32, .ndim = 4, .shape = {1, 2, 1, 1}};

	/* The first one alone is folded, the second one fused, and nothing reads the third. */
	for (size_t first = 0; first < 3; first++) {
		for (size_t count = 1; first + count <= 3; count++) {
			struct tmesh_engine_weight weights[3];
			struct tmesh_engine_graph_opts opts = {
				.size = sizeof(opts), .weights = weights, .weight_count = count};
			struct tmesh_engine_graph *graph;
			bool own_w = first == 0, own_k = first <= 1 && first + count > 1;

			for (size_t i = 0; i < count; i++) {
				weights[i] = (struct tmesh_engine_weight){.name = names[first + i]};
				assert_ok(tmesh_tensor_put(
					fix->ctx, TMESH_FLOAT32, first + i ? 3 : 4, dims[first + i],
					first + i ? k : w, NULL, &weights[i].tensor, err));
			}
			graph = open_graph(fix, "folded.onnx", &opts);
			assert_ok(tmesh_engine_dispatch(graph, &input, 1, &output, 1, err));
			assert_true(y[0] == (own_w ? w[0] + w[2] : 2) * (own_k ? k[0] : 1));
			assert_true(y[1] == (own_w ? w[1] + w[3] : 2) * (own_k ? k[1] : 1));
			tmesh_engine_graph_unref(graph);
			for (size_t i = 0; i < count; i++)
				tmesh_tensor_unref(weights[i].tensor);
		}
	}
}

static void test_bad_models(void **state)
{
	struct fixture *fix = *state;
	struct tmesh_engine_graph *graph = NULL;

	assert_refused(
		tmesh_engine_graph_open(fix->context, model("garbage.onnx"), NULL, &graph, err),
		-EPROTO, "ONNX Runtime");
	assert_refused(
		tmesh_engine_graph_open(fix->context, model("badtype.onnx"), NULL, &graph, err),
		-EOPNOTSUPP, "\"text\"");
	assert_refused(
		tmesh_engine_graph_open(fix->context, model("missing.onnx"), NULL, &graph, err),
		-ENOENT, "");
	assert_null(graph);
	assert_int_equal(stats(fix).sessions, 0);
}

static void test_library(void **state)
{
	struct fixture *fix = *state;
	struct tmesh_engine_context *context = NULL;
	struct tmesh_engine_context_opts opts = {.size = sizeof(opts), .library = "/nowhere.so"};

	assert_refused(tmesh_engine_context_create(fix->ctx, "onnx", &opts, &context, err),
		       -EOPNOTSUPP, "/nowhere.so");
	opts.library = "libm.so.6";
	assert_refused(tmesh_engine_context_create(fix->ctx, "onnx", &opts, &context, err),
		       -EOPNOTSUPP, "is not ONNX Runtime");
	opts.library = NULL;
	opts.device_type = TMESH_DEVICE_CUDA;
	assert_refused(tmesh_engine_context_create(fix->ctx, "onnx", &opts, &context, err),
		       -EOPNOTSUPP, "has no CUDA execution provider");
	assert_refused(tmesh_engine_context_create(fix->ctx, "onnx", &opts, &context, err),
		       -EOPNOTSUPP, "install Python's package onnxruntime-gpu");
	opts.device_id = -1;
	assert_refused(tmesh_engine_context_create(fix->ctx, "onnx", &opts, &context, err),
		       -EOPNOTSUPP, "no device -1");
	opts.device_type = TMESH_DEVICE_CPU;
	opts.device_id = 1;
	assert_refused(tmesh_engine_context_create(fix->ctx, "onnx", &opts, &context, err),
		       -EOPNOTSUPP, "no device 1");
	assert_null(context);
	print_message("# ONNX Runtime %s\n", tmesh_engine_context_version(fix->context));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_SET_UP(test_library),	    TEST_SET_UP(test_decode_prebound),
		TEST_SET_UP(test_decode_in_place),  TEST_SET_UP(test_decode_named),
		TEST_SET_UP(test_decode_unsaid),    TEST_SET_UP(test_mixture),
		TEST_SET_UP(test_read_only_output), TEST_SET_UP(test_weights),
		TEST_SET_UP(test_folded_weights),   TEST_SET_UP(test_bad_models),
	};

	if (!getenv("TMESH_ENGINE_MODELS"))
		return UNIT_SKIP(tests,
				 "Python's packages onnxruntime and onnx cannot be had here");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
