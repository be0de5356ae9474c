// SPDX-License-Identifier: GPL-2.0-only
/*
 * Seals: after TMESH_SEAL nothing can write to the memory. The region's lock and its state keep new
 * writers out. Earlier pins show in the references of pages, so the seal looks at all pages.
 *
 * It looks at one piece at a time and drops all locks in between, so that page faults of readers go
 * on and a fatal signal ends it. A writer that existed between the first piece and the last may
 * have pinned a page that was looked at before. The seal then begins again.
 */
#include <linux/sched/signal.h>

#include "claim.h"
#include "mem.h"
#include "seal.h"
#include "trace.h"

/* The number of waits (1, 2, 4, ... ms) for readers that are being unmapped */
#define TMESH_SEAL_TRIES 6

/*
 * Test for a writable mapping that is being made. A mapping by the backing's own @mmap is counted
 * on the backing's file, but only after our ->mmap() has returned. Until then the core counts it on
 * the handle's file.
 */
static bool tmesh_mapping_in_flight(struct tmesh_region *region)
{
	struct tmesh_claim *claim;

	lockdep_assert_held(&region->claims_lock);
	list_for_each_entry(claim, &region->claims, node) {
		cond_resched();
		if (mapping_writably_mapped(claim->inode->i_mapping))
			return true;
	}
	return false;
}

/* Check whether the seal may look at the next piece. Return 1 if the region is sealed already. */
static int tmesh_seal_check(const struct tmesh_claim *claim, struct tmesh_sealing *sealing)
{
	struct tmesh_region *region = claim->region;
	s64 wrote = atomic64_read(&region->wrote);

	lockdep_assert_held_write(&region->lock);
	if (region->state & TMESH_STATE_REVOKED || tmesh_claim_lapsed(claim))
		return -ESTALE;
	if (region->state & TMESH_STATE_SEALED)
		return 1;
	if (!region->mem->ops->seal)
		return -EOPNOTSUPP;
	if (atomic_read(&region->writers))
		return -EBUSY;
	if (region->mem->ops->mmap && tmesh_mapping_in_flight(region))
		return -EAGAIN;
	if (sealing->mem && sealing->wrote != wrote)
		return -EAGAIN;
	if (!sealing->mem)
		sealing->mem = tmesh_mem_hold(region->mem);
	sealing->wrote = wrote;
	return 0;
}

/* Look at a piece. Return a positive number if there is more. The last piece seals the region. */
static int tmesh_seal_piece(const struct tmesh_claim *claim, struct tmesh_sealing *sealing)
{
	struct tmesh_region *region = claim->region;
	int rc;

	if (mutex_lock_killable(&region->claims_lock))
		return -EINTR;
	rc = -EINTR;
	if (down_write_killable(&region->lock))
		goto unlock;
	rc = tmesh_seal_check(claim, sealing);
	if (!rc) {
		rc = region->mem->ops->seal(region->mem, sealing);
		if (!rc)
			WRITE_ONCE(region->state, region->state | TMESH_STATE_SEALED);
	} else if (rc > 0) {
		rc = 0;
	}
	up_write(&region->lock);
unlock:
	mutex_unlock(&region->claims_lock);
	return rc;
}

static int tmesh_seal_look(const struct tmesh_claim *claim)
{
	struct tmesh_sealing sealing = {};
	struct tmesh_mem *mem;
	int rc;

	do {
		rc = tmesh_seal_piece(claim, &sealing);
		cond_resched();
		if (rc > 0 && fatal_signal_pending(current))
			rc = -EINTR;
	} while (rc > 0);
	mem = sealing.mem;
	if (!mem)
		return rc;
	if (sealing.begun)
		mem->ops->seal_end(mem);
	if (rc == -EAGAIN && mem->ops->settle)
		mem->ops->settle();
	/* This may be the last reference: a revocation may have dropped the others. */
	tmesh_mem_put(mem);
	return rc;
}

/**
 * tmesh_region_sealed() - test whether new writers of a region are forbidden
 * @region: not revoked
 *
 * Context: the region's lock is held.
 * Return: true if the region is sealed, or its memory was sealed through the memfd.
 */
bool tmesh_region_sealed(const struct tmesh_region *region)
{
	const struct tmesh_mem *mem = region->mem;

	lockdep_assert_held(&region->lock);
	return region->state & TMESH_STATE_SEALED || (mem->ops->sealed && mem->ops->sealed(mem));
}

/**
 * tmesh_ioctl_seal() - TMESH_SEAL
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_seal(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	unsigned int try;
	int rc;

	rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);
	if (rc)
		return rc;
	/* Wait for a lapse under way: its mappings can write until they are gone. */
	rc = tmesh_cuts_wait(claim->region);
	if (rc)
		return rc;
	for (try = 0; ; try++) {
		rc = tmesh_seal_look(claim);
		if (rc != -EAGAIN || try == TMESH_SEAL_TRIES)
			break;
		schedule_timeout_killable(msecs_to_jiffies(1 << try));
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	if (rc == -EAGAIN)
		rc = -EBUSY;
	trace_tmesh_seal(claim->region->id, rc);
	return rc;
}
