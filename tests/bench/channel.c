// SPDX-License-Identifier: MIT
/*
 * Channels, one way: half of a round trip between two processes on two CPUs, through a channel each
 * way. The rows name the exceptions:
 *
 *   line, line-2     the floor: a cache line that both ends write in turn; one line for each way
 *   tensor, -1GiB    a tensor of 1 MiB and of 1 GiB, shared long ago
 *   bytes            a message of 56 bytes
 *   socket           the same bytes by a Unix SEQPACKET socket, to a sleeping reader
 *   futex            a word, and a wake of its sleeping reader: the floor of the next
 *   sleeping         a channel whose ends never look busily
 *   ready            receiving a tensor that is there, in one process
 *   single, batch    a message of a stream, sent one by one and 32 at once
 */
#include "harness.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define TOPIC "channel"
#define TRIPS 1000 /* of a sample */
#define SLEEPY_TRIPS 10
#define GAP_NS 300000 /* in which the other end falls asleep */
#define STREAM 8192
#define BATCH 32
#define READY 60 /* less than a channel holds */
#define GIB (1ull << 30)

static struct tmesh_error err;
static struct tmesh_ctx *ctx; /* one on either side of the fork */

static struct shared {
	_Alignas(128) atomic_uint turn;
	_Alignas(128) atomic_uint there;
	_Alignas(128) atomic_uint back;
	_Alignas(128) _Atomic uint64_t sent; /* when */
	char tokens[5][TMESH_TOKEN_SIZE];
	_Bool no_large; /* tensor at one of the ends, or both */
} * shared;

/* Each end's handles: hot ones look busily, sleepy ones never do. */
static struct tmesh_channel *hot_out, *hot_in, *sleepy_out, *sleepy_in;
static struct tmesh_tensor *small, *large;
static int link_socket;

/* A trip and its way back, as the nearer end sees it (@near) and the farther. */

static void trip_line(_Bool near, uint32_t trip)
{
	uint32_t mine = 2 * trip + !near, theirs = near ? mine + 1 : mine - 1;

	if (near)
		atomic_store_explicit(&shared->turn, mine, memory_order_release);
	while (atomic_load_explicit(&shared->turn, memory_order_acquire) != theirs)
		;
	if (!near)
		atomic_store_explicit(&shared->turn, mine, memory_order_release);
}

static void trip_two_lines(_Bool near, uint32_t trip)
{
	atomic_uint *out = near ? &shared->there : &shared->back;
	atomic_uint *in = near ? &shared->back : &shared->there;

	if (near)
		atomic_store_explicit(out, trip, memory_order_release);
	while (atomic_load_explicit(in, memory_order_acquire) != trip)
		;
	if (!near)
		atomic_store_explicit(out, trip, memory_order_release);
}

/* A message to a sleeping end, which counts the time. */

static uint64_t took;

static void let_sleep(void)
{
	uint64_t now = now_ns(), end = now + GAP_NS;

	while (now < end)
		now = now_ns();
	shared->sent = now_ns();
}

static void woken(void)
{
	took += now_ns() - shared->sent;
}

static void post(atomic_uint *word, uint32_t value)
{
	atomic_store(word, value);
	need(syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0), "futex");
}

