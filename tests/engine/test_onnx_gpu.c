// SPDX-License-Identifier: MIT
/*
 * The engine "onnx" on a GPU as far as it goes without one: on stand-ins for the driver
 * (tests/cuda) and for ONNX Runtime. The tests show the calls, with their device and memory, the
 * wait for outputs, and that a failure leaves nothing. They do not show the real library's work.
 */
#include <dlfcn.h>
#include <tmesh/engine.h>

#include "standin_onnxruntime.h"
#include "unit.h"

#define FLAGS (TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE)

static const int64_t shape[] = {2, 4};
static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[4] = {10, 20, 30, 40};
static struct ort_standin *ort;
static struct tmesh_ctx *ctx;

static int set_up_group(void **state)
{
	void *library = dlopen(getenv("TMESH_ONNXRUNTIME"), RTLD_NOW);
	ort_standin_fn *get;

	if (!library) {
		printf("# %s\n", dlerror());
		return -1;
	}
	*(void **)&get = dlsym(library, "ort_standin");
	ort = get();
	return tmesh_ctx_open(NULL, &ctx, NULL);
}

static int tear_down_group(void **state)
{
	tmesh_ctx_unref(ctx);
	return 0;
}

static int open_on(int32_t device, struct tmesh_engine_context **out, struct tmesh_error *err)
{
	struct tmesh_engine_context_opts opts = {
		.size = sizeof(opts), .device_type = TMESH_DEVICE_CUDA, .device_id = device};

	return tmesh_engine_context_create(ctx, "onnx", &opts, out, err);
}

static int tensor(struct tmesh_engine_context *context, int32_t ndim, const void *data,
		  size_t bytes, struct tmesh_engine_value *value, struct tmesh_error *err)
{
	int rc = tmesh_engine_tensor_create(context, TMESH_FLOAT32, ndim, shape + 2 - ndim, FLAGS,
					    &value->tensor, err);

	return rc || !data ? rc : tmesh_engine_tensor_write(value->tensor, data, bytes, err);
}

/* From a context to two runs and their result; whatever fails ends it. */
static int whole(int32_t device, float *y, struct tmesh_error *err)
{
	struct tmesh_engine_value in[] = {{.name = "x"}, {.name = "b"}}, out = {.name = "y"};
	struct tmesh_engine_binding *binding = NULL;
	struct tmesh_engine_context *context = NULL;
	struct tmesh_engine_graph *graph = NULL;
	int rc = open_on(device, &context, err);

	if (rc)
		return rc;
	/* Any file: the stand-in has one model, whatever it is. */
	rc = tmesh_engine_graph_open(context, getenv("TMESH_ONNXRUNTIME"), NULL, &graph, err);
	if (!rc)
		rc = tensor(context, 2, x, sizeof(x), &in[0], err);
	if (!rc)
		rc = tensor(context, 1, b, sizeof(b), &in[1], err);
	if (!rc)
		rc = tensor(context, 2, NULL, 0, &out, err);
	if (!rc)
		rc = tmesh_engine_bind(graph, in, 2, &out, 1, &binding, err);
	for (int i = 0; !rc && i < 2; i++)
		rc = tmesh_engine_binding_dispatch(binding, err);
	if (!rc)
		rc = tmesh_engine_tensor_read(out.tensor, y, 8 * sizeof(*y), err);
	tmesh_engine_binding_unref(binding);
	tmesh_engine_tensor_unref(in[0].tensor);
	tmesh_engine_tensor_unref(in[1].tensor);
	tmesh_engine_tensor_unref(out.tensor);
	tmesh_engine_graph_unref(graph);
	tmesh_engine_context_unref(context);
	return rc;
}

static void test_runs(void **state)
{
	for (int32_t device = 0; device < 2; device++) {
		int waits = ort->waits;
		float y[8];

		ort->appended = -1;
		assert_ok(whole(device, y, err));
		for (int i = 0; i < 8; i++)
			assert_true(y[i] == x[i] + b[i % 4]);
		assert_int_equal(ort->appended, device);
		assert_int_equal(ort->waits - waits, 2);
		assert_int_equal(ort->elsewhere, 0);
		assert_int_equal(ort->live, 0);
	}
}

