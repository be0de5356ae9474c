/* SPDX-License-Identifier: MIT */
/*
 * libtmesh-engine: graphs run on tensors that processes share. See tmesh/tmesh.h for the
 * conventions of all calls; link with -ltmesh-engine. Since 0.2.
 * Maturity: experimental.
 *
 * The names are those of WebNN (https://www.w3.org/TR/webnn/) where it has one: context, graph,
 * operand, dispatch, read, write, destroy. An engine is a plug-in, tmesh-engine-NAME.so, that is
 * looked for when a context is made; docs/reference/engines.md says where, which there are, and
 * what they were tried with. An engine runs in the caller's process, which ends when it crashes, or
 * in a process of its own, tmesh_engine_connect().
 *
 * Errors that mean the same in all calls here, beside those of tmesh/tmesh.h
 *
 *   -EBADF   the tensor was destroyed
 *   -EIO     the engine failed; the message is the engine's
 *   -EPERM   the object was made before fork(), in the parent (or memory is sealed)
 */
#ifndef TMESH_ENGINE_H
#define TMESH_ENGINE_H

#include <tmesh/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An engine, a device that it runs on, and the sessions that it has open. */
struct tmesh_engine_context;
/* A model's file with the weights that it was given, ready to run. */
struct tmesh_engine_graph;
/* A device tensor: where an engine reads and writes. */
struct tmesh_engine_tensor;
/* A graph with its inputs and outputs, checked once and run often. */
struct tmesh_engine_binding;

struct tmesh_engine_context_opts {
	size_t size;	     /* sizeof(struct tmesh_engine_context_opts) */
	const char *library; /* the engine's own library, a path; NULL: TMESH_ONNXRUNTIME for
			      * "onnx", TMESH_GGML for "ggml", then where the loader and the system
			      * have it */
	enum tmesh_device_type device_type; /* TMESH_DEVICE_CPU */
	int32_t device_id;
	uint32_t threads;	  /* of one run; 0: 1 */
	uint32_t sessions;	  /* kept open without a graph that uses them, at most; 0: 8 */
	uint32_t session_regions; /* of weights that those keep open, at most; 0: any number */
};

/*
 * Make a context of the engine @backend ("onnx", "ggml"). Its device tensors are made in regions of
 * @ctx. On a GPU (TMESH_DEVICE_CUDA) they are in memory of that GPU, by libtmesh-cuda, which is
 * loaded for it. Inputs and outputs there are device tensors: host memory, and outputs left to the
 * engine, give -EOPNOTSUPP. Weights are copied to the GPU once for each session, which counts as
 * writes.
 *
 * Return: 0 and a reference in @out; -EINVAL (@backend is no name, opts); -EIO, -ENOMEM. If the
 * engine cannot be had: -EOPNOTSUPP (the plug-in or the engine's library was not found or is too
 * old, or the engine does not have that device; the message names it); -ENODEV (no driver, or no
 * such GPU); -EPROTO (a plug-in of another version).
 */
int tmesh_engine_context_create(struct tmesh_ctx *ctx, const char *backend,
				const struct tmesh_engine_context_opts *opts,
				struct tmesh_engine_context **out, struct tmesh_error *err);
struct tmesh_engine_context *tmesh_engine_context_ref(struct tmesh_engine_context *context);
/* Tensors, graphs and bindings keep their context. */
void tmesh_engine_context_unref(struct tmesh_engine_context *context);
/* "onnx", and the version of the engine's library: "1.21.0". They live as long as the context. */
const char *tmesh_engine_context_backend(const struct tmesh_engine_context *context);
const char *tmesh_engine_context_version(const struct tmesh_engine_context *context);

struct tmesh_engine_connect_opts {
	size_t size;	    /* sizeof(struct tmesh_engine_connect_opts) */
	int64_t timeout_ns; /* of each call that asks the engine; 0 or negative: no limit but its
			       own */
	uint32_t sessions;  /* as in tmesh_engine_context_opts */
	uint32_t reserved;  /* 0 */
};

