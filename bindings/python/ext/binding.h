/* SPDX-License-Identifier: MIT */
/*
 * Declarations that the files of the extension share. Its rules:
 *
 *   - The GIL guards all state. Calls that copy, wait or unmap much memory drop it, and hold a
 *     reference of their own on the library's tensor.
 *   - Other code may run when Python allocates a tuple, list or dict (the collector, up to Python
 *     3.11), imports, calls, compares, or drops an object. That code may release the object of
 *     any pointer. So parse the arguments first, then take the pointer, or take a reference.
 *   - A *view* is an object that shows a tensor's memory without further calls: a NumPy array, a
 *     memoryview, a DLPack consumer. Each view holds a reference on its Tensor and is counted
 *     there, so neither release() nor seal() takes memory away from it.
 */
#ifndef TMESH_BINDING_H
#define TMESH_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tmesh/tmesh.h>

#define DTYPES (TMESH_FLOAT4_E2M1FN + 1)
#define PLACE_LISTS 256
#define ALL_RIGHTS (TMESH_READ | TMESH_WRITE | TMESH_MANAGE)

/* Run a statement without the GIL. */
#define WITHOUT_GIL(...)                \
	do {                            \
		Py_BEGIN_ALLOW_THREADS; \
		__VA_ARGS__;            \
		Py_END_ALLOW_THREADS;   \
	} while (0)

/* Define an immutable type, with @more flags. */
#define TYPE_SPEC(variable, name_, structure, more, slots_)                      \
	PyType_Spec variable = {                                                 \
		.name = name_,                                                   \
		.basicsize = sizeof(structure),                                  \
		.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | (more), \
		.slots = slots_,                                                 \
	}

/* Members of a ref, then those that only an offer has. The interned names are in state.keys. */
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

/* Options for copies, which the caller did not ask to seal. */
static const struct tmesh_region_opts unsealed = {
	.size = sizeof(unsealed),
	.flags = TMESH_REGION_UNSEALED,
};

/* The types of tmesh.engine, in state.engine_types. */
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
	struct place *places[PLACE_LISTS]; /* memory that consumers use, see place.c */
	PyTypeObject *channel_type;
	PyTypeObject *arena_type;
	PyTypeObject *held_type;
	/* NULL if libtmesh-model is not compiled in. */
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
	/* The Tensor that first had this region object. The first one refers to itself, without a
	 * reference. It counts the writable views of all Tensors on the region object. */
	struct tensor *root;
	uint32_t rights;
	PyObject *id;	 /* of the root, never changes; NULL until it is first read */
	PyObject *label; /* of the root */
	bool sealed;	 /* of the root: known to be sealed */
	bool sealing;	 /* of the root: seal() is running without the GIL */
	bool in_arena;	 /* of the root: other tensors are in the region */
	struct tmesh_tensor *inherited; /* after fork(): the handle of the views that came along */
	bool left;			/* its "with" has ended: its last view releases it */
	unsigned long left_by;		/* the thread that released it, or whose "with" ended */
	/* The reason why a received tensor could not be opened, which every use of it raises; else
	 * NULL. */
	struct tmesh_error *lost;
	Py_ssize_t writers; /* of the root */
	Py_ssize_t views;
	PyObject *weak;	 /* references to it, weak ones */
	PyObject *model; /* of the root: a loaded model that its tensors keep, else NULL */
	/* The layout as Python's buffer protocol wants it: strides in bytes. */
	int ndim;
	Py_ssize_t itemsize; /* 0 for types of 4 bits */
	Py_ssize_t shape[TMESH_MAX_DIMS];
	Py_ssize_t strides[TMESH_MAX_DIMS];
};

/* module.c */
/* Refuse an object with masked elements, with an exception: a tensor cannot describe them. */
bool refuse_masked(PyObject *object);
/* Return the context, opened with the defaults if there is none; NULL with an exception. */
struct tmesh_ctx *context(struct state *st);

/* error.c: each of these sets an exception and returns NULL */
void *raise_error(struct state *st, const struct tmesh_error *err);
/* The same, but -EPERM is SealedError if @region is sealed. */
void *raise_region_error(struct state *st, struct tmesh_region *region,
			 const struct tmesh_error *err);
/* The same for an open: -EPERM is SealedError if the open was for writing. */
void *raise_open_error(struct state *st, uint32_t rights, const struct tmesh_error *err);
void *raise_code(struct state *st, int code, const char *format, ...);
void *raise_named(struct state *st, const char *name, int code, const char *format, ...);
PyObject *module_raise_error(PyObject *module, PyObject *report);
PyObject *module_raise_word(PyObject *module, PyObject *args);

