// SPDX-License-Identifier: MIT
/* A Tmesh.Net that answers a byte at a time: each message has one time in which it is whole. */
#include <stdint.h>

static uint64_t silence_ns;
#define SILENCE_NS silence_ns

#include "../../net/local.c"
#include "unit.h"

static const char text[] = "{\"type\":\"error\",\"errno\":\"EEXIST\",\"message\":\"it is whole\"}";

struct server {
	int listener;
	useconds_t pause; /* after each byte */
};

static void *serve(void *data)
{
	const struct server *server = data;
	char answer[4 + sizeof(text) - 1] = {0, 0, 0, sizeof(text) - 1}, request[4096];
	int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);

	memcpy(answer + 4, text, sizeof(text) - 1);
	assert_true(recv(fd, request, sizeof(request), 0) > 0);
	for (size_t i = 0; i < sizeof(answer); i++) {
		if (send(fd, answer + i, 1, MSG_NOSIGNAL) != 1)
			break;
		usleep(server->pause);
	}
	/* The caller closes first. */
	while (recv(fd, request, sizeof(request), 0) > 0)
		;
	close(fd);
	return NULL;
}

static void ask(useconds_t pause, int rc, const char *word)
{
	struct tmesh_net_wanted wanted = {.size = sizeof(wanted), .name = "llama"};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct server server = {.pause = pause};
	struct tmesh_tensor *tensor;
	struct tmesh_ctx *ctx;
	pthread_t thread;
	int dir;

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_ctx_runtime_dir(ctx, &dir, err));
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/" SOCKET, dir);
	unlink(address.sun_path);
	server.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(server.listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(server.listener, 1), 0);
	close(dir);
	assert_int_equal(pthread_create(&thread, NULL, serve, &server), 0);
	assert_refused(tmesh_net_open_tensor(ctx, &wanted, &tensor, err), rc, word);
	pthread_join(thread, NULL);
	close(server.listener);
	tmesh_ctx_unref(ctx);
}

UNIT(test_whole)
{
	silence_ns = UINT64_C(600000000000);
	ask(0, -EEXIST, "it is whole");
}

UNIT(test_a_byte_at_a_time)
{
	silence_ns = 300000000;
	ask(100000, -ETIMEDOUT, "does not answer");
}

UNIT_MAIN("net local", NULL, NULL)
