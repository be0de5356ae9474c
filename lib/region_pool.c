// SPDX-License-Identifier: MIT
/*
 * Pool: released regions of this process, with their pages and their mapping, for the next request
 * of the same size. Faulting in fresh pages costs several times as much as writing to them.
 *
 * Only memory that no other process can hold comes here. This context created it, and it was never
 * sent, named by a token, derived, exported, sealed or given out as a descriptor. No child that was
 * forked meanwhile inherited it.
 *
 * With TMESH_REGION_REUSE the memory may have been named by tokens for reading. Then it waits here
 * until the kernel knows of no process that still has it. docs/internals/rendezvous.md explains why
 * none gets it later.
 *
 * A region that no request has taken in a while is freed: with the next region that comes here, or
 * by the context's watch. Without the watch nothing comes here.
 *
 * A region that leaves the pool is zeroed, unless the caller overwrites it anyway. Then it is as
 * its last user in this context left it, with the rest of its last page zeroed.
 */
#include "internal.h"
#include "watch.h"

#include "common/room.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Bytes bound the pool's memory, this its descriptors and the walk along it. */
#define POOL_REGIONS 128
#define DEFAULT_BYTES (256u << 20)
/* ... at most this part of the memory there is. */
#define DEFAULT_SHARE 64
#define LONGEST_MIB ((uint64_t)1 << 40)

static uint64_t default_bytes(void)
{
	struct tmesh_room room;
	uint64_t share;

	tmesh_room("", &room);
	share = room.largest / DEFAULT_SHARE;
	return share < DEFAULT_BYTES ? share : DEFAULT_BYTES;
}

int tmesh_region_pool_wanted(uint64_t option, uint64_t *out, struct tmesh_error *err)
{
	const char *text = option ? NULL : secure_getenv("TMESH_REGION_POOL");
	unsigned long long mib;
	char *end;

	if (!text || !*text) {
		*out = option == TMESH_NO_REGION_POOL ? 0 : option ? option : POOL_BY_DEFAULT;
		return 0;
	}
	mib = strtoull(text, &end, 10);
	if (*end || *text < '0' || mib > LONGEST_MIB)
		return tmesh_fail(err, -EINVAL,
				  "TMESH_REGION_POOL is \"%.32s\"; it is MiB, and 0 for no pool",
				  text);
	*out = mib << 20;
	return 0;
}

/* Return the pool's limit. The default is computed at the first release, which most contexts never
 * make. */
static uint64_t most(struct tmesh_ctx *ctx)
{
	uint64_t bytes = atomic_load_explicit(&ctx->pool_max, memory_order_relaxed);

	if (bytes == POOL_BY_DEFAULT) {
		bytes = default_bytes();
		atomic_store_explicit(&ctx->pool_max, bytes, memory_order_relaxed);
	}
	return bytes;
}

/* Return whether only processes that it was lent to can have the memory. */
static bool ours(const struct tmesh_region *region)
{
	return region->created && !region->shared && !region->sealed && region->maps == 0 &&
	       region->forks == tmesh_fork_count();
}

static bool alone(struct tmesh_region *region)
{
	return ours(region) && region->ctx->ops->pool_alone(region);
}

/* Remove from the tail the regions that exceed the limits or that were idle too long. The caller
 * destroys them without the lock. */
static struct tmesh_region *trim(struct tmesh_ctx *ctx)
{
	struct tmesh_region **at = &ctx->pool, *rest;
	uint64_t bytes = 0, now = *at ? tmesh_now_ns() : 0, limit = most(ctx);
	unsigned int count = 0;

	while (*at && count < POOL_REGIONS && (*at)->alloc <= limit - bytes &&
	       now - (*at)->pool_since < ctx->pool_idle_ns) {
		bytes += (*at)->alloc;
		count++;
		at = &(*at)->pool_next;
	}
	rest = *at;
	*at = NULL;
	ctx->region_pool_bytes = bytes;
	return rest;
}

static void destroy(struct tmesh_region *region)
{
	atomic_fetch_sub(&region->ctx->bytes_owned, region->charged);
	tmesh_region_destroy(region);
}

