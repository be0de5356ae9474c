// SPDX-License-Identifier: MIT
/* Lists of regions and of holders, and the processes that may write to a region. */
#include <dlfcn.h>

#include "memfd.h"
#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)

static unsigned int folders; /* that were opened */

DIR *opendir(const char *path)
{
	DIR *(*next)(const char *);

	*(void **)&next = dlsym(RTLD_NEXT, "opendir");
	folders++;
	return next(path);
}

/* Lists until no other process has one of these, each of which is seen once, in the order of their
 * ids. Other suites look at the regions of the machine, and have each open for a moment. */
static void look_until_alone(struct tmesh_ctx *ctx, struct tmesh_region **regions, size_t many,
			     struct tmesh_region_info **infos, size_t *count)
{
	for (;;) {
		size_t handles = 0;

		assert_ok(tmesh_list(ctx, infos, count, err));
		for (size_t n = 1; n < *count; n++)
			assert_true((*infos)[n - 1].id <= (*infos)[n].id);
		for (size_t i = 0; i < many; i++) {
			size_t seen = 0;

			for (size_t n = 0; n < *count; n++)
				if ((*infos)[n].id == tmesh_region_id(regions[i])) {
					seen++;
					assert_true((*infos)[n].handles >= 1);
					handles += (*infos)[n].handles;
				}
			assert_int_equal(seen, 1);
		}
		if (handles == many)
			return;
		free(*infos);
	}
}

static void test_inspect(void **state)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "seen (deleted)"};
	struct tmesh_region_info *infos;
	struct tmesh_holder_info *holders;
	struct tmesh_region *region;
	char command[16];
	size_t count, i;
	int fake = memfd_create("tmesh:1:zz:10:label", MFD_CLOEXEC);

	assert_ok(tmesh_region_create(*state, 777, &opts, &region, err));
	look_until_alone(*state, &region, 1, &infos, &count);
	for (i = 0; infos[i].id != tmesh_region_id(region); i++)
		;
	assert_string_equal(infos[i].label, opts.label);
	assert_int_equal(infos[i].bytes, 777);
	assert_int_equal(infos[i].alloc_bytes, 4096);
	assert_int_equal(infos[i].handles, 1);
	assert_int_equal(infos[i].rights, 0);
	free(infos);
	map_region(region, RW);
	assert_ok(tmesh_holders(*state, tmesh_region_id(region), &holders, &count, err));
	assert_int_equal(unit_own_holders(holders, count), 1);
	assert_int_equal(holders[0].kind, TMESH_HOLDER_IS_HANDLE);
	/* A memfd's descriptor shows no more. */
	assert_int_equal(holders[0].rights, unit_on_kernel() ? TMESH_RIGHTS_ALL : RW);
	assert_int_equal(holders[0].mappings, 1);
	assert_int_equal(prctl(PR_GET_NAME, command), 0);
	assert_string_equal(holders[0].command, command);
	free(holders);
	/* The descriptor is closed behind our back: the mapping still shows. */
	close(region->fd);
	region->fd = -1;
	assert_ok(tmesh_holders(*state, tmesh_region_id(region), &holders, &count, err));
	assert_int_equal(unit_own_holders(holders, count), 1);
	assert_int_equal(holders[0].kind,
			 unit_on_kernel() ? TMESH_HOLDER_IS_HANDLE : TMESH_HOLDER_IS_MAPPING);
	assert_int_equal(holders[0].rights, unit_on_kernel() ? TMESH_RIGHTS_ALL : RW);
	free(holders);
	tmesh_region_unref(region);
	assert_refused(tmesh_holders(*state, 1, &holders, &count, err), -ENOENT,
		       unit_on_kernel() ? "no region" : "holds");
	close(fake);
}

static void test_names(void **state)
{
	for (int backing = TMESH_BACKED_BY_MEMFD_BACKEND; backing <= TMESH_BACKED_BY_GATHER;
	     backing++)
		assert_string_not_equal(tmesh_backing_name((enum tmesh_backing)backing), "unknown");
	for (int kind = TMESH_HOLDER_IS_HANDLE; kind <= TMESH_HOLDER_IS_DEVICE; kind++)
		assert_string_not_equal(tmesh_holder_kind_name((enum tmesh_holder_kind)kind),
					"unknown");
	assert_string_equal(tmesh_backing_name((enum tmesh_backing)99), "unknown");
	assert_string_equal(tmesh_holder_kind_name((enum tmesh_holder_kind)0), "unknown");
}

/* Many, each with a mapping, are each seen once, in order, and have one handle. */
static void test_see_many(void **state)
{
	enum {
		MANY = 200
	};
	struct tmesh_region *regions[MANY];
	struct tmesh_region_info *infos;
	size_t count;

	for (int i = 0; i < MANY; i++) {
		regions[i] = new_region(*state, 4096);
		map_region(regions[i], RW);
	}
	look_until_alone(*state, regions, MANY, &infos, &count);
	free(infos);
	for (int i = 0; i < MANY; i++)
		tmesh_region_unref(regions[i]);
}

/* With too few descriptors to look at everything, a list of holders fails instead of being short.
 */
