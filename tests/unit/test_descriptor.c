// SPDX-License-Identifier: MIT
/* The one descriptor of a memfd region: read-only from its first token for reading on.
 * Handles that may write still can. */
#include <sys/random.h>

#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)
#define BYTES 5000

static bool can_write(int fd)
{
	return (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

static struct tmesh_region *create(struct tmesh_ctx *ctx)
{
	struct tmesh_region *region = new_region(ctx, BYTES);

	return region;
}

static void give_token(struct tmesh_region *region, uint32_t rights, char *token)
{
	assert_ok(tmesh_region_token(region, rights, token, err));
}

/* A region with a token for reading, its descriptor read-only. */
static struct tmesh_region *create_lowered(struct tmesh_ctx *ctx, char token[TMESH_TOKEN_SIZE])
{
	struct tmesh_region *region = create(ctx);

	assert_ok(tmesh_region_write(region, 0, "first", 6, err));
	assert_true(can_write(region->fd));
	give_token(region, TMESH_READ, token);
	assert_false(can_write(region->fd));
	return region;
}

static struct tmesh_ctx *context(void)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts)};
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	return ctx;
}

/* Check the bytes that another context, as good as another process, reads by the token. */
static void expect_read(struct tmesh_ctx *ctx, const char *token, const char *text)
{
	struct tmesh_region *reader;
	char back[16];

	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &reader, err));
	assert_false(can_write(reader->fd));
	assert_ok(tmesh_region_read(reader, 0, back, strlen(text) + 1, err));
	assert_string_equal(back, text);
	tmesh_region_unref(reader);
}

