// SPDX-License-Identifier: MIT
/* Pools of pages and sequences over them: the promises of each call, between handles of one
 * process. */
#include "pages_test.h"

#include "shared/host.h"
#include "pages/pages_internal.h"

static bool no_mappings; /* the process has as many as it may have */

void *mmap(void *addr, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	if (no_mappings) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mmap, addr, bytes, prot, flags, fd, offset);
}

UNIT(test_alloc)
{
	struct scene s = scene_make(&small_pool);
	uint32_t pages[256], more;
	uint8_t seen[256] = {0};
	struct tmesh_pages_info info = pages_info(s.pages);

	assert_int_equal(info.page_bytes, 4096);
	assert_int_equal(info.max_pages, 256);
	for (int i = 0; i < 256; i++) {
		uint8_t *at;

		assert_ok(tmesh_pages_alloc(s.pages, &pages[i], err));
		assert_true(pages[i] < 256);
		assert_false(seen[pages[i]]++);
		at = (uint8_t *)tmesh_pages_base(s.pages, 0) + pages[i] * 4096ull;
		assert_int_equal(at[0], 0);
		memset(at, i, 4096);
	}
	assert_refused(tmesh_pages_alloc(s.pages, &more, err), -EDQUOT, "held");
	for (int i = 0; i < 256; i++)
		assert_int_equal(
			((uint8_t *)tmesh_pages_base(s.pages, 0))[pages[i] * 4096ull + 4095], i);
	assert_ok(tmesh_pages_get(s.pages, pages[7], err));
	assert_ok(tmesh_pages_put(s.pages, pages[7], err));
	assert_refused(tmesh_pages_alloc(s.pages, &more, err), -EDQUOT, "held");
	assert_ok(tmesh_pages_put(s.pages, pages[7], err));
	assert_refused(tmesh_pages_put(s.pages, pages[7], err), -EINVAL, "not this handle's");
	assert_refused(tmesh_pages_get(s.pages, 256, err), -EINVAL, "not this handle's");
	assert_refused(tmesh_pages_get(s.pages, UINT32_MAX, err), -EINVAL, "not this handle's");
	assert_ok(tmesh_pages_alloc(s.pages, &more, err));
	assert_int_equal(more, pages[7]);
	for (int i = 0; i < 256; i++)
		assert_ok(tmesh_pages_put(s.pages, pages[i], err));
	tmesh_pages_trim(s.pages);
	assert_true(settles(&s, 0, 0));
	assert_int_equal(pool_info(&s).free, 256);
	assert_int_equal(pool_info(&s).refused, 0);
	scene_end(&s);
}

/* Allocate a page. A call waits for two seconds, and a busy machine's owner may make huge pages for
 * longer. Such a late answer ends the handle, and the next one finds the slab made. */
static void alloc_patiently(struct scene *s)
{
	uint64_t end = tmesh_now_ns() + UINT64_C(600000000000);
	struct tmesh_error err;
	uint32_t page;
	int rc;

	while ((rc = tmesh_pages_alloc(s->pages, &page, &err)) == -ETIMEDOUT) {
		struct tmesh_pages *late = s->pages;

		do
			rc = tmesh_pages_open(s->ctx, s->token, &s->pages, &err);
		while (rc == -ETIMEDOUT && tmesh_now_ns() < end);
		if (rc)
			break;
		tmesh_pages_unref(late);
	}
	if (rc)
		fail_msg("%s", err.message);
}

/* Slabs lie in huge pages: small ones at once, large ones page by page as they are given. */
UNIT(test_huge)
{
	struct tmesh_stats stats = {.size = sizeof(stats)}, off = stats;
	struct tmesh_page_pool_opts opts = small_pool;
	struct scene s;

	opts.page_bytes = 64 << 10;
	opts.slab_pages = 256;
	s = scene_make(&opts);
	alloc_patiently(&s);
	assert_int_equal(tmesh_stats(s.ctx, &stats), 0);
	scene_end(&s);
	opts.page_bytes = 2 << 20;
	s = scene_make(&opts);
	for (int i = 0; i < 3; i++)
		alloc_patiently(&s);
	assert_int_equal(tmesh_stats(s.ctx, &off), 0);
	scene_end(&s);
	/* A machine that makes none, or gives up on one of the pools, says so. */
	if (stats.huge_given_up || off.huge_given_up || !stats.huge_bytes)
		skip();
	assert_int_equal(stats.huge_bytes, 16 << 20);
	assert_true(off.huge_bytes >= 3 * (2 << 20) && off.huge_bytes < 512 << 20);
}

