// SPDX-License-Identifier: MIT
/*
 * Handles: the calls that each set of rights allows, and the effects of other system calls on a
 * handle and its mappings.
 */
#include "t.h"

#define BYTES (4 * MB)
#define RW (PROT_READ | PROT_WRITE)

/* Not in every C library. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static int dev;

static int region(__u32 flags)
{
	dev = t_dev();
	return REQUIRE_OK(t_create(dev, BYTES, flags));
}

/* Map a region whose pages begin with their number. */
static unsigned char *mapped(int fd)
{
	unsigned char *p = t_map(fd, BYTES, RW);

	REQUIRE(p != MAP_FAILED);
	for (size_t i = 0; i < BYTES; i += PAGE)
		*(size_t *)(p + i) = i / PAGE;
	return p;
}

static bool intact(const unsigned char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += PAGE)
		if (*(const size_t *)(p + i) != i / PAGE)
			return false;
	return true;
}

static void try_rights(int first, __u32 rights)
{
	int h = REQUIRE_OK(t_derive(first, rights, 0)), fd;
	bool writes = rights & R_WRITE, manages = rights & R_MANAGE;
	struct tmesh_desc d = {.size = sizeof(d)};
	__u8 token[TMESH_TOKEN_BYTES];
	void *p;

	t_note("rights %u", rights);
	CHECK_EQ(t_info(h).rights, rights);
	p = t_map(h, BYTES, PROT_READ);
	CHECK(p != MAP_FAILED && !t_read(p));
	if (writes)
		CHECK_OK(mprotect(p, BYTES, RW));
	else
		CHECK_ERR(mprotect(p, BYTES, RW), EACCES);
	CHECK_ERR(mprotect(p, BYTES, PROT_READ | PROT_EXEC), EACCES);
	munmap(p, BYTES);

	p = t_map(h, BYTES, RW);
	CHECK_EQ(p != MAP_FAILED, writes);
	if (p == MAP_FAILED)
		CHECK_EQ(errno, EACCES);
	else
		munmap(p, BYTES);
	p = t_map(h, BYTES, PROT_WRITE);
	CHECK_EQ(p != MAP_FAILED, writes);
	munmap(p, BYTES);
	CHECK_ERR(t_map(h, BYTES, PROT_READ | PROT_EXEC), EPERM);

	for (__u32 want = R_READ; want <= R_ALL; want += 2) {
		bool subset = !(want & ~rights);

		fd = t_derive(h, want, 0);
		CHECK_EQ(fd >= 0, subset);
		if (fd >= 0)
			CHECK_EQ(t_info(fd).rights, want);
		else
			CHECK_EQ(errno, EACCES);
		close(fd);
		CHECK_EQ(t_token(h, want, token) == 0, subset);
		if (!subset)
			CHECK_EQ(errno, EACCES);
	}

	CHECK_OK(fd = t_export(h, 0, 0, 0));
	close(fd);
	if (writes) {
		CHECK_OK(fd = t_export(h, 0, 0, TMESH_EXPORT_WRITE));
		close(fd);
	} else {
		CHECK_ERR(t_export(h, 0, 0, TMESH_EXPORT_WRITE), EACCES);
	}

	if (manages) {
		CHECK_OK(ioctl(h, TMESH_DESC_SET, &d));
	} else {
		CHECK_ERR(ioctl(h, TMESH_DESC_SET, &d), EACCES);
		CHECK_ERR(t_seal(h), EACCES);
		CHECK_ERR(t_revoke(h), EACCES);
	}
	close(h);
}

TEST(rights, "each set of rights allows what it says, and derives only subsets")
{
	int first = region(0);

	for (__u32 r = R_READ; r <= R_ALL; r += 2)
		try_rights(first, r);
	CHECK_EQ(t_info(first).handles, 1);
	CHECK_EQ(t_info(first).state, 0);
}

