/* SPDX-License-Identifier: MIT */
/* The ABI of Arrow's C Data and C Stream Interfaces: an array, what it is an array of, and a stream
 * of such arrays. */
#ifndef TMESH_ARROW_ABI_H
#define TMESH_ARROW_ABI_H

#include <assert.h>
#include <stdint.h>

#define ARROW_NULLABLE 2

struct ArrowSchema {
	const char *format;
	const char *name;
	const char *metadata;
	int64_t flags;
	int64_t n_children;
	struct ArrowSchema **children;
	struct ArrowSchema *dictionary;
	void (*release)(struct ArrowSchema *self);
	void *private_data;
};

struct ArrowArray {
	int64_t length;
	int64_t null_count;
	int64_t offset;
	int64_t n_buffers;
	int64_t n_children;
	const void **buffers;
	struct ArrowArray **children;
	struct ArrowArray *dictionary;
	void (*release)(struct ArrowArray *self);
	void *private_data;
};

struct ArrowArrayStream {
	int (*get_schema)(struct ArrowArrayStream *self, struct ArrowSchema *out);
	int (*get_next)(struct ArrowArrayStream *self, struct ArrowArray *out);
	const char *(*get_last_error)(struct ArrowArrayStream *self);
	void (*release)(struct ArrowArrayStream *self);
	void *private_data;
};

static_assert(sizeof(void *) != 8 ||
		      (sizeof(struct ArrowSchema) == 72 && sizeof(struct ArrowArray) == 80 &&
		       sizeof(struct ArrowArrayStream) == 40),
	      "not the published ABI");

#endif /* TMESH_ARROW_ABI_H */
