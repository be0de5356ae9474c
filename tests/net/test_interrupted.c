// SPDX-License-Identifier: MIT
/* Fetches of libtmesh-net that are interrupted: by silence, by strangers, by the end of a key, of
 * memory or of descriptors. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdatomic.h>

#include "home.h"

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

/* A listener that sends nothing: the fetch's own deadline ends it, and a wish to give up before. */
static int give_up(void *data, uint64_t bytes)
{
	return ++*(int *)data > 3;
}

UNIT(test_silent)
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

UNIT(test_revoke_in_the_middle)
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

UNIT(test_cancel_in_the_middle)
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

/* Strangers' bytes on the port of a key do no harm: the key goes on. */
UNIT(test_garbage)
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
UNIT(test_resume)
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

/* A fetch that runs, and the way to end it. */
struct beside {
	struct home *home;
	struct tmesh_net_source source;
	atomic_bool end;
	int rc;
};

static int end_beside(void *data, uint64_t bytes)
{
	struct beside *beside = data;

	return bytes && atomic_load(&beside->end);
}

static void *fetch_beside(void *data)
{
	struct beside *beside = data;
	struct tmesh_net_fetch_opts opts = {
		.size = sizeof(opts), .timeout_ns = -1, .progress = end_beside, .data = data};
	struct tmesh_error error;
	struct tmesh_region *got = NULL;

	beside->rc = tmesh_net_fetch(beside->home->net, &beside->source, &opts, &got, &error);
	tmesh_region_unref(got);
	return NULL;
}

/* The end of a fetch breaks no connection of another one from the same address. The wire holds the
 * other one before it has a piece: without any it could not go on by a new connection. */
UNIT(test_end_beside)
{
	struct wire wire = {.hold_after = 65536};
	struct beside first = {0}, second = {.end = true};
	pthread_t threads[2];
	struct home home;

	begin_with(&home, opts_of("127.0.0.1"), 64 << 20);
	wire_up(&wire, &home);
	first.home = second.home = &home;
	first.source = second.source = source_of(&home);
	first.source.address = second.source.address = wire.address;
	assert_int_equal(pthread_create(&threads[0], NULL, fetch_beside, &first), 0);
	while (!atomic_load(&wire.held))
		usleep(1000);
	assert_int_equal(pthread_create(&threads[1], NULL, fetch_beside, &second), 0);
	assert_int_equal(pthread_join(threads[1], NULL), 0);
	assert_int_equal(second.rc, -ECANCELED);
	atomic_store(&wire.let, true);
	assert_int_equal(pthread_join(threads[0], NULL), 0);
	assert_int_equal(first.rc, 0);
	wire_down(&wire);
	finish(&home);
}

/* A byte that was changed on its way: no region. */
UNIT(test_forged)
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

UNIT(test_max_fetches)
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

UNIT(test_memory_ends)
{
	huge_says = "always within_size [advise] never deny force";
	check_memory_ends(64 << 20, no_more_pages, -ENOMEM, "taking the region's pages");
	huge_says = "always within_size advise never [deny] force";
	check_memory_ends(64 << 20, no_larger_file, -EFBIG, "writing to the region");
	huge_says = NULL;
}

UNIT(test_descriptors)
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

UNIT_MAIN("net interrupted", NULL, NULL)
