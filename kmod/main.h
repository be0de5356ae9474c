/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The workqueues.
 */
#ifndef TMESH_MAIN_H
#define TMESH_MAIN_H

#include "tmesh.h"

extern struct workqueue_struct *tmesh_wq;
extern struct workqueue_struct *tmesh_expiry_wq;
extern struct workqueue_struct *tmesh_lapse_wq;
extern struct workqueue_struct *tmesh_orphan_wq;

#endif /* TMESH_MAIN_H */
