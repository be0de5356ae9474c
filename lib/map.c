// SPDX-License-Identifier: MIT
/*
 * The one mapping of a region: made when it is first needed, at one address until the end.
 *
 * A forked child inherits the mappings that its parent's user has made. It does not inherit a
 * mapping that only the library uses, to copy into the region or for the next time. Such a writable
 * mapping would live as long as the child and keep the region from being sealed.
 *
 * So no fork() comes between a mapping and its mark (MADV_DONTFORK). An inherited region->addr that
 * is marked leads nowhere.
 *
 * A private view is mapped for reading until this process wants to write to it. A driver that
 * copies from a writable private mapping can have the kernel copy all of its pages.
 */
#include "internal.h"

#include <sys/mman.h>

/* Return whether the library alone uses the mapping. In a child, such a mapping could prevent a
 * seal. */
static bool is_own(const struct tmesh_region *region)
{
	return !region->maps && !region->private && !region->sealed &&
	       (region->rights & TMESH_WRITE) && !tmesh_region_inherited(region);
}

/* Return whether to mark the mapping. A mapping for reading prevents no seal: memfds have none of
 * the library's own, and the module's seal checks only writable ones. */
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

/* Put a new mapping in the region's place. It was made elsewhere: mapping over the old one could
 * fail and, before Linux 6.12, leave a hole. */
static int move_here(struct tmesh_region *region, void *addr, struct tmesh_error *err)
{
	int rc;

	if (mremap(addr, region->alloc, region->alloc, MREMAP_MAYMOVE | MREMAP_FIXED,
		   region->addr) != MAP_FAILED)
		return 0;
	rc = tmesh_fail_errno(err, "mremap of a region");
	munmap(addr, region->alloc);
	return rc;
}

static int map_again(struct tmesh_region *region, int prot, struct tmesh_error *err)
{
	bool marked = is_marked(region, prot);
	void *addr;
	int rc = map_new(region, prot, marked, &addr, err);

	if (!rc)
		rc = move_here(region, addr, err);
	if (rc)
		return rc;
	region->marked = marked;
	region->prot = prot;
	return 0;
}

/* Let this process write to a private view, which was mapped for reading until now. Pages that a
 * driver has pinned stay the view's. */
static int let_write(struct tmesh_region *region, int prot, struct tmesh_error *err)
{
	if (mprotect(region->addr, region->alloc, prot))
		return tmesh_fail_errno(err, "mprotect of a private view");
	region->prot = prot;
	return 0;
}

/* Let children inherit the mapping, for a user. The kernel keeps the mark of a device's memory, so
 * that mapping is made anew. */
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
		return region->private ? let_write(region, prot, err)
				       : map_again(region, prot, err);
	return region->marked && !is_own(region) ? unmark(region, err) : 0;
}

int tmesh_region_map_locked(struct tmesh_region *region, int prot, struct tmesh_error *err)
{
	int rc;

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
	/* Before Linux 5.16 files of huge pages cannot be moved. */
	bool moves = !(region->kind & TMESH_KIND_HUGETLB);
	void *addr;
	int rc;

	tmesh_fork_keep_off();
	addr = mmap(moves ? NULL : region->addr, region->alloc, prot,
		    MAP_SHARED | (moves ? 0 : MAP_FIXED), fd, 0);
	if (addr == MAP_FAILED)
		rc = tmesh_fail_errno(err, "mmap of a region");
	else
		rc = moves ? move_here(region, addr, err) : 0;
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

/* Take pages without the region's lock, because that lasts as long as a copy does. A seal waits for
 * it. */
static void prepare(struct tmesh_region *region)
{
	if (!region->ctx->ops->prepare)
		return;
	pthread_rwlock_rdlock(&region->copies);
	if (!region->sealed)
		region->ctx->ops->prepare(region);
	pthread_rwlock_unlock(&region->copies);
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
	if (!rc && (rights & TMESH_WRITE))
		prepare(region);
	return rc;
}

/* Drop a use of the mapping. The mapping itself stays until the end, for the next use and for the
 * pool. If the kernel cannot mark it, a child inherits it as before. */
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
