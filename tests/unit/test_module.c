// SPDX-License-Identifier: MIT
/* What only the module can do: leases that end, memory that comes back, imports, views, fences. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "unit.h"

#include <tmesh/hold.h>

#define MS UINT64_C(1000000)
#define RW (TMESH_READ | TMESH_WRITE)
#define PAGE 4096u

#ifndef MADV_HWPOISON
#define MADV_HWPOISON 100
#endif

static struct tmesh_region *region_of(void *ctx, uint64_t bytes)
{
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(ctx, bytes, NULL, &region, err));
	return region;
}

static uint8_t *map_of(struct tmesh_region *region, uint32_t rights)
{
	void *addr;

	assert_ok(tmesh_region_map(region, rights, &addr, err));
	return addr;
}

static void wait_until(struct tmesh_region *region, enum tmesh_lease_status state)
{
	while (tmesh_lease_state(region) != state)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Zeros where that was asked for; and calls say ESTALE, whether they ask the kernel or not. */
static void test_lease_lapses(void **state)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region = region_of(*state, PAGE), *lent;
	char token[TMESH_TOKEN_SIZE];
	uint8_t *addr, byte;
	void *again;

	map_of(region, RW)[0] = 7;
	assert_ok(tmesh_region_derive(region, TMESH_READ, &lent, err));
	addr = map_of(lent, TMESH_READ);
	assert_ok(tmesh_lease_set(lent, 3000 * MS, TMESH_TAKEN_ZERO, err));
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
	assert_int_equal(info.lease_ns, 3000 * MS);
	assert_int_equal(map_of(region, TMESH_READ)[0], 7);
	tmesh_region_unref(lent);
	tmesh_region_unref(region);
}

/* A context that asks for it never raises SIGBUS, and calls do not take zeros for contents. */
static void test_taken_by_context(void **state)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .taken = TMESH_TAKEN_ZERO};
	struct tmesh_region *region = region_of(*state, PAGE), *other, *writer;
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
	tmesh_ctx_unref(ctx);
	tmesh_region_unref(region);
	opts.taken = (enum tmesh_taken)9;
	assert_refused(tmesh_ctx_open(&opts, &ctx, err), -EINVAL, "policy");
}

static struct tmesh_region *reopen(void **state, struct tmesh_tensor *tensor)
{
	struct tmesh_region *other;
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_region_token(tmesh_tensor_region(tensor), TMESH_READ | TMESH_MANAGE, token,
				     err));
	assert_ok(tmesh_region_open(*state, token, TMESH_READ | TMESH_MANAGE, &other, err));
	return other;
}

/* An arena whose region others have taken back, or sealed, goes on in a new one. */
static void test_arena_goes_on(void **state)
{
	struct tmesh_region_opts in = {.size = sizeof(in)};
	struct tmesh_tensor *tensors[3];
	struct tmesh_region *other;
	int64_t shape[] = {5};

	assert_ok(tmesh_arena_create(*state, 0, NULL, &in.arena, err));
	assert_ok(tmesh_tensor_create(*state, TMESH_UINT8, 1, shape, &in, &tensors[0], err));
	other = reopen(state, tensors[0]);
	assert_ok(tmesh_region_seal(other, err));
	tmesh_region_unref(other);
	for (int i = 1; i < 3; i++) {
		assert_ok(tmesh_tensor_put(*state, TMESH_UINT8, 1, shape, "bytes", &in, &tensors[i],
					   err));
		assert_ptr_not_equal(tmesh_tensor_region(tensors[i]),
				     tmesh_tensor_region(tensors[i - 1]));
		other = reopen(state, tensors[i]);
		assert_ok(tmesh_region_revoke(other, err));
		tmesh_region_unref(other);
	}
	for (int i = 0; i < 3; i++)
		tmesh_tensor_unref(tensors[i]);
	tmesh_arena_unref(in.arena);
}

