// SPDX-License-Identifier: MIT
/*
 * Holds: regions that their context keeps until a process with their token has opened them.
 *
 * The token of a hold is not in the index, so that every process that opens it asks the server
 * (server.c), which reports it here. On the module the kernel redeems tokens and counts them for
 * each region. The context reads the count while it holds something. The kernel also keeps regions
 * that are to survive this process.
 *
 * A thread of the context runs while there are holds. It releases regions that were opened and
 * regions that no process opened in time. It has a reference to the context, which may be the last
 * one.
 */
#include "common/file_size.h"
#include "held.h"
#include "wire.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHAINS 256u
/* How long after an open on the module its hold ends, at most. */
#define LOOK_NS 50000000u

struct tmesh_hold {
	struct tmesh_hold *chain;    /* with the same first byte of the secret */
	struct tmesh_hold *sibling;  /* of the same region */
	struct tmesh_hold *over;     /* of those whose reference is to be dropped */
	struct tmesh_region *region; /* a reference until that is done */
	uint8_t secret[TMESH_SECRET_BYTES];
	uint32_t rights;
	bool held;
	bool pending; /* a reference is there */
	uint64_t deadline;
	uint64_t opens; /* module: over once the region was opened so often */
};

/* Guarded by ctx->lock. */
struct tmesh_holds {
	pthread_cond_t changed;
	bool runs; /* the thread, with a reference to the context */
	uint32_t held;
	uint32_t mortal; /* of them: end with this process */
	uint64_t bytes;
	uint64_t mortal_bytes;
	uint64_t expired;
	struct tmesh_hold *over;
	struct tmesh_hold *chains[CHAINS];
};

static struct tmesh_hold **chain_of(struct tmesh_holds *holds, const uint8_t *secret)
{
	return &holds->chains[secret[0] % CHAINS];
}

struct tmesh_hold *tmesh_hold_find(struct tmesh_ctx *ctx, const uint8_t *secret)
{
	struct tmesh_hold *hold = ctx->holds ? *chain_of(ctx->holds, secret) : NULL;

	while (hold && memcmp(hold->secret, secret, sizeof(hold->secret)))
		hold = hold->chain;
	/* With the region its tokens were taken back. */
	return hold && !hold->region->memfd.taken_back ? hold : NULL;
}

struct tmesh_region *tmesh_hold_region(const struct tmesh_hold *hold)
{
	return hold->region;
}

uint32_t tmesh_hold_rights(const struct tmesh_hold *hold)
{
	return hold->rights;
}

static void wait_until(struct tmesh_ctx *ctx, uint64_t deadline)
{
	struct timespec until = {
		.tv_sec = (time_t)(deadline / 1000000000u),
		.tv_nsec = (long)(deadline % 1000000000u),
	};

	if (deadline == UINT64_MAX)
		pthread_cond_wait(&ctx->holds->changed, &ctx->lock);
	else
		pthread_cond_timedwait(&ctx->holds->changed, &ctx->lock, &until);
}

/* End a hold. It counts no more; the thread drops the reference. */
static void hold_end(struct tmesh_holds *holds, struct tmesh_hold *hold)
{
	struct tmesh_region *region = hold->region;

	hold->held = false;
	hold->over = holds->over;
	holds->over = hold;
	holds->held--;
	if (!--region->holds) {
		holds->bytes -= region->alloc;
		if (!region->outlives)
			holds->mortal_bytes -= region->alloc;
	}
	if (!region->outlives)
		holds->mortal--;
	pthread_cond_broadcast(&holds->changed);
}

void tmesh_hold_opened(struct tmesh_hold *hold)
{
	if (hold->held)
		hold_end(hold->region->ctx->holds, hold);
}

void tmesh_hold_revoke(struct tmesh_region *region)
{
	for (struct tmesh_hold *hold = region->hold; hold; hold = hold->sibling)
		tmesh_hold_opened(hold);
}

static void remove_entry(struct tmesh_holds *holds, struct tmesh_hold *hold)
{
	struct tmesh_hold **at = chain_of(holds, hold->secret);

	while (*at != hold)
		at = &(*at)->chain;
	*at = hold->chain;
	free(hold);
}

