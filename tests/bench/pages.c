// SPDX-License-Identifier: MIT
/*
 * Slots and pages, each beside its floor in the same loop. A slot's read stands beside a pair of
 * atomic loads behind a call; pages allocated and freed beside malloc() and free(). A fork stands
 * beside copying its table; a sequence as one piece of memory beside copying its pages. A swap of
 * held values is timed too. `pages [MIB]` sets the size of the sequence (1,024).
 */
#include "harness.h"

#include <stdatomic.h>
#include <tmesh/pages.h>
#include <tmesh/slot.h>

#define CALLS 100000
#define ROUNDS 21

static struct tmesh_error err;
static struct tmesh_ctx *ctx;
static atomic_uint_fast64_t *words;

/* As far away as the library's function is. */
static __attribute__((noinline)) uint64_t pair_of_loads(void)
{
	return atomic_load_explicit(&words[0], memory_order_acquire) +
	       atomic_load_explicit(&words[8], memory_order_acquire);
}

/* Report the time of one of @calls: a call of a few nanoseconds can only be timed among many. */
static void report(const char *topic, const char *name, const struct series *series, double calls)
{
	printf("{\"topic\":\"%s\",\"name\":\"%s\",\"ns\":[", topic, name);
	for (size_t i = 0; i < series->n; i++)
		printf("%s%.2f", i ? "," : "", (double)series->ns[i] / calls);
	printf("]}\n");
}

static struct tmesh_bundle *bundle_of(uint64_t word)
{
	const int64_t shape[] = {1};
	struct tmesh_bundle_entry entry = {.name = "w"};
	struct tmesh_bundle *bundle;

	must(tmesh_tensor_put(ctx, TMESH_UINT64, 1, shape, &word, NULL, &entry.tensor, &err), &err);
	must(tmesh_bundle_create(ctx, &entry, 1, NULL, &bundle, &err), &err);
	tmesh_tensor_unref(entry.tensor);
	return bundle;
}

static void slots(void)
{
	static struct series floor, read, publish, swap, first;
	struct tmesh_bundle *bundles[2] = {bundle_of(1), bundle_of(2)};
	struct tmesh_slot_value *value, *held[2];
	struct tmesh_slot_reader *reader;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_slot *slot;
	volatile uint64_t sink;

	must(tmesh_slot_create(ctx, NULL, &slot, &err), &err);
	must(tmesh_slot_token(slot, token, &err), &err);
	must(tmesh_slot_open(ctx, token, &reader, &err), &err);
	for (int i = 0; i < 2; i++) {
		must(tmesh_slot_publish(slot, bundles[i], NULL, &err), &err);
		must(tmesh_slot_read(reader, &value, &err), &err);
		held[i] = tmesh_slot_value_ref(value);
	}
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t start = now_ns(), published = 0, swapped = 0, opened = 0;

		for (int i = 0; i < CALLS; i++)
			sink = pair_of_loads();
		series_add(&floor, now_ns() - start);
		start = now_ns();
		for (int i = 0; i < CALLS; i++)
			if (tmesh_slot_read(reader, &value, NULL))
				die("the slot is empty");
		series_add(&read, now_ns() - start);
		for (int i = 0; i < 1000; i++) {
			start = now_ns();
			must(tmesh_slot_publish(slot, bundles[i % 2], NULL, &err), &err);
			published += now_ns() - start;
			start = now_ns();
			must(tmesh_slot_read(reader, &value, &err), &err);
			swapped += now_ns() - start;
		}
		series_add(&publish, published);
		series_add(&swap, swapped);
		/* This reader has never had the value, so it opens it. */
		for (int i = 0; i < 100; i++) {
			struct tmesh_bundle *fresh = bundle_of((uint64_t)i);

			must(tmesh_slot_publish(slot, fresh, NULL, &err), &err);
			tmesh_bundle_unref(fresh);
			start = now_ns();
			must(tmesh_slot_read(reader, &value, &err), &err);
			opened += now_ns() - start;
		}
		series_add(&first, opened);
	}
	(void)sink;
	report("slot", "loads", &floor, CALLS);
	report("slot", "read", &read, CALLS);
	report("slot", "publish", &publish, 1000);
	report("slot", "swap", &swap, 1000);
	report("slot", "first", &first, 100);
	for (int i = 0; i < 2; i++) {
		tmesh_slot_value_unref(held[i]);
		tmesh_bundle_unref(bundles[i]);
	}
	tmesh_slot_close(reader);
	tmesh_slot_unref(slot);
}

static struct tmesh_pages *open_pool(const struct tmesh_page_pool_opts *opts,
				     struct tmesh_page_pool **pool)
{
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_pages *pages;

	must(tmesh_page_pool_create(ctx, opts, pool, &err), &err);
	must(tmesh_page_pool_tenant(*pool, 0, token, &err), &err);
	must(tmesh_pages_open(ctx, token, &pages, &err), &err);
	return pages;
}

