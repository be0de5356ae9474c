// SPDX-License-Identifier: MIT
/*
 * Leases: when they lapse, which claims end with them, and what their holders observe.
 */
#include <sys/epoll.h>

#include "lease.h"

#define BYTES (64 * KB)
#define EXEC_SLEEP "sleep"

static int dev;

static int region(__u64 bytes)
{
	dev = t_dev();
	return REQUIRE_OK(t_create(dev, bytes, 0));
}

struct before {
	__u64 bytes;
	int fds;
};

static struct before look(void)
{
	return (struct before){t_caps(dev).used_bytes, t_count_fds()};
}

static void refused(int handle, __u32 flags, __u64 period_ns, int pidfd, int want)
{
	struct before was = look();
	struct tmesh_info before = t_info(handle), after;

	if (!CHECK_ERR(lease_call(handle, flags, period_ns, pidfd, NULL), want))
		t_note("flags %#x, period %llu, pidfd %d", flags, period_ns, pidfd);
	CHECK_EQ(look().bytes, was.bytes);
	CHECK_EQ(look().fds, was.fds);
	after = t_info(handle);
	CHECK_EQ(after.lease_ns, before.lease_ns);
	CHECK_EQ(after.state, before.state);
}

TEST(bad_periods, "bad periods, flags and fields are refused")
{
	int fd = region(BYTES);

	refused(fd, 0, 1, 0, EINVAL);
	refused(fd, 0, TMESH_LEASE_MIN_NS - 1, 0, EINVAL);
	refused(fd, 0, TMESH_LEASE_MAX_NS + 1, 0, EINVAL);
	refused(fd, 0, -1ull, 0, EINVAL);
	refused(fd, 0, 0, 3, EINVAL);
	refused(fd, TMESH_LEASE_GET, 0, 0, ENODATA);
	refused(fd, TMESH_LEASE_GET, TMESH_LEASE_MIN_NS, 0, EINVAL);
	refused(fd, TMESH_LEASE_GET, 0, 3, EINVAL);
	refused(fd, TMESH_LEASE_GET | TMESH_LEASE_PROCESS, 0, 0, EINVAL);
	refused(fd, 1u << 31, 0, 0, EOPNOTSUPP);
}

TEST(bad_processes, "what is no process, or a dead one, is refused")
{
	int fd = region(BYTES), pidfd;
	pid_t pid;

	refused(fd, TMESH_LEASE_PROCESS, 0, 999, EBADF);
	refused(fd, TMESH_LEASE_PROCESS, 0, -1, EBADF);
	refused(fd, TMESH_LEASE_PROCESS, 0, dev, EINVAL);
	refused(fd, TMESH_LEASE_PROCESS, 0, fd, EINVAL);
	refused(fd, TMESH_LEASE_PROCESS, 0, REQUIRE_OK(open("/proc/self", O_RDONLY)), EINVAL);
	refused(fd, TMESH_LEASE_PROCESS, 1, pidfd_of(getpid()), EINVAL);
	pid = sleeper();
	pidfd = pidfd_of(pid);
	kill_and_reap(pid);
	refused(fd, TMESH_LEASE_PROCESS, 0, pidfd, ESRCH);
	/* PIDFD_THREAD, since 6.9 */
	pidfd = syscall(SYS_pidfd_open, getpid(), O_EXCL);
	if (pidfd >= 0)
		refused(fd, TMESH_LEASE_PROCESS, 0, pidfd, EINVAL);
}

