// SPDX-License-Identifier: MIT
/*
 * Pages in use without a mapping when a region is sealed: by pins, plain references, and other
 * devices' buffers over the same memfd. Also pages that are not in the file any more.
 */
#include <sched.h>
#include <linux/udmabuf.h>

#include "ring.h"
#include "t.h"

#define RW (PROT_READ | PROT_WRITE)

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

static int new_memfd(size_t bytes)
{
	int fd = REQUIRE_OK(memfd_create("memfd", MFD_ALLOW_SEALING | MFD_CLOEXEC));

	REQUIRE_OK(ftruncate(fd, bytes));
	REQUIRE_OK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	return fd;
}

static int create(int dev, int memfd, __u64 bytes)
{
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd, .bytes = bytes};

	return ioctl(dev, TMESH_CREATE_MEMFD, &c) ? -1 : c.fd;
}

static int read_only(int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return REQUIRE_OK(open(path, O_RDONLY | O_CLOEXEC));
}

static bool memfd_sealed(int memfd)
{
	return fcntl(memfd, F_GET_SEALS) & F_SEAL_WRITE;
}

/* Make a file with a page of 'X'. */
static int source(void)
{
	int fd = REQUIRE_OK(memfd_create("source", MFD_CLOEXEC));
	char text[PAGE];

	memset(text, 'X', sizeof(text));
	REQUIRE(write(fd, text, sizeof(text)) == (ssize_t)sizeof(text));
	return fd;
}

/* Seal a region after its pins have ended. The last references go away with a delay. */
static void check_seals_at_last(int h)
{
	int rc = t_seal(h);

	for (int i = 0; rc && i < 6000; i++) {
		CHECK_EQ(errno, EBUSY);
		usleep(20000);
		rc = t_seal(h);
	}
	CHECK_EQ(rc, 0);
	CHECK_EQ(t_info(h).state, TMESH_STATE_SEALED);
}

TEST(beyond, "EBUSY while a page of the memfd is pinned that is none of the region's")
{
	int dev = t_dev(), memfd = new_memfd(2 * PAGE), h;
	struct ring r = ring_open();
	unsigned char *p = t_map(memfd, 2 * PAGE, RW);

	REQUIRE(p != MAP_FAILED);
	p[0] = p[PAGE] = 'a';
	REQUIRE_OK(ring_pin(&r, p + PAGE, PAGE));
	munmap(p, 2 * PAGE);
	h = REQUIRE_OK(create(dev, memfd, PAGE));
	CHECK_ERR(t_seal(h), EBUSY);
	CHECK_EQ(t_info(h).state, 0);
	CHECK(!memfd_sealed(memfd));
	CHECK_EQ(ring_read(&r, source(), p + PAGE, PAGE), PAGE);
	p = t_map(memfd, 2 * PAGE, RW);
	CHECK(p != MAP_FAILED && p[PAGE] == 'X' && !t_write(p, 'b'));
	munmap(p, 2 * PAGE);
	REQUIRE_OK(ring_unpin(&r));
	check_seals_at_last(h);
	CHECK(memfd_sealed(memfd));
}

TEST(hole, "EBUSY where the file's pages are not the region's any more, pinned or not")
{
	int dev = t_dev(), memfd = new_memfd(3 * PAGE), h = REQUIRE_OK(create(dev, memfd, 0));
	struct ring r = ring_open();
	unsigned char *p;

	REQUIRE_OK(fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, PAGE));
	CHECK_ERR(t_seal(h), EBUSY);
	p = t_map(memfd, 3 * PAGE, RW);
	REQUIRE(p != MAP_FAILED);
	p[PAGE] = 'a';
	REQUIRE_OK(ring_pin(&r, p + PAGE, PAGE));
	munmap(p, 3 * PAGE);
	CHECK_ERR(t_seal(h), EBUSY);
	CHECK(!memfd_sealed(memfd));
	REQUIRE_OK(ring_unpin(&r));
	close(r.fd);
	CHECK_ERR(t_seal(h), EBUSY);
	CHECK_EQ(t_info(h).state, 0);
	CHECK(!memfd_sealed(memfd));

	/* A new region has the file's present pages. */
	close(h);
	h = REQUIRE_OK(create(dev, memfd, 0));
	check_seals_at_last(h);
}

