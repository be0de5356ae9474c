/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gather views.
 */
#ifndef TMESH_GATHER_H
#define TMESH_GATHER_H

#include "tmesh.h"

int tmesh_ioctl_gather(struct tmesh_ucmd *ucmd);

#endif /* TMESH_GATHER_H */
