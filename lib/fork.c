// SPDX-License-Identifier: MIT
/*
 * fork(): the child gets the parent's memory, but none of its threads and no right to
 * speak in its name. The handlers keep what the context locks guard whole across the
 * fork, and cut the child off from its parent's sockets at once, so that they end when
 * the parent does. All else waits for the child's first call (tmesh_ctx_enter).
 *
 * The list is the library's only state outside contexts: handlers have no argument.
 */
#include "internal.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tmesh_ctx *contexts; /* under list_lock */
static bool handlers_set;	   /* under list_lock */
atomic_uint tmesh_life;
static atomic_uint forks;

uint32_t tmesh_fork_count(void)
{
	return atomic_load_explicit(&forks, memory_order_relaxed);
}

static void prepare(void)
{
	pthread_mutex_lock(&list_lock);
	for (struct tmesh_ctx *ctx = contexts; ctx; ctx = ctx->next)
		pthread_mutex_lock(&ctx->lock);
	atomic_fetch_add(&forks, 1);
}

static void parent(void)
{
	for (struct tmesh_ctx *ctx = contexts; ctx; ctx = ctx->next)
		pthread_mutex_unlock(&ctx->lock);
	pthread_mutex_unlock(&list_lock);
}

static void child(void)
{
	atomic_fetch_add(&tmesh_life, 1);
	for (struct tmesh_ctx *ctx = contexts; ctx; ctx = ctx->next)
		ctx->ops->forked(ctx);
	parent();
}

int tmesh_fork_watch(struct tmesh_ctx *ctx)
{
	int rc = 0;

	pthread_mutex_lock(&list_lock);
	if (!handlers_set) {
		rc = -pthread_atfork(prepare, parent, child);
		handlers_set = rc == 0;
	}
	if (!rc) {
		ctx->next = contexts;
		contexts = ctx;
	}
	pthread_mutex_unlock(&list_lock);
	return rc;
}

void tmesh_fork_forget(struct tmesh_ctx *ctx)
{
	struct tmesh_ctx **at = &contexts;

	pthread_mutex_lock(&list_lock);
	while (*at != ctx)
		at = &(*at)->next;
	*at = ctx->next;
	pthread_mutex_unlock(&list_lock);
}