/* As keys and values of ordinary models need them: no power of two, and larger than 2 MiB. */
UNIT(test_sizes)
{
	const uint64_t pages[] = {3, 5, 576, 1536, 2048};

	for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
		struct tmesh_page_pool_opts opts = small_pool;
		struct tmesh_seq *seq, *fork;
		struct scene s;

		opts.page_bytes = pages[i] * (uint64_t)getpagesize();
		opts.slab_pages = 2;
		opts.max_pages = 8;
		s = scene_make(&opts);
		assert_int_equal(pages_info(s.pages).page_bytes, opts.page_bytes);
		/* The last block is not full, so that the fork copies it. */
		seq = seq_make(s.pages, 5 * small_pool.page_tokens - 1);
		fill(seq, 7);
		assert_ok(tmesh_seq_fork(seq, &fork, err));
		assert_ok(tmesh_seq_append(fork, 1, err));
		assert_int_equal(pages_info(s.pages).copies, 1);
		assert_true(is_filled(seq, 7));
		assert_true(is_filled(fork, 7));
		tmesh_seq_free(fork);
		tmesh_seq_free(seq);
		scene_end(&s);
	}
}

UNIT(test_bad_options)
{
	static const struct {
		struct tmesh_page_pool_opts opts;
		const char *word;
	} bad[] = {
		{{.size = sizeof(small_pool), .page_bytes = 2048}, "page_bytes"},
		{{.size = sizeof(small_pool), .page_bytes = 12288 + 512}, "page_bytes"},
		{{.size = sizeof(small_pool), .page_bytes = TMESH_PAGES_MAX_BYTES + 4096ull},
		 "page_bytes"},
		{{.size = sizeof(small_pool), .page_tokens = 65537}, "page_tokens"},
		{{.size = sizeof(small_pool), .max_pages = TMESH_PAGES_MAX + 1}, "max_pages"},
		{{.size = sizeof(small_pool), .max_pages = TMESH_PAGES_MAX, .slab_pages = 3},
		 "max_pages"},
		{{.size = sizeof(small_pool), .slab_pages = UINT32_MAX}, "slab_pages"},
		{{.size = sizeof(small_pool), .devices = 17}, "devices"},
		{{.size = sizeof(small_pool), .heads = 65537}, "heads"},
		{{.size = sizeof(small_pool), .reserved = 1}, "reserved is 1"},
	};
	struct scene s = scene_make(&small_pool);
	struct tmesh_page_pool *pool = NULL;
	char token[TMESH_TOKEN_SIZE];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_refused(tmesh_page_pool_create(s.ctx, &bad[i].opts, &pool, err), -EINVAL,
			       bad[i].word);
	assert_null(pool);
	assert_refused(tmesh_page_pool_tenant(s.pool, 257, token, err), -EINVAL, "256");
	scene_end(&s);
}

UNIT(test_sequence)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 10);
	uint32_t count;
	int64_t slots[10];
	const int32_t *table = tmesh_seq_table(seq, &count);
	void *addr;

	assert_int_equal(count, 3);
	assert_int_equal(tmesh_seq_tokens(seq), 10);
	fill(seq, 100);
	assert_ok(tmesh_seq_append(seq, 3, err));
	table = tmesh_seq_table(seq, &count);
	assert_int_equal(count, 4);
	assert_ok(tmesh_seq_slot_mapping(seq, 3, 10, slots, err));
	for (int i = 0; i < 10; i++)
		assert_int_equal(slots[i], table[(i + 3) / 4] * 4 + (i + 3) % 4);
	assert_refused(tmesh_seq_slot_mapping(seq, 4, 10, slots, err), -EINVAL, "13");
	assert_refused(tmesh_seq_slot_mapping(seq, UINT64_MAX, 2, slots, err), -EINVAL, "13");
	assert_refused(tmesh_seq_truncate(seq, 14, err), -EINVAL, "13");
	assert_refused(tmesh_seq_append(seq, UINT64_MAX - 3, err), -EINVAL, "at most");
	assert_refused(tmesh_seq_append(seq, TMESH_PAGES_MAX_SEQ * 4ull, err), -EINVAL, "at most");
	assert_refused(tmesh_seq_page(seq, 4, 0, TMESH_READ, &addr, err), -EINVAL, "block 4");
	assert_refused(tmesh_seq_page(seq, 0, 1, TMESH_READ, &addr, err), -EINVAL, "device 1");
	assert_refused(tmesh_seq_page(seq, 0, 0, TMESH_WRITE, &addr, err), -EINVAL, "READ");
	tmesh_seq_free(seq);
	tmesh_seq_free(NULL);
	scene_end(&s);
}

