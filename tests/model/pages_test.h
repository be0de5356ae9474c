/* SPDX-License-Identifier: MIT */
/* Shared by the tests of pages: a pool with one tenant, and content that names its owner. */
#ifndef TMESH_PAGES_TEST_H
#define TMESH_PAGES_TEST_H

#include <tmesh/pages.h>

#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)

struct scene {
	struct tmesh_ctx *ctx;
	struct tmesh_page_pool *pool;
	struct tmesh_pages *pages;
	char token[TMESH_TOKEN_SIZE];
};

static const struct tmesh_page_pool_opts small_pool = {
	.size = sizeof(small_pool),
	.page_bytes = 4096,
	.page_tokens = 4,
	.slab_pages = 16,
	.max_pages = 256,
};

static inline struct scene scene_make(const struct tmesh_page_pool_opts *opts)
{
	struct scene s;

	assert_ok(tmesh_ctx_open(NULL, &s.ctx, err));
	assert_ok(tmesh_page_pool_create(s.ctx, opts, &s.pool, err));
	assert_ok(tmesh_page_pool_tenant(s.pool, 0, s.token, err));
	assert_ok(tmesh_pages_open(s.ctx, s.token, &s.pages, err));
	return s;
}

static inline void scene_end(struct scene *s)
{
	tmesh_pages_unref(s->pages);
	tmesh_page_pool_unref(s->pool);
	tmesh_ctx_unref(s->ctx);
}

static inline struct tmesh_page_pool_info pool_info(const struct scene *s)
{
	struct tmesh_page_pool_info info = {.size = sizeof(info)};

	assert_ok(tmesh_page_pool_info(s->pool, &info, err));
	return info;
}

static inline struct tmesh_pages_info pages_info(struct tmesh_pages *pages)
{
	struct tmesh_pages_info info = {.size = sizeof(info)};

	assert_ok(tmesh_pages_info(pages, &info, err));
	return info;
}

/* The owner hears of things by messages: what it says settles soon. */
static inline bool settles(const struct scene *s, uint64_t held, uint64_t cached)
{
	for (int i = 0; i < 60000; i++) {
		struct tmesh_page_pool_info info = pool_info(s);

		if (info.held == held && info.cached == cached)
			return true;
		usleep(1000);
	}
	return false;
}

static inline struct tmesh_seq *seq_make(struct tmesh_pages *pages, uint64_t tokens)
{
	struct tmesh_seq *seq;

	assert_ok(tmesh_seq_create(pages, &seq, err));
	assert_ok(tmesh_seq_append(seq, tokens, err));
	return seq;
}

/* Word @i of each block is @word + its number. */
static inline void fill(struct tmesh_seq *seq, uint64_t word)
{
	uint32_t count;
	uint64_t *at;

	tmesh_seq_table(seq, &count);
	for (uint32_t i = 0; i < count; i++) {
		assert_ok(tmesh_seq_page(seq, i, 0, RW, (void **)&at, err));
		for (int n = 0; n < 8; n++)
			at[n * 64] = word + i;
	}
}

static inline bool is_filled(struct tmesh_seq *seq, uint64_t word)
{
	uint32_t count;
	uint64_t *at;

	tmesh_seq_table(seq, &count);
	for (uint32_t i = 0; i < count; i++) {
		if (tmesh_seq_page(seq, i, 0, TMESH_READ, (void **)&at, NULL))
			return false;
		for (int n = 0; n < 8; n++)
			if (at[n * 64] != word + i)
				return false;
	}
	return true;
}

#endif /* TMESH_PAGES_TEST_H */
