// SPDX-License-Identifier: MIT
/*
 * A fetch. It requests pieces ahead, so that the next ones travel while it sums up one. It takes
 * the pieces in order: the bytes received so far always form a prefix, and a new connection
 * continues after it.
 */
#include <errno.h>
#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "net_internal.h"

#define TIMEOUT_NS UINT64_C(10000000000)
/* The interval at which a fetch checks whether it was cancelled. */
#define SLICE_MS 20
#define DRAIN_NS UINT64_C(1000000000)
/* After this time without any byte on a connection, check whether the home still listens. */
#define SILENCE_NS UINT64_C(30000000)

struct fetch {
	struct tmesh_net *net;
	struct net_run run;
	const struct tmesh_net_source *source;
	struct tmesh_net_fetch_opts opts;
	struct net_place place;
	uint64_t key;
	struct tmesh_region *region;
	struct net_window *window;
	uint64_t bytes;
	struct net_sum *sum;
	uint64_t done;	    /* bytes in order */
	uint64_t asked;	    /* bytes asked for on this connection */
	uint64_t deadline;  /* the fetch fails if no byte has come until then */
	uint64_t look;	    /* when to check whether the home listens; 0: bytes have come */
	unsigned int count; /* of pieces under way */
	bool idle;	    /* no request of an earlier connection is left */
};

static int gone(struct fetch *fetch, const char *why, struct tmesh_error *err)
{
	return tmesh_fail(err, -EPIPE,
			  "the home is gone, has ended the key, or never gave it: %s (%llu of %llu "
			  "bytes had come)",
			  why, (unsigned long long)fetch->done, (unsigned long long)fetch->bytes);
}

/* Request as many pieces as the window allows. */
static int fetch_ask(struct fetch *fetch, struct net_endpoint *endpoint, struct fid_mr *mr,
		     fi_addr_t home, struct tmesh_error *err)
{
	size_t most = fetch->net->reader->ep_attr->max_msg_size;
	void *local = mr ? fi_mr_desc(mr) : NULL;
	struct net_piece *piece;

	if (most > NET_PIECE_BYTES)
		most = NET_PIECE_BYTES;
	while (fetch->asked < fetch->bytes && (piece = net_window_room(fetch->window))) {
		ssize_t rc;

		piece->offset = fetch->asked;
		piece->bytes = fetch->bytes - fetch->asked;
		if (piece->bytes > most)
			piece->bytes = most;
		rc = fi_read(endpoint->ep, piece->memory, piece->bytes, local, home,
			     fetch->place.base + fetch->asked, fetch->key, &piece->context);
		if (rc == -FI_EAGAIN)
			return 0;
		if (rc == -FI_ENOMEM)
			return net_fail_fabric(err, "fi_read", (int)rc);
		if (rc)
			return gone(fetch, fi_strerror((int)-rc), err);
		net_window_asked(fetch->window);
		fetch->asked += piece->bytes;
		fetch->count++;
	}
	return 0;
}

/* Take the pieces that have come in order. No request is under way while all pieces wait to be
 * written. That time does not count as silence of the home, so the deadline moves. */
static int fetch_read(struct fetch *fetch, struct tmesh_error *err)
{
	uint64_t before = fetch->done;
	struct net_piece *piece;
	int rc;

	while ((piece = net_window_next(fetch->window))) {
		net_sum_add(fetch->sum, piece->memory, piece->bytes);
		fetch->done += piece->bytes;
		net_window_summed(fetch->window);
	}
	if (fetch->count)
		return net_window_wait(fetch->window, NET_PIECES, err);
	rc = net_window_wait(fetch->window, fetch->done < fetch->bytes ? NET_PIECES - 1 : 0, err);
	if (fetch->done > before)
		fetch->deadline = tmesh_now_ns() + (uint64_t)fetch->opts.timeout_ns;
	return rc;
}

static int progress(struct fetch *fetch, struct tmesh_error *err)
{
	if (fetch->opts.progress && fetch->opts.progress(fetch->opts.data, fetch->done))
		return tmesh_fail(err, -ECANCELED, "the fetch was given up");
	return 0;
}

