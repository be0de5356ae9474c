// SPDX-License-Identifier: MIT
/*
 * fork(): the child gets the parent's memory, but none of its threads and no right to
 * speak in its name. The handlers keep what the context locks guard whole across the
 * fork, and cut the child off from its parent's sockets at once, so that they end when
 * the parent does. All else waits for the child's first call (tmesh_ctx_enter).
 *
 * The list is the library's only state outside contexts: handlers have no argument.
 */
#include "held.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tmesh_ctx *contexts;			  /* under list_lock */
static bool handlers_set;				  /* under list_lock */
static pthread_mutex_t still = PTHREAD_MUTEX_INITIALIZER; /* last of all: nobody waits with it */
atomic_uint tmesh_life;
static atomic_uint forks;

uint32_t tmesh_fork_count(void)
{
	return atomic_load_explicit(&forks, memory_order_relaxed);
}

void tmesh_fork_keep_off(void)
{
	pthread_mutex_lock(&still);
}

void tmesh_fork_let(void)
{
	int code = errno;

	pthread_mutex_unlock(&still);
	errno = code;
}

static void prepare(void)
{
	pthread_mutex_lock(&list_lock);
	for (struct tmesh_ctx *ctx = contexts; ctx; ctx = ctx->next)
		pthread_mutex_lock(&ctx->lock);
	pthread_mutex_lock(&still);
	atomic_fetch_add(&forks, 1);
}

static void parent(void)
{
	pthread_mutex_unlock(&still);
	for (struct tmesh_ctx *ctx = contexts; ctx; ctx = ctx->next)
		pthread_mutex_unlock(&ctx->lock);
	pthread_mutex_unlock(&list_lock);
}

static void child(void)
{
	atomic_fetch_add(&tmesh_life, 1);
	for (struct tmesh_ctx *ctx = contexts; ctx; ctx = ctx->next) {
		tmesh_holds_forked(ctx);
		ctx->ops->forked(ctx);
	}
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

/* The context after @last, NULL: the first, with a reference. What ends just now is left out. */
static struct tmesh_ctx *after(const struct tmesh_ctx *last)
{
	struct tmesh_ctx *ctx = last ? last->next : contexts;

	for (; ctx; ctx = ctx->next) {
		unsigned int refs = atomic_load(&ctx->refs);

		while (refs)
			if (atomic_compare_exchange_weak(&ctx->refs, &refs, refs + 1))
				return ctx;
	}
	return NULL;
}

/* With its reference a context stays in the list, and so does its place in it. */
void tmesh_fork_each(void (*f)(struct tmesh_ctx *ctx, void *data), void *data)
{
	struct tmesh_ctx *last = NULL, *ctx;

	do {
		if (pthread_mutex_trylock(&list_lock))
			return;
		ctx = after(last);
		pthread_mutex_unlock(&list_lock);
		tmesh_ctx_unref(last);
		if (ctx)
			f(ctx, data);
		last = ctx;
	} while (ctx);
}
