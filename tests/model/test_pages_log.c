// SPDX-License-Identifier: MIT
/*
 * Tables that others follow: copies are equal to the tables, however those change. A copy that
 * falls behind or meets damage reports that and is whole again after a resync. Damage is written
 * where only the writer can, through its own mapping.
 */
#include <poll.h>
#include <tmesh/page_table.h>

#include "pages/log.h"
#include "pages/pages_internal.h"
#include "pages_test.h"

/* Functions in the place of the libraries': they count the work of an update. */

static size_t moved;	       /* bytes */
static struct tmesh_seq *grow; /* a sequence that grows whenever a record is read */
static unsigned int reads, grown;

void *__real_memmove(void *to, const void *from, size_t bytes);
void *__wrap_memmove(void *to, const void *from, size_t bytes);
int __real_model_follow_next(struct model_follower *follower);
int __wrap_model_follow_next(struct model_follower *follower);

void *__wrap_memmove(void *to, const void *from, size_t bytes)
{
	moved += bytes;
	return __real_memmove(to, from, bytes);
}

int __wrap_model_follow_next(struct model_follower *follower)
{
	reads++;
	if (grow && grown < 1000) {
		grown++;
		assert_ok(tmesh_seq_append(grow, 0, err));
	}
	return __real_model_follow_next(follower);
}

static struct model_log *log_of(struct tmesh_pages *pages)
{
	return (struct model_log *)pages->log;
}

static bool same(struct tmesh_page_copy *copy, struct tmesh_seq *const *seqs, size_t count)
{
	size_t there = 0;

	for (size_t i = 0; i < count; i++) {
		uint32_t blocks, own;
		uint64_t tokens;
		const int32_t *table, *mine;

		if (!seqs[i])
			continue;
		there++;
		mine = tmesh_seq_table(seqs[i], &own);
		table = tmesh_page_copy_table(copy, tmesh_seq_id(seqs[i]), &blocks, &tokens);
		if (!table || blocks != own || tokens != tmesh_seq_tokens(seqs[i]) ||
		    (own && memcmp(table, mine, own * sizeof(*mine))))
			return false;
	}
	return tmesh_page_copy_count(copy) == there;
}

static struct tmesh_page_copy *follow(struct scene *s, uint32_t segment)
{
	struct tmesh_page_copy *copy;
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_pages_log(s->pages, segment, token, err));
	assert_ok(tmesh_page_copy_open(s->ctx, token, &copy, err));
	return copy;
}

UNIT(test_follow)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seqs[12] = {seq_make(s.pages, 10)};
	struct tmesh_page_copy *copy = follow(&s, 4096), *late;
	uint64_t number = 0;
	void *addr;

	assert_int_equal(tmesh_page_copy_count(copy), 0);
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_true(same(copy, seqs, 12));
	assert_int_equal(tmesh_page_copy_id(copy, 0), tmesh_seq_id(seqs[0]));
	assert_int_equal(tmesh_page_copy_id(copy, 1), 0);
	assert_null(tmesh_page_copy_table(copy, 99, NULL, NULL));
	srand(2);
	for (int step = 0; step < 5000; step++) {
		int i = rand() % 12, j = rand() % 12;

		if (!seqs[i])
			assert_ok(tmesh_seq_create(s.pages, &seqs[i], err));
		else if (rand() % 4 == 0)
			tmesh_seq_append(seqs[i], (uint64_t)(rand() % 40), NULL);
		else if (rand() % 4 == 0)
			assert_ok(tmesh_seq_truncate(seqs[i], tmesh_seq_tokens(seqs[i]) / 2, err));
		else if (rand() % 3 == 0 && !seqs[j])
			assert_ok(tmesh_seq_fork(seqs[i], &seqs[j], err));
		else if (rand() % 3 == 0 && tmesh_seq_tokens(seqs[i]))
			tmesh_seq_page(seqs[i], 0, 0, RW, &addr, NULL);
		else if (rand() % 6 == 0) {
			tmesh_seq_free(seqs[i]);
			seqs[i] = NULL;
		}
		if (rand() % 3)
			continue;
		assert_ok(tmesh_page_copy_update(copy, err));
		assert_true(same(copy, seqs, 12));
		assert_true(tmesh_page_copy_number(copy) >= number);
		number = tmesh_page_copy_number(copy);
	}
	/* Many times round. */
	assert_true(log_of(s.pages)->head->tail >> 32 > 20);
	late = follow(&s, 0);
	assert_ok(tmesh_page_copy_update(late, err));
	assert_true(same(late, seqs, 12));
	for (int i = 0; i < 12; i++)
		tmesh_seq_free(seqs[i]);
	assert_ok(tmesh_page_copy_update(late, err));
	assert_int_equal(tmesh_page_copy_count(late), 0);
	assert_ok(tmesh_page_copy_update(late, err));
	tmesh_page_copy_close(late);
	tmesh_page_copy_close(copy);
	tmesh_page_copy_close(NULL);
	scene_end(&s);
}

