// SPDX-License-Identifier: MIT
/*
 * The module's calls for the fuzzer: a table that describes the fields of their structures. A new
 * call is a new row. fuzz_system.c has all other calls.
 */
#include <libdrm/drm.h>

#include "fuzz_hand.h"

/* Fields */

/* The kind of a field, which decides the values that its byte can choose */
enum kind {
	SIZE, /* of the structure */
	FLAGS,
	ZERO,	/* which it has to be */
	AMOUNT, /* bytes; the detail for 0 */
	COUNT,
	RIGHTS,
	FILE_OF, /* a descriptor */
	ID,
	MODE,
	GROUP,
	NODE,
	MSEC,
	NSEC,	 /* of a lease; never long */
	TIMEOUT, /* in nanoseconds; never long */
	VALUE,	 /* of a fence */
	PIDFD,
	ADDRESS, /* in the arena */
	EXTENTS, /* an array for a gather view */
	LABEL,
	NAME,	 /* of kept regions: one of a few */
	HANDLES, /* an array of descriptors */
	FEW,	 /* a short count */
	TOKEN,
	POINTER,
	STRIDE, /* of an array whose entries have the detail's size */
	TABLE,	/* of files; fills the four fields behind it, too */
	SAME,	/* as TABLE filled it, or at an edge */
	/* Filled in by the call, for later calls to use */
	OUT_FILE,
	OUT_ID,
	OUT_TOKEN,
};

struct field {
	unsigned short offset, bytes;
	enum kind kind;
	__u64 detail;
};

/* Few names, so that calls meet the names of others */
#define FUZZ_NAMES 4

#define FIELDS_MAX (FUZZ_ARGS + 2)

struct op {
	const char *name;
	unsigned int nr, size;
	bool on_device; /* rather than on a handle */
	struct field fields[FIELDS_MAX];
};

static const __u64 edges[] = {
	0,
	1,
	2,
	7,
	PAGE - 1,
	PAGE + 1,
	3 * PAGE,
	16 * PAGE,
	64 * PAGE,
	HUGE - 1,
	HUGE,
	HUGE + PAGE,
	2 * HUGE,
	2 * HUGE - PAGE,
	1ull << 31,
	1ull << 32,
	1ull << 44,
	1ull << 62,
	1ull << 63,
	~0ull,
	~0ull - PAGE + 1,
	0x7fffffff,
	0xffffffffu,
	0x7ffffffffffff000,
};

__u64 fuzz_edge(unsigned char b)
{
	return edges[b % ARRAY_SIZE(edges)];
}

/* Choose a file: the last one opened for 0, else an earlier one, the device, or a wrong one. */
int fuzz_file_of(const struct fuzz_hand *h, unsigned char b)
{
	if (b < 240)
		return b % (FILES + 1) == FILES
			       ? h->dev
			       : h->files[(h->opened - 1 - b % (FILES + 1)) % FILES];
	return b % 2 ? h->null : -1;
}

unsigned char *fuzz_address(struct fuzz_hand *h, unsigned char window, unsigned char page)
{
	return h->arena + window % WINDOWS * WINDOW +
	       (page < 128 ? page : (WINDOW / PAGE - 256 + page)) * PAGE;
}

/*
 * Choose memory for the kernel: valid, none, half of it, or that of a region, where copying faults.
 */
static void *memory(struct fuzz_hand *h, unsigned char b)
{
	switch (b < 128 ? 0 : b % 6) {
	case 0:
		return h->array;
	case 1:
		return NULL;
	case 2:
		return h->locked;
	case 3:
		return h->locked - 64;
	case 4:
		return fuzz_address(h, b, 0);
	default:
		return (void *)(unsigned long)fuzz_edge(b / 6);
	}
}

