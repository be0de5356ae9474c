// SPDX-License-Identifier: MIT
/*
 * Random calls, alone, together, and by processes that are killed in the middle. Nothing is
 * judged but that the system survives and that nothing stays behind. The seed is printed;
 * TMESH_SEED sets another.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <linux/dma-buf.h>

#include "drm.h"
#include "t.h"

#define FDS 24
#define MAPPINGS 12
#define LARGEST (4 * MB)
#define ALICE 1001
#define BOB 1002

/* What one fuzzing process has in hand. */
struct hand {
	unsigned int seed;
	int fds[FDS];
	struct {
		unsigned char *p;
		size_t bytes;
	} mappings[MAPPINGS];
	int pair[2];
	int vgem;
	__u32 gem;
	__u8 token[TMESH_TOKEN_BYTES];
	unsigned long steps;
};

static unsigned int pick(struct hand *h, unsigned int n)
{
	return t_random(&h->seed) % n;
}

static int some_fd(struct hand *h)
{
	return h->fds[pick(h, FDS)];
}

static void keep_fd(struct hand *h, int fd)
{
	int *slot = &h->fds[1 + pick(h, FDS - 1)]; /* the first stays the device */

	if (fd < 0)
		return;
	if (*slot >= 0)
		close(*slot);
	*slot = fd;
}

/* Numbers at which mistakes live. */
static __u64 some_number(struct hand *h)
{
	static const __u64 edges[] = {0,	  1,
				      2,	  7,
				      PAGE - 1,	  PAGE,
				      PAGE + 1,	  HUGE - 1,
				      HUGE,	  HUGE + PAGE,
				      LARGEST,	  1ull << 31,
				      1ull << 32, 1ull << 44,
				      1ull << 62, 1ull << 63,
				      ~0ull,	  ~0ull - PAGE + 1,
				      0x7fffffff, 0x7ffffffffffff000};

	if (pick(h, 3) == 0)
		return (__u64)t_random(&h->seed) << 32 | t_random(&h->seed);
	return edges[pick(h, ARRAY_SIZE(edges))];
}

static void keep_mapping(struct hand *h, void *p, size_t bytes)
{
	int i = pick(h, MAPPINGS);

	if (p == MAP_FAILED)
		return;
	if (h->mappings[i].p)
		munmap(h->mappings[i].p, h->mappings[i].bytes);
	h->mappings[i].p = p;
	h->mappings[i].bytes = bytes;
}

/* An address inside something mapped, or nonsense. */
static void *some_address(struct hand *h)
{
	int i = pick(h, MAPPINGS);

	if (!h->mappings[i].p || pick(h, 16) == 0)
		return (void *)(unsigned long)some_number(h);
	return h->mappings[i].p + (pick(h, h->mappings[i].bytes) & ~7u);
}

static void step_create(struct hand *h)
{
	struct tmesh_create c = {
		.size = sizeof(c),
		.bytes = pick(h, 8) ? 1 + pick(h, LARGEST) : some_number(h),
		.flags = pick(h, 4) ? 0 : 1u << pick(h, 5),
		.mode = pick(h, 2) ? 0 : 0660,
		.linger_ms = pick(h, 4) ? 0 : pick(h, TMESH_LINGER_MAX_MS),
		.label = "fuzz",
	};

	if (!ioctl(h->fds[0], TMESH_CREATE, &c))
		keep_fd(h, c.fd);
}

static void step_memfd(struct hand *h)
{
	int memfd = memfd_create("fuzz", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};

	if (memfd < 0)
		return;
	if (ftruncate(memfd, pick(h, LARGEST)) || fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK))
		abort();
	if (!ioctl(h->fds[0], TMESH_CREATE_MEMFD, &c))
		keep_fd(h, c.fd);
	if (pick(h, 2))
		fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, pick(h, 64) * PAGE,
			  pick(h, 64) * PAGE);
	keep_fd(h, memfd);
}

