// SPDX-License-Identifier: MIT
/* Descriptors that clients hand an engine to keep, or to harm it by. */
#include "internal.h"
#include "served.h"
#include "unanswered_file.h"

/* Files that a client gives, more than may wait in all. */
#define GIVEN (TMESH_FOREIGN_MOST + 40)

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
	assert_refused(tmesh_engine_context_lifeline(fix->context, region, err), -EINVAL,
		       "stands for no descriptor");
	tmesh_region_unref(region);
	ends[0][0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_ok(tmesh_region_from_fd(ctx, ends[0][0], 1, NULL, &region, err));
	assert_refused(tmesh_engine_context_lifeline(fix->context, region, err), -EINVAL,
		       "no Unix socket or pipe");
	tmesh_region_unref(region);
	close(ends[0][0]);
	for (int i = 0; i <= WIRE_KEPT; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends[i]), 0);
		assert_ok(tmesh_region_from_fd(ctx, ends[i][1], 1, NULL, &region, err));
		if (i < WIRE_KEPT)
			assert_ok(tmesh_engine_context_lifeline(fix->context, region, err));
		else
			assert_refused(tmesh_engine_context_lifeline(fix->context, region, err),
				       -EDQUOT, "keeps at most 8");
		if (i == WIRE_KEPT) {
			shutdown(ends[3][0], SHUT_RDWR);
			assert_ok(tmesh_engine_context_lifeline(fix->context, region, err));
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

	assert_true(unanswered_open(&given));
	for (unsigned int count = 1; count <= 3; count++) {
		int fd = raw(fix);

		assert_int_equal(recv(fd, &welcome, sizeof(welcome), 0), sizeof(welcome));
		assert_true(send_fds(fd, given.fd, count));
		/* It is no word that the engine knows: the link ends. */
		assert_true(recv(fd, &welcome, 1, 0) <= 0);
		close(fd);
		assert_works(fix);
	}
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	assert_ok(tmesh_ctx_open(&memfd, &ctx, err));
	assert_ok(tmesh_region_from_fd(ctx, given.fd, 1, NULL, &region, err));
	assert_refused(tmesh_engine_context_lifeline(fix->context, region, err), -EINVAL,
		       "no Unix socket or pipe");
	unanswered_close(&given);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* By words to keep them. */
static void give_by_words(int given)
{
	struct fixture fix = {0};
	struct wire_welcome welcome;

	assert_ok(tmesh_ctx_open(NULL, &fix.ctx, err));
	for (unsigned int i = 0; i < GIVEN; i++) {
		int fd = raw(&fix);

		assert_int_equal(recv(fd, &welcome, sizeof(welcome), 0), sizeof(welcome));
		assert_true(send_fds(fd, given, 4));
		assert_true(recv(fd, &welcome, 1, 0) <= 0);
		close(fd);
	}
}

/* In place of a server of tokens: whatever is asked for, the file. */
static void *answer_with(void *data)
{
	const int *ends = data;
	char request[256];
	int conn;

	while ((conn = accept(ends[0], NULL, NULL)) >= 0) {
		while (recv(conn, request, sizeof(request), 0) > 0 && send_fds(conn, ends[1], 4))
			continue;
		close(conn);
	}
	return NULL;
}

/* By tokens. */
static void give_by_tokens(int given)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int ends[] = {socket(AF_UNIX, SOCK_SEQPACKET, 0), given};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_tensor *x;
	struct fixture fix;
	pthread_t thread;

	join(&fix);
	assert_ok(tmesh_engine_tensor_export(fix.x, &x, err));
	assert_ok(tmesh_region_token(tmesh_tensor_region(x), TMESH_READ, token, err));
	/* Its index leads to a file that is no memory any more. */
	assert_true(dup2(given, tmesh_tensor_region(x)->fd) >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%.32s",
		 getenv("TMESH_RUNTIME_DIR"), token + 5);
	assert_int_equal(unlink(address.sun_path), 0);
	assert_int_equal(bind(ends[0], (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(ends[0], 4), 0);
	pthread_create(&thread, NULL, answer_with, ends);
	for (unsigned int i = 0; i < GIVEN; i++)
		assert_true(dispatch(&fix, NULL) < 0);
}

/* One client's many files take nothing from another: the memory of calls comes by sockets, too. */
static void test_unanswered_many(void **state)
{
	static void (*const give[])(int given) = {give_by_words, give_by_tokens};
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	struct unanswered_file given;
	pid_t children[2];
	int done[2];
	char byte;

	assert_int_equal(pipe2(done, O_CLOEXEC), 0);
	assert_true(unanswered_open(&given));
	for (unsigned int i = 0; i < 2; i++) {
		children[i] = fork();
		if (!children[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			give[i](given.fd);
			assert_int_equal(write(done[1], "", 1), 1);
			pause();
		}
		assert_int_equal(read(done[0], &byte, 1), 1);
		leave(fix);
		join(fix);
		assert_works(fix);
	}
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	/* Before that they cannot end: they have the file. */
	unanswered_close(&given);
	for (unsigned int i = 0; i < 2; i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
	}
	close(done[0]);
	close(done[1]);
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
	const struct CMUnitTest tests[] = {TEST_SET_UP(test_keep)};
	const struct CMUnitTest unanswered[] = {
		TEST_SET_UP(test_unanswered),
		TEST_SET_UP(test_unanswered_many),
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
