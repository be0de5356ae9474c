// SPDX-License-Identifier: MIT
/*
 * Every system call and allocation fails once: a scenario runs again and again, each time with the
 * next call of this thread failing, until none is left. Each failure is reported, nothing crashes,
 * and no descriptor stays (the sanitizer and valgrind look for memory). The functions of failing.h
 * stand in for the C library's in this program.
 */
#include <limits.h>
#include <valgrind/valgrind.h>
#include "failing.h"
#include "memfd.h"

#define RW (TMESH_READ | TMESH_WRITE)

/* The life of a region in one process; the first failure ends it. Looking around in /proc is left
 * out: how many calls that takes depends on the machine. */
struct scene {
	struct tmesh_ctx *producer, *client, *asker;
	struct tmesh_region *region, *derived, *pinned, *opened[5], *received, *foreign;
	struct tmesh_region_info info;
	struct tmesh_arena *arena;
	struct tmesh_region *late, *card, *cards[5];
	struct tmesh_tensor *small, *alone;
	struct tmesh_channel *sender, *receiver;
	struct tmesh_message got;
	int pair[2], memfd;
};

static bool is_open(int fd)
{
	return syscall(SYS_fcntl, fd, F_GETFD) >= 0;
}

static int act(struct scene *s, struct tmesh_error *err)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.backend = TMESH_BACKEND_MEMFD,
		.region_pool_bytes = 1 << 20,
	};
	char token[TMESH_TOKEN_SIZE], other[TMESH_TOKEN_SIZE], link[512], buffer[64] = "contents";
	struct tmesh_region_opts in = {.size = sizeof(in)};
	struct tmesh_message message = {.bytes = 6, .data = "beside"};
	const int64_t shape[] = {10};
	struct tmesh_region *pooled;
	void *addr;
	int thing;

