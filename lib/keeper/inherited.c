// SPDX-License-Identifier: MIT
/* A keeper that is started by need gives up the limits and the descriptors of the client that was
 * the first. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client.h"

/* As the service has it (tmesh-keeper.service). */
#define FILES_WANTED 524288
#define IOPRIO_WHO_PROCESS 1

/* Raise a limit. Root may raise the hard limit too; other users have what the client left. */
static void raise_limit(int which, rlim_t wanted)
{
	struct rlimit limit, more = {wanted, wanted};

	getrlimit(which, &limit);
	if (limit.rlim_max < wanted && !setrlimit(which, &more))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(which, &limit);
}

static void reset_scheduling(void)
{
	const struct sched_param usual = {.sched_priority = 0};
	cpu_set_t all;
	int fd;

	sched_setscheduler(0, SCHED_OTHER, &usual);
	setpriority(PRIO_PROCESS, 0, 0);
	syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0);
	memset(&all, 0xff, sizeof(all));
	sched_setaffinity(0, sizeof(all), &all);
	fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (write(fd, "0", 1) != 1)
		errno = 0; /* a user may not lower what the client raised */
	close(fd);
}

bool inherited_reset(void)
{
	struct rlimit cpu;

	/* By its number: glibc has had the call since 2.34 only, and Linux since 5.9. */
	if (syscall(SYS_close_range, 3, ~0u, 0))
		for (int fd = (int)sysconf(_SC_OPEN_MAX); fd > 2; fd--)
			close(fd);
	raise_limit(RLIMIT_FSIZE, RLIM_INFINITY);
	raise_limit(RLIMIT_CPU, RLIM_INFINITY);
	raise_limit(RLIMIT_DATA, RLIM_INFINITY);
	raise_limit(RLIMIT_AS, RLIM_INFINITY);
	raise_limit(RLIMIT_NOFILE, FILES_WANTED);
	reset_scheduling();
	umask(077);
	getrlimit(RLIMIT_CPU, &cpu);
	if (cpu.rlim_max == RLIM_INFINITY)
		return true;
	printf("the kernel would kill it after %llu s of CPU time (RLIMIT_CPU): start it without "
	       "that limit\n",
	       (unsigned long long)cpu.rlim_max);
	return false;
}
