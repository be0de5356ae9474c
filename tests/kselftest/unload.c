// SPDX-License-Identifier: MIT
/* Unloading the module: refused while anything of it lives, clean afterwards. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "drm.h"
#include "lease.h"
#include "t.h"

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

/* Of a region that nothing else holds. */
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

TEST(lingering, "a linger does not hold the module once the device is closed")
{
	const char *path = module_file();
	struct tmesh_create c = {.size = sizeof(c), .bytes = PAGE, .linger_ms = 1000};
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

	for (int i = 0; i < 20; i++) {
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

int main(void)
{
	return t_main();
}
