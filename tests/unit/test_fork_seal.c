// SPDX-License-Identifier: MIT
/*
 * A forked child lives on, and the region is sealed all the same: a child has none of the mappings
 * that the library makes for itself. The mapping of the region's user stays.
 */
#include <poll.h>

#include "common/dlpack_abi.h"

#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)
#define BYTES 5000u

/* The mark of a mapping; @refuse_unmark: as for a device's memory. */
static bool refuse_unmark;
static void (*at_mark)(void);

int madvise(void *addr, size_t bytes, int advice)
{
	if (advice == MADV_DONTFORK && at_mark) {
		void (*f)(void) = at_mark;

		at_mark = NULL;
		f();
	}
	if (advice == MADV_DOFORK && refuse_unmark) {
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_madvise, addr, bytes, advice);
}

static struct tmesh_ctx *context(void)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.region_pool_bytes = 1 << 20,
	};
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	return ctx;
}

/* One that is written to through its mapping, on memfd too: it comes from the pool. */
static struct tmesh_region *mapped_region(struct tmesh_ctx *ctx)
{
	struct tmesh_region *region;

	for (int i = 0; i < 2; i++) {
		assert_ok(tmesh_region_create(ctx, BYTES, NULL, &region, err));
		if (i == 0)
			tmesh_region_unref(region);
	}
	assert_true(region->warm && region->addr);
	return region;
}

/* A child that lives until it is let go, and has done @f before. */
struct child {
	pid_t pid;
	int let; /* closed: it ends */
};

static void no_more(int line)
{
	unit_leave(line % 250 + 1);
}

#define CHECK_HERE(condition)              \
	do {                               \
		if (!(condition))          \
			no_more(__LINE__); \
	} while (0)

static struct child start(void (*f)(struct tmesh_region *region), struct tmesh_region *region)
{
	struct child child;
	int let[2], ready[2];
	char byte = 0;

	assert_int_equal(pipe(let), 0);
	assert_int_equal(pipe(ready), 0);
	child.pid = fork();
	if (child.pid == 0) {
		close(let[1]);
		if (f)
			f(region);
		CHECK_HERE(write(ready[1], &byte, 1) == 1);
		CHECK_HERE(read(let[0], &byte, 1) == 0);
		unit_leave(0);
	}
	assert_true(child.pid > 0);
	close(let[0]);
	close(ready[1]);
	child.let = let[1];
	/* One that has failed says nothing, and how is asked for at the end. */
	assert_true(read(ready[0], &byte, 1) >= 0);
	close(ready[0]);
	return child;
}

static void end(struct child child)
{
	close(child.let);
	join_child(child.pid);
}

/* Whether anything is mapped there in this process. */
static bool is_mapped(const void *addr)
{
	unsigned char there;

	return mincore((void *)addr, 1, &there) == 0;
}

/* The child maps anew what it did not inherit, and what it lets go of is not its parent's. */
static void reads_anew(struct tmesh_region *region)
{
	void *was = region->addr, *addr;

	CHECK_HERE(was && !is_mapped(was));
	CHECK_HERE(tmesh_region_map(region, TMESH_READ, &addr, NULL) == 0);
	CHECK_HERE(strcmp(addr, "written") == 0);
	tmesh_region_unmap(region, TMESH_READ);
	CHECK_HERE(tmesh_region_map(region, TMESH_READ, &was, NULL) == 0 && was == addr);
	CHECK_HERE(tmesh_region_write(region, 0, "x", 2, NULL) == -EPERM);
}

UNIT(test_written)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = mapped_region(ctx);
	struct child child;

	assert_ok(tmesh_region_write(region, 0, "written", 8, err));
	child = start(reads_anew, region);
	assert_ok(tmesh_region_seal(region, err));
	end(child);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* On memfd by the file, on the module by a mapping. */
UNIT(test_written_cold)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = new_region(ctx, BYTES);
	struct child child;

	assert_ok(tmesh_region_write(region, 0, "written", 8, err));
	child = start(unit_on_kernel() ? reads_anew : NULL, region);
	assert_ok(tmesh_region_seal(region, err));
	end(child);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* The copy stops at a page that no process may read yet. */
static struct {
	char *page;
	size_t bytes;
	int reached[2], go[2];
} stop;