UNIT(test_tables)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seqs[3] = {seq_make(s.pages, 9), seq_make(s.pages, 0),
				     seq_make(s.pages, 4)};
	int32_t tables[3][4], lens[3];

	memset(tables, 0x55, sizeof(tables));
	assert_refused(tmesh_seq_tables(seqs, 3, &tables[0][0], 2, lens, err), -EINVAL,
		       "sequence 0");
	assert_int_equal(tables[0][0], 0x55555555);
	assert_ok(tmesh_seq_tables(seqs, 3, &tables[0][0], 4, lens, err));
	assert_memory_equal(tables[0], tmesh_seq_table(seqs[0], NULL), 12);
	assert_int_equal(tables[0][3], 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(tables[1][i], 0);
	assert_int_equal(tables[2][0], tmesh_seq_table(seqs[2], NULL)[0]);
	assert_int_equal(lens[0], 9);
	assert_int_equal(lens[1], 0);
	assert_int_equal(lens[2], 4);
	/* One that was filled to this end would hold 32,768 pages of 65,536 tokens. */
	seqs[2]->tokens = (uint64_t)INT32_MAX + 1;
	memset(tables, 0x55, sizeof(tables));
	assert_refused(tmesh_seq_tables(seqs, 3, &tables[0][0], 4, lens, err), -EINVAL,
		       "sequence 2 has 2147483648 tokens, which are no int32");
	assert_int_equal(tables[0][0], 0x55555555);
	assert_int_equal(lens[0], 9);
	seqs[2]->tokens = INT32_MAX;
	assert_ok(tmesh_seq_tables(seqs, 3, &tables[0][0], 4, lens, err));
	assert_int_equal(lens[2], INT32_MAX);
	seqs[2]->tokens = 4;
	for (int i = 0; i < 3; i++)
		tmesh_seq_free(seqs[i]);
	scene_end(&s);
}

UNIT(test_view)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq, *fork, *holes[20];
	const uint64_t *view, *again, *forked;
	uint32_t count;

	/* Pages that do not lie one behind the other */
	for (int i = 0; i < 20; i++)
		holes[i] = seq_make(s.pages, 4);
	for (int i = 0; i < 20; i += 2)
		tmesh_seq_free(holes[i]);
	seq = seq_make(s.pages, 30);
	fill(seq, 100);
	assert_refused(tmesh_seq_view(seq, 0, 10, (const void **)&view, err), -EINVAL, "fewer");
	assert_refused(tmesh_seq_view(seq, 1, 100, (const void **)&view, err), -EINVAL, "device");
	assert_ok(tmesh_seq_view(seq, 0, 60, (const void **)&view, err));
	tmesh_seq_table(seq, &count);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(view[i * 512], 100 + i);
	/* It grows in place */
	assert_ok(tmesh_seq_append(seq, 30, err));
	fill(seq, 300);
	tmesh_seq_table(seq, &count);
	assert_int_equal(count, 15);
	assert_ok(tmesh_seq_view(seq, 0, 60, (const void **)&again, err));
	assert_ptr_equal(view, again);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(view[i * 512], 300 + i);
	assert_refused(tmesh_seq_append(seq, 1, err), -EINVAL, "room for 15");
	/* No more room than was taken is promised: beyond it nothing could be read. */
	assert_refused(tmesh_seq_view(seq, 0, 61, (const void **)&again, err), -EINVAL,
		       "fork the sequence");
	/* A replacement is made in it, and only in it */
	assert_int_equal(tmesh_seq_alone(seq, 0, NULL), 1);
	assert_refused(tmesh_seq_alone(seq, count, err), -EINVAL, "no block 15");
	assert_ok(tmesh_seq_fork(seq, &fork, err));
	assert_int_equal(tmesh_seq_alone(seq, 0, NULL), 0);
	assert_int_equal(tmesh_seq_alone(fork, 14, NULL), 0);
	assert_ok(tmesh_seq_view(fork, 0, 61, (const void **)&forked, err));
	fill(seq, 500);
	assert_int_equal(tmesh_seq_alone(seq, 0, NULL), 1);
	for (uint32_t i = 0; i < count; i++) {
		assert_int_equal(view[i * 512], 500 + i);
		assert_int_equal(forked[i * 512], 300 + i);
	}
	assert_ok(tmesh_seq_truncate(seq, 20, err));
	assert_ok(tmesh_seq_append(seq, 20, err));
	fill(seq, 700);
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(view[i * 512], 700 + i);
	assert_int_equal(forked[14 * 512], 314);
	tmesh_seq_free(fork);
	tmesh_seq_free(seq);
	for (int i = 1; i < 20; i += 2)
		tmesh_seq_free(holes[i]);
	scene_end(&s);
}

