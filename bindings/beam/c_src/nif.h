/* SPDX-License-Identifier: MIT */
/*
 * The NIF library under Tmesh.Native.
 *
 * Resources, and who holds what:
 *
 *   context  a tmesh_ctx
 *   handle   a tmesh_tensor, until it is released or nobody has the term any more
 *   pinned   a pinning region and its mapping, which binaries point into, and the region that it
 *            was made of, for its tokens. Never a term
 *            by itself: a binary that doubles as a handle could not be released
 *   socket   the connection to a worker process
 *   channel  one end of a channel, until it is closed or nobody has the term any more; in a
 *            resource of its own, channel_end, the descriptor that the emulator polls
 *   arena    a tmesh_arena
 *   descriptor  a descriptor that the caller may give to others, until it is closed
 *   bundle   a tmesh_bundle, until it is released or nobody has the term any more
 *   model    a loaded model's origin, until it is released or nobody has the term any more
 *   slot     a tmesh_slot, until it is closed or nobody has the term any more
 *   slot_reader  one that reads a slot, until it is closed or nobody has the term any more; in a
 *            resource of its own, slot_end, the descriptor that the emulator polls
 *   page_pool, pages, sequence  the library's, until closed or released, or nobody has the term
 *   engine   a context, graph, binding, device tensor or the like of libtmesh-engine, until nobody
 *            has the term any more
 *   graph    a tmesh_graph that is built, until nobody has the term any more
 *   origin   a tmesh_model, for the model's term and the handles of its tensors; never a term
 *   gpu      memory of libtmesh-cuda, until it is released or nobody has the term any more
 *
 * What a resource holds is given up in a dirty NIF or by the janitor (garbage.c), never in
 * a destructor: those run on normal schedulers, and unmapping a large region takes long. A
 * socket's descriptors are closed at once.
 */
#ifndef TMESH_NIF_H
#define TMESH_NIF_H

#include <erl_nif.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <tmesh/model.h>
#include <tmesh/tmesh.h>

#define NIF(name) ERL_NIF_TERM name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])

/* Something to be dropped later. Allocated ahead, so that a destructor cannot fail. */
struct garbage {
	struct garbage *next;
	void (*drop)(void *object);
	void *object;
};

struct context {
	struct tmesh_ctx *ctx;
	_Atomic uint64_t max_bytes; /* most that one to_binary may copy out; 0: no limit */
	unsigned int max_opening;   /* dirty schedulers that may wait for peers at once */
	atomic_uint opening;
	atomic_uint waiting; /* of them at fences and the like */
	atomic_uint loading; /* dirty schedulers that load or save models */
	atomic_bool named;   /* a region has had a token, so what answers to them is there */
	struct garbage *garbage;
};

struct arena {
	struct tmesh_arena *arena;
	uint64_t bytes; /* of its regions, 0 for the library's 1 MiB */
	struct garbage *garbage;
};

/* In a handle: who may have it (held.c). */
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
	struct pinned *pinned;	      /* what the first binary made; later ones share it */
	struct origin *origin;	      /* the model that the tensor is of, or NULL */
	uint64_t id;		      /* of the region, once somebody has asked ... */
	char token[TMESH_TOKEN_SIZE]; /* ... for this, which lets others read; "" until then */
	struct context *context;      /* whose limits apply */
	struct garbage *garbage;
	bool in_arena;	  /* beside others: its region is not its own */
	atomic_bool kept; /* Tmesh.Registry may hold it: releasing has to tell it */
};

/* A descriptor that was made for the caller. */
struct descriptor {
	atomic_int fd; /* -1: closed */
};

struct pinned {
	struct guarded *mapping;
	struct tmesh_region *region; /* a pinning handle, mapped for reading */
	const unsigned char *start;  /* of the region */
	struct garbage *garbage;
};

struct origin {
	struct tmesh_model *model;
	pthread_mutex_t lock;  /* guards what follows */
	struct pinned *pinned; /* for the binaries of all its tensors, or NULL */
	struct garbage *garbage;
};

extern ErlNifResourceType *context_type, *handle_type, *pinned_type, *worker_socket_type,
	*channel_type, *channel_end_type, *arrow_stream_type, *gpu_type, *arena_type,
	*descriptor_type, *bundle_type, *model_type, *origin_type, *slot_type, *slot_reader_type,
	*slot_end_type, *page_pool_type, *pages_type, *sequence_type, *engine_type, *graph_type;

