/* SPDX-License-Identifier: MIT */
/*
 * Hold: memory that is on its way. See tmesh/tmesh.h for the conventions of all calls. Since 0.1.
 *
 * A token of tmesh_region_token() is good while its maker has the region. A function that makes a
 * tensor, returns its ref and lets go of the tensor would lose it before anybody could open it. A
 * token that holds keeps the memory for its reader: its context keeps a reference of its own to the
 * region until the token was opened, by whichever process, or the time is over.
 *
 * What becomes of it when its maker ends first:
 *
 *                                    memfd                          module
 *   the last handle, the context     stays held                     stays held
 *   exit()                           waits, at most linger_ns       survives; unsealed: waits
 *   _exit(), a signal, SIGKILL       lost                           survives; unsealed: lost
 *
 * On the module sealed memory is kept by the kernel (tmesh/keep.h) as "hold-", the region's id and
 * a random number until the time is over, if the handle has MANAGE, nobody keeps it already and the
 * user's limits of kept memory have room; else it is as unsealed. The module counts how often a
 * region was opened, and does not tell by which token: n holds of one region end with as many opens
 * of it, within 50 ms. What is kept for a maker that has ended is kept for the whole time.
 */
#ifndef TMESH_HOLD_H
#define TMESH_HOLD_H

#include <tmesh/bundle.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a time of 0 stands for, and the longest. */
#define TMESH_HOLD_NS 60000000000u
#define TMESH_HOLD_MAX_NS 86400000000000u
/* As many tokens of one context hold at a time. */
#define TMESH_HOLD_MAX 4096u

/*
 * Write a token as tmesh_region_token() does, and hold the region for it for @ns. Each call has a
 * hold of its own (memfd: by a token of its own, whose opens all wake this process until the first
 * of them). Afterwards the token is as good as one that does not hold: while the region object
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

/* What is still on its way. */
struct tmesh_flushed {
	size_t size;	       /* in: sizeof(struct tmesh_flushed) */
	uint64_t held;	       /* holds that nobody has opened yet */
	uint64_t held_bytes;   /* of their regions, in whole pages */
	uint64_t held_expired; /* holds since the context was opened whose time was over first */
	uint64_t messages;     /* sent by channels of this context and not received yet */
};

/*
 * Wait until everything that is held was opened, or its time is over, and everything that was sent
 * by channels of this context was received, or nobody is left to receive it. @timeout_ns negative:
 * without limit; 0: only look. @left may be NULL.
 * Return: 0; -ETIMEDOUT: @left and the message tell what nobody has opened or received.
 */
int tmesh_ctx_flush(struct tmesh_ctx *ctx, int64_t timeout_ns, struct tmesh_flushed *left,
		    struct tmesh_error *err);

/*
 * What exit() does, for a process that ends in another way (_exit()): wait, for each context at
 * most its linger_ns, until nothing is held, and nothing sent by channels is under way, that would
 * be lost with this process. What is lost all the same is told on stderr.
 */
void tmesh_linger(void);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_HOLD_H */
