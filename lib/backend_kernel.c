// SPDX-License-Identifier: MIT
/*
 * The kernel backend: regions of tmesh.ko. Every promise is the module's to keep; this file
 * turns calls into ioctls, and errnos into sentences.
 */
#include "common/foreign.h"
#include "kernel.h"
#include "watch.h"
#include "keep_internal.h"

#include <inttypes.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define DEVICE "/dev/tmesh"

_Static_assert((int)TMESH_READ == (int)TMESH_RIGHT_READ &&
		       (int)TMESH_WRITE == (int)TMESH_RIGHT_WRITE &&
		       (int)TMESH_MANAGE == (int)TMESH_RIGHT_MANAGE,
	       "rights are the module's");
_Static_assert(TMESH_LABEL_LEN == TMESH_LABEL_MAX && TMESH_DESCRIPTION_LEN == TMESH_DESC_MAX,
	       "limits are the module's");
_Static_assert(TMESH_SECRET_BYTES == TMESH_TOKEN_BYTES, "tokens are the module's");

int tmesh_kernel_fail(struct tmesh_error *err, const char *what)
{
	switch (errno) {
	case EDQUOT:
		return tmesh_fail(
			err, -EDQUOT,
			"%s: this passes a limit of the tmesh module for this user or for "
			"all; root raises them in /proc/sys/dev/tmesh/",
			what);
	case ESTALE:
		return tmesh_fail(err, -ESTALE,
				  "%s: the region was revoked, or the lease has lapsed", what);
	case EHWPOISON:
		return tmesh_fail(err, -EIO,
				  "%s: a page of the region has a memory error; its other pages "
				  "are good; its owner has to make it anew",
				  what);
	case EACCES:
		return tmesh_fail(err, -EACCES,
				  "%s: this handle does not have the right to do that", what);
	case ENOTTY:
		return tmesh_fail(err, -EPROTO, "%s: the descriptor is not a tmesh handle", what);
	default:
		return tmesh_fail_errno(err, what);
	}
}

static int query_caps(int device, struct tmesh_caps_query *caps)
{
	*caps = (struct tmesh_caps_query){.size = sizeof(*caps)};
	return ioctl(device, TMESH_CAPS, caps);
}

static int kernel_open(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_caps_query caps;
	int device = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (device < 0) {
		switch (errno) {
		case ENOENT:
		case ENXIO:
		case ENODEV:
			return tmesh_fail(err, -ENOENT,
					  "there is no " DEVICE ": the tmesh module is not loaded");
		case EACCES:
		case EPERM:
			return tmesh_fail(err, -EACCES,
					  "no permission on " DEVICE ": join its group (tmesh)");
		default:
			return tmesh_fail_errno(err, "opening " DEVICE);
		}
	}
	if (query_caps(device, &caps) || caps.abi_version != TMESH_ABI_VERSION) {
		close(device);
		return tmesh_fail(err, -EPROTO,
				  "the loaded module is of another release of tmesh (ABI %" PRIu32
				  ", here %d): load the module of this library's release, or set "
				  "TMESH_BACKEND=memfd",
				  caps.abi_version, TMESH_ABI_VERSION);
	}
	ctx->kernel.device = device;
	ctx->kernel.renews = caps.features & TMESH_FEATURE_RENEW;
	return 0;
}

static void close_device(struct tmesh_ctx *ctx)
{
	if (ctx->kernel.device >= 0)
		close(ctx->kernel.device);
	ctx->kernel.device = -1;
}

static void kernel_close(struct tmesh_ctx *ctx)
{
	tmesh_watch_stop(ctx);
	close_device(ctx);
}

static void kernel_forked(struct tmesh_ctx *ctx)
{
	tmesh_watch_forked(ctx);
	close_device(ctx);
}

