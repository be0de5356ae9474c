// SPDX-License-Identifier: MIT
/*
 * Owners that send messages without end. Each call reads a fixed number of them and returns. The
 * stream is a function in the place of model_socket_recv(), so that the messages can be counted.
 */
#include <poll.h>
#include <tmesh/page_table.h>
#include <tmesh/slot.h>

#include "pages/pages_internal.h"
#include "pages_test.h"
#include "shared/publication.h"

#define SLOT_MAGIC 0x56304d54u /* "TM0V" */
#define STREAM 50000u	       /* messages: without a limit of its own a call reads all of them */

static struct {
	int socket; /* 0: none; its messages are the stream's */
	const void *data;
	size_t bytes;
	unsigned int reads, most;
	int from_slab_on;   /* a socket: the stream begins with a question for a slab */
	unsigned int wants; /* questions for pages by it */
	uint64_t each_ns;   /* that pass with each message */
} stream;

ssize_t __real_model_socket_recv(int socket, void *data, size_t room, int *fd);
ssize_t __wrap_model_socket_recv(int socket, void *data, size_t room, int *fd);
int __real_model_socket_send(int socket, const void *data, size_t bytes, int fd);
int __wrap_model_socket_send(int socket, const void *data, size_t bytes, int fd);
uint64_t __real_tmesh_now_ns(void);
uint64_t __wrap_tmesh_now_ns(void);

ssize_t __wrap_model_socket_recv(int socket, void *data, size_t room, int *fd)
{
	if (!stream.socket || socket != stream.socket)
		return __real_model_socket_recv(socket, data, room, fd);
	if (stream.reads == stream.most) {
		assert_true(stream.most == STREAM || readable(socket, 60000));
		return __real_model_socket_recv(socket, data, room, fd);
	}
	stream.reads++;
	if (fd)
		*fd = -1;
	memcpy(data, stream.data, stream.bytes < room ? stream.bytes : room);
	return (ssize_t)stream.bytes;
}

/* The real owner gets no message that it would answer. */
int __wrap_model_socket_send(int socket, const void *data, size_t bytes, int fd)
{
	const struct pages_head *head = data;

	if (stream.socket && socket == stream.socket && stream.most == STREAM)
		return 0;
	if (socket == stream.from_slab_on) {
		stream.wants += head->op == PAGES_WANT;
		if (head->op == PAGES_SLAB)
			stream.socket = socket;
	}
	return __real_model_socket_send(socket, data, bytes, fd);
}

uint64_t __wrap_tmesh_now_ns(void)
{
	return __real_tmesh_now_ns() + stream.reads * stream.each_ns;
}

static void stream_begin(int socket, const void *data, size_t bytes, uint64_t each_ns)
{
	stream.reads = 0;
	stream.data = data;
	stream.bytes = bytes;
	stream.each_ns = each_ns;
	stream.most = STREAM;
	stream.socket = socket;
}

/* Return how many messages were read. */
static unsigned int stream_end(void)
{
	stream.socket = 0;
	stream.each_ns = 0;
	return stream.reads;
}

UNIT(test_slot)
{
	struct tmesh_slot_reader *reader;
	struct tmesh_slot *slot;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_slot_create(ctx, NULL, &slot, err));
	assert_ok(tmesh_slot_token(slot, token, err));
	assert_ok(tmesh_slot_open(ctx, token, &reader, err));
	stream_begin(tmesh_slot_poll_fd(reader, NULL), "", 1, 0);
	assert_int_equal(tmesh_slot_changed(reader), 0);
	assert_in_range(stream_end(), 1, MODEL_NOTIFICATIONS);
	assert_ok(tmesh_slot_publish(slot, NULL, NULL, err));
	assert_int_equal(tmesh_slot_changed(reader), 1);
	tmesh_slot_close(reader);
	tmesh_slot_unref(slot);
	tmesh_ctx_unref(ctx);
}

UNIT(test_answer)
{
	struct model_subscription subscription;
	struct model_answer answer;
	struct tmesh_slot *slot;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx = new_ctx();
	int fd = -1;

	assert_ok(tmesh_slot_create(ctx, NULL, &slot, err));
	assert_ok(tmesh_slot_token(slot, token, err));
	assert_ok(model_subscription_open(&subscription, ctx, token, SLOT_MAGIC, 64, err));
	model_subscription_ask(&subscription);
	stream_begin(subscription.socket.fd, "", 1, 0);
	assert_false(model_subscription_answer(&subscription, 0, &answer, &fd));
	assert_in_range(stream_end(), 1, MODEL_NOTIFICATIONS);
	assert_true(model_subscription_answer(&subscription, 60000, &answer, &fd));
	assert_int_equal(fd, -1);
	assert_false(subscription.gone);
	model_subscription_close(&subscription);
	tmesh_slot_unref(slot);
	tmesh_ctx_unref(ctx);
}