static void destroy_all(struct tmesh_region *region)
{
	while (region) {
		struct tmesh_region *next = region->pool_next;

		destroy(region);
		region = next;
	}
}

/* Return whether the watch runs, and start it if not. It looks until it finds the pool empty. */
static bool is_watched(struct tmesh_ctx *ctx)
{
	if (ctx->pool_watched)
		return true;
	if (tmesh_watch_start(ctx, NULL))
		return false;
	ctx->pool_watched = true;
	tmesh_watch_nudge(ctx->watch);
	return true;
}

static bool pool_put(struct tmesh_ctx *ctx, struct tmesh_region *region)
{
	struct tmesh_region *rest;
	bool kept;

	pthread_mutex_lock(&ctx->lock);
	kept = is_watched(ctx);
	if (kept) {
		region->pool_next = ctx->pool;
		region->pool_since = tmesh_now_ns();
		ctx->pool = region;
	}
	rest = trim(ctx);
	pthread_mutex_unlock(&ctx->lock);
	destroy_all(rest);
	return kept;
}

bool tmesh_region_pool_put(struct tmesh_region *region)
{
	struct tmesh_ctx *ctx = region->ctx;

	return ours(region) && region->alloc <= most(ctx) && (region->lent || alone(region)) &&
	       pool_put(ctx, region);
}

static struct tmesh_region *pool_remove(struct tmesh_ctx *ctx, uint64_t bytes,
					const struct tmesh_region_opts *opts)
{
	struct tmesh_region **at, *region;

	pthread_mutex_lock(&ctx->lock);
	for (at = &ctx->pool; *at; at = &(*at)->pool_next)
		if (ctx->ops->pool_fits(*at, bytes, opts))
			break;
	region = *at;
	if (region) {
		ctx->pool_used = true;
		*at = region->pool_next;
		region->pool_next = NULL;
		ctx->region_pool_bytes -= region->alloc;
	}
	pthread_mutex_unlock(&ctx->lock);
	return region;
}

/* Make the region as good as new; 0 on success. */
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

struct tmesh_region *tmesh_region_pool_get(struct tmesh_ctx *ctx, uint64_t bytes,
					   const struct tmesh_region_opts *opts)
{
	struct tmesh_region *region, *held = NULL;

	if (atomic_load_explicit(&ctx->pool_max, memory_order_relaxed) == 0)
		return NULL;
	while ((region = pool_remove(ctx, bytes, opts)) && renew(region, bytes, opts)) {
		if (region->lent && ours(region)) {
			region->pool_next = held;
			held = region;
		} else {
			destroy(region);
		}
	}
	while (held) {
		struct tmesh_region *next = held->pool_next;

		if (!pool_put(ctx, held))
			destroy(held);
		held = next;
	}
	if (region) {
		atomic_store(&region->refs, 1);
		region->warm = true;
	}
	tmesh_count(ctx, region ? COUNT_REGION_POOL_HITS : COUNT_REGION_POOL_MISSES, 1);
	return region;
}

void tmesh_region_pool_age(struct tmesh_ctx *ctx)
{
	struct tmesh_region *rest;

	pthread_mutex_lock(&ctx->lock);
	rest = trim(ctx);
	ctx->pool_watched = ctx->pool || ctx->pool_used;
	ctx->pool_used = false;
	pthread_mutex_unlock(&ctx->lock);
	destroy_all(rest);
}

uint64_t tmesh_ctx_trim(struct tmesh_ctx *ctx)
{
	struct tmesh_region *all;
	uint64_t bytes;

	pthread_mutex_lock(&ctx->lock);
	all = ctx->pool;
	bytes = ctx->region_pool_bytes;
	ctx->pool = NULL;
	ctx->region_pool_bytes = 0;
	pthread_mutex_unlock(&ctx->lock);
	destroy_all(all);
	return bytes;
}

bool tmesh_region_pool_yields(struct tmesh_ctx *ctx, int rc)
{
	bool later;

	if (rc != -EMFILE && rc != -ENFILE && rc != -ENOMEM && rc != -EDQUOT)
		return false;
	/* The watch may not have come to it yet. */
	later = tmesh_later_drain(ctx);
	return tmesh_ctx_trim(ctx) || later;
}
