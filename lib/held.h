/* SPDX-License-Identifier: MIT */
/* Holds: regions that a context keeps for processes with their tokens. hold.c */
#ifndef TMESH_LIB_HELD_H
#define TMESH_LIB_HELD_H

#include "internal.h"

struct tmesh_hold; /* one token that holds, or that has held and is still good */

/* All with ctx->lock held. */

/* Find a token that holds or has held (memfd), or return NULL. */
struct tmesh_hold *tmesh_hold_find(struct tmesh_ctx *ctx, const uint8_t *secret);
struct tmesh_region *tmesh_hold_region(const struct tmesh_hold *hold);
uint32_t tmesh_hold_rights(const struct tmesh_hold *hold);
/* Note that a process has opened the hold's region. */
void tmesh_hold_opened(struct tmesh_hold *hold);

/* End the holds of a region that was taken back (taken_back): no process can open it any more. */
void tmesh_hold_revoke(struct tmesh_region *region);

/* Drop the holds of a region object that ends, and with it its tokens. ctx->lock is not held. */
void tmesh_hold_forget(struct tmesh_region *region);

/* Leave the holds to the parent in a forked child, without locks or allocation. */
void tmesh_holds_forked(struct tmesh_ctx *ctx);
/* Release the inherited copies in the child's first call. */
void tmesh_holds_disown(struct tmesh_ctx *ctx);
/* Drop all holds at the context's end. */
void tmesh_holds_free(struct tmesh_ctx *ctx);

#endif /* TMESH_LIB_HELD_H */
