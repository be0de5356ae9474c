// SPDX-License-Identifier: MIT
/*
 * A stream captures a graph, as frameworks do. No call of the library breaks the capture; a call
 * that the driver forbids meanwhile is refused or done later. And devices that cannot be waited
 * for.
 */
#include "cuda_unit.h"

typedef int stream_create_fn(struct CUstream_st **out, unsigned int flags);
typedef int stream_fn(struct CUstream_st *stream);
typedef int begin_fn(struct CUstream_st *stream, int mode);
typedef int end_fn(struct CUstream_st *stream, void **graph);
typedef int launch_fn(struct CUstream_st *stream, void (*call)(void *data), void *data);

static const int modes[] = {CU_CAPTURE_MODE_GLOBAL, 1, CU_CAPTURE_MODE_RELAXED};

struct studio {
	struct bed bed;
	struct CUstream_st *blocking, *free, *other; /* the last of GPU 1 */
	begin_fn *begin;
	end_fn *end;
};

static void push(int device)
{
	void *context;

	((int (*)(void **, int))standin_symbol("cuDevicePrimaryCtxRetain"))(&context, device);
	((int (*)(void *))standin_symbol("cuCtxPushCurrent_v2"))(context);
}

static void pop(int device)
{
	void *context;

	((int (*)(void **))standin_symbol("cuCtxPopCurrent_v2"))(&context);
	((int (*)(int))standin_symbol("cuDevicePrimaryCtxRelease_v2"))(device);
}

static int studio_open(void **state)
{
	stream_create_fn *create = (stream_create_fn *)standin_symbol("cuStreamCreate");
	struct studio *studio = calloc(1, sizeof(*studio));

	bed_open(&studio->bed, 8 * MIB);
	push(1);
	create(&studio->other, 0);
	push(0);
	create(&studio->blocking, 0);
	create(&studio->free, CU_NON_BLOCKING);
	studio->begin = (begin_fn *)standin_symbol("cuStreamBeginCapture_v2");
	studio->end = (end_fn *)standin_symbol("cuStreamEndCapture");
	*state = studio;
	return 0;
}

static int studio_close(void **state)
{
	stream_fn *destroy = (stream_fn *)standin_symbol("cuStreamDestroy_v2");
	struct studio *studio = *state;

	destroy(studio->blocking);
	destroy(studio->free);
	pop(0);
	destroy(studio->other);
	pop(1);
	bed_close(&studio->bed);
	free(studio);
	return 0;
}

static void end(struct studio *studio, struct CUstream_st *stream)
{
	void *graph;

	assert_int_equal(studio->end(stream, &graph), 0);
}

/* Make every call that does not wait for the device. */
static void use_all(struct studio *studio)
{
	struct tmesh_cuda *cuda = studio->bed.cuda;
	struct tmesh_cuda_memory *memory, *host;
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_region *region, *shared;
	char text[TMESH_REF_SIZE];

	assert_ok(tmesh_cuda_alloc(cuda, 0, 5000, TMESH_CUDA_ALONE, &memory, err));
	assert_ok(tmesh_cuda_share(memory, &layout, TMESH_CUDA_NO_STREAM, text, sizeof(text), err));
	assert_ok(tmesh_cuda_region(memory, &shared, err));
	tmesh_region_unref(shared);
	assert_ok(tmesh_region_create(studio->bed.ctx, 5000, NULL, &region, err));
	assert_ok(tmesh_cuda_register(cuda, region, 0, RW, 0, &host, err));
	tmesh_cuda_trim(cuda);
	tmesh_cuda_memory_unref(host);
	tmesh_region_unref(region);
	tmesh_cuda_memory_unref(memory);
}

STANDIN_ADD(test_no_capture_is_broken, studio_open, studio_close)
{
	struct studio *studio = *state;

	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(studio->begin(studio->blocking, modes[i]), 0);
		use_all(studio);
		end(studio, studio->blocking);
		assert_int_equal(studio->begin(studio->free, modes[i]), 0);
		assert_ok(tmesh_cuda_capture_begin(studio->bed.cuda, 0, err));
		use_all(studio);
		usleep(50000); /* a retry by the library's thread would break it now */
		end(studio, studio->free);
		assert_ok(tmesh_cuda_capture_end(studio->bed.cuda, 0, err));
	}
	eventually(stats_of(&studio->bed).bytes_waiting == 0);
	assert_int_equal(stats_of(&studio->bed).bytes_used, 0);
	assert_int_equal(studio->bed.warnings, 0);
	assert_refused(tmesh_cuda_capture_end(studio->bed.cuda, 0, err), -EINVAL, "none was");
	assert_refused(tmesh_cuda_capture_begin(studio->bed.cuda, 2, err), -ENODEV, "no GPU 2");
}