TEST(hole_at_end, "nor where a hole is at the end of the region, or the whole of it")
{
	int dev = t_dev(), memfd = new_memfd(3 * PAGE),
	    h = REQUIRE_OK(create(dev, memfd, 2 * PAGE));

	REQUIRE_OK(fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, 2 * PAGE));
	CHECK_ERR(t_seal(h), EBUSY);
	REQUIRE_OK(fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 3 * PAGE));
	CHECK_ERR(t_seal(h), EBUSY);
	CHECK(!memfd_sealed(memfd));
}

TEST(stale, "EBUSY for a region whose memfd is sealed, but has other pages than it")
{
	int dev = t_dev(), memfd = new_memfd(2 * PAGE), reader, h;

	reader = REQUIRE_OK(create(dev, read_only(memfd), 0));
	REQUIRE_OK(fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, PAGE));
	h = REQUIRE_OK(create(dev, memfd, PAGE));
	CHECK_OK(t_seal(h));
	CHECK(memfd_sealed(memfd));
	CHECK_ERR(t_seal(reader), EBUSY);
	CHECK_EQ(t_info(reader).state, 0);
	reader = REQUIRE_OK(create(dev, memfd, 0));
	CHECK_OK(t_seal(reader));
}

/* The seal by fcntl() has checked for writers, and there can be no new ones. */
TEST(sealed_before,
     "readers' references on a memfd that is sealed already stop no seal, nor who joined before")
{
	int dev = t_dev(), memfd = new_memfd(PAGE), reader, h, pipes[2];
	struct iovec io = {.iov_len = PAGE};

	reader = REQUIRE_OK(create(dev, read_only(memfd), 0));
	h = REQUIRE_OK(create(dev, memfd, 0));
	CHECK_OK(t_seal(h));
	CHECK(memfd_sealed(memfd));
	io.iov_base = t_map(read_only(memfd), PAGE, PROT_READ);
	REQUIRE(io.iov_base != MAP_FAILED);
	REQUIRE_OK(pipe(pipes));
	REQUIRE(vmsplice(pipes[1], &io, 1, 0) == (ssize_t)PAGE);
	CHECK_OK(t_seal(reader));
	CHECK_EQ(t_info(reader).state, TMESH_STATE_SEALED);
}

/*
 * Check a plain reference, as direct I/O takes before 6.3 and some filesystems take in all
 * versions.
 */
static void check_plain(int h, int memfd, size_t at)
{
	unsigned char *p = t_map(memfd, at + PAGE, RW);
	struct iovec io = {p + at, PAGE};
	char text[PAGE];
	int pipes[2];

	REQUIRE(p != MAP_FAILED);
	REQUIRE_OK(pipe(pipes));
	p[at] = 1;
	REQUIRE(vmsplice(pipes[1], &io, 1, 0) == (ssize_t)PAGE);
	munmap(p, at + PAGE);
	CHECK_ERR(t_seal(h), EBUSY);
	CHECK(!memfd_sealed(memfd));
	REQUIRE(read(pipes[0], text, PAGE) == (ssize_t)PAGE);
}

TEST(plain, "EBUSY for a plain reference on any page of a memfd")
{
	int dev = t_dev(), memfd = new_memfd(3 * PAGE), h = REQUIRE_OK(create(dev, memfd, PAGE));

	check_plain(h, memfd, 0);
	check_plain(h, memfd, 2 * PAGE);
	check_seals_at_last(h);
}

