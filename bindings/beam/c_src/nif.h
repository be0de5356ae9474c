/* SPDX-License-Identifier: MIT */
/*
 * The NIF library under Tmesh.Native.
 *
 * Resources and their contents. A resource lives until the term is gone; where noted, its contents
 * are released earlier:
 *
 *   `context`      a tmesh_ctx.
 *   `handle`       a tmesh_tensor, until it is released.
 *   `pinned`       a pinning region and its mapping, which binaries point into, and the region that
 *                  it was made of, for its tokens. Never a term by itself: a binary that doubles as
 *                  a handle could not be released.
 *   `socket`       the connection to a worker process.
 *   `channel`      one end of a channel, until it is closed. The emulator polls the descriptor of
 *                  `channel_end`, a resource of its own.
 *   `object`       a counted object: a bundle, a slot, a pool of pages, a part in one, or one of
 *                  libtmesh-engine. Until it is closed or released, if it can be.
 *   `arena`        a tmesh_arena.
 *   `descriptor`   a descriptor that the caller may give to others, until it is closed.
 *   `model`        a loaded model's origin, until it is released.
 *   `slot_reader`  the reader of a slot, until it is closed. The emulator polls the descriptor of
 *                  `slot_end`, a resource of its own.
 *   `sequence`     a tmesh_seq, until it is released.
 *   `graph`        a tmesh_graph that is being built.
 *   `origin`       a tmesh_model, for the model's term and its tensors' handles. Never a term.
 *   `gpu`          memory of libtmesh-cuda, until it is released.
 *
 * Destructors run on normal schedulers, and unmapping a large region takes long. So a dirty NIF or
 * the janitor (garbage.c) releases the contents of a resource. Only a socket's descriptors are
 * closed at once.
 */
#ifndef TMESH_NIF_H
#define TMESH_NIF_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <erl_nif.h>
#include <tmesh/model.h>
#include <tmesh/tmesh.h>

#define NIF(name) ERL_NIF_TERM name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])

/* An object to drop later. It is allocated ahead, so that a destructor cannot fail. */
struct garbage {
	struct garbage *next;
	void (*drop)(void *object);
	void *object;
};

struct context {
	struct tmesh_ctx *ctx;
	_Atomic uint64_t max_bytes; /* most that one to_binary may copy; 0: no limit */
	unsigned int max_opening;   /* dirty schedulers that may wait for peers at once */
	atomic_uint opening;
	atomic_uint waiting; /* those of @opening at fences and the like */
	atomic_uint loading; /* dirty schedulers that load or save models */
	atomic_bool named;   /* a region has had a token, so their services run */
	struct garbage *garbage;
};

struct arena {
	struct tmesh_arena *arena;
	uint64_t bytes; /* of its regions, 0 for the library's 1 MiB */
	struct garbage *garbage;
};

/* Part of a handle and of a pinned region: the processes that may have it (idle_handles.c). */
struct held {
	struct held *next;
	struct held *previous;
	_Atomic ERL_NIF_TERM maker;
	_Atomic ERL_NIF_TERM user;
};

struct handle {
	struct held held;
	pthread_mutex_t lock;	      /* guards the next five; held for pointer work only */
	struct tmesh_tensor *tensor;  /* NULL: released */
	struct pinned *pinned;	      /* made by the first binary, shared by later ones */
	struct origin *origin;	      /* the model of the tensor, or NULL */
	uint64_t id;		      /* of the region, after the first tensor_name() */
	char token[TMESH_TOKEN_SIZE]; /* to read the region; "" before tensor_name() */
	struct context *context;      /* its limits apply */
	struct garbage *garbage;
	bool in_arena;	  /* shares its region with other tensors */
	atomic_bool tied; /* Tmesh.Registry may hold it: a release returns `tied` */
};

/* A descriptor made for the caller. */
struct descriptor {
	atomic_int fd; /* -1: closed */
};

struct pinned {
	struct held held;
	struct guarded *mapping;
	struct tmesh_region *region; /* a pinning handle, mapped for reading */
	const unsigned char *start;  /* of the region */
	struct garbage *garbage;
};

