// SPDX-License-Identifier: MIT
/*
 * seccomp: the process makes the system calls that are listed here, and no other, in all its
 * threads. The list is from traces of both engines' suites. A call of Linux 5.1 and later that is
 * not listed fails with ENOSYS, as on an older kernel, so that libraries do without it. Any other
 * call fails with EPERM.
 */
#include <asm/ioctls.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
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
#define OWN_ARCH 0 /* an architecture without a filter */
#endif

#define X32 0x40000000
#define MAX_CODE 1024
/* From this number on, all architectures have the same numbers (pidfd_send_signal, Linux 5.1). */
#define FIRST_COMMON 424

/* System calls that are allowed with any arguments. */
static const int allowed[] = {
	/* Own memory. */
	SYS_mmap,
	SYS_munmap,
	SYS_mprotect,
	SYS_mremap,
	SYS_madvise,
	SYS_msync,
	SYS_mincore,
	SYS_brk,
	SYS_memfd_create,
	SYS_ftruncate,
	SYS_fallocate,
	SYS_membarrier,
#ifdef SYS_mseal
	SYS_mseal,
#endif
	/* Open descriptors. For openat() see below. */
	SYS_read,
	SYS_write,
	SYS_readv,
	SYS_writev,
	SYS_pread64,
	SYS_pwrite64,
	SYS_preadv,
	SYS_pwritev,
	SYS_lseek,
	SYS_close,
#ifdef SYS_close_range
	SYS_close_range,
#endif
	SYS_dup,
	SYS_dup3,
	SYS_pipe2,
	SYS_eventfd2,
	SYS_fadvise64,
	SYS_fstatfs,
	SYS_getdents64,
	/* Inspection of paths. */
	SYS_newfstatat,
	SYS_fstat,
	SYS_statx,
	SYS_statfs,
	SYS_faccessat,
#ifdef SYS_faccessat2
	SYS_faccessat2,
#endif
	SYS_readlinkat,
	SYS_getcwd,
	/* Existing sockets and own listeners. */
	SYS_accept4,
	SYS_recvfrom,
	SYS_recvmsg,
	SYS_sendmsg,
	SYS_shutdown,
	SYS_getsockopt,
	/* Waiting. */
	SYS_ppoll,
	SYS_pselect6,
	SYS_epoll_create1,
	SYS_epoll_ctl,
	SYS_epoll_pwait,
#ifdef SYS_epoll_pwait2
	SYS_epoll_pwait2,
#endif
	SYS_futex,
#ifdef SYS_futex_waitv
	SYS_futex_waitv,
#endif
	SYS_nanosleep,
	SYS_clock_nanosleep,
	SYS_clock_gettime,
	SYS_clock_getres,
	SYS_gettimeofday,
	SYS_restart_syscall,
	/* Threads. For clone(), which starts one, see below. */
	SYS_set_robust_list,
	SYS_rseq,
	SYS_sched_yield,
	SYS_sched_getaffinity,
	SYS_sched_get_priority_max,
	SYS_sched_get_priority_min,
	SYS_getcpu,
	SYS_exit,
	SYS_exit_group,
	/* Own signals. */
	SYS_rt_sigaction,
	SYS_rt_sigprocmask,
	SYS_rt_sigreturn,
	SYS_rt_sigtimedwait,
	SYS_rt_sigsuspend,
	SYS_sigaltstack,
	/* The process itself and the machine. */
	SYS_getpid,
	SYS_gettid,
	SYS_getppid,
	SYS_getuid,
	SYS_geteuid,
	SYS_getgid,
	SYS_getegid,
	SYS_getrusage,
	SYS_getrandom,
	SYS_sysinfo,
	SYS_uname,
#ifdef __x86_64__
	/* Older forms of these calls. */
	SYS_stat,
	SYS_lstat,
	SYS_access,
	SYS_readlink,
	SYS_getdents,
	SYS_dup2,
	SYS_pipe,
	SYS_poll,
	SYS_select,
	SYS_epoll_wait,
	SYS_pause,
	SYS_time,
	SYS_getrlimit,
	SYS_arch_prctl,
#endif
};

/* Constants that some headers of prctl() lack: names of mappings; lengths of vectors. */
#define VMA 0x53564d41
#define SVE_GET_VL 51
#define SME_GET_VL 64
static const uint32_t prctls[] = {PR_SET_NAME, PR_GET_NAME, VMA, SVE_GET_VL, SME_GET_VL};

