// SPDX-License-Identifier: MIT
/*
 * The fuzzer's calls other than the module's own: on mappings, files, and dma-bufs of tmesh and of
 * others.
 */
#include <sys/mount.h>
#include <sys/socket.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <libdrm/drm.h>
#include <libdrm/drm_mode.h>

#include "fuzz_hand.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Make any call on any file with any bytes. */
static long run_raw(struct fuzz_hand *h, const struct fuzz_call *c)
{
	memset(h->words, 0, STRUCT_ROOM);
	for (int i = 2; i < FUZZ_ARGS; i++) {
		__u64 value = c->arg[i] < 128 ? c->arg[i] : fuzz_edge(c->arg[i]);

		memcpy(h->words + 8 * (i - 2), &value, sizeof(value));
	}
	memcpy(h->words, &(__u32){c->arg[1]}, sizeof(__u32));
	return ioctl(fuzz_file_of(h, c->fd),
		     _IOC(c->arg[0] / 64, TMESH_IOC_MAGIC, c->arg[0] % 64, 0), h->words);
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
	unsigned char *at = fuzz_address(h, c->arg[0], c->arg[5]);
	off_t offset =
		c->arg[4] < 240 ? c->arg[4] % 128 * PAGE : fuzz_edge(c->arg[4]) & ~(PAGE - 1);

	if (at + bytes > h->arena + WINDOWS * WINDOW)
		bytes = h->arena + WINDOWS * WINDOW - at;
	return mmap(at, bytes, prots[c->arg[2] % ARRAY_SIZE(prots)],
		    flags[c->arg[3] % ARRAY_SIZE(flags)] | MAP_FIXED, fuzz_file_of(h, c->fd),
		    offset) == MAP_FAILED
		       ? -1
		       : 0;
}

static long run_munmap(struct fuzz_hand *h, const struct fuzz_call *c)
{
	/*
	 * Keep the address range reserved, empty or as plain memory, so that nothing else is mapped
	 * there.
	 */
	return mmap(fuzz_address(h, c->arg[0], c->arg[2]), c->arg[1] % 128 * PAGE + PAGE,
		    c->arg[3] % 2 ? PROT_READ | PROT_WRITE : PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED
		       ? -1
		       : 0;
}

static long run_mprotect(struct fuzz_hand *h, const struct fuzz_call *c)
{
	return mprotect(fuzz_address(h, c->arg[0], c->arg[3]), length(c->arg[1] % 192),
			prots[c->arg[2] % ARRAY_SIZE(prots)]);
}

static long run_madvise(struct fuzz_hand *h, const struct fuzz_call *c)
{
	static const int advices[] = {MADV_DONTNEED,   MADV_WILLNEED,	    MADV_COLD,
				      MADV_PAGEOUT,    MADV_REMOVE,	    MADV_HUGEPAGE,
				      MADV_NOHUGEPAGE, MADV_POPULATE_WRITE, MADV_POPULATE_READ,
				      MADV_DONTFORK,   MADV_FREE,	    MADV_COLLAPSE};

	return madvise(fuzz_address(h, c->arg[0], c->arg[3]), length(c->arg[1] % 192),
		       advices[c->arg[2] % ARRAY_SIZE(advices)]);
}

static long run_mremap(struct fuzz_hand *h, const struct fuzz_call *c)
{
	unsigned char *from = fuzz_address(h, c->arg[0], c->arg[2]),
		      *to = fuzz_address(h, c->arg[1], 0);
	size_t bytes = length(c->arg[3] % 192), room = length(c->arg[4] % 192);
	void *p = mremap(from, bytes, room, MREMAP_MAYMOVE | MREMAP_FIXED, to);

	if (p == MAP_FAILED)
		return -1;
	mmap(from, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	return 0;
}

static long run_touch(struct fuzz_hand *h, const struct fuzz_call *c)
{
	unsigned char *p = fuzz_address(h, c->arg[0], c->arg[1]) + c->arg[2] * 16;

	return c->arg[3] % 2 ? t_read(p) : t_write(p, c->arg[3]);
}

static long run_peek(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct iovec mine = {h->array, 2 * PAGE};
	struct iovec theirs = {fuzz_address(h, c->arg[0], c->arg[1]), 2 * PAGE};

	return c->arg[2] % 2 ? process_vm_writev(getpid(), &mine, 1, &theirs, 1, 0)
			     : process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0);
}

/* Splice pages of a mapping into a pipe, which pins them until it is closed. */
static long run_splice(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct iovec io = {fuzz_address(h, c->arg[0], c->arg[1]), 2 * PAGE};
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return -1;
	fuzz_keep_file(h, ends[0]);
	fuzz_keep_file(h, ends[1]);
	return vmsplice(ends[1], &io, 1, SPLICE_F_NONBLOCK);
}

/* Files */

static long run_close(struct fuzz_hand *h, const struct fuzz_call *c)
{
	int fd = fuzz_file_of(h, c->fd);

	return fd >= FIRST_FILE ? close(fd) : 0;
}

static long run_dup(struct fuzz_hand *h, const struct fuzz_call *c)
{
	int fd = fcntl(fuzz_file_of(h, c->fd), F_DUPFD_CLOEXEC, FIRST_FILE);

	fuzz_keep_file(h, fd);
	return fd;
}

/* Send a descriptor over a socket, and receive it or leave it there. */
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
	int fd = fuzz_file_of(h, c->fd), pair[2];
	long ret;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -1;
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(fd));
	ret = sendmsg(pair[0], &msg, MSG_NOSIGNAL);
	if (ret == 1 && c->arg[0] % 2)
		fuzz_keep_file(h, t_recv_fd(pair[1]));
	close(pair[0]);
	/* A message left in a socket ends with the process. */
	return c->arg[0] % 4 > 1 ? ret : close(pair[1]);
}

