// SPDX-License-Identifier: MIT
/*
 * Races: a revocation against all other operations. Once it has returned, all accesses fail and no
 * mapping is left. When the others have ended, all of the memory is free.
 */
#include "drm.h"
#include "peer.h"
#include "race.h"

#define BYTES RACE_BYTES
#define THREADS RACE_THREADS
#define SECOND 1000000000ull

/* Threads, in addition to those of race.h */

/* Fault pages of the common mapping in, write to them, and drop them again. */
static void *touch(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);

	while (!stopped(s)) {
		size_t at = t_random(&seed) % (BYTES / PAGE) * PAGE;

		t_write(s->mapping + at, 1);
		if (t_random(&seed) % 4 == 0)
			madvise(s->mapping + at / HUGE * HUGE, HUGE, MADV_DONTNEED);
	}
	return NULL;
}

/* Fork children that inherit everything and exit at once, or work a little. */
static void *forker(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);

	while (!stopped(s)) {
		pid_t pid = fork();

		if (!pid) {
			for (int i = 0; i < 8; i++)
				t_write(s->mapping + t_random(&seed) % (BYTES / PAGE) * PAGE, 1);
			_exit(0);
		}
		if (pid > 0)
			waitpid(pid, NULL, 0);
	}
	return NULL;
}

/* Attach and detach devices, some with a move callback. */
static void *attach(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);
	int peer = open_peer();

	while (!stopped(s)) {
		int fd = t_export(s->handle, 0, 0, TMESH_EXPORT_WRITE);
		__u32 told = t_random(&seed) % 2 ? PEER_TOLD | PEER_LETS_GO : 0;

		if (fd < 0)
			continue;
		peer_import(peer, fd, told | PEER_WRITES | PEER_WAITS);
		close(fd);
	}
	close(peer);
	return NULL;
}

/* Map and unmap by an attached device. */
static void *device(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);
	int fd = t_export(s->handle, 0, 0, TMESH_EXPORT_WRITE), peer = open_peer();
	__u32 told = t_random(&seed) % 2 ? PEER_TOLD | PEER_LETS_GO : 0;

	if (fd >= 0 && !peer_import(peer, fd, told | PEER_WRITES | PEER_WAITS)) {
		while (!stopped(s)) {
			ioctl(peer, PEER_MAP);
			ioctl(peer, PEER_UNMAP);
		}
	}
	close(fd);
	close(peer);
	return NULL;
}

static void *import(void *arg)
{
	struct subject *s = arg;

	while (!stopped(s)) {
		int fd = t_export(s->handle, 0, 0, TMESH_EXPORT_WRITE);
		int gem = fd < 0 ? -1 : vgem_import(s->vgem, fd);

		if (fd >= 0)
			close(fd);
		if (gem >= 0)
			vgem_close(s->vgem, gem);
	}
	return NULL;
}

/* Make handles in each way, and close them. */
static void *closer(void *arg)
{
	struct subject *s = arg;

	while (!stopped(s)) {
		int fds[] = {
			t_derive(s->handle, R_READ, 0),
			t_open(s->dev, s->token, R_READ | R_WRITE, 0),
			t_export(s->handle, 0, PAGE, 0),
		};
		unsigned char *p = t_map(fds[1], PAGE, RW);

		for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
			if (fds[i] >= 0)
				close(fds[i]);
		if (p != MAP_FAILED) {
			t_write(p, 1);
			munmap(p, PAGE);
		}
	}
	return NULL;
}

/* Seal at some moment: first, while there are writers, or too late. */
static void *sealer(void *arg)
{
	struct subject *s = arg;
	unsigned int seed = own_seed(s);
	int rc;

	usleep(t_random(&seed) % 2000);
	do
		rc = t_seal(s->handle);
	while (rc && errno == EBUSY && !stopped(s));
	CHECK(!rc || errno == ESTALE || errno == EBUSY);
	while (!rc && !stopped(s))
		CHECK(t_map(s->handle, BYTES, RW) == MAP_FAILED);
	return NULL;
}

/* The race */

static int wait_free(int handle)
{
	struct tmesh_revoke r = {
		.size = sizeof(r),
		.flags = TMESH_REVOKE_WAIT,
		.timeout_ns = 60 * SECOND,
	};

	return ioctl(handle, TMESH_REVOKE, &r);
}

static void nothing_left(const struct subject *s, size_t from)
{
	for (size_t i = from; i < BYTES; i += 16 * PAGE)
		CHECK_EQ(t_read(s->mapping + i), SIGBUS);
	CHECK_ERR(t_map(s->handle, BYTES, PROT_READ), ESTALE);
	CHECK_ERR(t_derive(s->handle, R_READ, 0), ESTALE);
	CHECK_ERR(t_export(s->handle, 0, 0, 0), ESTALE);
	CHECK_ERR(t_open(s->dev, s->token, R_READ, 0), ENOENT);
}