/* Make an array for a gather view: parts of the regions opened last, which may repeat. */
static void *extents(struct fuzz_hand *h, unsigned char b)
{
	struct tmesh_extent *e = memory(h, b);

	for (size_t i = 0; i < 128 && (void *)e == h->array; i++)
		e[i] = (struct tmesh_extent){
			.handle = fuzz_file_of(h, b % 4 ? i % (b % 4) : 0),
			.offset = b / 4 % 4 * i * PAGE,
			.bytes = (1 + b / 16 % 4) * PAGE,
		};
	return e;
}

/* Make an array of the descriptors opened last. */
static void *handles(struct fuzz_hand *h, unsigned char b)
{
	int *fds = memory(h, b);

	for (size_t i = 0; i < 128 && (void *)fds == h->array; i++)
		fds[i] = fuzz_file_of(h, b % 4 + i);
	return fds;
}

/*
 * Make a table of up to 7 files of the first region for TMESH_KEEP. Where @b is large, one path or
 * one entry is wrong.
 */
static void table(struct fuzz_hand *h, struct tmesh_keep *keep, unsigned char b)
{
	static const char *const paths[] = {"a/b", "a/c", "d", "e/f/g", "e/h", "i", "j"};
	struct tmesh_file *entries = (struct tmesh_file *)(h->array + 8 * KB);
	char *text = (char *)h->array + 16 * KB;
	unsigned int count = b % 8, at = 0;

	memset(entries, 0, 8 * sizeof(*entries));
	for (unsigned int i = 0; i < count; i++) {
		entries[i] = (struct tmesh_file){
			.offset = b / 8 % 4 * PAGE,
			.bytes = i % 3 * PAGE,
			.path = at,
		};
		at += sprintf(text + at, "%s", paths[i]) + 1;
	}
	if (b >= 224 && count)
		text[b % 5] = "/.a"[b % 3];
	else if (b >= 192 && count)
		entries[b % count].bytes = fuzz_edge(b);
	keep->files = count ? (unsigned long)entries : 0;
	keep->paths = count ? (unsigned long)text : 0;
	keep->path_bytes = at;
	keep->file_count = count;
	keep->file_bytes = count ? sizeof(*entries) : 0;
}

/* Return the bits of @mask that the bits of @b choose, from the lowest. */
static __u64 some_bits(__u64 mask, unsigned char b)
{
	__u64 bits = 0;

	for (; mask && b; mask &= mask - 1, b >>= 1)
		if (b & 1)
			bits |= mask & -mask;
	return bits;
}

static __u64 number(struct fuzz_hand *h, const struct field *f, const struct op *op,
		    unsigned char b)
{
	static const __u32 modes[] = {0,    0600, 0660, 0640,  0400, 0440,
				      0220, 0777, 010,	01000, 0644};
	static const __u32 groups[] = {0, 1500, 1001, 77, ~0u};
	bool odd = b >= 224;

	switch (f->kind) {
	case SIZE:
		return !odd ? op->size : b < 240 ? op->size + (b - 232) * 4 : fuzz_edge(b);
	case FLAGS:
		return odd ? 1u << b % 32 : some_bits(f->detail, b);
	case ZERO:
		return odd ? b : 0;
	case AMOUNT:
		return !b ? f->detail : b < 192 ? b % 8 * PAGE : fuzz_edge(b);
	case COUNT:
		return !b ? 4 : b < 128 ? b : fuzz_edge(b);
	case RIGHTS:
		return !b ? R_ALL : odd ? 1u << b % 32 : b & R_ALL;
	case FILE_OF:
		return fuzz_file_of(h, b);
	case ID:
		return !b ? 0 : b < 128 ? h->ids[b % REMEMBERED] : fuzz_edge(b);
	case MODE:
		return modes[b % ARRAY_SIZE(modes)];
	case GROUP:
		return groups[b % ARRAY_SIZE(groups)];
	case NODE:
		return odd ? fuzz_edge(b) : b % 3;
	case MSEC:
		return odd ? fuzz_edge(b) : b % 16;
	case NSEC:
		return odd ? fuzz_edge(b) : b * 1000000ull;
	case TIMEOUT:
		return b * 20000ull;
	case VALUE:
		return odd ? fuzz_edge(b) : b;
	case PIDFD:
		return !b ? 0 : b % 2 ? h->pidfd : fuzz_file_of(h, b);
	case ADDRESS:
		return (unsigned long)fuzz_address(h, b, 0);
	case HANDLES:
		return (unsigned long)handles(h, b);
	case FEW:
		return odd ? fuzz_edge(b) : 1u + b % 4;
	case EXTENTS:
		return (unsigned long)extents(h, b);
	case STRIDE:
		return !odd ? f->detail : b < 240 ? f->detail + (b - 232) * 8 : fuzz_edge(b);
	case POINTER:
		return (unsigned long)memory(h, b);
	default:
		return 0;
	}
}

