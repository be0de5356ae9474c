/* SPDX-License-Identifier: MIT */
/*
 * System calls that an engine's process is denied. Each is made so that it changes nothing. Where
 * no rule denies it, most fail otherwise than with EPERM or ENOSYS.
 */
#ifndef TMESH_TEST_PROBE_H
#define TMESH_TEST_PROBE_H

#include <errno.h>
#include <fcntl.h>
#include <asm/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/error.h"

#define NOWHERE 1L /* no address */
#define PROBE(name, ...)            \
	{                           \
#name, SYS_##name,  \
		{                   \
			__VA_ARGS__ \
		}                   \
	}

struct probe {
	const char *name;
	long number;
	long args[5];
};

static void *probe_thread(void *data)
{
	return data;
}

/* The calls that an engine needs go on working. */
static inline const char *probe_allowed(void)
{
	struct rlimit limit;
	pthread_t thread;
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		return "a pair of sockets";
	close(ends[0]);
	close(ends[1]);
	if (pthread_create(&thread, NULL, probe_thread, NULL) || pthread_join(thread, NULL))
		return "a thread";
	if (kill(getpid(), 0))
		return "a signal to itself";
	if (getrlimit(RLIMIT_NOFILE, &limit))
		return "its own limits";
	return NULL;
}

