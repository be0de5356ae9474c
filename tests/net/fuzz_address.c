// SPDX-License-Identifier: MIT
/* Any address that a home tells: refused with a reason, or one that is the same when it is written
 * again. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net_internal.h"

#define CARRIER "tcp;ofi_rxm"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const union net_sockaddr *address)
{
	char text[TMESH_NET_ADDRESS_SIZE], host[INET6_ADDRSTRLEN];
	bool six = address->any.sa_family == AF_INET6;
	union net_sockaddr again;
	struct tmesh_error err;

	if (!six && address->any.sa_family != AF_INET)
		abort();
	if (!address->in.sin_port ||
	    !inet_ntop(address->any.sa_family,
		       six ? (void *)&address->in6.sin6_addr : (void *)&address->in.sin_addr, host,
		       sizeof(host)))
		abort();
	snprintf(text, sizeof(text), "ofi+" CARRIER "://%s%s%s:%u", six ? "[" : "", host,
		 six ? "]" : "", ntohs(address->in.sin_port));
	if (net_address_read(text, CARRIER, &again, &err) ||
	    memcmp(address, &again, sizeof(again)) != 0)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_error err = {0};
	union net_sockaddr address;
	char *text = malloc(size + 1);
	int rc;

	memcpy(text, data, size);
	text[size] = 0;
	rc = net_address_read(text, CARRIER, &address, &err);
	free(text);
	if (!rc)
		check(&address);
	else if (rc != err.code || (rc != -EINVAL && rc != -EOPNOTSUPP) || !err.message[0])
		abort();
	return 0;
}
