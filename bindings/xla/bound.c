// SPDX-License-Identifier: MIT
/*
 * Names bound to channels, and calls' turns at them.
 *
 * One lock guards the list and the members' fields that change. A call uses a channel in its turn,
 * without the lock. A member that is bound anew or unbound leaves the list; the last call that
 * refers to it frees it.
 */
#include "call.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

#define ARENA_BYTES (1u << 20)

struct bound {
	struct bound *next; /* in the list */
	unsigned int refs;
	char name[TMESH_XLA_NAME_MAX + 1];
	char token[TMESH_TOKEN_SIZE];
	enum tmesh_channel_role role;
	struct tmesh_ctx *ctx;
	struct tmesh_channel *channel;
	struct tmesh_arena *arena;
	bool busy;	      /* a call has the turn */
	unsigned int cancels; /* so far */
	pthread_cond_t turned;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bound *list;
static struct tmesh_ctx *context; /* exists while there are bindings */
static unsigned int bindings;
static uint64_t limit; /* of the context: max_bytes */
static _Atomic(bool (*)(void)) interrupted;

static struct bound **bound_find(const char *name)
{
	struct bound **at = &list;

	while (*at && strcmp((*at)->name, name))
		at = &(*at)->next;
	return at;
}

static int not_bound(const char *name, struct tmesh_error *err)
{
	return tmesh_fail(err, -ENOENT, "no channel is bound to the name \"%.*s\": bind it first",
			  TMESH_XLA_NAME_MAX, name);
}

/* Return the library's own context, separate from those of the process that loads it. It ends with
 * the last binding, and so does the memory that it keeps for the next push. */
static int get_context(struct tmesh_ctx **out, struct tmesh_error *err)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts),
				      .region_pool_bytes = TMESH_XLA_REGION_POOL_BYTES};
	int rc = 0;

	pthread_mutex_lock(&lock);
	opts.max_bytes = limit;
	if (!context)
		rc = tmesh_ctx_open(&opts, &context, err);
	if (!rc) {
		bindings++;
		*out = context;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static void put_context(void)
{
	struct tmesh_ctx *ctx = NULL;

	pthread_mutex_lock(&lock);
	if (!--bindings) {
		ctx = context;
		context = NULL;
	}
	pthread_mutex_unlock(&lock);
	tmesh_ctx_unref(ctx);
}

static void bound_put(struct bound *bound)
{
	bool last;

	pthread_mutex_lock(&lock);
	last = !--bound->refs;
	pthread_mutex_unlock(&lock);
	if (!last)
		return;
	tmesh_channel_unref(bound->channel);
	tmesh_arena_unref(bound->arena);
	put_context();
	pthread_cond_destroy(&bound->turned);
	free(bound);
}

/* Cancel all calls on @bound. Called with the lock. */
static void cancel(struct bound *bound)
{
	bound->cancels++;
	pthread_cond_broadcast(&bound->turned);
	tmesh_channel_wake(bound->channel);
}

/* Take a member from the list; the caller gets the list's reference. Called with the lock. */
static struct bound *take_out(struct bound **at)
{
	struct bound *bound = *at;

	if (!bound)
		return NULL;
	*at = bound->next;
	cancel(bound);
	return bound;
}

static int bound_new(struct tmesh_ctx *ctx, const char *name, const char *token,
		     enum tmesh_channel_role role, struct bound **out, struct tmesh_error *err)
{
	struct bound *bound = calloc(1, sizeof(*bound));
	pthread_condattr_t monotonic;
	int rc;

	if (!bound)
		return tmesh_fail(err, -ENOMEM, "no memory for a binding");
	rc = tmesh_channel_open(ctx, token, role, NULL, &bound->channel, err);
	if (!rc && role == TMESH_CHANNEL_SEND)
		rc = tmesh_arena_create(ctx, ARENA_BYTES, NULL, &bound->arena, err);
	if (rc) {
		tmesh_channel_unref(bound->channel);
		free(bound);
		return rc;
	}
	bound->ctx = ctx;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&bound->turned, &monotonic);
	pthread_condattr_destroy(&monotonic);
	bound->refs = 1;
	bound->role = role;
	memcpy(bound->name, name, strlen(name) + 1);
	/* It fits: tmesh_channel_open() has accepted it as a token. */
	snprintf(bound->token, sizeof(bound->token), "%s", token);
	*out = bound;
	return 0;
}

/* Return whether @name is bound to this channel already. It then has the only place that the
 * channel offers. */