static void allocation(void)
{
	static struct series heap, one, many, fork, copy;
	struct tmesh_page_pool_opts opts = {
		.size = sizeof(opts), .page_bytes = 4096, .max_pages = 8192};
	struct tmesh_page_pool *pool;
	struct tmesh_pages *pages = open_pool(&opts, &pool);
	struct tmesh_seq *seq, *forked;
	static uint32_t got[4096];
	uint32_t page;

	must(tmesh_seq_create(pages, &seq, &err), &err);
	must(tmesh_seq_append(seq, 32768, &err), &err);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t start = now_ns();

		for (int i = 0; i < CALLS; i++) {
			void *volatile block = malloc(opts.page_bytes);

			free(block);
		}
		series_add(&heap, now_ns() - start);
		start = now_ns();
		for (int i = 0; i < CALLS; i++) {
			must(tmesh_pages_alloc(pages, &page, NULL), NULL);
			must(tmesh_pages_put(pages, page, NULL), NULL);
		}
		series_add(&one, now_ns() - start);
		start = now_ns();
		for (int i = 0; i < 4096; i++)
			must(tmesh_pages_alloc(pages, &got[i], NULL), NULL);
		for (int i = 0; i < 4096; i++)
			must(tmesh_pages_put(pages, got[i], NULL), NULL);
		series_add(&many, now_ns() - start);
		start = now_ns();
		must(tmesh_seq_fork(seq, &forked, &err), &err);
		series_add(&fork, now_ns() - start);
		tmesh_seq_free(forked);
		start = now_ns();
		memcpy(got, tmesh_seq_table(seq, NULL), 2048 * sizeof(*got));
		series_add(&copy, now_ns() - start);
	}
	report("pages", "malloc", &heap, CALLS);
	report("pages", "one", &one, CALLS);
	report("pages", "many", &many, 4096);
	report("pages", "fork", &fork, 1);
	report("pages", "table", &copy, 1);
	tmesh_seq_free(seq);
	tmesh_pages_unref(pages);
	tmesh_page_pool_unref(pool);
}

static void one_piece(uint64_t mib, uint64_t page_bytes, const char *size, int rounds)
{
	struct series view = {0}, copy = {0};
	uint32_t count = (uint32_t)(mib * MIB / page_bytes), blocks;
	struct tmesh_page_pool_opts opts = {
		.size = sizeof(opts), .page_bytes = page_bytes, .max_pages = 2 * count};
	struct tmesh_page_pool *pool;
	struct tmesh_pages *pages = open_pool(&opts, &pool);
	uint8_t *base = tmesh_pages_base(pages, 0), *to = malloc(mib * MIB);
	struct tmesh_seq *seq, *others[2];
	char name[64];
	uint64_t left;

	if (!to)
		die("no memory");
	memset(to, 1, mib * MIB);
	/* No two blocks are neighbours: two sequences grow in turn. */
	for (int i = 0; i < 2; i++)
		must(tmesh_seq_create(pages, &others[i], &err), &err);
	for (uint32_t i = 0; i < 2 * count; i++)
		must(tmesh_seq_append(others[i % 2], 16, &err), &err);
	for (uint32_t i = 0; i < count; i++)
		memset(base + (uint64_t)tmesh_seq_table(others[0], &blocks)[i] * page_bytes, 2,
		       page_bytes);
	for (int round = 0; round < rounds; round++) {
		const void *at;
		uint64_t start;

		must(tmesh_seq_fork(others[0], &seq, &err), &err);
		start = now_ns();
		must(tmesh_seq_view(seq, 0, count * 16ull, &at, &err), &err);
		series_add(&view, now_ns() - start);
		start = now_ns();
		for (uint32_t i = 0; i < count; i++)
			memcpy(to + i * page_bytes,
			       base + (uint64_t)tmesh_seq_table(seq, NULL)[i] * page_bytes,
			       page_bytes);
		series_add(&copy, now_ns() - start);
		left = ((const uint8_t *)at)[mib * MIB - 1];
		if (left != 2)
			die("the view shows something else");
		tmesh_seq_free(seq);
	}
	snprintf(name, sizeof(name), "view-%s", size);
	report("pages", name, &view, 1);
	snprintf(name, sizeof(name), "copy-%s", size);
	report("pages", name, &copy, 1);
	for (int i = 0; i < 2; i++)
		tmesh_seq_free(others[i]);
	tmesh_pages_unref(pages);
	tmesh_page_pool_unref(pool);
	free(to);
}

int main(int argc, char **argv)
{
	uint64_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 1024;

	if (!mib || mib > 8192 || (argc > 2 && strcmp(argv[2], "view")))
		die("usage: pages [MIB [view]]");
	words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ctx = context(0);
	if (argc <= 2) {
		slots();
		allocation();
		one_piece(mib, 2 * MIB, "2MiB", 7);
	}
	one_piece(mib, 64 << 10, "64KiB", argc > 2 ? 3 : 7);
	tmesh_ctx_unref(ctx);
	return 0;
}
