/* SPDX-License-Identifier: MIT */
#ifndef TMESHCTL_TOP_ENGINES_H
#define TMESHCTL_TOP_ENGINES_H

#include "tmeshctl.h"

/*
 * Return an array of the engines that tmesh-engine serves in this user's runtime directory, ordered
 * by name. They are read from the files that their supervisors hold a lock on. No process is asked,
 * so none can keep the caller waiting.
 */
json_t *find_engines(struct tmesh_ctx *ctx);
void print_served(const json_t *engines);

#endif /* TMESHCTL_TOP_ENGINES_H */
