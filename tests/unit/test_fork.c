// SPDX-License-Identifier: MIT
/* fork(): what a child may do with what it inherited, and what the parent does not notice. */
#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)

static struct tmesh_ctx *context(void)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.region_pool_bytes = 1 << 20,
	};
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	return ctx;
}

/* A context that has given no token has no thread that answers for one, and its child lives. */
static void test_no_token(void **state)
{
	struct tmesh_ctx *ctx = context();
	pid_t child = fork();

	if (child == 0)
		unit_leave(0);
	join_child(child);
	tmesh_ctx_unref(ctx);
}

static void test_inherited(void **state)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *mapped = new_region(ctx, 5000), *unmapped, *other;
	char token[TMESH_TOKEN_SIZE], before[TMESH_TOKEN_SIZE], *addr, back[8];
	int pair[2], fd;
	void *got;
	pid_t child;

	assert_ok(tmesh_region_create(ctx, 5000, NULL, &unmapped, err));
	assert_ok(tmesh_region_map(mapped, RW, (void **)&addr, err));
	assert_ok(tmesh_region_write(unmapped, 0, "second", 7, err));
	assert_ok(tmesh_region_token(mapped, TMESH_READ, before, err));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	strcpy(addr, "first");
	child = fork();
	if (child == 0) {
		CHECK(strcmp(addr, "first") == 0);
		CHECK(tmesh_region_map(mapped, TMESH_READ, &got, NULL) == 0 && got == addr);
		CHECK(tmesh_region_map(unmapped, TMESH_READ, &got, NULL) == 0);
		CHECK(strcmp(got, "second") == 0);
		CHECK(tmesh_region_info(mapped, &info, NULL) == 0 && info.bytes == 5000);
		CHECK(tmesh_region_map(mapped, RW, &got, NULL) == -EPERM);
		CHECK(tmesh_region_write(mapped, 0, "x", 1, NULL) == -EPERM);
		CHECK(tmesh_region_read(mapped, 0, back, 1, NULL) == -EPERM);
		CHECK(tmesh_region_seal(mapped, NULL) == -EPERM);
		CHECK(tmesh_region_derive(mapped, RW | 8, &other, NULL) == -EINVAL);
		/* A handle of its own. */
		CHECK(tmesh_region_derive(mapped, RW, &other, NULL) == 0);
		CHECK(tmesh_region_write(other, 1000, "child", 6, NULL) == 0);
		CHECK(tmesh_region_token(other, TMESH_READ, token, NULL) == 0);
		tmesh_region_unref(other);
		CHECK(tmesh_region_pin(mapped, &other, NULL) == -EPERM);
		CHECK(tmesh_region_revoke(mapped, NULL) == -EPERM);
		CHECK(tmesh_region_token(mapped, TMESH_READ, token, NULL) == -EPERM);
		CHECK(tmesh_region_send(mapped, pair[0], TMESH_READ, NULL) == -EPERM);
		CHECK(tmesh_region_set_description(mapped, "x", NULL) == -EPERM);
		CHECK(tmesh_region_export_dmabuf(mapped, 0, 0, RW, &fd, NULL) == -EPERM);
		CHECK(tmesh_region_fd(mapped) == -EPERM);
		/* By its token it is the child's own, in the inherited context. */
		CHECK(tmesh_region_open(ctx, before, TMESH_READ, &other, NULL) == 0);
		CHECK(tmesh_region_read(other, 0, back, 6, NULL) == 0 && !strcmp(back, "first"));
		tmesh_region_unref(other);
		tmesh_region_unref(mapped);
		tmesh_region_unref(unmapped);
		tmesh_ctx_unref(ctx);
		unit_leave(0);
	}
	join_child(child);
	/* The child's end has taken nothing from us: neither the socket nor the token. */
	other = NULL;
	{
		struct tmesh_ctx *client = context();

		assert_ok(tmesh_region_open(client, before, TMESH_READ, &other, err));
		tmesh_region_unref(other);
		tmesh_ctx_unref(client);
	}
	tmesh_region_unref(mapped);
	tmesh_region_unref(unmapped);
	tmesh_ctx_unref(ctx);
	close(pair[0]);
	close(pair[1]);
}

