/* SPDX-License-Identifier: MIT */
/*
 * Tell whether the engine's process is late, by the page that it writes and by the supervisor's own
 * clock. No content of the page lets the process go on for ever.
 */
#ifndef TMESH_ENGINE_LATENESS_H
#define TMESH_ENGINE_LATENESS_H

#include "process.h"

struct lateness {
	uint64_t longest; /* the longest time for any work, in ns */
	uint64_t beat;	  /* the last value seen */
	uint64_t since;	  /* when it was seen to change, or first seen idle */
	uint64_t asked;	  /* when a sleeping process was asked; 0: not asked */
	uint64_t looked;  /* when the supervisor last began to wait */
	uint64_t stopped; /* how long it was stopped since then; the engine's limit does not count
			   * that */
	bool continued;	  /* the supervisor continued after a stop, and has not checked since */
	bool asks;	  /* the process must be asked now */
};

/* Begin for a new process that started at @began. */
void lateness_begin(struct lateness *own, uint64_t began);
void lateness_look(struct lateness *own, uint64_t now);
/* Continue after the supervisor was stopped, for example by a terminal. */
void lateness_continue(struct lateness *own, uint64_t now);
/* Return whether the process is late; else set @until, the time of the next check. */
bool lateness_check(struct lateness *own, const struct watch *watch, uint64_t now, uint64_t *until);

#endif /* TMESH_ENGINE_LATENESS_H */
