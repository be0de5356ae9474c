// SPDX-License-Identifier: MIT
/* Remove inherited things that an engine does not need: descriptors, variables, a readable
 * terminal, capabilities. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "process.h"

/* Variables that stay, by their prefixes. */
static const char *const variables[] = {
	"GGML_", "GOMP_", "LANG=", "LC_", "OMP_", "ORT_", "TMESH_", "TMPDIR=", "XDG_RUNTIME_DIR=",
};

static bool stays(const char *variable)
{
	for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
		if (!strncmp(variable, variables[i], strlen(variables[i])))
			return true;
	return false;
}

void shed_environment(void)
{
	char **to = environ;

	for (char **at = environ; at && *at; at++) {
		if (stays(*at))
			*to++ = *at;
		else
			/* Overwrite it: the kernel shows this memory in /proc, and a forked child
			 * keeps it. */
			explicit_bzero(*at, strlen(*at));
	}
	if (to)
		*to = NULL;
}

int fill_standard(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			return -1;
	return 0;
}

static int close_between(unsigned int first, unsigned int last)
{
#ifdef SYS_close_range
	if (first > last || !syscall(SYS_close_range, first, last, 0))
		return 0;
#endif
	return -1;
}

/* Close descriptors one by one: kernels before 5.9 have no close_range(). */
static int close_listed(const int *kept, size_t count)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	if (!dir)
		return -1;
	while ((entry = readdir(dir))) {
		int fd = atoi(entry->d_name);
		bool stay = fd <= STDERR_FILENO || fd == dirfd(dir);

		for (size_t i = 0; i < count; i++)
			stay |= kept[i] == fd;
		if (!stay)
			close(fd);
	}
	closedir(dir);
	return 0;
}

static int by_number(const void *left, const void *right)
{
	return *(const int *)left - *(const int *)right;
}

int shed_descriptors(int *kept, size_t count)
{
	unsigned int first = STDERR_FILENO + 1;
	int rc = 0;

	if (count)
		qsort(kept, count, sizeof(*kept), by_number);
	for (size_t i = 0; i < count && !rc; i++) {
		if (kept[i] > (int)first)
			rc = close_between(first, (unsigned int)kept[i] - 1);
		if (kept[i] >= (int)first)
			first = (unsigned int)kept[i] + 1;
	}
	if (!rc)
		rc = close_between(first, ~0U);
	return rc ? close_listed(kept, count) : 0;
}

/* Open the standard error again for writing only. */
static int only_write(int fd)
{
	char path[32];
	struct stat st;
	int own, rc;

	if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR || fstat(fd, &st) ||
	    !(S_ISCHR(st.st_mode) || S_ISREG(st.st_mode)))
		return 0;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = open(path, O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	/* A terminal of another user, as after su. */
	if (own < 0)
		own = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (own < 0)
		return -1;
	rc = fcntl(own, F_SETFL, O_APPEND) || dup2(own, fd) < 0 ? -1 : 0;
	close(own);
	return rc;
}

int shed_terminal(void)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || only_write(STDERR_FILENO))
		return -1;
	close(null);
	/* The standard output may be the supervisor's channel to its parent program: use the error
	 * output. */
	return dup2(STDERR_FILENO, STDOUT_FILENO) < 0 ? -1 : 0;
}

int shed_rights(bool all, struct tmesh_error *err)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
	const struct rlimit no_file = {0, 0};

	/* A core file would write clients' weights to a disk. */
	if (setrlimit(RLIMIT_CORE, &no_file))
		return tmesh_fail_errno(err, "keeping core files from being written");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return tmesh_fail_errno(err, "PR_SET_NO_NEW_PRIVS");
	if (!all)
		return 0;
	/* Without CAP_SETPCAP this fails; then there is nothing to drop. */
	for (int cap = 0; cap <= 63 && !prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); cap++)
		;
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	if (syscall(SYS_capset, &head, none))
		return tmesh_fail_errno(err, "dropping capabilities");
	return 0;
}
