// SPDX-License-Identifier: MIT
/*
 * Any messages with any descriptors to the keeper's half of a connection: they are refused or
 * answered. After the client has gone and its kept objects are dropped, no byte is counted and no
 * descriptor is open.
 *
 * The input is messages, each behind two bytes: its length, and the number and kind of its
 * descriptors. The highest bit makes the message a request or a region, so that more of it is read.
 * The next bit adds the one descriptor that a region ought to have.
 */
#include <poll.h>
#include <signal.h>

#include "sockets.h"

/* The keeper is a program: its files are no library. */
#include "keeper/client.c"
#include "keeper/table.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Return sealed memory as it ought to be sent, or a descriptor that must be refused. */
static int some_fd(unsigned int kind)
{
	int fd = fuzz_fd(kind);

	if (kind % 4 == 0)
		fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL);
	return fd;
}

static void send_one(int socket, const struct client *client, const uint8_t *data, size_t size,
		     uint8_t how)
{
	struct tmesh_wire_region region = {0};
	struct tmesh_keeper_request request = {0};
	uint8_t message[256] = {0};
	/* A region comes with one descriptor, as it ought to. */
	bool good = (how & 0xc0) == 0xc0 && client->state == CLIENT_GIVES;
	int fd = some_fd(good ? 0 : how >> 2);

	memcpy(message, data, size);
	if ((how & 0x80) && client->state == CLIENT_ASKS) {
		memcpy(&request, message, sizeof(request));
		request.magic = TMESH_MAGIC_KEEP;
		request.version = TMESH_WIRE_VERSION;
		request.op = request.op % TMESH_KEEPER_OPEN_REGION + 1;
		request.count %= 4;
		request.rights &= TMESH_READ | TMESH_WRITE;
		request.flags %= 3;
		snprintf(request.name, sizeof(request.name), "%c", 'a' + message[90] % 3);
		memset(request.name + 2, 0, sizeof(request.name) - 2);
		memcpy(message, &request, size = sizeof(request));
	} else if ((how & 0x80) && client->state == CLIENT_GIVES) {
		memcpy(&region, message, sizeof(region));
		region.magic = TMESH_MAGIC_REGION;
		region.version = TMESH_WIRE_VERSION;
		region.backend = TMESH_BACKEND_MEMFD;
		region.pad = 0;
		region.bytes %= 16384;
		region.rights = TMESH_READ;
		region.kind &= TMESH_KIND_FOREIGN;
		memcpy(message, &region, size = sizeof(region));
	}
	fuzz_send(socket, message, size, good ? 1 : how & 3, fd);
	close(fd);
}

static unsigned int open_fds(void)
{
	unsigned int count = 0;

	for (int fd = 3; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct service service = {.table = {.limit = 65536, .max_fds = 64}};
	unsigned int before = open_fds();
	uint8_t answer[256];
	struct client client;
	int ends[2];

	signal(SIGIO, SIG_IGN);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
		abort();
	client_begin(&client, ends[0], getpid());
	for (size_t at = 0; at + 2 < size && client.fd >= 0;) {
		size_t bytes = data[at];

		if (bytes > size - at - 2)
			bytes = size - at - 2;
		send_one(ends[1], &client, data + at + 2, bytes, data[at + 1]);
		at += 2 + bytes;
		/* Read the answers in between, or they fill the socket. */
		for (int step = 0; step < 4 && client.fd >= 0; step++) {
			client_step(&client, &service, client_waits_for(&client));
			if (step == 2)
				while (recv(ends[1], answer, sizeof(answer), 0) > 0)
					;
		}
	}
	close(ends[1]);
	for (int step = 0; step < 8 && client.fd >= 0; step++)
		client_step(&client, &service, POLLIN | POLLOUT | POLLHUP);
	if (client.fd >= 0)
		abort();
	while (service.table.groups)
		table_drop(&service.table, service.table.groups);
	if (service.table.used || service.table.fds || service.table.names ||
	    !fuzz_back_to(open_fds, before))
		abort();
	return 0;
}
