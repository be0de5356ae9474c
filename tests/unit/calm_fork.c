// SPDX-License-Identifier: MIT
/*
 * Linked with what the address sanitizer checks, in front of fork(). The allocator of GCC 12's
 * sanitizer has no handlers for fork(): a child inherits a lock that another thread holds at that
 * moment, and waits for ever. So fork() comes when all other threads sleep, and a child that hangs
 * all the same is ended by a signal.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHILD_LIMIT_S 300
#define ROUNDS 1000

pid_t __real_fork(void);
pid_t __wrap_fork(void);

/* Return the state of a thread as the kernel's letter, or 0 if the thread has ended. */
static char thread_state(const char *tid)
{
	char path[64], text[512];
	const char *end;
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%.16s/stat", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	if (n <= 0)
		return 0;
	text[n] = '\0';
	end = strrchr(text, ')');
	return end && end[1] ? end[2] : 0;
}

static int others_sleep(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int calm = 1;

	if (!dir)
		return 1;
	while (calm && (entry = readdir(dir))) {
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != gettid()) {
			char state = thread_state(entry->d_name);

			calm = !state || strchr("SZX", state);
		}
	}
	closedir(dir);
	return calm;
}

pid_t __wrap_fork(void)
{
	const struct timespec moment = {.tv_nsec = 1000000};
	pid_t child;

	for (int i = 0; i < ROUNDS && !others_sleep(); i++)
		nanosleep(&moment, NULL);
	child = __real_fork();
	if (child == 0)
		alarm(CHILD_LIMIT_S);
	return child;
}
