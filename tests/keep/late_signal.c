// SPDX-License-Identifier: MIT
/*
 * Preloaded into tmesh-keeper: SIGTERM comes in the moment before it waits without an end, once,
 * when the file $TMESH_LATE_SIGNAL is there. The keeper has looked just before whether it is to
 * end.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void come(bool no_end)
{
	const char *file = getenv("TMESH_LATE_SIGNAL");

	if (no_end && !strcmp(program_invocation_short_name, "tmesh-keeper") && file &&
	    unlink(file) == 0)
		raise(SIGTERM);
}

int poll(struct pollfd *polls, nfds_t count, int ms)
{
	int (*real)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "poll");

	come(ms < 0);
	return real(polls, count, ms);
}

int ppoll(struct pollfd *polls, nfds_t count, const struct timespec *left, const sigset_t *signals)
{
	int (*real)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *) =
		dlsym(RTLD_NEXT, "ppoll");

	come(!left);
	return real(polls, count, left, signals);
}
