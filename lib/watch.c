// SPDX-License-Identifier: MIT
/*
 * The watch: a thread of the context for work that no call of the program does. It notices the ends
 * of connections and processes. It frees channels that were closed and owe nothing any more. It
 * drops last references if the caller must not wait for the memory's release. It empties the pool
 * when no request takes from it.
 */
#include "channel_internal.h"
#include "watch.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS 16

/* Guarded by ctx->lock, which the thread holds but while it waits for events. */
struct tmesh_watch {
	struct tmesh_ctx *ctx;
	int epoll;
	int stop;
	pthread_t thread;
	uint64_t last; /* number given to a connection */
	int nudge;     /* something is to be done */
	bool orphan;   /* dropping a reference here has ended the context */
};

/* epoll's numbers beside those of connections, which begin after these. */
enum {
	SAYS_STOP,
	SAYS_NUDGE,
	SAYS_PEER,
	SAYS_LAST,
};
/* Intervals of looks: no event tells the watch that a message was received. The second is used if
 * only memory waits for it. */
#define TICK_MS 5
#define TIDY_MS 50
#define NS_PER_MS 1000000u

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

int tmesh_watch_add(struct tmesh_watch *watch, int fd, uint64_t *number)
{
	struct epoll_event event = {.events = EPOLLRDHUP, .data.u64 = ++watch->last};

	*number = event.data.u64;
	return epoll_ctl(watch->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

/*
 * Watch a peer's connection or pidfd, edge-triggered: a thread that asks may be using the
 * connection and keep it open for a moment. Adding a descriptor twice does no harm. If this fails,
 * a later call closes the peer's connection.
 */
void tmesh_watch_peer(struct tmesh_ctx *ctx, int fd)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET,
				    .data.u64 = SAYS_PEER};

	if (fd >= 0 && tmesh_watch_start(ctx, NULL) == 0)
		epoll_ctl(ctx->watch->epoll, EPOLL_CTL_ADD, fd, &event);
}

static void drop_all(struct tmesh_region *later)
{
	while (later) {
		struct tmesh_region *next = later->later;

		tmesh_region_unref(later);
		later = next;
	}
}

bool tmesh_later_drain(struct tmesh_ctx *ctx)
{
	struct tmesh_ctx *home =
		ctx->ops->backend == TMESH_BACKEND_MEMFD ? ctx : atomic_load(&ctx->kernel.beside);
	struct tmesh_region *later =
		home && atomic_load_explicit(&home->later, memory_order_relaxed)
			? atomic_exchange(&home->later, NULL)
			: NULL;

	drop_all(later);
	return later;
}

/* Do the watch's work. ctx->lock is held, and released meanwhile. Return whether closed channels
 * are left to be looked at again. If dropping references has ended the context (watch->orphan),
 * return false without the lock. */
static bool see_off(struct tmesh_watch *watch)
{
	struct tmesh_ctx *ctx = watch->ctx;
	struct tmesh_channel *channel;
	struct tmesh_region *later;
	bool more;

	for (;;) {
		later = atomic_exchange(&ctx->later, NULL);
		channel = later ? NULL : tmesh_channels_parted(ctx, &more);
		if (!later && !channel)
			break;
		tmesh_ctx_ref(ctx);
		pthread_mutex_unlock(&ctx->lock);
		tmesh_log_said(ctx);
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

static void watch_free(struct tmesh_watch *watch)
{
	close_fd(&watch->epoll);
	close_fd(&watch->stop);
	close_fd(&watch->nudge);
	free(watch);
}

static void *watch_run(void *data)
{
	struct tmesh_watch *watch = data;
	struct epoll_event events[EVENTS];
	bool stop = false, more = false, untidy = false, pool = false;
	uint64_t count, looked = 0;

	pthread_setname_np(pthread_self(), "tmesh-watch");
	while (!stop) {
		int pause = more     ? TICK_MS
			    : untidy ? TIDY_MS
			    : pool   ? watch->ctx->pool_look_ms
				     : -1;
		int got = epoll_wait(watch->epoll, events, EVENTS, pause);

		pthread_mutex_lock(&watch->ctx->lock);
		for (int i = 0; i < got; i++) {
			if (events[i].data.u64 >= SAYS_LAST)
				tmesh_channels_ended(watch->ctx, events[i].data.u64);
			else if (events[i].data.u64 == SAYS_STOP)
				stop = true;
			else if (events[i].data.u64 == SAYS_PEER)
				tmesh_peers_sweep(watch->ctx);
			else if (read(watch->nudge, &count, sizeof(count)) < 0)
				break; /* no other thread reads it */
		}
		more = see_off(watch);
		if (watch->orphan) {
			watch_free(watch);
			return NULL;
		}
		untidy = tmesh_channels_tidy(watch->ctx);
		looked = pool ? looked : tmesh_now_ns();
		pool = watch->ctx->pool_watched;
		pthread_mutex_unlock(&watch->ctx->lock);
		if (pool && tmesh_now_ns() - looked >= watch->ctx->pool_look_ms * NS_PER_MS) {
			tmesh_region_pool_age(watch->ctx);
			looked = tmesh_now_ns();
		}
	}
	return NULL;
}

void tmesh_watch_nudge(struct tmesh_watch *watch)
{
	const uint64_t one = 1;

	/* If the counter is full, the watch has already been woken. */
	if (write(watch->nudge, &one, sizeof(one)) < 0)
		return;
}

void tmesh_channel_drop_later(struct tmesh_channel *channel, struct tmesh_region *region)
{
	struct tmesh_ctx *home = channel->home;
	struct tmesh_region *first;

	if (!region || tmesh_drop_one(&region->refs))
		return;
	/* This is the last reference, so no other thread puts the region on the list. */
	first = atomic_load(&home->later);
	do
		region->later = first;
	while (!atomic_compare_exchange_weak(&home->later, &first, region));
	if (!first)
		tmesh_watch_nudge(home->watch);
}

/* Start the thread, with all signals blocked: they are the application's. */
int tmesh_watch_start(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = SAYS_STOP};
	struct epoll_event says_nudge = {.events = EPOLLIN, .data.u64 = SAYS_NUDGE};
	struct tmesh_watch *watch;
	sigset_t all, old;
	int rc = 0;

	if (ctx->watch)
		return 0;
	watch = calloc(1, sizeof(*watch));
	if (!watch)
		return tmesh_fail(err, -ENOMEM, "no memory to watch other processes");
	watch->ctx = ctx;
	watch->epoll = epoll_create1(EPOLL_CLOEXEC);
	watch->stop = eventfd(0, EFD_CLOEXEC);
	watch->nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	watch->last = SAYS_LAST;
	if (watch->epoll < 0 || watch->stop < 0 || watch->nudge < 0 ||
	    epoll_ctl(watch->epoll, EPOLL_CTL_ADD, watch->stop, &event) ||
	    epoll_ctl(watch->epoll, EPOLL_CTL_ADD, watch->nudge, &says_nudge))
		rc = tmesh_fail_errno(err, "cannot watch other processes");
	if (!rc) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		rc = -pthread_create(&watch->thread, NULL, watch_run, watch);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
		if (rc)
			tmesh_fail(err, rc, "cannot start the thread that watches other processes");
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

void tmesh_watch_forked(struct tmesh_ctx *ctx)
{
	tmesh_channels_forked(ctx);
	if (ctx->watch)
		watch_free(ctx->watch);
	ctx->watch = NULL;
	ctx->pool_watched = false;
}
