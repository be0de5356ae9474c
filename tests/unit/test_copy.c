// SPDX-License-Identifier: MIT
/* The copy: every alignment and tail on both sides of the threshold, nothing outside. */
#include "unit.h"

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

static void test_copy(void **state)
{
	check_all(tmesh_copy);
}

static void test_without_avx2(void **state)
{
	check_all(copy_without_avx2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copy),
		cmocka_unit_test(test_without_avx2),
	};

	return cmocka_run_group_tests_name("copy", tests, NULL, NULL);
}
