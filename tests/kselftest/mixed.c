// SPDX-License-Identifier: MIT
/*
 * Seal, revocation, drain, keep, lapse, drop, close and export of the same regions at once, for all
 * backings. Any result of a call is accepted. A mistake shows as a report of the kernel, most of
 * all with a module whose unlocks take long (tests/vm/widened).
 */
#include "drm.h"
#include "keep.h"
#include "lease.h"
#include "peer.h"

#define BYTES (4 * MB)
#define SLOTS 4
#define WORKERS 3
#define PROCESSES 2

/* Memory that the processes of a test share. */
static struct shared {
	__u8 tokens[SLOTS][TMESH_TOKEN_BYTES];
} * shared;

/* The regions that all threads of a process use. Each thread may replace their descriptors. */
static int (*make)(void);
static int dev, vgem, slots[SLOTS];

static int pages(void)
{
	return t_create(dev, BYTES, TMESH_CREATE_NOHUGE);
}

static int huge_pages(void)
{
	return t_create(dev, BYTES, 0);
}

static int memfd(void)
{
	struct tmesh_create_memfd c = {.size = sizeof(c)};

	c.memfd = memfd_create("mixed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (c.memfd < 0)
		return -1;
	c.fd = -1;
	if (!ftruncate(c.memfd, 64 * PAGE) &&
	    fcntl(c.memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) >= 0)
		ioctl(dev, TMESH_CREATE_MEMFD, &c);
	close(c.memfd);
	return c.fd;
}

static int user(void)
{
	struct tmesh_create_user c = {.size = sizeof(c), .bytes = 16 * PAGE, .fd = -1};
	void *p = mmap(NULL, c.bytes, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return -1;
	c.address = ADDRESS(p);
	c.rights = R_READ | R_WRITE;
	ioctl(dev, TMESH_CREATE_USER, &c);
	munmap(p, c.bytes);
	return c.fd;
}

static int import(int source)
{
	struct tmesh_import i = {.size = sizeof(i), .source = source, .fd = -1};

	if (source < 0)
		return -1;
	ioctl(dev, TMESH_IMPORT, &i);
	close(source);
	return i.fd;
}

static int foreign(void)
{
	return import(vgem_buffer(vgem, BYTES, DRM_RDWR));
}

static int opaque(void)
{
	return import(open("/dev/zero", O_RDWR | O_CLOEXEC));
}

static int view(void)
{
	int source = pages(), fd;
	struct tmesh_extent extents[2] = {t_extent(source, 0, 64), t_extent(source, 128, 64)};

	if (source < 0)
		return -1;
	fd = t_gather(dev, extents, 2, R_READ | R_WRITE);
	/* The view may lose its source at any time. */
	t_revoke(source);
	if (fd >= 0) {
		close(fd);
		close(source);
		source = pages();
		extents[0].handle = source;
		extents[1].handle = source;
		fd = source < 0 ? -1 : t_gather(dev, extents, 2, R_READ | R_WRITE);
	}
	if (source >= 0)
		close(source);
	return fd;
}

/* Derive a handle on the region of a slot, because other threads may close the slot's. */
static int take(unsigned int *seed, __u32 flags)
{
	int i = t_random(seed) % SLOTS;
	int fd = __atomic_load_n(&slots[i], __ATOMIC_RELAXED);
	int mine = t_derive(fd, R_ALL, flags);

	return mine < 0 ? t_derive(fd, R_READ, flags) : mine;
}

static void renew(unsigned int *seed)
{
	int i = t_random(seed) % SLOTS, fd = make(), old;

	if (fd < 0)
		return;
	t_token(fd, R_READ, shared->tokens[i]);
	old = __atomic_exchange_n(&slots[i], fd, __ATOMIC_RELAXED);
	if (old >= 0)
		close(old);
}

static void touch(int fd, unsigned int *seed)
{
	int prot = t_random(seed) % 2 ? RW : PROT_READ;
	size_t at = t_random(seed) % 16 * PAGE;
	char *p = t_map(fd, 16 * PAGE, prot);

	if (p == MAP_FAILED)
		return;
	t_read(p + at);
	if (prot == RW)
		t_write(p + at, 1);
	munmap(p, 16 * PAGE);
}

static void lend(int fd)
{
	struct iovec v = {.iov_len = PAGE};
	int ends[2];

	v.iov_base = t_map(fd, PAGE, PROT_READ);
	if (v.iov_base == MAP_FAILED)
		return;
	if (!pipe2(ends, O_CLOEXEC | O_NONBLOCK)) {
		vmsplice(ends[1], &v, 1, SPLICE_F_NONBLOCK);
		usleep(500);
		close(ends[0]);
		close(ends[1]);
	}
	munmap(v.iov_base, PAGE);
}

static void lend_to_device(int fd, unsigned int *seed)
{
	int dmabuf = t_export(fd, 0, 0, t_random(seed) % 2 ? TMESH_EXPORT_WRITE : 0), gem;
	int peer = open("/dev/peer", O_RDWR | O_CLOEXEC);

	if (dmabuf >= 0) {
		gem = vgem_import(vgem, dmabuf);
		if (peer >= 0)
			peer_import(peer, dmabuf, t_random(seed) % 8);
		touch(dmabuf, seed);
		close(dmabuf);
		if (gem >= 0)
			vgem_close(vgem, gem);
	}
	if (peer >= 0)
		close(peer);
}

static void keep_some(int fd, unsigned int *seed)
{
	char name[2] = {'a' + t_random(seed) % 3};
	int got[1];

	switch (t_random(seed) % 4) {
	case 0:
		kept_drop(dev, name);
		break;
	case 1:
		if (kept_open(dev, name, R_READ, 0, got, 1) == 1)
			close(got[0]);
		break;
	default:
		keep(dev, name, &fd, 1, TMESH_KEEP_REPLACE);
	}
}

static void look(int fd)
{
	struct tmesh_holder holders[8];
	struct tmesh_holders q = {
		.size = sizeof(q),
		.entries = ADDRESS(holders),
		.entry_bytes = sizeof(holders[0]),
		.count = ARRAY_SIZE(holders),
	};
	struct tmesh_info i = {.size = sizeof(i), .flags = TMESH_INFO_PINS};

	ioctl(fd, TMESH_HOLDERS, &q);
	ioctl(fd, TMESH_INFO, &i);
}

static void revoke_and_wait(int fd)
{
	struct tmesh_revoke r = {
		.size = sizeof(r),
		.flags = TMESH_REVOKE_WAIT,
		.timeout_ns = MS,
	};

	ioctl(fd, TMESH_REVOKE, &r);
}

/* Make a view that ends with its source, or before. */
static void show(int fd, unsigned int *seed)
{
	struct tmesh_extent extent = t_extent(fd, 0, 16);
	int gathered = t_gather(dev, &extent, 1, R_READ);

	if (gathered < 0)
		return;
	touch(gathered, seed);
	close(gathered);
}

static void open_other(unsigned int *seed)
{
	int fd = t_open(dev, shared->tokens[t_random(seed) % SLOTS], R_READ, 0);

	if (fd < 0)
		return;
	touch(fd, seed);
	close(fd);
}

static void step(unsigned int *seed)
{
	unsigned int what = t_random(seed) % 16;
	int fd, lease;

	if (what < 3) {
		renew(seed);
		return;
	}
	if (what == 3) {
		open_other(seed);
		return;
	}
	fd = take(seed, what == 4 ? TMESH_DERIVE_PIN : 0);
	if (fd < 0)
		return;
	if (what == 5 || what == 6)
		t_seal(fd);
	else if (what == 7)
		revoke_and_wait(fd);
	else if (what == 8)
		t_revoke(fd);
	else if (what == 9)
		keep_some(fd, seed);
	else if (what == 10)
		lend_to_device(fd, seed);
	else if (what == 11)
		lend(fd);
	else if (what == 12)
		look(fd);
	else if (what == 13)
		show(fd, seed);
	if (what > 13) {
		lease = lease_call(fd, 0, 10 * MS, 0, NULL);
		touch(fd, seed);
		usleep(t_random(seed) % 30000);
		if (lease >= 0)
			close(lease);
	}
	touch(fd, seed);
	close(fd);
}

static void *work(void *arg)
{
	unsigned int seed = (unsigned long)arg;

	for (;;)
		step(&seed);
	return NULL;
}

/* Run until killed, with whatever it holds then. */
static pid_t process(unsigned int *seed)
{
	unsigned long own = t_random(seed) | 1;
	pid_t pid = t_fork();
	pthread_t t;

	if (pid)
		return pid;
	t_become(1000, 1000, 0);
	dev = t_dev();
	vgem = open_vgem();
	memset(slots, -1, sizeof(slots));
	for (int i = 1; i < WORKERS; i++)
		pthread_create(&t, NULL, work, (void *)(own * (i + 1) | 1));
	work((void *)own);
	return -1;
}

static void mix(int (*maker)(void))
{
	double until = t_now() + t_length(2, 80);
	unsigned int seed = 4711, killed = 0;
	pid_t pids[PROCESSES];

	make = maker;
	close(open_vgem());
	chmod(vgem_path, 0666);
	chmod("/dev/peer", 0666);
	shared = mmap(NULL, sizeof(*shared), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(shared != MAP_FAILED);
	for (int i = 0; i < PROCESSES; i++)
		pids[i] = process(&seed);
	while (t_now() < until) {
		int i = t_random(&seed) % PROCESSES;

		usleep(100000 + t_random(&seed) % 400000);
		kill_and_reap(pids[i]);
		pids[i] = process(&seed);
		killed++;
	}
	for (int i = 0; i < PROCESSES; i++)
		kill_and_reap(pids[i]);
	T_ALONE()
	{
		t_drop_kept();
	}
	t_note("%u processes killed", killed);
}

TEST_CALL(pages, "all at once: small pages", mix(pages))
TEST_CALL(huge_pages, "all at once: huge pages", mix(huge_pages))
TEST_CALL(memfd, "all at once: memfds", mix(memfd))
TEST_CALL(user, "all at once: memory of a process", mix(user))
TEST_CALL(foreign, "all at once: another exporter's dma-buf", mix(foreign))
TEST_CALL(opaque, "all at once: files of character devices", mix(opaque))
TEST_CALL(view, "all at once: views", mix(view))