/* args.c: converters of arguments. They return -1 with an exception. */
/* Convert non-negative integers into unsigned int and unsigned long long, for "O&". */
int uint_argument(PyObject *object, void *value);
int size_argument(PyObject *object, void *value);
/* Convert seconds to nanoseconds. None, or NULL, is -1: no limit. */
int timeout_from_object(struct state *st, PyObject *object, int64_t *ns);
/* Return the end of such a time, and how much of it is left; -1: no limit. */
int64_t deadline_after(int64_t timeout_ns);
int64_t left_until(int64_t end);
int shape_from_object(struct state *st, PyObject *object, int32_t *ndim, int64_t *shape);
int dtype_from_object(struct state *st, PyObject *object, enum tmesh_dtype *dtype);
PyObject *tuple_from_ints(const int64_t *values, int32_t count);
PyObject *text_from_device(const struct tmesh_layout *layout);
/* Free an object of one of this module's types, at the end of its dealloc. */
void object_free(PyObject *object);
/* Append @item and take it over. If it is NULL or does not fit, drop the list. */
void list_add(PyObject **list, PyObject *item);
/* Return a list of @make's results for @items, which are @size bytes each and are freed. */
PyObject *list_of_items(void *items, size_t count, size_t size, PyObject *(*make)(const void *));
/* Return an id as text of 16 hex digits. */
PyObject *text_from_id(uint64_t id);
/* Make a text of bytes of another process, which need not be UTF-8. */
PyObject *foreign_text(const char *text, size_t size);

/* inspect.c */
struct shown;
/* Add the members of @of, by a table of common/shown.h; NULL with an exception. Take over @dict,
 * which may be NULL with an exception. */
PyObject *dict_show(PyObject *dict, const struct shown *members, size_t count, const void *of);
#define DICT_SHOW(dict, table, of) dict_show(dict, table, SHOWN_COUNT(table), of)
int id_from_text(const char *text, uint64_t *id);

/* The arguments of empty() and put() that describe the region. */
struct region_args {
	PyObject *label; /* str or None */
	PyObject *huge;	 /* False, True or "try" */
	PyObject *node;	 /* int or None */
	unsigned int mode;
	PyObject *gid; /* int or None */
	unsigned int hold_ms;
	int pin;
	PyObject *arena; /* Arena, None or NULL */
};
#define REGION_ARGS_INIT                                                                      \
	{                                                                                     \
		.label = Py_None, .huge = Py_False, .node = Py_None, .gid = Py_None, .pin = 1 \
	}
/* Convert them. With an arena, the other arguments must be left out. */
int region_opts_from_args(struct state *st, const struct region_args *args,
			  struct tmesh_region_opts *opts);

/* arena.c */
/* Return the arena of @object, NULL for None; -1 with an exception. */
int arena_from_object(struct state *st, PyObject *object, struct tmesh_arena **arena);
extern PyType_Spec arena_spec;

/* private.c */
PyObject *tensor_private(PyObject *object, PyObject *unused);
PyObject *tensor_torch(PyObject *object, PyObject *args, PyObject *kwargs);
/* Return all of a private view of @region as bytes: a root for tensors in it. @of: the region's
 * root. */
PyObject *private_root(struct state *st, struct tmesh_region *region, struct tensor *of);

/* tensor.c */
enum view_kind {
	VIEW_ANY,   /* writable if the memory is */
	VIEW_READ,  /* read-only */
	VIEW_WRITE, /* writable, or an exception */
};
struct state *state_of(struct tensor *self);
/* Take over @tensor, also on failure. @root is NULL for a new region object. */
PyObject *tensor_new(struct state *st, struct tmesh_tensor *tensor, struct tensor *root,
		     uint32_t rights);
/* Return a Tensor without memory. Each use of it raises @err. */
PyObject *tensor_lost(struct state *st, const struct tmesh_error *err);
/* Return the library's tensor, borrowed. Other code that runs, such as that of an argument, may
 * release it. NULL with an exception if it was released. */
struct tmesh_tensor *tensor_get(struct tensor *self);
/* Copy the layout, so that it stays valid; -1 with an exception. */
int tensor_layout(struct tensor *self, struct tmesh_layout *layout);
bool tensor_is_sealed(struct tensor *self);
PyObject *module_released_by(PyObject *module, PyObject *object);
/* Map the tensor for a view and count it; -1 with an exception. */
int tensor_view_begin(struct tensor *self, enum view_kind kind, void **data, bool *writable);
void tensor_view_end(struct tensor *self, bool writable);
extern PyType_Spec tensor_spec;

