/* SPDX-License-Identifier: MIT */
/*
 * Memory control groups (cgroup2), for tests of charges.
 */
#ifndef TMESH_KSELFTEST_CGROUP_H
#define TMESH_KSELFTEST_CGROUP_H

#include "t.h"

#define CGROUPS "/sys/fs/cgroup"
#define CGROUP CGROUPS "/tmesh-test"

static inline void cgroup_write(const char *group, const char *file, const char *text)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/%s", group, file);
	REQUIRE(t_write_file(path, text));
}

static inline void cgroup_make(const char *group, const char *limit)
{
	char path[160];

	if (access(CGROUPS "/cgroup.controllers", F_OK))
		t_skip("no cgroup2 at " CGROUPS);
	/* Enable the memory controller in the parent group. */
	snprintf(path, sizeof(path), "%.*s/cgroup.subtree_control",
		 (int)(strrchr(group, '/') - group), group);
	t_write_file(path, "+memory");
	REQUIRE(!mkdir(group, 0755) || errno == EEXIST);
	snprintf(path, sizeof(path), "%s/memory.max", group);
	if (access(path, F_OK))
		t_skip("no memory controller in cgroup2");
	cgroup_write(group, "memory.max", limit);
	snprintf(path, sizeof(path), "%s/memory.swap.max", group);
	t_write_file(path, "0");
}

/* Enter a group. "max" is no limit. */
static inline void cgroup_enter(const char *group, const char *limit)
{
	cgroup_make(group, limit);
	cgroup_write(group, "cgroup.procs", "0");
}

/* Remove a group that has no processes any more. */
static inline void cgroup_remove(const char *group)
{
	for (int i = 0; i < 6000 && rmdir(group) && errno == EBUSY; i++)
		usleep(20000);
	CHECK(access(group, F_OK));
}

/* Return the bytes charged to a group and its descendants. */
static inline long cgroup_charged(const char *group)
{
	char path[160], text[32];

	snprintf(path, sizeof(path), "%s/memory.current", group);
	REQUIRE(t_read_file(path, text, sizeof(text)));
	return atol(text);
}

/* Read a counter of memory.events, such as "oom_kill". */
static inline int cgroup_events(const char *group, const char *what)
{
	char path[160], text[32];

	snprintf(path, sizeof(path), "%s/memory.events", group);
	REQUIRE(t_file_value(path, what, text, sizeof(text)));
	return atoi(text);
}

#endif /* TMESH_KSELFTEST_CGROUP_H */
