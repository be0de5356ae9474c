/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Handles: files that refer to a region.
 */
#ifndef TMESH_HANDLE_H
#define TMESH_HANDLE_H

#include "tmesh.h"

typedef long (*tmesh_calls)(struct tmesh_handle *handle, unsigned int cmd, unsigned long arg);

void tmesh_handle_setup(tmesh_calls calls);
int tmesh_handle_new(struct tmesh_region *region, u32 rights, bool pinning,
		     const struct tmesh_claim *through, struct file **file);
struct tmesh_handle *tmesh_handle_of_part(struct tmesh_region *region, u64 offset, u64 bytes);
void tmesh_handle_end(struct tmesh_handle *handle);
const struct tmesh_handle *tmesh_handle_of(const struct file *file);
void tmesh_handle_cancel(int fd, struct file *file);
int tmesh_rights_valid(u32 rights);
int tmesh_ioctl_open(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_derive(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_token(struct tmesh_ucmd *ucmd);

#endif /* TMESH_HANDLE_H */
