// SPDX-License-Identifier: MIT
/* Features of the module alone: memory that comes back, imports, views, fences, holds by the
 * kernel. Leases: test_module_lease.c. */
#include <poll.h>
#include <time.h>

#include "on_module.h"

#include <tmesh/hold.h>

#ifndef MADV_HWPOISON
#define MADV_HWPOISON 100
#endif

/* A context has the device open, and lets go of it. */
UNIT(test_device_closed)
{
	unsigned int before = unit_open_fds();
	struct tmesh_ctx *ctx = new_ctx();

	assert_true(unit_open_fds() > before);
	tmesh_ctx_unref(ctx);
	assert_int_equal(unit_open_fds(), before);
}

/* Handles that have not heard of a seal: what it forbids they say as the one that has sealed. */
UNIT(test_sealed_by_others)
{
	struct tmesh_region *region = new_region(*state, PAGE), *other;
	void *addr;

	assert_ok(tmesh_region_derive(region, TMESH_RIGHTS_ALL, &other, err));
	assert_ok(tmesh_region_seal(region, err));
	assert_refused(tmesh_region_map(other, RW, &addr, err), -EPERM,
		       "the region is sealed; map it for reading");
	assert_refused(tmesh_region_set_description(other, "late", err), -EPERM,
		       "describe a region before its seal");
	tmesh_region_unref(other);
	tmesh_region_unref(region);
}

/* Addresses for a second mapping of a region so large are not left to this process; for its stack
 * they are. */
static struct rlimit leave_addresses(uint64_t bytes)
{
	unsigned long pages = 0;
	FILE *statm = fopen("/proc/self/statm", "re");
	struct rlimit limit, old;

	assert_non_null(statm);
	assert_int_equal(fscanf(statm, "%lu", &pages), 1);
	fclose(statm);
	assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
	limit = (struct rlimit){pages * PAGE + bytes, old.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
	return old;
}

/* Our own mapping cannot become read-only: the error reports that, and it stays writable. */
UNIT(test_seal_without_addresses)
{
	struct tmesh_region *region = new_region(*state, 64 << 20);
	volatile uint8_t *addr = map_of(region, RW);
	struct tmesh_error why = {0};
	struct rlimit old;
	int rc;

	old = leave_addresses(32 << 20);
	rc = tmesh_region_seal(region, &why);
	assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
	assert_int_equal(rc, -ENOMEM);
	assert_non_null(strstr(why.message, "map"));
	addr[0] = 7;
	assert_false(tmesh_region_is_sealed(region));
	tmesh_region_unmap(region, RW);
	assert_ok(tmesh_region_seal(region, err));
	assert_int_equal(addr[0], 7);
	tmesh_region_unref(region);
}

/* The module takes no memfd of reserved huge pages. */
UNIT(test_huge_memfd)
{
	int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	struct tmesh_region *region = NULL;

	if (fd < 0)
		skip(); /* a kernel without them */
	assert_int_equal(ftruncate(fd, 2 << 20), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	assert_refused(tmesh_region_from_memfd(*state, fd, 0, NULL, &region, err), -EOPNOTSUPP,
		       "making a region of a memfd");
	assert_null(region);
	close(fd);
}

static struct tmesh_region *lent_of(void *ctx)
{
	const struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_REUSE};
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(ctx, 3 * PAGE, &opts, &region, err));
	return region;
}

/* Memory that was lent is for no other while a process has a page of it, though no handle and no
 * mapping says so. */
UNIT(test_lent_page_in_use)
{
	struct tmesh_region *region = lent_of(*state), *reader;
	uint64_t id = tmesh_region_id(region);
	char token[TMESH_TOKEN_SIZE], page[PAGE];
	struct iovec iov = {.iov_len = PAGE};
	int ends[2];

	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_ok(tmesh_region_open(*state, token, TMESH_READ, &reader, err));
	iov.iov_base = map_of(reader, TMESH_READ);
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(vmsplice(ends[1], &iov, 1, 0), PAGE);
	tmesh_region_unref(reader);
	tmesh_region_unref(region);
	region = lent_of(*state);
	assert_int_not_equal(tmesh_region_id(region), id);
	assert_int_equal(read(ends[0], page, PAGE), PAGE);
	reader = lent_of(*state);
	assert_int_equal(tmesh_region_id(reader), id);
	tmesh_region_unref(reader);
	tmesh_region_unref(region);
	close(ends[0]);
	close(ends[1]);
}

