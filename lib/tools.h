/* SPDX-License-Identifier: MIT */
/*
 * Errors, callers' structures, and other small tools: what error.c and opts.c have for all files of
 * libtmesh, and of libtmesh-cuda, which is linked with a copy of them.
 */
#ifndef TMESH_TOOLS_H
#define TMESH_TOOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The libraries are built with hidden visibility; what the public headers declare is seen. */
#pragma GCC visibility push(default)
#include <tmesh/tmesh.h>
#pragma GCC visibility pop

/* error.c */

/* Fill @err (may be NULL) and return @code, a negative errno. */
int tmesh_fail(struct tmesh_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), cold));
/* The same for the system call @what that left @code in errno. */
int tmesh_fail_errno(struct tmesh_error *err, const char *what) __attribute__((cold));
void tmesh_log(const struct tmesh_ctx *ctx, enum tmesh_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* opts.c */

/*
 * Read a sized structure of the caller's into ours: what an older caller does not know
 * reads as zero, what a newer one sets beyond us is refused.
 */
int tmesh_read_sized(void *dst, size_t dst_bytes, const void *src, struct tmesh_error *err);
/* Write as much of ours as the caller has room for; @dst begins with its size. */
int tmesh_write_sized(void *dst, const void *src, size_t src_bytes, struct tmesh_error *err);
int tmesh_check_rights(uint32_t rights, struct tmesh_error *err);
/* Validates all that does not depend on the backend. @opts may be NULL. */
int tmesh_read_region_opts(const struct tmesh_region_opts *opts, struct tmesh_region_opts *out,
			   struct tmesh_error *err);
/* The same of a tensor, which may be told an arena instead. */
int tmesh_read_tensor_opts(const struct tmesh_region_opts *opts, struct tmesh_region_opts *out,
			   struct tmesh_error *err);
uint64_t tmesh_now_ns(void);
uint64_t tmesh_page_bytes(void);
/* Milliseconds until @deadline for poll(), rounded up, 0 when it has passed. */
int tmesh_poll_ms(uint64_t deadline);
/* @number in decimal, as a name in /proc/PID/fd. */
#define TMESH_FD_NAME 12
void tmesh_fd_name(char name[TMESH_FD_NAME], int number);
void tmesh_hex(char *text, const uint8_t *bytes, size_t count);
bool tmesh_unhex(uint8_t *bytes, const char *text, size_t count);
uint64_t tmesh_siphash(const uint64_t key[2], const void *data, size_t bytes);
int tmesh_random(void *bytes, size_t count, struct tmesh_error *err);

#endif /* TMESH_TOOLS_H */
