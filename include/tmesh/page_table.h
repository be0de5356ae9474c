/* SPDX-License-Identifier: MIT */
/*
 * Page tables that other processes follow: the tables of all sequences of one handle on pages
 * (tmesh/pages.h) as a log of numbered, checksummed records, and a follower's own copy of them.
 * Part of libtmesh-model. See tmesh/tmesh.h for the conventions of all calls, docs/pages.md for the
 * log's form. Since 0.1.
 *
 * A copy says what the tables were after one record: it holds no page. Who wants to use pages of
 * another handle takes a ticket (tmesh_seq_take()).
 */
#ifndef TMESH_PAGE_TABLE_H
#define TMESH_PAGE_TABLE_H

#include <tmesh/pages.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_page_copy;

/*
 * Log what happens to the handle's sequences from now on; what there is comes first. @token
 * (TMESH_TOKEN_SIZE bytes) is for followers, of the same user. The log has two segments of
 * @segment_bytes (4 KiB to 256 MiB, a multiple of 8; 0: 1 MiB), each of which begins with all
 * tables: 4 bytes a block and 64 a sequence must fit well into one. It ends with the handle.
 * Called again it gives the token of the log there is.
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
 * Take in what was logged since the last time. On failure the copy is what it was after the last
 * record that was whole.
 *
 * Return: 0; -EPIPE (nothing new, and the handle is gone); and, each calling for
 * tmesh_page_copy_resync(): -ESTALE (the copy fell behind: records were overwritten); -EPROTO (a
 * record is damaged, missing, or makes no sense: the message says which); -ENOSPC (the tables have
 * outgrown the log, which has ended: no resync helps); -ENOMEM; -EPERM (inherited).
 */
int tmesh_page_copy_update(struct tmesh_page_copy *copy, struct tmesh_error *err);
/*
 * Begin anew with all tables as the newest segment has them; the copy stays as it is until an
 * update has them whole. Return: 0; -EPERM.
 */
int tmesh_page_copy_resync(struct tmesh_page_copy *copy, struct tmesh_error *err);
/* A descriptor for poll(), still the library's: readable when an update is due, which arms it
 * again. Return: the descriptor; -EPERM. */
int tmesh_page_copy_poll_fd(struct tmesh_page_copy *copy, struct tmesh_error *err);

/* Of the last record that the copy has; 0: none. */
uint64_t tmesh_page_copy_number(const struct tmesh_page_copy *copy);
/* How many sequences there are, and the id of one, from 0, in the order of ids; 0: no such. */
size_t tmesh_page_copy_count(const struct tmesh_page_copy *copy);
uint64_t tmesh_page_copy_id(const struct tmesh_page_copy *copy, size_t i);
/* The table of a sequence, @blocks page numbers, good until the next update; NULL: no such. */
const int32_t *tmesh_page_copy_table(const struct tmesh_page_copy *copy, uint64_t id,
				     uint32_t *blocks, uint64_t *tokens);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_PAGE_TABLE_H */
