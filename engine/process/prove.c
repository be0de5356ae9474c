// SPDX-License-Identifier: MIT
/*
 * Attempts at forbidden actions, one for each kind of access. An attempt that is not denied changes
 * nothing, and mostly fails with another error.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "process.h"

#define NOWHERE 1L /* not an address */

struct attempt {
	const char *what; /* the access that it would give the engine */
	long number;
	long args[4];
};

static bool is_denied(const struct attempt *attempt)
{
	const long *args = attempt->args;
	long rc = syscall(attempt->number, args[0], args[1], args[2], args[3], 0, 0);

	return rc == -1 && (errno == EPERM || errno == ENOSYS);
}

/* Test Landlock. The root folder has no secrets. */
static bool reads_files(void)
{
	int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0)
		close(fd);
	return fd >= 0 || errno != EACCES;
}

static bool has_capabilities(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};

	if (syscall(SYS_capget, &head, data))
		return true;
	for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
		if (data[i].effective || data[i].permitted || data[i].inheritable)
			return true;
	return false;
}

int prove_rights(struct tmesh_error *err)
{
	return has_capabilities() ? tmesh_fail(err, -ENOTSUP, "the engine still has capabilities")
				  : 0;
}

int prove_confined(unsigned int *count, struct tmesh_error *err)
{
	const long parent = getppid();
	const struct attempt attempts[] = {
		{"write to files", SYS_openat, {AT_FDCWD, (long)"/dev/null", O_WRONLY}},
		{"change files' modes", SYS_fchmod, {-1}},
		{"change files' owners", SYS_fchown, {-1}},
		{"change files' times", SYS_utimensat, {-1, NOWHERE}},
		{"change files' attributes", SYS_fsetxattr, {-1, NOWHERE}},
		{"truncate files", SYS_truncate, {NOWHERE}},
		{"remove files", SYS_unlinkat, {-1, NOWHERE}},
		{"rename files", SYS_renameat2, {-1, NOWHERE, -1, NOWHERE}},
		{"make sockets", SYS_socket, {AF_UNIX, SOCK_STREAM}},
		{"connect sockets", SYS_connect, {-1}},
		{"bind sockets", SYS_bind, {-1}},
		{"use others' System V segments", SYS_shmget, {0, 0, 0}},
		{"use others' System V queues", SYS_msgget, {0, 0}},
		{"use others' System V semaphores", SYS_semget, {0, 0, 0}},
		{"use others' POSIX queues", SYS_mq_open, {NOWHERE}},
		{"change others' scheduling", SYS_sched_setscheduler, {parent, -1}},
		{"change others' priority", SYS_setpriority, {99}},
		{"change others' input and output priority", SYS_ioprio_set, {99}},
		{"send signals to others", SYS_kill, {parent, 0}},
		{"read others' memory", SYS_process_vm_readv, {parent}},
		{"trace others", SYS_ptrace, {9999}},
		{"outlive its supervisor", SYS_prctl, {9999}},
		{"start programs", SYS_execve, {(long)"/nonexistent"}},
		{"start processes", SYS_clone, {CLONE_SIGHAND}},
		{"use io_uring", 425, {1, NOWHERE}},
		{"use user faults", SYS_userfaultfd, {-1}},
		{"use bpf", SYS_bpf, {9999}},
		{"use perf events", SYS_perf_event_open, {NOWHERE}},
		{"use keys", SYS_keyctl, {9999}},
		{"make namespaces", SYS_unshare, {0}},
		{"mount", SYS_mount, {NOWHERE, NOWHERE, NOWHERE}},
		{"use the new calls to mount", 430, {NOWHERE}},
	};
	const unsigned int all = sizeof(attempts) / sizeof(*attempts);

	if (reads_files())
		return tmesh_fail(err, -ENOTSUP, "the confined engine could still %s",
				  "read files");
	for (unsigned int i = 0; i < all; i++)
		if (!is_denied(&attempts[i]))
			return tmesh_fail(err, -ENOTSUP, "the confined engine could still %s",
					  attempts[i].what);
	*count = all + 1;
	return 0;
}
