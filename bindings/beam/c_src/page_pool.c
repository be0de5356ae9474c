/* SPDX-License-Identifier: MIT */
/* Pools of pages and parts in them, by libtmesh-model. Sequences are in sequence.c. */
#include "paging.h"

#include "common/shown.h"

struct page_pool {
	pthread_mutex_t lock;
	struct tmesh_page_pool *pool; /* NULL: closed; guarded by @lock */
	struct garbage *garbage;
};

struct pages {
	pthread_mutex_t lock;
	struct tmesh_pages *pages; /* NULL: closed; guarded by @lock */
	struct context *context;
	struct garbage *garbage;
};

/* The pool */

static void drop_pool(void *object)
{
	tmesh_page_pool_unref(object);
}

void page_pool_dtor(ErlNifEnv *env, void *object)
{
	struct page_pool *pool = object;

	if (pool->pool)
		garbage_put(env, pool->garbage, pool->pool);
	else
		garbage_free(pool->garbage);
	pthread_mutex_destroy(&pool->lock);
}

/* Return the caller's reference on the pool of a term, or NULL with @err filled. */
static struct tmesh_page_pool *get_pool(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_error *err)
{
	struct tmesh_page_pool *taken = NULL;
	struct page_pool *pool;

	if (enif_get_resource(env, term, page_pool_type, (void **)&pool)) {
		pthread_mutex_lock(&pool->lock);
		if (pool->pool)
			taken = tmesh_page_pool_ref(pool->pool);
		pthread_mutex_unlock(&pool->lock);
	}
	if (!taken)
		refuse(err, -EBADF, "no open pool of pages: it was closed, or is another VM's");
	return taken;
}

/* page_pool_create(context, {page_bytes, page_tokens, slab_pages, max_pages, devices, heads})
 * -> {ok, pool} */
NIF(page_pool_create)
{
	struct tmesh_page_pool_opts opts = {.size = sizeof(opts)};
	const ERL_NIF_TERM *field;
	struct context *context;
	struct page_pool *pool;
	struct tmesh_error err;
	ErlNifUInt64 bytes;
	ERL_NIF_TERM term;
	int arity;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!enif_get_tuple(env, argv[1], &arity, &field) || arity != 6 ||
	    !enif_get_uint64(env, field[0], &bytes) ||
	    !enif_get_uint(env, field[1], &opts.page_tokens) ||
	    !enif_get_uint(env, field[2], &opts.slab_pages) ||
	    !enif_get_uint(env, field[3], &opts.max_pages) ||
	    !enif_get_uint(env, field[4], &opts.devices) ||
	    !enif_get_uint(env, field[5], &opts.heads))
		return make_refusal(env, -EINVAL,
				    "a pool of pages has numbers of at least 0, below 2^32");
	opts.page_bytes = bytes;
	pool = enif_alloc_resource(page_pool_type, sizeof(*pool));
	*pool = (struct page_pool){.garbage = garbage_alloc(drop_pool)};
	pthread_mutex_init(&pool->lock, NULL);
	if (!pool->garbage)
		refuse(&err, -ENOMEM, "no memory for a pool of pages");
	if (pool->garbage && !tmesh_page_pool_create(context->ctx, &opts, &pool->pool, &err))
		term = make_ok(env, enif_make_resource(env, pool));
	else
		term = make_error(env, &err);
	enif_release_resource(pool);
	return term;
}

/* page_pool_tenant(pool, max_pages) -> {ok, token} */
NIF(page_pool_tenant)
{
	struct tmesh_page_pool *pool;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_error err;
	unsigned int most;
	int rc;

	if (!enif_get_uint(env, argv[1], &most))
		return make_refusal(env, -EINVAL,
				    "a tenant has a number of pages of at least 0, below 2^32");
	pool = get_pool(env, argv[0], &err);
	if (!pool)
		return make_error(env, &err);
	rc = tmesh_page_pool_tenant(pool, most, token, &err);
	tmesh_page_pool_unref(pool);
	return rc ? make_error(env, &err) : make_ok(env, make_string(env, token));
}

/* page_pool_info(pool) -> {ok, #{free => _, ...}} */
NIF(page_pool_info)
{
	struct tmesh_page_pool_info info = {.size = sizeof(info)};
	struct tmesh_page_pool *pool;
	struct tmesh_error err;
	int rc;

	pool = get_pool(env, argv[0], &err);
	if (!pool)
		return make_error(env, &err);
	rc = tmesh_page_pool_info(pool, &info, &err);
	tmesh_page_pool_unref(pool);
	if (rc)
		return make_error(env, &err);
	return make_ok(env, SHOW(env, enif_make_new_map(env), shown_page_pool_info, &info));
}

/* page_pool_close(pool) -> ok, also when repeated */
NIF(page_pool_close)
{
	struct tmesh_page_pool *taken;
	struct page_pool *pool;

	if (!enif_get_resource(env, argv[0], page_pool_type, (void **)&pool))
		return make_refusal(env, -EBADF, "not a pool of pages of this VM");
	pthread_mutex_lock(&pool->lock);
	taken = pool->pool;
	pool->pool = NULL;
	pthread_mutex_unlock(&pool->lock);
	tmesh_page_pool_unref(taken);
	return atoms.ok;
}