/* The memory at @addr can be read; the kernel tells without a signal. */
static bool can_read(const volatile void *addr)
{
	int ends[2];
	ssize_t put;

	assert_int_equal(pipe(ends), 0);
	put = write(ends[1], (const void *)addr, 1);
	close(ends[0]);
	close(ends[1]);
	return put == 1;
}

/* At the limit of mappings a view is cut all the same, before another sequence gets its pages. A
 * view never shows a part of what could not be mapped. */
UNIT(test_view_without_mappings)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 16), *other;
	const volatile uint64_t *view;
	const void *again;
	uint32_t count;

	assert_ok(tmesh_seq_view(seq, 0, 60, (const void **)&view, err));
	fill(seq, 100);
	no_mappings = true;
	assert_ok(tmesh_seq_truncate(seq, 8, err));
	assert_refused(tmesh_seq_append(seq, 8, err), -EINVAL, "room for 2");
	no_mappings = false;
	other = seq_make(s.pages, 16);
	fill(other, 500);
	for (int block = 0; block < 15; block++)
		assert_int_equal(can_read(view + block * 512), block < 2);
	assert_int_equal(view[512], 101);
	tmesh_seq_table(seq, &count);
	assert_int_equal(count, 2);
	assert_ok(tmesh_seq_view(seq, 0, 8, &again, err));
	assert_ptr_equal(again, view);
	tmesh_seq_free(other);
	no_mappings = true;
	tmesh_seq_free(seq);
	no_mappings = false;
	seq = seq_make(s.pages, 4);
	assert_ok(tmesh_seq_view(seq, 0, 60, (const void **)&view, err));
	no_mappings = true;
	assert_refused(tmesh_seq_append(seq, 8, err), -ENOMEM, "mapping");
	no_mappings = false;
	assert_true(can_read(view));
	assert_false(can_read(view + 512));
	tmesh_seq_free(seq);
	scene_end(&s);
}

UNIT(test_view_ends)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 8);
	const volatile uint64_t *view;
	int status;

	assert_ok(tmesh_seq_view(seq, 0, 60, (const void **)&view, err));
	assert_ok(tmesh_seq_truncate(seq, 4, err));
	for (int block = 0; block < 2; block++) {
		pid_t child = fork();

		/* The child inherits no page at all; the second is beyond the end for the parent
		 * too. */
		if (child == 0) {
			signal(SIGSEGV, SIG_DFL);
			(void)view[block * 512];
			_exit(0);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	assert_int_equal(view[0], 0);
	tmesh_seq_free(seq);
	scene_end(&s);
}

UNIT(test_gather)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 30);
	struct tmesh_region *region;
	uint64_t *at;

	fill(seq, 100);
	if (unit_on_kernel()) {
		assert_ok(tmesh_seq_gather(seq, 0, &region, err));
		assert_int_equal(tmesh_region_bytes(region), 8 * 4096);
		assert_ok(tmesh_region_map(region, TMESH_READ, (void **)&at, err));
		for (int i = 0; i < 8; i++)
			assert_int_equal(at[i * 512], 100 + i);
		tmesh_region_unmap(region, TMESH_READ);
		tmesh_region_unref(region);
	} else {
		assert_refused(tmesh_seq_gather(seq, 0, &region, err), -EOPNOTSUPP, "");
	}
	assert_refused(tmesh_seq_gather(seq, 1, &region, err), -EINVAL, "device");
	tmesh_seq_free(seq);
	scene_end(&s);
}

