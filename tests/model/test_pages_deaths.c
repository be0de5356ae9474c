// SPDX-License-Identifier: MIT
/*
 * Processes that allocate, append, fork, cache, find, share and free at once, and are killed at any
 * moment. Their pages are free again, and the pages of others stay as they were.
 * TMESH_TEST_LENGTH=full kills a thousand.
 */
#include <tmesh/import.h>

#include "shared/listener.h"
#include "pages_test.h"

#define WORKERS 3
#define SEQS 6
#define BLOCK_TOKENS 4

/* Outside the pool: the tickets that workers show each other. */
struct scoreboard {
	_Atomic uint32_t fault; /* line of the first check that failed */
	_Atomic uint64_t work;
	_Atomic uint32_t guard;
	char ticket[WORKERS][TMESH_PAGES_TICKET_SIZE];
};

static struct scoreboard *scoreboard;

#define EXPECT(condition)                                                                     \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			uint32_t none_ = 0;                                                   \
                                                                                              \
			atomic_compare_exchange_strong(&scoreboard->fault, &none_, __LINE__); \
			pause();                                                              \
		}                                                                             \
	} while (0)

static int kills(void)
{
	const char *length = getenv("TMESH_TEST_LENGTH");

	if (length && !strcmp(length, "full"))
		return 1000;
	return unit_on_kernel() ? 12 : 40;
}

/* Each block tells in its first words whose content it is; it is whole or the check fails. */
static void mark(struct tmesh_pages *pages, struct tmesh_seq *seq, uint32_t block, uint64_t word)
{
	uint64_t *at;

	EXPECT(!tmesh_seq_page(seq, block, 0, RW, (void **)&at, NULL));
	for (int n = 0; n < 512; n += 64)
		at[n] = word;
}

static uint64_t marked(struct tmesh_seq *seq, uint32_t block)
{
	uint64_t *at;

	EXPECT(!tmesh_seq_page(seq, block, 0, TMESH_READ, (void **)&at, NULL));
	for (int n = 64; n < 512; n += 64)
		EXPECT(at[n] == at[0]);
	return at[0];
}

struct own {
	struct tmesh_seq *seq;
	uint64_t words[32];
	uint32_t count;
};

static void check(struct own *own)
{
	for (uint32_t i = 0; own->seq && i < own->count; i++)
		EXPECT(marked(own->seq, i) == own->words[i]);
}

static void hash_of(struct tmesh_pages *pages, uint32_t what, uint64_t hash[2])
{
	int32_t token = (int32_t)what;

	tmesh_pages_hash(pages, NULL, &token, 1, hash);
}

/* The content cached under a hash is a function of it. */
static uint64_t word_of(uint32_t what)
{
	return 0xcace000000000000u | what;
}

static void step(struct tmesh_pages *pages, struct own *own, int who, uint64_t *word)
{
	struct own *one = &own[rand() % SEQS], *two = &own[rand() % SEQS];
	uint32_t what = (uint32_t)(rand() % 20), before;
	uint64_t hash[1][2];
	char ticket[TMESH_PAGES_TICKET_SIZE];

	if (!one->seq) {
		EXPECT(!tmesh_seq_create(pages, &one->seq, NULL));
		one->count = 0;
	}
	switch (rand() % 9) {
	case 0:
	case 1:
	case 2:
		before = one->count;
		if (before < 30 && !tmesh_seq_append(one->seq, BLOCK_TOKENS, NULL)) {
			mark(pages, one->seq, before, ++*word);
			one->words[one->count++] = *word;
		}
		break;
	case 3:
		if (one->count) {
			uint32_t i = (uint32_t)rand() % one->count;
			uint64_t *at;

			/* No page may be left to copy it to. */
			if (!tmesh_seq_page(one->seq, i, 0, RW, (void **)&at, NULL)) {
				mark(pages, one->seq, i, ++*word);
				one->words[i] = *word;
			}
		}
		break;
	case 4:
		if (!two->seq && one->count) {
			EXPECT(!tmesh_seq_fork(one->seq, &two->seq, NULL));
			memcpy(two->words, one->words, sizeof(two->words));
			two->count = one->count;
		}
		break;
	case 5:
		hash_of(pages, what, hash[0]);
		tmesh_seq_free(one->seq);
		one->seq = NULL;
		EXPECT(!tmesh_pages_find(pages, (const uint64_t(*)[2])hash, 1, &one->seq, NULL));
		tmesh_seq_table(one->seq, &one->count);
		one->words[0] = word_of(what);
		break;
	case 6:
		hash_of(pages, what, hash[0]);
		if (!two->seq) {
			EXPECT(!tmesh_seq_create(pages, &two->seq, NULL));
			two->count = 0;
			if (!tmesh_seq_append(two->seq, BLOCK_TOKENS, NULL)) {
				mark(pages, two->seq, 0, word_of(what));
				two->words[two->count++] = word_of(what);
				EXPECT(!tmesh_seq_cache(two->seq, (const uint64_t(*)[2])hash, 1,
							NULL));
			}
		}
		break;
	case 7:
		if (one->count && !tmesh_seq_share(one->seq, ticket, NULL)) {
			/* Torn texts are no tickets. */
			memcpy(scoreboard->ticket[who], ticket, sizeof(ticket));
			if (rand() % 2)
				EXPECT(!tmesh_pages_unshare(pages, ticket, NULL));
		}
		tmesh_seq_free(one->seq);
		one->seq = NULL;
		break;
	default:
		memcpy(ticket, scoreboard->ticket[rand() % WORKERS], sizeof(ticket));
		ticket[sizeof(ticket) - 1] = '\0';
		if (!two->seq && !tmesh_seq_open(pages, ticket, &two->seq, NULL)) {
			tmesh_seq_table(two->seq, &two->count);
			/* Any content is right, but it has to stay the same. */
			for (uint32_t i = 0; i < two->count; i++)
				two->words[i] = marked(two->seq, i);
		}
	}
	check(&own[rand() % SEQS]);
}

