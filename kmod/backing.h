/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kinds of memory behind a region. Each kind has a file of its own.
 */
#ifndef TMESH_BACKING_H
#define TMESH_BACKING_H

#include "tmesh.h"

struct tmesh_mem *tmesh_pages_create(struct tmesh_user *user, unsigned long nr_pages, u32 flags,
				     int node, unsigned long *take);
struct tmesh_mem *tmesh_backing_memfd(struct tmesh_user *user, struct file *memfd,
				      unsigned long nr_pages, u32 *rights);
int tmesh_memfd_rights(struct file *memfd, u32 *rights);
long tmesh_memfd_settles(void);
struct tmesh_mem *tmesh_range_create(struct tmesh_user *user, struct tmesh_create_user *cmd);
int tmesh_import_rights(const struct dma_buf *dmabuf, u32 *rights);
struct tmesh_mem *tmesh_import_create(struct tmesh_user *user, struct dma_buf *dmabuf);
struct dma_buf *tmesh_import_get(struct tmesh_region *region);
bool tmesh_opaque_fits(const struct file *file);
struct tmesh_mem *tmesh_backing_opaque(struct tmesh_user *user, struct file *file);
int tmesh_ioctl_opaque(struct tmesh_ucmd *ucmd);

#endif /* TMESH_BACKING_H */
