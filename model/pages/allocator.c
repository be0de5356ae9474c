// SPDX-License-Identifier: MIT
/*
 * The owner of a page pool records in private memory which handle holds which page. The host's lock
 * guards all of it. A page is free, idle (cached and held by no handle) or busy. page_settle()
 * moves it to the right list whenever its holders or its pins change. Tickets and the cache pin a
 * page.
 *
 * tests/sim/sim_pages.py is the model of this file; its steps have the same names.
 */
#include "pages_internal.h"

#include <stdlib.h>
#include <unistd.h>

#define TENANTS_MAX 64
#define HANDLES_MAX 1024
#define TICKETS_MAX 1024 /* of one handle */
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
	bool taken; /* by take_page() */
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

static void page_settle(struct tmesh_page_pool *pool, uint32_t i)
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

static bool holds(const struct handle *handle, uint32_t i)
{
	return i < handle->tenant->pool->shape.max_pages && bit_get(handle->holds, i);
}

static void page_hold(struct handle *handle, uint32_t i)
{
	struct tmesh_page_pool *pool = handle->tenant->pool;

	if (bit_get(handle->holds, i))
		return;
	bit_set(handle->holds, i);
	handle->held++;
	pool->pages[i].holders++;
	page_settle(pool, i);
}

static void page_drop(struct handle *handle, uint32_t i)
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

static uint32_t cache_find(struct tenant *tenant, const uint64_t hash[2])
{
	const struct page *pages = tenant->pool->pages;
	uint32_t i = *bucket(tenant, hash);

	while (i != NONE && (pages[i].hash[0] != hash[0] || pages[i].hash[1] != hash[1]))
		i = pages[i].chain;
	return i;
}

static void cache_add(struct tenant *tenant, const uint64_t hash[2], uint32_t i)
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

static bool owner_evict(struct tenant *tenant)
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

static void take_page(struct tmesh_page_pool *pool, uint32_t i)
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

static int slab_add(struct tenant *tenant)
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

/* Messages */

static size_t bytes_of(const struct pages_head *head, size_t each)
{
	return sizeof(*head) + head->count * each;
}

static void handle_end(struct handle *handle);

/* Send the answer. The owner never waits: a handle that has no room for it is dropped. */
static int reply(struct handle *handle, size_t each)
{
	struct pages_message *out = &handle->tenant->pool->out;

	return model_socket_send(handle->source.own.fd, out, bytes_of(&out->head, each), -1);
}

static struct pages_head *answer(struct handle *handle, enum pages_op op, int status)
{
	struct pages_head *head = &handle->tenant->pool->out.head;

	*head = (struct pages_head){.op = op, .status = status};
	return head;
}

static void recall(struct handle *but)
{
	const struct pages_head head = {.op = PAGES_RECALL};

	for (struct handle *handle = but->tenant->handles; handle; handle = handle->next) {
		if (handle == but || handle->recalled)
			continue;
		handle->recalled = true;
		model_socket_send(handle->source.own.fd, &head, sizeof(head), -1);
	}
}

static int owner_want(struct handle *handle, const struct pages_message *in)
{
	struct tenant *tenant = handle->tenant;
	struct tmesh_page_pool *pool = tenant->pool;
	uint32_t wanted = in->head.count < PAGES_GRANT_MAX ? in->head.count : PAGES_GRANT_MAX;
	struct pages_head *head = answer(handle, PAGES_GRANT, 0);

	handle->recalled = false;
	while (head->count < wanted) {
		int rc = tenant->free.count ? 0 : -EAGAIN;

		/* Pages wanted only ahead of need justify neither a new slab nor an eviction. */
		if (rc && head->count < in->head.a) {
			rc = slab_add(tenant);
			if (rc == -EDQUOT && owner_evict(tenant))
				rc = 0;
		}
		if (rc) {
			head->status = head->count || rc == -EAGAIN ? 0 : rc;
			break;
		}
		/* The page released last is the likeliest to be in a cache still. */
		take_page(pool, tenant->free.last);
		pool->out.pages[head->count++] = tenant->free.last;
		page_hold(handle, tenant->free.last);
	}
	if (head->status == -EDQUOT)
		recall(handle);
	return reply(handle, sizeof(uint32_t));
}