/* One table of several records */
UNIT(test_long_table)
{
	struct tmesh_page_pool_opts opts = small_pool;
	struct tmesh_page_copy *copy;
	struct tmesh_seq *seq;
	struct scene s;

	opts.max_pages = 4096;
	s = scene_make(&opts);
	copy = follow(&s, 0);
	seq = seq_make(s.pages, 4000 * 4 + 1);
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_true(same(copy, &seq, 1));
	assert_ok(tmesh_seq_truncate(seq, 1000 * 4, err));
	assert_ok(tmesh_seq_append(seq, 2000 * 4 + 3, err));
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_true(same(copy, &seq, 1));
	tmesh_page_copy_close(copy);
	tmesh_seq_free(seq);
	scene_end(&s);
}

UNIT(test_behind)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 4);
	struct tmesh_page_copy *copy = follow(&s, 4096);
	uint64_t tokens;

	assert_ok(tmesh_page_copy_update(copy, err));
	for (int i = 0; i < 200; i++)
		assert_ok(tmesh_seq_append(seq, 1, err));
	assert_refused(tmesh_page_copy_update(copy, err), -ESTALE, "behind");
	assert_refused(tmesh_page_copy_update(copy, err), -ESTALE, "resynchronise");
	assert_non_null(tmesh_page_copy_table(copy, tmesh_seq_id(seq), NULL, &tokens));
	assert_int_equal(tokens, 4);
	assert_ok(tmesh_page_copy_resync(copy, err));
	assert_non_null(tmesh_page_copy_table(copy, tmesh_seq_id(seq), NULL, &tokens));
	assert_int_equal(tokens, 4);
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_true(same(copy, &seq, 1));
	tmesh_page_copy_close(copy);
	tmesh_seq_free(seq);
	scene_end(&s);
}

/* Every byte of what is not read yet is damaged in turn: none goes unnoticed, none is half taken.
 */
UNIT(test_damage)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 4);
	struct tmesh_page_copy *copy = follow(&s, 65536);
	struct log_head *head = log_of(s.pages)->head;
	uint32_t from, to;

	assert_ok(tmesh_page_copy_update(copy, err));
	from = (uint32_t)head->tail;
	assert_ok(tmesh_seq_append(seq, 5, err));
	to = (uint32_t)head->tail;
	assert_true(to > from + sizeof(struct log_record));
	for (uint32_t at = from; at < to; at++) {
		uint64_t tokens;

		head->segments[at] ^= (uint8_t)(1 << at % 8);
		assert_refused(tmesh_page_copy_update(copy, err), -EPROTO, "damaged");
		assert_non_null(tmesh_page_copy_table(copy, tmesh_seq_id(seq), NULL, &tokens));
		assert_int_equal(tokens, 4);
		head->segments[at] ^= (uint8_t)(1 << at % 8);
		assert_ok(tmesh_page_copy_resync(copy, err));
		assert_ok(tmesh_page_copy_update(copy, err));
		assert_true(same(copy, &seq, 1));
		/* Back to before the record that is damaged next. */
		copy = (tmesh_page_copy_close(copy), follow(&s, 0));
		head->tail = from;
		assert_ok(tmesh_page_copy_update(copy, err));
		head->tail = to;
	}
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_true(same(copy, &seq, 1));
	tmesh_page_copy_close(copy);
	tmesh_seq_free(seq);
	scene_end(&s);
}