UNIT(test_count)
{
	enum {
		REGIONS = 1000,
		SERVER = 8
	};
	static struct tmesh_region *regions[REGIONS];
	static char tokens[REGIONS][TMESH_TOKEN_SIZE];
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct tmesh_ctx *other = context();
	struct rlimit old, limit;
	char more[TMESH_TOKEN_SIZE];
	unsigned int before;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	limit = (struct rlimit){.rlim_cur = old.rlim_max, .rlim_max = old.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	before = unit_open_fds();
	for (int i = 0; i < REGIONS; i++) {
		regions[i] = create(*state);
		give_token(regions[i], TMESH_READ, tokens[i]);
		give_token(regions[i], RW, more);
		give_token(regions[i], TMESH_READ | TMESH_MANAGE, more);
	}
	assert_in_range(unit_open_fds() - before, REGIONS, REGIONS + SERVER);
	for (int i = 0; i < REGIONS; i += 333)
		expect_read(other, tokens[i], "");
	assert_int_equal(tmesh_stats(other, &stats), 0);
	assert_int_equal(stats.opens_without_wake, 4);
	for (int i = 0; i < REGIONS; i++)
		tmesh_region_unref(regions[i]);
	tmesh_ctx_unref(other);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

UNIT(test_write)
{
	struct tmesh_ctx *other = context();
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region = create_lowered(*state, token);
	unsigned int before = unit_open_fds();

	expect_read(other, token, "first");
	assert_ok(tmesh_region_write(region, 0, "second", 7, err));
	assert_true(can_write(region->fd));
	expect_read(other, token, "second");
	/* It stays so: a process that writes once does so again. */
	give_token(region, TMESH_READ | TMESH_MANAGE, token);
	give_token(region, TMESH_READ, token);
	assert_true(can_write(region->fd));
	expect_read(other, token, "second");
	tmesh_ctx_unref(other);
	assert_true(unit_open_fds() <= before + 1); /* and one that the context keeps */
	tmesh_region_unref(region);
}

UNIT(test_map)
{
	struct tmesh_ctx *other = context();
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region = create_lowered(*state, token);
	unsigned int before = unit_open_fds();
	char *addr;

	assert_ok(tmesh_region_map(region, TMESH_READ, (void **)&addr, err));
	assert_string_equal(addr, "first");
	assert_ok(tmesh_region_map(region, RW, (void **)&addr, err));
	strcpy(addr, "mapped");
	assert_false(can_write(region->fd));
	assert_int_equal(unit_open_fds(), before);
	expect_read(other, token, "mapped");
	tmesh_region_unref(region);
	tmesh_ctx_unref(other);
}

UNIT(test_seal)
{
	char token[TMESH_TOKEN_SIZE];
	void *addr;

	for (int mapped = 0; mapped < 2; mapped++) {
		struct tmesh_region *region = create_lowered(*state, token);

		if (mapped)
			assert_ok(tmesh_region_map(region, RW, &addr, err));
		assert_ok(tmesh_region_seal(region, err));
		assert_true(fcntl(region->fd, F_GET_SEALS) & F_SEAL_WRITE);
		assert_false(can_write(region->fd));
		assert_refused(tmesh_region_write(region, 0, "x", 1, err), -EPERM, "sealed");
		assert_refused(tmesh_region_map(region, RW, &addr, err), -EPERM, "sealed");
		assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
		assert_string_equal(addr, "first");
		assert_true(tmesh_region_fd(region) == region->fd);
		tmesh_region_unref(region);
	}
}

/* A seal that fails leaves a mapping that can be written, and a descriptor that opens again. */
UNIT(test_seal_busy)
{
	char token[TMESH_TOKEN_SIZE], *addr;
	struct tmesh_region *region = create_lowered(*state, token), *writer;
	void *other;

	assert_ok(tmesh_region_map(region, RW, (void **)&addr, err));
	assert_ok(tmesh_region_derive(region, RW, &writer, err));
	assert_ok(tmesh_region_map(writer, RW, &other, err));
	assert_refused(tmesh_region_seal(region, err), -EBUSY, "writable mapping");
	strcpy(addr, "still");
	assert_string_equal(other, "still");
	assert_false(can_write(region->fd));
	tmesh_region_unref(writer);
	assert_ok(tmesh_region_seal(region, err));
	tmesh_region_unref(region);
}

UNIT(test_describe)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region = create_lowered(*state, token);

	assert_ok(tmesh_region_set_description(region, "late words", err));
	assert_false(can_write(region->fd));
	assert_ok(tmesh_region_info(region, &info, err));
	assert_string_equal(info.description, "late words");
	tmesh_region_unref(region);
}

/* A program closes a descriptor of the library, and its own file takes that number. Each call says
 * so, and the program's file stays as it is. */
static void check_refusals(struct tmesh_region *region)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	char byte[1] = "x", token[TMESH_TOKEN_SIZE];
	struct tmesh_region *derived;
	void *addr;
	int fd;

	assert_refused(tmesh_region_seal(region, err), -EBADF, "closed its descriptor");
	assert_false(tmesh_region_is_sealed(region));
	assert_refused(tmesh_region_read(region, 0, byte, 1, err), -EBADF, "closed its descriptor");
	assert_refused(tmesh_region_write(region, 0, byte, 1, err), -EBADF,
		       "closed its descriptor");
	assert_refused(tmesh_region_map(region, TMESH_READ, &addr, err), -EBADF,
		       "closed its descriptor");
	assert_refused(tmesh_region_set_description(region, "words", err), -EBADF,
		       "closed its descriptor");
	assert_refused(tmesh_region_info(region, &info, err), -EBADF, "closed its descriptor");
	assert_refused(tmesh_region_derive(region, TMESH_READ, &derived, err), -EBADF,
		       "closed its descriptor");
	assert_refused(tmesh_region_pin(region, &derived, err), -EBADF, "closed its descriptor");
	assert_refused(tmesh_region_export_dmabuf(region, 0, 0, RW, &fd, err), -EBADF,
		       "closed its descriptor");
	assert_refused(tmesh_region_token(region, TMESH_READ, token, err), -EBADF,
		       "closed its descriptor");
}

