// SPDX-License-Identifier: MIT
/*
 * Compiled with the headers of one version, run with a library of a later one whose structures have
 * grown (grow.py). What it gives to the library, and what it has filled, ends where no memory is
 * any more: whoever reads or writes a byte too much dies of it.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>
#include <tmesh/cuda.h>
#include <tmesh/tmesh.h>

static const char *tmeshctl;

#define assert_ok(call)                                                        \
	do {                                                                   \
		struct tmesh_error err_ = {0}, *err = &err_;                   \
                                                                               \
		if (call)                                                      \
			fail_msg("%s: %d %s", #call, err->code, err->message); \
	} while (0)

/* @bytes of memory with nothing behind them, all 0xff, never freed. */
static void *at_edge(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) & ~(page - 1);
	uint8_t *pages = mmap(NULL, whole + page, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(pages != MAP_FAILED);
	assert_int_equal(mprotect(pages + whole, page, PROT_NONE), 0);
	memset(pages, 0xff, whole);
	return pages + whole - bytes;
}

/* A structure of the caller's, with its size. */
static void *sized(size_t bytes)
{
	void *made = at_edge(bytes);

	memcpy(made, &bytes, sizeof(bytes));
	return made;
}

static void *options(size_t bytes)
{
	void *made = memset(at_edge(bytes), 0, bytes);

	memcpy(made, &bytes, sizeof(bytes));
	return made;
}

#define SIZED(type) ((struct type *)sized(sizeof(struct type)))
#define OPTIONS(type) ((struct type *)options(sizeof(struct type)))

static struct tmesh_ctx *context(void)
{
	struct tmesh_ctx_opts *opts = OPTIONS(tmesh_ctx_opts);
	struct tmesh_ctx *ctx;

	opts->backend = TMESH_BACKEND_MEMFD;
	assert_ok(tmesh_ctx_open(opts, &ctx, err));
	return ctx;
}

static struct tmesh_region *region(struct tmesh_ctx *ctx, uint64_t bytes, const char *label)
{
	struct tmesh_region_opts *opts = OPTIONS(tmesh_region_opts);
	struct tmesh_region *made;

	opts->label = label;
	assert_ok(tmesh_region_create(ctx, bytes, opts, &made, err));
	return made;
}

static void test_filled(void **state)
{
	struct tmesh_reclaim_report *report = SIZED(tmesh_reclaim_report);
	struct tmesh_region_info *info = SIZED(tmesh_region_info);
	struct tmesh_stats *stats = SIZED(tmesh_stats);
	struct tmesh_region *made = region(*state, 5000, "filled");
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_region_info(made, info, err));
	assert_int_equal(info->size, sizeof(*info));
	assert_int_equal(info->bytes, 5000);
	assert_string_equal(info->label, "filled");
	assert_int_equal(info->cgroup_id, 0);
	assert_int_equal(tmesh_stats(*state, stats), 0);
	assert_int_equal(stats->regions_live, 1);
	assert_int_equal(stats->opens_without_wake, 0);
	assert_ok(tmesh_region_token(made, TMESH_READ, token, err));
	if (tmesh_region_reclaim(made, 0, report, NULL) == 0)
		assert_int_equal(report->size, sizeof(*report));
	tmesh_region_unref(made);
}

