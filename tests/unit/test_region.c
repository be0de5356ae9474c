// SPDX-License-Identifier: MIT
/* Regions: create, map, read and write, seal, rights, descriptions. */
#include <linux/memfd.h>
#include <sys/sysinfo.h>

#include "common/foreign.h"
#include "memfd.h"
#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)

UNIT(test_create)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "weights \xc3\xa9"};
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region;
	struct stat st;
	uint8_t *bytes;

	assert_ok(tmesh_region_create(*state, 5000, &opts, &region, err));
	bytes = map_region(region, TMESH_READ);
	for (int i = 0; i < 8192; i++)
		assert_int_equal(bytes[i], 0);
	assert_ok(tmesh_region_info(region, &info, err));
	assert_int_equal(info.bytes, 5000);
	assert_int_equal(info.alloc_bytes, 8192);
	assert_int_equal(info.rights, TMESH_RIGHTS_ALL);
	assert_int_equal(info.mode, 0600);
	assert_int_equal(info.uid, geteuid());
	assert_int_equal(info.handles, unit_on_kernel()); /* on memfd no call has looked for more */
	assert_int_equal(info.node, -1);
	assert_false(info.sealed);
	assert_string_equal(info.label, opts.label);
	assert_string_equal(info.description, "");
	assert_true(info.id != 0);
	assert_int_equal(fstat(tmesh_region_fd(region), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(fcntl(tmesh_region_fd(region), F_GET_SEALS),
			 unit_on_kernel() ? -1 : F_SEAL_SHRINK | F_SEAL_GROW);
	assert_int_equal(fcntl(tmesh_region_fd(region), F_GETFD), FD_CLOEXEC);
	tmesh_region_unref(region);
}

UNIT(test_create_refused)
{
	struct tmesh_region *region = NULL;
	char label[TMESH_LABEL_LEN + 2];
	struct tmesh_region_opts opts;

#define REFUSED(code, word, ...)                                                                  \
	do {                                                                                      \
		opts = (struct tmesh_region_opts){.size = sizeof(opts), __VA_ARGS__};             \
		assert_refused(tmesh_region_create(*state, 10, &opts, &region, err), code, word); \
	} while (0)
	assert_refused(tmesh_region_create(*state, 0, NULL, &region, err), -EINVAL, "one byte");
	assert_refused(tmesh_region_create(*state, UINT64_MAX, NULL, &region, err), -EOVERFLOW,
		       "more than");
	assert_refused(tmesh_region_create(*state, INT64_MAX, NULL, &region, err), -EOVERFLOW,
		       "more than");
	memset(label, 'x', sizeof(label));
	label[sizeof(label) - 1] = '\0';
	REFUSED(-EINVAL, "longer", .label = label);
	REFUSED(-EINVAL, "control", .label = "a\x1b[31m");
	REFUSED(-EINVAL, "control", .label = "a\x7f");
	REFUSED(-EINVAL, "control", .label = "a\xc2\x85");
	REFUSED(-EINVAL, "UTF-8", .label = "\xff");
	REFUSED(-EINVAL, "UTF-8", .label = "\xc0\xaf");
	REFUSED(-EINVAL, "UTF-8", .label = "\xe0\x83\xbf");
	REFUSED(-EINVAL, "UTF-8", .label = "\xf0\x82\x82\xac");
	REFUSED(-EINVAL, "UTF-8", .label = "\xf4\x90\x80\x80");
	REFUSED(-EINVAL, "UTF-8", .label = "\xed\xa0\x80");
	REFUSED(-EINVAL, "UTF-8", .label = "\xe2\x82");
	REFUSED(-EINVAL, "flags", .flags = 1u << 20);
	REFUSED(-EINVAL, "set one of them", .flags = TMESH_REGION_HUGE | TMESH_REGION_TRY_HUGE);
	REFUSED(-EINVAL, "mode", .mode = 0604);
	REFUSED(-EINVAL, "mode", .mode = 0200);
	if (!unit_on_kernel()) {
		REFUSED(-EOPNOTSUPP, "one user", .mode = 0640);
		REFUSED(-EOPNOTSUPP, "hold_ms", .hold_ms = 5);
	}
	REFUSED(-EINVAL, "1000", .hold_ms = 1001);
	REFUSED(-EINVAL, "NUMA", .flags = TMESH_REGION_NODE, .node = 99999);
	REFUSED(-EINVAL, "no NUMA node 900", .flags = TMESH_REGION_NODE, .node = 900);
	REFUSED(-EINVAL, "node 1024", .flags = TMESH_REGION_NODE, .node = 1024);
	REFUSED(-EINVAL, "node -1", .flags = TMESH_REGION_NODE, .node = -1);
	assert_null(region);
	label[TMESH_LABEL_LEN] = '\0';
	opts = (struct tmesh_region_opts){.size = sizeof(opts), .label = label};
	assert_ok(tmesh_region_create(*state, 10, &opts, &region, err));
	tmesh_region_unref(region);
}

UNIT(test_node)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_NODE};
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(*state, 8192, &opts, &region, err));
	assert_ok(tmesh_region_info(region, &info, err));
	assert_int_equal(info.node, 0);
	tmesh_region_unref(region);
}

