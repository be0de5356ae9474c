// SPDX-License-Identifier: MIT
/* Offers, keys and fetches of libtmesh-net, and what is refused. test_interrupted.c has fetches
 * that do not end as they began. */
#include <sys/un.h>

#include "home.h"

UNIT(test_fetch)
{
	static const uint64_t sizes[] = {1, 4095, 4 << 20, (4 << 20) + 1, BYTES};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct tmesh_net_source source;
		struct tmesh_region *got;
		struct home home;

		begin_with(&home, opts_of("127.0.0.1"), sizes[i]);
		assert_int_equal(home.info.bytes, sizes[i]);
		source = source_of(&home);
		assert_ok(tmesh_net_fetch(home.net, &source, NULL, &got, err));
		assert_true(tmesh_region_is_sealed(got));
		same(home.region, got);
		tmesh_region_unref(got);
		assert_int_equal(stats_of(&home).fetched, 1);
		assert_int_equal(stats_of(&home).bytes_fetched, sizes[i]);
		finish(&home);
	}
}

UNIT(test_opts)
{
	struct tmesh_net_opts opts = opts_of(NULL);
	struct tmesh_net *net;
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_refused(tmesh_net_open(ctx, NULL, &net, err), -EINVAL, "no address");
	opts.flags = 2;
	assert_refused(tmesh_net_open(ctx, &opts, &net, err), -EINVAL, "flags are 0x2");
	opts.flags = 0;
	assert_refused(tmesh_net_open(ctx, &opts, &net, err), -EINVAL, "no address");
	opts.address = "localhost";
	assert_refused(tmesh_net_open(ctx, &opts, &net, err), -EINVAL, "no address in numbers");
	opts.address = "0.0.0.0";
	assert_refused(tmesh_net_open(ctx, &opts, &net, err), -EINVAL, "0.0.0.0 is every address");
	opts.address = "::";
	assert_refused(tmesh_net_open(ctx, &opts, &net, err), -EINVAL, ":: is every address");
	opts = opts_of("203.0.113.77");
	assert_refused(tmesh_net_open(ctx, &opts, &net, err), -EINVAL, "203.0.113.77");
	opts = opts_of("127.0.0.1");
	opts.flags = TMESH_NET_DMABUF;
	assert_refused(tmesh_net_open(ctx, &opts, &net, err), -EOPNOTSUPP, "dma-buf");
	opts.flags = 0;
	opts.provider = "carrier-pigeon";
	assert_refused(tmesh_net_open(ctx, &opts, &net, err), -EOPNOTSUPP, "carrier-pigeon");
	opts.provider = "";
	assert_refused(tmesh_net_open(ctx, &opts, &net, err), -EINVAL, "provider's name");
	tmesh_ctx_unref(ctx);
}

UNIT(test_unsealed)
{
	struct tmesh_region *region;
	struct home home;

	begin(&home);
	region = make(home.ctx, 100, false);
	assert_refused(tmesh_net_offer(home.net, region, &home.info, err), -EINVAL, "not sealed");
	assert_int_equal(stats_of(&home).offers, 1);
	tmesh_region_unref(region);
	finish(&home);
}

/* A key and an offer that are ended open nothing, and neither do those that never were. */
UNIT(test_ended)
{
	struct tmesh_net_source source;
	struct tmesh_region *got = NULL;
	struct home home;
	uint64_t before;

	begin(&home);
	before = live(&home);
	source = source_of(&home);
	source.key = "0123456789abcdef";
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EPIPE, "key");
	source.key = home.key;
	assert_ok(tmesh_net_revoke(home.net, home.key, err));
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EPIPE, "gone");
	assert_refused(tmesh_net_revoke(home.net, home.key, err), -ENOENT, "no such key");
	assert_ok(tmesh_net_grant(home.net, home.info.id, "reader", home.key, home.address, err));
	assert_ok(tmesh_net_withdraw(home.net, home.info.id, err));
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EPIPE, "gone");
	assert_refused(tmesh_net_withdraw(home.net, home.info.id, err), -ENOENT, "no such offer");
	assert_refused(
		tmesh_net_grant(home.net, home.info.id, "reader", home.key, home.address, err),
		-ENOENT, "no such offer");
	assert_refused(tmesh_net_revoke(home.net, home.key, err), -ENOENT, "no such key");
	assert_null(got);
	assert_int_equal(stats_of(&home).offers, 0);
	assert_int_equal(stats_of(&home).keys, 0);
	assert_int_equal(stats_of(&home).failed, 3);
	/* A failed fetch has left nothing. */
	assert_int_equal(live(&home), before);
	/* The offer's handle is gone: this is the last one on the region. */
	tmesh_region_unref(home.region);
	home.region = NULL;
	assert_int_equal(live(&home), before - 1);
	finish(&home);
}

