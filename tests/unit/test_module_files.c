// SPDX-License-Identifier: MIT
/* Kept files on the module: folders in the kernel, their paths on a mount of the file system
 * "tmesh", and the region behind an open file. Mounting needs root. */
#include <grp.h>
#include <sys/mount.h>

#include "kept_files.h"
#include "on_module.h"
#include "paths.h"

static char place[128]; /* of the mount */

static int place_setup(void **state)
{
	if (files_setup(state))
		return -1;
	snprintf(place, sizeof(place), "%s-mount", folder);
	setenv("TMESH_MOUNT", place, 1);
	/* A context reads the variable when it is opened. */
	tmesh_ctx_unref(*state);
	return unit_ctx_setup(state) || mkdir(place, 0755);
}

static int place_teardown(void **state)
{
	struct tmesh_kept_info *infos;
	size_t count;

	if (tmesh_kept_list(*state, &infos, &count, NULL))
		return -1;
	for (size_t i = 0; i < count; i++)
		tmesh_kept_drop(*state, infos[i].name, NULL);
	free(infos);
	umount2(place, MNT_DETACH);
	rmdir(place);
	unsetenv("TMESH_MOUNT");
	return files_teardown(state);
}

static void mount_here(void)
{
	assert_int_equal(mount("none", place, "tmesh", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), 0);
}

/* Open what is kept at a path that tmesh_kept_path() gives. */
static int open_path(struct tmesh_ctx *ctx, const char *name, const char *path)
{
	char *text;
	int fd;

	assert_ok(tmesh_kept_path(ctx, name, path, &text, err));
	fd = open(text, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	free(text);
	return fd;
}

static void check_path(struct tmesh_ctx *ctx, const char *name, const char *path, uint64_t bytes,
		       uint8_t fill)
{
	int fd = open_path(ctx, name, path);
	uint8_t *memory = malloc(bytes + 1);
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, bytes);
	assert_int_equal(read(fd, memory, bytes + 1), bytes);
	for (uint64_t i = 0; i < bytes; i++)
		assert_int_equal(memory[i], fill);
	free(memory);
	close(fd);
	check_file(ctx, name, path, bytes, fill);
}

/* The kernel keeps the folder, small files at pages of one region, and the mount shows it. */
UNIT_ADD(test_folder, place_setup, place_teardown)
{
	struct tmesh_kept_info *infos;
	struct tmesh_kept_file *files;
	size_t count, at;
	char *text;

	assert_int_equal(mkdir(in_folder("sub"), 0700), 0);
	write_file("weights", 5000001, 1);
	write_file("sub/shard", 65536, 2);
	write_file("sub/a\nb", 65535, 3);
	write_file("config.json", 3, 4);
	write_file("nothing", 0, 0);
	write_file("\xff\xfe", 7, 5);
	assert_int_equal(symlink("../weights", in_folder("sub/link")), 0);
	assert_ok(tmesh_keep_folder(*state, "m", folder, NULL, err));
	assert_ok(tmesh_kept_list(*state, &infos, &count, err));
	/* Other programs keep names in the module, too. */
	for (at = 0; at < count && strcmp(infos[at].name, "m"); at++)
		;
	assert_true(at < count);
	assert_int_equal(infos[at].backend, TMESH_BACKEND_KERNEL);
	assert_int_equal(infos[at].count, 4);
	free(infos);
	assert_ok(tmesh_kept_files(*state, "m", TMESH_KEPT_OWN, &files, &count, err));
	assert_int_equal(count, 7);
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(files[i].offset % PAGE, 0);
		assert_true(files[i].mtime_ns > 0);
		if (i)
			assert_true(tmesh_paths_compare(files[i - 1].path, files[i].path) < 0);
	}
	free(files);
	assert_refused(tmesh_kept_path(*state, "m", NULL, &text, err), -ENOENT, "tmeshctl mount");
	mount_here();
	check_path(*state, "m", "weights", 5000001, 1);
	check_path(*state, "m", "sub/link", 5000001, 1);
	check_path(*state, "m", "sub/shard", 65536, 2);
	check_path(*state, "m", "sub/a\nb", 65535, 3);
	check_path(*state, "m", "config.json", 3, 4);
	check_path(*state, "m", "nothing", 0, 0);
	check_path(*state, "m", "\xff\xfe", 7, 5);
	assert_refused(tmesh_kept_path(*state, "m", "none", &text, err), -ENOENT, "no file");
	assert_refused(tmesh_kept_path(*state, "n", NULL, &text, err), -ENOENT, "nothing is kept");
	assert_refused(tmesh_keep_folder(*state, "m", folder, NULL, err), -EEXIST, "replace");
	assert_ok(tmesh_kept_drop(*state, "m", err));
	assert_refused(tmesh_kept_path(*state, "m", NULL, &text, err), -ENOENT, "nothing is kept");
}

/* The module seals the memory although a child lives. */
UNIT_ADD(test_forked, place_setup, place_teardown)
{
	keep_beside_children(*state);
}

