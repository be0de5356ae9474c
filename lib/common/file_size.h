/* SPDX-License-Identifier: MIT */
/*
 * Calls that make a file larger, or write past the size that RLIMIT_FSIZE allows. The kernel counts
 * memfds and standard error too, and by default kills the process with SIGXFSZ. These calls only
 * fail with EFBIG, and leave the process's signals as they are.
 */
#ifndef TMESH_COMMON_FILE_SIZE_H
#define TMESH_COMMON_FILE_SIZE_H

#include <sys/types.h>

int tmesh_ftruncate(int fd, off_t size);
int tmesh_fallocate(int fd, off_t bytes);
ssize_t tmesh_write(int fd, const void *data, size_t bytes);
ssize_t tmesh_pwrite(int fd, const void *data, size_t bytes, off_t offset);
/* Splice a pipe's bytes to @offset of a file, and move @offset. */
ssize_t tmesh_splice(int pipe, int fd, off_t *offset, size_t bytes);
/* Write what vdprintf() does. */
int tmesh_dprintf(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif /* TMESH_COMMON_FILE_SIZE_H */
