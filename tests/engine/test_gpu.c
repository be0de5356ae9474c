// SPDX-License-Identifier: MIT
/*
 * Device tensors in GPU memory, by libtmesh-cuda on the stand-in for the driver (tests/cuda), and
 * the engine "fake", which reads the stand-in's memory as any. No GPU and no engine for one is
 * here: the tests show which part allocates, copies, counts, refuses and lets go.
 */
#include <semaphore.h>
#include <tmesh/engine.h>

#define TMESH_CUDA_API_MORE(X) X(cuda_read) X(cuda_stats)
#include "common/cuda_api.h"
#include "standin.h"
#include "unit.h"

#define FLAGS (TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE | TMESH_ENGINE_EXPORTABLE)
#define gpu_test(f)                                       \
	{                                                 \
		"stand-in: " #f, f, setup, teardown, NULL \
	}

static const int64_t shape_x[] = {2, 4}, shape_b[] = {4};
static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[4] = {10, 20, 30, 40};
static char folder[] = "/tmp/tmesh-engine-XXXXXX";
static struct tmesh_cuda_api calls;
static struct tmesh_cuda *cuda;
static standin_fail_fn *standin_fail;
static standin_access_fn *standin_access;
static standin_copied_on_write_fn *standin_copied_on_write;
static void *driver;

struct fixture {
	struct tmesh_ctx *ctx;
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct tmesh_engine_tensor *x, *b, *y;
	struct tmesh_engine_value inputs[2], outputs[1];
	uint64_t used;
};

static uint64_t gpu_bytes(void)
{
	struct tmesh_cuda_stats out = {.size = sizeof(out)};

	assert_int_equal(calls.cuda_stats(cuda, 1, &out), 0);
	return out.bytes_used;
}

static int write_graph(const char *name, const char *text)
{
	char path[96];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "w");
	return !file || fputs(text, file) < 0 || fclose(file) ? -1 : 0;
}

static int set_up_group(void **state)
{
	struct tmesh_error err = {0};

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver || tmesh_cuda_api_load(&calls, TMESH_CUDA_LIBRARY, &err)) {
		printf("# %s\n", driver ? err.message : dlerror());
		return -1;
	}
	*(void **)&standin_fail = dlsym(driver, "standin_fail");
	*(void **)&standin_access = dlsym(driver, "standin_access");
	*(void **)&standin_copied_on_write = dlsym(driver, "standin_copied_on_write");
	if (!standin_fail || !standin_access || !standin_copied_on_write || !mkdtemp(folder) ||
	    write_graph("graph", "plain"))
		return -1;
	return write_graph("waiting", "waits");
}

static int tear_down_group(void **state)
{
	char command[96];

	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

static struct tmesh_engine_context *context_on(struct tmesh_ctx *ctx, int32_t device)
{
	struct tmesh_engine_context_opts opts = {
		.size = sizeof(opts), .device_type = TMESH_DEVICE_CUDA, .device_id = device};
	struct tmesh_engine_context *context;

	assert_ok(tmesh_engine_context_create(ctx, "fake", &opts, &context, err));
	return context;
}

static struct tmesh_engine_tensor *tensor_of(struct fixture *fix, int32_t ndim,
					     const int64_t *shape, uint32_t flags)
{
	struct tmesh_engine_tensor *tensor;

	assert_ok(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, ndim, shape, flags,
					     &tensor, err));
	return tensor;
}

/* In front of the library's: a thread stays in the loading of libtmesh-cuda as long as the test
 * wants. */
static bool held;
static sem_t loading, go_on;

void *dlopen(const char *name, int flags)
{
	void *(*next)(const char *name, int flags);

	*(void **)&next = dlsym(RTLD_NEXT, "dlopen");
	if (held && name && !strcmp(name, TMESH_CUDA_LIBRARY)) {
		sem_post(&loading);
		while (sem_wait(&go_on))
			;
	}
	return next(name, flags);
}

