// SPDX-License-Identifier: MIT
/*
 * Bound the groups that the service knows. A keeper may answer for any name, and the kernel keeps
 * each name that was looked up. When a user has many, the kernel is asked to forget the older half.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mount.h"

struct known {
	uint64_t serial;
	char name[TMESH_KEPT_NAME_LEN + 1];
};

static int by_serial(const void *a, const void *b)
{
	uint64_t x = ((const struct known *)a)->serial, y = ((const struct known *)b)->serial;

	return x < y ? -1 : x > y;
}

/* Copy the names of the user's groups without open files; the lock is held. */
static size_t collect(const struct user *user, struct known *all)
{
	size_t count = 0;

	for (size_t i = 0; i < BUCKETS; i++)
		for (struct group *group = tree.by_serial[i]; group; group = group->next_serial) {
			if (group->user != user || group->opens || count == GROUPS_KNOWN)
				continue;
			all[count].serial = group->serial;
			memcpy(all[count++].name, group->name, sizeof(group->name));
		}
	return count;
}

/* Wait for a user with many groups; NULL: the service ends. The lock is held. */
static struct user *await_crowd(void)
{
	while (!tree.ends) {
		for (struct user *user = tree.users; user; user = user->next)
			if (user->crowded)
				return user;
		pthread_cond_wait(&tree.crowd, &tree.lock);
	}
	return NULL;
}

void *forget_groups(void *unused)
{
	static struct known all[GROUPS_KNOWN];
	const struct timespec pause = {0, 100000000};
	struct user *user;

	pthread_mutex_lock(&tree.lock);
	while ((user = await_crowd())) {
		size_t count = collect(user, all);
		fuse_ino_t parent = ino_of_user(user->uid);

		user->crowded = false;
		user->groups_new = 0;
		/* The kernel may wait for a lookup in the folder, which needs the lock. */
		pthread_mutex_unlock(&tree.lock);
		qsort(all, count, sizeof(*all), by_serial);
		for (size_t i = 0; i < count / 2; i++)
			fuse_lowlevel_notify_inval_entry(tree.session, parent, all[i].name,
							 strlen(all[i].name));
		nanosleep(&pause, NULL);
		pthread_mutex_lock(&tree.lock);
	}
	pthread_mutex_unlock(&tree.lock);
	return NULL;
}
