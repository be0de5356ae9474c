// SPDX-License-Identifier: MIT
/*
 * What the fuzzer can call. The calls of the module are rows of a table that says what the
 * fields of their structures are; the others are functions. A new call is a new row.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <libdrm/drm.h>
#include <libdrm/drm_mode.h>

#include "fuzz.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define FILES 16
#define WINDOWS 6
#define WINDOW (3 * HUGE)
#define GEMS 4
#define REMEMBERED 4
#define STRUCT_ROOM 4096
#define ARRAY_ROOM (64 * KB)
/* What is opened while a hand is busy has a number from here on, so it can be closed at once. */
#define FIRST_FILE 32

struct fuzz_hand {
	int dev, null, regions, udmabuf, heap, vgem, pidfd;
	int sw_sync;
	int files[FILES]; /* a ring of what was opened last */
	unsigned int opened;
	unsigned char *arena;
	__u32 gems[GEMS];
	unsigned int imported;
	bool alone; /* a buffer was made that devices must not share */
	__u64 ids[REMEMBERED];
	__u8 tokens[REMEMBERED][TMESH_TOKEN_BYTES];
	unsigned int created, named;
	unsigned char *words;  /* the structure of a call */
	unsigned char *array;  /* what a structure points to */
	unsigned char *locked; /* a page that cannot be written */
	const struct fuzz_input *input;
	int at, last;
	unsigned long calls;
};

/* Fields */

/* What a field is, and so what its byte chooses from. */
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
	TOKEN,
	POINTER,
	STRIDE, /* of an array whose entries have the detail's size */
	/* What the call fills in, and later calls use. */
	OUT_FILE,
	OUT_ID,
	OUT_TOKEN,
};

struct field {
	unsigned short offset, bytes;
	enum kind kind;
	__u64 detail;
};

#define FIELDS_MAX (FUZZ_ARGS + 2)

struct op {
	const char *name;
	/* Of the module's calls: on the device, or on a handle. */
	unsigned int nr, size;
	bool on_device;
	struct field fields[FIELDS_MAX];
	/* Of all others. Returns what the call did. */
	long (*run)(struct fuzz_hand *h, const struct fuzz_call *c);
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

static __u64 edge(unsigned char b)
{
	return edges[b % ARRAY_SIZE(edges)];
}

/* A file: what was opened last for 0, else one opened before, the device, or a wrong one. */
static int file_of(const struct fuzz_hand *h, unsigned char b)
{
	if (b < 240)
		return b % (FILES + 1) == FILES
			       ? h->dev
			       : h->files[(h->opened - 1 - b % (FILES + 1)) % FILES];
	return b % 2 ? h->null : -1;
}

static unsigned char *address(struct fuzz_hand *h, unsigned char window, unsigned char page)
{
	return h->arena + window % WINDOWS * WINDOW +
	       (page < 128 ? page : (WINDOW / PAGE - 256 + page)) * PAGE;
}

/* Memory for the kernel: good, none, half, or that of a region, where copying faults. */
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
		return address(h, b, 0);
	default:
		return (void *)(unsigned long)edge(b / 6);
	}
}

/* An array for a gather view: places in what was opened last, which may repeat. */
static void *extents(struct fuzz_hand *h, unsigned char b)
{
	struct tmesh_extent *e = memory(h, b);

	for (size_t i = 0; i < 128 && (void *)e == h->array; i++)
		e[i] = (struct tmesh_extent){
			.handle = file_of(h, b % 4 ? i % (b % 4) : 0),
			.offset = b / 4 % 4 * i * PAGE,
			.bytes = (1 + b / 16 % 4) * PAGE,
		};
	return e;
}

