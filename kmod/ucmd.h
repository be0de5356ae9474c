/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers for calls from user space.
 */
#ifndef TMESH_UCMD_H
#define TMESH_UCMD_H

#include "tmesh.h"

struct tmesh_region *tmesh_get_named(struct tmesh_ucmd *ucmd, u64 id);
int tmesh_label_valid(const char *label);
int tmesh_check_gid(u32 flags, u32 id, kgid_t *gid);
int tmesh_respond(struct tmesh_ucmd *ucmd, size_t size);
int tmesh_check_stride(u32 count, u32 stride, size_t min_size);
int tmesh_put_entry(u64 entries, u32 stride, u32 index, const void *entry, size_t size);

#endif /* TMESH_UCMD_H */
