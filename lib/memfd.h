/* SPDX-License-Identifier: MIT */
/*
 * What a memfd region's file looks like, for those who make it and those who find it in /proc.
 *
 *   name      tmesh:1:<id, 16 hex>:<bytes, hex>:<label>
 *   contents  the data in whole pages, then a trailer: a hole until something is to be said
 *
 * The name says what the memory was made for. A trailer with a header says what it is now:
 * the description, and, after the pool has given the memory to a new region, that region's
 * identity. Descriptors carry both past the producer's death.
 */
#ifndef TMESH_MEMFD_H
#define TMESH_MEMFD_H

#include <sys/stat.h>

#include "wire.h"

#define TMESH_HUGE_BYTES (2u << 20)
#define TMESH_SEALS_FIXED (F_SEAL_SHRINK | F_SEAL_GROW)

#define TMESH_TRAILER_MAGIC 0x44304d54u /* "TM0D" */
#define TMESH_TRAILER_TEXT 128		/* where the description begins */
#define TMESH_TRAILER_BYTES 8192	/* at least: header and the longest description */

struct tmesh_trailer {
	uint32_t magic;
	uint32_t description_bytes;
	uint64_t id;
	uint64_t bytes;
	char label[TMESH_LABEL_LEN + 1];
};

/* What is known of a memfd region without being its holder. */
struct tmesh_memfd_name {
	uint64_t id;
	uint64_t bytes;
	char label[TMESH_LABEL_LEN + 1];
};

#define TMESH_MEMFD_NAME 128
void tmesh_memfd_name_format(char name[TMESH_MEMFD_NAME], const struct tmesh_memfd_name *parts);
/* From "tmesh:1:..." up to the end or to " (deleted)"; false for any other name. */
bool tmesh_memfd_name_parse(const char *text, struct tmesh_memfd_name *parts);
/* Of an open descriptor's file; false when it has no such name or /proc is not there. */
bool tmesh_memfd_name_of(int fd, struct tmesh_memfd_name *parts);
/* Bytes of the trailer behind a region of this kind. */
uint64_t tmesh_memfd_trailer_bytes(uint32_t kind);
/* The id of a memfd made elsewhere: it names the file as long as the machine runs. */
uint64_t tmesh_memfd_foreign_id(uint64_t dev, uint64_t ino);
bool tmesh_memfd_is_hugetlb(int fd);
/* Bytes of the pages that a file of this kind has; there are larger ones than ours. */
uint64_t tmesh_memfd_page(uint32_t kind, const struct stat *st);

/*
 * Read what the file itself says: size, owner, seals, times, trailer. @info has what the
 * name says on the way in. Return: 0 or a negative errno; -EPROTO for a file that is no region.
 */
int tmesh_memfd_describe(int fd, uint32_t kind, struct tmesh_region_info *info);

/* memfd_make.c */

/* Bytes of the file for a region's @bytes, without the trailer. */
uint64_t tmesh_memfd_alloc(const struct tmesh_region *region, uint64_t bytes);
int tmesh_memfd_create(struct tmesh_region *region, uint64_t bytes, struct tmesh_error *err);
int tmesh_memfd_from_memfd(struct tmesh_region *region, int fd, uint64_t bytes,
			   struct tmesh_error *err);
/* A region that stands for @fd, which is no memory. */
int tmesh_memfd_from_fd(struct tmesh_region *region, int fd, uint64_t bytes,
			struct tmesh_error *err);
/* Takes the descriptors over, also on failure. */
int tmesh_memfd_adopt(struct tmesh_region *region, const int *fds,
		      const struct tmesh_wire_region *wire, struct tmesh_error *err);

/* memfd_fd.c */

/* @number in decimal, as a name in /proc/PID/fd. */
#define TMESH_FD_NAME 12
void tmesh_fd_name(char name[TMESH_FD_NAME], int number);
/* @fd, a descriptor of this process, opened anew. */
int tmesh_reopen(struct tmesh_ctx *ctx, int fd, int mode, struct tmesh_error *err);
/* The region's file, opened anew: O_RDONLY, or O_RDWR where region->reopens. */
int tmesh_memfd_reopen(struct tmesh_region *region, int mode, struct tmesh_error *err);
bool tmesh_memfd_reads_only(const struct tmesh_region *region);
/* Make the descriptor a read-only one; both locks are held. False: it can still write. */
bool tmesh_memfd_lower(struct tmesh_region *region);
/* Undo that for good; region->lock is held. */
int tmesh_memfd_lift(struct tmesh_region *region, struct tmesh_error *err);
int tmesh_memfd_fd_told(struct tmesh_region *region, struct tmesh_error *err);
/* A descriptor that can write, to be put back before region->lock is released. */
int tmesh_memfd_writer_get(struct tmesh_region *region, struct tmesh_error *err);
void tmesh_memfd_writer_put(const struct tmesh_region *region, int fd);
/* Whether readers may come and go, and the memory serve another region afterwards; region->lock is
 * held. */
