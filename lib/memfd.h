/* SPDX-License-Identifier: MIT */
/*
 * The file of a memfd region, for processes that make it and processes that find it in /proc.
 *
 *  name      tmesh:1:<id, 16 hex>:<bytes, hex>:<label>
 *  contents  the data in whole pages, then a trailer, which is a hole until it is written
 *
 * The name describes the memory as it was made. A trailer with a header describes it as it is now:
 * it has the description. After the pool has given the memory to a new region, it has that region's
 * identity too. Both last as long as a descriptor, also after the producer's death.
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

/* The data that a process can read of a memfd region that it does not hold. */
struct tmesh_memfd_name {
	uint64_t id;
	uint64_t bytes;
	char label[TMESH_LABEL_LEN + 1];
};

#define TMESH_MEMFD_NAME 128
void tmesh_memfd_name_format(char name[TMESH_MEMFD_NAME], const struct tmesh_memfd_name *parts);
/* Parse a name from "tmesh:1:..." to the end or to " (deleted)"; false for any other name. */
bool tmesh_memfd_name_parse(const char *text, struct tmesh_memfd_name *parts);
/* Parse the name of an open descriptor's file; false if it has no such name or /proc is not
 * mounted. */
bool tmesh_memfd_name_of(int fd, struct tmesh_memfd_name *parts);
/* Return the length of the trailer of a region of this kind. */
uint64_t tmesh_memfd_trailer_bytes(uint32_t kind);
/* Return the id of a memfd made elsewhere: it is the file's until the machine restarts. */
uint64_t tmesh_memfd_foreign_id(uint64_t dev, uint64_t ino);
bool tmesh_memfd_is_hugetlb(int fd);
/* Return the size of the file's pages; files made elsewhere may have larger ones than ours. */
uint64_t tmesh_memfd_page(uint32_t kind, const struct stat *st);

/*
 * Read the file's own data: size, owner, seals, times, trailer. The caller has filled @info by the
 * name. Return: 0 or a negative errno; -EPROTO for a file that is no region.
 */
int tmesh_memfd_describe(int fd, uint32_t kind, struct tmesh_region_info *info);

/* memfd_make.c */

/* Return the file's length for a region's @bytes, without the trailer. */
uint64_t tmesh_memfd_alloc(const struct tmesh_region *region, uint64_t bytes);
int tmesh_memfd_create(struct tmesh_region *region, uint64_t bytes, struct tmesh_error *err);
int tmesh_memfd_from_memfd(struct tmesh_region *region, int fd, uint64_t bytes,
			   struct tmesh_error *err);
/* Make a region that stands for @fd, which is no memory. */
int tmesh_memfd_from_fd(struct tmesh_region *region, int fd, uint64_t bytes,
			struct tmesh_error *err);
/* Take a region's descriptors over, also on failure. */
int tmesh_memfd_adopt(struct tmesh_region *region, const int *fds,
		      const struct tmesh_wire_region *wire, struct tmesh_error *err);

/* memfd_fd.c */

/* @number in decimal, as a name in /proc/PID/fd. */
#define TMESH_FD_NAME 12
void tmesh_fd_name(char name[TMESH_FD_NAME], int number);
/* Open @fd, a descriptor of this process, anew. */
int tmesh_reopen(struct tmesh_ctx *ctx, int fd, int mode, struct tmesh_error *err);
/* Return -EBADF if tmesh_memfd_has_file() is false. */
int tmesh_memfd_check_file(const struct tmesh_region *region, struct tmesh_error *err);
/* Open the region's file anew: O_RDONLY, or O_RDWR if region->reopens. */
int tmesh_memfd_reopen(struct tmesh_region *region, int mode, struct tmesh_error *err);
/* Keep other processes from file leases (F_SETLEASE) on the region's memory. By a lease a holder of
 * READ alone would delay each opening for writing. region->lock is held. */
void tmesh_memfd_guard(struct tmesh_region *region);
bool tmesh_memfd_reads_only(const struct tmesh_region *region);
/* Make the descriptor a read-only one; both locks are held. False: it can still write. */
bool tmesh_memfd_lower(struct tmesh_region *region);
/* Undo that for good; region->lock is held. */
int tmesh_memfd_lift(struct tmesh_region *region, struct tmesh_error *err);
int tmesh_memfd_fd_told(struct tmesh_region *region, struct tmesh_error *err);
/* Get a descriptor that can write, to be put back before region->lock is released. */
int tmesh_memfd_writer_get(struct tmesh_region *region, struct tmesh_error *err);
void tmesh_memfd_writer_put(const struct tmesh_region *region, int fd);
/* Return whether the memory can serve another region after its readers; region->lock is held. */
bool tmesh_memfd_lend(struct tmesh_region *region);
/* Return whether a region that no token names any more is free: no other open file, mapping or
 * message holds it. */
bool tmesh_memfd_returned(struct tmesh_region *region);
/* Make a new descriptor to give away with @rights; one of the locks is held. */
int tmesh_memfd_handle(struct tmesh_region *region, uint32_t rights, struct tmesh_error *err);

