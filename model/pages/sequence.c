// SPDX-License-Identifier: MIT
/* Sequences: tables of pages, their forks, prefixes and tickets. */
#include "pages_internal.h"

#include <stdio.h>
#include <stdlib.h>

#define TICKET_PREFIX "tmseq-"

static uint32_t blocks_of(const struct tmesh_pages *pages, uint64_t tokens)
{
	return (uint32_t)((tokens + pages->shape.page_tokens - 1) / pages->shape.page_tokens);
}

static int reserve(struct tmesh_seq *seq, uint32_t count, struct tmesh_error *err)
{
	uint32_t room = seq->room ? seq->room : 16;
	uint32_t *table;

	if (count <= seq->room)
		return 0;
	while (room < count)
		room *= 2;
	table = realloc(seq->table, room * sizeof(*table));
	if (!table)
		return tmesh_fail(err, -ENOMEM, "no memory for a table of %u blocks", count);
	seq->table = table;
	seq->room = room;
	return 0;
}

static int seq_new(struct tmesh_pages *pages, uint32_t room, struct tmesh_seq **out,
		   struct tmesh_error *err)
{
	struct tmesh_seq *seq = calloc(1, sizeof(*seq));

	if (!seq || reserve(seq, room, NULL)) {
		free(seq);
		return tmesh_fail(err, -ENOMEM, "no memory for a sequence");
	}
	seq->pages = tmesh_pages_ref(pages);
	seq->id = ++pages->last_id;
	seq->at = pages->seqs_end;
	*seq->at = seq;
	pages->seqs_end = &seq->next;
	*out = seq;
	return 0;
}

/* Unlink a sequence whose pages have been released. The lock is held, except in a forked child. */
static void seq_unlink(struct tmesh_seq *seq)
{
	*seq->at = seq->next;
	if (seq->next)
		seq->next->at = seq->at;
	else
		seq->pages->seqs_end = seq->at;
	view_free(seq);
	free(seq->table);
	free(seq);
}

/* Cut the table. Pages that a view still shows are not released: another sequence would get them.
 */
static int seq_cut(struct tmesh_seq *seq, uint32_t count)
{
	int rc = view_cut(seq, count);

	while (!rc && seq->count > count)
		pages_unref(seq->pages, seq->table[--seq->count]);
	return rc;
}

int tmesh_seq_create(struct tmesh_pages *pages, struct tmesh_seq **out, struct tmesh_error *err)
{
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	rc = seq_new(pages, 0, out, err);
	if (!rc)
		table_changed(*out, 0);
	pages_leave(pages);
	return rc;
}

void tmesh_seq_free(struct tmesh_seq *seq)
{
	struct tmesh_pages *pages;
	uint64_t id;

	if (!seq)
		return;
	pages = seq->pages;
	if (pages_enter(pages, NULL)) {
		seq_unlink(seq);
	} else {
		seq_cut(seq, 0);
		if (pages->backs)
			pages_flush(pages);
		id = seq->id;
		seq_unlink(seq);
		table_freed(pages, id);
		pages_leave(pages);
	}
	tmesh_pages_unref(pages);
}

uint64_t tmesh_seq_id(const struct tmesh_seq *seq)
{
	return seq->id;
}

uint64_t tmesh_seq_tokens(const struct tmesh_seq *seq)
{
	return seq->tokens;
}

const int32_t *tmesh_seq_table(const struct tmesh_seq *seq, uint32_t *count)
{
	if (count)
		*count = seq->count;
	return (const int32_t *)seq->table;
}

/* Make block @index this sequence's alone. */
static int seq_own(struct tmesh_seq *seq, uint32_t index, struct tmesh_error *err)
{
	struct tmesh_pages *pages = seq->pages;
	uint32_t old = seq->table[index], page;
	int rc;

	if (pages_alone(pages, old))
		return 0;
	rc = pages_alloc(pages, &page, 1, err);
	if (rc)
		return rc;
	pages_copy(pages, page, old);
	seq->table[index] = page;
	rc = view_update(seq, index, index + 1, err);
	if (rc) {
		seq->table[index] = old;
		/* A view that can show neither ends before the block. */
		if (view_update(seq, index, index + 1, NULL) == 0 || view_cut(seq, index) == 0)
			pages_unref(pages, page);
		return rc;
	}
	pages_unref(pages, old);
	return 0;
}

