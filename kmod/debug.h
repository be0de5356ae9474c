/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Introspection for administrators.
 */
#ifndef TMESH_DEBUG_H
#define TMESH_DEBUG_H

#include "tmesh.h"

void tmesh_show_fdinfo(struct seq_file *m, struct file *file);
void tmesh_debug_init(void);
void tmesh_debug_exit(void);

#endif /* TMESH_DEBUG_H */
