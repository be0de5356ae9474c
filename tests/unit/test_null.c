// SPDX-License-Identifier: MIT
/* Arguments that are NULL where the call needs something: it is named, and nothing happens. */
#include "unit.h"

#define NULL_(call, name) assert_refused(call, -EINVAL, name " is NULL")

static const float elements[6];

struct here {
	struct tmesh_ctx *ctx;
	struct tmesh_tensor *tensor;
	struct tmesh_region *region;
	struct tmesh_bundle *bundle;
	struct tmesh_channel *sender, *receiver;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ref ref;
};

static int setup(void **state)
{
	struct tmesh_bundle_entry entry = {.name = "a"};
	struct here *here = calloc(1, sizeof(*here));
	char text[TMESH_REF_SIZE];

	assert_ok(tmesh_ctx_open(NULL, &here->ctx, err));
	assert_ok(tmesh_tensor_put(here->ctx, TMESH_FLOAT32, 2, (int64_t[]){2, 3}, elements, NULL,
				   &here->tensor, err));
	here->region = tmesh_tensor_region(here->tensor);
	assert_ok(tmesh_tensor_ref_encode(here->tensor, TMESH_READ, text, sizeof(text), err));
	assert_ok(tmesh_ref_decode(text, strlen(text), &here->ref, err));
	entry.tensor = here->tensor;
	assert_ok(tmesh_bundle_create(here->ctx, &entry, 1, NULL, &here->bundle, err));
	assert_ok(tmesh_channel_create(here->ctx, TMESH_CHANNEL_SEND, NULL, &here->sender, err));
	assert_ok(tmesh_channel_token(here->sender, here->token, err));
	assert_ok(tmesh_channel_open(here->ctx, here->token, TMESH_CHANNEL_RECV, NULL,
				     &here->receiver, err));
	*state = here;
	return 0;
}

static int teardown(void **state)
{
	struct here *here = *state;

	tmesh_channel_unref(here->receiver);
	tmesh_channel_unref(here->sender);
	tmesh_bundle_unref(here->bundle);
	tmesh_tensor_unref(here->tensor);
	tmesh_ctx_unref(here->ctx);
	free(here);
	return 0;
}

UNIT_SET_UP(test_contexts)
{
	struct here *here = *state;
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct tmesh_limits limits = {.size = sizeof(limits)};
	struct tmesh_holder_info *holders = NULL;
	struct tmesh_region_info *infos = NULL;
	struct tmesh_region *region = NULL;
	const struct tmesh_cap *caps;
	size_t count;
	int fd = -1;

	NULL_(tmesh_ctx_open(NULL, NULL, err), "out");
	NULL_(tmesh_ctx_flush(NULL, 0, NULL, err), "ctx");
	NULL_(tmesh_arena_create(NULL, 0, NULL, (void *)&region, err), "ctx");
	NULL_(tmesh_arena_create(here->ctx, 0, NULL, NULL, err), "out");
	assert_null(region);
	assert_int_equal(tmesh_ctx_open(NULL, NULL, NULL), -EINVAL);
	NULL_(tmesh_ctx_runtime_dir(NULL, &fd, err), "ctx");
	NULL_(tmesh_ctx_runtime_dir(here->ctx, NULL, err), "out");
	NULL_(tmesh_limits(NULL, &limits, err), "ctx");
	assert_int_equal(tmesh_stats(NULL, &stats), -EINVAL);
	assert_int_equal(tmesh_stats(here->ctx, NULL), -EINVAL);
	assert_int_equal(tmesh_caps(NULL, &caps, &count), -EINVAL);
	assert_int_equal(tmesh_caps(here->ctx, NULL, &count), -EINVAL);
	assert_int_equal(tmesh_caps(here->ctx, &caps, NULL), -EINVAL);
	NULL_(tmesh_list(NULL, &infos, &count, err), "ctx");
	NULL_(tmesh_list(here->ctx, NULL, &count, err), "infos");
	NULL_(tmesh_list(here->ctx, &infos, NULL, err), "count");
	NULL_(tmesh_holders(NULL, 1, &holders, &count, err), "ctx");
	NULL_(tmesh_holders(here->ctx, 1, NULL, &count, err), "holders");
	NULL_(tmesh_holders(here->ctx, 1, &holders, NULL, err), "count");
	assert_int_equal(fd, -1);
	assert_null(infos);
	assert_null(holders);
}