/* Records that are whole and make no sense. */
UNIT(test_nonsense)
{
	static const struct {
		uint16_t kind;
		uint32_t bytes;
		uint64_t payload[5];
	} bad[] = {
		{LOG_READY, 0, {0}},
		{LOG_RESET, 8, {0}},
		{4, 0, {0}},
		{LOG_OWN, 0, {0}},
		{LOG_OWN, 23, {1}},
		{LOG_OWN, 24, {0}},				    /* no id */
		{LOG_OWN, 24, {9, 0, 1}},			    /* a hole */
		{LOG_OWN, 24, {9, 1, 0}},			    /* tokens without a block */
		{LOG_OWN, 24, {9, 0, 1ull << 32}},		    /* a page that is missing */
		{LOG_OWN, 28, {9, 4, 1ull << 32, 0xffffffffu}},	    /* no page's number */
		{LOG_OWN, 28, {9, 4, 1ull << 32, TMESH_PAGES_MAX}}, /* ... */
		{LOG_OWN, 28, {9, 65537, 1ull << 32, 1}},
		{LOG_OWN + 1, 16, {9, 8}}, /* a fork of nothing */
		{LOG_OWN + 1, 16, {1, 1}},
		{LOG_OWN + 1, 16, {0, 1}},
		{LOG_OWN + 1, 24, {9, 1}},
		{LOG_OWN + 2, 16, {9, 0}}, /* gone already */
		{LOG_OWN + 2, 16, {1, 1}},
		{LOG_OWN + 3, 16, {1, 0}},
	};
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 4);
	struct tmesh_page_copy *copy = follow(&s, 65536);

	assert_int_equal(tmesh_seq_id(seq), 1);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct model_log *log = log_of(s.pages);
		uint64_t tail = log->head->tail, number = log->number;

		assert_ok(tmesh_page_copy_update(copy, err));
		assert_int_equal(model_log_append(log, bad[i].kind, bad[i].payload, bad[i].bytes),
				 0);
		assert_refused(tmesh_page_copy_update(copy, err), -EPROTO, "does not fit");
		assert_true(same(copy, &seq, 1));
		log->head->tail = tail;
		log->number = number;
		assert_ok(tmesh_page_copy_resync(copy, err));
		assert_ok(tmesh_page_copy_update(copy, err));
		assert_true(same(copy, &seq, 1));
	}
	/* A number that is missing. */
	log_of(s.pages)->number++;
	assert_ok(tmesh_seq_append(seq, 1, err));
	assert_refused(tmesh_page_copy_update(copy, err), -EPROTO, "damaged");
	tmesh_page_copy_close(copy);
	tmesh_seq_free(seq);
	scene_end(&s);
}

/* A new sequence has an id above all before it: a copy adds it at the end of its tables. */
UNIT(test_order)
{
	static const uint64_t ids[] = {9, 8, 2, 10};
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 4);
	struct tmesh_page_copy *copy = follow(&s, 65536);

	assert_int_equal(tmesh_seq_id(seq), 1);
	for (int fork = 0; fork < 2; fork++) {
		for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
			struct model_log *log = log_of(s.pages);
			uint64_t tail = log->head->tail, number = log->number;
			const uint64_t first[5] = {9}, gone[2] = {9};
			const uint64_t second[3] = {ids[i], fork ? 1 : 0};

			assert_ok(tmesh_page_copy_update(copy, err));
			assert_int_equal(model_log_append(log, LOG_OWN, first, 24), 0);
			if (!i)
				assert_int_equal(model_log_append(log, LOG_OWN + 2, gone, 16), 0);
			assert_int_equal(model_log_append(log, fork ? LOG_OWN + 1 : LOG_OWN, second,
							  fork ? 16 : 24),
					 0);
			if (ids[i] > 9) {
				assert_ok(tmesh_page_copy_update(copy, err));
				assert_int_equal(tmesh_page_copy_count(copy), 3);
			} else {
				assert_refused(tmesh_page_copy_update(copy, err), -EPROTO,
					       "does not fit");
				assert_int_equal(tmesh_page_copy_count(copy), i ? 2 : 1);
			}
			log->head->tail = tail;
			log->number = number;
			assert_ok(tmesh_page_copy_resync(copy, err));
		}
	}
	tmesh_page_copy_close(copy);
	tmesh_seq_free(seq);
	scene_end(&s);
}

/* However many sequences come and go in one update, it does not move the others for each. */
UNIT(test_many)
{
	enum {
		MANY = 3000
	};
	static struct tmesh_seq *seqs[MANY];
	struct scene s = scene_make(&small_pool);
	struct tmesh_page_copy *copy = follow(&s, 0), *late;

	for (int i = 0; i < MANY; i++)
		assert_ok(tmesh_seq_create(s.pages, &seqs[i], err));
	moved = 0;
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_true(same(copy, seqs, MANY));
	late = follow(&s, 0);
	for (int i = 0; i < MANY; i++) {
		tmesh_seq_free(seqs[i]);
		seqs[i] = NULL;
		if (i != MANY / 3)
			continue;
		assert_ok(tmesh_page_copy_update(copy, err));
		assert_true(same(copy, seqs, MANY));
		assert_int_equal(tmesh_page_copy_id(copy, 0), MANY / 3 + 2);
		assert_int_equal(tmesh_page_copy_id(copy, MANY - MANY / 3 - 2), MANY);
		assert_int_equal(tmesh_page_copy_id(copy, MANY - MANY / 3 - 1), 0);
	}
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_true(same(copy, seqs, MANY));
	assert_ok(tmesh_page_copy_update(late, err));
	assert_int_equal(tmesh_page_copy_count(late), 0);
	assert_in_range(moved, 0, (size_t)MANY * 1024);
	tmesh_page_copy_close(late);
	tmesh_page_copy_close(copy);
	scene_end(&s);
}

