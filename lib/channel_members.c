// SPDX-License-Identifier: MIT
/*
 * The members of a channel. A process joins by asking the maker's server on a socket, as for a
 * region. The connection stays open: its end shows the death of either side, in any PID namespace.
 * The context's watch (watch.c) reports it.
 */
#include "channel_internal.h"
#include "common/file_size.h"
#include "watch.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* A member that could not open the channel after it had joined sends this. */
#define MAGIC_WITHDRAWN 0x57304d54u /* "TM0W" */
/* More messages come only from a member that does not keep to the protocol. */
#define LOOKS 4096

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Write the channel's state, as the maker knows it, to its handle and to the shared memory. */
static void update(struct tmesh_channel *channel)
{
	uint32_t state = 0;

	if (channel->had_producers && !channel->producers)
		state |= CHANNEL_NO_PRODUCERS;
	if (channel->had_consumers && !channel->consumers)
		state |= CHANNEL_NO_CONSUMERS;
	atomic_store(&channel->head->state, state);
	atomic_store(&channel->over,
		     state & (channel->role == TMESH_CHANNEL_SEND ? CHANNEL_NO_CONSUMERS
								  : CHANNEL_NO_PRODUCERS));
}

static void came(struct tmesh_channel *channel, enum tmesh_channel_role role)
{
	if (role == TMESH_CHANNEL_SEND) {
		channel->producers++;
		channel->had_producers++;
	} else {
		channel->consumers++;
		channel->had_consumers++;
	}
	update(channel);
}

/* Count a member that has gone. One that withdrew after it had joined does not end the channel. */
static void went(struct tmesh_channel *channel, const struct channel_member *member)
{
	if (member->role == TMESH_CHANNEL_SEND) {
		channel->producers--;
		channel->had_producers -= member->withdrew;
	} else {
		channel->consumers--;
		channel->had_consumers -= member->withdrew;
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

/* Read what came by a member's connection: it can only say that the member withdraws. */
static void read_connection(struct channel_member *member)
{
	for (int i = 0; i < LOOKS; i++) {
		struct tmesh_wire_region message;
		int got = tmesh_wire_recv(member->fd, &message, sizeof(message), NULL, 0, 0);

		if (got == -EAGAIN || got == -EPIPE)
			return;
		if (got == 0 && message.magic == MAGIC_WITHDRAWN)
			member->withdrew = true;
	}
}

static void member_ended(struct tmesh_channel *channel, struct channel_member *member)
{
	read_connection(member);
	close_fd(&member->fd);
	went(channel, member);
	if (member->role == TMESH_CHANNEL_SEND && tmesh_channel_settle(channel, member->lane))
		channel->left |= 1ull << member->lane;
	/* Wake the others: the dead member may have taken a wake without acting on it. */
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
			close_fd(&channel->conn);
			atomic_store(&channel->over, 1);
			tmesh_channel_tell_all(channel);
			return;
		}
	}
}

static bool is_there(const struct tmesh_channel *channel, uint64_t head, uint64_t until)
{
	return (int64_t)(until - head) > 0 && until - head <= channel->shape.capacity;
}

/* Return whether the sender's messages would be lost with it; home->lock is held. */
static bool has_unreceived(const struct tmesh_channel *channel)
{
	const atomic_uint_fast64_t *until = &channel->owed_until;

	if (channel->role != TMESH_CHANNEL_SEND || channel->life != tmesh_fork_life() ||
	    channel_gone(channel))
		return false;
	/* A receiver that has not come yet does not find the maker's memory. */
	if (channel->maker && !channel->had_consumers)
		until = &channel->lane->tail;
	return is_there(channel, atomic_load_explicit(&channel->lane->head, memory_order_acquire),
			atomic_load_explicit(until, memory_order_acquire));
}

static uint64_t channel_unread(const struct tmesh_channel *channel)
{
	uint64_t left;

	if (channel->role != TMESH_CHANNEL_SEND || channel_gone(channel))
		return 0;
	left = atomic_load_explicit(&channel->lane->tail, memory_order_acquire) -
	       atomic_load_explicit(&channel->lane->head, memory_order_acquire);
	/* A peer may have overwritten either number. */
	return left <= channel->shape.capacity ? left : 0;
}

uint64_t tmesh_channels_unread(struct tmesh_ctx *ctx)
{
	uint64_t count = 0;

	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next)
		count += channel_unread(channel);
	return count;
}

uint64_t tmesh_channels_unreceived(struct tmesh_ctx *ctx)
{
	uint64_t count = 0;

	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next)
		count += has_unreceived(channel);
	return count;
}

uint64_t tmesh_channels_report(struct tmesh_ctx *ctx, uint64_t *messages)
{
	uint64_t count = 0;

	*messages = 0;
	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next) {
		if (channel->reported || !has_unreceived(channel))
			continue;
		channel->reported = true;
		*messages += channel_unread(channel);
		count++;
	}
	return count;
}

/* Report lost messages: to the context's log, or to standard error if it has none, as at exit. */
static void report_lost(struct tmesh_ctx *ctx, const struct tmesh_channel *channel)
{
	char message[256];

	if (channel->reported)
		return;
	snprintf(message, sizeof(message),
		 "a channel was closed, and no process received its messages within %.3g s "
		 "(TMESH_EXIT_WAIT): %" PRIu64 " messages are lost",
		 (double)ctx->exit_wait_ns / 1e9, channel_unread(channel));
	if (ctx->log)
		tmesh_log_later(ctx, TMESH_LOG_WARN, "%s", message);
	else
		tmesh_dprintf(STDERR_FILENO, "tmesh: process %d: %s\n", (int)getpid(), message);
}

