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

int net_check_hex(const char *what, const char *text, size_t digits, struct tmesh_error *err)
{
	uint8_t bytes[64];

	if (!text || strnlen(text, digits + 1) != digits || !tmesh_unhex(bytes, text, digits / 2))
		return tmesh_fail(err, -EINVAL, "%s is not %zu hex digits", what, digits);
	return 0;
}

int net_address_write(struct net_endpoint *endpoint, const char *carrier, char *text,
		      struct tmesh_error *err)
{
	union net_sockaddr address = {0};
	size_t bytes = sizeof(address);
	char host[INET6_ADDRSTRLEN];
	bool six;
	int rc;

	rc = fi_getname(&endpoint->ep->fid, &address, &bytes);
	if (rc)
		return net_fail_fabric(err, "fi_getname", rc);
	six = address.any.sa_family == AF_INET6;
	if (!inet_ntop(address.any.sa_family,
		       six ? (void *)&address.in6.sin6_addr : (void *)&address.in.sin_addr, host,
		       sizeof(host)))
		return tmesh_fail_errno(err, "writing the fabric's address as text");
	/* The port is at the same place in both. */
	snprintf(text, TMESH_NET_ADDRESS_SIZE, SCHEME "%s://%s%s%s:%u", carrier, six ? "[" : "",
		 host, six ? "]" : "", ntohs(address.in.sin_port));
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

int net_address_read(const char *text, const char *carrier, union net_sockaddr *address,
		     struct tmesh_error *err)
{
	char copy[TMESH_NET_ADDRESS_SIZE];
	char *host, *port;

	if (!text || strnlen(text, sizeof(copy)) == sizeof(copy) ||
	    strncmp(text, SCHEME, strlen(SCHEME)))
		goto malformed;
	strcpy(copy, text + strlen(SCHEME));
	host = strstr(copy, "://");
	if (!host)
		goto malformed;
	*host = 0;
	host += 3;
	port = strrchr(host, ':');
	if (!port || port == host)
		goto malformed;
	*port++ = 0;
	if (read_host(host, port, address))
		goto malformed;
	if (strcmp(copy, carrier))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the home's bytes come by libfabric's \"%s\", this machine has "
				  "\"%s\": both need the same, so the same version of libfabric",
				  copy, carrier);
	return 0;
malformed:
	return tmesh_fail(err, -EINVAL, "not an address such as ofi+tcp;ofi_rxm://192.0.2.1:41233");
}

bool net_address_refuses(const union net_sockaddr *address, int ms)
{
	int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct pollfd wait = {.fd = fd, .events = POLLOUT};
	socklen_t bytes = sizeof(int);
	int error = 0;

	if (fd < 0)
		return false;
	if (connect(fd, &address->any,
		    address->any.sa_family == AF_INET6 ? sizeof(address->in6)
						       : sizeof(address->in)))
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
