// SPDX-License-Identifier: MIT
/* Turns: the calls that use an object one after another. */
#include "turn.h"

#include <errno.h>

void turns_init(struct turns *turns)
{
	pthread_mutex_init(&turns->lock, NULL);
	cancel_cond_init(&turns->idle);
}

void turns_destroy(struct turns *turns)
{
	pthread_cond_destroy(&turns->idle);
	pthread_mutex_destroy(&turns->lock);
}

static void take(struct turns *turns, const struct cancel_hook *hook)
{
	turns->holder = hook;
	turns->owner = pthread_self();
}

int turn_enter(struct turns *turns, struct cancel_hook *hook, void (*wake)(void *data), void *data,
	       const char *what, struct tmesh_error *err)
{
	int late = 0, rc = 0;

	cancel_hook_begin(hook, wake, data);
	pthread_mutex_lock(&turns->lock);
	/* A signal handler interrupted this thread's own call. */
	if (turns->holder && pthread_equal(turns->owner, pthread_self()))
		rc = tmesh_fail(err, -EDEADLK, "one of the %s waits below, in this thread", what);
	while (!rc && !(rc = cancel_check(err)) && turns->holder && !late)
		late = cancel_cond_wait(&turns->idle, &turns->lock);
	if (!rc && turns->holder)
		rc = tmesh_fail(err, -ETIMEDOUT,
				"other %s did not end before the deadline: give a later one", what);
	if (!rc)
		take(turns, hook);
	pthread_mutex_unlock(&turns->lock);
	if (rc)
		cancel_hook_end(hook);
	return rc;
}

bool turn_try_enter(struct turns *turns, const struct cancel_hook *hook)
{
	bool free;

	pthread_mutex_lock(&turns->lock);
	free = !turns->holder;
	if (free)
		take(turns, hook);
	pthread_mutex_unlock(&turns->lock);
	return free;
}

void turn_leave(struct turns *turns)
{
	turns->holder = NULL;
	/* Wake all: a single woken call could be a cancelled one, which leaves. */
	turns_wake(turns);
}

void turns_wake(struct turns *turns)
{
	pthread_cond_broadcast(&turns->idle);
}
