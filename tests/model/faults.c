// SPDX-License-Identifier: MIT
/*
 * LD_PRELOAD for the tests of libtmesh-model: system calls on the file that FAULT_PATH names fail
 * as FAULT says from the FAULT_AFTER'th byte on. FAULT is eio, late (ETIMEDOUT), end, short (in
 * small pieces, which is no failure), or stop (the process is stopped once, and goes on by
 * SIGCONT). Reads through io_uring are not seen here.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

static int is_fault(const char *kind)
{
	const char *fault = getenv("FAULT");

	return fault && !strcmp(fault, kind);
}

static int is_target(int fd)
{
	const char *path = getenv("FAULT_PATH");
	struct stat here, there;

	return path && !fstat(fd, &here) && !stat(path, &there) && here.st_ino == there.st_ino &&
	       here.st_dev == there.st_dev;
}

static off_t after(void)
{
	const char *text = getenv("FAULT_AFTER");

	return text ? atoll(text) : 0;
}

/* -1 with errno, 0 for an end, or how much may be read. */
static ssize_t allowed(int fd, off_t offset, size_t count)
{
	if (!count || !is_target(fd))
		return (ssize_t)count;
	if (is_fault("short"))
		return offset < after() ? (ssize_t)count : (ssize_t)(count > 1000 ? count / 3 : 1);
	if (offset + (off_t)count <= after())
		return (ssize_t)count;
	if (is_fault("stop")) {
		static atomic_flag stopped = ATOMIC_FLAG_INIT;

		if (!atomic_flag_test_and_set(&stopped))
			raise(SIGSTOP);
		return (ssize_t)count;
	}
	if (offset < after())
		return after() - offset;
	if (is_fault("eio") || is_fault("late")) {
		errno = is_fault("eio") ? EIO : ETIMEDOUT;
		return -1;
	}
	return is_fault("end") ? 0 : (ssize_t)count;
}

ssize_t pread(int fd, void *to, size_t count, off_t offset)
{
	ssize_t most = allowed(fd, offset, count);

	return most <= 0 ? most : NEXT(pread)(fd, to, (size_t)most, offset);
}

ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t count, unsigned int flags)
{
	ssize_t most = in_at ? allowed(in, *in_at, count) : (ssize_t)count;

	return most <= 0 ? most : NEXT(splice)(in, in_at, out, out_at, (size_t)most, flags);
}
