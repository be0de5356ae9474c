// SPDX-License-Identifier: GPL-2.0-only
/*
 * Revocation: a region is taken back from everybody.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "tmesh.h"
#include "trace.h"

/* Flags the region, so that nobody starts anew, and takes its memory off it. */
static struct tmesh_mem *tmesh_revoke_begin(struct tmesh_region *region)
{
	struct tmesh_mem *mem;

	lockdep_assert_held(&region->claims_lock);
	if (down_write_killable(&region->lock))
		return ERR_PTR(-EINTR);
	if (region->state & TMESH_STATE_REVOKED) {
		mem = ERR_PTR(-ESTALE);
	} else if (atomic_read(&region->mem->escaped)) {
		mem = ERR_PTR(-EOPNOTSUPP);
	} else if (region->nr_pinning) {
		mem = ERR_PTR(-EBUSY);
	} else {
		WRITE_ONCE(region->state, region->state | TMESH_STATE_REVOKED);
		mem = region->mem;
		region->mem = NULL;
	}
	up_write(&region->lock);
	return mem;
}

/* Takes every mapping away and tells importers. Nothing here waits for a device. */
static void tmesh_revoke_claims(struct tmesh_region *region, struct tmesh_mem *mem)
{
	struct tmesh_claim *claim;

	lockdep_assert_held(&region->claims_lock);
	tmesh_names_remove(region);
	tmesh_flush_faults(mem);
	list_for_each_entry(claim, &region->claims, node) {
		tmesh_zap(claim);
		if (claim->kind == TMESH_HOLDER_EXPORT)
			tmesh_export_invalidate(claim);
	}
}

/**
 * tmesh_ioctl_revoke() - TMESH_REVOKE
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_revoke(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_region *region = claim->region;
	struct tmesh_revoke *cmd = ucmd->cmd;
	struct tmesh_holder *holders = NULL;
	u32 room = cmd->count;
	struct tmesh_mem *mem;
	int rc;

	if (cmd->pad)
		return -EINVAL;
	rc = tmesh_check_stride(room, cmd->entry_bytes, offsetofend(struct tmesh_holder, comm));
	if (rc)
		return rc;
	rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);
	if (rc)
		return rc;

	cmd->count = 0;
	cmd->total = 0;
	/* Once the region is revoked there is no way back. */
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (rc)
		return rc;
	if (mutex_lock_killable(&region->claims_lock))
		return -EINTR;
	mem = tmesh_revoke_begin(region);
	rc = PTR_ERR_OR_ZERO(mem);
	if (!rc)
		tmesh_revoke_claims(region, mem);
	else if (rc == -EBUSY &&
		 tmesh_claims_describe(region, TMESH_HOLDER_PINNING, room, &holders, &cmd->count,
				       &cmd->total))
		rc = -ENOMEM;
	mutex_unlock(&region->claims_lock);

	if (!rc) {
		trace_tmesh_revoke(region->id);
		wake_up_all(&region->wait);
		tmesh_exports_wait(region);
		tmesh_mem_put(mem);
		return 0;
	}
	if (rc != -EBUSY)
		return rc;
	if (tmesh_put_holders(cmd->entries, cmd->entry_bytes, holders, cmd->count) ||
	    tmesh_respond(ucmd, sizeof(*cmd)))
		rc = -EFAULT;
	kvfree(holders);
	return rc;
}