static void kernel_caps(struct tmesh_ctx *ctx)
{
	static const struct {
		uint64_t bit;
		enum tmesh_cap_index cap;
	} features[] = {
		{TMESH_FEATURE_EXPORT, CAP_DMABUF_EXPORT},
		{TMESH_FEATURE_EXPORT, CAP_DMABUF_EXPORT_SEALED},
		{TMESH_FEATURE_PIN, CAP_PIN},
		{TMESH_FEATURE_REVOKE, CAP_REVOKE},
		{TMESH_FEATURE_LEASE, CAP_LEASE},
		{TMESH_FEATURE_USER, CAP_USER_MEMORY},
		{TMESH_FEATURE_IMPORT, CAP_IMPORT},
		{TMESH_FEATURE_GATHER, CAP_GATHER},
		{TMESH_FEATURE_FENCE, CAP_FENCE},
	};
	struct tmesh_caps_query caps;
	const char *by = "the tmesh module";

	if (query_caps(ctx->kernel.device, &caps))
		caps.features = 0;
	for (enum tmesh_cap_index i = 0; i < CAPS; i++)
		tmesh_cap_set(ctx, i, TMESH_CAP_ENFORCED, "%s", by);
	tmesh_cap_set(
		ctx, CAP_QUOTA, TMESH_CAP_ENFORCED,
		"%s: of this user %llu of %llu bytes, %llu of %llu regions, %llu of %llu "
		"handles and %llu of %llu pins are in use",
		by, (unsigned long long)caps.used_bytes, (unsigned long long)caps.max_bytes_per_uid,
		(unsigned long long)caps.used_regions, (unsigned long long)caps.max_regions_per_uid,
		(unsigned long long)caps.used_handles, (unsigned long long)caps.max_handles_per_uid,
		(unsigned long long)caps.used_pins, (unsigned long long)caps.max_pins_per_uid);
	tmesh_cap_set(ctx, CAP_OPEN_WITHOUT_WAKE, TMESH_CAP_ENFORCED, "%s: no producer is asked",
		      by);
	if (!(caps.features & TMESH_FEATURE_HUGE))
		tmesh_cap_set(ctx, CAP_HUGE_PAGES, TMESH_CAP_NO,
			      "this kernel has no 2 MiB pages for the tmesh module");
	for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++) {
		if (!(caps.features & features[i].bit))
			tmesh_cap_set(ctx, features[i].cap, TMESH_CAP_NO,
				      "this build of the tmesh module does not have it");
	}
}

int tmesh_kernel_info(int fd, struct tmesh_info *info)
{
	*info = (struct tmesh_info){.size = sizeof(*info)};
	return ioctl(fd, TMESH_INFO, info);
}

/* Set what a lost handle's mapping becomes, as the context asks. A pinning handle keeps its memory.
 */
static int set_taken(struct tmesh_region *region, struct tmesh_error *err)
{
	if (region->ctx->taken == TMESH_TAKEN_SIGBUS || region->pinning)
		return 0;
	region->zeros = true;
	return tmesh_kernel_when_taken(region, region->ctx->taken, err);
}

/* Fill in @region by what the module reports of a new handle. */
int tmesh_kernel_learn(struct tmesh_region *region, struct tmesh_error *err)
{
	struct tmesh_info info;

	if (tmesh_kernel_info(region->fd, &info))
		return tmesh_kernel_fail(err, "looking at a region");
	region->id = info.id;
	region->bytes = info.bytes;
	region->alloc = info.alloc_bytes;
	region->rights = info.rights;
	region->pinning = info.pinning;
	region->sealed = info.state & TMESH_STATE_SEALED;
	memcpy(region->label, info.label, sizeof(region->label));
	return set_taken(region, err);
}

static uint32_t create_flags(const struct tmesh_region_opts *opts)
{
	return (opts->flags & TMESH_REGION_HUGE ? TMESH_CREATE_HUGE : 0) |
	       (opts->flags & TMESH_REGION_NODE ? TMESH_CREATE_NODE : 0) |
	       (opts->flags & TMESH_REGION_GID ? TMESH_CREATE_GID : 0) |
	       (opts->flags & TMESH_REGION_NO_PIN ? TMESH_CREATE_NOPIN : 0);
}

static int kernel_create(struct tmesh_region *region, uint64_t bytes, struct tmesh_error *err)
{
	const struct tmesh_region_opts *opts = &region->opts;
	uint64_t page = opts->flags & TMESH_REGION_HUGE ? 2u << 20 : tmesh_page_bytes();
	struct tmesh_create create = {
		.size = sizeof(create),
		.flags = create_flags(opts),
		.bytes = bytes,
		.node = opts->flags & TMESH_REGION_NODE ? opts->node : 0,
		.mode = opts->mode,
		.gid = opts->gid,
		.hold_ms = opts->hold_ms,
	};

	memcpy(create.label, region->label, sizeof(create.label));
	if (ioctl(region->ctx->kernel.device, TMESH_CREATE, &create)) {
		if (errno == ENOMEM && opts->flags & TMESH_REGION_HUGE)
			return tmesh_fail(
				err, -ENOMEM,
				"no 2 MiB pages for %llu bytes: free memory is too scattered",
				(unsigned long long)bytes);
		if (errno == EINVAL && opts->flags & TMESH_REGION_NODE)
			return tmesh_fail(err, -EINVAL, "there is no NUMA node %d with memory",
					  opts->node);
		return tmesh_kernel_fail(err, "creating a region");
	}
	region->fd = create.fd;
	region->id = create.id;
	region->alloc = (bytes + page - 1) & ~(page - 1);
	return set_taken(region, err);
}

