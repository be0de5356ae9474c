/* SPDX-License-Identifier: MIT */
/*
 * Let each allocation and each copy to or from user space of each operation fail in turn, by
 * /proc/thread-self/fail-nth. A call that fails must return ENOMEM or EFAULT and change nothing.
 */
#ifndef TMESH_KSELFTEST_FAILNTH_H
#define TMESH_KSELFTEST_FAILNTH_H

#include "keep.h"
#include "t.h"

#define BYTES (2 * HUGE + 3 * PAGE)
#define POINTS_MAX 5000

/* The objects that operations work on */
static struct {
	int dev, handle, kept[2], sealed, memfd, dmabuf, null, opaque, pidfd;
	int foreign, imported, proxy; /* a dma-buf of vgem's, its region, an export of that */
	size_t foreign_bytes;
	__u64 id;
	__u8 token[TMESH_TOKEN_BYTES];
} set;

static int fail_nth;

/* Settings of the kernel's fault injection. Their old values are restored at the end. */
static struct {
	const char *path, *value;
	char before[16];
} switches[] = {
	{"/sys/kernel/debug/failslab/ignore-gfp-wait", "N", ""},
	{"/sys/kernel/debug/failslab/verbose", "0", ""},
	{"/sys/kernel/debug/fail_page_alloc/ignore-gfp-wait", "N", ""},
	{"/sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem", "N", ""},
	{"/sys/kernel/debug/fail_page_alloc/min-order", "0", ""},
	{"/sys/kernel/debug/fail_page_alloc/verbose", "0", ""},
	{"/sys/kernel/debug/fail_usercopy/verbose", "0", ""},
};

static inline void inject(int nth)
{
	char text[16];
	int n = snprintf(text, sizeof(text), "%d", nth);

	/* This write itself may hit the point that is still armed. */
	if (pwrite(fail_nth, text, n, 0) != n)
		REQUIRE(pwrite(fail_nth, text, n, 0) == n);
}

/*
 * End the injection. Return true if the point was reached by the operation, and not by this read.
 */
static inline bool injected(void)
{
	char text[16] = "";
	bool answered = pread(fail_nth, text, sizeof(text) - 1, 0) > 0;

	inject(0);
	return answered && atoi(text) == 0;
}

static inline long import(int source)
{
	struct tmesh_import i = {.size = sizeof(i), .source = source};

	return ioctl(set.dev, TMESH_IMPORT, &i) ? -1 : i.fd;
}