TEST(udmabuf, "EBUSY while there is a udmabuf of the memfd")
{
	int dev = t_dev(), memfd = new_memfd(3 * PAGE), h, u = open("/dev/udmabuf", O_RDWR), buffer;
	struct udmabuf_create c = {.memfd = memfd, .offset = 2 * PAGE, .size = PAGE};
	unsigned char *p;

	if (u < 0)
		t_skip("no udmabuf");
	buffer = REQUIRE_OK(ioctl(u, UDMABUF_CREATE, &c));
	p = t_map(buffer, PAGE, RW);
	REQUIRE(p != MAP_FAILED);
	h = REQUIRE_OK(create(dev, memfd, PAGE));
	CHECK_ERR(t_seal(h), EBUSY);
	p[0] = 1;
	munmap(p, PAGE);
	CHECK_ERR(t_seal(h), EBUSY);
	CHECK(!memfd_sealed(memfd));
	close(buffer);
	check_seals_at_last(h);
}

static void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	REQUIRE_OK(sched_setaffinity(0, sizeof(set), &set));
}

TEST(batches, "pages that wait on another CPU to become reclaimable stop no seal")
{
	int dev = t_dev(), cpus = sysconf(_SC_NPROCESSORS_ONLN);
	char text[PAGE] = {1};

	if (cpus < 2)
		t_skip("one CPU");
	for (int pages = 1; pages <= 20; pages++) {
		int memfd = new_memfd(pages * PAGE), h;

		run_on(1);
		for (int i = 0; i < pages; i++)
			REQUIRE(pwrite(memfd, text, PAGE, i * PAGE) == (ssize_t)PAGE);
		run_on(0);
		h = REQUIRE_OK(create(dev, memfd, PAGE));
		if (!CHECK_OK(t_seal(h)))
			t_note("%d pages", pages);
		close(h);
		close(memfd);
	}
}

TEST(readers, "readers of a memfd stop no seal, however many and busy")
{
	int dev = t_dev(), memfd = new_memfd(8 * MB), h = REQUIRE_OK(create(dev, memfd, 4 * MB)),
	    sv[2];
	unsigned char *p = t_map(memfd, 8 * MB, RW);
	pid_t pids[4];

	REQUIRE(p != MAP_FAILED);
	memset(p, 7, 8 * MB);
	munmap(p, 8 * MB);
	t_pair(sv);
	for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
		T_CHILD(pids[i]) {
			unsigned char *q = t_map(i % 2 ? memfd : h, 4 * MB, PROT_READ);

			/* A mapping through a file that can write counts as a writer. */
			if (i % 2) {
				munmap(q, 4 * MB);
				q = t_map(read_only(memfd), 8 * MB, PROT_READ);
			}
			REQUIRE(q != MAP_FAILED);
			for (size_t k = 0; k < 4 * MB; k += PAGE)
				CHECK_EQ(q[k], 7);
			t_say(sv[1]);
			t_hear(sv[1]);
			for (size_t k = 0; k < 4 * MB; k += PAGE)
				CHECK_EQ(q[k], 7);
		}
		t_hear(sv[0]);
	}
	CHECK_OK(t_seal(h));
	for (size_t i = 0; i < ARRAY_SIZE(pids); i++)
		t_say(sv[0]);
	for (size_t i = 0; i < ARRAY_SIZE(pids); i++)
		t_wait(pids[i]);
}

/* Threads that map and unmap a page which has a plain reference. */
static bool over;

static void *fork_on(void *arg)
{
	while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
		pid_t pid = fork();

		if (!pid)
			_exit(0);
		if (pid > 0)
			waitpid(pid, NULL, 0);
	}
	return NULL;
}

static void *touch_on(void *page)
{
	while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
		madvise(page, PAGE, MADV_DONTNEED);
		t_read(page);
	}
	return NULL;
}

static __u64 pinned(int h)
{
	struct tmesh_info info = {.size = sizeof(info), .flags = TMESH_INFO_PINS};

	REQUIRE_OK(ioctl(h, TMESH_INFO, &info));
	return info.pinned_bytes;
}

/*
 * Check that a reference is not hidden. TMESH_INFO and a seal share the look at the counts; only
 * the seal tries again.
 */
