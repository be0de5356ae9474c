// SPDX-License-Identifier: MIT
/* The copy: every alignment and tail on both sides of the threshold, nothing outside. And pages
 * that are taken before it. */
#include "common/populate.h"
#include "unit.h"

static size_t largest, calls;

/* In place of the C library's. */
int madvise(void *addr, size_t length, int advice)
{
	if (advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE) {
		largest = length > largest ? length : largest;
		calls++;
	}
	return (int)syscall(SYS_madvise, addr, length, advice);
}

/* Once more as processors without AVX2 run it, of which this may be none. */
void copy_without_avx2(void *dst, const void *src, size_t n);
#define tmesh_copy copy_without_avx2
#define __builtin_cpu_supports(feature) 0
#include "../../lib/copy.c"
#undef __builtin_cpu_supports
#undef tmesh_copy

#define STREAMED ((size_t)8 << 20) /* the threshold */
#define GUARD 128

static void fill(unsigned char *to, size_t n, unsigned int seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1664525 + 1013904223;
		to[i] = (unsigned char)(seed >> 24);
	}
}

typedef void (*copy_fn)(void *dst, const void *src, size_t n);

static void check(copy_fn copy, unsigned char *to, const unsigned char *from, size_t n)
{
	memset(to - GUARD, 0xa5, n + 2 * GUARD);
	copy(to, from, n);
	assert_memory_equal(to, from, n);
	for (size_t i = 0; i < GUARD; i++) {
		assert_int_equal(to[n + i], 0xa5);
		assert_int_equal(to[i - GUARD], 0xa5);
	}
}

static void check_all(copy_fn copy)
{
	static const size_t ends[] = {0, 1, 31, 63, 64, 65, 127};
	size_t room = STREAMED + 4 * GUARD;
	unsigned char *from = malloc(room);
	unsigned char *to = aligned_alloc(64, room); /* so that every beginning is among them */

	fill(from, room, 1);
	for (size_t n = 0; n < 300; n++)
		check(copy, to + GUARD + n % 64, from + n % 7, n);
	/* Each beginning and each end in each place, three times among others. */
	for (size_t i = 0; i < 7; i++)
		for (size_t k = 0; k < 3; k++)
			check(copy, to + GUARD + ends[i], from + ends[(i + 2 * k) % 7],
			      STREAMED + ends[(2 * i + 3 * k) % 7]);
	free(from);
	free(to);
}

UNIT(test_copy)
{
	check_all(tmesh_copy);
}

UNIT(test_without_avx2)
{
	check_all(copy_without_avx2);
}

/* All of it, and no call is long: other threads wait for each. */
UNIT(test_populate)
{
	const size_t page = (size_t)getpagesize(), bytes = ((size_t)13 << 20) + page;
	unsigned char *memory =
		mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned char *there = calloc(bytes / page + 1, 1);

	assert_true(memory != MAP_FAILED);
	assert_int_equal(tmesh_populate(memory, bytes, MADV_POPULATE_WRITE), 0);
	assert_true(largest <= (size_t)4 << 20);
	assert_true(calls >= 4 && calls <= 5);
	assert_int_equal(mincore(memory, bytes + page, there), 0);
	for (size_t i = 0; i < bytes / page; i++)
		assert_int_equal(there[i] & 1, 1);
	assert_int_equal(there[bytes / page] & 1, 0);
	assert_int_equal(munmap(memory, bytes + page), 0);
	assert_int_equal(tmesh_populate(memory, bytes, MADV_POPULATE_READ), -ENOMEM);
	assert_int_equal(tmesh_populate(NULL, 0, MADV_POPULATE_READ), 0);
	free(there);
}

/* A write into a region of huge pages takes them so, too. */
UNIT(test_populate_region)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_TRY_HUGE};
	const size_t bytes = (size_t)20 << 20;
	unsigned char *data = calloc(1, bytes);
	struct tmesh_region *region;
	struct tmesh_ctx *ctx = new_ctx();

	largest = 0;
	assert_ok(tmesh_region_create(ctx, bytes, &opts, &region, err));
	assert_ok(tmesh_region_write(region, 0, data, bytes, err));
	assert_true(largest <= (size_t)4 << 20);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	free(data);
}

UNIT_MAIN("copy", NULL, NULL)
