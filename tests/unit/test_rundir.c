// SPDX-License-Identifier: MIT
/* Runtime directories: which are refused, and what dead producers leave in them. */
#include <stdatomic.h>
#include <sys/un.h>

#include "producer.h"
#include "watch.h"
#include "wire.h"

static bool elevated;
static atomic_uint reads;

/* In place of the C library's: NULL for a program that has more rights than its caller. */
char *secure_getenv(const char *name)
{
	atomic_fetch_add(&reads, 1);
	return elevated ? NULL : getenv(name);
}

/* A relative directory is the one that it was when the context was made, wherever the process has
 * gone since, by the environment too. */
static void test_relative_dir(void **state)
{
	char base[] = "/tmp/tmesh-unit-XXXXXX", before[4096], token[TMESH_TOKEN_SIZE], path[64];
	/* No other run has it, and what a failed run left is not found. */
	const char *here = base + strlen("/tmp/");
	char beside[64];
	char *set = strdup(unit_runtime_dir());
	struct tmesh_region *region, *got;
	struct tmesh_ctx *makers[2], *client;
	struct stat st;

	assert_non_null(getcwd(before, sizeof(before)));
	assert_non_null(mkdtemp(base));
	assert_int_equal(chdir(base), 0);
	makers[0] = context(here, 0);
	snprintf(beside, sizeof(beside), "./%s", here);
	client = context(beside, 0);
	setenv("TMESH_RUNTIME_DIR", here, 1);
	makers[1] = context(NULL, 0);
	setenv("TMESH_RUNTIME_DIR", set, 1);
	assert_int_equal(chdir("/"), 0);
	for (int i = 0; i < 2; i++) {
		assert_ok(tmesh_region_create(makers[i], 10, NULL, &region, err));
		assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
		assert_ok(tmesh_region_open(client, token, TMESH_READ, &got, err));
		tmesh_region_unref(got);
		tmesh_region_unref(region);
		tmesh_ctx_unref(makers[i]);
	}
	tmesh_ctx_unref(client);
	snprintf(path, sizeof(path), "/%s", here);
	assert_int_equal(stat(path, &st), -1);
	snprintf(path, sizeof(path), "%s/%s", base, here);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(rmdir(base), 0);
	/* A working directory that is gone has no path. */
	strcpy(base + strlen(base) - 6, "XXXXXX");
	assert_non_null(mkdtemp(base));
	assert_int_equal(chdir(base), 0);
	assert_int_equal(rmdir(base), 0);
	assert_refused(
		tmesh_ctx_open(&(struct tmesh_ctx_opts){.size = sizeof(struct tmesh_ctx_opts),
							.runtime_dir = "here"},
			       &client, err),
		-ENOENT, "working directory");
	assert_int_equal(chdir(before), 0);
	free(set);
}

