// SPDX-License-Identifier: MIT
/*
 * A call that fails leaves its out-parameters alone. The faults are found early and late.
 * The script tests/outputs.py compares the names here with the headers.
 */
#include "bundles.h"
#include "channels.h"
#include "outputs.h"

static struct fixture {
	struct tmesh_ctx *ctx;
	struct tmesh_region *region, *sealed, *readable;
	struct tmesh_tensor *tensor;
	struct tmesh_bundle *bundle;
	struct pair pair;
	char token[TMESH_TOKEN_SIZE];
	int sockets[2];
} f;

UNIT(test_contexts)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = 77};

	FAILS(tmesh_ctx_open, -EINVAL, &opts, OUT, err);
	opts = (struct tmesh_ctx_opts){.size = sizeof(opts),
				       .backend = TMESH_BACKEND_MEMFD,
				       .region_pool_bytes = 1,
				       .exit_wait_ns = UINT64_MAX - 1};
	FAILS(tmesh_ctx_open, -EINVAL, &opts, OUT, err);
	FAILS(tmesh_ctx_runtime_dir, -EINVAL, NULL, OUT, err);
	FAILS(tmesh_stats, -EINVAL, f.ctx, &(struct tmesh_stats){0});
	FAILS(tmesh_caps, -EINVAL, f.ctx, NULL, OTHER);
	FAILS(tmesh_limits, -EINVAL, NULL, OUT, err);
	FAILS(tmesh_ctx_flush, -EINVAL, NULL, 0, OUT, err);
}

UNIT(test_regions)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .mode = 077777};
	struct tmesh_gather_extent extent = {.region = f.region, .offset = 1 << 30, .bytes = 1};

	FAILS(tmesh_region_create, -EINVAL, f.ctx, 0, NULL, OUT, err);
	FAILS(tmesh_region_create, -EINVAL, f.ctx, 4096, &opts, OUT, err);
	FAILS(tmesh_region_create, unit_on_kernel() ? -EDQUOT : -ENOMEM, f.ctx, 1ull << 62, NULL,
	      OUT, err);
	FAILS(tmesh_region_map, -EINVAL, f.region, 0, OUT, err);
	FAILS(tmesh_region_map, -EACCES, f.readable, RW, OUT, err);
	FAILS(tmesh_region_read, -EINVAL, f.region, 1 << 30, OUT, 8, err);
	FAILS(tmesh_region_derive, -EINVAL, f.region, 0, OUT, err);
	FAILS(tmesh_region_derive, -EACCES, f.readable, RW, OUT, err);
	FAILS(tmesh_region_pin, -EINVAL, f.region, OUT, err);
	FAILS(tmesh_region_private, -EINVAL, f.region, OUT, err);
	FAILS(tmesh_region_token, -EACCES, f.readable, RW, OUT, err);
	FAILS(tmesh_region_hold, -EACCES, f.readable, RW, 1, OUT, err);
	FAILS(tmesh_region_open, -ENOENT, f.ctx, f.token, TMESH_READ, OUT, err);
	FAILS(tmesh_region_open, -EPROTO, f.ctx, "no token", TMESH_READ, OUT, err);
	FAILS(tmesh_region_recv, -EPIPE, f.ctx, f.sockets[0], OUT, err);
	FAILS(tmesh_region_reclaim, -EACCES, f.readable, 0, OUT, err);
	FAILS(tmesh_region_export_dmabuf, -EINVAL, f.region, 1, 1, TMESH_READ, OUT, err);
	FAILS(tmesh_region_opaque_fd, -EOPNOTSUPP, f.region, OUT, err);
	FAILS(tmesh_region_info, -EINVAL, NULL, OUT, err);
	FAILS(tmesh_region_poll_fd, -EINVAL, f.region, 1u << 31, OUT, err);
	/* It does fill this when the time is over, as its comment says. */
	FAILS(tmesh_fence_wait, -EINVAL, NULL, 1, 0, OUT, err);
	FAILS(tmesh_region_gather, unit_on_kernel() ? -EINVAL : -EOPNOTSUPP, f.ctx, &extent, 1,
	      TMESH_READ, NULL, OUT, err);
}

UNIT(test_imports)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	FAILS(tmesh_region_from_memfd, -EINVAL, f.ctx, null, 4096, NULL, OUT, err);
	FAILS(tmesh_region_from_memfd, -EBADF, f.ctx, -1, 4096, NULL, OUT, err);
	FAILS(tmesh_region_from_user, -EINVAL, f.ctx, (void *)1, 4096, RW, NULL, OUT, err);
	FAILS(tmesh_region_from_dmabuf, unit_on_kernel() ? -EINVAL : -EOPNOTSUPP, f.ctx, null, NULL,
	      OUT, err);
	FAILS(tmesh_region_from_fd, -EBADF, f.ctx, -1, 4096, NULL, OUT, err);
	close(null);
}