/* Huge pages: as demanded or -ENOMEM with the reason; TRY_HUGE always gives a region. */
UNIT(test_huge)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_TRY_HUGE};
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region;
	struct tmesh_error why;
	uint8_t *bytes;

	assert_ok(tmesh_region_create(*state, 5 << 20, &opts, &region, err));
	bytes = map_region(region, RW);
	bytes[(5 << 20) - 1] = 7;
	tmesh_region_unref(region);
	opts.flags = TMESH_REGION_HUGE;
	if (tmesh_region_create(*state, 3 << 20, &opts, &region, &why)) {
		assert_int_equal(why.code, -ENOMEM);
		assert_non_null(
			strstr(why.message, unit_on_kernel() ? "2 MiB pages" : "nr_hugepages"));
		return;
	}
	assert_ok(tmesh_region_set_description(region, "huge", err));
	assert_ok(tmesh_region_info(region, &info, err));
	assert_int_equal(info.alloc_bytes, 4 << 20);
	assert_int_equal(info.huge_bytes, 4 << 20);
	assert_string_equal(info.description, "huge");
	tmesh_region_unref(region);
}

UNIT(test_map)
{
	struct tmesh_region *region = new_region(*state, 10000), *reader;
	char *first = map_region(region, TMESH_READ), *second = map_region(region, RW);
	void *addr = region;

	assert_ptr_equal(first, second);
	strcpy(second, "written");
	assert_ptr_equal(map_region(region, TMESH_READ), first);
	tmesh_region_unmap(region, RW);
	assert_refused(tmesh_region_map(region, TMESH_WRITE, &addr, err), -EINVAL, "READ");
	assert_refused(tmesh_region_map(region, 0, &addr, err), -EINVAL, "READ");
	assert_refused(tmesh_region_map(region, 7, &addr, err), -EINVAL, "READ");
	assert_ok(tmesh_region_derive(region, TMESH_READ, &reader, err));
	assert_string_equal(map_region(reader, TMESH_READ), "written");
	assert_refused(tmesh_region_map(reader, RW, &addr, err), -EACCES, "write");
	assert_ptr_equal(addr, region);
	/* Not only by our word: the descriptor itself cannot write. */
	assert_ptr_equal(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, tmesh_region_fd(reader), 0),
			 MAP_FAILED);
	assert_int_equal(pwrite(tmesh_region_fd(reader), "x", 1, 0), -1);
	tmesh_region_unref(reader);
	tmesh_region_unref(region);
}

