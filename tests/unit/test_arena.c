// SPDX-License-Identifier: MIT
/* Arenas: many tensors in few regions, each in a place of its own. */
#include "unit.h"

#define COUNT 1000

static int make(struct tmesh_ctx *ctx, struct tmesh_arena *arena, enum tmesh_dtype dtype,
		int32_t ndim, const int64_t *shape, struct tmesh_tensor **out,
		struct tmesh_error *why)
{
	struct tmesh_region_opts in = {.size = sizeof(in), .arena = arena};

	return tmesh_tensor_create(ctx, dtype, ndim, shape, &in, out, why);
}

UNIT_CTX(test_places)
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

		assert_ok(make(*state, arena, TMESH_INT32, 1, shape, &tensors[i], err));
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
UNIT_CTX(test_edges)
{
	struct tmesh_tensor *tensors[9];
	struct tmesh_arena *arena;
	int64_t shape[] = {300}, large[] = {301}, none[] = {0}, last[] = {170};

	assert_ok(tmesh_arena_create(*state, 1200, NULL, &arena, err));
	for (int i = 0; i < 4; i++)
		assert_ok(make(*state, arena, TMESH_UINT8, 1, shape, &tensors[i], err));
	assert_int_equal(tmesh_tensor_layout(tensors[1])->offset, 512);
	assert_ptr_equal(tmesh_tensor_region(tensors[0]), tmesh_tensor_region(tensors[1]));
	assert_ptr_not_equal(tmesh_tensor_region(tensors[1]), tmesh_tensor_region(tensors[2]));
	/* Less than a whole step is left: there is room once, and then none. */
	for (int i = 7; i < 9; i++)
		assert_ok(make(*state, arena, TMESH_UINT8, 1, last, &tensors[i], err));
	assert_int_equal(tmesh_tensor_layout(tensors[7])->offset, 1024);
	assert_int_equal(tmesh_tensor_layout(tensors[8])->offset, 0);
	assert_ok(make(*state, arena, TMESH_UINT8, 1, large, &tensors[4], err));
	assert_int_equal(tmesh_region_bytes(tmesh_tensor_region(tensors[4])), 301);
	assert_ok(make(*state, arena, TMESH_UINT8, 1, none, &tensors[5], err));
	assert_ok(make(*state, arena, TMESH_UINT8, 0, NULL, &tensors[6], err));
	assert_int_equal(tmesh_tensor_layout(tensors[5])->offset,
			 tmesh_tensor_layout(tensors[6])->offset);
	for (int i = 0; i < 9; i++)
		tmesh_tensor_unref(tensors[i]);
	tmesh_arena_unref(arena);
}

/* A sealed region has no more room; nor has, for a child, its parent's. */
UNIT_CTX(test_goes_on)
{
	struct tmesh_tensor *first, *second;
	struct tmesh_arena *arena;
	int64_t shape[] = {8};
	pid_t child;

	assert_ok(tmesh_arena_create(*state, 0, NULL, &arena, err));
	assert_ok(make(*state, arena, TMESH_UINT8, 1, shape, &first, err));
	assert_ok(tmesh_region_seal(tmesh_tensor_region(first), err));
	assert_ok(make(*state, arena, TMESH_UINT8, 1, shape, &second, err));
	assert_ptr_not_equal(tmesh_tensor_region(first), tmesh_tensor_region(second));
	child = fork();
	if (!child) {
		struct tmesh_tensor *own;
		struct tmesh_error why;

		_exit(make(*state, arena, TMESH_UINT8, 1, shape, &own, &why) ||
		      tmesh_tensor_region(own) == tmesh_tensor_region(second) ||
		      tmesh_tensor_layout(own)->offset);
	}
	join_child(child);
	tmesh_tensor_unref(first);
	tmesh_tensor_unref(second);
	tmesh_arena_unref(arena);
}

#define THREADS 4

struct work {
	struct tmesh_ctx *ctx;
	struct tmesh_arena *arena;
	struct tmesh_tensor *tensors[COUNT];
};

static void *fill_places(void *data)
{
	struct work *work = data;
	struct tmesh_error why;
	int64_t shape[] = {64};

	for (int i = 0; i < COUNT; i++) {
		struct tmesh_region_opts in = {.size = sizeof(in), .arena = work->arena};
		struct work *bytes[8] = {work, work, work, work, work, work, work, work};

		if (tmesh_tensor_put(work->ctx, TMESH_UINT8, 1, shape, bytes, &in,
				     &work->tensors[i], &why))
			return NULL;
	}
	return work;
}