UNIT_SET_UP(test_sources)
{
	struct here *here = *state;
	struct tmesh_gather_extent extent = {.region = here->region, .bytes = 4096};
	struct tmesh_region *region = NULL;
	int fd = -1;

	NULL_(tmesh_region_gather(NULL, &extent, 1, TMESH_READ, NULL, &region, err), "ctx");
	NULL_(tmesh_region_gather(here->ctx, NULL, 1, TMESH_READ, NULL, &region, err), "extents");
	NULL_(tmesh_region_gather(here->ctx, &extent, 1, TMESH_READ, NULL, NULL, err), "out");
	extent.region = NULL;
	NULL_(tmesh_region_gather(here->ctx, &extent, 1, TMESH_READ, NULL, &region, err),
	      "extents[i].region");
	NULL_(tmesh_region_from_user(NULL, here, 4096, TMESH_READ, NULL, &region, err), "ctx");
	NULL_(tmesh_region_from_user(here->ctx, NULL, 4096, TMESH_READ, NULL, &region, err),
	      "addr");
	NULL_(tmesh_region_from_user(here->ctx, here, 4096, TMESH_READ, NULL, NULL, err), "out");
	NULL_(tmesh_region_from_dmabuf(NULL, 0, NULL, &region, err), "ctx");
	NULL_(tmesh_region_from_dmabuf(here->ctx, 0, NULL, NULL, err), "out");
	NULL_(tmesh_region_from_fd(NULL, 0, 1, NULL, &region, err), "ctx");
	NULL_(tmesh_region_from_fd(here->ctx, 0, 1, NULL, NULL, err), "out");
	NULL_(tmesh_region_opaque_fd(NULL, &fd, err), "region");
	NULL_(tmesh_region_opaque_fd(here->region, NULL, err), "fd");
	NULL_(tmesh_region_export_dmabuf(NULL, 0, 0, TMESH_READ, &fd, err), "region");
	NULL_(tmesh_region_export_dmabuf(here->region, 0, 0, TMESH_READ, NULL, err), "fd");
	NULL_(tmesh_region_send(NULL, 0, TMESH_READ, err), "region");
	NULL_(tmesh_region_recv(NULL, 0, &region, err), "ctx");
	NULL_(tmesh_region_recv(here->ctx, 0, NULL, err), "out");
	NULL_(tmesh_region_poll_fd(NULL, TMESH_EVENT_TAKEN, &(short){0}, err), "region");
	NULL_(tmesh_region_set_description(NULL, "a", err), "region");
	NULL_(tmesh_region_reclaim(NULL, 0, NULL, err), "region");
	NULL_(tmesh_lease_set(NULL, 1, TMESH_TAKEN_ZERO, err), "region");
	NULL_(tmesh_lease_bind(NULL, 0, 1, TMESH_TAKEN_ZERO, err), "region");
	assert_int_equal(tmesh_lease_touch(NULL), -EINVAL);
	NULL_(tmesh_fence_signal(NULL, 1, err), "region");
	NULL_(tmesh_fence_wait(NULL, 1, 0, NULL, err), "region");
	assert_null(region);
	assert_int_equal(fd, -1);
}

