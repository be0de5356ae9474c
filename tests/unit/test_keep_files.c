// SPDX-License-Identifier: MIT
/* Kept files on memfd: tables of paths, folders, and what is refused with nothing kept. */
#include <sys/un.h>

#include "kept_files.h"
#include "paths.h"

UNIT_ADD(test_names, files_setup, files_teardown)
{
	char longest[TMESH_KEPT_PATH_LEN + 2], component[TMESH_KEPT_COMPONENT_LEN + 2];

	memset(longest, 'a', sizeof(longest));
	for (size_t i = 200; i < sizeof(longest); i += 200)
		longest[i] = '/';
	longest[TMESH_KEPT_PATH_LEN + 1] = '\0';
	assert_non_null(tmesh_paths_refused(longest));
	longest[TMESH_KEPT_PATH_LEN] = '\0';
	assert_null(tmesh_paths_refused(longest));
	memset(component, 'b', sizeof(component));
	component[TMESH_KEPT_COMPONENT_LEN + 1] = '\0';
	assert_non_null(tmesh_paths_refused(component));
	component[TMESH_KEPT_COMPONENT_LEN] = '\0';
	assert_null(tmesh_paths_refused(component));
	for (const char *const *bad = (const char *const[]){"", "/", "/a", "a/", "a//b", ".", "..",
							    "./a", "a/.", "a/../b", "..", NULL};
	     *bad; bad++)
		assert_non_null(tmesh_paths_refused(*bad));
	for (const char *const *good = (const char *const[]){"a", "...", ".a", "a/..b/c", "a\nb",
							     "\x01\xff\xfe", " ", "a\\b", NULL};
	     *good; good++)
		assert_null(tmesh_paths_refused(*good));
}

/* Byte by byte with slashes first, so a folder's files follow each other. */
UNIT_ADD(test_order, files_setup, files_teardown)
{
	static const char *const sorted[] = {"a",     "a\x01z", "a!",	      "a-b/c",	   "a.b",
					     "b",     "b.d",	"be\xcc\x81", "b\xc3\xa9", "c/a/x",
					     "c/a/y", "c/a.b",	"c/b",	      "c-d"};
	struct tmesh_kept_file files[14];
	const uint64_t bytes[1] = {64};
	struct tmesh_paths *paths;
	size_t length;

	for (uint32_t i = 0; i < 14; i++)
		files[(i * 5) % 14] = (struct tmesh_kept_file){.path = sorted[i], .bytes = i};
	assert_ok(tmesh_paths_build(files, 14, bytes, 1, &paths, &length, err));
	assert_true(tmesh_paths_are_good(paths, length, 1));
	for (uint32_t i = 0; i < 14; i++) {
		assert_string_equal(tmesh_paths_name(paths, i), sorted[i]);
		assert_int_equal(tmesh_paths_find(paths, sorted[i]), i);
		assert_int_equal(paths->entries[i].bytes, i);
	}
	assert_int_equal(tmesh_paths_find(paths, "c"), UINT32_MAX);
	assert_int_equal(tmesh_paths_bound(paths, "c/"), 9);
	assert_int_equal(tmesh_paths_bound(paths, "~"), 14);
	free(paths);
}

/* A table that another process gave: each byte of it is changed, and nothing is read outside. */
UNIT_ADD(test_hostile_table, files_setup, files_teardown)
{
	static const struct tmesh_kept_file files[] = {
		{"a/b", 0, 10, 1, 0}, {"a/c", 10, 10, 1, 0}, {"d", 0, 64, 1, 1}};
	const uint64_t bytes[2] = {64, 64};
	struct tmesh_paths *paths, *copy;
	unsigned int good = 0;
	size_t length;

	assert_ok(tmesh_paths_build(files, 3, bytes, 2, &paths, &length, err));
	copy = malloc(length);
	for (size_t i = 0; i < length; i++) {
		for (unsigned int bit = 0; bit < 8; bit++) {
			memcpy(copy, paths, length);
			((uint8_t *)copy)[i] ^= (uint8_t)(1u << bit);
			good += tmesh_paths_are_good(copy, length, 2);
		}
	}
	/* Times, offsets and letters may be others. */
	assert_in_range(good, 1, length * 8 - 300);
	for (size_t i = 0; i < length; i++) {
		struct tmesh_paths *cut = malloc(i + 1);

		memcpy(cut, paths, i);
		assert_false(tmesh_paths_are_good(cut, i, 2));
		free(cut);
	}
	assert_false(tmesh_paths_are_good(paths, length, 1));
	memcpy(copy, paths, length);
	copy->entries[0].path = copy->entries[1].path;
	assert_false(tmesh_paths_are_good(copy, length, 2));
	free(copy);
	free(paths);
}

