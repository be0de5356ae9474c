// SPDX-License-Identifier: MIT
/*
 * Any attributes, operands and results: refused with a code and a sentence, or done. The frame
 * itself is well made, as XLA's are: pointers lead somewhere, and there is as much memory as a
 * shape says.
 *
 * Input: a byte for the handler, then records until it ends. A record is a byte for what it is and
 * its length, and that many bytes.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "../host.h"

#define ROOM 65536
#define DIMS 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static struct tmesh_ctx *ctx;
static struct tmesh_channel *inbox, *outbox;
static struct tmesh_tensor *tensor;

static struct tmesh_channel *end(enum tmesh_channel_role role, const char *name)
{
	struct tmesh_channel *channel;
	char token[TMESH_TOKEN_SIZE];

	if (tmesh_channel_create(ctx, role, NULL, &channel, NULL) ||
	    tmesh_channel_token(channel, token, NULL) ||
	    tmesh_xla_bind(name, token,
			   role == TMESH_CHANNEL_SEND ? TMESH_CHANNEL_RECV : TMESH_CHANNEL_SEND,
			   NULL))
		abort();
	return channel;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const float values[4] = {0};
	const int64_t four = 4;

	if (setenv("TMESH_BACKEND", "memfd", 1) || tmesh_ctx_open(NULL, &ctx, NULL) ||
	    tmesh_tensor_put(ctx, TMESH_FLOAT32, 1, &four, values, NULL, &tensor, NULL))
		abort();
	inbox = end(TMESH_CHANNEL_RECV, "out");
	outbox = end(TMESH_CHANNEL_SEND, "in");
	return 0;
}

/* Return whether XLA could have a buffer of this shape, or the shape must be refused. */
static bool fits(int dtype, int64_t rank, const int64_t *dims)
{
	uint64_t bytes = 16; /* of the largest element */
	bool none = false;

	if (rank < 0 || rank > TMESH_MAX_DIMS || !xla_dtype(dtype))
		return true;
	for (int64_t i = 0; i < rank; i++) {
		if (dims[i] < 0)
			return true;
		none |= !dims[i];
	}
	for (int64_t i = 0; i < rank && !none; i++)
		if (__builtin_mul_overflow(bytes, (uint64_t)dims[i], &bytes) || bytes > ROOM)
			return false;
	return true;
}

struct record {
	const uint8_t *at;
	size_t bytes;
};

static int64_t number(const struct record *record, size_t offset)
{
	int64_t value = 0;

	if (offset < record->bytes)
		memcpy(&value, record->at + offset,
		       record->bytes - offset < 8 ? record->bytes - offset : 8);
	return value;
}

static bool buffer(struct ffi_buffers *list, struct ffi_buffer *buffers,
		   const struct record *record, int64_t dims[DIMS], void *memory)
{
	int dtype = record->bytes ? (int8_t)record->at[0] : 0;
	int64_t rank = record->bytes > 1 ? (int8_t)record->at[1] : 0;

	for (size_t i = 0; i < DIMS; i++)
		dims[i] = number(record, 2 + 8 * i);
	if (list->count == HOST_BUFFERS || rank > DIMS || !fits(dtype, rank, dims))
		return false;
	host_add(list, buffers, dtype, memory, rank, dims);
	return true;
}

struct attr {
	char name[256];
	char text[256];
	struct ffi_text span;
	struct ffi_scalar scalar;
	int64_t value;
};

/* "name=" and its value; the first byte is the type. */
static bool attribute(struct host *host, struct attr *attr, const struct record *record)
{
	const uint8_t *equals = record->bytes ? memchr(record->at, '=', record->bytes) : NULL;
	int type = record->bytes ? (int8_t)record->at[0] : 0;
	struct record value;
	size_t length;

	if (!equals || equals == record->at || host->frame.attrs.count == HOST_ATTRS)
		return false;
	length = (size_t)(equals - record->at) - 1;
	memcpy(attr->name, record->at + 1, length);
	attr->name[length] = '\0';
	value = (struct record){equals + 1, record->bytes - length - 2};
	memcpy(attr->text, value.at, value.bytes);
	attr->span = (struct ffi_text){attr->text, value.bytes};
	attr->value = number(&value, 1);
	/* No message comes while this process waits. */
	if (attr->value > 0 && attr->value <= TMESH_XLA_TIMEOUT_MS_MAX)
		attr->value = 0;
	attr->scalar = (struct ffi_scalar){value.bytes ? (int8_t)value.at[0] : 0, &attr->value};
	host_attr(host, attr->name, type,
		  type == FFI_ATTR_STRING ? (void *)&attr->span : (void *)&attr->scalar);
	return true;
}

static bool timed(const struct host *host)
{
	for (int64_t i = 0; i < host->frame.attrs.count; i++)
		if (!strcmp(host->names[i].at, "timeout_ms"))
			return true;
	return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int64_t in_dims[HOST_BUFFERS][DIMS], out_dims[HOST_BUFFERS][DIMS];
	static uint64_t memory[ROOM / 8];
	static struct attr attrs[HOST_ATTRS];
	struct tmesh_message message = {.tensor = tensor};
	const uint8_t *stop = data + size;
	bool pops = size && (data[0] & 1);
	struct host host;
	int code;

	host_init(&host, NULL, 0);
	host.frame.attrs.count = 0;
	for (const uint8_t *at = data + 1; size && stop - at >= 2;) {
		struct record record = {at + 2, at[1]};
		int64_t count;

		if ((size_t)(stop - record.at) < record.bytes)
			return 0;
		switch (at[0] % 3) {
		case 0:
			count = host.frame.operands.count;
			if (count == HOST_BUFFERS ||
			    !buffer(&host.frame.operands, host.in, &record, in_dims[count], memory))
				return 0;
			break;
		case 1:
			count = host.frame.results.count;
			if (count == HOST_BUFFERS || !buffer(&host.frame.results, host.out, &record,
							     out_dims[count], memory))
				return 0;
			break;
		default:
			count = host.frame.attrs.count;
			if (count == HOST_ATTRS || !attribute(&host, &attrs[count], &record))
				return 0;
		}
		at = record.at + record.bytes;
	}
	if (!timed(&host))
		return 0; /* the default is a minute */
	if (pops)
		tmesh_channel_try_send(outbox, &message, NULL);
	memory[0] = 7;
	code = host_call(&host, pops ? tmesh_xla_pop : tmesh_xla_push);
	if (code && (code == FFI_INTERNAL || !host_error.text[0]))
		abort();
	if (!code && host.frame.operands.count && host.frame.results.count && !pops &&
	    (uint32_t)memory[0] != 8)
		abort();
	while (!tmesh_channel_try_recv(inbox, &message, NULL))
		tmesh_tensor_unref(message.tensor);
	return 0;
}
