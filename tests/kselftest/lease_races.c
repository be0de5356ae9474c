// SPDX-License-Identifier: MIT
/*
 * Races about leases. Touches come late. Threads read, fault, map, derive, export, fork and close
 * while the lease lapses, its process ends, its region is revoked, or everything is closed.
 *
 * The lease of a round is bound to a process, which ends soon, or has the shortest period.
 */
#include "lease.h"

#define BYTES (2 * HUGE)
#define PATTERN 0xa5a5a5a5a5a5a5a5ul

struct subject {
	int dev, owner, handle, pidfd;
	pid_t pid;
	unsigned char *p;
	struct lease lease;
	bool stop;
	unsigned int seed;
	unsigned long reads, lies;
};

static bool stopped(const struct subject *s)
{
	return __atomic_load_n(&s->stop, __ATOMIC_ACQUIRE);
}

static unsigned int own_seed(struct subject *s)
{
	return __atomic_add_fetch(&s->seed, 0x9e3779b9, __ATOMIC_RELAXED) | 1;
}

/*
 * Read by the reader's rule: use the data, then load the state. Data read before a LIVE state is
 * valid.
 */
static void *reader(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);

	while (!stopped(s)) {
		size_t at = t_random(&seed) % (BYTES / 8) * 8;
		unsigned long word = *(volatile unsigned long *)(s->p + at);

		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (lease_state(&s->lease) == TMESH_LEASE_LIVE && word != PATTERN)
			__atomic_add_fetch(&s->lies, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&s->reads, 1, __ATOMIC_RELAXED);
		if (t_random(&seed) % 16 == 0)
			madvise(s->p + at / HUGE * HUGE, HUGE, MADV_DONTNEED);
	}
	return NULL;
}

static void *toucher(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);

	while (!stopped(s)) {
		lease_touch(&s->lease);
		t_info(s->handle);
		usleep(t_random(&seed) % 8000);
	}
	return NULL;
}

static void *mapper(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);

	while (!stopped(s)) {
		unsigned char *q = t_map(s->handle, BYTES, t_random(&seed) % 2 ? RW : PROT_READ);
		/*
		 * Make no hole at the beginning: it would join the free range before it. Another
		 * thread's mapping, say a stack, could then reach into it before the whole range is
		 * unmapped.
		 */
		size_t at = (1 + t_random(&seed) % (BYTES / PAGE - 5)) * PAGE;

		if (q == MAP_FAILED) {
			if (errno != ESTALE)
				CHECK_EQ(errno, ESTALE);
			usleep(500);
			continue;
		}
		t_read(q + at);
		mprotect(q + at, 2 * PAGE, RW);
		munmap(q + at, PAGE);
		munmap(q, BYTES);
	}
	return NULL;
}

static void *deriver(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);

	while (!stopped(s)) {
		int fd = t_derive(s->handle, R_READ, 0), dmabuf, lease;
		unsigned char *q;

		if (fd < 0) {
			CHECK_EQ(errno, ESTALE);
			usleep(500);
			continue;
		}
		lease = lease_call(fd, TMESH_LEASE_GET, 0, 0, NULL);
		dmabuf = t_export(fd, 0, 0, 0);
		if (t_random(&seed) % 2)
			close(fd);
		q = dmabuf < 0 ? MAP_FAILED : t_map(dmabuf, BYTES, PROT_READ);
		if (q != MAP_FAILED) {
			t_read(q + t_random(&seed) % BYTES);
			munmap(q, BYTES);
		}
		close(dmabuf);
		close(lease);
		close(fd);
	}
	return NULL;
}

static void *forker(void *arg)
{
	struct subject *s = arg;

	while (!stopped(s)) {
		pid_t pid = fork();

		if (!pid) {
			t_read(s->p);
			_exit(0);
		}
		if (pid > 0)
			waitpid(pid, NULL, 0);
	}
	return NULL;
}

static void *(*const work[])(void *) = {reader, reader, toucher, mapper, deriver, forker};

static void begin(struct subject *s, unsigned int round)
{
	__u32 huge = round % 2 && t_has_huge(s->dev) ? TMESH_CREATE_HUGE : TMESH_CREATE_NOHUGE;
	unsigned long *all;

	s->owner = REQUIRE_OK(t_create(s->dev, BYTES, huge));
	all = t_map(s->owner, BYTES, RW);
	REQUIRE(all != MAP_FAILED);
	for (size_t i = 0; i < BYTES / sizeof(*all); i++)
		all[i] = PATTERN;
	munmap(all, BYTES);
	s->handle = REQUIRE_OK(t_derive(s->owner, R_READ | R_WRITE, 0));
	REQUIRE_OK(policy(s->handle, TMESH_POLICY_ZERO));
	s->p = t_map(s->handle, BYTES, PROT_READ);
	REQUIRE(s->p != MAP_FAILED);
	s->pid = t_fork();
	if (!s->pid) {
		pause();
		_exit(0);
	}
	s->pidfd = REQUIRE_OK(syscall(SYS_pidfd_open, s->pid, 0));
	s->lease = lease_map(
		REQUIRE_OK(lease_call(s->handle, TMESH_LEASE_PROCESS,
				      round % 4 ? 0 : TMESH_LEASE_MIN_NS, s->pidfd, NULL)));
	s->stop = false;
}

