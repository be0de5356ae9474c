// SPDX-License-Identifier: MIT
/*
 * Devices that import an export, with and without a move callback.
 */
#include "lease.h"
#include "peer.h"
#include "t.h"

#define BYTES (1 * MB)
#define SECOND 1000000000ull

/*
 * Test for kernel 7.0. Before, the core keeps the mapping of a device with a move callback until it
 * detaches.
 */
static bool keeps_nothing(void)
{
	return t_kernel_at_least(7, 0);
}

static int region(void)
{
	return REQUIRE_OK(t_create(t_dev(), BYTES, TMESH_CREATE_NOHUGE));
}

/* Let a device map a slice of the region. */
static int device(int handle, __u32 export_flags, __u32 flags)
{
	int dmabuf = REQUIRE_OK(t_export(handle, PAGE, 4 * PAGE, export_flags));
	int peer = open_peer();

	REQUIRE_OK(peer_import(peer, dmabuf, flags));
	close(dmabuf);
	return peer;
}

static int wait_free(int handle, struct tmesh_revoke *r, __u64 timeout_ns)
{
	*r = (struct tmesh_revoke){
		.size = sizeof(*r),
		.flags = TMESH_REVOKE_WAIT,
		.timeout_ns = timeout_ns,
	};
	return ioctl(handle, TMESH_REVOKE, r);
}

TEST(sealed, "a sealed region goes to a device that reads, and to none that asks to write")
{
	int h = region(), reads = open_peer(), writes = open_peer(), dmabuf;

	REQUIRE_OK(t_seal(h));
	dmabuf = REQUIRE_OK(t_export(h, 0, 0, 0));
	CHECK_ERR(peer_import(writes, dmabuf, PEER_WRITES), EACCES);
	CHECK_OK(peer_import(reads, dmabuf, 0));
	CHECK_EQ(ioctl(reads, PEER_MAPPED), 1);
	CHECK_ERR(t_export(h, 0, 0, TMESH_EXPORT_WRITE), EPERM);
	peer_let_go(reads);
}

#define TOLD (PEER_TOLD | PEER_LETS_GO | PEER_WRITES)

TEST(told, "a dynamic device gets one notification, and has the memory no more")
{
	int h = region(), peer = device(h, TMESH_EXPORT_WRITE, TOLD);
	struct tmesh_revoke r;

	CHECK_EQ(ioctl(peer, PEER_MAPPED), 1);
	CHECK_OK(t_revoke(h));
	CHECK_EQ(ioctl(peer, PEER_TOLD_TIMES), 1);
	CHECK_EQ(ioctl(peer, PEER_MAPPED), 0);
	if (keeps_nothing()) {
		CHECK_OK(wait_free(h, &r, 0));
		CHECK_ERR(ioctl(peer, PEER_MAP), ESTALE);
	} else {
		CHECK_ERR(wait_free(h, &r, 0), ETIMEDOUT);
		CHECK_EQ(r.pinned_bytes, 4 * PAGE);
	}
	CHECK_EQ(r.attachments, 1);
	peer_let_go(peer);
	CHECK_OK(wait_free(h, &r, 60 * SECOND));
	CHECK_EQ(r.attachments, 0);
}

TEST(told_waits, "one that lets go later has the memory until then")
{
	int h = region(), peer = device(h, TMESH_EXPORT_WRITE, PEER_TOLD | PEER_WRITES);
	struct tmesh_revoke r;

	CHECK_OK(t_revoke(h));
	CHECK_EQ(ioctl(peer, PEER_TOLD_TIMES), 1);
	CHECK_EQ(ioctl(peer, PEER_MAPPED), 1);
	CHECK_ERR(wait_free(h, &r, 0), ETIMEDOUT);
	CHECK_EQ(r.pinned_bytes, 4 * PAGE);
	REQUIRE_OK(ioctl(peer, PEER_UNMAP));
	if (!keeps_nothing())
		peer_let_go(peer);
	CHECK_OK(wait_free(h, &r, 60 * SECOND));
}