UNIT(test_read_write)
{
	struct tmesh_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	struct tmesh_region *region = new_region(*state, 100001);
	char *data = malloc(100001), *back = calloc(1, 100001);

	for (int i = 0; i < 100001; i++)
		data[i] = (char)(i * 7);
	assert_int_equal(tmesh_stats(*state, &before), 0);
	assert_ok(tmesh_region_write(region, 1, data + 1, 100000, err));
	assert_ok(tmesh_region_read(region, 1, back + 1, 100000, err));
	assert_memory_equal(back + 1, data + 1, 100000);
	assert_memory_equal((char *)map_region(region, TMESH_READ) + 1, data + 1, 100000);
	assert_ok(tmesh_region_write(region, 0, data, 1, err));
	assert_ok(tmesh_region_write(region, 100001, data, 0, err));
	assert_int_equal(tmesh_stats(*state, &after), 0);
	assert_int_equal(after.bytes_copied - before.bytes_copied, 200001);
	assert_int_equal(after.copies - before.copies, 3);
	assert_refused(tmesh_region_write(region, 100001, data, 1, err), -EINVAL, "inside");
	assert_refused(tmesh_region_write(region, UINT64_MAX, data, 2, err), -EINVAL, "inside");
	assert_refused(tmesh_region_read(region, 1, back, 100001, err), -EINVAL, "inside");
	assert_refused(tmesh_region_read(region, 2, back, UINT64_MAX, err), -EINVAL, "inside");
	free(data);
	free(back);
	tmesh_region_unref(region);
}

UNIT(test_seal)
{
	struct tmesh_region *region = new_region(*state, 5000), *writer, *reader;
	char *addr = map_region(region, TMESH_READ), who[64], token[TMESH_TOKEN_SIZE];
	void *other;

	assert_ptr_equal(map_region(region, RW), addr);
	strcpy(addr, "final");
	assert_ok(tmesh_region_set_description(region, "frozen", err));
	assert_ok(tmesh_region_derive(region, RW, &writer, err));
	assert_ok(tmesh_region_derive(region, TMESH_READ, &reader, err));
	map_region(reader, TMESH_READ);
	other = map_region(writer, RW);

	/* Another handle writes: nothing has changed, ours is writable still. */
	if (unit_on_kernel())
		snprintf(who, sizeof(who), "tmeshctl holders %016llx",
			 (unsigned long long)tmesh_region_id(region));
	else
		snprintf(who, sizeof(who), "process %d (", (int)getpid());
	assert_refused(tmesh_region_seal(region, err), -EBUSY, who);
	strcpy(addr, "Final");
	strcpy(other, "FINAL");
	assert_refused(tmesh_region_seal(reader, err), -EACCES, "manage");
	tmesh_region_unref(writer);

	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_seal(region, err));
	/* Another handle is asked for the first time; no token could grant what is over. */
	assert_true(tmesh_region_is_sealed(reader));
	assert_refused(tmesh_region_token(region, RW, token, err), -EPERM, "could not write");
	assert_string_equal(addr, "FINAL");
	assert_int_equal(mprotect(addr, 4096, PROT_READ | PROT_WRITE), -1);
	if (!unit_on_kernel())
		assert_int_equal(fcntl(tmesh_region_fd(region), F_GET_SEALS) &
					 (F_SEAL_WRITE | F_SEAL_SEAL),
				 F_SEAL_WRITE | F_SEAL_SEAL);
	assert_refused(tmesh_region_map(region, RW, &other, err), -EPERM, "sealed");
	assert_refused(tmesh_region_write(region, 0, "x", 1, err), -EPERM, "sealed");
	assert_refused(tmesh_region_set_description(region, "x", err), -EPERM,
		       "describe a region before its seal");
	assert_ptr_equal(map_region(region, TMESH_READ), addr);
	tmesh_region_unref(region);
	assert_string_equal(map_region(reader, TMESH_READ), "FINAL");
	tmesh_region_unref(reader);
}

/* On the module a limit is passed long before the memory is. */
static void test_over_limit(void **state)
{
	struct tmesh_region *region = *state;

	assert_refused(tmesh_region_create(*state, 1ull << 60, NULL, &region, err), -EDQUOT,
		       "/proc/sys/dev/tmesh/");
	assert_ptr_equal(region, *state);
}