static void test_refused(void **state)
{
	struct tmesh_engine_context *none = NULL;

	ort->without = true;
	assert_refused(open_on(0, &none, err), -EOPNOTSUPP, "no CUDA execution provider");
	ort->without = false;
	ort->fails = "SessionOptionsAppendExecutionProvider_CUDA_V2";
	assert_refused(open_on(0, &none, err), -EOPNOTSUPP, "does not start");
	assert_int_equal(ort->live, 0);
}

/* If a call of the library fails, its error is the call's error, and everything made is released.
 */
static void test_each_fails(void **state)
{
	static const char *const calls[] = {
		"CreateEnv",
		"GetAvailableProviders",
		"CreateSessionOptions",
		"CreateCUDAProviderOptions",
		"UpdateCUDAProviderOptions",
		"CreateMemoryInfo",
		"CreateCpuMemoryInfo",
		"CreateSession",
		"CreateIoBinding",
		"CreateTensorWithDataAsOrtValue",
		"BindInput",
		"BindOutput",
		"RunWithBinding",
		"SynchronizeBoundOutputs",
		"GetBoundOutputValues",
	};
	float y[8];

	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		struct tmesh_error err = {0};

		ort->fails = calls[i];
		assert_true(whole(1, y, &err) < 0);
		assert_null(ort->fails);
		assert_non_null(strstr(err.message, calls[i]));
		assert_int_equal(ort->live, 0);
	}
	assert_ok(whole(1, y, err));
	assert_int_equal(ort->live, 0);
}

/* A model with the initializers "w" and "s", float32 [2], as onnx.proto encodes it. */
static const char two_weights[] = "\x3a\x12"
				  "\x2a\x07\x08\x02\x10\x01\x42\x01w"
				  "\x2a\x07\x08\x02\x10\x01\x42\x01s";

/* Open a graph with two weights that are not the file's. */
static int open_weights(const char *path, struct tmesh_error *why)
{
	static const float w[] = {1, 2}, s[] = {3, 4};
	const int64_t two = 2;
	struct tmesh_engine_weight weights[] = {{.name = "w"}, {.name = "s"}};
	struct tmesh_engine_graph_opts opts = {
		.size = sizeof(opts), .weights = weights, .weight_count = 2};
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph = NULL;
	int rc = open_on(0, &context, why);

	if (rc)
		return rc;
	for (int i = 0; i < 2; i++)
		assert_ok(tmesh_tensor_put(ctx, TMESH_FLOAT32, 1, &two, i ? s : w, NULL,
					   &weights[i].tensor, err));
	ort->sessions = 0;
	rc = tmesh_engine_graph_open(context, path, &opts, &graph, why);
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(weights[i].tensor);
	tmesh_engine_graph_unref(graph);
	tmesh_engine_context_unref(context);
	return rc;
}

/* ONNX Runtime reads the file's bytes in place of a weight in other memory than its kernel's, or
 * of one that an optimization computes with. The session is made again until all are used. */
static void test_weights(void **state)
{
	static const struct {
		const char *on_host, *folded;
		int sessions;
	} cases[] = {
		{NULL, NULL, 1}, {"s", NULL, 2}, {NULL, "w", 2}, {"s", "w", 2}, {"s", "s", 3},
	};
	char path[] = "/tmp/tmesh-onnx-gpu-XXXXXX";
	int fd = mkstemp(path);

	assert_int_equal(write(fd, two_weights, sizeof(two_weights) - 1), sizeof(two_weights) - 1);
	close(fd);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		ort->on_host = cases[i].on_host;
		ort->folded = cases[i].folded;
		assert_ok(open_weights(path, err));
		assert_int_equal(ort->sessions, cases[i].sessions);
		assert_int_equal(ort->weights, 2);
		if (ort->on_host)
			assert_true(ort->first == 3);
		assert_int_equal(ort->live, 0);
	}
	/* A log without a word of them is no proof. */
	ort->on_host = ort->folded = NULL;
	ort->says_nothing = true;
	assert_refused(open_weights(path, err), -EOPNOTSUPP, "does not use it");
	ort->says_nothing = false;
	for (int i = 0; i < 2; i++) {
		struct tmesh_error err = {0};

		ort->fails = i ? "AddInitializer" : "SetUserLoggingFunction";
		assert_true(open_weights(path, &err) < 0);
		assert_null(ort->fails);
	}
	assert_int_equal(ort->live, 0);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_weights),
		TEST(test_runs),
		TEST(test_refused),
		TEST(test_each_fails),
	};

	return cmocka_run_group_tests_name("onnx on stand-ins for GPUs", tests, set_up_group,
					   tear_down_group);
}
