/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_OTHERS_H
#define TMESH_COMMON_OTHERS_H

#include "public.h"

/* Name the holders that are other processes, as many as fit: "101 (python3), 102 (beam.smp)".
 * @none: the text if there are none. */
void tmesh_name_others(const struct tmesh_holder_info *holders, size_t count, const char *none,
		       char *text, size_t size);

#endif /* TMESH_COMMON_OTHERS_H */