static int seq_append(struct tmesh_seq *seq, uint64_t tokens, struct tmesh_error *err)
{
	struct tmesh_pages *pages = seq->pages;
	uint32_t before = seq->count, count;
	uint64_t sum;
	int rc = 0;

	if (__builtin_add_overflow(seq->tokens, tokens, &sum) ||
	    sum > (uint64_t)TMESH_PAGES_MAX_SEQ * pages->shape.page_tokens)
		return tmesh_fail(err, -EINVAL, "a sequence has at most %u pages of %u tokens",
				  TMESH_PAGES_MAX_SEQ, pages->shape.page_tokens);
	count = blocks_of(pages, sum);
	rc = view_has_room(seq, count, err);
	if (!rc)
		rc = reserve(seq, count, err);
	if (!rc && count > before)
		rc = pages_alloc(pages, seq->table + before, count - before, err);
	if (rc)
		return rc;
	seq->count = count;
	rc = view_update(seq, before, count, err);
	/* Tokens go into a last page that is not full. */
	if (!rc && tokens && seq->tokens % pages->shape.page_tokens)
		rc = seq_own(seq, before - 1, err);
	if (!rc)
		seq->tokens = sum;
	else if (seq_cut(seq, before))
		seq->count = before;
	return rc;
}

int tmesh_seq_append(struct tmesh_seq *seq, uint64_t tokens, struct tmesh_error *err)
{
	int rc = pages_enter(seq->pages, err);
	uint32_t first;

	if (rc)
		return rc;
	first = seq->tokens % seq->pages->shape.page_tokens ? seq->count - 1 : seq->count;
	rc = seq_append(seq, tokens, err);
	if (!rc)
		table_changed(seq, first);
	pages_leave(seq->pages);
	return rc;
}

int tmesh_seq_truncate(struct tmesh_seq *seq, uint64_t tokens, struct tmesh_error *err)
{
	int rc = pages_enter(seq->pages, err);

	if (rc)
		return rc;
	if (tokens > seq->tokens) {
		rc = tmesh_fail(err, -EINVAL, "the sequence has %llu tokens, fewer than %llu",
				(unsigned long long)seq->tokens, (unsigned long long)tokens);
	} else if ((rc = seq_cut(seq, blocks_of(seq->pages, tokens))) != 0) {
		rc = tmesh_fail(err, rc, "the kernel unmaps no block of the sequence's view");
	} else {
		seq->tokens = tokens;
		table_changed(seq, seq->count);
	}
	pages_leave(seq->pages);
	return rc;
}

int tmesh_seq_fork(struct tmesh_seq *seq, struct tmesh_seq **out, struct tmesh_error *err)
{
	struct tmesh_pages *pages = seq->pages;
	struct tmesh_seq *made;
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	rc = seq_new(pages, seq->count, &made, err);
	if (!rc) {
		for (uint32_t i = 0; i < seq->count; i++)
			pages->refs_of[seq->table[i]]++;
		if (seq->count)
			memcpy(made->table, seq->table, seq->count * sizeof(*made->table));
		made->count = seq->count;
		made->tokens = seq->tokens;
		table_forked(made, seq);
		*out = made;
	}
	pages_leave(pages);
	return rc;
}

int tmesh_seq_page(struct tmesh_seq *seq, uint32_t index, uint32_t device, uint32_t rights,
		   void **addr, struct tmesh_error *err)
{
	struct tmesh_pages *pages = seq->pages;
	int rc = pages_enter(pages, err);
	uint32_t before;

	if (rc)
		return rc;
	before = index < seq->count ? seq->table[index] : 0;
	if (index >= seq->count || device >= pages->shape.devices)
		rc = tmesh_fail(err, -EINVAL, "there is no block %u on device %u", index, device);
	else if (rights != TMESH_READ && rights != (TMESH_READ | TMESH_WRITE))
		rc = tmesh_fail(err, -EINVAL,
				"rights 0x%x are neither TMESH_READ nor TMESH_READ | TMESH_WRITE",
				rights);
	else if (rights & TMESH_WRITE)
		rc = seq_own(seq, index, err);
	if (!rc && seq->table[index] != before)
		table_changed(seq, index);
	if (!rc)
		*addr = pages->base[device] + seq->table[index] * pages->shape.page_bytes;
	pages_leave(pages);
	return rc;
}

int tmesh_seq_alone(struct tmesh_seq *seq, uint32_t index, struct tmesh_error *err)
{
	int rc = pages_enter(seq->pages, err);

	if (rc)
		return rc;
	rc = index < seq->count ? pages_alone(seq->pages, seq->table[index])
				: tmesh_fail(err, -EINVAL, "there is no block %u", index);
	pages_leave(seq->pages);
	return rc;
}