/* Memory released while the device cannot be waited for stays allocated, and is counted. */
STANDIN_ADD(test_given_back_later, studio_open, studio_close)
{
	struct studio *studio = *state;
	struct bed *bed = &studio->bed;
	struct tmesh_cuda_memory *memory, *host;
	struct tmesh_region *region;
	uint64_t at, host_at;
	char byte;

	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 5000, TMESH_CUDA_ALONE, &memory, err));
	assert_ok(tmesh_region_create(bed->ctx, 5000, NULL, &region, err));
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &host, err));
	at = tmesh_cuda_pointer(memory);
	host_at = tmesh_cuda_pointer(host);
	assert_int_equal(studio->begin(studio->blocking, 0), 0);
	tmesh_cuda_memory_unref(memory);
	tmesh_cuda_memory_unref(host);
	tmesh_region_unref(region);
	assert_int_equal(stats_of(bed).bytes_waiting, 10000);
	assert_true(standin_access(0, at, &byte, 1, true));
	assert_true(standin_access(0, host_at, &byte, 1, true));
	end(studio, studio->blocking);
	eventually(stats_of(bed).bytes_waiting == 0);
	assert_false(standin_access(0, at, &byte, 1, true));
	assert_false(standin_access(0, host_at, &byte, 1, true));

	/* The same, if the driver fails: the library checks the result of waiting. */
	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 5000, TMESH_CUDA_ALONE, &memory, err));
	at = tmesh_cuda_pointer(memory);
	standin_fail("cuCtxSynchronize", 999, 0);
	tmesh_cuda_memory_unref(memory);
	eventually(stats_of(bed).bytes_waiting == 0);
	assert_false(standin_access(0, at, &byte, 1, true));
	/* After a kernel has failed no work runs any more. */
	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 5000, TMESH_CUDA_ALONE, &memory, err));
	standin_fail("cuCtxSynchronize", 700, 0);
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(stats_of(bed).bytes_waiting, 0);
	assert_int_equal(stats_of(bed).bytes_used, 0);
}

/* Calls that name a capturing stream. */
STANDIN_ADD(test_named, studio_open, studio_close)
{
	struct studio *studio = *state;
	struct tmesh_cuda *cuda = studio->bed.cuda;
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *memory, *again;
	char text[TMESH_REF_SIZE];
	uint64_t at;

	/* Memory released on the stream before the capture must not be used again in the graph. */
	assert_ok(tmesh_cuda_alloc_on(cuda, 0, 5000, 0, studio->free, &memory, err));
	at = tmesh_cuda_pointer(memory);
	tmesh_cuda_memory_unref_on(memory, studio->free);
	assert_int_equal(studio->begin(studio->free, 0), 0);
	assert_ok(tmesh_cuda_alloc_on(cuda, 0, 5000, 0, studio->free, &memory, err));
	assert_int_not_equal(tmesh_cuda_pointer(memory), at);
	assert_refused(tmesh_cuda_share(memory, &layout, studio->free, text, sizeof(text), err),
		       -EBUSY, "share: the stream captures a graph");
	assert_refused(tmesh_cuda_keep(memory, "x", &layout, studio->free, NULL, err), -EBUSY,
		       "keep: the stream captures a graph");
	assert_refused(tmesh_cuda_read(memory, 0, text, 1, err), -EBUSY, "end the capture first");
	assert_refused(tmesh_cuda_write(memory, 0, text, 1, err), -EBUSY, "end the capture first");
	/* The library sees the capture from now on, without an announcement. */
	tmesh_cuda_memory_unref_on(memory, studio->free);
	assert_ok(tmesh_cuda_alloc(cuda, 0, 5000, TMESH_CUDA_ALONE, &again, err));
	tmesh_cuda_memory_unref(again);
	usleep(50000);
	end(studio, studio->free);
	eventually(stats_of(&studio->bed).bytes_waiting == 0);
	/* The default stream waits for blocking streams. */
	assert_ok(tmesh_cuda_alloc(cuda, 0, 5000, 0, &memory, err));
	assert_int_equal(studio->begin(studio->blocking, 0), 0);
	assert_refused(tmesh_cuda_zero(memory, NULL, err), -EBUSY, "zero: the stream captures");
	assert_refused(tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err), -EBUSY,
		       "captures");
	end(studio, studio->blocking);
	tmesh_cuda_memory_unref(memory);
}

