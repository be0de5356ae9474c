// SPDX-License-Identifier: MIT
/*
 * A producer chooses where its link and its index lead: to another file than before, than it should
 * be, or than any process may touch.
 */
#include "memfd.h"
#include "strangers.h"

/* This process has locked @fd; another one sees it. */
static bool is_locked(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	pid_t child = fork();
	int status;

	if (child == 0)
		_exit(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK ? 0 : 1);
	return waitpid(child, &status, 0) == child && !status;
}

/* A producer's link leads to a file of this process, as in another PID namespace. The library
 * leaves it alone, for closing it would end the locks on it. */
UNIT(test_link_to_any)
{
	static const char name[] = "00112233445566778899aabbccddeefc";
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	int dir, file, fifo, notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	char token[TMESH_TOKEN_SIZE], path[600], pipe[600];
	struct tmesh_region *region;

	snprintf(token, sizeof(token), "tm1m-%s-%s", name, name);
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	snprintf(path, sizeof(path), "%s/locked", unit_runtime_dir());
	snprintf(pipe, sizeof(pipe), "%s/pipe", unit_runtime_dir());
	file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(mkfifo(pipe, 0600), 0);
	fifo = open(pipe, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(file >= 0 && fifo >= 0 && notify >= 0);
	assert_int_equal(fcntl(file, F_SETLK, &lock), 0);
	assert_true(is_locked(file));
	assert_true(inotify_add_watch(notify, path, IN_OPEN) >= 0);
	assert_true(inotify_add_watch(notify, pipe, IN_OPEN) >= 0);

	assert_int_equal(tmesh_rundir_link(dir, name, file), 0);
	assert_int_equal(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL), -ENOENT);
	assert_true(is_locked(file));
	assert_int_equal(tmesh_rundir_link(dir, name, fifo), 0);
	assert_int_equal(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL), -ENOENT);
	assert_int_equal(opens_of(notify), 0);

	tmesh_rundir_remove(dir, name);
	close(notify);
	close(fifo);
	close(file);
	unlink(pipe);
	unlink(path);
	tmesh_ctx_unref(ctx);
}

/* The index says a descriptor that has become a locked file since. */
UNIT(test_entry_of_any)
{
	static const uint8_t name[16] = {0x12, 0x35};
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS), *holder = context(NULL, 0);
	struct tmesh_token_fields parts = {.backend = TMESH_BACKEND_MEMFD};
	struct tmesh_index_entry entry = {.rights = TMESH_RIGHTS_ALL};
	char token[TMESH_TOKEN_SIZE], path[33];
	FILE *file = tmpfile();
	struct tmesh_index *index;
	struct tmesh_region *region;
	int dir;

	memcpy(parts.name, name, sizeof(name));
	tmesh_token_format(token, &parts);
	tmesh_hex(path, name, sizeof(name));
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	assert_ok(tmesh_index_new(name, 1, 64, false, &index, err));
	assert_ok(tmesh_region_create(holder, 100, NULL, &entry.region, err));
	assert_ok(tmesh_index_add(&index, &entry, err));
	assert_int_equal(tmesh_rundir_link(dir, path, tmesh_index_fd(index)), 0);
	assert_non_null(file);
	assert_int_equal(dup2(fileno(file), entry.region->fd), entry.region->fd);
	assert_int_equal(fcntl(fileno(file), F_SETLK, &lock), 0);
	for (uint32_t rights = TMESH_READ; rights <= TMESH_RIGHTS_ALL; rights += TMESH_WRITE) {
		assert_int_equal(tmesh_region_open(ctx, token, rights, &region, NULL), -ENOENT);
		assert_true(is_locked(fileno(file)));
	}
	fclose(file);
	tmesh_index_free(index);
	tmesh_rundir_remove(dir, path);
	tmesh_region_unref(entry.region);
	tmesh_ctx_unref(holder);
	tmesh_ctx_unref(ctx);
}

/* The index's entry is that file, and no memory of fixed size: the descriptor is closed once
 * (closes.c), by whichever way it came. */