/* A memfd takes any length; what this machine could never hold is refused all the same. */
UNIT(test_too_large)
{
	struct tmesh_region *region = *state;
	struct sysinfo info;
	char there[32];

	if (unit_on_kernel()) {
		test_over_limit(state);
		return;
	}
	assert_int_equal(sysinfo(&info), 0);
	snprintf(there, sizeof(there), "%llu bytes",
		 (unsigned long long)(info.totalram + info.totalswap) * info.mem_unit);
	assert_refused(tmesh_region_create(*state, 1ull << 60, NULL, &region, err), -ENOMEM, there);
	assert_ptr_equal(region, *state);
	assert_ok(tmesh_region_create(*state, info.totalram * info.mem_unit, NULL, &region, err));
	tmesh_region_unref(region);
}

UNIT(test_derive)
{
	struct tmesh_region *region = new_region(*state, 10), *less, *none = NULL;

	assert_refused(tmesh_region_derive(region, TMESH_WRITE, &none, err), -EINVAL, "READ");
	assert_refused(tmesh_region_derive(region, 1 | 8, &none, err), -EINVAL, "unknown");
	assert_ok(tmesh_region_derive(region, RW, &less, err));
	assert_int_equal(tmesh_region_id(less), tmesh_region_id(region));
	assert_refused(tmesh_region_derive(less, TMESH_RIGHTS_ALL, &none, err), -EACCES, "manage");
	assert_refused(tmesh_region_set_description(less, "x", err), -EACCES, "manage");
	assert_refused(tmesh_region_revoke(less, err), -EACCES, "manage");
	assert_null(none);
	tmesh_region_unref(less);
	tmesh_region_unref(region);
}

/* The owner takes back by its id a region that only another process holds. */
UNIT(test_revoke_id)
{
	struct tmesh_region *region = new_region(*state, 10);
	uint64_t id = tmesh_region_id(region);

	if (!unit_on_kernel()) {
		assert_refused(tmesh_region_revoke_id(*state, id, err), -EOPNOTSUPP, "module");
	} else {
		assert_refused(tmesh_region_revoke_id(*state, UINT64_MAX, err), -ENOENT,
			       "no such region");
		assert_ok(tmesh_region_revoke_id(*state, id, err));
		assert_refused(tmesh_region_revoke_id(*state, id, err), -ESTALE, "revoked");
		assert_refused(tmesh_region_seal(region, err), -ESTALE, "revoked");
	}
	tmesh_region_unref(region);
}

UNIT(test_pin)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_NO_PIN};
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region = new_region(*state, 10), *pin = NULL;
	void *addr;

	assert_refused(tmesh_region_pin(region, &pin, err), -EINVAL, "not sealed; seal it first");
	assert_refused(tmesh_region_map(region, TMESH_WRITE, &addr, err), -EINVAL,
		       "rights 0x2 are neither TMESH_READ nor");
	assert_ok(tmesh_region_seal(region, err));
	assert_ok(tmesh_region_pin(region, &pin, err));
	tmesh_region_unref(region);
	assert_ok(tmesh_region_info(pin, &info, err));
	assert_true(info.pinning && info.sealed);
	assert_int_equal(info.rights, TMESH_READ);
	tmesh_region_unref(pin);

	assert_ok(tmesh_region_create(*state, 10, &opts, &region, err));
	assert_ok(tmesh_region_seal(region, err));
	assert_refused(tmesh_region_pin(region, &pin, err), -EPERM, "refuses");
	tmesh_region_unref(region);
}

UNIT(test_desc)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region = new_region(*state, 4096), *reader;
	char text[TMESH_DESCRIPTION_LEN + 2];

	memset(text, 'd', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	assert_refused(tmesh_region_set_description(region, text, err), -EINVAL, "longer");
	text[TMESH_DESCRIPTION_LEN] = '\0';
	assert_ok(tmesh_region_set_description(region, text, err));
	assert_ok(tmesh_region_derive(region, TMESH_READ, &reader, err));
	assert_ok(tmesh_region_info(reader, &info, err));
	assert_string_equal(info.description, text);
	assert_ok(tmesh_region_set_description(region, "short", err));
	assert_ok(tmesh_region_info(reader, &info, err));
	assert_string_equal(info.description, "short");
	info.size = offsetof(struct tmesh_region_info, label);
	strcpy(info.label, "untouched");
	assert_ok(tmesh_region_info(region, &info, err));
	assert_string_equal(info.label, "untouched");
	info.size = 0;
	assert_refused(tmesh_region_info(region, &info, err), -EINVAL, "size");
	tmesh_region_unref(reader);
	tmesh_region_unref(region);
}

