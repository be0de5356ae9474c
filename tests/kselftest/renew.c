// SPDX-License-Identifier: MIT
/*
 * TMESH_RENEW succeeds when no other holder or pin of the memory is left, and not before.
 */
#include "t.h"

#define BYTES (64 * KB)
#define RW (PROT_READ | PROT_WRITE)

static int renew(int handle)
{
	struct tmesh_renew r = {.size = sizeof(r)};

	return ioctl(handle, TMESH_RENEW, &r);
}

static int opened(int dev, int handle)
{
	__u8 token[TMESH_TOKEN_BYTES];

	REQUIRE_OK(t_token(handle, R_READ, token));
	return REQUIRE_OK(t_open(dev, token, R_READ, 0));
}

TEST(tokens, "the tokens die, also where a process has the memory; there are new ones")
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, BYTES, 0)), other;
	__u8 first[TMESH_TOKEN_BYTES], writer[TMESH_TOKEN_BYTES], second[TMESH_TOKEN_BYTES];
	__u64 id = t_info(fd).id;

	CHECK(t_caps(dev).features & TMESH_FEATURE_RENEW);
	CHECK_OK(renew(fd));
	for (int turn = 0; turn < 3; turn++) {
		REQUIRE_OK(t_token(fd, R_READ, first));
		REQUIRE_OK(t_token(fd, R_ALL, writer));
		other = REQUIRE_OK(t_open(dev, first, R_READ, 0));
		CHECK_ERR(renew(fd), EBUSY);
		CHECK_ERR(t_open(dev, first, R_READ, 0), ENOENT);
		CHECK_ERR(t_open(dev, writer, R_READ, 0), ENOENT);
		REQUIRE_OK(t_token(fd, R_READ, second));
		CHECK(memcmp(first, second, sizeof(first)));
		close(other);
		CHECK_OK(renew(fd));
		CHECK_ERR(t_open(dev, second, R_READ, 0), ENOENT);
		CHECK_EQ(t_info(fd).id, id);
	}
	/* It behaves like a region that never had a token. */
	REQUIRE_OK(t_token(fd, R_READ, first));
	close(REQUIRE_OK(t_open(dev, first, R_READ, 0)));
	close(fd);
	CHECK_ERR(t_open(dev, first, R_READ, 0), ENOENT);
}

TEST(content, "contents, mappings and the description stay the holder's")
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, BYTES, 0));
	struct tmesh_desc d = {.size = sizeof(d), .data = (__u64)(unsigned long)"u8", .bytes = 2};
	unsigned char *p = t_map(fd, BYTES, RW);

	REQUIRE(p != MAP_FAILED);
	REQUIRE_OK(ioctl(fd, TMESH_DESC_SET, &d));
	memset(p, 7, BYTES);
	CHECK_OK(renew(fd));
	CHECK_EQ(p[BYTES - 1], 7);
	CHECK_EQ(t_info(fd).desc_bytes, 2);
	p[0] = 1;
	CHECK_ERR(t_seal(fd), EBUSY);
	munmap(p, BYTES);
}

static void held_by_mapping(__u32 flags)
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, 4 * MB, flags)), other = opened(dev, fd);
	unsigned char *p = t_map(other, 4 * MB, PROT_READ), *own = t_map(fd, 4 * MB, RW);

	REQUIRE(p != MAP_FAILED && own != MAP_FAILED);
	own[2 * MB] = 3;
	CHECK_EQ(p[2 * MB], 3);
	close(other);
	CHECK_ERR(renew(fd), EBUSY);
	/* A mapping of a part is enough to refuse it. */
	munmap(p, 4 * MB - PAGE);
	CHECK_ERR(renew(fd), EBUSY);
	munmap(p + 4 * MB - PAGE, PAGE);
	CHECK_OK(renew(fd));
	CHECK_EQ(own[2 * MB], 3);
}

