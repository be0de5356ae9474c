// SPDX-License-Identifier: MIT
/* TMESH_IMPORT of other exporters' dma-bufs: rights, mappings, proxies, fences, lifetimes. */
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>

#include "drm.h"
#include "lease.h"
#include "peer.h"
#include "v4l2.h"

/* At most as much as vgem accepts in one segment */
#define BYTES (64 * KB)

static struct tmesh_import last; /* as the kernel left it */

static int import(int dev, int source)
{
	last = (struct tmesh_import){.size = sizeof(last), .source = source};
	return ioctl(dev, TMESH_IMPORT, &last) ? -1 : last.fd;
}

/* Create a buffer of vgem and import it. @flags are those of its descriptor. */
static int from_vgem(int flags)
{
	int vgem = open_vgem(), fd = vgem_buffer(vgem, BYTES, flags);

	close(vgem);
	return fd;
}

static int from_udmabuf(void)
{
	int udmabuf = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), fd;
	int memfd = REQUIRE_OK(memfd_create("import", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	struct udmabuf_create c = {.memfd = memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = BYTES};

	if (udmabuf < 0)
		t_skip("no udmabuf");
	REQUIRE_OK(ftruncate(memfd, BYTES));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	fd = REQUIRE_OK(ioctl(udmabuf, UDMABUF_CREATE, &c));
	close(memfd);
	close(udmabuf);
	return fd;
}

static int from_heap(void)
{
	int heap = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);
	struct dma_heap_allocation_data d = {.len = BYTES, .fd_flags = O_RDWR | O_CLOEXEC};

	if (heap < 0)
		t_skip("no system heap");
	REQUIRE_OK(ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &d));
	close(heap);
	return d.fd;
}

static int from_vivid(void)
{
	struct v4l2_requestbuffers rb = {
		.count = 1,
		.type = V4L2_BUF_TYPE_VIDEO_CAPTURE,
		.memory = V4L2_MEMORY_MMAP,
	};
	struct v4l2_exportbuffer eb = {.type = rb.type, .flags = O_RDWR | O_CLOEXEC};
	struct v4l2_format f = {0};
	int video = open_vivid(&f);

	/* The exported dma-buf keeps the buffer alive. */
	REQUIRE_OK(ioctl(video, VIDIOC_REQBUFS, &rb));
	REQUIRE_OK(ioctl(video, VIDIOC_EXPBUF, &eb));
	close(video);
	return eb.fd;
}

static size_t length(int fd)
{
	return lseek(fd, 0, SEEK_END);
}

