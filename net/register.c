// SPDX-License-Identifier: MIT
/*
 * Register offers' memory with libfabric. One way is by its address: computing the checksum has
 * read it there, so all of its pages exist. The other is by a dma-buf, which the card maps by
 * itself. The dma-buf way has not run on such a card; tests cover its refusal where it is not
 * supported.
 */
#include <errno.h>
#include <rdma/fi_errno.h>
#include <unistd.h>

#include "net_internal.h"

int net_dmabuf_check(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
#ifdef FI_MR_DMABUF
	if (tmesh_ctx_backend(ctx) != TMESH_BACKEND_KERNEL)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "a dma-buf of sealed memory is the module's to give, and this is "
				  "memfd");
	return 0;
#else
	return tmesh_fail(err, -EOPNOTSUPP,
			  "tmesh was built with a libfabric that takes no dma-bufs: 1.20 does");
#endif
}

#ifdef FI_MR_DMABUF
static int register_dmabuf(const struct net_offer *offer, struct fid_domain *domain,
			   uint64_t number, struct fid_mr **mr, struct tmesh_error *err)
{
	struct fi_mr_dmabuf dmabuf = {.len = offer->bytes, .base_addr = (void *)offer->memory};
	struct fi_mr_attr attr = {
		.dmabuf = &dmabuf,
		.iov_count = 1,
		.access = FI_REMOTE_READ,
		.requested_key = number,
		.iface = FI_HMEM_SYSTEM,
	};
	int rc = tmesh_region_export_dmabuf(offer->region, 0, 0, TMESH_READ, &dmabuf.fd, err);

	if (rc)
		return rc;
	rc = fi_mr_regattr(domain, &attr, FI_MR_DMABUF, mr);
	close(dmabuf.fd);
	return rc ? net_fail_fabric(err, "fi_mr_regattr of a dma-buf", rc) : 0;
}
#endif

int net_register(struct tmesh_net *net, const struct net_offer *offer, struct fid_domain *domain,
		 uint64_t number, struct fid_mr **mr, struct tmesh_error *err)
{
	int rc;

#ifdef FI_MR_DMABUF
	if (net->opts.flags & TMESH_NET_DMABUF)
		return register_dmabuf(offer, domain, number, mr, err);
#endif
	rc = fi_mr_reg(domain, offer->memory, offer->bytes, FI_REMOTE_READ, 0, number, 0, mr, NULL);
	return rc ? net_fail_fabric(err, "fi_mr_reg", rc) : 0;
}
