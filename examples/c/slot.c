/* SPDX-License-Identifier: MIT */
/* cc slot.c $(pkg-config --cflags --libs libtmesh-model) -o slot */
/*
 * A value that is replaced in one step. `slot` publishes each number of its input under a name.
 * `slot read`, in another process, prints each newer value until the publisher ends. It holds the
 * first value as long as it runs.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <tmesh/slot.h>

#define NAME "example"

static int publish(struct tmesh_ctx *ctx, struct tmesh_slot *slot, float number,
		   struct tmesh_error *err)
{
	struct tmesh_bundle_entry entry = {.name = "number"};
	struct tmesh_bundle *bundle;
	uint64_t generation;
	int rc = tmesh_tensor_put(ctx, TMESH_FLOAT32, 0, NULL, &number, NULL, &entry.tensor, err);

	if (rc)
		return rc;
	rc = tmesh_bundle_create(ctx, &entry, 1, NULL, &bundle, err);
	tmesh_tensor_unref(entry.tensor);
	if (rc)
		return rc;
	rc = tmesh_slot_publish(slot, bundle, &generation, err);
	tmesh_bundle_unref(bundle); /* the slot holds its value itself */
	if (!rc)
		printf("generation %llu\n", (unsigned long long)generation);
	fflush(stdout);
	return rc;
}

static int publish_all(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_slot_opts opts = {.size = sizeof(opts), .name = NAME};
	struct tmesh_slot *slot;
	float number;
	int rc = tmesh_slot_create(ctx, &opts, &slot, err);

	if (rc)
		return rc;
	while (!rc && scanf("%f", &number) == 1)
		rc = publish(ctx, slot, number, err);
	tmesh_slot_unref(slot);
	return rc;
}

static int print(struct tmesh_slot_value *value, struct tmesh_error *err)
{
	struct tmesh_tensor *tensor;
	float number;
	int rc = tmesh_bundle_tensor(tmesh_slot_value_bundle(value), 0, &tensor, err);

	if (rc)
		return rc;
	rc = tmesh_tensor_read(tensor, &number, sizeof(number), err);
	if (!rc)
		printf("generation %llu: %g\n",
		       (unsigned long long)tmesh_slot_value_generation(value), number);
	fflush(stdout);
	tmesh_tensor_unref(tensor);
	return rc;
}

/* Wait for a newer value. Return: 0; -EPIPE: there will be none. */
static int await(struct tmesh_slot_reader *reader, struct tmesh_error *err)
{
	struct pollfd due = {.fd = tmesh_slot_poll_fd(reader, err), .events = POLLIN};
	int changed = due.fd < 0 ? due.fd : 0;

	while (!changed) {
		poll(&due, 1, -1);
		changed = tmesh_slot_changed(reader);
	}
	return changed < 0 ? changed : 0;
}

static int read_all(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_slot_value *value, *first = NULL;
	struct tmesh_slot_reader *reader;
	int rc = tmesh_slot_open_named(ctx, NAME, &reader, err);

	if (rc)
		return rc;
	while (!rc) {
		rc = await(reader, err);
		if (rc == -EPIPE)
			break;
		if (!rc)
			rc = tmesh_slot_read(reader, &value, err); /* borrowed */
		if (!rc)
			rc = print(value, err);
		if (!rc && !first)
			first = tmesh_slot_value_ref(value); /* our own reference */
	}
	if (first && (!rc || rc == -EPIPE))
		rc = print(first, err);
	tmesh_slot_value_unref(first);
	tmesh_slot_close(reader);
	return rc;
}

int main(int argc, char **argv)
{
	struct tmesh_error err = {0};
	struct tmesh_ctx *ctx;
	int rc;

	if (argc > 2 || (argc == 2 && strcmp(argv[1], "read"))) {
		fprintf(stderr, "usage: slot [read]\n");
		return 2;
	}
	rc = tmesh_ctx_open(NULL, &ctx, &err);
	if (!rc) {
		rc = argc == 2 ? read_all(ctx, &err) : publish_all(ctx, &err);
		tmesh_ctx_unref(ctx);
	}
	if (rc)
		fprintf(stderr, "slot: %s\n", err.message);
	return rc ? 1 : 0;
}