/* A part in a pool */

static void drop_pages(void *object)
{
	tmesh_pages_unref(object);
}

void pages_dtor(ErlNifEnv *env, void *object)
{
	struct pages *pages = object;

	if (pages->pages)
		garbage_put(env, pages->garbage, pages->pages);
	else
		garbage_free(pages->garbage);
	enif_release_resource(pages->context);
	pthread_mutex_destroy(&pages->lock);
}

struct tmesh_pages *get_pages(ErlNifEnv *env, ERL_NIF_TERM term, struct context **context,
			      struct tmesh_error *err)
{
	struct tmesh_pages *taken = NULL;
	struct pages *pages;

	if (enif_get_resource(env, term, pages_type, (void **)&pages)) {
		pthread_mutex_lock(&pages->lock);
		if (pages->pages)
			taken = tmesh_pages_ref(pages->pages);
		pthread_mutex_unlock(&pages->lock);
		*context = pages->context;
	}
	if (!taken)
		refuse(err, -EBADF, "no open part in a pool: it was closed, or is another VM's");
	return taken;
}

/* pages_open(context, token) -> {ok, pages} */
NIF(pages_open)
{
	char token[TMESH_TOKEN_SIZE];
	struct context *context;
	struct tmesh_error err;
	struct pages *pages;
	ERL_NIF_TERM term;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[1], token, sizeof(token)))
		return make_refusal(env, -EPROTO, "not a tenant's token");
	pages = enif_alloc_resource(pages_type, sizeof(*pages));
	*pages = (struct pages){.context = context, .garbage = garbage_alloc(drop_pages)};
	enif_keep_resource(context);
	pthread_mutex_init(&pages->lock, NULL);
	term = atoms.nil;
	if (!pages->garbage) {
		refuse(&err, -ENOMEM, "no memory for a part in a pool");
	} else if (begin_opening(context, &err)) {
		if (!tmesh_pages_open(context->ctx, token, &pages->pages, &err))
			term = make_ok(env, enif_make_resource(env, pages));
		end_opening(context);
	}
	enif_release_resource(pages);
	return enif_is_identical(term, atoms.nil) ? make_error(env, &err) : term;
}

/* pages_info(pages) -> {ok, #{page_bytes => _, ...}} */
NIF(pages_info)
{
	struct tmesh_pages_info info = {.size = sizeof(info)};
	struct tmesh_pages *pages;
	struct context *context;
	struct tmesh_error err;
	int rc;

	pages = get_pages(env, argv[0], &context, &err);
	if (!pages)
		return make_error(env, &err);
	rc = tmesh_pages_info(pages, &info, &err);
	tmesh_pages_unref(pages);
	if (rc)
		return make_error(env, &err);
	return make_ok(env, SHOW(env, enif_make_new_map(env), shown_pages_info, &info));
}

/* pages_head(pages, head) -> {ok, {device, place}} */
NIF(pages_head)
{
	unsigned int head, device, place;
	struct tmesh_pages *pages;
	struct context *context;
	struct tmesh_error err;
	int rc;

	if (!enif_get_uint(env, argv[1], &head))
		return make_refusal(env, -EINVAL, "a head is a number of at least 0");
	pages = get_pages(env, argv[0], &context, &err);
	if (!pages)
		return make_error(env, &err);
	rc = tmesh_pages_head(pages, head, &device, &place, &err);
	tmesh_pages_unref(pages);
	if (rc)
		return make_error(env, &err);
	return make_ok(env, enif_make_tuple2(env, enif_make_uint(env, device),
					     enif_make_uint(env, place)));
}

/* pages_hash(pages, int32 as a binary, nil | hash) -> {ok, 16 bytes} */
NIF(pages_hash)
{
	bool first = enif_is_identical(argv[2], atoms.nil);
	ErlNifBinary tokens, before = {.size = HASH_BYTES};
	uint64_t parent[2], hash[2];
	struct tmesh_pages *pages;
	struct context *context;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	int32_t *aligned;

	if (!enif_inspect_binary(env, argv[1], &tokens) || tokens.size % sizeof(*aligned) ||
	    (!first && !enif_inspect_binary(env, argv[2], &before)) || before.size != HASH_BYTES)
		return make_refusal(env, -EINVAL, "tokens are int32, and a hash has %zu bytes",
				    HASH_BYTES);
	pages = get_pages(env, argv[0], &context, &err);
	if (!pages)
		return make_error(env, &err);
	aligned = enif_alloc(tokens.size + 1);
	if (aligned) {
		memcpy(aligned, tokens.data, tokens.size);
		if (!first)
			memcpy(parent, before.data, sizeof(parent));
		tmesh_pages_hash(pages, first ? NULL : parent, aligned,
				 tokens.size / sizeof(*aligned), hash);
		enif_free(aligned);
		memcpy(enif_make_new_binary(env, HASH_BYTES, &term), hash, HASH_BYTES);
		term = make_ok(env, term);
	} else {
		refuse(&err, -ENOMEM, "no memory for %zu tokens", tokens.size / sizeof(*aligned));
		term = make_error(env, &err);
	}
	tmesh_pages_unref(pages);
	return term;
}

