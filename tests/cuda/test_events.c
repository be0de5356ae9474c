// SPDX-License-Identifier: MIT
/* Order between streams of different processes: events, and what replaces them. */
#include "cuda_pair.h"

typedef int stream_create_fn(struct CUstream_st **out, unsigned int flags);
typedef int stream_destroy_fn(struct CUstream_st *stream);
typedef int launch_fn(struct CUstream_st *stream, void (*call)(void *data), void *data);
typedef int push_fn(void *context);
typedef int retain_fn(void **context, int device);

struct slow_kernel {
	uint64_t at;
	int go;
};

static void slow_kernel(void *data)
{
	struct slow_kernel *kernel = data;

	while (!__atomic_load_n(&kernel->go, __ATOMIC_ACQUIRE))
		usleep(1000);
	*(char *)kernel->at = 'P';
}

static void quick_kernel(void *data)
{
	char **bytes = data;

	__atomic_store_n(bytes[1], *bytes[0], __ATOMIC_RELEASE);
}

/* The consumer's stream waits for the producer's; no host does. */
STANDIN_ADD(test_streams, NULL, NULL)
{
	stream_create_fn *create = (stream_create_fn *)standin_symbol("cuStreamCreate");
	stream_destroy_fn *destroy = (stream_destroy_fn *)standin_symbol("cuStreamDestroy_v2");
	launch_fn *launch = (launch_fn *)standin_symbol("cuLaunchHostFunc");
	retain_fn *retain = (retain_fn *)standin_symbol("cuDevicePrimaryCtxRetain");
	push_fn *push = (push_fn *)standin_symbol("cuCtxPushCurrent_v2");
	struct CUstream_st *producer, *consumer;
	struct tmesh_cuda_memory *memory, *imported;
	struct slow_kernel kernel = {0};
	struct tmesh_layout layout = bytes_layout(5000);
	char text[TMESH_REF_SIZE], seen = 0, *bytes[2];
	struct pair pair;
	void *context;

	pair_open(&pair);
	assert_int_equal(retain(&context, 0), 0);
	assert_int_equal(push(context), 0);
	assert_int_equal(create(&producer, 0), 0);
	assert_int_equal(create(&consumer, 0), 0);
	memory = alloc(&pair.a, 0, 5000, 'a');
	kernel.at = tmesh_cuda_pointer(memory);
	launch(producer, slow_kernel, &kernel);
	assert_ok(tmesh_cuda_share(memory, &layout, producer, text, sizeof(text), err));
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, text, strlen(text), NULL, consumer, &imported,
				      &layout, err));
	bytes[0] = (char *)tmesh_cuda_pointer(imported);
	bytes[1] = &seen;
	launch(consumer, quick_kernel, bytes);
	usleep(30000);
	assert_int_equal(__atomic_load_n(&seen, __ATOMIC_ACQUIRE), 0);
	__atomic_store_n(&kernel.go, 1, __ATOMIC_RELEASE);
	eventually(__atomic_load_n(&seen, __ATOMIC_ACQUIRE));
	assert_int_equal(seen, 'P');
	assert_int_equal(stats_of(&pair.a).host_waits + stats_of(&pair.b).host_waits, 0);
	/* No memory is unmapped under a kernel. */
	seen = 0;
	launch(consumer, quick_kernel, bytes);
	tmesh_cuda_memory_unref(imported);
	assert_int_equal(seen, 'P');
	tmesh_cuda_memory_unref(memory);
	destroy(producer);
	destroy(consumer);
	((push_fn *)standin_symbol("cuCtxPopCurrent_v2"))(&context);
	((int (*)(int))standin_symbol("cuDevicePrimaryCtxRelease_v2"))(0);
	pair_close(&pair);
}

