/* SPDX-License-Identifier: MIT */
/* Walks over the descriptors and mappings of all processes. */
#ifndef TMESH_MEMFD_PROC_H
#define TMESH_MEMFD_PROC_H

#include "internal.h"

/* One descriptor, or one mapping without counting descriptors. */
struct sight {
	pid_t pid;
	int fd;	 /* -1: a mapping */
	int dir; /* /proc/PID/fd, open while the visitor looks */
	uint64_t dev;
	uint64_t ino;
	bool writable;	  /* of a mapping */
	int *lack;	  /* why something could not be looked at, or 0: the walk's answer */
	const char *name; /* "tmesh:1:...", or another memfd's */
};

/* Return non-zero to end the walk. */
typedef int (*visit_fn)(void *data, const struct sight *sight);

/* Note that a lack of resources prevented an open. Most other failures mean a file that is gone. */
void tmesh_proc_note(const struct sight *sight);
/* Call @visit for each memfd that the process has open. */
int tmesh_proc_walk_fds(pid_t pid, visit_fn visit, void *data, int *lack);
/* Call @fds for each memfd that any process has open, and @maps (may be NULL) for each that one
 * maps. */
int tmesh_proc_walk(visit_fn fds, visit_fn maps, void *data, struct tmesh_error *err);

#endif /* TMESH_MEMFD_PROC_H */
