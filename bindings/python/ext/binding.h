/* SPDX-License-Identifier: MIT */
/*
 * What the files of the extension share. The rules of the whole extension:
 *
 *   - Everything here is guarded by the GIL. It is dropped around calls that copy, wait or
 *     unmap much memory; such a call holds its own reference on the library's tensor.
 *   - A *view* is whatever lets somebody see a tensor's memory without asking us again: a
 *     NumPy array, a memoryview, a DLPack consumer. Each holds a reference on its Tensor
 *     and is counted there, so that neither release() nor seal() pulls memory from under it.
 */
#ifndef TMESH_BINDING_H
#define TMESH_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <tmesh/tmesh.h>

#define DTYPES (TMESH_FLOAT4_E2M1FN + 1)
#define SHELL_LISTS 256
#define ALL_RIGHTS (TMESH_READ | TMESH_WRITE | TMESH_MANAGE)

/* Members of a ref, and what an offer has beside those; the interned names are in state.keys. */
enum ref_key {
	REF_V,
	REF_ID,
	REF_TOKEN,
	REF_OFFSET,
	REF_BYTE_SIZE,
	REF_SHAPE,
	REF_DTYPE,
	REF_STRIDES,
	REF_DEVICE,
	REF_KEYS,
	OFFER_CHECKSUM = REF_KEYS,
	OFFER_REGION_BYTES,
	KEYS,
};

/* What is copied from elsewhere and nobody asked to seal. */
static const struct tmesh_region_opts unsealed = {
	.size = sizeof(unsealed),
	.flags = TMESH_REGION_UNSEALED,
};

/* Types of tmesh.engine's, in state.engine_types. */
enum engine_type {
	ENGINE_CONTEXT,
	ENGINE_TENSOR,
	ENGINE_GRAPH,
	ENGINE_BINDING,
	ENGINE_CANCELLABLE,
	ENGINE_TYPES,
};

struct state {
	struct tmesh_ctx *ctx; /* NULL until configure() or the first use */
	PyObject *errors;      /* the module tmesh.errors */
	PyTypeObject *tensor_type;
	PyTypeObject *export_type;
	struct shell *shells[SHELL_LISTS]; /* what DLPack's consumers have, dlpack.c */
	PyTypeObject *channel_type;
	PyTypeObject *arena_type;
	PyTypeObject *held_type;
	/* NULL where libtmesh-model is not compiled in. */
	PyTypeObject *slot_type;
	PyTypeObject *slot_reader_type;
	PyTypeObject *pool_type;
	PyTypeObject *pages_type;
	PyTypeObject *sequence_type;
	PyTypeObject *span_type;
	PyTypeObject *engine_types[ENGINE_TYPES];
	PyTypeObject *cuda_type;
	PyTypeObject *net_type;
	PyObject *keys[KEYS];
	PyObject *ndarray; /* numpy.ndarray, NULL until it is needed */
	PyObject *numpy_dtypes[DTYPES];
};

struct tensor {
	PyObject_HEAD struct tmesh_tensor *tensor; /* NULL once released */
	/* The Tensor that first had this region object; itself, uncounted, where it is the
	 * first. It counts the writable views of all Tensors on the region object. */
	struct tensor *root;
	uint32_t rights;
	PyObject *id;	       /* of the root: what never changes, NULL until somebody asks */
	PyObject *label;       /* of the root */
	bool sealed;	       /* of the root: known to be sealed */
	bool sealing;	       /* of the root: seal() is running without the GIL */
	bool in_arena;	       /* of the root: others lie in the region */
	bool left;	       /* its "with" has ended: it goes with its last view */
	unsigned long left_by; /* the thread that released it, or whose "with" ended */
	/* Why what was unpickled could not be opened, which any use of it tells; else NULL. */
	struct tmesh_error *lost;
	Py_ssize_t writers; /* of the root */
	Py_ssize_t views;
	PyObject *weak;	 /* references to it, weak ones */
	PyObject *model; /* of the root: what a loaded model's tensors keep, else NULL */
	/* The layout as Python's buffer protocol wants it: strides in bytes. */
	int ndim;
	Py_ssize_t itemsize; /* 0 for types of 4 bits */
	Py_ssize_t shape[TMESH_MAX_DIMS];
	Py_ssize_t strides[TMESH_MAX_DIMS];
};

/* module.c */
/* Whether it is refused, with an exception, since something of it is masked, which no tensor can
 * say. */
bool refuse_masked(PyObject *object);
/* The context, opened with the defaults if need be; NULL with an exception. */
struct tmesh_ctx *context(struct state *st);

/* error.c: all of them set an exception and return NULL */
void *raise_error(struct state *st, const struct tmesh_error *err);
/* The same with -EPERM told apart: SealedError if @region is sealed. */
void *raise_region_error(struct state *st, struct tmesh_region *region,
			 const struct tmesh_error *err);
