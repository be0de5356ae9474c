/* SPDX-License-Identifier: MIT */
/*
 * For abi.c: the table of all calls. Each row has the conditions for success, and functions that
 * fill in a call that succeeds or is refused.
 */
#ifndef TMESH_KSELFTEST_ABI_CALLS_H
#define TMESH_KSELFTEST_ABI_CALLS_H

#include "t.h"

#define BYTES (64 * KB)
#define TAIL 24

/*
 * The objects that a call may need. They are made anew for each call that may succeed; refused
 * calls change nothing.
 */
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
	struct tmesh_file file;
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
	struct tmesh_file file = {.bytes = PAGE};
	struct tmesh_keep k = {
		.size = sizeof(k),
		.name = "kept",
		.handles = (__u64)(unsigned long)&stage->kept,
		.count = 1,
		.files = (__u64)(unsigned long)&file,
		.file_count = 1,
		.file_bytes = sizeof(file),
		.paths = (__u64)(unsigned long)"file",
		.path_bytes = 5,
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

/* Room for any structure of the ABI and for bytes behind it */
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
	struct tmesh_kept_files kept_files;
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

static void fill_kept_files(union args *a)
{
	strcpy(a->kept_files.name, "kept");
	a->kept_files.files = ADDRESS(&stage->file);
	a->kept_files.file_count = 1;
	a->kept_files.file_bytes = sizeof(stage->file);
	a->kept_files.paths = ADDRESS(stage->text);
	a->kept_files.path_bytes = sizeof(stage->text);
}

/* TMESH_RENEW needs a region without other holders: close the export. */
static void fill_renew(union args *a)
{
	REQUIRE_OK(dup2(stage->null, stage->dmabuf));
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

/* @pad, @rights and @fd are the offsets of these fields, or 0 if there is none. */
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
	{"OPEN", TMESH_OPEN, DEVICE, 64, sizeof(struct tmesh_open), 0, 0, RIGHTS(tmesh_open),
	 OUT_FD(tmesh_open), fill_open},
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
	{"IMPORT", TMESH_IMPORT, DEVICE, 120, sizeof(struct tmesh_import), TMESH_CREATE_GID,
	 PAD(tmesh_import), 0, OUT_FD(tmesh_import), fill_import},
	{"OPAQUE", TMESH_OPAQUE, HANDLE | OPAQUE, 16, sizeof(struct tmesh_opaque), 0,
	 PAD(tmesh_opaque), 0, OUT_FD(tmesh_opaque), fill_nothing},
	{"GATHER", TMESH_GATHER, DEVICE, 120, sizeof(struct tmesh_gather), TMESH_CREATE_GID, 0,
	 RIGHTS(tmesh_gather), OUT_FD(tmesh_gather), fill_gather},
	{"SIGNAL", TMESH_SIGNAL, HANDLE, 16, sizeof(struct tmesh_signal), 0, 0, 0, 0, fill_signal},
	{"WAIT", TMESH_WAIT, HANDLE, 24, sizeof(struct tmesh_wait), 0, 0, 0, 0, fill_nothing},
	{"KEEP", TMESH_KEEP, DEVICE, 112, sizeof(struct tmesh_keep),
	 TMESH_KEEP_REPLACE | TMESH_KEEP_GID, PAD(tmesh_keep), 0, 0, fill_keep},
	{"KEPT_OPEN", TMESH_KEPT_OPEN, DEVICE, 104, sizeof(struct tmesh_kept_open),
	 TMESH_KEPT_UID | TMESH_KEPT_PART, PAD(tmesh_kept_open), RIGHTS(tmesh_kept_open), 0,
	 fill_kept_open},
	{"KEPT_LIST", TMESH_KEPT_LIST, DEVICE, 40, sizeof(struct tmesh_kept_list), 0,
	 PAD(tmesh_kept_list), 0, 0, fill_kept_list},
	{"KEPT_DROP", TMESH_KEPT_DROP, DEVICE, 80, sizeof(struct tmesh_kept_drop), TMESH_KEPT_ID, 0,
	 0, 0, fill_kept_drop},
	{"RENEW", TMESH_RENEW, HANDLE, 8, sizeof(struct tmesh_renew), 0, 0, 0, 0, fill_renew},
	{"KEPT_FILES", TMESH_KEPT_FILES, DEVICE, 120, sizeof(struct tmesh_kept_files),
	 TMESH_KEPT_UID | TMESH_KEPT_FD, (int)offsetof(struct tmesh_kept_files, fd), 0, 0,
	 fill_kept_files},
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

/* The state that a refused call must not change */
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

#endif /* TMESH_KSELFTEST_ABI_CALLS_H */
