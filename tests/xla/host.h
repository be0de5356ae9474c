/* SPDX-License-Identifier: MIT */
/*
 * A stand-in for XLA: it makes call frames and errors as xla/ffi/api/c_api.h says. It shows what
 * the handlers do with frames, and nothing about XLA; test_jax.py has the real one.
 */
#ifndef TMESH_XLA_HOST_H
#define TMESH_XLA_HOST_H

#include <stdio.h>
#include <string.h>

#include "call.h"

#define HOST_BUFFERS 8
#define HOST_ATTRS 4

struct host {
	struct ffi_api api;
	struct ffi_frame frame;
	struct ffi_buffer in[HOST_BUFFERS], out[HOST_BUFFERS];
	void *in_at[HOST_BUFFERS], *out_at[HOST_BUFFERS];
	int in_types[HOST_BUFFERS], out_types[HOST_BUFFERS];
	int attr_types[HOST_ATTRS];
	struct ffi_text names[HOST_ATTRS], *names_at[HOST_ATTRS];
	void *attrs_at[HOST_ATTRS];
	struct ffi_text channel;
	struct ffi_scalar timeout;
	int64_t timeout_ms;
};

/* The result of a call. XLA's error is the host's own. */
struct XLA_FFI_Error {
	int code;
	char text[512];
};

/* The error of this thread's last call. */
static __thread struct XLA_FFI_Error host_error;

static inline struct XLA_FFI_Error *host_make_error(struct ffi_error_args *args)
{
	host_error.code = args->code;
	snprintf(host_error.text, sizeof(host_error.text), "%s", args->message);
	return &host_error;
}

static inline void host_attr(struct host *host, const char *name, int type, void *value)
{
	int64_t at = host->frame.attrs.count++;

	host->names[at] = (struct ffi_text){name, strlen(name)};
	host->names_at[at] = &host->names[at];
	host->attr_types[at] = type;
	host->attrs_at[at] = value;
}

/* A frame without operands and results. */
static inline void host_init(struct host *host, const char *channel, int64_t timeout_ms)
{
	*host = (struct host){
		.api = {.struct_size = sizeof(host->api),
			.version = {.struct_size = sizeof(struct ffi_version),
				    .major = FFI_MAJOR,
				    .minor = FFI_MINOR},
			.make_error = host_make_error},
		.frame = {.struct_size = sizeof(host->frame),
			  .stage = FFI_STAGE_EXECUTE,
			  .operands = {.struct_size = sizeof(struct ffi_buffers)},
			  .results = {.struct_size = sizeof(struct ffi_buffers)},
			  .attrs = {.struct_size = sizeof(struct ffi_attrs)}},
		.timeout_ms = timeout_ms,
	};
	host->frame.api = &host->api;
	host->frame.operands.types = host->in_types;
	host->frame.operands.values = host->in_at;
	host->frame.results.types = host->out_types;
	host->frame.results.values = host->out_at;
	host->frame.attrs.types = host->attr_types;
	host->frame.attrs.names = host->names_at;
	host->frame.attrs.values = host->attrs_at;
	host->timeout = (struct ffi_scalar){FFI_S64, &host->timeout_ms};
	if (channel) {
		host->channel = (struct ffi_text){channel, strlen(channel)};
		host_attr(host, "channel", FFI_ATTR_STRING, &host->channel);
	}
	host_attr(host, "timeout_ms", FFI_ATTR_SCALAR, &host->timeout);
}

static inline void host_add(struct ffi_buffers *list, struct ffi_buffer *buffers, int dtype,
			    void *data, int64_t rank, int64_t *dims)
{
	int64_t at = list->count++;

	buffers[at] = (struct ffi_buffer){sizeof(buffers[at]), NULL, dtype, data, rank, dims};
	list->values[at] = &buffers[at];
	list->types[at] = FFI_BUFFER;
}

static inline void host_operand(struct host *host, int dtype, void *data, int64_t rank,
				int64_t *dims)
{
	host_add(&host->frame.operands, host->in, dtype, data, rank, dims);
}

static inline void host_result(struct host *host, int dtype, void *data, int64_t rank,
			       int64_t *dims)
{
	host_add(&host->frame.results, host->out, dtype, data, rank, dims);
}

/* The code of the error, 0: none; host_error has its text. */
static inline int host_call(struct host *host,
			    struct XLA_FFI_Error *(*handler)(struct XLA_FFI_CallFrame *))
{
	host_error = (struct XLA_FFI_Error){0};
	return handler((struct XLA_FFI_CallFrame *)&host->frame) ? host_error.code : 0;
}

#endif /* TMESH_XLA_HOST_H */
