// SPDX-License-Identifier: MIT
/*
 * Let each allocation and each copy to or from user space of each operation fail in turn, by
 * /proc/thread-self/fail-nth. A call that fails must return ENOMEM or EFAULT and change nothing.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "drm.h"
#include "files.h"
#include "keep.h"
#include "lease.h"
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

static void inject(int nth)
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
static bool injected(void)
{
	char text[16] = "";
	bool answered = pread(fail_nth, text, sizeof(text) - 1, 0) > 0;

	inject(0);
	return answered && atoi(text) == 0;
}

static long import(int source)
{
	struct tmesh_import i = {.size = sizeof(i), .source = source};

	return ioctl(set.dev, TMESH_IMPORT, &i) ? -1 : i.fd;
}

static void set_up(void)
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

static void tear_down(void)
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

static struct view look(void)
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

static void sweep(long (*op)(void), void (*undo)(long ret))
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

static void close_fd(long fd)
{
	close(fd);
}

static void nothing(long ret)
{
}

static void drop_new(long ret)
{
	kept_drop(set.dev, "new");
}

static int opened[2];

static long open_kept(void)
{
	return kept_open(set.dev, "kept", R_READ, 0, opened, 2);
}

static void close_opened(long ret)
{
	close(opened[0]);
	close(opened[1]);
}

static long keep_and_drop(void)
{
	long ret = keep(set.dev, "new", &set.sealed, 1, 0);

	if (ret)
		return ret;
	ret = kept_drop(set.dev, "new");
	if (ret) {
		int code = errno;

		/* The retry succeeded. Drop the name before the next point. */
		kept_drop(set.dev, "new");
		errno = code;
	}
	return ret;
}

static long write_private(int handle)
{
	unsigned char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, handle, 0);
	int sig;

	if (p == MAP_FAILED)
		return -1;
	sig = t_read(p);
	for (size_t i = 0; i < 4; i++)
		sig |= t_write(p + i * PAGE, 1);
	munmap(p, 4 * PAGE);
	if (sig)
		errno = ENOMEM;
	return sig ? -1 : 0;
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

static long open_device(void)
{
	return open("/dev/tmesh", O_RDWR | O_CLOEXEC);
}

static long caps(void)
{
	struct tmesh_caps_query q = {.size = sizeof(q)};

	return ioctl(set.dev, TMESH_CAPS, &q);
}

static long create_memfd(void)
{
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = set.memfd};

	return ioctl(set.dev, TMESH_CREATE_MEMFD, &c) ? -1 : c.fd;
}

/* Memory that is present, so that a pin fails in the call and not in a page fault. */
static unsigned char range[40 * PAGE] __attribute__((aligned(PAGE)));

static long create_user(void)
{
	struct tmesh_create_user c = {
		.size = sizeof(c),
		.address = (__u64)(unsigned long)range,
		.bytes = sizeof(range),
		.rights = R_READ | R_WRITE,
	};

	return ioctl(set.dev, TMESH_CREATE_USER, &c) ? -1 : c.fd;
}

static long info(int fd, __u64 id)
{
	struct tmesh_info i = {.size = sizeof(i), .id = id};

	return ioctl(fd, TMESH_INFO, &i);
}

static long list(void)
{
	struct tmesh_info some[4];
	struct tmesh_list l = {
		.size = sizeof(l),
		.entries = (__u64)(unsigned long)some,
		.entry_bytes = sizeof(some[0]),
		.count = ARRAY_SIZE(some),
	};

	return ioctl(set.dev, TMESH_LIST, &l);
}

static long holders(void)
{
	struct tmesh_holder some[4];
	struct tmesh_holders h = {
		.size = sizeof(h),
		.entries = (__u64)(unsigned long)some,
		.entry_bytes = sizeof(some[0]),
		.count = ARRAY_SIZE(some),
	};

	return ioctl(set.handle, TMESH_HOLDERS, &h);
}

static long describe(unsigned long call, unsigned int bytes)
{
	char text[512] = {0};
	struct tmesh_desc d = {
		.size = sizeof(d),
		.data = (__u64)(unsigned long)text,
		.bytes = bytes,
	};

	return ioctl(set.handle, call, &d);
}

static void undescribe(long ret)
{
	describe(TMESH_DESC_SET, 0);
}

