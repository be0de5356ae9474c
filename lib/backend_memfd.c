// SPDX-License-Identifier: MIT
/*
 * The memfd backend: regions are sealed, nameless files in memory. The kernel frees a region with
 * its last holder. It does not enforce rights between processes of one user, nor leases. Those
 * depend on each process's good behaviour, and tmesh_caps() reports that.
 */
#include "common/file_size.h"
#include "held.h"
#include "memfd.h"
#include "keep_internal.h"
#include "watch.h"

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int memfd_open(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	return 0;
}

static void memfd_close(struct tmesh_ctx *ctx)
{
	tmesh_watch_stop(ctx);
	tmesh_server_stop(ctx);
	tmesh_peers_drop(ctx);
	if (ctx->memfd.dir >= 0)
		close(ctx->memfd.dir);
	if (ctx->memfd.proc >= 0)
		close(ctx->memfd.proc);
}

static void memfd_forked(struct tmesh_ctx *ctx)
{
	tmesh_opaque_forked(ctx);
	tmesh_watch_forked(ctx);
	tmesh_server_forked(ctx);
	tmesh_peers_drop(ctx);
	/* It is the parent's. */
	if (ctx->memfd.proc >= 0)
		close(atomic_exchange(&ctx->memfd.proc, -1));
}

/* Refuse a call that needs the region's bytes, if it has none here, or if another file may have its
 * descriptor's number. */
static int check_bytes(const struct tmesh_region *region, const char *what, struct tmesh_error *err)
{
	int rc = tmesh_opaque_refuse(region, what, err);

	return rc ? rc : tmesh_memfd_check_file(region, err);
}

static int handle_fd(struct tmesh_region *region, uint32_t rights, int *fd, struct tmesh_error *err)
{
	tmesh_region_lock(region);
	tmesh_memfd_guard(region);
	*fd = tmesh_memfd_handle(region, rights, err);
	tmesh_region_unlock(region);
	return *fd < 0 ? *fd : 0;
}

static bool memfd_is_sealed(const struct tmesh_region *region)
{
	int seals = fcntl(region->fd, F_GET_SEALS);

	return seals >= 0 && (seals & F_SEAL_WRITE);
}

static int memfd_derive(struct tmesh_region *derived, struct tmesh_region *from, uint32_t rights,
			bool pin, struct tmesh_error *err)
{
	if (pin) {
		int rc = tmesh_memfd_check_file(from, err);

		if (rc)
			return rc;
		if (!memfd_is_sealed(from))
			return tmesh_fail(err, -EINVAL,
					  "pin: region %016llx is not sealed; seal it first",
					  (unsigned long long)from->id);
		if (from->kind & TMESH_KIND_NO_PIN)
			return tmesh_fail(err, -EPERM, "pin: the region's owner refuses pins");
	}
	derived->memfd.reopens = from->memfd.reopens;
	derived->memfd.dev = from->memfd.dev;
	derived->memfd.ino = from->memfd.ino;
	if (from->kind & TMESH_KIND_OPAQUE) {
		int fds[2];
		int count = tmesh_opaque_handles(from, rights, fds, err);

		if (count < 0)
			return count;
		tmesh_opaque_adopt(derived, fds, (unsigned int)count);
	}
	return handle_fd(from, rights, &derived->fd, err);
}

static int memfd_open_token(struct tmesh_region *region, const struct tmesh_token_fields *token,
			    uint32_t rights, struct tmesh_error *err)
{
	struct tmesh_served entry;
	struct tmesh_ctx *ctx = region->ctx;
	struct tmesh_wire_region wire = {.backend = TMESH_BACKEND_MEMFD, .rights = rights};
	int fds[TMESH_WIRE_FDS] = {-1};
	int rc = 0;

	pthread_mutex_lock(&ctx->lock);
	if (tmesh_server_find(ctx, token, &entry)) {
		wire.kind = entry.region->kind;
		wire.id = entry.region->id;
		wire.bytes = entry.region->bytes;
		rc = tmesh_refuse_rights(entry.region, rights, entry.rights, err);
		if (!rc)
			rc = fds[0] = tmesh_memfd_handle(entry.region, rights, err);
		if (rc >= 0 && (wire.kind & TMESH_KIND_OPAQUE))
			rc = tmesh_opaque_handles(entry.region, rights, &fds[1], err);
		if (rc >= 0 && entry.hold)
			tmesh_hold_opened(entry.hold);
	}
	pthread_mutex_unlock(&ctx->lock);
	if (rc < 0) {
		if (fds[0] >= 0)
			close(fds[0]);
		return rc;
	}
	if (fds[0] >= 0)
		return tmesh_memfd_adopt(region, fds, &wire, err);
	return tmesh_peer_open(region, token, rights, err);
}

