// SPDX-License-Identifier: MIT
/* The pool: reusable memory, and what its next user and others may see of it. */
#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)
#define SIZE 20000

/* The next user's bytes and label: on the module only like serves like. */
#define NEXT_SIZE (unit_on_kernel() ? SIZE : SIZE - 1000)
#define NEXT_LABEL (unit_on_kernel() ? "first" : "second")

static int setup(void **state)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.region_pool_bytes = 1 << 20,
	};

	return tmesh_ctx_open(&opts, (struct tmesh_ctx **)state, NULL);
}

static struct tmesh_region *make(void *ctx, uint64_t bytes, uint32_t flags, const char *label)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = flags, .label = label};
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(ctx, bytes, &opts, &region, err));
	return region;
}

static uint8_t *map_of(struct tmesh_region *region)
{
	void *addr;

	assert_ok(tmesh_region_map(region, RW, &addr, err));
	return addr;
}

/* Filled to the last byte of the last page, described, released. */
static uint64_t used(void *ctx)
{
	struct tmesh_region *region = make(ctx, SIZE, 0, "first");
	uint64_t id = tmesh_region_id(region);

	memset(map_of(region), 0xaa, 20480);
	tmesh_region_unmap(region, RW);
	assert_ok(tmesh_region_set_description(region, "the first one's secret", err));
	tmesh_region_unref(region);
	return id;
}

static void test_zeroed(void **state)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region_info *infos;
	struct tmesh_region *region;
	struct tmesh_stats before = ctx_stats(*state), after;
	uint64_t id = used(*state);
	char room[4096] = "";
	uint8_t *bytes;
	size_t count;
	bool seen = false;

	assert_int_equal(ctx_stats(*state).region_pool_bytes, 20480);
	region = make(*state, NEXT_SIZE, 0, NEXT_LABEL);
	after = ctx_stats(*state);
	assert_int_equal(after.region_pool_hits - before.region_pool_hits, 1);
	assert_int_equal(after.region_pool_bytes, 0);
	bytes = map_of(region);
	for (int i = 0; i < 20480; i++)
		assert_int_equal(bytes[i], 0);
	/* A new region in every respect, also for those who look from outside. On the module the
	 * id stays, for no other process has ever held what it names. */
	assert_true((tmesh_region_id(region) == id) == unit_on_kernel());
	assert_ok(tmesh_region_info(region, &info, err));
	assert_int_equal(info.bytes, NEXT_SIZE);
	assert_string_equal(info.label, NEXT_LABEL);
	assert_string_equal(info.description, "");
	assert_ok(tmesh_list(*state, &infos, &count, err));
	for (size_t i = 0; i < count; i++) {
		assert_true(unit_on_kernel() || infos[i].id != id);
		if (infos[i].id == tmesh_region_id(region)) {
			seen = true;
			assert_string_equal(infos[i].label, NEXT_LABEL);
			assert_int_equal(infos[i].bytes, NEXT_SIZE);
		}
	}
	assert_true(seen);
	free(infos);
	/* The trailer that a memfd keeps behind its contents. */
	if (!unit_on_kernel())
		assert_true(pread(region->fd, room, sizeof(room), 20480 + 128) > 0);
	assert_null(memmem(room, sizeof(room), "secret", 6));
	tmesh_region_unref(region);
}

/* An overwrite without permission gets the old bytes, but never past the end of the new length. */
static void test_uninitialized(void **state)
{
	struct tmesh_region *region;
	uint8_t *bytes, *data = malloc(SIZE);

	used(*state);
	region = make(*state, NEXT_SIZE, TMESH_REGION_UNINITIALIZED, NEXT_LABEL);
	bytes = map_of(region);
	assert_int_equal(bytes[0], 0xaa);
	for (int i = NEXT_SIZE; i < 20480; i++)
		assert_int_equal(bytes[i], 0);
	memset(data, 0x55, SIZE);
	assert_ok(tmesh_region_write(region, 0, data, NEXT_SIZE, err));
	assert_memory_equal(bytes, data, NEXT_SIZE);
	assert_int_equal(bytes[NEXT_SIZE], 0);
	free(data);
	tmesh_region_unref(region);
}

static void expect_not_pooled(void *ctx, struct tmesh_region *region)
{
	uint64_t before = ctx_stats(ctx).region_pool_bytes;

	tmesh_region_unref(region);
	assert_int_equal(ctx_stats(ctx).region_pool_bytes, before);
}

