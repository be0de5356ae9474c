// SPDX-License-Identifier: MIT
/* Memory released in the order of a stream: the stream uses it again at once. Other streams and the
 * driver get it when the queued work is done. */
#include "cuda_unit.h"

typedef int stream_create_fn(struct CUstream_st **out, unsigned int flags);
typedef int stream_destroy_fn(struct CUstream_st *stream);
typedef int launch_fn(struct CUstream_st *stream, void (*call)(void *data), void *data);
typedef int push_fn(void *context);
typedef int retain_fn(void **context, int device);
typedef int release_fn(int device);

/* Two streams of GPU 0, and a kernel that takes a while, once it is not held, and touches memory
 * when it ends. */
struct desk {
	struct bed bed;
	struct CUstream_st *s, *t;
	launch_fn *launch;
	atomic_uint done;
	atomic_bool held;
};

struct kernel {
	struct desk *desk;
	uint64_t at;
};

static void slow_kernel(void *data)
{
	struct kernel *kernel = data;

	while (kernel->desk->held)
		usleep(1000);
	usleep(30000);
	*(volatile char *)kernel->at = 'k';
	atomic_fetch_add(&kernel->desk->done, 1);
	free(kernel);
}

static void work(struct desk *desk, struct CUstream_st *stream, struct tmesh_cuda_memory *memory)
{
	struct kernel *kernel = malloc(sizeof(*kernel));

	*kernel = (struct kernel){.desk = desk, .at = tmesh_cuda_pointer(memory)};
	desk->launch(stream, slow_kernel, kernel);
}

static int desk_open(void **state)
{
	struct desk *desk = calloc(1, sizeof(*desk));
	void *context;

	bed_open(&desk->bed, 8 * MIB);
	desk->launch = (launch_fn *)standin_symbol("cuLaunchHostFunc");
	((retain_fn *)standin_symbol("cuDevicePrimaryCtxRetain"))(&context, 0);
	((push_fn *)standin_symbol("cuCtxPushCurrent_v2"))(context);
	((stream_create_fn *)standin_symbol("cuStreamCreate"))(&desk->s, 0);
	((stream_create_fn *)standin_symbol("cuStreamCreate"))(&desk->t, 0);
	*state = desk;
	return 0;
}

static int desk_close(void **state)
{
	stream_destroy_fn *destroy = (stream_destroy_fn *)standin_symbol("cuStreamDestroy_v2");
	struct desk *desk = *state;
	void *context;

	/* Kernels may still use the memory that the library has. */
	tmesh_cuda_unref(desk->bed.cuda);
	tmesh_ctx_unref(desk->bed.ctx);
	destroy(desk->s);
	destroy(desk->t);
	((push_fn *)standin_symbol("cuCtxPopCurrent_v2"))(&context);
	((release_fn *)standin_symbol("cuDevicePrimaryCtxRelease_v2"))(0);
	eventually(standin_live() == 0);
	free(desk);
	return 0;
}

static struct tmesh_cuda_memory *alloc(struct desk *desk, uint64_t bytes,
				       struct CUstream_st *stream)
{
	struct tmesh_cuda_memory *memory;

	assert_ok(tmesh_cuda_alloc_on(desk->bed.cuda, 0, bytes, 0, stream, &memory, err));
	return memory;
}

/* Memory allocated on a stream, used there, and released in its order while the work goes on. */
static uint64_t use(struct desk *desk, uint64_t bytes, struct CUstream_st *stream)
{
	struct tmesh_cuda_memory *memory = alloc(desk, bytes, stream);
	uint64_t at = tmesh_cuda_pointer(memory);

	work(desk, stream, memory);
	tmesh_cuda_memory_unref_on(memory, stream);
	return at;
}

STANDIN_ADD(test_same_stream, desk_open, desk_close)
{
	struct desk *desk = *state;
	struct tmesh_cuda_memory *kept = alloc(desk, 512, desk->s), *memory, *rest;
	unsigned long waits = standin_calls("cuCtxSynchronize");
	uint64_t at;

	desk->held = true;
	at = use(desk, 5000, desk->s);
	memory = alloc(desk, 3000, desk->s);
	assert_int_equal(tmesh_cuda_pointer(memory), at);
	assert_int_equal(desk->done, 0);
	assert_int_equal(standin_calls("cuCtxSynchronize"), waits);
	desk->held = false;
	/* The rest of the block is in that order too. */
	rest = alloc(desk, 100, desk->t);
	assert_int_equal(desk->done, 1);
	tmesh_cuda_memory_unref(rest);
	tmesh_cuda_memory_unref_on(memory, desk->s);
	assert_int_equal(stats_of(&desk->bed).bytes_used, 512);
	tmesh_cuda_memory_unref(kept);
}

/* A process outside that order waits for the kernel, once for all released memory. */
STANDIN_ADD(test_others, desk_open, desk_close)
{
	struct desk *desk = *state;
	struct CUstream_st *const others[] = {desk->t, TMESH_CUDA_NO_STREAM};
	struct tmesh_cuda_memory *memory;

	for (unsigned int i = 0; i < 2; i++) {
		unsigned long waits;
		uint64_t at = use(desk, 5000, desk->s);

		waits = standin_calls("cuEventSynchronize");
		memory = alloc(desk, 5000, others[i]);
		assert_int_equal(tmesh_cuda_pointer(memory), at);
		assert_int_equal(desk->done, i + 1);
		assert_int_equal(standin_calls("cuEventSynchronize"), waits + 1);
		waits = standin_calls("cuCtxSynchronize");
		tmesh_cuda_memory_unref(alloc(desk, 5000, others[i]));
		assert_int_equal(standin_calls("cuCtxSynchronize"), waits + 1);
		tmesh_cuda_memory_unref(memory);
	}
	assert_int_equal(stats_of(&desk->bed).blocks, 1);
}

