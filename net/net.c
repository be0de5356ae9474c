// SPDX-License-Identifier: MIT
/* A net: its options, its lifetime, its counters. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net_internal.h"

/* Check that this machine has @text as an address. libfabric takes any address of a network that
 * the machine is in, and fails at the first use. */
static int check_address(const char *text, struct tmesh_error *err)
{
	union net_sockaddr address = {0};
	socklen_t bytes = sizeof(address.in);
	int fd, rc = 0;

	address.any.sa_family = AF_INET;
	if (inet_pton(AF_INET, text, &address.in.sin_addr) != 1) {
		address.any.sa_family = AF_INET6;
		bytes = sizeof(address.in6);
		if (inet_pton(AF_INET6, text, &address.in6.sin6_addr) != 1)
			return tmesh_fail(err, -EINVAL, "\"%.64s\" is no address in numbers", text);
	}
	/* An offer carries this address: other machines would look for the offer on themselves. */
	if (address.any.sa_family == AF_INET ? !address.in.sin_addr.s_addr
					     : IN6_IS_ADDR_UNSPECIFIED(&address.in6.sin6_addr))
		return tmesh_fail(err, -EINVAL,
				  "%s is every address of this machine: name the one by which "
				  "others reach it",
				  text);
	fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return tmesh_fail_errno(err, "making a socket to try the address");
	if (bind(fd, &address.any, bytes))
		rc = tmesh_fail(err, -EINVAL, "no interface of this machine has the address %s: %s",
				text, strerror(errno));
	close(fd);
	return rc;
}

static int read_opts(struct tmesh_net *net, const struct tmesh_net_opts *opts,
		     struct tmesh_error *err)
{
	struct tmesh_net_opts *own = &net->opts;
	int rc = tmesh_read_sized(own, sizeof(*own), opts, err);

	if (rc)
		return rc;
	if (own->flags & ~TMESH_NET_DMABUF)
		return tmesh_fail(err, -EINVAL, "flags are 0x%x; TMESH_NET_DMABUF is the only one",
				  own->flags);
	if (!own->address)
		return tmesh_fail(err, -EINVAL,
				  "no address: name that of an interface of this machine which "
				  "leads to the others");
	rc = check_address(own->address, err);
	if (rc)
		return rc;
	if (!own->provider)
		own->provider = "tcp";
	if (!*own->provider || strlen(own->provider) >= sizeof(net->provider))
		return tmesh_fail(err, -EINVAL, "\"%.64s\" is no provider's name", own->provider);
	strcpy(net->address, own->address);
	strcpy(net->provider, own->provider);
	own->address = net->address;
	own->provider = net->provider;
	own->max_offers = own->max_offers ? own->max_offers : 4096;
	own->max_keys = own->max_keys ? own->max_keys : 256;
	own->max_keys_per_peer = own->max_keys_per_peer ? own->max_keys_per_peer : 64;
	own->max_fetches = own->max_fetches ? own->max_fetches : 16;
	own->max_fetches_per_address =
		own->max_fetches_per_address ? own->max_fetches_per_address : 8;
	return 0;
}

static void net_free(struct tmesh_net *net)
{
	if (net->home)
		fi_freeinfo(net->home);
	if (net->reader)
		fi_freeinfo(net->reader);
	free(net);
}

int tmesh_net_open(struct tmesh_ctx *ctx, const struct tmesh_net_opts *opts, struct tmesh_net **out,
		   struct tmesh_error *err)
{
	struct tmesh_net *net = calloc(1, sizeof(*net));
	struct net_endpoint probe;
	int rc;

	if (!net)
		return tmesh_fail(err, -ENOMEM, "no memory for a net");
	rc = read_opts(net, opts, err);
	/* Report a missing feature now, not at the first grant. */
	if (!rc && net->opts.flags & TMESH_NET_DMABUF)
		rc = net_dmabuf_check(ctx, err);
	if (!rc)
		rc = net_endpoint_find(&net->opts, FI_REMOTE_READ, &net->home, err);
	if (!rc)
		rc = net_endpoint_find(&net->opts, FI_READ, &net->reader, err);
	if (!rc)
		rc = net_endpoint_open(net->home, &probe, err);
	if (rc) {
		net_free(net);
		return rc;
	}
	net_endpoint_close(&probe);
	net->listens = net_address_listens(net->home);
	atomic_init(&net->refs, 1);
	pthread_mutex_init(&net->lock, NULL);
	net->ctx = tmesh_ctx_ref(ctx);
	*out = net;
	return 0;
}

struct tmesh_net *tmesh_net_ref(struct tmesh_net *net)
{
	atomic_fetch_add(&net->refs, 1);
	return net;
}

void tmesh_net_unref(struct tmesh_net *net)
{
	struct net_offer *offer;

	if (!net || atomic_fetch_sub(&net->refs, 1) != 1)
		return;
	net_grants_end(net, NULL);
	while ((offer = LIST_FIRST(&net->offers))) {
		LIST_REMOVE(offer, entry);
		net_offer_put(net, offer);
	}
	pthread_mutex_destroy(&net->lock);
	tmesh_ctx_unref(net->ctx);
	net_free(net);
}

const char *tmesh_net_provider(const struct tmesh_net *net)
{
	return net->home->fabric_attr->prov_name;
}

int tmesh_net_stats(struct tmesh_net *net, struct tmesh_net_stats *stats)
{
	struct tmesh_net_stats now;

	pthread_mutex_lock(&net->lock);
	now = net->stats;
	pthread_mutex_unlock(&net->lock);
	return tmesh_write_sized(stats, &now, sizeof(now), NULL);
}