/* Using. */

/* Return the descriptor to map; tmesh_memfd_writer_put() takes it back. A child only reads what it
 * has inherited. Its mapping must prevent no seal, as one of a descriptor that can write would. */
static int mapped_fd(struct tmesh_region *region, int prot, struct tmesh_error *err)
{
	int own = -1;

	if (prot & PROT_WRITE && !region->private)
		return tmesh_memfd_writer_get(region, err);
	if (tmesh_region_inherited(region) && !tmesh_memfd_reads_only(region))
		own = tmesh_memfd_reopen(region, O_RDONLY, NULL);
	return own < 0 ? region->fd : own;
}

static void *map_file(const struct tmesh_region *region, int fd, int prot)
{
	int flags = region->private ? MAP_PRIVATE : MAP_SHARED;

	if (region->alloc >= TMESH_HUGE_BYTES && !(region->kind & TMESH_KIND_HUGETLB))
		return tmesh_huge_map(fd, region->alloc, prot, flags);
	return mmap(NULL, region->alloc, prot, flags, fd, 0);
}

static int memfd_mmap(struct tmesh_region *region, int prot, void **addr, struct tmesh_error *err)
{
	int rc = check_bytes(region, "map", err);
	int fd;

	if (rc)
		return rc;
	fd = mapped_fd(region, prot, err);
	if (fd < 0)
		return fd;
	*addr = map_file(region, fd, prot);
	tmesh_memfd_writer_put(region, fd);
	if (*addr == MAP_FAILED && errno == EPERM && !(prot & PROT_WRITE)) {
		/* Another process has sealed it meanwhile. Before Linux 6.7 a descriptor that can
		 * write cannot map such a file at all. */
		int own = tmesh_memfd_reopen(region, O_RDONLY, err);

		if (own < 0)
			return own;
		dup3(own, region->fd, O_CLOEXEC);
		close(own);
		*addr = map_file(region, region->fd, prot);
	}
	if (*addr == MAP_FAILED) {
		rc = -errno;
		return rc == -EPERM ? tmesh_fail(err, rc,
						 "map: the region is sealed; map it for reading")
				    : tmesh_fail_errno(err, "mmap of a region");
	}
	/* Best effort: pages that are not huge hold the same bytes. */
	if (region->memfd.align_huge)
		madvise(*addr, region->alloc, MADV_HUGEPAGE);
	return 0;
}

/* The kernel also answers EBUSY if it looks at a page for a moment (compaction, for example) or if
 * a mapping is just going away. If no writer is found, the call is therefore repeated for a while.
 * The kernel itself waits for pages that are pinned, as those of an export are. */
int tmesh_memfd_seal_writes(int fd, struct tmesh_error *err)
{
	const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
	uint64_t end = tmesh_now_ns() + 200 * 1000 * 1000;
	char who[128];

	for (bool last = false;; last = tmesh_now_ns() >= end) {
		if (!fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL))
			return 0;
		if (errno != EBUSY)
			return tmesh_fail_errno(err, "sealing the region");
		tmesh_proc_writers(fd, who, sizeof(who));
		if (*who || last)
			return tmesh_fail(err, -EBUSY,
					  "seal: a writable mapping or export exists%s%s",
					  *who ? ", in process " : "", who);
		nanosleep(&pause, NULL);
	}
}

/*
 * Seal. A writable mapping of ours would keep F_SEAL_WRITE at EBUSY. So would a read-only one of a
 * descriptor that can write, because it could be made writable. Our mapping is therefore replaced
 * in place by one of a read-only descriptor, which then takes the old one's number too.
 */
