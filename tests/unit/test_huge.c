// SPDX-License-Identifier: MIT
/*
 * Huge pages of memfds without root's setting: made by MADV_COLLAPSE, given up where that fails or
 * is slow, the same for all who map the memory. On a kernel or a machine that makes none these
 * tests are skipped.
 */
#include <time.h>

#include "memfd.h"
#include "tensor_internal.h"
#include "unit.h"

#define MIB ((size_t)1 << 20)

static size_t collapses, fail_from, slow_from, unaligned, longest;

static void burn(long ns)
{
	struct timespec begin, now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < ns);
}

/* In place of the C library's. */
int madvise(void *addr, size_t length, int advice)
{
	if (advice == MADV_POPULATE_WRITE) {
		unaligned += (uintptr_t)addr % 4096 != 0;
		longest = length > longest ? length : longest;
	}
	if (advice == 25) {
		collapses++;
		if (fail_from && collapses >= fail_from) {
			errno = ENOMEM;
			return -1;
		}
		if (slow_from && collapses >= slow_from)
			burn(900 * 1000 * 1000);
	}
	return (int)syscall(SYS_madvise, addr, length, advice);
}

static int make(void **state)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts),
				      .backend = TMESH_BACKEND_MEMFD,
				      .region_pool_bytes = TMESH_NO_REGION_POOL};

	collapses = fail_from = slow_from = longest = 0;
	return tmesh_ctx_open(&opts, (struct tmesh_ctx **)state, NULL);
}

static int unmake(void **state)
{
	tmesh_ctx_unref(*state);
	return 0;
}

static struct tmesh_region *filled(struct tmesh_ctx *ctx, size_t bytes)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_UNINITIALIZED};
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(ctx, bytes, &opts, &region, err));
	return region;
}

static unsigned char *pattern(size_t bytes)
{
	unsigned char *data = malloc(bytes);

	for (size_t i = 0; i < bytes; i++)
		data[i] = (unsigned char)(i * 7 + i / 4096);
	return data;
}

/* Write it, seal it, and look at all bytes through a second context's mapping, which is returned.
 */
static struct tmesh_region *sealed_copy(struct tmesh_region *region, const unsigned char *data,
					size_t bytes, void **addr)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *other;
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_region_write(region, 0, data, bytes, err));
	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &other, err));
	tmesh_ctx_unref(ctx);
	assert_ok(tmesh_region_map(other, TMESH_READ, addr, err));
	assert_memory_equal(*addr, data, bytes);
	return other;
}

static void let_go(struct tmesh_region *region, struct tmesh_region *other, unsigned char *data)
{
	tmesh_region_unref(other);
	tmesh_region_unref(region);
	free(data);
}

UNIT_ADD(test_filled, make, unmake)
{
	struct tmesh_region *region = filled(*state, 8 * MIB), *other;
	unsigned char *data = pattern(8 * MIB);
	void *addr;

	other = sealed_copy(region, data, 8 * MIB, &addr);
	assert_int_equal(collapses, 1);
	assert_int_equal((uintptr_t)addr % (2 * MIB), 0);
	assert_int_equal(tmesh_huge_mapped(addr), 8 * MIB);
	let_go(region, other, data);
}

static uint64_t info_huge(struct tmesh_region *region)
{
	struct tmesh_region_info info = {.size = sizeof(info)};

	assert_ok(tmesh_region_info(region, &info, err));
	return info.huge_bytes;
}

static size_t file_bytes(struct tmesh_region *region)
{
	struct stat st;

	assert_int_equal(fstat(tmesh_region_fd(region), &st), 0);
	return (size_t)st.st_blocks * 512;
}

/* A fourth of the machine's memory is more than is taken at once: it gets its pages as it is
 * written. A small write far away takes a small one. */