TEST_CALL(mapping, "a mapping holds the memory, without a descriptor",
	  held_by_mapping(TMESH_CREATE_NOHUGE))

TEST(mapping_huge, "the same on huge pages")
{
	if (!t_has_huge(t_dev()))
		t_skip("this kernel has no transparent huge pages");
	held_by_mapping(TMESH_CREATE_HUGE);
}

TEST(message, "a descriptor in a message under way holds it")
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, BYTES, 0)), other = opened(dev, fd), sv[2];

	t_pair(sv);
	t_send_fd(sv[0], other);
	close(other);
	CHECK_ERR(renew(fd), EBUSY);
	close(sv[0]);
	close(sv[1]);
	CHECK_OK(renew(fd));
}

TEST(export, "an export and a view hold it")
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, BYTES, 0)), dmabuf, view;
	struct tmesh_extent extent = t_extent(fd, 0, 1);

	dmabuf = REQUIRE_OK(t_export(fd, 0, 0, 0));
	CHECK_ERR(renew(fd), EBUSY);
	close(dmabuf);
	CHECK_OK(renew(fd));
	view = REQUIRE_OK(t_gather(dev, &extent, 1, R_READ));
	CHECK_ERR(renew(fd), EBUSY);
	CHECK_ERR(renew(view), EACCES);
	close(view);
	CHECK_OK(renew(fd));
}

/* Check that a pipe holds the pages of a reader that has exited. */
static void held_by_pipe(__u32 flags, __u64 bytes)
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, bytes, flags)), other = opened(dev, fd);
	char *p = t_map(other, bytes, PROT_READ), copy[PAGE];
	struct iovec io = {.iov_base = p, .iov_len = PAGE};
	int pipes[2];

	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(*p, 0);
	REQUIRE_OK(pipe(pipes));
	REQUIRE(vmsplice(pipes[1], &io, 1, 0) == PAGE);
	munmap(p, bytes);
	close(other);
	CHECK_ERR(renew(fd), EBUSY);
	CHECK_EQ(read(pipes[0], copy, PAGE), PAGE);
	CHECK_OK(renew(fd));
}

TEST_CALL(pipe, "so does a pipe that was given pages", held_by_pipe(TMESH_CREATE_NOHUGE, BYTES))

TEST(pipe_last, "the same of the last page of many: they are looked at in pieces")
{
	__u64 bytes = 16 * MB;
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, bytes, TMESH_CREATE_NOHUGE));
	char *p = t_map(fd, bytes, RW);
	struct iovec io = {.iov_base = p + bytes - PAGE, .iov_len = PAGE};
	int pipes[2];

	REQUIRE(p != MAP_FAILED);
	CHECK_OK(renew(fd));
	REQUIRE_OK(pipe(pipes));
	REQUIRE(vmsplice(pipes[1], &io, 1, 0) == PAGE);
	CHECK_ERR(renew(fd), EBUSY);
	close(pipes[0]);
	close(pipes[1]);
	CHECK_OK(renew(fd));
}

TEST(pipe_huge, "the same on huge pages")
{
	if (!t_has_huge(t_dev()))
		t_skip("this kernel has no transparent huge pages");
	held_by_pipe(TMESH_CREATE_HUGE, 2 * MB);
}

TEST(refused, "who may not, and what cannot")
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, BYTES, 0)), memfd, lesser;
	struct tmesh_create_memfd c = {.size = sizeof(c), .bytes = BYTES};
	__u8 token[TMESH_TOKEN_BYTES];

	REQUIRE_OK(t_token(fd, R_READ, token));
	for (__u32 rights = R_READ; rights < R_ALL; rights += 2) {
		lesser = REQUIRE_OK(t_derive(fd, rights, 0));
		CHECK_ERR(renew(lesser), EACCES);
		close(lesser);
	}
	/* The refused calls have left the token alive. */
	close(REQUIRE_OK(t_open(dev, token, R_READ, 0)));
	REQUIRE_OK(t_seal(fd));
	CHECK_ERR(renew(fd), EPERM);
	close(REQUIRE_OK(t_open(dev, token, R_READ, 0)));
	REQUIRE_OK(t_revoke(fd));
	CHECK_ERR(renew(fd), ESTALE);
	close(fd);

	memfd = REQUIRE_OK(memfd_create("renew", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	REQUIRE_OK(ftruncate(memfd, BYTES));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	c.memfd = memfd;
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &c));
	CHECK_ERR(renew(c.fd), EOPNOTSUPP);
}

