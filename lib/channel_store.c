// SPDX-License-Identifier: MIT
/*
 * A region that was sent stays receivable after its sender's death, because a store has its
 * descriptor. A store is a socket pair in which one datagram lies, with a record and a descriptor
 * for each item. A reader looks at the datagram without taking it (MSG_PEEK). A writer puts the
 * next one behind it and then takes the old one away, so a reader finds all items at any time.
 *
 * Each sender writes its lane's store: the regions that messages of the lane may still name. The
 * maker writes the channel's store: an end of each lane's store. Receivers have an end of the
 * channel's store alone, and look there when a region's token opens nothing any more. So the
 * number of a process's descriptors does not grow with the lanes. The kernel keeps what was sent
 * as long as any process has the channel's store.
 */
#include "channel_internal.h"
#include "common/fd_passing.h"
#include "common/foreign.h"
#include "memfd.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC_STORE 0x46304d54u /* "TM0F" */
#define MAGIC_ITEM 0x4f304d54u	/* "TM0O"; a region's message else, of which pad is a place */
/* The entry in an item's place that stands for the store of the lane. */
#define LANE_STORE 0xffffu
/* The kernel takes so many descriptors with one message (SCM_MAX_FD). */
#define MOST ((unsigned int)TMESH_FDS_MOST)
/* There are more datagrams only if a process that is no writer put them there. */
#define LOOKS 64

struct store_head {
	uint32_t magic;
	uint32_t version;
	uint32_t count;
	uint32_t pad;
	uint64_t serial; /* another one for each datagram of a writer */
};

struct store_message {
	struct store_head head;
	struct tmesh_wire_region items[MOST]; /* pad: lane and entry */
};
_Static_assert(sizeof(struct store_head) == 24, "wire format");

/* A datagram with its descriptors. */
struct store_content {
	struct store_message message;
	int fds[MOST];
};

union store_control {
	struct cmsghdr align;
	/* Each process with the socket can set its options. */
	char room[CMSG_SPACE(MOST * sizeof(int)) + TMESH_FDS_BESIDE];
};

static const struct channel_store no_store = {-1, -1};

static void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void close_ends(struct channel_store *store)
{
	close_end(&store->put);
	close_end(&store->get);
}

static int make_pair(struct channel_store *store)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return -errno;
	*store = (struct channel_store){.put = ends[0], .get = ends[1]};
	/* Nothing goes the other way. */
	shutdown(ends[1], SHUT_WR);
	return 0;
}

int tmesh_channel_store_new(struct tmesh_channel *channel, int get, struct tmesh_error *err)
{
	struct channel_shared_store *store = calloc(1, sizeof(*store));
	int rc = store ? 0 : -ENOMEM;

	if (rc) {
		close_end(&get);
		return tmesh_fail(err, rc, "no memory for a channel's store of descriptors");
	}
	atomic_init(&store->refs, 1);
	store->ends = (struct channel_store){.put = -1, .get = get};
	channel->store = store;
	if (get >= 0 || make_pair(&store->ends) == 0)
		return 0;
	return tmesh_fail_errno(err, "making a socket pair to store a channel's descriptors");
}

void tmesh_channel_store_share(struct tmesh_channel *channel, struct tmesh_channel *other)
{
	atomic_fetch_add(&other->store->refs, 1);
	channel->store = other->store;
}

void tmesh_channel_stores_close(struct tmesh_channel *channel)
{
	struct channel_shared_store *store = channel->store;

	close_ends(&channel->own);
	channel->store = NULL;
	if (!store || atomic_fetch_sub(&store->refs, 1) != 1)
		return;
	close_ends(&store->ends);
	free(store);
}

void tmesh_channel_stores_forked(struct tmesh_channel *channel)
{
	close_ends(&channel->own);
	if (channel->store)
		close_ends(&channel->store->ends);
}

/* Return the giver of a lane's store, which is not known. It counts as one more process, so that it
 * does not keep receivers from the channel's store. */
static tmesh_giver lane_giver(int lane_store)
{
	return tmesh_giver_at(lane_store) | 1u << 31;
}

/* Look at the front datagram. Return: its size, or a negative errno. @count: of @fds, which are the
 * caller's. @cut: it has more of them. */
