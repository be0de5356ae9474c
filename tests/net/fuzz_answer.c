// SPDX-License-Identifier: MIT
/*
 * Any answer to a program that asks the machine's Tmesh.Net, from a process that only claims to be
 * one: refused with a reason, and nothing is left open.
 *
 * The first byte says what is asked for, and whether the rest is one message or the bytes of as
 * many as it has.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <tmesh/net.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What to answer. A client that has seen enough may be answered after its call has returned. */
struct answer {
	uint8_t data[8192];
	size_t bytes;
};
static struct answer next;
static pthread_mutex_t next_lock = PTHREAD_MUTEX_INITIALIZER;

static void read_all(int fd, size_t bytes)
{
	char some[4096];

	while (bytes) {
		ssize_t got = recv(fd, some, bytes < sizeof(some) ? bytes : sizeof(some), 0);

		if (got <= 0)
			abort();
		bytes -= got;
	}
}

static void *serve(void *listener)
{
	static struct answer answer;
	sigset_t alarm;

	/* The fuzzer's clock. It comes here where the other thread has signals blocked. */
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, NULL);
	for (;;) {
		int client = accept4(*(int *)listener, NULL, NULL, SOCK_CLOEXEC);
		unsigned char head[4];

		if (client < 0 || recv(client, head, sizeof(head), MSG_WAITALL) != sizeof(head))
			abort();
		read_all(client, (size_t)head[0] << 24 | head[1] << 16 | head[2] << 8 | head[3]);
		pthread_mutex_lock(&next_lock);
		answer = next;
		pthread_mutex_unlock(&next_lock);
		for (size_t sent = 0; sent < answer.bytes;) {
			ssize_t some =
				send(client, answer.data + sent, answer.bytes - sent, MSG_NOSIGNAL);

			if (some < 0)
				break;
			sent += some;
		}
		close(client);
	}
	return NULL;
}

static struct tmesh_ctx *begin(void)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.backend = TMESH_BACKEND_MEMFD,
		.timeout_ns = 1000000,
	};
	/* A descriptor that is left open at every answer is soon one too many. */
	struct rlimit files = {512, 512};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	static struct tmesh_ctx *ctx;
	static int listener;
	pthread_t thread;

	if (ctx)
		return ctx;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/net.sock",
		 getenv("TMESH_RUNTIME_DIR"));
	unlink(address.sun_path);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 16) ||
	    setrlimit(RLIMIT_NOFILE, &files) || pthread_create(&thread, NULL, serve, &listener) ||
	    tmesh_ctx_open(&opts, &ctx, NULL))
		abort();
	return ctx;
}

static void check_descriptors(void)
{
	int fd = dup(STDIN_FILENO);

	if (fd < 0 || fd > 16)
		abort();
	close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_net_wanted wanted = {.size = sizeof(wanted), .name = "llama"};
	struct tmesh_tensor *tensor;
	struct tmesh_bundle *bundle;
	struct tmesh_error err = {0};
	struct tmesh_ctx *ctx;
	int rc;

	if (!size || size - 1 > sizeof(next.data) - 4)
		return 0;
	pthread_mutex_lock(&next_lock);
	next.bytes = size - 1;
	if (data[0] & 2) {
		unsigned char head[4] = {0, 0, next.bytes >> 8, next.bytes};

		memcpy(next.data, head, sizeof(head));
		memcpy(next.data + sizeof(head), data + 1, next.bytes);
		next.bytes += sizeof(head);
	} else {
		memcpy(next.data, data + 1, next.bytes);
	}
	pthread_mutex_unlock(&next_lock);
	ctx = begin();
	rc = data[0] & 1 ? tmesh_net_open_bundle(ctx, &wanted, &bundle, &err)
			 : tmesh_net_open_tensor(ctx, &wanted, &tensor, &err);
	/* No memory of this machine can be guessed. */
	if (!rc || rc != err.code || !err.message[0])
		abort();
	check_descriptors();
	return 0;
}
