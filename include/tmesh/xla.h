/* SPDX-License-Identifier: MIT */
/*
 * libtmesh-xla: tensors leave and enter a running XLA computation through channels. See
 * tmesh/tmesh.h for the conventions of all calls. Since 0.1.
 * Maturity: experimental.
 *
 * Two handlers of XLA's foreign function interface (typed FFI, api_version 4) for the platform
 * "Host". They have no state, so that one library serves hosts of FFI 0.1 and newer, and nothing
 * of XLA is linked. All other calls say which channel a name in a program means.
 *
 * Each name stands for one end of one channel, in the whole process. Bindings change while programs
 * run: nothing is compiled anew. The calls may be used from any thread. Computations that use a
 * name at once take turns.
 */
#ifndef TMESH_XLA_H
#define TMESH_XLA_H

#include <stdbool.h>

#include <tmesh/channel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* XLA's own, of xla/ffi/api/c_api.h. */
struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;

#define TMESH_XLA_NAME_MAX 127 /* bytes of a name */
/* For the attribute timeout_ms: its default, and the longest wait, a week. */
#define TMESH_XLA_TIMEOUT_MS 60000
#define TMESH_XLA_TIMEOUT_MS_MAX (7 * 24 * 3600 * 1000)
#define TMESH_XLA_ASK_NS 50000000
/* Most bytes kept for the next push, whether receivers still have the memory or not. */
#define TMESH_XLA_REGION_POOL_BYTES (512u << 20)

/*
 * The handlers. Attributes of both:
 *
 *   channel     string: a bound name
 *   timeout_ms  int64: longest wait for the whole call, 0 to TMESH_XLA_TIMEOUT_MS_MAX
 *   seal        bool, of push alone: each tensor in a sealed region of its own; false: see below
 *
 * Any other attribute is refused. The sequence is a uint32 without dimensions. A call that takes it
 * gives it back plus one. Calls that hand it on therefore happen in this order. If XLA aliases
 * operand and result, they are one. Without it the order is XLA's choice.
 *
 *   push  operands: the sequence if there is a result, then tensors. One message is sent for each.
 *         Result: the sequence, or none.
 *   pop   operands: the sequence, or none. Results: the sequence if there is an operand, then
 *         tensors. One message is received for each; its dtype and shape must be the result's.
 *
 * A tensor is copied once. Receivers only read memory that is not sealed, and this library writes
 * it no more while a process has it. Tensors of up to 64 KiB are in an arena. The memory of a
 * larger one serves a later push once the kernel knows of no other holder (TMESH_REGION_REUSE). If
 * receivers keep the tensors, each push has new memory. Messages that have gone or come before an
 * error stay gone or taken. So is a message that does not fit. The next call starts at the message
 * behind it.
 *
 * Errors, by XLA's codes:
 *
 *   INVALID_ARGUMENT     attributes, operands, results; dtypes that channels do not carry; more
 *                        than TMESH_MAX_DIMS dimensions; a message of another dtype or shape,
 *                        with both in the error's message
 *   NOT_FOUND            nothing is bound to the name
 *   FAILED_PRECONDITION  it is bound in the other direction; inherited through fork()
 *   DEADLINE_EXCEEDED    the timeout is over
 *   UNAVAILABLE          the other end has no handle
 *   CANCELLED            tmesh_xla_cancel(), bound anew or unbound meanwhile, or a signal came
 *                        while the thread waited
 *   DATA_LOSS            a message that cannot be read: damaged, or its memory is gone
 *   RESOURCE_EXHAUSTED   limits, memory, descriptors
 *   UNIMPLEMENTED        another major version of FFI
 */
struct XLA_FFI_Error *tmesh_xla_push(struct XLA_FFI_CallFrame *frame);
struct XLA_FFI_Error *tmesh_xla_pop(struct XLA_FFI_CallFrame *frame);

/* What EXLA brings. */
#define TMESH_XLA_HOST_LIBRARY "libxla_extension.so"

/*
 * Make the handlers known, as "tmesh_push" and "tmesh_pop" for the platform "Host", to the XLA in
 * @library, which is loaded in this process already and exports xla::ffi::GetXlaFfiApi(); NULL:
 * TMESH_XLA_HOST_LIBRARY. Doing it again is fine. JAX has its own call, and needs none of this.
 *
 * Return: 0; -ENOENT (@library is not loaded), -EPROTO (XLA refuses a handler; the message has its
 * reason). For the function: -EOPNOTSUPP (@library exports none, or has another major version of
 * FFI).
 */
int tmesh_xla_register(const char *library, struct tmesh_error *err);

/*
 * Join the channel of @token and let @name mean it from now on. SEND is for push, RECV for pop.
 * Waits under an earlier meaning of @name end with CANCELLED. Messages sent and not received are
 * lost with it, as by tmesh_xla_unbind(). The channel that @name means already, which has no other
 * place to give, stays as it is. Return: 0; -EINVAL (an empty or longer name, no UTF-8 text);
 * errors as tmesh_channel_open().
 */
int tmesh_xla_bind(const char *name, const char *token, enum tmesh_channel_role role,
		   struct tmesh_error *err);

/* Leave the channel. Messages that were not received yet are lost: tmesh_xla_flush() waits for
 * them. Return: 0; -ENOENT (nothing is bound to @name). */
int tmesh_xla_unbind(const char *name, struct tmesh_error *err);

/* End the waits under @name with CANCELLED, those of this moment alone.
 * Return: 0; -ENOENT. */
int tmesh_xla_cancel(const char *name, struct tmesh_error *err);

/*
 * Wait until all that was pushed under @name was received. @timeout_ns negative: without limit.
 * Return: 0; -ENOENT, -EBADF (bound for receiving), -ETIMEDOUT, -ECANCELED (by tmesh_xla_cancel(),
 * or a signal came while asleep); errors as tmesh_channel_flush().
 */
int tmesh_xla_flush(const char *name, int64_t timeout_ns, struct tmesh_error *err);

/*
 * Ask @came in each thread that waits, every TMESH_XLA_ASK_NS; true ends its wait with CANCELLED,
 * and with -ECANCELED in tmesh_xla_flush(). NULL: no function is asked. No lock of this library is
 * held then: @came may call this library, but not wait under the same name. It may fork(): the
 * child calls exec() or _exit().
 *
 * A signal ends a wait by itself where its handler runs in the sleeping thread. A language whose
 * handlers only make a note of it needs this for those that come in the moment before the sleep, or
 * in another thread.
 */
void tmesh_xla_ask(bool (*came)(void));

/* At most so many bytes under way or held by this library, of all names together; 0: no limit. A
 * push beyond it gives RESOURCE_EXHAUSTED. */
void tmesh_xla_limit(uint64_t max_bytes);

/* Return tmesh_stats() of the context that this library has for itself, above all the copies. It
 * goes with the last binding; then all is zero. Return: 0; -EINVAL. */
int tmesh_xla_stats(struct tmesh_stats *stats, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_XLA_H */