UNIT(test_closed_by_the_program)
{
	char text[] = "the program's own", back[sizeof(text)], path[] = "/tmp/tmesh-own-XXXXXX";
	struct tmesh_region *region = create(*state);
	char token[TMESH_TOKEN_SIZE];
	int own = mkstemp(path), was;

	/* The first token opens descriptors of the context. */
	give_token(region, TMESH_READ, token);
	tmesh_region_unref(region);
	was = unit_open_fds();
	region = create(*state);
	assert_int_equal(write(own, text, sizeof(text)), sizeof(text));
	close(region->fd);
	check_refusals(region);
	assert_int_equal(dup2(own, region->fd), region->fd);
	check_refusals(region);
	assert_int_equal(pread(own, back, sizeof(back), 0), sizeof(text));
	assert_string_equal(back, text);
	assert_int_equal(lseek(own, 0, SEEK_END), sizeof(text));
	close(region->fd);
	tmesh_region_unref(region);
	assert_int_equal(unit_open_fds(), was);
	close(own);
	unlink(path);
}

static bool no_random;

ssize_t getrandom(void *bytes, size_t count, unsigned int flags)
{
	if (no_random) {
		errno = ENOSYS;
		return -1;
	}
	return syscall(SYS_getrandom, bytes, count, flags);
}

/* A token for writing that cannot be made takes nothing back from holders of one for reading. The
 * pool does not give their memory to the next region. */
UNIT(test_failed_token)
{
	const struct tmesh_region_opts reuse = {.size = sizeof(reuse), .flags = TMESH_REGION_REUSE};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region, *reader, *next;
	struct tmesh_ctx *ctx = context();
	const char *seen;
	void *addr;

	assert_ok(tmesh_region_create(*state, 10 * BYTES, &reuse, &region, err));
	assert_ok(tmesh_region_write(region, 0, "first", 6, err));
	give_token(region, TMESH_READ, token);
	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &reader, err));
	assert_ok(tmesh_region_map(reader, TMESH_READ, &addr, err));
	seen = addr;
	assert_string_equal(seen, "first");
	no_random = true;
	assert_refused(tmesh_region_token(region, RW, token, err), -ENOSYS, "random");
	no_random = false;
	tmesh_region_unref(region);

	assert_ok(tmesh_region_create(*state, 10 * BYTES, &reuse, &next, err));
	assert_ok(tmesh_region_write(next, 0, "second", 7, err));
	assert_string_equal(seen, "first");
	tmesh_region_unref(next);
	tmesh_region_unref(reader);
	tmesh_ctx_unref(ctx);
}

static void write_by(struct tmesh_ctx *ctx, const char *token, const char *text)
{
	struct tmesh_region *writer;
	void *addr;

	assert_ok(tmesh_region_open(ctx, token, RW, &writer, err));
	assert_true(can_write(writer->fd));
	assert_ok(tmesh_region_map(writer, RW, &addr, err));
	strcpy(addr, text);
	tmesh_region_unref(writer);
}

/* A holder that may write duplicates a descriptor that can, and opens one that was lowered since.
 */
UNIT(test_writable_token_first)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct tmesh_ctx *other = context();
	struct tmesh_region *region = create(*state);
	char token[TMESH_TOKEN_SIZE], reading[TMESH_TOKEN_SIZE];

	give_token(region, RW, token);
	write_by(other, token, "first");
	expect_read(other, token, "first");
	assert_true(can_write(region->fd));
	give_token(region, TMESH_READ, reading);
	assert_false(can_write(region->fd));
	write_by(other, token, "second");
	expect_read(other, reading, "second");
	assert_int_equal(tmesh_stats(other, &stats), 0);
	assert_int_equal(stats.opens_without_wake, 4);
	tmesh_region_unref(region);
	tmesh_ctx_unref(other);
}

