// SPDX-License-Identifier: MIT
/*
 * The costs to create, hand over, look up and touch regions.
 */
#include "bench.h"
#include "t.h"

#define LARGE (256 * MB)
#define RW (PROT_READ | PROT_WRITE)

static int dev;

static double touch(unsigned char *p, size_t bytes)
{
	double from = t_now();

	for (size_t i = 0; i < bytes; i += PAGE)
		*(volatile unsigned char *)(p + i) = 1;
	return t_now() - from;
}

/* Measure the first touch through a new mapping. The memory exists already. */
static double touch_new_mapping(int fd, size_t bytes)
{
	unsigned char *p = t_map(fd, bytes, RW);
	double t;

	REQUIRE(p != MAP_FAILED);
	t = touch(p, bytes);
	munmap(p, bytes);
	return t;
}

static int populated_memfd(size_t bytes)
{
	int fd = REQUIRE_OK(memfd_create("bench", MFD_CLOEXEC));
	void *p;

	REQUIRE_OK(ftruncate(fd, bytes));
	p = mmap(NULL, bytes, RW, MAP_SHARED | MAP_POPULATE, fd, 0);
	REQUIRE(p != MAP_FAILED);
	munmap(p, bytes);
	return fd;
}

static int huge_region, small_region, memfd;
static unsigned char *bare;

static double touch_huge(void)
{
	return touch_new_mapping(huge_region, LARGE);
}

static double touch_bare(void)
{
	return touch(bare, LARGE);
}

static double touch_small(void)
{
	return touch_new_mapping(small_region, LARGE);
}

static double touch_memfd(void)
{
	return touch_new_mapping(memfd, LARGE);
}

