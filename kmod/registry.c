// SPDX-License-Identifier: GPL-2.0-only
/*
 * Look-up of regions: by id, in order of id, and by token. Look-ups run under RCU. They take a
 * reference only if the last one has not been dropped, so a region may end at any time.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/nsproxy.h>
#include <linux/random.h>
#include <linux/rhashtable.h>
#include <linux/sched.h>
#include <linux/user_namespace.h>
#include <linux/xarray.h>

#include "account.h"
#include "registry.h"

static DEFINE_XARRAY_FLAGS(regions, XA_FLAGS_ACCOUNT);

static struct rhashtable names;
static const struct rhashtable_params names_params = {
	.head_offset = offsetof(struct tmesh_name, node),
	.key_offset = offsetof(struct tmesh_name, token),
	.key_len = TMESH_TOKEN_BYTES,
	.automatic_shrinking = true,
};

/**
 * tmesh_registry_reserve() - give a region its id
 * @region: a region that is not published yet
 * @user:   its owner
 *
 * Return: 0 or -ENOMEM.
 */
int tmesh_registry_reserve(struct tmesh_region *region, const struct tmesh_user *user)
{
	region->id = tmesh_next_id(user);
	return xa_reserve(&regions, region->id, TMESH_GFP);
}

/**
 * tmesh_registry_publish() - let look-ups by id find a region
 * @region: complete
 *
 * Cannot fail: tmesh_registry_reserve() has made the room.
 */
void tmesh_registry_publish(struct tmesh_region *region)
{
	xa_store(&regions, region->id, region, GFP_KERNEL);
}

/**
 * tmesh_registry_remove() - remove a region from look-ups by id
 * @region: a region without references; readers under RCU may still see it
 */
void tmesh_registry_remove(struct tmesh_region *region)
{
	xa_erase(&regions, region->id);
}

/**
 * tmesh_admitted() - compute the rights that an owner, a group and a mode give the caller
 * @ipc_ns: the IPC namespace in which they apply
 * @uid:    the owner
 * @gid:    the group
 * @mode:   permission bits
 *
 * Only the owner gets MANAGE. Capabilities give no rights: a privileged process may list regions,
 * but needs to be admitted to open one.
 *
 * Return: TMESH_RIGHT_*; 0 in another IPC namespace, and if not even reading is allowed.
 */
u32 tmesh_admitted(const struct ipc_namespace *ipc_ns, kuid_t uid, kgid_t gid, u32 mode)
{
	u32 rights = TMESH_RIGHT_READ, bits;

	if (ipc_ns != current->nsproxy->ipc_ns)
		return 0;
	if (uid_eq(current_euid(), uid)) {
		bits = mode >> 6;
		rights |= TMESH_RIGHT_MANAGE;
	} else if (in_egroup_p(gid)) {
		bits = mode >> 3;
	} else {
		return 0;
	}
	if (!(bits & 4))
		return 0;
	if (bits & 2)
		rights |= TMESH_RIGHT_WRITE;
	return rights;
}

/**
 * tmesh_access() - compute the rights that a region gives the caller
 * @region: the region
 *
 * Return: as tmesh_admitted().
 */
u32 tmesh_access(const struct tmesh_region *region)
{
	return tmesh_admitted(region->ipc_ns, region->uid, region->gid, region->mode);
}

/**
 * tmesh_sees_all() - test whether the caller may see the regions of all users
 *
 * A missing capability only shortens lists, so it is not logged for audit.
 *
 * Return: true for CAP_SYS_ADMIN in the initial user namespace.
 */
bool tmesh_sees_all(void)
{
	return ns_capable_noaudit(&init_user_ns, CAP_SYS_ADMIN);
}

/**
 * tmesh_registry_find() - look a region up by its id
 * @id: any number
 *
 * Return: the region with a reference, or NULL if there is none that the caller may see.
 */
struct tmesh_region *tmesh_registry_find(u64 id)
{
	struct tmesh_region *region;

	rcu_read_lock();
	region = xa_load(&regions, id);
	if (region && !((tmesh_access(region) || tmesh_sees_all()) &&
			kref_get_unless_zero(&region->ref)))
		region = NULL;
	rcu_read_unlock();
	return region;
}

/**
 * tmesh_registry_next() - walk the regions in order of id
 * @cursor: skip ids up to this one; set to the last id looked at
 * @all:    include regions that the caller may not open
 *
 * Looks at a limited number of regions, so that the caller can check for signals and reschedule.
 *
 * Return: a region with a reference; NULL at the end; -EAGAIN as a pointer if the limit was
 * reached.
 */
