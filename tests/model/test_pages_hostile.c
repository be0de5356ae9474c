// SPDX-License-Identifier: MIT
/*
 * Handles that send the owner of a pool any bytes, and owners that answer with any. The others'
 * pages stay theirs, and each message is refused or ends the connection.
 */
#include "shared/listener.h"
#include "pages/pages_internal.h"
#include "pages_test.h"

static void send_raw(struct tmesh_pages *pages, const void *data, size_t bytes)
{
	assert_int_equal(model_socket_send(pages->socket.fd, data, bytes, -1), 0);
}

static struct pages_message out;

static void send_pages(struct tmesh_pages *pages, uint32_t op, uint32_t count)
{
	out.head.op = op;
	out.head.count = count;
	send_raw(pages, &out, sizeof(out.head) + count * sizeof(uint32_t));
	memset(&out.head, 0, sizeof(out.head));
}

/* Pages of another handle can be neither returned, cached nor shared. */
UNIT(test_not_its_own)
{
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 32), *found;
	struct tmesh_pages *other;
	const uint64_t hash[1][2] = {{1, 2}};
	uint32_t page;

	fill(seq, 100);
	assert_ok(tmesh_pages_open(s.ctx, s.token, &other, err));
	assert_ok(tmesh_pages_alloc(other, &page, err));
	for (uint32_t i = 0; i < 300; i++)
		out.pages[i] = i < 290 ? i : UINT32_MAX - i;
	send_pages(other, PAGES_RETURN, 300);
	out.head = (struct pages_head){.op = PAGES_CACHE, .count = 1};
	out.hashed[0] = (struct pages_hashed){.hash = {1, 2},
					      .page = (uint32_t)tmesh_seq_table(seq, NULL)[0]};
	assert_int_equal(pthread_mutex_lock(&other->lock), 0);
	memcpy(&other->message, &out, sizeof(out));
	assert_ok(pages_ask(other, sizeof(out.head) + sizeof(out.hashed[0]), PAGES_CACHED, err));
	other->message.head = (struct pages_head){.op = PAGES_SHARE, .count = 1, .a = 4};
	other->message.pages[0] = (uint32_t)tmesh_seq_table(seq, NULL)[1];
	assert_ok(pages_ask(other, sizeof(out.head) + 4, PAGES_TICKET, err));
	assert_int_equal(other->message.head.status, -EACCES);
	other->message.head = (struct pages_head){.op = PAGES_SLAB, .a = 1};
	assert_ok(pages_ask(other, sizeof(out.head), PAGES_SLAB_IS, err));
	pthread_mutex_unlock(&other->lock);
	memset(&out, 0, sizeof(out));
	assert_ok(tmesh_pages_find(s.pages, hash, 1, &found, err));
	assert_int_equal(tmesh_seq_tokens(found), 0);
	tmesh_seq_free(found);
	assert_true(pool_info(&s).refused > 200);
	assert_int_equal(pool_info(&s).tickets, 0);
	/* Pages that the handle then allocates properly are none of ours. */
	for (int i = 0; i < 200; i++)
		if (!tmesh_pages_alloc(other, &page, NULL))
			memset((uint8_t *)tmesh_pages_base(other, 0) + page * 4096ull, 0xee, 4096);
	assert_true(is_filled(seq, 100));
	tmesh_pages_unref(other);
	assert_true(is_filled(seq, 100));
	tmesh_seq_free(seq);
	scene_end(&s);
}

