// SPDX-License-Identifier: MIT
/*
 * The engine "ggml" on a GPU as far as it goes without one. It runs on stand-ins for the driver
 * (tests/cuda) and for a libggml with CUDA, whose numbers are the CPU's. The tests show the device
 * and memory that ggml gets, that its scratch memory is there, and that a failed call leaves
 * nothing. They also show that the graph as it is built for a GPU has the CPU's results. They do
 * not show CUDA's kernels.
 */
#include <dlfcn.h>
#include <tmesh/engine.h>

#define TMESH_CUDA_API_MORE(X) X(cuda_stats)
#include "common/cuda_api.h"
#include "standin_ggml.h"
#include "unit.h"

#define FLAGS (TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE)
#define QUANT_BYTES (64 * 64 / 32 * 34)

static const char text[] = "graph g\n"
			   "x = input : float32[2,64]\n"
			   "pos = input : int32[2]\n"
			   "rows = input : int64[2]\n"
			   "past = input cache=reuse : float32[16,64]\n"
			   "pool = input : float32[8,4,4,16]\n"
			   "tables = input : int32[2,2]\n"
			   "la = input : float32[4,64]\n"
			   "lb = input : float32[64,4]\n"
			   "one = input : float32[1]\n"
			   "b = weight quant=Q8_0 : float32[64,64]\n"
			   "w = weight : float16[64,64]\n"
			   "n = rms_norm(x)\n"
			   "s = silu(n)\n"
			   "m = lora(s, w, la, lb, one)\n"
			   "fresh = matmul(m, b)\n"
			   "present = set_rows(past, fresh, rows)\n"
			   "k = reshape(present) : float32[16,4,16]\n"
			   "heads = reshape(m) : float32[2,4,16]\n"
			   "q = rope(heads, pos) dims=16\n"
			   "seen = attention(q, k, k, pos)\n"
			   "paged = attention(q, pool, pool, pos, tables)\n"
			   "both = add(seen, paged)\n"
			   "output seen = seen\n"
			   "output both = both\n"
			   "output present = present\n"
			   "as_is = reshape(pos) : int32[1,2]\n"
			   "output echo = as_is\n";

/* The graph's operands, and what they are given; outputs begin at OUT. */
enum {
	X,
	POS,
	ROWS,
	PAST,
	POOL,
	TABLES,
	LA,
	LB,
	ONE,
	SEEN,
	BOTH,
	PRESENT,
	ECHO,
	ALL,
	OUT = SEEN
};

static const struct operand {
	const char *name;
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[4];
} operands[ALL] = {
	[X] = {"x", TMESH_FLOAT32, 2, {2, 64}},
	[POS] = {"pos", TMESH_INT32, 1, {2}},
	[ROWS] = {"rows", TMESH_INT64, 1, {2}},
	[PAST] = {"past", TMESH_FLOAT32, 2, {16, 64}},
	[POOL] = {"pool", TMESH_FLOAT32, 4, {8, 4, 4, 16}},
	[TABLES] = {"tables", TMESH_INT32, 2, {2, 2}},
	[LA] = {"la", TMESH_FLOAT32, 2, {4, 64}},
	[LB] = {"lb", TMESH_FLOAT32, 2, {64, 4}},
	[ONE] = {"one", TMESH_FLOAT32, 1, {1}},
	[SEEN] = {"seen", TMESH_FLOAT32, 3, {2, 4, 16}},
	[BOTH] = {"both", TMESH_FLOAT32, 3, {2, 4, 16}},
	[PRESENT] = {"present", TMESH_FLOAT32, 2, {16, 64}},
	[ECHO] = {"echo", TMESH_INT32, 2, {1, 2}},
};

struct results {
	float seen[128], both[128], present[1024];
	int32_t echo[2];
};