static void *load(void *ctx)
{
	tmesh_engine_context_unref(context_on(ctx, 1));
	return NULL;
}

/* It has not that thread, and its lock is free there. It comes first: nothing is loaded yet. */
static void test_forked(void **state)
{
	struct tmesh_engine_context_opts opts = {.size = sizeof(opts),
						 .device_type = TMESH_DEVICE_CUDA};
	struct tmesh_engine_context *own;
	struct tmesh_ctx *ctx = new_ctx();
	pthread_t thread;
	int status;
	pid_t child;

	assert_int_equal(sem_init(&loading, 0, 0) || sem_init(&go_on, 0, 0), 0);
	held = true;
	assert_int_equal(pthread_create(&thread, NULL, load, ctx), 0);
	while (sem_wait(&loading))
		;
	held = false;
	child = fork();
	if (!child) {
		alarm(60);
		int rc = tmesh_ctx_open(NULL, &ctx, NULL);

		if (!rc)
			rc = tmesh_engine_context_create(ctx, "fake", &opts, &own, NULL);
		if (!rc)
			tmesh_engine_context_unref(own);
		unit_leave(rc != 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	sem_post(&go_on);
	pthread_join(thread, NULL);
	tmesh_ctx_unref(ctx);
	assert_int_equal(status, 0);
}

static int setup(void **state)
{
	struct fixture *fix = calloc(1, sizeof(*fix));
	char path[96];

	assert_int_equal(calls.cuda_default(&cuda, NULL), 0);
	assert_ok(tmesh_ctx_open(NULL, &fix->ctx, err));
	fix->used = gpu_bytes();
	fix->context = context_on(fix->ctx, 1);
	snprintf(path, sizeof(path), "%s/graph", folder);
	assert_ok(tmesh_engine_graph_open(fix->context, path, NULL, &fix->graph, err));
	fix->x = tensor_of(fix, 2, shape_x, FLAGS);
	fix->b = tensor_of(fix, 1, shape_b, FLAGS);
	fix->y = tensor_of(fix, 2, shape_x, FLAGS);
	fix->inputs[0] = (struct tmesh_engine_value){.name = "x", .tensor = fix->x};
	fix->inputs[1] = (struct tmesh_engine_value){.name = "b", .tensor = fix->b};
	fix->outputs[0] = (struct tmesh_engine_value){.name = "y", .tensor = fix->y};
	*state = fix;
	return 0;
}

/* All of it is given back. */
static int teardown(void **state)
{
	struct fixture *fix = *state;

	tmesh_engine_tensor_unref(fix->x);
	tmesh_engine_tensor_unref(fix->b);
	tmesh_engine_tensor_unref(fix->y);
	tmesh_engine_graph_unref(fix->graph);
	tmesh_engine_context_unref(fix->context);
	tmesh_ctx_unref(fix->ctx);
	assert_int_equal(gpu_bytes(), fix->used);
	free(fix);
	return 0;
}

static int dispatch(struct fixture *fix, struct tmesh_error *err)
{
	return tmesh_engine_dispatch(fix->graph, fix->inputs, 2, fix->outputs, 1, err);
}

static void test_dispatch(void **state)
{
	struct tmesh_engine_tensor_info info = {.size = sizeof(info)};
	struct tmesh_engine_stats stats = {.size = sizeof(stats)};
	struct tmesh_stats before = {.size = sizeof(before)}, after = before;
	struct tmesh_engine_binding *binding;
	struct fixture *fix = *state;
	float y[8], seen = -1;

	assert_ok(tmesh_engine_tensor_info(fix->x, &info, err));
	assert_int_equal(info.device_type, TMESH_DEVICE_CUDA);
	assert_int_equal(info.device_id, 1);
	assert_int_equal(info.flags, FLAGS);
	assert_int_equal(info.bytes, sizeof(x));
	assert_false(info.of_engine);
	assert_string_equal(info.backend, "fake");
	assert_int_equal((uintptr_t)info.address % 512, 0);
	/* Zeros, that device's kernels may use it, and others may not. */
	assert_ok(tmesh_engine_tensor_read(fix->x, y, sizeof(y), err));
	for (int i = 0; i < 8; i++)
		assert_true(y[i] == 0);
	assert_ok(tmesh_engine_tensor_write(fix->x, x, sizeof(x), err));
	assert_true(standin_access(1, (uintptr_t)info.address, &seen, sizeof(seen), false));
	assert_true(seen == 1);
	assert_false(standin_access(0, (uintptr_t)info.address, &seen, sizeof(seen), false));
	assert_ok(tmesh_engine_tensor_write(fix->b, b, sizeof(b), err));

	assert_int_equal(tmesh_stats(fix->ctx, &before), 0);
	assert_ok(dispatch(fix, err));
	assert_ok(tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	assert_int_equal(tmesh_stats(fix->ctx, &after), 0);
	assert_int_equal(after.bytes_copied, before.bytes_copied);
	assert_ok(tmesh_engine_tensor_read(fix->y, y, sizeof(y), err));
	for (int i = 0; i < 8; i++)
		assert_true(y[i] == x[i] + b[i % 4]);
	assert_ok(tmesh_engine_stats(fix->context, &stats, err));
	assert_int_equal(stats.writes, 2);
	assert_int_equal(stats.bytes_written, sizeof(x) + sizeof(b));
	assert_int_equal(stats.reads, 2);
	/* The binding keeps the memory of what is destroyed, and runs no more. */
	tmesh_engine_tensor_destroy(fix->x);
	assert_refused(tmesh_engine_tensor_read(fix->x, y, sizeof(y), err), -EBADF, "destroyed");
	assert_refused(tmesh_engine_tensor_write(fix->x, x, sizeof(x), err), -EBADF, "destroyed");
	assert_refused(tmesh_engine_binding_dispatch(binding, err), -EBADF, "\"x\"");
	assert_true(standin_access(1, (uintptr_t)info.address, &seen, sizeof(seen), false));
	tmesh_engine_binding_unref(binding);
}

static void test_refused(void **state)
{
	struct tmesh_engine_context_opts opts = {
		.size = sizeof(opts), .device_type = TMESH_DEVICE_CUDA, .device_id = 64};
	struct tmesh_engine_tensor *small, *none = NULL;
	struct tmesh_engine_context *nothing = NULL;
	struct tmesh_engine_binding *binding = NULL;
	struct fixture *fix = *state;
	struct tmesh_engine_context *other;
	struct tmesh_tensor *host;
	float y[8];

	assert_refused(tmesh_engine_context_create(fix->ctx, "fake", &opts, &nothing, err), -ENODEV,
		       "no GPU 64");
	opts.device_id = -1;
	assert_refused(tmesh_engine_context_create(fix->ctx, "fake", &opts, &nothing, err), -ENODEV,
		       "no GPU -1");
	/* Host memory in any way. */
	assert_ok(tmesh_tensor_create(fix->ctx, TMESH_FLOAT32, 2, shape_x, NULL, &host, err));
	assert_refused(tmesh_engine_tensor_wrap(fix->context, host, TMESH_READ, 0, &none, err),
		       -EOPNOTSUPP, "host memory");
	tmesh_tensor_unref(host);
	fix->inputs[0] = (struct tmesh_engine_value){
		.name = "x", .data = y, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {2, 4}};
	assert_refused(dispatch(fix, err), -EOPNOTSUPP, "input \"x\" is in host memory");
	fix->inputs[0] = (struct tmesh_engine_value){.name = "x", .tensor = fix->x};
	fix->outputs[0] = (struct tmesh_engine_value){
		.name = "y", .data = y, .dtype = TMESH_FLOAT32, .ndim = 2, .shape = {2, 4}};
	assert_refused(
		tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err),
		-EOPNOTSUPP, "output \"y\" is in host memory");
	fix->outputs[0] = (struct tmesh_engine_value){.name = "y"};
	assert_refused(dispatch(fix, err), -EOPNOTSUPP, "left to an engine on a GPU");
	/* Another GPU's. */
	other = context_on(fix->ctx, 0);
	assert_ok(tmesh_engine_tensor_create(other, TMESH_FLOAT32, 2, shape_x, FLAGS, &small, err));
	fix->outputs[0].tensor = small;
	assert_refused(dispatch(fix, err), -EINVAL, "another context");
	tmesh_engine_tensor_unref(small);
	tmesh_engine_context_unref(other);
	/* As of host memory. */
	fix->outputs[0].tensor = fix->x;
	assert_refused(dispatch(fix, err), -EINVAL, "overlaps");
	assert_refused(tmesh_engine_tensor_read(fix->x, y, 31, err), -EINVAL, "31 bytes");
	assert_refused(
		tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 2, shape_x, 8, &none, err),
		-EINVAL, "unknown flags");
	assert_refused(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 1,
						  (int64_t[]){INT64_MAX}, 0, &none, err),
		       -EOVERFLOW, "");
	small = tensor_of(fix, 1, shape_b, 0);
	assert_refused(tmesh_engine_tensor_read(small, y, 16, err), -EACCES, "read");
	assert_refused(tmesh_engine_tensor_write(small, b, 16, err), -EACCES, "written");
	tmesh_engine_tensor_unref(small);
}