/* No place is given twice. */
UNIT_CTX(test_threads)
{
	static struct work work[THREADS];
	pthread_t threads[THREADS];
	struct tmesh_arena *arena;
	void *done, *data;

	assert_ok(tmesh_arena_create(*state, 4096, NULL, &arena, err));
	for (int i = 0; i < THREADS; i++) {
		work[i].ctx = *state;
		work[i].arena = arena;
		assert_int_equal(pthread_create(&threads[i], NULL, fill_places, &work[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(threads[i], &done), 0);
		assert_ptr_equal(done, &work[i]);
	}
	for (int i = 0; i < THREADS; i++) {
		for (int k = 0; k < COUNT; k++) {
			assert_ok(tmesh_tensor_data(work[i].tensors[k], TMESH_READ, &data, err));
			for (int word = 0; word < 8; word++)
				assert_ptr_equal(((void **)data)[word], &work[i]);
			tmesh_tensor_unref(work[i].tensors[k]);
		}
	}
	tmesh_arena_unref(arena);
}

UNIT_CTX(test_refused)
{
	static const struct tmesh_region_opts beside[] = {
		{.mode = 0600}, {.gid = 1}, {.node = 1}, {.hold_ms = 5}, {.label = "mine"},
	};
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = 1u << 31};
	struct tmesh_region_opts in = {.size = sizeof(in)}, both;
	struct tmesh_region *region;
	struct tmesh_ctx *other;
	struct tmesh_tensor *tensor;
	struct tmesh_arena *arena;
	int64_t bad[] = {-1}, wide[] = {INT64_MAX};

	assert_refused(tmesh_arena_create(*state, 0, &opts, &arena, err), -EINVAL, "flags");
	assert_ok(tmesh_arena_create(*state, 0, NULL, &arena, err));
	assert_refused(make(*state, arena, TMESH_UINT8, 1, bad, &tensor, err), -EINVAL, "");
	assert_refused(make(*state, arena, TMESH_INT64, 1, wide, &tensor, err), -EOVERFLOW, "");
	in.arena = arena;
	assert_refused(tmesh_region_create(*state, 1, &in, &region, err), -EINVAL, "arena");
	assert_refused(tmesh_arena_create(*state, 0, &in, &arena, err), -EINVAL, "arena");
	both = in;
	both.label = "mine";
	assert_refused(tmesh_tensor_put(*state, TMESH_UINT8, 0, NULL, "", &both, &tensor, err),
		       -EINVAL, "label");
	for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
		both = beside[i];
		both.size = sizeof(both);
		both.arena = arena;
		assert_refused(
			tmesh_tensor_put(*state, TMESH_UINT8, 0, NULL, "", &both, &tensor, err),
			-EINVAL, "hold_ms");
		/* Without an arena the tensor's own region has the answer. */
		both.arena = NULL;
		both.flags |= TMESH_REGION_NODE;
		both.node = 1024;
		assert_refused(
			tmesh_tensor_put(*state, TMESH_UINT8, 0, NULL, "", &both, &tensor, err),
			-EINVAL, "node 1024");
	}
	both = in;
	both.size = 3;
	assert_refused(tmesh_tensor_put(*state, TMESH_UINT8, 0, NULL, "", &both, &tensor, err),
		       -EINVAL, "size");
	both = beside[4];
	both.size = sizeof(both);
	assert_ok(tmesh_tensor_put(*state, TMESH_UINT8, 0, NULL, "", &both, &tensor, err));
	tmesh_tensor_unref(tensor);
	both = in;
	both.flags = TMESH_REGION_HUGE;
	assert_refused(tmesh_tensor_create(*state, TMESH_UINT8, 0, NULL, &both, &tensor, err),
		       -EINVAL, "flags");
	assert_ok(tmesh_ctx_open(NULL, &other, err));
	assert_refused(tmesh_tensor_create(other, TMESH_UINT8, 0, NULL, &in, &tensor, err), -EINVAL,
		       "context");
	tmesh_ctx_unref(other);
	tmesh_arena_unref(arena);
}

UNIT_MAIN("arena", NULL, NULL)
