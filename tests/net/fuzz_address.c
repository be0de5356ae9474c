// SPDX-License-Identifier: MIT
/* Any address that a home tells: refused with a reason, or one that is the same when it is written
 * again. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char tcp[] = "tcp;ofi_rxm", shm[] = "shm", efa[] = "efa";
static struct fi_fabric_attr fabrics[] = {
	{.prov_name = tcp}, {.prov_name = shm}, {.prov_name = efa}};
static struct fi_domain_attr domains[] = {
	{.mr_mode = 0}, {.mr_mode = FI_MR_VIRT_ADDR}, {.mr_mode = NET_MR_MODES}};
static const uint32_t formats[] = {FI_SOCKADDR_IN, FI_ADDR_STR, FI_ADDR_EFA};

static void check_socket(const struct fi_info *info, const struct net_place *place)
{
	const union net_sockaddr *address = &place->at;
	char text[TMESH_NET_ADDRESS_SIZE], host[INET6_ADDRSTRLEN];
	bool six = address->any.sa_family == AF_INET6;
	struct net_place again = {0};
	struct tmesh_error err;

	if ((!six && address->any.sa_family != AF_INET) || place->base)
		abort();
	if (!address->in.sin_port ||
	    !inet_ntop(address->any.sa_family,
		       six ? (void *)&address->in6.sin6_addr : (void *)&address->in.sin_addr, host,
		       sizeof(host)))
		abort();
	snprintf(text, sizeof(text), "ofi+%s://%s%s%s:%u", info->fabric_attr->prov_name,
		 six ? "[" : "", host, six ? "]" : "", ntohs(address->in.sin_port));
	if (net_address_read(text, info, &again, &err) ||
	    memcmp(address, &again.at, sizeof(again.at)) != 0)
		abort();
}

/* A text address for libfabric ends within its place. */
static void check(const struct fi_info *info, const struct net_place *place)
{
	if (info->addr_format == FI_SOCKADDR_IN)
		check_socket(info, place);
	else if (info->addr_format == FI_ADDR_STR &&
		 (!place->at.raw[0] ? place->at.raw[1] != 0
				    : !memchr(place->at.raw, 0, sizeof(place->at.raw))))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_error err = {0};
	char *text = malloc(size + 1);

	memcpy(text, data, size);
	text[size] = 0;
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
		struct fi_info info = {.addr_format = formats[i],
				       .fabric_attr = &fabrics[i],
				       .domain_attr = &domains[i]};
		struct net_place place = {0};
		int rc = net_address_read(text, &info, &place, &err);

		if (!rc)
			check(&info, &place);
		else if (rc != err.code || (rc != -EINVAL && rc != -EOPNOTSUPP) || !err.message[0])
			abort();
	}
	free(text);
	return 0;
}
