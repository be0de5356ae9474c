// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of a memfd that is sealed against shrinking.
 *
 * The region holds the pages, for devices. Memory mappings are the memfd's own: pages of a
 * page cache that something else mapped would break when a hole is punched.
 */
#include <linux/cpu.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "backing.h"
#include "mem.h"

/* Regions of a memfd. */
#define TMESH_MEMFD_REGIONS 1024

/**
 * struct tmesh_memfd_mem - memory of a memfd
 * @mem:    the common part
 * @file:   the memfd; reference
 * @alias:  the same pages, as the file of mappings; reference
 * @node:   among all, by inode; guarded by memfds_lock, as are the following
 * @writes: it may be written by way of its region
 * @joined: how many others of the same memfd came that may be
 */
struct tmesh_memfd_mem {
	struct tmesh_mem mem;
	struct file *file;
	struct file *alias;
	struct hlist_node node;
	bool writes;
	u64 joined;
};

/*
 * All memory of memfds, by inode: one region's seal is no other's, but the memfd is theirs in
 * common, and so are the references of its pages: what stands here has one on each of its pages.
 * The lock guards our F_SEAL_WRITE too: who is added finds it, or is found.
 */
static DEFINE_HASHTABLE(memfds, 10);
static DEFINE_SPINLOCK(memfds_lock);

static struct tmesh_memfd_mem *to_memfd(const struct tmesh_mem *mem)
{
	return container_of(mem, struct tmesh_memfd_mem, mem);
}

static void tmesh_memfd_release(struct tmesh_mem *mem)
{
	struct tmesh_memfd_mem *memfd = to_memfd(mem);
	unsigned long i;

	spin_lock(&memfds_lock);
	hash_del(&memfd->node);
	spin_unlock(&memfds_lock);
	for (i = 0; i < mem->nr_pages; i++) {
		put_page(mem->pages[i]);
		cond_resched();
	}
	tmesh_mem_fini(mem);
	fput(memfd->alias);
	fput(memfd->file);
	kfree(memfd);
}

/*
 * With the memfd itself as the file of a mapping, remap_file_pages() would ask the memfd for any of
 * its pages, beyond the region and past the claim's rights. This one maps nothing.
 */
static const struct file_operations tmesh_memfd_alias_fops = {
	.owner = THIS_MODULE,
	.fsync = noop_fsync,
};

static struct file *tmesh_memfd_alias(struct file *memfd)
{
	struct inode *inode = file_inode(memfd);
	struct file *alias;

	/* As for handles: the module is the caller's to hold. */
	__module_get(THIS_MODULE);
	ihold(inode);
	alias = alloc_file_pseudo(inode, memfd->f_path.mnt, memfd->f_path.dentry->d_name.name,
				  O_RDWR, &tmesh_memfd_alias_fops);
	if (IS_ERR(alias)) {
		iput(inode);
		module_put(THIS_MODULE);
	}
	return alias;
}

#define TMESH_NO_WRITE (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)

static unsigned int *tmesh_memfd_seals(const struct file *file)
{
	return &SHMEM_I(file_inode(file))->seals;
}

/* Its holder's seals: for mappings the core looks at those of the handle's file, which has none. */
static bool tmesh_memfd_sealed(const struct tmesh_mem *mem)
{
	return READ_ONCE(*tmesh_memfd_seals(to_memfd(mem)->file)) & TMESH_NO_WRITE;
}

/*
 * The memfd counts mappings that could become writable as writers. Ours are made for good
 * what they are asked to be, so that readers stop no seal.
 */
static int tmesh_memfd_mmap(struct tmesh_mem *mem, struct vm_area_struct *vma)
{
	struct tmesh_memfd_mem *memfd = to_memfd(mem);

	if (vma->vm_flags & VM_MAYSHARE && !(vma->vm_flags & VM_WRITE))
		vm_flags_clear(vma, VM_MAYWRITE);
	vma_set_file(vma, memfd->alias);
	return tmesh_file_mmap(memfd->file, vma);
}