static int kernel_from_memfd(struct tmesh_region *region, int fd, uint64_t bytes,
			     struct tmesh_error *err)
{
	const struct tmesh_region_opts *opts = &region->opts;
	struct tmesh_create_memfd create = {
		.size = sizeof(create),
		.flags = create_flags(opts),
		.bytes = bytes,
		.memfd = fd,
		.mode = opts->mode,
		.gid = opts->gid,
		.hold_ms = opts->hold_ms,
	};
	struct stat st;
	int seals;

	if (fcntl(fd, F_GETFD) < 0)
		return tmesh_fail(err, -EBADF, "%d is not an open descriptor", fd);
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || fstat(fd, &st))
		return tmesh_fail(err, -EINVAL, "the descriptor is not a memfd's");
	if (!(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_GROW))
		return tmesh_fail(err, -EINVAL,
				  "the memfd is not sealed with F_SEAL_SHRINK and F_SEAL_GROW: its "
				  "pages could vanish under a reader");
	if (st.st_size == 0 || bytes > (uint64_t)st.st_size)
		return tmesh_fail(err, -EINVAL, "the memfd has only %lld bytes",
				  (long long)st.st_size);
	memcpy(create.label, region->label, sizeof(create.label));
	if (ioctl(region->ctx->kernel.device, TMESH_CREATE_MEMFD, &create))
		return tmesh_kernel_fail(err, "making a region of a memfd");
	region->fd = create.fd;
	return tmesh_kernel_learn(region, err);
}

static int derive_fd(const struct tmesh_region *from, uint32_t rights, bool pin, int *fd,
		     struct tmesh_error *err)
{
	struct tmesh_derive derive = {
		.size = sizeof(derive),
		.flags = pin ? TMESH_DERIVE_PIN : 0,
		.rights = rights,
	};

	if (ioctl(from->fd, TMESH_DERIVE, &derive)) {
		if (pin && errno == EINVAL)
			return tmesh_fail(err, -EINVAL,
					  "pin: region %016llx is not sealed; seal it first",
					  (unsigned long long)from->id);
		if (pin && errno == EPERM)
			return tmesh_fail(err, -EPERM,
					  "pin: the region's owner refuses pins, or this handle "
					  "has a lease");
		return tmesh_kernel_fail(err, pin ? "pin" : "derive");
	}
	*fd = derive.fd;
	return 0;
}

static int kernel_derive(struct tmesh_region *derived, struct tmesh_region *from, uint32_t rights,
			 bool pin, struct tmesh_error *err)
{
	int rc = derive_fd(from, rights, pin, &derived->fd, err);

	return rc ? rc : set_taken(derived, err);
}

/* Return another handle to send. The region's own handle stays the sender's and ends with it. */
static int kernel_handle_fd(struct tmesh_region *region, uint32_t rights, int *fd,
			    struct tmesh_error *err)
{
	return derive_fd(region, rights, false, fd, err);
}

static int kernel_open_token(struct tmesh_region *region, const struct tmesh_token_fields *token,
			     uint32_t rights, struct tmesh_error *err)
{
	struct tmesh_open call = {.size = sizeof(call), .rights = rights};

	memcpy(call.token, token->secret, sizeof(call.token));
	if (ioctl(region->ctx->kernel.device, TMESH_OPEN, &call)) {
		if (errno == ENOENT)
			return tmesh_fail(
				err, -ENOENT,
				"no such region: it is gone, or the token is another user's "
				"or another IPC namespace's");
		if (errno == EACCES)
			return tmesh_fail_rights(err, "the token, or the region's mode,", rights);
		return tmesh_kernel_fail(err, "redeeming a token");
	}
	region->fd = call.fd;
	region->rights = rights;
	region->id = call.id;
	region->bytes = call.bytes;
	region->alloc = call.alloc_bytes;
	region->sealed = call.state & TMESH_STATE_SEALED;
	return set_taken(region, err);
}

