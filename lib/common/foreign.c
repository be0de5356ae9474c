// SPDX-License-Identifier: MIT
#include "foreign.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Who serves a file may be asked when it is closed, and not answer: FUSE's flush() waits for ever.
 * Nobody serves memory, sockets, pipes and what the kernel has without a type, such as the module's
 * handles. The look itself asks nobody: AT_STATX_DONT_SYNC takes what the kernel knows.
 */
static bool may_be_served(int fd)
{
	struct statx now;

	if (fcntl(fd, F_GET_SEALS) >= 0)
		return false;
	return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &now) ||
	       S_ISREG(now.stx_mode) || S_ISDIR(now.stx_mode);
}

static void *close_it(void *data)
{
	close((int)(intptr_t)data);
	return NULL;
}

void tmesh_foreign_close(int fd)
{
	pthread_attr_t detached;
	sigset_t all, old;
	pthread_t thread;
	int rc;

	if (!may_be_served(fd)) {
		close(fd);
		return;
	}
	/* Signals are the application's. */
	sigfillset(&all);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, &detached, close_it, (void *)(intptr_t)fd);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&detached);
	if (rc)
		close(fd);
}

void tmesh_foreign_close_all(const int *fds, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		tmesh_foreign_close(fds[i]);
}
