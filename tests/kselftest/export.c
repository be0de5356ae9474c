// SPDX-License-Identifier: MIT
/*
 * Exports as dma-bufs: the rights of the files, and real importers.
 */
#include <linux/dma-buf.h>

#include "drm.h"
#include "peer.h"
#include "t.h"
#include "v4l2.h"

#define BYTES (4 * MB)
#define RW (PROT_READ | PROT_WRITE)

static int dev;

static int region(__u32 flags)
{
	dev = t_dev();
	return REQUIRE_OK(t_create(dev, BYTES, flags));
}

/* Map a region whose pages begin with their number. */
static unsigned char *numbered(int h)
{
	unsigned char *p = t_map(h, BYTES, RW);

	REQUIRE(p != MAP_FAILED);
	for (size_t i = 0; i < BYTES; i += PAGE)
		*(size_t *)(p + i) = i / PAGE;
	return p;
}

static bool numbers_from(const unsigned char *p, size_t bytes, size_t first)
{
	for (size_t i = 0; i < bytes; i += PAGE)
		if (*(const size_t *)(p + i) != first + i / PAGE)
			return false;
	return true;
}

TEST(whole, "an export shows the whole region, by size and by bytes")
{
	int h = region(0), fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	unsigned char *p = numbered(h), *q = t_map(fd, BYTES, RW);

	REQUIRE(q != MAP_FAILED);
	CHECK_EQ(lseek(fd, 0, SEEK_END), BYTES);
	CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
	CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	CHECK(numbers_from(q, BYTES, 0));
	q[HUGE + 8] = 1;
	CHECK_EQ(p[HUGE + 8], 1);
	CHECK_EQ(t_info(h).exports, 1);
	close(fd);
	CHECK_EQ(t_info(h).exports, 1);
	munmap(q, BYTES);
	CHECK_EQ(t_info(h).exports, 0);
}

TEST(slice, "a slice shows its pages and none beside them")
{
	int h = region(0), fd;
	unsigned char *p = numbered(h), *q;

	fd = REQUIRE_OK(t_export(h, HUGE - 3 * PAGE, 7 * PAGE, TMESH_EXPORT_WRITE));
	CHECK_EQ(lseek(fd, 0, SEEK_END), 7 * PAGE);
	q = t_map(fd, 7 * PAGE, RW);
	REQUIRE(q != MAP_FAILED);
	CHECK(numbers_from(q, 7 * PAGE, 509));
	q[6 * PAGE + 8] = 8;
	CHECK_EQ(p[HUGE + 3 * PAGE + 8], 8);
	CHECK_ERR(t_map(fd, 8 * PAGE, RW), EINVAL);
	q = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 5 * PAGE);
	CHECK(q != MAP_FAILED && numbers_from(q, 2 * PAGE, 514));
	CHECK_EQ((long)mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 6 * PAGE), -1);
	CHECK_EQ((long)mmap(NULL, PAGE, RW, MAP_SHARED, fd, 7 * PAGE), -1);
	fd = REQUIRE_OK(t_export(h, BYTES - PAGE, 0, 0));
	CHECK_EQ(lseek(fd, 0, SEEK_END), PAGE);
}

TEST(bad_slices, "slices that are no whole pages or leave the region give EINVAL")
{
	static const struct {
		__u64 offset, bytes;
	} bad[] = {
		{1, PAGE},
		{512, 0},
		{0, 1},
		{0, PAGE + 1},
		{PAGE, BYTES},
		{0, BYTES + PAGE},
		{BYTES, 0},
		{BYTES, PAGE},
		{BYTES + PAGE, 0},
		{~0ull - PAGE + 1, 2 * PAGE},
		{PAGE, ~0ull - PAGE + 1},
		{1ull << 63, 1ull << 63},
	};
	int h = region(0);

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		if (!CHECK_ERR(t_export(h, bad[i].offset, bad[i].bytes, 0), EINVAL))
			t_note("at %#llx, %#llx bytes", bad[i].offset, bad[i].bytes);
	CHECK_EQ(t_info(h).exports, 0);
}

