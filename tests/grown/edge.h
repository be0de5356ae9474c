/* SPDX-License-Identifier: MIT */
/*
 * Buffers for the programs. A structure given to a library or filled by it ends at unmapped memory:
 * a read or write past its end kills the program.
 */
#ifndef TMESH_GROWN_EDGE_H
#define TMESH_GROWN_EDGE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>
#include <tmesh/tmesh.h>

#define assert_ok(call)                                                        \
	do {                                                                   \
		struct tmesh_error err_ = {0}, *err = &err_;                   \
                                                                               \
		if (call)                                                      \
			fail_msg("%s: %d %s", #call, err->code, err->message); \
	} while (0)

/* Return @bytes of memory, all 0xff, that end at unmapped memory. They are never freed. */
static inline void *at_edge(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) & ~(page - 1);
	uint8_t *pages = mmap(NULL, whole + page, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(pages != MAP_FAILED);
	assert_int_equal(mprotect(pages + whole, page, PROT_NONE), 0);
	memset(pages, 0xff, whole);
	return pages + whole - bytes;
}

/* A structure of the caller's, with its size. */
static inline void *sized(size_t bytes)
{
	void *made = at_edge(bytes);

	memcpy(made, &bytes, sizeof(bytes));
	return made;
}

static inline void *options(size_t bytes)
{
	void *made = memset(at_edge(bytes), 0, bytes);

	memcpy(made, &bytes, sizeof(bytes));
	return made;
}

#define SIZED(type) ((struct type *)sized(sizeof(struct type)))
#define OPTIONS(type) ((struct type *)options(sizeof(struct type)))

static inline struct tmesh_ctx *context(void)
{
	struct tmesh_ctx_opts *opts = OPTIONS(tmesh_ctx_opts);
	struct tmesh_ctx *ctx;

	opts->backend = TMESH_BACKEND_MEMFD;
	assert_ok(tmesh_ctx_open(opts, &ctx, err));
	return ctx;
}

static inline struct tmesh_region *region(struct tmesh_ctx *ctx, uint64_t bytes, const char *label)
{
	struct tmesh_region_opts *opts = OPTIONS(tmesh_region_opts);
	struct tmesh_region *made;

	opts->label = label;
	assert_ok(tmesh_region_create(ctx, bytes, opts, &made, err));
	return made;
}

/* Return the output of a command that must succeed. The loader finds the libraries by
 * LD_LIBRARY_PATH for it too. The text is valid until the next call. */
__attribute__((format(printf, 1, 2))) static inline const char *output_of(const char *format, ...)
{
	static char text[64 << 20]; /* tmeshctl reports on the whole machine */
	char command[4096];
	va_list args;
	size_t got;
	FILE *out;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	out = popen(command, "re");
	assert_non_null(out);
	got = fread(text, 1, sizeof(text) - 1, out);
	text[got] = '\0';
	if (pclose(out))
		fail_msg("%s fails and says: %s", command, text);
	return text;
}

static inline int setup(void **state)
{
	*state = context();
	return 0;
}

static inline int teardown(void **state)
{
	tmesh_ctx_unref(*state);
	return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif /* TMESH_GROWN_EDGE_H */
