/* SPDX-License-Identifier: MIT */
/*
 * The functions of ggml that this plug-in uses (ggml.h, ggml-alloc.h, ggml-backend.h, gguf.h of
 * https://github.com/ggml-org/ggml). They are found by name. Structures stay opaque, and the values
 * below are ggml's. tests/engine/test_ggml_abi.c compares everything with the headers if they are
 * installed.
 */
#ifndef TMESH_ENGINE_GGML_API_H
#define TMESH_ENGINE_GGML_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ggml_context;
struct ggml_tensor;
struct ggml_cgraph;
struct ggml_backend;
struct ggml_backend_device;
struct ggml_backend_reg;
struct ggml_backend_buffer;
struct ggml_backend_buffer_type;
struct ggml_gallocr;
struct gguf_context;

/* struct ggml_init_params */
struct ggml_params {
	size_t mem_size;
	void *mem_buffer;
	bool no_alloc;
};

/* struct gguf_init_params */
struct gguf_params {
	bool no_alloc;
	struct ggml_context **context;
};

enum {
	GGML_F32 = 0,
	GGML_F16 = 1,
	GGML_I32 = 26,
	GGML_I64 = 27,
	GGML_BF16 = 30,

	GGML_DEVICE_CPU = 0,
	GGML_SUCCESS = 0,
	GGML_ABORTED = 1,
	GGML_PRECISION_F32 = 10,
	GGML_ROPE_NORMAL = 0,
	GGML_ROPE_NEOX = 2,
	GGML_TASKS_MAX = -1,
};

typedef void (*ggml_log_function)(unsigned int level, const char *text, void *data);
typedef void (*ggml_threads_function)(struct ggml_backend *backend, int threads);

/* A node of our own: one call for each of @tasks. */
typedef void (*ggml_custom_function)(struct ggml_tensor *to, int task, int tasks, void *data);

typedef bool (*ggml_abort_function)(void *data);
typedef void (*ggml_set_abort_function)(struct ggml_backend *backend, ggml_abort_function abort,
					void *data);

#define GGML_CTX struct ggml_context *
#define GGML_T struct ggml_tensor *

