// SPDX-License-Identifier: MIT
/* Arguments that are NULL where the call needs something: it is named, and nothing happens. */
#include "unit.h"

struct here {
	struct tmesh_ctx *ctx;
	struct tmesh_arena *arena;
	struct tmesh_tensor *tensor;
	struct tmesh_region *region;
	struct tmesh_bundle *bundle;
	struct tmesh_channel *sender, *receiver;
	char token[TMESH_TOKEN_SIZE]; /* of the channel */
	struct tmesh_ref ref;
	struct tmesh_layout layout;
	int64_t shape[2];
	void *room; /* of zeros, for all that is filled */
};

#define NULL_ROOM 65536u

/* A call with one pointer that is NULL. null_calls.py makes the table of all of them. */
struct null_call {
	const char *function, *parameter;
	bool says; /* it has a struct tmesh_error */
	int (*call)(struct here *here, struct tmesh_error *err);
};

#include "null_calls.h"

static const float elements[6];

static int setup(void **state)
{
	struct tmesh_bundle_entry entry = {.name = "a"};
	struct here *here = calloc(1, sizeof(*here));
	char text[TMESH_REF_SIZE];

	here->shape[0] = 2;
	here->shape[1] = 3;
	here->room = calloc(1, NULL_ROOM);
	assert_ok(tmesh_ctx_open(NULL, &here->ctx, err));
	assert_ok(tmesh_arena_create(here->ctx, 4096, NULL, &here->arena, err));
	assert_ok(tmesh_tensor_put(here->ctx, TMESH_FLOAT32, 2, here->shape, elements, NULL,
				   &here->tensor, err));
	here->region = tmesh_tensor_region(here->tensor);
	here->layout = *tmesh_tensor_layout(here->tensor);
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
	tmesh_arena_unref(here->arena);
	tmesh_ctx_unref(here->ctx);
	free(here->room);
	free(here);
	return 0;
}

static const struct null_call *now;

static void crashed(int signal)
{
	dprintf(STDOUT_FILENO, "# %s() crashes: %s is NULL\n", now->function, now->parameter);
	_exit(1);
}

static bool is_wrong(struct here *here)
{
	static const char zeros[NULL_ROOM];
	struct tmesh_error err = {0};
	int rc = now->call(here, &err);

	if (rc != -EINVAL)
		printf("# %s() returns %d: %s is NULL\n", now->function, rc, now->parameter);
	else if (now->says && (err.code != rc || !strstr(err.message, now->parameter)))
		printf("# %s() says \"%s\" (%d): %s is NULL\n", now->function, err.message,
		       err.code, now->parameter);
	else if (memcmp(here->room, zeros, NULL_ROOM))
		printf("# %s() fills something: %s is NULL\n", now->function, now->parameter);
	else
		return false;
	return true;
}

/* Each call of the headers refuses NULL for each pointer that may not be NULL. */
UNIT_SET_UP(test_each_pointer)
{
	const struct sigaction act = {.sa_handler = crashed};
	size_t count = sizeof(null_calls) / sizeof(*null_calls), wrong = 0;
	struct sigaction before;

	sigaction(SIGSEGV, &act, &before);
	for (size_t i = 0; i < count; i++) {
		now = &null_calls[i];
		wrong += is_wrong(*state);
	}
	sigaction(SIGSEGV, &before, NULL);
	assert_true(count > 200);
	assert_int_equal(wrong, 0);
}

/* NULL where nothing is to be read or written, and NULL inside a structure. */
UNIT_SET_UP(test_nothing)
{
	const int64_t none[] = {0};
	struct here *here = *state;
	struct tmesh_gather_extent extent = {.bytes = 4096};
	struct tmesh_region *region = NULL;
	struct tmesh_tensor *tensor;

	assert_int_equal(tmesh_ctx_open(NULL, NULL, NULL), -EINVAL);
	assert_refused(tmesh_region_gather(here->ctx, &extent, 1, TMESH_READ, NULL, &region, err),
		       -EINVAL, "extents[i].region is NULL");
	assert_null(region);
	assert_ok(tmesh_region_create(here->ctx, 1, NULL, &region, err));
	assert_ok(tmesh_region_write(region, 0, NULL, 0, err));
	tmesh_region_unref(region);
	assert_ok(tmesh_tensor_put(here->ctx, TMESH_INT8, 1, none, NULL, NULL, &tensor, err));
	assert_ok(tmesh_tensor_read(tensor, NULL, 0, err));
	tmesh_tensor_unref(tensor);
}

UNIT_MAIN("null", NULL, NULL)