static long run_look(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct pollfd pf = {.fd = fuzz_file_of(h, c->fd), .events = c->arg[1]};
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
	fuzz_keep_file(h, fd);
	if (ftruncate(fd, c->arg[0] < 224 ? length(c->arg[0] % 192) : c->arg[0]))
		return -1;
	return fcntl(fd, F_ADD_SEALS,
		     (c->arg[1] & 1 ? 0 : F_SEAL_SHRINK) | (c->arg[1] & 2 ? F_SEAL_WRITE : 0) |
			     (c->arg[1] & 4 ? F_SEAL_FUTURE_WRITE : 0) |
			     (c->arg[1] & 8 ? F_SEAL_GROW | F_SEAL_SEAL : 0));
}

static long run_punch(struct fuzz_hand *h, const struct fuzz_call *c)
{
	return fallocate(fuzz_file_of(h, c->fd), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			 c->arg[0] * PAGE, (c->arg[1] + 1) * PAGE);
}

/* Kept files */

#define FUZZ_MOUNT "/fuzz_files"

void fuzz_mount(void)
{
	mkdir(FUZZ_MOUNT, 0755);
	umount2(FUZZ_MOUNT, MNT_DETACH);
	REQUIRE_OK(mount("none", FUZZ_MOUNT, "tmesh", 0, NULL));
}

void fuzz_unmount(void)
{
	umount2(FUZZ_MOUNT, MNT_DETACH);
}

/* Open a path of the tree, by its root or by a folder that is open. */
static long run_path(struct fuzz_hand *h, const struct fuzz_call *c)
{
	static const char *const tails[] = {"a/b", "",	"a", "d",	 "e/f/g", "e/h/none",
					    "e",   ".", "j", "a/../a/c", "x//",	  "a\n"};
	static const int flags[] = {O_RDONLY,		O_RDONLY | O_DIRECT,   O_PATH,
				    O_DIRECTORY,	O_RDONLY | O_NONBLOCK, O_RDWR,
				    O_WRONLY | O_TRUNC, O_RDONLY | O_NOATIME};
	static const int users[] = {0, 1001, 1002, -1};
	const char *tail = tails[c->arg[1] % ARRAY_SIZE(tails)];
	int fd, how = flags[c->arg[2] % ARRAY_SIZE(flags)] | O_CLOEXEC;
	char path[64];

	if (c->arg[3] % 2) {
		fd = openat(fuzz_file_of(h, c->fd), tail, how);
	} else {
		snprintf(path, sizeof(path), FUZZ_MOUNT "/%d/k%d/%s",
			 c->arg[0] / 4 % 2 ? users[c->arg[0] / 8 % 4] : (int)geteuid(),
			 c->arg[0] % 4, tail);
		/* A shorter path for some. */
		if (c->arg[4] >= 224)
			path[sizeof(FUZZ_MOUNT) + c->arg[4] % 8] = '\0';
		fd = open(path, how);
	}
	fuzz_keep_file(h, fd);
	return fd;
}

static long run_read(struct fuzz_hand *h, const struct fuzz_call *c)
{
	int fd = fuzz_file_of(h, c->fd), ends[2];
	off_t at = c->arg[1] < 224 ? c->arg[1] * 128 : (off_t)fuzz_edge(c->arg[1]);
	size_t bytes = c->arg[2] < 224 ? c->arg[2] * 128 : 64 * KB;
	void *to = c->arg[3] < 192 ? h->array : fuzz_address(h, c->arg[3], c->arg[4]);
	struct iovec io[2] = {{to, bytes / 2}, {to, bytes - bytes / 2}};
	struct stat st;
	long ret;

	switch (c->arg[0] % 6) {
	case 0:
		return pread(fd, to, bytes, at);
	case 1:
		return preadv(fd, io, 2, at);
	case 2:
		return syscall(SYS_getdents64, fd, to, bytes);
	case 3:
		return fstat(fd, &st);
	case 4:
		return lseek(fd, at, c->arg[3] % 6);
	default:
		if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
			return -1;
		ret = splice(fd, &at, ends[1], NULL, bytes, SPLICE_F_NONBLOCK);
		close(ends[0]);
		close(ends[1]);
		return ret;
	}
}