/*
 * Make a context of the engine that a process of its own serves as @name: tmesh-engine(1), of the
 * same user, in the runtime directory of @ctx. All calls are as with an engine in this process,
 * with these differences:
 *
 *   The caller's own memory is copied to regions before a run and from there after it, and
 *   tmesh_stats() counts that; device tensors are not copied. An output that is left to the engine
 *   is a region's, and its shape has to follow from the inputs: -EOPNOTSUPP. Only tokens and
 *   layouts go to the process, never an element.
 *   When the process dies, the call that it had begun gives -EPIPE and its outputs may be half
 *   written. Calls that it had not begun, and all later ones, wait for the new process. Graphs and
 *   bindings stay good and are made there again, with weights from the same memory.
 *   -ETIMEDOUT: the call did not end within @timeout_ns. If it was running, its process was ended,
 *   as after a crash. Calls of one context go one after another; those of several contexts and
 *   processes take turns.
 *
 * Return: 0; -EINVAL; -ENOENT: no process serves @name; -EBUSY: it has its largest number of
 * clients; -EACCES: it is another user's; -EPROTO: of another version; -ETIMEDOUT, -EIO, -ENOMEM.
 */
int tmesh_engine_connect(struct tmesh_ctx *ctx, const char *name,
			 const struct tmesh_engine_connect_opts *opts,
			 struct tmesh_engine_context **out, struct tmesh_error *err);
/* The process that runs the graphs: of the engine when last it was asked, 0: this one. */
uint32_t tmesh_engine_context_pid(struct tmesh_engine_context *context);

/*
 * Make the engine's process keep the socket or pipe that @region stands for
 * (tmesh_region_opaque_fd()) open until it has stopped to work for this context. If this process is
 * killed, the engine ends its call before it closes the descriptor. A process that waits for the
 * descriptor's end therefore does not reuse memory that this context still writes to:
 * tmesh_pages_lifeline(). The engine closes a descriptor whose other end hangs up. An engine in
 * this process ends with it and needs none of this.
 *
 * Return: 0; -EINVAL, -EACCES: @region stands for neither, or may not be written; -EDQUOT: this
 * context has 8 already. -EPIPE: no process serves the engine any more; -ETIMEDOUT, -EMFILE,
 * -ENOMEM.
 */
int tmesh_engine_context_lifeline(struct tmesh_engine_context *context, struct tmesh_region *region,
				  struct tmesh_error *err);

enum tmesh_engine_flags {
	TMESH_ENGINE_READABLE = 1 << 0,	  /* tmesh_engine_tensor_read() is allowed */
	TMESH_ENGINE_WRITABLE = 1 << 1,	  /* tmesh_engine_tensor_write() is allowed */
	TMESH_ENGINE_EXPORTABLE = 1 << 2, /* tmesh_engine_tensor_export() is allowed */
};

/*
 * Make a device tensor of zeros, contiguous, in a region of its own; graphs may read and write it.
 * On a GPU it is in GPU memory of libtmesh-cuda, in a block of its own if it is EXPORTABLE.
 * Return: 0; -EINVAL (dtype, shape, @flags); as tmesh_tensor_create(), tmesh_cuda_alloc().
 */
int tmesh_engine_tensor_create(struct tmesh_engine_context *context, enum tmesh_dtype dtype,
			       int32_t ndim, const int64_t *shape, uint32_t flags,
			       struct tmesh_engine_tensor **out, struct tmesh_error *err);
/*
 * Make a device tensor on @tensor's own memory, without a copy. It takes a reference of its own on
 * @tensor. Graphs may use it with @rights: TMESH_READ, or TMESH_READ | TMESH_WRITE for a graph's
 * output.
 * Return: 0; -EINVAL (@rights, @flags; WRITABLE without TMESH_WRITE; not contiguous); as
 * tmesh_tensor_data(): -EACCES, -EPERM (sealed), -ESTALE.
 */
int tmesh_engine_tensor_wrap(struct tmesh_engine_context *context, struct tmesh_tensor *tensor,
			     uint32_t rights, uint32_t flags, struct tmesh_engine_tensor **out,
			     struct tmesh_error *err);
struct tmesh_engine_tensor *tmesh_engine_tensor_ref(struct tmesh_engine_tensor *tensor);
/* The last reference destroys it. */
void tmesh_engine_tensor_unref(struct tmesh_engine_tensor *tensor);
/* Give its memory up, once no run uses it and no binding has it any more. All other calls then
 * refuse it, and so does the dispatch of a binding that has it. Twice is fine. */
