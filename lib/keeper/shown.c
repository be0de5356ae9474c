// SPDX-License-Identifier: MIT
/* What is kept as one region, in an index that others read: they open it without waking the keeper.
 */
#include "client.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/hex.h"

#define SLOTS 256

/* Its own opening is not given: by that each client's is told apart. So it is not said to be one
 * that only reads, which clients would duplicate. */
static bool is_shown(const struct group *group)
{
	return group->count == 1 && !(group->items[0].wire.kind & TMESH_KIND_OPAQUE) &&
	       (group->items[0].wire.rights & TMESH_READ);
}

static void link_shown(const struct shown *shown)
{
	char name[33];

	tmesh_hex(name, shown->name, sizeof(shown->name));
	tmesh_rundir_link(shown->dir, name, tmesh_index_fd(shown->index));
}

/* Best effort: without an index clients ask. */
void shown_begin(struct shown *shown, int dir)
{
	struct stat st;

	*shown = (struct shown){.dir = dir};
	if (fstat(dir, &st))
		return;
	tmesh_keeper_name(st.st_dev, st.st_ino, shown->name);
	if (tmesh_index_new(shown->name, 1, SLOTS, &shown->index, NULL) == 0)
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
	/* It takes the place of what had the name before. */
	tmesh_index_remove(shown->index, entry.secret);
	if (!is_shown(group))
		return;
	number = tmesh_index_number(shown->index);
	if (tmesh_index_add_file(&shown->index, &entry, &file, NULL) == 0 &&
	    tmesh_index_number(shown->index) != number)
		link_shown(shown);
}

void shown_remove(struct shown *shown, const char *name)
{
	uint8_t key[TMESH_SECRET_BYTES];

	if (!shown->index)
		return;
	tmesh_keeper_key(name, key);
	tmesh_index_remove(shown->index, key);
}
