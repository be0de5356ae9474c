// SPDX-License-Identifier: MIT
/*
 * Calls that are stalled by a page fault in their caller's memory. A lapse or revocation meanwhile
 * applies to them too, and they do not delay it.
 */
#include "files.h"
#include "lease.h"
#include "stall.h"

#define BYTES (64 * KB)

static int dev;

static int region(void)
{
	dev = t_dev();
	return REQUIRE_OK(t_create(dev, BYTES, 0));
}

/* Make a call through a handle with all rights. Its lease lapses while the call waits. */
static void lapsing(int fd, unsigned long cmd, void *arg, struct stall *stall)
{
	int leased = REQUIRE_OK(t_derive(fd, R_ALL, 0));
	pid_t pid = sleeper();
	struct lease l = lease_bind(leased, pid);
	struct stall_call c;

	stall_begin(&c, leased, cmd, arg);
	stall_await(stall);
	kill_and_reap(pid);
	await_end(&l, leased);
	stall_end(stall);
	CHECK_EQ(stall_answer(&c), ESTALE);
	CHECK_EQ(t_info(fd).state, 0);
	close(leased);
}

/* The same, but the region is revoked meanwhile. */
static void revoking(int fd, int on, unsigned long cmd, void *arg, struct stall *stall)
{
	struct stall_call c;

	stall_begin(&c, on, cmd, arg);
	stall_await(stall);
	CHECK_OK(t_revoke(fd));
	stall_end(stall);
	CHECK_EQ(stall_answer(&c), ESTALE);
	close(fd);
}

TEST(revoke, "a revocation that finds the lease lapsed gives ESTALE, and revokes nothing")
{
	struct tmesh_revoke r = {.size = sizeof(r)};
	struct stall stall = stall_write(&r, sizeof(r));
	int fd = region();

	lapsing(fd, TMESH_REVOKE, stall.page, &stall);
	r.flags = TMESH_REVOKE_WAIT;
	r.timeout_ns = MS;
	stall = stall_write(&r, sizeof(r));
	lapsing(fd, TMESH_REVOKE, stall.page, &stall);
}

TEST(describe, "so does a description that comes when the lease has lapsed")
{
	struct tmesh_desc d = {.size = sizeof(d), .bytes = 8};
	struct stall stall = stall_touch();
	int fd = region();

	d.data = (unsigned long)stall.page;
	lapsing(fd, TMESH_DESC_SET, &d, &stall);
	CHECK_EQ(t_info(fd).desc_bytes, 0);
	stall = stall_touch();
	d.data = (unsigned long)stall.page;
	revoking(fd, fd, TMESH_DESC_SET, &d, &stall);
}

TEST(lease, "and a lease that comes when the one before has lapsed, or the region was revoked")
{
	struct tmesh_lease l = {.size = sizeof(l)};
	struct stall stall = stall_write(&l, sizeof(l));
	int fd = region();

	lapsing(fd, TMESH_LEASE, stall.page, &stall);
	stall = stall_write(&l, sizeof(l));
	revoking(fd, fd, TMESH_LEASE, stall.page, &stall);
}

TEST(keep, "what was revoked meanwhile is not kept")
{
	int fd = region();
	struct tmesh_keep k = keep_call("revoked", &fd, 1);
	struct stall stall = stall_write(&k, sizeof(k));

	REQUIRE_OK(t_seal(fd));
	revoking(fd, dev, TMESH_KEEP, stall.page, &stall);
	CHECK_ERR(kept_drop(dev, "revoked"), ENOENT);
	CHECK_EQ(t_caps(dev).used_kept_names, 0);
}

/* A seal waits for a moment while a page is pinned, here by a pipe. */
TEST(seal, "a seal that waits longer than the lease lives gives ESTALE, and seals nothing")
{
	struct tmesh_seal s = {.size = sizeof(s)};
	int fd = region(), late = 0;

	for (int round = 0; round < 40; round++) {
		int leased = REQUIRE_OK(t_derive(fd, R_ALL, 0)), p[2];
		char *q = t_map(fd, BYTES, RW), c;
		struct iovec page = {q, 1};
		struct stall_call seal;
		struct lease l;

		REQUIRE(q != MAP_FAILED);
		*q = 1;
		REQUIRE_OK(pipe2(p, O_CLOEXEC));
		REQUIRE(vmsplice(p[1], &page, 1, 0) == 1);
		munmap(q, BYTES);
		l.fd = REQUIRE_OK(lease_call(leased, 0, TMESH_LEASE_MIN_NS, 0, NULL));
		stall_begin(&seal, leased, TMESH_SEAL, &s);
		REQUIRE(polled(l.fd, 60000) & POLLHUP);
		REQUIRE(read(p[0], &c, 1) == 1);
		/* EBUSY means that the lease lived longer than the seal waits. */
		late += stall_answer(&seal) == EBUSY;
		CHECK(seal.answer == EBUSY || seal.answer == ESTALE);
		REQUIRE(CHECK_EQ(t_info(fd).state, 0));
		close(l.fd);
		close(leased);
		close(p[0]);
		close(p[1]);
	}
	t_note("%d of 40 seals had given up before", late);
}

