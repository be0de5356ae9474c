// SPDX-License-Identifier: MIT
/*
 * Does the number matter? Opening a region by its token while its producer holds 100 of them,
 * and while it holds 15,000. Two producers, one of each kind, and one consumer that opens
 * from them in turn; no token is opened twice.
 */
#include "harness.h"

#define TOPIC "lookup"
#define ROUNDS 100
#define FDS_NEEDED 16000

static struct series few = {.name = "open-of-100"};
static struct series many = {.name = "open-of-15000"};
static struct tmesh_error err;

/* Hold @count regions and give away ROUNDS tokens, spread over them. */
static void hold(int socket, unsigned int count)
{
	struct tmesh_region **regions = calloc(count, sizeof(*regions));
	struct tmesh_ctx *ctx = context(0);
	char token[TMESH_TOKEN_SIZE];
	char done;

	if (!regions)
		die("no memory");
	for (unsigned int i = 0; i < count; i++)
		must(tmesh_region_create(ctx, 1, NULL, &regions[i], &err), &err);
	/* All of them can be looked up, not only the opened ones. */
	for (unsigned int i = 0; i < count; i++) {
		must(tmesh_region_token(regions[i], TMESH_READ, token, &err), &err);
		if (i % (count / ROUNDS) == 0)
			send_message(socket, token, sizeof(token));
	}
	recv_message(socket, &done, sizeof(done)); /* the end of the socket */
	for (unsigned int i = 0; i < count; i++)
		tmesh_region_unref(regions[i]);
	tmesh_ctx_unref(ctx);
	free(regions);
}

static void hold_few(int socket)
{
	hold(socket, 100);
}

static void hold_many(int socket)
{
	hold(socket, 15000);
}

static void open_next(struct tmesh_ctx *ctx, char token[TMESH_TOKEN_SIZE], struct series *series)
{
	struct tmesh_region *region;
	uint64_t start;

	settle();
	start = now_ns();
	must(tmesh_region_open(ctx, token, TMESH_READ, &region, &err), &err);
	series_add(series, now_ns() - start);
	tmesh_region_unref(region);
}

static void collect(int socket, char tokens[ROUNDS][TMESH_TOKEN_SIZE])
{
	for (int i = 0; i < ROUNDS; i++)
		recv_message(socket, tokens[i], TMESH_TOKEN_SIZE);
}

int main(void)
{
	static char of_few[ROUNDS][TMESH_TOKEN_SIZE], of_many[ROUNDS][TMESH_TOKEN_SIZE];
	struct process first, second;
	struct tmesh_ctx *ctx;

	/* The module has its own bench. */
	setenv("TMESH_BACKEND", "memfd", 1);
	raise_fd_limit(FDS_NEEDED);
	pin_to(CPU_PRODUCER);
	first = process_start(hold_few);
	second = process_start(hold_many);
	ctx = context(0);
	collect(first.socket, of_few);
	collect(second.socket, of_many);
	for (int i = 0; i < ROUNDS; i++) {
		open_next(ctx, of_few[i], &few);
		open_next(ctx, of_many[i], &many);
	}
	tmesh_ctx_unref(ctx);
	process_end(&second); /* it inherited the socket to the first */
	process_end(&first);
	series_print(TOPIC, &few);
	series_print(TOPIC, &many);
	return 0;
}