/* The same of an open: SealedError if it was to be for writing. */
void *raise_open_error(struct state *st, uint32_t rights, const struct tmesh_error *err);
void *raise_code(struct state *st, int code, const char *format, ...);
void *raise_named(struct state *st, const char *name, int code, const char *format, ...);
PyObject *module_raise_error(PyObject *module, PyObject *report);

/* args.c: converters of arguments; -1 with an exception on failure */
/* For "O&": non-negative integers into unsigned int and unsigned long long. */
int uint_argument(PyObject *object, void *value);
int size_argument(PyObject *object, void *value);
/* Seconds as nanoseconds; None, or nothing, is -1: no limit. */
int timeout_from_object(struct state *st, PyObject *object, int64_t *ns);
/* When such a time has passed, and how much of it is left; -1: never, no limit. */
int64_t deadline_after(int64_t timeout_ns);
int64_t left_until(int64_t end);
int shape_from_object(struct state *st, PyObject *object, int32_t *ndim, int64_t *shape);
int dtype_from_object(struct state *st, PyObject *object, enum tmesh_dtype *dtype);
PyObject *tuple_from_ints(const int64_t *values, int32_t count);
PyObject *text_from_device(const struct tmesh_layout *layout);
/* What @make gives of each of @items, which are @size bytes each and freed. */
PyObject *list_of_items(void *items, size_t count, size_t size, PyObject *(*make)(const void *));
/* Ids are texts of 16 hex digits. */
PyObject *text_from_id(uint64_t id);
/* Of other people's bytes, which need not be UTF-8. */
PyObject *foreign_text(const char *text, size_t size);
int id_from_text(const char *text, uint64_t *id);

/* What empty() and put() can be told about the region. */
struct region_args {
	PyObject *label; /* str or None */
	PyObject *huge;	 /* False, True or "try" */
	PyObject *node;	 /* int or None */
	unsigned int mode;
	PyObject *gid; /* int or None */
	unsigned int linger_ms;
	int pin;
	PyObject *arena; /* Arena, None or NULL */
};
#define REGION_ARGS_INIT                                                                      \
	{                                                                                     \
		.label = Py_None, .huge = Py_False, .node = Py_None, .gid = Py_None, .pin = 1 \
	}
/* ... which is nothing else where it names an arena. */
int region_opts_from_args(struct state *st, const struct region_args *args,
			  struct tmesh_region_opts *opts);

/* arena.c */
/* Of None, NULL; -1 with an exception. */
int arena_from_object(struct state *st, PyObject *object, struct tmesh_arena **arena);
extern PyType_Spec arena_spec;

/* private.c */
PyObject *tensor_private(PyObject *object, PyObject *unused);
PyObject *tensor_torch(PyObject *object, PyObject *args, PyObject *kwargs);
/* All of a private view of @region, as bytes: a root for tensors in it. @of: the region's root. */
PyObject *private_root(struct state *st, struct tmesh_region *region, struct tensor *of);

/* tensor.c */
enum view_kind {
	VIEW_ANY,   /* writable if the memory is */
	VIEW_READ,  /* read-only */
	VIEW_WRITE, /* writable, or an exception */
};
struct state *state_of(struct tensor *self);
/* Takes over @tensor, also on failure. @root is NULL for a region object seen first. */
PyObject *tensor_new(struct state *st, struct tmesh_tensor *tensor, struct tensor *root,
		     uint32_t rights);
/* A Tensor of no memory, whose use raises @err. */
PyObject *tensor_lost(struct state *st, const struct tmesh_error *err);
/* The library's tensor, borrowed until other code may run, which may release it: an argument's,
 * say. NULL with an exception when it was released. */
struct tmesh_tensor *tensor_get(struct tensor *self);
bool tensor_is_sealed(struct tensor *self);
PyObject *module_released_by(PyObject *module, PyObject *object);
/* Map the tensor for a view and count it; -1 with an exception. */
int tensor_view_begin(struct tensor *self, enum view_kind kind, void **data, bool *writable);
void tensor_view_end(struct tensor *self, bool writable);
extern PyType_Spec tensor_spec;

/* buffer.c */
int tensor_getbuffer(PyObject *object, Py_buffer *view, int flags);
void tensor_releasebuffer(PyObject *object, Py_buffer *view);
/* A new tensor with the contents of what @object exports, by DLPack where it has no buffer of
 * that. */
struct tmesh_tensor *put_buffer(struct state *st, PyObject *object,
				const struct tmesh_region_opts *opts);