/* The bits of @mask that the bits of @b choose, from the lowest. */
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
	static const __u32 modes[] = {0, 0600, 0660, 0640, 0400, 0440, 0220, 0777, 010, 01000};
	static const __u32 groups[] = {0, 1500, 1001, 77, ~0u};
	bool odd = b >= 224;

	switch (f->kind) {
	case SIZE:
		return !odd ? op->size : b < 240 ? op->size + (b - 232) * 4 : edge(b);
	case FLAGS:
		return odd ? 1u << b % 32 : some_bits(f->detail, b);
	case ZERO:
		return odd ? b : 0;
	case AMOUNT:
		return !b ? f->detail : b < 192 ? b % 8 * PAGE : edge(b);
	case COUNT:
		return !b ? 4 : b < 128 ? b : edge(b);
	case RIGHTS:
		return !b ? R_ALL : odd ? 1u << b % 32 : b & R_ALL;
	case FILE_OF:
		return file_of(h, b);
	case ID:
		return !b ? 0 : b < 128 ? h->ids[b % REMEMBERED] : edge(b);
	case MODE:
		return modes[b % ARRAY_SIZE(modes)];
	case GROUP:
		return groups[b % ARRAY_SIZE(groups)];
	case NODE:
		return odd ? edge(b) : b % 3;
	case MSEC:
		return odd ? edge(b) : b % 16;
	case NSEC:
		return odd ? edge(b) : b * 1000000ull;
	case TIMEOUT:
		return b * 20000ull;
	case VALUE:
		return odd ? edge(b) : b;
	case PIDFD:
		return !b ? 0 : b % 2 ? h->pidfd : file_of(h, b);
	case ADDRESS:
		return (unsigned long)address(h, b, 0);
	case EXTENTS:
		return (unsigned long)extents(h, b);
	case STRIDE:
		return !odd ? f->detail : b < 240 ? f->detail + (b - 232) * 8 : edge(b);
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
	case TOKEN:
		memcpy(to, h->tokens[b % REMEMBERED], f->bytes);
		to[0] ^= b >= 224;
		break;
	default:
		value = number(h, f, op, b);
		memcpy(to, &value, f->bytes);
	}
}

static void keep_file(struct fuzz_hand *h, int fd)
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
		keep_file(h, fd);
	} else if (f->kind == OUT_ID) {
		memcpy(&h->ids[h->created++ % REMEMBERED], from, sizeof(h->ids[0]));
	} else if (f->kind == OUT_TOKEN) {
		memcpy(h->tokens[h->named++ % REMEMBERED], from, TMESH_TOKEN_BYTES);
	}
}