static bool is_bound(const char *name, const char *token, enum tmesh_channel_role role)
{
	struct bound *bound;
	bool is;

	pthread_mutex_lock(&lock);
	bound = *bound_find(name);
	is = bound && bound->role == role && !strcmp(bound->token, token);
	pthread_mutex_unlock(&lock);
	return is;
}

int tmesh_xla_bind(const char *name, const char *token, enum tmesh_channel_role role,
		   struct tmesh_error *err)
{
	size_t bytes = name ? strnlen(name, TMESH_XLA_NAME_MAX + 1) : 0;
	struct bound *bound = NULL, *old, **at;
	struct tmesh_ctx *ctx;
	int rc;

	if (!bytes || bytes > TMESH_XLA_NAME_MAX || tmesh_utf8_span(name, bytes, false) != bytes)
		return tmesh_fail(err, -EINVAL,
				  "a name has 1 to %d bytes of UTF-8 without control characters",
				  TMESH_XLA_NAME_MAX);
	rc = get_context(&ctx, err);
	if (rc)
		return rc;
	rc = bound_new(ctx, name, token, role, &bound, err);
	if (rc) {
		put_context();
		return rc == -EBUSY && is_bound(name, token, role) ? 0 : rc;
	}
	pthread_mutex_lock(&lock);
	at = bound_find(name);
	old = take_out(at);
	bound->next = *at;
	*at = bound;
	pthread_mutex_unlock(&lock);
	if (old)
		bound_put(old);
	return 0;
}

int tmesh_xla_unbind(const char *name, struct tmesh_error *err)
{
	struct bound *bound;

	pthread_mutex_lock(&lock);
	bound = take_out(bound_find(name));
	pthread_mutex_unlock(&lock);
	if (!bound)
		return not_bound(name, err);
	bound_put(bound);
	return 0;
}

int tmesh_xla_cancel(const char *name, struct tmesh_error *err)
{
	struct bound *bound;

	pthread_mutex_lock(&lock);
	bound = *bound_find(name);
	if (bound)
		cancel(bound);
	pthread_mutex_unlock(&lock);
	return bound ? 0 : not_bound(name, err);
}

static int flush(struct turn *turn, void *data, int64_t timeout_ns, struct tmesh_error *err)
{
	return tmesh_channel_flush(turn->channel, timeout_ns, err);
}

int tmesh_xla_flush(const char *name, int64_t timeout_ns, struct tmesh_error *err)
{
	struct turn turn;
	int rc = xla_turn_begin(&turn, name, TMESH_CHANNEL_SEND, timeout_ns, err);

	if (rc)
		return rc;
	rc = xla_turn_wait(&turn, flush, NULL, err);
	xla_turn_end(&turn);
	return rc;
}

void tmesh_xla_limit(uint64_t max_bytes)
{
	pthread_mutex_lock(&lock);
	limit = max_bytes;
	if (context)
		tmesh_ctx_limit(context, max_bytes);
	pthread_mutex_unlock(&lock);
}

void tmesh_xla_ask(bool (*came)(void))
{
	atomic_store(&interrupted, came);
}

/* Ask the host whether a signal came. A signal that is handled just before a thread sleeps does not
 * wake it, so sleeps are short and ask. Called without the lock: the host may wait for its own. */
static bool is_interrupted(void)
{
	bool (*came)(void) = atomic_load(&interrupted);

	return came && came();
}

/* Return how long to sleep before the host is asked. */
static int64_t until_asked(int64_t left)
{
	if (!atomic_load(&interrupted) || (left >= 0 && left <= TMESH_XLA_ASK_NS))
		return left;
	return TMESH_XLA_ASK_NS;
}

int tmesh_xla_stats(struct tmesh_stats *stats, struct tmesh_error *err)
{
	size_t size = stats ? stats->size : 0;
	int rc = 0;

	if (size < sizeof(size))
		return tmesh_fail(err, -EINVAL, "set size to sizeof(struct tmesh_stats)");
	pthread_mutex_lock(&lock);
	if (context)
		rc = tmesh_stats(context, stats);
	else
		memset((char *)stats + sizeof(size), 0, size - sizeof(size));
	pthread_mutex_unlock(&lock);
	return rc;
}

static int cancelled(struct tmesh_error *err)
{
	return tmesh_fail(err, -ECANCELED,
			  "the call was cancelled, or its channel was unbound or bound anew");
}