/* The page cache has references of its own; a seal, which has the time, counts those too. */
static bool tmesh_memfd_in_use(struct tmesh_mem *mem, struct folio *folio)
{
	return folio_maybe_dma_pinned(folio);
}

/* May it be written by way of another region? */
static bool tmesh_memfd_shared(const struct tmesh_memfd_mem *memfd)
{
	const struct inode *inode = file_inode(memfd->file);
	const struct tmesh_memfd_mem *other;

	lockdep_assert_held(&memfds_lock);
	hash_for_each_possible(memfds, other, node, (unsigned long)inode) {
		if (other != memfd && file_inode(other->file) == inode && other->writes)
			return true;
	}
	return false;
}

/*
 * Somebody may have sealed it since the rights were looked up. Others have to go through all
 * regions of the memfd when they seal it, so there are not too many.
 */
static int tmesh_memfd_join(struct tmesh_memfd_mem *memfd, u32 *rights)
{
	struct inode *inode = file_inode(memfd->file);
	struct tmesh_memfd_mem *other;
	unsigned int others = 0;
	int rc = -EDQUOT;

	spin_lock(&memfds_lock);
	hash_for_each_possible(memfds, other, node, (unsigned long)inode)
		others += file_inode(other->file) == inode;
	if (others >= TMESH_MEMFD_REGIONS)
		goto unlock;
	rc = 0;
	if (tmesh_memfd_sealed(&memfd->mem))
		*rights &= ~TMESH_RIGHT_WRITE;
	memfd->writes = *rights & TMESH_RIGHT_WRITE;
	hash_for_each_possible(memfds, other, node, (unsigned long)inode) {
		if (file_inode(other->file) == inode)
			other->joined += memfd->writes;
	}
	hash_add(memfds, &memfd->node, (unsigned long)inode);
unlock:
	spin_unlock(&memfds_lock);
	return rc;
}

/* References of regions on a folio of a memfd. None of them goes before it leaves the table. */
static int tmesh_memfd_refs(const struct inode *inode, struct folio *folio)
{
	const struct tmesh_memfd_mem *other;
	unsigned long i, end;
	int refs = 0;

	lockdep_assert_held(&memfds_lock);
	hash_for_each_possible(memfds, other, node, (unsigned long)inode) {
		if (file_inode(other->file) != inode)
			continue;
		end = min(folio->index + folio_nr_pages(folio), other->mem.nr_pages);
		for (i = folio->index; i < end; i++)
			refs += page_folio(other->mem.pages[i]) == folio;
	}
	return refs;
}

/*
 * A folio that the file has. Beside what is accounted for, and one of the caller's, it has no
 * reference: neither of a pin, nor a plain one, as direct I/O takes before 6.3 and udmabuf before
 * 6.11. Nor do pages count for which something else has come, which devices would go on seeing.
 */
static int tmesh_memfd_look(const struct tmesh_memfd_mem *memfd, struct tmesh_sealing *sealing,
			    struct folio *folio)
{
	unsigned long end = folio->index + folio_nr_pages(folio), i;
	bool referenced;
	int known;

	if (sealing->found < memfd->mem.nr_pages) {
		if (folio->index != sealing->found)
			return -EBUSY;
		for (i = folio->index; i < min(end, memfd->mem.nr_pages); i++) {
			if (memfd->mem.pages[i] != folio_page(folio, i - folio->index))
				return -EBUSY;
		}
		sealing->found = end;
	}
	/* It was sealed by others, who have looked. */
	if (!sealing->begun)
		return 0;
	spin_lock(&memfds_lock);
	known = tmesh_memfd_refs(file_inode(memfd->file), folio) + folio_nr_pages(folio) + 1;
	referenced = tmesh_folio_referenced(folio, known);
	spin_unlock(&memfds_lock);
	return referenced ? -EAGAIN : 0;
}