static void bench_touch(void)
{
	bare = mmap(NULL, LARGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	REQUIRE(bare != MAP_FAILED);
	if (t_has_huge(dev)) {
		huge_region = REQUIRE_OK(t_create(dev, LARGE, TMESH_CREATE_HUGE));
		compare("touch 256 MiB of a huge region", touch_huge, "bare touch loop",
			touch_bare);
		close(huge_region);
	}
	munmap(bare, LARGE);
	small_region = REQUIRE_OK(t_create(dev, LARGE, TMESH_CREATE_NOHUGE));
	memfd = populated_memfd(LARGE);
	compare("touch 256 MiB of 4 KiB pages in batches", touch_small, "touch 256 MiB of a memfd",
		touch_memfd);
	close(small_region);
	close(memfd);
}

static double create_region(void)
{
	double from = t_now();
	int fd = REQUIRE_OK(t_create(dev, LARGE, 0));
	double t = t_now() - from;

	close(fd);
	return t;
}

static double create_memfd(void)
{
	double from = t_now();
	int fd = populated_memfd(LARGE);
	double t = t_now() - from;

	close(fd);
	return t;
}

/* Hand-over: the work of a consumer from the token or the descriptor to the first byte. */

static size_t handed_bytes;
static int handed_fd;
static __u8 handed_token[TMESH_TOKEN_BYTES];

static double map_first_byte(int fd)
{
	double from = t_now();
	unsigned char *p = t_map(fd, handed_bytes, PROT_READ);
	double t;

	REQUIRE(p != MAP_FAILED && !t_read(p));
	t = t_now() - from;
	munmap(p, handed_bytes);
	return t;
}

static double first_byte(void)
{
	return map_first_byte(handed_fd);
}

static double open_first_byte(void)
{
	double from = t_now();
	int fd = REQUIRE_OK(t_open(dev, handed_token, R_READ, 0));
	double t = t_now() - from;

	t += map_first_byte(fd);
	close(fd);
	return t;
}

static int small_one, large_one;
static __u8 small_token[TMESH_TOKEN_BYTES], large_token[TMESH_TOKEN_BYTES];

static double open_small(void)
{
	handed_bytes = MB;
	memcpy(handed_token, small_token, sizeof(handed_token));
	return open_first_byte();
}

static double open_large(void)
{
	handed_bytes = GB;
	memcpy(handed_token, large_token, sizeof(handed_token));
	return open_first_byte();
}

static void bench_hand_over(void)
{
	handed_bytes = MB;
	handed_fd = REQUIRE_OK(t_create(dev, MB, 0));
	REQUIRE_OK(t_token(handed_fd, R_READ, handed_token));
	compare("open by token, mmap, first byte", open_first_byte, "mmap, first byte", first_byte);
	close(handed_fd);

	small_one = REQUIRE_OK(t_create(dev, MB, 0));
	large_one = t_create(dev, GB, 0);
	if (large_one < 0) {
		printf("# no region of 1 GiB: %s\n", strerror(errno));
	} else {
		REQUIRE_OK(t_token(small_one, R_READ, small_token));
		REQUIRE_OK(t_token(large_one, R_READ, large_token));
		compare("hand-over of 1 GiB", open_large, "hand-over of 1 MiB", open_small);
		close(large_one);
	}
	close(small_one);
}

/* Look-up: the time of one open among few and among many regions. */

#define FEW 100
#define MANY 100000
#define OPENS 200
#define NR_OPEN "/proc/sys/fs/nr_open"

static int regions[MANY];

static double lookup(unsigned int *seed, const __u8 (*tokens)[TMESH_TOKEN_BYTES], int n)
{
	double from = t_now();

	for (int i = 0; i < OPENS; i++)
		close(REQUIRE_OK(t_open(dev, tokens[t_random(seed) % n], R_READ, 0)));
	return (t_now() - from) / OPENS;
}

static long used_kb(void)
{
	return t_meminfo("MemTotal") - t_meminfo("MemAvailable");
}

static void bench_many(void)
{
	static __u8 tokens[MANY][TMESH_TOKEN_BYTES];
	double few[ROUNDS], many[ROUNDS], x, y;
	unsigned int seed = 1;
	long before;
	int n = 0;

	/* Raise the limits above the bench's needs; they are restored below. */
	unsigned long long limit = t_limit("max_regions_per_uid"), all = t_limit("max_regions");
	struct rlimit files = {MANY + 1000, MANY + 1000};
	char nr_open[32];

	t_set_limit("max_regions_per_uid", 2 * MANY);
	t_set_limit("max_regions", 4 * MANY);
	REQUIRE(t_read_file(NR_OPEN, nr_open, sizeof(nr_open)));
	if (strtoul(nr_open, NULL, 10) < files.rlim_max)
		REQUIRE(t_write_file(NR_OPEN, "200000"));
	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
	for (; n < FEW; n++) {
		regions[n] = REQUIRE_OK(t_create(dev, PAGE, TMESH_CREATE_NOHUGE));
		REQUIRE_OK(t_token(regions[n], R_READ, tokens[n]));
	}
	for (int i = 0; i < ROUNDS; i++)
		few[i] = lookup(&seed, tokens, FEW);
	before = used_kb();
	for (; n < MANY; n++) {
		regions[n] = REQUIRE_OK(t_create(dev, PAGE, TMESH_CREATE_NOHUGE));
		REQUIRE_OK(t_token(regions[n], R_READ, tokens[n]));
	}
	report("memory of a region, its handle and its token, without pages",
	       (used_kb() - before) * 1024. / (MANY - FEW) - PAGE, "bytes");
	for (int i = 0; i < ROUNDS; i++)
		many[i] = lookup(&seed, tokens, MANY);
	x = median(many);
	y = median(few);
	report("open by token among 100,000", x * 1e6, "us");
	report("open by token among 100", y * 1e6, "us");
	report("open by token among 100,000 / open by token among 100", x / y, "ratio");
	while (n)
		close(regions[--n]);
	t_set_limit("max_regions_per_uid", limit);
	t_set_limit("max_regions", all);
	REQUIRE(t_write_file(NR_OPEN, nr_open));
}

/* Views: 16,384 pieces in a random order, against the same by single mappings. */

#define PIECES 16384
#define PIECE_PAGES 16
#define PIECES_BYTES (PIECES * PIECE_PAGES * PAGE)

static struct tmesh_extent pieces[PIECES];
static int pieces_memfd;
static const unsigned char *view_mapped, *region_mapped, *small_mapped;

static double gather_view(void)
{
	double from = t_now(), t;
	int fd = REQUIRE_OK(t_gather(dev, pieces, PIECES, R_READ));
	void *p = t_map(fd, PIECES_BYTES, PROT_READ);

	REQUIRE(p != MAP_FAILED);
	t = t_now() - from;
	munmap(p, PIECES_BYTES);
	close(fd);
	return t;
}

static double map_pieces(void)
{
	double from = t_now(), t;
	unsigned char *p = mmap(NULL, PIECES_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(p != MAP_FAILED);
	for (int i = 0; i < PIECES; i++)
		REQUIRE(mmap(p + i * PIECE_PAGES * PAGE, PIECE_PAGES * PAGE, PROT_READ,
			     MAP_SHARED | MAP_FIXED, pieces_memfd, pieces[i].offset) != MAP_FAILED);
	t = t_now() - from;
	munmap(p, PIECES_BYTES);
	return t;
}

/* Read every word. With one word for each cache line the look-up of pages would dominate. */
static double read_all(const unsigned char *p)
{
	const volatile __u64 *words = (const volatile __u64 *)p;
	double from = t_now();

	for (size_t i = 0; i < PIECES_BYTES / sizeof(*words); i++)
		words[i];
	return t_now() - from;
}

static double read_view(void)
{
	return read_all(view_mapped);
}

static double read_region(void)
{
	return read_all(region_mapped);
}

static double read_small(void)
{
	return read_all(small_mapped);
}

static const unsigned char *mapped_and_read(int fd)
{
	const unsigned char *p = t_map(fd, PIECES_BYTES, PROT_READ);

	REQUIRE(p != MAP_FAILED);
	read_all(p);
	return p;
}

static void bench_views(void)
{
	int region = REQUIRE_OK(t_create(dev, PIECES_BYTES, 0)), view, small;
	unsigned long long limit = t_limit("max_bytes_per_uid");

	for (int i = 0; i < PIECES; i++)
		pieces[i] = t_extent(region, i * 5003ull % PIECES * PIECE_PAGES, PIECE_PAGES);
	pieces_memfd = populated_memfd(PIECES_BYTES);
	compare("view of 16,384 extents of 64 KiB", gather_view, "mmap of 16,384 pieces of a memfd",
		map_pieces);
	close(pieces_memfd);

	view = REQUIRE_OK(t_gather(dev, pieces, PIECES, R_READ));
	view_mapped = mapped_and_read(view);
	region_mapped = mapped_and_read(region);
	compare("read 1 GiB of a view", read_view, "read 1 GiB of a region", read_region);
	munmap((void *)region_mapped, PIECES_BYTES);

	/*
	 * No 2 MiB of the view are one folio. This measures the part of the cost that is due to the
	 * view.
	 */
	t_set_limit("max_bytes_per_uid", 3ull * PIECES_BYTES);
	small = REQUIRE_OK(t_create(dev, PIECES_BYTES, TMESH_CREATE_NOHUGE));
	small_mapped = mapped_and_read(small);
	compare("read 1 GiB of a view, beside 4 KiB pages", read_view,
		"read 1 GiB of a region of 4 KiB pages", read_small);
	munmap((void *)small_mapped, PIECES_BYTES);
	close(small);
	t_set_limit("max_bytes_per_uid", limit);
	munmap((void *)view_mapped, PIECES_BYTES);
	close(view);
	close(region);
}

int main(void)
{
	t_catch_faults();
	dev = t_dev();
	bench_touch();
	compare("create 256 MiB", create_region, "memfd of 256 MiB, populated", create_memfd);
	bench_hand_over();
	bench_views();
	bench_many();
	return 0;
}
