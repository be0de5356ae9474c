// SPDX-License-Identifier: MIT
/* Arenas: many tensors in few regions, each in a place of its own. */
#include "unit.h"

#define COUNT 1000

static void test_places(void **state)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "small ones"};
	struct tmesh_stats before = {.size = sizeof(before)}, after = before;
	struct tmesh_tensor *tensors[COUNT];
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_arena *arena;
	int32_t *data;

	assert_ok(tmesh_stats(*state, &before));
	assert_ok(tmesh_arena_create(*state, 65536, &opts, &arena, err));
	for (int i = 0; i < COUNT; i++) {
		int64_t shape[] = {1 + i % 100};

		assert_ok(tmesh_arena_tensor(arena, TMESH_INT32, 1, shape, &tensors[i], err));
		assert_int_equal(tmesh_tensor_layout(tensors[i])->offset % TMESH_ALIGN, 0);
		assert_ok(tmesh_tensor_data(tensors[i], TMESH_READ | TMESH_WRITE, (void **)&data,
					    err));
		for (int k = 0; k < shape[0]; k++) {
			assert_int_equal(data[k], 0);
			data[k] = i;
		}
	}
	assert_ok(tmesh_region_info(tmesh_tensor_region(tensors[0]), &info, err));
	assert_string_equal(info.label, "small ones");
	assert_ok(tmesh_stats(*state, &after));
	/* 256 or 512 bytes each */
	assert_in_range(after.regions_created - before.regions_created, 5, 7);
	tmesh_arena_unref(tmesh_arena_ref(arena));
	tmesh_arena_unref(arena);
	for (int i = 0; i < COUNT; i++) {
		assert_ok(tmesh_tensor_data(tensors[i], TMESH_READ, (void **)&data, err));
		for (int k = 0; k < 1 + i % 100; k++)
			assert_int_equal(data[k], i);
		tmesh_tensor_unref(tensors[i]);
	}
	assert_ok(tmesh_stats(*state, &after));
	assert_int_equal(after.regions_live, before.regions_live);
}

/* The last place ends where the region does; large ones have their own; none needs no room. */
static void test_edges(void **state)
{
	struct tmesh_tensor *tensors[8];
	struct tmesh_arena *arena;
	int64_t shape[] = {300}, large[] = {301}, none[] = {0};

	assert_ok(tmesh_arena_create(*state, 1200, NULL, &arena, err));
	for (int i = 0; i < 4; i++)
		assert_ok(tmesh_arena_tensor(arena, TMESH_UINT8, 1, shape, &tensors[i], err));
	assert_int_equal(tmesh_tensor_layout(tensors[1])->offset, 512);
	assert_ptr_equal(tmesh_tensor_region(tensors[0]), tmesh_tensor_region(tensors[1]));
	assert_ptr_not_equal(tmesh_tensor_region(tensors[1]), tmesh_tensor_region(tensors[2]));
	assert_ok(tmesh_arena_tensor(arena, TMESH_UINT8, 1, large, &tensors[4], err));
	assert_int_equal(tmesh_region_bytes(tmesh_tensor_region(tensors[4])), 301);
	assert_ok(tmesh_arena_tensor(arena, TMESH_UINT8, 1, none, &tensors[5], err));
	assert_ok(tmesh_arena_tensor(arena, TMESH_UINT8, 0, NULL, &tensors[6], err));
	assert_int_equal(tmesh_tensor_layout(tensors[5])->offset,
			 tmesh_tensor_layout(tensors[6])->offset);
	for (int i = 0; i < 7; i++)
		tmesh_tensor_unref(tensors[i]);
	tmesh_arena_unref(arena);
}

static void test_refused(void **state)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = 1u << 31};
	struct tmesh_tensor *tensor;
	struct tmesh_arena *arena;
	int64_t bad[] = {-1}, wide[] = {INT64_MAX};

	assert_refused(tmesh_arena_create(*state, 0, &opts, &arena, err), -EINVAL, "flags");
	assert_ok(tmesh_arena_create(*state, 0, NULL, &arena, err));
	assert_refused(tmesh_arena_tensor(arena, TMESH_UINT8, 1, bad, &tensor, err), -EINVAL, "");
	assert_refused(tmesh_arena_tensor(arena, TMESH_INT64, 1, wide, &tensor, err), -EOVERFLOW,
		       "");
	tmesh_arena_unref(arena);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_places, unit_ctx_setup, unit_ctx_teardown),
		cmocka_unit_test_setup_teardown(test_edges, unit_ctx_setup, unit_ctx_teardown),
		cmocka_unit_test_setup_teardown(test_refused, unit_ctx_setup, unit_ctx_teardown),
	};

	return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