UNIT(test_lists)
{
	FAILS(tmesh_list, -EINVAL, NULL, OUT, OTHER, err);
	FAILS(tmesh_holders, -ENOENT, f.ctx, 12345, OUT, OTHER, err);
	FAILS(tmesh_kept_list, -EINVAL, NULL, OUT, OTHER, err);
	FAILS(tmesh_kept_open, -ENOENT, f.ctx, "none", getuid(), TMESH_READ, OUT, OTHER, err);
	FAILS(tmesh_kept_open_bundle, -ENOENT, f.ctx, "none", getuid(), OUT, err);
	FAILS(tmesh_kept_files, -ENOENT, f.ctx, "none", getuid(), OUT, OTHER, err);
	FAILS(tmesh_kept_open_file, -ENOENT, f.ctx, "none", getuid(), "a", OUT, OTHER, err);
	FAILS(tmesh_kept_open_fd, -ENODATA, f.ctx, f.sockets[0], OUT, OTHER, third.text, err);
	FAILS(tmesh_kept_path, -ENOENT, f.ctx, "none", NULL, OUT, err);
	FAILS(tmesh_keeper_info, -EINVAL, NULL, OUT, err);
}

UNIT(test_tensors)
{
	const int64_t shape[] = {4, -1}, large[] = {1 << 30};
	struct tmesh_layout outside = {0};
	struct tmesh_ref ref = {0};
	char text[TMESH_REF_SIZE];
	const struct tmesh_ref_members members = {.size = sizeof(members)};
	const struct tmesh_region_opts bad = {.size = sizeof(bad), .mode = 077777};

	assert_ok(tmesh_layout_contiguous(&outside, TMESH_FLOAT32, 1, large, err));
	assert_ok(tmesh_tensor_ref_encode(f.tensor, TMESH_READ, text, sizeof(text), err));
	assert_ok(tmesh_ref_decode(text, strlen(text), &ref, err));
	memcpy(ref.token, f.token, sizeof(ref.token));

	FAILS(tmesh_layout_contiguous, -EINVAL, OUT, TMESH_FLOAT32, 2, shape, err);
	FAILS(tmesh_layout_check, -EINVAL, &outside, 4096, OUT, err);
	FAILS(tmesh_tensor_create, -EINVAL, f.ctx, TMESH_FLOAT32, 2, shape, NULL, OUT, err);
	FAILS(tmesh_tensor_put, -EINVAL, f.ctx, TMESH_FLOAT32, 2, shape, text, NULL, OUT, err);
	FAILS(tmesh_tensor_wrap, -EINVAL, f.region, &outside, OUT, err);
	FAILS(tmesh_tensor_view, -EINVAL, f.tensor, &outside, OUT, err);
	FAILS(tmesh_tensor_data, -EINVAL, f.tensor, 0, OUT, err);
	FAILS(tmesh_tensor_read, -EINVAL, f.tensor, OUT, 1, err);
	FAILS(tmesh_tensor_ref_encode, -ENOSPC, f.tensor, TMESH_READ, out.text, 8, err);
	FAILS(tmesh_tensor_ref_hold, -ENOSPC, f.tensor, TMESH_READ, 1, out.text, 8, err);
	FAILS(tmesh_ref_encode, -ENOSPC, &ref, out.text, 8, err);
	FAILS(tmesh_ref_decode, -EPROTO, "{\"v\": 1", 7, OUT, err);
	FAILS(tmesh_ref_decode, -EPROTO, text, strlen(text) - 1, OUT, err);
	FAILS(tmesh_ref_from_members, -EPROTO, &members, OUT, err);
	FAILS(tmesh_tensor_open, -ENOENT, f.ctx, &ref, TMESH_READ, OUT, err);
	FAILS(tmesh_tensor_to_dlpack, -EACCES, f.tensor, 0, 0, OUT, err);
	FAILS(tmesh_tensor_to_dlpack_versioned, -EINVAL, f.tensor, 0, 1, OUT, err);
	FAILS(tmesh_tensor_from_dlpack, -EINVAL, f.ctx, NULL, NULL, OUT, err);
	FAILS(tmesh_tensor_from_dlpack_versioned, -EINVAL, f.ctx, NULL, NULL, OUT, err);
	FAILS(tmesh_arena_create, -EINVAL, f.ctx, 1 << 20, &bad, OUT, err);
}