UNIT_ADD(test_large, make, unmake)
{
	size_t bytes = (size_t)sysconf(_SC_PHYS_PAGES) * 4096 / 4 / (2 * MIB) * (2 * MIB);
	struct tmesh_region *region;
	void *addr;

	bytes = bytes > 258 * MIB ? bytes : 258 * MIB;
	region = filled(*state, bytes);
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	assert_int_equal(collapses, 0);
	assert_ok(tmesh_region_write(region, 5 * MIB, "text", 4, err));
	assert_int_equal(collapses, 0);
	assert_ok(tmesh_region_write(region, 1 * MIB, "text", 4, err));
	assert_int_equal(collapses, 0);
	assert_ok(tmesh_region_write(region, 0, "text", 4, err));
	assert_int_equal(collapses, 1);
	assert_int_equal(tmesh_huge_mapped(addr), 2 * MIB);
	assert_string_equal((char *)addr + 5 * MIB, "text");
	tmesh_region_unref(region);
}

/* Zeros have huge pages from their first mapping for writing on. Where these cannot be had, nothing
 * is taken that is never written. */
UNIT_ADD(test_zeros, make, unmake)
{
	struct tmesh_region *region = new_region(*state, 15 * MIB);
	void *addr;

	assert_int_equal(file_bytes(region), 0);
	assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
	assert_int_equal(collapses, 0);
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	assert_int_equal(info_huge(region), 16 * MIB);
	assert_int_equal(ctx_stats(*state).huge_bytes, 16 * MIB);
	for (size_t i = 0; i < 15 * MIB; i += 4096)
		assert_int_equal(((char *)addr)[i], 0);
	assert_int_equal(tmesh_huge_mapped(addr), 16 * MIB);
	tmesh_region_unref(region);

	fail_from = collapses + 1;
	assert_ok(tmesh_region_create(*state, 15 * MIB, NULL, &region, err));
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	assert_int_equal(collapses, fail_from);
	assert_in_range(file_bytes(region), 0, 64 << 10);
	assert_int_equal(info_huge(region), 0);
	assert_int_equal(ctx_stats(*state).huge_given_up, 1);
	strcpy((char *)addr + 9 * MIB, "text");
	tmesh_region_unref(region);
}

/* An arena's memory is taken with its first tensor: no small one waits for a huge page later. */
UNIT_ADD(test_arena, make, unmake)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts)};
	const int64_t shape[] = {3 << 18};
	struct tmesh_tensor *tensors[4];
	struct tmesh_arena *arena;
	void *addr;

	assert_ok(tmesh_arena_create(*state, 8 * MIB, NULL, &arena, err));
	opts.arena = arena;
	for (size_t i = 0; i < 4; i++) {
		struct tmesh_region *region;

		assert_ok(tmesh_tensor_create(*state, TMESH_UINT8, 1, shape, &opts, &tensors[i],
					      err));
		region = tmesh_tensor_region(tensors[i]);
		assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
		assert_int_equal(info_huge(region), 8 * MIB);
		assert_int_equal(collapses, 1);
	}
	for (size_t i = 0; i < 4; i++)
		tmesh_tensor_unref(tensors[i]);
	tmesh_arena_unref(arena);
}

/* Elements that are gathered from a strided array go into huge pages, too. */
UNIT_ADD(test_strided, make, unmake)
{
	struct tmesh_layout layout = {
		.dtype = TMESH_FLOAT32, .ndim = 2, .shape = {2048, 1024}, .strides = {1, 2048}};
	float *data = malloc(8 * MIB), *copy;
	struct tmesh_region *region;
	void *addr;

	for (size_t i = 0; i < 2 * MIB; i++)
		data[i] = (float)i;
	region = filled(*state, 8 * MIB);
	assert_ok(tmesh_region_pack(region, 0, data, &layout, 8 * MIB, err));
	assert_int_equal(info_huge(region), 8 * MIB);
	assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
	copy = addr;
	assert_int_equal((int)copy[1025], 1 + 2048);
	tmesh_region_unref(region);
	free(data);
}

