// SPDX-License-Identifier: MIT
/*
 * Any request to the server that answers for memfd tokens, with any descriptors: refused or
 * answered, and the next honest client is served.
 *
 * The first byte says how many descriptors, the second of which kind. Its highest bit makes the
 * request's secret a region's, the next one a channel's, so that there is something to open or to
 * join.
 */
#include <stdio.h>
#include <sys/un.h>

#include "sockets.h"
#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tmesh_ctx *client;
static struct tmesh_token_fields parts, channel_parts;
static char token[TMESH_TOKEN_SIZE];
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static void begin(void)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	static struct tmesh_region *region; /* lives as long as the process */
	static struct tmesh_channel *channel;
	static struct tmesh_ctx *producer;
	char channel_token[TMESH_TOKEN_SIZE];

	if (tmesh_ctx_open(&opts, &producer, NULL) || tmesh_ctx_open(&opts, &client, NULL) ||
	    tmesh_region_create(producer, 4096, NULL, &region, NULL) ||
	    tmesh_region_token(region, TMESH_READ, token, NULL) ||
	    tmesh_token_parse(token, &parts, NULL) ||
	    tmesh_channel_create(producer, TMESH_CHANNEL_RECV, NULL, &channel, NULL) ||
	    tmesh_channel_token(channel, channel_token, NULL) ||
	    tmesh_token_parse(channel_token, &channel_parts, NULL))
		abort();
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%.32s",
		 getenv("TMESH_RUNTIME_DIR"), token + strlen("tm1m-"));
}

static void drain(int socket)
{
	char control[CMSG_SPACE(sizeof(int) * FDS_MAX)];
	char bytes[4096];
	ssize_t got;

	do {
		struct iovec io = {.iov_base = bytes, .iov_len = sizeof(bytes)};
		struct msghdr message = {
			.msg_iov = &io,
			.msg_iovlen = 1,
			.msg_control = control,
			.msg_controllen = sizeof(control),
		};

		got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
		for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); got >= 0 && header;
		     header = CMSG_NXTHDR(&message, header)) {
			for (size_t at = CMSG_LEN(0); at + sizeof(int) <= header->cmsg_len;
			     at += sizeof(int))
				close(*(int *)((char *)header + at));
		}
	} while (got > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t message[256] = {0};
	struct tmesh_region *region;
	int socket_fd, fd;

	if (size < 3 || size - 2 > sizeof(message))
		return 0;
	if (!client)
		begin();
	memcpy(message, data + 2, size - 2);
	if (data[1] & 0xc0)
		memcpy(message + offsetof(struct tmesh_wire_request, secret),
		       data[1] & 0x80 ? parts.secret : channel_parts.secret, sizeof(parts.secret));

	socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (socket_fd < 0 || connect(socket_fd, (struct sockaddr *)&address, sizeof(address)))
		abort();
	fd = fuzz_fd(data[1]);
	fuzz_send(socket_fd, message, size - 2, data[0], fd);
	close(fd);
	shutdown(socket_fd, SHUT_WR);
	drain(socket_fd);
	close(socket_fd);

	if (tmesh_region_open(client, token, TMESH_READ, &region, NULL))
		abort();
	tmesh_region_unref(region);
	return 0;
}
