// SPDX-License-Identifier: MIT
/*
 * TMESH_CREATE_MEMFD: which files are accepted, their rights, and what their holders may still do.
 */
#include "drm.h"
#include "stall.h"
#include "t.h"

#define BYTES (4 * MB)
#define RW (PROT_READ | PROT_WRITE)

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

static int new_memfd(unsigned int seals)
{
	int fd = REQUIRE_OK(memfd_create("memfd", MFD_ALLOW_SEALING | MFD_CLOEXEC));

	REQUIRE_OK(ftruncate(fd, BYTES));
	if (seals)
		REQUIRE_OK(fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

static int create(int dev, int memfd, __u64 bytes, __u32 *rights)
{
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd, .bytes = bytes};

	if (ioctl(dev, TMESH_CREATE_MEMFD, &c))
		return -1;
	if (rights)
		*rights = c.rights;
	return c.fd;
}

TEST(shared, "a memfd's pages are the region's, both ways")
{
	int dev = t_dev(), memfd = new_memfd(F_SEAL_SHRINK), h;
	unsigned char *p, *q;
	__u32 rights;
	char c = 3;

	REQUIRE(pwrite(memfd, &c, 1, HUGE + 3) == 1);
	h = REQUIRE_OK(create(dev, memfd, 0, &rights));
	CHECK_EQ(rights, R_ALL);
	CHECK_EQ(t_info(h).rights, R_ALL);
	CHECK_EQ(t_info(h).backing, TMESH_BACKING_MEMFD);
	CHECK_EQ(t_info(h).bytes, BYTES);
	CHECK_EQ(t_info(h).alloc_bytes, BYTES);
	CHECK_EQ(t_caps(dev).used_bytes, BYTES);
	p = t_map(h, BYTES, RW);
	q = t_map(memfd, BYTES, RW);
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
	CHECK_EQ(p[HUGE + 3], 3);
	p[0] = 4;
	CHECK_EQ(q[0], 4);
	q[BYTES - 1] = 5;
	CHECK_EQ(p[BYTES - 1], 5);
	CHECK_ERR(mmap(NULL, BYTES + PAGE, PROT_READ, MAP_SHARED, h, 0), EINVAL);
	CHECK_ERR(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, h, 0), EINVAL);

	/* The region outlives the memfd's descriptor, and the memfd outlives the region. */
	close(memfd);
	munmap(q, BYTES);
	CHECK_EQ(p[BYTES - 1], 5);
	munmap(p, BYTES);
	p = t_map(h, BYTES, PROT_READ);
	CHECK(p != MAP_FAILED && p[HUGE + 3] == 3);
}

TEST(part, "a region may cover a part of the file, and not pass its end")
{
	int dev = t_dev(), memfd = new_memfd(F_SEAL_SHRINK), h;

	h = REQUIRE_OK(create(dev, memfd, 10000, NULL));
	CHECK_EQ(t_info(h).bytes, 10000);
	CHECK_EQ(t_info(h).alloc_bytes, 3 * PAGE);
	CHECK(t_map(h, 3 * PAGE, RW) != MAP_FAILED);
	CHECK_ERR(t_map(h, 4 * PAGE, RW), EINVAL);
	CHECK_ERR(create(dev, memfd, BYTES + 1, NULL), EINVAL);
	CHECK_ERR(create(dev, memfd, ~0ull, NULL), EINVAL);
	CHECK_ERR(create(dev, memfd, 1ull << 63, NULL), EINVAL);
	CHECK_EQ(t_caps(dev).used_regions, 1);
}

TEST(remap, "remap_file_pages() leads nowhere from a mapping, not even inside the memfd")
{
	int dev = t_dev(), memfd = new_memfd(F_SEAL_SHRINK), part, whole, slice;
	unsigned char *p;
	char c = 3;

	REQUIRE(pwrite(memfd, &c, 1, 2 * PAGE) == 1);
	part = REQUIRE_OK(create(dev, memfd, PAGE, NULL));
	whole = REQUIRE_OK(create(dev, memfd, 0, NULL));
	slice = REQUIRE_OK(t_export(whole, PAGE, PAGE, TMESH_EXPORT_WRITE));
	for (int i = 0; i < 2; i++) {
		p = t_map(i ? slice : part, PAGE, RW);
		REQUIRE(p != MAP_FAILED);
		CHECK_ERR(remap_file_pages(p, PAGE, 0, 2, 0), ENODEV);
		CHECK_EQ(p[0], 0);
		CHECK_OK(msync(p, PAGE, MS_SYNC));
	}
}