/* No thread waits for all pages of a region: they are asked for in pieces. */
UNIT_ADD(test_pieces, make, unmake)
{
	struct tmesh_region *region = filled(*state, 48 * MIB);
	void *addr;

	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	assert_int_equal(longest, 4096);
	tmesh_region_unref(region);
	fail_from = 1;
	region = filled(*state, 48 * MIB);
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	assert_int_equal(longest, 4 * MIB);
	tmesh_region_unref(region);
}

/* A process that looks at others' regions sees their huge pages, and takes no memory by that. */
UNIT_ADD(test_seen, make, unmake)
{
	struct tmesh_region *huge = filled(*state, 8 * MIB), *holes;
	struct tmesh_region_info *infos;
	unsigned char *data = pattern(8 * MIB);
	size_t count, found = 0;

	assert_ok(tmesh_region_write(huge, 0, data, 8 * MIB, err));
	assert_ok(tmesh_region_seal(huge, err));
	assert_ok(tmesh_region_create(*state, 8 * MIB, NULL, &holes, err));
	assert_ok(tmesh_list(*state, &infos, &count, err));
	for (size_t i = 0; i < count; i++) {
		if (infos[i].id == tmesh_region_id(huge))
			assert_int_equal(infos[i].huge_bytes, 8 * MIB);
		else if (infos[i].id == tmesh_region_id(holes))
			assert_int_equal(infos[i].huge_bytes, 0);
		else
			continue;
		found++;
	}
	assert_int_equal(found, 2);
	assert_int_equal(file_bytes(holes), 0);
	free(infos);
	tmesh_region_unref(holes);
	tmesh_region_unref(huge);
	free(data);
}

/* A holder may give a part of a huge page back: the rest of it keeps its bytes. */
UNIT_ADD(test_holes, make, unmake)
{
	struct tmesh_region *region = filled(*state, 4 * MIB);
	unsigned char *data = pattern(4 * MIB), *bytes;
	void *addr;

	assert_ok(tmesh_region_write(region, 0, data, 4 * MIB, err));
	assert_int_equal(fallocate(tmesh_region_fd(region),
				   FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MIB, 8192),
			 0);
	memset(data + MIB, 0, 8192);
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	assert_memory_equal(addr, data, 4 * MIB);
	bytes = addr;
	bytes[MIB] = data[MIB] = 5;
	assert_ok(tmesh_region_write(region, MIB + 4096, "text", 4, err));
	memcpy(data + MIB + 4096, "text", 4);
	assert_memory_equal(addr, data, 4 * MIB);
	assert_ok(tmesh_region_seal(region, err));
	assert_int_equal(fallocate(tmesh_region_fd(region),
				   FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MIB, 8192),
			 -1);
	assert_memory_equal(addr, data, 4 * MIB);
	tmesh_region_unref(region);
	free(data);
}

/* A second handle that may write goes on where the first one ended. */
UNIT_ADD(test_derived, make, unmake)
{
	struct tmesh_region *region = filled(*state, 4 * MIB), *derived;
	unsigned char *data = pattern(4 * MIB);
	void *addr;

	assert_ok(tmesh_region_write(region, 0, data, 2 * MIB, err));
	assert_ok(tmesh_region_derive(region, TMESH_READ | TMESH_WRITE, &derived, err));
	assert_int_equal(info_huge(derived), 2 * MIB);
	longest = 0;
	assert_ok(tmesh_region_write(derived, 0, data, 4 * MIB, err));
	assert_int_equal(longest, 4096);
	assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
	assert_memory_equal(addr, data, 4 * MIB);
	tmesh_region_unref(derived);
	tmesh_region_unref(region);
	free(data);
}

/* Each huge page counts once: also one that a later write touches again, or one that another handle
 * took. */