static ssize_t store_look(int socket, tmesh_giver giver, struct store_content *content,
			  unsigned int *count, bool *cut)
{
	struct iovec part = {&content->message, sizeof(content->message)};
	union store_control control;
	bool takes = count && tmesh_foreign_room(giver);
	struct msghdr msg = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = takes ? control.room : NULL,
		.msg_controllen = takes ? sizeof(control.room) : 0,
	};
	ssize_t got;

	do
		got = recvmsg(socket, &msg, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		return got ? -errno : -EPIPE;
	if (cut)
		*cut = msg.msg_flags & MSG_CTRUNC;
	for (struct cmsghdr *c = takes ? CMSG_FIRSTHDR(&msg) : NULL; c; c = CMSG_NXTHDR(&msg, c)) {
		size_t came = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (tmesh_fds_close_process(c) || c->cmsg_level != SOL_SOCKET ||
		    c->cmsg_type != SCM_RIGHTS)
			continue;
		/* The room has one message's, and the kernel sends no second one along. */
		memcpy(content->fds, CMSG_DATA(c), came * sizeof(int));
		*count = (unsigned int)came;
	}
	return got;
}

/* Return whether a writer of tmesh wrote the datagram. */
static bool is_sound(const struct store_message *message, ssize_t bytes)
{
	const struct store_head *head = &message->head;

	return bytes >= (ssize_t)sizeof(*head) && head->magic == MAGIC_STORE &&
	       head->version == TMESH_WIRE_VERSION && head->count <= MOST &&
	       (size_t)bytes == sizeof(*head) + (size_t)head->count * sizeof(message->items[0]);
}

/* Take a datagram away without its descriptors, which the kernel closes. */
static bool take_away(int socket)
{
	char byte;
	ssize_t got;

	do
		got = recv(socket, &byte, 1, MSG_DONTWAIT | MSG_TRUNC);
	while (got < 0 && errno == EINTR);
	return got > 0;
}

static void empty(const struct channel_store *store)
{
	for (int i = 0; i < LOOKS && take_away(store->get); i++)
		;
}

static int store_put(int socket, struct store_content *content)
{
	const struct store_message *message = &content->message;
	size_t bytes =
		sizeof(message->head) + (size_t)message->head.count * sizeof(message->items[0]);
	ssize_t sent = tmesh_fds_send(socket, message, bytes, content->fds, message->head.count,
				      MSG_DONTWAIT);

	return sent < 0 ? (int)sent : 0;
}

/* Replace the store's datagram by a new one. The old one is removed after the new one is there. */
static int replace(const struct channel_store *store, struct store_content *content)
{
	struct store_head *head = &content->message.head;
	struct store_content front;
	int rc;

	head->magic = MAGIC_STORE;
	head->version = TMESH_WIRE_VERSION;
	head->pad = 0;
	if (!head->count) {
		empty(store);
		return 0;
	}
	rc = store_put(store->put, content);
	for (int i = 0; !rc && i < LOOKS; i++) {
		ssize_t got = store_look(store->get, TMESH_GIVER_UNKNOWN, &front, NULL, NULL);

		if (got < 0 ||
		    (is_sound(&front.message, got) && front.message.head.serial == head->serial))
			break;
		take_away(store->get);
	}
	return rc;
}

/* Find the item with the id and the place of @wire; all other descriptors are closed. */
static int store_find_region(int socket, tmesh_giver giver, struct tmesh_wire_region *wire, int *fd)
{
	struct store_content content;
	unsigned int count = 0;
	int rc = -ENOENT;
	ssize_t got = store_look(socket, giver, &content, &count, NULL);

	if (got > 0 && is_sound(&content.message, got)) {
		for (uint32_t i = 0; rc && i < content.message.head.count; i++) {
			const struct tmesh_wire_region *item = &content.message.items[i];

			if (item->id != wire->id || item->pad != wire->pad)
				continue;
			/* The kernel leaves out descriptors for which this process has no number.
			 */
			rc = i < count ? 0 : -EMFILE;
			if (rc)
				continue;
			*wire = *item;
			*fd = content.fds[i];
			content.fds[i] = -1;
		}
	}
	for (unsigned int i = 0; i < count; i++)
		if (content.fds[i] >= 0)
			tmesh_foreign_close(content.fds[i], giver);
	return rc;
}

static struct tmesh_wire_region lane_item(uint32_t lane)
{
	return (struct tmesh_wire_region){.magic = MAGIC_ITEM, .pad = lane << 16 | LANE_STORE};
}

