// SPDX-License-Identifier: MIT
/*
 * Small offers. Their bytes travel in a message of the program that uses this library: a connection
 * would take several round trips, and longer than the bytes themselves.
 */
#include <errno.h>
#include <string.h>

#include "net_internal.h"

int tmesh_net_copy(struct tmesh_net *net, const char *id, void *data, size_t size, size_t *bytes,
		   struct tmesh_error *err)
{
	struct net_offer *offer;
	int rc = net_check_hex("an offer's id", id, TMESH_NET_ID_SIZE - 1, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&net->lock);
	LIST_FOREACH(offer, &net->offers, entry)
		if (!strcmp(offer->id, id))
			break;
	if (offer)
		offer->users++;
	pthread_mutex_unlock(&net->lock);
	if (!offer)
		return tmesh_fail(err, -ENOENT, "no such offer: it was withdrawn, or never made");
	if (offer->bytes > size || offer->bytes > TMESH_NET_SMALL_BYTES) {
		rc = tmesh_fail(err, -EOVERFLOW, "the offer has %llu bytes: grant a key for it",
				(unsigned long long)offer->bytes);
	} else {
		memcpy(data, offer->memory, offer->bytes);
		*bytes = offer->bytes;
	}
	net_offer_put(net, offer);
	return rc;
}

static int store(struct tmesh_net *net, const void *data, size_t bytes, const char *checksum,
		 struct tmesh_region **region, struct tmesh_error *err)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "net"};
	char come[TMESH_NET_CHECKSUM_SIZE];
	struct net_sum *sum;
	int rc = net_sum_begin(&sum, err);

	if (rc)
		return rc;
	net_sum_add(sum, data, bytes);
	net_sum_end(sum, come);
	rc = net_sum_check(come, checksum, err);
	if (rc)
		return rc;
	opts.flags = TMESH_REGION_UNINITIALIZED;
	rc = tmesh_region_create(net->ctx, bytes, &opts, region, err);
	if (!rc)
		rc = tmesh_region_write(*region, 0, data, bytes, err);
	if (!rc)
		rc = tmesh_region_seal(*region, err);
	return rc;
}

int tmesh_net_store(struct tmesh_net *net, const void *data, size_t bytes, const char *checksum,
		    struct tmesh_region **out, struct tmesh_error *err)
{
	struct tmesh_region *region = NULL;
	int rc;

	if (!data || !bytes || bytes > TMESH_NET_SMALL_BYTES)
		return tmesh_fail(err, -EINVAL, "small are 1 to %d bytes", TMESH_NET_SMALL_BYTES);
	if (net->opts.max_bytes && bytes > net->opts.max_bytes)
		return tmesh_fail(err, -EDQUOT, "%zu bytes; a fetch may have %llu", bytes,
				  (unsigned long long)net->opts.max_bytes);
	rc = net_check_hex("a checksum", checksum, TMESH_NET_CHECKSUM_SIZE - 1, err);
	if (rc)
		return rc;
	rc = store(net, data, bytes, checksum, &region, err);
	pthread_mutex_lock(&net->lock);
	if (rc) {
		net->stats.failed++;
	} else {
		net->stats.fetched++;
		net->stats.bytes_fetched += bytes;
	}
	pthread_mutex_unlock(&net->lock);
	if (rc)
		tmesh_region_unref(region);
	else
		*out = region;
	return rc;
}
