/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where memory comes from: one file for each kind.
 */
#ifndef TMESH_BACKING_H
#define TMESH_BACKING_H

#include "tmesh.h"

struct tmesh_mem *tmesh_pages_create(struct tmesh_user *user, unsigned long nr_pages, u32 flags,
				     int node);
struct tmesh_mem *tmesh_memfd_create(struct tmesh_user *user, struct file *memfd,
				     unsigned long nr_pages, u32 *rights);
int tmesh_memfd_rights(struct file *memfd, u32 *rights);
struct tmesh_mem *tmesh_range_create(struct tmesh_user *user, struct tmesh_create_user *cmd);
int tmesh_import_rights(const struct dma_buf *dmabuf, u32 *rights);
struct tmesh_mem *tmesh_import_create(struct tmesh_user *user, struct dma_buf *dmabuf);
struct dma_buf *tmesh_import_get(struct tmesh_region *region);
bool tmesh_opaque_fits(const struct file *file);
struct tmesh_mem *tmesh_opaque_create(struct tmesh_user *user, struct file *file);
int tmesh_ioctl_opaque(struct tmesh_ucmd *ucmd);

#endif /* TMESH_BACKING_H */
