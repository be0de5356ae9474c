// SPDX-License-Identifier: MIT
/* libtmesh-net: a home and a reader in one process, by libfabric's tcp on the loopback. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "unit.h"

#include <tmesh/net.h>

#define BYTES 5000003 /* more than a piece, and no whole number of them */

/* The answer of the kernel about huge pages of shared memory; NULL: what it says. */
static const char *huge_says;
/* Memory for pages that are taken ahead of a write has ended. */
static atomic_bool no_pages;

int open(const char *path, int flags, ...)
{
	if (huge_says && !strcmp(path, "/sys/kernel/mm/transparent_hugepage/shmem_enabled")) {
		int fd = memfd_create("says", MFD_CLOEXEC);

		assert_true(pwrite(fd, huge_says, strlen(huge_says), 0) > 0);
		return fd;
	}
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0600);
}

int madvise(void *addr, size_t bytes, int advice)
{
	if (advice == MADV_POPULATE_WRITE && atomic_load(&no_pages)) {
		errno = ENOMEM;
		return -1;
	}
	return (int)syscall(SYS_madvise, addr, bytes, advice);
}

struct home {
	struct tmesh_ctx *ctx;
	struct tmesh_net *net;
	struct tmesh_region *region;
	struct tmesh_net_offer_info info;
	char key[TMESH_NET_KEY_SIZE], address[TMESH_NET_ADDRESS_SIZE];
};

static struct tmesh_net_opts opts_of(const char *address)
{
	return (struct tmesh_net_opts){.size = sizeof(struct tmesh_net_opts),
				       .address = address,
				       .provider = getenv("TMESH_TEST_PROVIDER")};
}

static struct tmesh_region *make(struct tmesh_ctx *ctx, uint64_t bytes, bool seal)
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

static void begin_with(struct home *home, struct tmesh_net_opts opts, uint64_t bytes)
{
	*home = (struct home){.info.size = sizeof(home->info)};
	assert_ok(tmesh_ctx_open(NULL, &home->ctx, err));
	assert_ok(tmesh_net_open(home->ctx, &opts, &home->net, err));
	home->region = make(home->ctx, bytes, true);
	assert_ok(tmesh_net_offer(home->net, home->region, &home->info, err));
	assert_ok(
		tmesh_net_grant(home->net, home->info.id, "reader", home->key, home->address, err));
}

static void begin(struct home *home)
{
	begin_with(home, opts_of("127.0.0.1"), BYTES);
}

/* The home's address with another port. */
static void address_at(const struct home *home, uint16_t port, char address[TMESH_NET_ADDRESS_SIZE])
{
	const char *colon = strrchr(home->address, ':');

	snprintf(address, TMESH_NET_ADDRESS_SIZE, "%.*s:%u%s", (int)(colon - home->address),
		 home->address, port, colon + 1 + strspn(colon + 1, "0123456789"));
}

static struct tmesh_net_source source_of(const struct home *home)
{
	return (struct tmesh_net_source){
		.size = sizeof(struct tmesh_net_source),
		.address = home->address,
		.key = home->key,
		.checksum = home->info.checksum,
		.bytes = home->info.bytes,
	};
}

static struct tmesh_net_stats stats_of(const struct home *home)
{
	struct tmesh_net_stats stats = {.size = sizeof(stats)};

	assert_int_equal(tmesh_net_stats(home->net, &stats), 0);
	return stats;
}

static uint64_t live(const struct home *home)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	assert_int_equal(tmesh_stats(home->ctx, &stats), 0);
	return stats.regions_live;
}

static void finish(struct home *home)
{
	tmesh_net_unref(home->net);
	tmesh_region_unref(home->region);
	assert_int_equal(live(home), 0);
	tmesh_ctx_unref(home->ctx);
}

static void same(struct tmesh_region *one, struct tmesh_region *other)
{
	void *a, *b;

	assert_int_equal(tmesh_region_bytes(one), tmesh_region_bytes(other));
	assert_ok(tmesh_region_map(one, TMESH_READ, &a, err));
	assert_ok(tmesh_region_map(other, TMESH_READ, &b, err));
	assert_memory_equal(a, b, tmesh_region_bytes(one));
	tmesh_region_unmap(one, TMESH_READ);
	tmesh_region_unmap(other, TMESH_READ);
}

