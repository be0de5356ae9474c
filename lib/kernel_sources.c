// SPDX-License-Identifier: MIT
/* Regions of the module around memory that was made elsewhere, and views of several. */
#include "kernel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

static uint32_t flags_of(const struct tmesh_region *region)
{
	return region->opts.flags & TMESH_REGION_GID ? TMESH_CREATE_GID : 0;
}

static const char *pin_reason(uint32_t reason)
{
	switch (reason) {
	case TMESH_PIN_HOLE:
		return "nothing is mapped there";
	case TMESH_PIN_READONLY:
		return "it is mapped read-only; ask for READ alone";
	case TMESH_PIN_DEVICE:
		return "that is memory of a device";
	case TMESH_PIN_FILE:
		return "those are pages of a file, which cannot be pinned for long; copy them, or "
		       "use a memfd";
	case TMESH_PIN_SECRET:
		return "that memory cannot be pinned by any process (memfd_secret)";
	default:
		return "the kernel does not pin it";
	}
}

int tmesh_kernel_from_user(struct tmesh_region *region, void *addr, uint64_t bytes,
			   struct tmesh_error *err)
{
	struct tmesh_create_user create = {
		.size = sizeof(create),
		.flags = flags_of(region),
		.address = (uintptr_t)addr,
		.bytes = bytes,
		.rights = region->rights,
		.mode = region->opts.mode,
		.gid = region->opts.gid,
		.hold_ms = region->opts.hold_ms,
	};

	memcpy(create.label, region->label, sizeof(create.label));
	if (ioctl(region->ctx->kernel.device, TMESH_CREATE_USER, &create)) {
		if (errno == ENOMEM && create.reason == TMESH_PIN_MEMLOCK)
			return tmesh_fail(err, -ENOMEM,
					  "pinning %llu bytes passes this process's RLIMIT_MEMLOCK "
					  "(ulimit -l)",
					  (unsigned long long)bytes);
		if (create.reason)
			return tmesh_fail(err, -errno, "memory at %#llx cannot be pinned: %s",
					  (unsigned long long)create.bad_address,
					  pin_reason(create.reason));
		return tmesh_kernel_fail(err, "pinning memory");
	}
	region->fd = create.fd;
	return tmesh_kernel_learn(region, err);
}

static int no_dmabuf(struct tmesh_error *err)
{
	return tmesh_fail(err, -EINVAL, "the descriptor is not a dma-buf's, or of no whole pages");
}

/* Import a descriptor. @bytes 0: only a dma-buf is meant; the module would accept a character
 * device too. */
static int import(struct tmesh_region *region, int fd, uint64_t bytes, struct tmesh_error *err)
{
	struct tmesh_import import = {
		.size = sizeof(import),
		.flags = flags_of(region),
		.bytes = bytes,
		.source = fd,
		.mode = region->opts.mode,
		.gid = region->opts.gid,
		.hold_ms = region->opts.hold_ms,
	};

	memcpy(import.label, region->label, sizeof(import.label));
	if (ioctl(region->ctx->kernel.device, TMESH_IMPORT, &import)) {
		if (!bytes && errno == EOPNOTSUPP)
			return no_dmabuf(err);
		switch (errno) {
		case EBADF:
			return tmesh_fail(err, -EBADF, "%d is not an open descriptor", fd);
		case ELOOP:
			return tmesh_fail(err, -ELOOP,
					  "the dma-buf is an export of tmesh's own; open the "
					  "region by its token");
		case EOPNOTSUPP:
			return tmesh_fail(err, -EOPNOTSUPP,
					  "the descriptor is neither a dma-buf nor a character "
					  "device's");
		default:
			return tmesh_kernel_fail(err, "importing a descriptor");
		}
	}
	region->fd = import.fd;
	if (!bytes && import.backing != TMESH_BACKING_DMABUF)
		return no_dmabuf(err);
	return tmesh_kernel_learn(region, err);
}

int tmesh_kernel_from_dmabuf(struct tmesh_region *region, int fd, struct tmesh_error *err)
{
	return import(region, fd, 0, err);
}

int tmesh_kernel_from_fd(struct tmesh_region *region, int fd, uint64_t bytes,
			 struct tmesh_error *err)
{
	return import(region, fd, bytes, err);
}

int tmesh_kernel_opaque_fd(struct tmesh_region *region, int *fd, struct tmesh_error *err)
{
	struct tmesh_opaque opaque = {.size = sizeof(opaque)};

	if (ioctl(region->fd, TMESH_OPAQUE, &opaque))
		return errno == EOPNOTSUPP
			       ? tmesh_fail(err, -EOPNOTSUPP,
					    "the region is memory; it stands for no descriptor")
			       : tmesh_kernel_fail(err, "asking for the descriptor");
	*fd = opaque.fd;
	return 0;
}

int tmesh_kernel_gather(struct tmesh_region *region, const struct tmesh_gather_extent *extents,
			size_t count, struct tmesh_error *err)
{
	struct tmesh_extent *list = malloc(count * sizeof(*list));
	struct tmesh_gather gather = {
		.size = sizeof(gather),
		.flags = flags_of(region),
		.extents = (uintptr_t)list,
		.count = (uint32_t)count,
		.rights = region->rights,
		.mode = region->opts.mode,
		.gid = region->opts.gid,
		.hold_ms = region->opts.hold_ms,
	};
	int failed;

	if (!list)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu extents", count);
	for (size_t i = 0; i < count; i++)
		list[i] = (struct tmesh_extent){
			.handle = extents[i].region->fd,
			.offset = extents[i].offset,
			.bytes = extents[i].bytes,
		};
	memcpy(gather.label, region->label, sizeof(gather.label));
	failed = ioctl(region->ctx->kernel.device, TMESH_GATHER, &gather) ? errno : 0;
	free(list);
	switch (failed) {
	case 0:
		break;
	case EINVAL:
		return tmesh_fail(err, -EINVAL,
				  "gather: parts are whole pages inside their regions, and a "
				  "writable view shows no page twice");
	case ELOOP:
		return tmesh_fail(
			err, -ELOOP,
			"gather: a part is a view itself: name the regions that it shows");
	case EPERM:
		return tmesh_fail(err, -EPERM,
				  "gather: a source is sealed; ask for TMESH_READ alone");
	case EOPNOTSUPP:
		return tmesh_fail(err, -EOPNOTSUPP,
				  "gather: a part is not memory that the module allocated");
	default:
		errno = failed;
		return tmesh_kernel_fail(err, "gather");
	}
	region->fd = gather.fd;
	return tmesh_kernel_learn(region, err);
}
