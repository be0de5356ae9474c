/* SPDX-License-Identifier: MIT */
/*
 * The errors that tmesh's calls give, each with the name of its class in tmesh.errors (Python).
 * SealedError is EPERM too. A binding raises it if it knows that a seal is the reason.
 * tests/vocabulary.md has the same table with Elixir's words, which `make vocabulary-check`
 * compares.
 */
#ifndef TMESH_COMMON_ERROR_NAMES_H
#define TMESH_COMMON_ERROR_NAMES_H

#define TMESH_ERROR_NAMES(X)            \
	X(EINVAL, InvalidError)         \
	X(EOVERFLOW, InvalidError)      \
	X(ELOOP, InvalidError)          \
	X(ENOENT, NotFoundError)        \
	X(EACCES, AccessError)          \
	X(EPERM, AccessError)           \
	X(EBUSY, BusyError)             \
	X(EEXIST, ExistsError)          \
	X(ESTALE, StaleError)           \
	X(EDQUOT, LimitError)           \
	X(E2BIG, LimitError)            \
	X(EMFILE, LimitError)           \
	X(ENFILE, LimitError)           \
	X(ENOMEM, OutOfMemoryError)     \
	X(EPROTO, ProtocolError)        \
	X(EOPNOTSUPP, UnsupportedError) \
	X(ETIMEDOUT, PeerTimeoutError)  \
	X(EAGAIN, PeerTimeoutError)     \
	X(ECANCELED, CancelledError)    \
	X(EPIPE, GoneError)             \
	X(EOWNERDEAD, GoneError)        \
	X(EBADF, ReleasedError)

#endif /* TMESH_COMMON_ERROR_NAMES_H */