static void fill(struct fuzz_hand *h, const struct field *f, const struct op *op, unsigned char b)
{
	unsigned char *to = h->words + f->offset;
	__u64 value;

	switch (f->kind) {
	case LABEL:
		memset(to, b < 224 ? 0 : b, f->bytes);
		memset(to, 'a', b < 224 ? b % f->bytes : 0);
		break;
	case NAME:
		memset(to, b < 240 ? 0 : 'k', f->bytes);
		to[0] = 'k';
		to[1] = b < 240 ? '0' + b % FUZZ_NAMES : b;
		break;
	case TABLE:
		table(h, (struct tmesh_keep *)h->words, b);
		break;
	case SAME:
		value = fuzz_edge(b);
		if (b >= 240)
			memcpy(to, &value, f->bytes);
		break;
	case TOKEN:
		memcpy(to, h->tokens[b % REMEMBERED], f->bytes);
		to[0] ^= b >= 224;
		break;
	default:
		value = number(h, f, op, b);
		memcpy(to, &value, f->bytes);
	}
}

void fuzz_keep_file(struct fuzz_hand *h, int fd)
{
	if (fd >= 0)
		h->files[h->opened++ % FILES] = fd;
}

static void take(struct fuzz_hand *h, const struct field *f)
{
	const unsigned char *from = h->words + f->offset;
	int fd;

	if (f->kind == OUT_FILE) {
		memcpy(&fd, from, sizeof(fd));
		fuzz_keep_file(h, fd);
	} else if (f->kind == OUT_ID) {
		memcpy(&h->ids[h->created++ % REMEMBERED], from, sizeof(h->ids[0]));
	} else if (f->kind == OUT_TOKEN) {
		memcpy(h->tokens[h->named++ % REMEMBERED], from, TMESH_TOKEN_BYTES);
	}
}

static long run_ioctl(struct fuzz_hand *h, const struct op *op, const struct fuzz_call *c)
{
	const struct field *f;
	int used = 0, fd = op->on_device && !c->fd ? h->dev : fuzz_file_of(h, c->fd);
	long ret;

	memset(h->words, 0, op->size);
	memset(h->words + op->size, c->arg[0] % 16 == 15, STRUCT_ROOM - op->size);
	for (f = op->fields; f->bytes; f++)
		if (f->kind < OUT_FILE)
			fill(h, f, op, c->arg[used++]);
	ret = ioctl(fd, op->nr, h->words);
	for (f = op->fields; f->bytes && ret >= 0; f++)
		take(h, f);
	return ret;
}

#define F(type, member, ...)                                                                   \
	{                                                                                      \
		offsetof(struct type, member), sizeof(((struct type *)0)->member), __VA_ARGS__ \
	}
#define HEAD(type, mask) F(type, size, SIZE), F(type, flags, FLAGS, mask)
#define CALL(number, type) .nr = number, .size = sizeof(struct type)

