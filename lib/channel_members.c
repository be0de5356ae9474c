// SPDX-License-Identifier: MIT
/*
 * Who is at a channel. Whoever joins asks the maker's server by socket, as for a region, and the
 * connection stays: its end is the death of the one or of the other, in whatever PID namespace
 * they live. The context's watch (watch.c) tells of it.
 */
#include "channel_internal.h"
#include "watch.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* What the maker knows for certain, told to itself and, by memory, to the others. */
static void update(struct tmesh_channel *channel)
{
	uint32_t state = 0;

	if (channel->had_producer && !channel->producers)
		state |= CHANNEL_NO_PRODUCERS;
	if (channel->had_consumer && !channel->consumers)
		state |= CHANNEL_NO_CONSUMERS;
	if (channel->role == TMESH_CHANNEL_RECV && channel->consumers == 1)
		state |= CHANNEL_MAKER_ALONE;
	atomic_store(&channel->head->state, state);
	atomic_store(&channel->over,
		     state & (channel->role == TMESH_CHANNEL_SEND ? CHANNEL_NO_CONSUMERS
								  : CHANNEL_NO_PRODUCERS));
}

static void count(struct tmesh_channel *channel, enum tmesh_channel_role role, int change)
{
	if (role == TMESH_CHANNEL_SEND) {
		channel->producers += (uint32_t)change;
		channel->had_producer = true;
	} else {
		channel->consumers += (uint32_t)change;
		channel->had_consumer = true;
	}
	update(channel);
}

static struct channel_member *member_of(struct tmesh_channel *channel, uint64_t number)
{
	for (uint32_t i = 0; channel->members && i < CHANNEL_MEMBERS; i++)
		if (channel->members[i].fd >= 0 && channel->members[i].watch == number)
			return &channel->members[i];
	return NULL;
}

static void member_ended(struct tmesh_channel *channel, struct channel_member *member)
{
	tmesh_channel_collect(channel, member->fd);
	close_fd(&member->fd);
	count(channel, member->role, -1);
	if (member->role == TMESH_CHANNEL_SEND) {
		channel->shelves[member->lane].left = true;
		tmesh_channel_settle(channel, member->lane,
				     channel->handed && channel->consumers > 1);
	}
	/* Others look after what it was told of and did not do. */
	tmesh_channel_tell_all(channel);
}

void tmesh_channels_ended(struct tmesh_ctx *ctx, uint64_t number)
{
	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next) {
		struct channel_member *member = member_of(channel, number);

		if (member) {
			member_ended(channel, member);
			return;
		}
		if (channel->conn >= 0 && channel->watch == number) {
			tmesh_channel_collect(channel, channel->conn);
			close_fd(&channel->conn);
			atomic_store(&channel->over, 1);
			tmesh_channel_tell_all(channel);
			return;
		}
	}
}

/* What is lost is said aloud: to who listens, else on standard error, as at a process's end. */
static void tell_nobody_came(const struct tmesh_ctx *ctx, const struct tmesh_channel *channel)
{
	char message[256];

	snprintf(message, sizeof(message),
		 "a channel was closed, and nobody came to receive what was sent within %.3g s "
		 "(linger, TMESH_LINGER): %" PRIu64 " messages are lost",
		 (double)ctx->linger_ns / 1e9, tmesh_channel_unread(channel));
	if (ctx->log)
		tmesh_log(ctx, TMESH_LOG_WARN, "%s", message);
	else
		dprintf(STDERR_FILENO, "tmesh: process %d: %s\n", (int)getpid(), message);
}

struct tmesh_channel *tmesh_channels_parted(struct tmesh_ctx *ctx, bool *more)
{
	uint64_t now = tmesh_now_ns();

	*more = false;
	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next) {
		if (!channel->parting)
			continue;
		if (!tmesh_channel_owes(channel))
			return channel;
		if (channel->maker && !channel->had_consumer && now >= channel->parting_until) {
			tell_nobody_came(ctx, channel);
			return channel;
		}
		*more = true;
	}
	return NULL;
}

bool tmesh_channels_tidy(struct tmesh_ctx *ctx)
{
	bool again = false;

	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next)
		again = tmesh_channel_tidy(channel) || again;
	return again;
}

