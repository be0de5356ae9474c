// SPDX-License-Identifier: MIT
/*
 * What is sent through a channel is handed over at once, where one handle alone receives: the
 * region's descriptor goes by the connection between that handle's process and the sender's, and
 * lies there until it is received. Else it goes on the shelf (channel_shelf.c). So it reaches the
 * receiver whatever becomes of its sender. Where neither can be, a sender that leaves, or whose
 * process ends, waits until it was received.
 */
#include "channel_internal.h"
#include "common/foreign.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define MAGIC_HANDED 0x48304d54u /* "TM0H"; a region's message else, of which pad is a place */
/* More than the entries of all tables there is nothing to be found by a well-behaved sender. */
#define LOOKS 4096

static uint32_t places(const struct tmesh_channel *channel)
{
	return channel->shape.lanes * channel->shape.regions;
}

int tmesh_channel_hands_new(struct tmesh_channel *channel, struct tmesh_error *err)
{
	if (channel->role == TMESH_CHANNEL_SEND)
		return 0;
	channel->handed = calloc(places(channel), sizeof(*channel->handed));
	return channel->handed ? 0 : tmesh_fail(err, -ENOMEM, "no memory for a channel's tables");
}

void tmesh_channel_hand_drop(struct channel_handed *handed)
{
	tmesh_foreign_close_all(handed->fds, handed->count, handed->giver);
	handed->count = 0;
}

void tmesh_channel_hands_drop(struct tmesh_channel *channel)
{
	for (uint32_t i = 0; channel->handed && i < places(channel); i++)
		tmesh_channel_hand_drop(&channel->handed[i]);
}

/* The connection to the only receiver, or -1; home->lock is held. @who is never 0, and another one
 * for another receiver. The maker goes on receiving as long as there is a channel. */
static int receiver_of(const struct tmesh_channel *channel, uint64_t *who)
{
	*who = 1;
	if (!channel->maker)
		return atomic_load(&channel->head->state) & CHANNEL_MAKER_ALONE ? channel->conn
										: -1;
	if (channel->consumers != 1)
		return -1;
	for (uint32_t i = 0; i < CHANNEL_MEMBERS; i++)
		if (channel->members[i].fd >= 0 && channel->members[i].role == TMESH_CHANNEL_RECV) {
			*who = channel->members[i].watch;
			return channel->members[i].fd;
		}
	return -1;
}

/* The lane's number, of our own. */
static uint32_t lane_of(const struct tmesh_channel *channel)
{
	return (uint32_t)(channel_own_shelf(channel) - channel->shelves);
}

struct tmesh_wire_region tmesh_channel_wire(const struct tmesh_region *region, uint32_t rights,
					    uint32_t place)
{
	return (struct tmesh_wire_region){
		.magic = MAGIC_HANDED,
		.version = TMESH_WIRE_VERSION,
		.backend = region->ctx->ops->backend,
		.rights = rights,
		.kind = region->kind,
		.pad = place,
		.id = region->id,
		.bytes = region->bytes,
	};
}

/* home->lock is held; @fd is for this alone. */
static enum channel_held give(struct tmesh_channel *channel, struct channel_sent_region *sent,
			      int fd)
{
	uint64_t who;
	int to = receiver_of(channel, &who);

	/* In case that the only one is not alone any more. */
	sent->fd = fd;
	if (to >= 0 &&
	    tmesh_wire_send(to, &sent->wire, sizeof(sent->wire), &fd, 1, MSG_DONTWAIT) == 0) {
		channel->handed_to = who;
		return CHANNEL_HELD_THERE;
	}
	atomic_store(&sent->held, CHANNEL_HELD_SHELF);
	if (tmesh_channel_shelve(channel) == 0)
		return CHANNEL_HELD_SHELF;
	close(sent->fd);
	sent->fd = -1;
	return CHANNEL_HELD_HERE;
}

