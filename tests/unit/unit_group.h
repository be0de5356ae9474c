/* SPDX-License-Identifier: MIT */
/* One group of tests, in which each test enters itself where it is defined. Include cmocka first.
 */
#ifndef TMESH_UNIT_GROUP_H
#define TMESH_UNIT_GROUP_H

#include <stdlib.h>

static struct CMUnitTest unit_tests[64];
static size_t unit_count;

static inline void unit_enter(struct CMUnitTest test)
{
	if (unit_count == sizeof(unit_tests) / sizeof(unit_tests[0]))
		abort();
	unit_tests[unit_count++] = test;
}

/* Define a test: UNIT_ADD(test_name, setup, teardown) { ... } */
#define UNIT_ADD(test, set_up, tear_down) UNIT_ENTER(#test, test, set_up, tear_down)
#define UNIT_ENTER(name, test, set_up, tear_down)                                     \
	static void test(void **state);                                               \
	__attribute__((constructor)) static void enter_##test(void)                   \
	{                                                                             \
		unit_enter((struct CMUnitTest){name, test, set_up, tear_down, NULL}); \
	}                                                                             \
	static void test(void **state)

#define UNIT_RUN(name, set_up, tear_down) \
	_cmocka_run_group_tests(name, unit_tests, unit_count, set_up, tear_down)
#define UNIT_MAIN(name, set_up, tear_down)                \
	int main(void)                                    \
	{                                                 \
		return UNIT_RUN(name, set_up, tear_down); \
	}

#endif /* TMESH_UNIT_GROUP_H */