/* Any call on any file with any bytes, though often with a size that gets it further. */
static void step_raw(struct hand *h)
{
	static const __u32 sizes[] = {8, 16, 32, 40, 64, 80, 112, 168, 256};
	__u64 words[40];
	__u32 *head = (__u32 *)words;
	unsigned int nr = pick(h, 16);

	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		words[i] = pick(h, 3) ? 0 : some_number(h);
	if (pick(h, 4))
		words[pick(h, 6)] = (__u64)(unsigned long)some_address(h);
	head[0] = pick(h, 8) ? sizes[pick(h, ARRAY_SIZE(sizes))] : (__u32)some_number(h);
	head[1] = pick(h, 2) ? 0 : pick(h, 8);
	/* A descriptor that this makes is nowhere noted: drop_strays() finds it. */
	ioctl(some_fd(h), _IO(TMESH_IOC_MAGIC, nr), pick(h, 8) ? (void *)words : some_address(h));
}

static void step_handle(struct hand *h)
{
	static const __u32 rights[] = {R_READ, R_READ | R_WRITE, R_READ | R_MANAGE, R_ALL};
	__u32 want = rights[pick(h, 4)];

	switch (pick(h, 3)) {
	case 0:
		keep_fd(h, t_derive(some_fd(h), want, pick(h, 4) == 0));
		break;
	case 1:
		t_token(some_fd(h), want, h->token);
		break;
	case 2:
		keep_fd(h, t_open(h->fds[0], h->token, want, pick(h, 4) == 0));
		break;
	}
}

static void step_map(struct hand *h)
{
	size_t bytes = (1 + pick(h, LARGEST / PAGE)) * PAGE;
	int prot = pick(h, 3) ? PROT_READ | PROT_WRITE : PROT_READ;
	off_t at = pick(h, 3) ? 0 : (off_t)(pick(h, 600) * PAGE);

	if (pick(h, 32) == 0)
		at = some_number(h) & ~(PAGE - 1);
	if (pick(h, 4))
		bytes = (1 + pick(h, 16)) * PAGE;
	keep_mapping(h,
		     mmap(NULL, bytes, prot, MAP_SHARED | (pick(h, 8) ? 0 : MAP_POPULATE),
			  some_fd(h), at),
		     bytes);
}

static void step_remap(struct hand *h)
{
	static const int advices[] = {MADV_DONTNEED,	   MADV_WILLNEED, MADV_COLD,
				      MADV_PAGEOUT,	   MADV_REMOVE,	  MADV_HUGEPAGE,
				      MADV_POPULATE_WRITE, MADV_DONTFORK};
	int i = pick(h, MAPPINGS);
	unsigned char *p = h->mappings[i].p;
	size_t bytes = h->mappings[i].bytes, at, part;

	if (!p)
		return;
	at = pick(h, bytes / PAGE) * PAGE;
	part = (1 + pick(h, (bytes - at) / PAGE)) * PAGE;
	switch (pick(h, 5)) {
	case 0:
		munmap(p + at, part);
		break;
	case 1:
		mprotect(p + at, part, pick(h, 2) ? PROT_READ : PROT_READ | PROT_WRITE);
		break;
	case 2:
		madvise(p + at, part, advices[pick(h, ARRAY_SIZE(advices))]);
		break;
	case 3:
		mremap(p + at, part, part + pick(h, 2) * PAGE, MREMAP_MAYMOVE);
		break;
	case 4:
		munmap(p, bytes);
		h->mappings[i].p = NULL;
		break;
	}
}

static void step_touch(struct hand *h)
{
	int i = pick(h, MAPPINGS);

	if (!h->mappings[i].p)
		return;
	for (int n = 0; n < 8; n++) {
		unsigned char *p = h->mappings[i].p + pick(h, h->mappings[i].bytes);

		pick(h, 2) ? t_write(p, 1) : t_read(p);
	}
}

