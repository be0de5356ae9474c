// SPDX-License-Identifier: MIT
/* Contexts: choice of the backend, limits, counters. */
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
#define DEFAULT_LINGER_NS 5000000000u
#define LONGEST_LINGER_NS 3600000000000u
/* Added to the time, it gives a time to come. */
#define LONGEST_TIMEOUT_NS ((uint64_t)INT64_MAX)

const char *tmesh_version(void)
{
	return TMESH_VERSION;
}

const char *tmesh_backend_name(enum tmesh_backend backend)
{
	switch (backend) {
	case TMESH_BACKEND_AUTO:
		return "auto";
	case TMESH_BACKEND_KERNEL:
		return "kernel";
	case TMESH_BACKEND_MEMFD:
		return "memfd";
	}
	return NULL;
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

static int wanted_backend(enum tmesh_backend option, enum tmesh_backend *out,
			  struct tmesh_error *err)
{
	const char *name;

	*out = option;
	if (option == TMESH_BACKEND_KERNEL || option == TMESH_BACKEND_MEMFD)
		return 0;
	if (option != TMESH_BACKEND_AUTO)
		return tmesh_fail(err, -EINVAL, "unknown backend %d", (int)option);
	name = getenv("TMESH_BACKEND");
	if (!name || !*name)
		return 0;
	if (!strcmp(name, "kernel"))
		*out = TMESH_BACKEND_KERNEL;
	else if (!strcmp(name, "memfd"))
		*out = TMESH_BACKEND_MEMFD;
	else
		return tmesh_fail(err, -EINVAL,
				  "TMESH_BACKEND is \"%.32s\"; kernel and memfd are known", name);
	return 0;
}

/* TMESH_LINGER is in seconds. */
static int wanted_linger(uint64_t option, uint64_t *out, struct tmesh_error *err)
{
	const char *text = getenv("TMESH_LINGER");
	locale_t before;
	double seconds;
	char *end;

	if (option) {
		*out = option == TMESH_NO_LINGER ? 0 : option;
	} else if (!text || !*text) {
		*out = DEFAULT_LINGER_NS;
	} else {
		before = tmesh_numbers_begin();
		if (!before)
			return tmesh_fail(err, -ENOMEM, "no memory to read TMESH_LINGER");
		seconds = strtod(text, &end);
		tmesh_numbers_end(before);
		if (*end || !(seconds >= 0 && seconds <= LONGEST_LINGER_NS / 1e9))
			return tmesh_fail(err, -EINVAL,
					  "TMESH_LINGER is \"%.32s\"; it is seconds from 0 to %d",
					  text, (int)(LONGEST_LINGER_NS / 1000000000u));
		*out = (uint64_t)(seconds * 1e9);
	}
	if (*out > LONGEST_LINGER_NS)
		return tmesh_fail(err, -EINVAL, "linger_ns is more than an hour");
	return 0;
}

static int open_backend(struct tmesh_ctx *ctx, enum tmesh_backend wanted, struct tmesh_error *err)
{
	struct tmesh_error why;
	int rc;

	if (wanted != TMESH_BACKEND_MEMFD) {
		ctx->ops = &tmesh_kernel_ops;
		rc = ctx->ops->open(ctx, wanted == TMESH_BACKEND_KERNEL ? err : &why);
		if (rc == 0 && wanted == TMESH_BACKEND_AUTO)
			tmesh_log(ctx, TMESH_LOG_INFO, "taking the kernel backend");
		if (rc == 0 || wanted == TMESH_BACKEND_KERNEL)
			return rc;
		tmesh_log(ctx, rc == -ENOENT ? TMESH_LOG_INFO : TMESH_LOG_WARN,
			  "taking the memfd backend: %s", why.message);
	}
	ctx->ops = &tmesh_memfd_ops;
	return ctx->ops->open(ctx, err);
}

static void ctx_free(struct tmesh_ctx *ctx)
{
	tmesh_holds_free(ctx);
	pthread_mutex_destroy(&ctx->lock);
	tmesh_live_end(ctx);
	tmesh_caps_free(ctx);
	free(ctx->runtime_dir);
	free(ctx);
}

void tmesh_ctx_limit(struct tmesh_ctx *ctx, uint64_t max_bytes)
{
	atomic_store(&ctx->max_bytes, max_bytes ? max_bytes : UINT64_MAX);
}

int tmesh_ctx_open(const struct tmesh_ctx_opts *opts, struct tmesh_ctx **out,
		   struct tmesh_error *err)
{
	struct tmesh_ctx_opts o;
	enum tmesh_backend wanted;
	struct tmesh_ctx *ctx;
	uint64_t linger_ns = 0, pool_max = 0;
	int rc = TMESH_NEED(err, out);

	if (!rc)
		rc = tmesh_read_sized(&o, sizeof(o), opts, err);
	if (!rc)
		rc = wanted_backend(o.backend, &wanted, err);
	if (!rc)
		rc = tmesh_check_taken(o.taken, err);
	if (!rc)
		rc = wanted_linger(o.linger_ns, &linger_ns, err);
	if (!rc)
		rc = tmesh_pool_wanted(o.pool_bytes, &pool_max, err);
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
	ctx->timeout_ns = o.timeout_ns ? o.timeout_ns : DEFAULT_TIMEOUT_NS;
	if (ctx->timeout_ns > LONGEST_TIMEOUT_NS)
		ctx->timeout_ns = LONGEST_TIMEOUT_NS;
	ctx->linger_ns = linger_ns;
	ctx->max_held_bytes = o.max_held_bytes;
	ctx->spare_files = o.spare_files;
	ctx->log = o.log;
	ctx->log_data = o.log_data;
	ctx->taken = o.taken;
	ctx->life = tmesh_fork_life();
	ctx->dir = -1;
	atomic_init(&ctx->proc, -1);
	ctx->uid = geteuid();
	ctx->device = -1;
	rc = tmesh_rundir_settle(ctx, o.runtime_dir, err);
	if (!rc)
		rc = tmesh_random(ctx->id_key, sizeof(ctx->id_key), err);
	if (!rc)
		rc = open_backend(ctx, wanted, err);
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
	tmesh_ctx_unref(ctx->beside);
	ctx_free(ctx);
}

/*
 * The fork handlers have already cut the child's copy off from the parent's sockets. Here
 * it gets what it must not share: other ids, a device of its own; and it lets go of the
 * pool, whose memory the parent goes on using.
 */
int tmesh_ctx_enter(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	uint32_t life = tmesh_fork_life();
	int rc = TMESH_NEED(err, ctx);

	if (rc || __atomic_load_n(&ctx->life, __ATOMIC_ACQUIRE) == life)
		return rc;
	pthread_mutex_lock(&ctx->lock);
	if (ctx->life != life) {
		rc = tmesh_random(ctx->id_key, sizeof(ctx->id_key), err);
		if (!rc)
			rc = ctx->ops->open(ctx, err);
		if (!rc)
			__atomic_store_n(&ctx->life, life, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&ctx->lock);
	if (!rc) {
		tmesh_ctx_trim(ctx);
		tmesh_holds_disown(ctx);
		tmesh_later_drain(ctx);
	}
	return rc;
}

enum tmesh_backend tmesh_ctx_backend(const struct tmesh_ctx *ctx)
{
	return ctx->ops->backend;
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
		.pool_hits = n[COUNT_POOL_HITS],
		.pool_misses = n[COUNT_POOL_MISSES],
		.tokens_served = n[COUNT_SERVED],
		.opens_without_wake = n[COUNT_WITHOUT_WAKE],
		.sent_alone = n[COUNT_SENT_ALONE],
	};
	pthread_mutex_lock(&ctx->lock);
	s.pool_bytes = ctx->pool_bytes;
	pthread_mutex_unlock(&ctx->lock);
	return tmesh_write_sized(stats, &s, sizeof(s), NULL);
}