static unsigned int sockets(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int count = 0;
	struct dirent *entry;
	struct stat st;

	while ((entry = readdir(dir)))
		count += !fstatat(dirfd(dir), entry->d_name, &st, 0) && S_ISSOCK(st.st_mode);
	closedir(dir);
	return count;
}

static bool maps_index(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	bool found = false;

	while (fgets(line, sizeof(line), maps))
		found = found || strstr(line, "tmesh-index");
	fclose(maps);
	return found;
}

/* A child has nothing that leads to others in the parent's name, or that describes its descriptors.
 * Its new files are its own. */
static void test_cut_off(void **state)
{
	unsigned int before = sockets();
	struct tmesh_ctx *ctx = context(), *client = context();
	struct tmesh_region *region = new_region(ctx, 10), *less, *others[32];
	struct tmesh_channel *sender, *receiver;
	char token[TMESH_TOKEN_SIZE], back[6];
	int parents, count = 0;
	pid_t child;

	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_ok(tmesh_region_open(client, token, TMESH_READ, &less, err));
	tmesh_region_unref(less);
	assert_ok(tmesh_channel_create(ctx, TMESH_CHANNEL_SEND, NULL, &sender, err));
	assert_ok(tmesh_channel_token(sender, token, err));
	assert_ok(tmesh_channel_open(client, token, TMESH_CHANNEL_RECV, NULL, &receiver, err));
	assert_true(sockets() > before && maps_index());
	parents = memfd_create("the parent's", MFD_CLOEXEC);
	assert_int_equal(write(parents, "parent", 6), 6);
	child = fork();
	if (child == 0) {
		CHECK(sockets() == before && !maps_index());
		/* The number belongs to another file in the parent. */
		close(parents);
		do
			CHECK(count < 32 &&
			      !tmesh_region_create(ctx, 10, NULL, &others[count], NULL));
		while (others[count++]->fd != parents);
		CHECK(tmesh_region_write(others[count - 1], 0, "child", 6, NULL) == 0);
		CHECK(tmesh_region_derive(others[count - 1], TMESH_READ, &less, NULL) == 0);
		CHECK(tmesh_region_read(less, 0, back, 6, NULL) == 0 && !strcmp(back, "child"));
		unit_leave(0);
	}
	join_child(child);
	close(parents);
	tmesh_channel_unref(receiver);
	tmesh_channel_unref(sender);
	tmesh_region_unref(region);
	tmesh_ctx_unref(client);
	tmesh_ctx_unref(ctx);
}

/* The lock was a thread's that the child does not have. */
static void test_inherited_locked(void **state)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = new_region(ctx, 5000);
	pid_t child;
	void *addr;

	assert_ok(tmesh_region_write(region, 0, "there", 6, err));
	tmesh_region_lock(region);
	child = fork();
	if (child == 0) {
		alarm(600);
		CHECK(tmesh_region_map(region, TMESH_READ, &addr, NULL) == 0);
		CHECK(strcmp(addr, "there") == 0);
		tmesh_region_unmap(region, TMESH_READ);
		unit_leave(0);
	}
	join_child(child);
	tmesh_region_unlock(region);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* The child's context has a life of its own: other ids, a server and a pool of its own. */