static void refused_dir_as(const char *dir, int code, const char *word)
{
	struct tmesh_ctx *ctx = context(dir, 0);
	struct tmesh_region *region = new_region(ctx, 10);
	char token[TMESH_TOKEN_SIZE];

	assert_refused(tmesh_region_token(region, TMESH_READ, token, err), code, word);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

static void refused_dir(const char *dir, const char *word)
{
	refused_dir_as(dir, -EACCES, word);
}

/* The error names the directory that a caller should have looked in, unless the producer answered.
 */
static void test_two_runtime_dirs(void **state)
{
	char base[] = "/tmp/tmesh-unit-XXXXXX", here[64], there[64], token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx, *client;
	struct tmesh_region *region, *got;
	struct tmesh_error told = {0};

	assert_non_null(mkdtemp(base));
	snprintf(here, sizeof(here), "%s/here", base);
	snprintf(there, sizeof(there), "%s/there", base);
	ctx = context(here, 0);
	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	/* Before the directory is there, and when it is. */
	client = context(there, 0);
	for (int i = 0; i < 2; i++) {
		assert_refused(tmesh_region_open(client, token, TMESH_READ, &got, err), -ENOENT,
			       there);
		assert_refused(tmesh_region_open(client, token, TMESH_READ, &got, err), -ENOENT,
			       "XDG_RUNTIME_DIR");
		mkdir(there, 0700);
	}
	tmesh_ctx_unref(client);
	/* By the whole path, also of a relative one. */
	assert_int_equal(chdir(base), 0);
	client = context("there", 0);
	assert_refused(tmesh_region_open(client, token, TMESH_READ, &got, err), -ENOENT, there);
	assert_int_equal(chdir("/"), 0);
	tmesh_ctx_unref(client);
	client = context(here, 0);
	tmesh_region_unref(region);
	assert_int_equal(tmesh_region_open(client, token, TMESH_READ, &got, &told), -ENOENT);
	assert_non_null(strstr(told.message, "its producer lives and has released it"));
	assert_null(strstr(told.message, here));
	tmesh_ctx_unref(client);
	tmesh_ctx_unref(ctx);
	rmdir(here);
	rmdir(there);
	assert_int_equal(rmdir(base), 0);
}

static void test_runtime_dir(void **state)
{
	char base[] = "/tmp/tmesh-unit-XXXXXX", path[512], token[TMESH_TOKEN_SIZE];
	char longest[5000];
	struct tmesh_region *region, *got;
	struct tmesh_ctx *ctx, *client;
	unsigned int before;

	assert_non_null(mkdtemp(base));
	snprintf(path, sizeof(path), "%s/link", base);
	assert_int_equal(symlink("/tmp", path), 0);
	refused_dir(path, "symlink");
	unlink(path);
	close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	refused_dir(path, "no directory");
	unlink(path);
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	refused_dir_as(longest, -ENAMETOOLONG, "path is too long");
	snprintf(path, sizeof(path), "%s/none/here", base);
	refused_dir_as(path, -ENOENT, "No such file or directory; set TMESH_RUNTIME_DIR");
	snprintf(path, sizeof(path), "%s/open", base);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(chmod(path, 0710), 0);
	refused_dir(path, "set TMESH_RUNTIME_DIR to one of your own, or chmod 700");
	if (geteuid() == 0) {
		assert_int_equal(chmod(path, 0700), 0);
		assert_int_equal(chown(path, 65534, 65534), 0);
		refused_dir(path, "another user");
	}
	rmdir(path);
	/* About as long as fits into an address of a socket, for who asks by it. */
	for (int bytes = 70; bytes < 80; bytes++) {
		char link[600];

		snprintf(path, sizeof(path), "%s/%0*d", base, bytes - (int)strlen(base) - 1, 1);
		assert_int_equal(strlen(path), bytes);
		ctx = context(path, 0);
		client = context(path, 0);
		assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
		assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
		snprintf(link, sizeof(link), "%s/%.32s.index", path, token + 5);
		assert_int_equal(unlink(link), 0);
		before = unit_open_fds();
		assert_ok(tmesh_region_open(client, token, TMESH_READ, &got, err));
		tmesh_region_unref(got);
		tmesh_watch_stop(client);
		tmesh_peers_drop(client);
		/* The server's end goes once it has seen that of ours. */
		while (unit_open_fds() != before)
			usleep(1000);
		assert_int_equal(ctx_stats(ctx).tokens_served, 1);
		tmesh_ctx_unref(client);
		tmesh_region_unref(region);
		tmesh_ctx_unref(ctx);
		assert_int_equal(rmdir(path), 0);
	}
	/* Longer than that. */
	snprintf(path, sizeof(path), "%s/%0150d", base, 1);
	ctx = context(path, 0);
	client = context(path, 0);
	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_ok(tmesh_region_open(client, token, TMESH_READ, &got, err));
	tmesh_region_unref(got);
	tmesh_ctx_unref(client);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	/* Its socket went with it, and nothing else is there. */
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(rmdir(base), 0);
}

/* A producer that is killed leaves its socket; the next one to start removes it. */
static void test_sweep(void **state)
{
	struct producer dead = producer_start(), live = producer_start();
	struct tmesh_ctx *ctx = context(NULL, 0);
	char path[512], link[512], unfinished[520], notes[512], token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region;
	unsigned int before;

	producer_end(&dead, SIGKILL);
	assert_true(readlink(link_path(link, dead.token), token, 1) > 0);
	/* Its link leads nowhere, or to the process that has its number now. */
	assert_refused(tmesh_region_open(ctx, dead.token, TMESH_READ, &region, err), -ENOENT,
		       "gone");
	snprintf(path, sizeof(path), "%s/%.32s", unit_runtime_dir(), dead.token + 5);
	assert_int_equal(access(path, F_OK), 0);
	/* Killed while it made another link; and a stranger's file in the same directory. */
	snprintf(unfinished, sizeof(unfinished), "%s.new", path);
	assert_int_equal(symlink("/", unfinished), 0);
	snprintf(notes, sizeof(notes), "%s/notes", unit_runtime_dir());
	close(open(notes, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	tmesh_region_unref(region);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(readlink(link, token, 1), -1);
	assert_int_equal(readlink(unfinished, token, 1), -1);
	assert_int_equal(unlink(notes), 0);
	assert_ok(tmesh_region_open(ctx, live.token, TMESH_READ, &region, err));
	tmesh_region_unref(region);
	before = unit_open_fds();
	tmesh_rundir_sweep(ctx, ctx->memfd.dir);
	assert_int_equal(unit_open_fds(), before);
	producer_end(&live, 0);
	tmesh_ctx_unref(ctx);
}

/* The error reports the lack of descriptors, and blames no directory. */
static void test_no_number(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct rlimit limit, none;
	struct tmesh_error why;
	int dir, rc;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = limit;
	none.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	rc = tmesh_rundir_open(ctx, &dir, &why);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(rc, -EMFILE);
	assert_non_null(strstr(why.message, "RLIMIT_NOFILE"));
	tmesh_ctx_unref(ctx);
}

static void count_sweeps(void *data, enum tmesh_log_level level, const char *message)
{
	*(int *)data += level == TMESH_LOG_INFO && strstr(message, "removed 1 sockets");
	if (strstr(message, "removed 0"))
		fail_msg("%s", message);
}

/* A removed link is reported once. */
static void test_sweep_told(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int told = 0, end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%032x", unit_runtime_dir(), 1);
	assert_int_equal(bind(end, (struct sockaddr *)&address, sizeof(address)), 0);
	close(end);
	for (int i = 0; i < 2; i++) {
		struct tmesh_ctx_opts opts = {
			.size = sizeof(opts), .log = count_sweeps, .log_data = &told};
		char token[TMESH_TOKEN_SIZE];
		struct tmesh_region *region;
		struct tmesh_ctx *ctx;

		assert_ok(tmesh_ctx_open(&opts, &ctx, err));
		assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
		assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
		tmesh_region_unref(region);
		tmesh_ctx_unref(ctx);
		assert_int_equal(told, 1);
	}
}

/* A failed link leaves nothing that stops the next one. */
static void test_link_failed(void **state)
{
	static const char name[] = "00112233445566778899aabbccddee00";
	struct tmesh_ctx *ctx = context(NULL, 0);
	char path[512], unfinished[512];
	int dir;

	snprintf(path, sizeof(path), "%s/%s.index", unit_runtime_dir(), name);
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(tmesh_rundir_link(dir, name, 3), -EISDIR);
	assert_int_equal(rmdir(path), 0);
	/* Nor does anything that lies where it is made become one. */
	snprintf(unfinished, sizeof(unfinished), "%s/%s.new", unit_runtime_dir(), name);
	assert_int_equal(symlink("/", unfinished), 0);
	assert_int_equal(tmesh_rundir_link(dir, name, 3), -EEXIST);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(unlink(unfinished), 0);
	assert_int_equal(tmesh_rundir_link(dir, name, 3), 0);
	assert_int_equal(unlink(path), 0);
	tmesh_ctx_unref(ctx);
}

static void assert_dir(struct tmesh_ctx *ctx, const char *expected)
{
	char path[512];

	assert_ok(tmesh_rundir_path(ctx, path, sizeof(path), err));
	assert_string_equal(path, expected);
}

static void assert_new_dir(const char *expected)
{
	struct tmesh_ctx *ctx = context(NULL, 0);

	assert_dir(ctx, expected);
	tmesh_ctx_unref(ctx);
}

/* Without a setting the library looks at the user's own directories, in their order. */
static void test_presets(void **state)
{
	const char *names[] = {"TMESH_RUNTIME_DIR", "XDG_RUNTIME_DIR", "TMPDIR"};
	struct tmesh_ctx *ctx;
	char *kept[3], own[64];

	for (int i = 0; i < 3; i++) {
		kept[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
		setenv(names[i], "", 1);
	}
	snprintf(own, sizeof(own), "/tmp/tmesh-%u", geteuid());
	assert_new_dir(own);
	setenv("TMPDIR", "/var/tmp", 1);
	snprintf(own, sizeof(own), "/var/tmp/tmesh-%u", geteuid());
	ctx = context(NULL, 0);
	assert_dir(ctx, own);
	setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
	assert_new_dir("/run/user/7/tmesh");
	setenv("TMESH_RUNTIME_DIR", "/here", 1);
	assert_new_dir("/here");
	/* An older context has the directory that it had. */
	assert_dir(ctx, own);
	for (int i = 0; i < 3; i++) {
		if (kept[i])
			setenv(names[i], kept[i], 1);
		else
			unsetenv(names[i]);
		free(kept[i]);
	}
	tmesh_ctx_unref(ctx);
}

/* The caller of a program with more rights, such as a setuid one, does not choose its folder. */
static void test_elevated(void **state)
{
	char own[64];

	snprintf(own, sizeof(own), "/tmp/tmesh-%u", geteuid());
	elevated = true;
	assert_new_dir(own);
	elevated = false;
}

/* Calls of a context do not read the environment, which another thread may change meanwhile. */
static void test_read_once(void **state)
{
	struct tmesh_ctx *maker = context(NULL, 0), *client = context(NULL, 0);
	unsigned int before = reads;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region, *got, **regions;
	size_t count;
	char *path;

	assert_ok(tmesh_region_create(maker, 10, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_ok(tmesh_region_open(client, token, TMESH_READ, &got, err));
	tmesh_region_unref(got);
	assert_int_equal(
		tmesh_kept_open(client, "none", TMESH_KEPT_OWN, TMESH_READ, &regions, &count, NULL),
		-ENOENT);
	assert_int_equal(tmesh_kept_path(client, "none", NULL, &path, NULL), -ENOENT);
	tmesh_region_unref(region);
	assert_int_equal(reads, before);
	tmesh_ctx_unref(client);
	tmesh_ctx_unref(maker);
}

/* Root that has a user's environment leaves no folder of root's in that user's. */
static void test_foreign_parent(void **state)
{
	char base[] = "/tmp/tmesh-unit-XXXXXX", path[64];
	struct tmesh_ctx *ctx;
	struct stat st;
	int dir;

	assert_non_null(mkdtemp(base));
	assert_int_equal(chown(base, 65534, 65534), 0);
	snprintf(path, sizeof(path), "%s/tmesh", base);
	refused_dir(path, "user 65534 owns the folder above");
	snprintf(path, sizeof(path), "%s/tmesh//", base);
	refused_dir(path, "set TMESH_RUNTIME_DIR to a folder of user 0");
	path[strlen(path) - 2] = '\0';
	assert_int_equal(lstat(path, &st), -1);
	/* One that is there already is its owner's. */
	assert_int_equal(mkdir(path, 0700), 0);
	ctx = context(path, 0);
	assert_ok(tmesh_ctx_runtime_dir(ctx, &dir, err));
	close(dir);
	assert_int_equal(rmdir(path), 0);
	/* Every user may have folders in one such as /tmp, whichever user owns it. */
	assert_int_equal(chmod(base, 01777), 0);
	assert_ok(tmesh_ctx_runtime_dir(ctx, &dir, err));
	close(dir);
	tmesh_ctx_unref(ctx);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(rmdir(base), 0);
}

/* A link that is not as a producer writes it leads nowhere. */
static void test_strange_links(void **state)
{
	static const char name[] = "00112233445566778899aabbccddee01";
	static const char *const strange[] = {
		"/proc/0/fd/3",	      "/proc/-7/fd/3",	 "/proc/7/fd/-3",
		"/proc/07/fd/3",      "/proc/7/fd/03",	 "/proc/7/fd/3x",
		"/proc/7/fd/",	      "/proc/self/fd/3", "/proc/4294967303/fd/3",
		"/proc/7/fd/3/../..", "proc/7/fd/3",	 "/proc/7/fd/99999999999",
	};
	struct tmesh_ctx *ctx = context(NULL, 0);
	char path[512];
	int dir, index;
	pid_t pid;

	snprintf(path, sizeof(path), "%s/%s.index", unit_runtime_dir(), name);
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++) {
		assert_int_equal(symlink(strange[i], path), 0);
		assert_false(tmesh_rundir_follow(ctx, name, &pid, &index));
		assert_int_equal(unlink(path), 0);
	}
	assert_false(tmesh_rundir_follow(ctx, name, &pid, &index));
	assert_int_equal(symlink("/proc/7/fd/3", path), 0);
	assert_true(tmesh_rundir_follow(ctx, name, &pid, &index));
	assert_int_equal(pid, 7);
	assert_int_equal(index, 3);
	assert_int_equal(unlink(path), 0);
	tmesh_ctx_unref(ctx);
}

static const char never_made[] = "/sys/tmesh-unit";

/* The error is that of mkdir(), not that the directory is then still missing. */
static void test_not_made(void **state)
{
	assert_int_equal(mkdir(never_made, 0700), -1);
	refused_dir_as(never_made, -errno, never_made);
}

/* Those of the living stand in no other's way, however many they are. */
static void test_sweep_among_many(void **state)
{
	enum {
		LIVE = 300,
		ALL = 340
	};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct tmesh_ctx *ctx = context(NULL, 0);
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region;
	int sockets[ALL], left = 0;

	for (int i = 0; i < ALL; i++) {
		snprintf(address.sun_path, sizeof(address.sun_path), "%s/%032x", unit_runtime_dir(),
			 i);
		sockets[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		assert_int_equal(bind(sockets[i], (struct sockaddr *)&address, sizeof(address)), 0);
		if (i >= LIVE)
			close(sockets[i]);
	}
	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	for (int i = 0; i < ALL; i++) {
		snprintf(address.sun_path, sizeof(address.sun_path), "%s/%032x", unit_runtime_dir(),
			 i);
		left += unlink(address.sun_path) == 0;
		if (i < LIVE)
			close(sockets[i]);
	}
	assert_int_equal(left, LIVE);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* Open a token of @ctx, given before or after: with the link, and by asking. */
static void opens(const char *dir, const char *token)
{
	char link[600];

	for (int i = 0; i < 2; i++) {
		struct tmesh_ctx *client = context(dir, 0);
		struct tmesh_region *got;

		assert_ok(tmesh_region_open(client, token, TMESH_READ, &got, err));
		tmesh_region_unref(got);
		tmesh_ctx_unref(client);
		snprintf(link, sizeof(link), "%s/%.32s.index", dir, token + 5);
		assert_int_equal(unlink(link), i ? -1 : 0);
	}
}

/* When it was made: a new one may have the old one's number. */
static int64_t socket_ns(const char *dir, const char *token)
{
	char path[600];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%.32s", dir, token + 5);
	assert_int_equal(lstat(path, &st), 0);
	return st.st_ctim.tv_sec * INT64_C(1000000000) + st.st_ctim.tv_nsec;
}

static void removed(const char *dir, const char *token)
{
	char path[600];

	snprintf(path, sizeof(path), "%s/%.32s.index", dir, token + 5);
	unlink(path);
	snprintf(path, sizeof(path), "%s/%.32s", dir, token + 5);
	assert_int_equal(unlink(path), 0);
	/* A server looks ten times a second at most. */
	usleep(110000);
}

/* A directory, or a socket in it, is removed under a program. It is made again before the program
 * gives a token that no process could open; the error says if it cannot be. */
static void test_removed(void **state)
{
	char base[] = "/tmp/tmesh-unit-XXXXXX", dir[64];
	char first[TMESH_TOKEN_SIZE], token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region, *other, *got;
	struct tmesh_ctx *ctx, *client;
	unsigned int before;
	int64_t made;

	assert_non_null(mkdtemp(base));
	snprintf(dir, sizeof(dir), "%s/dir", base);
	ctx = context(dir, 0);
	client = context(dir, 0);
	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	assert_ok(tmesh_region_create(ctx, 10, NULL, &other, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, first, err));
	before = unit_open_fds();
	/* One that is there stays: between the end of one and the next no client could connect. */
	made = socket_ns(dir, first);
	usleep(110000);
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_int_equal(socket_ns(dir, first), made);
	/* The socket alone; the token is the same one. */
	removed(dir, first);
	assert_refused(tmesh_region_open(client, first, TMESH_READ, &got, err), -ENOENT, "gone");
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_string_equal(token, first);
	opens(dir, first);
	/* The directory too; a new token mends the old one. */
	removed(dir, first);
	assert_int_equal(rmdir(dir), 0);
	assert_ok(tmesh_region_token(other, TMESH_READ, token, err));
	assert_int_equal(memcmp(token, first, strlen("tm1m-") + 32), 0);
	assert_ok(tmesh_region_open(client, first, TMESH_READ, &got, err));
	tmesh_region_unref(got);
	opens(dir, token);
	/* And the folder that it is in. */
	removed(dir, first);
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(rmdir(base), 0);
	for (int i = 0; i < 2; i++)
		assert_refused(tmesh_region_token(region, TMESH_READ, token, err), -ENOENT,
			       "set TMESH_RUNTIME_DIR");
	assert_int_equal(mkdir(base, 0700), 0);
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_string_equal(token, first);
	opens(dir, first);
	tmesh_ctx_unref(client);
	/* The server's end goes once it has seen that of ours. */
	while (unit_open_fds() != before)
		usleep(1000);
	tmesh_region_unref(other);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(rmdir(base), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_relative_dir), TEST(test_runtime_dir),   TEST(test_two_runtime_dirs),
		TEST(test_sweep),	 TEST(test_no_number),	   TEST(test_sweep_among_many),
		TEST(test_link_failed),	 TEST(test_strange_links), TEST(test_sweep_told),
		TEST(test_presets),	 TEST(test_removed),	   TEST(test_elevated),
		TEST(test_read_once),
	};
	const struct CMUnitTest root[] = {TEST(test_foreign_parent)};
	const struct CMUnitTest sysfs[] = {TEST(test_not_made)};
	int failed =
		cmocka_run_group_tests_name("runtime directory", tests, unit_memfd_setup, NULL);

	if (geteuid() == 0)
		failed += cmocka_run_group_tests_name("root", root, unit_memfd_setup, NULL);
	else
		failed += UNIT_SKIP(root, "only root can give a folder away");
	/* Where it is not mounted, as in a bare root, it is a directory as any other. */
	if (mkdir(never_made, 0700) == 0 || errno == EEXIST) {
		rmdir(never_made);
		return failed + UNIT_SKIP(sysfs, "sysfs is not mounted");
	}
	return failed + cmocka_run_group_tests_name("sysfs", sysfs, unit_memfd_setup, NULL);
}
