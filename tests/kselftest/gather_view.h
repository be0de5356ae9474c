/* SPDX-License-Identifier: MIT */
/* Views whose words show which page of which region they are. */
#ifndef TMESH_TEST_GATHER_VIEW_H
#define TMESH_TEST_GATHER_VIEW_H

#include "t.h"

#define RW (PROT_READ | PROT_WRITE)
#define R_RW (R_READ | R_WRITE)
#define WORDS (PAGE / sizeof(__u64))

static int dev;

static inline int gather(const struct tmesh_extent *extents, __u32 count, __u32 rights)
{
	return t_gather(dev, extents, count, rights);
}

/* Make a view of a whole region. */
static inline int view_of(int handle, __u32 rights)
{
	struct tmesh_extent all = {.handle = handle, .bytes = t_info(handle).alloc_bytes};

	return gather(&all, 1, rights);
}

/* Return the value of a word of a region, which encodes its place. */
static inline __u64 word_at(__u64 region, __u64 page, __u64 word)
{
	return (region << 40 | page << 16 | word) * 0x9e3779b97f4a7c15ull;
}

static inline int filled(__u64 number, __u64 pages, __u32 flags)
{
	int h = REQUIRE_OK(t_create(dev, pages * PAGE, flags));
	__u64 *p = t_map(h, pages * PAGE, RW);

	REQUIRE(p != MAP_FAILED);
	for (__u64 i = 0; i < pages * WORDS; i++)
		p[i] = word_at(number, i / WORDS, i % WORDS);
	munmap(p, pages * PAGE);
	return h;
}

static inline bool shows(const __u64 *p, __u64 number, __u64 first, __u64 pages)
{
	for (__u64 i = 0; i < pages * WORDS; i++)
		if (p[i] != word_at(number, first + i / WORDS, i % WORDS))
			return false;
	return true;
}

static inline struct tmesh_holder holder(int h, __u32 index)
{
	struct tmesh_holder some[8] = {0};
	struct tmesh_holders q = {
		.size = sizeof(q),
		.entries = (__u64)(unsigned long)some,
		.entry_bytes = sizeof(some[0]),
		.count = ARRAY_SIZE(some),
	};

	REQUIRE_OK(ioctl(h, TMESH_HOLDERS, &q));
	REQUIRE(index < q.count);
	return some[index];
}

/* Wait until a region has @gathers views. A work finishes a revocation a moment later. */
static inline bool comes_to(int h, __u32 gathers)
{
	for (int i = 0; i < 12000 && t_info(h).gathers != gathers; i++)
		usleep(10000);
	return CHECK_EQ(t_info(h).gathers, gathers);
}

#endif /* TMESH_TEST_GATHER_VIEW_H */
