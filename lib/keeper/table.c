// SPDX-License-Identifier: MIT
/* Groups of descriptors, checked, counted, and given back. */
#include "table.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/foreign.h"
#include "common/utf8.h"
#include "memfd.h"
#include "paths.h"

bool name_is_good(const char name[TMESH_KEPT_NAME_LEN + 1])
{
	size_t bytes = strnlen(name, TMESH_KEPT_NAME_LEN + 1);

	if (bytes == 0 || bytes > TMESH_KEPT_NAME_LEN)
		return false;
	for (size_t i = bytes; i <= TMESH_KEPT_NAME_LEN; i++)
		if (name[i])
			return false;
	return tmesh_utf8_span(name, bytes, false) == bytes;
}

struct group *group_new(const char *name, uint32_t room)
{
	struct group *group = calloc(1, sizeof(*group) + room * sizeof(struct item));

	if (!group)
		return NULL;
	memcpy(group->name, name, sizeof(group->name));
	group->room = room;
	group->paths = -1;
	group->mode = 0600;
	group->gid = getegid();
	return group;
}

static unsigned int close_fds(const struct group *group, const int *fds, unsigned int count)
{
	unsigned int closed = 0;

	for (unsigned int i = 0; i < count; i++) {
		if (fds[i] < 0)
			continue;
		close(fds[i]);
		closed++;
	}
	return closed;
}

void group_free(struct group *group)
{
	if (!group)
		return;
	for (uint32_t i = 0; i < group->count; i++)
		close_fds(group, group->items[i].fds, 3);
	close_fds(group, &group->paths, 1);
	free(group);
}

int group_reopen(int fd, int flags)
{
	return tmesh_foreign_reopen(fd, O_RDONLY | flags);
}

/* Check that the file is sealed memory of this user, and of the size that @wire has. */
static int check_file(const struct tmesh_wire_region *wire, const int *fds, unsigned int count,
		      struct item *item)
{
	int seals = tmesh_foreign_seals(fds[0]);
	uint64_t behind = tmesh_memfd_trailer_bytes(wire->kind);
	bool opaque = wire->kind & TMESH_KIND_OPAQUE;
	struct stat st;

	if (seals < 0 || fstat(fds[0], &st) || st.st_uid != geteuid())
		return -EINVAL;
	if ((seals & TMESH_SEALS_FIXED) != TMESH_SEALS_FIXED ||
	    (!opaque && !(seals & F_SEAL_WRITE)))
		return -EINVAL;
	if (!wire->bytes || st.st_size <= 0 || (uint64_t)st.st_size < behind ||
	    wire->bytes > (uint64_t)st.st_size - behind)
		return -EINVAL;
	/* Polling another kind of file could block on the process that serves it. */
	if (opaque && (count < 2 || fcntl(fds[1], F_GETPIPE_SZ) < 0))
		return -EINVAL;
	item->dev = st.st_dev;
	item->ino = st.st_ino;
	/* An opaque region's file is a hole. */
	item->bytes = opaque ? 0 : (uint64_t)st.st_size;
	return 0;
}

int group_add(struct group *group, const struct tmesh_wire_region *wire, const int *fds,
	      unsigned int count, bool ours)
{
	struct item item = {.wire = *wire, .fds = {-1, -1, -1}, .lent = -1};
	int rc = 0;

	if (group->count == group->room)
		rc = -E2BIG;
	else if (wire->magic != TMESH_MAGIC_REGION || wire->version != TMESH_WIRE_VERSION ||
		 wire->pad || wire->backend != TMESH_BACKEND_MEMFD || (wire->kind & ~TMESH_KINDS) ||
		 tmesh_check_rights(wire->rights, NULL) || count != 1 + tmesh_opaque_count(wire))
		rc = -EPROTO;
	if (!rc)
		rc = check_file(wire, fds, count, &item);
	for (uint32_t i = 0; !rc && i < group->count; i++)
		if (group->items[i].dev == item.dev && group->items[i].ino == item.ino)
			rc = -EINVAL;
	/* No other process has a copy of the keeper's own opening: by it the kernel shows whether
	 * others hold the file. */
	if (!rc && !ours) {
		item.fds[0] = group_reopen(fds[0], 0);
		if (item.fds[0] < 0)
			rc = errno == EMFILE || errno == EWOULDBLOCK ? -errno : -EINVAL;
	}
	if (rc) {
		close_fds(group, fds, count);
		return rc;
	}
	if (ours)
		item.fds[0] = fds[0];
	else
		close(fds[0]);
	for (unsigned int i = 1; i < count; i++)
		item.fds[i] = fds[i];
	group->items[group->count++] = item;
	/* More than there can be is refused when it is kept. */
	if (__builtin_add_overflow(group->bytes, item.bytes, &group->bytes))
		group->bytes = UINT64_MAX;
	return 0;
}

