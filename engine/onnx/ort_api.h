/* SPDX-License-Identifier: MIT */
/*
 * The part of ONNX Runtime's C ABI that this plug-in uses: indices of functions in the table from
 * OrtGetApiBase()->GetApi(version), and values of constants. The ABI only grows: a library serves
 * every version up to its own. No header of ONNX Runtime is needed to build or to run. If one is
 * installed, tests/engine/test_ort_abi.c compares.
 */
#ifndef TMESH_ORT_API_H
#define TMESH_ORT_API_H

#include <stddef.h>
#include <stdint.h>

/* The requested version of the table: that of ONNX Runtime 1.17, which has all functions below. */
#define ORT_VERSION 17

struct ort_status;
struct ort_env;
struct ort_session;
struct ort_session_options;
struct ort_run_options;
struct ort_value;
struct ort_allocator;
struct ort_memory_info;
struct ort_io_binding;
struct ort_type_info;
struct ort_cuda_options;
struct ort_tensor_info; /* owned by the type info it comes from */

struct ort_api_base {
	const void *const *(*get_api)(uint32_t version); /* NULL: the library is older */
	const char *(*version)(void);
};

/* Codes of a status. */
enum {
	ORT_CODE_INVALID_ARGUMENT = 2,
	ORT_CODE_NO_SUCHFILE = 3,
	ORT_CODE_NO_MODEL = 4,
	ORT_CODE_INVALID_PROTOBUF = 7,
	ORT_CODE_NOT_IMPLEMENTED = 9,
	ORT_CODE_INVALID_GRAPH = 10,
};

enum {
	ORT_LOG_INFO = 1,
	ORT_LOG_FATAL = 4,
	ORT_OPTIMIZE_NOTHING = 0,
	ORT_DEVICE_ALLOCATOR = 0,
	ORT_MEMORY_DEFAULT = 0,
	ORT_TYPE_TENSOR = 1, /* ONNXType */
};

/* ONNXTensorElementDataType */
enum {
	ORT_ELEMENT_FLOAT = 1,
	ORT_ELEMENT_UINT8 = 2,
	ORT_ELEMENT_INT8 = 3,
	ORT_ELEMENT_UINT16 = 4,
	ORT_ELEMENT_INT16 = 5,
	ORT_ELEMENT_INT32 = 6,
	ORT_ELEMENT_INT64 = 7,
	ORT_ELEMENT_BOOL = 9,
	ORT_ELEMENT_FLOAT16 = 10,
	ORT_ELEMENT_DOUBLE = 11,
	ORT_ELEMENT_UINT32 = 12,
	ORT_ELEMENT_UINT64 = 13,
	ORT_ELEMENT_COMPLEX64 = 14,
	ORT_ELEMENT_COMPLEX128 = 15,
	ORT_ELEMENT_BFLOAT16 = 16,
	ORT_ELEMENT_FLOAT8E4M3FN = 17,
	ORT_ELEMENT_FLOAT8E5M2 = 19,
	ORT_ELEMENT_UINT4 = 21,
	ORT_ELEMENT_INT4 = 22,
};

/* Called with each line of a session's log. */
typedef void ort_log_function(void *data, int severity, const char *category, const char *id,
			      const char *where, const char *message);