/* Give memory back, for which the library waits for the device. */
static void wait_for_device(struct studio *studio)
{
	struct tmesh_cuda_memory *memory;

	assert_ok(tmesh_cuda_alloc(studio->bed.cuda, 0, 5000, TMESH_CUDA_ALONE, &memory, err));
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(stats_of(&studio->bed).bytes_waiting, 0);
}

/* A stream that captured is destroyed once a call has named it after the capture. The driver must
 * not be asked about it any more. */
STANDIN_ADD(test_named_and_destroyed, studio_open, studio_close)
{
	stream_create_fn *create = (stream_create_fn *)standin_symbol("cuStreamCreate");
	stream_fn *destroy = (stream_fn *)standin_symbol("cuStreamDestroy_v2");
	struct tmesh_cuda_memory *memory;
	struct studio *studio = *state;
	struct CUstream_st *stream;

	create(&stream, CU_NON_BLOCKING);
	assert_int_equal(studio->begin(stream, 0), 0);
	assert_ok(tmesh_cuda_alloc_on(studio->bed.cuda, 0, 5000, 0, stream, &memory, err));
	end(studio, stream);
	tmesh_cuda_memory_unref_on(memory, stream);
	destroy(stream);
	wait_for_device(studio);
	/* An announcement of a capture that is over does so for a stream that none names again. */
	create(&stream, CU_NON_BLOCKING);
	assert_int_equal(studio->begin(stream, 0), 0);
	assert_ok(tmesh_cuda_capture_begin(studio->bed.cuda, 0, err));
	assert_ok(tmesh_cuda_alloc_on(studio->bed.cuda, 0, 5000, 0, stream, &memory, err));
	end(studio, stream);
	assert_ok(tmesh_cuda_capture_end(studio->bed.cuda, 0, err));
	destroy(stream);
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(stats_of(&studio->bed).bytes_used, 0);
}

/* A reset of the device destroys the stream. */
STANDIN_ADD(test_named_and_reset, NULL, NULL)
{
	begin_fn *begin = (begin_fn *)standin_symbol("cuStreamBeginCapture_v2");
	end_fn *end_capture = (end_fn *)standin_symbol("cuStreamEndCapture");
	struct tmesh_cuda_memory *memory;
	struct CUstream_st *stream;
	struct bed bed = {0};
	void *graph;

	bed_open(&bed, 8 * MIB);
	push(0);
	((stream_create_fn *)standin_symbol("cuStreamCreate"))(&stream, CU_NON_BLOCKING);
	assert_int_equal(begin(stream, 0), 0);
	assert_ok(tmesh_cuda_alloc_on(bed.cuda, 0, 5000, 0, stream, &memory, err));
	assert_int_equal(end_capture(stream, &graph), 0);
	standin_reset(0);
	push(0); /* retained again */
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(stats_of(&bed).bytes_used, 0);
	pop(0);
	pop(0);
	bed_close(&bed);
}

static void slow(void *data)
{
	usleep(30000);
	*(atomic_bool *)data = true;
}

/* A stream of another device has no event of this one's. */
STANDIN_ADD(test_other_device, studio_open, studio_close)
{
	struct studio *studio = *state;
	struct tmesh_cuda *cuda = studio->bed.cuda;
	launch_fn *launch = (launch_fn *)standin_symbol("cuLaunchHostFunc");
	struct tmesh_layout layout = bytes_layout(5000);
	uint64_t waits = stats_of(&studio->bed).host_waits;
	struct tmesh_cuda_memory *memory;
	atomic_bool done = false;
	char text[TMESH_REF_SIZE];

	assert_ok(tmesh_cuda_alloc_on(cuda, 0, 5000, 0, studio->other, &memory, err));
	push(1);
	launch(studio->other, slow, &done);
	pop(1);
	assert_ok(tmesh_cuda_zero(memory, studio->other, err));
	assert_true(done);
	done = false;
	push(1);
	launch(studio->other, slow, &done);
	pop(1);
	assert_ok(tmesh_cuda_share(memory, &layout, studio->other, text, sizeof(text), err));
	assert_true(done);
	assert_int_equal(stats_of(&studio->bed).host_waits, waits + 2);
	assert_ok(tmesh_cuda_wait(memory, studio->other, err));
	tmesh_cuda_memory_unref(memory);
	assert_ok(tmesh_cuda_alloc(cuda, 0, 5000, 0, &memory, err));
	done = false;
	push(1);
	launch(studio->other, slow, &done);
	pop(1);
	tmesh_cuda_memory_unref_on(memory, studio->other);
	assert_true(done);
}

UNIT_MAIN("cuda capture", NULL, NULL)