static void hashes_of(struct tmesh_pages *pages, const int32_t *tokens, uint32_t blocks,
		      uint64_t (*hashes)[2])
{
	for (uint32_t i = 0; i < blocks; i++)
		tmesh_pages_hash(pages, i ? hashes[i - 1] : NULL, tokens + 4 * i, 4, hashes[i]);
}

/* Another block in front: none of the hashes is the same. */
UNIT(test_hash)
{
	struct scene s = scene_make(&small_pool);
	int32_t tokens[20] = {1};
	uint64_t hashes[2][5][2];

	hashes_of(s.pages, tokens, 5, hashes[0]);
	tokens[0]++;
	hashes_of(s.pages, tokens, 5, hashes[1]);
	for (int i = 0; i < 5; i++)
		assert_true(hashes[0][i][0] != hashes[1][i][0] &&
			    hashes[0][i][1] != hashes[1][i][1]);
	scene_end(&s);
}

static void *trim(void *pages)
{
	tmesh_pages_trim(pages);
	return NULL;
}

/* Nor is kept what was asked for ahead: the owner, under its lock, answers when the trimming has
 * begun. */
UNIT(test_trim)
{
	struct tmesh_page_pool_opts opts = small_pool;
	struct tmesh_seq *seq;
	pthread_t thread;
	struct scene s;
	int rc;

	/* One slab: there is nothing else to ask for. */
	opts.slab_pages = opts.max_pages;
	s = scene_make(&opts);
	seq = seq_make(s.pages, 4);
	model_host_lock();
	/* 23 of 64 pages are left: fewer than it wants to have. */
	rc = tmesh_seq_append(seq, 40 * 4, NULL);
	tmesh_seq_free(seq);
	assert_int_equal(pthread_create(&thread, NULL, trim, s.pages), 0);
	usleep(20000);
	model_host_unlock();
	pthread_join(thread, NULL);
	assert_int_equal(rc, 0);
	assert_true(settles(&s, 0, 0));
	scene_end(&s);
}

static uint32_t asked, spared;

static bool evict(void *data, const struct tmesh_page_victim *victim)
{
	(void)data;
	asked++;
	return victim->page != spared;
}

UNIT(test_eviction)
{
	struct tmesh_page_pool_opts opts = small_pool;
	struct scene s;
	struct tmesh_seq *seq, *big, *found;
	int32_t tokens[16] = {0};
	uint64_t hashes[4][2];

	opts.evict = evict;
	opts.max_pages = 16;
	s = scene_make(&opts);
	hashes_of(s.pages, tokens, 4, hashes);
	seq = seq_make(s.pages, 16);
	fill(seq, 100);
	assert_ok(tmesh_seq_cache(seq, (const uint64_t(*)[2])hashes, 4, err));
	spared = (uint32_t)tmesh_seq_table(seq, NULL)[0];
	tmesh_seq_free(seq);
	big = seq_make(s.pages, 15 * 4);
	assert_int_equal(pool_info(&s).evicted, 3);
	assert_true(asked >= 3);
	asked = 0;
	assert_refused(tmesh_seq_append(big, 1, err), -EDQUOT, "held");
	assert_true(asked > 0);
	assert_ok(tmesh_pages_find(s.pages, (const uint64_t(*)[2])hashes, 4, &found, err));
	assert_int_equal(tmesh_seq_tokens(found), 4);
	assert_true(is_filled(found, 100));
	asked = 0;
	spared = UINT32_MAX;
	/* Held, it is not even asked about. */
	assert_refused(tmesh_seq_append(big, 1, err), -EDQUOT, "held");
	assert_int_equal(asked, 0);
	tmesh_seq_free(found);
	assert_ok(tmesh_seq_append(big, 1, err));
	assert_int_equal(pool_info(&s).cached, 0);
	tmesh_seq_free(big);
	scene_end(&s);
}

/* With the handle that gave it a ticket ends, and its pages are there for others. */
UNIT(test_tickets_end)
{
	struct scene s = scene_make(&small_pool);
	char ticket[TMESH_PAGES_TICKET_SIZE];
	struct tmesh_pages *other;
	struct tmesh_seq *seq;

	assert_ok(tmesh_pages_open(s.ctx, s.token, &other, err));
	seq = seq_make(other, 18);
	for (int i = 0; i < 2; i++)
		assert_ok(tmesh_seq_share(seq, ticket, err));
	assert_ok(tmesh_pages_unshare(other, ticket, err));
	tmesh_seq_free(seq);
	assert_int_equal(pool_info(&s).tickets, 1);
	tmesh_pages_unref(other);
	assert_true(settles(&s, 0, 0));
	assert_int_equal(pool_info(&s).tickets, 0);
	scene_end(&s);
}

