// SPDX-License-Identifier: MIT
/* Contexts: a loaded engine and its counters. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/foreign.h"
#include "gpu.h"
#include "remote.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_uint life;

static void child(void)
{
	atomic_fetch_add(&life, 1);
	gpu_forked();
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, child);
}

unsigned int engine_life(void)
{
	return atomic_load_explicit(&life, memory_order_relaxed);
}

int engine_enter(const struct tmesh_engine_context *context, struct tmesh_error *err)
{
	if (context->life == engine_life())
		return 0;
	return tmesh_fail(
		err, -EPERM,
		"the engine was started before fork(), in the parent, and its threads are "
		"not here: make a context in this process");
}

bool engine_on_gpu(const struct tmesh_engine_context *context)
{
	return context->device.device_type == TMESH_DEVICE_CUDA;
}

/* Make a context without an engine. */
static struct tmesh_engine_context *new_context(struct tmesh_ctx *ctx, uint32_t sessions,
						uint32_t session_regions)
{
	struct tmesh_engine_context *context = calloc(1, sizeof(*context));

	if (!context)
		return NULL;
	pthread_once(&once, watch_forks);
	context->refs = 1;
	context->life = engine_life();
	context->keep = sessions ? sessions : ENGINE_SESSIONS;
	context->keep_regions = session_regions;
	pthread_mutex_init(&context->lock, NULL);
	cancel_cond_init(&context->opened);
	context->ctx = tmesh_ctx_ref(ctx);
	return context;
}

static void free_context(struct tmesh_engine_context *context)
{
	tmesh_ctx_unref(context->ctx);
	pthread_cond_destroy(&context->opened);
	pthread_mutex_destroy(&context->lock);
	free(context);
}

int tmesh_engine_context_create(struct tmesh_ctx *ctx, const char *backend,
				const struct tmesh_engine_context_opts *opts,
				struct tmesh_engine_context **out, struct tmesh_error *err)
{
	struct tmesh_engine_context_opts given;
	struct tmesh_engine_context *context;
	int rc = tmesh_read_sized(&given, sizeof(given), opts, err);

	if (rc)
		return rc;
	if (given.device_type != TMESH_DEVICE_CPU && given.device_type != TMESH_DEVICE_CUDA)
		return tmesh_fail(err, -EINVAL,
				  "there is no device of type %d: choose TMESH_DEVICE_CPU or "
				  "TMESH_DEVICE_CUDA",
				  given.device_type);
	if (given.threads > 1024)
		return tmesh_fail(err, -EINVAL, "%u threads are too many: choose at most 1024",
				  given.threads);
	context = new_context(ctx, given.sessions, given.session_regions);
	if (!context)
		return tmesh_fail(err, -ENOMEM, "no memory for a context");
	rc = engine_plugin_find(backend, &context->plugin, err);
	if (rc) {
		free_context(context);
		return rc;
	}
	context->device = (struct plugin_open){.library = given.library,
					       .device_type = given.device_type,
					       .device_id = given.device_id,
					       .threads = given.threads ? given.threads : 1};
	strcpy(context->backend, backend);
	rc = context->plugin->open(&context->device, &context->engine, err);
	if (!rc && engine_on_gpu(context)) {
		rc = gpu_check(given.device_id, err);
		if (rc)
			context->plugin->close(context->engine);
	}
	if (rc) {
		free_context(context);
		return rc;
	}
	context->device.library = NULL; /* the string belongs to the caller */
	*out = context;
	return 0;
}

int tmesh_engine_connect(struct tmesh_ctx *ctx, const char *name,
			 const struct tmesh_engine_connect_opts *opts,
			 struct tmesh_engine_context **out, struct tmesh_error *err)
{
	struct tmesh_engine_connect_opts given;
	struct tmesh_engine_context *context;
	int rc = tmesh_read_sized(&given, sizeof(given), opts, err);

	if (rc)
		return rc;
	context = new_context(ctx, given.sessions, 0);
	if (!context)
		return tmesh_fail(err, -ENOMEM, "no memory for a context");
	rc = remote_new(ctx, name, given.timeout_ns > 0 ? (uint64_t)given.timeout_ns : 0,
			&context->remote, err);
	if (rc) {
		free_context(context);
		return rc;
	}
	context->plugin = &remote_plugin;
	context->engine = context->remote;
	context->device.device_type = TMESH_DEVICE_CPU;
	strcpy(context->backend, context->remote->backend);
	*out = context;
	return 0;
}

struct tmesh_engine_context *tmesh_engine_context_ref(struct tmesh_engine_context *context)
{
	atomic_fetch_add(&context->refs, 1);
	return context;
}

void tmesh_engine_context_unref(struct tmesh_engine_context *context)
{
	if (!context || atomic_fetch_sub(&context->refs, 1) > 1)
		return;
	/* A forked child has the engine's memory but not its threads. Closing the engine would wait
	 * for them. */
	if (context->life == engine_life()) {
		engine_sessions_close(context);
		context->plugin->close(context->engine);
	}
	free_context(context);
}

const char *tmesh_engine_context_backend(const struct tmesh_engine_context *context)
{
	return context->backend;
}

const char *tmesh_engine_context_version(const struct tmesh_engine_context *context)
{
	return context->plugin->version(context->engine);
}

uint32_t tmesh_engine_context_pid(struct tmesh_engine_context *context)
{
	return context->remote ? atomic_load(&context->remote->pid) : 0;
}

int tmesh_engine_context_lifeline(struct tmesh_engine_context *context, struct tmesh_region *region,
				  struct tmesh_error *err)
{
	int fd, rc = engine_enter(context, err);
	struct tmesh_foreign_file file;
	bool ends;

	if (rc)
		return rc;
	rc = tmesh_region_opaque_fd(region, &fd, err);
	if (rc == -EOPNOTSUPP)
		return tmesh_fail(err, -EINVAL,
				  "the region is memory; it stands for no descriptor");
	if (rc)
		return rc;
	ends = tmesh_foreign_is_unix_socket(fd) ||
	       (tmesh_foreign_look(fd, "", &file) && S_ISFIFO(file.type));
	tmesh_foreign_close(fd, TMESH_GIVER_UNKNOWN);
	if (!ends)
		return tmesh_fail(
			err, -EINVAL,
			"the region stands for no Unix socket or pipe, whose end an engine could "
			"keep from coming");
	return context->remote ? remote_lifeline(context->remote, region, err) : 0;
}

int tmesh_engine_stats(struct tmesh_engine_context *context, struct tmesh_engine_stats *out,
		       struct tmesh_error *err)
{
	struct counters *count = &context->counters;
	struct tmesh_engine_stats stats = {
		.sessions_opened = count->sessions_opened,
		.session_hits = count->session_hits,
		.sessions_evicted = count->sessions_evicted,
		.dispatches = count->dispatches,
		.bindings = count->bindings,
		.reads = count->reads,
		.bytes_read = count->bytes_read,
		.writes = count->writes,
		.bytes_written = count->bytes_written,
		.outputs_of_engine = count->outputs_of_engine,
		.bytes_of_engine = count->bytes_of_engine,
		.sessions = engine_sessions_open(context),
	};

	return tmesh_write_sized(out, &stats, sizeof(stats), err);
}