static int owner_return(struct handle *handle, const struct pages_message *in)
{
	handle->recalled = false;
	for (uint32_t n = 0; n < in->head.count; n++) {
		if (holds(handle, in->pages[n]))
			page_drop(handle, in->pages[n]);
		else
			handle->tenant->pool->refused++;
	}
	return 0;
}

static int owner_slab(struct handle *handle, const struct pages_message *in)
{
	struct tmesh_page_pool *pool = handle->tenant->pool;
	struct pages_head *head = answer(handle, PAGES_SLAB_IS, 0);
	uint64_t number = in->head.a;

	if (number >= pool->slab_count || pool->slabs[number].tenant != handle->tenant)
		head->status = -EACCES;
	for (uint32_t d = 0; !head->status && d < pool->shape.devices; d++)
		head->status =
			tmesh_region_token(pool->slabs[number].regions[d], TMESH_READ | TMESH_WRITE,
					   pool->out.tokens[d], NULL);
	head->count = head->status ? 0 : pool->shape.devices;
	return reply(handle, TMESH_TOKEN_SIZE);
}

static int owner_cache(struct handle *handle, const struct pages_message *in)
{
	struct tenant *tenant = handle->tenant;

	for (uint32_t n = 0; n < in->head.count; n++) {
		const struct pages_hashed *one = &in->hashed[n];

		if (!holds(handle, one->page))
			tenant->pool->refused++;
		else if (!tenant->pool->pages[one->page].cached &&
			 cache_find(tenant, one->hash) == NONE)
			cache_add(tenant, one->hash, one->page);
	}
	answer(handle, PAGES_CACHED, 0);
	return reply(handle, 0);
}

static int owner_find(struct handle *handle, const struct pages_message *in)
{
	struct pages_head *head = answer(handle, PAGES_FOUND, 0);

	for (uint32_t n = 0; n < in->head.count; n++) {
		uint32_t i = cache_find(handle->tenant, in->hashes[n]);

		if (i == NONE)
			break;
		page_hold(handle, i);
		handle->tenant->pool->out.pages[head->count++] = i;
	}
	return reply(handle, sizeof(uint32_t));
}

static void ticket_end(struct tenant *tenant, struct ticket **at)
{
	struct ticket *ticket = *at;

	*at = ticket->next;
	for (uint32_t n = 0; n < ticket->count; n++) {
		tenant->pool->pages[ticket->pages[n]].pins--;
		page_settle(tenant->pool, ticket->pages[n]);
	}
	ticket->maker->tickets--;
	tenant->pool->ticket_count--;
	free(ticket);
}

static struct ticket **ticket_find(struct tenant *tenant, const struct pages_head *head)
{
	struct ticket **at = &tenant->tickets;

	while (*at && ((*at)->name[0] != head->a || (*at)->name[1] != head->b))
		at = &(*at)->next;
	return at;
}

static int ticket_new(struct handle *handle, const struct pages_message *in, struct ticket **out)
{
	struct tenant *tenant = handle->tenant;
	uint32_t count = in->head.count;
	struct ticket *ticket;

	if (handle->tickets == TICKETS_MAX)
		return -EDQUOT;
	for (uint32_t n = 0; n < count; n++) {
		if (!holds(handle, in->pages[n])) {
			tenant->pool->refused++;
			return -EACCES;
		}
	}
	ticket = malloc(sizeof(*ticket) + count * sizeof(ticket->pages[0]));
	if (!ticket)
		return -ENOMEM;
	if (tmesh_random(ticket->name, sizeof(ticket->name), NULL)) {
		free(ticket);
		return -EIO;
	}
	ticket->maker = handle;
	ticket->tokens = in->head.a;
	ticket->count = count;
	for (uint32_t n = 0; n < count; n++) {
		ticket->pages[n] = in->pages[n];
		tenant->pool->pages[in->pages[n]].pins++;
		page_settle(tenant->pool, in->pages[n]);
	}
	ticket->next = tenant->tickets;
	tenant->tickets = ticket;
	handle->tickets++;
	tenant->pool->ticket_count++;
	*out = ticket;
	return 0;
}