static void step_export(struct hand *h)
{
	struct dma_buf_sync sync = {.flags = DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW};
	int fd = some_fd(h);

	switch (pick(h, 4)) {
	case 0:
		keep_fd(h, t_export(fd, pick(h, 4) ? 0 : pick(h, 64) * PAGE,
				    pick(h, 2) ? 0 : pick(h, 64) * PAGE, pick(h, 2)));
		break;
	case 1:
		ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
		sync.flags = DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW;
		ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
		break;
	case 2:
		if (h->vgem >= 0 && !h->gem) {
			int gem = vgem_import(h->vgem, fd);

			h->gem = gem > 0 ? gem : 0;
		}
		break;
	case 3:
		if (h->gem)
			vgem_close(h->vgem, h->gem);
		h->gem = 0;
		break;
	}
}

/* A descriptor on its way through a socket, which may be cut off there. */
static void step_send(struct hand *h)
{
	int fd = some_fd(h);

	if (fd < 0)
		return;
	if (h->pair[0] < 0)
		t_pair(h->pair);
	t_send_fd(h->pair[0], fd);
	if (pick(h, 4)) {
		keep_fd(h, t_recv_fd(h->pair[1]));
	} else {
		close(h->pair[0]);
		close(h->pair[1]);
		h->pair[0] = h->pair[1] = -1;
	}
}

static void steps(struct hand *h, unsigned long n);

static void step_fork(struct hand *h)
{
	pid_t pid = fork();

	if (!pid) {
		/* A socket that both used would have either hang or fail the other. */
		close(h->pair[0]);
		close(h->pair[1]);
		h->pair[0] = h->pair[1] = -1;
		steps(h, pick(h, 30));
		_exit(0);
	}
	if (pid < 0)
		return;
	if (pick(h, 3) == 0)
		kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void step_misc(struct hand *h)
{
	struct pollfd pf = {.fd = some_fd(h), .events = POLLIN};
	char buf[64], path[64];
	struct iovec mine = {buf, sizeof(buf)}, theirs = {some_address(h), sizeof(buf)};

	switch (pick(h, 5)) {
	case 0:
		poll(&pf, 1, 0);
		break;
	case 1:
		process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0);
		break;
	case 2:
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pf.fd);
		t_read_file(path, buf, sizeof(buf));
		break;
	case 3:
		lseek(pf.fd, 0, SEEK_END);
		break;
	case 4:
		t_read_file("/sys/kernel/debug/tmesh/regions", buf, sizeof(buf));
		break;
	}
}

static void steps(struct hand *h, unsigned long n)
{
	for (; n; n--, h->steps++) {
		switch (pick(h, 40)) {
		case 0 ... 4:
			step_create(h);
			break;
		case 5:
			step_memfd(h);
			break;
		case 6 ... 11:
			step_raw(h);
			break;
		case 12 ... 15:
			step_handle(h);
			break;
		case 16 ... 20:
			step_map(h);
			break;
		case 21 ... 23:
			step_remap(h);
			break;
		case 24 ... 28:
			step_touch(h);
			break;
		case 29 ... 31:
			step_export(h);
			break;
		case 32:
			t_seal(some_fd(h));
			break;
		case 33:
			t_revoke(some_fd(h));
			break;
		case 34:
			keep_fd(h, dup(some_fd(h)));
			break;
		case 35 ... 36: {
			int *slot = &h->fds[1 + pick(h, FDS - 1)];

			if (*slot >= 0)
				close(*slot);
			*slot = -1;
			break;
		}
		case 37:
			step_send(h);
			break;
		case 38:
			step_fork(h);
			break;
		default:
			step_misc(h);
			break;
		}
	}
}

static unsigned int seed_of_run(void)
{
	const char *seed = getenv("TMESH_SEED");

	return seed ? strtoul(seed, NULL, 0) | 1 : 20261121;
}

static void deal(struct hand *h, unsigned int seed)
{
	*h = (struct hand){.seed = seed, .pair = {-1, -1}, .vgem = -1};
	memset(h->fds, -1, sizeof(h->fds));
	h->fds[0] = t_dev();
}