static void stopped(int signal, siginfo_t *info, void *context)
{
	char byte = 0;

	if ((char *)info->si_addr < stop.page || (char *)info->si_addr >= stop.page + stop.bytes)
		_exit(99);
	if (write(stop.reached[1], &byte, 1) != 1 || read(stop.go[0], &byte, 1) != 1 ||
	    mprotect(stop.page, stop.bytes, PROT_READ))
		_exit(98);
}

static void *writes(void *region)
{
	assert_ok(tmesh_region_write(region, 0, stop.page, BYTES, err));
	return NULL;
}

static void has_none(struct tmesh_region *region)
{
	CHECK_HERE(region->addr && !is_mapped(region->addr));
}

UNIT(test_while_copied)
{
	struct sigaction action = {.sa_sigaction = stopped, .sa_flags = SA_SIGINFO}, old;
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = mapped_region(ctx);
	struct child child;
	pthread_t writer;
	char byte = 0, back[8];

	stop.bytes = 2 * tmesh_page_bytes();
	stop.page =
		mmap(NULL, stop.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(stop.page != MAP_FAILED);
	strcpy(stop.page, "copied");
	assert_int_equal(mprotect(stop.page, stop.bytes, PROT_NONE), 0);
	assert_int_equal(pipe(stop.reached), 0);
	assert_int_equal(pipe(stop.go), 0);
	assert_int_equal(sigaction(SIGSEGV, &action, &old), 0);
	assert_int_equal(pthread_create(&writer, NULL, writes, region), 0);
	assert_int_equal(read(stop.reached[0], &byte, 1), 1);
	child = start(has_none, region);
	assert_int_equal(write(stop.go[1], &byte, 1), 1);
	pthread_join(writer, NULL);
	sigaction(SIGSEGV, &old, NULL);
	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_read(region, 0, back, 7, err));
	assert_string_equal(back, "copied");
	end(child);
	for (int i = 0; i < 2; i++) {
		close(stop.reached[i]);
		close(stop.go[i]);
	}
	munmap(stop.page, stop.bytes);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

static void put_strided(struct tmesh_ctx *ctx, struct tmesh_tensor **out)
{
	static int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
	static uint8_t data[6] = {1, 2, 3, 4, 5, 6};
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_UNSEALED};
	struct DLManagedTensor managed = {
		.dl_tensor = {.data = data,
			      .device = {.type = 1},
			      .ndim = 2,
			      .dtype = {.code = 1, .bits = 8, .lanes = 1},
			      .shape = shape,
			      .strides = strides},
	};

	assert_ok(tmesh_tensor_from_dlpack(ctx, &managed, &opts, out, err));
}

UNIT(test_strided)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_tensor *tensor;
	struct child child;
	uint8_t back[6];

	put_strided(ctx, &tensor);
	child = start(has_none, tmesh_tensor_region(tensor));
	assert_ok(tmesh_region_seal(tmesh_tensor_region(tensor), err));
	end(child);
	assert_ok(tmesh_tensor_read(tensor, back, 6, err));
	assert_memory_equal(back, ((uint8_t[]){1, 3, 5, 2, 4, 6}), 6);
	tmesh_tensor_unref(tensor);
	tmesh_ctx_unref(ctx);
}

/* Theirs to give to a child, whether it was made by them or by a write. */
static void sees_it(struct tmesh_region *region)
{
	CHECK_HERE(is_mapped(region->addr) && strcmp(region->addr, "written") == 0);
	CHECK_HERE(!tmesh_region_map(region, TMESH_READ, &(void *){NULL}, NULL));
}

static void users(struct tmesh_region *region, bool first)
{
	struct child child;
	void *addr;

	if (first)
		assert_ok(tmesh_region_map(region, RW, &addr, err));
	assert_ok(tmesh_region_write(region, 0, "written", 8, err));
	if (!first)
		assert_ok(tmesh_region_map(region, RW, &addr, err));
	assert_ok(tmesh_region_write(region, 8, "more", 5, err));
	child = start(sees_it, region);
	assert_refused(tmesh_region_seal(region, err), -EBUSY, "writable mapping");
	end(child);
	/* A mapping that is not used any more does not go to the next child. */
	tmesh_region_unmap(region, RW);
	child = start(has_none, region);
	assert_ok(tmesh_region_seal(region, err));
	end(child);
	assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
	child = start(sees_it, region);
	end(child);
	tmesh_region_unmap(region, TMESH_READ);
}

UNIT(test_users_mapping)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = mapped_region(ctx);

	users(region, false);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

