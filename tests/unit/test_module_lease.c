// SPDX-License-Identifier: MIT
/* Features of the module alone: leases that end, and memory that is taken back. */
#include <poll.h>
#include <time.h>

#include "failing.h"
#include "on_module.h"

static void wait_until(struct tmesh_region *region, enum tmesh_lease_status state)
{
	while (tmesh_lease_state(region) != state)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Zeros where that was asked for; and calls say ESTALE, whether they ask the kernel or not. */
UNIT(test_lease_lapses)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region = new_region(*state, PAGE), *lent;
	char token[TMESH_TOKEN_SIZE];
	uint8_t *addr, byte;
	void *again;

	map_of(region, RW)[0] = 7;
	assert_ok(tmesh_region_derive(region, TMESH_READ, &lent, err));
	addr = map_of(lent, TMESH_READ);
	assert_ok(tmesh_lease_set(lent, 20000 * MS, TMESH_TAKEN_ZERO, err));
	assert_refused(tmesh_lease_set(lent, 0, TMESH_TAKEN_ZERO, err), -EBUSY, "already");
	assert_refused(tmesh_region_token(lent, TMESH_READ, token, err), -EPERM, "lease");
	assert_int_equal(addr[0], 7);
	wait_until(lent, TMESH_LEASE_HAS_LAPSED);
	while (__atomic_load_n(addr, __ATOMIC_RELAXED))
		;
	assert_int_equal(tmesh_lease_touch(lent), -ESTALE);
	assert_refused(tmesh_region_read(lent, 0, &byte, 1, err), -ESTALE, "lease");
	assert_refused(tmesh_region_map(lent, TMESH_READ, &again, err), -ESTALE, "lease");
	assert_ok(tmesh_region_info(lent, &info, err));
	assert_true(info.lapsed && info.zeros);
	assert_int_equal(info.lease_ns, 20000 * MS);
	assert_int_equal(map_of(region, TMESH_READ)[0], 7);
	tmesh_region_unref(lent);
	tmesh_region_unref(region);
}

/* A context that asks for it never raises SIGBUS, and calls do not take zeros for contents. */
UNIT(test_taken_by_context)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .taken = TMESH_TAKEN_ZERO};
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region = new_region(*state, PAGE), *other, *writer, *pin;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx;
	uint8_t *addr, byte = 7;

	map_of(region, RW)[0] = 7;
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &other, err));
	addr = map_of(other, TMESH_READ);
	assert_int_equal(addr[0], 7);
	assert_ok(tmesh_region_token(region, RW, token, err));
	assert_ok(tmesh_region_open(ctx, token, RW, &writer, err));
	map_of(writer, RW);
	assert_ok(tmesh_region_write(writer, 0, &byte, 1, err));
	assert_ok(tmesh_region_revoke(region, err));
	assert_refused(tmesh_region_write(writer, 0, &byte, 1, err), -ESTALE, "taken back");
	tmesh_region_unref(writer);
	assert_int_equal(*(volatile uint8_t *)addr, 0);
	assert_refused(tmesh_region_read(other, 0, &byte, 1, err), -ESTALE, "revoked");
	tmesh_region_unref(other);
	tmesh_region_unref(region);
	/* Pinned memory is not taken. */
	region = new_region(ctx, PAGE);
	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_pin(region, &pin, err));
	assert_ok(tmesh_region_info(region, &info, err));
	assert_true(info.zeros);
	assert_ok(tmesh_region_info(pin, &info, err));
	assert_false(info.zeros);
	tmesh_region_unref(pin);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	opts.taken = (enum tmesh_taken)9;
	assert_refused(tmesh_ctx_open(&opts, &ctx, err), -EINVAL, "policy");
}

/* A lease that was not looked at says itself that the memory was taken. */
UNIT(test_taken_by_lease)
{
	struct tmesh_region *region = new_region(*state, PAGE), *lent;
	uint8_t byte = 7;

	map_of(region, RW)[0] = 7;
	assert_ok(tmesh_region_derive(region, TMESH_READ, &lent, err));
	assert_ok(tmesh_lease_set(lent, 600 * 1000 * MS, TMESH_TAKEN_ZERO, err));
	assert_int_equal(map_of(lent, TMESH_READ)[0], 7);
	assert_ok(tmesh_region_revoke(region, err));
	assert_refused(tmesh_region_read(lent, 0, &byte, 1, err), -ESTALE, "revoked");
	assert_int_equal(tmesh_lease_touch(lent), -ESTALE);
	tmesh_region_unref(lent);
	tmesh_region_unref(region);
}