int group_set_paths(struct group *group, int fd, bool ours)
{
	const int wanted = TMESH_SEALS_FIXED | F_SEAL_WRITE;
	int seals = tmesh_foreign_seals(fd);
	struct stat st;
	int rc = 0;

	if (seals < 0 || (seals & wanted) != wanted || fstat(fd, &st) || st.st_uid != geteuid() ||
	    st.st_size < (off_t)sizeof(struct tmesh_paths) ||
	    (uint64_t)st.st_size > TMESH_PATHS_MAX || group->paths >= 0)
		rc = -EINVAL;
	if (!rc && !ours) {
		int own = group_reopen(fd, 0);

		if (own < 0)
			rc = errno == EMFILE || errno == EWOULDBLOCK ? -errno : -EINVAL;
		else
			close(fd);
		fd = own < 0 ? fd : own;
	}
	if (rc) {
		close_fds(group, &fd, 1);
		return rc;
	}
	group->paths = fd;
	group->bytes += (uint64_t)st.st_size;
	return 0;
}

/*
 * Return whether another process holds the item. The kernel grants a write lease only on a file
 * that is open once. Open files that a mapping or a message on a socket keeps count too. The lease
 * is given back at once. Without leases all items count as held. The holders of an opaque region
 * have its revocation pipe open.
 */
static bool is_held(const struct item *item)
{
	if (fcntl(item->fds[0], F_SETLEASE, F_WRLCK))
		return true;
	fcntl(item->fds[0], F_SETLEASE, F_UNLCK);
	return false;
}

uint32_t table_held(const struct table *table, struct group *group)
{
	uint32_t held = 0;

	if (table->looks)
		table->looks(table->data, group);
	for (uint32_t i = 0; i < group->count; i++)
		held += is_held(&group->items[i]);
	return held;
}

void table_looked(const struct table *table)
{
	if (table->looked)
		table->looked(table->data);
}

static uint64_t group_fds(const struct group *group)
{
	uint64_t fds = group->paths >= 0;

	for (uint32_t i = 0; i < group->count; i++)
		for (int k = 0; k < 3; k++)
			fds += group->items[i].fds[k] >= 0;
	return fds;
}

struct group *table_find(const struct table *table, const char *name)
{
	for (struct group *group = table->groups; group; group = group->next)
		if (!strcmp(group->name, name))
			return group;
	return NULL;
}

void group_read(struct group *group)
{
	group->readers++;
}

void group_read_end(struct group *group)
{
	if (--group->readers == 0 && group->gone)
		group_free(group);
}

void table_drop(struct table *table, struct group *group)
{
	struct group **at = &table->groups;

	while (*at != group)
		at = &(*at)->next;
	*at = group->next;
	table->names--;
	table->used -= group->bytes;
	table->fds -= group_fds(group);
	if (table->removed)
		table->removed(table->data, group);
	if (group->readers)
		group->gone = true;
	else
		group_free(group);
}

static int64_t ns_of(const struct timespec *time)
{
	return time->tv_sec * INT64_C(1000000000) + time->tv_nsec;
}

void group_used(struct group *group)
{
	const struct item *item = &group->items[0];
	struct timespec real;
	uint64_t now;
	struct stat st;
	int64_t ago;

	if (group->count != 1 || fstat(item->fds[0], &st))
		return;
	/* Both at once: when the question came may be long ago. */
	now = tmesh_now_ns();
	clock_gettime(CLOCK_REALTIME, &real);
	ago = ns_of(&real) - ns_of(&st.st_atim);
	/* That clock may have been set. */
	if (ago >= 0 && (uint64_t)ago < now && now - (uint64_t)ago > group->used_ns)
		group->used_ns = now - (uint64_t)ago;
}

/* Return whether the group is held; a group that is held counts as used now. */
static bool in_use(const struct table *table, struct group *group, uint64_t now)
{
	if (!group->readers && !table_held(table, group)) {
		group_used(group);
		return false;
	}
	/* A group that was looked at since the question came was used later. */
	if (now > group->used_ns)
		group->used_ns = now;
	return true;
}

/* Return the group that was used longest ago and has memory. A group that stands for a descriptor,
 * such as that of a GPU's memory, has none, so dropping it would free nothing. */
static struct group *oldest(struct table *table, const struct group *spare, uint64_t now)
{
	struct group *found = NULL;

	for (struct group *group = table->groups; group; group = group->next)
		if (group != spare && group->bytes && !in_use(table, group, now) &&
		    (!found || group->used_ns < found->used_ns))
			found = group;
	return found;
}