static const uint32_t fcntls[] = {
	F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD,	F_SETFD,     F_GETFL,
	F_SETFL, F_GETPIPE_SZ,	  F_SETPIPE_SZ, F_GET_SEALS, F_ADD_SEALS,
};

static const uint32_t ioctls[] = {TCGETS, FIONREAD, FIONBIO, FIOCLEX};

/* ioctls of the module, by its magic number. Those that list regions (7, 8) or concern kept ones
 * (0x16 to 0x19) are left out: they show memory of other processes. */
#define MODULE 0xe700u
static const uint32_t module_ioctls[] = {
	MODULE | 0x00, MODULE | 0x01, MODULE | 0x02, MODULE | 0x03, MODULE | 0x04,
	MODULE | 0x05, MODULE | 0x06, MODULE | 0x09, MODULE | 0x0a, MODULE | 0x0b,
	MODULE | 0x0c, MODULE | 0x0d, MODULE | 0x0e, MODULE | 0x0f, MODULE | 0x12,
	MODULE | 0x13, MODULE | 0x14, MODULE | 0x15, MODULE | 0x1a,
};

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

#define NAMESPACES                                                                     \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | \
	 CLONE_NEWPID | CLONE_NEWNET)
/* O_TMPFILE contains the bit of O_DIRECTORY, which stays allowed. */
#define CHANGES (O_ACCMODE | O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY))

struct filter {
	struct sock_filter code[MAX_CODE];
	unsigned short count;
};

static void filter_put(struct filter *filter, unsigned int code, uint32_t value, uint8_t yes,
		       uint8_t no)
{
	filter->code[filter->count++] = (struct sock_filter){(uint16_t)code, yes, no, value};
}

static void load(struct filter *filter, size_t offset)
{
	filter_put(filter, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void filter_end(struct filter *filter, uint32_t action)
{
	filter_put(filter, BPF_RET | BPF_K, action, 0, 0);
}

static void allow(struct filter *filter)
{
	filter_end(filter, SECCOMP_RET_ALLOW);
}

static void deny(struct filter *filter)
{
	filter_end(filter, SECCOMP_RET_ERRNO | EPERM);
}

/* Begin the rules for one call. Return the jump, for end_of(). */
static unsigned short filter_begin(struct filter *filter, int number)
{
	filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 0);
	return (unsigned short)(filter->count - 1);
}

/* End these rules: other calls jump from @jump to here. The accumulator still has their number. */
static void end_of(struct filter *filter, unsigned short jump)
{
	filter->code[jump].jf = (uint8_t)(filter->count - jump - 1);
}

/* Load the lower half of an argument; the machine is little-endian. The kernel reads only that half
 * of the arguments that are checked. */
static void load_argument(struct filter *filter, size_t number)
{
	load(filter, offsetof(struct seccomp_data, args[0]) + 8 * number);
}

/* Allow the loaded argument if it is one of @values. */
static void allow_any(struct filter *filter, const uint32_t *values, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, values[i], 0, 1);
		allow(filter);
	}
}

static void only_any(struct filter *filter, int number, size_t argument, const uint32_t *values,
		     size_t count)
{
	unsigned short jump = filter_begin(filter, number);

	load_argument(filter, argument);
	allow_any(filter, values, count);
	deny(filter);
	end_of(filter, jump);
}