/* Check an exporter of any kind: bytes written on one side can be read on the other. */
static void try_exporter(int original)
{
	int dev = t_dev(), vgem = open_vgem(), h, whole, slice, part, gem;
	size_t bytes = length(original), last_page = bytes - PAGE;
	unsigned char *p, *q, *r, *s;
	struct tmesh_info i;

	h = REQUIRE_OK(import(dev, original));
	CHECK_EQ(last.backing, TMESH_BACKING_DMABUF);
	CHECK_EQ(last.bytes, bytes);
	CHECK_EQ(last.rights, R_ALL);
	i = t_info(h);
	CHECK_EQ(i.id, last.id);
	CHECK_EQ(i.backing, TMESH_BACKING_DMABUF);
	CHECK_EQ(i.bytes, bytes);
	CHECK_EQ(i.alloc_bytes, bytes);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	CHECK_EQ(t_caps(dev).used_regions, 1);

	whole = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	slice = REQUIRE_OK(t_export(h, PAGE, 2 * PAGE, TMESH_EXPORT_WRITE));
	CHECK_EQ(length(whole), bytes);
	CHECK_EQ(length(slice), 2 * PAGE);
	/*
	 * Let one device map at a time. All exporters but vgem synchronise the CPU's caches for
	 * each device separately, and the DMA API complains if two have mapped the same page.
	 */
	gem = REQUIRE_OK(vgem_import(vgem, slice));
	CHECK_EQ(t_info(h).attachments, 1);
	CHECK_OK(vgem_close(vgem, gem));
	CHECK_EQ(t_info(h).attachments, 0);
	gem = REQUIRE_OK(vgem_import(vgem, whole));
	CHECK_EQ(t_info(h).attachments, 1);
	CHECK_EQ(t_info(h).exports, 2);
	/*
	 * Unmap it now: a bounce buffer would be copied back later, over newer bytes, and some
	 * exporters cannot synchronise.
	 */
	CHECK_OK(vgem_close(vgem, gem));

	p = t_map(original, bytes, RW);
	q = t_map(h, bytes, RW);
	r = t_map(whole, bytes, RW);
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED && r != MAP_FAILED);
	p[last_page] = 1;
	CHECK_EQ(q[last_page], 1);
	CHECK_EQ(r[last_page], 1);
	q[PAGE] = 2;
	CHECK_EQ(p[PAGE], 2);
	r[0] = 3;
	CHECK_EQ(p[0], 3);
	/* Some exporters ignore the offset. */
	CHECK_ERR(mmap(NULL, PAGE, RW, MAP_SHARED, h, PAGE), EOPNOTSUPP);
	CHECK_ERR(t_map(slice, PAGE, RW), EOPNOTSUPP);
	CHECK_ERR(t_map(h, bytes + PAGE, RW), EINVAL);
	/* The mapping belongs to the original, so remap_file_pages() could reach the rest of it. */
	part = REQUIRE_OK(t_export(h, 0, PAGE, TMESH_EXPORT_WRITE));
	CHECK_ERR(t_map(part, PAGE, RW), EOPNOTSUPP);
	CHECK_ERR(t_map(part, PAGE, PROT_READ), EOPNOTSUPP);
	close(part);
	part = REQUIRE_OK(t_export(h, 0, PAGE, 0));
	s = t_map(part, PAGE, PROT_READ);
	REQUIRE(s != MAP_FAILED);
	CHECK_ERR(remap_file_pages(s, PAGE, 0, 1, 0), EINVAL);
	close(part);
	CHECK_ERR(t_revoke(h), EOPNOTSUPP);
	CHECK_ERR(t_seal(h), EOPNOTSUPP);
	CHECK_EQ(t_info(h).state, 0);

	/*
	 * Close everything of tmesh before the original's last descriptor, and the other way round.
	 */
	close(original);
	munmap(p, bytes);
	close(whole);
	close(h);
	CHECK_EQ(q[last_page] + r[PAGE], 3);
	close(slice);
	close(vgem);
	CHECK_EQ(t_listed(dev), 0);
	CHECK_EQ(q[last_page] + r[PAGE], 3);
}

TEST_CALL(vgem, "a buffer of vgem", try_exporter(from_vgem(DRM_RDWR)))

TEST(attachments, "several attachments at once, of the same buffer and of parts of it")
{
	int dev = t_dev(), vgem = open_vgem(), other = open_vgem(), h, whole, slice;

	h = REQUIRE_OK(import(dev, from_vgem(DRM_RDWR)));
	whole = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	slice = REQUIRE_OK(t_export(h, PAGE, 2 * PAGE, TMESH_EXPORT_WRITE));
	REQUIRE_OK(vgem_import(vgem, whole));
	REQUIRE_OK(vgem_import(vgem, slice));
	REQUIRE_OK(vgem_import(other, slice));
	CHECK_EQ(t_info(h).attachments, 3);
	close(vgem);
	CHECK_EQ(t_info(h).attachments, 1);
}

TEST_CALL(udmabuf, "a udmabuf", try_exporter(from_udmabuf()))
TEST_CALL(heap, "a buffer of the system heap", try_exporter(from_heap()))
TEST_CALL(vivid, "a buffer of vivid", try_exporter(from_vivid()))

