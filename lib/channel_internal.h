/* SPDX-License-Identifier: MIT */
/*
 * What the files of a channel share. docs/channels.md explains the memory, its order, and what
 * a death does to it.
 *
 * All peers can write all of the shared memory at any time. So every word of it is atomic, is
 * read once, and is checked before it means anything; what does not change is copied when the
 * channel is opened and never read again.
 */
#ifndef TMESH_CHANNEL_INTERNAL_H
#define TMESH_CHANNEL_INTERNAL_H

#include "tensor_internal.h"
#include "wire.h"

#define CHANNEL_MAGIC 0x43304d54u /* "TM0C" */
#define CHANNEL_VERSION 2

#define CHANNEL_SLOTS_MAX 65536u
#define CHANNEL_LANES_MAX 64u
#define CHANNEL_CONSUMERS_MAX 64u
#define CHANNEL_ENTRIES_MAX 1024u

/* The words on which ends sleep: an epoch above two flags of those who want to be told. */
#define CHANNEL_SLEEPS 1u
#define CHANNEL_POLLS 2u
#define CHANNEL_EPOCH 4u

/* State, written by the channel's maker */
#define CHANNEL_NO_PRODUCERS 1u
#define CHANNEL_NO_CONSUMERS 2u
#define CHANNEL_MAKER_ALONE 4u /* nobody but the maker receives */

struct channel_head {
	uint32_t magic;
	uint32_t version;
	uint32_t slots;
	uint32_t lanes;
	uint32_t regions;
	uint32_t layouts;
	/* Seldom written, so every producer has it in its cache. */
	_Alignas(128) atomic_uint data; /* consumers sleep here */
	atomic_uint state;
};
#define CHANNEL_HEAD_BYTES 4096u

/* A lane begins with these, then come its slots, regions and layouts. */
struct channel_lane {
	_Alignas(128) atomic_uint_fast64_t head; /* of the next message to be taken */
	atomic_uint room;			 /* the producer sleeps here */
	_Alignas(128) atomic_uint_fast64_t tail; /* where a later producer goes on, at least */
	_Alignas(128) char end[];
};

/* word: position + 1 above 8 bits of kind; the last word to be written */
#define CHANNEL_WORDS 7
struct channel_slot {
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
	CHANNEL_R_WITH_MAKER =
		CHANNEL_R_TOKEN + TMESH_TOKEN_SIZE / 8, /* id, if it alone was handed it */
	CHANNEL_R_WORDS,
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

_Static_assert(TMESH_JOIN_FDS >= 3 + CHANNEL_LANES_MAX, "a shelf of each lane");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "between processes");
_Static_assert(sizeof(atomic_uint) == 4, "a futex");
_Static_assert(sizeof(struct channel_slot) == 64, "one line of the cache");
_Static_assert(sizeof(struct channel_lane) == 256, "three pairs of lines, the last one's start");
_Static_assert(TMESH_TOKEN_SIZE % 8 == 0 && CHANNEL_R_WORDS <= 16, "fits");
_Static_assert(CHANNEL_L_WORDS <= 24, "fits");

/* What the channel was made with, as this process checked it. */
struct channel_shape {
	uint32_t slots;
	uint32_t lanes;
	uint32_t regions;
	uint32_t layouts;
	uint64_t lane_bytes;
	uint64_t bytes;
};

/* Who has a region that was sent, whatever becomes of its sender. */
enum channel_held {
	CHANNEL_HELD_HERE,  /* nobody */
	CHANNEL_HELD_THERE, /* the channel's handed_to */
	CHANNEL_HELD_SHELF, /* whoever has the shelf */
	CHANNEL_HELD_WAYS,
};

/* Sender: what stands in its lane's tables. An entry may be written anew once the head has
 * reached @until. All but @until changes with home->lock held. */
struct channel_sent_region {
	struct tmesh_region *region; /* a reference, or NULL */
	uint64_t until;
	atomic_uint held;
	int fd; /* for the shelf, or -1; also of one that an earlier sender */
	struct tmesh_wire_region wire; /* of this lane has put there, which has no @region */
};
struct channel_sent_layout {
	struct tmesh_layout layout;
	uint64_t until;
	uint32_t version; /* 0: none */
};
/* ... and what was said of a tensor, to be said again while both entries are as they were. */
struct channel_sent_tensor {
	uint64_t serial; /* of the tensor; 0: none */
	uint64_t payload[CHANNEL_W_BESIDE];
	uint32_t region; /* entries */
	uint32_t layout;
	uint32_t version;
};

