// SPDX-License-Identifier: MIT
/*
 * Preloaded into tests: threads other than a process's first sleep at random before calls that
 * others see, one call of four for at most $TMESH_NAPS microseconds (5000). Some tests count
 * objects that such a thread has yet to close, or expect an order that nothing promises. They fail
 * here as they do once in thousands of runs elsewhere.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void nap(void)
{
	static _Thread_local uint32_t random;
	const char *most = getenv("TMESH_NAPS");
	struct timespec time;

	if (getpid() == syscall(SYS_gettid))
		return;
	if (!random) {
		clock_gettime(CLOCK_MONOTONIC, &time);
		random = (uint32_t)time.tv_nsec ^ (uint32_t)syscall(SYS_gettid) << 20;
	}
	random = random * 1664525 + 1013904223;
	if (random >> 16 & 3)
		return;
	time.tv_sec = 0;
	time.tv_nsec = (random >> 8) % (uint32_t)(most ? atoi(most) : 5000) * 1000L;
	/* Not nanosleep(), where a thread could be cancelled. */
	syscall(SYS_nanosleep, &time, NULL);
}

#define NAPS_BEFORE(type, name, parameters, arguments)            \
	type name parameters                                      \
	{                                                         \
		type(*real) parameters = dlsym(RTLD_NEXT, #name); \
                                                                  \
		nap();                                            \
		return real arguments;                            \
	}

NAPS_BEFORE(int, close, (int fd), (fd))
NAPS_BEFORE(int, munmap, (void *addr, size_t bytes), (addr, bytes))
NAPS_BEFORE(int, shutdown, (int fd, int how), (fd, how))
NAPS_BEFORE(ssize_t, send, (int fd, const void *data, size_t bytes, int flags),
	    (fd, data, bytes, flags))
NAPS_BEFORE(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags),
	    (fd, message, flags))
NAPS_BEFORE(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
NAPS_BEFORE(int, accept4, (int fd, struct sockaddr *address, socklen_t *size, int flags),
	    (fd, address, size, flags))
NAPS_BEFORE(int, poll, (struct pollfd * polls, nfds_t count, int ms), (polls, count, ms))
NAPS_BEFORE(int, epoll_wait, (int epoll, struct epoll_event *events, int count, int ms),
	    (epoll, events, count, ms))