/* Readers open the token on the board while its memory is reused again and again. */
struct board {
	unsigned int version; /* odd while it changes */
	__u64 value;
	__u8 token[TMESH_TOKEN_BYTES];
	bool closed;
	unsigned int opened, missed;
};

static void read_once(struct board *b, int dev, unsigned int *seed)
{
	unsigned int version = __atomic_load_n(&b->version, __ATOMIC_ACQUIRE);
	__u64 value = __atomic_load_n(&b->value, __ATOMIC_RELAXED);
	__u8 token[TMESH_TOKEN_BYTES];
	volatile __u64 *p;
	int fd;

	memcpy(token, b->token, sizeof(token));
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (version % 2 || version != __atomic_load_n(&b->version, __ATOMIC_RELAXED))
		return;
	fd = t_open(dev, token, R_READ, 0);
	if (fd < 0) {
		CHECK_EQ(errno, ENOENT);
		__atomic_add_fetch(&b->missed, 1, __ATOMIC_RELAXED);
		return;
	}
	p = t_map(fd, PAGE, PROT_READ);
	REQUIRE((void *)p != MAP_FAILED);
	if (t_random(seed) % 2) {
		close(fd);
		fd = -1;
	}
	for (int i = t_random(seed) % 50; i >= 0; i--)
		CHECK_EQ(*p, value);
	munmap((void *)p, PAGE);
	if (fd >= 0)
		close(fd);
	__atomic_add_fetch(&b->opened, 1, __ATOMIC_RELAXED);
}

TEST(race, "opening against renewing: what a reader has never changes")
{
	struct board *b = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, PAGE, 0));
	volatile __u64 *p = t_map(fd, PAGE, RW);
	unsigned int seed = 4711, lent = 0, busy = 0;
	double until = t_now() + t_length(4, 60), since;
	pid_t readers[3];

	REQUIRE(b != MAP_FAILED && (void *)p != MAP_FAILED);
	for (int i = 0; i < 3; i++)
		T_CHILD(readers[i]) {
			unsigned int own = 17 + i;

			close(fd);
			munmap((void *)p, PAGE);
			while (!__atomic_load_n(&b->closed, __ATOMIC_RELAXED) && !t_failed())
				read_once(b, dev, &own);
		}
	while ((t_now() < until || !b->opened || !b->missed) && !t_failed()) {
		__u8 token[TMESH_TOKEN_BYTES];

		REQUIRE(t_now() < until + 60);
		*p = ++lent;
		REQUIRE_OK(t_token(fd, R_READ, token));
		__atomic_add_fetch(&b->version, 1, __ATOMIC_SEQ_CST);
		__atomic_store_n(&b->value, lent, __ATOMIC_RELAXED);
		memcpy(b->token, token, sizeof(token));
		__atomic_add_fetch(&b->version, 1, __ATOMIC_SEQ_CST);
		usleep(t_random(&seed) % 100);
		since = t_now();
		while (renew(fd)) {
			REQUIRE(errno == EBUSY && t_now() - since < 60);
			busy++;
		}
	}
	__atomic_store_n(&b->closed, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 3; i++)
		t_wait(readers[i]);
	t_note("%u times lent, opened %u times, missed %u times, busy %u times", lent, b->opened,
	       b->missed, busy);
}