/* Memory that another process may hold never comes back. */
static void test_shared_never(void **state)
{
	const int64_t shape[] = {55555};
	struct tmesh_region *region, *other;
	struct tmesh_tensor *tensor;
	char token[TMESH_TOKEN_SIZE];
	int pair[2], status;
	uint64_t pooled;
	void *data;
	pid_t child;

	region = make(*state, 99999, 0, "");
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	expect_not_pooled(*state, region);

	region = make(*state, 99999, 0, "");
	assert_true(tmesh_region_fd(region) >= 0);
	expect_not_pooled(*state, region);

	region = make(*state, 99999, 0, "");
	assert_ok(tmesh_region_derive(region, TMESH_READ, &other, err));
	expect_not_pooled(*state, region);
	expect_not_pooled(*state, other);

	region = make(*state, 99999, 0, "");
	assert_ok(tmesh_region_seal(region, err));
	expect_not_pooled(*state, region);

	region = make(*state, 99999, 0, "");
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_ok(tmesh_region_send(region, pair[0], TMESH_READ, err));
	expect_not_pooled(*state, region);
	close(pair[0]);
	close(pair[1]);

	/* Still mapped by a caller that has not unmapped it. */
	region = make(*state, 99999, 0, "");
	map_of(region);
	expect_not_pooled(*state, region);

	/* A process that reports it once too often is not believed to be there for ever. */
	region = make(*state, 33333, 0, "");
	tmesh_region_unmap(region, RW);
	pooled = ctx_stats(*state).region_pool_bytes;
	tmesh_region_unref(region);
	assert_int_equal(ctx_stats(*state).region_pool_bytes - pooled, 36864);

	/* A tensor is done with its end, however often it was asked where it lies. */
	assert_ok(tmesh_tensor_create(*state, TMESH_INT8, 1, shape, NULL, &tensor, err));
	for (int i = 0; i < 3; i++)
		assert_ok(tmesh_tensor_data(tensor, i ? RW : TMESH_READ, &data, err));
	pooled = ctx_stats(*state).region_pool_bytes;
	tmesh_tensor_unref(tensor);
	assert_int_equal(ctx_stats(*state).region_pool_bytes - pooled, 57344);

	/* A child has it too, whether it lies in the pool by then or not. */
	region = make(*state, 99999, 0, "");
	other = make(*state, 77777, 0, "");
	tmesh_region_unref(other);
	child = fork();
	if (child == 0)
		_exit(0);
	assert_int_equal(waitpid(child, &status, 0), child);
	expect_not_pooled(*state, region);
	status = (int)ctx_stats(*state).region_pool_hits;
	other = make(*state, 77777, 0, "");
	assert_int_equal(ctx_stats(*state).region_pool_hits, status);
	tmesh_region_unref(other);
}

/* The inode tells memory apart. A region of the module has its id for ever. */
static uint64_t inode_of(const struct tmesh_region *region)
{
	struct stat st;

	if (unit_on_kernel())
		return region->id;
	assert_int_equal(fstat(region->fd, &st), 0);
	return st.st_ino;
}

static struct tmesh_region *lent(void *ctx, char *token)
{
	struct tmesh_region *region = make(ctx, SIZE, TMESH_REGION_REUSE, "lent");
	uint8_t byte = 0xaa;

	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_ok(tmesh_region_write(region, 0, &byte, 1, err));
	return region;
}

/* Other suites look at the regions of the machine, and have each open for a moment. The pool cannot
 * reuse it then: another one comes, and this one the next time. */
static bool comes_next_time(struct tmesh_region *region, uint64_t inode)
{
	if (inode_of(region) == inode)
		return false;
	/* Not to be the next one's. */
	assert_ok(tmesh_region_seal(region, err));
	tmesh_region_unref(region);
	usleep(1000);
	return true;
}

/* The next region is, or is not, the memory of that inode. */
static void expect_next(void *ctx, uint64_t inode, bool same)
{
	bool like = unit_on_kernel(); /* only like serves like there */
	struct tmesh_region *region;
	uint8_t byte = 1;

	do
		region = make(ctx, SIZE, like ? TMESH_REGION_REUSE : 0, like ? "lent" : "next");
	while (same && comes_next_time(region, inode));
	assert_int_equal(inode_of(region) == inode, same);
	assert_ok(tmesh_region_read(region, 0, &byte, 1, err));
	assert_int_equal(byte, 0);
	/* Not to be the next one's. */
	assert_ok(tmesh_region_seal(region, err));
	tmesh_region_unref(region);
}

