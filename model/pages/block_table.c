// SPDX-License-Identifier: MIT
/*
 * Tables of sequences as a log. The handle's side appends each change. A follower checks every
 * record against its own state before it applies it.
 */
#include <stdlib.h>

#include "log.h"
#include "pages_internal.h"

#pragma GCC visibility push(default)
#include <tmesh/page_table.h>
#pragma GCC visibility pop

#define SEGMENT_BYTES (1u << 20)
#define BLOCKS_MAX (1u << 24) /* of all tables of a copy */
#define SEQS_MAX (1u << 20)

enum table_kind {
	TABLE_SEQ = LOG_OWN, /* struct table_seq, then page numbers */
	TABLE_FORK,	     /* struct table_fork */
	TABLE_FREE,	     /* struct table_fork, without from */
};

/* From block @first on the table has these pages and ends. */
struct table_seq {
	uint64_t id;
	uint64_t tokens;
	uint32_t first;
	uint32_t count;
};

struct table_fork {
	uint64_t id;
	uint64_t from;
};

#define TABLE_PAGES ((LOG_PAYLOAD_MAX - sizeof(struct table_seq)) / sizeof(uint32_t))

/* The handle's side; with its lock held */

struct table_log {
	struct model_log log;
};

/* Append a sequence's table. A long one takes several records; all but the last have the tokens
 * that fit their blocks. */
static int put_seq(struct model_log *log, const struct tmesh_seq *seq, uint32_t from)
{
	int rc;

	do {
		struct {
			struct table_seq seq;
			uint32_t pages[TABLE_PAGES];
		} out = {.seq = {.id = seq->id, .first = from}};
		uint64_t room;

		out.seq.count = seq->count - from < TABLE_PAGES ? seq->count - from : TABLE_PAGES;
		room = (uint64_t)(from + out.seq.count) * seq->pages->shape.page_tokens;
		out.seq.tokens = seq->tokens < room ? seq->tokens : room;
		if (out.seq.count)
			memcpy(out.pages, seq->table + from, out.seq.count * sizeof(uint32_t));
		rc = model_log_append(
			log, TABLE_SEQ, &out,
			(uint32_t)(sizeof(out.seq) + out.seq.count * sizeof(uint32_t)));
		from += out.seq.count;
	} while (!rc && from < seq->count);
	return rc;
}

/* Append all tables, in the order of ids. */
static int put_all(void *data, struct model_log *log)
{
	const struct tmesh_pages *pages = data;
	int rc = 0;

	for (const struct tmesh_seq *seq = pages->seqs; seq && !rc; seq = seq->next)
		rc = put_seq(log, seq, 0);
	return rc;
}

void table_changed(const struct tmesh_seq *seq, uint32_t from)
{
	struct table_log *log = seq->pages->log;

	if (!log)
		return;
	put_seq(&log->log, seq, from);
	model_log_tell(&log->log);
}

void table_forked(const struct tmesh_seq *seq, const struct tmesh_seq *from)
{
	const struct table_fork fork = {seq->id, from->id};
	struct table_log *log = seq->pages->log;

	if (!log)
		return;
	model_log_append(&log->log, TABLE_FORK, &fork, sizeof(fork));
	model_log_tell(&log->log);
}

void table_freed(struct tmesh_pages *pages, uint64_t id)
{
	const struct table_fork gone = {.id = id};
	struct table_log *log = pages->log;

	if (!log)
		return;
	model_log_append(&log->log, TABLE_FREE, &gone, sizeof(gone));
	model_log_tell(&log->log);
}

void table_log_free(struct tmesh_pages *pages)
{
	if (pages->log)
		model_log_close(&pages->log->log);
	free(pages->log);
}

static int log_start(struct tmesh_pages *pages, uint32_t bytes, struct tmesh_error *err)
{
	struct table_log *log;
	int rc;

	if (bytes < LOG_SEGMENT_LEAST || bytes > LOG_SEGMENT_MOST || bytes % 8)
		return tmesh_fail(err, -EINVAL,
				  "segment_bytes is %u, not a multiple of 8 from 4 KiB to 256 MiB",
				  bytes);
	log = calloc(1, sizeof(*log));
	if (!log)
		return tmesh_fail(err, -ENOMEM, "no memory for a log");
	rc = model_log_create(&log->log, pages->ctx, bytes, put_all, pages, err);
	if (!rc) {
		rc = model_log_begin(&log->log);
		if (rc) {
			tmesh_fail(err, rc, "the tables do not fit a segment of %u bytes", bytes);
			model_log_close(&log->log);
		}
	}
	if (rc)
		free(log);
	else
		pages->log = log;
	return rc;
}