TEST(read_only, "a read-only export refuses every writable mapping")
{
	int h = region(0), fd = REQUIRE_OK(t_export(h, 0, 0, 0)), mem;
	unsigned char *p = numbered(h), *q, c = 1;
	char path[64];

	CHECK_ERR(t_map(fd, BYTES, RW), EACCES);
	CHECK_ERR(t_map(fd, BYTES, PROT_WRITE), EACCES);
	q = t_map(fd, BYTES, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	CHECK(numbers_from(q, BYTES, 0));
	CHECK_ERR(mprotect(q, BYTES, RW), EACCES);
	mem = REQUIRE_OK(open("/proc/self/mem", O_RDWR | O_CLOEXEC));
	CHECK_EQ(pwrite(mem, &c, 1, (off_t)(unsigned long)(q + 8)), -1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	CHECK_EQ(open(path, O_RDWR), -1);
	fcntl(fd, F_SETFL, O_RDWR);
	CHECK_ERR(t_map(fd, BYTES, RW), EACCES);
	CHECK_EQ(p[8], 0);
}

TEST(read_only_import,
     "nor does it become writable where an importer's file maps it that can write")
{
	int h = region(0), fd = REQUIRE_OK(t_export(h, 0, 0, 0)), peer = open_peer();
	unsigned char *p = numbered(h), *q;

	REQUIRE_OK(peer_import(peer, fd, PEER_WAITS));
	CHECK_ERR(t_map(peer, BYTES, RW), EACCES);
	q = t_map(peer, BYTES, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	CHECK(numbers_from(q, BYTES, 0));
	CHECK_ERR(mprotect(q, BYTES, RW), EACCES);
	CHECK_EQ(t_write(q + 8, 1), SIGSEGV);
	CHECK_EQ(p[8], 0);

	/* A writable export can, in the same way. */
	munmap(q, BYTES);
	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	REQUIRE_OK(peer_import(peer, fd, PEER_WAITS));
	q = t_map(peer, BYTES, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	CHECK_OK(mprotect(q, BYTES, RW));
	CHECK_EQ(t_write(q + 8, 1), 0);
	CHECK_EQ(p[8], 1);
}

TEST(private, "private mappings of an export give EINVAL")
{
	int h = region(0), fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));

	CHECK_ERR(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0), EINVAL);
	CHECK_ERR(mmap(NULL, PAGE, RW, MAP_PRIVATE, fd, 0), EINVAL);
}

TEST(executable, "nothing of a region is mapped executable, nor becomes so, by handles and exports")
{
	int h = region(0), memfd = REQUIRE_OK(memfd_create("export", MFD_ALLOW_SEALING));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};
	int files[4] = {h, REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE))};

	REQUIRE_OK(ftruncate(memfd, BYTES));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	REQUIRE_OK(ioctl(t_dev(), TMESH_CREATE_MEMFD, &c));
	files[2] = c.fd;
	files[3] = REQUIRE_OK(t_export(c.fd, 0, 0, 0));
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		unsigned char *p = t_map(files[i], BYTES, PROT_READ);

		REQUIRE(p != MAP_FAILED);
		CHECK_ERR(mprotect(p, BYTES, PROT_READ | PROT_EXEC), EACCES);
		CHECK_EQ(t_read(p), 0);
		CHECK_ERR(t_map(files[i], BYTES, PROT_READ | PROT_EXEC), EPERM);
	}
}

