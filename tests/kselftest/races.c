// SPDX-License-Identifier: MIT
/*
 * Races: threads that map, protect and export against others that seal and close. Also threads that
 * redeem a token or use a descriptor against its close. The tests check the state in which a race
 * ends.
 */
#include "drm.h"
#include "race.h"

#define BYTES RACE_BYTES
#define THREADS RACE_THREADS

/* Check that the bytes do not change after a seal has succeeded. */
static void race_seal(__u32 flags, void *(*const work[])(void *), int vgem)
{
	double until = t_now() + t_length(3, 60);
	static unsigned char copy[BYTES];
	unsigned int seed = 815;
	int dev = t_dev(), rounds = 0, refused = 0;

	if (flags & TMESH_CREATE_HUGE && !t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	for (; t_now() < until && !t_failed(); rounds++) {
		struct subject s = {.vgem = vgem, .seed = t_random(&seed)};
		pthread_t threads[THREADS];
		unsigned char *p;
		int tries;

		s.handle = REQUIRE_OK(t_create(dev, BYTES, flags));
		start(&s, work, threads, THREADS);
		for (tries = 0; tries < 20000 && t_seal(s.handle); tries++) {
			REQUIRE(errno == EBUSY);
			refused++;
		}
		/* If the writers leave no gap, stop them first. */
		if (tries == 20000) {
			stop(&s, threads, THREADS);
			CHECK_OK(t_seal(s.handle));
		}
		p = t_map(s.handle, BYTES, PROT_READ);
		REQUIRE(p != MAP_FAILED);
		memcpy(copy, p, BYTES);
		pause_a_little(&seed);
		if (tries < 20000)
			stop(&s, threads, THREADS);
		CHECK(!memcmp(copy, p, BYTES));
		CHECK_ERR(t_map(s.handle, BYTES, RW), EPERM);
		munmap(p, BYTES);
		close(s.handle);
	}
	t_note("%d rounds, %d times EBUSY", rounds, refused);
}

static void *(*const own_mappers[THREADS])(void *) = {map, map, map};
static void *(*const own_exporters[THREADS])(void *) = {export, export, map};

TEST_CALL(seal_map, "mmap, mprotect and munmap against a seal", race_seal(0, own_mappers, -1))
TEST_CALL(seal_map_huge, "the same on huge pages", race_seal(TMESH_CREATE_HUGE, own_mappers, -1))
TEST_CALL(seal_export, "export, import and mapping of dma-bufs against a seal",
	  race_seal(0, own_exporters, open_vgem()))

/* Two revocations, a pin and a seal at once. Their results must agree. */

struct contest {
	int handle;
	pthread_barrier_t gate;
	int results[3];
};

static void *revoker(void *arg)
{
	struct contest *c = arg;

	pthread_barrier_wait(&c->gate);
	c->results[0] = t_revoke(c->handle) ? errno : 0;
	return NULL;
}

static void *second_revoker(void *arg)
{
	struct contest *c = arg;

	pthread_barrier_wait(&c->gate);
	c->results[1] = t_revoke(c->handle) ? errno : 0;
	return NULL;
}

static void *pinner(void *arg)
{
	struct contest *c = arg;
	int pin;

	pthread_barrier_wait(&c->gate);
	pin = t_derive(c->handle, R_READ, TMESH_DERIVE_PIN);
	c->results[2] = pin < 0 ? errno : 0;
	if (pin < 0)
		return NULL;
	/* A pinned region cannot be taken away. */
	void *p = t_map(pin, BYTES, PROT_READ);

	CHECK(p != MAP_FAILED && !t_read(p));
	usleep(200);
	CHECK_EQ(t_read(p), 0);
	CHECK_ERR(t_revoke(c->handle), EBUSY);
	munmap(p, BYTES);
	close(pin);
	return NULL;
}

TEST(pin, "a pin against two revocations: either the pin or the revocation wins")
{
	void *(*const work[3])(void *) = {revoker, second_revoker, pinner};
	long rounds = t_length(300, 10000), pinned = 0;
	int dev = t_dev();

	for (long i = 0; i < rounds && !t_failed(); i++) {
		struct contest c = {.handle = REQUIRE_OK(t_create(dev, BYTES, 0))};
		pthread_t threads[3];

		REQUIRE_OK(t_seal(c.handle));
		pthread_barrier_init(&c.gate, NULL, 3);
		for (int k = 0; k < 3; k++)
			REQUIRE(!pthread_create(&threads[k], NULL, work[k], &c));
		for (int k = 0; k < 3; k++)
			pthread_join(threads[k], NULL);
		pthread_barrier_destroy(&c.gate);
		for (int k = 0; k < 2; k++)
			CHECK(c.results[k] == 0 || c.results[k] == EBUSY || c.results[k] == ESTALE);
		CHECK(c.results[0] || c.results[1]);
		CHECK(c.results[2] == 0 || c.results[2] == ESTALE);
		if (c.results[2])
			CHECK(!c.results[0] || !c.results[1]);
		pinned += !c.results[2];
		close(c.handle);
	}
	t_note("%ld rounds, the pin won %ld", rounds, pinned);
}

/* A token is redeemed while the last handle is closed. */

struct market {
	__u64 id;
	__u8 token[TMESH_TOKEN_BYTES];
	unsigned int version; /* odd while the rest is written */
	unsigned int opened, missed;
	bool closed;
};

static void buy(struct market *m, int dev)
{
	__u8 token[TMESH_TOKEN_BYTES];
	unsigned int version = __atomic_load_n(&m->version, __ATOMIC_ACQUIRE);
	__u64 id = __atomic_load_n(&m->id, __ATOMIC_RELAXED);
	__u64 *p;
	int fd;

	memcpy(token, m->token, sizeof(token));
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (version % 2 || version != __atomic_load_n(&m->version, __ATOMIC_RELAXED))
		return;
	fd = t_open(dev, token, R_READ, 0);
	if (fd < 0) {
		CHECK_EQ(errno, ENOENT);
		__atomic_add_fetch(&m->missed, 1, __ATOMIC_RELAXED);
		return;
	}
	p = t_map(fd, PAGE, PROT_READ);
	CHECK_EQ(t_info(fd).id, id);
	CHECK(p != MAP_FAILED && *p == id);
	munmap(p, PAGE);
	close(fd);
	__atomic_add_fetch(&m->opened, 1, __ATOMIC_RELAXED);
}

/* Wait until a counter of the buyers exceeds @before. */
static void await(const unsigned int *count, unsigned int before)
{
	double since = t_now();

	while (__atomic_load_n(count, __ATOMIC_RELAXED) == before)
		REQUIRE(t_now() - since < 60 && !usleep(100));
}

TEST(last_close, "a token redeemed while the last handle closes: the very region, or ENOENT")
{
	struct market *m = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double until = t_now() + t_length(4, 60);
	int dev = t_dev();
	pid_t buyers[2];

	REQUIRE(m != MAP_FAILED);
	for (int i = 0; i < 2; i++)
		T_CHILD(buyers[i])
			while (!__atomic_load_n(&m->closed, __ATOMIC_RELAXED))
				buy(m, dev);
	for (bool first = true; first || t_now() < until; first = false) {
		int fd = REQUIRE_OK(t_create(dev, PAGE, 0));
		__u64 id = t_info(fd).id, *p = t_map(fd, PAGE, RW);
		__u8 token[TMESH_TOKEN_BYTES];

		REQUIRE(p != MAP_FAILED);
		*p = id;
		munmap(p, PAGE);
		REQUIRE_OK(t_token(fd, R_READ, token));
		__atomic_add_fetch(&m->version, 1, __ATOMIC_SEQ_CST);
		__atomic_store_n(&m->id, id, __ATOMIC_RELAXED);
		memcpy(m->token, token, sizeof(token));
		__atomic_add_fetch(&m->version, 1, __ATOMIC_SEQ_CST);
		/* The buyers have begun. From now on chance decides the order. */
		if (first)
			await(&m->opened, 0);
		close(fd);
	}
	await(&m->missed, __atomic_load_n(&m->missed, __ATOMIC_RELAXED));
	__atomic_store_n(&m->closed, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		t_wait(buyers[i]);
	t_note("%u regions, opened %u times, missed %u times", m->version / 2, m->opened,
	       m->missed);
}

/* Descriptors are closed while other threads use their numbers. */

static int slots[4];

static void *use_slots(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);

	while (!stopped(s)) {
		int fd = __atomic_load_n(&slots[t_random(&seed) % 4], __ATOMIC_RELAXED), other;
		struct tmesh_info info = {.size = sizeof(info)};
		__u8 token[TMESH_TOKEN_BYTES];
		void *p;

		ioctl(fd, TMESH_INFO, &info);
		other = t_derive(fd, R_READ, 0);
		t_token(fd, R_READ, token);
		p = t_map(fd, PAGE, PROT_READ);
		if (p != MAP_FAILED) {
			t_read(p);
			munmap(p, PAGE);
		}
		if (other >= 0)
			close(other);
	}
	return NULL;
}

TEST(close, "close against calls and mappings on the same descriptor")
{
	void *(*const work[THREADS])(void *) = {use_slots, use_slots, use_slots};
	double until = t_now() + t_length(3, 60);
	struct subject s = {.seed = 99};
	pthread_t threads[THREADS];
	unsigned int seed = 7;
	int dev = t_dev();

	for (int i = 0; i < 4; i++)
		slots[i] = REQUIRE_OK(t_create(dev, PAGE, 0));
	start(&s, work, threads, THREADS);
	while (t_now() < until) {
		int i = t_random(&seed) % 4, old = slots[i];

		/* Another thread's derived handle soon reuses the number. */
		close(old);
		__atomic_store_n(&slots[i], REQUIRE_OK(t_create(dev, PAGE, 0)), __ATOMIC_RELAXED);
	}
	stop(&s, threads, THREADS);
}
