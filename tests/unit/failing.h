/* SPDX-License-Identifier: MIT */
/*
 * For tests in which each system call and each allocation of one thread fails in turn. The
 * functions below stand in for the C library's in the program that includes this; with the address
 * sanitizer memory does not fail.
 */
#ifndef TMESH_FAILING_H
#define TMESH_FAILING_H

#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "unit.h"

static __thread long fail_at; /* 0: nothing fails */
static __thread long calls;
static const char *failed;
static int pages_errno; /* what taking pages ahead of a write fails with; 0: it does not */

static bool fails(const char *name)
{
	if (!fail_at || ++calls != fail_at)
		return false;
	failed = name;
	return true;
}

#define STAND_IN(name, code, ...)                             \
	do {                                                  \
		if (fails(#name)) {                           \
			errno = code;                         \
			return -1;                            \
		}                                             \
		return (int)syscall(SYS_##name, __VA_ARGS__); \
	} while (0)

int memfd_create(const char *name, unsigned int flags)
{
	STAND_IN(memfd_create, EMFILE, name, flags);
}

int ftruncate(int fd, off_t size)
{
	STAND_IN(ftruncate, ENOMEM, fd, size);
}

int fchmod(int fd, mode_t mode)
{
	STAND_IN(fchmod, EIO, fd, mode);
}

int fstat(int fd, struct stat *st)
{
	STAND_IN(fstat, EIO, fd, st);
}

int madvise(void *addr, size_t bytes, int advice)
{
	if (pages_errno && advice == MADV_POPULATE_WRITE) {
		errno = pages_errno;
		return -1;
	}
	STAND_IN(madvise, EINVAL, addr, bytes, advice);
}

int socket(int domain, int type, int protocol)
{
	STAND_IN(socket, EMFILE, domain, type, protocol);
}

int pipe2(int ends[2], int flags)
{
	STAND_IN(pipe2, EMFILE, ends, flags);
}

int socketpair(int domain, int type, int protocol, int ends[2])
{
	STAND_IN(socketpair, EMFILE, domain, type, protocol, ends);
}

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
	STAND_IN(bind, EADDRINUSE, fd, address, size);
}

int listen(int fd, int backlog)
{
	STAND_IN(listen, EADDRINUSE, fd, backlog);
}

int connect(int fd, const struct sockaddr *address, socklen_t size)
{
	STAND_IN(connect, ENOBUFS, fd, address, size);
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
	STAND_IN(getsockopt, ENOBUFS, fd, level, name, value, size);
}

int epoll_create1(int flags)
{
	STAND_IN(epoll_create1, EMFILE, flags);
}

int dup3(int from, int to, int flags)
{
	return (int)syscall(SYS_dup3, from, to, flags);
}

int poll(struct pollfd *fds, nfds_t count, int ms)
{
	STAND_IN(poll, ENOMEM, fds, count, ms);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	STAND_IN(sendmsg, ENOBUFS, fd, msg, flags);
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	STAND_IN(recvmsg, ENOMEM, fd, msg, flags);
}

ssize_t getrandom(void *buffer, size_t bytes, unsigned int flags)
{
	STAND_IN(getrandom, ENOSYS, buffer, bytes, flags);
}

static size_t most __attribute__((unused)) = SIZE_MAX; /* bytes that a call takes */
static int interrupts;				       /* so many calls a signal ends */

static bool interrupted(void)
{
	if (!interrupts)
		return false;
	interrupts--;
	errno = EINTR;
	return true;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
	if (fails("pwrite")) {
		errno = ENOSPC;
		return -1;
	}
	if (interrupted())
		return -1;
	return syscall(SYS_pwrite64, fd, data, bytes < most ? bytes : most, offset);
}

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
	if (fails("pread")) {
		errno = EIO;
		return -1;
	}
	if (interrupted())
		return -1;
	return syscall(SYS_pread64, fd, data, bytes < most ? bytes : most, offset);
}

static int busy_seals; /* so often a seal against writing is refused, though no process writes */
static int seal_code = EBUSY;

int fcntl(int fd, int command, ...)
{
	va_list args;
	long argument;

	va_start(args, command);
	argument = va_arg(args, long);
	va_end(args);
	if (command == F_ADD_SEALS && argument & F_SEAL_WRITE && busy_seals) {
		busy_seals--;
		errno = seal_code;
		return -1;
	}
	STAND_IN(fcntl, EIO, fd, command, argument);
}

static const char *other_path; /* is what @other_is says, or is not there */
static const char *other_is;

int open(const char *path, int flags, ...)
{
	if (other_path && !strcmp(path, other_path))
		path = other_is ? other_is : "/nonexistent";
	STAND_IN(openat, EMFILE, AT_FDCWD, path, flags, 0600);
}

int openat(int dir, const char *path, int flags, ...)
{
	STAND_IN(openat, EMFILE, dir, path, flags, 0600);
}

ssize_t readlink(const char *path, char *text, size_t size)
{
	STAND_IN(readlinkat, EIO, AT_FDCWD, path, text, size);
}

int symlinkat(const char *target, int dir, const char *path)
{
	STAND_IN(symlinkat, ENOSPC, target, dir, path);
}

int renameat(int dir, const char *path, int to_dir, const char *to)
{
	STAND_IN(renameat, ENOSPC, dir, path, to_dir, to);
}

#ifndef __SANITIZE_ADDRESS__
static int hole_code;  /* what mapping a file at a fixed address fails with; 0: it does not */
static uint8_t *taken; /* by another thread, where a file was to be mapped */
static size_t taken_bytes;

/* Before Linux 6.12 a mapping over another one that fails has removed that one. */
static void *leave_hole(void *addr, size_t bytes)
{
	taken_bytes = bytes;
	taken = (uint8_t *)syscall(SYS_mmap, addr, bytes, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	memset(taken, 'x', 1);
	errno = hole_code;
	return MAP_FAILED;
}

void *mmap(void *addr, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	if (hole_code && fd >= 0 && flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) && !taken)
		return leave_hole(addr, bytes);
	if (fails("mmap")) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mmap, addr, bytes, prot, flags, fd, offset);
}

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);

void *malloc(size_t size)
{
	if (fails("malloc")) {
		errno = ENOMEM;
		return NULL;
	}
	return __libc_malloc(size);
}

void *realloc(void *old, size_t size)
{
	if (fails("realloc")) {
		errno = ENOMEM;
		return NULL;
	}
	return __libc_realloc(old, size);
}

void *calloc(size_t count, size_t size)
{
	if (fails("calloc")) {
		errno = ENOMEM;
		return NULL;
	}
	return __libc_calloc(count, size);
}
#endif

/* From here on call @n of this thread fails. */
static inline void failing_begin(long n)
{
	failed = NULL;
	calls = 0;
	fail_at = n;
}

/* Nothing fails any more. A failed call has to report an error. */
static inline void failing_end(long n, int rc, const struct tmesh_error *err)
{
	fail_at = 0;
	if (rc && (rc != err->code || strlen(err->message) < 10))
		fail_msg("call %ld (%s): %d but \"%s\" (%d)", n, failed, rc, err->message,
			 err->code);
}

/* Count the descriptors that a program started now would inherit. */
static inline unsigned int fds_for_others(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	unsigned int count = 0;

	while ((entry = readdir(dir)))
		count += entry->d_name[0] != '.' &&
			 !(fcntl(atoi(entry->d_name), F_GETFD) & FD_CLOEXEC);
	closedir(dir);
	return count;
}

#endif /* TMESH_FAILING_H */