UNIT(test_messages)
{
	static const struct {
		struct pages_head head;
		size_t more;
	} bad[] = {
		{{.op = 0}, 0},
		{{.op = PAGES_UNSHARE + 1}, 0},
		{{.op = UINT32_MAX}, 0},
		{{.op = PAGES_RETURN, .count = 1}, 0},
		{{.op = PAGES_RETURN, .count = 1}, 8},
		{{.op = PAGES_RETURN, .count = UINT32_MAX}, 4},
		{{.op = PAGES_RETURN, .count = 0x40000000}, 0},
		{{.op = PAGES_RETURN, .pad = 1}, 0},
		{{.op = PAGES_RETURN, .status = 1}, 0},
		{{.op = PAGES_WANT, .count = 1}, 4},
		{{.op = PAGES_SLAB, .count = 1}, 0},
		{{.op = PAGES_CACHE, .count = PAGES_CACHE_MAX + 1}, 0},
		{{.op = PAGES_FIND, .count = 1}, 8},
		{{.op = PAGES_FIND, .count = PAGES_FIND_MAX + 1}, 16},
		{{.op = PAGES_SHARE, .count = TMESH_PAGES_MAX_SEQ + 1}, 0},
		{{.op = PAGES_GRANT}, 0},
	};
	struct scene s = scene_make(&small_pool);
	struct tmesh_seq *seq = seq_make(s.pages, 32);

	fill(seq, 100);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct tmesh_pages *other;
		uint32_t page;

		assert_ok(tmesh_pages_open(s.ctx, s.token, &other, err));
		assert_ok(tmesh_pages_alloc(other, &page, err));
		out.head = bad[i].head;
		send_raw(other, &out, sizeof(out.head) + bad[i].more);
		assert_refused(tmesh_pages_find(other, NULL, 0, &(struct tmesh_seq *){NULL}, err),
			       -EPIPE, "ended");
		tmesh_pages_unref(other);
		assert_ok(tmesh_pages_alloc(s.pages, &page, err));
		assert_ok(tmesh_pages_put(s.pages, page, err));
	}
	send_raw(s.pages, &out, 1);
	assert_refused(tmesh_pages_find(s.pages, NULL, 0, &(struct tmesh_seq *){NULL}, err), -EPIPE,
		       "ended");
	memset(&out, 0, sizeof(out));
	assert_true(is_filled(seq, 100));
	tmesh_seq_free(seq);
	scene_end(&s);
}

/* An owner of our own making, at the other end of a handle's socket. */
static int answer_with(struct tmesh_pages *pages, const struct pages_head *head, size_t more)
{
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	assert_int_equal(dup2(ends[0], pages->socket.fd), pages->socket.fd);
	close(ends[0]);
	out.head = *head;
	assert_int_equal(model_socket_send(ends[1], &out, sizeof(out.head) + more, -1), 0);
	/* It listens, and says nothing more. */
	shutdown(ends[1], SHUT_WR);
	return ends[1];
}

UNIT(test_answers)
{
	static const struct {
		struct pages_head head;
		size_t more;
		uint32_t page;
	} bad[] = {
		{{.op = PAGES_FOUND, .count = 1}, 4, 256},
		{{.op = PAGES_FOUND, .count = 1}, 4, UINT32_MAX},
		{{.op = PAGES_FOUND, .count = 9}, 36, 0},
		{{.op = PAGES_FOUND, .count = 2}, 4, 0},
		{{.op = PAGES_FOUND, .count = UINT32_MAX}, 4, 0},
		{{.op = PAGES_TABLE, .count = 1}, 4, 0},
		{{.op = PAGES_TICKET}, 0, 0},
		{{.op = PAGES_FOUND, .status = 7}, 0, 0},
		{{.op = 1000}, 0, 0},
		{{.op = PAGES_GRANT, .count = 1}, 4, UINT32_MAX},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const uint64_t hashes[1][2] = {{1, 2}};
		struct scene s = scene_make(&small_pool);
		struct tmesh_seq *none = NULL;
		int rc, owner;

		for (int n = 0; n < 16; n++)
			out.pages[n] = bad[i].page;
		owner = answer_with(s.pages, &bad[i].head, bad[i].more);
		rc = tmesh_pages_find(s.pages, hashes, 1, &none, NULL);
		assert_true(rc == -EPIPE || rc == -EPROTO);
		assert_null(none);
		assert_int_equal(pages_info(s.pages).held, 0);
		memset(&out, 0, sizeof(out));
		close(owner);
		scene_end(&s);
	}
}

/* An owner of our own making, from the token on: what it says first, and a slab of 16 pages. */

static struct liar {
	struct model_listener listener;
	struct pages_message welcome;
	size_t bytes;
	char slab[TMESH_TOKEN_SIZE];
	int socket;
} liar;

static void say_all(int socket, uint32_t op, const void *more, size_t bytes, uint32_t count)
{
	struct {
		struct pages_head head;
		char more[256];
	} message = {.head = {.op = op, .count = count}};

	if (bytes)
		memcpy(message.more, more, bytes);
	if (model_socket_send(socket, &message, sizeof(message.head) + bytes, -1))
		abort();
}

/* On the host's thread. The answers to what a handle asks first lie there before it asks. Then
 * comes nonsense, by which it ends. */
