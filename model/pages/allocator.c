// SPDX-License-Identifier: MIT
/*
 * The owner of a page pool records in private memory which handle holds which page. The host's lock
 * guards all of it. This file answers the handles' messages, and makes and ends pools and tenants.
 * allocator_pages.c has the pages and their slabs.
 *
 * tests/sim/sim_pages.py is the model of both files; its steps have the same names.
 */
#include "allocator_internal.h"

#include <stdlib.h>
#include <unistd.h>

#define HANDLES_MAX 1024
#define TICKETS_MAX 1024 /* of one handle */

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
			rc = page_slab_add(tenant);
			if (rc == -EDQUOT && owner_evict(tenant))
				rc = 0;
		}
		if (rc) {
			head->status = head->count || rc == -EAGAIN ? 0 : rc;
			break;
		}
		/* The page released last is the likeliest to be in a cache still. */
		page_take(pool, tenant->free.last);
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
		if (page_is_held_by(handle, in->pages[n]))
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

		if (!page_is_held_by(handle, one->page))
			tenant->pool->refused++;
		else if (!tenant->pool->pages[one->page].cached &&
			 page_cache_find(tenant, one->hash) == NONE)
			page_cache_add(tenant, one->hash, one->page);
	}
	answer(handle, PAGES_CACHED, 0);
	return reply(handle, 0);
}

static int owner_find(struct handle *handle, const struct pages_message *in)
{
	struct pages_head *head = answer(handle, PAGES_FOUND, 0);

	for (uint32_t n = 0; n < in->head.count; n++) {
		uint32_t i = page_cache_find(handle->tenant, in->hashes[n]);

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
		if (!page_is_held_by(handle, in->pages[n])) {
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