struct origin {
	struct tmesh_model *model;
	pthread_mutex_t lock;  /* guards @pinned */
	struct pinned *pinned; /* for the binaries of all its tensors, or NULL */
	struct garbage *garbage;
};

extern ErlNifResourceType *context_type, *handle_type, *pinned_type, *worker_socket_type,
	*channel_type, *channel_end_type, *arrow_stream_type, *gpu_type, *arena_type,
	*descriptor_type, *object_type, *model_type, *origin_type, *slot_reader_type,
	*slot_end_type, *sequence_type, *graph_type, *job_watch_type;

void context_dtor(ErlNifEnv *env, void *object);
void handle_dtor(ErlNifEnv *env, void *object);
void pinned_dtor(ErlNifEnv *env, void *object);
void arrow_stream_dtor(ErlNifEnv *env, void *object);
void gpu_dtor(ErlNifEnv *env, void *object);
void arena_dtor(ErlNifEnv *env, void *object);
void descriptor_dtor(ErlNifEnv *env, void *object);
void object_dtor(ErlNifEnv *env, void *object);
void model_dtor(ErlNifEnv *env, void *object);
void origin_dtor(ErlNifEnv *env, void *object);
void slot_reader_dtor(ErlNifEnv *env, void *object);
void slot_end_dtor(ErlNifEnv *env, void *object);
void sequence_dtor(ErlNifEnv *env, void *object);
void graph_dtor(ErlNifEnv *env, void *object);
void slot_end_stop(ErlNifEnv *env, void *object, ErlNifEvent event, int is_direct_call);

/* garbage.c */
struct garbage *garbage_alloc(void (*drop)(void *object));
void garbage_free(struct garbage *garbage);
void garbage_leave_anywhere(struct garbage *garbage, void *object);
bool garbage_look(ErlNifEnv *env);
void garbage_put(ErlNifEnv *env, struct garbage *garbage, void *object);
void garbage_tell(void);

