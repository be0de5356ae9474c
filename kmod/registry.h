/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Regions by id and by token.
 */
#ifndef TMESH_REGISTRY_H
#define TMESH_REGISTRY_H

#include "tmesh.h"

int tmesh_registry_reserve(struct tmesh_region *region, const struct tmesh_user *user);
void tmesh_registry_publish(struct tmesh_region *region);
void tmesh_registry_remove(struct tmesh_region *region);
u32 tmesh_admitted(const struct ipc_namespace *ipc_ns, kuid_t uid, kgid_t gid, u32 mode);
bool tmesh_sees_all(void);
u32 tmesh_access(const struct tmesh_region *region);
struct tmesh_region *tmesh_registry_find(u64 id);
struct tmesh_region *tmesh_registry_next(u64 *cursor, bool all);
struct tmesh_region *tmesh_registry_redeem(const u8 *token, u32 *rights);
int tmesh_name_get(struct tmesh_region *region, u32 rights, u8 *token);
bool tmesh_name_stands(struct tmesh_region *region, const u8 *token);
void tmesh_names_remove(struct tmesh_region *region);
int tmesh_registry_init(void);
void tmesh_registry_exit(void);

#endif /* TMESH_REGISTRY_H */