/* Each element is found where this program looks for it. */
static void test_lists(void **state)
{
	static const char *const labels[] = {"one", "two", "three", "four"};
	struct tmesh_region *regions[4];
	struct tmesh_region_info *infos;
	struct tmesh_holder_info *holders;
	size_t count, holds;

	for (int i = 0; i < 4; i++)
		regions[i] = region(*state, 1000 + (uint64_t)i, labels[i]);
	assert_ok(tmesh_list(*state, &infos, &count, err));
	assert_true(count >= 4);
	for (int i = 0; i < 4; i++) {
		size_t k = 0;

		while (k < count && infos[k].id != tmesh_region_id(regions[i]))
			k++;
		assert_true(k < count);
		assert_int_equal(infos[k].size, sizeof(infos[k]));
		assert_int_equal(infos[k].bytes, 1000 + i);
		assert_string_equal(infos[k].label, labels[i]);
		assert_int_equal(infos[k].handles, 1);
	}
	free(infos);
	assert_ok(tmesh_region_derive(regions[0], TMESH_READ, &regions[1], err));
	assert_ok(tmesh_holders(*state, tmesh_region_id(regions[0]), &holders, &holds, err));
	assert_int_equal(holds, 2);
	for (size_t i = 0; i < holds; i++) {
		assert_int_equal(holders[i].kind, TMESH_HOLDER_IS_HANDLE);
		assert_int_equal(holders[i].pid, getpid());
		assert_string_equal(holders[i].command, "program");
		assert_string_equal(holders[i].device, "");
	}
	free(holders);
}

static void test_caps(void **state)
{
	const struct tmesh_cap *caps, *again;
	size_t count;

	assert_int_equal(tmesh_caps(*state, &caps, &count), 0);
	assert_true(count >= 20);
	assert_string_equal(caps[0].name, "zero-copy");
	assert_string_equal(caps[19].name, "fence");
	for (size_t i = 0; i < count; i++) {
		assert_in_range(caps[i].level, TMESH_CAP_NO, TMESH_CAP_ENFORCED);
		assert_true(strlen(caps[i].name) > 1 && strlen(caps[i].reason) > 10);
	}
	assert_int_equal(tmesh_caps(*state, &again, &count), 0);
	assert_ptr_equal(again, caps);
}

static void test_kept(void **state)
{
	static const char *const names[] = {"first", "second", "third"};
	struct tmesh_keep_opts *opts = OPTIONS(tmesh_keep_opts);
	struct tmesh_keeper_info *keeper = SIZED(tmesh_keeper_info);
	struct tmesh_kept_info *infos;
	size_t count;

	for (int i = 0; i < 3; i++) {
		struct tmesh_region *made = region(*state, 4096, names[i]);

		assert_ok(tmesh_region_seal(made, err));
		assert_ok(tmesh_keep(*state, names[i], &made, 1, opts, err));
		tmesh_region_unref(made);
	}
	assert_ok(tmesh_kept_list(*state, &infos, &count, err));
	assert_int_equal(count, 3);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(infos[i].size, sizeof(infos[i]));
		assert_string_equal(infos[i].name, names[i]);
		assert_int_equal(infos[i].uid, geteuid());
	}
	free(infos);
	assert_ok(tmesh_keeper_info(*state, keeper, err));
	assert_int_equal(keeper->names, 3);
	/* With the last name the keeper ends. */
	for (int i = 0; i < 3; i++)
		assert_ok(tmesh_kept_drop(*state, names[i], err));
}

static void test_channel(void **state)
{
	struct tmesh_channel_opts *opts = OPTIONS(tmesh_channel_opts);
	struct tmesh_message message = {.bytes = 5, .data = "hello"}, *got = at_edge(sizeof(*got));
	struct tmesh_channel *sends, *receives;
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_channel_create(*state, TMESH_CHANNEL_RECV, opts, &receives, err));
	assert_ok(tmesh_channel_token(receives, token, err));
	assert_ok(tmesh_channel_open(*state, token, TMESH_CHANNEL_SEND, NULL, &sends, err));
	assert_ok(tmesh_channel_send(sends, &message, 10000000000, err));
	assert_ok(tmesh_channel_recv(receives, got, 10000000000, err));
	assert_memory_equal(got->data, "hello", 5);
	tmesh_channel_unref(sends);
	tmesh_channel_unref(receives);
}

