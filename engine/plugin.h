/* SPDX-License-Identifier: MIT */
/*
 * Between libtmesh-engine and an engine: a shared object, tmesh-engine-NAME.so, with one symbol,
 * tmesh_engine_plugin. A plug-in sees addresses and shapes that were checked. It calls nothing of
 * libtmesh, so it works with whichever copy of it a process has (Python's is inside its extension).
 *
 * Functions return 0 or a negative errno with @err filled. The library calls them from any
 * thread, and opens and closes several sessions at a time; of one binding, one call at a time.
 */
#ifndef TMESH_ENGINE_PLUGIN_H
#define TMESH_ENGINE_PLUGIN_H

#include "common/public.h"

/* To be raised with every change of what stands here. */
#define TMESH_ENGINE_PLUGIN_ABI 4

struct plugin_open {
	const char *library; /* NULL: found by the plug-in */
	enum tmesh_device_type device_type;
	int32_t device_id;
	uint32_t threads; /* at least 1 */
};

struct plugin_operand {
	char *name;
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS]; /* -1: any */
	char *dims[TMESH_MAX_DIMS];    /* names of those, NULL: none */
};

struct plugin_array {
	size_t operand; /* of inputs and outputs: which; of weights not used */
	const char *name;
	void *data; /* NULL, of outputs: left to the engine. Of one opened on a GPU: an address
		     * there, of every array, weights too */
	uint64_t bytes;
	enum tmesh_dtype dtype;
	int32_t ndim;
	const int64_t *shape;
	/* Of whose memory it is, NULL: the caller's. For libtmesh-engine itself, which has an
	 * engine in another process as one more plug-in. */
	struct tmesh_tensor *tensor;
};

struct plugin_session_opts {
	const char *path;
	bool prepack;
	const struct plugin_array *weights;
	size_t weight_count;
};

/* The plug-in's own, with @handle, until it is closed. */
struct plugin_session {
	void *handle;
	struct plugin_operand *inputs;
	size_t input_count;
	struct plugin_operand *outputs;
	size_t output_count;
};

/* What the engine allocated for an output: good until it is released. */
struct plugin_result {
	void *handle;
	void *data;
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
};

/* What an open engine is; texts live as long as it. */
struct plugin_description {
	const char *library; /* the file; NULL: unknown */
	const char *reads;   /* "graph", "onnx" */
	uint64_t dtypes;     /* 1 << enum tmesh_dtype, of inputs and outputs */
};

struct tmesh_engine_plugin {
	uint32_t abi;	    /* TMESH_ENGINE_PLUGIN_ABI */
	uint32_t alignment; /* of all addresses, beside that to the elements; a power of two */
	uint32_t behind;    /* so many bytes behind each weight are zeros, on a GPU */
	int (*open)(const struct plugin_open *opts, void **engine, struct tmesh_error *err);
	void (*close)(void *engine);
	const char *(*version)(void *engine);
	int (*session_open)(void *engine, const struct plugin_session_opts *opts,
			    struct plugin_session *session, struct tmesh_error *err);
	void (*session_close)(void *engine, struct plugin_session *session);
	int (*bind)(void *engine, struct plugin_session *session, const struct plugin_array *inputs,
		    size_t input_count, const struct plugin_array *outputs, size_t output_count,
		    void **binding, struct tmesh_error *err);
	int (*run)(void *binding, struct tmesh_error *err);
	/* After a run: an output by its place among those of bind(). Of those left to the engine,
	 * @result is to be released; of the others it says where the engine wrote, and is not. */
	int (*result)(void *binding, size_t output, struct plugin_result *result,
		      struct tmesh_error *err);
	void (*release)(void *engine, void *handle);
	void (*unbind)(void *binding);
	/* NULL: it cannot. @inputs: all, in the order of bind(); @changed: which of them have
	 * another address or shape than before. After an error the binding is as it was. */
	int (*rebind)(void *binding, const struct plugin_array *inputs, const size_t *changed,
		      size_t count, struct tmesh_error *err);
	void (*describe)(void *engine, struct plugin_description *out); /* may be NULL */
	/* May be NULL: a run goes to its end. From another thread than that of run(): with @on the
	 * run that is under way, or the next one where none is, ends as soon as it can, with -EIO.
	 * Without @on: later ones do not. */
	void (*cancel)(void *binding, bool on);
};

#endif /* TMESH_ENGINE_PLUGIN_H */
