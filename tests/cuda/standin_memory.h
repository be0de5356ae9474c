/* SPDX-License-Identifier: MIT */
/* The stand-in driver's device memory, as its files share it: under standin_lock, which only
 * standin_end_whole() takes itself. */
#ifndef TMESH_STANDIN_MEMORY_H
#define TMESH_STANDIN_MEMORY_H

#include <sys/types.h>

#include "standin_internal.h"

/* Physical memory. Handles are its places here, from 1. It goes with its last handle or mapping;
 * the file goes with the last process. */
struct physical {
	int fd;
	off_t offset;
	int device;
	size_t bytes;
	unsigned int handles;
	unsigned int mappings;
	bool exportable;
	bool rdma;
	int external_of; /* cuImportExternalMemory: the context's device, from 1 */
	bool made;	 /* here: counts against the device's memory */
};

enum kind {
	FREE,
	RESERVED, /* addresses */
	MAPPED,	  /* in a reservation */
	WHOLE,	  /* cuMemAlloc */
	OPENED,	  /* cuIpcOpenMemHandle */
	EXTERNAL, /* cuExternalMemoryGetMappedBuffer */
};

struct range {
	enum kind kind;
	char *at;
	size_t bytes;
	struct physical *of;
	int access[STANDIN_DEVICES];
};

/* The one of this kind that has all of it. */
struct range *standin_range_with(bool (*is)(enum kind kind), cu_ptr ptr, size_t bytes);
bool standin_is_memory(enum kind kind);
struct physical *standin_physical_new(int fd, int device, size_t bytes);
void standin_physical_drop(struct physical *memory);
/* A file that stands for physical memory: make one, or -1; and read a file's properties, if it is
 * one. */
struct standin_file {
	int device;
	size_t bytes;
	off_t offset; /* by which its first byte is mapped */
};
int standin_file_new(int device, size_t bytes, bool exportable);
bool standin_file_look(int fd, struct standin_file *file);
/* Memory of another process, by a file of this one: map all of it; end that. */
cu_result standin_adopt(int fd, struct physical **out);
cu_result standin_whole(enum kind kind, struct physical *memory, int device, cu_ptr *ptr);
cu_result standin_end_whole(enum kind kind, cu_ptr ptr);

#endif
