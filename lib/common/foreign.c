// SPDX-License-Identifier: MIT
#include "foreign.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
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
/* The givers of descriptors that are still to be closed, in no order; 0: free. If all places are
 * taken, only the count above grows. */
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

/* Replace @old by @new in the first place that has it. */
static void replace(uint64_t old, uint64_t new)
{
	for (unsigned int i = 0; i < TMESH_FOREIGN_MOST; i++) {
		uint64_t there = old;

		if (atomic_compare_exchange_strong(&givers[i], &there, new))
			return;
	}
}

/* Start anew in a child: it has the parent's descriptors, but no thread that closes them. */
static void forked(void)
{
	for (unsigned int i = 0; i < TMESH_FOREIGN_MOST; i++)
		atomic_store(&givers[i], 0);
	atomic_store(&waiting, 0);
	atomic_store(&batches, NULL);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked);
}

static void begin_waiting(tmesh_giver giver)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
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

int tmesh_foreign_seals(int fd)
{
	return fcntl(fd, F_GET_SEALS);
}

int tmesh_foreign_reopen(int fd, int flags)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, flags | O_NONBLOCK | O_CLOEXEC);
}

/* The option SO_LINGER itself cannot be checked: the sender can set it at any time. */
bool tmesh_foreign_is_unix_socket(int fd)
{
	int family = 0;
	socklen_t size = sizeof(family);

	return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) && family == AF_UNIX;
}

bool tmesh_foreign_may_be_served(int fd)
{
	struct tmesh_foreign_file file;

	if (tmesh_foreign_is_memory(fd))
		return false;
	return !tmesh_foreign_look(fd, "", &file) || S_ISREG(file.type) || S_ISDIR(file.type) ||
	       (S_ISSOCK(file.type) && !tmesh_foreign_is_unix_socket(fd));
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
		"%s: servers of files that peers sent keep this process waiting (at most %d of "
		"a process, %d of a user, %d in all): end those peers",
		what, TMESH_FOREIGN_OF_PROCESS, TMESH_FOREIGN_OF_USER, TMESH_FOREIGN_MOST);
}

/* Close batches, also those for which no thread could be started. */
static void *close_batches(void *data)
{
	struct batch *batch = atomic_exchange(&batches, NULL);

	pthread_setname_np(pthread_self(), "tmesh-close");
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

/* Start the thread that closes. Without a thread they stay open until there is one, because this
 * thread must not wait. */
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

/* Close the descriptors. One thread closes all that came together, so a process that gives hundreds
 * does not start hundreds of threads. Without memory to note them they stay open, and are counted.
 */
void tmesh_foreign_close_all(const int *fds, unsigned int count, tmesh_giver giver)
{
	struct batch *batch = NULL;

	for (unsigned int i = 0; i < count; i++) {
		if (!tmesh_foreign_may_be_served(fds[i])) {
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
