// SPDX-License-Identifier: MIT
/*
 * Seals, pinning handles and revocations: conditions that refuse them, and guarantees afterwards.
 */
#include <sched.h>
#include <sys/prctl.h>
#include <linux/io_uring.h>

#include "drm.h"
#include "t.h"

#define BYTES (4 * MB)
#define RW (PROT_READ | PROT_WRITE)

static int dev;

static int region(__u32 flags)
{
	dev = t_dev();
	return REQUIRE_OK(t_create(dev, BYTES, flags));
}

/* Check that the seal is refused because of a writer (@why) and has changed nothing. */
static void check_busy(int h, const char *why)
{
	unsigned char *p;

	if (!CHECK_ERR(t_seal(h), EBUSY))
		t_note("although there is %s", why);
	CHECK_EQ(t_info(h).state, 0);
	p = t_map(h, BYTES, RW);
	CHECK(p != MAP_FAILED && !t_write(p, 1));
	munmap(p, BYTES);
}

/* Check that nothing can write, in any way. */
static void check_sealed(int h)
{
	__u32 rights = t_info(h).rights;
	unsigned char *p, before, c = 0x99;
	int mem = REQUIRE_OK(open("/proc/self/mem", O_RDWR | O_CLOEXEC)), fd;

	CHECK_EQ(t_info(h).state, TMESH_STATE_SEALED);
	p = t_map(h, BYTES, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	before = p[7];
	CHECK_ERR(mprotect(p, BYTES, RW), EACCES);
	CHECK_EQ(t_write(p + 7, 0x99), SIGSEGV);
	CHECK_EQ(pwrite(mem, &c, 1, (off_t)(unsigned long)(p + 7)), -1);
	CHECK_EQ(p[7], before);
	munmap(p, BYTES);
	CHECK_ERR(t_map(h, BYTES, RW), rights & R_WRITE ? EPERM : EACCES);
	CHECK_ERR(t_map(h, BYTES, PROT_WRITE), rights & R_WRITE ? EPERM : EACCES);
	CHECK_ERR(t_export(h, 0, 0, TMESH_EXPORT_WRITE), rights & R_WRITE ? EPERM : EACCES);

	fd = REQUIRE_OK(t_export(h, 0, 0, 0));
	CHECK_ERR(t_map(fd, BYTES, RW), EACCES);
	p = t_map(fd, BYTES, PROT_READ);
	CHECK(p != MAP_FAILED && p[7] == before);
	munmap(p, BYTES);
	close(fd);
	close(mem);
}

TEST(mapping, "EBUSY while a writable mapping is there, of this or another handle")
{
	int h = region(0), other = REQUIRE_OK(t_derive(h, R_READ | R_WRITE, 0));
	unsigned char *p = t_map(h, BYTES, RW);

	check_busy(h, "a writable mapping");
	/* Repeated mprotect() calls count as one writer. */
	CHECK_OK(mprotect(p, BYTES, RW));
	CHECK_OK(mprotect(p, BYTES, PROT_READ));
	CHECK_OK(mprotect(p, BYTES, RW));
	munmap(p, BYTES);
	p = t_map(other, BYTES, RW);
	check_busy(h, "a writable mapping of another handle");
	close(other);
	check_busy(h, "a writable mapping of a closed handle");
	munmap(p, BYTES / 2);
	check_busy(h, "half a writable mapping");
	munmap(p + BYTES / 2, BYTES / 2);
	CHECK_OK(t_seal(h));
	check_sealed(h);
}

TEST(split, "EBUSY until each part of a split mapping is gone")
{
	int h = region(0);
	unsigned char *p = t_map(h, BYTES, RW);

	REQUIRE(p != MAP_FAILED);
	CHECK_OK(mprotect(p + 4 * PAGE, PAGE, PROT_READ));
	CHECK_OK(munmap(p + 20 * PAGE, 3 * PAGE));
	CHECK_OK(munmap(p, 4 * PAGE));
	CHECK_OK(munmap(p + 5 * PAGE, 15 * PAGE));
	check_busy(h, "the rest of a mapping");
	CHECK_OK(munmap(p + 23 * PAGE, BYTES - 23 * PAGE));
	/* A part that is read-only now could be made writable again. */
	if (t_seal(h)) {
		CHECK_EQ(errno, EBUSY);
		CHECK_OK(munmap(p + 4 * PAGE, PAGE));
		CHECK_OK(t_seal(h));
	} else {
		CHECK_ERR(mprotect(p + 4 * PAGE, PAGE, RW), EACCES);
	}
	check_sealed(h);
}

TEST(read_mapping, "what was mapped readable never becomes writable after the seal")
{
	int h = region(0);
	unsigned char *p = t_map(h, BYTES, PROT_READ);

	REQUIRE(p != MAP_FAILED);
	if (t_seal(h)) {
		CHECK_EQ(errno, EBUSY);
		munmap(p, BYTES);
		CHECK_OK(t_seal(h));
	} else {
		CHECK_ERR(mprotect(p, BYTES, RW), EACCES);
		CHECK_EQ(t_write(p, 1), SIGSEGV);
	}
	check_sealed(h);
}

TEST(child, "EBUSY while a child still has the mapping it inherited")
{
	int h = region(0), sv[2];
	unsigned char *p = t_map(h, BYTES, RW);
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		t_say(sv[1]);
		t_hear(sv[1]);
		munmap(p, BYTES);
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	t_hear(sv[0]);
	munmap(p, BYTES);
	check_busy(h, "a child's mapping");
	t_say(sv[0]);
	t_hear(sv[0]);
	CHECK_OK(t_seal(h));
	check_sealed(h);
	t_say(sv[0]);
	t_wait(pid);
}

TEST(mremapped, "EBUSY for a mapping that was moved and split on the way")
{
	int h = region(0);
	unsigned char *p = t_map(h, BYTES, RW), *q;

	REQUIRE(p != MAP_FAILED);
	q = mremap(p + MB, MB, MB, MREMAP_MAYMOVE | MREMAP_FIXED, p + 16 * BYTES);
	REQUIRE(q != MAP_FAILED);
	munmap(p, BYTES);
	check_busy(h, "a moved part of a mapping");
	munmap(q, MB);
	CHECK_OK(t_seal(h));
}

TEST(export, "EBUSY while a writable export or a mapping of one is there")
{
	int h = region(0), fd = REQUIRE_OK(t_export(h, 0, PAGE, TMESH_EXPORT_WRITE));
	unsigned char *p;

	check_busy(h, "a writable export");
	p = t_map(fd, PAGE, RW);
	REQUIRE(p != MAP_FAILED);
	close(fd);
	check_busy(h, "a mapping of a writable export");
	munmap(p, PAGE);
	CHECK_OK(t_seal(h));
	check_sealed(h);
}

TEST(device, "EBUSY while a device is attached for writing")
{
	int vgem = open_vgem(), h = region(0), fd, handle;

	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	handle = REQUIRE_OK(vgem_import(vgem, fd));
	close(fd);
	check_busy(h, "an attached device");
	REQUIRE_OK(vgem_close(vgem, handle));
	CHECK_OK(t_seal(h));
	check_sealed(h);
}

TEST(pinned, "EBUSY while io_uring has pinned a page, although its mapping is gone")
{
	struct io_uring_params params = {0};
	int h = region(0), ring;
	unsigned char *p = t_map(h, BYTES, RW);
	struct iovec io = {p + 5 * PAGE, PAGE};

	if (!t_kernel_at_least(6, 12))
		t_skip("io_uring registers no such memory before 6.12");
	ring = syscall(SYS_io_uring_setup, 4, &params);
	if (ring < 0)
		t_skip("io_uring_setup: %s", strerror(errno));
	REQUIRE_OK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &io, 1));
	munmap(p, BYTES);
	check_busy(h, "a registered buffer");
	REQUIRE_OK(syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, NULL, 0));
	/* The ring drops its references with a delay. */
	for (int i = 0; i < 6000 && t_seal(h); i++) {
		CHECK_EQ(errno, EBUSY);
		usleep(20000);
	}
	check_sealed(h);
}