TEST(no_read, "rights without READ give EINVAL")
{
	__u8 token[TMESH_TOKEN_BYTES];
	int h = region(0);

	for (__u32 r = 0; r <= R_ALL; r += 2) {
		CHECK_ERR(t_derive(h, r, 0), EINVAL);
		CHECK_ERR(t_token(h, r, token), EINVAL);
	}
	CHECK_OK(t_token(h, R_READ, token));
	CHECK_ERR(t_open(dev, token, 0, 0), EINVAL);
}

TEST(seal_by_manager, "a manager without WRITE can seal and revoke")
{
	int h = region(0), manager = REQUIRE_OK(t_derive(h, R_READ | R_MANAGE, 0));

	CHECK_OK(t_seal(manager));
	CHECK_OK(t_seal(manager));
	CHECK_EQ(t_info(h).state, TMESH_STATE_SEALED);
	CHECK_OK(t_revoke(manager));
	CHECK_EQ(t_info(h).state, TMESH_STATE_SEALED | TMESH_STATE_REVOKED);
}

TEST(reopen, "a handle cannot be opened again through /proc")
{
	static const int how[] = {O_RDONLY, O_WRONLY, O_RDWR};
	int h = region(0), ro = REQUIRE_OK(t_derive(h, R_READ, 0));
	char path[64];

	for (size_t i = 0; i < ARRAY_SIZE(how); i++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", ro);
		CHECK_ERR(open(path, how[i]), ENXIO);
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), h);
		CHECK_ERR(open(path, how[i]), ENXIO);
	}
	CHECK_ERR(fchmod(ro, 0777) ? -1 : open(path, O_RDWR), ENXIO);
	CHECK_EQ(t_info(h).handles, 2);
}

TEST(plain_calls, "calls of plain files change nothing")
{
	int h = region(0);
	unsigned char *p = mapped(h);
	struct stat st;
	char buf[16] = "spoiled";

	CHECK_EQ(ftruncate(h, 0), -1);
	CHECK_EQ(ftruncate(h, 2 * BYTES), -1);
	CHECK_EQ(read(h, buf, sizeof(buf)), -1);
	CHECK_EQ(write(h, buf, sizeof(buf)), -1);
	CHECK_EQ(pwrite(h, buf, sizeof(buf), 0), -1);
	CHECK_EQ(fallocate(h, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), -1);
	CHECK_EQ(fallocate(h, 0, 0, 2 * BYTES), -1);
	CHECK_OK(fstat(h, &st));
	CHECK_EQ(st.st_size, BYTES);
	CHECK(intact(p, BYTES));
}

TEST(fork, "a child shares mappings and handles; its end takes nothing away")
{
	int h = region(0), sv[2];
	unsigned char *p = mapped(h);
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		unsigned char *q = t_map(h, BYTES, RW);

		CHECK(intact(p, BYTES));
		CHECK(q != MAP_FAILED && intact(q, BYTES));
		p[8] = 1;
		q[PAGE + 8] = 2;
		munmap(p, HUGE);
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	t_hear(sv[0]);
	CHECK_EQ(p[8], 1);
	CHECK_EQ(p[PAGE + 8], 2);
	CHECK(intact(p, BYTES));
	CHECK_EQ(t_info(h).handles, 1);
	close(h);
	t_say(sv[0]);
	t_wait(pid);
	CHECK(intact(p, BYTES));
	CHECK_EQ(t_listed(dev), 1);
	munmap(p, BYTES);
	CHECK_EQ(t_listed(dev), 0);
}

TEST(exec, "exec closes handles and drops mappings, unless a descriptor is meant to stay")
{
	int h = region(0), stays = REQUIRE_OK(dup(h));
	char closed[12], open_[12];

	*(volatile unsigned char *)mapped(h) = 77;
	snprintf(closed, sizeof(closed), "%d", h);
	snprintf(open_, sizeof(open_), "%d", stays);
	CHECK_EQ(fcntl(stays, F_GETFD), 0);
	T_ALONE()
	{
		execl("/proc/self/exe", "handles", closed, open_, NULL);
		CHECK_EQ(errno, 0);
	}
}

/*
 * The program that the test above runs. Return 0 if @closed is no descriptor and @open_ is the
 * region.
 */
