/* SPDX-License-Identifier: MIT */
/*
 * Declarations that the files of a channel share. docs/internals/channels.md explains the memory,
 * its order, and the effects of a death.
 *
 * All peers can write all of the shared memory at any time. So every word of it is atomic, is read
 * once and is checked before use. Constant words are copied when the channel is opened and never
 * read again.
 */
#ifndef TMESH_CHANNEL_INTERNAL_H
#define TMESH_CHANNEL_INTERNAL_H

#include "tensor_internal.h"
#include "wire.h"

#define CHANNEL_MAGIC 0x43304d54u /* "TM0C" */
#define CHANNEL_VERSION 3

#define CHANNEL_CAPACITY_MAX 65536u
#define CHANNEL_LANES_MAX 64u
#define CHANNEL_CONSUMERS_MAX 64u
#define CHANNEL_ENTRIES_MAX 1024u

/* The words on which ends sleep: an epoch above two flags that ask for a wake. */
#define CHANNEL_SLEEPS 1u
#define CHANNEL_POLLS 2u
#define CHANNEL_EPOCH 4u

/* State, written by the channel's maker */
#define CHANNEL_NO_PRODUCERS 1u
#define CHANNEL_NO_CONSUMERS 2u

struct channel_head {
	uint32_t magic;
	uint32_t version;
	uint32_t capacity;
	uint32_t lanes;
	uint32_t regions;
	uint32_t layouts;
	uint32_t flags;
	/* Seldom written, so every producer has it in its cache. */
	_Alignas(128) atomic_uint data; /* consumers sleep here */
	atomic_uint state;
};
#define CHANNEL_HEAD_BYTES 4096u
/* Flags of the head */
#define CHANNEL_POLLABLE 1u

/* A lane begins with these, then come its cells, regions and layouts. */
struct channel_lane {
	_Alignas(128) atomic_uint_fast64_t head; /* of the next message to be taken */
	atomic_uint room;			 /* the producer sleeps here */
	_Alignas(128) atomic_uint_fast64_t tail; /* where a later producer goes on, at least */
	_Alignas(128) char end[];
};

/* word: position + 1 above 8 bits of kind; the last word to be written */
#define CHANNEL_WORDS 7
struct channel_cell {
	_Alignas(64) atomic_uint_fast64_t word;
	atomic_uint_fast64_t payload[CHANNEL_WORDS];
};
#define CHANNEL_KIND_BITS 8
#define CHANNEL_KIND_TENSOR 64 /* and how many bytes are beside it; below: bytes alone */

/* Payload of a tensor: these, then the bytes beside it */
enum {
	CHANNEL_W_REGION, /* id */
	CHANNEL_W_OFFSET,
	CHANNEL_W_BYTES,
	CHANNEL_W_NAMES, /* entry of the region, of the layout (16 bits each), its version */
	CHANNEL_W_BESIDE,
};

/* Both tables are of words, so that a reader's copy may be torn but is never undefined. */
enum {
	CHANNEL_R_ID,
	CHANNEL_R_RIGHTS,
	CHANNEL_R_TOKEN,
	CHANNEL_R_WORDS = CHANNEL_R_TOKEN + TMESH_TOKEN_SIZE / 8,
};
struct channel_region {
	_Alignas(64) atomic_uint_fast64_t words[16];
};

enum {
	CHANNEL_L_VERSION,
	CHANNEL_L_TYPE, /* dtype, ndim (32 bits each) */
	CHANNEL_L_SHAPE,
	CHANNEL_L_STRIDES = CHANNEL_L_SHAPE + TMESH_MAX_DIMS,
	CHANNEL_L_WORDS = CHANNEL_L_STRIDES + TMESH_MAX_DIMS,
};
struct channel_layout {
	_Alignas(64) atomic_uint_fast64_t words[24];
};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "between processes");
_Static_assert(sizeof(atomic_uint) == 4, "a futex");
_Static_assert(sizeof(struct channel_cell) == 64, "one line of the cache");
_Static_assert(sizeof(struct channel_lane) == 256, "three pairs of lines, the last one's start");
_Static_assert(TMESH_TOKEN_SIZE % 8 == 0 && CHANNEL_R_WORDS <= 16, "fits");
_Static_assert(CHANNEL_L_WORDS <= 24, "fits");

/* The channel's shape, as this process checked it. */
struct channel_shape {
	uint32_t capacity;
	uint32_t lanes;
	uint32_t regions;
	uint32_t layouts;
	bool pollable;
	uint64_t lane_bytes;
	uint64_t bytes;
};