TEST(reader, "readers stop no seal, and their mappings and exports stay good")
{
	int h = region(0), ro = REQUIRE_OK(t_derive(h, R_READ, 0)), fd;
	unsigned char *p = t_map(h, BYTES, RW), *q, *r;

	p[7] = 7;
	munmap(p, BYTES);
	q = t_map(ro, BYTES, PROT_READ);
	fd = REQUIRE_OK(t_export(ro, 0, 0, 0));
	r = t_map(fd, BYTES, PROT_READ);
	REQUIRE(q != MAP_FAILED && r != MAP_FAILED);
	CHECK_OK(t_seal(h));
	CHECK_EQ(q[7], 7);
	CHECK_EQ(r[7], 7);
	CHECK_ERR(mprotect(q, BYTES, RW), EACCES);
	CHECK_ERR(mprotect(r, BYTES, RW), EACCES);
	check_sealed(h);
	check_sealed(ro);
	CHECK_OK(t_seal(h));
}

/* Pinning handles */

TEST(pin_unsealed, "a region that is not sealed cannot be pinned: EINVAL")
{
	int h = region(0);

	CHECK_ERR(t_derive(h, R_READ, TMESH_DERIVE_PIN), EINVAL);
}

TEST(pin_refused, "an owner who refuses pins is heard: EPERM")
{
	int h = region(TMESH_CREATE_NOPIN);

	REQUIRE_OK(t_seal(h));
	CHECK_ERR(t_derive(h, R_READ, TMESH_DERIVE_PIN), EPERM);
	CHECK_OK(t_derive(h, R_READ, 0));
}

