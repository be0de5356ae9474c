// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fences: each region has a number that only grows. A producer raises it to tell other processes
 * how far it is. The kernel itself never waits for it. Only the caller of TMESH_WAIT does, and a
 * signal interrupts it. This is why it is not a dma_fence; see docs/internals/abi.md.
 */
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/sched/signal.h>

#include "claim.h"
#include "fence.h"
#include "trace.h"
#include "ucmd.h"

/**
 * tmesh_fence_init() - initialise a fence
 * @fence: zeroed
 */
void tmesh_fence_init(struct tmesh_fence *fence)
{
	spin_lock_init(&fence->lock);
}

static u32 tmesh_fence_state(const struct tmesh_fence *fence)
{
	if (fence->producer)
		return TMESH_FENCE_PRODUCER;
	return fence->deaths ? TMESH_FENCE_DEAD : TMESH_FENCE_IDLE;
}

/*
 * Return the number of deaths for a wait that begins now to remember. The wait ends with the next
 * death, or at once if the fence is dead already.
 */
static u64 tmesh_fence_begin(struct tmesh_fence *fence)
{
	u64 deaths;

	spin_lock(&fence->lock);
	deaths = fence->deaths - (tmesh_fence_state(fence) == TMESH_FENCE_DEAD);
	spin_unlock(&fence->lock);
	return deaths;
}

/*
 * Return the result of a wait, or -EAGAIN while it goes on. A wait ends if the number of deaths has
 * changed. The present state would not do: another producer may have taken the dead one's place
 * before the waiter runs.
 */
static int tmesh_fence_check(const struct tmesh_claim *claim, u64 value, u64 deaths, u64 *reached)
{
	struct tmesh_fence *fence = &claim->region->fence;
	int rc;

	spin_lock(&fence->lock);
	*reached = fence->value;
	if (*reached >= value)
		rc = 0;
	else if (fence->deaths != deaths)
		rc = -EOWNERDEAD;
	else
		rc = tmesh_claim_allows(claim, 0) ?: -EAGAIN;
	spin_unlock(&fence->lock);
	return rc;
}

/**
 * tmesh_fence_look() - read the value and the state of a fence
 * @region: the region
 * @state:  set to TMESH_FENCE_*
 *
 * Return: the value that it has reached.
 */
u64 tmesh_fence_look(struct tmesh_region *region, u32 *state)
{
	struct tmesh_fence *fence = &region->fence;
	u64 value;

	spin_lock(&fence->lock);
	*state = tmesh_fence_state(fence);
	value = fence->value;
	spin_unlock(&fence->lock);
	return value;
}

/**
 * tmesh_fence_produces() - test whether a claim is the producer
 * @claim: any
 *
 * Return: true while the claim alone may signal its region's fence.
 */
bool tmesh_fence_produces(const struct tmesh_claim *claim)
{
	return READ_ONCE(claim->region->fence.producer) == claim;
}

/* Remove the producer. Waits for a value that it has not signalled end. */
static void tmesh_fence_end(struct tmesh_fence *fence)
{
	lockdep_assert_held(&fence->lock);
	WRITE_ONCE(fence->producer, NULL);
	fence->deaths++;
}

/**
 * tmesh_fence_abandon() - end a claim's role as producer
 * @claim: a claim that is being closed, so that it makes no further call
 *
 * Context: wakes waiters; none of the region's locks but cut_lock is held.
 */
void tmesh_fence_abandon(const struct tmesh_claim *claim)
{
	struct tmesh_region *region = claim->region;
	struct tmesh_fence *fence = &region->fence;
	bool dead;

	spin_lock(&fence->lock);
	dead = fence->producer == claim;
	if (dead)
		tmesh_fence_end(fence);
	spin_unlock(&fence->lock);
	if (dead)
		tmesh_wake(&region->wait, TMESH_WAKE_NO_POLL);
}

/**
 * tmesh_fence_abandon_lapsed() - remove a producer whose lease has lapsed
 * @region: a region that has leases which have lapsed
 *
 * Context: as tmesh_fence_abandon().
 */
void tmesh_fence_abandon_lapsed(struct tmesh_region *region)
{
	struct tmesh_fence *fence = &region->fence;
	bool dead;

	spin_lock(&fence->lock);
	/* The claim is valid: it clears @producer under this lock before it is freed. */
	dead = fence->producer && tmesh_claim_lapsed(fence->producer);
	if (dead)
		tmesh_fence_end(fence);
	spin_unlock(&fence->lock);
	if (dead)
		tmesh_wake(&region->wait, TMESH_WAKE_NO_POLL);
}

static int tmesh_fence_wait_for(const struct tmesh_claim *claim, struct tmesh_wait *cmd)
{
	ktime_t timeout = cmd->timeout_ns < 0 ? KTIME_MAX : cmd->timeout_ns;
	struct tmesh_region *region = claim->region;
	u64 deaths = tmesh_fence_begin(&region->fence), reached;
	int rc, answer;

	rc = wait_event_interruptible_hrtimeout(region->wait,
						tmesh_fence_check(claim, cmd->value, deaths,
								  &reached) != -EAGAIN, timeout);
	/* A final result does not change any more, and takes precedence over a signal. */
	answer = tmesh_fence_check(claim, cmd->value, deaths, &reached);
	cmd->value = reached;
	if (answer != -EAGAIN)
		return answer;
	return rc == -ETIME ? -ETIMEDOUT : -EINTR;
}

/**
 * tmesh_ioctl_signal() - TMESH_SIGNAL
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_signal(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_region *region = claim->region;
	struct tmesh_fence *fence = &region->fence;
	struct tmesh_signal *cmd = ucmd->cmd;
	int rc;

	spin_lock(&fence->lock);
	/*
	 * Check under the lock: a claim that has lapsed must not become the producer after
	 * tmesh_fence_abandon_lapsed() has run.
	 */
	rc = tmesh_claim_allows(claim, TMESH_RIGHT_WRITE);
	if (!rc && fence->producer && fence->producer != claim)
		rc = -EBUSY;
	if (!rc && cmd->value <= fence->value)
		rc = -EINVAL;
	if (!rc) {
		WRITE_ONCE(fence->producer, claim);
		fence->value = cmd->value;
	}
	spin_unlock(&fence->lock);
	if (rc)
		return rc;
	tmesh_wake(&region->wait, TMESH_WAKE_NO_POLL);
	trace_tmesh_signal(region->id, cmd->value);
	return 0;
}

/**
 * tmesh_ioctl_wait() - TMESH_WAIT
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_wait(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_wait *cmd = ucmd->cmd;
	u64 value = cmd->value;
	int rc;

	rc = tmesh_claim_allows(claim, 0);
	if (rc)
		return rc;
	rc = tmesh_fence_wait_for(claim, cmd);
	trace_tmesh_wait(claim->region->id, value, cmd->value, rc);
	/* Write the value reached, whatever ended the wait. */
	return tmesh_respond(ucmd, sizeof(*cmd)) ?: rc;
}