/* A failure of the driver is the call's error, and nothing is left. */
static void test_driver_fails(void **state)
{
	static const char *const makes[] = {"cuMemsetD8Async", "cuCtxSynchronize"};
	struct tmesh_engine_tensor *none = NULL;
	struct fixture *fix = *state;
	uint64_t before = gpu_bytes();
	float y[8];

	for (size_t i = 0; i < sizeof(makes) / sizeof(*makes); i++) {
		standin_fail(makes[i], 2, 0);
		assert_refused(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 2, shape_x,
							  FLAGS, &none, err),
			       -ENOMEM, makes[i]);
		assert_null(none);
		assert_int_equal(gpu_bytes(), before);
	}
	standin_fail("cuMemcpyDtoHAsync_v2", 2, 0);
	assert_refused(tmesh_engine_tensor_read(fix->x, y, sizeof(y), err), -ENOMEM,
		       "cuMemcpyDtoHAsync");
	standin_fail("cuMemcpyHtoDAsync_v2", 2, 0);
	assert_refused(tmesh_engine_tensor_write(fix->x, x, sizeof(x), err), -ENOMEM,
		       "cuMemcpyHtoDAsync");
	assert_ok(tmesh_engine_tensor_write(fix->x, x, sizeof(x), err));
}

static void test_handed_over(void **state)
{
	struct tmesh_cuda_import_opts opts = {.size = sizeof(opts), .device = 1};
	struct tmesh_engine_tensor *hidden;
	struct tmesh_cuda_memory *opened;
	struct tmesh_tensor *none = NULL;
	struct fixture *fix = *state;
	char text[TMESH_REF_SIZE];
	struct tmesh_layout layout;
	float got[8];

	assert_ok(tmesh_engine_tensor_write(fix->x, x, sizeof(x), err));
	assert_ok(tmesh_engine_tensor_ref_encode(fix->x, TMESH_READ, text, sizeof(text), err));
	assert_non_null(strstr(text, "cuda:1"));
	assert_ok(
		calls.cuda_open_ref(cuda, text, strlen(text), &opts, NULL, &opened, &layout, err));
	assert_int_equal(layout.ndim, 2);
	assert_int_equal(layout.shape[1], 4);
	assert_int_equal(layout.offset, 0);
	assert_ok(calls.cuda_read(opened, 0, got, sizeof(got), err));
	assert_memory_equal(got, x, sizeof(x));
	calls.cuda_memory_unref(opened);
	assert_refused(tmesh_engine_tensor_export(fix->x, &none, err), -EOPNOTSUPP,
		       "tmesh_engine_tensor_ref_encode");
	assert_refused(tmesh_engine_tensor_ref_encode(fix->x, TMESH_READ, text, 8, err), -ENOSPC,
		       "");
	hidden = tensor_of(fix, 1, shape_b, TMESH_ENGINE_READABLE);
	assert_refused(tmesh_engine_tensor_ref_encode(hidden, TMESH_READ, text, sizeof(text), err),
		       -EACCES, "not made to be exported");
	tmesh_engine_tensor_destroy(hidden);
	assert_refused(tmesh_engine_tensor_ref_encode(hidden, TMESH_READ, text, sizeof(text), err),
		       -EBADF, "destroyed");
	tmesh_engine_tensor_unref(hidden);
}