static void test_fetch(void **state)
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

static void test_opts(void **state)
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

static void test_unsealed(void **state)
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
static void test_ended(void **state)
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

static void test_checksum(void **state)
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

static void test_hostile_source(void **state)
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
static void test_own_address(void **state)
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

static void test_limits(void **state)
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
static void test_small(void **state)
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

/* A listener that sends nothing: the fetch's own deadline ends it, and a wish to give up before. */
static int give_up(void *data, uint64_t bytes)
{
	return ++*(int *)data > 3;
}

static void test_silent(void **state)
{
	struct sockaddr_in place = {.sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct tmesh_net_fetch_opts opts = {.size = sizeof(opts), .timeout_ns = 300000000};
	char silent[TMESH_NET_ADDRESS_SIZE];
	socklen_t bytes = sizeof(place);
	struct tmesh_net_source source;
	struct tmesh_region *got;
	struct home home;
	int fd = socket(AF_INET, SOCK_STREAM, 0), asked = 0;

	assert_int_equal(bind(fd, (struct sockaddr *)&place, sizeof(place)), 0);
	assert_int_equal(listen(fd, 5), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&place, &bytes), 0);
	begin(&home);
	address_at(&home, ntohs(place.sin_port), silent);
	source = source_of(&home);
	source.address = silent;
	assert_refused(tmesh_net_fetch(home.net, &source, &opts, &got, err), -ETIMEDOUT, "300 ms");
	opts.timeout_ns = 0;
	opts.progress = give_up;
	opts.data = &asked;
	assert_refused(tmesh_net_fetch(home.net, &source, &opts, &got, err), -ECANCELED,
		       "given up");
	close(fd);
	finish(&home);
}

/* The key ends while its bytes are on their way: an error, and the key can be ended at once. */
static int revoke_key(void *data, uint64_t bytes)
{
	struct home *home = data;

	if (bytes && home->key[0]) {
		assert_ok(tmesh_net_revoke(home->net, home->key, err));
		home->key[0] = 0;
	}
	return 0;
}

static void test_revoke_in_the_middle(void **state)
{
	struct tmesh_net_fetch_opts opts = {.size = sizeof(opts), .progress = revoke_key};
	char key[TMESH_NET_KEY_SIZE];
	struct tmesh_net_source source;
	struct tmesh_region *got;
	struct home home;
	uint64_t before;

	begin_with(&home, opts_of("127.0.0.1"), 96 << 20);
	before = live(&home);
	source = source_of(&home);
	strcpy(key, home.key);
	source.key = key;
	opts.data = &home;
	assert_refused(tmesh_net_fetch(home.net, &source, &opts, &got, err), -EPIPE, "had come");
	assert_int_equal(live(&home), before);
	assert_int_equal(stats_of(&home).resumed, 1);
	finish(&home);
}

static int give_up_later(void *data, uint64_t bytes)
{
	return bytes != 0;
}

static void test_cancel_in_the_middle(void **state)
{
	struct tmesh_net_fetch_opts opts = {.size = sizeof(opts), .progress = give_up_later};
	struct tmesh_net_source source;
	struct tmesh_region *got;
	struct home home;
	uint64_t before;

	begin_with(&home, opts_of("127.0.0.1"), 96 << 20);
	before = live(&home);
	source = source_of(&home);
	for (int round = 0; round < 10; round++)
		assert_refused(tmesh_net_fetch(home.net, &source, &opts, &got, err), -ECANCELED,
			       "given up");
	assert_int_equal(live(&home), before);
	assert_ok(tmesh_net_fetch(home.net, &source, NULL, &got, err));
	tmesh_region_unref(got);
	finish(&home);
}