static int memfd_seal(struct tmesh_region *region, struct tmesh_error *err)
{
	bool lowered = region->memfd.reads_only;
	int own, reader, writer, prot = region->prot, rc = check_bytes(region, "seal", err);

	if (rc)
		return rc;
	/* Another process may have sealed it; then it cannot be sealed again. */
	if (memfd_is_sealed(region))
		return 0;
	own = tmesh_memfd_reopen(region, lowered ? O_RDWR : O_RDONLY, err);
	if (own < 0)
		return own;
	reader = lowered ? region->fd : own;
	writer = lowered ? own : region->fd;
	if (region->addr)
		rc = tmesh_region_map_over(region, PROT_READ, reader, err);
	if (!rc) {
		rc = tmesh_memfd_seal_writes(writer, err);
		if (rc && region->addr && tmesh_region_map_over(region, prot, writer, NULL))
			tmesh_log(region->ctx, TMESH_LOG_ERROR,
				  "a failed seal left the mapping of a region read-only");
	}
	if (!rc) {
		if (!lowered)
			dup3(own, region->fd, O_CLOEXEC);
		region->memfd.reads_only = true;
		tmesh_memfd_unguard(region);
	}
	close(own);
	return rc;
}

/* Write to the trailer as pwrite() does, since files of huge pages have no write(). */
static int trailer_write(const struct tmesh_region *region, int fd, uint64_t offset,
			 const void *data, size_t bytes)
{
	uint64_t room = tmesh_memfd_trailer_bytes(region->kind);
	void *page;

	if (!(region->kind & TMESH_KIND_HUGETLB))
		return tmesh_pwrite(fd, data, bytes, (off_t)(region->alloc + offset)) ==
				       (ssize_t)bytes
			       ? 0
			       : -1;
	/* In a child the mapping would stay. */
	tmesh_fork_keep_off();
	page = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)region->alloc);
	if (page != MAP_FAILED) {
		memcpy((uint8_t *)page + offset, data, bytes);
		munmap(page, room);
	}
	tmesh_fork_let();
	return page == MAP_FAILED ? -1 : 0;
}

/* Write the present identity and description; the rest of an older description is erased. */
static int trailer_set(struct tmesh_region *region, const char *text, uint32_t bytes)
{
	struct tmesh_trailer head = {
		.magic = TMESH_TRAILER_MAGIC,
		.description_bytes = bytes,
		.id = region->id,
		.bytes = region->bytes,
	};
	uint32_t old = region->description_bytes;
	char padded[TMESH_DESCRIPTION_LEN] = "";
	int fd = tmesh_memfd_writer_get(region, NULL);
	int rc = 0;

	if (fd < 0)
		return -1;
	memcpy(head.label, region->label, sizeof(head.label));
	if (bytes)
		memcpy(padded, text, bytes);
	if (bytes || old)
		rc = trailer_write(region, fd, TMESH_TRAILER_TEXT, padded,
				   bytes > old ? bytes : old);
	if (!rc)
		rc = trailer_write(region, fd, 0, &head, sizeof(head));
	if (!rc)
		region->description_bytes = bytes;
	tmesh_memfd_writer_put(region, fd);
	return rc;
}

static int memfd_set_description(struct tmesh_region *region, const char *text, uint32_t bytes,
				 struct tmesh_error *err)
{
	int rc = tmesh_memfd_check_file(region, err);

	if (rc)
		return rc;
	if (region->kind & TMESH_KIND_FOREIGN)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "describe: a memfd made elsewhere has no room for a description");
	if (trailer_set(region, text, bytes))
		return tmesh_fail_errno(err, "describing the region");
	return 0;
}

static int memfd_read(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		      struct tmesh_error *err)
{
	int rc = check_bytes(region, "read", err);

	if (rc)
		return rc;
	while (bytes) {
		ssize_t got = pread(region->fd, data, bytes, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return tmesh_fail_errno(err, "reading the region");
		if (got == 0)
			return tmesh_fail(err, -ESTALE, "read: the region's memory has vanished");
		data = (uint8_t *)data + got;
		offset += (uint64_t)got;
		bytes -= (uint64_t)got;
	}
	return 0;
}

/* Take pages. The descriptor can write until the copy is done: region->writers. */
static int memfd_populate(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			  struct tmesh_error *err)
{
	return tmesh_memfd_populates(region) ? tmesh_memfd_populate(region, offset, bytes, err) : 0;
}

static int memfd_write_ready(struct tmesh_region *region, struct tmesh_error *err)
{
	int rc = check_bytes(region, "write", err);

	if (rc)
		return rc;
	return region->kind & TMESH_KIND_HUGETLB
		       ? tmesh_region_map_locked(region, PROT_READ | PROT_WRITE, err)
		       : tmesh_memfd_lift(region, err);
}

/* Write by write(), which allocates and fills pages without the fault of each in a mapping. */
static int memfd_write_cold(struct tmesh_region *region, uint64_t offset, const void *data,
			    uint64_t bytes, struct tmesh_error *err)
{
	if (region->kind & TMESH_KIND_HUGETLB) {
		tmesh_copy((uint8_t *)region->addr + offset, data, bytes);
		return 0;
	}
	while (bytes) {
		ssize_t put = tmesh_pwrite(region->fd, data, bytes, (off_t)offset);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0 && errno == EPERM)
			return tmesh_fail(err, -EPERM, "write: the region is sealed");
		if (put <= 0)
			return tmesh_fail_errno(err, "writing to the region");
		data = (const uint8_t *)data + put;
		offset += (uint64_t)put;
		bytes -= (uint64_t)put;
	}
	return 0;
}

