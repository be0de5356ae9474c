// SPDX-License-Identifier: MIT
/*
 * Fences: signals, waits and polls between processes, and the events that end a wait. Also drivers'
 * own fences, which pass through exports unchanged.
 */
#include <limits.h>
#include <time.h>
#include <linux/dma-buf.h>

#include "drm.h"
#include "t.h"

#define RW (PROT_READ | PROT_WRITE)
#define MS 1000000ll
/* Longer than any step that does not hang, even in an emulated debug kernel */
#define PATIENCE (60000 * MS)

static int dev;

static int region(void)
{
	dev = t_dev();
	return REQUIRE_OK(t_create(dev, PAGE, 0));
}

static int say(int h, __u64 value)
{
	struct tmesh_signal s = {.size = sizeof(s), .value = value};

	return ioctl(h, TMESH_SIGNAL, &s);
}

/* The value that the last wait wrote */
static __thread __u64 reached;

static int await(int h, __u64 value, __s64 timeout)
{
	struct tmesh_wait w = {.size = sizeof(w), .value = value, .timeout_ns = timeout};
	int ret = ioctl(h, TMESH_WAIT, &w);

	reached = w.value;
	return ret;
}

static short polled(int h, int ms)
{
	struct pollfd pf = {.fd = h, .events = POLLIN};

	REQUIRE(poll(&pf, 1, ms) >= 0);
	return pf.revents;
}

static void fence_is(int h, __u64 value, __u32 state)
{
	struct tmesh_info i = t_info(h);

	CHECK_EQ(i.fence_value, value);
	CHECK_EQ(i.fence_state, state);
}

TEST(values, "a fence grows from 0, and a wait says how far it is")
{
	int h = region();

	fence_is(h, 0, TMESH_FENCE_IDLE);
	CHECK_OK(await(h, 0, 0));
	CHECK_ERR(await(h, 1, 0), ETIMEDOUT);
	CHECK_EQ(reached, 0);
	CHECK_OK(say(h, 5));
	fence_is(h, 5, TMESH_FENCE_PRODUCER);
	CHECK_OK(await(h, 1, 0));
	CHECK_EQ(reached, 5);
	CHECK_OK(await(h, 5, -1));
	CHECK_ERR(await(h, 6, 0), ETIMEDOUT);
	CHECK_EQ(reached, 5);
	CHECK_OK(say(h, ~0ull));
	CHECK_OK(await(h, ~0ull, -1));
	CHECK_EQ(reached, ~0ull);
	fence_is(h, ~0ull, TMESH_FENCE_PRODUCER);
}

TEST(backwards, "a value that is not greater than the last gives EINVAL")
{
	int h = region();

	CHECK_ERR(say(h, 0), EINVAL);
	fence_is(h, 0, TMESH_FENCE_IDLE);
	CHECK_OK(say(h, 7));
	CHECK_ERR(say(h, 7), EINVAL);
	CHECK_ERR(say(h, 6), EINVAL);
	CHECK_ERR(say(h, 0), EINVAL);
	fence_is(h, 7, TMESH_FENCE_PRODUCER);
	CHECK_OK(say(h, ~0ull));
	CHECK_ERR(say(h, ~0ull), EINVAL);
}

TEST(rights, "signalling needs WRITE, waiting only a handle; a seal changes neither")
{
	int h = region(), reader = REQUIRE_OK(t_derive(h, R_READ, 0));

	CHECK_ERR(say(reader, 1), EACCES);
	fence_is(h, 0, TMESH_FENCE_IDLE);
	CHECK_OK(say(h, 1));
	CHECK_OK(await(reader, 1, 0));
	CHECK_OK(t_seal(h));
	CHECK_OK(say(h, 2));
	CHECK_OK(await(reader, 2, 0));
}

