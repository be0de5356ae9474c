/* SPDX-License-Identifier: MIT */
/* Leases, for the programs that test them. */
#ifndef TMESH_KSELFTEST_LEASE_H
#define TMESH_KSELFTEST_LEASE_H

#include "t.h"

#define MS 1000000ull
#define RW (PROT_READ | PROT_WRITE)

/* A lease file and its two pages. */
struct lease {
	int fd;
	struct tmesh_lease_touch *touch;
	const struct tmesh_lease_state *state;
};

static inline int lease_call(int handle, __u32 flags, __u64 period_ns, int pidfd, __u64 *got)
{
	struct tmesh_lease l = {
		.size = sizeof(l),
		.flags = flags,
		.period_ns = period_ns,
		.pidfd = pidfd,
	};

	if (ioctl(handle, TMESH_LEASE, &l))
		return -1;
	if (got)
		*got = l.period_ns;
	return l.fd;
}

static inline int policy(int handle, __u32 flags)
{
	struct tmesh_policy p = {.size = sizeof(p), .flags = flags};

	return ioctl(handle, TMESH_POLICY, &p);
}

static inline struct lease lease_map(int fd)
{
	struct lease l = {.fd = fd};

	l.touch = t_map(fd, PAGE, RW);
	REQUIRE(l.touch != MAP_FAILED);
	l.state = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, PAGE);
	REQUIRE(l.state != MAP_FAILED);
	return l;
}

static inline struct lease lease_put(int handle, __u64 period_ns)
{
	return lease_map(REQUIRE_OK(lease_call(handle, 0, period_ns, 0, NULL)));
}

static inline int pidfd_of(pid_t pid)
{
	return REQUIRE_OK(syscall(SYS_pidfd_open, pid, 0));
}

/* Fork a process for leases to end with. */
static inline pid_t sleeper(void)
{
	pid_t pid = t_fork();

	if (!pid) {
		pause();
		_exit(0);
	}
	return pid;
}

static inline void kill_and_reap(pid_t pid)
{
	kill(pid, SIGKILL);
	REQUIRE(waitpid(pid, NULL, 0) == pid);
}

static inline struct lease lease_bind(int handle, pid_t pid)
{
	int pidfd = pidfd_of(pid);
	struct lease l =
		lease_map(REQUIRE_OK(lease_call(handle, TMESH_LEASE_PROCESS, 0, pidfd, NULL)));

	close(pidfd);
	return l;
}

static inline void lease_unmap(struct lease *l)
{
	munmap(l->touch, PAGE);
	munmap((void *)l->state, PAGE);
	close(l->fd);
}

static inline void lease_touch(const struct lease *l)
{
	__atomic_add_fetch(&l->touch->touched, 1, __ATOMIC_RELAXED);
}

static inline __u32 lease_state(const struct lease *l)
{
	return __atomic_load_n(&l->state->state, __ATOMIC_ACQUIRE);
}

static inline int polled(int fd, int timeout_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT};

	REQUIRE(poll(&p, 1, timeout_ms) >= 0);
	return p.revents;
}

/* Wait until a process sleeps in poll(). */
static inline void await_poll(pid_t pid)
{
	char path[40], text[200];

	snprintf(path, sizeof(path), "/proc/%d/syscall", pid);
	for (int i = 0; i < 6000; i++) {
		REQUIRE(t_read_file(path, text, sizeof(text)));
		if (atoi(text) == SYS_poll || atoi(text) == SYS_ppoll)
			return;
		usleep(10000);
	}
	CHECK(!"asleep");
}

/* Wait until a lease is not live any more, and all mappings that shared it are gone. */
static inline void await_end(const struct lease *l, int handle)
{
	struct tmesh_holders list = {.size = sizeof(list),
				     .entry_bytes = sizeof(struct tmesh_holder)};
	struct pollfd p = {.fd = handle};

	while (lease_state(l) == TMESH_LEASE_LIVE)
		REQUIRE(poll(&(struct pollfd){.fd = l->fd}, 1, 60000) == 1);
	REQUIRE(poll(&p, 1, 60000) == 1 && p.revents & POLLHUP);
	/*
	 * The state changes before mappings are taken away. TMESH_HOLDERS waits until they are
	 * gone.
	 */
	REQUIRE_OK(ioctl(handle, TMESH_HOLDERS, &list));
}

#endif
