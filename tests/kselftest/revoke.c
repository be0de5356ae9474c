// SPDX-License-Identifier: MIT
/*
 * Revocation: the holders that it lists, the pages that stay pinned, and when all memory is free.
 */
#include <grp.h>

#include "drm.h"
#include "t.h"

#define BYTES (4 * MB)
#define RW (PROT_READ | PROT_WRITE)
#define SECOND 1000000000ull
#define ROOM 8

static int dev;
static struct tmesh_holder entries[ROOM];

static int region(__u32 flags)
{
	dev = t_dev();
	return REQUIRE_OK(t_create(dev, BYTES, flags));
}

static int revoke_for(int h, struct tmesh_revoke *r, __u32 flags, __u64 timeout_ns)
{
	memset(entries, 0, sizeof(entries));
	*r = (struct tmesh_revoke){
		.size = sizeof(*r),
		.flags = flags,
		.entries = (__u64)(unsigned long)entries,
		.entry_bytes = sizeof(entries[0]),
		.count = ROOM,
		.timeout_ns = timeout_ns,
	};
	return ioctl(h, TMESH_REVOKE, r);
}

/*
 * Put pages into a pipe. vmsplice() takes a reference on each, like direct I/O, and the pipe keeps
 * it until it is read.
 */
static void pin_pages(int pipes[2], void *p, size_t bytes)
{
	struct iovec iov = {.iov_base = p, .iov_len = bytes};

	REQUIRE_OK(pipe2(pipes, O_CLOEXEC));
	REQUIRE_OK(fcntl(pipes[1], F_SETPIPE_SZ, 2 * bytes));
	REQUIRE(vmsplice(pipes[1], &iov, 1, 0) == (ssize_t)bytes);
}

static void unpin_pages(int pipes[2])
{
	close(pipes[0]);
	close(pipes[1]);
}

static __u64 pinned(int h)
{
	struct tmesh_info i = {.size = sizeof(i), .flags = TMESH_INFO_PINS};

	REQUIRE_OK(ioctl(h, TMESH_INFO, &i));
	return i.pinned_bytes;
}

TEST(free_at_once, "what is not pinned is free when the call returns")
{
	int h = region(0);
	struct tmesh_revoke r;
	char *p = t_map(h, BYTES, RW);

	memset(p, 1, BYTES);
	CHECK_EQ(pinned(h), 0);
	CHECK_OK(revoke_for(h, &r, 0, 0));
	CHECK_EQ(r.pinned_bytes, 0);
	CHECK_EQ(r.exports, 0);
	CHECK_EQ(r.attachments, 0);
	CHECK_EQ(r.total, 0);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	CHECK_EQ(t_caps(dev).used_regions, 1);
	CHECK_EQ(t_info(h).pinned_bytes, 0);
	CHECK_OK(revoke_for(h, &r, TMESH_REVOKE_WAIT, 0));
}

