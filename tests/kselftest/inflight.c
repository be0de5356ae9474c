// SPDX-License-Identifier: MIT
/*
 * A disk writes into memory while its region is sealed. Direct I/O keeps the pages without a
 * mapping: before 6.3 by plain references, later by pins. Either the seal is refused, or nothing
 * changes after it.
 */
#include "disk.h"
#include "ring.h"

#define RW (PROT_READ | PROT_WRITE)
#define BYTES (1 * MB)
#define READS 4 /* that one ring has in flight */
#define CALM 5	/* undisturbed rounds, to measure its time */

/* The region to seal, and the file by which it is mapped meanwhile */
struct subject {
	int handle, memfd, mapped;
};

static struct subject of_pages(int dev)
{
	int h = REQUIRE_OK(t_create(dev, BYTES, 0));

	return (struct subject){h, -1, h};
}

static struct subject over_memfd(int dev)
{
	int memfd = REQUIRE_OK(memfd_create("memfd", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};

	REQUIRE_OK(ftruncate(memfd, BYTES));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &c));
	return (struct subject){c.fd, memfd, c.fd};
}

static struct subject by_memfd(int dev)
{
	struct subject s = over_memfd(dev);

	s.mapped = s.memfd;
	return s;
}

/* A thread that reads the disk into memory, piece by piece */
struct reader {
	struct ring ring;
	int disk;
	unsigned char *at;
	bool queued, ended;
	pthread_t thread;
};

static void *read_disk(void *arg)
{
	struct reader *r = arg;

	/* The memory may be unmapped meanwhile: expect a short read or EFAULT. */
	for (size_t at = 0; at < BYTES; at += BYTES / READS)
		CHECK(pread(r->disk, r->at + at, BYTES / READS, at) > 0 || errno == EFAULT);
	__atomic_store_n(&r->ended, true, __ATOMIC_RELEASE);
	return NULL;
}

static void reader_start(struct reader *r)
{
	r->ended = false;
	if (!r->queued) {
		REQUIRE(!pthread_create(&r->thread, NULL, read_disk, r));
		return;
	}
	for (size_t at = 0; at < BYTES; at += BYTES / READS)
		ring_submit(&r->ring, (struct io_uring_sqe){
					      .opcode = IORING_OP_READ,
					      .fd = r->disk,
					      .addr = (__u64)(unsigned long)r->at + at,
					      .len = BYTES / READS,
					      .off = at,
				      });
}

static bool reader_ended(const struct reader *r)
{
	if (!r->queued)
		return __atomic_load_n(&r->ended, __ATOMIC_ACQUIRE);
	return ring_ended(&r->ring) == READS;
}

static void reader_end(struct reader *r)
{
	int got;

	if (!r->queued) {
		REQUIRE(!pthread_join(r->thread, NULL));
		return;
	}
	for (int i = 0; i < READS; i++) {
		got = ring_wait(&r->ring);
		CHECK(got > 0 || got == -EFAULT);
	}
}

/*
 * Check that nothing changes after a seal: the bytes that the disk has written by then stay. A seal
 * waits for the disk for a time, and is refused after that.
 */
static void check_inflight(struct subject (*create)(int), bool queued)
{
	static unsigned char was[BYTES];
	struct reader r = {.disk = open_disk(), .queued = queued};
	unsigned char *text = mmap(NULL, BYTES, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *q;
	double until = t_now() + t_length(3, 60), span = 1, begin;
	int dev = t_dev(), rounds, sealed = 0, inflight = 0, changed = 0, rc;
	unsigned int seed = 51;

	if (queued)
		r.ring = ring_open();
	REQUIRE(text != MAP_FAILED);
	memset(text, 'B', BYTES);
	REQUIRE(pwrite(r.disk, text, BYTES, 0) == (ssize_t)BYTES);
	/* Go on longer if the disk was never seen at work. */
	for (rounds = 0; t_now() < until + 60 * !inflight && !t_failed(); rounds++) {
		struct subject s = create(dev);
		bool calm = rounds < CALM;

		r.at = t_map(s.mapped, BYTES, RW);
		q = t_map(s.handle, BYTES, PROT_READ);
		REQUIRE(r.at != MAP_FAILED && q != MAP_FAILED);
		memset(r.at, 'A', BYTES);
		begin = t_now();
		reader_start(&r);
		if (calm) {
			reader_end(&r);
			if (t_now() - begin < span)
				span = t_now() - begin;
			CHECK(!memcmp(q, text, BYTES));
		} else {
			/* Seal at once, or at any time while it reads. */
			begin += rounds % 2 ? 0 : span * (t_random(&seed) % 1000) / 1000;
			while (t_now() < begin)
				;
		}
		munmap(r.at, BYTES);
		inflight += !calm && !reader_ended(&r);
		rc = t_seal(s.handle);
		CHECK(!rc || errno == EBUSY);
		memcpy(was, q, BYTES);
		if (!calm)
			reader_end(&r);
		if (!rc) {
			sealed++;
			changed += !!memcmp(was, q, BYTES);
		}
		munmap(q, BYTES);
		close(s.handle);
		if (s.memfd >= 0)
			close(s.memfd);
	}
	t_note("%d rounds of %.1f ms: %d times the disk was at it, %d sealed, %d changed then",
	       rounds, span * 1e3, inflight, sealed, changed);
	CHECK_EQ(changed, 0);
	CHECK(inflight);
	CHECK(sealed);
}

TEST_CALL(pages, "a seal while a disk reads into a region: EBUSY, or nothing changes any more",
	  check_inflight(of_pages, false))
TEST_CALL(pages_queued, "the same for reads that are queued in an io_uring",
	  check_inflight(of_pages, true))
TEST_CALL(memfd, "a disk that reads into a region over a memfd", check_inflight(over_memfd, false))
TEST_CALL(memfd_queued, "the same for queued reads", check_inflight(over_memfd, true))
TEST_CALL(by_memfd, "a disk that reads into the memfd itself", check_inflight(by_memfd, false))
TEST_CALL(by_memfd_queued, "the same for queued reads", check_inflight(by_memfd, true))