void tmesh_hold_forget(struct tmesh_region *region)
{
	struct tmesh_ctx *ctx = region->ctx;

	if (!region->hold)
		return;
	pthread_mutex_lock(&ctx->lock);
	while (region->hold) {
		struct tmesh_hold *hold = region->hold;

		region->hold = hold->sibling;
		remove_entry(ctx->holds, hold);
	}
	pthread_mutex_unlock(&ctx->lock);
}

static bool was_opened(const struct tmesh_hold *hold)
{
	const struct tmesh_backend_ops *ops = hold->region->ctx->ops;

	return ops->opens && ops->opens(hold->region) >= hold->opens;
}

/* End opened holds before another one of the region begins: nothing waits for them any more. */
static void end_opened(struct tmesh_region *region)
{
	for (struct tmesh_hold *hold = region->hold; hold; hold = hold->sibling)
		if (hold->held && was_opened(hold))
			hold_end(region->ctx->holds, hold);
}

/* End holds that waited too long, and those that the module reports as opened. Return when to look
 * again. */
static uint64_t end_over(struct tmesh_ctx *ctx)
{
	struct tmesh_holds *holds = ctx->holds;
	uint64_t now = tmesh_now_ns(), next = UINT64_MAX;

	if (ctx->ops->opens && holds->held)
		next = now + LOOK_NS;

	for (uint32_t i = 0; i < CHAINS; i++) {
		for (struct tmesh_hold *hold = holds->chains[i]; hold; hold = hold->chain) {
			if (!hold->held)
				continue;
			if (was_opened(hold)) {
				hold_end(holds, hold);
			} else if (hold->deadline <= now) {
				holds->expired++;
				hold_end(holds, hold);
			} else if (hold->deadline < next) {
				next = hold->deadline;
			}
		}
	}
	return next;
}

/* Drop one reference. The lock is released, since the last reference frees memory and takes it. */
static void drop_one(struct tmesh_ctx *ctx)
{
	struct tmesh_hold *hold = ctx->holds->over;
	struct tmesh_region *region = hold->region;

	ctx->holds->over = hold->over;
	hold->pending = false;
	if (region->outlives && !region->holds) {
		region->outlives = false;
		ctx->ops->unhold(region);
	}
	pthread_mutex_unlock(&ctx->lock);
	tmesh_region_unref(region);
	pthread_mutex_lock(&ctx->lock);
}

static void *holds_run(void *data)
{
	struct tmesh_ctx *ctx = data;
	struct tmesh_holds *holds = ctx->holds;

	pthread_setname_np(pthread_self(), "tmesh-hold");
	pthread_mutex_lock(&ctx->lock);
	while (holds->held || holds->over) {
		uint64_t next = end_over(ctx);

		if (holds->over)
			drop_one(ctx);
		else
			wait_until(ctx, next);
	}
	holds->runs = false;
	pthread_cond_broadcast(&holds->changed);
	pthread_mutex_unlock(&ctx->lock);
	tmesh_ctx_unref(ctx);
	return NULL;
}

/* Start the thread, with all signals blocked: they are the application's. No call joins it, because
 * it may itself end the context. */
static int start_thread(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t thread;
	int rc;

	if (ctx->holds->runs)
		return 0;
	tmesh_ctx_ref(ctx);
	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, &attr, holds_run, ctx);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (rc) {
		/* The caller has another one. */
		atomic_fetch_sub(&ctx->refs, 1);
		return tmesh_fail(err, -rc, "cannot start the thread that ends holds");
	}
	ctx->holds->runs = true;
	return 0;
}

static int holds_new(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_holds *holds;
	pthread_condattr_t attr;

	if (ctx->holds)
		return 0;
	holds = calloc(1, sizeof(*holds));
	if (!holds)
		return tmesh_fail(err, -ENOMEM, "no memory to hold regions");
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&holds->changed, &attr);
	pthread_condattr_destroy(&attr);
	ctx->holds = holds;
	return 0;
}

static uint64_t max_bytes(const struct tmesh_ctx *ctx)
{
	if (ctx->max_held_bytes)
		return ctx->max_held_bytes;
	return (uint64_t)sysconf(_SC_PHYS_PAGES) / 4 * tmesh_page_bytes();
}

