// SPDX-License-Identifier: MIT
/*
 * The lanes of a channel: one producer each, any number of consumers.
 *
 * A producer fills a cell and then writes its word, which publishes it. If the producer dies before
 * that, no consumer sees the cell. A consumer copies the cell and then moves the head by
 * compare-and-swap. If that fails, another consumer has the message, and the copy, torn or not, is
 * thrown away. So neither side leaves anything behind that needs repair.
 */
#include "channel_internal.h"

#include <string.h>

/* Other consumers may take from a lane all the time; after so many tries look at the next lane. */
#define TRIES 64
/* The most messages that are taken at once. */
#define BATCH 64

/* Functions compiled twice: for many messages, and for one, as most calls on a channel need. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

static int corrupt(const char *what, struct tmesh_error *err)
{
	return tmesh_fail(
		err, -EPROTO,
		"the channel's memory is corrupt (%s): another process has overwritten it; "
		"make a new channel",
		what);
}

int tmesh_channel_look(struct tmesh_channel *channel, struct tmesh_error *err)
{
	uint32_t capacity = channel->shape.capacity;

	channel->seen = atomic_load_explicit(&channel->lane->head, memory_order_acquire);
	if (channel->tail - channel->seen <= capacity)
		return 0;
	channel->seen = channel->tail - capacity;
	return corrupt("head", err);
}

/* Return how many cells are free. A dead sender may have left more messages under way than the
 * limit of the lane's new sender allows. */
static uint32_t free_cells(const struct tmesh_channel *channel, uint64_t under_way)
{
	return under_way < channel->limit ? channel->limit - (uint32_t)under_way : 0;
}

/* Look at the head only if the last look does not show enough room. */
static int room(struct tmesh_channel *channel, uint32_t wanted, uint32_t *out,
		struct tmesh_error *err)
{
	int rc = 0;

	if (free_cells(channel, channel->tail - channel->seen) < wanted)
		rc = tmesh_channel_look(channel, err);
	*out = free_cells(channel, channel->tail - channel->seen);
	return rc;
}

/* Get a line that is about to be written. On x86 the compiler would fetch it for reading. */
static inline void own_line(struct channel_cell *cell)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" : : "m"(*cell));
#else
	__builtin_prefetch(cell, 1);
#endif
}

/* Fill the cell at @position but for its word, which is left to the caller to write. */
static ALWAYS_INLINE int fill(struct tmesh_channel *channel, const struct tmesh_message *message,
			      uint64_t position, uint64_t *word, struct tmesh_error *err)
{
	struct channel_cell *cell = channel_cell(channel, channel->lane, position);
	atomic_uint_fast64_t *to = cell->payload;
	uint32_t most = message->tensor ? TMESH_MESSAGE_TENSOR_BYTES : TMESH_MESSAGE_BYTES;
	uint32_t kind = message->bytes;

	if (message->reserved)
		return tmesh_fail(err, -EINVAL,
				  "the message's reserved is %u, and has to be 0: set the "
				  "structure to zeros first, = {0}",
				  message->reserved);
	if (message->bytes > most)
		return tmesh_fail(err, -EINVAL, "a message%s has at most %u bytes, not %u",
				  message->tensor ? " with a tensor" : "", most, message->bytes);
	if (message->tensor) {
		int rc = channel_describe(channel, message->tensor, position, to, err);

		if (rc)
			return rc;
		to += CHANNEL_W_BESIDE;
		kind |= CHANNEL_KIND_TENSOR;
	}
	if (message->bytes) {
		uint64_t bytes[CHANNEL_WORDS] = {0};

		memcpy(bytes, message->data, message->bytes);
		channel_copy_in(to, bytes, (message->bytes + 7) / 8);
	}
	*word = channel_word(position, kind);
	return 0;
}

static void publish(struct tmesh_channel *channel, uint64_t position, uint64_t word)
{
	atomic_store_explicit(&channel_cell(channel, channel->lane, position)->word, word,
			      memory_order_release);
}

static ALWAYS_INLINE int lane_put(struct tmesh_channel *channel,
				  const struct tmesh_message *messages, uint32_t count,
				  struct tmesh_error *err)
{
	uint64_t tail = channel->tail, first = 0, word = 0;
	uint32_t space = 0, done;
	int rc;

