// SPDX-License-Identifier: MIT
/*
 * Pool: released regions of this process, with their pages and their mapping, for the next
 * request of the same size. Faulting in fresh pages costs several times what writing to
 * them does.
 *
 * Only memory that nobody else can hold comes here: created by this context, never sent,
 * named by a token, derived, exported, sealed or given out as a descriptor, and not
 * inherited by a child that was forked meanwhile. With TMESH_REGION_REUSE it may have been
 * named by tokens for reading. Then it waits here until the kernel knows of nobody who
 * still has it; docs/rendezvous.md says why nobody gets it later.
 *
 * What nobody has asked for in a while goes, with the next region that comes here, or
 * by the thread that answers for tokens, where there is one.
 *
 * A region that leaves the pool is zeroed, or, for callers who overwrite it anyway, as the
 * last user in this very context left it, with the rest of its last page zeroed.
 */
#include "internal.h"

#include <string.h>
#include <sys/mman.h>

/* Bytes bound the pool's memory, this its descriptors and the walk along it. */
#define POOL_REGIONS 128

/* Nobody but those to whom it was lent can have it. */
static bool ours(const struct tmesh_region *region)
{
	return region->created && !region->shared && !region->sealed && region->maps == 0 &&
	       region->forks == tmesh_fork_count();
}

static bool alone(struct tmesh_region *region)
{
	return ours(region) && region->ctx->ops->pool_alone(region);
}

/* Takes what is over the bounds, or has lain there for too long, off the tail; the caller destroys
 * it without the lock. */
static struct tmesh_region *trim(struct tmesh_ctx *ctx)
{
	struct tmesh_region **at = &ctx->pool, *rest;
	uint64_t bytes = 0, now = *at ? tmesh_now_ns() : 0;
	unsigned int count = 0;

	while (*at && count < POOL_REGIONS && (*at)->alloc <= ctx->pool_max - bytes &&
	       now - (*at)->pool_since < ctx->pool_idle_ns) {
		bytes += (*at)->alloc;
		count++;
		at = &(*at)->pool_next;
	}
	rest = *at;
	*at = NULL;
	ctx->pool_bytes = bytes;
	return rest;
}

static void destroy_all(struct tmesh_region *region)
{
	while (region) {
		struct tmesh_region *next = region->pool_next;

		tmesh_region_destroy(region);
		region = next;
	}
}

static void put(struct tmesh_ctx *ctx, struct tmesh_region *region)
{
	struct tmesh_region *rest;

	pthread_mutex_lock(&ctx->lock);
	region->pool_next = ctx->pool;
	region->pool_since = tmesh_now_ns();
	ctx->pool = region;
	rest = trim(ctx);
	pthread_mutex_unlock(&ctx->lock);
	destroy_all(rest);
}

bool tmesh_pool_put(struct tmesh_region *region)
{
	struct tmesh_ctx *ctx = region->ctx;

	if (ctx->pool_max == 0 || region->alloc > ctx->pool_max ||
	    !(region->lent ? ours(region) : alone(region)))
		return false;
	put(ctx, region);
	return true;
}

static struct tmesh_region *take(struct tmesh_ctx *ctx, uint64_t bytes,
				 const struct tmesh_region_opts *opts)
{
	struct tmesh_region **at, *region;

	pthread_mutex_lock(&ctx->lock);
	for (at = &ctx->pool; *at; at = &(*at)->pool_next)
		if (ctx->ops->pool_fits(*at, bytes, opts))
			break;
	region = *at;
	if (region) {
		*at = region->pool_next;
		region->pool_next = NULL;
		ctx->pool_bytes -= region->alloc;
	}
	pthread_mutex_unlock(&ctx->lock);
	return region;
}

/* 0 when the region is as good as new. */
static int renew(struct tmesh_region *region, uint64_t bytes, const struct tmesh_region_opts *opts)
{
	uint64_t keep = opts->flags & TMESH_REGION_UNINITIALIZED ? bytes : 0;
	int rc;

	/* Forked while it lay here: the child has the pages too. */
	if (!alone(region))
		return -EBUSY;
	rc = tmesh_region_map_locked(region, PROT_READ | PROT_WRITE, NULL);
	if (rc)
		return rc;
	memset((uint8_t *)region->addr + keep, 0, region->alloc - keep);
	return region->ctx->ops->pool_renew(region, bytes, opts);
}

struct tmesh_region *tmesh_pool_get(struct tmesh_ctx *ctx, uint64_t bytes,
				    const struct tmesh_region_opts *opts)
{
	struct tmesh_region *region, *held = NULL;

	if (ctx->pool_max == 0)
		return NULL;
	while ((region = take(ctx, bytes, opts)) && renew(region, bytes, opts)) {
		if (region->lent && ours(region)) {
			region->pool_next = held;
			held = region;
		} else {
			tmesh_region_destroy(region);
		}
	}
	while (held) {
		struct tmesh_region *next = held->pool_next;

		put(ctx, held);
		held = next;
	}
	if (region) {
		atomic_store(&region->refs, 1);
		region->warm = true;
	}
	tmesh_count(ctx, region ? COUNT_POOL_HITS : COUNT_POOL_MISSES, 1);
	return region;
}

void tmesh_pool_age(struct tmesh_ctx *ctx)
{
	struct tmesh_region *rest;

	pthread_mutex_lock(&ctx->lock);
	rest = trim(ctx);
	pthread_mutex_unlock(&ctx->lock);
	destroy_all(rest);
}

uint64_t tmesh_ctx_trim(struct tmesh_ctx *ctx)
{
	struct tmesh_region *all;
	uint64_t bytes;

	pthread_mutex_lock(&ctx->lock);
	all = ctx->pool;
	bytes = ctx->pool_bytes;
	ctx->pool = NULL;
	ctx->pool_bytes = 0;
	pthread_mutex_unlock(&ctx->lock);
	destroy_all(all);
	return bytes;
}

bool tmesh_pool_yields(struct tmesh_ctx *ctx, int rc)
{
	return (rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -EDQUOT) &&
	       tmesh_ctx_trim(ctx);
}
