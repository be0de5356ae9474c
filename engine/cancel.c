// SPDX-License-Identifier: MIT
/* Cancellables: flags that wake waiting calls. */
#include "cancel.h"

#include <errno.h>
#include <stdlib.h>

#include "common/clock.h"

struct tmesh_engine_cancellable {
	atomic_uint refs;
	atomic_bool cancelled;
	unsigned int life;
	int (*interrupted)(void *data);
	void *data;
	pthread_mutex_t lock;
	struct cancel_hook *hooks;
};

static _Thread_local struct tmesh_engine_cancellable *current;
static _Thread_local uint64_t deadline;

int tmesh_engine_cancellable_create(const struct tmesh_engine_cancellable_opts *opts,
				    struct tmesh_engine_cancellable **out, struct tmesh_error *err)
{
	struct tmesh_engine_cancellable_opts own;
	struct tmesh_engine_cancellable *made;
	int rc = tmesh_read_sized(&own, sizeof(own), opts, err);

	if (rc)
		return rc;
	made = calloc(1, sizeof(*made));
	if (!made)
		return tmesh_fail(err, -ENOMEM, "no memory for a cancellable");
	made->refs = 1;
	made->life = engine_life();
	made->interrupted = own.interrupted;
	made->data = own.data;
	pthread_mutex_init(&made->lock, NULL);
	*out = made;
	return 0;
}

struct tmesh_engine_cancellable *
tmesh_engine_cancellable_ref(struct tmesh_engine_cancellable *cancellable)
{
	atomic_fetch_add(&cancellable->refs, 1);
	return cancellable;
}

void tmesh_engine_cancellable_unref(struct tmesh_engine_cancellable *cancellable)
{
	if (!cancellable || atomic_fetch_sub(&cancellable->refs, 1) > 1)
		return;
	pthread_mutex_destroy(&cancellable->lock);
	free(cancellable);
}

void tmesh_engine_cancel(struct tmesh_engine_cancellable *cancellable)
{
	if (atomic_exchange(&cancellable->cancelled, true) || cancellable->life != engine_life())
		return;
	pthread_mutex_lock(&cancellable->lock);
	for (struct cancel_hook *hook = cancellable->hooks; hook; hook = hook->next)
		hook->wake(hook->data);
	pthread_mutex_unlock(&cancellable->lock);
}

bool tmesh_engine_cancelled(const struct tmesh_engine_cancellable *cancellable)
{
	return atomic_load(&cancellable->cancelled);
}

struct tmesh_engine_cancellable *cancel_enter(struct tmesh_engine_cancellable *cancellable)
{
	struct tmesh_engine_cancellable *before = current;

	current = cancellable;
	return before;
}

int cancel_check(struct tmesh_error *err)
{
	if (!current || !tmesh_engine_cancelled(current))
		return 0;
	return tmesh_fail(err, -ECANCELED, "the call was cancelled before it ran");
}

/* Return whether the program wants to be asked after signals. */
static bool cancel_interruptible(void)
{
	return current && current->interrupted;
}

void cancel_interrupted(void)
{
	if (cancel_interruptible() && current->interrupted(current->data))
		tmesh_engine_cancel(current);
}

uint64_t deadline_enter(uint64_t next)
{
	uint64_t before = deadline;

	deadline = next;
	return before;
}

uint64_t deadline_get(void)
{
	return deadline;
}

void cancel_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

int cancel_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
	uint64_t until = deadline;
	struct timespec time;
	int rc;

	if (cancel_interruptible() && (!until || until > tmesh_now_ns() + CANCEL_LOOK_NS))
		until = tmesh_now_ns() + CANCEL_LOOK_NS;
	time = (struct timespec){.tv_sec = (time_t)(until / 1000000000),
				 .tv_nsec = (long)(until % 1000000000)};
	rc = until ? pthread_cond_timedwait(cond, lock, &time) : pthread_cond_wait(cond, lock);
	if (rc && until != deadline) {
		pthread_mutex_unlock(lock);
		cancel_interrupted();
		pthread_mutex_lock(lock);
		rc = 0;
	}
	return rc;
}

struct tmesh_engine_cancellable *
tmesh_engine_cancellable_enter(struct tmesh_engine_cancellable *cancellable)
{
	return cancel_enter(cancellable);
}

void cancel_hook_begin(struct cancel_hook *hook, void (*wake)(void *data), void *data)
{
	*hook = (struct cancel_hook){.wake = wake, .data = data, .of = current};
	if (!current)
		return;
	pthread_mutex_lock(&current->lock);
	hook->next = current->hooks;
	current->hooks = hook;
	if (tmesh_engine_cancelled(current))
		wake(data);
	pthread_mutex_unlock(&current->lock);
}

void cancel_hook_end(struct cancel_hook *hook)
{
	struct cancel_hook **at;

	if (!hook->of)
		return;
	pthread_mutex_lock(&hook->of->lock);
	for (at = &hook->of->hooks; *at != hook; at = &(*at)->next)
		;
	*at = hook->next;
	pthread_mutex_unlock(&hook->of->lock);
}
