// SPDX-License-Identifier: MIT
/* Leases, which on memfds the library keeps itself; and the calls that memfds refuse, with their
 * reason. */
#include <time.h>

#include "unit.h"

#define MS UINT64_C(1000000)
#define RW (TMESH_READ | TMESH_WRITE)

static struct tmesh_region *region_of(void *ctx)
{
	struct tmesh_region *region = new_region(ctx, 4096);

	return region;
}

static void wait_until_lapsed(struct tmesh_region *region)
{
	while (tmesh_lease_state(region) == TMESH_LEASE_IS_LIVE)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

UNIT(test_none)
{
	struct tmesh_region *region = region_of(*state);

	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_NONE);
	assert_int_equal(tmesh_lease_touch(region), 0);
	/* That there was none is no reason for none to come. */
	assert_ok(tmesh_lease_set(region, 0, TMESH_TAKEN_SIGBUS, err));
	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_IS_LIVE);
	tmesh_region_unref(region);
}

UNIT(test_periods)
{
	static const uint64_t bad[] = {1, 10 * MS - 1, 3600000 * MS + 1, UINT64_MAX};
	struct tmesh_region *region = region_of(*state);

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_refused(tmesh_lease_set(region, bad[i], TMESH_TAKEN_SIGBUS, err), -EINVAL,
			       "10 ms");
	assert_refused(tmesh_lease_set(region, 0, (enum tmesh_taken)7, err), -EINVAL, "policy");
	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_NONE);
	assert_ok(tmesh_lease_set(region, 0, TMESH_TAKEN_ZERO, err));
	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_IS_LIVE);
	assert_refused(tmesh_lease_set(region, 0, TMESH_TAKEN_ZERO, err), -EBUSY, "already");
	tmesh_region_unref(region);
}

UNIT(test_pinning)
{
	struct tmesh_region *region = region_of(*state), *pin;

	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_pin(region, &pin, err));
	assert_refused(tmesh_lease_set(pin, 0, TMESH_TAKEN_SIGBUS, err), -EINVAL, "pinning");
	tmesh_region_unref(pin);
	tmesh_region_unref(region);
}

/* A lease that was set at @begun is alive: so it says, or it need not be, on a machine that has
 * much to do. */
static bool is_alive(struct tmesh_region *region, uint64_t period_ns, uint64_t begun)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	bool alive = tmesh_lease_touch(region) == 0;

	assert_ok(tmesh_region_info(region, &info, err));
	if (tmesh_now_ns() - begun >= period_ns)
		return false;
	assert_true(alive);
	assert_false(info.lapsed);
	return true;
}

/* A lapsed handle is of no use any more; what it had mapped is readable until it is unmapped. */
UNIT(test_lapse)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region = NULL, *other;
	uint64_t period = 500 * MS, begun;
	char token[TMESH_TOKEN_SIZE];
	uint8_t byte = 1;
	void *addr;
	int fd;

	do {
		tmesh_region_unref(region);
		period *= 2;
		region = region_of(*state);
		assert_ok(tmesh_region_map(region, RW, &addr, err));
		begun = tmesh_now_ns();
		assert_ok(tmesh_lease_set(region, period, TMESH_TAKEN_ZERO, err));
	} while (!is_alive(region, period, begun));
	wait_until_lapsed(region);
	assert_ok(tmesh_region_info(region, &info, err));
	assert_true(info.lapsed);
	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_HAS_LAPSED);
	assert_int_equal(tmesh_lease_touch(region), -ESTALE);
	assert_refused(tmesh_region_write(region, 0, &byte, 1, err), -ESTALE, "lease");
	assert_refused(tmesh_region_read(region, 0, &byte, 1, err), -ESTALE, "lease");
	assert_refused(tmesh_region_map(region, TMESH_READ, &addr, err), -ESTALE, "lease");
	assert_refused(tmesh_region_map(region, RW, &addr, err), -ESTALE, "lease");
	assert_refused(tmesh_region_derive(region, TMESH_READ, &other, err), -ESTALE, "lease");
	assert_refused(tmesh_region_token(region, TMESH_READ, token, err), -ESTALE, "lease");
	assert_refused(tmesh_region_seal(region, err), -ESTALE, "lease");
	assert_refused(tmesh_region_export_dmabuf(region, 0, 0, RW, &fd, err), -ESTALE, "lease");
	assert_int_equal(*(volatile uint8_t *)addr, 0);
	tmesh_region_unref(region);
}