UNIT_ADD(test_counted_once, make, unmake)
{
	struct tmesh_region *region = filled(*state, 16 * MIB), *derived;
	unsigned char *data = pattern(8 * MIB);

	assert_ok(tmesh_region_write(region, 6 * MIB, data, 4 * MIB, err));
	assert_int_equal(info_huge(region), 4 * MIB);
	assert_ok(tmesh_region_write(region, 0, data, 8 * MIB, err));
	assert_int_equal(info_huge(region), 10 * MIB);
	assert_int_equal(ctx_stats(*state).huge_bytes, 10 * MIB);
	assert_ok(tmesh_region_derive(region, TMESH_READ | TMESH_WRITE, &derived, err));
	assert_ok(tmesh_region_write(derived, 0, data, 8 * MIB, err));
	assert_int_equal(info_huge(derived), 10 * MIB);
	assert_int_equal(ctx_stats(*state).huge_bytes, 10 * MIB);
	tmesh_region_unref(derived);
	tmesh_region_unref(region);
	free(data);
}

UNIT_ADD(test_populate, make, unmake)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_TRY_HUGE};
	struct tmesh_region *region;
	void *addr;

	assert_ok(tmesh_region_create(*state, 6 * MIB, &opts, &region, err));
	assert_ok(tmesh_region_populate(region, 2 * MIB + 1, 1, err));
	assert_int_equal(collapses, 1);
	assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
	assert_int_equal(collapses, 1);
	assert_int_equal(tmesh_huge_mapped(addr), 2 * MIB);
	assert_ok(tmesh_region_populate(region, 0, 0, err));
	assert_ok(tmesh_region_populate(region, 0, 6 * MIB, err));
	assert_int_equal(tmesh_huge_mapped(addr), 6 * MIB);
	/* All of it has its pages: nothing is asked of the kernel any more. */
	collapses = 0;
	assert_ok(tmesh_region_populate(region, 0, 6 * MIB, err));
	assert_int_equal(collapses, 0);
	assert_refused(tmesh_region_populate(region, 1, 6 * MIB, err), -EINVAL, "bytes");
	assert_refused(tmesh_region_populate(region, UINT64_MAX, 2, err), -EINVAL, "bytes");
	assert_ok(tmesh_region_seal(region, err));
	assert_refused(tmesh_region_populate(region, 0, 1, err), -EPERM, "sealed");
	tmesh_region_unref(region);
}

/* Where a page cannot be made, or slowly, the rest has small pages; the bytes are the same. */
UNIT_ADD(test_given_up, make, unmake)
{
	const size_t bytes = 96 * MIB;
	unsigned char *data = pattern(bytes);
	struct tmesh_region *region, *other;
	void *addr;

	for (int slow = 0; slow < 2; slow++) {
		collapses = 0;
		fail_from = slow ? 0 : 2;
		slow_from = slow ? 2 : 0;
		region = filled(*state, bytes);
		other = sealed_copy(region, data, bytes, &addr);
		/* 32 MiB at a time: the third part is not tried. */
		assert_int_equal(collapses, 2);
		assert_int_equal(tmesh_huge_mapped(addr), slow ? 64 * MIB : 32 * MIB);
		assert_int_equal(info_huge(region), slow ? 64 * MIB : 32 * MIB);
		assert_int_equal(ctx_stats(*state).huge_given_up, slow + 1);
		assert_int_equal(ctx_stats(*state).huge_bytes, slow ? 96 * MIB : 32 * MIB);
		tmesh_region_unref(other);
		tmesh_region_unref(region);
	}
	free(data);
}

/* A write that overlaps the last one, in small pages: the kernel takes pages from a whole page on.
 */
UNIT_ADD(test_overlap, make, unmake)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_TRY_HUGE};
	unsigned char *data = pattern(16384);
	struct tmesh_region *region;

	fail_from = 1;
	unaligned = 0;
	assert_ok(tmesh_region_create(*state, 4 * MIB, &opts, &region, err));
	assert_ok(tmesh_region_write(region, 0, data, 4100, err));
	assert_ok(tmesh_region_write(region, 4000, data, 9000, err));
	assert_int_equal(unaligned, 0);
	tmesh_region_unref(region);
	free(data);
}