UNIT(test_many_tickets)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 4);
	char ticket[TMESH_PAGES_TICKET_SIZE];

	for (int i = 0; i < 1024; i++)
		assert_ok(tmesh_seq_share(seq, ticket, err));
	assert_refused(tmesh_seq_share(seq, ticket, err), -EDQUOT, "tickets");
	assert_ok(tmesh_pages_unshare(s.pages, ticket, err));
	assert_ok(tmesh_seq_share(seq, ticket, err));
	tmesh_seq_free(seq);
	scene_end(&s);
}

/* No slab is of two tenants, nor a hash. */
UNIT(test_tenants)
{
	struct scene s = scene_make(&small_pool);
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_pages *stranger;
	struct tmesh_seq *seq = seq_make(s.pages, 8), *theirs;
	int32_t tokens[8] = {1, 2, 3};
	uint64_t hashes[2][2], other[2][2];

	assert_ok(tmesh_page_pool_tenant(s.pool, 20, token, err));
	assert_ok(tmesh_pages_open(s.ctx, token, &stranger, err));
	hashes_of(s.pages, tokens, 2, hashes);
	hashes_of(stranger, tokens, 2, other);
	for (int i = 0; i < 4; i++)
		assert_true(hashes[i / 2][i % 2] != other[i / 2][i % 2]);
	theirs = seq_make(stranger, 32 * 4);
	for (uint32_t i = 0; i < 32; i++)
		for (uint32_t n = 0; n < 2; n++)
			assert_true(tmesh_seq_table(theirs, NULL)[i] / 16 !=
				    tmesh_seq_table(seq, NULL)[n] / 16);
	tmesh_seq_free(theirs);
	tmesh_seq_free(seq);
	tmesh_pages_unref(stranger);
	scene_end(&s);
}

static unsigned int placed[2];

static int place(void *data, struct tmesh_ctx *ctx, uint32_t device, uint64_t bytes,
		 struct tmesh_region **out, struct tmesh_error *err)
{
	assert_ptr_equal(data, placed);
	if (placed[device] == 2)
		return -ENOMEM;
	placed[device]++;
	return tmesh_region_create(ctx, bytes, NULL, out, err);
}

UNIT(test_devices)
{
	struct tmesh_page_pool_opts opts = small_pool;
	struct tmesh_seq *seq, *fork;
	uint32_t device, at;
	struct scene s;
	uint64_t *word[2];

	opts.devices = 2;
	opts.heads = 5;
	opts.place = place;
	opts.data = placed;
	s = scene_make(&opts);
	for (uint32_t head = 0; head < 5; head++) {
		assert_ok(tmesh_pages_head(s.pages, head, &device, &at, err));
		assert_int_equal(device, head % 2);
		assert_int_equal(at, head / 2);
	}
	assert_refused(tmesh_pages_head(s.pages, 5, &device, &at, err), -EINVAL,
		       "no head 5: the pool's 5 heads");
	assert_null(tmesh_pages_base(s.pages, 2));
	seq = seq_make(s.pages, 2);
	for (uint32_t d = 0; d < 2; d++) {
		assert_ok(tmesh_seq_page(seq, 0, d, RW, (void **)&word[d], err));
		*word[d] = 7 + d;
	}
	assert_ok(tmesh_seq_fork(seq, &fork, err));
	assert_ok(tmesh_seq_append(fork, 1, err));
	for (uint32_t d = 0; d < 2; d++) {
		assert_ok(tmesh_seq_page(fork, 0, d, RW, (void **)&word[d], err));
		assert_int_equal(*word[d], 7 + d);
		*word[d] = 0;
		assert_ok(tmesh_seq_page(seq, 0, d, TMESH_READ, (void **)&word[d], err));
		assert_int_equal(*word[d], 7 + d);
	}
	assert_int_equal(placed[0], 1);
	/* A slab that cannot be made is an error of its own, and nothing half. */
	assert_refused(tmesh_seq_append(seq, 40 * 4, err), -ENOMEM, "memory");
	assert_int_equal(placed[0], 2);
	assert_int_equal(placed[1], 2);
	assert_int_equal(tmesh_seq_tokens(seq), 2);
	tmesh_seq_free(fork);
	tmesh_seq_free(seq);
	scene_end(&s);
}