/* buffer.c */
int tensor_getbuffer(PyObject *object, Py_buffer *view, int flags);
void tensor_releasebuffer(PyObject *object, Py_buffer *view);
/* Copy large contents into @out in pieces, and check for signals between them. @out is NULL with an
 * exception. Return false if @dl is not large, or if the library has to refuse it. */
struct dl_tensor;
bool put_in_pieces(struct state *st, const struct dl_tensor *dl,
		   const struct tmesh_region_opts *opts, struct tmesh_tensor **out);
/* Make a tensor with the contents of a buffer, or by DLPack if the object has no buffer for its
 * type. */
struct tmesh_tensor *put_buffer(struct state *st, PyObject *object,
				const struct tmesh_region_opts *opts);

/* place.c */
/* Memory of a tensor that DLPack's consumers or an array use, to be found by its address. */
struct place {
	struct tensor *tensor;
	const void *data; /* of the element with all indices 0 */
	struct place *next, *previous;
};
void place_list(struct place *place, struct tensor *tensor, const void *data);
void place_unlist(struct place *place);
/* Find the largest memory in use that contains @data. */
struct place *place_around(struct state *st, uintptr_t data);
/* Return a new Tensor of the same tensor. */
PyObject *tensor_again(struct tensor *ours);
PyObject *module_from_address(PyObject *module, PyObject *address);
PyObject *module_begins_at(PyObject *module, PyObject *address);
PyObject *module_containing(PyObject *module, PyObject *address);
PyObject *module_find(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* dlpack.c */
PyObject *tensor_dlpack(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *tensor_dunder_dlpack(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *tensor_dlpack_device(PyObject *object, PyObject *unused);
PyObject *module_from_dlpack(PyObject *module, PyObject *object);
/* Make a capsule that runs the deleter if no consumer takes @managed. Take over @managed, also on
 * failure. */
PyObject *capsule_of_plain(struct DLManagedTensor *managed);
PyObject *capsule_of_versioned(struct DLManagedTensorVersioned *managed);
/* Return the managed tensor of an unversioned capsule, which still owns it; NULL with an
 * exception. */
struct DLManagedTensor *plain_of_capsule(struct state *st, PyObject *capsule);
/* Make a managed tensor that counts as a view, and mark it if it is read-only; NULL with an
 * exception. */
struct DLManagedTensorVersioned *tensor_to_managed(struct tensor *self);
/* Free it. The caller has the GIL. */
void end_versioned(struct DLManagedTensorVersioned *managed);
/* Make a Tensor of a managed tensor. Our own memory is shared, other memory is copied. @managed
 * stays the caller's. */
PyObject *tensor_from_managed(struct state *st, struct DLManagedTensorVersioned *managed);
/* Make a tensor with the contents of object.__dlpack__(). */
struct tmesh_tensor *put_dlpack(struct state *st, PyObject *object,
				const struct tmesh_region_opts *opts);
/* Make a tensor with the contents of @self. */
struct tmesh_tensor *put_tensor(struct state *st, struct tensor *self,
				const struct tmesh_region_opts *opts);

/* gil.c: callbacks when C consumers are done */
struct late {
	struct late *next;
	void (*run)(struct late *late); /* with the GIL */
};
/* Run it with the GIL, now or soon. It was made in the interpreter @home. Any thread may call this,
 * with the GIL or without. Return false, and run nothing, after the interpreter has ended. */
bool gil_run(struct late *late, PyInterpreterState *home);
/* Put these around calls that may call gil_run() while this thread has the GIL. */
bool gil_hold(void);
void gil_unhold(bool before);
/* Run the callbacks that gil_run() has left for later. The caller has the GIL. */
void gil_run_late(void);

/* hold.c */
PyObject *module_flush_held(PyObject *module, PyObject *timeout);
PyObject *module_exit_wait(PyObject *module, PyObject *timeout);

/* arrow.c */
PyObject *tensor_arrow(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *tensor_arrow_schema(PyObject *object, PyObject *unused);

/* channel.c */
extern PyType_Spec channel_spec;

/* channel_message.c */
/* Borrow the message's tensor from @object. Return 0, or -1 with an exception. */
int message_from_object(struct state *st, PyObject *object, struct tmesh_message *message);
/* Take over the message's tensor, also on failure. */
PyObject *object_from_message(struct state *st, struct tmesh_message *message);

/* bundle.c */
PyObject *bundle_open(struct state *st, struct tmesh_ctx *ctx, const char *text, size_t bytes,
		      uint32_t rights);
/* Make a Held. Take over @bundle. Its tensors keep a reference on @model. */
PyObject *bundle_of_model(struct state *st, struct tmesh_bundle *bundle, PyObject *model);
/* Make a Held. Take over @bundle. */
PyObject *held_of_bundle(struct state *st, struct tmesh_bundle *bundle);
/* Return the library's bundle, borrowed. NULL with an exception if @object is no Held or was
 * released. */
struct tmesh_bundle *bundle_of_held(struct state *st, PyObject *object);
PyObject *module_make_bundle(PyObject *module, PyObject *args);
PyObject *module_plan_bundle(PyObject *module, PyObject *pairs);
PyObject *module_recv_bundle(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *module_write(PyObject *module, PyObject *args);
extern PyType_Spec held_spec;

/* keep.c */
/* Read the name and the options of keeping, except opts->mode; -1 with an exception. */
int keep_options(struct state *st, PyObject *name_object, PyObject *lifetime, PyObject *gid,
		 struct tmesh_keep_opts *opts, const char **name);
/* Read a name and its user. */
int kept_name(struct state *st, PyObject *name_object, PyObject *uid_object, const char **name,
	      uid_t *uid);
PyObject *module_keep(PyObject *module, PyObject *args);
PyObject *module_open_kept(PyObject *module, PyObject *args);
PyObject *module_keep_folder(PyObject *module, PyObject *args);
PyObject *module_kept_path(PyObject *module, PyObject *args);
PyObject *module_open_kept_file(PyObject *module, PyObject *args);
PyObject *module_kept_files(PyObject *module, PyObject *object);
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
PyObject *module_load_model(PyObject *module, PyObject *args);
PyObject *module_describe_model(PyObject *module, PyObject *path);
PyObject *module_parse_model(PyObject *module, PyObject *data);

/* engine.c */
int engine_add_types(PyObject *module, struct state *st);

/* cuda.c */
int cuda_add(PyObject *module, struct state *st);

/* xla.c */
int xla_add(PyObject *module);

/* net.c */
int net_add(PyObject *module, struct state *st);

/* in_transit.c */
extern PyType_Spec in_transit_spec;

/* exchange.c */
int exchange_add(PyTypeObject *type);

/* numpy.c */
PyObject *get_array_interface(PyObject *object, void *unused);
PyObject *tensor_numpy(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *tensor_array(PyObject *object, PyObject *args, PyObject *kwargs);
extern PyType_Spec export_spec;

/* Call a function of the package's Python part: module.function(*@args). */
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
/* Implement __reduce__(), and the function that it names, which opens the tensor or returns a lost
 * one. */
PyObject *tensor_reduce(PyObject *object, PyObject *unused);
PyObject *module_unpickle(PyObject *module, PyObject *args);
/* Convert seconds, or None for no hold (0), to nanoseconds; -1 with an exception. */
int hold_from_object(struct state *st, PyObject *object, uint64_t *ns);
/* Read a ref from a dict, and open a ref without the GIL. */
int ref_from_dict(struct state *st, PyObject *dict, struct tmesh_ref *ref);
PyObject *tensor_open(struct state *st, struct tmesh_ctx *ctx, const struct tmesh_ref *ref,
		      uint32_t rights);
PyObject *module_open(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *module_link_name(PyObject *module, PyObject *name);
PyObject *module_runtime_dir(PyObject *module, PyObject *unused);
PyObject *module_open_link(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* sharing.c */
/* Whether the region's description says all about the tensor. */
bool tensor_is_whole(struct tmesh_tensor *tensor);
/* Make a Tensor by the region's description, else one of its bytes. Take over @region. */
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
/* Wait until a socket has @events, as in poll(); -1 with an exception. */
int wait_for_socket(struct state *st, int fd, short events, PyObject *timeout);

/* inspect.c */
/* Make a dict of the counters of any libtmesh's context in this process. */
PyObject *dict_from_stats(const struct tmesh_stats *stats);
PyObject *module_stats(PyObject *module, PyObject *unused);
PyObject *module_trim(PyObject *module, PyObject *unused);
PyObject *module_caps(PyObject *module, PyObject *unused);
PyObject *module_backend(PyObject *module, PyObject *unused);
PyObject *module_regions(PyObject *module, PyObject *unused);
PyObject *module_holders(PyObject *module, PyObject *id);

#endif /* TMESH_BINDING_H */
