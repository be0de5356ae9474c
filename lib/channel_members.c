// SPDX-License-Identifier: MIT
/*
 * Who is at a channel. Whoever joins asks the maker's server by socket, as for a region, and the
 * connection stays: its end is the death of the one or of the other, in whatever PID namespace
 * they live. A thread of each context with channels watches these connections and does nothing
 * else.
 */
#include "channel_internal.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 16

/* Guarded by ctx->lock, which the thread holds but while it waits for events. */
struct tmesh_watch {
	struct tmesh_ctx *ctx;
	int epoll;
	int stop;
	pthread_t thread;
	uint64_t last; /* number given to a connection */
	int nudge;     /* something parts */
	bool orphan;   /* the context has ended, by what this thread let go of */
};

/* What epoll says beside the numbers of connections, which begin after these. */
enum {
	SAYS_STOP,
	SAYS_NUDGE,
	SAYS_LAST,
};
/* Nobody tells the watch that something was received. */
#define TICK_MS 5

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static int watch_add(struct tmesh_watch *watch, int fd, uint64_t *number)
{
	/* What comes by it is for who receives: channel_hand.c */
	struct epoll_event event = {.events = EPOLLRDHUP, .data.u64 = ++watch->last};

	*number = event.data.u64;
	return epoll_ctl(watch->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

/* What the maker knows for certain, told to itself and, by memory, to the others. */
static void update(struct tmesh_channel *channel)
{
	uint32_t state = channel->shared;

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
		if (change > 0)
			channel->shared += CHANNEL_MAKER_SHARED;
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
	/* Others look after what it was told of and did not do. */
	tmesh_channel_tell_all(channel);
}

/* A connection has ended. What came by it before is still good. */
static void ended(struct tmesh_ctx *ctx, uint64_t number)
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

/* One that has parted and owes nothing any more, or whose time is over. @more: others part. */
static struct tmesh_channel *parted(struct tmesh_ctx *ctx, bool *more)
{
	uint64_t now = tmesh_now_ns();

	*more = false;
	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next) {
		if (!channel->parting)
			continue;
		if (!tmesh_channel_owes(channel))
			return channel;
		if (channel->maker && !channel->had_consumer && now >= channel->parting_until) {
			tmesh_log(ctx, TMESH_LOG_WARN,
				  "a channel was closed, and nobody came to receive what was sent");
			return channel;
		}
		*more = true;
	}
	return NULL;
}

static void watch_free(struct tmesh_watch *watch);

static void drop_all(struct tmesh_region *later)
{
	while (later) {
		struct tmesh_region *next = later->later;

		tmesh_region_unref(later);
		later = next;
	}
}

void tmesh_later_drain(struct tmesh_ctx *ctx)
{
	struct tmesh_ctx *home =
		ctx->ops->backend == TMESH_BACKEND_MEMFD ? ctx : atomic_load(&ctx->beside);

	if (home && atomic_load_explicit(&home->later, memory_order_relaxed))
		drop_all(atomic_exchange(&home->later, NULL));
}

/* ctx->lock is held, and let go of meanwhile. Return: whether anything is left to be looked at;
 * then the context may have ended with what was let go of, as watch->orphan says. */
static bool see_off(struct tmesh_watch *watch)
{
	struct tmesh_ctx *ctx = watch->ctx;
	struct tmesh_channel *channel;
	bool more;

	struct tmesh_region *later;

	for (;;) {
		later = atomic_exchange(&ctx->later, NULL);
		channel = later ? NULL : parted(ctx, &more);
		if (!later && !channel)
			break;
		tmesh_ctx_ref(ctx);
		pthread_mutex_unlock(&ctx->lock);
		drop_all(later);
		if (channel)
			tmesh_channel_free(channel);
		tmesh_ctx_unref(ctx);
		if (watch->orphan)
			return false;
		pthread_mutex_lock(&ctx->lock);
	}
	return more;
}

static void *run(void *data)
{
	struct tmesh_watch *watch = data;
	struct epoll_event events[EVENTS];
	bool stop = false, more = false;
	uint64_t count;

	while (!stop) {
		int got = epoll_wait(watch->epoll, events, EVENTS, more ? TICK_MS : -1);

		pthread_mutex_lock(&watch->ctx->lock);
		for (int i = 0; i < got; i++) {
			if (events[i].data.u64 >= SAYS_LAST)
				ended(watch->ctx, events[i].data.u64);
			else if (events[i].data.u64 == SAYS_STOP)
				stop = true;
			else if (read(watch->nudge, &count, sizeof(count)) < 0)
				break; /* nobody else reads it */
		}
		more = see_off(watch);
		if (watch->orphan) {
			watch_free(watch);
			return NULL;
		}
		pthread_mutex_unlock(&watch->ctx->lock);
	}
	return NULL;
}

static void nudge(struct tmesh_ctx *ctx)
{
	const uint64_t one = 1;

	/* One that is full has been heard. */
	if (write(ctx->watch->nudge, &one, sizeof(one)) < 0)
		return;
}

void tmesh_channel_drop_later(struct tmesh_channel *channel, struct tmesh_region *region)
{
	struct tmesh_ctx *home = channel->home;
	struct tmesh_region *first;

	if (!region || tmesh_drop_one(&region->refs))
		return;
	/* The last reference is this one alone, so nobody else lays it there. */
	first = atomic_load(&home->later);
	do
		region->later = first;
	while (!atomic_compare_exchange_weak(&home->later, &first, region));
	if (!first)
		nudge(home);
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
		nudge(home);
	pthread_mutex_unlock(&home->lock);
	/* The watch may have freed it by now. */
	return parts;
}

static void watch_free(struct tmesh_watch *watch)
{
	close_fd(&watch->epoll);
	close_fd(&watch->stop);
	close_fd(&watch->nudge);
	free(watch);
}

/* Signals are the application's: none is to be handled on this thread. */
static int start(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_watch *watch = calloc(1, sizeof(*watch));
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = SAYS_STOP};
	struct epoll_event says_nudge = {.events = EPOLLIN, .data.u64 = SAYS_NUDGE};
	sigset_t all, old;
	int rc = 0;

	if (!watch)
		return tmesh_fail(err, -ENOMEM, "no memory to watch a channel's peers");
	watch->ctx = ctx;
	watch->epoll = epoll_create1(EPOLL_CLOEXEC);
	watch->stop = eventfd(0, EFD_CLOEXEC);
	watch->nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	watch->last = SAYS_LAST;
	if (watch->epoll < 0 || watch->stop < 0 || watch->nudge < 0 ||
	    epoll_ctl(watch->epoll, EPOLL_CTL_ADD, watch->stop, &event) ||
	    epoll_ctl(watch->epoll, EPOLL_CTL_ADD, watch->nudge, &says_nudge))
		rc = tmesh_fail_errno(err, "cannot watch a channel's peers");
	if (!rc) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		rc = -pthread_create(&watch->thread, NULL, run, watch);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
		if (rc)
			tmesh_fail(err, rc,
				   "cannot start the thread that watches a channel's "
				   "peers");
	}
	if (rc)
		watch_free(watch);
	else
		ctx->watch = watch;
	return rc;
}