/* Receiver: what it has opened and checked. */
struct channel_known_region {
	struct tmesh_region *region; /* a reference, or NULL */
	uint64_t id;
	bool handed;	  /* its sender counts on our having it */
	uint64_t refused; /* the id of one that could not be opened */
	int why;	  /* ... which the next receive says; 0: nothing was refused */
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
/* ... and what it was handed and has not opened yet: channel_hand.c */
struct channel_handed {
	struct tmesh_wire_region wire;
	int fds[1];
	unsigned int count; /* 0: nothing */
	tmesh_giver giver;
};
/* Either side remembers as many tensors. */
#define CHANNEL_TENSORS 64

/* One for each lane: channel_shelf.c. -1 is an end that this handle does not have. */
struct channel_shelf {
	int put;
	int get;
	bool left; /* maker: the lane's sender has gone */
};

/* Of a channel made here: who has joined. */
struct channel_member {
	int fd; /* -1: free */
	uint64_t watch;
	enum tmesh_channel_role role;
	uint32_t lane;
};

/* Socket pairs: one end is rung, the other polled. */
enum {
	CHANNEL_BELL_DATA,
	CHANNEL_BELL_ROOM,
	CHANNEL_BELLS,
};
struct channel_bell {
	int ring;
	int wait;
};

/* What may be otherwise next time: the message stays. */
static inline bool channel_passes(int rc)
{
	return rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ETIMEDOUT ||
	       rc == -EINPROGRESS;
}

/* The bell by which a handle of that role is told; the other one it rings itself. */
static inline int channel_own_bell(enum tmesh_channel_role role)
{
	return role == TMESH_CHANNEL_SEND ? CHANNEL_BELL_ROOM : CHANNEL_BELL_DATA;
}

static inline int channel_far_bell(enum tmesh_channel_role role)
{
	return role == TMESH_CHANNEL_SEND ? CHANNEL_BELL_DATA : CHANNEL_BELL_ROOM;
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
	atomic_uint over;   /* nobody is left; told by the watch */
	atomic_bool woken;  /* by tmesh_channel_wake() */
	bool polls;
	bool opens; /* regions, whenever a message needs one */
	uint64_t spin_max;
	uint64_t spin; /* what it is worth at present */

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
	/* Behind the last message about a region that is held in this way. */
	atomic_uint_fast64_t behind[CHANNEL_HELD_WAYS];
	uint64_t handed_to; /* who has what is held there; under home->lock */
	uint64_t shelf_serial;
	bool shelf_stale; /* something lies there for nothing */

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

	/* guarded by home->lock */
	struct channel_handed *handed; /* receiver */
	struct channel_shelf *shelves; /* of all lanes */
	bool parting;		       /* sender: closed, and owes something */
	uint64_t parting_until;	       /* where nobody comes to receive it */
	struct tmesh_channel *next;
	int conn; /* to the maker, -1 in it */
	uint64_t watch;
	struct channel_bell bells[CHANNEL_BELLS];
	struct channel_member *members;
	uint32_t producers; /* that have joined, the maker included */
	uint32_t consumers;
	bool had_producer;
	bool had_consumer;
};

#define CHANNEL_MEMBERS (CHANNEL_LANES_MAX + CHANNEL_CONSUMERS_MAX)

static inline struct channel_lane *channel_lane(const struct tmesh_channel *channel, uint32_t lane)
{
	return (struct channel_lane *)((char *)channel->head + CHANNEL_HEAD_BYTES +
				       lane * channel->shape.lane_bytes);
}

static inline struct channel_slot *channel_slot(const struct tmesh_channel *channel,
						struct channel_lane *lane, uint64_t position)
{
	return (struct channel_slot *)lane->end + (position & (channel->shape.slots - 1));
}

static inline struct channel_region *channel_regions(const struct tmesh_channel *channel,
						     struct channel_lane *lane)
{
	return (struct channel_region *)((struct channel_slot *)lane->end + channel->shape.slots);
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
void tmesh_channel_tables_free(struct tmesh_channel *channel);
/* Sender: work out what to say of @tensor, with entries of the tables for what it needs. -EAGAIN:
 * no entry is free. */
int tmesh_channel_name(struct tmesh_channel *channel, const struct tmesh_tensor *tensor,
		       struct channel_sent_tensor *sent, struct tmesh_error *err);
/* Sender: drop what was received, and what nobody else here holds. */
void tmesh_channel_let_go(struct tmesh_channel *channel);
/* Receiver: check a payload, our copy of it, and make @known the tensor that it speaks of. */
int tmesh_channel_learn(struct tmesh_channel *channel, uint32_t lane,
			const uint64_t payload[CHANNEL_W_BESIDE],
			struct channel_known_tensor *known, struct tmesh_error *err);

/* What goes on here for each message. Sender: put the words of a message about @tensor into the
 * slot of the lane's @position. */
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
	atomic_store_explicit(
		&channel->behind[atomic_load_explicit(&region->held, memory_order_relaxed)],
		position + 1, memory_order_relaxed);
	channel_copy_in(to, sent->payload, CHANNEL_W_BESIDE);
	return 0;
}

/* Receiver: the tensor that a payload, our copy of it, speaks of; a reference in @out. What was
 * found good once stays so: a region that is closed takes its tensors along, and a layout that
 * takes another one's place has another version. */
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

/* channel_hand.c */

int tmesh_channel_hands_new(struct tmesh_channel *channel, struct tmesh_error *err);
/* Receiver: give up what was handed over and not opened. */
void tmesh_channel_hands_drop(struct tmesh_channel *channel);
void tmesh_channel_hand_drop(struct channel_handed *handed);
/* What is said of a region beside its descriptor; @place: lane and entry. */
struct tmesh_wire_region tmesh_channel_wire(const struct tmesh_region *region, uint32_t rights,
					    uint32_t place);
/* Sender: give the region of an entry to the only receiver now, or lay it on the shelf. */
void tmesh_channel_hand_over(struct tmesh_channel *channel, uint32_t entry, uint32_t rights);
/* Receiver: take what came by a connection; home->lock is held. */
void tmesh_channel_collect(struct tmesh_channel *channel, int conn);
/* Receiver: open a region that was handed over. -ENOENT: it was not. */
int tmesh_channel_handed(struct tmesh_channel *channel, uint32_t lane, uint32_t entry, uint64_t id,
			 uint32_t rights, struct tmesh_region **out);
/* Receiver: what was handed over, and is closed to make room, lies in its place again while the
 * sender has it, who does not hold it for us any more: it costs nobody memory. */
void tmesh_channel_hand_back(struct tmesh_channel *channel, uint32_t place);
/* Sender: something was sent that only this process can give its receiver; home->lock is held. */
bool tmesh_channel_owes(const struct tmesh_channel *channel);

/* channel_shelf.c */

static inline struct channel_shelf *channel_own_shelf(const struct tmesh_channel *channel)
{
	uint64_t at = (uint64_t)((char *)channel->lane - (char *)channel_lane(channel, 0));

	return &channel->shelves[at / channel->shape.lane_bytes];
}

int tmesh_channel_shelves_new(struct tmesh_channel *channel, struct tmesh_error *err);
/* home->lock is held, or nobody else knows the handle. */
void tmesh_channel_shelves_close(struct tmesh_channel *channel);
/* Maker: the ends for somebody who joins, which stay its own. Return: how many. */
unsigned int tmesh_channel_shelf_ends(const struct tmesh_channel *channel,
				      enum tmesh_channel_role role, uint32_t lane, int *fds);
/* Who has joined: as many as that, which are its own now. */
void tmesh_channel_shelves_take(struct tmesh_channel *channel, uint32_t lane, const int *fds);
/* Sender: make the shelf what the entries say; home->lock is held. Return: 0, or a negative errno
 * and everything is as it was. */
int tmesh_channel_shelve(struct tmesh_channel *channel);
/* Sender: what lies there of an earlier one goes on lying there until it is received. */
void tmesh_channel_shelf_inherit(struct tmesh_channel *channel);
/* Receiver: open a region that no token opens. -ENOENT: it is not there. */
int tmesh_channel_shelf_open(struct tmesh_channel *channel, uint32_t lane, uint32_t entry,
			     uint64_t id, uint32_t rights, struct tmesh_region **out);
/* Receiver: nobody sends any more, and everything was received. */
void tmesh_channel_shelves_end(struct tmesh_channel *channel);

/* All with home->lock held. Maker that sends: another receiver comes; what the only one was handed
 * is for all. */
void tmesh_channel_shelve_handed(struct tmesh_channel *channel);
/* Maker: a lane has no sender; what was received does not lie on its shelf, and where receiving is
 * @shared, what this process was handed alone does. Return: whether to look again. */
bool tmesh_channel_settle(struct tmesh_channel *channel, uint32_t lane, bool shared);
/* ... for all lanes, and let go of what this process has for nothing. */
bool tmesh_channel_tidy(struct tmesh_channel *channel);

/* channel_wait.c */

/* Tell those who sleep or poll on @word; their bell is @bell. */
void tmesh_channel_tell(struct tmesh_channel *channel, atomic_uint *word, int bell);
/* The same from the watch, to everybody: somebody has gone. */
void tmesh_channel_tell_all(struct tmesh_channel *channel);

static inline void channel_tell(struct tmesh_channel *channel, atomic_uint *word, int bell)
{
	if (__builtin_expect(atomic_load(word) & (CHANNEL_SLEEPS | CHANNEL_POLLS), 0))
		tmesh_channel_tell(channel, word, bell);
}

/* channel_ring.c: each does what can be done now. Return: a number of messages, or -EAGAIN, or
 * another negative errno. */

int tmesh_channel_put(struct tmesh_channel *channel, const struct tmesh_message *messages,
		      uint32_t count, struct tmesh_error *err);
int tmesh_channel_put_one(struct tmesh_channel *channel, const struct tmesh_message *message,
			  struct tmesh_error *err);
int tmesh_channel_take_one(struct tmesh_channel *channel, struct tmesh_message *message,
			   struct tmesh_error *err);
int tmesh_channel_take(struct tmesh_channel *channel, struct tmesh_message *messages, uint32_t room,
		       struct tmesh_error *err);
/* Open what the message at each lane's head needs. */
int tmesh_channel_look_ahead(struct tmesh_channel *channel, struct tmesh_error *err);
/* Without doing it: putting or taking may be worth a try. */
bool tmesh_channel_ready(struct tmesh_channel *channel);
/* Sender: look at the head anew. 0, or -EPROTO for one that cannot be; then the lane counts as
 * full. */
int tmesh_channel_look(struct tmesh_channel *channel, struct tmesh_error *err);
/* Messages of all lanes that nobody has taken, and of a sender how many more it may have under way.
 * Both only read the channel's memory, also beside a thread that uses the handle. */
int tmesh_channel_waiting(struct tmesh_channel *channel, uint64_t *out, struct tmesh_error *err);
uint32_t tmesh_channel_room(struct tmesh_channel *channel);
/* A new producer of a lane goes on where the last one ended. */
int tmesh_channel_resume(struct tmesh_channel *channel, uint32_t lane, struct tmesh_error *err);

/* channel_members.c */

/* Make a channel's handle known to its context, whose lock is held. @err as usual. */
int tmesh_channel_watch(struct tmesh_channel *channel, struct tmesh_error *err);
void tmesh_channel_leave(struct tmesh_channel *channel);
/* Drop a reference, NULL or one of the context's; what that gives back is given back by the watch:
 * a sender may be a thread that must not wait. */
void tmesh_channel_drop_later(struct tmesh_channel *channel, struct tmesh_region *region);
/* The last reference has gone. True: the watch frees it once it owes nothing. */
bool tmesh_channel_part(struct tmesh_channel *channel);
/* channel.c */
void tmesh_channel_free(struct tmesh_channel *channel);
int tmesh_channel_members_new(struct tmesh_channel *channel, struct tmesh_error *err);

#endif /* TMESH_CHANNEL_INTERNAL_H */
