// SPDX-License-Identifier: MIT
/*
 * seccomp: system calls that no engine needs fail with EPERM from here on, in all threads. It is a
 * list of what is denied, so that a library which begins to use another call goes on working; what
 * the process may open is Landlock's to say (confine.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <asm/sockios.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "process.h"

#if defined(__x86_64__) && !defined(__ILP32__)
#define OWN_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define OWN_ARCH AUDIT_ARCH_AARCH64
#else
#define OWN_ARCH 0 /* not known here */
#endif

#define X32 0x40000000
#define MAX_CODE 512

static const int denied[] = {
	/* Programs. New processes: clone(), below. */
	SYS_execve,
	SYS_execveat,
#ifdef SYS_fork
	SYS_fork,
	SYS_vfork,
#endif
	/* Other processes' memory, descriptors and signals. */
	SYS_ptrace,
	SYS_kcmp,
	SYS_tkill,
#ifdef SYS_pidfd_getfd
	SYS_pidfd_getfd,
#endif
#ifdef SYS_pidfd_send_signal
	SYS_pidfd_send_signal,
#endif
#ifdef SYS_process_madvise
	SYS_process_madvise,
#endif
/* Rings do their calls past any filter. */
#ifdef SYS_io_uring_setup
	SYS_io_uring_setup,
	SYS_io_uring_enter,
	SYS_io_uring_register,
#endif
	/* Namespaces and mounts. */
	SYS_unshare,
	SYS_setns,
	SYS_mount,
	SYS_umount2,
	SYS_pivot_root,
	SYS_chroot,
#ifdef SYS_open_tree
	SYS_open_tree,
	SYS_move_mount,
	SYS_fsopen,
	SYS_fsconfig,
	SYS_fsmount,
	SYS_fspick,
#endif
#ifdef SYS_mount_setattr
	SYS_mount_setattr,
#endif
	/* The kernel's insides, and parts of it that few programs need. */
	SYS_bpf,
	SYS_perf_event_open,
	SYS_userfaultfd,
	SYS_keyctl,
	SYS_add_key,
	SYS_request_key,
	SYS_kexec_load,
#ifdef SYS_kexec_file_load
	SYS_kexec_file_load,
#endif
	SYS_init_module,
	SYS_finit_module,
	SYS_delete_module,
	SYS_fanotify_init,
	SYS_name_to_handle_at,
	SYS_open_by_handle_at,
	SYS_personality,
	SYS_syslog,
	SYS_acct,
	SYS_quotactl,
	SYS_swapon,
	SYS_swapoff,
	SYS_reboot,
	SYS_sethostname,
	SYS_setdomainname,
	SYS_vhangup,
	SYS_settimeofday,
	SYS_clock_settime,
	SYS_adjtimex,
	SYS_clock_adjtime,
#ifdef SYS_iopl
	SYS_iopl,
	SYS_ioperm,
	SYS_modify_ldt,
#endif
};

/* Of this process alone: the first argument. */
static const int own_alone[] = {
	SYS_kill,
	SYS_tgkill,
	SYS_rt_sigqueueinfo,
	SYS_rt_tgsigqueueinfo,
	SYS_process_vm_readv,
	SYS_process_vm_writev,
};

/* Words for the terminal that it was started from; signals to others by a descriptor's owner. */
static const uint32_t ioctls[] = {TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP};
static const uint32_t owners[] = {F_SETOWN, F_SETOWN_EX};

#define NAMESPACES                                                                     \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | \
	 CLONE_NEWPID | CLONE_NEWNET)

struct filter {
	struct sock_filter code[MAX_CODE];
	unsigned short count;
};

static void put(struct filter *filter, unsigned int code, uint32_t value, uint8_t yes, uint8_t no)
{
	filter->code[filter->count++] = (struct sock_filter){(uint16_t)code, yes, no, value};
}

