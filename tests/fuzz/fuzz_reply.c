// SPDX-License-Identifier: MIT
/*
 * Any answer to a client that redeems a memfd token, from a process that only claims to be
 * the producer: refused, or a region that can be used.
 *
 * The first byte says how many descriptors, the second of which kind; the rest is the reply.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "sockets.h"

#define NAME "00112233445566778899aabbccddeeff"
#define TOKEN "tm1m-" NAME "-" NAME

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The answer. A client that tried again may be answered after its call has returned. */
static struct {
	uint8_t data[512];
	size_t bytes;
} reply;
static pthread_mutex_t reply_lock = PTHREAD_MUTEX_INITIALIZER;

static void *serve(void *listener)
{
	sigset_t alarm;

	/* The fuzzer's clock. It comes here where the other thread has signals blocked. */
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, NULL);
	for (;;) {
		int fd, client = accept4(*(int *)listener, NULL, NULL, SOCK_CLOEXEC);
		char request[256];

		if (client < 0)
			abort();
		if (recv(client, request, sizeof(request), 0) > 0) {
			pthread_mutex_lock(&reply_lock);
			fd = fuzz_fd(reply.data[1]);
			fuzz_send(client, reply.data + 2, reply.bytes - 2, reply.data[0], fd);
			pthread_mutex_unlock(&reply_lock);
			close(fd);
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
		.timeout_ns = 100000000,
	};
	/* A descriptor that is left open at every answer is soon one too many. A call that asks
	 * again may have got as many as one message can have each time. */
	struct rlimit files = {4096, 4096};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	static struct tmesh_ctx *ctx;
	static int listener;
	pthread_t thread;

	if (ctx)
		return ctx;
	mkdir(getenv("TMESH_RUNTIME_DIR"), 0700);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/" NAME,
		 getenv("TMESH_RUNTIME_DIR"));
	unlink(address.sun_path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 16) ||
	    setrlimit(RLIMIT_NOFILE, &files) || pthread_create(&thread, NULL, serve, &listener) ||
	    tmesh_ctx_open(&opts, &ctx, NULL))
		abort();
	return ctx;
}

static unsigned int above_most(void)
{
	int fd = dup(STDIN_FILENO);

	if (fd < 0)
		return 1;
	close(fd);
	return fd > 256;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_region *region;
	struct tmesh_error err = {0};
	struct tmesh_ctx *ctx;
	int rc;

	if (size < 3 || size > sizeof(reply.data))
		return 0;
	pthread_mutex_lock(&reply_lock);
	memcpy(reply.data, data, size);
	reply.bytes = size;
	pthread_mutex_unlock(&reply_lock);
	ctx = begin();
	rc = tmesh_region_open(ctx, TOKEN, TMESH_READ, &region, &err);
	if (!rc) {
		fuzz_use(region);
		tmesh_region_unref(region);
	} else if (rc != err.code || !err.message[0]) {
		abort();
	}
	/* The lowest free number stays low unless calls leave descriptors open. The error alone
	 * does not show it: EMFILE may also come from the answer. */
	if (!fuzz_back_to(above_most, 0))
		abort();
	return 0;
}
