// SPDX-License-Identifier: MIT
/*
 * The rules that all calls share: sizes, flags, padding, pointers, kinds of file. Each rule is
 * tried on every call of the table, with a new region. A refused call must change nothing: it
 * leaves no descriptor and charges nothing.
 */
#include "abi_calls.h"

/* Structures only grow: published fields keep their offsets. */
#define PUBLISHED(type, last, bytes)                                                              \
	_Static_assert(offsetof(struct type, last) + sizeof(((struct type *)0)->last) == (bytes), \
		       #type)

PUBLISHED(tmesh_caps_query, used_regions, 80);
PUBLISHED(tmesh_create, id, 112);
PUBLISHED(tmesh_create_memfd, id, 112);
PUBLISHED(tmesh_open, desc_bytes, 64);
PUBLISHED(tmesh_derive, fd, 16);
PUBLISHED(tmesh_token, token, 32);
PUBLISHED(tmesh_info, label, 168);
PUBLISHED(tmesh_list, pad, 40);
PUBLISHED(tmesh_holder, comm, 72);
PUBLISHED(tmesh_holders, pad, 40);
PUBLISHED(tmesh_seal, flags, 8);
PUBLISHED(tmesh_export, pad, 32);
PUBLISHED(tmesh_desc, pad, 32);
PUBLISHED(tmesh_revoke, pad, 32);
PUBLISHED(tmesh_create_user, id, 128);
PUBLISHED(tmesh_import, id, 120);
PUBLISHED(tmesh_opaque, pad, 16);
PUBLISHED(tmesh_extent, bytes, 24);
PUBLISHED(tmesh_gather, id, 120);
PUBLISHED(tmesh_signal, value, 16);
PUBLISHED(tmesh_wait, timeout_ns, 24);
PUBLISHED(tmesh_policy, flags, 8);
PUBLISHED(tmesh_lease, fd, 24);
PUBLISHED(tmesh_keep, id, 112);
PUBLISHED(tmesh_file, path, 32);
PUBLISHED(tmesh_kept_open, id, 104);
PUBLISHED(tmesh_kept, cgroup_id, 144);
PUBLISHED(tmesh_kept_list, pad, 40);
PUBLISHED(tmesh_kept_drop, id, 80);
PUBLISHED(tmesh_renew, flags, 8);
PUBLISHED(tmesh_kept_files, id, 120);

TEST(exact_size, "the published size is accepted by every call")
{
	FOR_EACH_CALL(c) {
		set_up();
		union args a = valid(c);

		accepted(c, &a);
		tear_down();
	}
}

TEST(short_size, "size 0 and sizes below the published one give EINVAL")
{
	set_up();
	FOR_EACH_CALL(c) {
		for (unsigned int bytes = 0; bytes < c->bytes; bytes += 4) {
			union args a = valid(c);

			a.size = bytes;
			refused(c, file_for(c), &a, EINVAL);
		}
		union args a = valid(c);

		a.size = c->bytes - 1;
		refused(c, file_for(c), &a, EINVAL);
	}
	tear_down();
}

TEST(longer_zero, "a longer structure with a zero tail is accepted, its tail kept")
{
	FOR_EACH_CALL(c) {
		set_up();
		union args a = valid(c);

		a.size = c->known + TAIL;
		memset(a.raw + c->known + TAIL, 0x5a, 8);
		accepted(c, &a);
		for (int i = 0; i < TAIL + 8; i++)
			CHECK_EQ(a.raw[c->known + i], i < TAIL ? 0 : 0x5a);
		tear_down();
	}
}

TEST(longer_used, "a longer structure with anything in its tail gives E2BIG")
{
	set_up();
	FOR_EACH_CALL(c) {
		for (int i = 0; i < TAIL; i++) {
			union args a = valid(c);

			a.size = c->known + TAIL;
			a.raw[c->known + i] = 1;
			refused(c, file_for(c), &a, E2BIG);
		}
	}
	tear_down();
}

TEST(long_size, "a structure longer than a page gives E2BIG, whatever is in its tail")
{
	static union {
		union args a;
		char raw[2 * PAGE];
	} longer;

	set_up();
	FOR_EACH_CALL(c) {
		union args a = valid(c);
		struct before was = look();

		memset(&longer, 0, sizeof(longer));
		memcpy(&longer, &a, c->known);
		longer.a.size = PAGE + 8;
		if (!CHECK_ERR(ioctl(file_for(c), c->nr, &longer), E2BIG))
			t_note("%s", c->name);
		same(c, was);
	}
	tear_down();
}

TEST(absurd_size, "a size beyond all memory is refused")
{
	set_up();
	FOR_EACH_CALL(c) {
		union args a = valid(c);
		struct before was = look();

		a.size = ~0u;
		CHECK_EQ(ioctl(file_for(c), c->nr, &a), -1);
		if (!CHECK(errno == E2BIG || errno == EFAULT))
			t_note("%s: errno %d", c->name, errno);
		same(c, was);
	}
	tear_down();
}

TEST(unknown_flags, "each unknown flag gives EOPNOTSUPP")
{
	set_up();
	FOR_EACH_CALL(c) {
		for (int bit = 0; bit < 32; bit++) {
			union args a = valid(c);

			if (c->flags & (1u << bit))
				continue;
			a.head.flags = 1u << bit;
			refused(c, file_for(c), &a, EOPNOTSUPP);
		}
	}
	tear_down();
}

TEST(unknown_rights, "each unknown right gives EOPNOTSUPP")
{
	set_up();
	FOR_EACH_CALL(c) {
		for (int bit = 3; c->rights && bit < 32; bit++) {
			union args a = valid(c);

			*word(&a, c->rights) |= 1u << bit;
			refused(c, file_for(c), &a, EOPNOTSUPP);
		}
	}
	tear_down();
}

TEST(padding, "padding that is not zero gives EINVAL")
{
	set_up();
	FOR_EACH_CALL(c) {
		for (int bit = 0; c->pad && bit < 32; bit += 31) {
			union args a = valid(c);

			*word(&a, c->pad) = 1u << bit;
			refused(c, file_for(c), &a, EINVAL);
		}
	}
	tear_down();
}

/* Map two pages, the second without access. Return the first. */
static char *edge(void)
{
	char *page =
		mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(page != MAP_FAILED);
	REQUIRE_OK(mprotect(page + PAGE, PAGE, PROT_NONE));
	return page + PAGE;
}

TEST(bad_pointers, "pointers to nothing, and across the end of memory, give EFAULT")
{
	char *end = edge();

	set_up();
	FOR_EACH_CALL(c) {
		union args a = valid(c);
		char *cut = end - c->bytes + 4;

		refused(c, file_for(c), NULL, EFAULT);
		refused(c, file_for(c), end, EFAULT);
		refused(c, file_for(c), (void *)-4096l, EFAULT);
		memcpy(cut, &a, c->bytes - 4);
		refused(c, file_for(c), cut, EFAULT);
	}
	tear_down();
}

/* If the result cannot be written, the call must leave nothing behind. */
TEST(read_only_result, "a result that cannot be written back leaves nothing behind")
{
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(page != MAP_FAILED);
	FOR_EACH_CALL(c) {
		if (c->nr == TMESH_SEAL || c->nr == TMESH_DESC_SET || c->nr == TMESH_REVOKE ||
		    c->nr == TMESH_SIGNAL || c->nr == TMESH_POLICY || c->nr == TMESH_KEPT_DROP ||
		    c->nr == TMESH_RENEW)
			continue; /* no result, or an answer that is written last */
		set_up();
		union args a = valid(c);

		REQUIRE_OK(mprotect(page, PAGE, PROT_READ | PROT_WRITE));
		memcpy(page, &a, sizeof(a));
		REQUIRE_OK(mprotect(page, PAGE, PROT_READ));
		refused(c, file_for(c), page, EFAULT);
		tear_down();
	}
}

/*
 * While the kernel reads arguments or writes results, it must not hold a lock that a fault there
 * needs.
 */
TEST(own_memory, "arguments and results may lie in the region itself, not yet mapped")
{
	FOR_EACH_CALL(c) {
		if (c->nr == TMESH_SEAL)
			continue; /* a writable mapping stops it */
		set_up();
		union args a = valid(c), *in_region;

		for (int i = 0; i < 2; i++) {
			char *p = t_map(stage->handle, BYTES, PROT_READ | PROT_WRITE);

			REQUIRE(p != MAP_FAILED);
			in_region = (union args *)(p + i * 8 * PAGE);
			if (c->nr == TMESH_LIST || c->nr == TMESH_HOLDERS ||
			    c->nr == TMESH_KEPT_LIST)
				a.list.entries = ADDRESS(p + 12 * PAGE - 8);
			if (c->nr == TMESH_DESC_SET || c->nr == TMESH_DESC_GET)
				a.desc.data = ADDRESS(p + 12 * PAGE - 8);
			memcpy(in_region, &a, sizeof(a));
			REQUIRE_OK(madvise(p, BYTES, MADV_DONTNEED));
			if (c->nr != TMESH_REVOKE) {
				accepted(c, in_region);
			} else {
				/* The call may have taken away the memory for its answer. */
				CHECK(!ioctl(stage->handle, c->nr, in_region) || errno == EFAULT);
				CHECK_EQ(t_info(stage->handle).state, TMESH_STATE_REVOKED);
			}
			munmap(p, BYTES);
			if (c->nr == TMESH_REVOKE || c->nr == TMESH_SIGNAL || c->nr == TMESH_KEEP ||
			    c->nr == TMESH_KEPT_DROP)
				break; /* the same does not succeed twice */
			if (c->nr == TMESH_REVOKE || c->nr == TMESH_LEASE)
				break; /* once only */
		}
		tear_down();
	}
}

TEST(bad_arrays, "arrays and texts at bad addresses give EFAULT")
{
	set_up();
	FOR_EACH_CALL(c) {
		union args a = valid(c);

		if (c->nr == TMESH_LIST)
			a.list.entries = ADDRESS(-4096l);
		else if (c->nr == TMESH_HOLDERS)
			a.holders.entries = ADDRESS(-4096l);
		else if (c->nr == TMESH_DESC_SET)
			a.desc.data = ADDRESS(-4096l);
		else if (c->nr == TMESH_GATHER)
			a.gather.extents = ADDRESS(-4096l);
		else if (c->nr == TMESH_KEEP)
			a.keep.handles = ADDRESS(-4096l);
		else if (c->nr == TMESH_KEPT_OPEN)
			a.kept_open.fds = ADDRESS(-4096l);
		else if (c->nr == TMESH_KEPT_LIST)
			a.kept_list.entries = ADDRESS(-4096l);
		else if (c->nr == TMESH_KEPT_FILES)
			a.kept_files.files = ADDRESS(-4096l);
		else
			continue;
		refused(c, file_for(c), &a, EFAULT);
	}
	tear_down();
}

/* Try a stride on each call that writes entries. */
static void bad_entries(unsigned int infos, unsigned int holders, unsigned int kept)
{
	set_up();
	FOR_EACH_CALL(c) {
		union args a = valid(c);

		if (c->nr == TMESH_LIST)
			a.list.entry_bytes = infos;
		else if (c->nr == TMESH_HOLDERS)
			a.holders.entry_bytes = holders;
		else if (c->nr == TMESH_KEPT_LIST)
			a.kept_list.entry_bytes = kept;
		else
			continue;
		refused(c, file_for(c), &a, EINVAL);
	}
	tear_down();
}

TEST(short_entries, "entries smaller than the published ones give EINVAL")
{
	bad_entries(offsetof(struct tmesh_info, lease_ns) - 8,
		    offsetof(struct tmesh_holder, lease_ns) - 8, sizeof(struct tmesh_kept) - 8);
}

TEST(odd_entries, "so do entries that are no multiple of 8 bytes")
{
	for (unsigned int more = 1; more < 8; more++)
		bad_entries(sizeof(struct tmesh_info) + more, sizeof(struct tmesh_holder) + more,
			    sizeof(struct tmesh_kept) + more);
}

TEST(longer_entries, "longer entries are strided as asked, each with its own size")
{
	struct {
		struct tmesh_info info;
		__u64 more[4];
	} entries[2];
	struct tmesh_list l = {
		.size = sizeof(l),
		.entries = ADDRESS(entries),
		.entry_bytes = sizeof(entries[0]),
		.count = 2,
	};
	char *end = edge();

	set_up();
	l.cursor = stage->id - 1;
	memset(entries, 0x5a, sizeof(entries));
	REQUIRE_OK(ioctl(stage->dev, TMESH_LIST, &l));
	REQUIRE(l.count == 2);
	CHECK_EQ(entries[0].info.id, stage->id);
	CHECK_EQ(entries[1].info.id, t_info(stage->sealed).id);
	CHECK_EQ(l.cursor, entries[1].info.id);
	CHECK_EQ(entries[0].info.size, sizeof(struct tmesh_info));
	CHECK_EQ(entries[0].more[0] | entries[1].more[3], 0);
	/* There is no room for the zeros behind an entry, then for all of another. */
	l.cursor = stage->id - 1;
	l.count = 1;
	l.entries = ADDRESS(end - sizeof(struct tmesh_info));
	CHECK_ERR(ioctl(stage->dev, TMESH_LIST, &l), EFAULT);
	l.entries = ADDRESS(end - sizeof(entries[0]));
	CHECK_OK(ioctl(stage->dev, TMESH_LIST, &l));
	l.cursor = stage->id - 1;
	l.count = 2;
	CHECK_ERR(ioctl(stage->dev, TMESH_LIST, &l), EFAULT);
	/* There is no room for the last bytes of an entry. */
	l.cursor = stage->id - 1;
	l.count = 1;
	l.entry_bytes = sizeof(struct tmesh_info);
	l.entries = ADDRESS(end - sizeof(struct tmesh_info) + 8);
	CHECK_ERR(ioctl(stage->dev, TMESH_LIST, &l), EFAULT);
	tear_down();
}

/* Test whether a call is known on any of these kinds of file. */
static bool known_on(unsigned long nr, int kinds)
{
	FOR_EACH_CALL(c)
		if (c->nr == nr && c->on & kinds)
			return true;
	/* Its @id was added after the call, so TMESH_REVOKE by @id has no row of its own. */
	return nr == TMESH_REVOKE && kinds & DEVICE;
}

TEST(wrong_file, "the wrong kind of file gives ENOTTY, a closed one EBADF")
{
	int null = REQUIRE_OK(open("/dev/null", O_RDWR | O_CLOEXEC)), closed;

	FOR_EACH_CALL(c) {
		set_up();
		union args a = valid(c);

		if (!known_on(c->nr, DEVICE))
			refused(c, stage->dev, &a, ENOTTY);
		if (!known_on(c->nr, HANDLE))
			refused(c, stage->handle, &a, ENOTTY);
		refused(c, stage->dmabuf, &a, ENOTTY);
		refused(c, null, &a, ENOTTY);
		closed = REQUIRE_OK(dup(stage->handle));
		close(closed);
		refused(c, closed, &a, EBADF);
		tear_down();
	}
}

TEST(unknown_calls, "numbers and types that are no call give ENOTTY")
{
	union args a = {.size = 8};

	set_up();
	for (unsigned int nr = 0; nr < 0x100; nr++) {
		if (known_on(_IO(TMESH_IOC_MAGIC, nr), DEVICE | HANDLE))
			continue;
		CHECK_ERR(ioctl(stage->dev, _IO(TMESH_IOC_MAGIC, nr), &a), ENOTTY);
		CHECK_ERR(ioctl(stage->handle, _IO(TMESH_IOC_MAGIC, nr), &a), ENOTTY);
	}
	CHECK_ERR(ioctl(stage->dev, _IO(TMESH_IOC_MAGIC + 1, 1), &a), ENOTTY);
	CHECK_ERR(ioctl(stage->dev, _IOWR(TMESH_IOC_MAGIC, 1, struct tmesh_create), &a), ENOTTY);
	tear_down();
}

TEST(id_on_handle, "an id in a call on a handle gives EINVAL")
{
	FOR_EACH_CALL(c) {
		if (c->on != HANDLE || (c->nr != TMESH_INFO && c->nr != TMESH_HOLDERS &&
					c->nr != TMESH_DESC_GET && c->nr != TMESH_DESC_SET))
			continue;
		set_up();
		union args a = valid(c);

		a.info.id = stage->id; /* the same place in all of them */
		refused(c, stage->handle, &a, EINVAL);
		tear_down();
	}
}
_Static_assert(offsetof(struct tmesh_info, id) == offsetof(struct tmesh_holders, id) &&
		       offsetof(struct tmesh_info, id) == offsetof(struct tmesh_desc, id),
	       "id_on_handle");

TEST(unknown_id, "an id that is not there gives ENOENT")
{
	static const __u64 ids[] = {0, 1ull << 40, 1ull << 63, ~0ull};

	FOR_EACH_CALL(c) {
		if (c->on != DEVICE ||
		    (c->nr != TMESH_INFO && c->nr != TMESH_HOLDERS && c->nr != TMESH_DESC_GET))
			continue;
		set_up();
		for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
			union args a = valid(c);

			a.info.id = ids[i];
			refused(c, stage->dev, &a, ENOENT);
		}
		tear_down();
	}
}

