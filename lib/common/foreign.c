// SPDX-License-Identifier: MIT
#include "foreign.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
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

struct batch {
	unsigned int count;
	int fds[];
};

static void *close_batch(void *data)
{
	struct batch *batch = data;

	for (unsigned int i = 0; i < batch->count; i++)
		close(batch->fds[i]);
	free(batch);
	return NULL;
}

/* Whether a thread of its own has @batch now. */
static bool hand_to_thread(struct batch *batch)
{
	pthread_attr_t detached;
	sigset_t all, old;
	pthread_t thread;
	int rc;

	/* Signals are the application's. */
	sigfillset(&all);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, &detached, close_batch, batch);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&detached);
	return !rc;
}

/* One thread for all that came together: who gives hundreds starts no hundreds of threads. */
void tmesh_foreign_close_all(const int *fds, unsigned int count)
{
	struct batch *batch = NULL;

	for (unsigned int i = 0; i < count; i++) {
		if (!may_be_served(fds[i])) {
			close(fds[i]);
			continue;
		}
		if (!batch)
			batch = calloc(1, sizeof(*batch) + count * sizeof(batch->fds[0]));
		if (batch)
			batch->fds[batch->count++] = fds[i];
		else
			close(fds[i]);
	}
	if (batch && !hand_to_thread(batch))
		close_batch(batch);
}

void tmesh_foreign_close(int fd)
{
	tmesh_foreign_close_all(&fd, 1);
}