static int after_exec(int closed, int open_)
{
	unsigned char *p = t_map(open_, BYTES, PROT_READ);

	if (fcntl(closed, F_GETFD) != -1 || errno != EBADF || p == MAP_FAILED || p[0] != 77)
		raise(SIGABRT);
	return 0;
}

TEST(dup, "dup makes the same handle, alive until the last descriptor goes")
{
	int h = region(0), second = REQUIRE_OK(dup(h));

	CHECK_EQ(t_info(h).handles, 1);
	CHECK_OK(close(h));
	CHECK_EQ(t_info(second).handles, 1);
	mapped(second);
}

TEST(socket, "a handle sent over a socket is the same handle with the same rights")
{
	int h = region(0), ro = REQUIRE_OK(t_derive(h, R_READ, 0)), sv[2];
	unsigned char *p = mapped(h);
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		close(h);
		close(ro);
		munmap(p, BYTES);
		int got = t_recv_fd(sv[1]);
		unsigned char *q = t_map(got, BYTES, PROT_READ);

		CHECK(q != MAP_FAILED && intact(q, BYTES));
		CHECK_EQ(t_info(got).rights, R_READ);
		CHECK_EQ(t_info(got).handles, 2);
		CHECK_ERR(t_map(got, BYTES, RW), EACCES);
	}
	t_send_fd(sv[0], ro);
	close(ro);
	t_wait(pid);
	CHECK_EQ(t_info(h).handles, 1);
}

TEST(in_flight, "a handle on its way in a socket that is closed goes too")
{
	int h = region(0), sv[2];

	t_pair(sv);
	t_send_fd(sv[0], h);
	close(h);
	CHECK_EQ(t_listed(dev), 1);
	close(sv[0]);
	close(sv[1]);
}