int tmesh_pages_log(struct tmesh_pages *pages, uint32_t segment_bytes, char *token,
		    struct tmesh_error *err)
{
	int rc = pages_enter(pages, err);

	if (rc)
		return rc;
	if (!pages->log)
		rc = log_start(pages, segment_bytes ? segment_bytes : SEGMENT_BYTES, err);
	if (!rc)
		rc = model_publication_token(&pages->log->log.publication, token, err);
	pages_leave(pages);
	return rc;
}

/* A follower's side */

struct copy_seq {
	uint64_t id;
	uint64_t tokens;
	uint32_t count, room;
	uint32_t *table;
	bool gone; /* its place is free with the next tables_compact() */
};

/* In the order of ids. A new one is the last, and places become free many at a time. So a record
 * moves no other sequence. */
struct tables {
	struct copy_seq *seqs;
	size_t count, room; /* with those that are gone */
	size_t gone;
	uint64_t last_id;
	uint64_t blocks;
};

struct tmesh_page_copy {
	struct model_follower follower;
	struct tables now;
	struct tables next; /* from RESET to READY */
	bool loading;
	bool fresh; /* nothing but RESET makes sense */
	int lost;   /* why it takes nothing in any more, until a resync */
	uint64_t number;
	uint64_t copied; /* blocks, by forks of this update */
};

static void tables_clear(struct tables *tables)
{
	for (size_t i = 0; i < tables->count; i++)
		free(tables->seqs[i].table);
	free(tables->seqs);
	*tables = (struct tables){0};
}