/* Lent memory comes back when its last reader has gone, and its tokens are dead by then. */
static void test_lent(void **state)
{
	struct tmesh_region *region, *reader;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *other = new_ctx();
	uint64_t inode, hits;
	void *addr;

	for (int turn = 0; turn < 3; turn++) {
		region = lent(*state, token);
		inode = inode_of(region);
		assert_ok(tmesh_region_open(other, token, TMESH_READ, &reader, err));
		if (turn ==
		    1) /* the mapping alone holds it, as in a process that closed the rest */
			assert_ok(tmesh_region_map(reader, TMESH_READ, &addr, err));
		tmesh_region_unref(region);
		assert_int_equal(ctx_stats(*state).region_pool_bytes, 20480);
		assert_refused(tmesh_region_open(other, token, TMESH_READ, &region, err), -ENOENT,
			       "no such region");
		hits = ctx_stats(*state).region_pool_hits;
		expect_next(*state, inode, false);
		assert_int_equal(ctx_stats(*state).region_pool_hits, hits);
		assert_int_equal(ctx_stats(*state).region_pool_bytes, 20480);
		if (turn == 1) {
			close(reader->fd);
			expect_next(*state, inode, false);
			reader->fd = open("/dev/null", O_RDONLY);
		}
		tmesh_region_unref(reader);
		expect_next(*state, inode, true);
		assert_int_equal(ctx_stats(*state).region_pool_hits, hits + 1);
	}
	/* And once more for the same memory. */
	region = lent(*state, token);
	inode = inode_of(region);
	for (int turn = 0; turn < 3; turn++) {
		uint64_t id = tmesh_region_id(region);

		assert_ok(tmesh_region_open(other, token, TMESH_READ, &reader, err));
		assert_true(tmesh_region_id(reader) == id);
		tmesh_region_unref(reader);
		tmesh_region_unref(region);
		do
			region = lent(*state, token);
		while (comes_next_time(region, inode));
		/* On the module the id names the memory. */
		assert_int_equal(tmesh_region_id(region) == id, unit_on_kernel());
	}
	tmesh_region_unref(region);
	tmesh_ctx_unref(other);
}

/* A reader that opens the token it reads, reports it, and keeps what it has. */
static pid_t reader_start(int *told, int *says)
{
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	int tell[2], say[2];
	pid_t child;

	assert_int_equal(pipe(tell) | pipe(say), 0);
	child = fork();
	if (child == 0) {
		if (read(tell[0], token, sizeof(token)) == sizeof(token) &&
		    !tmesh_ctx_open(NULL, &ctx, NULL) &&
		    !tmesh_region_open(ctx, token, TMESH_READ, &region, NULL) &&
		    write(say[1], "", 1) == 1)
			pause();
		_exit(1);
	}
	close(tell[0]);
	close(say[1]);
	*told = tell[1];
	*says = say[0];
	return child;
}

/* Another process holds what it has until it is killed, and an unread message its descriptor. */
static void test_lent_to_others(void **state)
{
	struct tmesh_region *region, *reader;
	char token[TMESH_TOKEN_SIZE], byte;
	int status, pair[2], told, says;
	struct tmesh_ctx *other;
	uint64_t inode;
	pid_t child;

	child = reader_start(&told, &says);
	region = lent(*state, token);
	inode = inode_of(region);
	assert_int_equal(write(told, token, sizeof(token)), sizeof(token));
	assert_int_equal(read(says, &byte, 1), 1);
	tmesh_region_unref(region);
	expect_next(*state, inode, false);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
	expect_next(*state, inode, true);
	close(told);
	close(says);

	assert_ok(tmesh_ctx_open(NULL, &other, err));
	region = lent(*state, token);
	inode = inode_of(region);
	assert_ok(tmesh_region_open(other, token, TMESH_READ, &reader, err));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_ok(tmesh_region_send(reader, pair[0], TMESH_READ, err));
	tmesh_region_unref(reader);
	tmesh_region_unref(region);
	expect_next(*state, inode, false);
	close(pair[0]);
	close(pair[1]);
	expect_next(*state, inode, true);

	/* Given in any other way it never comes back. */
	region = lent(*state, token);
	assert_ok(tmesh_region_token(region, RW, token, err));
	expect_not_pooled(*state, region);
	region = lent(*state, token);
	assert_true(tmesh_region_fd(region) >= 0);
	expect_not_pooled(*state, region);
	region = lent(*state, token);
	assert_ok(tmesh_region_derive(region, TMESH_READ, &reader, err));
	tmesh_region_unref(reader);
	expect_not_pooled(*state, region);
	/* Nor after a fence, whose number stays. */
	if (unit_on_kernel()) {
		region = lent(*state, token);
		assert_ok(tmesh_fence_signal(region, 1, err));
		expect_not_pooled(*state, region);
	}
	tmesh_ctx_unref(other);
}

