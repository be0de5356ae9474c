/* SPDX-License-Identifier: MIT */
/* Shared by the tests of kept regions: a keeper of the test's own (TMESH_KEEPER), and regions whose
 * bytes are all the same. */
#ifndef TMESH_UNIT_KEPT_H
#define TMESH_UNIT_KEPT_H

#include <poll.h>

#include "keeper.h"
#include "unit.h"

#define MIB (1u << 20)

static inline pid_t keeper_pid(struct tmesh_ctx *ctx)
{
	struct tmesh_keeper_info info = {.size = sizeof(info)};

	assert_ok(tmesh_keeper_info(ctx, &info, err));
	return info.pid;
}

/* The keeper is no child of ours: it is gone when its pidfd says so. */
static inline void end_keeper(struct tmesh_ctx *ctx, int signal)
{
	pid_t pid = keeper_pid(ctx);
	struct pollfd poller = {.events = POLLIN};

	if (!pid)
		return;
	poller.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	/* One that keeps nothing has ended by itself, on a machine that has much to do. */
	if (poller.fd < 0 && errno == ESRCH)
		return;
	assert_true(poller.fd >= 0);
	assert_true(!kill(pid, signal) || errno == ESRCH);
	assert_int_equal(poll(&poller, 1, 600000), 1);
	close(poller.fd);
}

static inline int setup(void **state)
{
	unsetenv("TMESH_KEEPER_BYTES");
	return unit_ctx_setup(state);
}

static inline int teardown(void **state)
{
	end_keeper(*state, SIGTERM);
	return unit_ctx_teardown(state);
}

static inline struct tmesh_region *sealed(struct tmesh_ctx *ctx, uint64_t bytes, uint8_t fill)
{
	struct tmesh_region *region;
	uint8_t *memory;

	assert_ok(tmesh_region_create(ctx, bytes, NULL, &region, err));
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, (void **)&memory, err));
	memset(memory, fill, bytes);
	tmesh_region_unmap(region, TMESH_READ | TMESH_WRITE);
	assert_ok(tmesh_region_seal(region, err));
	return region;
}

/* As above, for memory that no other process looks at. A search for regions opens each file with a
 * region's name, and holds it for a moment. For tests that say who holds what. */
static inline struct tmesh_region *unseen(struct tmesh_ctx *ctx, uint64_t bytes, uint8_t fill)
{
	int fd = memfd_create("unseen", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct tmesh_region *region;
	uint8_t *memory;

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(memory != MAP_FAILED);
	memset(memory, fill, bytes);
	munmap(memory, bytes);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
	assert_ok(tmesh_region_from_memfd(ctx, fd, 0, NULL, &region, err));
	close(fd);
	return region;
}

static inline void keep_unseen(struct tmesh_ctx *ctx, const char *name, uint64_t bytes,
			       uint8_t fill)
{
	struct tmesh_region *region = unseen(ctx, bytes, fill);

	assert_ok(tmesh_keep(ctx, name, &region, 1, NULL, err));
	tmesh_region_unref(region);
}

static inline void keep_new(struct tmesh_ctx *ctx, const char *name, uint64_t bytes, uint8_t fill)
{
	struct tmesh_region *region = sealed(ctx, bytes, fill);

	assert_ok(tmesh_keep(ctx, name, &region, 1, NULL, err));
	tmesh_region_unref(region);
}

static inline struct tmesh_region *open_one(struct tmesh_ctx *ctx, const char *name)
{
	struct tmesh_region **regions, *region;
	size_t count;

	assert_ok(tmesh_kept_open(ctx, name, TMESH_KEPT_OWN, TMESH_READ, &regions, &count, err));
	assert_int_equal(count, 1);
	region = regions[0];
	free(regions);
	return region;
}

static inline void check_fill(struct tmesh_region *region, uint8_t fill)
{
	uint8_t *memory;

	assert_true(tmesh_region_is_sealed(region));
	assert_ok(tmesh_region_map(region, TMESH_READ, (void **)&memory, err));
	for (uint64_t i = 0; i < tmesh_region_bytes(region); i += 511)
		assert_int_equal(memory[i], fill);
	tmesh_region_unmap(region, TMESH_READ);
}

static inline void check_kept(struct tmesh_ctx *ctx, const char *name, uint8_t fill)
{
	struct tmesh_region *region = open_one(ctx, name);

	check_fill(region, fill);
	tmesh_region_unref(region);
}

static inline bool is_kept(struct tmesh_ctx *ctx, const char *name)
{
	struct tmesh_region **regions;
	size_t count;
	int rc = tmesh_kept_open(ctx, name, TMESH_KEPT_OWN, TMESH_READ, &regions, &count, NULL);

	if (rc) {
		assert_int_equal(rc, -ENOENT);
		return false;
	}
	while (count)
		tmesh_region_unref(regions[--count]);
	free(regions);
	return true;
}

#endif /* TMESH_UNIT_KEPT_H */