UNIT_SET_UP(test_regions)
{
	struct here *here = *state;
	struct tmesh_region *region = NULL;
	char token[TMESH_TOKEN_SIZE];
	void *addr = NULL;

	NULL_(tmesh_region_create(NULL, 1, NULL, &region, err), "ctx");
	NULL_(tmesh_region_create(here->ctx, 1, NULL, NULL, err), "out");
	NULL_(tmesh_region_from_memfd(NULL, 0, 1, NULL, &region, err), "ctx");
	NULL_(tmesh_region_from_memfd(here->ctx, 0, 1, NULL, NULL, err), "out");
	NULL_(tmesh_region_map(NULL, TMESH_READ, &addr, err), "region");
	NULL_(tmesh_region_map(here->region, TMESH_READ, NULL, err), "addr");
	NULL_(tmesh_region_write(NULL, 0, elements, 1, err), "region");
	NULL_(tmesh_region_read(NULL, 0, token, 1, err), "region");
	NULL_(tmesh_region_read(here->region, 0, NULL, 1, err), "data");
	NULL_(tmesh_region_seal(NULL, err), "region");
	NULL_(tmesh_region_revoke(NULL, err), "region");
	NULL_(tmesh_region_derive(NULL, TMESH_READ, &region, err), "region");
	NULL_(tmesh_region_derive(here->region, TMESH_READ, NULL, err), "out");
	NULL_(tmesh_region_pin(NULL, &region, err), "region");
	NULL_(tmesh_region_pin(here->region, NULL, err), "out");
	NULL_(tmesh_region_private(NULL, &region, err), "region");
	NULL_(tmesh_region_private(here->region, NULL, err), "out");
	NULL_(tmesh_region_token(NULL, TMESH_READ, token, err), "region");
	NULL_(tmesh_region_token(here->region, TMESH_READ, NULL, err), "token");
	NULL_(tmesh_region_hold(NULL, TMESH_READ, 0, token, err), "region");
	NULL_(tmesh_region_hold(here->region, TMESH_READ, 0, NULL, err), "token");
	NULL_(tmesh_region_open(NULL, here->ref.token, TMESH_READ, &region, err), "ctx");
	NULL_(tmesh_region_open(here->ctx, NULL, TMESH_READ, &region, err), "token");
	NULL_(tmesh_region_open(here->ctx, here->ref.token, TMESH_READ, NULL, err), "out");
	NULL_(tmesh_region_info(NULL, &(struct tmesh_region_info){.size = 8}, err), "region");
	NULL_(tmesh_region_info(here->region, NULL, err), "info");
	assert_null(region);
	assert_null(addr);

	assert_ok(tmesh_region_create(here->ctx, 1, NULL, &region, err));
	NULL_(tmesh_region_write(region, 0, NULL, 1, err), "data");
	assert_ok(tmesh_region_write(region, 0, NULL, 0, err));
	tmesh_region_unref(region);
}

UNIT_SET_UP(test_tensors)
{
	const int64_t shape[] = {2, 3}, none[] = {0};
	struct here *here = *state;
	const struct tmesh_layout *layout = tmesh_tensor_layout(here->tensor);
	struct tmesh_ctx *ctx = here->ctx;
	struct tmesh_tensor *tensor = NULL;
	struct tmesh_layout made;
	char text[TMESH_REF_SIZE];
	void *data = NULL;

	NULL_(tmesh_layout_contiguous(NULL, TMESH_FLOAT32, 2, shape, err), "layout");
	NULL_(tmesh_layout_check(NULL, 24, NULL, err), "layout");
	assert_refused(tmesh_layout_contiguous(&made, TMESH_FLOAT32, 2, NULL, err), -EINVAL,
		       "no shape");
	NULL_(tmesh_tensor_create(NULL, TMESH_INT8, 2, shape, NULL, &tensor, err), "ctx");
	NULL_(tmesh_tensor_create(ctx, TMESH_INT8, 2, shape, NULL, NULL, err), "out");
	NULL_(tmesh_tensor_put(NULL, TMESH_INT8, 2, shape, elements, NULL, &tensor, err), "ctx");
	NULL_(tmesh_tensor_put(ctx, TMESH_INT8, 2, shape, elements, NULL, NULL, err), "out");
	assert_refused(tmesh_tensor_put(ctx, TMESH_INT8, 2, shape, NULL, NULL, &tensor, err),
		       -EINVAL, "data is NULL, and a tensor of 6 bytes is put");
	NULL_(tmesh_tensor_wrap(NULL, layout, &tensor, err), "region");
	NULL_(tmesh_tensor_wrap(here->region, NULL, &tensor, err), "layout");
	NULL_(tmesh_tensor_wrap(here->region, layout, NULL, err), "out");
	NULL_(tmesh_tensor_view(NULL, layout, &tensor, err), "tensor");
	NULL_(tmesh_tensor_view(here->tensor, NULL, &tensor, err), "layout");
	NULL_(tmesh_tensor_view(here->tensor, layout, NULL, err), "out");
	NULL_(tmesh_tensor_data(NULL, TMESH_READ, &data, err), "tensor");
	NULL_(tmesh_tensor_data(here->tensor, TMESH_READ, NULL, err), "data");
	NULL_(tmesh_tensor_read(NULL, text, 24, err), "tensor");
	NULL_(tmesh_tensor_read(here->tensor, NULL, 24, err), "data");
	NULL_(tmesh_tensor_ref_encode(NULL, TMESH_READ, text, sizeof(text), err), "tensor");
	NULL_(tmesh_tensor_ref_hold(NULL, TMESH_READ, 0, text, sizeof(text), err), "tensor");
	NULL_(tmesh_tensor_open(NULL, &here->ref, TMESH_READ, &tensor, err), "ctx");
	NULL_(tmesh_tensor_open(ctx, NULL, TMESH_READ, &tensor, err), "ref");
	NULL_(tmesh_tensor_open(ctx, &here->ref, TMESH_READ, NULL, err), "out");
	NULL_(tmesh_ref_decode(NULL, 3, &here->ref, err), "text");
	NULL_(tmesh_ref_decode("{}", 2, NULL, err), "ref");
	NULL_(tmesh_ref_from_members(NULL, &here->ref, err), "members");
	assert_null(tensor);
	assert_null(data);

	assert_ok(tmesh_tensor_put(ctx, TMESH_INT8, 1, none, NULL, NULL, &tensor, err));
	assert_ok(tmesh_tensor_read(tensor, NULL, 0, err));
	tmesh_tensor_unref(tensor);
}