static int owner_share(struct handle *handle, const struct pages_message *in)
{
	struct ticket *ticket = NULL;
	int rc = ticket_new(handle, in, &ticket);
	struct pages_head *head = answer(handle, PAGES_TICKET, rc);

	if (ticket) {
		head->a = ticket->name[0];
		head->b = ticket->name[1];
	}
	return reply(handle, 0);
}

static int owner_open_ticket(struct handle *handle, const struct pages_message *in)
{
	const struct ticket *ticket = *ticket_find(handle->tenant, &in->head);
	struct pages_head *head = answer(handle, PAGES_TABLE, ticket ? 0 : -ENOENT);

	for (uint32_t n = 0; ticket && n < ticket->count; n++) {
		page_hold(handle, ticket->pages[n]);
		handle->tenant->pool->out.pages[n] = ticket->pages[n];
	}
	if (ticket) {
		head->count = ticket->count;
		head->a = ticket->tokens;
	}
	return reply(handle, sizeof(uint32_t));
}

static int owner_unshare(struct handle *handle, const struct pages_message *in)
{
	struct ticket **at = ticket_find(handle->tenant, &in->head);
	bool good = *at && (*at)->maker == handle;

	if (good)
		ticket_end(handle->tenant, at);
	answer(handle, PAGES_UNSHARED, good ? 0 : -ENOENT);
	return reply(handle, 0);
}

static const struct {
	int (*act)(struct handle *handle, const struct pages_message *in);
	size_t each;
	uint32_t most;
} ops[] = {
	[PAGES_WANT] = {owner_want, 0, UINT32_MAX},
	[PAGES_RETURN] = {owner_return, sizeof(uint32_t), TMESH_PAGES_MAX_SEQ},
	[PAGES_SLAB] = {owner_slab, 0, 0},
	[PAGES_CACHE] = {owner_cache, sizeof(struct pages_hashed), PAGES_CACHE_MAX},
	[PAGES_FIND] = {owner_find, 2 * sizeof(uint64_t), PAGES_FIND_MAX},
	[PAGES_SHARE] = {owner_share, sizeof(uint32_t), TMESH_PAGES_MAX_SEQ},
	[PAGES_OPEN_TICKET] = {owner_open_ticket, 0, 0},
	[PAGES_UNSHARE] = {owner_unshare, 0, 0},
};

/* Receive a message. Anything that is no valid message ends the handle. */
static void said(struct model_source *source)
{
	struct handle *handle = (struct handle *)source;
	struct pages_message *in = &handle->tenant->pool->in;
	ssize_t got = model_socket_recv(source->own.fd, in, sizeof(*in), NULL);
	uint32_t op = in->head.op;

	if (got == -EAGAIN)
		return;
	if (got < (ssize_t)sizeof(in->head) || op >= sizeof(ops) / sizeof(ops[0]) || !ops[op].act ||
	    in->head.pad || in->head.status || in->head.count > ops[op].most ||
	    (size_t)got != bytes_of(&in->head, ops[op].each) || ops[op].act(handle, in))
		handle_end(handle);
}

/* Free a handle's pages, or give them to others (owner_gone). */
static void handle_end(struct handle *handle)
{
	struct tenant *tenant = handle->tenant;
	struct tmesh_page_pool *pool = tenant->pool;
	struct ticket **at = &tenant->tickets;

	model_source_remove(&handle->source);
	while (*at) {
		if ((*at)->maker == handle)
			ticket_end(tenant, at);
		else
			at = &(*at)->next;
	}
	pool->died += handle->held != 0;
	pool->reclaimed += handle->held;
	for (uint32_t word = 0; handle->held && word < (pool->shape.max_pages + 63) / 64; word++)
		while (handle->holds[word])
			page_drop(handle,
				  word * 64 + (uint32_t)__builtin_ctzll(handle->holds[word]));
	*handle->at = handle->next;
	if (handle->next)
		handle->next->at = handle->at;
	pool->handle_count--;
	free(handle);
}

