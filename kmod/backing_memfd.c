// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of a memfd that is sealed against shrinking.
 *
 * The region has a reference on each page, for devices. Memory mappings are those of the memfd:
 * punching a hole would not unmap pages of its page cache that tmesh had mapped by itself.
 */
#include <linux/cpu.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/jiffies.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "account.h"
#include "account.h"
#include "backing.h"
#include "mem.h"

/* The most regions that one memfd may have. */
#define TMESH_MEMFD_REGIONS 1024

/**
 * struct tmesh_memfd_mem - memory of a memfd
 * @mem:    the common part
 * @file:   the memfd; reference
 * @alias:  the same pages, as the file of mappings; reference
 * @node:   link in memfds, by inode; guarded by memfds_lock, as are @writes and @joined
 * @writes: handles of its region may write to it
 * @joined: number of writable regions of the same memfd that were added after this one
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
 * All memory of memfds, by inode. Several regions may share a memfd, and each has one reference on
 * each of its pages. A seal must account for all of these. The lock also guards the F_SEAL_WRITE
 * that tmesh sets. So a new region either sees that seal, or the sealing region sees the new one.
 */
static DEFINE_HASHTABLE(memfds, 10);
static DEFINE_SPINLOCK(memfds_lock);

static struct tmesh_memfd_mem *to_memfd(const struct tmesh_mem *mem)
{
	return container_of(mem, struct tmesh_memfd_mem, mem);
}

/*
 * A kernel thread closes the file at once, because a process may wait for the memory. fput() would
 * defer that.
 */
static void tmesh_memfd_put(struct file *file)
{
	if (current->flags & PF_KTHREAD)
		__fput_sync(file);
	else
		fput(file);
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
	tmesh_memfd_put(memfd->alias);
	tmesh_memfd_put(memfd->file);
	kfree(memfd);
}

/*
 * The file of each mapping. If it were the memfd itself, remap_file_pages() could map any page of
 * the memfd, outside of the region and without the claim's rights. This file has no mmap operation.
 */
static const struct file_operations tmesh_memfd_alias_fops = {
	.owner = THIS_MODULE,
	.fsync = noop_fsync,
};

static struct file *tmesh_memfd_alias(struct file *memfd)
{
	struct inode *inode = file_inode(memfd);
	struct file *alias;