UNIT_ADD(test_refused, files_setup, files_teardown)
{
	struct tmesh_kept_file files[2] = {{"a", 0, 4, 0, 0}, {"b", 4, 4, 0, 0}};
	struct tmesh_keep_opts opts = {
		.size = sizeof(opts), .files = files, .file_count = 2, .mode = 0644};
	struct tmesh_region *region = unseen(*state, 4096, 1);
	struct tmesh_kept_file *list;
	struct tmesh_ctx *mounted;
	size_t count;

	files[1].path = "a";
	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -EEXIST, "\"a\"");
	files[1].path = "a/b";
	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -EEXIST, "folder");
	files[1].path = "../b";
	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -EINVAL, "..");
	files[1].path = NULL;
	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -EINVAL, "missing");
	files[1].path = "b";
	files[1].region = 1;
	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -EINVAL, "region 1 of 1");
	files[1].region = 0;
	files[1].bytes = 4096;
	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -EINVAL, "4100");
	files[1].bytes = UINT64_MAX;
	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -EINVAL, "ends");
	files[1].bytes = 0;
	assert_refused(tmesh_keep(*state, "a/b", &region, 1, &opts, err), -EINVAL, "slash");
	assert_refused(tmesh_keep(*state, ".a", &region, 1, &opts, err), -EINVAL, "dot");
	opts.mode = 0666;
	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -EINVAL, "0644");
	opts.mode = 0640;
	opts.file_count = TMESH_KEPT_MAX_FILES + 1;
	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -E2BIG, "65536");
	opts.file_count = 2;
	assert_false(is_kept(*state, "n"));
	assert_ok(tmesh_keep(*state, "n", &region, 1, &opts, err));
	assert_ok(tmesh_kept_files(*state, "n", TMESH_KEPT_OWN, &list, &count, err));
	assert_int_equal(count, 2);
	assert_string_equal(list[1].path, "b");
	free(list);
	assert_refused(tmesh_kept_open_file(*state, "n", TMESH_KEPT_OWN, "c", &region, NULL, err),
		       -ENOENT, "\"c\"");
	assert_refused(tmesh_kept_files(*state, "m", TMESH_KEPT_OWN, &list, &count, err), -ENOENT,
		       "nothing is kept");
	tmesh_region_unref(region);
	keep_unseen(*state, "plain", 4096, 1);
	assert_refused(tmesh_kept_files(*state, "plain", TMESH_KEPT_OWN, &list, &count, err),
		       -ENOENT, "without files");
	setenv("TMESH_MOUNT", folder, 1);
	assert_ok(tmesh_ctx_open(NULL, &mounted, err));
	unsetenv("TMESH_MOUNT");
	assert_refused(tmesh_kept_path(mounted, "n", NULL, (char **)&list, err), -ENOENT, folder);
	tmesh_ctx_unref(mounted);
}

/* Small files share a region, each name stays, and the keeper gives each file its bytes. */
UNIT_ADD(test_folder, files_setup, files_teardown)
{
	struct tmesh_kept_file *files;
	struct tmesh_region **regions;
	size_t count;

	assert_int_equal(mkdir(in_folder("sub"), 0700), 0);
	assert_int_equal(mkdir(in_folder("sub/empty"), 0700), 0);
	write_file("weights", 5000001, 1);
	write_file("sub/shard", 65536, 2);
	write_file("sub/a\nb", 65535, 3);
	write_file("config.json", 3, 4);
	write_file("nothing", 0, 0);
	write_file("e\xcc\x81", 7, 5);
	write_file("\xc3\xa9", 7, 6);
	write_file("\xff\xfe", 7, 7);
	assert_int_equal(symlink("../weights", in_folder("sub/link")), 0);
	assert_ok(tmesh_keep_folder(*state, "m", folder, NULL, err));
	assert_ok(tmesh_kept_files(*state, "m", TMESH_KEPT_OWN, &files, &count, err));
	assert_int_equal(count, 9);
	free(files);
	check_file(*state, "m", "weights", 5000001, 1);
	check_file(*state, "m", "sub/link", 5000001, 1);
	check_file(*state, "m", "sub/shard", 65536, 2);
	check_file(*state, "m", "sub/a\nb", 65535, 3);
	check_file(*state, "m", "config.json", 3, 4);
	check_file(*state, "m", "nothing", 0, 0);
	check_file(*state, "m", "e\xcc\x81", 7, 5);
	check_file(*state, "m", "\xc3\xa9", 7, 6);
	check_file(*state, "m", "\xff\xfe", 7, 7);
	assert_ok(tmesh_kept_open(*state, "m", TMESH_KEPT_OWN, TMESH_READ, &regions, &count, err));
	assert_int_equal(count, 4);
	while (count)
		tmesh_region_unref(regions[--count]);
	free(regions);
	assert_refused(tmesh_keep_folder(*state, "m", folder, NULL, err), -EEXIST, "replace");
	assert_refused(tmesh_keep_folder(*state, "none", "", NULL, err), -EINVAL,
		       "its path is empty");
	assert_ok(tmesh_keep_folder(*state, "one", in_folder("weights"), NULL, err));
	check_file(*state, "one", "weights", 5000001, 1);
}

