/* SPDX-License-Identifier: MIT */
/* A home and a reader in one process, by libfabric's tcp on the loopback. */
#ifndef TMESH_NET_TEST_HOME_H
#define TMESH_NET_TEST_HOME_H

#include "unit.h"

#include <tmesh/net.h>

#define BYTES 5000003 /* more than a piece, and no whole number of them */

struct home {
	struct tmesh_ctx *ctx;
	struct tmesh_net *net;
	struct tmesh_region *region;
	struct tmesh_net_offer_info info;
	char key[TMESH_NET_KEY_SIZE], address[TMESH_NET_ADDRESS_SIZE];
};

static inline struct tmesh_net_opts opts_of(const char *address)
{
	return (struct tmesh_net_opts){.size = sizeof(struct tmesh_net_opts),
				       .address = address,
				       .provider = getenv("TMESH_TEST_PROVIDER")};
}

static inline struct tmesh_region *make(struct tmesh_ctx *ctx, uint64_t bytes, bool seal)
{
	struct tmesh_region *region;
	uint8_t *memory;

	assert_ok(tmesh_region_create(ctx, bytes, NULL, &region, err));
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, (void **)&memory, err));
	for (uint64_t i = 0; i < bytes; i++)
		memory[i] = i * 31 + i / 251;
	tmesh_region_unmap(region, TMESH_READ | TMESH_WRITE);
	if (seal)
		assert_ok(tmesh_region_seal(region, err));
	return region;
}

static inline void begin_with(struct home *home, struct tmesh_net_opts opts, uint64_t bytes)
{
	*home = (struct home){.info.size = sizeof(home->info)};
	assert_ok(tmesh_ctx_open(NULL, &home->ctx, err));
	assert_ok(tmesh_net_open(home->ctx, &opts, &home->net, err));
	home->region = make(home->ctx, bytes, true);
	assert_ok(tmesh_net_offer(home->net, home->region, &home->info, err));
	assert_ok(
		tmesh_net_grant(home->net, home->info.id, "reader", home->key, home->address, err));
}

static inline void begin(struct home *home)
{
	begin_with(home, opts_of("127.0.0.1"), BYTES);
}

/* The home's address with another port. */
static inline void address_at(const struct home *home, uint16_t port,
			      char address[TMESH_NET_ADDRESS_SIZE])
{
	const char *colon = strrchr(home->address, ':');

	snprintf(address, TMESH_NET_ADDRESS_SIZE, "%.*s:%u%s", (int)(colon - home->address),
		 home->address, port, colon + 1 + strspn(colon + 1, "0123456789"));
}

static inline struct tmesh_net_source source_of(const struct home *home)
{
	return (struct tmesh_net_source){
		.size = sizeof(struct tmesh_net_source),
		.address = home->address,
		.key = home->key,
		.checksum = home->info.checksum,
		.bytes = home->info.bytes,
	};
}

static inline struct tmesh_net_stats stats_of(const struct home *home)
{
	struct tmesh_net_stats stats = {.size = sizeof(stats)};

	assert_int_equal(tmesh_net_stats(home->net, &stats), 0);
	return stats;
}

static inline uint64_t live(const struct home *home)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	assert_int_equal(tmesh_stats(home->ctx, &stats), 0);
	return stats.regions_live;
}

static inline void finish(struct home *home)
{
	tmesh_net_unref(home->net);
	tmesh_region_unref(home->region);
	assert_int_equal(live(home), 0);
	tmesh_ctx_unref(home->ctx);
}

static inline void same(struct tmesh_region *one, struct tmesh_region *other)
{
	void *a, *b;

	assert_int_equal(tmesh_region_bytes(one), tmesh_region_bytes(other));
	assert_ok(tmesh_region_map(one, TMESH_READ, &a, err));
	assert_ok(tmesh_region_map(other, TMESH_READ, &b, err));
	assert_memory_equal(a, b, tmesh_region_bytes(one));
	tmesh_region_unmap(one, TMESH_READ);
	tmesh_region_unmap(other, TMESH_READ);
}

#endif /* TMESH_NET_TEST_HOME_H */