TEST(not_told, "a static device keeps its mapping until it lets go")
{
	int h = region(), peer = device(h, TMESH_EXPORT_WRITE, PEER_WRITES);
	struct tmesh_revoke r;

	CHECK_OK(t_revoke(h));
	CHECK_EQ(ioctl(peer, PEER_TOLD_TIMES), 0);
	CHECK_EQ(ioctl(peer, PEER_MAPPED), 1);
	CHECK_ERR(wait_free(h, &r, 0), ETIMEDOUT);
	CHECK_EQ(r.pinned_bytes, 4 * PAGE);
	REQUIRE_OK(ioctl(peer, PEER_UNMAP));
	CHECK_OK(wait_free(h, &r, 60 * SECOND));
	CHECK_EQ(r.attachments, 1);
	CHECK_ERR(ioctl(peer, PEER_MAP), ESTALE);
}

TEST(later, "no device attaches to a revoked export, or maps what was attached before")
{
	int h = region(), dmabuf = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	int before = device(h, TMESH_EXPORT_WRITE, PEER_WAITS | PEER_WRITES), after = open_peer();

	CHECK_OK(t_revoke(h));
	CHECK_ERR(peer_import(after, dmabuf, 0), ESTALE);
	CHECK_ERR(peer_import(after, dmabuf, TOLD), ESTALE);
	CHECK_ERR(peer_import(after, dmabuf, PEER_WAITS), ESTALE);
	CHECK_ERR(ioctl(before, PEER_MAP), ESTALE);
}

TEST(kernel, "the kernel's own mapping of an export that has ended shows zeros")
{
	int h = region(), leased = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0)), peer = open_peer();
	int other = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE)), mine;
	char *p = t_map(h, PAGE, RW);
	pid_t pid = sleeper();
	struct lease l = lease_bind(leased, pid);

	REQUIRE(p != MAP_FAILED);
	*p = 7;
	mine = REQUIRE_OK(t_export(leased, 0, 0, TMESH_EXPORT_WRITE));
	CHECK_EQ(ioctl(peer, PEER_LOOK, mine), 7);
	kill_and_reap(pid);
	await_end(&l, leased);
	CHECK_EQ(ioctl(peer, PEER_LOOK, mine), 0);
	CHECK_EQ(ioctl(peer, PEER_LOOK, other), 7);
	CHECK_OK(t_revoke(h));
	CHECK_EQ(ioctl(peer, PEER_LOOK, other), 0);
	CHECK_EQ(t_info(h).pinned_bytes, 0);
}

TEST(read_only, "a read-only export is for devices that only read")
{
	int h = region(), reader = device(h, 0, PEER_WAITS);
	int writer = device(h, 0, PEER_WAITS | PEER_WRITES);

	CHECK_OK(ioctl(reader, PEER_MAP));
	CHECK_ERR(ioctl(writer, PEER_MAP), EACCES);
	REQUIRE_OK(ioctl(reader, PEER_UNMAP));
	REQUIRE_OK(t_seal(h));
	CHECK_OK(ioctl(reader, PEER_MAP));
	CHECK_ERR(ioctl(writer, PEER_MAP), EACCES);
}

TEST(read_only_told, "and for dynamic ones, where the core does not map both ways for them")
{
	int h = region(), dmabuf = REQUIRE_OK(t_export(h, 0, 0, 0)), peer = open_peer();

	if (!keeps_nothing()) {
		CHECK_ERR(peer_import(peer, dmabuf, PEER_TOLD), EACCES);
		return;
	}
	REQUIRE_OK(peer_import(peer, dmabuf, PEER_TOLD | PEER_LETS_GO));
	CHECK_OK(t_revoke(h));
	CHECK_EQ(ioctl(peer, PEER_MAPPED), 0);
}

TEST(lapse, "the end of a lease notifies the devices of its exports, and no others")
{
	int h = region(), leased = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
	int mine, other, late, pidfd;
	pid_t pid = t_fork();
	struct lease l;

	if (!pid)
		for (;;)
			pause();
	pidfd = REQUIRE_OK(syscall(SYS_pidfd_open, pid, 0));
	l = lease_map(REQUIRE_OK(lease_call(leased, TMESH_LEASE_PROCESS, 0, pidfd, NULL)));
	mine = device(leased, TMESH_EXPORT_WRITE, TOLD);
	other = device(h, TMESH_EXPORT_WRITE, TOLD);
	late = device(leased, TMESH_EXPORT_WRITE, PEER_WAITS | PEER_WRITES);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	await_end(&l, leased);
	/* The state changes before anything is taken away. */
	while (ioctl(mine, PEER_MAPPED))
		usleep(1000);
	CHECK_EQ(ioctl(mine, PEER_TOLD_TIMES), 1);
	if (keeps_nothing())
		CHECK_ERR(ioctl(mine, PEER_MAP), ESTALE);
	CHECK_ERR(ioctl(late, PEER_MAP), ESTALE);
	CHECK_EQ(ioctl(other, PEER_TOLD_TIMES), 0);
	CHECK_EQ(ioctl(other, PEER_MAPPED), 1);
	lease_unmap(&l);
}