void tmesh_engine_tensor_destroy(struct tmesh_engine_tensor *tensor);

/*
 * Copy all elements to or from @data, exactly as many bytes. The copy is counted, there and in
 * tmesh_stats() of the region's context. A run that writes to the tensor at that moment may leave
 * it half written. Return: 0; -EACCES (not READABLE, not WRITABLE), -EBADF, -EINVAL (another number
 * of bytes); as tmesh_tensor_read(), tmesh_region_write().
 */
int tmesh_engine_tensor_read(struct tmesh_engine_tensor *tensor, void *data, uint64_t bytes,
			     struct tmesh_error *err);
int tmesh_engine_tensor_write(struct tmesh_engine_tensor *tensor, const void *data, uint64_t bytes,
			      struct tmesh_error *err);
/* Return the tensor whose memory it is, for others to map: a new reference. -EACCES: not
 * EXPORTABLE, as memory that an engine allocated never is. -EOPNOTSUPP: GPU memory. -EBADF. */
int tmesh_engine_tensor_export(struct tmesh_engine_tensor *tensor, struct tmesh_tensor **out,
			       struct tmesh_error *err);

/*
 * Write a ref (tmesh/tensor.h) of its memory to @text, TMESH_REF_SIZE bytes; of GPU memory one for
 * tmesh_cuda_open_ref(), whose receiver says by itself what its kernels may do. Return: 0; -EACCES
 * (not EXPORTABLE), -EBADF, -ENOSPC; as tmesh_tensor_ref_encode(), tmesh_cuda_share().
 */
int tmesh_engine_tensor_ref_encode(struct tmesh_engine_tensor *tensor, uint32_t rights, char *text,
				   size_t size, struct tmesh_error *err);

struct tmesh_engine_tensor_info {
	size_t size; /* in: sizeof(struct tmesh_engine_tensor_info) */
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
	enum tmesh_device_type device_type;
	int32_t device_id;
	uint32_t flags;	 /* enum tmesh_engine_flags */
	uint32_t rights; /* what graphs may do with it: enum tmesh_rights */
	uint64_t bytes;
	const void *address; /* in this process, of the first element; of a GPU: there */
	bool of_engine;	     /* memory that the engine allocated, in no region */
	const char *backend; /* its context's engine, "onnx"; lives as long as the context */
};
/* -EBADF. */
int tmesh_engine_tensor_info(struct tmesh_engine_tensor *tensor,
			     struct tmesh_engine_tensor_info *out, struct tmesh_error *err);

/* A weight: @name is the initializer of the graph that it stands for. */
struct tmesh_engine_weight {
	const char *name;
	struct tmesh_tensor *tensor; /* contiguous, of a sealed region */
};

enum tmesh_engine_graph_flags {
	/* The engine may bring weights into an order of its own: faster runs, and a copy of those
	 * weights in each process. Without it weights are used where they lie. */
	TMESH_ENGINE_PREPACK = 1 << 0,
};

struct tmesh_engine_graph_opts {
	size_t size;				   /* sizeof(struct tmesh_engine_graph_opts) */
	uint32_t flags;				   /* enum tmesh_engine_graph_flags */
	const struct tmesh_engine_weight *weights; /* in place of those in the file */
	size_t weight_count;
};

/*
 * Open the graph of the file @path, with all of its weights in @opts. For "onnx" it is an .onnx
 * file, for "ggml" one that tmesh_graph_read() reads. An open session of the same file
 * (device, inode, size, mtime, ctime) with the same flags and weights is used again. Files that the
 * graph's file refers to are not compared. Weights are kept open as long as the session is.
 *
 * Return: 0; -EINVAL (opts; a weight twice, not sealed, not contiguous, or of another dtype or
 * shape than the graph has); -EIO, -ENOMEM. For the file: -ENOENT, -EACCES and the like; -ESTALE:
 * it changed meanwhile; -EPROTO: it is no model, or a broken one. For its contents: -EOPNOTSUPP:
 * operands that are no tensors of tmesh's types, or parts that the engine does not have.
 */
int tmesh_engine_graph_open(struct tmesh_engine_context *context, const char *path,
			    const struct tmesh_engine_graph_opts *opts,
			    struct tmesh_engine_graph **out, struct tmesh_error *err);