TEST(pinned_pages,
     "pinned pages stay charged and shown, each folio by itself, until they are let go")
{
	int h = region(TMESH_CREATE_NOHUGE), pipes[2];
	char *p = t_map(h, BYTES, RW), text[PAGE];
	struct tmesh_revoke r;

	REQUIRE(p != MAP_FAILED);
	memset(p, 'x', BYTES);
	pin_pages(pipes, p + 7 * PAGE, 3 * PAGE);
	CHECK_EQ(t_info(h).pinned_bytes, 0);
	CHECK_EQ(pinned(h), 3 * PAGE);
	CHECK_OK(revoke_for(h, &r, 0, 0));
	CHECK_EQ(r.pinned_bytes, 3 * PAGE);
	CHECK_EQ(r.total, 0);
	CHECK_EQ(t_read(p), SIGBUS);
	CHECK_EQ(t_caps(dev).used_bytes, 3 * PAGE);
	CHECK_EQ(t_info(h).pinned_bytes, 3 * PAGE);
	CHECK_ERR(revoke_for(h, &r, TMESH_REVOKE_WAIT, SECOND / 20), ETIMEDOUT);
	CHECK_EQ(r.pinned_bytes, 3 * PAGE);
	/* The pipe's reader gets the pinned bytes. */
	REQUIRE(read(pipes[0], text, PAGE) == (ssize_t)PAGE);
	CHECK(text[0] == 'x' && text[PAGE - 1] == 'x');
	while (t_info(h).pinned_bytes > 2 * PAGE)
		usleep(1000);
	CHECK_EQ(t_caps(dev).used_bytes, 2 * PAGE);
	unpin_pages(pipes);
	CHECK_OK(revoke_for(h, &r, TMESH_REVOKE_WAIT, 60 * SECOND));
	CHECK_EQ(r.pinned_bytes, 0);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

TEST(pinned_huge, "a pin on one page keeps its whole 2 MiB folio, and no other")
{
	int h, pipes[2];
	struct tmesh_revoke r;
	char *p;

	h = region(0);
	if (!t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	close(h);
	h = REQUIRE_OK(t_create(dev, BYTES, TMESH_CREATE_HUGE));
	p = t_map(h, BYTES, RW);
	pin_pages(pipes, p + HUGE + 5 * PAGE, PAGE);
	CHECK_EQ(pinned(h), HUGE);
	CHECK_OK(revoke_for(h, &r, 0, 0));
	CHECK_EQ(r.pinned_bytes, HUGE);
	CHECK_EQ(t_caps(dev).used_bytes, HUGE);
	unpin_pages(pipes);
	CHECK_OK(revoke_for(h, &r, TMESH_REVOKE_WAIT, 60 * SECOND));
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

TEST(pinned_end,
     "pinned pages are their owner's to pay for after the region's end, until the pin ends")
{
	int h = region(TMESH_CREATE_NOHUGE), pipes[2];
	char *p = t_map(h, BYTES, RW), c;
	struct tmesh_revoke r;

	memset(p, 'y', PAGE);
	pin_pages(pipes, p, PAGE);
	CHECK_OK(revoke_for(h, &r, 0, 0));
	CHECK_EQ(r.pinned_bytes, PAGE);
	munmap(p, BYTES);
	close(h);
	CHECK_EQ(t_listed(dev), 0);
	CHECK_EQ(t_caps(dev).used_regions, 0);
	CHECK_EQ(t_caps(dev).used_bytes, PAGE);
	REQUIRE(read(pipes[0], &c, 1) == 1);
	CHECK_EQ(c, 'y');
	close(pipes[0]);
	close(pipes[1]);
	for (int i = 0; i < 60000 && t_caps(dev).used_bytes; i++)
		usleep(1000);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

/* Devices */

static const char *device_of(const struct tmesh_holder *h)
{
	return h->kind == TMESH_HOLDER_DEVICE ? h->device : "";
}

static struct tmesh_holders holders(int h)
{
	struct tmesh_holders q = {
		.size = sizeof(q),
		.entries = (__u64)(unsigned long)entries,
		.entry_bytes = sizeof(entries[0]),
		.count = ROOM,
	};

	memset(entries, 0, sizeof(entries));
	REQUIRE_OK(ioctl(h, TMESH_HOLDERS, &q));
	return q;
}

TEST(devices_listed, "HOLDERS names devices, each after its export, and whether they map")
{
	int vgem = open_vgem(), h = region(0), fd, handle;
	struct tmesh_holders q;

	fd = REQUIRE_OK(t_export(h, PAGE, 3 * PAGE, TMESH_EXPORT_WRITE));
	REQUIRE_OK(t_export(h, 0, 0, 0));
	handle = REQUIRE_OK(vgem_import(vgem, fd));
	q = holders(h);
	CHECK_EQ(q.total, 4);
	CHECK_EQ(q.count, 4);
	CHECK_EQ(entries[0].kind, TMESH_HOLDER_HANDLE);
	CHECK_EQ(entries[1].kind, TMESH_HOLDER_EXPORT);
	CHECK_EQ(entries[1].attachments, 1);
	CHECK_EQ(entries[2].kind, TMESH_HOLDER_DEVICE);
	CHECK(!strncmp(device_of(&entries[2]), "vgem", 4));
	CHECK_EQ(entries[2].size, sizeof(entries[2]));
	CHECK_EQ(entries[2].offset, PAGE);
	CHECK_EQ(entries[2].bytes, 3 * PAGE);
	CHECK_EQ(entries[2].rights, R_READ | R_WRITE);
	/* After 6.12 vgem only attaches, and maps later. */
	CHECK_EQ(entries[2].mapped, t_kernel_at_least(6, 13) ? 0 : 1);
	CHECK_EQ(entries[3].kind, TMESH_HOLDER_EXPORT);
	CHECK_EQ(entries[3].attachments, 0);
	REQUIRE_OK(vgem_close(vgem, handle));
	CHECK_EQ(holders(h).total, 3);
}

TEST(devices_room, "without room for devices the call still returns their number")
{
	int vgem = open_vgem(), h = region(0), fd;
	struct tmesh_holders q = {
		.size = sizeof(q),
		.entries = (__u64)(unsigned long)entries,
		.entry_bytes = sizeof(entries[0]),
	};

	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	REQUIRE_OK(vgem_import(vgem, fd));
	for (q.count = 0; q.count < 4; q.count++) {
		__u32 room = q.count;

		memset(entries, 0, sizeof(entries));
		REQUIRE_OK(ioctl(h, TMESH_HOLDERS, &q));
		CHECK_EQ(q.total, 3);
		CHECK_EQ(q.count, room < 3 ? room : 3);
		for (__u32 i = 0; i < ROOM; i++)
			CHECK_EQ(entries[i].kind, i >= q.count ? 0
						  : i == 0     ? TMESH_HOLDER_HANDLE
						  : i == 1     ? TMESH_HOLDER_EXPORT
							       : TMESH_HOLDER_DEVICE);
		q.count = room;
	}
}

TEST(device_keeps, "what a device has mapped stays, charged and shown, and it is named")
{
	int vgem = open_vgem(), h = region(TMESH_CREATE_NOHUGE), fd, handle;
	struct tmesh_revoke r;
	bool maps = !t_kernel_at_least(6, 13);

	fd = REQUIRE_OK(t_export(h, 3 * PAGE, 5 * PAGE, TMESH_EXPORT_WRITE));
	REQUIRE_OK(t_export(h, 0, 0, 0));
	handle = REQUIRE_OK(vgem_import(vgem, fd));
	CHECK_EQ(pinned(h), maps ? 5 * PAGE : 0);
	CHECK_OK(revoke_for(h, &r, 0, 0));
	CHECK_EQ(r.pinned_bytes, maps ? 5 * PAGE : 0);
	CHECK_EQ(r.exports, 2);
	CHECK_EQ(r.attachments, 1);
	CHECK_EQ(r.total, 2);
	CHECK_EQ(r.count, 2);
	CHECK_EQ(entries[0].kind, TMESH_HOLDER_EXPORT);
	CHECK_EQ(entries[0].offset, 3 * PAGE);
	CHECK(!strncmp(device_of(&entries[1]), "vgem", 4));
	CHECK_EQ(t_caps(dev).used_bytes, r.pinned_bytes);
	if (maps)
		CHECK_ERR(revoke_for(h, &r, TMESH_REVOKE_WAIT, 0), ETIMEDOUT);
	CHECK_OK(vgem_close(vgem, handle));
	close(fd);
	CHECK_OK(revoke_for(h, &r, TMESH_REVOKE_WAIT, 60 * SECOND));
	CHECK_EQ(r.attachments, 0);
	CHECK_EQ(r.total, 0);
	CHECK_EQ(r.pinned_bytes, 0);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

TEST(device_overlap, "devices' parts that overlap count once")
{
	int vgem = open_vgem(), h = region(TMESH_CREATE_NOHUGE);
	static const struct {
		__u64 first, pages;
	} parts[] = {{10, 10}, {0, 2}, {12, 3}, {15, 9}, {1, 2}};
	__u64 want = t_kernel_at_least(6, 13) ? 0 : 17 * PAGE;
	struct tmesh_revoke r;

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		int fd = REQUIRE_OK(t_export(h, parts[i].first * PAGE, parts[i].pages * PAGE,
					     TMESH_EXPORT_WRITE));

		REQUIRE_OK(vgem_import(vgem, fd));
		close(fd);
	}
	CHECK_EQ(pinned(h), want);
	CHECK_OK(revoke_for(h, &r, 0, 0));
	CHECK_EQ(r.pinned_bytes, want);
	CHECK_EQ(r.attachments, 5);
	CHECK_EQ(r.total, 10);
	CHECK_EQ(r.count, ROOM);
	close(vgem);
	CHECK_OK(revoke_for(h, &r, TMESH_REVOKE_WAIT, 60 * SECOND));
}

/* Waiting */

static void *let_go(void *arg)
{
	usleep(100000);
	unpin_pages(arg);
	return NULL;
}

TEST(wait, "with REVOKE_WAIT one call revokes, waits, and returns when all is free")
{
	int h = region(0), pipes[2];
	char *p = t_map(h, BYTES, RW);
	struct tmesh_revoke r;
	pthread_t t;

	pin_pages(pipes, p, 2 * PAGE);
	REQUIRE(!pthread_create(&t, NULL, let_go, pipes));
	CHECK_OK(revoke_for(h, &r, TMESH_REVOKE_WAIT, ~0ull));
	CHECK_EQ(r.pinned_bytes, 0);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	pthread_join(t, NULL);
}

static void wake(int sig)
{
}

TEST(wait_signal,
     "a signal ends the wait: EINTR, the region is revoked, and the pinning processes are listed")
{
	int h = region(TMESH_CREATE_NOHUGE), pipes[2];
	char *p = t_map(h, BYTES, RW);
	struct sigaction sa = {.sa_handler = wake, .sa_flags = SA_RESTART};
	struct tmesh_revoke r;

	pin_pages(pipes, p, PAGE);
	REQUIRE_OK(sigaction(SIGUSR1, &sa, NULL));
	pid_t parent = getpid(), pid;

	/* Repeat the signal, because the first one may come before the wait. */
	pid = t_fork();
	while (!pid) {
		usleep(200000);
		kill(parent, SIGUSR1);
	}
	CHECK_ERR(revoke_for(h, &r, TMESH_REVOKE_WAIT, 60 * SECOND), EINTR);
	kill(pid, SIGKILL);
	REQUIRE(waitpid(pid, NULL, 0) == pid);
	CHECK_EQ(r.pinned_bytes, PAGE);
	CHECK_EQ(t_info(h).state, TMESH_STATE_REVOKED);
	unpin_pages(pipes);
	CHECK_OK(revoke_for(h, &r, TMESH_REVOKE_WAIT, 60 * SECOND));
}

TEST(wait_rights, "waiting is MANAGE's too; a time without the flag gives EINVAL")
{
	int h = region(0), reader = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
	struct tmesh_revoke r;

	CHECK_ERR(revoke_for(h, &r, 0, 1), EINVAL);
	CHECK_ERR(revoke_for(reader, &r, TMESH_REVOKE_WAIT, 0), EACCES);
	CHECK_EQ(t_info(h).state, 0);
	CHECK_OK(revoke_for(h, &r, TMESH_REVOKE_WAIT, 0));
	CHECK_ERR(revoke_for(h, &r, 0, 0), ESTALE);
	CHECK_ERR(revoke_for(reader, &r, TMESH_REVOKE_WAIT, 0), ESTALE);
}

TEST(wait_pinned, "a pinning handle forbids it, waiting or not, and is named")
{
	int h = region(0), pin;
	struct tmesh_revoke r;

	REQUIRE_OK(t_seal(h));
	pin = REQUIRE_OK(t_derive(h, R_READ, TMESH_DERIVE_PIN));
	REQUIRE_OK(t_export(h, 0, 0, 0));
	CHECK_ERR(revoke_for(h, &r, TMESH_REVOKE_WAIT, 60 * SECOND), EBUSY);
	CHECK_EQ(r.total, 1);
	CHECK_EQ(entries[0].kind, TMESH_HOLDER_PINNING);
	r.count = 1;
	r.entry_bytes = 8;
	CHECK_ERR(ioctl(h, TMESH_REVOKE, &r), EINVAL);
	r.entry_bytes = sizeof(entries[0]);
	r.entries = -4096;
	CHECK_ERR(ioctl(h, TMESH_REVOKE, &r), EFAULT);
	CHECK_EQ(t_info(h).state, TMESH_STATE_SEALED);
	close(pin);
	CHECK_OK(revoke_for(h, &r, TMESH_REVOKE_WAIT, 60 * SECOND));
	CHECK_EQ(r.exports, 1);
	CHECK_EQ(r.total, 0);
}

static int revoke_id(int device, __u64 id)
{
	struct tmesh_revoke r = {.size = sizeof(r), .id = id};

	return ioctl(device, TMESH_REVOKE, &r);
}

TEST(by_id, "an owner without a handle takes back what others hold; no other user does")
{
	__u8 token[TMESH_TOKEN_BYTES];
	struct tmesh_create c = {.size = sizeof(c),
				 .bytes = PAGE,
				 .mode = 0640,
				 .gid = 1001,
				 .flags = TMESH_CREATE_GID};
	struct tmesh_revoke r = {.size = sizeof(r), .id = 1};
	int sv[2], held;
	__u64 id;

	dev = t_dev();
	REQUIRE_OK(setgroups(1, &(gid_t){1001}));
	REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c));
	id = c.id;
	CHECK_ERR(ioctl(c.fd, TMESH_REVOKE, &r), EINVAL);
	REQUIRE_OK(t_token(c.fd, R_READ, token));
	t_pair(sv);
	T_ALONE()
	{
		int own;

		t_become(1001, 1001, 0);
		own = t_dev();
		held = REQUIRE_OK(t_open(own, token, R_READ, 0));
		/* Bob may read the region, so he gets EPERM and not ENOENT. */
		CHECK_ERR(revoke_id(own, id), EPERM);
		t_send_fd(sv[1], held);
	}
	T_ALONE()
	{
		t_become(1002, 1002, 0);
		CHECK_ERR(revoke_id(t_dev(), id), ENOENT);
	}
	T_ALONE()
	{
		/* An administrator sees it in another IPC namespace. The owner there is another. */
		REQUIRE_OK(unshare(CLONE_NEWIPC));
		CHECK_ERR(revoke_id(t_dev(), id), EPERM);
	}
	held = t_recv_fd(sv[0]);
	close(c.fd);
	CHECK_EQ(t_caps(dev).used_bytes, PAGE);
	CHECK_EQ(t_info(held).state, 0);
	CHECK_OK(revoke_id(dev, id));
	CHECK_EQ(t_info(held).state, TMESH_STATE_REVOKED);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	CHECK_ERR(revoke_id(dev, id), ESTALE);
	CHECK_ERR(revoke_id(dev, 0), ENOENT);
	close(held);
	CHECK_ERR(revoke_id(dev, id), ENOENT);
}

TEST(untold, "where the answer cannot be written nothing is revoked")
{
	struct tmesh_revoke *r = mmap(NULL, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int h = region(0);

	REQUIRE(r != MAP_FAILED);
	r->size = sizeof(*r);
	REQUIRE_OK(mprotect(r, PAGE, PROT_READ));
	CHECK_ERR(ioctl(h, TMESH_REVOKE, r), EFAULT);
	CHECK_EQ(t_info(h).state, 0);
}

TEST(killed, "who is killed while it waits has revoked the region")
{
	int h = region(0), pipes[2], sv[2];
	char *p = t_map(h, BYTES, RW);
	pid_t pid;

	pin_pages(pipes, p, PAGE);
	t_pair(sv);
	pid = t_fork();
	if (!pid) {
		struct tmesh_revoke r;

		t_say(sv[1]);
		revoke_for(h, &r, TMESH_REVOKE_WAIT, ~0ull);
		t_exit();
	}
	t_hear(sv[0]);
	while (!(t_info(h).state & TMESH_STATE_REVOKED))
		usleep(1000);
	kill(pid, SIGKILL);
	REQUIRE(waitpid(pid, NULL, 0) == pid);
	CHECK_EQ(t_read(p), SIGBUS);
	unpin_pages(pipes);
	while (t_info(h).pinned_bytes)
		usleep(1000);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

/*
 * A revoker that is killed while it frees the memory leaves the rest to a work. Check at once after
 * its death: a revoker that cannot be killed would have freed everything.
 */
TEST(killed_drain,
     "a revoker can be killed while it gives memory back, which is given back without it")
{
	const __u64 pages = 16384;
	double until = t_now() + 600, span = 0, begin;
	volatile bool *begun = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned int seed = 55, left = 0, rounds;

	REQUIRE(begun != MAP_FAILED);
	dev = t_dev();
	for (rounds = 0; !left && t_now() < until && !t_failed(); rounds++) {
		int h = REQUIRE_OK(t_create(dev, pages * PAGE, TMESH_CREATE_NOHUGE));
		pid_t pid;

		*begun = false;
		pid = REQUIRE_OK(fork());
		if (!pid) {
			*begun = true;
			t_revoke(h);
			_exit(0);
		}
		while (!*begun)
			;
		begin = t_now();
		if (rounds) {
			double at = begin + span * (t_random(&seed) % 600) / 1000;

			while (t_now() < at)
				;
			kill(pid, SIGKILL);
		}
		REQUIRE(waitpid(pid, NULL, 0) == pid);
		left += t_info(h).state & TMESH_STATE_REVOKED && t_caps(dev).used_bytes;
		if (!rounds) {
			span = t_now() - begin;
			CHECK(!left);
		}
		/*
		 * The work must free the rest without a further call. Wait for that before the next
		 * round.
		 */
		if (!(t_info(h).state & TMESH_STATE_REVOKED))
			close(h), h = -1;
		begin = t_now();
		while (t_caps(dev).used_bytes && t_now() < begin + 120)
			usleep(1000);
		CHECK_EQ(t_caps(dev).used_bytes, 0);
		if (h >= 0)
			close(h);
	}
	t_note("%u rounds, a revocation takes %.1f ms", rounds, span * 1e3);
	CHECK(left);
}
