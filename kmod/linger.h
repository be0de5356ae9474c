/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Regions without a claim that stay a little longer.
 */
#ifndef TMESH_LINGER_H
#define TMESH_LINGER_H

#include "tmesh.h"

void tmesh_linger_init(struct tmesh_region *region);
void tmesh_linger_begin(struct tmesh_region *region);
void tmesh_device_opened(struct tmesh_user *user);
void tmesh_device_closed(struct tmesh_user *user);

#endif /* TMESH_LINGER_H */