UNIT_ADD(test_hub, files_setup, files_teardown)
{
	assert_int_equal(mkdir(in_folder("blobs"), 0700), 0);
	assert_int_equal(mkdir(in_folder("refs"), 0700), 0);
	assert_int_equal(mkdir(in_folder("snapshots"), 0700), 0);
	assert_int_equal(mkdir(in_folder("snapshots/0123abcd"), 0700), 0);
	write_file("blobs/aa", 100000, 1);
	write_file("blobs/bb", 10, 2);
	write_file("refs/main", 0, 0);
	assert_int_equal(symlink("../../blobs/aa", in_folder("snapshots/0123abcd/model.gguf")), 0);
	assert_int_equal(symlink("../../blobs/bb", in_folder("snapshots/0123abcd/config.json")), 0);
	FILE *main_ref = fopen(in_folder("refs/main"), "w");

	fputs("0123abcd\n", main_ref);
	fclose(main_ref);
	assert_ok(tmesh_keep_folder(*state, "hub", folder, NULL, err));
	check_file(*state, "hub", "model.gguf", 100000, 1);
	check_file(*state, "hub", "config.json", 10, 2);
}

/* As much stack as a thread of the BEAM has. */
#define SMALL_STACK (320u << 10)
#define LEVELS 500

struct keeping {
	struct tmesh_ctx *ctx;
	struct tmesh_error err;
	int rc;
};

static void *keep_it(void *data)
{
	struct keeping *keeping = data;

	keeping->rc = tmesh_keep_folder(keeping->ctx, "deep", folder, NULL, &keeping->err);
	return NULL;
}

