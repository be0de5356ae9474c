/* SPDX-License-Identifier: MIT */
/* Pools of pages and parts in them, by libtmesh-model. Sequences are in sequence.c. */
#include "paging.h"

#include "common/shown.h"

OBJECT_KIND(pool_kind, tmesh_page_pool, "a pool of pages");
OBJECT_KIND(pages_kind, tmesh_pages, "a part in a pool");

/* page_pool_create(context, {page_bytes, page_tokens, slab_pages, max_pages, devices, heads})
 * -> {ok, pool} */
NIF(page_pool_create)
{
	struct tmesh_page_pool_opts opts = {.size = sizeof(opts)};
	const ERL_NIF_TERM *field;
	struct tmesh_page_pool *pool;
	struct context *context;
	struct tmesh_error err;
	ErlNifUInt64 bytes;
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
	if (tmesh_page_pool_create(context->ctx, &opts, &pool, &err))
		return make_error(env, &err);
	return make_ok_object(env, context, &pool_kind, pool);
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
	pool = get_object(env, argv[0], &pool_kind, NULL, &err);
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

	pool = get_object(env, argv[0], &pool_kind, NULL, &err);
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
	return close_object(env, argv[0], &pool_kind);
}

/* A part in a pool */

struct tmesh_pages *get_pages(ErlNifEnv *env, ERL_NIF_TERM term, struct context **context,
			      struct tmesh_error *err)
{
	return get_object(env, term, &pages_kind, context, err);
}

/* pages_open(context, token) -> {ok, pages} */
NIF(pages_open)
{
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_pages *pages;
	struct context *context;
	struct tmesh_error err;
	int rc;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[1], token, sizeof(token)))
		return make_refusal(env, -EPROTO, "not a tenant's token");
	if (!begin_opening(context, &err))
		return make_error(env, &err);
	rc = tmesh_pages_open(context->ctx, token, &pages, &err);
	end_opening(context);
	return rc ? make_error(env, &err) : make_ok_object(env, context, &pages_kind, pages);
}

/* pages_info(pages) -> {ok, #{page_bytes => _, ...}} */
NIF(pages_info)
{
	struct tmesh_pages_info info = {.size = sizeof(info)};
	struct tmesh_pages *pages;
	struct tmesh_error err;
	int rc;

	pages = get_pages(env, argv[0], NULL, &err);
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
	struct tmesh_error err;
	int rc;

	if (!enif_get_uint(env, argv[1], &head))
		return make_refusal(env, -EINVAL, "a head is a number of at least 0");
	pages = get_pages(env, argv[0], NULL, &err);
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
	struct tmesh_error err;
	ERL_NIF_TERM term;
	int32_t *aligned;

	if (!enif_inspect_binary(env, argv[1], &tokens) || tokens.size % sizeof(*aligned) ||
	    (!first && !enif_inspect_binary(env, argv[2], &before)) || before.size != HASH_BYTES)
		return make_refusal(env, -EINVAL, "tokens are int32, and a hash has %zu bytes",
				    HASH_BYTES);
	pages = get_pages(env, argv[0], NULL, &err);
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
	struct tmesh_error err;
	bool done;

	pages = get_pages(env, argv[0], NULL, &err);
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
	struct tmesh_error err;

	pages = get_pages(env, argv[0], NULL, &err);
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
	return close_object(env, argv[0], &pages_kind);
}
