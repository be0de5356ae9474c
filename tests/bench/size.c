// SPDX-License-Identifier: MIT
/*
 * Does the size matter? The hand-over of a region that exists and is full, from the moment
 * the consumer holds its token to the first byte read: 1 MiB beside 1 GiB. The byte is the
 * last one, which was not prepared.
 */
#include "harness.h"

#define TOPIC "size"
#define ROUNDS 200
#define WARM_UP 10

static struct kind {
	uint64_t bytes;
	struct series series;
} kinds[] = {
	{MIB, {.name = "open-1MiB"}},
	{1024 * MIB, {.name = "open-1GiB"}},
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static struct tmesh_error err;

static uint64_t open_and_read(struct tmesh_ctx *ctx, const char *token, uint64_t bytes)
{
	struct tmesh_region *region;
	uint64_t start = now_ns(), ns;
	void *memory;

	must(tmesh_region_open(ctx, token, TMESH_READ, &region, &err), &err);
	must(tmesh_region_map(region, TMESH_READ, &memory, &err), &err);
	if (((volatile uint8_t *)memory)[bytes - 1] != 7)
		die("the region holds something else");
	ns = now_ns() - start;
	tmesh_region_unmap(region, TMESH_READ);
	tmesh_region_unref(region);
	return ns;
}

static void consumer(int socket)
{
	struct tmesh_ctx *ctx = context(0);
	char tokens[KINDS][TMESH_TOKEN_SIZE];

	recv_message(socket, tokens, sizeof(tokens));
	for (int round = -WARM_UP; round < ROUNDS; round++) {
		for (size_t i = 0; i < KINDS; i++) {
			uint64_t ns;

			settle();
			ns = open_and_read(ctx, tokens[i], kinds[i].bytes);
			if (round >= 0)
				series_add(&kinds[i].series, ns);
		}
	}
	tmesh_ctx_unref(ctx);
	for (size_t i = 0; i < KINDS; i++)
		series_print(TOPIC, &kinds[i].series);
	send_message(socket, "", 1);
}

int main(void)
{
	char tokens[KINDS][TMESH_TOKEN_SIZE], done;
	struct tmesh_region *regions[KINDS];
	struct tmesh_ctx *ctx;
	struct process other;

	pin_to(CPU_PRODUCER);
	other = process_start(consumer);
	ctx = context(0);
	for (size_t i = 0; i < KINDS; i++) {
		void *memory;

		must(tmesh_region_create(ctx, kinds[i].bytes, NULL, &regions[i], &err), &err);
		must(tmesh_region_map(regions[i], TMESH_READ | TMESH_WRITE, &memory, &err), &err);
		memset(memory, 7, kinds[i].bytes);
		tmesh_region_unmap(regions[i], TMESH_READ | TMESH_WRITE);
		must(tmesh_region_token(regions[i], TMESH_READ, tokens[i], &err), &err);
	}
	send_message(other.socket, tokens, sizeof(tokens));
	recv_message(other.socket, &done, sizeof(done));
	process_end(&other);
	for (size_t i = 0; i < KINDS; i++)
		tmesh_region_unref(regions[i]);
	tmesh_ctx_unref(ctx);
	return 0;
}
