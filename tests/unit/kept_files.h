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

#endif /* TMESH_UNIT_KEPT_FILES_H */