/* dlpack.c */
PyObject *tensor_dlpack(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *tensor_dunder_dlpack(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *tensor_dlpack_device(PyObject *object, PyObject *unused);
PyObject *module_from_dlpack(PyObject *module, PyObject *object);
PyObject *module_from_address(PyObject *module, PyObject *address);
PyObject *module_begins_at(PyObject *module, PyObject *address);
PyObject *module_around(PyObject *module, PyObject *address);
PyObject *module_find(PyObject *module, PyObject *const *args, Py_ssize_t count);
/* A capsule that runs the deleter where no consumer took @managed. Takes it over,
 * also on failure. */
PyObject *capsule_of_plain(struct DLManagedTensor *managed);
PyObject *capsule_of_versioned(struct DLManagedTensorVersioned *managed);
/* What an unversioned capsule holds, which it still owns; NULL with an exception. */
struct DLManagedTensor *plain_of_capsule(struct state *st, PyObject *capsule);
/* A managed tensor that counts as a view, marked where it is read-only; NULL with an exception. */
struct DLManagedTensorVersioned *tensor_to_managed(struct tensor *self);
/* ... given back by who has the GIL. */
void end_versioned(struct DLManagedTensorVersioned *managed);
/* The other way: memory of ours is shared, any other copied. @managed stays the caller's. */
PyObject *tensor_from_managed(struct state *st, struct DLManagedTensorVersioned *managed);
/* A new tensor with the contents of what object.__dlpack__() gives. */
struct tmesh_tensor *put_dlpack(struct state *st, PyObject *object,
				const struct tmesh_region_opts *opts);
/* A new tensor with the contents of @self. */
struct tmesh_tensor *put_tensor(struct state *st, struct tensor *self,
				const struct tmesh_region_opts *opts);

/* gil.c: the end of what C consumers have */
struct late {
	struct late *next;
	void (*run)(struct late *late); /* with the GIL */
};
/* Run it with the GIL, now or soon, for what was made in the interpreter @home. May be called by
 * any thread, with the GIL or not. False: there is no interpreter any more, and nothing was run. */
bool gil_run(struct late *late, PyInterpreterState *home);
/* Around what may call gil_run() where this thread has the GIL. */
bool gil_hold(void);
void gil_unhold(bool before);
/* What was left to be run soon; the caller has the GIL. */
void gil_run_late(void);

/* hold.c */
PyObject *module_flush_held(PyObject *module, PyObject *timeout);
PyObject *module_linger(PyObject *module, PyObject *unused);

/* arrow.c */
PyObject *tensor_arrow(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *tensor_arrow_schema(PyObject *object, PyObject *unused);

/* channel.c */
extern PyType_Spec channel_spec;

/* channel_message.c */
/* The message's tensor is borrowed from @object. Return: 0; -1 with an exception. */
int message_from_object(struct state *st, PyObject *object, struct tmesh_message *message);
/* Takes over the message's tensor, also on failure. */
PyObject *object_from_message(struct state *st, struct tmesh_message *message);

/* bundle.c */
PyObject *bundle_open(struct state *st, struct tmesh_ctx *ctx, const char *text, size_t bytes,
		      uint32_t rights);
/* Held, which takes over @bundle; its tensors keep @model, whatever that is. */
PyObject *bundle_of_model(struct state *st, struct tmesh_bundle *bundle, PyObject *model);
/* Held, which takes over @bundle. */
PyObject *held_of_bundle(struct state *st, struct tmesh_bundle *bundle);
/* The library's, borrowed; NULL with an exception: it is none, or was released. */
struct tmesh_bundle *bundle_of_held(struct state *st, PyObject *object);
PyObject *module_make_bundle(PyObject *module, PyObject *args);
PyObject *module_plan_bundle(PyObject *module, PyObject *pairs);
PyObject *module_recv_bundle(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *module_write(PyObject *module, PyObject *args);
extern PyType_Spec held_spec;

/* keep.c */
/* What is said of keeping, but for opts->mode, and the name; -1 with an exception. */
int keep_options(struct state *st, PyObject *name_object, PyObject *lifetime, PyObject *gid,
		 struct tmesh_keep_opts *opts, const char **name);
/* A name, of whom. */
int kept_name(struct state *st, PyObject *name_object, PyObject *uid_object, const char **name,
	      uid_t *uid);
PyObject *module_keep(PyObject *module, PyObject *args);
PyObject *module_open_kept(PyObject *module, PyObject *args);
PyObject *module_open_fetched(PyObject *module, PyObject *offer);
PyObject *module_kept(PyObject *module, PyObject *unused);
PyObject *module_drop(PyObject *module, PyObject *name);

/* slot.c */
PyObject *module_make_slot(PyObject *module, PyObject *args);
PyObject *module_open_slot(PyObject *module, PyObject *token);
PyObject *module_open_named_slot(PyObject *module, PyObject *name);
extern PyType_Spec slot_spec;
extern PyType_Spec slot_reader_spec;

/* pages.c, sequence.c */
PyObject *module_make_page_pool(PyObject *module, PyObject *args);
PyObject *module_open_pages(PyObject *module, PyObject *token);
PyObject *module_sequence_tables(PyObject *module, PyObject *args);
extern PyType_Spec pool_spec;
extern PyType_Spec pages_spec;
extern PyType_Spec sequence_spec;
extern PyType_Spec span_spec;

/* model.c */
/* Where libtmesh-model is not compiled in. */
void *raise_left_out(struct state *st);
PyObject *module_load_model(PyObject *module, PyObject *args);
PyObject *module_parse_model(PyObject *module, PyObject *data);

/* engine.c */
int engine_add_types(PyObject *module, struct state *st);

/* cuda.c */
int cuda_add(PyObject *module, struct state *st);

/* xla.c */
int xla_add(PyObject *module);

/* net.c */
int net_add(PyObject *module, struct state *st);

/* sent.c */
extern PyType_Spec sent_spec;

/* exchange.c */
int exchange_add(PyTypeObject *type);

/* numpy.c */
PyObject *get_array_interface(PyObject *object, void *unused);
PyObject *tensor_numpy(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *tensor_array(PyObject *object, PyObject *args, PyObject *kwargs);
extern PyType_Spec export_spec;

/* Functions of the package that are written in Python: module.function(*@args). */
PyObject *call_python(const char *module, const char *function, PyObject *argument);

/* view.c */
PyObject *module_layout(PyObject *module, PyObject *object);
PyObject *module_part(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *tensor_view(PyObject *object, PyObject *dtype);
PyObject *tensor_reshape(PyObject *object, PyObject *args);
PyObject *tensor_transposed(PyObject *object, void *unused);
PyObject *tensor_getitem(PyObject *object, PyObject *key);
PyObject *tensor_item(PyObject *object, Py_ssize_t index);
Py_ssize_t tensor_length(PyObject *object);
int tensor_contains(PyObject *object, PyObject *value);
int tensor_assign(PyObject *object, PyObject *key, PyObject *value);

/* scalar.c */
PyObject *tensor_element(PyObject *object, PyObject *unused);
PyObject *tensor_tolist(PyObject *object, PyObject *unused);
PyObject *tensor_int(PyObject *object);
PyObject *tensor_float(PyObject *object);
PyObject *tensor_complex(PyObject *object, PyObject *unused);
PyObject *tensor_index(PyObject *object);
int tensor_bool(PyObject *object);

/* ref.c */
PyObject *tensor_ref(PyObject *object, PyObject *args, PyObject *kwargs);
/* What __reduce__() gives, and its function, which opens it or gives one that is lost. */
PyObject *tensor_reduce(PyObject *object, PyObject *unused);
PyObject *module_unpickle(PyObject *module, PyObject *args);
/* Seconds, or None for no hold (0), as nanoseconds; -1 with an exception. */
int hold_from_object(struct state *st, PyObject *object, uint64_t *ns);
/* What @ref names, opened without the GIL. */
int ref_from_dict(struct state *st, PyObject *dict, struct tmesh_ref *ref);
PyObject *tensor_open(struct state *st, struct tmesh_ctx *ctx, const struct tmesh_ref *ref,
		      uint32_t rights);
PyObject *module_open(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *module_link_name(PyObject *module, PyObject *name);
PyObject *module_open_link(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* reach.c */
/* Whether the region says all that there is to know of the tensor. */
bool tensor_is_whole(struct tmesh_tensor *tensor);
/* A region as its maker described it, else as bytes. Takes over @region. */
PyObject *tensor_as_described(struct state *st, struct tmesh_region *region);
PyObject *tensor_revoke(PyObject *object, PyObject *unused);
PyObject *tensor_reclaim(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *tensor_lease(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *tensor_touch(PyObject *object, PyObject *unused);
PyObject *get_lease_state(PyObject *object, void *unused);
PyObject *tensor_signal(PyObject *object, PyObject *number);
PyObject *tensor_wait(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *tensor_export_dmabuf(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *tensor_send(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *module_gather(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *module_from_dmabuf(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *module_export_memory(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *module_recv(PyObject *module, PyObject *args, PyObject *kwargs);
/* Until a socket has @events, as poll() has them; -1 with an exception. */
int wait_for_socket(struct state *st, int fd, short events, PyObject *timeout);

/* see.c */
/* Of a context of any libtmesh in this process. */
PyObject *dict_from_stats(const struct tmesh_stats *stats);
PyObject *module_stats(PyObject *module, PyObject *unused);
PyObject *module_trim(PyObject *module, PyObject *unused);
PyObject *module_caps(PyObject *module, PyObject *unused);
PyObject *module_backend(PyObject *module, PyObject *unused);
PyObject *module_regions(PyObject *module, PyObject *unused);
PyObject *module_holders(PyObject *module, PyObject *id);

#endif /* TMESH_BINDING_H */