TEST(holds, "an export holds the region after the last handle")
{
	int h = region(0), fd = REQUIRE_OK(t_export(h, PAGE, 2 * PAGE, 0));
	struct tmesh_info i = t_info(h);
	unsigned char *q;

	numbered(h);
	close(h);
	munmap(numbered(REQUIRE_OK(t_create(dev, BYTES, 0))), BYTES);
	REQUIRE_OK(ioctl(dev, TMESH_INFO, &(struct tmesh_info){.size = sizeof(i), .id = i.id}));
	q = t_map(fd, 2 * PAGE, PROT_READ);
	CHECK(q != MAP_FAILED && numbers_from(q, 2 * PAGE, 1));
}

TEST(last, "the export's end is the region's when nothing else holds it")
{
	int h = region(0), fd = REQUIRE_OK(t_export(h, 0, 0, 0));
	void *q = t_map(fd, BYTES, PROT_READ);

	CHECK_EQ(t_read(q), 0);
	close(h);
	CHECK_EQ(t_listed(dev), 1);
	close(fd);
	CHECK_EQ(t_listed(dev), 1);
	CHECK_EQ(t_read(q), 0);
	munmap(q, BYTES);
	CHECK_EQ(t_listed(dev), 0);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

TEST(cpu_sync, "DMA_BUF_IOCTL_SYNC brackets access by the CPU")
{
	int h = region(0), fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));

	CHECK_OK(t_sync_cpu(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW));
	CHECK_OK(t_sync_cpu(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW));
	CHECK_OK(t_sync_cpu(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ));
	CHECK_OK(t_sync_cpu(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ));
	CHECK_ERR(t_sync_cpu(fd, DMA_BUF_SYNC_START), EINVAL);
	CHECK_ERR(t_sync_cpu(fd, 1ull << 40), EINVAL);
	fd = REQUIRE_OK(t_export(h, 0, 0, 0));
	CHECK_OK(t_sync_cpu(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ));
	CHECK_OK(t_sync_cpu(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ));
}

TEST(sync_file, "an export gives and takes sync files, and is ready to poll")
{
	int h = region(0), fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	struct dma_buf_export_sync_file out = {.flags = DMA_BUF_SYNC_RW, .fd = -1};
	struct dma_buf_import_sync_file in = {.flags = DMA_BUF_SYNC_WRITE};
	struct pollfd pf = {.fd = fd, .events = POLLIN | POLLOUT};

	CHECK_EQ(poll(&pf, 1, 0), 1);
	CHECK_EQ(pf.revents, POLLIN | POLLOUT);
	REQUIRE_OK(ioctl(fd, DMA_BUF_IOCTL_EXPORT_SYNC_FILE, &out));
	pf = (struct pollfd){.fd = out.fd, .events = POLLIN};
	CHECK_EQ(poll(&pf, 1, 1000), 1);
	in.fd = out.fd;
	CHECK_OK(ioctl(fd, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, &in));
	CHECK_OK(t_revoke(h));
}

/* vgem, through DRM's PRIME calls */

static void try_vgem(__u32 flags)
{
	int vgem = open_vgem(), h = region(flags), whole, slice, a;
	unsigned char *p = numbered(h);

	whole = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	slice = REQUIRE_OK(t_export(h, 5 * PAGE, 600 * PAGE, TMESH_EXPORT_WRITE));
	a = REQUIRE_OK(vgem_import(vgem, whole));
	REQUIRE_OK(vgem_import(vgem, slice));
	CHECK_EQ(vgem_import(vgem, whole), a);
	CHECK_EQ(t_info(h).attachments, 2);
	CHECK_EQ(t_info(h).exports, 2);
	close(whole);
	close(slice);
	CHECK_EQ(t_info(h).exports, 2);
	CHECK_OK(vgem_close(vgem, a));
	CHECK_EQ(t_info(h).attachments, 1);
	close(vgem);
	CHECK_EQ(t_info(h).attachments, 0);
	CHECK_EQ(t_info(h).exports, 0);
	munmap(p, BYTES);
	close(h);
}

TEST(vgem, "vgem imports the whole region and a slice")
{
	try_vgem(0);
	try_vgem(TMESH_CREATE_NOHUGE);
}

