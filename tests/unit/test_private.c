// SPDX-License-Identifier: MIT
/* Private views: writes to one are the writer's own, and go nowhere else. */
#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)
#define PAGE 4096
#define BYTES (8 * PAGE)

static struct tmesh_region *sealed(struct tmesh_ctx *ctx)
{
	struct tmesh_region *region;
	uint8_t bytes[BYTES];

	for (size_t i = 0; i < BYTES; i++)
		bytes[i] = (uint8_t)(i / PAGE + 1);
	assert_ok(tmesh_region_create(ctx, BYTES, NULL, &region, err));
	assert_ok(tmesh_region_write(region, 0, bytes, BYTES, err));
	assert_ok(tmesh_region_seal(region, err));
	return region;
}

static void view_of(struct tmesh_region *region, struct tmesh_region **view, uint8_t **at)
{
	assert_ok(tmesh_region_private(region, view, err));
	assert_ok(tmesh_region_map(*view, RW, (void **)at, err));
}

/* Return the rights of the mapping at @at, as the kernel shows them. */
static const char *rights_of(const void *at)
{
	static char prot[5];
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long from, to;
	char line[512];

	strcpy(prot, "none");
	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= (uintptr_t)at &&
		    (uintptr_t)at < to)
			sscanf(line, "%*s %4s", prot);
	if (maps)
		fclose(maps);
	return prot;
}

UNIT(test_writes_are_ones_own)
{
	struct tmesh_region *region = sealed(*state), *view;
	uint8_t *a, *b, byte = 55;

	assert_ok(tmesh_region_private(region, &view, err));
	assert_ok(tmesh_region_write(view, 5 * PAGE, &byte, 1, err));
	/* The module's handles are not read by descriptor. */
	if (!unit_on_kernel()) {
		assert_int_equal(pread(tmesh_region_fd(view), &byte, 1, 5 * PAGE), 1);
		assert_int_equal(byte, 6);
	}
	tmesh_region_unref(view);
	/* One that was mapped to read at first, and only for that, can be written to all the same,
	 * where it is. */
	assert_ok(tmesh_region_private(region, &view, err));
	assert_ok(tmesh_region_map(view, TMESH_READ, (void **)&a, err));
	assert_string_equal(rights_of(a), "r--p");
	assert_ok(tmesh_region_read(view, 5 * PAGE, &byte, 1, err));
	assert_int_equal(byte, 6);
	assert_string_equal(rights_of(a), "r--p");
	assert_ok(tmesh_region_map(view, RW, (void **)&b, err));
	assert_ptr_equal(a, b);
	assert_string_equal(rights_of(a), "rw-p");
	b[0] = 9;
	assert_int_equal(a[0], 9);
	assert_ok(tmesh_region_map(view, TMESH_READ, (void **)&b, err));
	assert_int_equal(b[0], 9);
	tmesh_region_unref(view);
	/* The library's own write does the same. */
	assert_ok(tmesh_region_private(region, &view, err));
	assert_ok(tmesh_region_map(view, TMESH_READ, (void **)&a, err));
	byte = 77;
	assert_ok(tmesh_region_write(view, PAGE, &byte, 1, err));
	assert_int_equal(a[PAGE], 77);
	tmesh_region_unref(view);
	assert_ok(tmesh_region_create(*state, BYTES, NULL, &view, err));
	assert_refused(tmesh_region_private(view, &(struct tmesh_region *){NULL}, err), -EINVAL,
		       "others may still write");
	tmesh_region_unref(view);
	tmesh_region_unref(region);
}

UNIT(test_it_goes_nowhere)
{
	const struct tmesh_layout layout = {
		.dtype = TMESH_UINT8, .ndim = 1, .shape = {1}, .strides = {1}};
	struct tmesh_region *region = sealed(*state), *view, *out;
	struct tmesh_message message = {0};
	struct tmesh_channel *channel;
	char token[TMESH_TOKEN_SIZE];
	int fd = -7, pair[2];
	uint8_t *at;

	view_of(region, &view, &at);
	at[0] = 9;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_refused(tmesh_region_token(view, TMESH_READ, token, err), -EOPNOTSUPP, "alone");
	assert_refused(tmesh_region_derive(view, TMESH_READ, &out, err), -EOPNOTSUPP, "alone");
	assert_refused(tmesh_region_pin(view, &out, err), -EOPNOTSUPP, "alone");
	assert_refused(tmesh_region_private(view, &out, err), -EOPNOTSUPP, "alone");
	assert_refused(tmesh_region_seal(view, err), -EOPNOTSUPP, "alone");
	assert_refused(tmesh_region_send(view, pair[0], TMESH_READ, err), -EOPNOTSUPP, "alone");
	assert_refused(tmesh_region_export_dmabuf(view, 0, 0, RW, &fd, err), -EOPNOTSUPP, "alone");
	assert_refused(tmesh_region_revoke(view, err), -EOPNOTSUPP, "alone");
	assert_refused(tmesh_lease_set(view, 1000000000, TMESH_TAKEN_SIGBUS, err), -EOPNOTSUPP,
		       "alone");
	assert_int_equal(fd, -7);
	assert_ok(tmesh_tensor_wrap(view, &layout, &message.tensor, err));
	assert_ok(tmesh_channel_create(*state, TMESH_CHANNEL_SEND, NULL, &channel, err));
	assert_refused(tmesh_channel_try_send(channel, &message, err), -EOPNOTSUPP, "alone");
	tmesh_channel_unref(channel);
	tmesh_tensor_unref(message.tensor);
	close(pair[0]);
	close(pair[1]);
	tmesh_region_unref(view);
	tmesh_region_unref(region);
}

UNIT(test_a_child_has_its_own)
{
	struct tmesh_region *region = sealed(*state), *view;
	uint8_t *at;
	pid_t pid;

	view_of(region, &view, &at);
	at[0] = 10;
	pid = fork();
	if (!pid) {
		at[0]++;
		at[PAGE] = 44;
		unit_leave(at[0] == 11 && at[PAGE] == 44 ? 0 : 1);
	}
	join_child(pid);
	assert_int_equal(at[0], 10);
	assert_int_equal(at[PAGE], 2);
	tmesh_region_unref(view);
	tmesh_region_unref(region);
}

UNIT_MAIN("tests", unit_ctx_setup, unit_ctx_teardown)