static void test_cuda(void **state)
{
	struct tmesh_cuda_opts *opts = OPTIONS(tmesh_cuda_opts);
	struct tmesh_cuda_cap *caps = at_edge(TMESH_CUDA_CAPS * sizeof(*caps));
	struct tmesh_cuda_device_info *device = SIZED(tmesh_cuda_device_info);
	struct tmesh_cuda_info *info = SIZED(tmesh_cuda_info);
	struct tmesh_cuda_stats *stats = SIZED(tmesh_cuda_stats);
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda *cuda;

	opts->library = getenv("TMESH_TEST_LIBCUDA");
	assert_ok(tmesh_cuda_open(*state, opts, &cuda, err));
	assert_ok(tmesh_cuda_device_info(cuda, 0, device, err));
	assert_true(device->bytes > 0 && strlen(device->name) > 0);
	assert_ok(tmesh_cuda_caps(cuda, 0, caps, err));
	assert_string_equal(caps[0].name, "host-register");
	assert_string_equal(caps[TMESH_CUDA_CAPS - 1].name, "ipc-memory");
	for (int i = 0; i < TMESH_CUDA_CAPS; i++)
		assert_true(strlen(caps[i].reason) > 3);
	assert_ok(tmesh_cuda_alloc(cuda, 0, 1000, 0, &memory, err));
	assert_ok(tmesh_cuda_info(memory, info, err));
	assert_int_equal(info->region, 0);
	assert_int_equal(tmesh_cuda_stats(cuda, 0, stats), 0);
	assert_true(stats->allocs > 0 && stats->taken == 0);
	tmesh_cuda_memory_unref(memory);
	tmesh_cuda_unref(cuda);
}

/* Sizes that no version has, as of memory that nobody has set. */
static void test_wrong_sizes(void **state)
{
	static const size_t wrong[] = {0, 4, 1 << 20, SIZE_MAX};
	struct tmesh_holder_info *holders = (void *)state;
	struct tmesh_region_info *infos = (void *)state;
	const struct tmesh_cap *caps = (void *)state;
	struct tmesh_stats stats;
	struct tmesh_region *made = region(*state, 10, "made");
	size_t count = 77;

	for (int i = 0; i < 4; i++) {
		stats.size = wrong[i];
		assert_int_equal(tmesh_stats(*state, &stats), -EINVAL);
		assert_int_equal(tmesh_list_sized(*state, wrong[i], &infos, &count, NULL), -EINVAL);
		assert_int_equal(tmesh_holders_sized(*state, tmesh_region_id(made), wrong[i],
						     &holders, &count, NULL),
				 -EINVAL);
		assert_int_equal(tmesh_caps_sized(*state, wrong[i], &caps, &count), -EINVAL);
		assert_int_equal(count, 77);
	}
	assert_ptr_equal(infos, state);
	assert_ptr_equal(holders, state);
	assert_ptr_equal(caps, state);
	tmesh_region_unref(made);
}

/* The loader finds the library by LD_LIBRARY_PATH for it too. */
static void test_tmeshctl(void **state)
{
	struct tmesh_region *made = region(*state, 12345, "seen-by-tmeshctl");
	char command[4096], text[65536];
	FILE *out;
	size_t got;

	snprintf(command, sizeof(command), "%s ls && %s doctor", tmeshctl, tmeshctl);
	out = popen(command, "re");
	assert_non_null(out);
	got = fread(text, 1, sizeof(text) - 1, out);
	text[got] = '\0';
	assert_int_equal(pclose(out), 0);
	if (!strstr(text, "seen-by-tmeshctl") || !strstr(text, "open-without-wake"))
		fail_msg("tmeshctl says: %s", text);
	tmesh_region_unref(made);
}

static int setup(void **state)
{
	*state = context();
	return 0;
}

static int teardown(void **state)
{
	tmesh_ctx_unref(*state);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_filled, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lists, setup, teardown),
		cmocka_unit_test_setup_teardown(test_caps, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(test_channel, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cuda, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_sizes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tmeshctl, setup, teardown),
	};

	if (argc != 2)
		return 2;
	tmeshctl = argv[1];
	return cmocka_run_group_tests_name("grown", tests, NULL, NULL);
}