/* No more than an eighth of what was asked for is taken beyond it. */
UNIT_ADD(test_memory_taken, make, unmake)
{
	static const size_t sizes[] = {2 * MIB, 7 * MIB, 15 * MIB, 16 * MIB + 4096};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct tmesh_region *region = filled(*state, sizes[i]);
		unsigned char *data = pattern(sizes[i]);

		assert_ok(tmesh_region_write(region, 0, data, sizes[i], err));
		assert_in_range(file_bytes(region), sizes[i], sizes[i] + sizes[i] / 8);
		tmesh_region_unref(region);
		free(data);
	}
}

static size_t anonymous_kib(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	char line[256];
	size_t kib = 0;

	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "Anonymous: %zu kB", &kib) == 1)
			break;
	fclose(file);
	return kib;
}

/* A write to a private view of a huge page copies one small page. */
UNIT_ADD(test_private, make, unmake)
{
	struct tmesh_region *region = filled(*state, 8 * MIB), *other, *view;
	unsigned char *data = pattern(8 * MIB), *bytes;
	size_t before;
	void *addr;

	other = sealed_copy(region, data, 8 * MIB, &addr);
	assert_ok(tmesh_region_private(region, &view, err));
	assert_ok(tmesh_region_map(view, TMESH_READ | TMESH_WRITE, (void **)&bytes, err));
	assert_memory_equal(bytes, data, 8 * MIB);
	before = anonymous_kib();
	bytes[5 * MIB] ^= 1;
	assert_true(anonymous_kib() - before < 64);
	assert_int_equal(bytes[5 * MIB], data[5 * MIB] ^ 1);
	assert_int_equal(bytes[5 * MIB + 4096], data[5 * MIB + 4096]);
	assert_memory_equal(addr, data, 8 * MIB);
	tmesh_region_unref(view);
	let_go(region, other, data);
}

UNIT_ADD(test_fork, make, unmake)
{
	struct tmesh_region *region = filled(*state, 4 * MIB), *other;
	unsigned char *data = pattern(4 * MIB);
	void *addr;
	pid_t pid;

	other = sealed_copy(region, data, 4 * MIB, &addr);
	pid = fork();
	if (!pid)
		_exit(memcmp(addr, data, 4 * MIB) ? 1 : 0);
	join_child(pid);
	let_go(region, other, data);
}

/* Memory from elsewhere is mapped where its huge pages fit. */
UNIT_ADD(test_foreign, make, unmake)
{
	int fd = memfd_create("elsewhere", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct tmesh_region *region;
	void *addr;

	assert_int_equal(ftruncate(fd, 4 * MIB + 4096), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	assert_ok(tmesh_region_from_memfd(*state, fd, 0, NULL, &region, err));
	assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
	assert_int_equal((uintptr_t)addr % (2 * MIB), 0);
	assert_int_equal(((char *)addr)[4 * MIB + 4095], 0);
	tmesh_region_unref(region);
	close(fd);
}

/* A process that has huge pages switched off gets small ones, and the reason. */
UNIT_ADD(test_switched_off, make, unmake)
{
	pid_t pid = fork();

	if (!pid) {
		const char *why;

		prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
		_exit(tmesh_huge_way(&why) != TMESH_HUGE_NO || !strstr(why, "PR_SET_THP_DISABLE"));
	}
	join_child(pid);
}

static bool collapse_works(void)
{
	int fd = memfd_create("probe", MFD_CLOEXEC);
	const char *why;
	void *addr;
	bool works;

	if (ftruncate(fd, 2 * MIB))
		return false;
	addr = tmesh_huge_map(fd, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED);
	if (addr == MAP_FAILED)
		return false;
	works = tmesh_huge_way(&why) == TMESH_HUGE_COLLAPSE &&
		tmesh_huge_populate(addr, 2 * MIB, 0) == 2 * MIB;
	munmap(addr, 2 * MIB);
	close(fd);
	return works;
}

int main(void)
{
	if (!collapse_works())
		return UNIT_SKIP_ALL("MADV_COLLAPSE makes no huge pages of shared memory here");
	return UNIT_RUN("huge pages", NULL, NULL);
}