static void let_go(const char *what, unsigned long cmd, void *arg, struct stall *stall, int fd)
{
	struct stall_call c;

	stall_begin(&c, dev, cmd, arg);
	stall_await(stall);
	close(fd);
	if (!CHECK_EQ(t_listed(dev), 0) || !CHECK_EQ(t_caps(dev).used_regions, 0))
		t_note("while %s waits", what);
	stall_end(stall);
	CHECK_EQ(stall_answer(&c), 0);
}

TEST(look, "a query of a region whose answer cannot be written keeps nothing of it")
{
	struct tmesh_desc d = {.size = sizeof(d), .bytes = 4};
	struct tmesh_holders h = {
		.size = sizeof(h),
		.entry_bytes = sizeof(struct tmesh_holder),
		.count = 1,
	};
	struct tmesh_info i = {.size = sizeof(i)};
	struct stall stall;
	int fd = region();

	i.id = t_info(fd).id;
	stall = stall_write(&i, sizeof(i));
	let_go("INFO", TMESH_INFO, stall.page, &stall, fd);

	fd = REQUIRE_OK(t_create(dev, BYTES, 0));
	stall = stall_touch();
	h.id = t_info(fd).id;
	h.entries = (unsigned long)stall.page;
	let_go("HOLDERS", TMESH_HOLDERS, &h, &stall, fd);

	fd = REQUIRE_OK(t_create(dev, BYTES, 0));
	d.data = (unsigned long)"text";
	REQUIRE_OK(ioctl(fd, TMESH_DESC_SET, &d));
	stall = stall_touch();
	d.id = t_info(fd).id;
	d.data = (unsigned long)stall.page;
	let_go("DESC_GET", TMESH_DESC_GET, &d, &stall, fd);
	CHECK(!memcmp(stall.page, "text", 4));
}

TEST(files, "a name that is dropped while its files cannot be written down goes at once")
{
	struct tmesh_kept_files f = {
		.size = sizeof(f),
		.name = "dropped",
		.file_count = 2,
		.file_bytes = sizeof(struct tmesh_file),
		.path_bytes = PAGE,
	};
	struct stall stall = stall_touch();
	struct kept_files *table = no_files();
	int fd = keep_region(dev = t_dev(), BYTES, 0, 1);
	char paths[PAGE];
	struct stall_call c;

	files_add(table, "a", 0, 0, PAGE);
	files_add(table, "b", 0, PAGE, PAGE);
	REQUIRE_OK(keep_files(dev, "dropped", &fd, 1, table, 0600, 0));
	close(fd);
	f.files = ADDRESS(stall.page);
	f.paths = ADDRESS(paths);
	stall_begin(&c, dev, TMESH_KEPT_FILES, &f);
	stall_await(&stall);
	CHECK_OK(kept_drop(dev, "dropped"));
	CHECK_EQ(t_caps(dev).used_regions, 0);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	stall_end(&stall);
	CHECK_EQ(stall_answer(&c), ENOENT);
	/* The second file was gone, and nothing is written in its place. */
	CHECK(!((struct tmesh_file *)stall.page)[1].bytes);
}

/* Drop a name of two regions while a call that opens it waits. @left regions are there then. */
static void dropping(struct tmesh_kept_open *open, struct stall *stall, unsigned int left,
		     int error)
{
	int fds[] = {keep_region(dev, BYTES, 0, 1), keep_region(dev, BYTES, 0, 1)};
	struct stall_call c;

	REQUIRE_OK(keep(dev, "dropped", fds, 2, 0));
	close(fds[0]);
	close(fds[1]);
	stall_begin(&c, dev, TMESH_KEPT_OPEN, open);
	stall_await(stall);
	CHECK_OK(kept_drop(dev, "dropped"));
	CHECK_EQ(t_caps(dev).used_regions, left);
	CHECK_EQ(t_caps(dev).used_handles, left);
	stall_end(stall);
	CHECK_EQ(stall_answer(&c), error);
}

TEST(open, "a call that opens a name holds no more of it than the regions that it has opened")
{
	struct tmesh_kept_open o = {.size = sizeof(o), .name = "dropped", .rights = R_READ};
	struct stall stall = stall_write(&o, sizeof(o));

	dev = t_dev();
	dropping(stall.page, &stall, 0, ENOSPC);
	o.flags = TMESH_KEPT_PART;
	stall = stall_write(&o, sizeof(o));
	dropping(stall.page, &stall, 0, 0);
	stall = stall_touch();
	o.fds = ADDRESS(stall.page);
	o.count = 1;
	dropping(&o, &stall, 1, 0);
	CHECK_EQ(t_info(*(int *)stall.page).bytes, BYTES);
}
