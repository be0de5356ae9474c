// SPDX-License-Identifier: MIT
/*
 * The descriptor of a memfd region: one, at the same number all the region's life. It can write at
 * first, as far as the handle's rights go. The first token for reading replaces it by a read-only
 * one, which other processes duplicate (docs/internals/rendezvous.md).
 *
 * After that, a write opens the file anew for as long as the write takes. Pieces written one after
 * the other bring a writable descriptor back for good, and so does a caller that asks for the
 * number.
 *
 * The descriptor changes with region->lock and ctx->lock held, so either keeps it as it is.
 */
#include "memfd.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

void tmesh_fd_name(char name[TMESH_FD_NAME], int number)
{
	char digits[TMESH_FD_NAME];
	int count = 0;

	do
		digits[count++] = (char)('0' + number % 10);
	while ((number /= 10) && count < TMESH_FD_NAME - 1);
	while (count)
		*name++ = digits[--count];
	*name = '\0';
}

/* Return a descriptor of /proc/self/fd. It stays open, since the walk to it costs more than a
 * reopen. */
static int own_proc(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	int proc = atomic_load(&ctx->memfd.proc), none = -1;

	if (proc >= 0)
		return proc;
	proc = open("/proc/self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (proc < 0)
		return errno == ENOENT ? tmesh_fail(err, -EOPNOTSUPP,
						    "a descriptor with other rights needs /proc, "
						    "which is not mounted")
				       : tmesh_fail_errno(err, "opening /proc/self/fd");
	if (!atomic_compare_exchange_strong(&ctx->memfd.proc, &none, proc)) {
		close(proc);
		proc = none;
	}
	return proc;
}

int tmesh_reopen(struct tmesh_ctx *ctx, int fd, int mode, struct tmesh_error *err)
{
	char name[TMESH_FD_NAME];
	bool again = true;
	int own, proc;

	tmesh_fd_name(name, fd);
	do {
		proc = own_proc(ctx, err);
		if (proc < 0)
			return proc;
		/* See tmesh_foreign_reopen(). */
		own = openat(proc, name, mode | O_NONBLOCK | O_CLOEXEC);
		if (own >= 0 || (errno != ENOTDIR && errno != EBADF && errno != ENOENT))
			break;
		/* This process has closed it, and another file may have its number. */
		atomic_compare_exchange_strong(&ctx->memfd.proc, &proc, -1);
		again = !again;
	} while (!again);
	if (own < 0 && errno == EWOULDBLOCK)
		return tmesh_fail(err, -EBUSY,
				  "cannot open a region's memory anew: process %d has a file lease "
				  "(F_SETLEASE) on it; end that process, or try again later",
				  err ? (int)tmesh_proc_leaser(fd) : 0);
	return own < 0 ? tmesh_fail_errno(err, "reopening a region's descriptor") : own;
}

static size_t guard_bytes(const struct tmesh_region *region)
{
	return region->kind & TMESH_KIND_HUGETLB ? TMESH_HUGE_BYTES : tmesh_page_bytes();
}

/*
 * Map the guard, one private page without access. It was mapped by a descriptor that can write and
 * is closed again. The page keeps the file open for writing, so the kernel gives no lease to
 * readers. It uses no descriptor, and a seal does not count it.
 *
 * A forked child does not inherit it, because the child would be another holder of the memory.
 * Without a guard a lease is possible, and tmesh_reopen() reports it.
 */
void tmesh_memfd_guard(struct tmesh_region *region)
{
	size_t bytes = guard_bytes(region);
	void *page;
	int own;

	if (region->memfd.guard || region->sealed || !region->memfd.reopens ||
	    !(region->rights & TMESH_WRITE) || tmesh_region_inherited(region))
		return;
	own = tmesh_memfd_reopen(region, O_RDWR, NULL);
	if (own < 0)
		return;
	tmesh_fork_keep_off();
	page = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, own, 0);
	if (page != MAP_FAILED && madvise(page, bytes, MADV_DONTFORK)) {
		munmap(page, bytes);
		page = MAP_FAILED;
	}
	tmesh_fork_let();
	close(own);
	if (page != MAP_FAILED)
		region->memfd.guard = page;
}

void tmesh_memfd_unguard(struct tmesh_region *region)
{
	if (region->memfd.guard && !tmesh_region_inherited(region))
		munmap(region->memfd.guard, guard_bytes(region));
	region->memfd.guard = NULL;
}

bool tmesh_memfd_has_file(const struct tmesh_region *region)
{
	struct stat st;

	/* Only a descriptor that was closed cannot be asked. */
	if (fstat(region->fd, &st))
		return errno != EBADF;
	return st.st_ino == region->memfd.ino && st.st_dev == region->memfd.dev;
}

int tmesh_memfd_check_file(const struct tmesh_region *region, struct tmesh_error *err)
{
	if (tmesh_memfd_has_file(region))
		return 0;
	errno = EBADF;
	return tmesh_fail(
		err, -EBADF,
		"region %016llx: this process has closed its descriptor %d; a daemon closes "
		"descriptors first, and then makes and opens regions",
		(unsigned long long)region->id, region->fd);
}

