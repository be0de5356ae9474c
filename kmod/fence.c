// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fences: a number for each region that only grows, by which a producer tells other processes
 * how far it is. Nothing in the kernel ever waits for it on anybody's behalf: who waits is the
 * caller itself, until a signal comes. This is why it is no dma_fence, see docs/abi.md.
 */
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/sched/signal.h>

#include "claim.h"
#include "fence.h"
#include "trace.h"
#include "ucmd.h"

/**
 * tmesh_fence_init() - nobody has signalled yet
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
 * What a wait that begins now remembers: it ends with the next death, or at once when the
 * fence is dead already.
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
 * What a wait has come to, -EAGAIN while it goes on. Counting deaths, and not looking at the
 * present state, ends every wait during which a producer died, whoever may have taken its place
 * before the waiter could look.
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
 * tmesh_fence_look() - what the fence says now
 * @region: whose fence
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
 * tmesh_fence_produces() - is a claim the producer?
 * @claim: any
 *
 * Return: true while its region's fence is its to signal.
 */
bool tmesh_fence_produces(const struct tmesh_claim *claim)
{
	return READ_ONCE(claim->region->fence.producer) == claim;
}

/**
 * tmesh_fence_abandon() - a claim will not signal any more
 * @claim: that is closed or has lapsed, so that tmesh_claim_allows() refuses it
 *
 * Ends the waits for what it has not signalled.
 */
void tmesh_fence_abandon(const struct tmesh_claim *claim)
{
	struct tmesh_region *region = claim->region;
	struct tmesh_fence *fence = &region->fence;
	bool dead;

	spin_lock(&fence->lock);
	dead = fence->producer == claim;
	if (dead) {
		WRITE_ONCE(fence->producer, NULL);
		fence->deaths++;
	}
	spin_unlock(&fence->lock);
	if (dead)
		wake_up_all(&region->wait);
}

static int tmesh_fence_wait(const struct tmesh_claim *claim, struct tmesh_wait *cmd)
{
	ktime_t timeout = cmd->timeout_ns < 0 ? KTIME_MAX : cmd->timeout_ns;
	struct tmesh_region *region = claim->region;
	u64 deaths = tmesh_fence_begin(&region->fence), reached;
	int rc, answer;

	rc = wait_event_interruptible_hrtimeout(region->wait,
						tmesh_fence_check(claim, cmd->value, deaths,
								  &reached) != -EAGAIN, timeout);
	/* What it has come to does not change any more, and counts before a signal. */
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
	/* Under the lock: who has lapsed is to be abandoned, and must not begin after that. */
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
	wake_up_all(&region->wait);
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
	rc = tmesh_fence_wait(claim, cmd);
	trace_tmesh_wait(claim->region->id, value, cmd->value, rc);
	/* How far it got is told whatever ended the wait. */
	return tmesh_respond(ucmd, sizeof(*cmd)) ?: rc;
}