static void accepted(struct model_listener *listener, int socket)
{
	struct tenant *tenant = (struct tenant *)listener;
	struct tmesh_page_pool *pool = tenant->pool;
	size_t words = (pool->shape.max_pages + 63) / 64;
	struct handle *handle = NULL;
	struct pages_message *out = &pool->out;

	if (pool->handle_count < HANDLES_MAX)
		handle = calloc(1, sizeof(*handle) + words * sizeof(uint64_t));
	if (!handle) {
		close(socket);
		return;
	}
	handle->tenant = tenant;
	handle->source.ready = said;
	out->head = (struct pages_head){.op = PAGES_WELCOME, .count = 1};
	out->shape = pool->shape;
	memcpy(out->shape.key, tenant->key, sizeof(out->shape.key));
	if (model_socket_send(socket, out, bytes_of(&out->head, sizeof(out->shape)), -1)) {
		close(socket);
		free(handle);
		return;
	}
	if (model_source_add(&handle->source, socket, NULL)) {
		free(handle);
		return;
	}
	handle->next = tenant->handles;
	handle->at = &tenant->handles;
	if (handle->next)
		handle->next->at = &handle->next;
	tenant->handles = handle;
	pool->handle_count++;
}

/* Making and ending */

static uint32_t whole_slabs(const struct pages_shape *shape, uint32_t pages)
{
	return pages / shape->slab_pages + (pages % shape->slab_pages != 0);
}

static int read_opts(const struct tmesh_page_pool_opts *opts, struct tmesh_page_pool_opts *out,
		     struct pages_shape *shape, struct tmesh_error *err)
{
	int rc = tmesh_read_sized(out, sizeof(*out), opts, err);

	if (rc)
		return rc;
	if (out->reserved)
		return tmesh_fail(err, -EINVAL, "reserved is %u; set it to 0", out->reserved);
	*shape = (struct pages_shape){
		.magic = PAGES_MAGIC,
		.version = PAGES_VERSION,
		.page_bytes = out->page_bytes ? out->page_bytes : 65536,
		.page_tokens = out->page_tokens ? out->page_tokens : 16,
		.slab_pages = out->slab_pages ? out->slab_pages : 256,
		.max_pages = out->max_pages ? out->max_pages : 4096,
		.devices = out->devices ? out->devices : 1,
	};
	shape->heads = out->heads ? out->heads : shape->devices;
	rc = pages_check_shape(shape, err);
	if (!rc)
		shape->max_pages = whole_slabs(shape, shape->max_pages) * shape->slab_pages;
	return rc ? rc : pages_check_shape(shape, err);
}

static void tenant_free(struct tenant *tenant, bool here)
{
	if (here) {
		model_host_lock();
		model_listener_shut(&tenant->listener);
		while (tenant->handles)
			handle_end(tenant->handles);
		model_host_unlock();
		model_listener_close(&tenant->listener);
	} else {
		tmesh_region_unref(tenant->listener.region);
		tmesh_ctx_unref(tenant->listener.memfd_ctx);
	}
	while (!here && tenant->handles) {
		struct handle *handle = tenant->handles;

		tenant->handles = handle->next;
		free(handle);
	}
	while (tenant->tickets) {
		struct ticket *ticket = tenant->tickets;

		tenant->tickets = ticket->next;
		free(ticket);
	}
	free(tenant->buckets);
	free(tenant);
}

static void pool_free(struct tmesh_page_pool *pool)
{
	for (uint32_t i = 0; i < pool->tenant_count; i++)
		tenant_free(pool->tenants[i], pool->life == model_life());
	for (uint32_t i = 0; i < pool->slab_count; i++)
		for (uint32_t d = 0; d < pool->shape.devices; d++)
			tmesh_region_unref(pool->slabs[i].regions[d]);
	tmesh_ctx_unref(pool->ctx);
	free(pool->pages);
	free(pool->slabs);
	free(pool);
}

int tmesh_page_pool_create(struct tmesh_ctx *ctx, const struct tmesh_page_pool_opts *opts,
			   struct tmesh_page_pool **out, struct tmesh_error *err)
{
	struct tmesh_page_pool_opts o;
	struct pages_shape shape;
	struct tmesh_page_pool *pool;
	int rc = read_opts(opts, &o, &shape, err);