TEST(memfd, "a region over a memfd has a fence as any other")
{
	int memfd = REQUIRE_OK(memfd_create("fence", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};

	REQUIRE_OK(ftruncate(memfd, PAGE));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	REQUIRE_OK(ioctl(t_dev(), TMESH_CREATE_MEMFD, &c));
	CHECK_OK(say(c.fd, 3));
	CHECK_OK(await(c.fd, 3, 0));
}

static __u32 holder_flags(int h, unsigned int index)
{
	struct tmesh_holder some[4] = {0};
	struct tmesh_holders q = {
		.size = sizeof(q),
		.entries = (__u64)(unsigned long)some,
		.entry_bytes = sizeof(some[0]),
		.count = ARRAY_SIZE(some),
	};

	REQUIRE_OK(ioctl(h, TMESH_HOLDERS, &q));
	REQUIRE(index < q.count);
	return some[index].flags;
}

TEST(two_producers, "the first handle that signals is the producer until it is closed")
{
	int h = region(), first = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
	int second = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));

	CHECK_OK(say(first, 4));
	CHECK_ERR(say(second, 5), EBUSY);
	CHECK_ERR(say(h, 5), EBUSY);
	CHECK_ERR(say(second, 4), EBUSY);
	CHECK_EQ(holder_flags(h, 0), 0);
	CHECK_EQ(holder_flags(h, 1), TMESH_HOLDER_FLAG_PRODUCER);
	CHECK_EQ(holder_flags(h, 2), 0);
	close(first);
	fence_is(h, 4, TMESH_FENCE_DEAD);
	CHECK_ERR(await(second, 5, -1), EOWNERDEAD);
	CHECK_EQ(reached, 4);
	CHECK_OK(await(second, 4, -1));

	/* Another producer may continue from the last value. */
	CHECK_ERR(say(second, 4), EINVAL);
	fence_is(h, 4, TMESH_FENCE_DEAD);
	CHECK_OK(say(second, 5));
	fence_is(h, 5, TMESH_FENCE_PRODUCER);
	CHECK_EQ(holder_flags(h, 1), TMESH_HOLDER_FLAG_PRODUCER);
	CHECK_ERR(await(h, 6, 0), ETIMEDOUT);
	CHECK_ERR(say(h, 6), EBUSY);
}

TEST(bystander, "a handle that never signalled ends no other when it is closed")
{
	int h = region(), other = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));

	close(other);
	fence_is(h, 0, TMESH_FENCE_IDLE);
	other = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
	CHECK_OK(say(h, 1));
	close(other);
	fence_is(h, 1, TMESH_FENCE_PRODUCER);
}

TEST(timeouts, "waits end when they should: none, short, huge and negative timeouts")
{
	int h = region();
	double from;
	pid_t pid;

	CHECK_ERR(await(h, 1, 0), ETIMEDOUT);
	CHECK_ERR(await(h, 1, 1), ETIMEDOUT);
	from = t_now();
	CHECK_ERR(await(h, 1, 100 * MS), ETIMEDOUT);
	CHECK(t_now() - from >= 0.1);
	for (__u64 i = 1; i <= 4; i++) {
		static const __s64 endless[] = {LLONG_MAX, LLONG_MAX - 1, -1, LLONG_MIN};

		T_CHILD(pid) {
			CHECK_OK(await(h, i, endless[i - 1]));
			CHECK_EQ(reached, i);
		}
		usleep(20000);
		CHECK_EQ(waitpid(pid, NULL, WNOHANG), 0);
		CHECK_OK(say(h, i));
		t_wait(pid);
	}
}

static void no_more(int sig)
{
}

TEST(interrupted, "a signal ends a wait with EINTR, even where system calls are restarted")
{
	struct sigaction sa = {.sa_handler = no_more, .sa_flags = SA_RESTART};
	/* Repeat the signal, because the first one may come before the wait. */
	struct itimerspec soon = {.it_value.tv_nsec = 50 * MS, .it_interval.tv_nsec = 50 * MS};
	int h = region();
	timer_t timer;

	REQUIRE_OK(sigaction(SIGALRM, &sa, NULL));
	REQUIRE_OK(timer_create(CLOCK_MONOTONIC, NULL, &timer));
	CHECK_OK(say(h, 3));
	for (int i = 0; i < 2; i++) {
		REQUIRE_OK(timer_settime(timer, 0, &soon, NULL));
		CHECK_ERR(await(h, 4, i ? -1 : PATIENCE), EINTR);
		CHECK_EQ(reached, 3);
	}
	timer_delete(timer);
}

TEST(killed, "a process that waits without end can be killed")
{
	int h = region();
	pid_t pid = t_fork();

	if (!pid) {
		await(h, 1, -1);
		_exit(1);
	}
	usleep(50000);
	REQUIRE_OK(kill(pid, SIGKILL));
	REQUIRE_OK(waitpid(pid, NULL, 0));
}

TEST(revoked, "a revocation ends waits with ESTALE and polls with HUP")
{
	int h = region(), other = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
	pid_t waiter, poller;

	CHECK_OK(say(other, 2));
	T_CHILD(waiter) {
		CHECK_ERR(await(h, 3, -1), ESTALE);
		CHECK_EQ(reached, 2);
	}
	T_CHILD(poller) {
		CHECK_EQ(polled(h, -1), POLLHUP);
	}
	usleep(50000);
	CHECK_OK(t_revoke(h));
	t_wait(waiter);
	t_wait(poller);
	CHECK_ERR(say(other, 3), ESTALE);
	CHECK_ERR(await(h, 1, 0), ESTALE);
}