#define STEP(call)                 \
	do {                       \
		int rc = call;     \
                                   \
		if (rc)            \
			return rc; \
	} while (0)
	STEP(tmesh_ctx_open(&opts, &s->producer, err));
	STEP(tmesh_ctx_open(&opts, &s->client, err));
	STEP(tmesh_ctx_open(&opts, &s->asker, err));
	for (int i = 0; i < 2; i++) {
		STEP(tmesh_region_create(s->producer, 5000, NULL, &pooled, err));
		tmesh_region_unref(pooled);
	}
	STEP(tmesh_region_create(s->producer, 20000, NULL, &s->region, err));
	STEP(tmesh_region_write(s->region, 0, buffer, sizeof(buffer), err));
	STEP(tmesh_region_map(s->region, TMESH_READ, &addr, err));
	STEP(tmesh_region_map(s->region, RW, &addr, err));
	STEP(tmesh_region_set_description(s->region, "described", err));
	STEP(tmesh_region_derive(s->region, TMESH_READ, &s->derived, err));
	STEP(tmesh_region_token(s->region, TMESH_READ, token, err));
	/* The token has made the descriptor a read-only one. */
	STEP(tmesh_region_set_description(s->region, "described again", err));
	STEP(tmesh_region_map(s->region, RW, &addr, err));
	STEP(tmesh_region_write(s->region, 0, buffer, sizeof(buffer), err));
	STEP(tmesh_region_create(s->producer, 20000, NULL, &s->late, err));
	STEP(tmesh_region_token(s->late, TMESH_READ, other, err));
	STEP(tmesh_region_map(s->late, RW, &addr, err));
	for (int i = 0; i < 3; i++)
		STEP(tmesh_region_open(s->client, token, TMESH_READ, &s->opened[i], err));
	/* Without the link, as from another PID namespace. */
	snprintf(link, sizeof(link), "%s/%.32s.index", unit_runtime_dir(), token + 5);
	unlink(link);
	for (int i = 3; i < 5; i++)
		STEP(tmesh_region_open(s->asker, token, TMESH_READ, &s->opened[i], err));
	STEP(tmesh_region_read(s->opened[1], 0, buffer, sizeof(buffer), err));
	STEP(tmesh_region_map(s->opened[2], TMESH_READ, &addr, err));
	STEP(tmesh_region_send(s->region, s->pair[0], TMESH_READ, err));
	STEP(tmesh_region_recv(s->client, s->pair[1], &s->received, err));
	STEP(tmesh_region_seal(s->region, err));
	STEP(tmesh_region_pin(s->region, &s->pinned, err));
	s->info.size = sizeof(s->info);
	STEP(tmesh_region_info(s->region, &s->info, err));
	assert_true(s->info.sealed);
	STEP(tmesh_region_from_memfd(s->client, s->memfd, 0, NULL, &s->foreign, err));
	STEP(tmesh_region_from_fd(s->producer, s->memfd, 4096, NULL, &s->card, err));
	STEP(tmesh_region_derive(s->card, RW, &s->cards[0], err));
	assert_true(is_open(s->cards[0]->memfd.revoke_pipe) && is_open(s->cards[0]->memfd.device));
	STEP(tmesh_region_token(s->card, RW, token, err));
	STEP(tmesh_region_open(s->producer, token, RW, &s->cards[1], err));
	STEP(tmesh_region_open(s->client, token, RW, &s->cards[2], err));
	STEP(tmesh_region_send(s->card, s->pair[0], RW, err));
	STEP(tmesh_region_recv(s->client, s->pair[1], &s->cards[3], err));
	STEP(tmesh_region_send(s->cards[3], s->pair[0], RW, err));
	STEP(tmesh_region_recv(s->client, s->pair[1], &s->cards[4], err));
	STEP(tmesh_region_opaque_fd(s->cards[4], &thing, err));
	close(thing);
	STEP(tmesh_tensor_put(s->producer, TMESH_UINT8, 1, shape, buffer, NULL, &s->alone, err));
	assert_true(tmesh_tensor_region(s->alone)->description_bytes > 0);
	/* Over at once; a thread lets go of it. */
	STEP(tmesh_region_hold(tmesh_tensor_region(s->alone), TMESH_READ, 1, other, err));
	assert_null(strstr(other, "00000000000000000000000000000000"));
	STEP(tmesh_arena_create(s->producer, 0, NULL, &s->arena, err));
	in.arena = s->arena;
	STEP(tmesh_tensor_put(s->producer, TMESH_UINT8, 1, shape, buffer, &in, &s->small, err));
	STEP(tmesh_channel_create(s->producer, TMESH_CHANNEL_SEND, NULL, &s->sender, err));
	STEP(tmesh_channel_token(s->sender, token, err));
	STEP(tmesh_channel_open(s->client, token, TMESH_CHANNEL_RECV, NULL, &s->receiver, err));
	message.tensor = s->small;
	STEP(tmesh_channel_send(s->sender, &message, 1000000000, err));
	STEP(tmesh_channel_recv(s->receiver, &s->got, 1000000000, err));
	return 0;
}

static void clear(struct scene *s)
{
	for (int i = 0; i < 5; i++)
		tmesh_region_unref(s->opened[i]);
	tmesh_tensor_unref(s->got.tensor);
	tmesh_tensor_unref(s->small);
	tmesh_tensor_unref(s->alone);
	for (int i = 0; i < 5; i++)
		tmesh_region_unref(s->cards[i]);
	tmesh_region_unref(s->card);
	tmesh_region_unref(s->late);
	tmesh_arena_unref(s->arena);
	tmesh_channel_unref(s->receiver);
	tmesh_channel_unref(s->sender);
	tmesh_region_unref(s->foreign);
	tmesh_region_unref(s->received);
	tmesh_region_unref(s->pinned);
	tmesh_region_unref(s->derived);
	tmesh_region_unref(s->region);
	tmesh_ctx_unref(s->asker);
	tmesh_ctx_unref(s->client);
	tmesh_ctx_unref(s->producer);
	close(s->pair[0]);
	close(s->pair[1]);
	close(s->memfd);
}

