// SPDX-License-Identifier: MIT
/* Processes that are forked while a thread opens the process's own object: each opens its own. */
#include <semaphore.h>

#include "cuda_unit.h"

#define CHILDREN 20

static struct {
	sem_t inside, go_on;
	struct tmesh_cuda *cuda;
	int rc;
} first;

/* In the driver, by the first call alone. */
static void hold(void *data)
{
	sem_post(&first.inside);
	while (sem_wait(&first.go_on))
		;
}

static void *call_first(void *data)
{
	first.rc = tmesh_cuda_default(&first.cuda, NULL);
	return NULL;
}

static void test_fork_meanwhile(void **state)
{
	struct tmesh_cuda *cuda, *again;
	pthread_t thread;
	pid_t child;
	int status;

	standin_during = standin_symbol("standin_during");
	sem_init(&first.inside, 0, 0);
	sem_init(&first.go_on, 0, 0);
	standin_during("cuInit", hold, NULL);
	assert_int_equal(pthread_create(&thread, NULL, call_first, NULL), 0);
	while (sem_wait(&first.inside))
		;
	for (int i = 0; i < CHILDREN; i++) {
		child = fork();
		if (child == 0) {
			alarm(60);
			_exit(tmesh_cuda_default(&cuda, NULL) || tmesh_cuda_default(&again, NULL) ||
			      again != cuda || tmesh_cuda_device_count(cuda) != 2);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
	}
	sem_post(&first.go_on);
	pthread_join(thread, NULL);
	assert_int_equal(first.rc, 0);
	assert_ok(tmesh_cuda_default(&again, err));
	assert_ptr_equal(again, first.cuda);
	/* The driver has begun here, so a child gets none of its own. */
	child = fork();
	if (child == 0) {
		struct tmesh_error err = {0};

		_exit(tmesh_cuda_default(&cuda, &err) != -EPERM ||
		      !strstr(err.message, "start a new program"));
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_fork_meanwhile)};

	return cmocka_run_group_tests_name("cuda fork", tests, NULL, NULL);
}
