// SPDX-License-Identifier: MIT
/*
 * One endpoint of libfabric. Each grant and each fetch has its own endpoint in its own domain.
 * After it is closed, its requests touch no memory, and a faulty peer can affect no other endpoint.
 */
#include <errno.h>
#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "net_internal.h"

/* The first and the longest pause between two reads of a completion queue that cannot block. */
#define LOOK_NS 20000
#define LOOK_MOST_NS 1000000

/* Every program that links any part of this library also links this file, because all of the
 * library calls net_fail_fabric(). This constructor runs after those of the libraries that it
 * depends on. */
__attribute__((constructor)) static void begin(void)
{
	net_signals_give_back();
}

int net_fail_fabric(struct tmesh_error *err, const char *what, int code)
{
	switch (-code) {
	case FI_EMFILE:
		return tmesh_fail(err, -EMFILE, "%s: no free descriptor", what);
	case FI_ENOMEM:
		return tmesh_fail(err, -ENOMEM, "%s: no memory", what);
	default:
		return tmesh_fail(err, -EIO, "%s: %s", what, fi_strerror(-code));
	}
}

bool net_mr_wants(const struct fi_info *info, uint64_t mode)
{
	return info->domain_attr->mr_mode & mode;
}

/* These providers have addresses of their own and are not bound to a network interface. */
static bool finds_itself(const char *provider)
{
	return !strcmp(provider, "shm") || !strcmp(provider, "efa");
}

static int check_info(const struct fi_info *info, struct tmesh_error *err)
{
	if (info->domain_attr->mr_key_size > sizeof(uint64_t))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the keys of libfabric's \"%s\" have %zu bytes, and 8 is what "
				  "goes into a message",
				  info->fabric_attr->prov_name, info->domain_attr->mr_key_size);
	return 0;
}

int net_endpoint_find(const struct tmesh_net_opts *opts, uint64_t caps, struct fi_info **info,
		      struct tmesh_error *err)
{
	const char *provider = opts->provider;
	struct fi_info *hints = fi_allocinfo();
	int rc = -FI_ENOMEM;

	if (!hints)
		return net_fail_fabric(err, "fi_allocinfo", rc);
	hints->caps = FI_RMA | caps;
	/* The provider may use space in each request's context. */
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->mr_mode = NET_MR_MODES;
	if (opts->flags & TMESH_NET_DMABUF) {
		hints->caps |= FI_HMEM;
		hints->domain_attr->mr_mode |= FI_MR_HMEM;
	}
	hints->ep_attr->type = FI_EP_RDM;
	hints->rx_attr->size = hints->tx_attr->size = 64;
	hints->fabric_attr->prov_name = strdup(provider);
	if (finds_itself(provider))
		rc = fi_getinfo(NET_FI_VERSION, NULL, NULL, 0, hints, info);
	else
		rc = fi_getinfo(NET_FI_VERSION, opts->address, NULL, FI_SOURCE | FI_NUMERICHOST,
				hints, info);
	fi_freeinfo(hints);
	if (rc)
		return tmesh_fail(err, rc == -FI_ENOMEM ? -ENOMEM : -EOPNOTSUPP,
				  "libfabric has no provider \"%s\" for remote reads at %s (%s); "
				  "`fi_info -p %s` tells what it has",
				  provider, opts->address, fi_strerror(-rc), provider);
	return check_info(*info, err);
}

int net_endpoint_open(struct fi_info *info, struct net_endpoint *endpoint, struct tmesh_error *err)
{
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC};
	struct fi_av_attr av = {.type = FI_AV_UNSPEC};
	struct net_endpoint e = {0};
	const char *what;
	int rc;

	what = "fi_fabric";
	rc = fi_fabric(info->fabric_attr, &e.fabric, NULL);
	if (rc)
		goto fail;
	what = "fi_domain";
	rc = fi_domain(e.fabric, info, &e.domain, NULL);
	if (rc)
		goto fail;
	what = "fi_av_open";
	rc = fi_av_open(e.domain, &av, &e.av, NULL);
	if (rc)
		goto fail;
	what = "fi_cq_open";
	/* These providers poll without pause if they support a blocking wait at all. */
	e.waits = !finds_itself(info->fabric_attr->prov_name);
	rc = e.waits ? fi_cq_open(e.domain, &cq, &e.cq, NULL) : -FI_ENOSYS;
	if (rc) {
		e.waits = false;
		cq.wait_obj = FI_WAIT_NONE;
		rc = fi_cq_open(e.domain, &cq, &e.cq, NULL);
	}
	if (rc)
		goto fail;
	what = "fi_endpoint";
	rc = fi_endpoint(e.domain, info, &e.ep, NULL);
	if (rc)
		goto fail;
	what = "fi_ep_bind";
	rc = fi_ep_bind(e.ep, &e.av->fid, 0);
	if (!rc)
		rc = fi_ep_bind(e.ep, &e.cq->fid, FI_TRANSMIT | FI_RECV);
	if (rc)
		goto fail;
	what = "fi_enable";
	rc = fi_enable(e.ep);
	if (rc)
		goto fail;
	*endpoint = e;
	return 0;
fail:
	net_endpoint_close(&e);
	return net_fail_fabric(err, what, rc);
}

void net_endpoint_close(struct net_endpoint *endpoint)
{
	if (endpoint->ep)
		fi_close(&endpoint->ep->fid);
	if (endpoint->cq)
		fi_close(&endpoint->cq->fid);
	if (endpoint->av)
		fi_close(&endpoint->av->fid);
	if (endpoint->domain)
		fi_close(&endpoint->domain->fid);
	if (endpoint->fabric)
		fi_close(&endpoint->fabric->fid);
}

void net_endpoint_shut(struct net_endpoint *endpoint, struct fid_mr *mr)
{
	if (endpoint->ep)
		fi_close(&endpoint->ep->fid);
	endpoint->ep = NULL;
	if (mr)
		fi_close(&mr->fid);
	net_endpoint_close(endpoint);
}

ssize_t net_endpoint_wait(struct net_endpoint *endpoint, struct fi_cq_entry *entries, size_t count,
			  int ms)
{
	uint64_t deadline = tmesh_now_ns() + UINT64_C(1000000) * ms;
	struct timespec pause = {.tv_nsec = LOOK_NS};
	ssize_t rc;

	if (endpoint->waits)
		return fi_cq_sread(endpoint->cq, entries, count, NULL, ms);
	/* Reading the queue also drives the provider's progress. */
	while ((rc = fi_cq_read(endpoint->cq, entries, count)) == -FI_EAGAIN &&
	       tmesh_now_ns() < deadline) {
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < LOOK_MOST_NS)
			pause.tv_nsec *= 2;
	}
	return rc;
}
