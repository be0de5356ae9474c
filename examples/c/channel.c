/* SPDX-License-Identifier: MIT */
/* cc channel.c $(pkg-config --cflags --libs libtmesh) -o channel */
/*
 * Tensors from one process to another. `channel` makes a channel, prints its token, and prints each
 * message until no sender is left. `channel TOKEN` sends three tensors, each with a word, and ends.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tmesh/tmesh.h>

static int print(const struct tmesh_message *message, struct tmesh_error *err)
{
	void *data;
	int rc = tmesh_tensor_data(message->tensor, TMESH_READ, &data, err);

	if (!rc)
		printf("%.*s: %g\n", (int)message->bytes, (const char *)message->data,
		       ((const float *)data)[0]);
	fflush(stdout);
	return rc;
}

static int consume(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_message message;
	struct tmesh_channel *channel;
	char token[TMESH_TOKEN_SIZE];
	int rc = tmesh_channel_create(ctx, TMESH_CHANNEL_RECV, NULL, &channel, err);

	if (rc)
		return rc;
	rc = tmesh_channel_token(channel, token, err);
	if (!rc) {
		puts(token);
		fflush(stdout);
	}
	while (!rc) {
		rc = tmesh_channel_recv(channel, &message, -1, err);
		if (!rc && message.tensor) { /* this reference is ours now */
			rc = print(&message, err);
			tmesh_tensor_unref(message.tensor);
		}
	}
	tmesh_channel_unref(channel);
	return rc == -EPIPE ? 0 : rc; /* the last sender has ended or was killed */
}

static int send(struct tmesh_ctx *ctx, struct tmesh_channel *channel, float number,
		struct tmesh_error *err)
{
	struct tmesh_message message = {.bytes = 6, .data = "number"};
	int rc = tmesh_tensor_put(ctx, TMESH_FLOAT32, 1, (int64_t[]){1}, &number, NULL,
				  &message.tensor, err);

	if (rc)
		return rc;
	rc = tmesh_channel_send(channel, &message, -1, err);
	tmesh_tensor_unref(message.tensor); /* the channel has what it needs */
	return rc;
}

static int produce(struct tmesh_ctx *ctx, const char *token, struct tmesh_error *err)
{
	struct tmesh_channel *channel;
	int rc = tmesh_channel_open(ctx, token, TMESH_CHANNEL_SEND, NULL, &channel, err);

	if (rc)
		return rc;
	for (int i = 1; !rc && i <= 3; i++)
		rc = send(ctx, channel, (float)i, err);
	tmesh_channel_unref(channel);
	return rc;
}

int main(int argc, char **argv)
{
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc = tmesh_ctx_open(NULL, &ctx, &err);

	if (!rc) {
		rc = argc > 1 ? produce(ctx, argv[1], &err) : consume(ctx, &err);
		tmesh_ctx_unref(ctx);
	}
	if (rc)
		fprintf(stderr, "channel: %s\n", err.message);
	return rc ? 1 : 0;
}
