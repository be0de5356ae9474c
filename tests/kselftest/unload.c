// SPDX-License-Identifier: MIT
/*
 * Unloading the module: refused while an object of it lives, and clean afterwards.
 */
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <linux/netlink.h>

#include "drm.h"
#include "keep.h"
#include "lease.h"
#include "peer.h"
#include "t.h"

#define REFUSED "/refused"

static const char *module_file(void)
{
	const char *path = getenv("TMESH_KO");

	if (!path)
		t_skip("TMESH_KO does not name the module's file");
	return path;
}

static int unload(void)
{
	return syscall(SYS_delete_module, "tmesh", O_NONBLOCK);
}

static void check_refused(const char *why)
{
	if (!CHECK_ERR(unload(), EAGAIN))
		t_note("although there is %s", why);
}

static void load(const char *path)
{
	int fd = REQUIRE_OK(open(path, O_RDONLY | O_CLOEXEC));

	REQUIRE_OK(syscall(SYS_finit_module, fd, "", 0));
	close(fd);
}

static int region(void)
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, PAGE, 0));

	close(dev);
	return fd;
}

/* Make a view that is the only holder of a region. */
static int view(void)
{
	int dev = t_dev(), source = REQUIRE_OK(t_create(dev, PAGE, 0)), fd;
	struct tmesh_extent e = t_extent(source, 0, 1);

	fd = REQUIRE_OK(t_gather(dev, &e, 1, R_READ));
	close(source);
	close(dev);
	return fd;
}

TEST(refused, "the module stays while a device, handle, mapping, view, dma-buf or lease file lives")
{
	const char *path = module_file();
	int fd = t_dev(), sv[2];
	void *p;

	check_refused("an open device");
	close(fd);

	fd = region();
	check_refused("a handle");
	t_pair(sv);
	t_send_fd(sv[0], fd);
	close(fd);
	check_refused("a handle in a socket");
	fd = t_recv_fd(sv[1]);

	p = t_map(fd, PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	int dmabuf = REQUIRE_OK(t_export(fd, 0, 0, 0));

	close(fd);
	close(dmabuf);
	check_refused("a mapping");
	munmap(p, PAGE);

	fd = region();
	dmabuf = REQUIRE_OK(t_export(fd, 0, 0, 0));
	close(fd);
	check_refused("a dma-buf");
	p = t_map(dmabuf, PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	close(dmabuf);
	check_refused("a mapping of a dma-buf");
	munmap(p, PAGE);

	fd = view();
	check_refused("a view");
	p = t_map(fd, PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	close(fd);
	check_refused("a mapping of a view");
	munmap(p, PAGE);

	fd = region();
	struct lease l = lease_put(fd, TMESH_LEASE_MIN_NS);

	close(fd);
	munmap((void *)l.state, PAGE);
	check_refused("a lease file");
	close(l.fd);
	check_refused("a mapping of a lease file");
	munmap(l.touch, PAGE);

	REQUIRE_OK(unload());
	load(path);
}

TEST(imported, "the module stays while a device has a dma-buf of it")
{
	const char *path = module_file();
	int vgem = open_vgem(), fd = region(), dmabuf, gem;

	dmabuf = REQUIRE_OK(t_export(fd, 0, 0, TMESH_EXPORT_WRITE));
	gem = REQUIRE_OK(vgem_import(vgem, dmabuf));
	close(fd);
	close(dmabuf);
	check_refused("an import");
	CHECK_OK(vgem_close(vgem, gem));
	REQUIRE_OK(unload());
	load(path);
}

TEST(traces, "nothing of it is left when it is gone, and it comes back as new")
{
	const char *path = module_file();

	for (int i = 0; i < 5; i++) {
		int fd = region();

		CHECK_EQ(t_info(fd).id, 1);
		REQUIRE_OK(t_revoke(fd));
		close(fd);
		t_set_limit("max_regions_per_uid", 7 + i);
		REQUIRE_OK(unload());
		CHECK(access("/dev/tmesh", F_OK));
		CHECK(access("/proc/sys/dev/tmesh", F_OK));
		CHECK(access("/sys/kernel/debug/tmesh", F_OK));
		load(path);
		CHECK(t_limit("max_regions_per_uid") > 1000);
	}
}

TEST(holding, "a hold does not keep the module once the device is closed")
{
	const char *path = module_file();
	struct tmesh_create c = {.size = sizeof(c), .bytes = PAGE, .hold_ms = 1000};
	int dev = t_dev();

	REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c));
	close(c.fd);
	close(dev);
	REQUIRE_OK(unload());
	load(path);
}

TEST(views_end, "nor do views that a revocation of their source has just ended")
{
	const char *path = module_file();

	for (long i = t_length(5, 50); i; i--) {
		int dev = t_dev(), source = REQUIRE_OK(t_create(dev, PAGE, 0)), views[10];
		struct tmesh_extent e = t_extent(source, 0, 1);

		for (size_t k = 0; k < ARRAY_SIZE(views); k++)
			views[k] = REQUIRE_OK(t_gather(dev, &e, 1, R_READ | R_WRITE));
		REQUIRE_OK(t_revoke(source));
		for (size_t k = 0; k < ARRAY_SIZE(views); k++)
			close(views[k]);
		close(source);
		close(dev);
		REQUIRE_OK(unload());
		load(path);
	}
}

/* Test whether the unread lines of a log descriptor contain @text. */
static bool told(int kmsg, const char *text)
{
	char line[1024];
	ssize_t n;

	while ((n = read(kmsg, line, sizeof(line) - 1)) > 0 || errno == EPIPE) {
		line[n > 0 ? n : 0] = 0;
		if (strstr(line, text))
			return true;
	}
	return false;
}

TEST(refusals, "what was refused leaves no user of the module behind")
{
	const char *path = module_file();
	struct tmesh_create c = {.size = sizeof(c), .bytes = PAGE, .mode = 0777};
	int kmsg = REQUIRE_OK(open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)), dev = t_dev();
	struct tmesh_kept_drop d = {.size = sizeof(d), .name = "none"};

	REQUIRE_OK(lseek(kmsg, 0, SEEK_END));
	T_ALONE()
	{
		t_become(1001, 1001, 0);
		CHECK_ERR(ioctl(dev, TMESH_CREATE, &c), EINVAL);
		CHECK_ERR(ioctl(dev, TMESH_KEPT_DROP, &d), ENOENT);
	}
	close(dev);
	REQUIRE_OK(unload());
	CHECK(!told(kmsg, "WARNING"));
	close(kmsg);
	load(path);
}