/* Strangers' bytes on the port of a key harm nobody: the key goes on. */
static void test_garbage(void **state)
{
	struct sockaddr_in place = {.sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct tmesh_net_source source;
	struct tmesh_region *got;
	struct home home;
	char bytes[4096];

	begin(&home);
	srand(1);
	place.sin_port = htons(atoi(strrchr(home.address, ':') + 1));
	for (int round = 0; round < 50; round++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = round % 3 ? rand() : round;
		assert_int_equal(connect(fd, (struct sockaddr *)&place, sizeof(place)), 0);
		if (round % 5)
			(void)!send(fd, bytes, 1 + rand() % sizeof(bytes), MSG_NOSIGNAL);
		close(fd);
	}
	source = source_of(&home);
	assert_ok(tmesh_net_fetch(home.net, &source, NULL, &got, err));
	same(home.region, got);
	tmesh_region_unref(got);
	finish(&home);
}

#include "wire.h"

/* A fetch whose connection breaks goes on from where it was: the arrived bytes are not sent again.
 */
static void test_resume(void **state)
{
	const uint64_t bytes = 64 << 20, broken_at = 48 << 20;
	struct wire wire = {.break_after = broken_at};
	struct tmesh_net_source source;
	struct tmesh_region *got;
	struct home home;

	begin_with(&home, opts_of("127.0.0.1"), bytes);
	wire_up(&wire, &home);
	source = source_of(&home);
	source.address = wire.address;
	assert_ok(tmesh_net_fetch(home.net, &source, NULL, &got, err));
	same(home.region, got);
	tmesh_region_unref(got);
	assert_int_equal(stats_of(&home).resumed, 1);
	assert_int_equal(stats_of(&home).fetched, 1);
	assert_int_equal(stats_of(&home).bytes_fetched, bytes);
	wire_down(&wire);
	/* From the beginning it would be these two; the bytes under way are sent again. */
	assert_true(atomic_load(&wire.sent) < bytes + broken_at - (16 << 20));
	assert_true(atomic_load(&wire.sent) >= bytes);
	finish(&home);
}

/* A byte that was changed on its way: no region. */
static void test_forged(void **state)
{
	struct wire wire = {.forge_at = 5 << 20};
	struct tmesh_net_source source;
	struct tmesh_region *got = NULL;
	struct home home;
	uint64_t before;

	begin_with(&home, opts_of("127.0.0.1"), 8 << 20);
	before = live(&home);
	wire_up(&wire, &home);
	source = source_of(&home);
	source.address = wire.address;
	assert_refused(tmesh_net_fetch(home.net, &source, NULL, &got, err), -EPROTO, "damaged");
	assert_null(got);
	assert_int_equal(live(&home), before);
	wire_down(&wire);
	finish(&home);
}

/* The fetches that run at a time, and of them those from one address: all are in the middle. */
struct running {
	struct home *home;
	struct tmesh_net_source source;
	atomic_bool *begun, *go;
	int rc;
};

static int hold(void *data, uint64_t bytes)
{
	struct running *running = data;

	atomic_store(running->begun, true);
	return atomic_load(running->go);
}

static void *run(void *data)
{
	struct running *running = data;
	struct tmesh_net_fetch_opts opts = {.size = sizeof(opts), .progress = hold, .data = data};
	struct tmesh_error error;
	struct tmesh_region *got;

	opts.timeout_ns = UINT64_C(60000000000);
	running->rc = tmesh_net_fetch(running->home->net, &running->source, &opts, &got, &error);
	return NULL;
}

static void check_fetches(struct tmesh_net_opts opts, const char *words)
{
	struct sockaddr_in place = {.sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	atomic_bool begun[2] = {false, false}, go = false;
	struct running running[2];
	char silent[TMESH_NET_ADDRESS_SIZE];
	socklen_t bytes = sizeof(place);
	struct tmesh_region *got;
	pthread_t threads[2];
	struct home home;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&place, sizeof(place)), 0);
	assert_int_equal(listen(fd, 5), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&place, &bytes), 0);
	begin_with(&home, opts, 1000);
	address_at(&home, ntohs(place.sin_port), silent);
	for (int i = 0; i < 2; i++) {
		running[i] = (struct running){&home, source_of(&home), &begun[i], &go, 0};
		running[i].source.address = silent;
		assert_int_equal(pthread_create(&threads[i], NULL, run, &running[i]), 0);
	}
	while (!atomic_load(&begun[0]) || !atomic_load(&begun[1]))
		usleep(1000);
	assert_int_equal(stats_of(&home).fetches, 2);
	assert_refused(tmesh_net_fetch(home.net, &running[0].source, NULL, &got, err), -EDQUOT,
		       words);
	assert_int_equal(stats_of(&home).fetches, 2);
	if (opts.max_fetches != 2) {
		/* Another address has room. */
		struct tmesh_net_source source = source_of(&home);

		assert_ok(tmesh_net_fetch(home.net, &source, NULL, &got, err));
		tmesh_region_unref(got);
	}
	atomic_store(&go, true);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(running[i].rc, -ECANCELED);
	}
	close(fd);
	finish(&home);
}

