/* SPDX-License-Identifier: MIT */
/* Shared with test_net.c: bytes on their way. */
/*
 * A wire between the reader and the home: it counts what the home sends, can break once, and can
 * change a byte.
 */
struct wire {
	int listener;
	uint16_t home_port;
	uint64_t break_after, forge_at; /* bytes from the home; 0: never */
	atomic_ullong sent;
	atomic_uint connections;
	char address[TMESH_NET_ADDRESS_SIZE];
	pthread_t thread;
};

static bool pass(struct wire *wire, int from, int to, bool from_home)
{
	static uint8_t data[65536];
	ssize_t got = recv(from, data, sizeof(data), 0);

	if (got <= 0)
		return false;
	if (from_home) {
		uint64_t before = atomic_fetch_add(&wire->sent, got);

		if (wire->forge_at >= before && wire->forge_at < before + got && wire->forge_at)
			data[wire->forge_at - before] ^= 1;
		if (wire->break_after && before + got > wire->break_after) {
			wire->break_after = 0;
			return false;
		}
	}
	for (ssize_t done = 0, put; done < got; done += put) {
		put = send(to, data + done, got - done, MSG_NOSIGNAL);
		if (put <= 0)
			return false;
	}
	return true;
}

static void *carry(void *data)
{
	struct sockaddr_in place = {.sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct wire *wire = data;
	int reader;

	place.sin_port = htons(wire->home_port);
	while ((reader = accept(wire->listener, NULL, NULL)) >= 0) {
		int home = socket(AF_INET, SOCK_STREAM, 0);
		struct pollfd ends[2] = {{reader, POLLIN, 0}, {home, POLLIN, 0}};
		bool goes_on = !connect(home, (struct sockaddr *)&place, sizeof(place));

		atomic_fetch_add(&wire->connections, 1);
		while (goes_on && poll(ends, 2, -1) > 0) {
			if (ends[0].revents)
				goes_on = pass(wire, reader, home, false);
			if (goes_on && ends[1].revents)
				goes_on = pass(wire, home, reader, true);
		}
		close(home);
		close(reader);
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
	close(wire->listener);
}
