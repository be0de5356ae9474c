// SPDX-License-Identifier: MIT
/* Groups that the kernel knows, their tables, and their open files. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mount.h"

#if PASSTHROUGH
#include <linux/fuse.h>
#include <sys/ioctl.h>
#endif

struct group *group_find(uint64_t serial)
{
	struct group *group = tree.by_serial[serial % BUCKETS];

	while (group && group->serial != serial)
		group = group->next_serial;
	return group;
}

/* Convert the keeper's time, by the monotonic clock, to the calendar's. */
static struct timespec real_time(uint64_t kept_ns)
{
	uint64_t now = tmesh_now_ns(), real;
	struct timespec time;

	clock_gettime(CLOCK_REALTIME, &time);
	real = (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
	if (kept_ns < now && now - kept_ns < real)
		real -= now - kept_ns;
	return (struct timespec){(time_t)(real / 1000000000), (long)(real % 1000000000)};
}

static struct group **bucket_of(uint64_t id, const char *name)
{
	uint64_t key = id ^ tree.secret;

	do
		key = (key ^ (unsigned char)*name ^ key >> 32) * UINT64_C(0x9e3779b97f4a7c15);
	while (*name++);
	return &tree.by_key[(key >> 32) % BUCKETS];
}

struct group *group_of(struct user *user, const struct tmesh_keeper_row *row)
{
	struct group **bucket = bucket_of(row->id, row->name), *group = *bucket;

	while (group &&
	       (group->id != row->id || group->user != user || strcmp(group->name, row->name)))
		group = group->next_key;
	if (group)
		return group;
	group = user->groups < GROUPS_KNOWN ? calloc(1, sizeof(*group)) : NULL;
	if (!group)
		return NULL;
	group->user = user;
	group->serial = ++tree.last_serial;
	group->id = row->id;
	group->regions = row->count;
	group->mode = row->mode;
	group->gid = row->gid;
	group->kept = real_time(row->kept_ns);
	memcpy(group->name, row->name, sizeof(group->name));
	group->next_key = *bucket;
	*bucket = group;
	user->groups++;
	user->groups_new++;
	group->next_serial = tree.by_serial[group->serial % BUCKETS];
	tree.by_serial[group->serial % BUCKETS] = group;
	return group;
}

void group_crowd(struct user *user)
{
	/* Not at each request: names that are in use stay known. */
	if (user->groups < GROUPS_KNOWN / 2 || user->crowded ||
	    (user->groups < GROUPS_KNOWN && user->groups_new < GROUPS_KNOWN / 8))
		return;
	user->crowded = true;
	pthread_cond_signal(&tree.crowd);
}

void group_release(struct group *group)
{
	struct group **at = bucket_of(group->id, group->name);

	if (group->lookups || group->opens)
		return;
	while (*at != group)
		at = &(*at)->next_key;
	*at = group->next_key;
	group->user->groups--;
	at = &tree.by_serial[group->serial % BUCKETS];
	while (*at != group)
		at = &(*at)->next_serial;
	*at = group->next_serial;
	group_set_table(group, NULL);
	free(group);
}

static void table_free(struct table *table)
{
	if (table->user)
		table->user->table_bytes -= table->length;
	free(table->paths);
	free(table);
}

/* Make the group the newest of those with a table. */
static void link_group(struct group *group)
{
	struct user *user = group->user;

	group->older = user->newest;
	group->newer = NULL;
	*(user->newest ? &user->newest->newer : &user->oldest) = group;
	user->newest = group;
}

static void unlink_group(struct group *group)
{
	struct user *user = group->user;

	*(group->older ? &group->older->newer : &user->oldest) = group->newer;
	*(group->newer ? &group->newer->older : &user->newest) = group->older;
}

void group_set_table(struct group *group, struct table *table)
{
	if (group->table) {
		unlink_group(group);
		if (--group->table->refs == 0)
			table_free(group->table);
	}
	group->table = table;
	if (!table)
		return;
	table->refs++;
	link_group(group);
}

bool table_admit(struct group *group, struct table *table)
{
	struct user *user = group->user;

	table->user = user;
	user->table_bytes += table->length;
	/* Drop the tables that were used longest ago. Those that open folders have stay in memory.
	 */
	while (user->table_bytes > TABLE_BYTES && user->oldest)
		group_set_table(user->oldest, NULL);
	return user->table_bytes <= TABLE_BYTES;
}

struct table *table_get(struct group *group)
{
	if (!group->table)
		return NULL;
	unlink_group(group);
	link_group(group);
	group->table->refs++;
	return group->table;
}

void table_put(struct table *table)
{
	pthread_mutex_lock(&tree.lock);
	if (--table->refs == 0)
		table_free(table);
	pthread_mutex_unlock(&tree.lock);
}

struct file *file_find(struct group *group, uint32_t index)
{
	struct file *file = group->files;

	while (file && file->index != index)
		file = file->next;
	return file;
}

void file_close(struct file *file)
{
	struct group *group = file->group;
	struct file **at = &group->files;

	if (--file->refs)
		return;
	while (*at != file)
		at = &(*at)->next;
	*at = file->next;
#if PASSTHROUGH
	/* No request is needed for it: the one that opened the file may be gone. */
	if (file->backing)
		ioctl(fuse_session_fd(tree.session), FUSE_DEV_IOC_BACKING_CLOSE, &file->backing);
#endif
	if (file->fd >= 0)
		close(file->fd);
	free(file);
	group->user->open_files--;
	if (--group->opens == 0)
		group->user->open_groups--;
	group_release(group);
}