int tmesh_channel_lane_end(const struct tmesh_channel *channel, uint32_t lane, int *fd)
{
	struct tmesh_wire_region wire = lane_item(lane);
	tmesh_giver maker;
	int rc;

	if (!channel->store)
		return -ENOENT;
	maker = tmesh_giver_at(channel->store->ends.get);
	rc = store_find_region(channel->store->ends.get, maker, &wire, fd);
	/* Reading any other file could block on the process that serves it. */
	if (!rc && !tmesh_foreign_is_unix_socket(*fd)) {
		tmesh_foreign_close(*fd, maker);
		rc = -ENOENT;
	}
	return rc;
}

/* Maker: make @get, which stays the caller's, the store of the lane in the channel's store; -1: the
 * lane has none. */
static int set_lane(struct tmesh_channel *channel, uint32_t lane, int get)
{
	const struct channel_store *store = &channel->store->ends;
	struct tmesh_wire_region item = lane_item(lane);
	struct store_content content;
	unsigned int count = 0, kept = 0;
	tmesh_giver maker = tmesh_giver_at(store->get);
	ssize_t got = store_look(store->get, maker, &content, &count, NULL);
	bool sound = got > 0 && is_sound(&content.message, got);
	int rc = 0, own = -1;

	for (unsigned int i = 0; i < count; i++) {
		if (!sound || content.message.items[i].pad == item.pad) {
			tmesh_foreign_close(content.fds[i], maker);
			continue;
		}
		content.message.items[kept] = content.message.items[i];
		content.fds[kept++] = content.fds[i];
	}
	/* Without numbers for all of them none may be lost. */
	if (sound && content.message.head.count != count)
		rc = -EMFILE;
	if (!rc && get >= 0 && kept == MOST)
		rc = -ENOBUFS;
	if (!rc && get >= 0) {
		own = (int)kept;
		content.message.items[kept] = item;
		content.fds[kept++] = get;
	}
	content.message.head.serial = ++channel->store_serial;
	content.message.head.count = kept;
	if (!rc)
		rc = replace(store, &content);
	for (int i = 0; i < (int)kept; i++)
		if (i != own)
			tmesh_foreign_close(content.fds[i], maker);
	return rc;
}

/* Maker: make a store for a lane with @content, whose descriptors stay the caller's. */
static int new_lane(struct tmesh_channel *channel, uint32_t lane, struct store_content *content,
		    struct channel_store *ends)
{
	int rc = make_pair(ends);

	if (rc)
		return rc;
	rc = replace(ends, content);
	if (!rc)
		rc = set_lane(channel, lane, ends->get);
	if (rc)
		close_ends(ends);
	return rc;
}

static struct tmesh_wire_region region_item(const struct tmesh_region *region, uint32_t rights,
					    uint32_t place)
{
	return (struct tmesh_wire_region){
		.magic = MAGIC_ITEM,
		.version = TMESH_WIRE_VERSION,
		.backend = region->ctx->ops->backend,
		.rights = rights,
		.kind = region->kind,
		.pad = place,
		.id = region->id,
		.bytes = region->bytes,
	};
}

int tmesh_channel_store_update(struct tmesh_channel *channel)
{
	struct store_content content = {.message.head.serial = channel->own_serial + 1};
	uint32_t count = 0;
	int rc = 0;

	for (uint32_t i = 0; i < channel->shape.regions; i++) {
		const struct channel_sent_region *sent = &channel->sent_regions[i];

		if (!atomic_load_explicit(&sent->stored, memory_order_relaxed))
			continue;
		if (count == MOST)
			return -ENOBUFS;
		content.message.items[count] = sent->wire;
		content.fds[count++] = sent->fd;
	}
	content.message.head.count = count;
	if (channel->own.put >= 0)
		rc = replace(&channel->own, &content);
	else if (count)
		rc = channel->maker
			     ? new_lane(channel, channel_own_lane(channel), &content, &channel->own)
			     : -ENOBUFS;
	if (!rc) {
		channel->own_serial++;
		channel->own_stale = false;
	}
	return rc;
}

