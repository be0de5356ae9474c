// SPDX-License-Identifier: MIT
/* Pages with an uncorrectable memory error, as MADV_HWPOISON makes them. */
#include "disk.h"
#include "peer.h"
#include "t.h"
#include "v4l2.h"

#ifndef MADV_HWPOISON
#define MADV_HWPOISON 100
#endif
#define RW (PROT_READ | PROT_WRITE)
#define BYTES (2 * HUGE)
#define BAD 5	  /* the page with the error */
#define GOOD 7	  /* a good page in the same 2 MiB */
#define OTHER 700 /* a page in other 2 MiB */

static int dev;

/* Mark a page as bad. It is marked however the kernel handles the error. */
static void poison(int fd)
{
	unsigned char *p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, BAD * PAGE);
	int rc;

	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(t_read(p), 0);
	rc = madvise(p, PAGE, MADV_HWPOISON);
	if (rc && errno != EBUSY && errno != EHWPOISON)
		t_skip("this kernel makes no memory errors: %s", strerrorname_np(errno));
	munmap(p, PAGE);
}

/* The same by an error that tmesh is not notified of, like an error of the hardware. */
static void poison_behind(int fd)
{
	unsigned char *p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, BAD * PAGE);
	int frames = REQUIRE_OK(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
	char address[24];
	__u64 entry;

	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(t_read(p), 0);
	REQUIRE(pread(frames, &entry, 8, (unsigned long)p / PAGE * 8) == 8 && entry >> 63);
	REQUIRE(entry & ((1ull << 55) - 1));
	snprintf(address, sizeof(address), "%#llx", (entry & ((1ull << 55) - 1)) * PAGE);
	close(frames);
	munmap(p, PAGE);
	if (access("/sys/devices/system/memory/hard_offline_page", W_OK))
		t_skip("this kernel takes no page offline");
	t_write_file("/sys/devices/system/memory/hard_offline_page", address);
}