static const struct op ops[] = {
	{"caps", CALL(TMESH_CAPS, tmesh_caps_query), .fields = {HEAD(tmesh_caps_query, 0)}},
	{"create", CALL(TMESH_CREATE, tmesh_create), .on_device = true,
	 .fields = {HEAD(tmesh_create, TMESH_CREATE_HUGE | TMESH_CREATE_NOHUGE | TMESH_CREATE_NODE |
					       TMESH_CREATE_GID | TMESH_CREATE_NOPIN),
		    F(tmesh_create, bytes, AMOUNT, PAGE), F(tmesh_create, node, NODE),
		    F(tmesh_create, mode, MODE), F(tmesh_create, gid, GROUP),
		    F(tmesh_create, hold_ms, MSEC), F(tmesh_create, label, LABEL),
		    F(tmesh_create, pad, ZERO), F(tmesh_create, fd, OUT_FILE),
		    F(tmesh_create, id, OUT_ID)}},
	{"create_memfd", CALL(TMESH_CREATE_MEMFD, tmesh_create_memfd), .on_device = true,
	 .fields = {HEAD(tmesh_create_memfd, TMESH_CREATE_GID | TMESH_CREATE_NOPIN),
		    F(tmesh_create_memfd, bytes, AMOUNT, 0), F(tmesh_create_memfd, memfd, FILE_OF),
		    F(tmesh_create_memfd, mode, MODE), F(tmesh_create_memfd, gid, GROUP),
		    F(tmesh_create_memfd, hold_ms, MSEC), F(tmesh_create_memfd, label, LABEL),
		    F(tmesh_create_memfd, fd, OUT_FILE), F(tmesh_create_memfd, id, OUT_ID)}},
	{"open", CALL(TMESH_OPEN, tmesh_open), .on_device = true,
	 .fields = {HEAD(tmesh_open, 0), F(tmesh_open, rights, RIGHTS), F(tmesh_open, token, TOKEN),
		    F(tmesh_open, fd, OUT_FILE)}},
	{"derive", CALL(TMESH_DERIVE, tmesh_derive),
	 .fields = {HEAD(tmesh_derive, TMESH_DERIVE_PIN), F(tmesh_derive, rights, RIGHTS),
		    F(tmesh_derive, fd, OUT_FILE)}},
	{"token", CALL(TMESH_TOKEN, tmesh_token),
	 .fields = {HEAD(tmesh_token, 0), F(tmesh_token, rights, RIGHTS), F(tmesh_token, pad, ZERO),
		    F(tmesh_token, token, OUT_TOKEN)}},
	{"info", CALL(TMESH_INFO, tmesh_info),
	 .fields = {HEAD(tmesh_info, TMESH_INFO_PINS), F(tmesh_info, id, ID)}},
	{"list", CALL(TMESH_LIST, tmesh_list), .on_device = true,
	 .fields = {HEAD(tmesh_list, 0), F(tmesh_list, cursor, ID), F(tmesh_list, entries, POINTER),
		    F(tmesh_list, entry_bytes, STRIDE, sizeof(struct tmesh_info)),
		    F(tmesh_list, count, COUNT), F(tmesh_list, pad, ZERO)}},
	{"holders", CALL(TMESH_HOLDERS, tmesh_holders),
	 .fields = {HEAD(tmesh_holders, 0), F(tmesh_holders, id, ID),
		    F(tmesh_holders, entries, POINTER),
		    F(tmesh_holders, entry_bytes, STRIDE, sizeof(struct tmesh_holder)),
		    F(tmesh_holders, count, COUNT), F(tmesh_holders, pad, ZERO)}},
	{"seal", CALL(TMESH_SEAL, tmesh_seal), .fields = {HEAD(tmesh_seal, 0)}},
	{"export", CALL(TMESH_EXPORT, tmesh_export),
	 .fields = {HEAD(tmesh_export, TMESH_EXPORT_WRITE), F(tmesh_export, offset, AMOUNT, 0),
		    F(tmesh_export, bytes, AMOUNT, 0), F(tmesh_export, pad, ZERO),
		    F(tmesh_export, fd, OUT_FILE)}},
	{"desc_set", CALL(TMESH_DESC_SET, tmesh_desc),
	 .fields = {HEAD(tmesh_desc, 0), F(tmesh_desc, id, ID), F(tmesh_desc, data, POINTER),
		    F(tmesh_desc, bytes, COUNT), F(tmesh_desc, pad, ZERO)}},
	{"desc_get", CALL(TMESH_DESC_GET, tmesh_desc),
	 .fields = {HEAD(tmesh_desc, 0), F(tmesh_desc, id, ID), F(tmesh_desc, data, POINTER),
		    F(tmesh_desc, bytes, COUNT), F(tmesh_desc, pad, ZERO)}},
	{"revoke", CALL(TMESH_REVOKE, tmesh_revoke),
	 .fields = {HEAD(tmesh_revoke, TMESH_REVOKE_WAIT), F(tmesh_revoke, entries, POINTER),
		    F(tmesh_revoke, entry_bytes, STRIDE, sizeof(struct tmesh_holder)),
		    F(tmesh_revoke, count, COUNT), F(tmesh_revoke, pad, ZERO),
		    F(tmesh_revoke, timeout_ns, TIMEOUT), F(tmesh_revoke, id, ID)}},
	{"policy", CALL(TMESH_POLICY, tmesh_policy),
	 .fields = {HEAD(tmesh_policy, TMESH_POLICY_ZERO)}},
	{"lease", CALL(TMESH_LEASE, tmesh_lease),
	 .fields = {HEAD(tmesh_lease, TMESH_LEASE_PROCESS | TMESH_LEASE_GET),
		    F(tmesh_lease, period_ns, NSEC), F(tmesh_lease, pidfd, PIDFD),
		    F(tmesh_lease, fd, OUT_FILE)}},
	{"create_user", CALL(TMESH_CREATE_USER, tmesh_create_user), .on_device = true,
	 .fields = {HEAD(tmesh_create_user, TMESH_CREATE_GID),
		    F(tmesh_create_user, address, ADDRESS),
		    F(tmesh_create_user, bytes, AMOUNT, PAGE), F(tmesh_create_user, rights, RIGHTS),
		    F(tmesh_create_user, mode, MODE), F(tmesh_create_user, gid, GROUP),
		    F(tmesh_create_user, hold_ms, MSEC), F(tmesh_create_user, label, LABEL),
		    F(tmesh_create_user, fd, OUT_FILE), F(tmesh_create_user, id, OUT_ID)}},
	{"import", CALL(TMESH_IMPORT, tmesh_import), .on_device = true,
	 .fields = {HEAD(tmesh_import, TMESH_CREATE_GID), F(tmesh_import, bytes, AMOUNT, 0),
		    F(tmesh_import, source, FILE_OF), F(tmesh_import, mode, MODE),
		    F(tmesh_import, gid, GROUP), F(tmesh_import, hold_ms, MSEC),
		    F(tmesh_import, label, LABEL), F(tmesh_import, pad, ZERO),
		    F(tmesh_import, fd, OUT_FILE), F(tmesh_import, id, OUT_ID)}},
	{"opaque", CALL(TMESH_OPAQUE, tmesh_opaque),
	 .fields = {HEAD(tmesh_opaque, 0), F(tmesh_opaque, pad, ZERO),
		    F(tmesh_opaque, fd, OUT_FILE)}},
	{"gather", CALL(TMESH_GATHER, tmesh_gather), .on_device = true,
	 .fields = {HEAD(tmesh_gather, TMESH_CREATE_GID), F(tmesh_gather, extents, EXTENTS),
		    F(tmesh_gather, count, COUNT), F(tmesh_gather, rights, RIGHTS),
		    F(tmesh_gather, mode, MODE), F(tmesh_gather, gid, GROUP),
		    F(tmesh_gather, hold_ms, MSEC), F(tmesh_gather, label, LABEL),
		    F(tmesh_gather, fd, OUT_FILE), F(tmesh_gather, id, OUT_ID)}},
	{"signal", CALL(TMESH_SIGNAL, tmesh_signal),
	 .fields = {HEAD(tmesh_signal, 0), F(tmesh_signal, value, VALUE)}},
	{"wait", CALL(TMESH_WAIT, tmesh_wait),
	 .fields = {HEAD(tmesh_wait, 0), F(tmesh_wait, value, VALUE),
		    F(tmesh_wait, timeout_ns, TIMEOUT)}},
	{"keep", CALL(TMESH_KEEP, tmesh_keep), .on_device = true,
	 .fields = {HEAD(tmesh_keep, TMESH_KEEP_REPLACE | TMESH_KEEP_GID),
		    F(tmesh_keep, name, NAME), F(tmesh_keep, handles, HANDLES),
		    F(tmesh_keep, lifetime_ns, NSEC), F(tmesh_keep, count, FEW),
		    F(tmesh_keep, mode, MODE), F(tmesh_keep, gid, GROUP), F(tmesh_keep, pad, ZERO),
		    F(tmesh_keep, files, TABLE), F(tmesh_keep, paths, SAME),
		    F(tmesh_keep, path_bytes, SAME), F(tmesh_keep, file_count, SAME),
		    F(tmesh_keep, file_bytes, SAME), F(tmesh_keep, id, OUT_ID)}},
	{"kept_open", CALL(TMESH_KEPT_OPEN, tmesh_kept_open), .on_device = true,
	 .fields = {HEAD(tmesh_kept_open, TMESH_KEPT_UID | TMESH_KEPT_PART),
		    F(tmesh_kept_open, name, NAME), F(tmesh_kept_open, fds, POINTER),
		    F(tmesh_kept_open, count, COUNT), F(tmesh_kept_open, rights, RIGHTS),
		    F(tmesh_kept_open, uid, GROUP), F(tmesh_kept_open, pad, ZERO),
		    F(tmesh_kept_open, first, FEW)}},
	{"kept_list", CALL(TMESH_KEPT_LIST, tmesh_kept_list), .on_device = true,
	 .fields = {HEAD(tmesh_kept_list, 0), F(tmesh_kept_list, cursor, ID),
		    F(tmesh_kept_list, entries, POINTER),
		    F(tmesh_kept_list, entry_bytes, STRIDE, sizeof(struct tmesh_kept)),
		    F(tmesh_kept_list, count, COUNT), F(tmesh_kept_list, pad, ZERO)}},
	{"kept_drop", CALL(TMESH_KEPT_DROP, tmesh_kept_drop), .on_device = true,
	 .fields = {HEAD(tmesh_kept_drop, TMESH_KEPT_ID), F(tmesh_kept_drop, name, NAME),
		    F(tmesh_kept_drop, id, ID)}},
	{"renew", CALL(TMESH_RENEW, tmesh_renew), .fields = {HEAD(tmesh_renew, 0)}},
	{"kept_files", CALL(TMESH_KEPT_FILES, tmesh_kept_files), .on_device = true,
	 .fields = {HEAD(tmesh_kept_files, TMESH_KEPT_UID | TMESH_KEPT_FD),
		    F(tmesh_kept_files, name, NAME), F(tmesh_kept_files, files, POINTER),
		    F(tmesh_kept_files, paths, POINTER), F(tmesh_kept_files, path_bytes, COUNT),
		    F(tmesh_kept_files, file_count, COUNT),
		    F(tmesh_kept_files, file_bytes, STRIDE, sizeof(struct tmesh_file)),
		    F(tmesh_kept_files, uid, GROUP), F(tmesh_kept_files, fd, FILE_OF)}},
};

