// SPDX-License-Identifier: MIT
#include "lateness.h"

/* The interval of checks while the process works, and the time that work may take after its
 * deadline. */
#define LOOK_NS UINT64_C(10000000)
#define LATE_NS UINT64_C(10000000)

/* Add without overflow: times from the page may be anything. */
static uint64_t plus(uint64_t time, uint64_t more)
{
	return time > UINT64_MAX - more ? UINT64_MAX : time + more;
}

void lateness_begin(struct lateness *own, uint64_t began)
{
	*own = (struct lateness){.longest = own->longest, .since = began, .looked = began};
}

void lateness_look(struct lateness *own, uint64_t now)
{
	own->looked = now;
}

void lateness_continue(struct lateness *own, uint64_t now)
{
	/* While the process works this counts at most one interval too much. */
	own->stopped = plus(own->stopped, now - own->looked);
	own->continued = true;
	own->looked = now;
}

/* Return whether a sleeping process is late. It may only claim to sleep, so it is asked now and
 * then. */
static bool sleeps_too_long(struct lateness *own, uint64_t now, uint64_t *until)
{
	uint64_t due = plus(plus(own->asked ? own->asked : own->since, own->longest), own->stopped);

	*until = due;
	if (now < due)
		return false;
	if (own->asked)
		return true;
	own->asked = now;
	own->asks = true;
	*until = plus(now, own->longest);
	return false;
}

bool lateness_check(struct lateness *own, const struct watch *watch, uint64_t now, uint64_t *until)
{
	uint64_t beat = atomic_load(&watch->beat);
	uint64_t deadline = atomic_load(&watch->deadline), by = atomic_load(&watch->until);

	if (beat != own->beat) {
		own->beat = beat;
		own->since = now;
		own->asked = 0;
		/* The first change after a stop may have happened before the stop. */
		if (!own->continued)
			own->stopped = 0;
	}
	own->continued = false;
	if (by && now >= plus(by, LATE_NS))
		return true;
	if (deadline && now >= plus(plus(deadline, LATE_NS), own->stopped))
		return true;
	if (!deadline && !by && atomic_load(&watch->asleep) == WATCH_ASLEEP)
		return sleeps_too_long(own, now, until);
	*until = now + LOOK_NS;
	/* Late if nothing began or ended for the longest time, regardless of the page's
	 * deadlines. */
	return now >= plus(plus(own->since, own->longest + LATE_NS), own->stopped);
}
