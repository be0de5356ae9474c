// SPDX-License-Identifier: MIT
/* Contexts: options, limits, counters. backend.c chooses the backend. */
#include "common/numbers.h"
#include "held.h"
#include "wire.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POOL_IDLE_NS 10000000000u
#define POOL_LOOK_MS 5000
#define DEFAULT_TIMEOUT_NS 2000000000u
#define DEFAULT_EXIT_WAIT_NS 5000000000u
#define LONGEST_EXIT_WAIT_NS 3600000000000u
/* Added to the time, it gives a time to come. */
#define LONGEST_TIMEOUT_NS ((uint64_t)INT64_MAX)

const char *tmesh_version(void)
{
	return TMESH_VERSION;
}

void tmesh_log(const struct tmesh_ctx *ctx, enum tmesh_log_level level, const char *fmt, ...)
{
	char message[512];
	va_list args;

	if (!ctx->log)
		return;
	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	ctx->log(ctx->log_data, level, message);
}

struct tmesh_log_line {
	struct tmesh_log_line *before;
	enum tmesh_log_level level;
	char message[512];
};

void tmesh_log_later(struct tmesh_ctx *ctx, enum tmesh_log_level level, const char *fmt, ...)
{
	struct tmesh_log_line *line = ctx->log ? malloc(sizeof(*line)) : NULL;
	va_list args;

	if (!line)
		return;
	line->level = level;
	va_start(args, fmt);
	vsnprintf(line->message, sizeof(line->message), fmt, args);
	va_end(args);
	line->before = atomic_load(&ctx->said);
	while (!atomic_compare_exchange_weak(&ctx->said, &line->before, line))
		;
}

void tmesh_log_said(struct tmesh_ctx *ctx)
{
	struct tmesh_log_line *line = atomic_exchange(&ctx->said, NULL), *first = NULL;

	while (line) {
		struct tmesh_log_line *before = line->before;

		line->before = first;
		first = line;
		line = before;
	}
	while (first) {
		line = first;
		first = line->before;
		ctx->log(ctx->log_data, line->level, line->message);
		free(line);
	}
}

/* Forget the lines without free(): another thread of the parent's may have been in malloc(). */
void tmesh_log_forget(struct tmesh_ctx *ctx)
{
	atomic_store(&ctx->said, NULL);
}

/* Read the time; TMESH_EXIT_WAIT is in seconds. */
static int wanted_exit_wait(uint64_t option, uint64_t *out, bool *asked, struct tmesh_error *err)
{
	const char *text = option ? NULL : secure_getenv("TMESH_EXIT_WAIT");
	locale_t before;
	double seconds;
	char *end;

	*asked = option || (text && *text);
	if (option) {
		*out = option == TMESH_NO_EXIT_WAIT ? 0 : option;
	} else if (!text || !*text) {
		*out = DEFAULT_EXIT_WAIT_NS;
	} else {
		before = tmesh_numbers_begin();
		if (!before)
			return tmesh_fail(err, -ENOMEM, "no memory to read TMESH_EXIT_WAIT");
		seconds = strtod(text, &end);
		tmesh_numbers_end(before);
		if (*end || !(seconds >= 0 && seconds <= LONGEST_EXIT_WAIT_NS / 1e9))
			return tmesh_fail(
				err, -EINVAL,
				"TMESH_EXIT_WAIT is \"%.32s\"; it is seconds from 0 to %d", text,
				(int)(LONGEST_EXIT_WAIT_NS / 1000000000u));
		*out = (uint64_t)(seconds * 1e9);
	}
	if (*out > LONGEST_EXIT_WAIT_NS)
		return tmesh_fail(err, -EINVAL, "exit_wait_ns is more than an hour");
	return 0;
}

static void ctx_free(struct tmesh_ctx *ctx)
{
	tmesh_holds_free(ctx);
	pthread_mutex_destroy(&ctx->lock);
	tmesh_live_end(ctx);
	tmesh_caps_free(ctx);
	tmesh_environment_free(ctx);
	free(ctx);
}

void tmesh_ctx_limit(struct tmesh_ctx *ctx, uint64_t max_bytes)
{
	atomic_store(&ctx->max_bytes, max_bytes ? max_bytes : UINT64_MAX);
}