TEST(read_only, "a descriptor that cannot write makes a region that cannot")
{
	int dev = t_dev(), vgem = open_vgem(), h = REQUIRE_OK(import(dev, from_vgem(0))), fd, gem;

	CHECK_EQ(last.rights, R_READ | R_MANAGE);
	CHECK_EQ(t_info(h).rights, R_READ | R_MANAGE);
	CHECK_ERR(t_export(h, 0, 0, TMESH_EXPORT_WRITE), EACCES);
	CHECK_ERR(t_map(h, BYTES, RW), EACCES);
	fd = REQUIRE_OK(t_export(h, 0, 0, 0));
	CHECK_ERR(t_map(fd, BYTES, RW), EACCES);
	gem = vgem_import(vgem, fd);
	if (gem >= 0 && t_kernel_at_least(6, 13))
		CHECK_OK(vgem_close(vgem, gem)); /* it maps later, on demand */
	else
		CHECK_ERR(gem, EACCES);
	CHECK_EQ(t_info(h).attachments, 0);
}

TEST(read_only_proxy, "a read-only proxy of a writable buffer refuses every writable mapping")
{
	int dev = t_dev(), h = REQUIRE_OK(import(dev, from_vgem(DRM_RDWR))), fd, ro;
	unsigned char *p = t_map(h, BYTES, RW), *q;

	fd = REQUIRE_OK(t_export(h, 0, 0, 0));
	CHECK_ERR(t_map(fd, BYTES, RW), EACCES);
	q = t_map(fd, BYTES, PROT_READ);
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
	p[5] = 6;
	CHECK_EQ(q[5], 6);
	CHECK_ERR(mprotect(q, BYTES, RW), EACCES);
	ro = REQUIRE_OK(t_derive(h, R_READ, 0));
	CHECK_ERR(t_map(ro, BYTES, RW), EACCES);
	q = t_map(ro, BYTES, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	CHECK_ERR(mprotect(q, BYTES, RW), EACCES);
	CHECK_ERR(t_export(ro, 0, 0, TMESH_EXPORT_WRITE), EACCES);
}

TEST(whole,
     "a revocation ends what is asked of us, devices keep what they have, the original goes on")
{
	int dev = t_dev(), vgem = open_vgem(), original = from_vgem(DRM_RDWR), h, fd, gem;

	h = REQUIRE_OK(import(dev, original));
	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	gem = REQUIRE_OK(vgem_import(vgem, fd));
	CHECK_OK(t_revoke(h));
	CHECK_ERR(t_map(h, BYTES, PROT_READ), ESTALE);
	CHECK_ERR(t_export(h, 0, 0, 0), ESTALE);
	CHECK_EQ(t_info(h).state, TMESH_STATE_REVOKED);
	CHECK_EQ(t_info(h).attachments, 1);
	CHECK_OK(vgem_close(vgem, gem));
	CHECK_ERR(vgem_import(vgem, fd), ESTALE);
	CHECK(t_map(original, BYTES, RW) != MAP_FAILED);
}

TEST(revoked, "a region that was never mapped is revoked; a failed mapping does not count")
{
	int dev = t_dev(), h = REQUIRE_OK(import(dev, from_vgem(DRM_RDWR))), fd;

	fd = REQUIRE_OK(t_export(h, PAGE, PAGE, TMESH_EXPORT_WRITE));
	CHECK_ERR(t_map(fd, PAGE, RW), EOPNOTSUPP);
	CHECK_OK(t_revoke(h));
	CHECK_ERR(t_revoke(h), ESTALE);
	CHECK_ERR(t_map(fd, PAGE, RW), ESTALE);
}

TEST(leased, "a leased handle maps nothing, which could not be taken away; its proxies end with it")
{
	int dev = t_dev(), vgem = open_vgem(), h = REQUIRE_OK(import(dev, from_vgem(DRM_RDWR)));
	int leased = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0)), fd, gem;
	pid_t pid = sleeper();
	struct lease l = lease_bind(leased, pid);

	CHECK_ERR(t_map(leased, BYTES, PROT_READ), EOPNOTSUPP);
	fd = REQUIRE_OK(t_export(leased, 0, 0, TMESH_EXPORT_WRITE));
	CHECK_ERR(t_map(fd, BYTES, PROT_READ), EOPNOTSUPP);
	gem = REQUIRE_OK(vgem_import(vgem, fd));
	CHECK_EQ(t_info(h).attachments, 1);
	kill_and_reap(pid);
	await_end(&l, leased);
	CHECK_ERR(t_export(leased, 0, 0, 0), ESTALE);
	CHECK_OK(vgem_close(vgem, gem));
	CHECK_ERR(vgem_import(vgem, fd), ESTALE);
	/* The others go on. */
	CHECK_EQ(t_info(h).state, 0);
	CHECK_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	CHECK(t_map(h, BYTES, RW) != MAP_FAILED);
	CHECK_ERR(lease_call(REQUIRE_OK(t_derive(h, R_READ, 0)), 0, 0, 0, NULL), EOPNOTSUPP);
}