struct tmesh_channel *tmesh_channels_parted(struct tmesh_ctx *ctx, bool *more)
{
	uint64_t now = tmesh_now_ns();

	*more = false;
	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next) {
		if (!channel->leaving)
			continue;
		if (!has_unreceived(channel))
			return channel;
		if (channel->maker && !channel->had_consumers && now >= channel->leaving_until) {
			report_lost(ctx, channel);
			return channel;
		}
		*more = true;
	}
	return NULL;
}

bool tmesh_channels_tidy(struct tmesh_ctx *ctx)
{
	uint64_t again = 0;

	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next) {
		for (uint32_t i = 0; channel->left && i < channel->shape.lanes; i++)
			if (channel->left >> i & 1 && !tmesh_channel_settle(channel, i))
				channel->left &= ~(1ull << i);
		again |= channel->left;
	}
	return again;
}

bool tmesh_channel_close_later(struct tmesh_channel *channel)
{
	struct tmesh_ctx *home = channel->home;
	bool leaves;

	pthread_mutex_lock(&home->lock);
	leaves = home->watch && has_unreceived(channel);
	channel->leaving = leaves;
	channel->leaving_until = tmesh_now_ns() + home->exit_wait_ns;
	if (leaves)
		tmesh_watch_nudge(home->watch);
	pthread_mutex_unlock(&home->lock);
	/* The watch may have freed it by now. */
	return leaves;
}

static void notifiers_close(struct tmesh_channel *channel)
{
	for (int i = 0; i < CHANNEL_NOTIFIERS; i++) {
		close_fd(&channel->notifiers[i].signal);
		close_fd(&channel->notifiers[i].wait);
	}
}

static void connections_close(struct tmesh_channel *channel)
{
	close_fd(&channel->conn);
	for (uint32_t i = 0; channel->members && i < CHANNEL_MEMBERS; i++)
		close_fd(&channel->members[i].fd);
}

/* Close the connections in a child: they must end with the parent, and wake only its handles. */
void tmesh_channels_forked(struct tmesh_ctx *ctx)
{
	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next) {
		connections_close(channel);
		notifiers_close(channel);
		tmesh_channel_stores_forked(channel);
		tmesh_channel_questions_drop(channel);
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
	for (int i = 0; channel->shape.pollable && i < CHANNEL_NOTIFIERS; i++) {
		int ends[2];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
			return tmesh_fail_errno(err,
						"making a socket pair to wake a channel's ends");
		channel->notifiers[i] =
			(struct channel_notifier){.signal = ends[0], .wait = ends[1]};
	}
	came(channel, channel->role);
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

/* Leave the list of channels. A channel that was inherited through fork() is in none. */
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
	notifiers_close(channel);
	tmesh_channel_stores_close(channel);
	pthread_mutex_unlock(&channel->home->lock);
	free(channel->members);
}

/* Return whether all messages of the lane's last sender were taken. */
static bool is_empty(const struct tmesh_channel *channel, uint32_t number)
{
	struct channel_lane *lane = channel_lane(channel, number);
	uint64_t head = atomic_load_explicit(&lane->head, memory_order_acquire);

	return !channel_published(atomic_load_explicit(&channel_cell(channel, lane, head)->word,
						       memory_order_acquire),
				  head);
}

/* Return the number of a lane without a sender, an empty one if possible, or -1. A maker that sends
 * has the first lane. */
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

/* Free the places of members that have gone, before the watch has noticed. */
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

void tmesh_channel_unadmit(struct tmesh_channel *channel, int conn)
{
	for (uint32_t i = 0; i < CHANNEL_MEMBERS; i++)
		if (channel->members[i].fd == conn)
			channel->members[i].withdrew = true;
}

void tmesh_channel_withdraw(struct tmesh_channel *channel)
{
	const struct tmesh_wire_region message = {
		.magic = MAGIC_WITHDRAWN,
		.version = TMESH_WIRE_VERSION,
	};

	/* If it cannot be sent the maker takes the end of the connection for that of a member. */
	if (channel->conn >= 0)
		tmesh_wire_send(channel->conn, &message, sizeof(message), NULL, 0, MSG_DONTWAIT);
}

static void give_ends(struct tmesh_channel *channel, const struct channel_member *member,
		      struct tmesh_joined *joined)
{
	struct channel_store own;
	int *to = joined->fds;

	if (channel->shape.pollable) {
		*to++ = channel->notifiers[channel_peer_notifier(member->role)].signal;
		*to++ = channel->notifiers[channel_own_notifier(member->role)].signal;
		*to++ = channel->notifiers[channel_own_notifier(member->role)].wait;
	}
	if (member->role == TMESH_CHANNEL_RECV) {
		*to++ = channel->store->ends.get;
	} else if (tmesh_channel_lane_store(channel, member->lane, &own)) {
		*to++ = own.get;
		*to++ = own.put;
		joined->given = 2;
	}
	joined->count = (unsigned int)(to - joined->fds);
	joined->lane = member->lane;
}

int tmesh_channel_admit(struct tmesh_channel *channel, int conn, uint32_t role,
			struct tmesh_joined *joined)
{
	struct channel_member *member;
	int number, rc;

	if (role != TMESH_CHANNEL_SEND && role != TMESH_CHANNEL_RECV)
		return -EINVAL;
	/* A closed channel admits only receivers, for the messages that it has. */
	if (role == TMESH_CHANNEL_SEND && channel->leaving)
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
	member->withdrew = false;
	give_ends(channel, member, joined);
	/* The new sender looks after the messages of the lane's last sender. */
	if (role == TMESH_CHANNEL_SEND)
		channel->left &= ~(1ull << member->lane);
	came(channel, member->role);
	return 0;
}
