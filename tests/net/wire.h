/* SPDX-License-Identifier: MIT */
/* Shared with test_net.c: bytes on their way. */
/*
 * A wire between readers and the home: it counts what the home sends, can break once, and can
 * change a byte. It can hold one connection, the first by which the home sends so much.
 */
struct wire {
	int listener;
	uint16_t home_port;
	uint64_t break_after, forge_at; /* bytes from the home; 0: never */
	uint64_t hold_after;		/* bytes from the home; 0: never */
	atomic_bool held, let;
	atomic_ullong sent;
	atomic_uint open; /* connections */
	char address[TMESH_NET_ADDRESS_SIZE];
	pthread_t thread;
};

struct wire_connection {
	struct wire *wire;
	int reader;
	uint64_t sent;
};

/* Pass bytes on. Return their number, or 0 if the connection has ended or is to break. */
static size_t pass(struct wire *wire, int from, int to, bool from_home)
{
	uint8_t data[65536];
	ssize_t got = recv(from, data, sizeof(data), 0);

	if (got <= 0)
		return 0;
	if (from_home) {
		uint64_t before = atomic_fetch_add(&wire->sent, got);

		if (wire->forge_at >= before && wire->forge_at < before + got && wire->forge_at)
			data[wire->forge_at - before] ^= 1;
		if (wire->break_after && before + got > wire->break_after) {
			wire->break_after = 0;
			return 0;
		}
	}
	for (ssize_t done = 0, put; done < got; done += put) {
		put = send(to, data + done, got - done, MSG_NOSIGNAL);
		if (put <= 0)
			return 0;
	}
	return got;
}

static void hold_one(struct wire *wire)
{
	if (atomic_exchange(&wire->held, true))
		return;
	while (!atomic_load(&wire->let))
		usleep(1000);
}

static void *carry_one(void *data)
{
	struct sockaddr_in place = {.sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct wire_connection *connection = data;
	struct wire *wire = connection->wire;
	int home = socket(AF_INET, SOCK_STREAM, 0), reader = connection->reader;
	struct pollfd ends[2] = {{reader, POLLIN, 0}, {home, POLLIN, 0}};
	size_t got = 1;

	place.sin_port = htons(wire->home_port);
	if (connect(home, (struct sockaddr *)&place, sizeof(place)))
		got = 0;
	while (got && poll(ends, 2, -1) > 0) {
		if (ends[0].revents)
			got = pass(wire, reader, home, false);
		if (!got || !ends[1].revents)
			continue;
		got = pass(wire, home, reader, true);
		connection->sent += got;
		if (wire->hold_after && connection->sent >= wire->hold_after)
			hold_one(wire);
	}
	close(home);
	close(reader);
	free(connection);
	atomic_fetch_sub(&wire->open, 1);
	return NULL;
}

/* A fetch also connects to see whether the home listens, so there are many connections. */
static void *carry(void *data)
{
	struct wire *wire = data;
	int reader;

	while ((reader = accept(wire->listener, NULL, NULL)) >= 0) {
		struct wire_connection *connection = calloc(1, sizeof(*connection));
		pthread_t thread;

		connection->wire = wire;
		connection->reader = reader;
		atomic_fetch_add(&wire->open, 1);
		if (pthread_create(&thread, NULL, carry_one, connection))
			abort();
		pthread_detach(thread);
	}
	return NULL;
}

static void wire_up(struct wire *wire, const struct home *home)
{
	struct sockaddr_in place = {.sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(place);

	wire->home_port = atoi(strrchr(home->address, ':') + 1);
	wire->listener = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(wire->listener, (struct sockaddr *)&place, sizeof(place)), 0);
	assert_int_equal(listen(wire->listener, 5), 0);
	assert_int_equal(getsockname(wire->listener, (struct sockaddr *)&place, &bytes), 0);
	address_at(home, ntohs(place.sin_port), wire->address);
	assert_int_equal(pthread_create(&wire->thread, NULL, carry, wire), 0);
}

static void wire_down(struct wire *wire)
{
	shutdown(wire->listener, SHUT_RDWR);
	assert_int_equal(pthread_join(wire->thread, NULL), 0);
	while (atomic_load(&wire->open))
		usleep(1000);
	close(wire->listener);
}
