// SPDX-License-Identifier: MIT
/*
 * Operations on regions, of which each allocation and each copy to or from user space fails in
 * turn. failnth_keep.c has those on kept regions and files.
 */
#include "drm.h"
#include "failnth.h"
#include "lease.h"

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
SWEEP(fork, "fork with a mapping", nothing, fork_with_mapping())

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

int main(int argc, char **argv)
{
	return failnth_main(argv);
}