/* If no event can be had, the producer's host waits, and reports it. */
STANDIN_ADD(test_no_event, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1));
	struct tmesh_cuda_opts opts = {.size = sizeof(opts),
				       .library = getenv("TMESH_TEST_LIBCUDA"),
				       .flags = TMESH_CUDA_NO_EVENTS};
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda *cuda;
	char text[TMESH_REF_SIZE];

	/* They have run out. */
	standin_set_up("without=events");
	memory = alloc(bed, 0, 5000, 'a');
	assert_ok(tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err));
	standin_set_up(NULL);
	assert_int_equal(bed->warnings, 1);
	assert_int_equal(stats_of(bed).host_waits, 1);
	assert_int_equal(helper_say(&helpers[0], text), 'a');
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	tmesh_cuda_memory_unref(memory);
	/* The event's handle cannot be had. */
	memory = alloc(bed, 0, 5000, 'b');
	standin_fail("cuIpcGetEventHandle", 801, 0);
	assert_ok(tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err));
	assert_int_equal(stats_of(bed).host_waits, 2);
	assert_int_equal(helper_say(&helpers[0], text), 'b');
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	tmesh_cuda_memory_unref(memory);
	/* None is wanted. */
	opts.flags = 2;
	assert_refused(tmesh_cuda_open(bed->ctx, &opts, &cuda, err), -EINVAL, "0x2");
	opts.flags = TMESH_CUDA_NO_EVENTS;
	assert_ok(tmesh_cuda_open(bed->ctx, &opts, &cuda, err));
	assert_ok(tmesh_cuda_alloc(cuda, 0, 5000, 0, &memory, err));
	assert_ok(tmesh_cuda_zero(memory, NULL, err));
	assert_ok(tmesh_cuda_share(memory, &layout, NULL, text, sizeof(text), err));
	assert_int_equal(helper_say(&helpers[0], text), 0);
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	tmesh_cuda_memory_unref(memory);
	tmesh_cuda_unref(cuda);
	helper_end(&helpers[0]);
	bed_close(bed);
}

/* A caller that orders its work itself waits for nothing, on either side, nor when sending on. */
STANDIN_ADD(test_no_stream, NULL, NULL)
{
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *memory, *imported;
	unsigned long records, waits, synced;
	char text[TMESH_REF_SIZE];
	struct pair pair;

	pair_open(&pair);
	memory = alloc(&pair.a, 0, 5000, 'a');
	records = standin_calls("cuEventRecord");
	waits = standin_calls("cuStreamWaitEvent");
	synced = standin_calls("cuStreamSynchronize");
	assert_ok(tmesh_cuda_share(memory, &layout, TMESH_CUDA_NO_STREAM, text, sizeof(text), err));
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, text, strlen(text), NULL, TMESH_CUDA_NO_STREAM,
				      &imported, &layout, err));
	assert_int_equal(first_of(imported), 'a');
	layout = bytes_layout(5000);
	assert_ok(
		tmesh_cuda_share(imported, &layout, TMESH_CUDA_NO_STREAM, text, sizeof(text), err));
	assert_int_equal(standin_calls("cuEventRecord"), records);
	assert_int_equal(standin_calls("cuStreamWaitEvent"), waits);
	assert_int_equal(standin_calls("cuStreamSynchronize"), synced);
	assert_int_equal(stats_of(&pair.b).host_waits, 0);
	/* With an event the host waits, for it is another process's. */
	assert_ok(tmesh_cuda_share(imported, &layout, NULL, text, sizeof(text), err));
	assert_int_equal(stats_of(&pair.b).host_waits, 1);
	tmesh_cuda_memory_unref(imported);
	tmesh_cuda_memory_unref(memory);
	pair_close(&pair);
}

/* The producer destroys its event when no process holds the memory. By then a consumer has
 * destroyed its own, which is undefined later, and waits for nothing more. */
STANDIN_ADD(test_producer_destroys_its_event, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1));
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 5000, 'a');
	unsigned long destroyed;
	char text[TMESH_REF_SIZE];

	share(memory, text);
	assert_int_equal(helper_say(&helpers[0], text), 'a');
	assert_ok(tmesh_cuda_reclaim(memory, 5 * SECOND, err));
	assert_int_equal(helper_say(&helpers[0], "r"), 'T');
	destroyed = standin_calls("cuEventDestroy_v2");
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(standin_calls("cuEventDestroy_v2"), destroyed + 1);
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	helper_end(&helpers[0]);
	bed_close(bed);
}