bool tmesh_channel_part(struct tmesh_channel *channel)
{
	struct tmesh_ctx *home = channel->home;
	bool parts;

	pthread_mutex_lock(&home->lock);
	parts = home->watch && tmesh_channel_owes(channel);
	channel->parting = parts;
	channel->parting_until = tmesh_now_ns() + home->linger_ns;
	if (parts)
		tmesh_watch_nudge(home->watch);
	pthread_mutex_unlock(&home->lock);
	/* The watch may have freed it by now. */
	return parts;
}

static void bells_close(struct tmesh_channel *channel)
{
	for (int i = 0; i < CHANNEL_BELLS; i++) {
		close_fd(&channel->bells[i].ring);
		close_fd(&channel->bells[i].wait);
	}
}

static void connections_close(struct tmesh_channel *channel)
{
	close_fd(&channel->conn);
	for (uint32_t i = 0; channel->members && i < CHANNEL_MEMBERS; i++)
		close_fd(&channel->members[i].fd);
}

/* The connections are to end with the parent, and its peers' wakes are not the child's. */
void tmesh_channels_forked(struct tmesh_ctx *ctx)
{
	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next) {
		connections_close(channel);
		bells_close(channel);
		tmesh_channel_shelves_close(channel);
		tmesh_channel_hands_drop(channel);
	}
	ctx->channels = NULL;
}

int tmesh_channel_members_new(struct tmesh_channel *channel, struct tmesh_error *err)
{
	channel->members = calloc(CHANNEL_MEMBERS, sizeof(*channel->members));
	if (!channel->members)
		return tmesh_fail(err, -ENOMEM, "no memory for a channel's members");
	for (uint32_t i = 0; i < CHANNEL_MEMBERS; i++)
		channel->members[i].fd = -1;
	for (int i = 0; i < CHANNEL_BELLS; i++) {
		int ends[2];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
			return tmesh_fail_errno(err,
						"making a socket pair to wake a channel's ends");
		channel->bells[i] = (struct channel_bell){.ring = ends[0], .wait = ends[1]};
	}
	count(channel, channel->role, 1);
	return 0;
}

int tmesh_channel_watch(struct tmesh_channel *channel, struct tmesh_error *err)
{
	struct tmesh_ctx *ctx = channel->home;
	int rc = tmesh_watch_start(ctx, err);

	if (!rc && channel->conn >= 0) {
		rc = tmesh_watch_add(ctx->watch, channel->conn, &channel->watch);
		if (rc)
			return tmesh_fail(err, rc, "cannot watch a channel's maker");
	}
	if (rc)
		return rc;
	channel->next = ctx->channels;
	ctx->channels = channel;
	return 0;
}

/* Not there any more when it was inherited through fork(). */
void tmesh_channel_leave(struct tmesh_channel *channel)
{
	struct tmesh_channel **at = &channel->home->channels;

	pthread_mutex_lock(&channel->home->lock);
	while (*at && *at != channel)
		at = &(*at)->next;
	if (*at)
		*at = channel->next;
	if (channel->maker && channel->memory)
		channel->memory->channel = NULL;
	connections_close(channel);
	bells_close(channel);
	pthread_mutex_unlock(&channel->home->lock);
	free(channel->members);
}

/* Its last owner's messages are all taken. */
static bool is_empty(const struct tmesh_channel *channel, uint32_t number)
{
	struct channel_lane *lane = channel_lane(channel, number);
	uint64_t head = atomic_load_explicit(&lane->head, memory_order_acquire);

	return !channel_published(atomic_load_explicit(&channel_slot(channel, lane, head)->word,
						       memory_order_acquire),
				  head);
}

/* A lane that nobody has, an empty one first: its number or -1. The maker has the first, where it
 * sends. */
static int free_lane(const struct tmesh_channel *channel)
{
	uint64_t used = channel->role == TMESH_CHANNEL_SEND;
	int found = -1;

	for (uint32_t i = 0; i < CHANNEL_MEMBERS; i++) {
		const struct channel_member *member = &channel->members[i];

		if (member->fd >= 0 && member->role == TMESH_CHANNEL_SEND)
			used |= 1ull << member->lane;
	}
	for (uint32_t i = 0; i < channel->shape.lanes; i++) {
		if (used >> i & 1)
			continue;
		if (is_empty(channel, i))
			return (int)i;
		if (found < 0)
			found = (int)i;
	}
	return found;
}