/* Return whether the home refuses connections. This is known for TCP alone; a fetch by another
 * provider ends at its deadline. */
static bool refuses(struct fetch *fetch)
{
	return fetch->net->listens && net_address_refuses(&fetch->place.at, SLICE_MS);
}

static int wait_some(struct fetch *fetch, struct net_endpoint *endpoint, struct tmesh_error *err)
{
	struct fi_cq_entry entries[8];
	struct fi_cq_err_entry failure = {0};
	/* Without a request under way libfabric is still connecting: try again soon. */
	int slice = fetch->count ? SLICE_MS : 1, ms = tmesh_poll_ms(fetch->deadline);
	ssize_t count = net_endpoint_wait(endpoint, entries, 8, ms > slice ? slice : ms);

	if (count == -FI_EAVAIL) {
		if (fi_cq_readerr(endpoint->cq, &failure, 0) == 1)
			fetch->count--;
		return gone(fetch, fi_strerror(failure.err), err);
	}
	if (count < 0 && count != -FI_EAGAIN && count != -FI_EINTR)
		return net_fail_fabric(err, "fi_cq_sread", (int)count);
	for (ssize_t i = 0; i < count; i++)
		((struct net_piece *)entries[i].op_context)->come = true;
	if (count > 0) {
		fetch->count -= count;
		fetch->deadline = tmesh_now_ns() + (uint64_t)fetch->opts.timeout_ns;
		fetch->look = 0;
	} else if (tmesh_now_ns() >= fetch->deadline) {
		return tmesh_fail(
			err, -ETIMEDOUT,
			"fetch timed out: no bytes from %s for %llu ms (%llu of %llu bytes "
			"had come)",
			fetch->source->address,
			(unsigned long long)fetch->opts.timeout_ns / 1000000,
			(unsigned long long)fetch->done, (unsigned long long)fetch->bytes);
	} else if (fetch->look && tmesh_now_ns() >= fetch->look) {
		if (refuses(fetch))
			return gone(fetch, "no process listens there", err);
		fetch->look = tmesh_now_ns() + SILENCE_NS;
	}
	return 0;
}

static void connects(struct fetch *fetch)
{
	pthread_mutex_lock(&fetch->net->lock);
	fetch->run.ends = false;
	pthread_mutex_unlock(&fetch->net->lock);
}

/* Shut down the connection, unless other fetches from this address need theirs, which look the
 * same. The lock keeps new ones from connecting meanwhile. */
static void shut(struct fetch *fetch)
{
	struct net_run *other;
	bool alone = true;

	pthread_mutex_lock(&fetch->net->lock);
	fetch->run.ends = true;
	LIST_FOREACH(other, &fetch->net->runs, entry)
		alone &= other->ends || strcmp(other->address, fetch->run.address);
	if (alone)
		net_address_shut(&fetch->place.at);
	pthread_mutex_unlock(&fetch->net->lock);
}

/* End all requests under way, and take the completion of each before the endpoint is closed:
 * libfabric 1.17 supports no other order. If that takes too long, leave the endpoint open: it makes
 * no progress when no thread reads its completions. Return whether it can be closed. */
static bool drain(struct fetch *fetch, struct net_endpoint *endpoint)
{
	uint64_t deadline = tmesh_now_ns() + DRAIN_NS;
	struct fi_cq_err_entry failure;
	struct fi_cq_entry entry;

	if (fetch->count && fetch->net->listens)
		shut(fetch);
	while (fetch->count && tmesh_now_ns() < deadline) {
		ssize_t rc = net_endpoint_wait(endpoint, &entry, 1, 1);

		failure = (struct fi_cq_err_entry){0};
		if (rc == 1 || (rc == -FI_EAVAIL && fi_cq_readerr(endpoint->cq, &failure, 0) == 1))
			fetch->count--;
	}
	return !fetch->count;
}

/* Register the window's buffers if the provider requires it for memory that it reads into. */
static int register_window(struct fetch *fetch, struct net_endpoint *endpoint, struct fid_mr **mr,
			   struct tmesh_error *err)
{
	void *memory;
	size_t size;
	int rc;

