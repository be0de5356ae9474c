// SPDX-License-Identifier: MIT
/*
 * The engine "onnx" on a GPU as far as it goes without one: on stand-ins for the driver
 * (tests/cuda) and for ONNX Runtime. What is shown is which calls are made, with which device and
 * memory, that outputs are waited for, and that nothing is left when one fails. What the real
 * library makes of them is not.
 */
#include <dlfcn.h>
#include <errno.h>
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

/* What a call of the library refuses is that call's error, and all that was made is released. */
static void test_each_fails(void **state)
{
	static const char *const calls[] = {
		"CreateEnv",
		"GetAvailableProviders",
		"CreateSessionOptions",
		"CreateCUDAProviderOptions",
		"UpdateCUDAProviderOptions",
		"CreateMemoryInfo",
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_runs),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_each_fails),
	};

	return cmocka_run_group_tests_name("onnx on stand-ins for GPUs", tests, set_up_group,
					   tear_down_group);
}
