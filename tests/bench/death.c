// SPDX-License-Identifier: MIT
/*
 * The time from a process's SIGKILL until another, sleeping process sees it: a receiver on a
 * channel, by EPIPE, and by hand, by a pidfd.
 */
#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define TOPIC "death"
#define ROUNDS 200

static struct tmesh_error err;
static struct tmesh_ctx *ctx;
static char *token; /* shared */
static atomic_uint_fast64_t killed;

static void victim(int socket)
{
	struct tmesh_channel *channel;
	char end;

	ctx = context(0);
	must(tmesh_channel_open(ctx, token, TMESH_CHANNEL_SEND, NULL, &channel, &err), &err);
	send_message(socket, "", 1);
	recv_message(socket, &end, 1);
}

static void *strike(void *pid)
{
	pin_to(CPU_CONSUMER);
	settle();
	killed = now_ns();
	kill(*(pid_t *)pid, SIGKILL);
	return NULL;
}

static void see(struct tmesh_channel *channel, int pidfd)
{
	struct tmesh_message message;
	struct pollfd poller = {.fd = pidfd, .events = POLLIN};

	if (!channel)
		need(poll(&poller, 1, -1), "poll");
	else if (tmesh_channel_recv(channel, &message, -1, NULL) != -EPIPE)
		die("the sender's death is no EPIPE");
}

static uint64_t sample(_Bool by_channel)
{
	struct tmesh_channel *channel;
	struct process process;
	pthread_t thread;
	uint64_t seen;
	int pidfd;
	char ready;

	must(tmesh_channel_create(ctx, TMESH_CHANNEL_RECV, NULL, &channel, &err), &err);
	must(tmesh_channel_token(channel, token, &err), &err);
	process = process_start(victim);
	pidfd = (int)need(syscall(SYS_pidfd_open, process.pid, 0), "pidfd_open");
	recv_message(process.socket, &ready, 1);
	if (pthread_create(&thread, NULL, strike, &process.pid))
		die("cannot start a thread");
	see(by_channel ? channel : NULL, pidfd);
	seen = now_ns();
	pthread_join(thread, NULL);
	need(waitpid(process.pid, NULL, 0), "waitpid");
	close(process.socket);
	close(pidfd);
	tmesh_channel_unref(channel);
	return seen - killed;
}

int main(void)
{
	static struct series ways[] = {{.name = "pidfd"}, {.name = "channel"}};

	token = mmap(NULL, TMESH_TOKEN_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	pin_to(CPU_PRODUCER);
	ctx = context(0);
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < 2; i++)
			series_add(&ways[i], sample(i));
	for (int i = 0; i < 2; i++)
		series_print(TOPIC, &ways[i]);
	tmesh_ctx_unref(ctx);
	return 0;
}
