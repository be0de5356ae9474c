// SPDX-License-Identifier: MIT
/*
 * Private mappings of sealed regions: a write goes to a copy that only the process sees.
 */
#include <sys/ptrace.h>

#include "cgroup.h"
#include "keep.h"
#include "lease.h"

#define RW (PROT_READ | PROT_WRITE)
#define BYTES (4 * MB)
#define PAGES (BYTES / PAGE)
/* The first byte of page @i of the region */
#define SEALED(i) ((unsigned char)(7 + (i)))
#define MINE 0xa5

static unsigned char *map_private(int fd, size_t bytes, int prot)
{
	return mmap(NULL, bytes, prot, MAP_PRIVATE, fd, 0);
}

/* The kinds of memory that a region may have */
static const struct kind {
	const char *name;
	__u32 flags;
} kinds[] = {{"pages", TMESH_CREATE_NOHUGE}, {"2 MiB pages", TMESH_CREATE_HUGE}};

static int region_of(int dev, const struct kind *kind)
{
	if (kind->flags & TMESH_CREATE_HUGE && !t_has_huge(dev))
		t_skip("no 2 MiB pages");
	return keep_region(dev, BYTES, kind->flags, 7);
}

/* Run the block for each kind, with its sealed region in @fd and a read-only handle in @h. */
#define FOR_EACH_KIND(dev, kind, fd, h)                                                      \
	for (const struct kind *kind = kinds; kind < kinds + ARRAY_SIZE(kinds); kind++)      \
		for (int fd = region_of(dev, kind), h = REQUIRE_OK(t_derive(fd, R_READ, 0)), \
			 once = 1;                                                           \
		     once; once = 0, close(fd), close(h))

static bool untouched(const unsigned char *p)
{
	for (size_t i = 0; i < PAGES; i++)
		if (p[i * PAGE] != SEALED(i))
			return false;
	return true;
}

TEST(own, "what is written is one's own: not the region's, not another mapping's")
{
	int dev = t_dev();

	CHECK(t_caps(dev).features & TMESH_FEATURE_PRIVATE);
	FOR_EACH_KIND(dev, kind, fd, h)
	{
		unsigned char *shared = t_map(fd, BYTES, PROT_READ);
		unsigned char *a = map_private(h, BYTES, RW), *b = map_private(fd, BYTES, RW);

		t_note("%s", kind->name);
		REQUIRE(shared != MAP_FAILED && a != MAP_FAILED && b != MAP_FAILED);
		/*
		 * Some pages are written without having been read, others after having been read.
		 */
		CHECK(untouched(b));
		for (size_t i = 0; i < PAGES; i += 3) {
			CHECK_EQ(t_write(a + i * PAGE + 1, MINE), 0);
			CHECK_EQ(t_write(b + i * PAGE + 2, MINE + 1), 0);
		}
		for (size_t i = 0; i < PAGES && !t_failed(); i++) {
			CHECK_EQ(a[i * PAGE], SEALED(i));
			CHECK_EQ(b[i * PAGE], SEALED(i));
			CHECK_EQ(a[i * PAGE + 1], i % 3 ? 0 : MINE);
			CHECK_EQ(a[i * PAGE + 2], 0);
			CHECK_EQ(b[i * PAGE + 1], 0);
			CHECK_EQ(b[i * PAGE + 2], i % 3 ? 0 : MINE + 1);
			CHECK_EQ(shared[i * PAGE + 1], 0);
			CHECK_EQ(shared[i * PAGE + 2], 0);
		}
		CHECK(untouched(shared));
		munmap(a, BYTES);
		munmap(b, BYTES);
		munmap(shared, BYTES);
	}
}

TEST(huge_reads, "as long as nothing is written it is mapped by 2 MiB, and costs nothing")
{
	int dev = t_dev(), fd = region_of(dev, &kinds[1]);
	unsigned char *p = map_private(fd, BYTES, RW);

	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(t_pmd_mapped(p, BYTES), BYTES / KB);
	CHECK_EQ(t_smaps(p, "Anonymous"), 0);
	p[HUGE + 5 * PAGE] = MINE;
	CHECK_EQ(t_smaps(p, "Anonymous"), PAGE / KB);
	CHECK_EQ(t_smaps(p, "FilePmdMapped"), HUGE / KB);
	for (size_t i = 0; i < PAGES; i++)
		CHECK_EQ(p[i * PAGE], i == HUGE / PAGE + 5 ? MINE : SEALED(i));
	CHECK_EQ(t_smaps(p, "Anonymous"), PAGE / KB);
}