static int region(__u32 flags)
{
	dev = t_dev();
	if (flags & TMESH_CREATE_HUGE && !t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	return REQUIRE_OK(t_create(dev, BYTES, flags));
}

static unsigned char *view(int fd, int prot)
{
	unsigned char *p = t_map(fd, BYTES, prot);

	REQUIRE(p != MAP_FAILED);
	return p;
}

/* Wait until poll() reports POLLPRI to a holder. */
static bool told(int h)
{
	struct pollfd p = {.fd = h, .events = POLLPRI};

	return poll(&p, 1, 120000) == 1 && p.revents & POLLPRI &&
	       t_info(h).state & TMESH_STATE_POISONED;
}

static void is_bad(const unsigned char *p)
{
	CHECK_EQ(t_read(p + BAD * PAGE), SIGBUS);
	CHECK_EQ(t_read(p + GOOD * PAGE), 0);
	CHECK_EQ(t_read(p + OTHER * PAGE), 0);
}

static void try_fault(__u32 flags)
{
	int h = region(flags), ro = REQUIRE_OK(t_derive(h, R_READ, 0));
	unsigned char *p = view(h, RW), *q = view(ro, PROT_READ);
	char path[64], value[32];

	CHECK_EQ(t_write(p + BAD * PAGE, 'b'), 0);
	CHECK_EQ(t_write(p + GOOD * PAGE, 'g'), 0);
	CHECK_EQ(t_read(p + OTHER * PAGE), 0);
	poison(h);
	CHECK(!(t_info(ro).state & TMESH_STATE_POISONED));
	is_bad(q);
	CHECK_EQ(q[GOOD * PAGE], 'g');
	CHECK(told(h));
	CHECK(told(ro));
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", ro);
	CHECK(t_file_value(path, "tmesh-state", value, sizeof(value)) &&
	      !strcmp(value, "poisoned"));
	/* The old mapping has been taken away. */
	is_bad(p);
	/* Mapping the good pages beside it has not mapped the bad one. */
	CHECK_EQ(t_write(p + BAD * PAGE, 'b'), SIGBUS);
	CHECK_EQ(t_read(q + BAD * PAGE), SIGBUS);
	CHECK_EQ(t_write(p + GOOD * PAGE, 'h'), 0);
	CHECK_EQ(q[GOOD * PAGE], 'h');
	CHECK_EQ(t_write(p + (BAD + 1) * PAGE, 'n'), 0);
	CHECK_EQ(t_write(p + BAD * PAGE, 'b'), SIGBUS);
	/* The other 2 MiB are mapped whole as before. */
	if (flags & TMESH_CREATE_HUGE)
		CHECK_EQ(t_pmd_mapped(p, BYTES), HUGE / KB);
	CHECK_OK(t_revoke(h));
	CHECK_EQ(t_read(p + GOOD * PAGE), SIGBUS);
	CHECK_EQ(t_read(q + (BAD + 1) * PAGE), SIGBUS);
}

TEST_CALL(fault,
	  "a touch of a bad page is a SIGBUS, of pages beside it is none; holders get POLLPRI",
	  try_fault(TMESH_CREATE_NOHUGE))
TEST_CALL(fault_huge, "the same within 2 MiB, which are not mapped whole any more",
	  try_fault(TMESH_CREATE_HUGE))

TEST(behind, "so it is of a bad page that the kernel has no name for")
{
	int h = region(TMESH_CREATE_HUGE);
	unsigned char *p, *q;

	poison_behind(h);
	p = view(h, RW);
	q = view(h, PROT_READ);
	is_bad(p);
	CHECK(told(h));
	is_bad(q);
	is_bad(p);
	CHECK_EQ(t_pmd_mapped(p, BYTES), HUGE / KB);
}

static long copy_out(const unsigned char *p)
{
	static unsigned char to[PAGE];
	struct iovec mine = {to, PAGE}, theirs = {(void *)p, PAGE};

	return process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0);
}

static void try_gup(__u32 flags)
{
	int h = region(flags);
	unsigned char *p;

	poison(h);
	p = view(h, PROT_READ);
	CHECK_ERR(copy_out(p + BAD * PAGE), EFAULT);
	CHECK_EQ(copy_out(p + GOOD * PAGE), PAGE);
	CHECK(told(h));
	CHECK_ERR(copy_out(p + BAD * PAGE), EFAULT);
}

TEST_CALL(gup, "the kernel does not get a bad page for a call: EFAULT",
	  try_gup(TMESH_CREATE_NOHUGE))
TEST_CALL(gup_huge, "nor one within 2 MiB", try_gup(TMESH_CREATE_HUGE))

/* Direct I/O: it pins pages itself, first by GUP-fast, which finds mapped pages. */
static void try_direct(__u32 flags)
{
	int disk = open_disk(), h = region(flags);
	unsigned char *p = view(h, RW);

	memset(p, 1, BYTES);
	poison(h);
	CHECK_ERR(copy_out(view(h, PROT_READ) + BAD * PAGE), EFAULT);
	CHECK(told(h));
	CHECK_EQ(pwrite(disk, p + GOOD * PAGE, PAGE, 0), PAGE);
	CHECK_ERR(pwrite(disk, p + BAD * PAGE, PAGE, 0), EFAULT);
	CHECK_ERR(pread(disk, p + BAD * PAGE, PAGE, 0), EFAULT);
	CHECK_EQ(pread(disk, p + (BAD + 1) * PAGE, PAGE, 0), PAGE);
	CHECK_EQ(pwrite(disk, p + OTHER * PAGE, PAGE, 0), PAGE);
	CHECK_ERR(pwrite(disk, p + BAD * PAGE, PAGE, 0), EFAULT);
}

TEST_CALL(direct, "nor for O_DIRECT, from it or into it", try_direct(TMESH_CREATE_NOHUGE))
TEST_CALL(direct_huge, "nor within 2 MiB", try_direct(TMESH_CREATE_HUGE))