bool tmesh_memfd_lend(struct tmesh_region *region);
/* Of a region that no token names any more: no other open file, mapping or message holds it. */
bool tmesh_memfd_returned(struct tmesh_region *region);
/* A new descriptor to give away with @rights; one of the locks is held. */
int tmesh_memfd_handle(struct tmesh_region *region, uint32_t rights, struct tmesh_error *err);

/* memfd_opaque.c */

/* Make the region, whose card is there, stand for @fd. */
int tmesh_opaque_create(struct tmesh_region *region, int fd, struct tmesh_error *err);
/* Descriptors that a hand-over has beside the region's own. */
unsigned int tmesh_opaque_count(const struct tmesh_wire_region *wire);
/* New ones to give away with @rights. Return: as many, or a negative errno. */
int tmesh_opaque_handles(struct tmesh_region *region, uint32_t rights, int *fds,
			 struct tmesh_error *err);
void tmesh_opaque_adopt(struct tmesh_region *region, const int *fds, unsigned int count);
/* In a child, which has no use for them: what the context's regions have is the parent's. */
void tmesh_opaque_forked(struct tmesh_ctx *ctx);
/* -EOPNOTSUPP for what needs memory, on a region that has none. */
int tmesh_opaque_refuse(const struct tmesh_region *region, const char *what,
			struct tmesh_error *err);
int tmesh_memfd_opaque_fd(struct tmesh_region *region, int *fd, struct tmesh_error *err);
int tmesh_memfd_poll_fd(struct tmesh_region *region, uint32_t events, short *wait,
			struct tmesh_error *err);
uint32_t tmesh_memfd_events(struct tmesh_region *region);
int tmesh_memfd_revoke(struct tmesh_region *region, struct tmesh_error *err);
int tmesh_memfd_reclaim(struct tmesh_region *region, uint64_t timeout_ns,
			struct tmesh_reclaim_report *report, struct tmesh_error *err);

/* caps_memfd.c */
void tmesh_memfd_caps(struct tmesh_ctx *ctx);

/* see_proc.c */

struct tmesh_foreign_file;
/* Whether it is a memfd's file: the kernel's own, which nobody else serves. What it is called says
 * nothing, for any file can be called so. */
bool tmesh_is_memory(const struct tmesh_foreign_file *file);
/* The file at a descriptor of another process, by O_PATH, which opens nothing. -1: it is no
 * memfd's. */
int tmesh_proc_at(int dir, int number, struct tmesh_foreign_file *file);
/*
 * The file at a descriptor of another process, whose /proc/PID/fd is @dir, opened for reading. What
 * a process has there, and how that is called, is up to the process, and to open anything but
 * memory may wait for somebody, or set a device going: so it is looked at before. Return: -1 for
 * what is no memory too.
 */
int tmesh_proc_open(int dir, int number);
int tmesh_proc_list(struct tmesh_ctx *ctx, struct tmesh_region_info **infos, size_t *count,
		    struct tmesh_error *err);
int tmesh_proc_holders(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_holder_info **holders,
		       size_t *count, struct tmesh_error *err);
/* Names the processes with a writable mapping of this file, "123 (name), 456 (name)". */
void tmesh_proc_writers(int fd, char *text, size_t size);

/* huge.c */

/* Pages of tmpfs come in 2 MiB on request; else @why says what to change. */
bool tmesh_huge_shmem(const char **why);
/* Bytes of the mapping at @addr that are mapped by huge pages. */
uint64_t tmesh_huge_mapped(const void *addr);
/* An address range of @bytes at a multiple of 2 MiB, reserved. */
void *tmesh_huge_reserve(size_t bytes);

#endif /* TMESH_MEMFD_H */
