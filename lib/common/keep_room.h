/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_KEEP_ROOM_H
#define TMESH_COMMON_KEEP_ROOM_H

#include "public.h"

/* Refuse with -EDQUOT, before they are read, bytes that pass the user's limit of kept bytes by
 * themselves. tmesh_keep() refuses what passes it together with what is kept.
 * @info: of tmesh_keeper_info(). */
int tmesh_keep_room(const struct tmesh_keeper_info *info, enum tmesh_backend backend,
		    uint64_t bytes, struct tmesh_error *err);

#endif /* TMESH_COMMON_KEEP_ROOM_H */
