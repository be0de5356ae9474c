// SPDX-License-Identifier: MIT
/*
 * A call still uses memory while another call frees it. A mistake shows as a report of the kernel,
 * not as a failed check.
 */
#include <sched.h>

#include "t.h"

#define PAGES 1000

struct turn {
	int handle, ends[2];
	unsigned int delay_us;
	pthread_barrier_t gate;
};

/* Run on one CPU, so that the other thread runs where the kernel calls cond_resched(). */
static void share_cpu(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(0, &set);
	REQUIRE_OK(sched_setaffinity(0, sizeof(set), &set));
}

static void *seal_rarely(void *arg)
{
	struct sched_param param = {0};
	struct turn *turn = arg;

	share_cpu();
	REQUIRE_OK(sched_setscheduler(0, SCHED_IDLE, &param));
	pthread_barrier_wait(&turn->gate);
	if (t_seal(turn->handle))
		CHECK(errno == EBUSY || errno == ESTALE);
	return NULL;
}

static void *revoke_and_stay(void *arg)
{
	struct turn *turn = arg;
	char page[PAGE];
	double end;

	share_cpu();
	pthread_barrier_wait(&turn->gate);
	usleep(turn->delay_us);
	if (t_revoke(turn->handle))
		CHECK_EQ(errno, EBUSY);
	/* Free the last pinned page. */
	CHECK_EQ(read(turn->ends[0], page, sizeof(page)), PAGE);
	end = t_now() + 0.1;
	while (t_now() < end)
		;
	return NULL;
}

/* A seal finds a page in a pipe, and a revocation frees everything while the seal settles. */
static void seal_and_revoke(int dev, unsigned int delay_us)
{
	struct turn turn = {.handle = REQUIRE_OK(t_create(dev, PAGES * PAGE, TMESH_CREATE_NOHUGE)),
			    .delay_us = delay_us};
	pthread_t sealer, revoker;
	struct iovec last = {.iov_len = PAGE};
	char *p = t_map(turn.handle, PAGES * PAGE, PROT_READ);

	REQUIRE(p != MAP_FAILED);
	REQUIRE_OK(pipe(turn.ends));
	last.iov_base = p + (PAGES - 1) * PAGE;
	REQUIRE(vmsplice(turn.ends[1], &last, 1, 0) == PAGE);
	munmap(p, PAGES * PAGE);
	REQUIRE(!pthread_barrier_init(&turn.gate, NULL, 2));
	REQUIRE(!pthread_create(&sealer, NULL, seal_rarely, &turn));
	REQUIRE(!pthread_create(&revoker, NULL, revoke_and_stay, &turn));
	pthread_join(revoker, NULL);
	pthread_join(sealer, NULL);
	pthread_barrier_destroy(&turn.gate);
	close(turn.ends[0]);
	close(turn.ends[1]);
	close(turn.handle);
}

TEST(seal_revoke, "a revocation frees the memory that a seal has just looked at")
{
	long rounds = t_length(60, 1000);
	int dev;

	t_become(1000, 1000, 0);
	dev = t_dev();
	for (long i = 0; i < rounds && !t_failed(); i++)
		seal_and_revoke(dev, i * 37 % 3000);
	t_note("%ld rounds", rounds);
}