void tmesh_watch_stop(struct tmesh_ctx *ctx)
{
	const uint64_t one = 1;

	if (!ctx->watch)
		return;
	if (pthread_equal(pthread_self(), ctx->watch->thread)) {
		pthread_detach(ctx->watch->thread);
		ctx->watch->orphan = true;
		ctx->watch = NULL;
		return;
	}
	/* An empty eventfd takes it at once. */
	if (write(ctx->watch->stop, &one, sizeof(one)) == sizeof(one))
		pthread_join(ctx->watch->thread, NULL);
	watch_free(ctx->watch);
	ctx->watch = NULL;
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
void tmesh_watch_forked(struct tmesh_ctx *ctx)
{
	for (struct tmesh_channel *channel = ctx->channels; channel; channel = channel->next) {
		connections_close(channel);
		bells_close(channel);
		tmesh_channel_hands_drop(channel);
	}
	ctx->channels = NULL;
	if (ctx->watch)
		watch_free(ctx->watch);
	ctx->watch = NULL;
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
			return tmesh_fail_errno(err, "a channel's bell");
		channel->bells[i] = (struct channel_bell){.ring = ends[0], .wait = ends[1]};
	}
	count(channel, channel->role, 1);
	return 0;
}

int tmesh_channel_watch(struct tmesh_channel *channel, struct tmesh_error *err)
{
	struct tmesh_ctx *ctx = channel->home;
	int rc = ctx->watch ? 0 : start(ctx, err);

	if (!rc && channel->conn >= 0) {
		rc = watch_add(ctx->watch, channel->conn, &channel->watch);
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

int tmesh_channel_admit(struct tmesh_channel *channel, int conn, uint32_t role, uint32_t *lane,
			int fds[TMESH_JOIN_FDS])
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
	rc = watch_add(channel->home->watch, conn, &member->watch);
	if (rc)
		return rc;
	member->fd = conn;
	member->role = (enum tmesh_channel_role)role;
	member->lane = (uint32_t)number;
	*lane = member->lane;
	fds[0] = channel->bells[channel_far_bell(member->role)].ring;
	fds[1] = channel->bells[channel_own_bell(member->role)].ring;
	fds[2] = channel->bells[channel_own_bell(member->role)].wait;
	count(channel, member->role, 1);
	/* What was handed to the only one may go to another now. */
	if (channel->role == TMESH_CHANNEL_RECV && channel->consumers > 1)
		tmesh_channel_hands_drop(channel);
	return 0;
}
