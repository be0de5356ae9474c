// SPDX-License-Identifier: MIT
/* Forks while another thread publishes to a slot and reads it. */
#include "unit.h"

#include <stdatomic.h>

#include <tmesh/slot.h>

#define FORKS 200

struct beside {
	struct tmesh_slot *slot;
	struct tmesh_slot_reader *reader;
	struct tmesh_bundle *bundle;
	atomic_bool over;
	atomic_int fault;
};

/* Publish and read. The list of values changes with each read. */
static void *publish_and_read(void *data)
{
	struct beside *beside = data;
	struct tmesh_slot_value *value;
	int rc = 0;

	while (!rc && !atomic_load(&beside->over)) {
		rc = tmesh_slot_publish(beside->slot, beside->bundle, NULL, NULL);
		if (!rc)
			rc = tmesh_slot_read(beside->reader, &value, NULL);
	}
	atomic_store(&beside->fault, rc);
	return NULL;
}

static struct tmesh_bundle *make_bundle(struct tmesh_ctx *ctx)
{
	const int64_t shape[] = {8};
	struct tmesh_bundle_entry entry = {.name = "a"};
	struct tmesh_bundle *bundle;

	assert_ok(
		tmesh_tensor_put(ctx, TMESH_UINT8, 1, shape, "8 bytes", NULL, &entry.tensor, err));
	assert_ok(tmesh_bundle_create(ctx, &entry, 1, NULL, &bundle, err));
	tmesh_tensor_unref(entry.tensor);
	return bundle;
}

/* A child closes the reader that it has inherited, and with it a value, whatever the thread did at
 * the time of the fork. */
UNIT_CTX(test_values)
{
	struct tmesh_ctx *ctx = *state;
	struct beside beside = {.bundle = make_bundle(ctx)};
	struct tmesh_slot_reader *reader;
	struct tmesh_slot_value *value;
	char token[TMESH_TOKEN_SIZE];
	pthread_t thread;
	int status;

	assert_ok(tmesh_slot_create(ctx, NULL, &beside.slot, err));
	assert_ok(tmesh_slot_token(beside.slot, token, err));
	assert_ok(tmesh_slot_open(ctx, token, &beside.reader, err));
	assert_ok(tmesh_slot_open(ctx, token, &reader, err));
	assert_ok(tmesh_slot_publish(beside.slot, beside.bundle, NULL, err));
	assert_ok(tmesh_slot_read(reader, &value, err));
	assert_int_equal(pthread_create(&thread, NULL, publish_and_read, &beside), 0);
	for (int i = 0; i < FORKS; i++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(600); /* ends a child that waits for ever */
			tmesh_slot_close(reader);
			unit_leave(0);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			fail_msg("the child ended with status %#x", (unsigned int)status);
	}
	atomic_store(&beside.over, true);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&beside.fault), 0);
	tmesh_slot_close(reader);
	tmesh_slot_close(beside.reader);
	tmesh_slot_unref(beside.slot);
	tmesh_bundle_unref(beside.bundle);
}

int main(void)
{
#ifdef __SANITIZE_ADDRESS__
	UNIT_SKIP_ALL("a child would inherit a lock of the sanitizer's allocator");
	return 0;
#else
	return UNIT_RUN("slot and fork", NULL, NULL);
#endif
}
