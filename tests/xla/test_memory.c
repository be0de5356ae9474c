// SPDX-License-Identifier: MIT
/* The memory of pushes: it is used again once no process holds it, and never before; limits. */
#include "unit.h"

#include "host.h"

#define F32 11
#define COUNT 100000 /* larger than an arena */
#define KEPT 12

static struct tmesh_ctx *ctx;
static struct tmesh_channel *inbox;
static float *data;

static int setup(void **state)
{
	char token[TMESH_TOKEN_SIZE];

	data = calloc(COUNT, sizeof(*data));
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_channel_create(ctx, TMESH_CHANNEL_RECV, NULL, &inbox, err));
	assert_ok(tmesh_channel_token(inbox, token, err));
	assert_ok(tmesh_xla_bind("out", token, TMESH_CHANNEL_SEND, err));
	return 0;
}

static struct tmesh_stats stats(void)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	assert_ok(tmesh_xla_stats(&stats, err));
	return stats;
}

static int teardown(void **state)
{
	tmesh_xla_limit(0);
	assert_ok(tmesh_xla_unbind("out", err));
	tmesh_channel_unref(inbox);
	tmesh_ctx_unref(ctx);
	free(data);
	/* With the last name the memory that was kept is given back. */
	assert_int_equal(stats().region_pool_bytes + stats().regions_live, 0);
	return 0;
}

static int push(float first, const bool *seal)
{
	struct ffi_scalar scalar = {FFI_PRED, (void *)seal};
	int64_t count = COUNT;
	struct host host;

	data[0] = data[COUNT - 1] = first;
	host_init(&host, "out", 1000);
	host_operand(&host, F32, data, 1, &count);
	if (seal)
		host_attr(&host, "seal", FFI_ATTR_SCALAR, &scalar);
	return host_call(&host, tmesh_xla_push);
}

static struct tmesh_tensor *take(void)
{
	struct tmesh_message message = {0};

	assert_ok(tmesh_channel_recv(inbox, &message, 60000000000, err));
	assert_non_null(message.tensor);
	return message.tensor;
}

static void expect(struct tmesh_tensor *tensor, float first)
{
	void *at;

	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &at, err));
	assert_true(((float *)at)[0] == first && ((float *)at)[COUNT - 1] == first);
}

/* A receiver's release returns the memory to a thread of the sender, for which the next push waits
 * here. */
UNIT_SET_UP(test_used_again)
{
	struct tmesh_stats before = stats(), after;

	for (int i = 0; i < 20; i++) {
		struct tmesh_tensor *tensor;

		assert_int_equal(push((float)i, NULL), 0);
		tensor = take();
		expect(tensor, (float)i);
		tmesh_tensor_unref(tensor);
		assert_ok(tmesh_xla_flush("out", -1, err));
		while (!stats().region_pool_bytes)
			usleep(1000);
	}
	after = stats();
	assert_true(after.region_pool_hits - before.region_pool_hits >= 16);
	assert_true(after.regions_created - before.regions_created <= 4);
}

/* Kept memory stays unchanged, and each push has other memory. */
UNIT_SET_UP(test_kept)
{
	struct tmesh_tensor *kept[KEPT];

	for (int i = 0; i < KEPT; i++) {
		assert_int_equal(push((float)(i + 1), NULL), 0);
		kept[i] = take();
	}
	for (int i = 0; i < 20; i++) {
		assert_int_equal(push(-1, NULL), 0);
		tmesh_tensor_unref(take());
	}
	for (int i = 0; i < KEPT; i++) {
		assert_int_equal(tmesh_region_rights(tmesh_tensor_region(kept[i])), TMESH_READ);
		expect(kept[i], (float)(i + 1));
		tmesh_tensor_unref(kept[i]);
	}
}

UNIT_SET_UP(test_sealed)
{
	const bool yes = true, no = false;
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_tensor *tensor;

	for (int i = 0; i < 2; i++) {
		assert_int_equal(push(1, i ? &no : &yes), 0);
		tensor = take();
		assert_ok(tmesh_region_info(tmesh_tensor_region(tensor), &info, err));
		assert_int_equal(!!info.sealed, !i);
		tmesh_tensor_unref(tensor);
	}
}

UNIT_SET_UP(test_bad_seal)
{
	const bool yes = true;
	struct ffi_scalar scalar = {FFI_S64, (void *)&yes};
	struct host host;

	host_init(&host, "out", 1000);
	host_attr(&host, "seal", FFI_ATTR_SCALAR, &scalar);
	assert_int_equal(host_call(&host, tmesh_xla_push), FFI_INVALID_ARGUMENT);
	assert_non_null(strstr(host_error.text, "seal must be a bool"));
	scalar.dtype = FFI_PRED;
	assert_int_equal(host_call(&host, tmesh_xla_push), 0);
	assert_int_equal(host_call(&host, tmesh_xla_pop), FFI_INVALID_ARGUMENT);
	assert_non_null(strstr(host_error.text, "a pop has no attribute seal"));
}

/* Memory is back as soon as there is room again, and a refused push sent nothing. */
UNIT_SET_UP(test_limit)
{
	struct tmesh_tensor *tensor;

	tmesh_xla_limit(2 * COUNT * sizeof(*data) + 65536);
	assert_int_equal(push(1, NULL), 0);
	assert_int_equal(push(2, NULL), 0);
	assert_int_equal(push(3, NULL), FFI_RESOURCE_EXHAUSTED);
	assert_non_null(strstr(host_error.text, "max_bytes"));
	tensor = take();
	expect(tensor, 1);
	tmesh_tensor_unref(tensor);
	tensor = take();
	expect(tensor, 2);
	tmesh_tensor_unref(tensor);
	assert_ok(tmesh_xla_flush("out", 60000000000, err));
	assert_int_equal(push(4, NULL), 0);
	tensor = take();
	expect(tensor, 4);
	tmesh_tensor_unref(tensor);
}

UNIT_MAIN("tests", NULL, NULL)
