// SPDX-License-Identifier: MIT
/* The other end of a channel, to be killed: `peer send COUNT` or `peer recv COUNT` prints the
 * channel's token, then sends a float32[COUNT] again and again, each in a region of its own, or
 * receives. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tmesh/tmesh.h>

static int fail(const struct tmesh_error *err)
{
	fprintf(stderr, "peer: %s\n", err->message);
	return 1;
}

int main(int argc, char **argv)
{
	bool repeats = argc == 3 && !strcmp(argv[1], "repeat");
	bool sends = repeats || (argc == 3 && !strcmp(argv[1], "send"));
	int64_t count = argc == 3 ? atoll(argv[2]) : 0;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_channel *channel;
	struct tmesh_message message = {0};
	/* The other side of the measured call: it spins before it sleeps. */
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .spin_ns = 20000};
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	float *data;

	if (tmesh_ctx_open(NULL, &ctx, &err) ||
	    tmesh_channel_create(ctx, sends ? TMESH_CHANNEL_SEND : TMESH_CHANNEL_RECV, &opts,
				 &channel, &err) ||
	    tmesh_channel_token(channel, token, &err))
		return fail(&err);
	puts(token);
	fflush(stdout);
	data = calloc((size_t)count + 1, sizeof(*data));
	for (;;) {
		int rc = 0;

		if (sends && !message.tensor)
			rc = tmesh_tensor_put(ctx, TMESH_FLOAT32, 1, &count, data, NULL,
					      &message.tensor, &err);
		if (!rc)
			rc = sends ? tmesh_channel_send(channel, &message, -1, &err)
				   : tmesh_channel_recv(channel, &message, -1, &err);
		if (rc)
			return fail(&err);
		if (!repeats) {
			tmesh_tensor_unref(message.tensor);
			message.tensor = NULL;
		}
	}
}
