// SPDX-License-Identifier: MIT
/*
 * The live regions of a context. A region's handles (derived, pinned, opened again) are several
 * objects but one piece of memory. It counts once, from the first handle to the last. For as long
 * it is charged to the limit of the context that made it.
 *
 * The handles of a region are a ring. One of them, the head, is in a hash table by the region's id.
 * The links are in the objects themselves, so that counting cannot fail.
 */
#include "internal.h"

#include <stdlib.h>

static struct tmesh_region **bucket(struct tmesh_ctx *ctx, uint64_t id)
{
	return &ctx->live[(id * 0x9e3779b97f4a7c15u >> 32) & (ctx->live_buckets - 1)];
}

static struct tmesh_region **live_find_head(struct tmesh_ctx *ctx, uint64_t id)
{
	struct tmesh_region **at = bucket(ctx, id);

	while (*at && (*at)->id != id)
		at = &(*at)->live_next;
	return at;
}

/* Enlarge the table. Without memory its chains only get longer. */
static void grow(struct tmesh_ctx *ctx)
{
	uint32_t old_buckets = ctx->live_buckets;
	struct tmesh_region **old = ctx->live;
	struct tmesh_region **larger = calloc(2 * (size_t)old_buckets, sizeof(*larger));

	if (!larger)
		return;
	ctx->live = larger;
	ctx->live_buckets = 2 * old_buckets;
	for (uint32_t i = 0; i < old_buckets; i++) {
		while (old[i]) {
			struct tmesh_region *region = old[i], **at = bucket(ctx, region->id);

			old[i] = region->live_next;
			region->live_next = *at;
			*at = region;
		}
	}
	if (old != ctx->live_few)
		free(old);
}

void tmesh_live_init(struct tmesh_ctx *ctx)
{
	ctx->live = ctx->live_few;
	ctx->live_buckets = sizeof(ctx->live_few) / sizeof(ctx->live_few[0]);
}

void tmesh_live_end(struct tmesh_ctx *ctx)
{
	if (ctx->live != ctx->live_few)
		free(ctx->live);
}

static void live_begin(struct tmesh_ctx *ctx, struct tmesh_region *region, struct tmesh_region **at)
{
	region->ring_next = region->ring_prev = region;
	region->live_next = NULL;
	region->live_bytes = region->alloc;
	*at = region;
	tmesh_count(ctx, COUNT_LIVE, 1);
	tmesh_count(ctx, COUNT_BYTES_LIVE, region->alloc);
	if (++ctx->live_count > ctx->live_buckets)
		grow(ctx);
}

void tmesh_live_add(struct tmesh_region *region)
{
	struct tmesh_ctx *ctx = region->ctx;
	struct tmesh_region **at, *head;

	pthread_mutex_lock(&ctx->lock);
	at = live_find_head(ctx, region->id);
	head = *at;
	if (head) {
		region->ring_next = head->ring_next;
		region->ring_prev = head;
		head->ring_next->ring_prev = region;
		head->ring_next = region;
	} else {
		live_begin(ctx, region, at);
	}
	pthread_mutex_unlock(&ctx->lock);
}

uint64_t tmesh_live_remove(struct tmesh_region *region)
{
	struct tmesh_ctx *ctx = region->ctx;
	struct tmesh_region **at, *heir;
	uint64_t charged;

	pthread_mutex_lock(&ctx->lock);
	at = live_find_head(ctx, region->id);
	heir = region->ring_next;
	charged = region->charged;
	if (heir == region) {
		*at = region->live_next;
		ctx->live_count--;
		tmesh_count(ctx, COUNT_LIVE, (uint64_t)-1);
		tmesh_count(ctx, COUNT_BYTES_LIVE, -region->live_bytes);
	} else {
		if (*at == region) {
			heir->live_next = region->live_next;
			heir->live_bytes = region->live_bytes;
			*at = heir;
		}
		heir->charged += charged;
		charged = 0;
		heir->ring_prev = region->ring_prev;
		region->ring_prev->ring_next = heir;
	}
	region->charged = 0;
	pthread_mutex_unlock(&ctx->lock);
	return charged;
}