static int memfd_export(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			uint32_t rights, int *fd, struct tmesh_error *err)
{
	struct udmabuf_create create = {
		.flags = UDMABUF_FLAGS_CLOEXEC,
		.offset = offset,
		.size = bytes,
	};
	int device, memfd, made, code, rc = check_bytes(region, "export", err);

	if (rc)
		return rc;
	if (!(rights & TMESH_WRITE))
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"export: udmabuf makes only writable dma-bufs; a read-only one needs "
			"the module");
	if (memfd_is_sealed(region))
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"export: udmabuf refuses sealed memory; a sealed region's dma-buf "
			"needs the module");
	device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	if (device < 0)
		return tmesh_fail(err, -EOPNOTSUPP,
				  errno == EACCES
					  ? "export: no permission on /dev/udmabuf"
					  : "export: there is no /dev/udmabuf (CONFIG_UDMABUF)");
	rc = handle_fd(region, rights, &memfd, err);
	if (rc) {
		close(device);
		return rc;
	}
	create.memfd = (uint32_t)memfd;
	made = ioctl(device, UDMABUF_CREATE, &create);
	code = errno;
	close(memfd);
	close(device);
	if (made < 0) {
		errno = code;
		return code == EINVAL
			       ? tmesh_fail(err, -EINVAL,
					    "export: udmabuf refuses %llu bytes; its limits are in "
					    "/sys/module/udmabuf/parameters",
					    (unsigned long long)bytes)
			       : tmesh_fail_errno(err, "making a dma-buf by /dev/udmabuf");
	}
	*fd = made;
	return 0;
}

static int memfd_token(struct tmesh_region *region, uint32_t rights, char *token,
		       struct tmesh_error *err)
{
	struct tmesh_token_fields parts;
	int rc = tmesh_ctx_enter(region->ctx, err);

	if (!rc)
		rc = tmesh_memfd_check_file(region, err);
	if (rc)
		return rc;
	tmesh_region_lock(region);
	/* Also a call that fails leaves it: a reader of an earlier token may be there. */
	if (rights == TMESH_READ && tmesh_memfd_lend(region))
		region->lent = true;
	tmesh_memfd_guard(region);
	pthread_mutex_lock(&region->ctx->lock);
	rc = region->memfd.taken_back ? tmesh_fail(err, -ESTALE, "token: the region was taken back")
				      : tmesh_token_mint(region, rights, &parts, err);
	pthread_mutex_unlock(&region->ctx->lock);
	tmesh_region_unlock(region);
	tmesh_log_said(region->ctx);
	if (!rc)
		tmesh_token_format(token, &parts);
	return rc;
}

static void memfd_release(struct tmesh_region *region)
{
	pthread_mutex_lock(&region->ctx->lock);
	tmesh_server_forget(region);
	if (!region->created && region->ctx->memfd.peers)
		tmesh_peers_sweep(region->ctx);
	pthread_mutex_unlock(&region->ctx->lock);
}

static int memfd_info(struct tmesh_region *region, struct tmesh_region_info *info,
		      struct tmesh_error *err)
{
	struct tmesh_memfd_name name;
	int rc = tmesh_memfd_check_file(region, err);

