// SPDX-License-Identifier: MIT
/*
 * Preloaded into tmesh-keeper: the kernel tells it once that a process waits for memory, when the
 * file $TMESH_PRESSURE is there, and /proc/meminfo is that file.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *file(void)
{
	const char *name = getenv("TMESH_PRESSURE");

	return name && !strcmp(program_invocation_short_name, "tmesh-keeper") ? name : "/nothing";
}

FILE *fopen(const char *path, const char *mode)
{
	FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
	FILE *opened;

	if (strcmp(path, "/proc/meminfo") || access(file(), F_OK))
		return real(path, mode);
	opened = real(file(), mode);
	unlink(file());
	return opened;
}

/* The second of its descriptors is that of the kernel's word. */
int ppoll(struct pollfd *polls, nfds_t count, const struct timespec *left, const sigset_t *signals)
{
	int (*real)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *) =
		dlsym(RTLD_NEXT, "ppoll");
	int rc = real(polls, count, left, signals);

	if (rc >= 0 && count > 1 && !access(file(), F_OK))
		polls[1].revents |= POLLPRI;
	return rc;
}