TEST(unfit, "files that are no sealed memfd are refused")
{
	int dev = t_dev(), h = REQUIRE_OK(t_create(dev, PAGE, 0)), fd, pipefd[2];
	int empty = REQUIRE_OK(memfd_create("empty", MFD_ALLOW_SEALING));

	CHECK_ERR(create(dev, new_memfd(0), 0, NULL), EINVAL);
	CHECK_ERR(create(dev, new_memfd(F_SEAL_GROW), 0, NULL), EINVAL);
	CHECK_ERR(create(dev, REQUIRE_OK(memfd_create("unsealable", 0)), 0, NULL), EINVAL);
	REQUIRE_OK(fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK));
	CHECK_ERR(create(dev, empty, 0, NULL), EINVAL);
	CHECK_ERR(create(dev, -1, 0, NULL), EBADF);
	CHECK_ERR(create(dev, 9999, 0, NULL), EBADF);

	REQUIRE_OK(pipe(pipefd));
	fd = REQUIRE_OK(open("/proc/self/exe", O_RDONLY));
	CHECK_ERR(create(dev, fd, 0, NULL), EINVAL);
	CHECK_ERR(create(dev, pipefd[0], 0, NULL), EINVAL);
	CHECK_ERR(create(dev, dev, 0, NULL), EINVAL);
	CHECK_ERR(create(dev, h, 0, NULL), EINVAL);
	CHECK_ERR(create(dev, REQUIRE_OK(t_export(h, 0, 0, 0)), 0, NULL), EINVAL);
	CHECK_EQ(t_caps(dev).used_regions, 1);
}

TEST(read_only, "a descriptor that cannot write makes a handle that cannot")
{
	int dev = t_dev(), memfd = new_memfd(F_SEAL_SHRINK), ro, h;
	char path[64];
	__u32 rights;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", memfd);
	ro = REQUIRE_OK(open(path, O_RDONLY | O_CLOEXEC));
	h = REQUIRE_OK(create(dev, ro, 0, &rights));
	CHECK_EQ(rights, R_READ | R_MANAGE);
	CHECK_EQ(t_info(h).rights, R_READ | R_MANAGE);
	CHECK_ERR(t_map(h, BYTES, RW), EACCES);
	CHECK_ERR(mprotect(t_map(h, BYTES, PROT_READ), BYTES, RW), EACCES);
	CHECK_ERR(t_export(h, 0, 0, TMESH_EXPORT_WRITE), EACCES);
	CHECK_OK(t_export(h, 0, 0, 0));
	/* A read-only descriptor cannot seal the memfd, and neither can its region. */
	CHECK_ERR(t_seal(h), EBUSY);
	CHECK_EQ(fcntl(memfd, F_GET_SEALS), F_SEAL_SHRINK);
}

TEST(write_only, "a descriptor that cannot read makes no region")
{
	int dev = t_dev(), memfd = new_memfd(F_SEAL_SHRINK);
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", memfd);
	CHECK_ERR(create(dev, REQUIRE_OK(open(path, O_WRONLY | O_CLOEXEC)), 0, NULL), EACCES);
	CHECK_EQ(t_caps(dev).used_regions, 0);
}

/* Open the file of a mapping again, as root may: /proc/self/map_files/START-END. */
static int reopened(const void *p, size_t bytes)
{
	char path[80];

	snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", (unsigned long)p,
		 (unsigned long)p + bytes);
	return open(path, O_RDWR | O_CLOEXEC);
}