/* Make a call that cannot be undone, on a new region. */
static long on_fresh(int fd, int (*call)(int handle))
{
	int ret, err;

	if (fd < 0)
		return -1;
	ret = call(fd);
	err = errno;
	close(fd);
	errno = err;
	return ret;
}

static long on_fresh_region(int (*call)(int handle))
{
	return on_fresh(t_create(set.dev, PAGE, 0), call);
}

static int revoke_pinned(int fd)
{
	struct tmesh_holder some[2];
	struct tmesh_revoke r = {
		.size = sizeof(r),
		.entries = (__u64)(unsigned long)some,
		.entry_bytes = sizeof(some[0]),
		.count = ARRAY_SIZE(some),
	};
	int pin, ret, err;

	if (t_seal(fd))
		return -1;
	pin = t_derive(fd, R_READ, TMESH_DERIVE_PIN);
	if (pin < 0)
		return -1;
	ret = ioctl(fd, TMESH_REVOKE, &r);
	err = errno;
	close(pin);
	errno = err;
	return ret == -1 && err == EBUSY ? 0 : -1;
}

static int revoke_wait(int fd)
{
	struct tmesh_holder some[2];
	struct tmesh_revoke r = {
		.size = sizeof(r),
		.flags = TMESH_REVOKE_WAIT,
		.entries = (__u64)(unsigned long)some,
		.entry_bytes = sizeof(some[0]),
		.count = ARRAY_SIZE(some),
	};
	int dmabuf = t_export(fd, 0, 0, 0), ret, err;

	if (dmabuf < 0)
		return -1;
	ret = ioctl(fd, TMESH_REVOKE, &r);
	err = errno;
	close(dmabuf);
	errno = err;
	return ret;
}

static int new_token(int fd)
{
	__u8 token[TMESH_TOKEN_BYTES];

	return t_token(fd, R_READ, token);
}

static int signal_and_wait(int fd)
{
	struct tmesh_signal s = {.size = sizeof(s), .value = 1};
	struct tmesh_wait w = {.size = sizeof(w), .value = 1, .timeout_ns = -1};

	return ioctl(fd, TMESH_SIGNAL, &s) || ioctl(fd, TMESH_WAIT, &w) ? -1 : 0;
}

/* Put a lease on a handle and close the lease file. Keep the errno of a failure. */
static int put_and_close(int fd, __u32 flags, int pidfd)
{
	int lease = lease_call(fd, flags, 0, pidfd, NULL);

	return lease < 0 ? -1 : close(lease);
}

static int put_lease(int fd)
{
	return put_and_close(fd, 0, 0);
}

static int bind_lease(int fd)
{
	return put_and_close(fd, TMESH_LEASE_PROCESS, set.pidfd);
}

/* Make claims through a leased handle, which share its lease. */
static int share_lease(int fd)
{
	int lease = lease_call(fd, 0, 0, 0, NULL), derived, dmabuf, err;

	if (lease < 0)
		return -1;
	derived = t_derive(fd, R_READ, 0);
	dmabuf = derived < 0 ? -1 : t_export(derived, 0, 0, 0);
	err = errno;
	close(dmabuf);
	close(derived);
	close(lease);
	errno = err;
	return dmabuf < 0 ? -1 : 0;
}

static int map_lease(int fd)
{
	int lease = lease_call(fd, 0, 0, 0, NULL), again, sig = 0, err;
	void *p;

	if (lease < 0)
		return -1;
	again = lease_call(fd, TMESH_LEASE_GET, 0, 0, NULL);
	p = again < 0 ? MAP_FAILED : t_map(again, PAGE, RW);
	err = errno;
	if (p != MAP_FAILED) {
		sig = t_write(p, 1);
		munmap(p, PAGE);
		err = ENOMEM;
	}
	close(again);
	close(lease);
	errno = err;
	return p == MAP_FAILED || sig ? -1 : 0;
}

/* Touch revoked memory, which reads as zeros now. */
static int touch_zeros(int fd)
{
	unsigned char *p = t_map(fd, PAGE, RW);
	int sig;

	if (p == MAP_FAILED || policy(fd, TMESH_POLICY_ZERO) || t_revoke(fd))
		sig = -1;
	else
		sig = t_write(p, 1);
	if (p != MAP_FAILED)
		munmap(p, PAGE);
	if (sig > 0)
		errno = ENOMEM;
	return sig ? -1 : 0;
}