static void check_hidden(__u32 flags, __u64 bytes)
{
	int dev = t_dev(), h = REQUIRE_OK(t_create(dev, bytes, flags)), ro, pipes[2];
	unsigned char *p = t_map(h, bytes, RW), *q;
	struct iovec io = {p + bytes - PAGE, PAGE};
	double until = t_now() + t_length(8, 60);
	long looks = 0, missed = 0;
	pthread_t threads[2];

	memset(p, 1, bytes);
	REQUIRE_OK(pipe(pipes));
	REQUIRE(vmsplice(pipes[1], &io, 1, 0) == (ssize_t)PAGE);
	munmap(p, bytes);
	ro = REQUIRE_OK(t_derive(h, R_READ, 0));
	q = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, ro, bytes - PAGE);
	REQUIRE(q != MAP_FAILED);
	REQUIRE(!pthread_create(&threads[0], NULL, fork_on, NULL));
	REQUIRE(!pthread_create(&threads[1], NULL, touch_on, q));
	for (; t_now() < until; looks++)
		missed += !pinned(h);
	CHECK_ERR(t_seal(h), EBUSY);
	__atomic_store_n(&over, true, __ATOMIC_RELEASE);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	t_note("%ld looks", looks);
	CHECK_EQ(missed, 0);
}

TEST_CALL(hidden, "who maps and unmaps a page hides no reference on it",
	  check_hidden(TMESH_CREATE_NOHUGE, PAGE))
TEST_CALL(hidden_large, "nor one on a large folio", check_hidden(0, MB))

TEST(many, "1,024 regions of one memfd at most: EDQUOT; readers' ones stop no seal")
{
	int dev = t_dev(), memfd = new_memfd(2 * PAGE), ro = read_only(memfd), h, last = -1;
	struct rlimit files = {2000, 2000};

	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
	h = REQUIRE_OK(create(dev, memfd, 0));
	for (int i = 1; i < 1024; i++)
		last = REQUIRE_OK(create(dev, ro, i % 2 ? PAGE : 2 * PAGE));
	CHECK_ERR(create(dev, memfd, 0), EDQUOT);
	CHECK_ERR(create(dev, ro, PAGE), EDQUOT);
	CHECK_OK(create(dev, new_memfd(PAGE), 0));
	close(last);
	CHECK_OK(create(dev, ro, PAGE));
	CHECK_ERR(create(dev, ro, PAGE), EDQUOT);
	CHECK_OK(t_seal(h));
	CHECK_EQ(t_caps(dev).used_regions, 1025);
}

/*
 * A thread that gets write access while the seal looks at pages, pins one that it has passed
 * already, and is gone before it ends
 */
struct passing {
	int (*open)(int dev, int memfd, int handle);
	int dev, memfd, handle;
	struct ring ring;
	double delay;
	unsigned char *page;
	bool pinned;
	pthread_barrier_t gate;
};

static void *pass_by(void *arg)
{
	struct passing *p = arg;
	double until;
	int h;

	pthread_barrier_wait(&p->gate);
	for (until = t_now() + p->delay; t_now() < until;)
		;
	h = p->open(p->dev, p->memfd, p->handle);
	if (h < 0)
		return NULL;
	p->page = t_map(h, PAGE, RW);
	if (p->page != MAP_FAILED) {
		p->pinned = !ring_pin(&p->ring, p->page, PAGE);
		munmap(p->page, PAGE);
	}
	if (h != p->handle)
		close(h);
	return NULL;
}

static int same_handle(int dev, int memfd, int handle)
{
	return handle;
}

static int another_region(int dev, int memfd, int handle)
{
	return create(dev, memfd, PAGE);
}