/* One lease for what was made through the handle; a touch of any keeps all of it. */
static void test_lease_is_shared(void **state)
{
	struct tmesh_region *region = region_of(*state, PAGE), *lent, *further;
	uint64_t end;

	assert_ok(tmesh_region_derive(region, TMESH_READ, &lent, err));
	assert_ok(tmesh_lease_set(lent, 500 * MS, TMESH_TAKEN_SIGBUS, err));
	assert_ok(tmesh_region_derive(lent, TMESH_READ, &further, err));
	assert_int_equal(tmesh_lease_state(further), TMESH_LEASE_IS_LIVE);
	for (end = tmesh_now_ns() + 1000 * MS; tmesh_now_ns() < end;) {
		assert_int_equal(tmesh_lease_touch(further), 0);
		assert_int_equal(tmesh_lease_touch(lent), 0);
	}
	wait_until(lent, TMESH_LEASE_HAS_LAPSED);
	assert_int_equal(tmesh_lease_state(further), TMESH_LEASE_HAS_LAPSED);
	assert_int_equal(tmesh_lease_state(region), TMESH_LEASE_NONE);
	tmesh_region_unref(further);
	tmesh_region_unref(lent);
	tmesh_region_unref(region);
}

static void test_lease_ends_with_a_process(void **state)
{
	struct tmesh_region *region = region_of(*state, PAGE);
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
	region = region_of(*state, PAGE);
	assert_refused(tmesh_lease_bind(region, pidfd, 0, TMESH_TAKEN_SIGBUS, err), -ESRCH,
		       "ended");
	assert_refused(tmesh_lease_bind(region, -1, 0, TMESH_TAKEN_SIGBUS, err), -EBADF, "pidfd");
	assert_refused(
		tmesh_lease_bind(region, tmesh_region_fd(region), 0, TMESH_TAKEN_SIGBUS, err),
		-EINVAL, "pidfd");
	close(pidfd);
	tmesh_region_unref(region);
}

/* A page in a pipe is in use, as one that a device writes to. */
static void test_reclaim(void **state)
{
	struct tmesh_reclaim_report report = {.size = sizeof(report)};
	struct tmesh_region *region = region_of(*state, 64 * PAGE);
	struct iovec iov = {.iov_base = map_of(region, TMESH_READ) + PAGE, .iov_len = PAGE};
	char page[PAGE];
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(vmsplice(ends[1], &iov, 1, 0), PAGE);
	assert_refused(tmesh_region_reclaim(region, 50 * MS, &report, err), -ETIMEDOUT, "in use");
	assert_in_range(report.pinned_bytes, PAGE, 64 * PAGE); /* in whole folios */
	assert_int_equal(report.attachments, 0);
	assert_int_equal(read(ends[0], page, PAGE), PAGE);
	assert_ok(tmesh_region_reclaim(region, 60000 * MS, &report, err));
	assert_int_equal(report.pinned_bytes, 0);
	assert_refused(tmesh_region_revoke(region, err), -ESTALE, "revoked");
	close(ends[0]);
	close(ends[1]);
	tmesh_region_unref(region);
}

static void test_reclaim_names_pins(void **state)
{
	struct tmesh_region *region = region_of(*state, PAGE), *pin;

	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_pin(region, &pin, err));
	assert_refused(tmesh_region_reclaim(region, 0, NULL, err), -EBUSY, "pinned by 1");
	tmesh_region_unref(pin);
	assert_ok(tmesh_region_reclaim(region, 60000 * MS, NULL, err));
	tmesh_region_unref(region);
}