UNIT(test_entry_unsealed)
{
	static const uint8_t name[16] = {0x12, 0x36};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS), *holder = context(NULL, 0);
	struct tmesh_token_fields parts = {.backend = TMESH_BACKEND_MEMFD};
	struct tmesh_index_entry entry = {.rights = TMESH_RIGHTS_ALL};
	char token[TMESH_TOKEN_SIZE], path[33];
	int dir, file = memfd(16384, F_SEAL_SHRINK);
	struct tmesh_index *index;
	struct tmesh_region *region;
	unsigned int before;

	memcpy(parts.name, name, sizeof(name));
	tmesh_token_format(token, &parts);
	tmesh_hex(path, name, sizeof(name));
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	assert_ok(tmesh_index_new(name, 1, 64, false, &index, err));
	assert_ok(tmesh_region_create(holder, 100, NULL, &entry.region, err));
	assert_int_equal(dup2(file, entry.region->fd), entry.region->fd);
	assert_ok(tmesh_index_add(&index, &entry, err));
	assert_int_equal(tmesh_rundir_link(dir, path, tmesh_index_fd(index)), 0);
	assert_int_equal(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL), -ENOENT);
	before = unit_open_fds();
	for (uint32_t rights = TMESH_READ; rights <= TMESH_RIGHTS_ALL; rights += TMESH_WRITE) {
		assert_int_equal(tmesh_region_open(ctx, token, rights, &region, NULL), -ENOENT);
		assert_int_equal(unit_open_fds(), before);
	}
	tmesh_index_free(index);
	tmesh_rundir_remove(dir, path);
	tmesh_region_unref(entry.region);
	close(file);
	tmesh_ctx_unref(holder);
	tmesh_ctx_unref(ctx);
}

/* The index says a file that a process may serve, and says it rightly: it is not opened. */
UNIT(test_entry_is_file)
{
	static const uint8_t name[16] = {0x12, 0x37};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS), *holder = context(NULL, 0);
	struct tmesh_token_fields parts = {.backend = TMESH_BACKEND_MEMFD};
	struct tmesh_index_entry entry = {.rights = TMESH_RIGHTS_ALL};
	int dir, file, notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	char token[TMESH_TOKEN_SIZE], path[33], there[600];
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct tmesh_index *index;
	struct tmesh_region *region;

	memcpy(parts.name, name, sizeof(name));
	tmesh_token_format(token, &parts);
	tmesh_hex(path, name, sizeof(name));
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	assert_ok(tmesh_index_new(name, 1, 64, false, &index, err));
	assert_ok(tmesh_region_create(holder, 100, NULL, &entry.region, err));
	snprintf(there, sizeof(there), "%s/file", unit_runtime_dir());
	file = open(there, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(dup2(file, entry.region->fd), entry.region->fd);
	assert_ok(tmesh_index_add(&index, &entry, err));
	assert_int_equal(tmesh_rundir_link(dir, path, tmesh_index_fd(index)), 0);
	assert_int_equal(fcntl(file, F_SETLK, &lock), 0);
	assert_true(inotify_add_watch(notify, there, IN_OPEN) >= 0);
	for (uint32_t rights = TMESH_READ; rights <= TMESH_RIGHTS_ALL; rights += TMESH_WRITE) {
		assert_int_equal(tmesh_region_open(ctx, token, rights, &region, NULL), -ENOENT);
		assert_int_equal(opens_of(notify), 0);
		/* Nor duplicated: to close that would end the lock. */
		assert_true(is_locked(file));
	}
	tmesh_index_free(index);
	tmesh_rundir_remove(dir, path);
	tmesh_region_unref(entry.region);
	close(notify);
	close(file);
	unlink(there);
	tmesh_ctx_unref(holder);
	tmesh_ctx_unref(ctx);
}

int main(void)
{
	mkdir(unit_runtime_dir(), 0700);
	return UNIT_RUN("strange files", NULL, NULL);
}
