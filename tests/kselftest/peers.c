// SPDX-License-Identifier: MIT
/*
 * The checks of the kernel's selftests for similar files, applied to those of tmesh. README.md
 * lists the checks that were left out.
 */
#include <linux/dma-buf.h>

#include "drm.h"
#include "t.h"

#define RW (PROT_READ | PROT_WRITE)

static int memfd_region(int memfd)
{
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};

	return ioctl(t_dev(), TMESH_CREATE_MEMFD, &c) ? -1 : c.fd;
}

static int sealed_memfd(size_t bytes)
{
	int memfd = REQUIRE_OK(memfd_create("peers", MFD_ALLOW_SEALING | MFD_CLOEXEC));

	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	REQUIRE_OK(ftruncate(memfd, bytes));
	return memfd;
}

TEST(udmabuf_offset, "selftest udmabuf: test-1 an offset inside a page is refused")
{
	CHECK_ERR(t_export(REQUIRE_OK(memfd_region(sealed_memfd(4 * PAGE))), PAGE / 2, PAGE, 0),
		  EINVAL);
}

TEST(udmabuf_size, "selftest udmabuf: test-2 a size of half a page is refused")
{
	CHECK_ERR(t_export(REQUIRE_OK(memfd_region(sealed_memfd(4 * PAGE))), 0, PAGE / 2, 0),
		  EINVAL);
}

TEST_CALL(udmabuf_file, "selftest udmabuf: test-3 a file that is no memfd is refused",
	  CHECK_ERR(memfd_region(REQUIRE_OK(open("/dev/null", O_RDWR))), EINVAL))

TEST(udmabuf_good, "selftest udmabuf: test-4 a sealed memfd of whole pages is taken")
{
	int memfd = sealed_memfd(4 * PAGE);
	char *p = t_map(memfd, 4 * PAGE, RW);

	REQUIRE(p != MAP_FAILED);
	memset(p, 'a', 4 * PAGE);
	CHECK_OK(t_export(REQUIRE_OK(memfd_region(memfd)), 0, 4 * PAGE, TMESH_EXPORT_WRITE));
}

/* Check that later writes through the memfd show in its slices. */
static void check_migration(int h, char *p, size_t bytes, size_t step)
{
	memset(p, 'a', bytes);
	for (int i = 0; i < 4; i++) {
		size_t at = i * (bytes / 4);
		int fd = REQUIRE_OK(t_export(h, at, 4 * PAGE, TMESH_EXPORT_WRITE));
		char *q = t_map(fd, 4 * PAGE, RW);

		REQUIRE(q != MAP_FAILED);
		for (size_t k = 0; k < bytes; k += step)
			p[k] = 'b' + i;
		for (size_t k = 0; k < 4 * PAGE; k += PAGE)
			CHECK_EQ(q[k], p[at + k]);
		munmap(q, 4 * PAGE);
		close(fd);
	}
}

TEST(udmabuf_small, "selftest udmabuf: test-5 later writes are seen, pages of 4 KiB")
{
	const size_t bytes = 1024 * PAGE;
	int memfd = sealed_memfd(bytes);
	char *p = t_map(memfd, bytes, RW);

	REQUIRE(p != MAP_FAILED);
	check_migration(REQUIRE_OK(memfd_region(memfd)), p, bytes, PAGE);
}

TEST(udmabuf_huge, "selftest udmabuf: test-6 later writes are seen, pages of 2 MiB")
{
	const size_t bytes = 4 * HUGE;
	int dev = t_dev(), h;
	char *p;

	if (!t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	h = REQUIRE_OK(t_create(dev, bytes, TMESH_CREATE_HUGE));
	p = t_map(h, bytes, RW);
	REQUIRE(p != MAP_FAILED);
	check_migration(h, p, bytes, PAGE);
}

static int sync_rw(int fd, __u64 which)
{
	struct dma_buf_sync s = {.flags = which | DMA_BUF_SYNC_RW};

	return ioctl(fd, DMA_BUF_IOCTL_SYNC, &s);
}

static int buffer(int dev, size_t bytes)
{
	int h = REQUIRE_OK(t_create(dev, bytes, 0)), fd;

	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	close(h);
	return fd;
}

TEST(heap_import, "selftest dmabuf-heap: alloc_and_import, with syncs around both writes")
{
	int vgem = open_vgem(), fd = buffer(t_dev(), MB), handle;
	char *p = t_map(fd, MB, RW);

	REQUIRE(p != MAP_FAILED);
	CHECK_OK(sync_rw(fd, DMA_BUF_SYNC_START));
	memset(p, 1, MB / 2);
	memset(p + MB / 2, 0, MB / 2);
	CHECK_OK(sync_rw(fd, DMA_BUF_SYNC_END));
	handle = REQUIRE_OK(vgem_import(vgem, fd));
	CHECK_OK(sync_rw(fd, DMA_BUF_SYNC_START));
	memset(p, 0xff, MB);
	CHECK_OK(sync_rw(fd, DMA_BUF_SYNC_END));
	CHECK_OK(vgem_close(vgem, handle));
}

static void check_zeroed(size_t bytes)
{
	int dev = t_dev(), fds[32];
	size_t dirty = 0;

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 32; i++) {
			unsigned char *p;

			fds[i] = buffer(dev, bytes);
			p = t_map(fds[i], bytes, RW);
			REQUIRE(p != MAP_FAILED);
			CHECK_OK(sync_rw(fds[i], DMA_BUF_SYNC_START));
			for (size_t k = 0; k < bytes; k++)
				dirty += p[k] != 0;
			memset(p, 0xff, bytes);
			CHECK_OK(sync_rw(fds[i], DMA_BUF_SYNC_END));
			munmap(p, bytes);
		}
		for (int i = 0; i < 32; i++)
			close(fds[i]);
	}
	CHECK_EQ(dirty, 0);
}

