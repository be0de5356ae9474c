// SPDX-License-Identifier: MIT
/* Read call frames. XLA builds them from a program, so their names, numbers and shapes may be
 * anything and are checked. Their pointers are XLA's own, and trusted. */
#include "call.h"

#include <string.h>

#include "common/utf8.h"

static bool text_is(const struct ffi_text *text, const char *word)
{
	return text->bytes == strlen(word) && !memcmp(text->at, word, text->bytes);
}

static int read_channel(int type, const void *value, struct request *request,
			struct tmesh_error *err)
{
	const struct ffi_text *text = value;

	if (type != FFI_ATTR_STRING)
		return tmesh_fail(err, -EINVAL,
				  "the attribute channel must be a string, the name that "
				  "a channel is bound to");
	if (!text->bytes || text->bytes > TMESH_XLA_NAME_MAX ||
	    tmesh_utf8_span(text->at, text->bytes, false) != text->bytes)
		return tmesh_fail(err, -EINVAL,
				  "the attribute channel must be a name of 1 to %d bytes of UTF-8 "
				  "without control characters",
				  TMESH_XLA_NAME_MAX);
	memcpy(request->channel, text->at, text->bytes);
	request->channel[text->bytes] = '\0';
	return 0;
}

static int read_timeout(int type, const void *value, struct request *request,
			struct tmesh_error *err)
{
	const struct ffi_scalar *scalar = value;
	int64_t ms;

	if (type != FFI_ATTR_SCALAR || scalar->dtype != FFI_S64)
		return tmesh_fail(err, -EINVAL, "the attribute timeout_ms must be an int64");
	memcpy(&ms, scalar->value, sizeof(ms));
	if (ms < 0 || ms > TMESH_XLA_TIMEOUT_MS_MAX)
		return tmesh_fail(
			err, -EINVAL,
			"the attribute timeout_ms must be 0 to %d (a week), not %lld: a wait "
			"without end looks like a program that hangs",
			TMESH_XLA_TIMEOUT_MS_MAX, (long long)ms);
	request->timeout_ns = ms * 1000000;
	return 0;
}

static int read_seal(int type, const void *value, enum tmesh_channel_role role,
		     struct request *request, struct tmesh_error *err)
{
	const struct ffi_scalar *scalar = value;
	uint8_t seal;

	if (role != TMESH_CHANNEL_SEND)
		return tmesh_fail(err, -EINVAL, "a pop has no attribute seal: give it to the push");
	if (type != FFI_ATTR_SCALAR || scalar->dtype != FFI_PRED)
		return tmesh_fail(err, -EINVAL, "the attribute seal must be a bool");
	memcpy(&seal, scalar->value, sizeof(seal));
	request->seal = seal;
	return 0;
}

static int read_attrs(const struct ffi_attrs *attrs, enum tmesh_channel_role role,
		      struct request *request, struct tmesh_error *err)
{
	int rc = 0;

	request->channel[0] = '\0';
	request->seal = false;
	request->timeout_ns = TMESH_XLA_TIMEOUT_MS * INT64_C(1000000);
	for (int64_t i = 0; i < attrs->count && !rc; i++) {
		const struct ffi_text *name = attrs->names[i];

		if (text_is(name, "channel"))
			rc = read_channel(attrs->types[i], attrs->values[i], request, err);
		else if (text_is(name, "timeout_ms"))
			rc = read_timeout(attrs->types[i], attrs->values[i], request, err);
		else if (text_is(name, "seal"))
			rc = read_seal(attrs->types[i], attrs->values[i], role, request, err);
		else
			rc = tmesh_fail(err, -EINVAL,
					"there is no attribute %.*s: the attributes are channel, "
					"timeout_ms and "
					"seal",
					(int)(name->bytes < 64 ? name->bytes : 64), name->at);
	}
	if (!rc && !request->channel[0])
		rc = tmesh_fail(err, -EINVAL,
				"the attribute channel is missing: the name that a channel is "
				"bound to");
	return rc;
}

static int check_buffer(const struct ffi_buffer *buffer, struct tmesh_error *err)
{
	enum tmesh_dtype dtype = xla_dtype(buffer->dtype);
	struct tmesh_layout layout;

	if (!dtype)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "channels do not carry XLA's %s (type %d): convert it to another "
				  "type first",
				  xla_dtype_name(buffer->dtype), buffer->dtype);
	if (buffer->rank < 0 || buffer->rank > TMESH_MAX_DIMS)
		return tmesh_fail(err, -EINVAL,
				  "tensors have at most %d dimensions, not %lld: reshape it first",
				  TMESH_MAX_DIMS, (long long)buffer->rank);
	/* This also refuses dimensions below 0. */
	return tmesh_layout_contiguous(&layout, dtype, (int32_t)buffer->rank, buffer->dims, err);
}

static bool all_buffers(const struct ffi_buffers *list)
{
	for (int64_t i = 0; i < list->count; i++)
		if (list->types[i] != FFI_BUFFER)
			return false;
	return true;
}

static int take_sequence(const struct ffi_buffers *list, const char *what, void **place,
			 struct tmesh_error *err)
{
	const struct ffi_buffer *buffer = list->count ? list->values[0] : NULL;

	if (!buffer || buffer->dtype != FFI_U32 || buffer->rank)
		return tmesh_fail(err, -EINVAL,
				  "the first %s must be the sequence, a uint32 without dimensions",
				  what);
	*place = buffer->data;
	return 0;
}

int xla_request(const struct ffi_frame *frame, enum tmesh_channel_role role,
		struct request *request, struct tmesh_error *err)
{
	const struct ffi_buffers *in = &frame->operands, *out = &frame->results;
	const struct ffi_buffers *tensors = role == TMESH_CHANNEL_SEND ? in : out;
	const struct ffi_buffers *others = role == TMESH_CHANNEL_SEND ? out : in;
	bool sequence = others->count > 0;
	void *from = NULL, *to = NULL;
	int rc = read_attrs(&frame->attrs, role, request, err);

	if (rc)
		return rc;
	if (others->count > 1)
		return tmesh_fail(err, -EINVAL,
				  role == TMESH_CHANNEL_SEND
					  ? "a push has at most one result, the sequence"
					  : "a pop has at most one operand, the sequence");
	if (!all_buffers(in) || !all_buffers(out))
		return tmesh_fail(err, -EINVAL,
				  "an operand or result is not a buffer: only tensors can be sent "
				  "and received");
	if (sequence &&
	    (take_sequence(in, "operand", &from, err) || take_sequence(out, "result", &to, err)))
		return -EINVAL;
	request->sequence = from;
	request->next = to;
	request->tensors = (struct ffi_buffer *const *)tensors->values + sequence;
	request->count = tensors->count - sequence;
	for (int64_t i = 0; i < request->count && !rc; i++)
		rc = check_buffer(request->tensors[i], err);
	return rc;
}