/* Touches keep it alive beyond its period; a bracket that it survives is worth something. */
UNIT(test_touched)
{
	struct tmesh_region *region = NULL;
	uint64_t period = 500 * MS, begun, last;
	bool alive;

	/* Kept from running for a period this process has not touched it. */
	do {
		tmesh_region_unref(region);
		period *= 2;
		region = region_of(*state);
		begun = last = tmesh_now_ns();
		assert_ok(tmesh_lease_set(region, period, TMESH_TAKEN_SIGBUS, err));
		do {
			uint64_t now = tmesh_now_ns();

			alive = is_alive(region, period, last);
			last = now;
			nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
		} while (alive && last - begun < period + period / 2);
	} while (!alive);
	tmesh_region_unref(region);
}

static void *touch_for_a_while(void *region)
{
	uint64_t end = tmesh_now_ns() + 200 * MS;
	intptr_t rc = 0;

	while (!rc && tmesh_now_ns() < end)
		rc = tmesh_lease_touch(region);
	return (void *)rc;
}

/* The touch of one thread may fall between any two steps of another's. */
UNIT(test_touched_at_once)
{
	struct tmesh_region *region = region_of(*state);
	pthread_t threads[4];
	void *rc;

	assert_ok(tmesh_lease_set(region, 3600000 * MS, TMESH_TAKEN_SIGBUS, err));
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, touch_for_a_while, region), 0);
	for (size_t i = 0; i < 4; i++) {
		pthread_join(threads[i], &rc);
		assert_null(rc);
	}
	tmesh_region_unref(region);
}

/* Memory with a lease does not come back from the pool with it. */
UNIT(test_not_pooled)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .region_pool_bytes = 1 << 20};
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	region = region_of(ctx);
	assert_ok(tmesh_lease_set(region, 10 * MS, TMESH_TAKEN_SIGBUS, err));
	tmesh_region_unref(region);
	region = region_of(ctx);
	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_NONE);
	assert_int_equal(tmesh_stats(ctx, &stats), 0);
	assert_int_equal(stats.region_pool_hits, 0);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

UNIT(test_inherited)
{
	struct tmesh_region *region = region_of(*state);
	pid_t pid = fork();

	if (pid == 0)
		unit_leave(tmesh_lease_set(region, 0, TMESH_TAKEN_SIGBUS, NULL) == -EPERM &&
					   tmesh_lease_touch(region) == -EPERM
				   ? 0
				   : 1);
	join_child(pid);
	tmesh_region_unref(region);
}

/* Without the module a lease is the handle's alone. */
static void test_not_shared(void **state)
{
	struct tmesh_region *region = NULL, *derived = NULL, *opened;
	uint64_t period = 500 * MS, begun;
	char token[TMESH_TOKEN_SIZE];
	uint8_t byte;
	int rc;

	/* The refusals of a lapsed handle, if this process was kept from running. */
	do {
		tmesh_region_unref(derived);
		tmesh_region_unref(region);
		derived = NULL;
		period *= 2;
		region = region_of(*state);
		begun = tmesh_now_ns();
		assert_ok(tmesh_lease_set(region, period, TMESH_TAKEN_SIGBUS, err));
		rc = tmesh_region_derive(region, TMESH_READ, &derived, NULL);
		if (!rc)
			rc = tmesh_region_token(region, TMESH_READ, token, NULL);
	} while (rc == -ESTALE && tmesh_now_ns() - begun >= period);
	assert_int_equal(rc, 0);
	wait_until_lapsed(region);
	assert_int_equal(tmesh_lease_state(derived), TMESH_LEASE_NONE);
	assert_ok(tmesh_region_read(derived, 0, &byte, 1, err));
	assert_ok(tmesh_region_open(*state, token, TMESH_READ, &opened, err));
	tmesh_region_unref(opened);
	tmesh_region_unref(derived);
	tmesh_region_unref(region);
}