UNIT(test_bundles)
{
	struct tmesh_bundle_entry entries[2] = {{.name = "a"}, {.name = "a"}};
	char *text = ref_of(f.bundle);
	uint64_t bytes, first;

	entries[0].layout = layout_of(TMESH_UINT8, 1, (int64_t[]){4});
	entries[1].layout = entries[0].layout;
	entries[0].region = entries[1].region = f.region;
	assert_ok(tmesh_bundle_plan(entries, 2, 0, &bytes, err));
	first = entries[0].layout.offset;
	FAILS(tmesh_bundle_create, -EINVAL, f.ctx, entries, 2, NULL, OUT, err);
	FAILS(tmesh_bundle_from_regions, -EPROTO, f.ctx, f.sealed, NULL, 0, OUT, err);
	FAILS(tmesh_bundle_find, -ENOENT, f.bundle, "none", OUT, err);
	FAILS(tmesh_bundle_entry, -EINVAL, f.bundle, 99, OUT, err);
	FAILS(tmesh_bundle_tensor, -EINVAL, f.bundle, 99, OUT, err);
	FAILS(tmesh_bundle_ref_encode, -ENOSPC, f.bundle, TMESH_READ, out.text, 8, err);
	FAILS(tmesh_bundle_ref_hold, -ENOSPC, f.bundle, TMESH_READ, 1, out.text, 8, err);
	FAILS(tmesh_bundle_open, -EPROTO, f.ctx, text, strlen(text) - 1, TMESH_READ, OUT, err);
	FAILS(tmesh_bundle_recv, -EPIPE, f.ctx, f.sockets[0], OUT, err);
	free(text);
	/* The entries of a plan that does not fit keep their places. */
	entries[1].layout.ndim = 99;
	FAILS(tmesh_bundle_plan, -EINVAL, entries, 2, 4096, OUT, err);
	assert_int_equal(entries[0].layout.offset, first);
}

UNIT(test_channels)
{
	const struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 3};

	FAILS(tmesh_channel_create, -EINVAL, f.ctx, SEND, &opts, OUT, err);
	/* A token of the module shows of what it is, before anything is looked up. */
	FAILS(tmesh_channel_open, unit_on_kernel() ? -EPROTO : -ENOENT, f.ctx, f.token, RECV, NULL,
	      OUT, err);
	FAILS(tmesh_channel_token, -EINVAL, NULL, OUT, err);
	FAILS(tmesh_channel_level, -EINVAL, NULL, OUT, OTHER, err);
	FAILS(tmesh_channel_recv, -ETIMEDOUT, f.pair.other, OUT, 0, err);
	FAILS(tmesh_channel_recv, -EINVAL, f.pair.maker, OUT, 0, err);
	FAILS(tmesh_channel_try_recv, -EAGAIN, f.pair.other, OUT, err);
	FAILS(tmesh_channel_recv_batch, -ETIMEDOUT, f.pair.other, OUT, 4, 0, err);
}

static int setup(void **state)
{
	const int64_t shape[] = {16};

	assert_ok(tmesh_ctx_open(NULL, &f.ctx, err));
	assert_ok(tmesh_region_create(f.ctx, 8192, NULL, &f.region, err));
	assert_ok(tmesh_region_derive(f.region, TMESH_READ, &f.readable, err));
	assert_ok(tmesh_tensor_put(f.ctx, TMESH_UINT8, 1, shape, "0123456789abcdef", NULL,
				   &f.tensor, err));
	f.sealed = tmesh_region_ref(tmesh_tensor_region(f.tensor));
	if (!tmesh_region_is_sealed(f.sealed))
		assert_ok(tmesh_region_seal(f.sealed, err));
	f.bundle = made(f.ctx);
	f.pair = pair_make(SEND, NULL);
	/* The token of a region that is gone. */
	{
		struct tmesh_region *gone;

		assert_ok(tmesh_region_create(f.ctx, 4096, NULL, &gone, err));
		assert_ok(tmesh_region_token(gone, TMESH_READ, f.token, err));
		tmesh_region_unref(gone);
		tmesh_ctx_trim(f.ctx);
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, f.sockets), 0);
	close(f.sockets[1]);
	return 0;
}

static int teardown(void **state)
{
	close(f.sockets[0]);
	pair_end(&f.pair);
	tmesh_bundle_unref(f.bundle);
	tmesh_region_unref(f.sealed);
	tmesh_tensor_unref(f.tensor);
	tmesh_region_unref(f.readable);
	tmesh_region_unref(f.region);
	tmesh_ctx_unref(f.ctx);
	return 0;
}

UNIT_MAIN("outputs", setup, teardown)
