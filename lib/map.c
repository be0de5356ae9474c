// SPDX-License-Identifier: MIT
/*
 * The one mapping of a region: made when it is first needed, where it is until the end.
 *
 * A forked child inherits what its parent's user has mapped at that moment. What is mapped for the
 * library alone it does not: to copy into the region, or kept for the next time. It would have a
 * writable mapping as long as it lives, and with that nobody could seal the region. So no fork()
 * comes between a mapping and its mark, and an inherited region->addr that is marked leads nowhere.
 */
#include "internal.h"

#include <sys/mman.h>

/* Nobody but the library uses the mapping, and in a child it could be in a seal's way. */
static bool is_own(const struct tmesh_region *region)
{
	return !region->maps && !region->private && !region->sealed &&
	       (region->rights & TMESH_WRITE) && !tmesh_region_inherited(region);
}

/* A mapping for reading of our own is in nobody's way: on memfd there is none, and the module's
 * seal asks for writable ones. */
static bool is_marked(const struct tmesh_region *region, int prot)
{
	return (prot & PROT_WRITE) && is_own(region);
}

/* The rest is under tmesh_fork_keep_off(). */

static int map_new(struct tmesh_region *region, int prot, bool marked, void **addr,
		   struct tmesh_error *err)
{
	int rc = region->ctx->ops->mmap(region, prot, addr, err);

	if (rc || !marked || madvise(*addr, region->alloc, MADV_DONTFORK) == 0)
		return rc;
	rc = tmesh_fail_errno(err, "keeping the mapping of a region from forked children");
	munmap(*addr, region->alloc);
	return rc;
}

static int map_first(struct tmesh_region *region, int prot, struct tmesh_error *err)
{
	bool marked = is_marked(region, prot);
	void *addr;
	int rc = map_new(region, prot, marked, &addr, err);

	if (rc)
		return rc;
	region->marked = marked;
	region->prot = prot;
	region->addr = addr;
	return 0;
}

/* The new one is made elsewhere and moved: mapping over the old one at once would leave a hole
 * where that fails. */
static int map_again(struct tmesh_region *region, int prot, struct tmesh_error *err)
{
	bool marked = is_marked(region, prot);
	void *addr;
	int rc = map_new(region, prot, marked, &addr, err);

	if (rc)
		return rc;
	if (mremap(addr, region->alloc, region->alloc, MREMAP_MAYMOVE | MREMAP_FIXED,
		   region->addr) == MAP_FAILED) {
		rc = tmesh_fail_errno(err, "mremap of a region");
		munmap(addr, region->alloc);
		return rc;
	}
	region->marked = marked;
	region->prot = prot;
	return 0;
}

/* For a user, whose children have it. Of a device's memory the kernel takes no mark away: there the
 * mapping is made anew. */
static int unmark(struct tmesh_region *region, struct tmesh_error *err)
{
	if (madvise(region->addr, region->alloc, MADV_DOFORK))
		return map_again(region, region->prot, err);
	region->marked = false;
	return 0;
}

static int map_as_wanted(struct tmesh_region *region, int prot, struct tmesh_error *err)
{
	if (!region->addr)
		return map_first(region, prot, err);
	if (prot & ~region->prot)
		return map_again(region, prot, err);
	return region->marked && !is_own(region) ? unmark(region, err) : 0;
}

int tmesh_region_map_locked(struct tmesh_region *region, int prot, struct tmesh_error *err)
{
	int rc;

	if (region->private)
		prot = PROT_READ | PROT_WRITE;
	if (region->marked && tmesh_region_inherited(region)) {
		region->addr = NULL;
		region->marked = false;
	}
	if (region->addr && !(prot & ~region->prot) && !region->marked)
		return 0;
	tmesh_fork_keep_off();
	rc = map_as_wanted(region, prot, err);
	tmesh_fork_let();
	return rc;
}

int tmesh_region_remap(struct tmesh_region *region, int prot, struct tmesh_error *err)
{
	int rc;

	tmesh_fork_keep_off();
	rc = map_again(region, prot, err);
	tmesh_fork_let();
	return rc;
}

int tmesh_region_map_over(struct tmesh_region *region, int prot, int fd, struct tmesh_error *err)
{
	int rc = 0;

	tmesh_fork_keep_off();
	if (mmap(region->addr, region->alloc, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		rc = tmesh_fail_errno(err, "mmap of a region");
	if (!rc) {
		region->prot = prot;
		region->marked = is_marked(region, prot) &&
				 madvise(region->addr, region->alloc, MADV_DONTFORK) == 0;
	}
	tmesh_fork_let();
	return rc;
}

void tmesh_region_drop_mapping(struct tmesh_region *region)
{
	if (region->addr && !(region->marked && tmesh_region_inherited(region)))
		munmap(region->addr, region->alloc);
	region->addr = NULL;
	region->marked = false;
}

int tmesh_region_map(struct tmesh_region *region, uint32_t rights, void **addr,
		     struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, region, addr);

	if (rc)
		return rc;
	if (rights != TMESH_READ && rights != (TMESH_READ | TMESH_WRITE))
		return tmesh_fail(
			err, -EINVAL,
			"map: rights 0x%x are neither TMESH_READ nor TMESH_READ | TMESH_WRITE",
			rights);
	if (rights & TMESH_WRITE)
		rc = tmesh_region_may_here(region, TMESH_WRITE, "map", err);
	else if (tmesh_lease_lapsed_here(region))
		rc = tmesh_fail(err, -ESTALE, "map: this handle's lease is over");
	if (rc)
		return rc;
	tmesh_region_lock(region);
	region->maps++;
	if ((rights & TMESH_WRITE) && region->sealed)
		rc = tmesh_fail(
			err, -EPERM,
			"map: the region is sealed; map it for reading, or take a private view");
	else
		rc = tmesh_region_map_locked(
			region, rights & TMESH_WRITE ? PROT_READ | PROT_WRITE : PROT_READ, err);
	if (rc)
		region->maps--;
	else
		*addr = region->addr;
	tmesh_region_unlock(region);
	return rc;
}

/* The mapping itself stays until the end: mapping again is then free, and the pool wants it. Where
 * the kernel does not mark it, a child has it, as it had before. */
void tmesh_region_unmap(struct tmesh_region *region, uint32_t rights)
{
	tmesh_region_lock(region);
	if (region->maps)
		region->maps--;
	if (region->addr && !region->marked && is_own(region)) {
		tmesh_fork_keep_off();
		region->marked = madvise(region->addr, region->alloc, MADV_DONTFORK) == 0;
		tmesh_fork_let();
	}
	tmesh_region_unlock(region);
}
