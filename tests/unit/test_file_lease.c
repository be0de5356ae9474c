// SPDX-License-Identifier: MIT
/*
 * A process that may read memory takes file leases on it (F_SETLEASE), by which open() of another
 * process waits for up to /proc/sys/fs/lease-break-time: nothing here waits for one.
 */
#include "memfd.h"
#include "unit.h"

#define ROUNDS 50

/* A reader that tries for a lease all the time, and says which it got. */
struct reader {
	pid_t pid;
	int told[2], got[2];
};

static _Noreturn void take_leases(const struct reader *reader)
{
	char token[TMESH_TOKEN_SIZE], path[32];
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	int fd;

	signal(SIGIO, SIG_IGN);
	if (tmesh_ctx_open(NULL, &ctx, NULL))
		_exit(1);
	while (read(reader->told[0], token, sizeof(token)) == sizeof(token)) {
		if (tmesh_region_open(ctx, token, TMESH_READ, &region, NULL))
			_exit(2);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", tmesh_region_fd(region));
		fd = open(path, O_RDONLY | O_CLOEXEC);
		for (int i = 0; i < 100; i++)
			if (!fcntl(fd, F_SETLEASE, F_RDLCK) || !fcntl(fd, F_SETLEASE, F_WRLCK))
				_exit(3);
		if (write(reader->got[1], "", 1) != 1)
			_exit(4);
		close(fd);
		tmesh_region_unref(region);
	}
	_exit(0);
}

static struct reader reader_start(void)
{
	struct reader reader;

	assert_int_equal(pipe2(reader.told, O_CLOEXEC), 0);
	assert_int_equal(pipe2(reader.got, O_CLOEXEC), 0);
	reader.pid = fork();
	if (!reader.pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(reader.told[1]);
		take_leases(&reader);
	}
	close(reader.told[0]);
	close(reader.got[1]);
	return reader;
}

static void reader_tries(const struct reader *reader, struct tmesh_region *region)
{
	char token[TMESH_TOKEN_SIZE], byte;

	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_int_equal(write(reader->told[1], token, sizeof(token)), sizeof(token));
	/* The end of the reader ends this wait too. */
	assert_int_equal(read(reader->got[0], &byte, 1), 1);
}

static void reader_end(struct reader *reader)
{
	close(reader->told[1]);
	close(reader->got[0]);
	join_child(reader->pid);
}

/* With READ alone no process gets one before the seal, after which none writes. */
UNIT_CTX(test_no_lease)
{
	const struct tmesh_region_opts reuse = {.size = sizeof(reuse), .flags = TMESH_REGION_REUSE};
	struct reader reader = reader_start();
	struct tmesh_region *region;

	for (int i = 0; i < ROUNDS; i++) {
		assert_ok(
			tmesh_region_create(*state, 1 << 16, i % 2 ? &reuse : NULL, &region, err));
		reader_tries(&reader, region);
		assert_ok(tmesh_region_write(region, 0, "a", 1, err));
		reader_tries(&reader, region);
		assert_ok(tmesh_region_set_description(region, "text", err));
		if (!(i % 2))
			assert_ok(tmesh_region_seal(region, err));
		tmesh_region_unref(region);
	}
	reader_end(&reader);
}

/* Where there is one all the same, an error names its process, and the rest goes on. */
UNIT_CTX(test_lease)
{
	struct tmesh_ctx *ctx = *state;
	int memory = memfd_create("leased", MFD_CLOEXEC | MFD_ALLOW_SEALING), ends[2];
	char pid[32], byte;
	int reader;
	pid_t child;

	assert_int_equal(ftruncate(memory, 4096), 0);
	reader = tmesh_foreign_reopen(memory, O_RDONLY);
	assert_true(reader >= 0);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	child = fork();
	if (!child) {
		signal(SIGIO, SIG_IGN);
		if (fcntl(reader, F_SETLEASE, F_RDLCK) || write(ends[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(ends[0], &byte, 1), 1);
	assert_int_equal(tmesh_foreign_reopen(memory, O_RDWR), -1);
	assert_int_equal(errno, EWOULDBLOCK);
	snprintf(pid, sizeof(pid), "process %d has a file lease", (int)child);
	assert_refused(tmesh_reopen(ctx, memory, O_RDWR, err), -EBUSY, pid);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(reader);
	close(memory);
	close(ends[0]);
	close(ends[1]);
}

/* The guard is no holder of its own, and a child does not have it. */
UNIT_CTX(test_guard)
{
	struct tmesh_holder_info *holders;
	struct tmesh_region *region = new_region(*state, 4096);
	char token[TMESH_TOKEN_SIZE];
	size_t count;
	int status;
	pid_t child;

	assert_null(region->memfd.guard);
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_non_null(region->memfd.guard);
	assert_ok(tmesh_holders(*state, tmesh_region_id(region), &holders, &count, err));
	count = unit_own_holders(holders, count);
	assert_int_equal(count, 1);
	assert_int_equal(holders[0].mappings, 0);
	free(holders);
	child = fork();
	if (!child) {
		unsigned char there;

		status = mincore(region->memfd.guard, tmesh_page_bytes(), &there) ? 0 : 1;
		tmesh_region_unref(region);
		_exit(status);
	}
	join_child(child);
	assert_ok(tmesh_region_seal(region, err));
	assert_null(region->memfd.guard);
	tmesh_region_unref(region);
}

UNIT_MAIN("file leases", unit_memfd_setup, NULL)