/* Map, touch each 2 MiB, and unmap. A fault without memory is retried or kills. */
static long map_and_touch(int fd, size_t bytes)
{
	unsigned char *p = t_map(fd, bytes, RW);
	int sig = 0;

	if (p == MAP_FAILED)
		return -1;
	for (size_t at = 0; at < bytes && !sig; at += 65 * PAGE)
		sig = t_write(p + at, 1);
	munmap(p, bytes);
	if (sig)
		errno = sig == SIGBUS ? ENOMEM : EINTR;
	return sig ? -1 : 0;
}

static long fork_with_mapping(void)
{
	unsigned char *p = t_map(set.handle, BYTES, RW);
	pid_t pid;
	int status = 0, err;

	if (p == MAP_FAILED)
		return -1;
	pid = t_write(p, 1) ? -1 : fork();
	err = ENOMEM;
	if (!pid)
		_exit(t_write(p + HUGE, 1));
	if (pid > 0)
		waitpid(pid, &status, 0);
	munmap(p, BYTES);
	errno = err;
	return pid < 0 || status ? -1 : 0;
}

static long info_pins(void)
{
	struct tmesh_info i = {.size = sizeof(i), .flags = TMESH_INFO_PINS};

	return ioctl(set.handle, TMESH_INFO, &i);
}

static long opaque(void)
{
	struct tmesh_opaque o = {.size = sizeof(o)};

	return ioctl(set.opaque, TMESH_OPAQUE, &o) ? -1 : o.fd;
}

static long gather(__u32 rights)
{
	struct tmesh_extent extents[20];

	for (size_t i = 0; i < ARRAY_SIZE(extents); i++)
		extents[i] = t_extent(set.handle, 3 * i, 2);
	return t_gather(set.dev, extents, ARRAY_SIZE(extents), rights);
}

static int use_view(int fd)
{
	int dmabuf = t_export(fd, PAGE, 0, TMESH_EXPORT_WRITE), ret, err;

	if (dmabuf < 0)
		return -1;
	ret = map_and_touch(fd, 40 * PAGE) || map_and_touch(dmabuf, 39 * PAGE) ? -1 : t_revoke(fd);
	err = errno;
	close(dmabuf);
	errno = err;
	return ret;
}

/*
 * Import into vgem, with a new device each time: DRM leaks a handle whose number it could not copy
 * to user memory.
 */
static long into_vgem(int dmabuf)
{
	int vgem = open(vgem_path, O_RDWR | O_CLOEXEC), ret, err;

	if (vgem < 0)
		return -1;
	ret = vgem_import(vgem, dmabuf);
	err = errno;
	close(vgem);
	errno = err;
	return ret;
}

SWEEP(open_device, "open of /dev/tmesh", close_fd, open_device())
SWEEP(caps, "CAPS", nothing, caps())
SWEEP(create, "CREATE", close_fd, t_create(set.dev, BYTES, 0))
SWEEP(create_single, "CREATE of single pages", close_fd,
      t_create(set.dev, 40 * PAGE, TMESH_CREATE_NOHUGE))
SWEEP(create_huge, "CREATE of huge pages", close_fd, t_create(set.dev, 2 * HUGE, TMESH_CREATE_HUGE))
SWEEP(create_memfd, "CREATE_MEMFD", close_fd, create_memfd())
SWEEP(create_user, "CREATE_USER", close_fd, create_user())
SWEEP(import_null, "IMPORT of a character device's file", close_fd, import(set.null))
SWEEP(opaque, "OPAQUE", close_fd, opaque())
SWEEP(open_token, "OPEN", close_fd, t_open(set.dev, set.token, R_READ, 0))
SWEEP(derive, "DERIVE", close_fd, t_derive(set.handle, R_READ, 0))
SWEEP(derive_pin, "DERIVE of a pinning handle", close_fd,
      t_derive(set.sealed, R_READ, TMESH_DERIVE_PIN))
SWEEP(token, "CREATE, TOKEN", nothing, on_fresh_region(new_token))
SWEEP(info, "INFO", nothing, info(set.handle, 0))
SWEEP(info_by_id, "INFO by id", nothing, info(set.dev, set.id))
SWEEP(list, "LIST", nothing, list())
SWEEP(holders, "HOLDERS", nothing, holders())
SWEEP(seal, "CREATE, SEAL", nothing, on_fresh_region(t_seal))
SWEEP(revoke, "CREATE, REVOKE", nothing, on_fresh_region(t_revoke))
SWEEP(revoke_pinned, "CREATE, SEAL, DERIVE, REVOKE with holders", nothing,
      on_fresh_region(revoke_pinned))