/* Weights are brought to the GPU, once for each session, and go with it. */
static void test_weights(void **state)
{
	struct tmesh_engine_graph_opts opts = {.size = sizeof(opts), .weight_count = 1};
	struct tmesh_engine_stats stats = {.size = sizeof(stats)};
	struct tmesh_engine_weight weight = {.name = "w"};
	struct tmesh_engine_graph *graph, *again;
	struct fixture *fix = *state;
	uint64_t before = gpu_bytes();
	char path[96];

	opts.weights = &weight;
	snprintf(path, sizeof(path), "%s/graph", folder);
	assert_ok(tmesh_tensor_put(fix->ctx, TMESH_FLOAT32, 2, shape_x, x, NULL, &weight.tensor,
				   err));
	assert_ok(tmesh_region_seal(tmesh_tensor_region(weight.tensor), err));
	standin_fail("cuMemcpyHtoDAsync_v2", 2, 0);
	assert_refused(tmesh_engine_graph_open(fix->context, path, &opts, &graph, err), -ENOMEM,
		       "cuMemcpyHtoDAsync");
	assert_int_equal(gpu_bytes(), before);
	assert_ok(tmesh_engine_graph_open(fix->context, path, &opts, &graph, err));
	assert_ok(tmesh_engine_graph_open(fix->context, path, &opts, &again, err));
	assert_true(gpu_bytes() > before);
	assert_ok(tmesh_engine_stats(fix->context, &stats, err));
	assert_int_equal(stats.writes, 1);
	assert_int_equal(stats.bytes_written, sizeof(x));
	tmesh_engine_graph_unref(graph);
	tmesh_engine_graph_unref(again);
	tmesh_tensor_unref(weight.tensor);
}

