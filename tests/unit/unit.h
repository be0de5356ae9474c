/* SPDX-License-Identifier: MIT */
/* Shared by the unit tests: cmocka, a context, and short checks of results. */
#ifndef TMESH_UNIT_H
#define TMESH_UNIT_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "internal.h"
#include "unit_group.h"

/* The call fails with @code and says so in @err, with @word somewhere in the message. */
#define assert_refused(call, code_, word)                                           \
	do {                                                                        \
		struct tmesh_error err_ = {0}, *err = &err_;                        \
                                                                                    \
		assert_int_equal(call, code_);                                      \
		assert_int_equal(err->code, code_);                                 \
		if (!strstr(err->message, word))                                    \
			fail_msg("\"%s\" does not say \"%s\"", err->message, word); \
	} while (0)

#define assert_ok(call)                                                        \
	do {                                                                   \
		struct tmesh_error err_ = {0}, *err = &err_;                   \
                                                                               \
		if (call)                                                      \
			fail_msg("%s: %d %s", #call, err->code, err->message); \
	} while (0)

/* TMESH_BACKEND names the backend of the tests; without it the module is used if it is there. A
 * test asks this where backends differ. */
static inline bool unit_on_kernel(void)
{
	const char *name = getenv("TMESH_BACKEND");

	return name && *name ? !strcmp(name, "kernel") : !access("/dev/tmesh", R_OK | W_OK);
}

/* Return the runtime directory of this process, also if no variable names it. */
static inline const char *unit_runtime_dir(void)
{
	static char *dir;
	const char *own = getenv("TMESH_RUNTIME_DIR"), *session = getenv("XDG_RUNTIME_DIR"),
		   *temporary = getenv("TMPDIR");

	if (own && *own)
		return own;
	free(dir);
	if ((session && *session
		     ? asprintf(&dir, "%s/tmesh", session)
		     : asprintf(&dir, "%s/tmesh-%u", temporary && *temporary ? temporary : "/tmp",
				(unsigned int)geteuid())) < 0)
		abort();
	return dir;
}

/* Tests of the program's group, in place of the function's head: alone, with the file's setup() and
 * teardown(), and with a context. */
#define UNIT(test) UNIT_ADD(test, NULL, NULL)
#define UNIT_SET_UP(test) UNIT_ADD(test, setup, teardown)
#define UNIT_CTX(test) UNIT_ADD(test, unit_ctx_setup, unit_ctx_teardown)

/* Entries of a table, for programs with more groups: alone, with the file's setup() and teardown(),
 * and with a context. */
#define TEST(test) cmocka_unit_test(test)
#define TEST_SET_UP(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define TEST_CTX(test) cmocka_unit_test_setup_teardown(test, unit_ctx_setup, unit_ctx_teardown)

/* For groups of tests that are about how memfds are handed over. */
static inline int unit_memfd_setup(void **state)
{
	return setenv("TMESH_BACKEND", "memfd", 1);
}

/* Instead of running a group: cmocka cannot say why it skips. */
static inline int unit_skip(const struct CMUnitTest *tests, size_t count, const char *why)
{
	printf("1..%zu\n", count);
	for (size_t i = 0; i < count; i++)
		printf("ok %zu - %s # SKIP %s\n", i + 1, tests[i].name, why);
	return 0;
}

#define UNIT_SKIP(group, why) unit_skip(group, sizeof(group) / sizeof((group)[0]), why)
#define UNIT_SKIP_ALL(why) unit_skip(unit_tests, unit_count, why)

static inline unsigned int unit_open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* The same once a context's threads have closed the descriptors of an earlier test. */
static inline unsigned int unit_open_fds_at_rest(void)
{
	unsigned int count = unit_open_fds(), last;
	int same = 0;

	while (same < 10) {
		usleep(10000);
		last = count;
		count = unit_open_fds();
		same = count == last ? same + 1 : 0;
	}
	return count;
}

/* Move this process's own entries among a region's holders to the front. Other suites look at the
 * regions of the machine: they open each for a moment, and hold it then. */
static inline size_t unit_own_holders(struct tmesh_holder_info *holders, size_t count)
{
	size_t own = 0;

	for (size_t i = 0; i < count; i++)
		if (holders[i].pid == getpid())
			holders[own++] = holders[i];
	return own;
}

/* End a child. Not by exit: what it inherited from other threads would be its leak to
 * valgrind, which does not look at other programs. */
_Noreturn static inline void unit_leave(int status)
{
	char command[16];

	snprintf(command, sizeof(command), "exit %d", status);
	execl("/bin/sh", "sh", "-c", command, NULL);
	_exit(127);
}

/* A child says by its exit status which of its checks failed first. */
#define CHECK(condition)                                \
	do {                                            \
		if (!(condition))                       \
			unit_leave(__LINE__ % 250 + 1); \
	} while (0)

static inline void join_child(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	if (status)
		fail_msg("the child ended with status %#x", (unsigned int)status);
}

static inline bool readable(int fd, int ms)
{
	struct pollfd poller = {.fd = fd, .events = POLLIN};

	return poll(&poller, 1, ms) == 1;
}

static inline int memfd(size_t bytes, int seals)
{
	int fd = memfd_create("strange", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

/* Count the files of the runtime directory with @part in their name. */
static inline unsigned int unit_runtime_files(const char *part)
{
	DIR *dir = opendir(unit_runtime_dir());
	unsigned int count = 0;
	struct dirent *entry;

	while ((entry = readdir(dir)))
		count += strstr(entry->d_name, part) != NULL;
	closedir(dir);
	return count;
}

static inline struct tmesh_ctx *new_ctx(void)
{
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	return ctx;
}

static inline struct tmesh_stats ctx_stats(struct tmesh_ctx *ctx)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	assert_int_equal(tmesh_stats(ctx, &stats), 0);
	return stats;
}

static inline struct tmesh_region *new_region(struct tmesh_ctx *ctx, uint64_t bytes)
{
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(ctx, bytes, NULL, &region, err));
	return region;
}

static inline void *map_region(struct tmesh_region *region, uint32_t rights)
{
	void *addr;

	assert_ok(tmesh_region_map(region, rights, &addr, err));
	return addr;
}

static inline int unit_ctx_setup(void **state)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts)};

	return tmesh_ctx_open(&opts, (struct tmesh_ctx **)state, NULL);
}

static inline int unit_memfd_ctx_setup(void **state)
{
	return unit_memfd_setup(state) || unit_ctx_setup(state);
}

static inline int unit_ctx_teardown(void **state)
{
	tmesh_ctx_unref(*state);
	return 0;
}

static inline char *link_path(char path[512], const char *token)
{
	snprintf(path, 512, "%s/%.32s.index", unit_runtime_dir(), token + 5);
	return path;
}

#endif /* TMESH_UNIT_H */