static int timed_out(enum tmesh_channel_role role, struct tmesh_error *err)
{
	return tmesh_fail(err, -ETIMEDOUT,
			  role == TMESH_CHANNEL_SEND
				  ? "the channel stayed full: no message was received in time"
				  : "no message came in time");
}

static int signalled(struct tmesh_error *err)
{
	return tmesh_fail(err, -ECANCELED, "a signal came while the call waited");
}

/* Return the remaining time; negative: no limit. */
static int64_t time_left(const struct turn *turn)
{
	uint64_t now = tmesh_now_ns();

	if (turn->deadline == UINT64_MAX)
		return -1;
	return now < turn->deadline ? (int64_t)(turn->deadline - now) : 0;
}

/* Wait until a turn ends or it is time to ask the host. Called with the lock. */
static void wait_a_piece(struct bound *bound, int64_t left)
{
	int64_t piece = until_asked(left);
	uint64_t end = piece < 0 ? INT64_MAX : tmesh_now_ns() + (uint64_t)piece;
	const struct timespec until = {
		.tv_sec = (time_t)(end / 1000000000u),
		.tv_nsec = (long)(end % 1000000000u),
	};

	pthread_cond_timedwait(&bound->turned, &lock, &until);
}

/* Wait until no other call has the turn. Called with the lock, which is released meanwhile. */
static int wait_for_turn(struct turn *turn, struct tmesh_error *err)
{
	struct bound *bound = turn->bound;
	int64_t left;
	bool ends;

	while (bound->busy && (left = time_left(turn)) && turn->cancels == bound->cancels) {
		wait_a_piece(bound, left);
		pthread_mutex_unlock(&lock);
		ends = is_interrupted();
		pthread_mutex_lock(&lock);
		if (ends)
			return signalled(err);
	}
	if (turn->cancels != bound->cancels)
		return cancelled(err);
	if (bound->busy)
		return timed_out(bound->role, err);
	bound->busy = true;
	turn->ctx = bound->ctx;
	turn->channel = bound->channel;
	turn->arena = bound->arena;
	return 0;
}

int xla_turn_begin(struct turn *turn, const char *name, enum tmesh_channel_role role,
		   int64_t timeout_ns, struct tmesh_error *err)
{
	struct bound *bound;
	int rc;

	*turn = (struct turn){.deadline = UINT64_MAX};
	if (timeout_ns >= 0)
		turn->deadline = tmesh_now_ns() + (uint64_t)timeout_ns;
	pthread_mutex_lock(&lock);
	bound = *bound_find(name);
	if (!bound) {
		rc = not_bound(name, err);
	} else if (bound->role != role) {
		rc = tmesh_fail(err, -EBADF,
				"\"%s\" is bound for %s: bind a channel that sends for push and "
				"flush, one that "
				"receives for pop",
				name, role == TMESH_CHANNEL_SEND ? "receiving" : "sending");
	} else {
		bound->refs++;
		turn->bound = bound;
		turn->cancels = bound->cancels;
		rc = wait_for_turn(turn, err);
	}
	pthread_mutex_unlock(&lock);
	if (rc && turn->bound)
		bound_put(bound);
	return rc;
}

void xla_turn_end(struct turn *turn)
{
	pthread_mutex_lock(&lock);
	turn->bound->busy = false;
	pthread_cond_broadcast(&turn->bound->turned);
	pthread_mutex_unlock(&lock);
	bound_put(turn->bound);
}

static bool is_cancelled(const struct turn *turn)
{
	bool is;

	pthread_mutex_lock(&lock);
	is = turn->cancels != turn->bound->cancels;
	pthread_mutex_unlock(&lock);
	return is;
}

int xla_turn_wait(struct turn *turn,
		  int (*act)(struct turn *turn, void *data, int64_t timeout_ns,
			     struct tmesh_error *err),
		  void *data, struct tmesh_error *err)
{
	int64_t left, piece;
	int rc;

	/* Go on if only an earlier call was cancelled: its wake-up reaches this one too. */
	do {
		if (is_cancelled(turn))
			return cancelled(err);
		left = time_left(turn);
		piece = until_asked(left);
		rc = act(turn, data, piece, err);
		if (rc == -ETIMEDOUT && piece != left)
			rc = is_interrupted() ? -EINTR : -ECANCELED;
	} while (rc == -ECANCELED);
	if (rc == -EINTR)
		return signalled(err);
	return rc == -ETIMEDOUT ? timed_out(turn->bound->role, err) : rc;
}