TEST(bad_handles, "pinning handles, memfds, leased and revoked handles are refused")
{
	int fd = region(BYTES), pin, derived;
	struct tmesh_create_memfd m = {.size = sizeof(m)};
	struct lease l;

	m.memfd = REQUIRE_OK(memfd_create("lease", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	REQUIRE_OK(ftruncate(m.memfd, BYTES));
	REQUIRE_OK(fcntl(m.memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &m));
	refused(m.fd, 0, 0, 0, EOPNOTSUPP);

	REQUIRE_OK(t_seal(fd));
	pin = REQUIRE_OK(t_derive(fd, R_READ, TMESH_DERIVE_PIN));
	refused(pin, 0, 0, 0, EINVAL);
	close(pin);

	derived = REQUIRE_OK(t_derive(fd, R_READ, 0));
	l = lease_put(derived, 0);
	refused(derived, 0, 0, 0, EBUSY);
	refused(derived, TMESH_LEASE_PROCESS, 0, pidfd_of(getpid()), EBUSY);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LIVE);

	REQUIRE_OK(t_revoke(fd));
	refused(derived, 0, 0, 0, ESTALE);
	refused(derived, TMESH_LEASE_GET, 0, 0, ESTALE);
	refused(fd, 0, 0, 0, ESTALE);
}

TEST(charge, "a lease costs two pages until the last of handle, file and mapping goes")
{
	int fd = region(BYTES), derived = REQUIRE_OK(t_derive(fd, R_READ, 0));
	__u64 before = t_caps(dev).used_bytes;
	struct lease l = lease_put(derived, 0);

	CHECK_EQ(t_caps(dev).used_bytes, before + 2 * PAGE);
	close(l.fd);
	close(derived);
	CHECK_EQ(t_caps(dev).used_bytes, before + 2 * PAGE);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LAPSED);
	lease_touch(&l);
	munmap(l.touch, PAGE);
	munmap((void *)l.state, PAGE);
	CHECK_EQ(t_caps(dev).used_bytes, before);

	t_set_limit("max_bytes_per_uid", before + PAGE);
	refused(fd, 0, 0, 0, EDQUOT);
	t_set_limit("max_bytes_per_uid", before + 2 * PAGE);
	CHECK_OK(lease_call(fd, 0, 0, 0, NULL));
}

static int say(int handle, __u64 value)
{
	struct tmesh_signal s = {.size = sizeof(s), .value = value};

	return ioctl(handle, TMESH_SIGNAL, &s);
}

/* Wait without a timeout. */
static int await(int handle, __u64 value)
{
	struct tmesh_wait w = {.size = sizeof(w), .value = value, .timeout_ns = -1};

	return ioctl(handle, TMESH_WAIT, &w);
}

static void check_info(int handle, __u64 period_ns)
{
	struct tmesh_info i = t_info(handle);

	CHECK_EQ(i.lease_ns, period_ns);
	CHECK(i.lease_left_ns <= period_ns && !i.lease_left_ns == !period_ns);
	CHECK_EQ(i.state, 0);
}

TEST(seen, "a lease's period and what is left of it are shown")
{
	static const __u64 asked[] = {0, TMESH_LEASE_MIN_NS * 500, TMESH_LEASE_MAX_NS, 77777777777};

	for (size_t i = 0; i < ARRAY_SIZE(asked); i++) {
		__u64 want = asked[i] ? asked[i] : TMESH_LEASE_DEFAULT_NS, got = 0;
		struct tmesh_holder h[2] = {0};
		struct tmesh_holders hs = {
			.size = sizeof(hs),
			.entries = (__u64)(unsigned long)h,
			.entry_bytes = sizeof(h[0]),
			.count = 2,
		};
		int fd = region(BYTES), derived = REQUIRE_OK(t_derive(fd, R_READ, 0));
		struct lease l = lease_map(REQUIRE_OK(lease_call(derived, 0, asked[i], 0, &got)));
		char path[64], value[32];

		CHECK_EQ(got, want);
		CHECK_EQ(l.state->period_ns, want);
		CHECK_EQ(lease_state(&l), TMESH_LEASE_LIVE);
		check_info(derived, want);
		check_info(fd, 0);
		REQUIRE_OK(ioctl(fd, TMESH_HOLDERS, &hs));
		CHECK_EQ(h[0].lease_ns, 0);
		CHECK_EQ(h[1].lease_ns, want);
		CHECK(h[1].lease_left_ns && h[1].lease_left_ns <= want);
		CHECK_EQ(h[1].flags, 0);
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", l.fd);
		CHECK(t_file_value(path, "tmesh-lease", value, sizeof(value)) &&
		      !strcmp(value, "live"));
		CHECK(t_file_value(path, "tmesh-lease-ns", value, sizeof(value)) &&
		      strtoull(value, NULL, 10) == want);
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", derived);
		CHECK(t_file_value(path, "tmesh-lease-ns", value, sizeof(value)) &&
		      strtoull(value, NULL, 10) == want);
		int again = REQUIRE_OK(lease_call(derived, TMESH_LEASE_GET, 0, 0, &got));

		CHECK_EQ(got, want);
		lease_touch(&l);
		/* No walk has looked at so long a lease since, but a query reads its counter. */
		if (want == TMESH_LEASE_MAX_NS)
			CHECK_EQ(t_info(derived).lease_left_ns, want);
		struct lease second = lease_map(again);

		CHECK_EQ(second.touch->touched, 1);
		lease_unmap(&second);
		lease_unmap(&l);
		close(derived);
		close(fd);
		close(dev);
	}
}