static int check_limits(struct tmesh_region *region, struct tmesh_error *err)
{
	const struct tmesh_holds *holds = region->ctx->holds;
	uint64_t most = max_bytes(region->ctx), more = region->holds ? 0 : region->alloc;

	if (holds->held >= TMESH_HOLD_MAX)
		return tmesh_fail(
			err, -EDQUOT,
			"hold: %u tokens of this context hold memory already and were not "
			"opened; tmesh_ctx_flush() waits for that",
			holds->held);
	if (more > most || holds->bytes > most - more)
		return tmesh_fail(
			err, -EDQUOT,
			"hold: %" PRIu64 " more bytes pass this context's limit of %" PRIu64
			" (max_held_bytes), of which %" PRIu64 " are held and were not opened",
			more, most, holds->bytes);
	return 0;
}

/* Find an entry for a hold. A token whose hold was opened may hold again, so there are never more
 * tokens than holds at one time. */
static int entry_for(struct tmesh_region *region, uint32_t rights, struct tmesh_hold **out,
		     struct tmesh_error *err)
{
	struct tmesh_hold *hold = region->hold;
	int rc;

	while (hold && (hold->pending || hold->rights != rights))
		hold = hold->sibling;
	*out = hold;
	if (hold)
		return 0;
	hold = calloc(1, sizeof(*hold));
	if (!hold)
		return tmesh_fail(err, -ENOMEM, "no memory to hold a region");
	rc = tmesh_random(hold->secret, sizeof(hold->secret), err);
	if (rc) {
		free(hold);
		return rc;
	}
	hold->region = region;
	hold->rights = rights;
	hold->sibling = region->hold;
	region->hold = hold;
	hold->chain = *chain_of(region->ctx->holds, hold->secret);
	*chain_of(region->ctx->holds, hold->secret) = hold;
	*out = hold;
	return 0;
}

/* Have the kernel keep the region until the last of its holds, in case this process ends. */
static void outlive(struct tmesh_region *region, uint64_t now, uint64_t deadline)
{
	struct tmesh_holds *holds = region->ctx->holds;
	bool survives;

	if (!region->ctx->ops->hold || (region->outlives && region->outlives_until >= deadline))
		return;
	survives = region->ctx->ops->hold(region, deadline - now);
	if (survives)
		region->outlives_until = deadline;
	if (survives == region->outlives || !survives)
		return;
	region->outlives = true;
	if (region->holds) {
		holds->mortal -= region->holds;
		holds->mortal_bytes -= region->alloc;
	}
}

static int hold_begin(struct tmesh_region *region, uint32_t rights, uint64_t ns, uint8_t *secret,
		      struct tmesh_error *err)
{
	struct tmesh_ctx *ctx = region->ctx;
	struct tmesh_holds *holds;
	struct tmesh_hold *hold;
	uint64_t now = tmesh_now_ns();
	int rc = holds_new(ctx, err);

	if (rc)
		return rc;
	end_opened(region);
	rc = check_limits(region, err);
	if (rc)
		return rc;
	holds = ctx->holds;
	rc = entry_for(region, rights, &hold, err);
	if (rc)
		return rc;
	rc = start_thread(ctx, err);
	if (rc)
		return rc;
	outlive(region, now, now + ns);
	if (ctx->ops->opens)
		hold->opens = ctx->ops->opens(region) + region->holds + 1;
	if (!region->holds++) {
		holds->bytes += region->alloc;
		if (!region->outlives)
			holds->mortal_bytes += region->alloc;
	}
	holds->held++;
	if (!region->outlives)
		holds->mortal++;
	hold->held = hold->pending = true;
	hold->deadline = now + ns;
	tmesh_region_ref(region);
	memcpy(secret, hold->secret, sizeof(hold->secret));
	/* It may be the first to end. */
	pthread_cond_broadcast(&holds->changed);
	return 0;
}

int tmesh_region_hold(struct tmesh_region *region, uint32_t rights, uint64_t ns, char *token,
		      struct tmesh_error *err)
{
	struct tmesh_ctx *ctx;
	struct tmesh_token_fields parts;
	char text[TMESH_TOKEN_SIZE];
	uint8_t secret[TMESH_SECRET_BYTES];
	int rc = TMESH_NEED(err, region, token);

