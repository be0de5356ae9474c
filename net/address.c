// SPDX-License-Identifier: MIT
/* Addresses as text: the provider, a host in numbers, a port. Nothing is looked up by name. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/hex.h"
#include "net_internal.h"

#define SCHEME "ofi+"
#define RAW "0x"
#define BASE_DIGITS 16

int net_check_hex(const char *what, const char *text, size_t digits, struct tmesh_error *err)
{
	uint8_t bytes[64];

	if (!text || strnlen(text, digits + 1) != digits || !tmesh_unhex(bytes, text, digits / 2))
		return tmesh_fail(err, -EINVAL, "%s is not %zu hex digits", what, digits);
	return 0;
}

static bool of_sockets(const struct fi_info *info)
{
	return info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN ||
	       info->addr_format == FI_SOCKADDR_IN6;
}

bool net_address_listens(const struct fi_info *info)
{
	static const char *const names[] = {"tcp", "net", "sockets"};
	const char *name = info->fabric_attr->prov_name;

	/* The lower provider comes first in a name such as "tcp;ofi_rxm". */
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strncmp(name, names[i], strlen(names[i])) &&
		    (!name[strlen(names[i])] || name[strlen(names[i])] == ';'))
			return true;
	return false;
}

int net_address_write(struct net_endpoint *endpoint, const struct fi_info *info, const void *memory,
		      char *text, struct tmesh_error *err)
{
	char host[INET6_ADDRSTRLEN + 2], where[2 * NET_RAW_SIZE + 16], base[24] = "";
	union net_sockaddr address = {0};
	size_t bytes = sizeof(address);
	bool six;
	int rc;

	rc = fi_getname(&endpoint->ep->fid, &address, &bytes);
	if (rc)
		return net_fail_fabric(err, "fi_getname", rc);
	if (of_sockets(info)) {
		six = address.any.sa_family == AF_INET6;
		if (!inet_ntop(address.any.sa_family,
			       six ? (void *)&address.in6.sin6_addr : (void *)&address.in.sin_addr,
			       host, sizeof(host)))
			return tmesh_fail_errno(err, "writing the fabric's address as text");
		/* sin_port and sin6_port have the same offset. */
		snprintf(where, sizeof(where), "%s%s%s:%u", six ? "[" : "", host, six ? "]" : "",
			 ntohs(address.in.sin_port));
	} else {
		strcpy(where, RAW);
		tmesh_hex(where + strlen(RAW), address.raw, bytes);
	}
	if (net_mr_wants(info, FI_MR_VIRT_ADDR))
		snprintf(base, sizeof(base), "/%0*llx", BASE_DIGITS,
			 (unsigned long long)(uintptr_t)memory);
	if (snprintf(text, TMESH_NET_ADDRESS_SIZE, SCHEME "%s://%s%s", info->fabric_attr->prov_name,
		     where, base) >= TMESH_NET_ADDRESS_SIZE)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "an address of libfabric's \"%s\" has %zu bytes, which is too "
				  "much for a message",
				  info->fabric_attr->prov_name, bytes);
	return 0;
}

static int read_host(char *host, const char *port, union net_sockaddr *address)
{
	size_t digits = strspn(port, "0123456789");
	unsigned int number = 0;
	size_t length = strlen(host);
	bool six = host[0] == '[' && host[length - 1] == ']';

	if (!digits || digits > 5 || port[digits] || port[0] == '0' ||
	    sscanf(port, "%u", &number) != 1 || number > 65535)
		return -EINVAL;
	memset(address, 0, sizeof(*address));
	if (six)
		host[length - 1] = 0;
	address->any.sa_family = six ? AF_INET6 : AF_INET;
	address->in.sin_port = htons(number);
	return inet_pton(address->any.sa_family, six ? host + 1 : host,
			 six ? (void *)&address->in6.sin6_addr : (void *)&address->in.sin_addr) == 1
		       ? 0
		       : -EINVAL;
}

static int read_socket(char *where, union net_sockaddr *address)
{
	char *port = strrchr(where, ':');

	if (!port || port == where)
		return -EINVAL;
	*port++ = 0;
	return read_host(where, port, address);
}