static void test_own_life(void **state)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region = new_region(ctx, 10), *got;
	char token[TMESH_TOKEN_SIZE], done = 0;
	uint64_t id, theirs;
	pid_t child;
	int pair[2];

	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	tmesh_region_unref(region);
	assert_ok(tmesh_region_create(ctx, 200000, NULL, &region, err));
	tmesh_region_unref(region);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	child = fork();
	if (child == 0) {
		close(pair[0]);
		/* The parent's pages are not kept from it, and the child has its own. */
		for (int i = 0; i < 2; i++) {
			CHECK(tmesh_region_create(ctx, 5000, NULL, &region, NULL) == 0);
			tmesh_region_unref(region);
		}
		CHECK(tmesh_stats(ctx, &stats) == 0);
		CHECK(stats.region_pool_bytes == 8192 && stats.region_pool_hits == 1);
		CHECK(tmesh_region_create(ctx, 10, NULL, &region, NULL) == 0);
		CHECK(tmesh_region_write(region, 0, "child", 6, NULL) == 0);
		CHECK(tmesh_region_token(region, TMESH_READ, token, NULL) == 0);
		id = tmesh_region_id(region);
		CHECK(write(pair[1], token, sizeof(token)) == sizeof(token));
		CHECK(write(pair[1], &id, sizeof(id)) == sizeof(id));
		CHECK(read(pair[1], &done, 1) == 1);
		tmesh_region_unref(region);
		tmesh_ctx_unref(ctx);
		unit_leave(0);
	}
	close(pair[1]);
	assert_int_equal(read(pair[0], token, sizeof(token)), sizeof(token));
	assert_int_equal(read(pair[0], &theirs, sizeof(theirs)), sizeof(theirs));
	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	assert_true(tmesh_region_id(region) != theirs);
	tmesh_region_unref(region);
	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &got, err));
	assert_int_equal(tmesh_region_id(got), theirs);
	tmesh_region_unref(got);
	assert_int_equal(write(pair[0], &done, 1), 1);
	join_child(child);
	close(pair[0]);
	tmesh_ctx_unref(ctx);
}

/*
 * A child that lives on does not keep its dead parent's clients waiting. On the module the
 * region lives as long as the child has the descriptor, and opens without waiting.
 */
static void test_no_ghost(void **state)
{
	struct tmesh_ctx *client;
	struct tmesh_region *region;
	char token[TMESH_TOKEN_SIZE];
	pid_t parent, child;
	int pair[2], status;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	parent = fork();
	if (parent == 0) {
		struct tmesh_ctx *ctx = context();

		CHECK(tmesh_region_create(ctx, 10, NULL, &region, NULL) == 0);
		CHECK(tmesh_region_token(region, TMESH_READ, token, NULL) == 0);
		child = fork();
		if (child == 0) {
			pause();
			unit_leave(0);
		}
		CHECK(write(pair[1], token, sizeof(token)) == sizeof(token));
		CHECK(write(pair[1], &child, sizeof(child)) == sizeof(child));
		pause();
	}
	client = context();
	assert_int_equal(read(pair[0], token, sizeof(token)), sizeof(token));
	assert_int_equal(read(pair[0], &child, sizeof(child)), sizeof(child));
	assert_ok(tmesh_region_open(client, token, TMESH_READ, &region, err));
	tmesh_region_unref(region);
	kill(parent, SIGKILL);
	assert_int_equal(waitpid(parent, &status, 0), parent);
	if (unit_on_kernel()) {
		assert_ok(tmesh_region_open(client, token, TMESH_READ, &region, err));
		tmesh_region_unref(region);
	} else {
		assert_refused(tmesh_region_open(client, token, TMESH_READ, &region, err), -ENOENT,
			       "gone");
	}
	kill(child, SIGKILL);
	tmesh_ctx_unref(client);
	close(pair[0]);
	close(pair[1]);
}

static atomic_bool over;

static void *churn(void *data)
{
	struct tmesh_ctx *ctx = data;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region, *other;
	void *addr;

	while (!over) {
		if (tmesh_region_create(ctx, 9000, NULL, &region, NULL))
			continue;
		if (!tmesh_region_map(region, RW, &addr, NULL))
			memset(addr, 1, 9000);
		if (!tmesh_region_token(region, TMESH_READ, token, NULL) &&
		    !tmesh_region_open(ctx, token, TMESH_READ, &other, NULL))
			tmesh_region_unref(other);
		tmesh_region_unref(region);
	}
	return NULL;
}

