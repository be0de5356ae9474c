// SPDX-License-Identifier: MIT
/*
 * Cold hand-over: how long until another process has read the first byte of a new region of
 * 1 MiB. The clock starts before the producer creates it and stops after the consumer has
 * read; both ends were asleep before. Beside each way stands the shortest code by hand:
 *
 *   socket  the descriptor follows on a connected Unix socket. By hand once as short as can be,
 *           which lets the consumer write, and once with tmesh's promises for reading. Those are
 *           no access for other users, a size that stays, a descriptor that only reads, and a
 *           look at the seals. Ours is timed with the right to write and without it.
 *   token   the two have never met: the consumer gets a name on the connected socket, connects
 *           to that name, shows a secret and gets the descriptor
 *   known   the token's producer is known; only opening is timed, and its floor is mmap and
 *           the first byte with the descriptor in hand
 */
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/un.h>

#define TOPIC "handover"
#define BYTES MIB

struct secret {
	char bytes[16];
};

/* The consumer's clock, seen by the producer. */
static struct {
	uint64_t told; /* it had its message and was about to open */
	uint64_t read; /* it had read the first byte */
} * clock_page;

static struct tmesh_ctx *ctx; /* one on either side of the fork */
static struct tmesh_error err;
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static socklen_t address_bytes;
static const struct secret secret = {"not very secret"};
static _Atomic int offered_fd;

/* Producers: create, write @value, hand over, then wait for the consumer before letting go. */

static void await_consumer(int socket)
{
	char done;

	recv_message(socket, &done, sizeof(done));
}

#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static void send_read_only(int socket, int fd)
{
	char path[32];
	int reader;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	reader = (int)need(open(path, O_RDONLY | O_CLOEXEC), path);
	send_fd(socket, reader);
	close(reader);
}

enum {
	PLAIN,
	PROMISING,
	ANNOUNCED
};

static void produce_by_hand(int socket, uint8_t value, int how)
{
	int fd = (int)need(memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create");
	uint8_t *memory;

	need(ftruncate(fd, BYTES), "ftruncate");
	if (how == PROMISING) {
		need(fchmod(fd, 0600), "fchmod");
		need(fcntl(fd, F_ADD_SEALS, SIZE_SEALS), "F_ADD_SEALS");
	}
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		die("mmap failed");
	memory[0] = value;
	switch (how) {
	case PLAIN:
		send_fd(socket, fd);
		break;
	case PROMISING:
		send_read_only(socket, fd);
		break;
	case ANNOUNCED:
		offered_fd = fd;
		send_message(socket, &secret, sizeof(secret));
		break;
	}
	await_consumer(socket);
	munmap(memory, BYTES);
	close(fd);
}

static void produce_fd(int socket, uint8_t value)
{
	produce_by_hand(socket, value, PLAIN);
}

static void produce_promises(int socket, uint8_t value)
{
	produce_by_hand(socket, value, PROMISING);
}

static void produce_secret(int socket, uint8_t value)
{
	produce_by_hand(socket, value, ANNOUNCED);
}

/* @rights: the consumer's rights to the descriptor on the socket; 0: it gets a token for reading
 * instead. */
static void produce_region(int socket, uint8_t value, uint32_t rights)
{
	struct tmesh_region *region;
	void *memory;

	must(tmesh_region_create(ctx, BYTES, NULL, &region, &err), &err);
	must(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &memory, &err), &err);
	*(uint8_t *)memory = value;
	if (!rights) {
		char token[TMESH_TOKEN_SIZE];

		must(tmesh_region_token(region, TMESH_READ, token, &err), &err);
		send_message(socket, token, sizeof(token));
	} else {
		must(tmesh_region_send(region, socket, rights, &err), &err);
	}
	await_consumer(socket);
	tmesh_region_unmap(region, TMESH_READ | TMESH_WRITE);
	tmesh_region_unref(region);
}

static void produce_sent(int socket, uint8_t value)
{
	produce_region(socket, value, TMESH_READ);
}

static void produce_sent_writable(int socket, uint8_t value)
{
	produce_region(socket, value, TMESH_READ | TMESH_WRITE);
}

static void produce_token(int socket, uint8_t value)
{
	produce_region(socket, value, 0);
}

/* By hand, a thread of the producer answers each client that connects and shows the secret. */
static void *answer(void *listener)
{
	for (;;) {
		int peer = (int)need(accept4(*(int *)listener, NULL, NULL, SOCK_CLOEXEC), "accept");
		struct secret shown;

		if (recv_message(peer, &shown, sizeof(shown)) &&
		    memcmp(&shown, &secret, sizeof(shown)) == 0)
			send_fd(peer, offered_fd);
		close(peer);
	}
	return NULL;
}

/* Consumers: report that they are ready, wait for the message, open, read @value. */

static void ready(int socket)
{
	send_message(socket, "", 1);
}

static void read_fd(int fd, uint8_t value)
{
	void *memory = map_and_read(fd, BYTES, value);

	clock_page->read = now_ns();
	munmap(memory, BYTES);
	close(fd);
}

static void consume_fd(int socket, uint8_t value)
{
	int fd;

	ready(socket);
	fd = recv_fd(socket);
	clock_page->told = now_ns();
	read_fd(fd, value);
}

