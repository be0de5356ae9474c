// SPDX-License-Identifier: MIT
/*
 * Memory that the module has for a call while a page fault delays it: the caller is charged.
 */
#include "stall.h"

/* Make a call that stalls. Return what it is charged meanwhile. */
static __u64 stalled(struct stall_call *c, int dev, int fd, unsigned long cmd, void *arg,
		     const struct stall *stall)
{
	__u64 before = t_caps(dev).used_bytes;

	stall_begin(c, fd, cmd, arg);
	stall_await(stall);
	return t_caps(dev).used_bytes - before;
}

TEST(stalled_gather, "a view's list of extents is charged while its call waits")
{
	struct stall stall = stall_touch();
	struct tmesh_gather g = {
		.size = sizeof(g),
		.extents = (unsigned long)stall.page,
		.count = TMESH_GATHER_MAX,
		.rights = R_READ,
	};
	struct tmesh_gather second = g;
	int dev = t_dev();
	struct stall_call c;

	t_set_limit("max_bytes_per_uid", 32 * MB);
	CHECK_EQ(stalled(&c, dev, dev, TMESH_GATHER, &g, &stall), 24 * MB);
	/* It would be EFAULT if the call came to that. */
	second.extents = 0;
	CHECK_ERR(ioctl(dev, TMESH_GATHER, &second), EDQUOT);
	stall_end(&stall);
	CHECK_EQ(stall_answer(&c), EINVAL);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	CHECK_ERR(ioctl(dev, TMESH_GATHER, &second), EFAULT);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

#define SOURCES 512

TEST(gather_sources, "a view is charged for the list of pages that each source has given")
{
	struct tmesh_extent e[SOURCES];
	int dev = t_dev(), view;
	__u64 used;

	for (int i = 0; i < SOURCES; i++)
		e[i] = t_extent(REQUIRE_OK(t_create(dev, PAGE, TMESH_CREATE_NOHUGE)), 0, 1);
	used = t_caps(dev).used_bytes;
	/* Three pages for the extents, one for the sources, and one that the view keeps */
	t_set_limit("max_bytes_per_uid", used + 4 * PAGE);
	CHECK_ERR(t_gather(dev, e, SOURCES, R_READ), EDQUOT);
	CHECK_EQ(t_caps(dev).used_bytes, used);
	t_set_limit("max_bytes_per_uid", used + 256 * MB);
	CHECK_OK(view = t_gather(dev, e, SOURCES, R_READ));
	CHECK_EQ(t_caps(dev).used_bytes, used + PAGE);
	close(view);
	CHECK_EQ(t_caps(dev).used_bytes, used);
	/* A bit for each page: two pages for one source, of which the view keeps none */
	e[0] = t_extent(REQUIRE_OK(t_create(dev, 256 * MB, 0)), 0, 1);
	used = t_caps(dev).used_bytes;
	t_set_limit("max_bytes_per_uid", used + PAGE);
	CHECK_ERR(t_gather(dev, e, 1, R_READ), EDQUOT);
	t_set_limit("max_bytes_per_uid", used + 3 * PAGE);
	CHECK_OK(t_gather(dev, e, 1, R_READ));
	CHECK_EQ(t_caps(dev).used_bytes, used + PAGE);
}

#define FREE_ENTRIES 128
#define HOLDERS 200

TEST(stalled_holders, "a long list of holders is charged, and no owner needs one to revoke")
{
	struct tmesh_holder *entries =
		mmap(NULL, HOLDERS * sizeof(*entries), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct stall stall = stall_new();
	struct tmesh_holders h = {
		.size = sizeof(h),
		.entries = (unsigned long)entries,
		.entry_bytes = sizeof(*entries),
		.count = HOLDERS,
	};
	struct tmesh_revoke r = {
		.size = sizeof(r),
		.entries = (unsigned long)entries,
		.entry_bytes = sizeof(*entries),
		.count = HOLDERS,
	};
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, PAGE, 0)), pins[HOLDERS];
	__u64 used = t_caps(dev).used_bytes;
	struct stall_call c;

	REQUIRE(entries != MAP_FAILED);
	/* Only the first page of the array stalls. */
	stall.page = entries;
	stall_register(&stall, UFFDIO_REGISTER_MODE_MISSING);
	REQUIRE_OK(t_seal(fd));
	for (int i = 0; i < HOLDERS; i++)
		pins[i] = REQUIRE_OK(t_derive(fd, R_READ, TMESH_DERIVE_PIN));
	CHECK(stalled(&c, dev, fd, TMESH_HOLDERS, &h, &stall) >=
	      (HOLDERS - FREE_ENTRIES) * sizeof(*entries));
	stall_end(&stall);
	CHECK_EQ(stall_answer(&c), 0);
	CHECK_EQ(h.count, HOLDERS);
	CHECK_EQ(t_caps(dev).used_bytes, used);

	t_set_limit("max_bytes_per_uid", used);
	h.count = HOLDERS;
	CHECK_ERR(ioctl(fd, TMESH_HOLDERS, &h), EDQUOT);
	h.count = FREE_ENTRIES;
	CHECK_OK(ioctl(fd, TMESH_HOLDERS, &h));
	CHECK_EQ(h.count, FREE_ENTRIES);
	CHECK_EQ(h.total, HOLDERS + 1);
	CHECK_ERR(ioctl(fd, TMESH_REVOKE, &r), EBUSY);
	CHECK(r.count >= FREE_ENTRIES);
	CHECK_EQ(r.total, HOLDERS);
	for (int i = 0; i < HOLDERS; i++)
		close(pins[i]);
	for (int i = 0; i < HOLDERS; i++)
		pins[i] = REQUIRE_OK(t_derive(fd, R_READ, 0));
	r.count = HOLDERS;
	CHECK_OK(ioctl(fd, TMESH_REVOKE, &r));
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}
