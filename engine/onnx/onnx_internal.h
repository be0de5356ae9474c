/* SPDX-License-Identifier: MIT */
/* What the files of tmesh-engine-onnx share. */
#ifndef TMESH_ENGINE_ONNX_INTERNAL_H
#define TMESH_ENGINE_ONNX_INTERNAL_H

#include "common/error.h"
#include "ort_api.h"
#include "plugin.h"

struct onnx_engine {
	struct ort_api ort;
	const char *version; /* the library's */
	uint32_t threads;
	bool on_gpu; /* by its CUDA execution provider: @device */
	int32_t device;
	struct ort_env *env;
	struct ort_memory_info *memory;	 /* of inputs, outputs and weights */
	struct ort_allocator *allocator; /* the library's own, for what it names */
};

/* onnx.c: 0 for NULL; else the status is released. @what was tried, for the message. */
int onnx_check(const struct onnx_engine *engine, struct ort_status *status, const char *what,
	       struct tmesh_error *err);
/* A value on memory that stays the caller's. */
int onnx_value(const struct onnx_engine *engine, const struct plugin_array *array,
	       struct ort_value **out, struct tmesh_error *err);

/* gpu.c: the CUDA execution provider. */
/* Whether this library has one that starts on the device; then the memory of its values. */
int onnx_gpu_open(struct onnx_engine *engine, struct tmesh_error *err);
/* For sessions with these options. */
int onnx_gpu_append(const struct onnx_engine *engine, struct ort_session_options *options,
		    struct tmesh_error *err);

/* types.c; 0, TMESH_DTYPE_INVALID: the other side has no such type. */
int onnx_element(enum tmesh_dtype dtype);
enum tmesh_dtype onnx_dtype(int element);

/* library.c: ONNX Runtime itself. */
int onnx_library(const char *path, struct ort_api *ort, const char **version,
		 struct tmesh_error *err);

/* initializer.c: each weight stands for an initializer of the file, of its dtype and shape. */
int onnx_check_weights(const char *path, const struct plugin_array *weights, size_t count,
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