static void prepare(struct scene *s)
{
	memset(s, 0, sizeof(*s));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s->pair), 0);
	s->memfd = memfd_create("by hand", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(s->memfd, 4096), 0);
	assert_int_equal(fcntl(s->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
}

UNIT(test_each_call_fails)
{
	static struct scene s;
	unsigned int before = unit_open_fds(), inherited = fds_for_others();
	long survived = 0, n = 1;

	for (;; n++) {
		struct tmesh_error err = {0};
		int rc;

		prepare(&s);
		failing_begin(n);
		rc = act(&s, &err);
		failing_end(n, rc, &err);
		if (fds_for_others() != inherited)
			fail_msg("call %ld (%s): a descriptor is not closed on exec", n, failed);
		clear(&s);
		/* Some of it threads let go of. */
		for (int i = 0; i < 600000 && unit_open_fds() != before; i++)
			usleep(1000);
		if (unit_open_fds() != before)
			fail_msg("call %ld (%s): %u descriptors, not %u", n, failed,
				 unit_open_fds(), before);
		if (!failed) {
			assert_int_equal(rc, 0);
			break;
		}
		survived += rc == 0;
	}
	/* Some can fail without harm: there is another way. The last run had no failure. */
	assert_true(n > 60);
	print_message("%ld calls failed in turn, %ld of them had another way\n", n - 1, survived);
}

/* As with more than 2 GiB, which the kernel reads and writes in pieces. */
UNIT(test_in_pieces)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	uint8_t there[5000], back[5000];
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	void *addr;

	for (int i = 0; i < 5000; i++)
		there[i] = (uint8_t)(i % 251);
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 6000, NULL, &region, err));
	most = 1000;
	assert_ok(tmesh_region_write(region, 700, there, sizeof(there), err));
	assert_ok(tmesh_region_read(region, 700, back, sizeof(back), err));
	most = SIZE_MAX;
	assert_memory_equal(back, there, sizeof(there));
	assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
	assert_memory_equal((uint8_t *)addr + 700, there, sizeof(there));
	/* A signal is no reason, and memory that has no more bytes is one. */
	interrupts = 1;
	assert_ok(tmesh_region_write(region, 0, there + 1, sizeof(there) - 1, err));
	interrupts = 1;
	assert_ok(tmesh_region_read(region, 0, back, sizeof(back) - 1, err));
	assert_int_equal(interrupts, 0);
	assert_memory_equal(back, there + 1, sizeof(there) - 1);
	most = 0;
	assert_refused(tmesh_region_read(region, 0, back, 1, err), -ESTALE, "vanished");
	most = SIZE_MAX;
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* As when the kernel has taken a page aside for a moment. */
UNIT(test_busy_seal)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	void *addr;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 6000, NULL, &region, err));
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	busy_seals = INT_MAX;
	assert_refused(tmesh_region_seal(region, err), -EBUSY,
		       "a writable mapping or export exists");
	busy_seals = 0;
	strcpy(addr, "writable still");
	busy_seals = INT_MAX;
	seal_code = EIO;
	assert_refused(tmesh_region_seal(region, err), -EIO, "seal");
	seal_code = EBUSY;
	strcpy(addr, "writable still");
	busy_seals = 1;
	assert_ok(tmesh_region_seal(region, err));
	assert_int_equal(busy_seals, 0);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* Memory that ends while a caller asks what the machine can is no reason to crash. */
UNIT(test_caps_without_memory)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	const size_t sizes[] = {sizeof(struct tmesh_cap), sizeof(struct tmesh_cap) - 8};

	for (size_t i = 0; i < 2; i++) {
		int rc, refusals = 0;
		long n = 0;

		do {
			const struct tmesh_cap *caps = NULL;
			struct tmesh_ctx *ctx;
			size_t count;

			assert_ok(tmesh_ctx_open(&opts, &ctx, err));
			failing_begin(++n);
			rc = tmesh_caps_sized(ctx, sizes[i], &caps, &count);
			fail_at = 0;
			assert_true(rc == 0 || rc == -ENOMEM);
			assert_true((rc == 0) == (caps != NULL));
			refusals += rc != 0;
			tmesh_ctx_unref(ctx);
		} while (failed);
#ifndef __SANITIZE_ADDRESS__
		/* valgrind has a malloc() of its own */
		assert_int_equal(refusals, RUNNING_ON_VALGRIND ? 0 : 1 + i);
#endif
	}
}

