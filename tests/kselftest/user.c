// SPDX-License-Identifier: MIT
/*
 * TMESH_CREATE_USER: which memory can be pinned, its charges, and its lifetime.
 */
#include "drm.h"
#include "t.h"
#include "v4l2.h"

#define BYTES (4 * MB)
#define RW (PROT_READ | PROT_WRITE)
#define ADDRESS(p) ((__u64)(unsigned long)(p))

static struct tmesh_create_user last; /* as the kernel left it */

static int create(int dev, const volatile void *p, __u64 bytes, __u32 rights)
{
	last = (struct tmesh_create_user){
		.size = sizeof(last),
		.address = ADDRESS(p),
		.bytes = bytes,
		.rights = rights,
	};
	return ioctl(dev, TMESH_CREATE_USER, &last) ? -1 : last.fd;
}

static unsigned char *memory(size_t bytes)
{
	unsigned char *p = mmap(NULL, bytes, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(p != MAP_FAILED);
	return p;
}

/* Return the number of bytes that this process has pinned. */
static __u64 pinned(void)
{
	char kb[32];

	REQUIRE(t_file_value("/proc/self/status", "VmPin", kb, sizeof(kb)));
	return strtoull(kb, NULL, 10) * KB;
}

static void refused(int dev, const volatile void *p, __u64 bytes, __u32 rights, int err,
		    __u32 reason, const volatile void *bad)
{
	__u64 before = pinned(), used = t_caps(dev).used_bytes;
	int fds = t_count_fds();

	CHECK_ERR(create(dev, p, bytes, rights), err);
	CHECK_EQ(last.reason, reason);
	CHECK_EQ(last.bad_address, ADDRESS(bad));
	CHECK_EQ(pinned(), before);
	CHECK_EQ(t_caps(dev).used_bytes, used);
	CHECK_EQ(t_count_fds(), fds);
}

TEST(create, "a range of the caller's becomes a region, pinned and charged while it lives")
{
	int dev = t_dev(), h;
	unsigned char *p = memory(BYTES);
	struct tmesh_info i;

	CHECK(t_caps(dev).features & TMESH_FEATURE_USER);
	h = REQUIRE_OK(create(dev, p + PAGE, BYTES - PAGE, R_READ | R_WRITE));
	i = t_info(h);
	CHECK_EQ(i.id, last.id);
	CHECK_EQ(i.backing, TMESH_BACKING_USER);
	CHECK_EQ(i.rights, R_ALL);
	CHECK_EQ(i.bytes, BYTES - PAGE);
	CHECK_EQ(i.alloc_bytes, BYTES - PAGE);
	CHECK_EQ(fcntl(h, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(t_caps(dev).used_bytes, BYTES - PAGE);
	CHECK_EQ(pinned(), BYTES - PAGE);
	CHECK_EQ(p[PAGE], 0);
	close(h);
	CHECK_EQ(pinned(), 0);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

TEST(handles, "its handles are not mapped and not sealed; derived ones have fewer rights")
{
	int dev = t_dev(), h = REQUIRE_OK(create(dev, memory(BYTES), BYTES, R_READ | R_WRITE)), fd;
	struct tmesh_info i;

	CHECK_ERR(t_map(h, BYTES, PROT_READ), EOPNOTSUPP);
	CHECK_ERR(t_map(h, BYTES, RW), EOPNOTSUPP);
	CHECK_ERR(t_seal(h), EOPNOTSUPP);
	CHECK_EQ(t_info(h).state, 0);
	CHECK_ERR(t_derive(h, R_READ, TMESH_DERIVE_PIN), EINVAL);
	fd = REQUIRE_OK(t_export(h, PAGE, PAGE, TMESH_EXPORT_WRITE));
	CHECK_EQ(lseek(fd, 0, SEEK_END), PAGE);
	CHECK_ERR(t_map(fd, PAGE, PROT_READ), EOPNOTSUPP);
	fd = REQUIRE_OK(t_derive(h, R_READ, 0));
	CHECK_EQ(t_info(fd).rights, R_READ);
	CHECK_ERR(t_export(fd, 0, 0, TMESH_EXPORT_WRITE), EACCES);
	i = t_info(h);
	CHECK_EQ(i.handles, 2);
	CHECK_EQ(i.exports, 1);
}

TEST(read_only, "memory pinned for reading alone is never exported writable")
{
	int dev = t_dev(), h = REQUIRE_OK(create(dev, memory(BYTES), BYTES, R_READ));

	CHECK_EQ(t_info(h).rights, R_READ | R_MANAGE);
	CHECK_ERR(t_export(h, 0, 0, TMESH_EXPORT_WRITE), EACCES);
	CHECK_OK(t_export(h, 0, 0, 0));
}

TEST(unfit, "what is no whole pages, wraps around or has odd rights gives EINVAL")
{
	int dev = t_dev();
	unsigned char *p = memory(BYTES);

	refused(dev, p + 1, PAGE, R_READ, EINVAL, 0, NULL);
	refused(dev, p, 0, R_READ, EINVAL, 0, NULL);
	refused(dev, p, PAGE + 1, R_READ, EINVAL, 0, NULL);
	refused(dev, p, PAGE / 2, R_READ, EINVAL, 0, NULL);
	refused(dev, p, ~0ull - PAGE + 1, R_READ, EINVAL, 0, NULL);
	refused(dev, (void *)-PAGE, 2 * PAGE, R_READ, EINVAL, 0, NULL);
	refused(dev, p, PAGE, 0, EINVAL, 0, NULL);
	refused(dev, p, PAGE, R_WRITE, EINVAL, 0, NULL);
	refused(dev, p, PAGE, R_ALL, EINVAL, 0, NULL);
}

TEST(hole, "a hole gives EFAULT and its address, wherever it is; so does others' memory")
{
	int dev = t_dev();
	unsigned char *p = memory(8 * MB);

	REQUIRE_OK(munmap(p + 5 * PAGE, PAGE));
	REQUIRE_OK(mprotect(p + 3 * MB, PAGE, PROT_NONE));
	REQUIRE_OK(munmap(p + 6 * MB, 2 * MB));
	refused(dev, p + 5 * PAGE, PAGE, R_READ, EFAULT, TMESH_PIN_HOLE, p + 5 * PAGE);
	refused(dev, p, MB, R_READ | R_WRITE, EFAULT, TMESH_PIN_HOLE, p + 5 * PAGE);
	refused(dev, p + 6 * PAGE, 4 * MB, R_READ, EFAULT, TMESH_PIN_HOLE, p + 3 * MB);
	refused(dev, p + 4 * MB, 4 * MB, R_READ | R_WRITE, EFAULT, TMESH_PIN_HOLE, p + 6 * MB);
	refused(dev, p + 3 * MB, PAGE, R_READ | R_WRITE, EFAULT, TMESH_PIN_HOLE, p + 3 * MB);
	refused(dev, NULL, PAGE, R_READ, EFAULT, TMESH_PIN_HOLE, NULL);
	/* Addresses of the kernel, and unmapped ones. */
	refused(dev, (void *)0xffffffff81000000, PAGE, R_READ, EFAULT, TMESH_PIN_HOLE,
		(void *)0xffffffff81000000);
	refused(dev, (void *)0xffff888000000000, PAGE, R_READ, EFAULT, TMESH_PIN_HOLE,
		(void *)0xffff888000000000);
	refused(dev, (void *)(1ull << 47), PAGE, R_READ, EFAULT, TMESH_PIN_HOLE,
		(void *)(1ull << 47));
	CHECK_OK(create(dev, p + 6 * PAGE, MB, R_READ | R_WRITE));
}

TEST(rom, "memory that the process cannot write is pinned for reading alone")
{
	int dev = t_dev();
	unsigned char *p = memory(BYTES), *text = (void *)(ADDRESS(t_dev) & ~(PAGE - 1));

	REQUIRE_OK(mprotect(p + 9 * PAGE, PAGE, PROT_READ));
	refused(dev, p, BYTES, R_READ | R_WRITE, EFAULT, TMESH_PIN_READONLY, p + 9 * PAGE);
	CHECK_OK(create(dev, p, BYTES, R_READ));
	refused(dev, text, PAGE, R_READ | R_WRITE, EFAULT, TMESH_PIN_READONLY, text);
}

TEST(huge, "lengths beyond all memory are refused at once")
{
	int dev = t_dev();
	unsigned char *p = memory(PAGE);
	double since = t_now();

	refused(dev, p, 1ull << 46, R_READ, EDQUOT, 0, NULL);
	t_set_limit("max_bytes_per_uid", ~0ull);
	t_set_limit("max_bytes", ~0ull);
	refused(dev, p, 1ull << 46, R_READ, ENOMEM, 0, NULL);
	refused(dev, p, 1ull << 62, R_READ, ENOMEM, 0, NULL);
	CHECK(t_now() - since < 20);
}

/* Return the number of the page frame behind an address. */
static __u64 frame(const volatile void *p)
{
	int fd = REQUIRE_OK(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
	__u64 entry;

	REQUIRE(pread(fd, &entry, sizeof(entry), ADDRESS(p) / PAGE * sizeof(entry)) ==
		sizeof(entry));
	close(fd);
	REQUIRE(entry >> 63);
	return entry & ((1ull << 55) - 1);
}

static void check_later_write(unsigned char *p)
{
	int dev = t_dev();
	__u64 pinned_frame;

	REQUIRE_OK(create(dev, p, PAGE, R_READ));
	pinned_frame = frame(p);
	*p = 1;
	CHECK_EQ(frame(p), pinned_frame);
	close(last.fd);
	close(dev);
}

TEST(later_writes, "pages that are pinned for reading are those that the process writes to later")
{
	int fd = REQUIRE_OK(memfd_create("file", MFD_CLOEXEC));
	unsigned char *p = memory(BYTES), *q, *r;

	REQUIRE_OK(madvise(p, BYTES, MADV_NOHUGEPAGE));
	REQUIRE_OK(ftruncate(fd, BYTES));
	q = mmap(NULL, BYTES, RW, MAP_PRIVATE, fd, 0);
	r = mmap(NULL, BYTES, RW, MAP_SHARED, fd, 0);
	REQUIRE(q != MAP_FAILED && r != MAP_FAILED);
	check_later_write(p);
	CHECK_EQ(p[PAGE] + q[0] + r[0], 0);
	check_later_write(p + PAGE);
	check_later_write(q);
	check_later_write(q + PAGE);
	check_later_write(r);
	CHECK_EQ(q[0], 1);
	p = memory(2 * HUGE);
	REQUIRE_OK(madvise(p, 2 * HUGE, MADV_HUGEPAGE));
	CHECK_EQ(p[HUGE], 0);
	check_later_write(p + HUGE);
}

static unsigned char *special_mapping(const char *name)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long start = 0;
	char line[400];

	REQUIRE(f);
	while (fgets(line, sizeof(line), f) && !strstr(line, name))
		;
	if (strstr(line, name))
		start = strtoul(line, NULL, 16);
	fclose(f);
	return (void *)start;
}

TEST(device, "memory of a device gives EOPNOTSUPP")
{
	const char *bar = getenv("TMESH_BLACKBOX");
	int dev = t_dev(), fd;
	unsigned char *p;

	if (!bar)
		t_skip("TMESH_BLACKBOX names no device's memory");
	fd = REQUIRE_OK(open(bar, O_RDWR | O_CLOEXEC));
	p = t_map(fd, PAGE, RW);
	REQUIRE(p != MAP_FAILED);
	refused(dev, p, PAGE, R_READ, EOPNOTSUPP, TMESH_PIN_DEVICE, p);
	refused(dev, p, PAGE, R_READ | R_WRITE, EOPNOTSUPP, TMESH_PIN_DEVICE, p);
}

TEST(no_pages, "so does memory without struct pages")
{
	unsigned char *p = special_mapping("[vvar]");
	int dev = t_dev();

	if (!p || t_kernel_at_least(7, 3))
		t_skip("the vDSO's data has struct pages, or is not there");
	refused(dev, p, PAGE, R_READ, EOPNOTSUPP, TMESH_PIN_DEVICE, p);
}

TEST(secret, "memory of memfd_secret() gives EOPNOTSUPP")
{
	int dev = t_dev(), fd = syscall(447 /* memfd_secret */, O_CLOEXEC);
	unsigned char *p;

	if (fd < 0)
		t_skip("no memfd_secret(): %s", strerrorname_np(errno));
	REQUIRE_OK(ftruncate(fd, PAGE));
	p = t_map(fd, PAGE, RW);
	REQUIRE(p != MAP_FAILED);
	refused(dev, p, PAGE, R_READ, EOPNOTSUPP, TMESH_PIN_SECRET, p);
	*p = 1;
	refused(dev, p, PAGE, R_READ | R_WRITE, EOPNOTSUPP, TMESH_PIN_SECRET, p);
}

TEST(file, "pages of a file are not pinned for writing: its filesystem would not know")
{
	int dev = t_dev(), fd = open("/dev/nvme0n1", O_RDWR | O_CLOEXEC);
	struct tmesh_create_user *untold;
	unsigned char *p;

	if (fd < 0)
		t_skip("no disk");
	p = t_map(fd, BYTES, RW);
	REQUIRE(p != MAP_FAILED);
	refused(dev, p, BYTES, R_READ | R_WRITE, EOPNOTSUPP, TMESH_PIN_FILE, p);
	p[PAGE] = p[PAGE];
	refused(dev, p + PAGE, PAGE, R_READ | R_WRITE, EOPNOTSUPP, TMESH_PIN_FILE, p + PAGE);
	/* If the reason cannot be written, the call gives EFAULT. */
	untold = (void *)memory(PAGE);
	*untold = last;
	REQUIRE_OK(mprotect(untold, PAGE, PROT_READ));
	CHECK_ERR(ioctl(dev, TMESH_CREATE_USER, untold), EFAULT);
	/* A private copy belongs to the process. */
	p = mmap(NULL, BYTES, RW, MAP_PRIVATE, fd, 0);
	REQUIRE(p != MAP_FAILED);
	CHECK_OK(create(dev, p, BYTES, R_READ | R_WRITE));
}

TEST(past_end, "a mapping beyond its file's end is a hole")
{
	int dev = t_dev(), fd = REQUIRE_OK(memfd_create("short", MFD_CLOEXEC));
	unsigned char *p;

	REQUIRE_OK(ftruncate(fd, 3 * PAGE));
	p = t_map(fd, BYTES, RW);
	REQUIRE(p != MAP_FAILED);
	refused(dev, p, BYTES, R_READ | R_WRITE, EFAULT, TMESH_PIN_HOLE, p + 3 * PAGE);
	CHECK_OK(create(dev, p, 3 * PAGE, R_READ | R_WRITE));
}

TEST(shared, "shared memory, memory of another region and huge pages are pinned")
{
	int dev = t_dev(), fd = REQUIRE_OK(memfd_create("shared", MFD_CLOEXEC)), h, u;
	unsigned char *p;

	REQUIRE_OK(ftruncate(fd, BYTES));
	p = t_map(fd, BYTES, RW);
	CHECK_OK(create(dev, p, BYTES, R_READ | R_WRITE));
	h = REQUIRE_OK(t_create(dev, BYTES, 0));
	p = t_map(h, BYTES, RW);
	u = CHECK_OK(create(dev, p, BYTES, R_READ | R_WRITE)) ? last.fd : -1;
	CHECK_ERR(t_seal(h), EBUSY);
	/* The holders lose the memory, but its pins keep it. */
	CHECK_OK(t_revoke(h));
	CHECK_EQ(t_read(p), SIGBUS);
	CHECK_OK(t_export(u, 0, 0, TMESH_EXPORT_WRITE));
	p = memory(2 * BYTES);
	REQUIRE_OK(madvise(p, 2 * BYTES, MADV_HUGEPAGE));
	CHECK_OK(create(dev, p + 5 * PAGE, 2 * BYTES - 7 * PAGE, R_READ | R_WRITE));
}

/* Become an unprivileged user with a limit of @bytes of locked memory. */
static void limited(__u64 bytes)
{
	struct rlimit limit = {bytes, bytes};

	REQUIRE_OK(setrlimit(RLIMIT_MEMLOCK, &limit));
	t_become(1000, 1000, 0);
}

TEST(memlock, "RLIMIT_MEMLOCK binds the process; CAP_IPC_LOCK is exempt and counted")
{
	unsigned char *p = memory(BYTES);

	T_ALONE()
	{
		int dev = t_dev(), a, b;

		limited(BYTES - PAGE);
		refused(dev, p, BYTES, R_READ, ENOMEM, TMESH_PIN_MEMLOCK, p);
		a = REQUIRE_OK(create(dev, p, BYTES / 2, R_READ));
		refused(dev, p, BYTES / 2, R_READ, ENOMEM, TMESH_PIN_MEMLOCK, p);
		b = REQUIRE_OK(create(dev, p, BYTES / 2 - PAGE, R_READ | R_WRITE));
		CHECK_EQ(pinned(), BYTES - PAGE);
		refused(dev, p, PAGE, R_READ, ENOMEM, TMESH_PIN_MEMLOCK, p);
		close(a);
		close(b);
		CHECK_EQ(pinned(), 0);
		CHECK_OK(create(dev, p, BYTES - PAGE, R_READ));
	}
	T_ALONE()
	{
		struct rlimit none = {0, 0};

		REQUIRE_OK(setrlimit(RLIMIT_MEMLOCK, &none));
		CHECK_OK(create(t_dev(), p, BYTES, R_READ));
		CHECK_EQ(pinned(), BYTES);
	}
}

TEST(memlock_user, "RLIMIT_MEMLOCK binds a user, whose processes do not have one limit each")
{
	unsigned char *p = memory(BYTES);
	int sv[2], first;

	t_pair(sv);
	T_ALONE()
	{
		limited(BYTES);
		t_send_fd(sv[1], REQUIRE_OK(create(t_dev(), p, BYTES - PAGE, R_READ)));
	}
	/* The process has ended, and its memory is still pinned. */
	first = t_recv_fd(sv[0]);
	T_ALONE()
	{
		int dev = t_dev();

		limited(BYTES);
		refused(dev, p, 2 * PAGE, R_READ, ENOMEM, TMESH_PIN_MEMLOCK, p);
		CHECK_OK(create(dev, p, PAGE, R_READ));
		close(first);
		CHECK_EQ(pinned(), PAGE);
	}
	close(first);
	T_ALONE()
	{
		limited(BYTES);
		CHECK_OK(create(t_dev(), p, BYTES, R_READ));
	}
}

TEST(quota, "the limits of tmesh bind too")
{
	int dev = t_dev();
	unsigned char *p = memory(BYTES);

	t_set_limit("max_bytes_per_uid", BYTES - 1);
	refused(dev, p, BYTES, R_READ, EDQUOT, 0, NULL);
	CHECK_OK(create(dev, p, BYTES - PAGE, R_READ));
}

TEST(other_process, "another holder keeps the memory after its process has ended")
{
	unsigned char *p = memory(BYTES);
	int dev = t_dev(), sv[2], h;
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		h = REQUIRE_OK(create(dev, p, BYTES, R_READ | R_WRITE));
		t_send_fd(sv[1], h);
	}
	h = t_recv_fd(sv[0]);
	t_wait(pid);
	CHECK_EQ(pinned(), 0);
	CHECK_EQ(t_caps(dev).used_bytes, BYTES);
	CHECK_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	CHECK_EQ(t_listed(dev), 1);
}

static bool all_zero(const unsigned char *p, size_t bytes)
{
	while (bytes--)
		if (*p++)
			return false;
	return true;
}

/* The frames that a driver captures show which pages it got. */
TEST(capture, "vivid captures a frame into the caller's own memory")
{
	int dev = t_dev(), h;
	unsigned char *p = memory(BYTES);
	unsigned int bytes;

	h = REQUIRE_OK(create(dev, p, BYTES, R_READ | R_WRITE));
	bytes = vivid_fill(REQUIRE_OK(t_export(h, MB, MB, TMESH_EXPORT_WRITE)), MB);
	CHECK(all_zero(p, MB));
	CHECK(!all_zero(p + MB, bytes));
	CHECK(all_zero(p + 2 * MB, BYTES - 2 * MB));
	CHECK_OK(t_revoke(h));
	CHECK_EQ(pinned(), 0);
}

TEST(fork, "after a fork the pinned pages stay the parent's, even if the child writes first")
{
	int dev = t_dev(), h, sv[2];
	unsigned char *p = memory(BYTES);
	pid_t pid;

	t_pair(sv);
	memset(p, 0, BYTES);
	h = REQUIRE_OK(create(dev, p, BYTES, R_READ | R_WRITE));
	T_CHILD(pid) {
		memset(p + 2 * MB, 1, MB);
		t_say(sv[1]);
		t_hear(sv[1]);
		CHECK(all_zero(p, 2 * MB));
	}
	t_hear(sv[0]);
	p[3 * MB] = 2;
	vivid_fill(REQUIRE_OK(t_export(h, MB, MB, TMESH_EXPORT_WRITE)), MB);
	CHECK(!all_zero(p + MB, MB));
	CHECK(all_zero(p + 2 * MB, MB));
	vivid_fill(REQUIRE_OK(t_export(h, 2 * MB, MB, TMESH_EXPORT_WRITE)), MB);
	CHECK(!all_zero(p + 2 * MB, MB));
	CHECK_EQ(p[3 * MB], 2);
	t_say(sv[0]);
	t_wait(pid);
}

TEST(unmapped, "the region outlives the mapping it was made of")
{
	int dev = t_dev(), fd, vgem = open_vgem(), handle;
	unsigned char *p = memory(BYTES);
	int h = REQUIRE_OK(create(dev, p, BYTES, R_READ | R_WRITE));

	munmap(p, BYTES);
	CHECK_EQ(pinned(), BYTES);
	fd = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	handle = REQUIRE_OK(vgem_import(vgem, fd));
	CHECK_EQ(t_info(h).attachments, 1);
	CHECK_OK(vgem_close(vgem, handle));
	vivid_fill(fd, BYTES);
}

TEST(killed, "a kill in the middle of pinning leaves nothing behind")
{
	unsigned char *p = memory(64 * MB);
	int dev = t_dev();
	unsigned int seed = 5;

	REQUIRE_OK(madvise(p, 64 * MB, MADV_NOHUGEPAGE));
	for (long i = 0, n = t_length(8, 200); i < n; i++) {
		pid_t pid = fork();

		if (!pid)
			for (;;)
				close(create(dev, p, 64 * MB, R_READ | R_WRITE));
		usleep(t_random(&seed) % 100000);
		kill(pid, SIGKILL);
		REQUIRE(waitpid(pid, NULL, 0) == pid);
		CHECK_EQ(t_caps(dev).used_bytes, 0);
		CHECK_EQ(t_listed(dev), 0);
	}
}

/* The address space changes during the pinning. */

static struct {
	unsigned char *p;
	bool stop;
} ground;

static void *shake(void *arg)
{
	unsigned int seed = 3;

	while (!__atomic_load_n(&ground.stop, __ATOMIC_RELAXED)) {
		unsigned char *at = ground.p + t_random(&seed) % 1000 * PAGE;

		switch (t_random(&seed) % 5) {
		case 0:
			munmap(at, 8 * PAGE);
			break;
		case 1:
			mprotect(at, 8 * PAGE, PROT_READ);
			break;
		case 2:
			madvise(ground.p, BYTES, MADV_DONTNEED);
			break;
		case 3:
			mmap(ground.p, BYTES, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
			break;
		default:
			t_write(at, 1);
		}
	}
	return NULL;
}

static void *forks(void *arg)
{
	while (!__atomic_load_n(&ground.stop, __ATOMIC_RELAXED)) {
		pid_t pid = fork();

		if (!pid)
			_exit(t_write(ground.p, 2) & 0);
		waitpid(pid, NULL, 0);
	}
	return NULL;
}

TEST(races, "pinning against munmap, mprotect, madvise and fork")
{
	double until = t_now() + t_length(4, 60);
	long pins = 0, refusals = 0;
	pthread_t threads[2];
	int dev = t_dev();

	ground.p = memory(BYTES);
	REQUIRE(!pthread_create(&threads[0], NULL, shake, NULL));
	REQUIRE(!pthread_create(&threads[1], NULL, forks, NULL));
	while (t_now() < until && !t_failed()) {
		int h = create(dev, ground.p, BYTES, R_READ | (pins % 2 ? R_WRITE : 0));

		if (h >= 0) {
			pins++;
			close(h);
			continue;
		}
		refusals++;
		CHECK_EQ(errno, EFAULT);
		CHECK(last.reason == TMESH_PIN_HOLE || last.reason == TMESH_PIN_READONLY);
		CHECK(last.bad_address - ADDRESS(ground.p) < BYTES);
	}
	__atomic_store_n(&ground.stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CHECK_EQ(pinned(), 0);
	t_note("%ld pins, %ld refusals", pins, refusals);
}