/* Sender: the entries of its lane's tables. An entry may be replaced once the head has reached
 * @until. All but @until changes with home->lock held. */
struct channel_sent_region {
	struct tmesh_region *region; /* a reference, or NULL */
	uint64_t until;
	atomic_bool stored; /* the lane's store has @fd */
	int fd;		    /* or -1; an entry of the lane's last sender has no @region */
	struct tmesh_wire_region wire;
};
struct channel_sent_layout {
	struct tmesh_layout layout;
	uint64_t until;
	uint32_t version; /* 0: none */
};
/* The words of a tensor's last message, to be sent again while both entries are unchanged. */
struct channel_sent_tensor {
	uint64_t serial; /* of the tensor; 0: none */
	uint64_t payload[CHANNEL_W_BESIDE];
	uint32_t region; /* entries */
	uint32_t layout;
	uint32_t version;
};

/* Receiver: regions, layouts and tensors that it has opened and checked. */
struct channel_known_region {
	struct tmesh_region *region; /* a reference, or NULL */
	uint64_t id;
	uint64_t refused;    /* the id of one that could not be opened */
	uint64_t refused_at; /* ... for the message at this place of its lane */
	int why;	     /* ... the error that the next receive reports; 0: none */
};
struct channel_known_layout {
	struct tmesh_layout layout;
	uint32_t version; /* 0: none */
	uint64_t bytes;
	int64_t low;
	int64_t high;
};
struct channel_known_tensor {
	struct tmesh_tensor *tensor; /* a reference, or NULL */
	uint32_t lane;
	uint64_t payload[CHANNEL_W_BESIDE]; /* that spoke of it, and was found good */
};
/* Either side remembers as many tensors. */
#define CHANNEL_TENSORS 64

/* A socket pair that holds descriptors: channel_store.c. -1: this handle does not have the end. */
struct channel_store {
	int put;
	int get;
};
/* The handles of a channel in one process share it. */
struct channel_shared_store {
	atomic_uint refs;
	struct channel_store ends;
};

/* A member of a channel made here. */
struct channel_member {
	int fd; /* -1: free */
	uint64_t watch;
	enum tmesh_channel_role role;
	uint32_t lane;
	bool withdrew; /* it never used the channel */
};

/* Socket pairs: one end is written to, the other polled. */
enum {
	CHANNEL_NOTIFY_DATA,
	CHANNEL_NOTIFY_ROOM,
	CHANNEL_NOTIFIERS,
};
struct channel_notifier {
	int signal;
	int wait;
};

/* Return whether the error may pass by the next try: the message stays. */
static inline bool channel_passes(int rc)
{
	return rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ETIMEDOUT ||
	       rc == -EINPROGRESS || rc == -EAGAIN;
}

/* Return the notifier that a handle of that role waits for; it signals the other one. */
static inline int channel_own_notifier(enum tmesh_channel_role role)
{
	return role == TMESH_CHANNEL_SEND ? CHANNEL_NOTIFY_ROOM : CHANNEL_NOTIFY_DATA;
}

static inline int channel_peer_notifier(enum tmesh_channel_role role)
{
	return role == TMESH_CHANNEL_SEND ? CHANNEL_NOTIFY_DATA : CHANNEL_NOTIFY_ROOM;
}

struct tmesh_channel {
	atomic_uint refs;
	uint32_t life; /* as fork.c counts */
	enum tmesh_channel_role role;
	bool maker;
	struct tmesh_ctx *ctx;	/* of the regions */
	struct tmesh_ctx *home; /* of the channel's own memory: always memfd */
	struct tmesh_region *memory;
	struct channel_head *head;
	struct channel_shape shape;
	uint32_t rights;
	uint32_t gone_mask; /* of head->state */
	atomic_uint over;   /* no peer is left; set by the watch */
	atomic_bool woken;  /* by tmesh_channel_wake() */
	bool polls;
	bool opens; /* regions, whenever a message needs one */
	uint64_t spin_max;
	uint64_t spin; /* adapts to the success of spinning */

	/* sender */
	struct channel_lane *lane;
	uint64_t tail;
	uint64_t seen;	/* the head, when last looked at */
	uint32_t limit; /* of messages under way */
	struct channel_sent_region *sent_regions;
	struct channel_sent_layout *sent_layouts;
	struct channel_sent_tensor *sent_tensors;
	uint32_t last_region;
	uint32_t last_layout;
	/* The position after the last message about a region that no store has. */
	atomic_uint_fast64_t owed_until;
	struct channel_store own; /* of its lane */
	uint64_t own_serial;
	bool own_stale; /* the lane's store has regions that were received */

