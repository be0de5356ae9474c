// SPDX-License-Identifier: MIT
/*
 * The pages of a pool: their lists, their holders, their hashes, and the slabs that they are in. A
 * page is free, idle (cached and held by no handle) or busy. page_settle() moves it to the right
 * list whenever its holders or its pins change. Tickets and the cache pin a page.
 */
#include "allocator_internal.h"

/* Lists and places */

static void list_remove(struct tmesh_page_pool *pool, struct list *list, uint32_t i)
{
	struct page *page = &pool->pages[i];

	*(page->prev == NONE ? &list->first : &pool->pages[page->prev].next) = page->next;
	*(page->next == NONE ? &list->last : &pool->pages[page->next].prev) = page->prev;
	list->count--;
}

static void list_add(struct tmesh_page_pool *pool, struct list *list, uint32_t i)
{
	struct page *page = &pool->pages[i];

	page->prev = list->last;
	page->next = NONE;
	*(list->last == NONE ? &list->first : &pool->pages[list->last].next) = i;
	list->last = i;
	list->count++;
}

static struct tenant *tenant_of(struct tmesh_page_pool *pool, uint32_t i)
{
	return pool->slabs[i / pool->shape.slab_pages].tenant;
}

void page_settle(struct tmesh_page_pool *pool, uint32_t i)
{
	struct tenant *tenant = tenant_of(pool, i);
	struct page *page = &pool->pages[i];
	enum page_place place = page->holders			  ? PAGE_BUSY
				: !page->pins			  ? PAGE_FREE
				: page->cached && page->pins == 1 ? PAGE_IDLE
								  : PAGE_BUSY;

	if (place == page->place)
		return;
	if (page->place != PAGE_BUSY)
		list_remove(pool, page->place == PAGE_FREE ? &tenant->free : &tenant->idle, i);
	page->place = (uint8_t)place;
	if (place != PAGE_BUSY)
		list_add(pool, place == PAGE_FREE ? &tenant->free : &tenant->idle, i);
}

/* Holders */

bool page_is_held_by(const struct handle *handle, uint32_t i)
{
	return i < handle->tenant->pool->shape.max_pages && bit_get(handle->holds, i);
}

void page_hold(struct handle *handle, uint32_t i)
{
	struct tmesh_page_pool *pool = handle->tenant->pool;

	if (bit_get(handle->holds, i))
		return;
	bit_set(handle->holds, i);
	handle->held++;
	pool->pages[i].holders++;
	page_settle(pool, i);
}

void page_drop(struct handle *handle, uint32_t i)
{
	struct tmesh_page_pool *pool = handle->tenant->pool;

	bit_clear(handle->holds, i);
	handle->held--;
	pool->pages[i].holders--;
	page_settle(pool, i);
}

/* The cache */

static uint32_t *bucket(struct tenant *tenant, const uint64_t hash[2])
{
	return &tenant->buckets[hash[0] & tenant->mask];
}

uint32_t page_cache_find(struct tenant *tenant, const uint64_t hash[2])
{
	const struct page *pages = tenant->pool->pages;
	uint32_t i = *bucket(tenant, hash);

	while (i != NONE && (pages[i].hash[0] != hash[0] || pages[i].hash[1] != hash[1]))
		i = pages[i].chain;
	return i;
}

void page_cache_add(struct tenant *tenant, const uint64_t hash[2], uint32_t i)
{
	struct page *page = &tenant->pool->pages[i];
	uint32_t *first = bucket(tenant, hash);

	memcpy(page->hash, hash, sizeof(page->hash));
	page->chain = *first;
	*first = i;
	page->cached = true;
	page->pins++;
	tenant->pool->cached++;
	page_settle(tenant->pool, i);
}