UNIT_SET_UP(test_dlpack)
{
	struct here *here = *state;
	struct tmesh_tensor *tensor = NULL;
	void *managed = NULL;

	NULL_(tmesh_tensor_to_dlpack(NULL, TMESH_READ, 1, (void *)&managed, err), "tensor");
	NULL_(tmesh_tensor_to_dlpack(here->tensor, TMESH_READ, 1, NULL, err), "out");
	NULL_(tmesh_tensor_to_dlpack_versioned(NULL, TMESH_READ, 1, (void *)&managed, err),
	      "tensor");
	NULL_(tmesh_tensor_to_dlpack_versioned(here->tensor, TMESH_READ, 1, NULL, err), "out");
	NULL_(tmesh_tensor_from_dlpack(here->ctx, NULL, NULL, &tensor, err), "managed");
	NULL_(tmesh_tensor_from_dlpack_versioned(here->ctx, NULL, NULL, &tensor, err), "managed");
	assert_null(managed);
	assert_null(tensor);
}

UNIT_SET_UP(test_channels)
{
	struct here *here = *state;
	struct tmesh_channel *channel = NULL;
	struct tmesh_message message = {0};
	char token[TMESH_TOKEN_SIZE];

	NULL_(tmesh_channel_create(NULL, TMESH_CHANNEL_SEND, NULL, &channel, err), "ctx");
	NULL_(tmesh_channel_create(here->ctx, TMESH_CHANNEL_SEND, NULL, NULL, err), "out");
	NULL_(tmesh_channel_open(NULL, here->token, TMESH_CHANNEL_RECV, NULL, &channel, err),
	      "ctx");
	NULL_(tmesh_channel_open(here->ctx, NULL, TMESH_CHANNEL_RECV, NULL, &channel, err),
	      "token");
	NULL_(tmesh_channel_open(here->ctx, here->token, TMESH_CHANNEL_RECV, NULL, NULL, err),
	      "out");
	NULL_(tmesh_channel_token(NULL, token, err), "channel");
	NULL_(tmesh_channel_token(here->sender, NULL, err), "token");
	NULL_(tmesh_channel_level(NULL, NULL, NULL, err), "channel");
	NULL_(tmesh_channel_flush(NULL, 0, err), "channel");
	NULL_(tmesh_channel_prepare(NULL, err), "channel");
	NULL_(tmesh_channel_poll_fd(NULL, err), "channel");
	NULL_(tmesh_channel_send(NULL, &message, 0, err), "channel");
	NULL_(tmesh_channel_send(here->sender, NULL, 0, err), "message");
	NULL_(tmesh_channel_try_send(NULL, &message, err), "channel");
	NULL_(tmesh_channel_try_send(here->sender, NULL, err), "message");
	NULL_(tmesh_channel_send_batch(NULL, &message, 1, 0, err), "channel");
	NULL_(tmesh_channel_send_batch(here->sender, NULL, 1, 0, err), "messages");
	NULL_(tmesh_channel_recv(NULL, &message, 0, err), "channel");
	NULL_(tmesh_channel_recv(here->receiver, NULL, 0, err), "message");
	NULL_(tmesh_channel_try_recv(NULL, &message, err), "channel");
	NULL_(tmesh_channel_try_recv(here->receiver, NULL, err), "message");
	NULL_(tmesh_channel_recv_batch(NULL, &message, 1, 0, err), "channel");
	NULL_(tmesh_channel_recv_batch(here->receiver, NULL, 1, 0, err), "messages");
	assert_null(channel);
}