TEST(forked, "a producer that was inherited lives until its last descriptor is closed")
{
	int h = region(), producer = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0)), sv[2];
	void *mapping;
	pid_t pid;

	t_pair(sv);
	CHECK_OK(say(producer, 1));
	T_CHILD(pid) {
		t_hear(sv[1]);
		CHECK_OK(say(producer, 2));
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	close(producer);
	fence_is(h, 1, TMESH_FENCE_PRODUCER);
	CHECK_ERR(await(h, 2, 0), ETIMEDOUT);
	t_say(sv[0]);
	CHECK_OK(await(h, 2, PATIENCE));
	t_hear(sv[0]);
	t_say(sv[0]);
	CHECK_ERR(await(h, 3, PATIENCE), EOWNERDEAD);
	t_wait(pid);

	/* A mapping holds its handle open too. */
	producer = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
	CHECK_OK(say(producer, 3));
	mapping = t_map(producer, PAGE, RW);
	REQUIRE(mapping != MAP_FAILED);
	close(producer);
	fence_is(h, 3, TMESH_FENCE_PRODUCER);
	munmap(mapping, PAGE);
	fence_is(h, 3, TMESH_FENCE_DEAD);
}

TEST(successor, "a waiter learns that a producer died, though another one goes on")
{
	long rounds = t_length(60, 5000);
	int h = region(), sv[2];
	__u64 value = 0;
	pid_t pid;

	t_pair(sv);
	for (long i = 0; i < rounds && !t_failed(); i++) {
		int first = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
		int second = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));

		CHECK_OK(say(first, ++value));
		T_CHILD(pid) {
			close(first);
			close(second);
			t_say(sv[1]);
			CHECK_ERR(await(h, ~0ull, PATIENCE), EOWNERDEAD);
		}
		t_hear(sv[0]);
		usleep(i % 8 * 50);
		/* If it dies before the wait has begun, the wait finds the fence dead. */
		close(first);
		if (i % 8 > 4)
			CHECK_OK(say(second, ++value));
		if (i % 8 <= 4) {
			t_wait(pid);
			CHECK_OK(say(second, ++value));
			close(second);
		} else {
			close(second);
			t_wait(pid);
		}
	}
}

/* Write each value into the region before signalling it. */
static void produce(int h, volatile __u64 *shared)
{
	for (;;)
		if (say(h, ++*shared))
			_exit(1);
}

TEST(kill_races, "producers killed against waits: no wake-up is lost, no value invented")
{
	long rounds = t_length(200, 20000), seen = 0;
	int h = region(), reader = REQUIRE_OK(t_derive(h, R_READ, 0));
	volatile __u64 *shared = t_map(h, PAGE, RW);
	unsigned int seed = 31;
	__u64 last;

	REQUIRE(shared != MAP_FAILED);
	for (long i = 0; i < rounds && !t_failed(); i++) {
		int producer = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
		int before_kill = t_random(&seed) % 16;
		pid_t pid;

		last = ++*shared;
		CHECK_OK(say(producer, last));
		pid = t_fork();
		if (!pid)
			produce(producer, shared);
		/* Now only the child has the handle: its end is the end of the producer. */
		close(producer);
		for (;; before_kill--) {
			if (before_kill == 0)
				REQUIRE_OK(kill(pid, SIGKILL));
			if (await(reader, last + 1, PATIENCE)) {
				CHECK_EQ(errno, EOWNERDEAD);
				break;
			}
			CHECK(reached > last && reached <= *shared);
			last = reached;
			seen++;
		}
		CHECK(before_kill <= 0);
		CHECK_EQ(reached, last);
		REQUIRE(waitpid(pid, NULL, 0) == pid);
		fence_is(h, last, TMESH_FENCE_DEAD);
	}
	t_note("%ld producers killed, %ld values waited for", rounds, seen);
}

/* Two processes take turns. A lost wake-up would be a wait that never ends. */
TEST(ping_pong, "turns between two processes, and what was written first is seen")
{
	long rounds = t_length(1000, 100000);
	int there = region(), back = REQUIRE_OK(t_create(dev, PAGE, 0));
	volatile long *p = t_map(there, PAGE, RW), *q = t_map(back, PAGE, RW);
	pid_t pid;

	REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
	T_CHILD(pid) {
		int h = REQUIRE_OK(t_derive(there, R_READ, 0));

		for (long i = 1; i <= rounds && !t_failed(); i++) {
			CHECK_OK(await(h, i, PATIENCE));
			CHECK_EQ(*p, i);
			*q = -i;
			CHECK_OK(say(back, i));
		}
	}
	for (long i = 1; i <= rounds && !t_failed(); i++) {
		*p = i;
		CHECK_OK(say(there, i));
		CHECK_OK(await(back, i, PATIENCE));
		CHECK_EQ(*q, -i);
	}
	t_wait(pid);
}

