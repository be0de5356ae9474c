// SPDX-License-Identifier: MIT
/* On failure, out-parameters of libtmesh-model keep their values, as tests/unit/test_outputs.c
 * shows for libtmesh. */
#include <tmesh/model.h>
#include <tmesh/page_table.h>
#include <tmesh/slot.h>

#include "outputs.h"
#include "pages_test.h"

#define HEADER "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"

static const char header[] = "\x36\0\0\0\0\0\0\0" HEADER;

UNIT(test_models)
{
	const size_t bytes = sizeof(header) - 1;
	struct tmesh_model *model = NULL;
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_model_parse(header, bytes, bytes + 4, &model, NULL, err));
	FAILS(tmesh_model_parse, -EPROTO, header, bytes, bytes + 5, OUT, NULL, err);
	FAILS(tmesh_model_describe, -ENOENT, "/nonexistent", NULL, OUT, err);
	FAILS(tmesh_model_load, -ENOENT, ctx, "/nonexistent", NULL, OUT, err);
	FAILS(tmesh_model_tensor, -EINVAL, model, 1, OUT, err);
	FAILS(tmesh_model_find, -ENOENT, model, "b", OUT, err);
	FAILS(tmesh_model_value, -EINVAL, model, 1, OUT, err);
	FAILS(tmesh_model_metadata_json, -EINVAL, NULL, 1, OUT, err);
	FAILS(tmesh_model_report, -EINVAL, model, OUT, err);
	FAILS(tmesh_model_tensor_open, -EINVAL, model, 0, OUT, err);
	FAILS(tmesh_model_bundle, -EINVAL, ctx, model, OUT, err);
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
}

/* How many bytes are missing is the one result of a failure: the caller reads them and asks again.
 */
UNIT(test_need)
{
	struct tmesh_model *model = (void *)1;
	uint64_t need = 0;

	assert_int_equal(tmesh_model_parse(header, 4, 100, &model, &need, NULL), -EAGAIN);
	assert_ptr_equal(model, (void *)1);
	assert_true(need > 4);
}

UNIT(test_slots)
{
	struct tmesh_slot_opts unnamed = {.size = sizeof(unnamed), .name = ""};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_slot_reader *reader;
	struct tmesh_slot *slot;
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_slot_create(ctx, NULL, &slot, err));
	assert_ok(tmesh_slot_token(slot, token, err));
	assert_ok(tmesh_slot_open(ctx, token, &reader, err));
	FAILS(tmesh_slot_create, -EINVAL, ctx, &unnamed, OUT, err);
	FAILS(tmesh_slot_token, -EINVAL, NULL, out.text, err);
	FAILS(tmesh_slot_publish, -EINVAL, NULL, NULL, OUT, err);
	FAILS(tmesh_slot_open, -EPROTO, ctx, "no token", OUT, err);
	FAILS(tmesh_slot_open_named, -ENOENT, ctx, "nobody", OUT, err);
	FAILS(tmesh_slot_read, -ENOENT, reader, OUT, err);
	tmesh_slot_unref(slot);
	FAILS(tmesh_slot_open, -ENOENT, ctx, token, OUT, err);
	tmesh_slot_close(reader);
	tmesh_ctx_unref(ctx);
}

UNIT(test_pages)
{
	struct tmesh_page_pool_opts wrong = small_pool;
	const uint64_t hashes[1][2] = {{1, 2}};
	struct scene s = scene_make(&small_pool);
	uint32_t pages[256];
	struct tmesh_seq *seq;
	char ticket[TMESH_PAGES_TICKET_SIZE];

	wrong.page_bytes = 1;
	assert_ok(tmesh_seq_create(s.pages, &seq, err));
	assert_ok(tmesh_seq_append(seq, 4, err));
	assert_ok(tmesh_seq_share(seq, ticket, err));
	assert_ok(tmesh_pages_unshare(s.pages, ticket, err));
	FAILS(tmesh_page_pool_create, -EINVAL, s.ctx, &wrong, OUT, err);
	FAILS(tmesh_page_pool_tenant, -EINVAL, s.pool, UINT32_MAX, out.text, err);
	FAILS(tmesh_page_pool_info, -EINVAL, s.pool, &(struct tmesh_page_pool_info){0}, err);
	FAILS(tmesh_pages_open, -EPROTO, s.ctx, "no token", OUT, err);
	FAILS(tmesh_pages_info, -EINVAL, s.pages, &(struct tmesh_pages_info){0}, err);
	FAILS(tmesh_pages_head, -EINVAL, s.pages, 99, OUT, OTHER, err);
	FAILS(tmesh_pages_slab, -EINVAL, s.pages, 99, 0, OUT, err);
	FAILS(tmesh_seq_page, -EINVAL, seq, 99, 0, RW, OUT, err);
	FAILS(tmesh_seq_tables, -EINVAL, &seq, 1, OUT, 0, OTHER, err);
	FAILS(tmesh_seq_slot_mapping, -EINVAL, seq, 4, 10, OUT, err);
	FAILS(tmesh_seq_view, -EINVAL, seq, 99, 16, OUT, err);
	FAILS(tmesh_seq_gather, -EINVAL, seq, 99, OUT, err);
	FAILS(tmesh_seq_open, -ENOENT, s.pages, ticket, OUT, err);
	FAILS(tmesh_seq_open, -EPROTO, s.pages, "no ticket", OUT, err);
	FAILS(tmesh_pages_log, -EINVAL, s.pages, 1, out.text, err);
	FAILS(tmesh_page_copy_open, -EPROTO, s.ctx, "no token", OUT, err);
	tmesh_seq_free(seq);
	for (int i = 0; i < 256; i++)
		assert_ok(tmesh_pages_alloc(s.pages, &pages[i], err));
	FAILS(tmesh_pages_alloc, -EDQUOT, s.pages, OUT, err);
	/* The owner ends. */
	tmesh_page_pool_unref(s.pool);
	FAILS(tmesh_pages_open, -ENOENT, s.ctx, s.token, OUT, err);
	FAILS(tmesh_pages_find, -EPIPE, s.pages, hashes, 1, OUT, err);
	FAILS(tmesh_pages_alloc, -EPIPE, s.pages, OUT, err);
	s.pool = NULL;
	scene_end(&s);
}

/* A forked child has no part in what its parent has open. */
UNIT(test_inherited)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq;
	int status;
	pid_t child;

	assert_ok(tmesh_seq_create(s.pages, &seq, err));
	child = fork();
	if (!child) {
		outputs_fill();
		CHECK(tmesh_pages_alloc(s.pages, OUT, NULL) == -EPERM);
		CHECK(tmesh_seq_create(s.pages, OUT, NULL) == -EPERM);
		CHECK(tmesh_seq_fork(seq, OUT, NULL) == -EPERM);
		CHECK(tmesh_pages_slab(s.pages, 0, 0, OUT, NULL) == -EPERM);
		CHECK(tmesh_pages_lifeline(s.pages, OUT, NULL) == -EPERM);
		CHECK(outputs_are_full(&out, sizeof(out)));
		unit_leave(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (status)
		fail_msg("the child ended with status %#x", (unsigned int)status);
	tmesh_seq_free(seq);
	scene_end(&s);
}

UNIT_MAIN("model outputs", NULL, NULL)