UNIT(test_from_memfd)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "theirs"};
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region = NULL, *twin;
	struct tmesh_holder_info *holders;
	int fd = memfd(5000, F_SEAL_SHRINK | F_SEAL_GROW), open_fd = memfd(5000, F_SEAL_SHRINK);
	int shrinks = memfd(5000, F_SEAL_GROW);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC),
	    empty = memfd(0, F_SEAL_SHRINK | F_SEAL_GROW);
	size_t count;
	char *addr;

	assert_int_equal(pwrite(fd, "hers", 5, 0), 5);
	assert_refused(tmesh_region_from_memfd(*state, -1, 0, NULL, &region, err), -EBADF, "-1");
	opts.size = 3;
	assert_refused(tmesh_region_from_memfd(*state, fd, 0, &opts, &region, err), -EINVAL,
		       "size");
	opts.size = sizeof(opts);
	assert_refused(tmesh_region_from_memfd(*state, null, 0, NULL, &region, err), -EINVAL,
		       "not a memfd");
	assert_refused(tmesh_region_from_memfd(*state, open_fd, 0, NULL, &region, err), -EINVAL,
		       "F_SEAL_GROW");
	assert_refused(tmesh_region_from_memfd(*state, shrinks, 0, NULL, &region, err), -EINVAL,
		       "F_SEAL_SHRINK");
	assert_refused(tmesh_region_from_memfd(*state, empty, 0, NULL, &region, err), -EINVAL,
		       "bytes");
	assert_refused(tmesh_region_from_memfd(*state, fd, 5001, NULL, &region, err), -EINVAL,
		       "5000");
	opts.flags = TMESH_REGION_HUGE;
	assert_refused(tmesh_region_from_memfd(*state, fd, 0, &opts, &region, err), -EINVAL,
		       "NO_PIN");
	opts.flags = 0;
	/* Promises that the module could give, and a stranger's memfd cannot. */
	if (!unit_on_kernel()) {
		opts.hold_ms = 1000;
		assert_refused(tmesh_region_from_memfd(*state, fd, 0, &opts, &region, err),
			       -EOPNOTSUPP, "hold_ms");
		opts.hold_ms = 0;
		opts.flags = TMESH_REGION_GID;
		assert_refused(tmesh_region_from_memfd(*state, fd, 0, &opts, &region, err),
			       -EOPNOTSUPP, "its maker's");
		opts.flags = 0;
	}
	assert_ok(tmesh_region_from_memfd(*state, fd, 0, &opts, &region, err));
	assert_ok(tmesh_region_from_memfd(*state, fd, 100, &opts, &twin, err));
	/* The module's regions are its own; on memfd the memfd is the region. */
	assert_true((tmesh_region_id(region) == tmesh_region_id(twin)) == !unit_on_kernel());
	close(fd);
	addr = map_region(region, RW);
	assert_string_equal(addr, "hers");
	strcpy(addr, "ours");
	assert_string_equal(map_region(twin, TMESH_READ), "ours");
	assert_ok(tmesh_region_info(region, &info, err));
	assert_int_equal(info.bytes, 5000);
	assert_int_equal(info.alloc_bytes, 8192);
	assert_string_equal(info.label, "theirs");
	if (unit_on_kernel())
		assert_ok(tmesh_region_set_description(region, "x", err));
	else
		assert_refused(tmesh_region_set_description(region, "x", err), -EOPNOTSUPP,
			       "no room");
	assert_ok(tmesh_holders(*state, info.id, &holders, &count, err));
	assert_int_equal(count, unit_on_kernel() ? 1 : 2);
	free(holders);
	if (unit_on_kernel())
		assert_refused(tmesh_region_revoke(region, err), -EOPNOTSUPP, "memfd");
	tmesh_region_unref(twin);
	tmesh_region_unref(region);
	close(open_fd);
	close(shrinks);
	close(null);
	close(empty);
}

