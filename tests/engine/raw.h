/* SPDX-License-Identifier: MIT */
/* A client of the engine "unit" that speaks the protocol itself. */
#ifndef TMESH_TEST_RAW_H
#define TMESH_TEST_RAW_H

#include <tmesh/channel.h>

#include "served.h"

struct raw {
	int socket;
	struct tmesh_channel *requests, *replies;
	struct tmesh_region *region;
	struct wire_page *page;
	uint64_t number;
};

static inline void raw_join(struct raw *raw, struct fixture *fix)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct tmesh_ctx *ctx = ctx_of_engine(fix);
	struct wire_welcome welcome;
	void *data;
	int dir;

	*raw = (struct raw){.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
	assert_ok(tmesh_ctx_runtime_dir(fix->ctx, &dir, err));
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/engine-unit", dir);
	assert_int_equal(connect(raw->socket, (struct sockaddr *)&address, sizeof(address)), 0);
	close(dir);
	assert_int_equal(recv(raw->socket, &welcome, sizeof(welcome), 0), sizeof(welcome));
	assert_int_equal(welcome.code, 0);
	assert_ok(tmesh_channel_open(ctx, welcome.requests, TMESH_CHANNEL_SEND, NULL,
				     &raw->requests, err));
	assert_ok(tmesh_channel_open(ctx, welcome.replies, TMESH_CHANNEL_RECV, NULL, &raw->replies,
				     err));
	assert_ok(
		tmesh_region_open(ctx, welcome.page, TMESH_READ | TMESH_WRITE, &raw->region, err));
	assert_ok(tmesh_region_map(raw->region, TMESH_READ | TMESH_WRITE, &data, err));
	raw->page = data;
	tmesh_ctx_unref(ctx);
}

static inline void raw_leave(struct raw *raw)
{
	tmesh_region_unmap(raw->region, TMESH_READ | TMESH_WRITE);
	tmesh_region_unref(raw->region);
	tmesh_channel_unref(raw->requests);
	tmesh_channel_unref(raw->replies);
	close(raw->socket);
}

static inline struct wire raw_text(struct raw *raw)
{
	return (struct wire){.text = raw->page->text, .bytes = WIRE_TEXT};
}

/* Return: 0, or -EAGAIN: its channel is full. */
static inline int raw_try(struct raw *raw, enum wire_op op, uint32_t id, uint32_t bytes)
{
	struct wire_request words = {.op = op, .id = id, .number = raw->number + 1, .bytes = bytes};
	struct tmesh_message message = {.bytes = sizeof(words)};
	int rc;

	memcpy(message.data, &words, sizeof(words));
	rc = tmesh_channel_try_send(raw->requests, &message, NULL);
	if (!rc)
		atomic_store(&raw->page->asked, ++raw->number);
	return rc;
}

static inline void raw_reply(struct raw *raw, struct wire_reply *reply)
{
	struct tmesh_message message;

	assert_ok(tmesh_channel_recv(raw->replies, &message, -1, err));
	assert_null(message.tensor);
	assert_int_equal(message.bytes, sizeof(*reply));
	memcpy(reply, message.data, sizeof(*reply));
}

static inline uint32_t raw_call(struct raw *raw, enum wire_op op, uint32_t id,
				const struct wire *text)
{
	struct wire_reply reply;

	assert_false(text->wrong);
	assert_int_equal(raw_try(raw, op, id, (uint32_t)text->at), 0);
	raw_reply(raw, &reply);
	assert_int_equal(reply.code, 0);
	return reply.id;
}

#endif /* TMESH_TEST_RAW_H */
