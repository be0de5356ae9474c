/* SPDX-License-Identifier: MIT */
/* The records of a page pool's owner. The host's lock guards all of them. */
#ifndef TMESH_ALLOCATOR_INTERNAL_H
#define TMESH_ALLOCATOR_INTERNAL_H

#include "pages_internal.h"

#define TENANTS_MAX 64
#define NONE UINT32_MAX

enum page_place {
	PAGE_BUSY,
	PAGE_FREE,
	PAGE_IDLE,
};

struct page {
	uint32_t holders;
	uint32_t pins;
	uint32_t next, prev; /* in the list of its place */
	uint32_t chain;	     /* cached: the next of its bucket */
	uint8_t place;	     /* enum page_place */
	bool cached;
	bool taken; /* by page_take() */
	uint64_t hash[2];
};

struct list {
	uint32_t first, last, count;
};

struct ticket {
	struct ticket *next;
	uint64_t name[2];
	struct handle *maker;
	uint64_t tokens;
	uint32_t count;
	uint32_t pages[];
};

struct handle {
	struct model_source source;
	struct tenant *tenant;
	struct handle *next, **at;
	uint32_t tickets;
	uint32_t held;
	bool recalled;
	uint64_t holds[]; /* a bit for each page of the pool */
};

struct tenant {
	struct model_listener listener;
	struct tmesh_page_pool *pool;
	uint32_t number;
	uint32_t max_slabs, slabs;
	uint64_t key[4];
	struct list free, idle; /* idle: the longest unused first */
	uint32_t *buckets;
	uint32_t mask;
	struct handle *handles;
	struct ticket *tickets;
};

struct slab {
	struct tenant *tenant;
	struct tmesh_region *regions[TMESH_PAGES_MAX_DEVICES];
};

struct tmesh_page_pool {
	atomic_uint refs;
	uint32_t life;
	struct tmesh_ctx *ctx;
	struct tmesh_page_pool_opts opts;
	struct pages_shape shape;
	uint32_t max_slabs, slab_count;
	struct slab *slabs;
	struct page *pages;
	struct tenant *tenants[TENANTS_MAX];
	uint32_t tenant_count;
	uint64_t handle_count, ticket_count, cached, evicted, refused, died, reclaimed;
	struct pages_message in, out;
};

/* Move a page to the right list after its holders or its pins have changed. */
void page_settle(struct tmesh_page_pool *pool, uint32_t i);
bool page_is_held_by(const struct handle *handle, uint32_t i);
void page_hold(struct handle *handle, uint32_t i);
void page_drop(struct handle *handle, uint32_t i);
/* Return the tenant's page that is cached under @hash, or NONE. */
uint32_t page_cache_find(struct tenant *tenant, const uint64_t hash[2]);
void page_cache_add(struct tenant *tenant, const uint64_t hash[2], uint32_t i);
/* Evict the idle page that is unused for longest and that the owner gives up. */
bool owner_evict(struct tenant *tenant);
/* Take the memory of a page before it is given for the first time. */
void page_take(struct tmesh_page_pool *pool, uint32_t i);
/* Give the tenant one slab more. -EDQUOT: it or the pool has its largest number. */
int page_slab_add(struct tenant *tenant);

#endif /* TMESH_ALLOCATOR_INTERNAL_H */