static void await(atomic_uint *word, uint32_t value)
{
	uint32_t seen;

	while ((seen = atomic_load(word)) != value)
		syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void trip_futex(_Bool near, uint32_t trip)
{
	if (near) {
		let_sleep();
		post(&shared->there, trip);
	}
	await(near ? &shared->back : &shared->there, trip);
	woken();
	if (!near) {
		let_sleep();
		post(&shared->back, trip);
	}
}

static void trip_socket(_Bool near, uint32_t trip)
{
	char bytes[TMESH_MESSAGE_BYTES] = {0};

	if (near) {
		let_sleep();
		send_message(link_socket, bytes, sizeof(bytes));
	}
	recv_message(link_socket, bytes, sizeof(bytes));
	woken();
	if (!near) {
		let_sleep();
		send_message(link_socket, bytes, sizeof(bytes));
	}
}

static void send_one(struct tmesh_channel *out, struct tmesh_tensor *tensor)
{
	struct tmesh_message message = {.tensor = tensor,
					.bytes = tensor ? 0 : TMESH_MESSAGE_BYTES};

	must(tmesh_channel_send(out, &message, -1, &err), &err);
}

static void recv_one(struct tmesh_channel *in)
{
	struct tmesh_message message;

	must(tmesh_channel_recv(in, &message, -1, &err), &err);
	tmesh_tensor_unref(message.tensor);
}

static void trip_channel(_Bool near, struct tmesh_channel *out, struct tmesh_channel *in,
			 struct tmesh_tensor *tensor)
{
	if (near)
		send_one(out, tensor);
	recv_one(in);
	if (!near)
		send_one(out, tensor);
}

static void trip_small(_Bool near, uint32_t trip)
{
	trip_channel(near, hot_out, hot_in, small);
}

static void trip_large(_Bool near, uint32_t trip)
{
	trip_channel(near, hot_out, hot_in, large);
}

static void trip_bytes(_Bool near, uint32_t trip)
{
	trip_channel(near, hot_out, hot_in, NULL);
}

static void trip_sleepy(_Bool near, uint32_t trip)
{
	if (near) {
		let_sleep();
		send_one(sleepy_out, small);
	}
	recv_one(sleepy_in);
	woken();
	if (!near) {
		let_sleep();
		send_one(sleepy_out, small);
	}
}

static struct way {
	void (*trip)(_Bool near, uint32_t trip);
	uint32_t trips;
	struct series series;
} ways[] = {
	{trip_line, TRIPS, {.name = "line"}},
	{trip_small, TRIPS, {.name = "tensor"}},
	{trip_large, TRIPS, {.name = "tensor-1GiB"}},
	{trip_bytes, TRIPS, {.name = "bytes"}},
	{trip_two_lines, TRIPS, {.name = "line-2"}},
	{trip_socket, SLEEPY_TRIPS, {.name = "socket"}},
	{trip_futex, SLEEPY_TRIPS, {.name = "futex"}},
	{trip_sleepy, SLEEPY_TRIPS, {.name = "sleeping"}},
};

#define WAYS (sizeof(ways) / sizeof(ways[0]))
#define RESULTS (WAYS + 2)

static struct series streams[] = {{.name = "single"}, {.name = "batch"}};
static struct series ready_ones = {.name = "ready"};

/* Streams: the nearer end sends, the farther receives all and then reports it. */

static void stream(_Bool near, uint32_t batch)
{
	struct tmesh_message messages[BATCH] = {0};

	for (uint32_t i = 0; near && i < batch; i++)
		messages[i].tensor = small;
	for (uint32_t done = 0; done < STREAM;) {
		uint32_t most = STREAM - done < batch ? STREAM - done : batch;
		int count = near ? tmesh_channel_send_batch(hot_out, messages, most, -1, &err)
				 : tmesh_channel_recv_batch(hot_in, messages, most, -1, &err);

		must(count, &err);
		for (int i = 0; !near && i < count; i++)
			tmesh_tensor_unref(messages[i].tensor);
		done += (uint32_t)count;
	}
	if (near)
		recv_one(hot_in);
	else
		send_one(hot_out, NULL);
}

#define SPIN_NS 20000

/* A receiver keeps both tensors' regions open. */
static struct tmesh_channel_opts opts(uint64_t spin_ns)
{
	return (struct tmesh_channel_opts){
		.size = sizeof(struct tmesh_channel_opts),
		.spin_ns = spin_ns,
		.max_bytes = 2 * GIB,
	};
}

/* Make a channel, write its token for the peer, and set how its ends wait. */
static struct tmesh_channel *make(enum tmesh_channel_role role, int token, uint64_t spin_ns)
{
	struct tmesh_channel_opts how = opts(spin_ns);
	struct tmesh_channel *channel;

	must(tmesh_channel_create(ctx, role, &how, &channel, &err), &err);
	must(tmesh_channel_token(channel, shared->tokens[token], &err), &err);
	return channel;
}

static struct tmesh_channel *join(enum tmesh_channel_role role, int token, uint64_t spin_ns)
{
	struct tmesh_channel_opts how = opts(spin_ns);
	struct tmesh_channel *channel;

	must(tmesh_channel_open(ctx, shared->tokens[token], role, &how, &channel, &err), &err);
	return channel;
}

/* Both ends take every step in the same order; the socket only starts the next one. */
static void run(_Bool near, uint64_t *ns)
{
	static uint32_t trip = 1;

	for (size_t i = 0; i < WAYS; i++) {
		uint64_t start;

		if (ways[i].trip == trip_large && shared->no_large)
			continue;
		/* Both are awake and ready. */
		trip_two_lines(near, ++trip);
		took = 0;
		start = now_ns();
		for (uint32_t n = 0; n < ways[i].trips; n++)
			ways[i].trip(near, ++trip);
		ns[i] = took ? took / ways[i].trips : (now_ns() - start) / (2 * ways[i].trips);
	}
	for (int batched = 0; batched < 2; batched++) {
		uint64_t start;

		trip_two_lines(near, ++trip);
		start = now_ns();
		stream(near, batched ? BATCH : 1);
		ns[WAYS + (size_t)batched] = (now_ns() - start) / STREAM;
	}
}

static int tensor(uint64_t bytes, struct tmesh_tensor **made)
{
	int64_t shape[] = {(int64_t)bytes};

	return tmesh_tensor_create(ctx, TMESH_UINT8, 1, shape, NULL, made, &err);
}

/* The module commits memory when it is asked for, and may refuse so much. */
static void tensors(void)
{
	must(tensor(MIB, &small), &err);
	if (tensor(GIB, &large))
		shared->no_large = 1;
}

/* In one process: the cost of receiving without another processor's cache. */
static uint64_t receive_ready(struct tmesh_channel *out, struct tmesh_channel *in)
{
	uint64_t start;

	for (int i = 0; i < READY; i++)
		send_one(out, small);
	start = now_ns();
	for (int i = 0; i < READY; i++)
		recv_one(in);
	return (now_ns() - start) / READY;
}

static void far_end(int socket)
{
	uint64_t ignored[RESULTS];
	char turn;

	ctx = context(0);
	link_socket = socket;
	tensors();
	recv_message(socket, &turn, 1);
	hot_in = join(TMESH_CHANNEL_RECV, 0, SPIN_NS);
	hot_out = join(TMESH_CHANNEL_SEND, 1, SPIN_NS);
	sleepy_in = join(TMESH_CHANNEL_RECV, 2, 0);
	sleepy_out = join(TMESH_CHANNEL_SEND, 3, 0);
	send_message(socket, "", 1);
	while (recv_message(socket, &turn, 1))
		run(0, ignored);
}

static void measure(int rounds)
{
	struct tmesh_channel *own_out, *own_in;
	struct process other;
	uint64_t ns[RESULTS];
	char ready;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	pin_to(CPU_PRODUCER);
	other = process_start(far_end);
	link_socket = other.socket;
	ctx = context(0);
	tensors();
	hot_out = make(TMESH_CHANNEL_SEND, 0, SPIN_NS);
	hot_in = make(TMESH_CHANNEL_RECV, 1, SPIN_NS);
	sleepy_out = make(TMESH_CHANNEL_SEND, 2, 0);
	sleepy_in = make(TMESH_CHANNEL_RECV, 3, 0);
	own_out = make(TMESH_CHANNEL_SEND, 4, SPIN_NS);
	own_in = join(TMESH_CHANNEL_RECV, 4, SPIN_NS);
	send_message(link_socket, "", 1);
	recv_message(link_socket, &ready, 1);

	for (int round = -warm_up(rounds); round < rounds; round++) {
		send_message(link_socket, "", 1);
		run(1, ns);
		if (round < 0)
			continue;
		for (size_t i = 0; i < WAYS; i++) {
			if (ways[i].trip == trip_large && shared->no_large)
				ways[i].series.skipped = "no 1 GiB for each of both ends";
			else
				series_add(&ways[i].series, ns[i]);
		}
		for (size_t i = 0; i < 2; i++)
			series_add(&streams[i], ns[WAYS + i]);
		series_add(&ready_ones, receive_ready(own_out, own_in));
	}
	process_end(&other);
	tmesh_channel_unref(own_in);
	tmesh_channel_unref(own_out);
	tmesh_channel_unref(hot_out);
	tmesh_channel_unref(hot_in);
	tmesh_channel_unref(sleepy_out);
	tmesh_channel_unref(sleepy_in);
	tmesh_tensor_unref(small);
	tmesh_tensor_unref(large);
	tmesh_ctx_unref(ctx);
}

static void print_or_skip(struct series *series)
{
	if (cpus() < 2)
		series->skipped = "two ends that look busily need two CPUs";
	series_print(TOPIC, series);
}

void bench_channel(int rounds)
{
	if (cpus() >= 2)
		measure(rounds);
	for (size_t i = 0; i < WAYS; i++)
		print_or_skip(&ways[i].series);
	for (size_t i = 0; i < 2; i++)
		print_or_skip(&streams[i]);
	print_or_skip(&ready_ones);
}