static int revoke_naming(int h, struct tmesh_holder *who, __u32 room, __u32 *count, __u32 *total)
{
	struct tmesh_revoke r = {
		.size = sizeof(r),
		.entries = (__u64)(unsigned long)who,
		.entry_bytes = sizeof(*who),
		.count = room,
	};
	int ret = ioctl(h, TMESH_REVOKE, &r);

	*count = r.count;
	*total = r.total;
	return ret;
}

TEST(pins, "a revocation names who pins, and changes nothing")
{
	int h = region(0), sv[2], pin;
	struct tmesh_holder who[4] = {0};
	__u32 count, total;
	unsigned char *p;
	pid_t pid;

	REQUIRE_OK(t_seal(h));
	pin = REQUIRE_OK(t_derive(h, R_READ, TMESH_DERIVE_PIN));
	CHECK_EQ(t_info(pin).pinning, 1);
	CHECK_EQ(t_info(h).pinning, 0);
	CHECK_EQ(t_info(h).pinning_handles, 1);
	p = t_map(pin, BYTES, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	t_pair(sv);
	T_CHILD(pid) {
		__u8 token[TMESH_TOKEN_BYTES];

		close(pin);
		munmap(p, BYTES);
		prctl(PR_SET_NAME, "beam");
		REQUIRE_OK(t_token(h, R_READ, token));
		pin = REQUIRE_OK(t_open(dev, token, R_READ, 0));
		REQUIRE_OK(t_derive(pin, R_READ, TMESH_DERIVE_PIN));
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	t_hear(sv[0]);
	CHECK_ERR(revoke_naming(h, who, ARRAY_SIZE(who), &count, &total), EBUSY);
	CHECK_EQ(count, 2);
	CHECK_EQ(total, 2);
	for (int i = 0; i < 2; i++) {
		bool childs = who[i].pid == (__u32)pid;

		CHECK_EQ(who[i].kind, TMESH_HOLDER_PINNING);
		CHECK(childs || who[i].pid == (__u32)getpid());
		CHECK(!childs || !strcmp(who[i].comm, "beam"));
		CHECK_EQ(who[i].rights, R_READ);
		CHECK_EQ(who[i].mappings, childs ? 0 : 1);
	}
	CHECK(who[0].pid != who[1].pid);
	CHECK_ERR(revoke_naming(h, who, 1, &count, &total), EBUSY);
	CHECK_EQ(count, 1);
	CHECK_EQ(total, 2);
	CHECK_ERR(revoke_naming(h, NULL, 0, &count, &total), EBUSY);
	CHECK_EQ(count, 0);
	CHECK_EQ(total, 2);
	CHECK_EQ(t_info(h).state, TMESH_STATE_SEALED);
	CHECK_EQ(t_read(p), 0);

	/* A mapping keeps its handle open, and so keeps the pin. */
	t_say(sv[0]);
	t_wait(pid);
	close(pin);
	CHECK_ERR(revoke_naming(h, who, 1, &count, &total), EBUSY);
	CHECK_EQ(total, 1);
	munmap(p, BYTES);
	CHECK_OK(revoke_naming(h, who, ARRAY_SIZE(who), &count, &total));
	CHECK_EQ(count, 0);
	CHECK_EQ(total, 0);
}

/* Revocation */

static void check_stale(int h)
{
	struct tmesh_desc d = {.size = sizeof(d)};
	struct tmesh_holders holders = {.size = sizeof(holders)};
	__u8 token[TMESH_TOKEN_BYTES];

	CHECK_ERR(t_map(h, BYTES, PROT_READ), ESTALE);
	CHECK_ERR(t_derive(h, R_READ, 0), ESTALE);
	CHECK_ERR(t_token(h, R_READ, token), ESTALE);
	CHECK_ERR(t_export(h, 0, 0, 0), ESTALE);
	CHECK_ERR(t_seal(h), ESTALE);
	CHECK_ERR(t_revoke(h), ESTALE);
	CHECK_ERR(ioctl(h, TMESH_DESC_SET, &d), ESTALE);
	CHECK_ERR(ioctl(h, TMESH_DESC_GET, &d), ESTALE);
	CHECK(t_info(h).state & TMESH_STATE_REVOKED);
	CHECK_OK(ioctl(h, TMESH_HOLDERS, &holders));
}

static void try_revoke(__u32 flags)
{
	int h = region(flags), ro = REQUIRE_OK(t_derive(h, R_READ, 0)), fd, sv[2];
	unsigned char *p = t_map(h, BYTES, RW), *q = t_map(ro, BYTES, PROT_READ), *r, *untouched;
	pid_t pid;

	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	r = t_map(fd, BYTES, RW);
	untouched = t_map(h, BYTES, RW);
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED && r != MAP_FAILED && untouched != MAP_FAILED);
	memset(p, 5, BYTES);
	CHECK_EQ(q[BYTES - 1] + r[HUGE], 10);
	t_pair(sv);
	T_CHILD(pid) {
		CHECK_EQ(p[3] + q[HUGE] + r[3], 15);
		t_say(sv[1]);
		t_hear(sv[1]);
		CHECK_EQ(t_read(p + 3), SIGBUS);
		CHECK_EQ(t_write(p + HUGE, 1), SIGBUS);
		CHECK_EQ(t_read(q + HUGE), SIGBUS);
		CHECK_EQ(t_read(r + 3), SIGBUS);
	}
	t_hear(sv[0]);
	CHECK_OK(t_revoke(h));
	for (size_t i = 0; i < BYTES; i += MB / 2) {
		CHECK_EQ(t_read(p + i), SIGBUS);
		CHECK_EQ(t_read(q + i), SIGBUS);
		CHECK_EQ(t_read(r + i), SIGBUS);
		CHECK_EQ(t_write(untouched + i, 1), SIGBUS);
	}
	CHECK_EQ(t_smaps(p, "Rss"), 0);
	t_say(sv[0]);
	t_wait(pid);
	check_stale(h);
	check_stale(ro);
	CHECK_ERR(t_map(fd, BYTES, PROT_READ), ESTALE);
	munmap(p, BYTES);
	munmap(q, BYTES);
	munmap(r, BYTES);
	munmap(untouched, BYTES);
	close(fd);
	close(ro);
	close(h);
}

TEST(revoke, "a revocation empties every mapping in every process; all calls are stale")
{
	try_revoke(TMESH_CREATE_NOHUGE);
	try_revoke(0);
}

TEST(revoke_huge, "a revocation empties 2 MiB mappings too")
{
	dev = t_dev();
	if (!t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	try_revoke(TMESH_CREATE_HUGE);
}

TEST(revoke_frees, "revoked memory is free at once, its region gone with the last handle")
{
	int h = region(0), ro = REQUIRE_OK(t_derive(h, R_READ, 0));

	CHECK_OK(t_revoke(h));
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	CHECK_EQ(t_caps(dev).used_regions, 1);
	close(h);
	CHECK_EQ(t_listed(dev), 1);
	close(ro);
	CHECK_EQ(t_listed(dev), 0);
	CHECK_EQ(t_caps(dev).used_regions, 0);
}

TEST(revoke_device, "a static device keeps its pages, and no other process has them")
{
	int vgem = open_vgem(), h = region(0), fd, handle;

	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	handle = REQUIRE_OK(vgem_import(vgem, fd));
	CHECK_EQ(t_info(h).attachments, 1);
	CHECK_OK(t_revoke(h));
	check_stale(h);
	CHECK_ERR(vgem_import(open_vgem(), fd), ESTALE);
	CHECK_OK(vgem_close(vgem, handle));
	close(fd);
}

TEST(revoke_others, "a revocation leaves other regions alone")
{
	int h = region(0), other = REQUIRE_OK(t_create(dev, BYTES, 0));
	unsigned char *p = t_map(h, BYTES, RW), *q = t_map(other, BYTES, RW);

	REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
	memset(p, 1, BYTES);
	memset(q, 2, BYTES);
	CHECK_OK(t_revoke(h));
	for (size_t i = 0; i < BYTES; i += PAGE)
		CHECK_EQ(q[i], 2);
	CHECK_EQ(t_info(other).state, 0);
}

TEST(again, "sealed memory is sealed, though a process has a page of it just then")
{
	int h = region(TMESH_CREATE_NOHUGE), pipes[2];
	unsigned char *p = t_map(h, BYTES, PROT_READ);
	struct iovec io = {.iov_base = p, .iov_len = PAGE};

	REQUIRE(p != MAP_FAILED);
	REQUIRE_OK(t_seal(h));
	REQUIRE_OK(pipe(pipes));
	REQUIRE(vmsplice(pipes[1], &io, 1, 0) == (ssize_t)PAGE);
	CHECK_OK(t_seal(h));
	check_sealed(h);
}

TEST(readers, "a mapping that never writes is no writer, whatever becomes of it")
{
	int h = region(0);
	unsigned char *p = t_map(h, BYTES, PROT_READ);

	REQUIRE(p != MAP_FAILED);
	CHECK_OK(mprotect(p + PAGE, PAGE, PROT_NONE));
	CHECK_OK(mprotect(p + PAGE, PAGE, PROT_READ));
	CHECK_OK(mprotect(p + 8 * PAGE, 4 * PAGE, PROT_NONE));
	munmap(p + 4 * PAGE, PAGE);
	CHECK_OK(t_seal(h));
	check_sealed(h);
}
