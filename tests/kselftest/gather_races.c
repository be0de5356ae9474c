// SPDX-License-Identifier: MIT
/*
 * Races about gather views: after a source is revoked, a view shows nothing, in every order of
 * events.
 */
#include "t.h"

#define RW (PROT_READ | PROT_WRITE)

static int dev;

struct race {
	int sources[2], view;
	size_t pages; /* of each source */
	char *p;
	bool over;
};

static bool over(struct race *r)
{
	return __atomic_load_n(&r->over, __ATOMIC_ACQUIRE);
}

static void *touch_view(void *arg)
{
	struct race *r = arg;
	unsigned int seed = 9;

	while (!over(r)) {
		size_t at = t_random(&seed) % (2 * r->pages);

		t_write(r->p + at * PAGE, 1);
		if (seed % 8 == 0)
			madvise(r->p, 2 * r->pages * PAGE, MADV_DONTNEED);
	}
	return NULL;
}

static void *use_view(void *arg)
{
	struct race *r = arg;

	while (!over(r)) {
		int fd = t_export(r->view, PAGE, 4 * PAGE, TMESH_EXPORT_WRITE);
		char *p = t_map(r->view, PAGE, RW);
		int other = t_derive(r->view, R_READ, 0);

		if (p != MAP_FAILED) {
			t_write(p, 1);
			munmap(p, PAGE);
		}
		close(other);
		close(fd);
	}
	return NULL;
}

static void *regather(void *arg)
{
	struct race *r = arg;
	struct tmesh_extent e[3] = {
		t_extent(r->sources[0], 0, 1),
		t_extent(r->sources[1], 3, 4),
		t_extent(r->sources[0], r->pages / 2, r->pages / 2),
	};

	while (!over(r)) {
		int v = t_gather(dev, e, 3, R_READ | R_WRITE);
		char *p = t_map(v, PAGE, RW);

		if (p != MAP_FAILED) {
			t_write(p, 1);
			munmap(p, PAGE);
		}
		close(v);
	}
	return NULL;
}

static void *revoke_second(void *arg)
{
	struct race *r = arg;

	CHECK_OK(t_revoke(r->sources[1]));
	return NULL;
}

static void *close_view(void *arg)
{
	struct race *r = arg;

	close(r->view);
	return NULL;
}

static void race(void *(*const work[])(void *), int n, size_t pages, __u32 flags)
{
	long rounds = t_length(40, 3000);
	unsigned int seed = 123;

	dev = t_dev();
	for (long round = 0; round < rounds && !t_failed(); round++) {
		struct tmesh_extent e[2];
		pthread_t threads[3];
		struct race r = {.pages = pages};
		int second;

		for (int i = 0; i < 2; i++) {
			r.sources[i] = REQUIRE_OK(t_create(dev, pages * PAGE, flags));
			e[i] = t_extent(r.sources[i], 0, pages);
		}
		r.view = REQUIRE_OK(t_gather(dev, e, 2, R_READ | R_WRITE));
		second = REQUIRE_OK(t_derive(r.view, R_READ | R_WRITE, 0));
		r.p = t_map(second, 2 * pages * PAGE, RW);
		REQUIRE(r.p != MAP_FAILED);
		for (int i = 0; i < n; i++)
			REQUIRE(!pthread_create(&threads[i], NULL, work[i], &r));
		usleep(t_random(&seed) % 3000);
		CHECK_OK(t_revoke(r.sources[0]));
		for (size_t i = 0; i < 2 * pages; i += 61)
			CHECK_EQ(t_read(r.p + i * PAGE), SIGBUS);
		__atomic_store_n(&r.over, true, __ATOMIC_RELEASE);
		for (int i = 0; i < n; i++)
			pthread_join(threads[i], NULL);
		for (size_t i = 0; i < 2 * pages && !t_failed(); i += pages / 64)
			CHECK_EQ(t_read(r.p + i * PAGE), SIGBUS);
		CHECK_EQ(t_info(second).state, TMESH_STATE_REVOKED);
		/* A work finishes the revocation a moment later. */
		for (int i = 0; i < 12000 && t_info(r.sources[1]).gathers; i++)
			usleep(10000);
		CHECK_EQ(t_info(r.sources[1]).gathers, 0);
		munmap(r.p, 2 * pages * PAGE);
		close(second);
		close(r.view);
		close(r.sources[0]);
		close(r.sources[1]);
	}
}

TEST(race_touch, "faults on a view against the revocation of a source")
{
	race((void *(*const[])(void *)){touch_view, touch_view, use_view}, 3, 64,
	     TMESH_CREATE_NOHUGE);
}

TEST(race_touch_huge, "the same on huge pages")
{
	dev = t_dev();
	if (!t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	race((void *(*const[])(void *)){touch_view, touch_view, use_view}, 3, 1024,
	     TMESH_CREATE_HUGE);
}

TEST_CALL(race_two, "two sources of a view revoked at once, and its handle closed",
	  race((void *(*const[])(void *)){revoke_second, close_view, touch_view}, 3, 64, 0))
TEST_CALL(race_make, "views that are made while a source is revoked",
	  race((void *(*const[])(void *)){regather, regather, touch_view}, 3, 64, 0))

static void *show_and_hide(void *arg)
{
	struct race *r = arg;
	struct tmesh_extent all = t_extent(r->sources[0], 0, r->pages);

	while (!over(r)) {
		int v = REQUIRE_OK(t_gather(dev, &all, 1, R_READ));
		char *p = t_map(v, r->pages * PAGE, PROT_READ);

		REQUIRE(p != MAP_FAILED);
		for (size_t i = 0; i < r->pages; i += 16)
			t_read(p + i * PAGE);
		munmap(p, r->pages * PAGE);
		close(v);
	}
	return NULL;
}

TEST(race_seal, "no seal of what is pinned for writing, however readers' views come and go")
{
	struct race r = {.pages = 64};
	struct tmesh_create_user pin = {
		.size = sizeof(pin),
		.bytes = r.pages * PAGE,
		.rights = R_READ | R_WRITE,
	};
	pthread_t threads[2];
	void *p;

	dev = t_dev();
	r.sources[0] = REQUIRE_OK(t_create(dev, r.pages * PAGE, 0));
	p = t_map(r.sources[0], r.pages * PAGE, RW);
	REQUIRE(p != MAP_FAILED);
	pin.address = (__u64)(unsigned long)p;
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_USER, &pin));
	munmap(p, r.pages * PAGE);
	for (int i = 0; i < 2; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, show_and_hide, &r));
	for (long i = 0, n = t_length(30, 1000); i < n && !t_failed(); i++)
		CHECK_ERR(t_seal(r.sources[0]), EBUSY);
	__atomic_store_n(&r.over, true, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	close(pin.fd);
	CHECK_OK(t_seal(r.sources[0]));
}