TEST(own, "a dma-buf of tmesh's own gives ELOOP, a proxy too")
{
	int dev = t_dev(), h = REQUIRE_OK(t_create(dev, BYTES, 0)), i;

	CHECK_ERR(import(dev, REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE))), ELOOP);
	CHECK_ERR(import(dev, REQUIRE_OK(t_export(h, 0, PAGE, 0))), ELOOP);
	i = REQUIRE_OK(import(dev, from_vgem(DRM_RDWR)));
	CHECK_ERR(import(dev, REQUIRE_OK(t_export(i, 0, 0, TMESH_EXPORT_WRITE))), ELOOP);
	CHECK_ERR(import(dev, REQUIRE_OK(t_export(i, PAGE, PAGE, 0))), ELOOP);
	CHECK_EQ(t_listed(dev), 2);
}

TEST(unfit, "dead descriptors, lengths that are not ours to say and bad slices are refused")
{
	int dev = t_dev(), original = from_vgem(DRM_RDWR), h;
	struct tmesh_import i = {.size = sizeof(i), .source = original, .bytes = BYTES};

	CHECK_ERR(import(dev, -1), EBADF);
	CHECK_ERR(import(dev, 9999), EBADF);
	CHECK_ERR(ioctl(dev, TMESH_IMPORT, &i), EINVAL);
	CHECK_EQ(t_listed(dev), 0);
	h = REQUIRE_OK(import(dev, original));
	CHECK_ERR(t_export(h, 1, PAGE, 0), EINVAL);
	CHECK_ERR(t_export(h, PAGE, BYTES, 0), EINVAL);
	CHECK_ERR(t_export(h, BYTES, 0, 0), EINVAL);
	CHECK_ERR(t_derive(h, R_READ, TMESH_DERIVE_PIN), EINVAL);
	CHECK_EQ(t_info(h).exports, 0);
}

TEST(token, "a token, a socket and the holders' list work as for any region")
{
	int dev = t_dev(), h = REQUIRE_OK(import(dev, from_vgem(DRM_RDWR))), sv[2];
	__u8 token[TMESH_TOKEN_BYTES];
	pid_t pid;

	t_pair(sv);
	REQUIRE_OK(t_token(h, R_READ, token));
	T_CHILD(pid) {
		int got = t_recv_fd(sv[1]), fd = REQUIRE_OK(t_open(t_dev(), token, R_READ, 0));
		unsigned char *p = t_map(fd, BYTES, PROT_READ), *q = t_map(got, BYTES, RW);

		REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
		q[7] = 8;
		CHECK_EQ(p[7], 8);
		CHECK_ERR(t_map(fd, BYTES, RW), EACCES);
		CHECK_EQ(t_info(fd).handles, 2);
	}
	t_send_fd(sv[0], h);
	t_wait(pid);
	CHECK_EQ(t_info(h).handles, 1);
}

