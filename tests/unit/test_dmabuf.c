// SPDX-License-Identifier: MIT
/*
 * Regions as dma-bufs, on memfd through /dev/udmabuf: refusals, and a driver (vgem) that imports
 * one.
 */
#include <libdrm/drm.h>
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>

#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)
#define PAGE 4096

/* The device that makes dma-bufs of memfds is another than the module. */
static bool can_export(void)
{
	return unit_on_kernel() || access("/dev/udmabuf", R_OK | W_OK) == 0;
}

static int open_vgem(void)
{
	for (int i = 0; i < 16; i++) {
		char path[32], name[8] = "";
		struct drm_version version = {.name = name, .name_len = sizeof(name) - 1};
		int fd;

		snprintf(path, sizeof(path), "/dev/dri/card%d", i);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0 && !ioctl(fd, DRM_IOCTL_VERSION, &version) && !strcmp(name, "vgem"))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -1;
}

static void test_refused(void **state)
{
	struct tmesh_region *region = new_region(*state, 3 * PAGE), *reader;
	int fd = -7;

	assert_ok(tmesh_region_derive(region, TMESH_READ, &reader, err));
	assert_refused(tmesh_region_export_dmabuf(region, 1, 0, RW, &fd, err), -EINVAL, "pages");
	assert_refused(tmesh_region_export_dmabuf(region, 0, 100, RW, &fd, err), -EINVAL, "pages");
	assert_refused(tmesh_region_export_dmabuf(region, 3 * PAGE, 0, RW, &fd, err), -EINVAL,
		       "inside");
	assert_refused(tmesh_region_export_dmabuf(region, PAGE, 3 * PAGE, RW, &fd, err), -EINVAL,
		       "inside");
	assert_refused(tmesh_region_export_dmabuf(region, 0, 0, 0, &fd, err), -EINVAL, "READ");
	assert_refused(tmesh_region_export_dmabuf(reader, 0, 0, RW, &fd, err), -EACCES, "write");
	if (!unit_on_kernel())
		assert_refused(tmesh_region_export_dmabuf(region, 0, 0, TMESH_READ, &fd, err),
			       -EOPNOTSUPP, "writable");
	if (!can_export())
		assert_refused(tmesh_region_export_dmabuf(region, 0, 0, RW, &fd, err), -EOPNOTSUPP,
			       "udmabuf");
	assert_ok(tmesh_region_seal(region, err));
	assert_refused(tmesh_region_export_dmabuf(region, 0, 0, RW, &fd, err),
		       unit_on_kernel() ? -EPERM : -EOPNOTSUPP, "sealed");
	assert_int_equal(fd, -7);
	tmesh_region_unref(reader);
	tmesh_region_unref(region);
}

static void *map_dmabuf(int fd, size_t bytes, int prot)
{
	void *addr = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(addr, MAP_FAILED);
	return addr;
}

static void sync_dmabuf(int fd, uint64_t flags)
{
	struct dma_buf_sync sync = {.flags = flags};

	assert_int_equal(ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync), 0);
}

static ino_t inode_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

/* A slice that a driver has imported: the same memory both ways, and alive without us. */
static void test_import(void **state)
{
	struct drm_prime_handle prime = {.fd = -1}, back = {.flags = DRM_CLOEXEC | DRM_RDWR};
	struct drm_gem_close close_handle = {0};
	struct tmesh_region *region = new_region(*state, 3 * PAGE);
	int vgem = open_vgem();
	char *ours, *theirs;

	assert_ok(tmesh_region_map(region, RW, (void **)&ours, err));
	strcpy(ours + PAGE, "from the region");
	assert_ok(tmesh_region_export_dmabuf(region, PAGE, 2 * PAGE, RW, &prime.fd, err));
	assert_int_equal(lseek(prime.fd, 0, SEEK_END), 2 * PAGE);

	assert_int_equal(ioctl(vgem, DRM_IOCTL_PRIME_FD_TO_HANDLE, &prime), 0);
	back.handle = prime.handle;
	assert_int_equal(ioctl(vgem, DRM_IOCTL_PRIME_HANDLE_TO_FD, &back), 0);
	assert_int_equal(inode_of(back.fd), inode_of(prime.fd));
	close(prime.fd);

	theirs = map_dmabuf(back.fd, 2 * PAGE, PROT_READ | PROT_WRITE);
	sync_dmabuf(back.fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW);
	assert_string_equal(theirs, "from the region");
	strcpy(theirs + PAGE, "from the driver");
	sync_dmabuf(back.fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW);
	assert_string_equal(ours + 2 * PAGE, "from the driver");

	tmesh_region_unmap(region, RW);
	assert_refused(tmesh_region_seal(region, err), -EBUSY, "export");
	tmesh_region_unref(region);
	assert_string_equal(theirs + PAGE, "from the driver");
	munmap(theirs, 2 * PAGE);
	close(back.fd);
	close_handle.handle = prime.handle;
	assert_int_equal(ioctl(vgem, DRM_IOCTL_GEM_CLOSE, &close_handle), 0);
	close(vgem);
}

