// SPDX-License-Identifier: MIT
/* The two handlers. */
#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger tensors get regions of their own, which are reused. Sealed tensors always get a region. */
#define SMALL_BYTES 65536

/* Answer XLA's question for the version. XLA asks when a handler is registered, and refuses a
 * version newer than its own. Hosts of FFI 0.1 do not state their version. */
static bool answer_metadata(struct ffi_frame *frame)
{
	struct ffi_extension *first = frame->extensions;
	struct ffi_version *told;

	if (!first || first->type != FFI_EXTENSION_METADATA)
		return false;
	told = &((struct ffi_metadata_extension *)first)->metadata->version;
	((struct ffi_metadata_extension *)first)->metadata->traits = 0;
	told->major = FFI_MAJOR;
	told->minor = FFI_MINOR_FIRST;
	if (frame->api) {
		told->major = frame->api->version.major;
		told->minor = frame->api->version.minor;
	}
	if (told->major == FFI_MAJOR && told->minor > FFI_MINOR)
		told->minor = FFI_MINOR;
	return true;
}

static int code_of(int rc)
{
	switch (-rc) {
	case EINVAL:
	case EOPNOTSUPP:
	case EOVERFLOW:
		return FFI_INVALID_ARGUMENT;
	case ENXIO: /* the name, not a token */
		return FFI_NOT_FOUND;
	case EBADF:
	case EPERM:
		return FFI_FAILED_PRECONDITION;
	case ETIMEDOUT:
		return FFI_DEADLINE_EXCEEDED;
	case EPIPE:
		return FFI_UNAVAILABLE;
	case ECANCELED:
		return FFI_CANCELLED;
	case ENOENT:
	case ESTALE:
	case EPROTO:
		return FFI_DATA_LOSS;
	case EDQUOT:
	case ENOMEM:
	case EMFILE:
	case ENFILE:
		return FFI_RESOURCE_EXHAUSTED;
	case ENOSYS:
		return FFI_UNIMPLEMENTED;
	default:
		return FFI_INTERNAL;
	}
}

static struct XLA_FFI_Error *answer(const struct ffi_frame *frame, const char *what,
				    const char *channel, int rc, const struct tmesh_error *err)
{
	char text[sizeof(err->message) + TMESH_XLA_NAME_MAX + 32];
	struct ffi_error_args args = {
		.struct_size = sizeof(args), .message = text, .code = code_of(rc)};

	if (!rc)
		return NULL;
	snprintf(text, sizeof(text), "tmesh_%s \"%s\": %s", what, channel, err->message);
	return frame->api->make_error(&args);
}

/* Sending */

static int send_some(struct turn *turn, void *data, int64_t timeout_ns, struct tmesh_error *err)
{
	return tmesh_channel_send(turn->channel, data, timeout_ns, err);
}

static uint64_t bytes_of(const struct ffi_buffer *buffer)
{
	struct tmesh_layout layout;
	uint64_t bytes = 0;

	/* This cannot fail: xla_request() has checked the shape. */
	if (!tmesh_layout_contiguous(&layout, xla_dtype(buffer->dtype), (int32_t)buffer->rank,
				     buffer->dims, NULL))
		tmesh_layout_check(&layout, UINT64_MAX, &bytes, NULL);
	return bytes;
}

static int copy_out(const struct turn *turn, const struct ffi_buffer *buffer, bool seal,
		    struct tmesh_message *message, struct tmesh_error *err)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts)};

	if (!seal && bytes_of(buffer) <= SMALL_BYTES)
		opts.arena = turn->arena;
	else if (!seal)
		opts.flags = TMESH_REGION_REUSE;
	return tmesh_tensor_put(turn->ctx, xla_dtype(buffer->dtype), (int32_t)buffer->rank,
				buffer->dims, buffer->data, &opts, &message->tensor, err);
}

/* Send all tensors. Copy every one before the first is sent, so that a lack of memory sends
 * nothing. */
static int push(struct turn *turn, const struct request *request, struct tmesh_error *err)
{
	struct tmesh_message *messages = calloc((size_t)request->count, sizeof(*messages));
	int64_t i;
	int rc = 0;

	if (!messages && request->count)
		return tmesh_fail(err, -ENOMEM, "no memory for %lld messages",
				  (long long)request->count);
	for (i = 0; i < request->count && !rc; i++)
		rc = copy_out(turn, request->tensors[i], request->seal, &messages[i], err);
	for (i = 0; i < request->count && !rc; i++)
		rc = xla_turn_wait(turn, send_some, &messages[i], err);
	for (i = 0; i < request->count; i++)
		tmesh_tensor_unref(messages[i].tensor);
	free(messages);
	return rc;
}

