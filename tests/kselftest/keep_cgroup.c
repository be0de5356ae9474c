// SPDX-License-Identifier: MIT
/*
 * Kept regions and memory control groups: the group charged for them, and reclaim at its limit.
 */
#include <sys/socket.h>

#include "cgroup.h"
#include "keep.h"
#include "lease.h"

#define CHILD CGROUP "/loader"
/* Bytes that processors are charged for in advance, and those of the test itself */
#define SLACK ((long)(2 * MB))

static void leave_in(int dev, const char *name, __u64 bytes, __u32 flags)
{
	int fd = keep_region(dev, bytes, flags, 3);

	REQUIRE_OK(keep(dev, name, &fd, 1, 0));
	close(fd);
}

static void leave(int dev, const char *name, __u64 bytes)
{
	leave_in(dev, name, bytes, 0);
}

/* Wait until a group's charges fall below @bytes: they are released a little later. */
static bool falls_below(const char *group, long bytes)
{
	for (int i = 0; i < 6000 && cgroup_charged(group) >= bytes; i++)
		usleep(20000);
	return cgroup_charged(group) < bytes;
}

TEST(removed, "a loader's group that is removed leaves the charge of what it kept to its parent")
{
	__u64 bytes = 16 * MB;
	int dev = t_dev();
	struct tmesh_kept k;
	struct stat st;
	long before;

	cgroup_make(CGROUP, "max");
	before = cgroup_charged(CGROUP);
	T_ALONE()
	{
		cgroup_enter(CHILD, "max");
		leave(dev, "weights", bytes);
		CHECK(cgroup_charged(CHILD) >= (long)bytes - SLACK);
	}
	REQUIRE_OK(stat(CHILD, &st));
	REQUIRE(kept_find(dev, "weights", &k));
	CHECK_EQ(k.cgroup_id, st.st_ino);
	cgroup_remove(CHILD);
	CHECK(is_kept(dev, "weights"));
	CHECK(cgroup_charged(CGROUP) - before >= (long)bytes - SLACK);
	/* Another loader uses it and is not charged. */
	T_ALONE()
	{
		int fd;

		cgroup_enter(CHILD, "8388608");
		REQUIRE(kept_open(dev, "weights", R_READ, 0, &fd, 1) == 1);
		CHECK(keep_same(fd, bytes, 3));
		CHECK(cgroup_charged(CHILD) < (long)bytes / 2);
	}
	CHECK_OK(kept_drop(dev, "weights"));
	CHECK(falls_below(CGROUP, before + (long)bytes / 2));
	cgroup_remove(CHILD);
	cgroup_remove(CGROUP);
}

TEST(removed_memfd,
     "the pages of a memfd stay charged too, to the groups above the one that is removed")
{
	size_t bytes = 16 * MB;
	int pair[2], fd;
	long before;
	pid_t pid;

	REQUIRE_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	cgroup_make(CGROUP, "max");
	before = cgroup_charged(CGROUP);
	T_CHILD(pid) {
		void *p;

		cgroup_enter(CHILD, "max");
		fd = REQUIRE_OK(memfd_create("weights", MFD_CLOEXEC));
		REQUIRE_OK(ftruncate(fd, (off_t)bytes));
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
		REQUIRE(p != MAP_FAILED);
		memset(p, 3, bytes);
		t_send_fd(pair[0], fd);
	}
	/* The keeper holds it, and is in no control group of the loader. */
	fd = t_recv_fd(pair[1]);
	t_wait(pid);
	cgroup_remove(CHILD);
	CHECK(cgroup_charged(CGROUP) - before >= (long)bytes - SLACK);
	close(fd);
	CHECK(falls_below(CGROUP, before + (long)bytes / 2));
	cgroup_remove(CGROUP);
	close(pair[0]);
	close(pair[1]);
}

TEST(limit, "at a group's limit a new region takes what was kept from the group without a holder")
{
	int dev = t_dev(), held, fd;

	leave(dev, "another's", 4 * MB);
	T_ALONE()
	{
		cgroup_enter(CGROUP, "67108864");
		held = keep_region(dev, 16 * MB, 0, 7);
		REQUIRE_OK(keep(dev, "held", &held, 1, 0));
		leave(dev, "older", 8 * MB);
		leave(dev, "newer", 16 * MB);
		/* Reclaiming the first name frees enough. */
		CHECK_OK(fd = t_create(dev, 28 * MB, 0));
		CHECK(!is_kept(dev, "older"));
		CHECK(is_kept(dev, "newer"));
		CHECK_ERR(t_create(dev, 48 * MB, 0), ENOMEM);
		CHECK(!is_kept(dev, "newer"));
		CHECK(is_kept(dev, "held"));
		CHECK(is_kept(dev, "another's"));
		CHECK(keep_same(held, 16 * MB, 7));
		CHECK_EQ(cgroup_events(CGROUP, "oom_kill"), 0);
	}
	CHECK(is_kept(dev, "held"));
	t_drop_kept();
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	cgroup_remove(CGROUP);
}

