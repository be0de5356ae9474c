// SPDX-License-Identifier: MIT
/*
 * The rules that all calls share: sizes, flags, padding, pointers, kinds of file. Each
 * rule is tried on every call of the table, on a region of its own, and a refused call
 * may change nothing: no descriptor and nothing charged.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "t.h"

/* Structures only grow: what was published stays where it was. */
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
PUBLISHED(tmesh_kept_open, id, 104);
PUBLISHED(tmesh_kept, cgroup_id, 144);
PUBLISHED(tmesh_kept_list, pad, 40);
PUBLISHED(tmesh_kept_drop, id, 80);

#define BYTES (64 * KB)
#define TAIL 24

/* What a call may need; made anew for each try. */
struct stage {
	int dev, handle, memfd, dmabuf, null, opaque, sealed, kept;
	int opened;
	__u64 kept_id;
	__u64 id;
	__u8 token[TMESH_TOKEN_BYTES];
	char text[16];
	struct tmesh_info infos[2];
	struct tmesh_holder holders[2];
	struct tmesh_kept kepts[2];
	char memory[PAGE] __attribute__((aligned(PAGE)));
	struct tmesh_extent extent;
};

static struct stage *stage;

static int opaque_region(void)
{
	struct tmesh_import i = {.size = sizeof(i), .source = stage->null};

	REQUIRE_OK(ioctl(stage->dev, TMESH_IMPORT, &i));
	return i.fd;
}

static int sealed_region(void)
{
	int fd = REQUIRE_OK(t_create(stage->dev, PAGE, 0));

	REQUIRE_OK(t_seal(fd));
	return fd;
}

static void drop(const char *name)
{
	struct tmesh_kept_drop d = {.size = sizeof(d)};

	strcpy(d.name, name);
	ioctl(stage->dev, TMESH_KEPT_DROP, &d);
}

static void set_up_kept(void)
{
	struct tmesh_keep k = {
		.size = sizeof(k),
		.name = "kept",
		.handles = (__u64)(unsigned long)&stage->kept,
		.count = 1,
	};

	stage->sealed = sealed_region();
	stage->kept = sealed_region();
	stage->opened = -1;
	REQUIRE_OK(ioctl(stage->dev, TMESH_KEEP, &k));
	stage->kept_id = k.id;
}