/* fork() in the middle of everything: children work, whatever the threads were doing. */
static void test_while_busy(void **state)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region;
	char token[TMESH_TOKEN_SIZE];
	pthread_t threads[2];

	over = false;
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, churn, ctx);
	/* Where the module is, each takes a second. */
	for (int i = 0; i < (unit_on_kernel() ? 20 : 100); i++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(600);
			CHECK(tmesh_region_create(ctx, 9000, NULL, &region, NULL) == 0);
			CHECK(tmesh_region_write(region, 0, "x", 1, NULL) == 0);
			CHECK(tmesh_region_token(region, TMESH_READ, token, NULL) == 0);
			tmesh_region_unref(region);
			tmesh_ctx_unref(ctx);
			unit_leave(0);
		}
		join_child(child);
	}
	over = true;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	tmesh_ctx_unref(ctx);
}

/* The directory that a parent had open is no more: a child makes its own. */
static void test_directory_gone(void **state)
{
	char dir[] = "/tmp/tmesh-unit-XXXXXX", path[64], token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .runtime_dir = dir};
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	pid_t pid;

	assert_non_null(mkdtemp(dir));
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	snprintf(path, sizeof(path), "%s/%.32s.index", dir, token + 5);
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof(path), "%s/%.32s", dir, token + 5);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0);
	pid = fork();
	if (!pid) {
		tmesh_region_unref(region);
		CHECK(!tmesh_region_create(ctx, 10, NULL, &region, NULL));
		CHECK(!tmesh_region_token(region, TMESH_READ, token, NULL));
		tmesh_region_unref(region);
		tmesh_ctx_unref(ctx);
		_exit(0);
	}
	join_child(pid);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	/* The child took its files away with it. */
	assert_int_equal(rmdir(dir), 0);
}

static unsigned int forked_in_log;

static void fork_in_log(void *data, enum tmesh_log_level level, const char *message)
{
	pid_t child = fork();

	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	forked_in_log++;
}

/* A program that starts another one to log is not in the way of its own fork(). */
static void test_log_forks(void **state)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .log = fork_in_log};
	char token[TMESH_TOKEN_SIZE], path[512];
	struct tmesh_region *first, *second;
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 4096, NULL, &first, err));
	assert_ok(tmesh_region_token(first, TMESH_READ, token, err));
	snprintf(path, sizeof(path), "%s/%.32s", unit_runtime_dir(), token + 5);
	assert_int_equal(unlink(path), 0);
	alarm(120);
	/* The library looks from time to time. */
	while (!forked_in_log) {
		assert_ok(tmesh_region_create(ctx, 4096, NULL, &second, err));
		assert_ok(tmesh_region_token(second, TMESH_READ, token, err));
		tmesh_region_unref(second);
		usleep(10000);
	}
	alarm(0);
	tmesh_region_unref(first);
	tmesh_ctx_unref(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_inherited), TEST(test_inherited_locked), TEST(test_own_life),
		TEST(test_no_ghost),  TEST(test_no_token),
	};
	const struct CMUnitTest busy[] = {TEST(test_while_busy)};

	const struct CMUnitTest memfds[] = {
		TEST(test_cut_off),
		TEST(test_log_forks),
		TEST(test_directory_gone),
	};
	int failed = cmocka_run_group_tests_name("fork", tests, NULL, NULL);

#ifdef __SANITIZE_ADDRESS__
	UNIT_SKIP(busy, "a child would inherit a lock of the sanitizer's allocator");
#else
	failed += cmocka_run_group_tests_name("fork of busy threads", busy, NULL, NULL);
#endif
	return failed +
	       cmocka_run_group_tests_name("fork of memfds", memfds, unit_memfd_setup, NULL);
}
