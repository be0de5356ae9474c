// SPDX-License-Identifier: MIT
/*
 * Read ahead of a buffered load, in a thread of its own. A single thread waits for the disk and
 * then for the pages of the region. The disk is idle half of the time, because the kernel's own
 * read-ahead is a few hundred KiB.
 *
 * This thread sends the file to /dev/null, which copies nothing but waits until the pages are in
 * the page cache. Loads are slower with readahead() (docs/reference/models.md). An error is
 * ignored: the load itself meets it.
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

/* Open /dev/null. Return -1 if it is no such device: a file of that name would take up the model.
 */
static int open_null(void)
{
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || (!fstat(fd, &st) && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)))
		return fd;
	close(fd);
	return -1;
}

static void *read_ahead_run(void *data)
{
	static const struct timespec nap = {0, 1000000};
	struct ahead *ahead = data;
	uint64_t at = ahead->from;

	pthread_setname_np(pthread_self(), "tmesh-ahead");
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

/* Start the thread, with all signals blocked: they are the application's. */
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
	rc = pthread_create(&ahead->thread, NULL, read_ahead_run, ahead);
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
