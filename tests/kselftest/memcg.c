// SPDX-License-Identifier: MIT
/*
 * A memory control group: charges other than pages, and calls when the group is full.
 */
#include <stdint.h>

#include "cgroup.h"
#include "peer.h"
#include "t.h"

TEST(tables, "the table of an importer is charged to its control group as it attaches")
{
	int peer = open_peer(), export = export_of_many();

	T_ALONE()
	{
		long before, attached, mapped;

		cgroup_enter(CGROUP, "max");
		before = cgroup_charged(CGROUP);
		REQUIRE_OK(peer_import(peer, export, PEER_WAITS));
		attached = cgroup_charged(CGROUP);
		REQUIRE_OK(ioctl(peer, PEER_MAP));
		mapped = cgroup_charged(CGROUP);
		/* At least 16 bytes are charged for each. */
		CHECK(attached - before >= (long)PEER_PARTS * 16);
		/* Other importers wait for the reservation, which is held during a map. */
		CHECK(mapped - attached < (long)PEER_PARTS * 8);
		t_note("%ld bytes, then %ld", attached - before, mapped - attached);
		peer_let_go(peer);
	}
	cgroup_remove(CGROUP);
}

TEST(attach, "to attach in a full control group gives ENOMEM and kills no process")
{
	int export = export_of_many();

	T_ALONE()
	{
		int out = REQUIRE_OK(open(CGROUPS "/cgroup.procs", O_WRONLY | O_CLOEXEC)), why;
		unsigned int attached = 0;

		cgroup_enter(CGROUP, "8388608");
		while (!peer_import(open_peer(), export, PEER_WAITS))
			attached++;
		why = errno;
		/* The following code needs memory of the process. */
		REQUIRE(write(out, "0", 1) == 1);
		CHECK_EQ(why, ENOMEM);
		CHECK(attached > 0 && attached < 8);
		CHECK_EQ(cgroup_events(CGROUP, "oom_kill"), 0);
	}
	cgroup_remove(CGROUP);
}

#define LEASES 512

TEST(leases, "leases share what is looked at to find those without touches")
{
	struct tmesh_lease l = {.size = sizeof(l), .period_ns = 3600 * 1000000000ull};
	struct rlimit files = {3 * LEASES, 3 * LEASES};
	int dev = t_dev(), h = REQUIRE_OK(t_create(dev, PAGE, 0)), handles[LEASES];

	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
	for (int i = 0; i < LEASES; i++)
		handles[i] = REQUIRE_OK(t_derive(h, R_READ, 0));
	T_ALONE()
	{
		long before;

		cgroup_enter(CGROUP, "max");
		before = cgroup_charged(CGROUP);
		for (int i = 0; i < LEASES; i++)
			REQUIRE_OK(ioctl(handles[i], TMESH_LEASE, &l));
		/* Each has two pages of its own. */
		CHECK(cgroup_charged(CGROUP) - before < LEASES * 3 * (long)PAGE);
		t_note("%ld bytes for each", (cgroup_charged(CGROUP) - before) / LEASES);
	}
	cgroup_remove(CGROUP);
}

/* Make calls until there is no memory left. The process must not be killed. */
static void fill(int (*call)(int dev, int handle))
{
	struct rlimit files = {1 << 19, 1 << 19};

	T_ALONE()
	{
		int out, dev, handle, why;
		long calls = 0;

		REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
		out = REQUIRE_OK(open(CGROUPS "/cgroup.procs", O_WRONLY | O_CLOEXEC));
		cgroup_enter(CGROUP, t_full() ? "48M" : "8M");
		dev = t_dev();
		handle = REQUIRE_OK(t_create(dev, PAGE, 0));
		while (call(dev, handle) >= 0)
			calls++;
		why = errno;
		/* The following code needs memory of the process. */
		REQUIRE(write(out, "0", 1) == 1);
		CHECK_EQ(why, ENOMEM);
		t_note("%ld calls", calls);
		CHECK(calls > 300);
		CHECK_EQ(cgroup_events(CGROUP, "oom_kill"), 0);
	}
	cgroup_remove(CGROUP);
}

static int create(int dev, int handle)
{
	(void)handle;
	return t_create(dev, PAGE, 0);
}

static int derive(int dev, int handle)
{
	(void)dev;
	return t_derive(handle, R_READ, 0);
}

static int export(int dev, int handle)
{
	(void)dev;
	return t_export(handle, 0, 0, 0);
}