#define CROWD 24

struct member {
	int handle;
	__u64 from, count;
};

static void *wait_for_each(void *arg)
{
	const struct member *m = arg;

	for (__u64 i = 0; i < m->count && !t_failed(); i++)
		CHECK_OK(await(m->handle, m->from + i, PATIENCE));
	return NULL;
}

TEST(crowd, "many waits for many values on one handle all end")
{
	struct member members[CROWD];
	pthread_t threads[CROWD];
	int h = region();
	__u64 last = 0;

	for (int i = 0; i < CROWD; i++) {
		members[i] = (struct member){h, 1 + i * 7, t_length(100, 2000)};
		last = members[i].from + members[i].count;
		REQUIRE(!pthread_create(&threads[i], NULL, wait_for_each, &members[i]));
	}
	for (__u64 value = 1; value <= last; value++)
		CHECK_OK(say(h, value));
	for (int i = 0; i < CROWD; i++)
		pthread_join(threads[i], NULL);
}

struct contest {
	int handle;
	pthread_barrier_t *gate;
	int error;
};

static void *compete(void *arg)
{
	struct contest *c = arg;

	pthread_barrier_wait(c->gate);
	c->error = say(c->handle, 1) ? errno : 0;
	return NULL;
}

TEST(first_signal, "of several first signals at once exactly one makes its handle the producer")
{
	long rounds = t_length(100, 10000);
	pthread_barrier_t gate;

	dev = t_dev();
	pthread_barrier_init(&gate, NULL, 3);
	for (long i = 0; i < rounds && !t_failed(); i++) {
		int h = REQUIRE_OK(t_create(dev, PAGE, 0)), won = 0;
		struct contest c[3];
		pthread_t threads[3];

		for (int k = 0; k < 3; k++) {
			c[k] = (struct contest){REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0)), &gate,
						0};
			REQUIRE(!pthread_create(&threads[k], NULL, compete, &c[k]));
		}
		for (int k = 0; k < 3; k++) {
			pthread_join(threads[k], NULL);
			won += !c[k].error;
			CHECK(!c[k].error || c[k].error == EBUSY);
		}
		CHECK_EQ(won, 1);
		for (int k = 0; k < 3; k++)
			close(c[k].handle);
		close(h);
	}
	pthread_barrier_destroy(&gate);
}

TEST(revoke_races, "revocations against waits and signals")
{
	long rounds = t_length(60, 5000);

	dev = t_dev();
	for (long i = 0; i < rounds && !t_failed(); i++) {
		int h = REQUIRE_OK(t_create(dev, PAGE, 0));
		int producer = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
		pid_t signaller, waiter;

		T_CHILD(signaller) {
			__u64 value = 1;

			while (!say(producer, value))
				value++;
			CHECK_EQ(errno, ESTALE);
		}
		T_CHILD(waiter) {
			__u64 value = 1;

			while (!await(h, value, PATIENCE))
				value++;
			CHECK_EQ(errno, ESTALE);
		}
		usleep(i % 16 * 100);
		CHECK_OK(t_revoke(h));
		t_wait(signaller);
		t_wait(waiter);
		close(producer);
		close(h);
	}
}

/* Drivers' own fences */

static bool ready(int dmabuf, short events, int ms)
{
	struct pollfd pf = {.fd = dmabuf, .events = events};

	return poll(&pf, 1, ms) == 1 && pf.revents & events;
}

/* Put a fence of vgem on memory that it has imported. vgem signals it on request. */
static __u32 attach_fence(int vgem, int gem)
{
	struct vgem_fence_attach a = {.handle = gem, .flags = VGEM_FENCE_WRITE};

	REQUIRE_OK(ioctl(vgem, VGEM_FENCE_ATTACH, &a));
	return a.out_fence;
}

static void signal_fence(int vgem, __u32 fence)
{
	struct vgem_fence_signal s = {.fence = fence};

	CHECK_OK(ioctl(vgem, VGEM_FENCE_SIGNAL, &s));
}