void context_dtor(ErlNifEnv *env, void *object);
void handle_dtor(ErlNifEnv *env, void *object);
void pinned_dtor(ErlNifEnv *env, void *object);
void arrow_stream_dtor(ErlNifEnv *env, void *object);
void gpu_dtor(ErlNifEnv *env, void *object);
void arena_dtor(ErlNifEnv *env, void *object);
void descriptor_dtor(ErlNifEnv *env, void *object);
void bundle_dtor(ErlNifEnv *env, void *object);
void model_dtor(ErlNifEnv *env, void *object);
void origin_dtor(ErlNifEnv *env, void *object);
void slot_dtor(ErlNifEnv *env, void *object);
void slot_reader_dtor(ErlNifEnv *env, void *object);
void slot_end_dtor(ErlNifEnv *env, void *object);
void page_pool_dtor(ErlNifEnv *env, void *object);
void pages_dtor(ErlNifEnv *env, void *object);
void sequence_dtor(ErlNifEnv *env, void *object);
void graph_dtor(ErlNifEnv *env, void *object);
void slot_end_stop(ErlNifEnv *env, void *object, ErlNifEvent event, int is_direct_call);

/* garbage.c */
struct garbage *garbage_alloc(void (*drop)(void *object));
void garbage_free(struct garbage *garbage);
void garbage_put(ErlNifEnv *env, struct garbage *garbage, void *object);
void garbage_leave(struct garbage *garbage, void *object);
void garbage_tell(void);
NIF(janitor);
NIF(sweep);

/* log.c */
void log_keep(void *data, enum tmesh_log_level level, const char *message);
ERL_NIF_TERM log_take(ErlNifEnv *env);

/* Atoms of what is called often: looking one up by its name takes as long as a small call. */
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

/* term.c: between terms and the library's structures. The get_ functions return false, and
 * leave the reason in @err, for a term of another shape. */
ERL_NIF_TERM make_ok(ErlNifEnv *env, ERL_NIF_TERM term);
ERL_NIF_TERM make_error(ErlNifEnv *env, const struct tmesh_error *err);
ERL_NIF_TERM make_open_error(ErlNifEnv *env, uint32_t rights, const struct tmesh_error *err);
ERL_NIF_TERM make_region_error(ErlNifEnv *env, struct tmesh_region *region,
			       const struct tmesh_error *err);
ERL_NIF_TERM make_string(ErlNifEnv *env, const char *text);
ERL_NIF_TERM make_word(ErlNifEnv *env, const char *word);
/* Of an array of words, that with the number @n; NULL where it has none. */
#define WORD_OF(words, n) \
	((size_t)(n) < sizeof(words) / sizeof((words)[0]) ? (words)[(size_t)(n)] : NULL)