/* Each says that it needs the module, after it has checked what it was given. */
static void test_needs_module(void **state)
{
	struct tmesh_region *region = region_of(*state), *made = NULL;
	void *page;
	int fd = -1;

	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(page != MAP_FAILED);
	assert_refused(tmesh_region_from_user(*state, page, 4096, TMESH_READ, NULL, &made, err),
		       -EOPNOTSUPP, "module");
	assert_refused(tmesh_region_from_dmabuf(*state, 0, NULL, &made, err), -EOPNOTSUPP,
		       "module");
	assert_refused(tmesh_region_opaque_fd(region, &fd, err), -EOPNOTSUPP, "no descriptor");
	assert_refused(tmesh_region_revoke(region, err), -EOPNOTSUPP, "memory of a memfd");
	assert_ok(tmesh_region_derive(region, TMESH_READ, &made, err));
	assert_refused(tmesh_fence_signal(made, 1, err), -EACCES, "write");
	assert_refused(tmesh_fence_wait(made, 1, 0, NULL, err), -EOPNOTSUPP, "fences need");
	assert_refused(tmesh_region_gather(*state, &(struct tmesh_gather_extent){.region = made}, 1,
					   TMESH_WRITE, NULL, &region, err),
		       -EINVAL, "rights");
	assert_refused(tmesh_lease_bind(made, 0, 0, TMESH_TAKEN_SIGBUS, err), -EOPNOTSUPP,
		       "only the module");
	tmesh_region_unref(made);
	assert_int_equal(fd, -1);
	munmap(page, 4096);
	tmesh_region_unref(region);
}

UNIT(test_bad_sources)
{
	struct tmesh_region *region = region_of(*state), *reader, *made = NULL;
	struct tmesh_gather_extent extent = {.region = region, .bytes = 4096};
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_HUGE};
	void *aligned = (void *)0x10000;

	assert_refused(tmesh_region_from_user(*state, aligned, 0, TMESH_READ, NULL, &made, err),
		       -EINVAL, "whole pages");
	assert_refused(tmesh_region_from_user(*state, aligned, 4097, TMESH_READ, NULL, &made, err),
		       -EINVAL, "whole pages");
	assert_refused(tmesh_region_from_user(*state, (void *)1, 4096, RW, NULL, &made, err),
		       -EINVAL, "whole pages");
	assert_refused(
		tmesh_region_from_user(*state, aligned, (uint64_t)-4096, RW, NULL, &made, err),
		-EINVAL, "beyond");
	assert_refused(tmesh_region_from_user(*state, aligned, 4096, TMESH_WRITE, NULL, &made, err),
		       -EINVAL, "rights");
	assert_refused(tmesh_region_from_user(*state, aligned, 4096, RW, &opts, &made, err),
		       -EINVAL, "GID");
	opts.size = 3;
	assert_refused(tmesh_region_from_fd(*state, 0, 1, &opts, &made, err), -EINVAL, "size");
	assert_refused(tmesh_region_from_fd(*state, 0, 0, NULL, &made, err), -EINVAL, "bytes");
	assert_refused(tmesh_region_gather(*state, &extent, 0, TMESH_READ, NULL, &made, err),
		       -EINVAL, "parts");
	assert_refused(
		tmesh_region_gather(*state, &extent, (1 << 20) + 1, TMESH_READ, NULL, &made, err),
		-EINVAL, "parts");
	assert_ok(tmesh_region_derive(region, TMESH_READ, &reader, err));
	extent.region = reader;
	assert_refused(tmesh_region_gather(*state, &extent, 1, RW, NULL, &made, err), -EACCES,
		       "write");
	assert_null(made);
	tmesh_region_unref(reader);
	tmesh_region_unref(region);
}

int main(void)
{
	const struct CMUnitTest without[] = {TEST(test_needs_module), TEST(test_not_shared)};

	return UNIT_RUN("lease", unit_ctx_setup, unit_ctx_teardown) +
	       cmocka_run_group_tests_name("without the module", without, unit_memfd_ctx_setup,
					   unit_ctx_teardown);
}
