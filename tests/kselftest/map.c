// SPDX-License-Identifier: MIT
/*
 * Mappings: how the kernel fills them, and which parts of the kernel can use them like ordinary
 * memory.
 */
#include <sys/socket.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>

#include "disk.h"
#include "peer.h"
#include "t.h"

/* Newer than Debian 12's headers. */
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif
#define RW (PROT_READ | PROT_WRITE)
#define BYTES (8 * MB)

static int dev;

static unsigned char *mapped(int *fd, __u64 bytes, __u32 flags)
{
	unsigned char *p;

	dev = t_dev();
	if (flags & TMESH_CREATE_HUGE && !t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	*fd = REQUIRE_OK(t_create(dev, bytes, flags));
	p = t_map(*fd, bytes, RW);
	REQUIRE(p != MAP_FAILED);
	return p;
}

static void fill(unsigned char *p, size_t bytes, unsigned long key)
{
	for (size_t i = 0; i < bytes; i += 8)
		*(unsigned long *)(p + i) = (i + key) * 0x9e3779b97f4a7c15ul;
}

static size_t wrong_words(const unsigned char *p, size_t bytes, unsigned long key)
{
	size_t wrong = 0;

	for (size_t i = 0; i < bytes; i += 8)
		wrong += *(const unsigned long *)(p + i) != (i + key) * 0x9e3779b97f4a7c15ul;
	return wrong;
}

static long faults(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_minflt;
}

static long touch_all(unsigned char *p, size_t bytes)
{
	long before = faults();

	for (size_t i = 0; i < bytes; i += PAGE)
		*(volatile unsigned char *)(p + i) = 1;
	return faults() - before;
}

TEST(pmd, "huge regions are mapped by 2 MiB entries, through every handle")
{
	int fd, second;
	unsigned char *p = mapped(&fd, BYTES, TMESH_CREATE_HUGE), *q;

	for (size_t i = 0; i < BYTES; i += HUGE)
		p[i] = 1;
	CHECK_EQ((unsigned long)p % HUGE, 0);
	CHECK_EQ(t_pmd_mapped(p, BYTES), BYTES / KB);
	second = REQUIRE_OK(t_derive(fd, R_READ, 0));
	q = t_map(second, BYTES, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	for (size_t i = 0; i < BYTES; i += HUGE)
		CHECK_EQ(q[i], 1);
	CHECK_EQ(t_pmd_mapped(q, BYTES), BYTES / KB);
}

TEST(pmd_always, "no huge region ever misses its 2 MiB entries")
{
	for (int i = 0; i < 40; i++) {
		int fd;
		unsigned char *p = mapped(&fd, BYTES, TMESH_CREATE_HUGE);

		touch_all(p, BYTES);
		CHECK_EQ(t_pmd_mapped(p, BYTES), BYTES / KB);
		munmap(p, BYTES);
		close(fd);
		close(dev);
	}
}

TEST(batches, "single pages are mapped in growing batches; a first byte stays cheap")
{
	int fd;
	unsigned char *p = mapped(&fd, BYTES, TMESH_CREATE_NOHUGE);
	long n;

	CHECK_EQ(t_smaps(p, "Rss"), 0);
	p[0] = 1;
	CHECK(t_smaps(p, "Rss") <= 256);
	n = touch_all(p, BYTES);
	t_note("%ld faults for %llu pages", n, BYTES / PAGE);
	CHECK(n <= (long)(BYTES / PAGE / 32));
	CHECK_EQ(t_smaps(p, "Rss"), BYTES / KB);
}

TEST(mixed, "a region of mixed folios is mapped whole")
{
	const __u64 bytes = 2 * HUGE + 7 * PAGE;
	int fd;
	unsigned char *p = mapped(&fd, bytes, 0);

	CHECK(touch_all(p, bytes) < 40);
	CHECK_EQ(t_smaps(p, "Rss"), bytes / KB);
	fill(p, bytes, 1);
	CHECK_EQ(wrong_words(p, bytes, 1), 0);
}

static void try_populate(__u32 flags)
{
	unsigned char *p;
	int fd;

	munmap(mapped(&fd, BYTES, flags), BYTES);
	p = mmap(NULL, BYTES, RW, MAP_SHARED | MAP_POPULATE, fd, 0);
	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(t_smaps(p, "Rss"), BYTES / KB);
	CHECK(touch_all(p, BYTES) < 8);
	munmap(p, BYTES);
	p = mmap(NULL, BYTES, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	CHECK(p != MAP_FAILED && t_smaps(p, "Rss") == BYTES / KB);
}

TEST_CALL(populate, "MAP_POPULATE fills a mapping of single pages",
	  try_populate(TMESH_CREATE_NOHUGE))
TEST_CALL(populate_huge, "MAP_POPULATE fills a mapping of huge pages",
	  try_populate(TMESH_CREATE_HUGE))

static struct {
	unsigned char *p;
	double until;
} forgetting;

static void *forget(void *arg)
{
	while (t_now() < forgetting.until)
		madvise(forgetting.p, HUGE, MADV_DONTNEED);
	return NULL;
}

static void *remember(void *arg)
{
	for (int at = 0; t_now() < forgetting.until && !t_failed(); at = (at + 127) % 512)
		CHECK_EQ(t_read(forgetting.p + at * PAGE), 0);
	return NULL;
}

TEST(dontneed, "a fault that MADV_DONTNEED takes its page table away from is no SIGBUS")
{
	void *(*const work[])(void *) = {forget, remember, forget, remember};
	pthread_t threads[ARRAY_SIZE(work)];
	int fd;

	forgetting.p = mapped(&fd, 2 * HUGE, TMESH_CREATE_NOHUGE);
	forgetting.p += -(unsigned long)forgetting.p % HUGE;
	forgetting.until = t_now() + t_length(5, 60);
	for (size_t i = 0; i < ARRAY_SIZE(work); i++)
		REQUIRE(!pthread_create(&threads[i], NULL, work[i], NULL));
	for (size_t i = 0; i < ARRAY_SIZE(work); i++)
		pthread_join(threads[i], NULL);
}

TEST(flags, "mappings are left out of core dumps")
{
	char flags[200];
	int fd;
	unsigned char *p = mapped(&fd, BYTES, 0);
	char *line = NULL;
	unsigned long start, end;
	bool inside = false, told = false;
	size_t room = 0;
	FILE *f = fopen("/proc/self/smaps", "re");

	REQUIRE(f);
	while (getline(&line, &room, f) > 0) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start == (unsigned long)p;
		else if (inside && sscanf(line, "VmFlags: %199[^\n]", flags) == 1)
			told = true;
	}
	fclose(f);
	free(line);
	CHECK(told && strstr(flags, "dd") && strstr(flags, "sh") && !strstr(flags, "pf"));
}

/* Devices: reads of the disk into a mapping and writes from it. */

static unsigned char *plain(size_t bytes)
{
	unsigned char *p = mmap(NULL, bytes, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(p != MAP_FAILED);
	return p;
}

static void try_direct(__u32 flags)
{
	int disk = open_disk(), fd, ro;
	unsigned char *p = mapped(&fd, BYTES, flags), *b = plain(BYTES), *q;

	fill(b, BYTES, 7);
	REQUIRE(pwrite(disk, b, BYTES, 0) == (ssize_t)BYTES);
	/* Untouched memory at first, then at an odd page, then the middle of a page. */
	CHECK_EQ(pread(disk, p, BYTES, 0), BYTES);
	CHECK_EQ(wrong_words(p, BYTES, 7), 0);
	CHECK_EQ(pread(disk, p + 3 * PAGE, HUGE, 3 * PAGE), HUGE);
	CHECK_EQ(pread(disk, p + PAGE + 512, 1024, PAGE + 512), 1024);
	CHECK_EQ(wrong_words(p, BYTES, 7), 0);

	fill(p, BYTES, 8);
	CHECK_EQ(pwrite(disk, p, BYTES, BYTES), BYTES);
	CHECK_EQ(pread(disk, b, BYTES, BYTES), BYTES);
	CHECK_EQ(wrong_words(b, BYTES, 8), 0);

	ro = REQUIRE_OK(t_derive(fd, R_READ, 0));
	q = t_map(ro, BYTES, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	CHECK_ERR(pread(disk, q, PAGE, 0), EFAULT);
	CHECK_EQ(pwrite(disk, q, BYTES, 0), BYTES);
	CHECK_EQ(wrong_words(p, BYTES, 8), 0);
	CHECK_OK(t_revoke(fd));
	CHECK_ERR(pread(disk, p, PAGE, 0), EFAULT);
}

TEST_CALL(direct, "O_DIRECT reads into and writes from single pages, never into read-only ones",
	  try_direct(TMESH_CREATE_NOHUGE))
TEST_CALL(direct_huge, "O_DIRECT reads into and writes from huge pages",
	  try_direct(TMESH_CREATE_HUGE))
TEST_CALL(direct_mixed, "O_DIRECT reads into and writes from mixed folios", try_direct(0))

/* The parts of io_uring that a fixed read needs. */

struct ring {
	int fd;
	unsigned int *sq_tail, *sq_array, *cq_head, *cq_tail;
	unsigned int sq_mask, cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
};

static struct ring open_ring(void)
{
	struct io_uring_params p = {0};
	struct ring r = {.fd = syscall(SYS_io_uring_setup, 4, &p)};
	size_t bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	unsigned char *rings;

	if (r.fd < 0)
		t_skip("io_uring_setup: %s", strerror(errno));
	REQUIRE(p.features & IORING_FEAT_SINGLE_MMAP);
	rings = mmap(NULL, bytes, RW, MAP_SHARED, r.fd, IORING_OFF_SQ_RING);
	r.sqes = mmap(NULL, p.sq_entries * sizeof(*r.sqes), RW, MAP_SHARED, r.fd, IORING_OFF_SQES);
	REQUIRE(rings != MAP_FAILED && r.sqes != MAP_FAILED);
	r.sq_tail = (unsigned int *)(rings + p.sq_off.tail);
	r.sq_array = (unsigned int *)(rings + p.sq_off.array);
	r.sq_mask = *(unsigned int *)(rings + p.sq_off.ring_mask);
	r.cq_head = (unsigned int *)(rings + p.cq_off.head);
	r.cq_tail = (unsigned int *)(rings + p.cq_off.tail);
	r.cq_mask = *(unsigned int *)(rings + p.cq_off.ring_mask);
	r.cqes = (struct io_uring_cqe *)(rings + p.cq_off.cqes);
	return r;
}

static int fixed_io(struct ring *r, int op, int fd, void *at, unsigned int bytes, __u64 offset)
{
	unsigned int tail = *r->sq_tail, head = *r->cq_head;

	r->sqes[tail & r->sq_mask] = (struct io_uring_sqe){
		.opcode = op,
		.fd = fd,
		.addr = (__u64)(unsigned long)at,
		.len = bytes,
		.off = offset,
	};
	r->sq_array[tail & r->sq_mask] = tail & r->sq_mask;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
	REQUIRE(syscall(SYS_io_uring_enter, r->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	REQUIRE(__atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) != head);
	__atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
	return r->cqes[head & r->cq_mask].res;
}

static int register_buffer(struct ring *r, void *p, size_t bytes)
{
	struct iovec io = {p, bytes};

	return syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_BUFFERS, &io, 1);
}

static void try_fixed(__u32 flags)
{
	int disk, fd, ro;
	struct ring r = open_ring();
	unsigned char *p = mapped(&fd, BYTES, flags), *b = plain(BYTES), *q;

	if (!t_kernel_at_least(6, 12)) {
		CHECK_ERR(register_buffer(&r, p, BYTES), EOPNOTSUPP);
		t_note("this kernel registers only anonymous, shmem and hugetlb memory");
		return;
	}
	ro = REQUIRE_OK(t_derive(fd, R_READ, 0));
	q = t_map(ro, BYTES, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	CHECK_ERR(register_buffer(&r, q, BYTES), EFAULT);
	REQUIRE_OK(register_buffer(&r, p, BYTES));
	disk = open_disk();
	fill(b, BYTES, 11);
	REQUIRE(pwrite(disk, b, BYTES, 0) == (ssize_t)BYTES);
	CHECK_EQ(fixed_io(&r, IORING_OP_READ_FIXED, disk, p, BYTES, 0), BYTES);
	CHECK_EQ(wrong_words(p, BYTES, 11), 0);
	fill(p, BYTES, 12);
	CHECK_EQ(fixed_io(&r, IORING_OP_WRITE_FIXED, disk, p, BYTES, 0), BYTES);
	CHECK_EQ(pread(disk, b, BYTES, 0), BYTES);
	CHECK_EQ(wrong_words(b, BYTES, 12), 0);

	/*
	 * Pinned pages outlive the mapping, the handle and the revocation, but no process can see
	 * them.
	 */
	CHECK_OK(t_revoke(fd));
	munmap(p, BYTES);
	close(fd);
	CHECK_EQ(fixed_io(&r, IORING_OP_READ_FIXED, disk, p, HUGE, 0), HUGE);
	close(r.fd);
}

TEST_CALL(fixed, "io_uring fixed buffers: single pages (6.1: EOPNOTSUPP)",
	  try_fixed(TMESH_CREATE_NOHUGE))
TEST_CALL(fixed_huge, "io_uring fixed buffers: huge pages (6.1: EOPNOTSUPP)",
	  try_fixed(TMESH_CREATE_HUGE))

/* Other processes and pipes */

static void try_vm_io(__u32 flags)
{
	int fd, ro, sv[2];
	unsigned char *p = mapped(&fd, BYTES, flags), *b = plain(BYTES), *q;
	struct iovec mine = {b, BYTES}, theirs = {p, BYTES}, read_only;
	pid_t parent = getpid(), pid;

	ro = REQUIRE_OK(t_derive(fd, R_READ, 0));
	q = t_map(ro, BYTES, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	read_only = (struct iovec){q, BYTES};
	fill(p, BYTES, 21);
	t_pair(sv);
	T_CHILD(pid) {
		close(fd);
		munmap(p, BYTES);
		munmap(q, BYTES);
		t_hear(sv[1]);
		CHECK_EQ(process_vm_readv(parent, &mine, 1, &theirs, 1, 0), BYTES);
		CHECK_EQ(wrong_words(b, BYTES, 21), 0);
		fill(b, BYTES, 22);
		CHECK_ERR(process_vm_writev(parent, &mine, 1, &read_only, 1, 0), EFAULT);
		CHECK_EQ(process_vm_writev(parent, &mine, 1, &theirs, 1, 0), BYTES);
	}
	t_say(sv[0]);
	t_wait(pid);
	CHECK_EQ(wrong_words(q, BYTES, 22), 0);
}

TEST_CALL(vm_io, "process_vm_readv and _writev, the latter not into read-only mappings",
	  try_vm_io(TMESH_CREATE_NOHUGE))
TEST_CALL(vm_io_huge, "process_vm_readv and _writev on huge pages", try_vm_io(TMESH_CREATE_HUGE))

TEST(proc_mem, "/proc/self/mem does not write through a read-only mapping")
{
	int mem = REQUIRE_OK(open("/proc/self/mem", O_RDWR | O_CLOEXEC)), fd, ro;
	unsigned char *p = mapped(&fd, BYTES, 0), *q, c = 9;

	p[5] = 1;
	ro = REQUIRE_OK(t_derive(fd, R_READ, 0));
	q = t_map(ro, BYTES, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	CHECK_EQ(pwrite(mem, &c, 1, (off_t)(unsigned long)(p + 5)), 1);
	CHECK_EQ(q[5], 9);
	c = 10;
	CHECK_EQ(pwrite(mem, &c, 1, (off_t)(unsigned long)(q + 5)), -1);
	CHECK_EQ(pread(mem, &c, 1, (off_t)(unsigned long)(q + 5)), 1);
	CHECK_EQ(c, 9);
	CHECK_EQ(p[5], 9);
}

TEST(sockets, "write() to a socket and read() from one")
{
	int fd, sv[2], ro;
	unsigned char *p = mapped(&fd, 64 * KB, 0), *q;
	pid_t pid;

	REQUIRE_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv));
	fill(p, 32 * KB, 31);
	T_CHILD(pid) {
		CHECK_EQ(write(sv[1], p, 32 * KB), 32 * KB);
	}
	CHECK_EQ(recv(sv[0], p + 32 * KB, 32 * KB, MSG_WAITALL), 32 * KB);
	t_wait(pid);
	CHECK_EQ(wrong_words(p + 32 * KB, 32 * KB, 31), 0);
	ro = REQUIRE_OK(t_derive(fd, R_READ, 0));
	q = t_map(ro, 64 * KB, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	CHECK_EQ(write(sv[1], q, 16), 16);
	CHECK_ERR(read(sv[0], q, 16), EFAULT);
}

static void try_vmsplice(__u32 flags)
{
	int fd, pipefd[2];
	unsigned char *p = mapped(&fd, BYTES, flags), *b = plain(32 * KB);
	struct iovec io = {p, 32 * KB};

	fill(p, BYTES, 41);
	REQUIRE_OK(pipe2(pipefd, O_CLOEXEC));
	CHECK_EQ(vmsplice(pipefd[1], &io, 1, 0), 32 * KB);
	/* The pipe has references of its own. */
	munmap(p, BYTES);
	close(fd);
	CHECK_EQ(read(pipefd[0], b, 32 * KB), 32 * KB);
	CHECK_EQ(wrong_words(b, 32 * KB, 41), 0);
	close(pipefd[0]);
	close(pipefd[1]);
}

TEST_CALL(vmsplice, "vmsplice() lends single pages to a pipe, beyond the region's end",
	  try_vmsplice(TMESH_CREATE_NOHUGE))
TEST_CALL(vmsplice_huge, "vmsplice() lends huge pages to a pipe", try_vmsplice(TMESH_CREATE_HUGE))

static void try_count(__u32 flags)
{
	int fd, peer = open_peer();
	unsigned char *p = mapped(&fd, HUGE, flags), *q = t_map(fd, HUGE, PROT_READ);

	REQUIRE(q != MAP_FAILED);
	CHECK_EQ(t_read(p + PAGE), 0);
	REQUIRE_OK(ioctl(peer, PEER_COUNT, p + PAGE));
	CHECK_EQ(t_read(q + PAGE), SIGBUS);
	REQUIRE_OK(ioctl(peer, PEER_UNCOUNT, p + PAGE));
	CHECK_EQ(t_read(q + PAGE), 0);
}

TEST_CALL(count, "a page that is mapped too often is not mapped once more",
	  try_count(TMESH_CREATE_NOHUGE))
TEST_CALL(count_huge, "the same of a huge page", try_count(TMESH_CREATE_HUGE))

#define MARKED (16 * PAGE)

/*
 * Map a handle, at an offset, and let userfaultfd watch the mapping, as on kernels that do not
 * refuse it. Return its descriptor.
 */
static int watched(int fd, __u64 offset, unsigned char **p)
{
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_WP_ASYNC};
	struct uffdio_register r = {.mode = UFFDIO_REGISTER_MODE_WP};
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), peer = open_peer();

	*p = mmap(NULL, MARKED, RW, MAP_SHARED, fd, offset);
	REQUIRE(*p != MAP_FAILED);
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
		t_skip("this kernel's userfaultfd() protects nothing without being asked");
	REQUIRE_OK(ioctl(peer, PEER_PLAIN, *p));
	r.range = (struct uffdio_range){(unsigned long)*p, MARKED};
	REQUIRE_OK(ioctl(uffd, UFFDIO_REGISTER, &r));
	REQUIRE_OK(ioctl(peer, PEER_SPECIAL, *p));
	return uffd;
}

/* Do the same so that the entries are markers. */
static unsigned char *marked(int fd, __u64 offset)
{
	struct uffdio_writeprotect protect = {.mode = UFFDIO_WRITEPROTECT_MODE_WP};
	unsigned char *p;
	int uffd = watched(fd, offset, &p);

	protect.range = (struct uffdio_range){(unsigned long)p, MARKED};
	REQUIRE_OK(ioctl(uffd, UFFDIO_WRITEPROTECT, &protect));
	return p;
}

TEST(markers, "markers of userfaultfd() are replaced: no fault goes on for ever")
{
	bool ended = false;
	pid_t pid = t_fork();

	if (!pid) {
		int fd = REQUIRE_OK(t_create(t_dev(), MARKED, TMESH_CREATE_NOHUGE)), ends[2];
		unsigned char *p = marked(fd, 0);

		REQUIRE_OK(pipe2(ends, O_CLOEXEC));
		CHECK_EQ(t_read(p + PAGE), 0);
		CHECK_EQ(write(ends[1], p + 3 * PAGE, 2 * PAGE), 2 * PAGE);
		CHECK_EQ(t_write(p + 5 * PAGE, 1), 0);
		CHECK_EQ(read(ends[0], p + 7 * PAGE, PAGE), PAGE);
		CHECK_EQ(t_read(p + 15 * PAGE), 0);
		t_exit();
	}
	/* If it does not end, it may not be killable either. */
	for (int i = 0; i < 600 && !ended; i++) {
		ended = waitpid(pid, NULL, WNOHANG) == pid;
		usleep(100000);
	}
	CHECK(ended);
	kill(pid, SIGKILL);
}

TEST(markers_huge, "where a PMD would map other pages they are not: SIGBUS")
{
	int fd = REQUIRE_OK(t_create(t_dev(), 2 * HUGE, TMESH_CREATE_HUGE));
	unsigned char *p = marked(fd, PAGE), *q = t_map(fd, 2 * HUGE, RW);

	REQUIRE(q != MAP_FAILED);
	CHECK_EQ(t_read(p), SIGBUS);
	CHECK_EQ(t_read(q + PAGE), 0);
}

#define TOUCHERS 2

struct touching {
	unsigned char *p;
	long round;
	int waiting, failed;
};

/* Touch a page in each round, at the same time as the others. */
static void *touch_together(void *arg)
{
	struct touching *t = arg;

	for (long round = 1; round <= t_length(300, 3000); round++) {
		if (__atomic_add_fetch(&t->waiting, 1, __ATOMIC_SEQ_CST) == TOUCHERS) {
			REQUIRE_OK(madvise(t->p, MARKED, MADV_DONTNEED));
			t->waiting = 0;
			__atomic_store_n(&t->round, round, __ATOMIC_SEQ_CST);
		}
		while (__atomic_load_n(&t->round, __ATOMIC_SEQ_CST) < round)
			;
		if (t_read(t->p + PAGE))
			__atomic_add_fetch(&t->failed, 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

TEST(markers_none, "two threads touch a page at once where userfaultfd() has no marker")
{
	struct touching t = {};
	pthread_t threads[TOUCHERS];

	watched(REQUIRE_OK(t_create(t_dev(), 2 * HUGE, TMESH_CREATE_HUGE)), PAGE, &t.p);
	for (int i = 0; i < TOUCHERS; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, touch_together, &t));
	for (int i = 0; i < TOUCHERS; i++)
		pthread_join(threads[i], NULL);
	CHECK_EQ(t.failed, 0);
}

struct revocation {
	pthread_t thread;
	int fd;
	bool ended;
};

static void *revoke_it(void *arg)
{
	struct revocation *r = arg;

	CHECK_OK(t_revoke(r->fd));
	__atomic_store_n(&r->ended, true, __ATOMIC_SEQ_CST);
	return NULL;
}

TEST(markers_view, "a revocation of a view waits for a late fault of each page of it")
{
	int huge = REQUIRE_OK(t_create(dev = t_dev(), HUGE, TMESH_CREATE_HUGE));
	int small = REQUIRE_OK(t_create(dev, MARKED, TMESH_CREATE_NOHUGE)), peer = open_peer();
	struct tmesh_extent parts[] = {t_extent(huge, 1, 1), t_extent(small, 0, 15)};
	struct revocation r = {.fd = REQUIRE_OK(t_gather(dev, parts, 2, R_READ | R_WRITE))};
	unsigned char *p = marked(r.fd, 0), *q = t_map(small, MARKED, RW);

	REQUIRE(q != MAP_FAILED);
	CHECK_EQ(t_write(p + 5 * PAGE, 1), 0);
	REQUIRE_OK(ioctl(peer, PEER_LOCK, q + 7 * PAGE));
	REQUIRE(!pthread_create(&r.thread, NULL, revoke_it, &r));
	while (t_info(r.fd).state != TMESH_STATE_REVOKED)
		usleep(1000);
	usleep(300000);
	CHECK(!__atomic_load_n(&r.ended, __ATOMIC_SEQ_CST));
	CHECK_OK(ioctl(peer, PEER_UNLOCK));
	pthread_join(r.thread, NULL);
	CHECK_EQ(t_read(p + 5 * PAGE), SIGBUS);
}

/* A fault that userfaultfd resolves could make the page counts wrong. */
TEST(userfaultfd, "userfaultfd() is refused a region's mappings, asynchronous write protection too")
{
	static const __u64 asks[][2] = {
		{0, UFFDIO_REGISTER_MODE_MISSING},
		{0, UFFDIO_REGISTER_MODE_WP},
		{0, UFFDIO_REGISTER_MODE_MINOR},
		{UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED, UFFDIO_REGISTER_MODE_WP},
	};
	int fd, uffd;
	unsigned char *p = mapped(&fd, BYTES, 0);

	for (size_t i = 0; i < ARRAY_SIZE(asks); i++) {
		struct uffdio_api api = {.api = UFFD_API, .features = asks[i][0]};
		struct uffdio_register r = {
			.range = {(unsigned long)p, BYTES},
			.mode = asks[i][1],
		};

		uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
		if (uffd < 0)
			t_skip("no userfaultfd: %s", strerror(errno));
		/* Linux 6.1 has no asynchronous protection. */
		if (!ioctl(uffd, UFFDIO_API, &api))
			CHECK_ERR(ioctl(uffd, UFFDIO_REGISTER, &r), EINVAL);
		close(uffd);
	}
	CHECK_EQ(touch_all(p, BYTES) > 0, 1);
}
