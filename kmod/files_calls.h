/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The call that reads the files of a kept group.
 */
#ifndef TMESH_FILES_CALLS_H
#define TMESH_FILES_CALLS_H

#include "tmesh.h"

int tmesh_ioctl_kept_files(struct tmesh_ucmd *ucmd);

#endif /* TMESH_FILES_CALLS_H */