/* The writer appends a record whenever the copy reads one. */
UNIT(test_no_end)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 4);
	struct tmesh_page_copy *copy = follow(&s, 0);
	int fd = tmesh_page_copy_poll_fd(copy, NULL);

	assert_ok(tmesh_page_copy_update(copy, err));
	for (int i = 0; i < 10; i++)
		assert_ok(tmesh_seq_append(seq, 1, err));
	reads = grown = 0;
	grow = seq;
	assert_ok(tmesh_page_copy_update(copy, err));
	grow = NULL;
	assert_in_range(reads, 10, 12);
	/* The rest is due. */
	assert_true(readable(fd, 60000));
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_true(same(copy, &seq, 1));
	tmesh_page_copy_close(copy);
	tmesh_seq_free(seq);
	scene_end(&s);
}

/* A short record can copy a long table. An update ends after a number of blocks, the next goes on.
 */
UNIT(test_much_to_copy)
{
	struct tmesh_page_pool_opts opts = small_pool;
	uint32_t pairs = TABLE_COPIED_MOST / 4000 + 1000;
	struct tmesh_page_copy *copy;
	struct model_log *log;
	struct tmesh_seq *seq;
	struct scene s;
	int fd;

	opts.max_pages = 4096;
	s = scene_make(&opts);
	seq = seq_make(s.pages, 4000 * 4);
	copy = follow(&s, 8 << 20);
	fd = tmesh_page_copy_poll_fd(copy, NULL);
	assert_true(readable(fd, 60000));
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_false(readable(fd, 0));
	log = log_of(s.pages);
	for (uint32_t i = 0; i < pairs; i++) {
		const uint64_t fork[2] = {i + 2, 1}, free[2] = {i + 2};

		assert_int_equal(model_log_append(log, LOG_OWN + 1, fork, sizeof(fork)), 0);
		assert_int_equal(model_log_append(log, LOG_OWN + 2, free, sizeof(free)), 0);
	}
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_in_range(log->number - tmesh_page_copy_number(copy), 1000, 2000);
	assert_true(readable(fd, 60000));
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_int_equal(tmesh_page_copy_number(copy), log->number);
	assert_true(same(copy, &seq, 1));
	tmesh_page_copy_close(copy);
	tmesh_seq_free(seq);
	scene_end(&s);
}

UNIT(test_bad_heads)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_page_copy *copy = follow(&s, 4096), *none = NULL;
	struct log_head *head = log_of(s.pages)->head, good;
	char token[TMESH_TOKEN_SIZE];

	memcpy(&good, head, sizeof(good));
	assert_ok(tmesh_pages_log(s.pages, 0, token, err));
	head->version++;
	assert_refused(tmesh_page_copy_open(s.ctx, token, &none, err), -EPROTO, "head");
	head->version--;
	for (uint32_t bytes = 0; bytes < 8192; bytes += 4096 - 8) {
		head->segment_bytes = bytes;
		assert_refused(tmesh_page_copy_open(s.ctx, token, &none, err), -EPROTO, "head");
	}
	head->segment_bytes = UINT32_MAX;
	assert_refused(tmesh_page_copy_open(s.ctx, token, &none, err), -EPROTO, "head");
	head->segment_bytes = good.segment_bytes;
	for (int i = 0; i < 64; i++) {
		int rc;

		head->tail = good.tail ^ 1ull << i;
		rc = tmesh_page_copy_update(copy, NULL);
		assert_true(rc == 0 || rc == -ESTALE || rc == -EPROTO);
		assert_ok(tmesh_page_copy_resync(copy, err));
		head->tail = good.tail;
	}
	assert_ok(tmesh_page_copy_resync(copy, err));
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_refused(tmesh_page_copy_open(s.ctx, s.token, &none, err), -EPROTO,
		       "page tables' with tmesh_page_copy_open()");
	assert_refused(tmesh_pages_open(s.ctx, token, &(struct tmesh_pages *){NULL}, err), -EPROTO,
		       "the token is of something else");
	assert_null(none);
	tmesh_page_copy_close(copy);
	scene_end(&s);
}