static int tmesh_memfd_look_at_piece(const struct tmesh_memfd_mem *memfd,
				     struct tmesh_sealing *sealing)
{
	struct folio_batch batch;
	unsigned int looks = 0, i;
	pgoff_t end = ULONG_MAX;
	int rc = 0;

	if (!sealing->begun)
		end = memfd->mem.nr_pages - 1;
	folio_batch_init(&batch);
	while (!rc && looks < TMESH_PIECE) {
		if (!filemap_get_folios(memfd->file->f_mapping, &sealing->next, end, &batch))
			return sealing->found < memfd->mem.nr_pages ? -EBUSY : 0;
		for (i = 0; i < folio_batch_count(&batch) && !rc; i++)
			rc = tmesh_memfd_look(memfd, sealing, batch.folios[i]);
		looks += i;
		folio_batch_release(&batch);
		cond_resched();
	}
	return rc ? rc : 1;
}

/* Gives up references that the CPU keeps for a while on pages that somebody has just used. */
static long tmesh_memfd_settle_here(void *folio)
{
	struct folio_batch batch;

	folio_get(folio);
	folio_batch_init(&batch);
	folio_batch_add(&batch, folio);
	folio_batch_release(&batch);
	return 0;
}

static void tmesh_memfd_settle(struct tmesh_mem *mem)
{
	int cpu;

	cpus_read_lock();
	for_each_online_cpu(cpu)
		work_on_cpu(cpu, tmesh_memfd_settle_here, page_folio(mem->pages[0]));
	cpus_read_unlock();
}

/* Nobody may write from here on until the look is over, and pages stay where they are. */
static int tmesh_memfd_deny(struct tmesh_memfd_mem *memfd, struct tmesh_sealing *sealing)
{
	unsigned int seals = *tmesh_memfd_seals(memfd->file);
	bool shared;

	/* Others have denied it for good. */
	if (seals & F_SEAL_WRITE)
		return 0;
	if (seals & F_SEAL_SEAL || !(memfd->file->f_mode & FMODE_WRITE))
		return -EBUSY;
	/* First of all: what is mapped by way of another region is not asked for leave. */
	spin_lock(&memfds_lock);
	shared = tmesh_memfd_shared(memfd);
	sealing->joined = memfd->joined;
	spin_unlock(&memfds_lock);
	if (shared || mapping_deny_writable(memfd->file->f_mapping))
		return -EBUSY;
	sealing->begun = true;
	return 0;
}

static int tmesh_memfd_seal_begin(struct tmesh_memfd_mem *memfd, struct tmesh_sealing *sealing)
{
	struct inode *inode = file_inode(memfd->file);
	int rc;

	/*
	 * Who writes to it holds this lock while his own memory is faulted in, for which he needs
	 * mmap_lock, which a mmap() may have that waits for the region's lock. It may also take as
	 * long as he likes.
	 */
	if (!inode_trylock(inode))
		return -EAGAIN;
	rc = tmesh_memfd_deny(memfd, sealing);
	if (!sealing->begun)
		inode_unlock(inode);
	tmesh_memfd_settle_here(page_folio(memfd->mem.pages[0]));
	return rc;
}

static void tmesh_memfd_seal_end(struct tmesh_mem *mem)
{
	struct file *file = to_memfd(mem)->file;

	if (!(*tmesh_memfd_seals(file) & F_SEAL_WRITE))
		mapping_allow_writable(file->f_mapping);
	inode_unlock(file_inode(file));
}

/*
 * Adds F_SEAL_WRITE as fcntl(F_ADD_SEALS) would. That call itself always fails on our memfd,
 * because it takes our references for pins; we know them and look for others instead, on every page
 * of the file, since all of it is sealed.
 */
