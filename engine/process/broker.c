// SPDX-License-Identifier: MIT
/*
 * Connections for a process that may make none. The engine's process names the socket of a token's
 * producer. The supervisor connects to it in the runtime directory and hands the connected socket
 * over. A producer gives memory only for a token's secret, so such a connection reaches memory that
 * the engine's clients named and nothing else.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/fd_passing.h"
#include "process.h"

#define NAME_LEN 32
/* The most answers in a row, because the supervisor has other work too. */
#define ANSWERS 16

struct question {
	uint32_t number;
	char name[NAME_LEN + 1];
};

struct answer {
	uint32_t number;
	int32_t status; /* 0: a descriptor comes with it; or a negative errno */
};

struct broker {
	pthread_mutex_t lock;
	int socket;
	uint32_t number; /* of the last question */
};

int broker_new(int socket, struct broker **out, struct tmesh_error *err)
{
	struct broker *broker = calloc(1, sizeof(*broker));

	if (!broker)
		return tmesh_fail(err, -ENOMEM, "no memory for connections to clients");
	pthread_mutex_init(&broker->lock, NULL);
	broker->socket = socket;
	*out = broker;
	return 0;
}

/* Receive one answer. Return: 0, or a negative errno; @fd is -1 if none came. */
static int receive(int socket, struct answer *answer, int *fd)
{
	struct tmesh_fds taken = {.fds = fd, .room = 1};
	ssize_t got = tmesh_fds_recv(socket, answer, sizeof(*answer), &taken, MSG_DONTWAIT);

	if (!taken.count)
		*fd = -1;
	if (got < 0)
		return (int)got;
	if (got != sizeof(*answer))
		return -EPIPE;
	/* With EMFILE the kernel had no free number for the descriptor. */
	if (!answer->status && *fd < 0)
		answer->status = taken.problem ?: -EPROTO;
	return 0;
}

/* Wait for the answer to the last question. */
static int await(struct broker *broker, uint64_t deadline, int *fd)
{
	struct pollfd at = {.fd = broker->socket, .events = POLLIN};
	struct answer answer;

	for (;;) {
		int rc = receive(broker->socket, &answer, fd);

		if (!rc && answer.number == broker->number)
			return answer.status;
		/* This answers an earlier question, whose caller has stopped waiting. */
		if (*fd >= 0)
			close(*fd);
		if (rc && rc != -EAGAIN)
			return rc;
		if (rc && !poll(&at, 1, tmesh_poll_ms(deadline)))
			return -ETIMEDOUT;
	}
}

int broker_connect(void *data, const char *name, uint64_t deadline, int *socket)
{
	struct question question = {0};
	struct broker *broker = data;
	int fd = -1, rc = 0;

	if (strlen(name) != NAME_LEN)
		return -EINVAL;
	pthread_mutex_lock(&broker->lock);
	question.number = ++broker->number;
	memcpy(question.name, name, NAME_LEN);
	if (send(broker->socket, &question, sizeof(question), MSG_NOSIGNAL) < 0)
		rc = -errno;
	if (!rc)
		rc = await(broker, deadline, &fd);
	pthread_mutex_unlock(&broker->lock);
	if (!rc)
		*socket = fd;
	return rc;
}

/* Connect to the socket of a producer of this user, directly in the runtime directory. */
static int connect_to(int dir, const char *name, int *out)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer;
	socklen_t size = sizeof(peer);
	struct stat st;
	int fd, rc = 0;

	if (strnlen(name, NAME_LEN + 1) != NAME_LEN || strspn(name, "0123456789abcdef") != NAME_LEN)
		return -EINVAL;
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISSOCK(st.st_mode))
		return -ECONNREFUSED;
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", dir, name);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		rc = errno == ENOENT ? -ECONNREFUSED : -errno;
	else if (peer.uid != geteuid())
		rc = -EACCES;
	if (rc)
		close(fd);
	else
		*out = fd;
	return rc;
}

static void reply(int broker, const struct answer *answer, int fd)
{
	/* If the process never reads, its question times out. */
	tmesh_fds_send(broker, answer, sizeof(*answer), &fd, fd >= 0, MSG_DONTWAIT);
}

bool broker_serve(int broker, int dir)
{
	for (int i = 0; i < ANSWERS; i++) {
		struct question question;
		struct answer answer;
		ssize_t got = recv(broker, &question, sizeof(question), MSG_DONTWAIT);
		int fd = -1;

		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (got != sizeof(question))
			return false;
		answer.number = question.number;
		answer.status = connect_to(dir, question.name, &fd);
		reply(broker, &answer, fd);
		if (fd >= 0)
			close(fd);
	}
	return true;
}