TEST_CALL(heap_zeroed_small, "selftest dmabuf-heap: alloc_zeroed, 32 buffers of 4 KiB",
	  check_zeroed(4 * KB))
TEST_CALL(heap_zeroed_large, "selftest dmabuf-heap: alloc_zeroed, 32 buffers of 1 MiB",
	  check_zeroed(MB))

TEST(heap_errors, "selftest dmabuf-heap: alloc_errors, wrong file and unknown flags")
{
	int dev = t_dev();

	CHECK_ERR(t_create(REQUIRE_OK(open("/dev/null", O_RDWR)), MB, 0), ENOTTY);
	CHECK_ERR(t_create(dev, MB, 0x111100), EOPNOTSUPP);
	CHECK_ERR(t_export(REQUIRE_OK(t_create(dev, MB, 0)), 0, 0, ~(__u32)(O_RDWR | O_CLOEXEC)),
		  EOPNOTSUPP);
}

/* /sys/kernel/debug/gup_test */
#define GUP_START _IOW('g', 7, struct gup_range)
#define GUP_STOP _IO('g', 8)
#define GUP_READ _IOW('g', 9, __u64)
#define GUP_WRITE 1
#define GUP_FAST 2

struct gup_range {
	__u64 address;
	__u64 bytes;
	__u32 flags;
};

/* Check that the pinned pages are those of @fd, and stay so. */
static void check_gup_of(int fd, size_t bytes, __u32 flags)
{
	int gup = open("/sys/kernel/debug/gup_test", O_RDWR | O_CLOEXEC);
	unsigned char *p = t_map(fd, bytes, RW), *q = t_map(fd, bytes, RW), *seen = malloc(bytes);
	struct gup_range range = {(__u64)(unsigned long)p, bytes, flags};
	__u64 to = (__u64)(unsigned long)seen;

	if (gup < 0)
		t_skip("this kernel has no gup_test");
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED && seen);
	memset(p, 1, bytes);
	if (!(flags & GUP_WRITE))
		REQUIRE_OK(mprotect(p, bytes, PROT_READ));
	REQUIRE_OK(ioctl(gup, GUP_START, &range));
	for (int value = 1; value <= 2; value++) {
		memset(q, value, bytes);
		REQUIRE_OK(ioctl(gup, GUP_READ, &to));
		CHECK(!memcmp(seen, p, bytes));
	}
	CHECK_OK(ioctl(gup, GUP_STOP));
	munmap(p, bytes);
	munmap(q, bytes);
	free(seen);
	close(gup);
}

static void check_gup(__u32 flags)
{
	int dev = t_dev(), h = REQUIRE_OK(t_create(dev, MB, TMESH_CREATE_NOHUGE));
	int dmabuf = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));

	check_gup_of(h, MB, flags);
	check_gup_of(dmabuf, MB, flags);
	check_gup_of(REQUIRE_OK(memfd_region(sealed_memfd(MB))), MB, flags);
	if (t_has_huge(dev))
		check_gup_of(REQUIRE_OK(t_create(dev, HUGE, TMESH_CREATE_HUGE)), HUGE, flags);
}

TEST_CALL(gup_rw, "selftest gup_longterm: R/W longterm GUP pin in MAP_SHARED file mapping",
	  check_gup(GUP_WRITE))
TEST_CALL(gup_rw_fast,
	  "selftest gup_longterm: R/W longterm GUP-fast pin in MAP_SHARED file mapping",
	  check_gup(GUP_WRITE | GUP_FAST))
TEST_CALL(gup_ro, "selftest gup_longterm: R/O longterm GUP pin in MAP_SHARED file mapping",
	  check_gup(0))
TEST_CALL(gup_ro_fast,
	  "selftest gup_longterm: R/O longterm GUP-fast pin in MAP_SHARED file mapping",
	  check_gup(GUP_FAST))