TEST(lapse, "a lease without touches lapses, not before its period is over")
{
	static const __u64 periods[] = {10 * MS, 30 * MS, 100 * MS, 777 * MS};

	for (size_t i = 0; i < ARRAY_SIZE(periods); i++) {
		int fd = region(BYTES);
		double from = t_now(), took;
		struct lease l = lease_put(fd, periods[i]);
		unsigned char *p = t_map(fd, BYTES, RW);
		char path[64], value[32];

		if (p != MAP_FAILED)
			t_write(p, 1);
		await_end(&l, fd);
		took = t_now() - from;
		t_note("%llu ms: lapsed after %.0f ms", periods[i] / MS, took * 1e3);
		CHECK(took * 1e9 >= periods[i]);
		CHECK_EQ(lease_state(&l), TMESH_LEASE_LAPSED);
		CHECK_EQ(polled(l.fd, 0), POLLHUP);
		CHECK_EQ(polled(fd, 0), POLLHUP | POLLERR);
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
		CHECK(t_file_value(path, "tmesh-state", value, sizeof(value)) &&
		      !strcmp(value, "lapsed"));
		if (p != MAP_FAILED)
			CHECK_EQ(t_read(p), SIGBUS);
		lease_unmap(&l);
		close(fd);
		close(dev);
	}
}

TEST(touched, "a lease that is touched lives, from its last touch on for a period")
{
	int fd = region(BYTES);
	struct lease l = lease_put(fd, 5000 * MS);
	unsigned char *p = t_map(fd, BYTES, RW);
	double until = t_now() + (t_full() ? 15 : 7), last;

	REQUIRE(p != MAP_FAILED);
	do {
		last = t_now();
		lease_touch(&l);
		CHECK_EQ(t_write(p, 1), 0);
		usleep(10000);
	} while (!t_failed() && t_now() < until);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LIVE);
	CHECK(t_info(fd).lease_left_ns > 0);
	await_end(&l, fd);
	CHECK(t_now() - last >= 5);
}

