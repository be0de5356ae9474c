// SPDX-License-Identifier: MIT
/*
 * A machine of `net_fetch.py`: a home or a reader of libtmesh-net, in a process of its own. Lines
 * in, lines out.
 *
 *   net home ADDRESS BYTES
 *     for each line "grant", print a key to a region of BYTES, as "ADDRESS KEY CHECKSUM BYTES"
 *
 *   net reader ADDRESS
 *     for each such line, fetch, and print the nanoseconds until the region was sealed
 *
 * A line of a failing fetch has TIMEOUT_MS behind it: the reader prints the nanoseconds until the
 * error, less than 0.
 */
#include "harness.h"

#include <inttypes.h>

#include <tmesh/net.h>

static struct tmesh_error err[1];

static void home(struct tmesh_ctx *ctx, struct tmesh_net *net, uint64_t bytes)
{
	struct tmesh_net_offer_info info = {.size = sizeof(info)};
	char key[TMESH_NET_KEY_SIZE] = "", address[TMESH_NET_ADDRESS_SIZE], line[64];
	struct tmesh_region *region;
	uint64_t *memory;

	must(tmesh_region_create(ctx, bytes, NULL, &region, err), err);
	must(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, (void **)&memory, err), err);
	for (uint64_t i = 0; i < bytes / 8; i++)
		memory[i] = i * 0x9e3779b97f4a7c15;
	tmesh_region_unmap(region, TMESH_READ | TMESH_WRITE);
	must(tmesh_region_seal(region, err), err);
	must(tmesh_net_offer(net, region, &info, err), err);
	while (fgets(line, sizeof(line), stdin)) {
		if (*key)
			must(tmesh_net_revoke(net, key, err), err);
		must(tmesh_net_grant(net, info.id, "reader", key, address, err), err);
		printf("%s %s %s %" PRIu64 "\n", address, key, info.checksum, bytes);
		fflush(stdout);
	}
	tmesh_region_unref(region);
}

static void reader(struct tmesh_net *net)
{
	char address[TMESH_NET_ADDRESS_SIZE], key[TMESH_NET_KEY_SIZE];
	char checksum[TMESH_NET_CHECKSUM_SIZE], line[512];

	while (fgets(line, sizeof(line), stdin)) {
		struct tmesh_net_source source = {.size = sizeof(source),
						  .address = address,
						  .key = key,
						  .checksum = checksum};
		struct tmesh_net_fetch_opts opts = {.size = sizeof(opts)};
		struct tmesh_region *region = NULL;
		uint64_t timeout_ms = 0, start;
		int64_t spent;

		if (sscanf(line, "%127s %16s %32s %" SCNu64 " %" SCNu64, address, key, checksum,
			   &source.bytes, &timeout_ms) < 4)
			die("not a key: %s", line);
		opts.timeout_ns = timeout_ms * 1000000;
		start = now_ns();
		if (!tmesh_net_fetch(net, &source, &opts, &region, err))
			spent = now_ns() - start;
		else if (timeout_ms)
			spent = -(int64_t)(now_ns() - start);
		else
			die("%s", err->message);
		tmesh_region_unref(region);
		printf("%" PRId64 "\n", spent);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	struct tmesh_net_opts opts = {.size = sizeof(opts)};
	struct tmesh_ctx *ctx = context(0);
	struct tmesh_net *net;

	if (argc < 3)
		die("usage: net home ADDRESS BYTES | net reader ADDRESS");
	/* As tmesh-net does. */
	setenv("FI_OFI_RXM_BUFFER_SIZE", "1024", 0);
	setenv("FI_OFI_RXM_CM_PROGRESS_INTERVAL", "500", 0);
	opts.address = argv[2];
	must(tmesh_net_open(ctx, &opts, &net, err), err);
	if (!strcmp(argv[1], "home") && argc == 4)
		home(ctx, net, strtoull(argv[3], NULL, 10));
	else
		reader(net);
	tmesh_net_unref(net);
	tmesh_ctx_unref(ctx);
	return 0;
}