/* Return whether the descriptor's fdinfo has the line that the module writes for its handles. */
static bool is_told(int fd)
{
	char path[40], text[512];
	ssize_t got;
	int info;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	info = open(path, O_RDONLY | O_CLOEXEC);
	if (info < 0)
		return false;
	got = read(info, text, sizeof(text) - 1);
	close(info);
	text[got > 0 ? got : 0] = '\0';
	return strstr(text, "\ntmesh-region:");
}

/* Return whether @fd is a handle. An ioctl() on another file would reach the file system that
 * serves it, so the file's type is checked first. A handle has no type, except in Linux 6.16 and
 * some of 6.17, where it has that of a regular file. */
static bool is_handle(int fd)
{
	struct tmesh_foreign_file file;

	return tmesh_foreign_look(fd, "", &file) &&
	       (!file.type || (S_ISREG(file.type) && is_told(fd)));
}

static int kernel_adopt(struct tmesh_region *region, const int *fds,
			const struct tmesh_wire_region *wire, struct tmesh_error *err)
{
	region->fd = fds[0];
	if (!is_handle(fds[0]))
		return tmesh_fail(err, -EPROTO, "receive: the peer sent no handle of a region");
	return tmesh_kernel_learn(region, err);
}

static int kernel_mmap(struct tmesh_region *region, int prot, void **addr, struct tmesh_error *err)
{
	*addr = mmap(NULL, region->alloc, prot, region->private ? MAP_PRIVATE : MAP_SHARED,
		     region->fd, 0);
	if (*addr != MAP_FAILED)
		return 0;
	if (errno == EPERM)
		return tmesh_fail(err, -EPERM, "map: the region is sealed; map it for reading");
	return tmesh_kernel_fail(err, "map");
}

/* Seal. Our own writable mapping would prevent that, so it is replaced first. */
static int kernel_seal(struct tmesh_region *region, struct tmesh_error *err)
{
	struct tmesh_seal seal = {.size = sizeof(seal)};
	bool writable = region->addr && (region->prot & PROT_WRITE);
	int rc = writable ? tmesh_region_remap(region, PROT_READ, err) : 0;

	if (rc || ioctl(region->fd, TMESH_SEAL, &seal) == 0)
		return rc;
	rc = errno == EBUSY
		     ? tmesh_fail(err, -EBUSY,
				  "seal: a writable mapping or export exists, or a device may "
				  "still write; tmeshctl holders %016llx names the holders",
				  (unsigned long long)region->id)
		     : tmesh_kernel_fail(err, "seal");
	if (writable && tmesh_region_remap(region, PROT_READ | PROT_WRITE, NULL))
		tmesh_log(region->ctx, TMESH_LOG_ERROR,
			  "a failed seal left the mapping of a region read-only");
	return rc;
}

static bool kernel_is_sealed(const struct tmesh_region *region)
{
	struct tmesh_info info;

	return tmesh_kernel_info(region->fd, &info) == 0 && (info.state & TMESH_STATE_SEALED);
}

static int kernel_set_description(struct tmesh_region *region, const char *text, uint32_t bytes,
				  struct tmesh_error *err)
{
	struct tmesh_desc desc = {
		.size = sizeof(desc),
		.data = (uintptr_t)text,
		.bytes = bytes,
	};

	if (ioctl(region->fd, TMESH_DESC_SET, &desc))
		return errno == EPERM ? tmesh_refuse_description(region, err)
				      : tmesh_kernel_fail(err, "describe");
	region->description_bytes = bytes;
	return 0;
}

static bool is_gone(const struct tmesh_region *region)
{
	struct tmesh_info info;

	return tmesh_kernel_info(region->fd, &info) == 0 &&
	       info.state & (TMESH_STATE_REVOKED | TMESH_STATE_LAPSED);
}

/* Find out why the kernel could not copy. The module looks at every page now, if it has not learned
 * of the page's failure. */
static int why_no_copy(const struct tmesh_region *region)
{
	struct tmesh_info info = {.size = sizeof(info), .flags = TMESH_INFO_PINS};

	if (ioctl(region->fd, TMESH_INFO, &info))
		return EFAULT;
	if (info.state & (TMESH_STATE_REVOKED | TMESH_STATE_LAPSED))
		return ESTALE;
	return info.state & TMESH_STATE_POISONED ? EHWPOISON : EFAULT;
}

/*
 * Copy by the kernel, so that memory that was revoked meanwhile is an error and no signal. The
 * mapping stays as long as the region object does.
 */
