/* SPDX-License-Identifier: MIT */
/*
 * The binary interface of XLA's foreign function interface (FFI 0.1 to 0.3), as far as a handler
 * without state needs it. Source: xla/ffi/api/c_api.h of github.com/openxla/xla, which jaxlib
 * installs in jaxlib/include. tests/xla/test_abi.c compares the two if jaxlib is installed.
 *
 * Each structure begins with its size and a list of extensions, and grows only at its end.
 */
#ifndef TMESH_XLA_FFI_ABI_H
#define TMESH_XLA_FFI_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define FFI_MAJOR 0
#define FFI_MINOR 3
#define FFI_MINOR_FIRST 1

#define FFI_EXTENSION_METADATA 1
#define FFI_BUFFER 1 /* the only type of operands and results */
#define FFI_STAGE_EXECUTE 3

struct XLA_FFI_Error;
struct XLA_FFI_InternalApi;
struct XLA_FFI_ExecutionContext;
struct XLA_FFI_Future;

enum ffi_error_code {
	FFI_CANCELLED = 1,
	FFI_INVALID_ARGUMENT = 3,
	FFI_DEADLINE_EXCEEDED = 4,
	FFI_NOT_FOUND = 5,
	FFI_RESOURCE_EXHAUSTED = 8,
	FFI_FAILED_PRECONDITION = 9,
	FFI_UNIMPLEMENTED = 12,
	FFI_INTERNAL = 13,
	FFI_UNAVAILABLE = 14,
	FFI_DATA_LOSS = 15,
};

enum ffi_attr_type {
	FFI_ATTR_ARRAY = 1,
	FFI_ATTR_DICTIONARY = 2,
	FFI_ATTR_SCALAR = 3,
	FFI_ATTR_STRING = 4,
};

/* Numbers of element types. dtype.c has the names of the others. */
enum ffi_dtype {
	FFI_PRED = 1,
	FFI_S64 = 5,
	FFI_U32 = 8,
};

struct ffi_extension {
	size_t struct_size;
	int type;
	struct ffi_extension *next;
};

struct ffi_version {
	size_t struct_size;
	struct ffi_extension *extensions;
	int major;
	int minor;
};

struct ffi_error_args {
	size_t struct_size;
	struct ffi_extension *extensions;
	const char *message;
	int code;
};

struct ffi_buffer {
	size_t struct_size;
	struct ffi_extension *extensions;
	int dtype;
	void *data;
	int64_t rank;
	int64_t *dims;
};

struct ffi_text {
	const char *at;
	size_t bytes;
};

struct ffi_scalar {
	int dtype;
	void *value;
};

struct ffi_buffers {
	size_t struct_size;
	struct ffi_extension *extensions;
	int64_t count;
	int *types;
	void **values;
};

struct ffi_attrs {
	size_t struct_size;
	struct ffi_extension *extensions;
	int64_t count;
	int *types;
	struct ffi_text **names;
	void **values;
};

struct ffi_error_message_args {
	size_t struct_size;
	struct ffi_extension *extensions;
	struct XLA_FFI_Error *error;
	const char *message; /* out; the error's */
};

struct ffi_error_destroy_args {
	size_t struct_size;
	struct ffi_extension *extensions;
	struct XLA_FFI_Error *error;
};

struct XLA_FFI_CallFrame;
typedef struct XLA_FFI_Error *ffi_handler(struct XLA_FFI_CallFrame *frame);

struct ffi_handler_args {
	size_t struct_size;
	struct ffi_extension *extensions;
	struct ffi_text name;
	struct ffi_text platform;
	ffi_handler *instantiate, *prepare, *initialize, *execute;
	uint32_t traits;
};

/* All versions of this structure begin with the version; the rest follows internal_api. */
struct ffi_api {
	size_t struct_size;
	struct ffi_extension *extensions;
	struct ffi_version version;
	const struct XLA_FFI_InternalApi *internal_api;
	struct XLA_FFI_Error *(*make_error)(struct ffi_error_args *args);
	void (*error_message)(struct ffi_error_message_args *args);
	void (*error_destroy)(struct ffi_error_destroy_args *args);
	struct XLA_FFI_Error *(*add_handler)(struct ffi_handler_args *args);
};

struct ffi_frame {
	size_t struct_size;
	struct ffi_extension *extensions;
	const struct ffi_api *api;
	struct XLA_FFI_ExecutionContext *context;
	int stage;
	struct ffi_buffers operands;
	struct ffi_buffers results;
	struct ffi_attrs attrs;
};

/* Later versions have more fields after the version. This library does not touch them. */
struct ffi_metadata {
	size_t struct_size;
	struct ffi_version version;
	uint32_t traits;
};

struct ffi_metadata_extension {
	struct ffi_extension base;
	struct ffi_metadata *metadata;
};

static_assert(sizeof(void *) != 8 ||
		      (sizeof(struct ffi_frame) == 168 && sizeof(struct ffi_buffer) == 48 &&
		       sizeof(struct ffi_version) == 24 && sizeof(struct ffi_error_args) == 32),
	      "not the published ABI");

#endif /* TMESH_XLA_FFI_ABI_H */
