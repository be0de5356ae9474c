// SPDX-License-Identifier: MIT
/*
 * Names of slots: taken, found, given up, taken over from the dead; and files in their places that
 * are none. TMESH_TEST_LENGTH=full kills two hundred publishers.
 */
#include <sys/un.h>
#include <tmesh/slot.h>

#include "unit.h"

static struct tmesh_ctx *ctx;
static char dir[256]; /* the runtime directory */

static int make(const char *name, struct tmesh_slot **slot, struct tmesh_error *err)
{
	struct tmesh_slot_opts opts = {.size = sizeof(opts), .name = name};

	return tmesh_slot_create(ctx, &opts, slot, err);
}

static void path_of(const char *file, char path[600])
{
	snprintf(path, 600, "%s/%s", dir, file);
}

static bool there(const char *file)
{
	struct stat st;
	char path[600];

	path_of(file, path);
	return lstat(path, &st) == 0;
}

static unsigned int files(void)
{
	DIR *list = opendir(dir);
	unsigned int count = 0;
	struct dirent *entry;

	while ((entry = readdir(list)))
		count += strncmp(entry->d_name, "slot-", 5) == 0;
	closedir(list);
	return count;
}

static void publish(struct tmesh_slot *slot, uint64_t word)
{
	const int64_t shape[] = {1};
	struct tmesh_bundle_entry entry = {.name = "w"};
	struct tmesh_bundle *bundle;

	assert_ok(tmesh_tensor_put(ctx, TMESH_UINT64, 1, shape, &word, NULL, &entry.tensor, err));
	assert_ok(tmesh_bundle_create(ctx, &entry, 1, NULL, &bundle, err));
	assert_ok(tmesh_slot_publish(slot, bundle, NULL, err));
	tmesh_bundle_unref(bundle);
	tmesh_tensor_unref(entry.tensor);
}

static uint64_t word_of(struct tmesh_slot_reader *reader)
{
	struct tmesh_slot_value *value;
	struct tmesh_tensor *tensor;
	uint64_t *data, word;

	assert_ok(tmesh_slot_read(reader, &value, err));
	assert_ok(tmesh_bundle_tensor(tmesh_slot_value_bundle(value), 0, &tensor, err));
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, (void **)&data, err));
	word = *data;
	tmesh_tensor_unref(tensor);
	return word;
}

static uint64_t word_by_name(const char *name)
{
	struct tmesh_slot_reader *reader;
	uint64_t word;

	assert_ok(tmesh_slot_open_named(ctx, name, &reader, err));
	word = word_of(reader);
	tmesh_slot_close(reader);
	return word;
}

static void refuse_open(const char *name, int code, const char *word)
{
	struct tmesh_slot_reader *reader = NULL;

	assert_refused(tmesh_slot_open_named(ctx, name, &reader, err), code, word);
	assert_null(reader);
}

static void refuse_make(const char *name, int code, const char *word)
{
	struct tmesh_slot *slot = NULL;

	assert_refused(make(name, &slot, err), code, word);
	assert_null(slot);
}

