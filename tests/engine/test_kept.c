// SPDX-License-Identifier: MIT
/* Descriptors that clients hand an engine to keep, or to harm it by. */
#include "served.h"
#include "unanswered_file.h"

/* Descriptors that the engine keeps: so many, and those that hung up do not count. */
static void test_keep(void **state)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	const struct tmesh_ctx_opts memfd = {.size = sizeof(memfd), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	int ends[WIRE_KEPT + 1][2];

	assert_ok(tmesh_ctx_open(&memfd, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 4096, NULL, &region, err));
	assert_refused(tmesh_engine_context_keep(fix->context, region, err), -EINVAL,
		       "stands for no descriptor");
	tmesh_region_unref(region);
	for (int i = 0; i <= WIRE_KEPT; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends[i]), 0);
		assert_ok(tmesh_region_from_fd(ctx, ends[i][1], 1, NULL, &region, err));
		if (i < WIRE_KEPT)
			assert_ok(tmesh_engine_context_keep(fix->context, region, err));
		else
			assert_refused(tmesh_engine_context_keep(fix->context, region, err),
				       -EDQUOT, "keeps at most 8");
		if (i == WIRE_KEPT) {
			shutdown(ends[3][0], SHUT_RDWR);
			assert_ok(tmesh_engine_context_keep(fix->context, region, err));
		}
		tmesh_region_unref(region);
		close(ends[i][1]);
	}
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	/* Another one has room of its own, and gives all back when it goes. */
	tmesh_ctx_unref(ctx);
	leave(fix);
	for (int i = 0; i <= WIRE_KEPT; i++) {
		char byte;

		assert_int_equal(recv(ends[i][0], &byte, 1, 0), 0);
		close(ends[i][0]);
	}
	join(fix);
	assert_works(fix);
}

/* A client hands over a file whose server does not answer: the engine keeps none, and neither it
 * nor its other clients wait for one to be closed. */
static void test_unanswered(void **state)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	const struct tmesh_ctx_opts memfd = {.size = sizeof(memfd), .backend = TMESH_BACKEND_MEMFD};
	struct unanswered_file given;
	struct wire_welcome welcome;
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	unsigned int files;

	assert_true(unanswered_open(&given));
	for (unsigned int count = 1; count <= 4; count++) {
		int fd = raw(fix);

		assert_int_equal(recv(fd, &welcome, sizeof(welcome), 0), sizeof(welcome));
		assert_true(send_fds(fd, given.fd, count));
		/* It is no word that the engine knows: the link ends. */
		assert_true(recv(fd, &welcome, 1, 0) <= 0);
		close(fd);
		assert_works(fix);
	}
	/* Nor do many fill it up: the memory of calls is taken by sockets, too. */
	files = files_of(pid);
	for (unsigned int i = 0; i < 40; i++) {
		int fd = raw(fix);

		assert_int_equal(recv(fd, &welcome, sizeof(welcome), 0), sizeof(welcome));
		assert_true(send_fds(fd, given.fd, 4));
		assert_true(recv(fd, &welcome, 1, 0) <= 0);
		close(fd);
	}
	assert_works(fix);
	assert_true(files_of(pid) < files + 32);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	assert_ok(tmesh_ctx_open(&memfd, &ctx, err));
	assert_ok(tmesh_region_from_fd(ctx, given.fd, 1, NULL, &region, err));
	assert_refused(tmesh_engine_context_keep(fix->context, region, err), -EINVAL,
		       "no socket or pipe");
	unanswered_close(&given);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

static bool has_fuse(void)
{
	struct unanswered_file file;

	if (!unanswered_open(&file))
		return false;
	unanswered_close(&file);
	return true;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_keep, setup, teardown),
	};
	const struct CMUnitTest unanswered[] = {
		cmocka_unit_test_setup_teardown(test_unanswered, setup, teardown),
	};
	int failed;

	if (make_folder())
		return 1;
	failed = cmocka_run_group_tests_name("kept", tests, serve, unserve);
	if (has_fuse())
		failed +=
			cmocka_run_group_tests_name("kept, unanswered", unanswered, serve, unserve);
	else
		failed += UNIT_SKIP(unanswered, "no FUSE without root and its module");
	return remove_folder() || failed;
}