/* The order in which tokens are asked for makes no difference. */
static void test_lent_and_given(void **state)
{
	char token[TMESH_TOKEN_SIZE], given[TMESH_TOKEN_SIZE];
	struct tmesh_region *region = make(*state, SIZE, TMESH_REGION_REUSE, "lent");

	assert_ok(tmesh_region_token(region, RW, given, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	expect_not_pooled(*state, region);
	region = lent(*state, token);
	assert_ok(tmesh_region_token(region, RW, given, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	expect_not_pooled(*state, region);
}

static void set_idle(struct tmesh_ctx *ctx, uint64_t ns)
{
	pthread_mutex_lock(&ctx->lock);
	ctx->pool_idle_ns = ns;
	pthread_mutex_unlock(&ctx->lock);
}

/* Memory that no caller asks for goes, and all of it on request, with its descriptors. */
static void test_given_back(void **state)
{
	struct tmesh_region *one = make(*state, SIZE, 0, ""), *two = make(*state, SIZE, 0, "");
	unsigned int before;

	/* The first one starts the thread. */
	tmesh_region_unref(make(*state, 2 * SIZE, 0, ""));
	assert_int_equal(tmesh_ctx_trim(*state), 40960);
	assert_int_equal(tmesh_ctx_trim(*state), 0);
	before = unit_open_fds();
	set_idle(*state, UINT64_MAX);
	tmesh_region_unref(one);
	tmesh_region_unref(two);
	tmesh_region_pool_age(*state);
	assert_int_equal(ctx_stats(*state).region_pool_bytes, 2 * 20480);
	assert_int_equal(tmesh_ctx_trim(*state), 2 * 20480);
	assert_int_equal(ctx_stats(*state).region_pool_bytes, 0);
	assert_int_equal(unit_open_fds(), before - 2);

	tmesh_region_unref(make(*state, SIZE, 0, ""));
	assert_int_equal(ctx_stats(*state).region_pool_bytes, 20480);
	set_idle(*state, 0);
	tmesh_region_pool_age(*state);
	assert_int_equal(ctx_stats(*state).region_pool_bytes, 0);
	assert_int_equal(unit_open_fds(), before - 2);
	/* A release of one region looks after the others. */
	set_idle(*state, UINT64_MAX);
	tmesh_region_unref(make(*state, SIZE, 0, ""));
	two = make(*state, 2 * SIZE, 0, "");
	assert_int_equal(ctx_stats(*state).region_pool_bytes, 20480);
	set_idle(*state, 0);
	tmesh_region_unref(two);
	assert_int_equal(ctx_stats(*state).region_pool_bytes, 0);
}

/* In a process that does nothing more, by a thread: again and again, and in a forked child too. */
static void by_thread(struct tmesh_ctx *ctx, uint64_t idle_ns)
{
	set_idle(ctx, UINT64_MAX);
	tmesh_region_unref(make(ctx, SIZE, 0, ""));
	usleep(50000);
	assert_int_equal(ctx_stats(ctx).region_pool_bytes, 20480);
	set_idle(ctx, idle_ns);
	alarm(600);
	while (ctx_stats(ctx).region_pool_bytes || ctx->pool_watched)
		usleep(1000);
	alarm(0);
}

static void test_given_back_by_thread(void **state)
{
	struct tmesh_ctx *ctx = new_ctx();
	pid_t child;

	ctx->pool_look_ms = 10;
	for (int i = 0; i < 3; i++)
		by_thread(ctx, i == 1 ? 1000000 : 0);
	set_idle(ctx, UINT64_MAX);
	tmesh_region_unref(make(ctx, SIZE, 0, ""));
	child = fork();
	if (child == 0) {
		by_thread(ctx, 0);
		unit_leave(0);
	}
	join_child(child);
	assert_int_equal(ctx_stats(ctx).region_pool_bytes, 20480);
	tmesh_ctx_unref(ctx);
}

/* Memory that could not be given back in time is not kept. */
static void test_without_thread(void **state)
{
	struct rlimit limit, low;
	struct tmesh_region *region;
	struct tmesh_ctx *ctx = new_ctx();

	region = make(ctx, SIZE, 0, "");
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = limit;
	low.rlim_cur = 3;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	tmesh_region_unref(region);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(ctx_stats(ctx).region_pool_bytes, 0);
	assert_null(ctx->watch);
	region = make(ctx, SIZE, 0, "");
	tmesh_region_unref(region);
	assert_int_equal(ctx_stats(ctx).region_pool_bytes, 20480);
	tmesh_ctx_unref(ctx);
}

/* There is a pool unless an option says that there is none. */
static void test_by_default(void **state)
{
	enum {
		BY_DEFAULT = 256 << 20
	};
	uint64_t share = (uint64_t)sysconf(_SC_PHYS_PAGES) * tmesh_page_bytes() / 64;
	uint64_t most = share < BY_DEFAULT ? share : BY_DEFAULT;
	static const struct {
		const char *env;
		uint64_t option, most;
		bool kept;
	} cases[] = {
		{NULL, 0, BY_DEFAULT, true},
		{NULL, TMESH_NO_REGION_POOL, 0, false},
		{NULL, 20480, 20480, true},
		{NULL, 20479, 20479, false},
		{"0", 0, 0, false},
		{"", 0, BY_DEFAULT, true},
		{"3", 0, 3 << 20, true},
		{"3", TMESH_NO_REGION_POOL, 0, false},
		{"0", 1 << 20, 1 << 20, true},
	};
	struct tmesh_ctx_opts opts = {.size = sizeof(opts)};
	struct tmesh_ctx *ctx;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (cases[i].env)
			setenv("TMESH_REGION_POOL", cases[i].env, 1);
		opts.region_pool_bytes = cases[i].option;
		assert_ok(tmesh_ctx_open(&opts, &ctx, err));
		unsetenv("TMESH_REGION_POOL");
		tmesh_region_unref(make(ctx, SIZE, 0, ""));
		assert_int_equal(ctx_stats(ctx).region_pool_bytes, cases[i].kept ? 20480 : 0);
		if (cases[i].most == BY_DEFAULT)
			assert_in_range(ctx->pool_max, 20480, most);
		else
			assert_int_equal(ctx->pool_max, cases[i].most);
		tmesh_region_unref(make(ctx, SIZE, 0, ""));
		assert_int_equal(ctx_stats(ctx).region_pool_hits, cases[i].kept);
		tmesh_ctx_unref(ctx);
	}
	opts.region_pool_bytes = 0;
	for (size_t i = 0; i < 6; i++) {
		const char *bad[] = {"x", "-1", "+1", "1.5", "1 ", "99999999999999999999"};

		setenv("TMESH_REGION_POOL", bad[i], 1);
		assert_refused(tmesh_ctx_open(&opts, &ctx, err), -EINVAL, "TMESH_REGION_POOL");
	}
	unsetenv("TMESH_REGION_POOL");
}

/* Memory in the pool counts for max_bytes, and is given back before a request is refused. */
static void test_limit(void **state)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .max_bytes = 5 * 4096};
	struct tmesh_region *one, *two;
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	tmesh_region_unref(make(ctx, 4 * 4096, 0, ""));
	assert_int_equal(ctx_stats(ctx).region_pool_bytes, 4 * 4096);
	assert_int_equal(atomic_load(&ctx->bytes_owned), 4 * 4096);
	/* The very same again passes no limit ... */
	one = make(ctx, 4 * 4096, 0, "");
	assert_int_equal(ctx_stats(ctx).region_pool_hits, 1);
	assert_int_equal(atomic_load(&ctx->bytes_owned), 4 * 4096);
	assert_refused(tmesh_region_create(ctx, 2 * 4096, NULL, &two, err), -EDQUOT, "max_bytes");
	tmesh_region_unref(one);
	/* ... what is as small goes beside it, and what is not instead of it. */
	one = make(ctx, 4096, 0, "");
	assert_int_equal(ctx_stats(ctx).region_pool_bytes, 4 * 4096);
	assert_int_equal(atomic_load(&ctx->bytes_owned), 5 * 4096);
	two = make(ctx, 2 * 4096, 0, "");
	assert_int_equal(ctx_stats(ctx).region_pool_bytes, 0);
	assert_int_equal(atomic_load(&ctx->bytes_owned), 3 * 4096);
	/* A limit that is lower now refuses what lies there, too. */
	tmesh_region_unref(one);
	tmesh_ctx_limit(ctx, 4096);
	assert_refused(tmesh_region_create(ctx, 4096, NULL, &one, err), -EDQUOT, "max_bytes");
	assert_int_equal(ctx_stats(ctx).region_pool_bytes, 0);
	tmesh_ctx_limit(ctx, 0);
	one = make(ctx, 4096, 0, "");
	tmesh_region_unref(one);
	tmesh_region_unref(two);
	assert_int_equal(tmesh_ctx_trim(ctx), 3 * 4096);
	assert_int_equal(atomic_load(&ctx->bytes_owned), 0);
	tmesh_ctx_unref(ctx);
}

static void test_bounds(void **state)
{
	struct tmesh_region *regions[6], *many[200];

	for (int i = 0; i < 6; i++)
		regions[i] = make(*state, 300000, 0, "");
	for (int i = 0; i < 6; i++) {
		tmesh_region_unref(regions[i]);
		assert_true(ctx_stats(*state).region_pool_bytes <= 1 << 20);
	}
	assert_int_equal(ctx_stats(*state).region_pool_bytes, 3 * 303104);
	regions[0] = make(*state, 2 << 20, 0, "");
	expect_not_pooled(*state, regions[0]);
	for (int i = 0; i < 400; i++) {
		regions[0] = make(*state, 4096, 0, "");
		regions[1] = make(*state, 4096, 0, "");
		tmesh_region_unref(regions[0]);
		tmesh_region_unref(regions[1]);
	}
	assert_true(ctx_stats(*state).region_pool_bytes <= 1 << 20);
	/* Nor more of them than a process has descriptors to spare, however small. */
	for (int i = 0; i < 200; i++)
		many[i] = make(*state, 4096, 0, "");
	for (int i = 0; i < 200; i++)
		tmesh_region_unref(many[i]);
	assert_int_equal(ctx_stats(*state).region_pool_bytes, 128 * 4096);
}

/* Other flags want other memory. */
static void test_alike_only(void **state)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts)};
	struct tmesh_region *region = make(*state, 5000, 0, "");
	uint64_t hits = ctx_stats(*state).region_pool_hits;

	tmesh_region_unref(region);
	region = make(*state, 5000, TMESH_REGION_NO_PIN, "");
	tmesh_region_unref(region);
	region = make(*state, 9000, 0, "");
	tmesh_region_unref(region);
	assert_int_equal(ctx_stats(*state).region_pool_hits, hits);
	region = make(*state, unit_on_kernel() ? 5000 : 8192, 0, "");
	assert_int_equal(ctx_stats(*state).region_pool_hits, hits + 1);
	tmesh_region_unref(region);
	/* Without its flag a group says nothing. */
	opts.gid = 7;
	assert_ok(tmesh_region_create(*state, unit_on_kernel() ? 5000 : 8192, &opts, &region, err));
	assert_int_equal(ctx_stats(*state).region_pool_hits, hits + 2);
	tmesh_region_unref(region);
}