	if (rc)
		return rc;
	ctx = region->ctx;
	if (ns > TMESH_HOLD_MAX_NS)
		return tmesh_fail(err, -EINVAL, "hold: %" PRIu64 " ns are more than a day", ns);
	/* All that a token needs is there from then on. */
	rc = tmesh_region_token(region, rights, text, err);
	if (!rc)
		rc = tmesh_token_parse(text, &parts, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&ctx->lock);
	rc = hold_begin(region, rights, ns ? ns : TMESH_HOLD_NS, secret, err);
	pthread_mutex_unlock(&ctx->lock);
	if (rc)
		return rc;
	if (parts.backend == TMESH_BACKEND_MEMFD)
		memcpy(parts.secret, secret, sizeof(secret));
	tmesh_token_format(token, &parts);
	return 0;
}

/* Return the context of the channels' own memory: this one, one beside it, or NULL. */
static struct tmesh_ctx *home_of(struct tmesh_ctx *ctx)
{
	return ctx->ops->backend == TMESH_BACKEND_MEMFD ? ctx : atomic_load(&ctx->kernel.beside);
}

static void held_count(struct tmesh_ctx *ctx, struct tmesh_flushed *left)
{
	struct tmesh_ctx *home = home_of(ctx);

	*left = (struct tmesh_flushed){.size = sizeof(*left)};
	pthread_mutex_lock(&ctx->lock);
	if (ctx->holds) {
		left->held = ctx->holds->held;
		left->held_bytes = ctx->holds->bytes;
		left->held_expired = ctx->holds->expired;
	}
	pthread_mutex_unlock(&ctx->lock);
	if (!home)
		return;
	pthread_mutex_lock(&home->lock);
	left->messages = tmesh_channels_unread(home);
	pthread_mutex_unlock(&home->lock);
}

/* Pause, because nothing wakes a sender when messages are received, unless it sleeps on its queue.
 */
static void pause_until(uint64_t deadline)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	if (tmesh_now_ns() < deadline)
		nanosleep(&pause, NULL);
}

int tmesh_ctx_flush(struct tmesh_ctx *ctx, int64_t timeout_ns, struct tmesh_flushed *left,
		    struct tmesh_error *err)
{
	uint64_t deadline = timeout_ns < 0 ? UINT64_MAX : tmesh_now_ns() + (uint64_t)timeout_ns;
	struct tmesh_flushed there;
	int rc = tmesh_ctx_enter(ctx, err), wrote = 0;

	if (rc)
		return rc;
	pthread_mutex_lock(&ctx->lock);
	while (ctx->holds && ctx->holds->held && tmesh_now_ns() < deadline)
		wait_until(ctx, deadline);
	pthread_mutex_unlock(&ctx->lock);
	for (held_count(ctx, &there); there.messages && tmesh_now_ns() < deadline;
	     held_count(ctx, &there))
		pause_until(deadline);
	if (there.held || there.messages)
		rc = tmesh_fail(err, -ETIMEDOUT,
				"flush: %" PRIu64 " tokens hold %" PRIu64
				" bytes and were not opened, and %" PRIu64
				" messages of channels were not received",
				there.held, there.held_bytes, there.messages);
	if (left)
		wrote = tmesh_write_sized(left, &there, sizeof(there), err);
	return wrote ? wrote : rc;
}

/* The end of the process. No call here waits longer than the given time, because exit() may have
 * been called anywhere. */

static bool lock_until(struct tmesh_ctx *ctx, uint64_t deadline)
{
	/* A wait by CLOCK_MONOTONIC would need glibc 2.30, and the wheel runs on 2.28. */
	while (pthread_mutex_trylock(&ctx->lock)) {
		if (tmesh_now_ns() >= deadline)
			return false;
		usleep(1000);
	}
	return true;
}