/* A replaced name leads to the new files at once, and a name without files has no paths. */
UNIT_ADD(test_replace, place_setup, place_teardown)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .flags = TMESH_KEEPING_REPLACE};
	struct tmesh_kept_file *files;
	size_t count;

	mount_here();
	write_file("a", 100000, 1);
	assert_ok(tmesh_keep_folder(*state, "m", folder, NULL, err));
	write_file("a", 7, 2);
	write_file("b", 70000, 3);
	assert_ok(tmesh_keep_folder(*state, "m", folder, &opts, err));
	check_path(*state, "m", "a", 7, 2);
	check_path(*state, "m", "b", 70000, 3);
	keep_new(*state, "plain", PAGE, 1);
	assert_refused(tmesh_kept_files(*state, "plain", TMESH_KEPT_OWN, &files, &count, err),
		       -ENOENT, "without files");
	assert_refused(tmesh_keep_folder(*state, "plain", folder, NULL, err), -EEXIST, "replace");
}

/* A caller's own table of files: its faults, and the regions that the module demands. */
UNIT_ADD(test_refused, place_setup, place_teardown)
{
	struct tmesh_kept_file files[2] = {{"a", 0, 4, 0, 0}, {"b", 64, 4, 0, 0}};
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .files = files, .file_count = 2};
	struct tmesh_region *region = sealed(*state, 2 * PAGE, 1), *memfd, *open;

	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -EINVAL,
		       "multiple of 4096");
	files[1].offset = PAGE;
	assert_refused(tmesh_keep(*state, "n", &region, 1, &opts, err), -EINVAL, "zeros follow");
	files[0].bytes = files[1].bytes = PAGE;
	memfd = unseen(*state, 2 * PAGE, 1);
	assert_ok(tmesh_region_seal(memfd, err));
	assert_refused(tmesh_keep(*state, "n", &memfd, 1, &opts, err), -EOPNOTSUPP,
		       "tmesh_region_create()");
	open = new_region(*state, 2 * PAGE);
	assert_refused(tmesh_keep(*state, "n", &open, 1, &opts, err), -EINVAL, "sealed");
	assert_refused(tmesh_keep(*state, ".n", &region, 1, &opts, err), -EINVAL, "dot");
	assert_false(is_kept(*state, "n"));
	assert_ok(tmesh_keep(*state, "n", &region, 1, &opts, err));
	mount_here();
	check_path(*state, "n", "b", PAGE, 1);
	tmesh_region_unref(open);
	tmesh_region_unref(memfd);
	tmesh_region_unref(region);
}

/* More than there can be is refused before a byte is read. */
UNIT_ADD(test_too_many, place_setup, place_teardown)
{
	struct tmesh_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	char name[32];

	for (int i = 0; i <= TMESH_KEPT_MAX_REGIONS; i++) {
		int fd;

		snprintf(name, sizeof(name), "f%d", i);
		fd = open(in_folder(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		assert_int_equal(ftruncate(fd, 65536), 0);
		close(fd);
	}
	assert_ok(tmesh_stats(*state, &before));
	assert_refused(tmesh_keep_folder(*state, "x", folder, NULL, err), -E2BIG, "1024");
	assert_ok(tmesh_stats(*state, &after));
	assert_int_equal(after.regions_created, before.regions_created);
	assert_false(is_kept(*state, "x"));
	/* A file that gives more than it says: nothing is kept, and the memory is given up. */
	assert_int_equal(symlink("/proc/self/maps", in_folder("maps")), 0);
	unlink(in_folder("f0"));
	unlink(in_folder("f1"));
	assert_refused(tmesh_keep_folder(*state, "x", folder, NULL, err), -ESTALE, "changed");
	assert_false(is_kept(*state, "x"));
}

/* The region behind an open file, until its name has other files. */
UNIT_ADD(test_open_fd, place_setup, place_teardown)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .flags = TMESH_KEEPING_REPLACE};
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_region *region, *other;
	struct tmesh_kept_file file;
	int fd;

	mount_here();
	write_file("a", 100, 1);
	write_file("b", 100000, 2);
	assert_ok(tmesh_keep_folder(*state, "m", folder, NULL, err));
	for (int i = 0; i < 2; i++) {
		uint8_t *memory;

		fd = open_path(*state, "m", i ? "b" : "a");
		assert_ok(tmesh_kept_open_fd(*state, fd, &region, &file, name, err));
		assert_string_equal(name, "m");
		assert_int_equal(file.bytes, i ? 100000 : 100);
		memory = map_of(region, TMESH_READ);
		assert_int_equal(memory[file.offset + file.bytes - 1], i + 1);
		tmesh_region_unmap(region, TMESH_READ);
		tmesh_region_unref(region);
		if (!i)
			close(fd);
	}
	assert_ok(tmesh_keep_folder(*state, "m", folder, &opts, err));
	assert_refused(tmesh_kept_open_fd(*state, fd, &region, &file, name, err), -ESTALE, "gone");
	close(fd);
	fd = open(place, O_RDONLY | O_CLOEXEC);
	assert_refused(tmesh_kept_open_fd(*state, fd, &region, &file, name, err), -ENODATA,
		       "no kept");
	close(fd);
	region = new_region(*state, PAGE);
	assert_refused(tmesh_kept_open_fd(*state, region->fd, &other, &file, name, err), -ENODATA,
		       "no kept");
	tmesh_region_unref(region);
}