UNIT(test_users_mapping_anew)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = mapped_region(ctx);

	refuse_unmark = true;
	users(region, false);
	refuse_unmark = false;
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

UNIT(test_users_mapping_first)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = new_region(ctx, BYTES);

	users(region, true);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* The writes to a private view are in its mapping alone: a child has it, whichever process mapped
 * it. */
UNIT(test_private_view)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = new_region(ctx, BYTES), *view;

	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_private(region, &view, err));
	assert_ok(tmesh_region_write(view, 0, "written", 8, err));
	end(start(sees_it, view));
	tmesh_region_unref(view);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* A seal that fails gives the mapping back as it was. */
UNIT(test_failed_seal)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = mapped_region(ctx), *writer;
	struct child child;
	void *addr;

	assert_ok(tmesh_region_write(region, 0, "written", 8, err));
	assert_ok(tmesh_region_derive(region, RW, &writer, err));
	assert_ok(tmesh_region_map(writer, RW, &addr, err));
	assert_refused(tmesh_region_seal(region, err), -EBUSY, "writable mapping");
	tmesh_region_unmap(writer, RW);
	tmesh_region_unref(writer);
	child = start(reads_anew, region);
	assert_ok(tmesh_region_seal(region, err));
	end(child);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* Where the parent's mapping is, the child has something else, which it keeps. */
static void lets_go(struct tmesh_region *region)
{
	struct tmesh_ctx *ctx = region->ctx;
	void *was[2] = {region->addr, ctx->pool->addr};

	for (int i = 0; i < 2; i++)
		CHECK_HERE(mmap(was[i], BYTES, PROT_READ,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
				0) == was[i]);
	tmesh_region_unref(region);
	CHECK_HERE(tmesh_ctx_trim(ctx) > 0);
	for (int i = 0; i < 2; i++)
		CHECK_HERE(is_mapped(was[i]));
}

UNIT(test_child_lets_go)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = mapped_region(ctx), *other;
	void *addr;

	assert_ok(tmesh_region_create(ctx, BYTES, NULL, &other, err));
	assert_ok(tmesh_region_map(other, RW, &addr, err));
	tmesh_region_unmap(other, RW);
	tmesh_region_unref(other);
	assert_non_null(ctx->pool);
	end(start(lets_go, region));
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* A fork() that begins when the mapping is there and not yet marked. */
static struct {
	struct tmesh_region *region;
	struct child child;
	pthread_t thread;
	int begun[2];
	_Atomic(pid_t) tid;
	atomic_bool over;
} forker;

static void begins(void)
{
	char byte = 0;

	if (forker.tid == gettid() && write(forker.begun[1], &byte, 1) != 1)
		_exit(97);
}

static void *forks(void *data)
{
	forker.tid = gettid();
	forker.child = start(NULL, NULL);
	forker.over = true;
	return NULL;
}

/* Whether the thread sleeps: it waits for us. */
static bool sleeps(pid_t tid)
{
	char path[64], text[256] = "", *name_end;
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	stat = fopen(path, "re");
	if (!stat)
		return false;
	if (!fgets(text, sizeof(text), stat))
		text[0] = '\0';
	fclose(stat);
	name_end = strrchr(text, ')');
	return name_end && name_end[2] == 'S';
}

static void fork_now(void)
{
	char byte;

	assert_int_equal(pthread_create(&forker.thread, NULL, forks, NULL), 0);
	assert_int_equal(read(forker.begun[0], &byte, 1), 1);
	while (!forker.over && !sleeps(forker.tid))
		sched_yield();
}

UNIT(test_between)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = new_region(ctx, BYTES);

	assert_int_equal(pipe(forker.begun), 0);
	/* After the library's: of those before a fork() the last comes first. */
	assert_int_equal(pthread_atfork(begins, NULL, NULL), 0);
	at_mark = fork_now;
	assert_ok(tmesh_region_pack(
		region, 0, "abc",
		&(struct tmesh_layout){
			.dtype = TMESH_UINT8, .ndim = 1, .shape = {3}, .strides = {1}},
		3, err));
	assert_null(at_mark);
	pthread_join(forker.thread, NULL);
	assert_ok(tmesh_region_seal(region, err));
	end(forker.child);
	close(forker.begun[0]);
	close(forker.begun[1]);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

UNIT_MAIN("fork and seal", NULL, NULL)
