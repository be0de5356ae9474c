/* SPDX-License-Identifier: MIT */
/*
 * libtmesh-net for programs that load it when bytes of other machines are asked for, and need no
 * libfabric otherwise. It brings a libtmesh of its own. The two exchange only handles, by a socket.
 */
#ifndef TMESH_COMMON_NET_API_H
#define TMESH_COMMON_NET_API_H

#include <signal.h>
#include <stdbool.h>
#include <tmesh/net.h>

#include "loaded.h"

#define TMESH_NET_LIBRARY "libtmesh-net.so.0"

/* clang-format off */
#define TMESH_NET_API(X) \
	X(net_open) X(net_ref) X(net_unref) X(net_offer) X(net_withdraw) X(net_grant) X(net_fetch) \
	X(net_stats) X(ctx_open) X(ctx_unref) X(region_send) X(region_recv) X(region_unref)
/* clang-format on */

struct tmesh_net_api {
#define TMESH_NET_MEMBER(name) __typeof__(tmesh_##name) *name;
	TMESH_NET_API(TMESH_NET_MEMBER)
#undef TMESH_NET_MEMBER
};

/*
 * Load the library for as long as the process runs: @library, or TMESH_NET_LIBRARY if it is NULL.
 * Libraries that libfabric loads install signal handlers. Then libtmesh-net resets those signals to
 * the default. So this call puts the process's own handlers back. Return: 0; -EOPNOTSUPP with @err
 * filled and @api as it was.
 */
static inline int tmesh_net_api_load(struct tmesh_net_api *api, const char *library,
				     struct tmesh_error *err)
{
	struct sigaction before[NSIG];
	bool known[NSIG] = {false};
	struct tmesh_net_api found;
#define TMESH_NET_FIND(symbol) {"tmesh_" #symbol, (void **)&found.symbol},
	const struct tmesh_loaded_call calls[] = {TMESH_NET_API(TMESH_NET_FIND)};
#undef TMESH_NET_FIND
	int rc;

	for (int number = 1; number < NSIG; number++)
		known[number] = !sigaction(number, NULL, &before[number]);
	rc = tmesh_loaded_find(library ? library : TMESH_NET_LIBRARY,
			       "the fetcher needs libtmesh-net",
			       "libtmesh-net0 (Debian), or run make net install-net", calls,
			       sizeof(calls) / sizeof(*calls), err);
	for (int number = 1; number < NSIG; number++)
		if (known[number])
			sigaction(number, &before[number], NULL);
	if (!rc)
		*api = found;
	return rc;
}

#endif /* TMESH_COMMON_NET_API_H */