static _Noreturn void work(const char *token, int who, unsigned int seed)
{
	struct own own[SEQS] = {{0}};
	struct tmesh_pages *pages;
	struct tmesh_ctx *ctx;
	uint64_t word = (uint64_t)seed << 32;

	/* The harness would go on with its tests in this process. */
	signal(SIGSEGV, SIG_DFL);
	signal(SIGBUS, SIG_DFL);
	srand(seed);
	EXPECT(!tmesh_ctx_open(NULL, &ctx, NULL));
	EXPECT(!tmesh_pages_open(ctx, token, &pages, NULL));
	for (;;) {
		step(pages, own, who, &word);
		atomic_fetch_add(&scoreboard->work, 1);
	}
}

static pid_t start(const char *token, int who, unsigned int seed)
{
	pid_t child = fork();

	if (child == 0)
		work(token, who, seed);
	assert_true(child > 0);
	return child;
}

static void test_storm(void **state)
{
	struct tmesh_page_pool_opts opts = small_pool;
	pid_t workers[WORKERS];
	struct tmesh_page_pool_info info;
	unsigned int seed = 0;
	struct scene s;
	struct tmesh_seq *mine;
	uint64_t enough;

	opts.page_tokens = BLOCK_TOKENS;
	s = scene_make(&opts);
	/* No other process knows this one: it must not change whatever they do. */
	mine = seq_make(s.pages, 40);
	fill(mine, 4200);
	for (int i = 0; i < WORKERS; i++)
		workers[i] = start(s.token, i, ++seed);
	for (int i = 0; i < kills(); i++) {
		uint64_t until = atomic_load(&scoreboard->work) + (uint64_t)(rand() % 2000);
		int victim = rand() % WORKERS, status;

		/* Now and then before it has joined. */
		for (int n = 0; n < 1000 && atomic_load(&scoreboard->work) < until; n++)
			usleep(100);
		kill(workers[victim], SIGKILL);
		assert_int_equal(waitpid(workers[victim], &status, 0), workers[victim]);
		if (atomic_load(&scoreboard->fault) || !WIFSIGNALED(status))
			fail_msg("a worker's check in line %u failed",
				 atomic_load(&scoreboard->fault));
		workers[victim] = start(s.token, victim, ++seed);
		assert_true(is_filled(mine, 4200));
	}
	/* All before may have been killed before they had a page: of these one has some. */
	enough = atomic_load(&scoreboard->work) + 300;
	for (int n = 0; n < 600000 && atomic_load(&scoreboard->work) < enough; n++)
		usleep(100);
	for (int i = 0; i < WORKERS; i++) {
		kill(workers[i], SIGKILL);
		waitpid(workers[i], NULL, 0);
	}
	assert_int_equal(atomic_load(&scoreboard->fault), 0);
	assert_true(is_filled(mine, 4200));
	tmesh_seq_free(mine);
	tmesh_pages_unref(s.pages);
	for (int i = 0; i < 60000 && (info = pool_info(&s)).handles; i++)
		usleep(1000);
	info = pool_info(&s);
	assert_int_equal(info.handles, 0);
	assert_int_equal(info.held, 0);
	assert_int_equal(info.tickets, 0);
	assert_int_equal(info.refused, 0);
	assert_int_equal(info.free + info.cached, info.pages);
	assert_true(info.died > 0 && info.reclaimed > 0);
	print_message("%llu steps, %d kills, %llu pages reclaimed, %llu evicted\n",
		      (unsigned long long)atomic_load(&scoreboard->work), kills(),
		      (unsigned long long)info.reclaimed, (unsigned long long)info.evicted);
	s.pages = NULL;
	scene_end(&s);
}