/* memfd_opaque.c */

/* Make the region stand for @fd; its card is there already. */
int tmesh_opaque_create(struct tmesh_region *region, int fd, struct tmesh_error *err);
/* Return the number of descriptors that a hand-over has beside the region's own. */
unsigned int tmesh_opaque_count(const struct tmesh_wire_region *wire);
/* Make new ones to give away with @rights. Return their number, or a negative errno. */
int tmesh_opaque_handles(struct tmesh_region *region, uint32_t rights, int *fds,
			 struct tmesh_error *err);
void tmesh_opaque_adopt(struct tmesh_region *region, const int *fds, unsigned int count);
/* Close the opaque regions' descriptors in a child: they are the parent's. */
void tmesh_opaque_forked(struct tmesh_ctx *ctx);
/* Return -EOPNOTSUPP if the region has no memory, for operations that need it. */
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

/* memfd_proc.c */

struct tmesh_foreign_file;
/* Return whether the file is a memfd's, which the kernel itself serves. The name does not decide,
 * because any file can have it. */
bool tmesh_is_memory(const struct tmesh_foreign_file *file);
/* Look at the file of another process's descriptor, by O_PATH, which opens nothing. -1: it is no
 * memfd's. */
int tmesh_proc_at(int dir, int number, struct tmesh_foreign_file *file);
/*
 * Open for reading the file at a descriptor of another process, whose /proc/PID/fd is @dir. That
 * process chooses its files and their names. To open a file other than memory may block or start a
 * device, so the file is checked before. Return -1 if it is no memory.
 */
int tmesh_proc_open(int dir, int number);

/* backend_memfd.c */

/* Seal a memfd against writes and further seals. Return: 0; -EBUSY (a writable mapping or an export
 * exists; the message names the processes), or as fcntl(). */
int tmesh_memfd_seal_writes(int fd, struct tmesh_error *err);

/* memfd_holders.c */
int tmesh_proc_list(struct tmesh_ctx *ctx, struct tmesh_region_info **infos, size_t *count,
		    struct tmesh_error *err);
int tmesh_proc_holders(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_holder_info **holders,
		       size_t *count, struct tmesh_error *err);
/* Return the process that has a file lease on the memory of @fd, or 0 if /proc names none. */
pid_t tmesh_proc_leaser(int fd);
/* Name the processes with a writable mapping of this file, "123 (name), 456 (name)". */
void tmesh_proc_writers(int fd, char *text, size_t size);

/* Return whether the region's maker has promised to overwrite all of it. */
bool tmesh_memfd_is_filled(const struct tmesh_region_opts *opts);
/* Note for a second handle of a region which of its pages are huge. Return: 0, or -ENOMEM. */
int tmesh_memfd_derive_huge(struct tmesh_region *derived, const struct tmesh_region *region);
/* Return whether a region of @bytes should have huge pages, if the system allows any. */
bool tmesh_memfd_wants_huge(const struct tmesh_region_opts *opts, uint64_t bytes);
/* Return whether the region's memory gets its pages before it is written. */
bool tmesh_memfd_populates(const struct tmesh_region *region);
/*
 * Give a range of the region, which is mapped for writing, its pages: of 2 MiB as far as they can
 * be had, small ones for the rest. Return: 0; -ENOMEM.
 */
int tmesh_memfd_populate(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			 struct tmesh_error *err);
/* Give the region, which its maker is to write through a mapping, the pages that are worth it. */
void tmesh_memfd_prepare(struct tmesh_region *region);

/* huge.c */

enum tmesh_huge_way {
	TMESH_HUGE_NO,	     /* not at all */
	TMESH_HUGE_TOUCH,    /* by a touch */
	TMESH_HUGE_COLLAPSE, /* by MADV_COLLAPSE alone */
};

/* Return how memory of tmpfs becomes huge here; for TMESH_HUGE_NO @why says what to change. */
enum tmesh_huge_way tmesh_huge_way(const char **why);
#define TMESH_HUGE_TOUCHES (1u << 0) /* the way is TMESH_HUGE_TOUCH */
#define TMESH_HUGE_PATIENT (1u << 1) /* also where it takes long */
/*
 * Make huge pages of @bytes at @addr, both multiples of 2 MiB, of a writable shared mapping. Return
 * the bytes that are huge now, from @addr on; the rest is not to be had, or too slowly.
 */
uint64_t tmesh_huge_populate(void *addr, uint64_t bytes, unsigned int how);
/* Return how much of the first @bytes of a memfd lies in huge pages. It moves the file's position,
 * and @fd can only read, so that no seal fails meanwhile. */
uint64_t tmesh_huge_bytes(int fd, uint64_t bytes);
/* Return how much of the mapping at @addr is mapped by huge pages. */
uint64_t tmesh_huge_mapped(const void *addr);
/* Map a file from its beginning, as mmap() does, at a multiple of 2 MiB if there is room for it. */
void *tmesh_huge_map(int fd, size_t bytes, int prot, int flags);

#endif /* TMESH_MEMFD_H */