static void test_user_memory(void **state)
{
	uint8_t *pages =
		mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region;
	void *addr;
	int fd;

	assert_true(pages != MAP_FAILED);
	assert_ok(tmesh_region_from_user(*state, pages, 4 * PAGE, RW, NULL, &region, err));
	assert_ok(tmesh_region_info(region, &info, err));
	assert_int_equal(info.backing, TMESH_BACKED_BY_USER);
	assert_refused(tmesh_region_map(region, TMESH_READ, &addr, err), -EOPNOTSUPP, "");
	assert_refused(tmesh_region_seal(region, err), -EOPNOTSUPP, "");
	assert_ok(tmesh_region_export_dmabuf(region, 0, 0, RW, &fd, err));
	addr = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	if (addr != MAP_FAILED) {
		pages[0] = 9;
		assert_int_equal(*(volatile uint8_t *)addr, 9);
		munmap(addr, PAGE);
	}
	close(fd);
	tmesh_region_unref(region);
	assert_int_equal(mprotect(pages + PAGE, PAGE, PROT_READ), 0);
	assert_refused(tmesh_region_from_user(*state, pages, 4 * PAGE, RW, NULL, &region, err),
		       -EFAULT, "read-only");
	munmap(pages + 2 * PAGE, PAGE);
	assert_refused(
		tmesh_region_from_user(*state, pages, 4 * PAGE, TMESH_READ, NULL, &region, err),
		-EFAULT, "nothing is mapped");
	munmap(pages, 2 * PAGE);
	munmap(pages + 3 * PAGE, PAGE);
}

static void test_imports(void **state)
{
	struct tmesh_region *region = region_of(*state, PAGE), *made = NULL;
	struct tmesh_region_info info = {.size = sizeof(info)};
	int fd, null = open("/dev/null", O_RDWR | O_CLOEXEC), ends[2];

	assert_ok(tmesh_region_export_dmabuf(region, 0, 0, RW, &fd, err));
	assert_refused(tmesh_region_from_dmabuf(*state, fd, NULL, &made, err), -ELOOP, "token");
	close(fd);
	assert_refused(tmesh_region_from_dmabuf(*state, fd, NULL, &made, err), -EBADF,
		       "descriptor");
	assert_int_equal(pipe(ends), 0);
	assert_refused(tmesh_region_from_fd(*state, ends[0], PAGE, NULL, &made, err), -EOPNOTSUPP,
		       "character");
	assert_refused(tmesh_region_from_dmabuf(*state, ends[0], NULL, &made, err), -EINVAL,
		       "not a dma-buf's");
	assert_refused(tmesh_region_from_dmabuf(*state, null, NULL, &made, err), -EINVAL,
		       "not a dma-buf's");
	close(ends[0]);
	close(ends[1]);
	assert_refused(tmesh_region_opaque_fd(region, &fd, err), -EOPNOTSUPP, "memory");
	assert_ok(tmesh_region_from_fd(*state, null, 1 << 20, NULL, &made, err));
	close(null);
	assert_ok(tmesh_region_info(made, &info, err));
	assert_int_equal(info.backing, TMESH_BACKED_BY_OPAQUE);
	assert_int_equal(info.bytes, 1 << 20);
	assert_ok(tmesh_region_opaque_fd(made, &fd, err));
	assert_int_equal(write(fd, "x", 1), 1);
	close(fd);
	tmesh_region_unref(made);
	tmesh_region_unref(region);
}

static void test_view(void **state)
{
	struct tmesh_region *one = region_of(*state, 8 * PAGE), *two = region_of(*state, 8 * PAGE);
	struct tmesh_gather_extent parts[] = {
		{one, 2 * PAGE, PAGE}, {two, 0, 3 * PAGE}, {one, 0, PAGE}};
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *view, *further;
	uint8_t *there, byte;

	map_of(one, RW)[2 * PAGE] = 1;
	map_of(two, RW)[2 * PAGE] = 2;
	map_of(one, RW)[0] = 3;
	assert_ok(tmesh_region_gather(*state, parts, 3, RW, NULL, &view, err));
	assert_int_equal(tmesh_region_bytes(view), 5 * PAGE);
	there = map_of(view, RW);
	assert_int_equal(there[0], 1);
	assert_int_equal(there[3 * PAGE], 2);
	assert_int_equal(there[4 * PAGE], 3);
	there[4 * PAGE + 1] = 4;
	assert_int_equal(map_of(one, TMESH_READ)[1], 4);
	assert_ok(tmesh_region_info(one, &info, err));
	assert_int_equal(info.views, 1);
	parts[2].region = view;
	assert_refused(tmesh_region_gather(*state, parts, 3, TMESH_READ, NULL, &further, err),
		       -ELOOP, "view");
	parts[2] = parts[0];
	assert_refused(tmesh_region_gather(*state, parts, 3, RW, NULL, &further, err), -EINVAL,
		       "twice");
	parts[2] = (struct tmesh_gather_extent){one, PAGE, 8 * PAGE};
	assert_refused(tmesh_region_gather(*state, parts, 3, TMESH_READ, NULL, &further, err),
		       -EINVAL, "whole pages");
	assert_ok(tmesh_region_revoke(two, err));
	assert_refused(tmesh_region_read(view, 0, &byte, 1, err), -ESTALE, "revoked");
	tmesh_region_unref(view);
	tmesh_region_unref(two);
	tmesh_region_unref(one);
}