/* No other process has it: a waiter gets the answer, also about memory taken back meanwhile. */
UNIT(test_alone)
{
	struct tmesh_region *region = new_region(*state, PAGE), *other;
	struct pollfd poller;

	assert_ok(tmesh_region_derive(region, TMESH_READ, &other, err));
	poller.fd = tmesh_region_poll_fd(region, TMESH_EVENT_ALONE, &poller.events, NULL);
	assert_int_equal(poller.events, POLLOUT);
	assert_int_equal(tmesh_region_events(region), 0);
	tmesh_region_unref(other);
	assert_int_equal(poll(&poller, 1, -1), 1);
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_ALONE);
	assert_ok(tmesh_region_derive(region, TMESH_READ, &other, err));
	assert_ok(tmesh_region_revoke(region, err));
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_TAKEN);
	tmesh_region_unref(other);
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_TAKEN | TMESH_EVENT_ALONE);
	tmesh_region_unref(region);
}

/* The context that channels have beside the module's takes over what the module's has read. */
UNIT(test_channel_reads_no_variable)
{
	struct tmesh_channel *channel = NULL;
	struct tmesh_ctx *ctx = new_ctx();

	setenv("TMESH_REGION_POOL", "much", 1);
	assert_ok(tmesh_channel_create(ctx, TMESH_CHANNEL_SEND, NULL, &channel, err));
	unsetenv("TMESH_REGION_POOL");
	tmesh_channel_unref(channel);
	tmesh_ctx_unref(ctx);
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
UNIT(test_arena_goes_on)
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

/* A page in a pipe is in use, as one that a device writes to. */
UNIT(test_reclaim)
{
	struct tmesh_reclaim_report report = {.size = sizeof(report)};
	struct tmesh_region *region = new_region(*state, 64 * PAGE);
	struct iovec iov = {.iov_base = map_of(region, TMESH_READ) + PAGE, .iov_len = PAGE};
	struct tmesh_error untouched = {0};
	char page[PAGE];
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(vmsplice(ends[1], &iov, 1, 0), PAGE);
	assert_refused(tmesh_region_reclaim(region, 50 * MS, &report, err), -ETIMEDOUT, "in use");
	assert_in_range(report.pinned_bytes, PAGE, 64 * PAGE); /* in whole folios */
	assert_int_equal(report.attachments, 0);
	assert_int_equal(read(ends[0], page, PAGE), PAGE);
	assert_int_equal(tmesh_region_reclaim(region, 60000 * MS, &report, &untouched), 0);
	assert_string_equal(untouched.message, "");
	assert_int_equal(report.pinned_bytes, 0);
	assert_refused(tmesh_region_revoke(region, err), -ESTALE, "revoked");
	close(ends[0]);
	close(ends[1]);
	tmesh_region_unref(region);
}

UNIT(test_reclaim_names_pins)
{
	struct tmesh_region *region = new_region(*state, PAGE), *pin;

	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_pin(region, &pin, err));
	assert_refused(tmesh_region_reclaim(region, 0, NULL, err), -EBUSY, "pinned by 1");
	tmesh_region_unref(pin);
	assert_ok(tmesh_region_reclaim(region, 60000 * MS, NULL, err));
	tmesh_region_unref(region);
}

UNIT(test_user_memory)
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

/* Root pins as much as it likes; it is another user for a while. */
UNIT(test_user_memory_limit)
{
	void *pages =
		mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool root = geteuid() == 0;
	struct tmesh_region *region;
	struct rlimit old, limit;

	assert_true(pages != MAP_FAILED);
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &old), 0);
	limit = (struct rlimit){PAGE, old.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	assert_int_equal(root ? seteuid(65534) : 0, 0);
	assert_refused(tmesh_region_from_user(*state, pages, 4 * PAGE, RW, NULL, &region, err),
		       -ENOMEM, "RLIMIT_MEMLOCK");
	assert_int_equal(root ? seteuid(0) : 0, 0);
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &old), 0);
	munmap(pages, 4 * PAGE);
}

