// SPDX-License-Identifier: MIT
/* Calls in a thread of their own: they end in time, or late, and their data is freed once. */
#include "common/in_time.h"
#include "unit.h"

/* Calls wait for a byte of @gate; each notes its end. */
static int gate[2];
static atomic_uint dropped;

static int gate_setup(void **state)
{
	atomic_store(&dropped, 0);
	return pipe2(gate, O_CLOEXEC);
}

static int gate_teardown(void **state)
{
	close(gate[0]);
	close(gate[1]);
	return 0;
}

static void wait_at_gate(void *data)
{
	char byte;

	if (read(gate[0], &byte, 1) == 1)
		*(char *)data = byte;
}

static void drop(void *data)
{
	free(data);
	atomic_fetch_add(&dropped, 1);
}

static int ask(uint64_t ns)
{
	return tmesh_in_time(wait_at_gate, drop, calloc(1, 1), ns);
}

static void open_gate(unsigned int count)
{
	unsigned int before = atomic_load(&dropped);

	for (unsigned int i = 0; i < count; i++)
		assert_int_equal(write(gate[1], "x", 1), 1);
	while (atomic_load(&dropped) < before + count)
		usleep(1000);
}

UNIT_ADD(test_in_time, gate_setup, gate_teardown)
{
	char *data = calloc(1, 1);

	assert_int_equal(write(gate[1], "x", 1), 1);
	assert_int_equal(tmesh_in_time(wait_at_gate, drop, data, INT64_MAX), 0);
	assert_int_equal(*data, 'x');
	free(data);
	assert_int_equal(atomic_load(&dropped), 0);
}

/* Late calls free their data when they end, and there are not many of them. */
UNIT_ADD(test_late, gate_setup, gate_teardown)
{
	pid_t pid;

	for (unsigned int i = 0; i < TMESH_LATE_MOST; i++)
		assert_int_equal(ask(1), -ETIMEDOUT);
	assert_int_equal(atomic_load(&dropped), 0);
	assert_int_equal(ask(INT64_MAX), -ETIMEDOUT);
	assert_int_equal(atomic_load(&dropped), 1);
	/* A child has none of the threads. */
	pid = fork();
	if (!pid) {
		CHECK(ask(1) == -ETIMEDOUT);
		CHECK(atomic_load(&dropped) == 1);
		unit_leave(0);
	}
	join_child(pid);
	open_gate(TMESH_LATE_MOST);
	/* The last thread may not have counted itself yet. */
	assert_int_equal(write(gate[1], "x", 1), 1);
	for (int rc = -ETIMEDOUT; rc;) {
		char *data = calloc(1, 1);

		rc = tmesh_in_time(wait_at_gate, drop, data, INT64_MAX);
		if (!rc)
			free(data);
	}
}

UNIT_MAIN("in_time", NULL, NULL)