/* Pooled memory is not given for a request that memfds refuse, nor to another group, nor instead of
 * fewer pages. */
static void test_not_instead(void **state)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts)};
	struct tmesh_region *region = make(*state, 8192, 0, "the longer label");
	uint64_t hits = ctx_stats(*state).region_pool_hits;

	tmesh_region_unref(region);
	opts.mode = 0660;
	assert_refused(tmesh_region_create(*state, 8192, &opts, &region, err), -EOPNOTSUPP,
		       "one user");
	opts.mode = 0;
	opts.hold_ms = 1000;
	assert_refused(tmesh_region_create(*state, 8192, &opts, &region, err), -EOPNOTSUPP,
		       "hold_ms");
	opts.hold_ms = 0;
	region = make(*state, 4096, 0, "");
	assert_int_equal(ctx_stats(*state).region_pool_hits, hits);
	tmesh_region_unref(region);
	region = make(*state, 8192, 0, "the");
	assert_int_equal(ctx_stats(*state).region_pool_hits, hits + 1);
	/* Nor is there anything of the last one's label. */
	for (size_t i = 3; i < sizeof(region->label); i++)
		assert_int_equal(region->label[i], 0);
	tmesh_region_unref(region);
}

/* Descriptors in the pool are free for any other use. */
static void test_yields(void **state)
{
	struct rlimit limit, low;
	struct tmesh_region *many[100], *one, *named = make(*state, 4096, 0, "");
	char token[TMESH_TOKEN_SIZE];
	int taken[64], count;

	assert_ok(tmesh_region_token(named, TMESH_READ, token, err));
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	for (int what = 0; what < (unit_on_kernel() ? 4 : 3); what++) {
		for (int i = 0; i < 100; i++)
			many[i] = make(*state, 4096, 0, "");
		low = limit;
		low.rlim_cur = (rlim_t)dup(0) + 32;
		close((int)low.rlim_cur - 32);
		for (int i = 0; i < 100; i++)
			tmesh_region_unref(many[i]);
		assert_int_equal(ctx_stats(*state).region_pool_bytes, 100 * 4096);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
		for (count = 0; (taken[count] = dup(0)) >= 0; count++)
			assert_true(count < 63);
		switch (what) {
		case 0:
			one = make(*state, 1 << 20, 0, "");
			break;
		case 1:
			assert_ok(tmesh_region_derive(named, TMESH_READ, &one, err));
			break;
		case 2:
			assert_ok(tmesh_region_open(*state, token, TMESH_READ, &one, err));
			break;
		default:
			assert_ok(tmesh_region_export_dmabuf(named, 0, 0, TMESH_READ, &taken[63],
							     err));
			one = NULL;
			close(taken[63]);
		}
		tmesh_region_unref(one);
		while (count)
			close(taken[--count]);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
		assert_true(ctx_stats(*state).region_pool_bytes <= 1 << 20);
	}
	tmesh_region_unref(named);
}