static void try_private(__u32 flags)
{
	int h = region(flags);
	unsigned char *p;

	/*
	 * Seal it before the error: the kernel keeps a reference on a bad page, which looks like a
	 * pin.
	 */
	REQUIRE_OK(t_seal(h));
	poison(h);
	p = mmap(NULL, BYTES, RW, MAP_PRIVATE, h, 0);
	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(t_write(p + BAD * PAGE, 1), SIGBUS);
	CHECK_EQ(t_write(p + GOOD * PAGE, 1), 0);
	CHECK(told(h));
}

TEST_CALL(private, "a first write to a private mapping copies no bad page",
	  try_private(TMESH_CREATE_NOHUGE))
TEST_CALL(private_huge, "nor one within 2 MiB", try_private(TMESH_CREATE_HUGE))

static void try_importer(int h)
{
	int peer = open_peer(), other = open_peer(), export = REQUIRE_OK(t_export(h, 0, 0, 0));
	int slice = REQUIRE_OK(t_export(h, (BAD + 1) * PAGE, 4 * PAGE, 0));

	poison(h);
	CHECK_ERR(peer_import(peer, export, 0), EHWPOISON);
	CHECK(told(h));
	CHECK_OK(peer_import(other, slice, 0));
	peer_let_go(other);
}

TEST_CALL(importer, "no device maps a bad page: EHWPOISON; a slice without it is good",
	  try_importer(region(TMESH_CREATE_NOHUGE)))
TEST_CALL(importer_huge, "nor one within 2 MiB", try_importer(region(TMESH_CREATE_HUGE)))

TEST(importer_memfd, "nor one of a memfd")
{
	int memfd = REQUIRE_OK(memfd_create("poison", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};

	dev = t_dev();
	REQUIRE_OK(ftruncate(memfd, BYTES));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &c));
	try_importer(c.fd);
}

/*
 * vivid captures through a kernel mapping of an export (vmap). A refusal would make the core warn,
 * so the mapping is of a zeroed dummy page, and the region is not written.
 */
static void try_capture(__u32 flags)
{
	int h = region(flags), with = REQUIRE_OK(t_export(h, 0, MB, TMESH_EXPORT_WRITE));
	int without = REQUIRE_OK(t_export(h, (BAD + 1) * PAGE, MB, TMESH_EXPORT_WRITE));
	unsigned int bytes, sum = 0;
	unsigned char *p;

	poison(h);
	vivid_fill(with, MB);
	CHECK(told(h));
	p = view(h, PROT_READ);
	is_bad(p);
	for (size_t i = 0; i < MB; i++)
		if (i / PAGE != BAD && p[i])
			REQUIRE(!"nothing was captured beside the bad page");
	bytes = vivid_fill(without, MB);
	for (size_t i = 0; i < bytes; i++)
		sum += p[(BAD + 1) * PAGE + i];
	CHECK(sum > 0);
	CHECK_EQ(t_read(p + BAD * PAGE), SIGBUS);
	CHECK_OK(t_revoke(h));
}

TEST_CALL(capture,
	  "a device that writes by the kernel's mapping gets no bad page, and none beside it",
	  try_capture(TMESH_CREATE_NOHUGE))
TEST_CALL(capture_huge, "nor one within 2 MiB", try_capture(TMESH_CREATE_HUGE))

