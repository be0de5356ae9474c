/* SPDX-License-Identifier: MIT */
/* Tokens that hold: what a context keeps for those who will open it. hold.c */
#ifndef TMESH_LIB_HELD_H
#define TMESH_LIB_HELD_H

#include "internal.h"

struct tmesh_hold; /* one token that holds, or that has held and is still good */

/* All with ctx->lock held. */

/* The region and the rights of a token that holds or has held (memfd), or NULL. */
struct tmesh_hold *tmesh_hold_find(struct tmesh_ctx *ctx, const uint8_t *secret);
struct tmesh_region *tmesh_hold_region(const struct tmesh_hold *hold);
uint32_t tmesh_hold_rights(const struct tmesh_hold *hold);
/* Somebody has the region now. */
void tmesh_hold_opened(struct tmesh_hold *hold);

/* Without it: the region object ends, and with it its tokens. */
void tmesh_hold_forget(struct tmesh_region *region);

/* In a forked child, without locks or allocation: what is held is the parent's. */
void tmesh_holds_forked(struct tmesh_ctx *ctx);
/* ... and in its first call: let go of what was inherited. */
void tmesh_holds_disown(struct tmesh_ctx *ctx);
/* The context ends; nothing is held any more. */
void tmesh_holds_free(struct tmesh_ctx *ctx);

#endif /* TMESH_LIB_HELD_H */
