/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Holds: regions that outlive their last claim for a time.
 */
#ifndef TMESH_KMOD_HOLD_H
#define TMESH_KMOD_HOLD_H

#include "tmesh.h"

void tmesh_hold_init(struct tmesh_region *region);
void tmesh_hold_begin(struct tmesh_region *region);
void tmesh_device_opened(struct tmesh_user *user);
void tmesh_device_closed(struct tmesh_user *user);

#endif /* TMESH_KMOD_HOLD_H */
