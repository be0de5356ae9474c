// SPDX-License-Identifier: MIT
/* The name and the trailer of a memfd, which any process may have written. */
#include "memfd.h"
#include "unit.h"

/* A process that can write a region's file can write its trailer. */
UNIT(test_trailer)
{
	const struct tmesh_trailer good_head = {
		.magic = TMESH_TRAILER_MAGIC,
		.description_bytes = 4,
		.id = 7,
		.bytes = 4000,
		.label = "told",
	};
	int fd = memfd(4096 + TMESH_TRAILER_BYTES, F_SEAL_SHRINK | F_SEAL_GROW);
	int small = memfd(TMESH_TRAILER_BYTES, F_SEAL_SHRINK | F_SEAL_GROW);
	struct tmesh_region_info info;

#define TRAILER(change, id_)                                                                   \
	do {                                                                                   \
		struct tmesh_trailer h = good_head;                                            \
		change;                                                                        \
		assert_int_equal(pwrite(fd, &h, sizeof(h), 4096), sizeof(h));                  \
		info = (struct tmesh_region_info){.id = 1, .bytes = 4096, .description = "?"}; \
		assert_int_equal(tmesh_memfd_describe(fd, 0, &info), 0);                       \
		assert_int_equal(info.id, id_);                                                \
		assert_int_equal(info.bytes, (id_) == 7 ? 4000 : 4096);                        \
		assert_int_equal(info.alloc_bytes, 4096);                                      \
	} while (0)
	assert_int_equal(pwrite(fd, "this and more", 13, 4096 + TMESH_TRAILER_TEXT), 13);
	TRAILER((void)h, 7);
	assert_string_equal(info.label, "told");
	assert_string_equal(info.description, "this");
	TRAILER(h.magic = 0, 1);
	TRAILER(h.description_bytes = TMESH_DESCRIPTION_LEN + 1, 1);
	TRAILER(h.bytes = 0, 1);
	TRAILER(h.bytes = 4097, 1);
	TRAILER(memset(h.label, 'x', sizeof(h.label)), 1);
	info = (struct tmesh_region_info){.bytes = 4097};
	assert_int_equal(tmesh_memfd_describe(fd, 0, &info), -EPROTO);
	info = (struct tmesh_region_info){.bytes = 0};
	assert_int_equal(tmesh_memfd_describe(small, 0, &info), -EPROTO);
	close(small);
	close(fd);
}

/* Nor is a memfd's name more than its maker's word. */
UNIT(test_memfd_names)
{
	static const char *const bad[] = {
		"tmesh:2:0123456789abcdef:10:x", "tmesh:1:0123456789abcde:10:x",
		"tmesh:1:0123456789abcdeg:10:x", "tmesh:1:0123456789abcdef:0:x",
		"tmesh:1:0123456789abcdef::x",	 "tmesh:1:0123456789abcdef:+1:x",
		"tmesh:1:0123456789abcdef.10:x", "tmesh:1:0",
		"tmesh:1:0123456789abcdef:10",	 "tmesh:1:0123456789abcdef:00000000000000010:x",
	};
	struct tmesh_memfd_name name;
	char text[64 + TMESH_LABEL_LEN];
	int start;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(tmesh_memfd_name_parse(bad[i], &name));
	assert_true(tmesh_memfd_name_parse("tmesh:1:0123456789abcdef:10:x (deleted)", &name));
	assert_int_equal(name.id, 0x0123456789abcdef);
	assert_int_equal(name.bytes, 16);
	assert_string_equal(name.label, "x");
	start = snprintf(text, sizeof(text), "tmesh:1:0123456789abcdef:10:");
	memset(text + start, 'x', TMESH_LABEL_LEN + 1);
	text[start + TMESH_LABEL_LEN + 1] = '\0';
	assert_false(tmesh_memfd_name_parse(text, &name));
	text[start + TMESH_LABEL_LEN] = '\0';
	assert_true(tmesh_memfd_name_parse(text, &name));
	assert_int_equal(strlen(name.label), TMESH_LABEL_LEN);
}

UNIT_MAIN("memfd_file", NULL, NULL)