static void set_up(void)
{
	stage = mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		     0);
	REQUIRE(stage != MAP_FAILED);
	stage->dev = t_dev();
	stage->null = REQUIRE_OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	stage->opaque = opaque_region();
	stage->handle = REQUIRE_OK(t_create(stage->dev, BYTES, 0));
	stage->id = t_info(stage->handle).id;
	REQUIRE_OK(t_token(stage->handle, R_READ, stage->token));
	stage->memfd = REQUIRE_OK(memfd_create("abi", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	REQUIRE_OK(ftruncate(stage->memfd, BYTES));
	REQUIRE_OK(fcntl(stage->memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	stage->dmabuf = REQUIRE_OK(t_export(stage->handle, 0, 0, 0));
	set_up_kept();
}

static void tear_down(void)
{
	drop("kept");
	drop("new");
	if (stage->opened >= 0)
		close(stage->opened);
	close(stage->kept);
	close(stage->sealed);
	close(stage->opaque);
	close(stage->null);
	close(stage->dmabuf);
	close(stage->memfd);
	close(stage->handle);
	close(stage->dev);
	munmap(stage, sizeof(*stage));
}

/* A room for any structure of the ABI with something behind it. */
union args {
	__u32 size;
	struct {
		__u32 size;
		__u32 flags;
	} head;
	struct tmesh_caps_query caps;
	struct tmesh_create create;
	struct tmesh_create_memfd create_memfd;
	struct tmesh_open open;
	struct tmesh_derive derive;
	struct tmesh_token token;
	struct tmesh_info info;
	struct tmesh_list list;
	struct tmesh_holders holders;
	struct tmesh_seal seal;
	struct tmesh_export export;
	struct tmesh_desc desc;
	struct tmesh_revoke revoke;
	struct tmesh_create_user create_user;
	struct tmesh_import import;
	struct tmesh_opaque opaque;
	struct tmesh_gather gather;
	struct tmesh_signal signal;
	struct tmesh_policy policy;
	struct tmesh_lease lease;
	struct tmesh_keep keep;
	struct tmesh_kept_open kept_open;
	struct tmesh_kept_list kept_list;
	struct tmesh_kept_drop kept_drop;
	unsigned char raw[512];
};

#define ADDRESS(p) ((__u64)(unsigned long)(p))

static void fill_nothing(union args *a)
{
}

static void fill_create(union args *a)
{
	a->create.bytes = BYTES;
}

static void fill_create_memfd(union args *a)
{
	a->create_memfd.memfd = stage->memfd;
}

static void fill_open(union args *a)
{
	a->open.rights = R_READ;
	memcpy(a->open.token, stage->token, sizeof(a->open.token));
}

static void fill_derive(union args *a)
{
	a->derive.rights = R_READ;
}

static void fill_token(union args *a)
{
	a->token.rights = R_READ;
}

static void fill_id(union args *a)
{
	a->info.id = stage->id;
}

static void fill_list(union args *a)
{
	a->list.entries = ADDRESS(stage->infos);
	a->list.entry_bytes = sizeof(stage->infos[0]);
	a->list.count = ARRAY_SIZE(stage->infos);
}

static void fill_holders(union args *a)
{
	a->holders.entries = ADDRESS(stage->holders);
	a->holders.entry_bytes = sizeof(stage->holders[0]);
	a->holders.count = ARRAY_SIZE(stage->holders);
}

static void fill_holders_of_id(union args *a)
{
	fill_holders(a);
	a->holders.id = stage->id;
}

static void fill_desc(union args *a)
{
	a->desc.data = ADDRESS(stage->text);
	a->desc.bytes = sizeof(stage->text);
}

static void fill_desc_of_id(union args *a)
{
	fill_desc(a);
	a->desc.id = stage->id;
}

static void fill_revoke(union args *a)
{
	a->revoke.entries = ADDRESS(stage->holders);
	a->revoke.entry_bytes = sizeof(stage->holders[0]);
	a->revoke.count = ARRAY_SIZE(stage->holders);
}

static void fill_create_user(union args *a)
{
	a->create_user.address = ADDRESS(stage->memory);
	a->create_user.bytes = sizeof(stage->memory);
	a->create_user.rights = R_READ;
}

static void fill_gather(union args *a)
{
	stage->extent = t_extent(stage->handle, 0, 1);
	a->gather.extents = ADDRESS(&stage->extent);
	a->gather.count = 1;
	a->gather.rights = R_READ;
}

/* Each try signals more than the one before it. */
static void fill_signal(union args *a)
{
	static __u64 value;

	a->signal.value = ++value;
}

static void fill_keep(union args *a)
{
	strcpy(a->keep.name, "new");
	a->keep.handles = ADDRESS(&stage->sealed);
	a->keep.count = 1;
}

static void fill_kept_open(union args *a)
{
	strcpy(a->kept_open.name, "kept");
	a->kept_open.fds = ADDRESS(&stage->opened);
	a->kept_open.count = 1;
	a->kept_open.rights = R_READ;
}

static void fill_kept_list(union args *a)
{
	a->kept_list.entries = ADDRESS(stage->kepts);
	a->kept_list.entry_bytes = sizeof(stage->kepts[0]);
	a->kept_list.count = ARRAY_SIZE(stage->kepts);
}

static void fill_kept_drop(union args *a)
{
	strcpy(a->kept_drop.name, "kept");
}

static void fill_import(union args *a)
{
	a->import.source = stage->null;
}

#define DEVICE 1
#define HANDLE 2
#define OPAQUE 4 /* and of an opaque region */
#define CREATE_FLAGS                                                                      \
	(TMESH_CREATE_HUGE | TMESH_CREATE_NOHUGE | TMESH_CREATE_NODE | TMESH_CREATE_GID | \
	 TMESH_CREATE_NOPIN)
#define MEMFD_FLAGS (TMESH_CREATE_GID | TMESH_CREATE_NOPIN)
#define PAD(type) (int)offsetof(struct type, pad)
#define RIGHTS(type) (int)offsetof(struct type, rights)
#define OUT_FD(type) (int)offsetof(struct type, fd)

/* pad, rights and fd are offsets of those words, or 0 where there is none. */
static const struct call {
	const char *name;
	unsigned long nr;
	int on;
	unsigned int bytes, known; /* first published, and now */
	unsigned int flags;
	int pad, rights, fd;
	void (*fill)(union args *a);
} calls[] = {
	{"CAPS", TMESH_CAPS, DEVICE, 80, sizeof(struct tmesh_caps_query), 0, 0, 0, 0, fill_nothing},
	{"CAPS on a handle", TMESH_CAPS, HANDLE, 80, sizeof(struct tmesh_caps_query), 0, 0, 0, 0,
	 fill_nothing},
	{"CREATE", TMESH_CREATE, DEVICE, 112, sizeof(struct tmesh_create), CREATE_FLAGS,
	 PAD(tmesh_create), 0, OUT_FD(tmesh_create), fill_create},
	{"CREATE_MEMFD", TMESH_CREATE_MEMFD, DEVICE, 112, sizeof(struct tmesh_create_memfd),
	 MEMFD_FLAGS, 0, 0, OUT_FD(tmesh_create_memfd), fill_create_memfd},
	{"OPEN", TMESH_OPEN, DEVICE, 64, sizeof(struct tmesh_open), TMESH_OPEN_PIN, 0,
	 RIGHTS(tmesh_open), OUT_FD(tmesh_open), fill_open},
	{"DERIVE", TMESH_DERIVE, HANDLE, 16, sizeof(struct tmesh_derive), TMESH_DERIVE_PIN, 0,
	 RIGHTS(tmesh_derive), OUT_FD(tmesh_derive), fill_derive},
	{"TOKEN", TMESH_TOKEN, HANDLE, 32, sizeof(struct tmesh_token), 0, PAD(tmesh_token),
	 RIGHTS(tmesh_token), 0, fill_token},
	{"INFO", TMESH_INFO, HANDLE, 168, sizeof(struct tmesh_info), TMESH_INFO_PINS, 0, 0, 0,
	 fill_nothing},
	{"INFO by id", TMESH_INFO, DEVICE, 168, sizeof(struct tmesh_info), TMESH_INFO_PINS, 0, 0, 0,
	 fill_id},
	{"LIST", TMESH_LIST, DEVICE, 40, sizeof(struct tmesh_list), 0, PAD(tmesh_list), 0, 0,
	 fill_list},
	{"HOLDERS", TMESH_HOLDERS, HANDLE, 40, sizeof(struct tmesh_holders), 0, PAD(tmesh_holders),
	 0, 0, fill_holders},
	{"HOLDERS by id", TMESH_HOLDERS, DEVICE, 40, sizeof(struct tmesh_holders), 0,
	 PAD(tmesh_holders), 0, 0, fill_holders_of_id},
	{"SEAL", TMESH_SEAL, HANDLE, 8, sizeof(struct tmesh_seal), 0, 0, 0, 0, fill_nothing},
	{"EXPORT", TMESH_EXPORT, HANDLE, 32, sizeof(struct tmesh_export), TMESH_EXPORT_WRITE,
	 PAD(tmesh_export), 0, OUT_FD(tmesh_export), fill_nothing},
	{"DESC_SET", TMESH_DESC_SET, HANDLE, 32, sizeof(struct tmesh_desc), 0, PAD(tmesh_desc), 0,
	 0, fill_desc},
	{"DESC_GET", TMESH_DESC_GET, HANDLE, 32, sizeof(struct tmesh_desc), 0, PAD(tmesh_desc), 0,
	 0, fill_desc},
	{"DESC_GET by id", TMESH_DESC_GET, DEVICE, 32, sizeof(struct tmesh_desc), 0,
	 PAD(tmesh_desc), 0, 0, fill_desc_of_id},
	{"POLICY", TMESH_POLICY, HANDLE, 8, sizeof(struct tmesh_policy), TMESH_POLICY_ZERO, 0, 0, 0,
	 fill_nothing},
	{"LEASE", TMESH_LEASE, HANDLE, 24, sizeof(struct tmesh_lease),
	 TMESH_LEASE_PROCESS | TMESH_LEASE_GET, 0, 0, OUT_FD(tmesh_lease), fill_nothing},
	{"REVOKE", TMESH_REVOKE, HANDLE, 32, sizeof(struct tmesh_revoke), TMESH_REVOKE_WAIT,
	 PAD(tmesh_revoke), 0, 0, fill_revoke},
	{"CREATE_USER", TMESH_CREATE_USER, DEVICE, 128, sizeof(struct tmesh_create_user),
	 TMESH_CREATE_GID, 0, RIGHTS(tmesh_create_user), OUT_FD(tmesh_create_user),
	 fill_create_user},
	{"IMPORT", TMESH_IMPORT, DEVICE, 120, sizeof(struct tmesh_import),
	 TMESH_CREATE_GID | TMESH_IMPORT_NOMAP, PAD(tmesh_import), 0, OUT_FD(tmesh_import),
	 fill_import},
	{"OPAQUE", TMESH_OPAQUE, HANDLE | OPAQUE, 16, sizeof(struct tmesh_opaque), 0,
	 PAD(tmesh_opaque), 0, OUT_FD(tmesh_opaque), fill_nothing},
	{"GATHER", TMESH_GATHER, DEVICE, 120, sizeof(struct tmesh_gather), TMESH_CREATE_GID, 0,
	 RIGHTS(tmesh_gather), OUT_FD(tmesh_gather), fill_gather},
	{"SIGNAL", TMESH_SIGNAL, HANDLE, 16, sizeof(struct tmesh_signal), 0, 0, 0, 0, fill_signal},
	{"WAIT", TMESH_WAIT, HANDLE, 24, sizeof(struct tmesh_wait), TMESH_WAIT_ARM, 0, 0, 0,
	 fill_nothing},
	{"KEEP", TMESH_KEEP, DEVICE, 112, sizeof(struct tmesh_keep),
	 TMESH_KEEP_REPLACE | TMESH_KEEP_GID, PAD(tmesh_keep), 0, 0, fill_keep},
	{"KEPT_OPEN", TMESH_KEPT_OPEN, DEVICE, 104, sizeof(struct tmesh_kept_open),
	 TMESH_KEPT_PIN | TMESH_KEPT_UID, PAD(tmesh_kept_open), RIGHTS(tmesh_kept_open), 0,
	 fill_kept_open},
	{"KEPT_LIST", TMESH_KEPT_LIST, DEVICE, 40, sizeof(struct tmesh_kept_list), 0,
	 PAD(tmesh_kept_list), 0, 0, fill_kept_list},
	{"KEPT_DROP", TMESH_KEPT_DROP, DEVICE, 80, sizeof(struct tmesh_kept_drop), TMESH_KEPT_ID, 0,
	 0, 0, fill_kept_drop},
};

static int file_for(const struct call *c)
{
	if (c->on & OPAQUE)
		return stage->opaque;
	return c->on == DEVICE ? stage->dev : stage->handle;
}

static union args valid(const struct call *c)
{
	union args a = {.size = c->bytes};

	c->fill(&a);
	return a;
}

static __u32 *word(union args *a, int offset)
{
	return (__u32 *)(a->raw + offset);
}

/* What a refused call may not change. */
struct before {
	int fds;
	__u64 bytes, regions, handles, pins, kept_bytes, kept_names, kept;
	struct tmesh_info info;
};

static struct before look(void)
{
	struct tmesh_caps_query q = t_caps(stage->dev);

	return (struct before){
		.fds = t_count_fds(),
		.bytes = q.used_bytes,
		.regions = q.used_regions,
		.handles = q.used_handles,
		.pins = q.used_pins,
		.kept_bytes = q.used_kept_bytes,
		.kept_names = q.used_kept_names,
		.kept = t_info(stage->kept).kept,
		.info = t_info(stage->handle),
	};
}

static void same(const struct call *c, struct before was)
{
	struct before now = look();
	bool ok = CHECK_EQ(now.fds, was.fds);

	ok &= CHECK_EQ(now.bytes, was.bytes);
	ok &= CHECK_EQ(now.regions, was.regions);
	ok &= CHECK_EQ(now.handles, was.handles);
	ok &= CHECK_EQ(now.pins, was.pins);
	ok &= CHECK_EQ(now.kept_bytes, was.kept_bytes);
	ok &= CHECK_EQ(now.kept_names, was.kept_names);
	ok &= CHECK_EQ(now.kept, was.kept);
	ok &= CHECK(!memcmp(&now.info, &was.info, sizeof(was.info)));
	if (!ok)
		t_note("%s changed something although it failed", c->name);
}

static void refused(const struct call *c, int fd, void *arg, int want)
{
	struct before was = look();
	bool ok;

	ok = CHECK_ERR(ioctl(fd, c->nr, arg), want);
	if (!ok)
		t_note("that was %s", c->name);
	same(c, was);
}

static void accepted(const struct call *c, union args *a)
{
	if (!CHECK_OK(ioctl(file_for(c), c->nr, a)))
		t_note("that was %s", c->name);
	else if (c->fd)
		CHECK_OK(close(*word(a, c->fd)));
}

#define FOR_EACH_CALL(c) for (const struct call *c = calls; c < calls + ARRAY_SIZE(calls); c++)

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
	FOR_EACH_CALL(c) {
		set_up();
		for (unsigned int bytes = 0; bytes < c->bytes; bytes += 4) {
			union args a = valid(c);

			a.size = bytes;
			refused(c, file_for(c), &a, EINVAL);
		}
		union args a = valid(c);

		a.size = c->bytes - 1;
		refused(c, file_for(c), &a, EINVAL);
		tear_down();
	}
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
	FOR_EACH_CALL(c) {
		set_up();
		for (int i = 0; i < TAIL; i++) {
			union args a = valid(c);

			a.size = c->known + TAIL;
			a.raw[c->known + i] = 1;
			refused(c, file_for(c), &a, E2BIG);
		}
		tear_down();
	}
}

TEST(absurd_size, "a size beyond all memory is refused")
{
	FOR_EACH_CALL(c) {
		set_up();
		union args a = valid(c);
		struct before was = look();

		a.size = ~0u;
		CHECK_EQ(ioctl(file_for(c), c->nr, &a), -1);
		if (!CHECK(errno == E2BIG || errno == EFAULT))
			t_note("%s: errno %d", c->name, errno);
		same(c, was);
		tear_down();
	}
}

TEST(unknown_flags, "each unknown flag gives EOPNOTSUPP")
{
	FOR_EACH_CALL(c) {
		set_up();
		for (int bit = 0; bit < 32; bit++) {
			union args a = valid(c);

			if (c->flags & (1u << bit))
				continue;
			a.head.flags = 1u << bit;
			refused(c, file_for(c), &a, EOPNOTSUPP);
		}
		tear_down();
	}
}

TEST(unknown_rights, "each unknown right gives EOPNOTSUPP")
{
	FOR_EACH_CALL(c) {
		set_up();
		for (int bit = 3; c->rights && bit < 32; bit++) {
			union args a = valid(c);

			*word(&a, c->rights) |= 1u << bit;
			refused(c, file_for(c), &a, EOPNOTSUPP);
		}
		tear_down();
	}
}

TEST(padding, "padding that is not zero gives EINVAL")
{
	FOR_EACH_CALL(c) {
		set_up();
		for (int bit = 0; c->pad && bit < 32; bit += 31) {
			union args a = valid(c);

			*word(&a, c->pad) = 1u << bit;
			refused(c, file_for(c), &a, EINVAL);
		}
		tear_down();
	}
}

TEST(bad_pointers, "pointers to nothing, and across the end of memory, give EFAULT")
{
	char *page =
		mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(page != MAP_FAILED);
	REQUIRE_OK(mprotect(page + PAGE, PAGE, PROT_NONE));
	FOR_EACH_CALL(c) {
		set_up();
		union args a = valid(c);
		char *cut = page + PAGE - c->bytes + 4;

		refused(c, file_for(c), NULL, EFAULT);
		refused(c, file_for(c), page + PAGE, EFAULT);
		refused(c, file_for(c), (void *)-4096l, EFAULT);
		memcpy(cut, &a, c->bytes - 4);
		refused(c, file_for(c), cut, EFAULT);
		tear_down();
	}
}

/* A result that cannot be handed over must not stay behind. */
TEST(read_only_result, "a result that cannot be written back leaves nothing behind")
{
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(page != MAP_FAILED);
	FOR_EACH_CALL(c) {
		if (c->nr == TMESH_SEAL || c->nr == TMESH_DESC_SET || c->nr == TMESH_REVOKE ||
		    c->nr == TMESH_SIGNAL || c->nr == TMESH_POLICY || c->nr == TMESH_KEPT_DROP)
			continue; /* nothing to hand over, or done once it is told */
		set_up();
		union args a = valid(c);

		REQUIRE_OK(mprotect(page, PAGE, PROT_READ | PROT_WRITE));
		memcpy(page, &a, sizeof(a));
		REQUIRE_OK(mprotect(page, PAGE, PROT_READ));
		refused(c, file_for(c), page, EFAULT);
		tear_down();
	}
}

/* The kernel must not hold, while it reads or writes them, what a fault there needs. */
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
				/* It took the memory away that its answer should go to. */
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
		else
			continue;
		refused(c, file_for(c), &a, EFAULT);
	}
	tear_down();
}