/* vivid writes through a mapping in the kernel (vmap). */
TEST(capture, "vivid captures into a slice of a foreign buffer, by way of the kernel's mapping")
{
	int vgem = open_vgem(), original = vgem_buffer(vgem, 4 * MB, DRM_RDWR), h;
	unsigned char *p = t_map(original, 4 * MB, RW);
	unsigned int bytes, sum = 0;

	REQUIRE(p != MAP_FAILED);
	h = REQUIRE_OK(import(t_dev(), original));
	bytes = vivid_fill(REQUIRE_OK(t_export(h, MB, MB, TMESH_EXPORT_WRITE)), MB);
	for (size_t i = 0; i < 4 * MB; i++) {
		if (i >= MB && i < MB + bytes)
			sum += p[i];
		else if (p[i])
			REQUIRE(!"beyond the slice nothing was written");
	}
	CHECK(sum > 0);
}

TEST(looked_at,
     "the kernel's own mapping of a proxy shows its slice, and zeros once that has ended")
{
	int peer = open_peer(), original = from_vgem(DRM_RDWR), h, fd;
	unsigned char *p = t_map(original, BYTES, RW);

	REQUIRE(p != MAP_FAILED);
	p[PAGE] = 9;
	h = REQUIRE_OK(import(t_dev(), original));
	fd = REQUIRE_OK(t_export(h, PAGE, PAGE, TMESH_EXPORT_WRITE));
	CHECK_EQ(ioctl(peer, PEER_LOOK, fd), 9);
	CHECK_OK(t_revoke(h));
	CHECK_EQ(ioctl(peer, PEER_LOOK, fd), 0);
	CHECK_EQ(p[PAGE], 9);
	CHECK_EQ(t_info(h).pinned_bytes, 0);
}

/* Fences */

static bool ready(int fd, short events)
{
	struct pollfd pf = {.fd = fd, .events = events};

	return poll(&pf, 1, 0) == 1;
}

static __u32 begin_work(int vgem, __u32 gem)
{
	struct vgem_fence_attach a = {.handle = gem, .flags = VGEM_FENCE_WRITE};

	REQUIRE_OK(ioctl(vgem, VGEM_FENCE_ATTACH, &a));
	return a.out_fence;
}

static void end_work(int vgem, __u32 fence)
{
	struct vgem_fence_signal s = {.fence = fence};

	REQUIRE_OK(ioctl(vgem, VGEM_FENCE_SIGNAL, &s));
}

static int sync_file_of(int dmabuf)
{
	struct dma_buf_export_sync_file e = {.flags = DMA_BUF_SYNC_RW, .fd = -1};

	REQUIRE_OK(ioctl(dmabuf, DMA_BUF_IOCTL_EXPORT_SYNC_FILE, &e));
	return e.fd;
}

TEST(fences, "a fence on the original is one on each proxy, and the other way round")
{
	int dev = t_dev(), vgem = open_vgem(), other = open_vgem(), h, proxy, slice, sync;
	__u32 gem = vgem_create(vgem, BYTES), busy = vgem_create(other, BYTES), fence;
	int original = vgem_export(vgem, gem, DRM_RDWR);
	int elsewhere = vgem_export(other, busy, DRM_RDWR);
	struct dma_buf_import_sync_file in = {.flags = DMA_BUF_SYNC_WRITE};

	h = REQUIRE_OK(import(dev, original));
	proxy = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	slice = REQUIRE_OK(t_export(h, PAGE, PAGE, 0));
	CHECK(ready(proxy, POLLIN) && ready(slice, POLLIN));

	fence = begin_work(vgem, gem);
	CHECK(!ready(original, POLLIN));
	CHECK(!ready(proxy, POLLIN));
	CHECK(!ready(slice, POLLIN));
	sync = sync_file_of(proxy);
	CHECK(!ready(sync, POLLIN));
	end_work(vgem, fence);
	CHECK(ready(proxy, POLLIN) && ready(slice, POLLIN) && ready(sync, POLLIN));

	/*
	 * Let a device's work on another buffer precede the use of ours, by a fence through the
	 * proxy.
	 */
	fence = begin_work(other, busy);
	in.fd = sync_file_of(elsewhere);
	REQUIRE_OK(ioctl(proxy, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, &in));
	CHECK(!ready(original, POLLIN));
	CHECK(!ready(slice, POLLIN));
	CHECK(!ready(sync_file_of(original), POLLIN));
	end_work(other, fence);
	CHECK(ready(original, POLLIN) && ready(slice, POLLIN));
}

