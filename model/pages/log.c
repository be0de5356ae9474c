// SPDX-License-Identifier: MIT
/* Logs: appending, following, and what a record must be. */
#include "log.h"

#include <stdlib.h>

_Static_assert(sizeof(struct log_record) == 40, "the form of a record");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are little-endian");

static uint8_t *segment_of(const struct log_head *head, uint32_t bytes, uint64_t segment)
{
	return (uint8_t *)(uintptr_t)head->segments + segment % LOG_SEGMENTS * bytes;
}

static size_t publication_bytes(uint32_t segment_bytes)
{
	return sizeof(struct log_head) + (size_t)LOG_SEGMENTS * segment_bytes;
}

size_t log_record_size(uint32_t payload)
{
	return sizeof(struct log_record) + ((payload + 7u) & ~7u);
}

static void record_sum(const struct log_record *record, const void *payload, const uint64_t id[2],
		       uint64_t check[2])
{
	const uint64_t body[2] = {id[1], id[0]};

	check[1] = tmesh_siphash(id, record, offsetof(struct log_record, check));
	check[0] = tmesh_siphash(body, payload ? payload : "", record->bytes) ^ check[1];
}

/* Check that [@data, @data + @bytes) begins with a whole record of the log with @id. Return: its
 * size with payload and padding; -EBADMSG (damage). */
static ssize_t log_record_check(const void *data, size_t bytes, const uint64_t id[2])
{
	static const uint8_t zeros[8];
	const uint8_t *payload = (const uint8_t *)data + sizeof(struct log_record);
	struct log_record record;
	uint64_t check[2];
	size_t size;

	if (bytes < sizeof(record))
		return -EBADMSG;
	memcpy(&record, data, sizeof(record));
	if (record.magic != LOG_RECORD_MAGIC || record.version != LOG_VERSION || record.zero ||
	    record.bytes > LOG_PAYLOAD_MAX)
		return -EBADMSG;
	size = log_record_size(record.bytes);
	if (size > bytes)
		return -EBADMSG;
	record_sum(&record, payload, id, check);
	if (memcmp(check, record.check, sizeof(check)) ||
	    memcmp(payload + record.bytes, zeros, size - sizeof(record) - record.bytes))
		return -EBADMSG;
	return (ssize_t)size;
}

/* Appending */

int model_log_create(struct model_log *log, struct tmesh_ctx *ctx, uint32_t segment_bytes,
		     int (*snapshot)(void *data, struct model_log *log), void *data,
		     struct tmesh_error *err)
{
	uint64_t id[2];
	int rc = tmesh_random(id, sizeof(id), err);

	*log = (struct model_log){.snapshot = snapshot, .data = data};
	if (!rc)
		rc = model_publication_create(&log->publication, ctx, LOG_MAGIC, "log",
					      publication_bytes(segment_bytes), err);
	if (rc)
		return rc;
	log->head = log->publication.addr;
	log->head->version = LOG_VERSION;
	log->head->segment_bytes = segment_bytes;
	memcpy(log->head->id, id, sizeof(id));
	return 0;
}

void model_log_close(struct model_log *log)
{
	model_publication_close(&log->publication);
}

/* Store words that followers may be reading. */
static void store(uint8_t *to, const void *from, size_t bytes)
{
	const uint8_t *at = from;

	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = 0;

		memcpy(&word, at + i, bytes - i < 8 ? bytes - i : 8);
		__atomic_store_n((uint64_t *)(to + i), word, __ATOMIC_RELAXED);
	}
}

/* Write one record, which counts once the tail is beyond it. */
static void log_put(struct model_log *log, uint16_t kind, const void *payload, uint32_t bytes)
{
	struct log_head *head = log->head;
	uint64_t tail = atomic_load_explicit(&head->tail, memory_order_relaxed);
	uint8_t *at = segment_of(head, head->segment_bytes, tail >> 32) + (uint32_t)tail;
	struct log_record record = {
		.magic = LOG_RECORD_MAGIC,
		.version = LOG_VERSION,
		.kind = kind,
		.bytes = bytes,
		.number = ++log->number,
	};

	record_sum(&record, payload, head->id, record.check);
	store(at, &record, sizeof(record));
	store(at + sizeof(record), payload, bytes);
	atomic_store_explicit(&head->tail, tail + log_record_size(bytes), memory_order_release);
}

int model_log_begin(struct model_log *log)
{
	int rc;

	log->turning = true;
	rc = model_log_append(log, LOG_RESET, NULL, 0);
	if (!rc)
		rc = log->snapshot(log->data, log);
	if (!rc)
		rc = model_log_append(log, LOG_READY, NULL, 0);
	log->turning = false;
	return rc;
}