SWEEP(gather, "GATHER", close_fd, gather(R_READ | R_WRITE))
SWEEP(view, "GATHER, mmap and faults of a view and its dma-buf, revocation", nothing,
      on_fresh(gather(R_READ | R_WRITE), use_view))
SWEEP(fence, "CREATE, SIGNAL, WAIT", nothing, on_fresh_region(signal_and_wait))
SWEEP(revoke_wait, "CREATE, EXPORT, REVOKE and wait", nothing, on_fresh_region(revoke_wait))
SWEEP(info_pins, "INFO with pins", nothing, info_pins())
SWEEP(export, "EXPORT", close_fd, t_export(set.handle, PAGE, 0, TMESH_EXPORT_WRITE))
SWEEP(desc_set, "DESC_SET", undescribe, describe(TMESH_DESC_SET, 300))
SWEEP(desc_get, "DESC_GET", nothing, describe(TMESH_DESC_GET, 300))
SWEEP(map, "mmap and faults", nothing, map_and_touch(set.handle, BYTES))
SWEEP(map_export, "mmap and faults of a dma-buf", nothing, map_and_touch(set.dmabuf, BYTES))
SWEEP(lease, "CREATE, LEASE", nothing, on_fresh_region(put_lease))
SWEEP(lease_process, "CREATE, LEASE of a process", nothing, on_fresh_region(bind_lease))
SWEEP(lease_shared, "CREATE, LEASE, DERIVE and EXPORT with it", nothing,
      on_fresh_region(share_lease))
SWEEP(lease_map, "CREATE, LEASE, LEASE_GET, its mmap and fault", nothing,
      on_fresh_region(map_lease))
SWEEP(zeros, "CREATE, POLICY, REVOKE, a fault of zeros", nothing, on_fresh_region(touch_zeros))
SWEEP(keep, "KEEP", drop_new, keep(set.dev, "new", &set.sealed, 1, 0))
SWEEP(keep_again, "KEEP in place of another", nothing,
      keep(set.dev, "kept", set.kept, 2, TMESH_KEEP_REPLACE))
SWEEP(kept_open, "KEPT_OPEN", close_opened, open_kept())
SWEEP(kept_list, "KEPT_LIST", nothing, kept_list(set.dev, 0, &(struct tmesh_kept){0}, 1))
SWEEP(kept_drop, "KEEP, KEPT_DROP", drop_new, keep_and_drop())
SWEEP(private, "private mmap, faults and first writes", nothing, write_private(set.kept[0]))
SWEEP(fork, "fork with a mapping", nothing, fork_with_mapping())

/* Keep a table of three files of the first region. */
static long keep_table(const char *name, __u32 flags)
{
	struct kept_files *f = no_files();

	files_add(f, "a/b", 0, 0, 4 * PAGE);
	files_add(f, "a/c", 0, 0, PAGE);
	files_add(f, "d", 0, 0, 0);
	return keep_files(set.dev, name, set.kept, 1, f, 0600, flags);
}

static long keep_table_and_drop(void)
{
	long ret = keep_table("kept", TMESH_KEEP_REPLACE);

	if (ret)
		return ret;
	ret = keep(set.dev, "kept", set.kept, 2, TMESH_KEEP_REPLACE);
	if (ret) {
		int code = errno;

		/* The retry succeeds. Put the name back before the next point. */
		keep(set.dev, "kept", set.kept, 2, TMESH_KEEP_REPLACE);
		errno = code;
	}
	return ret;
}

/* Open, read and map a file. Report the first error. */
static long use_file(int fd)
{
	int ret, err;

	if (fd < 0)
		return -1;
	ret = read(fd, range, 1) == 1 && sendfile(set.null, fd, NULL, 1) == 1 ? 0 : -1;
	if (!ret)
		ret = write_private(fd) ? -1 : 0;
	err = errno;
	close(fd);
	errno = err;
	return ret;
}

static long list_folder(int fd)
{
	long ret, err;

	if (fd < 0)
		return -1;
	do
		ret = syscall(SYS_getdents64, fd, range, sizeof(range));
	while (ret > 0);
	err = errno;
	close(fd);
	errno = err;
	return ret;
}