	if (channel_gone(channel))
		return tmesh_fail(err, -EPIPE, "send: no receiver is left");
	rc = room(channel, count, &space, err);
	if (rc)
		return rc;
	if (!space)
		return -EAGAIN;
	if (count > space)
		count = space;
	if (count == 1)
		own_line(channel_cell(channel, channel->lane, tail));
	for (uint32_t i = 1; i < count; i++)
		own_line(channel_cell(channel, channel->lane, tail + i));
	rc = fill(channel, &messages[0], tail, &first, err);
	if (rc)
		return rc;
	/* Publish the first message last: until then no receiver looks at the others and takes
	 * their cache lines away. */
	for (done = 1; done < count && !fill(channel, &messages[done], tail + done, &word, NULL);
	     done++)
		publish(channel, tail + done, word);
	publish(channel, tail, first);
	channel->tail = tail + done;
	atomic_store_explicit(&channel->lane->tail, channel->tail, memory_order_release);
	/* Publish before looking for sleepers, which look for messages before they sleep. */
	atomic_thread_fence(memory_order_seq_cst);
	channel_tell(channel, &channel->head->data, CHANNEL_NOTIFY_DATA);
	return (int)done;
}

int tmesh_channel_put(struct tmesh_channel *channel, const struct tmesh_message *messages,
		      uint32_t count, struct tmesh_error *err)
{
	return lane_put(channel, messages, count, err);
}

int tmesh_channel_put_one(struct tmesh_channel *channel, const struct tmesh_message *message,
			  struct tmesh_error *err)
{
	return lane_put(channel, message, 1, err);
}

/* Count the published messages from @position on. All their cache lines are fetched at once. */
static inline uint32_t published(const struct tmesh_channel *channel, struct channel_lane *lane,
				 uint64_t position, uint32_t most)
{
	uint32_t count = 0;

	while (count < most &&
	       channel_published(
		       atomic_load_explicit(&channel_cell(channel, lane, position + count)->word,
					    memory_order_acquire),
		       position + count))
		count++;
	return count;
}

/* Return the word of a cell whose position has not been reached. */
static uint64_t last_lap(const struct tmesh_channel *channel, uint64_t position)
{
	uint32_t capacity = channel->shape.capacity;

	return position < capacity ? 0 : channel_word(position - capacity, 0);
}

/* Check the cell of a head that stands still: it has the last lap's message, or was never used. */
static int check_unpublished(struct tmesh_channel *channel, struct channel_lane *lane,
			     uint64_t head, struct tmesh_error *err)
{
	uint64_t word = atomic_load_explicit(&channel_cell(channel, lane, head)->word,
					     memory_order_acquire);

	if (channel_published(word, head) ||
	    word >> CHANNEL_KIND_BITS == last_lap(channel, head) >> CHANNEL_KIND_BITS ||
	    atomic_load_explicit(&lane->head, memory_order_acquire) != head)
		return -EAGAIN;
	return corrupt("cell", err);
}

/* Copy word by word: loads that are wider than the stores before them have to wait. */
static inline void copy_bytes(struct tmesh_message *message, const atomic_uint_fast64_t *from,
			      uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes / 8; i++) {
		uint64_t word = atomic_load_explicit(&from[i], memory_order_relaxed);

		memcpy(&message->data[8 * i], &word, 8);
	}
}

/* Make a message of our copy of the cell. On failure no receiver can have the message. */
static ALWAYS_INLINE int deliver(struct tmesh_channel *channel, uint32_t number,
				 const struct channel_cell *cell, struct tmesh_message *message,
				 struct tmesh_error *err)
{
	uint64_t word = atomic_load_explicit(&cell->word, memory_order_acquire);
	uint32_t kind = word & ((1u << CHANNEL_KIND_BITS) - 1);
	uint64_t payload[CHANNEL_W_BESIDE];