struct tmesh_engine_graph *tmesh_engine_graph_ref(struct tmesh_engine_graph *graph);
/* The session stays open for the next open of the same graph, as long as the context keeps it. */
void tmesh_engine_graph_unref(struct tmesh_engine_graph *graph);

/* An input or output of a graph. Strings live as long as the graph. */
struct tmesh_engine_operand {
	size_t size; /* in: sizeof(struct tmesh_engine_operand) */
	const char *name;
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];	  /* -1: any */
	const char *dims[TMESH_MAX_DIMS]; /* the name of one that is -1: the same number wherever it
					   * stands; NULL: none */
};
size_t tmesh_engine_graph_inputs(const struct tmesh_engine_graph *graph);
size_t tmesh_engine_graph_outputs(const struct tmesh_engine_graph *graph);
/* By index, in the graph's order. -EINVAL: no such one. */
int tmesh_engine_graph_input(const struct tmesh_engine_graph *graph, size_t index,
			     struct tmesh_engine_operand *out, struct tmesh_error *err);
int tmesh_engine_graph_output(const struct tmesh_engine_graph *graph, size_t index,
			      struct tmesh_engine_operand *out, struct tmesh_error *err);

/*
 * The memory that an input is read from, or an output is written to. Set one of three; the others
 * are zero:
 *
 *   @tensor   a device tensor of the graph's context
 *   @data     the caller's memory, contiguous, with its dtype and shape; inputs are only read
 *   neither   outputs alone: memory is left to the engine
 */
struct tmesh_engine_value {
	const char *name;
	struct tmesh_engine_tensor *tensor;
	void *data;
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
	/* The input whose very memory this output has, dtype and all. NULL: memory of its own. The
	 * caller promises that nothing reads the input once the output is written, as for a past
	 * that a scatter makes the present. */
	const char *in_place;
};

/*
 * Run the graph, and return when it has run. All inputs are to be given, and the wanted outputs.
 * The call checks everything before anything runs: names, dtypes, shapes, rights, and the alignment
 * of each address to its elements. No output may overlap another value, except by @in_place.
 * Nothing is copied in this process. If memory was left to the engine, @tensor
 * of that output is set on success: a new reference on a device tensor, READABLE and WRITABLE.
 *
 * Several threads may run one graph at once. An engine's failure leaves outputs half written.
 *
 * Return: 0. For the operands: -ENOENT (the graph has none of that name), -EINVAL (one twice or
 * missing, another dtype, shape or context, alignment, overlap), -EACCES (an output's memory may
 * not be written). -EOPNOTSUPP: an output that was left to the engine is an input's own memory.
 * Also -EBADF, -EPERM, -EIO, -ENOMEM.
 */
int tmesh_engine_dispatch(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *inputs,
			  size_t input_count, struct tmesh_engine_value *outputs,
			  size_t output_count, struct tmesh_error *err);

/*
 * Check and bind once, as tmesh_engine_dispatch() does, to run often. The binding keeps the memory
 * of its device tensors; memory that is the caller's has to stay. Outputs that are left to the
 * engine are refused with -EINVAL.
 */
int tmesh_engine_bind(struct tmesh_engine_graph *graph, const struct tmesh_engine_value *inputs,
		      size_t input_count, const struct tmesh_engine_value *outputs,
		      size_t output_count, struct tmesh_engine_binding **out,
		      struct tmesh_error *err);
/* Run it. One thread at a time: others wait. Return: 0; -EBADF, -EACCES (an output was sealed
 * since), -EPERM, -EIO, -ENOMEM. */
int tmesh_engine_binding_dispatch(struct tmesh_engine_binding *binding, struct tmesh_error *err);
/*
 * Replace inputs of the binding, by name, all of them or, after an error, none. The other inputs
 * and the outputs stay. Nothing is opened or built anew: the next run reads the new memory, for
 * example a new generation of a LoRA adapter in a slot. Runs in other threads end before. Checks
 * and errors are those of tmesh_engine_bind(). Also -EOPNOTSUPP: the engine cannot move this input
 * (the engine "ggml": an input that a reshape, transpose, set_rows or attention reads first).
 */
int tmesh_engine_binding_rebind(struct tmesh_engine_binding *binding,
				const struct tmesh_engine_value *inputs, size_t count,
				struct tmesh_error *err);