#define MANY 500
#define FEW_FILES 64

/* Opening one file of many takes one descriptor, by its path and by the mount's file. */
UNIT_ADD(test_few_descriptors, place_setup, place_teardown)
{
	struct tmesh_kept_file files[MANY], file;
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .files = files, .file_count = MANY};
	struct tmesh_region *regions[MANY], *region, **all;
	struct rlimit before, few;
	char paths[MANY][8];
	size_t count;
	int fd;

	for (int i = 0; i < MANY; i++) {
		snprintf(paths[i], sizeof(paths[i]), "%03d", i);
		regions[i] = sealed(*state, PAGE, (uint8_t)i);
		files[i] = (struct tmesh_kept_file){paths[i], 0, PAGE, 0, (uint32_t)i};
	}
	assert_ok(tmesh_keep(*state, "many", regions, MANY, &opts, err));
	for (int i = 0; i < MANY; i++)
		tmesh_region_unref(regions[i]);
	mount_here();
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	few = (struct rlimit){FEW_FILES, before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	assert_refused(
		tmesh_kept_open(*state, "many", TMESH_KEPT_OWN, TMESH_READ, &all, &count, err),
		-EMFILE, "no descriptor");
	for (int i = 0; i < MANY; i += MANY - 1) {
		check_file(*state, "many", paths[i], PAGE, (uint8_t)i);
		fd = open_path(*state, "many", paths[i]);
		assert_ok(tmesh_kept_open_fd(*state, fd, &region, &file, NULL, err));
		assert_int_equal(file.region, i);
		tmesh_region_unref(region);
		close(fd);
	}
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Files that a mode shows to all users: others read them, and do not get the region. */
UNIT_ADD(test_other_user, place_setup, place_teardown)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .mode = 0644};
	int fd;
	pid_t pid;

	mount_here();
	write_file("a", 70000, 1);
	assert_ok(tmesh_keep_folder(*state, "m", folder, &opts, err));
	fd = open_path(*state, "m", "a");
	pid = fork();
	if (!pid) {
		struct tmesh_ctx_opts other = {.size = sizeof(other),
					       .backend = TMESH_BACKEND_KERNEL};
		struct tmesh_region *region;
		struct tmesh_ctx *ctx;
		char byte;

		/* The device is opened before: only its group may. */
		if (tmesh_ctx_open(&other, &ctx, NULL) || setgroups(0, NULL) || setgid(1001) ||
		    setuid(1001))
			_exit(1);
		if (pread(fd, &byte, 1, 69999) != 1 || byte != 1)
			_exit(2);
		_exit(tmesh_kept_open_fd(ctx, fd, &region, NULL, NULL, NULL) == -EOPNOTSUPP ? 0
											    : 3);
	}
	join_child(pid);
	close(fd);
}

/* Files that a context of memfds keeps: one of the module finds them, and says who shows them. */
UNIT_ADD(test_memfds, place_setup, place_teardown)
{
	struct tmesh_ctx_opts other = {.size = sizeof(other), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_region *region;
	struct tmesh_ctx *memfds;
	char *text;
	int fd;

	write_file("a", 70000, 1);
	assert_ok(tmesh_ctx_open(&other, &memfds, err));
	assert_ok(tmesh_keep_folder(memfds, "m", folder, NULL, err));
	check_file(*state, "m", "a", 70000, 1);
	assert_refused(tmesh_kept_path(*state, "m", "a", &text, err), -ENOENT, "tmesh-mount");
	mount_here();
	assert_refused(tmesh_kept_path(*state, "m", "a", &text, err), -ENOENT, "as memfds");
	/* The kernel's files come first. */
	write_file("a", 70000, 2);
	assert_ok(tmesh_keep_folder(*state, "m", folder, NULL, err));
	check_path(*state, "m", "a", 70000, 2);
	fd = open_path(*state, "m", "a");
	assert_refused(tmesh_kept_open_fd(memfds, fd, &region, NULL, NULL, err), -EOPNOTSUPP,
		       "/dev/tmesh");
	close(fd);
	assert_ok(tmesh_kept_drop(*state, "m", err));
	check_file(*state, "m", "a", 70000, 1);
	assert_ok(tmesh_kept_drop(*state, "m", err));
	end_keeper(memfds, SIGTERM);
	tmesh_ctx_unref(memfds);
}

UNIT_MAIN("module_files", NULL, NULL)
