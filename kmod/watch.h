/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who looks when leases end.
 */
#ifndef TMESH_WATCH_H
#define TMESH_WATCH_H

#include "tmesh.h"

void tmesh_watch_setup(void);
int tmesh_watch_init(struct tmesh_tenure *lease);
void tmesh_watch_start(struct tmesh_tenure *lease);
void tmesh_watch_stop(struct tmesh_tenure *lease);
void tmesh_watch_fini(struct tmesh_tenure *lease);
u64 tmesh_watch_left(struct tmesh_tenure *lease);
void tmesh_watch_show(struct seq_file *m);
void tmesh_watch_exit(void);

#endif /* TMESH_WATCH_H */