void tmesh_channel_store_region(struct tmesh_channel *channel, uint32_t entry, uint32_t rights)
{
	struct channel_sent_region *sent = &channel->sent_regions[entry];
	struct tmesh_region *region = sent->region;
	bool stored = false;
	int fd;

	sent->wire = region_item(region, rights, channel_own_lane(channel) << 16 | entry);
	if (!(region->kind & TMESH_KIND_OPAQUE) &&
	    !region->ctx->ops->handle_fd(region, rights, &fd, NULL)) {
		pthread_mutex_lock(&channel->home->lock);
		sent->fd = fd;
		atomic_store(&sent->stored, true);
		stored = tmesh_channel_store_update(channel) == 0;
		if (!stored) {
			atomic_store(&sent->stored, false);
			close_end(&sent->fd);
		}
		pthread_mutex_unlock(&channel->home->lock);
	}
	if (!stored)
		tmesh_count(channel->ctx, COUNT_SENT_ALONE, 1);
}

/* Make a handle of our own, since other processes may share the stored one. */
static int open_own(struct tmesh_channel *channel, struct tmesh_wire_region *wire, int fd,
		    tmesh_giver giver, uint32_t rights, struct tmesh_region **out)
{
	struct tmesh_region *shared = NULL;
	struct tmesh_region *region = tmesh_region_new(channel->ctx, NULL);
	int rc;

	if (!region || tmesh_foreign_may_be_served(fd)) {
		tmesh_foreign_close(fd, giver);
		return region ? tmesh_region_opened(region, -EPROTO, &shared) : -ENOMEM;
	}
	wire->magic = TMESH_MAGIC_REGION;
	wire->pad = 0;
	rc = tmesh_region_opened(region, channel->ctx->ops->adopt(region, &fd, wire, NULL),
				 &shared);
	if (!rc) {
		rc = tmesh_region_derive(shared, rights, out, NULL);
		tmesh_region_unref(shared);
	}
	return rc;
}

int tmesh_channel_store_open(struct tmesh_channel *channel, uint32_t lane, uint32_t entry,
			     uint64_t id, uint32_t rights, struct tmesh_region **out)
{
	struct tmesh_wire_region wire = {.id = id, .pad = lane << 16 | entry};
	tmesh_giver giver;
	int store, fd = -1;
	int rc = tmesh_channel_lane_end(channel, lane, &store);

	if (rc)
		return rc;
	giver = lane_giver(store);
	rc = store_find_region(store, giver, &wire, &fd);
	close(store);
	if (rc)
		return rc;
	if (wire.rights != rights || wire.backend != channel->ctx->ops->backend ||
	    wire.kind & TMESH_KIND_OPAQUE) {
		tmesh_foreign_close(fd, giver);
		return -ENOENT;
	}
	return open_own(channel, &wire, fd, giver, rights, out);
}

/* Return whether it can be a region. A former sender can store any file; the module's handles have
 * no type. */
static bool is_region(int fd)
{
	struct tmesh_foreign_file file;

	return tmesh_foreign_is_memory(fd) || (tmesh_foreign_look(fd, "", &file) && !file.type);
}

void tmesh_channel_store_inherit(struct tmesh_channel *channel)
{
	uint64_t head = channel->seen;
	struct channel_region *table = channel_regions(channel, channel->lane);
	struct store_content content;
	unsigned int count = 0;
	tmesh_giver giver;
	ssize_t got;
	bool sound;

	if (channel->own.get < 0)
		return;
	giver = lane_giver(channel->own.get);
	got = store_look(channel->own.get, giver, &content, &count, NULL);
	sound = got > 0 && is_sound(&content.message, got);
	if (sound)
		channel->own_serial = content.message.head.serial;
	for (uint32_t i = 0; sound && i < content.message.head.count && i < count; i++) {
		const struct tmesh_wire_region *wire = &content.message.items[i];
		uint32_t entry = wire->pad & 0xffff;
		struct channel_sent_region *sent;

		if (entry >= channel->shape.regions || !is_region(content.fds[i]))
			continue;
		sent = &channel->sent_regions[entry];
		if (sent->until == head || sent->fd >= 0 ||
		    atomic_load(&table[entry].words[CHANNEL_R_ID]) != wire->id)
			continue;
		sent->wire = *wire;
		sent->fd = content.fds[i];
		atomic_store(&sent->stored, true);
		content.fds[i] = -1;
	}
	for (unsigned int i = 0; i < count; i++)
		if (content.fds[i] >= 0)
			tmesh_foreign_close(content.fds[i], giver);
	channel->own_stale = true;
}

