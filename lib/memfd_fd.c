// SPDX-License-Identifier: MIT
/*
 * The descriptor of a memfd region: one, at the same number all the region's life. It can
 * write at first, as far as the handle's rights go. The first token for reading puts a
 * read-only one in its place, for other processes to duplicate (docs/rendezvous.md). What
 * needs to write to the file after that opens it anew for as long as that takes; pieces
 * written one after the other, and a caller who asks for the number, bring a writable one
 * back for good.
 *
 * It changes with region->lock and ctx->lock held, so either keeps it as it is.
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

int tmesh_reopen(struct tmesh_ctx *ctx, int fd, int mode, struct tmesh_error *err)
{
	int proc = atomic_load(&ctx->proc);
	char name[TMESH_FD_NAME];
	int own;

	/* Walking to /proc/self/fd costs more than opening what is in it: it stays open. */
	if (proc < 0) {
		int none = -1;

		proc = open("/proc/self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (proc < 0)
			return errno == ENOENT
				       ? tmesh_fail(err, -EOPNOTSUPP,
						    "a descriptor with other rights needs /proc, "
						    "which is not mounted")
				       : tmesh_fail_errno(err, "opening /proc/self/fd");
		if (!atomic_compare_exchange_strong(&ctx->proc, &none, proc)) {
			close(proc);
			proc = none;
		}
	}
	tmesh_fd_name(name, fd);
	own = openat(proc, name, mode | O_CLOEXEC);
	return own < 0 ? tmesh_fail_errno(err, "reopening a region's descriptor") : own;
}

int tmesh_memfd_reopen(struct tmesh_region *region, int mode, struct tmesh_error *err)
{
	return tmesh_reopen(region->ctx, region->fd, mode, err);
}

bool tmesh_memfd_reads_only(const struct tmesh_region *region)
{
	/* What this process made can write until it is lowered or sealed. */
	if (region->reads_only || region->created)
		return region->reads_only;
	return (fcntl(region->fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

bool tmesh_memfd_lower(struct tmesh_region *region)
{
	int own;

	if (region->fd_stays || !region->reopens || atomic_load(&region->writers))
		return false;
	own = tmesh_memfd_reopen(region, O_RDONLY, NULL);
	if (own < 0)
		return false;
	/* Replacing an open descriptor needs no memory and no free number. */
	dup3(own, region->fd, O_CLOEXEC);
	close(own);
	region->reads_only = true;
	return true;
}

static bool lowered(const struct tmesh_region *region)
{
	return region->reads_only && !region->sealed && region->rights != TMESH_READ;
}

/* Whoever has read in the index of a read-only descriptor looks there again after having
 * duplicated it. */
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
	region->reads_only = false;
	pthread_mutex_unlock(&region->ctx->lock);
	close(own);
	region->fd_stays = true;
	return 0;
}

int tmesh_memfd_fd_told(struct tmesh_region *region, struct tmesh_error *err)
{
	int rc;

	tmesh_region_lock(region);
	region->fd_stays = true;
	rc = tmesh_memfd_lift(region, err);
	tmesh_region_unlock(region);
	return rc;
}

int tmesh_memfd_writer_get(struct tmesh_region *region, struct tmesh_error *err)
{
	return lowered(region) ? tmesh_memfd_reopen(region, O_RDWR, err) : region->fd;
}

void tmesh_memfd_writer_put(const struct tmesh_region *region, int fd)
{
	int code = errno;

	if (fd != region->fd)
		close(fd);
	errno = code;
}

/* The mapping is made before the descriptor is opened anew: as what made the file it is no holder
 * of its own. */
bool tmesh_memfd_lend(struct tmesh_region *region)
{
	if (!(region->opts.flags & TMESH_REGION_REUSE) || region->shared)
		return false;
	return region->lent || (!region->reads_only && !region->fd_stays &&
				tmesh_region_map_locked(region, PROT_READ | PROT_WRITE, NULL) == 0);
}

/*
 * The kernel gives a lease for writing to the only open file of an inode alone. Readers have the
 * read-only file that tokens led to, or one of their own, and keep it by a descriptor, by a mapping
 * or in a message under way. So that file is let go of here first. What made the inode, which the
 * mapping keeps, counts as no open file.
 *
 * Who opens the file while the lease is there waits, and the kernel tells the lease's owner by a
 * signal: one that does nothing where nobody wants it.
 */
bool tmesh_memfd_returned(struct tmesh_region *region)
{
	atomic_thread_fence(memory_order_seq_cst); /* tmesh_index_hit_holds() */
	if (region->reads_only) {
		int own = tmesh_memfd_reopen(region, O_RDWR, NULL);

		if (own < 0)
			return false;
		dup3(own, region->fd, O_CLOEXEC);
		close(own);
		region->reads_only = false;
	}
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
	own = fcntl(region->fd, F_DUPFD_CLOEXEC, 0);
	return own < 0 ? tmesh_fail_errno(err, "duplicating a region's descriptor") : own;
}