/* The same mapping existed before the error: it stays, and holds the memory until it ends. */
static void try_captured(__u32 flags)
{
	int h = region(flags), dmabuf = REQUIRE_OK(t_export(h, 0, MB, TMESH_EXPORT_WRITE)), video;
	size_t left = flags & TMESH_CREATE_HUGE ? HUGE : PAGE;
	struct v4l2_format f = {0};
	struct tmesh_revoke r;
	struct tmesh_info i;
	double until;

	video = open_vivid(&f);
	f.fmt.pix.width = 320;
	f.fmt.pix.height = 180;
	f.fmt.pix.pixelformat = V4L2_PIX_FMT_RGB24;
	REQUIRE_OK(ioctl(video, VIDIOC_S_FMT, &f));
	REQUIRE_OK(request_buffers(video, 1));
	REQUIRE_OK(queue(video, 0, dmabuf));
	poison(h);
	is_bad(view(h, PROT_READ));
	CHECK(told(h));
	REQUIRE_OK(t_revoke(h));
	r = (struct tmesh_revoke){.size = sizeof(r), .flags = TMESH_REVOKE_WAIT};
	CHECK_ERR(ioctl(h, TMESH_REVOKE, &r), ETIMEDOUT);
	CHECK(r.pinned_bytes >= MB);
	until = t_now() + 120;
	REQUIRE_OK(request_buffers(video, 0));
	/* The kernel keeps the bad page. */
	do {
		i = (struct tmesh_info){.size = sizeof(i), .flags = TMESH_INFO_PINS};
		REQUIRE_OK(ioctl(h, TMESH_INFO, &i));
	} while (i.pinned_bytes > left && t_now() < until && !usleep(1000));
	CHECK(i.pinned_bytes <= left);
}

TEST_CALL(
	captured,
	"a region that a device has mapped so is revoked, and freed after it but for the bad page",
	try_captured(TMESH_CREATE_NOHUGE))
TEST_CALL(captured_huge, "so is one of 2 MiB pages", try_captured(TMESH_CREATE_HUGE))

static void try_revoke(__u32 flags)
{
	int h = region(flags), export = REQUIRE_OK(t_export(h, 0, 0, TMESH_EXPORT_WRITE));
	unsigned char *p = view(h, RW), *q = view(export, PROT_READ);

	memset(p, 1, BYTES);
	poison(h);
	is_bad(q);
	CHECK_OK(t_revoke(h));
	CHECK_EQ(t_read(p + BAD * PAGE), SIGBUS);
	CHECK_EQ(t_read(p + GOOD * PAGE), SIGBUS);
	CHECK_EQ(t_read(q + OTHER * PAGE), SIGBUS);
	CHECK(t_info(h).state & TMESH_STATE_REVOKED);
}

TEST_CALL(revoke, "a region with a bad page is revoked as any other",
	  try_revoke(TMESH_CREATE_NOHUGE))
TEST_CALL(revoke_huge, "so are 2 MiB with one", try_revoke(TMESH_CREATE_HUGE))

static bool is_charged(__u64 bytes)
{
	for (int i = 0; i < 60000 && t_caps(dev).used_bytes != bytes; i++)
		usleep(1000);
	return t_caps(dev).used_bytes == bytes;
}

/* Check the end of a region. The kernel may keep a reference on the bad page for ever. */
static void try_end(__u32 flags)
{
	size_t other = flags & TMESH_CREATE_HUGE ? HUGE : PAGE;
	int h = region(flags), pipes[2];
	unsigned char *p = view(h, RW);
	struct iovec iov = {p + OTHER * PAGE, PAGE};

	memset(p, 1, BYTES);
	REQUIRE_OK(pipe2(pipes, O_CLOEXEC));
	REQUIRE(vmsplice(pipes[1], &iov, 1, 0) == (ssize_t)PAGE);
	poison(h);
	munmap(p, BYTES);
	close(h);
	CHECK(is_charged(other));
	close(pipes[0]);
	close(pipes[1]);
	CHECK(is_charged(0));
}

TEST_CALL(end,
	  "a bad page is charged no more when its region ends; a pinned one is, until its pin ends",
	  try_end(TMESH_CREATE_NOHUGE))
TEST_CALL(end_huge, "so it is with 2 MiB pages", try_end(TMESH_CREATE_HUGE))