TEST(kept, "what is kept goes with the module, which says what that was")
{
	const char *path = module_file();
	int kmsg = REQUIRE_OK(open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
	int dev = t_dev(), fds[2];
	char name[16];

	REQUIRE_OK(lseek(kmsg, 0, SEEK_END));
	for (int i = 0; i < 40; i++) {
		fds[0] = keep_region(dev, PAGE, 0, 1);
		fds[1] = keep_region(dev, 3 * PAGE, 0, 1);
		snprintf(name, sizeof(name), "weights %d", i);
		REQUIRE_OK(keep(dev, name, fds, 2, 0));
		close(fds[0]);
		close(fds[1]);
	}
	check_refused("an open device");
	close(dev);
	REQUIRE_OK(unload());
	CHECK(told(kmsg, "dropped \"weights 0\" of uid 0: 2 regions, 16384 bytes"));
	CHECK(told(kmsg, "dropped 8 more names"));
	close(kmsg);
	load(path);
	dev = t_dev();
	CHECK_EQ(t_caps(dev).used_kept_names, 0);
	CHECK_EQ(t_listed(dev), 0);
	close(dev);
}

/* Test whether the kernel has announced the device since the last call. */
static bool announced(int events)
{
	bool found = false;
	char text[4096];

	while (recv(events, text, sizeof(text), MSG_DONTWAIT) > 0)
		found |= !strncmp(text, "add@/devices/virtual/misc/tmesh", sizeof(text));
	return found;
}

TEST(name_taken, "a load that fails for the file system's name never shows the device")
{
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK, .nl_groups = 1};
	const char *path = module_file();
	int peer = open_peer(), file = REQUIRE_OK(open(path, O_RDONLY | O_CLOEXEC));
	int events =
		REQUIRE_OK(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT));

	REQUIRE_OK(bind(events, (struct sockaddr *)&kernel, sizeof(kernel)));
	REQUIRE_OK(unload());
	if (CHECK_OK(ioctl(peer, PEER_TAKE_NAME))) {
		CHECK_ERR(syscall(SYS_finit_module, file, "", 0), EBUSY);
		CHECK(!announced(events));
		CHECK_OK(ioctl(peer, PEER_GIVE_NAME));
	}
	load(path);
	CHECK(announced(events));
	close(file);
	close(events);
	close(peer);
}

static void run_on(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	REQUIRE_OK(sched_setaffinity(0, sizeof(cpus), &cpus));
}

