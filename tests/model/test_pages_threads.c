// SPDX-License-Identifier: MIT
/* Threads that share a handle, and threads with handles of their own, beside the owner's thread. */
#include "pages_test.h"

#define THREADS 4
#define STEPS 3000

static struct scene s;

static void act(struct tmesh_pages *pages, unsigned int seed)
{
	const uint64_t hash[1][2] = {{seed % 3, 1}};
	struct tmesh_seq *seq, *fork;
	uint32_t page;

	assert_ok(tmesh_seq_create(pages, &seq, err));
	for (int i = 0; i < STEPS; i++) {
		uint64_t word = ((uint64_t)seed << 40) + (uint64_t)i * 100;
		unsigned int what = rand_r(&seed) % 6;

		if (what < 2) {
			assert_ok(tmesh_pages_alloc(pages, &page, err));
			assert_ok(tmesh_pages_put(pages, page, err));
		} else if (what == 2) {
			assert_ok(tmesh_seq_truncate(seq, 0, err));
		} else if (what == 3 && tmesh_seq_tokens(seq) < 40) {
			assert_ok(tmesh_seq_append(seq, rand_r(&seed) % 20, err));
			fill(seq, word);
			assert_true(is_filled(seq, word));
		} else if (what == 4) {
			fill(seq, word);
			assert_ok(tmesh_seq_fork(seq, &fork, err));
			fill(seq, word + 50);
			assert_true(is_filled(fork, word));
			tmesh_seq_free(fork);
		} else if (tmesh_seq_tokens(seq) >= 4) {
			assert_ok(tmesh_seq_cache(seq, hash, 1, err));
			assert_ok(tmesh_pages_find(pages, hash, 1, &fork, err));
			tmesh_seq_free(fork);
		}
	}
	tmesh_seq_free(seq);
}

static void *shared(void *seed)
{
	act(s.pages, (unsigned int)(uintptr_t)seed);
	return NULL;
}

static void *own(void *seed)
{
	struct tmesh_pages *pages;

	assert_ok(tmesh_pages_open(s.ctx, s.token, &pages, err));
	act(pages, (unsigned int)(uintptr_t)seed);
	tmesh_pages_unref(pages);
	return NULL;
}

static void run(void *(*thread)(void *))
{
	struct tmesh_page_pool_opts opts = small_pool;
	pthread_t threads[THREADS];

	opts.max_pages = 4096;
	s = scene_make(&opts);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread, (void *)(i + 1)), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	tmesh_pages_trim(s.pages);
	for (int i = 0; i < 60000 && pool_info(&s).held; i++)
		usleep(1000);
	assert_int_equal(pool_info(&s).held, 0);
	assert_int_equal(pool_info(&s).refused, 0);
	scene_end(&s);
}

UNIT(test_one_handle)
{
	run(shared);
}

UNIT(test_own_handles)
{
	run(own);
}

UNIT_MAIN("pages_threads", NULL, NULL)