static void load(struct filter *filter, size_t offset)
{
	put(filter, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void end(struct filter *filter, uint32_t action)
{
	put(filter, BPF_RET | BPF_K, action, 0, 0);
}

static void deny(struct filter *filter)
{
	end(filter, SECCOMP_RET_ERRNO | EPERM);
}

/* What follows, @count instructions, is for this call alone. */
static void for_call(struct filter *filter, int number, uint8_t count)
{
	put(filter, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, count);
}

/* The lower half, which is all that the kernel reads of the arguments that are looked at: this
 * machine is little-endian. */
static void load_argument(struct filter *filter, size_t number)
{
	load(filter, offsetof(struct seccomp_data, args[0]) + 8 * number);
}

/* With the argument loaded: @value may be, nothing else; or the other way round. */
static void only(struct filter *filter, uint32_t value)
{
	put(filter, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
	end(filter, SECCOMP_RET_ALLOW);
	deny(filter);
}

/* What follows is for this call alone: with any of @values as its second argument it is denied. */
static void never_with(struct filter *filter, int number, const uint32_t *values, uint8_t count)
{
	for_call(filter, number, (uint8_t)(count + 3));
	load_argument(filter, 1);
	for (uint8_t i = 0; i < count; i++)
		put(filter, BPF_JMP | BPF_JEQ | BPF_K, values[i], (uint8_t)(count - 1 - i),
		    i == count - 1);
	deny(filter);
	end(filter, SECCOMP_RET_ALLOW);
}

static void write_filter(struct filter *filter)
{
	const uint32_t pid = (uint32_t)getpid();

	load(filter, offsetof(struct seccomp_data, arch));
	put(filter, BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 1, 0);
	end(filter, SECCOMP_RET_KILL_PROCESS);
	load(filter, offsetof(struct seccomp_data, nr));
#ifdef __x86_64__
	put(filter, BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1);
	end(filter, SECCOMP_RET_ERRNO | ENOSYS);
#endif
	for (size_t i = 0; i < sizeof(denied) / sizeof(*denied); i++) {
		for_call(filter, denied[i], 1);
		deny(filter);
	}
	/* Its flags lie in memory: the C library takes clone() in its place. */
#ifdef SYS_clone3
	for_call(filter, SYS_clone3, 1);
	end(filter, SECCOMP_RET_ERRNO | ENOSYS);
#endif
	for (size_t i = 0; i < sizeof(own_alone) / sizeof(*own_alone); i++) {
		for_call(filter, own_alone[i], 4);
		load_argument(filter, 0);
		only(filter, pid);
	}
	/* 0 is this process, too. */
	for_call(filter, SYS_prlimit64, 5);
	load_argument(filter, 0);
	put(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
	put(filter, BPF_JMP | BPF_JEQ | BPF_K, pid, 0, 1);
	end(filter, SECCOMP_RET_ALLOW);
	deny(filter);
	for_call(filter, SYS_socket, 4);
	load_argument(filter, 0);
	only(filter, AF_UNIX);
	never_with(filter, SYS_ioctl, ioctls, sizeof(ioctls) / sizeof(*ioctls));
	never_with(filter, SYS_fcntl, owners, sizeof(owners) / sizeof(*owners));
	/* Threads. */
	for_call(filter, SYS_clone, 5);
	load_argument(filter, 0);
	put(filter, BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 1, 0);
	put(filter, BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0);
	deny(filter);
	end(filter, SECCOMP_RET_ALLOW);
	/* Every other call. */
	end(filter, SECCOMP_RET_ALLOW);
}

int filter_calls(const char **why, struct tmesh_error *err)
{
	struct filter filter = {.count = 0};
	struct sock_fprog program = {.filter = filter.code};
	const uint32_t action = SECCOMP_RET_KILL_PROCESS;
	long rc;

	if (!OWN_ARCH) {
		*why = "seccomp is not used on this architecture: the engine can make every system "
		       "call";
		return 0;
	}
	if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action)) {
		*why = "this kernel has no seccomp: the engine can make every system call";
		return 0;
	}
	write_filter(&filter);
	program.len = filter.count;
	/* Nothing of this process is a secret to itself: no slower branches for that. */
	rc = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
		     SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
	if (rc < 0)
		return tmesh_fail_errno(err, "keeping the engine from system calls by seccomp");
	if (rc)
		return tmesh_fail(
			err, -EBUSY,
			"keeping the engine from system calls by seccomp: thread %ld has a "
			"filter of its own",
			rc);
	return 0;
}