/* Rights that are given away after the first token for reading are whole. */
UNIT(test_give_rights)
{
	struct tmesh_ctx *other = context();
	char token[TMESH_TOKEN_SIZE], all[TMESH_TOKEN_SIZE];
	struct tmesh_region *region = create_lowered(*state, token), *handles[5];
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	give_token(region, TMESH_RIGHTS_ALL, all);
	assert_false(can_write(region->fd));
	assert_ok(tmesh_region_open(other, all, RW, &handles[0], err));
	assert_ok(tmesh_region_open(*state, all, RW, &handles[1], err));
	assert_ok(tmesh_region_derive(region, RW, &handles[2], err));
	assert_ok(tmesh_region_send(region, pair[0], RW, err));
	assert_ok(tmesh_region_recv(other, pair[1], &handles[3], err));
	/* Even one who may not write does so to seal. */
	assert_ok(tmesh_region_derive(region, TMESH_READ | TMESH_MANAGE, &handles[4], err));
	for (int i = 0; i < 4; i++) {
		char text[] = "by handle 0", *addr;

		text[10] = (char)('0' + i);
		assert_ok(tmesh_region_write(handles[i], 0, text, sizeof(text), err));
		assert_ok(tmesh_region_map(region, TMESH_READ, (void **)&addr, err));
		assert_string_equal(addr, text);
	}
	give_token(handles[4], TMESH_READ, token);
	assert_false(can_write(handles[4]->fd));
	assert_ok(tmesh_region_set_description(handles[4], "before the seal", err));
	assert_ok(tmesh_region_seal(handles[4], err));
	for (int i = 0; i < 5; i++)
		tmesh_region_unref(handles[i]);
	close(pair[0]);
	close(pair[1]);
	tmesh_region_unref(region);
	tmesh_ctx_unref(other);
}

/* A region given for reading cannot be written, whatever the giver's descriptor can. */
UNIT(test_give_reading)
{
	struct tmesh_ctx *other = context();
	char token[TMESH_TOKEN_SIZE], text[TMESH_TOKEN_SIZE];
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	for (int told = 0; told < 2; told++) {
		struct tmesh_region *region = create(*state), *handles[4];

		assert_ok(tmesh_region_write(region, 0, "first", 6, err));
		if (told)
			assert_true(can_write(tmesh_region_fd(region)));
		give_token(region, TMESH_READ, token);
		give_token(region, TMESH_RIGHTS_ALL, text);
		assert_int_equal(can_write(region->fd), told);
		assert_ok(tmesh_region_send(region, pair[0], TMESH_READ, err));
		assert_ok(tmesh_region_recv(other, pair[1], &handles[0], err));
		assert_ok(tmesh_region_derive(region, TMESH_READ, &handles[1], err));
		assert_ok(tmesh_region_open(*state, token, TMESH_READ, &handles[2], err));
		assert_ok(tmesh_region_open(other, text, TMESH_READ, &handles[3], err));
		expect_read(other, token, "first");
		/* Asked for the number, the writer gets one that can write; the readers' cannot. */
		assert_true(can_write(tmesh_region_fd(region)));
		assert_int_equal(pwrite(tmesh_region_fd(region), "asked", 6, 0), 6);
		expect_read(other, token, "asked");
		for (int i = 0; i < 4; i++) {
			assert_false(can_write(tmesh_region_fd(handles[i])));
			tmesh_region_unref(handles[i]);
		}
		tmesh_region_unref(region);
	}
	close(pair[0]);
	close(pair[1]);
	tmesh_ctx_unref(other);
}

/* A memfd made elsewhere: the caller's descriptor is left alone, and one that this user could
 * not open again keeps its way to write. */
UNIT(test_foreign)
{
	struct tmesh_ctx *other = context();
	char token[TMESH_TOKEN_SIZE];

	for (int ours = geteuid() != 0; ours < 2; ours++) {
		struct tmesh_region *region;
		int fd = memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING);

		assert_int_equal(ftruncate(fd, 4096), 0);
		assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
		if (!ours)
			assert_int_equal(fchown(fd, 65534, 65534), 0);
		assert_ok(tmesh_region_from_memfd(*state, fd, 0, NULL, &region, err));
		give_token(region, TMESH_READ, token);
		assert_true(can_write(fd));
		assert_int_equal(can_write(region->fd), !ours);
		assert_int_equal(pwrite(fd, "by caller", 10, 0), 10);
		expect_read(other, token, "by caller");
		assert_ok(tmesh_region_write(region, 0, "by region", 10, err));
		expect_read(other, token, "by region");
		tmesh_region_unref(region);
		assert_true(can_write(fd));
		close(fd);
	}
	tmesh_ctx_unref(other);
}

