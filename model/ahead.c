// SPDX-License-Identifier: MIT
/*
 * Reading ahead of a buffered load, by a thread of its own. One thread alone waits for the disk,
 * and then for the pages of the region: the disk is idle half of the time, as the kernel's own
 * read-ahead is a few hundred KiB. This thread sends the file to /dev/null, which copies nothing
 * and waits for the pages all the same; the page cache has them then. (With
 * readahead() here loads took 1.6 times as long: docs/models.md.) Best effort: where it cannot
 * read, the load itself meets the error.
 */
#include "model_internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define AT_ONCE ((uint64_t)256 << 10)
#define MOST ((uint64_t)64 << 20) /* ahead: more could be evicted again before it is used */

struct ahead {
	const struct tmesh_model *model;
	uint64_t from, end;
	_Atomic uint64_t done; /* by the load */
	atomic_bool stop;
	pthread_t thread;
	int null;
};

/* -1 where there is none: a file of that name would be filled with the model. */
static int open_null(void)
{
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || (!fstat(fd, &st) && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)))
		return fd;
	close(fd);
	return -1;
}

static void *run(void *data)
{
	static const struct timespec nap = {0, 1000000};
	struct ahead *ahead = data;
	uint64_t at = ahead->from;

	while (at < ahead->end && !atomic_load_explicit(&ahead->stop, memory_order_relaxed)) {
		uint64_t done = atomic_load_explicit(&ahead->done, memory_order_relaxed);
		struct piece piece;
		off_t from;
		ssize_t got;

		if (at < done)
			at = done;
		if (at - done > MOST) {
			nanosleep(&nap, NULL);
			continue;
		}
		if (at >= ahead->end)
			break;
		piece = load_piece_at(ahead->model, at, ahead->end, AT_ONCE);
		from = (off_t)piece.file_offset;
		got = sendfile(ahead->null, ahead->model->files[piece.run->file].fd, &from,
			       piece.bytes);
		if (got <= 0)
			break;
		at += (uint64_t)got;
	}
	return NULL;
}

/* Signals are the application's: none is to be handled on this thread. */
struct ahead *ahead_start(const struct load *load)
{
	struct ahead *ahead = malloc(sizeof(*ahead));
	sigset_t all, old;
	int rc;

	if (!ahead)
		return NULL;
	ahead->null = open_null();
	if (ahead->null < 0) {
		free(ahead);
		return NULL;
	}
	ahead->model = load->model;
	ahead->from = load->done;
	ahead->end = load->model->run_bytes;
	atomic_init(&ahead->done, load->done);
	atomic_init(&ahead->stop, false);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&ahead->thread, NULL, run, ahead);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!rc)
		return ahead;
	close(ahead->null);
	free(ahead);
	return NULL;
}

void ahead_tell(struct ahead *ahead, uint64_t done)
{
	if (ahead)
		atomic_store_explicit(&ahead->done, done, memory_order_relaxed);
}

void ahead_stop(struct load *load)
{
	struct ahead *ahead = load->ahead;

	if (!ahead)
		return;
	load->ahead = NULL;
	atomic_store_explicit(&ahead->stop, true, memory_order_relaxed);
	pthread_join(ahead->thread, NULL);
	close(ahead->null);
	free(ahead);
}
