/* SPDX-License-Identifier: MIT */
/*
 * The interface between libtmesh-engine and an engine: a shared object, tmesh-engine-NAME.so, with
 * one symbol, tmesh_engine_plugin. A plug-in gets addresses and shapes that were checked. It calls
 * nothing of libtmesh, so it works with any copy of it in the process (Python's is inside its
 * extension).
 *
 * Functions return 0, or a negative errno with @err filled. The library calls them from any thread.
 * It may open and close several sessions at a time. It makes one call at a time for each binding.
 */
#ifndef TMESH_ENGINE_PLUGIN_H
#define TMESH_ENGINE_PLUGIN_H

#include "common/public.h"

/* Raise this with every change of this interface. */
#define TMESH_ENGINE_PLUGIN_ABI 6

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
	char *dims[TMESH_MAX_DIMS];    /* names of those; NULL: none */
};

struct plugin_array {
	size_t operand; /* the index of an input or output; unused for weights */
	const char *name;
	void *data; /* an address, for an engine on a GPU there; NULL: left to the engine */
	uint64_t bytes;
	enum tmesh_dtype dtype;
	int32_t ndim;
	const int64_t *shape;
	/* The owner of the memory; NULL: the caller. Only libtmesh-engine uses this, for an engine
	 * in another process, which is one more plug-in to it. */
	struct tmesh_tensor *tensor;
	/* A weight, for an engine on a GPU: its bytes in the host's memory, read-only; else NULL.
	 */
	void *host;
};

struct plugin_session_opts {
	const char *path;
	bool prepack;
	const struct plugin_array *weights;
	size_t weight_count;
};

/* A session. It belongs to the plug-in until it is closed. */
struct plugin_session {
	void *handle;
	struct plugin_operand *inputs;
	size_t input_count;
	struct plugin_operand *outputs;
	size_t output_count;
};

/* Memory that the engine allocated for an output, valid until it is released. */
struct plugin_result {
	void *handle;
	void *data;
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
};

/* A description of an open engine. Its strings live as long as the engine. */
struct plugin_description {
	const char *library; /* the file; NULL: unknown */
	const char *reads;   /* "graph", "onnx" */
	uint64_t dtypes;     /* 1 << enum tmesh_dtype, of inputs and outputs */
};

struct tmesh_engine_plugin {
	uint32_t abi;	    /* TMESH_ENGINE_PLUGIN_ABI */
	uint32_t alignment; /* of all addresses, in addition to that of elements; a power of two */
	uint32_t behind;    /* the zeros that must follow each weight on a GPU, in bytes */
	bool captures;	    /* runs on a GPU capture graphs: no thread may wait for it meanwhile */
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
	/* After a run, return an output by its index in bind(). If it was left to the engine,
	 * @result must be released. If not, @result only says where the engine wrote. */
	int (*result)(void *binding, size_t output, struct plugin_result *result,
		      struct tmesh_error *err);
	void (*release)(void *engine, void *handle);
	void (*unbind)(void *binding);
	/* NULL: not supported. @inputs has all inputs in the order of bind(). @changed has the
	 * indices of those with a new address or shape. After an error the binding is unchanged. */
	int (*rebind)(void *binding, const struct plugin_array *inputs, const size_t *changed,
		      size_t count, struct tmesh_error *err);
	void (*describe)(void *engine, struct plugin_description *out); /* may be NULL */
	/* May be NULL; then a run cannot be cancelled. Called from another thread than run()'s.
	 * With @on, the current run, or else the next one, ends as soon as it can, with -EIO.
	 * Without @on, later runs go on. */
	void (*cancel)(void *binding, bool on);
};

#endif /* TMESH_ENGINE_PLUGIN_H */