TEST(cpu_sync, "DMA_BUF_IOCTL_SYNC on a proxy reaches the original, fences included")
{
	int dev = t_dev(), fd = REQUIRE_OK(import(dev, from_vgem(DRM_RDWR)));

	fd = REQUIRE_OK(t_export(fd, 0, 0, TMESH_EXPORT_WRITE));
	CHECK_OK(t_sync_cpu(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW));
	CHECK_OK(t_sync_cpu(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW));
}

/* Test whether there is a dma-buf of this name. */
static bool named(const char *name)
{
	FILE *f = fopen("/sys/kernel/debug/dma_buf/bufinfo", "re");
	char line[400];
	bool found = false;

	if (!f)
		t_skip("no list of dma-bufs in debugfs");
	while (fgets(line, sizeof(line), f))
		found |= strstr(line, name) != NULL;
	fclose(f);
	return found;
}

TEST(original_goes, "the original goes with its descriptor, the region and the last proxy")
{
	int dev = t_dev(), original = from_vgem(DRM_RDWR), h, proxies[2];
	char name[32];

	snprintf(name, sizeof(name), "tmesh-%d-original", getpid());
	REQUIRE_OK(ioctl(original, DMA_BUF_SET_NAME_A, name));
	h = REQUIRE_OK(import(dev, original));
	proxies[0] = REQUIRE_OK(t_export(h, 0, 0, 0));
	proxies[1] = REQUIRE_OK(t_export(h, PAGE, PAGE, 0));
	close(original);
	close(h);
	close(proxies[1]);
	CHECK(named(name));
	close(proxies[0]);
	for (int i = 0; i < 12000 && named(name); i++)
		usleep(10000);
	CHECK(!named(name));
}

TEST(outlives, "region and proxies outlive the original's last descriptor and its driver's file")
{
	int dev = t_dev(), vgem = open_vgem(), h, proxy, reader = open_vgem();
	int original = vgem_buffer(vgem, BYTES, DRM_RDWR);
	unsigned char *p;

	h = REQUIRE_OK(import(dev, original));
	close(original);
	close(vgem);
	proxy = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	close(h);
	CHECK_EQ(t_listed(dev), 1);
	REQUIRE_OK(vgem_import(reader, proxy));
	p = t_map(proxy, BYTES, RW);
	REQUIRE(p != MAP_FAILED);
	p[BYTES - 1] = 9;
	close(proxy);
	CHECK_EQ(t_listed(dev), 1);
	close(reader);
	CHECK_EQ(p[BYTES - 1], 9);
	CHECK_EQ(t_listed(dev), 0);
}

