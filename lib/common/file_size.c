// SPDX-License-Identifier: MIT
#include "file_size.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct guard {
	bool on;
	sigset_t signal, before;
};

static struct guard guard_begin(void)
{
	struct guard guard = {.on = false};
	struct rlimit limit;

	/* Most processes have no limit; this one call is enough to find out. */
	if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur == RLIM_INFINITY)
		return guard;
	sigemptyset(&guard.signal);
	sigaddset(&guard.signal, SIGXFSZ);
	guard.on = !pthread_sigmask(SIG_BLOCK, &guard.signal, &guard.before) &&
		   !sigismember(&guard.before, SIGXFSZ);
	return guard;
}

/* Take the signal back before it can be handled: it goes to the thread that wrote. */
static void guard_end(const struct guard *guard)
{
	const struct timespec now = {0};
	int code = errno;

	if (guard->on) {
		while (sigtimedwait(&guard->signal, NULL, &now) < 0 && errno == EINTR)
			;
		pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
	}
	errno = code;
}

int tmesh_ftruncate(int fd, off_t size)
{
	struct guard guard = guard_begin();
	int rc = ftruncate(fd, size);

	guard_end(&guard);
	return rc;
}

int tmesh_fallocate(int fd, off_t bytes)
{
	struct guard guard = guard_begin();
	int rc = fallocate(fd, 0, 0, bytes);

	guard_end(&guard);
	return rc;
}

ssize_t tmesh_write(int fd, const void *data, size_t bytes)
{
	struct guard guard = guard_begin();
	ssize_t put = write(fd, data, bytes);

	guard_end(&guard);
	return put;
}

ssize_t tmesh_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
	struct guard guard = guard_begin();
	ssize_t put = pwrite(fd, data, bytes, offset);

	guard_end(&guard);
	return put;
}

ssize_t tmesh_splice(int pipe, int fd, off_t *offset, size_t bytes)
{
	struct guard guard = guard_begin();
	loff_t at = *offset;
	ssize_t put = splice(pipe, NULL, fd, &at, bytes, 0);

	*offset = at;
	guard_end(&guard);
	return put;
}

int tmesh_dprintf(int fd, const char *format, ...)
{
	struct guard guard = guard_begin();
	va_list list;
	int put;

	va_start(list, format);
	put = vdprintf(fd, format, list);
	va_end(list);
	guard_end(&guard);
	return put;
}