static void leave_memfd(int dev, const char *name, size_t bytes)
{
	int memfd = REQUIRE_OK(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};
	void *p;

	REQUIRE_OK(ftruncate(memfd, (off_t)bytes));
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	REQUIRE(p != MAP_FAILED);
	memset(p, 3, bytes);
	munmap(p, bytes);
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &c));
	close(memfd);
	REQUIRE_OK(t_seal(c.fd));
	REQUIRE_OK(keep(dev, name, &c.fd, 1, 0));
	close(c.fd);
}

TEST(limit_memfd, "at a group's limit as many kept groups of memfds go as a new region needs")
{
	int dev = t_dev();

	T_ALONE()
	{
		cgroup_enter(CGROUP, "67108864");
		leave_memfd(dev, "first", 8 * MB);
		leave_memfd(dev, "second", 8 * MB);
		leave_memfd(dev, "third", 8 * MB);
		leave_memfd(dev, "fourth", 8 * MB);
		/* The first name is reclaimed before the call fails. */
		CHECK_OK(t_create(dev, 36 * MB, 0));
		CHECK(!is_kept(dev, "first"));
		CHECK(is_kept(dev, "third"));
		CHECK(is_kept(dev, "fourth"));
		CHECK_EQ(cgroup_events(CGROUP, "oom_kill"), 0);
	}
	t_drop_kept();
	cgroup_remove(CGROUP);
}

TEST(limit_beside,
     "at a group's limit what a region needs beside its pages takes what has no holder")
{
	struct rlimit files = {1 << 19, 1 << 19};
	int dev = t_dev();

	T_ALONE()
	{
		int handle, fd, why, out = REQUIRE_OK(open(CGROUPS "/cgroup.procs", O_WRONLY));

		REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
		cgroup_enter(CGROUP, "8388608");
		leave(dev, "idle", 2 * MB);
		handle = REQUIRE_OK(t_create(dev, PAGE, 0));
		/* Handles reclaim nothing, and the last one needs more pages than the group has. */
		while (t_derive(handle, R_READ, 0) >= 0)
			;
		why = errno;
		/* Memory of the failed call is free a little later, and may be enough for some. */
		for (int i = 0; i < 64 && (i == 0 || fd >= 0); i++)
			fd = t_create(dev, PAGE, 0);
		/* The following code needs memory of the process. */
		REQUIRE(write(out, "0", 1) == 1);
		CHECK_EQ(why, ENOMEM);
		CHECK_OK(fd);
		CHECK(!is_kept(dev, "idle"));
		CHECK_EQ(cgroup_events(CGROUP, "oom_kill"), 0);
	}
	t_drop_kept();
	cgroup_remove(CGROUP);
}

TEST(limit_pinned, "what the kernel has of it keeps it from its group, too, until it lets go")
{
	int dev = t_dev();

	T_ALONE()
	{
		int fd, pipes[2];
		struct iovec io;

		cgroup_enter(CGROUP, "33554432");
		fd = keep_region(dev, 12 * MB, 0, 7);
		REQUIRE_OK(keep(dev, "pinned", &fd, 1, 0));
		io = (struct iovec){t_map(fd, PAGE, PROT_READ), PAGE};
		REQUIRE(io.iov_base != MAP_FAILED);
		REQUIRE_OK(pipe(pipes));
		REQUIRE(vmsplice(pipes[1], &io, 1, 0) == PAGE);
		munmap(io.iov_base, PAGE);
		close(fd);
		CHECK_ERR(t_create(dev, 24 * MB, 0), ENOMEM);
		CHECK(is_kept(dev, "pinned"));
		close(pipes[0]);
		close(pipes[1]);
		CHECK_OK(t_create(dev, 24 * MB, 0));
		CHECK(!is_kept(dev, "pinned"));
	}
	t_drop_kept();
	cgroup_remove(CGROUP);
}

