// SPDX-License-Identifier: MIT
/* Regions kept alone, in an index that other processes read: they open them without waking the
 * keeper. */
#include "client.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hex.h"

#define BUCKETS 256

static bool is_shown(const struct group *group)
{
	return group->count == 1 && !(group->items[0].wire.kind & TMESH_KIND_OPAQUE) &&
	       (group->items[0].wire.rights & TMESH_READ);
}

/* Write the link to the index. All keepers of a directory give it the same name, and an earlier one
 * may have been killed at that. */
static void link_shown(const struct shown *shown)
{
	char name[33], unfinished[48];

	tmesh_hex(name, shown->name, sizeof(shown->name));
	snprintf(unfinished, sizeof(unfinished), "%s.new", name);
	unlinkat(shown->dir, unfinished, 0);
	tmesh_rundir_link(shown->dir, name, tmesh_index_fd(shown->index));
}

/* Make the index if possible: without it clients ask. */
void shown_begin(struct shown *shown, int dir, uint32_t most)
{
	struct stat st;

	*shown = (struct shown){.dir = dir, .most = most};
	if (fstat(dir, &st))
		return;
	tmesh_keeper_name(st.st_dev, st.st_ino, shown->name);
	if (tmesh_index_new(shown->name, 1, BUCKETS, false, &shown->index, NULL) == 0)
		link_shown(shown);
}

void shown_end(struct shown *shown)
{
	char link[64], name[33];

	if (!shown->index)
		return;
	tmesh_hex(name, shown->name, sizeof(shown->name));
	snprintf(link, sizeof(link), "%s.index", name);
	unlinkat(shown->dir, link, 0);
	tmesh_index_free(shown->index);
	shown->index = NULL;
}

void shown_add(struct shown *shown, const struct group *group)
{
	const struct item *item = &group->items[0];
	struct tmesh_index_entry entry = {.rights = TMESH_READ};
	struct tmesh_index_file file = {
		.fd = item->fds[0],
		.kind = item->wire.kind,
		.dev = item->dev,
		.ino = item->ino,
		.id = item->wire.id,
		.bytes = item->wire.bytes,
	};
	uint64_t number;

	if (!shown->index)
		return;
	tmesh_keeper_key(group->name, entry.secret);
	/* It replaces an entry of the same name. */
	tmesh_index_remove(shown->index, entry.secret);
	if (!is_shown(group))
		return;
	number = tmesh_index_number(shown->index);
	if (tmesh_index_add_file(&shown->index, &entry, &file, NULL) == 0 &&
	    tmesh_index_number(shown->index) != number)
		link_shown(shown);
}

static void close_lent(struct item *item)
{
	if (item->lent >= 0)
		close(item->lent);
	item->lent = -1;
}

void shown_remove(struct shown *shown, struct group *group, bool renamed)
{
	uint8_t key[TMESH_SECRET_BYTES];

	if (!shown->index)
		return;
	tmesh_keeper_key(group->name, key);
	if (!renamed)
		tmesh_index_remove(shown->index, key);
	/* A process that duplicated it before now is seen by the next look
	 * (tmesh_index_hit_holds()). */
	atomic_thread_fence(memory_order_seq_cst);
	close_lent(&group->items[0]);
}

/*
 * Take the lent descriptor back. Duplicating a file costs a client less than opening it, but no
 * process can tell whether the keeper alone has a duplicated one. So the keeper lends a separate
 * opening and closes it before it asks the kernel through its own, which then shows the clients'
 * copies. Until the next loan, clients open the file anew.
 */
void shown_reclaim(struct shown *shown, struct group *group)
{
	struct item *item = &group->items[0];
	uint8_t key[TMESH_SECRET_BYTES];

	if (item->lent < 0)
		return;
	tmesh_keeper_key(group->name, key);
	tmesh_index_set_fd(shown->index, key, item->fds[0], false);
	close_lent(item);
}

/* Lend an opening of the group's file. Clients set its time of access: the kernel would set it only
 * to the last tick. */
static void lend(struct shown *shown, struct group *group)
{
	struct item *item = &group->items[0];
	uint8_t key[TMESH_SECRET_BYTES];

	if (item->lent >= 0)
		return;
	tmesh_keeper_key(group->name, key);
	if (!tmesh_index_find(shown->index, key))
		return;
	item->lent = group_reopen(item->fds[0], O_NOATIME);
	if (item->lent >= 0)
		tmesh_index_set_fd(shown->index, key, item->lent, true);
}

void shown_lend(struct shown *shown, struct group *groups, uint32_t count)
{
	if (!shown->index)
		return;
	for (; groups && count > shown->most; groups = groups->next, count--)
		shown_reclaim(shown, groups);
	for (; groups; groups = groups->next)
		lend(shown, groups);
}