/* How many mappings of this process a lease has. */
static unsigned int leases_mapped(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned int count = 0;
	char line[512];

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "[tmesh-lease]") != NULL;
	fclose(maps);
	return count;
}

UNIT(test_lease_goes)
{
	struct tmesh_region *region = new_region(*state, PAGE);

	assert_ok(tmesh_lease_set(region, 600 * 1000 * MS, TMESH_TAKEN_SIGBUS, err));
	assert_int_equal(tmesh_lease_touch(region), 0);
	assert_int_equal(leases_mapped(), 2);
	tmesh_region_unref(region);
	assert_int_equal(leases_mapped(), 0);
}

/* No address for a page of the lease, or no memory for what remembers it: nothing of it stays
 * mapped, and the next touch finds it. */
UNIT(test_lease_without_addresses)
{
	unsigned int addresses = 0;
	bool more = true;

	for (long n = 1; more; n++) {
		struct tmesh_region *region = new_region(*state, PAGE);
		int rc;

		assert_ok(tmesh_lease_set(region, 600 * 1000 * MS, TMESH_TAKEN_SIGBUS, err));
		failing_begin(n);
		rc = tmesh_lease_touch(region);
		failing_end(n, 0, NULL);
		more = failed;
		if (more) {
			addresses += !strcmp(failed, "mmap");
			assert_int_equal(rc, -ESTALE);
			assert_int_equal(leases_mapped(), 0);
			rc = tmesh_lease_touch(region);
		}
		assert_int_equal(rc, 0);
		assert_int_equal(leases_mapped(), 2);
		tmesh_region_unref(region);
	}
	assert_int_equal(addresses, 2);
}

/* One lease for what was made through the handle; a touch of any keeps all of it. */
UNIT(test_lease_is_shared)
{
	struct tmesh_region *region = new_region(*state, PAGE), *lent, *further;
	uint64_t end;

	assert_ok(tmesh_region_derive(region, TMESH_READ, &lent, err));
	assert_ok(tmesh_lease_set(lent, 10000 * MS, TMESH_TAKEN_SIGBUS, err));
	assert_ok(tmesh_region_derive(lent, TMESH_READ, &further, err));
	assert_int_equal(tmesh_lease_state(further), TMESH_LEASE_IS_LIVE);
	for (end = tmesh_now_ns() + 15000 * MS; tmesh_now_ns() < end;) {
		assert_int_equal(tmesh_lease_touch(further), 0);
		assert_int_equal(tmesh_lease_touch(lent), 0);
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	wait_until(lent, TMESH_LEASE_HAS_LAPSED);
	assert_int_equal(tmesh_lease_state(further), TMESH_LEASE_HAS_LAPSED);
	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_NONE);
	tmesh_region_unref(further);
	tmesh_region_unref(lent);
	tmesh_region_unref(region);
}

UNIT(test_lease_ends_with_a_process)
{
	struct tmesh_region *region = new_region(*state, PAGE);
	struct pollfd poller = {.fd = tmesh_region_fd(region)};
	pid_t pid = fork();
	int pidfd;

	if (pid == 0)
		for (;;)
			pause();
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_true(pidfd >= 0);
	assert_ok(tmesh_lease_bind(region, pidfd, 0, TMESH_TAKEN_SIGBUS, err));
	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_IS_LIVE);
	kill(pid, SIGKILL);
	assert_int_equal(poll(&poller, 1, -1), 1);
	assert_int_equal(poller.revents & (POLLHUP | POLLERR), POLLHUP | POLLERR);
	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_HAS_LAPSED);
	waitpid(pid, NULL, 0);
	tmesh_region_unref(region);
	region = new_region(*state, PAGE);
	assert_refused(tmesh_lease_bind(region, pidfd, 0, TMESH_TAKEN_SIGBUS, err), -ESRCH,
		       "ended");
	assert_refused(tmesh_lease_bind(region, -1, 0, TMESH_TAKEN_SIGBUS, err), -EBADF, "pidfd");
	assert_refused(
		tmesh_lease_bind(region, tmesh_region_fd(region), 0, TMESH_TAKEN_SIGBUS, err),
		-EINVAL, "pidfd");
	close(pidfd);
	tmesh_region_unref(region);
}

UNIT_MAIN("module_lease", unit_ctx_setup, unit_ctx_teardown)
