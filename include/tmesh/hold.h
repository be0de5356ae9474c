/* SPDX-License-Identifier: MIT */
/*
 * Hold: memory that is on its way. See tmesh/tmesh.h for the conventions of all calls. Since 0.1.
 * Maturity: stable.
 *
 * A token of tmesh_region_token() is good while its maker has the region. A function that makes a
 * tensor, returns its ref and drops the tensor would lose it before any process could open it. A
 * token that holds keeps the memory for its reader. Its context keeps a reference of its own to the
 * region until a process has opened the token, or the time is over.
 *
 * If the maker ends first, the held memory fares as follows:
 *
 *                                    memfd                          module
 *   the last handle, the context     stays held                     stays held
 *   exit(), exit_wait_ns given       waits at most so long          survives; unsealed: waits
 *   exit() without                   lost                           survives; unsealed: lost
 *   _exit(), a signal, SIGKILL       lost                           survives; unsealed: lost
 *
 * On the module the kernel keeps sealed memory (tmesh/keep.h) until the time is over. Its name is
 * "hold-", the region's id and a random number. The handle must have MANAGE, the region must not be
 * kept already, and the user's limits of kept memory must have room; else it is as unsealed. The
 * module counts how often a region was opened, not by which token: n holds of one region end with
 * as many opens of it, within 50 ms. Memory kept for a maker that has ended stays for the whole
 * time.
 */
#ifndef TMESH_HOLD_H
#define TMESH_HOLD_H

#include <tmesh/bundle.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The time that 0 stands for, and the longest. */
#define TMESH_HOLD_NS 60000000000u
#define TMESH_HOLD_MAX_NS 86400000000000u
/* As many tokens of one context hold at a time. */
#define TMESH_HOLD_MAX 4096u

/*
 * Write a token as tmesh_region_token() does, and hold the region for it for @ns. Each call has a
 * hold of its own. On memfd it has a token of its own, whose opens all wake this process until the
 * first of them. Afterwards the token is as good as one that does not hold: while the region object
 * exists. The caller's reference stays the caller's.
 *
 * Return: 0; -EINVAL (@ns), -EDQUOT (TMESH_HOLD_MAX, or max_held_bytes of tmesh_ctx_opts would be
 * passed: the message has the numbers), -ENOMEM; as tmesh_region_token().
 */
int tmesh_region_hold(struct tmesh_region *region, uint32_t rights, uint64_t ns, char *token,
		      struct tmesh_error *err);
/* The ref of a tensor with such a token. Errors also as tmesh_tensor_ref_encode(). */
int tmesh_tensor_ref_hold(struct tmesh_tensor *tensor, uint32_t rights, uint64_t ns, char *text,
			  size_t size, struct tmesh_error *err);
/* The ref of a bundle, each of whose regions is held by itself. After an error those that were
 * held already are until the time is over. Errors also as tmesh_bundle_ref_encode(). */
int tmesh_bundle_ref_hold(struct tmesh_bundle *bundle, uint32_t rights, uint64_t ns, char *text,
			  size_t size, struct tmesh_error *err);

/* Memory and messages that no process has taken yet. */
struct tmesh_flushed {
	size_t size;	       /* in: sizeof(struct tmesh_flushed) */
	uint64_t held;	       /* holds that no process has opened yet */
	uint64_t held_bytes;   /* of their regions, in whole pages */
	uint64_t held_expired; /* holds since the context was opened whose time was over first */
	uint64_t messages;     /* sent by channels of this context and not received yet */
};

/*
 * Wait until each hold was opened, or its time is over, and each message that channels of this
 * context sent was received, or no receiver is left. @timeout_ns negative: without limit; 0: only
 * look. @left may be NULL.
 * Return: 0; -ETIMEDOUT: @left and the message report unopened holds and unreceived messages.
 */
int tmesh_ctx_flush(struct tmesh_ctx *ctx, int64_t timeout_ns, struct tmesh_flushed *left,
		    struct tmesh_error *err);

/*
 * Wait, for all contexts together at most @timeout_ns, for held memory and sent messages that would
 * be lost with this process, and report remaining losses on stderr. @timeout_ns negative: without
 * limit; 0: only report. For a process that ends by _exit(), and for one that did not ask exit() to
 * wait.
 */
void tmesh_exit_wait(int64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_HOLD_H */