static int copy_by_kernel(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
			  bool out, struct tmesh_error *err)
{
	uint8_t *at = (uint8_t *)region->addr + offset;

	while (bytes) {
		struct iovec local = {data, bytes}, remote = {at, bytes};
		ssize_t done = out ? process_vm_readv(getpid(), &local, 1, &remote, 1, 0)
				   : process_vm_writev(getpid(), &local, 1, &remote, 1, 0);

		if (done < 0 && errno == EFAULT)
			errno = why_no_copy(region);
		if (done <= 0)
			return tmesh_kernel_fail(err, out ? "read" : "write");
		data = (uint8_t *)data + done;
		at += done;
		bytes -= (uint64_t)done;
	}
	return 0;
}

static int kernel_read(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		       struct tmesh_error *err)
{
	int rc;

	tmesh_region_lock(region);
	rc = tmesh_region_map_locked(region, PROT_READ, err);
	tmesh_region_unlock(region);
	if (!rc)
		rc = copy_by_kernel(region, offset, data, bytes, true, err);
	if (!rc && region->zeros && is_gone(region)) {
		errno = ESTALE;
		rc = tmesh_kernel_fail(err, "read");
	}
	return rc;
}

static int kernel_write_ready(struct tmesh_region *region, struct tmesh_error *err)
{
	return tmesh_region_map_locked(region, PROT_READ | PROT_WRITE, err);
}

static int kernel_write_cold(struct tmesh_region *region, uint64_t offset, const void *data,
			     uint64_t bytes, struct tmesh_error *err)
{
	return copy_by_kernel(region, offset, (void *)data, bytes, false, err);
}

int tmesh_kernel_pinned(const struct tmesh_revoke *revoke, const struct tmesh_holder *pins,
			uint32_t room, struct tmesh_error *err)
{
	uint32_t count = revoke->count < room ? revoke->count : room;
	char who[128] = "";
	size_t used = 0;

	for (uint32_t i = 0; i < count && used < sizeof(who); i++) {
		used += (size_t)snprintf(who + used, sizeof(who) - used, "%s%u (%.16s)",
					 i ? ", " : "", pins[i].pid, pins[i].comm);
	}
	return tmesh_fail(err, -EBUSY, "revoke: pinned by %u: process %s%s", revoke->total, who,
			  revoke->total > count ? " and others" : "");
}

static int revoke_by(int fd, uint64_t id, struct tmesh_error *err)
{
	struct tmesh_holder pins[4];
	struct tmesh_revoke revoke = {
		.size = sizeof(revoke),
		.entries = (uintptr_t)pins,
		.entry_bytes = sizeof(pins[0]),
		.count = 4,
		.id = id,
	};

	if (ioctl(fd, TMESH_REVOKE, &revoke) == 0)
		return 0;
	if (errno == EOPNOTSUPP)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "revoke: mappings of this region belong to a memfd or to another "
				  "exporter");
	return errno == EBUSY ? tmesh_kernel_pinned(&revoke, pins, 4, err)
			      : tmesh_kernel_fail(err, "revoke");
}

static int kernel_revoke(struct tmesh_region *region, struct tmesh_error *err)
{
	return revoke_by(region->fd, 0, err);
}

static int kernel_revoke_id(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_error *err)
{
	int rc = revoke_by(ctx->kernel.device, id, err);

	if (rc == -ENOENT)
		return tmesh_fail(err, rc,
				  "revoke region %016" PRIx64 ": there is no such region that this "
				  "user may see",
				  id);
	if (rc == -EPERM)
		return tmesh_fail(err, rc,
				  "revoke region %016" PRIx64
				  ": it is another user's; its owner, or "
				  "a handle with the right to manage, can revoke it",
				  id);
	return rc;
}

static int kernel_export(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			 uint32_t rights, int *fd, struct tmesh_error *err)
{
	struct tmesh_export export = {
		.size = sizeof(export),
		.flags = rights & TMESH_WRITE ? TMESH_EXPORT_WRITE : 0,
		.offset = offset,
		.bytes = bytes,
	};

	if (ioctl(region->fd, TMESH_EXPORT, &export))
		return errno == EPERM ? tmesh_fail(err, -EPERM,
						   "export: the region is sealed; export "
						   "it for reading")
				      : tmesh_kernel_fail(err, "export");
	*fd = export.fd;
	return 0;
}

/* May the memory come back although there is a token? A hold is for a token that outlives all
 * holders, and the pool is one. */
static bool lends(const struct tmesh_region *region, uint32_t rights)
{
	return rights == TMESH_READ && region->opts.flags & TMESH_REGION_REUSE && region->created &&
	       !region->shared && !region->opts.hold_ms && region->ctx->kernel.renews;
}