	message->tensor = NULL;
	message->reserved = 0;
	message->bytes = kind;
	if (kind >= CHANNEL_KIND_TENSOR) {
		message->bytes -= CHANNEL_KIND_TENSOR;
		if (message->bytes > TMESH_MESSAGE_TENSOR_BYTES)
			return corrupt("kind", err);
		copy_bytes(message, cell->payload + CHANNEL_W_BESIDE, TMESH_MESSAGE_TENSOR_BYTES);
		channel_copy_out(payload, cell->payload, CHANNEL_W_BESIDE);
		return channel_resolve(channel, number, payload, &message->tensor, err);
	}
	if (message->bytes > TMESH_MESSAGE_BYTES)
		return corrupt("kind", err);
	copy_bytes(message, cell->payload, TMESH_MESSAGE_BYTES);
	return 0;
}

static void undo(struct tmesh_message *messages, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		tmesh_tensor_unref(messages[i].tensor);
}

/*
 * Open regions before the head moves: until then the producer holds them. The words read, and any
 * errors, count only if the head has not moved.
 */
static ALWAYS_INLINE int take_from(struct tmesh_channel *channel, uint32_t number,
				   struct tmesh_message *messages, uint32_t most,
				   struct tmesh_error *err)
{
	struct channel_lane *lane = channel_lane(channel, number);
	uint64_t head = atomic_load_explicit(&lane->head, memory_order_acquire);

	for (int i = 0; i < TRIES; i++) {
		uint32_t there = published(channel, lane, head, most), count = 0;
		int rc = 0;

		while (count < there) {
			rc = deliver(channel, number, channel_cell(channel, lane, head + count),
				     &messages[count], err);
			if (rc)
				break;
			count++;
		}
		if (!count && !rc)
			return check_unpublished(channel, lane, head, err);
		if (!count && channel_passes(rc))
			return rc;
		/* A message that cannot be had goes too, when it is the first; else next time. */
		if (atomic_compare_exchange_strong(&lane->head, &head, head + count + !count)) {
			channel_tell(channel, &lane->room, CHANNEL_NOTIFY_ROOM);
			return count ? (int)count : rc;
		}
		undo(messages, count);
	}
	return -EAGAIN;
}

static ALWAYS_INLINE int lane_pop(struct tmesh_channel *channel, struct tmesh_message *messages,
				  uint32_t most, struct tmesh_error *err)
{
	uint32_t lanes = channel->shape.lanes, first = channel->next_lane;

	for (uint32_t i = 0; i < lanes; i++) {
		uint32_t number = first + i < lanes ? first + i : first + i - lanes;
		int rc = take_from(channel, number, messages, most, err);

		if (rc != -EAGAIN) {
			channel->next_lane = number + 1 < lanes ? number + 1 : 0;
			return rc;
		}
	}
	return -EAGAIN;
}

int tmesh_channel_pop(struct tmesh_channel *channel, struct tmesh_message *messages, uint32_t most,
		      struct tmesh_error *err)
{
	return lane_pop(channel, messages, most < BATCH ? most : BATCH, err);
}

int tmesh_channel_pop_one(struct tmesh_channel *channel, struct tmesh_message *message,
			  struct tmesh_error *err)
{
	return lane_pop(channel, message, 1, err);
}

/* Open regions ahead. Another consumer may take the message meanwhile. That does no harm, since the
 * region stays open for the next message. */
int tmesh_channel_look_ahead(struct tmesh_channel *channel, struct tmesh_error *err)
{
	for (uint32_t i = 0; i < channel->shape.lanes; i++) {
		struct channel_lane *lane = channel_lane(channel, i);
		uint64_t head = atomic_load_explicit(&lane->head, memory_order_acquire);
		struct tmesh_message message;
		int rc;

		if (!published(channel, lane, head, 1))
			continue;
		rc = deliver(channel, i, channel_cell(channel, lane, head), &message, err);
		if (!rc)
			tmesh_tensor_unref(message.tensor);
		else if (channel_passes(rc))
			return rc;
	}
	return 0;
}

bool tmesh_channel_ready(struct tmesh_channel *channel)
{
	if (channel->role == TMESH_CHANNEL_SEND)
		return atomic_load_explicit(&channel->lane->head, memory_order_acquire) !=
		       channel->seen;
	for (uint32_t i = 0; i < channel->shape.lanes; i++) {
		struct channel_lane *lane = channel_lane(channel, i);
		uint64_t head = atomic_load_explicit(&lane->head, memory_order_acquire);
		uint64_t word = atomic_load_explicit(&channel_cell(channel, lane, head)->word,
						     memory_order_acquire);

		if (channel_published(word, head))
			return true;
	}
	return false;
}

