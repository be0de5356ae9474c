/* SPDX-License-Identifier: MIT */
/*
 * Import: memory that was made elsewhere as a region. See tmesh/tmesh.h for the conventions of all
 * calls. Since 0.1.
 */
#ifndef TMESH_IMPORT_H
#define TMESH_IMPORT_H

#include <tmesh/region.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A region over a memfd of the caller's, which must carry F_SEAL_SHRINK and
 * F_SEAL_GROW. @bytes 0 means all of it. @fd is duplicated, never taken over.
 * Of @opts, label, mode, gid, linger_ms, GID and NO_PIN apply (memfd: label and NO_PIN).
 * Rights are those of @fd.
 *
 * Return: 0; -EINVAL (not sealed, not a memfd, too short), -EBADF, -EDQUOT, -ENOMEM;
 * -EACCES (memfd: -EINVAL): @fd cannot be read; -EOPNOTSUPP (module: a memfd of huge pages;
 * memfd: mode, linger_ms, GID).
 */
int tmesh_region_from_memfd(struct tmesh_ctx *ctx, int fd, uint64_t bytes,
			    const struct tmesh_region_opts *opts, struct tmesh_region **out,
			    struct tmesh_error *err);

/*
 * Regions around memory that was made elsewhere; all but _from_fd need the module (-EOPNOTSUPP on
 * memfd). They take label, mode, gid, linger_ms and GID of @opts.
 *
 * _from_user: [addr, addr + bytes), whole pages of this process, pinned while the region lives
 * and charged to RLIMIT_MEMLOCK. It is not mapped again and not sealed; it is exported. The
 * process goes on to use the memory where it is.
 * Return: 0; -EINVAL (no whole pages); -EFAULT, -EOPNOTSUPP (cannot be pinned: the message says
 * where and why); -ENOMEM (RLIMIT_MEMLOCK); -EDQUOT.
 *
 * _from_dmabuf: another exporter's dma-buf. Rights are those of @fd; what mapping and exporting
 * give is up to its exporter. It is not sealed.
 * Return: 0; -EBADF, -EINVAL (no dma-buf, or no whole pages); -EACCES (@fd cannot be read); -ELOOP
 * (an export of tmesh's own: open its token).
 *
 * _from_fd: a character device's descriptor (memfd: any) that only its driver understands, such as
 * a CUDA memory export, of @bytes as its maker knows. It is held, handed over and listed;
 * _opaque_fd gives a descriptor of it back to any holder with WRITE.
 * Return: 0; -EBADF; -EINVAL (@bytes 0; module: a dma-buf); -EOPNOTSUPP (module: another kind of
 * file); -EOVERFLOW.
 *
 * @fd is duplicated, never taken over.
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