TEST(stale, "after the lapse all calls but INFO, HOLDERS and POLICY give ESTALE")
{
	int fd = region(BYTES), dmabuf;
	struct lease l;
	struct tmesh_desc d = {.size = sizeof(d)};
	struct tmesh_holders h = {.size = sizeof(h)};
	struct tmesh_info i;
	__u8 token[TMESH_TOKEN_BYTES];

	l = lease_put(fd, TMESH_LEASE_MIN_NS);
	await_end(&l, fd);
	CHECK_ERR(t_derive(fd, R_READ, 0), ESTALE);
	CHECK_ERR(t_derive(fd, R_READ, TMESH_DERIVE_PIN), ESTALE);
	CHECK_ERR(t_token(fd, R_READ, token), ESTALE);
	CHECK_ERR(t_seal(fd), ESTALE);
	CHECK_ERR(t_revoke(fd), ESTALE);
	CHECK_ERR(dmabuf = t_export(fd, 0, 0, 0), ESTALE);
	CHECK_ERR(ioctl(fd, TMESH_DESC_GET, &d), ESTALE);
	CHECK_ERR(ioctl(fd, TMESH_DESC_SET, &d), ESTALE);
	CHECK_ERR(lease_call(fd, 0, 0, 0, NULL), ESTALE);
	CHECK_ERR(lease_call(fd, TMESH_LEASE_GET, 0, 0, NULL), ESTALE);
	CHECK_ERR(say(fd, 1), ESTALE);
	CHECK_ERR(await(fd, 0), ESTALE);
	CHECK(t_map(fd, BYTES, PROT_READ) == MAP_FAILED && errno == ESTALE);
	CHECK_OK(ioctl(fd, TMESH_HOLDERS, &h));
	CHECK_OK(policy(fd, TMESH_POLICY_ZERO));
	i = t_info(fd);
	CHECK_EQ(i.state, TMESH_STATE_LAPSED);
	CHECK_EQ(i.lease_ns, TMESH_LEASE_MIN_NS);
	CHECK_EQ(i.lease_left_ns, 0);
	CHECK_EQ(i.policy, TMESH_POLICY_ZERO);
}

TEST(shared, "what was derived or exported through a leased handle ends with it, and only that")
{
	int fd = region(BYTES), leased = REQUIRE_OK(t_derive(fd, R_ALL, 0));
	int older = REQUIRE_OK(t_derive(leased, R_READ, 0));
	int older_dmabuf = REQUIRE_OK(t_export(leased, 0, 0, 0));
	pid_t pid = sleeper();
	struct lease l = lease_bind(leased, pid), derived_lease;
	int derived = REQUIRE_OK(t_derive(leased, R_READ | R_WRITE, 0));
	int twice = REQUIRE_OK(t_derive(derived, R_READ, 0));
	int dmabuf = REQUIRE_OK(t_export(twice, 0, 0, 0));
	int stay[] = {fd, older, older_dmabuf}, go[] = {leased, derived, twice, dmabuf};
	unsigned char *staying[ARRAY_SIZE(stay)], *going[ARRAY_SIZE(go)];
	struct tmesh_holder hs[8];
	struct tmesh_holders h = {
		.size = sizeof(h),
		.entries = (__u64)(unsigned long)hs,
		.entry_bytes = sizeof(hs[0]),
		.count = ARRAY_SIZE(hs),
	};
	int lapsed = 0;

	for (size_t i = 0; i < ARRAY_SIZE(stay); i++) {
		staying[i] = t_map(stay[i], BYTES, PROT_READ);
		REQUIRE(staying[i] != MAP_FAILED && !t_read(staying[i]));
	}
	for (size_t i = 0; i < ARRAY_SIZE(go); i++) {
		going[i] = t_map(go[i], BYTES, PROT_READ);
		REQUIRE(going[i] != MAP_FAILED);
		CHECK_EQ(t_read(going[i]), 0);
	}
	derived_lease = lease_map(REQUIRE_OK(lease_call(derived, TMESH_LEASE_GET, 0, 0, NULL)));
	lease_touch(&derived_lease);
	CHECK_EQ(l.touch->touched, derived_lease.touch->touched);
	kill_and_reap(pid);
	await_end(&l, leased);
	for (size_t i = 0; i < ARRAY_SIZE(stay); i++)
		CHECK_EQ(t_read(staying[i]), 0);
	for (size_t i = 0; i < ARRAY_SIZE(go); i++)
		CHECK_EQ(t_read(going[i]), SIGBUS);
	CHECK(t_map(dmabuf, BYTES, PROT_READ) == MAP_FAILED && errno == ESTALE);
	CHECK_ERR(t_derive(twice, R_READ, 0), ESTALE);
	CHECK_EQ(polled(twice, 0), POLLHUP | POLLERR);
	CHECK_EQ(polled(older, 0), 0);
	CHECK_OK(t_derive(older, R_READ, 0));
	REQUIRE_OK(ioctl(fd, TMESH_HOLDERS, &h));
	for (__u32 i = 0; i < h.count; i++)
		lapsed += hs[i].flags == TMESH_HOLDER_FLAG_LAPSED && !hs[i].lease_left_ns;
	CHECK_EQ(lapsed, ARRAY_SIZE(go));
}

