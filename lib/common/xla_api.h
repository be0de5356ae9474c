/* SPDX-License-Identifier: MIT */
/*
 * libtmesh-xla for programs that load it when XLA's channels are asked for, and need no XLA
 * otherwise. It brings a libtmesh and a context of its own. The two exchange only the text of
 * tokens.
 *
 * A program that needs more calls defines TMESH_XLA_API_MORE(X), a list of the same kind, before it
 * includes this file.
 */
#ifndef TMESH_COMMON_XLA_API_H
#define TMESH_COMMON_XLA_API_H

#include <stdlib.h>
#include <tmesh/xla.h>

#include "loaded.h"

#define TMESH_XLA_LIBRARY "libtmesh-xla.so.0"

/* clang-format off */
#define TMESH_XLA_API(X) X(xla_bind) X(xla_unbind) X(xla_cancel) X(xla_flush) X(xla_limit)
/* clang-format on */

#ifndef TMESH_XLA_API_MORE
#define TMESH_XLA_API_MORE(X)
#endif

struct tmesh_xla_api {
#define TMESH_XLA_MEMBER(name) __typeof__(tmesh_##name) *name;
	TMESH_XLA_API(TMESH_XLA_MEMBER)
	TMESH_XLA_API_MORE(TMESH_XLA_MEMBER)
#undef TMESH_XLA_MEMBER
};

/* Load the library for as long as the process runs: @library, or TMESH_XLA_LIBRARY if it is NULL.
 * Return: 0; -EOPNOTSUPP with @err filled and @api as it was. */
static inline int tmesh_xla_api_load(struct tmesh_xla_api *api, const char *library,
				     struct tmesh_error *err)
{
	struct tmesh_xla_api found;
#define TMESH_XLA_FIND(symbol) {"tmesh_" #symbol, (void **)&found.symbol},
	const struct tmesh_loaded_call calls[] = {TMESH_XLA_API(TMESH_XLA_FIND)
							  TMESH_XLA_API_MORE(TMESH_XLA_FIND)};
#undef TMESH_XLA_FIND
	int rc = tmesh_loaded_find(library ? library : TMESH_XLA_LIBRARY,
				   "XLA's channels need libtmesh-xla",
				   "libtmesh-xla0 (Debian), or run make xla install-xla", calls,
				   sizeof(calls) / sizeof(*calls), err);

	if (!rc)
		*api = found;
	return rc;
}

#endif /* TMESH_COMMON_XLA_API_H */