/* Weights are copied from a mapping for reading. On unified memory a copy from a writable private
 * mapping copies its pages first. */
static void test_weights_are_read(void **state)
{
	struct tmesh_engine_graph_opts opts = {.size = sizeof(opts), .weight_count = 1};
	struct tmesh_engine_weight weight = {.name = "w"};
	unsigned long long before = standin_copied_on_write();
	struct tmesh_engine_graph *graph;
	struct fixture *fix = *state;
	struct tmesh_region *view;
	char path[96];
	void *at;

	opts.weights = &weight;
	snprintf(path, sizeof(path), "%s/graph", folder);
	assert_ok(tmesh_tensor_put(fix->ctx, TMESH_FLOAT32, 2, shape_x, x, NULL, &weight.tensor,
				   err));
	assert_ok(tmesh_region_seal(tmesh_tensor_region(weight.tensor), err));
	/* This process has a view to write to, too. */
	assert_ok(tmesh_region_private(tmesh_tensor_region(weight.tensor), &view, err));
	assert_ok(tmesh_region_map(view, TMESH_READ | TMESH_WRITE, &at, err));
	assert_ok(tmesh_engine_graph_open(fix->context, path, &opts, &graph, err));
	assert_int_equal(standin_copied_on_write(), before);
	assert_ok(tmesh_engine_tensor_write(fix->x, at, sizeof(x), err));
	assert_int_equal(standin_copied_on_write(), before + sizeof(x));
	tmesh_engine_graph_unref(graph);
	tmesh_region_unref(view);
	tmesh_tensor_unref(weight.tensor);
}

