// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of a memfd that is sealed against shrinking.
 *
 * The region holds the pages, for devices. Memory mappings are the memfd's own: pages of a
 * page cache that something else mapped would break when a hole is punched.
 */
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>

#include "tmesh.h"

/**
 * struct tmesh_memfd_mem - memory of a memfd
 * @mem:   the common part
 * @file:  the memfd; reference
 * @alias: the same pages, as the file of mappings; reference
 * @node:  among the writers
 */
struct tmesh_memfd_mem {
	struct tmesh_mem mem;
	struct file *file;
	struct file *alias;
	struct hlist_node node;
};

/*
 * Memory that may be written by way of its region, by inode: one region's seal is no other's, but
 * the memfd is theirs in common. The lock guards our F_SEAL_WRITE too: who is added finds it, or
 * is found.
 */
static DEFINE_HASHTABLE(writers, 10);
static DEFINE_SPINLOCK(writers_lock);

static struct tmesh_memfd_mem *to_memfd(const struct tmesh_mem *mem)
{
	return container_of(mem, struct tmesh_memfd_mem, mem);
}

static void tmesh_memfd_release(struct tmesh_mem *mem)
{
	struct tmesh_memfd_mem *memfd = to_memfd(mem);
	unsigned long i;

	spin_lock(&writers_lock);
	hash_del(&memfd->node);
	spin_unlock(&writers_lock);
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

/* The page cache has references of its own, so that counting tells nothing. */
static bool tmesh_memfd_in_use(struct tmesh_mem *mem, struct folio *folio)
{
	return folio_maybe_dma_pinned(folio);
}

/* May it be written by way of another region? */
static bool tmesh_memfd_shared(const struct tmesh_memfd_mem *memfd)
{
	const struct inode *inode = file_inode(memfd->file);
	const struct tmesh_memfd_mem *other;

	lockdep_assert_held(&writers_lock);
	hash_for_each_possible(writers, other, node, (unsigned long)inode) {
		if (other != memfd && file_inode(other->file) == inode)
			return true;
	}
	return false;
}

/* Somebody may have sealed it since the rights were looked up. */
static void tmesh_memfd_join(struct tmesh_memfd_mem *memfd, u32 *rights)
{
	spin_lock(&writers_lock);
	if (tmesh_memfd_sealed(&memfd->mem))
		*rights &= ~TMESH_RIGHT_WRITE;
	if (*rights & TMESH_RIGHT_WRITE)
		hash_add(writers, &memfd->node, (unsigned long)file_inode(memfd->file));
	spin_unlock(&writers_lock);
}

/*
 * Adds F_SEAL_WRITE as fcntl(F_ADD_SEALS) would. That call itself always fails on our memfd,
 * because it takes our references for pins; we know them and look for real pins instead.
 */
static int tmesh_memfd_seal(struct tmesh_mem *mem)
{
	struct file *file = to_memfd(mem)->file;
	struct inode *inode = file_inode(file);
	unsigned int *seals = tmesh_memfd_seals(file);
	unsigned long i;
	int rc = 0;

	/*
	 * Who writes to it holds this lock while his own memory is faulted in, for which he needs
	 * mmap_lock, which a mmap() may have that waits for the region's lock. It may also take as
	 * long as he likes.
	 */
	if (!inode_trylock(inode))
		return -EAGAIN;
	if (*seals & F_SEAL_WRITE)
		goto unlock;
	rc = -EBUSY;
	if (*seals & F_SEAL_SEAL || !(file->f_mode & FMODE_WRITE))
		goto unlock;
	rc = mapping_deny_writable(file->f_mapping);
	if (rc)
		goto unlock;
	for (i = 0; i < mem->nr_pages && !rc; i++) {
		if (tmesh_memfd_in_use(mem, page_folio(mem->pages[i])))
			rc = -EBUSY;
		cond_resched();
	}
	spin_lock(&writers_lock);
	if (tmesh_memfd_shared(to_memfd(mem)))
		rc = -EBUSY;
	if (!rc)
		*seals |= F_SEAL_WRITE;
	spin_unlock(&writers_lock);
	if (rc)
		mapping_allow_writable(file->f_mapping);
unlock:
	inode_unlock(inode);
	return rc;
}

static const struct tmesh_backing_ops tmesh_memfd_ops = {
	.backing = TMESH_BACKING_MEMFD,
	.release = tmesh_memfd_release,
	.mmap = tmesh_memfd_mmap,
	.seal = tmesh_memfd_seal,
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
	tmesh_memfd_join(memfd, rights);
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