static void welcome_it(struct model_listener *listener, int socket)
{
	const uint32_t pages[] = {15, 0, liar.welcome.shape.max_pages - 1, UINT32_MAX, 16};

	liar.socket = socket;
	if (model_socket_send(socket, &liar.welcome, liar.bytes, -1))
		abort();
	say_all(socket, PAGES_GRANT, pages, sizeof(pages), 5);
	for (int i = 0; i < 5; i++)
		say_all(socket, PAGES_SLAB_IS, liar.slab, sizeof(liar.slab), 1);
	say_all(socket, 1000, NULL, 0, 0);
}

/* A handle touches no memory but a region's, however the owner answers. Return the result of
 * opening. */
static int meet_liar(struct tmesh_ctx *ctx, const char *token)
{
	struct tmesh_pages_info info = {.size = sizeof(info)};
	struct tmesh_pages *pages;
	uint32_t page;
	struct tmesh_error why;
	int rc = tmesh_pages_open(ctx, token, &pages, &why);

	if (!rc) {
		assert_ok(tmesh_pages_info(pages, &info, err));
		assert_int_equal(info.max_pages % info.slab_pages, 0);
		for (int i = 0; i < 6; i++) {
			if (tmesh_pages_alloc(pages, &page, NULL))
				continue;
			assert_in_range(page, 0, info.max_pages - 1);
			for (uint32_t d = 0; d < info.devices; d++)
				memset((uint8_t *)tmesh_pages_base(pages, d) +
					       page * info.page_bytes,
				       0xee, info.page_bytes);
		}
		tmesh_pages_unref(pages);
	} else {
		assert_int_equal(rc, -EPROTO);
		assert_non_null(strstr(why.message, "the token is of something else"));
	}
	close(liar.socket);
	return rc;
}

UNIT(test_welcomes)
{
	static const struct pages_shape good = {.magic = PAGES_MAGIC,
						.version = PAGES_VERSION,
						.page_bytes = 4096,
						.page_tokens = 4,
						.slab_pages = 16,
						.max_pages = 64,
						.devices = 1,
						.heads = 1};
	static const uint64_t values[] = {0,
					  1,
					  3,
					  15,
					  17,
					  32,
					  4095,
					  4097,
					  8192,
					  65536,
					  65537,
					  2 << 20,
					  4 << 20,
					  TMESH_PAGES_MAX,
					  TMESH_PAGES_MAX + 1,
					  INT32_MAX,
					  UINT32_MAX,
					  1ull << 32,
					  (1ull << 32) + 4096,
					  INT64_MAX,
					  UINT64_MAX};
	/* Offsets of 4 bytes; page_bytes, of 8, has two of them. */
	const size_t words = offsetof(struct pages_shape, key) / sizeof(uint32_t);
	struct pages_shape *shape = &liar.welcome.shape;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx = new_ctx();
	unsigned int open = 0;
	struct tmesh_region *slab = new_region(ctx, 16 * 4096);

	assert_ok(tmesh_region_token(slab, TMESH_READ | TMESH_WRITE, liar.slab, err));
	liar.listener.accepted = welcome_it;
	assert_ok(model_listener_open(&liar.listener, ctx, "liar", err));
	assert_ok(model_listener_token(&liar.listener, token, err));
	liar.welcome.head = (struct pages_head){.op = PAGES_WELCOME};
	liar.bytes = sizeof(liar.welcome.head) + sizeof(good);
	*shape = good;
	assert_int_equal(meet_liar(ctx, token), 0);
	for (size_t bit = 0; bit < 8 * sizeof(good); bit++) {
		*shape = good;
		((uint8_t *)shape)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		open += !meet_liar(ctx, token);
	}
	for (size_t at = 0; at < words; at++) {
		for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
			*shape = good;
			memcpy((char *)shape + at * sizeof(uint32_t), &values[i],
			       at * sizeof(uint32_t) == offsetof(struct pages_shape, page_bytes)
				       ? sizeof(uint64_t)
				       : sizeof(uint32_t));
			open += !meet_liar(ctx, token);
		}
	}
	assert_true(open > 256);
	*shape = good;
	for (liar.bytes = 0; liar.bytes < sizeof(liar.welcome.head) + sizeof(good);
	     liar.bytes += 13)
		if (liar.bytes)
			assert_int_equal(meet_liar(ctx, token), -EPROTO);
	liar.welcome.head.op = PAGES_GRANT;
	liar.bytes = sizeof(liar.welcome.head) + sizeof(good);
	assert_int_equal(meet_liar(ctx, token), -EPROTO);
	model_listener_close(&liar.listener);
	tmesh_region_unref(slab);
	tmesh_ctx_unref(ctx);
}

UNIT_MAIN("pages_hostile", NULL, NULL)