/* dma-bufs, ours and others' */

/*
 * Make a dma-buf of another exporter. The heap and udmabuf synchronise the CPU's caches for each
 * device separately, and in longer segments than vgem accepts. The DMA API complains about both, so
 * their buffers are not attached. Buffers of vgem are so small that they have one segment.
 */
static long run_dmabuf(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct dma_heap_allocation_data heap = {.len = length(c->arg[1] % 192),
						.fd_flags = O_RDWR | O_CLOEXEC};
	struct udmabuf_create u = {.memfd = fuzz_file_of(h, c->fd),
				   .size = length(c->arg[1] % 192)};
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
	fuzz_keep_file(h, fd);
	return fd;
}

static long run_sync(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct dma_buf_sync sync = {.flags = c->arg[0] & DMA_BUF_SYNC_VALID_FLAGS_MASK};
	struct dma_buf_export_sync_file e = {.flags = c->arg[0] & DMA_BUF_SYNC_RW, .fd = -1};
	int fd = fuzz_file_of(h, c->fd);

	if (c->arg[1] % 2 == 0)
		return ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
	if (ioctl(fd, DMA_BUF_IOCTL_EXPORT_SYNC_FILE, &e))
		return -1;
	fuzz_keep_file(h, e.fd);
	return e.fd;
}

/* Make a driver's fence by sw_sync. It is signalled when its timeline is closed. */
static long run_fence(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct {
		__u32 value;
		char name[32];
		__s32 fence;
	} make = {.value = c->arg[1] % 4, .name = "fuzz"};
	struct dma_buf_import_sync_file in = {.flags = c->arg[0] & DMA_BUF_SYNC_RW};
	int fd = fuzz_file_of(h, c->fd);

	/* Close the timeline soon: that signals the fences that are still pending. */
	if (h->sw_sync < 0)
		h->sw_sync = open("/sys/kernel/debug/sync/sw_sync", O_RDWR | O_CLOEXEC);
	if (ioctl(h->sw_sync, _IOWR('W', 0, make), &make))
		return -1;
	in.fd = make.fence;
	fuzz_keep_file(h, make.fence);
	if (c->arg[2] % 2)
		ioctl(h->sw_sync, _IOW('W', 1, __u32), &(__u32){1});
	return ioctl(fd, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, &in);
}

static long run_attach(struct fuzz_hand *h, const struct fuzz_call *c)
{
	struct drm_prime_handle p = {.fd = fuzz_file_of(h, c->fd)};

	if (h->vgem < 0 || h->alone || ioctl(h->vgem, DRM_IOCTL_PRIME_FD_TO_HANDLE, &p))
		return -1;
	h->gems[h->imported++ % GEMS] = p.handle;
	return p.handle;
}

static long release(struct fuzz_hand *h, int i)
{
	struct drm_gem_close g = {.handle = h->gems[i]};

	h->gems[i] = 0;
	return g.handle ? ioctl(h->vgem, DRM_IOCTL_GEM_CLOSE, &g) : 0;
}

static long run_release(struct fuzz_hand *h, const struct fuzz_call *c)
{
	return release(h, c->arg[0] % GEMS);
}

void fuzz_release_gems(struct fuzz_hand *h)
{
	for (int i = 0; i < GEMS; i++)
		release(h, i);
}

/* Fork a child that also runs the rest of the input. It ends by itself or is killed. */
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

const struct fuzz_system fuzz_system[] = {
	{"raw", run_raw},	    {"mmap", run_mmap},	      {"munmap", run_munmap},
	{"mprotect", run_mprotect}, {"madvise", run_madvise}, {"mremap", run_mremap},
	{"touch", run_touch},	    {"peek", run_peek},	      {"splice", run_splice},
	{"close", run_close},	    {"dup", run_dup},	      {"send", run_send},
	{"look", run_look},	    {"memfd", run_memfd},     {"punch", run_punch},
	{"dmabuf", run_dmabuf},	    {"sync", run_sync},	      {"fence", run_fence},
	{"attach", run_attach},	    {"release", run_release}, {"fork", run_fork},
	{"path", run_path},	    {"read", run_read},
};
const int fuzz_system_ops = ARRAY_SIZE(fuzz_system);