TEST(driver_fence, "a driver's fence on an export holds up its poll, sync files carry it on")
{
	int h = region(), vgem = open_vgem(), gem;
	int fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	int other = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	struct dma_buf_export_sync_file out = {.flags = DMA_BUF_SYNC_RW};
	struct dma_buf_import_sync_file in = {.flags = DMA_BUF_SYNC_RW};
	__u32 fence;

	gem = REQUIRE_OK(vgem_import(vgem, fd));
	CHECK(ready(fd, POLLIN, 0));
	fence = attach_fence(vgem, gem);
	CHECK(!ready(fd, POLLIN, 0));
	CHECK(!ready(fd, POLLOUT, 50));
	CHECK(ready(other, POLLIN | POLLOUT, 0));
	REQUIRE_OK(ioctl(fd, DMA_BUF_IOCTL_EXPORT_SYNC_FILE, &out));
	CHECK(!ready(out.fd, POLLIN, 0));
	in.fd = out.fd;
	REQUIRE_OK(ioctl(other, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, &in));
	CHECK(!ready(other, POLLIN, 0));

	/* The region's own fence is independent of it. */
	CHECK_OK(say(h, 1));
	CHECK(!ready(fd, POLLIN, 0));

	signal_fence(vgem, fence);
	CHECK(ready(out.fd, POLLIN, 10000));
	CHECK(ready(fd, POLLIN, 10000));
	CHECK(ready(fd, POLLOUT, 10000));
	CHECK(ready(other, POLLIN, 10000));
	CHECK_OK(await(h, 1, 0));
	vgem_close(vgem, gem);
}

TEST(driver_fence_revoked, "a revocation waits for a driver's fence, but not for ever")
{
	int h = region(), vgem = open_vgem(), gem;
	int fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	__u32 fence;
	double from;

	gem = REQUIRE_OK(vgem_import(vgem, fd));
	fence = attach_fence(vgem, gem);
	from = t_now();
	CHECK_OK(t_revoke(h));
	from = t_now() - from;
	CHECK(from > 0.5 && from < 8);
	signal_fence(vgem, fence);
	CHECK(ready(fd, POLLIN, 10000));
	vgem_close(vgem, gem);
}

/* Close a descriptor but keep an O_PATH one, which keeps the dma-buf but not its file. */
static void close_but_path(int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	REQUIRE_OK(open(path, O_PATH | O_CLOEXEC));
	close(fd);
}

TEST(driver_fence_path, "a revocation that waits for an export without a file holds up no other")
{
	int h = region(), vgem = open_vgem(), other = REQUIRE_OK(t_create(dev, PAGE, 0));
	int fd, gem, many[200], sv[2];
	__u32 fence;
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		t_hear(sv[1]);
		CHECK_OK(t_revoke(h));
	}
	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	gem = REQUIRE_OK(vgem_import(vgem, fd));
	fence = attach_fence(vgem, gem);
	vgem_close(vgem, gem);
	close_but_path(fd);
	CHECK_EQ(t_info(h).exports, 1);
	/* One of these reuses the memory of the freed file. */
	for (size_t i = 0; i < ARRAY_SIZE(many); i++)
		many[i] = REQUIRE_OK(t_derive(other, R_READ, 0));
	t_say(sv[0]);
	while (!(t_info(h).state & TMESH_STATE_REVOKED))
		usleep(1000);
	usleep(100000);
	for (size_t i = 0; i < ARRAY_SIZE(many); i++)
		close(many[i]);
	CHECK_EQ(t_info(other).handles, 1);
	signal_fence(vgem, fence);
	t_wait(pid);
	CHECK_EQ(t_info(h).exports, 1);
}

static long sleeps(pid_t pid)
{
	char path[32], value[32];

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	REQUIRE(t_file_value(path, "voluntary_ctxt_switches", value, sizeof(value)));
	return atol(value);
}

TEST(pollers, "signals and waits wake no poller: it asked for other events")
{
	int h = region(), reader = REQUIRE_OK(t_derive(h, R_READ, 0)), sv[2];
	struct pollfd pf = {.fd = reader, .events = POLLPRI};
	long before;
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		t_say(sv[1]);
		poll(&pf, 1, -1);
	}
	t_hear(sv[0]);
	do {
		before = sleeps(pid);
		usleep(100000);
	} while (before != sleeps(pid));
	for (int i = 1; i <= 100; i++) {
		CHECK_OK(say(h, i));
		CHECK_OK(await(reader, i, 0));
		usleep(1000);
	}
	/* A producer's end is one more wake-up. */
	close(h);
	usleep(100000);
	CHECK_EQ(sleeps(pid), before);
	h = REQUIRE_OK(t_derive(reader, R_READ, 0));
	close(h);
	usleep(100000);
	CHECK_EQ(sleeps(pid), before);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}