static void race(__u32 flags, int prot, int vgem, void *(*const work[THREADS])(void *))
{
	long rounds = t_length(40, 3000), done = 0;
	double until = t_now() + t_length(4, 200);
	unsigned int seed = 4711;
	int dev = t_dev();

	if (flags & TMESH_CREATE_HUGE && !t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	for (; done < rounds && t_now() < until && !t_failed(); done++) {
		struct subject s = {.dev = dev, .vgem = vgem, .seed = t_random(&seed)};
		int first = REQUIRE_OK(t_create(dev, BYTES, flags));
		pthread_t threads[THREADS];

		REQUIRE_OK(t_token(first, R_READ | R_WRITE, s.token));
		s.handle = REQUIRE_OK(t_derive(first, R_ALL, 0));
		s.mapping = t_map(s.handle, BYTES, prot);
		REQUIRE(s.mapping != MAP_FAILED);
		start(&s, work, threads, THREADS);
		pause_a_little(&seed);
		CHECK_OK(t_revoke(first));
		for (size_t i = 0; i < BYTES; i += HUGE / 2)
			CHECK_EQ(t_read(s.mapping + i), SIGBUS);
		stop(&s, threads, THREADS);
		nothing_left(&s, t_random(&seed) % 16 * PAGE);
		CHECK_OK(wait_free(first));
		munmap(s.mapping, BYTES);
		close(s.handle);
		close(first);
	}
	t_note("%ld rounds", done);
}

#define RACE(ident, title, flags, prot, vgem, ...)                    \
	TEST(ident, title)                                            \
	{                                                             \
		static void *(*const work[])(void *) = {__VA_ARGS__}; \
                                                                      \
		race(flags, prot, vgem, work);                        \
	}

RACE(touch, "faults of single pages", TMESH_CREATE_NOHUGE, RW, -1, touch, touch, touch)
RACE(touch_huge, "faults of huge pages", TMESH_CREATE_HUGE, RW, -1, touch, touch, touch)
RACE(map, "mmap, mprotect, munmap", 0, RW, -1, map, map, touch)
RACE(map_huge, "the same on huge pages", TMESH_CREATE_HUGE, RW, -1, map, map, touch)
RACE(fork, "fork", 0, RW, -1, forker, forker, touch)
RACE(fork_huge, "fork on huge pages", TMESH_CREATE_HUGE, RW, -1, forker, forker, touch)
RACE(export, "exports, their mappings, and what a device has of them", 0, RW, open_vgem(), export,
     export, touch)
RACE(attach, "devices that attach and detach", 0, RW, -1, attach, attach, touch)
RACE(device, "devices that map and unmap", 0, RW, -1, device, device, touch)
RACE(import, "imports by a driver", 0, RW, open_vgem(), import, import, touch)
RACE(close, "handles that open and close", 0, RW, -1, closer, closer, touch)
RACE(seal, "a seal, with writers that come and go", 0, PROT_READ, -1, sealer, closer, closer)

/* A region over another driver's memory, with its proxies */
TEST(imported, "proxies of an import that are exported, attached and mapped")
{
	static void *(*const work[])(void *) = {attach, device, import};
	long rounds = t_length(40, 3000), done = 0;
	double until = t_now() + t_length(4, 200);
	unsigned int seed = 99;
	int vgem = open_vgem(), dev = t_dev();

	for (; done < rounds && t_now() < until && !t_failed(); done++) {
		struct subject s = {.dev = dev, .vgem = vgem, .seed = t_random(&seed)};
		struct tmesh_import i = {.size = sizeof(i)};
		__u32 gem = vgem_create(vgem, BYTES);
		pthread_t threads[THREADS];

		i.source = vgem_export(vgem, gem, DRM_RDWR);
		REQUIRE_OK(ioctl(dev, TMESH_IMPORT, &i));
		close(i.source);
		s.handle = REQUIRE_OK(t_derive(i.fd, R_ALL, 0));
		start(&s, work, threads, THREADS);
		pause_a_little(&seed);
		CHECK_OK(t_revoke(i.fd));
		CHECK_ERR(t_export(s.handle, 0, 0, 0), ESTALE);
		stop(&s, threads, THREADS);
		CHECK_OK(wait_free(i.fd));
		close(s.handle);
		close(i.fd);
		vgem_close(vgem, gem);
	}
	t_note("%ld rounds", done);
}