TEST(refused, "what is not sealed, an export, a view, code, and what leaves the region")
{
	int dev = t_dev(), live = REQUIRE_OK(t_create(dev, BYTES, 0));
	struct tmesh_extent e = t_extent(live, 0, 1);
	int view = REQUIRE_OK(t_gather(dev, &e, 1, R_READ)), fd, dmabuf;

	CHECK_ERR(map_private(live, PAGE, PROT_READ), EINVAL);
	CHECK_ERR(map_private(live, PAGE, RW), EINVAL);
	CHECK_ERR(map_private(view, PAGE, PROT_READ), EINVAL);
	fd = region_of(dev, &kinds[0]);
	dmabuf = REQUIRE_OK(t_export(fd, 0, 0, 0));
	CHECK_ERR(map_private(dmabuf, PAGE, PROT_READ), EINVAL);
	CHECK_ERR(map_private(fd, PAGE, PROT_READ | PROT_EXEC), EPERM);
	CHECK_ERR(map_private(fd, BYTES + PAGE, PROT_READ), EINVAL);
	CHECK_ERR(mmap(NULL, PAGE, RW, MAP_PRIVATE, fd, BYTES), EINVAL);
	/* A shared writable mapping is still refused. */
	CHECK_ERR(mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0), EPERM);
	REQUIRE_OK(t_revoke(fd));
	CHECK_ERR(map_private(fd, PAGE, RW), ESTALE);
}

TEST(protection, "protection may be changed, and the seal does not mind")
{
	int dev = t_dev();

	FOR_EACH_KIND(dev, kind, fd, h)
	{
		unsigned char *p = map_private(h, BYTES, PROT_READ);

		REQUIRE(p != MAP_FAILED);
		CHECK(untouched(p));
		CHECK(t_write(p, MINE));
		CHECK_OK(mprotect(p, BYTES, RW));
		CHECK_EQ(t_write(p + PAGE, MINE), 0);
		CHECK_OK(mprotect(p, BYTES, PROT_NONE));
		CHECK(t_read(p + PAGE));
		CHECK_OK(mprotect(p, BYTES, PROT_READ));
		CHECK_EQ(p[PAGE], MINE);
		CHECK_EQ(p[2 * PAGE], SEALED(2));
		CHECK_ERR(mprotect(p, BYTES, PROT_READ | PROT_EXEC), EACCES);
		/* It does not count as a writer of the region. */
		CHECK_OK(t_seal(fd));
		munmap(p, BYTES);
	}
}

TEST(forked, "a fork has what was written before it, and writes for itself after it")
{
	int dev = t_dev();

	FOR_EACH_KIND(dev, kind, fd, h)
	{
		unsigned char *p = map_private(h, BYTES, RW);

		REQUIRE(p != MAP_FAILED);
		p[PAGE] = MINE;
		T_ALONE()
		{
			CHECK_EQ(p[PAGE], MINE);
			CHECK_EQ(p[2 * PAGE], SEALED(2));
			p[PAGE] = p[2 * PAGE] = p[HUGE] = MINE + 1;
			CHECK_EQ(p[PAGE], MINE + 1);
		}
		CHECK_EQ(p[PAGE], MINE);
		CHECK_EQ(p[2 * PAGE], SEALED(2));
		CHECK_EQ(p[HUGE], SEALED(HUGE / PAGE));
		munmap(p, BYTES);
	}
}