static int read_raw(const char *where, uint32_t format, union net_sockaddr *address)
{
	size_t digits, bytes;

	if (strncmp(where, RAW, strlen(RAW)))
		return -EINVAL;
	where += strlen(RAW);
	digits = strlen(where);
	bytes = digits / 2;
	memset(address, 0, sizeof(*address));
	if (!digits || digits % 2 || bytes > sizeof(address->raw) ||
	    !tmesh_unhex(address->raw, where, bytes))
		return -EINVAL;
	/* libfabric reads an FI_ADDR_STR address as text: printable bytes, then a zero. */
	for (size_t i = 0; format == FI_ADDR_STR && i < bytes; i++)
		if (i == bytes - 1 ? address->raw[i] != 0
				   : address->raw[i] <= ' ' || address->raw[i] > '~')
			return -EINVAL;
	return 0;
}

static int read_base(const char *text, uint64_t *base)
{
	uint8_t bytes[BASE_DIGITS / 2];

	if (strlen(text) != BASE_DIGITS || !tmesh_unhex(bytes, text, sizeof(bytes)))
		return -EINVAL;
	*base = 0;
	for (size_t i = 0; i < sizeof(bytes); i++)
		*base = *base << 8 | bytes[i];
	return 0;
}

int net_address_read(const char *text, const struct fi_info *info, struct net_place *place,
		     struct tmesh_error *err)
{
	const char *carrier = info->fabric_attr->prov_name;
	char copy[TMESH_NET_ADDRESS_SIZE];
	char *where, *base;

	if (!text || strnlen(text, sizeof(copy)) == sizeof(copy) ||
	    strncmp(text, SCHEME, strlen(SCHEME)))
		goto malformed;
	strcpy(copy, text + strlen(SCHEME));
	where = strstr(copy, "://");
	if (!where)
		goto malformed;
	*where = 0;
	where += 3;
	if (strcmp(copy, carrier))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the home's bytes come by libfabric's \"%s\", this machine has "
				  "\"%s\": both need the same, so the same version of libfabric",
				  copy, carrier);
	place->base = 0;
	if (net_mr_wants(info, FI_MR_VIRT_ADDR)) {
		base = strrchr(where, '/');
		if (!base || read_base(base + 1, &place->base))
			goto malformed;
		*base = 0;
	}
	if (of_sockets(info) ? read_socket(where, &place->at)
			     : read_raw(where, info->addr_format, &place->at))
		goto malformed;
	return 0;
malformed:
	return tmesh_fail(err, -EINVAL, "not an address such as ofi+tcp;ofi_rxm://192.0.2.1:41233");
}

static socklen_t size_of(const union net_sockaddr *address)
{
	return address->any.sa_family == AF_INET6 ? sizeof(address->in6) : sizeof(address->in);
}

int net_address_way(const struct fi_info *info, const union net_sockaddr *home)
{
	union net_sockaddr own = {0};
	int fd, error = 0;

	if (!info->src_addr || info->src_addrlen > sizeof(own))
		return 0;
	memcpy(&own, info->src_addr, info->src_addrlen);
	if (own.any.sa_family != home->any.sa_family)
		return EAFNOSUPPORT;
	/* sin_port and sin6_port have the same offset. */
	own.in.sin_port = 0;
	fd = socket(own.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	if (bind(fd, &own.any, size_of(&own)) || connect(fd, &home->any, size_of(home)))
		error = errno;
	close(fd);
	return error;
}

bool net_address_refuses(const union net_sockaddr *address, int ms)
{
	int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct pollfd wait = {.fd = fd, .events = POLLOUT};
	socklen_t bytes = sizeof(int);
	int error = 0;

	if (fd < 0)
		return false;
	if (connect(fd, &address->any, size_of(address)))
		error = errno;
	if (error == EINPROGRESS && poll(&wait, 1, ms) == 1)
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
	close(fd);
	return error == ECONNREFUSED;
}

void net_address_shut(const union net_sockaddr *address)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *name;

	while (dir && (name = readdir(dir))) {
		union net_sockaddr peer = {0};
		socklen_t bytes = sizeof(peer);
		int fd = atoi(name->d_name);

		if (getpeername(fd, &peer.any, &bytes) ||
		    peer.any.sa_family != address->any.sa_family ||
		    peer.in.sin_port != address->in.sin_port)
			continue;
		if (peer.any.sa_family == AF_INET6
			    ? !memcmp(&peer.in6.sin6_addr, &address->in6.sin6_addr, 16)
			    : peer.in.sin_addr.s_addr == address->in.sin_addr.s_addr)
			shutdown(fd, SHUT_RDWR);
	}
	if (dir)
		closedir(dir);
}