/* Begin the next segment, with the whole state. */
static int log_turn(struct model_log *log)
{
	struct log_head *head = log->head;
	uint64_t tail;

	log_put(log, LOG_END, NULL, 0);
	tail = atomic_load_explicit(&head->tail, memory_order_relaxed);
	/* Before the first word of the segment changes, followers must see that it does. */
	atomic_store_explicit(&head->tail, ((tail >> 32) + 1) << 32, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	return model_log_begin(log);
}

int model_log_append(struct model_log *log, uint16_t kind, const void *payload, uint32_t bytes)
{
	uint64_t used = (uint32_t)atomic_load_explicit(&log->head->tail, memory_order_relaxed);
	/* The mark of the segment's end has room in any case. */
	size_t size = log_record_size(bytes) + log_record_size(0);
	int rc;

	if (log->failed)
		return log->failed;
	if (used + size <= log->head->segment_bytes) {
		log_put(log, kind, payload, bytes);
		return 0;
	}
	/* The state is the one after this record already: it needs no record of its own. */
	rc = log->turning ? -ENOSPC : log_turn(log);
	if (rc) {
		log->failed = rc;
		atomic_store_explicit(&log->head->failed, (uint64_t)-rc, memory_order_release);
	}
	return rc;
}

void model_log_tell(struct model_log *log)
{
	model_publication_notify(&log->publication);
}

/* Following */

int model_follow_open(struct model_follower *follower, struct tmesh_ctx *ctx, const char *token,
		      struct tmesh_error *err)
{
	const volatile struct log_head *head;
	int rc = model_subscription_open(&follower->subscription, ctx, token, LOG_MAGIC,
					 sizeof(*head), err);

	if (rc)
		return rc;
	head = follower->subscription.addr;
	follower->head = follower->subscription.addr;
	follower->segment_bytes = head->segment_bytes;
	follower->id[0] = head->id[0];
	follower->id[1] = head->id[1];
	if (head->version != LOG_VERSION || follower->segment_bytes < LOG_SEGMENT_LEAST ||
	    follower->segment_bytes > LOG_SEGMENT_MOST || follower->segment_bytes % 8 ||
	    publication_bytes(follower->segment_bytes) != follower->subscription.bytes) {
		model_subscription_close(&follower->subscription);
		return tmesh_fail(err, -EPROTO, "the log's head is damaged, or of another version");
	}
	model_follow_resync(follower);
	return 0;
}

void model_follow_close(struct model_follower *follower)
{
	model_subscription_close(&follower->subscription);
}

uint64_t model_follow_tail(const struct model_follower *follower)
{
	return atomic_load_explicit(&follower->head->tail, memory_order_acquire);
}

bool model_follow_past(const struct model_follower *follower, uint64_t tail)
{
	return follower->segment > tail >> 32 ||
	       (follower->segment == tail >> 32 && follower->offset >= (uint32_t)tail);
}

void model_follow_resync(struct model_follower *follower)
{
	follower->segment = atomic_load_explicit(&follower->head->tail, memory_order_acquire) >> 32;
	follower->offset = 0;
	follower->number = 0;
}

static void fetch(uint8_t *to, const uint8_t *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = __atomic_load_n((const uint64_t *)(from + i), __ATOMIC_RELAXED);

		memcpy(to + i, &word, 8);
	}
}

/* Copy the record at the follower's place, as far as there is room for one. Return: bytes. */
static size_t copy_record(struct model_follower *follower)
{
	const uint8_t *at = segment_of(follower->head, follower->segment_bytes, follower->segment) +
			    follower->offset;
	size_t room = follower->segment_bytes - follower->offset, size;

	if (room < sizeof(struct log_record))
		return 0;
	fetch(follower->room, at, sizeof(struct log_record));
	if (follower->record.bytes > LOG_PAYLOAD_MAX)
		return sizeof(struct log_record);
	size = log_record_size(follower->record.bytes);
	if (size > room)
		return sizeof(struct log_record);
	fetch(follower->room + sizeof(struct log_record), at + sizeof(struct log_record),
	      size - sizeof(struct log_record));
	return size;
}

int model_follow_next(struct model_follower *follower)
{
	const struct log_head *head = follower->head;
	uint64_t tail = atomic_load_explicit(&head->tail, memory_order_acquire);
	uint64_t newest = tail >> 32;
	ssize_t size;

	/* The tail of a log that was damaged, or followed too slowly. */
	if (newest - follower->segment >= LOG_SEGMENTS && newest + 1 != follower->segment)
		return -ESTALE;
	if (newest + 1 == follower->segment ||
	    (newest == follower->segment && follower->offset >= (uint32_t)tail))
		return atomic_load_explicit(&head->failed, memory_order_acquire) ? -ENOSPC
										 : -EAGAIN;
	size = (ssize_t)copy_record(follower);
	atomic_thread_fence(memory_order_acquire);
	newest = atomic_load_explicit(&head->tail, memory_order_relaxed) >> 32;
	if (newest - follower->segment >= LOG_SEGMENTS)
		return -ESTALE;
	size = log_record_check(follower->room, (size_t)size, follower->id);
	if (size < 0)
		return -EBADMSG;
	if (follower->number && follower->record.number != follower->number + 1)
		return -EBADMSG;
	follower->number = follower->record.number;
	follower->offset += (uint32_t)size;
	if (follower->record.kind == LOG_END) {
		follower->segment++;
		follower->offset = 0;
	}
	return 0;
}