TEST(map_files,
     "root opens a memfd again by a mapping; sealed it cannot write, and no other region")
{
	int memfd = REQUIRE_OK(memfd_create("memfd", MFD_ALLOW_SEALING | MFD_CLOEXEC)), h, fd;
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};
	unsigned char *p, *q;
	int export, by_export;

	REQUIRE_OK(ftruncate(memfd, PAGE));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	REQUIRE_OK(ioctl(t_dev(), TMESH_CREATE_MEMFD, &c));
	p = t_map(c.fd, PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	fd = REQUIRE_OK(reopened(p, PAGE));
	/* Writes show through a read-only export as through a read-only handle, until the seal. */
	export = REQUIRE_OK(t_export(c.fd, 0, 0, 0));
	q = t_map(export, PAGE, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	by_export = REQUIRE_OK(reopened(q, PAGE));
	CHECK_EQ(pwrite(by_export, "e", 1, 0), 1);
	CHECK_EQ(p[0], 'e');
	CHECK_OK(t_seal(c.fd));
	CHECK_ERR(pwrite(fd, "x", 1, 0), EPERM);
	CHECK_ERR(pwrite(by_export, "x", 1, 0), EPERM);
	CHECK_EQ(p[0], 'e');
	CHECK_EQ(q[0], 'e');

	h = REQUIRE_OK(t_create(t_dev(), PAGE, 0));
	p = t_map(h, PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(reopened(p, PAGE), -1);
	export = REQUIRE_OK(t_export(h, 0, 0, 0));
	q = t_map(export, PAGE, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	CHECK_EQ(reopened(q, PAGE), -1);
}

TEST(write_sealed, "a memfd sealed against writing makes a handle that cannot write")
{
	static const unsigned int seals[] = {F_SEAL_WRITE, F_SEAL_FUTURE_WRITE};
	int dev = t_dev(), h;
	__u32 rights;

	for (size_t i = 0; i < ARRAY_SIZE(seals); i++) {
		h = REQUIRE_OK(create(dev, new_memfd(F_SEAL_SHRINK | seals[i]), 0, &rights));
		CHECK_EQ(rights & R_WRITE, 0);
		CHECK_EQ((long)t_map(h, BYTES, RW), -1);
		CHECK(t_map(h, BYTES, PROT_READ) != MAP_FAILED);
		close(h);
	}
}

TEST(sealed_later, "a memfd sealed by its holder is not written through the region either")
{
	int dev = t_dev(), memfd = new_memfd(F_SEAL_SHRINK), h;

	h = REQUIRE_OK(create(dev, memfd, 0, NULL));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
	CHECK_ERR(t_map(h, BYTES, RW), EPERM);
	CHECK_ERR(t_export(h, 0, 0, TMESH_EXPORT_WRITE), EPERM);
	CHECK_OK(t_export(h, 0, 0, 0));
	CHECK(t_map(h, BYTES, PROT_READ) != MAP_FAILED);
	/* A refused mapping does not count as a writer. */
	CHECK_OK(t_seal(h));
}

TEST(seal, "a seal seals the memfd too, EBUSY where that cannot be")
{
	int dev = t_dev(), memfd = new_memfd(F_SEAL_SHRINK), h;
	unsigned char *p;
	char c = 1;

	h = REQUIRE_OK(create(dev, memfd, 0, NULL));
	p = t_map(memfd, BYTES, RW);
	REQUIRE(p != MAP_FAILED);
	p[0] = 1;
	CHECK_ERR(t_seal(h), EBUSY);
	CHECK_EQ(t_info(h).state, 0);
	CHECK_EQ(fcntl(memfd, F_GET_SEALS), F_SEAL_SHRINK);
	munmap(p, BYTES);
	p = t_map(h, BYTES, RW);
	CHECK_ERR(t_seal(h), EBUSY);
	munmap(p, BYTES);
	CHECK_OK(t_seal(h));
	CHECK_EQ(t_info(h).state, TMESH_STATE_SEALED);
	CHECK(fcntl(memfd, F_GET_SEALS) & F_SEAL_WRITE);
	CHECK_ERR(pwrite(memfd, &c, 1, 0), EPERM);
	CHECK_EQ((long)t_map(memfd, BYTES, RW), -1);
	CHECK_ERR(t_map(h, BYTES, RW), EPERM);
	p = t_map(h, BYTES, PROT_READ);
	CHECK(p != MAP_FAILED && p[0] == 1);
	CHECK_OK(t_derive(h, R_READ, TMESH_DERIVE_PIN));

	/* A memfd with F_SEAL_SEAL cannot be sealed by TMESH_SEAL. */
	memfd = new_memfd(F_SEAL_SHRINK | F_SEAL_SEAL);
	h = REQUIRE_OK(create(dev, memfd, 0, NULL));
	CHECK_ERR(t_seal(h), EBUSY);
	CHECK_EQ(t_info(h).state, 0);
	CHECK_OK(pwrite(memfd, &c, 1, 0));
}

TEST(seal_shared, "a memfd is not sealed by one region while another one could write to it")
{
	int dev = t_dev(), memfd = new_memfd(F_SEAL_SHRINK), ro, h, other, fd;
	char path[64];
	__u32 rights;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", memfd);
	ro = REQUIRE_OK(open(path, O_RDONLY | O_CLOEXEC));
	h = REQUIRE_OK(create(dev, memfd, 0, NULL));
	other = REQUIRE_OK(create(dev, memfd, PAGE, NULL));
	fd = REQUIRE_OK(t_export(other, 0, 0, TMESH_EXPORT_WRITE));
	CHECK_ERR(t_seal(h), EBUSY);
	close(other);
	CHECK_ERR(t_seal(h), EBUSY);
	CHECK_EQ(fcntl(memfd, F_GET_SEALS), F_SEAL_SHRINK);
	close(fd);
	other = REQUIRE_OK(create(dev, ro, 0, NULL));
	CHECK_ERR(t_export(other, 0, 0, TMESH_EXPORT_WRITE), EACCES);
	CHECK_OK(t_seal(h));
	CHECK(fcntl(memfd, F_GET_SEALS) & F_SEAL_WRITE);
	other = REQUIRE_OK(create(dev, memfd, 0, &rights));
	CHECK_EQ(rights, R_READ | R_MANAGE);
	CHECK_ERR(t_export(other, 0, 0, TMESH_EXPORT_WRITE), EACCES);
}

static struct {
	int memfd, handle;
	void *page;
	int sealed;
	volatile bool answered;
} slow;

static void *write_slowly(void *arg)
{
	CHECK_EQ(pwrite(slow.memfd, slow.page, 1, 0), 1);
	return NULL;
}

static void *seal_meanwhile(void *arg)
{
	slow.sealed = t_seal(slow.handle) ? errno : 0;
	slow.answered = true;
	return NULL;
}

TEST(seal_writing, "a seal does not wait for who is writing to the memfd, and for his page faults")
{
	struct stall stall = stall_touch();
	pthread_t writer, sealer;
	int dev = t_dev();

	slow.memfd = new_memfd(F_SEAL_SHRINK);
	slow.handle = REQUIRE_OK(create(dev, slow.memfd, 0, NULL));
	slow.page = stall.page;
	REQUIRE(!pthread_create(&writer, NULL, write_slowly, NULL));
	stall_await(&stall);
	REQUIRE(!pthread_create(&sealer, NULL, seal_meanwhile, NULL));
	for (int i = 0; i < 12000 && !slow.answered; i++)
		usleep(10000);
	CHECK(slow.answered);
	stall_end(&stall);
	pthread_join(writer, NULL);
	pthread_join(sealer, NULL);
	CHECK_EQ(slow.sealed, EBUSY);
	CHECK_OK(t_seal(slow.handle));
}

TEST(revoke, "a region over a memfd cannot be revoked: EOPNOTSUPP")
{
	int dev = t_dev(), h = REQUIRE_OK(create(dev, new_memfd(F_SEAL_SHRINK), 0, NULL));
	unsigned char *p = t_map(h, BYTES, RW);

	REQUIRE(p != MAP_FAILED);
	CHECK_ERR(t_revoke(h), EOPNOTSUPP);
	CHECK_EQ(t_info(h).state, 0);
	CHECK_EQ(t_write(p, 1), 0);
}

TEST(punch, "a hole that a holder punches harms no other holder")
{
	int dev = t_dev(), memfd = new_memfd(F_SEAL_SHRINK), h, fd;
	unsigned char *p, *r;

	h = REQUIRE_OK(create(dev, memfd, 0, NULL));
	fd = REQUIRE_OK(t_export(h, 0, 0, 0));
	p = t_map(h, BYTES, RW);
	r = t_map(fd, BYTES, PROT_READ);
	REQUIRE(p != MAP_FAILED && r != MAP_FAILED);
	memset(p, 9, BYTES);
	CHECK_EQ(r[PAGE] + r[HUGE], 18);
	CHECK_OK(fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, HUGE));
	for (size_t i = 0; i < BYTES; i += PAGE) {
		CHECK_EQ(t_read(p + i), 0);
		CHECK_EQ(t_read(r + i), 0);
	}
	CHECK_EQ(p[0], 9);
	CHECK_EQ(p[PAGE], 0);
	p[PAGE] = 7;
	CHECK_EQ(t_read(r + PAGE), 0);
}

TEST(hugetlb, "a memfd of hugetlb pages serves, or is refused and nothing stays")
{
	int dev = t_dev(), memfd, h;
	char old[32];

	REQUIRE(t_read_file("/proc/sys/vm/nr_hugepages", old, sizeof(old)));
	REQUIRE(t_write_file("/proc/sys/vm/nr_hugepages", "4"));
	memfd = memfd_create("huge", MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_CLOEXEC);
	if (memfd < 0 || ftruncate(memfd, BYTES)) {
		t_write_file("/proc/sys/vm/nr_hugepages", old);
		t_skip("no hugetlb memfd: %s", strerror(errno));
	}
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	h = create(dev, memfd, 0, NULL);
	if (h < 0) {
		CHECK_EQ(errno, EOPNOTSUPP);
		t_note("refused: %s", strerror(errno));
	} else {
		unsigned char *p = t_map(h, BYTES, RW);

		CHECK(p != MAP_FAILED && !t_write(p + HUGE, 1));
		CHECK_OK(munmap(p, BYTES));
		close(h);
	}
	close(memfd);
	CHECK_EQ(t_caps(dev).used_regions, 0);
	CHECK(t_write_file("/proc/sys/vm/nr_hugepages", old));
}

TEST(rights, "handles and tokens on a memfd region are as on any other")
{
	int dev = t_dev(), h = REQUIRE_OK(create(dev, new_memfd(F_SEAL_SHRINK), 0, NULL)), ro;
	__u8 token[TMESH_TOKEN_BYTES];
	void *p;

	REQUIRE_OK(t_token(h, R_READ, token));
	ro = REQUIRE_OK(t_open(dev, token, R_READ, 0));
	CHECK_ERR(t_map(ro, BYTES, RW), EACCES);
	p = t_map(ro, BYTES, PROT_READ);
	CHECK_ERR(mprotect(p, BYTES, RW), EACCES);
	close(h);
	close(ro);
	/* A mapping belongs to the memfd: it holds pages, not the region. */
	CHECK_EQ(t_read(p), 0);
	CHECK_EQ(t_listed(dev), 0);
}

TEST(device, "a memfd region goes to a device and back")
{
	int vgem = open_vgem(), dev = t_dev(), h, fd, handle;
	unsigned char *p, *q;

	h = REQUIRE_OK(create(dev, new_memfd(F_SEAL_SHRINK), 0, NULL));
	fd = REQUIRE_OK(t_export(h, MB, MB, TMESH_EXPORT_WRITE));
	handle = REQUIRE_OK(vgem_import(vgem, fd));
	p = t_map(h, BYTES, RW);
	q = t_map(fd, MB, RW);
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
	q[5] = 5;
	CHECK_EQ(p[MB + 5], 5);
	CHECK_OK(vgem_close(vgem, handle));
}

#define SHARE 256

TEST(share, "others leave half of a memfd's regions to its owner")
{
	struct rlimit files = {8 * SHARE, 8 * SHARE};
	int dev = t_dev(), memfd = new_memfd(F_SEAL_SHRINK), sv[2];
	pid_t pid;

	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
	t_pair(sv);
	pid = t_fork();
	if (!pid) {
		int own;

		t_become(1001, 1001, 0);
		own = t_dev();
		for (int i = 0; i < SHARE; i++)
			REQUIRE_OK(create(own, memfd, PAGE, NULL));
		CHECK_ERR(create(own, memfd, PAGE, NULL), EDQUOT);
		t_say(sv[1]);
		t_hear(sv[1]);
		t_exit();
	}
	t_hear(sv[0]);
	for (int i = 0; i < 3 * SHARE; i++)
		REQUIRE_OK(create(dev, memfd, PAGE, NULL));
	CHECK_ERR(create(dev, memfd, PAGE, NULL), EDQUOT);
	t_say(sv[0]);
	t_wait(pid);
}