static int tmesh_memfd_seal(struct tmesh_mem *mem, struct tmesh_sealing *sealing)
{
	struct tmesh_memfd_mem *memfd = to_memfd(mem);
	int rc = 0;

	if (!sealing->next)
		rc = tmesh_memfd_seal_begin(memfd, sealing);
	if (!rc)
		rc = tmesh_memfd_look_at_piece(memfd, sealing);
	if (rc || !sealing->begun)
		return rc;
	spin_lock(&memfds_lock);
	if (memfd->joined != sealing->joined)
		rc = -EBUSY;
	else
		*tmesh_memfd_seals(memfd->file) |= F_SEAL_WRITE;
	spin_unlock(&memfds_lock);
	return rc;
}

static const struct tmesh_backing_ops tmesh_memfd_ops = {
	.backing = TMESH_BACKING_MEMFD,
	.release = tmesh_memfd_release,
	.mmap = tmesh_memfd_mmap,
	.seal = tmesh_memfd_seal,
	.seal_end = tmesh_memfd_seal_end,
	.settle = tmesh_memfd_settle,
	.sealed = tmesh_memfd_sealed,
	.in_use = tmesh_memfd_in_use,
};

/**
 * tmesh_memfd_rights() - may a file back a region, and with what rights?
 * @memfd:  any file
 * @rights: set to TMESH_RIGHT_*
 *
 * Return: 0; -EINVAL when it is no memfd or one that can shrink; -EACCES when it was not
 * opened for reading; -EOPNOTSUPP when it is a memfd of huge pages.
 */
int tmesh_memfd_rights(struct file *memfd, u32 *rights)
{
	unsigned int seals;

	if (file_inode(memfd)->i_sb->s_magic == HUGETLBFS_MAGIC)
		return -EOPNOTSUPP;
	if (!shmem_file(memfd))
		return -EINVAL;
	seals = READ_ONCE(*tmesh_memfd_seals(memfd));
	if (!(seals & F_SEAL_SHRINK))
		return -EINVAL;
	if (!(memfd->f_mode & FMODE_READ))
		return -EACCES;
	*rights = TMESH_RIGHT_READ | TMESH_RIGHT_MANAGE;
	if (memfd->f_mode & FMODE_WRITE && !(seals & TMESH_NO_WRITE))
		*rights |= TMESH_RIGHT_WRITE;
	return 0;
}

/**
 * tmesh_memfd_create() - take the first pages of a memfd
 * @user:     who is charged
 * @file:     a file that tmesh_memfd_rights() found good, at least @nr_pages long
 * @nr_pages: how much
 * @rights:   as found; those that are left when it was sealed meanwhile
 *
 * Context: process context, may sleep long; a fatal signal ends it.
 * Return: the memory, or -EDQUOT, -ENOMEM, -EINTR or what shmem says as a pointer.
 */
struct tmesh_mem *tmesh_memfd_create(struct tmesh_user *user, struct file *file,
				     unsigned long nr_pages, u32 *rights)
{
	struct tmesh_memfd_mem *memfd;
	int rc;

	memfd = kzalloc(sizeof(*memfd), TMESH_GFP);
	if (!memfd)
		return ERR_PTR(-ENOMEM);
	memfd->alias = tmesh_memfd_alias(file);
	if (IS_ERR(memfd->alias)) {
		rc = PTR_ERR(memfd->alias);
		goto free;
	}
	rc = tmesh_mem_init(&memfd->mem, &tmesh_memfd_ops, user, nr_pages);
	if (rc)
		goto put_alias;
	rc = tmesh_memfd_get_pages(file, memfd->mem.pages, nr_pages);
	if (rc)
		goto fini;
	memfd->file = get_file(file);
	rc = tmesh_memfd_join(memfd, rights);
	if (rc) {
		tmesh_memfd_release(&memfd->mem);
		return ERR_PTR(rc);
	}
	/* Whoever holds the memfd may have it mapped. */
	atomic_set(&memfd->mem.escaped, 1);
	return &memfd->mem;

fini:
	tmesh_mem_fini(&memfd->mem);
put_alias:
	fput(memfd->alias);
free:
	kfree(memfd);
	return ERR_PTR(rc);
}