static inline void set_up(void)
{
	fail_nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (fail_nth < 0)
		t_skip("this kernel has no fault injection");
	for (size_t i = 0; i < ARRAY_SIZE(switches); i++) {
		if (!t_read_file(switches[i].path, switches[i].before, sizeof(switches[i].before)))
			continue;
		REQUIRE(t_write_file(switches[i].path, switches[i].value));
	}
	set.dev = t_dev();
	set.handle = REQUIRE_OK(t_create(set.dev, BYTES, 0));
	set.id = t_info(set.handle).id;
	set.sealed = REQUIRE_OK(t_create(set.dev, PAGE, 0));
	REQUIRE_OK(t_seal(set.sealed));
	for (int i = 0; i < 2; i++)
		set.kept[i] = keep_region(set.dev, 4 * PAGE, 0, 1);
	REQUIRE_OK(keep(set.dev, "kept", set.kept, 2, 0));
	REQUIRE_OK(t_token(set.handle, R_READ, set.token));
	set.memfd = REQUIRE_OK(memfd_create("failnth", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	REQUIRE_OK(ftruncate(set.memfd, 40 * PAGE));
	REQUIRE_OK(fcntl(set.memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	set.pidfd = REQUIRE_OK(syscall(SYS_pidfd_open, getpid(), 0));
	set.dmabuf = REQUIRE_OK(t_export(set.handle, 0, 0, TMESH_EXPORT_WRITE));
	set.null = REQUIRE_OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	set.opaque = REQUIRE_OK(import(set.null));
}

static inline void tear_down(void)
{
	kept_drop(set.dev, "kept");
	for (size_t i = 0; i < ARRAY_SIZE(switches); i++)
		if (switches[i].before[0])
			t_write_file(switches[i].path, switches[i].before);
}

struct view {
	struct tmesh_info info, sealed;
	__u64 bytes, regions, handles, pins, kept_bytes, kept_names, files, foreign_files, kept;
	int listed, fds;
};

static inline struct view look(void)
{
	struct tmesh_caps_query q = t_caps(set.dev);
	struct view v;

	memset(&v, 0, sizeof(v));
	v.info = t_info(set.handle);
	v.info.opens = 0; /* a counter that never falls */
	v.sealed = t_info(set.sealed);
	v.bytes = q.used_bytes;
	v.regions = q.used_regions;
	v.handles = q.used_handles;
	v.pins = q.used_pins;
	v.kept_bytes = q.used_kept_bytes;
	v.kept_names = q.used_kept_names;
	v.files = q.used_files;
	v.foreign_files = q.used_foreign_files;
	v.kept = t_info(set.sealed).kept;
	v.listed = t_listed(set.dev);
	v.fds = t_count_fds();
	return v;
}

/*
 * Run @op with its first, second, ... point failing, until it has no more. @op returns the result
 * of its call. @undo undoes a success.
 */
static int *points; /* shared by the processes of all sweeps */

static inline void sweep(long (*op)(void), void (*undo)(long ret))
{
	int n, no_memory = 0, fault = 0, survived = 0;
	struct view before = look(), after;

	for (n = 1; n < POINTS_MAX && !t_failed(); n++) {
		bool reached;
		long ret;
		int err;

		inject(n);
		ret = op();
		err = errno;
		reached = injected();
		if (ret != -1) {
			undo(ret);
			survived += reached;
		} else {
			no_memory += err == ENOMEM;
			fault += err == EFAULT;
			if (!CHECK(err == ENOMEM || err == EFAULT))
				t_note("point %d: %s", n, strerrorname_np(err));
		}
		after = look();
		if (!CHECK(!memcmp(&before, &after, sizeof(before))))
			t_note("point %d changed something, ret %ld: %llu bytes, %llu regions, "
			       "%llu handles, %llu pins, %d listed, %d fds; before %llu, %llu, "
			       "%llu, %llu, %d, %d",
			       n, ret, after.bytes, after.regions, after.handles, after.pins,
			       after.listed, after.fds, before.bytes, before.regions,
			       before.handles, before.pins, before.listed, before.fds);
		if (!reached)
			break;
	}
	t_note("%d points: %d ENOMEM, %d EFAULT, %d survived", n - 1, no_memory, fault, survived);
	*points += n - 1;
	CHECK(n < POINTS_MAX);
}

static inline void close_fd(long fd)
{
	close(fd);
}

static inline void nothing(long ret)
{
}

#define SWEEP(ident, title, undo, call)  \
	static long op_##ident(void)     \
	{                                \
		return call;             \
	}                                \
	TEST(ident, title)               \
	{                                \
		set_up();                \
		sweep(op_##ident, undo); \
		tear_down();             \
	}

/*
 * Run without restartable sequences: the kernel writes their fields when it returns to user space.
 * An injected fault there is a SIGSEGV that has nothing to do with the operation.
 */
static inline int failnth_main(char **argv)
{
	static const char tunables[] = "GLIBC_TUNABLES";
	int status;

	if (!getenv(tunables)) {
		setenv(tunables, "glibc.pthread.rseq=0", 1);
		execv("/proc/self/exe", argv);
		return 1;
	}
	points = mmap(NULL, sizeof(*points), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (points == MAP_FAILED)
		return 1;
	status = t_main();
	t_note("%d points in all", *points);
	return status;
}

#endif
