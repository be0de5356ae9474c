// SPDX-License-Identifier: MIT
/*
 * fork(): the child gets a copy of the parent's memory, but none of its threads. The handlers keep
 * everything that context locks guard consistent across the fork. They also close the child's
 * copies of the parent's sockets at once, so that the sockets end when the parent does. The rest
 * waits for the child's first call (tmesh_ctx_enter).
 *
 * The list is the library's only state outside contexts, because handlers have no argument.
 */
#include "held.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tmesh_ctx *contexts;			  /* under list_lock */
static bool handlers_set;				  /* under list_lock */
static pthread_mutex_t still = PTHREAD_MUTEX_INITIALIZER; /* taken last; never held in a wait */
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
		tmesh_log_forget(ctx);
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

/* Return the context after @last (NULL: the first) with a reference. Skip contexts that are ending.
 */
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

/* Call @f for each context. Its reference keeps the context, and its place, in the list. */
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
