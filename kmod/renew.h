/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reuse of a region's memory.
 */
#ifndef TMESH_RENEW_H
#define TMESH_RENEW_H

#include "tmesh.h"

int tmesh_ioctl_renew(struct tmesh_ucmd *ucmd);

#endif /* TMESH_RENEW_H */