static char folder[] = "/tmp/tmesh-engine-XXXXXX", path[64];
static struct ggml_standin *ggml;
static struct tmesh_cuda_api calls;
static struct tmesh_cuda *cuda;
static struct tmesh_ctx *ctx;
static struct tmesh_engine_weight weights[2] = {{.name = "b"}, {.name = "w"}};
static float given[ALL][2048];
static int32_t positions[2] = {3, 6}, tables[4] = {5, 2, 7, 1};
static int64_t rows[2] = {3, 6};

static float number(void)
{
	static uint32_t seed = 1;

	seed = seed * 1664525 + 1013904223;
	return (float)(seed >> 16) / 65536 - 0.5f;
}

static int put_weight(struct tmesh_engine_weight *weight, enum tmesh_dtype dtype, int32_t ndim,
		      const int64_t *shape, const void *data)
{
	return tmesh_tensor_put(ctx, dtype, ndim, shape, data, NULL, &weight->tensor, NULL) ||
	       tmesh_region_seal(tmesh_tensor_region(weight->tensor), NULL);
}

static int put_weights(void)
{
	static uint16_t halves[64 * 64];
	static unsigned char blocks[QUANT_BYTES];

	for (size_t i = 0; i < 64 * 64; i++)
		halves[i] = (uint16_t)(0x3000 + (number() + 0.5f) * 0x600) |
			    (number() < 0 ? 0x8000 : 0);
	/* A scale of 2^-8, and 32 whole numbers. */
	for (size_t i = 0; i < QUANT_BYTES; i++)
		blocks[i] = i % 34 == 0 ? 0 : i % 34 == 1 ? 0x1c : (unsigned char)(number() * 100);
	return put_weight(&weights[0], TMESH_UINT8, 1, (int64_t[]){QUANT_BYTES}, blocks) ||
	       put_weight(&weights[1], TMESH_FLOAT16, 2, (int64_t[]){64, 64}, halves);
}

static int write_graph(char *to, size_t size, const char *name, const char *words)
{
	FILE *file;

	snprintf(to, size, "%s/%s", folder, name);
	file = fopen(to, "w");
	return !file || fputs(words, file) < 0 || fclose(file);
}

static int set_up_group(void **state)
{
	void *library = dlopen(getenv("TMESH_GGML"), RTLD_NOW);
	struct tmesh_error err = {0};
	ggml_standin_fn *get;

	if (!library || tmesh_cuda_api_load(&calls, TMESH_CUDA_LIBRARY, &err) ||
	    calls.cuda_default(&cuda, &err) || !mkdtemp(folder)) {
		printf("# %s\n", library ? err.message : dlerror());
		return -1;
	}
	*(void **)&get = dlsym(library, "ggml_standin");
	ggml = get();
	if (write_graph(path, sizeof(path), "g", text))
		return -1;
	for (size_t i = 0; i < ALL; i++)
		for (size_t n = 0; n < 2048; n++)
			given[i][n] = number();
	memcpy(given[POS], positions, sizeof(positions));
	memcpy(given[TABLES], tables, sizeof(tables));
	memcpy(given[ROWS], rows, sizeof(rows));
	return tmesh_ctx_open(NULL, &ctx, NULL) || put_weights();
}

