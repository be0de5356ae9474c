// SPDX-License-Identifier: MIT
/*
 * A log of tables that a stranger has written to, anything anywhere. A script puts each byte of the
 * input into the memory of a good log, and records get new checksums, so that the log is read.
 * Following it always ends; what it gives is a table.
 */
#include <stdlib.h>

#include "pages/log.h"
#include "pages/pages_internal.h"

#include <tmesh/page_table.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tmesh_ctx *ctx;
static struct tmesh_page_pool *pool;
static struct tmesh_pages *pages;
static char token[TMESH_TOKEN_SIZE];
static struct log_head *head;
static uint8_t good[128 + 2 * 4096];

static void begin(void)
{
	const struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_seq *seq, *fork;
	char member[TMESH_TOKEN_SIZE];

	if (tmesh_ctx_open(&opts, &ctx, NULL) || tmesh_page_pool_create(ctx, NULL, &pool, NULL) ||
	    tmesh_page_pool_tenant(pool, 0, member, NULL) ||
	    tmesh_pages_open(ctx, member, &pages, NULL) || tmesh_seq_create(pages, &seq, NULL) ||
	    tmesh_seq_append(seq, 100, NULL) || tmesh_pages_log(pages, 4096, token, NULL) ||
	    tmesh_seq_fork(seq, &fork, NULL) || tmesh_seq_append(fork, 30, NULL))
		abort();
	tmesh_seq_free(seq);
	head = ((struct model_log *)pages->log)->head;
	memcpy(good, head, sizeof(good));
}

/* Whole records from @at on: their checksums become right. */
static void mend(uint32_t at)
{
	const uint64_t key[2] = {head->id[0], head->id[1]}, body[2] = {key[1], key[0]};

	while (at + sizeof(struct log_record) <= 4096) {
		struct log_record *record = (struct log_record *)(head->segments + at);

		if (record->bytes > LOG_PAYLOAD_MAX || at + log_record_size(record->bytes) > 4096)
			return;
		record->check[1] = tmesh_siphash(key, record, offsetof(struct log_record, check));
		record->check[0] =
			tmesh_siphash(body, record + 1, record->bytes) ^ record->check[1];
		at += (uint32_t)log_record_size(record->bytes);
	}
}

static void look(struct tmesh_page_copy *copy)
{
	for (size_t i = 0; i < tmesh_page_copy_count(copy); i++) {
		uint64_t id = tmesh_page_copy_id(copy, i), tokens;
		const int32_t *table;
		uint32_t blocks;

		if (i && id <= tmesh_page_copy_id(copy, i - 1))
			abort();
		table = tmesh_page_copy_table(copy, id, &blocks, &tokens);
		if (!table || blocks > TMESH_PAGES_MAX_SEQ)
			abort();
		for (uint32_t n = 0; n < blocks; n++)
			if (table[n] < 0 || (uint32_t)table[n] >= TMESH_PAGES_MAX)
				abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_page_copy *copy;

	if (!ctx)
		begin();
	memcpy(head, good, sizeof(good));
	if (tmesh_page_copy_open(ctx, token, &copy, NULL))
		abort();
	for (; size >= 4; data += 4, size -= 4) {
		uint32_t at = (uint32_t)(data[1] | data[2] << 8);

		switch (data[0] % 8) {
		case 0: /* anywhere, the head too */
			((uint8_t *)head)[at % sizeof(good)] = data[3];
			break;
		case 1:
			((uint8_t *)head)[at % 128] ^= (uint8_t)(1 << data[3] % 8);
			break;
		case 2:
			mend(0);
			break;
		case 3:
			head->tail = (uint64_t)(data[3] % 4) << 32 | (at % 4097 & ~7u);
			break;
		case 4:
			tmesh_page_copy_resync(copy, NULL);
			break;
		default: /* near the records, where it matters */
			head->segments[at % 512] = data[3];
		}
		if (data[0] & 0x80) {
			tmesh_page_copy_update(copy, NULL);
			look(copy);
		}
	}
	tmesh_page_copy_update(copy, NULL);
	look(copy);
	tmesh_page_copy_close(copy);
	/* A head that says something else is refused, or followed as what it says. */
	if (tmesh_page_copy_open(ctx, token, &copy, NULL) == 0) {
		tmesh_page_copy_update(copy, NULL);
		look(copy);
		tmesh_page_copy_close(copy);
	}
	return 0;
}