/* A memfd of the largest pages that there are, which need not exist until they are touched. Others
 * find it and see its holders, and its pages are whole. */
static void test_giant_memfd(void **state)
{
	int fd =
		memfd_create("giant", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_1GB);
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_holder_info *holders = NULL;
	struct tmesh_foreign_file file;
	struct tmesh_region *region;
	size_t count = 0;

	/* The module takes none; or the processor has none. */
	if (fd < 0)
		skip();
	if (unit_on_kernel()) {
		close(fd);
		skip();
	}
	assert_int_equal(ftruncate(fd, 1 << 30), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	/* By this others open it without asking whose it is. */
	assert_true(tmesh_foreign_look(fd, "", &file) && tmesh_is_memory(&file));
	assert_ok(tmesh_region_from_memfd(*state, fd, 5000, NULL, &region, err));
	assert_ok(tmesh_region_info(region, &info, err));
	assert_int_equal(info.alloc_bytes, 1 << 30);
	assert_int_equal(info.huge_bytes, 1 << 30);
	assert_ok(tmesh_holders(*state, info.id, &holders, &count, err));
	assert_int_equal(count, 2);
	free(holders);
	tmesh_region_unref(region);
	close(fd);
}

/* The region allows no more than its descriptor and its file; on memfd they are one. */
static void test_from_less(void **state)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_NO_PIN};
	int fd = memfd(5000, F_SEAL_SHRINK | F_SEAL_GROW), less;
	struct tmesh_region *region, *pin;
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	less = open(path, O_WRONLY | O_CLOEXEC);
	assert_refused(tmesh_region_from_memfd(*state, less, 0, NULL, &region, err), -EINVAL,
		       "read");
	close(less);
	less = open(path, O_RDONLY | O_CLOEXEC);
	assert_ok(tmesh_region_from_memfd(*state, less, 0, NULL, &region, err));
	assert_int_equal(tmesh_region_rights(region), TMESH_READ);
	tmesh_region_unref(region);
	close(less);
	close(fd);
	fd = memfd(5000, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
	assert_ok(tmesh_region_from_memfd(*state, fd, 0, &opts, &region, err));
	assert_refused(tmesh_region_pin(region, &pin, err), -EPERM, "refuses");
	tmesh_region_unref(region);
	close(fd);
}

/* Handles that have not looked whether another one has sealed the region. */
static void test_sealed_unseen(void **state)
{
	struct tmesh_region *region = new_region(*state, 5000), *author, *manager;
	void *addr = NULL;

	assert_ok(tmesh_region_derive(region, RW, &author, err));
	assert_ok(tmesh_region_derive(region, TMESH_READ | TMESH_MANAGE, &manager, err));
	assert_ok(tmesh_region_seal(manager, err));
	assert_refused(tmesh_region_map(author, RW, &addr, err), -EPERM, "sealed");
	assert_null(addr);
	assert_int_equal(author->maps, 0);
	assert_refused(tmesh_region_write(author, 0, "x", 1, err), -EPERM, "sealed");
	assert_ok(tmesh_region_seal(region, err));
	tmesh_region_unref(manager);
	tmesh_region_unref(author);
	tmesh_region_unref(region);
}

int main(void)
{

	const struct CMUnitTest memfds[] = {
		TEST(test_giant_memfd),
		TEST(test_from_less),
		TEST(test_sealed_unseen),
	};
	int failed = UNIT_RUN("region", unit_ctx_setup, unit_ctx_teardown);

	return failed + cmocka_run_group_tests_name("memfds", memfds, unit_memfd_ctx_setup,
						    unit_ctx_teardown);
}