	/* alloc_file_pseudo() expects its caller to hold the module. */
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

/*
 * Test the memfd's seals. The core does not do this for our mappings: it looks at the seals of the
 * handle's file, which has none.
 */
static bool tmesh_memfd_sealed(const struct tmesh_mem *mem)
{
	return READ_ONCE(*tmesh_memfd_seals(to_memfd(mem)->file)) & TMESH_NO_WRITE;
}

/*
 * shmem counts a mapping that could become writable as a writer. Clear VM_MAYWRITE on a read-only
 * mapping, so that readers do not block F_SEAL_WRITE.
 */
static int tmesh_memfd_mmap(struct tmesh_mem *mem, struct vm_area_struct *vma)
{
	struct tmesh_memfd_mem *memfd = to_memfd(mem);

	if (vma->vm_flags & VM_MAYSHARE && !(vma->vm_flags & VM_WRITE))
		vm_flags_clear(vma, VM_MAYWRITE);
	vma_set_file(vma, memfd->alias);
	return tmesh_file_mmap(memfd->file, vma);
}

/*
 * The page cache has references of its own, so the count of a folio proves nothing here.
 * tmesh_memfd_look() takes the time to account for them.
 */
static bool tmesh_memfd_in_use(struct tmesh_mem *mem, struct folio *folio)
{
	return folio_maybe_dma_pinned(folio);
}

/* Mappings of handles and of the memfd itself have the same inode. */
static bool tmesh_memfd_mapped(const struct tmesh_mem *mem)
{
	return mapping_mapped(to_memfd(mem)->file->f_mapping);
}

/* Test whether another region of the same memfd may write to it. */
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

/* Test whether the region's owner differs from the memfd's owner. */
static bool tmesh_memfd_foreign(const struct tmesh_memfd_mem *memfd)
{
	return !uid_eq(memfd->mem.user->uid, file_inode(memfd->file)->i_uid);
}

/*
 * Add a region to the table. The memfd may have been sealed since the rights were looked up, so
 * drop the right to write in that case. The number of regions of a memfd is limited because a seal
 * walks all of them under memfds_lock.
 */
static int tmesh_memfd_join(struct tmesh_memfd_mem *memfd, u32 *rights)
{
	struct inode *inode = file_inode(memfd->file);
	struct tmesh_memfd_mem *other;
	bool foreign = tmesh_memfd_foreign(memfd);
	unsigned int others = 0, foreigners = 0, own = 0;
	int rc = -EDQUOT;

	spin_lock(&memfds_lock);
	hash_for_each_possible(memfds, other, node, (unsigned long)inode) {
		if (file_inode(other->file) != inode)
			continue;
		others++;
		foreigners += tmesh_memfd_foreign(other);
		own += uid_eq(other->mem.user->uid, memfd->mem.user->uid);
	}
	if (others >= TMESH_MEMFD_REGIONS ||
	    (foreign && !tmesh_shared_fairly(TMESH_MEMFD_REGIONS, foreigners, own)))
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

/*
 * Count the references that regions have on a folio of a memfd. A region drops its references only
 * after it has left the table.
 */
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
 * Check one folio of the file before a seal. It must have no reference except those of the regions,
 * of the page cache and of the caller. That rules out pins as well as the plain references that
 * direct I/O takes before 6.3 and udmabuf before 6.11. The file must also still have the region's
 * own pages: if a page was replaced, devices would go on seeing the old one.
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
	/* The memfd was sealed before, and that seal has checked the references. */
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

/*
 * Drain this CPU's folio batches, which keep references on recently used pages. Releasing a batch
 * with any folio in it does that.
 */
static long tmesh_memfd_settle_here(void *unused)
{
	struct folio *folio = page_folio(ZERO_PAGE(0));
	struct folio_batch batch;

	folio_get(folio);
	folio_batch_init(&batch);
	folio_batch_add(&batch, folio);
	folio_batch_release(&batch);
	return 0;
}

/* The least time between two rounds over all CPUs */
#define TMESH_SETTLE_REST max(HZ / 50, 1)

/* Guards settle_next and serialises the rounds. */
static DEFINE_MUTEX(settle_lock);
static unsigned long settle_next = INITIAL_JIFFIES;
static atomic_long_t settle_rounds;

/*
 * Drain the folio batches of all CPUs before another try of a seal. This interrupts every CPU, so
 * concurrent callers share a round: a round that begins after the call is good enough.
 */
static void tmesh_memfd_settle(void)
{
	long before = atomic_long_read(&settle_rounds), rest;
	int cpu;

	if (mutex_lock_killable(&settle_lock))
		return;
	rest = settle_next - jiffies;
	if (atomic_long_read(&settle_rounds) != before ||
	    (rest > 0 && schedule_timeout_killable(rest)))
		goto unlock;
	atomic_long_inc(&settle_rounds);
	cpus_read_lock();
	for_each_online_cpu(cpu)
		work_on_cpu(cpu, tmesh_memfd_settle_here, NULL);
	cpus_read_unlock();
	settle_next = jiffies + TMESH_SETTLE_REST;
unlock:
	mutex_unlock(&settle_lock);
}

/**
 * tmesh_memfd_settles() - count the rounds of tmesh_memfd_settle()
 *
 * Return: the number of rounds since the module was loaded.
 */
long tmesh_memfd_settles(void)
{
	return atomic_long_read(&settle_rounds);
}

/* Deny writing to the file and keep its pages in place until tmesh_memfd_seal_end(). */
static int tmesh_memfd_deny(struct tmesh_memfd_mem *memfd, struct tmesh_sealing *sealing)
{
	unsigned int seals = *tmesh_memfd_seals(memfd->file);
	bool shared;

	/* F_SEAL_WRITE already denies it for good. */
	if (seals & F_SEAL_WRITE)
		return 0;
	if (seals & F_SEAL_SEAL || !(memfd->file->f_mode & FMODE_WRITE))
		return -EBUSY;
	/*
	 * Check other regions first: mapping_deny_writable() does not refuse a mapping made through
	 * one.
	 */
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
	 * Do not wait for the inode's lock, which would deadlock. The writer of a memfd holds it
	 * and waits for mmap_lock to fault in its own memory. In turn, mmap() of a handle holds
	 * mmap_lock and waits for the region's lock, which is held here. The fault may also take
	 * any time.
	 */
	if (!inode_trylock(inode))
		return -EAGAIN;
	rc = tmesh_memfd_deny(memfd, sealing);
	if (!sealing->begun)
		inode_unlock(inode);
	tmesh_memfd_settle_here(NULL);
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
 * Add F_SEAL_WRITE as fcntl(F_ADD_SEALS) would. That call always fails here, because it takes the
 * regions' references for pins. This function accounts for them and looks for others. It looks at
 * every page of the file, because the seal covers the whole file.
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
	.mapped = tmesh_memfd_mapped,
};

/**
 * tmesh_memfd_rights() - check whether a file may back a region, and return the rights
 * @memfd:  any file
 * @rights: set to TMESH_RIGHT_*
 *
 * Return: 0; -EINVAL if it is not a memfd, or one that can shrink; -EACCES if it was not opened for
 * reading; -EOPNOTSUPP for a memfd of huge pages.
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
 * tmesh_backing_memfd() - take the first pages of a memfd
 * @user:     the user charged
 * @file:     a file that tmesh_memfd_rights() accepted, at least @nr_pages long
 * @nr_pages: number of pages
 * @rights:   rights of the file; loses WRITE if the file was sealed meanwhile
 *
 * Context: process context, may sleep long; a fatal signal ends it.
 * Return: the memory; or -EDQUOT, -ENOMEM, -EINTR or an error of shmem as a pointer.
 */
struct tmesh_mem *tmesh_backing_memfd(struct tmesh_user *user, struct file *file,
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
		tmesh_mem_put(&memfd->mem);
		return ERR_PTR(rc);
	}
	/* Processes may have mapped the memfd itself, and tmesh cannot take that away. */
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
