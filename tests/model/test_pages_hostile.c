// SPDX-License-Identifier: MIT
/*
 * Handles that send the owner of a pool what they like, and owners that answer what they like: the
 * others' pages stay theirs, and what comes in is refused or ends the connection.
 */
#include <sys/socket.h>

#include "meet.h"
#include "pages_internal.h"
#include "pages_test.h"

static void send_raw(struct tmesh_pages *pages, const void *data, size_t bytes)
{
	assert_int_equal(model_meet_send(pages->socket.fd, data, bytes, -1), 0);
}

static struct pages_message out;

static void send_pages(struct tmesh_pages *pages, uint32_t op, uint32_t count)
{
	out.head.op = op;
	out.head.count = count;
	send_raw(pages, &out, sizeof(out.head) + count * sizeof(uint32_t));
	memset(&out.head, 0, sizeof(out.head));
}

/* What another handle has can be neither returned, cached nor shared. */
static void test_not_its_own(void **state)
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
	/* Whatever it then takes in earnest is none of ours. */
	for (int i = 0; i < 200; i++)
		if (!tmesh_pages_alloc(other, &page, NULL))
			memset((uint8_t *)tmesh_pages_base(other, 0) + page * 4096ull, 0xee, 4096);
	assert_true(is_filled(seq, 100));
	tmesh_pages_unref(other);
	assert_true(is_filled(seq, 100));
	tmesh_seq_free(seq);
	scene_end(&s);
}

static void test_messages(void **state)
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
	assert_int_equal(model_meet_send(ends[1], &out, sizeof(out.head) + more, -1), 0);
	/* It listens, and says nothing more. */
	shutdown(ends[1], SHUT_WR);
	return ends[1];
}

static void test_answers(void **state)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_not_its_own),
		cmocka_unit_test(test_messages),
		cmocka_unit_test(test_answers),
	};

	return cmocka_run_group_tests_name("pages_hostile", tests, NULL, NULL);
}
