/* SPDX-License-Identifier: MIT */
/* Declarations that the files of tmesh-engine-onnx share. */
#ifndef TMESH_ENGINE_ONNX_INTERNAL_H
#define TMESH_ENGINE_ONNX_INTERNAL_H

#include <stdatomic.h>

#include "common/error.h"
#include "ort_api.h"
#include "plugin.h"

struct onnx_engine {
	struct ort_api ort;
	const char *version; /* the library's */
	uint32_t threads;
	bool on_gpu; /* by its CUDA execution provider, on @device */
	int32_t device;
	struct ort_env *env;
	struct ort_memory_info *memory; /* of inputs, outputs and weights */
	struct ort_memory_info
		*host_memory;		 /* on a GPU: of weights that kernels read on the host */
	struct ort_allocator *allocator; /* the library's own, for names that it returns */
};

/* onnx.c: return 0 for a NULL status; else release it and set @err. @what names the operation. */
int onnx_check(const struct onnx_engine *engine, struct ort_status *status, const char *what,
	       struct tmesh_error *err);
/* Make a value on memory that still belongs to the caller. */
int onnx_value(const struct onnx_engine *engine, const struct ort_memory_info *memory,
	       const struct plugin_array *array, struct ort_value **out, struct tmesh_error *err);

/* gpu.c: the CUDA execution provider. */
/* Check that this library has one and that it starts on the device. Set the memory of its
 * values. */
int onnx_gpu_open(struct onnx_engine *engine, struct tmesh_error *err);
/* Use it for sessions with these options. */
int onnx_gpu_append(const struct onnx_engine *engine, struct ort_session_options *options,
		    struct tmesh_error *err);

/* types.c: translate a type; 0 or TMESH_DTYPE_INVALID if the other side does not have it. */
int onnx_element(enum tmesh_dtype dtype);
enum tmesh_dtype onnx_dtype(int element);

/* library.c: load ONNX Runtime. */
int onnx_library(const char *path, struct ort_api *ort, const char **version,
		 struct tmesh_error *err);

/* initializer.c: check that each weight replaces an initializer of the same dtype and shape. */
int onnx_check_weights(const char *path, const struct plugin_array *weights, size_t count,
		       struct tmesh_error *err);

/* weights.c: the weights of a session, and whether ONNX Runtime uses them. */
struct onnx_weights;
/* @opts->weights stay as they are until onnx_weights_check() has set @again to false. */
int onnx_weights_make(const struct plugin_session_opts *opts, struct onnx_weights **out,
		      struct tmesh_error *err);
void onnx_weights_free(const struct onnx_engine *engine, struct onnx_weights *weights);
int onnx_weights_add(const struct onnx_engine *engine, struct ort_session_options *options,
		     struct onnx_weights *weights, struct tmesh_error *err);
/* Check the session that was made. @again: make it again. -EOPNOTSUPP: a weight is not used. */
int onnx_weights_check(const struct onnx_engine *engine, struct onnx_weights *weights, bool *again,
		       struct tmesh_error *err);

/* session.c, bind.c */
int onnx_session_open(void *engine, const struct plugin_session_opts *opts,
		      struct plugin_session *session, struct tmesh_error *err);
void onnx_session_close(void *engine, struct plugin_session *session);
struct ort_session *onnx_session(const struct plugin_session *session);
int onnx_bind(void *engine, struct plugin_session *session, const struct plugin_array *inputs,
	      size_t input_count, const struct plugin_array *outputs, size_t output_count,
	      void **binding, struct tmesh_error *err);
int onnx_run(void *binding, struct tmesh_error *err);
void onnx_cancel(void *binding, bool on);
int onnx_result(void *binding, size_t output, struct plugin_result *result,
		struct tmesh_error *err);
void onnx_release(void *engine, void *handle);
void onnx_unbind(void *binding);
int onnx_rebind(void *binding, const struct plugin_array *inputs, const size_t *changed,
		size_t count, struct tmesh_error *err);

#endif /* TMESH_ENGINE_ONNX_INTERNAL_H */
