/* SPDX-License-Identifier: MIT */
/*
 * The framework that the test programs of this folder share.
 *
 * A program is a file of TEST()s. Every test runs in a process of its own, so that its descriptors,
 * mappings, users and namespaces end with it. A test fails if it leaves a region in the module.
 * Afterwards the module's limits and the mode of /dev/tmesh, which is 0666 for tests, are restored.
 * Results are TAP on stdout.
 *
 * Environment
 *	TMESH_TEST_LENGTH	"full" for long races and fuzzing, "brief" for a third of what is
 *				short, else short
 *	TMESH_KO		the module's file, to reload it
 *	TMESH_CASE		the number of the one test to run, as TAP has it; 0 is none
 */
#ifndef TMESH_KSELFTEST_T_H
#define TMESH_KSELFTEST_T_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/tmesh.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define KB (1ull << 10)
#define MB (1ull << 20)
#define GB (1ull << 30)
#define PAGE 4096ull
#define HUGE (2 * MB)

#define R_READ TMESH_RIGHT_READ
#define R_WRITE TMESH_RIGHT_WRITE
#define R_MANAGE TMESH_RIGHT_MANAGE
#define R_ALL (R_READ | R_WRITE | R_MANAGE)

/* Tests and checks */

#define TEST(ident, title)                                         \
	static void test_##ident(void);                            \
	__attribute__((constructor)) static void add_##ident(void) \
	{                                                          \
		t_add(title, test_##ident);                        \
	}                                                          \
	static void test_##ident(void)
/* Make a test of one call. */
#define TEST_CALL(ident, title, call) \
	TEST(ident, title)            \
	{                             \
		call;                 \
	}

void t_add(const char *title, void (*fn)(void));
int t_main(void);

/* A failed CHECK is printed and the test goes on. A failed REQUIRE ends the test. */
#define CHECK(cond) t_check(!!(cond), #cond, __FILE__, __LINE__)
#define CHECK_EQ(got, want) \
	t_check_eq((long long)(got), (long long)(want), #got, __FILE__, __LINE__)
#define CHECK_OK(call) t_check_ok((long)(call), #call, __FILE__, __LINE__)
#define CHECK_ERR(call, want) t_check_err((long)(call), want, #call, __FILE__, __LINE__)
#define REQUIRE(cond)                                                      \
	do {                                                               \
		if (!(cond))                                               \
			t_give_up("is not so", #cond, __FILE__, __LINE__); \
	} while (0)
#define REQUIRE_OK(call)                                                              \
	({                                                                            \
		long r_ = (long)(call);                                               \
		if (r_ == -1)                                                         \
			t_give_up(strerrorname_np(errno), #call, __FILE__, __LINE__); \
		r_;                                                                   \
	})

bool t_check(bool ok, const char *what, const char *file, int line);
bool t_check_eq(long long got, long long want, const char *what, const char *file, int line);
bool t_check_ok(long ret, const char *what, const char *file, int line);
bool t_check_err(long ret, int want, const char *what, const char *file, int line);
void t_give_up(const char *but, const char *what, const char *file, int line)
	__attribute__((noreturn));

/* Print a line of explanation. */
void t_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* End the test as skipped. The reason is part of the result. */
void t_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Test whether a check of this test has failed so far. */
bool t_failed(void);

bool t_full(void);
/*
 * Return a number of rounds or seconds by TMESH_TEST_LENGTH. "brief" is a third of @some, at least
 * one.
 */
long t_length(long some, long full);

/* Processes */

/* Run the block in a child whose failed checks count here: T_CHILD(pid) { ... } */
#define T_CHILD(pid) for (pid = t_fork(); !pid; t_exit())
/* The same, and reap the child: T_ALONE() { ... } */
#define T_ALONE() for (; t_alone(); t_exit())
pid_t t_fork(void);
/* Fork. Return true in the child; in the parent, reap it first and return false. */
bool t_alone(void);
void t_exit(void) __attribute__((noreturn));
/* Reap a child. The test fails if it did not end by itself. */
void t_wait(pid_t pid);

/* Become a plain user for good, in the groups @gid and, unless it is 0, @extra. */
void t_become(uid_t uid, gid_t gid, gid_t extra);

/* Make a socket pair to take turns on, and to pass descriptors over. */
void t_pair(int sv[2]);
void t_say(int sock);
void t_hear(int sock);
void t_send_fd(int sock, int fd);
int t_recv_fd(int sock);

/* Touch a byte. Return 0, or the signal that this raised. */
int t_read(const volatile void *p);
int t_write(volatile void *p, unsigned char value);
/* Install the handlers that t_read() and t_write() need. t_main() does it for tests. */
void t_catch_faults(void);

/* Queries about the system */

int t_count_fds(void);
/* Return a field of the smaps entry of the mapping at @p, in kB; -1 if there is none. */
long t_smaps(const void *p, const char *field);
/* Touch the first @bytes at @p. Return how many kB of them are mapped by PMDs. */
long t_pmd_mapped(const volatile void *p, size_t bytes);
long t_meminfo(const char *field);
/* Find a line "@key value" or "@key: value" in a file. Return false if there is none. */
bool t_file_value(const char *path, const char *key, char *value, size_t room);
bool t_write_file(const char *path, const char *text);
bool t_read_file(const char *path, char *text, size_t room);
bool t_kernel_at_least(int major, int minor);
double t_now(void);
unsigned int t_random(unsigned int *seed);

/*
 * tmesh
 *
 * Like system calls, these return -1 with errno. On errors t_dev(), t_caps() and t_info() end the
 * test instead.
 */

int t_dev(void);
struct tmesh_caps_query t_caps(int dev);
bool t_has_huge(int dev);
int t_create(int dev, __u64 bytes, __u32 flags);
int t_derive(int handle, __u32 rights, __u32 flags);
int t_token(int handle, __u32 rights, __u8 token[TMESH_TOKEN_BYTES]);
int t_open(int dev, const __u8 token[TMESH_TOKEN_BYTES], __u32 rights, __u32 flags);
int t_seal(int handle);
int t_revoke(int handle);
int t_export(int handle, __u64 offset, __u64 bytes, __u32 flags);
int t_sync_cpu(int dmabuf, __u64 flags);
/* Describe whole pages of a region, and make a view of such parts. */
struct tmesh_extent t_extent(int handle, __u64 first, __u64 pages);
int t_gather(int dev, const struct tmesh_extent *extents, __u32 count, __u32 rights);
struct tmesh_info t_info(int handle);
/* Drop the kept names of all users, as root. */
void t_drop_kept(void);
/* Return the number of regions that TMESH_LIST shows to the caller. */
int t_listed(int dev);
void *t_map(int fd, size_t bytes, int prot);
/* Read or set /proc/sys/dev/tmesh/@name. */
unsigned long long t_limit(const char *name);
void t_set_limit(const char *name, unsigned long long value);

#endif
