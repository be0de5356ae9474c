// SPDX-License-Identifier: MIT
/* Lists of regions, and of who holds one, where strangers hold what is called a region and is none.
 */
#include <sched.h>
#include <sys/mount.h>

#include "memfd.h"
#include "strangers.h"

static bool put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	close(fd);
	return done;
}

/* A pipe or a file with a name that /proc shows as a region's. It is at the top of a file system
 * that is not mounted any more. Any user may have one who may make namespaces. Return: its
 * descriptor, or -1. */
static int hold_false_region(mode_t type)
{
	char dir[512], path[600], map[32];
	int fd;
	uid_t uid = geteuid();
	gid_t gid = getegid();

	snprintf(dir, sizeof(dir), "%s/false", unit_runtime_dir());
	snprintf(path, sizeof(path), "%s/memfd:tmesh:1:0123456789abcdef:1000:false", dir);
	if ((mkdir(dir, 0700) && errno != EEXIST) || unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return -1;
	snprintf(map, sizeof(map), "0 %u 1", uid);
	if (!put("/proc/self/uid_map", map) || !put("/proc/self/setgroups", "deny"))
		return -1;
	snprintf(map, sizeof(map), "0 %u 1", gid);
	if (!put("/proc/self/gid_map", map) || mount("false", dir, "tmpfs", 0, NULL) ||
	    mknod(path, type | 0600, 0))
		return -1;
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	return umount2(dir, MNT_DETACH) ? -1 : fd;
}

/* A search for regions opens no file that merely has a region's name, for that could alert the
 * server of that file. */
static void see_false_region(mode_t type)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	int pair[2], status, fd, notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	struct tmesh_region_info *infos;
	char path[64];
	size_t count;
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	pid = fork();
	if (pid == 0) {
		close(pair[0]);
		fd = hold_false_region(type);
		if (write(pair[1], &fd, sizeof(fd)) != sizeof(fd) || read(pair[1], &fd, 1))
			_exit(1);
		_exit(0);
	}
	close(pair[1]);
	assert_int_equal(read(pair[0], &fd, sizeof(fd)), sizeof(fd));
	assert_true(fd >= 0);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
	assert_true(inotify_add_watch(notify, path, IN_OPEN) >= 0);
	assert_ok(tmesh_list(ctx, &infos, &count, err));
	free(infos);
	assert_int_equal(opens_of(notify), 0);
	close(notify);
	close(pair[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	tmesh_ctx_unref(ctx);
}

static void test_false_region(void **state)
{
	see_false_region(S_IFIFO);
	see_false_region(S_IFREG);
}

/* Memory that is called a region and is none, or is called as a region is that is another file. */
static void test_false_names(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct tmesh_holder_info *holders;
	struct tmesh_region_info *infos;
	struct tmesh_region *region = new_region(ctx, 10);
	int none = memfd_create("tmesh:1:nonsense", MFD_CLOEXEC), twin;
	char name[64], token[TMESH_TOKEN_SIZE];
	size_t count;

	snprintf(name, sizeof(name), "tmesh:1:%016llx:a:", (unsigned long long)region->id);
	twin = memfd_create(name, MFD_CLOEXEC);
	assert_true(none >= 0 && twin >= 0);
	assert_ok(tmesh_list(ctx, &infos, &count, err));
	for (size_t i = 0; i < count; i++)
		assert_int_not_equal(infos[i].id, 0);
	free(infos);
	/* One of both, whichever is seen first, and not what each of them has. */
	assert_ok(tmesh_holders(ctx, region->id, &holders, &count, err));
	assert_int_equal(unit_own_holders(holders, count), 1);
	free(holders);
	close(twin);
	/* Nothing that was looked at stays open. */
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	for (int i = 0; i < 2; i++) {
		unsigned int before = unit_open_fds();

		assert_ok(tmesh_list(ctx, &infos, &count, err));
		free(infos);
		assert_ok(tmesh_holders(ctx, region->id, &holders, &count, err));
		assert_int_equal(unit_own_holders(holders, count), 1);
		assert_int_equal(holders[0].rights, TMESH_READ | TMESH_WRITE);
		free(holders);
		assert_int_equal(unit_open_fds(), before);
	}
	close(none);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* A process may not ask that another user's file keeps its time of access. It is looked at all the
 * same. */
static void test_others_file(void **state)
{
	int file = memfd_create("of root", MFD_CLOEXEC), dir;
	pid_t pid = fork();

	if (pid == 0) {
		if (setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 1))
			unit_leave(2);
		dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		unit_leave(dir < 0 || tmesh_proc_open(dir, file) < 0);
	}
	close(file);
	join_child(pid);
}

static bool has_namespaces(void)
{
	pid_t child = fork();
	int status;

	if (child == 0)
		_exit(unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0);
	return waitpid(child, &status, 0) == child && !status;
}

int main(void)
{
	const struct CMUnitTest tests[] = {TEST(test_false_names)};
	const struct CMUnitTest namespaces[] = {TEST(test_false_region)};
	const struct CMUnitTest users[] = {TEST(test_others_file)};
	int failed;

	mkdir(unit_runtime_dir(), 0700);
	failed = cmocka_run_group_tests_name("holders_strangers", tests, NULL, NULL);
	failed += geteuid() ? UNIT_SKIP(users, "not root")
			    : cmocka_run_group_tests_name("users", users, NULL, NULL);
	if (has_namespaces())
		return failed + cmocka_run_group_tests_name("namespaces", namespaces, NULL, NULL);
	return failed + UNIT_SKIP(namespaces, "no user namespaces here");
}
