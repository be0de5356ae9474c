/* SPDX-License-Identifier: MIT */
/*
 * Declarations that the files of libtmesh-engine share.
 *
 * Locks. A context's lock guards its sessions. It is not held while a session is opened or closed,
 * or while the files of idle sessions are checked. A tensor's lock guards its memory against
 * destroy. A binding's lock guards its turn. No thread holds two of these at once.
 * A cancellable's lock guards its hooks and is held while they are called: cancel.h.
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
	uint32_t keep;	       /* the most sessions without a graph to keep */
	uint32_t keep_regions; /* the most regions of those; 0: any number */
	unsigned int life;
	pthread_mutex_t lock;
	pthread_cond_t opened;	  /* signalled when a session was opened or failed to open */
	struct session *sessions; /* the most recently used first */
	bool looking, look_again; /* at files of idle sessions, without the lock */
	struct counters counters;
};

/* Memory of a device tensor: a region's, a GPU's, or the engine's own. */
struct memory {
	atomic_uint refs;
	struct tmesh_engine_context *context; /* a reference to it, for @result */
	struct tmesh_tensor *tensor;	      /* NULL: no region */
	struct tmesh_cuda_memory *gpu;	      /* NULL: no GPU */
	void *result;			      /* of the engine, if both are NULL */
	void *address;			      /* of a GPU: the address there */
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

/* A session and its sources. It is open, or @owner is opening it. */
struct session {
	struct session *next;
	uint32_t graphs; /* graphs, and calls that wait for it */
	bool once;	 /* it cannot be opened again, so it ends with its last graph */
	bool opening;
	pthread_t owner;
	int failed; /* the error of its opening, with @why; it is in no list then */
	struct tmesh_error why;
	char *path;
	void *key;
	size_t key_bytes;
	size_t regions; /* the most that its weights have */
	struct plugin_session plugin;
	struct tmesh_tensor **weights;
	struct tmesh_cuda_memory **copies; /* copies of the weights on a GPU; NULL: none */
	size_t weight_count;
};

/* plugin.c */
int engine_plugin_find(const char *name, const struct tmesh_engine_plugin **out,
		       struct tmesh_error *err);
/* Call @each for every folder that may have engines, in their order, until it returns true. Return
 * whether it did. */
bool engine_plugin_folders(bool (*each)(const char *folder, void *data), void *data);
/* Call @each for every engine that is found, and for ours in any case. A name may come twice. */
void engine_plugin_names(void (*each)(const char *name, void *data), void *data);

/* context.c */
/* Return how often this process was forked. Objects of another count belong to its parent. */
unsigned int engine_life(void);
/* Return -EPERM if the context belongs to the parent process. */
int engine_enter(const struct tmesh_engine_context *context, struct tmesh_error *err);
bool engine_on_gpu(const struct tmesh_engine_context *context);

/* session.c: get a session for a graph, and count the graph in it. */
int engine_session_get(struct tmesh_engine_context *context, const char *path,
		       const struct tmesh_engine_graph_opts *opts, struct session **out,
		       struct tmesh_error *err);
void engine_session_put(struct tmesh_engine_context *context, struct session *session);
size_t engine_sessions_open(struct tmesh_engine_context *context);
/* Close all sessions, when the context ends. */
void engine_sessions_close(struct tmesh_engine_context *context);

/* tensor.c */
/* Return the tensor's memory with a reference; NULL after destroy, with @err set. */
struct memory *engine_tensor_memory(struct tmesh_engine_tensor *tensor, struct tmesh_error *err);
void engine_memory_unref(struct memory *memory);
/* Make a device tensor of memory that the engine allocated. Take ownership of @result, also on
 * error. */
int engine_tensor_of_result(struct tmesh_engine_context *context,
			    const struct plugin_result *result, struct tmesh_engine_tensor **out,
			    struct tmesh_error *err);

#endif /* TMESH_ENGINE_INTERNAL_H */