	if (rc)
		return rc;
	info->id = region->id;
	info->bytes = region->bytes;
	memcpy(info->label, region->label, sizeof(info->label));
	/* Another process made it, and its label was not needed until now. */
	if (!region->created && !*region->label && tmesh_memfd_name_of(region->fd, &name) &&
	    name.id == region->id)
		memcpy(info->label, name.label, sizeof(info->label));
	rc = tmesh_memfd_describe(region->fd, region->kind, info);
	if (rc)
		return tmesh_fail(err, rc, "cannot read what the region's file says (errno %d)",
				  -rc);
	info->rights = region->rights;
	info->node = region->opts.node;
	info->pinning = region->pinning;
	info->lease_ns = tmesh_lease_period_ns(region);
	info->lapsed = tmesh_lease_lapsed_here(region);
	if (region->kind & TMESH_KIND_OPAQUE) {
		info->backing = TMESH_BACKED_BY_OPAQUE;
		info->revoked = tmesh_memfd_events(region) & TMESH_EVENT_TAKEN;
	}
	if (region->memfd.collapses)
		info->huge_bytes = atomic_load(&region->memfd.huge);
	else if (region->addr && region->alloc >= TMESH_HUGE_BYTES && !info->huge_bytes)
		info->huge_bytes = tmesh_huge_mapped(region->addr);
	if (info->huge_bytes > info->alloc_bytes)
		info->huge_bytes = info->alloc_bytes;
	return 0;
}

/* The pool. */

#define POOL_FLAGS                                                                  \
	((uint32_t)(TMESH_REGION_HUGE | TMESH_REGION_TRY_HUGE | TMESH_REGION_NODE | \
		    TMESH_REGION_GID | TMESH_REGION_NO_PIN))

static bool memfd_pool_fits(const struct tmesh_region *region, uint64_t bytes,
			    const struct tmesh_region_opts *opts)
{
	return tmesh_memfd_alloc(region, bytes) == region->alloc &&
	       (!region->memfd.align_huge || tmesh_memfd_wants_huge(opts, bytes)) &&
	       ((opts->flags ^ region->opts.flags) & POOL_FLAGS) == 0 &&
	       opts->node == region->opts.node && opts->gid == region->opts.gid &&
	       opts->mode == region->opts.mode && opts->hold_ms == region->opts.hold_ms;
}

static bool memfd_pool_alone(struct tmesh_region *region)
{
	return tmesh_memfd_has_file(region) && (!region->lent || tmesh_memfd_returned(region));
}

static int memfd_pool_renew(struct tmesh_region *region, uint64_t bytes,
			    const struct tmesh_region_opts *opts)
{
	region->id = tmesh_new_id(region->ctx);
	region->bytes = bytes;
	memset(region->label, 0, sizeof(region->label));
	strcpy(region->label, opts->label);
	region->opts = *opts;
	region->opts.label = region->label;
	memset(region->memfd.tokens, 0, sizeof(region->memfd.tokens));
	region->lent = region->memfd.fd_stays = false;
	return trailer_set(region, NULL, 0) ? -errno : 0;
}

const struct tmesh_backend_ops tmesh_memfd_ops = {
	.backend = TMESH_BACKEND_MEMFD,
	.keep = &tmesh_memfd_keep_ops,
	.open = memfd_open,
	.close = memfd_close,
	.forked = memfd_forked,
	.caps = tmesh_memfd_caps,
	.create = tmesh_memfd_create,
	.from_memfd = tmesh_memfd_from_memfd,
	.derive = memfd_derive,
	.open_token = memfd_open_token,
	.adopt = tmesh_memfd_adopt,
	.mmap = memfd_mmap,
	.seal = memfd_seal,
	.is_sealed = memfd_is_sealed,
	.set_description = memfd_set_description,
	.read = memfd_read,
	.write_ready = memfd_write_ready,
	.populate = memfd_populate,
	.prepare = tmesh_memfd_prepare,
	.write_cold = memfd_write_cold,
	.revoke = tmesh_memfd_revoke,
	.reclaim = tmesh_memfd_reclaim,
	.from_fd = tmesh_memfd_from_fd,
	.opaque_fd = tmesh_memfd_opaque_fd,
	.poll_fd = tmesh_memfd_poll_fd,
	.events = tmesh_memfd_events,
	.export_dmabuf = memfd_export,
	.token = memfd_token,
	.handle_fd = handle_fd,
	.fd_told = tmesh_memfd_fd_told,
	.info = memfd_info,
	.release = memfd_release,
	.pool_fits = memfd_pool_fits,
	.pool_alone = memfd_pool_alone,
	.pool_renew = memfd_pool_renew,
	.list = tmesh_proc_list,
	.holders = tmesh_proc_holders,
};
