/* SPDX-License-Identifier: MIT */
/* Helpers of the tests on the stand-in. Every test's name says which driver it ran on. */
#ifndef TMESH_CUDA_UNIT_H
#define TMESH_CUDA_UNIT_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <tmesh/cuda.h>

#include "../unit/unit_group.h"
#include "driver_api.h"
#include "standin.h"

#define RW (TMESH_READ | TMESH_WRITE)
#define MIB ((uint64_t)1 << 20)
#define SECOND 1000000000ull

/* Define a test, whose name says that it ran on the stand-in. */
#define STANDIN(test) STANDIN_ADD(test, set_up, tear_down)
#define STANDIN_ADD(test, begin, end) UNIT_ENTER("stand-in: " #test, test, begin, end)

#define assert_refused(call, code_, word)                                           \
	do {                                                                        \
		struct tmesh_error err_ = {0}, *err = &err_;                        \
		int rc_ = call;                                                     \
                                                                                    \
		if (rc_ != (code_) || err->code != (code_))                         \
			fail_msg("%s: %d \"%s\"", #call, rc_, err->message);        \
		if (!strstr(err->message, word))                                    \
			fail_msg("\"%s\" does not say \"%s\"", err->message, word); \
	} while (0)

#define assert_ok(call)                                                        \
	do {                                                                   \
		struct tmesh_error err_ = {0}, *err = &err_;                   \
                                                                               \
		if (call)                                                      \
			fail_msg("%s: %d %s", #call, err->code, err->message); \
	} while (0)

/* Wait at most a minute for another thread or process. */
#define eventually(condition)                                                    \
	do {                                                                     \
		int tries_ = 60000;                                              \
                                                                                 \
		while (!(condition) && tries_--)                                 \
			usleep(1000);                                            \
		if (!(condition))                                                \
			fail_msg("in a minute it never was so: %s", #condition); \
	} while (0)

/* The stand-in's own calls, and the driver's that only tests need. */
static standin_fail_fn *standin_fail;
static standin_during_fn *standin_during;
static standin_set_up_fn *standin_set_up;
static standin_calls_fn *standin_calls;
static standin_live_fn *standin_live;
static standin_access_fn *standin_access;
static standin_reset_fn *standin_reset;
static standin_copied_on_write_fn *standin_copied_on_write;

struct bed {
	struct tmesh_ctx *ctx;
	struct tmesh_cuda *cuda;
	unsigned int warnings;
	unsigned int fds;
};

__attribute__((unused)) static unsigned int open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

__attribute__((unused)) static void count_warnings(void *data, enum tmesh_log_level level,
						   const char *message)
{
	if (level <= TMESH_LOG_WARN)
		((struct bed *)data)->warnings++;
}

static void *standin_symbol(const char *name)
{
	void *library = dlopen(getenv("TMESH_TEST_LIBCUDA"), RTLD_NOW);
	void *symbol = library ? dlsym(library, name) : NULL;

	if (!symbol) {
		fprintf(stderr, "no stand-in: %s\n", dlerror());
		exit(1);
	}
	return symbol;
}

__attribute__((unused)) static void bed_open(struct bed *bed, uint64_t block_bytes)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts)};
	struct tmesh_cuda_opts copts = {
		.size = sizeof(copts),
		.library = getenv("TMESH_TEST_LIBCUDA"),
		.nvml = getenv("TMESH_TEST_LIBCUDA"),
		.block_bytes = block_bytes,
		.log = count_warnings,
		.log_data = bed,
	};

	standin_fail = standin_symbol("standin_fail");
	standin_during = standin_symbol("standin_during");
	standin_set_up = standin_symbol("standin_set_up");
	standin_calls = standin_symbol("standin_calls");
	standin_live = standin_symbol("standin_live");
	standin_access = standin_symbol("standin_access");
	standin_reset = standin_symbol("standin_reset");
	standin_copied_on_write = standin_symbol("standin_copied_on_write");
	bed->warnings = 0;
	assert_ok(tmesh_ctx_open(&opts, &bed->ctx, err));
	assert_ok(tmesh_cuda_open(bed->ctx, &copts, &bed->cuda, err));
}

/* Close the bed, and check that nothing of the driver's is left. The watcher may be the last to
 * release a reclaimed region. */
__attribute__((unused)) static void bed_close(struct bed *bed)
{
	tmesh_cuda_unref(bed->cuda);
	tmesh_ctx_unref(bed->ctx);
	eventually(standin_live() == 0);
}

__attribute__((unused)) static int set_up(void **state)
{
	struct bed *bed = calloc(1, sizeof(*bed));

	bed_open(bed, 8 * MIB);
	*state = bed;
	return 0;
}