TEST(alone, "the last holder learns that it is alone once a device lets go of lapsed memory")
{
	int h = region(), leased = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0)), peer = open_peer();
	pid_t pid = sleeper(), polls;
	struct lease l = lease_bind(leased, pid);
	int dmabuf = REQUIRE_OK(t_export(leased, 0, 0, TMESH_EXPORT_WRITE));

	REQUIRE_OK(peer_import(peer, dmabuf, PEER_WRITES));
	kill_and_reap(pid);
	await_end(&l, leased);
	CHECK_EQ(polled(h, 0), 0);
	T_CHILD(polls) {
		CHECK_EQ(polled(h, 60000), POLLOUT);
	}
	await_poll(polls);
	peer_let_go(peer);
	t_wait(polls);
}

/* Test whether a process ends within a minute. */
static bool ends(pid_t pid)
{
	struct pollfd p = {.fd = pidfd_of(pid), .events = POLLIN};
	bool ended = poll(&p, 1, 60000) == 1;

	close(p.fd);
	return ended;
}

static bool told_in_time(int peer)
{
	for (int i = 0; i < 6000 && ioctl(peer, PEER_TOLD_TIMES) < 1; i++)
		usleep(10000);
	return ioctl(peer, PEER_TOLD_TIMES) == 1;
}

TEST(reserved, "a revocation waits for no importer that has the reservation, and tells it later")
{
	int h = region(), dmabuf = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	int peer = open_peer(), holds = open_peer();
	pid_t holder, pid;

	REQUIRE_OK(peer_import(peer, dmabuf, TOLD));
	holder = peer_hold(holds, dmabuf);
	T_CHILD(pid)
		CHECK_OK(t_revoke(h));
	CHECK(ends(pid));
	CHECK_EQ(ioctl(peer, PEER_TOLD_TIMES), 0);
	/* Nor does the exit of the last holder wait. */
	close(h);
	close(dmabuf);
	peer_release(holds, holder);
	t_wait(pid);
	CHECK(told_in_time(peer));
	CHECK_EQ(ioctl(peer, PEER_MAPPED), 0);
	peer_let_go(peer);
}

TEST(reserved_lapse, "nor does the end of a lease, behind which others of the same user wait")
{
	int dev = t_dev(), fds[2], leased[2], dmabuf, peer = open_peer(), holds = open_peer();
	pid_t holder, pid = sleeper();
	struct lease leases[2];

	for (int i = 0; i < 2; i++) {
		fds[i] = REQUIRE_OK(t_create(dev, BYTES, TMESH_CREATE_NOHUGE));
		leased[i] = REQUIRE_OK(t_derive(fds[i], R_ALL, 0));
		leases[i] = lease_bind(leased[i], pid);
	}
	/* The first region's leases end first. */
	dmabuf = REQUIRE_OK(t_export(leased[0], 0, 0, TMESH_EXPORT_WRITE));
	REQUIRE_OK(peer_import(peer, dmabuf, TOLD));
	holder = peer_hold(holds, dmabuf);
	kill_and_reap(pid);
	CHECK(poll(&(struct pollfd){.fd = leased[1]}, 1, 60000) == 1);
	CHECK(poll(&(struct pollfd){.fd = leased[0]}, 1, 60000) == 1);
	CHECK_EQ(ioctl(peer, PEER_TOLD_TIMES), 0);
	peer_release(holds, holder);
	for (int i = 0; i < 2; i++)
		await_end(&leases[i], leased[i]);
	CHECK(told_in_time(peer));
	peer_let_go(peer);
}
