/* SPDX-License-Identifier: MIT */
/*
 * Page tables that other processes follow. A handle on pages (tmesh/pages.h) writes the block
 * tables of all its sequences to a log of numbered, checksummed records. A follower keeps its own
 * copy of the tables. Part of libtmesh-model. See tmesh/tmesh.h for the conventions of all calls,
 * docs/reference/pages.md for the log's format. Since 0.1.
 * Maturity: experimental.
 *
 * A copy is the state of the tables after one record. It holds no pages: a process that wants to
 * use pages of another handle takes a ticket (tmesh_seq_open()).
 */
#ifndef TMESH_PAGE_TABLE_H
#define TMESH_PAGE_TABLE_H

#include <tmesh/pages.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_page_copy;

/*
 * Log every change of the handle's sequences from now on, after their present tables. Followers
 * of the same user open the log by @token (TMESH_TOKEN_SIZE bytes). The log has two segments of
 * @segment_bytes (4 KiB to 256 MiB, a multiple of 8; 0: 1 MiB). Each begins with all tables, so
 * that 4 bytes for each block and 64 for each sequence must fit into one with room to spare. The
 * log ends with the handle. A second call gives the token of the same log.
 *
 * Return: 0; -EINVAL; -ENOSPC (the tables do not fit already); -ENOMEM, -EMFILE, -EPERM
 * (inherited).
 */
int tmesh_pages_log(struct tmesh_pages *pages, uint32_t segment_bytes, char *token,
		    struct tmesh_error *err);

/*
 * Follow a log. The copy is empty before the first update. For one thread at a time.
 * Return: 0; -ENOENT (its handle is gone), -EPROTO (another token; a damaged head), -EBUSY (1,024
 * followers), -ETIMEDOUT, -ENOMEM, -EMFILE.
 */
int tmesh_page_copy_open(struct tmesh_ctx *ctx, const char *token, struct tmesh_page_copy **out,
			 struct tmesh_error *err);
void tmesh_page_copy_close(struct tmesh_page_copy *copy);

/*
 * Apply all records that were logged between the last update and this call. If their forks copy
 * more than 67,108,864 blocks, the call returns 0 before the last record. The descriptor then stays
 * readable, and the next update goes on. After a failure the copy is as it was after the last whole
 * record.
 *
 * Return: 0; -EPIPE (nothing new, and the handle is gone); -EPERM (inherited). -ENOSPC: the tables
 * no longer fit into the log, which has ended; a resync does not help. After -ESTALE (the copy
 * fell behind: records were overwritten), -EPROTO (a record is damaged, missing or contradicts the
 * others; the message says which) and -ENOMEM, call tmesh_page_copy_resync().
 */
int tmesh_page_copy_update(struct tmesh_page_copy *copy, struct tmesh_error *err);
/*
 * Start again from the tables at the beginning of the newest segment. The copy does not change
 * until an update has read all of them. Return: 0; -EPERM.
 */
int tmesh_page_copy_resync(struct tmesh_page_copy *copy, struct tmesh_error *err);
/* A descriptor for poll(), owned by the library. It is readable when an update is due; the update
 * makes it unreadable again. Return: the descriptor; -EPERM. */
int tmesh_page_copy_poll_fd(struct tmesh_page_copy *copy, struct tmesh_error *err);

/* Return the number of the last record that the copy has; 0: none. */
uint64_t tmesh_page_copy_number(const struct tmesh_page_copy *copy);
/* How many sequences there are; the id of sequence @i (from 0, in the order of ids), or 0 where
 * there is none. */
size_t tmesh_page_copy_count(const struct tmesh_page_copy *copy);
uint64_t tmesh_page_copy_id(const struct tmesh_page_copy *copy, size_t i);
/* The block table of a sequence, @blocks page numbers, valid until the next update; NULL: there is
 * no such sequence. */
const int32_t *tmesh_page_copy_table(const struct tmesh_page_copy *copy, uint64_t id,
				     uint32_t *blocks, uint64_t *tokens);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_PAGE_TABLE_H */
