// SPDX-License-Identifier: MIT
/* The copy: every alignment and tail on both sides of the threshold, nothing outside. */
#include "unit.h"

#define STREAMED ((size_t)9 << 20) /* beyond the threshold */
#define GUARD 128

static void fill(unsigned char *to, size_t n, unsigned int seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1664525 + 1013904223;
		to[i] = (unsigned char)(seed >> 24);
	}
}

static void check(unsigned char *to, const unsigned char *from, size_t n)
{
	memset(to - GUARD, 0xa5, GUARD);
	memset(to + n, 0xa5, GUARD);
	tmesh_copy(to, from, n);
	assert_memory_equal(to, from, n);
	for (size_t i = 0; i < GUARD; i++) {
		assert_int_equal(to[n + i], 0xa5);
		assert_int_equal(to[i - GUARD], 0xa5);
	}
}

static void test_copy(void **state)
{
	static const size_t ends[] = {0, 1, 31, 63, 64, 65, 127};
	size_t room = STREAMED + 4 * GUARD;
	unsigned char *from = malloc(room);
	unsigned char *to = malloc(room);

	fill(from, room, 1);
	for (size_t n = 0; n < 300; n++)
		check(to + GUARD + n % 64, from + n % 7, n);
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		for (size_t j = 0; j < sizeof(ends) / sizeof(ends[0]); j++)
			check(to + GUARD + ends[i], from + ends[j], STREAMED + ends[(i + j) % 7]);
	}
	free(from);
	free(to);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copy),
	};

	return cmocka_run_group_tests_name("copy", tests, NULL, NULL);
}
