/* SPDX-License-Identifier: MIT */
/* Shared by the tests of kept files: a folder of the test's own, and files whose bytes are all the
 * same. */
#ifndef TMESH_UNIT_KEPT_FILES_H
#define TMESH_UNIT_KEPT_FILES_H

#include "kept.h"

static char folder[64]; /* of the test */

static inline int files_setup(void **state)
{
	snprintf(folder, sizeof(folder), "/tmp/tmesh-files-XXXXXX");
	return setup(state) || !mkdtemp(folder);
}

static inline int files_teardown(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	return teardown(state) || system(command);
}

static inline char *in_folder(const char *path)
{
	static char text[2048];

	snprintf(text, sizeof(text), "%s/%s", folder, path);
	return text;
}

static inline void write_file(const char *path, size_t bytes, uint8_t fill)
{
	int fd = open(in_folder(path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	uint8_t *data = malloc(bytes + 1);

	memset(data, fill, bytes);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, bytes), bytes);
	close(fd);
	free(data);
}

static inline void check_file(struct tmesh_ctx *ctx, const char *name, const char *path,
			      uint64_t bytes, uint8_t fill)
{
	struct tmesh_region *region;
	struct tmesh_kept_file file;
	uint8_t *memory;

	assert_ok(tmesh_kept_open_file(ctx, name, TMESH_KEPT_OWN, path, &region, &file, err));
	assert_int_equal(file.bytes, bytes);
	assert_ok(tmesh_region_map(region, TMESH_READ, (void **)&memory, err));
	for (uint64_t i = 0; i < bytes; i++)
		assert_int_equal(memory[file.offset + i], fill);
	tmesh_region_unmap(region, TMESH_READ);
	tmesh_region_unref(region);
}

static pid_t forked[8];
static int forks, let[2];

/* Fork a child that lives until it is let go. */
static inline int fork_it(void *data, uint64_t done, uint64_t total)
{
	char nothing;

	forked[forks] = fork();
	if (!forked[forks]) {
		close(let[1]);
		_exit(read(let[0], &nothing, 1) != 0);
	}
	forks++;
	return 0;
}

static inline void keep_beside_children(struct tmesh_ctx *ctx)
{
	const struct tmesh_keep_opts opts = {.size = sizeof(opts), .progress = fork_it};
	struct tmesh_error err;
	int rc;

	write_file("large", 5000000, 1);
	write_file("small", 10, 2);
	assert_int_equal(pipe2(let, O_CLOEXEC), 0);
	rc = tmesh_keep_folder(ctx, "x", folder, &opts, &err);
	close(let[0]);
	close(let[1]);
	while (forks)
		join_child(forked[--forks]);
	if (rc)
		fail_msg("%d %s", rc, err.message);
	check_file(ctx, "x", "large", 5000000, 1);
	check_file(ctx, "x", "small", 10, 2);
}

#endif /* TMESH_UNIT_KEPT_FILES_H */
