// SPDX-License-Identifier: MIT
#include "in_time.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"

struct task {
	pthread_mutex_t lock;
	pthread_cond_t ended; /* by CLOCK_MONOTONIC */
	bool done;
	bool late; /* the thread frees this */
	void (*call)(void *data), (*drop)(void *data);
	void *data;
};

static atomic_uint late;

/* Start anew in a child, which has none of the threads. */
static void forked(void)
{
	atomic_store(&late, 0);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked);
}

static struct task *task_new(void)
{
	struct task *task = calloc(1, sizeof(*task));
	pthread_condattr_t monotonic;

	if (!task)
		return NULL;
	pthread_mutex_init(&task->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&task->ended, &monotonic);
	pthread_condattr_destroy(&monotonic);
	return task;
}

static void task_free(struct task *task)
{
	pthread_cond_destroy(&task->ended);
	pthread_mutex_destroy(&task->lock);
	free(task);
}

static void *task_run(void *arg)
{
	struct task *task = arg;
	bool is_late;

	pthread_setname_np(pthread_self(), "tmesh-in-time");
	task->call(task->data);
	pthread_mutex_lock(&task->lock);
	task->done = true;
	is_late = task->late;
	pthread_cond_signal(&task->ended);
	pthread_mutex_unlock(&task->lock);
	if (is_late) {
		task->drop(task->data);
		task_free(task);
		atomic_fetch_sub(&late, 1);
	}
	return NULL;
}

/* Start the thread with all signals blocked: they are the application's. */
static int task_start(struct task *task, pthread_t *thread)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = -pthread_create(thread, NULL, task_run, task);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

/* Wait for the call's end. Return false if the time is over, and @task is the thread's. */
static bool task_wait(struct task *task, uint64_t ns)
{
	uint64_t end = tmesh_now_ns() + ns;
	struct timespec deadline = {.tv_sec = (time_t)(end / 1000000000),
				    .tv_nsec = (long)(end % 1000000000)};
	bool done;
	int rc = 0;

	pthread_mutex_lock(&task->lock);
	while (!task->done && !rc)
		rc = pthread_cond_timedwait(&task->ended, &task->lock, &deadline);
	done = task->done;
	if (!done) {
		task->late = true;
		atomic_fetch_add(&late, 1);
	}
	pthread_mutex_unlock(&task->lock);
	return done;
}

int tmesh_in_time(void (*call)(void *data), void (*drop)(void *data), void *data, uint64_t ns)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct task *task;
	pthread_t thread;
	int rc;

	pthread_once(&once, watch_forks);
	if (atomic_load(&late) >= TMESH_LATE_MOST) {
		drop(data);
		return -ETIMEDOUT;
	}
	task = task_new();
	if (!task) {
		drop(data);
		return -ENOMEM;
	}
	task->call = call;
	task->drop = drop;
	task->data = data;
	rc = task_start(task, &thread);
	if (rc) {
		task_free(task);
		drop(data);
		return rc;
	}
	if (!task_wait(task, ns)) {
		pthread_detach(thread);
		return -ETIMEDOUT;
	}
	pthread_join(thread, NULL);
	task_free(task);
	return 0;
}