static int view(int dev, int handle)
{
	static int source = -1;
	static unsigned int views;
	struct tmesh_extent part;

	/* Use a new source when one has its most views. */
	if (views++ % 512 == 0 && (source = t_create(dev, PAGE, 0)) < 0)
		return -1;
	(void)handle;
	part = t_extent(source, 0, 1);
	return t_gather(dev, &part, 1, R_READ);
}

static int lease(int dev, int handle)
{
	struct tmesh_lease l = {.size = sizeof(l), .period_ns = 3600 * 1000000000ull};
	int h = derive(dev, handle);

	return h < 0 || ioctl(h, TMESH_LEASE, &l) ? -1 : l.fd;
}

static int open_token(int dev, int handle)
{
	static __u8 token[TMESH_TOKEN_BYTES];
	static bool given;

	if (!given)
		REQUIRE_OK(t_token(handle, R_READ, token));
	given = true;
	return t_open(dev, token, R_READ, 0);
}

/* Make this memory present: a fault would be charged to the process itself. */
static char room[1 << 20];

static void touch_room(void)
{
	if (!room[0])
		memset(room, 1, sizeof(room));
}

/*
 * List regions while their number grows. The errno is that of the last call with the group full:
 * ENOMEM, unless it has just listed all.
 */
static int list(int dev, int handle)
{
	struct tmesh_list l = {.size = sizeof(l),
			       .entries = (uintptr_t)room,
			       .entry_bytes = sizeof(struct tmesh_info)};
	int made;

	(void)handle;
	touch_room();
	l.count = sizeof(room) / l.entry_bytes;
	made = t_create(dev, PAGE, 0);
	if (made >= 0)
		return made;
	CHECK(!ioctl(dev, TMESH_LIST, &l) || errno == ENOMEM);
	errno = ENOMEM;
	return -1;
}

static int holders(int dev, int handle)
{
	struct tmesh_holders h = {.size = sizeof(h),
				  .entries = (uintptr_t)room,
				  .entry_bytes = sizeof(struct tmesh_holder)};
	int made;

	touch_room();
	h.count = sizeof(room) / h.entry_bytes;
	made = derive(dev, handle);
	if (made >= 0)
		return made;
	CHECK(!ioctl(handle, TMESH_HOLDERS, &h) || errno == ENOMEM);
	errno = ENOMEM;
	return -1;
}

TEST_CALL(create, "CREATE in a full control group gives ENOMEM, and no process is killed",
	  fill(create))
TEST_CALL(derive, "so does DERIVE", fill(derive))
TEST_CALL(export, "so does EXPORT", fill(export))
TEST_CALL(gather, "so does GATHER", fill(view))
TEST_CALL(lease, "so does LEASE", fill(lease))
TEST_CALL(open, "so does OPEN", fill(open_token))

/*
 * The table of descriptors is full. The group has room for much, but not for a table of twice the
 * size. The memory of the tables before it, half of that, may be freed meanwhile.
 */
#define FILES (1 << 18)
#define ROOM (256 * KB)

TEST(table, "so does whatever needs a longer table of descriptors")
{
	struct rlimit files = {2 * FILES, 2 * FILES};

	T_ALONE()
	{
		char limit[24], size[24];
		int out, dev, handle;

		REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
		out = REQUIRE_OK(open(CGROUPS "/cgroup.procs", O_WRONLY | O_CLOEXEC));
		cgroup_enter(CGROUP, "max");
		dev = t_dev();
		handle = REQUIRE_OK(t_create(dev, PAGE, 0));
		while (REQUIRE_OK(dup(dev)) < FILES - 1)
			;
		/* Leave a descriptor for the files that are read here. */
		close(FILES - 1);
		REQUIRE(t_file_value("/proc/self/status", "FDSize", size, sizeof(size)));
		CHECK_EQ(atoi(size), FILES);
		snprintf(limit, sizeof(limit), "%llu", cgroup_charged(CGROUP) + ROOM);
		cgroup_write(CGROUP, "memory.max", limit);
		REQUIRE(dup(dev) == FILES - 1);
		CHECK_ERR(t_derive(handle, R_READ, 0), ENOMEM);
		CHECK_ERR(t_export(handle, 0, 0, 0), ENOMEM);
		close(FILES - 1);
		REQUIRE(write(out, "0", 1) == 1);
		CHECK_EQ(cgroup_events(CGROUP, "oom_kill"), 0);
	}
	cgroup_remove(CGROUP);
}

TEST_CALL(list, "LIST in a full control group answers or gives ENOMEM, and no process is killed",
	  fill(list))
TEST_CALL(holders, "so does HOLDERS", fill(holders))