__attribute__((unused)) static int tear_down(void **state)
{
	bed_close(*state);
	standin_set_up(NULL);
	free(*state);
	return 0;
}

__attribute__((unused)) static struct tmesh_cuda_stats stats_of(struct bed *bed)
{
	struct tmesh_cuda_stats stats = {.size = sizeof(stats)};

	assert_int_equal(tmesh_cuda_stats(bed->cuda, -1, &stats), 0);
	return stats;
}

__attribute__((unused)) static struct tmesh_cuda_info info_of(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda_info info = {.size = sizeof(info)};

	assert_ok(tmesh_cuda_info(memory, &info, err));
	return info;
}

__attribute__((unused)) static struct tmesh_layout bytes_layout(int64_t bytes)
{
	struct tmesh_layout layout;

	assert_int_equal(tmesh_layout_contiguous(&layout, TMESH_UINT8, 1, &bytes, NULL), 0);
	return layout;
}

/*
 * A second process, started before this one has anything to inherit. It opens the refs that it
 * receives, with its own driver, and carries out these commands:
 *
 *   <ref>      open it, answer with the first byte that a kernel reads, or with 'E'
 *   "w"        a kernel writes 'W' as the first byte: 'W', or 'E'
 *   "r"        the first byte now; 'T' when it was reclaimed
 *   "R"        the same by a kernel of the device that has it
 *   "a"        allocate memory of its own, whose first byte is 'a': the ref
 *   "k"        the same behind a kernel that never ends
 *   "h"        host memory of its own, registered, whose first byte is 'h': the ref
 *   "i"        memory of its own that the library did not allocate: the ref
 *   "s"        share it on: the ref
 *   "u"        release it
 *   "x"        end
 */
struct helper {
	pid_t pid;
	int socket;
};

struct helper_state {
	struct bed bed;
	unsigned long long foreign;
	struct tmesh_region *region; /* that stands for it */
	struct tmesh_cuda_memory *memory;
	struct tmesh_layout layout;
	uint32_t rights;
	int device;
};

/* Memory as cudaMalloc() gives it, on GPU 0. */
__attribute__((unused)) static unsigned long long standin_alloc(size_t bytes)
{
	unsigned long long pointer;
	void *context;

	((int (*)(void **, int))standin_symbol("cuDevicePrimaryCtxRetain"))(&context, 0);
	((int (*)(void *))standin_symbol("cuCtxPushCurrent_v2"))(context);
	assert_int_equal(((int (*)(unsigned long long *, size_t))standin_symbol("cuMemAlloc_v2"))(
				 &pointer, bytes),
			 0);
	((int (*)(void **))standin_symbol("cuCtxPopCurrent_v2"))(&context);
	return pointer;
}

__attribute__((unused)) static void standin_free(unsigned long long pointer)
{
	void *context;

	((int (*)(void **, int))standin_symbol("cuDevicePrimaryCtxRetain"))(&context, 0);
	((int (*)(void *))standin_symbol("cuCtxPushCurrent_v2"))(context);
	assert_int_equal(((int (*)(unsigned long long))standin_symbol("cuMemFree_v2"))(pointer), 0);
	((int (*)(void **))standin_symbol("cuCtxPopCurrent_v2"))(&context);
	for (int i = 0; i < 2; i++)
		((int (*)(int))standin_symbol("cuDevicePrimaryCtxRelease_v2"))(0);
}

__attribute__((unused)) static char helper_look(struct helper_state *state)
{
	int device = state->device < 0 ? info_of(state->memory).resident : state->device;
	char byte = 'E';

	if (tmesh_cuda_touch(state->memory))
		return 'T';
	standin_access(device, tmesh_cuda_pointer(state->memory) + state->layout.offset, &byte, 1,
		       false);
	return byte;
}

__attribute__((unused)) static void endless_kernel(void *data)
{
	for (;;)
		pause();
}

/* A stream of GPU 0, whose context is current from now on, with a kernel that never ends. */
__attribute__((unused)) static struct CUstream_st *endless_stream(void)
{
	struct CUstream_st *stream;
	void *context;

	((int (*)(void **, int))standin_symbol("cuDevicePrimaryCtxRetain"))(&context, 0);
	((int (*)(void *))standin_symbol("cuCtxPushCurrent_v2"))(context);
	((int (*)(struct CUstream_st **, unsigned int))standin_symbol("cuStreamCreate"))(&stream,
											 1);
	((int (*)(struct CUstream_st *, void (*)(void *), void *))standin_symbol(
		"cuLaunchHostFunc"))(stream, endless_kernel, NULL);
	return stream;
}