UNIT(test_imports)
{
	struct tmesh_region *region = new_region(*state, PAGE), *made = NULL;
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

UNIT(test_view)
{
	struct tmesh_region *one = new_region(*state, 8 * PAGE),
			    *two = new_region(*state, 8 * PAGE);
	struct tmesh_gather_extent parts[] = {
		{one, 2 * PAGE, PAGE}, {two, 0, 3 * PAGE}, {one, 0, PAGE}};
	struct tmesh_ctx_opts beside = {.size = sizeof(beside), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *view, *further;
	uint8_t *there, byte;
	struct tmesh_ctx *ctx;

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
	/* The first mistake is the one that is reported. */
	assert_refused(tmesh_region_gather(*state, parts, 0, TMESH_WRITE, NULL, &further, err),
		       -EINVAL, "rights");
	assert_ok(tmesh_ctx_open(&beside, &ctx, err));
	parts[2] = (struct tmesh_gather_extent){new_region(ctx, PAGE), 0, PAGE};
	assert_refused(tmesh_region_gather(*state, parts, 3, TMESH_READ, NULL, &further, err),
		       -EINVAL, "part 2 is of another backend");
	tmesh_region_unref(parts[2].region);
	tmesh_ctx_unref(ctx);
	assert_ok(tmesh_region_revoke(two, err));
	assert_refused(tmesh_region_read(view, 0, &byte, 1, err), -ESTALE, "revoked");
	tmesh_region_unref(view);
	tmesh_region_unref(two);
	tmesh_region_unref(one);
}

UNIT(test_fence)
{
	struct tmesh_region *producer = new_region(*state, PAGE), *consumer, *rival;
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

/* Each holder of a region, in whatever way, learns of a page with a memory error once a process
 * came upon it. The pages beside it stay good. */
UNIT(test_poisoned)
{
	struct tmesh_region *region = new_region(*state, 2 * PAGE), *held;
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
	/* A waiter for another event does not get it. */
	poller.fd = tmesh_region_poll_fd(held, TMESH_EVENT_TAKEN | TMESH_EVENT_ALONE,
					 &poller.events, NULL);
	assert_int_equal(poll(&poller, 1, 0), 0);
	assert_ok(tmesh_region_revoke(region, err));
	assert_int_equal(poll(&poller, 1, -1), 1);
	assert_int_equal(tmesh_region_events(held), TMESH_EVENT_TAKEN | TMESH_EVENT_POISONED);
	tmesh_region_unref(held);
	tmesh_region_unref(region);
}

/* The kernel's holds of this region: how many, and the last one. */
static size_t kept_of(struct tmesh_ctx *ctx, const struct tmesh_region *region,
		      struct tmesh_kept_info *last)
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
			*last = all[i];
		}
	}
	free(all);
	return found;
}

/* How many, and the last one's name. */
static size_t kept_for(struct tmesh_ctx *ctx, const struct tmesh_region *region, char name[64])
{
	struct tmesh_kept_info last = {.name = ""};
	size_t found = kept_of(ctx, region, &last);

	if (found)
		snprintf(name, 64, "%s", last.name);
	return found;
}

static uint64_t kept_until(struct tmesh_ctx *ctx, const struct tmesh_region *region)
{
	struct tmesh_kept_info last;

	assert_int_equal(kept_of(ctx, region, &last), 1);
	return last.expires_ns;
}

static void open_and_close(struct tmesh_ctx *ctx, const char *token)
{
	struct tmesh_region *region;

	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &region, err));
	tmesh_region_unref(region);
}

/* Two holders of one region, as two processes of one number in two PID namespaces may be. The end
 * of one leaves the other's hold, and no two holds have the same name. */
UNIT(test_hold_name)
{
	struct tmesh_region *region = new_region(*state, PAGE), *other;
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

/* A shorter hold of the same region takes none of a longer one's time away. */
UNIT(test_hold_lasts)
{
	struct tmesh_region *region = new_region(*state, PAGE);
	char token[TMESH_TOKEN_SIZE], name[64];
	uint64_t until;

	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_hold(region, TMESH_READ, 600 * 1000 * MS, token, err));
	until = kept_until(*state, region);
	assert_true(until > 0);
	assert_ok(tmesh_region_hold(region, TMESH_READ, 60 * 1000 * MS, token, err));
	assert_int_equal(kept_until(*state, region), until);
	assert_ok(tmesh_region_hold(region, TMESH_READ, 1200 * 1000 * MS, token, err));
	assert_true(kept_until(*state, region) > until);
	assert_int_equal(kept_for(*state, region, name), 1);
	for (int i = 0; i < 3; i++)
		open_and_close(*state, token);
	assert_ok(tmesh_ctx_flush(*state, -1, NULL, err));
	tmesh_region_unref(region);
}

