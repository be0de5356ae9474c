// SPDX-License-Identifier: MIT
/*
 * The costs to revoke a region that has holders, and to let a device use a region.
 */
#include <linux/udmabuf.h>

#include "bench.h"
#include "peer.h"
#include "t.h"

#define HOLDERS 10
#define RW (PROT_READ | PROT_WRITE)

static int dev;
static __u32 flags;

/* Ten processes. Each of them has opened the region, and mapped and touched all of it. */

static __u8 token[TMESH_TOKEN_BYTES];
static double *took; /* shared with them */
static int turns[HOLDERS][2];
static pid_t holders[HOLDERS];

static void hold(int i)
{
	int fd = REQUIRE_OK(t_open(t_dev(), token, R_READ, 0));
	void *p = t_map(fd, GB, PROT_READ);
	double from;

	REQUIRE(p != MAP_FAILED);
	REQUIRE_OK(madvise(p, GB, MADV_POPULATE_READ));
	t_say(turns[i][1]);
	t_hear(turns[i][1]);
	from = t_now();
	munmap(p, GB);
	took[i] = t_now() - from;
}

static void gather_holders(int fd)
{
	REQUIRE_OK(t_token(fd, R_READ, token));
	for (int i = 0; i < HOLDERS; i++) {
		t_pair(turns[i]);
		T_CHILD(holders[i])
			hold(i);
		t_hear(turns[i][0]);
	}
}

static void dismiss_holders(void)
{
	for (int i = 0; i < HOLDERS; i++) {
		t_say(turns[i][0]);
		t_wait(holders[i]);
		close(turns[i][0]);
		close(turns[i][1]);
	}
}

static double take_back(void)
{
	int fd = REQUIRE_OK(t_create(dev, GB, flags));
	double t;

	gather_holders(fd);
	t = t_now();
	REQUIRE_OK(t_revoke(fd));
	t = t_now() - t;
	dismiss_holders();
	close(fd);
	return t;
}

/* A revocation ends when the memory is free. So do the munmaps and the last close. */
static double unmapping[ROUNDS];
static int rounds;

static double unmap(void)
{
	int fd = REQUIRE_OK(t_create(dev, GB, flags));
	double sum = 0, from;

	gather_holders(fd);
	dismiss_holders();
	for (int i = 0; i < HOLDERS; i++)
		sum += took[i];
	unmapping[rounds++ % ROUNDS] = sum;
	from = t_now();
	close(fd);
	return sum + t_now() - from;
}

static void bench_revoke(void)
{
	took = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(took != MAP_FAILED);
	if (t_has_huge(dev)) {
		flags = TMESH_CREATE_HUGE;
		compare("revoke 1 GiB of huge pages from ten", take_back,
			"ten munmaps of huge pages and the last close", unmap);
		report("ten munmaps of huge pages", median(unmapping) * 1e6, "us");
	}
	flags = TMESH_CREATE_NOHUGE;
	compare("revoke 1 GiB of 4 KiB pages from ten", take_back,
		"ten munmaps of 4 KiB pages and the last close", unmap);
	report("ten munmaps of 4 KiB pages", median(unmapping) * 1e6, "us");
}

/* Export existing memory as a dma-buf, let a device attach and map it, and undo all of it. */

#define LARGE (256 * MB)
#define UDMABUF_LIMIT "/sys/module/udmabuf/parameters/size_limit_mb"

static int peer, region, udmabuf, memfd;

static double import(int dmabuf, double from)
{
	REQUIRE_OK(dmabuf);
	REQUIRE_OK(peer_import(peer, dmabuf, PEER_WRITES));
	peer_let_go(peer);
	close(dmabuf);
	return t_now() - from;
}

static double export_region(void)
{
	double from = t_now();

	return import(t_export(region, 0, 0, TMESH_EXPORT_WRITE), from);
}

static double export_memfd(void)
{
	struct udmabuf_create c = {.memfd = memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = LARGE};
	double from = t_now();

	return import(ioctl(udmabuf, UDMABUF_CREATE, &c), from);
}

static void bench_export(void)
{
	char limit[32];
	void *p;

	udmabuf = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	peer = open("/dev/peer", O_RDWR | O_CLOEXEC);
	if (udmabuf < 0 || peer < 0) {
		printf("# no udmabuf, or no /dev/peer to import\n");
		return;
	}
	REQUIRE(t_read_file(UDMABUF_LIMIT, limit, sizeof(limit)));
	REQUIRE(t_write_file(UDMABUF_LIMIT, "1024"));
	memfd = REQUIRE_OK(memfd_create("bench", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	REQUIRE_OK(ftruncate(memfd, LARGE));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	p = mmap(NULL, LARGE, RW, MAP_SHARED | MAP_POPULATE, memfd, 0);
	REQUIRE(p != MAP_FAILED);
	munmap(p, LARGE);
	region = REQUIRE_OK(t_create(dev, LARGE, TMESH_CREATE_NOHUGE));
	compare("export and map 256 MiB of 4 KiB pages", export_region,
		"udmabuf and map 256 MiB of 4 KiB pages", export_memfd);
	close(region);
	region = REQUIRE_OK(t_create(dev, LARGE, 0));
	compare("export and map 256 MiB", export_region, "udmabuf and map 256 MiB", export_memfd);
	close(region);
	close(memfd);
	REQUIRE(t_write_file(UDMABUF_LIMIT, limit));
}

int main(void)
{
	t_catch_faults();
	dev = t_dev();
	bench_export();
	bench_revoke();
	return 0;
}