UNIT(test_named)
{
	struct tmesh_slot *slot, *other;
	char path[600];
	struct stat st;

	refuse_open("adapter", -ENOENT, "no slot is published as \"adapter\"");
	assert_ok(make("adapter", &slot, err));
	publish(slot, 7);
	assert_int_equal(word_by_name("adapter"), 7);
	path_of("slot-adapter", path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	/* Also in this process it is taken, and stays as it was. */
	refuse_make("adapter", -EEXIST, "perhaps this one");
	assert_int_equal(word_by_name("adapter"), 7);
	assert_ok(make("other", &other, err));
	publish(other, 8);
	assert_int_equal(word_by_name("other"), 8);
	assert_int_equal(word_by_name("adapter"), 7);
	tmesh_slot_unref(slot);
	refuse_open("adapter", -ENOENT, "adapter");
	assert_false(there("slot-adapter"));
	tmesh_slot_unref(other);
	assert_int_equal(files(), 0);
}

UNIT(test_names)
{
	static const char *const names[] = {
		"a/b",
		"a",
		".",
		"..",
		"a%2Fb",
		"A",
		"-",
		"\xc3\xbc",
		"a b",
		"///////////////////////////////////////////////////////"
		"////////"};
	enum {
		COUNT = sizeof(names) / sizeof(*names)
	};
	struct tmesh_slot *slots[COUNT];
	char longest[65];

	for (uint64_t i = 0; i < COUNT; i++) {
		assert_ok(make(names[i], &slots[i], err));
		publish(slots[i], i);
	}
	assert_int_equal(files(), COUNT);
	assert_true(there("slot-a%2Fb") && there("slot-a%252Fb") && there("slot-..") &&
		    there("slot-%C3%BC"));
	for (uint64_t i = 0; i < COUNT; i++)
		assert_int_equal(word_by_name(names[i]), i);
	for (uint64_t i = 0; i < COUNT; i++)
		tmesh_slot_unref(slots[i]);
	assert_int_equal(files(), 0);
	memset(longest, 'x', 64);
	longest[64] = 0;
	for (int i = 0; i < 4; i++) {
		const char *bad[] = {longest, "a\nb", "\xff", "\x7f"};

		refuse_make(bad[i], -EINVAL, "at most 63 bytes of UTF-8");
		refuse_open(bad[i], -EINVAL, "at most 63 bytes of UTF-8");
	}
	refuse_make("", -EINVAL, "empty");
	refuse_open("", -EINVAL, "empty");
	refuse_open(NULL, -EINVAL, "empty");
	assert_int_equal(files(), 0);
}

/* A process that publishes its number under @name, or says that it cannot, and stays. */
static pid_t start_publisher(const char *name, uint64_t number, int *from)
{
	int ends[2];
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork();
	if (!child) {
		struct tmesh_slot *slot;
		int rc = make(name, &slot, NULL);

		if (!rc)
			publish(slot, number);
		if (write(ends[1], &rc, sizeof(rc)) != sizeof(rc))
			unit_leave(1);
		for (;;)
			pause();
	}
	close(ends[1]);
	*from = ends[0];
	return child;
}

static int answer_of(int from)
{
	int rc = 1;

	assert_int_equal(read(from, &rc, sizeof(rc)), sizeof(rc));
	close(from);
	return rc;
}

static void end(pid_t child)
{
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

/* Two processes want a dead one's name: one gets it, and is found by it. */
UNIT(test_taken_over)
{
	const char *length = getenv("TMESH_TEST_LENGTH");
	int rounds = length && !strcmp(length, "full") ? 200 : 20, from[2];
	pid_t child[2], owner = start_publisher("line", 1000, &from[0]);

	assert_int_equal(answer_of(from[0]), 0);
	for (uint64_t i = 0; i < (uint64_t)rounds; i++) {
		struct tmesh_slot_reader *reader;
		int rc[2], won;

		assert_ok(tmesh_slot_open_named(ctx, "line", &reader, err));
		word_of(reader);
		refuse_make("line", -EEXIST, "take another name");
		end(owner);
		refuse_open("line", -ENOENT, "line");
		assert_true(there("slot-line"));
		for (uint64_t n = 0; n < 2; n++)
			child[n] = start_publisher("line", 2 * i + n, &from[n]);
		for (int n = 0; n < 2; n++)
			rc[n] = answer_of(from[n]);
		won = rc[0] != 0;
		assert_int_equal(rc[won], 0);
		assert_int_equal(rc[!won], -EEXIST);
		assert_int_equal(word_by_name("line"), 2 * i + (uint64_t)won);
		/* A reader of the dead one's slot gets an error, and reads no other's. */
		assert_int_equal(tmesh_slot_changed(reader), -EPIPE);
		tmesh_slot_close(reader);
		owner = child[won];
		end(child[!won]);
	}
	end(owner);
	refuse_open("line", -ENOENT, "line");
}

/* A process that takes a name removes the leftovers of the dead, and nothing else. */
UNIT(test_swept)
{
	struct tmesh_slot *mine, *other;
	pid_t child[2];
	int from[2];

	assert_ok(make("mine", &mine, err));
	publish(mine, 3);
	child[0] = start_publisher("dead", 1, &from[0]);
	child[1] = start_publisher("alive", 2, &from[1]);
	for (int n = 0; n < 2; n++)
		assert_int_equal(answer_of(from[n]), 0);
	end(child[0]);
	assert_true(there("slot-dead"));
	assert_ok(make("other", &other, err));
	assert_false(there("slot-dead"));
	assert_int_equal(files(), 3);
	assert_int_equal(word_by_name("alive"), 2);
	assert_int_equal(word_by_name("mine"), 3);
	end(child[1]);
	tmesh_slot_unref(other);
	tmesh_slot_unref(mine);
	assert_ok(make("other", &other, err));
	tmesh_slot_unref(other);
	assert_int_equal(files(), 0);
}

/* However many have names: what the dead have left goes in the end. */
UNIT(test_swept_among_many)
{
	enum {
		ALIVE = 300,
		DEAD = 50
	};
	struct flock owner = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
	int fds[ALIVE];
	char path[600], file[32];

	/* Some before and some behind, in whatever order the directory has them. */
	for (int n = 0; n < ALIVE + DEAD; n++) {
		int fd, alive = n - DEAD / 2;

		snprintf(file, sizeof(file), "slot-many-%d", n);
		path_of(file, path);
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		assert_true(fd >= 0);
		if (alive < 0 || alive >= ALIVE) {
			close(fd);
			continue;
		}
		assert_int_equal(fcntl(fd, F_OFD_SETLK, &owner), 0);
		fds[alive] = fd;
	}
	for (int round = 0; files() > ALIVE; round++) {
		struct tmesh_slot *slot;

		assert_true(round < 1000);
		assert_ok(make("other", &slot, err));
		tmesh_slot_unref(slot);
	}
	for (int n = 0; n < ALIVE + DEAD; n++) {
		int alive = n - DEAD / 2;

		snprintf(file, sizeof(file), "slot-many-%d", n);
		assert_int_equal(there(file), alive >= 0 && alive < ALIVE);
		if (alive < 0 || alive >= ALIVE)
			continue;
		path_of(file, path);
		assert_int_equal(unlink(path), 0);
		close(fds[alive]);
	}
}

static bool is_gone; /* the runtime directory, between two calls of the library's */

int openat(int at, const char *path, int flags, ...)
{
	if (is_gone && flags & O_CREAT && !strncmp(path, "slot-", 5)) {
		errno = ENOENT;
		return -1;
	}
	return (int)syscall(SYS_openat, at, path, flags, 0600);
}

UNIT(test_no_directory)
{
	struct tmesh_slot *slot;

	is_gone = true;
	refuse_make("homeless", -ENOENT, "publish \"homeless\" once more");
	is_gone = false;
	assert_ok(make("homeless", &slot, err));
	tmesh_slot_unref(slot);
}

/* Takes the name and gives it up, again and again. While it has it, it is found by it: so no
 * process has removed its file, or taken a file that was removed. */
static _Noreturn void take_in_turn(const char *name)
{
	for (int taken = 0; taken < 200;) {
		struct tmesh_slot_reader *reader;
		char path[600];
		struct tmesh_slot *slot;
		struct stat st;
		int rc = make(name, &slot, NULL);

		if (rc == -EEXIST) {
			/* Taking another name sweeps. */
			snprintf(path, sizeof(path), "turn of %d", (int)getpid());
			if (make(path, &slot, NULL))
				unit_leave(4);
			tmesh_slot_unref(slot);
			continue;
		}
		if (rc)
			unit_leave(1);
		path_of("slot-turn", path);
		if (stat(path, &st) || tmesh_slot_open_named(ctx, name, &reader, NULL))
			unit_leave(2);
		if (tmesh_slot_changed(reader) < 0)
			unit_leave(3);
		tmesh_slot_close(reader);
		tmesh_slot_unref(slot);
		taken++;
	}
	unit_leave(0);
}

UNIT(test_in_turn)
{
	pid_t child[3];

	for (int i = 0; i < 3; i++) {
		child[i] = fork();
		if (!child[i])
			take_in_turn("turn");
	}
	for (int i = 0; i < 3; i++) {
		join_child(child[i]);
	}
	assert_int_equal(files(), 0);
}

static void write_file(const char *path, const void *data, size_t bytes, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, mode);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
	close(fd);
}

static int make_socket(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	assert_true(strlen(path) < sizeof(address.sun_path));
	memcpy(address.sun_path, path, strlen(path));
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

/* A file in a name's place that is no name is refused, and left as it is. */
UNIT(test_hostile)
{
	static const char nothing[200];
	char path[600], target[600];
	struct stat before, after;
	int fd;

	path_of("slot-bad", path);
	path_of("target", target);
	for (int kind = 0; kind < 7; kind++) {
		fd = -1;
		switch (kind) {
		case 0: /* one that would be good, elsewhere */
			write_file(target, nothing, 80, 0600);
			assert_int_equal(symlink(target, path), 0);
			break;
		case 1:
			assert_int_equal(mkdir(path, 0700), 0);
			break;
		case 2:
			assert_int_equal(mkfifo(path, 0600), 0);
			break;
		case 3:
			fd = make_socket(path);
			break;
		case 4:
			write_file(path, nothing, sizeof(nothing), 0600);
			break;
		case 5: /* which others may read */
			write_file(path, nothing, 80, 0644);
			assert_int_equal(chmod(path, 0644), 0);
			break;
		case 6: /* which is another user's */
			write_file(path, nothing, 80, 0600);
			if (chown(path, 65534, 65534)) {
				assert_int_equal(unlink(path), 0);
				continue;
			}
			break;
		}
		assert_int_equal(lstat(path, &before), 0);
		refuse_make("bad", -EACCES, "slot-bad in the runtime directory");
		refuse_open("bad", -EACCES, "remove it");
		assert_int_equal(lstat(path, &after), 0);
		assert_int_equal(before.st_ino, after.st_ino);
		assert_int_equal(before.st_size, after.st_size);
		assert_int_equal(before.st_mode, after.st_mode);
		assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
		if (fd >= 0)
			close(fd);
		assert_int_equal(remove(path), 0);
	}
	assert_int_equal(unlink(target), 0);
}

/* A record written in part, or by no process, is no name, and is taken over. */
UNIT(test_half_a_record)
{
	struct tmesh_slot *slot;
	char path[600], record[80];
	int fd;

	path_of("slot-half", path);
	assert_ok(make("half", &slot, err));
	publish(slot, 1);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_int_equal(pread(fd, record, sizeof(record), 0), sizeof(record));
	for (size_t at = 0; at < sizeof(record); at++) {
		record[at] ^= 1;
		assert_int_equal(pwrite(fd, record, sizeof(record), 0), sizeof(record));
		refuse_open("half", -ENOENT, "half");
		record[at] ^= 1;
	}
	assert_int_equal(pwrite(fd, record, sizeof(record), 0), sizeof(record));
	assert_int_equal(word_by_name("half"), 1);
	assert_int_equal(ftruncate(fd, 40), 0);
	refuse_open("half", -ENOENT, "half");
	tmesh_slot_unref(slot);
	close(fd);
	for (size_t bytes = 0; bytes <= sizeof(record); bytes += 40) {
		write_file(path, record, bytes, 0600);
		refuse_open("half", -ENOENT, "half");
		assert_ok(make("half", &slot, err));
		publish(slot, bytes);
		assert_int_equal(word_by_name("half"), bytes);
		tmesh_slot_unref(slot);
		assert_false(there("slot-half"));
	}
}

/* The file was removed, and another process has taken the name: it stays that one's. */
UNIT(test_removed)
{
	struct tmesh_slot *first, *second;
	char path[600];

	path_of("slot-lost", path);
	assert_ok(make("lost", &first, err));
	publish(first, 1);
	assert_int_equal(unlink(path), 0);
	refuse_open("lost", -ENOENT, "lost");
	assert_ok(make("lost", &second, err));
	publish(second, 2);
	tmesh_slot_unref(first);
	assert_int_equal(word_by_name("lost"), 2);
	refuse_make("lost", -EEXIST, "take another name");
	tmesh_slot_unref(second);
	assert_int_equal(files(), 0);
}

/* One that is stopped while it takes a name is not waited for without an end. */
UNIT(test_stopped)
{
	struct flock hand = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1};
	struct tmesh_slot *slot;
	char path[600];
	int fd;

	path_of("slot-slow", path);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &hand), 0);
	refuse_make("slow", -ETIMEDOUT, "does not come to an end");
	/* It is not swept either. */
	assert_ok(make("other", &slot, err));
	tmesh_slot_unref(slot);
	assert_true(there("slot-slow"));
	close(fd);
	assert_ok(make("slow", &slot, err));
	tmesh_slot_unref(slot);
	assert_false(there("slot-slow"));
}