	*mr = NULL;
	if (!net_mr_wants(fetch->net->reader, FI_MR_LOCAL))
		return 0;
	memory = net_window_memory(fetch->window, &size);
	rc = fi_mr_reg(endpoint->domain, memory, size, FI_READ, 0, 0, 0, mr, NULL);
	return rc ? net_fail_fabric(err, "fi_mr_reg", rc) : 0;
}

/* Fetch by one connection, from the current position until the connection ends. */
static int attempt(struct fetch *fetch, struct tmesh_error *err)
{
	struct net_endpoint endpoint;
	struct fid_mr *mr = NULL;
	fi_addr_t home;
	int rc;

	/* The previous connection broke. Usually the home has died, and libfabric would keep
	 * trying. */
	if (fetch->done && refuses(fetch))
		return gone(fetch, "no process listens there", err);
	connects(fetch);
	rc = net_endpoint_open(fetch->net->reader, &endpoint, err);
	if (rc)
		return rc;
	fetch->asked = fetch->done;
	fetch->count = 0;
	net_window_again(fetch->window);
	fetch->look = tmesh_now_ns() + SILENCE_NS;
	rc = register_window(fetch, &endpoint, &mr, err);
	if (!rc && fi_av_insert(endpoint.av, &fetch->place.at, 1, &home, 0, NULL) != 1)
		rc = tmesh_fail(err, -EINVAL, "libfabric does not take the address %s",
				fetch->source->address);
	while (!rc && fetch->done < fetch->bytes) {
		rc = fetch_ask(fetch, &endpoint, mr, home, err);
		if (!rc)
			rc = wait_some(fetch, &endpoint, err);
		if (!rc)
			rc = fetch_read(fetch, err);
		if (!rc)
			rc = progress(fetch, err);
	}
	/* After this libfabric writes nothing to the window. */
	if (!drain(fetch, &endpoint)) {
		fetch->idle = false;
		return rc;
	}
	net_endpoint_shut(&endpoint, mr);
	return rc;
}

/* Check the route first. Without one, libfabric either retries until the timeout or reports an
 * error that looks as if the home had gone. */
static int check_way(struct fetch *fetch, struct tmesh_error *err)
{
	int error = fetch->net->listens ? net_address_way(fetch->net->reader, &fetch->place.at) : 0;

	if (!error)
		return 0;
	return tmesh_fail(
		err, -EINVAL,
		"no way leads from this net's own address %s to the home at %s (%s): open "
		"the net at an address of this machine that reaches the home",
		fetch->net->opts.address, fetch->source->address, strerror(error));
}

static int fetch_bytes(struct fetch *fetch, struct tmesh_error *err)
{
	uint64_t before;
	int rc = check_way(fetch, err);

	if (rc)
		return rc;
	fetch->deadline = tmesh_now_ns() + (uint64_t)fetch->opts.timeout_ns;
	do {
		before = fetch->done;
		rc = attempt(fetch, err);
		if (rc == -EPIPE && fetch->done > before && fetch->idle) {
			pthread_mutex_lock(&fetch->net->lock);
			fetch->net->stats.resumed++;
			pthread_mutex_unlock(&fetch->net->lock);
		}
	} while (rc == -EPIPE && fetch->done > before && fetch->idle);
	return rc;
}

static int fetch_region(struct fetch *fetch, struct tmesh_error *err)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = fetch->opts.label};
	char checksum[TMESH_NET_CHECKSUM_SIZE];
	int rc;

	opts.flags = TMESH_REGION_UNINITIALIZED;
	rc = tmesh_region_create(fetch->net->ctx, fetch->bytes, &opts, &fetch->region, err);
	if (rc)
		return rc;
	rc = net_window_open(fetch->region, net_mr_wants(fetch->net->reader, FI_MR_LOCAL),
			     &fetch->window, err);
	if (rc)
		return rc;
	fetch->idle = true;
	rc = net_sum_begin(&fetch->sum, err);
	if (!rc) {
		rc = fetch_bytes(fetch, err);
		net_sum_end(fetch->sum, checksum);
	}
	net_window_close(fetch->window, fetch->idle);
	if (rc)
		return rc;
	rc = net_sum_check(checksum, fetch->source->checksum, err);
	return rc ? rc : tmesh_region_seal(fetch->region, err);
}