TEST(vgem_huge, "vgem imports a region of huge pages and a slice of it")
{
	dev = t_dev();
	if (!t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	try_vgem(TMESH_CREATE_HUGE);
}

TEST(vgem_read_only, "vgem, which maps for writing, cannot map a read-only export")
{
	int vgem = open_vgem(), h = region(0), fd = REQUIRE_OK(t_export(h, 0, 0, 0)), handle;

	handle = vgem_import(vgem, fd);
	/* After 6.12 vgem may only attach, and map later. */
	if (handle >= 0 && t_kernel_at_least(6, 13))
		CHECK_OK(vgem_close(vgem, handle));
	else
		CHECK_ERR(handle, EACCES);
	CHECK_EQ(t_info(h).attachments, 0);
	CHECK_OK(t_seal(h));
}

TEST(vgem_back, "vgem hands the same dma-buf out again")
{
	int vgem = open_vgem(), h = region(0), fd, handle;
	struct drm_prime_handle out = {.flags = DRM_CLOEXEC | DRM_RDWR};
	unsigned char *p = numbered(h), *q;

	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	handle = REQUIRE_OK(vgem_import(vgem, fd));
	out.handle = handle;
	REQUIRE_OK(ioctl(vgem, DRM_IOCTL_PRIME_HANDLE_TO_FD, &out));
	q = t_map(out.fd, BYTES, RW);
	REQUIRE(q != MAP_FAILED);
	CHECK(numbers_from(q, BYTES, 0));
	q[8] = 6;
	CHECK_EQ(p[8], 6);
	CHECK_EQ(t_info(h).exports, 1);
}

/* Return the physical address of a page. */
static unsigned long long physical(const volatile void *p)
{
	int fd = REQUIRE_OK(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
	unsigned long long entry;

	REQUIRE(!t_read(p));
	REQUIRE(pread(fd, &entry, 8, (unsigned long)p / PAGE * 8) == 8);
	close(fd);
	/* The lower 55 bits are the number of the page frame. */
	return (entry & ((1ull << 55) - 1)) * PAGE;
}

/* Test whether a device has memory mapped that begins at @address. */
static bool device_maps(unsigned long long address)
{
	FILE *f = fopen("/sys/kernel/debug/dma-api/dump", "re");
	bool found = false;
	char line[400];

	if (!f)
		t_skip("this kernel does not tell what devices have mapped");
	while (!found && fgets(line, sizeof(line), f)) {
		const char *at = strstr(line, " P=");

		found = at && strtoull(at + 3, NULL, 16) == address;
	}
	fclose(f);
	return found;
}

TEST(device_slice, "a device that imports a slice gets its pages, not the region's first")
{
	int vgem = open_vgem(), h = region(TMESH_CREATE_NOHUGE), fd;
	unsigned char *p = numbered(h);

	if (t_kernel_at_least(6, 13))
		t_skip("vgem may only attach, and map when it needs to");
	fd = REQUIRE_OK(t_export(h, 77 * PAGE, 5 * PAGE, TMESH_EXPORT_WRITE));
	CHECK(!device_maps(physical(p + 77 * PAGE)));
	REQUIRE_OK(vgem_import(vgem, fd));
	CHECK(device_maps(physical(p + 77 * PAGE)));
	CHECK(!device_maps(physical(p)));
}

/* vivid captures frames into a region through V4L2_MEMORY_DMABUF. */

TEST(vivid, "vivid captures frames into slices of a region")
{
	enum {
		SLICE = 1 << 20,
		FRAMES = 6
	};
	struct v4l2_format f = {0};
	int video = open_vivid(&f), h = region(0), fds[2], type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
	unsigned char *p = t_map(h, BYTES, PROT_READ);

	f.fmt.pix.width = 320;
	f.fmt.pix.height = 180;
	f.fmt.pix.pixelformat = V4L2_PIX_FMT_RGB24;
	REQUIRE_OK(ioctl(video, VIDIOC_S_FMT, &f));
	REQUIRE(f.fmt.pix.sizeimage <= SLICE && p != MAP_FAILED);
	REQUIRE_OK(request_buffers(video, 2));
	for (int i = 0; i < 2; i++) {
		fds[i] = REQUIRE_OK(t_export(h, i * SLICE, SLICE, TMESH_EXPORT_WRITE));
		REQUIRE_OK(queue(video, i, fds[i]));
	}
	REQUIRE_OK(ioctl(video, VIDIOC_STREAMON, &type));
	for (int frame = 0; frame < FRAMES; frame++) {
		struct pollfd pf = {.fd = video, .events = POLLIN};
		struct v4l2_buffer b = {.type = type, .memory = V4L2_MEMORY_DMABUF};
		unsigned long sum = 0;

		REQUIRE(poll(&pf, 1, 60000) == 1);
		REQUIRE_OK(ioctl(video, VIDIOC_DQBUF, &b));
		CHECK_EQ(b.bytesused, f.fmt.pix.sizeimage);
		for (unsigned int i = 0; i < b.bytesused; i++)
			sum += p[b.index * SLICE + i];
		CHECK(sum > 0);
		CHECK_OK(queue(video, b.index, fds[b.index]));
	}
	CHECK_OK(ioctl(video, VIDIOC_STREAMOFF, &type));
	for (size_t i = 2 * SLICE; i < BYTES; i++)
		if (p[i])
			REQUIRE(!"beyond the slices nothing was written");
	CHECK_OK(request_buffers(video, 0));
	close(fds[0]);
	close(fds[1]);
	CHECK_EQ(t_info(h).exports, 0);
	CHECK_OK(t_seal(h));
}

TEST(vivid_read_only, "vivid cannot capture into a read-only export")
{
	struct v4l2_format f = {0};
	int video = open_vivid(&f), h = region(0);

	REQUIRE_OK(request_buffers(video, 1));
	CHECK_EQ(queue(video, 0, REQUIRE_OK(t_export(h, 0, 0, 0))), -1);
	CHECK_OK(request_buffers(video, 0));
}

/* See the table of importers in docs/internals/abi.md. */
TEST(sealed_importers, "vgem and vivid get nothing of a sealed region, and write nothing into it")
{
	int h = region(0), fd, handle, vgem = open_vgem(), video;
	struct v4l2_format f = {0};
	unsigned char *p = numbered(h);

	munmap(p, BYTES);
	REQUIRE_OK(t_seal(h));
	CHECK_ERR(t_export(h, 0, 0, TMESH_EXPORT_WRITE), EPERM);
	fd = REQUIRE_OK(t_export(h, 0, 0, 0));
	handle = vgem_import(vgem, fd);
	if (handle >= 0 && t_kernel_at_least(6, 13))
		CHECK_OK(vgem_close(vgem, handle));
	else
		CHECK_ERR(handle, EACCES);
	CHECK_EQ(t_info(h).attachments, 0);
	video = open_vivid(&f);
	REQUIRE_OK(request_buffers(video, 1));
	CHECK_EQ(queue(video, 0, fd), -1);
	CHECK_OK(request_buffers(video, 0));
	p = t_map(h, BYTES, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	CHECK(numbers_from(p, BYTES, 0));
}

TEST(revoked, "after a revocation the export's mappings and calls are stale")
{
	int h = region(0), fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	unsigned char *q = t_map(fd, BYTES, RW);

	REQUIRE(q != MAP_FAILED);
	CHECK_EQ(t_write(q, 1), 0);
	CHECK_OK(t_revoke(h));
	CHECK_EQ(t_read(q), SIGBUS);
	CHECK_ERR(t_map(fd, BYTES, PROT_READ), ESTALE);
	t_sync_cpu(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW);
	t_sync_cpu(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW);
}