TEST(killed, "a kill in the middle of it all leaves nothing behind")
{
	int dev = t_dev(), original = from_vgem(DRM_RDWR);
	unsigned int seed = 11;

	for (long i = 0, n = t_length(20, 300); i < n; i++) {
		pid_t pid = fork();

		while (!pid) {
			int vgem = open(vgem_path, O_RDWR | O_CLOEXEC), h = import(dev, original);
			int fd = t_export(h, PAGE, 3 * PAGE, TMESH_EXPORT_WRITE);

			vgem_import(vgem, fd);
			t_map(h, PAGE, RW);
			close(fd);
			close(h);
			close(vgem);
		}
		usleep(t_random(&seed) % 20000);
		kill(pid, SIGKILL);
		REQUIRE(waitpid(pid, NULL, 0) == pid);
		for (double until = t_now() + 120; t_listed(dev) && t_now() < until;)
			usleep(1000);
		REQUIRE(t_listed(dev) == 0);
	}
}

/* Races */

static struct {
	int dev, vgem, handle, slot;
	bool stop;
} race;

static bool going(void)
{
	return !__atomic_load_n(&race.stop, __ATOMIC_RELAXED);
}

static void *attach(void *arg)
{
	while (going()) {
		int fd = t_export(race.handle, PAGE, 0, TMESH_EXPORT_WRITE), gem;

		if (fd < 0)
			continue;
		gem = vgem_import(race.vgem, fd);
		close(fd);
		if (gem >= 0)
			vgem_close(race.vgem, gem);
	}
	return NULL;
}

static void *mapper(void *arg)
{
	while (going()) {
		int fd = t_export(race.handle, 0, 0, TMESH_EXPORT_WRITE);
		void *p = t_map(fd, BYTES, RW);

		close(fd);
		if (p != MAP_FAILED) {
			t_write(p, 1);
			munmap(p, BYTES);
		}
	}
	return NULL;
}

TEST(race_revoke, "export, attach and map of proxies against a revocation")
{
	double until = t_now() + t_length(4, 60);
	long rounds = 0, revoked = 0;
	int original;

	race.dev = t_dev();
	original = from_vgem(DRM_RDWR);
	race.vgem = open_vgem();
	for (; t_now() < until && !t_failed(); rounds++) {
		pthread_t threads[3];

		race.stop = false;
		race.handle = REQUIRE_OK(import(race.dev, original));
		for (int i = 0; i < 3; i++)
			REQUIRE(!pthread_create(&threads[i], NULL,
						i == 2 && rounds % 2 ? mapper : attach, NULL));
		usleep(rounds * 331 % 3000);
		if (!t_revoke(race.handle)) {
			revoked++;
			CHECK_ERR(t_map(race.handle, BYTES, PROT_READ), ESTALE);
			CHECK_ERR(t_export(race.handle, 0, 0, 0), ESTALE);
		} else {
			CHECK_EQ(errno, EOPNOTSUPP);
		}
		__atomic_store_n(&race.stop, true, __ATOMIC_RELAXED);
		for (int i = 0; i < 3; i++)
			pthread_join(threads[i], NULL);
		CHECK_EQ(t_info(race.handle).attachments, 0);
		close(race.handle);
	}
	t_note("%ld rounds, %ld revoked, the others were mapped first", rounds, revoked);
}

static void *importer(void *arg)
{
	while (going()) {
		int h = import(race.dev, race.slot);

		if (h < 0) {
			CHECK(errno == EBADF || errno == EOPNOTSUPP);
			continue;
		}
		close(h);
	}
	return NULL;
}

TEST(race_close, "import against the descriptor's closing and its number's next use")
{
	double until = t_now() + t_length(3, 60);
	int original = from_vgem(DRM_RDWR), null = REQUIRE_OK(memfd_create("other", 0));
	pthread_t thread;

	race.dev = t_dev();
	/* Use a high number that no other thread gets meanwhile. */
	race.slot = REQUIRE_OK(fcntl(original, F_DUPFD_CLOEXEC, 500));
	REQUIRE(!pthread_create(&thread, NULL, importer, NULL));
	while (t_now() < until) {
		REQUIRE_OK(dup2(null, race.slot));
		close(race.slot);
		REQUIRE_OK(dup2(original, race.slot));
	}
	__atomic_store_n(&race.stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}