TEST(caps, "CAPS tells what this kernel can do")
{
	struct tmesh_caps_query q;

	set_up();
	q = t_caps(stage->dev);
	CHECK_EQ(q.size, sizeof(q));
	CHECK_EQ(q.flags, 0);
	CHECK_EQ(q.abi_version, TMESH_ABI_VERSION);
	CHECK_EQ(q.page_bytes, PAGE);
	CHECK_EQ(q.features & (TMESH_FEATURE_PAGES | TMESH_FEATURE_MEMFD | TMESH_FEATURE_EXPORT |
			       TMESH_FEATURE_PIN | TMESH_FEATURE_REVOKE),
		 TMESH_FEATURE_PAGES | TMESH_FEATURE_MEMFD | TMESH_FEATURE_EXPORT |
			 TMESH_FEATURE_PIN | TMESH_FEATURE_REVOKE);
	CHECK_EQ(q.huge_page_bytes, q.features & TMESH_FEATURE_HUGE ? HUGE : 0);
	CHECK_EQ(t_has_huge(stage->dev), !access("/sys/kernel/mm/transparent_hugepage", F_OK));
	CHECK(q.max_bytes >= q.max_bytes_per_uid && q.max_bytes_per_uid > 0);
	CHECK(q.max_regions >= q.max_regions_per_uid && q.max_regions_per_uid > 0);
	CHECK(q.used_regions >= 1);
	CHECK(q.used_bytes >= BYTES);
	tear_down();
}