static int tear_down_group(void **state)
{
	char command[96];

	tmesh_tensor_unref(weights[0].tensor);
	tmesh_tensor_unref(weights[1].tensor);
	tmesh_ctx_unref(ctx);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

static uint64_t gpu_bytes(int device)
{
	struct tmesh_cuda_stats out = {.size = sizeof(out)};

	assert_int_equal(calls.cuda_stats(cuda, device, &out), 0);
	return out.bytes_used;
}

/* Everything from a context to a binding, and all of it gone again. */
struct all {
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_value values[ALL];
};

static void end(struct all *all)
{
	tmesh_engine_binding_unref(all->binding);
	for (size_t i = 0; i < ALL; i++)
		tmesh_engine_tensor_unref(all->values[i].tensor);
	tmesh_engine_graph_unref(all->graph);
	tmesh_engine_context_unref(all->context);
	*all = (struct all){0};
}

static int open_on(enum tmesh_device_type type, int32_t device, struct tmesh_engine_context **out,
		   struct tmesh_error *err)
{
	struct tmesh_engine_context_opts opts = {
		.size = sizeof(opts), .device_type = type, .device_id = device};

	return tmesh_engine_context_create(ctx, "ggml", &opts, out, err);
}

static int begin(struct all *all, enum tmesh_device_type type, int32_t device,
		 struct tmesh_error *err)
{
	struct tmesh_engine_graph_opts opts = {
		.size = sizeof(opts), .weights = weights, .weight_count = 2};
	int rc = open_on(type, device, &all->context, err);

	if (!rc)
		rc = tmesh_engine_graph_open(all->context, path, &opts, &all->graph, err);
	for (size_t i = 0; !rc && i < ALL; i++) {
		const struct operand *operand = &operands[i];
		uint64_t bytes = tmesh_dtype_bits(operand->dtype) / 8;

		for (int32_t n = 0; n < operand->ndim; n++)
			bytes *= (uint64_t)operand->shape[n];
		all->values[i].name = operand->name;
		if (i == PRESENT) {
			all->values[i].tensor = tmesh_engine_tensor_ref(all->values[PAST].tensor);
			all->values[i].in_place = "past";
			continue;
		}
		rc = tmesh_engine_tensor_create(all->context, operand->dtype, operand->ndim,
						operand->shape, FLAGS, &all->values[i].tensor, err);
		if (!rc && i < OUT)
			rc = tmesh_engine_tensor_write(all->values[i].tensor, given[i], bytes, err);
	}
	return rc
		       ?: tmesh_engine_bind(all->graph, all->values, OUT, all->values + OUT,
					    ALL - OUT, &all->binding, err);
}

static int results_of(const struct all *all, struct results *out, struct tmesh_error *err)
{
	int rc = tmesh_engine_tensor_read(all->values[SEEN].tensor, out->seen, sizeof(out->seen),
					  err);

	if (!rc)
		rc = tmesh_engine_tensor_read(all->values[BOTH].tensor, out->both,
					      sizeof(out->both), err);
	if (!rc)
		rc = tmesh_engine_tensor_read(all->values[PRESENT].tensor, out->present,
					      sizeof(out->present), err);
	return rc
		       ?: tmesh_engine_tensor_read(all->values[ECHO].tensor, out->echo,
						   sizeof(out->echo), err);
}

/* Return the results of two runs, the second with another adapter and other positions in new
 * memory. */
static int whole(enum tmesh_device_type type, int32_t device, struct results out[2],
		 struct tmesh_error *err)
{
	struct tmesh_engine_value moved[2] = {{.name = "la"}, {.name = "pos"}};
	struct all all = {0};
	int rc = begin(&all, type, device, err);

	if (!rc)
		rc = tmesh_engine_binding_dispatch(all.binding, err);
	if (!rc)
		rc = results_of(&all, &out[0], err);
	for (size_t i = 0; !rc && i < 2; i++) {
		const struct operand *operand = &operands[i ? POS : LA];

		rc = tmesh_engine_tensor_create(all.context, operand->dtype, operand->ndim,
						operand->shape, FLAGS, &moved[i].tensor, err);
		if (!rc)
			rc = tmesh_engine_tensor_write(moved[i].tensor,
						       i ? (const void *)(int32_t[]){1, 2}
							 : (const void *)given[POOL],
						       i ? 8 : 1024, err);
	}
	if (!rc)
		rc = tmesh_engine_binding_rebind(all.binding, moved, 2, err);
	if (!rc)
		rc = tmesh_engine_binding_dispatch(all.binding, err);
	if (!rc)
		rc = results_of(&all, &out[1], err);
	tmesh_engine_tensor_unref(moved[0].tensor);
	tmesh_engine_tensor_unref(moved[1].tensor);
	end(&all);
	return rc;
}

static void test_as_on_the_cpu(void **state)
{
	struct results cpu[2], gpu[2];

	memset(cpu, 0, sizeof(cpu));
	memset(gpu, 0, sizeof(gpu));
	assert_ok(whole(TMESH_DEVICE_CPU, 0, cpu, err));
	assert_memory_equal(cpu[0].echo, positions, sizeof(positions));
	assert_memory_not_equal(cpu[0].both, cpu[1].both, sizeof(cpu[0].both));
	for (int32_t device = 0; device < 2; device++) {
		uint64_t before[2] = {gpu_bytes(0), gpu_bytes(1)};
		int gets = ggml->gets;

		ggml->device = -1;
		assert_ok(whole(TMESH_DEVICE_CUDA, device, gpu, err));
		assert_memory_equal(cpu, gpu, sizeof(cpu));
		assert_int_equal(ggml->device, device);
		/* One when it starts, and for each input of integers in each run. */
		assert_int_equal(ggml->gets - gets, 1 + 2 * 3);
		assert_int_equal(ggml->outside, 0);
		assert_int_equal(ggml->dirty, 0);
		assert_int_equal(ggml->backends, 0);
		assert_int_equal(ggml->buffers, 0);
		assert_int_equal(gpu_bytes(0), before[0]);
		assert_int_equal(gpu_bytes(1), before[1]);
	}
}

/* Rows of pages that no query sees are not read: ggml would multiply them by zero. */
static void test_unseen(void **state)
{
	struct all all = {0};

	assert_ok(begin(&all, TMESH_DEVICE_CUDA, 0, err));
	ggml->rows = 0;
	assert_ok(tmesh_engine_binding_dispatch(all.binding, err));
	/* Pages of 4 rows: 5 and 2, of which 4 rows are seen, and 7 and 1, of which 7 are. */
	assert_int_equal(ggml->rows, 0xfu << 20 | 0xfu << 28 | 0x7u << 4);
	end(&all);
}

static void test_refused(void **state)
{
	struct tmesh_engine_context *none = NULL;
	struct all all = {0};

	assert_refused(open_on(TMESH_DEVICE_CUDA, 2, &none, err), -ENODEV, "no GPU 2");
	assert_refused(open_on(TMESH_DEVICE_CUDA, -1, &none, err), -ENODEV, "no GPU -1");
	ggml->without = true;
	assert_refused(open_on(TMESH_DEVICE_CUDA, 0, &none, err), -EOPNOTSUPP,
		       "install one that was built with GGML_CUDA");
	ggml->without = false;
	ggml->hides = true;
	assert_refused(open_on(TMESH_DEVICE_CUDA, 0, &none, err), -EOPNOTSUPP, "was not found");
	ggml->hides = false;
	ggml->lacks_silu = true;
	assert_refused(begin(&all, TMESH_DEVICE_CUDA, 0, err), -EOPNOTSUPP,
		       "node \"s\": ggml cannot run this silu: its backend for CUDA");
	end(&all);
	ggml->lacks_silu = false;
	ggml->lacks_type = 8;
	assert_refused(begin(&all, TMESH_DEVICE_CUDA, 0, err), -EOPNOTSUPP,
		       "has no type Q8_0: use a newer ggml");
	end(&all);
	ggml->lacks_type = 0;
	ggml->behind = 2000;
	assert_refused(begin(&all, TMESH_DEVICE_CUDA, 0, err), -EOPNOTSUPP,
		       "weight \"b\": this ggml reads 2000 bytes behind it");
	end(&all);
	ggml->behind = 540;
	assert_int_equal(ggml->backends, 0);
	assert_int_equal(ggml->buffers, 0);
}

/* CUDA's backend says that it copies them, and aborts. */
static void test_turned_integers(void **state)
{
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *none = NULL;
	char turned[64];

	assert_int_equal(write_graph(turned, sizeof(turned), "turned",
				     "graph t\nx = input : int64[2,3]\ny = transpose(x) axes=1,0\n"
				     "output y = y\n"),
			 0);
	assert_ok(open_on(TMESH_DEVICE_CUDA, 0, &context, err));
	assert_refused(tmesh_engine_graph_open(context, turned, NULL, &none, err), -EOPNOTSUPP,
		       "node \"y\": ggml cannot run this transpose");
	tmesh_engine_context_unref(context);
}

/* Numbers that are not there are an error before anything runs, on a GPU too. */
static void test_numbers(void **state)
{
	struct all all = {0};

	assert_ok(begin(&all, TMESH_DEVICE_CUDA, 1, err));
	assert_ok(tmesh_engine_tensor_write(all.values[TABLES].tensor, (int32_t[]){5, 2, 8, 1}, 16,
					    err));
	assert_refused(tmesh_engine_binding_dispatch(all.binding, err), -EINVAL,
		       "input \"tables\" has 8");
	end(&all);
}

/* If a call of the library fails, its error is the call's error, and everything made is released.
 */
static void test_each_fails(void **state)
{
	static const struct {
		const char *name;
		int after, code;
	} fails[] = {
		/* For the engine; to try the graph, and for its binding. */
		{"backend_buft_alloc_buffer", 0, -ENOMEM}, {"backend_tensor_alloc", 1, -EOPNOTSUPP},
		{"backend_dev_init", 0, -ENOMEM},	   {"backend_dev_init", 1, -ENOMEM},
		{"backend_buft_alloc_buffer", 1, -ENOMEM}, {"backend_graph_compute", 0, -EIO},
	};
	static struct results out[2];

	for (size_t i = 0; i < sizeof(fails) / sizeof(*fails); i++) {
		uint64_t before = gpu_bytes(1);
		struct tmesh_error err = {0};

		ggml->fails = fails[i].name;
		ggml->after = fails[i].after;
		assert_int_equal(whole(TMESH_DEVICE_CUDA, 1, out, &err), fails[i].code);
		assert_null(ggml->fails);
		assert_int_equal(ggml->backends, 0);
		assert_int_equal(ggml->buffers, 0);
		assert_int_equal(gpu_bytes(1), before);
	}
	assert_ok(whole(TMESH_DEVICE_CUDA, 1, out, err));
}

static struct tmesh_engine_cancellable *stop;

static void call_off(void)
{
	tmesh_engine_cancel(stop);
}

static void never(void)
{
	fail();
}

/* No call asks while ggml runs: such a run goes to its end. One that has not begun does not. */
static void test_cancelled(void **state)
{
	static struct results cpu[2], gpu;
	struct all all = {0};

	assert_ok(whole(TMESH_DEVICE_CPU, 0, cpu, err));
	assert_ok(begin(&all, TMESH_DEVICE_CUDA, 0, err));
	assert_ok(tmesh_engine_cancellable_create(NULL, &stop, err));
	ggml->during = call_off;
	assert_ok(tmesh_engine_binding_dispatch_cancellable(all.binding, stop, err));
	ggml->during = NULL;
	assert_ok(results_of(&all, &gpu, err));
	assert_memory_equal(&gpu, &cpu[0], sizeof(gpu));
	assert_refused(tmesh_engine_binding_dispatch_cancellable(all.binding, stop, err),
		       -ECANCELED, "before it ran");
	tmesh_engine_cancellable_unref(stop);
	assert_ok(tmesh_engine_cancellable_create(NULL, &stop, err));
	ggml->reading = call_off;
	ggml->during = never;
	assert_refused(tmesh_engine_binding_dispatch_cancellable(all.binding, stop, err),
		       -ECANCELED, "while it ran");
	ggml->reading = ggml->during = NULL;
	assert_ok(tmesh_engine_binding_dispatch(all.binding, err));
	tmesh_engine_cancellable_unref(stop);
	end(&all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_as_on_the_cpu), TEST(test_unseen),	      TEST(test_refused),
		TEST(test_numbers),	  TEST(test_turned_integers), TEST(test_each_fails),
		TEST(test_cancelled),
	};

	return cmocka_run_group_tests_name("ggml on stand-ins for GPUs", tests, set_up_group,
					   tear_down_group);
}
