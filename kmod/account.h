/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accounts of users, and their limits.
 */
#ifndef TMESH_ACCOUNT_H
#define TMESH_ACCOUNT_H

#include "tmesh.h"

struct tmesh_user *tmesh_user_get(kuid_t uid);
void tmesh_user_hold(struct tmesh_user *user);
bool tmesh_user_try_hold(struct tmesh_user *user);
void tmesh_user_put(struct tmesh_user *user);
bool tmesh_user_shown(kuid_t uid, const struct ipc_namespace *ipc_ns);
int tmesh_charge(struct tmesh_user *user, enum tmesh_count count, u64 more);
void tmesh_uncharge(struct tmesh_user *user, enum tmesh_count count, u64 less);
int tmesh_exchange(struct tmesh_user *user, enum tmesh_count count, u64 less, u64 more);
bool tmesh_ipc_ns_ended(const struct tmesh_user *user);
int tmesh_charge_pinned(struct tmesh_user *user, u64 bytes);
void tmesh_uncharge_pinned(struct tmesh_user *user, u64 bytes);
u64 tmesh_limit(const struct tmesh_user *user, enum tmesh_level level, enum tmesh_count count);
bool tmesh_shared_fairly(unsigned int most, unsigned int foreign, unsigned int own);
u64 tmesh_used(const struct tmesh_user *user, enum tmesh_level level, enum tmesh_count count);
u64 tmesh_cgroup_id(void);
u64 tmesh_next_id(const struct tmesh_user *user);
struct tmesh_due *tmesh_user_due(const struct tmesh_user *user);
int tmesh_account_init(work_func_t due);
void tmesh_account_exit(void);

#endif /* TMESH_ACCOUNT_H */
