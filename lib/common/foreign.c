// SPDX-License-Identifier: MIT
#include "foreign.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct batch {
	struct batch *next;
	tmesh_giver giver;
	unsigned int count;
	int fds[];
};

static atomic_uint waiting;		/* descriptors that are not closed yet */
static _Atomic(struct batch *) batches; /* which no thread has yet */
/* Who gave those that wait, in no order; 0: free. What comes when all are taken is counted above
 * alone. */
static atomic_uint_fast64_t givers[TMESH_FOREIGN_MOST];

static uint64_t word(tmesh_giver giver)
{
	return giver + 1;
}

tmesh_giver tmesh_giver_of(uid_t uid, pid_t pid)
{
	return (uint64_t)uid << 32 | (uint32_t)pid;
}

tmesh_giver tmesh_giver_at(int socket)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		return TMESH_GIVER_UNKNOWN;
	return tmesh_giver_of(peer.uid, peer.pid);
}

/* In the first place that has @old. */
static void replace(uint64_t old, uint64_t new)
{
	for (unsigned int i = 0; i < TMESH_FOREIGN_MOST; i++) {
		uint64_t there = old;

		if (atomic_compare_exchange_strong(&givers[i], &there, new))
			return;
	}
}

static void begin_waiting(tmesh_giver giver)
{
	atomic_fetch_add(&waiting, 1);
	replace(0, word(giver));
}

static void end_waiting(tmesh_giver giver)
{
	replace(word(giver), 0);
	atomic_fetch_sub(&waiting, 1);
}

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

bool tmesh_foreign_room(tmesh_giver giver)
{
	unsigned int of_process = 0, of_user = 0;
	unsigned int all = atomic_load(&waiting);

	for (unsigned int i = 0; all && i < TMESH_FOREIGN_MOST; i++) {
		uint64_t there = atomic_load_explicit(&givers[i], memory_order_relaxed);

		of_process += there == word(giver);
		of_user += there && (there - 1) >> 32 == giver >> 32;
	}
	return of_process < TMESH_FOREIGN_OF_PROCESS && of_user < TMESH_FOREIGN_OF_USER &&
	       all < TMESH_FOREIGN_MOST;
}

bool tmesh_foreign_room_at(int socket)
{
	return !atomic_load(&waiting) || tmesh_foreign_room(tmesh_giver_at(socket));
}

int tmesh_foreign_fail_errno(struct tmesh_error *err, const char *what, tmesh_giver giver)
{
	if (errno != EMFILE || tmesh_foreign_room(giver))
		return tmesh_fail_errno(err, what);
	return tmesh_fail(
		err, -EMFILE,
		"%s: this process waits for who serves files that it was given, and takes no more "
		"than %d of a process, %d of a user and %d in all: end who gave them, or their "
		"server",
		what, TMESH_FOREIGN_OF_PROCESS, TMESH_FOREIGN_OF_USER, TMESH_FOREIGN_MOST);
}

/* Those that no thread could be had for too. */
static void *close_batches(void *data)
{
	struct batch *batch = atomic_exchange(&batches, NULL);

	while (batch) {
		struct batch *next = batch->next;

		for (unsigned int i = 0; i < batch->count; i++) {
			close(batch->fds[i]);
			end_waiting(batch->giver);
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
void tmesh_foreign_close_all(const int *fds, unsigned int count, tmesh_giver giver)
{
	struct batch *batch = NULL;

	for (unsigned int i = 0; i < count; i++) {
		if (!may_be_served(fds[i])) {
			close(fds[i]);
			continue;
		}
		begin_waiting(giver);
		if (!batch)
			batch = calloc(1, sizeof(*batch) + count * sizeof(batch->fds[0]));
		if (batch)
			batch->fds[batch->count++] = fds[i];
	}
	if (!batch)
		return;
	batch->giver = giver;
	batch->next = atomic_load(&batches);
	while (!atomic_compare_exchange_weak(&batches, &batch->next, batch))
		;
	start_thread();
}

void tmesh_foreign_close(int fd, tmesh_giver giver)
{
	tmesh_foreign_close_all(&fd, 1, giver);
}