static struct channel_member *free_place(struct tmesh_channel *channel)
{
	for (uint32_t i = 0; i < CHANNEL_MEMBERS; i++)
		if (channel->members[i].fd < 0)
			return &channel->members[i];
	return NULL;
}

/* The places of those who have gone and of whom the watch has not heard yet. */
static void end_gone(struct tmesh_channel *channel)
{
	for (uint32_t i = 0; i < CHANNEL_MEMBERS; i++) {
		struct pollfd poller = {.fd = channel->members[i].fd, .events = POLLRDHUP};

		if (poller.fd >= 0 && poll(&poller, 1, 0) == 1)
			member_ended(channel, &channel->members[i]);
	}
}

static bool has_place(struct tmesh_channel *channel, uint32_t role, int *lane,
		      struct channel_member **member)
{
	*member = free_place(channel);
	*lane = role == TMESH_CHANNEL_SEND ? free_lane(channel) : 0;
	return *member && *lane >= 0 &&
	       (role == TMESH_CHANNEL_SEND || channel->consumers < CHANNEL_CONSUMERS_MAX);
}

/* Of a channel whose maker receives. */
static bool has_sender(const struct tmesh_channel *channel, uint32_t lane)
{
	for (uint32_t i = 0; i < CHANNEL_MEMBERS; i++) {
		const struct channel_member *member = &channel->members[i];

		if (member->fd >= 0 && member->role == TMESH_CHANNEL_SEND && member->lane == lane)
			return true;
	}
	return false;
}

/* Somebody comes to receive: what one receiver alone was given all of them can have from now on.
 * What the maker was given of those who still send it lays on their shelves when they have gone. */
static void share(struct tmesh_channel *channel)
{
	if (channel->role == TMESH_CHANNEL_SEND) {
		tmesh_channel_shelve_handed(channel);
		return;
	}
	for (uint32_t i = 0; i < CHANNEL_MEMBERS; i++)
		if (channel->members[i].fd >= 0)
			tmesh_channel_collect(channel, channel->members[i].fd);
	for (uint32_t i = 0; i < channel->shape.lanes; i++) {
		if (has_sender(channel, i))
			continue;
		channel->shelves[i].left = true;
		tmesh_channel_settle(channel, i, true);
	}
	tmesh_watch_nudge(channel->home->watch);
}

int tmesh_channel_admit(struct tmesh_channel *channel, int conn, uint32_t role, uint32_t *lane,
			int fds[TMESH_JOIN_FDS], unsigned int *fd_count)
{
	struct channel_member *member;
	int number, rc;

	if (role != TMESH_CHANNEL_SEND && role != TMESH_CHANNEL_RECV)
		return -EINVAL;
	/* Closed, but for those who receive what it had. */
	if (role == TMESH_CHANNEL_SEND && channel->parting)
		return -ENOENT;
	if (!has_place(channel, role, &number, &member)) {
		end_gone(channel);
		if (!has_place(channel, role, &number, &member))
			return -EBUSY;
	}
	rc = tmesh_watch_add(channel->home->watch, conn, &member->watch);
	if (rc)
		return rc;
	member->fd = conn;
	member->role = (enum tmesh_channel_role)role;
	member->lane = (uint32_t)number;
	*lane = member->lane;
	fds[0] = channel->bells[channel_far_bell(member->role)].ring;
	fds[1] = channel->bells[channel_own_bell(member->role)].ring;
	fds[2] = channel->bells[channel_own_bell(member->role)].wait;
	*fd_count = 3 + tmesh_channel_shelf_ends(channel, member->role, member->lane, &fds[3]);
	if (member->role == TMESH_CHANNEL_RECV) {
		share(channel);
	} else {
		/* What the last one sent to this process lies there for the next one to look after.
		 */
		tmesh_channel_settle(channel, member->lane, channel->handed);
		channel->shelves[member->lane].left = false;
	}
	count(channel, member->role, 1);
	return 0;
}