UNIT(test_outgrown)
{
	struct tmesh_page_pool_opts opts = small_pool;
	struct tmesh_page_copy *copy;
	struct tmesh_seq *seq;
	char token[TMESH_TOKEN_SIZE];
	struct scene s;

	opts.max_pages = 4096;
	s = scene_make(&opts);
	seq = seq_make(s.pages, 2000 * 4);
	assert_refused(tmesh_pages_log(s.pages, 4096, token, err), -ENOSPC, "do not fit");
	assert_refused(tmesh_pages_log(s.pages, 4095, token, err), -EINVAL, "4095");
	assert_refused(tmesh_pages_log(s.pages, 4100, token, err), -EINVAL, "4100");
	assert_ok(tmesh_seq_truncate(seq, 400, err));
	copy = follow(&s, 4096);
	assert_ok(tmesh_page_copy_update(copy, err));
	/* The sequences are not harmed by a log that has no room for them. */
	assert_ok(tmesh_seq_append(seq, 2000 * 4, err));
	assert_refused(tmesh_page_copy_update(copy, err), -ENOSPC, "outgrown");
	assert_ok(tmesh_page_copy_resync(copy, err));
	assert_refused(tmesh_page_copy_update(copy, err), -ENOSPC, "outgrown");
	assert_ok(tmesh_seq_append(seq, 4, err));
	tmesh_page_copy_close(copy);
	tmesh_seq_free(seq);
	scene_end(&s);
}

UNIT(test_poll)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_page_copy *copy = follow(&s, 0);
	struct tmesh_seq *seq = seq_make(s.pages, 4);
	int fd = tmesh_page_copy_poll_fd(copy, NULL);

	assert_true(fd >= 0);
	assert_true(readable(fd, 60000));
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_true(same(copy, &seq, 1));
	assert_false(readable(fd, 0));
	assert_ok(tmesh_seq_append(seq, 4, err));
	assert_true(readable(fd, 60000));
	for (int i = 0; i < 1000; i++)
		assert_ok(tmesh_seq_truncate(seq, 4, err));
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_false(readable(fd, 0));
	tmesh_seq_free(seq);
	tmesh_pages_unref(s.pages);
	assert_true(readable(fd, 60000));
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_int_equal(tmesh_page_copy_count(copy), 0);
	assert_refused(tmesh_page_copy_update(copy, err), -EPIPE, "gone");
	tmesh_page_copy_close(copy);
	s.pages = NULL;
	scene_end(&s);
}

/* The writer is killed at any moment: what it left is whole. */
UNIT(test_killed)
{
	for (int round = 0; round < 10; round++) {
		char token[TMESH_TOKEN_SIZE];
		struct tmesh_page_copy *copy;
		struct tmesh_ctx *ctx;
		int ends[2], rc;
		pid_t child;

		assert_int_equal(pipe(ends), 0);
		child = fork();
		if (child == 0) {
			struct scene s = scene_make(&small_pool);
			struct tmesh_seq *seq = seq_make(s.pages, 1);

			CHECK(!tmesh_pages_log(s.pages, 4096, token, NULL));
			CHECK(write(ends[1], token, sizeof(token)) == sizeof(token));
			for (uint64_t i = 0;; i++) {
				CHECK(!tmesh_seq_append(seq, 1 + i % 7, NULL));
				if (i % 50 == 49)
					CHECK(!tmesh_seq_truncate(seq, 1, NULL));
			}
		}
		assert_int_equal(read(ends[0], token, sizeof(token)), sizeof(token));
		close(ends[0]);
		close(ends[1]);
		assert_ok(tmesh_ctx_open(NULL, &ctx, err));
		assert_ok(tmesh_page_copy_open(ctx, token, &copy, err));
		for (int i = 0;; i++) {
			rc = tmesh_page_copy_update(copy, NULL);
			if (rc == -EPIPE)
				break;
			assert_true(rc == 0 || rc == -ESTALE);
			if (rc)
				assert_ok(tmesh_page_copy_resync(copy, err));
			else
				assert_true(tmesh_page_copy_count(copy) <= 1);
			if (i == 100 + 20 * round)
				kill(child, SIGKILL);
		}
		assert_int_equal(waitpid(child, NULL, 0), child);
		tmesh_page_copy_close(copy);
		tmesh_ctx_unref(ctx);
	}
}

UNIT_MAIN("pages_log", NULL, NULL)