static void test_max_fetches(void **state)
{
	struct tmesh_net_opts opts = opts_of("127.0.0.1");

	opts.max_fetches = 2;
	check_fetches(opts, "2 fetches run already");
	opts = opts_of("127.0.0.1");
	opts.max_fetches_per_address = 2;
	check_fetches(opts, "2 fetches from");
}

/* Memory that is not to be had in the middle is an error, and nothing is left. */
static int no_larger_file(void *data, uint64_t bytes)
{
	if (bytes >= 4 << 20)
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, RLIM_INFINITY}),
				 0);
	return 0;
}

static int no_more_pages(void *data, uint64_t bytes)
{
	if (bytes >= 4 << 20)
		atomic_store(&no_pages, true);
	return 0;
}

static void check_memory_ends(uint64_t bytes, int (*ends)(void *data, uint64_t bytes), int code,
			      const char *says)
{
	struct tmesh_net_fetch_opts opts = {.size = sizeof(opts), .progress = ends};
	struct tmesh_net_source source;
	struct tmesh_region *got;
	struct rlimit before;
	struct home home;
	uint64_t regions;

	begin_with(&home, opts_of("127.0.0.1"), bytes);
	if (tmesh_ctx_backend(home.ctx) != TMESH_BACKEND_MEMFD) {
		finish(&home);
		return;
	}
	regions = live(&home);
	source = source_of(&home);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	signal(SIGXFSZ, SIG_IGN);
	assert_refused(tmesh_net_fetch(home.net, &source, &opts, &got, err), code, says);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	atomic_store(&no_pages, false);
	assert_int_equal(live(&home), regions);
	assert_ok(tmesh_net_fetch(home.net, &source, NULL, &got, err));
	tmesh_region_unref(got);
	finish(&home);
}

static void test_memory_ends(void **state)
{
	huge_says = "always within_size [advise] never deny force";
	check_memory_ends(64 << 20, no_more_pages, -ENOMEM, "taking the region's pages");
	huge_says = "always within_size advise never [deny] force";
	check_memory_ends(64 << 20, no_larger_file, -EFBIG, "writing to the region");
	huge_says = NULL;
}

static void test_descriptors(void **state)
{
	unsigned int before = 0;

	for (int round = 0; round < 6; round++) {
		struct tmesh_net_source source;
		struct tmesh_region *got;
		struct home home;

		begin(&home);
		source = source_of(&home);
		assert_ok(tmesh_net_fetch(home.net, &source, NULL, &got, err));
		tmesh_region_unref(got);
		finish(&home);
		/* libfabric opens some once. */
		if (round == 1)
			before = unit_open_fds();
	}
	assert_int_equal(unit_open_fds(), before);
}

/* One that takes no connection, and whose queue is full, does not keep a caller beyond its timeout.
 */
static void test_full_queue(void **state)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fetch),
		cmocka_unit_test(test_opts),
		cmocka_unit_test(test_unsealed),
		cmocka_unit_test(test_ended),
		cmocka_unit_test(test_checksum),
		cmocka_unit_test(test_hostile_source),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_own_address),
		cmocka_unit_test(test_small),
		cmocka_unit_test(test_silent),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_revoke_in_the_middle),
		cmocka_unit_test(test_cancel_in_the_middle),
		cmocka_unit_test(test_max_fetches),
		cmocka_unit_test(test_memory_ends),
		cmocka_unit_test(test_resume),
		cmocka_unit_test(test_forged),
		cmocka_unit_test(test_descriptors),
		cmocka_unit_test(test_full_queue),
	};

	return cmocka_run_group_tests_name("net", tests, NULL, NULL);
}