/* Open a context. @beside: the context that it is for, whose environment it takes over; or NULL. */
static int ctx_open(const struct tmesh_ctx_opts *opts, struct tmesh_ctx *beside,
		    struct tmesh_ctx **out, struct tmesh_error *err)
{
	struct tmesh_ctx_opts o;
	enum tmesh_backend wanted;
	struct tmesh_ctx *ctx;
	uint64_t exit_wait_ns = 0, pool_max = 0;
	bool waits_at_exit = false;
	int rc = TMESH_NEED(err, out);

	if (!rc)
		rc = tmesh_read_sized(&o, sizeof(o), opts, err);
	if (!rc)
		rc = tmesh_backend_wanted(o.backend, &wanted, err);
	if (!rc)
		rc = tmesh_check_taken(o.taken, err);
	if (!rc)
		rc = wanted_exit_wait(o.exit_wait_ns, &exit_wait_ns, &waits_at_exit, err);
	if (!rc && beside)
		pool_max = atomic_load(&beside->pool_max);
	else if (!rc)
		rc = tmesh_region_pool_wanted(o.region_pool_bytes, &pool_max, err);
	if (rc)
		return rc;
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return tmesh_fail(err, -ENOMEM, "no memory for a context");
	atomic_init(&ctx->refs, 1);
	pthread_mutex_init(&ctx->lock, NULL);
	tmesh_live_init(ctx);
	tmesh_ctx_limit(ctx, o.max_bytes);
	atomic_init(&ctx->pool_max, pool_max);
	ctx->pool_idle_ns = POOL_IDLE_NS;
	ctx->pool_look_ms = POOL_LOOK_MS;
	ctx->timeout_ns = o.timeout_ns > 0 ? (uint64_t)o.timeout_ns : DEFAULT_TIMEOUT_NS;
	if (o.timeout_ns < 0)
		ctx->timeout_ns = LONGEST_TIMEOUT_NS;
	ctx->exit_wait_ns = exit_wait_ns;
	ctx->waits_at_exit = waits_at_exit;
	ctx->max_held_bytes = o.max_held_bytes;
	ctx->spare_files = o.spare_files;
	ctx->log = o.log;
	ctx->log_data = o.log_data;
	ctx->taken = o.taken;
	ctx->connect = o.connect;
	ctx->connect_data = o.connect_data;
	ctx->life = tmesh_fork_life();
	ctx->memfd.dir = -1;
	atomic_init(&ctx->memfd.proc, -1);
	ctx->uid = geteuid();
	ctx->kernel.device = -1;
	rc = beside ? tmesh_environment_copy(ctx, beside, err)
		    : tmesh_environment_read(ctx, o.runtime_dir, err);
	if (!rc)
		rc = tmesh_random(ctx->id_key, sizeof(ctx->id_key), err);
	if (!rc)
		rc = tmesh_backend_open(ctx, wanted, err);
	if (rc) {
		ctx_free(ctx);
		return rc;
	}
	rc = tmesh_fork_watch(ctx);
	if (rc) {
		ctx->ops->close(ctx);
		ctx_free(ctx);
		return tmesh_fail(err, rc, "no memory to watch for fork()");
	}
	*out = ctx;
	return 0;
}

int tmesh_ctx_open(const struct tmesh_ctx_opts *opts, struct tmesh_ctx **out,
		   struct tmesh_error *err)
{
	return ctx_open(opts, NULL, out, err);
}

struct tmesh_ctx *tmesh_ctx_ref(struct tmesh_ctx *ctx)
{
	atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed);
	return ctx;
}

void tmesh_ctx_unref(struct tmesh_ctx *ctx)
{
	if (!ctx || atomic_fetch_sub_explicit(&ctx->refs, 1, memory_order_acq_rel) != 1)
		return;
	tmesh_fork_forget(ctx);
	tmesh_ctx_trim(ctx);
	ctx->ops->close(ctx);
	tmesh_ctx_unref(ctx->kernel.beside);
	tmesh_log_said(ctx);
	ctx_free(ctx);
}

/*
 * Complete the context's copy in a forked child. The fork handlers have already closed the copies
 * of the parent's sockets. The child gets its own ids and its own device, and releases the pool,
 * whose memory the parent goes on using. One thread does that; others go on at once.
 */