STANDIN_ADD(test_wait_for_what_was_taken, NULL, NULL)
{
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *memory, *imported;
	char text[TMESH_REF_SIZE];
	struct pair pair;

	pair_open(&pair);
	memory = alloc(&pair.a, 0, 5000, 'a');
	share(memory, text);
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, text, strlen(text), NULL, NULL, &imported,
				      &layout, err));
	assert_ok(tmesh_cuda_reclaim(memory, 5 * SECOND, err));
	eventually(info_of(imported).taken);
	assert_refused(tmesh_cuda_wait(imported, NULL, err), -ESTALE, "was taken back");
	tmesh_cuda_memory_unref(imported);
	tmesh_cuda_memory_unref(memory);
	pair_close(&pair);
}

/* A process with another /dev/shm cannot open events. Its host waits for the producer's stream, and
 * no host of the producer does. */
static struct helper helper_elsewhere(const char *words)
{
	standin_set_up_fn *set = (standin_set_up_fn *)standin_symbol("standin_set_up");
	struct helper helper;

	set(words);
	helper = helper_start(RW, -1);
	set(NULL);
	return helper;
}

static struct CUstream_st *new_stream(void)
{
	struct CUstream_st *stream;
	void *context;

	((retain_fn *)standin_symbol("cuDevicePrimaryCtxRetain"))(&context, 0);
	((push_fn *)standin_symbol("cuCtxPushCurrent_v2"))(context);
	((stream_create_fn *)standin_symbol("cuStreamCreate"))(&stream, 1);
	return stream;
}

static void end_stream(struct CUstream_st *stream)
{
	void *context;

	((stream_destroy_fn *)standin_symbol("cuStreamDestroy_v2"))(stream);
	((push_fn *)standin_symbol("cuCtxPopCurrent_v2"))(&context);
	((int (*)(int))standin_symbol("cuDevicePrimaryCtxRelease_v2"))(0);
}

static void *let_go(void *data)
{
	usleep(50000);
	__atomic_store_n((int *)data, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Open the ref in the other process, whose producer's kernel ends meanwhile. */
static char open_during(struct helper *helper, const char *text, struct slow_kernel *kernel)
{
	pthread_t thread;
	char byte;

	pthread_create(&thread, NULL, let_go, &kernel->go);
	byte = helper_say(helper, text);
	pthread_join(thread, NULL);
	return byte;
}

STANDIN_ADD(test_other_shm, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_elsewhere("without=shm"));
	launch_fn *launch = (launch_fn *)standin_symbol("cuLaunchHostFunc");
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 5000, 'a');
	struct tmesh_layout layout = bytes_layout(5000);
	struct slow_kernel kernel = {.at = tmesh_cuda_pointer(memory)};
	struct CUstream_st *stream = new_stream();
	char text[TMESH_REF_SIZE];

	launch(stream, slow_kernel, &kernel);
	assert_ok(tmesh_cuda_share(memory, &layout, stream, text, sizeof(text), err));
	assert_int_equal(open_during(&helpers[0], text, &kernel), 'P');
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	/* The work is done. */
	assert_int_equal(helper_say(&helpers[0], text), 'P');
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	assert_int_equal(stats_of(bed).host_waits, 0);
	assert_int_equal(bed->warnings, 0);
	tmesh_cuda_memory_unref(memory);
	eventually(stats_of(bed).bytes_pending_free == 0);
	end_stream(stream);
	helper_end(&helpers[0]);
	bed_close(bed);
}

/* Memory is shared on a second stream before the first one is done. */
STANDIN_ADD(test_other_shm_two_streams, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_elsewhere("without=shm"));
	launch_fn *launch = (launch_fn *)standin_symbol("cuLaunchHostFunc");
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 5000, 'a');
	struct CUstream_st *streams[] = {new_stream(), new_stream()};
	struct slow_kernel kernel = {.at = tmesh_cuda_pointer(memory)};
	struct tmesh_layout layout = bytes_layout(5000);
	char text[TMESH_REF_SIZE];

	launch(streams[0], slow_kernel, &kernel);
	for (int i = 0; i < 2; i++)
		assert_ok(tmesh_cuda_share(memory, &layout, streams[i], text, sizeof(text), err));
	assert_int_equal(open_during(&helpers[0], text, &kernel), 'P');
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	assert_ok(tmesh_cuda_share(memory, &layout, streams[1], text, sizeof(text), err));
	assert_int_equal(helper_say(&helpers[0], text), 'P');
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(helper_say(&helpers[0], "u"), 'u');
	eventually(stats_of(bed).bytes_pending_free == 0);
	for (int i = 0; i < 2; i++)
		end_stream(streams[i]);
	helper_end(&helpers[0]);
	bed_close(bed);
}

