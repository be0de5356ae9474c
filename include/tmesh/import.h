/* SPDX-License-Identifier: MIT */
/*
 * Import: memory that was made elsewhere as a region. See tmesh/tmesh.h for the conventions of all
 * calls. Since 0.1.
 * Maturity: stable.
 */
#ifndef TMESH_IMPORT_H
#define TMESH_IMPORT_H

#include <tmesh/region.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Make a region over the caller's memfd, which must have F_SEAL_SHRINK and F_SEAL_GROW. @bytes 0
 * means all of the memfd. @fd is duplicated; the caller still owns it. These members of @opts
 * apply: label, mode, gid, hold_ms, GID and NO_PIN (memfd: label and NO_PIN). The rights are those
 * of @fd.
 *
 * Return: 0; -EINVAL (not sealed, not a memfd, too short), -EBADF, -EDQUOT, -ENOMEM. If @fd cannot
 * be read: -EACCES (memfd: -EINVAL). Also -EOPNOTSUPP (module: a memfd of huge pages; memfd: mode,
 * hold_ms, GID).
 */
int tmesh_region_from_memfd(struct tmesh_ctx *ctx, int fd, uint64_t bytes,
			    const struct tmesh_region_opts *opts, struct tmesh_region **out,
			    struct tmesh_error *err);

/*
 * Regions of memory that was made elsewhere. All but _from_fd and _opaque_fd need the module
 * (-EOPNOTSUPP on memfd). These members of @opts apply: label, mode, gid, hold_ms and GID. @fd is
 * duplicated; the caller still owns it.
 *
 * _from_user: [addr, addr + bytes), whole pages of this process. They are pinned while the region
 * exists and charged to RLIMIT_MEMLOCK. The region can be exported, but not mapped again and not
 * sealed. The process continues to use the memory at its address.
 * Return: 0; -EINVAL (not whole pages); -EFAULT, -EOPNOTSUPP (cannot be pinned: the message says
 * where and why); -ENOMEM (RLIMIT_MEMLOCK); -EDQUOT.
 *
 * _from_dmabuf: another exporter's dma-buf. The rights are those of @fd. Whether the region can be
 * mapped and exported depends on the exporter. It cannot be sealed.
 * Return: 0; -EBADF, -EINVAL (not a dma-buf, or not whole pages); -EACCES (@fd cannot be read);
 * -ELOOP (an export by tmesh itself: open its token instead).
 *
 * _from_fd: the descriptor of a character device (memfd: any descriptor) that only its driver
 * understands, such as a CUDA memory export. It stands for @bytes bytes, as the caller says. The
 * region is held, handed over and listed, but not mapped. Other processes refuse a regular file or
 * a directory that is no memory, and a socket of another family than AF_UNIX. A holder with WRITE
 * gets a descriptor again by _opaque_fd, and owns it.
 * Return: 0; -EBADF; -EINVAL (@bytes 0; module: a dma-buf); -EOPNOTSUPP (module: another kind of
 * file); -EOVERFLOW.
 */
int tmesh_region_from_user(struct tmesh_ctx *ctx, void *addr, uint64_t bytes, uint32_t rights,
			   const struct tmesh_region_opts *opts, struct tmesh_region **out,
			   struct tmesh_error *err);
int tmesh_region_from_dmabuf(struct tmesh_ctx *ctx, int fd, const struct tmesh_region_opts *opts,
			     struct tmesh_region **out, struct tmesh_error *err);
int tmesh_region_from_fd(struct tmesh_ctx *ctx, int fd, uint64_t bytes,
			 const struct tmesh_region_opts *opts, struct tmesh_region **out,
			 struct tmesh_error *err);
int tmesh_region_opaque_fd(struct tmesh_region *region, int *fd, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_IMPORT_H */