void tmesh_channel_store_end(struct tmesh_channel *channel)
{
	/* A living maker may still admit a sender. */
	if (channel->maker || !atomic_load(&channel->over))
		return;
	pthread_mutex_lock(&channel->home->lock);
	if (channel->store && channel->store->ends.get >= 0)
		empty(&channel->store->ends);
	tmesh_channel_stores_close(channel);
	pthread_mutex_unlock(&channel->home->lock);
}

/* Mark which entries of the lane's table messages name that are still there: an array of as many.
 */
static void mark_named(const struct tmesh_channel *channel, uint32_t number, bool *named)
{
	struct channel_lane *lane = channel_lane(channel, number);
	uint64_t head = atomic_load_explicit(&lane->head, memory_order_acquire);

	memset(named, 0, channel->shape.regions * sizeof(*named));
	for (uint32_t i = 0; i < channel->shape.capacity; i++) {
		const struct channel_cell *cell = channel_cell(channel, lane, head + i);
		uint64_t word = atomic_load_explicit(&cell->word, memory_order_acquire);
		uint32_t entry = atomic_load_explicit(&cell->payload[CHANNEL_W_NAMES],
						      memory_order_relaxed) &
				 0xffff;

		if (!channel_published(word, head + i))
			return;
		if (word & CHANNEL_KIND_TENSOR && entry < channel->shape.regions)
			named[entry] = true;
	}
}

/* Maker: find the descriptors in the lane's store that unreceived messages name; they become the
 * caller's. @changed: the store has others too. Return: 0, or a negative errno for another time. */
static int named_in_store(struct tmesh_channel *channel, uint32_t lane,
			  struct store_content *content, bool *changed)
{
	bool named[CHANNEL_ENTRIES_MAX], sound, cut = false;
	unsigned int count = 0, kept = 0;
	tmesh_giver giver;
	ssize_t got;
	int store;
	int rc = tmesh_channel_lane_end(channel, lane, &store);

	content->message.head.count = 0;
	content->message.head.serial = 0;
	*changed = false;
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	giver = lane_giver(store);
	got = store_look(store, giver, content, &count, &cut);
	close(store);
	sound = got > 0 && is_sound(&content->message, got);
	/* There may be numbers free for all of them another time. Junk goes now. */
	if (sound && cut)
		rc = -EMFILE;
	if (rc || !sound || content->message.head.count != count) {
		tmesh_foreign_close_all(content->fds, count, giver);
		content->message.head.count = 0;
		*changed = true;
		return rc;
	}
	mark_named(channel, lane, named);
	for (unsigned int i = 0; i < count; i++) {
		uint32_t entry = content->message.items[i].pad & 0xffff;

		if (entry >= channel->shape.regions || !named[entry]) {
			tmesh_foreign_close(content->fds[i], giver);
			continue;
		}
		named[entry] = false;
		content->fds[kept] = content->fds[i];
		content->message.items[kept++] = content->message.items[i];
	}
	content->message.head.count = kept;
	*changed = kept != count;
	return 0;
}

static void close_content(const struct tmesh_channel *channel, const struct store_content *content)
{
	/* The maker made all pairs. */
	tmesh_foreign_close_all(content->fds, content->message.head.count,
				lane_giver(channel->store->ends.get));
}

bool tmesh_channel_lane_store(struct tmesh_channel *channel, uint32_t lane,
			      struct channel_store *ends)
{
	struct store_content content;
	bool changed;
	int rc;

	*ends = no_store;
	rc = named_in_store(channel, lane, &content, &changed);
	if (rc)
		return false;
	content.message.head.serial++;
	rc = new_lane(channel, lane, &content, ends);
	close_content(channel, &content);
	return rc == 0;
}

bool tmesh_channel_settle(struct tmesh_channel *channel, uint32_t lane)
{
	struct store_content content;
	struct channel_store ends = no_store;
	bool changed;
	int rc = named_in_store(channel, lane, &content, &changed);

	if (rc)
		return true;
	if (!content.message.head.count) {
		rc = set_lane(channel, lane, -1);
	} else if (changed) {
		content.message.head.serial++;
		rc = new_lane(channel, lane, &content, &ends);
		close_ends(&ends);
	}
	close_content(channel, &content);
	return rc || content.message.head.count;
}