/* Return the place of @id, or where it would be. */
static size_t tables_at(const struct tables *tables, uint64_t id)
{
	size_t low = 0, high = tables->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (tables->seqs[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct copy_seq *tables_find(const struct tables *tables, uint64_t id)
{
	size_t at = tables_at(tables, id);

	if (at == tables->count || tables->seqs[at].id != id || tables->seqs[at].gone)
		return NULL;
	return &tables->seqs[at];
}

static int tables_add(struct tables *tables, uint64_t id, struct copy_seq **out)
{
	*out = tables_find(tables, id);
	if (*out)
		return 0;
	if (tables->count - tables->gone == SEQS_MAX || id <= tables->last_id)
		return -EPROTO;
	if (tables->count == tables->room) {
		size_t room = tables->room ? 2 * tables->room : 16;
		struct copy_seq *seqs = realloc(tables->seqs, room * sizeof(*seqs));

		if (!seqs)
			return -ENOMEM;
		tables->seqs = seqs;
		tables->room = room;
	}
	*out = &tables->seqs[tables->count++];
	**out = (struct copy_seq){.id = id};
	tables->last_id = id;
	return 0;
}

/* Free the places of those that are gone. */
static void tables_compact(struct tables *tables)
{
	size_t count = 0;

	for (size_t i = 0; tables->gone && i < tables->count; i++)
		if (!tables->seqs[i].gone)
			tables->seqs[count++] = tables->seqs[i];
	if (tables->gone)
		tables->count = count;
	tables->gone = 0;
}

static void tables_remove(struct tables *tables, struct copy_seq *seq)
{
	tables->blocks -= seq->count;
	free(seq->table);
	*seq = (struct copy_seq){.id = seq->id, .gone = true};
	if (++tables->gone > tables->count / 2)
		tables_compact(tables);
}

static int seq_reserve(struct copy_seq *seq, uint32_t count)
{
	uint32_t room = seq->room ? seq->room : 16;
	uint32_t *table;

	if (count <= seq->room)
		return 0;
	while (room < count)
		room *= 2;
	table = realloc(seq->table, room * sizeof(*table));
	if (!table)
		return -ENOMEM;
	seq->table = table;
	seq->room = room;
	return 0;
}

static int seq_set(struct tables *tables, uint64_t id, uint64_t tokens, uint32_t first,
		   const uint32_t *pages, uint32_t count)
{
	struct copy_seq *seq = tables_find(tables, id);
	uint32_t before = seq ? seq->count : 0;
	int rc;

	if (first > before || first > TMESH_PAGES_MAX_SEQ || count > TMESH_PAGES_MAX_SEQ - first ||
	    tables->blocks - before + first + count > BLOCKS_MAX ||
	    tokens > (uint64_t)(first + count) * 65536)
		return -EPROTO;
	rc = tables_add(tables, id, &seq);
	if (!rc)
		rc = seq_reserve(seq, first + count);
	if (rc) {
		/* A sequence that was made for this record has no block. */
		if (!before && seq && !seq->count && !seq->tokens)
			tables_remove(tables, seq);
		return rc;
	}
	/* A hostile fork names its own sequence: both are one table. */
	if (count)
		memmove(seq->table + first, pages, count * sizeof(*pages));
	seq->count = first + count;
	seq->tokens = tokens;
	tables->blocks += (uint64_t)seq->count - before;
	return 0;
}

static int apply_seq(struct tables *tables, const uint8_t *payload, uint32_t bytes)
{
	struct table_seq head;
	uint32_t pages[TABLE_PAGES];

	if (bytes < sizeof(head))
		return -EPROTO;
	memcpy(&head, payload, sizeof(head));
	if (!head.id || head.count > TABLE_PAGES ||
	    bytes != sizeof(head) + head.count * sizeof(uint32_t))
		return -EPROTO;
	memcpy(pages, payload + sizeof(head), head.count * sizeof(uint32_t));
	for (uint32_t i = 0; i < head.count; i++)
		if (pages[i] >= TMESH_PAGES_MAX)
			return -EPROTO;
	return seq_set(tables, head.id, head.tokens, head.first, pages, head.count);
}

static int apply_fork(struct tmesh_page_copy *copy, struct tables *tables, uint16_t kind,
		      const uint8_t *payload, uint32_t bytes)
{
	struct table_fork fork;
	struct copy_seq *seq;

	if (bytes != sizeof(fork))
		return -EPROTO;
	memcpy(&fork, payload, sizeof(fork));
	seq = tables_find(tables, kind == TABLE_FREE ? fork.id : fork.from);
	if (!seq || !fork.id || (kind == TABLE_FREE && fork.from) || fork.id == fork.from)
		return -EPROTO;
	if (kind == TABLE_FREE) {
		tables_remove(tables, seq);
		return 0;
	}
	copy->copied += seq->count;
	return seq_set(tables, fork.id, seq->tokens, 0, seq->table, seq->count);
}

static int apply(struct tmesh_page_copy *copy)
{
	const struct log_record *record = &copy->follower.record;
	const uint8_t *payload = copy->follower.room + sizeof(*record);
	struct tables *tables = copy->loading ? &copy->next : &copy->now;

	switch (record->kind) {
	case LOG_RESET:
		tables_clear(&copy->next);
		copy->loading = true;
		return record->bytes ? -EPROTO : 0;
	case LOG_READY:
		if (!copy->loading || record->bytes)
			return -EPROTO;
		tables_clear(&copy->now);
		copy->now = copy->next;
		copy->next = (struct tables){0};
		copy->loading = copy->fresh = false;
		return 0;
	case LOG_END:
		return copy->loading || record->bytes ? -EPROTO : 0;
	case TABLE_SEQ:
		return copy->fresh && !copy->loading ? -EPROTO
						     : apply_seq(tables, payload, record->bytes);
	case TABLE_FORK:
	case TABLE_FREE:
		return copy->fresh && !copy->loading
			       ? -EPROTO
			       : apply_fork(copy, tables, record->kind, payload, record->bytes);
	default:
		return -EPROTO;
	}
}

int tmesh_page_copy_open(struct tmesh_ctx *ctx, const char *token, struct tmesh_page_copy **out,
			 struct tmesh_error *err)
{
	struct tmesh_page_copy *copy = calloc(1, sizeof(*copy));
	int rc;

	if (!copy)
		return tmesh_fail(err, -ENOMEM, "no memory for a copy of tables");
	copy->fresh = true;
	rc = model_follow_open(&copy->follower, ctx, token, err);
	if (rc)
		free(copy);
	else
		*out = copy;
	return rc;
}

void tmesh_page_copy_close(struct tmesh_page_copy *copy)
{
	if (!copy)
		return;
	model_follow_close(&copy->follower);
	tables_clear(&copy->now);
	tables_clear(&copy->next);
	free(copy);
}

static int why_not(struct tmesh_page_copy *copy, int rc, struct tmesh_error *err)
{
	unsigned long long number = copy->number;

	switch (rc) {
	case -ESTALE:
		return tmesh_fail(err, rc,
				  "the copy fell behind record %llu, which is overwritten: "
				  "resynchronise it",
				  number + 1);
	case -EBADMSG:
		return tmesh_fail(err, -EPROTO,
				  "behind record %llu the log is damaged: resynchronise the copy",
				  number);
	case -ENOSPC:
		return tmesh_fail(err, rc,
				  "the tables have outgrown the log's segments, and it has ended");
	case -EPROTO:
		return tmesh_fail(err, rc,
				  "record %llu does not fit the tables before it: resynchronise "
				  "the copy",
				  (unsigned long long)copy->follower.record.number);
	default:
		return tmesh_fail(err, rc, "no memory for a copy of tables");
	}
}

/*
 * Apply the records before @tail, and at most one more: the writer may go on without end. If forks
 * copy too many blocks, the rest is for the next update. Return: 0 or the error, after which the
 * copy needs a resync.
 */
static int apply_all(struct tmesh_page_copy *copy, uint64_t tail, bool *some)
{
	bool last;
	int rc;

	copy->copied = 0;
	do {
		if (copy->copied > TABLE_COPIED_MOST) {
			model_subscription_notify_again(&copy->follower.subscription);
			return 0;
		}
		last = model_follow_past(&copy->follower, tail);
		rc = model_follow_next(&copy->follower);
		if (rc == -EAGAIN)
			return 0;
		if (!rc)
			rc = apply(copy);
		if (rc)
			return rc;
		copy->number = copy->follower.number;
		*some = true;
	} while (!last);
	return 0;
}

int tmesh_page_copy_update(struct tmesh_page_copy *copy, struct tmesh_error *err)
{
	int rc = model_check_life(copy->follower.subscription.life, err);
	bool over, some = false;

	if (!rc && copy->lost)
		rc = why_not(copy, copy->lost, err);
	if (rc)
		return rc;
	model_subscription_drain(&copy->follower.subscription);
	/* Look at the end first: records appended before it are still read below. */
	over = model_subscription_ended(&copy->follower.subscription, 0);
	copy->lost = apply_all(copy, model_follow_tail(&copy->follower), &some);
	tables_compact(&copy->now);
	if (copy->lost)
		return why_not(copy, copy->lost, err);
	if (over && !some)
		return tmesh_fail(err, -EPIPE, "the log's handle is gone");
	return 0;
}

int tmesh_page_copy_resync(struct tmesh_page_copy *copy, struct tmesh_error *err)
{
	int rc = model_check_life(copy->follower.subscription.life, err);

	if (rc)
		return rc;
	model_follow_resync(&copy->follower);
	tables_clear(&copy->next);
	copy->loading = false;
	copy->fresh = true;
	copy->lost = 0;
	return 0;
}

int tmesh_page_copy_poll_fd(struct tmesh_page_copy *copy, struct tmesh_error *err)
{
	return model_subscription_poll_fd(&copy->follower.subscription, err);
}

uint64_t tmesh_page_copy_number(const struct tmesh_page_copy *copy)
{
	return copy->number;
}

size_t tmesh_page_copy_count(const struct tmesh_page_copy *copy)
{
	return copy->now.count;
}

uint64_t tmesh_page_copy_id(const struct tmesh_page_copy *copy, size_t i)
{
	return i < copy->now.count ? copy->now.seqs[i].id : 0;
}

const int32_t *tmesh_page_copy_table(const struct tmesh_page_copy *copy, uint64_t id,
				     uint32_t *blocks, uint64_t *tokens)
{
	static const int32_t none;
	const struct copy_seq *seq = tables_find(&copy->now, id);

	if (!seq)
		return NULL;
	if (blocks)
		*blocks = seq->count;
	if (tokens)
		*tokens = seq->tokens;
	return seq->table ? (const int32_t *)seq->table : &none;
}