TEST(fence_producer, "a producer whose lease lapses is dead to all who wait for it")
{
	int fd = region(BYTES), producer = REQUIRE_OK(t_derive(fd, R_READ | R_WRITE, 0));
	struct lease l = lease_put(producer, 5000 * MS);
	pid_t waiter;

	REQUIRE_OK(say(producer, 1));
	T_CHILD(waiter)
		CHECK_ERR(await(fd, 2), EOWNERDEAD);
	CHECK_ERR(say(fd, 2), EBUSY);
	await_end(&l, producer);
	t_wait(waiter);
	CHECK_EQ(t_info(fd).fence_state, TMESH_FENCE_DEAD);
	CHECK_ERR(say(producer, 2), ESTALE);
	CHECK_OK(say(fd, 2));
}

TEST(fence_waiter, "a wait on a handle whose lease lapses ends with ESTALE, a poll with HUP|ERR")
{
	int fd = region(BYTES), waiting = REQUIRE_OK(t_derive(fd, R_READ, 0));
	int other = REQUIRE_OK(t_derive(fd, R_READ, 0));
	struct lease l = lease_put(waiting, 2000 * MS);
	pid_t waiter, poller;

	REQUIRE_OK(say(fd, 1));
	T_CHILD(waiter)
		CHECK_ERR(await(waiting, 2), ESTALE);
	T_CHILD(poller)
		CHECK_EQ(polled(waiting, 60000), POLLHUP | POLLERR);
	await_end(&l, waiting);
	t_wait(waiter);
	t_wait(poller);
	CHECK_EQ(polled(other, 0), 0);
	CHECK_OK(say(fd, 2));
	CHECK_OK(await(other, 2));
}

TEST(no_shedding, "a leased handle gives no tokens and no pinning handles")
{
	int fd = region(BYTES), leased;
	__u8 token[TMESH_TOKEN_BYTES];
	struct lease l;

	REQUIRE_OK(t_seal(fd));
	leased = REQUIRE_OK(t_derive(fd, R_ALL, 0));
	l = lease_put(leased, 0);
	CHECK_ERR(t_token(leased, R_READ, token), EPERM);
	CHECK_ERR(t_derive(leased, R_READ, TMESH_DERIVE_PIN), EPERM);
	CHECK_OK(t_token(fd, R_READ, token));
	CHECK_OK(t_derive(fd, R_READ, TMESH_DERIVE_PIN));
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LIVE);
}

