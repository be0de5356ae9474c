/* SPDX-License-Identifier: MIT */
/*
 * What the files of libtmesh-engine share.
 *
 * Locks: a context's lock guards its sessions, and is held neither while one is opened or closed
 * nor while the files of idle ones are looked at; a tensor's guards its memory against destroy; a
 * binding's, whose turn it is. None of these is taken while another is held. Those of graphs on
 * several engines: placed_internal.h. A cancellable's guards its hooks, and is held while they are
 * called: cancel.h.
 */
#ifndef TMESH_ENGINE_INTERNAL_H
#define TMESH_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/error.h"
#include "common/sized.h"
#include "plugin.h"

#pragma GCC visibility push(default)
#include <tmesh/engine.h>
#pragma GCC visibility pop

#define ENGINE_FLAGS (TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE | TMESH_ENGINE_EXPORTABLE)
#define ENGINE_SESSIONS 8
#define ENGINE_MAX_WEIGHTS 65536
#define ENGINE_NAME_LEN 32

struct remote;
struct session;
struct tmesh_cuda_memory;

struct counters {
	atomic_ullong sessions_opened, session_hits, sessions_evicted, dispatches, bindings;
	atomic_ullong reads, bytes_read, writes, bytes_written, outputs_of_engine, bytes_of_engine;
};

struct tmesh_engine_context {
	atomic_uint refs;
	struct tmesh_ctx *ctx;
	const struct tmesh_engine_plugin *plugin;
	void *engine;
	struct remote *remote; /* NULL: the engine runs in this process */
	char backend[ENGINE_NAME_LEN + 1];
	struct plugin_open device;
	uint32_t keep; /* sessions without a graph, at most */
	unsigned int life;
	pthread_mutex_t lock;
	pthread_cond_t opened;	  /* a session, or it could not be */
	struct session *sessions; /* the most recently used first */
	bool looking, look_again; /* at the files of idle ones, without the lock */
	struct counters counters;
};

/* Memory of a device tensor: a region's, a GPU's, or the engine's own. */
struct memory {
	atomic_uint refs;
	struct tmesh_engine_context *context; /* of which it holds a reference for @result */
	struct tmesh_tensor *tensor;	      /* NULL: another's */
	struct tmesh_cuda_memory *gpu;	      /* NULL: another's */
	void *result;			      /* of the engine, where both are NULL */
	void *address;			      /* of a GPU: there */
};

struct tmesh_engine_tensor {
	atomic_uint refs;
	struct tmesh_engine_context *context;
	pthread_mutex_t lock;
	struct memory *memory; /* NULL: destroyed */
	atomic_bool destroyed;
	uint32_t flags;
	uint32_t rights;
	uint64_t bytes;
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
};

struct tmesh_engine_graph {
	atomic_uint refs;
	struct tmesh_engine_context *context;
	struct session *session;
};

/* An open session, or one that @owner opens; and what it was opened from. */
struct session {
	struct session *next;
	uint32_t graphs; /* and calls that wait for it */
	bool once;	 /* nobody can open the same again: it goes with its last graph */
	bool opening;
	pthread_t owner;
	int failed; /* why it could not be opened, said in @why; in no list then */
	struct tmesh_error why;
	char *path;
	void *key;
	size_t key_bytes;
	struct plugin_session plugin;
	struct tmesh_tensor **weights;
	struct tmesh_cuda_memory **copies; /* of those, on a GPU; NULL: on none */
	size_t weight_count;
};

/* plugin.c */
int engine_plugin_find(const char *name, const struct tmesh_engine_plugin **out,
		       struct tmesh_error *err);
/* Folders where engines may be, the first first, until one was enough. Return: whether one was. */
bool engine_plugin_folders(bool (*each)(const char *folder, void *data), void *data);
/* Those that can be found, and ours in any case; a name may come twice. */
void engine_plugin_names(void (*each)(const char *name, void *data), void *data);

/* context.c */
/* How often this process was forked off: objects of another count belong to its parent. */
unsigned int engine_life(void);
/* -EPERM: the context is the parent's. */
int engine_enter(const struct tmesh_engine_context *context, struct tmesh_error *err);
bool engine_on_gpu(const struct tmesh_engine_context *context);

/* session.c: for a graph, which counts there. */
int engine_session_get(struct tmesh_engine_context *context, const char *path,
		       const struct tmesh_engine_graph_opts *opts, struct session **out,
		       struct tmesh_error *err);
void engine_session_put(struct tmesh_engine_context *context, struct session *session);
/* Its file will be gone when @graph goes. */
void engine_session_once(struct tmesh_engine_graph *graph);
size_t engine_sessions_open(struct tmesh_engine_context *context);
/* All of them, of a context that ends. */
void engine_sessions_close(struct tmesh_engine_context *context);

/* tensor.c */
/* The tensor's memory, with a reference; NULL: it was destroyed, and @err says so. */
struct memory *engine_tensor_memory(struct tmesh_engine_tensor *tensor, struct tmesh_error *err);
void engine_memory_unref(struct memory *memory);
/* A device tensor on what the engine allocated; takes @result over, also when it fails. */
int engine_tensor_of_result(struct tmesh_engine_context *context,
			    const struct plugin_result *result, struct tmesh_engine_tensor **out,
			    struct tmesh_error *err);

#endif /* TMESH_ENGINE_INTERNAL_H */