static inline int probe_calls(struct tmesh_error *err)
{
	const long parent = getppid(), self = gettid();
	const struct probe probes[] = {
		PROBE(execve, (long)"/nonexistent"),
		PROBE(execveat, -1, (long)"/nonexistent"),
#ifdef SYS_fork
		PROBE(fork, 0),
#endif
		PROBE(clone, SIGCHLD),
		PROBE(clone, SIGCHLD | CLONE_NEWUSER),
		PROBE(ptrace, 9999),
		PROBE(kcmp, parent, parent, 99),
		PROBE(tkill, self, 0),
#ifdef SYS_pidfd_getfd
		PROBE(pidfd_getfd, -1, -1),
#endif
#ifdef SYS_pidfd_send_signal
		PROBE(pidfd_send_signal, -1),
#endif
#ifdef SYS_process_madvise
		PROBE(process_madvise, -1),
#endif
#ifdef SYS_io_uring_setup
		PROBE(io_uring_setup, 1),
		PROBE(io_uring_enter, -1),
		PROBE(io_uring_register, -1),
#endif
		PROBE(unshare, 0),
		PROBE(setns, -1),
		PROBE(mount, NOWHERE, NOWHERE),
		PROBE(umount2, NOWHERE),
		PROBE(pivot_root, NOWHERE, NOWHERE),
		PROBE(chroot, NOWHERE),
#ifdef SYS_open_tree
		PROBE(open_tree, -1, NOWHERE),
		PROBE(move_mount, -1, NOWHERE),
		PROBE(fsopen, NOWHERE),
		PROBE(fsconfig, -1),
		PROBE(fsmount, -1),
		PROBE(fspick, -1, NOWHERE),
#endif
#ifdef SYS_mount_setattr
		PROBE(mount_setattr, -1, NOWHERE),
#endif
		PROBE(bpf, 9999),
		PROBE(perf_event_open, NOWHERE),
		PROBE(userfaultfd, -1),
		PROBE(keyctl, 9999),
		PROBE(add_key, NOWHERE),
		PROBE(request_key, NOWHERE),
		PROBE(kexec_load, 0, 0, 0, 0xffff),
#ifdef SYS_kexec_file_load
		PROBE(kexec_file_load, -1, -1, 0, 0, 0xffff),
#endif
		PROBE(init_module, NOWHERE, 0, NOWHERE),
		PROBE(finit_module, -1, NOWHERE),
		PROBE(delete_module, NOWHERE),
		PROBE(fanotify_init, -1),
		PROBE(name_to_handle_at, -1, NOWHERE),
		PROBE(open_by_handle_at, -1, NOWHERE),
		PROBE(personality, 0xffffffff),
		PROBE(syslog, 9999),
		PROBE(acct, NOWHERE),
		PROBE(quotactl, -1),
		PROBE(swapon, NOWHERE),
		PROBE(swapoff, NOWHERE),
		PROBE(reboot, 0),
		PROBE(sethostname, NOWHERE, -1),
		PROBE(setdomainname, NOWHERE, -1),
		PROBE(settimeofday, NOWHERE),
		PROBE(clock_settime, 0, NOWHERE),
		PROBE(adjtimex, NOWHERE),
		PROBE(clock_adjtime, 0, NOWHERE),
#ifdef SYS_iopl
		PROBE(iopl, 9999),
		PROBE(ioperm, -1, -1),
		PROBE(modify_ldt, 9999),
#endif
		PROBE(kill, parent, 0),
		PROBE(kill, 0, 0),
		PROBE(tgkill, parent, parent, 0),
		PROBE(rt_sigqueueinfo, parent, 0, NOWHERE),
		PROBE(rt_tgsigqueueinfo, parent, parent, 0, NOWHERE),
		PROBE(process_vm_readv, parent),
		PROBE(process_vm_writev, parent),
		PROBE(prlimit64, parent, RLIMIT_CORE),
		PROBE(socket, AF_UNIX, SOCK_STREAM),
		PROBE(socket, AF_UNIX, SOCK_DGRAM),
		PROBE(socketpair, AF_UNIX, SOCK_DGRAM, 0, NOWHERE),
		PROBE(sendto, -1, NOWHERE, 0, 0, NOWHERE),
		PROBE(connect, -1),
		PROBE(bind, -1),
		PROBE(listen, -1),
		PROBE(setsockopt, -1),
		PROBE(sendmmsg, -1),
		PROBE(fchmod, -1),
		PROBE(fchmodat, -1, NOWHERE),
		PROBE(fchown, -1),
		PROBE(fchownat, -1, NOWHERE),
		PROBE(utimensat, -1, NOWHERE),
		PROBE(fsetxattr, -1, NOWHERE),
		PROBE(setxattr, NOWHERE, NOWHERE),
		PROBE(lsetxattr, NOWHERE, NOWHERE),
		PROBE(fremovexattr, -1, NOWHERE),
		PROBE(truncate, NOWHERE),
		PROBE(unlinkat, -1, NOWHERE),
		PROBE(renameat2, -1, NOWHERE, -1, NOWHERE),
		PROBE(linkat, -1, NOWHERE, -1, NOWHERE),
		PROBE(symlinkat, NOWHERE, -1, NOWHERE),
		PROBE(mkdirat, -1, NOWHERE),
		PROBE(mknodat, -1, NOWHERE),
		PROBE(flock, -1),
		PROBE(fsync, -1),
		PROBE(inotify_init1, -1),
		PROBE(openat, -1, NOWHERE, O_WRONLY),
		PROBE(openat, -1, NOWHERE, O_CREAT),
		PROBE(openat, -1, NOWHERE, O_TRUNC),
		PROBE(shmget, 0, 0, 0),
		PROBE(shmat, -1),
		PROBE(shmdt, NOWHERE),
		PROBE(shmctl, -1),
		PROBE(msgget, 0, 0),
		PROBE(msgsnd, -1),
		PROBE(msgrcv, -1),
		PROBE(msgctl, -1),
		PROBE(semget, 0, 0, 0),
		PROBE(semop, -1),
		PROBE(semctl, -1),
		PROBE(mq_open, NOWHERE),
		PROBE(mq_unlink, NOWHERE),
		PROBE(sched_setaffinity, parent),
		PROBE(sched_setscheduler, parent, -1),
		PROBE(sched_setparam, parent),
		PROBE(sched_setattr, parent),
		PROBE(setpriority, 99),
		PROBE(ioprio_set, 99),
		PROBE(migrate_pages, parent),
		PROBE(move_pages, parent),
		PROBE(setpgid, parent, -1),
		PROBE(prctl, 9999),
		PROBE(timer_create, 9999),
		PROBE(splice, -1),
		PROBE(vmsplice, -1),
		PROBE(sendfile, -1, -1),
		PROBE(copy_file_range, -1),
		PROBE(capset, NOWHERE),
		PROBE(setuid, -1),
		PROBE(setgroups, -1),
		PROBE(landlock_create_ruleset, NOWHERE),
		PROBE(seccomp, 9999),
		PROBE(socket, AF_INET, SOCK_STREAM),
		PROBE(socket, AF_INET6, SOCK_DGRAM),
		PROBE(socket, AF_NETLINK, SOCK_RAW),
		PROBE(ioctl, -1, TIOCSTI),
		PROBE(ioctl, -1, TIOCLINUX),
		PROBE(ioctl, -1, FIOSETOWN),
		PROBE(ioctl, -1, SIOCSPGRP),
		PROBE(fcntl, -1, F_SETOWN),
		PROBE(fcntl, -1, F_SETOWN_EX),
		PROBE(fcntl, -1, F_SETLEASE),
		PROBE(fcntl, -1, F_SETLK),
		PROBE(fcntl, -1, F_NOTIFY),
		PROBE(ioctl, -1, 0xe719), /* TMESH_KEPT_DROP */
	};
	const char *what = probe_allowed();

	if (what)
		return tmesh_fail(err, -EIO, "the probe cannot have %s: %s", what, strerror(errno));
	for (size_t i = 0; i < sizeof(probes) / sizeof(*probes); i++) {
		const long *args = probes[i].args;
		long rc = syscall(probes[i].number, args[0], args[1], args[2], args[3], args[4], 0);
		bool denied = rc == -1 && (errno == EPERM || errno == ENOSYS);

		/* A child, which should not be. */
		if (!rc && getpid() != self && getppid() == self)
			_exit(0);
		if (!denied)
			return tmesh_fail(err, -EIO, "the probe made a call: %s gave %ld (%s)",
					  probes[i].name, rc, rc == -1 ? strerror(errno) : "done");
	}
#ifdef SYS_clone3
	if (syscall(SYS_clone3, NULL, 0) != -1 || errno != ENOSYS)
		return tmesh_fail(err, -EIO, "the probe made a call: clone3");
#endif
	return 0;
}

/* The way of 32-bit programs, where every number is another call's. */
static inline void probe_foreign(void)
{
#ifdef __x86_64__
	long rc;

	__asm__ volatile("int $0x80" : "=a"(rc) : "a"(20L) : "memory", "r8", "r9", "r10", "r11");
#endif
}

#endif /* TMESH_TEST_PROBE_H */
