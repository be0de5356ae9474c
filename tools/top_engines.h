/* SPDX-License-Identifier: MIT */
#ifndef TMESHCTL_TOP_ENGINES_H
#define TMESHCTL_TOP_ENGINES_H

#include "tmeshctl.h"

/*
 * The engines that tmesh-engine serves in this runtime directory, which is this user's alone: read
 * from the files that their supervisors hold a lock on. No process is asked, so none can keep the
 * caller waiting. An array of objects, ordered by name.
 */
json_t *find_engines(struct tmesh_ctx *ctx);
void print_served(const json_t *engines);

#endif /* TMESHCTL_TOP_ENGINES_H */
