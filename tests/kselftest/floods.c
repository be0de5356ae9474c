// SPDX-License-Identifier: MIT
/*
 * Many objects of one kind at once: how long the module's walks over them delay other processes.
 */
#include <sys/epoll.h>

#include "lease.h"

#define SUMMARY "/sys/kernel/debug/tmesh/summary"
#define LEASES 1000
#define WATCHES 1000

static long summary(const char *what)
{
	char value[32];

	REQUIRE(t_file_value(SUMMARY, what, value, sizeof(value)));
	return atol(value);
}

/* Poll a handle many times for an event that does not come. */
static void watch(int fd, int times)
{
	struct epoll_event e = {.events = EPOLLPRI};
	int ep = REQUIRE_OK(epoll_create1(EPOLL_CLOEXEC));

	for (int i = 0; i < times; i++) {
		int copy = REQUIRE_OK(dup(fd));

		REQUIRE_OK(epoll_ctl(ep, EPOLL_CTL_ADD, copy, &e));
	}
}

static void more_files(void)
{
	struct rlimit files = {1 << 16, 1 << 16};

	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
}

TEST(leases, "leases of a region that end together are ended together, in few passes over it")
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, PAGE, 0)), handles[LEASES], pidfd;
	struct lease last;
	long before, passes;
	pid_t pid;

	more_files();
	watch(fd, WATCHES);
	pid = sleeper();
	pidfd = pidfd_of(pid);
	for (int i = 0; i < LEASES; i++) {
		handles[i] = REQUIRE_OK(t_derive(fd, R_READ, 0));
		last.fd = REQUIRE_OK(lease_call(handles[i], TMESH_LEASE_PROCESS, 0, pidfd, NULL));
		if (i < LEASES - 1)
			close(last.fd);
	}
	last = lease_map(last.fd);
	before = summary("lapse_passes");
	kill_and_reap(pid);
	await_end(&last, handles[LEASES - 1]);
	for (int i = 0; i < LEASES; i++)
		REQUIRE(poll(&(struct pollfd){.fd = handles[i]}, 1, 60000) == 1);
	passes = summary("lapse_passes") - before;
	t_note("%ld passes for %d leases", passes, LEASES);
	CHECK(passes >= LEASES / 256);
	CHECK(passes < LEASES / 4);
	CHECK_EQ(summary("leases"), LEASES);
}

TEST(regions, "leases of many regions that end together end each with its own region")
{
	int dev = t_dev(), fds[200], handles[2][200], pidfd;
	long before;
	pid_t pid;

	more_files();
	pid = sleeper();
	pidfd = pidfd_of(pid);
	for (int i = 0; i < 200; i++)
		fds[i] = REQUIRE_OK(t_create(dev, PAGE, 0));
	/* Two of each region, not in sequence */
	for (int half = 0; half < 2; half++) {
		for (int i = 0; i < 200; i++) {
			int d = REQUIRE_OK(t_derive(fds[i], R_READ, 0));

			handles[half][i] = d;
			close(REQUIRE_OK(lease_call(d, TMESH_LEASE_PROCESS, 0, pidfd, NULL)));
		}
	}
	before = summary("lapse_passes");
	kill_and_reap(pid);
	for (int half = 0; half < 2; half++) {
		for (int i = 0; i < 200; i++) {
			struct pollfd p = {.fd = handles[half][i]};

			REQUIRE(poll(&p, 1, 60000) == 1);
			CHECK_EQ(p.revents, POLLHUP | POLLERR);
		}
	}
	for (int i = 0; i < 200; i++)
		CHECK(polled(fds[i], 0) == POLLOUT);
	CHECK(summary("lapse_passes") - before >= 200);
	CHECK(summary("lapse_passes") - before <= 400);
}

/* Create a region of a memfd that a pipe has a reference on. Each try to seal it fails. */
static int pinned_memfd(int dev, int pipes[2])
{
	int memfd = REQUIRE_OK(memfd_create("floods", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};
	struct iovec io = {.iov_len = PAGE};

	REQUIRE_OK(ftruncate(memfd, 4 * PAGE));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &c));
	io.iov_base = t_map(c.fd, PAGE, PROT_READ);
	REQUIRE(io.iov_base != MAP_FAILED);
	REQUIRE_OK(pipe(pipes));
	REQUIRE(vmsplice(pipes[1], &io, 1, 0) == PAGE);
	munmap(io.iov_base, PAGE);
	close(memfd);
	return c.fd;
}

TEST(settles, "seals that fail disturb all CPUs in shared rounds, however many there are")
{
	int pipes[2], fd = pinned_memfd(t_dev(), pipes);
	long before = summary("settles"), rounds;
	double from = t_now();
	pid_t pids[8];

	for (int i = 0; i < 8; i++) {
		T_CHILD(pids[i]) {
			for (int k = 0; k < 4; k++)
				CHECK_ERR(t_seal(fd), EBUSY);
		}
	}
	for (int i = 0; i < 8; i++)
		t_wait(pids[i]);
	rounds = summary("settles") - before;
	t_note("%ld rounds for 32 seals", rounds);
	CHECK(rounds > 0);
	CHECK(rounds <= (t_now() - from) * 50 + 2);
	close(pipes[0]);
	close(pipes[1]);
	CHECK_OK(t_seal(fd));
}