/* pages_sequence(pages) -> {ok, {sequence, id}} */
NIF(pages_sequence)
{
	struct tmesh_pages *pages;
	struct context *context;
	struct tmesh_error err;
	struct tmesh_seq *seq;
	ERL_NIF_TERM term;

	pages = get_pages(env, argv[0], &context, &err);
	if (!pages)
		return make_error(env, &err);
	if (tmesh_seq_create(pages, &seq, &err))
		term = make_error(env, &err);
	else
		term = make_sequence(env, context, pages, seq);
	tmesh_pages_unref(pages);
	return term;
}

/* pages_find(pages, consecutive hashes) -> {ok, {sequence, id}} */
NIF(pages_find)
{
	struct tmesh_pages *pages;
	struct context *context;
	uint64_t(*hashes)[2];
	struct tmesh_error err;
	struct tmesh_seq *seq;
	ERL_NIF_TERM term;
	uint32_t count;

	pages = get_pages(env, argv[0], &context, &err);
	if (!pages)
		return make_error(env, &err);
	hashes = get_hashes(env, argv[1], &count, &err);
	if (hashes && !tmesh_pages_find(pages, hashes, count, &seq, &err))
		term = make_sequence(env, context, pages, seq);
	else
		term = make_error(env, &err);
	if (hashes)
		enif_free(hashes);
	tmesh_pages_unref(pages);
	return term;
}

static bool get_ticket(ErlNifEnv *env, ERL_NIF_TERM term, char ticket[TMESH_PAGES_TICKET_SIZE],
		       struct tmesh_error *err)
{
	return get_text(env, term, ticket, TMESH_PAGES_TICKET_SIZE) ||
	       refuse(err, -EPROTO, "not a ticket") == 0;
}

/* pages_open_sequence(pages, ticket) -> {ok, {sequence, id}} */
NIF(pages_open_sequence)
{
	char ticket[TMESH_PAGES_TICKET_SIZE];
	struct tmesh_pages *pages;
	struct context *context;
	struct tmesh_error err;
	struct tmesh_seq *seq;
	ERL_NIF_TERM term;

	pages = get_pages(env, argv[0], &context, &err);
	if (!pages)
		return make_error(env, &err);
	if (get_ticket(env, argv[1], ticket, &err) && !tmesh_seq_open(pages, ticket, &seq, &err))
		term = make_sequence(env, context, pages, seq);
	else
		term = make_error(env, &err);
	tmesh_pages_unref(pages);
	return term;
}

/* pages_unshare(pages, ticket) -> ok */
NIF(pages_unshare)
{
	char ticket[TMESH_PAGES_TICKET_SIZE];
	struct tmesh_pages *pages;
	struct context *context;
	struct tmesh_error err;
	bool done;

	pages = get_pages(env, argv[0], &context, &err);
	if (!pages)
		return make_error(env, &err);
	done = get_ticket(env, argv[1], ticket, &err) && !tmesh_pages_unshare(pages, ticket, &err);
	tmesh_pages_unref(pages);
	return done ? atoms.ok : make_error(env, &err);
}

/* pages_trim(pages) -> ok */
NIF(pages_trim)
{
	struct tmesh_pages *pages;
	struct context *context;
	struct tmesh_error err;

	pages = get_pages(env, argv[0], &context, &err);
	if (!pages)
		return make_error(env, &err);
	tmesh_pages_trim(pages);
	tmesh_pages_unref(pages);
	return atoms.ok;
}

/* pages_slab(pages, slab, device, shape | nil, dtype) -> {ok, {handle, ref}} */
NIF(pages_slab)
{
	struct tmesh_region *region;
	struct tmesh_pages *pages;
	struct context *context;
	unsigned int slab, device;
	struct tmesh_error err;
	int rc;

	if (!enif_get_uint(env, argv[1], &slab) || !enif_get_uint(env, argv[2], &device))
		return make_refusal(env, -EINVAL, "slab and device are numbers of at least 0");
	pages = get_pages(env, argv[0], &context, &err);
	if (!pages)
		return make_error(env, &err);
	rc = tmesh_pages_slab(pages, slab, device, &region, &err);
	tmesh_pages_unref(pages);
	return rc ? make_error(env, &err)
		  : tensor_of_region(env, context, region, argv[3], argv[4], 0);
}

/* pages_close(pages) -> ok, also when repeated */
NIF(pages_close)
{
	struct tmesh_pages *taken;
	struct pages *pages;

	if (!enif_get_resource(env, argv[0], pages_type, (void **)&pages))
		return make_refusal(env, -EBADF, "not a part in a pool of this VM");
	pthread_mutex_lock(&pages->lock);
	taken = pages->pages;
	pages->pages = NULL;
	pthread_mutex_unlock(&pages->lock);
	tmesh_pages_unref(taken);
	return atoms.ok;
}