ERL_NIF_TERM make_ref(ErlNifEnv *env, const struct tmesh_ref *ref);
ERL_NIF_TERM make_dims(ErlNifEnv *env, const int64_t *dims, int32_t ndim);
struct member {
	const char *name;
	ERL_NIF_TERM value;
};
/* Of an array of members, keys that are atoms. */
#define MAKE_MAP(env, members) make_members(env, members, sizeof(members) / sizeof((members)[0]))
ERL_NIF_TERM make_members(ErlNifEnv *env, const struct member *members, size_t count);
int refuse(struct tmesh_error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
bool get_dtype(ErlNifEnv *env, ERL_NIF_TERM term, enum tmesh_dtype *dtype, struct tmesh_error *err);
bool get_dims(ErlNifEnv *env, ERL_NIF_TERM term, const char *what, int64_t *dims, int32_t *ndim,
	      struct tmesh_error *err);
bool get_rights(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t *rights, struct tmesh_error *err);
bool get_bool(ErlNifEnv *env, ERL_NIF_TERM term, const char *what, bool *value,
	      struct tmesh_error *err);
/* A binary of at most @size - 1 bytes without a zero byte, as a string. */
bool get_text(ErlNifEnv *env, ERL_NIF_TERM term, char *text, size_t size);
bool get_ref(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_ref *ref, struct tmesh_error *err);
bool get_region_opts(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_region_opts *opts,
		     char label[TMESH_LABEL_LEN + 1], struct tmesh_error *err);

/* context.c */
bool get_context(ErlNifEnv *env, ERL_NIF_TERM term, struct context **context,
		 struct tmesh_error *err);
NIF(context_open);
NIF(context_limit);
NIF(context_backend);
NIF(context_caps);
NIF(context_stats);

/* handle.c: a tensor taken from a handle is the caller's reference. */
struct tmesh_tensor *get_tensor(ErlNifEnv *env, ERL_NIF_TERM term, struct handle **handle,
				struct tmesh_error *err);
void put_tensor(ErlNifEnv *env, struct tmesh_tensor *tensor);
/* A term {handle, ref} of a new handle, which takes over @tensor, also on failure. */
bool make_handle(ErlNifEnv *env, struct context *context, struct tmesh_tensor *tensor,
		 ERL_NIF_TERM *term, struct tmesh_error *err);
/* The same of a model's tensor: the handle keeps @origin. */
bool make_handle_of(ErlNifEnv *env, struct context *context, struct tmesh_tensor *tensor,
		    struct origin *origin, ERL_NIF_TERM *term, struct tmesh_error *err);
bool same_layout(const struct tmesh_layout *a, const struct tmesh_layout *b);
NIF(tensor_create);
NIF(tensor_put);
NIF(tensor_open);
NIF(tensor_ref);
NIF(tensor_name);
NIF(tensor_seal);
NIF(tensor_write);
NIF(tensor_release);
NIF(tensor_keep);
NIF(ref_encode);
NIF(ref_decode);
NIF(ref_from_members);
/* Around whatever may wait for a peer on a dirty scheduler. Return: false with @err filled. */
bool begin_opening(struct context *context, struct tmesh_error *err);
void end_opening(struct context *context);

/* see.c */
ERL_NIF_TERM make_id(ErlNifEnv *env, uint64_t id);
NIF(tensor_info);
NIF(regions);
NIF(holders);
NIF(token_id);

/* held.c */
void held_add(ErlNifEnv *env, struct held *held);
void held_remove(struct held *held);
void held_used(ErlNifEnv *env, struct held *held);
NIF(held_by);

/* hold.c */
/* How long a ref holds its memory: nil, which is 0 and not at all, or nanoseconds. */
bool get_hold(ErlNifEnv *env, ERL_NIF_TERM term, uint64_t *ns, struct tmesh_error *err);
NIF(context_flush);
NIF(context_trim);

/* bundle.c */
/* {ok, term} of a bundle, which the term takes over, also on failure. */
ERL_NIF_TERM make_bundle(ErlNifEnv *env, struct context *context, struct tmesh_bundle *made);
/* The caller's reference on the bundle of a term, or NULL with @err filled. */
struct tmesh_bundle *get_bundle(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_error *err);
NIF(bundle_create);
NIF(bundle_open);
NIF(bundle_info);
NIF(bundle_tensor);
NIF(bundle_ref);
NIF(bundle_hand_over);
NIF(bundle_take_over);
NIF(bundle_release);

/* model.c */
NIF(model_load);
NIF(model_info);
NIF(model_metadata);
NIF(model_tensor);
NIF(model_bundle);
NIF(model_release);
/* Who waits for files, and who wants to be told how far they are. */
struct model_watch {
	ErlNifEnv *env;
	ErlNifEnv *message; /* NULL: nobody wants to know */
	ErlNifPid pid;
	ERL_NIF_TERM path;
};
/* nil, or the process that is told. The caller frees the message's environment. */
bool get_watch(ErlNifEnv *env, ERL_NIF_TERM term, ERL_NIF_TERM path, struct model_watch *watch);
/* A tmesh_model_progress_fn: the work ends with the process that asked for it. */
int model_progress(void *data, const struct tmesh_model_progress *progress);
/* Around what reads or writes files: only some of the dirty schedulers do at once. Return: false
 * with @err filled (EAGAIN). */
bool begin_files(struct context *context, struct tmesh_error *err);
void end_files(struct context *context);

/* model_save.c */
NIF(model_save);

/* reach.c */
/* The layout of a region as its maker described it, else of its bytes. Return: 0 or an error. */
int describe_region(struct tmesh_region *region, struct tmesh_layout *layout,
		    struct tmesh_error *err);
/* A term {handle, ref} of a tensor with that layout, with a reference of its own on @region. */
bool wrap_region(ErlNifEnv *env, struct context *context, struct tmesh_region *region,
		 ERL_NIF_TERM *term, struct tmesh_error *err);
/* The result of a new region: as wrap_region(), unless there is a shape (else nil). Takes over
 * @region. */
ERL_NIF_TERM tensor_of_region(ErlNifEnv *env, struct context *context, struct tmesh_region *region,
			      ERL_NIF_TERM shape, ERL_NIF_TERM dtype, uint64_t offset);
/* A descriptor of the VM's, or one of a term's own. */
bool get_fd(ErlNifEnv *env, ERL_NIF_TERM term, int *fd, struct tmesh_error *err);
NIF(region_revoke);
NIF(reclaim);
NIF(lease);
NIF(touch);
NIF(fence_signal);
NIF(fence_wait);
NIF(gather);
NIF(export_dmabuf);
NIF(descriptor_close);
NIF(from_dmabuf);
NIF(hand_over);
NIF(take_over);

/* engine.c */
void engine_dtor(ErlNifEnv *env, void *object);
NIF(engine_connect);
NIF(engine_info);
NIF(engine_graph);
NIF(engine_operands);
NIF(engine_bind);
NIF(engine_rebind);
NIF(engine_keep);
NIF(placed_open);
NIF(placed_parts);
NIF(placed_move);
NIF(placed_at);
NIF(placed_bind);
NIF(placed_tensor);
NIF(places_open);
NIF(costs_parse);
NIF(costs_read);
NIF(costs_find);
NIF(places_sweep);
NIF(places_used);
NIF(places_stats);
NIF(engine_dispatch);
NIF(engine_cancellable);
NIF(engine_cancel);

/* engine_tensor.c */
NIF(engine_tensor);
NIF(engine_tensor_wrap);
NIF(engine_tensor_info);
NIF(engine_tensor_read);
NIF(engine_tensor_write);
NIF(engine_tensor_export);
NIF(engine_tensor_destroy);
void engine_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor);