/* A context without a pool works all the same. */
static void test_no_pool(void **state)
{
	const struct tmesh_ctx_opts opts = {.size = sizeof(opts),
					    .region_pool_bytes = TMESH_NO_REGION_POOL};
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	tmesh_region_unref(make(ctx, SIZE, 0, "first"));
	tmesh_region_unref(make(ctx, SIZE, 0, "first"));
	assert_int_equal(ctx_stats(ctx).region_pool_misses, 0);
	assert_int_equal(ctx_stats(ctx).region_pool_hits, 0);
	tmesh_ctx_unref(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_zeroed, setup, unit_ctx_teardown),
		cmocka_unit_test_setup_teardown(test_uninitialized, setup, unit_ctx_teardown),
		cmocka_unit_test_setup_teardown(test_shared_never, setup, unit_ctx_teardown),
		cmocka_unit_test_setup_teardown(test_lent, setup, unit_ctx_teardown),
		cmocka_unit_test_setup_teardown(test_lent_to_others, setup, unit_ctx_teardown),
		cmocka_unit_test_setup_teardown(test_lent_and_given, setup, unit_ctx_teardown),
		cmocka_unit_test_setup_teardown(test_given_back, setup, unit_ctx_teardown),
		cmocka_unit_test_setup_teardown(test_bounds, setup, unit_ctx_teardown),
		TEST(test_given_back_by_thread),
		TEST(test_without_thread),
		TEST(test_by_default),
		TEST(test_limit),
		cmocka_unit_test_setup_teardown(test_alike_only, setup, unit_ctx_teardown),
		cmocka_unit_test_setup_teardown(test_yields, setup, unit_ctx_teardown),
		TEST(test_no_pool),
	};

	const struct CMUnitTest memfds[] = {
		cmocka_unit_test_setup_teardown(test_not_instead, setup, unit_ctx_teardown),
	};
	int failed = cmocka_run_group_tests_name("pool", tests, NULL, NULL);

	return failed +
	       cmocka_run_group_tests_name("pool of memfds", memfds, unit_memfd_setup, NULL);
}
