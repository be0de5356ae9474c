/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reclaim of kept memory.
 */
#ifndef TMESH_RECLAIM_H
#define TMESH_RECLAIM_H

#include "tmesh.h"

int tmesh_reclaim_init(void);
void tmesh_reclaim_exit(void);
bool tmesh_reclaim_cgroup(unsigned long *most);

#endif /* TMESH_RECLAIM_H */