static void try_mremap(__u32 flags)
{
	int h = region(flags);
	unsigned char *p = mapped(h), *q, *to;

	CHECK_ERR(mremap(p, BYTES, 2 * BYTES, MREMAP_MAYMOVE), EFAULT);
	CHECK_ERR(mremap(p, HUGE, BYTES + PAGE, MREMAP_MAYMOVE), EFAULT);
	to = mmap(NULL, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(to != MAP_FAILED);
	q = mremap(p, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to + PAGE);
	CHECK(q == to + PAGE && intact(q, BYTES));
	CHECK_EQ(t_read(p), SIGSEGV);
	q[8] = 3;
	p = t_map(h, BYTES, PROT_READ);
	CHECK_EQ(p[8], 3);
	CHECK(mremap(q, BYTES, HUGE, 0) == q);
	CHECK(intact(q, HUGE));
	CHECK_EQ(t_read(q + HUGE), SIGSEGV);
	munmap(q, HUGE);
	munmap(p, BYTES);
	close(h);
}

TEST(mremap, "mremap moves and shrinks, and never grows")
{
	try_mremap(TMESH_CREATE_NOHUGE);
	if (t_has_huge(dev))
		try_mremap(TMESH_CREATE_HUGE);
	else
		t_note("no huge pages here");
}

static void try_partial(__u32 flags)
{
	int h = region(flags);
	unsigned char *p = mapped(h), *q = t_map(h, BYTES, RW);

	CHECK(intact(q, BYTES));
	CHECK_OK(munmap(p + 3 * PAGE, 5 * PAGE));
	CHECK_EQ(t_read(p + 3 * PAGE), SIGSEGV);
	CHECK_EQ(t_read(p + 8 * PAGE - 1), SIGSEGV);
	CHECK_EQ(p[2 * PAGE], 2);
	CHECK_EQ(p[8 * PAGE], 8);
	CHECK_OK(mprotect(p + 20 * PAGE, PAGE, PROT_READ));
	CHECK_EQ(t_write(p + 20 * PAGE, 1), SIGSEGV);
	CHECK_EQ(t_write(p + 21 * PAGE, 21), 0);
	CHECK_OK(mprotect(p + 20 * PAGE, PAGE, RW));
	CHECK_EQ(t_write(p + 20 * PAGE, 20), 0);
	CHECK(intact(q, BYTES));
	munmap(p, BYTES);
	CHECK(intact(q, BYTES));
	munmap(q, BYTES);
	close(h);
}

TEST(partial, "munmap and mprotect of a part leave the rest and other mappings alone")
{
	try_partial(TMESH_CREATE_NOHUGE);
	if (t_has_huge(dev))
		try_partial(TMESH_CREATE_HUGE);
	else
		t_note("no huge pages here");
}

/* Check that the bytes stay, whatever madvise() returns. */
static void try_madvise(__u32 flags)
{
	static const struct {
		const char *name;
		int advice;
	} advices[] = {
		{"NORMAL", MADV_NORMAL},
		{"RANDOM", MADV_RANDOM},
		{"SEQUENTIAL", MADV_SEQUENTIAL},
		{"WILLNEED", MADV_WILLNEED},
		{"DONTNEED", MADV_DONTNEED},
		{"FREE", MADV_FREE},
		{"REMOVE", MADV_REMOVE},
		{"DONTFORK", MADV_DONTFORK},
		{"DOFORK", MADV_DOFORK},
		{"MERGEABLE", MADV_MERGEABLE},
		{"HUGEPAGE", MADV_HUGEPAGE},
		{"NOHUGEPAGE", MADV_NOHUGEPAGE},
		{"DODUMP", MADV_DODUMP},
		{"DONTDUMP", MADV_DONTDUMP},
		{"COLD", MADV_COLD},
		{"PAGEOUT", MADV_PAGEOUT},
		{"POPULATE_READ", MADV_POPULATE_READ},
		{"POPULATE_WRITE", MADV_POPULATE_WRITE},
		{"COLLAPSE", MADV_COLLAPSE},
	};
	unsigned char in_core[BYTES / PAGE];
	int h = region(flags);
	unsigned char *p = mapped(h);

	for (size_t i = 0; i < ARRAY_SIZE(advices); i++) {
		int r = madvise(p, BYTES, advices[i].advice);

		if (!CHECK(intact(p, BYTES)))
			t_note("after MADV_%s, which gave %d", advices[i].name, r);
	}
	CHECK_OK(madvise(p, BYTES, MADV_DONTNEED));
	CHECK_OK(madvise(p, BYTES, MADV_POPULATE_WRITE));
	CHECK_EQ(madvise(p, PAGE, MADV_REMOVE), -1);
	CHECK(t_write_file("/proc/self/clear_refs", "1"));
	CHECK(intact(p, BYTES));
	CHECK_OK(mincore(p, BYTES, in_core));
	CHECK_OK(msync(p, BYTES, MS_SYNC));
	CHECK_OK(mlock(p, BYTES));
	CHECK_OK(munlock(p, BYTES));
	CHECK(intact(p, BYTES));
	munmap(p, BYTES);
	close(h);
}

TEST(madvise, "no advice takes bytes away")
{
	try_madvise(0);
	try_madvise(TMESH_CREATE_NOHUGE);
	if (t_has_huge(dev))
		try_madvise(TMESH_CREATE_HUGE);
	else
		t_note("no huge pages here");
}

TEST(private, "private mappings give EINVAL")
{
	int h = region(0);

	CHECK_ERR(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, h, 0), EINVAL);
	CHECK_ERR(mmap(NULL, PAGE, RW, MAP_PRIVATE, h, 0), EINVAL);
}

TEST(ranges, "mappings beyond the region's end are refused")
{
	int h = region(0);
	unsigned char *p;

	CHECK_ERR(mmap(NULL, BYTES + PAGE, PROT_READ, MAP_SHARED, h, 0), EINVAL);
	CHECK_ERR(mmap(NULL, BYTES, PROT_READ, MAP_SHARED, h, PAGE), EINVAL);
	CHECK_ERR(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, h, BYTES), EINVAL);
	CHECK_ERR(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, h, 100), EINVAL);
	CHECK_EQ((long)mmap(NULL, PAGE, PROT_READ, MAP_SHARED, h, 0x7ffffffffffff000l), -1);
	CHECK(errno == EINVAL || errno == EOVERFLOW);
	CHECK_EQ((long)mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, h, -4096l), -1);
	CHECK(errno == EINVAL || errno == EOVERFLOW);

	munmap(mapped(h), BYTES);
	p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, h, BYTES - PAGE);
	CHECK(p != MAP_FAILED && *(size_t *)p == BYTES / PAGE - 1);
	p = mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, h, HUGE - PAGE);
	CHECK(p != MAP_FAILED && *(size_t *)p == 511 && *(size_t *)(p + 2 * PAGE) == 513);
}