TEST(file, "a lease file maps its first page, and its second for reading only")
{
	int fd = region(BYTES);
	struct lease l = lease_put(fd, 0);
	unsigned char byte = 0xff;
	struct iovec from = {&byte, 1}, to = {(void *)l.state, 1};
	int mem = REQUIRE_OK(open("/proc/self/mem", O_RDWR | O_CLOEXEC));

#define MAP(bytes, prot, flags, at) mmap(NULL, bytes, prot, flags, l.fd, at)
	CHECK(MAP(PAGE, RW, MAP_SHARED, PAGE) == MAP_FAILED && errno == EACCES);
	CHECK(MAP(PAGE, RW, MAP_PRIVATE, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(MAP(PAGE, PROT_READ, MAP_PRIVATE, PAGE) == MAP_FAILED && errno == EINVAL);
	CHECK(MAP(2 * PAGE, PROT_READ, MAP_SHARED, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(MAP(PAGE, PROT_READ, MAP_SHARED, 2 * PAGE) == MAP_FAILED && errno == EINVAL);
	CHECK(MAP(PAGE, PROT_READ, MAP_SHARED, 1ll << 60) == MAP_FAILED);
	CHECK(MAP(PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, 0) == MAP_FAILED && errno == EPERM);
#undef MAP
	CHECK_ERR(mprotect(l.touch, PAGE, PROT_READ | PROT_EXEC), EACCES);
	CHECK_ERR(mprotect((void *)l.state, PAGE, RW), EACCES);
	CHECK(mremap(l.touch, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	CHECK_EQ(t_write((void *)l.state, 0), SIGSEGV);
	CHECK_ERR(process_vm_writev(getpid(), &from, 1, &to, 1, 0), EFAULT);
	CHECK(pwrite(mem, &byte, 1, (off_t)(unsigned long)l.state) == -1);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LIVE);
	CHECK(read(l.fd, &byte, 1) == -1 && write(l.fd, &byte, 1) == -1);
	CHECK_ERR(ioctl(l.fd, TMESH_LEASE, &byte), ENOTTY);
	CHECK_EQ(polled(l.fd, 0), 0);
	close(l.fd);
	lease_touch(&l);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LIVE);
	close(fd);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LAPSED);
}

TEST(others, "a receiver of the lease file keeps the lease alive")
{
	int fd = region(BYTES), sv[2];
	struct lease l = lease_put(fd, 5000 * MS);
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		struct lease given = lease_map(t_recv_fd(sv[1]));
		double until = t_now() + 7;

		while (t_now() < until) {
			lease_touch(&given);
			usleep(10000);
		}
		CHECK_EQ(lease_state(&given), TMESH_LEASE_LIVE);
	}
	t_send_fd(sv[0], l.fd);
	t_wait(pid);
	await_end(&l, fd);
}

TEST(revoked, "a revocation sends its notice before it takes anything away")
{
	int fd = region(BYTES), other = REQUIRE_OK(t_derive(fd, R_READ, 0));
	struct lease l = lease_put(other, 0);

	REQUIRE_OK(t_revoke(fd));
	CHECK_EQ(lease_state(&l), TMESH_LEASE_REVOKED);
	CHECK_EQ(polled(l.fd, 0), POLLHUP);
	CHECK_EQ(polled(other, 0), POLLHUP);
	CHECK_EQ(t_info(other).state, TMESH_STATE_REVOKED);
	close(other);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_REVOKED);
}

TEST(process, "a lease that is bound to a process ends with it")
{
	int fd = region(BYTES);

	for (int with_period = 0; with_period < 2; with_period++) {
		int handle = REQUIRE_OK(t_derive(fd, R_READ, 0));
		pid_t pid = sleeper();
		int pidfd = pidfd_of(pid);
		__u64 period = with_period ? TMESH_LEASE_MAX_NS : 0, got = 1;
		struct lease l = lease_map(
			REQUIRE_OK(lease_call(handle, TMESH_LEASE_PROCESS, period, pidfd, &got)));
		void *p = t_map(handle, BYTES, PROT_READ);

		close(pidfd);
		CHECK_EQ(got, period);
		CHECK_EQ(t_info(handle).lease_ns, period);
		CHECK_EQ(t_read(p), 0);
		usleep(100000);
		CHECK_EQ(lease_state(&l), TMESH_LEASE_LIVE);
		kill(pid, SIGKILL);
		await_end(&l, handle);
		CHECK_EQ(t_read(p), SIGBUS);
		CHECK_EQ(t_info(handle).state, TMESH_STATE_LAPSED);
		REQUIRE(waitpid(pid, NULL, 0) == pid);
		munmap(p, BYTES);
		lease_unmap(&l);
		close(handle);
	}
}

/* The most leases of one user that are bound to one process */
#define BOUND 4096

TEST(bound, "a user binds 4,096 leases to one process and no more, another one as many")
{
	int fd = region(BYTES), handles[BOUND + 1], pidfd;
	struct rlimit files = {2 * BOUND, 2 * BOUND};
	pid_t pid = sleeper();

	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
	pidfd = pidfd_of(pid);
	for (int i = 0; i <= BOUND; i++)
		handles[i] = REQUIRE_OK(t_derive(fd, R_READ, 0));
	for (int i = 0; i < BOUND; i++)
		close(REQUIRE_OK(lease_call(handles[i], TMESH_LEASE_PROCESS, 0, pidfd, NULL)));
	/* A refusal takes nothing off the number. */
	for (int i = 0; i < 2; i++)
		refused(handles[BOUND], TMESH_LEASE_PROCESS, 0, pidfd, EDQUOT);
	T_ALONE()
	{
		t_become(1001, 1001, 0);
		CHECK_OK(lease_call(t_derive(fd, R_READ, 0), TMESH_LEASE_PROCESS, 0, pidfd, NULL));
	}
	CHECK_OK(lease_call(t_derive(fd, R_READ, 0), TMESH_LEASE_PROCESS, 0, pidfd_of(getpid()),
			    NULL));
	close(handles[0]);
	CHECK_OK(lease_call(handles[BOUND], TMESH_LEASE_PROCESS, 0, pidfd, NULL));
	kill_and_reap(pid);
	for (int i = 1; i <= BOUND; i++)
		REQUIRE(poll(&(struct pollfd){.fd = handles[i]}, 1, 60000) == 1);
	refused(fd, TMESH_LEASE_PROCESS, 0, pidfd, ESRCH);
}

TEST(process_period, "a lease of a process that lives lapses too")
{
	int fd = region(BYTES);
	struct lease l = lease_map(REQUIRE_OK(
		lease_call(fd, TMESH_LEASE_PROCESS, TMESH_LEASE_MIN_NS, pidfd_of(getpid()), NULL)));

	await_end(&l, fd);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LAPSED);
}