UNIT(test_copy)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_page_copy *copy;
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_pages_log(s.pages, 0, token, err));
	assert_ok(tmesh_page_copy_open(s.ctx, token, &copy, err));
	stream_begin(tmesh_page_copy_poll_fd(copy, NULL), "", 1, 0);
	assert_ok(tmesh_page_copy_update(copy, err));
	assert_in_range(stream_end(), 1, MODEL_NOTIFICATIONS);
	tmesh_page_copy_close(copy);
	scene_end(&s);
}

static const struct pages_head messages[] = {
	{.op = PAGES_RECALL},
	{.op = PAGES_GRANT},
	{.op = PAGES_GRANT, .status = -EDQUOT},
};

/* Ask and allocate while the answer does not come, each with a handle of its own. Return the most
 * messages that a call has read. */
static unsigned int ask_in_stream(const struct pages_head *message, uint64_t each_ns)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *none = NULL;
	struct tmesh_pages *other;
	unsigned int most, reads;
	uint32_t page;
	int rc;

	stream_begin(s.pages->socket.fd, message, sizeof(*message), each_ns);
	assert_refused(tmesh_pages_find(s.pages, NULL, 0, &none, err), -ETIMEDOUT, "owner");
	most = stream_end();
	assert_null(none);
	assert_ok(tmesh_pages_open(s.ctx, s.token, &other, err));
	stream_begin(other->socket.fd, message, sizeof(*message), each_ns);
	rc = tmesh_pages_alloc(other, &page, NULL);
	reads = stream_end();
	/* Twice no page is an answer, too. */
	assert_int_equal(rc, message->status ? message->status : -ETIMEDOUT);
	tmesh_pages_unref(other);
	scene_end(&s);
	return reads > most ? reads : most;
}

UNIT(test_ask)
{
	for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++)
		assert_in_range(ask_in_stream(&messages[i], 0), 1, PAGES_UNASKED_MAX);
}

/* Messages that come in time to be read at once do not put off the end of the wait. */
UNIT(test_deadline)
{
	for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++)
		assert_in_range(ask_in_stream(&messages[i], MODEL_WAIT_NS / 10), 1, 30);
}

/* A process that was stopped finds its answer behind a few other messages. */
UNIT(test_late)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 4), *none = NULL;

	stream_begin(s.pages->socket.fd, &messages[0], sizeof(messages[0]), 2 * MODEL_WAIT_NS);
	stream.most = 3;
	assert_ok(tmesh_pages_find(s.pages, NULL, 0, &none, err));
	assert_int_equal(stream_end(), 3);
	tmesh_seq_free(none);
	tmesh_seq_free(seq);
	scene_end(&s);
}

UNIT(test_trim)
{
	for (int wants = 0; wants < 2; wants++) {
		struct scene s = scene_make(&small_pool);

		s.pages->wants = wants;
		stream_begin(s.pages->socket.fd, &messages[0], sizeof(messages[0]), 0);
		tmesh_pages_trim(s.pages);
		assert_in_range(stream_end(), 1, 2 * PAGES_UNASKED_MAX);
		scene_end(&s);
	}
}

/* A page is held before its slab is mapped: a recall meanwhile does not take it away. */
UNIT(test_recall_of_unmapped)
{
	struct scene s = scene_make(&small_pool);
	uint32_t page;

	stream_begin(0, &messages[0], sizeof(messages[0]), 0);
	stream.most = 1;
	stream.wants = 0;
	stream.from_slab_on = s.pages->socket.fd;
	assert_ok(tmesh_pages_alloc(s.pages, &page, err));
	assert_int_equal(stream_end(), 1);
	/* One for this page, one ahead of need. */
	assert_int_equal(stream.wants, 2);
	stream.from_slab_on = 0;
	memset((uint8_t *)tmesh_pages_base(s.pages, 0) + page * 4096ull, 1, 4096);
	assert_int_equal(pages_info(s.pages).held, 1);
	assert_int_equal(pages_info(s.pages).spare, 0);
	assert_ok(tmesh_pages_put(s.pages, page, err));
	assert_int_equal(pages_info(s.pages).spare, 1);
	scene_end(&s);
}

/* A release reads messages now and then: all of them together no more than there are pages. */
UNIT(test_release)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 4 * 200);

	stream_begin(s.pages->socket.fd, &messages[0], sizeof(messages[0]), 0);
	tmesh_seq_free(seq);
	assert_in_range(stream_end(), 1, 200);
	scene_end(&s);
}

UNIT_MAIN("flood", NULL, NULL)