static void test_fence(void **state)
{
	struct tmesh_region *producer = region_of(*state, PAGE), *consumer, *rival;
	uint64_t reached = 0;

	assert_ok(tmesh_region_derive(producer, RW, &rival, err));
	assert_ok(tmesh_region_derive(producer, TMESH_READ, &consumer, err));
	assert_refused(tmesh_fence_wait(consumer, 1, 0, &reached, err), -ETIMEDOUT, "at 0");
	assert_refused(tmesh_fence_signal(consumer, 1, err), -EACCES, "write");
	assert_ok(tmesh_fence_signal(rival, 5, err));
	assert_refused(tmesh_fence_signal(rival, 5, err), -EINVAL, "more");
	assert_refused(tmesh_fence_signal(producer, 6, err), -EBUSY, "producer");
	assert_ok(tmesh_fence_wait(consumer, 4, -1, &reached, err));
	assert_int_equal(reached, 5);
	assert_ok(tmesh_fence_signal(rival, 6, err));
	tmesh_region_unref(rival);
	assert_refused(tmesh_fence_wait(consumer, 7, -1, &reached, err), -EOWNERDEAD, "gone");
	assert_int_equal(reached, 6);
	assert_ok(tmesh_fence_signal(producer, 7, err));
	assert_ok(tmesh_fence_wait(consumer, 7, -1, NULL, err));
	tmesh_region_unref(consumer);
	tmesh_region_unref(producer);
}

/* Who holds a region, in whatever way, is told of a page with a memory error, once somebody came
 * upon it; the pages beside it stay good. */
static void test_poisoned(void **state)
{
	struct tmesh_region *region = region_of(*state, 2 * PAGE), *held;
	struct tmesh_region_info info = {.size = sizeof(info)};
	uint8_t *addr = map_of(region, RW), byte = 0;
	struct pollfd poller;

	memset(addr, 7, 2 * PAGE);
	assert_ok(tmesh_region_derive(region, TMESH_READ, &held, err));
	assert_int_equal(tmesh_region_events(held), 0);
	poller.fd = tmesh_region_poll_fd(held, TMESH_EVENT_POISONED, &poller.events, NULL);
	assert_true(poller.fd >= 0);
	/* How the kernel deals with its mapping does not matter. */
	if (madvise(addr, PAGE, MADV_HWPOISON) && errno != EBUSY && errno != EHWPOISON) {
		assert_true(errno == EPERM || errno == EINVAL);
		tmesh_region_unref(held);
		tmesh_region_unref(region);
		skip();
	}
	assert_int_equal(poll(&poller, 1, 0), 0);
	assert_refused(tmesh_region_read(held, 0, &byte, 1, err), -EIO, "memory error");
	assert_int_equal(poll(&poller, 1, -1), 1);
	assert_int_equal(poller.revents, POLLPRI);
	assert_int_equal(tmesh_region_events(held), TMESH_EVENT_POISONED);
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_POISONED);
	assert_ok(tmesh_region_info(region, &info, err));
	assert_true(info.poisoned);
	assert_ok(tmesh_region_read(held, PAGE, &byte, 1, err));
	assert_int_equal(byte, 7);
	/* Who waits for something else does not hear of it. */
	poller.fd = tmesh_region_poll_fd(held, TMESH_EVENT_TAKEN | TMESH_EVENT_ALONE,
					 &poller.events, NULL);
	assert_int_equal(poll(&poller, 1, 0), 0);
	assert_ok(tmesh_region_revoke(region, err));
	assert_int_equal(poll(&poller, 1, -1), 1);
	assert_int_equal(tmesh_region_events(held), TMESH_EVENT_TAKEN | TMESH_EVENT_POISONED);
	tmesh_region_unref(held);
	tmesh_region_unref(region);
}