UNIT(test_checksum)
{
	struct tmesh_net_source source;
	struct tmesh_region *got;
	struct home home;
	uint64_t before;

	begin(&home);
	before = live(&home);
	source = source_of(&home);
	source.checksum = "00000000000000000000000000000000";
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EPROTO, "checksum");
	source.checksum = home.info.checksum;
	source.bytes--;
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EPROTO, "checksum");
	source.bytes += 2;
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EPIPE, "key");
	assert_int_equal(live(&home), before);
	finish(&home);
}

UNIT(test_hostile_source)
{
	/* The part after the provider's name. */
	static const char *const addresses[] = {
		"",
		"://",
		"://127.0.0.1",
		"://:1",
		"://127.0.0.1:",
		"://127.0.0.1:0",
		"://127.0.0.1:65536",
		"://127.0.0.1:-1",
		"://127.0.0.1:1 ",
		"://127.0.0.256:1",
		"://localhost:1",
		"://[::1:1",
		"://[127.0.0.1]:1",
		"://[]:1",
		"://127.0.0.1:1/",
		"://127.0.0.1:1/00",
		"://127.0.0.1:1/000000000000000g",
		"://0x7f000001",
	};
	struct tmesh_net_source source;
	struct tmesh_region *got;
	struct home home;
	char longest[300];

	begin(&home);
	source = source_of(&home);
	for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
		snprintf(longest, sizeof(longest), "ofi+%s%s", tmesh_net_provider(home.net),
			 addresses[i]);
		source.address = longest;
		assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EINVAL,
			       "not an address");
	}
	source.address = "127.0.0.1:1";
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EINVAL,
		       "not an address");
	memset(longest, '1', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = 0;
	memcpy(longest, "ofi+", 4);
	source.address = longest;
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EINVAL, "address");
	source.address = "ofi+verbs://127.0.0.1:1";
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EOPNOTSUPP, "verbs");
	source = source_of(&home);
	source.key = "0123456789ABCDEF";
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EINVAL, "a key");
	source.key = NULL;
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EINVAL, "a key");
	source = source_of(&home);
	source.checksum = "short";
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EINVAL, "a checksum");
	source = source_of(&home);
	source.bytes = 0;
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EINVAL, "bytes");
	source.bytes = UINT64_MAX;
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EINVAL, "bytes");
	assert_refused(tmesh_net_grant(home.net, "zz", "reader", home.key, home.address, err),
		       -EINVAL, "id");
	assert_refused(tmesh_net_grant(home.net, home.info.id, "", home.key, home.address, err),
		       -EINVAL, "peer");
	assert_refused(tmesh_net_revoke(home.net, NULL, err), -EINVAL, "a key");
	assert_int_equal(stats_of(&home).fetches, 0);
	finish(&home);
}

/* If a reader's own address leads nowhere, the error names that one, and blames no home. */
UNIT(test_own_address)
{
	struct tmesh_net_source source;
	struct tmesh_net_opts opts = opts_of("::1");
	struct tmesh_region *got;
	struct tmesh_net *reader;
	struct home home;
	char address[TMESH_NET_ADDRESS_SIZE];
	const char *scheme;

	begin(&home);
	source = source_of(&home);
	/* Another machine's, from the loopback's. No packet goes there. */
	scheme = strstr(home.address, "://");
	snprintf(address, sizeof(address), "%.*s://192.0.2.77:9%s", (int)(scheme - home.address),
		 home.address, strchr(scheme + 3, '/') ? strchr(scheme + 3, '/') : "");
	source.address = address;
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EINVAL,
		       "own address 127.0.0.1 to the home at");
	/* The other family, where this machine has it. */
	if (tmesh_net_open(home.ctx, &opts, &reader, NULL) == 0) {
		source.address = home.address;
		assert_refused(tmesh_net_fetch(reader, &source, NULL, &got, err), -EINVAL,
			       "own address ::1 to the home at");
		tmesh_net_unref(reader);
	}
	finish(&home);
}

UNIT(test_limits)
{
	struct tmesh_net_opts opts = opts_of("127.0.0.1");
	char key[TMESH_NET_KEY_SIZE], address[TMESH_NET_ADDRESS_SIZE];
	struct tmesh_net_source source;
	struct tmesh_region *got;
	struct home home;

	opts.max_offers = 1;
	opts.max_keys = 3;
	opts.max_keys_per_peer = 2;
	opts.max_bytes = BYTES - 1;
	begin_with(&home, opts, BYTES);
	assert_refused(tmesh_net_offer(home.net, home.region, &home.info, err), -EDQUOT,
		       "offered already");
	assert_ok(tmesh_net_grant(home.net, home.info.id, "reader", key, address, err));
	assert_refused(tmesh_net_grant(home.net, home.info.id, "reader", key, address, err),
		       -EDQUOT, "reader has 2");
	assert_ok(tmesh_net_grant(home.net, home.info.id, "other", key, address, err));
	assert_refused(tmesh_net_grant(home.net, home.info.id, "third", key, address, err), -EDQUOT,
		       "3 keys");
	assert_ok(tmesh_net_revoke(home.net, key, err));
	assert_ok(tmesh_net_grant(home.net, home.info.id, "third", key, address, err));
	source = source_of(&home);
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EDQUOT, "may have");
	finish(&home);
}