/* Memory is shared on a second stream before the first one is done, and there are no numbers. A
 * consumer of either share waits for both streams. */
STANDIN_ADD(test_two_streams_without_values, NULL, NULL)
{
	launch_fn *launch = (launch_fn *)standin_symbol("cuLaunchHostFunc");
	struct CUstream_st *streams[] = {new_stream(), new_stream(), new_stream()};
	struct tmesh_layout layout = bytes_layout(5000);
	struct tmesh_cuda_memory *memory, *imported;
	char text[TMESH_REF_SIZE], seen = 0, *bytes[2];
	struct slow_kernel kernel = {0};
	struct pair pair;

	pair_open(&pair);
	standin_set_up("without=write-value");
	memory = alloc(&pair.a, 0, 5000, 'a');
	kernel.at = tmesh_cuda_pointer(memory);
	launch(streams[0], slow_kernel, &kernel);
	for (int i = 0; i < 2; i++)
		assert_ok(tmesh_cuda_share(memory, &layout, streams[i], text, sizeof(text), err));
	assert_ok(tmesh_cuda_open_ref(pair.b.cuda, text, strlen(text), NULL, streams[2], &imported,
				      &layout, err));
	bytes[0] = (char *)tmesh_cuda_pointer(imported);
	bytes[1] = &seen;
	launch(streams[2], quick_kernel, bytes);
	usleep(30000);
	__atomic_store_n(&kernel.go, 1, __ATOMIC_RELEASE);
	eventually(__atomic_load_n(&seen, __ATOMIC_ACQUIRE));
	assert_int_equal(seen, 'P');
	standin_set_up(NULL);
	tmesh_cuda_memory_unref(imported);
	tmesh_cuda_memory_unref(memory);
	for (int i = 2; i >= 0; i--)
		end_stream(streams[i]);
	pair_close(&pair);
}

struct killer {
	struct bed *bed;
	struct helper *helper;
	uint64_t waits; /* the number of the wait that is to be seen first */
};

static void *kill_during_wait(void *data)
{
	struct tmesh_cuda_stats stats = {.size = sizeof(stats)};
	struct killer *killer = data;

	while (!tmesh_cuda_stats(killer->bed->cuda, -1, &stats) && stats.host_waits < killer->waits)
		usleep(1000);
	helper_kill(killer->helper);
	return NULL;
}

/* Open memory of the other process, whose event cannot be opened. The wait is logged and
 * counted. */
static void waits(struct bed *bed, struct helper *helper)
{
	uint64_t before = stats_of(bed).host_waits;
	unsigned int warnings = bed->warnings;
	struct tmesh_cuda_memory *memory;
	struct tmesh_layout layout;
	char text[2048];

	assert_int_equal(helper_ask(helper, "a", text), '{');
	assert_ok(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), NULL, NULL, &memory, &layout,
				      err));
	assert_int_equal(first_of(memory), 'a');
	assert_int_equal(bed->warnings, warnings + 1);
	assert_int_equal(stats_of(bed).host_waits, before + 1);
	tmesh_cuda_memory_unref(memory);
	assert_int_equal(helper_say(helper, "u"), 'u');
}