int fuzz_ops(void)
{
	return ARRAY_SIZE(ops) + fuzz_system_ops;
}

const char *fuzz_op_name(int op)
{
	return op < (int)ARRAY_SIZE(ops) ? ops[op].name : fuzz_system[op - ARRAY_SIZE(ops)].name;
}

static long run_call(struct fuzz_hand *h, const struct fuzz_call *c)
{
	return c->op < ARRAY_SIZE(ops) ? run_ioctl(h, &ops[c->op], c)
				       : fuzz_system[c->op - ARRAY_SIZE(ops)].run(h, c);
}

/* Open a file that stays open between inputs, with a number below FIRST_FILE. */
static int keep_open(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	REQUIRE(fd < FIRST_FILE);
	return fd;
}

static int open_vgem_card(void)
{
	struct drm_version v = {0};
	char path[32], name[8];
	int fd;

	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "/dev/dri/card%d", i);
		fd = keep_open(path, O_RDWR);
		memset(name, 0, sizeof(name));
		v = (struct drm_version){.name = name, .name_len = sizeof(name) - 1};
		if (fd >= 0 && !ioctl(fd, DRM_IOCTL_VERSION, &v) && !strcmp(name, "vgem"))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -1;
}

static unsigned char *pages(size_t bytes, int prot)
{
	void *p = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(p != MAP_FAILED);
	return p;
}