void tmesh_channel_hand_over(struct tmesh_channel *channel, uint32_t entry, uint32_t rights)
{
	struct channel_sent_region *sent = &channel->sent_regions[entry];
	struct tmesh_region *region = sent->region;
	enum channel_held held = CHANNEL_HELD_HERE;
	int fd;

	sent->wire = tmesh_channel_wire(region, rights, lane_of(channel) << 16 | entry);
	if (!(region->kind & TMESH_KIND_OPAQUE) &&
	    !region->ctx->ops->handle_fd(region, rights, &fd, NULL)) {
		pthread_mutex_lock(&channel->home->lock);
		held = give(channel, sent, fd);
		atomic_store(&sent->held, held);
		pthread_mutex_unlock(&channel->home->lock);
	}
	if (held == CHANNEL_HELD_HERE)
		tmesh_count(channel->ctx, COUNT_SENT_ALONE, 1);
	if (held == CHANNEL_HELD_THERE && !channel->maker)
		atomic_store_explicit(
			&channel_regions(channel, channel->lane)[entry].words[CHANNEL_R_WITH_MAKER],
			region->id, memory_order_relaxed);
}

/* Whatever it is that somebody sends, it can do no more than lie in its place. */
static void keep(struct tmesh_channel *channel, const struct tmesh_wire_region *wire,
		 const int *fds, unsigned int count, tmesh_giver giver)
{
	uint32_t lane = wire->pad >> 16, entry = wire->pad & 0xffff;
	struct channel_handed *place;

	if (wire->magic != MAGIC_HANDED || wire->version != TMESH_WIRE_VERSION ||
	    wire->kind & TMESH_KIND_OPAQUE || count != 1 || lane >= channel->shape.lanes ||
	    entry >= channel->shape.regions) {
		tmesh_foreign_close_all(fds, count, giver);
		return;
	}
	place = &channel->handed[lane * channel->shape.regions + entry];
	tmesh_channel_hand_drop(place);
	place->wire = *wire;
	place->wire.magic = TMESH_MAGIC_REGION;
	place->wire.pad = 0;
	place->fds[0] = fds[0];
	place->count = 1;
	place->giver = giver;
}

void tmesh_channel_collect(struct tmesh_channel *channel, int conn)
{
	struct tmesh_wire_region wire;
	int fds[TMESH_WIRE_FDS];

	for (int i = 0; channel->handed && conn >= 0 && i < LOOKS; i++) {
		int got = tmesh_wire_recv(conn, &wire, sizeof(wire), fds, TMESH_WIRE_FDS, 0);

		if (got == -EAGAIN || got == -EPIPE)
			return;
		if (got >= 0)
			keep(channel, &wire, fds, (unsigned int)got, tmesh_giver_at(conn));
	}
}

/* Of a lane: it is the maker's own, or somebody's connection has it. */
static void collect_lane(struct tmesh_channel *channel, uint32_t lane)
{
	if (!channel->maker) {
		tmesh_channel_collect(channel, channel->conn);
		return;
	}
	for (uint32_t i = 0; i < CHANNEL_MEMBERS; i++) {
		const struct channel_member *member = &channel->members[i];

		if (member->fd >= 0 && member->role == TMESH_CHANNEL_SEND && member->lane == lane)
			tmesh_channel_collect(channel, member->fd);
	}
}

