// SPDX-License-Identifier: MIT
/* Offers of a home. Their regions are sealed and pinned, so that no reader meets memory that was
 * revoked. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hex.h"
#include "common/random.h"
#include "net_internal.h"

static void offer_free(struct net_offer *offer)
{
	if (offer->memory)
		tmesh_region_unmap(offer->region, TMESH_READ);
	tmesh_region_unref(offer->region);
	free(offer);
}

void net_offer_put(struct tmesh_net *net, struct net_offer *offer)
{
	bool last;

	pthread_mutex_lock(&net->lock);
	last = --offer->users == 0;
	if (last)
		net->stats.offers--;
	pthread_mutex_unlock(&net->lock);
	if (last)
		offer_free(offer);
}

static int prepare(struct net_offer *offer, struct tmesh_region *region, char *checksum,
		   struct tmesh_error *err)
{
	uint8_t id[(TMESH_NET_ID_SIZE - 1) / 2];
	struct net_sum *sum;
	void *memory;
	int rc;

	if (!tmesh_region_is_sealed(region))
		return tmesh_fail(err, -EINVAL,
				  "offer: the region is not sealed, and only sealed "
				  "memory can be offered; seal it first");
	rc = tmesh_region_pin(region, &offer->region, err);
	if (!rc)
		rc = tmesh_region_map(offer->region, TMESH_READ, &memory, err);
	if (rc)
		return rc;
	offer->memory = memory;
	offer->bytes = tmesh_region_bytes(region);
	rc = tmesh_random(id, sizeof(id), err);
	if (!rc)
		rc = net_sum_begin(&sum, err);
	if (rc)
		return rc;
	tmesh_hex(offer->id, id, sizeof(id));
	net_sum_add(sum, memory, offer->bytes);
	net_sum_end(sum, checksum);
	return 0;
}

int tmesh_net_offer(struct tmesh_net *net, struct tmesh_region *region,
		    struct tmesh_net_offer_info *info, struct tmesh_error *err)
{
	struct tmesh_net_offer_info found = {0};
	struct net_offer *offer;
	bool room;
	int rc;

	pthread_mutex_lock(&net->lock);
	room = net->stats.offers < net->opts.max_offers;
	if (room)
		net->stats.offers++;
	pthread_mutex_unlock(&net->lock);
	if (!room)
		return tmesh_fail(err, -EDQUOT, "%u regions are offered already: withdraw some",
				  net->opts.max_offers);
	offer = calloc(1, sizeof(*offer));
	rc = offer ? prepare(offer, region, found.checksum, err)
		   : tmesh_fail(err, -ENOMEM, "no memory for an offer");
	if (!rc) {
		found.bytes = offer->bytes;
		strcpy(found.id, offer->id);
		rc = tmesh_write_sized(info, &found, sizeof(found), err);
	}
	pthread_mutex_lock(&net->lock);
	if (rc) {
		net->stats.offers--;
	} else {
		offer->users = 1;
		LIST_INSERT_HEAD(&net->offers, offer, entry);
	}
	pthread_mutex_unlock(&net->lock);
	if (rc && offer)
		offer_free(offer);
	return rc;
}

int tmesh_net_withdraw(struct tmesh_net *net, const char *id, struct tmesh_error *err)
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
		LIST_REMOVE(offer, entry);
	pthread_mutex_unlock(&net->lock);
	if (!offer)
		return tmesh_fail(err, -ENOENT, "no such offer: it was withdrawn, or never made");
	net_grants_end(net, offer);
	net_offer_put(net, offer);
	return 0;
}
