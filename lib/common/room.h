/* SPDX-License-Identifier: MIT */
/*
 * Limits of memory by the control groups (versions 1 and 2) that this process is in, and by the
 * machine. A process that exceeds one is killed, or another process of the group.
 */
#ifndef TMESH_COMMON_ROOM_H
#define TMESH_COMMON_ROOM_H

#include <stdint.h>

#define TMESH_ROOM_PATH 256

struct tmesh_room {
	uint64_t bytes;	  /* that can be taken yet; UINT64_MAX: nothing says */
	uint64_t limit;	  /* of @group; "": the machine's memory and swap space */
	uint64_t largest; /* the least limit of all groups and the machine, without swap space */
	const char *file; /* that has the limit of @group */
	char group[TMESH_ROOM_PATH];
};

/*
 * Fill @out with the least room of all groups and the machine. Page cache counts as free.
 * @root: before all paths, "" but in tests.
 */
void tmesh_room(const char *root, struct tmesh_room *out);

#endif /* TMESH_COMMON_ROOM_H */
