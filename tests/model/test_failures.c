// SPDX-License-Identifier: MIT
/*
 * Every system call and allocation of a thread fails once while it uses bundles, kept regions,
 * slots, pools of pages and their logs. An error reports it, nothing crashes, and no descriptor,
 * kept name, page or region stays.
 */
#include "failing.h"

#include <tmesh/model.h>
#include <tmesh/page_table.h>
#include <tmesh/pages.h>
#include <tmesh/slot.h>

#define STEP(call)                 \
	do {                       \
		int rc = call;     \
                                   \
		if (rc)            \
			return rc; \
	} while (0)

#define RW (TMESH_READ | TMESH_WRITE)

static const char name[] = "failures";

struct scene {
	struct tmesh_ctx *ctx, *client;
	struct tmesh_tensor *tensors[2], *taken;
	struct tmesh_bundle *bundle, *opened, *received, *kept;
	struct tmesh_kept_info *list;
	size_t listed;
	struct tmesh_slot *slot;
	struct tmesh_slot_reader *reader;
	struct tmesh_slot_value *value;
	struct tmesh_page_pool *pool;
	struct tmesh_pages *pages, *other;
	struct tmesh_seq *seqs[5];
	struct tmesh_page_copy *copy;
	int pair[2];
};

static int act_bundle(struct scene *s, struct tmesh_error *err)
{
	struct tmesh_bundle_entry entries[2] = {{.name = "a"}, {.name = "b"}};
	const int64_t shape[] = {10};
	char ref[4096];

	for (int i = 0; i < 2; i++) {
		STEP(tmesh_tensor_put(s->ctx, TMESH_UINT8, 1, shape, "0123456789", NULL,
				      &s->tensors[i], err));
		entries[i].tensor = s->tensors[i];
	}
	STEP(tmesh_bundle_create(s->ctx, entries, 2, NULL, &s->bundle, err));
	STEP(tmesh_bundle_ref_encode(s->bundle, TMESH_READ, ref, sizeof(ref), err));
	STEP(tmesh_bundle_open(s->client, ref, strlen(ref), TMESH_READ, &s->opened, err));
	STEP(tmesh_bundle_tensor(s->opened, 1, &s->taken, err));
	STEP(tmesh_bundle_send(s->bundle, s->pair[0], TMESH_READ, err));
	STEP(tmesh_bundle_recv(s->client, s->pair[1], &s->received, err));
	return 0;
}

static int act_keep(struct scene *s, struct tmesh_error *err)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .mode = 0600};

	STEP(tmesh_keep_bundle(s->ctx, name, s->bundle, &opts, err));
	STEP(tmesh_kept_list(s->client, &s->list, &s->listed, err));
	STEP(tmesh_kept_open_bundle(s->client, name, TMESH_KEPT_OWN, &s->kept, err));
	STEP(tmesh_kept_drop(s->ctx, name, err));
	return 0;
}

static int act_slot(struct scene *s, struct tmesh_error *err)
{
	char token[TMESH_TOKEN_SIZE];
	int fd;

	STEP(tmesh_slot_create(s->ctx, NULL, &s->slot, err));
	STEP(tmesh_slot_token(s->slot, token, err));
	STEP(tmesh_slot_open(s->client, token, &s->reader, err));
	fd = tmesh_slot_poll_fd(s->reader, err);
	if (fd < 0)
		return fd;
	STEP(tmesh_slot_publish(s->slot, s->bundle, NULL, err));
	STEP(tmesh_slot_read(s->reader, &s->value, err));
	tmesh_slot_value_ref(s->value);
	return 0;
}