UNIT_SET_UP(test_bundles)
{
	struct here *here = *state;
	struct tmesh_bundle *bundle = NULL;
	struct tmesh_keeper_info info = {.size = sizeof(info)};
	struct tmesh_kept_info *kept = NULL;
	struct tmesh_bundle_entry entry;
	struct tmesh_tensor *tensor = NULL;
	uint64_t bytes;
	char text[4096];
	size_t i;

	NULL_(tmesh_bundle_create(NULL, NULL, 0, NULL, &bundle, err), "ctx");
	NULL_(tmesh_bundle_create(here->ctx, NULL, 0, NULL, NULL, err), "out");
	NULL_(tmesh_bundle_create(here->ctx, NULL, 1, NULL, &bundle, err), "entries");
	NULL_(tmesh_bundle_from_regions(here->ctx, NULL, NULL, 0, &bundle, err), "index");
	NULL_(tmesh_bundle_from_regions(here->ctx, here->region, NULL, 1, &bundle, err), "regions");
	NULL_(tmesh_bundle_plan(NULL, 1, 0, &bytes, err), "entries");
	NULL_(tmesh_bundle_plan(&entry, 1, 0, NULL, err), "bytes");
	NULL_(tmesh_bundle_send(NULL, 0, TMESH_READ, err), "bundle");
	NULL_(tmesh_bundle_recv(NULL, 0, &bundle, err), "ctx");
	NULL_(tmesh_bundle_recv(here->ctx, 0, NULL, err), "out");
	NULL_(tmesh_kept_list(NULL, &kept, &i, err), "ctx");
	NULL_(tmesh_kept_list(here->ctx, NULL, &i, err), "infos");
	NULL_(tmesh_kept_list(here->ctx, &kept, NULL, err), "count");
	NULL_(tmesh_keeper_info(NULL, &info, err), "ctx");
	NULL_(tmesh_keeper_info(here->ctx, NULL, err), "info");
	NULL_(tmesh_bundle_find(NULL, "a", &i, err), "bundle");
	NULL_(tmesh_bundle_find(here->bundle, NULL, &i, err), "name");
	NULL_(tmesh_bundle_find(here->bundle, "a", NULL, err), "i");
	NULL_(tmesh_bundle_entry(NULL, 0, &entry, err), "bundle");
	NULL_(tmesh_bundle_entry(here->bundle, 0, NULL, err), "entry");
	NULL_(tmesh_bundle_tensor(NULL, 0, &tensor, err), "bundle");
	NULL_(tmesh_bundle_tensor(here->bundle, 0, NULL, err), "out");
	NULL_(tmesh_bundle_ref_encode(NULL, TMESH_READ, text, sizeof(text), err), "bundle");
	NULL_(tmesh_bundle_ref_hold(NULL, TMESH_READ, 0, text, sizeof(text), err), "bundle");
	NULL_(tmesh_bundle_open(NULL, "{}", 2, TMESH_READ, &bundle, err), "ctx");
	NULL_(tmesh_bundle_open(here->ctx, NULL, 2, TMESH_READ, &bundle, err), "text");
	NULL_(tmesh_bundle_open(here->ctx, "{}", 2, TMESH_READ, NULL, err), "out");
	NULL_(tmesh_keep(NULL, "a", &here->region, 1, NULL, err), "ctx");
	NULL_(tmesh_keep(here->ctx, "a", NULL, 1, NULL, err), "regions");
	NULL_(tmesh_keep_bundle(here->ctx, "a", NULL, NULL, err), "bundle");
	NULL_(tmesh_kept_open_bundle(NULL, "a", TMESH_KEPT_OWN, &bundle, err), "ctx");
	NULL_(tmesh_kept_open_bundle(here->ctx, "a", TMESH_KEPT_OWN, NULL, err), "out");
	NULL_(tmesh_kept_drop(NULL, "a", err), "ctx");
	assert_null(bundle);
	assert_null(tensor);
}

UNIT_MAIN("null", NULL, NULL)
