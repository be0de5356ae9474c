// SPDX-License-Identifier: MIT
/*
 * tmesh-bench [ROUNDS]: the time to hand memory over on this machine, each way beside the shortest
 * one that could be written by hand for it. It prints every sample, a line of JSON for each series.
 */
#include "harness.h"

#define ROUNDS 100

static int at_least_one(int rounds)
{
	return rounds ? rounds : 1;
}

int main(int argc, char **argv)
{
	long rounds = ROUNDS;
	struct tmesh_ctx *ctx;
	char *end = NULL;

	if (argc > 1)
		rounds = strtol(argv[1], &end, 10);
	if (argc > 2 || (end && *end) || rounds < 1 || rounds > SERIES_MAX)
		die("usage: tmesh-bench [ROUNDS], 1 to %d (default: %d)", SERIES_MAX, ROUNDS);
	/* The backend of all processes that are started here. */
	ctx = context(0);
	bench_backend = tmesh_ctx_backend(ctx);
	tmesh_ctx_unref(ctx);

	/* The shares make the three take about as long as each other. */
	bench_handover((int)rounds);
	bench_channel(at_least_one((int)rounds / 2));
	bench_put(at_least_one((int)rounds / 10));
	return 0;
}