static int act_pages(struct scene *s, struct tmesh_error *err)
{
	const struct tmesh_page_pool_opts opts = {
		.size = sizeof(opts), .page_bytes = 4096, .slab_pages = 16, .max_pages = 64};
	char token[TMESH_TOKEN_SIZE], log[TMESH_TOKEN_SIZE], ticket[TMESH_PAGES_TICKET_SIZE];
	uint64_t hashes[1][2];
	const int32_t words[16] = {1};
	const void *view;
	void *addr;

	STEP(tmesh_page_pool_create(s->ctx, &opts, &s->pool, err));
	STEP(tmesh_page_pool_tenant(s->pool, 0, token, err));
	STEP(tmesh_pages_open(s->client, token, &s->pages, err));
	STEP(tmesh_pages_open(s->client, token, &s->other, err));
	STEP(tmesh_pages_log(s->pages, 0, log, err));
	STEP(tmesh_page_copy_open(s->ctx, log, &s->copy, err));
	STEP(tmesh_seq_create(s->pages, &s->seqs[0], err));
	STEP(tmesh_seq_append(s->seqs[0], 40, err));
	STEP(tmesh_seq_view(s->seqs[0], 0, 100, &view, err));
	STEP(tmesh_seq_fork(s->seqs[0], &s->seqs[1], err));
	STEP(tmesh_seq_page(s->seqs[1], 0, 0, RW, &addr, err));
	memset(addr, 7, 4096);
	STEP(tmesh_seq_append(s->seqs[1], 1, err));
	tmesh_pages_hash(s->pages, NULL, words, 16, hashes[0]);
	STEP(tmesh_seq_cache(s->seqs[1], hashes, 1, err));
	STEP(tmesh_pages_find(s->other, hashes, 1, &s->seqs[2], err));
	STEP(tmesh_seq_share(s->seqs[1], ticket, err));
	STEP(tmesh_seq_open(s->other, ticket, &s->seqs[3], err));
	STEP(tmesh_pages_unshare(s->pages, ticket, err));
	STEP(tmesh_seq_truncate(s->seqs[0], 17, err));
	STEP(tmesh_page_copy_update(s->copy, err));
	STEP(tmesh_page_copy_resync(s->copy, err));
	return 0;
}

static int act(struct scene *s, struct tmesh_error *err)
{
	const struct tmesh_ctx_opts opts = {
		.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD, .timeout_ns = 60000000000};

	STEP(tmesh_ctx_open(&opts, &s->ctx, err));
	STEP(tmesh_ctx_open(&opts, &s->client, err));
	STEP(act_bundle(s, err));
	STEP(act_keep(s, err));
	STEP(act_slot(s, err));
	return act_pages(s, err);
}

/* Nothing fails here. */
static void clear(struct scene *s)
{
	/* Where dropping it failed, or its answer did. */
	if (s->client)
		tmesh_kept_drop(s->client, name, NULL);
	for (int i = 0; i < 5; i++)
		tmesh_seq_free(s->seqs[i]);
	tmesh_page_copy_close(s->copy);
	tmesh_pages_unref(s->other);
	tmesh_pages_unref(s->pages);
	tmesh_page_pool_unref(s->pool);
	tmesh_slot_value_unref(s->value);
	tmesh_slot_close(s->reader);
	tmesh_slot_unref(s->slot);
	free(s->list);
	tmesh_bundle_unref(s->kept);
	tmesh_bundle_unref(s->received);
	tmesh_bundle_unref(s->opened);
	tmesh_bundle_unref(s->bundle);
	tmesh_tensor_unref(s->taken);
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(s->tensors[i]);
	tmesh_ctx_unref(s->client);
	tmesh_ctx_unref(s->ctx);
	close(s->pair[0]);
	close(s->pair[1]);
}

static void prepare(struct scene *s)
{
	memset(s, 0, sizeof(*s));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s->pair), 0);
}

/* The host's thread closes its ends when it hears of it. */
static bool come_down(unsigned int fds)
{
	for (int i = 0; i < 60000 && unit_open_fds() != fds; i++)
		usleep(1000);
	return unit_open_fds() == fds;
}

UNIT(test_each_call_fails)
{
	static struct scene s;
	struct tmesh_error err = {0};
	unsigned int before, inherited;
	long survived = 0, n = 1;

	/* Descriptors that are opened once and for all are open afterwards. */
	prepare(&s);
	assert_int_equal(act(&s, &err), 0);
	clear(&s);
	inherited = fds_for_others();
	before = unit_open_fds_at_rest();
	for (;; n++) {
		int rc;

		prepare(&s);
		failing_begin(n);
		rc = act(&s, &err);
		failing_end(n, rc, &err);
		if (fds_for_others() != inherited)
			fail_msg("call %ld (%s): a descriptor is not closed on exec", n, failed);
		clear(&s);
		if (!come_down(before))
			fail_msg("call %ld (%s): %u descriptors, not %u", n, failed,
				 unit_open_fds(), before);
		if (!failed) {
			/* It was not over before for another reason. */
			if (rc)
				fail_msg("nothing failed, and yet: %d %s", rc, err.message);
			break;
		}
		survived += rc == 0;
	}
	assert_true(n > 100);
	print_message("%ld calls failed in turn, %ld of them had another way\n", n - 1, survived);
}

UNIT_MAIN("model_failures", NULL, NULL)