static uint32_t shown_rights(struct tmesh_ctx *ctx, const struct tmesh_region *region)
{
	struct tmesh_holder_info *holders;
	uint32_t rights;
	size_t count;

	assert_ok(tmesh_holders(ctx, tmesh_region_id(region), &holders, &count, err));
	assert_int_equal(unit_own_holders(holders, count), 1);
	rights = holders[0].rights;
	free(holders);
	return rights;
}

/* A holder that may write is listed as such, by whichever descriptor. */
UNIT(test_holders)
{
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region = create_lowered(*state, token);

	assert_int_equal(shown_rights(*state, region), RW);
	assert_ok(tmesh_region_seal(region, err));
	assert_int_equal(shown_rights(*state, region), TMESH_READ);
	tmesh_region_unref(region);
}

/* Opening anew takes a free number for a moment. Without one there is an error, nothing is
 * written, and it works later. */
UNIT(test_no_number_left)
{
	char token[TMESH_TOKEN_SIZE], back[6];
	struct tmesh_region *region = create_lowered(*state, token);
	struct rlimit old, none = {0};
	void *addr;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	none.rlim_max = old.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_refused(tmesh_region_write(region, 0, "x", 1, err), -EMFILE, "reopening");
	assert_refused(tmesh_region_map(region, RW, &addr, err), -EMFILE, "reopening");
	assert_refused(tmesh_region_seal(region, err), -EMFILE, "reopening");
	assert_refused(tmesh_region_set_description(region, "x", err), -EMFILE,
		       "describing the region");
	assert_int_equal(tmesh_region_fd(region), -EMFILE);
	assert_ok(tmesh_region_read(region, 0, back, 6, err));
	assert_string_equal(back, "first");
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	assert_ok(tmesh_region_write(region, 0, "later", 6, err));
	assert_ok(tmesh_region_seal(region, err));
	tmesh_region_unref(region);
}

/* Readers come while the writer's descriptor goes to and fro. */
static void *write_on(void *data)
{
	struct tmesh_region **regions = data;

	for (int i = 0; regions[i]; i++)
		if (tmesh_region_write(regions[i], 0, "second", 7, NULL))
			return regions[i];
	return NULL;
}

static void *give_on(void *data)
{
	struct tmesh_region **regions = data, *writer;
	char token[TMESH_TOKEN_SIZE];

	for (int i = 0; regions[i]; i++) {
		if (tmesh_region_token(regions[i], TMESH_READ, token, NULL) ||
		    tmesh_region_derive(regions[i], RW, &writer, NULL))
			return regions[i];
		if (!can_write(writer->fd))
			return writer;
		tmesh_region_unref(writer);
	}
	return NULL;
}

UNIT(test_at_once)
{
	enum {
		REGIONS = 200
	};
	struct tmesh_region *regions[REGIONS + 1] = {NULL}, *reader;
	char tokens[REGIONS][TMESH_TOKEN_SIZE];
	struct tmesh_ctx *other = context();
	pthread_t writer, giver;
	void *failed;

	for (int i = 0; i < REGIONS; i++) {
		regions[i] = create(*state);
		if (i % 2)
			give_token(regions[i], TMESH_READ, tokens[i]);
	}
	assert_int_equal(pthread_create(&writer, NULL, write_on, regions), 0);
	assert_int_equal(pthread_create(&giver, NULL, give_on, regions), 0);
	for (int i = 1; i < REGIONS; i += 2) {
		assert_ok(tmesh_region_open(other, tokens[i], TMESH_READ, &reader, err));
		assert_false(can_write(reader->fd));
		tmesh_region_unref(reader);
	}
	pthread_join(writer, &failed);
	assert_null(failed);
	pthread_join(giver, &failed);
	assert_null(failed);
	for (int i = 0; i < REGIONS; i++) {
		give_token(regions[i], TMESH_READ, tokens[i]);
		expect_read(other, tokens[i], "second");
		tmesh_region_unref(regions[i]);
	}
	tmesh_ctx_unref(other);
}

int main(void)
{
	unit_memfd_setup(NULL);
	return UNIT_RUN("descriptor", unit_ctx_setup, unit_ctx_teardown);
}