/* The wait ends with the producer. */
STANDIN_ADD(test_other_shm_killed, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_start(RW, -1), helper_start(RW, -1));
	struct killer killer = {.bed = bed, .helper = &helpers[1], .waits = 3};
	struct tmesh_cuda_memory *memory;
	struct tmesh_layout layout;
	pthread_t thread;
	char text[2048];

	/* As by a driver that takes the event for one of its own process. */
	standin_fail("cuIpcOpenEventHandle", CU_INVALID_CONTEXT, 0);
	waits(bed, &helpers[0]);
	standin_set_up("without=shm");
	waits(bed, &helpers[0]);
	assert_int_equal(helper_ask(&helpers[1], "k", text), '{');
	pthread_create(&thread, NULL, kill_during_wait, &killer);
	assert_refused(tmesh_cuda_open_ref(bed->cuda, text, strlen(text), NULL, NULL, &memory,
					   &layout, err),
		       -EOWNERDEAD, "the producer has ended");
	pthread_join(thread, NULL);
	assert_int_equal(stats_of(bed).host_waits, 3);
	standin_set_up(NULL);
	helper_end(&helpers[0]);
	bed_close(bed);
}

static void refused(struct helper *helper, const char *text, const char *word)
{
	char answer[2048];
	struct tmesh_error told;

	assert_int_equal(helper_ask(helper, text, answer), 'E');
	memcpy(&told, answer + 1, sizeof(told));
	if (!strstr(told.message, "cuIpcOpenEventHandle: CUDA_ERROR_INVALID_VALUE") ||
	    !strstr(told.message, word) || !strstr(told.message, "TMESH_CUDA_EVENTS=0"))
		fail_msg("\"%s\" does not say \"%s\"", told.message, word);
}

/* Streams that write no numbers: the other process gets the driver's error. */
STANDIN_ADD(test_other_shm_no_values, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_elsewhere("without=shm"));
	struct tmesh_cuda_memory *memory[2];
	char text[TMESH_REF_SIZE];

	standin_set_up("without=write-value");
	memory[0] = alloc(bed, 0, 5000, 'a');
	share(memory[0], text);
	refused(&helpers[0], text, "no wait values");
	assert_int_equal(bed->warnings, 0);
	/* The region for the numbers cannot be registered: this is logged once. */
	standin_set_up("without=host-register");
	memory[1] = alloc(bed, 0, 5000, 'a');
	tmesh_cuda_memory_unref(memory[0]);
	memory[0] = alloc(bed, 0, 5000, 'a');
	for (int i = 0; i < 2; i++) {
		share(memory[i], text);
		refused(&helpers[0], text, "no wait values");
	}
	assert_int_equal(bed->warnings, 1);
	assert_int_equal(stats_of(bed).host_waits, 0);
	standin_set_up(NULL);
	for (int i = 0; i < 2; i++)
		tmesh_cuda_memory_unref(memory[i]);
	helper_end(&helpers[0]);
	bed_close(bed);
}

/* Another process wrote the description. */
STANDIN_ADD(test_other_shm_false_values, NULL, NULL)
{
	ALONE_SET_UP(bed, helper_elsewhere("without=shm"));
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_cuda_memory *memory = alloc(bed, 0, 5000, 'a');
	char text[TMESH_REF_SIZE], token[TMESH_TOKEN_SIZE], *at;
	struct tmesh_region *region, *small;

	share(memory, text);
	assert_ok(tmesh_cuda_region(memory, &region, err));
	assert_ok(tmesh_region_info(region, &info, err));
	at = strstr(info.description, "\"value\":0}");
	assert_non_null(at);
	strcpy(at, "\"value\":4096}}");
	assert_ok(tmesh_region_set_description(region, info.description, err));
	refused(&helpers[0], text, "no wait value 4096");
	/* A region that is too short, and one that is not there. */
	assert_ok(tmesh_region_create(bed->ctx, 1, NULL, &small, err));
	assert_ok(tmesh_region_token(small, TMESH_READ, token, err));
	strcpy(at, "\"value\":0}}");
	at = strstr(info.description, "\"values\":\"");
	memcpy(at + strlen("\"values\":\""), token, strlen(token));
	assert_ok(tmesh_region_set_description(region, info.description, err));
	refused(&helpers[0], text, "no wait value 0");
	tmesh_region_unref(small);
	refused(&helpers[0], text, "no such region");
	tmesh_region_unref(region);
	tmesh_cuda_memory_unref(memory);
	helper_end(&helpers[0]);
	bed_close(bed);
}

UNIT_MAIN("cuda events", NULL, NULL)