/* What the kernel keeps for holds of this region: how many, and the last one's name. */
static size_t kept_for(struct tmesh_ctx *ctx, const struct tmesh_region *region, char name[64])
{
	struct tmesh_kept_info *all = NULL;
	size_t count = 0, found = 0;
	char start[64];

	snprintf(start, sizeof(start), "hold-%016llx-",
		 (unsigned long long)tmesh_region_id(region));
	assert_ok(tmesh_kept_list(ctx, &all, &count, err));
	for (size_t i = 0; i < count; i++) {
		if (strncmp(all[i].name, start, strlen(start)) == 0) {
			found++;
			snprintf(name, 64, "%s", all[i].name);
		}
	}
	free(all);
	return found;
}

static void open_and_close(struct tmesh_ctx *ctx, const char *token)
{
	struct tmesh_region *region;

	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &region, err));
	tmesh_region_unref(region);
}

/* Two that hold one region, as two processes of one number in two PID namespaces may: what ends
 * the one's is not the other's, and no two holds have the same name. */
static void test_hold_name(void **state)
{
	struct tmesh_region *region = region_of(*state, PAGE), *other;
	struct tmesh_flushed left = {.size = sizeof(left)};
	char first[64] = "", name[64] = "", token[TMESH_TOKEN_SIZE], second[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_derive(region, tmesh_region_rights(region), &other, err));
	assert_ok(tmesh_region_hold(region, TMESH_READ, 600 * 1000 * MS, token, err));
	assert_int_equal(kept_for(*state, region, first), 1);
	assert_int_equal(strlen(first), strlen("hold-0123456789abcdef-") + 32);
	assert_ok(tmesh_region_hold(other, TMESH_READ, 1, second, err));
	do
		tmesh_ctx_flush(*state, 0, &left, NULL);
	while (left.held > 1);
	tmesh_region_unref(other);
	assert_int_equal(kept_for(*state, region, name), 1);
	assert_string_equal(name, first);
	open_and_close(*state, token);
	while (kept_for(*state, region, name))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	assert_ok(tmesh_region_hold(region, TMESH_READ, 600 * 1000 * MS, token, err));
	assert_int_equal(kept_for(*state, region, name), 1);
	assert_string_not_equal(name, first);
	open_and_close(*state, token);
	assert_ok(tmesh_ctx_flush(*state, -1, NULL, err));
	tmesh_region_unref(region);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lease_lapses),
		cmocka_unit_test(test_taken_by_context),
		cmocka_unit_test(test_arena_goes_on),
		cmocka_unit_test(test_lease_is_shared),
		cmocka_unit_test(test_lease_ends_with_a_process),
		cmocka_unit_test(test_reclaim),
		cmocka_unit_test(test_reclaim_names_pins),
		cmocka_unit_test(test_user_memory),
		cmocka_unit_test(test_imports),
		cmocka_unit_test(test_view),
		cmocka_unit_test(test_fence),
		cmocka_unit_test(test_poisoned),
		cmocka_unit_test(test_hold_name),
	};

	return cmocka_run_group_tests_name("module", tests, unit_ctx_setup, unit_ctx_teardown);
}