int tmesh_seq_tables(struct tmesh_seq *const *seqs, uint32_t count, int32_t *tables, uint32_t width,
		     int32_t *lens, struct tmesh_error *err)
{
	for (uint32_t i = 0; i < count; i++)
		if (seqs[i]->count > width)
			return tmesh_fail(err, -EINVAL,
					  "sequence %u has %u blocks, more than the width %u", i,
					  seqs[i]->count, width);
		else if (seqs[i]->tokens > INT32_MAX)
			return tmesh_fail(err, -EINVAL,
					  "sequence %u has %llu tokens, which are no int32", i,
					  (unsigned long long)seqs[i]->tokens);
	for (uint32_t i = 0; i < count; i++) {
		int32_t *row = tables + (size_t)i * width;

		if (seqs[i]->count)
			memcpy(row, seqs[i]->table, seqs[i]->count * sizeof(*row));
		memset(row + seqs[i]->count, 0, (width - seqs[i]->count) * sizeof(*row));
		lens[i] = (int32_t)seqs[i]->tokens;
	}
	return 0;
}

int tmesh_seq_slot_mapping(const struct tmesh_seq *seq, uint64_t first, uint64_t count,
			   int64_t *slots, struct tmesh_error *err)
{
	uint32_t size = seq->pages->shape.page_tokens;

	if (first > seq->tokens || count > seq->tokens - first)
		return tmesh_fail(err, -EINVAL, "the sequence has %llu tokens",
				  (unsigned long long)seq->tokens);
	for (uint64_t i = 0; i < count; i++)
		slots[i] = (int64_t)seq->table[(first + i) / size] * size +
			   (int64_t)((first + i) % size);
	return 0;
}

/* Prefixes and tickets */

int tmesh_seq_cache(struct tmesh_seq *seq, const uint64_t (*hashes)[2], uint32_t count,
		    struct tmesh_error *err)
{
	struct tmesh_pages *pages = seq->pages;
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	if (count > seq->tokens / pages->shape.page_tokens)
		rc = tmesh_fail(err, -EINVAL,
				"only whole blocks can be cached: the sequence has %llu",
				(unsigned long long)(seq->tokens / pages->shape.page_tokens));
	for (uint32_t done = 0; done < count && !rc;) {
		struct pages_message *out = &pages->message;
		uint32_t n = count - done < PAGES_CACHE_MAX ? count - done : PAGES_CACHE_MAX;

		out->head = (struct pages_head){.op = PAGES_CACHE, .count = n};
		for (uint32_t i = 0; i < n; i++) {
			out->hashed[i] = (struct pages_hashed){.page = seq->table[done + i]};
			memcpy(out->hashed[i].hash, hashes[done + i], sizeof(out->hashed[i].hash));
			/* The page is shared even if the owner does not get the message. */
			bit_set(pages->shared, seq->table[done + i]);
		}
		rc = pages_ask(pages, sizeof(out->head) + n * sizeof(out->hashed[0]), PAGES_CACHED,
			       err);
		done += n;
	}
	pages_leave(pages);
	return rc;
}

/* Make a sequence of the pages in pages->message, which are this handle's in any case. */
static int seq_of_answer(struct tmesh_pages *pages, uint64_t tokens, struct tmesh_seq **out,
			 struct tmesh_error *err)
{
	uint32_t count = pages->message.head.count;
	struct tmesh_seq *seq = NULL;
	int rc;

	/* Mapping a slab is another question. */
	memcpy(pages->found, pages->message.pages, count * sizeof(pages->found[0]));
	rc = seq_new(pages, count, &seq, err);
	for (uint32_t i = 0; i < count; i++) {
		int one = pages_adopt(pages, pages->found[i], rc ? NULL : err);

		if (!one && rc)
			pages_unref(pages, pages->found[i]);
		else if (!one)
			seq->table[seq->count++] = pages->found[i];
		rc = rc ? rc : one;
	}
	if (!seq)
		return rc;
	if (!rc && tokens > (uint64_t)seq->count * pages->shape.page_tokens)
		rc = tmesh_fail(err, -EPROTO, "a table has fewer pages than its tokens need");
	if (rc) {
		seq_cut(seq, 0);
		seq_unlink(seq);
		/* The caller has one: this is not the last. */
		tmesh_pages_unref(pages);
		return rc;
	}
	seq->tokens = tokens;
	table_changed(seq, 0);
	*out = seq;
	return 0;
}

int tmesh_pages_find(struct tmesh_pages *pages, const uint64_t (*hashes)[2], uint32_t count,
		     struct tmesh_seq **out, struct tmesh_error *err)
{
	int rc;

