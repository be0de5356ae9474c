// SPDX-License-Identifier: MIT
/*
 * Compiled with the headers of one version, run with libraries of a later one whose structures have
 * grown (grow.py): libtmesh, libtmesh-cuda and libtmesh-xla. edge.h checks them.
 */
#include "edge.h"

#include <tmesh/cuda.h>
#include <tmesh/xla.h>

static const char *tmeshctl;

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

/* Sizes that no version has, as an uninitialized structure may have. */
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

static void test_xla(void **state)
{
	struct tmesh_channel_opts *opts = OPTIONS(tmesh_channel_opts);
	struct tmesh_stats *stats = SIZED(tmesh_stats);
	struct tmesh_channel *receives;
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_channel_create(*state, TMESH_CHANNEL_RECV, opts, &receives, err));
	assert_ok(tmesh_channel_token(receives, token, err));
	assert_ok(tmesh_xla_bind("grown", token, TMESH_CHANNEL_SEND, err));
	assert_ok(tmesh_xla_flush("grown", 0, err));
	assert_ok(tmesh_xla_stats(stats, err));
	assert_int_equal(stats->copies, 0);
	/* The channel's, at most. */
	assert_in_range(stats->opens_without_wake, 0, 1);
	assert_ok(tmesh_xla_unbind("grown", err));
	tmesh_channel_unref(receives);
}

static void test_tmeshctl(void **state)
{
	struct tmesh_region *made = region(*state, 12345, "seen-by-tmeshctl");
	const char *text = output_of("%s ls && %s doctor", tmeshctl, tmeshctl);

	if (!strstr(text, "seen-by-tmeshctl") || !strstr(text, "open-without-wake"))
		fail_msg("tmeshctl says: %s", text);
	tmesh_region_unref(made);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_filled), TEST(test_lists),	   TEST(test_caps),
		TEST(test_kept),   TEST(test_channel),	   TEST(test_cuda),
		TEST(test_xla),	   TEST(test_wrong_sizes), TEST(test_tmeshctl),
	};

	if (argc != 2)
		return 2;
	tmeshctl = argv[1];
	return cmocka_run_group_tests_name("grown", tests, NULL, NULL);
}