static void *sleep_and_exit(void *arg)
{
	t_hear((int)(long)arg);
	_exit(0);
}

TEST(threads, "a process ends with its last thread, not with its first")
{
	int fd = region(BYTES), sv[2];
	struct lease l;
	pid_t pid;

	t_pair(sv);
	pid = t_fork();
	if (!pid) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, sleep_and_exit, (void *)(long)sv[1]))
			_exit(1);
		syscall(SYS_exit, 0);
	}
	l = lease_map(REQUIRE_OK(lease_call(fd, TMESH_LEASE_PROCESS, 0, pidfd_of(pid), NULL)));
	usleep(200000);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LIVE);
	t_say(sv[0]);
	await_end(&l, fd);
	t_wait(pid);
}

static void *become_another(void *arg)
{
	/* The process goes on with another program and without its first thread. */
	execl("/proc/self/exe", "lease", EXEC_SLEEP, NULL);
	_exit(1);
}

TEST(exec, "a process does not end when another of its threads makes it another program")
{
	int fd = region(BYTES);
	struct lease l;
	pid_t pid;

	pid = t_fork();
	if (!pid) {
		pthread_t thread;

		usleep(100000);
		if (pthread_create(&thread, NULL, become_another, NULL))
			_exit(1);
		pause();
	}
	l = lease_map(REQUIRE_OK(lease_call(fd, TMESH_LEASE_PROCESS, 0, pidfd_of(pid), NULL)));
	usleep(600000);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LIVE);
	kill_and_reap(pid);
	await_end(&l, fd);
}

static int leases(void)
{
	char now[32];

	REQUIRE(t_file_value("/sys/kernel/debug/tmesh/summary", "leases", now, sizeof(now)));
	return atoi(now);
}

TEST(closed, "leases of closed handles, and of files closed in any order, leave nothing behind")
{
	int before = leases();

	for (long i = 0, n = t_length(300, 300); i < n; i++) {
		int fd = region(PAGE);
		__u64 period = i % 3 ? TMESH_LEASE_MAX_NS - i : 0;
		int lease = REQUIRE_OK(lease_call(fd, i % 3 ? 0 : TMESH_LEASE_PROCESS, period,
						  i % 3 ? 0 : pidfd_of(getpid()), NULL));

		if (i % 2)
			close(lease);
		close(fd);
		if (!(i % 2)) {
			CHECK_EQ(polled(lease, 0), POLLHUP);
			close(lease);
		}
		close(dev);
	}
	/* A lease of the test before may have been freed only now. */
	CHECK(leases() <= before);
}