static void see_short(struct tmesh_ctx *ctx, struct tmesh_region *region)
{
	struct tmesh_holder_info *holders = NULL;
	struct tmesh_region_info *infos = NULL;
	struct rlimit usual, low;
	char command[16];
	size_t count, all, i;
	int rc[2];

	assert_int_equal(prctl(PR_GET_NAME, command), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
	low = usual;
	low.rlim_cur = 0;
	do {
		struct tmesh_error why[2] = {{0}};

		low.rlim_cur++;
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
		rc[0] = tmesh_list(ctx, &infos, &all, &why[0]);
		rc[1] = tmesh_holders(ctx, tmesh_region_id(region), &holders, &count, &why[1]);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
		for (int call = 0; call < 2; call++)
			if (rc[call]) {
				assert_int_equal(rc[call], -EMFILE);
				assert_non_null(strstr(why[call].message, "RLIMIT_NOFILE"));
			}
		if (rc[0] == 0) {
			for (i = 0; i < all && infos[i].id != tmesh_region_id(region); i++)
				;
			assert_true(i < all);
			free(infos);
		}
	} while (rc[1] == -EMFILE);
	assert_int_equal(rc[1], 0);
	assert_int_equal(unit_own_holders(holders, count), 1);
	assert_int_equal(holders[0].rights, RW);
	assert_string_equal(holders[0].command, command);
	free(holders);
}

static void test_see_short(void **state)
{
	struct tmesh_region *region = new_region(*state, 4096);
	char token[TMESH_TOKEN_SIZE];

	/* Its descriptor only reads now, and that it may write says the index of tokens. */
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	see_short(*state, region);
	tmesh_region_unref(region);
	/* A mapping without a descriptor. */
	region = new_region(*state, 4096);
	map_region(region, RW);
	close(region->fd);
	region->fd = -1;
	see_short(*state, region);
	tmesh_region_unref(region);
}

/* The processes that keep a region from being sealed: each once, and none that cannot write into
 * it. */
static void test_writers(void **state)
{
	struct tmesh_region *region = new_region(*state, 8192);
	char text[128], expected[64], command[16];
	void *read, *own, *more;

	read = mmap(NULL, 4096, PROT_READ, MAP_SHARED, region->fd, 0);
	own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, region->fd, 0);
	tmesh_proc_writers(region->fd, text, sizeof(text));
	assert_string_equal(text, "");
	map_region(region, RW);
	more = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 4096);
	assert_int_equal(prctl(PR_GET_NAME, command), 0);
	snprintf(expected, sizeof(expected), "%d (%s)", (int)getpid(), command);
	tmesh_proc_writers(region->fd, text, sizeof(text));
	assert_string_equal(text, expected);
	munmap(read, 4096);
	munmap(own, 4096);
	munmap(more, 4096);
	tmesh_region_unref(region);
}

#define SEVERAL 30

static size_t of_region(const struct tmesh_holder_info *all, size_t count, uint64_t id,
			struct tmesh_holder_info *own)
{
	size_t found = 0;

	for (size_t i = 0; i < count; i++)
		if (all[i].region == id && all[i].pid == getpid())
			own[found++ % 4] = all[i];
	return found;
}

/* The holders of all regions at once are those of each. */
static void test_holders_of_all(void **state)
{
	struct tmesh_holder_info *all, *one, own[4];
	struct tmesh_region *regions[SEVERAL], *others[SEVERAL];
	char token[TMESH_TOKEN_SIZE];
	size_t all_count, count;
	unsigned int for_one;
	void *addr;

	for (int i = 0; i < SEVERAL; i++) {
		assert_ok(tmesh_region_create(*state, 4096, NULL, &regions[i], err));
		others[i] = NULL;
		if (i % 2)
			assert_ok(tmesh_region_token(regions[i], TMESH_READ, token, err));
		if (i % 3 == 0)
			assert_ok(tmesh_region_seal(regions[i], err));
		if (i % 5 == 0)
			assert_ok(tmesh_region_map(regions[i], TMESH_READ, &addr, err));
		if (i % 7 == 0)
			assert_ok(tmesh_region_derive(regions[i], TMESH_READ, &others[i], err));
	}
	folders = 0;
	assert_ok(tmesh_holders(*state, tmesh_region_id(regions[0]), &one, &count, err));
	free(one);
	for_one = folders;
	folders = 0;
	assert_ok(tmesh_holders(*state, 0, &all, &all_count, err));
	/* One walk over /proc has all. Other suites' processes come and go meanwhile. */
	if (!unit_on_kernel())
		assert_true(for_one > 0);
	assert_in_range(folders, 0, 3 * for_one);
	for (size_t i = 1; i < all_count; i++)
		assert_true(all[i - 1].region <= all[i].region);
	for (int i = 0; i < SEVERAL; i++) {
		uint64_t id = tmesh_region_id(regions[i]);

		assert_ok(tmesh_holders(*state, id, &one, &count, err));
		count = unit_own_holders(one, count);
		assert_int_equal(of_region(all, all_count, id, own), count);
		assert_in_range(count, 1, 4);
		for (size_t k = 0; k < count; k++) {
			assert_int_equal(one[k].region, id);
			assert_int_equal(own[k].kind, one[k].kind);
			assert_int_equal(own[k].rights, one[k].rights);
			assert_int_equal(own[k].mappings, one[k].mappings);
			assert_string_equal(own[k].command, one[k].command);
		}
		free(one);
		tmesh_region_unref(others[i]);
		tmesh_region_unref(regions[i]);
	}
	free(all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_inspect),
		TEST(test_names),
		TEST(test_holders_of_all),
	};
	const struct CMUnitTest memfds[] = {
		TEST(test_see_many),
		TEST(test_see_short),
		TEST(test_writers),
	};
	int failed =
		cmocka_run_group_tests_name("holders", tests, unit_ctx_setup, unit_ctx_teardown);

	return failed + cmocka_run_group_tests_name("holders on memfds", memfds,
						    unit_memfd_ctx_setup, unit_ctx_teardown);
}