#define DRIVER(name, ...) ((int (*)(__VA_ARGS__))dlsym(driver, name))

static void *dispatch_apart(void *data)
{
	struct tmesh_error err = {0};
	int rc = dispatch(data, &err);

	if (rc)
		printf("# %s\n", err.message);
	return rc ? data : NULL;
}

struct reading {
	struct tmesh_engine_tensor *tensor;
	float got[8];
};

static void *read_apart(void *data)
{
	struct reading *reading = data;

	return tmesh_engine_tensor_read(reading->tensor, reading->got, sizeof(reading->got), NULL)
		       ? data
		       : NULL;
}

/* An engine captures a graph while it runs, as ggml does. No other thread waits for the device
 * meanwhile, because that would break the capture. Memory that is released is freed later, and
 * copies wait for the run's end. */
static void test_captures_go_on(void **state)
{
	struct tmesh_engine_tensor *released;
	struct fixture *fix = *state;
	struct reading reading = {.tensor = fix->y};
	pthread_t running, copying;
	uint64_t used;
	void *context, *stream, *graph, *failed;
	float y = 0;
	char path[96];
	struct tmesh_engine_tensor_info info = {.size = sizeof(info)};

	tmesh_engine_graph_unref(fix->graph);
	snprintf(path, sizeof(path), "%s/waiting", folder);
	assert_ok(tmesh_engine_graph_open(fix->context, path, NULL, &fix->graph, err));
	released = tensor_of(fix, 2, shape_x, FLAGS);
	used = gpu_bytes();
	assert_ok(tmesh_engine_tensor_write(fix->x, x, sizeof(x), err));
	assert_ok(tmesh_engine_tensor_info(fix->y, &info, err));
	assert_int_equal(DRIVER("cuDevicePrimaryCtxRetain", void **, int)(&context, 1), 0);
	assert_int_equal(DRIVER("cuCtxPushCurrent_v2", void *)(context), 0);
	assert_int_equal(DRIVER("cuStreamCreate", void **, unsigned int)(&stream, 1), 0);

	assert_int_equal(pthread_create(&running, NULL, dispatch_apart, fix), 0);
	while (y != -1)
		assert_true(standin_access(1, (uintptr_t)info.address, &y, sizeof(y), false));
	assert_int_equal(DRIVER("cuStreamBeginCapture_v2", void *, int)(stream, 2), 0);
	tmesh_engine_tensor_unref(released);
	assert_int_equal(gpu_bytes(), used);
	assert_int_equal(pthread_create(&copying, NULL, read_apart, &reading), 0);
	assert_int_equal(DRIVER("cuStreamEndCapture", void *, void **)(stream, &graph), 0);
	assert_int_equal(write_graph("waiting.go", ""), 0);
	pthread_join(running, &failed);
	assert_null(failed);
	pthread_join(copying, &failed);
	assert_null(failed);
	/* It has come after the run, which wrote x and zeros. */
	assert_memory_equal(reading.got, x, sizeof(x));
	while (gpu_bytes() == used)
		usleep(1000);
	assert_int_equal(DRIVER("cuStreamDestroy_v2", void *)(stream), 0);
	assert_int_equal(DRIVER("cuCtxPopCurrent_v2", void **)(&context), 0);
	assert_int_equal(DRIVER("cuDevicePrimaryCtxRelease_v2", int)(1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_forked),
		gpu_test(test_dispatch),
		gpu_test(test_refused),
		gpu_test(test_driver_fails),
		gpu_test(test_handed_over),
		gpu_test(test_weights),
		gpu_test(test_weights_are_read),
		gpu_test(test_captures_go_on),
	};

	return cmocka_run_group_tests_name("on a stand-in for GPUs", tests, set_up_group,
					   tear_down_group);
}
