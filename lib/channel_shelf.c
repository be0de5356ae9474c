// SPDX-License-Identifier: MIT
/*
 * Where nobody knows who will receive a tensor, its region lies on the lane's shelf: a socket pair
 * whose far end the maker and all receivers have. One datagram lies there, with the descriptors of
 * all regions that messages of the lane may still name; a sender puts the next one behind it before
 * it takes the old one away. Who receives looks at it without taking it, and only when a token
 * opens nothing any more because its sender is gone. So the kernel holds what was sent for as long
 * as somebody has the shelf, and no receiver holds what another one gets.
 */
#include "channel_internal.h"
#include "common/foreign.h"
#include "memfd.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAGIC_SHELF 0x53304d54u /* "TM0S" */
/* So many descriptors the kernel takes with one message (SCM_MAX_FD). */
#define MOST 253u
/* More datagrams lie there only where somebody else has put them. */
#define LOOKS 64
#define PAUSE_NS 1000000

struct shelf_head {
	uint32_t magic;
	uint32_t version;
	uint32_t count;
	uint32_t pad;
	uint64_t serial; /* another one for each datagram of a sender */
};

struct shelf_message {
	struct shelf_head head;
	struct tmesh_wire_region regions[MOST]; /* pad: lane and entry, as in a hand-over */
};
_Static_assert(sizeof(struct shelf_head) == 24, "wire format");

union shelf_control {
	struct cmsghdr align;
	char room[CMSG_SPACE(MOST * sizeof(int))];
};

static void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

int tmesh_channel_shelves_new(struct tmesh_channel *channel, struct tmesh_error *err)
{
	channel->shelves = calloc(channel->shape.lanes, sizeof(*channel->shelves));
	if (!channel->shelves)
		return tmesh_fail(err, -ENOMEM, "no memory for a channel's tables");
	for (uint32_t i = 0; i < channel->shape.lanes; i++)
		channel->shelves[i] = (struct channel_shelf){.put = -1, .get = -1};
	for (uint32_t i = 0; channel->maker && i < channel->shape.lanes; i++) {
		int ends[2];

		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
			return tmesh_fail_errno(err,
						"making a socket pair to pass a channel's tensors");
		channel->shelves[i] = (struct channel_shelf){.put = ends[0], .get = ends[1]};
		/* Nothing goes the other way. */
		shutdown(ends[1], SHUT_WR);
	}
	return 0;
}

void tmesh_channel_shelves_close(struct tmesh_channel *channel)
{
	for (uint32_t i = 0; channel->shelves && i < channel->shape.lanes; i++) {
		close_end(&channel->shelves[i].put);
		close_end(&channel->shelves[i].get);
	}
}

unsigned int tmesh_channel_shelf_ends(const struct tmesh_channel *channel,
				      enum tmesh_channel_role role, uint32_t lane, int *fds)
{
	unsigned int count = 0;

	if (role == TMESH_CHANNEL_SEND) {
		fds[count++] = channel->shelves[lane].get;
		fds[count++] = channel->shelves[lane].put;
	} else {
		while (count < channel->shape.lanes) {
			fds[count] = channel->shelves[count].get;
			count++;
		}
	}
	return count;
}

void tmesh_channel_shelves_take(struct tmesh_channel *channel, uint32_t lane, const int *fds)
{
	if (channel->role == TMESH_CHANNEL_SEND) {
		channel->shelves[lane].get = fds[0];
		channel->shelves[lane].put = fds[1];
		return;
	}
	for (uint32_t i = 0; i < channel->shape.lanes; i++)
		channel->shelves[i].get = fds[i];
}

/* What lies in front. Return: its size, or a negative errno. */
static ssize_t look(int socket, struct shelf_message *message, int *fds, unsigned int *count)
{
	struct iovec part = {message, sizeof(*message)};
	union shelf_control control;
	bool takes = fds && tmesh_foreign_room_at(socket);
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
	for (struct cmsghdr *c = takes ? CMSG_FIRSTHDR(&msg) : NULL; c; c = CMSG_NXTHDR(&msg, c)) {
		size_t come = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		/* The room has one message's, and the kernel sends no second one along. */
		memcpy(fds, CMSG_DATA(c), come * sizeof(int));
		*count = (unsigned int)come;
	}
	return got;
}

