// SPDX-License-Identifier: MIT
#include "foreign.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct batch {
	struct batch *next;
	unsigned int count;
	int fds[];
};

static atomic_uint waiting;		/* descriptors that are not closed yet */
static _Atomic(struct batch *) batches; /* which no thread has yet */

bool tmesh_foreign_look(int dir, const char *name, struct tmesh_foreign_file *file)
{
	struct statx now;

	if (statx(dir, name, AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &now))
		return false;
	file->type = now.stx_mode & S_IFMT;
	file->dev = makedev(now.stx_dev_major, now.stx_dev_minor);
	file->ino = now.stx_ino;
	return true;
}

/* FUSE's flush() waits for ever. Nobody serves memory, sockets, pipes and what has no type. */
static bool may_be_served(int fd)
{
	struct tmesh_foreign_file file;

	if (fcntl(fd, F_GET_SEALS) >= 0)
		return false;
	return !tmesh_foreign_look(fd, "", &file) || S_ISREG(file.type) || S_ISDIR(file.type);
}

unsigned int tmesh_foreign_waiting(void)
{
	return atomic_load(&waiting);
}

bool tmesh_foreign_room(void)
{
	return tmesh_foreign_waiting() < TMESH_FOREIGN_MOST;
}

int tmesh_foreign_fail_errno(struct tmesh_error *err, const char *what)
{
	if (errno != EMFILE || tmesh_foreign_room())
		return tmesh_fail_errno(err, what);
	return tmesh_fail(
		err, -EMFILE,
		"%s: this process waits for who serves files that it was given, and takes "
		"no more than %d: end who gave them, or their server",
		what, TMESH_FOREIGN_MOST);
}

/* Those that no thread could be had for too. */
static void *close_batches(void *data)
{
	struct batch *batch = atomic_exchange(&batches, NULL);

	while (batch) {
		struct batch *next = batch->next;

		for (unsigned int i = 0; i < batch->count; i++) {
			close(batch->fds[i]);
			atomic_fetch_sub(&waiting, 1);
		}
		free(batch);
		batch = next;
	}
	return data;
}

/* Without a thread they stay open until there is one: to wait here is what must not be. */
static void start_thread(void)
{
	pthread_attr_t detached;
	sigset_t all, old;
	pthread_t thread;

	/* Signals are the application's. */
	sigfillset(&all);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_create(&thread, &detached, close_batches, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&detached);
}

/* One thread for all that came together: who gives hundreds starts no hundreds of threads. What
 * there is no memory to remember stays open, and is counted. */
void tmesh_foreign_close_all(const int *fds, unsigned int count)
{
	struct batch *batch = NULL;

	for (unsigned int i = 0; i < count; i++) {
		if (!may_be_served(fds[i])) {
			close(fds[i]);
			continue;
		}
		atomic_fetch_add(&waiting, 1);
		if (!batch)
			batch = calloc(1, sizeof(*batch) + count * sizeof(batch->fds[0]));
		if (batch)
			batch->fds[batch->count++] = fds[i];
	}
	if (!batch)
		return;
	batch->next = atomic_load(&batches);
	while (!atomic_compare_exchange_weak(&batches, &batch->next, batch))
		;
	start_thread();
}

void tmesh_foreign_close(int fd)
{
	tmesh_foreign_close_all(&fd, 1);
}