struct tmesh_region *tmesh_registry_next(u64 *cursor, bool all)
{
	struct tmesh_region *region;
	unsigned long id = *cursor;
	unsigned int steps = 0;

	rcu_read_lock();
	while ((region = xa_find_after(&regions, &id, ULONG_MAX, XA_PRESENT))) {
		*cursor = id;
		if ((all || tmesh_access(region)) && kref_get_unless_zero(&region->ref))
			break;
		if (++steps == 256) {
			region = ERR_PTR(-EAGAIN);
			break;
		}
	}
	rcu_read_unlock();
	return region;
}

/**
 * tmesh_registry_redeem() - look a region up by token
 * @token:  any TMESH_TOKEN_BYTES
 * @rights: set to the rights of the token
 *
 * The token may be dead when this returns; see tmesh_name_stands(). Its struct tmesh_name may even
 * have another token by then. The look-up notices when the entry has moved in the table.
 *
 * Return: the region with a reference; NULL for a token that is unknown or not for the caller.
 */
struct tmesh_region *tmesh_registry_redeem(const u8 *token, u32 *rights)
{
	struct tmesh_region *region = NULL;
	struct tmesh_name *name;

	rcu_read_lock();
	name = rhashtable_lookup(&names, token, names_params);
	if (name) {
		/* The rights are 0 once tmesh_names_remove() has removed the name. */
		*rights = READ_ONCE(name->rights);
		if (*rights && tmesh_access(name->region) &&
		    kref_get_unless_zero(&name->region->ref))
			region = name->region;
	}
	rcu_read_unlock();
	return region;
}

/**
 * tmesh_name_get() - get the token for a set of rights, and make it if there is none
 * @region: the region
 * @rights: the rights, TMESH_RIGHT_READ among them
 * @token:  set to TMESH_TOKEN_BYTES
 *
 * Context: claims_lock is held.
 * Return: 0, -ESTALE or -ENOMEM; -EBUSY while the table is being enlarged: the caller drops the
 * lock and tries again.
 */
int tmesh_name_get(struct tmesh_region *region, u32 rights, u8 *token)
{
	struct tmesh_name *name = &region->names[rights >> 1];
	int rc;

	lockdep_assert_held(&region->claims_lock);
	if (READ_ONCE(region->state) & TMESH_STATE_REVOKED)
		return -ESTALE;
	if (!name->rights) {
		name->region = region;
		name->rights = rights;
		get_random_bytes(name->token, sizeof(name->token));
		rc = rhashtable_insert_fast(&names, &name->node, names_params);
		if (rc) {
			name->rights = 0;
			return rc == -ENOMEM ? rc : -EBUSY;
		}
	}
	memcpy(token, name->token, sizeof(name->token));
	return 0;
}

/**
 * tmesh_name_stands() - test whether a token of a region is still alive
 * @region: the region that tmesh_registry_redeem() found for it
 * @token:  TMESH_TOKEN_BYTES
 *
 * Context: takes claims_lock.
 * Return: false after tmesh_names_remove().
 */
bool tmesh_name_stands(struct tmesh_region *region, const u8 *token)
{
	bool stands = false;
	unsigned int i;

	mutex_lock(&region->claims_lock);
	for (i = 0; i < TMESH_NAMES; i++) {
		const struct tmesh_name *name = &region->names[i];

		stands |= name->rights && !memcmp(name->token, token, sizeof(name->token));
	}
	mutex_unlock(&region->claims_lock);
	return stands;
}

/**
 * tmesh_names_remove() - invalidate the tokens of a region
 * @region: a region that is revoked, is to be renewed, or has no references
 *
 * Context: claims_lock is held, or no other code can reach @region.
 */
void tmesh_names_remove(struct tmesh_region *region)
{
	unsigned int i;

	for (i = 0; i < TMESH_NAMES; i++) {
		if (!region->names[i].rights)
			continue;
		rhashtable_remove_fast(&names, &region->names[i].node, names_params);
		WRITE_ONCE(region->names[i].rights, 0);
	}
}

int __init tmesh_registry_init(void)
{
	BUILD_BUG_ON((TMESH_RIGHTS_ALL >> 1) >= TMESH_NAMES);
	return rhashtable_init(&names, &names_params);
}

void tmesh_registry_exit(void)
{
	WARN_ON_ONCE(!xa_empty(&regions));
	xa_destroy(&regions);
	rhashtable_destroy(&names);
}