	/* receiver */
	uint32_t next_lane;
	uint32_t max_regions;
	uint64_t max_bytes;
	uint32_t open_regions;
	uint64_t open_bytes;
	uint32_t hand; /* the region that is the next to go */
	struct channel_known_region *known_regions;
	struct channel_known_layout *known_layouts;
	struct channel_known_tensor *known_tensors;
	struct tmesh_question *questions; /* one for each lane: of the message that is next */
	int64_t patience_ns;		  /* of the call under way; negative: no end */
	uint64_t until;			  /* the same as a time; 0: not worked out yet */

	/* guarded by home->lock */
	struct channel_shared_store *store; /* of the channel: maker and receivers */
	uint64_t store_serial;		    /* maker */
	uint64_t left;			    /* maker: a bit for each lane whose sender has gone */
	bool leaving;			    /* sender: closed, and owes something */
	uint64_t leaving_until;		    /* the end of the wait for a first receiver */
	bool reported;			    /* the loss of its messages, which is reported once */
	struct tmesh_channel *next;
	int conn; /* to the maker, -1 in it */
	uint64_t watch;
	struct channel_notifier notifiers[CHANNEL_NOTIFIERS];
	struct channel_member *members;
	uint32_t producers; /* that have joined, the maker included */
	uint32_t consumers;
	uint64_t had_producers; /* that did not withdraw */
	uint64_t had_consumers;
};

#define CHANNEL_MEMBERS (CHANNEL_LANES_MAX + CHANNEL_CONSUMERS_MAX)

/* Receiver: when the call under way has to end. */
static inline uint64_t channel_until(struct tmesh_channel *channel)
{
	if (!channel->until)
		channel->until = channel->patience_ns < 0
					 ? UINT64_MAX
					 : tmesh_now_ns() + (uint64_t)channel->patience_ns;
	return channel->until;
}

static inline struct channel_lane *channel_lane(const struct tmesh_channel *channel, uint32_t lane)
{
	return (struct channel_lane *)((char *)channel->head + CHANNEL_HEAD_BYTES +
				       lane * channel->shape.lane_bytes);
}

static inline struct channel_cell *channel_cell(const struct tmesh_channel *channel,
						struct channel_lane *lane, uint64_t position)
{
	return (struct channel_cell *)lane->end + (position & (channel->shape.capacity - 1));
}

static inline struct channel_region *channel_regions(const struct tmesh_channel *channel,
						     struct channel_lane *lane)
{
	return (struct channel_region *)((struct channel_cell *)lane->end +
					 channel->shape.capacity);
}

static inline struct channel_layout *channel_layouts(const struct tmesh_channel *channel,
						     struct channel_lane *lane)
{
	return (struct channel_layout *)(channel_regions(channel, lane) + channel->shape.regions);
}

static inline uint64_t channel_word(uint64_t position, uint32_t kind)
{
	return (position + 1) << CHANNEL_KIND_BITS | kind;
}

static inline bool channel_published(uint64_t word, uint64_t position)
{
	return (word ^ channel_word(position, 0)) >> CHANNEL_KIND_BITS == 0;
}

static inline bool channel_gone(const struct tmesh_channel *channel)
{
	return atomic_load_explicit(&channel->over, memory_order_acquire) ||
	       (atomic_load_explicit(&channel->head->state, memory_order_acquire) &
		channel->gone_mask);
}

static inline void channel_copy_out(uint64_t *to, const atomic_uint_fast64_t *from, uint32_t words)
{
#pragma GCC unroll 8
	for (uint32_t i = 0; i < words; i++)
		to[i] = atomic_load_explicit(&from[i], memory_order_relaxed);
}

static inline void channel_copy_in(atomic_uint_fast64_t *to, const uint64_t *from, uint32_t words)
{
#pragma GCC unroll 8
	for (uint32_t i = 0; i < words; i++)
		atomic_store_explicit(&to[i], from[i], memory_order_relaxed);
}

/* channel_tables.c */

int tmesh_channel_tables_new(struct tmesh_channel *channel, struct tmesh_error *err);
void tmesh_channel_questions_drop(struct tmesh_channel *channel);
void tmesh_channel_tables_free(struct tmesh_channel *channel);
/* Sender: find the words that describe @tensor, with entries of the tables for its region and
 * layout. -EAGAIN: no entry is free. */
int tmesh_channel_name(struct tmesh_channel *channel, const struct tmesh_tensor *tensor,
		       struct channel_sent_tensor *sent, struct tmesh_error *err);