static long run_ioctl(struct fuzz_hand *h, const struct op *op, const struct fuzz_call *c)
{
	const struct field *f;
	int used = 0, fd = op->on_device && !c->fd ? h->dev : file_of(h, c->fd);
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

/* Any call on any file with any bytes. */
static long run_raw(struct fuzz_hand *h, const struct fuzz_call *c)
{
	memset(h->words, 0, STRUCT_ROOM);
	for (int i = 2; i < FUZZ_ARGS; i++) {
		__u64 value = c->arg[i] < 128 ? c->arg[i] : edge(c->arg[i]);

		memcpy(h->words + 8 * (i - 2), &value, sizeof(value));
	}
	memcpy(h->words, &(__u32){c->arg[1]}, sizeof(__u32));
	return ioctl(file_of(h, c->fd), _IOC(c->arg[0] / 64, TMESH_IOC_MAGIC, c->arg[0] % 64, 0),
		     h->words);
}

/* Mappings */

static const int prots[] = {PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE, PROT_WRITE,
			    PROT_READ | PROT_EXEC};

static size_t length(unsigned char b)
{
	return b < 128 ? (b + 1) * PAGE : b < 192 ? HUGE : WINDOW;
}

static long run_mmap(struct fuzz_hand *h, const struct fuzz_call *c)
{
	static const int flags[] = {MAP_SHARED,
				    MAP_SHARED,
				    MAP_SHARED | MAP_POPULATE,
				    MAP_PRIVATE,
				    MAP_SHARED | MAP_LOCKED,
				    MAP_SHARED_VALIDATE | MAP_SYNC};
	size_t bytes = length(c->arg[1]);
	unsigned char *at = address(h, c->arg[0], c->arg[5]);
	off_t offset = c->arg[4] < 240 ? c->arg[4] % 128 * PAGE : edge(c->arg[4]) & ~(PAGE - 1);

	if (at + bytes > h->arena + WINDOWS * WINDOW)
		bytes = h->arena + WINDOWS * WINDOW - at;
	return mmap(at, bytes, prots[c->arg[2] % ARRAY_SIZE(prots)],
		    flags[c->arg[3] % ARRAY_SIZE(flags)] | MAP_FIXED, file_of(h, c->fd),
		    offset) == MAP_FAILED
		       ? -1
		       : 0;
}

static long run_munmap(struct fuzz_hand *h, const struct fuzz_call *c)
{
	/* The place stays ours, empty or as plain memory: nothing else may come to lie there. */
	return mmap(address(h, c->arg[0], c->arg[2]), c->arg[1] % 128 * PAGE + PAGE,
		    c->arg[3] % 2 ? PROT_READ | PROT_WRITE : PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED
		       ? -1
		       : 0;
}

static long run_mprotect(struct fuzz_hand *h, const struct fuzz_call *c)
{
	return mprotect(address(h, c->arg[0], c->arg[3]), length(c->arg[1] % 192),
			prots[c->arg[2] % ARRAY_SIZE(prots)]);
}

static long run_madvise(struct fuzz_hand *h, const struct fuzz_call *c)
{
	static const int advices[] = {MADV_DONTNEED,   MADV_WILLNEED,	    MADV_COLD,
				      MADV_PAGEOUT,    MADV_REMOVE,	    MADV_HUGEPAGE,
				      MADV_NOHUGEPAGE, MADV_POPULATE_WRITE, MADV_POPULATE_READ,
				      MADV_DONTFORK,   MADV_FREE,	    MADV_COLLAPSE};

	return madvise(address(h, c->arg[0], c->arg[3]), length(c->arg[1] % 192),
		       advices[c->arg[2] % ARRAY_SIZE(advices)]);
}

static long run_mremap(struct fuzz_hand *h, const struct fuzz_call *c)
{
	unsigned char *from = address(h, c->arg[0], c->arg[2]), *to = address(h, c->arg[1], 0);
	size_t bytes = length(c->arg[3] % 192), room = length(c->arg[4] % 192);
	void *p = mremap(from, bytes, room, MREMAP_MAYMOVE | MREMAP_FIXED, to);

	if (p == MAP_FAILED)
		return -1;
	mmap(from, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	return 0;
}

static long run_touch(struct fuzz_hand *h, const struct fuzz_call *c)
{
	unsigned char *p = address(h, c->arg[0], c->arg[1]) + c->arg[2] * 16;

	return c->arg[3] % 2 ? t_read(p) : t_write(p, c->arg[3]);
}

static long run_peek(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct iovec mine = {h->array, 2 * PAGE};
	struct iovec theirs = {address(h, c->arg[0], c->arg[1]), 2 * PAGE};

	return c->arg[2] % 2 ? process_vm_writev(getpid(), &mine, 1, &theirs, 1, 0)
			     : process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0);
}

/* Pages of a mapping in a pipe: pinned until that is closed. */
static long run_splice(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct iovec io = {address(h, c->arg[0], c->arg[1]), 2 * PAGE};
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return -1;
	keep_file(h, ends[0]);
	keep_file(h, ends[1]);
	return vmsplice(ends[1], &io, 1, SPLICE_F_NONBLOCK);
}

/* Files */

static long run_close(struct fuzz_hand *h, const struct fuzz_call *c)
{
	int fd = file_of(h, c->fd);

	return fd >= FIRST_FILE ? close(fd) : 0;
}

static long run_dup(struct fuzz_hand *h, const struct fuzz_call *c)
{
	int fd = fcntl(file_of(h, c->fd), F_DUPFD_CLOEXEC, FIRST_FILE);

	keep_file(h, fd);
	return fd;
}

/* On its way through a socket, and arrived or cut off there. */
static long run_send(struct fuzz_hand *h, const struct fuzz_call *c)
{
	char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec io = {&byte, 1};
	struct msghdr msg = {
		.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = room,
		.msg_controllen = sizeof(room),
	};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	int fd = file_of(h, c->fd), pair[2];
	long ret;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -1;
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(fd));
	ret = sendmsg(pair[0], &msg, MSG_NOSIGNAL);
	if (ret == 1 && c->arg[0] % 2)
		keep_file(h, t_recv_fd(pair[1]));
	close(pair[0]);
	/* What is left in a socket that nobody closes goes with the process. */
	return c->arg[0] % 4 > 1 ? ret : close(pair[1]);
}

static long run_look(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct pollfd pf = {.fd = file_of(h, c->fd), .events = c->arg[1]};
	char path[64];

	switch (c->arg[0] % 5) {
	case 0:
		return poll(&pf, 1, 0);
	case 1:
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pf.fd);
		return t_read_file(path, (char *)h->array, ARRAY_ROOM);
	case 2:
		return lseek(pf.fd, c->arg[1], c->arg[2] % 4);
	case 3:
		return read(pf.fd, h->array, 64);
	default:
		return pread(h->regions, h->array, 4 * c->arg[1], 0);
	}
}