/* Drop the group unless a process holds it. Remove it from the index first: then no process can
 * open it between the check and the drop. */
static bool give_up(struct table *table, struct group *group, uint64_t now)
{
	if (table->shows)
		table->shows(table->data, group, false);
	if (!in_use(table, group, now)) {
		table_drop(table, group);
		return true;
	}
	if (table->shows)
		table->shows(table->data, group, true);
	return false;
}

bool table_evict(struct table *table, uint64_t now)
{
	struct group *group;

	do
		group = oldest(table, NULL, now);
	while (group && !give_up(table, group, now));
	table_looked(table);
	return group;
}

static bool fits_memory(const struct table *table, const struct group *group,
			const struct group *old)
{
	return table->used - (old ? old->bytes : 0) + group->bytes <= table->limit;
}

static bool fits_fds(const struct table *table, const struct group *group, const struct group *old)
{
	return table->fds - (old ? group_fds(old) : 0) + group_fds(group) <= table->max_fds;
}

/* Return whether all would fit after dropping every unused group. If not, none is dropped. */
static bool can_fit(struct table *table, const struct group *group, const struct group *old,
		    uint64_t now)
{
	uint64_t bytes = group->bytes;

	for (struct group *other = table->groups; other; other = other->next)
		if (other != old && in_use(table, other, now))
			bytes += other->bytes;
	return bytes <= table->limit;
}

static bool is_elsewhere(const struct table *table, const struct group *group,
			 const struct group *old)
{
	for (const struct group *other = table->groups; other; other = other->next) {
		if (other == old)
			continue;
		for (uint32_t i = 0; i < other->count; i++)
			for (uint32_t k = 0; k < group->count; k++)
				if (other->items[i].dev == group->items[k].dev &&
				    other->items[i].ino == group->items[k].ino)
					return true;
	}
	return false;
}

/* Insert by id, and so in the order of keeping, whatever order systemd gives them back in. */
static void insert(struct table *table, struct group *group)
{
	struct group **at = &table->groups;

	while (*at && (*at)->id < group->id)
		at = &(*at)->next;
	group->next = *at;
	*at = group;
	table->names++;
	table->used += group->bytes;
	table->fds += group_fds(group);
}

void table_adopt(struct table *table, struct group *group, uint64_t now)
{
	group->used_ns = now;
	if (group->id > table->last_id)
		table->last_id = group->id;
	insert(table, group);
}

static int keep(struct table *table, struct group *group, uint64_t lifetime_ns, bool replace,
		uint64_t now, uint64_t *need)
{
	struct group *old = table_find(table, group->name);
	int rc = 0;

	*need = group->bytes;
	if (old && !replace)
		rc = -EEXIST;
	else if (is_elsewhere(table, group, old))
		rc = -EBUSY;
	/* A lack of descriptors drops no kept group: memory is not short, and its owners would not
	 * notice. */
	else if (!fits_fds(table, group, old) || (!old && table->names == TMESH_KEEPER_MAX_NAMES))
		rc = -ENFILE;
	else if (group->bytes > table->limit)
		rc = -EDQUOT;
	/* Finding groups in use takes a look at each, so it is done only without room. */
	else if (!fits_memory(table, group, old) && !can_fit(table, group, old, now))
		rc = -EDQUOT;
	if (rc) {
		group_free(group);
		return rc;
	}
	while (!fits_memory(table, group, old)) {
		struct group *victim = oldest(table, old, now);

		/* It was taken into use this moment. */
		if (!victim) {
			group_free(group);
			return -EDQUOT;
		}
		give_up(table, victim, now);
	}
	group->id = ++table->last_id;
	group->kept_ns = group->used_ns = now;
	if (lifetime_ns && __builtin_add_overflow(now, lifetime_ns, &group->expires_ns))
		group->expires_ns = 0;
	rc = table->added ? table->added(table->data, group) : 0;
	if (rc) {
		group_free(group);
		return rc;
	}
	/* The new one is safe before the old one goes. */
	insert(table, group);
	if (old)
		table_drop(table, old);
	return 0;
}

int table_keep(struct table *table, struct group *group, uint64_t lifetime_ns, bool replace,
	       uint64_t now, uint64_t *need)
{
	int rc = keep(table, group, lifetime_ns, replace, now, need);

	table_looked(table);
	return rc;
}

uint64_t table_expire(struct table *table, uint64_t now)
{
	struct group *group = table->groups, *next;
	uint64_t soonest = 0;

	for (; group; group = next) {
		next = group->next;
		if (!group->expires_ns)
			continue;
		if (group->expires_ns <= now)
			table_drop(table, group);
		else if (!soonest || group->expires_ns < soonest)
			soonest = group->expires_ns;
	}
	return soonest;
}