TEST(device_refused, "a load that fails for the device waits for the mounts that it has refused")
{
	const char *path = module_file();
	int peer = open_peer(), file = REQUIRE_OK(open(path, O_RDONLY | O_CLOEXEC));
	bool *stop = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid;

	REQUIRE(stop != MAP_FAILED);
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		t_skip("one CPU");
	mkdir(REFUSED, 0755);
	REQUIRE_OK(unload());
	if (ioctl(peer, PEER_REFUSE_DEVICE)) {
		load(path);
		t_skip("no kprobes: %s", strerror(errno));
	}
	T_CHILD(pid) {
		run_on(1);
		while (!__atomic_load_n(stop, __ATOMIC_SEQ_CST))
			CHECK_ERR(mount("none", REFUSED, "tmesh", 0, NULL), ENODEV);
	}
	run_on(0);
	CHECK_ERR(syscall(SYS_finit_module, file, "", 0), ENOMEM);
	__atomic_store_n(stop, true, __ATOMIC_SEQ_CST);
	t_wait(pid);
	CHECK(ioctl(peer, PEER_ALLOW_DEVICE) > 0);
	load(path);
	close(file);
	close(peer);
}

/* Read the files that do not hold the module. */
static void look_at_module(void)
{
	int dev = open("/dev/tmesh", O_RDWR | O_CLOEXEC);
	char text[64];

	t_read_file("/sys/kernel/debug/tmesh/summary", text, sizeof(text));
	t_read_file("/sys/kernel/debug/tmesh/regions", text, sizeof(text));
	t_read_file("/proc/sys/dev/tmesh/max_bytes", text, sizeof(text));
	if (dev >= 0) {
		t_caps(dev);
		close(dev);
	}
	usleep(1000);
}

/* Make and drop every kind of object that holds the module. */
static void use_module(unsigned int *seed, int vgem)
{
	int dev = open("/dev/tmesh", O_RDWR | O_CLOEXEC), fds[5];
	struct tmesh_create c = {.size = sizeof(c), .bytes = 4 * PAGE, .hold_ms = 10};
	__u8 token[TMESH_TOKEN_BYTES];
	struct tmesh_extent e;
	int gem = -1;
	char *p;

	if (dev < 0 || ioctl(dev, TMESH_CREATE, &c)) {
		close(dev);
		return;
	}
	CHECK_OK(t_token(c.fd, R_READ, token));
	p = t_map(c.fd, 4 * PAGE, PROT_READ | PROT_WRITE);
	fds[0] = c.fd;
	fds[1] = t_derive(c.fd, R_READ, 0);
	fds[2] = lease_call(fds[1], 0, TMESH_LEASE_MIN_NS, 0, NULL);
	fds[3] = t_export(c.fd, 0, 0, TMESH_EXPORT_WRITE);
	int sealed = keep_region(dev, PAGE, 0, 1);

	CHECK_OK(keep(dev, "used", &sealed, 1, TMESH_KEEP_REPLACE));
	close(sealed);
	e = t_extent(c.fd, 0, 1);
	fds[4] = t_gather(dev, &e, 1, R_READ);
	if (t_random(seed) % 2)
		gem = vgem_import(vgem, fds[3]);
	CHECK_EQ(t_write(p, 1), 0);
	if (t_random(seed) % 4 == 0)
		CHECK_OK(t_revoke(c.fd));
	/* The last object to end is another one each time. */
	for (unsigned int i = 0, first = t_random(seed); i < 8; i++) {
		unsigned int which = (first + i) % 8;

		if (which < 5)
			close(fds[which]);
		else if (which == 5)
			close(dev);
		else if (which == 6)
			munmap(p, 4 * PAGE);
		else if (gem >= 0)
			vgem_close(vgem, gem);
	}
}

TEST(races, "unloading against all that may be going on")
{
	const char *path = module_file();
	long rounds = t_length(60, 3000), done = 0, refused = 0;
	double until = t_now() + t_length(15, 900);
	bool *stop = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t users[2];

	REQUIRE(stop != MAP_FAILED);
	close(open_vgem());
	T_CHILD(users[0])
		while (!__atomic_load_n(stop, __ATOMIC_RELAXED))
			look_at_module();
	T_CHILD(users[1]) {
		unsigned int seed = 1;

		while (!__atomic_load_n(stop, __ATOMIC_RELAXED)) {
			int vgem = open(vgem_path, O_RDWR | O_CLOEXEC);

			use_module(&seed, vgem);
			close(vgem);
			usleep(t_random(&seed) % 3000);
		}
	}
	/* Go on longer if not both outcomes have occurred. */
	while (((done < rounds && t_now() < until) || !done || !refused) && !t_failed()) {
		if (unload()) {
			if (!CHECK_EQ(errno, EAGAIN))
				break;
			refused++;
			usleep(50);
			continue;
		}
		done++;
		load(path);
	}
	__atomic_store_n(stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		t_wait(users[i]);
	t_drop_kept();
	t_note("unloaded %ld times, refused %ld times", done, refused);
	CHECK(done && refused);
}