/* A small value goes in a message: the bytes of the offer, and a sealed region of them. */
UNIT(test_small)
{
	static const uint64_t sizes[] = {1, 4096, TMESH_NET_SMALL_BYTES};
	static uint8_t data[TMESH_NET_SMALL_BYTES];
	struct tmesh_net_opts opts = opts_of("127.0.0.1");
	const char *no_offer = "00000000000000000000000000000000";
	struct tmesh_region *got;
	struct home home;
	size_t bytes;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		begin_with(&home, opts, sizes[i]);
		assert_ok(tmesh_net_copy(home.net, home.info.id, data, sizeof(data), &bytes, err));
		assert_int_equal(bytes, sizes[i]);
		assert_ok(tmesh_net_store(home.net, data, bytes, home.info.checksum, &got, err));
		assert_true(tmesh_region_is_sealed(got));
		same(home.region, got);
		tmesh_region_unref(got);
		assert_int_equal(stats_of(&home).fetched, 1);
		assert_int_equal(stats_of(&home).bytes_fetched, sizes[i]);
		data[0] ^= 1;
		assert_refused(
			tmesh_net_store(home.net, data, bytes, home.info.checksum, &got, err),
			-EPROTO, "checksum");
		assert_int_equal(stats_of(&home).failed, 1);
		assert_refused(
			tmesh_net_copy(home.net, home.info.id, data, sizes[i] - 1, &bytes, err),
			-EOVERFLOW, "grant a key");
		assert_ok(tmesh_net_withdraw(home.net, home.info.id, err));
		assert_refused(
			tmesh_net_copy(home.net, home.info.id, data, sizeof(data), &bytes, err),
			-ENOENT, "no such offer");
		finish(&home);
	}
	opts.max_bytes = 100;
	begin_with(&home, opts, TMESH_NET_SMALL_BYTES + 1);
	assert_refused(tmesh_net_copy(home.net, home.info.id, data, SIZE_MAX, &bytes, err),
		       -EOVERFLOW, "grant a key");
	assert_refused(tmesh_net_copy(home.net, no_offer, data, sizeof(data), &bytes, err), -ENOENT,
		       "no such offer");
	assert_refused(tmesh_net_copy(home.net, "short", data, sizeof(data), &bytes, err), -EINVAL,
		       "hex");
	assert_refused(tmesh_net_store(home.net, data, 0, no_offer, &got, err), -EINVAL, "small");
	assert_refused(tmesh_net_store(home.net, NULL, 1, no_offer, &got, err), -EINVAL, "small");
	assert_refused(
		tmesh_net_store(home.net, data, TMESH_NET_SMALL_BYTES + 1, no_offer, &got, err),
		-EINVAL, "small");
	assert_refused(tmesh_net_store(home.net, data, 101, no_offer, &got, err), -EDQUOT,
		       "may have 100");
	assert_refused(tmesh_net_store(home.net, data, 1, "x", &got, err), -EINVAL, "hex");
	finish(&home);
}

/* One that takes no connection, and whose queue is full, does not keep a caller beyond its timeout.
 */
UNIT(test_full_queue)
{
	const struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_net_wanted wanted = {
		.size = sizeof(wanted), .name = "x", .timeout_ns = 50000000};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), others[8], count = 0, dir;
	struct tmesh_tensor *tensor;
	struct tmesh_ctx *ctx;
	bool full = false;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_ctx_runtime_dir(ctx, &dir, err));
	close(dir);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/net.sock",
		 getenv("TMESH_RUNTIME_DIR"));
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 0), 0);
	for (; !full; count++) {
		assert_in_range(count, 0, 7);
		others[count] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		full = connect(others[count], (struct sockaddr *)&address, sizeof(address)) != 0;
	}
	alarm(120);
	assert_refused(tmesh_net_open_tensor(ctx, &wanted, &tensor, err), -ETIMEDOUT,
		       "no connection");
	alarm(0);
	while (count--)
		close(others[count]);
	close(listener);
	unlink(address.sun_path);
	tmesh_ctx_unref(ctx);
}

UNIT_MAIN("net", NULL, NULL)