#define SHMEM_HUGE "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

/* A file in the place of what the kernel says of huge pages of shared memory. */
static int huge_begin(char *path)
{
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	other_path = SHMEM_HUGE;
	other_is = path;
	return fd;
}

static void huge_say(int fd, const char *says)
{
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_true(pwrite(fd, says, strlen(says), 0) > 0);
}

static void huge_end(int fd, const char *path)
{
	other_path = NULL;
	unlink(path);
	close(fd);
}

/* Memory in huge pages is written through its mapping. A lack of memory is an error of the write,
 * not a signal in the middle of it. */
UNIT(test_no_pages_to_write)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_region_opts try = {.size = sizeof(try), .flags = TMESH_REGION_TRY_HUGE};
	char path[] = "/tmp/tmesh-huge-XXXXXX", text[8];
	int fd = huge_begin(path);
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;

	huge_say(fd, "always within_size [advise] never deny force");
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 4 << 20, &try, &region, err));
	/* At the end of a page, and two bytes of the next. */
	pages_errno = ENOMEM;
	assert_refused(tmesh_region_write(region, 4094, "text", 4, err), -ENOMEM,
		       "taking the region's pages");
	assert_ok(tmesh_region_read(region, 4094, text, 4, err));
	assert_memory_equal(text, "\0\0\0\0", 4);
	/* A kernel that takes none ahead. */
	pages_errno = EINVAL;
	assert_ok(tmesh_region_write(region, 4094, "text", 4, err));
	/* And one that has: the errno of an earlier call does not count. */
	pages_errno = 0;
	errno = EIO;
	assert_ok(tmesh_region_write(region, 8192, "more", 4, err));
	assert_ok(tmesh_region_read(region, 4094, text, 4, err));
	assert_memory_equal(text, "text", 4);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	huge_end(fd, path);
}

/* Regions have huge pages unasked, but where these would waste memory. */
UNIT(test_filled_is_huge)
{
	static const struct {
		const char *says;
		uint32_t flags;
		uint64_t kib, alloc_kib;
	} cases[] = {
		{"[advise]", TMESH_REGION_UNINITIALIZED, 15 << 10, 16 << 10},
		{"[advise]", TMESH_REGION_UNINITIALIZED, 2 << 10, 2 << 10},
		{"[advise]", TMESH_REGION_UNINITIALIZED, 2044, 2044},
		{"[advise]", TMESH_REGION_UNINITIALIZED, 7 << 10, 7 << 10},
		{"[advise]", TMESH_REGION_TRY_HUGE, 5 << 10, 6 << 10},
		{"[advise]", 0, 15 << 10, 16 << 10},
		{"[advise]", 0, 7 << 10, 7 << 10},
		{"[never]", TMESH_REGION_UNINITIALIZED, 15 << 10, 16 << 10},
		{"[deny]", TMESH_REGION_UNINITIALIZED, 15 << 10, 15 << 10},
	};
	struct tmesh_ctx_opts opts = {.size = sizeof(opts),
				      .backend = TMESH_BACKEND_MEMFD,
				      .region_pool_bytes = TMESH_NO_REGION_POOL};
	char path[] = "/tmp/tmesh-huge-XXXXXX";
	int fd = huge_begin(path);
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct tmesh_region_opts wanted = {.size = sizeof(wanted), .flags = cases[i].flags};
		struct tmesh_region_info info = {.size = sizeof(info)};
		struct tmesh_region *region;

		huge_say(fd, cases[i].says);
		assert_ok(tmesh_region_create(ctx, cases[i].kib << 10, &wanted, &region, err));
		assert_ok(tmesh_region_info(region, &info, err));
		assert_int_equal(info.alloc_bytes, cases[i].alloc_kib << 10);
		tmesh_region_unref(region);
	}
	tmesh_ctx_unref(ctx);
	huge_end(fd, path);
}