/* object.c: terms of counted objects. */
struct object_kind {
	const char *name; /* "a bundle" */
	void *(*ref)(void *object);
	void (*unref)(void *object);
};
/* Define the kind of objects that type_ref() and type_unref() count. */
#define OBJECT_KIND(kind, type, what)          \
	static void *kind##_ref(void *object)  \
	{                                      \
		return type##_ref(object);     \
	}                                      \
	static void kind##_unref(void *object) \
	{                                      \
		type##_unref(object);          \
	}                                      \
	const struct object_kind kind = {.name = what, .ref = kind##_ref, .unref = kind##_unref}
struct object {
	const struct object_kind *kind;
	pthread_mutex_t lock; /* guards the next; held for pointer work only */
	void *object;	      /* NULL: closed */
	struct context *context;
	struct garbage *garbage;
};
/* Make a term, which takes @made over, also on failure. */
bool make_object(ErlNifEnv *env, struct context *context, const struct object_kind *kind,
		 void *made, ERL_NIF_TERM *term, struct tmesh_error *err);
/* Return {ok, term} of it. */
ERL_NIF_TERM make_ok_object(ErlNifEnv *env, struct context *context, const struct object_kind *kind,
			    void *made);
/* Return false with @err filled if @term is no object of that kind. */
bool find_object(ErlNifEnv *env, ERL_NIF_TERM term, const struct object_kind *kind,
		 struct object **object, struct tmesh_error *err);
/* Return the caller's reference on the object of a term, or NULL with @err filled. @context: the
 * object's, or NULL. */
void *get_object(ErlNifEnv *env, ERL_NIF_TERM term, const struct object_kind *kind,
		 struct context **context, struct tmesh_error *err);
/* Return ok, also when repeated. */
ERL_NIF_TERM close_object(ErlNifEnv *env, ERL_NIF_TERM term, const struct object_kind *kind);

/* log.c */
void log_keep(void *data, enum tmesh_log_level level, const char *message);
ERL_NIF_TERM log_drain(ErlNifEnv *env);

/* Atoms of frequent calls: looking one up by its name takes as long as a small call. */
extern struct atoms {
	ERL_NIF_TERM ok;
	ERL_NIF_TERM nil;
	ERL_NIF_TERM cpu;
	ERL_NIF_TERM eagain;
	ERL_NIF_TERM again;
	ERL_NIF_TERM given;
	ERL_NIF_TERM undefined;
	ERL_NIF_TERM dtypes[TMESH_FLOAT4_E2M1FN + 1];
} atoms;
void make_atoms(ErlNifEnv *env);

/* term.c: between terms and the library's structures. For a term of another shape the get_
 * functions return false and fill @err. */
ERL_NIF_TERM make_ok(ErlNifEnv *env, ERL_NIF_TERM term);
ERL_NIF_TERM make_error(ErlNifEnv *env, const struct tmesh_error *err);
ERL_NIF_TERM make_open_error(ErlNifEnv *env, uint32_t rights, const struct tmesh_error *err);
ERL_NIF_TERM make_region_error(ErlNifEnv *env, struct tmesh_region *region,
			       const struct tmesh_error *err);
ERL_NIF_TERM make_string(ErlNifEnv *env, const char *text);
ERL_NIF_TERM make_word(ErlNifEnv *env, const char *word);
/* Return the word with the number @n of an array, or NULL if it has none. */
#define WORD_OF(words, n) \
	((size_t)(n) < sizeof(words) / sizeof((words)[0]) ? (words)[(size_t)(n)] : NULL)
ERL_NIF_TERM make_ref(ErlNifEnv *env, const struct tmesh_ref *ref);
ERL_NIF_TERM make_dims(ErlNifEnv *env, const int64_t *dims, int32_t ndim);
struct member {
	const char *name;
	ERL_NIF_TERM value;
};
/* Make a map of an array of members, whose keys become atoms. */
#define MAKE_MAP(env, members) make_members(env, members, sizeof(members) / sizeof((members)[0]))
ERL_NIF_TERM make_members(ErlNifEnv *env, const struct member *members, size_t count);
struct shown;
/* Return @map with those members of @of that a table of common/shown.h names. */
ERL_NIF_TERM show(ErlNifEnv *env, ERL_NIF_TERM map, const struct shown *members, size_t count,
		  const void *of);
#define SHOW(env, map, table, of) show(env, map, table, SHOWN_COUNT(table), of)
int refuse(struct tmesh_error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Make the term of such an error. */
ERL_NIF_TERM make_refusal(ErlNifEnv *env, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
bool get_dtype(ErlNifEnv *env, ERL_NIF_TERM term, enum tmesh_dtype *dtype, struct tmesh_error *err);
bool get_dims(ErlNifEnv *env, ERL_NIF_TERM term, const char *what, int64_t *dims, int32_t *ndim,
	      struct tmesh_error *err);
bool get_rights(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t *rights, struct tmesh_error *err);
bool get_bool(ErlNifEnv *env, ERL_NIF_TERM term, const char *what, bool *value,
	      struct tmesh_error *err);
/* Copy a binary of at most @size - 1 bytes without a zero byte to a string. */
bool get_text(ErlNifEnv *env, ERL_NIF_TERM term, char *text, size_t size);
bool get_ref(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_ref *ref, struct tmesh_error *err);
bool get_region_opts(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_region_opts *opts,
		     char label[TMESH_LABEL_LEN + 1], struct tmesh_error *err);

/* context.c */
bool get_context(ErlNifEnv *env, ERL_NIF_TERM term, struct context **context,
		 struct tmesh_error *err);

/* handle.c: a tensor taken from a handle is the caller's reference. */
struct tmesh_tensor *get_tensor(ErlNifEnv *env, ERL_NIF_TERM term, struct handle **handle,
				struct tmesh_error *err);
void put_tensor(ErlNifEnv *env, struct tmesh_tensor *tensor);
/* Make a term {handle, ref} of a new handle, which takes over @tensor, also on failure. */
bool make_handle(ErlNifEnv *env, struct context *context, struct tmesh_tensor *tensor,
		 ERL_NIF_TERM *term, struct tmesh_error *err);
/* Do so for a model's tensor: the handle keeps @origin. */
bool make_handle_of(ErlNifEnv *env, struct context *context, struct tmesh_tensor *tensor,
		    struct origin *origin, ERL_NIF_TERM *term, struct tmesh_error *err);
bool same_layout(const struct tmesh_layout *a, const struct tmesh_layout *b);
/* Enclose calls that may wait for a peer on a dirty scheduler. Return: false with @err filled. */
bool begin_opening(struct context *context, struct tmesh_error *err);
void end_opening(struct context *context);

/* inspect.c */
ERL_NIF_TERM make_id(ErlNifEnv *env, uint64_t id);

/* idle_handles.c */
void held_add(ErlNifEnv *env, struct held *held);
void held_remove(struct held *held);
void held_used(ErlNifEnv *env, struct held *held);

/* hold.c */
/* Read how long a ref holds its memory: nil, which gives 0 (no hold), or nanoseconds. */
bool get_hold(ErlNifEnv *env, ERL_NIF_TERM term, uint64_t *ns, struct tmesh_error *err);

/* bundle.c */
/* Return {ok, term} of a bundle. The term takes @made over, also on failure. */
ERL_NIF_TERM make_bundle(ErlNifEnv *env, struct context *context, struct tmesh_bundle *made);
/* As get_object(). */
struct tmesh_bundle *get_bundle(ErlNifEnv *env, ERL_NIF_TERM term, struct context **context,
				struct tmesh_error *err);

/* model.c */
/* The process that waits for files, and the one that receives their progress. */
struct model_watch {
	ErlNifEnv *env;
	ErlNifEnv *message; /* NULL: no process receives progress */
	ErlNifPid pid;
	ERL_NIF_TERM path;
};
/* Read nil, or the process that receives progress. The caller frees the message's environment. */
bool get_watch(ErlNifEnv *env, ERL_NIF_TERM term, ERL_NIF_TERM path, struct model_watch *watch);
/* A tmesh_model_progress_fn. The work ends with the process that asked for it. */
int model_progress(void *data, const struct tmesh_model_progress *progress);
/* Enclose calls that read or write files: only some dirty schedulers do so at once. Return: false
 * with @err filled (EAGAIN). */
bool begin_files(struct context *context, struct tmesh_error *err);
void end_files(struct context *context);

/* sharing.c */
/* Get the layout of a region from its maker's description, or else of its bytes. Return: 0 or an
 * error. */
int describe_region(struct tmesh_region *region, struct tmesh_layout *layout,
		    struct tmesh_error *err);
/* Make a term {handle, ref} of a tensor with that layout and its own reference on @region. */
bool wrap_region(ErlNifEnv *env, struct context *context, struct tmesh_region *region,
		 ERL_NIF_TERM *term, struct tmesh_error *err);
/* Return the result of a new region: as wrap_region(), or with @shape unless it is nil. Take over
 * @region. */
ERL_NIF_TERM tensor_of_region(ErlNifEnv *env, struct context *context, struct tmesh_region *region,
			      ERL_NIF_TERM shape, ERL_NIF_TERM dtype, uint64_t offset);
/* Read a descriptor of the VM, or that of a descriptor term. */
bool get_fd(ErlNifEnv *env, ERL_NIF_TERM term, int *fd, struct tmesh_error *err);

/* engine.c */
extern const struct object_kind context_kind, tensor_kind;

/* jobs.c */
void job_watch_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor);

/* arena.c */
/* Return whether a tensor of so many bytes, some of them copied, takes well below a millisecond to
 * make with these options. */
bool is_quick(ErlNifEnv *env, ERL_NIF_TERM opts, uint64_t bytes, size_t copied);

/* worker_socket.c */
void worker_socket_dtor(ErlNifEnv *env, void *object);
void worker_socket_stop(ErlNifEnv *env, void *object, ErlNifEvent event, int is_direct_call);
void worker_socket_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor);

/* channel_end.c */
void channel_dtor(ErlNifEnv *env, void *object);
void channels_trim(ErlNifEnv *env);
void channels_returned(ErlNifEnv *env, uint64_t bytes);
void channel_end_dtor(ErlNifEnv *env, void *object);
void channel_end_stop(ErlNifEnv *env, void *object, ErlNifEvent event, int is_direct_call);
void channel_end_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor);

/* The functions of Tmesh.Native, each in the file of its subject. */
#define FUNCTION(name, function, arity, scheduler) NIF(function);
#include "functions.h"
#undef FUNCTION

#endif /* TMESH_NIF_H */