/* Drop the names: unlike other objects they outlive the process. */
static void drop_names(const struct fuzz_hand *h)
{
	struct tmesh_kept k;
	struct tmesh_kept_list l = {
		.size = sizeof(l),
		.entries = (unsigned long)&k,
		.entry_bytes = sizeof(k),
		.count = 1,
	};

	while (!ioctl(h->dev, TMESH_KEPT_LIST, &l) && l.count) {
		struct tmesh_kept_drop d = {.size = sizeof(d), .flags = TMESH_KEPT_ID, .id = k.id};

		ioctl(h->dev, TMESH_KEPT_DROP, &d);
	}
}

struct fuzz_hand *fuzz_hand(bool root)
{
	struct fuzz_hand *h = calloc(1, sizeof(*h));
	unsigned char *arena = pages((WINDOWS + 1) * WINDOW, PROT_NONE);

	REQUIRE(h);
	h->dev = keep_open("/dev/tmesh", O_RDWR);
	REQUIRE(h->dev >= 0);
	h->null = keep_open("/dev/null", O_RDWR);
	h->regions = keep_open("/sys/kernel/debug/tmesh/regions", O_RDONLY);
	h->pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	h->udmabuf = keep_open("/dev/udmabuf", O_RDWR);
	h->heap = keep_open("/dev/dma_heap/system", O_RDONLY);
	h->vgem = root ? open_vgem_card() : -1;
	h->sw_sync = -1;
	memset(h->files, -1, sizeof(h->files));
	h->arena = (unsigned char *)(((unsigned long)arena + HUGE - 1) & ~(HUGE - 1));
	h->words = pages(STRUCT_ROOM, PROT_READ | PROT_WRITE);
	h->array = pages(ARRAY_ROOM, PROT_READ | PROT_WRITE);
	h->locked = pages(2 * PAGE, PROT_READ | PROT_WRITE) + PAGE;
	REQUIRE_OK(mprotect(h->locked, PAGE, PROT_READ));
	memset(h->array, 'a', ARRAY_ROOM);
	while (dup(h->null) < FIRST_FILE - 1)
		;
	return h;
}

void fuzz_run(struct fuzz_hand *h, const struct fuzz_input *in, FILE *tell)
{
	pid_t self = getpid();

	h->input = in;
	h->last = in->count;
	for (h->at = 0; h->at < h->last; h->at++, h->calls++) {
		const struct fuzz_call *c = &in->calls[h->at];
		long ret;

		errno = 0;
		ret = run_call(h, c);
		if (tell)
			fprintf(tell, "# %s = %ld %s\n", fuzz_op_name(c->op), ret,
				ret < 0 ? strerrorname_np(errno) : "");
	}
	if (getpid() != self)
		_exit(0);
}

void fuzz_lay_down(struct fuzz_hand *h)
{
	fuzz_release_gems(h);
	h->sw_sync = -1;
	h->alone = false;
	mmap(h->arena, WINDOWS * WINDOW, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	close_range(FIRST_FILE, ~0u, 0);
	drop_names(h);
	memset(h->files, -1, sizeof(h->files));
	memset(h->tokens, 0, sizeof(h->tokens));
	memset(h->ids, 0, sizeof(h->ids));
	h->opened = h->created = h->named = h->imported = 0;
}

unsigned long fuzz_calls(const struct fuzz_hand *h)
{
	return h->calls;
}