/* Find the end of the published messages. The tail in memory may lack those that its sender
 * published last, or before it died; consumers may already have taken some of these. */
static uint64_t published_tail(const struct tmesh_channel *channel, struct channel_lane *lane,
			       uint64_t head)
{
	uint64_t tail = atomic_load_explicit(&lane->tail, memory_order_acquire);

	if ((int64_t)(head - tail) > 0)
		tail = head;
	while (tail - head < channel->shape.capacity && published(channel, lane, tail, 1))
		tail++;
	return tail;
}

/* Count the messages. A tail that is read after its head may be ahead of it by more than the cells.
 */
int tmesh_channel_waiting(struct tmesh_channel *channel, uint64_t *out, struct tmesh_error *err)
{
	uint32_t capacity = channel->shape.capacity;

	*out = 0;
	for (uint32_t i = 0; i < channel->shape.lanes; i++) {
		struct channel_lane *lane = channel_lane(channel, i);
		uint64_t head = atomic_load_explicit(&lane->head, memory_order_acquire);
		uint64_t there = published_tail(channel, lane, head) - head;

		if (there > capacity &&
		    atomic_load_explicit(&lane->head, memory_order_acquire) == head)
			return corrupt("tail", err);
		*out += there < capacity ? there : capacity;
	}
	return 0;
}

uint32_t tmesh_channel_room(struct tmesh_channel *channel)
{
	uint64_t head = atomic_load_explicit(&channel->lane->head, memory_order_acquire);

	return free_cells(channel, published_tail(channel, channel->lane, head) - head);
}

/* Keep the entries that an untaken message names until it is taken. */
static void leave_named(struct tmesh_channel *channel, uint64_t position)
{
	const struct channel_cell *cell = channel_cell(channel, channel->lane, position);
	uint64_t word = atomic_load_explicit(&cell->word, memory_order_acquire);
	uint64_t names =
		atomic_load_explicit(&cell->payload[CHANNEL_W_NAMES], memory_order_relaxed);
	uint32_t region = names & 0xffff, layout = names >> 16 & 0xffff;

	if (!(word & CHANNEL_KIND_TENSOR))
		return;
	if (region < channel->shape.regions)
		channel->sent_regions[region].until = position + 1;
	if (layout < channel->shape.layouts)
		channel->sent_layouts[layout].until = position + 1;
}

int tmesh_channel_resume(struct tmesh_channel *channel, uint32_t number, struct tmesh_error *err)
{
	struct channel_lane *lane = channel_lane(channel, number);
	uint64_t head = atomic_load_explicit(&lane->head, memory_order_acquire);
	uint64_t tail = published_tail(channel, lane, head);
	uint32_t capacity = channel->shape.capacity;

	if (tail - head > capacity)
		return corrupt("tail", err);
	if (channel->limit > capacity)
		return tmesh_fail(err, -EINVAL, "limit is %u, and the channel's capacity is %u",
				  channel->limit, capacity);
	if (!channel->limit)
		channel->limit = capacity;
	/* Clear the rest of a batch behind the first gap: its owner died before it published all of
	 * it. */
	for (uint64_t i = tail; i - head < capacity; i++) {
		atomic_uint_fast64_t *word = &channel_cell(channel, lane, i)->word;

		if (channel_published(atomic_load_explicit(word, memory_order_relaxed), i))
			atomic_store_explicit(word, last_lap(channel, i), memory_order_relaxed);
	}
	channel->lane = lane;
	channel->tail = tail;
	channel->seen = head;
	for (uint32_t i = 0; i < channel->shape.regions; i++)
		channel->sent_regions[i].until = head;
	for (uint32_t i = 0; i < channel->shape.layouts; i++)
		channel->sent_layouts[i].until = head;
	for (uint64_t i = head; i != tail; i++)
		leave_named(channel, i);
	tmesh_channel_store_inherit(channel);
	return 0;
}