/* Allow a call if its argument has none of these bits. */
static void without_bits(struct filter *filter, int number, size_t argument, uint32_t bits)
{
	unsigned short jump = filter_begin(filter, number);

	load_argument(filter, argument);
	filter_put(filter, BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
	deny(filter);
	allow(filter);
	end_of(filter, jump);
}

static void write_ioctls(struct filter *filter)
{
	unsigned short jump = filter_begin(filter, SYS_ioctl);

	load_argument(filter, 1);
	allow_any(filter, ioctls, COUNT(ioctls));
	allow_any(filter, module_ioctls, COUNT(module_ioctls));
	deny(filter);
	end_of(filter, jump);
}

/* Allow clone() for threads only. The flags of clone3() are in memory, which a filter cannot read,
 * so it fails with ENOSYS and the C library uses clone(). */
static void write_threads(struct filter *filter)
{
	unsigned short jump = filter_begin(filter, SYS_clone);

	load_argument(filter, 0);
	filter_put(filter, BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 1, 0);
	filter_put(filter, BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0);
	deny(filter);
	allow(filter);
	end_of(filter, jump);
}

/* Allow pairs of connected sockets, which reach no other process. A datagram socket could send to
 * any address. */
static void write_sockets(struct filter *filter)
{
	static const uint32_t types[] = {SOCK_STREAM, SOCK_SEQPACKET};
	unsigned short jump = filter_begin(filter, SYS_socketpair);

	load_argument(filter, 0);
	filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0);
	deny(filter);
	load_argument(filter, 1);
	filter_put(filter, BPF_ALU | BPF_AND | BPF_K, (uint32_t) ~(SOCK_CLOEXEC | SOCK_NONBLOCK), 0,
		   0);
	allow_any(filter, types, COUNT(types));
	deny(filter);
	end_of(filter, jump);
	/* Allow no address: check both halves of the pointer. */
	jump = filter_begin(filter, SYS_sendto);
	load_argument(filter, 4);
	filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
	deny(filter);
	load(filter, offsetof(struct seccomp_data, args[4]) + 4);
	filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
	deny(filter);
	allow(filter);
	end_of(filter, jump);
}

/* Allow these for this process alone, or for the calling thread (0). */
static void write_own(struct filter *filter)
{
	const uint32_t own[] = {(uint32_t)getpid(), 0};

	only_any(filter, SYS_kill, 0, own, 1);
	only_any(filter, SYS_tgkill, 0, own, 1);
	only_any(filter, SYS_prlimit64, 0, own, 2);
	only_any(filter, SYS_sched_setaffinity, 0, own + 1, 1);
	only_any(filter, SYS_sched_getscheduler, 0, own, 2);
	only_any(filter, SYS_sched_getparam, 0, own, 2);
}

static void write_filter(struct filter *filter)
{
	load(filter, offsetof(struct seccomp_data, arch));
	filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 1, 0);
	filter_end(filter, SECCOMP_RET_KILL_PROCESS);
	load(filter, offsetof(struct seccomp_data, nr));
#ifdef __x86_64__
	filter_put(filter, BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1);
	filter_end(filter, SECCOMP_RET_ERRNO | ENOSYS);
#endif
	/* Every message makes one of these calls, so they come first. The kernel caches only calls
	 * whose arguments are not checked. */
	write_sockets(filter);
	for (size_t i = 0; i < COUNT(allowed); i++) {
		filter_put(filter, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed[i], 0, 1);
		allow(filter);
	}
	without_bits(filter, SYS_openat, 2, CHANGES);
#ifdef SYS_open
	without_bits(filter, SYS_open, 1, CHANGES);
#endif
	only_any(filter, SYS_fcntl, 1, fcntls, COUNT(fcntls));
	only_any(filter, SYS_prctl, 0, prctls, COUNT(prctls));
	write_ioctls(filter);
	write_threads(filter);
	write_own(filter);
	filter_put(filter, BPF_JMP | BPF_JGE | BPF_K, FIRST_COMMON, 0, 1);
	filter_end(filter, SECCOMP_RET_ERRNO | ENOSYS);
	deny(filter);
}

int filter_calls(struct tmesh_error *err)
{
	static struct filter filter;
	struct sock_fprog program = {.filter = filter.code};
	const uint32_t action = SECCOMP_RET_KILL_PROCESS;
	long rc;

	if (!OWN_ARCH)
		return tmesh_fail(err, -ENOTSUP,
				  "the filter of system calls is for x86-64 and aarch64: here the "
				  "engine could make every system call");
	if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action))
		return tmesh_fail(err, -ENOTSUP,
				  "this kernel has no seccomp: the engine could make every system "
				  "call");
	filter.count = 0;
	write_filter(&filter);
	program.len = filter.count;
	/* SPEC_ALLOW: the process has no secrets from itself, so it does without slower
	 * branches. */
	rc = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
		     SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
	if (rc < 0)
		return tmesh_fail_errno(err, "keeping the engine from system calls by seccomp");
	if (rc)
		return tmesh_fail(err, -EBUSY,
				  "keeping the engine from system calls by seccomp: thread %ld has "
				  "a filter of its own",
				  rc);
	return 0;
}