/* Sender: drop regions that were received and that nothing else here uses. */
void tmesh_channel_let_go(struct tmesh_channel *channel);
/* Receiver: close regions that their sender has released and that nothing else here uses. */
void tmesh_channel_close_returned(struct tmesh_channel *channel);
/* Receiver: check a payload, our copy of it, and make @known its tensor. */
int tmesh_channel_learn(struct tmesh_channel *channel, uint32_t lane,
			const uint64_t payload[CHANNEL_W_BESIDE],
			struct channel_known_tensor *known, struct tmesh_error *err);

/* Sender: put the words of a message about @tensor into the cell of the lane's @position. This runs
 * for each message. */
static inline int channel_describe(struct tmesh_channel *channel, const struct tmesh_tensor *tensor,
				   uint64_t position, atomic_uint_fast64_t *to,
				   struct tmesh_error *err)
{
	struct channel_sent_tensor *sent = &channel->sent_tensors[tensor->serial % CHANNEL_TENSORS];
	struct channel_sent_region *region = &channel->sent_regions[sent->region];
	struct channel_sent_layout *form = &channel->sent_layouts[sent->layout];

	if (sent->serial != tensor->serial || region->region != tensor->region ||
	    form->version != sent->version) {
		int rc = tmesh_channel_name(channel, tensor, sent, err);

		if (rc)
			return rc;
		region = &channel->sent_regions[sent->region];
		form = &channel->sent_layouts[sent->layout];
	}
	region->until = position + 1;
	form->until = position + 1;
	if (!atomic_load_explicit(&region->stored, memory_order_relaxed))
		atomic_store_explicit(&channel->owed_until, position + 1, memory_order_relaxed);
	channel_copy_in(to, sent->payload, CHANNEL_W_BESIDE);
	return 0;
}

/* Receiver: return the tensor that a payload, our copy of it, names; a reference in @out. A tensor
 * that passed the checks stays good. Closing a region ends its tensors, and a layout that replaces
 * another has another version. */
static inline int channel_resolve(struct tmesh_channel *channel, uint32_t lane,
				  const uint64_t payload[CHANNEL_W_BESIDE],
				  struct tmesh_tensor **out, struct tmesh_error *err)
{
	/* Ids are random, offsets mostly multiples of 256. */
	uint64_t mixed = payload[CHANNEL_W_REGION] + (payload[CHANNEL_W_OFFSET] >> 8) +
			 payload[CHANNEL_W_NAMES] + (payload[CHANNEL_W_NAMES] >> 16) + lane;
	struct channel_known_tensor *known = &channel->known_tensors[mixed % CHANNEL_TENSORS];
	const uint64_t *good = known->payload;

	/* Word by word: wide loads would have to wait for the narrow stores of our copy. */
	if (payload[0] != good[0] || payload[1] != good[1] || payload[2] != good[2] ||
	    payload[3] != good[3] || known->lane != lane || !known->tensor) {
		int rc = tmesh_channel_learn(channel, lane, payload, known, err);

		if (rc)
			return rc;
	}
	*out = tmesh_tensor_ref_own(known->tensor);
	return 0;
}

/* channel_store.c */

/* Return the number of a sender's lane. */
static inline uint32_t channel_own_lane(const struct tmesh_channel *channel)
{
	return (uint32_t)((uint64_t)((char *)channel->lane - (char *)channel_lane(channel, 0)) /
			  channel->shape.lane_bytes);
}

/* Make the channel's store: an empty one in the maker, else one with the end @get, which it owns
 * then. */
int tmesh_channel_store_new(struct tmesh_channel *channel, int get, struct tmesh_error *err);
/* Share the store of another handle in this process; home->lock is held. */
void tmesh_channel_store_share(struct tmesh_channel *channel, struct tmesh_channel *other);
/* Close this handle's ends of stores; home->lock is held, or no other thread has the handle. */
void tmesh_channel_stores_close(struct tmesh_channel *channel);
/* Close the stores without a lock in a forked child, where other handles may share them. */
void tmesh_channel_stores_forked(struct tmesh_channel *channel);
/* Maker: make a new store for a lane, with the regions that messages still name. Return whether
 * @ends has it, for the lane's next sender. Without it that sender must keep its regions until they
 * are received. home->lock is held. */
bool tmesh_channel_lane_store(struct tmesh_channel *channel, uint32_t lane,
			      struct channel_store *ends);
/* Maker and receivers: open an end of the lane's store in @fd. Return: 0, -ENOENT (the lane has
 * none), -EMFILE. */