static void end(struct subject *s)
{
	munmap(s->p, BYTES);
	lease_unmap(&s->lease);
	close(s->pidfd);
	close(s->handle);
	close(s->owner);
}

TEST(lapse, "lapse and revocation against reads, faults, mmap, derive, export, fork")
{
	long rounds = t_length(30, 3000);
	struct subject s = {.dev = t_dev(), .seed = 1};
	pthread_t threads[ARRAY_SIZE(work)];
	unsigned int seed = 7;

	for (long round = 0; round < rounds && !t_failed(); round++) {
		begin(&s, round);
		for (size_t i = 0; i < ARRAY_SIZE(work); i++)
			REQUIRE(!pthread_create(&threads[i], NULL, work[i], &s));
		usleep(t_random(&seed) % 15000);
		if (round % 3 == 0)
			REQUIRE_OK(t_revoke(s.owner));
		kill(s.pid, SIGKILL);
		if (round % 3 == 1)
			REQUIRE_OK(t_revoke(s.owner));
		REQUIRE(waitpid(s.pid, NULL, 0) == s.pid);
		await_end(&s.lease, s.handle);
		usleep(t_random(&seed) % 3000);
		__atomic_store_n(&s.stop, true, __ATOMIC_RELEASE);
		for (size_t i = 0; i < ARRAY_SIZE(work); i++)
			pthread_join(threads[i], NULL);
		CHECK_EQ(*(volatile unsigned long *)s.p, 0);
		end(&s);
	}
	t_note("%ld rounds, %lu reads", rounds, s.reads);
	CHECK_EQ(s.lies, 0);
}

TEST(close, "leases that are closed while they lapse, and put on while their process ends")
{
	long rounds = t_length(100, 20000);
	int dev = t_dev(), lived = 0, late = 0;
	unsigned int seed = 3;

	for (long round = 0; round < rounds && !t_failed(); round++) {
		int fd = REQUIRE_OK(t_create(dev, PAGE, 0)), pidfd, lease;
		pid_t pid = t_fork();

		if (!pid) {
			usleep(t_random(&seed) % 500);
			_exit(0);
		}
		t_random(&seed);
		pidfd = REQUIRE_OK(syscall(SYS_pidfd_open, pid, 0));
		usleep(t_random(&seed) % 800);
		lease = lease_call(fd, TMESH_LEASE_PROCESS, round % 2 ? TMESH_LEASE_MIN_NS : 0,
				   pidfd, NULL);
		if (lease < 0) {
			CHECK_EQ(errno, ESRCH);
			late++;
		} else if (round % 3 == 0) {
			/* However the lease ended, poll() must report it. */
			REQUIRE(poll(&(struct pollfd){.fd = lease}, 1, 60000) == 1);
			lived++;
		}
		close(pidfd);
		if (round % 3 == 1)
			close(lease);
		close(fd);
		if (lease >= 0 && round % 3 != 1)
			close(lease);
		REQUIRE(waitpid(pid, NULL, 0) == pid);
	}
	t_note("%ld rounds: %d awaited, %d too late", rounds, lived, late);
}

#define TOUCHED 32

static double longer(double a, double b)
{
	return a > b ? a : b;
}

/* Touch many leases of the shortest period, each about when it would lapse, until all have. */
static void *touch_late(void *arg)
{
	int dev = *(int *)arg, live = TOUCHED;
	unsigned int seed = gettid();
	struct {
		int handle;
		struct lease lease;
		double last, due, gap;
	} all[TOUCHED], *s;

	for (s = all; s < all + TOUCHED; s++) {
		s->handle = REQUIRE_OK(t_create(dev, PAGE, 0));
		s->last = t_now();
		s->lease = lease_put(s->handle, TMESH_LEASE_MIN_NS);
		s->due = s->gap = 0;
	}
	for (s = all; live; s = s < all + TOUCHED - 1 ? s + 1 : all) {
		double before = t_now();
		__u32 state;

		if (s->handle < 0 || before < s->due)
			continue;
		lease_touch(&s->lease);
		/* The longest time between two touches, and from this touch to the look at it. */
		s->gap = longer(s->gap, t_now() - s->last);
		state = lease_state(&s->lease);
		s->gap = longer(s->gap, t_now() - before);
		if (state == TMESH_LEASE_LIVE) {
			s->last = before;
			s->due = before + t_random(&seed) % 40 * 1e-3;
			continue;
		}
		if (!CHECK(s->gap >= TMESH_LEASE_MIN_NS / 1e9))
			t_note("lapsed, and the longest time without a touch was %g s", s->gap);
		CHECK_EQ(state, TMESH_LEASE_LAPSED);
		await_end(&s->lease, s->handle);
		CHECK_ERR(t_derive(s->handle, R_READ, 0), ESTALE);
		lease_unmap(&s->lease);
		close(s->handle);
		s->handle = -1;
		live--;
	}
	return NULL;
}

TEST(touch, "leases that are touched when they lapse have had no touch for their whole period")
{
	long rounds = t_length(10, 500);
	int dev = t_dev();

	for (long round = 0; round < rounds && !t_failed(); round++) {
		pthread_t threads[3];

		for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
			REQUIRE(!pthread_create(&threads[i], NULL, touch_late, &dev));
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
			pthread_join(threads[i], NULL);
	}
	t_note("%ld leases", rounds * 3 * TOUCHED);
}