/* Pages that one handle keeps ready go to another one when it needs them. */
UNIT(test_recall)
{
	struct tmesh_page_pool_opts opts = small_pool;
	struct tmesh_pages *other;
	struct tmesh_seq *seq;
	uint32_t page, more[16];
	struct scene s;

	opts.max_pages = 32;
	s = scene_make(&opts);
	assert_ok(tmesh_pages_alloc(s.pages, &page, err));
	assert_int_equal(pages_info(s.pages).spare, 15);
	for (int i = 0; i < 16; i++)
		assert_ok(tmesh_pages_alloc(s.pages, &more[i], err));
	for (int i = 0; i < 16; i++)
		assert_ok(tmesh_pages_put(s.pages, more[i], err));
	assert_int_equal(pages_info(s.pages).spare, 31);
	assert_ok(tmesh_pages_open(s.ctx, s.token, &other, err));
	assert_ok(tmesh_seq_create(other, &seq, err));
	assert_refused(tmesh_seq_append(seq, 4, err), -EDQUOT, "held");
	tmesh_pages_trim(s.pages);
	assert_int_equal(pages_info(s.pages).spare, 0);
	assert_ok(tmesh_seq_append(seq, 31 * 4, err));
	assert_ok(tmesh_pages_put(s.pages, page, err));
	tmesh_seq_free(seq);
	tmesh_pages_unref(other);
	scene_end(&s);
}

UNIT(test_inherited)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 8), *none;
	uint32_t page;
	int status;
	pid_t child;

	fill(seq, 100);
	child = fork();
	if (child == 0) {
		struct tmesh_page_pool_info info = {.size = sizeof(info)};
		struct tmesh_pages *own;

		CHECK(tmesh_pages_alloc(s.pages, &page, NULL) == -EPERM);
		CHECK(tmesh_seq_append(seq, 4, NULL) == -EPERM);
		CHECK(tmesh_seq_fork(seq, &none, NULL) == -EPERM);
		CHECK(tmesh_page_pool_tenant(s.pool, 0, s.token, NULL) == -EPERM);
		CHECK(tmesh_page_pool_info(s.pool, &info, NULL) == -EPERM);
		CHECK(!tmesh_pages_open(s.ctx, s.token, &own, NULL));
		CHECK(!tmesh_pages_alloc(own, &page, NULL));
		tmesh_pages_unref(own);
		tmesh_seq_free(seq);
		scene_end(&s);
		unit_leave(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail_msg("the child ended with status %#x", (unsigned int)status);
	assert_true(is_filled(seq, 100));
	assert_ok(tmesh_seq_append(seq, 4, err));
	tmesh_seq_free(seq);
	scene_end(&s);
}

/* Two thousand steps at random beside a model of their own. */
UNIT(test_random)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seqs[12] = {NULL};
	uint64_t words[12];

	srand(1);
	for (int step = 1; step <= 4000; step++) {
		int i = rand() % 12, j = rand() % 12;
		uint64_t grow = (uint64_t)(rand() % 12);

		if (!seqs[i]) {
			seqs[i] = seq_make(s.pages, 1);
			words[i] = (uint64_t)step << 20;
		} else if (rand() % 5 == 0) {
			tmesh_seq_free(seqs[i]);
			seqs[i] = NULL;
			continue;
		} else if (rand() % 5 == 0 && !seqs[j]) {
			assert_ok(tmesh_seq_fork(seqs[i], &seqs[j], err));
			words[j] = words[i];
			continue;
		} else if (rand() % 3 == 0) {
			assert_ok(tmesh_seq_truncate(seqs[i], tmesh_seq_tokens(seqs[i]) / 2, err));
		} else if (tmesh_seq_append(seqs[i], grow, NULL)) {
			continue;
		}
		words[i] = (uint64_t)step << 20;
		fill(seqs[i], words[i]);
		for (int n = 0; n < 12; n++)
			assert_true(!seqs[n] || is_filled(seqs[n], words[n]));
	}
	for (int i = 0; i < 12; i++)
		tmesh_seq_free(seqs[i]);
	tmesh_pages_trim(s.pages);
	assert_true(settles(&s, 0, 0));
	assert_int_equal(pool_info(&s).refused, 0);
	scene_end(&s);
}

UNIT_MAIN("pages", NULL, NULL)