/* Neighbours of different streams become one block without an order. */
STANDIN_ADD(test_neighbours, desk_open, desk_close)
{
	struct desk *desk = *state;
	struct CUstream_st *const either[] = {desk->s, desk->t};

	for (unsigned int i = 0; i < 2; i++) {
		struct tmesh_cuda_memory *first = alloc(desk, 4 * MIB, desk->s);
		struct tmesh_cuda_memory *second = alloc(desk, 4 * MIB, desk->t), *both;
		uint64_t at = tmesh_cuda_pointer(first);

		work(desk, desk->s, first);
		work(desk, desk->t, second);
		tmesh_cuda_memory_unref_on(first, desk->s);
		tmesh_cuda_memory_unref_on(second, desk->t);
		both = alloc(desk, 8 * MIB, either[i]);
		assert_int_equal(tmesh_cuda_pointer(both), at);
		assert_int_equal(desk->done, 2 * (i + 1));
		tmesh_cuda_memory_unref(both);
	}
}

/* An allocation waits for busy memory before it fails, and before it unmaps a block. */
STANDIN_ADD(test_no_memory, desk_open, desk_close)
{
	struct desk *desk = *state;
	struct tmesh_cuda_memory *memory;

	use(desk, 200 * MIB, desk->s);
	assert_ok(tmesh_cuda_alloc(desk->bed.cuda, 0, 100 * MIB, TMESH_CUDA_ALONE, &memory, err));
	assert_int_equal(desk->done, 1);
	assert_int_equal(stats_of(&desk->bed).bytes_reserved, 100 * MIB);
	tmesh_cuda_memory_unref(memory);
	use(desk, 5000, desk->s);
	tmesh_cuda_trim(desk->bed.cuda);
	assert_int_equal(desk->done, 2);
	assert_int_equal(stats_of(&desk->bed).blocks, 0);
	/* The same when the library goes. */
	use(desk, 5000, desk->t);
}

/* Memory without an order: a stream of each thread's, memory of its own block, memory that others
 * have. */
STANDIN_ADD(test_waited_for, desk_open, desk_close)
{
	struct desk *desk = *state;
	struct tmesh_layout layout = bytes_layout(5000);
	unsigned long waits = standin_calls("cuCtxSynchronize");
	struct tmesh_cuda_memory *memory = alloc(desk, 5000, desk->s);
	char text[TMESH_REF_SIZE];

	tmesh_cuda_memory_unref_on(memory, CU_STREAM_PER_THREAD);
	assert_int_equal(standin_calls("cuCtxSynchronize"), waits + 1);
	assert_ok(tmesh_cuda_alloc_on(desk->bed.cuda, 0, 5000, TMESH_CUDA_ALONE, desk->s, &memory,
				      err));
	tmesh_cuda_memory_unref_on(memory, desk->s);
	assert_int_equal(standin_calls("cuCtxSynchronize"), waits + 2);
	memory = alloc(desk, 5000, desk->s);
	assert_ok(tmesh_cuda_share(memory, &layout, desk->s, text, sizeof(text), err));
	tmesh_cuda_memory_unref_on(memory, desk->s);
	assert_int_equal(standin_calls("cuCtxSynchronize"), waits + 3);
	assert_int_equal(stats_of(&desk->bed).bytes_used, 0);
}

/* Many sizes, in the order of either stream and of none: never two at one place. */
STANDIN_ADD(test_random, desk_open, desk_close)
{
	struct desk *desk = *state;
	struct tmesh_cuda_memory *have[100] = {NULL};
	struct CUstream_st *streams[] = {desk->s, desk->t, TMESH_CUDA_NO_STREAM};
	unsigned int seed = 1;

	for (int round = 0; round < 3000; round++) {
		size_t i = (size_t)rand_r(&seed) % 100;
		struct tmesh_cuda_info mine;

		if (have[i]) {
			tmesh_cuda_memory_unref_on(have[i], streams[i % 3]);
			have[i] = NULL;
			continue;
		}
		have[i] = alloc(desk, 1 + (uint64_t)rand_r(&seed) % 300000, streams[i % 3]);
		mine = info_of(have[i]);
		for (size_t j = 0; j < 100; j++) {
			struct tmesh_cuda_info other;

			if (!have[j] || j == i)
				continue;
			other = info_of(have[j]);
			assert_true(mine.pointer + mine.bytes <= other.pointer ||
				    other.pointer + other.bytes <= mine.pointer);
		}
	}
	for (size_t i = 0; i < 100; i++)
		tmesh_cuda_memory_unref_on(have[i], streams[i % 3]);
	assert_int_equal(stats_of(&desk->bed).bytes_used, 0);
	tmesh_cuda_trim(desk->bed.cuda);
	assert_int_equal(stats_of(&desk->bed).blocks, 0);
}

UNIT_MAIN("cuda order", NULL, NULL)