static void tell_lost(struct tmesh_ctx *ctx, uint64_t waited_ns)
{
	uint64_t messages, channels = tmesh_channels_report(ctx, &messages);
	double seconds = (double)waited_ns / 1e9;

	if (ctx->holds && ctx->holds->mortal)
		tmesh_dprintf(
			STDERR_FILENO,
			"tmesh: process %d ends. It waited %.3g s (TMESH_EXIT_WAIT), and %u of "
			"its tokens that hold memory were not opened: "
			"%" PRIu64 " bytes are lost. Keep memory that must outlive its process "
			"(tmesh_keep())\n",
			(int)getpid(), seconds, ctx->holds->mortal, ctx->holds->mortal_bytes);
	if (channels)
		tmesh_dprintf(STDERR_FILENO,
			      "tmesh: process %d ends; the messages of %" PRIu64
			      " of its channels were not received within the %.3g s that it waited "
			      "(TMESH_EXIT_WAIT): "
			      "%" PRIu64 " messages may be lost\n",
			      (int)getpid(), channels, seconds, messages);
}

/* The wait at the process's end. @flush: first print buffered output, because a token in it cannot
 * be opened until another process reads it. The destructor waits only for contexts whose program
 * asked for that. */
struct farewell {
	uint64_t start;
	bool flush;
	bool asked; /* by tmesh_exit_wait(), for @ns */
	uint64_t ns;
};

/* Flush the stream if its lock is free. fflush(NULL) would wait for each stream's lock, and a
 * thread that reads holds its stream's until input comes. */
static void flush(FILE *stream)
{
	if (ftrylockfile(stream))
		return;
	fflush_unlocked(stream);
	funlockfile(stream);
}

static void wait_for_holds(struct tmesh_ctx *ctx, void *data)
{
	struct farewell *farewell = data;
	uint64_t ns = farewell->asked ? farewell->ns : ctx->waits_at_exit ? ctx->exit_wait_ns : 0;
	uint64_t deadline = farewell->start + ns;

	if (!lock_until(ctx, deadline))
		return;
	if (farewell->flush &&
	    ((ctx->holds && ctx->holds->mortal) || tmesh_channels_unreceived(ctx))) {
		farewell->flush = false;
		pthread_mutex_unlock(&ctx->lock);
		flush(stdout);
		flush(stderr);
		if (!lock_until(ctx, deadline))
			return;
	}
	while (ctx->holds && ctx->holds->mortal && tmesh_now_ns() < deadline)
		wait_until(ctx, deadline);
	while (tmesh_channels_unreceived(ctx) && tmesh_now_ns() < deadline) {
		pthread_mutex_unlock(&ctx->lock);
		pause_until(deadline);
		if (!lock_until(ctx, deadline + 1000000))
			return;
	}
	tell_lost(ctx, ns);
	pthread_mutex_unlock(&ctx->lock);
}

void tmesh_exit_wait(int64_t timeout_ns)
{
	struct farewell farewell = {
		.start = tmesh_now_ns(),
		.asked = true,
		.ns = timeout_ns < 0 ? INT64_MAX : (uint64_t)timeout_ns,
	};

	tmesh_fork_each(wait_for_holds, &farewell);
}

/* Wait before exit() itself writes the buffers of stdio. */
__attribute__((destructor)) static void at_exit(void)
{
	struct farewell farewell = {.start = tmesh_now_ns(), .flush = true};

	tmesh_fork_each(wait_for_holds, &farewell);
}

void tmesh_holds_forked(struct tmesh_ctx *ctx)
{
	/* A grandchild keeps only the copies from its grandparent: its parent's are never seen. */
	if (!ctx->inherited_holds)
		ctx->inherited_holds = ctx->holds;
	ctx->holds = NULL;
}

void tmesh_holds_disown(struct tmesh_ctx *ctx)
{
	struct tmesh_holds *holds = ctx->inherited_holds;

	ctx->inherited_holds = NULL;
	for (uint32_t i = 0; holds && i < CHAINS; i++) {
		while (holds->chains[i]) {
			struct tmesh_hold *hold = holds->chains[i];

			holds->chains[i] = hold->chain;
			if (hold->pending)
				tmesh_region_unref(hold->region);
			free(hold);
		}
	}
	if (holds && holds->runs)
		tmesh_ctx_unref(ctx);
	free(holds);
}

void tmesh_holds_free(struct tmesh_ctx *ctx)
{
	if (!ctx->holds)
		return;
	pthread_cond_destroy(&ctx->holds->changed);
	free(ctx->holds);
}
