/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kept memory that goes back.
 */
#ifndef TMESH_RECLAIM_H
#define TMESH_RECLAIM_H

#include "tmesh.h"

int tmesh_reclaim_init(void);
void tmesh_reclaim_exit(void);
unsigned long tmesh_reclaim_group(void);

#endif /* TMESH_RECLAIM_H */