static long run_memfd(struct fuzz_hand *h, const struct fuzz_call *c)
{
	int fd = memfd_create("fuzz", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	if (fd < 0)
		return -1;
	keep_file(h, fd);
	if (ftruncate(fd, c->arg[0] < 224 ? length(c->arg[0] % 192) : c->arg[0]))
		return -1;
	return fcntl(fd, F_ADD_SEALS,
		     (c->arg[1] & 1 ? 0 : F_SEAL_SHRINK) | (c->arg[1] & 2 ? F_SEAL_WRITE : 0) |
			     (c->arg[1] & 4 ? F_SEAL_FUTURE_WRITE : 0) |
			     (c->arg[1] & 8 ? F_SEAL_GROW | F_SEAL_SEAL : 0));
}

static long run_punch(struct fuzz_hand *h, const struct fuzz_call *c)
{
	return fallocate(file_of(h, c->fd), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			 c->arg[0] * PAGE, (c->arg[1] + 1) * PAGE);
}

/* dma-bufs, ours and others' */

/*
 * The heap and udmabuf synchronise the CPU's caches for each device on its own, and in longer
 * pieces than vgem says that it can take. The DMA API complains about both, so what they make is
 * not attached. Of vgem's own there is as little as makes one piece.
 */
static long run_dmabuf(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct dma_heap_allocation_data heap = {.len = length(c->arg[1] % 192),
						.fd_flags = O_RDWR | O_CLOEXEC};
	struct udmabuf_create u = {.memfd = file_of(h, c->fd), .size = length(c->arg[1] % 192)};
	struct drm_mode_create_dumb dumb = {.width = 1024, .height = 1 + c->arg[1] % 16, .bpp = 32};
	struct drm_prime_handle prime = {.flags = DRM_RDWR | DRM_CLOEXEC};
	int fd = -1;

	switch (c->arg[0] % 3) {
	case 0:
		if (!ioctl(h->heap, DMA_HEAP_IOCTL_ALLOC, &heap))
			fd = heap.fd;
		h->alone = true;
		break;
	case 1:
		fd = ioctl(h->udmabuf, UDMABUF_CREATE, &u);
		h->alone = true;
		break;
	case 2:
		if (ioctl(h->vgem, DRM_IOCTL_MODE_CREATE_DUMB, &dumb))
			break;
		prime.handle = dumb.handle;
		h->gems[h->imported++ % GEMS] = dumb.handle;
		if (!ioctl(h->vgem, DRM_IOCTL_PRIME_HANDLE_TO_FD, &prime))
			fd = prime.fd;
		break;
	}
	keep_file(h, fd);
	return fd;
}

static long run_sync(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct dma_buf_sync sync = {.flags = c->arg[0] & DMA_BUF_SYNC_VALID_FLAGS_MASK};
	struct dma_buf_export_sync_file e = {.flags = c->arg[0] & DMA_BUF_SYNC_RW, .fd = -1};
	int fd = file_of(h, c->fd);

	if (c->arg[1] % 2 == 0)
		return ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
	if (ioctl(fd, DMA_BUF_IOCTL_EXPORT_SYNC_FILE, &e))
		return -1;
	keep_file(h, e.fd);
	return e.fd;
}

/* A driver's fence, which only sw_sync can make; it is signalled when its timeline is closed. */
static long run_fence(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct {
		__u32 value;
		char name[32];
		__s32 fence;
	} make = {.value = c->arg[1] % 4, .name = "fuzz"};
	struct dma_buf_import_sync_file in = {.flags = c->arg[0] & DMA_BUF_SYNC_RW};
	int fd = file_of(h, c->fd);

	/* Open no longer than needed: closing it is what signals what nobody signalled. */
	if (h->sw_sync < 0)
		h->sw_sync = open("/sys/kernel/debug/sync/sw_sync", O_RDWR | O_CLOEXEC);
	if (ioctl(h->sw_sync, _IOWR('W', 0, make), &make))
		return -1;
	in.fd = make.fence;
	keep_file(h, make.fence);
	if (c->arg[2] % 2)
		ioctl(h->sw_sync, _IOW('W', 1, __u32), &(__u32){1});
	return ioctl(fd, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, &in);
}

static long run_attach(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct drm_prime_handle p = {.fd = file_of(h, c->fd)};

	if (h->vgem < 0 || h->alone || ioctl(h->vgem, DRM_IOCTL_PRIME_FD_TO_HANDLE, &p))
		return -1;
	h->gems[h->imported++ % GEMS] = p.handle;
	return p.handle;
}

static long run_release(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct drm_gem_close g = {.handle = h->gems[c->arg[0] % GEMS]};

	h->gems[c->arg[0] % GEMS] = 0;
	return g.handle ? ioctl(h->vgem, DRM_IOCTL_GEM_CLOSE, &g) : 0;
}

/* A child does what comes next too, at once, and ends by itself or is killed. */
static long run_fork(struct fuzz_hand *h, const struct fuzz_call *c)
{
	pid_t pid = fork();

	if (!pid) {
		h->last = h->at + 1 + c->arg[0] % 8;
		if (h->last > h->input->count)
			h->last = h->input->count;
		return 0;
	}
	if (pid > 0 && c->arg[1] % 2)
		kill(pid, SIGKILL);
	return pid > 0 ? waitpid(pid, NULL, 0) : -1;
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
		    F(tmesh_create, linger_ms, MSEC), F(tmesh_create, label, LABEL),
		    F(tmesh_create, pad, ZERO), F(tmesh_create, fd, OUT_FILE),
		    F(tmesh_create, id, OUT_ID)}},
	{"create_memfd", CALL(TMESH_CREATE_MEMFD, tmesh_create_memfd), .on_device = true,
	 .fields = {HEAD(tmesh_create_memfd, TMESH_CREATE_GID | TMESH_CREATE_NOPIN),
		    F(tmesh_create_memfd, bytes, AMOUNT, 0), F(tmesh_create_memfd, memfd, FILE_OF),
		    F(tmesh_create_memfd, mode, MODE), F(tmesh_create_memfd, gid, GROUP),
		    F(tmesh_create_memfd, linger_ms, MSEC), F(tmesh_create_memfd, label, LABEL),
		    F(tmesh_create_memfd, fd, OUT_FILE), F(tmesh_create_memfd, id, OUT_ID)}},
	{"open", CALL(TMESH_OPEN, tmesh_open), .on_device = true,
	 .fields = {HEAD(tmesh_open, TMESH_OPEN_PIN), F(tmesh_open, rights, RIGHTS),
		    F(tmesh_open, token, TOKEN), F(tmesh_open, fd, OUT_FILE)}},
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
		    F(tmesh_revoke, timeout_ns, TIMEOUT)}},
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
		    F(tmesh_create_user, linger_ms, MSEC), F(tmesh_create_user, label, LABEL),
		    F(tmesh_create_user, fd, OUT_FILE), F(tmesh_create_user, id, OUT_ID)}},
	{"import", CALL(TMESH_IMPORT, tmesh_import), .on_device = true,
	 .fields = {HEAD(tmesh_import, TMESH_CREATE_GID | TMESH_IMPORT_NOMAP),
		    F(tmesh_import, bytes, AMOUNT, 0), F(tmesh_import, source, FILE_OF),
		    F(tmesh_import, mode, MODE), F(tmesh_import, gid, GROUP),
		    F(tmesh_import, linger_ms, MSEC), F(tmesh_import, label, LABEL),
		    F(tmesh_import, pad, ZERO), F(tmesh_import, fd, OUT_FILE),
		    F(tmesh_import, id, OUT_ID)}},
	{"opaque", CALL(TMESH_OPAQUE, tmesh_opaque),
	 .fields = {HEAD(tmesh_opaque, 0), F(tmesh_opaque, pad, ZERO),
		    F(tmesh_opaque, fd, OUT_FILE)}},
	{"gather", CALL(TMESH_GATHER, tmesh_gather), .on_device = true,
	 .fields = {HEAD(tmesh_gather, TMESH_CREATE_GID), F(tmesh_gather, extents, EXTENTS),
		    F(tmesh_gather, count, COUNT), F(tmesh_gather, rights, RIGHTS),
		    F(tmesh_gather, mode, MODE), F(tmesh_gather, gid, GROUP),
		    F(tmesh_gather, linger_ms, MSEC), F(tmesh_gather, label, LABEL),
		    F(tmesh_gather, fd, OUT_FILE), F(tmesh_gather, id, OUT_ID)}},
	{"signal", CALL(TMESH_SIGNAL, tmesh_signal),
	 .fields = {HEAD(tmesh_signal, 0), F(tmesh_signal, value, VALUE)}},
	{"wait", CALL(TMESH_WAIT, tmesh_wait),
	 .fields = {HEAD(tmesh_wait, TMESH_WAIT_ARM), F(tmesh_wait, value, VALUE),
		    F(tmesh_wait, timeout_ns, TIMEOUT)}},
	{"raw", .run = run_raw},
	{"mmap", .run = run_mmap},
	{"munmap", .run = run_munmap},
	{"mprotect", .run = run_mprotect},
	{"madvise", .run = run_madvise},
	{"mremap", .run = run_mremap},
	{"touch", .run = run_touch},
	{"peek", .run = run_peek},
	{"splice", .run = run_splice},
	{"close", .run = run_close},
	{"dup", .run = run_dup},
	{"send", .run = run_send},
	{"look", .run = run_look},
	{"memfd", .run = run_memfd},
	{"punch", .run = run_punch},
	{"dmabuf", .run = run_dmabuf},
	{"sync", .run = run_sync},
	{"fence", .run = run_fence},
	{"attach", .run = run_attach},
	{"release", .run = run_release},
	{"fork", .run = run_fork},
};