__attribute__((unused)) static size_t helper_do(struct helper_state *state, char *message,
						size_t bytes)
{
	struct tmesh_cuda_import_opts opts = {
		.size = sizeof(opts), .rights = state->rights, .device = state->device};
	struct CUstream_st *stream = NULL;
	struct tmesh_error err = {0};
	char byte = 'W';

	switch (*message) {
	case '{':
		if (tmesh_cuda_open_ref(state->bed.cuda, message, bytes, &opts, NULL,
					&state->memory, &state->layout, &err)) {
			message[0] = 'E';
			memcpy(message + 1, &err, sizeof(err));
			return 1 + sizeof(err);
		}
		message[0] = helper_look(state);
		return 1;
	case 'w':
		if (!standin_access(info_of(state->memory).device,
				    tmesh_cuda_pointer(state->memory) + state->layout.offset, &byte,
				    1, true))
			byte = 'E';
		message[0] = byte;
		return 1;
	case 'R':
		state->device = -1;
		message[0] = helper_look(state);
		return 1;
	case 'r':
		message[0] = helper_look(state);
		return 1;
	case 'i':
		state->layout = bytes_layout(5000);
		if (!state->foreign)
			state->foreign = standin_alloc(5000);
		tmesh_region_unref(state->region);
		state->region = NULL;
		if (tmesh_cuda_share_ipc(state->bed.cuda, state->foreign, &state->layout, NULL,
					 message, 1024, &state->region, NULL))
			strcpy(message, "E");
		return strlen(message);
	case 'h':
		state->layout = bytes_layout(5000);
		byte = 'h';
		if (tmesh_region_create(state->bed.ctx, 5000, NULL, &state->region, &err) ||
		    tmesh_region_write(state->region, 0, &byte, 1, &err) ||
		    tmesh_cuda_register(state->bed.cuda, state->region, 0, RW, 0, &state->memory,
					&err) ||
		    tmesh_cuda_share(state->memory, &state->layout, NULL, message, 1024, &err))
			strcpy(message, "E");
		return strlen(message);
	case 'k':
		stream = endless_stream();
		/* fall through */
	case 'a':
		byte = 'a';
		state->layout = bytes_layout(5000);
		if (tmesh_cuda_alloc(state->bed.cuda, 0, 5000, 0, &state->memory, &err))
			return 1;
		standin_access(0, tmesh_cuda_pointer(state->memory), &byte, 1, true);
		/* fall through */
	case 's':
		state->layout.device_type = TMESH_DEVICE_CPU;
		if (tmesh_cuda_share(state->memory, &state->layout, stream, message, 1024, NULL))
			strcpy(message, "E");
		return strlen(message);
	default:
		tmesh_cuda_memory_unref(state->memory);
		state->memory = NULL;
		return 1;
	}
}

__attribute__((unused)) static struct helper helper_start(uint32_t rights, int device)
{
	struct helper_state state = {.rights = rights, .device = device};
	struct helper helper;
	char message[2048];
	int ends[2];
	ssize_t got;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	helper.pid = fork();
	helper.socket = ends[0];
	if (helper.pid) {
		close(ends[1]);
		return helper;
	}
	close(ends[0]);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	((standin_start_fn *)standin_symbol("standin_start"))();
	bed_open(&state.bed, 0);
	while ((got = recv(ends[1], message, sizeof(message), 0)) > 0 && *message != 'x')
		send(ends[1], message, helper_do(&state, message, (size_t)got), 0);
	tmesh_cuda_memory_unref(state.memory);
	tmesh_region_unref(state.region);
	if (state.foreign)
		standin_free(state.foreign);
	tmesh_cuda_unref(state.bed.cuda);
	tmesh_ctx_unref(state.bed.ctx);
	_exit(standin_live() ? 9 : 0);
}

/* Send a command, and return the first byte of the answer; the rest stays in @answer. */
__attribute__((unused)) static char helper_ask(struct helper *helper, const char *message,
					       char answer[2048])
{
	ssize_t got;

	assert_true(send(helper->socket, message, strlen(message), 0) > 0);
	got = recv(helper->socket, answer, 2047, 0);
	assert_true(got > 0);
	answer[got] = '\0';
	return answer[0];
}

__attribute__((unused)) static char helper_say(struct helper *helper, const char *message)
{
	char answer[2048];

	return helper_ask(helper, message, answer);
}

__attribute__((unused)) static void helper_end(struct helper *helper)
{
	int status;

	send(helper->socket, "x", 1, 0);
	waitpid(helper->pid, &status, 0);
	close(helper->socket);
	assert_int_equal(status, 0);
}

__attribute__((unused)) static void helper_kill(struct helper *helper)
{
	kill(helper->pid, SIGKILL);
	waitpid(helper->pid, NULL, 0);
	close(helper->socket);
}

#endif /* TMESH_CUDA_UNIT_H */