TEST(moved, "mremap, partial munmap and madvise")
{
	int dev = t_dev();

	FOR_EACH_KIND(dev, kind, fd, h)
	{
		unsigned char *p = map_private(h, BYTES, RW), *q;

		REQUIRE(p != MAP_FAILED);
		p[3 * PAGE] = MINE;
		CHECK_ERR(mremap(p, BYTES, BYTES + PAGE, MREMAP_MAYMOVE), EFAULT);
		CHECK_ERR(mremap(p, 0, BYTES, MREMAP_MAYMOVE), EINVAL);
		q = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		REQUIRE(q != MAP_FAILED);
		REQUIRE(mremap(p, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
		CHECK_EQ(q[3 * PAGE], MINE);
		CHECK_EQ(q[4 * PAGE], SEALED(4));
		q[4 * PAGE] = MINE;
		CHECK_OK(munmap(q + 8 * PAGE, 8 * PAGE));
		CHECK_EQ(q[4 * PAGE], MINE);
		CHECK_EQ(q[16 * PAGE], SEALED(16));
		/* MADV_DONTNEED drops the copies, and the region shows again. */
		CHECK_OK(madvise(q, 8 * PAGE, MADV_DONTNEED));
		CHECK_EQ(q[3 * PAGE], SEALED(3));
		CHECK_EQ(q[4 * PAGE], SEALED(4));
		CHECK_OK(madvise(q + HUGE, HUGE, MADV_POPULATE_WRITE));
		CHECK_EQ(t_smaps(q + HUGE, "Anonymous"), HUGE / KB);
		for (size_t i = HUGE / PAGE; i < PAGES; i++)
			CHECK_EQ(q[i * PAGE], SEALED(i));
		CHECK_EQ(madvise(q, PAGE, MADV_REMOVE), -1);
		CHECK(keep_same(fd, BYTES, 7));
		munmap(q, BYTES);
	}
}

TEST(kernel_writes, "writes and pins of the kernel's go to the process's own pages")
{
	int dev = t_dev();

	FOR_EACH_KIND(dev, kind, fd, h)
	{
		unsigned char *p = map_private(h, BYTES, RW), *r, byte = MINE;
		struct iovec from = {&byte, 1}, to;
		struct tmesh_create_user c = {.size = sizeof(c)};
		int mem = REQUIRE_OK(open("/proc/self/mem", O_RDWR | O_CLOEXEC));

		REQUIRE(p != MAP_FAILED);
		to = (struct iovec){p + 5 * PAGE, 1};
		CHECK_EQ(process_vm_writev(getpid(), &from, 1, &to, 1, 0), 1);
		CHECK_EQ(p[5 * PAGE], MINE);
		/* A debugger may write to a read-only mapping. */
		r = map_private(h, BYTES, PROT_READ);
		REQUIRE(r != MAP_FAILED);
		if (pwrite(mem, &byte, 1, (off_t)(unsigned long)(r + 6 * PAGE)) == 1)
			CHECK_EQ(r[6 * PAGE], MINE);
		else
			t_note("this kernel lets no process write to read-only mappings");
		/* After a long-term pin devices see later writes of the process. */
		c.address = ADDRESS(p + 8 * PAGE);
		c.bytes = 8 * PAGE;
		c.rights = R_READ | R_WRITE;
		CHECK_OK(ioctl(dev, TMESH_CREATE_USER, &c));
		p[9 * PAGE] = MINE;
		CHECK_EQ(p[9 * PAGE + 1], 0);
		CHECK_EQ(p[10 * PAGE], SEALED(10));
		close(c.fd);
		c.address = ADDRESS(p + HUGE);
		c.rights = R_READ;
		CHECK_OK(ioctl(dev, TMESH_CREATE_USER, &c));
		/* The pages are copies by now, with the same contents. */
		for (size_t i = HUGE / PAGE; i < HUGE / PAGE + 8; i++)
			CHECK_EQ(p[i * PAGE], SEALED(i));
		close(c.fd);
		if (kind->flags & TMESH_CREATE_HUGE && t_kernel_at_least(6, 2)) {
			unsigned char *q = map_private(h, BYTES, RW);
			unsigned long long most = t_limit("max_bytes_per_uid");

			/* The limit leaves no room for the copy that such a pin needs. */
			REQUIRE(q != MAP_FAILED);
			c.address = ADDRESS(q);
			t_set_limit("max_bytes_per_uid", t_caps(dev).used_bytes + c.bytes);
			CHECK_ERR(ioctl(dev, TMESH_CREATE_USER, &c), EOPNOTSUPP);
			t_set_limit("max_bytes_per_uid", most);
			CHECK_OK(ioctl(dev, TMESH_CREATE_USER, &c));
			close(c.fd);
			munmap(q, BYTES);
		}
		CHECK(keep_same(fd, BYTES, 7));
		CHECK_EQ(t_info(fd).pinned_bytes, 0);
		munmap(p, BYTES);
		munmap(r, BYTES);
		close(mem);
	}
}

TEST(copies, "the page that such a pin needs for a moment is freed after it")
{
	int dev = t_dev(), fd = region_of(dev, &kinds[1]);
	struct tmesh_create_user c = {.size = sizeof(c), .bytes = PAGE, .rights = R_READ};
	unsigned char *p;
	long before;
	int h;

	if (!t_kernel_at_least(6, 2))
		t_skip("this kernel copies no page for a pin that only reads");
	T_ALONE()
	{
		cgroup_enter(CGROUP, "max");
		before = cgroup_charged(CGROUP);
		for (int i = 0; i < 1024; i++) {
			/* Each handle has its own copies. */
			h = REQUIRE_OK(t_derive(fd, R_READ, 0));
			p = map_private(h, BYTES, RW);
			REQUIRE(p != MAP_FAILED);
			c.address = ADDRESS(p);
			REQUIRE_OK(ioctl(dev, TMESH_CREATE_USER, &c));
			close(c.fd);
			munmap(p, BYTES);
			close(h);
		}
		CHECK(cgroup_charged(CGROUP) < before + (long)(2 * MB));
	}
	cgroup_remove(CGROUP);
}

/* Check pages 0 to 3 after the loss: 0 was written, 1 was read, 2 was not touched. */
static void check_gone(unsigned char *p, bool zeros)
{
	CHECK_EQ(p[0], MINE);
	CHECK_EQ(t_write(p, MINE + 1), 0);
	for (size_t i = 1; i < 3; i++) {
		if (!zeros) {
			CHECK(t_read(p + i * PAGE));
			CHECK(t_write(p + i * PAGE, 1));
			continue;
		}
		CHECK_EQ(t_read(p + i * PAGE), 0);
		CHECK_EQ(p[i * PAGE], 0);
		CHECK_EQ(t_write(p + i * PAGE, MINE), 0);
		CHECK_EQ(p[i * PAGE], MINE);
		CHECK_EQ(p[i * PAGE + 1], 0);
	}
}

TEST(revoked, "after a revocation what was written stays, and the rest goes as the policy says")
{
	int dev = t_dev();

	for (int zeros = 0; zeros < 2; zeros++) {
		FOR_EACH_KIND(dev, kind, fd, h)
		{
			struct tmesh_policy policy = {
				.size = sizeof(policy),
				.flags = zeros ? TMESH_POLICY_ZERO : 0,
			};
			unsigned char *p = map_private(h, BYTES, RW), *q;

			CHECK_OK(ioctl(h, TMESH_POLICY, &policy));
			q = map_private(h, BYTES, RW);
			REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
			p[0] = MINE;
			CHECK_EQ(p[PAGE], SEALED(1));
			CHECK(untouched(q));
			CHECK_OK(t_revoke(fd));
			check_gone(p, zeros);
			/* Another mapping does not see a write to zeros. */
			CHECK_EQ(!t_read(q + PAGE), zeros);
			if (zeros)
				CHECK_EQ(q[PAGE], 0);
			CHECK_EQ(t_info(fd).pinned_bytes, 0);
			munmap(p, BYTES);
			munmap(q, BYTES);
		}
	}
}

TEST(lapsed, "the same when a lease lapses")
{
	int dev = t_dev();

	FOR_EACH_KIND(dev, kind, fd, h)
	{
		struct lease l = lease_put(h, 300000000);
		unsigned char *p = map_private(h, BYTES, RW);

		if (p == MAP_FAILED) {
			t_note("the lease lapsed before it was mapped");
		} else if (!t_write(p, MINE)) {
			(void)t_read(p + PAGE);
			await_end(&l, h);
			check_gone(p, false);
			munmap(p, BYTES);
		}
		lease_unmap(&l);
	}
}

TEST(pinned, "a pinning handle keeps what is not written, too")
{
	int dev = t_dev();

	FOR_EACH_KIND(dev, kind, fd, h)
	{
		int pin = REQUIRE_OK(t_derive(fd, R_READ, TMESH_DERIVE_PIN));
		unsigned char *p = map_private(pin, BYTES, RW);

		REQUIRE(p != MAP_FAILED);
		close(pin);
		CHECK_ERR(t_revoke(fd), EBUSY);
		p[0] = MINE;
		CHECK_EQ(p[PAGE], SEALED(1));
		munmap(p, BYTES);
		CHECK_OK(t_revoke(fd));
	}
}

TEST(memfd, "a region over a sealed memfd is mapped so, too")
{
	int dev = t_dev(), memfd = REQUIRE_OK(memfd_create("p", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};
	unsigned char *p, *shared;

	REQUIRE_OK(ftruncate(memfd, 4 * PAGE));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	REQUIRE(pwrite(memfd, "a", 1, PAGE) == 1);
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &c));
	CHECK_ERR(map_private(c.fd, PAGE, RW), EINVAL);
	REQUIRE_OK(t_seal(c.fd));
	p = map_private(c.fd, 4 * PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	CHECK_OK(mprotect(p, 4 * PAGE, RW));
	shared = t_map(c.fd, 4 * PAGE, PROT_READ);
	REQUIRE(shared != MAP_FAILED);
	CHECK_EQ(p[PAGE], 'a');
	CHECK_EQ(t_write(p + PAGE, MINE), 0);
	CHECK_EQ(shared[PAGE], 'a');
	CHECK_EQ(p[PAGE], MINE);
}

/* Races */

struct race {
	unsigned char *p;
	unsigned int seed;
	bool stop;
	long written, gone;
};

static void *write_all(void *arg)
{
	struct race *r = arg;

	t_catch_faults();
	while (!__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) {
		size_t i = t_random(&r->seed) % PAGES;
		unsigned char *at = r->p + i * PAGE;

		if (t_random(&r->seed) % 2) {
			if (t_read(at))
				r->gone++;
			continue;
		}
		if (t_write(at + 8 + r->seed % 8, MINE)) {
			r->gone++;
		} else {
			r->written++;
			/* A written page stays, whatever happens to the region. */
			CHECK_EQ(at[0], SEALED(i));
		}
	}
	return NULL;
}

TEST(revoke_race, "a revocation against reads and first writes of private mappings")
{
	double until = t_now() + t_length(10, 300);
	long rounds = t_length(100, 20000), done = 0, written = 0, gone = 0;
	int dev = t_dev();

	/* Go on longer if not both outcomes have occurred. */
	while (((done < rounds && t_now() < until) || !written || !gone) && !t_failed()) {
		const struct kind *kind = &kinds[done % 2];
		int fd = region_of(dev, kind);
		unsigned char *p = map_private(fd, BYTES, RW);
		struct race r[2] = {{.p = p, .seed = done + 1}, {.p = p, .seed = done + 77}};
		pthread_t threads[2];

		REQUIRE(p != MAP_FAILED);
		for (int i = 0; i < 2; i++)
			REQUIRE(!pthread_create(&threads[i], NULL, write_all, &r[i]));
		usleep(r[0].seed * 7919 % 3000);
		CHECK_OK(t_revoke(fd));
		usleep(200);
		for (int i = 0; i < 2; i++) {
			__atomic_store_n(&r[i].stop, true, __ATOMIC_RELAXED);
			pthread_join(threads[i], NULL);
			written += r[i].written;
			gone += r[i].gone;
		}
		munmap(p, BYTES);
		close(fd);
		done++;
	}
	t_note("%ld rounds, %ld writes, %ld found it gone", done, written, gone);
	CHECK(written && gone);
}

#ifndef SYS_process_mrelease
#define SYS_process_mrelease 448
#endif

/* Make a killed process that has not begun to exit: a tracer can still read its memory. */
static pid_t dying(unsigned char *p)
{
	int status;
	pid_t pid = t_fork();

	if (!pid) {
		p[0] = MINE;
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		_exit(0);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	REQUIRE_OK(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXIT));
	REQUIRE_OK(kill(pid, SIGKILL));
	REQUIRE(waitpid(pid, &status, 0) == pid);
	if (!WIFSTOPPED(status))
		t_skip("this kernel stops no killed process for its tracer");
	return pid;
}

TEST(reaped,
     "what a killed process wrote and memory was taken of reads as nothing, not as the region")
{
	int dev = t_dev();

	FOR_EACH_KIND(dev, kind, fd, h)
	{
		unsigned char *p = map_private(h, BYTES, RW);
		int pidfd, status;
		pid_t pid;
		long word;

		t_note("%s", kind->name);
		REQUIRE(p != MAP_FAILED);
		pid = dying(p);
		word = ptrace(PTRACE_PEEKDATA, pid, p, 0);
		CHECK_EQ(word & 0xff, MINE);
		pidfd = REQUIRE_OK(syscall(SYS_pidfd_open, pid, 0));
		/* Free its memory like the OOM reaper. */
		REQUIRE_OK(syscall(SYS_process_mrelease, pidfd, 0));
		errno = 0;
		word = ptrace(PTRACE_PEEKDATA, pid, p, 0);
		CHECK_EQ(errno, EIO);
		CHECK_EQ(word, -1);
		CHECK_OK(ptrace(PTRACE_CONT, pid, 0, 0));
		REQUIRE(waitpid(pid, &status, 0) == pid);
		close(pidfd);
		munmap(p, BYTES);
	}
}
