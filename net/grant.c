// SPDX-License-Identifier: MIT
/*
 * Keys. Each has its own endpoint and a thread that makes libfabric answer reads; the home's
 * program does nothing for them. Closing the endpoint ends the reads that are under way.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hex.h"
#include "common/random.h"
#include "net_internal.h"

/* The longest time until a key's thread sees @end if libfabric does not wake it: WAIT_MS if the
 * thread blocks on its queue, LOOK_MS if it polls. */
#define WAIT_MS 200
#define LOOK_MS 5

static void *serve(void *data)
{
	struct net_grant *grant = data;
	struct fi_cq_entry entries[8];
	int ms = grant->endpoint.waits ? WAIT_MS : LOOK_MS;

	/* No request of ours completes here. Errors are those of a peer's connection. */
	while (!atomic_load(&grant->end)) {
		ssize_t rc = net_endpoint_wait(&grant->endpoint, entries, 8, ms);

		if (rc == -FI_EAVAIL) {
			struct fi_cq_err_entry failure = {0};

			fi_cq_readerr(grant->endpoint.cq, &failure, 0);
		}
	}
	return NULL;
}

static int grant_open(struct tmesh_net *net, struct net_grant *grant, char *address,
		      struct tmesh_error *err)
{
	uint8_t random[8];
	uint64_t number = 0;
	int rc = tmesh_random(random, sizeof(random), err);

	if (rc)
		return rc;
	for (size_t i = 0; i < sizeof(random); i++)
		number = number << 8 | random[i];
	rc = net_endpoint_open(net->home, &grant->endpoint, err);
	if (!rc)
		rc = net_address_write(&grant->endpoint, net->home, grant->offer->memory, address,
				       err);
	if (!rc)
		rc = net_register(net, grant->offer, grant->endpoint.domain, number, &grant->mr,
				  err);
	if (rc)
		return rc;
	/* Some providers choose another key than the requested one. */
	number = fi_mr_key(grant->mr);
	if (number == FI_KEY_NOTAVAIL)
		return tmesh_fail(err, -EIO, "libfabric gives no key");
	for (size_t i = sizeof(random); i--; number >>= 8)
		random[i] = number;
	tmesh_hex(grant->key, random, sizeof(random));
	rc = pthread_create(&grant->thread, NULL, serve, grant);
	return rc ? tmesh_fail(err, -ENOMEM, "no thread for a key: %s", strerror(rc)) : 0;
}

static void grant_free(struct tmesh_net *net, struct net_grant *grant)
{
	net_endpoint_shut(&grant->endpoint, grant->mr);
	net_offer_put(net, grant->offer);
	pthread_mutex_lock(&net->lock);
	net->stats.keys--;
	pthread_mutex_unlock(&net->lock);
	free(grant);
}

static void grant_end(struct tmesh_net *net, struct net_grant *grant)
{
	atomic_store(&grant->end, true);
	if (grant->endpoint.waits)
		fi_cq_signal(grant->endpoint.cq);
	pthread_join(grant->thread, NULL);
	grant_free(net, grant);
}

/* Take a reference on the offer and add the grant to the list, where limits count it. */
static int grant_enter(struct tmesh_net *net, struct net_grant *grant, const char *id,
		       struct tmesh_error *err)
{
	struct net_offer *offer;
	struct net_grant *other;
	uint32_t of_peer = 0;
	int rc = 0;

	pthread_mutex_lock(&net->lock);
	LIST_FOREACH(other, &net->grants, entry)
		of_peer += !strcmp(other->peer, grant->peer);
	LIST_FOREACH(offer, &net->offers, entry)
		if (!strcmp(offer->id, id))
			break;
	if (!offer) {
		rc = tmesh_fail(err, -ENOENT, "no such offer: it was withdrawn, or never made");
	} else if (net->stats.keys >= net->opts.max_keys) {
		rc = tmesh_fail(err, -EDQUOT, "%u keys are granted already", net->opts.max_keys);
	} else if (of_peer >= net->opts.max_keys_per_peer) {
		rc = tmesh_fail(err, -EDQUOT, "%s has %u keys already", grant->peer, of_peer);
	} else {
		net->stats.keys++;
		offer->users++;
		grant->offer = offer;
		LIST_INSERT_HEAD(&net->grants, grant, entry);
	}
	pthread_mutex_unlock(&net->lock);
	return rc;
}

/* Mark the grant ready, unless its offer was withdrawn meanwhile: then the withdrawal has passed by
 * this grant already. */
static bool grant_ready(struct tmesh_net *net, struct net_grant *grant)
{
	struct net_offer *offer;

	pthread_mutex_lock(&net->lock);
	LIST_FOREACH(offer, &net->offers, entry)
		if (offer == grant->offer)
			break;
	if (offer)
		grant->ready = true;
	else
		LIST_REMOVE(grant, entry);
	pthread_mutex_unlock(&net->lock);
	return offer;
}

int tmesh_net_grant(struct tmesh_net *net, const char *id, const char *peer, char *key,
		    char *address, struct tmesh_error *err)
{
	char place[TMESH_NET_ADDRESS_SIZE], secret[TMESH_NET_KEY_SIZE];
	struct net_grant *grant;
	int rc = net_check_hex("an offer's id", id, TMESH_NET_ID_SIZE - 1, err);

	if (rc)
		return rc;
	if (!peer || !*peer || strnlen(peer, TMESH_NET_PEER_SIZE) == TMESH_NET_PEER_SIZE)
		return tmesh_fail(err, -EINVAL, "a peer's name has 1 to %d bytes",
				  TMESH_NET_PEER_SIZE - 1);
	grant = calloc(1, sizeof(*grant));
	if (!grant)
		return tmesh_fail(err, -ENOMEM, "no memory for a key");
	strcpy(grant->peer, peer);
	rc = grant_enter(net, grant, id, err);
	if (rc) {
		free(grant);
		return rc;
	}
	rc = grant_open(net, grant, place, err);
	if (rc) {
		pthread_mutex_lock(&net->lock);
		LIST_REMOVE(grant, entry);
		pthread_mutex_unlock(&net->lock);
		grant_free(net, grant);
		return rc;
	}
	strcpy(secret, grant->key);
	if (!grant_ready(net, grant)) {
		grant_end(net, grant);
		return tmesh_fail(err, -ENOENT, "the offer was withdrawn");
	}
	strcpy(key, secret);
	strcpy(address, place);
	return 0;
}

int tmesh_net_revoke(struct tmesh_net *net, const char *key, struct tmesh_error *err)
{
	struct net_grant *grant;
	int rc = net_check_hex("a key", key, TMESH_NET_KEY_SIZE - 1, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&net->lock);
	LIST_FOREACH(grant, &net->grants, entry)
		if (grant->ready && !strcmp(grant->key, key))
			break;
	if (grant)
		LIST_REMOVE(grant, entry);
	pthread_mutex_unlock(&net->lock);
	if (!grant)
		return tmesh_fail(err, -ENOENT, "no such key: it was ended, or never granted");
	grant_end(net, grant);
	return 0;
}

void net_grants_end(struct tmesh_net *net, const struct net_offer *offer)
{
	struct net_grant *grant;

	do {
		pthread_mutex_lock(&net->lock);
		LIST_FOREACH(grant, &net->grants, entry)
			if (grant->ready && (!offer || grant->offer == offer))
				break;
		if (grant)
			LIST_REMOVE(grant, entry);
		pthread_mutex_unlock(&net->lock);
		if (grant)
			grant_end(net, grant);
	} while (grant);
}