/* A thread with a small stack keeps a deep folder, with few descriptors. */
UNIT_ADD(test_deep, files_setup, files_teardown)
{
	struct keeping keeping = {.ctx = *state};
	struct rlimit before, few;
	char path[2 * LEVELS + 2];
	pthread_attr_t attr;
	pthread_t thread;

	for (size_t i = 0; i < LEVELS; i++) {
		memcpy(path + 2 * i, "a", 2);
		assert_int_equal(mkdir(in_folder(path), 0700), 0);
		path[2 * i + 1] = '/';
	}
	strcpy(path + sizeof(path) - 2, "f");
	write_file(path, 10, 1);
	getrlimit(RLIMIT_NOFILE, &before);
	few = (struct rlimit){64, before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	assert_int_equal(pthread_attr_init(&attr), 0);
	assert_int_equal(pthread_attr_setstacksize(&attr, SMALL_STACK), 0);
	assert_int_equal(pthread_create(&thread, &attr, keep_it, &keeping), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	pthread_attr_destroy(&attr);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	if (keeping.rc)
		fail_msg("%d %s", keeping.rc, keeping.err.message);
	check_file(*state, "deep", path, 10, 1);
}

/* A child that is forked while a folder is read has no mapping that prevents the seal. */
UNIT_ADD(test_forked, files_setup, files_teardown)
{
	keep_beside_children(*state);
}

static void *held;

/* Map the memory that is being filled, by the descriptor of this process that has it. */
static int map_it(void *data, uint64_t done, uint64_t total)
{
	char path[64], target[64];
	ssize_t got;
	int fd;

	for (int i = 0; i < 100 && !held; i++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", i);
		got = readlink(path, target, sizeof(target) - 1);
		target[got > 0 ? got : 0] = '\0';
		if (!strstr(target, "memfd:tmesh-file"))
			continue;
		fd = open(path, O_RDWR | O_CLOEXEC);
		held = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
	}
	return 0;
}

/* A writable mapping that stays prevents the seal: the message names its process. */
UNIT_ADD(test_mapped, files_setup, files_teardown)
{
	const struct tmesh_keep_opts opts = {.size = sizeof(opts), .progress = map_it};
	char word[32];

	write_file("file", 100000, 1);
	snprintf(word, sizeof(word), "in process %d (", (int)getpid());
	assert_refused(tmesh_keep_folder(*state, "x", folder, &opts, err), -EBUSY, word);
	munmap(held, 4096);
	assert_false(is_kept(*state, "x"));
}

static void keep_below(struct tmesh_ctx *ctx, rlim_t limit)
{
	const struct rlimit little = {limit, limit};
	sigset_t pending;

	signal(SIGXFSZ, SIG_DFL);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
	assert_refused(tmesh_keep_folder(ctx, "x", folder, NULL, err), -EFBIG, "RLIMIT_FSIZE");
	assert_int_equal(sigpending(&pending), 0);
	assert_false(sigismember(&pending, SIGXFSZ));
}

/* RLIMIT_FSIZE bounds memfds: of a large file, of small files, of their table of paths. A call that
 * would pass it fails, and kills no process. */
UNIT_ADD(test_file_size, files_setup, files_teardown)
{
	char path[TMESH_KEPT_COMPONENT_LEN + 1];
	pid_t child;

	memset(path, 'a', sizeof(path));
	path[sizeof(path) - 1] = '\0';
	for (int i = 0; i < 100; i++) {
		memcpy(path, (char[]){(char)('a' + i % 10), (char)('a' + i / 10)}, 2);
		write_file(path, 1, 1);
	}
	/* The files take 100 times 64 bytes, their table more than 25500. */
	for (rlim_t limit = 4096; limit <= 16384; limit *= 4) {
		child = fork();
		if (!child) {
			keep_below(*state, limit);
			unit_leave(0);
		}
		join_child(child);
	}
	write_file("large", 100000, 1);
	child = fork();
	if (!child) {
		keep_below(*state, 65536);
		unit_leave(0);
	}
	join_child(child);
	assert_ok(tmesh_keep_folder(*state, "x", folder, NULL, err));
	check_file(*state, "x", "large", 100000, 1);
}

static void refuse_folder(struct tmesh_ctx *ctx, int code, const char *word)
{
	unsigned int before = unit_open_fds();

	assert_refused(tmesh_keep_folder(ctx, "x", folder, NULL, err), code, word);
	assert_int_equal(unit_open_fds(), before);
	assert_false(is_kept(ctx, "x"));
}

UNIT_ADD(test_strange_files, files_setup, files_teardown)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	/* The first call of a context opens descriptors that stay. */
	is_kept(*state, "x");
	refuse_folder(*state, -EINVAL, "no files");
	write_file("good", 100000, 1);
	snprintf(address.sun_path, sizeof(address.sun_path), "%.64s/socket", folder);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	refuse_folder(*state, -EINVAL, "socket is a socket");
	unlink(in_folder("socket"));
	close(fd);
	assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
	refuse_folder(*state, -EINVAL, "pipe is a socket, device or pipe");
	unlink(in_folder("pipe"));
	assert_int_equal(symlink("/dev/zero", in_folder("zero")), 0);
	refuse_folder(*state, -EINVAL, "leads to");
	unlink(in_folder("zero"));
	assert_int_equal(symlink("loop", in_folder("loop")), 0);
	refuse_folder(*state, -ELOOP, "loop");
	unlink(in_folder("loop"));
	assert_int_equal(symlink(".", in_folder("self")), 0);
	refuse_folder(*state, -EINVAL, "link to a folder");
	unlink(in_folder("self"));
	assert_int_equal(symlink("nowhere", in_folder("dangling")), 0);
	refuse_folder(*state, -ENOENT, "dangling");
	unlink(in_folder("dangling"));
	/* A file that gives more than it says. */
	assert_int_equal(symlink("/proc/self/maps", in_folder("maps")), 0);
	refuse_folder(*state, -ESTALE, "changed");
	unlink(in_folder("maps"));
	assert_refused(tmesh_keep_folder(*state, "x", in_folder("none"), NULL, err), -ENOENT,
		       "none");
	assert_refused(tmesh_keep_folder(*state, "x", "/dev/zero", NULL, err), -EINVAL, "regular");
	assert_refused(tmesh_keep_folder(*state, "x/y", folder, NULL, err), -EINVAL, "slash");
	assert_ok(tmesh_keep_folder(*state, "x", folder, NULL, err));
}

static int count_it(void *data, uint64_t done, uint64_t total)
{
	++*(int *)data;
	return 0;
}

/* A folder that passes the limit by itself is not read first. */
UNIT_ADD(test_beyond_the_limit, files_setup, files_teardown)
{
	int calls = 0;
	struct tmesh_keep_opts opts = {
		.size = sizeof(opts), .progress = count_it, .progress_data = &calls};

	setenv("TMESH_KEEPER_BYTES", "1000000", 1);
	write_file("first", 400000, 1);
	assert_ok(tmesh_keep_folder(*state, "first", folder, &opts, err));
	assert_int_not_equal(calls, 0);
	calls = 0;
	write_file("second", 700000, 2);
	assert_refused(tmesh_keep_folder(*state, "both", folder, &opts, err), -EDQUOT,
		       "cannot keep 1100000 bytes: the limit of this user is 1000000");
	assert_int_equal(calls, 0);
	/* A folder that passes it together with kept ones makes room. */
	unlink(in_folder("first"));
	assert_ok(tmesh_keep_folder(*state, "second", folder, &opts, err));
	assert_false(is_kept(*state, "first"));
	unsetenv("TMESH_KEEPER_BYTES");
}

/* The change to the folder at the first call of progress. */
enum change {
	GROWS,
	SHRINKS,
	IS_WRITTEN,
	IS_REPLACED,
	FILE_COMES,
	FILE_GOES,
	FOLDER_COMES,
	CHANGES,
};

static int change_it(void *data, uint64_t done, uint64_t total)
{
	enum change *change = data;
	char old[128];

	switch (*change) {
	case GROWS:
		write_file("b", 200001, 2);
		break;
	case SHRINKS:
		write_file("b", 199999, 2);
		break;
	case IS_WRITTEN:
		write_file("a", 200000, 3);
		break;
	case IS_REPLACED:
		write_file("new", 200000, 1);
		snprintf(old, sizeof(old), "%s/a", folder);
		rename(in_folder("new"), old);
		break;
	case FILE_COMES:
		write_file("sub/new", 1, 1);
		break;
	case FILE_GOES:
		unlink(in_folder("sub/c"));
		break;
	case FOLDER_COMES:
		mkdir(in_folder("d"), 0700);
		break;
	case CHANGES:
		break;
	}
	return *change == CHANGES;
}

UNIT_ADD(test_changing, files_setup, files_teardown)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .progress = change_it};

	is_kept(*state, "x");
	for (enum change change = GROWS; change <= CHANGES; change++) {
		unsigned int before;

		mkdir(in_folder("sub"), 0700);
		rmdir(in_folder("d"));
		unlink(in_folder("sub/new"));
		write_file("a", 200000, 1);
		write_file("b", 200000, 2);
		write_file("sub/c", 200000, 3);
		before = unit_open_fds();
		opts.progress_data = &change;
		assert_refused(tmesh_keep_folder(*state, "x", folder, &opts, err),
			       change == CHANGES ? -ECANCELED : -ESTALE,
			       change == CHANGES ? "ended by its caller" : "was changed");
		assert_int_equal(unit_open_fds(), before);
		assert_false(is_kept(*state, "x"));
	}
}

/* More than there can be is refused before a byte is read. */
UNIT_ADD(test_too_many, files_setup, files_teardown)
{
	char name[32];

	for (int i = 0; i <= TMESH_KEPT_MAX_REGIONS; i++) {
		int fd;

		snprintf(name, sizeof(name), "f%d", i);
		fd = open(in_folder(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		assert_int_equal(ftruncate(fd, 65536), 0);
		close(fd);
	}
	assert_refused(tmesh_keep_folder(*state, "x", folder, NULL, err), -E2BIG, "1024");
	assert_false(is_kept(*state, "x"));
}

UNIT_MAIN("keep files", unit_memfd_setup, NULL)