/* A region that stands for a descriptor is no sealed memory: a hold of it ends with its process. */
UNIT(test_hold_of_no_memory)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char token[TMESH_TOKEN_SIZE], name[64];
	struct tmesh_region *region = NULL;

	assert_ok(tmesh_region_from_fd(*state, null, 1 << 20, NULL, &region, err));
	close(null);
	assert_ok(tmesh_region_hold(region, TMESH_READ, 600 * 1000 * MS, token, err));
	assert_int_equal(kept_for(*state, region, name), 0);
	open_and_close(*state, token);
	assert_ok(tmesh_ctx_flush(*state, -1, NULL, err));
	tmesh_region_unref(region);
}

/* The kernel's answers about a name that is taken, and one that is not. */
UNIT(test_kept)
{
	const struct tmesh_keep_opts opts = {.size = sizeof(opts)};
	struct tmesh_region *region = new_region(*state, PAGE), **opened = NULL;
	size_t count = 0;

	assert_refused(tmesh_keep(*state, "module-test", &region, 1, &opts, err), -EINVAL,
		       "sealed");
	assert_ok(tmesh_region_seal(region, err));
	assert_refused(tmesh_kept_open(*state, "module-test", TMESH_KEPT_OWN, TMESH_READ, &opened,
				       &count, err),
		       -ENOENT, "nothing is kept as \"module-test\"");
	assert_null(opened);
	assert_ok(tmesh_keep(*state, "module-test", &region, 1, &opts, err));
	assert_refused(tmesh_keep(*state, "module-test", &region, 1, &opts, err), -EEXIST,
		       "kept already");
	assert_ok(tmesh_kept_open(*state, "module-test", TMESH_KEPT_OWN, TMESH_READ, &opened,
				  &count, err));
	assert_int_equal(count, 1);
	assert_int_equal(tmesh_region_id(opened[0]), tmesh_region_id(region));
	tmesh_region_unref(opened[0]);
	free(opened);
	assert_ok(tmesh_kept_drop(*state, "module-test", err));
	tmesh_region_unref(region);
}

static void set_limit(uint64_t bytes)
{
	FILE *file = fopen("/proc/sys/dev/tmesh/max_bytes_per_uid", "we");

	assert_non_null(file);
	fprintf(file, "%llu", (unsigned long long)bytes);
	assert_int_equal(fclose(file), 0);
}

/* An owner at its limit lists 128 holders. For more the error says what to do, also in the list of
 * all regions' holders. */
UNIT(test_holders_at_limit)
{
	struct tmesh_region *region = new_region(*state, PAGE), *handles[128];
	uint64_t id = tmesh_region_id(region);
	struct tmesh_holder_info *holders;
	struct tmesh_limits limits = {.size = sizeof(limits)};
	size_t count;

	for (int i = 0; i < 128; i++)
		assert_ok(tmesh_region_derive(region, TMESH_READ, &handles[i], err));
	assert_ok(tmesh_limits(*state, &limits, err));
	set_limit(limits.used_bytes);
	assert_refused(tmesh_holders(*state, id, &holders, &count, err), -EDQUOT,
		       "list the 129 holders");
	assert_refused(tmesh_holders(*state, 0, &holders, &count, err), -EDQUOT, "as root");
	tmesh_region_unref(handles[0]);
	assert_ok(tmesh_holders(*state, id, &holders, &count, err));
	assert_int_equal(count, 128);
	free(holders);
	set_limit(limits.max_bytes_per_uid);
	for (int i = 1; i < 128; i++)
		tmesh_region_unref(handles[i]);
	tmesh_region_unref(region);
}

UNIT_MAIN("module", unit_ctx_setup, unit_ctx_teardown)