int tmesh_memfd_reopen(struct tmesh_region *region, int mode, struct tmesh_error *err)
{
	int rc = tmesh_memfd_check_file(region, err);

	return rc ? rc : tmesh_reopen(region->ctx, region->fd, mode, err);
}

bool tmesh_memfd_reads_only(const struct tmesh_region *region)
{
	/* A region made here can write until it is lowered or sealed. */
	if (region->memfd.reads_only || region->created)
		return region->memfd.reads_only;
	return (fcntl(region->fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

bool tmesh_memfd_lower(struct tmesh_region *region)
{
	int own;

	if (region->memfd.fd_stays || !region->memfd.reopens || atomic_load(&region->writers))
		return false;
	own = tmesh_memfd_reopen(region, O_RDONLY, NULL);
	if (own < 0)
		return false;
	/* Replacing an open descriptor needs no memory and no free number. */
	dup3(own, region->fd, O_CLOEXEC);
	close(own);
	region->memfd.reads_only = true;
	return true;
}

static bool lowered(const struct tmesh_region *region)
{
	return region->memfd.reads_only && !region->sealed && region->rights != TMESH_READ;
}

/* Make the descriptor writable again. A reader whose index entry says "read-only" checks the entry
 * again after it has duplicated the descriptor. */
int tmesh_memfd_lift(struct tmesh_region *region, struct tmesh_error *err)
{
	int own;

	if (!lowered(region))
		return 0;
	own = tmesh_memfd_reopen(region, O_RDWR, err);
	if (own < 0)
		return own;
	pthread_mutex_lock(&region->ctx->lock);
	tmesh_server_set_writable(region);
	dup3(own, region->fd, O_CLOEXEC);
	region->memfd.reads_only = false;
	pthread_mutex_unlock(&region->ctx->lock);
	close(own);
	region->memfd.fd_stays = true;
	return 0;
}

int tmesh_memfd_fd_told(struct tmesh_region *region, struct tmesh_error *err)
{
	int rc;

	tmesh_region_lock(region);
	region->memfd.fd_stays = true;
	rc = tmesh_memfd_lift(region, err);
	tmesh_region_unlock(region);
	return rc;
}

int tmesh_memfd_writer_get(struct tmesh_region *region, struct tmesh_error *err)
{
	int rc;

	if (lowered(region))
		return tmesh_memfd_reopen(region, O_RDWR, err);
	rc = tmesh_memfd_check_file(region, err);
	return rc ? rc : region->fd;
}

void tmesh_memfd_writer_put(const struct tmesh_region *region, int fd)
{
	int code = errno;

	if (fd != region->fd)
		close(fd);
	errno = code;
}

/* Prepare the region for the pool's use after its tokens. The mapping is made before the descriptor
 * is opened anew: a mapping of the open file that made the inode does not count as a holder. */
bool tmesh_memfd_lend(struct tmesh_region *region)
{
	if (!(region->opts.flags & TMESH_REGION_REUSE) || region->shared)
		return false;
	return region->lent || (!region->memfd.reads_only && !region->memfd.fd_stays &&
				tmesh_region_map_locked(region, PROT_READ | PROT_WRITE, NULL) == 0);
}

/*
 * Return whether no other process holds the memory, by taking a lease for writing.
 *
 * The kernel grants that lease only if the inode has one open file. Readers have the read-only file
 * that tokens led to, or one of their own. They keep it by a descriptor, a mapping or a message
 * under way. So this process's read-only file is closed first. The open file that made the inode,
 * which the mapping keeps, does not count.
 *
 * A process that opens the file during the lease waits, and the kernel signals the lease's owner.
 * SIGURG does nothing unless the program handles it.
 */
bool tmesh_memfd_returned(struct tmesh_region *region)
{
	atomic_thread_fence(memory_order_seq_cst); /* tmesh_index_hit_holds() */
	if (region->memfd.reads_only) {
		int own = tmesh_memfd_reopen(region, O_RDWR, NULL);

		if (own < 0)
			return false;
		dup3(own, region->fd, O_CLOEXEC);
		close(own);
		region->memfd.reads_only = false;
	}
	tmesh_memfd_unguard(region);
	return fcntl(region->fd, F_SETSIG, SIGURG) == 0 &&
	       fcntl(region->fd, F_SETLEASE, F_WRLCK) == 0 &&
	       fcntl(region->fd, F_SETLEASE, F_UNLCK) == 0;
}

int tmesh_memfd_handle(struct tmesh_region *region, uint32_t rights, struct tmesh_error *err)
{
	int own;

	if (rights == TMESH_READ && !tmesh_memfd_reads_only(region))
		return tmesh_memfd_reopen(region, O_RDONLY, err);
	if (rights != TMESH_READ && lowered(region))
		return tmesh_memfd_reopen(region, O_RDWR, err);
	own = tmesh_memfd_check_file(region, err);
	if (own)
		return own;
	own = fcntl(region->fd, F_DUPFD_CLOEXEC, 0);
	return own < 0 ? tmesh_fail_errno(err, "duplicating a region's descriptor") : own;
}