/* Receiving */

static int receive_some(struct turn *turn, void *data, int64_t timeout_ns, struct tmesh_error *err)
{
	return tmesh_channel_recv(turn->channel, data, timeout_ns, err);
}

struct words {
	char text[96];
	size_t used;
};

static void say_shape(struct words *words, const char *dtype, int64_t ndim, const int64_t *shape)
{
	words->used = (size_t)snprintf(words->text, sizeof(words->text), "%s[", dtype);
	for (int64_t i = 0; i < ndim && words->used < sizeof(words->text); i++)
		words->used += (size_t)snprintf(words->text + words->used,
						sizeof(words->text) - words->used, "%s%lld",
						i ? "," : "", (long long)shape[i]);
	if (words->used < sizeof(words->text))
		snprintf(words->text + words->used, sizeof(words->text) - words->used, "]");
}

static int check_message(const struct tmesh_message *message, const struct ffi_buffer *buffer,
			 struct tmesh_error *err)
{
	const struct tmesh_layout *layout;
	struct words want, came;
	bool same;

	if (!message->tensor)
		return tmesh_fail(err, -EINVAL, "a message of %u bytes without a tensor came",
				  message->bytes);
	layout = tmesh_tensor_layout(message->tensor);
	same = layout->dtype == xla_dtype(buffer->dtype) && layout->ndim == buffer->rank;
	for (int32_t i = 0; i < layout->ndim && same; i++)
		same = layout->shape[i] == buffer->dims[i];
	if (same)
		return 0;
	say_shape(&want, xla_dtype_name(buffer->dtype), buffer->rank, buffer->dims);
	say_shape(&came, tmesh_dtype_name(layout->dtype), layout->ndim, layout->shape);
	return tmesh_fail(err, -EINVAL, "the program expects %s, and %s came", want.text,
			  came.text);
}

/* Receive one tensor. It is copied by a system call, not through a mapping: if the owner revokes
 * the memory meanwhile, the call fails and no signal comes. */
static int pop_one(struct turn *turn, const struct ffi_buffer *buffer, struct tmesh_error *err)
{
	struct tmesh_message message = {0};
	int rc = xla_turn_wait(turn, receive_some, &message, err);

	if (rc)
		return rc;
	rc = check_message(&message, buffer, err);
	if (!rc)
		rc = tmesh_tensor_read(message.tensor, buffer->data,
				       tmesh_tensor_bytes(message.tensor), err);
	tmesh_tensor_unref(message.tensor);
	return rc;
}

static int pop(struct turn *turn, const struct request *request, struct tmesh_error *err)
{
	int rc = 0;

	for (int64_t i = 0; i < request->count && !rc; i++)
		rc = pop_one(turn, request->tensors[i], err);
	return rc;
}

static struct XLA_FFI_Error *call(struct XLA_FFI_CallFrame *opaque, enum tmesh_channel_role role)
{
	struct ffi_frame *frame = (struct ffi_frame *)opaque;
	bool sends = role == TMESH_CHANNEL_SEND;
	struct request request = {0};
	struct tmesh_error err;
	struct turn turn;
	int rc;

	if (answer_metadata(frame))
		return NULL;
	if (frame->api->version.major != FFI_MAJOR)
		rc = tmesh_fail(&err, -ENOSYS,
				"this XLA speaks FFI %d.%d, and libtmesh-xla %d.%d: another "
				"version of one of them is needed",
				frame->api->version.major, frame->api->version.minor, FFI_MAJOR,
				FFI_MINOR);
	else
		rc = xla_request(frame, role, &request, &err);
	if (!rc) {
		rc = xla_turn_begin(&turn, request.channel, role, request.timeout_ns, &err);
		/* ENOENT from here means an unbound name. From a token it means memory that is
		 * gone. */
		if (rc == -ENOENT)
			rc = -ENXIO;
	}
	if (!rc) {
		rc = sends ? push(&turn, &request, &err) : pop(&turn, &request, &err);
		xla_turn_end(&turn);
	}
	if (!rc && request.next)
		*request.next = *request.sequence + 1;
	return answer(frame, sends ? "push" : "pop", request.channel, rc, &err);
}

struct XLA_FFI_Error *tmesh_xla_push(struct XLA_FFI_CallFrame *frame)
{
	return call(frame, TMESH_CHANNEL_SEND);
}

struct XLA_FFI_Error *tmesh_xla_pop(struct XLA_FFI_CallFrame *frame)
{
	return call(frame, TMESH_CHANNEL_RECV);
}