TEST(closed_poller, "who waits for the end of a lease wakes when its last handle is closed")
{
	int fd = region(BYTES), lease = REQUIRE_OK(lease_call(fd, 0, 0, 0, NULL));
	int ep = REQUIRE_OK(epoll_create1(EPOLL_CLOEXEC));
	struct epoll_event e = {.events = EPOLLHUP};

	/* Unlike poll(), it looks again only at what has woken it. */
	REQUIRE_OK(epoll_ctl(ep, EPOLL_CTL_ADD, lease, &e));
	CHECK_EQ(epoll_wait(ep, &e, 1, 0), 0);
	close(fd);
	CHECK_EQ(epoll_wait(ep, &e, 1, 5000), 1);
}

TEST(seal, "mappings of a lapsed handle prevent no seal")
{
	int fd = region(BYTES), other = REQUIRE_OK(t_derive(fd, R_READ | R_WRITE, 0));
	unsigned char *p = t_map(other, BYTES, RW), *q = t_map(other, BYTES, PROT_READ);
	struct lease l;

	REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
	CHECK_EQ(t_write(p, 1), 0);
	CHECK_ERR(t_seal(fd), EBUSY);
	l = lease_put(other, TMESH_LEASE_MIN_NS);
	await_end(&l, other);
	CHECK_OK(t_seal(fd));
	CHECK_ERR(mprotect(q, BYTES, RW), EACCES);
	munmap(p, BYTES);
	munmap(q, BYTES);
}

TEST(writers, "mappings that come and go after the lapse leave the count of writers right")
{
	int fd = region(BYTES), other = REQUIRE_OK(t_derive(fd, R_READ | R_WRITE, 0));
	struct lease l = lease_put(other, TMESH_LEASE_MIN_NS);
	unsigned char *p = t_map(other, BYTES, RW), *q = t_map(other, BYTES, PROT_READ);
	unsigned char *mine = t_map(fd, BYTES, RW);

	REQUIRE(mine != MAP_FAILED);
	await_end(&l, other);
	if (p != MAP_FAILED) {
		mprotect(p + PAGE, PAGE, PROT_READ);
		munmap(p + 4 * PAGE, PAGE);
		T_ALONE()
		munmap(p, PAGE);
	}
	if (q != MAP_FAILED)
		CHECK_OK(mprotect(q, BYTES, RW));
	munmap(p, BYTES);
	munmap(q, BYTES);
	CHECK_ERR(t_seal(fd), EBUSY);
	munmap(mine, BYTES);
	CHECK_OK(t_seal(fd));
}

TEST(alone, "poll tells the last holder of a region that it is alone")
{
	int fd = region(BYTES), other, dmabuf;
	struct lease l;
	pid_t pid;

	CHECK_EQ(polled(fd, 0), POLLOUT);
	other = REQUIRE_OK(t_derive(fd, R_READ, 0));
	CHECK_EQ(polled(fd, 0), 0);
	CHECK_EQ(polled(other, 0), 0);
	dmabuf = REQUIRE_OK(t_export(other, 0, 0, 0));
	close(other);
	CHECK_EQ(polled(fd, 0), 0);
	T_CHILD(pid) {
		close(dmabuf);
		CHECK_EQ(polled(fd, 60000), POLLOUT);
	}
	await_poll(pid);
	close(dmabuf);
	t_wait(pid);
	/* A lapsed holder does not count as a holder any more. */
	other = REQUIRE_OK(t_derive(fd, R_READ, 0));
	l = lease_put(other, TMESH_LEASE_MIN_NS);
	dmabuf = t_export(other, 0, 0, 0);
	CHECK_EQ(polled(fd, 60000), POLLOUT);
	CHECK_EQ(lease_state(&l), TMESH_LEASE_LAPSED);
	close(other);
	close(dmabuf);
	CHECK_EQ(polled(fd, 0), POLLOUT);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], EXEC_SLEEP))
		return pause();
	return t_main();
}