	if (count > PAGES_FIND_MAX)
		return tmesh_fail(err, -EINVAL, "%u hashes are more than %u", count,
				  PAGES_FIND_MAX);
	rc = pages_enter(pages, err);
	if (rc)
		return rc;
	pages->message.head = (struct pages_head){.op = PAGES_FIND, .count = count};
	if (count)
		memcpy(pages->message.hashes, hashes, count * sizeof(*hashes));
	rc = pages_ask(pages, sizeof(struct pages_head) + count * sizeof(*hashes), PAGES_FOUND,
		       err);
	if (!rc && pages->message.head.count > count)
		rc = tmesh_fail(err, -EPROTO, "the pool's owner found more than was asked for");
	if (!rc)
		rc = seq_of_answer(pages,
				   (uint64_t)pages->message.head.count * pages->shape.page_tokens,
				   out, err);
	pages_leave(pages);
	return rc;
}

int tmesh_seq_share(struct tmesh_seq *seq, char ticket[TMESH_PAGES_TICKET_SIZE],
		    struct tmesh_error *err)
{
	struct tmesh_pages *pages = seq->pages;
	struct pages_head *head = &pages->message.head;
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	*head = (struct pages_head){.op = PAGES_SHARE, .count = seq->count, .a = seq->tokens};
	for (uint32_t i = 0; i < seq->count; i++) {
		pages->message.pages[i] = seq->table[i];
		bit_set(pages->shared, seq->table[i]);
	}
	rc = pages_ask(pages, sizeof(*head) + seq->count * sizeof(uint32_t), PAGES_TICKET, err);
	if (!rc && head->status == -EDQUOT)
		rc = tmesh_fail(err, -EDQUOT, "this handle has as many tickets as it can have");
	else if (!rc && head->status)
		rc = tmesh_fail(err, head->status, "the pool's owner gives no ticket");
	if (!rc) {
		uint8_t name[16];

		memcpy(name, &head->a, 8);
		memcpy(name + 8, &head->b, 8);
		memcpy(ticket, TICKET_PREFIX, sizeof(TICKET_PREFIX));
		tmesh_hex(ticket + sizeof(TICKET_PREFIX) - 1, name, sizeof(name));
	}
	pages_leave(pages);
	return rc;
}

static int read_ticket(const char *ticket, struct pages_head *head, struct tmesh_error *err)
{
	size_t prefix = sizeof(TICKET_PREFIX) - 1;
	uint8_t name[16];

	if (strnlen(ticket, TMESH_PAGES_TICKET_SIZE) != prefix + 2 * sizeof(name) ||
	    memcmp(ticket, TICKET_PREFIX, prefix) ||
	    !tmesh_unhex(name, ticket + prefix, sizeof(name)))
		return tmesh_fail(err, -EPROTO, "this is not a ticket of a sequence");
	memcpy(&head->a, name, 8);
	memcpy(&head->b, name + 8, 8);
	return 0;
}

static int no_ticket(int status, struct tmesh_error *err)
{
	return status == -ENOENT ? tmesh_fail(err, status,
					      "the ticket has ended, or is not of this "
					      "pool's tenant")
				 : tmesh_fail(err, status, "the pool's owner refused the ticket");
}

int tmesh_seq_open(struct tmesh_pages *pages, const char *ticket, struct tmesh_seq **out,
		   struct tmesh_error *err)
{
	struct pages_head head = {.op = PAGES_OPEN_TICKET};
	int rc = read_ticket(ticket, &head, err);

	if (!rc)
		rc = pages_enter(pages, err);
	if (rc)
		return rc;
	pages->message.head = head;
	rc = pages_ask(pages, sizeof(head), PAGES_TABLE, err);
	if (!rc && pages->message.head.status)
		rc = no_ticket(pages->message.head.status, err);
	else if (!rc)
		rc = seq_of_answer(pages, pages->message.head.a, out, err);
	pages_leave(pages);
	return rc;
}

int tmesh_pages_unshare(struct tmesh_pages *pages, const char *ticket, struct tmesh_error *err)
{
	struct pages_head head = {.op = PAGES_UNSHARE};
	int rc = read_ticket(ticket, &head, err);

	if (!rc)
		rc = pages_enter(pages, err);
	if (rc)
		return rc;
	pages->message.head = head;
	rc = pages_ask(pages, sizeof(head), PAGES_UNSHARED, err);
	if (!rc && pages->message.head.status)
		rc = no_ticket(pages->message.head.status, err);
	pages_leave(pages);
	return rc;
}