struct tmesh_engine_binding *tmesh_engine_binding_ref(struct tmesh_engine_binding *binding);
void tmesh_engine_binding_unref(struct tmesh_engine_binding *binding);

/*
 * A cancellable ends dispatches from any thread. A dispatch that was given one ends with -ECANCELED
 * once that is cancelled. It ends at once while it waits. While it runs it ends when the engine can
 * stop, with its outputs perhaps half written. ONNX Runtime and ggml look between two nodes. A
 * dispatch that has run returns 0 nevertheless. An engine in a process of its own that does not
 * stop within a second is ended, as after a crash: that costs no other call. Once cancelled a
 * cancellable stays so: all later calls with it end at once.
 */
struct tmesh_engine_cancellable;

struct tmesh_engine_cancellable_opts {
	size_t size; /* sizeof(struct tmesh_engine_cancellable_opts) */
	/* Called in the dispatching thread after a signal's handler has run while it waited for an
	 * engine in another process. Any value but 0 cancels. It may call this library, but not the
	 * context that the thread waits for. It may fork(): the child calls exec() or _exit().
	 * NULL: waits go on after signals. */
	int (*interrupted)(void *data);
	void *data;
};

/* Return: 0; -EINVAL (opts), -ENOMEM. @opts may be NULL. */
int tmesh_engine_cancellable_create(const struct tmesh_engine_cancellable_opts *opts,
				    struct tmesh_engine_cancellable **out, struct tmesh_error *err);
struct tmesh_engine_cancellable *
tmesh_engine_cancellable_ref(struct tmesh_engine_cancellable *cancellable);
/* NULL is fine. */
void tmesh_engine_cancellable_unref(struct tmesh_engine_cancellable *cancellable);
/* Twice is fine. Not from a signal's handler. */
void tmesh_engine_cancel(struct tmesh_engine_cancellable *cancellable);
bool tmesh_engine_cancelled(const struct tmesh_engine_cancellable *cancellable);

/*
 * Let @cancellable end the waits of this thread's other calls to engines, from now on. These return
 * -ECANCELED then: tmesh_engine_connect(), tmesh_engine_graph_open(), tmesh_engine_bind(),
 * tmesh_engine_binding_rebind(), and calls on device tensors and placed graphs. NULL: nothing ends
 * them. A dispatch has a cancellable of its own. The caller keeps its reference until it enters
 * another one. Return: the one before, or NULL.
 */
struct tmesh_engine_cancellable *
tmesh_engine_cancellable_enter(struct tmesh_engine_cancellable *cancellable);

/* As tmesh_engine_dispatch() and tmesh_engine_binding_dispatch(), and -ECANCELED. @cancellable may
 * be NULL. */
int tmesh_engine_dispatch_cancellable(struct tmesh_engine_graph *graph,
				      const struct tmesh_engine_value *inputs, size_t input_count,
				      struct tmesh_engine_value *outputs, size_t output_count,
				      struct tmesh_engine_cancellable *cancellable,
				      struct tmesh_error *err);
int tmesh_engine_binding_dispatch_cancellable(struct tmesh_engine_binding *binding,
					      struct tmesh_engine_cancellable *cancellable,
					      struct tmesh_error *err);

/* Counters since the context was made. */
struct tmesh_engine_stats {
	size_t size;	   /* in: sizeof(struct tmesh_engine_stats) */
	uint64_t sessions; /* open now */
	uint64_t sessions_opened;
	uint64_t session_hits;	   /* graphs that found theirs open, or being opened */
	uint64_t sessions_evicted; /* closed since others were used more recently */
	uint64_t dispatches;
	uint64_t bindings; /* made: by tmesh_engine_bind(), and one for each
			    * tmesh_engine_dispatch() */
	uint64_t reads;	   /* tmesh_engine_tensor_read() */
	uint64_t bytes_read;
	uint64_t writes; /* tmesh_engine_tensor_write() */
	uint64_t bytes_written;
	uint64_t outputs_of_engine; /* outputs whose memory was left to the engine */
	uint64_t bytes_of_engine;   /* of those, in all */
};
int tmesh_engine_stats(struct tmesh_engine_context *context, struct tmesh_engine_stats *out,
		       struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_ENGINE_H */