static void check_passing(int (*open)(int, int, int), bool over_memfd)
{
	const size_t bytes = 32 * MB;
	int text = source(), sealed = 0, pinned = 0;
	struct passing p = {.open = open, .dev = t_dev(), .memfd = -1};
	double until = t_now() + t_length(10, 120), span = 0;
	unsigned int seed = 4711;

	for (int round = 0; t_now() < until && !t_failed(); round++) {
		unsigned char *q, before;
		pthread_t thread;
		double begin;
		int rc;

		if (over_memfd) {
			p.memfd = new_memfd(bytes);
			p.handle = REQUIRE_OK(create(p.dev, p.memfd, 0));
		} else {
			p.handle = REQUIRE_OK(t_create(p.dev, bytes, TMESH_CREATE_NOHUGE));
		}
		p.ring = ring_open();
		p.pinned = false;
		/* The first round is undisturbed, to measure its time. */
		p.delay = round ? span * (t_random(&seed) % 1000) / 1000 : 1;
		REQUIRE(!pthread_barrier_init(&p.gate, NULL, 2));
		REQUIRE(!pthread_create(&thread, NULL, pass_by, &p));
		pthread_barrier_wait(&p.gate);
		begin = t_now();
		rc = t_seal(p.handle);
		if (!round)
			span = t_now() - begin;
		pthread_join(thread, NULL);
		CHECK(!rc || errno == EBUSY);
		sealed += !rc;
		pinned += p.pinned;
		q = t_map(p.handle, PAGE, PROT_READ);
		REQUIRE(q != MAP_FAILED);
		before = q[0];
		if (p.pinned)
			CHECK_EQ(ring_read(&p.ring, text, p.page, PAGE), PAGE);
		if (!rc)
			CHECK_EQ(q[0], before);
		munmap(q, PAGE);
		close(p.ring.fd);
		close(p.handle);
		close(p.memfd);
	}
	t_note("%d seals, %d pins", sealed, pinned);
}

TEST(passing, "who writes while a seal looks at pages is noticed, though he is gone at its end")
{
	if (!t_kernel_at_least(6, 12))
		t_skip("io_uring registers no such memory before 6.12");
	check_passing(same_handle, false);
}

TEST_CALL(passing_memfd, "the same on a memfd", check_passing(same_handle, true))
TEST_CALL(passing_region, "the same by way of another region of the memfd",
	  check_passing(another_region, true))

/* Check that a killed seal has changed nothing. Kill it in the middle of its look at least once. */
static void check_killed(bool over_memfd)
{
	double until = t_now() + 40, span = 0;
	const size_t bytes = 64 * MB;
	unsigned int seed = 1234;
	int dev = t_dev(), unsealed = 0, rounds;

	for (rounds = 0; !unsealed && t_now() < until && !t_failed(); rounds++) {
		int memfd = -1, h, sv[2];
		unsigned char *p;
		double begin;
		pid_t pid;

		if (over_memfd) {
			memfd = new_memfd(bytes);
			h = REQUIRE_OK(create(dev, memfd, 0));
		} else {
			h = REQUIRE_OK(t_create(dev, bytes, TMESH_CREATE_NOHUGE));
		}
		t_pair(sv);
		pid = REQUIRE_OK(fork());
		if (!pid) {
			t_say(sv[1]);
			t_seal(h);
			_exit(0);
		}
		t_hear(sv[0]);
		begin = t_now();
		if (rounds) {
			double at = begin + span * (500 + t_random(&seed) % 400) / 1000;

			while (t_now() < at)
				;
			kill(pid, SIGKILL);
		}
		REQUIRE(waitpid(pid, NULL, 0) == pid);
		if (!rounds)
			span = t_now() - begin;
		if (!(t_info(h).state & TMESH_STATE_SEALED)) {
			unsealed++;
			p = t_map(h, bytes, RW);
			CHECK(p != MAP_FAILED && !t_write(p, 1));
			munmap(p, bytes);
			if (over_memfd)
				CHECK_EQ(pwrite(memfd, "a", 1, 0), 1);
			CHECK_OK(t_seal(h));
		}
		close(sv[0]);
		close(sv[1]);
		close(memfd);
		close(h);
	}
	t_note("%d rounds", rounds);
	CHECK(unsealed);
}

TEST_CALL(killed, "a seal can be killed while it looks at pages", check_killed(false))
TEST_CALL(killed_memfd, "the same over a memfd, which can be written again", check_killed(true))