/* A child has not its parent's names, and does not keep them from others. */
UNIT(test_forked)
{
	struct tmesh_slot *slot;
	int ends[2], tried[2];
	pid_t child;
	char byte;

	assert_ok(make("parent", &slot, err));
	publish(slot, 1);
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(pipe(tried), 0);
	child = fork();
	if (!child) {
		struct tmesh_slot *own;

		tmesh_slot_unref(slot);
		if (!there("slot-parent") || make("parent", &own, NULL) != -EEXIST)
			unit_leave(1);
		close(ends[1]);
		if (write(tried[1], "", 1) != 1)
			unit_leave(4);
		if (read(ends[0], &byte, 1)) /* until the parent has given it up */
			unit_leave(2);
		if (make("parent", &own, NULL))
			unit_leave(3);
		tmesh_slot_unref(own);
		unit_leave(0);
	}
	close(ends[0]);
	close(tried[1]);
	assert_int_equal(read(tried[0], &byte, 1), 1);
	close(tried[0]);
	assert_int_equal(word_by_name("parent"), 1);
	tmesh_slot_unref(slot);
	assert_ok(make("parent", &slot, err));
	tmesh_slot_unref(slot);
	close(ends[1]);
	join_child(child);
	assert_int_equal(files(), 0);
}

int main(void)
{
	int failed, fd;

	snprintf(dir, sizeof(dir), "%s", unit_runtime_dir());
	if (tmesh_ctx_open(NULL, &ctx, NULL) || tmesh_ctx_runtime_dir(ctx, &fd, NULL))
		return 1;
	close(fd);
	failed = UNIT_RUN("slot names", NULL, NULL);
	tmesh_ctx_unref(ctx);
	return failed;
}