TEST(short_entries, "entries smaller than the published ones give EINVAL")
{
	set_up();
	FOR_EACH_CALL(c) {
		union args a = valid(c);

		if (c->nr == TMESH_LIST)
			a.list.entry_bytes = offsetof(struct tmesh_info, lease_ns) - 8;
		else if (c->nr == TMESH_HOLDERS)
			a.holders.entry_bytes = offsetof(struct tmesh_holder, lease_ns) - 8;
		else if (c->nr == TMESH_KEPT_LIST)
			a.kept_list.entry_bytes = sizeof(struct tmesh_kept) - 8;
		else
			continue;
		refused(c, file_for(c), &a, EINVAL);
	}
	tear_down();
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

	set_up();
	l.cursor = stage->id - 1;
	memset(entries, 0x5a, sizeof(entries));
	REQUIRE_OK(ioctl(stage->dev, TMESH_LIST, &l));
	REQUIRE(l.count == 2);
	CHECK_EQ(entries[0].info.id, stage->id);
	CHECK_EQ(entries[1].info.id, t_info(stage->sealed).id);
	CHECK_EQ(l.cursor, entries[1].info.id);
	CHECK_EQ(entries[0].info.size, sizeof(struct tmesh_info));
	tear_down();
}

/* Is the call known on any of these kinds of file? */
static bool known_on(unsigned long nr, int kinds)
{
	FOR_EACH_CALL(c)
		if (c->nr == nr && c->on & kinds)
			return true;
	return false;
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
	CHECK(q.max_bytes >= q.max_bytes_per_uid && q.max_bytes_per_uid > 0);
	CHECK(q.max_regions >= q.max_regions_per_uid && q.max_regions_per_uid > 0);
	CHECK(q.used_regions >= 1);
	CHECK(q.used_bytes >= BYTES);
	tear_down();
}

int main(void)
{
	return t_main();
}