/* Fork a process that makes a region, and kill it after some microseconds. */
static void kill_creator(int dev, size_t bytes, unsigned int after_us)
{
	int pair[2];
	pid_t pid;

	t_pair(pair);
	pid = t_fork();
	if (!pid) {
		t_say(pair[1]);
		t_create(dev, bytes, TMESH_CREATE_NOHUGE);
		pause();
	}
	t_hear(pair[0]);
	usleep(after_us);
	kill_and_reap(pid);
	close(pair[0]);
	close(pair[1]);
}

/* Leave so much room in the group that a process can be forked, and little more. */
static void leave_no_room(void)
{
	char most[24];

	snprintf(most, sizeof(most), "%lld", (long long)(cgroup_charged(CGROUP) + MB));
	cgroup_write(CGROUP, "memory.max", most);
}

TEST(node_forbidden, "a node without memory for the caller takes nothing of what is kept")
{
	struct tmesh_create c = {
		.size = sizeof(c), .bytes = MB, .flags = TMESH_CREATE_NODE, .node = 1};
	int dev = t_dev();
	long before;

	if (access("/sys/devices/system/node/node1", F_OK))
		t_skip("this machine has one node");
	t_write_file(CGROUPS "/cgroup.subtree_control", "+cpuset");
	cgroup_make(CGROUP, "max");
	if (access(CGROUP "/cpuset.mems", F_OK))
		t_skip("no cpuset controller in cgroup2");
	cgroup_write(CGROUP, "cpuset.mems", "0");
	T_ALONE()
	{
		cgroup_enter(CGROUP, "67108864");
		leave(dev, "idle", 40 * MB);
		CHECK_ERR(ioctl(dev, TMESH_CREATE, &c), ENOMEM);
		CHECK(is_kept(dev, "idle"));
		/* A refusal leaves no page behind. */
		before = cgroup_charged(CGROUP);
		for (int i = 0; i < 2048; i++)
			CHECK_ERR(ioctl(dev, TMESH_CREATE, &c), ENOMEM);
		CHECK(cgroup_charged(CGROUP) < before + (long)(4 * MB));
		/* At the limit a region of a node takes it, as any other does. */
		c.node = 0;
		c.bytes = 40 * MB;
		CHECK_OK(ioctl(dev, TMESH_CREATE, &c));
		CHECK(!is_kept(dev, "idle"));
	}
	t_drop_kept();
	cgroup_remove(CGROUP);
}

TEST(limit_killed, "a process that is killed while it looks at what is kept leaves its order")
{
	unsigned int seed = 4711;
	int dev = t_dev(), looked = 0;

	T_ALONE()
	{
		cgroup_enter(CGROUP, "67108864");
		for (int i = 0; i < t_length(30, 200); i++) {
			leave_in(dev, "older", 20 * MB, TMESH_CREATE_NOHUGE);
			leave(dev, "newer", 4 * MB);
			leave(dev, "newest", 4 * MB);
			leave_no_room();
			/* The process soon looks at the 5,120 pages of the older one. */
			kill_creator(dev, 4 * MB, t_random(&seed) % 3000);
			if (is_kept(dev, "older")) {
				looked++;
				close(REQUIRE_OK(t_create(dev, 4 * MB, 0)));
			}
			CHECK(!is_kept(dev, "older"));
			/* A call may look twice. */
			CHECK(is_kept(dev, "newer"));
			CHECK(is_kept(dev, "newest"));
			cgroup_write(CGROUP, "memory.max", "67108864");
			t_drop_kept();
		}
		t_note("killed before the older one was taken: %d times", looked);
	}
	cgroup_remove(CGROUP);
}

/*
 * The kernel calls shrinkers without per-cgroup lists only when the machine is short of memory.
 * This test documents that, before an OOM kill surprises a user.
 */
TEST(limit_of_others, "at a group's limit what processes need takes nothing of what is kept")
{
	__u64 bytes = 32 * MB;
	int dev = t_dev(), status;
	pid_t eater;

	T_ALONE()
	{
		cgroup_enter(CGROUP, "50331648");
		leave(dev, "weights", bytes);
		eater = REQUIRE_OK(fork());
		if (!eater) {
			char *p = malloc(bytes);

			t_write_file("/proc/self/oom_score_adj", "1000");
			for (__u64 i = 0; p && i < bytes; i += PAGE)
				((volatile char *)p)[i] = 1;
			_exit(0);
		}
		REQUIRE(waitpid(eater, &status, 0) == eater);
		CHECK(WIFSIGNALED(status));
		CHECK(is_kept(dev, "weights"));
	}
	t_drop_kept();
	cgroup_remove(CGROUP);
}