/* The pool's owner is killed: the others keep their pages, and know. */
static void test_owner_killed(void **state)
{
	for (int round = 0; round < kills() / 10; round++) {
		char token[TMESH_TOKEN_SIZE];
		struct tmesh_pages *pages;
		struct tmesh_ctx *ctx;
		struct tmesh_seq *seq;
		int ends[2];
		pid_t child;
		uint64_t grown = 0;
		int rc;

		assert_int_equal(pipe(ends), 0);
		child = fork();
		if (child == 0) {
			struct tmesh_page_pool *pool;

			CHECK(!tmesh_ctx_open(NULL, &ctx, NULL));
			CHECK(!tmesh_page_pool_create(ctx, &small_pool, &pool, NULL));
			CHECK(!tmesh_page_pool_tenant(pool, 0, token, NULL));
			CHECK(write(ends[1], token, sizeof(token)) == sizeof(token));
			for (;;)
				pause();
		}
		assert_int_equal(read(ends[0], token, sizeof(token)), sizeof(token));
		close(ends[0]);
		close(ends[1]);
		assert_ok(tmesh_ctx_open(NULL, &ctx, err));
		assert_ok(tmesh_pages_open(ctx, token, &pages, err));
		seq = seq_make(pages, 8);
		fill(seq, 100);
		if (round % 2)
			kill(child, SIGSTOP); /* a stopped one is a limit of time, not for ever */
		kill(child, SIGKILL);
		while (!(rc = tmesh_seq_append(seq, 4, NULL)))
			grown++;
		assert_int_equal(rc, -EPIPE);
		assert_true(grown <= 256);
		fill(seq, 300);
		assert_true(is_filled(seq, 300));
		assert_int_equal(waitpid(child, NULL, 0), child);
		tmesh_seq_free(seq);
		tmesh_pages_unref(pages);
		tmesh_ctx_unref(ctx);
	}
}

/* A process that writes for another one keeps its lifeline: the dead one's pages are no other's
 * until that is over. An orderly exit of the owner ends the pool for all. */
static void test_lifeline(void **state)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_region *region, *same;
	struct tmesh_pages *other;
	struct tmesh_seq *seq, *found;
	int pair[2], fd, status;
	char byte = 0;
	pid_t child;
	void *at;

	assert_refused(tmesh_pages_slab(s.pages, 0, 0, &region, err), -ENOENT, "no page of slab 0");
	assert_ok(tmesh_seq_create(s.pages, &seq, err));
	assert_ok(tmesh_seq_append(seq, 1, err));
	assert_refused(tmesh_pages_slab(s.pages, 0, 1, &region, err), -EINVAL, "each of 1 devices");
	assert_refused(tmesh_pages_slab(s.pages, 16, 0, &region, err), -EINVAL, "16 slabs");
	assert_ok(tmesh_pages_slab(s.pages, 0, 0, &region, err));
	assert_ok(tmesh_region_map(region, RW, &at, err));
	((char *)tmesh_pages_base(s.pages, 0))[tmesh_seq_table(seq, NULL)[0] * 4096] = 77;
	assert_int_equal(((char *)at)[tmesh_seq_table(seq, NULL)[0] * 4096], 77);
	tmesh_region_unmap(region, RW);
	tmesh_region_unref(region);

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	child = fork();
	if (!child) {
		struct tmesh_pages *theirs;
		struct tmesh_ctx *ctx;
		struct tmesh_seq *one;

		CHECK(!tmesh_ctx_open(NULL, &ctx, NULL));
		CHECK(!tmesh_pages_open(ctx, s.token, &theirs, NULL));
		CHECK(!tmesh_seq_create(theirs, &one, NULL) && !tmesh_seq_append(one, 40, NULL));
		CHECK(!tmesh_pages_lifeline(theirs, &same, NULL));
		CHECK(!tmesh_region_opaque_fd(same, &fd, NULL));
		CHECK(!model_socket_send(pair[1], &byte, 1, fd));
		raise(SIGKILL);
	}
	close(pair[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(model_socket_recv(pair[0], &byte, 1, &fd), 1);
	assert_true(fd >= 0);
	/* Its own descriptors are closed, and the owner has heard what came before this question.
	 */
	assert_ok(tmesh_pages_find(s.pages, (const uint64_t[1][2]){{1, 2}}, 1, &found, err));
	tmesh_seq_free(found);
	assert_int_equal(pool_info(&s).handles, 2);
	assert_int_equal(pool_info(&s).died, 0);
	close(fd);
	close(pair[0]);
	for (int i = 0; i < 60000 && !pool_info(&s).died; i++)
		usleep(1000);
	assert_int_equal(pool_info(&s).died, 1);
	assert_int_equal(pool_info(&s).handles, 1);
	assert_true(pool_info(&s).reclaimed >= 10);

	assert_ok(tmesh_pages_open(s.ctx, s.token, &other, err));
	assert_ok(tmesh_pages_lifeline(other, &region, err));
	assert_ok(tmesh_region_opaque_fd(region, &fd, err));
	tmesh_pages_unref(other);
	assert_int_equal(recv(fd, &byte, 1, 0), 0);
	close(fd);
	tmesh_region_unref(region);
	tmesh_seq_free(seq);
	scene_end(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_storm),
		TEST(test_owner_killed),
		TEST(test_lifeline),
	};

	scoreboard = mmap(NULL, sizeof(*scoreboard), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return cmocka_run_group_tests_name("pages_deaths", tests, NULL, NULL);
}
