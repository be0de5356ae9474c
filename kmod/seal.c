// SPDX-License-Identifier: GPL-2.0-only
/*
 * The seal: nobody writes any more. New writers are kept out by a lock and by the region's state;
 * what was taken before shows in the references of pages, at all of which the seal looks.
 *
 * There may be many. So it looks at a piece of them at a time, and lets go of all locks in between:
 * page faults of readers go on, and a fatal signal ends it. Who could write at any time between the
 * first piece and the last may have a page that was looked at before: then it begins anew.
 */
#include <linux/sched/signal.h>

#include "claim.h"
#include "seal.h"
#include "trace.h"

/* It waits this often, 1, 2, 4, ... ms, for readers that are just being unmapped. */
#define TMESH_SEAL_TRIES 6

/*
 * Mappings by the backing's own means are its file's: it counts them, but only once they are
 * linked, after our ->mmap() has returned. Until then the core counts them on the handle.
 */
static bool tmesh_mapping_in_flight(struct tmesh_region *region)
{
	struct tmesh_claim *claim;

	lockdep_assert_held(&region->claims_lock);
	list_for_each_entry(claim, &region->claims, node) {
		if (mapping_writably_mapped(claim->inode->i_mapping))
			return true;
	}
	return false;
}

/* May a piece be looked at, and count? 1 where the region is sealed already. */
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
	sealing->mem = region->mem;
	sealing->wrote = wrote;
	return 0;
}

/* Looks at a piece. Above 0 when there is more; with the last one the region is sealed. */
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
	/* What begins something cannot be revoked, so that it is there without a lock. */
	mem = sealing.mem;
	if (sealing.begun)
		mem->ops->seal_end(mem);
	if (rc == -EAGAIN && mem && mem->ops->settle)
		mem->ops->settle(mem);
	return rc;
}

/**
 * tmesh_region_sealed() - may nothing begin to write to a region?
 * @region: not revoked
 *
 * Context: the region's lock is held.
 * Return: true when it is sealed, or its memory was by others.
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