static void try_look(__u32 flags)
{
	int h = region(flags);
	struct tmesh_info i = {.size = sizeof(i), .flags = TMESH_INFO_PINS};
	unsigned char *p = view(h, RW);
	long mapped;

	memset(p, 1, BYTES);
	poison(h);
	CHECK(!(t_info(h).state & TMESH_STATE_POISONED));
	REQUIRE_OK(ioctl(h, TMESH_INFO, &i));
	CHECK(i.state & TMESH_STATE_POISONED);
	is_bad(p);
	/* The region is unmapped once: mappings made since then stay. */
	mapped = t_smaps(p, "Rss");
	CHECK(mapped > 0);
	i = (struct tmesh_info){.size = sizeof(i), .flags = TMESH_INFO_PINS};
	REQUIRE_OK(ioctl(h, TMESH_INFO, &i));
	CHECK_EQ(t_smaps(p, "Rss"), mapped);
}

TEST_CALL(look, "INFO with PINS finds a bad page that was not touched, and takes it away",
	  try_look(TMESH_CREATE_NOHUGE))
TEST_CALL(look_huge, "also within 2 MiB", try_look(TMESH_CREATE_HUGE))

static void try_view(__u32 flags, bool by_view)
{
	int h = region(flags), v, without;
	struct tmesh_extent all = t_extent(h, 0, BYTES / PAGE), one = t_extent(h, GOOD, 1);
	unsigned char *p, *q;

	v = REQUIRE_OK(t_gather(dev, &all, 1, R_READ));
	without = REQUIRE_OK(t_gather(dev, &one, 1, R_READ));
	p = view(h, PROT_READ);
	q = view(v, PROT_READ);
	CHECK_EQ(t_read(p + BAD * PAGE), 0);
	CHECK_EQ(t_read(q + BAD * PAGE), 0);
	poison(h);
	REQUIRE(munmap(by_view ? q : p, BYTES) == 0);
	if (by_view)
		q = view(v, PROT_READ);
	else
		p = view(h, PROT_READ);
	is_bad(by_view ? q : p);
	CHECK(told(h));
	CHECK(told(v));
	is_bad(by_view ? p : q);
	CHECK(!(t_info(without).state & TMESH_STATE_POISONED));
}

TEST(source, "a view's holder learns of its source's bad pages, if the view shows them")
{
	try_view(TMESH_CREATE_NOHUGE, false);
	try_view(TMESH_CREATE_HUGE, false);
}

TEST(by_view, "the source's holder learns of bad pages found by way of a view")
{
	try_view(TMESH_CREATE_NOHUGE, true);
	try_view(TMESH_CREATE_HUGE, true);
}

/*
 * Make a view that repeats the same pages: TMESH_INFO has a million pages to look at, and little
 * else to do.
 */
static int long_view(int h, __u64 pages)
{
	static struct tmesh_extent extents[64];

	for (size_t i = 0; i < ARRAY_SIZE(extents); i++)
		extents[i] = t_extent(h, 0, pages);
	return REQUIRE_OK(t_gather(dev, extents, ARRAY_SIZE(extents), R_READ));
}

/*
 * A look reports bad pages at its end, so a killed look has reported nothing. A look that could not
 * be killed would report them: the process was inside it long before the signal came.
 */