int tmesh_channel_handed(struct tmesh_channel *channel, uint32_t lane, uint32_t entry, uint64_t id,
			 uint32_t rights, struct tmesh_region **out)
{
	struct channel_region *table = channel_regions(channel, channel_lane(channel, lane));
	struct channel_handed *places = &channel->handed[lane * channel->shape.regions];
	struct channel_handed mine = {.count = 0};
	struct tmesh_region *region;

	pthread_mutex_lock(&channel->home->lock);
	collect_lane(channel, lane);
	for (uint32_t i = 0; i < channel->shape.regions; i++) {
		uint64_t there =
			atomic_load_explicit(&table[i].words[CHANNEL_R_ID], memory_order_relaxed);

		if (i == entry && places[i].count && places[i].wire.id == id) {
			mine = places[i];
			places[i].count = 0;
		} else if (places[i].count && places[i].wire.id != there) {
			/* What others have received, or nobody will. */
			tmesh_channel_hand_drop(&places[i]);
		}
	}
	pthread_mutex_unlock(&channel->home->lock);
	if (!mine.count || mine.wire.rights != rights ||
	    mine.wire.backend != channel->ctx->ops->backend) {
		tmesh_channel_hand_drop(&mine);
		return -ENOENT;
	}
	region = tmesh_region_new(channel->ctx, NULL);
	if (!region) {
		tmesh_channel_hand_drop(&mine);
		return -ENOENT;
	}
	region->giver = mine.giver;
	return tmesh_region_opened(
		region, channel->ctx->ops->adopt(region, mine.fds, &mine.wire, NULL), out);
}

void tmesh_channel_hand_back(struct tmesh_channel *channel, uint32_t place)
{
	uint32_t lane = place / channel->shape.regions, entry = place % channel->shape.regions;
	const struct channel_region *table = channel_regions(channel, channel_lane(channel, lane));
	struct tmesh_region *region = channel->known_regions[place].region;
	struct tmesh_wire_region wire =
		tmesh_channel_wire(region, region->rights, lane << 16 | entry);
	int fd;

	if (atomic_load(&table[entry].words[CHANNEL_R_ID]) != region->id)
		return;
	fd = fcntl(region->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return;
	pthread_mutex_lock(&channel->home->lock);
	keep(channel, &wire, &fd, 1, region->giver);
	pthread_mutex_unlock(&channel->home->lock);
}

static bool is_there(const struct tmesh_channel *channel, uint64_t head, uint64_t behind)
{
	return (int64_t)(behind - head) > 0 && behind - head <= channel->shape.slots;
}

/* What the sender has accepted and nobody would have if it were gone. */
bool tmesh_channel_owes(const struct tmesh_channel *channel)
{
	const atomic_uint_fast64_t *behind = channel->behind;
	uint64_t head, who;

	if (channel->role != TMESH_CHANNEL_SEND || channel->life != tmesh_fork_life() ||
	    channel_gone(channel))
		return false;
	head = atomic_load_explicit(&channel->lane->head, memory_order_acquire);
	/* Who has not come yet does not find the maker's memory. */
	if (channel->maker && !channel->had_consumer)
		return is_there(channel, head,
				atomic_load_explicit(&channel->lane->tail, memory_order_acquire));
	if (is_there(channel, head,
		     atomic_load_explicit(&behind[CHANNEL_HELD_HERE], memory_order_acquire)))
		return true;
	/* Whoever it was handed to, others may receive it now. The maker sees to that itself. */
	return channel->maker && (receiver_of(channel, &who) < 0 || channel->handed_to != who) &&
	       is_there(channel, head,
			atomic_load_explicit(&behind[CHANNEL_HELD_THERE], memory_order_acquire));
}

uint64_t tmesh_channel_unread(const struct tmesh_channel *channel)
{
	uint64_t left;

	if (channel->role != TMESH_CHANNEL_SEND || channel_gone(channel))
		return 0;
	left = atomic_load_explicit(&channel->lane->tail, memory_order_acquire) -
	       atomic_load_explicit(&channel->lane->head, memory_order_acquire);
	/* What a peer has scribbled into either is no number of messages. */
	return left <= channel->shape.slots ? left : 0;
}

uint64_t tmesh_channels_unread(struct tmesh_ctx *ctx)
{
	uint64_t count = 0;

	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next)
		count += tmesh_channel_unread(channel);
	return count;
}

uint64_t tmesh_channels_owe(struct tmesh_ctx *ctx)
{
	uint64_t count = 0;

	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next)
		count += tmesh_channel_owes(channel);
	return count;
}