/* The kernel's answers about huge pages of shared memory, the promises that follow, and the place
 * of a region that asked for them. */
UNIT(test_huge_pages)
{
	static const struct {
		const char *says, *reason;
		bool huge;
	} kernels[] = {
		{"always within_size [advise] never deny force", "on request", true},
		{"[always] within_size advise never deny force", "on request", true},
		{"always [within_size] advise never deny force", "on request", true},
		{"always within_size advise never deny [force]", "on request", true},
		{"always within_size advise [never] deny force", "MADV_COLLAPSE", true},
		{"always within_size advise never [deny] force", "are denied", false},
		{NULL, "has no huge pages", false},
	};
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_region_opts try = {.size = sizeof(try), .flags = TMESH_REGION_TRY_HUGE};
	char path[] = "/tmp/tmesh-huge-XXXXXX";
	int fd = huge_begin(path);

	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		struct tmesh_region *region, *derived;
		const struct tmesh_cap *caps;
		struct tmesh_ctx *ctx;
		void *addr, *other;
		size_t count, at = 0;

		other_is = kernels[i].says ? path : NULL;
		if (kernels[i].says)
			huge_say(fd, kernels[i].says);
		assert_ok(tmesh_ctx_open(&opts, &ctx, err));
		assert_int_equal(tmesh_caps(ctx, &caps, &count), 0);
		while (strcmp(caps[at].name, "huge-pages"))
			at++;
		assert_int_equal(caps[at].level,
				 kernels[i].huge ? TMESH_CAP_ENFORCED : TMESH_CAP_NO);
		assert_non_null(strstr(caps[at].reason, kernels[i].reason));
		/* Two of them: one could lie there by chance. */
		assert_ok(tmesh_region_create(ctx, (4 << 20) + 1, &try, &region, err));
		assert_ok(tmesh_region_map(region, RW, &addr, err));
		assert_ok(tmesh_region_derive(region, RW, &derived, err));
		assert_ok(tmesh_region_map(derived, RW, &other, err));
		assert_int_equal((uintptr_t)addr & ((2 << 20) - 1), 0);
		assert_int_equal((uintptr_t)other & ((2 << 20) - 1), 0);
		strcpy(addr, "the same");
		assert_string_equal(other, "the same");
		tmesh_region_unref(derived);
		tmesh_region_unref(region);
		tmesh_ctx_unref(ctx);
	}
	huge_end(fd, path);
}

#ifndef __SANITIZE_ADDRESS__
/* The memory of another thread stays where a mapping has failed. */
static void check_taken(void)
{
	hole_code = 0;
	if (!taken)
		return;
	assert_int_equal(*taken, 'x');
	munmap(taken, taken_bytes);
	taken = NULL;
}

UNIT(test_hole)
{
	static const int codes[] = {ENOMEM, EPERM};
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_region *region;
	uint8_t *memory;
	void *addr;

	for (size_t i = 0; i < 4; i++) {
		region = new_region(ctx, 4 << 20);
		hole_code = codes[i / 2];
		tmesh_region_map(region, i % 2 ? TMESH_READ : TMESH_READ | TMESH_WRITE, &addr,
				 NULL);
		assert_true(taken);
		check_taken();
		if (codes[i / 2] == EPERM && i % 2) {
			/* The region has only a descriptor for reading now. */
			tmesh_region_unref(region);
			continue;
		}
		hole_code = codes[i / 2];
		tmesh_huge_bytes(region->fd, 4 << 20);
		assert_true(taken);
		check_taken();
		/* A mapping that is there is replaced, or stays. */
		memory = map_region(region, TMESH_READ | TMESH_WRITE);
		memory[5] = 6;
		hole_code = codes[i / 2];
		assert_ok(tmesh_region_seal(region, err));
		check_taken();
		assert_int_equal(memory[5], 6);
		tmesh_region_unref(region);
	}
	tmesh_ctx_unref(ctx);
}
#endif

UNIT_MAIN("failures", NULL, NULL)