TEST(killed, "a look at all pages can be killed")
{
	const __u64 pages = 16384;
	double until = t_now() + 60, span = 0, begin;
	unsigned int seed = 99, untold = 0, rounds;
	volatile bool *begun = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int h;

	REQUIRE(begun != MAP_FAILED);
	dev = t_dev();
	h = REQUIRE_OK(t_create(dev, pages * PAGE, TMESH_CREATE_NOHUGE));
	poison(h);
	for (rounds = 0; !untold && t_now() < until && !t_failed(); rounds++) {
		int view = long_view(h, pages);
		struct tmesh_info i = {.size = sizeof(i), .flags = TMESH_INFO_PINS};
		pid_t pid;

		*begun = false;
		pid = REQUIRE_OK(fork());
		if (!pid) {
			*begun = true;
			ioctl(view, TMESH_INFO, &i);
			_exit(0);
		}
		while (!*begun)
			;
		begin = t_now();
		if (rounds) {
			double at = begin + span * (200 + t_random(&seed) % 400) / 1000;

			while (t_now() < at)
				;
			kill(pid, SIGKILL);
		}
		REQUIRE(waitpid(pid, NULL, 0) == pid);
		if (!rounds) {
			span = t_now() - begin;
			CHECK(t_info(view).state & TMESH_STATE_POISONED);
		} else if (!(t_info(view).state & TMESH_STATE_POISONED)) {
			untold++;
			REQUIRE_OK(ioctl(view, TMESH_INFO, &i));
			CHECK(i.state & TMESH_STATE_POISONED);
		}
		close(view);
	}
	t_note("%u rounds, a look takes %.1f ms", rounds, span * 1e3);
	CHECK(untold);
}

/*
 * The answer is written last, so a killed look at pins leaves none. If the bad page was reported,
 * the look for bad pages, which comes first, had ended before.
 */
TEST(killed_pins, "a look at what is pinned can be killed")
{
	const __u64 pages = 16384;
	double until = t_now() + 60, span = 0, begin;
	struct {
		volatile bool begun;
		struct tmesh_info info;
	} *shared = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned int seed = 77, unanswered = 0, rounds;

	REQUIRE(shared != MAP_FAILED);
	dev = t_dev();
	for (rounds = 0; !unanswered && t_now() < until && !t_failed(); rounds++) {
		int h = REQUIRE_OK(t_create(dev, pages * PAGE, TMESH_CREATE_NOHUGE));
		pid_t pid;

		poison(h);
		shared->begun = false;
		shared->info =
			(struct tmesh_info){.size = sizeof(shared->info), .flags = TMESH_INFO_PINS};
		pid = REQUIRE_OK(fork());
		if (!pid) {
			shared->begun = true;
			ioctl(h, TMESH_INFO, &shared->info);
			_exit(0);
		}
		while (!shared->begun)
			;
		begin = t_now();
		if (rounds) {
			double at = begin + span * (300 + t_random(&seed) % 700) / 1000;

			while (t_now() < at)
				;
			kill(pid, SIGKILL);
		}
		REQUIRE(waitpid(pid, NULL, 0) == pid);
		if (!rounds) {
			span = t_now() - begin;
			CHECK(shared->info.id);
		} else if (t_info(h).state & TMESH_STATE_POISONED && !shared->info.id) {
			unanswered++;
		}
		close(h);
	}
	t_note("%u rounds, both looks take %.1f ms", rounds, span * 1e3);
	CHECK(unanswered);
}

TEST(closed, "a region that is let go of while a process looks at its pages is gone")
{
	const __u64 pages = 16384;
	int h, views[4];

	dev = t_dev();
	h = REQUIRE_OK(t_create(dev, pages * PAGE, TMESH_CREATE_NOHUGE));
	poison(h);
	for (int round = 0; round < 4; round++) {
		unsigned char *p;

		for (size_t i = 0; i < ARRAY_SIZE(views); i++)
			views[i] = long_view(h, pages);
		p = t_map(views[round], BYTES, PROT_READ);
		REQUIRE(p != MAP_FAILED);
		/* A work looks at the view, and then at the source and all of its views. */
		CHECK_EQ(t_read(p + BAD * PAGE), SIGBUS);
		if (round % 2)
			CHECK(told(h));
		munmap(p, BYTES);
		for (size_t i = 0; i < ARRAY_SIZE(views); i++)
			close(views[i]);
	}
	close(h);
	/* No region is left, as at the end of every test. */
	CHECK_EQ(t_caps(dev).used_regions, 0);
}