/* The writer goes with the dma-buf: then the region can be sealed. */
static void test_seal_after(void **state)
{
	struct tmesh_region *region = new_region(*state, 2 * PAGE);
	char *addr;
	int fd;

	assert_ok(tmesh_region_write(region, 0, "written", 8, err));
	assert_ok(tmesh_region_export_dmabuf(region, 0, 0, RW, &fd, err));
	assert_refused(tmesh_region_seal(region, err), -EBUSY, "export");
	close(fd);
	assert_ok(tmesh_region_seal(region, err));
	if (unit_on_kernel()) {
		assert_ok(tmesh_region_export_dmabuf(region, 0, 0, TMESH_READ, &fd, err));
		assert_ptr_equal(mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
		addr = map_dmabuf(fd, PAGE, PROT_READ);
		assert_string_equal(addr, "written");
		munmap(addr, PAGE);
		close(fd);
	}
	tmesh_region_unref(region);
}

static uint32_t vgem_import(int vgem, int fd)
{
	struct drm_prime_handle prime = {.fd = fd};

	assert_int_equal(ioctl(vgem, DRM_IOCTL_PRIME_FD_TO_HANDLE, &prime), 0);
	return prime.handle;
}

/* A refused reclaim names the driver that has the memory, and a view through which a process has
 * it. */
static void test_reclaim_names(void **state)
{
	struct tmesh_region *region, *view;
	int vgem = open_vgem(), fd;
	char name[40] = "vgem";

	for (int by_view = 0; by_view < 2; by_view++) {
		struct tmesh_gather_extent whole = {.bytes = 2 * PAGE};
		struct drm_gem_close close_handle = {0};

		assert_ok(tmesh_region_create(*state, 2 * PAGE, NULL, &region, err));
		whole.region = view = region;
		if (by_view) {
			assert_ok(tmesh_region_gather(*state, &whole, 1, RW, NULL, &view, err));
			snprintf(name, sizeof(name), ": view %016llx",
				 (unsigned long long)tmesh_region_id(view));
		}
		assert_ok(tmesh_region_export_dmabuf(view, 0, 0, RW, &fd, err));
		close_handle.handle = vgem_import(vgem, fd);
		close(fd);
		assert_refused(tmesh_region_reclaim(region, 50000000, NULL, err), -ETIMEDOUT, name);
		assert_int_equal(ioctl(vgem, DRM_IOCTL_GEM_CLOSE, &close_handle), 0);
		if (by_view)
			tmesh_region_unref(view);
		assert_ok(tmesh_region_reclaim(region, 60000000000, NULL, err));
		tmesh_region_unref(region);
	}
	close(vgem);
}

/* That of Linux 6.13 and later takes no pages before a process maps what it has imported. */
static bool vgem_takes_pages(void)
{
	struct utsname machine;
	int major, minor;

	assert_int_equal(uname(&machine), 0);
	assert_int_equal(sscanf(machine.release, "%d.%d", &major, &minor), 2);
	return major < 6 || (major == 6 && minor < 13);
}

static int run_all(void)
{
	const struct CMUnitTest tests[] = {TEST(test_refused)};
	const struct CMUnitTest exports[] = {TEST(test_seal_after)};
	const struct CMUnitTest imports[] = {TEST(test_import)};
	const struct CMUnitTest reclaims[] = {TEST(test_reclaim_names)};
	int failed =
		cmocka_run_group_tests_name("dmabuf", tests, unit_ctx_setup, unit_ctx_teardown);
	int vgem = open_vgem();

	if (!can_export())
		return failed + UNIT_SKIP(exports, "no /dev/udmabuf") +
		       UNIT_SKIP(imports, "no /dev/udmabuf");
	failed += cmocka_run_group_tests_name("export", exports, unit_ctx_setup, unit_ctx_teardown);
	if (vgem < 0)
		return failed + UNIT_SKIP(imports, "no vgem device");
	close(vgem);
	failed += cmocka_run_group_tests_name("import", imports, unit_ctx_setup, unit_ctx_teardown);
	if (!unit_on_kernel())
		return failed + UNIT_SKIP(reclaims, "no memory comes back from a driver on memfd");
	if (!vgem_takes_pages())
		return failed + UNIT_SKIP(reclaims, "this kernel's vgem takes no pages by itself");
	return failed +
	       cmocka_run_group_tests_name("reclaim", reclaims, unit_ctx_setup, unit_ctx_teardown);
}

int main(void)
{
	int failed = run_all();

	/* Where the module is, udmabuf is too, and what memfds do with it is to be seen. */
	if (unit_on_kernel()) {
		unit_memfd_setup(NULL);
		failed += run_all();
	}
	return failed;
}