static void cache_remove(struct tenant *tenant, uint32_t i)
{
	struct page *pages = tenant->pool->pages;
	uint32_t *at = bucket(tenant, pages[i].hash);

	while (*at != i)
		at = &pages[*at].chain;
	*at = pages[i].chain;
	pages[i].cached = false;
	pages[i].pins--;
	tenant->pool->cached--;
	page_settle(tenant->pool, i);
}

bool owner_evict(struct tenant *tenant)
{
	struct tmesh_page_pool *pool = tenant->pool;

	for (uint32_t i = tenant->idle.first; i != NONE; i = pool->pages[i].next) {
		struct tmesh_page_victim victim = {.tenant = tenant->number, .page = i};

		memcpy(victim.hash, pool->pages[i].hash, sizeof(victim.hash));
		if (pool->opts.evict && !pool->opts.evict(pool->opts.data, &victim))
			continue;
		cache_remove(tenant, i);
		pool->evicted++;
		return true;
	}
	return false;
}

/* Slabs */

/* Larger slabs get the memory of a page when the page is first given, for the host waits. */
#define TAKEN_AT_ONCE ((uint64_t)32 << 20)

/* Take the memory of a slab where it comes in huge pages, as a first mapping does. */
static void take_slab(const struct tmesh_page_pool *pool, struct tmesh_region *region)
{
	const uint32_t rights = TMESH_READ | TMESH_WRITE;
	void *addr;

	if (tmesh_ctx_backend(pool->ctx) == TMESH_BACKEND_MEMFD &&
	    !tmesh_region_map(region, rights, &addr, NULL))
		tmesh_region_unmap(region, rights);
}

void page_take(struct tmesh_page_pool *pool, uint32_t i)
{
	uint64_t page = pool->shape.page_bytes, in = i % pool->shape.slab_pages;

	if (pool->pages[i].taken || pool->opts.place || page % PAGES_HUGE_BYTES ||
	    page * pool->shape.slab_pages <= TAKEN_AT_ONCE)
		return;
	pool->pages[i].taken = true;
	for (uint32_t d = 0; d < pool->shape.devices; d++)
		tmesh_region_populate(pool->slabs[i / pool->shape.slab_pages].regions[d], in * page,
				      page, NULL);
}

static int place(struct tmesh_page_pool *pool, uint32_t device, struct tmesh_region **out)
{
	const struct tmesh_region_opts opts = {
		.size = sizeof(opts),
		.label = "pages",
		/* Other sizes could not be mapped one by one. */
		.flags = pool->shape.page_bytes % PAGES_HUGE_BYTES ? 0 : TMESH_REGION_TRY_HUGE,
	};
	uint64_t bytes = pool->shape.page_bytes * pool->shape.slab_pages;
	int rc;

	if (!pool->opts.place) {
		rc = tmesh_region_create(pool->ctx, bytes, &opts, out, NULL);
		if (!rc && bytes <= TAKEN_AT_ONCE)
			take_slab(pool, *out);
		return rc;
	}
	rc = pool->opts.place(pool->opts.data, pool->ctx, device, bytes, out, NULL);
	if (!rc && tmesh_region_bytes(*out) < bytes) {
		tmesh_region_unref(*out);
		rc = -EINVAL;
	}
	return rc;
}

int page_slab_add(struct tenant *tenant)
{
	struct tmesh_page_pool *pool = tenant->pool;
	struct slab *slab = &pool->slabs[pool->slab_count];
	uint32_t first = pool->slab_count * pool->shape.slab_pages;

	if (pool->slab_count == pool->max_slabs || tenant->slabs == tenant->max_slabs)
		return -EDQUOT;
	for (uint32_t d = 0; d < pool->shape.devices; d++) {
		int rc = place(pool, d, &slab->regions[d]);

		if (rc) {
			while (d--)
				tmesh_region_unref(slab->regions[d]);
			return rc;
		}
	}
	slab->tenant = tenant;
	pool->slab_count++;
	tenant->slabs++;
	for (uint32_t i = first; i < first + pool->shape.slab_pages; i++)
		page_settle(pool, i);
	return 0;
}