int fuzz_ops(void)
{
	return ARRAY_SIZE(ops);
}

const char *fuzz_op_name(int op)
{
	return ops[op].name;
}

/* A file that stays open between inputs, out of the way of those that do not. */
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
		const struct op *op = &ops[c->op];
		long ret;

		errno = 0;
		ret = op->run ? op->run(h, c) : run_ioctl(h, op, c);
		if (tell)
			fprintf(tell, "# %s = %ld %s\n", op->name, ret,
				ret < 0 ? strerrorname_np(errno) : "");
	}
	if (getpid() != self)
		_exit(0);
}

void fuzz_lay_down(struct fuzz_hand *h)
{
	for (unsigned char i = 0; i < GEMS; i++)
		run_release(h, &(struct fuzz_call){.arg = {i}});
	h->sw_sync = -1;
	h->alone = false;
	mmap(h->arena, WINDOWS * WINDOW, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	close_range(FIRST_FILE, ~0u, 0);
	memset(h->files, -1, sizeof(h->files));
	memset(h->tokens, 0, sizeof(h->tokens));
	memset(h->ids, 0, sizeof(h->ids));
	h->opened = h->created = h->named = h->imported = 0;
}

unsigned long fuzz_calls(const struct fuzz_hand *h)
{
	return h->calls;
}