/* It is what a sender puts there. */
static bool is_sound(const struct shelf_message *message, ssize_t bytes)
{
	const struct shelf_head *head = &message->head;

	return bytes >= (ssize_t)sizeof(*head) && head->magic == MAGIC_SHELF &&
	       head->version == TMESH_WIRE_VERSION && head->count <= MOST &&
	       (size_t)bytes == sizeof(*head) + (size_t)head->count * sizeof(message->regions[0]);
}

/* Without its descriptors: the kernel closes them. */
static bool take_away(int socket)
{
	char byte;
	ssize_t got;

	do
		got = recv(socket, &byte, 1, MSG_DONTWAIT | MSG_TRUNC);
	while (got < 0 && errno == EINTR);
	return got > 0;
}

static void empty(const struct channel_shelf *shelf)
{
	for (int i = 0; i < LOOKS && take_away(shelf->get); i++)
		;
}

static int put(int socket, struct shelf_message *message, const int *fds)
{
	struct iovec whole = {message, sizeof(message->head) + (size_t)message->head.count *
								       sizeof(message->regions[0])};
	union shelf_control control;
	struct msghdr msg = {
		.msg_iov = &whole,
		.msg_iovlen = 1,
		.msg_control = control.room,
		.msg_controllen = CMSG_SPACE(message->head.count * sizeof(int)),
	};
	ssize_t sent;

	memset(control.room, 0, msg.msg_controllen); /* with what fills up the last word */
	control.align.cmsg_level = SOL_SOCKET;
	control.align.cmsg_type = SCM_RIGHTS;
	control.align.cmsg_len = CMSG_LEN(message->head.count * sizeof(int));
	memcpy(CMSG_DATA(&control.align), fds, message->head.count * sizeof(int));
	do
		sent = sendmsg(socket, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}

/* One datagram takes the place of what lies there. Those before it go only when it is there. */
static int replace(const struct channel_shelf *shelf, struct shelf_message *message, const int *fds)
{
	struct shelf_message front;
	int rc;

	message->head.magic = MAGIC_SHELF;
	message->head.version = TMESH_WIRE_VERSION;
	message->head.pad = 0;
	if (!message->head.count) {
		empty(shelf);
		return 0;
	}
	rc = put(shelf->put, message, fds);
	for (int i = 0; !rc && i < LOOKS; i++) {
		ssize_t got = look(shelf->get, &front, NULL, NULL);

		if (got < 0 || (is_sound(&front, got) && front.head.serial == message->head.serial))
			break;
		take_away(shelf->get);
	}
	return rc;
}

int tmesh_channel_shelve(struct tmesh_channel *channel)
{
	struct shelf_message message = {.head.serial = channel->shelf_serial + 1};
	int fds[MOST];
	uint32_t count = 0;
	int rc;

	for (uint32_t i = 0; i < channel->shape.regions; i++) {
		const struct channel_sent_region *sent = &channel->sent_regions[i];

		if (sent->held != CHANNEL_HELD_SHELF)
			continue;
		if (count == MOST)
			return -ENOBUFS;
		message.regions[count] = sent->wire;
		fds[count++] = sent->fd;
	}
	message.head.count = count;
	rc = replace(channel_own_shelf(channel), &message, fds);
	if (!rc) {
		channel->shelf_serial++;
		channel->shelf_stale = false;
	}
	return rc;
}

/* Which of what lies there is wanted is for the caller; all other descriptors are closed. */
static int find(int socket, struct tmesh_wire_region *wire, int *fd)
{
	struct shelf_message message;
	int fds[MOST], rc = -ENOENT;
	unsigned int count = 0;
	ssize_t got = look(socket, &message, fds, &count);

	if (got > 0 && is_sound(&message, got)) {
		for (uint32_t i = 0; rc && i < message.head.count; i++) {
			if (message.regions[i].id != wire->id ||
			    message.regions[i].pad != wire->pad)
				continue;
			/* The kernel leaves out what this process has no number for. */
			rc = i < count ? 0 : -EMFILE;
			if (rc)
				continue;
			*wire = message.regions[i];
			*fd = fds[i];
			fds[i] = -1;
		}
	}
	for (unsigned int i = 0; i < count; i++)
		if (fds[i] >= 0)
			tmesh_foreign_close(fds[i], tmesh_giver_at(socket));
	return rc;
}

/* A handle of our own: what lies there may be others', too. */
static int open_own(struct tmesh_channel *channel, struct tmesh_wire_region *wire, int fd,
		    tmesh_giver giver, uint32_t rights, struct tmesh_region **out)
{
	struct tmesh_region *shared = NULL;
	struct tmesh_region *region = tmesh_region_new(channel->ctx, NULL);
	int rc;

	if (!region) {
		tmesh_foreign_close(fd, giver);
		return -ENOMEM;
	}
	wire->magic = TMESH_MAGIC_REGION;
	wire->pad = 0;
	region->giver = giver;
	rc = tmesh_region_opened(region, channel->ctx->ops->adopt(region, &fd, wire, NULL),
				 &shared);
	if (!rc) {
		rc = tmesh_region_derive(shared, rights, out, NULL);
		tmesh_region_unref(shared);
	}
	return rc;
}

int tmesh_channel_shelf_open(struct tmesh_channel *channel, uint32_t lane, uint32_t entry,
			     uint64_t id, uint32_t rights, struct tmesh_region **out)
{
	const atomic_uint_fast64_t *words =
		channel_regions(channel, channel_lane(channel, lane))[entry].words;
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint64_t deadline = tmesh_now_ns() + channel->ctx->timeout_ns;
	struct tmesh_wire_region wire;
	tmesh_giver giver;
	int fd, rc;

	for (;;) {
		/* In this order: the maker puts it on the shelf before it says so. */
		bool with_maker =
			!channel->maker && atomic_load(&words[CHANNEL_R_WITH_MAKER]) == id;

		wire = (struct tmesh_wire_region){.id = id, .pad = lane << 16 | entry};
		rc = find(channel->shelves[lane].get, &wire, &fd);
		if (rc != -ENOENT || !with_maker || atomic_load(&channel->over))
			break;
		/* Others have received it. */
		if (atomic_load(&words[CHANNEL_R_ID]) != id)
			break;
		if (tmesh_now_ns() >= deadline)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
	if (rc)
		return rc;
	giver = tmesh_giver_at(channel->shelves[lane].get);
	if (wire.rights != rights || wire.backend != channel->ctx->ops->backend ||
	    wire.kind & TMESH_KIND_OPAQUE) {
		tmesh_foreign_close(fd, giver);
		return -ENOENT;
	}
	return open_own(channel, &wire, fd, giver, rights, out);
}

void tmesh_channel_shelf_inherit(struct tmesh_channel *channel)
{
	uint64_t head = channel->seen;
	struct channel_region *table = channel_regions(channel, channel->lane);
	struct shelf_message message;
	int fds[MOST];
	unsigned int count = 0;
	ssize_t got = look(channel_own_shelf(channel)->get, &message, fds, &count);
	bool sound = got > 0 && is_sound(&message, got);

	if (sound)
		channel->shelf_serial = message.head.serial;
	for (uint32_t i = 0; sound && i < message.head.count && i < count; i++) {
		const struct tmesh_wire_region *wire = &message.regions[i];
		uint32_t entry = wire->pad & 0xffff;
		struct channel_sent_region *sent;

		if (entry >= channel->shape.regions)
			continue;
		sent = &channel->sent_regions[entry];
		if (sent->until == head || sent->fd >= 0 ||
		    atomic_load(&table[entry].words[CHANNEL_R_ID]) != wire->id)
			continue;
		sent->wire = *wire;
		sent->fd = fds[i];
		sent->held = CHANNEL_HELD_SHELF;
		fds[i] = -1;
	}
	for (unsigned int i = 0; i < count; i++)
		close_end(&fds[i]);
	channel->shelf_stale = true;
}

void tmesh_channel_shelves_end(struct tmesh_channel *channel)
{
	/* While there is a maker somebody may come to send. */
	if (channel->maker || !atomic_load(&channel->over))
		return;
	pthread_mutex_lock(&channel->home->lock);
	for (uint32_t i = 0; i < channel->shape.lanes; i++)
		if (channel->shelves[i].get >= 0)
			empty(&channel->shelves[i]);
	tmesh_channel_shelves_close(channel);
	pthread_mutex_unlock(&channel->home->lock);
}

/* Which entries of the lane's table messages name that are still there: an array of as many. */
static void mark_named(const struct tmesh_channel *channel, uint32_t number, bool *named)
{
	struct channel_lane *lane = channel_lane(channel, number);
	uint64_t head = atomic_load_explicit(&lane->head, memory_order_acquire);

	memset(named, 0, channel->shape.regions * sizeof(*named));
	for (uint32_t i = 0; i < channel->shape.slots; i++) {
		const struct channel_slot *slot = channel_slot(channel, lane, head + i);
		uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
		uint32_t entry = atomic_load_explicit(&slot->payload[CHANNEL_W_NAMES],
						      memory_order_relaxed) &
				 0xffff;

		if (!channel_published(word, head + i))
			return;
		if (word & CHANNEL_KIND_TENSOR && entry < channel->shape.regions)
			named[entry] = true;
	}
}

/* A descriptor for others of a region that this process has; home->lock is held, so that no region
 * may be locked. Return: it or -1. */
static int another(struct tmesh_region *region, uint32_t rights)
{
	int fd = -1;

	if (region->ctx->ops->backend == TMESH_BACKEND_KERNEL)
		return region->ctx->ops->handle_fd(region, rights, &fd, NULL) ? -1 : fd;
	/* It can do no more and no less than the rights say. The lock keeps it as it is. */
	if (!region->sealed && (rights == TMESH_READ) != tmesh_memfd_reads_only(region))
		return -1;
	return fcntl(region->fd, F_DUPFD_CLOEXEC, 0);
}

void tmesh_channel_shelve_handed(struct tmesh_channel *channel)
{
	bool moved[CHANNEL_ENTRIES_MAX] = {false};

	for (uint32_t i = 0; i < channel->shape.regions; i++) {
		struct channel_sent_region *sent = &channel->sent_regions[i];

		if (sent->held != CHANNEL_HELD_THERE)
			continue;
		moved[i] = true;
		sent->held = CHANNEL_HELD_SHELF;
	}
	if (tmesh_channel_shelve(channel) == 0)
		return;
	/* They are owed: others may receive them now. */
	for (uint32_t i = 0; i < channel->shape.regions; i++)
		if (moved[i])
			channel->sent_regions[i].held = CHANNEL_HELD_THERE;
}

/* What the maker was handed of a message that is still there: in its place, or opened already. 0:
 * nothing; -1: this process has no number free. */
static int from_maker(struct tmesh_channel *channel, uint32_t lane, uint32_t entry,
		      struct tmesh_wire_region *wire, int *fd)
{
	const atomic_uint_fast64_t *words =
		channel_regions(channel, channel_lane(channel, lane))[entry].words;
	uint32_t at = lane * channel->shape.regions + entry;
	uint32_t rights = (uint32_t)atomic_load(&words[CHANNEL_R_RIGHTS]);
	uint64_t id = atomic_load(&words[CHANNEL_R_ID]);
	const struct channel_handed *handed = &channel->handed[at];
	struct tmesh_region *region = channel->known_regions[at].region;

	if (handed->count && handed->wire.id == id) {
		*wire = handed->wire;
		*fd = fcntl(handed->fds[0], F_DUPFD_CLOEXEC, 0);
	} else if (region && region->id == id && region->rights == rights) {
		*wire = tmesh_channel_wire(region, rights, 0);
		*fd = another(region, rights);
	} else {
		return 0;
	}
	wire->pad = lane << 16 | entry;
	return *fd < 0 ? -1 : 1;
}

bool tmesh_channel_settle(struct tmesh_channel *channel, uint32_t lane, bool shared)
{
	struct channel_region *table = channel_regions(channel, channel_lane(channel, lane));
	const struct channel_shelf *shelf = &channel->shelves[lane];
	bool named[CHANNEL_ENTRIES_MAX], changed, failed = false;
	tmesh_giver giver = tmesh_giver_at(shelf->get);
	struct shelf_message message;
	int fds[MOST];
	unsigned int count = 0;
	uint32_t came = 0, lies = 0;
	ssize_t got = look(shelf->get, &message, fds, &count);
	bool sound = got > 0 && is_sound(&message, got);

	if (sound)
		came = message.head.count;
	else
		message.head.serial = 0;
	if (came != count) {
		/* This process has no number free for all of them; or it is not ours. */
		tmesh_foreign_close_all(fds, count, giver);
		return true;
	}
	mark_named(channel, lane, named);
	for (uint32_t i = 0; i < came; i++) {
		uint32_t entry = message.regions[i].pad & 0xffff;

		if (entry >= channel->shape.regions || !named[entry]) {
			tmesh_foreign_close(fds[i], giver);
			continue;
		}
		named[entry] = false;
		fds[lies] = fds[i];
		message.regions[lies++] = message.regions[i];
	}
	changed = lies != came || (got > 0 && !sound);
	for (uint32_t i = 0; shared && i < channel->shape.regions && lies < MOST; i++) {
		int found =
			named[i] ? from_maker(channel, lane, i, &message.regions[lies], &fds[lies])
				 : 0;

		failed = failed || found < 0;
		lies += found > 0;
		changed = changed || found > 0;
	}
	message.head.serial++;
	message.head.count = lies;
	if (changed && replace(shelf, &message, fds))
		failed = true;
	tmesh_foreign_close_all(fds, lies, giver);
	for (uint32_t i = 0; shared && !failed && i < channel->shape.regions; i++)
		atomic_store(&table[i].words[CHANNEL_R_WITH_MAKER], 0);
	return failed || lies;
}

/* What others have received the maker need not have, nor what nobody sends any more. */
static bool drop_stale(struct tmesh_channel *channel, uint32_t lane)
{
	struct channel_region *table = channel_regions(channel, channel_lane(channel, lane));
	struct channel_handed *handed = &channel->handed[lane * channel->shape.regions];
	bool any = false, named[CHANNEL_ENTRIES_MAX];

	mark_named(channel, lane, named);
	for (uint32_t i = 0; i < channel->shape.regions; i++) {
		if (!handed[i].count)
			continue;
		if (handed[i].wire.id != atomic_load(&table[i].words[CHANNEL_R_ID]) ||
		    (channel->shelves[lane].left && !named[i]))
			tmesh_channel_hand_drop(&handed[i]);
		else
			any = true;
	}
	return any;
}

bool tmesh_channel_tidy(struct tmesh_channel *channel)
{
	bool shared = channel->consumers > 1, again = false;

	for (uint32_t i = 0; channel->maker && i < channel->shape.lanes; i++) {
		struct channel_shelf *shelf = &channel->shelves[i];
		bool lies =
			shelf->left && tmesh_channel_settle(channel, i, channel->handed && shared);

		if (channel->handed && (shelf->left || shared))
			lies = drop_stale(channel, i) || lies;
		shelf->left = shelf->left && lies;
		again = again || lies;
	}
	return again;
}
