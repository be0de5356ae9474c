// SPDX-License-Identifier: MIT
/*
 * The effect of a touch after a lease has lapsed or a region was revoked: SIGBUS, or zeros.
 */
#include "lease.h"

#define BYTES (4 * HUGE)

/* Ways to lose a mapping */
enum loss {
	LAPSE,
	REVOCATION
};

static int dev;

/* A region full of 0xaa, and a mapped handle that is about to lose it */
struct subject {
	int owner, handle;
	unsigned char *p;
	struct lease lease;
};

static struct subject new_subject(__u32 create_flags, __u32 flags)
{
	struct subject s;
	unsigned char *all;

	dev = t_dev();
	if (create_flags & TMESH_CREATE_HUGE && !t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	s.owner = REQUIRE_OK(t_create(dev, BYTES, create_flags));
	all = t_map(s.owner, BYTES, RW);
	REQUIRE(all != MAP_FAILED);
	memset(all, 0xaa, BYTES);
	munmap(all, BYTES);
	s.handle = REQUIRE_OK(t_derive(s.owner, R_READ | R_WRITE, 0));
	REQUIRE_OK(policy(s.handle, flags));
	CHECK_EQ(t_info(s.handle).policy, flags);
	s.p = t_map(s.handle, BYTES, RW);
	REQUIRE(s.p != MAP_FAILED);
	for (size_t at = 0; at < BYTES; at += PAGE)
		REQUIRE(s.p[at] == 0xaa);
	return s;
}

static void lose(struct subject *s, enum loss how)
{
	if (how == REVOCATION) {
		REQUIRE_OK(t_revoke(s->owner));
	} else {
		s->lease = lease_put(s->handle, TMESH_LEASE_MIN_NS);
		await_end(&s->lease, s->handle);
	}
}

static void let_go(struct subject *s, enum loss how)
{
	munmap(s->p, BYTES);
	if (how == LAPSE)
		lease_unmap(&s->lease);
	close(s->handle);
	close(s->owner);
	close(dev);
}

static __u64 used(void)
{
	return t_caps(dev).used_bytes;
}

#define FOR_EACH_WAY(flags, how)                                           \
	for (__u32 flags = TMESH_CREATE_HUGE; flags;                       \
	     flags = flags == TMESH_CREATE_HUGE ? TMESH_CREATE_NOHUGE : 0) \
		for (enum loss how = LAPSE; how <= REVOCATION; how++)

TEST(sigbus, "without a policy it is SIGBUS")
{
	FOR_EACH_WAY(flags, how)
	{
		struct subject s = new_subject(flags, 0);

		lose(&s, how);
		for (size_t at = 0; at < BYTES; at += 77 * PAGE) {
			CHECK_EQ(t_read(s.p + at), SIGBUS);
			CHECK_EQ(t_write(s.p + at, 1), SIGBUS);
		}
		let_go(&s, how);
	}
}

TEST(zeros, "with TMESH_POLICY_ZERO it is memory of zeros, which keeps what is written to it")
{
	FOR_EACH_WAY(flags, how)
	{
		struct subject s = new_subject(flags, TMESH_POLICY_ZERO);
		size_t wrong = 0;

		lose(&s, how);
		for (size_t at = 0; at < BYTES; at += 33 * PAGE) {
			wrong += t_read(s.p + at) || s.p[at];
			s.p[at] = at / PAGE;
		}
		REQUIRE_OK(madvise(s.p, BYTES, MADV_DONTNEED));
		for (size_t at = 0; at < BYTES; at += 33 * PAGE)
			wrong += s.p[at] != (unsigned char)(at / PAGE) || s.p[at + 1];
		CHECK_EQ(wrong, 0);
		let_go(&s, how);
	}
}

TEST(private, "zeros are a handle's own: not the region's, not another's")
{
	FOR_EACH_WAY(flags, how)
	{
		struct subject s = new_subject(flags, 0);
		int other = REQUIRE_OK(t_derive(s.owner, R_READ, 0));
		unsigned char *q = t_map(other, BYTES, PROT_READ);
		unsigned char *second = t_map(s.handle, BYTES, RW);

		REQUIRE(q != MAP_FAILED && second != MAP_FAILED);
		/* Set the policy after the loss. */
		lose(&s, how);
		CHECK_EQ(t_read(s.p), SIGBUS);
		CHECK_OK(policy(s.handle, TMESH_POLICY_ZERO));
		CHECK_OK(policy(other, TMESH_POLICY_ZERO));
		CHECK_EQ(t_write(s.p, 1), 0);
		CHECK_EQ(second[0], 1);
		CHECK_EQ(t_read(q), 0);
		CHECK_EQ(q[0], how == LAPSE ? 0xaa : 0);
		CHECK_EQ(t_write(q, 1), SIGSEGV);
		CHECK_OK(policy(s.handle, 0));
		CHECK_EQ(t_read(s.p + PAGE), SIGBUS);
		munmap(q, BYTES);
		munmap(second, BYTES);
		close(other);
		let_go(&s, how);
	}
}

TEST(forks, "children and moved mappings see the same zeros")
{
	FOR_EACH_WAY(flags, how)
	{
		struct subject s = new_subject(flags, TMESH_POLICY_ZERO);
		unsigned char *moved;
		pid_t pid;
		int sv[2];

		t_pair(sv);
		T_CHILD(pid) {
			t_hear(sv[1]);
			CHECK_EQ(s.p[5 * PAGE], 5);
			s.p[6 * PAGE] = 6;
		}
		lose(&s, how);
		s.p[5 * PAGE] = 5;
		t_say(sv[0]);
		t_wait(pid);
		CHECK_EQ(s.p[6 * PAGE], 6);
		moved = mremap(s.p, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED,
			       mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		REQUIRE(moved != MAP_FAILED);
		s.p = moved;
		CHECK_EQ(s.p[5 * PAGE], 5);
		CHECK_EQ(s.p[6 * PAGE], 6);
		CHECK_EQ(s.p[7 * PAGE], 0);
		let_go(&s, how);
	}
}

TEST(charged, "zeros are charged to who touches them; past the limit it is SIGBUS")
{
	FOR_EACH_WAY(flags, how)
	{
		struct subject s = new_subject(flags, TMESH_POLICY_ZERO);
		unsigned long long limit = t_limit("max_bytes_per_uid");
		__u64 before;

		lose(&s, how);
		before = used();
		CHECK_EQ(t_write(s.p, 1), 0);
		CHECK_EQ(t_write(s.p + HUGE, 1), 0);
		CHECK_EQ(t_read(s.p + 1), 0);
		CHECK_EQ(used(), before + 2 * PAGE);
		t_set_limit("max_bytes_per_uid", before + 3 * PAGE);
		CHECK_EQ(t_write(s.p + 2 * PAGE, 1), 0);
		CHECK_EQ(t_write(s.p + 3 * PAGE, 1), SIGBUS);
		CHECK_EQ(t_read(s.p + 3 * PAGE), SIGBUS);
		t_set_limit("max_bytes_per_uid", limit);
		CHECK_EQ(t_read(s.p + 3 * PAGE), 0);
		munmap(s.p + 8 * PAGE, PAGE);
		CHECK_EQ(used(), before + 4 * PAGE);
		munmap(s.p, BYTES);
		CHECK_EQ(used(), before + 4 * PAGE);
		close(s.handle);
		CHECK(used() <= before);
		let_go(&s, how);
	}
}

TEST(others, "who touches through a handle of another user's pays for the zeros")
{
	struct subject s = new_subject(0, TMESH_POLICY_ZERO);
	__u64 before;

	lose(&s, LAPSE);
	before = used();
	T_ALONE()
	{
		t_become(1000, 1000, 0);
		CHECK_EQ(t_write(s.p, 1), 0);
		CHECK_EQ(t_caps(s.handle).used_bytes, PAGE);
	}
	CHECK_EQ(used(), before);
	CHECK_EQ(s.p[0], 1);
	let_go(&s, LAPSE);
}

TEST(exports, "mappings of an export have no policy")
{
	struct subject s = new_subject(0, TMESH_POLICY_ZERO);
	int dmabuf = REQUIRE_OK(t_export(s.handle, 0, 0, 0)), derived;
	unsigned char *q = t_map(dmabuf, BYTES, PROT_READ);

	REQUIRE(q != MAP_FAILED && !t_read(q));
	derived = REQUIRE_OK(t_derive(s.handle, R_READ, 0));
	CHECK_EQ(t_info(derived).policy, 0);
	lose(&s, REVOCATION);
	CHECK_EQ(t_read(q), SIGBUS);
	CHECK_EQ(t_read(s.p), 0);
	munmap(q, BYTES);
	let_go(&s, REVOCATION);
}

TEST(kernel, "system calls read and write zeros too")
{
	FOR_EACH_WAY(flags, how)
	{
		struct subject s = new_subject(flags, TMESH_POLICY_ZERO);
		int fds[2];

		lose(&s, how);
		REQUIRE_OK(pipe(fds));
		CHECK_EQ(write(fds[1], s.p, 3), 3);
		CHECK_EQ(write(fds[1], "abc", 3), 3);
		CHECK_EQ(read(fds[0], s.p + PAGE, 6), 6);
		CHECK(!memcmp(s.p + PAGE, "\0\0\0abc", 6));
		struct iovec to = {s.p + 2 * PAGE, 3}, from = {s.p + PAGE + 3, 3};

		CHECK_EQ(process_vm_writev(getpid(), &from, 1, &to, 1, 0), 3);
		CHECK(!memcmp(s.p + 2 * PAGE, "abc", 3));
		close(fds[0]);
		close(fds[1]);
		let_go(&s, how);
	}
}

TEST(bad, "unknown policies are refused")
{
	int fd;

	dev = t_dev();
	fd = REQUIRE_OK(t_create(dev, PAGE, 0));
	CHECK_ERR(policy(fd, 2), EOPNOTSUPP);
	CHECK_ERR(policy(fd, -1), EOPNOTSUPP);
	CHECK_ERR(policy(dev, 0), ENOTTY);
	CHECK_EQ(t_info(fd).policy, 0);
}