static void consume_promises(int socket, uint8_t value)
{
	struct stat status;
	int fd;

	ready(socket);
	fd = recv_fd(socket);
	clock_page->told = now_ns();
	if ((need(fcntl(fd, F_GET_SEALS), "F_GET_SEALS") & SIZE_SEALS) != SIZE_SEALS ||
	    need(fstat(fd, &status), "fstat") || status.st_size < (off_t)BYTES)
		die("a promise is not kept");
	read_fd(fd, value);
}

static void consume_secret(int socket, uint8_t value)
{
	struct secret told;
	int peer;

	ready(socket);
	recv_message(socket, &told, sizeof(told));
	clock_page->told = now_ns();
	peer = unix_socket();
	need(connect(peer, (struct sockaddr *)&address, address_bytes), "connect");
	send_message(peer, &told, sizeof(told));
	read_fd(recv_fd(peer), value);
	close(peer);
}

static void read_region(struct tmesh_region *region, uint8_t value)
{
	void *memory;

	must(tmesh_region_map(region, TMESH_READ, &memory, &err), &err);
	if (*(volatile uint8_t *)memory != value)
		die("the region holds something else");
	clock_page->read = now_ns();
	tmesh_region_unmap(region, TMESH_READ);
	tmesh_region_unref(region);
}

static void consume_sent(int socket, uint8_t value)
{
	struct tmesh_region *region;

	ready(socket);
	must(tmesh_region_recv(ctx, socket, &region, &err), &err);
	clock_page->told = now_ns();
	read_region(region, value);
}

static void open_token(struct tmesh_ctx *opener, int socket, uint8_t value)
{
	struct tmesh_region *region;
	char token[TMESH_TOKEN_SIZE];

	ready(socket);
	recv_message(socket, token, sizeof(token));
	clock_page->told = now_ns();
	must(tmesh_region_open(opener, token, TMESH_READ, &region, &err), &err);
	read_region(region, value);
}

static void consume_token_of_known(int socket, uint8_t value)
{
	open_token(ctx, socket, value);
}

/* A new context knows no producer. */
static void consume_token_of_stranger(int socket, uint8_t value)
{
	struct tmesh_ctx *stranger = context(0);

	open_token(stranger, socket, value);
	tmesh_ctx_unref(stranger);
}

static struct way {
	void (*produce)(int socket, uint8_t value);
	void (*consume)(int socket, uint8_t value);
	_Bool open_only; /* count from the message to the consumer */
	struct series series;
} ways[] = {
	{produce_fd, consume_fd, 0, {.name = "socket-by-hand"}},
	{produce_promises, consume_promises, 0, {.name = "socket-by-hand-promising"}},
	{produce_sent, consume_sent, 0, {.name = "socket-tmesh"}},
	{produce_sent_writable, consume_sent, 0, {.name = "socket-tmesh-writable"}},
	{produce_secret, consume_secret, 0, {.name = "token-by-hand"}},
	{produce_token, consume_token_of_stranger, 0, {.name = "token-tmesh"}},
	{produce_fd, consume_fd, 1, {.name = "open-floor"}},
	{produce_token, consume_token_of_known, 1, {.name = "open-known"}},
};

#define WAYS (sizeof(ways) / sizeof(ways[0]))

static void consumer(int socket)
{
	uint8_t turn[2]; /* which way, what value */

	ctx = context(0);
	while (recv_message(socket, turn, sizeof(turn))) {
		ways[turn[0]].consume(socket, turn[1]);
		send_message(socket, "", 1);
	}
	tmesh_ctx_unref(ctx);
}

/* The library's server thread, like the one by hand, runs where the producer runs. */
static void start_answering(void)
{
	static int listener;
	pthread_t thread;

	listener = unix_socket();
	/* Without a name given, the kernel makes up an abstract one. */
	need(bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)), "bind");
	need(listen(listener, 8), "listen");
	address_bytes = sizeof(address);
	need(getsockname(listener, (struct sockaddr *)&address, &address_bytes), "getsockname");
	if (pthread_create(&thread, NULL, answer, &listener))
		die("cannot start a thread");
}

void bench_handover(int rounds)
{
	struct process other;

	clock_page = mmap(NULL, sizeof(*clock_page), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pin_to(CPU_PRODUCER);
	start_answering();
	other = process_start(consumer);
	ctx = context(0);

	for (int round = -warm_up(rounds); round < rounds; round++) {
		for (uint8_t i = 0; i < WAYS; i++) {
			uint8_t turn[2] = {i, (uint8_t)(1 + (round & 63))};
			uint64_t start;

			send_message(other.socket, turn, sizeof(turn));
			await_consumer(other.socket); /* ready */
			settle();
			start = now_ns();
			ways[i].produce(other.socket, turn[1]);
			if (ways[i].open_only)
				start = clock_page->told;
			if (round >= 0)
				series_add(&ways[i].series, clock_page->read - start);
		}
	}
	process_end(&other);
	tmesh_ctx_unref(ctx);

	for (size_t i = 0; i < WAYS; i++)
		series_print(TOPIC, &ways[i].series);
}