/* graph.c */
NIF(graph_create);
NIF(graph_parse);
NIF(graph_read);
NIF(graph_add);
NIF(graph_write);

/* slot.c */
NIF(slot_create);
NIF(slot_publish);
NIF(slot_generation);
NIF(slot_open);
NIF(slot_open_named);
NIF(slot_read);
NIF(slot_watch);
NIF(slot_close);

/* page_pool.c */
NIF(page_pool_create);
NIF(page_pool_tenant);
NIF(page_pool_info);
NIF(page_pool_close);
NIF(pages_open);
NIF(pages_info);
NIF(pages_head);
NIF(pages_hash);
NIF(pages_sequence);
NIF(pages_find);
NIF(pages_take_shared);
NIF(pages_unshare);
NIF(pages_trim);
NIF(pages_slab);
NIF(pages_close);

/* sequence.c */
NIF(seq_append);
NIF(seq_truncate);
NIF(seq_fork);
NIF(seq_table);
NIF(seq_slots);
NIF(seq_read);
NIF(seq_write);
NIF(seq_gather);
NIF(seq_cache);
NIF(seq_share);
NIF(seq_release);

/* keep.c */
NIF(keep_region);
NIF(open_kept);
NIF(list_kept);
NIF(drop_kept);

/* arena.c */
/* Whether a tensor of so many bytes, some of them copied, is made with these options in well below
 * a millisecond. */
bool is_quick(ErlNifEnv *env, ERL_NIF_TERM opts, uint64_t bytes, size_t copied);
NIF(arena_create);

/* arrow_stream.c */
NIF(arrow_stream);

/* binary.c */
NIF(tensor_to_binary);

/* json.c */
NIF(json_decode);

/* worker_socket.c */
void worker_socket_dtor(ErlNifEnv *env, void *object);
void worker_socket_stop(ErlNifEnv *env, void *object, ErlNifEvent event, int is_direct_call);
void worker_socket_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor);
NIF(worker_connect);
NIF(worker_send);
NIF(worker_recv);
NIF(worker_kill);
NIF(worker_close);

/* channel.c */
void channel_dtor(ErlNifEnv *env, void *object);
void channel_end_dtor(ErlNifEnv *env, void *object);
void channel_end_stop(ErlNifEnv *env, void *object, ErlNifEvent event, int is_direct_call);
void channel_end_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor);
NIF(channel_create);
NIF(channel_open);
NIF(channel_send);
NIF(channel_recv);
NIF(channel_call);
NIF(channel_flush);
NIF(channel_wait);
NIF(channel_cancel);
NIF(channel_close);

/* gpu.c */
NIF(gpu_alloc);
NIF(gpu_open);
NIF(gpu_ref);
NIF(gpu_info);
NIF(gpu_release);

/* xla.c */
NIF(xla_register);
NIF(xla_bind);
NIF(xla_unbind);
NIF(xla_cancel);
NIF(xla_flush);
NIF(xla_limit);

#endif /* TMESH_NIF_H */