/* X(name, its name there, place, result, arguments) */
/* clang-format off */
#define ORT_FUNCTIONS(X) \
	X(error_code, GetErrorCode, 1, int, (const struct ort_status *)) \
	X(error_message, GetErrorMessage, 2, const char *, (const struct ort_status *)) \
	X(create_env, CreateEnv, 3, struct ort_status *, (int level, const char *id, struct ort_env **)) \
	X(create_session, CreateSession, 7, struct ort_status *, \
	  (const struct ort_env *, const char *path, const struct ort_session_options *, struct ort_session **)) \
	X(create_options, CreateSessionOptions, 10, struct ort_status *, (struct ort_session_options **)) \
	X(log_severity, SetSessionLogSeverityLevel, 22, struct ort_status *, (struct ort_session_options *, int)) \
	X(optimize, SetSessionGraphOptimizationLevel, 23, struct ort_status *, (struct ort_session_options *, int)) \
	X(intra_threads, SetIntraOpNumThreads, 24, struct ort_status *, (struct ort_session_options *, int)) \
	X(inter_threads, SetInterOpNumThreads, 25, struct ort_status *, (struct ort_session_options *, int)) \
	X(input_count, SessionGetInputCount, 30, struct ort_status *, (const struct ort_session *, size_t *)) \
	X(output_count, SessionGetOutputCount, 31, struct ort_status *, (const struct ort_session *, size_t *)) \
	X(input_type, SessionGetInputTypeInfo, 33, struct ort_status *, \
	  (const struct ort_session *, size_t, struct ort_type_info **)) \
	X(output_type, SessionGetOutputTypeInfo, 34, struct ort_status *, \
	  (const struct ort_session *, size_t, struct ort_type_info **)) \
	X(input_name, SessionGetInputName, 36, struct ort_status *, \
	  (const struct ort_session *, size_t, struct ort_allocator *, char **)) \
	X(output_name, SessionGetOutputName, 37, struct ort_status *, \
	  (const struct ort_session *, size_t, struct ort_allocator *, char **)) \
	X(create_run, CreateRunOptions, 39, struct ort_status *, (struct ort_run_options **)) \
	X(run_log_severity, RunOptionsSetRunLogSeverityLevel, 41, struct ort_status *, (struct ort_run_options *, int)) \
	X(terminate, RunOptionsSetTerminate, 46, struct ort_status *, (struct ort_run_options *)) \
	X(unterminate, RunOptionsUnsetTerminate, 47, struct ort_status *, (struct ort_run_options *)) \
	X(create_value, CreateTensorWithDataAsOrtValue, 49, struct ort_status *, \
	  (const struct ort_memory_info *, void *data, size_t bytes, const int64_t *shape, size_t ndim, int element, \
	   struct ort_value **)) \
	X(value_data, GetTensorMutableData, 51, struct ort_status *, (struct ort_value *, void **)) \
	X(cast_tensor, CastTypeInfoToTensorInfo, 55, struct ort_status *, \
	  (const struct ort_type_info *, const struct ort_tensor_info **)) \
	X(onnx_type, GetOnnxTypeFromTypeInfo, 56, struct ort_status *, (const struct ort_type_info *, int *)) \
	X(element_type, GetTensorElementType, 60, struct ort_status *, (const struct ort_tensor_info *, int *)) \
	X(ndim, GetDimensionsCount, 61, struct ort_status *, (const struct ort_tensor_info *, size_t *)) \
	X(dims, GetDimensions, 62, struct ort_status *, (const struct ort_tensor_info *, int64_t *, size_t)) \
	X(dim_names, GetSymbolicDimensions, 63, struct ort_status *, \
	  (const struct ort_tensor_info *, const char **, size_t)) \
	X(value_type, GetTensorTypeAndShape, 65, struct ort_status *, \
	  (const struct ort_value *, struct ort_tensor_info **)) \
	X(create_memory, CreateMemoryInfo, 68, struct ort_status *, \
	  (const char *name, int allocator, int id, int type, struct ort_memory_info **)) \
	X(create_cpu_memory, CreateCpuMemoryInfo, 69, struct ort_status *, \
	  (int allocator, int type, struct ort_memory_info **)) \
	X(free_text, AllocatorFree, 76, struct ort_status *, (struct ort_allocator *, void *)) \
	X(default_allocator, GetAllocatorWithDefaultOptions, 78, struct ort_status *, (struct ort_allocator **)) \
	X(release_env, ReleaseEnv, 92, void, (struct ort_env *)) \
	X(release_status, ReleaseStatus, 93, void, (struct ort_status *)) \
	X(release_memory_info, ReleaseMemoryInfo, 94, void, (struct ort_memory_info *)) \
	X(release_session, ReleaseSession, 95, void, (struct ort_session *)) \
	X(release_value, ReleaseValue, 96, void, (struct ort_value *)) \
	X(release_run, ReleaseRunOptions, 97, void, (struct ort_run_options *)) \
	X(release_type, ReleaseTypeInfo, 98, void, (struct ort_type_info *)) \
	X(release_tensor_info, ReleaseTensorTypeAndShapeInfo, 99, void, (struct ort_tensor_info *)) \
	X(release_options, ReleaseSessionOptions, 100, void, (struct ort_session_options *)) \
	X(providers, GetAvailableProviders, 125, struct ort_status *, (char ***, int *)) \
	X(release_providers, ReleaseAvailableProviders, 126, struct ort_status *, (char **, int)) \
	X(config, AddSessionConfigEntry, 130, struct ort_status *, \
	  (struct ort_session_options *, const char *key, const char *value)) \
	X(run_binding, RunWithBinding, 133, struct ort_status *, \
	  (struct ort_session *, const struct ort_run_options *, const struct ort_io_binding *)) \
	X(create_binding, CreateIoBinding, 134, struct ort_status *, \
	  (struct ort_session *, struct ort_io_binding **)) \
	X(release_binding, ReleaseIoBinding, 135, void, (struct ort_io_binding *)) \
	X(bind_input, BindInput, 136, struct ort_status *, \
	  (struct ort_io_binding *, const char *, const struct ort_value *)) \
	X(bind_output, BindOutput, 137, struct ort_status *, \
	  (struct ort_io_binding *, const char *, const struct ort_value *)) \
	X(bind_output_memory, BindOutputToDevice, 138, struct ort_status *, \
	  (struct ort_io_binding *, const char *, const struct ort_memory_info *)) \
	X(bound_outputs, GetBoundOutputValues, 140, struct ort_status *, \
	  (const struct ort_io_binding *, struct ort_allocator *, struct ort_value ***, size_t *)) \
	X(add_initializer, AddInitializer, 150, struct ort_status *, \
	  (struct ort_session_options *, const char *, const struct ort_value *)) \
	X(wait_outputs, SynchronizeBoundOutputs, 203, struct ort_status *, (struct ort_io_binding *)) \
	X(append_cuda, SessionOptionsAppendExecutionProvider_CUDA_V2, 204, struct ort_status *, \
	  (struct ort_session_options *, const struct ort_cuda_options *)) \
	X(create_cuda, CreateCUDAProviderOptions, 205, struct ort_status *, (struct ort_cuda_options **)) \
	X(update_cuda, UpdateCUDAProviderOptions, 206, struct ort_status *, \
	  (struct ort_cuda_options *, const char *const *keys, const char *const *values, size_t)) \
	X(release_cuda, ReleaseCUDAProviderOptions, 208, void, (struct ort_cuda_options *)) \
	X(log_function, SetUserLoggingFunction, 266, struct ort_status *, \
	  (struct ort_session_options *, ort_log_function *, void *))
/* clang-format on */

struct ort_api {
#define ORT_MEMBER(name, symbol, place, result, arguments) result(*name) arguments;
	ORT_FUNCTIONS(ORT_MEMBER)
#undef ORT_MEMBER
};

#endif /* TMESH_ORT_API_H */