/* X(name, result, arguments) */
#define GGML_FUNCTIONS(X)                                                                          \
	X(version, const char *, (void))                                                           \
	X(log_set, void, (ggml_log_function, void *))                                              \
	X(init, GGML_CTX, (struct ggml_params))                                                    \
	X(free, void, (GGML_CTX))                                                                  \
	X(tensor_overhead, size_t, (void))                                                         \
	X(graph_overhead_custom, size_t, (size_t, bool))                                           \
	X(new_graph_custom, struct ggml_cgraph *, (GGML_CTX, size_t, bool))                        \
	X(build_forward_expand, void, (struct ggml_cgraph *, GGML_T))                              \
	X(new_tensor_4d, GGML_T, (GGML_CTX, unsigned int, int64_t, int64_t, int64_t, int64_t))     \
	X(type_name, const char *, (unsigned int))                                                 \
	X(blck_size, int64_t, (unsigned int))                                                      \
	X(type_size, size_t, (unsigned int))                                                       \
	X(nbytes, size_t, (const struct ggml_tensor *))                                            \
	X(is_contiguous, bool, (const struct ggml_tensor *))                                       \
	X(get_data, void *, (const struct ggml_tensor *))                                          \
	X(set_output, void, (GGML_T))                                                              \
	X(cont, GGML_T, (GGML_CTX, GGML_T))                                                        \
	X(reshape_4d, GGML_T, (GGML_CTX, GGML_T, int64_t, int64_t, int64_t, int64_t))              \
	X(permute, GGML_T, (GGML_CTX, GGML_T, int, int, int, int))                                 \
	X(concat, GGML_T, (GGML_CTX, GGML_T, GGML_T, int))                                         \
	X(mul_mat, GGML_T, (GGML_CTX, GGML_T, GGML_T))                                             \
	X(add, GGML_T, (GGML_CTX, GGML_T, GGML_T))                                                 \
	X(mul, GGML_T, (GGML_CTX, GGML_T, GGML_T))                                                 \
	X(norm, GGML_T, (GGML_CTX, GGML_T, float))                                                 \
	X(rms_norm, GGML_T, (GGML_CTX, GGML_T, float))                                             \
	X(silu, GGML_T, (GGML_CTX, GGML_T))                                                        \
	X(gelu, GGML_T, (GGML_CTX, GGML_T))                                                        \
	X(get_rows, GGML_T, (GGML_CTX, GGML_T, GGML_T))                                            \
	X(set_rows, GGML_T, (GGML_CTX, GGML_T, GGML_T, GGML_T))                                    \
	X(soft_max_ext, GGML_T, (GGML_CTX, GGML_T, GGML_T, float, float))                          \
	X(rope_ext, GGML_T,                                                                        \
	  (GGML_CTX, GGML_T, GGML_T, GGML_T, int, int, int, float, float, float, float, float,     \
	   float))                                                                                 \
	X(flash_attn_ext, GGML_T, (GGML_CTX, GGML_T, GGML_T, GGML_T, GGML_T, float, float, float)) \
	X(custom_4d, GGML_T,                                                                       \
	  (GGML_CTX, unsigned int, int64_t, int64_t, int64_t, int64_t, GGML_T *, int,              \
	   ggml_custom_function, int, void *))                                                     \
	X(flash_attn_ext_set_prec, void, (GGML_T, unsigned int))                                   \
	X(backend_init_by_type, struct ggml_backend *, (unsigned int, const char *))               \
	X(backend_load_all_from_path, void, (const char *))                                        \
	X(backend_reg_by_name, struct ggml_backend_reg *, (const char *))                          \
	X(backend_reg_dev_count, size_t, (struct ggml_backend_reg *))                              \
	X(backend_reg_dev_get, struct ggml_backend_device *, (struct ggml_backend_reg *, size_t))  \
	X(backend_dev_init, struct ggml_backend *, (struct ggml_backend_device *, const char *))   \
	X(backend_dev_buffer_type, struct ggml_backend_buffer_type *,                              \
	  (struct ggml_backend_device *))                                                          \
	X(backend_free, void, (struct ggml_backend *))                                             \
	X(backend_get_device, struct ggml_backend_device *, (struct ggml_backend *))               \
	X(backend_dev_backend_reg, struct ggml_backend_reg *, (struct ggml_backend_device *))      \
	X(backend_reg_get_proc_address, void *, (struct ggml_backend_reg *, const char *))         \
	X(backend_supports_op, bool, (struct ggml_backend *, const struct ggml_tensor *))          \
	X(backend_graph_compute, int, (struct ggml_backend *, struct ggml_cgraph *))               \
	X(backend_get_default_buffer_type, struct ggml_backend_buffer_type *,                      \
	  (struct ggml_backend *))                                                                 \
	X(backend_cpu_buffer_from_ptr, struct ggml_backend_buffer *, (void *, size_t))             \
	X(backend_buft_alloc_buffer, struct ggml_backend_buffer *,                                 \
	  (struct ggml_backend_buffer_type *, size_t))                                             \
	X(backend_buft_get_alloc_size, size_t,                                                     \
	  (struct ggml_backend_buffer_type *, const struct ggml_tensor *))                         \
	X(backend_buffer_get_base, void *, (struct ggml_backend_buffer *))                         \
	X(backend_buffer_free, void, (struct ggml_backend_buffer *))                               \
	X(backend_tensor_alloc, int, (struct ggml_backend_buffer *, GGML_T, void *))               \
	X(backend_tensor_set, void, (GGML_T, const void *, size_t, size_t))                        \
	X(backend_tensor_get, void, (const struct ggml_tensor *, void *, size_t, size_t))          \
	X(gallocr_new, struct ggml_gallocr *, (struct ggml_backend_buffer_type *))                 \
	X(gallocr_alloc_graph, bool, (struct ggml_gallocr *, struct ggml_cgraph *))                \
	X(gallocr_free, void, (struct ggml_gallocr *))

/* X(name, its name there, result, arguments) */
#define GGUF_FUNCTIONS(X)                                        \
	X(read_file, gguf_init_from_file, struct gguf_context *, \
	  (const char *, struct gguf_params))                    \
	X(free_file, gguf_free, void, (struct gguf_context *))

struct ggml_api {
#define GGUF_MEMBER(name, symbol, result, arguments) result(*name) arguments;
	GGUF_FUNCTIONS(GGUF_MEMBER)
#undef GGUF_MEMBER
#define GGML_MEMBER(name, result, arguments) result(*name) arguments;
	GGML_FUNCTIONS(GGML_MEMBER)
#undef GGML_MEMBER
};

#endif /* TMESH_ENGINE_GGML_API_H */
