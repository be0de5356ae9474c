/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kept memory that a full control group takes.
 */
#ifndef TMESH_RECLAIM_H
#define TMESH_RECLAIM_H

#include "tmesh.h"

unsigned long tmesh_reclaim_group(void);

#endif /* TMESH_RECLAIM_H */
