// SPDX-License-Identifier: MIT
/* Compiled with the headers of one version, run with a libtmesh-net of a later one: program.c. */
#include "edge.h"

#include <tmesh/net.h>

static int progress(void *data, uint64_t bytes)
{
	*(uint64_t *)data = bytes;
	return 0;
}

static void test_fetch(void **state)
{
	struct tmesh_net_offer_info *info = SIZED(tmesh_net_offer_info);
	struct tmesh_net_fetch_opts *fetch = OPTIONS(tmesh_net_fetch_opts);
	struct tmesh_net_source *source = OPTIONS(tmesh_net_source);
	struct tmesh_net_stats *stats = SIZED(tmesh_net_stats);
	struct tmesh_net_opts *opts = OPTIONS(tmesh_net_opts);
	struct tmesh_region *made = region(*state, 5000, "offered"), *got;
	char key[TMESH_NET_KEY_SIZE], address[TMESH_NET_ADDRESS_SIZE];
	struct tmesh_net *net;
	uint64_t seen = 0;
	void *bytes;

	assert_ok(tmesh_region_write(made, 4990, "last bytes", 10, err));
	assert_ok(tmesh_region_seal(made, err));
	opts->address = "127.0.0.1";
	assert_ok(tmesh_net_open(*state, opts, &net, err));
	assert_ok(tmesh_net_offer(net, made, info, err));
	assert_int_equal(info->bytes, 5000);
	assert_int_equal(strlen(info->checksum), TMESH_NET_CHECKSUM_SIZE - 1);
	assert_ok(tmesh_net_grant(net, info->id, "reader", key, address, err));
	source->address = address;
	source->key = key;
	source->checksum = info->checksum;
	source->bytes = info->bytes;
	fetch->label = "fetched";
	fetch->progress = progress;
	fetch->data = &seen;
	assert_ok(tmesh_net_fetch(net, source, fetch, &got, err));
	assert_ok(tmesh_region_map(got, TMESH_READ, &bytes, err));
	assert_memory_equal((char *)bytes + 4990, "last bytes", 10);
	assert_int_equal(tmesh_net_stats(net, stats), 0);
	assert_int_equal(stats->offers, 1);
	assert_int_equal(stats->fetched, 1);
	assert_int_equal(stats->bytes_fetched, 5000);
	tmesh_region_unref(got);
	tmesh_net_unref(net);
	tmesh_region_unref(made);
}

/* No server answers; by then the call has read its structure. */
static void test_wanted(void **state)
{
	struct tmesh_net_wanted *wanted = OPTIONS(tmesh_net_wanted);
	struct tmesh_tensor *tensor;

	wanted->name = "grown";
	assert_int_equal(tmesh_net_open_tensor(*state, wanted, &tensor, NULL), -ENOENT);
}

static void test_wrong_sizes(void **state)
{
	static const size_t wrong[] = {0, 4, 1 << 20, SIZE_MAX};
	struct tmesh_net_opts *opts = OPTIONS(tmesh_net_opts);
	struct tmesh_net_opts bad = {.address = "127.0.0.1"};
	struct tmesh_net_stats stats = {0};
	struct tmesh_net *net, *none = NULL;

	opts->address = "127.0.0.1";
	assert_ok(tmesh_net_open(*state, opts, &net, err));
	for (int i = 0; i < 4; i++) {
		stats.size = bad.size = wrong[i];
		assert_int_equal(tmesh_net_stats(net, &stats), -EINVAL);
		assert_int_equal(tmesh_net_open(*state, &bad, &none, NULL), -EINVAL);
	}
	assert_null(none);
	tmesh_net_unref(net);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_fetch),
		TEST(test_wanted),
		TEST(test_wrong_sizes),
	};

	return cmocka_run_group_tests_name("grown net", tests, NULL, NULL);
}