int tmesh_channel_lane_end(const struct tmesh_channel *channel, uint32_t lane, int *fd);
/* Sender: put the region of an entry into the lane's store. */
void tmesh_channel_store_region(struct tmesh_channel *channel, uint32_t entry, uint32_t rights);
/* Sender: make the lane's store what the entries say; home->lock is held. Return: 0, or a negative
 * errno, and nothing has changed. */
int tmesh_channel_store_update(struct tmesh_channel *channel);
/* Sender: keep the regions of the lane's last sender in the store until they are received. */
void tmesh_channel_store_inherit(struct tmesh_channel *channel);
/* Receiver: open a region that no token opens. -ENOENT: the store does not have it. */
int tmesh_channel_store_open(struct tmesh_channel *channel, uint32_t lane, uint32_t entry,
			     uint64_t id, uint32_t rights, struct tmesh_region **out);
/* Receiver: empty the store once all senders are gone and everything was received. */
void tmesh_channel_store_end(struct tmesh_channel *channel);
/* Maker: remove received regions from the store of a lane without a sender; home->lock is held.
 * Return whether any are left there. */
bool tmesh_channel_settle(struct tmesh_channel *channel, uint32_t lane);

/* channel_wait.c */

/* Wake the ends that sleep or poll on @word; their notifier is @notifier. */
void tmesh_channel_tell(struct tmesh_channel *channel, atomic_uint *word, int notifier);
/* Wake all ends from the watch, because a peer has gone. */
void tmesh_channel_tell_all(struct tmesh_channel *channel);

static inline void channel_tell(struct tmesh_channel *channel, atomic_uint *word, int notifier)
{
	if (__builtin_expect(atomic_load(word) & (CHANNEL_SLEEPS | CHANNEL_POLLS), 0))
		tmesh_channel_tell(channel, word, notifier);
}

/* channel_ring.c: put or take as many as possible now. Return a number of messages, or -EAGAIN, or
 * another negative errno. */

int tmesh_channel_put(struct tmesh_channel *channel, const struct tmesh_message *messages,
		      uint32_t count, struct tmesh_error *err);
int tmesh_channel_put_one(struct tmesh_channel *channel, const struct tmesh_message *message,
			  struct tmesh_error *err);
int tmesh_channel_pop_one(struct tmesh_channel *channel, struct tmesh_message *message,
			  struct tmesh_error *err);
int tmesh_channel_pop(struct tmesh_channel *channel, struct tmesh_message *messages, uint32_t room,
		      struct tmesh_error *err);
/* Open the region of the message at each lane's head. */
int tmesh_channel_look_ahead(struct tmesh_channel *channel, struct tmesh_error *err);
/* Return whether putting or taking may succeed, without doing it. */
bool tmesh_channel_ready(struct tmesh_channel *channel);
/* Sender: look at the head again. Return 0, or -EPROTO for an impossible one; then the lane counts
 * as full. */
int tmesh_channel_look(struct tmesh_channel *channel, struct tmesh_error *err);
/* Count the messages of all lanes that no receiver has taken. For a sender, count the messages that
 * it may still send. Both only read the channel's memory, and may run beside a thread that uses the
 * handle. */
int tmesh_channel_waiting(struct tmesh_channel *channel, uint64_t *out, struct tmesh_error *err);
uint32_t tmesh_channel_room(struct tmesh_channel *channel);
/* Go on as a new producer of a lane where the last one ended. */
int tmesh_channel_resume(struct tmesh_channel *channel, uint32_t lane, struct tmesh_error *err);

/* channel_members.c */

/* Make a channel's handle known to its context, whose lock is held. @err as usual. */
int tmesh_channel_watch(struct tmesh_channel *channel, struct tmesh_error *err);
void tmesh_channel_leave(struct tmesh_channel *channel);
/* Drop a reference, NULL or one of the context's. The watch releases the memory, because a sender
 * may be a thread that must not wait. */
void tmesh_channel_drop_later(struct tmesh_channel *channel, struct tmesh_region *region);
/* The last reference has gone. Return whether the watch frees the channel, once all that it sent is
 * received. */
bool tmesh_channel_close_later(struct tmesh_channel *channel);
/* Tell the maker that this handle, which may have joined, was not opened after all. */
void tmesh_channel_withdraw(struct tmesh_channel *channel);
/* channel.c */
void tmesh_channel_free(struct tmesh_channel *channel);
int tmesh_channel_members_new(struct tmesh_channel *channel, struct tmesh_error *err);

#endif /* TMESH_CHANNEL_INTERNAL_H */