static int check_source(struct fetch *fetch, const struct tmesh_net_source *source,
			struct tmesh_error *err)
{
	int rc = net_address_read(source->address, fetch->net->reader, &fetch->place, err);

	if (!rc)
		rc = net_check_hex("a key", source->key, TMESH_NET_KEY_SIZE - 1, err);
	if (!rc)
		rc = net_check_hex("a checksum", source->checksum, TMESH_NET_CHECKSUM_SIZE - 1,
				   err);
	if (rc)
		return rc;
	if (!source->bytes || source->bytes > SIZE_MAX / 2)
		return tmesh_fail(err, -EINVAL, "%llu bytes are none or too many",
				  (unsigned long long)source->bytes);
	if (fetch->net->opts.max_bytes && source->bytes > fetch->net->opts.max_bytes)
		return tmesh_fail(err, -EDQUOT, "%llu bytes; a fetch may have %llu",
				  (unsigned long long)source->bytes,
				  (unsigned long long)fetch->net->opts.max_bytes);
	fetch->bytes = source->bytes;
	fetch->key = strtoull(source->key, NULL, 16);
	return 0;
}

static int enter(struct tmesh_net *net, struct net_run *run, struct tmesh_error *err)
{
	struct net_run *other;
	uint32_t same = 0;
	int rc = 0;

	pthread_mutex_lock(&net->lock);
	LIST_FOREACH(other, &net->runs, entry)
		same += !strcmp(other->address, run->address);
	if (net->stats.fetches >= net->opts.max_fetches) {
		rc = tmesh_fail(err, -EDQUOT, "%u fetches run already", net->opts.max_fetches);
	} else if (same >= net->opts.max_fetches_per_address) {
		rc = tmesh_fail(err, -EDQUOT, "%u fetches from %s run already", same, run->address);
	} else {
		net->stats.fetches++;
		LIST_INSERT_HEAD(&net->runs, run, entry);
	}
	pthread_mutex_unlock(&net->lock);
	return rc;
}

static void leave(struct tmesh_net *net, struct fetch *fetch, int rc)
{
	pthread_mutex_lock(&net->lock);
	LIST_REMOVE(&fetch->run, entry);
	net->stats.fetches--;
	net->stats.bytes_fetched += fetch->done;
	if (rc)
		net->stats.failed++;
	else
		net->stats.fetched++;
	pthread_mutex_unlock(&net->lock);
}

int tmesh_net_fetch(struct tmesh_net *net, const struct tmesh_net_source *source,
		    const struct tmesh_net_fetch_opts *opts, struct tmesh_region **out,
		    struct tmesh_error *err)
{
	struct tmesh_net_source given;
	struct fetch *fetch = calloc(1, sizeof(*fetch));
	int rc;

	if (!fetch)
		return tmesh_fail(err, -ENOMEM, "no memory for a fetch");
	fetch->net = net;
	fetch->source = &given;
	rc = tmesh_read_sized(&given, sizeof(given), source, err);
	if (!rc)
		rc = tmesh_read_sized(&fetch->opts, sizeof(fetch->opts), opts, err);
	if (!rc)
		rc = check_source(fetch, &given, err);
	if (rc)
		goto end;
	if (!fetch->opts.timeout_ns)
		fetch->opts.timeout_ns = TIMEOUT_NS;
	else if (fetch->opts.timeout_ns < 0)
		fetch->opts.timeout_ns = INT64_MAX;
	fetch->run.address = given.address;
	rc = enter(net, &fetch->run, err);
	if (rc)
		goto end;
	rc = fetch_region(fetch, err);
	leave(net, fetch, rc);
	if (rc)
		tmesh_region_unref(fetch->region);
	else
		*out = fetch->region;
end:
	free(fetch);
	return rc;
}