TEST(mapping_holds, "a mapping holds the region after the last descriptor")
{
	int h = region(0);
	unsigned char *p = mapped(h);
	__u64 id = t_info(h).id;
	struct tmesh_info by_id = {.size = sizeof(by_id), .id = id};

	close(h);
	CHECK_OK(ioctl(dev, TMESH_INFO, &by_id));
	CHECK_EQ(by_id.handles, 1);
	CHECK(intact(p, BYTES));
	munmap(p + PAGE, BYTES - PAGE);
	CHECK_EQ(t_listed(dev), 1);
	munmap(p, PAGE);
	CHECK_EQ(t_listed(dev), 0);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

TEST(fdinfo, "fdinfo tells the region, its state and the handle's rights")
{
	int h = region(TMESH_CREATE_NOHUGE), ro = REQUIRE_OK(t_derive(h, R_READ, 0));
	struct tmesh_info info = t_info(h);
	char path[64], value[64];
	const struct {
		const char *key;
		long long number;
	} numbers[] = {
		{"tmesh-region", info.id}, {"tmesh-bytes", BYTES}, {"tmesh-alloc-bytes", BYTES},
		{"tmesh-huge-bytes", 0},   {"tmesh-pinning", 0},   {"tmesh-mappings", 1},
	};

	REQUIRE(t_map(ro, BYTES, PROT_READ) != MAP_FAILED);
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", ro);
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		REQUIRE(t_file_value(path, numbers[i].key, value, sizeof(value)));
		if (!CHECK_EQ(atoll(value), numbers[i].number))
			t_note("that was %s", numbers[i].key);
	}
	CHECK(t_file_value(path, "tmesh-rights", value, sizeof(value)) && !strcmp(value, "r--"));
	CHECK(t_file_value(path, "tmesh-state", value, sizeof(value)) && !strcmp(value, "live"));
	CHECK_OK(t_seal(h));
	CHECK(t_file_value(path, "tmesh-state", value, sizeof(value)) && !strcmp(value, "sealed"));
	CHECK_OK(t_revoke(h));
	CHECK(t_file_value(path, "tmesh-state", value, sizeof(value)) && !strcmp(value, "revoked"));
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", h);
	CHECK(t_file_value(path, "tmesh-rights", value, sizeof(value)) && !strcmp(value, "rwm"));
}

TEST(poll, "poll says HUP once the region is revoked, in every process that waits")
{
	int h = region(0), other = REQUIRE_OK(t_derive(h, R_READ, 0)), sv[2];
	struct pollfd pf = {.fd = other, .events = POLLIN};
	pid_t pid;

	CHECK_EQ(poll(&pf, 1, 0), 0);
	t_pair(sv);
	T_CHILD(pid) {
		t_say(sv[1]);
		/*
		 * Use no timeout: poll() checks once more after a timeout, which would hide a
		 * missing wake-up.
		 */
		CHECK_EQ(poll(&pf, 1, -1), 1);
		CHECK(pf.revents & POLLHUP);
		t_say(sv[1]);
	}
	t_hear(sv[0]);
	usleep(50000); /* so that it most likely waits by now */
	CHECK_OK(t_revoke(h));
	t_hear(sv[0]);
	t_wait(pid);
	CHECK_EQ(poll(&pf, 1, 0), 1);
	CHECK(pf.revents & POLLHUP);
}

int main(int argc, char **argv)
{
	if (argc == 3)
		return after_exec(atoi(argv[1]), atoi(argv[2]));
	return t_main();
}