	if (rc)
		return rc;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return tmesh_fail(err, -ENOMEM, "no memory for a pool of pages");
	atomic_init(&pool->refs, 1);
	pool->life = model_life();
	pool->ctx = tmesh_ctx_ref(ctx);
	pool->opts = o;
	pool->shape = shape;
	pool->max_slabs = shape.max_pages / shape.slab_pages;
	pool->slabs = calloc(pool->max_slabs, sizeof(*pool->slabs));
	pool->pages = calloc(shape.max_pages, sizeof(*pool->pages));
	if (!pool->slabs || !pool->pages) {
		pool_free(pool);
		return tmesh_fail(err, -ENOMEM, "no memory for a pool of pages");
	}
	*out = pool;
	return 0;
}

struct tmesh_page_pool *tmesh_page_pool_ref(struct tmesh_page_pool *pool)
{
	atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
	return pool;
}

void tmesh_page_pool_unref(struct tmesh_page_pool *pool)
{
	if (pool && atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) == 1)
		pool_free(pool);
}

static int tenant_new(struct tmesh_page_pool *pool, uint32_t max_pages, struct tenant **out,
		      struct tmesh_error *err)
{
	const struct list empty = {.first = NONE, .last = NONE};
	struct tenant *tenant = calloc(1, sizeof(*tenant));
	uint32_t buckets = 64;
	int rc;

	if (!tenant)
		return tmesh_fail(err, -ENOMEM, "no memory for a tenant");
	while (buckets < max_pages)
		buckets *= 2;
	tenant->pool = pool;
	tenant->max_slabs = whole_slabs(&pool->shape, max_pages);
	tenant->free = tenant->idle = empty;
	tenant->mask = buckets - 1;
	tenant->buckets = malloc(buckets * sizeof(*tenant->buckets));
	rc = tenant->buckets ? tmesh_random(tenant->key, sizeof(tenant->key), err)
			     : tmesh_fail(err, -ENOMEM, "no memory for a tenant");
	if (!rc) {
		memset(tenant->buckets, 0xff, buckets * sizeof(*tenant->buckets));
		tenant->listener.accepted = accepted;
		rc = model_listener_open(&tenant->listener, pool->ctx, "pages", err);
	}
	if (rc) {
		free(tenant->buckets);
		free(tenant);
		return rc;
	}
	*out = tenant;
	return 0;
}

int tmesh_page_pool_tenant(struct tmesh_page_pool *pool, uint32_t max_pages, char *token,
			   struct tmesh_error *err)
{
	struct tenant *tenant = NULL;
	int rc = model_check_life(pool->life, err);

	if (!rc && max_pages > pool->shape.max_pages)
		rc = tmesh_fail(err, -EINVAL, "max_pages is %u; the pool has %u", max_pages,
				pool->shape.max_pages);
	if (!rc)
		rc = tenant_new(pool, max_pages ? max_pages : pool->shape.max_pages, &tenant, err);
	if (rc)
		return rc;
	rc = model_listener_token(&tenant->listener, token, err);
	model_host_lock();
	if (!rc && pool->tenant_count == TENANTS_MAX)
		rc = tmesh_fail(err, -EDQUOT, "the pool has %d tenants already", TENANTS_MAX);
	if (!rc) {
		tenant->number = pool->tenant_count;
		pool->tenants[pool->tenant_count++] = tenant;
	}
	model_host_unlock();
	if (rc)
		tenant_free(tenant, true);
	return rc;
}

int tmesh_page_pool_info(struct tmesh_page_pool *pool, struct tmesh_page_pool_info *info,
			 struct tmesh_error *err)
{
	struct tmesh_page_pool_info i;
	int rc = model_check_life(pool->life, err);

	if (rc)
		return rc;
	model_host_lock();
	i = (struct tmesh_page_pool_info){
		.slabs = pool->slab_count,
		.pages = (uint64_t)pool->slab_count * pool->shape.slab_pages,
		.cached = pool->cached,
		.handles = pool->handle_count,
		.tickets = pool->ticket_count,
		.evicted = pool->evicted,
		.refused = pool->refused,
		.died = pool->died,
		.reclaimed = pool->reclaimed,
	};
	for (uint32_t n = 0; n < i.pages; n++) {
		i.free += pool->pages[n].place == PAGE_FREE;
		i.held += pool->pages[n].place == PAGE_BUSY;
	}
	model_host_unlock();
	return tmesh_write_sized(info, &i, sizeof(i), err);
}