/* Use a new mount, so that no dentry of it is cached. */
static long on_mount(long (*use)(void))
{
	long ret;
	int err;

	if (mount("none", MOUNT, "tmesh", 0, NULL))
		return -1;
	ret = use();
	err = errno;
	umount2(MOUNT, MNT_DETACH);
	errno = err;
	return ret;
}

static long mounted(void)
{
	return 0;
}

static long read_file(void)
{
	return use_file(open(MOUNT "/0/files/a/b", O_RDONLY | O_CLOEXEC));
}

static long list_folders(void)
{
	static const char *const folders[] = {MOUNT, MOUNT "/0", MOUNT "/0/files",
					      MOUNT "/0/files/a"};
	long ret = 0;

	for (size_t i = 0; i < ARRAY_SIZE(folders) && !ret; i++)
		ret = list_folder(open(folders[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	return ret;
}

#define SWEEP_FILES(ident, title, use)              \
	static long op_##ident(void)                \
	{                                           \
		return on_mount(use);               \
	}                                           \
	TEST(ident, title)                          \
	{                                           \
		set_up();                           \
		mkdir(MOUNT, 0755);                 \
		kept_drop(set.dev, "kept");         \
		REQUIRE_OK(keep_table("files", 0)); \
		sweep(op_##ident, nothing);         \
		kept_drop(set.dev, "files");        \
		tear_down();                        \
	}

SWEEP(keep_files, "KEEP of files in place of others, and KEEP without files in place of those",
      nothing, keep_table_and_drop())
SWEEP_FILES(mount_files, "mount of the file system", mounted)
SWEEP_FILES(read_files, "look-up, open, read, splice, mmap and faults of a kept file", read_file)
SWEEP_FILES(list_files, "listing of kept files", list_folders)

TEST(holders_devices, "HOLDERS with a device")
{
	int vgem;

	set_up();
	vgem = open_vgem();
	REQUIRE_OK(vgem_import(vgem, set.dmabuf));
	sweep(holders, nothing);
	close(vgem);
	tear_down();
}

/* The same on memory of tmesh, and through a proxy on memory of vgem */
static int devices_dmabuf;

static long attach(void)
{
	return into_vgem(devices_dmabuf);
}

static long import_vgem(void)
{
	return import(set.foreign);
}

static long export_proxy(void)
{
	return t_export(set.imported, PAGE, 2 * PAGE, TMESH_EXPORT_WRITE);
}

static long map_proxy(void)
{
	return map_and_touch(set.proxy, set.foreign_bytes);
}

static void set_up_vgem(void)
{
	int vgem = open_vgem();

	set_up();
	set.foreign_bytes = 16 * PAGE;
	set.foreign = vgem_buffer(vgem, set.foreign_bytes, DRM_RDWR);
	set.imported = REQUIRE_OK(import(set.foreign));
	set.proxy = REQUIRE_OK(t_export(set.imported, 0, 0, TMESH_EXPORT_WRITE));
	close(vgem);
}

#define SWEEP_VGEM(ident, title, undo) \
	TEST(ident, title)             \
	{                              \
		set_up_vgem();         \
		sweep(ident, undo);    \
		tear_down();           \
	}

SWEEP_VGEM(import_vgem, "IMPORT of a dma-buf", close_fd)
SWEEP_VGEM(export_proxy, "EXPORT of an import", close_fd)
SWEEP_VGEM(map_proxy, "mmap and faults of a proxy", nothing)

TEST(attach, "import into vgem: attach, map, unmap, detach")
{
	set_up_vgem();
	devices_dmabuf = set.dmabuf;
	sweep(attach, nothing);
	tear_down();
}

TEST(attach_proxy, "import of a proxy into vgem: attach, map, unmap, detach")
{
	set_up_vgem();
	devices_dmabuf = set.proxy;
	sweep(attach, nothing);
	tear_down();
}

TEST(points, "all sweeps together")
{
	if (!*points)
		t_skip("no sweep has run");
	t_note("%d points in all", *points);
}

/*
 * Run without restartable sequences: the kernel writes their fields when it returns to user space.
 * An injected fault there is a SIGSEGV that has nothing to do with the operation.
 */
int main(int argc, char **argv)
{
	static const char tunables[] = "GLIBC_TUNABLES";

	if (!getenv(tunables)) {
		setenv(tunables, "glibc.pthread.rseq=0", 1);
		execv("/proc/self/exe", argv);
		return 1;
	}
	points = mmap(NULL, sizeof(*points), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (points == MAP_FAILED)
		return 1;
	return t_main();
}