/* Renew the region: true if no other process has it. Its tokens are dead afterwards in either case.
 */
static bool renews(const struct tmesh_region *region)
{
	struct tmesh_renew renew = {.size = sizeof(renew)};

	return ioctl(region->fd, TMESH_RENEW, &renew) == 0;
}

static int kernel_token(struct tmesh_region *region, uint32_t rights, char *token,
			struct tmesh_error *err)
{
	struct tmesh_token call = {.size = sizeof(call), .rights = rights};
	struct tmesh_token_fields parts = {.backend = TMESH_BACKEND_KERNEL};

	if (ioctl(region->fd, TMESH_TOKEN, &call))
		return errno == EPERM
			       ? tmesh_fail(err, -EPERM,
					    "token: a handle with a lease gives none; ask for it "
					    "before, or send the handle")
			       : tmesh_kernel_fail(err, "token");
	region->lent = lends(region, rights);
	memcpy(parts.secret, call.token, sizeof(parts.secret));
	tmesh_token_format(token, &parts);
	return 0;
}

static void kernel_release(struct tmesh_region *region)
{
	if (region->lent)
		renews(region);
}

/* Return whether the region fits a request. Its length and label are the module's and never change,
 * so they must be equal. It keeps its id, which names the memory. */
static bool kernel_pool_fits(const struct tmesh_region *region, uint64_t bytes,
			     const struct tmesh_region_opts *opts)
{
	const uint32_t flags = ~(uint32_t)TMESH_REGION_UNINITIALIZED;

	return region->bytes == bytes && strcmp(region->label, opts->label) == 0 &&
	       (region->opts.flags & flags) == (opts->flags & flags) &&
	       region->opts.mode == opts->mode && region->opts.node == opts->node &&
	       region->opts.gid == opts->gid && region->opts.hold_ms == opts->hold_ms;
}

static bool kernel_pool_alone(struct tmesh_region *region)
{
	struct tmesh_info info;

	if (region->lent && !renews(region))
		return false;
	return tmesh_kernel_info(region->fd, &info) == 0 && info.handles == 1 &&
	       info.exports == 0 && info.state == 0;
}

static int kernel_pool_renew(struct tmesh_region *region, uint64_t bytes,
			     const struct tmesh_region_opts *opts)
{
	region->lent = false;
	return region->description_bytes ? kernel_set_description(region, NULL, 0, NULL) : 0;
}

const struct tmesh_backend_ops tmesh_kernel_ops = {
	.backend = TMESH_BACKEND_KERNEL,
	.keep = &tmesh_kernel_keep_ops,
	.open = kernel_open,
	.close = kernel_close,
	.forked = kernel_forked,
	.caps = kernel_caps,
	.create = kernel_create,
	.from_memfd = kernel_from_memfd,
	.derive = kernel_derive,
	.open_token = kernel_open_token,
	.adopt = kernel_adopt,
	.poll_fd = tmesh_kernel_poll_fd,
	.events = tmesh_kernel_events,
	.mmap = kernel_mmap,
	.seal = kernel_seal,
	.is_sealed = kernel_is_sealed,
	.set_description = kernel_set_description,
	.read = kernel_read,
	.write_ready = kernel_write_ready,
	.write_cold = kernel_write_cold,
	.revoke = kernel_revoke,
	.revoke_id = kernel_revoke_id,
	.export_dmabuf = kernel_export,
	.token = kernel_token,
	.handle_fd = kernel_handle_fd,
	.info = tmesh_kernel_region_info,
	.hold = tmesh_kernel_hold,
	.unhold = tmesh_kernel_unhold,
	.opens = tmesh_kernel_opens,
	.release = kernel_release,
	.pool_fits = kernel_pool_fits,
	.pool_alone = kernel_pool_alone,
	.pool_renew = kernel_pool_renew,
	.from_user = tmesh_kernel_from_user,
	.from_dmabuf = tmesh_kernel_from_dmabuf,
	.from_fd = tmesh_kernel_from_fd,
	.opaque_fd = tmesh_kernel_opaque_fd,
	.gather = tmesh_kernel_gather,
	.reclaim = tmesh_kernel_reclaim,
	.lease_set = tmesh_kernel_lease_set,
	.lease_map = tmesh_kernel_lease_map,
	.when_taken = tmesh_kernel_when_taken,
	.signal = tmesh_kernel_signal,
	.wait = tmesh_kernel_wait,
	.list = tmesh_kernel_list,
	.holders = tmesh_kernel_holders,
};