/* Half of the hands are root's and may have a device, the others belong to two users. */
static void deal_to_somebody(struct hand *h, unsigned int seed)
{
	int i = seed >> 8 & 3;

	if (i < 2)
		t_become(i ? BOB : ALICE, 1500, 0);
	deal(h, seed);
	for (int card = 0; i >= 2 && card < 4 && h->vgem < 0; card++) {
		char path[32];

		snprintf(path, sizeof(path), "/dev/dri/card%d", card);
		h->vgem = open(path, O_RDWR | O_CLOEXEC);
	}
}

/* Closes what raw calls made without our noticing. */
static void drop_strays(const struct hand *h)
{
	for (int fd = 3; fd < 1024; fd++) {
		bool kept = fd == h->vgem || fd == h->pair[0] || fd == h->pair[1];

		for (int i = 0; i < FDS; i++)
			kept |= fd == h->fds[i];
		if (!kept)
			close(fd);
	}
}

static void fuzz(unsigned int seed, double seconds)
{
	double until = t_now() + seconds;
	struct hand h;

	deal_to_somebody(&h, seed);
	while (t_now() < until) {
		steps(&h, 100);
		drop_strays(&h);
	}
	t_note("seed %u: %lu steps", seed, h.steps);
}

TEST(alone, "random calls of one process")
{
	fuzz(seed_of_run(), t_length(5, 300));
}

TEST(together, "random calls of four processes at once, of root and two users")
{
	unsigned int seed = seed_of_run();
	pid_t pids[4];

	for (int i = 0; i < 4; i++)
		T_CHILD(pids[i])
			fuzz((seed & ~0x300u) | i << 8, t_length(8, 300));
	for (int i = 0; i < 4; i++)
		t_wait(pids[i]);
}

/* Some hundred processes killed in the middle of something; then all must be gone. */
static void storm(unsigned int *seed, int kills)
{
	enum {
		AT_ONCE = 5
	};

	for (int n = 0; n < kills; n += AT_ONCE) {
		pid_t pids[AT_ONCE];

		for (int i = 0; i < AT_ONCE; i++) {
			unsigned int own = t_random(seed);

			pids[i] = t_fork();
			if (!pids[i]) {
				struct hand h;

				/* Its own children are to go with it. */
				setpgid(0, 0);
				deal_to_somebody(&h, own | 1);
				steps(&h, ~0ul);
			}
			setpgid(pids[i], pids[i]);
		}
		usleep(1000 + t_random(seed) % 60000);
		for (int i = 0; i < AT_ONCE; i++)
			kill(-pids[i], SIGKILL);
		for (int i = 0; i < AT_ONCE; i++)
			waitpid(pids[i], NULL, 0);
	}
}

/* What all users together have, where debugfs tells. */
static bool charged(void)
{
	char summary[64];

	return t_read_file("/sys/kernel/debug/tmesh/summary", summary, sizeof(summary)) &&
	       strcmp(summary, "regions 0\nbytes 0\n");
}

/* In the end: a killed child's child may still be dying, or what it had in a socket. */
static void check_empty(int dev)
{
	double until = t_now() + 30;
	struct tmesh_caps_query q;

	for (q = t_caps(dev); t_now() < until; q = t_caps(dev)) {
		if (!q.used_regions && !q.used_bytes && !t_listed(dev) && !charged())
			break;
		usleep(20000);
	}
	CHECK_EQ(q.used_regions, 0);
	CHECK_EQ(q.used_bytes, 0);
	CHECK_EQ(t_listed(dev), 0);
	CHECK(!charged());
}

TEST(kills, "hundreds of processes killed at random moments leave nothing behind")
{
	int dev = t_dev(), storms = t_length(6, 60);
	unsigned int seed = seed_of_run();

	t_note("seed %u: %d storms of 50 kills", seed, storms);
	for (int i = 0; i < storms && !t_failed(); i++) {
		storm(&seed, 50);
		check_empty(dev);
	}
}

int main(void)
{
	return t_main();
}