int tmesh_ctx_enter(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	uint32_t life = tmesh_fork_life();
	int rc = TMESH_NEED(err, ctx);
	bool first = false;

	if (rc || __atomic_load_n(&ctx->life, __ATOMIC_ACQUIRE) == life)
		return rc;
	pthread_mutex_lock(&ctx->lock);
	if (ctx->life != life) {
		rc = tmesh_random(ctx->id_key, sizeof(ctx->id_key), err);
		if (!rc)
			rc = ctx->ops->open(ctx, err);
		first = !rc;
		if (first)
			__atomic_store_n(&ctx->life, life, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&ctx->lock);
	if (first) {
		tmesh_ctx_trim(ctx);
		tmesh_holds_disown(ctx);
		tmesh_later_drain(ctx);
	}
	return rc;
}

void tmesh_count(struct tmesh_ctx *ctx, enum tmesh_counter counter, uint64_t n)
{
	atomic_fetch_add_explicit(&ctx->counters[counter], n, memory_order_relaxed);
}

void tmesh_count_copy(struct tmesh_ctx *ctx, uint64_t bytes)
{
	tmesh_count(ctx, COUNT_COPIES, 1);
	tmesh_count(ctx, COUNT_BYTES_COPIED, bytes);
}

uint64_t tmesh_new_id(struct tmesh_ctx *ctx)
{
	uint64_t count = atomic_fetch_add_explicit(&ctx->id_count, 1, memory_order_relaxed);
	uint64_t id = tmesh_siphash(ctx->id_key, &count, sizeof(count));

	/* 0 means "this handle's region" in the module's ABI. */
	return id ? id : 1;
}

int tmesh_stats(struct tmesh_ctx *ctx, struct tmesh_stats *stats)
{
	uint64_t n[COUNTERS];
	struct tmesh_stats s;

	if (TMESH_NEED(NULL, ctx, stats))
		return -EINVAL;
	for (int i = 0; i < COUNTERS; i++)
		n[i] = atomic_load_explicit(&ctx->counters[i], memory_order_relaxed);
	s = (struct tmesh_stats){
		.bytes_copied = n[COUNT_BYTES_COPIED],
		.copies = n[COUNT_COPIES],
		.regions_created = n[COUNT_CREATED],
		.regions_opened = n[COUNT_OPENED],
		.regions_live = n[COUNT_LIVE],
		.bytes_live = n[COUNT_BYTES_LIVE],
		.region_pool_hits = n[COUNT_REGION_POOL_HITS],
		.region_pool_misses = n[COUNT_REGION_POOL_MISSES],
		.tokens_served = n[COUNT_SERVED],
		.opens_without_wake = n[COUNT_WITHOUT_WAKE],
		.sent_alone = n[COUNT_SENT_ALONE],
		.huge_bytes = n[COUNT_HUGE_BYTES],
		.huge_given_up = n[COUNT_HUGE_GIVEN_UP],
	};
	pthread_mutex_lock(&ctx->lock);
	s.region_pool_bytes = ctx->region_pool_bytes;
	pthread_mutex_unlock(&ctx->lock);
	return tmesh_write_sized(stats, &s, sizeof(s), NULL);
}

int tmesh_ctx_memfd(struct tmesh_ctx *ctx, struct tmesh_ctx **out, struct tmesh_error *err)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.backend = TMESH_BACKEND_MEMFD,
		.timeout_ns = (int64_t)ctx->timeout_ns,
		.spare_files = ctx->spare_files,
		.exit_wait_ns = ctx->exit_wait_ns ? ctx->exit_wait_ns : TMESH_NO_EXIT_WAIT,
		.log = ctx->log,
		.log_data = ctx->log_data,
		.connect = ctx->connect,
		.connect_data = ctx->connect_data,
	};
	struct tmesh_ctx *made, *none = NULL;
	int rc = tmesh_ctx_enter(ctx, err);

	if (rc)
		return rc;
	*out = ctx;
	if (ctx->ops->backend == TMESH_BACKEND_MEMFD)
		return 0;
	*out = atomic_load(&ctx->kernel.beside);
	if (*out)
		return tmesh_ctx_enter(*out, err);
	rc = ctx_open(&opts, ctx, &made, err);
	if (rc)
		return rc;
	made->waits_at_exit = ctx->waits_at_exit;
	*out = made;
	if (!atomic_compare_exchange_strong(&ctx->kernel.beside, &none, made)) {
		tmesh_ctx_unref(made);
		*out = none;
	}
	return 0;
}
